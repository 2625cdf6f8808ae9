"""Where jobs run: on this machine, or on the workers of a Dask scheduler.

local               this machine
dask://host:port    what has joined the scheduler there: ``dask scheduler`` listens at 8786

What a job asks the Dask worker that it runs on: where to write, whom to tell, and whether it is still wanted.
"""

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from msgspec import Struct

from vbuild.errors import BuildError

GPU = "gpu"  # the resource of a worker with NVIDIA GPUs; CPU levels are resources by their own names

_DASK = re.compile(r"dask://(?P<host>\[[0-9A-Fa-f:.]+\]|[\w.-]+):(?P<port>\d{1,5})", re.ASCII)
_PORTS = range(1, 1 << 16)


class Executor(Struct, frozen=True):
    """The workers of the scheduler at *address*, host and port; this machine where that is None."""

    address: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """The executor called *text*; `BuildError` if it is neither ``local`` nor ``dask://host:port``."""
        if text == "local":
            return cls()
        match = _DASK.fullmatch(text)
        if not match or int(match["port"]) not in _PORTS:
            raise BuildError(f"no executor {text!r}; expected local or dask://host:port, as in dask://10.0.0.5:8786")
        return cls(f"{match['host']}:{match['port']}")

    @property
    def is_local(self) -> bool:
        return self.address is None

    def __str__(self) -> str:
        return f"dask://{self.address}" if self.address else "local"


LOCAL = Executor()


if TYPE_CHECKING:
    from distributed import Worker

TOPIC = "vbuild"  # of what jobs tell, on the scheduler

_LOOKS = 1.0  # seconds between two looks at whether a job is still wanted
_WANTED = frozenset({"executing", "long-running"})


def scratch() -> Path:
    """The folder of the worker that runs this task: it goes when the worker goes, or when the next one starts there."""
    return Path(_worker().local_directory)


def tell(event: Mapping[str, Any]) -> None:
    """Send *event*, a value as JSON takes it, to all clients that listen; from within a task or not at all."""
    _worker().log_event(TOPIC, dict(event))


@contextmanager
def while_wanted(stop: Callable[[], None]) -> Iterator[None]:
    """Call *stop*, in another thread, where the task of this one is not wanted any more while it is in the block.

    Dask only forgets a task that was cancelled, or whose client is gone: its thread goes on.
    """
    worker = _worker()
    key = worker.get_current_task()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_LOOKS):
            task = worker.state.tasks.get(key)
            if task is None or task.state not in _WANTED:
                stop()
                return

    watcher = threading.Thread(target=watch, name="vbuild watches a task", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _worker() -> "Worker":
    from distributed import get_worker  # noqa: PLC0415 - an extra; whoever comes here runs in it

    return get_worker()
