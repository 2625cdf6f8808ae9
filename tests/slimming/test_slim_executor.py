"""Wheels slimmed by workers: the same outputs, results, refusals and order as here."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.factories.dask import Cluster, clustered, needs_dask
from tests.factories.workdir import Workdir, refusal, wheels
from tests.slimming.test_slim import FAT, LIBRARY, NAME, fat_wheel
from vbuild.errors import BuildError, RepackageError, VbuildError
from vbuild.hardware.gpu import GpuList
from vbuild.slimming.request import Cuts, Share
from vbuild.slimming.results import Slimmed
from vbuild.slimming.slim import slim
from vbuild.workers.executor import LOCAL, Executor

SHARES = (Share.parse("sm80=80"), Share.parse("sm90=90"))
ANY = (Share(GpuList.parse("90")),)

pytestmark = needs_dask


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with clustered(tmp_path_factory.mktemp("cluster"), "one", "two") as cluster:
        yield cluster


def several(folder: Path, count: int = 5) -> list[Path]:
    """Wheels of as many releases, the third of which has no GPU code."""
    folder.mkdir()
    names = [NAME.replace("demo-1.0", f"demo-1.{number}") for number in range(count)]
    return [
        fat_wheel(folder, {"demo/number.txt": b"%d" % number}, name=name, library=b"text" if number == 2 else FAT)
        for number, name in enumerate(names)
    ]


def outcome(paths: list[Path], folder: Path | None, executor: Executor, **options: object) -> list[object]:
    """What comes of slimming *paths*, as JSON takes it; and what it is refused with."""
    try:
        results = slim(paths, folder, executor=executor, **options)  # type: ignore[arg-type]
    except VbuildError as error:
        return [type(error), str(error)]
    assert all(isinstance(result, Slimmed) and result.wheel.exists() for result in results)
    return [{**result.data(), "path": result.path and result.path.name} for result in results]


def same(paths: list[Path], folder: Path, cluster: Cluster, **options: object) -> list[object]:
    """What comes of slimming *paths* in *folder*, there as well as here."""
    there = outcome(paths, folder / "out", cluster.executor, **options)
    files = {path.name: path.read_bytes() for path in (folder / "out").glob("*")}
    (folder / "out").rename(folder / "there") if files else None
    assert there == outcome(paths, folder / "out", LOCAL, **options)
    assert files == {path.name: path.read_bytes() for path in (folder / "out").glob("*")}
    return there


def test_workers_slim_many_wheels_as_this_machine_does(two: Cluster, tmp_path: Path) -> None:
    found = same(several(tmp_path / "in"), tmp_path, two, shares=SHARES)
    assert len(found) == 4 * 2 + 1
    assert len(list((tmp_path / "out").glob("*-variants.json"))) == 4


def test_one_wheel_of_each_keeps_its_name(two: Cluster, tmp_path: Path) -> None:
    same(several(tmp_path / "in"), tmp_path, two, shares=ANY, cuts=Cuts(drop=("demo/number.txt",)))


def test_nothing_is_written_in_a_dry_run(two: Cluster, tmp_path: Path) -> None:
    paths = several(tmp_path / "in")
    there = outcome(paths, None, two.executor, shares=SHARES)
    assert there == outcome(paths, None, LOCAL, shares=SHARES)
    assert {path.name for path in tmp_path.iterdir()} == {"in"}


def test_progress_is_told_wheel_by_wheel(two: Cluster, tmp_path: Path) -> None:
    paths = several(tmp_path / "in")
    heard: list[tuple[str, int, int]] = []
    slim(paths, tmp_path / "out", shares=ANY, executor=two.executor, on_progress=lambda *said: heard.append(said))
    total = sum(path.stat().st_size for path in paths)
    assert list(dict.fromkeys(name for name, _, _ in heard)) == [path.name for path in paths]
    assert heard[-1] == (paths[-1].name, total, total)
    assert [done for _, done, _ in heard] == sorted(done for _, done, _ in heard)


def test_a_wheel_that_is_refused_ends_it_and_those_before_stay(two: Cluster, tmp_path: Path) -> None:
    paths = several(tmp_path / "in")
    paths[3].write_bytes(paths[3].read_bytes()[:-50])
    kind, said = same(paths, tmp_path, two, shares=ANY)
    assert isinstance(kind, type)
    assert issubclass(kind, VbuildError)
    assert str(said).startswith(f"{paths[3].name}: ")
    assert list(wheels(tmp_path / "out")) == [path.name for path in paths[:3]]


def test_a_gpu_that_nothing_serves_is_refused_there_as_here(two: Cluster, tmp_path: Path) -> None:
    kind, said = same(several(tmp_path / "in"), tmp_path, two, shares=(Share(GpuList.parse("70")),))
    assert kind is RepackageError
    assert str(said).startswith(f"{NAME}: {LIBRARY}: ")


def test_a_wheel_that_is_not_there_is_refused_there_as_here(two: Cluster, tmp_path: Path) -> None:
    paths = [*several(tmp_path / "in", 1), tmp_path / "in" / NAME.replace("demo", "gone")]
    kind, said = same(paths, tmp_path, two, shares=ANY)
    assert isinstance(kind, type)
    assert "No such file" in str(said)
    assert len(wheels(tmp_path / "out")) == 1


def test_a_wheel_is_not_put_in_the_place_of_what_it_is_made_from(two: Cluster, tmp_path: Path) -> None:
    paths = several(tmp_path / "in", 1)
    before = paths[0].read_bytes()
    there = outcome(paths, paths[0].parent, two.executor, shares=ANY)
    assert there == outcome(paths, paths[0].parent, LOCAL, shares=ANY)
    assert "would overwrite the wheel it is made from" in str(there[1])
    assert [path.read_bytes() for path in paths[0].parent.iterdir()] == [before]


def test_a_folder_in_the_place_of_an_output_is_refused(two: Cluster, tmp_path: Path) -> None:
    paths = several(tmp_path / "in", 1)
    (tmp_path / "out" / NAME).mkdir(parents=True)
    there = outcome(paths, tmp_path / "out", two.executor, shares=ANY)
    assert there == outcome(paths, tmp_path / "out", LOCAL, shares=ANY)
    assert str(there[1]).endswith("cannot be written: Is a directory")


@pytest.mark.nightly
def test_a_lost_worker_loses_no_wheel(tmp_path: Path) -> None:
    paths = several(tmp_path / "in", 12)
    with clustered(tmp_path / "dask", "one", "two") as cluster:
        killed: list[int] = []

        def told(_name: str, done: int, _total: int) -> None:
            if done and not killed:
                killed.append(cluster.workers["one"].pid)
                os.kill(killed[0], signal.SIGKILL)

        slim(paths, tmp_path / "out", shares=ANY, executor=cluster.executor, on_progress=told)
    assert killed
    assert list(wheels(tmp_path / "out")) == sorted(path.name for path in paths)


@pytest.mark.nightly
def test_a_lost_scheduler_is_one_line_and_what_is_written_stays(tmp_path: Path) -> None:
    paths = several(tmp_path / "in", 12)
    with clustered(tmp_path / "dask", "one") as cluster:

        def told(_name: str, done: int, _total: int) -> None:
            if done and cluster.scheduler.poll() is None:
                cluster.scheduler.kill()
                time.sleep(1)

        with pytest.raises(BuildError) as caught:
            slim(paths, tmp_path / "out", shares=ANY, executor=cluster.executor, on_progress=told)
        assert str(caught.value) == (
            f"{cluster.executor}: the scheduler was lost before this was done; what is done is kept"
        )
    assert list(wheels(tmp_path / "out")) == [paths[0].name]


@pytest.mark.nightly
def test_the_command_takes_an_executor(two: Cluster, tmp_path: Path) -> None:
    paths = several(tmp_path / "in", 3)
    workdir = Workdir.at(tmp_path)
    ran = workdir.vbuild("slim", *paths, "--gpu", "90", "-o", "out", "--executor", str(two.executor))
    assert (ran.returncode, ran.stderr) == (0, "")
    assert list(wheels(tmp_path / "out")) == [path.name for path in paths]
    ran = workdir.vbuild("slim", *paths, "--gpu", "90", "-o", "out", "--executor", "dask://127.0.0.1:1")
    assert refusal(ran).startswith("dask://127.0.0.1:1: no scheduler answers there; ")
