"""Deflate large members on all cores, and what the members of a family share only once.

    file -> pieces of about 4 MiB -> each deflated by itself -> one deflate stream

Where a piece ends depends on the parts of the file and on its source, never on the number of cores: the same file gives
the same bytes on every machine, and files over one source that share a long range share its pieces. To join streams,
the end of each is opened:

    … | block | last block, marked as the last | zero bits up to a byte
    … | block | the same block, mark cleared   | a stored block of nothing, which ends at a byte | the next stream …

No field says where the last block of a stream begins: it is found by inflating the stream bit by bit. The result has
been inflated to the right bytes; for a stream that cannot be opened the result is None.
https://www.rfc-editor.org/rfc/rfc1951 (section 3.2.3); the idea is that of gzjoin.c in zlib's examples
"""

import struct
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from enum import StrEnum
from functools import partial
from hashlib import sha256
from io import BytesIO
from itertools import chain, islice, pairwise
from pathlib import Path
from tempfile import TemporaryFile
from threading import Lock
from types import TracebackType
from typing import IO, Self

import deflate
from isal import isal_zlib
from msgspec import Struct

from vbuild.files import zstd
from vbuild.files.edited import EditedFile
from vbuild.files.records import Buffer
from vbuild.hardware.cpu import available_cores
from vbuild.wheel.zip_format import ZipMethod

END = b"\x03\x00"  # a last block that holds nothing

_SYNC = b"\x00\x00\xff\xff"
_WINDOW = 1 << 15
# libdeflate ends a block after 300,000 bytes, or 5,000 later where that is the end
_LONGEST_BLOCK = 305_000
# bytes inflated at a time; the header of a block, twice that long or longer, shows as a step that yields nothing
_STEPS = (32, 8)
# the first three bits of a block that is the last one: with fixed codes, with codes of its own
_LAST_BLOCKS = (0b011, 0b101)
_LONGEST_HEADER = 512
_STORED = struct.Struct("<HH")
_FULL16 = 0xFFFF
_BLOCK_LEVEL = 6
# a last block, stored, that holds these bytes
_FOLLOWED = b"followed"
_FOLLOWING = b"\x01" + _STORED.pack(len(_FOLLOWED), len(_FOLLOWED) ^ _FULL16) + _FOLLOWED


def unfinished(stream: bytes, plain: Buffer) -> bytes | None:
    """*stream*, a whole deflate stream of *plain*, as one that ends at a byte and that another stream may follow.

    None unless it is shown to inflate to *plain*, in steps before it is changed and as far as it is changed after.
    """
    view = memoryview(plain)
    for step in _STEPS:
        if not (trace := _traced(stream, view, step)):
            return None
        opened = _opened(stream, view, range(1), 0) or _opened(stream, view, trace.stalled, trace.stalled_at)
        if opened := opened or _opened_stored(stream, view, trace.uneven):
            return opened
    return None


