"""Signals that ask a run to end, and whoever has other plans for them."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

import pytest

from tests.factories.tools import needs, unmeasured
from vbuild.process.signals import interruptible, uninterrupted

INTERRUPTED = "vbuild: interrupted: nothing half-done was left behind\n"


def ran(program: str, *, inside: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    head = "import os, signal\nfrom vbuild.process.signals import interruptible\n"
    command = [*inside, sys.executable, "-c", head + program]
    return subprocess.run(
        command, env=unmeasured(), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


@pytest.fixture
def hangup() -> Iterator[None]:
    """SIGHUP as a terminal's programs have it, even under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangup")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_an_interrupt_once_and_after_the_block_what_it_was(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with interruptible() as interruption:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        signal.raise_signal(number)  # that of somebody who is impatient
        assert interruption.heard is not None
    assert signal.getsignal(number) == before


def test_an_interrupt_waits_until_python_imports_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # where one came into the steps of an import, other threads waited for the lock of imports for ever
    (tmp_path / "slowly_imported.py").write_text("import time\ntime.sleep(1)\n")
    monkeypatch.syspath_prepend(tmp_path)
    main, states = threading.get_ident(), []

    def load() -> None:
        import_module("slowly_imported")

    def load_and_wait() -> None:
        load()  # waits for the first within the import system
        time.sleep(5)

    def interrupt() -> None:
        time.sleep(0.3)
        signal.pthread_kill(main, signal.SIGTERM)
        time.sleep(0.3)
        states.append(interruption.heard)

    with interruptible() as interruption, ThreadPoolExecutor(2) as threads:
        first = threads.submit(load)
        time.sleep(0.1)
        threads.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            load_and_wait()
        assert first.done()
    assert states == [None]


def test_what_must_not_be_left_in_the_middle_is_done_first() -> None:
    done = []

    @uninterrupted()
    def clean() -> None:
        with uninterrupted():
            signal.raise_signal(signal.SIGTERM)
        done.append("cleaned")

    with interruptible():
        with pytest.raises(KeyboardInterrupt):
            clean()
        clean()  # within ten seconds: not heard
    assert done == ["cleaned", "cleaned"]


def test_nothing_is_held_where_signals_are_somebody_elses() -> None:
    with pytest.raises(KeyboardInterrupt), uninterrupted():
        signal.raise_signal(signal.SIGINT)


@needs("nohup")
def test_what_nohup_started_goes_on_without_its_terminal() -> None:
    program = "with interruptible():\n    os.kill(os.getpid(), signal.SIGHUP)\n    print('on')"
    assert ran(program).stderr.endswith("KeyboardInterrupt\n")
    assert ran(program, inside=("nohup",)).stdout == "on\n"


def test_who_has_plans_for_a_signal_keeps_them() -> None:
    program = (
        "signal.signal(signal.SIGTERM, lambda *_: print('mine'))\n"
        "with interruptible():\n    os.kill(os.getpid(), signal.SIGTERM)\n    print('on')"
    )
    assert ran(program).stdout == "mine\non\n"


def test_a_worker_thread_has_no_signals_to_hear() -> None:
    def work() -> None:
        with interruptible():
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_that_ends_as_another_error_is_told_as_one(number: signal.Signals) -> None:
    program = (
        "from vbuild.cli.group import Commands\n"
        "class Field:\n    def __set_name__(self, owner, name):\n        os.kill(os.getpid(), NUMBER)\n"
        "commands = Commands()\n"
        "@commands.command()\ndef importing():\n    type('Machine', (), {'field': Field()})\n"
        "commands(['importing'])"
    )
    ended = ran(program.replace("NUMBER", str(int(number))))
    assert (ended.returncode, ended.stderr) == (128 + number, INTERRUPTED)


def test_a_signal_that_comes_before_a_wait_for_a_lock_ends_the_wait() -> None:
    program = """
import threading, time
def interrupt():  # as if it came between Python's last look for signals and the wait: it does not end that
    time.sleep(0.2)
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
    time.sleep(10)
    os._exit(3)  # missed
with interruptible():
    threading.Thread(target=interrupt, daemon=True).start()
    threading.Event().wait()
"""
    assert ran(program).stderr.endswith("KeyboardInterrupt\n")
