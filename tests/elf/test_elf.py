"""What an ELF file says, compared with binutils' own words about the same file."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tests.factories.elf import judged_by, shared_object, stripped, without_sections
from vbuild.dispatch.isa import Isa
from vbuild.elf.code import Elf, KeptSymbols
from vbuild.elf.image import ElfImage
from vbuild.errors import BinaryError

LIBRARY = """
#include <stdio.h>
static int twice(int x) { return x * 2; }
static int thrice(int x) { return x * 3; }
static int (*table[])(int) = {twice, thrice};
int call(int x) { return table[x](x); }
double root(double x) { printf("%f\\n", x); return x / 2; }
"""


def library(*flags: str) -> bytes:
    return shared_object(LIBRARY, "-Wl,-soname,libdemo.so.1", *flags)


def test_the_loader_s_facts_are_those_that_readelf_shows() -> None:
    data = library()
    elf = Elf.parse(data)
    assert (elf.machine, elf.bits, elf.type, elf.soname) == ("x86_64", 64, "ET_DYN", "libdemo.so.1")
    shown = judged_by("readelf", data, "-dW")
    assert list(elf.needed) == re.findall(r"NEEDED.*\[(.*)\]", shown)
    assert elf.build_id
    assert elf.build_id in judged_by("readelf", data, "-nW")


def test_the_mark_of_a_level_is_read() -> None:
    assert Elf.parse(library()).isa_needed == ()
    assert Elf.parse(library("-Wl,-z,x86-64-v3")).isa_needed == ("v3",)


def test_imports_carry_the_version_and_library_that_nm_shows() -> None:
    data = library()
    shown = set(re.findall(r"\bU (\w+)@(\S+)", judged_by("nm", data, "-D")))
    found = {(symbol.name, symbol.version): symbol.library for symbol in Elf.parse(data).imports if symbol.version}
    assert set(found) >= shown
    assert found["printf", "GLIBC_2.2.5"] == "libc.so.6"


def test_functions_are_those_that_nm_shows() -> None:
    data = library()
    shown = {(int(address, 16), name) for address, name in re.findall(r"(\w+) [tT] (\S+)", judged_by("nm", data))}
    found = {(symbol.address, name) for symbol in Elf.parse(data).functions for name in symbol.names}
    assert shown
    assert found >= shown
    assert {"call", "root"} <= Elf.parse(data).exported
    assert "twice" not in Elf.parse(data).exported


def test_a_stripped_file_keeps_the_starts_and_sizes_of_its_functions() -> None:
    whole, bare = Elf.parse(library()), Elf.parse(stripped(library()))
    twice = next(symbol for symbol in whole.functions if "twice" in symbol.names)
    nameless = next(symbol for symbol in bare.functions if symbol.address == twice.address)
    assert (nameless.size, nameless.names) == (twice.size, ())
    assert str(nameless) == f"function at {twice.address:#x}"


def test_code_is_found_without_section_headers() -> None:
    whole, bare = Elf.parse(library()), Elf.parse(without_sections(library()))
    text = next(code for code in whole.code if code.name == ".text")
    assert any(code.address <= text.address and text.end <= code.end for code in bare.code)
    assert not bare.sections
    assert bare.needed == whole.needed


@pytest.mark.parametrize("flag", ["-Wl,-z,nopack-relative-relocs", "-Wl,-z,pack-relative-relocs"])
def test_pointers_in_data_are_found_packed_or_not(flag: str) -> None:
    elf = Elf.parse(library(flag))
    twice = next(symbol for symbol in elf.functions if "twice" in symbol.names)
    table = next(symbol for symbol in elf.objects if "table" in symbol.names)
    assert (table.address, twice.address) in elf.pointers


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not an ELF file: begins with nothing, expected 7f 45 4c 46"),
        (b"PK\3\4", "not an ELF file: begins with 50 4b 03 04, expected 7f 45 4c 46"),
        (b"\x7fELF\2", "ELF of class 0x2, byte order 0x0: expected 0x1 or 0x2, and 0x1 or 0x2"),
        (b"\x7fELF\7\1", "ELF of class 0x7, byte order 0x1: expected 0x1 or 0x2, and 0x1 or 0x2"),
    ],
)
def test_what_is_no_elf_file_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(BinaryError) as caught:
        Elf.parse(data)
    assert str(caught.value) == message


def test_a_segment_beyond_the_last_address_is_refused() -> None:
    image = ElfImage.parse(library())
    load = max(range(len(image.segments)), key=lambda number: image.segments[number].p_vaddr)
    row = structs.replace(image.segments[load], p_vaddr=(1 << 64) - 0x1000, p_memsz=0x1001)
    data = bytearray(image.data)
    place = image.header.e_phoff + load * row.layout.size
    data[place : place + row.layout.size] = row.pack()
    with pytest.raises(BinaryError) as caught:
        Elf.parse(bytes(data))
    assert str(caught.value) == (
        f"segment {load} of type {row.p_type:#x} is loaded to 0xfffffffffffff000, 0x1001 bytes, which no process has"
    )


@given(st.data())
def test_damage_gives_a_value_or_a_binary_error(data: st.DataObject) -> None:
    whole = bytearray(library())
    headers = st.integers(0, 0x400) | st.integers(len(whole) - 0x1000, len(whole) - 1) | st.integers(0, len(whole) - 1)
    for place in data.draw(st.lists(headers, min_size=1, max_size=8)):
        whole[place] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
    kept = data.draw(st.just(len(whole)) | st.integers(0, len(whole)))
    try:
        elf = Elf.parse(bytes(whole[:kept]))
    except BinaryError:
        return
    Isa.scan(elf)


def test_of_many_symbols_the_last_are_kept() -> None:
    kept = KeptSymbols(most=10)
    made = [kept.get(bytes([number]), lambda number=number: (number,) * 5) for number in (1, 2, 3, 2, 3, 1)]  # type: ignore[misc]
    assert made == [(number,) * 5 for number in (1, 2, 3, 2, 3, 1)]
    again = [kept.get(bytes([number]), lambda: ()) for number in (1, 2, 3)]
    assert again == [(1,) * 5, (), (3,) * 5]
    assert kept.get(b"more", lambda: (0,) * 11) == (0,) * 11
    assert kept.get(b"more", lambda: ()) == ()
