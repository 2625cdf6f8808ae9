"""Make a PE file smaller on disk without moving anything that is referred to from elsewhere.

    replaced spans -> packed down in their section -> the section's end, now free, is left out of the file
    later sections shift in the file by whole FileAlignment units; the loader fills what is left out with zeros
    -> an edited file, proved before it is handed out

Addresses and sizes in memory stay. What has file offsets follows: section headers, the debug directory, the symbol
table of debuggers. A file with an Authenticode signature, or other bytes behind its last section, is refused.
"""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from vbuild.binary.code import outside
from vbuild.binary.edits import (
    Chunk,
    Edit,
    Packing,
    Replacement,
    Strip,
    Written,
    apply_edits,
    by_section,
    check_followed,
    pack_down,
    pack_into_gaps,
    up,
)
from vbuild.errors import BinaryError, at
from vbuild.files.edited import EditedFile
from vbuild.pe.image import CoffHeader, Directory, Machine, PeImage, PeLayout, PeSection, SectionFlag

_SYMBOL = 18
_WORD = 8
_DEBUG = (b".debug_", b".zdebug_", b".stab")
_LONGEST_NAME = 64
_EXPORTED = struct.Struct("<20xI4xI")
_CHUNK = 1 << 16
_ONES = 0xFFFF
# of the optional header
_CHECKSUM_AT = 64
# where in a row of the debug directory an RVA and a file offset are
_DEBUG_PLACES = 20


def cut(
    image: PeImage,
    replacements: Sequence[Replacement],
    *,
    strip: Strip = Strip.NOTHING,
) -> EditedFile:
    """*image* with *replacements* and without what *strip* names, proved; else `BinaryError`."""
    stripped = debug_sections(image) if strip is not Strip.NOTHING else None
    if all(replacement.parts == (replacement.span,) for replacement in replacements) and stripped is None:
        return EditedFile.whole(image.data)
    _check_kind(image)
    _check_end(image)
    spans = [_addresses(image, replacement.span) for replacement in replacements]
    check_followed(replacements, spans, image.pointers(spans), _exported(image))
    sections = by_section(replacements, lambda replacement: _section_of(image, replacement.span).index)
    beds = tuple(_bed(image, image.sections[index], inside) for index, inside in sections.items())
    edited = _checked_sum(image, apply_edits(image.data, _edits(image, beds, stripped)))
    prove(image, edited, replacements, stripped)
    return edited


def debug_sections(image: PeImage) -> dict[int, bytes] | None:
    """The sections for debuggers, by index, with the letters that are left of each name.

    Stripping takes them and the symbols of a DLL that mingw linked. None if another section needs its name.
    """
    symbols = symbols_of(image)
    if not symbols or symbols.start < image.end or symbols.stop > image.size:
        return None
    strings = symbols.start + _SYMBOL * image.coff.symbols
    debug_data = {entry.raw_at for _, entry in image.debug_entries()}
    sections = {}
    for section in image.sections:
        if section.name.startswith("/"):
            start = strings + int(section.name[1:]) if section.name[1:].isdigit() else image.size
            name = bytes(image.data[start : min(start + _LONGEST_NAME, symbols.stop)]).partition(b"\0")[0]
            is_loaded = not section.header.flags & SectionFlag.DISCARDABLE
            if is_loaded or not name.startswith(_DEBUG) or any(offset in section.raw for offset in debug_data):
                return None
            sections[section.index] = name[:8].ljust(8, b"\0")
    return sections


def symbols_of(image: PeImage) -> range:
    start = image.coff.symbols_at
    strings = start + _SYMBOL * image.coff.symbols
    size = int.from_bytes(image.data[strings : strings + 4], "little")
    return range(start, strings + size) if start and image.coff.symbols else range(0)


class _Bed(Struct, frozen=True):
    section: PeSection
    replacements: tuple[Replacement, ...]
    packing: Packing

    @property
    def shift(self) -> int:
        return self.section.addresses.start - self.section.span.start

    @property
    def end(self) -> int:
        """The file offset behind its last byte that is needed."""
        last = self.packing.free[-1] if self.packing.free else range(0)
        end = self.section.addresses.start + len(self.section.span)
        return (last.start if last.stop == end else end) - self.shift


class _Shifts(Struct, frozen=True):
    """The bytes that stay of shortened sections, by index, and the file offsets that are *gone*."""

    sizes: dict[int, int]
    gone: tuple[range, ...]

    @classmethod
    def of(cls, image: PeImage, sizes: dict[int, int]) -> "_Shifts":
        raw = {index: image.sections[index].raw for index in sizes}
        sizes = {index: min(size, len(raw[index])) for index, size in sizes.items()}
        return cls(sizes, tuple(range(raw[index].start + size, raw[index].stop) for index, size in sizes.items()))

    def offset(self, old: int) -> int:
        return old - sum(min(len(span), max(0, old - span.start)) for span in self.gone)


