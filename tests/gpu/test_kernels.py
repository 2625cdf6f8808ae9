"""Kernels of a library that nvcc built run as they did before it was slimmed to the GPU at hand.

What came out on which GPU and driver is in RESULTS.md beside this file.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.factories.cuda import cuda_library, cuda_object
from vbuild.binary.edits import Replacement, Strip
from vbuild.elf.image import ElfImage
from vbuild.elf.surgery.cutting import cut
from vbuild.gpu_code.survey import device_code
from vbuild.hardware.architectures import Arch
from vbuild.hardware.driver import Nvidia
from vbuild.hardware.gpu import GpuList, GpuRequest, Ptx
from vbuild.slimming.library import GpuLibrary
from vbuild.slimming.request import Cuts, Share
from vbuild.slimming.results import LibraryCut

HERE = Path(__file__).parent
SOURCES = (HERE / "scale.cu", HERE / "shift.cu")
MANY = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_75")
LOADINGS = ("LAZY", "EAGER")
CALLS = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL | 2)
values = (ctypes.c_float * 32)(*range(32))
failed = library.scale(values, ctypes.c_float(1.5))
if sys.argv[2] == "both":
    failed |= library.shift(values)
print(failed, bytes(values).hex())
"""


def gpu() -> Arch:
    """The first GPU of this machine."""
    capabilities = Nvidia.here().capabilities
    if not capabilities:
        pytest.skip("no NVIDIA GPU on this machine")
    return Arch(capabilities[0].major * 10 + capabilities[0].minor)


def ran(library: Path, *, loading: str, functions: str = "both") -> str:
    """What the kernels gave, in a process of their own: CUDA's error, and the values."""
    environment = {"CUDA_MODULE_LOADING": loading}
    command = [sys.executable, "-c", CALLS, str(library), functions]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def slimmed(library: Path, device: Arch, cuts: Cuts) -> tuple[Path, LibraryCut]:
    share = Share(GpuList.parse(str(device)))
    rope, account = GpuLibrary.of(library.name, memoryview(library.read_bytes())).slimmed(share, cuts)
    path = library.with_name("slim.so")
    path.write_bytes(bytes(rope))
    return path, account


@pytest.mark.gpu
@pytest.mark.parametrize("loading", LOADINGS)
@pytest.mark.parametrize(
    "cuts",
    [Cuts(), Cuts(zstd=True), Cuts(strip=Strip.UNNEEDED), Cuts(ptx=Ptx.KEEP), Cuts(ptx=Ptx.NONE)],
    ids=["plain", "zstd", "stripped", "newest ptx", "no ptx"],
)
@pytest.mark.parametrize(
    "flags",
    [(), ("-rdc=true",), ("--compress-mode=size",), ("--compress-mode=none",)],
    ids=["plain", "rdc", "size", "raw"],
)
def test_kernels_give_what_they_gave(tmp_path: Path, flags: Sequence[str], cuts: Cuts, loading: str) -> None:
    device = gpu()
    fat = cuda_library(tmp_path, SOURCES, archs=MANY, flags=flags)
    slim, account = slimmed(fat, device, cuts)
    assert account.dropped
    before = ran(fat, loading=loading)
    assert before.startswith("0 ")
    assert ran(slim, loading=loading) == before


@pytest.mark.gpu
@pytest.mark.parametrize("loading", LOADINGS)
def test_a_fatbin_with_nothing_for_the_gpu_does_not_disturb_the_others(tmp_path: Path, loading: str) -> None:
    """The first unit serves the GPU, the second does not: calling the first works before and after."""
    device = gpu()
    other = next(arch for arch in ("sm_120", "sm_100", "sm_90") if not GpuRequest.parse(arch).arch.runs_on(device))
    archs = (MANY, (other, "sm_75"))
    objects = [cuda_object(tmp_path, source, archs=chosen) for source, chosen in zip(SOURCES, archs, strict=True)]
    fat = cuda_library(tmp_path, objects, archs=MANY)
    slim, account = slimmed(fat, device, Cuts())
    assert account.empty == (device.major != 7)
    assert ran(slim, loading=loading, functions="scale") == ran(fat, loading=loading, functions="scale")


@pytest.mark.gpu
@pytest.mark.parametrize("loading", LOADINGS)
def test_code_for_one_gpu_alone_stays_beside_the_plain(tmp_path: Path, loading: str) -> None:
    device = gpu()
    if device.number not in {90, 100, 120}:
        pytest.skip(f"{device} has no code with the suffix a")
    fat = cuda_library(tmp_path, SOURCES, archs=(*MANY, f"{device}a"))
    slim, _ = slimmed(fat, device, Cuts())
    movable = [found for found in device_code(ElfImage.parse(slim.read_bytes())).containers if found.movable]
    assert [[str(entry.arch) for entry in found.entries] for found in movable] == [[str(device), f"{device}a"]] * 2
    assert ran(slim, loading=loading) == ran(fat, loading=loading)


@pytest.mark.gpu
@pytest.mark.parametrize("order", ["{0} {0}a", "{0}a {0}"], ids=["plain first", "plain last"])
@pytest.mark.parametrize("loading", LOADINGS)
def test_a_driver_takes_code_for_the_gpu_alone_before_the_plain(tmp_path: Path, loading: str, order: str) -> None:
    """If this passes on a Hopper GPU, plain code need not stay beside it: of sgl-kernel 0.3.21 that is 116 MB."""
    device = gpu()
    if device.number not in {90, 100, 120}:
        pytest.skip(f"{device} has no code with the suffix a")
    library = cuda_library(tmp_path, [HERE / "which.cu"], archs=order.format(device).split())
    (container,) = [found for found in device_code(ElfImage.parse(library.read_bytes())).containers if found.wrappers]
    assert {str(entry.arch) for entry in container.entries} == {str(device), f"{device}a"}
    call = "import ctypes, sys; value = ctypes.c_float(); failed = ctypes.CDLL(sys.argv[1]).which(ctypes.byref(value))"
    command = [sys.executable, "-c", f"{call}; print(failed, value.value)", str(library)]
    environment = {"CUDA_MODULE_LOADING": loading}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "2.0"]


@pytest.mark.gpu
@pytest.mark.parametrize("loading", LOADINGS)
def test_prelinked_fatbins_are_not_needed_beside_the_linked_one(tmp_path: Path, loading: str) -> None:
    """Relocatable code lies in the library twice: as it was compiled, and linked for the device."""
    device = gpu()
    objects = [cuda_object(tmp_path, source, archs=MANY, flags=("-rdc=true",)) for source in SOURCES]
    fat = cuda_library(tmp_path, objects, archs=MANY, flags=("-rdc=true",))
    image = ElfImage.parse(fat.read_bytes())
    prelinked = [found for found in device_code(image).containers if found.section == "__nv_relfatbin"]
    assert prelinked
    emptied = [Replacement(found.span, found.keeping(()), found.wrappers) for found in prelinked if found.movable]
    slim = tmp_path / "slim.so"
    slim.write_bytes(bytes(cut(image, emptied).edited))
    assert str(device) in {str(entry.arch) for found in device_code(image).containers for entry in found.entries}
    assert ran(slim, loading=loading) == ran(fat, loading=loading)
