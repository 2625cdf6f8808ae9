"""JSON of strangers: as Python has it, if it is no more than its size lets one expect.

Python takes up to forty times the size of a text of tiny values, ``[[],[],...``, in memory; texts that say something
have some twenty characters for each comma and each opening bracket, and Python takes about four times their size.
https://www.rfc-editor.org/rfc/rfc8259 (section 9: a parser may limit what it accepts)
"""

import json
from collections.abc import Callable
from typing import Any

# values of a text of any length, a hundred bytes of memory each, or two; and characters that a longer text has for each
_MOST, _SPARSE = 250_000, 16


def parsed_json(text: str | bytes, *, number: Callable[[str], Any] | None = None) -> Any:  # noqa: ANN401 - whatever JSON holds
    """What the JSON *text* holds; `ValueError` where it is none, is nested too deeply, or has far too many values.

    With *number*, what that makes of numbers with a point or an exponent, and NaN and infinities are refused.
    """
    values = sum(map(text.count, ",{[")) if isinstance(text, str) else sum(map(text.count, b",{["))
    if values > (most := max(_MOST, len(text) // _SPARSE)):
        raise ValueError(f"{values} values, expected {most} at most")
    try:
        return json.loads(text, parse_float=number, parse_constant=number and _refused)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _refused(name: str) -> None:
    raise ValueError(f"{name} is no number")
