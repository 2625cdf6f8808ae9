"""The report of a release as one page that needs no network, readable in ten seconds.

    report -> what failed, what changed, each wheel, who gets what, the limits of PyPI, overridden flags, notes
           -> report.html.jinja with report.css and report.js inside

The script only filters and sorts rows that are all there without it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from vbuild.contents.text import counted, percent, sized
from vbuild.pages.rendering import rendered
from vbuild.reporting.comparison import Change, Comparison, given, grown, titled
from vbuild.reporting.model import Report
from vbuild.reporting.rows import failures, groups, lasting, removed, served, warnings

PAGE = "report.html"

_FEW = 12  # rows that need no filter
_DENSE = 40  # rows from which on each is a single line
_RELEASES = 10  # with room for fewer, a project is full within a year or so
_MANY = 1000
_NOTICED = 0.01  # of a size
_LEAST = 0.05  # hundredths that are not rounded to none


class Mood(StrEnum):
    """How something stands, which is a colour on the page."""

    GOOD = "good"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Gauge:
    """A size in bytes against a *limit*: what it is of, the *file* if it is one, and what follows from it."""

    title: str
    file: str
    size: int
    limit: int
    of: str
    note: str
    mood: Mood

    @property
    def share(self) -> float:
        """How much of the bar is full, at most all of it."""
        return min(1.0, self.size / self.limit)


@dataclass(frozen=True, slots=True)
class Status:
    """The release in a line, and what else should be said at once."""

    mood: Mood
    text: str
    more: str = ""


def page(report: Report, before: Report | None = None) -> str:
    """The HTML of *report*, with what is not as in the one *before*, if that is given."""
    changes = Comparison(before, report) if before else None
    pairs = {pair.after.key: pair for pair in changes.pairs} if changes else None
    tables = groups(report, pairs)
    machines = [*served(report.choices)]
    return rendered(
        "vbuild.reporting",
        "report.html.jinja",
        styles=["report.css"],
        scripts=["report.js"],
        filters={
            "sized": sized,
            "lasting": lasting,
            "counted": counted,
            "delta": delta,
            "leaning": leaning,
            "grown": grown,
            "given": given,
        },
        report=report,
        changes=changes,
        status=status(report),
        groups=tables,
        pythons=len({(wheel.name.python, wheel.name.abi) for wheel in report.wheels}),
        has_many=len(report.wheels) > _FEW,
        is_dense=len(report.wheels) > _DENSE,
        machines=machines,
        has_pythons=len({choice.python for choice in report.choices}) > 1,
        gauges=[*gauges(report)],
        over=[name for name, size in report.files.items() if size > report.data["limits"]["file_bytes"]],
        removed=removed(report.wheels),
        lists=list(dict.fromkeys(text for wheel in report.wheels for text in wheel.lists)),
        warnings=warnings(report.wheels),
        failures=failures(report),
        titled=titled,
        percent=percent,
        tested=[wheel.test for wheel in report.wheels].count("passed"),
    )


def status(report: Report) -> Status:
    """How the release stands."""
    count, missing = len(report.wheels), len(report.failures)
    wheels = counted(count, "wheel")
    broken = sum(wheel.verdict.failed for wheel in report.wheels)
    if missing and not count:
        return Status(Mood.BAD, "No wheel", f"all {missing} failed" if missing > 1 else "it failed")
    if missing:
        return Status(Mood.BAD, f"{missing} of {report.targets} wheels missing", f"{wheels} finished and verified")
    if broken:
        return Status(Mood.BAD, f"{broken} of {count} wheels break a promise", "what was found is below")
    if not count:
        return Status(Mood.WARN, "No wheel", "nothing was asked for")
    return Status(Mood.GOOD, "1 wheel, verified" if count == 1 else f"{wheels}, all verified", _tested(report))


def _tested(report: Report) -> str:
    """How many wheels have passed a test, in words; nothing where there was none."""
    tests = [wheel.test for wheel in report.wheels]
    passed, skipped = tests.count("passed"), tests.count("not run")
    if passed == len(tests):
        return "all tested"
    # above the level of the machine, split and without its Python, or cut from what cibuildwheel has tested
    rest = f", {skipped} not run here" if skipped else ""
    return f"{passed} of {len(tests)} tested{rest}" if passed or skipped else ""


def gauges(report: Report) -> Iterator[Gauge]:
    """The sizes that PyPI limits, each against the limit that a project has unless it asks for more."""
    limits, files = report.data["limits"], report.files
    if not files:
        return
    name, size = max(files.items(), key=lambda item: item[1])
    usual, most = limits["file_bytes"], limits["file_bytes_on_request"]
    over = sum(size > usual for size in files.values())
    if size > most:
        note, mood = f"larger than PyPI ever grants, {binary(most)}", Mood.BAD
    elif over:
        note, mood = f"{counted(over, 'file')} above: ask PyPI for more, up to {binary(most)}", Mood.WARN
    else:
        note, mood = f"every file is below; up to {binary(most)} on request", Mood.GOOD
    yield Gauge("Largest file", name, size, usual, f"{binary(usual)} a file", note, mood)
    project = limits["project_bytes"]
    fit = project // report.size if report.size else 0
    releases = _room(fit)
    mood = Mood.BAD if not fit else Mood.WARN if fit < _RELEASES else Mood.GOOD
    yield Gauge("All files of this release", "", report.size, project, f"{binary(project)} a project", releases, mood)


def _room(releases: int) -> str:
    """How often a release fits into a project, in words."""
    if not releases:
        return "more than a project has room for"
    return f"room for {counted(releases, 'release')} of this size" if releases < _MANY else "room for many releases"


def binary(size: int) -> str:
    """A limit as PyPI writes it, in MB of 1024 times 1024 bytes."""
    return f"{size >> 30} GB" if size >= 1 << 30 and not size % (1 << 30) else f"{size >> 20} MB"


def delta(change: Change[Any]) -> str:
    """By how much of its size something is larger, with its sign."""
    share = 100 * change.share
    return f"{share:+.1f} %".replace("-", "\N{MINUS SIGN}") if abs(share) >= _LEAST else "±0 %"


def leaning(change: Change[Any]) -> Mood | str:
    """The colour of a change in size: none for one that nobody would notice."""
    if abs(change.share) < _NOTICED:
        return ""
    return Mood.BAD if change.grown > 0 else Mood.GOOD
