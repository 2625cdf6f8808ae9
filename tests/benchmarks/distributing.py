"""Small builds by two workers of a Dask cluster, against the same by this machine's own two threads.

The jobs are the points of a free axis of one small C extension, each a build of its own, repaired, verified and
stamped. Both have a new cache in every round, and in it the answers of compilers, as one build was made before and is
passed over; the cluster, two worker processes with one thread each, is up.
"""

import time
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.figure import Broken, Figure, Made, Peer, Sample, Setting
from tests.benchmarks.inputs import last_line
from tests.factories.dask import clustered
from tests.factories.projects import setuptools_project, tree
from tests.factories.workdir import Workdir

JOBS = 200
WORKERS = ("one", "two")
FRESH = ("--only", "plain", "--fresh")


def recipe(folder: Path, jobs: int) -> None:
    """A recipe for so many builds of a project, in *folder*; the first is the plain one."""
    setuptools_project(folder / "project")
    values = [f"v{number}" for number in range(jobs)]
    axis = [f'[matrix.axes.number.{value}]\nenv = {{ NUMBER = "{value}" }}\n' for value in values]
    named = [f'{table}properties = ["number :: is :: {value}"]\n' for table, value in zip(axis, values, strict=True)]
    head = 'name = "demo"\n[source]\npath = "project"\n[build]\ncache = "none"\n[matrix]\ncpu = ["x86-64"]\n'
    provider = f"[variant.providers.number]\nstatic-properties.is = {values}\n"
    tree(folder, {"demo.toml": head + "".join(named) + provider})


RECIPE = Made(recipe, (JOBS,))


def figures() -> Iterator[Figure]:
    yield Figure(
        name="dask",
        what="200 small builds on two Dask workers",
        measure=_distributed,
        peer=Peer("`vbuild matrix --jobs 2`", _alone),
        reach=1.15,
        pairs=3,
        inputs=(RECIPE,),
        tools=("gcc",),
        repeatable=False,
    )


def _alone(setting: Setting) -> Sample:
    """The time of this machine, with a new cache."""
    workdir = Workdir.at(setting.folder / "work")
    _built(workdir, setting, "warm", *FRESH)
    return _built(workdir, setting, "dist", "--jobs", "2", "--fresh")


def _distributed(setting: Setting) -> Sample:
    """The time of two workers, with a new cache."""
    workdir = Workdir.at(setting.folder / "work")
    with clustered(setting.folder / "dask") as cluster:
        for worker in WORKERS:
            cluster.work(worker, XDG_CACHE_HOME=str(workdir.cache))
        executor = ("--executor", str(cluster.executor))
        _built(workdir, setting, "warm", *executor, *FRESH)
        return _built(workdir, setting, "dist", *executor, "--fresh")


def _built(workdir: Workdir, setting: Setting, into: str, *options: str) -> Sample:
    """The seconds in which a process makes all of the recipe. Raises Broken if it fails."""
    begun = time.perf_counter()
    ran = workdir.vbuild("matrix", setting.inputs[RECIPE] / "demo.toml", "-o", setting.folder / into, *options)
    seconds = time.perf_counter() - begun
    if ran.returncode:
        raise Broken(f"vbuild matrix: exit {ran.returncode}: {last_line(ran.stderr)}")
    return Sample(seconds)
