"""Edits of a compiled file: what is replaced, where the rest of its section goes, and the edited file read back.

Pieces of a section go down in their order when some become shorter, and never past what stays:

    before  | A          | B     |.| stays | C             | D      |
    after   | a | b |            | | stays | c  | d |                |
                    ^ free                          ^ free
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import accumulate
from typing import Self

from msgspec import Struct

from vbuild.binary.code import Pointer, Ranges
from vbuild.errors import BinaryError
from vbuild.files.edited import EditedFile, Part
from vbuild.files.records import Buffer

_SMALL = 4096
_PAGE = 4096
_CHUNK = 1 << 20


class Strip(StrEnum):
    NOTHING = "nothing"
    DEBUG = "debug"
    UNNEEDED = "unneeded"


class Replacement(Struct, frozen=True):
    """New bytes for the file offsets *span* of one loaded section; they may move within it.

    *parts* are ranges of the same file and new bytes, no longer than *span*. *pointers* are all words that the loader
    fills with its first address; they follow it. Without any it stays.
    """

    span: range
    parts: tuple[Part, ...]
    pointers: tuple[Pointer, ...] = ()

    @property
    def size(self) -> int:
        return sum(map(len, self.parts))


def by_section(
    replacements: Iterable[Replacement], index_of: Callable[[Replacement], int]
) -> dict[int, tuple[Replacement, ...]]:
    sections: dict[int, list[Replacement]] = {}
    for replacement in sorted(replacements, key=lambda replacement: replacement.span.start):
        sections.setdefault(index_of(replacement), []).append(replacement)
    return {index: tuple(inside) for index, inside in sections.items()}


def check_followed(
    replacements: Sequence[Replacement], spans: Sequence[range], pointers: Iterable[Pointer], exported: Iterable[int]
) -> None:
    """`BinaryError` if more leads to the replaced bytes than the pointers that will follow them.

    *spans* are the addresses of *replacements*, *pointers* all words that lead into these, *exported* addresses that
    other files know.
    """
    known = {pointer.place: pointer for replacement in replacements for pointer in replacement.pointers}
    starts = set()
    for span, replacement in zip(spans, replacements, strict=True):
        for pointer in replacement.pointers:
            if pointer.target != span.start:
                raise BinaryError(f"pointer to {pointer.target:#x} for what begins at {span.start:#x}")
        if not replacement.pointers:
            starts.add(span.start)
    filled = set()
    for pointer in pointers:
        filled.add(pointer.place)
        if known.get(pointer.place) != pointer and pointer.target not in starts:
            raise BinaryError(f"the word at {pointer.place:#x} leads to {pointer.target:#x}, which would move away")
    if missing := known.keys() - filled:
        raise BinaryError(f"no relocation fills the pointer at {min(missing):#x}")
    inside = Ranges(spans)
    if moved := [address for address in exported if address in inside]:
        raise BinaryError(f"exported symbol at {min(moved):#x}, in what would move away")


class Chunk(Struct, frozen=True):
    """Addresses that will need *size* bytes; one that *stays* keeps the first."""

    span: range
    size: int
    stays: bool = False


class Packing(Struct, frozen=True):
    """First addresses and free ones, ascending."""

    starts: tuple[int, ...]
    free: tuple[range, ...]


def up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def pack_down(
    section: range, pieces: Sequence[Chunk], *, alignment: int, is_padding: Callable[[range], bool]
) -> Packing:
    """New places for the ascending *pieces* of *section*, aligned as before.

    What no piece claims stays, unless it is short *is_padding*. `BinaryError` if pieces overlap or grow.
    """
    unit = _alignment(pieces, alignment)
    cursor = before = section.start
    starts, free = [], []
    for piece in pieces:
        _check(piece, section, before)
        gap = range(before, piece.span.start)
        if _is_claimed(gap, unit, is_padding):
            free.append(range(cursor, gap.start))
            cursor = gap.stop
        start = piece.span.start if piece.stays else up(cursor, unit)
        free.append(range(cursor, start))
        starts.append(start)
        cursor, before = start + piece.size, piece.span.stop
    is_claimed = _is_claimed(range(before, section.stop), unit, is_padding)
    free.append(range(cursor, before if is_claimed else section.stop))
    return Packing(tuple(starts), tuple(filter(None, free)))


def pack_into_gaps(
    section: range, pieces: Sequence[Chunk], *, alignment: int, is_padding: Callable[[range], bool]
) -> Packing:
    """As `pack_down`, but pieces may move past what stays, into the smallest gaps: that leaves few large ones."""
    unit = _alignment(pieces, alignment)
    before = start = section.start
    gaps: list[range] = []
    for piece in pieces:
        _check(piece, section, before)
        gap = range(before, piece.span.start)
        if _is_claimed(gap, unit, is_padding):
            gaps.append(range(start, gap.start))
            start = gap.stop
        if piece.stays:
            gaps.append(range(start, piece.span.start))
            start = piece.span.start + piece.size
        before = piece.span.stop
    is_claimed = _is_claimed(range(before, section.stop), unit, is_padding)
    gaps.append(range(start, before if is_claimed else section.stop))
    gaps = sorted(filter(None, gaps), key=len)
    starts = {number: piece.span.start for number, piece in enumerate(pieces) if piece.stays}
    free: list[range] = []
    moving = (number for number in range(len(pieces)) if number not in starts)
    for number in sorted(moving, key=lambda number: -pieces[number].size):
        size = pieces[number].size
        for index, gap in enumerate(gaps):
            first = up(gap.start, unit)
            if first + size <= gap.stop:
                starts[number] = first
                free.append(range(gap.start, first))
                gaps[index] = range(first + size, gap.stop)
                break
        else:
            raise BinaryError(f"{size:#x} bytes fit into no gap between what stays")
    free = sorted(filter(None, (*free, *gaps)), key=lambda gap: gap.start)
    return Packing(tuple(starts[number] for number in range(len(pieces))), tuple(free))


def _is_claimed(gap: range, unit: int, is_padding: Callable[[range], bool]) -> bool:
    return bool(gap) and not (len(gap) < unit and is_padding(gap))


def _alignment(pieces: Sequence[Chunk], alignment: int) -> int:
    bits = max(alignment, _PAGE)
    for piece in pieces:
        bits |= piece.span.start
    return bits & -bits


def _check(piece: Chunk, section: range, before: int) -> None:
    start, stop = piece.span.start, piece.span.stop
    if not before <= start < stop <= section.stop:
        raise BinaryError(
            f"replaced {start:#x} to {stop:#x}: expected addresses from {before:#x} on, up to {section.stop:#x}"
        )
    if piece.size > len(piece.span):
        raise BinaryError(f"{piece.size:#x} bytes for the {len(piece.span):#x} at address {start:#x}: it may not grow")


class Edit(Struct, frozen=True):
    """*parts* instead of the file offsets *span*, which may lie behind the file's end."""

    span: range
    parts: tuple[Part, ...] = ()


