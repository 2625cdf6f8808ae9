"""Tables that lead past their end: the loader does not see that, and what is cut away might be what it reads there."""

import struct
from collections.abc import Callable

import pytest

from tests.factories import elf
from tests.factories.damage import Sound
from tests.factories.devices import blobs, library, shortened
from vbuild.binary.edits import Strip
from vbuild.elf.image import ElfImage
from vbuild.elf.read import version_needs
from vbuild.elf.records import DynamicTag, SegmentType
from vbuild.elf.surgery.cutting import cut
from vbuild.elf.surgery.tables import check_tables
from vbuild.errors import BinaryError

DATA = library()
IMAGE = ElfImage.parse(DATA)
BOTH = library("-Wl,--hash-style=both")
SOUND = Sound(DATA)
BEYOND = 0x7FFF


def place(section: str, image: ElfImage = IMAGE) -> range:
    found = image.section(section)
    assert found
    return found.span


def with_number(at: int, number: int, size: int = 4, data: bytes = DATA) -> bytes:
    return Sound(data).patched(at, number.to_bytes(size, "little"))


def with_row(tag: int, value: int) -> bytes:
    return with_number(IMAGE.dynamic_offsets()[tag] + 8, value, 8)


def of_version(field: int) -> int:
    """The file offset of a field of the first version that is required, or of its library for 4."""
    start = IMAGE.offset(IMAGE.dynamic()[DynamicTag.VERNEED])
    assert start
    need, _ = next(version_needs(IMAGE, start))
    return start + (field if field == 4 else need.vn_aux + field)


def relro() -> int:
    return next(number for number, each in enumerate(IMAGE.segments) if each.p_type == SegmentType.GNU_RELRO)


def dynamic() -> int:
    return next(number for number, each in enumerate(IMAGE.segments) if each.p_type == SegmentType.DYNAMIC)


def buckets(data: bytes) -> range:
    """The file offsets of the buckets of ``.gnu.hash``."""
    span = place(".gnu.hash", ElfImage.parse(data))
    count, _, words, _ = struct.unpack_from("<4I", data, span.start)
    return range(span.start + 16 + 8 * words, span.start + 16 + 8 * words + 4 * count)


def endless() -> bytes:
    """Without a number that ends a chain of ``.gnu.hash``."""
    data = bytearray(DATA)
    for at in range(buckets(DATA).stop, place(".gnu.hash").stop, 4):
        data[at] &= 0xFE
    return bytes(data)


