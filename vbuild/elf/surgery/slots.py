"""Room for more program headers in a table that something else follows at once: the hard part of cutting a library.

Each way is one function; they are tried in this order, and each gives what it can until the table fits:

    SLACK     unused bytes behind the table: patchelf leaves some, so do some linkers
    PHDR      PT_PHDR of a library gives its row: only programs need it, and GNU ld puts none into libraries
    GNU_HASH  ``.gnu.hash`` takes a smaller filter, and it and what lies before it (notes) move up
    MERGE     neighbouring read-only PT_LOADs become one; code and constants share it, as with linkers before 2018
    NOTE      PT_GNU_PROPERTY or PT_NOTE gives its row; the notes stay, as sections
    MOVED     the table moves to the edge of a hole: it loads, but GNU strip destroys such a file. Only where forced

The bloom filter of ``.gnu.hash`` can be halved without a look at the names it stands for:

    | u32 nbuckets | u32 symoffset | u32 bloom_size | u32 bloom_shift | u64 bloom[bloom_size] | buckets, chains |

A symbol of hash h sets bits in word (h / 64) mod bloom_size, and bloom_size is a power of two: with half as many words
it sets the same bits in the word of the same number mod bloom_size / 2. So a half is the upper one or-ed onto the
lower. Nothing that was found is lost; a miss costs a look into the chains more often.

https://sourceware.org/legacy-ml/binutils/2006-10/msg00377.html, glibc ``elf/dl-lookup.c``
"""

import itertools
import struct
from collections.abc import Callable
from enum import Enum
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from vbuild.binary.edits import up
from vbuild.elf.image import ElfImage
from vbuild.elf.layout import Section
from vbuild.elf.records import ADDRESS_TAGS, ElfRecord, ProgramHeader, SectionType, SegmentFlag, SegmentType
from vbuild.elf.surgery.holes import Holes
from vbuild.elf.surgery.written import exported
from vbuild.errors import BinaryError
from vbuild.files.records import U32, Buffer

ROW = ProgramHeader.layout.size

# what lies between the program headers and .gnu.hash can move: only PT_DYNAMIC says where it is
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


class _Header(ElfRecord, frozen=True):
    nbuckets: U32
    symoffset: U32
    bloom_size: U32
    bloom_shift: U32


class Bloom(Struct, frozen=True):
    """The head of a ``.gnu.hash`` section: its header and its filter."""

    header: _Header
    words: tuple[int, ...]

    @classmethod
    def parse(cls, section: Buffer) -> Self:
        """The head of *section*; `BinaryError` if it is none that a loader takes."""
        header = _Header.parse(section)
        count = header.bloom_size
        end = header.layout.size + 8 * count + 4 * header.nbuckets
        if not count or count & (count - 1) or end > len(section):
            raise BinaryError(f".gnu.hash of {len(section):#x} bytes with a filter of {count:#x} words")
        return cls(header, struct.Struct(f"<{count}Q").unpack_from(section, header.layout.size))

    @property
    def size(self) -> int:
        """Bytes; the buckets begin there."""
        return self.header.layout.size + 8 * len(self.words)

    def halved(self) -> Self:
        """The filter of half as many words that lets everything pass which this one does."""
        middle = len(self.words) // 2
        words = tuple(low | high for low, high in zip(self.words[:middle], self.words[middle:], strict=True))
        header = self.header
        return type(self)(_Header(header.nbuckets, header.symoffset, middle, header.bloom_shift), words)

    def shorter_by(self, gain: int) -> Self | None:
        """The largest half, quarter ... that saves *gain* bytes; None if not even one word would."""
        bloom = self
        while self.size - bloom.size < gain:
            if len(bloom.words) == 1:
                return None
            bloom = bloom.halved()
        return bloom

    def pack(self) -> bytes:
        return self.header.pack() + struct.Struct(f"<{len(self.words)}Q").pack(*self.words)


class PointerSlot(Enum):
    """Where room for a program header was found."""

    SLACK = "slack behind the program headers"
    PHDR = "PT_PHDR"
    GNU_HASH = "smaller .gnu.hash filter"
    MERGE = "merged PT_LOADs"
    NOTE = "PT_NOTE"
    MOVED = "moved program headers"


class Slide(Struct, frozen=True):
    """The file offsets *span*, from the first note to the end of ``.gnu.hash``, move up by *by* bytes."""

    span: range
    by: int
    hash: Section
    bloom: Bloom
    """What ``.gnu.hash`` begins with from then on."""
    old_head: int
    """Bytes of what it began with."""


class SlotTable(Struct, frozen=True):
    """The program headers to be written at the file offset *start*, where there is room for *room* of them."""

    start: int
    room: int
    headers: tuple[ProgramHeader, ...]
    slots: tuple[PointerSlot, ...] = ()
    slide: Slide | None = None

    @property
    def missing(self) -> int:
        """Rows."""
        return max(0, len(self.headers) - self.room)

    @property
    def end(self) -> int:
        """The file offset behind the rows there is room for."""
        return self.start + ROW * self.room


def roomy(
    image: ElfImage, headers: tuple[ProgramHeader, ...], holes: Holes, *, shelf: range = range(0)
) -> SlotTable | None:
    """A table for *headers*, offsets those of the file without *holes*; None if there is no room for it.

    *shelf* are file offsets that the table may move to if nothing else helps.
    """
    if len(headers) > image.header.e_phnum:
        headers = tuple(header for header in headers if header.p_type != SegmentType.NULL)
    table = SlotTable(image.header.e_phoff, image.header.e_phnum, headers)
    for slot, way in _WAYS.items():
        if table.missing and (better := way(table, image, holes)) is not table:
            table = replace(better, slots=(*table.slots, slot))
    if table.missing and len(shelf) >= ROW * len(headers) + 8:
        table = replace(table, start=up(shelf.start, 8), room=len(headers), slots=(*table.slots, PointerSlot.MOVED))
    return None if table.missing else _announced(table, image)


