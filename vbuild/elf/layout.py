"""Where everything lies in an ELF file: headers only, so a mapped file of 800 MB costs nothing.

    ElfLayout.read(source)    files of 32 and 64 bits and of either byte order; refuses what it cannot read
    ElfLayout.parse(source)   64-bit little-endian files; also refuses headers that contradict each other or the file

    | e_phoff | program headers -> segments: what the loader maps, address = offset + a constant per PT_LOAD |
    | e_shoff | section headers -> sections: what linkers, strip and debuggers see                           |

The source is anything that can be sliced. https://gabi.xinuos.com/elf/
"""

import itertools
from collections.abc import Iterator
from typing import TypeVar

from msgspec import Struct

from vbuild.binary.image import Sliceable
from vbuild.elf.records import (
    BIG_ENDIAN,
    CLASS_32,
    CLASS_64,
    LITTLE_64,
    LITTLE_ENDIAN,
    MAGIC,
    PN_XNUM,
    SHN_XINDEX,
    ElfRecord,
    Encoding,
    FileHeader,
    ProgramHeader,
    SectionFlag,
    SectionHeader,
    SectionType,
    SegmentType,
)
from vbuild.errors import BinaryError

R = TypeVar("R", bound=ElfRecord)

_ENCODINGS = {
    (size, order): Encoding(bits, code)
    for size, bits in ((CLASS_32, 32), (CLASS_64, 64))
    for order, code in ((LITTLE_ENDIAN, "<"), (BIG_ENDIAN, ">"))
}
# plain numbers: of a flag of an enumeration, & takes ten times as long, and files have many sections
_ALLOC, _EXECINSTR = int(SectionFlag.ALLOC), int(SectionFlag.EXECINSTR)
_WITHOUT_BYTES = frozenset({int(SectionType.NOBITS), int(SectionType.NULL)})
_LONGEST_NAMES = 1 << 24
# of a library or program that is cut; and of any file, a kernel among them
_HIGHEST_ADDRESS, _END_OF_MEMORY = 1 << 62, 1 << 64
# characters of all names that are read of a string table: this many, and so many more for each character of the table
_PLENTY, _SHARED = 1 << 23, 8
_SYMBOLS = (".symtab", ".strtab", ".symtab_shndx")
_DEBUG = (".debug_", ".zdebug_", ".gnu.debuglto_", ".gdb_index", ".stab")


class StringTable:
    """The strings of a table; `BinaryError` if those that are read are together far longer than the table.

    Symbols may share a string, or the end of one: ten thousand names of a file of a megabyte could take gigabytes.
    """

    def __init__(self, table: bytes, *, what: str = "symbol name") -> None:
        self._table, self._what = table, what
        self._left = _PLENTY + _SHARED * len(table)

    def at(self, offset: int) -> str:
        """The string that begins at *offset*."""
        end = self._table.find(b"\0", offset)
        if end < 0:
            raise BinaryError(f"{self._what} at {offset:#x} runs past its table, {len(self._table):#x}")
        self._left -= end - offset
        if self._left < 0:
            raise BinaryError(f"names far longer than their table, {len(self._table):#x}, in which they lie")
        return self._table[offset:end].decode("utf-8", "backslashreplace")


class Section(Struct, frozen=True):
    """One section: its header, its name, and where it is in the file and in memory."""

    index: int
    name: str
    header: SectionHeader

    @property
    def size(self) -> int:
        """Its bytes in the file; none for SHT_NOBITS."""
        return 0 if self.header.sh_type in _WITHOUT_BYTES else self.header.sh_size

    @property
    def span(self) -> range:
        """The file offsets of its bytes; empty for SHT_NOBITS."""
        return range(self.header.sh_offset, self.header.sh_offset + self.size)

    @property
    def addresses(self) -> range:
        """The virtual addresses it takes up; empty if it is not loaded."""
        return range(self.header.sh_addr, self.header.sh_addr + (self.header.sh_size if self.is_loaded else 0))

    @property
    def is_loaded(self) -> bool:
        """Whether it is part of the process's memory (SHF_ALLOC)."""
        return bool(self.header.sh_flags & _ALLOC)

    @property
    def is_data(self) -> bool:
        """Whether it is loaded from the file, and is not code."""
        is_from_file = self.header.sh_type == SectionType.PROGBITS and self.is_loaded
        return is_from_file and not self.header.sh_flags & _EXECINSTR

    @property
    def is_symbols(self) -> bool:
        """Whether it holds names that only debuggers and profilers read."""
        return not self.is_loaded and self.name in _SYMBOLS

    @property
    def is_debug(self) -> bool:
        return not self.is_loaded and self.name.startswith(_DEBUG)


