"""Make a library smaller on disk without moving anything that is referred to from elsewhere.

    replaced spans -> packed down in their section -> whole pages left free -> holes in the file
                                                      less than a page -> zeros, and the file keeps its size
    unneeded sections -> holes behind what is loaded, or between
    PT_LOADs split at their holes, room for the new program headers, offsets shifted, pointers led to the new places
    -> an edited file, proved before it is handed out

Only replaced spans have new addresses, inside their section, and all that leads there is known, or the file is refused.
"""

from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from vbuild.binary.code import outside
from vbuild.binary.edits import (
    Chunk,
    Edit,
    Packing,
    Replacement,
    Strip,
    apply_edits,
    by_section,
    check_followed,
    pack_down,
    pack_into_gaps,
    up,
)
from vbuild.elf.image import ElfImage, Section
from vbuild.elf.records import ADDRESS_TAGS, FileHeader, FileType, SectionFlag, SectionHeader, SectionType
from vbuild.elf.surgery.cut_check import Move, pointer_words, prove, symbol_words
from vbuild.elf.surgery.holes import (
    ROW,
    Holes,
    PointerSlot,
    SlotTable,
    find_header_room,
    page,
    sections_to_strip,
    split,
    unloaded_holes,
)
from vbuild.elf.surgery.tables import check_tables
from vbuild.errors import BinaryError
from vbuild.files.edited import EditedFile, Part

# `pack_down`, or `pack_into_gaps`
_Packer = Callable[..., Packing]
_WORD = 8
_HEADER_ALIGNMENT = 8


class Operation(Struct, frozen=True):
    """The new file, and the ways to room for its program headers; *why_large* explains zeros instead of holes."""

    edited: EditedFile
    slots: tuple[PointerSlot, ...] = ()
    why_large: str | None = None


def cut(
    image: ElfImage, replacements: Sequence[Replacement], *, strip: Strip = Strip.NOTHING, force: bool = False
) -> Operation:
    """*image* with *replacements* and without what *strip* drops, proved; `BinaryError` if that is a risk.

    *force* also allows what GNU strip would destroy later.
    """
    if image.header.e_type not in {FileType.DYN, FileType.EXEC}:
        if replacements:
            raise BinaryError(f"file of type {image.header.e_type:#x}: expected a shared library or program")
        return Operation(EditedFile.whole(image.data))
    unneeded = sections_to_strip(image, strip)
    beds = _beds(image, replacements)
    spans = []
    for span in (replacement.span for replacement in replacements):
        if (address := image.address(span.start)) is None:
            raise BinaryError(f"replaced {span.start:#x} is not loaded")
        spans.append(range(address, address + len(span)))
    check_followed(replacements, spans, image.pointers(spans), image.exported(spans))
    plan = _best(image, beds, unneeded, replacements, force=force)
    if not plan.holes.size and not plan.beds:
        size = sum(len(section.span) for section in unneeded)
        why = f"{size} bytes to strip stay: what is loaded behind them moves by whole pages" if size else None
        return Operation(EditedFile.whole(image.data), why_large=why)
    check_tables(image, spans, filled=[pointer.place for piece in replacements for pointer in piece.pointers])
    edited = apply_edits(image.data, _edits(image, plan))
    replaced = tuple(replacement for bed in plan.beds for replacement in bed.replacements)
    prove(image, edited, replaced, without=unneeded)
    return Operation(edited, plan.table.slots, plan.why_large)


