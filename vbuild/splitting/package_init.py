"""The ``__init__.py`` of a package: which one a file's package has, and how to add an import to its beginning."""

import ast
import io
import json
import re
import sys
import tokenize
import warnings
from collections.abc import Collection, Sequence

from vbuild.errors import RepackageError

MODULE = "_preload_libraries"

_INIT = "__init__"
# Python imports a package's __init__ from an extension module before one from a source
_COMPILED_INIT = re.compile(r"__init__(\.[\w-]+)*\.so")
_NAMESPACE = re.compile(r"\b(extend_path|declare_namespace)\s*\(")
_LINE = re.compile(r"[^\r\n]*(\r\n|\r|\n|$)")
_BOM = "\ufeff"


def package_of(consumer: str, files: Collection[str], *, namespaces: Collection[str] = frozenset()) -> str | None:
    """Return the folder of the outermost package around the file *consumer* whose ``__init__.py`` can be changed.

    That one is always imported before a library in it is opened. Returns None for a module directly in site-packages or
    only in namespace packages, and if ``__init__`` is compiled.
    """
    parts = consumer.split("/")[:-1]
    compiled = {path.rpartition("/")[0] for path in files if _COMPILED_INIT.fullmatch(path.rpartition("/")[2])}
    for depth in range(1, len(parts) + 1):
        folder = "/".join(parts[:depth])
        if not parts[depth - 1].isidentifier():
            return None
        if f"{folder}/{_INIT}.py" in files and folder not in compiled and folder not in namespaces:
            return folder
    return None


def is_namespace(source: str) -> bool:
    """Whether *source* is the ``__init__.py`` of an old-style namespace package, which all of its wheels contain."""
    return bool(_NAMESPACE.search(source))


def hooked(data: bytes, module: str = MODULE) -> bytes:
    """Return the ``__init__.py`` *data*, in its own encoding, with an import of *module*, as in `with_import`."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        source = data.decode(encoding)
        same = source.encode(encoding)
    except (SyntaxError, UnicodeError, LookupError) as error:  # LookupError: a codec that is not for text
        raise RepackageError(f"in no encoding that Python reads: {error}") from error
    if same != data:
        raise RepackageError(f"in {encoding}, which can write it in several ways")
    return with_import(source, module).encode(encoding)


def python_text(text: str) -> str:
    """Return *text* as Python has it, in double quotes unless that takes more backslashes."""
    return repr(text) if '"' in text else json.dumps(text, ensure_ascii=False)


def with_import(source: str, module: str = MODULE) -> str:
    """Return the ``__init__.py`` *source* with an import of the package's own *module* before all other statements.

    The import follows the docstring, comments and ``__future__`` imports, with the line ends of the source. A source
    that has it is unchanged. Raises `RepackageError` if this Python cannot parse the source.
    """
    text = source.removeprefix(_BOM)
    body = _parsed(text).body
    relative = (
        statement
        for statement in body
        if isinstance(statement, ast.ImportFrom) and statement.module is None and statement.level == 1
    )
    if any(alias.name == module for statement in relative for alias in statement.names):
        return source
    first = next((number for number, statement in enumerate(body) if not _is_prelude(statement, number)), len(body))
    added = _added(text, body[:first], body[first:], f"from . import {module}")
    return _BOM * (text != source) + added


def _added(source: str, prelude: Sequence[ast.stmt], rest: Sequence[ast.stmt], statement: str) -> str:
    lines = [match[0] for match in _LINE.finditer(source)]
    newline = next((end for end in ("\r\n", "\r", "\n") if lines[0].endswith(end)), "\n")
    if prelude:
        line_number = _end(lines, prelude[-1])
    elif rest:  # before decorators
        decorators = getattr(rest[0], "decorator_list", ())
        line_number = min([rest[0].lineno, *(decorator.lineno for decorator in decorators)]) - 1
    else:
        line_number = len(lines)
    if rest and rest[0].lineno <= line_number:
        number, offset = rest[0].lineno - 1, rest[0].col_offset  # in bytes of UTF-8
        line = lines[number].encode()
        shared = b"%s%s; %s" % (line[:offset], statement.encode(), line[offset:])
        return "".join([*lines[:number], shared.decode(), *lines[number + 1 :]])
    before = "".join(lines[:line_number])
    ended = newline if before and not before.endswith(("\r", "\n")) else ""
    gap = newline if prelude and isinstance(prelude[-1], ast.Expr) else ""
    return f"{before}{ended}{gap}{statement}  # noqa: F401{newline}{''.join(lines[line_number:])}"


def _end(lines: Sequence[str], statement: ast.stmt) -> int:
    """Return the number of *lines* up to the end of *statement*, with lines that backslashes join to it."""
    plain = (line.rstrip("\r\n") + "\n" for line in lines)
    tokens = tokenize.generate_tokens(lambda: next(plain, ""))
    rows = (token.start[0] for token in tokens if token.type == tokenize.NEWLINE)
    last = statement.end_lineno or 0
    return next((row for row in rows if row >= last), last)


def _parsed(source: str) -> ast.Module:
    try:
        if source.startswith(_BOM):
            raise SyntaxError("a second byte order mark")  # noqa: TRY301 - as the compiler has it
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes that a later Python will refuse
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        version = ".".join(map(str, sys.version_info[:2]))
        raise RepackageError(f"cannot be parsed as Python {version}: {error}") from error


def _is_prelude(statement: ast.stmt, number: int) -> bool:
    """Whether *statement*, with index *number*, is the docstring or an import that must precede all others."""
    match statement:
        case ast.Expr(value=ast.Constant(value=str())):
            return number == 0
        case ast.ImportFrom(module="__future__", level=0):
            return True
        case _:
            return False
