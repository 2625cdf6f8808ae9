"""Generated modules that load libraries of other wheels if no RPATH leads to them, and the packages that run them.

    site-packages/demo/_C.abi3.so               DT_RPATH $ORIGIN/../nvidia/cufft/lib: found there, nothing to do
    ~/.local/…/nvidia/cufft/lib/libcufft.so.11  the same environment, another folder: only the module finds it

The wheels of one environment are in different folders in the user site, with --target, in PEX and Bazel, with editable
installs, and on Fedora, where wheels with Root-Is-Purelib, such as NVIDIA's, are not in lib64.

If a library of some wheel is not where the RPATHs lead, the module loads all of them, dependencies first. A library
that is needed and not listed is named by the loader's error: libcusparse alone does not find libnvJitLink. The module
looks among the loaded libraries, at the expected place, in the files of the distribution, and then asks
cuda-pathfinder, which also knows conda and toolkits, but takes the newest CUDA that it finds.

For a NEEDED name, glibc takes any loaded library with that SONAME; musl does not, nor helps it a library without one.

A library that is nowhere may be in a folder of LD_LIBRARY_PATH. So the module then opens a file that needs what left
the wheel; if the loader misses a library, an ImportError says what to install.
"""

import ast
import io
import json
import re
import sys
import tokenize
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from vbuild.elf.catalogue import by_soname
from vbuild.errors import RepackageError
from vbuild.splitting.bundle import Bundle
from vbuild.splitting.companion import Companion
from vbuild.splitting.decisions import second_name
from vbuild.splitting.official import OfficialWheel
from vbuild.splitting.patches import FilePatch, PatchPlan
from vbuild.splitting.pools import Pool
from vbuild.wheel.paths import installed_path

MODULE = "_preload_libraries"

_INIT = "__init__"
# Python imports a package's __init__ from an extension module before one from a source
_COMPILED_INIT = re.compile(r"__init__(\.[\w-]+)*\.so")
# in the __init__.py of an old-style namespace package, which all of its wheels contain
_NAMESPACE = re.compile(r"\b(extend_path|declare_namespace)\s*\(")
_LINE = re.compile(r"[^\r\n]*(\r\n|\r|\n|$)")
_BOM = "\ufeff"
_SOURCE = '''\
# Made by vbuild split.
"""Load libraries of other packages first, where they are not at the places that this package's RPATHs lead to."""

import os

# a path of each wheel in each folder: all of its files are there, or none
_EXPECTED = (
{expected})
# path from here, what brings it, its name in cuda-pathfinder; first what others need
_LIBRARIES: "tuple[tuple[str, str, str], ...]" = (
{libraries})
# the same of libraries that those may turn out to need
_OTHERS: "tuple[tuple[str, str, str], ...]" = ({others})
# path of a file that needs what left the package
_USER = {user}


def _load(
    path: str,
    requirement: str,
    pathfinder: str,
    others: "dict[str, tuple[str, str, str]]",
) -> bool:
    """Load one library, unless it is loaded; return False if it is nowhere."""
    import ctypes
    from contextlib import suppress
    from importlib import import_module, metadata
    from warnings import warn

    name = os.path.basename(path)
    with suppress(OSError):
        ctypes.CDLL(name, os.RTLD_NOLOAD)
        return True
    places = [path] if os.path.exists(path) else []
    distribution = requirement.partition("==")[0]
    for found in () if places else metadata.distributions(name=distribution):
        with suppress(Exception):
            files = [file for file in found.files or () if file.name == name]
            places += filter(os.path.exists, (str(one.locate()) for one in files))
    while places:
        try:
            ctypes.CDLL(places[0])
        except OSError as error:
            needed = others.pop(str(error).partition(":")[0], None)
            if needed:
                _load(*needed, others)
                continue
            warn(f"{{name}} of {{distribution}}: {{error}}", RuntimeWarning, stacklevel=2)
        return True
    if pathfinder:
        with suppress(Exception):
            import_module("cuda.pathfinder").load_nvidia_dynamic_lib(pathfinder)
            return True
    return False


def _refuse(missing: "dict[str, str]", user: str) -> None:
    """Raise ImportError if the loader misses one of the libraries for the file *user*, too."""
    import ctypes
    from contextlib import suppress
    from importlib import metadata

    try:
        ctypes.CDLL(user)
    except OSError as error:
        for name, requirement in missing.items():
            if name in str(error):
                state = f"{{requirement.partition('==')[0]}} is not installed"
                with suppress(Exception):
                    version = metadata.version(requirement.partition("==")[0])
                    state = f"{{version}} is installed"
                message = f"{{name}} is missing: {{requirement}} has it, and {{state}}"
                raise ImportError(message) from None


def _preload() -> None:
    folder = os.path.dirname(__file__)
    if all(os.path.exists(f"{{folder}}/{{path}}") for path in _EXPECTED):
        return
    known = (*_LIBRARIES, *_OTHERS)
    rows = [(f"{{folder}}/{{row[0]}}", row[1], row[2]) for row in known]
    others = {{os.path.basename(row[0]): row for row in rows[len(_LIBRARIES) :]}}
    missing: dict[str, str] = {{}}
    for row in rows[: len(_LIBRARIES)]:
        if not _load(*row, others):
            missing[os.path.basename(row[0])] = row[1]
    if missing and _USER:
        _refuse(missing, f"{{folder}}/{{_USER}}")


_preload()
'''


