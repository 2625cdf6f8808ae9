"""What must hold of a library that was cut, each invariant a function: read back from the new bytes, not from the plan.

A bytes-for-bytes comparison costs nothing if the new file takes a range of the old one from its own place; only new
bytes are looked at. What moved is learned from the pointers of the new file: they are followed as the loader would,
and must end at the bytes that were ordered. https://gabi.xinuos.com/elf/08-dynamic.html, glibc ``elf/dl-load.c``
"""

import itertools
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache, partial

from msgspec import Struct
from msgspec.structs import replace

from vbuild.binary.edits import Replacement, Written
from vbuild.binary.image import Pointer
from vbuild.elf.image import WORD, ElfImage
from vbuild.elf.layout import ElfLayout, Section
from vbuild.elf.records import (
    ADDRESS_TAGS,
    FileHeader,
    ProgramHeader,
    Relocation,
    SectionFlag,
    SectionHeader,
    SectionType,
    SegmentFlag,
    SegmentType,
)
from vbuild.elf.surgery.memory import Memory, Stretch, page_sizes, without
from vbuild.elf.surgery.slots import NOTES, ROW, SLIDING, Bloom
from vbuild.elf.surgery.written import Move, pointer_words, symbol_words
from vbuild.errors import BinaryError, at
from vbuild.files.edited import EditedFile, Part


class _Case(Struct, frozen=True):
    """The file before and after, and what was ordered."""

    before: ElfImage
    after: ElfLayout
    written: Written
    replacements: tuple[Replacement, ...]
    moves: tuple[Move, ...]
    gone: frozenset[int]
    replaced: frozenset[int]
    """The indices of the sections in which something was replaced, as *gone* are of those dropped."""
    words: Callable[[], dict[int, int]]
    """Returns the only words that may differ, by their old file offset, and what they must be."""

    @property
    def kept(self) -> Iterator[tuple[Section, Section]]:
        """The sections that were not dropped, before and after."""
        return _kept(self.before, self.after, self.gone)


def prove(
    before: ElfImage,
    after: EditedFile | ElfImage,
    replacements: Sequence[Replacement],
    *,
    without: Sequence[Section] = (),
) -> None:
    """Nothing, if *after* is *before* with *replacements* and *without* some sections; else a `BinaryError`.

    The message begins with the name of the invariant that does not hold.
    """
    written = Written.of(EditedFile.whole(after.data) if isinstance(after, ElfImage) else after)
    with at("the new file can be read"):
        layout = ElfLayout.parse(written)
    with at("every pointer leads to the bytes ordered"):
        moves = tuple(_led(before, layout, written, each) for each in replacements)
    gone = frozenset(section.index for section in without)
    starts = sorted(each.span.start for each in replacements)
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


def _led(before: ElfImage, after: ElfLayout, written: Written, replacement: Replacement) -> Move:
    """Where the pointers of the new file lead to, and that the bytes ordered are there."""
    start = before.address(replacement.span.start)
    if start is None:
        raise BinaryError(f"bytes at {replacement.span.start:#x} are not loaded")
    found = {_followed(before, after, written, pointer) for pointer in replacement.pointers} or {start}
    if len(found) != 1:
        raise BinaryError(f"pointers to {start:#x} now lead to {len(found)} places")
    new = found.pop()
    offset = after.offset(new)
    if offset is None or after.offset(new + replacement.size - 1) != offset + replacement.size - 1:
        raise BinaryError(f"{replacement.size:#x} bytes at {new:#x} are not in the file")
    for part in replacement.parts:
        _check_part(before, written, offset, part)
        offset += len(part)
    return Move(range(start, start + len(replacement.span)), range(new, new + replacement.size))


def _followed(before: ElfImage, after: ElfLayout, written: Written, pointer: Pointer) -> int:
    """The address that the loader writes to the pointer's place."""
    if pointer.row is not None:
        table = before.address(pointer.row)
        row = None if table is None else after.offset(table)
        if row is None:
            raise BinaryError(f"relocation at {pointer.row:#x} is not loaded")
        found = Relocation.parse(written[row : row + Relocation.layout.size])
        if found.r_offset != pointer.place:
            raise BinaryError(f"relocation at {row:#x} is that of {found.r_offset:#x}, expected {pointer.place:#x}")
        return found.r_addend
    place = after.offset(pointer.place)
    if place is None:
        raise BinaryError(f"pointer at {pointer.place:#x} is not in the file")
    return int(WORD.unpack(written[place : place + WORD.size])[0])


