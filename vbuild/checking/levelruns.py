"""What came of running a wheel as processors of several levels see it, as values and as lines for a terminal."""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from vbuild.checking.levelways import Way

_WIDTH = 80
_SHOWN = 5  # libraries of a run; those that are wrong are all told


@dataclass(frozen=True, slots=True)
class Run:
    """A wheel run as processors of *level* see it, which came about by *way*; *untried* says why it was not.

    *imported* are modules, *loaded* the libraries with copies that the loader took, by their paths from site-packages.
    It *is_tested* where the test's command was run, too, and *output* are the last lines of one that failed.
    """

    level: str
    way: Way
    untried: str | None = None
    imported: tuple[str, ...] = ()
    loaded: tuple[str, ...] = ()
    is_tested: bool = False
    failures: tuple[str, ...] = ()
    output: str = ""

    def __str__(self) -> str:
        return str(self.way) if self.way is Way.NONE else f"{self.level} by {self.way}"

    @property
    def is_tried(self) -> bool:
        return self.untried is None

    def data(self) -> dict[str, Any]:
        return {
            "level": self.level,
            "way": self.way.value,
            "tried": self.is_tried,
            "untried": self.untried,
            "imported": list(self.imported),
            "loaded": list(self.loaded),
            "tested": self.is_tested,
            "failures": list(self.failures),
            "output": self.output,
        }

    def lines(self) -> Iterator[str]:
        """The run for a terminal: a line, libraries that were taken, what failed, how a failed test ended."""
        if self.untried is not None:
            yield from _wrapped(f"  {self}: not tried: {self.untried}")
            return
        done = [_counted(len(self.imported), "module") + " imported"]
        done += ["test failed" if self._has_failed_test else "test passed"] if self.is_tested else []
        yield from _wrapped(f"  {self}: {', '.join(done)}")
        yield from (f"    {path}" for path in self.loaded[:_SHOWN])
        if len(self.loaded) > _SHOWN:
            yield f"    and {len(self.loaded) - _SHOWN} more"
        for failure in self.failures:
            yield from _wrapped(f"    failed: {failure}")
        yield from (f"    | {line}" for line in self.output.splitlines())

    @property
    def _has_failed_test(self) -> bool:
        return any(failure.startswith("test: ") for failure in self.failures)


@dataclass(frozen=True, slots=True)
class Leveled:
    """What came of a wheel's *levels*, the baseline's first: its *runs*, and *notes* on what could not be seen."""

    wheel: str
    levels: tuple[str, ...]
    runs: tuple[Run, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing failed of what was tried."""
        return not self.failures

    @property
    def failures(self) -> tuple[str, ...]:
        """What failed, level and way in front."""
        return tuple(f"{run}: {failure}" for run in self.runs for failure in run.failures)

    @property
    def tried(self) -> tuple[str, ...]:
        """The levels that were tried by some way."""
        return tuple(level for level in self.levels if any(run.level == level and run.is_tried for run in self.runs))

    @property
    def untried(self) -> tuple[str, ...]:
        return tuple(level for level in self.levels if level not in self.tried)

    def data(self) -> dict[str, Any]:
        """The result as JSON takes it."""
        return {
            "wheel": self.wheel,
            "levels": list(self.levels),
            "tried": list(self.tried),
            "ok": self.ok,
            "runs": [run.data() for run in self.runs],
            "notes": list(self.notes),
        }

    def lines(self) -> Iterator[str]:
        """The result for a terminal of 80 columns; paths are not broken."""
        yield self.wheel
        yield from _wrapped(f"  {self.summary}")
        for run in self.runs:
            yield from run.lines()
        for note in self.notes:
            yield from _wrapped(f"  note: {note}")

    @property
    def summary(self) -> str:
        """How it ended, in a few words: ``works as v1, v3; v4 not tried``."""
        if not self.tried:
            return "not tried"
        if all(run.way is Way.NONE for run in self.runs):
            return f"{'works' if self.ok else 'fails'} on this machine"
        failed = [level for level in self.tried if any(run.level == level and run.failures for run in self.runs)]
        works = [level for level in self.tried if level not in failed]
        said = [f"works as {', '.join(works)}"] if works else []
        said += [f"fails as {', '.join(failed)}"] if failed else []
        said += [f"{', '.join(self.untried)} not tried"] if self.untried else []
        return "; ".join(said)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _wrapped(text: str) -> Iterator[str]:
    begin = " " * (len(text) - len(text.lstrip()))
    yield from textwrap.wrap(
        text, _WIDTH, subsequent_indent=f"{begin}    ", break_on_hyphens=False, break_long_words=False
    )
