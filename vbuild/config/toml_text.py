"""Values as TOML: Python reads TOML, and does not write it.

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
        pairs = (f"{toml_key(key)} = {toml(item)}" for key, item in value.items())
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    # as in JSON, but for one control character that JSON does not escape
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_comment(text: str) -> str:
    """*text* as a comment of one line."""
    printable = "".join(char if char.isprintable() else " " for char in text)
    return f"# {' '.join(printable.split())}"


def toml_key(key: str) -> str:
    return key if _BARE.fullmatch(key) else toml(key)
