"""Time wheels of one project against the first of them: a script in an environment of each, in turns.

    wheels -> environments -> rounds, in each round every wheel once -> figures -> ratios to the first wheel

A script is run by Python. It prints a line for each figure, such as ``encrypt 12.5 ms``. A script that imports pyperf,
and a file of pytest-benchmark, write theirs as JSON. What else the machine does falls on all wheels alike, as they take
turns: a ratio is of two times in the same round, and its spread is that between rounds.
"""

import json
import re
import statistics
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import exp, log
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec import Struct, to_builtins

from vbuild.errors import RepackageError, WheelError, at
from vbuild.hardware.machine import cpu_here
from vbuild.index_client.configuration import Indexes
from vbuild.verification.environments import WheelSources, make_environment, variables
from vbuild.verification.level_runs import python_for
from vbuild.verification.verify import claimed_cpu
from vbuild.wheel.name import WheelName

_LINE = re.compile(r"(?P<name>\S.*?)[:=\s]\s*(?P<value>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*(?P<unit>ns|us|µs|ms|s)?")
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_FEWEST = 2
_SHOWN = 3

Figures = Mapping[str, float]


class BenchRatio(Struct, frozen=True):
    """How many times faster than the first wheel: the median of the rounds, and the least and greatest of them."""

    median: float
    least: float
    greatest: float

    @property
    def is_noise(self) -> bool:
        """Whether some round says faster and another slower, or the same."""
        return self.least <= 1 <= self.greatest

    def __str__(self) -> str:
        noise = ", within the noise" if self.is_noise else ""
        return f"{self.median:.2f}x ({self.least:.2f} to {self.greatest:.2f}){noise}"


class BenchedWheel(Struct, frozen=True):
    """A *wheel* with the median of each figure, in seconds, and its ratios; *untried* says why it was not run."""

    wheel: str
    seconds: Mapping[str, float] = {}
    ratios: Mapping[str, BenchRatio] = {}
    overall: BenchRatio | None = None
    untried: str | None = None


class BenchReport(Struct, frozen=True):
    """What *rounds* of a script say of wheels, of which the first is the measure."""

    rounds: int
    wheels: tuple[BenchedWheel, ...]

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
                yield f"  {name}: {_spelled(seconds)}{ratio}"


def bench(
    wheels: Sequence[Path],
    script: Path,
    *,
    rounds: int = 5,
    requires: Sequence[str] = (),
    indexes: Callable[[], Indexes] = Indexes.configured,
    on_progress: Callable[[str], None] = lambda _: None,
) -> BenchReport:
    """Time *script* with each of *wheels*, in *rounds* of at least two; a wheel above this machine's level is not run.

    The script's environment has the wheel and *requires*. `WheelError` if a wheel cannot be installed, or if the script
    fails, prints no figures, or not the same ones in each run.
    """
    here = cpu_here()
    above = {wheel for wheel in wheels if (cpu := claimed_cpu(wheel)) and not (here and here.runs(cpu))}
    tried = [wheel for wheel in wheels if wheel not in above]
    with TemporaryDirectory(prefix="vbuild-bench-") as text:
        kind = _kind(script)
        pythons = []
        for number, wheel in enumerate(tried):
            on_progress(f"{wheel.name}: installing it")
            folder = Path(text).resolve() / str(number)
            folder.mkdir()
            pythons.append(_installed(wheel, folder, (*requires, *kind.requires), indexes))
        found: list[list[Figures]] = [[] for _ in tried]
        for number in range(max(rounds, _FEWEST)):
            for figures, wheel, python in zip(found, tried, pythons, strict=True):
                on_progress(f"round {number + 1} of {rounds}: {wheel.name}")
                with at(wheel.name):
                    figures.append(_figures(script.absolute(), kind, python))
    _check_same(tried, found)
    results = {wheel: _benched(wheel, figures, found[0]) for wheel, figures in zip(tried, found, strict=True)}
    why = f"not run: this machine is {here}" if here else "not run: the level of this machine is not known"
    return BenchReport(
        max(rounds, _FEWEST), tuple(results.get(wheel) or BenchedWheel(wheel.name, untried=why) for wheel in wheels)
    )


class _Kind(Struct, frozen=True):
    """How a script is run and where its figures are; *arguments* may name ``{output}``, a file for JSON."""

    arguments: tuple[str, ...]
    requires: tuple[str, ...] = ()


