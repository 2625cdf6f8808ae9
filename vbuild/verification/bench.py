"""Time wheels of one project against the first of them: a script or a command in an environment of each, in turns.

    wheels -> environments -> rounds, in each round every wheel once -> figures -> ratios to the first wheel

It prints a line for each figure, such as ``encrypt 12.5 ms``, or the JSON of pyperf or pytest-benchmark. A ratio is of
two times in the same round, whose order turns round each time. The first wheel is installed twice: what sets it apart
from itself, such as load that comes and goes, or where its files lie, does the same to the others, and widens the
spread of their ratios.

A level is worth a wheel if it is faster than the next lower level that stays, or the plain wheel.
"""

import json
import os
import re
import shutil
import statistics
import subprocess
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from math import comb, exp, inf, log
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace

from vbuild.config.table import Table
from vbuild.errors import RepackageError, WheelError, at
from vbuild.files.reading import read_text
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.machine import cpu_here
from vbuild.index_client.configuration import Indexes
from vbuild.process.run import ended
from vbuild.recipe.model import Bench
from vbuild.recipe.spelling import requirement
from vbuild.recipe.variables import passed, undisturbed
from vbuild.verification.environments import WheelSources, is_native, make_environment, python_for
from vbuild.verification.verify import claimed_cpu
from vbuild.wheel.archive import wheels_in
from vbuild.wheel.name import WheelName

PUBLISHED = "published"
_TIMES = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
# as people, `python -m timeit`, and, with a deviation, `pyperf timeit` print them
_LINE = re.compile(
    r"(?P<name>\S.*?)[:=\s]\s*(?P<value>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*(?P<unit>[nuµm]?)s(?:ec)?"
    r"(?: per loop| \+- .*)?"
)
_TIMEIT = re.compile(r"\d+ loops?, best of \d+")
_UNITS = {"n": 1e-9, "u": 1e-6, "µ": 1e-6, "m": 1e-3, "": 1.0}
_NO_MODULE = re.compile(r"No module named '?(\w+)(?![\w.])")
# what a script states in a comment, https://peps.python.org/pep-0723/
_STATED = re.compile(r"(?m)^# /// script[ \t]*\n(?P<toml>(?:#(?: .*)?\n)+?)# ///[ \t]*$")
_FEWEST, _MOST = 2, 3
_SHOWN = 3
_CHANCE = 1 / 16
# a spread around 1 that is narrower says that two wheels are as fast
_ALIKE = 1.05
Figures = Mapping[str, float]


class BenchRatio(Struct, frozen=True):
    """How many times faster than another wheel: the *median* of the rounds and its spread.

    From five rounds on, the median of infinitely many is between these in fifteen of sixteen cases, as far as rounds
    differ by chance; the spread of the first wheel against itself is in it.
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, ratios: Iterable[float], same: Iterable[float]) -> Self:
        """The median of *ratios* with its spread by the sign test, widened by that of *same*, which should be 1."""
        low, median, high = _spread(ratios)
        least, _, most = _spread(same)
        widening = max(most, 1 / least)
        return cls(median, low / widening, high * widening)

    @property
    def is_noise(self) -> bool:
        return self.low <= 1 <= self.high

    @property
    def is_settled(self) -> bool:
        """Whether it says faster, slower, or no difference worth a word."""
        return not self.is_noise or self.high < self.low * _ALIKE

    def is_surely_below(self, other: float) -> bool:
        return self.median + (self.high - self.low) < other

    def __str__(self) -> str:
        doubt = ", cannot tell" if not self.is_settled else ", within the noise" if self.is_noise else ""
        return f"{self.median:.2f}x ({self.low:.2f} to {self.high:.2f}){doubt}"


class BenchedWheel(Struct, frozen=True):
    """A *wheel* with the medians of its figures, in seconds, and ratios to the first; or why it is *untried*.

    Its *title* is its label, ``plain``, or ``published``. Its *gain* is over the wheel *below*, which machines of its
    level get without it.
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
        return self.gain is not None and not self.is_left_out and self.gain.low < 1 + min_gain

    def decision(self, min_gain: float | None) -> str | None:
        if min_gain is None or self.title == PUBLISHED:
            return None
        if self.untried:
            return "stays"
        if self.gain is None:
            return None
        expected = f"{min_gain * 100:g}% over {self.below}"
        if self.is_left_out:
            return f"left out, as it does not reach {expected}"
        if self.is_open(min_gain):
            return f"stays: the noise hides whether it reaches {expected}"
        return f"stays: reaches {expected}"


