"""What is in the making: a stage that goes with its run, or with the next run if that one was killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.factories.faults import COUNTING, Call, Fault, Kind, calls
from tests.factories.tools import needs, unmeasured
from vbuild.files.atomic import replacing, replacing_all, stage_in, sweep

KILLED = """
import os, signal, sys
from pathlib import Path
from vbuild.files.atomic import replacing
with replacing(Path(sys.argv[1])) as part:
    part.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""

MANY = """
import sys
from pathlib import Path
from vbuild.files.atomic import replacing_all
with replacing_all([Path(sys.argv[1], f"file{number}") for number in range(200)]) as parts:
    for part in parts.values():
        part.write_text("whole")
"""


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signal")
def test_what_a_killed_run_leaves_goes_with_the_next_that_writes_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    ended = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    stage = next(tmp_path.glob(".vbuild-*"))
    assert (path.read_text(), (stage / "file").read_text()) == ("old", "half")
    with replacing(tmp_path / "other") as part:
        part.write_text("other")
    assert names(tmp_path) == ["file", "other"]


def test_two_runs_that_live_leave_each_other_alone(tmp_path: Path) -> None:
    with replacing(tmp_path / "file") as one, replacing(tmp_path / "file") as other:
        one.write_text("one")
        other.write_text("other")
    assert (tmp_path / "file").read_text() == "one"
    assert names(tmp_path) == ["file"]


def test_of_several_files_none_is_there_before_all_are_complete(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    with pytest.raises(FileNotFoundError), replacing_all([one, other]) as parts:
        parts[one].write_text("one")  # and not the other
    assert names(tmp_path) == []
    with replacing_all([one, other]) as parts:
        for path, part in parts.items():
            part.write_text(path.name)
        assert not {"one", "other"}.intersection(names(tmp_path))
    assert (one.read_text(), other.read_text()) == ("one", "other")


@needs("gcc")
def test_for_many_files_the_disk_is_waited_for_once_before_the_first_has_its_name(tmp_path: Path) -> None:
    def written(folder: Path, fault: Fault) -> tuple[int, list[Call]]:
        folder.mkdir()
        variables = {**unmeasured(), **fault.variables(folder, log := folder.with_suffix(".log"))}
        command = [sys.executable, "-c", MANY, str(folder)]
        return subprocess.run(command, env=variables, stderr=subprocess.DEVNULL, check=False).returncode, calls(log)

    status, passed = written(tmp_path / "whole", COUNTING)
    order = [call.name for call in passed]
    assert status == 0
    assert len(names(tmp_path / "whole")) == 200
    assert (order.count("syncfs"), order.count("fsync")) == (1, 1)  # the files, and the folder with their names
    assert "rename" not in order[order.index("close") : order.index("syncfs")]
    status, _ = written(tmp_path / "broken", Fault(order.index("syncfs") + 1, Kind.EIO))
    assert status == 1
    assert names(tmp_path / "broken") == []


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no FIFOs")
def test_what_somebody_else_has_called_so_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/alive").touch()
    (tmp_path / ".vbuild-link").symlink_to("precious")
    (tmp_path / ".vbuild-file").touch()
    (tmp_path / ".vbuild-fifo").mkdir()
    os.mkfifo(tmp_path / ".vbuild-fifo/alive")
    before = names(tmp_path)
    sweep(tmp_path)
    assert names(tmp_path) == before


def test_a_folder_where_nothing_can_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError) as refusal, stage_in(tmp_path / "gone"):
        pass
    assert refusal.value.filename == str(tmp_path / "gone")
