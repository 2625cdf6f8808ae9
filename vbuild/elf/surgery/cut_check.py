"""What must hold of a library that was cut, each invariant a function: read back from the new bytes, not from the plan.

What moved is learned from the pointers of the new file: they are followed as the loader would, and must end at the
bytes that were ordered. Memory is compared page by page, as kernel and loader map it:

    PT_LOAD -> all pages of the file that it touches, over what an earlier one has mapped there
            -> zeros behind its last byte of the file, up to the last page that it has in memory

https://gabi.xinuos.com/elf/08-dynamic.html, glibc ``elf/dl-load.c``, ``elf/dl-map-segments.h``, Linux
``fs/binfmt_elf.c``
"""

import itertools
import struct
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache, partial
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from vbuild.binary.code import Pointer, outside
from vbuild.binary.edits import Replacement, Written, up
from vbuild.elf.image import WORD, ElfImage, ElfLayout, Section, column
from vbuild.elf.records import (
    ADDRESS_TAGS,
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
from vbuild.elf.surgery.holes import NOTES, ROW, SLIDING, Bloom
from vbuild.errors import BinaryError, at
from vbuild.files.edited import EditedFile

_SYMBOL = 24
_SECTIONS = struct.Struct("<6xH16x")
_VALUE, _SIZE = 8, 16
_ADDEND = 16
# st_name 0, STB_LOCAL and STT_FILE, SHN_ABS
_NO_FILE = 4 << 32 | 0xFFF1 << 48


class Move(Struct, frozen=True):
    old: range
    new: range


def pointer_words(image: ElfImage, pointers: Sequence[Pointer], address: int) -> dict[int, int]:
    words = {}
    for pointer in pointers:
        offset = image.offset(pointer.place)
        word = image.word(pointer.place)
        if offset is None or word is None:
            raise BinaryError(f"pointer at address {pointer.place:#x}, where the file has no word")
        if pointer.row is not None:
            words[pointer.row + _ADDEND] = address
        # GNU ld writes the target there too; lld writes 0, and only the addend counts
        if word == pointer.target:
            words[offset] = address
    return words


def symbol_words(image: ElfImage, moves: Sequence[Move], *, without: Sequence[Section] = ()) -> dict[int, int]:
    """The words that tell ``.symtab`` of *moves* and of sections *without*, whose symbols become those of no file."""
    by_start = {move.old.start: move for move in moves}
    gone = {section.index for section in without}
    words: dict[int, int] = {}
    for section in image.sections:
        if section.header.sh_type == SectionType.SYMTAB and section.index not in gone:
            table, start = image.view(section.span), section.span.start
            values, sizes = column(table, 1), column(table, 2)
            for number in itertools.compress(itertools.count(), map(by_start.__contains__, values)):
                row, move = start + number * _SYMBOL, by_start[values[number]]
                words[row + _VALUE] = move.new.start
                if sizes[number] == len(move.old):
                    words[row + _SIZE] = len(move.new)
            words.update((start + at, value) for at, value in (_orphaned(table, gone) if gone else ()))
    return words


def _orphaned(table: memoryview, gone: set[int]) -> Iterator[tuple[int, int]]:
    whole = table[: len(table) // _SYMBOL * _SYMBOL]
    for number in [number for number, (index,) in enumerate(_SECTIONS.iter_unpack(whole)) if index in gone]:
        yield number * _SYMBOL, _NO_FILE
        yield from ((number * _SYMBOL + at, 0) for at in (_VALUE, _SIZE))


_PAGES: dict[int, tuple[int, ...]] = {ElfMachine.X86_64: (0x1000,)}
_ANY_PAGES = (0x1000, 0x4000, 0x10000)


class Stretch(Struct, frozen=True):
    """Bytes of the file from *offset* on, or zeros; *flags* are a PT_LOAD's."""

    addresses: range
    flags: int
    offset: int | None = None

    def within(self, addresses: range) -> "Stretch":
        start = max(self.addresses.start, addresses.start)
        stop = max(start, min(self.addresses.stop, addresses.stop))
        offset = None if self.offset is None else self.offset + start - self.addresses.start
        return Stretch(range(start, stop), self.flags, offset)


class Memory(Struct, frozen=True):
    stretches: tuple[Stretch, ...]

    @classmethod
    def of(cls, layout: ElfLayout, *, page: int) -> Self:
        """The memory of *layout* with pages of *page* bytes; `BinaryError` if it cannot be mapped."""
        stretches: list[Stretch] = []
        for load in layout.loads:
            if (load.p_offset - load.p_vaddr) % page:
                raise BinaryError(
                    f"PT_LOAD of {load.p_vaddr:#x} at {load.p_offset:#x}: expected one place in a page of {page:#x}"
                )
            for new in _mapped(load, layout.size, page):
                stretches = [*(part for old in stretches for part in _beside(old, new.addresses)), new]
        return cls(tuple(sorted(stretches, key=lambda stretch: stretch.addresses.start)))

    def within(self, addresses: range) -> Iterator[Stretch]:
        return (part for stretch in self.stretches if (part := stretch.within(addresses)).addresses)


def page_sizes(layout: ElfLayout) -> tuple[int, ...]:
    """Page sizes of the machine in bytes, up to the PT_LOADs' alignment."""
    sizes = _PAGES.get(layout.machine, _ANY_PAGES)
    least = min((load.p_align for load in layout.loads), default=0)
    return tuple(size for size in sizes if size <= least) or sizes[:1]


def _mapped(load: ProgramHeader, size: int, page: int) -> Iterator[Stretch]:
    start, end = load.p_vaddr // page * page, load.p_vaddr + load.p_filesz
    first = load.p_offset - (load.p_vaddr - start)
    # the rest of its last page in the file is seen, too, unless it has to be zeros
    last = end if load.p_memsz > load.p_filesz else min(up(end, page), start + size - first)
    last = last if load.p_filesz else start
    if start < last:
        yield Stretch(range(start, last), load.p_flags, first)
    if last < (stop := up(load.addresses.stop, page)):
        yield Stretch(range(last, stop), load.p_flags)


def _beside(stretch: Stretch, taken: range) -> Iterator[Stretch]:
    for rest in (range(taken.start), range(taken.stop, stretch.addresses.stop)):
        if rest and (part := stretch.within(rest)).addresses:
            yield part


class _Case(Struct, frozen=True):
    """The file before and after, and what was ordered.

    *gone* and *replaced* are indices of sections. *words* are the only words that may differ, by their old file offset.
    """

    before: ElfImage
    after: ElfLayout
    written: Written
    replacements: tuple[Replacement, ...]
    moves: tuple[Move, ...]
    gone: frozenset[int]
    replaced: frozenset[int]
    words: Callable[[], dict[int, int]]

    @property
    def remaining_sections(self) -> Iterator[tuple[Section, Section]]:
        return _remaining(self.before, self.after, self.gone)


def prove(
    before: ElfImage,
    after: EditedFile | ElfImage,
    replacements: Sequence[Replacement],
    *,
    without: Sequence[Section] = (),
) -> None:
    """`BinaryError`, naming the invariant, unless *after* is *before* with *replacements* *without* sections."""
    written = Written.of(EditedFile.whole(after.data) if isinstance(after, ElfImage) else after)
    with at("the new file can be read"):
        layout = ElfLayout.parse(written)
    with at("every pointer leads to the bytes ordered"):
        moves = tuple(_move(before, layout, written, replacement) for replacement in replacements)
    gone = frozenset(section.index for section in without)
    starts = sorted(replacement.span.start for replacement in replacements)
    replaced = frozenset(
        section.index
        for section in before.sections
        if bisect_left(starts, section.span.start) < bisect_left(starts, section.span.stop)
    )
    # two invariants ask, and the symbols of a large library take a while
    words = cache(partial(_expected, before, layout, replacements, moves, gone))
    case = _Case(before, layout, written, tuple(replacements), moves, gone, replaced, words)
    for name, invariant in INVARIANTS.items():
        with at(name):
            invariant(case)


def _move(before: ElfImage, after: ElfLayout, written: Written, replacement: Replacement) -> Move:
    """The move that the new file's pointers tell; `BinaryError` unless they lead to the bytes ordered."""
    start = before.address(replacement.span.start)
    if start is None:
        raise BinaryError(f"bytes at {replacement.span.start:#x} are not loaded")
    targets = {_target(before, after, written, pointer) for pointer in replacement.pointers} or {start}
    if len(targets) != 1:
        raise BinaryError(f"pointers to {start:#x} now lead to {len(targets)} places")
    new = targets.pop()
    offset = after.offset(new)
    if offset is None or after.offset(new + replacement.size - 1) != offset + replacement.size - 1:
        raise BinaryError(f"{replacement.size:#x} bytes at {new:#x} are not in the file")
    for part in replacement.parts:
        stop = offset + len(part)
        if not isinstance(part, range):
            if bytes(written[offset:stop]) != part:
                raise BinaryError(f"{len(part):#x} new bytes are not at {offset:#x}")
        elif (old := written.differs(range(offset, stop), before.data, part.start, {})) is not None:
            raise BinaryError(f"byte {old:#x} of the original is another at {offset + old - part.start:#x}")
        offset = stop
    return Move(range(start, start + len(replacement.span)), range(new, new + replacement.size))


def _target(before: ElfImage, after: ElfLayout, written: Written, pointer: Pointer) -> int:
    if pointer.row is not None:
        table = before.address(pointer.row)
        row = None if table is None else after.offset(table)
        if row is None:
            raise BinaryError(f"relocation at {pointer.row:#x} is not loaded")
        relocation = Relocation.parse(written[row : row + Relocation.layout.size])
        if relocation.r_offset != pointer.place:
            raise BinaryError(
                f"relocation at {row:#x} is that of {relocation.r_offset:#x}, expected {pointer.place:#x}"
            )
        return relocation.r_addend
    offset = after.offset(pointer.place)
    if offset is None:
        raise BinaryError(f"pointer at {pointer.place:#x} is not in the file")
    return int(WORD.unpack(written[offset : offset + WORD.size])[0])


def _same_header(case: _Case) -> None:
    old, new = case.before.header, case.after.header
    same = replace(new, e_phoff=old.e_phoff, e_phnum=old.e_phnum, e_shoff=old.e_shoff, e_shnum=old.e_shnum)
    if same != old:
        raise BinaryError(f"{new} was {old}")


def _loads_ascend(case: _Case) -> None:
    loads = [segment for segment in case.after.segments if segment.p_type == SegmentType.LOAD]
    for lower, upper in itertools.pairwise(loads):
        if lower.addresses.stop > upper.p_vaddr:
            raise BinaryError(f"PT_LOAD of {upper.p_vaddr:#x} behind that of {lower.p_vaddr:#x}")


def check_offsets(layout: ElfLayout) -> None:
    for load in layout.loads:
        unit = load.p_align
        if unit & (unit - 1) or (unit > 1 and (load.p_offset - load.p_vaddr) % unit):
            raise BinaryError(f"PT_LOAD of {load.p_vaddr:#x} at {load.p_offset:#x} with alignment {unit:#x}")


def header_table(layout: ElfLayout) -> range:
    return range(layout.header.e_phoff, layout.header.e_phoff + ROW * layout.header.e_phnum)


def check_header_table(layout: ElfLayout, *, is_mapped: bool) -> None:
    """Raise `BinaryError` if a section is in the program headers, or they should be mapped and are not."""
    table = header_table(layout)
    for section in layout.sections:
        if section.span and section.span.start < table.stop and table.start < section.span.stop:
            raise BinaryError(f"section {section.name} in the program headers")
    if not is_mapped:
        return
    address = layout.address(table.start)
    if address is None or layout.address(table[-1]) != address + len(table) - 1:
        raise BinaryError(f"program headers at {table.start:#x} to {table.stop:#x}")
    for header in layout.segments:
        if header.p_type == SegmentType.PHDR and (header.p_vaddr, header.p_filesz) != (address, len(table)):
            raise BinaryError(f"PT_PHDR says {header.p_vaddr:#x}, {header.p_filesz:#x} bytes")


def _table_is_mapped(case: _Case) -> None:
    check_header_table(case.after, is_mapped=case.before.address(case.before.header.e_phoff) is not None)


def _same_headers(case: _Case) -> None:
    if len(case.after.sections) < len(case.before.sections):
        raise BinaryError(f"{len(case.after.sections)} sections, were {len(case.before.sections)}")
    for index in case.gone:
        if case.after.sections[index].header.sh_type != SectionType.NULL:
            raise BinaryError(f"section {index} is still there")
    for old, new in case.remaining_sections:
        is_resized = old.index in case.replaced or _is_slid_hash(old, new)
        free = {"sh_offset": 0} | ({"sh_size": 0} if is_resized else {})
        free |= {"sh_addr": 0} if old.header.sh_type in SLIDING and old.is_loaded else {}
        if replace(old.header, **free) != replace(new.header, **free) or old.name != new.name:
            raise BinaryError(f"{new.header} of {new.name} was {old.header} of {old.name}")
    for more in case.after.sections[len(case.before.sections) :]:
        if not any(old.index in case.replaced and old.name == more.name for old in case.before.sections):
            raise BinaryError(f"section {more.name} is new")


def _is_slid_hash(old: Section, new: Section) -> bool:
    return old.header.sh_type == SectionType.GNU_HASH and new.header.sh_addr != old.header.sh_addr


def _sections_are_loaded(case: _Case) -> None:
    for section in case.after.sections:
        if not section.is_loaded or not section.header.sh_size:
            continue
        if section.span:
            offsets = case.after.offset(section.addresses.start), case.after.offset(section.addresses.stop - 1)
            if offsets != (section.span.start, section.span[-1]):
                raise BinaryError(f"section {section.name} is not loaded from {section.span.start:#x}")
        if not section.header.sh_flags & SectionFlag.TLS or section.span:
            _check_permission(case, section)


def _check_permission(case: _Case, section: Section) -> None:
    old, new = case.before.load_of(section.addresses), case.after.load_of(section.addresses)
    if old is None:
        return
    if new is None:
        raise BinaryError(f"section {section.name} is in no PT_LOAD")
    needed = (old.p_flags & ~SegmentFlag.X) | (SegmentFlag.X if section.header.sh_flags & SectionFlag.EXECINSTR else 0)
    if new.p_flags & needed != needed or (new.p_flags ^ old.p_flags) & SegmentFlag.W:
        raise BinaryError(f"section {section.name} is mapped with {new.p_flags:#x}, was {old.p_flags:#x}")


def _same_bytes(case: _Case) -> None:
    words = case.words()
    for old, new in case.remaining_sections:
        if old.index in case.replaced:
            for addresses in _unclaimed(case, old):
                was, now = case.before.offset(addresses.start), case.after.offset(addresses.start)
                if was is None or now is None:
                    raise BinaryError(f"{addresses.start:#x} is no longer loaded")
                span = range(now, now + len(addresses))
                if (offset := case.written.differs(span, case.before.data, was, {})) is not None:
                    raise BinaryError(f"what was at {offset:#x} and no replacement covers is another")
        elif _is_slid_hash(old, new):
            _check_hash(case, old, new)
        elif old.span:
            inside = {at: value for at, value in words.items() if at in old.span}
            if (offset := case.written.differs(new.span, case.before.data, old.span.start, inside)) is not None:
                raise BinaryError(f"section {old.name} differs from what was at {offset:#x}")


def _remaining(before: ElfImage, after: ElfLayout, gone: Collection[int]) -> Iterator[tuple[Section, Section]]:
    pairs = zip(before.sections, after.sections, strict=False)
    return (pair for pair in pairs if pair[0].index not in gone)


def _expected(
    before: ElfImage,
    after: ElfLayout,
    replacements: Sequence[Replacement],
    moves: Sequence[Move],
    gone: Collection[int],
) -> dict[int, int]:
    words: dict[int, int] = {}
    for replacement, move in zip(replacements, moves, strict=True):
        words |= pointer_words(before, replacement.pointers, move.new.start)
    pairs = [pair for pair in _remaining(before, after, gone) if pair[0].header.sh_addr != pair[1].header.sh_addr]
    slid = [Move(old.addresses, new.addresses) for old, new in pairs]
    starts = {move.old.start: move.new.start for move in slid}
    offsets = before.dynamic_offsets()
    for tag, value in before.dynamic().items():
        if tag in ADDRESS_TAGS and value in starts:
            words[offsets[tag] + WORD.size] = starts[value]
    return words | symbol_words(before, [*moves, *slid], without=[before.sections[index] for index in gone])


def _unclaimed(case: _Case, section: Section) -> list[range]:
    shift = section.header.sh_addr - section.header.sh_offset
    rest = outside(section.addresses, [move.old for move in case.moves])
    return [span for span in rest if any(case.before.data[span.start - shift : span.stop - shift])]


def _check_hash(case: _Case, old: Section, new: Section) -> None:
    was, now = Bloom.parse(case.before.view(old.span)), Bloom.parse(case.written[new.span.start : new.span.stop])
    while len(was.words) > len(now.words):
        was = was.halved()
    head = Bloom.parse(case.before.view(old.span)).size
    rest = range(new.span.start + now.size, new.span.stop)
    if was != now or case.written.differs(rest, case.before.data, old.span.start + head, {}) is not None:
        raise BinaryError(f"section {new.name} does not find what it found")
    if len(rest) != len(old.span) - head:
        raise BinaryError(f"section {new.name} has another length")


def _same_memory(case: _Case) -> None:
    words, ordered = case.words(), _ordered(case)
    for page in page_sizes(case.before):
        old, new = Memory.of(case.before, page=page), Memory.of(case.after, page=page)
        for load in case.before.loads:
            for addresses in outside(load.addresses, ordered):
                for was in old.within(addresses):
                    _check_memory(case, was, new, words)
        for load in case.after.loads:
            if load.p_flags & SegmentFlag.W:
                mapped = [stretch.addresses for stretch in old.within(load.addresses)]
                for addresses in outside(load.addresses, mapped):
                    raise BinaryError(f"{addresses.start:#x} to {addresses.stop:#x} is writable, and was not there")


def _check_memory(case: _Case, was: Stretch, new: Memory, words: dict[int, int]) -> None:
    reached = was.addresses.start
    for now in new.within(was.addresses):
        if now.addresses.start != reached:
            break
        if (was.flags ^ now.flags) & (SegmentFlag.R | SegmentFlag.W) or bool(was.flags) != bool(now.flags):
            raise BinaryError(f"{reached:#x} is mapped with {now.flags:#x}, was {was.flags:#x}")
        old, size = was.within(now.addresses).offset, len(now.addresses)
        if old is None or now.offset is None:
            bytes_left = case.before.data[old : old + size] if old is not None else memoryview(b"")
            bytes_left = case.written[now.offset : now.offset + size] if now.offset is not None else bytes_left
            if any(bytes_left):
                raise BinaryError(f"zeros at {reached:#x} of one of the two files are other bytes in the other")
        else:
            inside = {at: value for at, value in words.items() if old - WORD.size < at < old + size}
            at = case.written.differs(range(now.offset, now.offset + size), case.before.data, old, inside)
            if at is not None:
                raise BinaryError(f"the byte at {at:#x} of the original is another at {reached + at - old:#x}")
        reached = now.addresses.stop
    if reached != was.addresses.stop:
        raise BinaryError(f"{reached:#x} is not mapped any more")


def _ordered(case: _Case) -> list[range]:
    """The addresses at which something else may be."""
    ordered = []
    for layout in (case.before, case.after):
        header = layout.header
        # patchelf lets the section headers be mapped, which nobody reads in memory
        sections = range(header.e_shoff, header.e_shoff + SectionHeader.layout.size * header.e_shnum)
        spans = [span for span in (range(FileHeader.layout.size), header_table(layout), sections) if span]
        starts = [layout.address(span.start) for span in spans]
        ordered += [range(at, at + len(span)) for at, span in zip(starts, spans, strict=True) if at is not None]
    for old, new in case.remaining_sections:
        if old.index in case.replaced:
            ordered += outside(old.addresses, _unclaimed(case, old))
        elif old.is_loaded and old.header.sh_addr != new.header.sh_addr:
            ordered += [old.addresses, new.addresses]
    return ordered


def _same_segments(case: _Case) -> None:
    segments = [_placed(segment, case.after) for segment in case.after.segments if segment.p_type != SegmentType.LOAD]
    slid = {
        old.header.sh_addr: new.header.sh_addr - old.header.sh_addr
        for old, new in case.remaining_sections
        if old.is_loaded
    }
    for segment in case.before.segments:
        if segment.p_type in {SegmentType.LOAD, SegmentType.PHDR, SegmentType.NULL}:
            continue
        by = slid.get(segment.p_vaddr, 0) if segment.p_type in NOTES else 0
        moved = replace(segment, p_vaddr=segment.p_vaddr + by, p_paddr=segment.p_paddr + by)
        if _placed(moved, case.after) not in segments and segment.p_type not in NOTES:
            raise BinaryError(f"segment of type {segment.p_type:#x} at {segment.p_vaddr:#x} is not where it was")


def _placed(segment: ProgramHeader, after: ElfLayout) -> ProgramHeader:
    offset = after.offset(segment.p_vaddr) if segment.p_filesz else 0
    return replace(segment, p_offset=segment.p_offset if offset is None else offset)


def _is_no_larger(case: _Case) -> None:
    if len(case.written) > case.before.size:
        raise BinaryError(f"{len(case.written):#x} bytes, were {case.before.size:#x}")


INVARIANTS: dict[str, Callable[[_Case], None]] = {
    "the file header is the same": _same_header,
    "PT_LOADs ascend and lie apart": _loads_ascend,
    "offset and address agree modulo the alignment": lambda case: check_offsets(case.after),
    "the program headers are mapped and overlap nothing": _table_is_mapped,
    "the sections are the same": _same_headers,
    "every section is loaded from its place with its permissions": _sections_are_loaded,
    "every other byte, relocation and symbol is the same": _same_bytes,
    "everything else in memory is the same": _same_memory,
    "the other segments cover the same addresses": _same_segments,
    "the file has not grown": _is_no_larger,
}
