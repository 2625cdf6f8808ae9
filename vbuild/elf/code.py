"""What an ELF file holds: its code, its functions and objects, and what it takes from other libraries.

    SHF_EXECINSTR sections           code; without section headers the executable PT_LOAD segments
    .symtab, .dynsym                 functions and objects by name, each address once
    .eh_frame_hdr                    functions without a name, in stripped files too
    .gnu.version, DT_VERNEED         the versions of the symbols it takes from other libraries
    .rela.dyn, .relr.dyn             pointers to functions and objects in data

The symbols read last are kept: libraries slimmed for other GPUs have the same.
https://gabi.xinuos.com/ and the psABI supplement, https://gitlab.com/x86-psABIs/x86-64-ABI
https://refspecs.linuxfoundation.org/LSB_5.0.0/LSB-Core-generic/LSB-Core-generic/ehframechpt.html
"""

import hashlib
import re
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from enum import IntEnum
from operator import attrgetter
from threading import Lock
from typing import ClassVar, Self, TypeVar, cast

from msgspec import Struct

from vbuild.binary.code import CodeImage, CodeSection, Ranges, Symbol
from vbuild.binary.outline import BinaryOutline, Import
from vbuild.elf.iced import Decoder, is_installed
from vbuild.elf.image import ElfImage, Section, StringTable
from vbuild.elf.read import Dynamic, imports_of, outline_facts
from vbuild.elf.records import (
    HIDDEN,
    LITTLE_64,
    RELATIVE,
    SHN_LORESERVE,
    STB_LOCAL,
    STB_WEAK,
    STV_MASK,
    DynamicTag,
    ElfMachine,
    FileType,
    Relocation,
    SectionFlag,
    SectionType,
    SegmentFlag,
    SegmentType,
    SymbolEntry,
    tuples,
)
from vbuild.errors import BinaryError
from vbuild.files.records import Buffer

S = TypeVar("S", bound=Sized)

# relocations by machine, besides RELATIVE: a symbol's address and the addend; what the resolver at the addend returns
_ABSOLUTE: dict[int, int] = {ElfMachine.X86_64: 1, ElfMachine.AARCH64: 257}
_RESOLVED: dict[int, int] = {ElfMachine.X86_64: 37, ElfMachine.AARCH64: 1032}
_CALLED = (DynamicTag.INIT, DynamicTag.FINI)
# call and jmp, or a jump on a condition, with the distance of what they lead to
_BRANCH, _DISTANCE = re.compile(rb"(?:[\xe8\xe9]|\x0f[\x80-\x8f])(?=....)", re.DOTALL), struct.Struct("<i")
_STARTS = frozenset({".init_array", ".fini_array", ".preinit_array"})
_CONSTANTS = (".rodata", ".data", ".lrodata", ".ldata")
_MOST_CONSTANTS, _LONGEST = 1 << 25, 15
_MOST_KEPT = 1 << 18  # symbols, of some 300 bytes each
_FRAME_HEADER = struct.Struct("<BBBBiI")
_FRAME_ENTRY = struct.Struct("<ii")
_FRAME_ENCODINGS = (0x03, 0x3B)  # count as udata4; entries as sdata4, relative to the table
_FDE = struct.Struct("<IIiI")