INIT, FINI, INIT_ARRAY, INIT_ARRAY_SIZE = 12, 13, 25, 27
BLOB = blobs(IMAGE)[0].pointers[0].target
SYMBOLS = len(place(".dynsym")) // 24
STRINGS = len(place(".dynstr"))
BROKEN: dict[str, tuple[Callable[[], bytes], str]] = {
    "PT_DYNAMIC between the PT_LOADs": (
        lambda: SOUND.with_segment(dynamic(), p_vaddr=0x900000),
        "PT_DYNAMIC at address 0x900000, which no PT_LOAD fills",
    ),
    "a library's name": (
        lambda: with_row(DynamicTag.NEEDED, BEYOND),
        f"string at {BEYOND:#x} has no end in {STRINGS:#x} bytes",
    ),
    "the library of a version": (
        lambda: with_number(of_version(4), BEYOND),
        f"string at {BEYOND:#x} has no end in {STRINGS:#x} bytes",
    ),
    "the name of a version": (
        lambda: with_number(of_version(8), BEYOND),
        f"string at {BEYOND:#x} has no end in {STRINGS:#x} bytes",
    ),
    "the name of a symbol": (
        lambda: with_number(place(".dynsym").start + 24, BEYOND),
        f"string at {BEYOND:#x} has no end in {STRINGS:#x} bytes",
    ),
    "the symbol of a relocation": (
        lambda: with_number(place(".rela.dyn").stop - 12, SYMBOLS),
        f"relocation with symbol {SYMBOLS:#x}, expected one of {SYMBOLS:#x}",
    ),
    "the symbol of a call": (
        lambda: with_number(place(".rela.plt").start + 12, 0x1000),
        f"relocation with symbol 0x1000, expected one of {SYMBOLS:#x}",
    ),
    "a symbol of a bucket": (
        lambda: with_number(buckets(DATA).start, BEYOND),
        "section .gnu.hash: leads to symbols ",
    ),
    "a chain without an end": (endless, "section .gnu.hash: leads to symbols "),
    "a symbol of the old hash table": (
        lambda: with_number(place(".hash", ElfImage.parse(BOTH)).start + 8, BEYOND, data=BOTH),
        f"section .hash: leads to symbol {BEYOND:#x}, expected one of ",
    ),
    "the size of the old hash table": (
        lambda: with_number(place(".hash", ElfImage.parse(BOTH)).start, BEYOND, data=BOTH),
        "section .hash: 0x",
    ),
    "the place of the hash table": (
        lambda: with_row(DynamicTag.GNU_HASH, place(".gnu.hash").start + 8),
        f"hash table at {place('.gnu.hash').start + 8:#x}: expected a section that begins there",
    ),
    "a tag that comes twice": (
        lambda: with_number(IMAGE.dynamic_offsets()[FINI], INIT, 8),
        "tag 0xc of PT_DYNAMIC comes 2 times, expected once",
    ),
    "functions to be called": (
        lambda: with_row(INIT_ARRAY, BLOB),
        f"tag 0x19 of PT_DYNAMIC leads to {BLOB:#x}, which would move away",
    ),
    "functions to be called, of which there are none": (
        lambda: Sound(with_row(INIT_ARRAY, BLOB)).patched(IMAGE.dynamic_offsets()[INIT_ARRAY_SIZE] + 8, bytes(8)),
        f"tag 0x19 of PT_DYNAMIC leads to {BLOB:#x}, which would move away",
    ),
    "a table that reaches into what goes": (
        lambda: with_row(DynamicTag.STRSZ, BLOB + 1 - IMAGE.dynamic()[DynamicTag.STRTAB]),
        "tag 0x5 of PT_DYNAMIC leads to ",
    ),
    "the end of what is protected": (
        lambda: SOUND.with_segment(relro(), p_memsz=0x200000),
        f"PT_GNU_RELRO of {IMAGE.segments[relro()].p_vaddr:#x} to ",
    ),
    "the beginning of what is protected": (
        lambda: SOUND.with_segment(relro(), p_vaddr=0x900000),
        "PT_GNU_RELRO of 0x900000 to ",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_number_that_leads_past_its_table_is_told(what: str) -> None:
    broken, message = BROKEN[what]
    image = ElfImage.parse(broken())
    with pytest.raises(BinaryError) as caught:
        cut(image, shortened(image))
    assert str(caught.value).startswith(message)


def test_the_names_of_versions_that_a_library_defines_are_in_their_table() -> None:
    data = elf.linked("int one(void) { return 1; }", "-g", script="ONE { global: one; local: *; };")
    image = ElfImage.parse(data)
    assert not cut(image, [], strip=Strip.DEBUG).edited.is_unchanged
    start = place(".gnu.version_d", image).start
    (aux,) = struct.unpack_from("<12xI", data, start)
    broken = with_number(start + aux, BEYOND, data=data)
    with pytest.raises(BinaryError, match=rf"^string at {BEYOND:#x} has no end in 0x\w+ bytes$"):
        cut(ElfImage.parse(broken), [], strip=Strip.DEBUG)


def test_a_program_that_loads_nothing_has_no_tables() -> None:
    program = elf.program("int main(void) { return 3; }", "-g", "-static")
    small = bytes(cut(ElfImage.parse(program), [], strip=Strip.UNNEEDED).edited)
    assert len(small) < len(program)
    assert elf.status(small) == 3


def test_a_pointer_that_two_relocations_fill_is_told() -> None:
    """The loader takes the last, and what the first led to would move without it."""
    pointer = shortened(IMAGE)[0].pointers[0]
    broken = with_number(place(".rela.dyn").stop - 24, pointer.place, 8)
    with pytest.raises(BinaryError, match=rf"^2 relocations of {pointer.place:#x}, expected one$"):
        cut(ElfImage.parse(broken), shortened(IMAGE))


@pytest.mark.parametrize("data", [BOTH, library("-Wl,--hash-style=sysv"), elf.patchelfed(DATA), library(exports=False)])
def test_sound_tables_are_cut(data: bytes) -> None:
    image = ElfImage.parse(data)
    assert not cut(image, shortened(image)).edited.is_unchanged


@pytest.mark.parametrize(
    ("numbers", "size", "message"),
    [
        ((0, 0), 8, None),
        ((0, 0), 11, None),
        ((0, 0), 7, "0x7 bytes, expected 0x8 for the two numbers that it begins with"),
        ((0,), 0, "0x0 bytes, expected 0x8 for the two numbers that it begins with"),
        ((1, 1, 0, 0), 16, None),
        ((1, 1, 0, 0), 15, "0xf bytes, fewer than it says"),
        ((1, 1, 1, 0), 16, "leads to symbol 0x1, expected one of "),
        ((1, 1, 0, 1), 16, "leads to symbol 0x1, expected one of "),
        ((1, 2, 1, 0, 0), 20, None),
    ],
)
def test_an_old_hash_table_has_all_that_it_counts(numbers: tuple[int, ...], size: int, message: str | None) -> None:
    start = place(".hash", ElfImage.parse(BOTH)).start
    written = Sound(BOTH).patched(start, struct.pack(f"<{len(numbers)}I", *numbers))
    image = ElfImage.parse(Sound(written).with_section(".hash", sh_size=size))
    if message is None:
        check_tables(image, ())
        return
    with pytest.raises(BinaryError, match=rf"^section \.hash: {message}"):
        check_tables(image, ())