class _Bed(Struct, frozen=True):
    section: Section
    replacements: tuple[Replacement, ...]
    packing: Packing

    @property
    def shift(self) -> int:
        return self.section.header.sh_addr - self.section.header.sh_offset

    @property
    def is_changed(self) -> bool:
        return any(replacement.parts != (replacement.span,) for replacement in self.replacements)

    def in_file(self, addresses: range) -> range:
        return range(addresses.start - self.shift, addresses.stop - self.shift)

    def holes(self, unit: int, *, shelf: int = 0) -> tuple[range, ...]:
        holes = []
        for number, free in enumerate(self.packing.free):
            start = up(free.start if number else min(free.start + shelf, free.stop), unit)
            holes.append(range(start, max(start, free.stop // unit * unit)))
        return tuple(filter(None, holes))

    @property
    def moves(self) -> tuple[Move, ...]:
        moves = []
        for replacement, start in zip(self.replacements, self.packing.starts, strict=True):
            old = range(replacement.span.start + self.shift, replacement.span.stop + self.shift)
            moves.append(Move(old, range(start, start + replacement.size)))
        return tuple(moves)


class _Plan(Struct, frozen=True):
    beds: tuple[_Bed, ...]
    unneeded: tuple[Section, ...]
    holes: Holes
    table: SlotTable
    why_large: str | None = None


def _beds(image: ElfImage, replacements: Sequence[Replacement], *, packing: _Packer = pack_down) -> tuple[_Bed, ...]:
    sections = by_section(replacements, lambda replacement: _section_of(image, replacement).index)
    return tuple(_bed(image, image.sections[index], inside, packing) for index, inside in sections.items())


def _section_of(image: ElfImage, replacement: Replacement) -> Section:
    span = replacement.span
    for section in image.sections:
        if span.start in section.span and span.stop <= section.span.stop:
            start, end = image.offset(section.addresses.start), image.offset(section.addresses.stop - 1)
            if not section.is_loaded or (start, end) != (section.span.start, section.span[-1]):
                raise BinaryError(f"section {section.name} is not loaded from its place in the file")
            if section.header.sh_flags & SectionFlag.EXECINSTR:
                raise BinaryError(f"section {section.name} is code, which other code reaches")
            return section
    raise BinaryError(f"replaced {span.start:#x} to {span.stop:#x} is not inside one section")


def _bed(image: ElfImage, section: Section, replacements: tuple[Replacement, ...], packing: _Packer) -> _Bed:
    shift = section.header.sh_addr - section.header.sh_offset

    def is_padding(addresses: range) -> bool:
        return not any(image.data[addresses.start - shift : addresses.stop - shift])

    pieces = [
        Chunk(range(piece.span.start + shift, piece.span.stop + shift), piece.size, stays=not piece.pointers)
        for piece in replacements
    ]
    alignment = max(1, section.header.sh_addralign)
    packed_pieces = packing(section.addresses, pieces, alignment=alignment, is_padding=is_padding)
    return _Bed(section, replacements, packed_pieces)


def _best(
    image: ElfImage,
    beds: tuple[_Bed, ...],
    unneeded: tuple[Section, ...],
    replacements: Sequence[Replacement],
    *,
    force: bool,
) -> _Plan:
    """The plan for *beds*; with fewer and larger holes if short of program headers."""
    unit = page(image.machine)
    plan = _plan(image, beds, unneeded, force=force)
    wanted = sum(len(hole) for bed in beds for hole in bed.holes(unit))
    if plan.holes.size >= wanted or all(len(bed.packing.free) <= 1 for bed in beds):
        return plan
    try:
        other = _plan(image, _beds(image, replacements, packing=pack_into_gaps), unneeded, force=force)
    except BinaryError:
        return plan
    return max(plan, other, key=lambda choice: choice.holes.size)


def _plan(image: ElfImage, beds: tuple[_Bed, ...], unneeded: tuple[Section, ...], *, force: bool) -> _Plan:
    unit = page(image.machine)
    gone = unloaded_holes(image, unneeded)
    candidates = sorted((bed.in_file(hole) for bed in beds for hole in bed.holes(unit)), key=len, reverse=True)

    def fitting(count: int) -> _Plan | None:
        largest = candidates[:count]
        holes = Holes.of([*largest, *gone])
        table = find_header_room(image, split(image, holes), holes)
        # what goes does so even without a hole
        cut_beds = tuple(
            bed for bed in beds if bed.is_changed or any(hole.start in bed.section.span for hole in largest)
        )
        return _Plan(cut_beds, unneeded, holes, table) if table else None

    # fewer holes need fewer program headers, so the most that fit are found by halves
    best, low, high = fitting(len(candidates)), 0, len(candidates) - 1
    while best is None and low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fitting(middle) else (low, middle - 1)
    if best or (low and (best := fitting(low))):
        return best
    if force and (plan := _forced(image, beds, unneeded, gone)):
        return plan
    why = (
        f"no room for more than the {image.header.e_phnum} program headers it has: expected slack, a .gnu.hash to "
        "shorten, PT_LOADs to merge or a PT_NOTE; the table can be moved by force, but GNU strip destroys such a file"
    )
    if not (plan := fitting(0)) or not (plan.beds or plan.holes.size):
        raise BinaryError(why)
    return replace(plan, why_large=f"the room of what goes, now zeros: {why}")


def _forced(
    image: ElfImage, beds: tuple[_Bed, ...], unneeded: tuple[Section, ...], gone: Sequence[range]
) -> _Plan | None:
    unit = page(image.machine)
    shelf = ROW * (image.header.e_phnum + sum(len(bed.packing.free) for bed in beds)) + _HEADER_ALIGNMENT
    holes = Holes.of([*(bed.in_file(hole) for bed in beds for hole in bed.holes(unit, shelf=shelf)), *gone])
    for bed in beds:
        free = bed.in_file(bed.packing.free[0]) if bed.packing.free else range(0)
        shelf_span = range(free.start, min(free.start + shelf, free.stop))
        if len(shelf_span) == shelf and (
            table := find_header_room(image, split(image, holes), holes, shelf=shelf_span)
        ):
            return _Plan(beds, unneeded, holes, table)
    return None


def _edits(image: ElfImage, plan: _Plan) -> list[Edit]:
    edits = [Edit(hole) for hole in plan.holes.spans]
    words: dict[int, int] = {}
    moves: list[Move] = []
    table = plan.table
    zeros = [gap for section in plan.unneeded for gap in outside(section.span, plan.holes.spans)]
    for bed in plan.beds:
        for replacement, move in zip(bed.replacements, bed.moves, strict=True):
            edits.append(Edit(bed.in_file(move.new), replacement.parts))
            words |= pointer_words(image, replacement.pointers, move.new.start)
        moves += bed.moves
        for gap in (gap for free in bed.packing.free for gap in outside(bed.in_file(free), plan.holes.spans)):
            is_shelf = table.start in gap  # the table moves there
            zeros += [range(gap.start, table.start), range(table.end, gap.stop)] if is_shelf else [gap]
    edits += (Edit(gap, (bytes(len(gap)),)) for gap in zeros)
    slid_words, slid = _slid(image, table)
    words |= slid_words
    words |= symbol_words(image, [*moves, *slid], without=plan.unneeded)
    edits += (Edit(range(at, at + _WORD), (value.to_bytes(_WORD, "little"),)) for at, value in words.items())
    return [*edits, *_header_edits(image, plan)]


def _slid(image: ElfImage, table: SlotTable) -> tuple[dict[int, int], list[Move]]:
    if not (slide := table.slide):
        return {}, []
    span, start = slide.span, image.address(slide.span.start)
    addresses = range(start, start + len(span)) if start is not None else range(0)
    offsets = image.dynamic_offsets()
    words = {
        offsets[tag] + _WORD: value + slide.by
        for tag, value in image.dynamic().items()
        if tag in ADDRESS_TAGS and value in addresses
    }
    slid = [section.addresses for section in image.sections if section.span and section.span.start in span]
    return words, [Move(old, range(old.start + slide.by, old.stop + slide.by)) for old in slid if old]


def _header_edits(image: ElfImage, plan: _Plan) -> list[Edit]:
    table, holes = plan.table, plan.holes
    sections = _section_headers(image, plan)
    start = image.header.e_shoff
    if len(sections) > image.header.e_shnum:
        start = up(image.size, _HEADER_ALIGNMENT)
    header = replace(
        image.header,
        e_phoff=holes.offset(table.start),
        e_phnum=len(table.headers),
        e_shoff=holes.offset(start) if sections else 0,
        e_shnum=len(sections),
    )
    packed_sections = b"".join(section.pack() for section in sections)
    return [
        Edit(range(FileHeader.layout.size), (header.pack(),)),
        Edit(range(start, start + len(packed_sections)), (packed_sections,)),
        _table_edit(image, table, holes),
    ]


def _table_edit(image: ElfImage, table: SlotTable, holes: Holes) -> Edit:
    rows = b"".join(replace(header, p_offset=holes.offset(header.p_offset)).pack() for header in table.headers)
    if not (slide := table.slide):
        if table.start != image.header.e_phoff:
            return Edit(range(table.start, table.end), (rows,))
        size = max(len(rows), ROW * image.header.e_phnum)
        return Edit(range(table.start, table.start + size), (rows.ljust(size, b"\0"),))
    hash_span = slide.hash.span
    parts: list[Part] = [
        rows.ljust(slide.span.start + slide.by - table.start, b"\0"),
        range(slide.span.start, hash_span.start),
        slide.bloom.pack(),
        range(hash_span.start + slide.old_head, hash_span.stop),
    ]
    size = slide.span.stop - table.start
    parts.append(bytes(size - sum(map(len, parts))))
    return Edit(range(table.start, slide.span.stop), tuple(parts))


def _section_headers(image: ElfImage, plan: _Plan) -> list[SectionHeader]:
    """Removed ones become SHT_NULL, so no index changes.

    A section with a hole in its middle needs two; the second goes to the end.
    """
    beds = {bed.section.index: bed for bed in plan.beds}
    slide = plan.table.slide
    headers: list[SectionHeader] = []
    more: list[SectionHeader] = []
    for section in image.sections:
        if section in plan.unneeded:
            headers.append(SectionHeader(0, SectionType.NULL, 0, 0, 0, 0, 0, 0, 0, 0))
            continue
        header = section.header
        if slide and section.span and section.span.start in slide.span:
            shorter = slide.old_head - slide.bloom.size if section == slide.hash else 0
            header = replace(
                header,
                sh_addr=header.sh_addr + slide.by,
                sh_offset=header.sh_offset + slide.by,
                sh_size=header.sh_size - shorter,
            )
        first, *rest = _cut_up(header, beds[section.index], plan.holes) if section.index in beds else [header]
        headers.append(first)
        more += rest
    return [replace(header, sh_offset=plan.holes.offset(header.sh_offset)) for header in (*headers, *more)]


def _cut_up(header: SectionHeader, bed: _Bed, holes: Holes) -> list[SectionHeader]:
    edges = [header.sh_addr]
    for free in bed.packing.free:
        if holes.within(bed.in_file(free)):
            edges += [free.start, free.stop]
    edges.append(header.sh_addr + header.sh_size)
    parts: list[SectionHeader] = []
    for start, stop in zip(edges[::2], edges[1::2], strict=True):
        if start < stop or not parts:
            alignment = min(header.sh_addralign, start & -start) if start else header.sh_addralign
            offset = start - bed.shift
            parts.append(replace(header, sh_addr=start, sh_offset=offset, sh_size=stop - start, sh_addralign=alignment))
    return parts
