"""`[split]` in a recipe: the variants of a release share the library that all of them bundle."""

import json
import os
from pathlib import Path

import pytest

from tests.factories.extensions import library
from tests.factories.projects import KERNEL, tree
from tests.factories.site_packages import loader_complaints, site_packages
from tests.factories.tools import needs
from tests.factories.wheels import contents
from vbuild.errors import VbuildError
from vbuild.release.cache import BuildCache
from vbuild.release.matrix import MatrixRequest, jobs_of, matrix
from vbuild.release.model import ReleaseResult

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="builds for x86-64"),
    needs("gcc", "ldd"),
]

COUNT = library("libcount.so.1", source="int count(void) { return 42; } const char text[5000] = {1, 2};")
MODULE = """
#include <Python.h>
int count(void);
void kernel(float *a, const float *b);
static PyObject *answer(PyObject *self, PyObject *none) {
    static float a[16], b[16];
    kernel(a, b);
    return PyLong_FromLong(count());
}
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, 0}, {0}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_c", 0, -1, methods, 0, 0, 0, 0};
PyMODINIT_FUNC PyInit__c(void) { return PyModule_Create(&definition); }
"""
SETUP = """
from setuptools import Extension, setup

links = ["-L{0}", "-l:libcount.so.1", "-Wl,-rpath,{0}"]
extension = Extension("demo._c", ["module.c", "kernel.c"], extra_link_args=links)
setup(name="demo", version="1.0", packages=["demo"], ext_modules=[extension])
"""
LEVELS = '[matrix]\ncpu = ["x86-64", "x86-64-v3"]\n'
TEST = "[test]\ncommand = \"python -c 'import demo; assert demo.answer() == 42'\"\nemulate = 'never'\n"
SPLIT = "[split]\nmin-size = 0\nreplace = false\n"


def recipe(folder: Path, text: str) -> Path:
    """A recipe for a project whose module loads a library that is beside it, and nowhere on the system."""
    (folder / "lib").mkdir(parents=True)
    (folder / "lib/libcount.so.1").write_bytes(COUNT)
    files = {
        "setup.py": SETUP.format(folder / "lib"),
        "module.c": MODULE,
        "kernel.c": KERNEL,
        "demo/__init__.py": "from demo._c import answer\n",
    }
    tree(folder / "project", files)
    tree(folder, {"demo.toml": f'name = "demo"\n[source]\npath = "project"\n{text}'})
    return folder / "demo.toml"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ReleaseResult]:
    folder = tmp_path_factory.mktemp("release")
    source = recipe(folder, LEVELS + TEST + SPLIT + "try-test = true\n")
    return folder / "dist", matrix(source, folder / "dist", MatrixRequest(jobs=2))


@pytest.mark.nightly
def test_the_variants_of_a_release_share_their_library(built: tuple[Path, ReleaseResult]) -> None:
    folder, release = built
    assert release.failures == ()
    assert release.split
    (libs,) = release.split.companion_paths
    assert libs.parent == folder
    assert sorted(path.name for path in folder.glob("*.whl")) == sorted(
        [libs.name, *(product.wheel.name for product in release.products)]
    )
    assert [product.label for product in release.products] == [None, "x86_64_v3"]
    for product in release.products:
        after = contents(product.wheel)
        assert not [path for path in after if "libcount" in path]
        assert b"Requires-Dist: demo-libs==" in after["demo-1.0.dist-info/METADATA"]
        assert ("demo-1.0.dist-info/variant.json" in after) == (product.label is not None)
        installed = site_packages(folder.parent / f"site {product.label}", product.wheel, libs)
        assert loader_complaints(installed) == []


def test_the_report_holds_the_split(built: tuple[Path, ReleaseResult]) -> None:
    folder, release = built
    assert release.split
    told = json.loads((folder / "report.json").read_text())["split"]
    assert [row["kind"] for row in told["libraries"]] == ["share"]
    sizes = {path.name: path.stat().st_size for path in folder.glob("*.whl")}
    assert told["after"]["packed_bytes"] == release.split.packed == sum(sizes.values())
    assert {one["wheel"]: one["after"]["packed_bytes"] for one in told["wheels"]}.items() <= sizes.items()
    assert all(path.is_file() for path in release.split.paths)


@pytest.mark.nightly
def test_a_second_run_gives_the_same_bytes(built: tuple[Path, ReleaseResult], tmp_path: Path) -> None:
    source = built[0].parent / "demo.toml"
    kept = matrix(source, tmp_path / "kept")
    assert kept.kept_wheels == 2
    fresh = matrix(source, tmp_path / "fresh", store=BuildCache(tmp_path / "store"))
    assert fresh.kept_wheels == 0
    first = {path.name: path.read_bytes() for path in built[0].glob("*.whl")}
    for folder in ("kept", "fresh"):
        assert {path.name: path.read_bytes() for path in (tmp_path / folder).glob("*.whl")} == first


CHECK = """
import pathlib, sys, demo
site = pathlib.Path(demo.__file__).parent.parent
sys.exit("thin" if not list(site.glob("demo.libs/*")) else 0)
"""


@pytest.mark.nightly
def test_a_wheel_that_does_not_pass_its_test_when_it_is_thin_is_a_failure(tmp_path: Path) -> None:
    tree(tmp_path / "checks", {"check.py": CHECK})
    test = f'[test]\ncommand = "python {tmp_path}/checks/check.py"\n'
    source = recipe(tmp_path, f"[matrix]\ncpu = ['x86-64', 'x86-64-v2']\n{test}{SPLIT}")
    release = matrix(source, tmp_path / "dist")
    assert not release.products
    assert [str(failure.target) for failure in release.failures] == ["plain", "x86_64_v2"]
    assert all(failure.error.endswith("\nthin") for failure in release.failures)
    assert release.split is None
    assert not list((tmp_path / "dist").glob("*.whl"))


REFUSED = [
    ("[split]\nfast = true\n", "split.fast: no such key"),
    ("[split]\ncuda = '12.6.1'\n", "split.cuda: no CUDA version '12.6.1'"),
    ("[split]\nlibs = 'a/b'\n", "split.libs: no project name 'a/b'"),
    ("[split]\nmin-size = -1\n", "split.min-size: is -1; expected bytes, 0 or more"),
    ("[split]\nkeep = 'libx'\n", "split.keep: "),
    ("split = 3\n", "split: "),
]


@pytest.mark.parametrize(("text", "said"), REFUSED, ids=[text for text, _ in REFUSED])
def test_a_table_that_cannot_be_read_is_refused_before_anything_is_built(tmp_path: Path, text: str, said: str) -> None:
    source = recipe(tmp_path, LEVELS)
    parts = (text, source.read_text()) if text.startswith("split") else (source.read_text(), text)
    source.write_text("".join(parts))
    for start in (lambda: jobs_of(source), lambda: matrix(source, tmp_path / "dist")):
        with pytest.raises(VbuildError) as refused:
            start()
        assert said in str(refused.value)
    assert not (tmp_path / "dist").exists()
