"""What an ELF file holds: its code, its functions and objects, and what it takes from other libraries.

    SHF_EXECINSTR sections           code; without section headers the executable PT_LOAD segments
    .symtab, .dynsym, .eh_frame_hdr  functions: the first two name them, the third knows them in stripped files too
    .gnu.version, DT_VERNEED         the versions of the symbols it takes from other libraries
    .rela.dyn, .relr.dyn             pointers to functions and objects in data

https://gabi.xinuos.com/ and the psABI supplement, https://gitlab.com/x86-psABIs/x86-64-ABI
"""

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Self

from msgspec import Struct

from vbuild.binary.code import CodeSection, Symbol
from vbuild.binary.image import Ranges
from vbuild.elf.dynamic import Dynamic
from vbuild.elf.image import ElfImage
from vbuild.elf.layout import Section, StringTable
from vbuild.elf.read import Outline, outline_facts
from vbuild.elf.records import (
    HIDDEN,
    LITTLE_64,
    SHN_LORESERVE,
    STB_LOCAL,
    STB_WEAK,
    STV_MASK,
    VERSION_NUMBER,
    ElfMachine,
    FileType,
    Relocation,
    SectionFlag,
    SectionType,
    SegmentFlag,
    SegmentType,
    SymbolEntry,
)
from vbuild.errors import BinaryError
from vbuild.files.records import Buffer

# by machine: a symbol's address and the addend; the file's base and the addend; what the resolver at these returns
_ABSOLUTE: dict[int, int] = {ElfMachine.X86_64: 1, ElfMachine.AARCH64: 257}
_RELATIVE: dict[int, int] = {ElfMachine.X86_64: 8, ElfMachine.AARCH64: 1027}
_RESOLVED: dict[int, int] = {ElfMachine.X86_64: 37, ElfMachine.AARCH64: 1032}

_STARTS = frozenset({".init_array", ".fini_array", ".preinit_array"})
_CONSTANTS = (".rodata", ".data", ".lrodata", ".ldata")
_MOST_CONSTANTS = 1 << 25

_FRAME_HEADER = struct.Struct("<BBBBiI")
_FRAME_ENTRY = struct.Struct("<ii")
_FRAME_ENCODINGS = (0x03, 0x3B)  # count as udata4; entries as sdata4, relative to the table
_FDE = struct.Struct("<IIiI")


class SymbolType(IntEnum):
    """What a symbol stands for, as far as it is read."""

    NOTYPE = 0
    OBJECT = 1
    FUNC = 2
    GNU_IFUNC = 10


_TYPES = frozenset(SymbolType)


class Import(Struct, frozen=True):
    """A symbol taken from another library, with the version and the library if the file says them.

    A weak one may be missing.
    """

    name: str
    version: str | None = None
    library: str | None = None
    is_weak: bool = False