def package_of(consumer: str, packages: Collection[str]) -> str | None:
    """The outermost of the folders *packages* around the file *consumer*, or None.

    That one is always imported before a library in it is opened.
    """
    parts = consumer.split("/")[:-1]
    for depth in range(1, len(parts) + 1):
        folder = "/".join(parts[:depth])
        if not parts[depth - 1].isidentifier():
            return None
        if folder in packages:
            return folder
    return None


def hooked(data: bytes) -> bytes:
    """As `with_import`, for bytes in their own encoding."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        source = data.decode(encoding)
        same = source.encode(encoding)
    except (SyntaxError, UnicodeError, LookupError) as error:  # LookupError: a codec that is not for text
        raise RepackageError(f"in no encoding that Python reads: {error}") from error
    if same != data:
        raise RepackageError(f"in {encoding}, which can write it in several ways")
    return with_import(source).encode(encoding)


def python_text(text: str) -> str:
    """*text* as Python has it, in double quotes unless that takes more backslashes."""
    return repr(text) if '"' in text else json.dumps(text, ensure_ascii=False)


def with_import(source: str) -> str:
    """The ``__init__.py`` *source* with an import of the package's module before all other statements.

    It follows the docstring, comments and ``__future__`` imports, with the line ends of the source. A source that has
    it is unchanged. `RepackageError` if this Python cannot parse the source, or no line of its own is free for it.
    """
    text = source.removeprefix(_BOM)
    body = _parsed(text).body
    relative = (
        statement
        for statement in body
        if isinstance(statement, ast.ImportFrom) and statement.module is None and statement.level == 1
    )
    if any(alias.name == MODULE for statement in relative for alias in statement.names):
        return source
    first = next((number for number, statement in enumerate(body) if not _is_prelude(statement, number)), len(body))
    added = _added(text, body[:first], body[first:], f"from . import {MODULE}")
    return _BOM * (text != source) + added


def _added(source: str, prelude: Sequence[ast.stmt], rest: Sequence[ast.stmt], statement: str) -> str:
    lines = [match[0] for match in _LINE.finditer(source)]
    newline = next((end for end in ("\r\n", "\r", "\n") if lines[0].endswith(end)), "\n")
    if prelude:
        line_number = prelude[-1].end_lineno or 0
    elif rest:  # before decorators
        decorators = getattr(rest[0], "decorator_list", ())
        line_number = min([rest[0].lineno, *(decorator.lineno for decorator in decorators)]) - 1
    else:
        line_number = len(lines)
    before = "".join(lines[:line_number])
    if (rest and rest[0].lineno <= line_number) or before.rstrip().endswith("\\"):
        raise RepackageError(f"its first statement goes on after line {line_number}; expected a line of its own")
    ended = newline if before and not before.endswith(("\r", "\n")) else ""
    gap = newline if prelude and isinstance(prelude[-1], ast.Expr) else ""
    return f"{before}{ended}{gap}{statement}  # noqa: F401{newline}{''.join(lines[line_number:])}"


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
    match statement:
        case ast.Expr(value=ast.Constant(value=str())):
            return number == 0
        case ast.ImportFrom(module="__future__", level=0):
            return True
        case _:
            return False


class PreloadedLibrary(Struct, frozen=True):
    """A library of another wheel; *path* ends in its SONAME."""

    path: str
    requirement: str
    pathfinder: str | None = None


def preload_source(
    package: str,
    libraries: Sequence[PreloadedLibrary],
    *,
    others: Iterable[PreloadedLibrary] = (),
    user: str | None = None,
) -> str:
    """The source of a module that loads *libraries*, dependencies first, for the package in the folder *package*.

    If one of them is nowhere, and the file at the installed path *user* cannot be opened, the module says so. It loads
    one of *others* if a library turns out to need it: no metadata says which official libraries need each other.
    """
    up = "../" * len(package.split("/"))
    rest = sorted(others, key=lambda other: other.path)
    first, more = _rows(up, libraries), _rows(up, rest)
    places = {(library.path.rpartition("/")[0], library.requirement): library.path for library in (*libraries, *rest)}
    more = [row for row in more if row not in first]
    return _SOURCE.format(
        expected="".join(f"    {python_text(up + path)},\n" for path in places.values()),
        libraries="".join(first),
        others="".join(["\n" * bool(more), *more]),
        user=python_text(up + user if user else ""),
    )


def _rows(up: str, libraries: Iterable[PreloadedLibrary]) -> list[str]:
    rows: dict[str, None] = {}
    for library in libraries:
        values = (up + library.path, library.requirement, library.pathfinder or "")
        rows["    (\n" + "".join(f"        {python_text(text)},\n" for text in values) + "    ),\n"] = None
    return list(rows)


def in_order(needs: Mapping[str, Collection[str]]) -> tuple[str, ...]:
    """The keys of *needs*, each after those that it needs; a circle begins anywhere."""
    ordered: dict[str, None] = {}
    for start in sorted(needs):
        stack = [start]
        seen = {start}
        while stack:
            missing = [name for name in sorted(needs[stack[-1]]) if name in needs and name not in seen | ordered.keys()]
            if missing:
                seen.add(missing[0])
                stack.append(missing[0])
            else:
                ordered[stack.pop()] = None
    return tuple(ordered)


def hooks(
    consumers: Iterable[str],
    files: Collection[str],
    *,
    namespaces: Collection[str] = frozenset(),
    sources: Mapping[str, str] | None = None,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The folders of packages that have to run a preload module for *consumers*, and consumers without one.

    A private module outside packages is served by a package that names it in its *sources*, texts by path.
    """
    folders = {path.removesuffix(f"/{_INIT}.py") for path in files if path.endswith(f"/{_INIT}.py")}
    folders -= {path.rpartition("/")[0] for path in files if _COMPILED_INIT.fullmatch(path.rpartition("/")[2])}
    folders.difference_update(namespaces)
    packages: set[str] = set()
    unserved = []
    for consumer in consumers:
        name = consumer.partition(".")[0]
        users = [consumer]
        if name.startswith("_") and "/" not in name:
            word = re.compile(rf"\b{re.escape(name)}\b")
            users += (path for path, text in (sources or {}).items() if word.search(text))
        own = {package for path in users if (package := package_of(path, folders))}
        packages |= own
        if not own:
            unserved.append(consumer)
    return tuple(sorted(packages)), tuple(sorted(unserved))