def apply_edits(source: Buffer, edits: Iterable[Edit]) -> EditedFile:
    """*source* with *edits*; `BinaryError` if two edits want the same bytes."""
    view = memoryview(source)
    # an empty edit may be at any place
    edits = [edit for edit in edits if edit.span or any(map(len, edit.parts))]
    return EditedFile.of(view, _gathered(view, _parts(len(view), edits)))


def _parts(size: int, edits: Iterable[Edit]) -> Iterator[Part]:
    cursor = 0
    for edit in sorted(edits, key=lambda edit: (edit.span.start, edit.span.stop)):
        if edit.span.start < cursor:
            raise BinaryError(f"two edits of the bytes at {edit.span.start:#x}")
        if cursor < size:
            yield range(cursor, min(edit.span.start, size))
        yield bytes(max(0, edit.span.start - max(cursor, size)))
        yield from edit.parts
        cursor = edit.span.stop
    if cursor < size:
        yield range(cursor, size)


def _gathered(source: memoryview, parts: Iterable[Part]) -> Iterator[Part]:
    """*parts* with small neighbours copied together: thousands of words are patched."""
    small: list[Part] = []
    for part in parts:
        if len(part) < _SMALL:
            small.append(part)
            continue
        yield from _joined(source, small)
        small = []
        yield part
    yield from _joined(source, small)


def _joined(source: memoryview, parts: list[Part]) -> list[Part]:
    if not any(isinstance(part, bytes) and part for part in parts):
        return parts
    return [b"".join(bytes(source[part.start : part.stop]) if isinstance(part, range) else part for part in parts)]


class Written(Struct, frozen=True, eq=False):
    """An edited file, read before it is written; a slice is copied only if it crosses parts."""

    edited: EditedFile
    _starts: tuple[int, ...]
    _size: int

    @classmethod
    def of(cls, edited: EditedFile) -> Self:
        *starts, size = accumulate(map(len, edited.parts), initial=0)
        return cls(edited, tuple(starts), size)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, span: slice) -> memoryview:
        start, stop, _ = span.indices(self._size)
        pieces = [self._bytes(piece) for piece in self.pieces(range(start, stop))]
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

    def pieces(self, span: range) -> Iterator[range | memoryview]:
        index = bisect_right(self._starts, span.start) - 1
        cursor = span.start
        while cursor < min(span.stop, self._size):
            part, start = self.edited.parts[index], self._starts[index]
            stop = min(start + len(part), span.stop)
            first, last = cursor - start, stop - start
            yield part[first:last] if isinstance(part, range) else memoryview(part)[first:last]
            cursor, index = stop, index + 1

    def _bytes(self, piece: range | memoryview) -> memoryview:
        return self.edited.source[piece.start : piece.stop] if isinstance(piece, range) else piece

    def differs(self, span: range, original: memoryview, start: int, words: dict[int, int]) -> int | None:
        """The first offset in *original* at which the file's bytes at *span* differ from those at *start*.

        *words* are the numbers expected instead, by their offset in *original*.
        """
        cursor = start
        own = self.edited.source.obj is original.obj and len(self.edited.source) == len(original)
        for piece in self.pieces(span):
            if not (own and isinstance(piece, range) and piece.start == cursor):
                if (different := _difference(self._bytes(piece), original, cursor, words)) is not None:
                    return different
            # only the expected words can be others
            elif unmet := [
                at
                for at in words
                if cursor - 8 < at < cursor + len(piece)
                and int.from_bytes(original[at : at + 8], "little") != words[at]
            ]:
                return min(unmet)
            cursor += len(piece)
        return None if cursor == start + len(span) else cursor


def _difference(data: memoryview, original: memoryview, start: int, words: dict[int, int]) -> int | None:
    for offset in range(0, len(data), _CHUNK):
        first, piece = start + offset, data[offset : offset + _CHUNK]
        expected = bytearray(original[first : first + len(piece)])
        for at, value in words.items():
            # a word may begin in one piece and end in the next
            low, high = max(at, first), min(at + 8, first + len(expected))
            if low < high:
                expected[low - first : high - first] = value.to_bytes(8, "little")[low - at : high - at]
        if expected != piece:
            same, step = 0, 1 << len(expected).bit_length()
            while step := step // 2:
                if expected[same : same + step] == piece[same : same + step]:
                    same += step
            return first + same
    return None
