"""Several vbuilds at once, on disks that are read-only, full or others, and what it had started when it is killed."""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.factories import hwcaps_wheels
from tests.factories.disturbed_runs import UndisturbedRun
from tests.factories.faults import Fault, Kind, begin, ended
from tests.factories.processes import is_running, state_of, until
from tests.factories.tools import needs
from tests.factories.variants import variant
from tests.factories.workdir import mounted
from tests.factories.writing_commands import WRITING_COMMANDS, CommandFolder
from vbuild.variants.stamp import stamped

MEMORY = Path("/dev/shm")  # noqa: S108 - another file system than that of any test's folder

pytestmark = [
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="its wheels are for x86-64"),
    needs("gcc"),
    pytest.mark.nightly,
]
each = pytest.mark.parametrize("undisturbed", WRITING_COMMANDS, ids=str, indirect=True)
named = {command.name: command for command in WRITING_COMMANDS}
V4 = variant("x86_64_v4", "x86_64 :: level :: v4")


@pytest.mark.sampled(1)
@each
def test_two_runs_into_one_folder_at_once_give_what_one_gives(undisturbed: UndisturbedRun) -> None:
    with undisturbed.place() as place:
        begun = time.monotonic()
        two = [begin(*place.arguments, folder=place.folder, variables=place.variables) for _ in range(2)]
        ends = [ended(process, begun) for process in two]
        for end in ends:
            # what needs an empty folder says that it is none any more; all others give the same twice
            assert end.status == 0 or (
                undisturbed.command.name.startswith("publish") and end.refusal.endswith(IN_USE)
            ), end
        assert any(end.status == 0 for end in ends)
        assert place.results() == undisturbed.whole
        assert place.left() == []


IN_USE = "exists and is not an empty folder; remove it, or choose another output folder"


@contextmanager
def stopped_in_its_turn(undisturbed: UndisturbedRun, place: CommandFolder) -> Iterator[subprocess.Popen[str]]:
    """A run of the command that has its turn, stopped when it writes its first file."""
    (writing, *_) = (
        call
        for call in undisturbed.calls
        if (call.name in {"write", "mkdir"} and re.search(r"/out/.*\.(part|new)/", call.path))
        or (call.name == "mkdir" and re.search(r"/out/\.vbuild-\w+/\w+", call.path))
    )
    stopping = Fault(writing.number, Kind.SIGSTOP).variables(place.folder, place.log)
    process = begin(*place.arguments, folder=place.folder, variables={**place.variables, **stopping})
    until(lambda: state_of(process.pid) == "T")
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()


taking_turns = pytest.mark.parametrize("undisturbed", [named["index"], named["publish"]], ids=str, indirect=True)


@taking_turns
def test_a_run_says_for_which_other_it_waits(undisturbed: UndisturbedRun) -> None:
    with undisturbed.place() as place, stopped_in_its_turn(undisturbed, place) as slow:
        begun = time.monotonic()
        quick = begin(*place.arguments, folder=place.folder, variables=place.variables)
        with suppress(subprocess.TimeoutExpired):
            quick.wait(4)
        assert quick.poll() is None
        slow.send_signal(signal.SIGCONT)
        slow.wait()
        end = ended(quick, begun)
        first, *rest = end.err.splitlines()
        assert re.fullmatch(rf"vbuild: out(/\w+)?: waiting for process {slow.pid}, which writes there", first)
        assert (end.status, rest) == (0, []) or " ".join(rest).endswith(IN_USE)
        assert place.results() == undisturbed.whole
        assert place.left() == []


@taking_turns
def test_a_run_that_is_stopped_does_not_hold_others_for_ever(undisturbed: UndisturbedRun) -> None:
    with undisturbed.place() as place, stopped_in_its_turn(undisturbed, place) as slow:
        begun = time.monotonic()
        end = ended(begin(*place.arguments, folder=place.folder, variables=place.variables), begun)
        assert end.status == 1
        assert end.err.splitlines()[-1].endswith(
            f"process {slow.pid}, which writes there, was stopped; let it go on ('kill -CONT {slow.pid}') or end it, "
            "and try again"
        )
        assert 10 < end.seconds < 60


@each
def test_what_gets_its_name_is_on_the_disk_before(undisturbed: UndisturbedRun) -> None:
    """So that no power cut leaves a name with zeros: all that is there has been waited for."""
    waited = {call.number: call.name for call in undisturbed.calls if call.name in {"fsync", "syncfs"}}
    made = [path for path in undisturbed.whole if not path.startswith("dist/demo")]  # these are its inputs
    assert "syncfs" in waited.values() or len(waited) >= len(made)
    final = [
        call.number
        for call in undisturbed.calls
        if call.name == "rename" and "/out/" in call.path and "/." not in call.path.partition("/out/")[2].join("//")
    ]
    assert all(any(number < named for number in waited) for named in final)


