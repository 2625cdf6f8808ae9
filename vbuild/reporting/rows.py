"""The tables of the page: wheels by Python, machines, flags that were taken out, findings; as rows to be printed.

Nothing is decided here that the report does not say: rows only bring together what is alike.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from vbuild.contents.text import counted
from vbuild.reporting.comparison import Pair, given
from vbuild.reporting.machines import Choice
from vbuild.reporting.model import Absence, Entry, Key, Report, kinds
from vbuild.verdict.model import Severity

_MINUTE, _HOUR = 60, 3600
_REASON = re.compile(r"\w+ :: (\w+) :: (\S+) is number (\d+ of \d+) that the machine supports", re.ASCII)


@dataclass(frozen=True, slots=True)
class Row:
    """A wheel in the table: what it *serves*, its *share* of the largest one's size, and how it was before.

    Of several wheels of one build the first *is_first*, and stands for the time.
    """

    wheel: Entry
    share: float
    serves: str
    is_first: bool
    pair: Pair | None
    is_new: bool

    @property
    def warnings(self) -> int:
        return sum(finding.severity is Severity.WARNING for finding in self.wheel.verdict.findings)

    @property
    def proved(self) -> str:
        """What was proved of it, in a few words."""
        verdict = self.wheel.verdict
        gpu = "GPU code ok" if verdict.claimed_gpus and verdict.gpu.startswith("ok") else ""
        said = (verdict.isa, gpu, counted(self.warnings, "warning") if self.warnings else "")
        return ", ".join(filter(None, said))


@dataclass(frozen=True, slots=True)
class Group:
    """The rows of one Python's wheels, for one kind of platform; *size* is theirs together."""

    title: str
    rows: tuple[Row, ...]

    @property
    def size(self) -> int:
        return sum(row.wheel.size for row in self.rows)


@dataclass(frozen=True, slots=True)
class Served:
    """A machine, the Pythons with which it gets the same variant, and what it gets: *sizes* from the least on."""

    choice: Choice
    pythons: tuple[str, ...]
    sizes: tuple[int, ...]
    gets: str

    @property
    def why(self) -> str:
        """What decides, shorter than `vbuild select` says it: ``level v3 (1 of 3)``."""
        return _REASON.sub(r"\1 \2 (\3)", self.choice.why)


@dataclass(frozen=True, slots=True)
class Removed:
    """A flag of the project's own that was taken out of commands for *files*, in the builds of *wheels*.

    It *is_refused* where a command only asked whether the compiler takes it, and was told no.
    """

    flag: str
    files: tuple[str, ...]
    wheels: tuple[str, ...]
    is_refused: bool = False


@dataclass(frozen=True, slots=True)
class Said:
    """Something that was said of several wheels alike: warnings of a check, or why there is none."""

    what: str
    wheels: tuple[str, ...]
    rest: str = ""
    logs: tuple[str, ...] = ()


def groups(report: Report, pairs: Mapping[Key, Pair] | None) -> tuple[Group, ...]:
    """The wheels of *report* by Python, and by platform where there are several kinds.

    *pairs* have those that were there before, None where nothing is compared.
    """
    largest = max((wheel.size for wheel in report.wheels), default=0)
    built: set[Key] = set()
    found: dict[str, list[Row]] = {}
    for wheel in report.wheels:
        row = Row(
            wheel,
            wheel.size / largest if largest else 0.0,
            _serves(wheel),
            wheel.build not in built,
            pairs.get(wheel.key) if pairs is not None else None,
            pairs is not None and wheel.key not in pairs,
        )
        built.add(wheel.build)
        platforms = kinds(wheel.name) if len(report.platforms) > 1 else ()
        found.setdefault(" ".join((_python(wheel), *platforms)), []).append(row)
    return tuple(Group(title, tuple(rows)) for title, rows in found.items())


def served(choices: Iterable[Choice]) -> Iterator[Served]:
    """What each machine gets, the Pythons with which it is the same together."""
    for _, several in groupby(choices, key=lambda choice: (choice.machine, choice.driver)):
        alike: dict[str, list[Choice]] = {}
        for choice in several:
            alike.setdefault(given(choice), []).append(choice)
        for gets, same in alike.items():
            sizes = sorted({choice.size for choice in same if choice.size is not None})
            yield Served(same[0], tuple(choice.python for choice in same), tuple(sizes), gets)


def removed(wheels: Sequence[Entry]) -> tuple[Removed, ...]:
    """The flags that launchers took out, those of most wheels and files first, then those only asked about."""
    files: dict[tuple[bool, str], dict[str, None]] = {}
    titles: dict[tuple[bool, str], dict[str, None]] = {}
    for wheel in wheels:
        for change in wheel.overrides:
            for is_refused, flags in ((False, change.removed), (True, change.refused)):
                for flag in flags:
                    files.setdefault((is_refused, flag), {}).update(dict.fromkeys(change.sources or ("linking",)))
                    titles.setdefault((is_refused, flag), {})[str(wheel.name)] = None
    found = (
        Removed(flag, tuple(sorted(files[is_refused, flag])), tuple(titles[is_refused, flag]), is_refused)
        for is_refused, flag in files
    )
    return tuple(sorted(found, key=lambda one: (one.is_refused, -len(one.wheels), -len(one.files), one.flag)))


def warnings(wheels: Sequence[Entry]) -> tuple[Said, ...]:
    """What the checks found wrong or warn of, once for wheels of which it is said alike."""
    alike: dict[str, list[str]] = {}
    for wheel in wheels:
        for finding in wheel.verdict.findings:
            if finding.severity is not Severity.NOTE:
                said = f"{finding.member}: {finding.what}" if finding.member else finding.what
                alike.setdefault(said, []).append(wheel.title)
    return tuple(Said(said, tuple(dict.fromkeys(titles))) for said, titles in alike.items())


def failures(report: Report) -> tuple[Said, ...]:
    """Why wheels are missing, once for those that failed alike; the last lines of a log are the *rest*."""
    alike: dict[str, list[Absence]] = {}
    for absence in report.failures:
        alike.setdefault(absence.error, []).append(absence)
    return tuple(_failed(error, same) for error, same in alike.items())


def lasting(seconds: float) -> str:
    """A time as people say it: ``0.7 s``, ``2 min 5 s``, ``1 h 3 min``."""
    if seconds < _MINUTE - 0.5:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"  # noqa: PLR2004 - of two digits one is enough
    whole = round(seconds)
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE} s"
    return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} min"


def _failed(error: str, same: Sequence[Absence]) -> Said:
    what, _, rest = error.expandtabs().partition("\n")
    logs = dict.fromkeys(absence.log for absence in same if absence.log)
    return Said(what, tuple(absence.title for absence in same), rest, tuple(logs))


def _serves(wheel: Entry) -> str:
    """The CPU level and the GPUs that *wheel* is for."""
    first, *rest = (wheel.data["gpus"] or wheel.data["compiled_for"] or "").split(",")
    gpus = " ".join([first, *(gpu.removeprefix("sm_") for gpu in rest)])
    cuda = f"CUDA {wheel.toolkit}" if wheel.toolkit else ""
    levels = f"up to {wheel.verdict.levels[-1]} by glibc" if wheel.verdict.levels else ""
    return ", ".join(filter(None, (wheel.cpu, levels, cuda, gpus)))


def _python(wheel: Entry) -> str:
    """The Python tag of *wheel*, and its ABI where that is another."""
    name = wheel.name
    return name.python if name.abi in {name.python, "none"} else f"{name.python}-{name.abi}"
