"""Schedulers and workers as they may be: not there, not ours, lost in the middle of a job."""

import http.server
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import vbuild
from tests.factories.dask import Cluster, clustered, needs_dask
from vbuild.errors import BuildError
from vbuild.hardware.machine import Machine
from vbuild.workers import cluster as room
from vbuild.workers.cluster import connected
from vbuild.workers.executor import Executor
from vbuild.workers.worker import resources

pytestmark = needs_dask

# jobs of these tests, all of Python's own
SLEEP, PID, KILL, JOIN = "time:sleep", "os:getpid", "signal:raise_signal", "builtins:sum"


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with clustered(tmp_path_factory.mktemp("cluster"), "one", "two") as cluster:
        yield cluster


def refused(executor: Executor) -> str:
    with pytest.raises(BuildError) as caught, connected(executor):
        pytest.fail("it is connected")
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{executor}: ")


def test_jobs_are_done_on_workers_and_take_what_others_gave(two: Cluster) -> None:
    with connected(two.executor) as cluster:
        first = cluster.submit("builtins:len", b"four", key="len")
        both = cluster.submit("builtins:pow", first, 3, key="pow")
        pid = cluster.submit(PID, key="pid")
        assert dict(cluster.each({both: "both", pid: "pid"})).keys() == {"both", "pid"}
        assert cluster.result(cluster.submit("builtins:pow", first, 3, key="pow again")) == 64
        assert cluster.result(cluster.submit(PID, key="pid again")) in {each.pid for each in two.workers.values()}
        assert cluster.threads == 2


def test_bytes_that_many_jobs_take_go_out_once(two: Cluster) -> None:
    with connected(two.executor) as cluster:
        data = cluster.brought(bytes(20_000_000), key="zeros")
        jobs = {cluster.submit("builtins:len", data, key=f"len-{number}"): number for number in range(4)}
        assert dict(cluster.each(jobs)) == dict.fromkeys(range(4), 20_000_000)


def test_an_error_of_our_own_is_told_by_the_job_that_had_it(two: Cluster) -> None:
    with connected(two.executor) as cluster:
        found = cluster.result(cluster.submit("vbuild.workers.executor:Executor.parse", "x", key="refused"))
    assert isinstance(found, BuildError)
    assert str(found).startswith(f"{two.executor}: no executor 'x'; expected local or")


def test_a_worker_declares_what_its_machine_can_do(two: Cluster) -> None:
    cpu = Machine.here().cpu
    assert cpu
    with connected(two.executor) as cluster:
        found = cluster.resources()
    assert found == [dict(resources(1))] * 2
    assert found[0][str(cpu)] == 1.0
    assert ("container" in found[0]) == bool(shutil.which("docker") or shutil.which("podman"))
    assert not any(name.startswith("x86-64-v5") for name in found[0])


def test_what_the_command_line_says_of_a_resource_counts(tmp_path: Path) -> None:
    with clustered(tmp_path) as started:
        started.work("one", "--resources", "gpu=7 tape=1")
        with connected(started.executor) as cluster:
            [found] = cluster.resources()
    assert (found["gpu"], found["tape"], found["x86-64" if os.uname().machine == "x86_64" else "armv8-a"]) == (7, 1, 1)


def test_gpus_are_those_that_a_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,GPU-3f1")
    assert resources(4)["gpu"] == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert "gpu" not in resources(4)


def test_a_job_goes_to_a_worker_that_has_what_it_needs(two: Cluster) -> None:
    special = two.work("special", "--resources", "tape=1")
    try:
        with connected(two.executor) as cluster:
            jobs = {cluster.submit(PID, key=f"on tape {n}", needs={"tape": 1}): n for n in range(3)}
            assert {pid for _, pid in cluster.each(jobs)} == {special.pid}
    finally:
        special.terminate()
        special.wait()


def test_a_scheduler_that_is_not_there_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert refused(Executor(f"127.0.0.1:{port}")) == (
        "no scheduler answers there; expected one, as `dask scheduler` starts it"
    )


