"""Deflate streams of all kinds of blocks, and of other compressors: pieces are copied rightly, or not at all."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.factories.deflate_streams import PLAIN, Segment, judged, segments, stream_of, zlibs
from vbuild.files.edited import EditedFile
from vbuild.wheel.blocks import END, WINDOW, Blocks, InflatedFile, Stall, deflate_open, inflated_stream
from vbuild.wheel.deflate import Codec, Deflater

SAMPLES = Path(__file__).parents[1] / "samples" / "deflate"
GRID = 1 << 13


def chunks(stream: bytes, size: int) -> Iterator[bytes]:
    return (stream[start : start + size] for start in range(0, len(stream), size))


def found(stream: bytes, plain: bytes, *, size: int = 2048) -> list[Stall]:
    """Where blocks of *stream* begin, of which *size* bytes are read at a time, and looked at once."""
    stalls: list[Stall] = []
    assert b"".join(inflated_stream(chunks(stream, size), stalls, grid=GRID)) == plain
    return stalls


def damaged(stream: bytes, flips: Sequence[tuple[int, int]]) -> Callable[[int, int], bytes]:
    """What reads *stream*, with *flips* of bits in all that is longer than the headers by which blocks are found."""

    def read(place: int, size: int) -> bytes:
        data = bytearray(stream[place : place + size])
        for at, bit in flips if size > 1000 else ():
            data[at % len(data)] ^= 1 << bit
        return bytes(data)

    return read


def copied(stalls: Sequence[Stall], stream: bytes, plain: bytes, flips: Sequence[tuple[int, int]] = ()) -> int:
    """How many pieces of *stream*, from a stall to the next, are copied; each inflates to its part of *plain*."""
    blocks = Blocks([*stalls], damaged(stream, flips))
    pieces = 0
    for number, (first, last) in enumerate(pairwise(stalls)):
        if piece := blocks.copied(number, number + 1, memoryview(plain)):
            window = plain[max(first.plain - WINDOW, 0) : first.plain]
            whole = window + plain[first.plain : last.plain]
            assert judged(deflate_open(window) + piece + END, len(whole)) == {whole}
            pieces += 1
    return pieces


@settings(max_examples=40)
@given(
    parts=st.lists(st.one_of(segments, segments, st.integers(1, 5)), min_size=4, max_size=8),
    size=st.integers(500, 5000),
)
def test_pieces_of_any_blocks_are_right(parts: list[Segment | int], size: int) -> None:
    stream, plain = stream_of(parts)
    assert judged(stream, len(plain)) == {plain}
    stalls = found(stream, plain, size=size)
    copied(stalls, stream, plain)
    copied(stalls[::2], stream, plain)


@settings(max_examples=40)
@given(
    parts=st.lists(segments, min_size=4, max_size=6),
    lies=st.lists(st.tuples(st.integers(-200, 200), st.integers(-70_000, 70_000)), min_size=1, max_size=4),
    flips=st.lists(st.tuples(st.integers(0, 1 << 30), st.integers(0, 7)), max_size=2),
)
def test_an_index_that_lies_gives_right_pieces_or_none(
    parts: list[Segment], lies: list[tuple[int, int]], flips: list[tuple[int, int]]
) -> None:
    stream, plain = stream_of(parts)
    stalls = found(stream, plain)
    wrong = [
        Stall(max(stall.packed + packed, 0), min(max(stall.plain + by, 0), len(plain)))
        for stall, (packed, by) in zip(stalls, lies * len(stalls), strict=False)
    ]
    copied(sorted([*stalls, *wrong], key=lambda stall: stall.plain), stream, plain, flips)


@pytest.mark.parametrize("path", sorted(SAMPLES.iterdir()), ids=lambda path: path.stem)
def test_blocks_of_other_compressors_are_copied(path: Path) -> None:
    stream = path.read_bytes()
    (plain,) = judged(stream, 243_720)
    assert copied(found(stream, plain), stream, plain)


def test_nothing_that_an_index_says_is_written_unproved() -> None:
    whole = PLAIN * 3
    stream = zlibs(6)(whole)
    stalls: list[Stall] = []
    source = InflatedFile(-1, len(whole))
    source[:] = b"".join(inflated_stream(chunks(stream, 1 << 20), stalls))
    source.blocks = Blocks(stalls, damaged(stream, [(100_000, 3)]))
    source.blocks.worth.get(Codec.LIBDEFLATE, lambda: True)
    with Deflater() as deflater:
        made = b"".join(part.data for part in deflater.pressed(EditedFile.whole(memoryview(source))))
    assert judged(made, len(whole)) == {whole}


def long_block(least: int) -> tuple[bytes, int]:
    """A block of *least* zeros or more, and how many: one zero, and matches of 258 at a distance of one."""
    # codes: 0 for a match of 258, 10 for a zero, 11 for the end; its lengths are written with codes for 18, 1 and 2
    lengths = {18: "100", 1: "010", 2: "010"}
    order = (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15)
    described = "".join(lengths.get(symbol, "000") for symbol in order)
    # 2 for the zero, 255 unused, 2 for the end, 28 unused, 1 for the match, 1 for the distance
    used = "11" + "0" + f"{127:07b}"[::-1] + "0" + f"{106:07b}"[::-1] + "11" + "0" + f"{17:07b}"[::-1] + "10" + "10"
    bits = "0" + "01" + f"{29:05b}"[::-1] + "00000" + f"{15:04b}" + described + used + "10"
    bits += "0" * (-len(bits) % 8)
    count = (len(bits) - bits.rindex("1") - 2) // 2 + 4 * (least // (4 * 258))
    head = bytes(int(bits[start : start + 8][::-1], 2) for start in range(0, len(bits), 8))
    # the end, and a stored block of nothing
    return head + bytes(least // (4 * 258)) + b"\x03\x00\x00\xff\xff", 1 + 258 * count


def test_a_long_block_is_one() -> None:
    block, size = long_block(100_000)
    assert judged(block + END, size) == {bytes(size)}


@pytest.mark.nightly
def test_behind_a_block_of_more_than_four_gigabytes_blocks_are_where_they_are() -> None:
    block, size = long_block(1 << 32)
    text = PLAIN[: 4 << 20]
    stalls: list[Stall] = []
    stream = block + zlibs(6)(text)
    assert sum(map(len, inflated_stream(chunks(stream, 1 << 20), stalls))) == size + len(text)
    window = bytes(WINDOW)
    behind = [Stall(stall.packed - len(block), stall.plain - size + WINDOW) for stall in stalls if stall.plain > size]
    assert copied(behind, stream[len(block) :], window + text)
