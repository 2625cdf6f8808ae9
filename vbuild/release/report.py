"""A report of a release as a value: what ``report.json`` says, whoever wrote it and wherever it was built.

    report.json -> held against report.schema.json -> Report -> page, comparison, or `vbuild.release.collect`

The schema is the description of every key. A release that was just built and one of last year are the same kind of
value, so that they can be compared.

Hold JSON against a schema: as much of JSON Schema as ``report.schema.json`` beside this file uses.

    type, const, enum, pattern, minimum, maximum, required, properties, additionalProperties, items, anyOf, $ref

The schema is the description for people, and so it is also what a report is read by: there is no second list of keys.
What vbuild writes has these keys and no others; what it reads may be a later version's, with keys that it passes over.
https://json-schema.org/draft/2020-12/json-schema-validation
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Self

from msgspec import Struct
from packaging.utils import canonicalize_name

from vbuild.build.wrappers import Override
from vbuild.errors import ReportError, VbuildError, at
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
_TYPES: Mapping[str, type | UnionType] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": int | float,
    "boolean": bool,
    "null": NoneType,
}
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SHOWN = 60


def check(value: object, schema: Schema, *, is_open: bool = False) -> None:
    """`ReportError`, with the place, for the first thing in *value*, made by `json.loads`, that *schema* forbids.

    Keys that *schema* does not know are passed over where that *is_open*, whatever it says of them.
    """
    for place, what in _Check(schema, is_open=is_open).wrong(value, schema, ""):
        raise ReportError(f"{place}: {what}" if place else what)


class _Check:
    """A check against a schema, which finds the definitions that it refers to."""

    def __init__(self, root: Schema, *, is_open: bool) -> None:
        self._definitions = root.get("$defs", {})
        self._is_open = is_open

    def wrong(self, value: object, schema: Schema, place: str) -> Iterator[tuple[str, str]]:
        """What is wrong with *value*, which stands at *place*, each with its place."""
        if "$ref" in schema:
            yield from self.wrong(value, self._definitions[schema["$ref"].removeprefix("#/$defs/")], place)
        if "anyOf" in schema:
            yield from self._any_of(value, schema["anyOf"], place)
        if "type" in schema and (what := _mistyped(value, schema["type"])):
            yield place, what
            return
        if what := _unexpected(value, schema):
            yield place, what
        if isinstance(value, dict):
            yield from self._object(value, schema, place)
        elif isinstance(value, list) and "items" in schema:
            for index, item in enumerate(value):
                yield from self.wrong(item, schema["items"], f"{place}[{index}]")

    def _any_of(self, value: object, schemas: list[Schema], place: str) -> Iterator[tuple[str, str]]:
        """What the first of *schemas* has against *value*, where all of them have something."""
        found = [[*self.wrong(value, schema, place)] for schema in schemas]
        if all(found):
            yield found[0][0]

    def _object(self, value: dict[str, object], schema: Schema, place: str) -> Iterator[tuple[str, str]]:
        known = schema.get("properties", {})
        for key in schema.get("required", ()):
            if key not in value:
                yield _below(place, key), "missing"
        rest = schema.get("additionalProperties", True)
        for key, item in value.items():
            if key in known:
                yield from self.wrong(item, known[key], _below(place, key))
            elif rest is False and not self._is_open:
                yield _below(place, key), f"no such key; known here: {', '.join(known)}"
            elif isinstance(rest, Mapping):
                yield from self.wrong(item, rest, _below(place, key))


def _mistyped(value: object, types: str | list[str]) -> str | None:
    names = [types] if isinstance(types, str) else types
    if any(_is(value, name) for name in names):
        return None
    return f"expected {' or '.join(_NAMES[name] for name in names)}, got {_shown(value)}"


def _is(value: object, name: str) -> bool:
    # to Python true is 1; to JSON Schema 1.0 is an integer, but whoever counts with it would rather not
    return isinstance(value, _TYPES[name]) and (name == "boolean" or not isinstance(value, bool))


def _unexpected(value: object, schema: Schema) -> str | None:
    if "const" in schema and value != schema["const"]:
        return f"found {_shown(value)}; expected {_shown(schema['const'])}"
    if "enum" in schema and value not in schema["enum"]:
        words = ", ".join(map(_shown, schema["enum"]))
        return f"found {_shown(value)}; expected one of {words}"
    if "pattern" in schema and isinstance(value, str) and not re.search(schema["pattern"], value):
        return f"found {_shown(value)}; expected what matches {schema['pattern']}"
    if "minimum" in schema and isinstance(value, int | float) and value < schema["minimum"]:
        return f"is {_shown(value)}; expected {schema['minimum']} or more"
    if "maximum" in schema and isinstance(value, int | float) and value > schema["maximum"]:
        return f"is {_shown(value)}; expected {schema['maximum']} or less"
    return None


def _below(place: str, key: str) -> str:
    """The place of *key* in the object at *place*; quoted where it is no bare word."""
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
        """The report in the file at *path*; `ReportError`, with file and key, where it is none."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise ReportError(f"{path}: cannot be read: {reason}") from error
        with at(path):
            return cls.of_data(_decoded(text))

    @classmethod
    def previous(cls, path: Path | None, name: str) -> Self | None:
        """The report at *path* to hold a release of the project *name* against; None where there is no path.

        `ReportError` also where it is of another project.
        """
        if path is None:
            return None
        report = cls.load(path)
        if canonicalize_name(report.name) != canonicalize_name(name):
            raise ReportError(f"{path}: is of {report.name!r}; expected a report of {name!r}, which this release is of")
        return report

    @classmethod
    def of_data(cls, data: object) -> Self:
        """The report that *data*, made by `json.loads`, is; `ReportError`, with the key, where it is none.

        It may have keys that a later version of vbuild has added.
        """
        _check_format(data)
        check(data, schema(), is_open=True)
        assert isinstance(data, dict)  # noqa: S101 - the schema says so
        try:
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
        except VbuildError as error:  # a file name, a CPU level or a GPU that there is not
            raise ReportError(str(error)) from error

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
    """`ReportError` where *data* is no report of this format, said before anything that follows from that."""
    if not isinstance(data, dict) or "format" not in data:
        raise ReportError("not a report of a release: no format; expected report.json as vbuild writes it")
    if data["format"] != FORMAT or isinstance(data["format"], bool):
        raise ReportError(f"format: found {data['format']!r}; this vbuild reads {FORMAT}")


def _decoded(text: str) -> object:
    try:
        return parsed_json(text, number=_finite)
    except json.JSONDecodeError as error:
        raise ReportError(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error
    except ValueError as error:
        raise ReportError("JSON nested too deeply, of far too many values, or with a number that is none") from error


def _finite(text: str) -> float:
    """The number that *text* is; `ValueError` where it is too large for one."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError
    return number
