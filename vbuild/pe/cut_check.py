"""The proof that a cut PE file loads as before, but for what was ordered."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from vbuild.binary.edits import Replacement, Written
from vbuild.errors import BinaryError, at
from vbuild.files.edited import EditedFile
from vbuild.pe.image import Directory, PeImage, PeLayout, PeSection, SectionFlag

_SYMBOL = 18
_WORD = 8
# where in a row of the debug directory an RVA and a file offset are
_DEBUG_PLACES = 20


class _Move(Struct, frozen=True):
    """The addresses of a replaced span, and those of its parts in the new file."""

    old: range
    new: range


def prove(
    before: PeImage,
    edited: EditedFile,
    replacements: Sequence[Replacement],
    stripped: Mapping[int, bytes] | None = None,
) -> None:
    """Raise `BinaryError` unless *edited* is *before* with *replacements*.

    If *stripped* is given, the symbols are gone, and the bytes of the sections that it names.
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
            spans = _unclaimed(old, inside)
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
    """The move that the pointers of the new file tell; `BinaryError` unless they lead to the bytes ordered."""
    start = before.address(replacement.span.start)
    if start is None:
        raise BinaryError(f"bytes at {replacement.span.start:#x} are not loaded")
    targets = {_word(after, written, pointer.place) for pointer in replacement.pointers} or {start}
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


def _word(after: PeLayout, written: Written, address: int) -> int:
    offset = after.offset(address)
    if offset is None:
        raise BinaryError(f"pointer at {address:#x} is not in the file")
    return int.from_bytes(written[offset : offset + _WORD], "little")


def _words(
    before: PeImage, after: PeLayout, written: Written, replacements: Sequence[Replacement]
) -> Iterator[tuple[int, int]]:
    """The words that may differ, by offset in *before*: pointers that follow, and offsets of debug data."""
    for replacement in replacements:
        for pointer in replacement.pointers:
            if (offset := before.offset(pointer.place)) is not None:
                yield offset, _word(after, written, pointer.place)
    for row, entry in before.debug_entries():
        address = before.address(row)
        new = after.offset(address) if address is not None else None
        if entry.raw_at and new is not None:
            raw_at = int.from_bytes(written[new + _DEBUG_PLACES + 4 : new + _DEBUG_PLACES + 8], "little")
            if written[raw_at : raw_at + entry.size] != before.data[entry.raw_at : entry.raw_at + entry.size]:
                raise BinaryError(f"debug data at {raw_at:#x}, expected that of {entry.raw_at:#x}")
            yield row + _DEBUG_PLACES, entry.start | raw_at << 32


def _unclaimed(section: PeSection, moves: Sequence[_Move]) -> list[range]:
    """The addresses with bytes in the file that *moves* do not replace."""
    edges = [section.addresses.start]
    for move in sorted(moves, key=lambda move: move.old.start):
        edges += [move.old.start, move.old.stop]
    edges.append(section.addresses.start + len(section.span))
    return [range(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True) if start < stop]


def _same_memory(
    before: PeImage, written: Written, span: range, sections: tuple[PeSection, PeSection], words: dict[int, int]
) -> None:
    """Raise `BinaryError` unless the bytes at the addresses *span* are those of before."""
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
