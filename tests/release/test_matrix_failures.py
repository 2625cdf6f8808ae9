"""Builds of a matrix that fail, and disks that are full: what is said, and that all stays as it was.

The wheels of a former release stay, and so does all finished work; nothing half-written is left beside them.
"""

import json
import os
from pathlib import Path

import pytest

from tests.factories.kernels import TWO, cuda_project, with_recipe
from tests.factories.tools import needs
from tests.factories.workdir import VBUILD, Workdir, on_small_disk, refusal, stage_folders, wheels

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="builds for x86-64"),
]


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Workdir:
    """A release of a plain wheel, one for 8.0 and one for 9.0."""
    folder = tmp_path_factory.mktemp("released")
    cuda_project(folder / "project", archs=(80, 90))
    workdir = with_recipe(Workdir.at(folder), TWO)
    assert workdir.vbuild("matrix", "demo.toml", "-o", "out").returncode == 0
    return workdir


def failed(workdir: Workdir, **variables: str) -> str:
    """What is said of a release of which nothing comes; the former one and all finished work stay as they are."""
    out = workdir.folder / "out"
    before, work = {**wheels(out), "": (out / "demo-1.0-variants.json").read_bytes()}, workdir.finished_work()
    ran = workdir.vbuild("matrix", "demo.toml", "-o", "out", **variables)
    count = ran.stdout.count("plain, sm80, sm90 failed: ")
    assert refusal(ran) == "demo: 3 of 3 targets failed"
    assert count == 1
    assert {**wheels(out), "": (out / "demo-1.0-variants.json").read_bytes()} == before
    assert workdir.finished_work() == work
    assert stage_folders(out) == []
    report = json.loads((out / "report.json").read_text())
    assert (report["wheels"], len(report["failures"])) == ([], 3)
    assert {path.name for path in out.iterdir() if path.suffix != ".whl"} == {
        "demo-1.0-variants.json",
        "provenance.json",
        "report.html",
        "report.json",
        "logs",
    }
    return " ".join(ran.stdout.split())


@pytest.mark.nightly
@needs("gcc", "g++")
@pytest.mark.parametrize("size", ["40k", "200k", "1m", "5m"])
def test_a_disk_that_is_full_while_wheels_are_made_is_named(released: Workdir, tmp_path: Path, size: str) -> None:
    workdir = Workdir(released.folder, released.cache)
    disk = tmp_path / "small"
    command = (*VBUILD, "matrix", "demo.toml", "-o", disk / "out", "--fresh")
    ran, left = on_small_disk(workdir, disk, size, *command)
    said = refusal(ran)
    assert said == f"{disk}/out: cannot be written to: No space left on device" or "targets failed" in said
    assert [path for path in left if "/logs/" not in path and not Path(path).name.startswith("report.")] == []
