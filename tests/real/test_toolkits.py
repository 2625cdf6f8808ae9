"""Toolkits of the package index: laid out, and used as an installed one is by nvcc's users."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.factories.tools import needs
from vbuild.elf.image import ElfImage
from vbuild.errors import BuildError
from vbuild.files.cache import remove
from vbuild.gpu_code.survey import device_code
from vbuild.hardware.driver import Dotted
from vbuild.index_client.configuration import Indexes
from vbuild.recipe.compiling import ToolkitSpec
from vbuild.toolchain.toolkit import Installed, Toolkit, releases
from vbuild.toolchain.toolkit_provision import install, packaged_toolkit, path

pytestmark = [pytest.mark.nightly, pytest.mark.network, needs("gcc", "g++")]

FIRST, NEWEST = Dotted(13, 0), max(releases())
MIDDLE = Dotted(13, 2)  # the one whose cccl is in a folder of another name
CODES = ("-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_90,code=sm_90")
KERNEL = """
#include <cub/version.cuh>
#include <cuda/std/array>
#include <thrust/version.h>
__global__ void scale(float *x, float a) { x[threadIdx.x] *= a; }
extern "C" void run(float *x) { scale<<<1, 32>>>(x, 2.0f); }
"""
LISTS = """
cmake_minimum_required(VERSION 3.20)
project(demo LANGUAGES CXX CUDA)
find_package(CUDAToolkit REQUIRED)
find_package(CCCL CONFIG REQUIRED)
add_library(demo SHARED kernel.cu)
target_link_libraries(demo PRIVATE CUDA::cudart CUDA::cuda_driver CCCL::CCCL)
file(WRITE ${CMAKE_BINARY_DIR}/found.txt "${CUDAToolkit_VERSION_MAJOR}.${CUDAToolkit_VERSION_MINOR} ${CUDA_CUDART}")
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("toolkits")


def _toolkit(store: Path, version: Dotted, *libraries: str) -> Toolkit:
    return packaged_toolkit(ToolkitSpec(version, libraries=libraries), store=store)


def _compiled(toolkit: Toolkit, folder: Path, text: str, *flags: str) -> Path:
    (folder / "kernel.cu").write_text(text)
    command = [str(toolkit.nvcc), "-shared", "-Xcompiler=-fPIC", *CODES, "kernel.cu", *flags, "-o", "kernel.so"]
    # nothing but the toolkit and the system's compiler
    subprocess.run(command, cwd=folder, env={"PATH": "/usr/bin:/bin"}, check=True)
    return folder / "kernel.so"


def _archs(library: Path) -> set[str]:
    code = device_code(ElfImage.parse(library.read_bytes()))
    return {str(entry.arch) for container in code.containers for entry in container.entries}


@pytest.mark.parametrize("version", [FIRST, MIDDLE, NEWEST], ids=str)
def test_nvcc_of_the_index_compiles_for_two_architectures(store: Path, tmp_path: Path, version: Dotted) -> None:
    toolkit = _toolkit(store, version)
    assert Installed.at(toolkit.root) == Installed(toolkit.root, version)
    assert Installed(toolkit.root, version).lacks(["cccl", "cudart", "nvvm"]) == ()
    assert _archs(_compiled(toolkit, tmp_path, KERNEL)) == {"sm_80", "sm_90"}
    assert (toolkit.root / "licenses/nvidia-cuda-nvcc/License.txt").is_file()


@pytest.mark.parametrize("version", [FIRST, MIDDLE, NEWEST], ids=str)
@needs("cmake")
def test_cmake_finds_runtime_driver_and_cccl(store: Path, tmp_path: Path, version: Dotted) -> None:
    root = _toolkit(store, version).root
    (tmp_path / "CMakeLists.txt").write_text(LISTS)
    (tmp_path / "kernel.cu").write_text(KERNEL)
    environment = {**os.environ, "CUDA_HOME": str(root), "CUDACXX": str(root / "bin/nvcc"), "CUDAARCHS": "80;90"}
    environment["PATH"] = f"{root}/bin:{os.environ['PATH']}"
    for command in (["cmake", "-S", ".", "-B", "build"], ["cmake", "--build", "build"]):
        subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert (tmp_path / "build/found.txt").read_text() == f"{version} {root}/lib/libcudart.so"
    assert {"sm_80", "sm_90"} <= _archs(tmp_path / "build/libdemo.so")


@pytest.mark.slow
def test_libraries_of_and_beside_the_toolkit_link(store: Path, tmp_path: Path) -> None:
    toolkit = _toolkit(store, FIRST, "cublas", "nccl==2.28.9")
    source = '#include <cublas_v2.h>\n#include <nccl.h>\nextern "C" int run() {\n'
    source += "cublasHandle_t h; ncclUniqueId i; return cublasCreate(&h) + ncclGetUniqueId(&i); }"
    library = _compiled(toolkit, tmp_path, source, "-lcublas", "-lnccl", "-Xlinker=-z,defs")
    needed = subprocess.run(["ldd", library], capture_output=True, text=True, check=False).stdout
    assert "libcublas.so.13" in needed
    assert "libnccl.so.2" in needed
    assert (toolkit.root / "licenses/nvidia-nccl-cu13/License.txt").is_file()
    # asked once: the second time no index is needed
    assert packaged_toolkit(
        ToolkitSpec(FIRST, libraries=("cublas", "nccl==2.28.9")), store=store, indexes=Indexes(no_index=True)
    ) == Toolkit(toolkit.version, toolkit.root, toolkit.identity, toolkit.pins)


def test_install_and_path_are_one_life(tmp_path: Path) -> None:
    steps: list[str] = []
    made = install("13.0", store=tmp_path, on_progress=steps.append)
    assert made.toolkit.is_new
    assert "fetching nvidia-cuda-nvcc==13.0.88" in steps
    assert list(made.lines())[1].startswith("CUDA 13.0 comes under NVIDIA's licence agreement")
    assert path("13.0", store=tmp_path).toolkit.root == made.toolkit.root
    remove(made.toolkit.root)
    with pytest.raises(BuildError, match=r"^CUDA 13\.0: not kept; run first: vbuild toolkit install 13\.0$"):
        path("13.0", store=tmp_path)