class BenchReport(Struct, frozen=True):
    """What *rounds* of a bench say of wheels, of which the first is the measure; *error* says why it says nothing.

    *min_gain* is the least gain of a level, as a part of 1, if that was asked.
    """

    rounds: int
    wheels: tuple[BenchedWheel, ...]
    min_gain: float | None = None
    error: str | None = None

    def data(self) -> dict[str, Any]:
        data: dict[str, Any] = to_builtins(self)
        return data

    def lines(self) -> Iterator[str]:
        for wheel in self.wheels:
            yield f"{wheel.wheel}: {wheel.untried or wheel.overall or 'the measure'}"
            for name, seconds in wheel.seconds.items():
                ratio = f"  {wheel.ratios[name]}" if name in wheel.ratios else ""
                yield f"  {name}: {spelled(seconds)}{ratio}"


def spelled(seconds: float) -> str:
    unit = next((name for name in ("s", "ms", "us") if seconds >= _TIMES[name]), "ns")
    return f"{seconds / _TIMES[unit]:.3g} {unit}"


def bench(
    wheels: Sequence[Path],
    settings: Bench,
    *,
    published: Path | None = None,
    python: Path | None = None,
    pass_env: Collection[str] = (),
    builds: bool = False,
    indexes: Callable[[], Indexes] = Indexes.configured,
    on_progress: Callable[[str], None] = lambda _: None,
) -> BenchReport:
    """Time *wheels*, and the *published* one, as *settings* say; one above this machine's level is not run.

    There are up to three times the rounds asked for while noise hides which wheel is faster, or whether a level brings
    enough. `WheelError` if a
    wheel cannot be installed, or if the bench fails, or prints no figures, or other ones in another run.
    """
    every = [_Subject(wheel, claimed_cpu(wheel)) for wheel in wheels]
    if published:
        every.append(_Subject(published, None, is_published=True))
    if len(every) < _FEWEST:
        raise WheelError(f"found {len(every)} to compare; expected two wheels or more, the first of them the measure")
    here = cpu_here()
    again = _Subject(every[0].wheel, every[0].cpu, is_published=every[0].is_published)
    rounds = max(settings.rounds, _FEWEST)
    with TemporaryDirectory(prefix="vbuild-bench-") as text:
        kind = _Kind.of(settings)
        tried: list[tuple[_Subject, Path]] = []
        for number, subject in enumerate([*every, again]):
            if subject.cpu and not (here and here.runs(subject.cpu)):
                continue
            on_progress(f"{subject.wheel.name}: installing it for the bench")
            folder = Path(text).resolve() / str(number)
            folder.mkdir()
            sources = WheelSources((subject.wheel.parent,), indexes(), builds=builds)
            tried.append((subject, _installed(subject, folder, python, (*settings.requires, *kind.requires), sources)))
        number, seen = 0, undisturbed(passed(os.environ, pass_env))
        while number < rounds or (number < _MOST * rounds and _is_open(every, again, settings.min_gain)):
            for subject, program in tried[:: -1 if number % 2 else 1]:  # none is always the first
                on_progress(f"{subject.wheel.name}: round {number + 1} of the bench")
                with at(subject.name):
                    subject.figures.append(_figures(kind, program, seen))
            _check_same([subject for subject, _ in tried])
            number += 1
    why = f"not run: this machine is {here}" if here else "not run: the level of this machine is not known"
    names = Counter(subject.name for subject in every)
    wheels_by_name = [
        replace(wheel, wheel=str(subject.wheel)) if names[subject.name] > 1 else wheel
        for subject, wheel in zip(every, _decided(every, again, why, settings.min_gain), strict=True)
    ]
    return BenchReport(number, tuple(wheels_by_name), settings.min_gain)


def wheels_to_compare(paths: Sequence[Path]) -> list[Path]:
    """*paths*, with the wheels in each folder instead of it: those for this Python, the plain one first, then by level.

    `WheelError` if a folder has wheels of several releases.
    """
    return [wheel for path in paths for wheel in (_of_folder(path) if path.is_dir() else [path])]


