"""The code of a Mach-O file for x86-64 or arm64, as the rules of evidence take it (`vbuild.binary.code`).

    LC_FUNCTION_STARTS       where functions start, each one's distance from the one before
    LC_SYMTAB                their names, without the underscore that C compilers put in front
    LC_DYLD_CHAINED_FIXUPS   the places that the loader fills, in chains through each page
    LC_DYLD_INFO             the same by small programs, in files for macOS 11 and older
    LC_DATA_IN_CODE          tables of jumps between instructions

A universal2 file has one of these for each machine.
https://github.com/apple-oss-distributions/xnu/blob/main/EXTERNAL_HEADERS/mach-o/loader.h, fixup-chains.h
"""

import re
import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from vbuild.binary.code import CodeImage, CodeSection, Symbol
from vbuild.errors import BinaryError
from vbuild.files.records import Buffer
from vbuild.macho.read import halves

_MAGIC = 0xFEEDFACF
_HEADER, _COMMAND, _SEGMENT, _SECTION = map(struct.Struct, ("<8I", "<II", "<8x16s4QiiII", "<16s16sQQ8I"))
_PAIR, _SYMBOL, _DATA, _WORD, _HALF = map(struct.Struct, ("<II", "<IBBHQ", "<IHH", "<Q", "<I"))
_X86_64, _ARM64, _SUBTYPE = 0x01000007, 0x0100000C, 0xFFFFFF
_MACHINES = {(_X86_64, 3): "x86_64", (_ARM64, 0): "aarch64"}
_LOADED = frozenset({0xC, 0x20, 0x80000018, 0x8000001F})
_SEGMENT_64, _SYMTAB, _ID, _STARTS, _DATA_IN_CODE, _ENCRYPTED = 0x19, 0x2, 0xD, 0x26, 0x29, 0x2C
_INFO, _CHAINED, _MAIN = frozenset({0x22, 0x80000022}), 0x80000034, 0x80000028
_BUILD, _OLDEST = 0x32, 0x24
# the kinds of files that the loader loads: programs, libraries, bundles
_LOADABLE = frozenset({2, 6, 8})
# kinds of sections: zeros, stubs, pointers for code alone, and functions that the loader calls
_EMPTY, _STUBS, _SLOTS, _INITS = frozenset({1, 12, 18}), 8, frozenset({6, 7}), frozenset({9, 10})
_OFFSETS = 0x16
_HAS_CODE, _WRITE, _READ_ONLY = 0x80000400, 2, 0x10
_NO_CONSTANTS = frozenset({"__eh_frame", "__unwind_info", "__gcc_except_tab"})
_MOST_CONSTANTS, _MOST_ROWS, _MOST_COMMANDS, _LONGEST = 1 << 25, 1 << 21, 1 << 12, 4096
# the index of references has 40 bits for an address
_HIGHEST = 1 << 39
_IS_STAB, _IS_PRIVATE, _KIND, _IN_SECTION, _IS_EXTERNAL = 0xE0, 0x10, 0x0E, 0x0E, 0x01
_IS_WEAK = 0x80
# letters that end with a zero, and what fills the space behind them: code ends with a branch, which has no letters
_TEXT, _LONGEST_TEXT = re.compile(rb"[\x20-\x7e]{16,}\0+(?:\x1f\x20\x03\xd5|[\x90\xcc])*\Z"), 256
# of formats of chains those whose pointers are plain: with an address, and with an offset
_BY_ADDRESS, _BY_OFFSET = 2, 6
_NO_CHAIN = 0xFFFF
_IMPORT_SIZES = {1: 4, 2: 8, 3: 16}
# since 10.12 macOS runs on Penryn and newer (clang, lib/Driver/ToolChains/Arch/X86.cpp); before, on Merom
_PENRYN, _NEEDS_PENRYN = frozenset({"SSE3", "SSSE3", "CMPXCHG16B", "LAHF-SAHF", "SSE4.1"}), (10 << 16) | (12 << 8)
# the M1: LLVM, lib/Target/AArch64/AArch64Processors.td, AppleA14; clang builds for it by default
_M1 = frozenset(
    """CRC32 LOR LSE RDM FCMA JSCVT LRCPC PAUTH DIT DOTPROD FLAGM LRCPC2 FLAGM2 FRINTTS SB AES PMULL SHA1 SHA256 SHA512
    SHA3 FP16 FHM""".split()  # noqa: SIM905
)