class Elf(Outline, frozen=True):
    """An ELF file: who it is, what it wants from the loader, and the code in it.

    Symbols, imports and pointers are read of 64-bit little-endian libraries and programs only, the pointers of x86-64
    and aarch64 only. *pointers* are the places in data that the loader fills with an address of this file, and that
    address, *resolvers* the functions that it calls to fill some; *import_places* those that it fills with the address
    of an import. *writable* are the addresses of data that code can change, *relro* those that only the loader changes.
    *constants* are the bytes of small enough sections of data. *exported* are the names under which other files can use
    its functions and data.
    """

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
    exported: frozenset[str]

    @classmethod
    def parse(cls, data: Buffer) -> Self:
        """The ELF file *data*; `BinaryError` if it is none or is damaged."""
        with memoryview(data) as view:
            image = ElfImage.read(view)
            dynamic = Dynamic.read(image)
            facts = outline_facts(image, dynamic)
            code = _code(image)
            symbols = _symbols(image, code)
            pointers, import_places, resolvers = _pointers(image, symbols)
            return cls(
                **facts,
                code=code,
                functions=symbols.functions,
                objects=symbols.objects,
                imports=_imports(dynamic, symbols),
                pointers=pointers,
                import_places=import_places,
                resolvers=resolvers,
                writable=tuple(load.addresses for load in image.loads if load.p_flags & SegmentFlag.W),
                relro=tuple(part.addresses for part in image.segments if part.p_type == SegmentType.GNU_RELRO),
                constants=_constants(image),
                entry=image.header.e_entry,
                exported=symbols.exported,
            )

    @property
    def code_size(self) -> int:
        """Bytes of code."""
        return sum(len(code.data) for code in self.code)

    @property
    def areas(self) -> tuple[range, ...]:
        """The addresses of its sections."""
        return tuple(section.addresses for section in self.sections)

    @property
    def stubs(self) -> tuple[CodeSection, ...]:
        """The code that does nothing but jump to what the loader fills in."""
        return tuple(code for code in self.code if code.name.startswith(".plt"))

    @property
    def slots(self) -> tuple[range, ...]:
        """The addresses that the loader fills for code alone."""
        return tuple(section.addresses for section in self.sections if section.name == ".got")

    @property
    def starts(self) -> tuple[range, ...]:
        """The addresses of tables of functions that the loader calls when it loads or unloads the file."""
        return tuple(section.addresses for section in self.sections if section.name in _STARTS)

    @property
    def has_handlers(self) -> bool:
        """Whether functions go on in code that handles errors when what they call throws one."""
        return any(section.name.startswith(".gcc_except_table") for section in self.sections)

    @property
    def is_fixed(self) -> bool:
        """Whether a number in its code may be an address: it is a program that is loaded where it says."""
        return self.type == "ET_EXEC"

    @property
    def handlers(self) -> Mapping[int, tuple[int, ...]]:
        """The functions that the system calls when those at an address throw; here they are part of these."""
        return {}

    @property
    def has_strange_handlers(self) -> bool:
        """Whether some of these may not be known."""
        return False

    @property
    def dispatchers(self) -> frozenset[int]:
        """The places through which code calls what RAX points at."""
        return frozenset()

    @property
    def image_base(self) -> int:
        """The address from which code counts tables: none, it makes their own."""
        return 0

    @property
    def given(self) -> frozenset[str]:
        """The features above the baseline that Linux asks for: none."""
        return frozenset()

    @property
    def system(self) -> str:
        """What its calls keep to."""
        return "linux"


def _code(image: ElfImage) -> tuple[CodeSection, ...]:
    if image.sections:
        found = [
            CodeSection(section.name, section.header.sh_addr, _slice(image, section.span))
            for section in image.sections
            if section.header.sh_flags & SectionFlag.EXECINSTR
        ]
    else:
        found = [
            CodeSection(f"segment {index}", segment.p_vaddr, _slice(image, segment.span))
            for index, segment in enumerate(image.segments)
            if segment.p_type == SegmentType.LOAD and segment.p_flags & SegmentFlag.X
        ]
    return tuple(sorted((code for code in found if code.data), key=lambda code: code.address))


def _constants(image: ElfImage) -> tuple[CodeSection, ...]:
    """The bytes of the sections in which code keeps its constants and tables."""
    if image.encoding != LITTLE_64 or image.machine not in _RELATIVE:
        return ()
    found = [
        CodeSection(section.name, section.header.sh_addr, _slice(image, section.span))
        for section in image.sections
        if section.is_loaded and section.name.startswith(_CONSTANTS) and section.size <= _MOST_CONSTANTS
    ]
    return tuple(sorted((piece for piece in found if piece.data), key=lambda piece: piece.address))


def _slice(image: ElfImage, span: range) -> bytes:
    if span and span.stop > image.size:
        size = span.stop - span.start
        raise BinaryError(f"code at {span.start:#x}, {size:#x} bytes long, runs past the end, {image.size:#x}")
    return bytes(image.view(span))


