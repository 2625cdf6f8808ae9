"""What GNU strip drops is dropped without it: from plain libraries, and from the middle of those patchelf was at."""

import io
import subprocess
import tempfile
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from tests.factories import elf
from tests.factories.devices import checksum, library, program_lines, shortened
from tests.factories.tools import needs
from vbuild.binary.edits import Strip
from vbuild.elf.image import ElfImage
from vbuild.elf.records import SectionType
from vbuild.elf.surgery.cutting import cut

DEBUG = ("-g", "-Wl,--build-id")
FLAG = {Strip.DEBUG: "--strip-debug", Strip.UNNEEDED: "--strip-unneeded"}


def stripped(data: bytes, strip: Strip) -> bytes:
    return bytes(cut(ElfImage.parse(data), [], strip=strip).edited)


def names(data: bytes) -> set[str]:
    return {section.name for section in ElfImage.parse(data).sections if section.header.sh_type != SectionType.NULL}


@pytest.mark.parametrize("strip", FLAG)
@pytest.mark.parametrize("edit", [bytes, elf.patchelfed])
def test_the_sections_that_gnu_strip_leaves_are_left(edit: type[bytes], strip: Strip) -> None:
    data = library(*DEBUG)
    assert names(stripped(edit(data), strip)) == names(elf.stripped(data, FLAG[strip]))


@pytest.mark.parametrize("strip", FLAG)
def test_the_file_is_as_small_as_gnu_strip_makes_it(strip: Strip) -> None:
    data = library(*DEBUG)
    assert len(stripped(data, strip)) <= len(elf.stripped(data, FLAG[strip])) + 4096


@pytest.mark.sampled(1)
@pytest.mark.parametrize("strip", FLAG)
@pytest.mark.parametrize("linker", ["-Wl,-z,noseparate-code", pytest.param("-fuse-ld=lld", marks=needs("ld.lld"))])
def test_a_stripped_library_does_what_it_did(linker: str, strip: Strip) -> None:
    data = library(linker, *DEBUG)
    assert program_lines(stripped(data, strip)) == program_lines(data)


@pytest.mark.parametrize("strip", FLAG)
def test_what_lies_before_the_segments_that_patchelf_appends_is_cut_in_pages(strip: Strip) -> None:
    data = elf.patchelfed(library(*DEBUG))
    image = ElfImage.parse(data)
    symbols = image.section(".symtab")
    assert symbols is not None
    assert symbols.span.start < max(load.p_offset for load in image.loads)
    small = stripped(data, strip)
    assert program_lines(small) == program_lines(data)
    assert (len(data) - len(small)) % 4096 == 0
    assert len(data) > len(small)


@pytest.mark.parametrize("strip", FLAG)
@pytest.mark.parametrize("edit", [bytes, elf.patchelfed])
def test_both_are_done_in_one_cut(edit: type[bytes], strip: Strip) -> None:
    data = edit(library(*DEBUG))
    image = ElfImage.parse(data)
    orders = shortened(image)
    small = bytes(cut(image, orders, strip=strip).edited)
    assert program_lines(small) == [f"{checksum(image, orders):x}", *program_lines(data)[1:]]
    assert len(small) < len(bytes(cut(image, orders).edited)) < len(data)
    assert elf.complaints("readelf", small, "-aW") == elf.complaints("readelf", data, "-aW")


ORPHAN = """
.section .debug_demo,"",@progbits
.byte 1
orphan: .quad 1
.type orphan, @object
.size orphan, 8
.text
.globl here
.type here, @function
here: ret
.size here, 1
"""


def symbols(data: bytes) -> list[tuple[str, str, str | int, int, int]]:
    """Name, type, section, value and size of each symbol in .symtab."""
    table = ELFFile(io.BytesIO(data)).get_section_by_name(".symtab")
    assert isinstance(table, SymbolTableSection)
    return [
        (symbol.name, symbol["st_info"].type, symbol["st_shndx"], symbol["st_value"], symbol["st_size"])
        for symbol in table.iter_symbols()
    ]


def test_a_symbol_in_a_section_that_goes_becomes_one_of_no_file() -> None:
    data = elf.shared_object(ORPHAN, "-nostdlib", language="assembler")
    before, after = symbols(data), symbols(stripped(data, Strip.DEBUG))
    orphans = [place for place, (name, *_) in enumerate(before) if name == "orphan"]
    assert [before[place][3:] for place in orphans] == [(1, 8)]
    assert [after[place] for place in orphans] == [("", "STT_FILE", "SHN_ABS", 0, 0)]
    others = [place for place, symbol in enumerate(before) if symbol[0] and place not in orphans]
    # sections have other numbers afterwards
    assert [(*after[place][:2], *after[place][3:]) for place in others] == [
        (*before[place][:2], *before[place][3:]) for place in others
    ]


def test_symbols_stay_under_debug_and_have_their_names() -> None:
    data = library(*DEBUG)
    wanted = elf.judged_by("nm", elf.stripped(data, "--strip-debug"))
    assert elf.judged_by("nm", stripped(data, Strip.DEBUG)) == wanted


@pytest.mark.parametrize("strip", FLAG)
def test_other_tools_can_edit_a_stripped_library(strip: Strip) -> None:
    data = library(*DEBUG)
    small = stripped(data, strip)
    for edited in (elf.stripped(small), elf.objcopied(small, "--strip-debug"), elf.patchelfed(small)):
        assert program_lines(edited) == program_lines(data)


def test_patchelf_has_nothing_to_warn_of() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lib.so"
        path.write_bytes(stripped(library(*DEBUG), Strip.DEBUG))
        run = subprocess.run(
            [elf.PATCHELF, "--set-rpath", "/somewhere", path], check=True, capture_output=True, text=True
        )
    assert run.stderr == ""


def test_stripping_twice_is_stripping_once() -> None:
    once = stripped(library(*DEBUG), Strip.UNNEEDED)
    assert cut(ElfImage.parse(once), [], strip=Strip.UNNEEDED).edited.is_unchanged
