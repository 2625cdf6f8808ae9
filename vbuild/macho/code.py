"""The code of a Mach-O file for x86-64 or arm64, as the rules of evidence take it (`vbuild.binary.code`).

    LC_SEGMENT_64            segments and their sections
    LC_FUNCTION_STARTS       where functions start, each one's distance from the one before
    LC_SYMTAB                their names, without the underscore that C compilers put in front
    LC_DATA_IN_CODE          tables of jumps between instructions
    LC_DYLD_CHAINED_FIXUPS   places that the loader fills, in chains through each page
    LC_DYLD_INFO             the same by small programs, in files for macOS 11 and older

A universal2 file has one of these for each machine.
https://github.com/apple-oss-distributions/xnu/blob/main/EXTERNAL_HEADERS/mach-o/loader.h and fixup-chains.h
"""

import re
import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from vbuild.binary.code import CodeImage, CodeSection, Symbol
from vbuild.errors import BinaryError
from vbuild.files.records import Buffer
from vbuild.macho.read import halves

_WORD, _HALF = struct.Struct("<Q"), struct.Struct("<I")
_HEADER, _COMMAND, _SEGMENT, _SECTION = map(struct.Struct, ("<8I", "<II", "<8x16s4QiiII", "<16s16sQQ8I"))
_SYMBOL, _DATA = map(struct.Struct, ("<IBBHQ", "<IHH"))
_MAGIC = 0xFEEDFACF
_MACHINES = {(0x01000007, 3): "x86_64", (0x0100000C, 0): "aarch64"}  # cputype, cpusubtype
_SUBTYPE = 0xFFFFFF
# load commands
_SYMTAB, _ID, _SEGMENT_64, _OLDEST, _STARTS, _DATA_IN_CODE = 0x2, 0xD, 0x19, 0x24, 0x26, 0x29
_ENCRYPTED, _BUILD, _MAIN, _CHAINED, _INFO = 0x2C, 0x32, 0x80000028, 0x80000034, frozenset({0x22, 0x80000022})
_LIBRARIES = frozenset({0xC, 0x20, 0x80000018, 0x8000001F})
_LEAST = {_SYMTAB: 24, _STARTS: 16, _DATA_IN_CODE: 16, _CHAINED: 16} | dict.fromkeys(_INFO, 48)  # bytes
_LOADABLE = frozenset({2, 6, 8})  # programs, libraries, bundles
# kinds of sections: empty in the file, stubs, pointers for code alone, functions that the loader calls
_EMPTY, _STUBS, _SLOTS, _INITS, _OFFSETS = frozenset({1, 12, 18}), 8, frozenset({6, 7}), frozenset({9, 10}), 0x16
_HAS_CODE, _WRITE, _READ_ONLY = 0x80000400, 2, 0x10
_NO_CONSTANTS, _MOST_CONSTANTS = frozenset({"__eh_frame", "__unwind_info", "__gcc_except_tab"}), 1 << 25
_IS_STAB, _IS_PRIVATE, _KIND, _IN_SECTION, _IS_EXTERNAL, _IS_WEAK = 0xE0, 0x10, 0x0E, 0x0E, 0x01, 0x80
# formats of chains with plain pointers; sizes of imports by format
_BY_ADDRESS, _BY_OFFSET = 2, 6
_IMPORT_SIZES = {1: 4, 2: 8, 3: 16}
_NO_CHAIN = 0xFFFF
_SEVEN_BITS, _MORE, _MOST_BITS = 0x7F, 0x80, 70
_MOST_COMMANDS, _LONGEST, _MOST_ROWS = 1 << 12, 4096, 1 << 21
_HIGHEST = 1 << 39  # the index of references has 40 bits for an address
# letters that end with a zero, and what fills the space behind them: code ends with a branch, which has no letters
_TEXT, _LONGEST_TEXT = re.compile(rb"[\x20-\x7e]{16,}\0+(?:\x1f\x20\x03\xd5|[\x90\xcc])*\Z"), 256
# since 10.12 macOS runs on Penryn and newer (clang, lib/Driver/ToolChains/Arch/X86.cpp); before, on Merom
_PENRYN, _NEEDS_PENRYN = frozenset({"SSE3", "SSSE3", "CMPXCHG16B", "LAHF-SAHF", "SSE4.1"}), (10 << 16) | (12 << 8)
# the M1: LLVM, lib/Target/AArch64/AArch64Processors.td, AppleA14; clang builds for it by default
_M1 = frozenset(
    """CRC32 LOR LSE RDM FCMA JSCVT LRCPC PAUTH DIT DOTPROD FLAGM LRCPC2 FLAGM2 FRINTTS SB AES PMULL SHA1 SHA256 SHA512
    SHA3 FP16 FHM""".split()  # noqa: SIM905
)
# place, target or addend, name of an import
Fixup = tuple[int, int, str | None]


