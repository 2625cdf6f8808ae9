"""Read a TOML table key by key, so that every mistake is reported as ``file: table.key: what``; write values as TOML.

A reader reads each key that it knows, and then calls `finish`, which refuses all others: a misspelt key is an error.
https://toml.io/en/v1.0.0
"""

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

from vbuild.errors import RecipeError, at, meant, reason_of
from vbuild.files.reading import read_text

T = TypeVar("T")

Setting = str | tuple[str, ...]
Settings = tuple[tuple[str, Setting], ...]
"""Config settings of PEP 517, in the order written."""
Env = tuple[tuple[str, str], ...]
"""Environment variables, in the order written."""

# bytes; tables take a hundred times their size in memory
_LARGEST = 1 << 19
# tomllib keeps all parts before each part of a dotted key
_PART = r"(?:[\w-]++|\"[^\"\n]*+\"|'[^'\n]*+')[ \t]*+\.[ \t]*+"
_DEEPEST = 100
_TWICE = re.compile(r"Cannot declare \('(?P<table>[\w-]+)',\) twice")
_DEEP_KEY = re.compile(rf"(?<![\w-]){_PART}" + rf"(?:{_PART}){{{_DEEPEST}}}", re.ASCII)
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+(\[\d+\])*")
_NAMES = {str: "a string", int: "an integer", bool: "true or false", list: "an array", dict: "a table"}


