"""The layer that lets calls fail: it sees all calls that concern a folder, and lets the one fail that was asked for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.factories.faults import COUNTING, Call, Fault, Kind, calls
from tests.factories.tools import needs, unmeasured

pytestmark = needs("gcc")

PROGRAM = """
import os, shutil, sys, tempfile
from pathlib import Path

def tried(number, work):
    try:
        print(number, work())
    except OSError as error:
        print(number, error.strerror)

here = Path(sys.argv[1])
os.chdir(here)
tried(1, lambda: Path("file").write_bytes(bytes(100)))
tried(3, lambda: shutil.copyfile(here / "file", here / "copy").name)
tried(7, lambda: os.link("file", "link"))
tried(8, lambda: os.replace("link" if os.path.exists("link") else "file", "renamed"))
tried(9, lambda: os.mkdir("folder"))
tried(10, lambda: os.unlink("renamed"))
tried(11, lambda: globals().update(file=tempfile.TemporaryFile(dir=here, buffering=0)))
file = globals().get("file") or open(os.devnull, "wb", 0)
tried(12, lambda: file.write(bytes(100)))
tried(13, lambda: os.pwrite(file.fileno(), bytes(100), 0))
tried(14, lambda: os.ftruncate(file.fileno(), 10))
tried(15, lambda: os.fsync(file.fileno()))
tried(0, lambda: Path(sys.argv[2]).write_bytes(bytes(100)))
tried(0, lambda: os.environ.get("LD_PRELOAD"))
"""
NAMES = ["open", "write", "open", "open", *["copy"] * 2, "link", "rename", "mkdir", "unlink", "open", "write", "pwrite"]


def said(folder: Path, fault: Fault) -> tuple[list[str], list[Call]]:
    """What the program says of each of its steps, and its calls."""
    (folder / "in").mkdir()
    variables = fault.variables(folder / "in", folder / "log")
    command = [sys.executable, "-c", PROGRAM, str(folder / "in"), str(folder / "elsewhere")]
    environment = {**unmeasured(), **variables}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return ran.stdout.splitlines(), calls(folder / "log")


def test_every_call_below_the_folder_is_counted_and_none_elsewhere(tmp_path: Path) -> None:
    lines, found = said(tmp_path, COUNTING)
    # Python copies with one of two calls, by its version
    names = ["copy" if call.name in {"sendfile", "copy_file_range"} else call.name for call in found]
    assert names == [*NAMES, "ftruncate", "fsync"]
    assert [call.number for call in found] == list(range(1, 16))
    assert not [call for call in found if call.is_failed]
    assert found[7].path == str(tmp_path / "in/renamed")
    assert lines[-1] == "0 None"


@pytest.mark.parametrize("kind", [Kind.ENOSPC, Kind.EDQUOT, Kind.EIO, Kind.EACCES])
@pytest.mark.parametrize("at", [1, 2, 7, 8, 9, 12, 13, 14, 15])
def test_the_call_that_was_asked_for_fails_as_it_was_asked(at: int, kind: Kind, tmp_path: Path) -> None:
    lines, found = said(tmp_path, Fault(at, kind))
    assert [call.number for call in found if call.is_failed] == [at]
    step = "1" if at == 2 else str(at)
    assert f"{step} {os.strerror(kind.number)}" in lines


def test_a_short_write_writes_half_and_says_so(tmp_path: Path) -> None:
    lines, _ = said(tmp_path, Fault(12, Kind.SHORT))
    assert "12 50" in lines


def test_a_full_disk_stays_full_for_all_that_needs_room(tmp_path: Path) -> None:
    lines, found = said(tmp_path, Fault(2, Kind.ENOSPC, stays=True))
    full = "No space left on device"
    assert [f"{number} {full}" in lines for number in (1, 3, 7, 9, 11)] == [True] * 5
    assert {"8 None", "10 None"} < set(lines)
    assert {call.name for call in found if not call.is_failed} == {"open", "rename", "unlink"}


def test_without_a_folder_the_layer_does_nothing(tmp_path: Path) -> None:
    environment = {**unmeasured(), **COUNTING.variables(tmp_path, tmp_path / "log")}
    del environment["FAULT_FOLDER"]
    subprocess.run([sys.executable, "-c", "open('file', 'w')"], env=environment, cwd=tmp_path, check=True)
    assert calls(tmp_path / "log") == []
