"""`vbuild lock` and `vbuild matrix --locked`: what a recipe was resolved to, and nothing else, is built again."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.factories.projects import setuptools_project, tree
from tests.factories.sources import sdist
from tests.factories.tools import needs
from tests.factories.wheels import wheel
from tests.factories.workdir import Workdir
from vbuild import __version__
from vbuild.build.environment import Environments
from vbuild.errors import BuildError, RecipeError
from vbuild.files.hashing import sha256_of
from vbuild.hardware.driver import Dotted
from vbuild.recipe.compiling import ToolkitSpec
from vbuild.recipe.lock import Lock, LockedRequirement
from vbuild.recipe.model import Recipe
from vbuild.release.lock import locked, recipe_hash, staleness
from vbuild.toolchain.interpreter import Interpreter
from vbuild.toolchain.toolkit import Toolkit, ToolkitPin

RECIPE = 'name = "demo"\n[source]\npath = "project"\n[matrix]\ncpu = ["x86-64-v2"]\n'
SYSTEM = '[build-system]\nrequires = ["setuptools<80"{}]\nbuild-backend = "setuptools.build_meta"\n'
OPTIONS = ("matrix", "demo.toml", "-o", "dist", "--only", "plain")
PIN = ToolkitPin("nvidia-cublas", "13.0", "nvidia_cublas-13.0-py3-none-any.whl", "a" * 64)
SPEC = ToolkitSpec(Dotted(13, 0), libraries=("cublas",))
TOOLKIT = Toolkit(Dotted(13, 0), Path("/nowhere"), "b" * 64, (PIN,))
LOCK = Lock("1", "2", "folder", toolkits=(("13.0 cublas", ((PIN.file, PIN.sha256),)),), is_binding=True)

on_x86 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="builds for x86-64")


@pytest.fixture
def workdir(tmp_path: Path) -> Workdir:
    """A workdir with a recipe and a project that says what it is built with."""
    setuptools_project(tmp_path / "project")
    (tmp_path / "project/pyproject.toml").write_text(SYSTEM.format(""))
    (tmp_path / "demo.toml").write_text(RECIPE)
    return Workdir.at(tmp_path)


def _edited(workdir: Workdir, pattern: str, text: str) -> None:
    file = workdir.folder / "demo.lock"
    before = file.read_text()
    file.write_text(re.sub(pattern, text, before))
    assert file.read_text() != before


@pytest.mark.nightly
@pytest.mark.network
@needs("gcc")
@on_x86
def test_what_was_locked_is_built_and_nothing_else(workdir: Workdir) -> None:
    ran = workdir.vbuild("lock", "demo.toml")
    assert ran.returncode == 0, ran.stderr
    assert re.search(r"setuptools==79\.[0-9.]+", (workdir.folder / "demo.lock").read_text())
    first = (workdir.folder / "demo.lock").read_bytes()
    assert workdir.vbuild("lock", "demo.toml").returncode == 0
    assert (workdir.folder / "demo.lock").read_bytes() == first
    ran = workdir.vbuild(*OPTIONS, "--locked")
    assert ran.returncode == 0, ran.stderr
    # the lock is a part of what was built: another package is another build, and has to have its hash
    _edited(workdir, r"setuptools==79[0-9.]+", "setuptools==78.1.1")
    ran = workdir.vbuild(*OPTIONS, "--locked")
    assert ran.returncode == 1
    assert "Hash mismatch for `setuptools==78.1.1`" in ran.stdout
    (workdir.folder / "demo.lock").write_bytes(first)
    # a requirement that nobody has looked at
    (workdir.folder / "project/pyproject.toml").write_text(SYSTEM.format(', "wheel"'))
    ran = workdir.vbuild(*OPTIONS, "--locked")
    assert ran.returncode == 1
    said = " ".join(ran.stdout.split())
    assert re.search(r"--locked: wheel: not in the lock for cpython-\S+; write it again: vbuild lock", said), said


def _locked(workdir: Workdir) -> Recipe:
    """The recipe with a lock of this moment, that requires nothing."""
    recipe = Recipe.load(workdir.folder / "demo.toml")
    lock = Lock(__version__, recipe_hash(recipe), "folder")
    (workdir.folder / "demo.lock").write_text(lock.pack())
    return recipe


def test_a_lock_that_is_there_is_used_and_binds_only_where_that_is_asked_for(workdir: Workdir) -> None:
    recipe = _locked(workdir)
    for is_locked in (False, True):
        found, notes = locked(recipe, is_binding=is_locked)
        assert notes == ()
        assert found.build.lock
        assert found.build.lock.is_binding is is_locked
    (workdir.folder / "demo.lock").unlink()
    assert locked(recipe) == (recipe, ())
    with pytest.raises(RecipeError) as refused:
        locked(recipe, is_binding=True)
    file = workdir.folder / "demo"
    assert str(refused.value) == f"{file}.lock: no such lock; expected one for --locked: vbuild lock {file}.toml"


@pytest.mark.parametrize(
    ("pattern", "text", "why"),
    [
        ('"recipe": "[0-9a-f]+"', '"recipe": "0"', "the recipe, or a patch of it, has changed since"),
        ('"folder"', '"sdist 1"', "is of the source 'sdist 1', the recipe has 'folder'"),
        ('"natives": {}', '"natives": {"gmp": "sdist 1"}', "is of other native dependencies"),
        ('"vbuild": "[^"]+"', '"vbuild": "0.0"', r"written by vbuild 0.0, this is "),
    ],
    ids=["recipe", "source", "natives", "vbuild"],
)
def test_a_stale_lock_is_refused_or_said(workdir: Workdir, pattern: str, text: str, why: str) -> None:
    recipe = _locked(workdir)
    _edited(workdir, pattern, text)
    found, [note] = locked(recipe)
    assert found == recipe
    start, end = f"{workdir.folder}/demo.lock: {why}", f"; write it again: vbuild lock {workdir.folder}/demo.toml"
    assert note.startswith(start)
    assert note.endswith(f"{end}; it was not used")
    with pytest.raises(RecipeError) as refused:
        locked(recipe, is_binding=True)
    assert note == f"{refused.value}; it was not used"


@pytest.mark.parametrize(
    ("pattern", "text", "why"),
    [
        (r"^.*", "demo==1", "not JSON: Expecting value at line 1, column 1"),
        ('"lock": 1', '"lock": 2', "lock: found 2, expected 1"),
        ('"source": "folder",', "", "source: missing; expected a string"),
    ],
    ids=["text", "format", "nothing of the source"],
)
@pytest.mark.parametrize("is_locked", [False, True], ids=["used", "binding"])
def test_a_lock_that_cannot_be_read_is_refused_in_any_case(
    workdir: Workdir,
    pattern: str,
    text: str,
    why: str,
    is_locked: bool,  # noqa: FBT001 - pytest's
) -> None:
    recipe = _locked(workdir)
    _edited(workdir, pattern, text)
    with pytest.raises(RecipeError) as refused:
        locked(recipe, is_binding=is_locked)
    file = workdir.folder / "demo"
    assert str(refused.value) == f"{file}.lock: {why}; write it again: vbuild lock {file}.toml"


def test_another_hash_of_the_source_is_another_recipe(workdir: Workdir) -> None:
    """Both the recipe's own hash and that of the source tell it: a lock whose recipe was edited by hand as well."""
    text = 'name = "demo"\n[source]\nsdist = "demo==1.0"\nsha256 = "{}"\n[matrix]\ncpu = ["x86-64-v2"]\n'
    for digit in "ab":
        (workdir.folder / "demo.toml").write_text(text.format(digit * 64))
        recipe = Recipe.load(workdir.folder / "demo.toml")
        lock = Lock(__version__, recipe_hash(recipe), f"sdist {'a' * 64}")
        what = f"is of the source 'sdist {'a' * 64}', the recipe has 'sdist {'b' * 64}'"
        assert staleness(lock, recipe) == (None if digit == "a" else what)


