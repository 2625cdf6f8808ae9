"""The proof that a cut PE file loads as the one before, but for what was ordered."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from vbuild.binary.edits import Replacement, Written
from vbuild.errors import BinaryError, at
from vbuild.files.edited import EditedFile
from vbuild.pe.image import Directory, PeImage, PeLayout, PeSection, SectionFlag

_SYMBOL = 18
_WORD = 8
# where in a row of the debug directory the two words are of which the second is a file offset
_DEBUG_PLACES = 20


class _Move(Struct, frozen=True):
    """What was ordered for the addresses *old*, and the addresses at which the new file has it."""

    replacement: Replacement
    old: range
    new: range


def prove(
    before: PeImage,
    edited: EditedFile,
    replacements: Sequence[Replacement],
    stripped: Mapping[int, bytes] | None = None,
) -> None:
    """Nothing, if *edited* is *before* with *replacements*; else a `BinaryError` that says what does not hold.

    Unless *stripped* is None the symbols are gone, and so are the bytes of those sections, which it names.
    """
    written = Written.of(edited)
    with at("the new file can be read"):
        after = PeLayout.read(written)
    with at("the headers say the same of memory"):
        _same_headers(before, after, stripped)
    with at("every pointer leads to the bytes ordered"):
        moves = [_led(before, after, written, each) for each in replacements]
    with at("all other bytes are loaded as before"):
        words = dict(_words(before, after, written, replacements))
        for one, other in zip(before.sections, after.sections, strict=True):
            if stripped and one.index in stripped:
                continue
            inside = [move for move in moves if move.old.start in one.addresses]
            spans = _unclaimed(one, inside)
            padding = before.padding(spans) if inside else frozenset()
            for span in spans:
                if span not in padding:
                    _same_memory(before, written, span, (one, other), words)
            _check_apart(one, inside)
    with at("debuggers find the same"):
        if stripped is None:
            _same_unloaded(before, after, written)


def _same_headers(before: PeLayout, after: PeLayout, stripped: Mapping[int, bytes] | None) -> None:
    coff = replace(after.coff, symbols_at=before.coff.symbols_at)
    if stripped is not None:
        if after.coff.symbols_at | after.coff.symbols:
            raise BinaryError("symbols are left of what is stripped")
        coff = replace(coff, symbols=before.coff.symbols)
    told = {"initialized_size": before.optional.initialized_size, "checksum": before.optional.checksum}
    directories = [
        mine if number == Directory.SECURITY else new
        for number, (mine, new) in enumerate(zip(before.directories, after.directories, strict=True))
    ]
    if (before.place, before.coff, before.optional) != (after.place, coff, replace(after.optional, **told)):
        raise BinaryError("another COFF or optional header")
    if tuple(directories) != before.directories or after.directory(Directory.SECURITY):
        raise BinaryError("other data directories")
    unit = before.optional.file_alignment
    for one, other in zip(before.sections, after.sections, strict=True):
        mine, new = one.header, other.header
        if stripped and one.index in stripped:
            if other.raw or not mine.flags & SectionFlag.DISCARDABLE:
                raise BinaryError(f"section {one.name} is to have no bytes, or is needed")
            mine = replace(mine, name=stripped[one.index])
        free = {"raw_at": mine.raw_at, "raw_size": mine.raw_size, "lines_at": mine.lines_at}
        if replace(new, **free, relocations_at=mine.relocations_at) != mine or other.raw.start % unit:
            raise BinaryError(f"section {one.name} has another header")


def _led(before: PeImage, after: PeLayout, written: Written, replacement: Replacement) -> _Move:
    """Where the pointers of the new file lead to, and that the bytes ordered are there."""
    start = before.address(replacement.span.start)
    if start is None:
        raise BinaryError(f"bytes at {replacement.span.start:#x} are not loaded")
    found = {_word(after, written, pointer.place) for pointer in replacement.pointers} or {start}
    if len(found) != 1:
        raise BinaryError(f"pointers to {start:#x} now lead to {len(found)} places")
    new = found.pop()
    offset = after.offset(new) if replacement.size else 0
    if offset is None or (replacement.size and after.offset(new + replacement.size - 1) is None):
        raise BinaryError(f"{replacement.size:#x} bytes at {new:#x} are not in the file")
    for part in replacement.parts:
        given = before.view(part) if isinstance(part, range) else part
        if written[offset : offset + len(part)] != given:
            raise BinaryError(f"other bytes at {offset:#x}")
        offset += len(part)
    old = range(start, start + len(replacement.span))
    return _Move(replacement, old, range(new, new + replacement.size))


def _word(after: PeLayout, written: Written, address: int) -> int:
    place = after.offset(address)
    if place is None:
        raise BinaryError(f"pointer at {address:#x} is not in the file")
    return int.from_bytes(written[place : place + _WORD], "little")


def _words(
    before: PeImage, after: PeLayout, written: Written, replacements: Sequence[Replacement]
) -> Iterator[tuple[int, int]]:
    """The words that may be others, by their offset in *before*: pointers that follow, and offsets of debug data."""
    for replacement in replacements:
        for pointer in replacement.pointers:
            if (place := before.offset(pointer.place)) is not None:
                yield place, _word(after, written, pointer.place)
    for place, entry in before.debug_entries():
        address = before.address(place)
        new = after.offset(address) if address is not None else None
        if entry.raw_at and new is not None:
            raw_at = int.from_bytes(written[new + _DEBUG_PLACES + 4 : new + _DEBUG_PLACES + 8], "little")
            if written[raw_at : raw_at + entry.size] != before.data[entry.raw_at : entry.raw_at + entry.size]:
                raise BinaryError(f"debug data at {raw_at:#x}, expected that of {entry.raw_at:#x}")
            yield place + _DEBUG_PLACES, entry.start | raw_at << 32


def _unclaimed(section: PeSection, moves: Sequence[_Move]) -> list[range]:
    """The addresses of *section* that the file has bytes for, without those that *moves* replace."""
    edges = [section.addresses.start]
    for move in sorted(moves, key=lambda move: move.old.start):
        edges += [move.old.start, move.old.stop]
    edges.append(section.addresses.start + len(section.span))
    return [range(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True) if start < stop]


def _same_memory(
    before: PeImage, written: Written, span: range, sections: tuple[PeSection, PeSection], words: dict[int, int]
) -> None:
    """Nothing, if the bytes at the addresses *span* are those of before."""
    one, other = sections
    start = span.start - one.addresses.start
    old = range(one.span.start + start, one.span.start + start + len(span))
    new = range(other.span.start + start, other.span.start + start + len(span))
    inside = {place: word for place, word in words.items() if place in old}
    missing = max(0, min(new.stop - other.span.stop, len(new)))
    if missing and any(before.data[old.stop - missing : old.stop]):
        raise BinaryError(f"{missing:#x} bytes of section {one.name} are left out")
    kept = range(new.start, new.stop - missing)
    if (place := written.differs(kept, before.data, old.start, inside)) is not None:
        raise BinaryError(f"byte {place:#x} of the original is another")


def _check_apart(section: PeSection, moves: Sequence[_Move]) -> None:
    cursor = section.addresses.start
    for new in sorted((move.new for move in moves if move.new), key=lambda new: new.start):
        if new.start < cursor or new.stop > section.addresses.stop:
            raise BinaryError(f"what was ordered for {new.start:#x} lies over something else")
        cursor = new.stop


def _same_unloaded(before: PeImage, after: PeLayout, written: Written) -> None:
    """The symbol table, which no section has."""
    if before.coff.symbols_at and before.coff.symbols:
        start = before.coff.symbols_at
        strings = start + _SYMBOL * before.coff.symbols
        size = strings - start + int.from_bytes(before.data[strings : strings + 4], "little")
        new = after.coff.symbols_at
        if written[new : new + size] != before.data[start : start + size]:
            raise BinaryError(f"other symbols at {new:#x}")
