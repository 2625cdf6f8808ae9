"""What changed between two releases of a project, by their reports.

Two wheels are compared if they are for the same Python, CPU, choices and kind of platform under the same label,
whatever their versions are; two machines, if they have the same name, the same Python, and the newest driver or the
next.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from vbuild.files.wording import counted, sized
from vbuild.release.report import FailureEntry, Key, MachineChoice, Report, WheelEntry, kinds

_SHOWN = 10


class _Sized(Protocol):
    @property
    def size(self) -> int: ...


S = TypeVar("S", bound=_Sized)


class SizeChange(Struct, Generic[S], frozen=True):
    """Something as it was and as it is."""

    before: S
    after: S

    @property
    def grown(self) -> int:
        """By how many bytes it is larger."""
        return self.after.size - self.before.size

    @property
    def share(self) -> float:
        """By how much of its size it is larger."""
        return self.grown / self.before.size if self.before.size else 0.0


class WheelChange(SizeChange[WheelEntry], frozen=True):
    """A wheel as it was and as it is."""

    @property
    def proved_otherwise(self) -> tuple[str, ...]:
        """Which verdicts are others than they were, and whether the test's result is, in a few words each."""
        results = (
            ("instruction sets", self.before.verdict.isa, self.after.verdict.isa),
            ("GPU code", self.before.verdict.gpu, self.after.verdict.gpu),
            ("test", self.before.test, self.after.test),
        )
        return tuple(f"{what}: {old} before, {new} now" for what, old, new in results if old != new)

    def data(self) -> dict[str, Any]:
        return {
            "wheel": self.after.wheel,
            "before": self.before.wheel,
            "bytes": self.after.size,
            "bytes_before": self.before.size,
            "proved_otherwise": list(self.proved_otherwise),
        }


class MachineChange(Struct, frozen=True):
    """A machine that gets another variant than before."""

    before: MachineChoice
    after: MachineChoice

    def __str__(self) -> str:
        return f"{given(self.before)} before, {given(self.after)} now"

    def data(self) -> dict[str, Any]:
        return {
            "machine": self.after.machine,
            "python": self.after.python,
            "driver": self.after.driver,
            "wheel": self.after.wheel,
            "wheel_before": self.before.wheel,
        }


