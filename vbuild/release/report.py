"""A report of a release as a value: what ``report.json`` says, whoever wrote it and wherever it was built.

    report.json -> held against report.schema.json -> Report -> page, comparison, or `vbuild.release.collect`

The schema is the description of every key. A release that was just built and one of last year are the same kind of
value, so that they can be compared.

The same schema, ``report.schema.json``, describes a report to people and checks it here: there is no second list of
keys. What vbuild writes has these keys and no others; a report that it reads may be of a later version and have more.
https://json-schema.org/draft/2020-12/json-schema-validation
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from functools import cache, reduce
from importlib import resources
from pathlib import Path
from typing import Any, Self

from msgspec import Struct
from packaging.utils import canonicalize_name

from vbuild.build.wrappers import Override
from vbuild.errors import RecipeError, at
from vbuild.files.json_text import parsed_json
from vbuild.release.report_machines import MachineChoice
from vbuild.verification.model import Verdict
from vbuild.wheel.name import WheelName

Schema = Mapping[str, Any]

_NAMES = {
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


def check(value: object, schema: Schema, *, is_open: bool = False) -> None:
    """`RecipeError`, with the place, for the first mistake in *value*, which `json.loads` made, against *schema*.

    If *is_open*, keys that *schema* does not list are ignored: a later version of vbuild may have added them.
    """
    if error := next(_validator(json.dumps(schema), is_open=is_open).iter_errors(value), None):
        while error.validator == "anyOf":
            error = error.context[0]
        place = reduce(_below, error.absolute_path, "")
        if error.validator == "required":
            place = _below(place, next(key for key in error.validator_value if key not in error.instance))
        elif error.validator == "additionalProperties":
            place = _below(place, next(key for key in error.instance if key not in error.schema["properties"]))
        what = _mistake(error.validator, error.validator_value, error)
        raise RecipeError(f"{place}: {what}" if place else what)


@cache
def _validator(schema: str, *, is_open: bool) -> Any:  # noqa: ANN401 - jsonschema has no types
    """The validator of *schema*, a JSON text; if *is_open*, every object may have further keys."""
    from jsonschema import Draft202012Validator  # noqa: PLC0415 - only needed when a report is read
    from jsonschema.validators import extend  # noqa: PLC0415

    types = Draft202012Validator.TYPE_CHECKER.redefine(
        # JSON Schema also takes 1.0 for an integer
        "integer",
        lambda _, value: isinstance(value, int) and not isinstance(value, bool),
    )
    parsed = json.loads(schema, object_hook=_opened if is_open else None)
    return extend(Draft202012Validator, type_checker=types)(parsed)  # type: ignore[no-untyped-call]


def _opened(schema: dict[str, Any]) -> dict[str, Any]:
    """*schema* without its ban on keys that it does not list."""
    return {key: value for key, value in schema.items() if (key, value) != ("additionalProperties", False)}


def _mistake(keyword: str, expected: Any, error: Any) -> str:  # noqa: ANN401 - jsonschema has no types
    """What is wrong with the value of *error*, which breaks the schema's *keyword* that is *expected*."""
    found = _shown(error.instance)
    match keyword:
        case "required":
            return "missing"
        case "additionalProperties":
            return f"no such key; known here: {', '.join(error.schema['properties'])}"
        case "type":
            names = [expected] if isinstance(expected, str) else expected
            return f"expected {' or '.join(_NAMES[name] for name in names)}, got {found}"
    return {
        "const": f"found {found}; expected {_shown(expected)}",
        "enum": f"found {found}; expected one of {', '.join(map(_shown, expected)) if keyword == 'enum' else ''}",
        "pattern": f"found {found}; expected what matches {expected}",
        "minimum": f"is {found}; expected {_shown(expected)} or more",
        "maximum": f"is {found}; expected {_shown(expected)} or less",
    }[keyword]


def _below(place: str, key: str | int) -> str:
    """The place of *key* in the object or array at *place*; quoted unless it is a bare word."""
    if isinstance(key, int):
        return f"{place}[{key}]"
    name = key if _BARE_KEY.fullmatch(key) else repr(key[:_SHOWN])
    return f"{place}.{name}" if place else name