class Section(NamedTuple):
    name: str
    segment: str
    address: int
    size: int
    offset: int
    flags: int

    @property
    def kind(self) -> int:
        return self.flags & 0xFF

    @property
    def addresses(self) -> range:
        return range(self.address, self.address + self.size)


class Segment(NamedTuple):
    name: str
    addresses: range
    span: range
    protection: int
    flags: int


class MachoFile:
    """One file; `BinaryError` if it is damaged, or for other machines.

    *tables* are the words of load commands by number.
    """

    def __init__(self, view: memoryview) -> None:
        self._data, self.size = view, len(view)
        magic, cpu, subtype, kind, count, size, _, _ = self.row(_HEADER, 0)
        if magic != _MAGIC:
            raise BinaryError(f"Mach-O header {magic:#x}, expected {_MAGIC:#x} (64-bit)")
        if (machine := _MACHINES.get((cpu, subtype & _SUBTYPE))) is None:
            raise BinaryError(f"code for machine {cpu:#x}, kind {subtype & _SUBTYPE}: expected x86-64 or arm64")
        self.machine, self.is_loadable = machine, kind in _LOADABLE
        self.segments: list[Segment] = []
        self.sections: list[Section] = []
        self.tables: dict[int, tuple[int, ...]] = {}
        self.needed: list[str] = []
        self.soname: str | None = None
        self.oldest = self.entry = 0
        self._read_commands(count, _HEADER.size + size)
        if not (text := next((segment for segment in self.segments if segment.name == "__TEXT"), None)):
            raise BinaryError("no segment __TEXT, which each program and library has")
        self.base = text.addresses.start
        if any(segment.addresses.stop > _HIGHEST for segment in self.segments if segment.name != "__PAGEZERO"):
            raise BinaryError(f"segment above {_HIGHEST:#x}: its code is not read")

    def row(self, layout: struct.Struct, at: int) -> tuple[int, ...]:
        if not 0 <= at <= self.size - layout.size:
            raise BinaryError(f"row of {layout.size} bytes at {at:#x}, past the end, {self.size:#x}")
        return layout.unpack_from(self._data, at)

    def part(self, start: int, size: int) -> memoryview:
        if start + size > self.size:
            raise BinaryError(f"table at {start:#x}, {size:#x} bytes, past the end, {self.size:#x}")
        return self._data[start : start + size]

    def offset(self, address: int) -> int | None:
        for segment in self.segments:
            if address in segment.addresses and address - segment.addresses.start < len(segment.span):
                return segment.span.start + address - segment.addresses.start
        return None

    def address(self, offset: int) -> int | None:
        for segment in self.segments:
            if offset in segment.span:
                return segment.addresses.start + offset - segment.span.start
        return None

    def _read_commands(self, count: int, end: int) -> None:
        if end > self.size:
            raise BinaryError(f"load commands end at {end:#x}, past the end, {self.size:#x}")
        at = _HEADER.size
        for _ in range(min(count, _MOST_COMMANDS)):
            command, size = self.row(_COMMAND, at)
            least = _LEAST.get(command, _COMMAND.size)
            if size < least or at + size > end:
                raise BinaryError(f"load command at {at:#x} of {size:#x} bytes, expected {least:#x} up to {end:#x}")
            if command == _SEGMENT_64:
                self._read_segment(at, size)
            elif command in _LIBRARIES or command == _ID:
                start = at + self.row(_HALF, at + 8)[0]
                library = _text(bytes(self._data[start : start + _LONGEST]), 0).rpartition("/")[2]
                if command == _ID:
                    self.soname = library
                else:
                    self.needed.append(library)
            elif command == _MAIN:
                (self.entry,) = self.row(_WORD, at + 8)
            elif command in {_BUILD, _OLDEST}:
                (self.oldest,) = self.row(_HALF, at + (12 if command == _BUILD else 8))
            elif command == _ENCRYPTED and self.row(_HALF, at + 16)[0]:
                raise BinaryError("encrypted code")
            else:
                words = size // _HALF.size - 2
                self.tables[command] = self.row(struct.Struct(f"<{words}I"), at + _COMMAND.size)
            at += size

    def _read_segment(self, at: int, size: int) -> None:
        name, start, length, offset, stored, _, protection, count, flags = self.row(_SEGMENT, at)
        if offset + stored > self.size or stored > length:
            raise BinaryError(f"segment at {offset:#x}, {stored:#x} bytes, past the end, {self.size:#x}")
        if _SEGMENT.size + count * _SECTION.size > size:
            raise BinaryError(f"segment of {count} sections in a load command of {size:#x} bytes")
        segment = Segment(_name(name), range(start, start + length), range(offset, offset + stored), protection, flags)
        self.segments.append(segment)
        for row in _SECTION.iter_unpack(self.part(at + _SEGMENT.size, count * _SECTION.size)):
            section = Section(_name(row[0]), _name(row[1]), row[2], row[3], row[4], row[8])
            if section.kind not in _EMPTY and section.size:
                shift = section.address - start
                if not 0 <= shift <= stored - section.size or offset + shift != section.offset:
                    raise BinaryError(f"section {section.name} at {section.offset:#x} is not in its segment")
            self.sections.append(section)


