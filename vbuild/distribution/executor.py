"""Where jobs run: on this machine, or on the workers of a Dask scheduler.

local               this machine
dask://host:port    what has joined the scheduler there: ``dask scheduler`` listens at 8786
"""

import re
from dataclasses import dataclass
from typing import Self

from vbuild.errors import ExecutorError

GPU = "gpu"  # the resource of a worker with NVIDIA GPUs; CPU levels are resources by their own names

_DASK = re.compile(r"dask://(?P<host>\[[0-9A-Fa-f:.]+\]|[\w.-]+):(?P<port>\d{1,5})", re.ASCII)
_PORTS = range(1, 1 << 16)


@dataclass(frozen=True, slots=True)
class Executor:
    """The workers of the scheduler at *address*, host and port; this machine where that is None."""

    address: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """The executor called *text*; `ExecutorError` where it is neither ``local`` nor ``dask://host:port``."""
        if text == "local":
            return cls()
        match = _DASK.fullmatch(text)
        if not match or int(match["port"]) not in _PORTS:
            raise ExecutorError(f"no executor {text!r}; expected local or dask://host:port, as in dask://10.0.0.5:8786")
        return cls(f"{match['host']}:{match['port']}")

    @property
    def is_local(self) -> bool:
        return self.address is None

    def __str__(self) -> str:
        return f"dask://{self.address}" if self.address else "local"


LOCAL = Executor()
