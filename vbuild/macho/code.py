"""The code of a Mach-O file for x86-64 or arm64, as the rules of evidence take it (`vbuild.binary.code`).

    LC_FUNCTION_STARTS   where functions start, each one's distance from the one before
    LC_SYMTAB            their names, without the underscore that C compilers put in front
    LC_DATA_IN_CODE      tables of jumps between instructions
    what the loader fills (`vbuild.macho.fixups`)

A universal2 file has one of these for each machine.
https://github.com/apple-oss-distributions/xnu/blob/main/EXTERNAL_HEADERS/mach-o/loader.h
"""

import re
import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from vbuild.binary.code import CodeImage, CodeSection, Symbol
from vbuild.errors import BinaryError
from vbuild.files.records import Buffer
from vbuild.macho.fixups import MOST_ROWS, fixups
from vbuild.macho.layout import EMPTY, HALF, MachoFile, Section
from vbuild.macho.read import halves

_SYMBOL, _DATA = map(struct.Struct, ("<IBBHQ", "<IHH"))
_SYMTAB, _STARTS, _DATA_IN_CODE = 0x2, 0x26, 0x29
# kinds of sections: stubs, pointers for code alone, and functions that the loader calls
_STUBS, _SLOTS, _INITS, _OFFSETS = 8, frozenset({6, 7}), frozenset({9, 10}), 0x16
_HAS_CODE, _WRITE, _READ_ONLY = 0x80000400, 2, 0x10
_NO_CONSTANTS, _MOST_CONSTANTS = frozenset({"__eh_frame", "__unwind_info", "__gcc_except_tab"}), 1 << 25
_IS_STAB, _IS_PRIVATE, _KIND, _IN_SECTION, _IS_EXTERNAL = 0xE0, 0x10, 0x0E, 0x0E, 0x01
_IS_WEAK = 0x80
# letters that end with a zero, and what fills the space behind them: code ends with a branch, which has no letters
_TEXT, _LONGEST_TEXT = re.compile(rb"[\x20-\x7e]{16,}\0+(?:\x1f\x20\x03\xd5|[\x90\xcc])*\Z"), 256
# since 10.12 macOS runs on Penryn and newer (clang, lib/Driver/ToolChains/Arch/X86.cpp); before, on Merom
_PENRYN, _NEEDS_PENRYN = frozenset({"SSE3", "SSSE3", "CMPXCHG16B", "LAHF-SAHF", "SSE4.1"}), (10 << 16) | (12 << 8)
# the M1: LLVM, lib/Target/AArch64/AArch64Processors.td, AppleA14; clang builds for it by default
_M1 = frozenset(
    """CRC32 LOR LSE RDM FCMA JSCVT LRCPC PAUTH DIT DOTPROD FLAGM LRCPC2 FLAGM2 FRINTTS SB AES PMULL SHA1 SHA256 SHA512
    SHA3 FP16 FHM""".split()  # noqa: SIM905
)


def read_codes(data: Buffer) -> tuple[CodeImage, ...]:
    """The code in the Mach-O file *data*, one for each machine; `BinaryError` if it is damaged, or for others."""
    with memoryview(data) as view:
        return tuple(_Reader(MachoFile(view[span.start : span.stop])).image() for span in halves(view))


