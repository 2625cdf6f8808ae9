"""What PT_DYNAMIC says, which is all that the loader reads of a library's dependencies.

    PT_DYNAMIC     rows of tag and value; NEEDED, SONAME, RPATH, RUNPATH are offsets into the string table
    .gnu.version_r Elf64_Verneed for each library, and Elf64_Vernaux for each of its versions
    .gnu.version_d Elf64_Verdef for each version, and Elf64_Verdaux for each of its names

The tables are found as the loader finds them, so files without section headers have them, too.
https://gabi.xinuos.com/elf/08-dynamic.html
https://refspecs.linuxfoundation.org/LSB_5.0.0/LSB-Core-generic/LSB-Core-generic/symversion.html
"""

from collections.abc import Iterable, Iterator
from typing import Self, TypeVar

from msgspec import Struct

from vbuild.elf.image import DynamicRow, ElfImage
from vbuild.elf.records import (
    PATH_TAGS,
    STRING_TAGS,
    DynamicEntry,
    DynamicTag,
    ElfRecord,
    SectionType,
    SegmentType,
    SymbolEntry,
    VersionDefinition,
    VersionName,
    VersionNeed,
    VersionNeedEntry,
)
from vbuild.errors import BinaryError

R = TypeVar("R", bound=ElfRecord)

# .gnu.version numbers versions with 15 bits: a file that has more is damaged, and may take hours to read
_MOST_VERSIONS = 0x8000
_VERSION_TAGS = ((DynamicTag.VERNEED, DynamicTag.VERNEEDNUM), (DynamicTag.VERDEF, DynamicTag.VERDEFNUM))
_NUMBERED = "which .gnu.version cannot number"
# bytes of all strings of one kind: rows may share a string of a megabyte
_LONGEST = 1 << 24
_PIECE = 4096


class Relink(Struct, frozen=True):
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
        """The tag of the row of PT_DYNAMIC that *rpath* is in."""
        return DynamicTag.RUNPATH if self.is_runpath else DynamicTag.RPATH


class RequiredVersions(Struct, frozen=True):
    """The versions taken from one library: hash, flags, index and name of each; *place* has its own name's offset."""

    library: str
    versions: tuple[tuple[int, int, int, str], ...]
    place: int


