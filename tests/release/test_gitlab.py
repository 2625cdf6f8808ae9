"""The pipeline for GitLab: sound to the official schema, within its limits, and each job one part."""

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.factories.emitted_recipes import LEVELS, recipes_of_every_kind, values, written_recipe
from tests.factories.judges import schema_says
from tests.factories.workflows import words
from vbuild.recipe.model import Recipe
from vbuild.release.emit import CHECK, INSTALL, CiSystem, emitted, parts

OWN = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def builds(pipeline: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Each job's part, and its script."""
    for name, job in pipeline.items():
        if name.startswith("build-"):
            [row] = job["parallel"]["matrix"]
            [script] = job["script"]
            yield from ((part, script) for part in row["PART"])


def test_each_job_runs_exactly_the_command_of_its_part(folder: Path) -> None:
    for source in recipes_of_every_kind(folder)[:2]:
        found = parts(Recipe.load(source))
        jobs = builds(yaml.safe_load(emitted(source, CiSystem.GITLAB)))
        called = [words(script, PART=name, HOME="/root") for name, script in jobs]
        assert called == [[[*part.command(str(source), "parts")[1:]]] for part in found]


def test_no_job_is_made_more_often_than_gitlab_does(folder: Path) -> None:
    source = written_recipe(folder, values(600))
    pipeline = yaml.safe_load(emitted(source, CiSystem.GITLAB))
    matrices = [job["parallel"]["matrix"][0]["PART"] for name, job in pipeline.items() if name.startswith("build-")]
    assert [len(names) for names in matrices] == [200, 200, 200]
    assert [name for names in matrices for name in names] == [part.name for part in parts(Recipe.load(source))]


def test_the_last_job_collects_what_there_is_also_where_builds_failed(folder: Path) -> None:
    pipeline = yaml.safe_load(emitted(written_recipe(folder, f"[matrix]\n{LEVELS}"), CiSystem.GITLAB))
    assert pipeline["stages"] == ["build", "collect"]
    assert pipeline["collect"] == {
        "extends": ".vbuild",
        "stage": "collect",
        "when": "always",
        "timeout": "6 hours",
        "script": ["vbuild collect parts -o dist --recipe demo.toml"],
        "artifacts": {"when": "always", "paths": ["dist/"]},
    }
    assert pipeline[".build"]["artifacts"] == {"when": "always", "expire_in": "1 week", "paths": ["parts/"]}


def test_jobs_have_vbuild_and_the_pythons_that_the_recipe_names(folder: Path) -> None:
    levels, odd, _ = recipes_of_every_kind(folder)
    pipeline = yaml.safe_load(emitted(levels, CiSystem.GITLAB))
    assert pipeline[".vbuild"]["image"] == f"python:{OWN}"
    assert pipeline[".vbuild"]["before_script"] == [INSTALL, CHECK]
    pipeline = yaml.safe_load(emitted(odd, CiSystem.GITLAB))
    assert pipeline[".vbuild"]["before_script"] == [
        INSTALL,
        CHECK,
        shlex.join(["uv", "python", "install", "3.9", "3.10", "3.13t", "pypy3.10"]),
    ]


@pytest.mark.nightly
def test_the_official_schema_takes_what_is_emitted(folder: Path) -> None:
    file = folder / ".gitlab-ci.yml"
    for source in recipes_of_every_kind(folder):
        file.write_text(emitted(source, CiSystem.GITLAB))
        assert schema_says("gitlab-ci", file) == ""
    file.write_text(file.read_text().replace("when: always", "when: ever"))
    assert "when" in schema_says("gitlab-ci", file)
