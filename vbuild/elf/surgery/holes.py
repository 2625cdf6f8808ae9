"""The stretches that a cut leaves out of a file, holes, and room for the program headers that they need.

Whole pages of what packing leaves free become holes. So do the sections that GNU strip would drop:

    DEBUG      .debug_*, .zdebug_*, .gdb_index, .stab*, .line and their relocations
    UNNEEDED   those, .symtab, its .strtab and its index table

Object files stay whole: linkers need their symbols.

A PT_LOAD with a hole becomes two, but something follows the program headers at once. These ways to room are tried:

    SLACK     unused bytes behind the table: patchelf leaves some, so do some linkers
    PHDR      PT_PHDR of a library gives its row: only programs need it, and GNU ld puts none into libraries
    GNU_HASH  ``.gnu.hash`` takes a smaller filter, and it and what lies before it (notes) move up
    MERGE     neighbouring read-only PT_LOADs become one; code and constants share it, as with linkers before 2018
    NOTE      PT_GNU_PROPERTY or PT_NOTE gives its row; the notes stay, as sections
    MOVED     the table moves to the edge of a hole: it loads, but GNU strip destroys such a file. Only where forced

The bloom filter of ``.gnu.hash`` can be halved without a look at the names it stands for:

    | u32 nbuckets | u32 symoffset | u32 bloom_size | u32 bloom_shift | u64 bloom[bloom_size] | buckets, chains |

A symbol of hash h sets bits in word (h / 64) mod bloom_size, a power of two: the upper half is or-ed onto the lower.
https://sourceware.org/legacy-ml/binutils/2006-10/msg00377.html, glibc ``elf/dl-lookup.c``
"""

import itertools
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from itertools import accumulate
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from vbuild.binary.edits import Strip, up
from vbuild.elf.image import ElfImage, ElfLayout, Section
from vbuild.elf.records import (
    ADDRESS_TAGS,
    ElfMachine,
    FileType,
    ProgramHeader,
    SectionFlag,
    SectionHeader,
    SectionType,
    SegmentFlag,
    SegmentType,
)
from vbuild.errors import BinaryError
from vbuild.files.records import U32, Buffer, Packed

# bfd's own list, elf.c _bfd_elf_make_section_from_shdr
_DEBUG = (".debug", ".zdebug", ".gnu.debuglto_", ".gnu.linkonce.wi.", ".gdb_index", ".stab", ".line")
_RELOCATIONS = frozenset({SectionType.RELA, SectionType.REL})
_SYMBOLS = frozenset({SectionType.SYMTAB, SectionType.SYMTAB_SHNDX})


def sections_to_strip(image: ElfImage, strip: Strip) -> tuple[Section, ...]:
    """Never loaded ones, and none that a kept section refers to."""
    is_linked = image.header.e_type in {FileType.DYN, FileType.EXEC}
    # of separate debug information the code is in another file
    is_debug_file = any(
        section.header.sh_type == SectionType.NOBITS and section.header.sh_flags & SectionFlag.EXECINSTR
        for section in image.sections
    )
    if strip is Strip.NOTHING or not is_linked or is_debug_file:
        return ()
    free = {section.index for section in image.sections if section.index and not _is_needed(image, section)}
    gone = {index for index in free if image.sections[index].name.startswith(_DEBUG)}
    if strip is Strip.UNNEEDED:
        symbols = {index for index in free if image.sections[index].header.sh_type in _SYMBOLS}
        gone |= symbols | {image.sections[index].header.sh_link for index in symbols} & free
    relocating = {index for index in free if image.sections[index].header.sh_type in _RELOCATIONS}
    gone |= {index for index in relocating if image.sections[index].header.sh_info in gone}
    while referred := _referred(image, gone):
        gone -= referred
    return tuple(image.sections[index] for index in sorted(gone))


def _is_needed(image: ElfImage, section: Section) -> bool:
    mapped = any(
        segment.span.start < section.span.stop and section.span.start < segment.span.stop for segment in image.segments
    )
    return section.is_loaded or mapped or section.index == image.header.e_shstrndx