class Dynamic(Struct, frozen=True, eq=False):
    """The dynamic table of *image*: its rows up to DT_NULL; the file offsets of the table, and of its strings."""

    image: ElfImage
    rows: tuple[DynamicRow, ...]
    span: range
    strings: range

    @classmethod
    def of(cls, image: ElfImage) -> Self:
        """The dynamic table of *image*, to be changed; `BinaryError` if there is none, or none with strings."""
        count = sum(segment.p_type == SegmentType.DYNAMIC for segment in image.segments)
        if count != 1:
            raise BinaryError(f"{count} PT_DYNAMIC, expected one: statically linked, it loads no library")
        table = cls.read(image)
        length, start = table.value(DynamicTag.STRSZ) or 0, table.offset(DynamicTag.STRTAB)
        if start is None or start + length > image.size:
            raise BinaryError(f"string table at {table.value(DynamicTag.STRTAB) or 0:#x}, which is not in the file")
        for tag, count_tag in _VERSION_TAGS:
            address, count = table.value(tag), table.value(count_tag) or 0
            if address is not None and table.offset(tag) is None:
                raise BinaryError(f"version table at {address:#x}, which is not in the file")
            if count > _MOST_VERSIONS:
                raise BinaryError(f"{count} records of versions, expected {_MOST_VERSIONS} at most")
        return table

    @classmethod
    def read(cls, image: ElfImage) -> Self:
        """The dynamic table of *image*, without a row if there is none, and without strings if the file has none."""
        size = DynamicEntry.size(image.encoding)
        segment = next((segment for segment in image.segments if segment.p_type == SegmentType.DYNAMIC), None)
        start, length = (segment.p_offset, segment.p_filesz) if segment else (0, 0)
        table = cls(image, image.dynamic_rows(), range(start, start + length // size * size), range(0))
        begin = min(table.offset(DynamicTag.STRTAB) or 0, image.size)
        end = min(begin + (table.value(DynamicTag.STRSZ) or 0), image.size)
        return cls(image, table.rows, table.span, range(begin, end))

    def raw(self, offset: int) -> bytes:
        """The bytes of the string at *offset* of the string table, without the zero at its end."""
        place = self.strings.start + offset
        while place < self.strings.stop:
            piece = bytes(self.image.data[place : min(place + _PIECE, self.strings.stop)])
            if (end := piece.find(b"\0")) >= 0:
                return bytes(self.image.data[self.strings.start + offset : place + end])
            place += len(piece)
        raise BinaryError(f"string at {offset:#x} has no end in {len(self.strings):#x} bytes")

    def text(self, offset: int) -> str:
        """The string at *offset* of the string table."""
        return self.raw(offset).decode("utf-8", "surrogateescape")

    def texts(self, tag: int) -> tuple[str, ...]:
        """The strings of every row with *tag*."""
        return self.decoded(row.value for row in self.rows if row.tag == tag)

    def decoded(self, offsets: Iterable[int], errors: str = "surrogateescape") -> tuple[str, ...]:
        """The strings at *offsets*; `BinaryError` if they are together far longer than any real ones."""
        found: list[str] = []
        left = _LONGEST
        for offset in offsets:
            found.append(self.raw(offset).decode("utf-8", errors))
            if (left := left - len(found[-1])) < 0:
                raise BinaryError(f"names of libraries and versions of more than {_LONGEST:#x} characters")
        return tuple(found)

    def value(self, tag: int) -> int | None:
        """The value of the last row with *tag*: of several the loader takes that one."""
        return next((row.value for row in reversed(self.rows) if row.tag == tag), None)

    def offset(self, tag: int) -> int | None:
        """The file offset of the table whose address is the value of *tag*, or None if the file does not have it."""
        address = self.value(tag)
        return None if address is None else self.image.offset(address)

    @property
    def paths(self) -> tuple[DynamicRow, ...]:
        """The rows of RPATH and RUNPATH."""
        return tuple(row for row in self.rows if row.tag in PATH_TAGS)

    def required(self, errors: str = "surrogateescape") -> tuple[RequiredVersions, ...]:
        """The version requirements, library by library."""
        found = []
        for place, need, entries in version_needs(self.image, self.offset(DynamicTag.VERNEED)):
            library, *names = self.decoded((need.vn_file, *(entry.vna_name for entry in entries)), errors)
            pairs = zip(entries, names, strict=True)
            versions = ((entry.vna_hash, entry.vna_flags, entry.vna_other, name) for entry, name in pairs)
            found.append(RequiredVersions(library, tuple(versions), place + 4))
        return tuple(found)

    def used_strings(self) -> Iterator[int]:
        """The offset of each string that something refers to, in no order."""
        yield from (row.value for row in self.rows if row.tag in STRING_TAGS)
        for section in self.image.sections:
            if section.header.sh_type == SectionType.DYNSYM:
                table = self.image.view(section.span)
                size = SymbolEntry.layout.size
                yield from (name for name, *_ in SymbolEntry.layout.iter_unpack(table[: len(table) // size * size]))
        for _, need, entries in version_needs(self.image, self.offset(DynamicTag.VERNEED)):
            yield need.vn_file
            yield from (entry.vna_name for entry in entries)
        for _, names in version_definitions(self.image, self.offset(DynamicTag.VERDEF)):
            yield from names


def version_needs(
    image: ElfImage, start: int | None
) -> Iterator[tuple[int, VersionNeed, tuple[VersionNeedEntry, ...]]]:
    """The version requirements in the table at the file offset *start*: where each is, and its versions; none for None.

    `BinaryError` if they run past the end of the file, or there are more than can be numbered.
    """
    left = _MOST_VERSIONS
    for place, need in _linked(image, start, VersionNeed):
        if (left := left - need.vn_cnt) < 0:
            raise BinaryError(f"more than {_MOST_VERSIONS} symbol versions, {_NUMBERED}")
        entries = _linked(image, place + need.vn_aux, VersionNeedEntry, most=need.vn_cnt)
        yield place, need, tuple(row for _, row in entries)


def version_definitions(image: ElfImage, start: int | None) -> Iterator[tuple[VersionDefinition, tuple[int, ...]]]:
    """The version definitions in the table at the file offset *start*, and the offsets of their names, own name first.

    `BinaryError` as of `version_needs`.
    """
    left = _MOST_VERSIONS
    for place, definition in _linked(image, start, VersionDefinition):
        if (left := left - definition.vd_cnt) < 0:
            raise BinaryError(f"more than {_MOST_VERSIONS} symbol versions, {_NUMBERED}")
        names = _linked(image, place + definition.vd_aux, VersionName, most=definition.vd_cnt)
        yield definition, tuple(name.vda_name for _, name in names)


def _linked(image: ElfImage, place: int | None, record: type[R], *, most: int | None = None) -> Iterator[tuple[int, R]]:
    """The records from *place* on, and where they are: the last field of each is how far ahead the next one is."""
    size = record.size(image.encoding)
    for _ in range(_MOST_VERSIONS + 1 if most is None else most):
        if place is None:
            return
        if place + size > image.size:
            raise BinaryError(f"symbol version record at {place:#x} runs past the end, {image.size:#x}")
        fields = next(record.tuples(image.data[place : place + size], image.encoding))
        yield place, record(*fields)
        place = place + fields[-1] if fields[-1] else None
    if most is None:
        raise BinaryError(f"more than {_MOST_VERSIONS} symbol version records, {_NUMBERED}")
