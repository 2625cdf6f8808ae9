r"""The headers of a PE file, its sections, and the words in them that Windows' loader fills.

    off   size  field
    0     64    DOS header; e_lfanew at 60 is where "PE\0\0" stands
    +4    20    COFF header: machine, number of sections, symbol table
    +24   112   optional header of PE32+: image base, alignments, checksum; then 8 bytes for each data directory
          40    for each section: addresses it takes, and apart from that the bytes that the file has of it

A section may have fewer bytes in the file than in memory: the loader fills the rest with zeros. Addresses here are
virtual ones with the image base, as pointers have them; a name is cut to eight letters, as linkers do.
https://learn.microsoft.com/windows/win32/debug/pe-format
"""

import itertools
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum, IntFlag
from typing import Annotated, Self

from msgspec import Struct

from vbuild.binary.image import Pointer, Ranges, Sliceable
from vbuild.errors import BinaryError
from vbuild.files.records import U8, U16, U32, U64, Buffer, Packed

_DOS = b"MZ"
_SIGNATURE = b"PE\0\0"
_E_LFANEW = struct.Struct("<60xI")
_WORD = struct.Struct("<Q")
_BLOCK = struct.Struct("<II")  # the RVA of a page, and the bytes of its base relocations, these two included
_PE32_PLUS = 0x20B
_LONGEST_NAME = 8
# no file that a linker made has as many; each costs time
_MOST_SECTIONS = 1 << 10
# linkers put the headers right behind a small program for DOS
_FURTHEST = 1 << 16
_HIGHEST = 1 << 64
_SECTOR = 512

Name = Annotated[bytes, "8s"]


class Machine(IntEnum):
    """Machine of the COFF header, those that wheels are for."""

    I386 = 0x14C
    AMD64 = 0x8664
    ARM64 = 0xAA64
    ARM64EC = 0xA641


class Directory(IntEnum):
    """The places of data directories that matter here."""

    EXPORT = 0
    IMPORT = 1
    SECURITY = 4
    BASE_RELOCATION = 5
    DEBUG = 6
    DELAY_IMPORT = 13
    CLR = 14


class SectionFlag(IntFlag):
    """Characteristics of a section."""

    CODE = 0x20
    INITIALIZED_DATA = 0x40
    DISCARDABLE = 0x200_0000
    EXECUTE = 0x2000_0000
    WRITE = 0x8000_0000


class _BaseRelocation(IntEnum):
    """The types of base relocations that a 64-bit file has."""

    ABSOLUTE = 0
    DIR64 = 10


_RELOCS_STRIPPED = 0x1


class PeRecord(Packed, frozen=True):
    """A record of a PE file; `BinaryError` if it is cut short."""

    REFUSAL = BinaryError


class CoffHeader(PeRecord, frozen=True):
    """What says how many sections there are, and where the symbols of debuggers lie."""

    machine: U16
    sections: U16
    time: U32
    symbols_at: U32
    symbols: U32
    optional_size: U16
    characteristics: U16


class OptionalHeader(PeRecord, frozen=True):
    """The optional header of a 64-bit file, up to its data directories."""

    magic: U16
    linker_major: U8
    linker_minor: U8
    code_size: U32
    initialized_size: U32
    uninitialized_size: U32
    entry: U32
    code_base: U32
    image_base: U64
    section_alignment: U32
    file_alignment: U32
    os_major: U16
    os_minor: U16
    image_major: U16
    image_minor: U16
    subsystem_major: U16
    subsystem_minor: U16
    version: U32
    image_size: U32
    headers_size: U32
    checksum: U32
    subsystem: U16
    dll_characteristics: U16
    stack_reserve: U64
    stack_commit: U64
    heap_reserve: U64
    heap_commit: U64
    loader_flags: U32
    directories: U32


class DataDirectory(PeRecord, frozen=True):
    """Where a table is: its RVA, or for certificates its file offset; and its size."""

    start: U32
    size: U32


