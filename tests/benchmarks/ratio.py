"""Two ways to do a job, timed as whole processes in turn, and the ratio of their times from this one run.

    for each round: ours, theirs (so that both meet the same machine); then the median of each

Times on their own say nothing about another machine; ratios from one run do.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# from a folder of its own that is new and empty each time to the command to run
Command = Callable[[Path], Sequence[str | Path]]


@dataclass(frozen=True, slots=True)
class Run:
    """One process from start to end, its children included: wall-clock seconds and peak resident bytes."""

    seconds: float
    peak: int


@dataclass(frozen=True, slots=True)
class Paired:
    """The median run of *ours* and of *theirs*."""

    title: str
    ours: Run
    theirs: Run

    @property
    def ratio(self) -> float:
        return self.ours.seconds / self.theirs.seconds

    def __str__(self) -> str:
        return (
            f"{self.title}: ratio {self.ratio:.3f} ({self.ours.seconds:.3f} s to {self.theirs.seconds:.3f} s), "
            f"peak RSS {self.ours.peak / 1e6:.0f} MB to {self.theirs.peak / 1e6:.0f} MB"
        )


def timed(command: Command, *, env: Mapping[str, str] | None = None) -> Run:
    """One run of *command* in a new folder; `SystemExit` with its output where it fails.

    Python may keep what it compiled, as it does where it is installed, whatever the environment says.
    """
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as output:
        arguments = [str(argument) for argument in command(Path(folder))]
        begun = time.perf_counter()
        process = subprocess.Popen(
            arguments,
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "", **(env or {})},
        )
        # wait4 alone says what this one child took
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begun
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            output.seek(0)
            sys.exit(f"{' '.join(arguments)}: exit {process.returncode}\n{output.read().decode(errors='replace')}")
        # kilobytes on Linux, bytes on macOS
        return Run(seconds, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024))


def paired(title: str, ours: Command, theirs: Command, *, rounds: int = 3) -> Paired:
    """Both commands *rounds* times in turn, after one run of each that does not count."""
    timed(ours), timed(theirs)
    runs = [(timed(ours), timed(theirs)) for _ in range(rounds)]
    return Paired(title, median(run for run, _ in runs), median(run for _, run in runs))


def median(runs: Iterable[Run]) -> Run:
    """The median of the times, and the highest peak."""
    all_runs = tuple(runs)
    return Run(statistics.median(run.seconds for run in all_runs), max(run.peak for run in all_runs))


def verdict(paired: Paired, *, reach: float, peak: int | None = None, start: float = 0) -> bool:
    """Print the figures and whether they reach what they should: a ratio, and bytes of resident memory.

    *start* are seconds on top of the ratio, for Python and its modules, which small inputs do not outweigh.
    """
    reached = paired.ours.seconds <= reach * paired.theirs.seconds + start
    reached = reached and (peak is None or paired.ours.peak <= peak)
    limits = f"reach {reach}" + (f" and {start} s" if start else "") + (f" and {peak / 1e6:.0f} MB" if peak else "")
    print(f"{paired}; {limits}: {'reached' if reached else 'MISSED'}")
    return reached
