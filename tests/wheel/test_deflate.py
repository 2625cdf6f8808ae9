"""What comes out of the press: one deflate stream, the same on every machine, and each piece of a family once."""

import random
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vbuild.files import zstd
from vbuild.files.edited import EditedFile
from vbuild.wheel.deflate import Codec, DeflatedPart, Deflater

MIB = 1 << 20
RANDOM = random.Random(1)
# 20 MB: enough to be cut on the wide grid
SOURCE = b"".join(RANDOM.randbytes(700) + b"some code " * 130 for _ in range(10_000))


def pressed(rope: EditedFile, press: Deflater) -> bytes:
    return b"".join(piece.data for piece in press.pressed(rope))


ropes = st.lists(
    st.binary(max_size=100)
    | st.tuples(st.integers(0, len(SOURCE)), st.integers(0, 6 * MIB)).map(
        lambda drawn: range(drawn[0], min(drawn[0] + drawn[1], len(SOURCE)))
    ),
    max_size=6,
)


@settings(max_examples=25)
@given(ropes)
def test_any_rope_is_pressed_to_its_bytes(parts: list[range | bytes]) -> None:
    rope = EditedFile.of(SOURCE, parts)
    with Deflater(Codec.ISAL) as press:
        assert zlib.decompress(pressed(rope, press), -zlib.MAX_WBITS) == bytes(rope)
        assert zlib.decompress(pressed(rope, press), -zlib.MAX_WBITS) == bytes(rope)


@pytest.mark.parametrize("size", [1000, MIB, 2 * MIB, 3 * MIB])
def test_short_parts_are_pressed_together(size: int) -> None:
    rope = EditedFile.of(SOURCE, [range(start, start + size) for start in range(0, 16 * MIB, 4 * MIB)] * 2)
    with Deflater(Codec.ISAL) as press:
        pieces = list(press.pressed(rope))
    assert zlib.decompress(b"".join(piece.data for piece in pieces), -zlib.MAX_WBITS) == bytes(rope)
    assert {piece.size for piece in pieces[:-2]} <= {4 * MIB}


def test_a_press_may_have_nothing_to_do(tmp_path: Path) -> None:
    with Deflater(folder=tmp_path / "none") as press:
        press.forget()
    with Deflater(folder=tmp_path / "none") as press, pytest.raises(FileNotFoundError):
        pressed(EditedFile.whole(SOURCE), press)


def test_a_reader_that_stops_midway_leaves_nobody_reading() -> None:
    source = bytearray(SOURCE)
    with Deflater(Codec.ISAL, threads=2) as press:
        pieces = press.pressed(EditedFile.whole(source))
        assert isinstance(next(pieces), DeflatedPart)
        pieces.close()  # type: ignore[attr-defined] # a generator
        del pieces
        source.clear()


def test_a_zstd_frame_that_is_cut_or_followed_is_refused() -> None:
    plain = bytes(range(256)) * 9000
    whole = zstd.compressed(plain, level=3)
    assert b"".join(zstd.inflated([whole[:40], whole[40:]], 1 << 16)) == plain
    for damaged in (whole[:-1], whole + b"x", whole + whole, b"\0" + whole):
        with pytest.raises(zstd.ZstdError):
            list(zstd.inflated([damaged], 1 << 16))
