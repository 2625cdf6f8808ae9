"""The functions and objects of an ELF file, by its tables of symbols and of unwind entries.

    .symtab, .dynsym   functions and objects by name, each address once
    .eh_frame_hdr      functions without a name, in stripped files too

Of the wheels of one family, slimmed for other GPUs, libraries have the same tables: those of the last files are kept.
"""

import hashlib
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from enum import IntEnum
from threading import Lock
from typing import Self, TypeVar, cast

from msgspec import Struct

from vbuild.binary.code import CodeSection, Symbol
from vbuild.binary.image import Ranges
from vbuild.elf.image import ElfImage
from vbuild.elf.layout import Section, StringTable
from vbuild.elf.records import (
    HIDDEN,
    LITTLE_64,
    SHN_LORESERVE,
    STB_LOCAL,
    STB_WEAK,
    STV_MASK,
    FileType,
    SectionType,
    SegmentType,
    SymbolEntry,
)
from vbuild.errors import BinaryError

S = TypeVar("S", bound=Sized)

# how many symbols are kept; one takes some 300 bytes
_MOST_KEPT = 1 << 18

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
_ENTRY = 24  # bytes of Elf64_Sym
_KIND: dict[int, int] = {SymbolType.FUNC: 0, SymbolType.GNU_IFUNC: 0, SymbolType.OBJECT: 1}
_KINDS = bytes(_KIND.get(info & 0xF, 2) for info in range(256))


def symbols_of(image: ElfImage, code: tuple[CodeSection, ...]) -> "SymbolTables":
    """The symbols of *image*, functions in its *code* only; `BinaryError` if a table is damaged."""
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
            tables.append((is_dynamic, section_data(image, section), section_data(image, image.sections[names])))
    return SymbolTables.parse(tables, frames=_frames(image), code=[range(piece.address, piece.end) for piece in code])


def section_data(image: ElfImage, section: Section) -> bytes:
    return bytes(image.view(section.span))


def _frames(image: ElfImage) -> tuple[int, bytes, bytes] | None:
    """Address and bytes of the table of unwind entries, and what follows it in its segment."""
    for segment in image.segments:
        if segment.p_type == SegmentType.GNU_EH_FRAME:
            start, stop = segment.span.start, segment.span.stop
            end = next((load.span.stop for load in image.loads if start in load.span), start)
            return segment.p_vaddr, bytes(image.view(segment.span)), bytes(image.data[stop:end])
    return None


class _Row(Struct, frozen=True):
    """One row of a symbol table that says something about code or data."""

    type: int
    address: int
    size: int
    name: str
    is_exported: bool
    is_weak: bool


class SymbolTables(Struct, frozen=True):
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
        dynamic = [(data, names) for is_dynamic, data, names in tables if is_dynamic]
        facts = _KEPT.get(_key("names", *dynamic), lambda: _DynamicSymbols.parse(dynamic))
        functions, objects, others = (
            [(is_dynamic, _of_kind(data, kind), names) for is_dynamic, data, names in tables] for kind in range(3)
        )
        inside = Ranges(code)
        # not kept: labels stand in front of GPU code, too, which is elsewhere in each wheel of a family
        labels = _merged(
            row
            for row in _rows(others)
            if row.type == SymbolType.NOTYPE and row.name and row.name[0] != "$" and row.address in inside
        )
        key = _key((code, labels), *functions, frames or ())
        return cls(
            _KEPT.get(key, lambda: _functions(functions, labels, frames=frames, inside=inside)),
            _KEPT.get(_key("objects", *objects), lambda: _merged(_rows(objects))),
            facts.undefined,
            facts.defined,
            facts.exported,
        )


class _DynamicSymbols(Struct, frozen=True):
    """What ``.dynsym`` says of names: see `SymbolTables`."""

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
            for number, (name, info, other, section, address, _) in enumerate(SymbolEntry.tuples(data, LITTLE_64)):
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
    """The entries of the table *data* that are of functions, 0, of objects, 1, or of anything else, 2."""
    # the type is in the fifth byte of each
    found = data[4::_ENTRY].translate(_KINDS)
    parts = []
    stop = 0
    while (first := found.find(kind, stop)) >= 0:
        others = (place for other in range(3) if other != kind and (place := found.find(other, first)) >= 0)
        stop = min(others, default=len(found))
        parts.append(data[first * _ENTRY : stop * _ENTRY])
    return b"".join(parts)


def _rows(tables: Iterable[tuple[bool, bytes, bytes]]) -> Iterator[_Row]:
    """The rows of *tables*, is it dynamic, entries, names, that are defined and of a type that is read."""
    for is_dynamic, data, table in tables:
        names = StringTable(table)
        for name, info, other, section, address, size in SymbolEntry.tuples(data, LITTLE_64):
            kind, binding = info & 0xF, info >> 4
            if 0 < section < SHN_LORESERVE and kind in _TYPES:
                is_exported = is_dynamic and _is_exported(section, binding, other)
                yield _Row(kind, address, size, names.at(name), is_exported, binding == STB_WEAK)


def _functions(
    tables: Iterable[tuple[bool, bytes, bytes]],
    labels: tuple[Symbol, ...],
    *,
    frames: tuple[int, bytes, bytes] | None,
    inside: Ranges,
) -> tuple[Symbol, ...]:
    functions = _filled(_merged(row for row in _rows(tables) if row.address in inside), labels)
    if frames:
        functions = _filled(functions, tuple(entry for entry in _framed(*frames) if entry.address in inside))
    return functions


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


def _key(start: object, *parts: Iterable[object]) -> bytes:
    """The SHA-256 of *start* and *parts*, which are numbers, truth values and bytes."""
    hashing = hashlib.sha256(repr(start).encode())
    for part in parts:
        for one in part:
            data = one if isinstance(one, bytes) else repr(one).encode()
            hashing.update(len(data).to_bytes(8, "little"))
            hashing.update(data)
    return hashing.digest()


class KeptSymbols:
    """What was read last, *most* symbols, by the hash of what it was read from; for several threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._found: dict[bytes, Sized] = {}
        self._lock = Lock()

    def get(self, key: bytes, make: Callable[[], S]) -> S:
        """What *key* stands for, made now if it is not kept."""
        with self._lock:
            if (found := self._found.get(key)) is not None:
                return cast(S, found)
        made = make()
        with self._lock:
            self._found[key] = made
            left = sum(map(len, self._found.values()))
            while left > self._most:
                left -= len(self._found.pop(next(iter(self._found))))
        return made


_KEPT = KeptSymbols(_MOST_KEPT)
