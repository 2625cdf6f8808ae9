"""How much of a library serves a GPU, and which driver that takes: one value, which all commands print."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.factories.elf import shared_object
from tests.factories.fatbins import device_library, entry, fatbin
from vbuild.elf.image import ElfImage
from vbuild.errors import BinaryError
from vbuild.gpu_code.coverage import Coverage, Fatbin, Runs
from vbuild.gpu_code.fatbin import FatbinFlag, FatbinKind
from vbuild.gpu_code.model import offered
from vbuild.gpu_code.survey import device_code
from vbuild.gpu_code.toolkit_marks import cubin_toolkit, cuda_named, cudart_driver
from vbuild.hardware.architectures import Arch
from vbuild.hardware.driver import ANY_DRIVER, Dotted

SAMPLES = Path(__file__).parents[1] / "samples"
CUBINS = {version: (SAMPLES / "cubins" / f"cuda-{version}.cubin").read_bytes() for version in ("11.7", "12.0", "12.8")}
ARCH_80, ARCH_90 = Arch(80), Arch(90)
PTX, SPECIFIC, ZSTD = FatbinKind.PTX, FatbinFlag.ARCH_SPECIFIC, FatbinFlag.ZSTD


def covered(device: Arch, *containers: bytes, cudart: Dotted | None = ANY_DRIVER) -> Coverage:
    code = device_code(ElfImage.parse(memoryview(device_library(*containers))))
    return Coverage.by(map(Fatbin.of, offered(code.containers)), device, cudart=cudart)


@pytest.mark.parametrize(
    ("containers", "runs", "share"),
    [
        ([fatbin(entry(arch=90))] * 2, Runs.NATIVELY, "all of its GPU code"),
        ([fatbin(entry(arch=90)), fatbin(entry(PTX, 80))], Runs.PARTLY_JIT, "all of its GPU code, 1 fatbin by JIT"),
        ([fatbin(entry(PTX, 80))] * 2, Runs.JIT, "all of its GPU code, by JIT"),
        ([fatbin(entry(arch=90)), fatbin(entry(arch=80))], Runs.IN_PART, "1 of 2 fatbins"),
        (
            [fatbin(entry(arch=90, code=bytes(10**6))), fatbin(entry(arch=80, code=bytes(3 * 10**6)))],
            Runs.IN_PART,
            "1 of 2 fatbins (1.0 of 4.0 MB)",
        ),
        (
            [fatbin(entry(arch=90)), fatbin(entry(arch=100, flags=SPECIFIC))],
            Runs.NATIVELY,
            "all of its GPU code but 1 fatbin for other architectures alone",
        ),
        # with code for every GPU of 8.0 beside it, host code does not choose alone
        (
            [fatbin(entry(arch=90)), fatbin(entry(arch=100, flags=SPECIFIC), entry(arch=80))],
            Runs.IN_PART,
            "1 of 2 fatbins",
        ),
        ([fatbin(entry(arch=100, flags=SPECIFIC))], Runs.FOR_OTHERS, "none"),
        ([fatbin(entry(arch=80))], Runs.NO, "none"),
        # what other libraries read counts for nothing
        ([fatbin(entry(FatbinKind.LTO_IR, 90))], None, "none"),
    ],
)
def test_one_value_says_how_much_serves_a_gpu(containers: Sequence[bytes], runs: Runs | None, share: str) -> None:
    coverage = covered(ARCH_90, *containers)
    assert (coverage.runs, str(coverage)) == (runs, share)
    assert coverage.total.size == sum(map(len, containers)) * bool(runs)
    assert Coverage.of_data(coverage.data()) == coverage


def test_the_entry_that_slimming_left_serves_no_gpu() -> None:
    (container,) = device_code(ElfImage.parse(memoryview(device_library(fatbin(entry(arch=90)))))).containers
    filler = Fatbin.of(container)
    for is_filler, runs in ((False, Runs.NATIVELY), (True, Runs.NO)):
        assert Coverage.by([Fatbin(filler.offers, filler.drivers, 9, is_filler=is_filler)], ARCH_90).runs is runs


def cubin(version: str, arch: int = 80, flags: int = 0) -> bytes:
    return entry(arch=arch, code=CUBINS[version], flags=flags, minor=7)


@pytest.mark.parametrize(
    ("container", "device", "driver"),
    [
        (fatbin(cubin("11.7")), ARCH_80, "11.0"),
        (fatbin(cubin("12.8")), ARCH_80, "12.0"),
        (fatbin(cubin("12.0", flags=ZSTD)), ARCH_80, "12.4"),
        # PTX that has to be compiled, by its own version; that of the toolkit's major version is for machine code
        (fatbin(cubin("12.8"), entry(PTX, 80, major=8, minor=7)), ARCH_80, "12.0"),
        (fatbin(cubin("12.8"), entry(PTX, 80, major=8, minor=7)), ARCH_90, "12.8"),
        (fatbin(entry(PTX, 80, major=9, minor=0, flags=ZSTD)), ARCH_90, "13.0"),
        (fatbin(entry(PTX, 80, major=99, minor=0)), ARCH_90, None),
        # what is for other GPUs needs no driver here
        (fatbin(cubin("11.7"), cubin("11.7", 90, ZSTD)), ARCH_80, "11.0"),
        (fatbin(entry(arch=80, code=bytes(128))), ARCH_80, None),
        # no toolkit of CUDA 11 knows it, and those of 13 write another header
        (fatbin(entry(arch=90, code=bytes(128), flags=SPECIFIC, minor=7)), ARCH_90, "12.0"),
    ],
)
def test_the_driver_is_that_of_what_it_takes(container: bytes, device: Arch, driver: str | None) -> None:
    assert covered(device, container).driver == (driver and Dotted.parse(driver))


@pytest.mark.parametrize("sample", sorted((SAMPLES / "fatbins").glob("*.so")), ids=lambda path: path.stem)
def test_what_nvcc_made_is_of_the_toolkit_that_ptxas_notes(sample: Path) -> None:
    """The cubins of CUDA 13 say it in a note of text, too, which binutils' strings shows unless they are compressed."""
    data = sample.read_bytes()
    code = device_code(ElfImage.parse(memoryview(data)))
    versions = {e.version for container in code.containers for e in container.entries if e.kind == "cubin"}
    assert versions == {Dotted(13, 5)}
    noted = subprocess.run(["strings", sample], capture_output=True, text=True, check=True).stdout
    assert "release 13.5" in noted or sample.stem in {"size", "debug"}