class _Reader:
    """One file that is read for its code."""

    def __init__(self, file: MachoFile) -> None:
        self._file = file

    def image(self) -> CodeImage:
        code = tuple(self._pieces(one for one in self._file.sections if one.flags & _HAS_CODE))
        symbols, objects = self._symbols(code)
        exported = {name: one.address for one in (*symbols.values(), *objects) if one.is_exported for name in one.names}
        pointers, imports = self._filled(exported)
        functions = self._functions(code, symbols)
        slots = [one for one in self._file.sections if one.kind in _SLOTS or one.name == "__got"]
        constant = [one for one in self._file.segments if one.flags & _READ_ONLY or one.name == "__DATA_CONST"]
        return CodeImage(
            machine=self._file.machine,
            system="macos",
            given=_given(self._file),
            soname=self._file.soname,
            needed=tuple(self._file.needed),
            code=code,
            constants=tuple(
                self._pieces(
                    one
                    for one in self._file.sections
                    if not one.flags & _HAS_CODE
                    and one.segment in {"__TEXT", "__DATA", "__DATA_CONST"}
                    and one.kind not in EMPTY
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
            writable=tuple(one.addresses for one in self._file.segments if one.protection & _WRITE),
            relro=(
                *(one.addresses for one in constant),
                *(one.addresses for one in (*slots, *self._file.sections) if one in slots or one.name == "__const"),
            ),
            areas=tuple(sorted((one.addresses for one in self._file.sections if one.size), key=lambda one: one.start)),
            stubs=tuple(self._pieces(one for one in self._file.sections if one.kind == _STUBS)),
            slots=tuple(one.addresses for one in slots),
            starts=tuple(one.addresses for one in self._file.sections if one.kind in _INITS or one.kind == _OFFSETS),
            entry=self._file.base + self._file.entry if self._file.entry else 0,
            has_handlers=any(one.name == "__gcc_except_tab" for one in self._file.sections),
            is_loadable=self._file.is_loadable,
        )

    def _pieces(self, sections: Iterable[Section]) -> Iterator[CodeSection]:
        for one in sorted(sections, key=lambda one: one.address):
            if one.size:
                data = bytes(self._file.part(one.offset, one.size))
                yield CodeSection(f"{one.segment},{one.name}", one.address, data)

    def _symbols(self, code: Iterable[CodeSection]) -> tuple[dict[int, Symbol], list[Symbol]]:
        """The functions and the objects with names, the functions by address."""
        if _SYMTAB not in self._file.tables:
            return {}, []
        at, count, names_at, names_size = self._file.tables[_SYMTAB][:4]
        if count > MOST_ROWS:
            raise BinaryError(f"{count} symbols, expected {MOST_ROWS} or less")
        names = bytes(self._file.part(names_at, names_size))
        ranges = [range(one.address, one.end) for one in code]
        found: dict[int, list[tuple[str, int, int]]] = {}
        for place, kind, _, about, value in _SYMBOL.iter_unpack(self._file.part(at, count * _SYMBOL.size)):
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
        stubs = [one.addresses for one in self._file.sections if one.kind == _STUBS]
        known = sorted(address for address in starts | named.keys() if not any(address in one for one in stubs))
        ends = sorted({*known, *(one.end for one in code), *(one.address for one in code)})
        found = []
        for address in known:
            symbol = named.get(address, Symbol(address, 0))
            end = ends[bisect_left(ends, address + 1)]
            found.append(Symbol(address, end - address, symbol.names, symbol.is_exported, is_weak=symbol.is_weak))
        return tuple(found)

    def _starts(self) -> Iterator[int]:
        at, size = self._file.tables.get(_STARTS, (0, 0))[:2]
        address = self._file.base
        for distance in _numbers(bytes(self._file.part(at, size))):
            if not distance:
                return
            address += distance
            yield address

    def _data_in_code(self) -> Iterator[Symbol]:
        at, size = self._file.tables.get(_DATA_IN_CODE, (0, 0))[:2]
        for offset, length, _ in _DATA.iter_unpack(self._file.part(at, size - size % _DATA.size)):
            if (address := self._file.address(offset)) is not None and length:
                yield Symbol(address, length)

    def _filled(self, exported: dict[str, int]) -> tuple[dict[int, int], dict[int, str]]:
        """The places that the loader fills: with an address of this file, and with that of an import, by name.

        A name that this file exports is its own: no other file has it first where names belong to libraries.
        """
        pointers: dict[int, int] = {}
        imports: dict[int, str] = {}
        for place, target, name in fixups(self._file):
            if name is None:
                pointers[place] = target
            elif name in exported:
                pointers[place] = exported[name] + target
            else:
                pointers.pop(place, None)
                imports[place] = name
        for one in self._file.sections:
            if one.kind == _OFFSETS:
                data = self._file.part(one.offset, one.size - one.size % HALF.size)
                for number, (offset,) in enumerate(HALF.iter_unpack(data)):
                    pointers[one.address + HALF.size * number] = self._file.base + offset
        return pointers, imports


def _given(file: MachoFile) -> frozenset[str]:
    """What each machine has that runs *file*: its oldest macOS says which those are."""
    if file.machine == "aarch64":
        return _M1
    return _PENRYN - ({"SSE4.1"} if file.oldest < _NEEDS_PENRYN else set())


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