def _check_part(before: ElfImage, written: Written, offset: int, part: Part) -> None:
    span = range(offset, offset + len(part))
    if isinstance(part, range):
        if (place := written.differs(span, before.data, part.start, {})) is not None:
            raise BinaryError(f"byte {place:#x} of the original is another at {offset + place - part.start:#x}")
    elif bytes(written[span.start : span.stop]) != part:
        raise BinaryError(f"{len(part):#x} new bytes are not at {offset:#x}")


def _same_header(case: _Case) -> None:
    old, new = case.before.header, case.after.header
    same = replace(new, e_phoff=old.e_phoff, e_phnum=old.e_phnum, e_shoff=old.e_shoff, e_shnum=old.e_shnum)
    if same != old:
        raise BinaryError(f"{new} was {old}")


def _loads_ascend(case: _Case) -> None:
    loads = [segment for segment in case.after.segments if segment.p_type == SegmentType.LOAD]
    for one, other in itertools.pairwise(loads):
        if one.addresses.stop > other.p_vaddr:
            raise BinaryError(f"PT_LOAD of {other.p_vaddr:#x} behind that of {one.p_vaddr:#x}")


def _offsets_agree(case: _Case) -> None:
    for load in case.after.loads:
        unit = load.p_align
        if unit & (unit - 1) or (unit > 1 and (load.p_offset - load.p_vaddr) % unit):
            raise BinaryError(f"PT_LOAD of {load.p_vaddr:#x} at {load.p_offset:#x} with alignment {unit:#x}")


def _table_is_mapped(case: _Case) -> None:
    before, after = case.before, case.after
    start = after.header.e_phoff
    table = range(start, start + ROW * after.header.e_phnum)
    for section in after.sections:
        if section.span and section.span.start < table.stop and table.start < section.span.stop:
            raise BinaryError(f"section {section.name} in the program headers")
    if before.address(before.header.e_phoff) is None:
        return
    address = after.address(table.start)
    if address is None or after.address(table[-1]) != address + len(table) - 1:
        raise BinaryError(f"program headers at {table.start:#x} to {table.stop:#x}")
    for header in after.segments:
        if header.p_type == SegmentType.PHDR and (header.p_vaddr, header.p_filesz) != (address, len(table)):
            raise BinaryError(f"PT_PHDR says {header.p_vaddr:#x}, {header.p_filesz:#x} bytes")


def _same_headers(case: _Case) -> None:
    if len(case.after.sections) < len(case.before.sections):
        raise BinaryError(f"{len(case.after.sections)} sections, were {len(case.before.sections)}")
    for index in case.gone:
        if case.after.sections[index].header.sh_type != SectionType.NULL:
            raise BinaryError(f"section {index} is still there")
    for old, new in case.kept:
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
            found = case.after.offset(section.addresses.start), case.after.offset(section.addresses.stop - 1)
            if found != (section.span.start, section.span[-1]):
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
    for old, new in case.kept:
        if old.index in case.replaced:
            for stretch in _unclaimed(case, old):
                _check_stretch(case, stretch)
        elif _is_slid_hash(old, new):
            _check_hash(case, old, new)
        elif old.span:
            inside = {at: value for at, value in words.items() if at in old.span}
            if (place := case.written.differs(new.span, case.before.data, old.span.start, inside)) is not None:
                raise BinaryError(f"section {old.name} differs from what was at {place:#x}")


def _kept(before: ElfImage, after: ElfLayout, gone: Collection[int]) -> Iterator[tuple[Section, Section]]:
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
    for each, move in zip(replacements, moves, strict=True):
        words |= pointer_words(before, each.pointers, move.new.start)
    pairs = [pair for pair in _kept(before, after, gone) if pair[0].header.sh_addr != pair[1].header.sh_addr]
    slid = [Move(old.addresses, new.addresses) for old, new in pairs]
    starts = {move.old.start: move.new.start for move in slid}
    offsets = before.dynamic_offsets()
    for tag, value in before.dynamic().items():
        if tag in ADDRESS_TAGS and value in starts:
            words[offsets[tag] + WORD.size] = starts[value]
    return words | symbol_words(before, [*moves, *slid], without=[before.sections[index] for index in gone])


def _unclaimed(case: _Case, section: Section) -> list[range]:
    """The addresses of *section* that no replacement covers and that are more than padding."""
    edges = [section.addresses.start]
    for move in sorted(case.moves, key=lambda move: move.old.start):
        if move.old.start in section.addresses:
            edges += [move.old.start, move.old.stop]
    edges.append(section.addresses.stop)
    shift = section.header.sh_addr - section.header.sh_offset
    found = [range(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True) if start < stop]
    return [each for each in found if any(case.before.data[each.start - shift : each.stop - shift])]


