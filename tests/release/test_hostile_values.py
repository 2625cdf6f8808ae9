"""What a stranger calls a project, a folder or a Python stays a text in what is emitted, or is refused."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.factories.recipes import HASH
from vbuild.errors import BuildError, RecipeError
from vbuild.release.emit import INSTALL, CiSystem, emitted, project_workflows

NAMES = [
    *("x\ndefaults: {run: {shell: \"bash -c 'id; source {0}' --\"}}\n#", 'x"\njobs: {}', "x ${{ github.token }}"),
    *("x: y", "x'; id; '", "$(id)", "-x", "x\x1b[2J", "x\u2028y", "éx", "../x", "x y"),
]
# in names of folders, recipes and Pythons, and in what the command line says
VALUES = [
    *("${{ github.token }}", "it's", 'a "b"', "a: b", "a #b", "- a", "$(id)", "`id`", "%a", "&a", "*a", "!a", "{a}"),
    *("[a]", "a\\b", "a, b", "@a", "-a", "é", "😀", "on", "null", "'", '"'),
]
_MATRIX = '[matrix]\ncpu = ["x86-64", "x86-64-v3"]\n'
_EXPRESSION = re.compile(r"\$\{\{.*?\}\}")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return here


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_is_none_is_refused_before_anything_is_emitted(folder: Path, name: str) -> None:
    (folder / "pyproject.toml").write_text(
        f"[project]\nname = {json.dumps(name)}\nversion = '1'\n[tool.vbuild.matrix]\ncpu = ['x86-64-v3']\n"
    )
    recipe = f'name = {json.dumps(name)}\nsource = {{ path = "." }}\n[matrix]\ncpu = ["x86-64-v3"]\n'
    (folder / "recipe.toml").write_text(recipe)
    for system in CiSystem:
        for source in ("pyproject.toml", "recipe.toml"):
            with pytest.raises(RecipeError, match=r": no project name .*; expected letters and digits, and - _ \. "):
                emitted(Path(source), system)
    with pytest.raises(RecipeError, match=": no project name "):
        project_workflows(folder)
    (folder / "pyproject.toml").write_text("[tool.vbuild.matrix]\ncpu = ['x86-64-v3']\n")
    (folder / "setup.py").write_text(f"from setuptools import setup\nsetup(name={name!r})\n")
    with pytest.raises(RecipeError, match=r"pyproject\.toml: no project name "):
        emitted(Path(), CiSystem.GITHUB)


def recipe(folder: Path, value: str) -> Path:
    """A recipe whose folder and name, and the Python that it names, are called *value*."""
    place = folder / value
    place.mkdir()
    (place / value).touch()  # the Python
    pythons = json.dumps(["3.12", f"./{value}"], ensure_ascii=False)
    text = f'name = "demo"\n[source]\nsdist = "demo==1.0"\nsha256 = "{HASH}"\n{_MATRIX}python = {pythons}\n'
    (place / f"{value}.toml").write_text(text, encoding="utf-8")
    return Path(value, f"{value}.toml")


def shape(value: Any) -> Any:
    """What *value* is made of, without its texts."""
    if isinstance(value, dict):
        return {key: shape(each) for key, each in value.items()}
    return list(map(shape, value)) if isinstance(value, list) else type(value).__name__


def expressions(text: str) -> set[str]:
    """What GitHub evaluates in *text*, but for the mark that begins an expression."""
    return set(_EXPRESSION.findall(text)) - {"${{ '${{' }}"}


def read(text: str, system: CiSystem) -> Any:
    return json.loads(text) if system is CiSystem.JSON else yaml.safe_load(text)


@pytest.mark.parametrize("system", CiSystem)
@pytest.mark.parametrize("value", VALUES)
def test_a_value_is_a_text_and_nothing_else(folder: Path, value: str, system: CiSystem) -> None:
    plain = emitted(recipe(folder, "plain"), system, options=["--jobs", "plain"])
    odd = emitted(recipe(folder, value), system, options=["--jobs", value])
    assert shape(read(odd, system)) == shape(read(plain, system))
    if system is CiSystem.GITHUB:
        assert expressions(odd) == expressions(plain)
    assert len(odd.splitlines()) == len(plain.splitlines())


@pytest.mark.parametrize("value", ["a\nb: c", "a\rb", "a\x1b[2J", "a\u2028b", "a\x7f"])
def test_what_is_no_line_is_refused(folder: Path, value: str) -> None:
    for system in CiSystem:
        with pytest.raises(BuildError, match="cannot be written in one line; expected printable characters alone"):
            emitted(recipe(folder, f"{value}{system}"), system)


def test_the_command_that_installs_is_what_the_shell_gets(folder: Path) -> None:
    workflow = yaml.safe_load(emitted(recipe(folder, "plain"), CiSystem.GITHUB))
    assert workflow["jobs"]["build-1"]["steps"][2]["run"] == INSTALL