def _shown(value: object) -> str:
    """*value* as a message has room for it."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "an array"
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


FORMAT = 1
REPORT = "report.json"

# what one wheel, or one that there should be, is told from others by, in this release and in the next
Key = tuple[object, ...]

# manylinux1, manylinux2014, manylinux_2_28
_PLATFORM = re.compile(r"(?P<system>(?:many|musl)?linux|macosx)(?:\d+|_\d+_\d+)?_(?P<machine>\w+)", re.ASCII)


def kinds(name: WheelName) -> tuple[str, ...]:
    """The platforms of *name*, whatever their versions: ``manylinux_x86_64``, ``musllinux_aarch64``, ``win_amd64``.

    A Linux wheel that nobody has repaired counts as manylinux, which it would become.
    """
    return tuple(sorted({_kind(tag) for tag in name.platform.split(".")}))


def _kind(tag: str) -> str:
    match = _PLATFORM.fullmatch(tag)
    if match is None:
        return tag
    system = "manylinux" if match["system"] == "linux" else match["system"]
    return f"{system}_{match['machine']}"


class WheelEntry(Struct, frozen=True, kw_only=True):
    """A wheel of a release: its *size* and its *unpacked* size in bytes, *seconds* of its build, what was proved of it.

    *data* is all that the report says of it.
    """

    name: WheelName
    label: str | None
    python: str
    cpu: str
    size: int
    unpacked: int
    seconds: float
    is_built: bool
    test: str
    toolkit: str | None
    overrides: tuple[Override, ...]
    lists: tuple[str, ...]
    verdict: Verdict
    data: Mapping[str, Any]

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> Self:
        name = WheelName.parse(data["wheel"])
        return cls(
            name=name,
            label=data["label"],
            python=data["python"],
            cpu=data["cpu"],
            size=data["bytes"],
            unpacked=data["unpacked_bytes"],
            seconds=data["build_seconds"],
            is_built=data["built"],
            test=data["test"],
            toolkit=data["toolkit"] and data["toolkit"]["version"],
            overrides=tuple(map(Override.of_data, data["overrides"])),
            lists=tuple(data["architectures"]),
            verdict=Verdict.of_data(data["verdict"], Path(data["wheel"])),
            data=data,
        )

    @property
    def key(self) -> Key:
        """What the wheel is, whatever its version is, and that of its platform."""
        return (self.name.project, self.name.python, self.name.abi, kinds(self.name), *_key(self.data))

    @property
    def stead(self) -> Key:
        """What an `Absence` in the place of this wheel has as its key."""
        return (_python(self.data), *_key(self.data))

    @property
    def build(self) -> Key:
        """What its build is: wheels that differ in the GPUs they were cut to alone have the same."""
        data = self.data
        code = (self.cpu, *sorted(data["choices"].items()), self.toolkit, data["compiled_for"])
        return (self.python, self.name.python, self.name.abi, kinds(self.name), *code)

    @property
    def title(self) -> str:
        """What people call the wheel among those of its Python."""
        return self.label or "plain"


class Absence(Struct, frozen=True, kw_only=True):
    """A wheel that there should be: why there is none, and the log of it."""

    label: str | None
    python: str
    cpu: str
    error: str
    log: str | None
    data: Mapping[str, Any]

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            label=data["label"],
            python=data["python"],
            cpu=data["cpu"],
            error=data["error"],
            log=data["log"],
            data=data,
        )

    @property
    def key(self) -> Key:
        """What the wheel would be."""
        return (_python(self.data), *_key(self.data))

    @property
    def title(self) -> str:
        return self.label or "plain"


class Shared(Struct, frozen=True, kw_only=True):
    """A wheel that was made beside those of the release, which require it; sizes in bytes."""

    file: str
    size: int
    unpacked: int
    wheels: tuple[str, ...]

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            file=data["wheel"],
            size=data["packed_bytes"] or 0,
            unpacked=data["bytes"],
            wheels=tuple(data["for"]),
        )


class Report(Struct, frozen=True, kw_only=True):
    """The wheels of a release, what failed, who gets what, and what should be known of it all."""

    name: str
    source: str
    wheels: tuple[WheelEntry, ...]
    failures: tuple[Absence, ...]
    indexes: tuple[str, ...]
    choices: tuple[MachineChoice, ...]
    shared: tuple[Shared, ...]
    notes: tuple[str, ...]
    data: Mapping[str, Any]

    @classmethod
    def load(cls, path: Path) -> Self:
        """The report in the file at *path*; `RecipeError`, with file and key, where it is none."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise RecipeError(f"{path}: cannot be read: {reason}") from error
        with at(path):
            return cls.of_data(_decoded(text))

    @classmethod
    def previous(cls, path: Path | None, name: str) -> Self | None:
        """The report at *path* to hold a release of the project *name* against; None where there is no path.

        `RecipeError` also where it is of another project.
        """
        if path is None:
            return None
        report = cls.load(path)
        if canonicalize_name(report.name) != canonicalize_name(name):
            raise RecipeError(f"{path}: is of {report.name!r}; expected a report of {name!r}, which this release is of")
        return report

    @classmethod
    def of_data(cls, data: object) -> Self:
        """The report that *data*, made by `json.loads`, is; a `VbuildError`, with the key, if it is something else.

        It may have keys that a later version of vbuild has added.
        """
        _check_format(data)
        check(data, schema(), is_open=True)
        assert isinstance(data, dict)  # noqa: S101 - the schema says so
        return cls(
            name=data["name"],
            source=data["source"],
            wheels=tuple(_entries(data["wheels"])),
            failures=tuple(map(Absence.of_data, data["failures"])),
            indexes=tuple(index["index"] for index in data["variants"]),
            choices=tuple(map(MachineChoice.of_data, data["machines"])),
            shared=tuple(map(Shared.of_data, data["split"]["beside"])) if data["split"] else (),
            notes=tuple(data["notes"]),
            data=data,
        )

    @property
    def project(self) -> str:
        """The project as package indexes spell it."""
        return canonicalize_name(self.name)

    @property
    def versions(self) -> tuple[str, ...]:
        """The versions of the project that the wheels are of: one, if all is well."""
        return tuple(dict.fromkeys(wheel.name.version for wheel in self.wheels if wheel.name.project == self.project))

    @property
    def targets(self) -> int:
        """How many wheels there should be."""
        return len(self.wheels) + len(self.failures)

    @property
    def size(self) -> int:
        """Bytes of all wheels, and of those made beside."""
        return sum(self.files.values())

    @property
    def files(self) -> dict[str, int]:
        """Bytes of each file by name."""
        return {**{str(wheel.name): wheel.size for wheel in self.wheels}, **{one.file: one.size for one in self.shared}}

    @property
    def seconds(self) -> float:
        """How long the builds took, each once, one after the other."""
        return sum({wheel.build: wheel.seconds for wheel in self.wheels}.values())

    @property
    def pythons(self) -> tuple[str, ...]:
        """The Pythons of the wheels, as the recipe calls them."""
        return tuple(dict.fromkeys(wheel.python for wheel in self.wheels))

    @property
    def platforms(self) -> tuple[tuple[str, ...], ...]:
        """The kinds of platforms of the project's own wheels."""
        own = (wheel.name for wheel in self.wheels if wheel.name.project == self.project)
        return tuple(dict.fromkeys(map(kinds, own)))


