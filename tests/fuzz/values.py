"""Bad values: JSON, TOML and HTML that can still be read, in which something is of another type, size, name or number.

one value replaced, taken away, doubled, moved to another place, wrapped; one key renamed; one text changed
"""

import html
import json
import math
import random
import re
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from datetime import date, datetime, time
from typing import Any

# what is in a place is replaced by: every type, and of each what is likely not thought of
_BAD: tuple[Any, ...] = (
    *(None, True, False, [], {}, [[]], {"": {}}, [None], {"a": None}),
    *(0, -1, 1, 2, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 63) - 1, 1 << 63, 1 << 64, -(1 << 63), 10**400),
    *(0.0, -0.5, 1e308, math.inf, -math.inf, math.nan),
    *("", " ", "a", "0", "-1", "1.0", "true", "null", "*", "..", "../a", "/etc", "C:\\", ".", "a/b", "~", "$HOME"),
    *("\0", "\n", "\x1b[2J", "\x7f", "é", "\u202e", "\ufeff", "\U0001f600", "A" * 300, "a" * 5000),
    *("sha256:" + "0" * 64, "0" * 64, "9" * 40, "https://[", "file:///a", "git+ssh://a@b/c", "1.0+a", "1!2.0rc1"),
)
# what is put into a text
_PIECES = (*"\0\n\r\t/\\\"':=,;-_.+! 0éA", "..", "::")
_ATTRIBUTE = re.compile(r'\s(?P<name>[\w-]+)="(?P<value>[^"]*)"')


def json_changed(data: bytes, chance: random.Random) -> bytes:
    """The JSON *data* with one to three other values; *data* itself if it is none."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return data
    return json.dumps(_changed(value, chance), ensure_ascii=chance.random() < 1 / 2).encode(errors="surrogatepass")


def toml_changed(data: bytes, chance: random.Random) -> bytes:
    """The TOML *data* with one to three other values, its tables inline; *data* itself if it is none."""
    try:
        table = tomllib.loads(data.decode())
    except (ValueError, RecursionError):
        return data
    changed = _changed(table, chance)
    if not isinstance(changed, dict):
        return data
    lines = (f"{json.dumps(key)} = {_toml(value)}\n" for key, value in changed.items())
    return "".join(lines).encode(errors="surrogatepass")


def html_changed(data: bytes, chance: random.Random) -> bytes:
    """The HTML *data* with one to three attributes that say something else, have another name, or are gone."""
    text = data.decode(errors="replace")
    for _ in range(chance.randint(1, 3)):
        found = [*_ATTRIBUTE.finditer(text)]
        if not found:
            break
        old, other = chance.choice(found), chance.choice(found)
        name, value = old["name"], html.unescape(old["value"])
        bad = chance.choice([each for each in _BAD if isinstance(each, str)])
        name, value = chance.choice(
            (
                (name, _text(value, chance)),
                (name, _text(value, chance)),
                (name, bad),
                (name, html.unescape(other["value"])),
                (other["name"], value),
                (_text(name, chance), value),
            )
        )
        new = chance.choice(
            (f' {name}="{html.escape(value)}"', f' {name}="{html.escape(value)}"', f" {name}={value}", "")
        )
        text = text[: old.start()] + new + text[old.end() :]
    return text.encode(errors="surrogatepass")


def _changed(value: Any, chance: random.Random) -> Any:
    for _ in range(chance.randint(1, 3)):
        places = list(_places(value))
        if not places:
            return value
        container, key = chance.choice(places)
        _change(container, key, places, chance)
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each container within *value* with each key that it has."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


def _change(container: Any, key: Any, places: list[tuple[Any, Any]], chance: random.Random) -> None:
    """Change what *container* has at *key*."""
    old = container[key]
    match chance.randrange(8):
        case 0:
            del container[key]
        case 1 if isinstance(container, dict):
            container[_text(key, chance)] = container.pop(key)
        case 1:
            container.insert(key, old)
        case 2:
            other, place = chance.choice(places)
            # what is within the place itself may be gone by now, and is a copy, for nothing can be within itself
            with suppress(LookupError):
                container[key] = deepcopy(other[place])
        case 3:
            container[key] = chance.choice(([old], {"a": old}, [old, old]))
        case 4 | 5 if isinstance(old, str):
            container[key] = _text(old, chance)
        case 4 if type(old) is int:
            container[key] = old + chance.choice((-1, 1, 2, 100, 1 << 32))
        case _:
            container[key] = deepcopy(chance.choice(_BAD))


def _text(old: str, chance: random.Random) -> str:
    place, other = sorted((chance.randint(0, len(old)), chance.randint(0, len(old))))
    piece = chance.choice(_PIECES)
    return chance.choice(
        (
            old[:place] + piece + old[place:],
            old[:place] + piece + old[place + 1 :],
            old[:place] + old[other:],
            old[:other] + old[place:],
            old.upper(),
            f" {old}",
        )
    )


def _toml(value: Any) -> str:  # noqa: PLR0911 - a type each
    match value:
        case bool():
            return str(value).lower()
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case dict():
            return "{" + ", ".join(f"{json.dumps(key)} = {_toml(each)}" for key, each in value.items()) + "}"
        case list():
            return f"[{', '.join(map(_toml, value))}]"
        case datetime() | date() | time():
            return value.isoformat()
        case None:
            return '""'
        case _:
            return str(value)
