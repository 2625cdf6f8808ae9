"""Every invariant of relinking, broken once in a file that kept them all."""

from collections.abc import Callable

import pytest
from msgspec.structs import asdict, replace

from tests.factories import elf
from tests.factories.damage import Sound
from vbuild.elf.image import ElfImage
from vbuild.elf.read import Dynamic, version_needs
from vbuild.elf.records import SHN_ABS, DynamicEntry, DynamicTag, FileHeader, ProgramHeader, SegmentType
from vbuild.elf.surgery.relink import INVARIANTS, Relink, prove_relinked, relinked
from vbuild.errors import BinaryError
from vbuild.files.edited import EditedFile

OLD, NEW = "libgiver-1a2b3c4d.so", "libgiver.so"
ORDER = Relink(renamed=((OLD, NEW),), added=("libmore.so",), rpath=("$ORIGIN/../lib",), soname="libcalled.so")
GIVER = elf.linked("int one(void) { return 1; }", f"-Wl,-soname,{OLD}", script="ONE { global: one; };")
BEFORE = ElfImage.parse(
    elf.linked(
        'int one(void), count; static __thread int local = 3; const char *text = "x";'
        "int sum(void) { return one() + local++; }",
        "-Wl,-soname,libcaller.so",
        "-Wl,--build-id",
        libraries=((OLD, GIVER),),
    )
)
with relinked(EditedFile.whole(BEFORE.data), ORDER) as made:
    AFTER = bytes(made)
IMAGE = ElfImage.parse(AFTER)
DYNAMIC = Dynamic.of(IMAGE)
SOUND = Sound(AFTER)
patched, flipped = SOUND.patched, SOUND.flipped
with_segment, with_section = SOUND.with_segment, SOUND.with_section


def with_row(tag: int, **fields: int) -> bytes:
    row = next(row for row in DYNAMIC.rows if row.tag == tag)
    return patched(row.offset, replace(DynamicEntry(row.tag, row.value), **fields).pack())


def of_type(kind: SegmentType, number: int = 0) -> int:
    return [index for index, each in enumerate(IMAGE.segments) if each.p_type == kind][number]


def renamed_symbol() -> bytes:
    """The exported function has another name."""
    at = AFTER.index(b"\0sum\0", DYNAMIC.strings.start)
    return patched(at + 1, b"s")[: at + 2] + b"o" + AFTER[at + 3 :]


def moved_soname() -> bytes:
    """SONAME and the next of the same length as the old one."""
    return with_row(DynamicTag.SONAME, d_val=next(row.value for row in DYNAMIC.rows if row.tag == DynamicTag.NEEDED))


def required_elsewhere() -> bytes:
    start = DYNAMIC.offset(DynamicTag.VERNEED)
    assert start
    for need, _ in version_needs(IMAGE, start):
        if DYNAMIC.text(need.vn_file) == NEW:
            break
        start += need.vn_next
    return patched(
        start + 4, next(row.value for row in DYNAMIC.rows if row.tag == DynamicTag.SONAME).to_bytes(4, "little")
    )


def with_memory(more: int) -> bytes:
    """The segment of data takes so many bytes more behind those in the file."""
    number = of_type(SegmentType.LOAD, 3)
    return with_segment(number, p_memsz=IMAGE.segments[number].p_memsz + more)


def swapped() -> bytes:
    """The first two PT_LOADs change places."""
    one, other = (of_type(SegmentType.LOAD, number) for number in (0, 1))
    data = with_segment(one, **fields_of(other))
    at = IMAGE.header.e_phoff + other * ProgramHeader.layout.size
    return data[:at] + IMAGE.segments[one].pack() + data[at + ProgramHeader.layout.size :]


def fields_of(number: int) -> dict[str, int]:
    return asdict(IMAGE.segments[number])


def with_table(place: int) -> bytes:
    """The program headers once more at *place*, and the file header says so."""
    rows = b"".join(segment.pack() for segment in IMAGE.segments)
    data = replace(IMAGE.header, e_phoff=place).pack() + AFTER[FileHeader.layout.size :]
    return data[:place] + rows + data[place + len(rows) :]


