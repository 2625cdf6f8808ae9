"""Processes that tests wait for."""

import time
from collections.abc import Callable
from pathlib import Path


def state_of(pid: int) -> str | None:
    """The letter for what the process is doing, as ``ps`` has it: T where it is stopped; None where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return None


def is_running(pid: int) -> bool:
    """Whether there is such a process, which may be one that nobody has waited for, but has not ended."""
    return state_of(pid) not in {None, "Z"}


def until(happens: Callable[[], object]) -> None:
    """Wait for it, a minute at most: other work may go on beside."""
    deadline = time.monotonic() + 60
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.01)
