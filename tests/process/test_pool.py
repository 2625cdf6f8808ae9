"""Pools of processes: what they give, what an error or a lost process comes to, and that none is left."""

import operator
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.factories.processes import is_running, until
from vbuild.process.pool import ProcessPool

PROGRAM = """
import operator, os, time
from vbuild.process.pool import ProcessPool
pool = ProcessPool(1)
print(*pool.map(operator.call, [os.getpid]), flush=True)
try:
    {waits}
finally:
    pool.end()
"""


@pytest.fixture
def pool() -> Iterator[ProcessPool]:
    pool = ProcessPool(2)
    yield pool
    pool.end()


def lost(number: int) -> int:
    """*number*, in the process of the test; every other process is lost by this."""
    if os.environ["HERE"] != str(os.getpid()):
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_other_processes_give_the_results_in_order(pool: ProcessPool) -> None:
    assert [*pool.map(abs, range(-100, 0))] == [*range(100, 0, -1)]
    pids = {*pool.map(operator.call, [os.getpid] * 100)}
    assert os.getpid() not in pids
    assert len(pids) <= 2
    pool.end()
    assert not any(map(is_running, pids))


def test_what_a_function_prints_is_not_its_result(pool: ProcessPool) -> None:
    code = "print('more', flush=True) or __import__('os').getpid()"
    assert os.getpid() not in pool.map(eval, [code, code])


def test_an_error_is_raised_as_it_would_be_here(pool: ProcessPool) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        [*pool.map(int, ["1", "one"])]
    assert [*pool.map(int, ["1", "2"])] == [1, 2]


def test_the_work_of_lost_processes_is_done_here(pool: ProcessPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERE", str(os.getpid()))
    assert [*pool.map(lost, range(4))] == [*range(4)]


@pytest.mark.parametrize(
    ("number", "waits"), [(signal.SIGINT, "[*pool.map(time.sleep, [300])]"), (signal.SIGKILL, "time.sleep(300)")]
)
def test_no_process_outlives_the_one_that_it_works_for(number: signal.Signals, waits: str) -> None:
    command = [sys.executable, "-c", PROGRAM.format(waits=waits)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, process_group=0) as process:
        assert process.stdout
        worker = int(process.stdout.readline())
        time.sleep(0.1)  # until it waits
        os.killpg(process.pid, number) if number == signal.SIGINT else process.kill()
        until(lambda: not is_running(worker))
