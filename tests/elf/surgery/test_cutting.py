"""Libraries of many linkers, cut and then loaded: what they compute must be what was ordered."""

import shutil
from collections.abc import Callable

import pytest
from msgspec import structs

from tests.factories import elf
from tests.factories.devices import (
    AARCH64,
    AARCH64_LARGE_PAGES,
    X86_64,
    Toolchain,
    blobs,
    checksum,
    library,
    program_lines,
    shortened,
)
from tests.factories.tools import needs
from vbuild.binary.edits import Replacement, Strip
from vbuild.elf.image import ElfImage
from vbuild.elf.surgery.cutting import cut
from vbuild.errors import BinaryError

BFD_ONE = ("-Wl,-z,noseparate-code", "-Wl,-z,max-page-size=2097152")
BFD_SEPARATE = ("-Wl,-z,separate-code",)
BFD_RELR = ("-Wl,-z,pack-relative-relocs",)
LLD = ("-fuse-ld=lld",)
SHAPES = {"one segment, 2 MB": BFD_ONE, "separate code": BFD_SEPARATE, "relr": BFD_RELR, "lld": LLD}
every_shape = pytest.mark.parametrize(
    "shape", [pytest.param(name, marks=needs("ld.lld") if name == "lld" else ()) for name in SHAPES]
)
Edit = Callable[[bytes], bytes]


def untouched(data: bytes) -> bytes:
    return data


def debug_stripped(data: bytes) -> bytes:
    return elf.stripped(data, "--strip-debug")


def all_stripped(data: bytes) -> bytes:
    return elf.stripped(data)


def objcopied(data: bytes) -> bytes:
    return elf.objcopied(data, "--strip-debug")


def slimmed(data: bytes, *, strip: Strip = Strip.NOTHING) -> bytes:
    """*data* with two entries of each blob, loaded once to see that nothing else changed."""
    image = ElfImage.parse(data)
    return bytes(cut(image, shortened(image), strip=strip).edited)


def expected(data: bytes, toolchain: Toolchain = X86_64) -> list[str]:
    """What the library says after `slimmed`."""
    image = ElfImage.parse(data)
    return [f"{checksum(image, shortened(image)):x}", *program_lines(data, toolchain=toolchain)[1:]]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("before", [untouched, all_stripped, elf.patchelfed])
@every_shape
def test_a_library_reads_what_was_kept_and_is_smaller_by_the_rest(shape: str, before: Edit) -> None:
    data = before(library(*SHAPES[shape]))
    small = slimmed(data)
    assert program_lines(small) == expected(data)
    assert len(data) - len(small) in range(262144, 270336)


@pytest.mark.parametrize("after", [debug_stripped, all_stripped, objcopied, elf.patchelfed])
@every_shape
def test_other_tools_can_edit_a_cut_library(shape: str, after: Edit) -> None:
    data = library(*SHAPES[shape])
    assert program_lines(after(slimmed(data))) == expected(data)


@every_shape
def test_binutils_and_elfutils_find_nothing_to_complain_of(shape: str) -> None:
    data = library(*SHAPES[shape])
    small = slimmed(data, strip=Strip.DEBUG)
    assert elf.complaints("readelf", small, "-aW") == elf.complaints("readelf", data, "-aW")
    if shutil.which("eu-elflint"):
        assert elf.complaints("eu-elflint", small, "--gnu-ld") <= elf.complaints("eu-elflint", data, "--gnu-ld")


@pytest.mark.sampled(1)
@pytest.mark.skipif(not AARCH64.is_there, reason="needs a cross compiler for aarch64 and qemu")
@pytest.mark.parametrize("toolchain", [AARCH64, AARCH64_LARGE_PAGES], ids=["4 KB pages", "64 KB pages"])
@pytest.mark.parametrize("before", [untouched, elf.patchelfed])
def test_on_aarch64_holes_are_of_large_pages_and_starts_keep_their_alignment(
    before: Edit, toolchain: Toolchain
) -> None:
    data = before(library(toolchain=AARCH64, align=256))
    small = slimmed(data)
    assert program_lines(small, toolchain=toolchain) == expected(data, toolchain)
    assert (len(data) - len(small)) % 0x10000 == 0
    assert len(data) - len(small) >= 0x30000
    assert {pointer.target % 256 for blob in blobs(ElfImage.parse(small)) for pointer in blob.pointers} == {0}


def test_what_frees_less_than_a_page_leaves_zeros_and_a_file_of_the_same_size() -> None:
    data = library()
    image = ElfImage.parse(data)
    whole = [Replacement(each.span, (each.span,), each.pointers) for each in shortened(image)]
    order = blobs(image)[0].keeping(image, *range(22))
    edited = bytes(cut(image, [order]).edited)
    assert len(edited) == len(data)
    assert edited[order.span.start + order.size : order.span.stop] == bytes(len(order.span) - order.size)
    assert program_lines(edited) == [f"{checksum(image, [order, *whole[1:]]):x}", *program_lines(data)[1:]]


