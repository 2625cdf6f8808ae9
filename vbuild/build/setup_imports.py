"""What setup.py imports, and the projects of a package index that are meant by it.

    import numpy       numpy       known to be called so
    import yaml        pyyaml      known to be called otherwise
    import demo_core   demo-core   a requirement of the project, which only forgot that its build has it, too
    import helpers     nothing     anyone can register a free name, and the build would run their code

Files are searched, not run.
"""

import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from configparser import ConfigParser, Error
from pathlib import Path

from msgspec import Struct
from packaging.utils import canonicalize_name

from vbuild.build.own_library import text_of
from vbuild.config.requirements import read_requirement
from vbuild.config.table import Table
from vbuild.elf.catalogue import frameworks
from vbuild.errors import RecipeError

# modules that are not called as their project is
_PROJECTS = {
    "cpuinfo": "py-cpuinfo",
    "git": "gitpython",
    "mesonpy": "meson-python",
    "mypyc": "mypy",
    "pil": "pillow",
    "skbuild": "scikit-build",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
# those that are, of what builds take
_SAME_NAME = frozenset(
    {"cffi", "cmake", "cython", "distro", "extension-helpers", "h5py", "hatchling", "jax", "jaxlib", "jinja2"}
    | {"mako", "maturin", "mpi4py", "mypy", "nanobind", "ninja", "numba", "numpy", "packaging", "pandas", "pip"}
    | {"pkgconfig", "psutil", "pyarrow", "pybind11", "pythran", "requests", "scikit-build-core", "scipy"}
    | {"semantic-version", "setuptools-rust", "setuptools-scm", "six", "toml", "tomli", "tqdm", "triton"}
    | {"typing-extensions", "versioneer", "wheel"}
)
_EXTENSIONS = frozenset({"torch.utils.cpp_extension"})
_BEFORE_REMOVAL = "setuptools<74"  # of distutils.msvccompiler
_OF_SETUPTOOLS = frozenset({"setuptools", "pkg_resources", "distutils", "_distutils_hack"})
PLACES = ("src", "python", "lib")
"""The folders in which a project has its packages, if not at its top."""

_LISTS = frozenset({"install_requires", "setup_requires", "tests_require", "extras_require"})  # of setup()
_ELSEWHERE = re.compile(r"^\s*(?:-i\b|-f\b|--(?:extra-)?index-url|--find-links|--no-index)", re.MULTILINE)


class SetupImports(Struct, frozen=True):
    """The projects that setup.py imports and the build requirements lack, by how it does.

    *required* are those that it cannot do without, *tried* what it imports if it is there, and *decisive* what of that
    chooses how it is built. *unknown* is what it cannot do without, too, and of which nothing says whose it is.
    """

    required: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    tried: tuple[str, ...] = ()
    decisive: tuple[str, ...] = ()


def setup_imports(project: Path, requires: Iterable[str]) -> SetupImports:
    """What setup.py in the folder *project* imports, whose build requirements are the projects *requires*."""
    declared = frozenset(_declared(project))
    found = tuple(_imported(project, requires))
    required = tuple(dict.fromkeys(filter(None, (_meant(each, declared) for each in found))))
    have = {*requires, *required, *found}
    tried = [each for each in dict.fromkeys(_imported(project, (), _is_tried)) if each not in have]
    decisive = (_meant(each, declared) for each in _imported(project, (), _decides))
    return SetupImports(
        required,
        tuple(each for each in found if not _meant(each, declared)),
        tuple(tried),
        tuple(each for each in dict.fromkeys(decisive) if each and each not in have),
    )


def project_of(module: str) -> str:
    """The project that has *module*: the one that is known to, or the one of its name."""
    return _PROJECTS.get(module.lower(), canonicalize_name(module))


def is_known(project: str) -> bool:
    """Whether *project* is one of those that many builds take, so that its name is not free."""
    return project in _SAME_NAME or project in _PROJECTS.values() or project in frameworks()


def _meant(project: str, declared: Iterable[str]) -> str:
    """The project that is meant by *project*, a guess by the name of a module; "" if nothing says so.

    That is one that is *declared* under this name, or the only one that is named after it.
    """
    if is_known(project) or project == _BEFORE_REMOVAL or project in declared:
        return project
    named = [each for each in declared if _is_after(project, each)]
    return named[0] if len(named) == 1 else ""


def _imported(
    project: Path, requires: Iterable[str], is_block: Callable[[ast.stmt], bool] | None = None
) -> Iterator[str]:
    """The projects that setup.py imports at once and whatever happens, and that *requires* lacks, each once.

    With *is_block*, those that it imports in such blocks at its top. Of frameworks also what a function or a
    handler of errors imports to compile extensions: some projects handle a missing torch themselves, and say how to
    install it.
    """
    try:
        tree = ast.parse(text_of(project / "setup.py"))
    except (SyntaxError, ValueError):  # of Python 2, for one: the build says so
        return
    seen = {*_OF_SETUPTOOLS, *sys.stdlib_module_names}
    if any(map(_removed, tree.body)):
        yield _BEFORE_REMOVAL
    extends = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module in _EXTENSIONS)
    inside = (each for node in tree.body if is_block and is_block(node) for each in ast.walk(node))
    for node in (*tree.body, *extends, *inside):
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        for name in (each.partition(".")[0] for each in names):
            places = [project / place / name for place in ("", *PLACES)]
            is_own = any(place.is_dir() or place.with_name(f"{name}.py").is_file() for place in places)
            needed = project_of(name)
            if name not in seen and not is_own and not _provided(needed, requires):
                yield needed
            seen.add(name)


