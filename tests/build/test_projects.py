"""The extension projects of tests/projects, whose own lists of architectures give way to the recipe's.

Each is built with the toolkit of the package index; what is in the wheels is asked of cuobjdump.
"""

import os
import re
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from vbuild.hardware.driver import Nvidia
from vbuild.release.cache import BuildCache
from vbuild.release.matrix import MatrixRequest, matrix
from vbuild.release.model import Product, ReleaseResult

PROJECTS = Path(__file__).parents[1] / "projects"
TOOLKIT = '[[matrix.cuda]]\ntoolkit = "13.0"\n'
TEST = "[test]\ncommand = 'python -c \"import {name}; {name}.selftest\"'\n"

pytestmark = [
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="-march=native and its levels are those of x86-64"),
]


@dataclass(frozen=True, slots=True)
class Project:
    """A folder of tests/projects, the name of its package, and what its selftest gives on a GPU."""

    folder: str
    name: str
    answer: float

    def __str__(self) -> str:
        return self.folder


SETUPTOOLS = Project("setuptools-cuda", "tally", 500500)
SCIKIT_BUILD_CORE = Project("scikit-build-core-cuda", "collatz", 59542)
MESON_PYTHON = Project("meson-python-cuda", "histo", 49500)
ALL = (SETUPTOOLS, SCIKIT_BUILD_CORE, MESON_PYTHON)


def built(project: Project, folder: Path, text: str) -> ReleaseResult:
    """The release of *project* in *folder* that a recipe with *text* gives, of builds of its own, without failures."""
    release = tried(project, folder, text)
    assert not release.failures
    return release


def tried(project: Project, folder: Path, text: str) -> ReleaseResult:
    """The same, with failures if there are some."""
    recipe = folder / f"{project.name}.toml"
    source = f'[source]\npath = "{PROJECTS / project.folder}"\n'
    recipe.write_text(f'name = "{project.name}"\n{source}{text}{TEST.format(name=project.name)}')
    return matrix(recipe, folder / "dist", MatrixRequest(jobs=2), store=BuildCache(folder / "store"))


@pytest.fixture(scope="module")
def cuobjdump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cuobjdump")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder))
    subprocess.run([*pip, "nvidia-cuda-cuobjdump"], check=True, capture_output=True)
    return next(folder.rglob("bin/cuobjdump"))


def codes(product: Product, folder: Path, cuobjdump: Path) -> set[str]:
    """What code that can run cuobjdump finds in the one library of *product*, as ``sm_90.cubin``."""
    with zipfile.ZipFile(product.wheel) as archive:
        [library] = [name for name in archive.namelist() if name.endswith(".so")]
        path = archive.extract(library, folder / str(product.label))
    # -all: relocatable code as well
    command = [str(cuobjdump), "-all", "-lelf", "-lptx", path]
    text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return set(re.findall(r"sm_\w+\.(?:cubin|ptx)$", text, re.MULTILINE))


@pytest.mark.parametrize("project", ALL, ids=str)
def test_of_a_hard_coded_list_only_what_is_asked_for_is_compiled(
    project: Project, tmp_path: Path, cuobjdump: Path
) -> None:
    release = built(project, tmp_path, f'{TOOLKIT}gpus = {{ sm80 = "80" }}\n')
    hopper = {"sm_90a.cubin"} if project is SETUPTOOLS else set()  # its file is for no other
    for product in release.products:
        assert codes(product, tmp_path, cuobjdump) == {"sm_80.cubin"} | hopper, product.label


@pytest.mark.parametrize("project", ALL, ids=str)
def test_a_hard_coded_list_is_replaced_on_request(project: Project, tmp_path: Path, cuobjdump: Path) -> None:
    groups = f'{TOOLKIT}gpus = {{ sm86 = "86", sm120 = "120+ptx" }}\n'
    rules = '[build.cuda]\narchs = "replace"\n'
    files = 'files = { "hopper.cu" = "keep" }\n' if project is SETUPTOOLS else ""
    release = built(project, tmp_path, groups + rules + files)
    found = {product.label: codes(product, tmp_path, cuobjdump) for product in release.products}
    hopper = {"sm_90a.cubin"} if project is SETUPTOOLS else set()
    assert found["sm86"] == {"sm_86.cubin"} | hopper
    assert found["sm120"] == {"sm_120.cubin", "sm_120.ptx"} | hopper


def test_a_file_for_one_architecture_alone_keeps_it(tmp_path: Path, cuobjdump: Path) -> None:
    release = built(SETUPTOOLS, tmp_path, f'{TOOLKIT}gpus = {{ sm80 = "80", sm90 = "90,90a" }}\n')
    found = {product.label: codes(product, tmp_path, cuobjdump) for product in release.products}
    assert found == {
        None: {"sm_80.cubin", "sm_90.cubin", "sm_90a.cubin"},
        "sm80": {"sm_80.cubin", "sm_90a.cubin"},  # the one entry of a fatbin that is for none of its GPUs
        "sm90": {"sm_90.cubin", "sm_90a.cubin"},
    }


def test_the_host_code_of_cuda_files_gets_the_cpu_level(tmp_path: Path) -> None:
    levels = '[matrix]\ncpu = ["x86-64", "x86-64-v3"]\n'
    release = built(SETUPTOOLS, tmp_path, f'{levels}{TOOLKIT}gpus = {{ sm80 = "80" }}\n')
    widest = {}
    for product in release.products:
        with zipfile.ZipFile(product.wheel) as archive:
            [library] = [name for name in archive.namelist() if name.endswith(".so")]
            path = archive.extract(library, tmp_path / str(product.label))
        text = subprocess.run(["objdump", "-d", path], capture_output=True, text=True, check=True).stdout
        start = text.index("<tally_host_norm>:")
        widest[product.label] = "%ymm" in text[start : text.index("\n\n", start)]
    assert widest == {None: False, "sm80": False, "x86_64_v3_sm80": True}


@pytest.mark.gpu
@pytest.mark.parametrize("project", ALL, ids=str)
def test_the_variant_for_the_gpu_at_hand_runs_its_kernels(project: Project, tmp_path: Path) -> None:
    capabilities = Nvidia.here().capabilities
    if not capabilities:
        pytest.skip("no NVIDIA GPU on this machine")
    gpu = f"{capabilities[0].major}{capabilities[0].minor}"
    rules = '[build.cuda]\narchs = "replace"\nfiles = { "hopper.cu" = "keep" }\n'
    release = built(project, tmp_path, f'{TOOLKIT}gpus = {{ here = "{gpu}" }}\n{rules}')
    [variant] = [product for product in release.products if product.label]
    with zipfile.ZipFile(variant.wheel) as archive:
        archive.extractall(tmp_path / "site")
    script = f"import {project.name}; print({project.name}.selftest(), set({project.name}.archs().values()))"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    ran = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert float(ran.split()[0]) == project.answer
    assert gpu in ran


def test_groups_that_get_the_same_code_are_refused(tmp_path: Path) -> None:
    release = tried(MESON_PYTHON, tmp_path, f'{TOOLKIT}gpus = {{ sm80 = "80", sm86 = "86" }}\n')
    assert not release.products
    for failure in release.failures:
        assert "would be the same wheel, with code for sm_80: the same code serves both; " in str(failure.error)
