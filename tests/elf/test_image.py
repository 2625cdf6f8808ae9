import io
import shutil
from collections.abc import Callable

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection, RelrRelocationSection
from msgspec import structs

from tests.factories import elf
from tests.factories.damage import Sound
from tests.factories.devices import library
from vbuild.elf.image import ElfImage
from vbuild.elf.records import ProgramHeader, SectionHeader, SegmentType
from vbuild.errors import BinaryError

DATA = library()
IMAGE = ElfImage.parse(DATA)
SHAPES = {
    "bfd": DATA,
    "one segment": library("-Wl,-z,noseparate-code"),
    "relr": library("-Wl,-z,pack-relative-relocs"),
    "patchelf": elf.patchelfed(DATA),
    "stripped": elf.stripped(DATA),
}
if shutil.which("ld.lld"):
    SHAPES["lld"] = library("-fuse-ld=lld")
    SHAPES["relr of lld"] = library("-fuse-ld=lld", "-Wl,--pack-dyn-relocs=relr")


def address_of(image: ElfImage, section: str) -> range:
    found = image.section(section)
    assert found is not None
    return found.addresses


@pytest.mark.parametrize("shape", SHAPES)
def test_sections_and_segments_are_those_that_pyelftools_reads(shape: str) -> None:
    judge = ELFFile(io.BytesIO(SHAPES[shape]))
    image = ElfImage.parse(SHAPES[shape])
    assert [(each.name, each.header.sh_offset, each.header.sh_addr) for each in image.sections] == [
        (each.name, each["sh_offset"], each["sh_addr"]) for each in judge.iter_sections()
    ]
    assert [(each.p_offset, each.p_vaddr, each.p_memsz) for each in image.segments] == [
        (each["p_offset"], each["p_vaddr"], each["p_memsz"]) for each in judge.iter_segments()
    ]


@pytest.mark.parametrize("shape", SHAPES)
def test_pointers_are_those_that_pyelftools_reads(shape: str) -> None:
    image = ElfImage.parse(SHAPES[shape])
    wanted = set()
    for section in ELFFile(io.BytesIO(SHAPES[shape])).iter_sections():
        if isinstance(section, RelrRelocationSection):
            wanted |= {(each["r_offset"], image.word(each["r_offset"])) for each in section.iter_relocations()}
        elif isinstance(section, RelocationSection):
            rows = section.iter_relocations()
            wanted |= {(each["r_offset"], each["r_addend"]) for each in rows if each["r_info_type"] == 8}
    for name in (".dev", ".text"):
        inside = address_of(image, name)
        found = {(each.place, each.target) for each in image.pointers([inside])}
        assert found == {(place, target) for place, target in wanted if target in inside}
        assert found


def test_memory_that_the_file_does_not_have_has_no_offset_and_no_word() -> None:
    zeros = address_of(IMAGE, ".bss")
    assert IMAGE.offset(zeros.start + 4096) is None
    assert IMAGE.word(zeros.start + 4096) is None
    assert IMAGE.word(IMAGE.loads[0].p_vaddr) == int.from_bytes(DATA[:8], "little")


ROW, SECTION = ProgramHeader.layout.size, SectionHeader.layout.size
SOUND = Sound(DATA)
patched, with_section, with_segment = SOUND.patched, SOUND.with_section, SOUND.with_segment


def with_header(**fields: int | bytes) -> bytes:
    return patched(0, structs.replace(IMAGE.header, **fields).pack())


SIZE, SECTIONS = len(DATA), len(IMAGE.sections)
TEXT = next(section for section in IMAGE.sections if section.name == ".text")
BEFORE = IMAGE.sections[TEXT.index - 1]
NAMES = IMAGE.sections[IMAGE.header.e_shstrndx]
LOADS = [number for number, each in enumerate(IMAGE.segments) if each.p_type == SegmentType.LOAD]

