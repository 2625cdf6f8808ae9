"""Mach-O files: what they say of themselves, what judges say, and what is wrong with damaged ones."""

import random
import shutil
import struct
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from macholib.MachO import MachO

from tests.factories.macho_files import ARM64, BUNDLE, DYLIB, EXECUTE, X86_64, fat, macho
from vbuild.binary.linkage import Via
from vbuild.errors import BinaryError
from vbuild.macho.linkage import edges_of
from vbuild.macho.read import read_loading, read_outline

NEEDED = ("@rpath/libx.dylib", "/usr/lib/libSystem.B.dylib")
# address, size and place of the constants
_CONSTANTS = struct.pack("<QQI", 0x1000, 16, 0x1000)
DEMO = macho(
    kind=BUNDLE,
    needed=NEEDED,
    weak=["@loader_path/libmaybe.dylib"],
    rpaths=["@loader_path/../.dylibs"],
    exports=["PyInit_demo", "two"],
    local=["inner", "more_inside"],
    text=b"libhelper.dylib\0",
    signature=64,
)


def test_a_module_is_read_as_macholib_reads_it(tmp_path: Path) -> None:
    loading = read_loading(DEMO)
    outline = loading.outline
    (tmp_path / "demo.so").write_bytes(DEMO)
    (judge,) = MachO(tmp_path / "demo.so").headers
    assert [name for _, _, name in judge.walkRelocatables()] == list(outline.needed)
    assert outline.needed == (*NEEDED, "@loader_path/libmaybe.dylib")
    assert outline.weak == ("@loader_path/libmaybe.dylib",)
    assert outline.rpath == ("@loader_path/../.dylibs",)
    assert (outline.machine, outline.type, outline.exports, outline.is_signed) == ("arm64", "MH_BUNDLE", 2, True)
    assert outline.build_id == bytes(range(16)).hex()
    assert loading.modules == ("demo",)
    assert loading.mentioned == {"libhelper.dylib"}
    # two rows of 16 bytes, and their names
    assert outline.symbol_size == 2 * 16 + len("_inner\0_more_inside\0")


@pytest.mark.skipif(not shutil.which("llvm-objdump"), reason="needs Debian's llvm")
def test_llvm_reads_the_same(tmp_path: Path) -> None:
    (tmp_path / "demo.so").write_bytes(DEMO)
    command = ["llvm-objdump", "--macho", "--dylibs-used", "--rpaths", str(tmp_path / "demo.so")]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert all(f"\t{name} (" in lines for name in read_outline(DEMO).needed)
    assert "@loader_path/../.dylibs" in lines


def test_the_halves_of_a_universal_file_stand_apart() -> None:
    one, two = macho(cpu=X86_64, kind=BUNDLE, needed=NEEDED[:1]), DEMO
    outline = read_outline(fat((X86_64, one), (ARM64, two)))
    assert outline.machine == "universal2"
    assert [(half.size, half.outline) for half in outline.halves] == [
        (len(one), read_outline(one)),
        (len(two), read_outline(two)),
    ]
    assert outline.needed == (*NEEDED, "@loader_path/libmaybe.dylib")
    assert not outline.is_signed
    names = [section.name for section in outline.sections]
    assert names[0] == "x86_64:__TEXT,__const"
    assert "arm64:__LINKEDIT,(code signature)" in names


@pytest.mark.parametrize(
    ("damaged", "why"),
    [
        (lambda data: data[:20], "not a Mach-O file"),
        (lambda data: data[:100], "load commands end at"),
        (lambda data: data[:-1], "__LINKEDIT ends at"),
        (lambda data: b"\xfe\xed\xfa\xcf" + data[4:], "little-endian"),
        (lambda data: data[:16] + struct.pack("<I", 9999) + data[20:], "cannot be read"),
        (lambda data: data.replace(_CONSTANTS, struct.pack("<QQI", 0x1000, 1 << 30, 0x1000)), "section __TEXT,__const"),
        (lambda data: fat((ARM64, data))[:-0x1000], "file of a fat one"),
        (lambda data: fat((X86_64, data)), "is for 0x100000c, the fat header says 0x1000007"),
        (lambda data: struct.pack(">II", 0xCAFEBABE, 30) + data, "fat header of 30 files"),
        (lambda data: struct.pack(">IIIIIII", 0xCAFEBABE, 1, ARM64, 0, 28, 1 << 31, 0) + data, "file of a fat one"),
    ],
)
def test_a_damaged_file_is_refused(damaged: Callable[[bytes], bytes], why: str) -> None:
    broken = damaged(DEMO)
    if broken == DEMO:
        pytest.fail("nothing was damaged")
    with pytest.raises(BinaryError, match=why):
        read_loading(broken)


