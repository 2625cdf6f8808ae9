"""Open the end of a deflate stream, so that another one may follow.

    … | block | last block, marked as the last | zero bits up to a byte
    … | block | the same block, mark cleared   | a stored block of nothing, which ends at a byte | the next stream …

No field says where the last block of a stream begins: it is found by inflating the stream bit by bit. The result has
been inflated to the right bytes; for a stream that cannot be opened the result is None.
https://www.rfc-editor.org/rfc/rfc1951 (section 3.2.3); the idea is that of gzjoin.c in zlib's examples
"""

import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from io import BytesIO

import deflate
from isal import isal_zlib
from msgspec import Struct

from vbuild.files.records import Buffer

END = b"\x03\x00"  # a last block that holds nothing
WINDOW = 1 << 15  # bytes that a block may refer back to

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
# the lengths of a stored block of nothing
_SYNC = _STORED.pack(0, _FULL16)
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


def proved(stream: bytes, plain: Buffer, *, behind: Buffer = b"") -> bool:
    """Whether *stream* inflates to *plain* and to nothing else, and another may follow.

    It may refer to the bytes *behind* which it is to stand, a window of them at most.
    """
    before = b"\x00" + _STORED.pack(len(behind), len(behind) ^ _FULL16) + behind if behind else b""
    # libdeflate passes over what comes after a last block: what follows must be seen to come out
    with suppress(deflate.DeflateError):
        found = deflate.deflate_decompress(
            b"".join((before, stream, _FOLLOWING)), len(behind) + len(plain) + len(_FOLLOWED)
        )
        expected = isal_zlib.crc32(plain, isal_zlib.crc32(behind))
        return isal_zlib.crc32(found) == isal_zlib.crc32(_FOLLOWED, expected)
    return False


def synced(stream: bytes, free: int) -> bytes:
    """*stream*, of whose last byte *free* bits are zero and belong to no block, with a block that ends at a byte."""
    # the block's own header is three bits, all zero
    return stream + bytes(free < 3) + _SYNC  # noqa: PLR2004


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
    window = plain[max(start - WINDOW, 0) : start]
    sample = bytes(plain[start : start + 16])
    found = (
        (bit, padding)
        for bit in bits
        if near >> (bit - 8 * first) & 7 in _LAST_BLOCKS and begins(near >> (bit - 8 * first), window, sample)
        for padding in _paddings(stream, bit, window, plain[start:])
    )
    if not (place := next(found, None)):
        return None
    bit, padding = place
    opened = bytearray(stream)
    opened[bit // 8] ^= 1 << bit % 8
    # readers pass over what is in them where it is the end
    opened[-1] &= 0xFF >> padding
    return synced(bytes(opened), padding)


def begins(block: int, window: memoryview, sample: bytes) -> bool:
    """Whether the bits of *block* are a block that begins with *sample*, behind *window*."""
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
