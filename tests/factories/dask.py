"""Dask clusters as one starts them on a shell: a scheduler and workers, each a process of its own."""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from vbuild.workers.executor import Executor

PRELOAD = ("--preload", "vbuild.workers.worker")
STARTS = 60.0  # seconds

needs_dask = pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="Dask is not installed")


@dataclass(frozen=True, slots=True)
class Cluster:
    """A scheduler whose files are in *folder*, and the workers that were started for it."""

    folder: Path
    scheduler: subprocess.Popen[bytes]
    workers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """Host and port."""
        found = json.loads((self.folder / "scheduler.json").read_text())
        return str(found["address"]).removeprefix("tcp://")

    @property
    def executor(self) -> Executor:
        return Executor(self.address)

    def work(
        self,
        name: str,
        *options: str,
        preload: tuple[str, ...] = PRELOAD,
        nanny: bool = False,
        python: str = sys.executable,
        **variables: str,
    ) -> subprocess.Popen[bytes]:
        """The process of a worker called *name* with one thread, when it has joined; a *nanny* starts it again."""
        command = (
            *(python, "-m", "distributed.cli.dask_worker", "--scheduler-file", str(self.folder / "scheduler.json")),
            *("--nthreads", "1", "--no-dashboard", "--nanny" if nanny else "--no-nanny", "--name", name),
            *("--local-directory", str(self.folder / "local"), *options, *preload),
        )
        self.workers[name] = _started(self.folder / f"{name}.log", *command, **variables)
        self.until(lambda: "Starting established connection" in self.said(name))
        return self.workers[name]

    def said(self, name: str) -> str:
        """What the worker called *name* has logged."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def until(self, happens: Callable[[], object], *, seconds: float = STARTS) -> None:
        """Wait until something *happens*."""
        deadline = time.monotonic() + seconds
        while not happens():
            assert time.monotonic() < deadline, {path.name: path.read_text() for path in self.folder.glob("*.log")}
            time.sleep(0.02)


@contextlib.contextmanager
def clustered(folder: Path, *workers: str, python: str = sys.executable, **variables: str) -> Iterator[Cluster]:
    """A scheduler with those *workers*, and nothing of it afterwards; *variables* are the scheduler's."""
    folder.mkdir(parents=True, exist_ok=True)
    command = (python, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0")
    files = ("--scheduler-file", str(folder / "scheduler.json"), "--no-dashboard")
    cluster = Cluster(folder, _started(folder / "scheduler.log", *command, *files, **variables))
    try:
        cluster.until((folder / "scheduler.json").exists)
        for name in workers:
            cluster.work(name)
        yield cluster
    finally:
        for process in (*cluster.workers.values(), cluster.scheduler):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _started(log: Path, *command: str, **variables: str) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            cwd=log.parent,  # not where vbuild is: a worker may have another
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