def _symbols(image: ElfImage, code: tuple[CodeSection, ...]) -> "_Symbols":
    if image.encoding != LITTLE_64 or image.header.e_type not in {FileType.DYN, FileType.EXEC}:
        return _Symbols((), (), ())
    tables = []
    for section in image.sections:
        if section.header.sh_type in {SectionType.SYMTAB, SectionType.DYNSYM}:
            if (names := section.header.sh_link) >= len(image.sections):
                raise BinaryError(
                    f"names of {section.name} in section {names}, expected one below its number of sections"
                )
            is_dynamic = section.header.sh_type == SectionType.DYNSYM
            tables.append((is_dynamic, _data(image, section), _data(image, image.sections[names])))
    return _Symbols.parse(tables, frames=_frames(image), code=[range(piece.address, piece.end) for piece in code])


def _data(image: ElfImage, section: Section) -> bytes:
    return bytes(image.view(section.span))


def _frames(image: ElfImage) -> tuple[int, bytes, bytes] | None:
    """Address and bytes of the table of unwind entries, and what follows it in its segment."""
    for segment in image.segments:
        if segment.p_type == SegmentType.GNU_EH_FRAME:
            start, stop = segment.span.start, segment.span.stop
            end = next((load.span.stop for load in image.loads if start in load.span), start)
            return segment.p_vaddr, bytes(image.view(segment.span)), bytes(image.data[stop:end])
    return None


def _imports(dynamic: Dynamic, symbols: "_Symbols") -> tuple[Import, ...]:
    if not symbols.undefined:
        return ()
    versions = {
        number & VERSION_NUMBER: (each.library, name)
        for each in dynamic.required("backslashreplace")
        for _, _, number, name in each.versions
    }
    indices: bytes = b""
    for section in dynamic.image.sections:
        if section.header.sh_type == SectionType.GNU_VERSYM:
            indices = _data(dynamic.image, section)
    found = []
    for number, name, is_weak in symbols.undefined:
        index = int.from_bytes(indices[2 * number : 2 * number + 2], "little") & VERSION_NUMBER
        library, version = versions.get(index, (None, None))
        found.append(Import(name, version, library, is_weak))
    return tuple(found)


def _pointers(
    image: ElfImage, symbols: "_Symbols"
) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, str], ...], frozenset[int]]:
    """The places in data that the loader fills: with an address of this file, and of an import; and the resolvers."""
    found: list[tuple[int, int]] = []
    imported: list[tuple[int, str]] = []
    resolvers = {symbol.address for symbol in symbols.functions if symbol.is_resolver}
    if image.encoding != LITTLE_64 or image.machine not in _RELATIVE:
        return (), (), frozenset()
    absolute, resolved = _ABSOLUTE[image.machine], _RESOLVED[image.machine]
    based = {_RELATIVE[image.machine], resolved}
    addresses, names = dict(symbols.defined), {number: name for number, name, _ in symbols.undefined}
    for section in image.sections:
        if section.header.sh_type == SectionType.RELA and section.is_loaded:
            for place, info, addend in Relocation.tuples(image.view(section.span), image.encoding):
                kind, number = info & 0xFFFFFFFF, info >> 32
                if kind in based:
                    found.append((place, addend))
                    if kind == resolved:
                        resolvers.add(addend)
                elif number in addresses:
                    found.append((place, addresses[number] + (addend if kind == absolute else 0)))
                elif number in names:
                    imported.append((place, names[number]))
        elif section.header.sh_type == SectionType.RELR:
            places = image.relr_places(section.span)
            found += ((place, target) for place in places if (target := image.word(place)))
    return tuple(found), tuple(imported), frozenset(resolvers)


class _Row(Struct, frozen=True):
    """One row of a symbol table that says something about code or data."""

    type: int
    address: int
    size: int
    name: str
    is_exported: bool
    is_weak: bool