def _of_folder(folder: Path) -> list[Path]:
    names = {wheel: WheelName.parse(wheel.name) for wheel in wheels_in(folder)}
    native = {wheel: name for wheel, name in names.items() if is_native(name)}
    groups: dict[tuple[str, ...], list[Path]] = {}
    for wheel, name in (native or names).items():
        groups.setdefault((name.project, name.version, name.python, name.abi), []).append(wheel)
    families = [group for group in groups.values() if len(group) > 1]
    if len(families) != 1:
        found = ", ".join(sorted({name.release for name in names.values()})) or "no wheel"
        raise WheelError(f"{folder}: found {found}; expected one project's wheels for one Python, or their names")
    cpus = {wheel: claimed_cpu(wheel) for wheel in families[0]}
    return sorted(families[0], key=lambda wheel: (names[wheel].variant is not None, _rank(cpus[wheel]), wheel.name))


def _rank(cpu: Cpu | None) -> int:
    return cpu.rank if cpu else -1


class _Subject(Struct, frozen=True):
    wheel: Path
    cpu: Cpu | None
    is_published: bool = False
    figures: list[Figures] = field(default_factory=list)

    @property
    def title(self) -> str:
        return PUBLISHED if self.is_published else WheelName.parse(self.wheel.name).variant or "plain"

    @property
    def name(self) -> str:
        """For messages: the published wheel may have the name of the plain one."""
        return f"{self.wheel.name}{', as published' if self.is_published else ''}"

    def gains(self, other: "_Subject", *names: str) -> Iterator[float]:
        """How many times faster than *other* in each round: the geometric mean of the figures *names*, or of all."""
        for ours, theirs in zip(self.figures, other.figures, strict=True):
            yield exp(statistics.fmean(log(theirs[name] / ours[name]) for name in names or ours))


class _Kind(Struct, frozen=True):
    """How a bench is run: *words* may be ``{python}``, and ``{output}``, a file for JSON."""

    words: tuple[str, ...]
    script: Path | None = None
    requires: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: Bench) -> "_Kind":
        """What *settings* ask for, a script by what it imports; `WheelError` if it cannot be read."""
        if settings.script is None:
            return cls(("sh", "-c", settings.command or ""))
        script = settings.script
        try:
            text = read_text(script, errors="replace")
        except OSError as error:
            raise WheelError(f"{script}: {error.strerror}; expected a Python script") from error
        requires: tuple[str, ...] = ()
        if stated := _STATED.search(text):
            with at(script):
                table = Table.parse(re.sub(r"(?m)^# ?", "", stated["toml"]))
                requires = table.parsed_texts("dependencies", requirement, ())
        run = ("{python}", script.name)
        if re.search(r"^\s*(import|from)\s+pyperf\b", text, re.MULTILINE):
            return cls((*run, "--quiet", "--inherit-environ", "PATH", "-o", "{output}"), script, (*requires, "pyperf"))
        if re.search(r"^\s*(async )?def test_\w+\(.*\bbenchmark\b", text, re.MULTILINE):
            words = ("{python}", "-m", "pytest", "-q", script.name, "--benchmark-json", "{output}")
            return cls(words, script, (*requires, "pytest", "pytest-benchmark"))
        return cls(run, script, requires)

    @property
    def title(self) -> str:
        return self.script.name if self.script else "bench.command"


def _installed(
    subject: _Subject, folder: Path, python: Path | None, requires: Sequence[str], sources: WheelSources
) -> Path:
    with at(subject.name):
        try:
            own, wheel = python or python_for(WheelName.parse(subject.wheel.name)), subject.wheel
            environment = make_environment(wheel, own, requires=requires, sources=sources, folder=folder)
        except RepackageError as error:
            raise WheelError(f"the environment of the bench cannot be made: {error}") from error
    return environment.folder / "bin" / "python"