class SectionHeader(PeRecord, frozen=True):
    """A section: *size* bytes at the RVA *start*, of which the file has *raw_size* at *raw_at*."""

    name: Name
    size: U32
    start: U32
    raw_size: U32
    raw_at: U32
    relocations_at: U32
    lines_at: U32
    relocations: U16
    lines: U16
    flags: U32


class DebugEntry(PeRecord, frozen=True):
    """A row of the debug directory; *raw_at* is a file offset."""

    characteristics: U32
    time: U32
    major: U16
    minor: U16
    type: U32
    size: U32
    start: U32
    raw_at: U32


class PeSection(Struct, frozen=True):
    """One section: its header, and the address that its image is loaded to."""

    index: int
    header: SectionHeader
    base: int

    @property
    def name(self) -> str:
        return self.header.name.rstrip(b"\0").decode("latin-1")

    @property
    def raw(self) -> range:
        """The file offsets of its bytes, padding included."""
        return (
            range(self.header.raw_at, self.header.raw_at + self.header.raw_size) if self.header.raw_size else range(0)
        )

    @property
    def span(self) -> range:
        """The file offsets of its bytes that are loaded."""
        raw = self.raw
        return raw[: self.header.size] if self.header.size else raw

    @property
    def addresses(self) -> range:
        start = self.base + self.header.start
        return range(start, start + (self.header.size or self.header.raw_size))

    @property
    def is_loaded(self) -> bool:
        return True

    @property
    def is_data(self) -> bool:
        """Whether it is loaded from the file, and is not code."""
        return bool(self.span) and not self.header.flags & (SectionFlag.CODE | SectionFlag.EXECUTE)


class PeLayout(Struct, frozen=True, eq=False):
    """The headers of a 64-bit PE file of *size* bytes; *place* is the offset of its COFF header."""

    size: int
    place: int
    coff: CoffHeader
    optional: OptionalHeader
    directories: tuple[DataDirectory, ...]
    sections: tuple[PeSection, ...]

    @classmethod
    def read(cls, source: Sliceable) -> "PeLayout":
        """The headers in *source*.

        `BinaryError` unless its sections lie inside the file, and rise without an overlap in the file and in memory.
        """
        place = coff_place(source)
        coff = CoffHeader.parse(bytes(source[place : place + CoffHeader.layout.size]))
        start = place + CoffHeader.layout.size
        if (magic := int.from_bytes(bytes(source[start : start + 2]), "little")) != _PE32_PLUS:
            raise BinaryError(f"optional header of magic {magic:#x}: expected {_PE32_PLUS:#x} (64-bit, PE32+)")
        table = start + coff.optional_size
        optional = OptionalHeader.parse(bytes(source[start : min(table, start + OptionalHeader.layout.size)]))
        start += OptionalHeader.layout.size
        rows = bytes(source[start : min(table, start + DataDirectory.layout.size * optional.directories)])
        if len(rows) != DataDirectory.layout.size * optional.directories or coff.sections > _MOST_SECTIONS:
            raise BinaryError(f"{optional.directories} data directories and {coff.sections} sections: too many")
        directories = tuple(DataDirectory(*row) for row in DataDirectory.layout.iter_unpack(rows))
        rows = bytes(source[table : table + SectionHeader.layout.size * coff.sections])
        if len(rows) != SectionHeader.layout.size * coff.sections:
            raise BinaryError(f"section table at {table:#x} runs past the end, {len(source):#x}")
        headers = (SectionHeader(*row) for row in SectionHeader.layout.iter_unpack(rows))
        sections = tuple(PeSection(index, header, optional.image_base) for index, header in enumerate(headers))
        _check_sections(sections, optional, table_end=table + len(rows), file_size=len(source))
        return PeLayout(len(source), place, coff, optional, directories, sections)

    @property
    def is_fixed(self) -> bool:
        """Whether it is a program that is loaded where it says: no pointer in it has to be filled."""
        return bool(self.coff.characteristics & _RELOCS_STRIPPED)

    @property
    def end(self) -> int:
        """The file offset behind the last section."""
        return max((section.raw.stop for section in self.sections if section.raw), default=self.optional.headers_size)

    def named(self, name: str) -> tuple[PeSection, ...]:
        """Every section called *name*, or by its first eight letters."""
        return tuple(section for section in self.sections if section.name == name[:_LONGEST_NAME])

    def offset(self, address: int) -> int | None:
        """The file offset of the byte that is loaded to *address*; None if the file has no such byte."""
        index = bisect_right(self.sections, address, key=lambda section: section.addresses.start) - 1
        if index < 0:
            return None
        section = self.sections[index]
        place = section.span.start + address - section.addresses.start
        return place if place in section.span else None

    def address(self, offset: int) -> int | None:
        """The address to which the byte at *offset* of the file is loaded; None if it is not."""
        for section in self.sections:
            if offset in section.span:
                return section.addresses.start + offset - section.span.start
        return None

    def directory(self, which: Directory) -> DataDirectory | None:
        """The data directory *which*, or None if it is empty."""
        found = self.directories[which] if which < len(self.directories) else None
        return found if found and found.start and found.size else None

    def table(self, which: Directory) -> range:
        """The file offsets of what the data directory *which* names; `BinaryError` unless one section has all of it."""
        if not (directory := self.directory(which)):
            return range(0)
        start = self.offset(self.optional.image_base + directory.start)
        end = self.offset(self.optional.image_base + directory.start + directory.size - 1)
        if start is None or end != start + directory.size - 1:
            raise BinaryError(
                f"{which.name.lower()} directory at RVA {directory.start:#x}, {directory.size:#x} bytes, is not in the "
                "file"
            )
        return range(start, start + directory.size)