class ElfLayout(Struct, frozen=True):
    """The headers of an ELF file of *size* bytes."""

    size: int
    header: FileHeader
    segments: tuple[ProgramHeader, ...]
    sections: tuple[Section, ...]

    @classmethod
    def read(cls, source: Sliceable) -> "ElfLayout":
        """The headers in *source*, of 32 or 64 bits, of either byte order; `BinaryError` if they cannot be read."""
        header = _header(source)
        segments_count, sections_count, names = _counts(source, header)
        segments = _segments(source, header, segments_count)
        sections = _named(source, _sections(source, header, sections_count), names)
        # pieces that lie over one another so often that reading each would never end
        kept = (each.header.sh_size for each in sections if each.header.sh_type != SectionType.NOBITS)
        loaded = (segment.p_filesz for segment in segments if segment.p_type == SegmentType.LOAD)
        if (total := max(sum(kept), sum(loaded))) > 2 * len(source):
            raise BinaryError(f"pieces of {total:#x} bytes together in a file of {len(source):#x}")
        for number, segment in enumerate(segments):
            if segment.p_type != SegmentType.NULL:
                what = f"segment {number} of type {segment.p_type:#x}"
                _check_address(segment.p_vaddr, segment.p_memsz, what, end=_END_OF_MEMORY)
        return ElfLayout(len(source), header, segments, sections)

    @classmethod
    def parse(cls, source: Sliceable) -> "ElfLayout":
        """The headers in *source*, of 64 bits, little-endian.

        `BinaryError` unless everything that they name lies in the file, and no two sections share a byte.
        """
        header = _header(source)
        if _encoding(header) != LITTLE_64:
            found = f"class {header.e_ident[4]:#x}, byte order {header.e_ident[5]:#x}"
            raise BinaryError(f"ELF of {found}: expected {CLASS_64:#x} and {LITTLE_ENDIAN:#x} (64-bit little-endian)")
        if header.e_phnum == PN_XNUM or (header.e_shoff and not header.e_shnum):
            raise BinaryError("more headers than the file header can count")
        segments = _segments(source, header, header.e_phnum)
        _check_segments(segments, len(source))
        nameless = _sections(source, header, header.e_shnum if header.e_shoff else 0)
        for section in nameless:
            _check_inside(section.span, len(source), f"section {section.index}")
            _check_address(section.header.sh_addr, section.header.sh_size, f"section {section.index}")
        sections = _named(source, nameless, header.e_shstrndx)
        _check_apart(sections, header)
        return ElfLayout(len(source), header, segments, sections)

    @property
    def encoding(self) -> Encoding:
        """How the file has its numbers."""
        return _encoding(self.header)

    @property
    def machine(self) -> int:
        """e_machine"""
        return self.header.e_machine

    @property
    def loads(self) -> tuple[ProgramHeader, ...]:
        """The PT_LOAD segments by address."""
        found = (segment for segment in self.segments if segment.p_type == SegmentType.LOAD)
        return tuple(sorted(found, key=lambda segment: segment.p_vaddr))

    def section(self, name: str) -> Section | None:
        """The first section called *name*."""
        return next((section for section in self.sections if section.name == name), None)

    def named(self, name: str) -> tuple[Section, ...]:
        """Every section called *name*."""
        return tuple(section for section in self.sections if section.name == name)

    def load_of(self, addresses: range) -> ProgramHeader | None:
        """The PT_LOAD segment that all of *addresses* are in, the lowest of several; None if there is none."""
        for load in self.loads:
            if load.p_vaddr <= addresses.start and addresses.stop <= load.addresses.stop:
                return load
        return None

    def offset(self, address: int) -> int | None:
        """The file offset of the byte that is loaded to *address*, or None if the file has no such byte."""
        for segment in self.segments:
            if segment.p_type == SegmentType.LOAD and 0 <= address - segment.p_vaddr < segment.p_filesz:
                return segment.p_offset + address - segment.p_vaddr
        return None

    def address(self, offset: int) -> int | None:
        """The address to which the byte at *offset* of the file is loaded, the lowest of several; None if none."""
        for segment in self.loads:
            if offset in segment.span:
                return segment.p_vaddr + offset - segment.p_offset
        return None


def _header(source: Sliceable) -> FileHeader:
    start = bytes(source[0 : FileHeader.layout.size])
    if start[:4] != MAGIC:
        raise BinaryError(f"not an ELF file: begins with {start[:4].hex(' ') or 'nothing'}, expected 7f 45 4c 46")
    ident = start[:16].ljust(16, b"\0")
    if not (encoding := _ENCODINGS.get((ident[4], ident[5]))):
        found = f"class {ident[4]:#x}, byte order {ident[5]:#x}"
        raise BinaryError(f"ELF of {found}: expected {CLASS_32:#x} or {CLASS_64:#x}, and 0x1 or 0x2")
    header = next(FileHeader.rows(start, encoding), None)
    if header is None:
        raise BinaryError(f"FileHeader at 0x0 runs past the end, {len(start):#x}")
    return header