_PRINTS = _Kind(("{script}",))
_PYPERF = _Kind(("{script}", "--quiet", "--inherit-environ", "PATH", "-o", "{output}"), ("pyperf",))
_PYTEST = _Kind(("-m", "pytest", "-q", "{script}", "--benchmark-json", "{output}"), ("pytest", "pytest-benchmark"))


def _kind(script: Path) -> _Kind:
    """What *script* is, by what it imports or asks for; `WheelError` if it cannot be read."""
    try:
        text = script.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise WheelError(f"{script}: {error.strerror}; expected a Python script") from error
    if re.search(r"^\s*(import|from)\s+pyperf\b", text, re.MULTILINE):
        return _PYPERF
    return _PYTEST if re.search(r"^\s*(async )?def test_\w+\(.*\bbenchmark\b", text, re.MULTILINE) else _PRINTS


def _installed(wheel: Path, folder: Path, requires: Sequence[str], indexes: Callable[[], Indexes]) -> Path:
    with at(wheel.name):
        sources = WheelSources((wheel.parent,), indexes())
        try:
            python = python_for(WheelName.parse(wheel.name))
            environment = make_environment(wheel, python, requires=requires, sources=sources, folder=folder)
        except RepackageError as error:
            raise WheelError(f"cannot be installed: {error}") from error
    return environment.folder / "bin" / "python"


def _figures(script: Path, kind: _Kind, python: Path) -> Figures:
    """The figures of one run in seconds by name."""
    with TemporaryDirectory(prefix="vbuild-bench-") as folder:
        output = Path(folder, "figures.json")
        words = [word.format(script=script, output=output) for word in kind.arguments]
        command = [str(python), *words]
        ran = subprocess.run(command, cwd=folder, env=variables(), capture_output=True, text=True, check=False)
        if ran.returncode:
            last = (ran.stderr.strip() or ran.stdout.strip()).splitlines()[-_SHOWN:]
            raise WheelError(f"{script.name} failed with status {ran.returncode}: {' / '.join(last)}")
        found = _of_json(output.read_text(encoding="utf-8")) if output.exists() else dict(_of_lines(ran.stdout))
    if not found:
        raise WheelError(f"{script.name} printed no figures; expected lines such as 'encrypt 12.5 ms'")
    return found


def _of_lines(text: str) -> Iterator[tuple[str, float]]:
    for line in text.splitlines():
        if match := _LINE.fullmatch(line.strip()):
            yield match["name"].rstrip(":= "), float(match["value"]) * _UNITS[match["unit"] or "s"]


def _of_json(text: str) -> Figures:
    """The medians in the JSON of pyperf or of pytest-benchmark."""
    found = {}
    for one in json.loads(text)["benchmarks"]:
        if "stats" in one:
            found[one["name"]] = float(one["stats"]["median"])
        else:
            values = [value for run in one["runs"] for value in run.get("values", ())]
            name = one.get("metadata", {}).get("name") or "benchmark"
            found[name] = statistics.median(values)
    return found


def _check_same(wheels: Sequence[Path], found: Sequence[Sequence[Figures]]) -> None:
    """`WheelError` if a run has other figures than the first, or none that took any time."""
    for wheel, figures in zip(wheels, found, strict=True):
        for one in figures:
            if one.keys() != found[0][0].keys():
                other = ", ".join(sorted(one.keys() ^ found[0][0].keys()))
                raise WheelError(f"{wheel.name}: not the figures of {wheels[0].name}: {other}; expected the same names")
            if zero := [name for name, value in one.items() if value <= 0]:
                raise WheelError(f"{wheel.name}: {', '.join(zero)}: no time at all; expected seconds above 0")


def _benched(wheel: Path, figures: Sequence[Figures], first: Sequence[Figures]) -> BenchedWheel:
    seconds = {name: statistics.median(one[name] for one in figures) for name in figures[0]}
    if figures is first:
        return BenchedWheel(wheel.name, seconds)
    rounds = [{name: measure[name] / one[name] for name in one} for one, measure in zip(figures, first, strict=True)]
    ratios = {name: _ratio([one[name] for one in rounds]) for name in seconds}
    overall = _ratio([exp(statistics.fmean(map(log, one.values()))) for one in rounds])
    return BenchedWheel(wheel.name, seconds, ratios, overall)


def _ratio(values: Sequence[float]) -> BenchRatio:
    return BenchRatio(statistics.median(values), min(values), max(values))


def _spelled(seconds: float) -> str:
    unit = next((name for name in ("s", "ms", "us") if seconds >= _UNITS[name]), "ns")
    return f"{seconds / _UNITS[unit]:.3g} {unit}"
