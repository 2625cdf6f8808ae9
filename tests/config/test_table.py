"""A TOML table that knows its place."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vbuild.config.table import Table
from vbuild.errors import RecipeError, VbuildError
from vbuild.hardware.cpu import Cpu

TEXT = """
text = "a"
number = 3
flag = true
texts = ["a", "b"]
mixed = ["a", 1]
[pairs]
x = "1"
"y z" = "2"
[settings]
one = "1"
many = ["1", "2"]
[[tables]]
name = "first"
[[tables]]
name = 2
"""


def test_values_are_read_by_their_types() -> None:
    table = Table.parse(TEXT)
    assert (table.text("text"), table.number("number"), table.flag("flag", default=False)) == ("a", 3, True)
    assert table.texts("texts") == ("a", "b")
    assert (table.one_of("text", ("b", "a")), table.one_of("gone", ("b", "a"))) == ("a", "b")
    assert table.pairs("pairs") == (("x", "1"), ("y z", "2"))
    assert table.settings("settings") == (("one", "1"), ("many", ("1", "2")))
    assert [entry.here for entry in table.tables("tables")] == ["tables[0]", "tables[1]"]


def test_what_is_not_there_is_the_default() -> None:
    table = Table({})
    assert (table.text("a", "x"), table.number("b", 1), table.flag("c", default=True)) == ("x", 1, True)
    assert (table.optional_text("d"), table.optional_parsed("e", Cpu.parse)) == (None, None)
    assert (table.texts("f", ("x",)), table.pairs("g"), table.settings("h"), table.tables("i")) == (("x",), (), (), ())
    with table.table("j", optional=True) as nothing:
        assert list(nothing) == []


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda table: table.text("gone"), "gone: missing; expected a string"),
        (lambda table: table.text("number"), "number: expected a string, got 3"),
        (lambda table: table.one_of("text", ("b", "c", "d")), "text: found 'a'; expected 'b', 'c' or 'd'"),
        (lambda table: table.number("flag"), "flag: expected an integer, got True"),
        (lambda table: table.flag("text", default=True), "text: expected true or false, got 'a'"),
        (lambda table: table.texts("mixed"), "mixed[1]: expected a string, got 1"),
        (lambda table: table.texts("text"), "text: expected an array, got 'a': write ['a']"),
        (lambda table: table.pairs("settings"), "settings.many: expected a string, got ['1', '2']"),
        (lambda table: table.settings("tables"), "tables: expected a table, got [{'name': 'first'}, {'name': 2}]"),
        (lambda table: table.setting("number"), "number: expected a string or an array of strings, got 3"),
        (lambda table: table.tables("texts"), "texts[0]: expected a table, got 'a'"),
        (
            lambda table: [entry.text("name") for entry in table.tables("tables")],
            "tables[1].name: expected a string, got 2",
        ),
        (lambda table: table.handed("gone"), "gone: missing; expected a table"),
        (lambda table: table.handed("pairs").wrong("is odd"), "pairs: is odd"),
        (lambda table: table.handed("pairs").refuse("y z", "is odd"), 'pairs."y z": is odd'),
        (lambda table: table.wrong("is odd"), "is odd"),
        (
            lambda table: table.parsed_texts("texts", Cpu.parse),
            "texts[0]: no CPU level 'a'; expected x86-64, x86-64-v2, -v3, -v4, or armv8-a, armv8.1-a ...",
        ),
        (lambda table: table.finish(), "text: no such key; known here: none"),
    ],
)
def test_mistakes_are_reported_with_their_place(read: Callable[[Table], object], message: str) -> None:
    with pytest.raises(VbuildError) as refused:
        _raise(read(Table.parse(TEXT)))
    assert str(refused.value) == message


def _raise(found: object) -> None:
    """Raise an error that was returned, so that both kinds are tested alike."""
    raise found if isinstance(found, VbuildError) else TypeError(found)


def test_a_key_nobody_asks_for_is_refused_on_leaving_its_table() -> None:
    table = Table.parse("[build]\nenv = 1\nflag = 2\n")
    with pytest.raises(RecipeError) as refused, table.table("build") as build:
        build.number("env")
    assert str(refused.value) == "build.flag: no such key; known here: env"


def test_a_line_that_is_pasted_above_a_table_of_its_own_belongs_below_that() -> None:
    with pytest.raises(RecipeError, match=r"; write a line `matrix\.key = …` below \[matrix\], without `matrix\.`$"):
        Table.parse("matrix.plain = 'x86-64-v2'\n[matrix]\ncpu = []\n")


def test_a_dotted_line_at_the_end_of_a_file_is_told_where_it_belongs() -> None:
    table = Table.parse('[test]\ncommand = "true"\nverify.allow = ["a"]')
    with pytest.raises(RecipeError) as refused, table.table("test") as test:
        test.text("command")
    told = "if it is not for [test], write the line above the first table"
    assert str(refused.value) == f"test.verify: no such key; known here: command; {told}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = ", "not TOML: Invalid value"),
        ("a = " + "[" * 5000, "not TOML: "),
        ("a = " + "1" * 5000, "not TOML: Exceeds the limit"),
        ("# " + "a" * 2**19, "524290 characters; expected 524288 at most"),
        ("x = 1\n[a" + ' . "b"' * 101 + "]", "not TOML as anybody writes it: more than 100 dots in a key, at line 2"),
        ("a" + ".a" * 20_000 + " = 1", "not TOML as anybody writes it: more than 100 dots in a key, at line 1"),
    ],
)
def test_what_is_not_toml_is_refused(text: str, message: str) -> None:
    with pytest.raises(RecipeError) as refused:
        Table.parse(text)
    assert str(refused.value).startswith(message)


def test_a_hundred_dots_in_a_key_are_read() -> None:
    assert "a" in Table.parse("a" + ".a" * 100 + " = 1")


def test_a_file_is_named_in_its_mistakes(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes(b"a = '\xff'")
    with pytest.raises(RecipeError, match=r"a\.toml: cannot be read: not UTF-8"):
        Table.load(tmp_path / "a.toml")
    (tmp_path / "b.toml").write_text("a")
    with pytest.raises(RecipeError, match=r"b\.toml: not TOML: "):
        Table.load(tmp_path / "b.toml")


@given(st.text(st.sampled_from("abc=[]{}\"'.,#1-: \n\\")))
def test_any_text_is_a_table_or_a_table_error(text: str) -> None:
    try:
        table = Table.parse(text)
    except RecipeError:
        return
    for key in table:
        table.raw(key)
    table.finish()
