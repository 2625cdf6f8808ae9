"""Extensions that nvcc built, slimmed: their host code does what it did, and CUDA's runtime finds their GPU code."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.factories.cuda import nvcc
from tests.factories.kept_code import kept_digests
from tests.factories.loaded_libraries import in_memory
from tests.factories.published_wheels import PublishedWheels
from vbuild.binary.edits import Strip
from vbuild.hardware.gpu import GpuList
from vbuild.slimming.library import GpuLibrary
from vbuild.slimming.request import Cuts, Share

SLOW = pytest.mark.slow
PACKAGES = ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-runtime", "nvidia-cuda-cccl")
ARCHS = ("sm_80", "sm_90", "sm_120", "compute_80")
KERNELS = """
#include <cuda_runtime.h>
#include <cmath>
template <int N> __global__ void KERNEL(float *values) {
    float value = values[threadIdx.x];
    #pragma unroll
    for (int step = 0; step < N; step++) value = sinf(value) * step + sqrtf(value + N);
    values[threadIdx.x] = value;
}
// CUDA's error: 0 only where there is a GPU
extern "C" int launched_KERNEL(float *values) {
    float *device = nullptr;
    int failed = cudaMalloc(&device, 32 * sizeof(float));
    cudaMemcpy(device, values, 32 * sizeof(float), cudaMemcpyHostToDevice);
    KERNEL<5><<<1, 32>>>(device);
    KERNEL<9><<<1, 32>>>(device);
    KERNEL<14><<<1, 32>>>(device);
    cudaMemcpy(values, device, 32 * sizeof(float), cudaMemcpyDeviceToHost);
    return failed | static_cast<int>(cudaDeviceSynchronize());
}
"""
HOST = """
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>
static std::vector<int> numbers(100);
static int begun = (std::iota(numbers.begin(), numbers.end(), 1), 1);
extern "C" int host(const char *text) {
    try {
        return std::accumulate(numbers.begin(), numbers.end(), begun) + std::stoi(text);
    } catch (const std::invalid_argument &) {
        return -1;
    }
}
"""
CALLS = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1], mode=2)
print(library.host(b"7"), library.host(b"seven"))
for name in "first", "second":
    values = (ctypes.c_float * 32)(*range(32))
    print(library["launched_" + name](values), bytes(values).hex())
"""


def built(folder: Path, compiler: Path, flags: Sequence[str]) -> Path:
    """An extension of two translation units with kernels, *flags* for both, and relocatable ones linked apart."""
    sources = {"first.cu": KERNELS.replace("KERNEL", "first"), "second.cu": KERNELS.replace("KERNEL", "second")}
    for name, text in {**sources, "host.cu": HOST}.items():
        (folder / name).write_text(text)
    codes = [f"-gencode=arch={arch.replace('sm_', 'compute_')},code={arch}" for arch in ARCHS]
    base = [str(compiler), "-Xcompiler", "-fPIC", "-O2", "-t2", *codes, f"-L{compiler.parents[1] / 'lib'}"]
    commands = [[*base, *flags, "-c", *sources, "host.cu"]]
    objects = ["first.o", "second.o", "host.o"]
    if "-rdc=true" in flags:
        commands.append([*base, "-dlink", *objects, "-o", "linked.o"])
        objects.append("linked.o")
    for command in (*commands, [*base, "-shared", *objects, "-o", "fat.so"]):
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / "fat.so"


def said(library: Path) -> list[str]:
    run = subprocess.run([sys.executable, "-c", CALLS, library], check=True, capture_output=True, text=True)
    return run.stdout.splitlines()


def check(fat: Path) -> None:
    """Slim *fat* in every way: what it does and what its wrappers lead to are as they were."""
    data = fat.read_bytes()
    before = said(fat)
    assert before[0] == "5058 -1"
    for gpus in ("80", "90", "80,120"):
        for cuts in (Cuts(), Cuts(strip=Strip.UNNEEDED), Cuts(zstd=True)):
            rope, account = GpuLibrary.of(fat.name, memoryview(data)).slimmed(Share(GpuList.parse(gpus)), cuts)
            assert account.after < account.before
            slim = fat.with_name("slim.so")
            slim.write_bytes(bytes(rope))
            assert said(slim) == before
            found, expected = in_memory(slim), kept_digests(data, gpus)
            assert {place: len(entries) for place, entries in found.items()} == {
                place: len(entries) for place, entries in expected.items()
            }
            assert found == expected or cuts.zstd


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param([], id="plain"),
        pytest.param(["-rdc=true"], id="relocatable", marks=SLOW),
        pytest.param(["-G"], id="debug", marks=SLOW),
        *(
            pytest.param([f"--compress-mode={mode}"], id=mode, marks=SLOW)
            for mode in ("none", "speed", "balance", "size")
        ),
    ],
)
def test_an_extension_does_what_it_did(flags: list[str], tmp_path: Path) -> None:
    check(built(tmp_path, nvcc(), flags))


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], ["-rdc=true"]], ids=["plain", "relocatable"])
def test_so_does_one_of_the_newest_compiler(
    flags: list[str], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    compiler = PublishedWheels(tmp_path_factory).tool("nvcc", *PACKAGES)
    check(built(tmp_path, compiler, flags))
