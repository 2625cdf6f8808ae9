"""Workers, schedulers and clients that go away while a matrix is made: what is lost, what is kept, what stops.

A build stops at a gate, a file that is there, and says on which worker it is, so that a test knows whom to kill.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.factories.dask import Cluster, clustered, needs_dask
from tests.factories.projects import setuptools_project, tree
from tests.factories.tools import needs
from tests.factories.workdir import Workdir, refusal, stage_folders, wheels
from vbuild.release.cache import BuildCache
from vbuild.release.matrix import matrix
from vbuild.workers.executor import Executor

GATE = """
import os, re, time
from pathlib import Path

folder = Path({folder!r})
level = re.findall("-march=(\\\\S+)", os.environ["CFLAGS"])[-1]
with (folder / "begun").open("a") as file:
    file.write(f"{{level}} {{os.environ.get('WORKER', 'here')}} {{os.getpid()}}\\n")
while (folder / level).exists():
    time.sleep(0.05)
"""
LEVELS = '[build]\npass-env = ["WORKER"]\n[matrix]\ncpu = ["x86-64", "x86-64-v2", "x86-64-v3"]\n'

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="builds for x86-64"),
    needs("gcc"),
    needs_dask,
]


@dataclass(frozen=True, slots=True)
class Begun:
    """A build that has begun: its level, on which worker, in which process."""

    level: str
    worker: str
    pid: int


@dataclass(frozen=True, slots=True)
class Workplace:
    """A workdir with a recipe whose builds have gates, and a cluster beside it."""

    workdir: Workdir
    cluster: Cluster

    @property
    def dist(self) -> Path:
        return self.workdir.folder / "dist"

    def work(self, *names: str, nanny: bool = False) -> None:
        for name in names:
            cache = str(self.workdir.cache)
            self.cluster.work(name, nanny=nanny, WORKER=name, XDG_CACHE_HOME=cache)

    def started(self, *, on: Executor | None = None) -> subprocess.Popen[str]:
        """The process that makes the release, on the cluster or *on* another."""
        return self.workdir.started("matrix", "demo.toml", "-o", "dist", "--executor", on or self.cluster.executor)

    def close(self, *levels: str) -> None:
        for level in levels:
            (self.workdir.folder / "gates" / level).touch()

    def open(self, *levels: str) -> None:
        for level in levels:
            (self.workdir.folder / "gates" / level).unlink()

    def begun(self) -> list[Begun]:
        """The builds that have begun, in their order."""
        file = self.workdir.folder / "gates/begun"
        lines = file.read_text().splitlines() if file.exists() else []
        return [Begun(level, worker, int(pid)) for level, worker, pid in map(str.split, lines)]

    def at(self, level: str) -> Begun:
        """The last build for *level*, which waits at its gate."""
        self.cluster.until(lambda: any(build.level == level for build in self.begun()))
        return [build for build in self.begun() if build.level == level][-1]


@pytest.fixture
def workplace(tmp_path: Path) -> Iterator[Workplace]:
    project = setuptools_project(tmp_path / "project")
    gate = GATE.format(folder=str(tmp_path / "gates"))
    tree(project, {"setup.py": gate + (project / "setup.py").read_text(), "pyproject.toml": ""})
    tree(tmp_path, {"demo.toml": f'name = "demo"\n[source]\npath = "project"\n{LEVELS}', "gates/readme": ""})
    with clustered(tmp_path / "dask") as cluster:
        yield Workplace(Workdir.at(tmp_path), cluster)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def ended(process: subprocess.Popen[str], *, seconds: float = 60) -> subprocess.CompletedProcess[str]:
    out, err = process.communicate(timeout=seconds)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.mark.nightly
def test_the_job_of_a_worker_that_is_killed_is_done_elsewhere(workplace: Workplace) -> None:
    workplace.work("one", "two")
    workplace.close("x86-64-v3")
    run = workplace.started()
    lost = workplace.at("x86-64-v3")
    workplace.cluster.workers[lost.worker].kill()
    workplace.cluster.until(lambda: workplace.at("x86-64-v3").worker != lost.worker)
    # what the lost worker had started did not outlive it for long
    workplace.cluster.until(lambda: not is_running(lost.pid), seconds=10)
    workplace.open("x86-64-v3")
    ran = ended(run)
    assert (ran.returncode, ran.stderr) == (0, "")
    here = matrix(workplace.workdir.folder / "demo.toml", workplace.workdir.folder / "here", store=_store(workplace))
    assert wheels(workplace.dist) == wheels(workplace.workdir.folder / "here")
    assert len(here.products) == 3
    assert stage_folders(workplace.dist) == []


def _store(workplace: Workplace) -> BuildCache:
    return BuildCache(workplace.workdir.folder / "own store")


@pytest.mark.nightly
def test_a_scheduler_that_is_killed_leaves_what_is_finished(workplace: Workplace) -> None:
    workplace.work("one", "two")
    workplace.close("x86-64-v3")
    run = workplace.started()
    build = workplace.at("x86-64-v3")
    stage = next(iter(workplace.dist.glob(".vbuild-*")))
    workplace.cluster.until(lambda: len(list((stage / "made").rglob("*.whl"))) == 2)
    workplace.cluster.scheduler.kill()
    ran = ended(run, seconds=30)
    assert refusal(ran) == "demo: 1 of 3 targets failed"
    assert len(wheels(workplace.dist)) == 2
    said = " ".join(ran.stdout.split())
    why = f"{workplace.cluster.executor}: the scheduler was lost before this was done; what is done is kept"
    assert f"x86_64_v3 failed: {why}" in said
    [failure] = json.loads((workplace.dist / "report.json").read_text())["failures"]
    assert (failure["label"], failure["error"], failure["log"]) == ("x86_64_v3", why, None)
    assert sorted(json.loads((workplace.dist / "demo-1.0-variants.json").read_text())["variants"]) == ["x86_64_v2"]
    assert stage_folders(workplace.dist) == []
    # workers end without their scheduler, and so does what they had started
    workplace.cluster.until(lambda: not is_running(build.pid), seconds=60)


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_client_leaves_at_once_and_its_builds_stop(workplace: Workplace, number: int) -> None:
    workplace.work("one", "two")
    workplace.close("x86-64", "x86-64-v2")
    run = workplace.started()
    builds = [workplace.at("x86-64"), workplace.at("x86-64-v2")]
    run.send_signal(number)
    begun = time.monotonic()
    ran = ended(run)
    assert time.monotonic() - begun < 5
    assert ran.returncode != 0
    assert "Traceback" not in ran.stderr
    assert not workplace.dist.exists()
    workplace.cluster.until(lambda: not any(is_running(build.pid) for build in builds), seconds=10)
    # and the workers are free for what comes next
    workplace.open("x86-64", "x86-64-v2")
    again = ended(workplace.started())
    assert (again.returncode, again.stderr) == (0, "")


@pytest.mark.nightly
def test_the_builds_of_a_client_that_is_killed_stop(workplace: Workplace) -> None:
    workplace.work("one")
    workplace.close("x86-64")
    run = workplace.started()
    build = workplace.at("x86-64")
    run.kill()
    run.communicate()
    workplace.cluster.until(lambda: not is_running(build.pid), seconds=15)
    workplace.open("x86-64")
    again = ended(workplace.started())
    assert (again.returncode, again.stderr) == (0, "")
    assert stage_folders(workplace.dist) == []
