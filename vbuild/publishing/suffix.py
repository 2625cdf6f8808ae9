"""The layout suffix: variants as distributions of their own, ``demo-cu12`` next to ``demo``, as many projects do.

    suffix/demo_cu12-1.0-….whl      renamed: file, .dist-info, .data, Name, its own extras, siblings of the same label
    suffix/demo-1.0-….whl           the plain wheel as it was
    suffix/simple/demo-cu12/…       an index of all of them

    {name}-{label}: demo, cu12.6    -> demo-cu12-6       indexes read runs of -, _ and . as one dash
    demo/__init__.py:3              version("demo")      PackageNotFoundError under the new name

Calls of importlib.metadata, its backport and pkg_resources for the old name are found under any alias; the name may be
a string, a constant of the module, ``__name__`` or ``__package__``. Import packages keep their names, so two of these
wheels contain the same files, and no installer notices.
https://packaging.python.org/en/latest/specifications/name-normalization/
"""

import ast
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath

from msgspec import Struct
from msgspec.structs import replace
from packaging.utils import InvalidName, canonicalize_name

from vbuild.config.requirements import admits, read_requirement, required_project
from vbuild.errors import RepackageError
from vbuild.publishing.lint.index import index_problems, layout_problem, wheels_in
from vbuild.publishing.model import (
    RIVALS,
    ConsumerUse,
    LinkedFile,
    NewWheel,
    PublishPlan,
    PublishRule,
    SimpleIndex,
    install_commands,
    renamed,
    renaming,
)
from vbuild.publishing.releases import (
    OfferedRelease,
    OfferedWheel,
    check_siblings,
    labels_of,
    latest,
    releases_with_variants,
    variants_of,
)
from vbuild.verification.model import Finding, Severity
from vbuild.wheel.metadata import is_dist_info, requirement_of
from vbuild.wheel.name import escaped
from vbuild.wheel.paths import installed_path

_problem = partial(layout_problem, "suffix")


def problems(folder: Path) -> Iterator[Finding]:
    wheels: list[OfferedWheel] = []
    yield from wheels_in(folder, wheels)
    if not wheels:
        yield _problem(PublishRule.ARCHIVE, folder.resolve().name, "has no wheel")
    files: dict[OfferedWheel, frozenset[str]] = {}
    for wheel in wheels:
        paths = (installed_path(row.path) for row in wheel.rows if not is_dist_info(row.path))
        files[wheel] = frozenset(path for path in paths if path)
    for wheel in wheels:
        if canonicalize_name(wheel.metadata.name) != wheel.name.project:
            what = f"its METADATA says Name: {wheel.metadata.name}, which the file name does not"
            yield _problem(PublishRule.NAME, wheel.path.name, what)
        if wheel.label:
            what = "has a variant label, which only installers of variants read"
            yield _problem(PublishRule.VARIANT, wheel.path.name, what)
        yield from _requirements(wheel, files)
    yield from index_problems(folder)


def _requirements(wheel: OfferedWheel, files: Mapping[OfferedWheel, frozenset[str]]) -> Iterator[Finding]:
    for line in wheel.metadata.requires_dist:
        requirement = read_requirement(line)
        named = [other for other in files if requirement and other.name.project == canonicalize_name(requirement.name)]
        if requirement is None or not named:
            continue
        fitting = [other for other in named if admits(requirement, other.name.project, other.name.version)]
        same = frozenset[str]().union(*(files[wheel] & files[other] for other in fitting or named))
        if same and named[0].name.project != wheel.name.project:
            what = f"requires {line}, which has the same files: {min(same)}"
            yield _problem(PublishRule.REQUIREMENT, wheel.path.name, what)
        elif not fitting:
            what = f"requires {line}, and only other releases are here"
            yield Finding(Severity.WARNING, PublishRule.REQUIREMENT, (wheel.path.name,), what, "publish that one, too")


Names = Mapping[tuple[str, str], str]

_HOW = "with pip and with uv; what else is required comes from the index that they have:"


