"""How much of this machine builds use: processes by cores and memory, in one pool for all builds that run at a time.

    cores, memory, builds, --jobs -> builds at a time, and the processes that each may start

A process of g++ takes up to 2.0 GB, one of nvcc's cicc 1.1 GB. Build systems read how many processes they may start
from variables, each its own; those that the user or the recipe has set stay.
"""

from collections.abc import Mapping
from pathlib import Path

from vbuild.hardware.cpu import available_cores
from vbuild.toolchain.compiler_program import THREADS

_NEED = 2 * 10**9  # bytes
# torch's extensions and flash-attn; cmake --build; cargo; numpy.distutils; the wrapper of nvcc
_VARIABLES = ("MAX_JOBS", "CMAKE_BUILD_PARALLEL_LEVEL", "CARGO_BUILD_JOBS", "NPY_NUM_BUILD_JOBS", THREADS)
_MEMORY = Path("/proc/meminfo")
# version 2, and version 1 (https://docs.kernel.org/admin-guide/cgroup-v2.html)
_LIMITS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)


def shared(builds: int, asked: int | None, *, cores: int | None = None, memory: int | None = None) -> tuple[int, int]:
    """How many of *builds* run at a time, *asked* if that is not None, and how many processes each may start.

    *cores* and *memory*, in bytes, are by default those that are free here.
    """
    memory = available_memory() if memory is None else memory
    room = max(1, min(cores or available_cores(), memory // _NEED))
    at_once = max(1, min(asked or room, builds))
    return at_once, max(1, room // at_once)


def job_variables(processes: int, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables by which build systems start so many *processes*, but for those that *environment* has."""
    return {name: str(processes) for name in _VARIABLES if processes and name not in environment}


def available_memory() -> int:
    """The bytes of memory that are free, of the machine or of the container's share of it."""
    free = [available - used for limit, usage in _LIMITS if (available := _number(limit)) and (used := _number(usage))]
    lines = (line.split() for line in _text(_MEMORY).splitlines() if line.startswith("MemAvailable:"))
    free += [int(kilobytes) * 1024 for _, kilobytes, *_ in lines]
    return min(free, default=_NEED)


def _number(file: Path) -> int | None:
    text = _text(file).strip()
    return int(text) if text.isdigit() else None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii")
    except OSError:
        return ""