class _Symbols(Struct, frozen=True):
    """What the tables say: each address once, in order; what ``.dynsym`` defines and does not, by its number there.

    Of what it does not it says whether it is weak, too.
    """

    functions: tuple[Symbol, ...]
    objects: tuple[Symbol, ...]
    undefined: tuple[tuple[int, str, bool], ...]
    defined: tuple[tuple[int, int], ...] = ()
    exported: frozenset[str] = frozenset()

    @classmethod
    def parse(
        cls,
        tables: Iterable[tuple[bool, bytes, bytes]],
        *,
        frames: tuple[int, bytes, bytes] | None,
        code: Sequence[range],
    ) -> Self:
        """The symbols in *tables* (is it dynamic, rows, names) and *frames*; functions in the *code* ranges only."""
        rows: list[_Row] = []
        undefined: list[tuple[int, str, bool]] = []
        defined: list[tuple[int, int]] = []
        exported: set[str] = set()
        for is_dynamic, data, table in tables:
            names = StringTable(table)
            for number, (name, info, other, section, address, size) in enumerate(SymbolEntry.tuples(data, LITTLE_64)):
                kind, binding = info & 0xF, info >> 4
                is_exported = is_dynamic and section != 0 and binding != STB_LOCAL and other & STV_MASK not in HIDDEN
                if is_exported and name:
                    exported.add(names.at(name))
                if not section:
                    if is_dynamic and name:
                        undefined.append((number, names.at(name), binding == STB_WEAK))
                elif section < SHN_LORESERVE and kind in _TYPES:
                    rows.append(_Row(kind, address, size, names.at(name), is_exported, binding == STB_WEAK))
                    if is_dynamic:
                        defined.append((number, address))
        inside = Ranges(code)
        objects = _merged(row for row in rows if row.type == SymbolType.OBJECT)
        functions = _merged(
            row for row in rows if row.type in {SymbolType.FUNC, SymbolType.GNU_IFUNC} and row.address in inside
        )
        labels = _merged(
            row
            for row in rows
            if row.type == SymbolType.NOTYPE and row.name and row.name[0] != "$" and row.address in inside
        )
        functions = _filled(functions, labels)
        if frames:
            functions = _filled(functions, tuple(entry for entry in _framed(*frames) if entry.address in inside))
        return cls(functions, objects, tuple(undefined), tuple(defined), frozenset(exported))


def _merged(rows: Iterable[_Row]) -> tuple[Symbol, ...]:
    """One symbol per address, in order of address, with all its names."""
    by_address: dict[int, list[_Row]] = {}
    for row in rows:
        by_address.setdefault(row.address, []).append(row)
    return tuple(_symbol(address, by_address[address]) for address in sorted(by_address))


def _symbol(address: int, same: Sequence[_Row]) -> Symbol:
    """The symbol at *address*, of which the rows *same* tell."""
    if len(same) == 1:  # nearly always, of hundreds of thousands
        row = same[0]
        is_weak = row.is_weak or not row.is_exported
        names = (row.name,) if row.name else ()
        return Symbol(address, row.size, names, row.is_exported, row.type == SymbolType.GNU_IFUNC, is_weak)
    return Symbol(
        address,
        max(row.size for row in same),
        tuple(dict.fromkeys(row.name for row in same if row.name)),
        is_exported=any(row.is_exported for row in same),
        is_resolver=any(row.type == SymbolType.GNU_IFUNC for row in same),
        is_weak=all(row.is_weak for row in same if row.is_exported),
    )


def _filled(symbols: tuple[Symbol, ...], more: tuple[Symbol, ...]) -> tuple[Symbol, ...]:
    """*symbols*, and those of *more* that lie in none of them."""
    starts = [symbol.address for symbol in symbols]
    added = []
    for symbol in more:
        index = bisect_right(starts, symbol.address) - 1
        if index < 0 or (symbol.address != starts[index] and symbol.address >= symbols[index].end):
            added.append(symbol)
    return tuple(sorted((*symbols, *added), key=lambda symbol: symbol.address))


def _framed(address: int, header: bytes, rest: bytes) -> Iterator[Symbol]:
    """The nameless functions of ``.eh_frame_hdr`` at *address* with *rest* behind it; none in an unusual encoding.

    https://refspecs.linuxfoundation.org/LSB_5.0.0/LSB-Core-generic/LSB-Core-generic/ehframechpt.html
    """
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
            # only where the entry has the usual pc-relative form does it point back at the function
            if address + entry + 8 + begin == address + start:
                size = length
        yield Symbol(address + start, size)
