"""What repair tools change is no difference; everything else is, and is named."""

import struct
from collections.abc import Callable

import pytest

from tests.factories.elf import linked, objcopied, patchelfed, rpath, shared_object, stripped
from tests.factories.tools import needs
from vbuild.elf.image import ElfImage
from vbuild.errors import BinaryError
from vbuild.splitting.comparison import compared

pytestmark = needs("gcc")

VERSIONS = "V_1 { global: other; local: *; };"
OTHER = linked("int other(void) { return 1; }", "-Wl,-soname,libother.so.2", script=VERSIONS)
OFFICIAL = linked(
    "int other(void); int numbers[3] = {1, 2, 3}; int work(void) { return other() + numbers[1]; }",
    *("-Wl,-soname,libdemo.so.1", *rpath("$ORIGIN:$ORIGIN/../../nccl/lib")),
    libraries=(("libother.so.2", OTHER),),
)
SONAME = ("--set-soname", "libdemo-1a2b3c4d.so.1.2.3")
NEEDED = ("--replace-needed", "libother.so.2", "libother-5e6f7a8b.so.2.0")


def _poked(name: str, place: int) -> bytes:
    """The library with one other byte in its section *name*."""
    data, section = bytearray(OFFICIAL), ElfImage.parse(OFFICIAL).section(name)
    assert section
    data[section.span[place]] ^= 1
    return bytes(data)


def _of(machine: int) -> bytes:
    return OFFICIAL[:18] + struct.pack("<H", machine) + OFFICIAL[20:]


@pytest.mark.parametrize(
    "bundled",
    [
        OFFICIAL,
        patchelfed(OFFICIAL, *SONAME, "--remove-rpath"),
        patchelfed(OFFICIAL, *SONAME, *NEEDED, "--force-rpath", "--set-rpath", "$ORIGIN"),
        patchelfed(OFFICIAL, *SONAME, *NEEDED, "--set-rpath", "/" + "x" * 600),
        patchelfed(patchelfed(OFFICIAL, *SONAME), *NEEDED),
        patchelfed(stripped(OFFICIAL), *SONAME),
        objcopied(OFFICIAL, "--remove-section", ".comment"),
        objcopied(OFFICIAL, "--add-section", ".more=/dev/null"),
    ],
    ids=["nothing", "cleared", "beside", "a long path", "in turn", "stripped", "no comment", "longer"],
)
def test_what_repair_tools_change_is_no_difference(bundled: bytes) -> None:
    assert not compared(memoryview(OFFICIAL), memoryview(bundled)).difference


DIFFERENCES: dict[str, tuple[Callable[[], bytes], str]] = {
    "machine": (lambda: _of(183), "its ELF header says otherwise"),
    "code": (lambda: _poked(".text", 0), "its section .text is another"),
    "data": (lambda: _poked(".data", -1), "its section .data is another"),
    "build-id": (lambda: _poked(".note.gnu.build-id", -1), "its section .note.gnu.build-id is another"),
    "symbol": (lambda: _poked(".dynsym", -1), "its section .dynsym is another"),
    "name": (lambda: OFFICIAL.replace(b"\0work\0", b"\0worK\0"), "its section .dynsym is another"),
    "last name": (lambda: OFFICIAL.replace(b"\0V_1\0", b"\0V_2\0"), "its section .gnu.version_r is another"),
    "needed": (
        lambda: patchelfed(OFFICIAL, "--replace-needed", "libother.so.2", "libanother.so.2"),
        "its section .gnu.version_r is another",
    ),
    "no longer needed": (
        lambda: patchelfed(OFFICIAL, "--remove-needed", "libother.so.2"),
        "its section .dynamic is another",
    ),
    "flags": (lambda: objcopied(OFFICIAL, "--set-section-flags", ".comment=alloc,readonly"), "it has other sections"),
}


@pytest.mark.parametrize("what", DIFFERENCES)
def test_everything_else_is_named(what: str) -> None:
    make, expected = DIFFERENCES[what]
    assert compared(memoryview(OFFICIAL), memoryview(make())).difference.startswith(expected)


def test_a_file_that_is_no_elf_file_is_refused() -> None:
    with pytest.raises(BinaryError, match=r"^not an ELF file: begins with 74 65 78 74, expected 7f 45 4c 46$"):
        compared(memoryview(OFFICIAL), memoryview(b"text"))
    assert compared(memoryview(OFFICIAL), memoryview(shared_object("int x;"))).difference