def _check_kind(image: PeImage) -> None:
    if image.coff.machine not in {Machine.AMD64, Machine.ARM64}:
        raise BinaryError(f"PE file for machine {image.coff.machine:#x}: expected x86-64 (0x8664) or ARM64 (0xaa64)")
    if image.directory(Directory.CLR):
        raise BinaryError("a .NET assembly, which has offsets of its own")
    unit = image.optional.file_alignment
    for section in image.sections:
        if section.raw and (section.raw.start % unit or section.raw.stop % unit):
            raise BinaryError(f"section {section.name} is not at multiples of FileAlignment, {unit:#x}, in the file")


def _check_end(image: PeImage) -> None:
    end = image.end
    if symbols := symbols_of(image):
        if symbols.start < end or symbols.stop > len(image.data):
            raise BinaryError(f"symbols at {symbols.start:#x} are not behind the last section, {end:#x}")
        end = symbols.stop
    if image.directory(Directory.SECURITY):
        raise BinaryError("it has an Authenticode signature, which a cut makes void")
    between = image.data[end:]
    if any(between):
        raise BinaryError(f"{len(between)} bytes behind the last section, which the code may look for by their place")


def _exported(image: PeImage) -> Iterator[int]:
    table = image.table(Directory.EXPORT)
    if not table:
        return
    if len(table) < _EXPORTED.size + 8:
        raise BinaryError(f"export directory of {len(table):#x} bytes")
    count, functions = _EXPORTED.unpack_from(image.data, table.start)
    start = image.offset(image.optional.image_base + functions) if count else None
    if start is not None:
        rows = image.data[start : start + 4 * count]
        yield from (image.optional.image_base + rva for (rva,) in struct.iter_unpack("<I", rows[: len(rows) // 4 * 4]))


def _section_of(image: PeImage, span: range) -> PeSection:
    for section in image.sections:
        if span.start in section.span and span.stop <= section.span.stop:
            if section.header.flags & (SectionFlag.CODE | SectionFlag.EXECUTE):
                raise BinaryError(f"section {section.name} is code, which other code reaches")
            return section
    raise BinaryError(f"replaced {span.start:#x} to {span.stop:#x} is not inside one section")


def _addresses(image: PeImage, span: range) -> range:
    section = _section_of(image, span)
    shift = section.addresses.start - section.span.start
    return range(span.start + shift, span.stop + shift)


def _bed(image: PeImage, section: PeSection, replacements: tuple[Replacement, ...]) -> _Bed:
    shift = section.addresses.start - section.span.start
    filled = range(section.addresses.start, section.addresses.start + len(section.span))
    ends = [replacement.span.start + shift for replacement in replacements[1:]] + [filled.stop]
    gaps = [range(piece.span.stop + shift, end) for piece, end in zip(replacements, ends, strict=True)]
    padding = image.padding(gaps)
    pieces = []
    for replacement, gap in zip(replacements, gaps, strict=True):
        # what pads a piece goes with it: incremental links leave room for it to grow
        span = range(replacement.span.start + shift, gap.stop if gap in padding else gap.start)
        pieces.append(Chunk(span, replacement.size, stays=not replacement.pointers))

    def bed(packing: Callable[..., Packing]) -> _Bed:
        return _Bed(section, replacements, packing(filled, pieces, alignment=1, is_padding=lambda _gap: False))

    try:
        return min(bed(pack_down), bed(pack_into_gaps), key=lambda choice: choice.end)
    except BinaryError:
        return bed(pack_down)


def _edits(image: PeImage, beds: tuple[_Bed, ...], stripped: dict[int, bytes] | None) -> list[Edit]:
    unit = image.optional.file_alignment
    sizes = {bed.section.index: up(bed.end - bed.section.raw.start, unit) for bed in beds}
    shifts = _Shifts.of(image, sizes | dict.fromkeys(stripped or (), 0))
    edits = [Edit(span) for span in shifts.gone]
    for bed in beds:
        stop = bed.section.raw.start + shifts.sizes[bed.section.index]
        for replacement, start in zip(bed.replacements, bed.packing.starts, strict=True):
            offset = start - bed.shift
            edits.append(Edit(range(offset, offset + replacement.size), replacement.parts))
            edits += (_word(image, pointer.place, start) for pointer in replacement.pointers)
        for free in bed.packing.free:
            gap = range(free.start - bed.shift, min(free.stop - bed.shift, stop))
            edits.append(Edit(gap, (bytes(len(gap)),)))
    if stripped is not None:
        edits.append(Edit(symbols_of(image)))
    edits += _section_edits(image, shifts, stripped)
    edits += (
        Edit(range(at, at + entry.layout.size), (replace(entry, raw_at=shifts.offset(entry.raw_at)).pack(),))
        for at, entry in image.debug_entries()
        if entry.raw_at
    )
    return edits


def _word(image: PeImage, address: int, value: int) -> Edit:
    offset = image.offset(address)
    if offset is None:
        raise BinaryError(f"pointer at {address:#x} is not in the file")
    return Edit(range(offset, offset + _WORD), (value.to_bytes(_WORD, "little"),))


def _section_edits(image: PeImage, shifts: _Shifts, stripped: dict[int, bytes] | None) -> Iterator[Edit]:
    coff, optional = image.coff, image.optional
    if stripped is not None:
        coff = replace(coff, symbols_at=0, symbols=0)
    elif coff.symbols_at:
        coff = replace(coff, symbols_at=shifts.offset(coff.symbols_at))
    optional = replace(optional, initialized_size=max(0, optional.initialized_size - sum(map(len, shifts.gone))))
    headers = coff.pack() + optional.pack() + b"".join(directory.pack() for directory in image.directories)
    yield Edit(range(image.coff_at, image.coff_at + len(headers)), (headers,))
    table = image.coff_at + CoffHeader.layout.size + image.coff.optional_size
    rows = b""
    for section in image.sections:
        header = section.header
        size = shifts.sizes.get(section.index, header.raw_size)
        rows += replace(
            header,
            name=(stripped or {}).get(section.index, header.name),
            raw_size=size,
            raw_at=shifts.offset(header.raw_at) if size else 0,
            lines_at=shifts.offset(header.lines_at) if header.lines_at else 0,
            relocations_at=shifts.offset(header.relocations_at) if header.relocations_at else 0,
        ).pack()
    yield Edit(range(table, table + len(rows)), (rows,))


def _checked_sum(image: PeImage, edited: EditedFile) -> EditedFile:
    offset = image.coff_at + CoffHeader.layout.size + _CHECKSUM_AT
    written = Written.of(edited)

    def with_checksum(number: int) -> EditedFile:
        pieces = written.pieces(range(offset + 4, len(written)))
        rest = (piece if isinstance(piece, range) else bytes(piece) for piece in pieces)
        return EditedFile.of(edited.source, [bytes(written[:offset]) + number.to_bytes(4, "little"), *rest])

    return with_checksum(checksum(with_checksum(0))) if image.optional.checksum else edited


def checksum(file: EditedFile) -> int:
    """The checksum of *file*, whose own field is 0: its 16-bit words with carries, and its size."""
    total, odd = 0, b""
    for buffer in file.buffers():
        for start in range(0, len(buffer), _CHUNK):
            piece = odd + bytes(buffer[start : start + _CHUNK])
            whole = len(piece) // 2 * 2
            # 2**16 is 1 modulo 0xffff: so the remainder is the sum of the words, carries included
            total += int.from_bytes(piece[:whole], "little") % _ONES
            odd = piece[whole:]
    total += int.from_bytes(odd, "little")
    return (total % _ONES or (_ONES if total else 0)) + file.size


class _Move(Struct, frozen=True):
    old: range
    new: range


def prove(
    before: PeImage,
    edited: EditedFile,
    replacements: Sequence[Replacement],
    stripped: Mapping[int, bytes] | None = None,
) -> None:
    """`BinaryError` unless *edited* is *before* with *replacements*.

    If *stripped* is given, symbols are gone, and the bytes of those sections.
    """
    written = Written.of(edited)
    with at("the new file can be read"):
        after = PeLayout.read(written)
    with at("the headers say the same of memory"):
        _same_headers(before, after, stripped)
    with at("every pointer leads to the bytes ordered"):
        moves = [_move(before, after, written, replacement) for replacement in replacements]
    with at("all other bytes are loaded as before"):
        words = dict(_words(before, after, written, replacements))
        for old, new in zip(before.sections, after.sections, strict=True):
            if stripped and old.index in stripped:
                continue
            inside = [move for move in moves if move.old.start in old.addresses]
            filled = range(old.addresses.start, old.addresses.start + len(old.span))
            spans = list(outside(filled, [move.old for move in inside]))
            padding = before.padding(spans) if inside else frozenset()
            for span in spans:
                if span not in padding:
                    _same_memory(before, written, span, (old, new), words)
            _check_apart(old, inside)
    with at("debuggers find the same"):
        if stripped is None:
            _same_unloaded(before, after, written)


def _same_headers(before: PeLayout, after: PeLayout, stripped: Mapping[int, bytes] | None) -> None:
    coff = replace(after.coff, symbols_at=before.coff.symbols_at)
    if stripped is not None:
        if after.coff.symbols_at | after.coff.symbols:
            raise BinaryError("symbols are left of what is stripped")
        coff = replace(coff, symbols=before.coff.symbols)
    free = {"initialized_size": before.optional.initialized_size, "checksum": before.optional.checksum}
    if (before.coff_at, before.coff, before.optional) != (after.coff_at, coff, replace(after.optional, **free)):
        raise BinaryError("another COFF or optional header")
    if after.directories != before.directories or after.directory(Directory.SECURITY):
        raise BinaryError("other data directories")
    unit = before.optional.file_alignment
    for old, new in zip(before.sections, after.sections, strict=True):
        header = old.header
        if stripped and old.index in stripped:
            if new.raw or not header.flags & SectionFlag.DISCARDABLE:
                raise BinaryError(f"section {old.name} is to have no bytes, or is needed")
            header = replace(header, name=stripped[old.index])
        names = ("raw_at", "raw_size", "lines_at", "relocations_at")
        if replace(new.header, **{name: getattr(header, name) for name in names}) != header or new.raw.start % unit:
            raise BinaryError(f"section {old.name} has another header")


def _move(before: PeImage, after: PeLayout, written: Written, replacement: Replacement) -> _Move:
    """The move that the new file's pointers tell; `BinaryError` unless they lead to the bytes ordered."""
    start = before.address(replacement.span.start)
    if start is None:
        raise BinaryError(f"bytes at {replacement.span.start:#x} are not loaded")
    targets = {_word_in(after, written, pointer.place) for pointer in replacement.pointers} or {start}
    if len(targets) != 1:
        raise BinaryError(f"pointers to {start:#x} now lead to {len(targets)} places")
    new = targets.pop()
    offset = after.offset(new) if replacement.size else 0
    if offset is None or (replacement.size and after.offset(new + replacement.size - 1) is None):
        raise BinaryError(f"{replacement.size:#x} bytes at {new:#x} are not in the file")
    for part in replacement.parts:
        if written[offset : offset + len(part)] != (before.view(part) if isinstance(part, range) else part):
            raise BinaryError(f"other bytes at {offset:#x}")
        offset += len(part)
    return _Move(range(start, start + len(replacement.span)), range(new, new + replacement.size))


def _word_in(after: PeLayout, written: Written, address: int) -> int:
    offset = after.offset(address)
    if offset is None:
        raise BinaryError(f"pointer at {address:#x} is not in the file")
    return int.from_bytes(written[offset : offset + _WORD], "little")


def _words(
    before: PeImage, after: PeLayout, written: Written, replacements: Sequence[Replacement]
) -> Iterator[tuple[int, int]]:
    for replacement in replacements:
        for pointer in replacement.pointers:
            if (offset := before.offset(pointer.place)) is not None:
                yield offset, _word_in(after, written, pointer.place)
    for row, entry in before.debug_entries():
        address = before.address(row)
        new = after.offset(address) if address is not None else None
        if entry.raw_at and new is not None:
            raw_at = int.from_bytes(written[new + _DEBUG_PLACES + 4 : new + _DEBUG_PLACES + 8], "little")
            if written[raw_at : raw_at + entry.size] != before.data[entry.raw_at : entry.raw_at + entry.size]:
                raise BinaryError(f"debug data at {raw_at:#x}, expected that of {entry.raw_at:#x}")
            yield row + _DEBUG_PLACES, entry.start | raw_at << 32


def _same_memory(
    before: PeImage, written: Written, span: range, sections: tuple[PeSection, PeSection], words: dict[int, int]
) -> None:
    one, other = sections
    start = span.start - one.addresses.start
    old = range(one.span.start + start, one.span.start + start + len(span))
    new = range(other.span.start + start, other.span.start + start + len(span))
    inside = {offset: word for offset, word in words.items() if offset in old}
    missing = max(0, min(new.stop - other.span.stop, len(new)))
    if missing and any(before.data[old.stop - missing : old.stop]):
        raise BinaryError(f"{missing:#x} bytes of section {one.name} are left out")
    offset = written.differs(range(new.start, new.stop - missing), before.data, old.start, inside)
    if offset is not None:
        raise BinaryError(f"byte {offset:#x} of the original is another")


def _check_apart(section: PeSection, moves: Sequence[_Move]) -> None:
    cursor = section.addresses.start
    for new in sorted((move.new for move in moves if move.new), key=lambda new: new.start):
        if new.start < cursor or new.stop > section.addresses.stop:
            raise BinaryError(f"what was ordered for {new.start:#x} lies over something else")
        cursor = new.stop


def _same_unloaded(before: PeImage, after: PeLayout, written: Written) -> None:
    if before.coff.symbols_at and before.coff.symbols:
        start = before.coff.symbols_at
        strings = start + _SYMBOL * before.coff.symbols
        size = strings - start + int.from_bytes(before.data[strings : strings + 4], "little")
        new = after.coff.symbols_at
        if written[new : new + size] != before.data[start : start + size]:
            raise BinaryError(f"other symbols at {new:#x}")
