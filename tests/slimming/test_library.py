"""One library: what is said of it, and why it stays as it was."""

import subprocess
from pathlib import Path

import pytest

from tests.factories.bundles import GFX942, SPIRV, amd_library, bundle, compressed
from tests.factories.elf import patchelfed, shared_object, without_sections
from tests.factories.fatbins import cubin, device_library, entry, fatbin
from tests.factories.loaded_pointers import LoadedPointers
from tests.factories.pe_files import pe_file
from vbuild.errors import RepackageError
from vbuild.gpu_code.fatbin import FatbinFlag, FatbinKind
from vbuild.hardware.gpu import GpuList
from vbuild.slimming.library import GpuLibrary
from vbuild.slimming.request import Cuts, Share
from vbuild.slimming.results import LibraryCut

BIG = 1 << 13


def code(*archs: int, ptx: tuple[int, ...] = ()) -> bytes:
    machine = (entry(arch=arch, code=cubin(arch, BIG)) for arch in archs)
    return fatbin(*machine, *(entry(FatbinKind.PTX, arch, code=bytes(BIG)) for arch in ptx))


def cut(data: bytes, gpus: str = "90", cuts: Cuts | None = None) -> LibraryCut:
    share = Share(Share.parse(f"any={gpus}").gpus)
    rope, account = GpuLibrary.of("demo/_C.so", memoryview(data)).slimmed(share, cuts or Cuts())
    assert (account.member, account.before, account.after) == ("demo/_C.so", len(data), rope.size)
    return account


def test_a_gpu_that_nothing_was_for_is_refused_with_what_there_is() -> None:
    with pytest.raises(RepackageError) as caught:
        cut(device_library(code(80, 120), fatbin(entry(FatbinKind.LTO_IR, 90))), "90", cuts=Cuts(strict=True))
    assert str(caught.value) == (
        "demo/_C.so: nothing for sm_90 in any of its fatbins (1), which have sm_80, sm_120; choose among those, or let "
        "it go with --allow-unsupported"
    )


@pytest.mark.parametrize(("linked", "is_compressed"), [("libcudart.so.13", True), ("libcudart.so.12", False)])
def test_the_cuda_that_is_linked_decides_whether_a_variant_is_compressed_again(
    linked: str, *, is_compressed: bool
) -> None:
    library = GpuLibrary.of("x.so", memoryview(patchelfed(device_library(code(80, 90)), "--add-needed", linked)))
    assert library.needed == (linked,)
    _, account = library.slimmed(Share.parse("x=90"), Cuts(zstd=None))
    assert (account.is_recompressed, account.zstd) == (is_compressed, is_compressed)


@pytest.mark.parametrize(("ptx", "is_compressed"), [(120, True), (90, False)])
def test_the_gpus_that_ptx_is_for_decide_it_too(ptx: int, *, is_compressed: bool) -> None:
    """A driver that knows no 12.0 may load the variant for its 9.0, and read no zstd."""
    library = GpuLibrary.of("x.so", memoryview(device_library(code(90, 120, ptx=(ptx,)))))
    _, account = library.slimmed(Share.parse("x=120+ptx"), Cuts(zstd=None))
    assert account.is_recompressed is is_compressed


def test_a_variant_that_keeps_all_code_is_not_compressed_again_unless_that_is_asked_for() -> None:
    library = GpuLibrary.of("x.so", memoryview(device_library(code(120))))
    for zstd in (None, False, True):
        _, account = library.slimmed(Share(label="x"), Cuts(zstd=zstd))
        assert account.is_recompressed is bool(zstd)


def test_what_a_dll_links_is_known() -> None:
    assert GpuLibrary.of("x.dll", memoryview(pe_file(needed=["cudart64_12.dll"]))).needed == ("cudart64_12.dll",)


def test_code_of_nvidia_that_lies_in_zstd_needs_a_driver_that_reads_it_and_code_of_amd_does_not() -> None:
    in_zstd = fatbin(*(entry(arch=arch, code=cubin(arch, BIG), flags=FatbinFlag.ZSTD) for arch in (80, 90)))
    account = cut(device_library(in_zstd, code(80, 90)))
    assert (account.zstd, account.is_recompressed) == (True, False)
    account = cut(device_library(in_zstd), cuts=Cuts(zstd=True))
    assert (account.zstd, account.is_recompressed) == (True, False)
    amd = compressed(bundle({GFX942: cubin(1, BIG)}))
    account = cut(amd_library(amd), "gfx942")
    assert (account.zstd, account.kept, account.gpus) == (False, 1, ("gfx942",))


