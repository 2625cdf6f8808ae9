"""PE files: what they say of themselves, what judges say, and what is wrong with damaged ones."""

import random
import re
import shutil
import struct
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pefile
import pytest

from tests.factories.pe_files import GUID, MINGW, pe_file, windows_library
from vbuild.binary.linkage import Via
from vbuild.errors import BinaryError
from vbuild.pe.linkage import edges_of, is_system
from vbuild.pe.read import read_loading, read_outline

MODULE = """
#include <windows.h>
__declspec(dllexport) void *PyInit_demo(void) { return LoadLibraryA("helper.dll"); }
__declspec(dllexport) void *two(void) { return LoadLibraryW(L"wide.dll"); }
"""
# where a file has what, for the files of `pe_file`
COFF, OPTIONAL, FIRST_SECTION = 68, 88, 88 + 240


def poked(data: bytes, place: int, number: int, size: int = 4) -> bytes:
    return data[:place] + number.to_bytes(size, "little") + data[place + size :]


def test_a_module_is_read_as_objdump_and_pefile_read_it(tmp_path: Path) -> None:
    data = windows_library(MODULE, "-g")
    loading, judge = read_loading(data), pefile.PE(data=data)
    outline = loading.outline
    (tmp_path / "demo.dll").write_bytes(data)
    dump = subprocess.run(
        [f"{MINGW}objdump", "-p", tmp_path / "demo.dll"], capture_output=True, text=True, check=True
    ).stdout
    assert outline.needed == tuple(re.findall(r"DLL Name: (\S+)", dump))
    assert outline.needed == tuple(each.dll.decode() for each in judge.DIRECTORY_ENTRY_IMPORT)
    assert (outline.soname, outline.exports) == ("demo.dll", len(judge.DIRECTORY_ENTRY_EXPORT.symbols))
    assert (outline.machine, outline.bits, outline.type, loading.modules) == ("amd64", 64, "DLL", ("demo",))
    assert loading.mentioned == {"helper.dll", "wide.dll"}
    sizes = {each.name: each.size for each in outline.sections}
    assert list(sizes.values())[:-1] == [each.SizeOfRawData for each in judge.sections]
    assert sizes[".debug_info"]
    assert outline.debug_size == sum(size for name, size in sizes.items() if name.startswith(".debug_"))


def test_what_strip_takes_of_a_dll_is_what_it_is_said_to_take(tmp_path: Path) -> None:
    data = windows_library(MODULE)
    (tmp_path / "demo.dll").write_bytes(data)
    subprocess.run([f"{MINGW}strip", tmp_path / "demo.dll"], check=True)
    outline = read_outline(data)
    taken = outline.symbol_size + outline.debug_size
    assert taken > 1000
    assert abs(len(data) - (tmp_path / "demo.dll").stat().st_size - taken) < 1024  # bytes of alignment and headers


def test_a_program_that_imports_when_it_calls_is_read() -> None:
    data = pe_file(needed=["KERNEL32.dll", "one.dll"], delayed=["late.dll"], flags=0x22)
    outline = read_outline(data)
    assert (outline.needed, outline.delayed) == (("KERNEL32.dll", "one.dll", "late.dll"), ("late.dll",))
    judge = pefile.PE(data=data)
    assert [each.dll for each in judge.DIRECTORY_ENTRY_DELAY_IMPORT] == [b"late.dll"]
    assert (outline.type, read_loading(data).is_program, outline.soname) == ("EXE", True, None)
    assert outline.build_id == "03020100" + "0504" + "0706" + GUID[8:].hex().upper() + "1"


def test_other_machines_and_kinds_are_named() -> None:
    assert read_outline(pe_file(machine=0x14C, needed=["a.dll"])).machine == "x86"
    assert read_outline(pe_file(machine=0x14C, needed=["a.dll"])).bits == 32
    assert read_outline(pe_file(machine=0xAA64)).machine == "arm64"
    config = struct.pack("<I", 0xD0).ljust(200, b"\0") + struct.pack("<Q", 1)
    assert read_outline(pe_file(text=config, more={10: (0x1000, 0xD0)})).machine == "arm64ec"
    assert read_outline(pe_file(more={14: (0x1000, 72)})).notes == (".NET assembly: its code is not a processor's",)
    assert "UPX" in read_outline(pe_file(sections=[(b"UPX0", 512), (b"UPX1", 512)])).notes[0]
    # it leaves in the header where the symbols were that it took out
    packed = bytearray(pe_file(sections=[(b"UPX0", 512)]))
    place = int.from_bytes(packed[60:64], "little") + 4 + 8
    packed[place : place + 8] = struct.pack("<II", 1 << 20, 100)
    assert "UPX" in read_outline(packed).notes[0]
    signed = pe_file(more={4: (0x400, 8)})
    assert read_outline(signed).is_signed
    assert not read_outline(pe_file()).is_signed


