"""Pieces of a deflate stream that stand in another one as they are: zlib, libdeflate and isal inflate it."""

import zipfile
import zlib
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.factories.deflate_streams import COMPRESSORS, MIB, PLAIN, TEXT, judged, zlibs
from tests.factories.wheels import contents, wheel
from vbuild.errors import WheelError
from vbuild.files.edited import EditedFile, Part
from vbuild.wheel.archive import open_wheel
from vbuild.wheel.blocks import END, WINDOW, Blocks, InflatedFile, Stall, as_edit, deflate_open, filler, inflated_stream
from vbuild.wheel.deflate import Codec, Deflater
from vbuild.wheel.write import edit_wheel

# zlib's own that have blocks with codes of their own, long enough to be found
FOUND = {
    "zlib 6",
    "zlib 1",
    "zlib without matches",
    "zlib with flushes",
    "libdeflate 12",
    "libdeflate 1",
    "miniz_oxide",
}


def chunks(stream: bytes, size: int = MIB) -> Iterator[bytes]:
    return (stream[start : start + size] for start in range(0, len(stream), size))


def blocks_of(stream: bytes, plain: bytes) -> Blocks:
    stalls: list[Stall] = []
    assert b"".join(inflated_stream(chunks(stream), stalls)) == plain
    return Blocks(stalls, lambda place, size: stream[place : place + size])


@cache
def stream(name: str) -> bytes:
    return COMPRESSORS[name](PLAIN)


@cache
def honest(name: str) -> Blocks:
    return blocks_of(stream(name), PLAIN)


@settings(max_examples=8)
@given(
    name=st.sampled_from(sorted(COMPRESSORS)),
    places=st.lists(st.integers(0, len(PLAIN)), min_size=2, max_size=6),
    codec=st.sampled_from(Codec),
)
def test_ranges_of_any_stream_are_inflated_to_their_bytes(name: str, places: list[int], codec: Codec) -> None:
    source = InflatedFile(-1, len(PLAIN))
    source[:] = PLAIN
    source.blocks = blocks_of(stream(name), PLAIN)
    ranges = [range(*sorted(pair)) for pair in pairwise(places)]
    file = EditedFile.of(memoryview(source), [b"new bytes", *ranges, b"end"])
    pressed = set()
    for threads in (1, 3):
        with Deflater(codec, threads=threads, remembers=threads > 1) as deflater:
            pressed.add(b"".join(part.data for part in deflater.pressed(file)))
    assert len(pressed) == 1
    assert judged(pressed.pop(), file.size) == {bytes(file)}


@settings(max_examples=25)
@given(name=st.sampled_from(sorted(FOUND)), at=st.integers(0, 1 << 40), bit=st.integers(0, 7))
def test_blocks_that_hold_something_else_give_no_piece(name: str, at: int, bit: int) -> None:
    begin, end = honest(name).stalls[:2]
    damaged = bytearray(stream(name))
    # between the two headers: something else comes out, or the stream breaks
    damaged[begin.packed + 600 + at % (end.packed - begin.packed - 1200)] ^= 1 << bit
    lying = Blocks([begin, end], lambda place, size: bytes(damaged[place : place + size]))
    if found := lying.copied(0, 1, memoryview(PLAIN)):
        # two codes may spell the same bytes
        window = PLAIN[begin.plain - WINDOW : begin.plain]
        assert (
            zlib.decompress(deflate_open(window) + found + END, -zlib.MAX_WBITS)
            == window + PLAIN[begin.plain : end.plain]
        )


@given(st.integers(0, 70), st.integers(1, 90))
def test_what_follows_a_stream_is_refused_wherever_it_is_cut(more: int, size: int) -> None:
    short = zlibs(6)(TEXT[:3000])
    if more:
        with pytest.raises(WheelError, match="damaged: bytes after the end of its deflate stream"):
            list(inflated_stream(chunks(short + bytes(more), size), []))
    else:
        assert b"".join(inflated_stream(chunks(short, size), [])) == TEXT[:3000]
    with pytest.raises(WheelError, match="damaged: its deflate stream is cut short"):
        list(inflated_stream(chunks(short[:-1], size), []))


