"""Deflate streams with their ends taken off."""

import random
import zlib

import deflate
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vbuild.wheel.blocks import END, open_stream

RANDOM = random.Random(1)
WORDS = b" ".join(b"alpha beta %d" % RANDOM.getrandbits(16) for _ in range(60_000))
PLAIN = {
    "nothing": b"",
    "one byte": b"a",
    "a line": WORDS[:100],
    "one block": WORDS[:3000],
    "some blocks": WORDS,
    "few different bytes": RANDOM.randbytes(700_000).translate(b"ab" * 128),
    "zeros": bytes(1_000_000),
    "zeros at the end": WORDS + bytes(6000),
    "one stored block": RANDOM.randbytes(65_535),
    "several stored blocks": RANDOM.randbytes(700_000),
    "stored blocks at the end": WORDS + RANDOM.randbytes(100_000),
    "stored blocks in front": RANDOM.randbytes(400_000) + WORDS,
}
FOLLOWING = b"what follows"


def finished(plain: bytes) -> bytes:
    return bytes(deflate.deflate_compress(plain, 6))


def inflated(stream: bytes) -> bytes:
    """What zlib makes of *stream*, which must end where it ends."""
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    found = inflate.decompress(stream)
    assert inflate.eof
    assert not inflate.unused_data
    return found


@pytest.mark.parametrize("case", PLAIN)
def test_a_stream_without_its_end_can_be_followed(case: str) -> None:
    plain = bytes(PLAIN[case])
    stream = finished(plain)
    opened = open_stream(stream, plain)
    assert opened is not None
    assert len(opened) <= len(stream) + 5
    assert inflated(opened + finished(FOLLOWING)) == plain + FOLLOWING
    assert inflated(opened + opened + END) == plain + plain


blocks = st.one_of(
    st.binary(max_size=300),
    st.tuples(st.binary(min_size=1, max_size=20), st.integers(0, 30_000)).map(lambda drawn: drawn[0] * drawn[1]),
    st.tuples(st.integers(0, 99), st.integers(0, 70_000)).map(
        lambda drawn: random.Random(drawn[0]).randbytes(drawn[1])
    ),
)


@given(st.lists(blocks, max_size=5).map(b"".join), st.integers(1, 9))
def test_what_is_opened_inflates_to_the_same(plain: bytes, level: int) -> None:
    opened = open_stream(bytes(deflate.deflate_compress(plain, level)), plain)
    assert opened is None or inflated(opened + finished(FOLLOWING)) == plain + FOLLOWING


@given(st.integers(0, 3000), st.integers(1, 255))
def test_a_damaged_stream_is_not_opened_unless_it_inflates_to_the_same(place: int, flips: int) -> None:
    plain = WORDS[:20_000]
    damaged = bytearray(finished(plain))
    damaged[place] ^= flips
    opened = open_stream(bytes(damaged), plain)
    # the same bytes can stand at another distance
    assert opened is None or inflated(opened + finished(FOLLOWING)) == plain + FOLLOWING
