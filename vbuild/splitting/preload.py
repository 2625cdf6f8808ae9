"""A generated module that loads libraries of other wheels where no RPATH leads to them, and how a package runs it.

    site-packages/demo/_C.abi3.so               DT_RPATH $ORIGIN/../nvidia/cufft/lib: found there, nothing to do
    ~/.local/…/nvidia/cufft/lib/libcufft.so.11  the same environment, another folder: found by the module alone

Wheels of one environment are in different folders in the user site, with --target or one folder per wheel (PEX, Bazel),
beside editable installs, and on Fedora, where wheels that say Root-Is-Purelib, as NVIDIA's do, are not in lib64.

The module looks whether each library is where the RPATHs lead, by the same path that the loader would take, unresolved:
``..`` behind a linked folder is the parent of what it links to for both. If all are there, that was all. Otherwise it
loads all of them, first what others need, because a library found elsewhere has its own RPATHs that may lead nowhere.
What else one needs the loader names when it fails: libcusparse, in a folder of its own, does not find libnvJitLink.
Each is looked for among what is loaded, at its place, in the files of the distribution that brings it, and by
cuda-pathfinder where that is installed: it knows conda and toolkits as well. But not first, because it takes the newest
CUDA that it finds, and libcufft.so.12 does not serve what needs libcufft.so.11; nor alone, because of the folders on
sys.path it knows only site-packages.

RTLD_LOCAL is enough. glibc takes for a NEEDED whatever is loaded under that SONAME, in whichever scope, and puts it
into the scope of who needs it; RTLD_GLOBAL would show its symbols to all others. A library without SONAME cannot be
served so, and neither can musl, which knows what was opened by a path by nothing else.

What is found nowhere is left to the loader, without a word: it may never be needed, LD_LIBRARY_PATH may lead to it, and
if not, "libcufft.so.11: cannot open shared object file" says what is missing at the import that needs it. What is found
and cannot be loaded is warned of: the loader would say later that it is not there, and never why.
"""

import ast
import io
import json
import re
import sys
import tokenize
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from vbuild.errors import RepackageError

MODULE = "_preload_libraries"

_INIT = "__init__"
# Python imports a package's __init__ from an extension module before one from a source
_COMPILED_INIT = re.compile(r"__init__(\.[\w-]+)*\.so")
_NAMESPACE = re.compile(r"\b(extend_path|declare_namespace)\s*\(")
_LINE = re.compile(r"[^\r\n]*(\r\n|\r|\n|$)")
_BOM = "\ufeff"

_SHIM = '''\
# Made by vbuild split.
"""Load libraries of other packages first, where they are not at the places that this package's RPATHs lead to."""

from __future__ import annotations

import os

# path from here, the distribution that brings it, its name in cuda-pathfinder; first what others need
_LIBRARIES: tuple[tuple[str, str, str], ...] = (
{libraries})
# the same of libraries that those may turn out to need
_OTHERS: tuple[tuple[str, str, str], ...] = ({others})


def _load(
    path: str,
    distribution: str,
    pathfinder: str,
    others: dict[str, tuple[str, str, str]],
) -> None:
    """Load one library, unless it is loaded; the loader itself names what is nowhere to be found."""
    import ctypes
    from contextlib import suppress
    from importlib import import_module, metadata
    from warnings import warn

    name = os.path.basename(path)
    with suppress(OSError):
        ctypes.CDLL(name, os.RTLD_NOLOAD)
        return
    places = [path] if os.path.exists(path) else []
    if not places:
        with suppress(Exception):
            files = metadata.files(distribution) or ()
            places = [str(file.locate()) for file in files if file.name == name]
    while places:
        try:
            ctypes.CDLL(places[0])
        except OSError as error:
            needed = others.pop(str(error).partition(":")[0], None)
            if needed:
                _load(*needed, others)
                continue
            warn(f"{{name}} of {{distribution}}: {{error}}", RuntimeWarning, stacklevel=2)
        return
    if pathfinder:
        with suppress(Exception):
            import_module("cuda.pathfinder").load_nvidia_dynamic_lib(pathfinder)


def _preload() -> None:
    folder = os.path.dirname(__file__)
    known = (*_LIBRARIES, *_OTHERS)
    rows = [(os.path.join(folder, row[0]), row[1], row[2]) for row in known]
    if not all(os.path.exists(row[0]) for row in rows):
        others = {{os.path.basename(row[0]): row for row in rows[len(_LIBRARIES) :]}}
        for row in rows[: len(_LIBRARIES)]:
            _load(*row, others)


_preload()
'''