def _name(raw: bytes | int) -> str:
    return bytes(raw).rstrip(b"\0").decode("latin-1") if isinstance(raw, bytes) else str(raw)


def _text(data: bytes, start: int) -> str:
    end = data.find(b"\0", start)
    return data[start : end if end >= 0 else None].decode("utf-8", "backslashreplace")


def _number(data: bytes, start: int) -> tuple[int, int]:
    """The number at *start* (seven bits in each byte, low ones first) and its end."""
    number = shift = 0
    for at in range(start, len(data)):
        number |= (data[at] & _SEVEN_BITS) << shift
        shift += 7
        if data[at] < _MORE:
            return number, at + 1
        if shift > _MOST_BITS:
            break
    raise BinaryError("number of more than ten bytes, or cut short")


def fixups(file: MachoFile) -> Iterator[Fixup]:
    """The places that the loader fills, with an address of the file or of an import; of several the last counts."""
    if _CHAINED in file.tables:
        yield from _chained(file, *file.tables[_CHAINED][:2])
    for command in _INFO & file.tables.keys():
        table = file.tables[command]
        for place in _Program(file, *table[0:2]).rebased():
            if (offset := file.offset(place)) is not None and offset + _WORD.size <= file.size:
                yield place, file.row(_WORD, offset)[0], None
        yield from _Program(file, *table[2:4]).bound(is_lazy=False)
        # weak ones are taken from here if this file has them
        yield from _Program(file, *table[4:6]).bound(is_lazy=False)
        yield from _Program(file, *table[6:8]).bound(is_lazy=True)


def _chained(file: MachoFile, at: int, size: int) -> Iterator[Fixup]:
    data = bytes(file.part(at, size))
    try:
        _, starts, imports, symbols, count, form, _ = struct.unpack_from("<7I", data)
        names = list(_imported(data, imports, symbols, count, form))
        (segments,) = _HALF.unpack_from(data, starts)
        for number in range(min(segments, len(file.segments))):
            (start,) = _HALF.unpack_from(data, starts + 4 + 4 * number)
            if start:
                _, page, kind, offset, _, pages = struct.unpack_from("<IHHQIH", data, starts + start)
                firsts = struct.unpack_from(f"<{pages}H", data, starts + start + 22)
                if kind not in {_BY_ADDRESS, _BY_OFFSET}:
                    raise BinaryError(f"chained pointers of format {kind}, expected 2 or 6")
                base = file.base if kind == _BY_OFFSET else 0
                for index, first in enumerate(firsts):
                    if first != _NO_CHAIN:
                        yield from _chain(file, file.base + offset + page * index + first, names, base)
    except (struct.error, IndexError) as error:
        raise BinaryError(f"chained pointers that cannot be read: {error}") from error


