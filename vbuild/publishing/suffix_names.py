"""The names of renamed wheels, and the code in them that asks for their old name and would find no distribution.

    {name}-{label}: demo, cu12.6    -> demo-cu12-6       indexes read runs of -, _ and . as one dash
    demo/__init__.py:3              version("demo")      PackageNotFoundError under the new name

Calls of importlib.metadata, its backport and pkg_resources are found under any alias; the name may be a string, a
constant of the module, ``__name__`` or ``__package__``.
https://packaging.python.org/en/latest/specifications/name-normalization/
"""

import ast
import warnings
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct
from packaging.utils import InvalidName, canonicalize_name

from vbuild.config.requirements import required_project
from vbuild.errors import RepackageError
from vbuild.publishing.releases import OfferedWheel
from vbuild.wheel.paths import installed_path

_METADATA = ("version", "metadata", "files", "requires", "distribution", "Distribution.from_name")
_CALLS = frozenset(
    {f"{module}.{call}" for module in ("importlib.metadata", "importlib_metadata") for call in _METADATA}
    | {f"pkg_resources.{call}" for call in ("get_distribution", "require")}
)
_KEYWORDS = frozenset({"distribution_name", "name", "dist"})
# one of these is in every source that asks
_WORDS = (b"metadata", b"pkg_resources")


class Wired(Struct, frozen=True, order=True):
    """A *call* that asks for the distribution by its old name, in a *line* of the file installed at *path*."""

    path: str
    line: int
    call: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.call}"


def suffixed(project: str, label: str, naming: str) -> str:
    """What *naming* makes of *project* and *label*, normalised; `RepackageError` if that is not a name."""
    name = naming.replace("{name}", project).replace("{label}", label)
    try:
        return canonicalize_name(name, validate=True)
    except InvalidName as error:
        raise RepackageError(
            f"name {naming!r}: {name!r} is none; expected {{name}}, {{label}}, and letters, digits, -, _ and . between "
            "letters or digits"
        ) from error


def hard_wired(wheels: Iterable[OfferedWheel]) -> tuple[Wired, ...]:
    """Where the code of *wheels*, all of one project, asks for its distribution; each place once, sorted.

    What is the same in several wheels is read once. `WheelError` if one is damaged.
    """
    found: set[Wired] = set()
    seen: set[tuple[str, str | None]] = set()
    for wheel in wheels:
        rows = [row for row in wheel.rows if row.path.endswith(".py") and (row.path, row.hash) not in seen]
        seen |= {(row.path, row.hash) for row in rows}
        if not rows:
            continue
        with wheel.opened() as opened:
            for row in rows:
                path = installed_path(row.path)
                if path and any(word in (data := opened.read(row.path)) for word in _WORDS):
                    found.update(wired(data, path, project=wheel.name.project))
    return tuple(sorted(found))


def wired(data: bytes, path: str, *, project: str) -> Iterator[Wired]:
    """Where the Python source *data*, installed at *path*, asks for the distribution *project*; none if unreadable."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that a later Python will refuse
            tree = ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    known, constants = _imported(tree), _constants(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (called := _dotted(node.func, known)) in _CALLS:
            asked = [*node.args[:1], *(each.value for each in node.keywords if each.arg in _KEYWORDS)]
            if asked and project in _names(asked[0], path, constants):
                yield Wired(path, node.lineno, f"{called}({ast.unparse(asked[0])})")


def _imported(tree: ast.Module) -> dict[str, str]:
    """What the names that *tree* imports stand for, wherever in it that is."""
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for each in names:
                    first = each.name.partition(".")[0]
                    known[each.asname or first] = each.name if each.asname else first
            case ast.ImportFrom(module=str(module), level=0, names=names):
                known |= {each.asname or each.name: f"{module}.{each.name}" for each in names}
    return known


def _constants(tree: ast.Module) -> dict[str, str]:
    """The strings that names of the module stand for."""
    found: dict[str, str] = {}
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))):
                found[name] = text
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=str(text))):
                found[name] = text
    return found


def _dotted(node: ast.expr, known: Mapping[str, str]) -> str | None:
    match node:
        case ast.Name(id=name):
            return known.get(name)
        case ast.Attribute(value=value, attr=attr):
            return f"{before}.{attr}" if (before := _dotted(value, known)) else None
        case _:
            return None


def _names(node: ast.expr, path: str, constants: Mapping[str, str]) -> set[str]:
    """The projects that *node* may name, in the file installed at *path*."""
    package = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    folder = path.rpartition("/")[0].replace("/", ".")
    match node:
        case ast.Constant(value=str(text)):
            return {_project(text)}
        case ast.Name(id="__name__"):
            return {canonicalize_name(package)}
        case ast.Name(id="__package__"):
            return {canonicalize_name(folder)}
        case ast.Name(id=name):
            return {_project(constants[name])} if name in constants else set()
        case _:
            inside = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
            return {canonicalize_name(package.partition(".")[0])} if inside & {"__name__", "__package__"} else set()


def _project(text: str) -> str:
    """The project that *text* names, which pkg_resources allows to be a requirement."""
    return required_project(text) or canonicalize_name(text)
