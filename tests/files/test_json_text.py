"""JSON of strangers, and how much of it is taken."""

import math
import re

import pytest

from vbuild.files.reading import parsed_json


@pytest.mark.parametrize("text", ['{"a": [1, 2.5, null]}', b'{"a": [1, 2.5, null]}'], ids=["text", "bytes"])
def test_what_says_something_is_read(text: str | bytes) -> None:
    assert parsed_json(text) == {"a": [1, 2.5, None]}


def test_a_long_text_may_have_many_values_if_they_have_some_length() -> None:
    values = [f"{number:020}" for number in range(300_000)]
    assert parsed_json(repr(values).replace("'", '"')) == values


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" + "[]," * 125_000 + "[]]", "250002 values, expected 250000 at most"),
        (b"[" + b"0," * 2_500_000 + b"0]", "2500001 values, expected 312500 at most"),
        ("[" * 100_000, "nested too deeply"),
        ("", "Expecting value: line 1 column 1 (char 0)"),
    ],
    ids=["lists", "numbers", "deep", "nothing"],
)
def test_what_is_none_or_far_too_much_is_refused(text: str | bytes, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message) + "$"):
        parsed_json(text)


def test_numbers_are_what_the_caller_makes_of_them_and_then_none_is_nan() -> None:
    assert parsed_json("[1.5, 2]", number=str) == ["1.5", 2]
    assert math.isnan(parsed_json("NaN"))
    with pytest.raises(ValueError, match="NaN is not a number"):
        parsed_json("[NaN]", number=float)
