"""Deflate streams: inflated with a look at where blocks begin, and pieces of them that go into other streams.

    raw -> inflated_stream: what it inflates to; at every MiB, in steps of a few bytes until one yields nothing: a Stall
    Blocks.copied: from the start of one block to that of another, as a stream that another one may follow
    open_stream: a whole stream, opened so that another one may follow

    … | block | last block, marked as the last | zero bits up to a byte
    … | block | the same block, mark cleared   | a stored block of nothing, which ends at a byte | the next stream …

No field says where a block begins: it is found by inflating bit by bit. No bit of a piece is shifted: empty blocks in
front of it fill up its first byte. Every result has been inflated and compared; what cannot be proved is None.

isal takes codes that leave room for others, which zlib and so pip refuse. So zlib, a second a GB slower, inflates what
is small, and all that `verify` and `check` vouch for.
https://www.rfc-editor.org/rfc/rfc1951 (section 3.2); opening a stream is the idea of gzjoin.c in zlib's examples
"""

import io
import math
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from io import BytesIO
from itertools import takewhile
from mmap import mmap

import deflate
from isal import isal_zlib
from msgspec import Struct

from vbuild.errors import WheelError
from vbuild.files.edited import EditedFile, Part
from vbuild.files.records import Buffer
from vbuild.process.threads import OncePerKey

STEP = 32  # bytes of the stream inflated at a time where a block's end is looked for

# bytes that come out between two searches for a block
_GRID = 1 << 20
# the same in the largest libraries, of so many bytes
_MANY, _WIDE_GRID = 1 << 28, 1 << 22
# bytes that come out at a time
_CHUNK = 1 << 18
# bytes of the stream that are inflated at a time elsewhere
_SLICE = 1 << 16


class Stall(Struct, frozen=True):
    """A step that yielded nothing: at byte *packed* of the stream, when *plain* bytes had come out."""

    packed: int
    plain: int


def grid_for(size: int) -> int:
    return _GRID if size < _MANY else _WIDE_GRID


def inflated_stream(
    raw: Iterator[bytes], stalls: list[Stall] | None = None, *, grid: int = _GRID, is_strict: bool = False
) -> Iterator[bytes]:
    """Inflate *raw*, a chunk at a time; `WheelError` unless the stream ends with it.

    *stalls* get one for about each *grid*, or else a MiB later. If it *is_strict*, zlib inflates it.
    """
    inflater = (zlib if is_strict else isal_zlib).decompressobj(-zlib.MAX_WBITS)
    packed = plain = 0
    wanted: float = math.inf if stalls is None else grid
    try:
        for piece in _slices(raw):
            rest, read = piece, 0
            if stalls is not None and plain >= wanted:
                steps = map(inflater.decompress, iter(partial(io.BytesIO(rest).read, STEP), b""))
                pieces = list(takewhile(bool, steps))
                read, yielded = len(pieces) * STEP, sum(map(len, pieces))
                plain += yielded
                yield b"".join(pieces)
                if read < len(rest):
                    if not inflater.eof:
                        stalls.append(Stall(packed + read, plain))
                    read += STEP
                # stored blocks do not stall
                if read < len(rest) or yielded <= len(rest) or plain >= wanted + _LONGEST_BLOCK:
                    step = grid if read < len(rest) else min(grid, _GRID)
                    wanted = plain - plain % step + step
            packed += len(piece)
            rest = rest[read:]
            while rest and not inflater.eof:
                chunk = inflater.decompress(rest, _CHUNK)
                rest = inflater.unconsumed_tail
                plain += len(chunk)
                yield chunk
            if rest or inflater.unused_data:
                raise WheelError("damaged: bytes after the end of its deflate stream")
        yield inflater.flush()
    except (zlib.error, isal_zlib.error) as error:  # type: ignore[misc] # its stub says that this class is one
        raise WheelError("damaged: its deflate stream is broken") from error
    if not inflater.eof:
        raise WheelError("damaged: its deflate stream is cut short")


def _slices(raw: Iterator[bytes]) -> Iterator[Buffer]:
    """Cut *raw* at the same places on all machines."""
    for piece in raw:
        view = memoryview(piece)
        for start in range(0, len(view), _SLICE):
            yield view[start : start + _SLICE]


END = b"\x03\x00"  # a last block that holds nothing
WINDOW = 1 << 15  # bytes that a block may refer back to

# libdeflate ends a block after 300,000 bytes, or 5,000 later where that is the end
_LONGEST_BLOCK = 305_000
# bytes inflated at a time; the longer header of a block shows as a step that yields nothing
_STEPS = (32, 8)
# the first three bits of a block that is the last one: with fixed codes, with codes of its own
_LAST_BLOCKS = (0b011, 0b101)
_STORED = struct.Struct("<HH")
_FULL16 = 0xFFFF
_BLOCK_LEVEL = 6
# the lengths of a stored block of nothing
_SYNC = _STORED.pack(0, _FULL16)
# a last block, stored, that holds these bytes
_FOLLOWED = b"followed"
_FOLLOWING = b"\x01" + _STORED.pack(len(_FOLLOWED), len(_FOLLOWED) ^ _FULL16) + _FOLLOWED