LAST = of_type(SegmentType.LOAD, -1)
BROKEN: dict[str, tuple[str, Callable[[], bytes]]] = {
    "cut end": ("the new file can be read", lambda: AFTER[:-4096]),
    "entry point": (
        "the file header is the same",
        lambda: replace(IMAGE.header, e_entry=64).pack() + AFTER[FileHeader.layout.size :],
    ),
    "dropped library": ("NEEDED is as ordered", lambda: with_row(DynamicTag.NEEDED, d_tag=0x6FFFFEF5)),
    "RUNPATH": ("RPATH and RUNPATH are as ordered", lambda: with_row(DynamicTag.RPATH, d_tag=29)),
    "address of code": ("the sections are the same", lambda: with_section(".text", sh_addr=64)),
    "size of a table": ("the sections are the same", lambda: with_section(".gnu.version", sh_size=2)),
    "crooked table": (
        "the sections are the same",
        lambda: with_section(".dynstr", sh_addr=address(".dynstr", IMAGE) + 8),
    ),
    "uneven table": (
        "the sections are the same",
        lambda: with_section(".dynsym", sh_addr=address(".dynsym", IMAGE) + 4),
    ),
    "flags": ("the other dynamic entries are the same", lambda: with_row(12, d_val=64)),
    "SONAME": ("SONAME is as ordered", moved_soname),
    "further entry": (
        "the other dynamic entries are the same",
        lambda: patched(DYNAMIC.rows[-1].offset + 16, DynamicEntry(30, 8).pack()),
    ),
    "library of a version": (
        "the version requirements are the same but for their libraries",
        required_elsewhere,
    ),
    "name of a symbol": ("every name is the same", renamed_symbol),
    "byte of a moved table": ("what moved has its bytes", lambda: flipped(".gnu.hash", -1)),
    "symbol": ("what moved has its bytes", lambda: flipped(".dynsym", 30)),
    "symbol of the linker": ("what moved has its bytes", lambda: flipped(".symtab", 32)),
    "comment": ("what moved has its bytes", lambda: flipped(".comment")),
    "byte of code": ("everything else in memory is the same", lambda: flipped(".text", 3)),
    "relocation": ("everything else in memory is the same", lambda: flipped(".rela.dyn", 8)),
    "GOT": ("everything else in memory is the same", lambda: flipped(".got")),
    "writable code": (
        "everything else in memory is the same",
        lambda: with_segment(of_type(SegmentType.LOAD, 1), p_flags=7),
    ),
    "unmapped": (
        "the sections are the same",
        lambda: with_segment(of_type(SegmentType.LOAD, 1), p_type=SegmentType.NULL),
    ),
    "less memory": ("everything else in memory is the same", lambda: with_memory(-4)),
    "more memory": ("everything else in memory is the same", lambda: with_memory(4)),
    "no memory": (
        "the sections are the same",
        lambda: with_segment(of_type(SegmentType.LOAD, 3), p_type=SegmentType.NULL, p_filesz=0),
    ),
    "segments in another order": ("PT_LOADs ascend and lie apart", swapped),
    "segments in one page": (
        # where PT_DYNAMIC is not loaded from its place any more
        "the new file can be read",
        lambda: with_segment(LAST, p_vaddr=IMAGE.loads[-1].p_vaddr - 8),
    ),
    "PT_PHDR": (
        "the program headers are mapped and overlap nothing",
        lambda: with_segment(of_type(SegmentType.NOTE), p_type=SegmentType.PHDR),
    ),
    "part of a note": ("the notes are found", lambda: with_segment(of_type(SegmentType.NOTE), p_filesz=8)),
    "executable tables": ("PT_LOADs ascend and lie apart", lambda: with_segment(LAST, p_flags=7)),
    "odd alignment": (
        "offset and address agree modulo the alignment",
        lambda: with_segment(of_type(SegmentType.LOAD), p_align=0x1800),
    ),
    "alignment that offsets do not keep": (
        "offset and address agree modulo the alignment",
        lambda: with_segment(LAST, p_align=0x2000000),
    ),
    "headers over a section": (
        "the program headers are mapped and overlap nothing",
        lambda: with_section(".comment", sh_offset=IMAGE.header.e_phoff + 8),
    ),
    "headers that are not mapped": (
        "the program headers are mapped and overlap nothing",
        lambda: with_table(len(AFTER)),
    ),
    "PT_TLS": ("the other segments are the same", lambda: with_segment(of_type(SegmentType.TLS), p_align=64)),
    "PT_GNU_RELRO": (
        "the other segments are the same",
        lambda: with_segment(of_type(SegmentType.GNU_RELRO), p_memsz=8),
    ),
    "PT_GNU_STACK": (
        "the other segments are the same",
        lambda: with_segment(of_type(SegmentType.GNU_STACK), p_flags=7),
    ),
    "PT_NOTE": ("the notes are found", lambda: with_segment(of_type(SegmentType.NOTE), p_type=SegmentType.NULL)),
}


def test_what_was_relinked_is_proved() -> None:
    prove_relinked(BEFORE, AFTER, ORDER)