@pytest.mark.parametrize(
    ("damaged", "why"),
    [
        (lambda data: data[:63], "not a PE file"),
        (lambda data: data[:120], "headers end at"),
        (lambda data: poked(data, 60, 1 << 31), "not a PE file"),
        (lambda data: data[:-1], "past the end"),
        (lambda data: poked(data, OPTIONAL, 0x107, 2), "optional header of the kind 0x107"),
        (lambda data: poked(data, FIRST_SECTION + 16, 1 << 31), "past the end"),
        (lambda data: poked(data, COFF + 2, 0xFFFF, 2), "headers end at"),
        (lambda data: poked(data, OPTIONAL + 112 + 8, 1 << 30), "nothing in the file is loaded at 0x40000000"),
        (lambda data: poked(data, OPTIONAL + 112, 1 << 30), "nothing in the file is loaded at 0x40000000"),
        (lambda data: poked(data, OPTIONAL + 112 + 4 * 8, 1 << 30), "certificate table ends at"),
    ],
)
def test_a_damaged_file_is_refused(damaged: Callable[[bytes], bytes], why: str) -> None:
    data = pe_file(needed=["a.dll"], exports=["PyInit_demo"], more={4: (0x400, 8)})
    with pytest.raises(BinaryError, match=why):
        read_loading(damaged(data))


def test_tables_that_lead_in_circles_are_bounded() -> None:
    # each row needs one name, and there is no empty row behind them: 90 s with lief alone
    name = b"a.dll\0\0\0"
    rows = struct.pack("<IIIII", 0x1000, 0, 0, 0x1000, 0x1000) * 9000
    with pytest.raises(BinaryError, match="more than 4096 DLLs"):
        read_outline(pe_file(text=name + rows, more={1: (0x1008, len(rows))}))
    exports = struct.pack("<IIIIIIIIII", 0, 0, 0, 0x1000, 1, 1 << 30, 1 << 30, 0x1000, 0x1000, 0)
    with pytest.raises(BinaryError, match="1073741824 exports"):
        read_outline(pe_file(text=name + exports, more={0: (0x1008, len(exports))}))
    overlapping = pe_file(sections=[(b"a", 0x10000), (b"b", 0x10000), (b"c", 0x10000)])
    for place in (1, 2, 3):
        overlapping = poked(overlapping, FIRST_SECTION + 40 * place + 20, 0x400)
        overlapping = poked(overlapping, FIRST_SECTION + 40 * place + 16, len(overlapping) - 0x400)
    with pytest.raises(BinaryError, match="together in a file of"):
        read_outline(overlapping)


def test_damaged_copies_are_read_or_refused() -> None:
    data = pe_file(needed=["KERNEL32.dll", "a.dll"], delayed=["b.dll"], exports=["PyInit_demo"], text=b"helper.dll\0")
    if shutil.which(f"{MINGW}gcc"):
        damaged_copies(windows_library(MODULE, "-s"), 1000)
    damaged_copies(data, 1000)


def damaged_copies(data: bytes, count: int) -> None:
    dice = random.Random(20)
    for _ in range(count):
        copy = bytearray(data)
        for _ in range(dice.randint(1, 8)):
            place = dice.randrange(min(len(copy), dice.choice([1024, len(copy)])) - 4)
            numbers = (dice.randrange(len(data)), 0, 1, 0xFFFFFFFF, 0x7FFFFFFF, 0x80000000)
            copy[place : place + 4] = dice.choice(numbers).to_bytes(4, "little")
        if dice.random() < 0.1:
            del copy[dice.randrange(len(copy)) :]
        with suppress(BinaryError):
            read_loading(bytes(copy))


def test_dlls_are_found_without_regard_to_case_and_where_windows_looks() -> None:
    files = {
        "demo/_c.pyd": pe_file(
            needed=["KERNEL32.dll", "B.DLL", "x-1.dll", "far.dll", "nvcuda.dll", "no.dll", "torch.dll"]
        ),
        "demo/b.dll": pe_file(needed=["api-ms-win-crt-heap-l1-1-0.dll", "python312.dll", "VCRUNTIME140_1.dll"]),
        "demo.libs/X-1.dll": pe_file(),
        "other/far.dll": pe_file(),
        "other/no.dll": pe_file(machine=0xAA64),
    }
    outlines = {path: read_outline(data) for path, data in files.items()}
    found = edges_of(outlines, added={"demo.libs"}, is_elsewhere=lambda name: name == "torch.dll")
    assert [(edge.name, edge.via, edge.provider) for edge in found if edge.consumer == "demo/_c.pyd"] == [
        ("KERNEL32.dll", Via.PLATFORM, None),
        ("B.DLL", Via.OWN, "demo/b.dll"),
        ("x-1.dll", Via.ADDED, "demo.libs/X-1.dll"),
        ("far.dll", Via.NAME, "other/far.dll"),
        ("nvcuda.dll", Via.DRIVER, None),
        ("no.dll", Via.MISSING, None),
        ("torch.dll", Via.OUTSIDE, None),
    ]
    assert all(is_system(name) for name in outlines["demo/b.dll"].needed)
    assert not is_system("msvcp140.dll")
    assert not is_system("libgomp-1.dll")