def test_spirv_is_named_as_amd_names_it() -> None:
    library = amd_library(bundle({GFX942: cubin(1, BIG), SPIRV: bytes(BIG)}))
    account = cut(library, "gfx1100")
    assert (account.gpus_before, account.gpus) == (("gfx942", "amdgcnspirv"), ("amdgcnspirv",))
    assert (account.jit_only, account.virtual) == (1, ())


def test_only_by_force_a_library_becomes_smaller_that_has_no_room_for_headers_and_is_fragile_then() -> None:
    linked = ("-Wl,--hash-style=sysv", "-Wl,-z,noseparate-code", "-Wl,--build-id=none", "-fcf-protection=none")
    data = device_library(code(80, 90), code(80, 90), flags=linked)
    account = cut(data)
    assert (account.after, account.is_fragile, account.headers) == (account.before, False, ())
    assert "no room for more than the 5 program headers it has" in account.notes[0]
    forced = cut(data, cuts=Cuts(force=True))
    assert forced.after < account.after
    assert (forced.is_fragile, forced.headers, forced.notes) == (True, ("moved program headers",), ())


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (
            without_sections(shared_object("int x;")),
            "no section headers, by which GPU code is found; expected a file that has them",
        ),
        (pe_file(sections=[(b"UPX0", 0x1000)]), "packed by UPX: what it unpacks is not read"),
        (b"\x7fELF", "ELF of class 0x0"),
    ],
    ids=["headers", "packed", "cut short"],
)
def test_a_library_that_cannot_be_read_is_named(data: bytes, why: str) -> None:
    assert why in (cut(data).why_whole or "")


def test_a_fatbin_that_several_wrappers_share_shrinks_where_it_is() -> None:
    library = device_library(code(80, 90, 120), code(80, 90), wrapped=[0, 0, 1])
    file, account = GpuLibrary.of("x.so", memoryview(library)).slimmed(Share(GpuList.parse("90")), Cuts())
    was, now = LoadedPointers.of(library), LoadedPointers.of(bytes(file))
    now.check_holds(was)
    assert [len(entries or ()) for entries in now.containers()] == [1, 1, 1]
    assert now.containers()[0] == now.containers()[1]
    assert (account.pinned, account.dropped) == (0, 3)
    assert account.after < account.before - BIG


def test_a_fatbin_that_shrinks_where_it_is_begins_where_it_did() -> None:
    """Only what one wrapper leads to moves."""
    library = device_library(code(80, 90), code(80, 90, 120), wrapped=[0, 1, 1])
    file, account = GpuLibrary.of("x.so", memoryview(library)).slimmed(Share(GpuList.parse("90")), Cuts())
    was, now = LoadedPointers.of(library), LoadedPointers.of(bytes(file))
    assert [len(entries or ()) for entries in now.containers()] == [1, 1, 1]
    assert [*now.wrappers()][1:] == [*was.wrappers()][1:]
    assert account.pinned == 0


@pytest.mark.parametrize("kind", ["-no-pie", "-pie"])
def test_programs_are_cut_as_libraries_are_and_run(kind: str, tmp_path: Path) -> None:
    """A program that is loaded where it says has no pointers to fill: its fatbins shrink where they are."""
    numbers = ",".join(map(str, code(80, 90, 120)))
    source = f"""
        #include <string.h>
        __attribute__((section(".nv_fatbin"), aligned(8))) static const unsigned char fat[] = {{{numbers}}};
        __attribute__((section(".nvFatBinSegment"), used))
        static const struct {{ int magic, version; const void *data, *more; }} wrapper = {{0x466243b1, 1, fat, 0}};
        int main(void) {{
            const volatile unsigned char *data = wrapper.data;
            unsigned size = data[8] | data[9] << 8 | data[10] << 16;
            return size < {len(code(80, 90))} && data[0] == 0x50 ? 42 : 1;
        }}"""
    program = tmp_path / "program"
    command: list[str | Path] = ["gcc", "-O1", kind, "-x", "c", "-", "-o", program]
    subprocess.run(command, input=source.encode(), check=True, capture_output=True)
    assert subprocess.run([program], check=False).returncode == 1
    data = program.read_bytes()
    file, account = GpuLibrary.of("program", memoryview(data)).slimmed(Share(GpuList.parse("90")), Cuts())
    program.write_bytes(bytes(file))
    assert subprocess.run([program], check=False).returncode == 42
    assert (account.kept, account.dropped, account.why_whole) == (1, 2, None)