@pytest.mark.parametrize("how", BROKEN)
def test_a_file_that_breaks_an_invariant_is_refused_by_its_name(how: str) -> None:
    invariant, broken = BROKEN[how]
    with pytest.raises(BinaryError) as caught:
        prove_relinked(BEFORE, broken(), ORDER)
    assert str(caught.value).startswith(f"{invariant}: ")


def before(at: int, data: bytes) -> bytes:
    whole = bytes(BEFORE.data)
    return whole[:at] + data + whole[at + len(data) :]


def address(name: str, image: ElfImage = BEFORE) -> int:
    section = image.section(name)
    assert section is not None
    return section.header.sh_addr


def place_of(name: str) -> int:
    section = BEFORE.section(name)
    assert section is not None
    return section.span.start


def exported(name: str) -> int:
    """The file offset of the dynamic symbol *name*."""
    table, dynamic = place_of(".dynsym"), Dynamic.of(BEFORE)
    rows = range(table, table + 24 * 64, 24)
    return next(row for row in rows if dynamic.text(int.from_bytes(BEFORE.data[row : row + 4], "little")) == name)


def first_place() -> int:
    """What the first relocation fills."""
    start = place_of(".rela.dyn")
    return int.from_bytes(BEFORE.data[start : start + 8], "little")


LEADING: dict[str, tuple[Callable[[], bytes], str]] = {
    "pointer": (
        lambda: before(place_of(".rela.dyn") + 16, address(".dynstr").to_bytes(8, "little")),
        f"the word at {first_place():#x} leads to {address('.dynstr'):#x}",
    ),
    "exported symbol": (
        lambda: before(exported("sum") + 8, address(".dynstr").to_bytes(8, "little")),
        f"exported symbol at {address('.dynstr'):#x}",
    ),
    "entry inside a table": (
        lambda: before(Dynamic.of(BEFORE).rows[-1].offset + 16, DynamicEntry(36, address(".dynstr") + 4).pack()),
        f"tag 0x24 of PT_DYNAMIC is {address('.dynstr') + 4:#x}, inside a table",
    ),
    "segment": (
        lambda: before(
            BEFORE.header.e_phoff
            + ProgramHeader.layout.size
            * next(n for n, each in enumerate(BEFORE.segments) if each.p_type == SegmentType.GNU_EH_FRAME),
            replace(
                next(each for each in BEFORE.segments if each.p_type == SegmentType.GNU_EH_FRAME),
                p_vaddr=address(".dynstr"),
            ).pack(),
        ),
        f"segment of type 0x6474e550 at {address('.dynstr'):#x}",
    ),
}


@pytest.mark.parametrize("what", LEADING)
def test_a_file_in_which_something_leads_to_what_patchelf_moves_is_refused(what: str) -> None:
    data, message = LEADING[what]
    with pytest.raises(BinaryError) as caught, relinked(EditedFile.whole(data()), ORDER):
        pass
    assert str(caught.value) == f"nothing leads to what moved: {message}"


def test_every_invariant_was_broken() -> None:
    assert INVARIANTS.keys() - {"nothing leads to what moved"} <= {invariant for invariant, _ in BROKEN.values()}


def test_the_place_of_a_variable_of_threads_is_no_address() -> None:
    """Its value counts from PT_TLS: a large one may be the number of an address of what moved."""
    source = "__thread char before[0x400], after[8] = {1}; int f(void) { return before[0] + after[0]; }"
    image = ElfImage.parse(elf.linked(source, "-Wl,-soname,libthreads.so", "-Wl,-z,noseparate-code"))
    strings = next(section for section in image.sections if section.name == ".dynstr")
    place = strings.header.sh_addr
    symbols = next(section for section in image.sections if section.name == ".dynsym")
    data = bytearray(image.data)
    for start in range(symbols.span.start, symbols.span.stop, 24):
        if data[start + 4] & 0xF == 6:
            data[start + 8 : start + 16] = place.to_bytes(8, "little")
    with relinked(EditedFile.whole(bytes(data)), Relink(rpath=("$ORIGIN/../a/folder/far/away",))) as new:
        assert Dynamic.of(ElfImage.parse(bytes(new))).texts(DynamicTag.RPATH) == ("$ORIGIN/../a/folder/far/away",)


def test_the_value_of_an_absolute_symbol_leads_nowhere() -> None:
    # as of the sizes of files that objcopy has made symbols of
    data = before(exported("sum") + 8, address(".dynstr").to_bytes(8, "little"))
    row = exported("sum") + 6
    data = data[:row] + SHN_ABS.to_bytes(2, "little") + data[row + 2 :]
    assert ElfImage.parse(data).exported([range(address(".dynstr"), address(".dynstr") + 8)]) == ()
    with relinked(EditedFile.whole(data), ORDER) as made:
        assert f"\0{NEW}\0".encode() in bytes(made)
