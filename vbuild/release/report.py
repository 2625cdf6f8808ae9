"""``report.json`` as values: `vbuild.release.publication` writes them, and the page and collect read them.

    Product, Failure -> WheelEntry, FailureEntry -> Report -> report.json
    report.json -> checked against report.schema.json -> Report -> page, or `vbuild.release.collect`

Fields stand in the order of the keys in the file. vbuild writes the keys of the schema and no others; a report that it
reads may be of a later version and have more. https://json-schema.org/draft/2020-12/json-schema-validation
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from functools import cache, cached_property, reduce
from importlib import resources
from pathlib import Path
from typing import Any, Protocol, Self

from msgspec import Struct, convert, field, to_builtins
from packaging.utils import canonicalize_name

from vbuild.build.reproducible import Unreproducible
from vbuild.build.trial import TrialResult
from vbuild.build.wrappers import Override
from vbuild.errors import RecipeError, VbuildError, at, reason_of
from vbuild.files.reading import parsed_json, read_text
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.driver import Dotted
from vbuild.hardware.gpu import GpuList
from vbuild.recipe.compiling import CudaBuild, ToolkitSpec
from vbuild.recipe.matrix import local_label
from vbuild.recipe.target import Target
from vbuild.toolchain.toolkit import Toolkit, ToolkitPin
from vbuild.verification.bench import BenchReport
from vbuild.verification.level_emulation import LevelRun
from vbuild.verification.model import Verdict
from vbuild.wheel.name import WheelName

FORMAT = 1
REPORT = "report.json"

# what distinguishes a wheel, or one that failed, from others of its release, and is the same in the next release
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


def kinds(name: WheelName) -> tuple[str, ...]:
    """The platforms of *name* without versions: ``manylinux_x86_64``, ``musllinux_aarch64``, ``win_amd64``.

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
    gpus: str | None
    compiled_for: str | None
    label: str | None

    @staticmethod
    def fields(target: Target, label: str | None) -> dict[str, Any]:
        """The fields for *target* under *label*, which may be a hash."""
        return {
            "python": target.python,
            "cpu": str(target.cpu),
            "properties": target.properties,
            "choices": dict(target.choices),
            "requires": dict(target.requires),
            "gpus": str(target.gpus) if target.gpus else None,
            "compiled_for": str(target.cuda.archs) if target.cuda else None,
            "label": label,
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
            cuda=CudaBuild(spec, GpuList.parse(self.compiled_for)) if self.compiled_for else None,
            gpus=GpuList.parse(self.gpus) if self.gpus else None,
        )

    @property
    def title(self) -> str:
        return "+".join(filter(None, [self.label or "plain", local_label(self.requires.items())]))

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
        return LevelRun.of_data(self.emulation_data) if self.emulation_data else None

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
    """What *machine* gets with a *python*: the *wheel* of *size* bytes, or none, and *why*.

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
        """The versions of the project's own wheels: one, if all is well."""
        return tuple(dict.fromkeys(wheel.name.version for wheel in self.wheels if wheel.name.project == self.project))

    @property
    def targets(self) -> int:
        return len(self.wheels) + len(self.failures)

    @cached_property
    def companions(self) -> tuple[CompanionEntry, ...]:
        return convert(self.split["beside"], tuple[CompanionEntry, ...]) if self.split else ()

    @property
    def files(self) -> dict[str, int]:
        """Bytes of each file by name."""
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
    """The files that would have other bytes if they were built elsewhere, with the titles of their *wheels*."""
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
    """`RecipeError`, with the place, for the first mistake in *value*, made by `json.loads`, against the schema.

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
                what = "missing"
            case "additionalProperties":
                known = error.schema["properties"]
                path = _below(path, next(key for key in error.instance if key not in known))
                what = f"no such key; known here: {', '.join(known)}"
            case "type":
                names = [expected] if isinstance(expected, str) else expected
                what = f"expected {' or '.join(_TYPES[name] for name in names)}, got {shown}"
            case "const":
                what = f"found {shown}; expected {_shown(expected)}"
            case "enum":
                what = f"found {shown}; expected one of {', '.join(map(_shown, expected))}"
            case "pattern":
                what = f"found {shown}; expected what matches {expected}"
            case keyword:
                what = f"is {shown}; expected {expected} or {'more' if keyword == 'minimum' else 'less'}"
        raise RecipeError(f"{path}: {what}" if path else what)


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
