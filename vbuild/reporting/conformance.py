"""Hold JSON against a schema: as much of JSON Schema as ``report.schema.json`` beside this file uses.

    type, const, enum, pattern, minimum, maximum, required, properties, additionalProperties, items, anyOf, $ref

The schema is the description for people, and so it is also what a report is read by: there is no second list of keys.
What vbuild writes has these keys and no others; what it reads may be a later version's, with keys that it passes over.
https://json-schema.org/draft/2020-12/json-schema-validation
"""

import re
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Any

from vbuild.errors import ReportError

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