def test_halves_that_share_bytes_are_refused() -> None:
    head = struct.pack(">II", 0xCAFEBABE, 2) + struct.pack(">IIIII", ARM64, 0, 0x1000, len(DEMO), 12) * 2
    with pytest.raises(BinaryError, match="file of a fat one"):
        read_outline(head.ljust(0x1000, b"\0") + DEMO)


def test_damaged_copies_are_read_or_refused() -> None:
    dice = random.Random(20)
    whole = fat((X86_64, macho(cpu=X86_64, needed=NEEDED)), (ARM64, DEMO))
    for data in (DEMO, whole):
        for _ in range(1000):
            copy = bytearray(data)
            for _ in range(dice.randint(1, 8)):
                place = dice.randrange(min(len(copy), dice.choice([1024, len(copy)])) - 4)
                numbers = (dice.randrange(len(data)), 0, 1, 0xFFFFFFFF, 0x7FFFFFFF, 0x80000000)
                copy[place : place + 4] = dice.choice(numbers).to_bytes(4, dice.choice(["little", "big"]))
            if dice.random() < 0.1:
                del copy[dice.randrange(len(copy)) :]
            with suppress(BinaryError):
                read_loading(bytes(copy))


def test_libraries_are_found_where_macos_looks() -> None:
    files = {
        "demo/_c.so": macho(
            kind=BUNDLE,
            needed=[
                "@loader_path/.dylibs/liba.dylib",
                "@rpath/libb.dylib",
                "/usr/lib/libz.1.dylib",
                "/opt/homebrew/lib/libno.dylib",
                "@rpath/libtorch.dylib",
                "@executable_path/../lib/libpython3.12.dylib",
                "/DLC/demo/libnamed.dylib",
            ],
            rpaths=["@loader_path/lib"],
        ),
        "demo/.dylibs/liba.dylib": macho(needed=["@rpath/libb.dylib"], name="/DLC/liba.dylib"),
        "demo/lib/libb.dylib": macho(name="@rpath/libb.dylib"),
        "demo/x/libnamed.dylib": macho(name="/DLC/demo/libnamed.dylib"),
        "demo/bin/tool": macho(kind=EXECUTE, needed=["@executable_path/../lib/libb.dylib"]),
        "demo/_d.so": macho(kind=BUNDLE, needed=["@rpath/libother.dylib"], rpaths=["@loader_path/../other/lib"]),
    }
    outlines = {path: read_outline(data) for path, data in files.items()}
    assert outlines["demo/lib/libb.dylib"].type == "MH_DYLIB", DYLIB
    edges = edges_of(outlines, is_elsewhere=lambda name: name == "libtorch.dylib")
    assert [(edge.consumer, edge.via, edge.provider) for edge in edges] == [
        ("demo/_c.so", Via.OWN, "demo/.dylibs/liba.dylib"),
        ("demo/_c.so", Via.OWN, "demo/lib/libb.dylib"),
        ("demo/_c.so", Via.PLATFORM, None),
        ("demo/_c.so", Via.MISSING, None),
        ("demo/_c.so", Via.OUTSIDE, None),
        ("demo/_c.so", Via.OUTSIDE, None),
        ("demo/_c.so", Via.NAME, "demo/x/libnamed.dylib"),
        ("demo/.dylibs/liba.dylib", Via.INHERITED, "demo/lib/libb.dylib"),
        ("demo/bin/tool", Via.OWN, "demo/lib/libb.dylib"),
        ("demo/_d.so", Via.OUTSIDE, None),
    ]
