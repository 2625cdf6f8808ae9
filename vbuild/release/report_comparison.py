"""What changed between two releases of a project, by their reports.

Wheels of the two are the same where they are for the same Python, CPU, choices and kind of platform under the same
label, whatever version they are of; machines, where they have the same name and Python, and the newest driver or the
next.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from vbuild.inspection.text import counted, sized
from vbuild.release.report import Absence, Key, Report, WheelEntry, kinds
from vbuild.release.report_machines import MachineChoice

_SHOWN = 10


class _Sized(Protocol):
    @property
    def size(self) -> int: ...


S = TypeVar("S", bound=_Sized)


class TargetChange(Struct, Generic[S], frozen=True):
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


class Pair(TargetChange[WheelEntry], frozen=True):
    """A wheel as it was and as it is."""

    @property
    def told(self) -> tuple[str, ...]:
        """What else is not as it was: the verdicts and the test, in a few words each."""
        said = (
            ("instruction sets", self.before.verdict.isa, self.after.verdict.isa),
            ("GPU code", self.before.verdict.gpu, self.after.verdict.gpu),
            ("test", self.before.test, self.after.test),
        )
        return tuple(f"{what}: {old} before, {new} now" for what, old, new in said if old != new)

    def data(self) -> dict[str, Any]:
        return {
            "wheel": str(self.after.name),
            "before": str(self.before.name),
            "bytes": self.after.size,
            "bytes_before": self.before.size,
            "proved_otherwise": list(self.told),
        }


class Moved(Struct, frozen=True):
    """A machine that gets another variant than before; None for the plain wheel, or for nothing."""

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
    def pairs(self) -> tuple[Pair, ...]:
        """The wheels that both have, in the order of the later release."""
        old = _by_key(self.before.wheels)
        return tuple(Pair(old[wheel.key], wheel) for wheel in self.after.wheels if wheel.key in old)

    @property
    def new(self) -> tuple[WheelEntry, ...]:
        """The wheels that there were not, but for those that failed before."""
        old = _by_key(self.before.wheels)
        failed = {absence.key for absence in self.before.failures}
        return tuple(wheel for wheel in self.after.wheels if wheel.key not in old and wheel.stead not in failed)

    @property
    def gone(self) -> tuple[WheelEntry, ...]:
        """The wheels that there are no more, but for those that fail now."""
        new = _by_key(self.after.wheels)
        failing = {absence.key for absence in self.after.failures}
        return tuple(wheel for wheel in self.before.wheels if wheel.key not in new and wheel.stead not in failing)

    @property
    def resized(self) -> tuple[Pair, ...]:
        """The wheels of both that are larger or smaller, the greatest difference first."""
        found = [pair for pair in self.pairs if pair.grown]
        return tuple(sorted(found, key=lambda pair: (-abs(pair.grown), str(pair.after.name))))

    @property
    def larger(self) -> tuple[Pair, ...]:
        return tuple(pair for pair in self.resized if pair.grown > 0)

    @property
    def smaller(self) -> tuple[Pair, ...]:
        return tuple(pair for pair in self.resized if pair.grown < 0)

    @property
    def told(self) -> tuple[Pair, ...]:
        """The wheels of both of which something else is proved now."""
        return tuple(pair for pair in self.pairs if pair.told)

    @property
    def failing(self) -> tuple[Absence, ...]:
        """What fails now and did not before."""
        old = {absence.key for absence in self.before.failures}
        return tuple(absence for absence in self.after.failures if absence.key not in old)

    @property
    def mended(self) -> tuple[Absence, ...]:
        """What failed before and is built now."""
        new = {wheel.stead for wheel in self.after.wheels}
        return tuple(absence for absence in self.before.failures if absence.key in new)

    @property
    def moved(self) -> tuple[Moved, ...]:
        """The machines that get another variant."""
        old = _placed(self.before.choices)
        pairs = (Moved(old[place], choice) for place, choice in _placed(self.after.choices).items() if place in old)
        return tuple(pair for pair in pairs if given(pair.before) != given(pair.after))

    @property
    def total(self) -> TargetChange[Report]:
        """All files of the two together."""
        return TargetChange(self.before, self.after)

    @property
    def is_same(self) -> bool:
        """Whether there is nothing to tell."""
        return not (self.new or self.gone or self.resized or self.told or self.failing or self.mended or self.moved)

    def lines(self) -> Iterator[str]:
        """What changed, for a terminal."""
        if self.is_same:
            yield "nothing changed since the report before"
            return
        yield (
            f"since the report before: {sized(self.before.size)} -> {sized(self.after.size)}, "
            f"{counted(len(self.before.wheels), 'wheel')} -> {len(self.after.wheels)}"
        )
        for what, names in self._named().items():
            if names:
                more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
                yield f"  {what}: {', '.join(names[:_SHOWN])}{more}"

    def data(self) -> dict[str, Any]:
        """What changed, for a program; sizes are of all files together, in bytes."""
        return {
            "bytes": self.after.size,
            "bytes_before": self.before.size,
            "new": [str(wheel.name) for wheel in self.new],
            "gone": [str(wheel.name) for wheel in self.gone],
            "changed": [pair.data() for pair in self.pairs if pair.grown or pair.told],
            "failing": [_absent(absence) for absence in self.failing],
            "mended": [_absent(absence) for absence in self.mended],
            "machines": [moved.data() for moved in self.moved],
        }

    def _named(self) -> dict[str, list[str]]:
        return {
            "new": [titled(wheel, self.after) for wheel in self.new],
            "gone": [titled(wheel, self.before) for wheel in self.gone],
            "larger": [f"{titled(pair.after, self.after)} {grown(pair)}" for pair in self.larger],
            "smaller": [f"{titled(pair.after, self.after)} {grown(pair)}" for pair in self.smaller],
            "proved otherwise": [f"{titled(pair.after, self.after)} ({'; '.join(pair.told)})" for pair in self.told],
            "failing": [titled(absence, self.after) for absence in self.failing],
            "mended": [titled(absence, self.before) for absence in self.mended],
            "served otherwise": [f"{pair.after.machine} ({pair})" for pair in self.moved],
        }


def given(choice: MachineChoice) -> str:
    """What a machine gets, in a word."""
    return choice.label or "plain" if choice.wheel else "nothing"


def grown(pair: TargetChange[Any]) -> str:
    """By how much a wheel is larger, with its sign."""
    sign = "+" if pair.grown > 0 else "\N{MINUS SIGN}"
    return f"{sign}{sized(abs(pair.grown))}"


def titled(wheel: WheelEntry | Absence, report: Report) -> str:
    """What people call *wheel* in *report*; with its Python where there are several, and its platform likewise."""
    among = [wheel.python] if len(report.pythons) > 1 else []
    if isinstance(wheel, WheelEntry) and len(report.platforms) > 1:
        among += [kind for kind in kinds(wheel.name) if kind not in wheel.python]
    return f"{wheel.title} ({', '.join(among)})" if among else wheel.title


def _absent(absence: Absence) -> dict[str, Any]:
    return {"label": absence.label, "python": absence.python}


def _by_key(wheels: Iterable[WheelEntry]) -> Mapping[Key, WheelEntry]:
    return {wheel.key: wheel for wheel in wheels}


def _placed(choices: Iterable[MachineChoice]) -> Mapping[Key, MachineChoice]:
    """The *choices* by machine, Python, and place among the drivers that the machine is asked with."""
    drivers: Counter[Key] = Counter()
    found: dict[Key, MachineChoice] = {}
    for choice in choices:
        place = (choice.machine, choice.python)
        found[*place, drivers[place]] = choice
        drivers[place] += 1
    return found