def _chain(file: MachoFile, place: int, names: list[tuple[str, int]], base: int) -> Iterator[Fixup]:
    while True:
        offset = file.offset(place)
        (word,) = file.row(_WORD, offset if offset is not None else -1)
        if word >> 63:
            name, addend = names[word & 0xFFFFFF]
            yield place, addend + (word >> 24 & 0xFF), name
        else:
            yield place, base + (word & 0xFFFFFFFFF), None
        step = word >> 51 & 0xFFF
        if not step:
            return
        place += 4 * step


def _imported(data: bytes, imports: int, symbols: int, count: int, form: int) -> Iterator[tuple[str, int]]:
    """The names that chains bind by number, each with an addend."""
    if form not in _IMPORT_SIZES or imports + count * _IMPORT_SIZES[form] > len(data):
        raise BinaryError(f"{count} imports of format {form} in {len(data):#x} bytes")
    for number in range(count):
        at, addend = imports + number * _IMPORT_SIZES[form], 0
        if form == 3:  # noqa: PLR2004
            word, addend = struct.unpack_from("<Qq", data, at)
            start = word >> 32
        else:
            start = _HALF.unpack_from(data, at)[0] >> 9
            addend = struct.unpack_from("<i", data, at + 4)[0] if form == 2 else 0  # noqa: PLR2004
        yield _text(data, symbols + start).removeprefix("_"), addend


class _Program:
    """A program of LC_DYLD_INFO: the high half of a byte is the operation."""

    def __init__(self, file: MachoFile, start: int, size: int) -> None:
        self._data, self._segments = bytes(file.part(start, size)), file.segments
        self._at = self._place = self._filled = 0

    def _operations(self) -> Iterator[tuple[int, int]]:
        while self._at < len(self._data):
            byte = self._data[self._at]
            self._at += 1
            yield byte >> 4, byte & 15

    def _number(self) -> int:
        number, self._at = _number(self._data, self._at)
        return number

    def _go_to(self, segment: int) -> None:
        if segment >= len(self._segments):
            raise BinaryError(f"LC_DYLD_INFO names segment {segment} of {len(self._segments)}")
        self._place = self._segments[segment].addresses.start + self._number()

    def _run(self, count: int, step: int) -> Iterator[int]:
        self._filled += count
        if self._filled > _MOST_ROWS:
            raise BinaryError(f"LC_DYLD_INFO fills more than {_MOST_ROWS} places")
        for _ in range(count):
            yield self._place
            self._place = (self._place + step) & 0xFFFFFFFFFFFFFFFF

    def rebased(self) -> Iterator[int]:
        for operation, low in self._operations():
            match operation:
                case 0:
                    return
                case 1:
                    pass
                case 2:
                    self._go_to(low)
                case 3:
                    self._place += self._number()
                case 4:
                    self._place += 8 * low
                case 5 | 6 | 7 | 8:
                    count = low if operation == 5 else 1 if operation == 7 else self._number()  # noqa: PLR2004
                    yield from self._run(count, 8 + (self._number() if operation in {7, 8} else 0))
                case _:
                    raise BinaryError(f"LC_DYLD_INFO has operation {operation << 4 | low:#x}")

    def bound(self, *, is_lazy: bool) -> Iterator[Fixup]:  # noqa: C901  # one for each operation
        """The places that get an import's address, with addend and name."""
        name, addend = "", 0
        for operation, low in self._operations():
            match operation:
                case 0:
                    # it stands between lazy ones
                    if not is_lazy:
                        return
                case 1 | 3 | 5:
                    pass
                case 2:
                    self._number()
                case 4:
                    end = self._data.find(b"\0", self._at)
                    name = _text(self._data, self._at).removeprefix("_")
                    self._at = end + 1 if end >= 0 else len(self._data)
                case 6:
                    start, addend = self._at, self._number()
                    if self._data[self._at - 1] & 0x40:  # the sign
                        addend -= 1 << 7 * (self._at - start)
                case 7:
                    self._go_to(low)
                case 8:
                    self._place = (self._place + self._number()) & 0xFFFFFFFFFFFFFFFF
                case 9 | 10 | 11 | 12:
                    count = self._number() if operation == 12 else 1  # noqa: PLR2004
                    skipped = self._number() if operation in {10, 12} else 8 * low * (operation == 11)  # noqa: PLR2004
                    yield from ((place, addend, name) for place in self._run(count, 8 + skipped))
                case _:
                    raise BinaryError(f"LC_DYLD_INFO has operation {operation << 4 | low:#x}")


