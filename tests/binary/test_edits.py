import itertools
from collections.abc import Callable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from vbuild.binary.edits import Chunk, Packing, pack_down, pack_into_gaps
from vbuild.errors import BinaryError


@st.composite
def layouts(draw: st.DrawFn) -> tuple[range, list[Chunk], int, set[int]]:
    """A section, pieces in it, their alignment, and the starts of stretches between them that must stay."""
    unit = draw(st.sampled_from([1, 8, 256]))
    cursor = start = unit * draw(st.integers(0, 4096))
    pieces, pinned = [], set()
    for _ in range(draw(st.integers(1, 12))):
        if draw(st.booleans()):
            pinned.add(cursor)
            cursor += draw(st.integers(1, 5000))
        cursor = -(-cursor // unit) * unit
        length = draw(st.integers(1, 20000))
        size = draw(st.integers(0, length))
        pieces.append(Chunk(range(cursor, cursor + length), size, stays=draw(st.integers(0, 4)) == 0))
        cursor += length
    return range(start, cursor + draw(st.integers(0, 3))), pieces, unit, pinned


def places(pieces: list[Chunk], packing: Packing) -> list[range]:
    return [range(start, start + piece.size) for piece, start in zip(pieces, packing.starts, strict=True)]


@given(layouts())
def test_pieces_keep_their_order_and_alignment_and_only_move_down(
    layout: tuple[range, list[Chunk], int, set[int]],
) -> None:
    section, pieces, unit, pinned = layout
    packing = pack_down(section, pieces, alignment=unit, is_padding=lambda gap: gap.start not in pinned)
    found = places(pieces, packing)
    assert all(one.stop <= other.start for one, other in itertools.pairwise(found))
    for piece, place in zip(pieces, found, strict=True):
        assert section.start <= place.start <= piece.span.start
        assert place.start % unit == 0
        assert place.start == piece.span.start or not piece.stays


@pytest.mark.parametrize("packer", [pack_down, pack_into_gaps])
@given(layouts())
def test_every_address_is_a_piece_or_free_or_stays(
    packer: Callable[..., Packing], layout: tuple[range, list[Chunk], int, set[int]]
) -> None:
    section, pieces, unit, pinned = layout
    try:
        packing = packer(section, pieces, alignment=unit, is_padding=lambda gap: gap.start not in pinned)
    except BinaryError:
        assume(packer is pack_down)  # pieces that only their old order fits in
    assert all(start % unit == 0 for start in packing.starts)
    assert all(start == piece.span.start for start, piece in zip(packing.starts, pieces, strict=True) if piece.stays)
    taken = sorted((each for each in (*places(pieces, packing), *packing.free) if each), key=lambda each: each.start)
    edges = [section.start, *(edge for each in taken for edge in (each.start, each.stop)), section.stop]
    rest = [range(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True)]
    assert all(each.start <= each.stop for each in rest)
    claimed = [piece.span for piece in pieces]
    assert not any(one.start < each.stop and each.start < one.stop for one in claimed for each in rest if each)
    assert pinned <= {each.start for each in rest}


def test_zeros_shorter_than_the_alignment_are_padding_and_others_stay() -> None:
    pieces = [Chunk(range(0x1000, 0x1800), 0x10), Chunk(range(0x1900, 0x2000), 0x10)]
    section = range(0x1000, 0x2000)
    assert pack_down(section, pieces, alignment=256, is_padding=lambda _: True).starts == (0x1000, 0x1900)
    pieces[1] = Chunk(range(0x1900, 0x2000), 0x10)
    short = [Chunk(range(0x1000, 0x18F8), 0x10), pieces[1]]
    assert pack_down(section, short, alignment=256, is_padding=lambda _: True).starts == (0x1000, 0x1100)
    assert pack_down(section, short, alignment=256, is_padding=lambda _: False).starts == (0x1000, 0x1900)


@pytest.mark.parametrize("packer", [pack_down, pack_into_gaps])
@pytest.mark.parametrize(("unit", "kept"), [(0x1000, 0x1000), (0x4000, 0x1000)])
def test_starts_keep_the_alignment_that_all_had_up_to_a_page(
    packer: Callable[..., Packing], unit: int, kept: int
) -> None:
    """Of a section that says 8: a linker script or a tool may have put each piece at a page."""
    pieces = [Chunk(range(unit * 4 * number, unit * 4 * (number + 1)), 24) for number in range(1, 4)]
    section = range(unit * 4, unit * 16)
    starts = packer(section, pieces, alignment=8, is_padding=lambda _: True).starts
    assert [start % kept for start in starts] == [0, 0, 0]
    assert max(starts) < pieces[-1].span.start


@pytest.mark.parametrize("packer", [pack_down, pack_into_gaps])
@pytest.mark.parametrize(
    ("stop", "is_padding", "free"),
    [
        (0x4000, False, range(0x1018, 0x4000)),  # nothing is behind the last piece
        (0x4FFF, True, range(0x1018, 0x4FFF)),
        (0x4FFF, False, range(0x1018, 0x4000)),
        (0x5000, True, range(0x1018, 0x4000)),  # as long as the alignment: not there for it
    ],
)
def test_what_lies_behind_the_last_piece_is_free_if_it_is_padding(
    packer: Callable[..., Packing], stop: int, is_padding: object, free: range
) -> None:
    pieces = [Chunk(range(0x1000, 0x4000), 0x18)]
    found = packer(range(0x1000, stop), pieces, alignment=0x1000, is_padding=lambda _: is_padding)
    assert found == Packing((0x1000,), (free,))


@pytest.mark.parametrize("packer", [pack_down, pack_into_gaps])
@pytest.mark.parametrize(
    ("gap", "is_padding", "joined"), [(0xFFF, True, True), (0xFFF, False, False), (0x1000, True, False)]
)
def test_what_lies_between_two_pieces_is_free_if_it_is_padding(
    packer: Callable[..., Packing], gap: int, is_padding: object, joined: object
) -> None:
    pieces = [Chunk(range(0x1000, 0x3000 - gap), 0), Chunk(range(0x3000, 0x5000), 0)]
    found = packer(range(0x1000, 0x5000), pieces, alignment=0x1000, is_padding=lambda _: is_padding)
    free = [at for each in found.free for at in each]
    assert (0x3000 - gap in free, 0x2FFF in free) == (joined, joined)


def test_pieces_that_fit_into_no_gap_are_refused() -> None:
    """Three of 3 pages and two of 5 were in gaps of 9 and 10; those of 5 are placed first, and one takes from the 9."""
    page, at, pieces = 0x1000, 0x1000, []
    for pages in (3, 3, 3, 1, 5, 5):
        pieces.append(Chunk(range(at, at + pages * page), pages * page, stays=pages == 1))
        at += pages * page
    with pytest.raises(BinaryError, match=r"^0x3000 bytes fit into no gap between what stays$"):
        pack_into_gaps(range(page, at), pieces, alignment=page, is_padding=lambda _: False)


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([Chunk(range(0x10, 0x20), 0x11)], "0x11 bytes for the 0x10 at address 0x10: it may not grow"),
        ([Chunk(range(0x8, 0x20), 8)], "replaced 0x8 to 0x20: expected addresses from 0x10 on, up to 0x100"),
        ([Chunk(range(0x10, 0x101), 8)], "replaced 0x10 to 0x101: expected addresses from 0x10 on, up to 0x100"),
        ([Chunk(range(0x10, 0x10), 0)], "replaced 0x10 to 0x10: expected addresses from 0x10 on, up to 0x100"),
        (
            [Chunk(range(0x10, 0x30), 8), Chunk(range(0x28, 0x40), 8)],
            "replaced 0x28 to 0x40: expected addresses from 0x30 on, up to 0x100",
        ),
    ],
)
def test_pieces_that_do_not_fit_are_refused(pieces: list[Chunk], message: str) -> None:
    with pytest.raises(BinaryError) as caught:
        pack_down(range(0x10, 0x100), pieces, alignment=8, is_padding=lambda _: False)
    assert str(caught.value) == message


def test_pieces_move_past_what_stays_into_the_smallest_gap_that_takes_them() -> None:
    """Two large gaps are left, where keeping the order leaves four."""
    pieces = [
        Chunk(range(40_960), 0),
        Chunk(range(40_960, 45_056), 4_096, stays=True),
        Chunk(range(45_056, 65_536), 4_096),
        Chunk(range(65_536, 69_632), 4_096, stays=True),
        Chunk(range(69_632, 131_072), 16_384),
    ]
    found = pack_into_gaps(range(131_072), pieces, alignment=4096, is_padding=lambda _: False)
    assert found.starts[1:] == (40_960, 61_440, 65_536, 45_056)
    assert found.free == (range(40_960), range(69_632, 131_072))
