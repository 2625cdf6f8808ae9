"""Which runs of cibuildwheel are the same, and what is taken of a kept one."""

import os
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.factories.cibuildwheel_runs import CP311, CP312, KIT, LEVELS, described, runs_of
from vbuild.build.cibuildwheel.making import KeptRuns, RunFiles
from vbuild.build.cibuildwheel.program import Arguments, Cibuildwheel
from vbuild.build.cibuildwheel.runs import CibuildwheelRun
from vbuild.files.cache import Cache, Part

KEPT = KeptRuns(Cibuildwheel.found(), Arguments.parse(()), {"PATH": os.defpath}, "/usr/bin/podman", "/host/kit")


@pytest.fixture
def run(tmp_path: Path) -> CibuildwheelRun:
    return runs_of(
        described(tmp_path / "project", LEVELS + '[tool.cibuildwheel.linux]\nenvironment-pass = ["ASKED"]\n')
    )[1]


def key_of(project: Path, run: CibuildwheelRun, kept: KeptRuns = KEPT) -> str | None:
    with chdir(project):
        return kept.key(run)


def edited(project: Path, run: CibuildwheelRun) -> tuple[CibuildwheelRun, KeptRuns]:
    (project / "demo.c").write_text("int demo;\n")
    return run, KEPT


CHANGES: dict[str, Callable[[Path, CibuildwheelRun], tuple[CibuildwheelRun, KeptRuns]]] = {
    "file": edited,
    "identifiers": lambda _, run: (replace(run, identifiers=(CP312,)), KEPT),
    "variables": lambda _, run: (replace(run, variables=(*run.variables, ("A", "1"))), KEPT),
    "option": lambda _, run: (run, replace(KEPT, environment={**KEPT.environment, "CIBW_BUILD_VERBOSITY": "1"})),
    "passed": lambda _, run: (run, replace(KEPT, environment={**KEPT.environment, "ASKED": "1"})),
    "words": lambda _, run: (run, replace(KEPT, arguments=Arguments.parse(["--only", CP311]))),
    "engine": lambda _, run: (run, replace(KEPT, engine="/usr/bin/docker")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_may_change_the_wheels_changes_the_key(tmp_path: Path, run: CibuildwheelRun, change: str) -> None:
    project = tmp_path / "project"
    before = key_of(project, run)
    other, kept = CHANGES[change](project, run)
    assert key_of(project, other, replace(kept, arguments=kept.arguments)) != before


def test_what_changes_nothing_leaves_the_key(tmp_path: Path, run: CibuildwheelRun) -> None:
    project = tmp_path / "project"
    before = key_of(project, run)
    (project / "dist").mkdir()
    (project / "dist" / "demo.whl").write_text("")
    kept = replace(KEPT, environment={**KEPT.environment, "OTHER": "1"}, without=project / "dist")
    assert key_of(project, run, kept) == before
    # where vbuild's own part is on the host is another place in each run
    moved = replace(run, variables=tuple((name, text.replace(str(KIT), "/host/new")) for name, text in run.variables))
    assert key_of(project, moved, replace(kept, setup="/host/new")) == before


def test_a_damaged_run_is_dropped_and_leaves_no_wheel(tmp_path: Path) -> None:
    files = RunFiles(tmp_path / "wheels", tmp_path / "logs", tmp_path / "log")
    files.output.mkdir()
    (entry := Cache.of(Part.BUILDS).folder / "runs" / "key").mkdir(parents=True)
    (entry / "entry.json").write_text("{}")
    assert KEPT.taken("key", files) is None
    assert not entry.exists()
    assert not [*files.output.iterdir()]
