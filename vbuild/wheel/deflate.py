"""Deflate large members on all cores, and what the members of a family share only once.

    file -> pieces of about 4 MiB -> each deflated by itself                   -> one deflate stream
         -> pieces of about 1 MiB -> each copied from the stream it came from

Where a piece ends depends on the file and its source, never on the number of cores: the same file gives the same bytes
on every machine, and files over one source share pieces. Its stream is copied where that is as small.
"""

import zlib
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from enum import StrEnum
from functools import partial
from hashlib import sha256
from itertools import chain, islice, pairwise
from pathlib import Path
from tempfile import TemporaryFile
from threading import Lock
from types import TracebackType
from typing import IO, Self

import deflate
from isal import isal_zlib
from msgspec import Struct

from vbuild.files.edited import EditedFile, Part
from vbuild.files.records import Buffer
from vbuild.hardware.cpu import available_cores
from vbuild.process.threads import OncePerKey
from vbuild.wheel.blocks import END, WINDOW, Blocks, InflatedFile, deflate_open, open_stream

_GRID, _FINE_GRID = 1 << 22, 1 << 20
# from here on a source is cut on the wide grid
_MANY_PIECES = 1 << 24
# pieces in flight take memory
_MOST = 8
_LEVEL, _FAST_LEVEL = 6, 2
# fewer pieces are not copied: trying one both ways costs as much
_FEW = 8
# of so many parts one piece each is tried, until it is clear; one in _FEW at most
_TRIED, _SIXTHS, _CLEAR = 4, (3, 1, 5), 0.002
# how long a piece that is copied may be, and how much larger than what it replaces
_LONGEST_COPIED, _MOST_COPIED = 3 << 21, 1.005
# bytes of a sample, and from one to the next
_SAMPLE, _GAP = 1 << 15, 1 << 17
_GOLDEN = 0.618034

_Key = tuple[bool, bool, int, tuple[int, int, int] | bytes]


class Codec(StrEnum):
    LIBDEFLATE = "libdeflate"
    ISAL = "isal"


class DeflatedPart(Struct, frozen=True):
    plain: tuple[memoryview, ...]
    data: Buffer
    crc: int  # of *plain*

    @property
    def size(self) -> int:
        return sum(map(len, self.plain))


