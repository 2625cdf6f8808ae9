"""JSON of strangers: as Python reads it, if it does not have far more values than texts of its size have.

Python takes up to forty times the size of a text of tiny values, ``[[],[],...``, in memory; texts that say something
have some twenty characters for each comma and each opening bracket, and Python takes about four times their size.
https://www.rfc-editor.org/rfc/rfc8259 (section 9: a parser may limit what it accepts)
"""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from vbuild.errors import VbuildError

# values of a text of any length, a hundred bytes of memory each, or two; and characters that a longer text has for each
_MOST, _SPARSE = 250_000, 16


def json_object(text: bytes, refusal: type[VbuildError]) -> dict[str, Any]:
    """The object in the JSON *text*; a *refusal* that says what is wrong with any other text.

    A key that stands twice in one object is wrong, as JSON readers differ on which of the two counts.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
            raise refusal(f"key {twice!r} stands twice in one object")
        return values

    try:
        values = parsed_json(text.decode(), pairs=once)
    except UnicodeDecodeError as error:
        raise refusal(f"not UTF-8 at byte {error.start:#x}") from error
    except json.JSONDecodeError as error:
        raise refusal(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error
    except ValueError as error:
        raise refusal("JSON nested too deeply, of far too many values, or with a number too long") from error
    if not isinstance(values, dict):
        raise refusal(f"expected a JSON object, got {type(values).__name__}")
    return values


def parsed_json(
    text: str | bytes,
    *,
    number: Callable[[str], Any] | None = None,
    pairs: Callable[[list[tuple[str, Any]]], dict[str, Any]] | None = None,
) -> Any:  # noqa: ANN401 - whatever JSON holds
    """What the JSON *text* holds; `ValueError` for other texts, deep nesting, and far too many values.

    With *number*, what that makes of numbers with a point or an exponent, and NaN and infinities are refused. With
    *pairs*, what that makes of each object.
    """
    values = sum(map(text.count, ",{[")) if isinstance(text, str) else sum(map(text.count, b",{["))
    if values > (most := max(_MOST, len(text) // _SPARSE)):
        raise ValueError(f"{values} values, expected {most} at most")
    try:
        return json.loads(text, parse_float=number, parse_constant=number and _refused, object_pairs_hook=pairs)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _refused(name: str) -> None:
    raise ValueError(f"{name} is no number")