class Preloaded(Struct, frozen=True):
    """A library of another wheel: its installed path, which ends in its SONAME, and the distribution that brings it.

    *pathfinder* is its name in cuda-pathfinder, if it has one.
    """

    path: str
    distribution: str
    pathfinder: str | None = None


def shim(package: str, libraries: Sequence[Preloaded], *, others: Iterable[Preloaded] = ()) -> str:
    """The module that loads *libraries* for the *package* whose folder that is, such as ``demo/sub``.

    They come in the order given: first what others need. Of the *others* it loads what *libraries* turn out to need
    and not to find: what official libraries need of each other is in no metadata.
    """
    up = "../" * len(package.split("/"))
    first, more = _rows(up, libraries), _rows(up, sorted(others, key=lambda other: other.path))
    more = [row for row in more if row not in first]
    return _SHIM.format(libraries="".join(first), others="".join(["\n" * bool(more), *more]))


def _rows(up: str, libraries: Iterable[Preloaded]) -> list[str]:
    return list(dict.fromkeys(_row((up + one.path, one.distribution, one.pathfinder or "")) for one in libraries))


def _row(values: Iterable[str]) -> str:
    lines = "".join(f"        {_quoted(value)},\n" for value in values)
    return f"    (\n{lines}    ),\n"


def _quoted(text: str) -> str:
    """*text* as formatters have it: in double quotes, unless that takes more backslashes."""
    return repr(text) if '"' in text else json.dumps(text, ensure_ascii=False)


def in_order(needs: Mapping[str, Collection[str]]) -> tuple[str, ...]:
    """The keys of *needs*, each behind what it needs of the others; in a circle, somewhere is the first."""
    found: dict[str, None] = {}
    for start in sorted(needs):
        stack = [start]
        seen = {start}
        while stack:
            missing = [name for name in sorted(needs[stack[-1]]) if name in needs and name not in seen | found.keys()]
            if missing:
                seen.add(missing[0])
                stack.append(missing[0])
            else:
                found[stack.pop()] = None
    return tuple(found)


