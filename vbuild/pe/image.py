r"""The headers of a PE file, its sections, and the words in them that Windows' loader fills.

    off   size  field
    0     64    DOS header; e_lfanew at 60 is where "PE\0\0" stands
    +4    20    COFF header: machine, number of sections, symbol table
    +24   112   optional header of PE32+: image base, alignments, checksum; then 8 bytes for each data directory
          40    for each section: addresses it takes, and apart from that the bytes that the file has of it

A section may have fewer bytes in the file than in memory: the loader fills the rest with zeros. Addresses include the
image base, as pointers do.
https://learn.microsoft.com/windows/win32/debug/pe-format
"""

import itertools
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum, IntFlag
from typing import Annotated, Self

from msgspec import Struct

from vbuild.binary.code import Pointer, Ranges, Sliceable
from vbuild.errors import BinaryError
from vbuild.files.records import U8, U16, U32, U64, Buffer, Ident, Packed

_DOS = b"MZ"
_SIGNATURE = b"PE\0\0"
_E_LFANEW = struct.Struct("<60xI")
_WORD = struct.Struct("<Q")
_BLOCK = struct.Struct("<II")  # the RVA of a page, and the bytes of its base relocations, these two included
_PE32_PLUS = 0x20B
_LONGEST_NAME = 8
# more than any linker makes
_MOST_SECTIONS = 1 << 10
# linkers put the headers right behind a small program for DOS
_FURTHEST = 1 << 16
_HIGHEST = 1 << 64
_SECTOR = 512

Name = Annotated[bytes, "8s"]


class Machine(IntEnum):
    AMD64 = 0x8664
    ARM64 = 0xAA64
    ARM64EC = 0xA641


class Directory(IntEnum):
    EXPORT = 0
    IMPORT = 1
    SECURITY = 4
    BASE_RELOCATION = 5
    DEBUG = 6
    DELAY_IMPORT = 13
    CLR = 14


class SectionFlag(IntFlag):
    CODE = 0x20
    DISCARDABLE = 0x200_0000
    EXECUTE = 0x2000_0000
    WRITE = 0x8000_0000


# types of base relocations
_ABSOLUTE, _DIR64 = 0, 10
_RELOCS_STRIPPED = 0x1


class CoffHeader(Packed, frozen=True):
    machine: U16
    sections: U16
    time: U32
    symbols_at: U32
    symbols: U32
    optional_size: U16
    characteristics: U16


class OptionalHeader(Packed, frozen=True):
    """Up to the data directories; *process* is how its process begins, from the subsystem to the loader flags."""

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
    versions: Ident
    image_size: U32
    headers_size: U32
    checksum: U32
    process: Annotated[bytes, "40s"]
    directories: U32


class DataDirectory(Packed, frozen=True):
    """RVA, or for certificates file offset, and size."""

    start: U32
    size: U32


class SectionHeader(Packed, frozen=True):
    """*size* bytes at the RVA *start*, of which the file has *raw_size* at *raw_at*."""

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


class DebugEntry(Packed, frozen=True):
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
    """A section of an image that is loaded to *base*."""

    index: int
    header: SectionHeader
    base: int

    @property
    def name(self) -> str:
        return self.header.name.rstrip(b"\0").decode("latin-1")

    @property
    def raw(self) -> range:
        """The file offsets of its bytes, padding included."""
        header = self.header
        return range(header.raw_at, header.raw_at + header.raw_size) if header.raw_size else range(0)

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
        return bool(self.span) and not self.header.flags & (SectionFlag.CODE | SectionFlag.EXECUTE)


class PeLayout(Struct, frozen=True, eq=False):
    """The headers of a 64-bit PE file of *size* bytes; the COFF header is at the offset *coff_at*."""

    size: int
    coff_at: int
    coff: CoffHeader
    optional: OptionalHeader
    directories: tuple[DataDirectory, ...]
    sections: tuple[PeSection, ...]

    @classmethod
    def read(cls, source: Sliceable) -> "PeLayout":
        """The headers in *source*; `BinaryError` unless its sections rise without an overlap."""
        coff_at = coff_place(source)
        start = coff_at + CoffHeader.layout.size
        coff = CoffHeader.parse(bytes(source[coff_at:start]))
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
        return PeLayout(len(source), coff_at, coff, optional, directories, sections)

    @property
    def is_fixed(self) -> bool:
        return bool(self.coff.characteristics & _RELOCS_STRIPPED)

    @property
    def end(self) -> int:
        return max((section.raw.stop for section in self.sections if section.raw), default=self.optional.headers_size)

    def named(self, name: str) -> tuple[PeSection, ...]:
        """The sections called *name*, which linkers cut to eight letters."""
        return tuple(section for section in self.sections if section.name == name[:_LONGEST_NAME])

    def offset(self, address: int) -> int | None:
        index = bisect_right(self.sections, address, key=lambda section: section.addresses.start) - 1
        if index < 0:
            return None
        section = self.sections[index]
        offset = section.span.start + address - section.addresses.start
        return offset if offset in section.span else None

    def address(self, offset: int) -> int | None:
        for section in self.sections:
            if offset in section.span:
                return section.addresses.start + offset - section.span.start
        return None

    def directory(self, number: Directory) -> DataDirectory | None:
        entry = self.directories[number] if number < len(self.directories) else None
        return entry if entry and entry.start and entry.size else None

    def table(self, number: Directory) -> range:
        """The file offsets of a data directory's table, in one section."""
        if not (directory := self.directory(number)):
            return range(0)
        start = self.offset(self.optional.image_base + directory.start)
        end = self.offset(self.optional.image_base + directory.start + directory.size - 1)
        if start is None or end != start + directory.size - 1:
            raise BinaryError(
                f"{number.name.lower()} directory at RVA {directory.start:#x}, {directory.size:#x} bytes, is not in "
                "the file"
            )
        return range(start, start + directory.size)