@cache
def schema() -> Mapping[str, Any]:
    """The JSON Schema of ``report.json``."""
    text = resources.files("vbuild.release").joinpath("report.schema.json").read_text(encoding="utf-8")
    described: dict[str, Any] = json.loads(text)
    return described


def _entries(wheels: list[dict[str, Any]]) -> Iterator[WheelEntry]:
    for place, data in enumerate(wheels):
        with at(f"wheels[{place}]"):
            yield WheelEntry.of_data(data)


def _key(data: Mapping[str, Any]) -> Key:
    machine = data["cpu"][:3]  # x86, arm
    return (machine, data["label"], *sorted(data["choices"].items()))


def _python(data: Mapping[str, Any]) -> str:
    # a path says nothing on another machine
    return "" if "/" in data["python"] else data["python"]


def _check_format(data: object) -> None:
    """`RecipeError` where *data* is no report of this format, said before anything that follows from that."""
    if not isinstance(data, dict) or "format" not in data:
        raise RecipeError("not a report of a release: no format; expected report.json as vbuild writes it")
    if data["format"] != FORMAT or isinstance(data["format"], bool):
        raise RecipeError(f"format: found {data['format']!r}; this vbuild reads {FORMAT}")


def _decoded(text: str) -> object:
    try:
        return parsed_json(text, number=_finite)
    except json.JSONDecodeError as error:
        raise RecipeError(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error
    except ValueError as error:
        raise RecipeError("JSON nested too deeply, of far too many values, or with a number that is none") from error


def _finite(text: str) -> float:
    """The number that *text* is; `ValueError` where it is too large for one."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError
    return number