class Comparison(Struct, frozen=True):
    """What is not in the report *after* as it was in the one *before*."""

    before: Report
    after: Report

    @property
    def pairs(self) -> tuple[WheelChange, ...]:
        """The wheels that both have, in the order of the later release."""
        old = {wheel.key: wheel for wheel in self.before.wheels}
        return tuple(WheelChange(old[wheel.key], wheel) for wheel in self.after.wheels if wheel.key in old)

    @property
    def new(self) -> tuple[WheelEntry, ...]:
        """The wheels that there were not, but for those that failed before."""
        return _missing(self.after.wheels, self.before)

    @property
    def gone(self) -> tuple[WheelEntry, ...]:
        """The wheels that there are no more, but for those that fail now."""
        return _missing(self.before.wheels, self.after)

    @property
    def larger(self) -> tuple[WheelChange, ...]:
        """The wheels of both that are larger, the greatest difference first."""
        found = [pair for pair in self.pairs if pair.grown > 0]
        return tuple(sorted(found, key=lambda pair: (-pair.grown, pair.after.wheel)))

    @property
    def smaller(self) -> tuple[WheelChange, ...]:
        """The wheels of both that are smaller, the greatest difference first."""
        found = [pair for pair in self.pairs if pair.grown < 0]
        return tuple(sorted(found, key=lambda pair: (pair.grown, pair.after.wheel)))

    @property
    def proved_otherwise(self) -> tuple[WheelChange, ...]:
        """The wheels of both of which something else is proved now."""
        return tuple(pair for pair in self.pairs if pair.proved_otherwise)

    @property
    def failing(self) -> tuple[FailureEntry, ...]:
        """What fails now and did not before."""
        old = {failure.target_key for failure in self.before.failures}
        return tuple(failure for failure in self.after.failures if failure.target_key not in old)

    @property
    def mended(self) -> tuple[FailureEntry, ...]:
        """What failed before and is built now."""
        new = {wheel.target_key for wheel in self.after.wheels}
        return tuple(failure for failure in self.before.failures if failure.target_key in new)

    @property
    def moved(self) -> tuple[MachineChange, ...]:
        """The machines that get another variant."""
        old, new = _by_place(self.before.choices), _by_place(self.after.choices)
        pairs = (MachineChange(old[place], choice) for place, choice in new.items() if place in old)
        return tuple(pair for pair in pairs if given(pair.before) != given(pair.after))

    @property
    def total(self) -> SizeChange[Report]:
        """All files of the two together."""
        return SizeChange(self.before, self.after)

    @property
    def is_same(self) -> bool:
        """Whether the two differ in nothing that is compared."""
        wheels = self.new or self.gone or self.larger or self.smaller or self.proved_otherwise
        return not (wheels or self.failing or self.mended or self.moved)

    def lines(self) -> Iterator[str]:
        """What changed, for a terminal."""
        if self.is_same:
            yield "nothing changed since the report before"
            return
        yield (
            f"since the report before: {sized(self.before.size)} -> {sized(self.after.size)}, "
            f"{counted(len(self.before.wheels), 'wheel')} -> {len(self.after.wheels)}"
        )
        named = {
            "new": [titled(wheel, self.after) for wheel in self.new],
            "gone": [titled(wheel, self.before) for wheel in self.gone],
            "larger": [f"{titled(pair.after, self.after)} {grown(pair)}" for pair in self.larger],
            "smaller": [f"{titled(pair.after, self.after)} {grown(pair)}" for pair in self.smaller],
            "proved otherwise": [
                f"{titled(pair.after, self.after)} ({'; '.join(pair.proved_otherwise)})"
                for pair in self.proved_otherwise
            ],
            "failing": [titled(failure, self.after) for failure in self.failing],
            "mended": [titled(failure, self.before) for failure in self.mended],
            "served otherwise": [f"{pair.after.machine} ({pair})" for pair in self.moved],
        }
        for what, names in named.items():
            if names:
                more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
                yield f"  {what}: {', '.join(names[:_SHOWN])}{more}"

    def data(self) -> dict[str, Any]:
        """What changed, for a program; sizes are of all files together, in bytes."""
        return {
            "bytes": self.after.size,
            "bytes_before": self.before.size,
            "new": [wheel.wheel for wheel in self.new],
            "gone": [wheel.wheel for wheel in self.gone],
            "changed": [pair.data() for pair in self.pairs if pair.grown or pair.proved_otherwise],
            "failing": [{"label": failure.label, "python": failure.python} for failure in self.failing],
            "mended": [{"label": failure.label, "python": failure.python} for failure in self.mended],
            "machines": [moved.data() for moved in self.moved],
        }


def given(choice: MachineChoice) -> str:
    """What a machine gets, in a word."""
    return choice.label or "plain" if choice.wheel else "nothing"


def grown(pair: SizeChange[Any]) -> str:
    """By how much a wheel is larger, with its sign."""
    sign = "+" if pair.grown > 0 else "\N{MINUS SIGN}"
    return f"{sign}{sized(abs(pair.grown))}"


def titled(wheel: WheelEntry | FailureEntry, report: Report) -> str:
    """What people call *wheel* in *report*; with its Python where there are several, and its platform likewise."""
    among = [wheel.python] if len(report.pythons) > 1 else []
    if isinstance(wheel, WheelEntry) and len(report.platforms) > 1:
        among += [kind for kind in kinds(wheel.name) if kind not in wheel.python]
    return f"{wheel.title} ({', '.join(among)})" if among else wheel.title


def _missing(wheels: Iterable[WheelEntry], other: Report) -> tuple[WheelEntry, ...]:
    """Those of *wheels* that *other* neither has nor failed to make."""
    keys = {wheel.key for wheel in other.wheels}
    failed = {failure.target_key for failure in other.failures}
    return tuple(wheel for wheel in wheels if wheel.key not in keys and wheel.target_key not in failed)


def _by_place(choices: Iterable[MachineChoice]) -> Mapping[Key, MachineChoice]:
    """The *choices* by machine, Python, and place among the drivers that the machine is asked with."""
    drivers: Counter[Key] = Counter()
    found: dict[Key, MachineChoice] = {}
    for choice in choices:
        place = (choice.machine, choice.python)
        found[*place, drivers[place]] = choice
        drivers[place] += 1
    return found
