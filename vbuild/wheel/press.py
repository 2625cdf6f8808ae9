"""Deflate large members on all cores, and what the members of a family share only once.

    rope -> pieces of about 4 MiB -> each deflated by itself -> one deflate stream

Where a piece ends depends on the parts of the rope and on its source, never on the number of cores: the same rope
gives the same bytes on every machine, and ropes over one source that share a long range share its pieces.
"""

import zlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from itertools import chain, islice, pairwise
from pathlib import Path
from tempfile import TemporaryFile
from threading import Lock
from types import TracebackType
from typing import IO, Self

import deflate
from isal import isal_zlib

from vbuild.hardware.cpu import available_cores
from vbuild.packed import Buffer
from vbuild.rope import Rope
from vbuild.wheel.joining import END, flushed, unfinished

_GRID, _FINE_GRID = 1 << 22, 1 << 20
# from here on a source is cut on the wide grid: there are pieces for all cores then
_MANY_PIECES = 1 << 24
# pieces in flight take memory
_MOST = 8
_LEVEL, _FAST_LEVEL = 6, 2

_Key = tuple[bool, int, tuple[int, int, int] | bytes]


class Codec(StrEnum):
    """Who deflates: the one that makes the smallest wheels at its speed, or the fastest."""

    LIBDEFLATE = "libdeflate"
    ISAL = "isal"


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive bytes of a rope as they were, and what they are in the archive."""

    plain: tuple[memoryview, ...]
    data: Buffer
    crc: int  # of *plain*

    @property
    def size(self) -> int:
        """Bytes of *plain*."""
        return sum(map(len, self.plain))


class Press:
    """Deflates for one writer or, where it *remembers* pieces, for the writers of a family, each piece once.

    What it remembers lies in an unnamed file in *folder* until `forget`. It may be used from several threads.
    """

    def __init__(
        self,
        codec: Codec = Codec.LIBDEFLATE,
        *,
        threads: int | None = None,
        folder: Path | None = None,
        remembers: bool = True,
    ) -> None:
        self.codec = codec
        self._threads = threads or min(available_cores(), _MOST)
        self._executor = ThreadPoolExecutor(self._threads)
        self._store = _Store(folder) if remembers else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._executor.shutdown(cancel_futures=True)
        self.forget()

    def pressed(self, rope: Rope) -> Iterator[Piece]:
        """The pieces of *rope* in order, whose data together are one deflate stream.

        At most two more than there are threads are held in memory at a time.
        """
        if self._store:
            self._store.keep(rope.source.obj)
        cuts = _cuts(rope)
        first, second = next(cuts), next(cuts, None)
        if second is None:
            yield self._piece(first, is_whole=True)
            return
        yield from self._in_order(chain((first, second), cuts))
        yield Piece((), END, 0)

    def forget(self) -> None:
        """Drop the pieces remembered: the next member has others."""
        if self._store:
            self._store.clear()

    def _in_order(self, cuts: Iterator["_Cut"]) -> Iterator[Piece]:
        pending = deque[tuple[_Cut, Future[Piece]]]()
        try:
            while True:
                ahead = self._threads + 2 - len(pending)
                for cut in islice(cuts, ahead):
                    pending.append((cut, self._executor.submit(self._piece, cut, is_whole=False)))
                if not pending:
                    return
                yield pending.popleft()[1].result()
        finally:
            # whoever stops here may take away the bytes that others still read: take back what has not begun
            wait([future for _, future in pending if not future.cancel()])
            for cut, _ in pending:  # a thread that is done may not have let go yet
                for view in cut.plain:
                    view.release()

    def _piece(self, cut: "_Cut", *, is_whole: bool) -> Piece:
        plain = cut.plain[0] if len(cut.plain) == 1 else memoryview(b"".join(cut.plain))
        crc = isal_zlib.crc32(plain)
        if not self._store:
            return Piece(cut.plain, self._deflated(plain, is_whole=is_whole), crc)
        # a range of one source is known by its place: its CRC-32 says at no cost whether the source changed meanwhile
        key = (is_whole, crc, cut.place or sha256(plain).digest())
        data = self._store.find(key)
        if data is None:
            data = self._deflated(plain, is_whole=is_whole)
            self._store.add(key, data)
        return Piece(cut.plain, data, crc)

    def _deflated(self, plain: Buffer, *, is_whole: bool) -> bytes:
        """A deflate stream of *plain*: the whole of one, or one that another can follow."""
        if self.codec is Codec.ISAL:
            fast = isal_zlib.compressobj(_FAST_LEVEL, isal_zlib.DEFLATED, -zlib.MAX_WBITS)
            return fast.compress(plain) + fast.flush(isal_zlib.Z_FINISH if is_whole else isal_zlib.Z_FULL_FLUSH)
        data = bytes(deflate.deflate_compress(plain, _LEVEL))
        return data if is_whole else unfinished(data, plain) or flushed(plain)


class _Store:
    """Pieces in an unnamed file by what they are of."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._spans: dict[_Key, tuple[int, int]] = {}
        self._sources: dict[int, object] = {}
        self._end = 0
        self._lock = Lock()

    def keep(self, source: object) -> None:
        """Hold on to *source*, so that no other object gets its number."""
        with self._lock:
            self._sources[id(source)] = source

    def find(self, key: _Key) -> bytes | None:
        with self._lock:
            if not self._file or key not in self._spans:
                return None
            offset, size = self._spans[key]
            self._file.seek(offset)
            return self._file.read(size)

    def add(self, key: _Key, data: bytes) -> None:
        with self._lock:
            self._file = self._file or TemporaryFile(dir=self._folder)  # noqa: SIM115 - closed by clear
            self._file.seek(self._end)
            self._file.write(data)
            self._spans[key] = self._end, len(data)
            self._end += len(data)

    def clear(self) -> None:
        with self._lock:
            if self._file:
                # what had no room has none now either; whoever needed it was told
                with suppress(OSError):
                    self._file.close()
            self._file, self._end = None, 0
            self._spans.clear()
            self._sources.clear()