class _Section(NamedTuple):
    name: str
    segment: str
    address: int
    size: int
    offset: int
    flags: int
    stub_size: int

    @property
    def kind(self) -> int:
        return self.flags & 0xFF

    @property
    def addresses(self) -> range:
        return range(self.address, self.address + self.size)


class _Segment(NamedTuple):
    name: str
    addresses: range
    span: range
    protection: int
    flags: int


def read_codes(data: Buffer) -> tuple[CodeImage, ...]:
    """The code in the Mach-O file *data*, one for each machine; `BinaryError` if it is damaged, or for others."""
    with memoryview(data) as view:
        return tuple(_Reader(view[span.start : span.stop]).image() for span in halves(view))


class _Reader:
    """One file that is read for its code."""

    def __init__(self, view: memoryview) -> None:
        self._data = view
        magic, cpu, subtype, kind, count, size, _, _ = self._row(_HEADER, 0)
        if magic != _MAGIC:
            raise BinaryError(f"Mach-O header {magic:#x}, expected {_MAGIC:#x} (64-bit)")
        if (machine := _MACHINES.get((cpu, subtype & _SUBTYPE))) is None:
            raise BinaryError(f"code for machine {cpu:#x}, kind {subtype & _SUBTYPE}: expected x86-64 or arm64")
        self.machine, self._is_loadable = machine, kind in _LOADABLE
        self._segments: list[_Segment] = []
        self._sections: list[_Section] = []
        self._tables: dict[int, tuple[int, ...]] = {}
        self._needed: list[str] = []
        self._soname: str | None = None
        self._oldest = self._entry = 0
        self._read_commands(count, _HEADER.size + size)
        if not (text := next((one for one in self._segments if one.name == "__TEXT"), None)):
            raise BinaryError("no segment __TEXT, which each program and library has")
        self._base = text.addresses.start
        if any(one.addresses.stop > _HIGHEST for one in self._segments if one.name != "__PAGEZERO"):
            raise BinaryError(f"segment above {_HIGHEST:#x}: its code is not read")

    # parts of the file

    def _row(self, layout: struct.Struct, at: int) -> tuple[int, ...]:
        if not 0 <= at <= len(self._data) - layout.size:
            raise BinaryError(f"row of {layout.size} bytes at {at:#x}, past the end, {len(self._data):#x}")
        return layout.unpack_from(self._data, at)

    def _part(self, start: int, size: int) -> memoryview:
        if start + size > len(self._data):
            raise BinaryError(f"table at {start:#x}, {size:#x} bytes, past the end, {len(self._data):#x}")
        return self._data[start : start + size]

    def _text(self, at: int) -> str:
        return bytes(self._data[at : at + _LONGEST]).partition(b"\0")[0].decode("utf-8", "backslashreplace")

    def _offset(self, address: int) -> int | None:
        """Where in the file that is what is loaded at *address*."""
        for one in self._segments:
            if address in one.addresses and address - one.addresses.start < len(one.span):
                return one.span.start + address - one.addresses.start
        return None

    def _address(self, offset: int) -> int | None:
        for one in self._segments:
            if offset in one.span:
                return one.addresses.start + offset - one.span.start
        return None

    # load commands

    def _read_commands(self, count: int, end: int) -> None:
        if end > len(self._data):
            raise BinaryError(f"load commands end at {end:#x}, past the end, {len(self._data):#x}")
        at = _HEADER.size
        for _ in range(min(count, _MOST_COMMANDS)):
            command, size = self._row(_COMMAND, at)
            if size < _COMMAND.size or at + size > end:
                raise BinaryError(f"load command at {at:#x} of {size:#x} bytes, expected one that ends before {end:#x}")
            if command == _SEGMENT_64:
                self._read_segment(at, size)
            elif command in _LOADED:
                self._needed.append(self._text(at + self._row(_HALF, at + 8)[0]).rpartition("/")[2])
            elif command == _ID:
                self._soname = self._text(at + self._row(_HALF, at + 8)[0]).rpartition("/")[2]
            elif command == _MAIN:
                (self._entry,) = self._row(_WORD, at + 8)
            elif command in {_BUILD, _OLDEST}:
                (self._oldest,) = self._row(_HALF, at + (12 if command == _BUILD else 8))
            elif command == _ENCRYPTED and self._row(_HALF, at + 16)[0]:
                raise BinaryError("encrypted code")
            else:
                words = size // _HALF.size - 2
                self._tables[command] = self._row(struct.Struct(f"<{words}I"), at + _COMMAND.size)
            at += size

    def _read_segment(self, at: int, size: int) -> None:
        name, start, length, offset, stored, _, protection, count, flags = self._row(_SEGMENT, at)
        if offset + stored > len(self._data) or stored > length:
            raise BinaryError(f"segment at {offset:#x}, {stored:#x} bytes, past the end, {len(self._data):#x}")
        if _SEGMENT.size + count * _SECTION.size > size:
            raise BinaryError(f"segment of {count} sections in a load command of {size:#x} bytes")
        segment = _Segment(_name(name), range(start, start + length), range(offset, offset + stored), protection, flags)
        self._segments.append(segment)
        for row in _SECTION.iter_unpack(self._part(at + _SEGMENT.size, count * _SECTION.size)):
            section = _Section(_name(row[0]), _name(row[1]), row[2], row[3], row[4], row[8], row[10])
            if section.kind not in _EMPTY and section.size and not self._is_inside(section, segment):
                raise BinaryError(f"section {section.name} at {section.offset:#x} is not in its segment")
            self._sections.append(section)

    @staticmethod
    def _is_inside(section: _Section, segment: _Segment) -> bool:
        place = section.address - segment.addresses.start
        return 0 <= place <= len(segment.span) - section.size and segment.span.start + place == section.offset

    # what stands in them

    def image(self) -> CodeImage:
        code = tuple(self._pieces(one for one in self._sections if one.flags & _HAS_CODE))
        symbols, objects = self._symbols(code)
        exported = {name: one.address for one in (*symbols.values(), *objects) if one.is_exported for name in one.names}
        pointers, imports = self._filled(exported)
        functions = self._functions(code, symbols)
        given = _M1 if self.machine == "aarch64" else _PENRYN - ({"SSE4.1"} if self._oldest < _NEEDS_PENRYN else set())
        slots = [one for one in self._sections if one.kind in _SLOTS or one.name == "__got"]
        constant = [one for one in self._segments if one.flags & _READ_ONLY or one.name == "__DATA_CONST"]
        return CodeImage(
            machine=self.machine,
            system="macos",
            given=given,
            soname=self._soname,
            needed=tuple(self._needed),
            code=code,
            constants=tuple(
                self._pieces(
                    one
                    for one in self._sections
                    if not one.flags & _HAS_CODE
                    and one.segment in {"__TEXT", "__DATA", "__DATA_CONST"}
                    and one.kind not in _EMPTY
                    and one.name not in _NO_CONSTANTS
                    and one.size <= _MOST_CONSTANTS
                )
            ),
            functions=functions,
            objects=tuple(
                sorted((*objects, *self._data_in_code(), *_texts(code, functions)), key=lambda one: one.address)
            ),
            pointers=tuple(sorted(pointers.items())),
            import_places=tuple(sorted(imports.items())),
            writable=tuple(one.addresses for one in self._segments if one.protection & _WRITE),
            relro=(
                *(one.addresses for one in constant),
                *(one.addresses for one in (*slots, *self._sections) if one in slots or one.name == "__const"),
            ),
            areas=tuple(sorted((one.addresses for one in self._sections if one.size), key=lambda one: one.start)),
            stubs=tuple(self._pieces(one for one in self._sections if one.kind == _STUBS)),
            slots=tuple(one.addresses for one in slots),
            starts=tuple(one.addresses for one in self._sections if one.kind in _INITS or one.kind == _OFFSETS),
            entry=self._base + self._entry if self._entry else 0,
            has_handlers=any(one.name == "__gcc_except_tab" for one in self._sections),
            is_loadable=self._is_loadable,
        )

    def _pieces(self, sections: Iterable[_Section]) -> Iterator[CodeSection]:
        for one in sorted(sections, key=lambda one: one.address):
            if one.size:
                yield CodeSection(f"{one.segment},{one.name}", one.address, bytes(self._part(one.offset, one.size)))

    def _symbols(self, code: Iterable[CodeSection]) -> tuple[dict[int, Symbol], list[Symbol]]:
        """The functions and the objects with names, the functions by address."""
        if _SYMTAB not in self._tables:
            return {}, []
        at, count, names_at, names_size = self._tables[_SYMTAB][:4]
        if count > _MOST_ROWS:
            raise BinaryError(f"{count} symbols, expected {_MOST_ROWS} or less")
        names = bytes(self._part(names_at, names_size))
        ranges = [range(one.address, one.end) for one in code]
        found: dict[int, list[tuple[str, int, int]]] = {}
        for place, kind, _, about, value in _SYMBOL.iter_unpack(self._part(at, count * _SYMBOL.size)):
            if kind & _IS_STAB or kind & _KIND != _IN_SECTION:
                continue
            end = names.find(b"\0", place)
            name = names[place : end if end >= 0 else None].decode("utf-8", "backslashreplace").removeprefix("_")
            if name and not name.startswith(("ltmp", "L", "l_")):
                found.setdefault(value, []).append((name, kind, about))
        functions, objects = {}, []
        for address, rows in sorted(found.items()):
            outside = [one for one in rows if one[1] & _IS_EXTERNAL and not one[1] & _IS_PRIVATE]
            symbol = Symbol(
                address,
                0,
                tuple(dict.fromkeys(name for name, _, _ in rows)),
                is_exported=bool(outside),
                is_weak=bool(outside) and all(about & _IS_WEAK for _, _, about in outside),
            )
            if any(address in one for one in ranges):
                functions[address] = symbol
            else:
                objects.append(symbol)
        return functions, objects

    def _functions(self, code: tuple[CodeSection, ...], named: dict[int, Symbol]) -> tuple[Symbol, ...]:
        """Every function: it goes on to the start of the next one, or to the end of the section."""
        starts = {address for address in self._starts() if any(one.address <= address < one.end for one in code)}
        stubs = [one.addresses for one in self._sections if one.kind == _STUBS]
        known = sorted(address for address in starts | named.keys() if not any(address in one for one in stubs))
        ends = sorted({*known, *(one.end for one in code), *(one.address for one in code)})
        found = []
        for address in known:
            symbol = named.get(address, Symbol(address, 0))
            end = ends[bisect_left(ends, address + 1)]
            found.append(Symbol(address, end - address, symbol.names, symbol.is_exported, is_weak=symbol.is_weak))
        return tuple(found)

    def _starts(self) -> Iterator[int]:
        at, size = self._tables.get(_STARTS, (0, 0))[:2]
        address = self._base
        for distance in _numbers(bytes(self._part(at, size))):
            if not distance:
                return
            address += distance
            yield address

    def _data_in_code(self) -> Iterator[Symbol]:
        at, size = self._tables.get(_DATA_IN_CODE, (0, 0))[:2]
        for offset, length, _ in _DATA.iter_unpack(self._part(at, size - size % _DATA.size)):
            if (address := self._address(offset)) is not None and length:
                yield Symbol(address, length)

    # what the loader fills

    def _filled(self, exported: dict[str, int]) -> tuple[dict[int, int], dict[int, str]]:
        """The places that the loader fills: with an address of this file, and with that of an import, by name.

        A name that this file exports is its own: no other file has it first where names belong to libraries.
        """
        pointers: dict[int, int] = {}
        imports: dict[int, str] = {}
        for place, target, name in self._fixups():
            if name is None:
                pointers[place] = target
            elif name in exported:
                pointers[place] = exported[name] + target
            else:
                pointers.pop(place, None)
                imports[place] = name
        for one in self._sections:
            if one.kind == _OFFSETS:
                data = self._part(one.offset, one.size - one.size % _HALF.size)
                for number, (offset,) in enumerate(_HALF.iter_unpack(data)):
                    pointers[one.address + _HALF.size * number] = self._base + offset
        return pointers, imports

    def _fixups(self) -> Iterator[tuple[int, int, str | None]]:
        """Each place with a target, and a name if it is an import's; what counts comes last."""
        if _CHAINED in self._tables:
            yield from self._chained(*self._tables[_CHAINED][:2])
        for command in _INFO & self._tables.keys():
            table = self._tables[command]
            yield from ((place, target, None) for place, target in self._rebased(*table[0:2]))
            for at in (2, 4, 6):
                # weak ones, at 4, are taken from here where this file has them
                yield from self._bound(*table[at : at + 2], is_lazy=at == 6)  # noqa: PLR2004

    def _chained(self, at: int, size: int) -> Iterator[tuple[int, int, str | None]]:
        data = bytes(self._part(at, size))
        try:
            _, starts, imports, symbols, count, form, _ = struct.unpack_from("<7I", data)
            names = list(_imported(data, imports, symbols, count, form))
            (segments,) = _HALF.unpack_from(data, starts)
            for number in range(min(segments, len(self._segments))):
                (place,) = _HALF.unpack_from(data, starts + 4 + 4 * number)
                if place:
                    _, page, kind, offset, _, pages = struct.unpack_from("<IHHQIH", data, starts + place)
                    firsts = struct.unpack_from(f"<{pages}H", data, starts + place + 22)
                    if kind not in {_BY_ADDRESS, _BY_OFFSET}:
                        raise BinaryError(f"chained pointers of format {kind}, expected 2 or 6")
                    for index, first in enumerate(firsts):
                        if first != _NO_CHAIN:
                            start = self._base + offset + page * index + first
                            yield from self._chain(start, names, is_offset=kind == _BY_OFFSET)
        except (struct.error, IndexError) as error:
            raise BinaryError(f"chained pointers that cannot be read: {error}") from error

    def _chain(
        self, place: int, names: list[tuple[str, int]], *, is_offset: bool
    ) -> Iterator[tuple[int, int, str | None]]:
        while True:
            offset = self._offset(place)
            (word,) = self._row(_WORD, offset if offset is not None else -1)
            if word >> 63:
                name, addend = names[word & 0xFFFFFF]
                yield place, addend + (word >> 24 & 0xFF), name
            else:
                target = word & 0xFFFFFFFFF
                yield place, target + (self._base if is_offset else 0), None
            step = word >> 51 & 0xFFF
            if not step:
                return
            place += 4 * step

    def _rebased(self, at: int, size: int) -> Iterator[tuple[int, int]]:
        """The places that the program of LC_DYLD_INFO at *at* adds the loader's base to, and what stands there."""
        data = _Program(bytes(self._part(at, size)), self._segments)
        for place in data.rebased():
            if (offset := self._offset(place)) is not None and offset + _WORD.size <= len(self._data):
                yield place, self._row(_WORD, offset)[0]

    def _bound(self, at: int, size: int, *, is_lazy: bool) -> Iterator[tuple[int, int, str | None]]:
        yield from _Program(bytes(self._part(at, size)), self._segments).bound(is_lazy=is_lazy)


