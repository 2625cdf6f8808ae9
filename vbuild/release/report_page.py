"""The report of a release as one page that needs no network, readable in ten seconds.

    report -> what failed, each wheel, who gets what, the limits of PyPI, overridden flags, notes
           -> report.html.jinja with report.css and report.js inside

The script only filters and sorts the rows of the tables.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import groupby

from msgspec import Struct

from vbuild.build.trial import TrialResult
from vbuild.files.templates import rendered
from vbuild.files.wording import counted, percent, sized
from vbuild.publishing.lint.index import is_uploadable
from vbuild.release.report import FailureEntry, Key, MachineChoice, Report, WheelEntry, differing, kinds
from vbuild.verification.bench import BenchRatio, BenchReport, spelled
from vbuild.verification.model import Severity, VerifyRule
from vbuild.wheel.name import WheelName

_MINUTE, _HOUR = 60, 3600
_REASON = re.compile(r"\w+ :: (\w+) :: (\S+) is number (\d+ of \d+) that the machine supports", re.ASCII)


class PageRow(Struct, frozen=True):
    """A wheel in the table: what it *serves*, and its *share* of the largest one's size.

    The time of a build stands at its first wheel.
    """

    wheel: WheelEntry
    share: float
    serves: str
    is_first: bool

    @property
    def warnings(self) -> int:
        return sum(finding.severity is Severity.WARNING for finding in self.wheel.verdict.findings)

    @property
    def proved(self) -> str:
        verdict = self.wheel.verdict
        gpu = "GPU code ok" if verdict.claimed_gpus and verdict.gpu.startswith("ok") else ""
        return ", ".join(filter(None, (verdict.isa, gpu, counted(self.warnings, "warning") if self.warnings else "")))


class PageGroup(Struct, frozen=True):
    """The wheels of one Python, for one kind of platform."""

    title: str
    rows: tuple[PageRow, ...]

    @property
    def size(self) -> int:
        return sum(row.wheel.size for row in self.rows)


class ServedMachine(Struct, frozen=True):
    """A machine, the Pythons with which it gets the same variant, and the *sizes* of these."""

    choice: MachineChoice
    pythons: tuple[str, ...]
    sizes: tuple[int, ...]
    gets: str

    @property
    def why(self) -> str:
        """What decides, shorter than `vbuild select` says it: ``level v3 (1 of 3)``."""
        return _REASON.sub(r"\1 \2 (\3)", self.choice.why)


class BenchRow(Struct, frozen=True):
    title: str
    ratio: str
    note: str
    places: tuple[float, ...]
    is_figure: bool = False


class PageFile(Struct, frozen=True):
    name: str
    size: int
    sha256: str
    is_uploadable: bool


class Removed(Struct, frozen=True):
    """A flag of the project's own that was taken out of commands for *files*, in the builds of *wheels*.

    It *is_refused* if a command only asked whether the compiler takes it.
    """

    flag: str
    files: tuple[str, ...]
    wheels: tuple[str, ...]
    is_refused: bool = False


class Message(Struct, frozen=True):
    what: str
    wheels: tuple[str, ...]
    rest: str = ""
    logs: tuple[str, ...] = ()


def groups(report: Report) -> tuple[PageGroup, ...]:
    largest = max((wheel.size for wheel in report.wheels), default=0)
    built: set[Key] = set()
    by_title: dict[str, list[PageRow]] = {}
    for wheel in report.wheels:
        row = PageRow(wheel, wheel.size / largest if largest else 0.0, _serves(wheel), wheel.build not in built)
        built.add(wheel.build)
        platforms = kinds(wheel.name) if len(report.platforms) > 1 else ()
        name = wheel.name
        python = name.python if name.abi in {name.python, "none"} else f"{name.python}-{name.abi}"
        by_title.setdefault(" ".join((python, *platforms)), []).append(row)
    return tuple(PageGroup(title, tuple(rows)) for title, rows in by_title.items())


def served(choices: Iterable[MachineChoice]) -> Iterator[ServedMachine]:
    """What each machine gets; Pythons with which it gets the same stand together."""
    for _, several in groupby(choices, key=lambda choice: (choice.machine, choice.driver)):
        alike: dict[str, list[MachineChoice]] = {}
        for choice in several:
            gets = (choice.label or "plain") if choice.wheel else "nothing"
            alike.setdefault(gets, []).append(choice)
        for gets, same in alike.items():
            sizes = sorted({choice.size for choice in same if choice.size is not None})
            yield ServedMachine(same[0], tuple(choice.python for choice in same), tuple(sizes), gets)


def bench_rows(report: BenchReport) -> Iterator[BenchRow]:
    ratios = [ratio for wheel in report.wheels for ratio in (*wheel.ratios.values(), *filter(None, [wheel.overall]))]
    widest = max((1.0, *(ratio.high for ratio in ratios)))
    for wheel in report.wheels:
        ratio_text = wheel.untried or (str(wheel.overall) if wheel.overall else "the measure")
        yield BenchRow(wheel.title, ratio_text, wheel.decision(report.min_gain) or "", _bar(wheel.overall, widest))
        for name, seconds in [*wheel.seconds.items()][: _FEW if len(wheel.seconds) > 1 else 0]:
            ratio = wheel.ratios.get(name)
            yield BenchRow("", str(ratio or ""), f"{name}: {spelled(seconds)}", _bar(ratio, widest), is_figure=True)


def _bar(ratio: BenchRatio | None, widest: float) -> tuple[float, ...]:
    return tuple(value / widest for value in (1, ratio.median, ratio.low, ratio.high)) if ratio else ()


def files(report: Report) -> Iterator[PageFile]:
    hashes = {wheel.wheel: wheel.sha256 for wheel in report.wheels}
    for name, size in report.files.items():
        yield PageFile(name, size, hashes.get(name, ""), is_uploadable(WheelName.parse(name)))


def installs(report: Report) -> Iterator[tuple[str, str]]:
    names = [wheel.name for wheel in report.wheels if wheel.name.project == report.project]
    source = f"--no-index --find-links . {report.project}"
    if report.companions:
        source = f"--find-links . {report.project}"  # what the wheels require besides is elsewhere
    local = sorted({name.version for name in names if "+" in name.version})
    if any(name.variant for name in names):
        yield f"uv pip install --preview-features wheel-variants {source}", "the variant for this machine"
    if any(not name.variant for name in names):
        exact = f"{source}=={local[-1]}" if local else source
        yield f"pip install {exact}", f"{local[-1]}, as no other is asked for" if local else "the plain wheel"


def removed(wheels: Sequence[WheelEntry]) -> tuple[Removed, ...]:
    """The flags that compiler wrappers took out, those of most wheels and files first, then those only asked about."""
    files: dict[tuple[bool, str], dict[str, None]] = {}
    titles: dict[tuple[bool, str], dict[str, None]] = {}
    for wheel in wheels:
        for change in wheel.overrides:
            for is_refused, flags in ((False, change.removed), (True, change.refused)):
                for flag in flags:
                    files.setdefault((is_refused, flag), {}).update(dict.fromkeys(change.sources or ("linking",)))
                    titles.setdefault((is_refused, flag), {})[str(wheel.name)] = None
    rows = (
        Removed(flag, tuple(sorted(files[is_refused, flag])), tuple(titles[is_refused, flag]), is_refused)
        for is_refused, flag in files
    )
    return tuple(sorted(rows, key=lambda row: (row.is_refused, -len(row.wheels), -len(row.files), row.flag)))


def warnings(wheels: Sequence[WheelEntry]) -> tuple[Message, ...]:
    alike: dict[str, list[str]] = {}
    for wheel in wheels:
        for finding in wheel.verdict.findings:
            if finding.severity is not Severity.NOTE or finding.rule is VerifyRule.PUBLISHED:
                alike.setdefault(finding.advised, []).append(wheel.title)
    return tuple(Message(what, tuple(dict.fromkeys(titles))) for what, titles in alike.items())


def unreproducible(wheels: Sequence[WheelEntry]) -> Iterator[Message]:
    for file, titles in differing(wheels).items():
        yield Message(f"{file.file} {file.why}: it would not have the same bytes if it were built elsewhere", titles)


def failures(report: Report) -> tuple[Message, ...]:
    """Why wheels are missing, once for those that failed alike; the last lines of a log are the *rest*."""
    alike: dict[str, list[FailureEntry]] = {}
    for failure in report.failures:
        alike.setdefault(failure.error, []).append(failure)
    messages = []
    for error, same in alike.items():
        what, _, rest = error.expandtabs().partition("\n")
        logs = dict.fromkeys(failure.log for failure in same if failure.log)
        messages.append(Message(what, tuple(failure.title for failure in same), rest, tuple(logs)))
    return tuple(messages)


def lasting(seconds: float) -> str:
    """A time as people say it: ``0.7 s``, ``2 min 5 s``, ``1 h 3 min``."""
    if seconds < _MINUTE - 0.5:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"  # noqa: PLR2004 - of two digits one is enough
    whole = round(seconds)
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE} s"
    return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} min"


def _serves(wheel: WheelEntry) -> str:
    first, *rest = (wheel.gpus or wheel.compiled_for or "").split(",")
    gpus = " ".join([first, *(gpu.removeprefix("sm_") for gpu in rest)])
    cuda = f"CUDA {wheel.toolkit.version}" if wheel.toolkit else ""
    levels = f"up to {wheel.verdict.levels[-1]} by glibc" if wheel.verdict.levels else ""
    return ", ".join(filter(None, (wheel.cpu, levels, cuda, gpus)))


PAGE = "report.html"

_FEW = 12  # rows that need no filter
_DENSE = 40  # rows from which on each is a single line
_RELEASES = 10  # with room for fewer, a project is full within a year or so
_MANY = 1000


class Mood(StrEnum):
    GOOD = "good"
    WARN = "warn"
    BAD = "bad"


class Gauge(Struct, frozen=True):
    """A size in bytes against a *limit*."""

    title: str
    file: str
    size: int
    limit: int
    of: str
    note: str
    mood: Mood

    @property
    def share(self) -> float:
        return min(1.0, self.size / self.limit)


class Status(Struct, frozen=True):
    mood: Mood
    text: str
    more: str = ""


def page(report: Report) -> str:
    machines = [*served(report.choices)]
    for_pypi = uploadable(report)
    return rendered(
        "vbuild.release",
        "report.html.jinja",
        styles=["report.css"],
        scripts=["report.js"],
        filters={"sized": sized, "lasting": lasting, "counted": counted},
        report=report,
        status=status(report),
        groups=groups(report),
        pythons=len({(wheel.name.python, wheel.name.abi) for wheel in report.wheels}),
        has_many=len(report.wheels) > _FEW,
        is_dense=len(report.wheels) > _DENSE,
        machines=machines,
        has_pythons=len({choice.python for choice in report.choices}) > 1,
        gauges=[*gauges(report)],
        over=[name for name, size in for_pypi.items() if size > report.limits.file_bytes],
        files=[*files(report)],
        elsewhere=len(report.files) - len(for_pypi),
        installs=[*installs(report)],
        benches=[(bench, [*bench_rows(bench)]) for bench in report.bench],
        removed=removed(report.wheels),
        lists=list(dict.fromkeys(text for wheel in report.wheels for text in wheel.lists)),
        warnings=(*warnings(report.wheels), *unreproducible(report.wheels)),
        failures=failures(report),
        percent=percent,
        tested=sum(wheel.test is TrialResult.PASSED for wheel in report.wheels),
    )


def status(report: Report) -> Status:
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
    tests = [wheel.test for wheel in report.wheels]
    passed, skipped = tests.count(TrialResult.PASSED), tests.count(TrialResult.NOT_RUN)
    if passed == len(tests):
        return "all tested"
    # above the level of the machine, split and without its Python, or cut from what cibuildwheel has tested
    rest = f", {skipped} not run here" if skipped else ""
    return f"{passed} of {len(tests)} tested{rest}" if passed or skipped else ""


def uploadable(report: Report) -> dict[str, int]:
    return {name: size for name, size in report.files.items() if is_uploadable(WheelName.parse(name))}


def gauges(report: Report) -> Iterator[Gauge]:
    """The sizes that PyPI limits, each against the limit of a project that asks for no more."""
    limits, files = report.limits, uploadable(report)
    if not files:
        return
    name, size = max(files.items(), key=lambda item: item[1])
    usual, most = limits.file_bytes, limits.file_bytes_on_request
    over = sum(size > usual for size in files.values())
    if size > most:
        note, mood = f"larger than PyPI ever grants, {binary(most)}", Mood.BAD
    elif over:
        note, mood = f"{counted(over, 'file')} above: ask PyPI for more, up to {binary(most)}", Mood.WARN
    else:
        note, mood = f"every file is below; up to {binary(most)} on request", Mood.GOOD
    yield Gauge("Largest file", name, size, usual, f"{binary(usual)} a file", note, mood)
    project = limits.project_bytes
    whole = sum(files.values())
    fit = project // whole if whole else 0
    releases = "room for many releases"
    if fit < _MANY:
        releases = f"room for {counted(fit, 'release')} of this size" if fit else "more than a project has room for"
    mood = Mood.BAD if not fit else Mood.WARN if fit < _RELEASES else Mood.GOOD
    yield Gauge("All files for PyPI", "", whole, project, f"{binary(project)} a project", releases, mood)


def binary(size: int) -> str:
    """A limit as PyPI writes it, in MB of 1024 times 1024 bytes."""
    return f"{size >> 30} GB" if size >= 1 << 30 and not size % (1 << 30) else f"{size >> 20} MB"