class PreloadFiles(Struct, frozen=True):
    """*files* by member path; a warning for each package or consumer without a module."""

    files: dict[str, bytes]
    warnings: tuple[str, ...] = ()


def preload_files(
    bundle: Bundle,
    plan: PatchPlan,
    companions: Mapping[Pool, Companion],
    *,
    closure: Callable[[OfficialWheel], Iterable[OfficialWheel]],
) -> PreloadFiles:
    patches = [file.patch for file in plan.staying[bundle]]
    libraries = [*_moved(bundle, plan, companions), *_of_other_packages(patches)]
    roots = [patch.binary.path for patch in patches if patch.relink.rpath is not None and not patch.binary.is_bundled]
    stubs = {path for path, decision in plan.decisions.by_bundle[bundle].items() if decision.leaves_stub}
    roots += [path for path in stubs if not bundle.binaries[path].is_bundled]
    if not (libraries and roots):
        return PreloadFiles({})
    members = {path: member for member in bundle.wheel.members if (path := installed_path(member.path))}
    inits = {path: bundle.wheel.read(member) for path, member in members.items() if path.endswith("/__init__.py")}
    sources = {path: data.decode(errors="replace") for path, data in inits.items()}
    namespaces = {path.rpartition("/")[0] for path, text in sources.items() if _NAMESPACE.search(text)}
    packages, unserved = hooks(roots, members.keys(), namespaces=namespaces, sources=sources)
    others = [*_possible_dependencies(patches, closure)]
    moved = {path for path in bundle.binaries if plan.decisions.of(bundle, path).is_gone}
    needs = {path: {edge.provider for edge in bundle.graph.needs(path)} for path in roots}
    user = next((path for path in sorted(roots) if path in stubs or moved & needs[path]), None)
    if packages:
        # what opens a stub belongs to the packages, wherever the stub is
        unserved = tuple(path for path in unserved if path not in stubs)
    warnings = [f"{path}: in no package whose __init__.py could preload its libraries" for path in unserved]
    files: dict[str, bytes] = {}
    for package in packages:
        init = members[f"{package}/__init__.py"].path
        try:
            changed = hooked(inits[f"{package}/__init__.py"])
        except RepackageError as error:
            warnings.append(f"{init}: does not preload the libraries of its package: {error}")
            continue
        module = preload_source(package, libraries, others=others, user=user).encode()
        files |= {init: changed, f"{init.rpartition('/')[0]}/{MODULE}.py": module}
    return PreloadFiles(files, tuple(warnings))