DAMAGED: dict[str, tuple[Callable[[], bytes], str]] = {
    "nothing": (lambda: b"", "not an ELF file: begins with nothing, expected 7f 45 4c 46"),
    "text": (lambda: b"#!/bin/sh", "not an ELF file: begins with 23 21 2f 62, expected 7f 45 4c 46"),
    "magic alone": (lambda: DATA[:20], "FileHeader at 0x0 runs past the end, 0x14"),
    "32 bits": (
        lambda: patched(4, b"\1"),
        "ELF of class 0x1, byte order 0x1: expected 0x2 and 0x1 (64-bit little-endian)",
    ),
    "big-endian": (
        lambda: patched(5, b"\2"),
        "ELF of class 0x2, byte order 0x2: expected 0x2 and 0x1 (64-bit little-endian)",
    ),
    "too many segments": (lambda: with_header(e_phnum=0xFFFF), "more headers than the file header can count"),
    "too many sections": (lambda: with_header(e_shnum=0), "more headers than the file header can count"),
    "short program headers": (lambda: with_header(e_phentsize=32), "program headers of 0x20 bytes each, expected 0x38"),
    "long section headers": (lambda: with_header(e_shentsize=80), "section headers of 0x50 bytes each, expected 0x40"),
    "program headers past the end": (
        lambda: with_header(e_phoff=SIZE - 8),
        (
            f"program header table at {SIZE - 8:#x}, {ROW * len(IMAGE.segments):#x} bytes long, "
            f"runs past the end, {SIZE:#x}"
        ),
    ),
    "section headers past the end": (
        lambda: DATA[:-1],
        (
            f"section header table at {IMAGE.header.e_shoff:#x}, {SECTION * SECTIONS:#x} bytes long, "
            f"runs past the end, {SIZE - 1:#x}"
        ),
    ),
    "section past the end": (
        lambda: with_section(".text", sh_size=SIZE),
        f"section {TEXT.index} at {TEXT.span.start:#x}, {SIZE:#x} bytes long, runs past the end, {SIZE:#x}",
    ),
    "exabytes": (
        lambda: with_section(".text", sh_size=(1 << 64) - 1),
        f"section {TEXT.index} at {TEXT.span.start:#x}, 0xffffffffffffffff bytes long, runs past the end, {SIZE:#x}",
    ),
    "address of no process": (
        lambda: with_section(".text", sh_addr=(1 << 64) - 1),
        f"section {TEXT.index} is loaded to 0xffffffffffffffff, {len(TEXT.span):#x} bytes, which no process has",
    ),
    "sections over each other": (
        lambda: with_section(".text", sh_offset=BEFORE.span[-1]),
        (
            f"section {BEFORE.index} {BEFORE.name} and section {TEXT.index} .text "
            f"overlap in the file at {BEFORE.span[-1]:#x}"
        ),
    ),
    "names in no section": (
        lambda: with_header(e_shstrndx=SECTIONS),
        f"section names in section {SECTIONS}, expected one below {SECTIONS}",
    ),
    "name past the names": (
        lambda: with_section(".text", sh_name=len(NAMES.span)),
        f"section name at {len(NAMES.span):#x} runs past its table, {len(NAMES.span):#x}",
    ),
    "segment past the end": (
        lambda: with_segment(LOADS[1], p_offset=SIZE),
        (
            f"segment {LOADS[1]} of type 0x1 at {SIZE:#x}, {IMAGE.segments[LOADS[1]].p_filesz:#x} bytes long, "
            f"runs past the end, {SIZE:#x}"
        ),
    ),
    "more bytes than memory": (
        lambda: with_segment(LOADS[0], p_memsz=8),
        f"PT_LOAD of address 0x0 has {IMAGE.segments[LOADS[0]].p_filesz:#x} bytes for 0x8",
    ),
    "segments over each other": (
        lambda: with_segment(LOADS[0], p_memsz=IMAGE.segments[LOADS[1]].p_vaddr + 1),
        (
            f"PT_LOADs overlap: 0x0 to {IMAGE.segments[LOADS[1]].p_vaddr + 1:#x}, "
            f"and {IMAGE.segments[LOADS[1]].p_vaddr:#x}"
        ),
    ),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_headers_that_contradict_the_file_are_refused(damage: str) -> None:
    make, message = DAMAGED[damage]
    with pytest.raises(BinaryError) as caught:
        ElfImage.parse(make())
    assert str(caught.value) == message


def with_dynamic(tag: int, value: int) -> bytes:
    return patched(IMAGE.dynamic_offsets()[tag] + 8, value.to_bytes(8, "little"))


ROWS = IMAGE.dynamic()[7]
TABLES: dict[str, tuple[Callable[[], bytes], str]] = {
    "a machine that is not known": (
        lambda: with_header(e_machine=243),
        "relocations of machine 0xf3 are not known here",
    ),
    "rows of another size": (lambda: with_dynamic(9, 16), "relocations of 0x10 bytes each, expected 0x18"),
    "half a row": (
        lambda: with_dynamic(8, 25),
        f"relocation table at {ROWS:#x} has 0x19 bytes, expected a multiple of 0x18",
    ),
    "a table that is nowhere": (
        lambda: with_dynamic(7, 1 << 40),
        f"relocation table at 0x10000000000, {IMAGE.dynamic()[8]:#x} bytes long, is not in the file",
    ),
    "a table with its end nowhere": (
        lambda: with_dynamic(8, 24 << 40),
        f"relocation table at {ROWS:#x}, 0x180000000000 bytes long, is not in the file",
    ),
    "a table that begins inside a row": (
        lambda: with_dynamic(23, ROWS + 8),
        f"DT_JMPREL at {ROWS + 8:#x} begins inside a row of DT_RELA at {ROWS:#x}",
    ),
    "relocations without addends": (
        lambda: patched(IMAGE.dynamic_offsets()[7], (17).to_bytes(8, "little")),
        "relocations under tag 0x11, expected DT_RELA (0x7) or RELR",
    ),
}


def test_calls_that_are_also_rows_are_read_once() -> None:
    inside = address_of(IMAGE, ".dev")
    assert ElfImage.parse(with_dynamic(23, ROWS + 24)).pointers([inside]) == IMAGE.pointers([inside])


@pytest.mark.parametrize("damage", TABLES)
def test_relocation_tables_that_are_damaged_or_unknown_are_refused(damage: str) -> None:
    make, message = TABLES[damage]
    image = ElfImage.parse(make())
    with pytest.raises(BinaryError) as caught:
        image.pointers([address_of(image, ".dev")])
    assert str(caught.value) == message


RELR = ElfImage.parse(SHAPES["relr"])
PLACE = address_of(RELR, ".init_array").start
END = max(load.addresses.stop for load in RELR.loads)
NOWHERE = RELR.loads[-1].p_vaddr - 4096
TOO_FAR = END + 64 - END % 8
PACKED = {
    "a place that has no word": ([NOWHERE], f"packed relocation of {NOWHERE:#x}, where the file has no word"),
    "a place of no memory": ([TOO_FAR], f"packed relocation of {TOO_FAR:#x} after 0x0, expected up to {END:#x}"),
    "a place twice": (
        [PLACE, 3, PLACE],
        f"packed relocation of {PLACE:#x} after {PLACE + 8:#x}, expected up to {END:#x}",
    ),
}


@pytest.mark.parametrize("damage", PACKED)
def test_packed_relocations_rise_through_memory_or_are_refused(damage: str) -> None:
    words, message = PACKED[damage]
    table = RELR.offset(RELR.dynamic()[36])
    assert table is not None
    whole, packed = SHAPES["relr"], b"".join(word.to_bytes(8, "little") for word in words)
    damaged = ElfImage.parse(whole[:table] + packed + whole[table + len(packed) :])
    with pytest.raises(BinaryError) as caught:
        damaged.pointers([address_of(damaged, ".dev")])
    assert str(caught.value) == message
