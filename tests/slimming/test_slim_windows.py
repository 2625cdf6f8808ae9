"""Wheels for Windows: their DLLs are cut, signed ones only if that is said, and their variants claim what they have."""

import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.factories.fatbins import cubin, entry, fatbin
from tests.factories.pe_files import pe_file
from tests.factories.wheels import wheel
from tests.factories.windows import device_dll, needs_mingw, signed
from vbuild.binary.edits import Strip
from vbuild.gpu_code.survey import device_code
from vbuild.hardware.architectures import Arch
from vbuild.hardware.gpu import GpuList
from vbuild.pe.image import Directory, PeImage
from vbuild.slimming.library import GpuLibrary
from vbuild.slimming.request import Cuts, Share
from vbuild.slimming.results import Slimmed
from vbuild.slimming.slim import slim

pytestmark = needs_mingw

NAME = "demo-1.0-py3-none-win_amd64.whl"


@cache
def device() -> bytes:
    return device_dll(*[fatbin(*(entry(arch=arch, code=cubin(arch, 1 << 14)) for arch in (80, 90)))] * 2)


def slimmed(folder: Path, data: bytes, share: Share, cuts: Cuts | None = None) -> tuple[Slimmed, bytes]:
    made = wheel(folder / "in", NAME, {"demo/__init__.py": b"", "demo/kernels.dll": data})
    (result,) = slim([made], folder / "out", shares=(share,), cuts=cuts)
    assert result.path
    with zipfile.ZipFile(result.path) as archive:
        return result, archive.read("demo/kernels.dll")


def archs(data: bytes) -> list[set[str]]:
    return [{str(each.arch) for each in found.entries} for found in device_code(PeImage.parse(data)).containers]


def test_code_for_other_gpus_goes_from_a_dll(tmp_path: Path) -> None:
    data = device()
    result, after = slimmed(tmp_path, data, Share(GpuList.asked("sm_90")))
    assert archs(after) == [{"sm_90"}] * 2
    (cut,) = result.libraries
    assert (cut.kept, cut.dropped, cut.after) == (2, 2, len(after))
    assert len(data) - len(after) >= 1 << 15


def test_signed_dll_is_left_and_named_unless_its_signature_may_go(tmp_path: Path) -> None:
    data = signed(device())
    result, after = slimmed(tmp_path / "left", data, Share(GpuList.asked("sm_90")))
    assert after == data
    assert result.why_untouched == "what could go of it is left, for the reasons below"
    (cut,) = result.libraries
    assert cut.why_whole
    assert "Authenticode signature" in cut.why_whole
    assert (cut.kept, cut.dropped, cut.surplus) == (4, 0, ((Arch(80),),) * 2)
    assert [str(each.device) for each in cut.served] == ["sm_90"]
    _, cut = GpuLibrary.of("k.dll", memoryview(data)).slimmed(Share(), Cuts(strip=Strip.DEBUG))
    assert (cut.served, cut.surplus) == ((), ())
    _, cut = GpuLibrary.of("k.dll", memoryview(data)).slimmed(Share(GpuList.asked("80,90")), Cuts())
    assert (cut.after, cut.why_whole) == (len(data), None)


def test_debug_data_goes_from_a_dll_where_that_is_asked_for() -> None:
    data = device_dll(fatbin(entry(arch=90)), more='.section .debug_info,"dr"\n.fill 8192,1,7\n')
    library = GpuLibrary.of("k.dll", memoryview(data))
    sizes = [library.slimmed(Share(), Cuts(strip=strip))[1].after for strip in (Strip.NOTHING, Strip.DEBUG)]
    assert sizes[0] == len(data)
    assert sizes[1] <= len(data) - 8192


def _patched(data: bytes, place: int, number: int, size: int = 4) -> bytes:
    return data[:place] + number.to_bytes(size, "little") + data[place + size :]


def _with_field(section: str, field: int, number: int) -> Callable[[bytes, PeImage], bytes]:
    """A field of the header of *section*, by its offset there, that says *number*."""

    def damage(data: bytes, image: PeImage) -> bytes:
        table = image.coff_at + 20 + image.coff.optional_size
        return _patched(data, table + 40 * image.named(section)[0].index + field, number)

    return damage


