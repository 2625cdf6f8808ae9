"""What all emitted files have in common: the parts' commands, paths from the working folder, the same text twice."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.factories.emitted_recipes import written_recipe
from vbuild.errors import BuildError, RecipeError
from vbuild.release.emit import INSTALL, CiSystem, emitted

LEVELS = '[matrix]\ncpu = ["x86-64", "x86-64-v3"]\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return here


def test_json_has_all_that_another_system_needs(folder: Path) -> None:
    told = json.loads(emitted(written_recipe(folder, LEVELS), CiSystem.JSON))
    assert told == {
        "format": 1,
        "name": "demo",
        "source": "demo.toml",
        "install": INSTALL,
        "check": "vbuild --version | grep '^vbuild-wheels '",
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "parts": [
            {
                "name": label,
                "labels": [label],
                "python": None,
                "version": None,
                "cpu": cpu,
                "cuda": None,
                "folder": f"parts/{label}",
                "command": ["vbuild", "matrix", "demo.toml", "-o", f"parts/{label}", "--part", "--only", label],
                "shell": f"vbuild matrix demo.toml -o parts/{label} --part --only {label}",
            }
            for label, cpu in (("plain", "x86-64"), ("x86_64_v3", "x86-64-v3"))
        ],
        "collect": {
            "folder": "dist",
            "command": ["vbuild", "collect", "parts", "-o", "dist", "--recipe", "demo.toml"],
            "shell": "vbuild collect parts -o dist --recipe demo.toml",
        },
    }


def test_options_are_given_to_every_build(folder: Path) -> None:
    further = ["--jobs", "2", "--fresh"]
    told = json.loads(emitted(written_recipe(folder, LEVELS), CiSystem.JSON, options=further))
    assert all("--part --jobs 2 --fresh --only" in part["shell"] for part in told["parts"])
    assert all(part["command"][6:9] == further for part in told["parts"])
    assert "--jobs" not in told["collect"]["shell"]


@pytest.mark.parametrize("system", CiSystem)
def test_the_same_recipe_gives_the_same_text_whatever_its_path_is_called(folder: Path, system: CiSystem) -> None:
    source = written_recipe(folder, LEVELS)
    first = emitted(source, system)
    assert first == emitted(source, system) == emitted(folder / "demo.toml", system)
    assert first == emitted(Path("../here/./demo.toml"), system)
    assert str(folder) not in first


@pytest.mark.parametrize(
    "name", ["recipes/my recipe.toml", "it's.toml", "-o.toml", "a$HOME.toml", "${{ github.token }}.toml", "ä`id`.toml"]
)
def test_a_recipe_may_be_called_anything_printable(folder: Path, name: str) -> None:
    told = json.loads(emitted(folder / written_recipe(folder, LEVELS, name=name), CiSystem.JSON))
    expected = f"./{name}" if name.startswith("-") else name
    assert told["parts"][0]["command"][2] == expected
    assert shlex.split(told["parts"][0]["shell"]) == told["parts"][0]["command"]


def test_a_path_through_a_link_to_the_working_folder_is_found(folder: Path) -> None:
    written_recipe(folder, LEVELS)
    (folder.parent / "link").symlink_to(folder)
    assert json.loads(emitted(folder.parent / "link" / "demo.toml", CiSystem.JSON))["source"] == "demo.toml"


def test_what_the_jobs_would_not_find_is_refused(folder: Path) -> None:
    written_recipe(folder.parent, LEVELS)
    with pytest.raises(BuildError) as refusal:
        emitted(Path("../demo.toml"), CiSystem.GITHUB)
    assert str(refusal.value) == (
        f"../demo.toml: outside the working folder, {folder}, in which the jobs would not find it; "
        "expected a recipe or project below it, or another working folder"
    )
    (folder.parent / "project").mkdir()
    written_recipe(folder, LEVELS, source='name = "demo"\n[source]\npath = "../project"\n')
    with pytest.raises(BuildError) as refusal:
        emitted(Path("demo.toml"), CiSystem.GITHUB)
    assert str(refusal.value) == (
        f"demo.toml: the project it builds, {folder.parent}/project, is outside the working folder, {folder}; "
        "expected one that the jobs find in a checkout, or source.git"
    )


def test_what_cannot_stand_in_one_line_is_refused(folder: Path) -> None:
    with pytest.raises(BuildError) as refusal:
        emitted(written_recipe(folder, LEVELS, name="a\nb.toml"), CiSystem.GITHUB)
    assert str(refusal.value) == (
        "source: 'a\\nb.toml' cannot be written in one line; expected printable characters alone"
    )


@pytest.mark.parametrize("system", CiSystem)
def test_no_python_is_of_two_lines(folder: Path, system: CiSystem) -> None:
    (folder / "py\n3").mkdir()
    (folder / "py\n3" / "python").touch()
    with pytest.raises(BuildError) as refusal:
        emitted(written_recipe(folder, f'{LEVELS}python = ["3.12", "py\\n3/python"]\n'), system)
    assert str(refusal.value) == (
        "matrix.python: './py\\n3/python' cannot be written in one line; expected printable characters alone"
    )


def test_recipes_that_are_wrong_are_refused_as_everywhere(folder: Path) -> None:
    with pytest.raises(
        RecipeError, match=r"demo\.toml: matrix: no axis to build along; expected cpu, cuda, requires, or axes"
    ):
        emitted(written_recipe(folder, ""), CiSystem.JSON)
    with pytest.raises(RecipeError, match=r"nothing\.toml"):
        emitted(Path("nothing.toml"), CiSystem.JSON)


def test_a_file_that_would_not_be_taken_is_not_emitted(folder: Path) -> None:
    text = ""
    for axis in "ab":
        rows = (f'{"x" * 1200}{value} = {{ properties = ["x :: {axis} :: v{value}"] }}\n' for value in range(20))
        text += f"[matrix.axes.{axis}]\n{''.join(rows)}"
    with pytest.raises(BuildError) as refusal:
        emitted(written_recipe(folder, text), CiSystem.GITHUB)
    assert re.sub(r"\d{6,}", "N", str(refusal.value), count=1) == (
        "demo.toml: the workflow would have N bytes, and GitHub starts none of more than 500000; expected fewer "
        "builds, or the reusable workflow (uses: .../vbuild/.github/workflows/vbuild.yml)"
    )


def test_the_machine_of_the_wheels_is_the_runner_but_for_zig(folder: Path) -> None:
    arm = '[matrix]\ncpu = ["armv8-a", "armv8.2-a"]\n'
    assert 'runs-on: "ubuntu-24.04-arm"' in emitted(written_recipe(folder, arm), CiSystem.GITHUB)
    assert 'runs-on: "ubuntu-24.04"' in emitted(
        written_recipe(folder, f'{arm}[build]\nhost = "zig"\n'), CiSystem.GITHUB
    )