def flushed(plain: Buffer) -> bytes:
    """*plain* as a deflate stream that another may follow, by the slow codec that makes one itself."""
    codec = zlib.compressobj(_BLOCK_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return codec.compress(plain) + codec.flush(zlib.Z_FULL_FLUSH)


def proved(stream: bytes, plain: Buffer) -> bool:
    """Whether *stream* inflates to *plain* and to nothing else, and another may follow."""
    # libdeflate passes over what comes after a last block: what follows must be seen to come out
    with suppress(deflate.DeflateError):
        found = deflate.deflate_decompress(stream + _FOLLOWING, len(plain) + len(_FOLLOWED))
        return isal_zlib.crc32(found) == isal_zlib.crc32(_FOLLOWED, isal_zlib.crc32(plain))
    return False


class _Trace(Struct, frozen=True):
    """What inflating a stream step by step showed of its last blocks."""

    stalled: range  # bits of the stream, among which the last header stands before which it yielded nothing
    stalled_at: int  # bytes it had yielded by then
    uneven: range  # bytes of the stream, among which the header of a stored block stands that goes on to the end


def _traced(stream: bytes, plain: memoryview, step: int) -> _Trace | None:
    """How *stream* inflates, its end in steps of *step* bytes; None unless it inflates to *plain*."""
    inflate = isal_zlib.decompressobj(-zlib.MAX_WBITS)
    body, rest = b"", stream
    try:
        if len(plain) > _LONGEST_BLOCK:
            body, rest = inflate.decompress(stream, len(plain) - _LONGEST_BLOCK), inflate.unconsumed_tail
        # some thousand steps: no line of Python runs in any of them
        pieces = list(map(inflate.decompress, iter(partial(BytesIO(rest).read, step), b"")))
    except isal_zlib.error:  # type: ignore[misc] # its stub says that this class is an exception
        return None
    tail = b"".join(pieces)
    crc = isal_zlib.crc32(tail, isal_zlib.crc32(body))
    if not inflate.eof or inflate.unused_data or crc != isal_zlib.crc32(plain):
        return None
    sizes = list(map(len, pieces))
    first = len(stream) - len(rest)
    stalled, left = _last_stall(sizes)
    uneven = next((number for number in reversed(range(len(sizes) - 1)) if sizes[number] != step), 0)
    # the code that ends the block before is up to two bytes long, and yields nothing either
    header = range(8 * (first + max(stalled - 1, 0) * step), 8 * (first + stalled * step + 3))
    stored = range(first + max(uneven - 1, 0) * step + 1, first + (uneven + 2) * step)
    return _Trace(header, len(plain) - left, stored)


def _last_stall(sizes: Sequence[int]) -> tuple[int, int]:
    """The first of the last steps that yielded nothing in front of one that did, and what came from there on."""
    left, stalled, left_then = 0, 0, sum(sizes)
    for number in reversed(range(len(sizes))):
        if left and not sizes[number]:
            stalled, left_then = number, left
        elif left_then == left:
            break
        left += sizes[number]
    return stalled, left_then


def _opened(stream: bytes, plain: memoryview, bits: range, start: int) -> bytes | None:
    """*stream* opened where its last block begins at one of *bits*, and what it holds at *start* of *plain*."""
    first = bits.start // 8
    near = int.from_bytes(stream[first : first + len(bits) // 8 + _LONGEST_HEADER], "little")
    window = plain[max(start - _WINDOW, 0) : start]
    sample = bytes(plain[start : start + 16])
    found = (
        (bit, padding)
        for bit in bits
        if _begins(near >> (bit - 8 * first), window, sample)
        for padding in _paddings(stream, bit, window, plain[start:])
    )
    if not (place := next(found, None)):
        return None
    bit, padding = place
    opened = bytearray(stream)
    opened[bit // 8] ^= 1 << bit % 8
    # the stored block's own header is three bits, all zero
    return bytes(opened) + bytes(padding < 3) + _SYNC  # noqa: PLR2004


def _begins(block: int, window: memoryview, sample: bytes) -> bool:
    """Whether the bits of *block* are a last block that begins with *sample*."""
    if block & 7 not in _LAST_BLOCKS:
        return False
    inflate = zlib.decompressobj(-zlib.MAX_WBITS, zdict=window)
    with suppress(zlib.error):
        return inflate.decompress(block.to_bytes(-(-block.bit_length() // 8), "little"), len(sample) or 1) == sample
    return False


def _paddings(stream: bytes, bit: int, window: memoryview, plain: memoryview) -> Iterator[int]:
    """How many bits at the end of *stream* say nothing, if its last block begins at *bit* and holds *plain*.

    The block is inflated with its mark cleared and, behind each bit that may be its end, a block that is the end.
    """
    bits = 8 * len(stream) - bit
    block = (int.from_bytes(stream[bit // 8 :], "little") >> bit % 8) - 1
    data = block.to_bytes(-(-bits // 8), "little")
    body = max(len(data) - 2 * len(END) - 8, 0)
    inflate = zlib.decompressobj(-zlib.MAX_WBITS, zdict=window)
    with suppress(zlib.error):
        crc = isal_zlib.crc32(inflate.decompress(data[:body]))
        last, end = int.from_bytes(data[body:], "little"), int.from_bytes(END, "little")
        yield from (
            padding
            for padding in range(8)
            if _ends(
                inflate.copy(), last | end << (bits - 8 * body - padding), crc=crc, expected=isal_zlib.crc32(plain)
            )
        )


def _ends(inflate: "zlib._Decompress", block: int, *, crc: int, expected: int) -> bool:
    """Whether the bits of *block* end the stream that *inflate* is in, and all of it from *crc* on has this CRC-32."""
    with suppress(zlib.error):
        found = inflate.decompress(block.to_bytes(-(-block.bit_length() // 8) + len(END), "little"))
        return inflate.eof and isal_zlib.crc32(found, crc) == expected
    return False


def _opened_stored(stream: bytes, plain: memoryview, places: range) -> bytes | None:
    """*stream* opened where its last block is stored, and its sizes begin at one of the bytes *places*."""
    for place in places:
        size = len(stream) - place - _STORED.size
        if 0 <= size <= _FULL16 and stream[place : place + _STORED.size] == _STORED.pack(size, size ^ _FULL16):
            # its mark, two zero bits for stored, and zero bits up to the byte where the sizes begin
            head = stream[:place].rstrip(b"\x00")
            mark = 1 << head[-1].bit_length() - 1 if head else 0
            opened = head[:-1] + bytes([head[-1] ^ mark]) + stream[len(head) :] if mark else b""
            return opened if proved(opened, plain) else None
    return None


_GRID, _FINE_GRID = 1 << 22, 1 << 20
# from here on a source is cut on the wide grid: there are pieces for all cores then
_MANY_PIECES = 1 << 24
# pieces in flight take memory
_MOST = 8
_LEVEL, _FAST_LEVEL = 6, 2
# how many places of a file an estimate looks at, and how many bytes at each: as many as a deflate window holds
_SAMPLES, _SAMPLE = 32, 1 << 15
# as slow as libdeflate at its level; twice the time makes what comes out a hundredth smaller
_ZSTD_LEVEL = 9

_Key = tuple[bool, int, tuple[int, int, int] | bytes]


class Codec(StrEnum):
    """Who deflates: the one that makes the smallest wheels at its speed, or the fastest."""

    LIBDEFLATE = "libdeflate"
    ISAL = "isal"


class DeflatedPart(Struct, frozen=True):
    """Consecutive bytes of a file as they were, and what they are in the archive."""

    plain: tuple[memoryview, ...]
    data: Buffer
    crc: int  # of *plain*

    @property
    def size(self) -> int:
        """Bytes of *plain*."""
        return sum(map(len, self.plain))


class Deflater:
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

    def pressed(self, file: EditedFile) -> Iterator[DeflatedPart]:
        """The pieces of *file* in order, whose data together are one deflate stream.

        At most two more than there are threads are held in memory at a time.
        """
        if self._store:
            self._store.keep(file.source.obj)
        cuts = _cuts(file)
        first, second = next(cuts), next(cuts, None)
        if second is None:
            yield self._piece(first, is_whole=True)
            return
        yield from self._in_order(chain((first, second), cuts))
        yield DeflatedPart((), END, 0)

    def forget(self) -> None:
        """Drop the pieces remembered: the next member has others."""
        if self._store:
            self._store.clear()

    def _in_order(self, cuts: Iterator["_Cut"]) -> Iterator[DeflatedPart]:
        pending = deque[tuple[_Cut, Future[DeflatedPart]]]()
        try:
            while True:
                ahead = self._threads + 2 - len(pending)
                for cut in islice(cuts, ahead):
                    pending.append((cut, self._executor.submit(self._piece, cut, is_whole=False)))
                if not pending:
                    return
                yield pending.popleft()[1].result()
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
            return DeflatedPart(cut.plain, self._deflated(plain, is_whole=is_whole), crc)
        # a range of one source is known by its place: its CRC-32 says at no cost whether the source changed meanwhile
        key = (is_whole, crc, cut.place or sha256(plain).digest())
        data = self._store.find(key)
        if data is None:
            data = self._deflated(plain, is_whole=is_whole)
            self._store.add(key, data)
        return DeflatedPart(cut.plain, data, crc)

    def _deflated(self, plain: Buffer, *, is_whole: bool) -> bytes:
        """A deflate stream of *plain*: the whole of one, or one that another can follow."""
        if self.codec is Codec.ISAL:
            fast = isal_zlib.compressobj(_FAST_LEVEL, isal_zlib.DEFLATED, -zlib.MAX_WBITS)
            return fast.compress(plain) + fast.flush(isal_zlib.Z_FINISH if is_whole else isal_zlib.Z_FULL_FLUSH)
        data = bytes(deflate.deflate_compress(plain, _LEVEL))
        return data if is_whole else unfinished(data, plain) or flushed(plain)


def frame(file: EditedFile) -> Iterator[DeflatedPart]:
    """The pieces of *file* in order, whose data together are one zstd frame, the same on every machine."""
    # on one thread or more the frame is the same, and another one without any
    codec = zstd.compressor(_ZSTD_LEVEL, threads=max(available_cores(), 1))
    for buffer in file.buffers():
        for start in range(0, len(buffer), _FINE_GRID):
            plain = buffer[start : start + _FINE_GRID]
            yield DeflatedPart((plain,), codec.compress(plain), isal_zlib.crc32(plain))
    yield DeflatedPart((), codec.flush(), 0)


def estimated(file: EditedFile, *, members: ZipMethod = ZipMethod.DEFLATED) -> int:
    """About how many bytes *file* takes in an archive: as pieces of it of 1 MiB together are compressed."""
    size, chosen = file.size, []
    step = max(size // _SAMPLES, _SAMPLE)
    place = wanted = 0
    for buffer in file.buffers():
        while wanted < place + len(buffer):
            start = max(wanted - place, 0)
            chosen.append(bytes(buffer[start : start + _SAMPLE]))
            wanted += step
        place += len(buffer)
    sample = b"".join(chosen)
    if not sample:
        return 0
    if members is ZipMethod.ZSTD:
        packed = len(zstd.compressed(sample, level=_ZSTD_LEVEL))
    else:
        packed = len(deflate.deflate_compress(sample, _LEVEL))
    return packed * size // len(sample)


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
                # what had no room has none now either; the caller that needed it got the error
                with suppress(OSError):
                    self._file.close()
            self._file, self._end = None, 0
            self._spans.clear()
            self._sources.clear()


class _Cut(Struct, frozen=True):
    """A piece to be: its bytes and, where they are one range of the source, whose and which."""

    plain: tuple[memoryview, ...]
    place: tuple[int, int, int] | None = None


def _cuts(file: EditedFile) -> Iterator[_Cut]:
    """The bytes of *file*, piece by piece: a long range alone, cut where its source is a multiple of the grid."""
    grid = _GRID if len(file.source) >= _MANY_PIECES else _FINE_GRID
    if file.size <= 2 * _FINE_GRID:
        yield _Cut(tuple(file.buffers()))
        return
    piece: list[memoryview] = []
    room = grid
    for part, buffer in zip(file.parts, file.buffers(), strict=True):
        if isinstance(part, range) and len(part) >= grid:
            if piece:
                yield _Cut(tuple(piece))
            piece, room = [], grid
            # cut at multiples of the grid, none shorter than a quarter of it or longer than one and a half
            first = -(-(part.start + grid // 4) // grid) * grid
            for start, stop in pairwise((part.start, *range(first, part.stop - grid // 4, grid), part.stop)):
                yield _Cut((file.source[start:stop],), (id(file.source.obj), start, stop))
            continue
        rest = buffer
        while len(rest) >= room:
            yield _Cut((*piece, rest[:room]))
            piece, rest, room = [], rest[room:], grid
        if len(rest):
            piece, room = [*piece, rest], room - len(rest)
    if piece:
        yield _Cut(tuple(piece))
