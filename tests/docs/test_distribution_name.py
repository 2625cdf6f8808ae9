"""The distribution is `vbuild-wheels`: nothing in the project or in what it emits installs somebody else's `vbuild`."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

import vbuild
from tests.factories.emitted_recipes import LEVELS, written_recipe
from vbuild.release.emit import CiSystem, emitted

ROOT = Path(__file__).parents[2]

# what stands behind `install` up to the end of the command
_INSTALL = re.compile(r"\b(?:pipx?3?|uv|uv tool)\s+install\b([^\n;&|`]*)")
_OTHER = re.compile(r"vbuild(?:\[[^]]*])?(?:(?:[<>=!~@].*)|)")


def strangers(text: str) -> Iterator[str]:
    """The commands in *text* that install a requirement called `vbuild`."""
    for command in _INSTALL.finditer(text):
        if any(_OTHER.fullmatch(word.strip("\"'\\(),.:")) for word in command[1].split()):
            yield command[0]


def test_no_file_of_the_project_installs_another_projects_vbuild() -> None:
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if tracked.returncode:
        pytest.skip("not a git checkout")
    files = [ROOT / name for name in tracked.stdout.split("\0") if name and not name.endswith(Path(__file__).name)]
    texts = {file: file.read_text(encoding="utf-8", errors="replace") for file in files if file.is_file()}
    assert {str(file): found for file, text in texts.items() if (found := [*strangers(text)])} == {}


@pytest.mark.parametrize("system", CiSystem)
def test_nothing_emitted_installs_another_projects_vbuild(
    system: CiSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = emitted(written_recipe(tmp_path, f"[matrix]\n{LEVELS}"), system)
    assert [*strangers(text)] == []
    assert "vbuild --version | grep '^vbuild-wheels '" in text


@pytest.mark.parametrize(
    "requirement",
    ["vbuild", "'vbuild'", '"vbuild"', "'vbuild[dask]'", "'vbuild>=1'", "-U vbuild==0.1", "uv vbuild", "vbuild."],
)
def test_a_requirement_called_vbuild_would_be_found(requirement: str) -> None:
    for installer in ("pip", "python -m pip", "uv pip", "pipx", "uv tool"):
        assert [*strangers(f"- run: {installer} {'install'} {requirement}\n")]


@pytest.mark.parametrize("requirement", ["vbuild-wheels", "'vbuild-wheels[dask]==1'", "./vbuild-0.1.whl", '"$VBUILD"'])
def test_our_own_name_files_and_variables_may_be_installed(requirement: str) -> None:
    assert not [*strangers(f"pip {'install'} {requirement} && vbuild --version")]


def test_the_name_is_the_one_in_pyproject_and_what_version_says() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == vbuild.DISTRIBUTION == "vbuild-wheels"
    assert version(vbuild.DISTRIBUTION) == vbuild.__version__
    said = subprocess.run([sys.executable, "-m", "vbuild", "--version"], capture_output=True, text=True, check=True)
    assert said.stdout == f"vbuild-wheels {vbuild.__version__}\n"
