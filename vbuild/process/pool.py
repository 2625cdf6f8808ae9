"""Processes of this Python that do a part of its work, and import nothing from the current folder.

    map(function, things) -> a thread -> function and thing, pickled -> the thread's own process -> the result

`multiprocessing`'s resource tracker and fork server import from the current folder, and its processes import the user's
program again.
"""

import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, TypeVar

from vbuild.process.python import isolated

T = TypeVar("T")
R = TypeVar("R")

# Ctrl-C is for the parent; what a function prints is not its result
_WORK = """
import os, pickle, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.path[:] = sys.argv[1:]
results = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
while True:
    function, thing = pickle.load(sys.stdin.buffer)
    pickle.dump(function(thing), results)
    results.flush()
"""


class ProcessPool:
    """Up to *count* processes, each started when there is work for it; `end` ends them.

    The work of a lost process is done here.
    """

    def __init__(self, count: int) -> None:
        self._threads = ThreadPoolExecutor(count)
        self._own = threading.local()
        self._started: list[subprocess.Popen[bytes]] = []
        self._has_ended = False

    def map(self, function: Callable[[T], R], things: Iterable[T]) -> Iterator[R]:
        """The results of *function*, which needs a name in a module, for *things*, in their order."""
        return self._threads.map(partial(self._result, function), things)

    def end(self) -> None:
        """End all processes, and cancel what is not done."""
        self._has_ended = True
        for process in self._started:
            process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in self._started:
            process.kill()
            with suppress(OSError), process:  # closing flushes what it does not read any more
                pass

    def _result(self, function: Callable[[T], R], thing: T) -> R:
        try:
            tasks, results = getattr(self._own, "pipes", None) or self._start()
            pickle.dump((function, thing), tasks)
            tasks.flush()
            result: R = pickle.load(results)  # noqa: S301 - our own process wrote it
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            self._own.pipes = None
            if self._has_ended:
                raise CancelledError from error
            return function(thing)
        return result

    def _start(self) -> tuple[IO[bytes], IO[bytes]]:
        folders = [folder for folder in sys.path if Path(folder).is_absolute() and Path(folder) != Path.cwd()]
        options = ["-B"] if sys.dont_write_bytecode else []
        process = subprocess.Popen(
            isolated(*options, "-c", _WORK, *folders, str(Path(__file__).parents[2])),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._started.append(process)
        assert process.stdin  # noqa: S101 - for mypy
        assert process.stdout  # noqa: S101 - for mypy
        self._own.pipes = process.stdin, process.stdout
        return process.stdin, process.stdout
