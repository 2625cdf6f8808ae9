"""Commands that end, fail, hang and are interrupted, with real processes."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.factories.processes import is_running, until
from vbuild.errors import BuildError
from vbuild.process.run import GRACE, LAST_LINES, run, stop_all, supervised

# a shell whose own child sleeps, so that killing the shell alone would leave the sleeper behind
FAMILY = ("sh", "-c", "sleep 300 & echo $! > pid; wait")
STUBBORN = ("sh", "-c", "trap '' TERM; sh -c 'trap \"\" TERM; echo $$ > pid; while :; do sleep 0.1; done'")


def written_pid(folder: Path) -> int:
    until(lambda: (folder / "pid").exists() and (folder / "pid").read_text(encoding="utf-8").strip())
    return int((folder / "pid").read_text(encoding="utf-8"))


def test_the_log_holds_the_command_and_all_of_its_output(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "demo.log"
    run(["sh", "-c", "echo out; echo err >&2; pwd; echo $LEVEL"], log=log, cwd=tmp_path, environment={"LEVEL": "v3"})
    first, *rest = log.read_text(encoding="utf-8").splitlines()
    assert first.startswith("$ sh -c 'echo out")
    assert rest == ["out", "err", str(tmp_path), "v3"]


def test_a_log_is_appended_to_and_an_error_shows_only_its_own_command(tmp_path: Path) -> None:
    log = tmp_path / "log"
    run(["echo", "first"], log=log)
    with pytest.raises(BuildError) as caught:
        run(["sh", "-c", "echo second; exit 3"], log=log)
    assert str(caught.value) == f"sh failed with status 3; its log is {log}, which ends:\nsecond"
    assert "first" in log.read_text(encoding="utf-8")


def test_an_error_calls_the_command_by_the_name_it_is_given(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"^build_wheel failed with status 1; "):
        run(["false"], log=tmp_path / "log", name="build_wheel")


def test_only_the_last_lines_of_a_long_output_are_shown(tmp_path: Path) -> None:
    with pytest.raises(BuildError) as caught:
        run(["sh", "-c", "seq 1000; exit 1"], log=tmp_path / "log")
    shown = str(caught.value).splitlines()[1:]
    assert len(shown) == LAST_LINES
    assert shown[-1] == "1000"


def test_the_frames_of_a_traceback_do_not_hide_what_a_compiler_said(tmp_path: Path) -> None:
    backend = "def call(depth):\n    call(depth - 1) if depth else 1 / 0\ncall(30)\n"
    (tmp_path / "backend.py").write_text(backend)
    with pytest.raises(BuildError) as caught:
        run(["sh", "-c", f"echo 'a.cu(1): error: no'; {sys.executable} backend.py"], log=tmp_path / "log", cwd=tmp_path)
    first, *shown = (line.rstrip("^ ~") for line in str(caught.value).splitlines()[1:])
    assert first == "a.cu(1): error: no"
    assert shown[:2] == ["Traceback (most recent call last):", f'  File "{tmp_path}/backend.py", line 2, in call']
    assert shown[-1] == "ZeroDivisionError: division by zero"
    assert str(caught.value).count("  File ") == 1
    assert "line 3, in <module>" in (tmp_path / "log").read_text()


def test_where_a_syntax_error_is_stays(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r'  File "<string>", line 1\n    a b\n(.*\n)*SyntaxError: '):
        run([sys.executable, "-c", "a b"], log=tmp_path / "log")


def test_a_log_that_another_run_removes_is_shown_all_the_same(tmp_path: Path) -> None:
    log = tmp_path / "logs/log"
    with pytest.raises(BuildError) as caught:
        run(["sh", "-c", f"echo said; rm {log}; rmdir {log.parent}; exit 1"], log=log)
    assert str(caught.value) == f"sh failed with status 1; its log is {log}, which ends:\nsaid"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["false"], "false failed with status 1; its log is {log}, which is empty"),
        (["sh", "-c", "kill -SEGV $$"], "sh was ended by SIGSEGV; its log is {log}, which is empty"),
        (["no-such-compiler"], "no-such-compiler cannot be run: No such file or directory"),
    ],
)
def test_a_command_that_does_not_succeed_is_an_error(command: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(BuildError) as caught:
        run(command, log=tmp_path / "log")
    assert str(caught.value) == message.format(log=tmp_path / "log")


@pytest.mark.nightly
def test_a_command_that_takes_too_long_is_stopped_with_its_children(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"^sh took more than 0\.5 s; its log is .*, which is empty$"):
        run(FAMILY, log=tmp_path / "log", cwd=tmp_path, timeout=0.5)
    assert not is_running(written_pid(tmp_path))


def test_what_a_failed_command_left_running_is_stopped(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="failed with status 1"):
        run(["sh", "-c", "sleep 300 & echo $! > pid; exit 1"], log=tmp_path / "log", cwd=tmp_path)
    until(lambda: not is_running(written_pid(tmp_path)))


# the first process of a container, which the orphans of a command become children of, may never wait for them
CONTAINER = """
import ctypes, pathlib, sys, time
from vbuild.errors import BuildError
from vbuild.process.run import run
ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
start = time.monotonic()
try:
    run(["sh", "-c", "sleep 300 & sleep 300; true"], log=pathlib.Path(sys.argv[1]), timeout=0.3)
