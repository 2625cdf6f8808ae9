"""YAML as clusters take it: nested maps and lists in block style, and every text in quotes where it could be another.

{"a": [{"b": "v1"}], "c": 2}   ->   a:
                                    - b: v1
                                    c: 2
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence

Value = str | int | Mapping[str, "Value"] | Sequence["Value"]

# what no reader of YAML takes for a number, a date, a truth value or a null
_PLAIN = re.compile(r"[A-Za-z][\w./-]*[A-Za-z\d]|[A-Za-z]", re.ASCII)
_OTHERS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "inf", "nan"})


def yaml(value: Mapping[str, Value]) -> str:
    """*value* as a YAML document; texts of several lines keep them."""
    return "\n".join(_block(value)) + "\n"


def _block(value: Mapping[str, Value] | Sequence[Value]) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _entry(f"{_scalar(key)}:", item)
    else:
        for item in value:
            if isinstance(item, str | int) or not item:
                yield f"- {_scalar(item)}"
            else:
                first, *rest = _block(item)
                yield f"- {first}"
                yield from (f"  {line}" for line in rest)


def _entry(key: str, item: Value) -> Iterator[str]:
    if isinstance(item, str) and "\n" in item:
        yield f"{key} |-"
        yield from (f"  {line}" for line in item.split("\n"))
    elif isinstance(item, str | int) or not item:
        yield f"{key} {_scalar(item)}"
    else:
        yield key
        indent = "  " if isinstance(item, Mapping) else ""
        yield from (f"{indent}{line}" for line in _block(item))


def _scalar(value: Value) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _OTHERS:
        return value
    return json.dumps(value, ensure_ascii=False)