class Table:
    """A TOML table that knows which keys were read, and its dotted name, *here*; "" for the top.

    *is_toml* is off for a table of JSON.
    """

    def __init__(self, values: Mapping[str, Any], place: str = "", *, is_toml: bool = False) -> None:
        self._values = values
        self.here = place
        self._is_toml = is_toml
        self._read: set[str] = set()

    @classmethod
    def parse(cls, text: str) -> Self:
        """The top table of a TOML document; `RecipeError` with line and column for other texts, or if too large."""
        if len(text) > _LARGEST:
            raise RecipeError(f"{len(text)} characters; expected {_LARGEST} at most")
        if key := _DEEP_KEY.search(text):
            line = text.count("\n", 0, key.start()) + 1
            raise RecipeError(f"not TOML as anybody writes it: more than {_DEEPEST} dots in a key, at line {line}")
        try:
            return cls(tomllib.loads(text), is_toml=True)
        except ValueError as error:  # TOMLDecodeError, or Python's limit of digits in an integer
            # a line `build.flags = 'strip'` pasted at the head of a file with a table [build]
            twice = _TWICE.search(str(error))
            where = "; write a line `{0}.key = …` below [{0}], without `{0}.`".format(twice["table"]) if twice else ""
            raise RecipeError(f"not TOML: {error}{where}") from error
        except RecursionError as error:
            raise RecipeError("not TOML: nested too deeply") from error

    @classmethod
    def load(cls, path: Path) -> Self:
        """The top table of the TOML file at *path*; `RecipeError` if it cannot be read."""
        try:
            text = read_text(path)
        except (OSError, UnicodeDecodeError) as error:
            raise RecipeError(f"{path}: cannot be read: {reason_of(error)}") from error
        with at(path):
            return cls.parse(text)

    def with_values(self, keys: Sequence[str], values: Mapping[str, Any]) -> Self:
        """The same table, with *values* added to the table at *keys*, or replaced there."""
        return type(self)(_replaced(self._values, keys, values), self.here, is_toml=self._is_toml)

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def place(self, key: str) -> str:
        """The dotted name of *key*, quoted if TOML needs that, for messages."""
        name = key if _BARE_KEY.fullmatch(key) else json.dumps(key, ensure_ascii=False)
        return f"{self.here}.{name}" if self.here else name

    def refuse(self, key: str, what: str) -> RecipeError:
        return RecipeError(f"{self.place(key)}: {what}")

    def wrong(self, what: str) -> RecipeError:
        """The error that says *what* is wrong with the table as a whole."""
        return RecipeError(f"{self.here}: {what}" if self.here else what)

    def text(self, key: str, default: str | None = None) -> str:
        return self._checked(key, self.raw(key), str, default)

    def optional_text(self, key: str) -> str | None:
        return None if self.raw(key) is None else self.text(key)

    def one_of(self, key: str, expected: Iterable[str]) -> str:
        """The string at *key*, one of those *expected*; by default the first of them."""
        words = [str(word) for word in expected]
        text = self.text(key, words[0])
        if text not in words:
            quoted = [repr(word) for word in words]
            raise self.refuse(
                key, f"found {text!r}; expected {', '.join(quoted[:-1])} or {quoted[-1]}{meant(text, words)}"
            )
        return text

    def matched(self, key: str, pattern: re.Pattern[str], reason: str) -> str:
        """The string at *key*; refused for *reason* if *pattern* does not match all of it."""
        text = self.text(key)
        if not pattern.fullmatch(text):
            raise self.refuse(key, f"{text!r} {reason}")
        return text

    def flag(self, key: str, *, default: bool) -> bool:
        return self._checked(key, self.raw(key), bool, default)

    def number(self, key: str, default: int | None = None) -> int:
        return self._checked(key, self.raw(key), int, default)

    def texts(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        if isinstance(text := self.raw(key), str):
            raise self.refuse(key, f"expected an array, got {text!r}: write [{text!r}]")
        values: list[object] = self._checked(key, self.raw(key), list, None if default is None else list(default))
        return tuple(self._checked(f"{key}[{index}]", value, str) for index, value in enumerate(values))

    def pairs(self, key: str) -> Env:
        """The table of strings at *key*, in the order written, by default empty."""
        with self.table(key, optional=True) as table:
            return tuple((name, table.text(name)) for name in table)

    def settings(self, key: str) -> Settings:
        """The table of strings and arrays of strings at *key*, in the order written, by default empty."""
        with self.table(key, optional=True) as table:
            return tuple((name, table.setting(name)) for name in table)

    def setting(self, key: str) -> Setting:
        value = self.raw(key)
        if isinstance(value, list):
            return self.texts(key)
        if isinstance(value, str):
            return value
        raise self.refuse(key, f"expected a string or an array of strings, got {value!r}")

    def raw(self, key: str) -> object:
        self._read.add(key)
        return self._values.get(key)

    def tables(self, key: str) -> tuple[Self, ...]:
        values: list[object] = self._checked(key, self.raw(key), list, [])
        return tuple(
            type(self)(self._checked(f"{key}[{index}]", value, dict), self.place(f"{key}[{index}]"))
            for index, value in enumerate(values)
        )

    @contextmanager
    def table(self, key: str, *, optional: bool = False) -> Iterator[Self]:
        """The table at *key*, or an empty one if *optional*; the block ends with `finish`."""
        table = self.handed(key, optional=optional)
        yield table
        table.finish()

    def handed(self, key: str, *, optional: bool = False) -> Self:
        """As `table`, for a reader that calls `finish` itself."""
        values: dict[str, Any] = self._checked(key, self.raw(key), dict, {} if optional else None)
        return type(self)(values, self.place(key), is_toml=self._is_toml)

    def parsed(self, key: str, parse: Callable[[str], T]) -> T:
        """The string at *key*, parsed; errors of *parse* get the key's place in front."""
        text = self.text(key)
        with at(self.place(key)):
            return parse(text)

    def optional_parsed(self, key: str, parse: Callable[[str], T]) -> T | None:
        return None if self.raw(key) is None else self.parsed(key, parse)

    def parsed_texts(
        self, key: str, parse: Callable[[str], T], default: tuple[str, ...] | None = None, *, unique: bool = False
    ) -> tuple[T, ...]:
        """The array of strings at *key*, parsed; errors of *parse* get the string's place in front.

        *unique* refuses a value that is there twice.
        """
        values: list[T] = []
        for index, text in enumerate(self.texts(key, default)):
            with at(self.place(f"{key}[{index}]")):
                value = parse(text)
            if unique and value in values:
                raise self.refuse(f"{key}[{index}]", f"{str(value)!r} is there twice")
            values.append(value)
        return tuple(values)

    def finish(self) -> None:
        """Refuse the first key that was not read."""
        for key, value in self._values.items():
            if key not in self._read:
                known = ", ".join(sorted(self._read)) or "none"
                where = ""
                if self._is_toml and isinstance(value, dict) and _BARE_KEY.fullmatch(self.here):
                    # a line `verify.allow = []` pasted at the end of the file
                    where = f"; if it is not for [{self.here}], write the line above the first table"
                raise self.refuse(key, f"no such key; known here: {known}{meant(key, self._read)}{where}")

    def _checked(self, key: str, value: object, kind: type[T], default: T | None = None) -> T:
        if value is None:
            if default is None:
                raise self.refuse(key, f"missing; expected {_NAMES[kind]}")
            return default
        # bool is an int to Python, not to TOML
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.refuse(key, f"expected {_NAMES[kind]}, got {value!r}")
        return value


def _replaced(table: Mapping[str, Any], keys: Sequence[str], values: Mapping[str, Any]) -> Mapping[str, Any]:
    if not keys:
        return {**table, **values}
    inner = table.get(keys[0], {})
    # another value is left for its reader to refuse
    return {**table, keys[0]: _replaced(inner, keys[1:], values)} if isinstance(inner, dict) else table


_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml(value: Any) -> str:  # noqa: ANN401 - whatever TOML holds
    """*value* as TOML in one line."""
    if isinstance(value, Mapping):
        pairs = (f"{toml_key(key)} = {toml(item)}" for key, item in value.items())
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    # as in JSON, but for one control character that JSON does not escape
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_comment(text: str) -> str:
    printable = "".join(char if char.isprintable() else " " for char in text)
    return f"# {' '.join(printable.split())}"


def toml_key(key: str) -> str:
    return key if _BARE.fullmatch(key) else toml(key)