def _texts(code: Iterable[CodeSection], functions: Iterable[Symbol]) -> Iterator[Symbol]:
    """The texts behind functions, as those of OpenSSL have its authors: no symbol says where they begin."""
    starts = {one.address: one for one in code}
    addresses = sorted(starts)
    for function in functions:
        section = starts[addresses[bisect_left(addresses, function.address + 1) - 1]]
        end = function.end - section.address
        match = _TEXT.search(section.data, max(function.address - section.address, end - _LONGEST_TEXT), end)
        if match:
            yield Symbol(section.address + match.start(), end - match.start())


def _name(raw: bytes | int) -> str:
    return bytes(raw).rstrip(b"\0").decode("latin-1") if isinstance(raw, bytes) else str(raw)


def _imported(data: bytes, imports: int, symbols: int, count: int, form: int) -> Iterator[tuple[str, int]]:
    """The names that chains bind by number, each with an addend."""
    if form not in _IMPORT_SIZES or imports + count * _IMPORT_SIZES[form] > len(data):
        raise BinaryError(f"{count} imports of format {form} in {len(data):#x} bytes")
    for number in range(count):
        at, addend = imports + number * _IMPORT_SIZES[form], 0
        if form == 3:  # noqa: PLR2004
            word, addend = struct.unpack_from("<Qq", data, at)
            place = word >> 32
        else:
            place = _HALF.unpack_from(data, at)[0] >> 9
            addend = struct.unpack_from("<i", data, at + 4)[0] if form == 2 else 0  # noqa: PLR2004
        start = symbols + place
        end = data.find(b"\0", start)
        yield data[start : end if end >= 0 else None].decode("utf-8", "backslashreplace").removeprefix("_"), addend


