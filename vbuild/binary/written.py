"""An edited file, read by slices before it is written."""

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import Self

from msgspec import Struct

from vbuild.files.edited import EditedFile

_CHUNK = 1 << 20


class Written(Struct, frozen=True, eq=False):
    """The file that an edited file will be; a slice is copied only if it crosses its parts."""

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
        """What the file's bytes at *span* are: ranges of the edited file's source, or new bytes."""
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
        """The first offset in *original* at which the file's bytes at *span* are not those from *start* on.

        *words* are numbers by their offset in *original* that are expected there instead.
        """
        cursor = start
        own = self.edited.source.obj is original.obj and len(self.edited.source) == len(original)
        for piece in self.pieces(span):
            if not (own and isinstance(piece, range) and piece.start == cursor):
                if (place := _difference(self._bytes(piece), original, cursor, words)) is not None:
                    return place
            elif strange := [
                at
                for at in words
                if cursor - 8 < at < cursor + len(piece)
                and int.from_bytes(original[at : at + 8], "little") != words[at]
            ]:
                return min(strange)
            cursor += len(piece)
        return None if cursor == start + len(span) else cursor


def _difference(found: memoryview, original: memoryview, start: int, words: dict[int, int]) -> int | None:
    for offset in range(0, len(found), _CHUNK):
        first, piece = start + offset, found[offset : offset + _CHUNK]
        expected = bytearray(original[first : first + len(piece)])
        for at, value in words.items():
            # a word may begin in one piece and end in the next
            low, high = max(at, first), min(at + 8, first + len(expected))
            if low < high:
                expected[low - first : high - first] = value.to_bytes(8, "little")[low - at : high - at]
        if expected != piece:
            return first + _first_difference(expected, piece)
    return None


def _first_difference(one: bytearray, other: memoryview) -> int:
    """The first place at which two that differ do, or the end of the shorter one; whole halves are compared."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high) // 2
        if one[low : middle + 1] == other[low : middle + 1]:
            low = middle + 1
        else:
            high = middle
    return low