def test_a_patch_is_a_part_of_the_recipe(workdir: Workdir) -> None:
    """Also one of a native dependency: neither is in the recipe's own file."""
    system = '[[native]]\nname = "one"\nsource = {{ path = "project" }}\nbuild = "cmake"\npatches = ["{}"]\n'
    (workdir.folder / "demo.toml").write_text(f'{RECIPE}[build]\npatches = ["one.patch"]\n{system.format("two.patch")}')
    for name in ("one.patch", "two.patch"):
        (workdir.folder / name).write_text("a")
    recipe = Recipe.load(workdir.folder / "demo.toml")
    lock = Lock(__version__, recipe_hash(recipe), "folder", natives=(("one", "folder"),))
    assert staleness(lock, recipe) is None
    for name in ("one.patch", "two.patch"):
        (workdir.folder / name).write_text("b")
        assert staleness(lock, recipe) == "the recipe, or a patch of it, has changed since"
        (workdir.folder / name).write_text("a")
    assert staleness(lock, recipe) is None


@pytest.mark.sampled(2)
@pytest.mark.parametrize("variable", ["UV_OVERRIDE", "UV_CONSTRAINT", "UV_EXCLUDE"])
def test_no_setting_of_the_installer_puts_anything_else_in_place_of_what_is_locked(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = (
        wheel(tmp_path / "wheels", f"bread-{version}-py3-none-any.whl", {"bread.py": f"print({version})"})
        for version in ("1.0", "2.0")
    )
    python = Interpreter.at(Path(sys.executable), os.environ)
    locked = LockedRequirement(python.kind, ("bread",), (f"bread==1.0 --hash=sha256:{sha256_of(old)}",))
    (tmp_path / "told.txt").write_text(
        "bread" if variable == "UV_EXCLUDE" else f"bread==2.0 --hash=sha256:{sha256_of(new)}"
    )
    monkeypatch.setenv(variable, str(tmp_path / "told.txt"))
    places = {"UV_NO_INDEX": "1", "UV_FIND_LINKS": str(tmp_path / "wheels")}
    lock = Lock("1", "2", "folder", requirements=(locked,))
    made = Environments(tmp_path / "environments", lambda: places, lock=lock).having(["bread"], python)
    ran = subprocess.run([made.python, "-c", "import bread"], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("1.0\n", "")


@pytest.mark.parametrize("is_binding", [False, True], ids=["used", "binding"])
def test_a_requirement_without_a_wheel_is_not_built_as_nothing_locks_what_that_takes(
    tmp_path: Path,
    is_binding: bool,  # noqa: FBT001 - pytest's
) -> None:
    project = '[build-system]\nrequires = []\nbuild-backend = "own"\nbackend-path = ["."]\n'
    own = f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\n"
    archive = sdist(tmp_path / "files", {"pyproject.toml": project, "own.py": own}, top="bread-1.0")
    python = Interpreter.at(Path(sys.executable), os.environ)
    locked = LockedRequirement(python.kind, ("bread",), (f"bread==1.0 --hash=sha256:{sha256_of(archive)}",))
    places = {"UV_NO_INDEX": "1", "UV_FIND_LINKS": str(tmp_path / "files")}
    lock = Lock("1", "2", "folder", requirements=(locked,), is_binding=is_binding)
    with pytest.raises(BuildError) as refused:
        Environments(tmp_path / "environments", lambda: places, lock=lock).having(["bread"], python)
    assert (tmp_path / "ran").exists() is not is_binding
    assert not is_binding or "bread==1.0 has no usable wheels" in str(refused.value)


def test_what_a_build_does_to_its_requirements_reaches_no_other_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache of uv is one for all: links from there would let builds that edit what they are given edit it."""
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    path = wheel(tmp_path / "wheels", "bread-1.0-py3-none-any.whl", {"bread.py": "print(1)"})
    python = Interpreter.at(Path(sys.executable), os.environ)
    locked = LockedRequirement(python.kind, ("bread",), (f"bread==1.0 --hash=sha256:{sha256_of(path)}",))
    places = {"UV_NO_INDEX": "1", "UV_FIND_LINKS": str(path.parent), "UV_LINK_MODE": "hardlink"}
    for name in ("first", "second"):
        lock = Lock("1", "2", "folder", requirements=(locked,))
        made = Environments(tmp_path / name, lambda: places, lock=lock).having(["bread"], python)
        [module] = made.python.parents[1].rglob("bread.py")
        assert module.read_text() == "print(1)"
        with module.open("a") as file:
            file.write("; print(2)")


BACKEND = """
def get_requires_for_build_wheel(config_settings=None):
    return ["bread"]
"""


@pytest.mark.nightly
@needs("gcc")
@on_x86
def test_what_a_hook_asks_for_has_to_be_in_the_lock_as_well(workdir: Workdir) -> None:
    project = '[build-system]\nrequires = []\nbuild-backend = "own"\nbackend-path = ["."]\n'
    tree(workdir.folder / "project", {"pyproject.toml": project, "own.py": BACKEND})
    _locked(workdir)
    ran = workdir.vbuild(*OPTIONS, "--locked")
    assert ran.returncode == 1
    said = " ".join(ran.stdout.split())
    assert re.search(r"--locked: bread: not in the lock for cpython-\S+; write it again: vbuild lock", said), said


def test_wheels_of_a_toolkit_have_to_be_those_of_the_lock() -> None:
    LOCK.check_toolkit(SPEC, TOOLKIT.wheels)
    other = replace(TOOLKIT, pins=(replace(PIN, sha256="c" * 64),))
    replace(LOCK, is_binding=False).check_toolkit(SPEC, other.wheels)
    for lock, toolkit, what in [
        (LOCK, other, f"CUDA 13.0 cublas: {PIN.file} is not as in the lock"),
        (LOCK, replace(TOOLKIT, pins=()), f"CUDA 13.0 cublas: {PIN.file} is not as in the lock"),
        (replace(LOCK, toolkits=()), TOOLKIT, "CUDA 13.0 cublas: not in the lock"),
    ]:
        with pytest.raises(RecipeError) as refused:
            lock.check_toolkit(SPEC, toolkit.wheels)
        assert str(refused.value) == f"--locked: {what}; write it again: vbuild lock"
