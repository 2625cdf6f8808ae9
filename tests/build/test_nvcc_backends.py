"""Real build backends, each with a project that hard-codes its list, through the wrapper of nvcc."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.factories.nvcc import COMPILERS, GPU, Build, codes
from tests.factories.projects import KERNEL, tree
from vbuild.build.agreement import agreement
from vbuild.hardware.gpu import GpuList
from vbuild.recipe.compiling import Archs
from vbuild.toolchain.nvcc_commands import Codegen

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(COMPILERS.machine != "x86_64", reason="levels are those of x86-64"),
]

_PROJECT = '[project]\nname = "demo"\nversion = "1.0"\n'

# as projects do that know CUDA_HOME, and nothing of CMake or torch
_SETUP = """
import os, subprocess
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

class Build(build_ext):
    def build_extension(self, extension):
        nvcc = os.path.join(os.environ["CUDA_HOME"], "bin", "nvcc")
        lists = ["-gencode", "arch=compute_75,code=sm_75", "-gencode", "arch=compute_80,code=sm_80"]
        subprocess.check_call(
            [nvcc, "-c", "a.cu", "-o", "a.o", "-O2", "--compiler-options", "-fPIC,-march=native", *lists])
        super().build_extension(extension)

setup(
    name="demo", version="1.0", cmdclass={"build_ext": Build},
    ext_modules=[Extension("demo", ["module.c"], extra_objects=["a.o"])],
)
"""
_CMAKE = """
cmake_minimum_required(VERSION 3.21)
project(demo LANGUAGES CUDA)
set(CMAKE_CUDA_ARCHITECTURES 75-real 80-real)
add_library(demo MODULE a.cu)
target_compile_options(demo PRIVATE -O2 -march=native)
install(TARGETS demo DESTINATION .)
"""
_MESON = """
project('demo', 'cpp', 'cuda')
py = import('python').find_installation(pure: false)
py.extension_module('demo', 'a.cu', install: true, cuda_args: [
  '-gencode=arch=compute_75,code=sm_75', '-gencode=arch=compute_80,code=sm_80', '-O2', '-Xcompiler=-march=native'])
"""


def _system(requires: str, backend: str) -> str:
    return f'[build-system]\nrequires = ["{requires}"]\nbuild-backend = "{backend}"\n'


PROJECTS = {
    "setuptools": {
        "pyproject.toml": _system("setuptools", "setuptools.build_meta"),
        "setup.py": _SETUP,
        "module.c": "int demo;\n",
    },
    "scikit-build-core": {
        "pyproject.toml": _system("scikit-build-core", "scikit_build_core.build") + _PROJECT,
        "CMakeLists.txt": _CMAKE,
    },
    "meson-python": {"pyproject.toml": _system("meson-python", "mesonpy") + _PROJECT, "meson.build": _MESON},
}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the backends in it."""
    folder = tmp_path_factory.mktemp("backends")
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "-q", "--python", sys.executable, str(folder / "venv")], check=True)
    found = folder / "venv" / "bin" / "python"
    wanted = ["setuptools", "scikit-build-core", "meson-python", "cmake", "ninja"]
    subprocess.run([*uv, "pip", "install", "-q", "--python", str(found), *wanted], check=True)
    return found


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", [Archs.INTERSECT, Archs.REPLACE])
@pytest.mark.parametrize("name", PROJECTS)
def test_a_hard_coded_list_is_overridden_in_every_backend(name: str, mode: Archs, python: Path, tmp_path: Path) -> None:
    # the list lacks sm_90, which stops a build that keeps to it
    request = "80,90" if mode is Archs.REPLACE else "80"
    build = Build(tmp_path, request, archs=mode)
    tree(build.source, {**PROJECTS[name], "a.cu": GPU + KERNEL})
    environment = {**build.environment, "PATH": f"{build.environment['PATH']}:{python.parent}"}
    command = [sys.executable, "-m", "uv", "build", "--wheel", "--no-build-isolation", "--python", str(python)]
    ran = build.call(*command, "-o", str(tmp_path / "out"), environment=environment)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (wheel,) = (tmp_path / "out").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (member,) = (found for found in archive.namelist() if ".so" in found)
        library = Path(archive.extract(member, tmp_path))
    expected = {"sm_80", "sm_90"} if mode is Archs.REPLACE else {"sm_80"}
    fatbins = codes(library)
    # Meson links with nvcc, which adds a fatbin
    assert fatbins == [expected] * (2 if name == "meson-python" else 1)
    disassembly = subprocess.check_output(["objdump", "-d", library], text=True)
    assert ("ymm" in disassembly, "zmm" in disassembly) == (True, False)
    offers = tuple(Codegen.of(code).offer for code in expected)
    judged = agreement(build.wrappers.commands(), {member: {offers: 1}}, GpuList.parse(request), mode=mode)
    assert not judged.shortfalls