def read_codes(data: Buffer) -> tuple[CodeImage, ...]:
    """The code for each machine; `BinaryError` if *data* is damaged, or for others."""
    with memoryview(data) as view:
        return tuple(_image(MachoFile(view[span.start : span.stop])) for span in halves(view))


def _image(file: MachoFile) -> CodeImage:
    sections, segments = file.sections, file.segments
    code = _pieces(file, (section for section in sections if section.flags & _HAS_CODE))
    symbols, objects = _symbols(file, code)
    exported = {
        name: symbol.address for symbol in (*symbols.values(), *objects) if symbol.is_exported for name in symbol.names
    }
    pointers, imports = _filled(file, exported)
    stubs = _pieces(file, (section for section in sections if section.kind == _STUBS))
    functions = _functions(file, code, stubs, symbols)
    objects += [*_data_in_code(file), *_texts(code, functions)]
    slots = [section for section in sections if section.kind in _SLOTS or section.name == "__got"]
    constants = (
        section
        for section in sections
        if not section.flags & _HAS_CODE
        and section.segment in {"__TEXT", "__DATA", "__DATA_CONST"}
        and section.kind not in _EMPTY
        and section.name not in _NO_CONSTANTS
        and section.size <= _MOST_CONSTANTS
    )
    read_only: list[Segment | Section] = [
        *(segment for segment in segments if segment.flags & _READ_ONLY or segment.name == "__DATA_CONST"),
        *(section for section in sections if section in slots or section.name == "__const"),
    ]
    given = _M1 if file.machine == "aarch64" else _PENRYN - ({"SSE4.1"} if file.oldest < _NEEDS_PENRYN else set())
    return CodeImage(
        machine=file.machine,
        system="macos",
        given=given,
        soname=file.soname,
        needed=tuple(file.needed),
        code=code,
        constants=_pieces(file, constants),
        functions=functions,
        objects=tuple(sorted(objects, key=lambda symbol: symbol.address)),
        pointers=tuple(sorted(pointers.items())),
        import_places=tuple(sorted(imports.items())),
        writable=tuple(segment.addresses for segment in segments if segment.protection & _WRITE),
        relro=tuple(part.addresses for part in read_only),
        areas=tuple(sorted((part.addresses for part in sections if part.size), key=lambda span: span.start)),
        stubs=stubs,
        slots=tuple(section.addresses for section in slots),
        starts=tuple(section.addresses for section in sections if section.kind in _INITS or section.kind == _OFFSETS),
        entry=file.base + file.entry if file.entry else 0,
        has_handlers=any(section.name == "__gcc_except_tab" for section in sections),
        is_loadable=file.is_loadable,
    )


def _pieces(file: MachoFile, sections: Iterable[Section]) -> tuple[CodeSection, ...]:
    pieces = []
    for section in sorted(sections, key=lambda section: section.address):
        if section.size:
            data = bytes(file.part(section.offset, section.size))
            pieces.append(CodeSection(f"{section.segment},{section.name}", section.address, data))
    return tuple(pieces)