class Elf(BinaryOutline, frozen=True, kw_only=True):
    """An ELF file with its code, whose fields are those of `CodeImage`.

    Symbols and imports are read of 64-bit little-endian libraries and programs, pointers of x86-64 and aarch64.
    """

    sections: tuple[Section, ...]
    code: tuple[CodeSection, ...]
    functions: tuple[Symbol, ...]
    objects: tuple[Symbol, ...]
    imports: tuple[Import, ...]
    pointers: tuple[tuple[int, int], ...]
    import_places: tuple[tuple[int, str], ...]
    resolvers: frozenset[int]
    writable: tuple[range, ...]
    relro: tuple[range, ...]
    constants: tuple[CodeSection, ...]
    entry: int
    called: tuple[int, ...]
    exported: frozenset[str]
    system: ClassVar[str] = "linux"
    given: ClassVar[frozenset[str]] = frozenset()
    image_base: ClassVar[int] = 0
    dispatchers: ClassVar[frozenset[int]] = frozenset()
    # what handles errors is part of the functions that throw
    handlers: ClassVar[Mapping[int, tuple[int, ...]]] = {}
    has_strange_handlers: ClassVar[bool] = False

    @classmethod
    def parse(cls, data: Buffer) -> Self:
        with memoryview(data) as view:
            image = ElfImage.read(view)
            dynamic = Dynamic.read(image)
            facts = outline_facts(image, dynamic)
            code = _code(image)
            symbols = symbols_of(image, code)
            in_data = _code_in_data(image, code, symbols.functions)
            pointers, import_places, resolvers = _pointers(image, symbols)
            return cls(
                **facts,
                code=tuple(sorted((*code, *in_data), key=lambda piece: piece.address)),
                functions=symbols.functions,
                objects=symbols.objects,
                imports=imports_of(dynamic, symbols.undefined),
                pointers=pointers,
                import_places=import_places,
                resolvers=resolvers,
                writable=tuple(load.addresses for load in image.loads if load.p_flags & SegmentFlag.W),
                relro=tuple(part.addresses for part in image.segments if part.p_type == SegmentType.GNU_RELRO),
                constants=_constants(image),
                entry=image.header.e_entry,
                called=tuple(address for tag in _CALLED if (address := dynamic.value(tag))),
                exported=symbols.exported,
            )

    @property
    def code_size(self) -> int:
        return sum(len(code.data) for code in self.code)

    @property
    def areas(self) -> tuple[range, ...]:
        return tuple(section.addresses for section in self.sections)

    @property
    def stubs(self) -> tuple[CodeSection, ...]:
        return tuple(code for code in self.code if code.name.startswith(".plt"))

    @property
    def slots(self) -> tuple[range, ...]:
        return tuple(section.addresses for section in self.sections if section.name == ".got")

    @property
    def starts(self) -> tuple[range, ...]:
        return tuple(section.addresses for section in self.sections if section.name in _STARTS)

    @property
    def has_handlers(self) -> bool:
        return any(section.name.startswith(".gcc_except_table") for section in self.sections)

    @property
    def is_fixed(self) -> bool:
        return self.type == "ET_EXEC"


CodeFile = Elf | CodeImage


def _code(image: ElfImage) -> tuple[CodeSection, ...]:
    if image.sections:
        pieces = [
            CodeSection(section.name, section.header.sh_addr, _slice(image, section.span))
            for section in image.sections
            if section.header.sh_flags & SectionFlag.EXECINSTR
        ]
    else:
        pieces = [
            CodeSection(f"segment {index}", segment.p_vaddr, _slice(image, segment.span))
            for index, segment in enumerate(image.segments)
            if segment.p_type == SegmentType.LOAD and segment.p_flags & SegmentFlag.X
        ]
    return tuple(sorted((piece for piece in pieces if piece.data), key=lambda piece: piece.address))


def _code_in_data(image: ElfImage, code: Sequence[CodeSection], functions: Sequence[Symbol]) -> Iterator[CodeSection]:
    """Data of an executable segment into which code branches, from the first such address on.

    Linkers that have one segment for all that is not written put constants there, too.
    """
    executable = [load.addresses for load in image.loads if load.p_flags & SegmentFlag.X]
    sections = [
        section
        for section in image.sections
        if section.is_data and any(section.addresses.start in load for load in executable)
    ]
    if not (sections and is_installed and image.machine == ElfMachine.X86_64):
        return
    low = min(section.addresses.start for section in sections)
    high = max(section.addresses.stop for section in sections)
    # bytes of another instruction may look like one
    seeming: dict[int, set[int]] = {}
    targets: set[int] = set()
    for piece in code:
        for match in _BRANCH.finditer(piece.data):
            site, end = piece.address + match.start(), piece.address + match.end() + _DISTANCE.size
            if low <= end + _DISTANCE.unpack_from(piece.data, match.end())[0] < high:
                index = bisect_right(functions, site, key=attrgetter("address")) - 1
                start = max(functions[index].address if index >= 0 else 0, piece.address)
                seeming.setdefault(start, set()).add(site)
        for start, sites in seeming.items():
            data = piece.data[start - piece.address : max(sites) - piece.address + _LONGEST]
            decoder = Decoder(64, data, ip=start)
            targets.update(instruction.near_branch_target for instruction in decoder if instruction.ip in sites)
        seeming.clear()
    for section in sections:
        if within := [target for target in targets if target in section.addresses]:
            offset = min(within) - section.addresses.start
            yield CodeSection(section.name, min(within), _slice(image, section.span)[offset:])


