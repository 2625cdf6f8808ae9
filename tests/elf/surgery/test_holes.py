"""Offsets behind holes, and PT_LOADs cut at them, held against a file that is written out byte by byte."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from vbuild.elf.image import ElfImage, ElfLayout, Section
from vbuild.elf.records import (
    ElfMachine,
    FileHeader,
    ProgramHeader,
    SectionHeader,
    SectionType,
    SegmentType,
)
from vbuild.elf.surgery.holes import Holes, split, unloaded_holes
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


def test_the_alignment_stays_where_nothing_that_is_loaded_moves_in_the_file() -> None:
    large = structs.replace(LOAD, p_align=0x200000)
    assert split(layout(large), Holes.of([])) == (large,)
    assert split(layout(large), Holes.of([range(FIRST + SIZE, FIRST + SIZE + PAGE)])) == (large,)
    assert split(layout(large), Holes.of([range(0x1000)]))[0].p_align == PAGE
    small = structs.replace(LOAD, p_align=0x800)
    assert split(layout(small), Holes.of([range(0x1000)]))[0].p_align == 0x800


def section(index: int, kind: SectionType, start: int, size: int, *, align: int = 1, flags: int = 0) -> Section:
    return Section(index, f".s{index}", SectionHeader(0, kind, flags, 0, start, size, 0, 0, align, 0))


def image(*sections: Section, segments: tuple[ProgramHeader, ...] = (), data: bytes = bytes(0x10000)) -> ElfImage:
    header = structs.replace(HEADER, e_shoff=0xF000, e_shnum=len(sections))
    return ElfImage(len(data), header, segments, sections, memoryview(data))


def note(index: int, start: int, size: int, *, align: int = 1) -> Section:
    return section(index, SectionType.PROGBITS, start, size, align=align)


def test_what_lies_behind_a_hole_keeps_its_alignment() -> None:
    """The hole is as long as that allows: of a section, of the section headers, of a page for what is loaded."""
    gone = note(0, 0x1001, 0x1FFF)
    load = structs.replace(LOAD, p_offset=0x4000)
    for others, segments, unit in (
        ((), (), 8),
        ((note(1, 0x3000, 16, align=64),), (), 64),  # at once behind it
        ((note(1, 0x3001, 16, align=64), note(2, 0x3100, 16, align=32)), (), 64),
        ((note(1, 0x100, 16, align=64),), (), 8),  # before it
        ((note(1, 0x3001, 16, align=0),), (), 8),
        ((), (load,), PAGE),
    ):
        found = unloaded_holes(image(gone, *others, segments=segments), [gone])
        assert found == (range(0x1001, 0x1001 + 0x1FFF // unit * unit),)
    headers_before = structs.replace(image(gone), header=structs.replace(HEADER, e_shoff=0x40, e_shnum=1))
    assert unloaded_holes(headers_before, [gone]) == (range(0x1001, 0x3000),)
    unaligned = structs.replace(image(gone, note(1, 0x3001, 16, align=0)), header=headers_before.header)
    assert unloaded_holes(unaligned, [gone]) == (range(0x1001, 0x3000),)


def test_holes_beside_each_other_are_one_if_only_padding_is_between() -> None:
    one, other = note(0, 0x1000, 0x100), note(1, 0x1108, 0x100)
    assert unloaded_holes(image(one, other), [one, other]) == (range(0x1000, 0x1208),)
    marked = bytearray(0x10000)
    marked[0x1104] = 1
    assert unloaded_holes(image(one, other, data=bytes(marked)), [one, other]) == (
        range(0x1000, 0x1100),
        range(0x1108, 0x1208),
    )
    marked[0x1104], marked[0x20] = 0, 1
    assert unloaded_holes(image(one, other, data=bytes(marked)), [one, other]) == (range(0x1000, 0x1208),)
    between = note(2, 0x1104, 2)
    assert unloaded_holes(image(one, other, between), [one, other]) == (range(0x1000, 0x1100), range(0x1108, 0x1208))
    far = note(1, 0x1110, 0x100)
    assert unloaded_holes(image(one, far), [one, far]) == (range(0x1000, 0x1100), range(0x1110, 0x1210))
    near = note(1, 0x110F, 0x100)
    assert unloaded_holes(image(one, near), [one, near]) == (range(0x1000, 0x1208),)
