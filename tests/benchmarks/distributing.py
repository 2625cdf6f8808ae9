"""Small builds by two workers of a Dask cluster, against the same by this machine's own two threads.

    python -m tests.benchmarks.distributing --jobs 200

The jobs are the points of a free axis of one small C extension, each a build of its own, repaired, verified and
stamped. Both have a new cache in every round, and in it the answers of compilers, as one build was made before and is
passed over; the cluster, two worker processes with one thread each, is up. Workers should need at most 1.15 of the time
that `vbuild matrix --jobs 2` takes.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.factories.dask import Cluster, clustered
from tests.factories.projects import setuptools_project, tree
from tests.factories.workdir import Workdir

REACH = 1.15
ROUNDS = 2
WORKERS = ("one", "two")


def recipe(folder: Path, jobs: int) -> Path:
    """A recipe for so many builds of a project in *folder*; the first is the plain one."""
    setuptools_project(folder / "project")
    values = [f"v{number}" for number in range(jobs)]
    axis = [f'[matrix.axes.number.{value}]\nenv = {{ NUMBER = "{value}" }}\n' for value in values]
    named = [f'{table}properties = ["number :: is :: {value}"]\n' for table, value in zip(axis, values, strict=True)]
    head = 'name = "demo"\n[source]\npath = "project"\n[build]\ncache = "none"\n[matrix]\ncpu = ["x86-64"]\n'
    provider = f"[variant.providers.number]\nstatic-properties.is = {values}\n"
    return tree(folder, {"demo.toml": head + "".join(named) + provider}) / "demo.toml"


def timed(workdir: Workdir, source: Path, into: Path, *options: str) -> float:
    """The seconds in which a process makes all of *source*; `SystemExit` with what it says where it does not."""
    begun = time.perf_counter()
    ran = workdir.vbuild("matrix", source, "-o", into, *options)
    seconds = time.perf_counter() - begun
    if ran.returncode:
        sys.exit(f"{ran.stdout}\n{ran.stderr}")
    return seconds


def here(folder: Path, source: Path, name: str) -> float:
    """The time of this machine, with a new cache."""
    workdir = Workdir.at(folder / name)
    timed(workdir, source, workdir.folder / "warm", "--only", "plain", "--fresh")
    return timed(workdir, source, workdir.folder / "dist", "--jobs", "2", "--fresh")


def there(folder: Path, source: Path, cluster: Cluster, name: str) -> float:
    """The time of two workers, with a new cache."""
    workdir = Workdir.at(folder / name)
    for worker in WORKERS:
        cluster.work(f"{worker}-{name}", XDG_CACHE_HOME=str(workdir.cache))
    try:
        executor = ("--executor", str(cluster.executor))
        timed(workdir, source, folder / name / "warm", *executor, "--only", "plain", "--fresh")
        return timed(workdir, source, folder / name / "dist", *executor, "--fresh")
    finally:
        for worker in WORKERS:
            process = cluster.workers[f"{worker}-{name}"]
            process.terminate()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=200, help="how many builds")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often, in turn")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, clustered(Path(temporary, "dask")) as cluster:
        folder = Path(temporary)
        source = recipe(folder, asked.jobs)
        pairs = []
        for number in range(asked.rounds):
            ours, theirs = there(folder, source, cluster, f"there-{number}"), here(folder, source, f"here-{number}")
            pairs.append((ours, theirs))
            print(f"round {number}: {ours:.2f} s to {theirs:.2f} s, ratio {ours / theirs:.3f}", flush=True)
        same = subprocess.run(["diff", "-rq", *_dists(folder)], capture_output=True, text=True, check=False)
    ours, theirs = (statistics.median(times) for times in zip(*pairs, strict=True))
    reached = ours / theirs <= REACH
    print(f"{asked.jobs} jobs on Dask, 2 workers: ratio {ours / theirs:.3f} ({ours:.2f} s to {theirs:.2f} s); ", end="")
    print(f"reach {REACH}: {'reached' if reached else 'MISSED'}")
    differing = [line for line in same.stdout.splitlines() if ".whl" in line]
    if differing:
        sys.exit("\n".join(["wheels differ:", *differing]))
    sys.exit(not reached)


def _dists(folder: Path) -> list[str]:
    return [str(folder / "there-0" / "dist"), str(folder / "here-0" / "dist")]


if __name__ == "__main__":
    main()
