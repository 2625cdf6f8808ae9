"""The report of a release as values: ``report.json``, and a page that needs no network.

    Product, Failure -> WheelEntry, FailureEntry -> Report -> report.json
    report.json -> checked against report.schema.json -> Report -> page, or `vbuild.release.collect`
    Report -> what failed, each wheel, who gets what, the limits of PyPI, overridden flags, notes
           -> report.html.jinja with report.css and report.js inside, which only filter and sort the rows

Fields stand in the order of the keys in the file. A report that is read may be of a later version and have more keys.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cache, cached_property, reduce
from importlib import resources
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol, Self

from msgspec import Struct, convert, field, to_builtins
from packaging.utils import canonicalize_name

from vbuild.build.reproducible import Unreproducible
from vbuild.build.wrappers import Override
from vbuild.errors import RecipeError, VbuildError, at, reason_of
from vbuild.files.reading import parsed_json, read_text
from vbuild.files.templates import rendered
from vbuild.files.wording import counted, percent, sized
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.driver import Dotted
from vbuild.hardware.gpu import GpuList
from vbuild.publishing.lint.index import is_uploadable
from vbuild.recipe.compiling import CudaBuild, ToolkitSpec
from vbuild.recipe.model import TrialResult
from vbuild.recipe.target import Target, titled
from vbuild.toolchain.toolkit import Toolkit, ToolkitPin
from vbuild.verification.bench import BenchRatio, BenchReport, spelled
from vbuild.verification.level_emulation import LevelRun
from vbuild.verification.model import Severity, Verdict, VerifyRule
from vbuild.wheel.name import WheelName

FORMAT = 1
REPORT = "report.json"
PAGE = "report.html"

# distinguishes wheels of a release, and is the same in the next one
Key = tuple[object, ...]

# manylinux1, manylinux2014, manylinux_2_28
_PLATFORM = re.compile(r"(?P<system>(?:many|musl)?linux|macosx)(?:\d+|_\d+_\d+)?_(?P<machine>\w+)", re.ASCII)
_TYPES = {
    "object": "an object",
    "array": "an array",
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
}
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SHOWN = 60
_MINUTE, _HOUR = 60, 3600
_REASON = re.compile(r"\w+ :: (\w+) :: (\S+) is number (\d+ of \d+) that the machine supports", re.ASCII)
_FEW = 12  # rows that need no filter
_DENSE = 40  # rows from which on each is one line
_RELEASES = 10  # with room for fewer, a project is full within a year or so
_MANY = 1000


def kinds(name: WheelName) -> tuple[str, ...]:
    """The platforms of *name* without versions: ``manylinux_x86_64``, ``win_amd64``.

    A Linux wheel that is not repaired counts as manylinux, which it would become.
    """
    platforms = set()
    for tag in name.platform.split("."):
        if match := _PLATFORM.fullmatch(tag):
            system = "manylinux" if match["system"] == "linux" else match["system"]
            platforms.add(f"{system}_{match['machine']}")
        else:
            platforms.add(tag)
    return tuple(sorted(platforms))


class TargetEntry(Struct, frozen=True, kw_only=True, dict=True):
    python: str
    cpu: str
    properties: tuple[str, ...]
    choices: dict[str, str]
    requires: dict[str, str]
    local: str
    gpus: str | None
    compiled_for: str | None
    label: str | None

    @staticmethod
    def fields(target: Target) -> dict[str, Any]:
        return {
            "python": target.python,
            "cpu": str(target.cpu),
            "properties": target.properties,
            "choices": dict(target.choices),
            "requires": dict(target.requires),
            "local": target.local,
            "gpus": str(target.gpus) if target.gpus else None,
            "compiled_for": str(target.cuda.archs) if target.cuda else None,
            "label": target.label,
        }

    def target(self, toolkit: Toolkit | None = None) -> Target:
        """The target, compiled with *toolkit* if that is known; `HardwareError` for a GPU that does not exist."""
        spec = ToolkitSpec(toolkit.version if toolkit else Dotted(0, 0))
        return Target(
            label=self.label,
            python=self.python,
            cpu=Cpu.parse(self.cpu),
            properties=self.properties,
            choices=tuple(self.choices.items()),
            requires=tuple(self.requires.items()),
            local=self.local,
            cuda=CudaBuild(spec, GpuList.parse(self.compiled_for)) if self.compiled_for else None,
            gpus=GpuList.parse(self.gpus) if self.gpus else None,
        )

    @property
    def title(self) -> str:
        return titled(self.label, self.local)

    @property
    def target_key(self) -> Key:
        """What distinguishes the target from others of its release."""
        # a path says nothing on another machine
        python = "" if "/" in self.python else self.python
        return (python, self.cpu[:3], self.label, *sorted({**self.choices, **self.requires}.items()))  # x86, arm


class ToolkitEntry(Struct, frozen=True):
    version: str
    identity: str
    components: tuple[ToolkitPin, ...]


class WheelEntry(TargetEntry, frozen=True, kw_only=True, dict=True):
    wheel: str
    size: int = field(name="bytes")
    unpacked: int = field(name="unpacked_bytes")
    sha256: str
    is_built: bool = field(name="built")
    is_kept: bool = field(name="kept")
    seconds: float = field(name="build_seconds")
    test: TrialResult
    emulation_data: dict[str, Any] | None = field(name="emulation")
    environment: dict[str, str]
    config_settings: dict[str, str | tuple[str, ...]]
    toolkit: ToolkitEntry | None
    overrides: tuple[Override, ...]
    lists: tuple[str, ...] = field(name="architectures")
    not_reproducible: tuple[Unreproducible, ...] | None = None
    verdict_data: dict[str, Any] = field(name="verdict")

    @cached_property
    def name(self) -> WheelName:
        return WheelName.parse(self.wheel)

    @cached_property
    def verdict(self) -> Verdict:
        return Verdict.of_data(self.verdict_data, Path(self.wheel))

    @property
    def emulation(self) -> LevelRun | None:
        return convert(self.emulation_data, LevelRun | None)

    @property
    def build(self) -> Key:
        """The same for wheels of one build, which differ only in the GPUs they were cut to."""
        toolkit = self.toolkit.version if self.toolkit else None
        code = (self.cpu, *sorted(self.choices.items()), toolkit, self.compiled_for)
        return (self.python, self.name.python, self.name.abi, kinds(self.name), *code)


class FailureEntry(TargetEntry, frozen=True, kw_only=True, dict=True):
    error: str
    log: str | None


class CompanionEntry(Struct, frozen=True):
    """A wheel that a split made for *wheels*, which require it; sizes in bytes, *packed* if it was written."""

    file: str = field(name="wheel")
    packed: int | None = field(name="packed_bytes")
    unpacked: int = field(name="bytes")
    wheels: tuple[str, ...] = field(name="for")

    @property
    def size(self) -> int:
        return self.packed or 0


class MachineChoice(Struct, frozen=True, kw_only=True):
    """The *wheel* of *size* bytes that *machine* gets with a *python*, or none, and *why*.

    *driver* is the newest CUDA version that its driver runs.
    """

    machine: str
    python: str
    cpu: str
    gpu: str | None = None
    driver: str | None = None
    wheel: str | None = None
    label: str | None = None
    size: int | None = field(name="bytes", default=None)
    why: str = ""


class PypiLimits(Struct, frozen=True):
    file_bytes: int
    file_bytes_on_request: int
    project_bytes: int


class Report(Struct, frozen=True, kw_only=True, dict=True):
    format: int = FORMAT
    name: str
    source: str
    wheels: tuple[WheelEntry, ...]
    failures: tuple[FailureEntry, ...]
    variants: tuple[dict[str, Any], ...]
    choices: tuple[MachineChoice, ...] = field(name="machines")
    limits: PypiLimits
    notes: tuple[str, ...]
    bench: tuple[BenchReport, ...]
    split: dict[str, Any] | None

    @classmethod
    def load(cls, path: Path) -> Self:
        """The report in the file at *path*; `RecipeError`, with file and key, if it is not one."""
        try:
            text = read_text(path)
        except (OSError, UnicodeDecodeError) as error:
            raise RecipeError(f"{path}: cannot be read: {reason_of(error)}") from error
        with at(path):
            try:
                data = parsed_json(text, number=_finite)
            except json.JSONDecodeError as error:
                raise RecipeError(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error
            except ValueError as error:
                reason = "JSON nested too deeply, of far too many values, or with a number that is none"
                raise RecipeError(reason) from error
            return cls.of_data(data)

    @classmethod
    def of_data(cls, data: object) -> Self:
        """The report in *data*, made by `json.loads`; `RecipeError`, with the key, if it is something else."""
        if not isinstance(data, dict) or "format" not in data:
            raise RecipeError("not a report of a release: no format; expected report.json as vbuild writes it")
        if data["format"] != FORMAT or isinstance(data["format"], bool):
            raise RecipeError(f"format: found {data['format']!r}; this vbuild reads {FORMAT}")
        check(data, is_open=True)
        report = convert(data, cls)
        for number, wheel in enumerate(report.wheels):
            try:
                _ = wheel.name, wheel.verdict  # refused here rather than where they are used
            except VbuildError as error:
                raise RecipeError(f"wheels[{number}]: {error}") from error
        for number, companion in enumerate(report.companions):
            try:
                WheelName.parse(companion.file)
            except VbuildError as error:
                raise RecipeError(f"split.beside[{number}]: {error}") from error
        return report

    def data(self) -> dict[str, Any]:
        data: dict[str, Any] = to_builtins(self)
        return data

    @property
    def project(self) -> str:
        return canonicalize_name(self.name)

    @property
    def versions(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(wheel.name.version for wheel in self.wheels if wheel.name.project == self.project))

    @property
    def targets(self) -> int:
        return len(self.wheels) + len(self.failures)

    @cached_property
    def companions(self) -> tuple[CompanionEntry, ...]:
        return convert(self.split["beside"], tuple[CompanionEntry, ...]) if self.split else ()

    @property
    def files(self) -> dict[str, int]:
        sizes = {wheel.wheel: wheel.size for wheel in self.wheels}
        return sizes | {companion.file: companion.size for companion in self.companions}

    @property
    def size(self) -> int:
        return sum(self.files.values())

    @property
    def seconds(self) -> float:
        return sum({wheel.build: wheel.seconds for wheel in self.wheels}.values())

    @property
    def platforms(self) -> tuple[tuple[str, ...], ...]:
        return tuple(dict.fromkeys(kinds(wheel.name) for wheel in self.wheels if wheel.name.project == self.project))


class _Titled(Protocol):
    @property
    def title(self) -> str: ...
    @property
    def not_reproducible(self) -> tuple[Unreproducible, ...] | None: ...


def differing(wheels: Iterable[_Titled]) -> Mapping[Unreproducible, tuple[str, ...]]:
    """The files that would have other bytes elsewhere, with the titles of their *wheels*."""
    titles: dict[Unreproducible, dict[str, None]] = {}
    for wheel in wheels:
        for file in wheel.not_reproducible or ():
            titles.setdefault(file, {})[wheel.title] = None
    return {file: tuple(names) for file, names in titles.items()}


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError
    return number


@cache
def schema() -> Mapping[str, Any]:
    described: dict[str, Any] = json.loads(_schema_text())
    return described


def _schema_text() -> str:
    return resources.files("vbuild.release").joinpath("report.schema.json").read_text(encoding="utf-8")


def check(value: object, *, is_open: bool = False) -> None:
    """`RecipeError`, with the place, for the first mistake in *value* against the schema.

    If *is_open*, keys that the schema does not list are ignored.
    """
    if error := next(_validator(is_open=is_open).iter_errors(value), None):
        while error.validator == "anyOf":
            error = error.context[0]
        path = reduce(_below, error.absolute_path, "")
        shown, expected = _shown(error.instance), error.validator_value
        match error.validator:
            case "required":
                path = _below(path, next(key for key in expected if key not in error.instance))
                fault = "missing"
            case "additionalProperties":
                known = error.schema["properties"]
                path = _below(path, next(key for key in error.instance if key not in known))
                fault = f"no such key; known here: {', '.join(known)}"
            case "type":
                names = [expected] if isinstance(expected, str) else expected
                fault = f"expected {' or '.join(_TYPES[name] for name in names)}, got {shown}"
            case "const":
                fault = f"found {shown}; expected {_shown(expected)}"
            case "enum":
                fault = f"found {shown}; expected one of {', '.join(map(_shown, expected))}"
            case "pattern":
                fault = f"found {shown}; expected what matches {expected}"
            case keyword:
                fault = f"is {shown}; expected {expected} or {'more' if keyword == 'minimum' else 'less'}"
        raise RecipeError(f"{path}: {fault}" if path else fault)


@cache
def _validator(*, is_open: bool) -> Any:  # noqa: ANN401 - jsonschema has no types
    from jsonschema import Draft202012Validator  # noqa: PLC0415 - only needed when a report is read
    from jsonschema.validators import extend  # noqa: PLC0415

    def opened(part: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in part.items() if (key, value) != ("additionalProperties", False)}

    types = Draft202012Validator.TYPE_CHECKER.redefine(
        # JSON Schema also takes 1.0 for an integer
        "integer",
        lambda _, value: isinstance(value, int) and not isinstance(value, bool),
    )
    parsed = json.loads(_schema_text(), object_hook=opened if is_open else None)
    return extend(Draft202012Validator, type_checker=types)(parsed)  # type: ignore[no-untyped-call]


def _below(path: str, key: str | int) -> str:
    if isinstance(key, int):
        return f"{path}[{key}]"
    name = key if _BARE_KEY.fullmatch(key) else repr(key[:_SHOWN])
    return f"{path}.{name}" if path else name


def _shown(value: object) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "an array"
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


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
    """A machine, and the Pythons with which it gets the same variant."""

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
    """A flag of the project's own that was taken out for *files*, in the builds of *wheels*.

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
    return tuple(Message(warning, tuple(dict.fromkeys(titles))) for warning, titles in alike.items())


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
        headline, _, rest = error.expandtabs().partition("\n")
        logs = dict.fromkeys(failure.log for failure in same if failure.log)
        messages.append(Message(headline, tuple(failure.title for failure in same), rest, tuple(logs)))
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


class Mood(StrEnum):
    GOOD = "good"
    WARN = "warn"
    BAD = "bad"


class Gauge(Struct, frozen=True):
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
    # above the machine's level, split and without its Python, or cut from what cibuildwheel has tested
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