def _announced(table: SlotTable, image: ElfImage) -> SlotTable:
    """The table with a PT_PHDR, if it has one, that tells its place and size."""
    address, size = image.address(table.start), ROW * len(table.headers)
    if address is None:
        return table
    places = {"p_offset": table.start, "p_vaddr": address, "p_paddr": address, "p_filesz": size, "p_memsz": size}
    headers = (replace(each, **places) if each.p_type == SegmentType.PHDR else each for each in table.headers)
    return replace(table, headers=tuple(headers))


def _slack(table: SlotTable, image: ElfImage, _: Holes) -> SlotTable:
    room = (_first_use(image, table.end) - table.start) // ROW
    return replace(table, room=min(room, len(table.headers))) if room > table.room else table


def _without_phdr(table: SlotTable, image: ElfImage, _: Holes) -> SlotTable:
    is_program = any(segment.p_type == SegmentType.INTERP for segment in image.segments)
    kept = tuple(header for header in table.headers if header.p_type != SegmentType.PHDR)
    return table if is_program or len(kept) == len(table.headers) else replace(table, headers=kept)


def _first_use(image: ElfImage, end: int) -> int:
    """The file offset of the first thing at or behind *end*, or the end of the PT_LOAD that *end* is in."""
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
        places = {"p_offset": header.p_offset + by, "p_vaddr": header.p_vaddr + by, "p_paddr": header.p_paddr + by}
        is_inside = header.p_offset in span and header.p_filesz and header.p_type != SegmentType.LOAD
        headers.append(replace(header, **places) if is_inside else header)
    slide = Slide(span, by, sections[-1], bloom, whole.size)
    return replace(table, room=len(headers), headers=tuple(headers), slide=slide)


def _up_to_hash(image: ElfImage, end: int) -> list[Section]:
    """The sections from *end* up to ``.gnu.hash``, in the order of the file; none if one of them cannot move."""
    behind = sorted(
        (each for each in image.sections if each.span and each.span.start >= end), key=lambda each: each.span.start
    )
    found = []
    for section in behind:
        if section.header.sh_type not in SLIDING or not section.is_loaded:
            return []
        found.append(section)
        if section.header.sh_type == SectionType.GNU_HASH:
            return found
    return []


def _may_move(image: ElfImage, sections: list[Section]) -> bool:
    """Whether nothing but PT_DYNAMIC and the notes' segments knows where *sections* are."""
    span = range(sections[0].span.start, sections[-1].span.stop)
    addresses = range(sections[0].addresses.start, sections[-1].addresses.stop)
    load = next((load for load in image.loads if span.start in load.span), None)
    if load is None or span.stop > load.span.stop or len(addresses) != len(span):
        return False
    others = [one for one in image.segments if one.p_filesz and one.p_type not in {SegmentType.LOAD, SegmentType.PHDR}]
    touched = [one for one in others if one.span.start < span.stop and span.start < one.span.stop]
    inside = all(span.start <= one.span.start and one.span.stop <= sections[-1].span.start for one in touched)
    known = all(one.p_type in NOTES for one in touched)
    starts = {section.addresses.start for section in sections}
    starting = {value for tag, value in image.dynamic().items() if tag in ADDRESS_TAGS and value in addresses}
    referred = image.pointers([addresses]) or exported(image, [addresses])
    return inside and known and starting <= starts and not referred


def _merged(table: SlotTable, _: ElfImage, holes: Holes) -> SlotTable:
    headers = list(table.headers)
    while len(headers) > table.room:
        loads = [header for header in headers if header.p_type == SegmentType.LOAD]
        pairs = [pair for pair in itertools.pairwise(loads) if _may_merge(*pair, holes)]
        if not pairs:
            break
        # no new executable bytes if it can be helped, and few if not
        one, other = min(pairs, key=lambda pair: _newly_executable(*pair))
        merged = replace(
            one,
            p_flags=one.p_flags | other.p_flags,
            p_filesz=other.span.stop - one.p_offset,
            p_memsz=other.addresses.stop - one.p_vaddr,
            p_align=max(one.p_align, other.p_align),
        )
        headers[headers.index(one)] = merged
        headers.remove(other)
    return replace(table, headers=tuple(headers)) if len(headers) < len(table.headers) else table


def _may_merge(one: ProgramHeader, other: ProgramHeader, holes: Holes) -> bool:
    is_read_only = not (one.p_flags | other.p_flags) & SegmentFlag.W
    is_in_line = one.p_vaddr - one.p_offset == other.p_vaddr - other.p_offset and one.span.stop <= other.span.start
    return (
        is_read_only
        and is_in_line
        and one.p_filesz == one.p_memsz
        and not holes.within(range(one.p_offset, other.span.stop))
    )


def _newly_executable(one: ProgramHeader, other: ProgramHeader) -> int:
    if not (one.p_flags | other.p_flags) & SegmentFlag.X:
        return 0
    return sum(each.p_filesz for each in (one, other) if not each.p_flags & SegmentFlag.X)


def _reused(table: SlotTable, image: ElfImage, _: Holes) -> SlotTable:
    headers = list(table.headers)
    build_ids = [section.span for section in image.named(".note.gnu.build-id")]

    def cost(header: ProgramHeader) -> int:
        has_build_id = any(span.start in header.span for span in build_ids)
        return 0 if header.p_type == SegmentType.GNU_PROPERTY else 2 if has_build_id else 1

    spare = sorted((each for each in headers if each.p_type in NOTES), key=cost)
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