def _check_stretch(case: _Case, addresses: range) -> None:
    old, new = case.before.offset(addresses.start), case.after.offset(addresses.start)
    if old is None or new is None:
        raise BinaryError(f"{addresses.start:#x} is no longer loaded")
    if (place := case.written.differs(range(new, new + len(addresses)), case.before.data, old, {})) is not None:
        raise BinaryError(f"what was at {place:#x} and no replacement covers is another")


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
    """Every byte that the loader mapped is mapped with the same permissions and is the same, but for what was ordered.

    Of a segment, code or not is the concern of its sections.
    """
    words, ordered = case.words(), _ordered(case)
    for page in page_sizes(case.before):
        old, new = Memory.of(case.before, page=page), Memory.of(case.after, page=page)
        for load in case.before.loads:
            for addresses in without(load.addresses, ordered):
                for was in old.within(addresses):
                    _check_memory(case, was, new, words)
        for load in case.after.loads:
            if load.p_flags & SegmentFlag.W:
                mapped = [each.addresses for each in old.within(load.addresses)]
                for addresses in without(load.addresses, mapped):
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
            place = case.written.differs(range(now.offset, now.offset + size), case.before.data, old, inside)
            if place is not None:
                raise BinaryError(f"the byte at {place:#x} of the original is another at {reached + place - old:#x}")
        reached = now.addresses.stop
    if reached != was.addresses.stop:
        raise BinaryError(f"{reached:#x} is not mapped any more")


def _ordered(case: _Case) -> list[range]:
    """The addresses at which something else may be: the headers, what gave room for them, and what was replaced."""
    found = []
    for layout in (case.before, case.after):
        header = layout.header
        table = range(header.e_phoff, header.e_phoff + ROW * header.e_phnum)
        # patchelf lets the section headers be mapped, which nobody reads in memory
        sections = range(header.e_shoff, header.e_shoff + SectionHeader.layout.size * header.e_shnum)
        spans = [span for span in (range(FileHeader.layout.size), table, sections) if span]
        starts = [layout.address(span.start) for span in spans]
        found += [range(at, at + len(span)) for at, span in zip(starts, spans, strict=True) if at is not None]
    for old, new in case.kept:
        if old.index in case.replaced:
            found += without(old.addresses, _unclaimed(case, old))
        elif old.is_loaded and old.header.sh_addr != new.header.sh_addr:
            found += [old.addresses, new.addresses]
    return found


def _same_segments(case: _Case) -> None:
    found = [_placed(each, case.after) for each in case.after.segments if each.p_type != SegmentType.LOAD]
    slid = {old.header.sh_addr: new.header.sh_addr - old.header.sh_addr for old, new in case.kept if old.is_loaded}
    for segment in case.before.segments:
        if segment.p_type in {SegmentType.LOAD, SegmentType.PHDR, SegmentType.NULL}:
            continue
        by = slid.get(segment.p_vaddr, 0) if segment.p_type in NOTES else 0
        moved = replace(segment, p_vaddr=segment.p_vaddr + by, p_paddr=segment.p_paddr + by)
        if _placed(moved, case.after) not in found and segment.p_type not in NOTES:
            raise BinaryError(f"segment of type {segment.p_type:#x} at {segment.p_vaddr:#x} is not where it was")


def _placed(segment: ProgramHeader, after: ElfLayout) -> ProgramHeader:
    """*segment* at the file offset that its address has in *after*."""
    offset = after.offset(segment.p_vaddr) if segment.p_filesz else 0
    return replace(segment, p_offset=segment.p_offset if offset is None else offset)


def _is_no_larger(case: _Case) -> None:
    if len(case.written) > case.before.size:
        raise BinaryError(f"{len(case.written):#x} bytes, were {case.before.size:#x}")


INVARIANTS: dict[str, Callable[[_Case], None]] = {
    "the file header is the same": _same_header,
    "PT_LOADs ascend and lie apart": _loads_ascend,
    "offset and address agree modulo the alignment": _offsets_agree,
    "the program headers are mapped and overlap nothing": _table_is_mapped,
    "the sections are the same": _same_headers,
    "every section is loaded from its place with its permissions": _sections_are_loaded,
    "every other byte, relocation and symbol is the same": _same_bytes,
    "everything else in memory is the same": _same_memory,
    "the other segments cover the same addresses": _same_segments,
    "the file has not grown": _is_no_larger,
}