@pytest.mark.parametrize("undisturbed", [named["index"]], ids=str, indirect=True)
def test_an_index_that_is_overtaken_by_a_wheel_and_another_index_lists_that_wheel(undisturbed: UndisturbedRun) -> None:
    (writing, *_) = (call for call in undisturbed.calls if call.name == "open" and call.path.endswith("-variants.json"))
    with undisturbed.place() as place:
        begun = time.monotonic()
        stopping = Fault(writing.number, Kind.SIGSTOP).variables(place.folder, place.log)
        slow = begin("index", "out/dist", folder=place.folder, variables={**place.variables, **stopping})
        until(lambda: state_of(slow.pid) == "T")
        stamped(place.out / "dist" / hwcaps_wheels.NAME, place.out / "dist", variant=V4)
        quick = begin("index", "out/dist", folder=place.folder, variables=place.variables)
        with suppress(subprocess.TimeoutExpired):
            quick.wait(2)  # it may have to wait for the other
        slow.send_signal(signal.SIGCONT)
        assert [ended(process, begun).status for process in (slow, quick)] == [0, 0]
        documents = [json.loads(path.read_text()) for path in place.out.glob("dist/demo-1.0-variants.json")]
        assert [sorted(document["variants"]) for document in documents] == [["x86_64_v3", "x86_64_v4"]]


@each
def test_inputs_that_are_read_only_are_enough(undisturbed: UndisturbedRun) -> None:
    with undisturbed.place() as place:
        read_only = mounted('mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"', str(place.inputs))
        end = place.run(inside=read_only)
        assert (end.status, end.err) == (0, "")
        assert place.results() == undisturbed.whole


@pytest.mark.sampled(1)
@each
def test_an_output_that_is_read_only_is_refused_in_one_line(undisturbed: UndisturbedRun) -> None:
    with undisturbed.place() as place:
        place.out.mkdir(exist_ok=True)
        before = place.results()
        read_only = mounted('mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"', str(place.out))
        refusal = place.run(inside=read_only).refusal
        assert refusal.startswith(("out", "demo-1.0-"))  # the folder, or the wheel for which it has no room
        assert refusal.endswith(": Read-only file system")
        assert place.results() == before


@each
def test_a_temporary_folder_without_room_is_not_needed_or_told_of(undisturbed: UndisturbedRun) -> None:
    with undisturbed.place() as place:
        full = 'mount -t tmpfs -o size=4k none "$0" && head -c 4096 /dev/zero > "$0/file" && exec "$@"'
        end = place.run(inside=mounted(full, str(place.folder / "tmp")))
        if end.status:
            assert "No space left on device" in " ".join((end.out + end.err).split())
            assert end.refusal
        else:
            assert place.results() == undisturbed.whole


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    if not MEMORY.is_dir() or MEMORY.stat().st_dev == Path(tempfile.gettempdir()).stat().st_dev:
        pytest.skip("no other file system here")
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder)


@each
def test_the_output_may_be_on_another_file_system(undisturbed: UndisturbedRun, elsewhere: Path) -> None:
    with undisturbed.place() as place:
        if place.out.exists():
            shutil.copytree(place.out, elsewhere / "out")
            shutil.rmtree(place.out)
        (elsewhere / "out").mkdir(exist_ok=True)
        place.out.symlink_to(elsewhere / "out")
        end = place.run()
        assert (end.status, end.err) == (0, "")
        assert place.results() == undisturbed.whole
        assert place.left() == []


@pytest.mark.parametrize("undisturbed", [WRITING_COMMANDS[-1]], ids=str, indirect=True)
def test_what_a_matrix_had_started_ends_when_it_is_killed(undisturbed: UndisturbedRun) -> None:
    with undisturbed.place() as place:
        programs = place.folder / "programs"
        programs.mkdir()
        compiler = programs / "gcc"
        # it answers what vbuild asks it, and does not come to an end with a source
        real = shutil.which("gcc")
        started = place.folder / "pid"
        compiler.write_text(
            f'#!/bin/sh\ncase "$*" in *demo.c*) echo $$ > {started}.new; mv {started}.new {started}; sleep 300;; esac\n'
            f'exec {real} "$@"\n'
        )
        compiler.chmod(0o755)
        variables = {**place.variables, "CC": "gcc", "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
        process: subprocess.Popen[str] = begin(*place.arguments, folder=place.folder, variables=variables)
        until(started.exists)
        pid = int(started.read_text())
        assert is_running(pid)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        until(lambda: not is_running(pid))
        assert place.run().status == 0
        assert place.results() == undisturbed.whole
        assert place.left() == []
