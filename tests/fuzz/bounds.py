"""The laws that every input of a target has to keep, and how they are measured.

    exception   only `VbuildError` comes out
    seconds     `SECONDS_PER_MB` for every MB (10^6 bytes) of input, `FEWEST_SECONDS` at least
    memory      `TIMES` the size of the input, `LEAST_MEMORY` bytes at least

Seconds are of processor time, of this process with its threads and of the programs that it ran, so that a busy machine
does not break a law. Memory is how far the resident set of the process rose above where it stood before: on Linux its
high-water mark, VmHWM, which is put back before each input (proc(5), /proc/pid/clear_refs), and so has what C libraries
and mapped files take up as well, not what Python allocates alone. Elsewhere it is how far ru_maxrss rose.
"""

import ctypes
import gc
import resource
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.target import Target
from vbuild.errors import VbuildError

SECONDS_PER_MB, FEWEST_SECONDS = 2.0, 1.0
TIMES, LEAST_MEMORY = 4, 64_000_000
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
_ROOT = Path(__file__).parents[2] / "vbuild"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What reading an input took, in seconds and bytes, and the exception that came out though it should not have."""

    size: int
    seconds: float
    memory: int
    error: BaseException | None = None

    @property
    def broken(self) -> str | None:
        """The law that was broken, with the place in vbuild if one is known: equal for equal findings."""
        if self.error is not None:
            return f"{type(self.error).__name__} in {_place(self.error)}"
        if self.seconds > most_seconds(self.size):
            return "seconds"
        return "memory" if self.memory > most_memory(self.size) else None

    def __str__(self) -> str:
        took = f"{self.size} bytes took {self.seconds:.2f} s and {self.memory / 1e6:.1f} MB"
        allowed = f"{most_seconds(self.size):.2f} s and {most_memory(self.size) / 1e6:.1f} MB are allowed"
        came = f"; {''.join(traceback.format_exception(self.error))}" if self.error else ""
        return f"{took}; {allowed}{came}"


def most_seconds(size: int) -> float:
    """The processor time that an input of *size* bytes may take."""
    return max(FEWEST_SECONDS, SECONDS_PER_MB * size / 1e6)


def most_memory(size: int) -> int:
    """The bytes of memory that an input of *size* bytes may take."""
    return max(LEAST_MEMORY, TIMES * size)


def measured(target: Target, data: bytes, *, settled: bool = True) -> Outcome:
    """What came of *data*; unless *settled*, memory that was freed before and not given back hides as much of it."""
    if settled:
        gc.collect()
        _give_back()
    before, begun = _reset_peak(), _processor_time()
    error: BaseException | None = None
    try:
        target.run(data)
    except VbuildError:
        pass
    except (Exception, SystemExit) as escaped:  # noqa: BLE001 - whatever comes out is what is looked for
        error = escaped
    return Outcome(len(data), _processor_time() - begun, _peak() - before, error)


def _processor_time() -> float:
    mine, others = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return mine.ru_utime + mine.ru_stime + others.ru_utime + others.ru_stime


def _reset_peak() -> int:
    """The resident set in bytes; the high-water mark is there as well from now on, where the system can do that."""
    try:
        _CLEAR.write_text(_RESET_PEAK)
    except OSError:
        return _peak()
    return _status("VmRSS")


def _peak() -> int:
    if _STATUS.exists():
        return _status("VmHWM")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _status(field: str) -> int:
    for line in _STATUS.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise LookupError(field)


def _give_back() -> None:
    """Hand free memory back to the system, so that using it again shows."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _place(error: BaseException) -> str:
    """File and function of vbuild that *error* came through last."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).is_relative_to(_ROOT)
    ]
    return f"{Path(frames[-1].filename).relative_to(_ROOT)} {frames[-1].name}" if frames else "no file of vbuild"
