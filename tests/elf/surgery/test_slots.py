"""Each way to make room for a program header, hit by the library whose linker leaves no other."""

from tests.factories import elf
from tests.factories.devices import checksum, library, program_lines, shortened
from tests.factories.tools import needs
from vbuild.elf.image import ElfImage
from vbuild.elf.records import SegmentType
from vbuild.elf.surgery.cutting import Operation, cut
from vbuild.elf.surgery.holes import PointerSlot

OLD_HASH = "-Wl,--hash-style=sysv"
ONE = "-Wl,-z,noseparate-code"
NO_NOTES = ("-Wl,--build-id=none", "-fcf-protection=none")


def operation(data: bytes, *, force: bool = False) -> tuple[ElfImage, Operation]:
    image = ElfImage.parse(data)
    done = cut(image, shortened(image), force=force)
    return image, done


def ways(data: bytes, *, force: bool = False) -> tuple[PointerSlot, ...]:
    """The ways taken to cut *data*, which then still says what it should."""
    image, done = operation(data, force=force)
    after = program_lines(bytes(done.edited))
    assert after == [f"{checksum(image, shortened(image)):x}", *program_lines(data)[1:]]
    return done.slots


def types(data: bytes) -> set[int]:
    return {segment.p_type for segment in ElfImage.parse(data).segments}


def test_what_patchelf_left_behind_the_table_comes_first() -> None:
    assert ways(elf.patchelfed(library())) == (PointerSlot.SLACK,)


@needs("ld.lld")
def test_a_library_needs_no_pt_phdr() -> None:
    data = library("-fuse-ld=lld")
    assert ways(data) == (PointerSlot.PHDR,)
    assert SegmentType.PHDR in types(data)
    assert SegmentType.PHDR not in types(bytes(operation(data)[1].edited))


def test_a_note_gives_its_row_and_stays_as_a_section() -> None:
    data = library(OLD_HASH, ONE)
    assert ways(data) == (PointerSlot.NOTE,)
    assert ElfImage.parse(bytes(operation(data)[1].edited)).section(".note.gnu.build-id")


@needs("ld.lld")
def test_two_holes_may_take_two_ways() -> None:
    data = library("-fuse-ld=lld", gap=b"here I stay" * 9)
    assert ways(data)[0] is PointerSlot.PHDR
    assert len(ways(data)) > 1


def test_without_any_of_them_a_library_keeps_its_size_and_zeros_are_left_of_what_goes() -> None:
    image, found = operation(library(OLD_HASH, ONE, *NO_NOTES))
    assert "no room for more than the 7 program headers it has: expected slack, " in (found.why_large or "")
    assert found.edited.size == image.size
    assert not found.edited.is_unchanged


def test_the_table_is_moved_only_by_force_and_the_library_loads() -> None:
    data = library(OLD_HASH, ONE, *NO_NOTES)
    assert ways(data, force=True) == (PointerSlot.MOVED,)
    assert program_lines(elf.patchelfed(bytes(operation(data, force=True)[1].edited)))[1:] == program_lines(data)[1:]
