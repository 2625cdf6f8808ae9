"""What is emitted is carried out, job by job, as each system does it, and makes the release that one run makes.

Fresh copies of a real project for each job, bash for its steps, this environment's vbuild; what systems do themselves,
checking out and handing artifacts on, is done by these tests.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.factories.projects import c_project, tree
from tests.factories.tools import needs
from tests.factories.workflows import Job, checkout, environment, jobs_of, run
from vbuild import DISTRIBUTION
from vbuild.release.emit import INSTALL, CiSystem, emitted

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.network, pytest.mark.skipif(os.uname().machine != "x86_64", reason="builds for x86-64")]

RECIPE = "build it/all.toml"
VERSION = version(DISTRIBUTION)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a project and its recipe, in folders with blanks in their names."""
    folder = tmp_path_factory.mktemp("my repository")
    c_project(folder / "src")
    levels = '["x86-64", "x86-64-v3"]'
    text = f'name = "demo"\n[source]\npath = "../src"\n[matrix]\ncpu = {levels}\n'
    tree(folder, {RECIPE: text})
    return folder


@pytest.fixture(scope="module")
def whole(project: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The wheels that one run makes of *project*, and their index."""
    folder = tmp_path_factory.mktemp("whole")
    run(f"vbuild matrix '{RECIPE}' -o '{folder}/dist'", checkout(project, folder / "work"))
    return published(folder / "dist")


def workflow(project: Path, system: CiSystem, monkeypatch: pytest.MonkeyPatch) -> str:
    """What *project* is emitted as, in its own folder."""
    monkeypatch.chdir(project)
    return emitted(Path(RECIPE), system)


def published(folder: Path) -> dict[str, bytes]:
    """What installers take from the release in *folder*, in which nothing is missing and all is proved."""
    report = json.loads((folder / "report.json").read_text())
    assert [wheel["label"] for wheel in report["wheels"]] == [None, "x86_64_v3"]
    assert not report["failures"]
    assert {wheel["verdict"]["isa"] for wheel in report["wheels"]} == {"ok"}
    return {path.name: path.read_bytes() for path in [*folder.glob("*.whl"), *folder.glob("*-variants.json")]}


def _uploaded(job: Job, workspace: Path, artifacts: Path) -> None:
    for step in job.steps:
        if step.get("uses", "").startswith("actions/upload-artifact@"):
            checkout(workspace / step["with"]["path"], artifacts / step["with"]["name"])


@pytest.mark.nightly
def test_the_workflow_for_github(
    project: Path, whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    *builds, last = jobs_of(workflow(project, CiSystem.GITHUB, monkeypatch))
    for number, job in enumerate(builds):
        workspace = checkout(project, tmp_path / f"runner {number}")
        for script in job.scripts:
            if script != INSTALL:
                run(script, workspace)
        _uploaded(job, workspace, tmp_path / "artifacts")
    workspace = checkout(project, tmp_path / "runner")
    for script in last.scripts:
        if "gh run download" in script:
            checkout(tmp_path / "artifacts", workspace / "parts")  # each in a folder of its name
        elif script != INSTALL:
            run(script, workspace)
    _uploaded(last, workspace, tmp_path / "published")
    assert published(tmp_path / "published" / "release") == whole


@pytest.mark.nightly
def test_the_commands_in_json(
    project: Path, whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = json.loads(workflow(project, CiSystem.JSON, monkeypatch))
    folder = checkout(project, tmp_path / "work")
    for command in [*(part["command"] for part in told["parts"]), told["collect"]["command"]]:
        subprocess.run(command, cwd=folder, env=environment(), check=True, capture_output=True, timeout=300)
    assert all((folder / part["folder"] / "report.json").is_file() for part in told["parts"])
    assert published(folder / told["collect"]["folder"]) == whole


def _steps(file: str, job: str) -> Iterator[str]:
    text = (ROOT / ".github" / "workflows" / file).read_text()
    for step in yaml.safe_load(text)["jobs"][job]["steps"]:
        if "run" in step and not step["run"].startswith("pip install"):
            yield step["run"]


def _planned(folder: Path, source: str) -> list[dict[str, Any]]:
    """The chunks that the reusable workflow's first job makes of the recipe at *source*."""
    chunks: list[dict[str, Any]] = json.loads(_outputs(folder, source)["chunks"])
    return chunks


def _outputs(folder: Path, source: str, *, vbuild: str = "vbuild-wheels") -> dict[str, str]:
    """What the reusable workflow's first job hands on, which was told to install *vbuild*."""
    [plan] = _steps("vbuild.yml", "plan")
    output = folder / "output"
    output.unlink(missing_ok=True)
    run(plan, folder, SOURCE=source, VBUILD=vbuild, GITHUB_OUTPUT=str(output))
    return dict(line.split("=", 1) for line in output.read_text().splitlines())


@pytest.mark.nightly
@needs("jq")
def test_the_reusable_workflow(project: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    workspace = checkout(project, tmp_path / "runner")
    chunks = _planned(workspace, RECIPE)
    assert chunks == [{"number": 1, "parts": ["plain", "x86_64_v3"]}]
    [build] = _steps("vbuild-builds.yml", "build")
    for part in chunks[0]["parts"]:
        place = checkout(project, tmp_path / part)
        run(build, place, SOURCE=RECIPE, PART=part, OPTIONS="--jobs 2", RUNNER_TEMP=str(tmp_path))
        checkout(place / "parts" / part, workspace / "parts" / f"release-part-{part}")
    fetch, collect = _steps("vbuild.yml", "collect")
    assert "gh run download" in fetch
    run(collect, workspace, SOURCE=RECIPE)
    assert published(workspace / "dist") == whole


@pytest.mark.nightly
@needs("jq")
@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("vbuild-wheels", f"vbuild-wheels=={VERSION}"),
        ("vbuild-wheels >= 0, < 9", f"vbuild-wheels=={VERSION}"),
        ("vbuild-wheels[dask,cibuildwheel]~=1.0; python_version > '3'", f"vbuild-wheels[dask,cibuildwheel]=={VERSION}"),
        ("git+https://example.org/vbuild", "git+https://example.org/vbuild"),
        ("vbuild-wheels @ https://example.org/v.whl", "vbuild-wheels @ https://example.org/v.whl"),
        ("./dist/vbuild_wheels-1.0-py3-none-any.whl", "./dist/vbuild_wheels-1.0-py3-none-any.whl"),
        ("vbuild_wheels-1.0-py3-none-any.whl", "vbuild_wheels-1.0-py3-none-any.whl"),
    ],
)
def test_the_reusable_workflow_keeps_to_the_version_it_began_with(
    wanted: str, expected: str, project: Path, tmp_path: Path
) -> None:
    assert _outputs(checkout(project, tmp_path / "runner"), RECIPE, vbuild=wanted)["vbuild"] == expected
