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
tried("file", lambda: Path("file").write_bytes(bytes(100)))
tried("copy", lambda: shutil.copyfile(here / "file", here / "copy").name)
tried("link", lambda: os.link("file", "link"))
tried("rename", lambda: os.replace("link" if os.path.exists("link") else "file", "renamed"))
tried("mkdir", lambda: os.mkdir("folder"))
tried("unlink", lambda: os.unlink("renamed"))
tried("open", lambda: globals().update(file=tempfile.TemporaryFile(dir=here, buffering=0)))
file = globals().get("file") or open(os.devnull, "wb", 0)
tried("write", lambda: file.write(bytes(100)))
tried("pwrite", lambda: os.pwrite(file.fileno(), bytes(100), 0))
tried("ftruncate", lambda: os.ftruncate(file.fileno(), 10))
tried("fsync", lambda: os.fsync(file.fileno()))
tried("read", lambda: os.pread(file.fileno(), 10, 0))
tried("chmod", lambda: os.chmod(here, 0o755))
tried("utime", lambda: os.utime(here))
tried("symlink", lambda: os.symlink("file", "symlink"))
tried("opendir", lambda: os.listdir(here) and None)
tried("rmdir", lambda: os.rmdir("folder"))
tried("close", lambda: file.close())
tried("elsewhere", lambda: Path(sys.argv[2]).write_bytes(bytes(100)))
tried("preloaded", lambda: os.environ.get("LD_PRELOAD"))
"""
NAMES = [
    *("open", "write", "close"),
    *("open", "open", "copy", "copy", "close", "close"),
    *("link", "rename", "mkdir", "unlink", "open", "write", "pwrite", "ftruncate", "fsync"),
    *("read", "chmod", "utime", "symlink", "opendir", "rmdir", "close"),
]
# those that are the whole of a step, and those of the file; Python opens a temporary file in a second way
STEPS = {1: "file", 2: "file", 3: "file"} | {
    number: name for number, name in enumerate(NAMES, start=1) if number > NAMES.index("link") and name != "open"
}


def ran(folder: Path, fault: Fault) -> tuple[int, list[str]]:
    """How the program ends, and what it says of each of its steps."""
    (folder / "in").mkdir()
    variables = fault.variables(folder / "in", folder / "log")
    command = [sys.executable, "-u", "-c", PROGRAM, str(folder / "in"), str(folder / "elsewhere")]
    ended = subprocess.run(
        command,
        env={**unmeasured(), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    return ended.returncode, ended.stdout.splitlines()


def said(folder: Path, fault: Fault) -> tuple[list[str], list[Call]]:
    """What the program says of each of its steps, and its calls."""
    status, lines = ran(folder, fault)
    assert status == 0
    return lines, calls(folder / "log")


def test_every_call_below_the_folder_is_counted_and_none_elsewhere(tmp_path: Path) -> None:
    lines, found = said(tmp_path, COUNTING)
    # Python copies with one of two calls, by its version
    names = ["copy" if call.name in {"sendfile", "copy_file_range"} else call.name for call in found]
    assert names == NAMES
    assert [call.number for call in found] == list(range(1, len(NAMES) + 1))
    assert not [call for call in found if call.is_failed]
    assert found[NAMES.index("rename")].path == str(tmp_path / "in/renamed")
    assert lines[-1] == "preloaded None"


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", [Kind.ENOSPC, Kind.EDQUOT, Kind.EIO, Kind.EACCES])
@pytest.mark.parametrize("at", STEPS)
def test_the_call_that_was_asked_for_fails_as_it_was_asked(at: int, kind: Kind, tmp_path: Path) -> None:
    lines, found = said(tmp_path, Fault(at, kind))
    assert [call.number for call in found if call.is_failed] == [at]
    assert f"{STEPS[at]} {os.strerror(kind.number)}" in lines


def test_a_short_write_writes_half_and_says_so(tmp_path: Path) -> None:
    lines, _ = said(tmp_path, Fault(NAMES.index("pwrite"), Kind.SHORT))
    assert "write 50" in lines


def test_a_full_disk_stays_full_for_all_that_needs_room(tmp_path: Path) -> None:
    lines, found = said(tmp_path, Fault(2, Kind.ENOSPC, stays=True))
    full = {line.partition(" ")[0] for line in lines if line.endswith(" No space left on device")}
    assert full == {"file", "copy", "link", "mkdir", "open", "symlink"}
    assert {"rename None", "unlink None", "chmod None"} < set(lines)
    assert {"open", "rename", "unlink", "close"} < {call.name for call in found if not call.is_failed}


@pytest.mark.parametrize("kind", [Kind.SIGKILL, Kind.SIGINT])
def test_a_signal_comes_just_before_the_call(kind: Kind, tmp_path: Path) -> None:
    at = NAMES.index("unlink") + 1
    ended, lines = ran(tmp_path, Fault(at, kind))
    assert (lines[-1], ended) == ("mkdir None", kind.number)
    # an interrupt is heard when the call is done
    assert (tmp_path / "in/renamed").exists() == (kind is Kind.SIGKILL)


def test_without_a_folder_the_layer_does_nothing(tmp_path: Path) -> None:
    environment = {**unmeasured(), **COUNTING.variables(tmp_path, tmp_path / "log")}
    del environment["FAULT_FOLDER"]
    subprocess.run([sys.executable, "-c", "open('file', 'w')"], env=environment, cwd=tmp_path, check=True)
    assert calls(tmp_path / "log") == []
