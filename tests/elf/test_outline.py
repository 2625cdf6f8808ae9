"""What headers alone say: the same as the whole file, from a map of it, and as readelf has it."""

import mmap
import re
from pathlib import Path

import pytest

from tests.factories.elf import SUM, judged_by, rpath, shared_object, stripped
from vbuild.elf.code import Elf
from vbuild.elf.read import Outline
from vbuild.errors import BinaryError

DATA = shared_object(SUM, "-g", "-Wl,-soname,libsum.so.1", *rpath("$ORIGIN/lib"))


def test_a_mapped_file_is_read_where_it_lies(tmp_path: Path) -> None:
    path = tmp_path / "libsum.so"
    path.write_bytes(DATA)
    # closing the map raises if the outline holds on to it
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as view,
    ):
        found = Outline.parse(view)
    assert found == Outline.parse(DATA)
    assert (found.soname, found.runpath, found.machine, found.byte_order) == (
        "libsum.so.1",
        ("$ORIGIN/lib",),
        "x86_64",
        "little",
    )


def test_the_whole_file_has_the_same_outline() -> None:
    whole, outline = Elf.parse(DATA), Outline.parse(DATA)
    assert all(getattr(whole, field) == getattr(outline, field) for field in Outline.__struct_fields__)


def test_sections_have_the_sizes_that_readelf_shows() -> None:
    shown = re.findall(r"\] (\S+)\s+(?!NULL|NOBITS)\S+\s+\w{16} \w+ (\w+)", judged_by("readelf", DATA, "-SW"))
    found = {section.name: section.size for section in Outline.parse(DATA).sections if section.size}
    assert found == {name: int(size, 16) for name, size in shown if int(size, 16)}


def test_symbols_and_debug_information_are_what_strip_takes_away() -> None:
    outline, bare = Outline.parse(DATA), Outline.parse(stripped(DATA))
    assert outline.symbol_size > 0
    assert outline.debug_size > 0
    assert (bare.symbol_size, bare.debug_size) == (0, 0)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not an ELF file: begins with nothing, expected 7f 45 4c 46"),
        (b"MZ\x90\0", "not an ELF file: begins with 4d 5a 90 00, expected 7f 45 4c 46"),
        (b"\x7fELF\x07", "ELF of class 0x7, byte order 0x0: expected 0x1 or 0x2, and 0x1 or 0x2"),
    ],
)
def test_what_is_no_elf_file_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(BinaryError) as refusal:
        Outline.parse(data)
    assert str(refusal.value) == message
