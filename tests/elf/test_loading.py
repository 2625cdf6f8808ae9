"""What the loader sees of a file: as readelf shows it, with and without section headers, and no other error."""

import re
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories.elf import (
    MODULE,
    judged_by,
    object_file,
    program,
    rpath,
    shared_object,
    stripped,
    without_sections,
)
from tests.factories.tools import needs
from vbuild.binary.outline import LoadedName
from vbuild.elf.read import Loading
from vbuild.errors import BinaryError

SOURCE = """
#include <stdio.h>
const char *opened = "/usr/lib/libcuda.so.1";
static const char more[] = "libone.so:libtwo.so.3, xlibthree.so and libfour.so.%d; libfive.soap libc.so.6 libsix.so_";
const char *last(int i) { puts(more); return i ? "libself.so.1" : "plugin.so"; }
"""
VERSIONS = "DEMO_1 { global: opened; }; DEMO_2 { global: last; local: *; } DEMO_1;"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    script = tmp_path_factory.mktemp("script") / "versions"
    script.write_text(VERSIONS)
    return shared_object(SOURCE, f"-Wl,--version-script={script}", "-Wl,-soname,libself.so.1", *rpath("$ORIGIN"))


def test_versions_are_those_that_readelf_shows(data: bytes) -> None:
    shown = judged_by("readelf", data, "-VW")
    found = Loading.parse(data)
    assert found.given == ("DEMO_1", "DEMO_2")
    assert found.base == "libself.so.1"
    files = re.findall(r"Version: 1\s+File: (\S+)\s+Cnt: (\d+)((?:\s+0x\w+:\s+Name: \S+.*)+)", shown)
    assert files
    assert found.taken == tuple(
        LoadedName(file, tuple(re.findall(r"Name: (\S+)", versions))) for file, _count, versions in files
    )


def test_a_file_without_section_headers_says_the_same(data: bytes) -> None:
    whole, bare = Loading.parse(data), Loading.parse(without_sections(data))
    assert bare.taken == whole.taken
    assert (bare.given, bare.base) == (whole.given, whole.base)
    assert bare.mentioned == whole.mentioned
    module = shared_object(MODULE)
    assert Loading.parse(without_sections(module)).modules == Loading.parse(module).modules == ("demo",)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("-F", "libreal.so.1"), {"libreal.so.1"}),
        (("-f", "libreal.so.1", "-f", "$ORIGIN/libmore.so"), {"libreal.so.1", "libmore.so"}),
        (("--audit", "libone.so:/opt/libtwo.so"), {"libone.so", "libtwo.so"}),
        (("--depaudit", "libone.so"), {"libone.so"}),
    ],
    ids=["filter", "auxiliary filters", "audit", "audit of what it needs"],
)
def test_what_the_loader_opens_along_with_it_is_mentioned(flags: tuple[str, ...], expected: set[str]) -> None:
    linker = (f"-Wl,{','.join(flags)}", "-Wl,-soname,libself.so.1")
    assert Loading.parse(shared_object("int nothing;", *linker)).mentioned == expected


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (program("int main(void) { return 0; }"), True),
        (program("int main(void) { return 0; }", "-static", "-no-pie"), True),
        (shared_object("int nothing;"), False),
        # as libc.so.6 and libcap.so.2: a library that can be run
        (
            shared_object(
                'const char run[] __attribute__((section(".interp"))) = "/lib64/ld-linux-x86-64.so.2";',
                "-Wl,-soname,libcap.so.2",
            ),
            False,
        ),
        (object_file("int nothing;"), False),
    ],
    ids=["pie", "static", "library", "library that runs", "object file"],
)
def test_programs_are_those_that_are_started(made: bytes, expected: bool) -> None:  # noqa: FBT001 - a case
    assert Loading.parse(made).is_program is expected


@needs("aarch64-linux-gnu-gcc")
def test_other_machines_files_are_read(tmp_path: Path) -> None:
    source, output = tmp_path / "demo.c", tmp_path / "demo.so"
    source.write_text("#include <stdio.h>\n" + MODULE + 'void say(void) { puts("libone.so"); }')
    subprocess.run(["aarch64-linux-gnu-gcc", "-shared", "-fPIC", source, "-o", output], check=True)
    found = Loading.parse(output.read_bytes())
    assert (found.modules, found.mentioned, found.outline.machine) == (("demo",), frozenset({"libone.so"}), "aarch64")
    assert found.taken[0].library == "libc.so.6"


def test_32_bit_files_are_read() -> None:
    # no 32-bit libraries to link with are needed for this
    found = Loading.parse(shared_object(MODULE, "-m32", "-march=i686", "-nostdlib", "-Wl,-soname,libdemo.so"))
    assert (found.modules, found.outline.machine) == (("demo",), "i686")


