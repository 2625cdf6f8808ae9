"""Whatever a text is, a file made from a template has it as a text: YAML's own reader gives it back."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import UndefinedError

from tests.factories.texts import TEXTS
from vbuild.files.templates import Written, templates, yaml_text

HOSTILE = [
    *('a\nb: "c"', "a\rb", "a: b", "- a", "#", "a #b", "'", '"', "\\", "\x1b[2J", "\x7f", "\x85", "\u2028", "\ufeff"),
    *("", " ", "on", "3.10", "null", "~", "&a", "*a", "!!python/object:os.system", "{a: b}", "[a", "%a", "@a", "`a`"),
    *("${{ github.token }}", "$(id)", "😀", "é"),
]


@given(TEXTS | st.sampled_from(HOSTILE))
def test_a_text_in_yaml_is_that_text(text: str) -> None:
    assert yaml.safe_load(f"- {yaml_text(text)}") == [text]
    assert yaml.safe_load(f"{{ {yaml_text(text)}: 1 }}") == {text: 1}


@pytest.mark.parametrize("text", HOSTILE)
def test_who_forgets_to_quote_has_quoted(text: str) -> None:
    environment = templates("vbuild.release", yaml_text)
    page = environment.from_string("# {{ text }}\n{{ own }}: {{ text }}\nnumber: {{ 3 }}\njoined: {{ text ~ own }}\n")
    rendered = page.render(text=text, own=Written("key"))
    assert yaml.safe_load(rendered) == {"key": text, "number": 3, "joined": f"{text}key"}
    assert len(rendered.splitlines()) == 4


def test_a_value_that_is_missing_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="'text' is undefined"):
        templates("vbuild.release", yaml_text).from_string("{{ text }}").render()
