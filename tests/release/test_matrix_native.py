"""A recipe with native dependencies: built for each level or once, bundled into the wheels, kept for the next run."""

import json
import os
import zipfile
from pathlib import Path

import pytest

from tests.factories.native_libraries import script_library, step
from tests.factories.projects import tree
from tests.factories.tools import needs
from tests.factories.workdir import Workdir, file_digests, refusal, stage_folders, wheels

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="builds for x86-64"),
    needs("gcc", "make"),
]

MODULE = """
#include <Python.h>
#include <depth.h>
static PyObject *built(PyObject *self, PyObject *none) { return PyUnicode_FromString(depth_built()); }
static PyMethodDef methods[] = {{"built", built, METH_NOARGS, 0}, {0}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "demo", 0, -1, methods, 0, 0, 0, 0};
PyMODINIT_FUNC PyInit_demo(void) { return PyModule_Create(&definition); }
"""
SETUP = """
from setuptools import Extension, setup

setup(name="demo", version="1.0", ext_modules=[Extension("demo", ["module.c"], libraries=["depth"])])
"""
# every wheel has the library of its own level, wherever it runs
TEST = """[test]
command = '''python -c "import demo; print(demo.built())" '''
emulate = "never"
"""


def _workdir(folder: Path, steps: str) -> Workdir:
    """A recipe for a module that links libdepth, and the source of that."""
    workdir = Workdir.at(folder)
    tree(folder / "project", {"setup.py": SETUP, "module.c": MODULE})
    script_library(folder / "depth")
    head = 'name = "demo"\n[source]\npath = "project"\n'
    matrix = '[matrix]\ncpu = ["x86-64", "x86-64-v3"]\n'
    tree(folder, {"demo.toml": f"{head}{steps}{matrix}{TEST}"})
    return workdir


def _built(workdir: Workdir, *options: str, into: str = "dist") -> dict[str, bytes]:
    ran = workdir.vbuild("matrix", "demo.toml", "-o", into, *options)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout
    assert stage_folders(workdir.folder / into) == []
    assert not (workdir.folder / into / "logs").exists()
    return wheels(workdir.folder / into)


def _bundled(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if "demo.libs/lib" in name}


def _levels(folder: Path) -> dict[str, str]:
    """The level of the library in each wheel, by the wheel's label."""
    found = {}
    for wheel in sorted(folder.glob("*.whl")):
        label = wheel.stem.split("-")[5:]
        [library] = _bundled(wheel).values()
        found["".join(label) or "plain"] = library.partition(b"depth is built for ")[2][:2].decode()
    return found


@pytest.mark.nightly
def test_each_wheel_has_the_library_of_its_own_level(tmp_path: Path) -> None:
    workdir = _workdir(tmp_path, step(tmp_path / "depth", "script"))
    made = _built(workdir)
    assert _levels(tmp_path / "dist") == {"plain": "v1", "x86_64_v3": "v3"}
    for wheel, data in made.items():
        with zipfile.ZipFile(tmp_path / "dist" / wheel) as archive:
            everywhere = b"".join(archive.read(name) for name in archive.namelist())
        # neither the folder of the library nor that of the cache is in it
        assert str(tmp_path).encode() not in everywhere
        assert data
    said = (tmp_path / "dist/report.json").read_text()
    assert str(tmp_path / "cache") not in said
    report = json.loads(said)
    assert {wheel["test"] for wheel in report["wheels"]} <= {"passed", "not run"}
    # nothing is built again, and a wheel that is removed comes from the store
    before = file_digests(tmp_path / "cache/vbuild/native")
    assert _built(workdir, into="again") == made
    assert file_digests(tmp_path / "cache/vbuild/native") == before


@pytest.mark.nightly
def test_wheels_are_built_again_where_the_library_is_another(tmp_path: Path) -> None:
    workdir = _workdir(tmp_path, step(tmp_path / "depth", "script"))
    made = _built(workdir)
    source = tmp_path / "depth/depth.c"
    source.write_text(source.read_text().replace("depth is built for", "now depth is built for"))
    again = _built(workdir)
    assert again.keys() == made.keys()
    assert all(again[name] != made[name] for name in made)


@pytest.mark.nightly
def test_a_library_that_fails_is_told_once_with_its_log(tmp_path: Path) -> None:
    workdir = _workdir(
        tmp_path, step(tmp_path / "depth", "script", "per-level = false\nbefore-build = ['echo no; exit 1']")
    )
    ran = workdir.vbuild("matrix", "demo.toml", "-o", "dist")
    assert ran.returncode == 1
    log = tmp_path / "dist/logs/native-depth.log"
    said = " ".join(ran.stdout.split())
    assert f"plain, x86_64_v3 failed: native depth: sh failed with status 1; its log is {log}, which ends: no" in said
    assert log.read_text().endswith("no\n")
    assert wheels(tmp_path / "dist") == {}


@pytest.mark.nightly
def test_workers_are_refused(tmp_path: Path) -> None:
    workdir = _workdir(tmp_path, step(tmp_path / "depth", "script"))
    ran = workdir.vbuild("matrix", "demo.toml", "-o", "dist", "--executor", "dask://127.0.0.1:9")
    assert (
        refusal(ran)
        == (f"{workdir.folder / 'demo.toml'}: native: not built on workers; expected this machine, without --executor")
        or "demo.toml: native: not built on workers" in ran.stderr
    )
    assert not (tmp_path / "dist").exists()
