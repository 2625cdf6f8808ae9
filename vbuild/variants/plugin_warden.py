"""Run one command within limits; say how it ended, what it answered, and whether it left anything running.

    vbuild -> this program -> the command: a session and a process group of its own, limits, variables as given
       <- one JSON object  <- a pipe for the answer, and pipes for what should stay empty

Orphans go to the nearest ancestor that asked for them (``PR_SET_CHILD_SUBREAPER``), which is why this is a process
of its own: whatever the command starts ends up here, in a session of its own or not, and is ended here.
https://man7.org/linux/man-pages/man2/PR_SET_CHILD_SUBREAPER.2const.html

A program for ``python -I``, which is given its order as JSON: it knows the standard library only.
"""

import base64
import ctypes
import json
import os
import resource
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 4, 36
_CHUNK = 1 << 16
_TICK = 0.05
_PATIENCE = 0.5  # seconds that what was started has to end after the one that started it
_EFFORT = 5.0  # seconds to end what is left


class _Streams:
    """What comes out of pipes: of the answer as many bytes as allowed, of the rest what a message shows."""

    def __init__(self, pipes: dict[str, int], most: dict[str, int]) -> None:
        self.kept = dict.fromkeys(pipes, b"")
        self._most = most
        self._selector = selectors.DefaultSelector()
        for name, number in pipes.items():
            os.set_blocking(number, False)
            self._selector.register(number, selectors.EVENT_READ, name)

    @property
    def is_overflowing(self) -> bool:
        return len(self.kept["answer"]) > self._most["answer"]

    def read(self, seconds: float) -> bool:
        """Whether there was something to read, after *seconds* at most."""
        if not self._selector.get_map():
            time.sleep(seconds)
            return False
        found = self._selector.select(seconds)
        for key, _ in found:
            name = key.data
            data = os.read(key.fd, _CHUNK)
            if not data:
                self._selector.unregister(key.fd)
            elif name == "stderr":  # its end says why
                self.kept[name] = (self.kept[name] + data)[-self._most[name] :]
            else:
                self.kept[name] = (self.kept[name] + data)[: self._most[name] + 1]
        return bool(found)


def main() -> None:
    order = json.loads(sys.argv[1])
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _prctl(_PR_SET_DUMPABLE, 0)  # or the command could write to our pipes
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.signal(signal.SIGTERM, _ended)
    try:
        outcome = _watched(order)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # nothing is left half ended
        _end_all()
    sys.stdout.write(json.dumps(outcome))


def _watched(order: dict[str, Any]) -> dict[str, Any]:
    """How the command of *order* ended; its status is None if it had to be ended."""
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [*order["command"], str(writing), *order["arguments"]],
        cwd=order["folder"],
        env=order["environment"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=(writing,),
        start_new_session=True,
        preexec_fn=_limiting(order["limits"]),  # noqa: PLW1509 - this process has one thread
    )
    os.close(writing)
    pipes = {"stdout": process.stdout, "stderr": process.stderr}
    numbers = {name: stream.fileno() for name, stream in pipes.items() if stream}
    streams = _Streams({"answer": reading, **numbers}, order["most"])
    deadline = time.monotonic() + order["timeout"]
    is_crowded = False
    while (has_ended := process.poll()) is None and not (streams.is_overflowing or is_crowded):
        if time.monotonic() > deadline:
            break
        streams.read(_TICK)
        is_crowded = len(_descendants(os.getpid())) > order["most"]["processes"]
    drained = time.monotonic() + _PATIENCE  # what it left behind may write for ever
    while has_ended is not None and time.monotonic() < drained and streams.read(0):
        pass
    return {
        "status": has_ended,
        "overflowing": streams.is_overflowing,
        "crowded": is_crowded,
        "left": has_ended is not None and _has_left(),
        "answer": base64.b64encode(streams.kept["answer"]).decode(),
        "stdout": streams.kept["stdout"].decode(errors="replace"),
        "stderr": streams.kept["stderr"].decode(errors="replace"),
    }


def _limiting(limits: dict[str, int]) -> Callable[[], None]:
    """What sets the *limits* by name between fork and exec, never above what the user has anyway."""

    def limit() -> None:
        for name, wanted in limits.items():
            number = getattr(resource, name)
            _, hard = resource.getrlimit(number)
            most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(number, (most, most))
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.umask(0o077)

    return limit


def _has_left() -> bool:
    """Whether some process that the command started goes on after it."""
    deadline = time.monotonic() + _PATIENCE
    while _is_parent():
        if time.monotonic() > deadline:
            return True
        time.sleep(_TICK)
    return False


def _is_parent() -> bool:
    """Whether a child is left that runs; those that have ended are waited for."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
        return True
    return False


def _end_all() -> None:
    """End every descendant: the children of one that was ended are ours, and are ended next."""
    deadline = time.monotonic() + _EFFORT
    while _is_parent() and time.monotonic() < deadline:
        for number in _descendants(os.getpid()):
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        time.sleep(_TICK / 10)


def _descendants(root: int) -> set[int]:
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # "4711 (name) S 42 …": the parent is the second field after the name
            parents[int(path.parent.name)] = int(path.read_bytes().rpartition(b")")[2].split()[1])
    found, new = set[int](), {root}
    while new:
        new = {number for number, parent in parents.items() if parent in new} - found
        found |= new
    return found


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _ended(_number: int, _frame: object) -> NoReturn:
    sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    main()
