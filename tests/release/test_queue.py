"""In which order builds begin that are more than run at a time."""

import json
import os
from pathlib import Path

import pytest

from tests.factories.projects import c_project, tree
from vbuild.recipe.target import Target
from vbuild.release.cache import BuildCache
from vbuild.release.matrix import MatrixRequest, matrix

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="builds for x86-64")


def begun(folder: Path) -> list[str]:
    """The targets of *folder*/demo.toml in the order in which their builds begin, one at a time."""
    found: list[str] = []

    def on_progress(target: Target, step: str) -> None:
        if step == "building":
            found.append(str(target))

    request = MatrixRequest(jobs=1)
    store = BuildCache(folder / "store", fresh=True)
    assert not matrix(folder / "demo.toml", folder / "dist", request, store=store, on_progress=on_progress).failures
    return found


@pytest.mark.nightly  # it waits for builds
def test_builds_that_took_longest_begin_first_and_new_ones_before_them(tmp_path: Path) -> None:
    c_project(tmp_path / "project")
    levels = 'cpu = ["x86-64", "x86-64-v2", "x86-64-v3"]'
    tree(tmp_path, {"demo.toml": f'name = "demo"\n[source]\npath = "project"\n[matrix]\n{levels}\n'})
    assert begun(tmp_path) == ["plain", "x86_64_v2", "x86_64_v3"]

    path = tmp_path / "dist" / "report.json"
    report = json.loads(path.read_text())
    seconds = {None: 1, "x86_64_v2": 3, "x86_64_v3": 2}
    for wheel in report["wheels"]:
        wheel["build_seconds"] = seconds[wheel["label"]]
    path.write_text(json.dumps(report))
    assert begun(tmp_path) == ["x86_64_v2", "x86_64_v3", "plain"]

    report["wheels"] = [wheel for wheel in report["wheels"] if wheel["label"] != "x86_64_v3"]
    path.write_text(json.dumps(report))
    assert begun(tmp_path) == ["x86_64_v3", "x86_64_v2", "plain"]

    path.write_text("no report")
    assert begun(tmp_path) == ["plain", "x86_64_v2", "x86_64_v3"]
