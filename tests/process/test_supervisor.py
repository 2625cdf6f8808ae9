"""Commands that do not outlive their process, and commands of one thread that are stopped."""

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.factories.processes import is_running, until
from tests.process.test_run import FAMILY, STUBBORN, written_pid
from vbuild.errors import BuildError
from vbuild.process.run import run, stoppable

RUN = """
import sys
from pathlib import Path
from vbuild.process.run import keep_watch, run
keep_watch()
run(["true"], log=Path("log"))
run(sys.argv[1:], log=Path("log"))
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("command", [FAMILY, STUBBORN], ids=["a family", "a stubborn one"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_command_outlives_a_process_that_is_killed(
    tmp_path: Path, command: tuple[str, ...], number: signal.Signals
) -> None:
    process = subprocess.Popen([sys.executable, "-c", RUN, *command], cwd=tmp_path)
    pid = written_pid(tmp_path)
    assert is_running(pid)
    process.send_signal(number)
    process.wait()
    until(lambda: not is_running(pid))


def test_the_supervisor_ends_with_its_process(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", f"{RUN}\ninput()", "true"], cwd=tmp_path, stdin=subprocess.PIPE)
    until(lambda: (tmp_path / "log").exists() and (tmp_path / "log").read_text().count("$ true") == 2)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    until(lambda: len(children.read_text().split()) == 1)
    supervisor = int(children.read_text())
    process.communicate(b"\n")
    until(lambda: not is_running(supervisor))


@pytest.mark.nightly
def test_a_build_goes_on_if_its_supervisor_was_killed(tmp_path: Path) -> None:
    program = f"{RUN}\nimport vbuild.process.run as p, os\n"
    kill = (
        "p._running.supervisor._process.kill(); p._running.supervisor._process.wait()\nrun(['true'], log=Path('log'))\n"
    )
    process = subprocess.run([sys.executable, "-c", program + kill, "true"], cwd=tmp_path, check=False)
    assert process.returncode == 0
    assert (tmp_path / "log").read_text().count("$ true") == 3


@pytest.mark.nightly
def test_the_commands_of_one_thread_are_stopped_and_no_others(tmp_path: Path) -> None:
    said: dict[str, str] = {}
    stops = {}

    def work(name: str) -> None:
        (tmp_path / name).mkdir()
        with stoppable() as stop:
            stops[name] = stop
            for command in (FAMILY, ("true",)):
                try:
                    run(command, log=tmp_path / name / "log", cwd=tmp_path / name)
                except BuildError as error:
                    said[name] = f"{said.get(name, '')}{error}; "
        run(["true"], log=tmp_path / name / "log")  # afterwards, all is as before

    threads = {name: threading.Thread(target=work, args=[name]) for name in ("one", "two")}
    for thread in threads.values():
        thread.start()
    pids = {name: written_pid(tmp_path / name) for name in threads}
    stops["one"]()
    threads["one"].join()
    assert said == {"one": "sh was stopped; true was not started: the build was stopped; "}
    assert (is_running(pids["one"]), is_running(pids["two"])) == (False, True)
    stops["two"]()
    threads["two"].join()
    assert said["two"].startswith("sh was stopped; ")


@pytest.mark.nightly
def test_a_thread_that_runs_nothing_is_stopped_too(tmp_path: Path) -> None:
    begun = time.monotonic()
    with stoppable() as stop:
        stop()
        with pytest.raises(BuildError, match="was not started"):
            run(["true"], log=tmp_path / "log")
    run(["true"], log=tmp_path / "log")
    assert time.monotonic() - begun < 1


def test_a_process_ends_that_was_interrupted_while_it_started_a_command() -> None:
    program = "from vbuild.process.run import Supervisor\nSupervisor(0).starting(1)"
    subprocess.run([sys.executable, "-c", program], timeout=30, check=True)