def _referred(image: ElfImage, gone: set[int]) -> set[int]:
    referred = set()
    for section in image.sections:
        if section.index not in gone and section.header.sh_type != SectionType.NULL:
            referred.add(section.header.sh_link)
            if section.header.sh_flags & SectionFlag.INFO_LINK or section.header.sh_type in _RELOCATIONS:
                referred.add(section.header.sh_info)
    return referred & gone


# arch/riscv/include/asm/page.h of Linux: pages of 4K alone
_RISCV = 243
# the largest page of a kernel for the machine; what is mapped moves in the file by whole pages only
_PAGES: dict[int, int] = {ElfMachine.X86_64: 0x1000, _RISCV: 0x1000}
_LARGEST_PAGE = 0x10000
_HEADER_ALIGNMENT = 8
_PADDING = 16


def page(machine: int) -> int:
    """The unit, in bytes, in which loaded parts can move in the file."""
    return _PAGES.get(machine, _LARGEST_PAGE)


class Holes(Struct, frozen=True):
    spans: tuple[range, ...]
    _starts: tuple[int, ...]
    _before: tuple[int, ...]

    @classmethod
    def of(cls, spans: Iterable[range]) -> Self:
        ordered = tuple(sorted((span for span in spans if span), key=lambda span: span.start))
        return cls(ordered, tuple(span.start for span in ordered), (0, *accumulate(map(len, ordered))))

    @property
    def size(self) -> int:
        return self._before[-1]

    def offset(self, old: int) -> int:
        """The new offset of the byte at *old*; inside a hole, the hole's."""
        index = bisect_right(self._starts, old)
        if index and old < self.spans[index - 1].stop:
            return self.spans[index - 1].start - self._before[index - 1]
        return old - self._before[index]

    def within(self, span: range) -> tuple[range, ...]:
        first = bisect_left([hole.stop for hole in self.spans], span.start + 1)
        return tuple(hole for hole in self.spans[first:] if hole.start < span.stop)


def split(layout: ElfLayout, holes: Holes) -> tuple[ProgramHeader, ...]:
    """The program headers with each PT_LOAD cut at its *holes*.

    A piece without code is no longer executable, if it may be read. `BinaryError` if a hole is neither inside one
    PT_LOAD nor outside all segments.
    """
    unit = page(layout.machine)
    headers: list[ProgramHeader] = []
    is_moved = any(
        holes.offset(load.p_offset + load.p_filesz) != load.p_offset + load.p_filesz for load in layout.loads
    )
    for segment in layout.segments:
        inner = holes.within(segment.span)
        if segment.p_type != SegmentType.LOAD:
            if inner:
                raise BinaryError(f"hole at {inner[0].start:#x} in a segment of type {segment.p_type:#x}")
            headers.append(segment)
            continue
        # offsets behind a hole agree with their addresses in pages
        aligned = replace(segment, p_align=min(segment.p_align, unit)) if is_moved else segment
        headers += _pieces(aligned, inner, layout) if inner else [aligned]
    return tuple(headers)


def _pieces(segment: ProgramHeader, holes: Sequence[range], layout: ElfLayout) -> list[ProgramHeader]:
    edges = [segment.p_offset]
    for hole in holes:
        if hole.start < segment.p_offset or hole.stop > segment.span.stop:
            raise BinaryError(f"hole {hole.start:#x} to {hole.stop:#x} is partly outside the PT_LOAD that it touches")
        edges += [hole.start, hole.stop]
    edges.append(segment.span.stop)
    pieces = []
    for start, stop in zip(edges[::2], edges[1::2], strict=True):
        moved = start - segment.p_offset
        beyond = segment.p_memsz - segment.p_filesz if stop == segment.span.stop else 0
        if stop == start and not beyond:
            continue
        piece = replace(
            segment,
            p_offset=start,
            p_vaddr=segment.p_vaddr + moved,
            p_paddr=segment.p_paddr + moved,
            p_filesz=stop - start,
            p_memsz=stop - start + beyond,
        )
        # without the right to be run, what has no other could not be read either
        stays = _has_code(layout, piece) or not piece.p_flags & SegmentFlag.R
        pieces.append(piece if stays else replace(piece, p_flags=piece.p_flags & ~SegmentFlag.X))
    return pieces


