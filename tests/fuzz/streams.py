"""Deflate streams: inflated, opened at their end, and copied block by block; zlib says what each holds.

An input begins with a byte that says how much of the stream is read at a time.
"""

import random
import zlib
from collections.abc import Iterator
from itertools import pairwise

import deflate
from isal import isal_zlib

from tests.fuzz.target import Target
from vbuild.errors import WheelError
from vbuild.wheel.blocks import END, STEP, WINDOW, Blocks, Stall, deflate_open, inflated_stream, open_stream

# bytes that a stream may inflate to: a block of a thousand bytes can hold a million zeros
_MOST = 1 << 21
_PAIRS = 6
_FOLLOWING = b"what follows"


def _read_stream(data: bytes) -> None:
    step, stream = (data[0] or 1) * 16 if data else 16, data[1:]
    stalls: list[Stall] = []
    pieces = (stream[start : start + step] for start in range(0, len(stream), step))
    expected = _inflated(stream)
    assert _is_read_by_zlib(stream, step) == (expected is not None), "zlib reads it otherwise a piece at a time"
    try:
        found = b"".join(_bounded(inflated_stream(pieces, stalls)))
    except WheelError:
        assert expected is None, "zlib reads it"
        raise
    if expected is None:
        return  # isal takes codes that are not complete, and zlib does not: no codec writes such
    assert found == expected, "zlib reads something else"
    opened = open_stream(stream, found)
    assert opened is None or _inflated(opened + deflate_open(_FOLLOWING) + END) == found + _FOLLOWING, (
        "opened to another one"
    )
    _copy_blocks(stream, found)


def _is_read_by_zlib(stream: bytes, step: int) -> bool:
    """Whether *stream*, a *step* at a time, is one where that is strict, as it is for small members."""
    pieces = (stream[start : start + step] for start in range(0, len(stream), step))
    try:
        for _ in _bounded(inflated_stream(pieces, is_strict=True)):
            pass
    except WheelError:
        return False
    return True


def _bounded(chunks: Iterator[bytes]) -> Iterator[bytes]:
    size = 0
    for chunk in chunks:
        if (size := size + len(chunk)) > _MOST:
            raise WheelError("longer than is looked at here")
        yield chunk


def _inflated(stream: bytes) -> bytes | None:
    """What zlib makes of *stream*, which has to end where it ends; None if it is broken, or too long."""
    codec = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        found = codec.decompress(stream, _MOST + WINDOW)
    except zlib.error:
        return None
    return found if codec.eof and not codec.unused_data and len(found) <= _MOST else None


def _copy_blocks(stream: bytes, plain: bytes) -> None:
    """Blocks copied from *stream* inflate, behind a window of *plain*, to what they should."""
    stalls = list(_stalls(stream))[-_PAIRS:]
    blocks = Blocks(stalls, lambda place, size: stream[place : place + size])
    for number, (first, last) in enumerate(pairwise(stalls)):
        if piece := blocks.copied(number, number + 1, memoryview(plain)):
            window = plain[max(first.plain - WINDOW, 0) : first.plain]
            whole = window + plain[first.plain : last.plain]
            assert _inflated(deflate_open(window) + piece + END) == whole, "blocks of something else"


def _stalls(stream: bytes) -> Iterator[Stall]:
    """Where a step yields nothing, everywhere in *stream* and not on the grid alone."""
    codec = isal_zlib.decompressobj(-zlib.MAX_WBITS)
    plain = 0
    for packed in range(0, len(stream), STEP):
        found = len(codec.decompress(stream[packed : packed + STEP]))
        if not found and packed and not codec.eof:
            yield Stall(packed, plain)
        plain += found


def _streams() -> Iterator[bytes]:
    chance = random.Random(4)
    words = b" ".join(chance.choice((b"alpha", b"beta", b"%d" % number)) for number in range(6000))
    mixed = words[:9000] + chance.randbytes(3000) + bytes(70_000) + words[9000:]
    for plain in (b"", words[:300], mixed):
        for step, level in ((1, 1), (9, 6), (255, 9)):
            yield bytes([step]) + bytes(deflate.deflate_compress(plain, level))
        codec = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS, 1)
        yield b"\x05" + codec.compress(plain) + codec.flush()
        yield b"\x05" + deflate_open(plain) + END


def _recompressed(data: bytes, chance: random.Random) -> bytes:
    """What *data* inflates to, a little changed, as another codec deflates it; with a byte changed in one of two."""
    plain = bytearray(_inflated(data[1:]) or data)
    for _ in range(chance.randint(0, 3)):
        start = chance.randrange(len(plain) + 1)
        new = (b"", bytes(chance.randrange(9000)), chance.randbytes(50), plain[:5000])
        plain[start : start + chance.randrange(200)] = chance.choice(new)
    if chance.random() < 1 / 2:
        made = bytearray(deflate.deflate_compress(bytes(plain), chance.randint(1, 12)))
    else:
        level, memory, strategy = chance.randint(0, 9), chance.randint(1, 9), chance.randint(0, 4)
        codec = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS, memory, strategy)
        cut = chance.randrange(len(plain) + 1)
        flush = chance.choice((zlib.Z_SYNC_FLUSH, zlib.Z_PARTIAL_FLUSH, zlib.Z_BLOCK))
        made = bytearray(codec.compress(bytes(plain[:cut])) + codec.flush(flush))
        made += codec.compress(bytes(plain[cut:])) + codec.flush()
    if made and chance.random() < 1 / 2:
        made[chance.randrange(len(made))] ^= 1 << chance.randrange(8)
    return bytes([chance.randrange(256)]) + bytes(made)


TARGETS = (
    Target(
        "stream",
        _read_stream,
        _streams,
        (b"\0\0\0\xff\xff", b"\x03\0"),
        _recompressed,
        ("vbuild.wheel.blocks", "vbuild.wheel.blocks", "vbuild.wheel.blocks"),
    ),
)