def _encoding(header: FileHeader) -> Encoding:
    return _ENCODINGS[header.e_ident[4], header.e_ident[5]]


def _counts(source: Sliceable, header: FileHeader) -> tuple[int, int, int]:
    """How many segments and sections there are, and which section has the names of all.

    Section 0 has the numbers that do not fit into the file header.
    """
    if not header.e_shoff:
        return header.e_phnum, 0, 0
    segments, sections, names = header.e_phnum, header.e_shnum, header.e_shstrndx
    if not sections or segments == PN_XNUM or names == SHN_XINDEX:
        first = _sections(source, header, 1)[0].header
        segments = first.sh_info if segments == PN_XNUM else segments
        sections = sections or first.sh_size
        names = first.sh_link if names == SHN_XINDEX else names
    return segments, sections, names


def _segments(source: Sliceable, header: FileHeader, count: int) -> tuple[ProgramHeader, ...]:
    found = _rows(source, ProgramHeader, header, (header.e_phoff, count, header.e_phentsize), "program header")
    return tuple(found)


def _sections(source: Sliceable, header: FileHeader, count: int) -> tuple[Section, ...]:
    found = _rows(source, SectionHeader, header, (header.e_shoff, count, header.e_shentsize), "section header")
    return tuple(Section(index, "", row) for index, row in enumerate(found))


def _rows(
    source: Sliceable, record: type[R], header: FileHeader, table: tuple[int, int, int], what: str
) -> Iterator[R]:
    """The records of a *table*: its offset, how many there are, and how large the file header says that each is."""
    encoding = _encoding(header)
    (start, count, claimed), size = table, record.size(encoding)
    if not count:
        return iter(())
    if claimed != size:
        raise BinaryError(f"{what}s of {claimed:#x} bytes each, expected {size:#x}")
    span = range(start, start + count * size)
    _check_inside(span, len(source), f"{what} table")
    return record.rows(bytes(source[span.start : span.stop]), encoding)


def _named(source: Sliceable, sections: tuple[Section, ...], names: int) -> tuple[Section, ...]:
    """*sections* with the names that the section of index *names* holds."""
    if not sections:
        return ()
    if names >= len(sections):
        raise BinaryError(f"section names in section {names}, expected one below {len(sections)}")
    span = sections[names].span
    if sections[names].size > _LONGEST_NAMES:
        raise BinaryError(f"section names of {sections[names].size:#x} bytes, expected {_LONGEST_NAMES:#x} at most")
    _check_inside(span, len(source), f"section {names}")
    table = StringTable(bytes(source[span.start : span.stop]) or b"\0", what="section name")
    return tuple(Section(each.index, table.at(each.header.sh_name), each.header) for each in sections)


def _check_segments(segments: tuple[ProgramHeader, ...], size: int) -> None:
    for number, segment in enumerate(segments):
        if segment.p_type != SegmentType.NULL:
            what = f"segment {number} of type {segment.p_type:#x}"
            _check_inside(segment.span, size, what)
            _check_address(max(segment.p_vaddr, segment.p_paddr), segment.p_memsz, what)
    loads = sorted((one for one in segments if one.p_type == SegmentType.LOAD), key=lambda one: one.p_vaddr)
    for load in loads:
        if load.p_filesz > load.p_memsz:
            raise BinaryError(
                f"PT_LOAD of address {load.p_vaddr:#x} has {load.p_filesz:#x} bytes for {load.p_memsz:#x}"
            )
    for load, after in itertools.pairwise(loads):
        if load.addresses.stop > after.p_vaddr:
            raise BinaryError(
                f"PT_LOADs overlap: {load.p_vaddr:#x} to {load.addresses.stop:#x}, and {after.p_vaddr:#x}"
            )


def _check_inside(span: range, size: int, what: str) -> None:
    if span.start > size or span.stop > size:
        length = span.stop - span.start
        raise BinaryError(f"{what} at {span.start:#x}, {length:#x} bytes long, runs past the end, {size:#x}")


def _check_address(address: int, size: int, what: str, *, end: int = _HIGHEST_ADDRESS) -> None:
    if address + size > end:
        raise BinaryError(f"{what} is loaded to {address:#x}, {size:#x} bytes, which no process has")


def _check_apart(sections: tuple[Section, ...], header: FileHeader) -> None:
    if not sections:
        return
    taken = sorted(
        [(each.span.start, each.span.stop, f"section {each.index} {each.name}") for each in sections if each.span]
        + [(header.e_shoff, header.e_shoff + len(sections) * SectionHeader.layout.size, "section header table")]
    )
    for (_, stop, one), (start, _, other) in itertools.pairwise(taken):
        if start < stop:
            raise BinaryError(f"{one} and {other} overlap in the file at {start:#x}")