def _constants(image: ElfImage) -> tuple[CodeSection, ...]:
    if image.encoding != LITTLE_64 or image.machine not in RELATIVE:
        return ()
    pieces = [
        CodeSection(section.name, section.header.sh_addr, _slice(image, section.span))
        for section in image.sections
        if section.is_loaded and section.name.startswith(_CONSTANTS) and section.size <= _MOST_CONSTANTS
    ]
    return tuple(sorted((piece for piece in pieces if piece.data), key=lambda piece: piece.address))


def _slice(image: ElfImage, span: range) -> bytes:
    if span and span.stop > image.size:
        size = span.stop - span.start
        raise BinaryError(f"code at {span.start:#x}, {size:#x} bytes long, runs past the end, {image.size:#x}")
    return bytes(image.view(span))


def _pointers(
    image: ElfImage, symbols: "SymbolTables"
) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, str], ...], frozenset[int]]:
    if image.encoding != LITTLE_64 or image.machine not in RELATIVE:
        return (), (), frozenset()
    pointers: list[tuple[int, int]] = []
    imports: list[tuple[int, str]] = []
    resolvers = {symbol.address for symbol in symbols.functions if symbol.is_resolver}
    absolute, resolved = _ABSOLUTE[image.machine], _RESOLVED[image.machine]
    based = {RELATIVE[ElfMachine(image.machine)], resolved}
    addresses, names = dict(symbols.defined), {number: name for number, name, _ in symbols.undefined}
    for section in image.sections:
        if section.header.sh_type == SectionType.RELA and section.is_loaded:
            for address, info, addend in tuples(Relocation, image.view(section.span), image.encoding):
                kind, number = info & 0xFFFFFFFF, info >> 32
                if kind in based:
                    pointers.append((address, addend))
                    if kind == resolved:
                        resolvers.add(addend)
                elif number in addresses:
                    pointers.append((address, addresses[number] + (addend if kind == absolute else 0)))
                elif number in names:
                    imports.append((address, names[number]))
        elif section.header.sh_type == SectionType.RELR:
            places = image.relr_places(section.span)
            pointers += ((address, target) for address in places if (target := image.word(address)))
    return tuple(pointers), tuple(imports), frozenset(resolvers)


class SymbolType(IntEnum):
    NOTYPE = 0
    OBJECT = 1
    FUNC = 2
    GNU_IFUNC = 10


_TYPES = frozenset(SymbolType)
_ENTRY = 24  # bytes of Elf64_Sym
_KIND: dict[int, int] = {SymbolType.FUNC: 0, SymbolType.GNU_IFUNC: 0, SymbolType.OBJECT: 1}
_KINDS = bytes(_KIND.get(info & 0xF, 2) for info in range(256))
# is it dynamic, rows, names
_Table = tuple[bool, bytes, bytes]


def symbols_of(image: ElfImage, code: tuple[CodeSection, ...]) -> "SymbolTables":
    """The symbols of *image*, with functions in its *code*; `BinaryError` if a table is damaged."""
    if image.encoding != LITTLE_64 or image.header.e_type not in {FileType.DYN, FileType.EXEC}:
        return SymbolTables((), (), ())
    tables = []
    for section in image.sections:
        if section.header.sh_type in {SectionType.SYMTAB, SectionType.DYNSYM}:
            if (names := section.header.sh_link) >= len(image.sections):
                raise BinaryError(
                    f"names of {section.name} in section {names}, expected one below its number of sections"
                )
            is_dynamic = section.header.sh_type == SectionType.DYNSYM
            rows, strings = (bytes(image.view(part.span)) for part in (section, image.sections[names]))
            tables.append((is_dynamic, rows, strings))
    return SymbolTables.parse(tables, frames=_frames(image), code=[range(piece.address, piece.end) for piece in code])