def _has_code(layout: ElfLayout, piece: ProgramHeader) -> bool:
    return any(
        section.header.sh_flags & SectionFlag.EXECINSTR
        and section.span.start < piece.span.stop
        and piece.span.start < section.span.stop
        for section in layout.sections
        if section.span
    )


def unloaded_holes(image: ElfImage, sections: Sequence[Section]) -> tuple[range, ...]:
    """The holes that unloaded *sections* leave, aligned as what follows needs."""
    gone = {section.index for section in sections}
    staying = [(section.span, section.header.sh_addralign) for section in image.sections if section.index not in gone]
    staying += [(load.span, page(image.machine)) for load in image.loads]
    table = range(image.header.e_shoff, image.header.e_shoff + image.header.e_shnum * SectionHeader.layout.size)
    staying.append((table, _HEADER_ALIGNMENT))
    # spans with nothing but padding between them are one
    runs: list[range] = []
    starts = {section.span.start for section in image.sections if section.span}
    for span in sorted((section.span for section in sections if section.span), key=lambda span: span.start):
        gap = range(runs[-1].stop, span.start) if runs else range(0)
        is_padding = len(gap) < _PADDING and not any(image.view(gap)) and starts.isdisjoint(gap)
        if runs and is_padding:
            runs[-1] = range(runs[-1].start, span.stop)
        else:
            runs.append(span)
    holes = []
    for run in runs:
        unit = max((alignment for span, alignment in staying if span and span.start >= run.stop), default=1) or 1
        holes.append(range(run.start, run.start + len(run) // unit * unit))
    return tuple(filter(None, holes))


ROW = ProgramHeader.layout.size

# only PT_DYNAMIC says where it is
SLIDING = frozenset(
    {
        SectionType.NOTE,
        SectionType.HASH,
        SectionType.DYNSYM,
        SectionType.GNU_VERSYM,
        SectionType.GNU_VERDEF,
        SectionType.GNU_VERNEED,
        SectionType.GNU_HASH,
    }
)
NOTES = {SegmentType.GNU_PROPERTY, SegmentType.NOTE}


class _Header(Packed, frozen=True):
    nbuckets: U32
    symoffset: U32
    bloom_size: U32
    bloom_shift: U32


class Bloom(Struct, frozen=True):
    header: _Header
    words: tuple[int, ...]

    @classmethod
    def parse(cls, section: Buffer) -> Self:
        header = _Header.parse(section)
        count = header.bloom_size
        end = header.layout.size + 8 * count + 4 * header.nbuckets
        if not count or count & (count - 1) or end > len(section):
            raise BinaryError(f".gnu.hash of {len(section):#x} bytes with a filter of {count:#x} words")
        return cls(header, struct.Struct(f"<{count}Q").unpack_from(section, header.layout.size))

    @property
    def size(self) -> int:
        return self.header.layout.size + 8 * len(self.words)

    def halved(self) -> Self:
        middle = len(self.words) // 2
        words = tuple(low | high for low, high in zip(self.words[:middle], self.words[middle:], strict=True))
        header = self.header
        return type(self)(_Header(header.nbuckets, header.symoffset, middle, header.bloom_shift), words)

    def shorter_by(self, gain: int) -> Self | None:
        """The largest half, quarter ... that saves *gain* bytes; None if no word is left."""
        bloom = self
        while self.size - bloom.size < gain:
            if len(bloom.words) == 1:
                return None
            bloom = bloom.halved()
        return bloom

    def pack(self) -> bytes:
        return self.header.pack() + struct.Struct(f"<{len(self.words)}Q").pack(*self.words)


class PointerSlot(Enum):
    SLACK = "slack behind the program headers"
    PHDR = "PT_PHDR"
    GNU_HASH = "smaller .gnu.hash filter"
    MERGE = "merged PT_LOADs"
    NOTE = "PT_NOTE"
    MOVED = "moved program headers"


class Slide(Struct, frozen=True):
    """The file offsets *span*, up to the end of ``.gnu.hash``, move up by *by* bytes.

    *bloom* is its new head, *old_head* the old one's bytes.
    """

    span: range
    by: int
    hash: Section
    bloom: Bloom
    old_head: int


class SlotTable(Struct, frozen=True):
    """Program headers for the file offset *start*, with *room* for so many."""

    start: int
    room: int
    headers: tuple[ProgramHeader, ...]
    slots: tuple[PointerSlot, ...] = ()
    slide: Slide | None = None

    @property
    def missing(self) -> int:
        return max(0, len(self.headers) - self.room)

    @property
    def end(self) -> int:
        return self.start + ROW * self.room


def find_header_room(
    image: ElfImage, headers: tuple[ProgramHeader, ...], holes: Holes, *, shelf: range = range(0)
) -> SlotTable | None:
    """A table for *headers*, moved to *shelf* as a last resort; None without room."""
    if len(headers) > image.header.e_phnum:
        headers = tuple(header for header in headers if header.p_type != SegmentType.NULL)
    table = SlotTable(image.header.e_phoff, image.header.e_phnum, headers)
    for slot, way in _WAYS.items():
        if table.missing and (better := way(table, image, holes)) is not table:
            table = replace(better, slots=(*table.slots, slot))
    if table.missing and len(shelf) >= ROW * len(headers) + 8:
        table = replace(table, start=up(shelf.start, 8), room=len(headers), slots=(*table.slots, PointerSlot.MOVED))
    if table.missing:
        return None
    address, size = image.address(table.start), ROW * len(table.headers)
    if address is None:
        return table
    fields = {"p_offset": table.start, "p_vaddr": address, "p_paddr": address, "p_filesz": size, "p_memsz": size}
    rows = (replace(header, **fields) if header.p_type == SegmentType.PHDR else header for header in table.headers)
    return replace(table, headers=tuple(rows))


def _slack(table: SlotTable, image: ElfImage, _: Holes) -> SlotTable:
    room = (_first_use(image, table.end) - table.start) // ROW
    return replace(table, room=min(room, len(table.headers))) if room > table.room else table


def _without_phdr(table: SlotTable, image: ElfImage, _: Holes) -> SlotTable:
    is_program = any(segment.p_type == SegmentType.INTERP for segment in image.segments)
    others = tuple(header for header in table.headers if header.p_type != SegmentType.PHDR)
    return table if is_program or len(others) == len(table.headers) else replace(table, headers=others)


def _first_use(image: ElfImage, end: int) -> int:
    """The file offset of the first use behind *end*, or its PT_LOAD's end."""
    uses = [section.span.start for section in image.sections if section.span and section.span.stop > end]
    uses += [
        segment.span.start
        for segment in image.segments
        if segment.span and segment.span.stop > end and segment.p_type not in {SegmentType.LOAD, SegmentType.PHDR}
    ]
    uses += [
        load.span.stop if load.span.start < end else load.span.start for load in image.loads if load.span.stop >= end
    ]
    if image.header.e_shoff >= end:
        uses.append(image.header.e_shoff)
    uses += [
        offset
        for tag, address in image.dynamic().items()
        if tag in ADDRESS_TAGS and (offset := image.offset(address)) is not None and offset >= end
    ]
    return max(end, min(uses, default=end))


def _smaller_hash(table: SlotTable, image: ElfImage, _: Holes) -> SlotTable:
    sections = _up_to_hash(image, table.end)
    if not sections:
        return table
    span = range(sections[0].span.start, sections[-1].span.stop)
    unit = max(8, *(section.header.sh_addralign for section in sections))
    by = up(table.start + ROW * len(table.headers) - span.start, unit)
    whole = Bloom.parse(image.view(sections[-1].span))
    bloom = whole.shorter_by(by)
    if bloom is None or not _may_move(image, sections):
        return table
    headers = []
    for header in table.headers:
        fields = {"p_offset": header.p_offset + by, "p_vaddr": header.p_vaddr + by, "p_paddr": header.p_paddr + by}
        is_inside = header.p_offset in span and header.p_filesz and header.p_type != SegmentType.LOAD
        headers.append(replace(header, **fields) if is_inside else header)
    slide = Slide(span, by, sections[-1], bloom, whole.size)
    return replace(table, room=len(headers), headers=tuple(headers), slide=slide)


def _up_to_hash(image: ElfImage, end: int) -> list[Section]:
    """The sections from *end* up to ``.gnu.hash``; none if one of them cannot move."""
    behind = [section for section in image.sections if section.span and section.span.start >= end]
    sections = []
    for section in sorted(behind, key=lambda section: section.span.start):
        if section.header.sh_type not in SLIDING or not section.is_loaded:
            return []
        sections.append(section)
        if section.header.sh_type == SectionType.GNU_HASH:
            return sections
    return []


def _may_move(image: ElfImage, sections: list[Section]) -> bool:
    """Whether only PT_DYNAMIC and the notes' segments know where *sections* are."""
    span = range(sections[0].span.start, sections[-1].span.stop)
    addresses = range(sections[0].addresses.start, sections[-1].addresses.stop)
    load = next((load for load in image.loads if span.start in load.span), None)
    if load is None or span.stop > load.span.stop or len(addresses) != len(span):
        return False
    touched = [
        segment
        for segment in image.segments
        if segment.p_filesz
        and segment.p_type not in {SegmentType.LOAD, SegmentType.PHDR}
        and segment.span.start < span.stop
        and span.start < segment.span.stop
    ]
    hash_start = sections[-1].span.start
    inside = all(span.start <= segment.span.start and segment.span.stop <= hash_start for segment in touched)
    are_notes = all(segment.p_type in NOTES for segment in touched)
    starts = {section.addresses.start for section in sections}
    starting = {value for tag, value in image.dynamic().items() if tag in ADDRESS_TAGS and value in addresses}
    referred = image.pointers([addresses]) or image.exported([addresses])
    return inside and are_notes and starting <= starts and not referred


def _merged(table: SlotTable, _: ElfImage, holes: Holes) -> SlotTable:
    headers = list(table.headers)
    while len(headers) > table.room:
        loads = [header for header in headers if header.p_type == SegmentType.LOAD]
        pairs = [pair for pair in itertools.pairwise(loads) if _may_merge(*pair, holes)]
        if not pairs:
            break
        # no new executable bytes if possible, or else few
        lower, upper = min(pairs, key=lambda pair: _newly_executable(*pair))
        merged = replace(
            lower,
            p_flags=lower.p_flags | upper.p_flags,
            p_filesz=upper.span.stop - lower.p_offset,
            p_memsz=upper.addresses.stop - lower.p_vaddr,
            p_align=max(lower.p_align, upper.p_align),
        )
        headers[headers.index(lower)] = merged
        headers.remove(upper)
    return replace(table, headers=tuple(headers)) if len(headers) < len(table.headers) else table


def _may_merge(lower: ProgramHeader, upper: ProgramHeader, holes: Holes) -> bool:
    is_read_only = not (lower.p_flags | upper.p_flags) & SegmentFlag.W
    is_in_line = (
        lower.p_vaddr - lower.p_offset == upper.p_vaddr - upper.p_offset and lower.span.stop <= upper.span.start
    )
    return (
        is_read_only
        and is_in_line
        and lower.p_filesz == lower.p_memsz
        and not holes.within(range(lower.p_offset, upper.span.stop))
    )


def _newly_executable(lower: ProgramHeader, upper: ProgramHeader) -> int:
    if not (lower.p_flags | upper.p_flags) & SegmentFlag.X:
        return 0
    return sum(load.p_filesz for load in (lower, upper) if not load.p_flags & SegmentFlag.X)


def _reused(table: SlotTable, image: ElfImage, _: Holes) -> SlotTable:
    headers = list(table.headers)
    build_ids = [section.span for section in image.named(".note.gnu.build-id")]

    def cost(header: ProgramHeader) -> int:
        has_build_id = any(span.start in header.span for span in build_ids)
        return 0 if header.p_type == SegmentType.GNU_PROPERTY else 2 if has_build_id else 1

    spare = sorted((header for header in headers if header.p_type in NOTES), key=cost)
    for header in spare[: len(headers) - table.room]:
        headers.remove(header)
    return replace(table, headers=tuple(headers)) if spare else table


_WAYS: dict[PointerSlot, Callable[[SlotTable, ElfImage, Holes], SlotTable]] = {
    PointerSlot.SLACK: _slack,
    PointerSlot.PHDR: _without_phdr,
    PointerSlot.GNU_HASH: _smaller_hash,
    PointerSlot.MERGE: _merged,
    PointerSlot.NOTE: _reused,
}
