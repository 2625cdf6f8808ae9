"""What the loader reads of a library's dependencies, and what is to become of it.

    PT_DYNAMIC     rows of tag and value; NEEDED, SONAME, RPATH, RUNPATH are offsets into the string table
    .gnu.version_r Elf64_Verneed for each library, and Elf64_Vernaux for each of its versions
    .gnu.version_d Elf64_Verdef for each version, and Elf64_Verdaux for each of its names

https://gabi.xinuos.com/elf/08-dynamic.html
https://refspecs.linuxfoundation.org/LSB_5.0.0/LSB-Core-generic/LSB-Core-generic/symversion.html
"""

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Self

from vbuild.elf.image import ElfImage
from vbuild.elf.records import (
    PATH_TAGS,
    STRING_TAGS,
    DynamicEntry,
    DynamicTag,
    SectionType,
    SegmentType,
    SymbolEntry,
    VersionDefinition,
    VersionName,
    VersionNeed,
    VersionNeedEntry,
)
from vbuild.errors import SurgeryError

# .gnu.version numbers them with 15 bits
_MOST_VERSIONS = 0x8000


@dataclass(frozen=True, slots=True)
class Relink:
    """What a library is to need from now on, and where the loader is to look for it."""

    renamed: tuple[tuple[str, str], ...] = ()
    """Old and new name, in NEEDED and in the version requirements."""
    added: tuple[str, ...] = ()
    """Further NEEDED."""
    rpath: tuple[str, ...] | None = None
    """The whole new DT_RPATH; () for none; None leaves RPATH and RUNPATH alone."""
    is_runpath: bool = False
    """Whether *rpath* becomes the DT_RUNPATH instead, which libraries that it loads do not inherit."""
    soname: str | None = None
    """The new SONAME; None leaves it alone."""

    @property
    def path_tag(self) -> DynamicTag:
        """What the row of PT_DYNAMIC says that *rpath* is in."""
        return DynamicTag.RUNPATH if self.is_runpath else DynamicTag.RPATH


@dataclass(frozen=True, slots=True)
class DynamicRow:
    """One entry of PT_DYNAMIC, and the file offset it is at."""

    tag: int
    value: int
    offset: int


@dataclass(frozen=True, slots=True)
class Required:
    """The versions taken from one library, hash, flags, index and name of each; *place* has its own name's offset."""

    library: str
    versions: tuple[tuple[int, int, int, str], ...]
    place: int