def _is_tried(node: ast.stmt) -> bool:
    return isinstance(node, ast.Try)


def _decides(node: ast.stmt) -> bool:
    """Whether *node* tries something, and calls another ``setup`` where that fails."""
    if not isinstance(node, ast.Try):
        return False
    calls = (
        each.func for part in (*node.handlers, *node.orelse) for each in ast.walk(part) if isinstance(each, ast.Call)
    )
    return any(isinstance(called, ast.Name) and called.id.endswith("setup") for called in calls)


def _provided(needed: str, requires: Iterable[str]) -> bool:
    """Whether the module of *needed* is one of *requires*, or of a project that is named after it: ``py-cpuinfo``."""
    return any(each == needed or (needed not in frameworks() and _is_after(needed, each)) for each in requires)


def _is_after(needed: str, project: str) -> bool:
    return set(needed.split("-")) < set(project.split("-"))


def _removed(node: ast.stmt) -> bool:
    """Whether *node* imports a module of distutils that newer releases of setuptools lack."""
    if isinstance(node, ast.ImportFrom):
        names = {f"{node.module}.{each.name}" for each in node.names} | {node.module}
    else:
        names = {each.name for each in node.names} if isinstance(node, ast.Import) else set()
    return "distutils.msvccompiler" in names


def _declared(project: Path) -> Iterator[str]:
    """The projects that *project* requires of package indexes, to be used, tested or developed."""
    for line in _lines(project):
        found = read_requirement(line.partition(" #")[0].strip())
        if found and not found.url:  # a requirement with a URL says nothing about who has that name on an index
            yield canonicalize_name(found.name)


def _lines(project: Path) -> Iterator[str]:
    for file in (*project.glob("PKG-INFO"), *project.glob("*.egg-info/PKG-INFO")):
        lines = text_of(file).partition("\n\n")[0].splitlines()
        yield from (line.partition(":")[2] for line in lines if line.lower().startswith("requires-dist:"))
    for file in (*project.glob("*.egg-info/requires.txt"), *project.glob("*requirements*.txt")):
        text = text_of(file)
        yield from () if _ELSEWHERE.search(text) else text.splitlines()
    yield from _of_pyproject(project / "pyproject.toml")
    yield from _of_setup_cfg(project / "setup.cfg")
    yield from _of_setup(project / "setup.py")


def _of_pyproject(file: Path) -> Iterator[str]:
    try:
        table = Table.load(file) if file.is_file() else Table({})
    except RecipeError:  # the backend says what is wrong with it
        return
    stated, tool = table.raw("project"), table.raw("tool")
    uv = tool.get("uv") if isinstance(tool, dict) else None
    if isinstance(uv, dict) and uv.keys() & {"sources", "index"}:
        return
    listed = [stated.get("dependencies"), stated.get("optional-dependencies")] if isinstance(stated, dict) else []
    yield from _texts([*listed, table.raw("dependency-groups")])


def _of_setup_cfg(file: Path) -> Iterator[str]:
    parser = ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(text_of(file))
    except Error:
        return
    values = dict(parser["options"]) if parser.has_section("options") else {}
    texts = [value for key, value in values.items() if key in _LISTS]
    texts += parser["options.extras_require"].values() if parser.has_section("options.extras_require") else []
    for text in texts:
        yield from text.splitlines()


def _of_setup(file: Path) -> Iterator[str]:
    """The texts in the lists that setup.py hands to setup(), or calls as setup() does; no names of extras."""
    try:
        tree = ast.parse(text_of(file))
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        value = None
        if (isinstance(node, ast.keyword) and node.arg in _LISTS) or (
            isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id in _LISTS for to in node.targets)
        ):
            value = node.value
        inside = list(ast.walk(value)) if value else []
        extras = {key for each in inside if isinstance(each, ast.Dict) for key in each.keys}
        texts = (each.value for each in inside if isinstance(each, ast.Constant) and each not in extras)
        yield from (text for text in texts if isinstance(text, str))


def _texts(value: object) -> Iterator[str]:
    """The texts in *value*, lists in tables in lists."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
