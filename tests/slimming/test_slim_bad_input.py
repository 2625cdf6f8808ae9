"""Hostile and damaged wheels: a refusal in one line with nothing written, or a library left as it was and named.

Never a traceback, a hang, a flood of memory, or a library that is damaged and nobody was told.
"""

import resource
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.factories.damage import containers, poked, retargeted, with_fatbin, with_section, with_segment
from tests.factories.elf import object_file, without_sections
from tests.factories.fatbins import cubin, device_library, entry, fatbin
from tests.factories.loaded_pointers import LoadedPointers
from tests.factories.wheels import contents, wheel
from tests.factories.wheels import poked as poked_file
from vbuild.elf.image import ElfImage
from vbuild.errors import VbuildError, WheelError
from vbuild.gpu_code.fatbin import FatbinFlag, FatbinKind
from vbuild.inspection.inspect import inspect
from vbuild.slimming.request import Cuts, Share
from vbuild.slimming.results import LibraryCut, Slimmed
from vbuild.slimming.slim import slim
from vbuild.verification.verify import verify

NAME = "demo-1.0-py3-none-manylinux_2_28_x86_64.whl"
LIBRARY, SOUND = "demo/_C.so", "demo/_sound.so"
BIG = 1 << 13
GIB = 1 << 30
SM_90 = Share(Share.parse("any=90").gpus)


def code(*archs: int) -> bytes:
    return fatbin(*(entry(arch=arch, code=cubin(arch, BIG)) for arch in archs))


def beside(first: bytes) -> bytes:
    """A library with an 8 KiB entry like *first*, for some GPU, beside one for sm_90; and a sound fatbin."""
    return device_library(fatbin(first, entry(arch=90)), code(80, 90))


FAT = device_library(code(80, 90), code(80, 90, 120))
ADDRESSES = containers(FAT)
ENDLESS = (1 << 63) - 1


def section(name: str) -> range:
    found = ElfImage.parse(FAT).section(name)
    assert found
    return found.addresses


def place(name: str) -> int:
    found = ElfImage.parse(FAT).section(name)
    assert found
    return found.span.start


def slimmed(tmp_path: Path, library: bytes, *, cuts: Cuts | None = None) -> tuple[Slimmed, bytes, LibraryCut]:
    """What slimming for sm_90 makes of a wheel with *library* and a sound one: that, the library, its account."""
    fat = wheel(tmp_path, NAME, {LIBRARY: library, SOUND: FAT})
    (found,) = slim([fat], tmp_path / "out", shares=[SM_90], cuts=cuts)
    after = contents(tmp_path / "out" / NAME)
    assert len(after[SOUND]) < len(FAT)
    assert [path.name for path in (tmp_path / "out").iterdir()] == [NAME]
    (account,) = [cut for cut in found.libraries if cut.member == LIBRARY]
    return found, after[LIBRARY], account