@pytest.mark.parametrize("cut", [3, 63, 200])
def test_a_cubin_that_is_cut_short_tells_nothing(cut: int) -> None:
    with pytest.raises(BinaryError):
        cubin_toolkit(CUBINS["12.8"][:cut])


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("libcudart.so.12", "12.0"),
        ("libcudart-c3a75b33.so.12.8.90", "12.8"),
        ("libcublasLt.so.11.0", "11.0"),
        ("cudart64_110.dll", "11.0"),
        ("nvrtc64_120_0.dll", "12.0"),
        ("libcudart.so", None),
        ("libcufft.so.11", None),
    ],
)
def test_names_of_libraries_tell_their_cuda(name: str, version: str | None) -> None:
    assert cuda_named([name]) == ({Dotted.parse(version)} if version else set())


CUDART = """
const char *name(void) { return "cudaErrorCudartUnloading"; }
int version(int *where) { *where = %d; return 0; }
int other(int *where) { *where = 12; return 0; }
"""


@pytest.mark.parametrize(
    ("source", "driver"),
    [
        (CUDART % 12080, Dotted(12, 0)),
        (CUDART % 10020, Dotted(10, 2)),
        (CUDART % 12345, None),
        ("int version(int *where) { *where = 12080; return 0; }", ANY_DRIVER),
    ],
)
def test_a_static_cudart_is_known_by_the_version_that_it_gives(source: str, driver: Dotted | None) -> None:
    library = shared_object(source, "-O2", "-s", "-fcf-protection=none")
    assert cudart_driver(ElfImage.parse(memoryview(library))) == driver