def _with_relocation_in_gpu_code(data: bytes, image: PeImage) -> bytes:
    place = image.named(".nv_fatb")[0].header.start + 0x100
    block = image.table(Directory.BASE_RELOCATION).start
    return _patched(_patched(data, block, place & ~0xFFF), block + 8, 0xA000 | (place & 0xFFF), 2)


_OPTIONAL, _RAW_SIZE, _RAW_AT, _START = 20, 16, 20, 12
_DIRECTORIES = _OPTIONAL + 112
PINNED = None  # nothing is wrong with the file, and no pointer leads to its containers
BAD: dict[str, tuple[Callable[[bytes, PeImage], bytes], str | None]] = {
    "headers cut short": (lambda data, image: data[: image.coff_at + 60], "runs past the end"),
    "sections cut short": (lambda data, _: data[:0x800], "past the end, 0x800"),
    "section past the end": (_with_field(".nv_fatb", _RAW_SIZE, 1 << 30), "past the end"),
    "raw data that overlap": (_with_field(".nvFatBi", _RAW_AT, 0x800), "overlap in the file"),
    "addresses that overlap": (_with_field(".nvFatBi", _START, 0x3000), "overlap in memory"),
    "a relocation in GPU code": (_with_relocation_in_gpu_code, PINNED),
    "pointers without relocations": (
        lambda data, image: _patched(data, image.coff_at + _DIRECTORIES + 40, 0, 8),
        PINNED,
    ),
    "ARM64EC": (lambda data, image: _patched(data, image.coff_at, 0xA641, 2), "PE file for machine 0xa641"),
    "a .NET assembly": (
        lambda data, image: _patched(data, image.coff_at + _DIRECTORIES + 112, 72 << 32 | 0x1000, 8),
        "a .NET assembly, which has offsets of its own",
    ),
    "2000 sections": (lambda data, image: _patched(data, image.coff_at + 2, 2000, 2), "2000 sections: too many"),
    "no file alignment": (
        lambda data, image: _patched(data, image.coff_at + _OPTIONAL + 36, 0),
        "expected a power of two",
    ),
    "sections between sectors": (
        lambda data, image: _patched(data, image.coff_at + _OPTIONAL + 36, 0x100),
        "file alignment 0x100: expected a multiple of 0x200, or the alignment in memory, 0x1000",
    ),
    "an archive behind it": (lambda data, _: data + b"PK", "2 bytes behind the last section"),
}


@pytest.mark.parametrize("case", BAD)
def test_dll_that_is_damaged_or_of_another_kind_stays_and_says_why(case: str) -> None:
    damage, why = BAD[case]
    data = device()
    damaged = damage(data, PeImage.parse(data))
    edited, cut = GpuLibrary.of("demo/kernels.dll", memoryview(damaged)).slimmed(Share(GpuList.asked("sm_90")), Cuts())
    assert edited.is_unchanged
    assert (cut.pinned == 2) if why is PINNED else why in str(cut.why_whole)


def test_packed_dll_is_not_said_to_have_no_gpu_code(tmp_path: Path) -> None:
    data = pe_file(sections=[(b"UPX0", 512)])
    result, after = slimmed(tmp_path, data, Share(GpuList.asked("sm_90")))
    assert after == data
    assert [cut.why_whole for cut in result.libraries] == ["packed by UPX: what it unpacks is not read"]
    assert result.why_untouched
    assert result.why_untouched.startswith("no GPU code in what could be read")


@pytest.mark.parametrize("option", [Cuts(zstd=True)])
def test_recompressing_keeps_every_gpu(tmp_path: Path, option: Cuts) -> None:
    data = device()
    result, after = slimmed(tmp_path, data, Share(), option)
    assert archs(after) == [{"sm_80", "sm_90"}] * 2
    assert len(after) < len(data)
    assert result.libraries[0].is_recompressed
