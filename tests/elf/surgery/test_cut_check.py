"""Every invariant, broken once in a file that kept them all."""

from collections.abc import Callable

import pytest
from msgspec import structs

from tests.factories.damage import Sound
from tests.factories.devices import blobs, library, shortened
from vbuild.elf.image import ElfImage
from vbuild.elf.records import SegmentType
from vbuild.elf.surgery.cut_check import INVARIANTS, prove
from vbuild.elf.surgery.cutting import cut
from vbuild.errors import BinaryError
from vbuild.files.edited import EditedFile

BEFORE = ElfImage.parse(library())
ORDERS = shortened(BEFORE)
AFTER = bytes(cut(BEFORE, ORDERS).edited)
IMAGE = ElfImage.parse(AFTER)
SOUND = Sound(AFTER)
patched, flipped = SOUND.patched, SOUND.flipped
with_segment, with_section = SOUND.with_segment, SOUND.with_section


def load(number: int) -> int:
    return [index for index, each in enumerate(IMAGE.segments) if each.p_type == SegmentType.LOAD][number]


def of_type(kind: SegmentType) -> int:
    return next(index for index, each in enumerate(IMAGE.segments) if each.p_type == kind)


def misled() -> bytes:
    """The first pointer leads to the second blob."""
    one, other = blobs(IMAGE)[:2]
    [pointer], [second] = one.pointers, other.pointers
    assert pointer.row
    return patched(pointer.row + 16, second.target.to_bytes(8, "little"))


def half_led() -> bytes:
    """The first pointer's word in place, which the loader overwrites, is of neither file."""
    [pointer] = blobs(IMAGE)[0].pointers
    place = IMAGE.offset(pointer.place)
    assert place
    return patched(place, bytes(8))


def padding() -> int:
    """The file offset of a byte that is loaded, and in no section."""
    section = IMAGE.section(".init")
    assert section
    assert not any(section.span.stop in each.span for each in IMAGE.sections)
    return section.span.stop


BROKEN: dict[str, tuple[str, Callable[[], bytes]]] = {
    "cut short": ("the new file can be read", lambda: AFTER[:-100]),
    "pointer to another": ("every pointer leads to the bytes ordered", misled),
    "byte of a kept entry": ("every pointer leads to the bytes ordered", lambda: flipped(".dev", 100)),
    "e_flags": ("the file header is the same", lambda: patched(48, b"\1")),
    "PT_LOADs in another order": (
        "PT_LOADs ascend and lie apart",
        lambda: patched(
            IMAGE.header.e_phoff + load(0) * 56,
            IMAGE.segments[load(1)].pack() + IMAGE.segments[load(0)].pack(),
        ),
    ),
    "alignment that offsets do not keep": (
        "offset and address agree modulo the alignment",
        lambda: with_segment(load(-1), p_align=0x200000),
    ),
    "alignment that is none": (
        "offset and address agree modulo the alignment",
        lambda: with_segment(load(0), p_align=0x1800),
    ),
    "table that is not loaded": (
        "the program headers are mapped and overlap nothing",
        lambda: (
            structs.replace(IMAGE.header, e_phoff=len(AFTER)).pack()
            + AFTER[64:]
            + AFTER[IMAGE.header.e_phoff :][: 56 * len(IMAGE.segments)]
        ),
    ),
    "table over a section": (
        "the program headers are mapped and overlap nothing",
        lambda: with_section(".comment", sh_offset=IMAGE.header.e_phoff + 8),
    ),
    "flags of a section": ("the sections are the same", lambda: with_section(".text", sh_flags=2)),
    "address of a section": ("the sections are the same", lambda: with_section(".rodata", sh_addr=64)),
    "writable code": (
        "every section is loaded from its place with its permissions",
        lambda: with_segment(load(1), p_flags=7),
    ),
    "code that is data": (
        "every section is loaded from its place with its permissions",
        lambda: with_segment(load(1), p_flags=4),
    ),
    "byte of code": ("every other byte, relocation and symbol is the same", lambda: flipped(".text", 3)),
    "byte of a relocation": ("every other byte, relocation and symbol is the same", lambda: flipped(".rela.dyn", 8)),
    "symbol": ("every other byte, relocation and symbol is the same", lambda: flipped(".symtab", 30)),
    "word in place": ("every other byte, relocation and symbol is the same", half_led),
    "filter of the hash table": (
        "every other byte, relocation and symbol is the same",
        lambda: flipped(".gnu.hash", 17),
    ),
    "chain of the hash table": (
        "every other byte, relocation and symbol is the same",
        lambda: flipped(".gnu.hash", -1),
    ),
    "dynamic entry": ("every other byte, relocation and symbol is the same", lambda: flipped(".dynamic", 8)),
    "byte between two sections": ("everything else in memory is the same", lambda: patched(padding(), b"\1")),
    "zeros that are none": (
        "everything else in memory is the same",
        lambda: with_segment(load(-1), p_filesz=IMAGE.segments[load(-1)].p_filesz + 8),
    ),
    "PT_TLS": (
        "the other segments cover the same addresses",
        lambda: with_segment(of_type(SegmentType.TLS), p_align=16),
    ),
    "PT_DYNAMIC": (
        "the other segments cover the same addresses",
        lambda: with_segment(of_type(SegmentType.DYNAMIC), p_filesz=64),
    ),
    "bytes behind the end": ("the file has not grown", lambda: AFTER + bytes(len(BEFORE.data))),
}


def test_what_was_cut_is_proved() -> None:
    prove(BEFORE, IMAGE, ORDERS)
    prove(BEFORE, EditedFile.whole(AFTER), ORDERS)


@pytest.mark.parametrize("how", BROKEN)
def test_a_file_that_breaks_an_invariant_is_refused_by_its_name(how: str) -> None:
    invariant, broken = BROKEN[how]
    with pytest.raises(BinaryError) as caught:
        prove(BEFORE, EditedFile.whole(broken()), ORDERS)
    assert str(caught.value).startswith(f"{invariant}: ")


def test_every_invariant_was_broken() -> None:
    assert INVARIANTS.keys() <= {invariant for invariant, _ in BROKEN.values()}
