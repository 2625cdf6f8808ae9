"""Runs that write into one folder, one after the other: who comes later waits, says for whom, and not for ever.

The lock is the folder's own, so it leaves no file, and it ends with its process. Linux lists who holds it: a process
that is stopped (SIGSTOP, Ctrl-Z) would keep all others waiting until somebody thinks of it.
https://man7.org/linux/man-pages/man5/proc_locks.5.html
"""

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from vbuild.errors import BuildError
from vbuild.files.atomic import locked

_LOG = logging.getLogger("vbuild")
_SAID_AFTER, _STOPPED = 1.0, 10.0  # seconds
_SEEN_EVERY = 0.5  # seconds
_HELD = threading.local()


@contextmanager
def turn(folder: Path) -> Iterator[None]:
    """In the block no other run that asks for its turn writes into *folder*, which is there.

    This may ask again for a folder that it has. `BuildError` if the one that has it is stopped for ten seconds. On file
    systems without locks, some network ones, all go ahead.
    """
    held: set[tuple[int, int]] = _HELD.__dict__.setdefault("folders", set())
    if _key(folder) in held:
        yield
        return
    with ExitStack() as stack:
        with suppress(OSError):
            stack.enter_context(locked(folder, check=_Waiting(folder)))
        key = _key(folder)
        held.add(key)
        stack.callback(held.discard, key)
        yield


def _key(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


class _Waiting:
    """What is done between two tries to lock *folder*."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._begun = self._moving = time.monotonic()
        self._seen = 0.0
        self._is_said = False

    def __call__(self) -> None:
        now = time.monotonic()
        if now < max(self._begun + _SAID_AFTER, self._seen + _SEEN_EVERY):
            return
        self._seen = now
        process = _holder(self._folder)
        who = f"process {process}" if process else "another process"
        if not self._is_said:
            self._is_said = True
            _LOG.warning("vbuild: %s: waiting for %s, which writes there", self._folder, who)
        if not (process and _is_stopped(process)):
            self._moving = now
        elif now > self._moving + _STOPPED:
            raise BuildError(
                f"{self._folder}: {who}, which writes there, is stopped; "
                f"let it go on ('kill -CONT {process}') or end it, and try again"
            )


def _holder(folder: Path) -> int | None:
    """The process that has locked *folder*, as far as the system tells."""
    with suppress(OSError, ValueError, IndexError):
        device, inode = _key(folder)
        file = f"{os.major(device):02x}:{os.minor(device):02x}:{inode}"
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            # 1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF; of those that wait, an arrow comes first
            words = line.split()
            if "->" not in words and words[1] == "FLOCK" and words[5] == file:
                return int(words[4]) or None
    return None


def _is_stopped(process: int) -> bool:
    with suppress(OSError):
        # the name, in brackets, may have anything in it
        return Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] in {"T", "t"}
    return False