class PeImage(PeLayout, frozen=True, eq=False):
    """A 64-bit PE file: its headers, and its bytes, which are never copied."""

    data: memoryview

    @classmethod
    def parse(cls, data: Buffer) -> Self:
        """The 64-bit PE file *data*; `BinaryError` as `PeLayout.read`."""
        view = memoryview(data).cast("B")
        layout = PeLayout.read(view)
        return cls(layout.size, layout.place, layout.coff, layout.optional, layout.directories, layout.sections, view)

    def view(self, span: range) -> memoryview:
        """The bytes at the file offsets *span*."""
        return self.data[span.start : span.stop]

    def pointers(self, ranges: Sequence[range]) -> tuple[Pointer, ...]:
        """Every word that the loader fills with an address in one of *ranges*, by the base relocations.

        `BinaryError` if the table of these is damaged, or has a type that a 64-bit file has not.
        """
        wanted = Ranges(ranges)
        return tuple(self._pointers(wanted)) if wanted else ()

    def padding(self, gaps: Sequence[range]) -> frozenset[range]:
        """Those of the addresses *gaps* of the file at which there is nothing but zeros, and to which nothing leads."""
        empty = [
            gap for gap in gaps if (at := self.offset(gap.start)) is None or not any(self.data[at : at + len(gap)])
        ]
        led_to = [pointer.target for pointer in self.pointers(empty)]
        return frozenset(gap for gap in empty if not any(target in gap for target in led_to))

    def _pointers(self, wanted: Ranges) -> Iterator[Pointer]:
        places = [section.addresses.start for section in self.sections]
        for place in self.relocated():
            section = self.sections[max(bisect_right(places, place) - 1, 0)]
            at = section.span.start + place - section.addresses.start
            if at not in section.span or at + _WORD.size > section.span.stop:
                raise BinaryError(f"base relocation of {place:#x}, where the file has no word")
            target = _WORD.unpack_from(self.data, at)[0]
            if wanted.low <= target < wanted.high and target in wanted:
                yield Pointer(place, target)

    def relocated(self) -> Iterator[int]:
        """The addresses of the words that the loader adds its base to."""
        table = self.table(Directory.BASE_RELOCATION)
        at = table.start
        while at + _BLOCK.size <= table.stop:
            page, size = _BLOCK.unpack_from(self.data, at)
            if not _BLOCK.size <= size <= table.stop - at or size % 2:
                raise BinaryError(f"block of base relocations at {at:#x} of {size:#x} bytes")
            for (word,) in struct.iter_unpack("<H", self.data[at + _BLOCK.size : at + size]):
                kind = word >> 12
                if kind == _BaseRelocation.DIR64:
                    yield self.optional.image_base + page + (word & 0xFFF)
                elif kind != _BaseRelocation.ABSOLUTE:
                    raise BinaryError(f"base relocation of type {kind} at {at:#x}, expected DIR64 (10)")
            at += size

    def debug_entries(self) -> tuple[tuple[int, DebugEntry], ...]:
        """The rows of the debug directory, each with its file offset."""
        table = self.table(Directory.DEBUG)
        size = DebugEntry.layout.size
        return tuple((at, DebugEntry.parse(self.data, at)) for at in range(table.start, table.stop - size + 1, size))