# what each is, and a part of what is said of it
LEFT: Mapping[str, tuple[bytes, str]] = {
    "half of it": (FAT[: len(FAT) // 2], "runs past the end"),
    "a cut file header": (FAT[:60], "FileHeader at 0x0 runs past the end, 0x3c"),
    "no more than a file header": (FAT[:64], "program header table at 0x40"),
    "a byte less": (FAT[:-1], "section header table at 0x"),
    "section headers past the end": (poked(FAT, 0x28, len(FAT) - 8), "section header table at 0x"),
    "section headers at the end of time": (poked(FAT, 0x28, ENDLESS), "section header table at 0x7fffffffffffffff"),
    "program headers past the end": (poked(FAT, 0x20, ENDLESS), "program header table at 0x7fffffffffffffff"),
    "no section headers": (without_sections(FAT), "no section headers, by which GPU code is found"),
    "section names in no section": (poked(FAT, 0x3E, 0xFFFE, size=2), "section names in section 65534"),
    "overlapping sections": (
        with_section(FAT, ".dynstr", 24, place(".dynsym")),
        "overlap in the file at 0x",
    ),
    "a section of 4 GiB": (with_section(FAT, ".nv_fatbin", 32, 4 * GIB), "0x100000000 bytes long, runs past the end"),
    "a section of exabytes": (with_section(FAT, ".nv_fatbin", 32, ENDLESS), "runs past the end"),
    "overlapping PT_LOADs": (with_segment(FAT, 1, 16, 0), "PT_LOADs overlap: 0x0"),
    "a PT_LOAD of 4 GiB": (with_segment(FAT, 0, 32, 4 * GIB), "0x100000000 bytes long, runs past the end"),
    "32-bit": (poked(FAT, 4, 1, size=1), "ELF of class 0x1, byte order 0x1: expected 0x2 and 0x1"),
    "big-endian": (poked(FAT, 5, 2, size=1), "ELF of class 0x2, byte order 0x2: expected 0x2 and 0x1"),
    "a machine without a name": (poked(FAT, 18, 0xF3, size=2), "relocations of machine 0xf3 are not known here"),
    "an object file": (poked(FAT, 16, 1, size=2), "file of type 0x1: expected a shared library or program"),
    "a core dump": (poked(FAT, 16, 4, size=2), "file of type 0x4: expected a shared library or program"),
    "no fatbin at all": (device_library(b"x" * BIG), "no fatbin at 0x1000: magic is 0x78787878"),
    "a wrapper of another kind": (
        device_library(code(80, 90), wrapper=(".nvFatBinSegment", 0x12345678, 1)),
        "has magic 0x12345678, of version 1, which is not known",
    ),
    "a wrapper of another version": (
        device_library(code(80, 90), wrapper=(".nvFatBinSegment", 0x466243B1, 9)),
        "of version 9, which is not known",
    ),
}


@pytest.mark.parametrize("what", LEFT)
def test_a_library_that_cannot_be_understood_is_left_as_it_was_and_named(tmp_path: Path, what: str) -> None:
    library, said = LEFT[what]
    _, after, account = slimmed(tmp_path, library)
    assert after == library
    assert said in " ".join((account.why_whole or "", *account.notes))
    assert account.after == account.before


# of the two fatbins of a library, the first is strange: it stays whole, the second is cut
PARTLY: Mapping[str, bytes] = {
    "past its section": with_fatbin(FAT, 8, 1 << 20),
    "of 4 GiB": with_fatbin(FAT, 8, 4 * GIB),
    "of more than a driver can count": with_fatbin(FAT, 8, 2 * GIB),
    "of a negative size": with_fatbin(FAT, 8, (1 << 64) - 8),
    "of an odd size": with_fatbin(FAT, 8, 12),
    "that ends before its entries": with_fatbin(FAT, 8, 0),
    "of another version": with_fatbin(FAT, 0, 0x0010_0009_BA55_ED50),
    "with a wrapper to its middle": retargeted(FAT, 0, ADDRESSES[0] + 16),
    "with a wrapper to its last byte": retargeted(FAT, 0, ADDRESSES[1] - 1),
    "with a wrapper to nowhere": retargeted(FAT, 0, 1 << 40),
    "with a wrapper to the start of the file": retargeted(FAT, 0, 0),
    "with a wrapper behind its section": retargeted(FAT, 0, section(".nv_fatbin").stop),
    "with a wrapper to itself": retargeted(FAT, 0, section(".nvFatBinSegment").start),
    "with a name": device_library(code(80, 90), code(80, 90, 120), more=".globl c0\n"),
    "with a pointer to an entry": device_library(code(80, 90), code(80, 90), more=".data\n.quad c0+16\n"),
    "with a packed pointer to an entry": device_library(
        code(80, 90), code(80, 90), more=".data\n.balign 8\n.quad c0+16\n", flags=["-Wl,-z,pack-relative-relocs"]
    ),
    "with a kind that is not known": beside(entry(0x200, 80, code=bytes(BIG))),
    "with a version that is not known": beside(entry(arch=80, code=bytes(BIG), version=0x102)),
    "with flags that are not known": beside(entry(arch=80, code=bytes(BIG), flags=1 << 40)),
    "with both suffixes": beside(
        entry(arch=80, code=bytes(BIG), flags=FatbinFlag.ARCH_SPECIFIC | FatbinFlag.ARCH_FAMILY)
    ),
    "with an architecture of ten digits": beside(entry(arch=0x5A5A5A5A, code=bytes(BIG))),
    "with more compressed bytes than bytes": beside(
        entry(arch=80, code=bytes(BIG), flags=FatbinFlag.LZ4, compressed_size=1 << 31)
    ),
    "with compressed bytes that are not": beside(entry(arch=80, code=bytes(BIG), compressed_size=8)),
    "with an entry of 4 GiB": beside(entry(arch=80, code=bytes(BIG), payload_size=4 * GIB)),
    "with a header of 8 bytes": beside(entry(arch=80, code=bytes(BIG), header_size=8)),
    "with a header of 4 GiB": beside(entry(arch=80, code=bytes(BIG))).replace(
        b"\x02\x00\x01\x01\x40\x00\x00\x00", b"\x02\x00\x01\x01\xf8\xff\xff\xff", 1
    ),
    "with a name behind its header": beside(entry(arch=80, code=bytes(BIG), ident_offset=60, ident_size=0xFFFFFFFF)),
}


@pytest.mark.parametrize("what", PARTLY)
def test_a_fatbin_that_is_strange_stays_whole_and_is_counted_and_the_next_is_cut(tmp_path: Path, what: str) -> None:
    library = PARTLY[what]
    _, after, account = slimmed(tmp_path, library)
    assert len(after) < len(library)
    assert account.pinned or account.notes
    was, now = LoadedPointers.of(library), LoadedPointers.of(after)
    now.check_holds(was)
    first, *_, last = ADDRESSES if what in _OF_FAT else containers(library)
    assert now.view(first, last - first) == was.view(first, last - first)
    kept, before = now.containers()[-1], was.containers()[-1]
    assert kept
    assert before
    assert len(kept) == 1
    assert kept[0] in before


_OF_FAT = {what for what, library in PARTLY.items() if len(library) == len(FAT)}


@pytest.mark.parametrize(
    "library",
    [
        pytest.param(device_library(fatbin(), fatbin()), id="empty fatbins"),
        pytest.param(device_library(fatbin(entry(FatbinKind.LTO_IR, 80, code=bytes(BIG)))), id="code for linkers"),
        pytest.param(device_library(fatbin(entry(0x200, 80))), id="code of a kind that is not known"),
        pytest.param(poked(FAT, 0x38, 0, size=2), id="no program headers"),
        pytest.param(device_library(code(80, 90), wrapped=[]), id="no wrappers"),
        pytest.param(object_file("int x;"), id="an object file of gcc"),
    ],
)
def test_a_library_in_which_nothing_can_go_stays_as_it_was(tmp_path: Path, library: bytes) -> None:
    fat = wheel(tmp_path, NAME, {LIBRARY: library})
    (found,) = slim([fat], tmp_path / "out", shares=[SM_90])
    assert found.is_untouched
    assert (tmp_path / "out" / NAME).read_bytes() == fat.read_bytes()


def test_what_is_no_elf_file_passes_whatever_it_is_called(tmp_path: Path) -> None:
    files = {LIBRARY: b"", "demo/b.so": b"\x7fEL", "demo/c.so": b"#!/bin/sh\n", "demo/d.a": b"!<arch>\n" + b"x" * 99}
    fat = wheel(tmp_path, NAME, files)
    (found,) = slim([fat], tmp_path / "out", shares=[SM_90])
    assert found.is_untouched
    assert inspect(fat).libraries == ()
    verify(fat, jobs=1)


@pytest.mark.parametrize("place", [0, 40, 200, 2000])
def test_a_broken_deflate_stream_is_refused_and_found(tmp_path: Path, place: int) -> None:
    fat = wheel(tmp_path, NAME, {LIBRARY: FAT})
    with zipfile.ZipFile(fat) as archive:
        start = archive.getinfo(LIBRARY).header_offset + 30 + len(LIBRARY)
    poked_file(fat, start + place, b"\xff" * 8)
    with pytest.raises(WheelError, match=rf"{NAME}: {LIBRARY}: (damaged|does not match|inflates to)"):
        slim([fat], tmp_path / "out", shares=[SM_90])
    assert not list(tmp_path.glob("out/*"))
    assert [damaged.path for damaged in inspect(fat).damaged] == [LIBRARY]
    assert verify(fat, jobs=1).failed


def test_a_library_compressed_in_a_way_that_is_not_known_is_refused_and_found(tmp_path: Path) -> None:
    fat = wheel(tmp_path, NAME, {LIBRARY: FAT}, compressions={LIBRARY: zipfile.ZIP_BZIP2})
    with pytest.raises(WheelError, match=f"{NAME}: {LIBRARY}: compressed with method 12, which can be copied but"):
        slim([fat], tmp_path / "out", shares=[SM_90])
    assert not list(tmp_path.glob("out/*"))
    assert [damaged.path for damaged in inspect(fat).damaged] == [LIBRARY]


@pytest.mark.parametrize("flag", [FatbinFlag.LZ4, FatbinFlag.ZSTD], ids=str)
@pytest.mark.parametrize("claim", [4 * GIB, GIB, BIG + 1, 1, 0])
def test_a_size_that_lies_never_counts_where_nothing_is_compressed_again(
    tmp_path: Path, flag: FatbinFlag, claim: int
) -> None:
    library = beside(entry(arch=80, code=bytes(BIG), flags=flag, uncompressed_size=claim))
    _, after, account = slimmed(tmp_path, library)
    assert account.dropped
    LoadedPointers.of(after).check_holds(LoadedPointers.of(library))


@pytest.mark.parametrize("claim", [4 * GIB, GIB, BIG + 1, 1, 0])
def test_a_size_that_lies_leaves_its_fatbin_alone_where_code_is_compressed_again(tmp_path: Path, claim: int) -> None:
    library = beside(entry(arch=90, code=bytes(BIG), flags=FatbinFlag.LZ4, uncompressed_size=claim))
    _, after, account = slimmed(tmp_path, library, cuts=Cuts(zstd=True))
    assert library[0x1000 : 0x1000 + 0x10 + 0x2B] in after
    assert account.dropped == 1
    lies = (".nv_fatbin: code at 0x1010 ", ".nv_fatbin: 0x2b bytes at 0x1010 claim to inflate to ")
    assert account.notes[0].startswith(lies)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("what", [*LEFT, *PARTLY])
def test_inspect_and_verify_say_what_they_see(tmp_path: Path, what: str) -> None:
    library = LEFT[what][0] if what in LEFT else PARTLY[what]
    fat = wheel(tmp_path, NAME, {LIBRARY: library, SOUND: FAT})
    found = inspect(fat)
    paths = [library.path for library in found.libraries] + [damaged.path for damaged in found.damaged]
    assert sorted(paths) == [LIBRARY, SOUND]
    found.data()
    verdict = verify(fat, jobs=1)
    assert SOUND in {gpus.member for gpus in verdict.gpus}
    verdict.data()


EMPTY = ".byte " + ",".join(map(str, fatbin()))
CUBIN = ".byte " + ",".join(map(str, cubin(90, 64)))
BOMBS = {
    "wrappers": ".section .nvFatBinSegment\n.fill 450000, 8, 1",
    "magics": '.section .rodata,"a"\n.fill 150000, 4, 0xBA55ED50',
    "cubins": f'.section .rodata,"a"\n.rept 150000\n{CUBIN}\n.endr',
    "empty fatbins": f'.section .nv_fatbin,"a"\n.rept 150000\n{EMPTY}\n.endr',
}


@pytest.mark.nightly  # tests/gpu_code shows the bound
@pytest.mark.parametrize("what", BOMBS)
def test_a_library_with_more_of_one_thing_than_there_can_be_is_left_and_named(tmp_path: Path, what: str) -> None:
    library = device_library(code(80, 90), more=BOMBS[what] + "\n")
    _, after, account = slimmed(tmp_path, library)
    assert after == library
    assert account.why_whole == ("more than 131072 pieces of GPU code; no library has so many, so this one is damaged")
    assert len(inspect(wheel(tmp_path, NAME, {LIBRARY: library})).libraries[0].gpu.notes) == 1


@pytest.mark.nightly
def test_a_fatbin_with_more_entries_than_a_compiler_writes_is_left_and_named(tmp_path: Path) -> None:
    library = device_library(code(80, 90), fatbin(entry(arch=90, code=b"") * 100_000), code(80, 90))
    _, after, account = slimmed(tmp_path, library)
    assert account.notes[0].endswith("has more than 1024 entries, as none ever had")
    LoadedPointers.of(after).check_holds(LoadedPointers.of(library))


@pytest.mark.nightly
def test_the_peak_of_memory_is_not_what_a_wheel_claims(tmp_path: Path) -> None:
    """A member of 4 GiB that is a few bytes, and an entry of 4 GiB: beside the interpreter and its libraries."""
    claims = beside(entry(arch=90, code=bytes(BIG), flags=FatbinFlag.LZ4, uncompressed_size=4 * GIB - 1))
    frame = beside(entry(arch=90, code=bytes(BIG), flags=FatbinFlag.ZSTD, uncompressed_size=GIB))
    liar = wheel(tmp_path / "a", NAME, {LIBRARY: FAT})
    declared = len(FAT).to_bytes(4, "little")
    liar.write_bytes(liar.read_bytes().replace(declared, (4 * GIB - 1).to_bytes(4, "little")))
    for path in (liar, wheel(tmp_path / "b", NAME, {LIBRARY: claims, "demo/_D.so": frame})):
        for command in (
            ["slim", path, "-o", tmp_path / "out", "--gpu", "90", "--recompress"],
            ["inspect", path, "--json"],
        ):
            assert peak([str(word) for word in command]) < 200 << 20


def peak(command: list[str]) -> int:
    """The peak of memory, in bytes, of vbuild with *command*, whatever comes of it."""
    program = (
        "import resource, subprocess, sys\n"
        "subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    run = [sys.executable, "-c", program, sys.executable, "-m", "vbuild", *command]
    kibibytes = int(subprocess.run(run, check=True, capture_output=True, text=True).stdout)
    assert kibibytes > resource.getpagesize() >> 10
    return kibibytes << 10


def test_a_refusal_leaves_neither_a_wheel_nor_a_part_of_one(tmp_path: Path) -> None:
    fat = wheel(tmp_path, NAME, {LIBRARY: FAT, "demo/z.txt": b"text" * 1000})
    with zipfile.ZipFile(fat) as archive:
        start = archive.getinfo("demo-1.0.dist-info/METADATA").header_offset + 30 + len("demo-1.0.dist-info/METADATA")
    poked_file(fat, start + 8, b"\xff\xff")
    with pytest.raises(VbuildError):
        slim([fat], tmp_path / "out", shares=[Share.parse("sm90=90"), Share.parse("sm80=80")])
    assert not list(tmp_path.glob("out/*"))
