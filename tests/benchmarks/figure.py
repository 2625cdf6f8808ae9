"""A figure: one thing that vbuild does, how it is measured, what it is compared with, and the bounds it should keep.

A *sample* is one measurement. Times on their own say nothing of another machine, so most figures have a peer, another
way to the same end, and pairs of samples that are taken in turn: what counts is the median of the pairs' ratios.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from statistics import median

from msgspec import Struct

# how many samples of each side
PAIRS = 5


class Unavailable(Exception):  # noqa: N818 - no error: a tool, a wheel or a processor that is not here
    """What a figure needs is not here; the message says what."""


class Broken(Exception):  # noqa: N818 - the message is the error of the program that failed
    """A program that a figure measures failed; the message says how."""


@dataclass(frozen=True, slots=True)
class Installed:
    """The vbuild that is installed for *python*."""

    python: Path

    @property
    def vbuild(self) -> Path:
        return self.python.with_name("vbuild")


@dataclass(frozen=True, slots=True)
class Wheel:
    """A published wheel, ``NAME==VERSION``, that pip would take for a *python* on a Linux of x86-64."""

    requirement: str
    python: str = "3.11"


@dataclass(frozen=True, slots=True)
class Made:
    """A folder into which *make*, a function of a module, writes what figures read.

    It is called with the folder, the vbuild to measure if made *by_vbuild*, *arguments*, and the paths of *others*.
    """

    make: Callable[..., object]
    arguments: tuple[str | int, ...] = ()
    others: tuple["Wheel | Made", ...] = ()
    by_vbuild: bool = False


Input = Wheel | Made


@dataclass(frozen=True, slots=True)
class Setting:
    """In what a sample is taken: the vbuild to measure, a *folder* that is new and empty, and the inputs."""

    vbuild: Installed
    folder: Path
    inputs: Mapping[Input, Path] = field(default_factory=dict)


class Sample(Struct, frozen=True):
    """A *value* in the unit of its figure; of processes also their peak of resident memory, MB, and seconds of CPU."""

    value: float
    memory: float = 0
    cpu: float = 0


# raises Broken
Measure = Callable[[Setting], Sample]


class Comparison(StrEnum):
    RATIO = "ratio"
    DIFFERENCE = "difference"


@dataclass(frozen=True, slots=True)
class Peer:
    """What a figure is compared with, in words, its measure, and the inputs that it alone has."""

    what: str
    measure: Measure
    inputs: tuple[Input, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What is measured, and what should come of it.

    *reach* bounds the ratio or difference to the peer, *limit* the value itself, both from above, the limit of what is
    better when there is more from below; *memory* bounds the peak, in MB. *start* are seconds that do not count in the
    ratio, for Python and its modules, which small inputs do not outweigh. *tools* are programs that it calls. Figures
    that are not *repeatable*, as they take many minutes, are not compared between releases.
    """

    name: str
    what: str
    measure: Measure
    unit: str = "s"
    peer: Peer | None = None
    comparison: Comparison = Comparison.RATIO
    reach: float | None = None
    limit: float | None = None
    memory: float | None = None
    start: float = 0
    more_is_better: bool = False
    pairs: int = PAIRS
    inputs: tuple[Input, ...] = ()
    tools: tuple[str, ...] = ()
    repeatable: bool = True
    note: str = ""

    def compared(self, ours: float, theirs: float) -> float:
        """The ratio of two values, or their difference."""
        if self.comparison is Comparison.DIFFERENCE:
            return ours - theirs
        return (ours - self.start) / theirs


class Result(Struct, frozen=True, omit_defaults=True):
    """The medians of a figure's samples, in its unit, and of the pairs; the highest peak of memory, in MB.

    *environment* is the place of the environment in the list that a page has.
    """

    ours: float
    peer: float | None = None
    compared: float | None = None
    low: float | None = None
    high: float | None = None
    memory: float = 0
    environment: int = 0

    @classmethod
    def of(cls, figure: Figure, pairs: list[tuple[Sample, Sample | None]]) -> "Result":
        """What the samples of *figure* come to, its own first in each pair."""
        ours = [first for first, _ in pairs]
        result = cls(median(one.value for one in ours), memory=max(one.memory for one in ours))
        both = [(first.value, second.value) for first, second in pairs if second]
        if not both:
            return result
        found = [figure.compared(*pair) for pair in both]
        return cls(
            result.ours, median(second for _, second in both), median(found), min(found), max(found), result.memory
        )

    def keeps(self, figure: Figure) -> bool:
        """Whether all bounds of *figure* are kept."""
        if figure.reach is not None and (self.compared is None or self.compared > figure.reach):
            return False
        if figure.memory is not None and self.memory > figure.memory:
            return False
        if figure.limit is None:
            return True
        return self.ours >= figure.limit if figure.more_is_better else self.ours <= figure.limit
