"""Deflate streams of many compressors, and what other readers make of a stream."""

import random
import zlib
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path

import cramjam
import deflate
from hypothesis import strategies as st
from isal import isal_zlib
from msgspec import Struct

from tests.factories.elf import objcopied
from vbuild.wheel.archive import open_wheel
from vbuild.wheel.blocks import InflatedFile

MIB = 1 << 20
RANDOM = random.Random(1)
WORDS = [bytes(RANDOM.choices(range(256), range(1, 257), k=RANDOM.randint(2, 12))) for _ in range(3000)]
# what code is like, with what cannot be compressed and is stored in it, and zeros
TEXT = b"".join(RANDOM.choices(WORDS, k=700_000))
PLAIN = TEXT[: 2 * MIB] + RANDOM.randbytes(100_000) + TEXT[2 * MIB : 3 * MIB] + bytes(50_000) + TEXT[3 * MIB :]

Deflating = Callable[[bytes], bytes]


def zlibs(level: int, strategy: int = zlib.Z_DEFAULT_STRATEGY, *, memory: int = 8) -> Deflating:
    def deflating(plain: bytes) -> bytes:
        codec = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS, memory, strategy)
        return codec.compress(plain) + codec.flush()

    return deflating


def isals(level: int) -> Deflating:
    def deflating(plain: bytes) -> bytes:
        codec = isal_zlib.compressobj(level, isal_zlib.DEFLATED, -zlib.MAX_WBITS)
        return codec.compress(plain) + codec.flush()

    return deflating


def flushing(*modes: int) -> Deflating:
    """Returns zlib with a flush of one of *modes* now and then, which leaves empty blocks."""

    def deflating(plain: bytes) -> bytes:
        codec, draw, made = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS), random.Random(2), []
        start = 0
        while start < len(plain):
            size = draw.choice([1, 100, 5000, 70_000])
            made += [codec.compress(plain[start : start + size]), codec.flush(draw.choice(modes))]
            start += size
        return b"".join([*made, codec.flush()])

    return deflating


# by name: how whole streams are made of bytes
COMPRESSORS: dict[str, Deflating] = {
    "zlib 6": zlibs(6),
    "zlib 1": zlibs(1),
    "zlib with short blocks": zlibs(6, memory=1),
    "zlib without matches": zlibs(6, zlib.Z_HUFFMAN_ONLY),
    "zlib with fixed codes": zlibs(6, zlib.Z_FIXED),
    "zlib stored": zlibs(0),
    "zlib with flushes": flushing(zlib.Z_SYNC_FLUSH, zlib.Z_FULL_FLUSH, zlib.Z_PARTIAL_FLUSH, zlib.Z_BLOCK),
    "libdeflate 12": lambda plain: bytes(deflate.deflate_compress(plain, 12)),
    "libdeflate 1": lambda plain: bytes(deflate.deflate_compress(plain, 1)),
    "isal 0": isals(0),
    "isal 3": isals(3),
    "miniz_oxide": lambda plain: bytes(cramjam.deflate.compress(plain)),
}


class Segment(Struct, frozen=True):
    """Bytes of a stream and how they are compressed, with blocks as long as *memory* allows.

    A *flush*, if any, comes in their middle, too.
    """

    plain: bytes
    level: int
    memory: int
    strategy: int
    flush: int | None


# blocks of nothing that begin and end at a byte: a stored one, and four with fixed codes
_NOTHING = (b"\x00\x00\x00\xff\xff", (0b010 | 0b010 << 10 | 0b010 << 20 | 0b010 << 30).to_bytes(5, "little"))
# sizes that are drawn from a range are small ones mostly
_sizes = st.sampled_from([20_000, 40_000, 70_000, 300, 1, 0])
_words = st.builds(lambda start, size: TEXT[start : start + size], st.integers(0, MIB), _sizes)
_noise = st.builds(lambda seed, size: random.Random(seed).randbytes(size), st.integers(0, 99), _sizes)
_same = st.builds(lambda byte, size: bytes([byte]) * size, st.integers(0, 255), _sizes)
segments = st.builds(
    Segment,
    st.one_of(_words, _words, _words, _noise, _same),
    st.sampled_from([6, 1, 9, 0]),
    st.sampled_from([4, 1, 8]),
    st.sampled_from(
        [
            zlib.Z_DEFAULT_STRATEGY,
            zlib.Z_DEFAULT_STRATEGY,
            zlib.Z_FIXED,
            zlib.Z_HUFFMAN_ONLY,
            zlib.Z_RLE,
            zlib.Z_FILTERED,
        ]
    ),
    st.sampled_from([None, zlib.Z_PARTIAL_FLUSH, zlib.Z_BLOCK, zlib.Z_SYNC_FLUSH, zlib.Z_FULL_FLUSH]),
)


def stream_of(parts: Iterable[Segment | int]) -> tuple[bytes, bytes]:
    """A stream of *parts*, each of which may refer to those before it, and what it holds; a number is empty blocks."""
    plain, made = b"", b""
    for part in parts:
        if isinstance(part, int):
            made += _NOTHING[part % 2] * part
            continue
        settings = part.memory, part.strategy, plain[-(1 << 15) :]
        codec = zlib.compressobj(part.level, zlib.DEFLATED, -zlib.MAX_WBITS, *settings)
        half = len(part.plain) // 2
        made += codec.compress(part.plain[:half])
        made += b"" if part.flush is None else codec.flush(part.flush)
        made += codec.compress(part.plain[half:]) + codec.flush(zlib.Z_SYNC_FLUSH)
        plain += part.plain
    # the last block ends in the middle of a byte
    last = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    return made + last.compress(b"end") + last.flush(), plain + b"end"


def judged(stream: bytes, size: int) -> set[bytes]:
    """What three readers make of *stream*, which has to end where it ends."""
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    found = inflate.decompress(stream)
    assert inflate.eof
    assert not inflate.unused_data
    fast = isal_zlib.decompressobj(-zlib.MAX_WBITS)
    return {found, bytes(deflate.deflate_decompress(stream, size)), fast.decompress(stream) + fast.flush()}


def with_words(binary: bytes, folder: Path) -> bytes:
    """*binary* with a section of 15 MB, which is not loaded: enough blocks that copying them pays."""
    words = folder / "words"
    words.write_bytes(PLAIN * 3)
    return objcopied(binary, "--add-section", f".words={words}")


def pieces_of(wheel: Path, path: str) -> list[bytes]:
    """What the member at *path* of *wheel* has of blocks, from one that is found to the next, as it would be copied."""
    with open_wheel(wheel) as source, source.mapped(path, folder=wheel.parent, to_edit=True) as data:
        assert isinstance(data.obj, InflatedFile)
        assert data.obj.blocks
        numbers = range(len(data.obj.blocks.stalls))
        pieces = [data.obj.blocks.copied(first, last, data) for first, last in pairwise(numbers)]
        return [piece for piece in pieces if piece]
