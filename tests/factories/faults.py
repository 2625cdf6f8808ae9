"""Runs of vbuild that are disturbed: a call of the C library that fails, or a signal at some moment.

layer() -> the library to preload, of fault_layer.c
Fault(at, kind) -> the variables under which the call number *at* of a process fails
calls(log) -> what a process asked of the C library, call by call
"""

import atexit
import ctypes
import errno
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

from tests.factories.tools import unmeasured
from tests.factories.workdir import VBUILD

_SOURCE = Path(__file__).with_name("fault_layer.c")
_WRITE = frozenset({"write", "pwrite", "sendfile", "copy_file_range"})
# those that need room on a disk; the others are never refused for the lack of it
_NEED_ROOM = _WRITE | {"ftruncate", "link", "linkat", "mkdir", "symlink"}
_OF_OPEN_FILES = frozenset({"read", "close", "ftruncate", "fsync", "syncfs"})


class Kind(StrEnum):
    """What becomes of a call: an error of the system's, or a write of half of the bytes.

    Or what comes just before it: a signal, or that one of the folders that the run uses is removed.
    """

    ENOSPC = "ENOSPC"
    EDQUOT = "EDQUOT"
    EIO = "EIO"
    EACCES = "EACCES"
    SHORT = "SHORT"
    SIGINT = "SIGINT"
    SIGKILL = "SIGKILL"
    SIGSTOP = "SIGSTOP"
    # a folder that somebody removes
    OUT_GONE = "out"
    IN_GONE = "in"
    TMP_GONE = "tmp"
    CACHE_GONE = "cache"

    @property
    def is_signal(self) -> bool:
        return self.startswith("SIG")

    @property
    def is_removal(self) -> bool:
        return self in {Kind.OUT_GONE, Kind.IN_GONE, Kind.TMP_GONE, Kind.CACHE_GONE}

    @property
    def is_error(self) -> bool:
        return not (self.is_signal or self.is_removal or self is Kind.SHORT)

    @property
    def number(self) -> int:
        """As the layer takes it: the error, 0 for none, and signals below it."""
        if self.is_signal:
            return -int(getattr(signal, self))
        return int(getattr(errno, self)) if self.is_error else 0

    @property
    def reason(self) -> str:
        return os.strerror(self.number)

    def fits(self, call: "Call") -> bool:
        """Whether a system may answer *call* so."""
        match self:
            case Kind.SHORT:
                return call.name in _WRITE
            case Kind.ENOSPC | Kind.EDQUOT:
                return call.name in _NEED_ROOM or call.is_creating
            case Kind.EACCES:
                return call.name not in _WRITE | _OF_OPEN_FILES
            case Kind.EIO:
                return call.name != "close" or call.is_creating
            case _:
                return True


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the C library: its number, from 1, its name, whether it was let *fail*, and the path."""

    number: int
    name: str
    is_failed: bool
    path: str

    @property
    def is_creating(self) -> bool:
        """Whether a file is made, as far as its name tells: what is in the making has a name with a dot.

        Or closed, by which some network file systems tell that there was no room.
        """
        return self.name in {"open", "openat", "close"} and Path(self.path).name.startswith(".")


@dataclass(frozen=True, slots=True)
class Fault:
    """The call number *at* below a folder fails with *kind*, or goes on in a folder of which a part is gone.

    Those after it do, too, where a disk *stays* full, or somebody keeps asking.
    """

    at: int
    kind: Kind
    stays: bool = False

    def __str__(self) -> str:
        return f"{self.kind}{' from' if self.stays else ' at'} call {self.at}"

    def variables(self, folder: Path, log: Path) -> dict[str, str]:
        """What a process is started with, so that this happens to it; *log* gets its calls."""
        return {
            "LD_PRELOAD": str(layer()),
            "FAULT_FOLDER": str(folder),
            "FAULT_LOG": str(log),
            "FAULT_AT": str(self.at),
            "FAULT_ERRNO": str(self.kind.number),
            "FAULT_STAYS": str(int(self.stays)),
            "FAULT_REMOVE": str(folder / self.kind) if self.kind.is_removal else "",
        }


COUNTING = Fault(0, Kind.EIO)


@cache
def layer() -> Path:
    """The library that lets calls fail; built once in a session."""
    folder = Path(tempfile.mkdtemp(prefix="faultlayer-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    library = folder / "faultlayer.so"
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["gcc", *flags, "-o", library, _SOURCE, "-ldl"], check=True)
    ctypes.CDLL(str(library))  # here, where it does nothing: an error in it shows now
    return library


def calls(log: Path) -> list[Call]:
    """The calls in *log*, in their order."""
    found = []
    for line in log.read_text().splitlines() if log.exists() else ():
        number, name, result, path = line.split(" ", 3)
        found.append(Call(int(number), name, result == "failed", path))
    return sorted(found, key=lambda call: call.number)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended: its status, what it printed, and how long it took, in seconds."""

    status: int
    out: str
    err: str
    seconds: float

    @property
    def refusal(self) -> str:
        """What follows ``vbuild:`` in the one line of a refusal."""
        assert self.status == 1, self
        assert self.err.startswith("vbuild: "), self
        assert self.err.count("\n") == 1, self
        return self.err.removeprefix("vbuild: ").rstrip("\n")


def run(*arguments: object, folder: Path, variables: Mapping[str, str], inside: tuple[str, ...] = ()) -> Ended:
    """What comes of ``vbuild ARGUMENTS`` in *folder*, started *inside* another command."""
    begun = time.monotonic()
    return ended(begin(*arguments, folder=folder, variables=variables, inside=inside), begun)


def signalled(
    *arguments: object, folder: Path, variables: Mapping[str, str], number: signal.Signals, after: float
) -> Ended:
    """What comes of ``vbuild ARGUMENTS`` that gets the signal *number* *after* so many seconds.

    It alone does, but for SIGINT, which a terminal sends to the whole group.
    """
    begun = time.monotonic()
    process = begin(*arguments, folder=folder, variables=variables)
    time.sleep(max(0, begun + after - time.monotonic()))
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    return ended(process, begun)


def begin(
    *arguments: object, folder: Path, variables: Mapping[str, str], inside: tuple[str, ...] = ()
) -> subprocess.Popen[str]:
    """The process of ``vbuild ARGUMENTS`` in *folder*."""
    # coverage would hold its lock for ever, and write to where the layer counts; Python would look for modules there
    return subprocess.Popen(
        [*inside, *VBUILD, *map(str, arguments)],
        cwd=folder,
        env={**unmeasured(), "PYTHONSAFEPATH": "1", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[str], begun: float) -> Ended:
    """How *process* ends, which was started when the clock was at *begun*."""
    out, err = process.communicate(timeout=600)
    return Ended(process.returncode, out, err, time.monotonic() - begun)