def _figures(kind: _Kind, python: Path, environment: Mapping[str, str]) -> Figures:
    with TemporaryDirectory(prefix="vbuild-bench-") as folder:
        output = Path(folder, "figures.json")
        if kind.script:  # beside the project's sources it would import these, not the wheel
            shutil.copyfile(kind.script, Path(folder, kind.script.name))
        values = {"{python}": str(python), "{output}": str(output)}
        path = os.pathsep.join([str(python.parent), environment.get("PATH", os.defpath)])
        ran = subprocess.run(
            [values.get(word, word) for word in kind.words],
            cwd=folder,
            env={**environment, "PATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
        if ran.returncode:
            last = (ran.stderr.strip() or ran.stdout.strip()).splitlines()[-_SHOWN:]
            missing = next((match[1] for line in reversed(last) if (match := _NO_MODULE.search(line))), None)
            advice = (
                f"; add the package that has {missing} to bench.requires, or to the script (PEP 723)" if missing else ""
            )
            ending = f": {' / '.join(last)}{advice}" if last else " and printed nothing"
            raise WheelError(f"{kind.title} {ended(ran.returncode)}{ending}")
        text = read_text(output) if output.exists() else ran.stdout
    figures = _of_json(text, kind.title) if text.lstrip().startswith("{") else dict(_of_lines(text))
    if not figures:
        raise WheelError(f"{kind.title} printed no figures; expected lines such as 'encrypt 12.5 ms'")
    return figures


def _of_lines(text: str) -> Iterator[tuple[str, float]]:
    for line in text.splitlines():
        if match := _LINE.fullmatch(line.strip()):
            name = match["name"].rstrip(":= ")
            yield "timeit" if _TIMEIT.fullmatch(name) else name, float(match["value"]) * _UNITS[match["unit"]]


def _of_json(text: str, title: str) -> Figures:
    figures = {}
    try:
        data = json.loads(text)
        for benchmark in data["benchmarks"]:
            if "stats" in benchmark:
                figures[benchmark["name"]] = float(benchmark["stats"]["median"])
            else:
                values = [value for run in benchmark["runs"] for value in run.get("values", ())]
                metadata = {**data.get("metadata", {}), **benchmark.get("metadata", {})}  # the first has what all share
                figures[metadata["name"]] = statistics.median(values)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise WheelError(f"{title} gave JSON that is neither pyperf's nor pytest-benchmark's") from error
    return figures


def _check_same(subjects: Sequence[_Subject]) -> None:
    for subject in subjects:
        first = subjects[0]
        for figures in subject.figures:
            if figures.keys() != first.figures[0].keys():
                other = ", ".join(sorted(figures.keys() ^ first.figures[0].keys()))
                raise WheelError(f"{subject.name}: not the figures of {first.name}: {other}; expected the same names")
            if zero := [name for name, value in figures.items() if not 0 < value < inf]:
                raise WheelError(f"{subject.name}: {', '.join(zero)}: no time at all; expected seconds above 0")


def _decided(subjects: Sequence[_Subject], again: _Subject, why: str, min_gain: float | None) -> list[BenchedWheel]:
    """Each of *subjects*, and a level's gain over the next lower one that stays, the lowest first.

    *again* is the first once more.
    """
    first = subjects[0]
    wheels = [_benched(subject, first, again, why) for subject in subjects]
    order = sorted(range(1, len(subjects)), key=lambda number: _rank(subjects[number].cpu))
    below = 0
    for number in order:
        subject = subjects[number]
        if subject.cpu and subject.figures and first.figures:
            gain = BenchRatio.of(subject.gains(subjects[below]), again.gains(first))
            is_left_out = min_gain is not None and gain.is_surely_below(1 + min_gain)
            wheels[number] = replace(wheels[number], below=wheels[below].title, gain=gain, is_left_out=is_left_out)
            below = below if is_left_out else number
    return wheels


def _is_open(subjects: Sequence[_Subject], again: _Subject, min_gain: float | None) -> bool:
    wheels = _decided(subjects, again, "", min_gain)
    if min_gain is None:
        return any(wheel.overall and not wheel.overall.is_settled for wheel in wheels)
    return any(wheel.is_open(min_gain) for wheel in wheels)


def _benched(subject: _Subject, first: _Subject, again: _Subject, why: str) -> BenchedWheel:
    wheel, title, figures = subject.wheel.name, subject.title, subject.figures
    if not figures:
        return BenchedWheel(wheel, title, untried=why)
    seconds = {name: statistics.median(run[name] for run in figures) for name in figures[0]}
    if subject is first or not first.figures:
        return BenchedWheel(wheel, title, seconds)
    ratios = {name: BenchRatio.of(subject.gains(first, name), again.gains(first, name)) for name in seconds}
    return BenchedWheel(wheel, title, seconds, ratios, BenchRatio.of(subject.gains(first), again.gains(first)))


def _spread(ratios: Iterable[float]) -> tuple[float, float, float]:
    """The median of *ratios* between its bounds by the sign test."""
    ordered = sorted(ratios)
    count = len(ordered)
    cut, tail = 0, 1 + count
    while 2 * tail <= _CHANCE * 2**count:
        cut += 1
        tail += comb(count, cut + 1)
    return ordered[cut], statistics.median(ordered), ordered[-1 - cut]