def _numbers(data: bytes) -> Iterator[int]:
    """The numbers of seven bits a byte, low ones first."""
    found = shift = 0
    for byte in data:
        found |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:  # noqa: PLR2004
            yield found
            found = shift = 0
        elif shift > 70:  # noqa: PLR2004
            raise BinaryError("number of more than ten bytes")


class _Program:
    """A program of LC_DYLD_INFO: an operation in the high half of a byte, and a number in the low one."""

    def __init__(self, data: bytes, segments: list[_Segment]) -> None:
        self._data, self._segments = data, segments
        self._at = self._place = self._left = 0

    def _number(self, *, is_signed: bool = False) -> int:
        found = shift = 0
        while True:
            if self._at >= len(self._data) or shift > 70:  # noqa: PLR2004
                raise BinaryError("program of LC_DYLD_INFO is cut short")
            byte = self._data[self._at]
            self._at += 1
            found |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:  # noqa: PLR2004
                return found - (1 << shift) if is_signed and byte & 0x40 else found

    def _text(self) -> str:
        end = self._data.find(b"\0", self._at)
        found = self._data[self._at : end if end >= 0 else None]
        self._at = end + 1 if end >= 0 else len(self._data)
        return found.decode("utf-8", "backslashreplace").removeprefix("_")

    def _go_to(self, segment: int) -> None:
        if segment >= len(self._segments):
            raise BinaryError(f"LC_DYLD_INFO names segment {segment} of {len(self._segments)}")
        self._place = self._segments[segment].addresses.start + self._number()

    def _run(self, count: int, step: int) -> Iterator[int]:
        self._left += count
        if self._left > _MOST_ROWS:
            raise BinaryError(f"LC_DYLD_INFO fills more than {_MOST_ROWS} places")
        for _ in range(count):
            yield self._place
            self._place = (self._place + step) & 0xFFFFFFFFFFFFFFFF

    def rebased(self) -> Iterator[int]:  # noqa: C901  # one for each operation
        """The places that get the loader's base."""
        while self._at < len(self._data):
            byte = self._data[self._at]
            self._at += 1
            operation, low = byte >> 4, byte & 15
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
                case 5:
                    yield from self._run(low, 8)
                case 6:
                    yield from self._run(self._number(), 8)
                case 7:
                    yield from self._run(1, 8 + self._number())
                case 8:
                    count = self._number()
                    yield from self._run(count, 8 + self._number())
                case _:
                    raise BinaryError(f"LC_DYLD_INFO has operation {byte:#x}")

    def bound(self, *, is_lazy: bool) -> Iterator[tuple[int, int, str]]:  # noqa: C901, PLR0912  # as above
        """The places that get an import's address, an addend, and its name."""
        name, addend = "", 0
        while self._at < len(self._data):
            byte = self._data[self._at]
            self._at += 1
            operation, low = byte >> 4, byte & 15
            match operation:
                case 0:
                    # between lazy ones, which are bound one by one
                    if not is_lazy:
                        return
                case 1 | 3 | 5:
                    pass
                case 2:
                    self._number()
                case 4:
                    name = self._text()
                case 6:
                    addend = self._number(is_signed=True)
                case 7:
                    self._go_to(low)
                case 8:
                    self._place = (self._place + self._number()) & 0xFFFFFFFFFFFFFFFF
                case 9:
                    yield from ((place, addend, name) for place in self._run(1, 8))
                case 10:
                    found = [*self._run(1, 8)]
                    yield from ((place, addend, name) for place in found)
                    self._place = (self._place + self._number()) & 0xFFFFFFFFFFFFFFFF
                case 11:
                    yield from ((place, addend, name) for place in self._run(1, 8 + 8 * low))
                case 12:
                    count = self._number()
                    yield from ((place, addend, name) for place in self._run(count, 8 + self._number()))
                case _:
                    raise BinaryError(f"LC_DYLD_INFO has operation {byte:#x}")