except BuildError as error:
    print(time.monotonic() - start, error)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="prctl and /proc of Linux")
def test_orphans_that_nobody_waits_for_have_ended(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", CONTAINER, tmp_path / "log"], capture_output=True, text=True, check=True
    )
    seconds, _, error = ran.stdout.partition(" ")
    assert error.startswith("sh took more than 0.3 s")
    assert float(seconds) < GRACE


@pytest.mark.nightly
def test_a_child_that_ignores_the_polite_signal_is_killed(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="took more than"):
        run(STUBBORN, log=tmp_path / "log", cwd=tmp_path, timeout=0.5)
    until(lambda: not is_running(written_pid(tmp_path)))


@pytest.mark.nightly
def test_stopping_reaches_commands_of_other_threads_and_those_still_queued(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(run, FAMILY, log=folder / "log", cwd=folder) for folder in folders]
        pids = [written_pid(folder) for folder in folders[:2]]
        stop_all()
    assert [str(future.exception()) for future in running] == [
        "sh was stopped",
        "sh was stopped",
        "sh was not started: the build was stopped",
    ]
    assert not any(is_running(pid) for pid in pids)


def test_an_error_in_a_supervised_block_stops_other_threads_until_the_next_one(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(ZeroDivisionError), supervised():
            1 / 0  # noqa: B018 - for the error
        with pytest.raises(BuildError, match="was not started"):
            pool.submit(run, ["true"], log=tmp_path / "log").result()
        run(["true"], log=tmp_path / "log")
        with supervised():
            pool.submit(run, ["true"], log=tmp_path / "log").result()


@pytest.mark.nightly
def test_an_error_in_a_supervised_block_stops_what_still_runs(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool, pytest.raises(ZeroDivisionError), supervised():  # noqa: PT012 - it all counts
        running = pool.submit(run, FAMILY, log=tmp_path / "log", cwd=tmp_path)
        pid = written_pid(tmp_path)
        1 / 0  # noqa: B018 - for the error
    assert str(running.exception()) == "sh was stopped"
    assert not is_running(pid)


def test_a_worker_thread_may_supervise_too(tmp_path: Path) -> None:
    def work() -> None:
        with supervised():
            run(["true"], log=tmp_path / "log")

    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


PROGRAM = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from vbuild.process.run import run, supervised
from tests.process.test_run import FAMILY

folders = [Path(name) for name in sys.argv[1:]]
with ThreadPoolExecutor(2) as pool, supervised():
    for future in [pool.submit(run, FAMILY, log=folder / "log", cwd=folder) for folder in folders]:
        future.result()
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_program_leaves_no_grandchild(number: signal.Signals, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *map(str, folders)], env=environment, stderr=subprocess.PIPE
    )
    pids = [written_pid(folder) for folder in folders[:2]]
    program.send_signal(number)
    _, errors = program.communicate(timeout=20)
    assert program.returncode
    assert errors.rstrip().endswith(b"KeyboardInterrupt")
    assert not any(is_running(pid) for pid in pids)
    assert not (folders[2] / "pid").exists()