class PeImage(PeLayout, frozen=True, eq=False):
    data: memoryview

    @classmethod
    def parse(cls, data: Buffer) -> Self:
        view = memoryview(data).cast("B")
        layout = PeLayout.read(view)
        return cls(layout.size, layout.coff_at, layout.coff, layout.optional, layout.directories, layout.sections, view)

    def view(self, span: range) -> memoryview:
        return self.data[span.start : span.stop]

    def pointers(self, ranges: Sequence[range]) -> tuple[Pointer, ...]:
        """Every word that the loader fills with an address in one of *ranges*; `BinaryError` for damage."""
        wanted = Ranges(ranges)
        pointers = []
        starts = [section.addresses.start for section in self.sections]
        for place in self.relocated() if wanted else ():
            section = self.sections[max(bisect_right(starts, place) - 1, 0)]
            offset = section.span.start + place - section.addresses.start
            if offset not in section.span or offset + _WORD.size > section.span.stop:
                raise BinaryError(f"base relocation of {place:#x}, where the file has no word")
            target = _WORD.unpack_from(self.data, offset)[0]
            if wanted.low <= target < wanted.high and target in wanted:
                pointers.append(Pointer(place, target))
        return tuple(pointers)

    def padding(self, gaps: Sequence[range]) -> frozenset[range]:
        """The *gaps* (addresses) with only zeros and no pointer to them."""
        empty = [
            gap for gap in gaps if (at := self.offset(gap.start)) is None or not any(self.data[at : at + len(gap)])
        ]
        targets = [pointer.target for pointer in self.pointers(empty)]
        return frozenset(gap for gap in empty if not any(target in gap for target in targets))

    def relocated(self) -> Iterator[int]:
        table = self.table(Directory.BASE_RELOCATION)
        at = table.start
        while at + _BLOCK.size <= table.stop:
            page, size = _BLOCK.unpack_from(self.data, at)
            if not _BLOCK.size <= size <= table.stop - at or size % 2:
                raise BinaryError(f"block of base relocations at {at:#x} of {size:#x} bytes")
            for (word,) in struct.iter_unpack("<H", self.data[at + _BLOCK.size : at + size]):
                kind = word >> 12
                if kind == _DIR64:
                    yield self.optional.image_base + page + (word & 0xFFF)
                elif kind != _ABSOLUTE:
                    raise BinaryError(f"base relocation of type {kind} at {at:#x}, expected DIR64 (10)")
            at += size

    def debug_entries(self) -> tuple[tuple[int, DebugEntry], ...]:
        table = self.table(Directory.DEBUG)
        size = DebugEntry.layout.size
        return tuple((at, DebugEntry.parse(self.data, at)) for at in range(table.start, table.stop - size + 1, size))


def is_64_bit(head: Callable[[int], bytes]) -> bool:
    """*head* gives that many of a file's first bytes, or more."""
    start = head(_E_LFANEW.size)
    if not start.startswith(_DOS) or len(start) < _E_LFANEW.size:
        return False
    (pe_at,) = _E_LFANEW.unpack_from(start)
    magic_at = pe_at + len(_SIGNATURE) + CoffHeader.layout.size
    header = head(magic_at + 2)[pe_at : magic_at + 2] if pe_at < _FURTHEST else b""
    return header.startswith(_SIGNATURE) and header[-2:] == _PE32_PLUS.to_bytes(2, "little")


def coff_place(source: Sliceable) -> int:
    """`BinaryError` unless *source* is a PE file."""
    head = bytes(source[: _E_LFANEW.size])
    if head[:2] != _DOS or len(head) < _E_LFANEW.size:
        raise BinaryError(f"not a PE file: begins with {head[:2].hex(' ') or 'nothing'}, expected 4d 5a")
    (pe_at,) = _E_LFANEW.unpack(head)
    if bytes(source[pe_at : pe_at + 4]) != _SIGNATURE:
        raise BinaryError(f"not a PE file: no PE\\0\\0 at {pe_at:#x}, where its DOS header leads")
    return int(pe_at) + len(_SIGNATURE)


def _check_sections(sections: Sequence[PeSection], optional: OptionalHeader, *, table_end: int, file_size: int) -> None:
    unit = optional.file_alignment
    if unit < 1 or unit & (unit - 1) or optional.image_base >= _HIGHEST:
        raise BinaryError(f"file alignment {unit:#x}: expected a power of two")
    # Windows refuses others
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
