"""Where jobs run: on this machine, or on the workers of a Dask scheduler.

    local               this machine
    dask://host:port    the workers of the scheduler there: ``dask scheduler`` listens at 8786

A worker runs one function of vbuild, which calls another by its name if both sides have the same vbuild:

    called("vbuild.slimming.slim:slim_on_worker", fingerprint, arguments) -> the result

Dask imports what it is sent before it runs, on the scheduler too. So vbuild sends this function, whose module imports
next to nothing, and values of Python's own types; the rest is unpickled after the check.

A job asks its worker where to write, sends it events, and is stopped if nobody wants it.
"""

import functools
import hashlib
import pickle
import pkgutil
import platform
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from msgspec import Struct

import vbuild
from vbuild.errors import BuildError

if TYPE_CHECKING:
    from distributed import Worker

TOPIC = "vbuild"  # of the events that jobs send to the scheduler
GPU = "gpu"  # the resource of a worker with NVIDIA GPUs; CPU levels are resources by their own names

_DASK = re.compile(r"dask://(?P<host>\[[0-9A-Fa-f:.]+\]|[\w.-]+):(?P<port>\d{1,5})", re.ASCII)
_PORTS = range(1, 1 << 16)
_LOOKS = 1.0  # seconds between two looks at whether a job is still wanted
_WANTED = frozenset({"executing", "long-running"})


class Executor(Struct, frozen=True):
    """The workers of the scheduler at *address*, host and port; this machine if None."""

    address: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """The executor *text*, ``local`` or ``dask://host:port``; `BuildError` for others."""
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


def called(function: str, expected: str, *arguments: Any) -> Any:  # noqa: ANN401 - what functions take and give
    """The result of *function*, ``module:name``; `BuildError` if vbuild's fingerprint is not the *expected* one."""
    if fingerprint() != expected:
        raise BuildError(another(platform.node()))
    return pkgutil.resolve_name(function)(*arguments)


def packed(value: object) -> bytes:
    """*value* as bytes, to be `opened` after the check."""
    return pickle.dumps(value)


def opened(data: bytes) -> Any:  # noqa: ANN401 - whatever was packed
    return pickle.loads(data)  # noqa: S301 - a cluster runs what its clients send it in any case


def another(where: str) -> str:
    return f"{where}: has another vbuild ({vbuild.__version__} with other files); expected the same one everywhere"


@functools.cache
def fingerprint() -> str:
    """The SHA-256 of vbuild's version and its own files, which change between releases, too."""
    package = Path(vbuild.__file__).parent
    total = hashlib.sha256(vbuild.__version__.encode())
    for path in sorted(package.rglob("*.py")):
        data = path.read_bytes()
        total.update(b"\0%s\0%d\0" % (str(path.relative_to(package)).encode(), len(data)))
        total.update(data)
    return total.hexdigest()


def scratch() -> Path:
    """The folder of this task's worker, removed with the worker, or when the next one starts."""
    return Path(_worker().local_directory)


def tell(event: Mapping[str, Any]) -> None:
    """Send *event*, a value for JSON, to all clients that listen; only a task can."""
    _worker().log_event(TOPIC, dict(event))


@contextmanager
def while_wanted(stop: Callable[[], None]) -> Iterator[None]:
    """Call *stop*, in another thread, if nobody wants the block's task any more.

    Dask only forgets a cancelled task: its thread goes on.
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
    from distributed import get_worker  # noqa: PLC0415 - an extra; this code runs in it

    return get_worker()