@dataclass(frozen=True, slots=True, eq=False)
class Dynamic:
    """The dynamic table of *image*: its rows up to DT_NULL; the file offsets of the table, and of its strings."""

    image: ElfImage
    rows: tuple[DynamicRow, ...]
    span: range
    strings: range

    @classmethod
    def of(cls, image: ElfImage) -> Self:
        """The dynamic table of *image*; `SurgeryError` where it has none, or none with a string table."""
        segments = [segment for segment in image.segments if segment.p_type == SegmentType.DYNAMIC]
        if len(segments) != 1:
            raise SurgeryError(f"{len(segments)} PT_DYNAMIC, expected one: statically linked, it loads no library")
        size = DynamicEntry.layout.size
        span = range(segments[0].p_offset, segments[0].p_offset + segments[0].p_filesz // size * size)
        rows = tuple(_rows(image, span))
        values = {row.tag: row.value for row in rows}
        length, start = values.get(DynamicTag.STRSZ, 0), image.offset(values.get(DynamicTag.STRTAB, 0))
        if DynamicTag.STRTAB not in values or start is None or start + length > image.size:
            raise SurgeryError(f"string table at {values.get(DynamicTag.STRTAB, 0):#x}, which is not in the file")
        return cls(image, rows, span, range(start, start + length))

    def text(self, offset: int) -> str:
        """The string at *offset* of the string table."""
        return self.raw(offset).decode("utf-8", "surrogateescape")

    def raw(self, offset: int) -> bytes:
        """The bytes of the string at *offset* of the string table, without the zero at its end."""
        place = self.strings.start + offset
        while place < self.strings.stop:
            piece = bytes(self.image.data[place : min(place + 4096, self.strings.stop)])
            if (end := piece.find(b"\0")) >= 0:
                return bytes(self.image.data[self.strings.start + offset : place + end])
            place += len(piece)
        raise SurgeryError(f"string at {offset:#x} has no end in {len(self.strings):#x} bytes")

    def texts(self, tag: int) -> tuple[str, ...]:
        """The strings of every row with *tag*."""
        return tuple(self.text(row.value) for row in self.rows if row.tag == tag)

    def value(self, tag: int) -> int | None:
        """The value of the first row with *tag*."""
        return next((row.value for row in self.rows if row.tag == tag), None)

    @property
    def paths(self) -> tuple[DynamicRow, ...]:
        """The rows of RPATH and RUNPATH."""
        return tuple(row for row in self.rows if row.tag in PATH_TAGS)

    def required(self) -> tuple[Required, ...]:
        """The version requirements, library by library."""
        found = []
        for place, entries in self._versions(DynamicTag.VERNEED, DynamicTag.VERNEEDNUM):
            versions = []
            for at in entries:
                digest, flags, other, name, _ = VersionNeedEntry.layout.unpack_from(self.image.data, at)
                versions.append((digest, flags, other, self.text(name)))
            found.append(Required(self.text(self._number(place + 4)), tuple(versions), place + 4))
        return tuple(found)

    def used_strings(self) -> Iterator[int]:
        """The offset of each string that something refers to, in no order."""
        yield from (row.value for row in self.rows if row.tag in STRING_TAGS)
        for section in self.image.sections:
            if section.header.sh_type == SectionType.DYNSYM:
                table = self.image.view(section.span)
                size = SymbolEntry.layout.size
                yield from (name for name, *_ in SymbolEntry.layout.iter_unpack(table[: len(table) // size * size]))
        for place, entries in self._versions(DynamicTag.VERNEED, DynamicTag.VERNEEDNUM):
            yield self._number(place + 4)
            yield from (self._number(at + 8) for at in entries)
        for _, entries in self._versions(DynamicTag.VERDEF, DynamicTag.VERDEFNUM):
            yield from map(self._number, entries)

    def _number(self, place: int) -> int:
        return int.from_bytes(self.image.data[place : place + 4], "little")

    def _versions(self, tag: int, count_tag: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """The file offsets of each record of the version table under *tag*, and of the entries that belong to it."""
        if (address := self.value(tag)) is None:
            return
        if (start := self.image.offset(address)) is None:
            raise SurgeryError(f"version table at {address:#x}, which is not in the file")
        is_taken = tag == DynamicTag.VERNEED
        record, entry = (
            (VersionNeed.layout, VersionNeedEntry.layout)
            if is_taken
            else (VersionDefinition.layout, VersionName.layout)
        )
        seen = 0
        for place in self._linked(start, self.value(count_tag) or 0, record):
            fields = record.unpack_from(self.image.data, place)
            count, ahead = (fields[1], fields[3]) if is_taken else (fields[3], fields[5])
            seen += count
            if seen > _MOST_VERSIONS:
                raise SurgeryError(f"{seen} versions at {start:#x}, expected {_MOST_VERSIONS} at most")
            yield place, tuple(self._linked(place + ahead, count, entry))

    def _linked(self, place: int, count: int, record: Struct) -> Iterator[int]:
        """The file offsets of *count* records, of which each says in its last word how far ahead the next one is."""
        if count > _MOST_VERSIONS:
            raise SurgeryError(f"{count} version records at {place:#x}, expected {_MOST_VERSIONS} at most")
        for _ in range(count):
            if place + record.size > self.image.size:
                raise SurgeryError(f"version record at {place:#x} runs past the end, {self.image.size:#x}")
            yield place
            ahead = self._number(place + record.size - 4)
            if not ahead:
                return
            place += ahead


def _rows(image: ElfImage, span: range) -> Iterator[DynamicRow]:
    for number, (tag, value) in enumerate(DynamicEntry.layout.iter_unpack(image.view(span))):
        if tag == DynamicTag.NULL:
            return
        yield DynamicRow(tag, value, span.start + number * DynamicEntry.layout.size)