@pytest.mark.nightly
def test_something_else_that_answers_is_no_scheduler() -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        said = refused(Executor(f"127.0.0.1:{server.server_port}"))
        server.shutdown()
        thread.join()
    assert said == "no scheduler answers there; expected one, as `dask scheduler` starts it"


@pytest.mark.nightly
def test_a_scheduler_without_workers_is_told_with_how_to_start_one(tmp_path: Path) -> None:
    with clustered(tmp_path) as started:
        assert refused(started.executor) == (
            "no worker has joined the scheduler in 10 s; expected one at least: "
            f"dask worker tcp://{started.address} --preload vbuild.workers.worker"
        )


def other_vbuild(folder: Path, version: str = vbuild.__version__) -> Path:
    """A folder with a copy of vbuild that is of another *version*, and not the same in any case."""
    shutil.copytree(Path(vbuild.__file__).parent, folder / "vbuild")
    (folder / "vbuild/__init__.py").write_text(
        f'"""Another one."""\n\n__version__ = "{version}"\nDISTRIBUTION = "{vbuild.DISTRIBUTION}"\n'
    )
    metadata = folder / f"{vbuild.DISTRIBUTION.replace('-', '_')}-{version}.dist-info/METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.4\nName: {vbuild.DISTRIBUTION}\nVersion: {version}\n")
    return folder


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("9.9.9", f"has vbuild 9.9.9, and this is {vbuild.__version__}"),
        (vbuild.__version__, f"has a vbuild with other files, {vbuild.__version__} too"),
    ],
)
def test_a_worker_with_another_vbuild_is_refused(tmp_path: Path, version: str, said: str) -> None:
    other = other_vbuild(tmp_path / "other", version)
    with clustered(tmp_path / "cluster", "one") as started:
        started.work("two", PYTHONPATH=str(other))
        found = refused(started.executor)
    assert found.startswith("the worker at tcp://127.0.0.1:")
    assert found.endswith(f" {said}; expected vbuild {vbuild.__version__} as here everywhere")


@pytest.mark.nightly
def test_a_worker_with_another_vbuild_that_joins_late_is_found_by_its_jobs(tmp_path: Path) -> None:
    other = other_vbuild(tmp_path / "other")
    with clustered(tmp_path / "cluster", "one") as started, connected(started.executor) as cluster:
        started.work("two", "--resources", "late=1", PYTHONPATH=str(other))
        found = cluster.result(cluster.submit(PID, key="late", needs={"late": 1}))
    assert isinstance(found, BuildError)
    assert str(found) == (
        f"{started.executor}: {os.uname().nodename}: has another vbuild ({vbuild.__version__} with other files); "
        "expected the same one everywhere"
    )


@pytest.mark.nightly
def test_a_job_that_kills_its_workers_is_given_up(tmp_path: Path) -> None:
    with clustered(tmp_path, DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES="1") as started:
        for name in ("one", "two", "three"):
            started.work(name)
        with connected(started.executor) as cluster:
            found = cluster.result(cluster.submit(KILL, int(signal.SIGKILL), key="kill"))
            assert cluster.result(cluster.submit(PID, key="pid")) in {p.pid for p in started.workers.values()}
    assert isinstance(found, BuildError)
    said = str(found)
    assert said.startswith(
        f"{started.executor}: 2 workers were lost at this, one after the other, the last at tcp://127.0.0.1:"
    )
    assert said.endswith("; expected enough memory there, or fewer jobs at a time")


@pytest.mark.nightly
def test_jobs_do_not_wait_for_ever_for_workers_that_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "PATIENCE", 2.0)
    with clustered(tmp_path, "one") as started, connected(started.executor) as cluster:
        special = started.work("special", "--resources", "tape=1")
        job = cluster.submit(SLEEP, 60, key="on tape", needs={"tape": 1})
        after = cluster.submit(JOIN, [1, 2], key="after")
        time.sleep(1)
        special.kill()
        assert cluster.result(after) == 3
        assert str(cluster.result(job)) == f"{started.executor}: no worker is left that has tape for this, for 2 s"
        started.workers["one"].kill()
        left = cluster.submit(PID, key="left over")
        assert str(cluster.result(left)) == f"{started.executor}: no worker is left for this, for 2 s"
