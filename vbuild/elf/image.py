"""Where everything lies in a 64-bit little-endian ELF file: headers only, so a mapped file of 800 MB costs nothing.

    Layout.parse(source)   file header, segments, sections: anything that can be sliced will do as the source
    Image.parse(data)      the same, with the bytes themselves and the places in them that the loader fills

    | e_phoff | program headers -> segments: what the loader maps, address = offset + a constant per PT_LOAD |
    | e_shoff | section headers -> sections: what linkers, strip and debuggers see                           |
    | DT_RELA, DT_JMPREL | rows of place, type, addend; RELATIVE: the loader writes base + addend at place   |
    | DT_RELR | places only: the loader adds its base to the word that is there already                      |

https://gabi.xinuos.com/elf/ ; a file whose headers contradict each other is a `BinaryError`, never a guess.
"""

import itertools
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from struct import Struct
from typing import Protocol, Self

from vbuild.elf.records import (
    CLASS_64,
    LITTLE_ENDIAN,
    MAGIC,
    RELATIVE,
    DynamicEntry,
    DynamicTag,
    ElfMachine,
    FileHeader,
    ProgramHeader,
    Relocation,
    SectionFlag,
    SectionHeader,
    SectionType,
    SegmentFlag,
    SegmentType,
)
from vbuild.errors import BinaryError
from vbuild.files.records import Buffer

WORD = Struct("<Q")
_ADDENDS = Struct("<16xq")
_LONGEST_NAME = 4096
_LONGEST_NAMES = 1 << 24
_PN_XNUM = 0xFFFF
_HIGHEST_ADDRESS = 1 << 62


class Sliceable(Protocol):
    """A file's bytes, of which only slices are asked for: a memoryview, or something that puts them together."""

    def __len__(self) -> int: ...

    def __getitem__(self, span: slice, /) -> memoryview: ...


@dataclass(frozen=True, slots=True)
class Section:
    """One section: its header, its name, and where it is in the file and in memory."""

    index: int
    name: str
    header: SectionHeader

    @property
    def span(self) -> range:
        """The file offsets of its bytes; empty for SHT_NOBITS."""
        size = 0 if self.header.sh_type in {SectionType.NOBITS, SectionType.NULL} else self.header.sh_size
        return range(self.header.sh_offset, self.header.sh_offset + size)

    @property
    def addresses(self) -> range:
        """The virtual addresses it takes up; empty where it is not loaded."""
        return range(self.header.sh_addr, self.header.sh_addr + (self.header.sh_size if self.is_loaded else 0))

    @property
    def is_loaded(self) -> bool:
        """Whether it is part of the process's memory (SHF_ALLOC)."""
        return bool(self.header.sh_flags & SectionFlag.ALLOC)


class ElfForm(Enum):
    """How the loader is told to fill a word."""

    RELA = "RELA"
    RELR = "RELR"


@dataclass(frozen=True, slots=True)
class Pointer:
    """A word that the loader fills: with its base and the address *target*."""

    place: int
    target: int
    form: ElfForm
    row: int | None = None
    """The file offset of its row in a RELA table; None in a RELR table, where the word itself is the target."""


@dataclass(frozen=True, slots=True)
class ElfLayout:
    """The headers of an ELF file of *size* bytes."""

    size: int
    header: FileHeader
    segments: tuple[ProgramHeader, ...]
    sections: tuple[Section, ...]

    @classmethod
    def parse(cls, source: Sliceable) -> "ElfLayout":
        """The headers in *source*; `BinaryError` unless everything they speak of lies in the file, once."""
        header = _header(source)
        segments = _segments(source, header)
        sections = _sections(source, header)
        return ElfLayout(len(source), header, segments, sections)

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

    def offset(self, address: int) -> int | None:
        """Where the file has the byte that is loaded to *address*; None where it has none."""
        for segment in self.segments:
            if segment.p_type == SegmentType.LOAD and 0 <= address - segment.p_vaddr < segment.p_filesz:
                return segment.p_offset + address - segment.p_vaddr
        return None

    def address(self, offset: int) -> int | None:
        """Where the byte at *offset* of the file is loaded to; None where it is not. The lowest, where it is twice."""
        for segment in self.loads:
            if offset in segment.span:
                return segment.p_vaddr + offset - segment.p_offset
        return None


