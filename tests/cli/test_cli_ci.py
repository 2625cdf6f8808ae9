"""The commands of CI as a user meets them: what they print, where, and their exit status."""

import json
from pathlib import Path

import pytest

from tests.factories.commands import vbuild
from tests.factories.projects import tree
from tests.factories.wheels import wheel

PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[project]
name = "demo"
version = "1.0"

[tool.vbuild.matrix]
cpu = ["x86-64", "x86-64-v2", "x86-64-v3"]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return tree(tmp_path / "project", {"pyproject.toml": PROJECT})


def test_how_each_job_builds_is_handed_on(project: Path) -> None:
    options = ("--jobs", "4", "--fresh", "--locked")
    said = vbuild("matrix", ".", "--emit", "json", *options, folder=project).stdout
    assert all("--jobs 4 --fresh --locked" in part["shell"] for part in json.loads(said)["parts"])


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "more", [["--only", "plain"], ["--part"], ["-o", "dist"], ["--json"], ["--executor", "dask://h:1"]], ids="-".join
)
def test_what_has_no_effect_on_emitted_jobs_is_a_usage_mistake(project: Path, more: list[str]) -> None:
    said = vbuild("matrix", ".", "--emit", "json", *more, folder=project)
    assert said.returncode == 2
    assert "has no effect with --emit, which prints the jobs of every part" in said.stderr


def test_a_folder_is_checked_before_it_goes_out(tmp_path: Path) -> None:
    wheel(tmp_path / "dist")
    said = vbuild("check", "dist", folder=tmp_path)
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.splitlines()[-1].endswith(": 1 file, 0 errors, 1 warning")
    assert max(map(len, said.stdout.splitlines())) <= 80


def test_what_pypi_refuses_is_status_1(tmp_path: Path) -> None:
    stamp = ["-o", "dist", "-l", "fast", "-p", "x86_64 :: level :: v3"]
    assert vbuild("stamp", wheel(tmp_path / "plain"), *stamp, folder=tmp_path).returncode == 0
    said = vbuild("check", "dist", "--pypi", "--json", folder=tmp_path)
    assert said.returncode == 1
    assert said.stderr == "vbuild: dist: cannot be published as it is\n"
    assert "variant" in {finding["rule"] for finding in json.loads(said.stdout)["findings"]}


def test_a_wheel_without_code_is_portable_as_it_is(tmp_path: Path) -> None:
    source = wheel(tmp_path / "built")
    said = vbuild("repair", source, "portable", folder=tmp_path)
    assert (said.returncode, said.stdout) == (0, f"portable/{source.name}\n")
    assert (tmp_path / "portable" / source.name).read_bytes() == source.read_bytes()