def _frames(image: ElfImage) -> tuple[int, bytes, bytes] | None:
    """Address and bytes of the unwind table, and the rest of its segment."""
    for segment in image.segments:
        if segment.p_type == SegmentType.GNU_EH_FRAME:
            start, stop = segment.span.start, segment.span.stop
            end = next((load.span.stop for load in image.loads if start in load.span), start)
            return segment.p_vaddr, bytes(image.view(segment.span)), bytes(image.data[stop:end])
    return None


class _Row(Struct, frozen=True):
    type: int
    address: int
    size: int
    name: str
    is_exported: bool
    is_weak: bool


class SymbolTables(Struct, frozen=True):
    """Functions and objects by address; what ``.dynsym`` does not define, by number; and what it defines."""

    functions: tuple[Symbol, ...]
    objects: tuple[Symbol, ...]
    undefined: tuple[tuple[int, str, bool], ...]
    defined: tuple[tuple[int, int], ...] = ()
    exported: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, tables: Sequence[_Table], *, frames: tuple[int, bytes, bytes] | None, code: Sequence[range]) -> Self:
        dynamic = [(data, names) for is_dynamic, data, names in tables if is_dynamic]
        facts = _KEPT.get(_key("names", *dynamic), lambda: _DynamicSymbols.parse(dynamic))
        functions, objects, others = (
            [(is_dynamic, _of_kind(data, kind), names) for is_dynamic, data, names in tables] for kind in range(3)
        )
        inside = Ranges(code)
        # labels stand in front of GPU code, too, which is elsewhere in each wheel of a family
        labels = _merged(
            row
            for row in _rows(others)
            if row.type == SymbolType.NOTYPE and row.name and row.name[0] != "$" and row.address in inside
        )

        def all_functions() -> tuple[Symbol, ...]:
            named = _filled(_merged(row for row in _rows(functions) if row.address in inside), labels)
            return _filled(named, [entry for entry in _framed(*frames) if entry.address in inside]) if frames else named

        return cls(
            _KEPT.get(_key((code, labels), *functions, frames or ()), all_functions),
            _KEPT.get(_key("objects", *objects), lambda: _merged(_rows(objects))),
            facts.undefined,
            facts.defined,
            facts.exported,
        )


class _DynamicSymbols(Struct, frozen=True):
    undefined: tuple[tuple[int, str, bool], ...]
    defined: tuple[tuple[int, int], ...]
    exported: frozenset[str]

    def __len__(self) -> int:
        return len(self.undefined) + len(self.defined)

    @classmethod
    def parse(cls, tables: Iterable[tuple[bytes, bytes]]) -> Self:
        undefined: list[tuple[int, str, bool]] = []
        defined: list[tuple[int, int]] = []
        exported: set[str] = set()
        for data, table in tables:
            names = StringTable(table)
            for number, (name, info, other, section, address, _) in enumerate(tuples(SymbolEntry, data, LITTLE_64)):
                kind, binding = info & 0xF, info >> 4
                if _is_exported(section, binding, other) and name:
                    exported.add(names.at(name))
                if not section:
                    if name:
                        undefined.append((number, names.at(name), binding == STB_WEAK))
                elif section < SHN_LORESERVE and kind in _TYPES:
                    defined.append((number, address))
        return cls(tuple(undefined), tuple(defined), frozenset(exported))


def _is_exported(section: int, binding: int, other: int) -> bool:
    return section != 0 and binding != STB_LOCAL and other & STV_MASK not in HIDDEN


def _of_kind(data: bytes, kind: int) -> bytes:
    kinds = data[4::_ENTRY].translate(_KINDS)  # the type is in the fifth byte of each
    parts = []
    stop = 0
    while (first := kinds.find(kind, stop)) >= 0:
        others = (end for other in range(3) if other != kind and (end := kinds.find(other, first)) >= 0)
        stop = min(others, default=len(kinds))
        parts.append(data[first * _ENTRY : stop * _ENTRY])
    return b"".join(parts)