@dataclass(frozen=True, slots=True, eq=False)
class ElfImage(ElfLayout):
    """An ELF file: its headers, and its bytes, which are never copied."""

    data: memoryview

    @classmethod
    def parse(cls, data: Buffer) -> Self:  # type: ignore[override]  # what has bytes is a narrower source than Layout's
        """The ELF file *data*; `BinaryError` unless every header and section lies inside the file."""
        view = memoryview(data).cast("B")
        layout = ElfLayout.parse(view)
        return cls(layout.size, layout.header, layout.segments, layout.sections, view)

    def view(self, span: range) -> memoryview:
        """The bytes at the file offsets *span*."""
        return self.data[span.start : span.stop]

    def word(self, address: int) -> int | None:
        """The 64-bit number that the file has for *address*; None where it has none."""
        for segment in self.segments:
            if segment.p_type == SegmentType.LOAD and 0 <= address - segment.p_vaddr <= segment.p_filesz - WORD.size:
                return int(WORD.unpack_from(self.data, segment.p_offset + address - segment.p_vaddr)[0])
        return None

    def dynamic(self) -> dict[int, int]:
        """The values of PT_DYNAMIC by tag, up to its DT_NULL; of a tag that comes twice, the first."""
        return {tag: value for tag, (value, _) in reversed(list(self._dynamic()))}

    def dynamic_offsets(self) -> dict[int, int]:
        """The file offset of each entry of PT_DYNAMIC by tag, as in `dynamic`."""
        return {tag: offset for tag, (_, offset) in reversed(list(self._dynamic()))}

    def _dynamic(self) -> Iterator[tuple[int, tuple[int, int]]]:
        for segment in self.segments:
            if segment.p_type != SegmentType.DYNAMIC:
                continue
            size = DynamicEntry.layout.size
            whole = self.view(segment.span)[: segment.p_filesz // size * size]
            for number, (tag, value) in enumerate(DynamicEntry.layout.iter_unpack(whole)):
                if tag == DynamicTag.NULL:
                    return
                yield tag, (value, segment.p_offset + number * size)

    def pointers(self, ranges: Sequence[range]) -> tuple[Pointer, ...]:
        """Every word that the loader fills with an address in one of *ranges*, RELATIVE in RELA and RELR alike.

        A machine whose relocations are not known, and a damaged table, are a `BinaryError`.
        """
        wanted = Ranges(ranges)
        if not wanted:
            return ()
        dynamic = self.dynamic()
        if strange := dynamic.keys() & {DynamicTag.REL, DynamicTag.ANDROID_REL, DynamicTag.ANDROID_RELA}:
            raise BinaryError(
                f"relocations under tag {min(strange):#x}, expected DT_RELA ({DynamicTag.RELA:#x}) or RELR"
            )
        return (*self._rela(dynamic, wanted), *self._relr(dynamic, wanted))

    def _rela(self, dynamic: dict[int, int], wanted: "Ranges") -> Iterator[Pointer]:
        if self.machine not in RELATIVE:
            raise BinaryError(f"relocations of machine {self.machine:#x} are not known here")
        relative = RELATIVE[ElfMachine(self.machine)]
        if (size := dynamic.get(DynamicTag.RELAENT, Relocation.layout.size)) != Relocation.layout.size:
            raise BinaryError(f"relocations of {size:#x} bytes each, expected {Relocation.layout.size:#x}")
        for table in self._tables(dynamic):
            low, high = wanted.low, wanted.high
            # a million rows: look at nothing but the addend until it may be one of those asked for
            addends = enumerate(_ADDENDS.iter_unpack(self.view(table)))
            for number in [number for number, (addend,) in addends if low <= addend < high]:
                row = table.start + number * Relocation.layout.size
                found = Relocation.parse(self.data, row)
                if found.r_info & 0xFFFFFFFF == relative and found.r_addend in wanted:
                    yield Pointer(found.r_offset, found.r_addend, ElfForm.RELA, row)

    def _tables(self, dynamic: dict[int, int]) -> tuple[range, range]:
        """The file offsets of the RELA tables; DT_RELA may include DT_JMPREL, so no row is in both."""
        size = Relocation.layout.size
        rows = self._table(dynamic, DynamicTag.RELA, DynamicTag.RELASZ, size)
        calls = self._table(dynamic, DynamicTag.JMPREL, DynamicTag.PLTRELSZ, size)
        if rows.start <= calls.start < rows.stop:
            if (calls.start - rows.start) % size:
                raise BinaryError(f"DT_JMPREL at {calls.start:#x} begins inside a row of DT_RELA at {rows.start:#x}")
            calls = range(rows.stop, max(rows.stop, calls.stop))
        return rows, calls

    def _table(self, dynamic: dict[int, int], at_tag: int, size_tag: int, unit: int) -> range:
        address, size = dynamic.get(at_tag, 0), dynamic.get(size_tag, 0)
        if not size:
            return range(0)
        if size % unit:
            raise BinaryError(f"relocation table at {address:#x} has {size:#x} bytes, expected a multiple of {unit:#x}")
        start, end = self.offset(address), self.offset(address + size - 1)
        if start is None or end != start + size - 1:
            raise BinaryError(f"relocation table at {address:#x}, {size:#x} bytes long, is not in the file")
        return range(start, start + size)

    def _relr(self, dynamic: dict[int, int], wanted: "Ranges") -> Iterator[Pointer]:
        table = self._table(dynamic, DynamicTag.RELR, DynamicTag.RELRSZ, WORD.size)
        for place in self._relr_places(table):
            target = self.word(place)
            if target is None:
                raise BinaryError(f"packed relocation of {place:#x}, where the file has no word")
            if wanted.low <= target < wanted.high and target in wanted:
                yield Pointer(place, target, ElfForm.RELR)

    def _relr_places(self, table: range) -> Iterator[int]:
        """The places a RELR table lists; they rise, which also bounds the work a damaged one can ask for."""
        end = max((segment.addresses.stop for segment in self.loads if segment.p_flags & SegmentFlag.W), default=0)
        base = last = 0
        for (word,) in WORD.iter_unpack(self.view(table)):
            is_bitmap = word & 1
            places = [base + WORD.size * bit for bit in range(63) if word >> (bit + 1) & 1] if is_bitmap else [word]
            base = base + WORD.size * 63 if is_bitmap else word + WORD.size
            for place in places:
                if place < last or place >= end:
                    raise BinaryError(f"packed relocation of {place:#x} after {last:#x}, expected up to {end:#x}")
                last = place
                yield place


class Ranges:
    """Address ranges, for the question whether a number is in one of them."""

    def __init__(self, ranges: Sequence[range]) -> None:
        kept = sorted((each.start, each.stop) for each in ranges if each)
        self.low = kept[0][0] if kept else 0
        self.high = max((stop for _, stop in kept), default=0)
        self._starts = [start for start, _ in kept]
        self._stops = list(itertools.accumulate((stop for _, stop in kept), max))

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __contains__(self, number: int) -> bool:
        index = bisect_right(self._starts, number) - 1
        return index >= 0 and number < self._stops[index]


def _header(source: Sliceable) -> FileHeader:
    start = source[0 : FileHeader.layout.size]
    if bytes(start[:4]) != MAGIC:
        raise BinaryError(
            f"not an ELF file: begins with {bytes(start[:4]).hex(' ') or 'nothing'}, expected 7f 45 4c 46"
        )
    header = FileHeader.parse(start)
    if header.e_ident[4] != CLASS_64 or header.e_ident[5] != LITTLE_ENDIAN:
        found = f"class {header.e_ident[4]:#x}, byte order {header.e_ident[5]:#x}"
        raise BinaryError(f"ELF of {found}: expected {CLASS_64:#x} and {LITTLE_ENDIAN:#x} (64-bit little-endian)")
    if header.e_phnum == _PN_XNUM or (header.e_shoff and not header.e_shnum):
        raise BinaryError("more headers than the file header can count")
    for what, size, expected, count in (
        ("program", header.e_phentsize, ProgramHeader.layout.size, header.e_phnum),
        ("section", header.e_shentsize, SectionHeader.layout.size, header.e_shnum),
    ):
        if count and size != expected:
            raise BinaryError(f"{what} headers of {size:#x} bytes each, expected {expected:#x}")
    return header


def _check_inside(span: range, size: int, what: str) -> None:
    if span.start > size or span.stop > size:
        length = span.stop - span.start
        raise BinaryError(f"{what} at {span.start:#x}, {length:#x} bytes long, runs past the end, {size:#x}")


def _check_address(address: int, size: int, what: str) -> None:
    if address + size > _HIGHEST_ADDRESS:
        raise BinaryError(f"{what} is loaded to {address:#x}, {size:#x} bytes, which no process has")


def _segments(source: Sliceable, header: FileHeader) -> tuple[ProgramHeader, ...]:
    table = range(header.e_phoff, header.e_phoff + header.e_phnum * ProgramHeader.layout.size)
    if not table:
        return ()
    _check_inside(table, len(source), "program header table")
    rows = ProgramHeader.layout.iter_unpack(source[table.start : table.stop])
    segments = tuple(ProgramHeader(*row) for row in rows)
    for number, segment in enumerate(segments):
        if segment.p_type != SegmentType.NULL:
            what = f"segment {number} of type {segment.p_type:#x}"
            _check_inside(segment.span, len(source), what)
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
    return segments


def _sections(source: Sliceable, header: FileHeader) -> tuple[Section, ...]:
    table = range(header.e_shoff, header.e_shoff + header.e_shnum * SectionHeader.layout.size)
    if not header.e_shoff or not table:
        return ()
    _check_inside(table, len(source), "section header table")
    rows = SectionHeader.layout.iter_unpack(source[table.start : table.stop])
    nameless = [Section(index, "", SectionHeader(*row)) for index, row in enumerate(rows)]
    for section in nameless:
        _check_inside(section.span, len(source), f"section {section.index}")
        _check_address(section.header.sh_addr, section.header.sh_size, f"section {section.index}")
    names = _names(source, header, nameless)
    sections = tuple(Section(each.index, _name(names, each), each.header) for each in nameless)
    _check_apart(sections, table)
    return sections


def _names(source: Sliceable, header: FileHeader, sections: list[Section]) -> bytes:
    if header.e_shstrndx >= len(sections):
        raise BinaryError(f"section names in section {header.e_shstrndx}, expected one below {len(sections)}")
    span = sections[header.e_shstrndx].span
    if len(span) > _LONGEST_NAMES:
        raise BinaryError(f"section names of {len(span):#x} bytes, expected {_LONGEST_NAMES:#x} at most")
    return bytes(source[span.start : span.stop])


def _name(names: bytes, section: Section) -> str:
    start = section.header.sh_name
    if not names and not start:
        return ""
    end = names.find(b"\0", start, start + _LONGEST_NAME)
    if end < 0:
        raise BinaryError(f"name of section {section.index} at {start:#x} has no end in {len(names):#x} bytes of names")
    return names[start:end].decode("ascii", "backslashreplace")


def _check_apart(sections: tuple[Section, ...], table: range) -> None:
    taken = sorted(
        [(each.span.start, each.span.stop, f"section {each.index} {each.name}") for each in sections if each.span]
        + [(table.start, table.stop, "section header table")]
    )
    for (_, stop, one), (start, _, other) in itertools.pairwise(taken):
        if start < stop:
            raise BinaryError(f"{one} and {other} overlap in the file at {start:#x}")
