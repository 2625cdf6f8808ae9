"""A plain wheel that lacks what another has, and builds that lose their compiled code: what `vbuild matrix` says."""

import json
import re
from pathlib import Path

import pytest
from pip._internal.models.index import PyPI

from tests.factories.projects import tree
from tests.factories.ranges import serving, simple_index
from tests.factories.wheels import wheel
from vbuild.errors import RecipeError
from vbuild.release.cache import BuildCache
from vbuild.release.matrix import matrix
from vbuild.release.model import ReleaseResult

MODULE = """
#include <Python.h>
%s
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "%s", "", -1, 0};
PyMODINIT_FUNC PyInit_%s(void) { return PyModule_Create(&module); }
"""
SETUP = """
from setuptools import Extension, setup
setup(name="demo", version="1.0", py_modules=["demo"], ext_modules=[%s])
"""
FAST = 'Extension("_fast", ["_fast.c"], optional=True)'
SLOW = 'Extension("_slow", ["_slow.c"])'
BOTH = f"{FAST}, {SLOW}"
SOURCES = ("_fast.c", "_slow.c")
RECIPE = 'name = "demo"\n[source]\npath = "source"\n[matrix]\ncpu = ["x86-64"]\n'


def released(folder: Path, extensions: str, head: str = "", against: str = "auto") -> ReleaseResult:
    """A release of a project of these *extensions*, where ``_fast.c`` begins with *head*."""
    files = {name: MODULE % (head if name == "_fast" else "", name, name) for name in ("_fast", "_slow")}
    tree(folder / "source", {f"{name}.c": text for name, text in files.items()})
    tree(folder / "source", {"setup.py": SETUP % extensions, "demo.py": ""})
    (folder / "demo.toml").write_text(f"{RECIPE}[verify]\nagainst = {json.dumps(against)}\n")
    return matrix(folder / "demo.toml", folder / "dist", store=BuildCache(fresh=True))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plain wheel of the project with both its modules."""
    (product,) = released(tmp_path_factory.mktemp("whole"), BOTH).products
    return product.wheel


@pytest.mark.nightly
def test_a_module_that_is_lost_is_an_error_with_the_compilers_words_and_the_line_to_paste(
    whole: Path, tmp_path: Path
) -> None:
    (failure,) = released(tmp_path / "part", BOTH, "#include <nothere.h>", str(whole)).failures
    assert "1 of 2 compiled modules of the published wheel are missing" in failure.error
    assert re.search(r"the likely cause: `\S*gcc ", failure.error)  # Debian's Python names x86_64-linux-gnu-gcc
    assert "_fast.c" in failure.error
    assert "fatal error: nothere.h: No such file or directory" in failure.error
    assert failure.error.endswith("to go on without it: verify.against = 'none'")
    (product,) = released(tmp_path / "again", BOTH, against=str(whole)).products
    (note,) = (found for found in product.verdict.findings if found.rule == "published")
    assert note.what.startswith(f"compared with {whole.name}: 2 of 2 modules, ")


@pytest.mark.nightly
def test_advice_on_flags_follows_the_code_that_it_is_about(whole: Path, tmp_path: Path) -> None:
    above = 'void above(void) { __asm__("vpaddd %ymm0, %ymm0, %ymm0"); }'
    (failure,) = released(tmp_path / "part", FAST, above, str(whole)).failures
    code, _, lost = failure.error.partition("; if it runs only after a check of the CPU: verify.allow = ['^above$']; ")
    assert "AVX2" in code
    assert "1 of 2 compiled modules of the published wheel are missing" in lost


@pytest.mark.nightly
def test_what_accepts_all_functions_above_the_level_is_one_line_to_paste(tmp_path: Path) -> None:
    above = 'void above%d(void) { __asm__("vpaddd %%ymm0, %%ymm0, %%ymm0"); }'
    tree(tmp_path / "source", {name: MODULE % (above % n, name[:-2], name[:-2]) for n, name in enumerate(SOURCES)})
    tree(tmp_path / "source", {"setup.py": SETUP % BOTH, "demo.py": ""})
    (tmp_path / "demo.toml").write_text(RECIPE)
    (failure,) = matrix(tmp_path / "demo.toml", tmp_path / "dist", store=BuildCache(fresh=True)).failures
    line = failure.error.partition("if it runs only after a check of the CPU: ")[2].partition("; ")[0]
    assert line == "verify.allow = ['^above0$', '^above1$']"
    (tmp_path / "demo.toml").write_text(f"{line}\n{RECIPE}")
    assert matrix(tmp_path / "demo.toml", tmp_path / "dist", store=BuildCache(fresh=True)).products


def test_a_build_that_falls_back_to_python_ends_with_the_compilers_words(tmp_path: Path) -> None:
    (failure,) = released(tmp_path, FAST, "#include <nothere.h>").failures
    assert failure.error.startswith("demo-1.0-cp")
    assert "no compiled code in a wheel for linux_" in failure.error
    assert "fatal error: nothere.h: No such file or directory" in failure.error
    assert "auditwheel" not in failure.error


AGAINST = {
    "other-1.0-py3-none-any.whl": "verify.against: other-1.0-py3-none-any.whl is not a wheel of demo",
    "nothere.whl": "verify.against: no wheel 'nothere.whl'; expected 'index', 'none', a version such as '1.2.3'",
    "3.0": "verify.against: no index has a wheel of demo 3.0; the newest there: 1.0",
}


@pytest.mark.parametrize("what", AGAINST)
def test_what_cannot_be_compared_with_is_refused_before_anything_is_built(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(tmp_path, "other-1.0-py3-none-any.whl")
    published = wheel(tmp_path / "published", "demo-1.0-py3-none-any.whl")
    monkeypatch.chdir(tmp_path)
    with serving(simple_index(tmp_path / "index", published)) as server:
        monkeypatch.setenv("PIP_INDEX_URL", server.url)
        with pytest.raises(RecipeError) as caught:
            released(tmp_path, SLOW, against=what)
    assert AGAINST[what] in str(caught.value)
    assert not (tmp_path / "dist").exists()


@pytest.mark.nightly
def test_an_index_without_the_version_is_one_line_if_it_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = wheel(tmp_path / "published", "demo-2.0-py3-none-any.whl")
    with serving(simple_index(tmp_path / "index", published)) as server:
        monkeypatch.setenv("PIP_INDEX_URL", server.url)
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", PyPI.simple_url)
        (failure,) = released(tmp_path, SLOW, against="index").failures
    assert failure.error.startswith("no index has a wheel of demo 1.0 for this Python and platform (cp3")