def _symbols(file: MachoFile, code: Sequence[CodeSection]) -> tuple[dict[int, Symbol], list[Symbol]]:
    if _SYMTAB not in file.tables:
        return {}, []
    at, count, names_at, names_size = file.tables[_SYMTAB][:4]
    if count > _MOST_ROWS:
        raise BinaryError(f"{count} symbols, expected {_MOST_ROWS} or less")
    names = bytes(file.part(names_at, names_size))
    rows_of: dict[int, list[tuple[str, int, int]]] = {}
    for start, kind, _, description, address in _SYMBOL.iter_unpack(file.part(at, count * _SYMBOL.size)):
        if not kind & _IS_STAB and kind & _KIND == _IN_SECTION:
            name = _text(names, start).removeprefix("_")
            if name and not name.startswith(("ltmp", "L", "l_")):
                rows_of.setdefault(address, []).append((name, kind, description))
    functions, objects = {}, []
    for address, rows in sorted(rows_of.items()):
        exported = [row for row in rows if row[1] & _IS_EXTERNAL and not row[1] & _IS_PRIVATE]
        symbol = Symbol(
            address,
            0,
            tuple(dict.fromkeys(name for name, _, _ in rows)),
            is_exported=bool(exported),
            is_weak=bool(exported) and all(description & _IS_WEAK for _, _, description in exported),
        )
        if any(section.address <= address < section.end for section in code):
            functions[address] = symbol
        else:
            objects.append(symbol)
    return functions, objects


def _functions(
    file: MachoFile, code: Sequence[CodeSection], stubs: Sequence[CodeSection], named: dict[int, Symbol]
) -> tuple[Symbol, ...]:
    """Each up to the start of the next one or the end of its section."""
    starts = {address for address in _starts(file) if any(section.address <= address < section.end for section in code)}
    known = [
        address
        for address in sorted(starts | named.keys())
        if not any(stub.address <= address < stub.end for stub in stubs)
    ]
    ends = sorted({*known, *(section.end for section in code), *(section.address for section in code)})
    functions = []
    for address in known:
        symbol = named.get(address, Symbol(address, 0))
        end = ends[bisect_left(ends, address + 1)]
        functions.append(Symbol(address, end - address, symbol.names, symbol.is_exported, is_weak=symbol.is_weak))
    return tuple(functions)


def _starts(file: MachoFile) -> Iterator[int]:
    start, size = file.tables.get(_STARTS, (0, 0))[:2]
    data, at, address = bytes(file.part(start, size)), 0, file.base
    while at < len(data):
        distance, at = _number(data, at)
        if not distance:
            return
        address += distance
        yield address


def _data_in_code(file: MachoFile) -> Iterator[Symbol]:
    at, size = file.tables.get(_DATA_IN_CODE, (0, 0))[:2]
    for offset, length, _ in _DATA.iter_unpack(file.part(at, size - size % _DATA.size)):
        if (address := file.address(offset)) is not None and length:
            yield Symbol(address, length)


def _filled(file: MachoFile, exported: dict[str, int]) -> tuple[dict[int, int], dict[int, str]]:
    pointers: dict[int, int] = {}
    imports: dict[int, str] = {}
    for place, target, name in fixups(file):
        if name is None:
            pointers[place] = target
        elif name in exported:  # names belong to libraries, so no other file has it first
            pointers[place] = exported[name] + target
        else:
            pointers.pop(place, None)
            imports[place] = name
    for section in file.sections:
        if section.kind == _OFFSETS:
            data = file.part(section.offset, section.size - section.size % _HALF.size)
            for number, (offset,) in enumerate(_HALF.iter_unpack(data)):
                pointers[section.address + _HALF.size * number] = file.base + offset
    return pointers, imports


def _texts(code: Iterable[CodeSection], functions: Iterable[Symbol]) -> Iterator[Symbol]:
    """Texts behind functions, such as OpenSSL's authors."""
    sections = {section.address: section for section in code}
    addresses = sorted(sections)
    for function in functions:
        section = sections[addresses[bisect_left(addresses, function.address + 1) - 1]]
        end = function.end - section.address
        if match := _TEXT.search(section.data, max(function.address - section.address, end - _LONGEST_TEXT), end):
            yield Symbol(section.address + match.start(), end - match.start())
