"""Values as TOML, for what vbuild writes: recipes, machines, locks. Python reads TOML, and does not write it.

https://toml.io/en/v1.0.0
"""

import json
import re
from collections.abc import Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml(value: Any) -> str:  # noqa: ANN401 - whatever TOML holds
    """*value* as TOML in one line."""
    if isinstance(value, Mapping):
        pairs = (f"{toml_key(key)} = {toml(each)}" for key, each in value.items())
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    # as in JSON, but for one character of control that JSON does not know
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_comment(text: str) -> str:
    """*text* as a comment of one line, whatever is in it."""
    printable = "".join(one if one.isprintable() else " " for one in text)
    return f"# {' '.join(printable.split())}"


def toml_key(key: str) -> str:
    """*key* as TOML, quoted if it has to be."""
    return key if _BARE.fullmatch(key) else toml(key)