class Suffix(Struct, frozen=True):
    """Wheels under the names that *naming* makes of project and label, in one index, to be served at *url*."""

    naming: str = "{name}-{label}"
    url: str | None = None
    name: str = "suffix"

    def plan(self, offers: Sequence[OfferedRelease]) -> PublishPlan:
        """Every variant under its new name, and the rest as it is.

        `RepackageError` if a new name is invalid or stands for two, or a wheel requires a release that lacks its label.
        """
        known = releases_with_variants(offers)
        names = self._names(offers)
        check_siblings(offers)
        wheels: list[LinkedFile | NewWheel] = []
        for offer in offers:
            wheels += (LinkedFile(PurePosixPath(wheel.path.name), wheel.path) for wheel in offer.plain)
            wheels += (_renamed(wheel, wheel.label or "", names) for wheel in offer.variants)
        index = SimpleIndex(PurePosixPath("simple"), tuple(wheel.target for wheel in wheels))
        return PublishPlan(self.name, (*wheels, index), tuple(self._uses(offers, names)), tuple(_notes(known, names)))

    def _names(self, offers: Sequence[OfferedRelease]) -> Names:
        """The new name of each project and label; `RepackageError` if one stands for two things."""
        names = {
            (offer.project, label): suffixed(offer.project, label, self.naming)
            for offer in offers
            for label in offer.labels
        }
        taken = {offer.project: f"the project {offer.project}" for offer in offers}
        for (project, label), name in names.items():
            this = f"{project} {label}"
            if name in taken:
                raise RepackageError(
                    f"name {self.naming!r}: {name} would be {this} and {taken[name]}; expected a name for each: "
                    "stamp one under another label"
                )
            taken[name] = this
        return names

    def _uses(self, offers: Sequence[OfferedRelease], names: Names) -> Iterator[ConsumerUse]:
        last = latest(offers)
        for label, variant in variants_of(last, labels_of(last)).items():
            having = [offer for offer in last if label in offer.labels]
            wanted = " ".join(f"{names[offer.project, label]}=={offer.version}" for offer in having)
            yield ConsumerUse(f"{variant}, {_HOW}", install_commands(wanted, url=self.url))
        if plain := " ".join(
            f"{offer.project}=={offer.version}" for offer in last if offer.plain and not offer.is_companion
        ):
            yield ConsumerUse(
                f"The plain wheel, for every machine{RIVALS}; {_HOW}",
                install_commands(plain, url=self.url, has_rivals=True),
            )


def _renamed(wheel: OfferedWheel, label: str, names: Names) -> NewWheel:
    """The *wheel* under its new name; it requires siblings of the same *label* under theirs."""
    new_names = {project: name for (project, other), name in names.items() if other == label}
    name = replace(wheel.name.normalised().plain(), distribution=escaped(new_names[wheel.name.project]))
    requirement = partial(requirement_of, projects=new_names)
    return renamed(wheel, name, metadata=renaming(wheel, name).metadata(wheel.metadata, requirement=requirement))


def _notes(known: Sequence[OfferedRelease], names: Names) -> Iterator[str]:
    for offer in known:
        called = [names[offer.project, label] for label in offer.labels]
        alike = [offer.project, *called] if offer.plain else called
        if len(alike) > 1:
            yield (
                f"{', '.join(alike)} have the same files, which no installer notices: uninstall one before the "
                "other is installed."
            )
        for place in hard_wired(offer.variants):
            yield f"{place} finds no {offer.project} where only {' or '.join(called)} is installed."
        if any("/headers/" in row.path and ".data/" in row.path for wheel in offer.variants for row in wheel.rows):
            yield f"{offer}: its headers are installed into a folder called after the new name."
    new = ", ".join(names.values())
    yield f"Anybody may take these names on an index that has none: register {new} there first."


_METADATA_CALLS = ("version", "metadata", "files", "requires", "distribution", "Distribution.from_name")
_CALLS = frozenset(
    {f"{module}.{call}" for module in ("importlib.metadata", "importlib_metadata") for call in _METADATA_CALLS}
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
    """The name for *project* and *label*, normalised; `RepackageError` if it is not valid."""
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

    What several wheels have is read once. `WheelError` if one is damaged.
    """
    places: set[Wired] = set()
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
                    places.update(wired(data, path, project=wheel.name.project))
    return tuple(sorted(places))


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
            names = [*node.args[:1], *(each.value for each in node.keywords if each.arg in _KEYWORDS)]
            if names and project in _asked_projects(names[0], path, constants):
                yield Wired(path, node.lineno, f"{called}({ast.unparse(names[0])})")


def _imported(tree: ast.Module) -> dict[str, str]:
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    first = alias.name.partition(".")[0]
                    known[alias.asname or first] = alias.name if alias.asname else first
            case ast.ImportFrom(module=str(module), level=0, names=names):
                known |= {each.asname or each.name: f"{module}.{each.name}" for each in names}
    return known


def _constants(tree: ast.Module) -> dict[str, str]:
    strings: dict[str, str] = {}
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))):
                strings[name] = text
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=str(text))):
                strings[name] = text
    return strings


def _dotted(node: ast.expr, known: Mapping[str, str]) -> str | None:
    match node:
        case ast.Name(id=name):
            return known.get(name)
        case ast.Attribute(value=value, attr=attr):
            return f"{before}.{attr}" if (before := _dotted(value, known)) else None
        case _:
            return None


def _asked_projects(node: ast.expr, path: str, constants: Mapping[str, str]) -> set[str]:
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
            inside = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
            return {canonicalize_name(package.partition(".")[0])} if inside & {"__name__", "__package__"} else set()


def _project(text: str) -> str:
    """The project that *text* names, which pkg_resources allows to be a requirement."""
    return required_project(text) or canonicalize_name(text)