def hooks(
    consumers: Iterable[str],
    files: Collection[str],
    *,
    namespaces: Collection[str] = frozenset(),
    sources: Mapping[str, str] | None = None,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The packages, as folders, that have to run a preload module for *consumers*, and the consumers none can serve.

    *files* are all installed paths of the wheel, *namespaces* the packages among them that other wheels have as well.
    Private modules beside packages are served by those that name them in their *sources*, which are texts by path.
    """
    packages: set[str] = set()
    unserved = []
    for consumer in consumers:
        users = [consumer, *(path for path, text in (sources or {}).items() if _uses(text, consumer))]
        found = {package for path in users if (package := package_of(path, files, namespaces=namespaces))}
        packages |= found
        if not found:
            unserved.append(consumer)
    return tuple(sorted(packages)), tuple(sorted(unserved))


def _uses(source: str, consumer: str) -> bool:
    """Whether *source* has the name of the module *consumer*, one with an underscore: nobody else imports it."""
    name = consumer.partition(".")[0]
    return name.startswith("_") and "/" not in name and bool(re.search(rf"\b{re.escape(name)}\b", source))


def package_of(consumer: str, files: Collection[str], *, namespaces: Collection[str] = frozenset()) -> str | None:
    """The folder of the outermost package around the file *consumer* whose ``__init__.py`` can be added to, or None.

    The outermost, because an inner package need not be imported for its libraries to be opened. There is none around a
    module that lies in site-packages itself, in namespace packages alone, or where ``__init__`` is compiled.
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
    """Whether *source* is the ``__init__.py`` of a namespace package of the old kinds, which every wheel of it has."""
    return bool(_NAMESPACE.search(source))


def hooked(data: bytes, module: str = MODULE, *, option: str = "--preload") -> bytes:
    """The ``__init__.py`` *data* in whatever encoding it says, importing *module* as `with_import` has it.

    *option* is what a refusal says to leave out.
    """
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        source = data.decode(encoding)
        same = source.encode(encoding)
    except (SyntaxError, UnicodeError, LookupError) as error:  # the last of a codec that is not for text
        raise RepackageError(f"in no encoding that Python reads: {error}; leave {option} out") from error
    if same != data:
        raise RepackageError(f"in {encoding}, which can write it in several ways; leave {option} out")
    return with_import(source, module, option=option).encode(encoding)


def with_import(source: str, module: str = MODULE, *, option: str = "--preload") -> str:
    """The ``__init__.py`` *source* with an import of the package's own *module* before anything else it does.

    Behind docstring, comments and ``__future__`` imports, with the line ends of the source; as it is, where the import
    is there. `RepackageError` where this Python cannot parse it.
    """
    text = source.removeprefix(_BOM)
    body = _parsed(text, option).body
    if any(_is_import(statement, module) for statement in body):
        return source
    first = next((number for number, found in enumerate(body) if not _is_prelude(found, number)), len(body))
    added = _added(text, body[:first], body[first:], f"from . import {module}")
    return _BOM * (text != source) + added


def _added(source: str, prelude: Sequence[ast.stmt], rest: Sequence[ast.stmt], statement: str) -> str:
    """*source* with *statement* between its *prelude* and the *rest*."""
    lines = [match[0] for match in _LINE.finditer(source)]
    newline = next((end for end in ("\r\n", "\r", "\n") if lines[0].endswith(end)), "\n")
    place = _end(lines, prelude[-1]) if prelude else _start(rest[0]) if rest else len(lines)
    if rest and rest[0].lineno <= place:
        number, offset = rest[0].lineno - 1, rest[0].col_offset  # in bytes of UTF-8
        line = lines[number].encode()
        shared = b"%s%s; %s" % (line[:offset], statement.encode(), line[offset:])
        return "".join([*lines[:number], shared.decode(), *lines[number + 1 :]])
    before = "".join(lines[:place])
    ended = newline if before and not before.endswith(("\r", "\n")) else ""
    gap = newline if prelude and isinstance(prelude[-1], ast.Expr) else ""
    return f"{before}{ended}{gap}{statement}  # noqa: F401{newline}{''.join(lines[place:])}"


def _end(lines: Sequence[str], statement: ast.stmt) -> int:
    """How many of *lines* there are up to the end of the one with *statement*, those joined by backslashes with it."""
    plain = (line.rstrip("\r\n") + "\n" for line in lines)
    tokens = tokenize.generate_tokens(lambda: next(plain, ""))
    rows = (token.start[0] for token in tokens if token.type == tokenize.NEWLINE)
    last = statement.end_lineno or 0
    return next((row for row in rows if row >= last), last)


def _parsed(source: str, option: str) -> ast.Module:
    try:
        if source.startswith(_BOM):
            raise SyntaxError("a second byte order mark")  # noqa: TRY301 - as the compiler has it
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that a later Python will refuse
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        version = ".".join(map(str, sys.version_info[:2]))
        raise RepackageError(f"cannot be parsed as Python {version}: {error}; leave {option} out") from error


def _is_import(statement: ast.stmt, module: str) -> bool:
    match statement:
        case ast.ImportFrom(module=None, level=1, names=names):
            return any(alias.name == module for alias in names)
        case _:
            return False


def _is_prelude(statement: ast.stmt, number: int) -> bool:
    """Whether *statement*, that of *number* in its module, is the docstring or has to be in front of all others."""
    match statement:
        case ast.Expr(value=ast.Constant(value=str())):
            return number == 0
        case ast.ImportFrom(module="__future__", level=0):
            return True
        case _:
            return False


def _start(statement: ast.stmt) -> int:
    """How many lines are before *statement* and its decorators."""
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            starts = [decorator.lineno for decorator in statement.decorator_list]
        case _:
            starts = []
    return min([statement.lineno, *starts]) - 1