def _possible_dependencies(
    patches: Iterable[FilePatch], closure: Callable[[OfficialWheel], Iterable[OfficialWheel]]
) -> Iterator[PreloadedLibrary]:
    """All libraries of the official wheels that any file needs: they need one another."""
    for patch in patches:
        wheels = (*patch.official, *(package.wheel for package in patch.packages if package.wheel))
        for official in (other for wheel in wheels for other in closure(wheel)):
            for library in official.libraries:
                yield PreloadedLibrary(library.path, official.project, _pathfinder(library.soname))


def _moved(bundle: Bundle, plan: PatchPlan, companions: Mapping[Pool, Companion]) -> Iterator[PreloadedLibrary]:
    decisions = {path: decision for path, decision in plan.decisions.by_bundle[bundle].items() if decision.is_gone}
    needs = {path: {edge.provider for edge in bundle.graph.needs(path) if edge.provider} for path in decisions}
    for path in in_order(needs):
        decision = decisions[path]
        if decision.provenance:
            library = decision.provenance.library
            yield PreloadedLibrary(library.path, decision.provenance.wheel.project, _pathfinder(library.soname))
        elif decision.pool:
            folder, requirement = decision.pool.folder, companions[decision.pool].requirement
            binary = bundle.binaries[path]
            yield PreloadedLibrary(f"{folder}/{binary.name}", requirement)
            if decision.leaves_stub:
                yield PreloadedLibrary(f"{folder}/{second_name(binary)}", requirement)


def _of_other_packages(patches: Iterable[FilePatch]) -> Iterable[PreloadedLibrary]:
    libraries: dict[PreloadedLibrary, None] = {}
    for patch in patches:
        for package in patch.packages:
            for library in package.wheel.libraries if package.wheel else ():
                if library.soname in patch.binary.loading.outline.needed:
                    libraries[PreloadedLibrary(library.path, package.project, _pathfinder(library.soname))] = None
    return libraries


def _pathfinder(soname: str) -> str | None:
    return next((entry.pathfinder for entry in by_soname(soname) if entry.pathfinder), None)
