"""Damaged ELF files: a refusal in one of two rooms, or a file; never another exception, a hang or a flood of memory."""

import shutil

from hypothesis import given
from hypothesis import strategies as st

from tests.factories.devices import blobs, library, shortened
from tests.factories.elf import patchelfed
from vbuild.binary.edits import Strip
from vbuild.elf.image import ElfImage
from vbuild.elf.surgery.cutting import cut
from vbuild.errors import BinaryError

LIBRARIES = {
    "bfd": library("-g", features=False, count=4),
    "relr": library("-Wl,-z,pack-relative-relocs", features=False, count=4),
    "patchelfed": patchelfed(library(features=False, count=4)),
}
if shutil.which("ld.lld"):
    LIBRARIES["lld"] = library("-fuse-ld=lld", features=False, count=4)
ORDERS = {name: shortened(ElfImage.parse(data), kept=lambda _: (2,)) for name, data in LIBRARIES.items()}
NEW = (b"\0", b"\1", b"\2", b"\4", b"\x08", b"\x10", b"\x40", b"\x80", b"\xff", b"\xff" * 7 + b"\x7f", b"\xff" * 8)
READ = (".dynamic", ".gnu.hash", ".dynsym", ".symtab", ".rela.dyn", ".relr.dyn", ".shstrtab", ".note.gnu.build-id")


def read_by_the_cutter(data: bytes) -> list[range]:
    """The file offsets of everything that is looked at."""
    image = ElfImage.parse(data)
    header = image.header
    spans = [
        range(64),
        range(header.e_phoff, header.e_phoff + 56 * header.e_phnum),
        range(header.e_shoff, header.e_shoff + 64 * header.e_shnum),
    ]
    return spans + [section.span for section in image.sections if section.name in READ]


READ_SPANS = {name: read_by_the_cutter(data) for name, data in LIBRARIES.items()}


@st.composite
def damaged(draw: st.DrawFn) -> tuple[str, bytes]:
    name = draw(st.sampled_from(sorted(LIBRARIES)))
    data = bytearray(LIBRARIES[name])
    for _ in range(draw(st.integers(1, 3))):
        span = draw(st.sampled_from(READ_SPANS[name]))
        at, new = draw(st.sampled_from(span)), draw(st.sampled_from(NEW))
        data[at : at + len(new)] = new
    return name, bytes(data)


def tried(name: str, data: bytes) -> None:
    try:
        rope = cut(ElfImage.parse(data), ORDERS[name], strip=Strip.UNNEEDED).edited
    except BinaryError:
        return
    assert rope.size <= len(data)


@given(damaged())
def test_flipped_bytes(case: tuple[str, bytes]) -> None:
    tried(*case)


@given(st.sampled_from(sorted(LIBRARIES)), st.data())
def test_cut_ends(name: str, data: st.DataObject) -> None:
    whole = LIBRARIES[name]
    tried(name, whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(st.lists(st.sets(st.integers(0, 23), min_size=1), min_size=12, max_size=12))
def test_any_choice_of_entries_can_be_read_through_the_pointers_of_the_new_file(chosen: list[set[int]]) -> None:
    image = ElfImage.parse(library())
    orders = shortened(image, kept=lambda number: sorted(chosen[number]))
    small = ElfImage.parse(bytes(cut(image, orders).edited))
    wanted = {each.pointers[0].place: b"".join(_bytes(image, part) for part in each.parts) for each in orders}
    found = {blob.pointers[0].place: bytes(small.view(blob.span)) for blob in blobs(small)}
    assert found == wanted


def _bytes(image: ElfImage, part: range | bytes) -> bytes:
    return bytes(image.view(part)) if isinstance(part, range) else part