def open_stream(stream: bytes, plain: Buffer) -> bytes | None:
    """*stream*, a whole one of *plain*, ending at a byte so that another may follow; None unless proved."""
    view = memoryview(plain)
    for step in _STEPS:
        if not (trace := _traced(stream, view, step)):
            return None
        opened = _opened(stream, view, range(1), 0) or _opened(stream, view, trace.stalled, trace.stalled_at)
        if opened := opened or _opened_stored(stream, view, trace.uneven):
            return opened
    return None


def deflate_open(plain: Buffer) -> bytes:
    """*plain* as a deflate stream that another may follow, by the slow codec that can make one."""
    codec = zlib.compressobj(_BLOCK_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return codec.compress(plain) + codec.flush(zlib.Z_FULL_FLUSH)


def is_proved(stream: bytes, plain: Buffer, *, behind: Buffer = b"") -> bool:
    """Whether *stream*, behind the bytes *behind*, inflates to *plain* alone, and another may follow."""
    before = b"\x00" + _STORED.pack(len(behind), len(behind) ^ _FULL16) + behind if behind else b""
    # libdeflate ignores what follows a last block
    with suppress(deflate.DeflateError):
        inflated = deflate.deflate_decompress(
            b"".join((before, stream, _FOLLOWING)), len(behind) + len(plain) + len(_FOLLOWED)
        )
        expected = isal_zlib.crc32(plain, isal_zlib.crc32(behind))
        return isal_zlib.crc32(inflated) == isal_zlib.crc32(_FOLLOWED, expected)
    return False


def end_at_byte(stream: bytes, free: int) -> bytes:
    """*stream*, whose last *free* bits are of no block, with a block that ends at a byte."""
    # the block's own header is three bits, all zero
    return stream + bytes(free < 3) + _SYNC  # noqa: PLR2004


class _Trace(Struct, frozen=True):
    stalled: range  # bits of the stream, among which the last header stands
    stalled_at: int  # bytes it had yielded by then
    uneven: range  # bytes of the stream, among which the header of a last stored block stands


def _traced(stream: bytes, plain: memoryview, step: int) -> _Trace | None:
    """Inflate *stream*, its end in steps of *step* bytes; None unless it gives *plain*."""
    inflate = isal_zlib.decompressobj(-zlib.MAX_WBITS)
    body, rest = b"", stream
    try:
        if len(plain) > _LONGEST_BLOCK:
            body, rest = inflate.decompress(stream, len(plain) - _LONGEST_BLOCK), inflate.unconsumed_tail
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
    """The first of the last steps that yielded nothing before one that did, and the bytes from there on."""
    left, stalled, left_then = 0, 0, sum(sizes)
    for number in reversed(range(len(sizes))):
        if left and not sizes[number]:
            stalled, left_then = number, left
        elif left_then == left:
            break
        left += sizes[number]
    return stalled, left_then


def _opened(stream: bytes, plain: memoryview, bits: range, start: int) -> bytes | None:
    """*stream* opened if its last block begins at one of *bits*, with the bytes at *start* of *plain*."""
    first = bits.start // 8
    near = int.from_bytes(stream[first : first + len(bits) // 8 + _LONGEST_HEADER], "little")
    window = plain[max(start - WINDOW, 0) : start]
    sample = bytes(plain[start : start + 16])
    endings = (
        (bit, padding)
        for bit in bits
        if near >> (bit - 8 * first) & 7 in _LAST_BLOCKS and begins(near >> (bit - 8 * first), window, sample)
        for padding in _paddings(stream, bit, window, plain[start:])
    )
    if not (ending := next(endings, None)):
        return None
    bit, padding = ending
    opened = bytearray(stream)
    opened[bit // 8] ^= 1 << bit % 8
    opened[-1] &= 0xFF >> padding
    return end_at_byte(bytes(opened), padding)


def begins(block: int, window: memoryview, sample: bytes) -> bool:
    inflate = zlib.decompressobj(-zlib.MAX_WBITS, zdict=window)
    with suppress(zlib.error):
        return inflate.decompress(block.to_bytes(-(-block.bit_length() // 8), "little"), len(sample) or 1) == sample
    return False


def _paddings(stream: bytes, bit: int, window: memoryview, plain: memoryview) -> Iterator[int]:
    """Yield how many unused bits end *stream*, if its last block begins at *bit* and holds *plain*."""
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
    with suppress(zlib.error):
        inflated = inflate.decompress(block.to_bytes(-(-block.bit_length() // 8) + len(END), "little"))
        return inflate.eof and isal_zlib.crc32(inflated, crc) == expected
    return False


def _opened_stored(stream: bytes, plain: memoryview, places: range) -> bytes | None:
    """*stream* opened if its last block is stored, with its sizes at one of the bytes *places*."""
    for offset in places:
        size = len(stream) - offset - _STORED.size
        if 0 <= size <= _FULL16 and stream[offset : offset + _STORED.size] == _STORED.pack(size, size ^ _FULL16):
            # its mark, two zero bits for stored, and zero bits up to a byte
            head = stream[:offset].rstrip(b"\x00")
            mark = 1 << head[-1].bit_length() - 1 if head else 0
            opened = head[:-1] + bytes([head[-1] ^ mark]) + stream[len(head) :] if mark else b""
            return opened if is_proved(opened, plain) else None
    return None


# the code that ends the block before yields nothing, and the inflater reads ahead
_BEFORE, _AFTER = STEP + 2, 3
_LONGEST_HEADER = 512
# what of a block has to come out as it did
_SAMPLE = 64
# the first three bits of a block that is not the last one and has codes of its own
_DYNAMIC = 0b100
# the code of code lengths: 3 bits for each length, of 7 bits at most, whose codes together fill the room for codes
_MOST_CODES, _LENGTHS, _FULL_CODE = 29, 17, 1 << 7
# blocks of nothing, their bits and how many: with fixed codes; with codes of its own, for 0, 1 and the end
_FIXED, _FIXED_BITS = 0b010, 10
_OWN, _OWN_BITS = 0x6AD3FFCA0400000000101C104, 99
# bytes that are compared at a time
_COMPARED = 1 << 16


class Blocks:
    """The deflate stream of a member and its blocks; *read* gives bytes by place and number."""

    def __init__(self, stalls: list[Stall], read: Callable[[int, int], bytes]) -> None:
        self.stalls = tuple(stalls)
        # by the name of a codec: whether pieces of this stream are as small as what it makes
        self.worth = OncePerKey[str, bool]()
        self._read = read
        self._begins: dict[int, int | None] = {}

    def copied(self, first: int, last: int, plain: memoryview) -> bytes | None:
        """The bits between two stalls as a stream to follow a window of *plain*, and precede another."""
        with suppress(OSError, ValueError, WheelError):  # the archive may be closed, or a volume gone
            begin, end = self._begin(first, plain), self._begin(last, plain)
            if begin is None or end is None or begin >= end:
                return None
            phase, free = begin % 8, -end % 8
            data = bytearray(self._read(begin // 8, -(-end // 8) - begin // 8))
            lead, bits = filler(phase)
            data[0] = data[0] >> phase << phase | lead >> (bits - phase)
            data[-1] &= 0xFF >> free
            whole = (lead & (1 << bits - phase) - 1).to_bytes((bits - phase) // 8, "little")
            stream = end_at_byte(whole + data, free)
            start, stop = self.stalls[first].plain, self.stalls[last].plain
            return (
                stream if is_proved(stream, plain[start:stop], behind=plain[max(start - WINDOW, 0) : start]) else None
            )
        return None

    def _begin(self, number: int, plain: memoryview) -> int | None:
        if number not in self._begins:
            stall = self.stalls[number]
            first = max(stall.packed - _BEFORE, 0)
            near = int.from_bytes(self._read(first, _BEFORE + _AFTER + _LONGEST_HEADER), "little")
            window = plain[max(stall.plain - WINDOW, 0) : stall.plain]
            sample = bytes(plain[stall.plain : stall.plain + _SAMPLE])
            places = range(8 * (stall.packed + _AFTER - first))
            beginnings = (bit for bit in places if _is_header(near >> bit) and begins(near >> bit, window, sample))
            begin = next(beginnings, None)
            self._begins[number] = None if begin is None else 8 * first + begin
        return self._begins[number]


class InflatedFile(mmap):
    blocks: Blocks | None = None


def as_edit(after: memoryview, before: EditedFile) -> EditedFile:
    """*after*, made of *before*, as ranges of the same source where it has the same bytes at the same place.

    The whole of *after* if no blocks of the source are known, or little is the same: new bytes are held in memory.
    """
    source, same = before.source, 0
    parts: list[Part] = []
    if isinstance(source.obj, InflatedFile) and source.obj.blocks:
        offset = 0
        for part in before.parts:
            for start in range(0, len(part), _COMPARED):
                piece = part[start : start + _COMPARED]
                new = after[offset : offset + len(piece)]
                # of two views each byte would be compared by itself
                if isinstance(piece, range) and bytearray(new) == source[piece.start : piece.stop]:
                    parts.append(piece)
                    same += len(piece)
                else:
                    parts.append(bytes(new))
                offset += len(piece)
        parts.append(bytes(after[offset:]))
    return EditedFile.of(source, parts) if same > len(after) // 2 else EditedFile.whole(after)


def filler(phase: int) -> tuple[int, int]:
    """Blocks of nothing, the bits and how many, that leave *phase* bits of their last byte."""
    blocks, bits = (_OWN, _OWN_BITS) if phase % 2 else (0, 0)
    while bits % 8 != phase:
        blocks |= _FIXED << bits
        bits += _FIXED_BITS
    return blocks, bits


def _is_header(block: int) -> bool:
    if block & 7 != _DYNAMIC or block >> 3 & 31 > _MOST_CODES or block >> 8 & 31 > _MOST_CODES:
        return False
    lengths = block >> _LENGTHS
    room = 0
    for number in range((block >> 13 & 15) + 4):
        if length := lengths >> 3 * number & 7:
            room += _FULL_CODE >> length
    return room == _FULL_CODE