@dataclass(frozen=True, slots=True)
class _Cut:
    """A piece to be: its bytes and, where they are one range of the source, whose and which."""

    plain: tuple[memoryview, ...]
    place: tuple[int, int, int] | None = None


def _cuts(rope: Rope) -> Iterator[_Cut]:
    """The bytes of *rope*, piece by piece: a long range alone, cut where its source is a multiple of the grid."""
    grid = _GRID if len(rope.source) >= _MANY_PIECES else _FINE_GRID
    if rope.size <= 2 * _FINE_GRID:
        yield _Cut(tuple(rope.buffers()))
        return
    piece: list[memoryview] = []
    room = grid
    for part, buffer in zip(rope.parts, rope.buffers(), strict=True):
        if isinstance(part, range) and len(part) >= grid:
            if piece:
                yield _Cut(tuple(piece))
            piece, room = [], grid
            for span in _spans(part, grid):
                place = (id(rope.source.obj), span.start, span.stop)
                yield _Cut((rope.source[span.start : span.stop],), place)
            continue
        rest = buffer
        while len(rest) >= room:
            yield _Cut((*piece, rest[:room]))
            piece, rest, room = [], rest[room:], grid
        if len(rest):
            piece, room = [*piece, rest], room - len(rest)
    if piece:
        yield _Cut(tuple(piece))


def _spans(part: range, grid: int) -> Iterator[range]:
    """*part* cut at multiples of *grid*, none shorter than a quarter of it or longer than one and a half."""
    short = grid // 4
    first = -(-(part.start + short) // grid) * grid
    bounds = (part.start, *range(first, part.stop - short, grid), part.stop)
    return (range(start, stop) for start, stop in pairwise(bounds))
