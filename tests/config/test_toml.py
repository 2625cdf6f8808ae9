"""What is written as TOML is what tomllib reads, whatever texts are in it."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories.texts import TEXTS
from vbuild.config.table import toml, toml_comment, toml_key

_TEXTS = TEXTS | st.sampled_from(["a\nb = 1", '"', "\\", "\x7f", "\x1b", "#", "[a]", "'''", "\u2028", "😀"])
_VALUES = st.recursive(
    _TEXTS | st.booleans() | st.integers(-(2**63), 2**63 - 1),
    lambda inner: st.lists(inner) | st.dictionaries(_TEXTS, inner),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a b": ["é", 'q"']}, '{ "a b" = ["é", "q\\""] }'),
        ([{"x": True}, 3], "[{ x = true }, 3]"),
    ],
)
def test_values_are_written_as_toml(value: object, text: str) -> None:
    assert toml(value) == text


@given(_TEXTS, _VALUES, _TEXTS)
def test_a_value_is_read_as_it_was_and_a_comment_says_nothing(key: str, value: object, comment: str) -> None:
    text = f"[table]\n{toml_key(key)} = {toml(value)}  {toml_comment(comment)}\n[end]\n"
    assert tomllib.loads(text) == {"table": {key: value}, "end": {}}
