"""Build requirements that have CUDA code and no wheel: compiled with the toolkit, and for the GPUs, of the project."""

import os
import shutil
import zipfile
from pathlib import Path

import pytest

from tests.factories.cuobjdump import listed_code
from tests.factories.kernels import CUDA, TWO, with_recipe
from tests.factories.projects import tree
from tests.factories.published_wheels import PublishedWheels
from tests.factories.sources import sdist
from tests.factories.tools import needs
from tests.factories.workdir import Workdir

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="builds for x86-64"),
]

_SYSTEM = '[build-system]\nrequires = ["setuptools"{}]\nbuild-backend = "setuptools.build_meta"\n'

# a static library in a package, compiled by an nvcc and for a list of its own
_REQUIRED = {
    "PKG-INFO": "Metadata-Version: 2.1\nName: scaling\nVersion: 1.0\n",
    "pyproject.toml": _SYSTEM.format(""),
    "scaling/__init__.py": "from pathlib import Path\nHOME = Path(__file__).parent\n",
    "scaling.cu": CUDA,
    "setup.py": """
import os, subprocess
from setuptools import setup
from setuptools.command.build_py import build_py

class Build(build_py):
    def run(self):
        nvcc = os.path.join(os.environ["CUDA_HOME"], "bin", "nvcc")
        if not os.path.exists("scaling/scaling.o"):
            subprocess.check_call(
                [nvcc, "-c", "scaling.cu", "-o", "scaling/scaling.o", "-Xcompiler=-fPIC", "-arch=sm_75"])
        super().run()

setup(
    name="scaling", version="1.0", packages=["scaling"], package_data={"scaling": ["*.o"]},
    cmdclass={"build_py": Build})
""",
}
_PROJECT = {
    "pyproject.toml": _SYSTEM.format(', "scaling"'),
    "setup.py": """
import os, scaling
from setuptools import Extension, setup

module = Extension(
    "demo", ["module.c"], extra_objects=[str(scaling.HOME / "scaling.o")],
    library_dirs=[os.environ["CUDA_HOME"] + "/lib64"],
    libraries=["cudart_static", "stdc++", "rt", "pthread", "dl"])
setup(name="demo", version="1.0", ext_modules=[module])
""",
    "module.c": """
#include <Python.h>
void run(float *x);
static float a[16];
static PyObject *go(PyObject *self, PyObject *none) { run(a); Py_RETURN_NONE; }
static PyMethodDef methods[] = {{"go", go, METH_NOARGS, 0}, {0, 0, 0, 0}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "demo", 0, -1, methods, 0, 0, 0, 0};
PyMODINIT_FUNC PyInit_demo(void) { return PyModule_Create(&definition); }
""",
}


@pytest.fixture(scope="module")
def cuobjdump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return PublishedWheels(tmp_path_factory).tool("cuobjdump", "nvidia-cuda-cuobjdump")


@pytest.mark.nightly
@needs("gcc", "g++")
def test_a_requirement_without_a_wheel_is_compiled_for_the_gpus_of_the_project(cuobjdump: Path, tmp_path: Path) -> None:
    workdir = with_recipe(Workdir.at(tmp_path), TWO)
    tree(tmp_path / "project", _PROJECT)
    sdist(tmp_path / "links", _REQUIRED, top="scaling-1.0")
    uv = tmp_path / "uv"
    variables = {"PIP_FIND_LINKS": str(tmp_path / "links"), "UV_CACHE_DIR": str(uv)}
    ran = workdir.vbuild("matrix", "demo.toml", "-o", "out", **variables)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert {label: code_of(cuobjdump, tmp_path, label) for label in ("sm80", "sm90")} == {
        "sm80": {"sm_80.cubin"},
        "sm90": {"sm_90.cubin"},
    }
    # nothing that was compiled for some GPUs is left for others
    assert not list(uv.glob("sdists-*/**/scaling*.whl"))
    shutil.rmtree(tmp_path / "cache/vbuild/builds")
    with_recipe(workdir, TWO.replace("90", "86"))
    ran = workdir.vbuild("matrix", "demo.toml", "-o", "out", **variables)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert code_of(cuobjdump, tmp_path, "sm86") == {"sm_86.cubin"}


def code_of(cuobjdump: Path, folder: Path, label: str) -> set[str]:
    """What cuobjdump lists in the module of the wheel *label*."""
    [wheel] = (folder / "out").glob(f"*-{label}.whl")
    with zipfile.ZipFile(wheel) as archive:
        [name] = (name for name in archive.namelist() if name.startswith("demo.c"))
        found, _ = listed_code(cuobjdump, Path(archive.extract(name, folder / label)))
    return set(found)