@pytest.mark.nightly
def test_a_large_file_is_read_quickly_and_without_a_copy(tmp_path: Path) -> None:
    blob = tmp_path / "blob"
    with blob.open("wb") as file:
        file.truncate(300 << 20)
    path = tmp_path / "large.so"
    path.write_bytes(shared_object(MODULE + 'const char *name = "libone.so";'))
    # a sparse file of 300 MB of GPU code, as cuFFT has it among its data
    subprocess.run(
        ["objcopy", "--add-section", f".more={blob}", "--set-section-flags", ".more=alloc,data", path], check=True
    )
    script = (
        "import mmap, sys\nfrom vbuild.elf.read import Loading\n"
        "with open(sys.argv[1], 'rb') as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:\n"
        "    print(Loading.parse(memoryview(mapped)).mentioned)\n"
        "print([line for line in open('/proc/self/status') if 'VmData' in line or 'RssAnon' in line])"
    )
    started = time.monotonic()
    ran = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=True)
    assert "libone.so" in ran.stdout
    assert int(re.findall(r"RssAnon:\\t\s*(\d+)", ran.stdout)[0]) < 100_000  # kB
    assert time.monotonic() - started < 10


def with_tag(data: bytes, tag: int, value: int) -> bytes:
    """*data* with *value* in the row of *tag* in its dynamic table."""
    start = int(re.findall(r"DYNAMIC\s+0x(\w+)", judged_by("readelf", data, "-lW"))[0], 16)
    while struct.unpack_from("<Q", data, start)[0] != tag:
        start += 16
    return data[: start + 8] + struct.pack("<Q", value) + data[start + 16 :]


def with_bytes(data: bytes, section: str, offset: int, new: bytes) -> bytes:
    """*data* with *new* at *offset* of its *section*."""
    found = re.findall(rf" {re.escape(section)}\s+\S+\s+\w+\s+(\w+)", judged_by("readelf", data, "-SW"))
    start = int(found[0], 16) + offset
    return data[:start] + new + data[start + len(new) :]


@pytest.mark.parametrize(
    ("offset", "new", "message"),
    [
        (4, b"\xff\xff\xff\x7f", "string at 0x"),
        (8, b"\xff\xff\xff\x7f", "symbol version record at 0x"),
    ],
    ids=["file name", "first version"],
)
def test_damaged_version_records_are_refused(data: bytes, offset: int, new: bytes, message: str) -> None:
    with pytest.raises(BinaryError) as refusal:
        Loading.parse(with_bytes(data, ".gnu.version_r", offset, new))
    assert str(refusal.value).startswith(message)


@pytest.mark.parametrize(
    ("tag", "record", "message"),
    [
        (0x6FFFFFFC, ".short 1, 0, 1, 0; .long 0, 0, 20", "more than 32768 symbol version records"),
        (0x6FFFFFFE, ".short 1, 0; .long 1, 16, 16", "more than 32768 symbol version records"),
        (0x6FFFFFFE, ".short 1, 60000; .long 1, 16, 16", "more than 32768 symbol versions"),
    ],
    ids=["DT_VERDEF", "DT_VERNEED", "one library's"],
)
def test_more_versions_than_there_are_numbers_are_refused(tag: int, record: str, message: str) -> None:
    blob = f'__asm__(".section .rodata; .globl blob; blob: .rept 70000; {record}; .endr; .previous");'
    data = shared_object(SOURCE + blob, "-Wl,-soname,libself.so.1", "-Wl,--default-symver")
    address = int(
        re.findall(r"(\w+)\s+0 NOTYPE\s+GLOBAL DEFAULT\s+\d+ blob@", judged_by("readelf", data, "-sW"))[0], 16
    )
    with pytest.raises(BinaryError) as refusal:
        Loading.parse(with_tag(data, tag, address))
    assert str(refusal.value) == f"{message}, which .gnu.version cannot number"


def test_a_module_without_a_symbol_table_is_none() -> None:
    assert Loading.parse(with_tag(shared_object(MODULE), 6, 1 << 40)).modules == ()


SMALL = stripped(shared_object(MODULE + 'const char *name = "libone.so";'))


@given(place=st.integers(0, len(SMALL) - 1), byte=st.integers(0, 255))
def test_a_changed_byte_gives_no_other_error(place: int, byte: int) -> None:
    damaged = bytearray(SMALL)
    damaged[place] = byte
    with suppress(BinaryError):
        Loading.parse(damaged)


@pytest.mark.parametrize("is_stripped", [False, True], ids=["sections", "no sections"])
def test_what_asks_for_its_own_place_is_told_by_functions_and_files(*, is_stripped: bool) -> None:
    asks = (
        "int dladdr(void *, void *), dl_iterate_phdr(void *, void *), mydladdr(void);"
        'const char *maps = "/proc/self/maps"; int ask(void) { return dladdr(0, 0) + dl_iterate_phdr(0, 0); }'
    )
    data = shared_object(asks)
    found = Loading.parse(without_sections(data) if is_stripped else data)
    assert found.own_place == ("dl_iterate_phdr", "dladdr", "/proc/self/maps")
    gives = "int dladdr(void *a, void *b) { return 0; } int my_dlinfo(void); int f(void) { return my_dlinfo(); }"
    assert Loading.parse(shared_object(gives)).own_place == ()