@pytest.mark.parametrize("edit", [untouched, elf.patchelfed])
def test_symbols_lead_to_what_was_kept_and_have_its_size(edit: Edit) -> None:
    data = edit(library())
    image = ElfImage.parse(data)
    orders = shortened(image, kept=lambda number: range(number + 1))
    small = bytes(cut(image, orders).edited)
    found = [line.split() for line in elf.judged_by("nm", small, "-S").splitlines() if " blob" in line]
    places = {f"blob{number}": each for number, each in enumerate(blobs(ElfImage.parse(small)))}
    assert {name: int(start, 16) for start, _, _, name in found} == {
        name: blob.pointers[0].target for name, blob in places.items()
    }
    assert {name: int(size, 16) for _, size, _, name in found} == {
        name: len(blob.span) for name, blob in places.items()
    }
    assert sorted(len(blob.span) for blob in places.values()) == sorted(order.size for order in orders)


def test_what_is_cut_from_memory_that_is_written_to_leaves_the_zeros_behind_it() -> None:
    data = library(writable=True)
    small = slimmed(data)
    assert program_lines(small) == expected(data)
    assert len(data) - len(small) in range(262144, 270336)


def test_orders_that_change_nothing_change_no_file() -> None:
    image = ElfImage.parse(library())
    assert cut(
        image, [Replacement(each.span, (each.span,), each.pointers) for each in shortened(image)]
    ).edited.is_unchanged
    assert cut(image, []).edited.is_unchanged


def test_an_object_file_is_left_alone_and_cannot_be_cut() -> None:
    data = elf.object_file("int number = 3;", "-g")
    image = ElfImage.parse(data)
    assert cut(image, [], strip=Strip.UNNEEDED).edited.is_unchanged
    with pytest.raises(BinaryError, match=r"^file of type 0x1: expected a shared library or program$"):
        cut(image, [Replacement(range(64, 72), ())])


class TestRefusals:
    image = ElfImage.parse(library())
    blob = blobs(image)[1]

    def refused(self, *replacements: Replacement) -> str:
        with pytest.raises(BinaryError) as caught:
            cut(self.image, replacements)
        return str(caught.value)

    def test_more_bytes_than_before(self) -> None:
        start = self.image.address(self.blob.span.start)
        order = Replacement(self.blob.span, (bytes(len(self.blob.span) + 1),), self.blob.pointers)
        assert self.refused(order) == f"0x6011 bytes for the 0x6010 at address {start:#x}: it may not grow"

    def test_a_span_that_is_not_in_one_section(self) -> None:
        end = self.image.size
        assert self.refused(Replacement(range(end - 8, end + 8), ())) == (
            f"replaced {end - 8:#x} to {end + 8:#x} is not inside one section"
        )

    def test_spans_that_overlap(self) -> None:
        one = self.blob.keeping(self.image, 1)
        half = Replacement(range(one.span.start + 8, one.span.stop), (b"",))
        start = self.image.address(one.span.start + 8)
        assert self.refused(one, half).startswith(f"replaced {start:#x} to ")

    def test_a_pointer_that_is_not_told(self) -> None:
        [pointer] = self.blob.pointers
        span = range(self.blob.span.start - 16, self.blob.span.stop)
        assert self.refused(Replacement(span, (bytes(8),))) == (
            f"the word at {pointer.place:#x} leads to {pointer.target:#x}, which would move away"
        )

    def test_a_pointer_that_no_relocation_fills(self) -> None:
        [pointer] = self.blob.pointers
        more = structs.replace(pointer, place=pointer.place + 8)
        order = Replacement(self.blob.span, (bytes(8),), (pointer, more))
        assert self.refused(order) == f"no relocation fills the pointer at {more.place:#x}"

    def test_a_pointer_to_somewhere_else(self) -> None:
        order = Replacement(self.blob.span, (bytes(8),), blobs(self.image)[0].pointers)
        [pointer] = blobs(self.image)[0].pointers
        start = self.image.address(self.blob.span.start)
        assert self.refused(order) == f"pointer to {pointer.target:#x} for what begins at {start:#x}"

    def test_code(self) -> None:
        section = self.image.section(".text")
        assert section is not None
        assert self.refused(Replacement(section.span, (bytes(8),))) == "section .text is code, which other code reaches"

    def test_an_exported_symbol(self) -> None:
        image = ElfImage.parse(elf.shared_object("const char kept[40000] = {1};"))
        section = image.section(".rodata")
        assert section is not None
        with pytest.raises(BinaryError, match=r"^exported symbol at 0x\w+, in what would move away$"):
            cut(image, [Replacement(section.span, (bytes(8),))])
