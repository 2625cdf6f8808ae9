"""The results of `vbuild bench` as values: times of wheels, ratios between them, and what these decide."""

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct, field, to_builtins

PUBLISHED = "published"

_TIMES = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


class BenchRatio(Struct, frozen=True):
    """How many times faster than another wheel: the *median* of the rounds, and *low* and *high*, its spread.

    The median of infinitely many rounds is between these in fifteen of sixteen cases, from five rounds on.
    """

    median: float
    low: float
    high: float

    @property
    def is_noise(self) -> bool:
        """Whether it may be faster as well as slower."""
        return self.low <= 1 <= self.high

    def is_surely_below(self, other: float) -> bool:
        """Whether it is less than *other* by more than all of its spread."""
        return self.median + (self.high - self.low) < other

    def __str__(self) -> str:
        noise = ", within the noise" if self.is_noise else ""
        return f"{self.median:.2f}x ({self.low:.2f} to {self.high:.2f}){noise}"


class BenchedWheel(Struct, frozen=True):
    """A *wheel* with the medians of its figures, in seconds, and ratios to the first; *untried* says why it has none.

    The *wheel* is a file name, or the path as it was given where two have one name.

    Its *title* is its label, ``plain``, or ``published``. Without it, the machines of its level get the wheel with the
    title *below*, to which its *gain* is a ratio. It *is_left_out* of the release if that surely is too little.
    """

    wheel: str
    title: str
    seconds: Mapping[str, float] = {}
    ratios: Mapping[str, BenchRatio] = {}
    overall: BenchRatio | None = None
    below: str | None = None
    gain: BenchRatio | None = None
    is_left_out: bool = field(name="left_out", default=False)
    untried: str | None = None

    def is_open(self, min_gain: float) -> bool:
        """Whether the noise hides if it reaches *min_gain*."""
        return self.gain is not None and not self.is_left_out and self.gain.low < 1 + min_gain

    def decision(self, min_gain: float | None) -> str | None:
        """What becomes of the level if *min_gain*, a part of 1, is asked for, in words; None if nothing is decided."""
        if min_gain is None or self.title == PUBLISHED:
            return None
        if self.untried:
            return "stays"
        if self.gain is None:
            return None
        asked = f"{min_gain * 100:g}% over {self.below}"
        if self.is_left_out:
            return f"left out, as it does not reach {asked}"
        if self.is_open(min_gain):
            return f"stays: the noise hides whether it reaches {asked}"
        return f"stays: reaches {asked}"


class BenchReport(Struct, frozen=True):
    """What *rounds* of a bench say of wheels, of which the first is the measure; *error* says why it says nothing.

    *min_gain* is what a level has to bring, as a part of 1, or None if that was not asked.
    """

    rounds: int
    wheels: tuple[BenchedWheel, ...]
    min_gain: float | None = None
    error: str | None = None

    def data(self) -> dict[str, Any]:
        """The report for JSON."""
        found: dict[str, Any] = to_builtins(self)
        return found

    def lines(self) -> Iterator[str]:
        """The report as text."""
        for one in self.wheels:
            yield f"{one.wheel}: {one.untried or one.overall or 'the measure'}"
            for name, seconds in one.seconds.items():
                ratio = f"  {one.ratios[name]}" if name in one.ratios else ""
                yield f"  {name}: {spelled(seconds)}{ratio}"


def spelled(seconds: float) -> str:
    """A time with three digits and its unit, such as ``12.5 ms``."""
    unit = next((name for name in ("s", "ms", "us") if seconds >= _TIMES[name]), "ns")
    return f"{seconds / _TIMES[unit]:.3g} {unit}"
