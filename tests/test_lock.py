"""`vbuild lock` and `vbuild matrix --locked`: what a recipe was resolved to, and nothing else, is built again."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.factories.desk import Desk
from tests.factories.projects import setuptools_project
from tests.factories.tools import needs
from vbuild import __version__
from vbuild.digest import sha256_of
from vbuild.errors import RecipeError
from vbuild.hardware.driver import Dotted
from vbuild.recipe.cuda import ToolkitSpec
from vbuild.recipe.lock import Lock
from vbuild.recipe.model import Recipe
from vbuild.release.holding import check_pins, held
from vbuild.toolkit.model import Pin, Toolkit

RECIPE = 'name = "demo"\n[source]\npath = "project"\n[matrix]\ncpu = ["x86-64-v2"]\n'
SYSTEM = '[build-system]\nrequires = ["setuptools<80"{}]\nbuild-backend = "setuptools.build_meta"\n'
OPTIONS = ("matrix", "demo.toml", "-o", "dist", "--only", "plain")
PIN = Pin("nvidia-cublas", "13.0", "nvidia_cublas-13.0-py3-none-any.whl", "a" * 64)
SPEC = ToolkitSpec(Dotted(13, 0), libraries=("cublas",))
TOOLKIT = Toolkit(Dotted(13, 0), Path("/nowhere"), "b" * 64, (PIN,))
LOCK = Lock("1", "2", "folder", toolkits=(("13.0 cublas", ((PIN.file, PIN.sha256),)),), is_binding=True)

on_x86 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="builds for x86-64")


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A desk with a recipe and a project that says what it is built with."""
    setuptools_project(tmp_path / "project")
    (tmp_path / "project/pyproject.toml").write_text(SYSTEM.format(""))
    (tmp_path / "demo.toml").write_text(RECIPE)
    return Desk.at(tmp_path)


def _edited(desk: Desk, pattern: str, text: str) -> None:
    file = desk.folder / "demo.lock"
    before = file.read_text()
    file.write_text(re.sub(pattern, text, before))
    assert file.read_text() != before


@pytest.mark.network
@needs("gcc")
@on_x86
def test_what_was_locked_is_built_and_nothing_else(desk: Desk) -> None:
    ran = desk.vbuild("lock", "demo.toml", "--json")
    assert ran.returncode == 0, ran.stderr
    [resolved] = json.loads(ran.stdout)["requirements"]
    assert re.fullmatch(r"setuptools==79\.[0-9.]+", " ".join(resolved["packages"]))
    first = (desk.folder / "demo.lock").read_bytes()
    assert desk.vbuild("lock", "demo.toml").returncode == 0
    assert (desk.folder / "demo.lock").read_bytes() == first
    ran = desk.vbuild(*OPTIONS, "--locked")
    assert ran.returncode == 0, ran.stderr
    # the lock is a part of what was built: another package is another build, and has to have its hash
    _edited(desk, r"setuptools==79[0-9.]+", "setuptools==78.1.1")
    ran = desk.vbuild(*OPTIONS, "--locked")
    assert ran.returncode == 1
    assert "Hash mismatch for `setuptools==78.1.1`" in ran.stdout
    (desk.folder / "demo.lock").write_bytes(first)
    # a requirement that nobody has looked at
    (desk.folder / "project/pyproject.toml").write_text(SYSTEM.format(', "wheel"'))
    ran = desk.vbuild(*OPTIONS, "--locked")
    assert ran.returncode == 1
    said = " ".join(ran.stdout.split())
    assert re.search(r"--locked: wheel: not in the lock for cpython-\S+; write it again: vbuild lock", said), said


def _locked(desk: Desk) -> Recipe:
    """The recipe with a lock of this moment, that requires nothing."""
    recipe = Recipe.load(desk.folder / "demo.toml")
    lock = Lock(__version__, sha256_of(recipe.file), "folder")
    (desk.folder / "demo.lock").write_text(lock.pack())
    return recipe


def test_a_lock_that_is_there_is_used_and_binds_only_where_that_is_asked_for(desk: Desk) -> None:
    recipe = _locked(desk)
    for is_locked in (False, True):
        found, notes = held(recipe, is_locked=is_locked)
        assert notes == ()
        assert found.build.lock
        assert found.build.lock.is_binding is is_locked
    (desk.folder / "demo.lock").unlink()
    assert held(recipe) == (recipe, ())
    with pytest.raises(RecipeError) as refused:
        held(recipe, is_locked=True)
    file = desk.folder / "demo"
    assert str(refused.value) == f"{file}.lock: no such lock; expected one for --locked: vbuild lock {file}.toml"


@pytest.mark.parametrize(
    ("pattern", "text", "why"),
    [
        ('"recipe": "[0-9a-f]+"', '"recipe": "0"', "the recipe has changed since"),
        ('"folder"', '"sdist 1"', "is of the source 'sdist 1', the recipe has 'folder'"),
        ('"natives": {}', '"natives": {"gmp": "sdist 1"}', "is of other native dependencies"),
        ('"vbuild": "[^"]+"', '"vbuild": "0.0"', r"written by vbuild 0.0, this is "),
    ],
    ids=["recipe", "source", "natives", "vbuild"],
)
def test_a_stale_lock_is_refused_or_said(desk: Desk, pattern: str, text: str, why: str) -> None:
    recipe = _locked(desk)
    _edited(desk, pattern, text)
    found, [note] = held(recipe)
    assert found == recipe
    start, end = f"{desk.folder}/demo.lock: {why}", f"; write it again: vbuild lock {desk.folder}/demo.toml"
    assert note.startswith(start)
    assert note.endswith(f"{end}; it was not used")
    with pytest.raises(RecipeError) as refused:
        held(recipe, is_locked=True)
    assert note == f"{refused.value}; it was not used"


def test_a_stale_lock_is_one_line_before_anything_is_built(desk: Desk) -> None:
    _locked(desk)
    (desk.folder / "demo.toml").write_text(f"{RECIPE}\n# changed\n")
    for more in ((), ("--dry-run",)):
        ran = desk.vbuild(*OPTIONS, "--locked", *more)
        assert ran.returncode == 1
        assert ran.stderr == "vbuild: demo.lock: the recipe has changed since; write it again: vbuild lock demo.toml\n"
    assert not (desk.folder / "dist").exists()


def test_wheels_of_a_toolkit_have_to_be_those_of_the_lock() -> None:
    check_pins(LOCK, SPEC, TOOLKIT)
    other = replace(TOOLKIT, pins=(replace(PIN, sha256="c" * 64),))
    check_pins(None, SPEC, other)
    check_pins(replace(LOCK, is_binding=False), SPEC, other)
    for lock, toolkit, what in [
        (LOCK, other, f"CUDA 13.0 cublas: {PIN.file} is not as in the lock"),
        (LOCK, replace(TOOLKIT, pins=()), f"CUDA 13.0 cublas: {PIN.file} is not as in the lock"),
        (replace(LOCK, toolkits=()), TOOLKIT, "CUDA 13.0 cublas: not in the lock"),
    ]:
        with pytest.raises(RecipeError) as refused:
            check_pins(lock, SPEC, toolkit)
        assert str(refused.value) == f"--locked: {what}; write it again: vbuild lock"