class Deflater:
    """Deflates for one writer or, if it *remembers* pieces in *folder*, for all of a family, each piece once."""

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
        self._is_stopped = False
        # gets the bytes of each of many pieces of a file, once it is taken
        self.on_piece: Callable[[int], None] = lambda _size: None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._executor.shutdown(cancel_futures=True)
        self.forget()

    def pressed(self, file: EditedFile) -> Iterator[DeflatedPart]:
        """Yield the pieces of *file* in order, whose data together are one deflate stream."""
        if self._store:
            self._store.keep(file.source.obj)
        cuts = self._copying(file) or _cuts(file)
        first, second = next(cuts), next(cuts, None)
        if second is None:
            yield self._piece(first, is_whole=True)
            return
        yield from self._in_order(chain((first, second), cuts))
        yield DeflatedPart((), END, 0)

    def forget(self) -> None:
        if self._store:
            self._store.clear()

    def stop(self) -> None:
        """End what other threads still read of `pressed`, with `CancelledError`."""
        self._is_stopped = True

    def _copying(self, file: EditedFile) -> Iterator["_Cut"] | None:
        """The pieces of *file* if many can be copied, and stay about as small."""
        blocks = file.source.obj.blocks if isinstance(file.source.obj, InflatedFile) else None
        if not blocks or len(blocks.stalls) < _FEW:
            return None
        cuts = list(_cuts(file, blocks))
        are_many = sum(cut.blocks is not None for cut in cuts) >= _FEW
        are_worth = are_many and blocks.worth.get(self.codec, partial(self._are_dense, blocks, file.source))
        return iter(cuts) if are_worth else None

    def _are_dense(self, blocks: Blocks, plain: memoryview) -> bool:
        numbers = range(len(blocks.stalls) - 1)
        step = max(len(numbers) // _TRIED, _FEW)
        copied = most = 0.0
        for sixths in _SIXTHS[: max(len(numbers) // (_TRIED * _FEW), 1)]:
            chosen = numbers[step * sixths // 6 :: step]
            for size, anew in self._executor.map(partial(self._both_sizes, blocks, plain), chosen):
                copied += size
                most += anew * _MOST_COPIED
            if abs(copied - most) > most * _CLEAR:
                break
        return 0 < copied <= most

    def _both_sizes(self, blocks: Blocks, plain: memoryview, number: int) -> tuple[int, int]:
        """The bytes of piece *number* copied, and deflated anew; zeros if it cannot be copied."""
        start, stop = blocks.stalls[number].plain, blocks.stalls[number + 1].plain
        if stop - start > _LONGEST_COPIED or not (copied := blocks.copied(number, number + 1, plain)):
            return 0, 0
        behind = max(start - WINDOW, 0) if len(plain) >= _MANY_PIECES else start
        sizes = (len(self._deflated(plain[behind:end], is_whole=True)) for end in (start, stop))
        return len(copied), -next(sizes) + next(sizes)

    def _in_order(self, cuts: Iterator["_Cut"]) -> Iterator[DeflatedPart]:
        pending = deque[tuple[_Cut, Future[DeflatedPart]]]()
        try:
            while not self._is_stopped:
                ahead = self._threads + 2 - len(pending)
                for cut in islice(cuts, ahead):
                    pending.append((cut, self._executor.submit(self._piece, cut, is_whole=False)))
                if not pending:
                    return
                piece = pending.popleft()[1].result()
                yield piece
                self.on_piece(piece.size)
            raise CancelledError
        finally:
            # a caller that stops here may take away the bytes that threads still read: take back what has not begun
            wait([future for _, future in pending if not future.cancel()])
            for cut, _ in pending:  # a thread that is done may not have let go yet
                for view in cut.plain:
                    view.release()

    def _piece(self, cut: "_Cut", *, is_whole: bool) -> DeflatedPart:
        plain = cut.plain[0] if len(cut.plain) == 1 else memoryview(b"".join(cut.plain))
        crc = isal_zlib.crc32(plain)
        if not self._store:
            return DeflatedPart(cut.plain, cut.copied() or self._deflated(plain, is_whole=is_whole), crc)
        # its CRC-32 says whether the source changed meanwhile
        key = (is_whole, cut.blocks is not None, crc, cut.place or sha256(plain).digest())
        data = self._store.get(key, lambda: cut.copied() or self._deflated(plain, is_whole=is_whole))
        return DeflatedPart(cut.plain, data, crc)

    def _deflated(self, plain: Buffer, *, is_whole: bool) -> bytes:
        if self.codec is Codec.ISAL:
            fast = isal_zlib.compressobj(_FAST_LEVEL, isal_zlib.DEFLATED, -zlib.MAX_WBITS)
            return fast.compress(plain) + fast.flush(isal_zlib.Z_FINISH if is_whole else isal_zlib.Z_FULL_FLUSH)
        data = bytes(deflate.deflate_compress(plain, _LEVEL))
        return data if is_whole else open_stream(data, plain) or deflate_open(plain)


def estimate_packed(file: EditedFile, *, places: int = 128) -> int:
    """Estimate from samples the size of *file* in an archive, in bytes; each has before it what it may refer to."""
    if file.size <= _GAP:
        return len(deflate.deflate_compress(bytes(file), _LEVEL))
    step = max(file.size // places, _GAP)
    packed = plain = 0
    for number, first in enumerate(range(0, file.size, step)):
        # of large files at uneven distances: they have what repeats
        start = min(first + int(number * _GOLDEN % 1 * (step - _GAP)), file.size - _SAMPLE)
        window, sample = file.read(max(start - WINDOW, 0), start), file.read(start, start + _SAMPLE)
        sizes = (len(deflate.deflate_compress(data, _LEVEL)) for data in (window + sample, window))
        packed += next(sizes) - next(sizes)
        plain += len(sample)
    return packed * file.size // plain


class _Store:
    """Pieces in an unnamed file by key, each made once, for several threads."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._spans = OncePerKey[_Key, range]()
        self._sources: dict[int, object] = {}
        self._end = 0
        self._lock = Lock()

    def keep(self, source: object) -> None:
        """Keep *source* alive, so that no other object gets its id."""
        with self._lock:
            self._sources[id(source)] = source

    def get(self, key: _Key, make: Callable[[], bytes]) -> bytes:
        return self._read(self._spans.get(key, lambda: self._added(make())))

    def _read(self, span: range) -> bytes:
        with self._lock:
            file = self._opened()
            file.seek(span.start)
            return file.read(len(span))

    def _added(self, data: bytes) -> range:
        with self._lock:
            file = self._opened()
            file.seek(self._end)
            file.write(data)
            span = range(self._end, self._end + len(data))
            self._end = span.stop
        return span

    def _opened(self) -> IO[bytes]:
        self._file = self._file or TemporaryFile(dir=self._folder)  # noqa: SIM115 - closed by clear
        return self._file

    def clear(self) -> None:
        with self._lock:
            if self._file:
                # who needed it got the error
                with suppress(OSError):
                    self._file.close()
            self._file, self._end = None, 0
            self._spans = OncePerKey()
            self._sources.clear()


class _Cut(Struct, frozen=True):
    """A piece to be deflated and, if it is one range of the source, whose and which.

    If it lies between two *stalls* of *blocks*, these can be copied.
    """

    plain: tuple[memoryview, ...]
    place: tuple[int, int, int] | None = None
    stalls: tuple[int, int] = (0, 0)
    blocks: Blocks | None = None
    source: memoryview = memoryview(b"")

    def copied(self) -> bytes | None:
        return self.blocks.copied(*self.stalls, self.source) if self.blocks else None


def _cuts(file: EditedFile, blocks: Blocks | None = None) -> Iterator[_Cut]:
    """Cut *file* into pieces: long ranges at multiples of the grid in their source."""
    grid = _GRID if len(file.source) >= _MANY_PIECES else _FINE_GRID
    if file.size <= 2 * _FINE_GRID:
        yield _Cut(tuple(file.buffers()))
        return
    piece: list[memoryview] = []
    room = grid
    for part in _parts(file, blocks):
        if isinstance(part, _Cut) or (isinstance(part, range) and len(part) >= grid):
            if piece:
                yield _Cut(tuple(piece))
            piece, room = [], grid
            yield from (part,) if isinstance(part, _Cut) else _long_cuts(file, part, grid)
            continue
        rest = file.source[part.start : part.stop] if isinstance(part, range) else memoryview(part)
        while len(rest) >= room:
            yield _Cut((*piece, rest[:room]))
            piece, rest, room = [], rest[room:], grid
        if len(rest):
            piece, room = [*piece, rest], room - len(rest)
    if piece:
        yield _Cut(tuple(piece))


def _long_cuts(file: EditedFile, part: range, grid: int) -> Iterator[_Cut]:
    """Cut *part* at multiples of *grid*, no piece shorter than a quarter of it or longer than 1.5."""
    first = -(-(part.start + grid // 4) // grid) * grid
    for start, stop in pairwise((part.start, *range(first, part.stop - grid // 4, grid), part.stop)):
        yield _Cut((file.source[start:stop],), (id(file.source.obj), start, stop))


def _parts(file: EditedFile, blocks: Blocks | None) -> Iterator[Part | _Cut]:
    places = [stall.plain for stall in blocks.stalls] if blocks else []
    for part in file.parts:
        if not isinstance(part, range):
            yield part
            continue
        start = part.start
        # what a block refers to has to stand in front of it
        numbers = range(bisect_left(places, part.start + WINDOW), bisect_right(places, part.stop))
        for first, last in pairwise(numbers):
            begin, end = places[first], places[last]
            if end - begin <= _LONGEST_COPIED:
                if start < begin:
                    yield range(start, begin)
                key = id(file.source.obj), begin, end
                yield _Cut((file.source[begin:end],), key, (first, last), blocks, file.source)
                start = end
        if start < part.stop:
            yield range(start, part.stop)
