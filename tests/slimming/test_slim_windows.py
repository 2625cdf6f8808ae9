"""Wheels for Windows: their DLLs are cut, signed ones only if that is said, and their variants claim what they have."""

import zipfile
from pathlib import Path

import pytest

from tests.factories.fatbins import cubin, entry, fatbin
from tests.factories.wheels import wheel
from tests.factories.windows import device_dll, needs_mingw, signed
from vbuild.gpu_code.survey import device_code
from vbuild.hardware.gpu import GpuList
from vbuild.pe.image import PeImage
from vbuild.slimming.request import Cuts, Share
from vbuild.slimming.results import Slimmed
from vbuild.slimming.slim import slim
from vbuild.variants.document import Document

pytestmark = needs_mingw

NAME = "demo-1.0-py3-none-win_amd64.whl"


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


def test_variant_of_a_windows_wheel_claims_its_gpus(tmp_path: Path) -> None:
    result, after = slimmed(tmp_path, device(), Share(GpuList.asked("sm_80"), "sm80"))
    assert result.name == "demo-1.0-py3-none-win_amd64-sm80.whl"
    assert "nvidia :: sm_arch :: 80_real" in map(str, result.properties)
    with zipfile.ZipFile(tmp_path / "out" / result.name) as archive:
        assert Document.of_wheel("sm80", archive.read("demo-1.0.dist-info/variant.json"))
    assert archs(after) == [{"sm_80"}] * 2


def test_signed_dll_is_left_and_named_unless_its_signature_may_go(tmp_path: Path) -> None:
    data = signed(device())
    result, after = slimmed(tmp_path / "left", data, Share(GpuList.asked("sm_90")))
    assert after == data
    assert result.why_untouched == "what could go of it is left, for the reasons below"
    (cut,) = result.libraries
    assert cut.why_whole
    assert "--drop-signature" in cut.why_whole
    _, after = slimmed(tmp_path / "cut", data, Share(GpuList.asked("sm_90")), Cuts(drop_signature=True))
    assert archs(after) == [{"sm_90"}] * 2


@pytest.mark.parametrize("option", [Cuts(zstd=True)])
def test_recompressing_keeps_every_gpu(tmp_path: Path, option: Cuts) -> None:
    data = device()
    result, after = slimmed(tmp_path, data, Share(), option)
    assert archs(after) == [{"sm_80", "sm_90"}] * 2
    assert len(after) < len(data)
    assert result.libraries[0].is_recompressed
