"""Offsets behind holes, and PT_LOADs cut at them, held against a file that is written out byte by byte."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from vbuild.elf.layout import ElfLayout
from vbuild.elf.records import ElfMachine, FileHeader, ProgramHeader, SegmentFlag, SegmentType
from vbuild.elf.surgery.holes import Holes, split
from vbuild.errors import BinaryError

PAGE = 0x1000
FIRST, SIZE, ZEROS = 0x2000, 0x6000, 0x1800
LOAD = ProgramHeader(SegmentType.LOAD, 6, FIRST, 0x12000, 0x12000, SIZE, SIZE + ZEROS, PAGE)
HEADER = FileHeader(bytes(16), 3, ElfMachine.X86_64, 1, 0, 64, 0, 0, 64, 56, 1, 64, 0, 0)


def layout(*segments: ProgramHeader) -> ElfLayout:
    return ElfLayout(FIRST + SIZE + PAGE, HEADER, segments, ())


@st.composite
def holes(draw: st.DrawFn) -> Holes:
    """Stretches of a file of 64 bytes, some of which touch."""
    edges = sorted(draw(st.sets(st.integers(0, 64), max_size=12)))
    pairs = [range(start, stop) for start, stop in itertools.pairwise(edges)]
    return Holes.of(draw(st.lists(st.sampled_from(pairs), unique_by=lambda span: span.start)) if pairs else [])


@settings(max_examples=200)
@given(holes())
def test_every_byte_is_where_it_is_in_the_file_without_the_holes(found: Holes) -> None:
    kept = [at for at in range(65) if not any(at in span for span in found.spans)]
    for new, old in enumerate(kept):
        assert found.offset(old) == new
    for span in found.spans:
        assert {found.offset(at) for at in span} == {found.offset(span.stop)}
    assert found.size == 65 - len(kept)


@settings(max_examples=200)
@given(holes(), st.integers(0, 63), st.integers(1, 64))
def test_holes_within_a_span_are_those_that_share_a_byte_with_it(found: Holes, start: int, size: int) -> None:
    span = range(start, start + size)
    assert found.within(span) == tuple(each for each in found.spans if set(each) & set(span))


CUTS = {
    "in the middle": [range(FIRST + PAGE, FIRST + 2 * PAGE)],
    "at the beginning": [range(FIRST, FIRST + PAGE)],
    "at the end": [range(FIRST + SIZE - PAGE, FIRST + SIZE)],
    "that touch": [range(FIRST + PAGE, FIRST + 2 * PAGE), range(FIRST + 2 * PAGE, FIRST + 3 * PAGE)],
    "that leave zeros alone": [range(FIRST, FIRST + SIZE)],
    "everywhere": [range(FIRST + at * PAGE, FIRST + (at + 1) * PAGE) for at in (0, 2, 4, 5)],
}


@pytest.mark.parametrize("cut", CUTS)
def test_the_pieces_of_a_segment_are_what_no_hole_takes_and_the_zeros_behind_it(cut: str) -> None:
    found = split(layout(LOAD), Holes.of(CUTS[cut]))
    wanted = {at for at in LOAD.span if not any(at in hole for hole in CUTS[cut])}
    assert {at for piece in found for at in piece.span} == wanted
    assert sum(piece.p_filesz for piece in found) == len(wanted)
    assert all(
        piece.p_offset - piece.p_vaddr == FIRST - LOAD.p_vaddr == piece.p_offset - piece.p_paddr for piece in found
    )
    assert all(piece.p_memsz for piece in found)
    # the zeros stay with the last piece alone, at their addresses
    assert [piece.p_memsz - piece.p_filesz for piece in found] == [0] * (len(found) - 1) + [ZEROS]
    assert found[-1].addresses.stop == LOAD.addresses.stop
    assert {piece.p_flags for piece in found} == {LOAD.p_flags}


def test_a_hole_across_an_end_of_a_segment_is_refused() -> None:
    for start, stop in ((FIRST - 1, FIRST + PAGE), (FIRST + PAGE, FIRST + SIZE + 1)):
        with pytest.raises(BinaryError, match=r"partly outside the PT_LOAD that it touches$"):
            split(layout(LOAD), Holes.of([range(start, stop)]))


def test_a_hole_in_another_segment_is_refused_and_beside_it_is_not() -> None:
    note = structs.replace(LOAD, p_type=SegmentType.NOTE, p_offset=FIRST + PAGE, p_filesz=PAGE, p_memsz=PAGE)
    for hole in (range(FIRST, FIRST + PAGE), range(FIRST + 2 * PAGE, FIRST + 3 * PAGE)):
        assert note in split(layout(LOAD, note), Holes.of([hole]))
    for hole in (range(FIRST, FIRST + PAGE + 1), range(FIRST + 2 * PAGE - 1, FIRST + 3 * PAGE)):
        with pytest.raises(BinaryError, match=r"^hole at 0x\w+ in a segment of type 0x4$"):
            split(layout(LOAD, note), Holes.of([hole]))


def test_what_can_be_read_only_because_it_may_run_stays_so() -> None:
    for flags, left in ((SegmentFlag.X, SegmentFlag.X), (SegmentFlag.R | SegmentFlag.X, SegmentFlag.R)):
        found = split(layout(structs.replace(LOAD, p_flags=flags)), Holes.of(CUTS["in the middle"]))
        assert {piece.p_flags for piece in found} == {left}