def is_64_bit(head: Callable[[int], bytes]) -> bool:
    """Whether a file is a 64-bit PE file; *head* gives so many of its first bytes, or more."""
    start = head(_E_LFANEW.size)
    if not start.startswith(_DOS) or len(start) < _E_LFANEW.size:
        return False
    (place,) = _E_LFANEW.unpack_from(start)
    magic = place + len(_SIGNATURE) + CoffHeader.layout.size
    found = head(magic + 2)[place : magic + 2] if place < _FURTHEST else b""
    return found.startswith(_SIGNATURE) and found[-2:] == _PE32_PLUS.to_bytes(2, "little")


def coff_place(source: Sliceable) -> int:
    """The offset of the COFF header in the PE file *source*; `BinaryError` if it is none."""
    head = bytes(source[: _E_LFANEW.size])
    if head[:2] != _DOS or len(head) < _E_LFANEW.size:
        raise BinaryError(f"not a PE file: begins with {head[:2].hex(' ') or 'nothing'}, expected 4d 5a")
    (place,) = _E_LFANEW.unpack(head)
    if bytes(source[place : place + 4]) != _SIGNATURE:
        raise BinaryError(f"not a PE file: no PE\\0\\0 at {place:#x}, where its DOS header leads")
    return int(place) + len(_SIGNATURE)


def _check_sections(sections: Sequence[PeSection], optional: OptionalHeader, *, table_end: int, file_size: int) -> None:
    unit = optional.file_alignment
    if unit < 1 or unit & (unit - 1) or optional.image_base >= _HIGHEST:
        raise BinaryError(f"file alignment {unit:#x}: expected a power of two")
    # Windows refuses others: it finds sections by sectors, or where they are in memory
    if unit % _SECTOR and unit != optional.section_alignment:
        raise BinaryError(
            f"file alignment {unit:#x}: expected a multiple of {_SECTOR:#x}, or the alignment in memory, "
            f"{optional.section_alignment:#x}"
        )
    for section in sections:
        if section.raw.stop > file_size:
            raise BinaryError(f"section {section.name} runs to {section.raw.stop:#x}, past the end, {file_size:#x}")
        if section.raw and section.raw.start < table_end:
            raise BinaryError(f"section {section.name} at {section.raw.start:#x} lies over the headers")
    for one, other in itertools.pairwise(sections):
        if one.addresses.stop > other.addresses.start:
            raise BinaryError(f"sections {one.name} and {other.name} overlap in memory")
    filled = sorted((section for section in sections if section.raw), key=lambda section: section.raw.start)
    for one, other in itertools.pairwise(filled):
        if one.raw.stop > other.raw.start:
            raise BinaryError(f"sections {one.name} and {other.name} overlap in the file")
