"""Which packages run a module that loads libraries first, and how their ``__init__.py`` comes to import it."""

import ast
import sys
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vbuild.errors import RepackageError
from vbuild.splitting.preloads import MODULE, hooked, hooks, with_import

STDLIB = Path(sysconfig.get_path("stdlib"))


@pytest.mark.parametrize(
    ("files", "consumer", "package"),
    [
        (["demo/__init__.py"], "demo/_C.so", "demo"),
        (["demo/__init__.py", "demo/sub/__init__.py"], "demo/sub/_C.so", "demo"),
        (["demo/__init__.py"], "demo/lib/libdemo.so", "demo"),
        (["space/demo/__init__.py"], "space/demo/_C.so", "space/demo"),
        (["demo/__init__.pyi"], "demo/_C.so", None),
        ([], "_C.so", None),
        (["demo.libs/__init__.py"], "demo.libs/libx.so", None),
        (["demo/__init__.py", "demo/__init__.cpython-311-x86_64-linux-gnu.so"], "demo/_C.so", None),
        (["demo/__init__.abi3.so", "demo/sub/__init__.py"], "demo/sub/_C.so", "demo/sub"),
        (["shared/__init__.py", "shared/demo/__init__.py"], "shared/demo/_C.so", "shared/demo"),
        (["shared/__init__.py"], "shared/_C.so", None),
        (["demo/__init__.py"], "demo/__init__.so/_C.so", "demo"),
    ],
)
def test_the_outermost_package_that_can_loads_them(files: list[str], consumer: str, package: str | None) -> None:
    expected = ((package,), ()) if package else ((), (consumer,))
    assert hooks([consumer], [*files, consumer], namespaces={"shared"}) == expected


def test_private_modules_beside_a_package_are_served_by_the_packages_that_name_them() -> None:
    consumers = ["_native.cpython-311-x86_64-linux-gnu.so", "_unused.so", "public.so"]
    sources = {
        "demo/__init__.py": "",
        "demo/sub/core.py": "from _native import value\nimport public\n",
        "other/__init__.py": "import _natively\n",
        "main.py": "import _native, _unused\n",
    }
    files = [*consumers, *sources]
    assert hooks(consumers, files, sources=sources) == (("demo",), ("_unused.so", "public.so"))
    assert hooks(consumers, files) == ((), tuple(consumers))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "{0}\n"),
        ("\ufeff", "\ufeff{0}\n"),
        ("# a licence", "# a licence\n{0}\n"),
        ("# a licence\n\nimport os\n", "# a licence\n\n{0}\nimport os\n"),
        ('"""A package."""', '"""A package."""\n\n{0}\n'),
        ('"""A\npackage."""\nimport os\n', '"""A\npackage."""\n\n{0}\nimport os\n'),
        (
            "#!/usr/bin/python\r\n# coding: utf-8\r\nx = 1\r\n",
            "#!/usr/bin/python\r\n# coding: utf-8\r\n{0}\r\nx = 1\r\n",
        ),
        ("x = 1\ry = 2\r", "{0}\rx = 1\ry = 2\r"),
        ("from __future__ import annotations\nimport os\n", "from __future__ import annotations\n{0}\nimport os\n"),
        (
            "from __future__ import (\n    annotations,\n)  # why\n",
            "from __future__ import (\n    annotations,\n)  # why\n{0}\n",
        ),
        ("# one\n@deco\ndef call():\n    pass\n", "# one\n{0}\n@deco\ndef call():\n    pass\n"),
        ("f'{1}'\n'no docstring'\n", "{0}\nf'{{1}}'\n'no docstring'\n"),
        ('x = "\\d\x0c\u2028"\n', '{0}\nx = "\\d\x0c\u2028"\n'),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_the_import_stands_before_all_that_does_something(before: str, after: str) -> None:
    statement = f"from . import {MODULE}"
    added = with_import(before)
    assert added == after.format(f"{statement}  # noqa: F401", statement)
    assert with_import(added) == added


def test_every_package_of_the_standard_library_can_import_it() -> None:
    sources = [path.read_bytes() for path in STDLIB.glob("*/__init__.py")]
    assert len(sources) > 20
    for source in sources:
        added = hooked(source)
        assert len(added) > len(source)
        assert hooked(added) == added


@given(
    st.lists(
        st.sampled_from(
            [
                "'x'",
                "# c",
                "x = 1",
                "@d\n",
                "def f(): 1",
                "\\\n",
                ";",
                "\n",
                "\r",
                "\r\n",
                "\x0c",
                " ",
                "from __future__ import division",
                "\ufeff",
            ]
        )
    )
)
def test_a_source_is_refused_or_does_what_it_did(pieces: list[str]) -> None:
    source = "".join(pieces)
    try:
        added = with_import(source)
    except RepackageError:
        return
    kept = [
        found
        for found in ast.parse(added.removeprefix("\ufeff")).body
        if not isinstance(found, ast.ImportFrom) or found.level == 0
    ]
    assert list(map(ast.dump, kept)) == list(map(ast.dump, ast.parse(source.removeprefix("\ufeff")).body))
    assert with_import(added) == added


@pytest.mark.parametrize(
    ("source", "refusal"),
    [
        (
            b"x = 'two\n",
            "cannot be parsed as Python {}: unterminated string literal (detected at line 1) (<unknown>, line 1)",
        ),
        (b"x = '\xff'\n", "in no encoding that Python reads: invalid or missing encoding declaration"),
        (
            b"# coding: utf-7\nx = '+AEE-'\n",
            "in utf-7, which can write it in several ways",
        ),
        (b"# coding: klingon\n", "in no encoding that Python reads: unknown encoding: klingon"),
        (b"x = 1\0\n", "cannot be parsed as Python {}: source code string cannot contain null bytes"),
    ],
    ids=["damaged", "latin", "ambiguous", "unknown", "null"],
)
def test_a_source_that_cannot_be_read_is_refused(source: bytes, refusal: str) -> None:
    with pytest.raises(RepackageError) as caught:
        hooked(source)
    version = ".".join(map(str, sys.version_info[:2]))
    assert str(caught.value) == f"{refusal.format(version)}"


def test_an_encoding_that_is_none_of_text_is_refused() -> None:
    with pytest.raises(RepackageError, match="in no encoding that Python reads: 'rot13' is not a text encoding"):
        hooked(b"# coding: rot13\n")


@pytest.mark.parametrize("source", ["'x'; import os\n", "'x'; \\\nimport os\n", "'x' \\\n\nimport os\n"])
def test_a_first_statement_that_goes_on_is_refused(source: str) -> None:
    with pytest.raises(
        RepackageError, match=r"its first statement goes on after line [12]; expected a line of its own"
    ):
        with_import(source)