def _rows(tables: Iterable[_Table]) -> Iterator[_Row]:
    for is_dynamic, data, table in tables:
        names = StringTable(table)
        for name, info, other, section, address, size in tuples(SymbolEntry, data, LITTLE_64):
            kind, binding = info & 0xF, info >> 4
            if 0 < section < SHN_LORESERVE and kind in _TYPES:
                is_exported = is_dynamic and _is_exported(section, binding, other)
                yield _Row(kind, address, size, names.at(name), is_exported, binding == STB_WEAK)


def _merged(rows: Iterable[_Row]) -> tuple[Symbol, ...]:
    by_address: dict[int, list[_Row]] = {}
    for row in rows:
        by_address.setdefault(row.address, []).append(row)
    return tuple(_symbol(address, by_address[address]) for address in sorted(by_address))


def _symbol(address: int, rows: Sequence[_Row]) -> Symbol:
    if len(rows) == 1:  # nearly always, of hundreds of thousands
        row = rows[0]
        is_weak = row.is_weak or not row.is_exported
        names = (row.name,) if row.name else ()
        return Symbol(address, row.size, names, row.is_exported, row.type == SymbolType.GNU_IFUNC, is_weak)
    return Symbol(
        address,
        max(row.size for row in rows),
        tuple(dict.fromkeys(row.name for row in rows if row.name)),
        is_exported=any(row.is_exported for row in rows),
        is_resolver=any(row.type == SymbolType.GNU_IFUNC for row in rows),
        is_weak=all(row.is_weak for row in rows if row.is_exported),
    )


def _filled(symbols: tuple[Symbol, ...], more: Sequence[Symbol]) -> tuple[Symbol, ...]:
    starts = [symbol.address for symbol in symbols]
    added = []
    for symbol in more:
        index = bisect_right(starts, symbol.address) - 1
        if index < 0 or (symbol.address != starts[index] and symbol.address >= symbols[index].end):
            added.append(symbol)
    return tuple(sorted((*symbols, *added), key=lambda symbol: symbol.address))


def _framed(address: int, header: bytes, rest: bytes) -> Iterator[Symbol]:
    """The nameless functions of ``.eh_frame_hdr``, if it has the usual encoding."""
    if len(header) < _FRAME_HEADER.size:
        return
    _version, _, *encodings, _, count = _FRAME_HEADER.unpack_from(header)
    if tuple(encodings) != _FRAME_ENCODINGS:
        return
    entries = header[_FRAME_HEADER.size : _FRAME_HEADER.size + count * _FRAME_ENTRY.size]
    for start, entry in _FRAME_ENTRY.iter_unpack(entries[: len(entries) - len(entries) % _FRAME_ENTRY.size]):
        offset = entry - len(header)
        size = 0
        if 0 <= offset <= len(rest) - _FDE.size:
            _, _, begin, length = _FDE.unpack_from(rest, offset)
            # only an entry of the usual pc-relative form points back at the function
            if address + entry + 8 + begin == address + start:
                size = length
        yield Symbol(address + start, size)


def _key(start: object, *parts: Iterable[object]) -> bytes:
    hashing = hashlib.sha256(repr(start).encode())
    for part in parts:
        for value in part:
            data = value if isinstance(value, bytes) else repr(value).encode()
            hashing.update(len(data).to_bytes(8, "little"))
            hashing.update(data)
    return hashing.digest()


class KeptSymbols:
    """The symbols read last, by their source's hash; for several threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[bytes, Sized] = {}
        self._lock = Lock()

    def get(self, key: bytes, make: Callable[[], S]) -> S:
        with self._lock:
            if (known := self._values.get(key)) is not None:
                return cast(S, known)
        value = make()
        with self._lock:
            self._values[key] = value
            left = sum(map(len, self._values.values()))
            while left > self._most:
                left -= len(self._values.pop(next(iter(self._values))))
        return value


_KEPT = KeptSymbols(_MOST_KEPT)
