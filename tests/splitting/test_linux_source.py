"""What Python code does on other systems than Linux is taken out before libraries are looked for in it."""

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vbuild.splitting.library_mentions import asks_for_system, for_linux


def left(source: str) -> str:
    """The code that is left of *source*, as Python writes it; what is gone is a 0."""
    data = source.encode()
    assert asks_for_system(data)
    after = for_linux(data, ast.parse(data))
    assert len(after) == len(data)
    assert after.count(b"\n") == data.count(b"\n")
    return ast.unparse(ast.parse(after))


@pytest.mark.parametrize(
    "condition",
    [
        "sys.platform == 'win32'",
        "sys.platform.startswith('win')",
        "sys.platform in ('win32', 'cygwin')",
        "sys.platform in {'darwin'}",
        "sys.platform != 'linux'",
        "os.name == 'nt'",
        "platform.system() == 'Windows'",
        "not sys.platform.startswith('linux')",
        "os.name == 'nt' and found",
        "os.name == 'nt' or sys.platform == 'darwin'",
        "sys.platform not in ['linux', 'linux2']",
    ],
)
def test_a_branch_of_another_system_goes(condition: str) -> None:
    test = ast.unparse(ast.parse(condition))
    source = f"if {condition}:\n    a = 'ä'; b()\nelse:\n    c()\n"
    assert left(source) == f"if {test}:\n    0\nelse:\n    c()"


@pytest.mark.parametrize(
    "condition",
    ["sys.platform == name", "WINDOWS", "sys.platform in names", "os.name == 'nt' or found", "sys.platform in [1]"],
)
def test_a_branch_stays_that_linux_may_reach(condition: str) -> None:
    source = f"if {condition} or sys.platform == 'win32':\n    a()\nelse:\n    c()"
    assert left(source) == ast.unparse(ast.parse(source))


def test_what_follows_linux_goes_with_every_elif() -> None:
    source = "if os.name == 'posix':\n  a()\nelif x:\n  b()\nelif os.name == 'nt':\n  c()\nelse:\n  d()\n"
    assert left(source) == "if os.name == 'posix':\n    a()\nelif x:\n    0\nelif os.name == 'nt':\n    0\nelse:\n    0"


def test_the_branches_of_other_systems_go_out_of_a_chain() -> None:
    source = "if os.name == 'nt':\n  a()\nelif sys.platform == 'darwin':\n  b()\nelse:\n  c()\n"
    assert left(source) == "if os.name == 'nt':\n    0\nelif sys.platform == 'darwin':\n    0\nelse:\n    c()"


def test_an_expression_loses_a_branch_too_and_a_function_its_decorators() -> None:
    assert left("x = 'a.dll' if os.name == 'nt' else 'a.so'") == "x = 0 if os.name == 'nt' else 'a.so'"
    source = "if os.name == 'nt':\n  @one\n  @two\n  def f():\n    pass\nelse:\n  g()"
    assert left(source) == "if os.name == 'nt':\n    0\nelse:\n    g()"


def test_what_stands_in_a_formatted_string_stays() -> None:
    source = "x = f\"lib{'a' if os.name == 'nt' else 'b'}\""
    assert left(source) == ast.unparse(ast.parse(source))


@pytest.mark.parametrize("source", ["# coding: latin-1\nsys.platform", "\ufeffos.name", "system = 1"])
def test_columns_that_are_not_bytes_are_not_trusted(source: str) -> None:
    assert not asks_for_system(source.encode())


@given(
    st.lists(st.sampled_from(["if os.name == 'nt':", "elif sys.platform == 'linux':", "elif x:", "else:"]), max_size=5)
)
def test_a_source_without_other_systems_is_still_a_source(heads: list[str]) -> None:
    source = "".join(f"{head}\n    y = 'ü' if os.name != 'nt' else z\n" for head in heads) + "os.name\n"
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return
    after = for_linux(source.encode(), tree)
    assert for_linux(after, ast.parse(after)) == after