@pytest.mark.parametrize("more", [1, 31, 32, 33, 64, 100_000])
def test_what_follows_is_refused_where_blocks_are_looked_for(more: int) -> None:
    """Where the stream ends while it is read slowly."""
    for size in range(MIB + 1, MIB + 200_000, 67_123):
        whole = zlibs(1)(PLAIN[:size])
        with pytest.raises(WheelError, match="damaged: bytes after the end of its deflate stream"):
            list(inflated_stream(chunks(whole + bytes(more)), []))
        assert b"".join(inflated_stream(chunks(whole), [])) == PLAIN[:size]


@pytest.mark.parametrize("phase", range(8))
def test_blocks_of_nothing_fill_a_byte_up_to_any_bit(phase: int) -> None:
    blocks, bits = filler(phase)
    assert bits % 8 == phase
    # a last block of nothing, with fixed codes
    assert judged((blocks | 0b011 << bits).to_bytes((bits + 10 + 7) // 8, "little"), 0) == {b""}


def test_what_stays_of_a_member_is_copied_into_the_new_wheel(tmp_path: Path) -> None:
    plain = PLAIN * 3
    fat = wheel(tmp_path, files={"demo/_C.so": plain})
    with open_wheel(fat) as source, source.mapped("demo/_C.so", folder=tmp_path, to_edit=True) as data:
        assert isinstance(data.obj, InflatedFile)
        blocks = data.obj.blocks
        assert blocks
        parts: list[Part] = [b"head", range(4, len(plain) - 100_000), b"tail"]
        cut = EditedFile.of(data, parts)
        out = edit_wheel(source, tmp_path / "out", source.name, edits={"demo/_C.so": cut})
        pieces = [blocks.copied(number, number + 1, data) for number in range(len(blocks.stalls) - 1)]
        del data
    assert contents(out)["demo/_C.so"] == bytes(EditedFile.of(plain, parts))
    written = out.read_bytes()
    assert pieces
    assert all(piece and piece in written for piece in pieces)
    with zipfile.ZipFile(out) as archive:
        assert archive.testzip() is None


@given(
    places=st.lists(st.integers(0, MIB), max_size=4),
    cuts=st.lists(st.integers(0, MIB), min_size=2, max_size=4),
    new=st.binary(max_size=100),
    more=st.integers(-MIB, 100_000),
)
def test_what_is_the_same_at_the_same_place_is_a_range_of_the_source(
    places: list[int], cuts: list[int], new: bytes, more: int
) -> None:
    source = InflatedFile(-1, MIB)
    source[:] = PLAIN[:MIB]
    ranges = [range(*sorted(pair)) for pair in pairwise(cuts)]
    before = EditedFile.of(memoryview(source), [b"head", *ranges, b"tail"])
    after = bytearray(bytes(before))
    for place in places:
        after[place : place + len(new)] = new
    after = after + bytes(more) if more >= 0 else after[:more]
    assert as_edit(memoryview(after), before).source.obj is after
    source.blocks = honest("zlib 6")
    found = as_edit(memoryview(after), before)
    assert bytes(found) == after
    if sum(map(len, ranges)) > len(after) // 2 and not places and more >= 0:
        assert found.source.obj is source
        assert [part for part in found.parts if isinstance(part, range)] == [
            part for part in before.parts if isinstance(part, range)
        ]


@pytest.mark.parametrize(("name", "is_copied"), [("zlib 6", True), ("zlib without matches", False)])
def test_what_takes_more_room_is_deflated_anew(name: str, *, is_copied: bool) -> None:
    whole = PLAIN * 3
    source = InflatedFile(-1, len(whole))
    source[:] = whole
    made = []
    for blocks in (None, blocks_of(COMPRESSORS[name](whole), whole)):
        source.blocks = blocks
        with Deflater() as deflater:
            made.append(b"".join(part.data for part in deflater.pressed(EditedFile.whole(memoryview(source)))))
    assert (made[0] != made[1]) == is_copied
    assert len(made[1]) <= len(made[0]) * 1.005


@pytest.mark.parametrize("failure", [OSError("gone"), ValueError("closed"), WheelError("truncated")])
def test_what_cannot_be_read_any_more_gives_no_piece(failure: Exception) -> None:
    def read(_place: int, _size: int) -> bytes:
        raise failure

    blocks = Blocks(list(honest("zlib 6").stalls), read)
    assert blocks.copied(0, 1, memoryview(PLAIN)) is None
