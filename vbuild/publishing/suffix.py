"""The layout suffix: variants as distributions of their own, ``demo-cu12`` next to ``demo``, as many projects do.

    suffix/demo_cu12-1.0-….whl      renamed: file, .dist-info, .data, Name, its own extras, siblings of the same label
    suffix/demo-1.0-….whl           the plain wheel as it was, or a metapackage: an empty wheel that requires demo-cu12
    suffix/simple/demo-cu12/…       an index of all of them

    {name}-{label}: demo, cu12.6    -> demo-cu12-6       indexes read runs of -, _ and . as one dash
    demo/__init__.py:3              version("demo")      PackageNotFoundError under the new name

Calls of importlib.metadata, its backport and pkg_resources for the old name are found under any alias; the name may be
a string, a constant of the module, ``__name__`` or ``__package__``.

Import packages keep their names, so two of these wheels contain the same files, and no installer notices. The opt-in
guard warns on import:

    demo/__init__.py         from . import _vbuild_guard    after the docstring and __future__ imports
    demo/_vbuild_guard.py    looks for other .dist-info folders of the family whose RECORD lists the same file

A ``.pth`` file would run at every start of Python; the guard is part of the package and costs a listing of one folder.
Only renamed wheels contain it: one file name never stands for two contents.
The check of a folder: names agree, no wheel requires one with the same files, a metapackage requires one that exists.
https://packaging.python.org/en/latest/specifications/name-normalization/
"""

import ast
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from shlex import quote

from msgspec import Struct
from msgspec.structs import replace
from packaging.utils import InvalidName, canonicalize_name

from vbuild.config.requirements import admits, read_requirement, required_project
from vbuild.errors import RepackageError, at
from vbuild.publishing.lint.index import index_problems, layout_problem, wheels_in
from vbuild.publishing.model import (
    RIVALS,
    ConsumerUse,
    Copied,
    LinkedFile,
    Member,
    NewWheel,
    PublishPlan,
    PublishRule,
    Put,
    SimpleIndex,
    install_commands,
    place_below,
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
    wheels_labelled,
)
from vbuild.splitting.package_init import hooked, is_namespace, package_of, python_text
from vbuild.verification.model import Finding, Severity
from vbuild.wheel.metadata import is_dist_info, requirement_of
from vbuild.wheel.name import WheelName, escaped
from vbuild.wheel.paths import installed_path

MODULE = "_vbuild_guard"

_OPTION = "--guard"
_GUARD = '''"""Says on import where another distribution has been installed over {own}. Made by vbuild publish."""

from __future__ import annotations

import os

_OWN = "{own}"
_FAMILY = {family}
_FILE = {file}


def _others() -> list[str]:
    """The distributions beside this one that brought the same file, by their RECORDs."""
    site = os.path.join(os.path.dirname(os.path.abspath(__file__)), "{up}")
    found = []
    for folder in os.listdir(site):
        release, _, kind = folder.rpartition(".")
        if kind != "dist-info":
            continue
        name = release.rpartition("-")[0].lower().replace("_", "-").replace(".", "-")
        if name != _OWN and (name in _FAMILY or name.startswith(_FAMILY[0] + "-")):
            try:
                with open(os.path.join(site, folder, "RECORD"), encoding="utf-8", errors="replace") as record:
                    if any(line.startswith(_FILE + ",") for line in record):
                        found.append(name)
            except OSError:
                continue
    return sorted(found)


def _check() -> None:
    try:
        others = _others()
    except OSError:  # in an archive, or in no folder that can be listed
        return
    if others:
        import warnings

        warnings.warn(
            f"{{_OWN}} and {{', '.join(others)}} are installed with the same files: uninstall all, then install one",
            RuntimeWarning,
            stacklevel=4,
        )


_check()
'''


def guarded(wheel: OfferedWheel, name: WheelName, *, family: Iterable[str]) -> dict[str, Member]:
    """The members that *wheel* gets under *name*, by new path: its packages import a guard that knows the *family*.

    The family are the names that wheels with these files have. `RepackageError` if no package could import it,
    `RepackageError` if an ``__init__.py`` is not to be read as Python.
    """
    way = renaming(wheel, name)
    members = {path: row.path for row in wheel.rows if (path := installed_path(row.path))}
    others = sorted({*family} - {wheel.name.project})
    found: dict[str, Member] = {}
    with wheel.opened() as opened, at(wheel.path.name):
        inits = {path: opened.read(member) for path, member in members.items() if path.endswith("/__init__.py")}
        shared = {
            path.rpartition("/")[0] for path, data in inits.items() if is_namespace(data.decode(errors="replace"))
        }
        for package in sorted({one for path in members if (one := package_of(path, members, namespaces=shared))}):
            init = members[f"{package}/__init__.py"]
            target = way.path(init) or init
            beside = f"{target.rpartition('/')[0]}/{MODULE}.py"
            with at(init):
                found[target] = Put(target, hooked(inits[f"{package}/__init__.py"], MODULE, option=_OPTION))
            found[beside] = Put(beside, guard(package, name.project, (wheel.name.project, *others)).encode())
        if not found:
            raise RepackageError(f"no package with an __init__.py that could import a guard; leave {_OPTION} out")
    return found


def guard(package: str, own: str, family: Iterable[str]) -> str:
    """The module that guards *package*, a folder, of the distribution *own*, whose project is the first of *family*."""
    names = "".join(f'\n    "{name}",' for name in family)
    up = "/".join([".."] * len(package.split("/")))
    return _GUARD.format(own=own, family=f"({names}\n)", file=python_text(f"{package}/__init__.py"), up=up)


_LICENCES = "licenses/"
_WHEEL = """Wheel-Version: 1.0
Generator: vbuild publish
Root-Is-Purelib: true
Tag: py3-none-any
"""


def metapackage_name(default: OfferedWheel) -> WheelName:
    """What the empty wheel under the old name of *default* is called."""
    old = default.name.normalised()
    return WheelName(old.distribution, old.version, None, "py3", "none", "any")


def metapackage(default: OfferedWheel, project: str) -> NewWheel:
    """The wheel that is called as *default* was and requires just its release of *project*, which it is called now."""
    name = metapackage_name(default)
    way, dist_info = renaming(default, name), name.dist_info
    extras = dict.fromkeys(map(canonicalize_name, default.metadata.headers.values("Provides-Extra")))
    pin = f"=={default.metadata.version}"
    # that release of the project, and each of its extras for the same extra
    pins = (f"{project}{pin}", *(f'{project}[{extra}]{pin}; extra == "{extra}"' for extra in extras))
    metadata = default.metadata.replacing("Requires-Dist", pins)
    named = default.metadata.headers.values("License-File")
    texts = {f"{default.dist_info}/{file}" for file in named}
    members: list[Member] = []
    for row in default.rows:
        is_licence = row.path.startswith(f"{default.dist_info}/{_LICENCES}") or row.path in texts
        if is_licence and (path := way.path(row.path)):
            members.append(Copied(default.path, row.path, path))
    members += (
        Put(f"{dist_info}/METADATA", str(metadata).encode()),
        Put(f"{dist_info}/WHEEL", _WHEEL.encode()),
    )
    return NewWheel(PurePosixPath(), name, default.path, tuple(members))


_problem = partial(layout_problem, "suffix")


def problems(folder: Path) -> Iterator[Finding]:
    """What is wrong with the wheels in *folder* and with its index."""
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
    """What is wrong with what *wheel* requires of projects in the folder, where *files* of each wheel are given."""
    for line in wheel.metadata.requires_dist:
        found = read_requirement(line)
        known = [other for other in files if found and other.name.project == canonicalize_name(found.name)]
        if found is None or not known:
            continue
        there = [other for other in known if admits(found, other.name.project, other.name.version)]
        same = frozenset[str]().union(*(files[wheel] & files[other] for other in there or known))
        if same and known[0].name.project != wheel.name.project:
            what = f"requires {line}, which has the same files: {min(same)}"
            yield _problem(PublishRule.REQUIREMENT, wheel.path.name, what)
        elif not there:
            what = f"requires {line}, and only other releases are here"
            yield Finding(Severity.WARNING, PublishRule.REQUIREMENT, (wheel.path.name,), what, "publish that one, too")


Names = Mapping[tuple[str, str], str]

_HOW = "with pip and with uv; what else is required comes from the index that they have:"


class Suffix(Struct, frozen=True):
    """Wheels under the names that *naming* makes of project and label, in one index.

    *siblings* are projects published likewise elsewhere: requirements of them get the same names. *metapackage* is the
    label that an empty wheel under the old name requires. With *guard* renamed wheels warn where another one was
    installed over them. *url* is where the folder will be served.
    """

    naming: str = "{name}-{label}"
    siblings: tuple[str, ...] = ()
    metapackage: str | None = None
    guard: bool = False
    url: str | None = None
    name: str = "suffix"

    def planned(self, offers: Sequence[OfferedRelease]) -> PublishPlan:
        """Every variant under its new name, and the rest as it is.

        `RepackageError` if a new name is not valid or stands for two, a sibling or the label of the metapackage is not
        known, or a wheel requires a release that lacks its label.
        """
        known = releases_with_variants(offers)
        names = self._names(offers)
        lines = [line for offer in known for wheel in offer.variants for line in wheel.metadata.requires_dist]
        asked = {project for line in lines if (project := required_project(line))}
        for sibling in map(canonicalize_name, self.siblings):
            if sibling not in asked:
                text = ", ".join(sorted(asked - {offer.project for offer in known})) or "none"
                raise RepackageError(f"sibling {sibling}: no wheel requires it; expected one of those required: {text}")
        labels = labels_of(known)
        if self.metapackage is not None and self.metapackage not in labels:
            raise RepackageError(
                f"metapackage {self.metapackage!r}: no such label; expected one of {', '.join(labels)}"
            )
        check_siblings(offers)
        wheels = [wheel for offer in offers for wheel in self._wheels(offer, names)]
        index = SimpleIndex(PurePosixPath("simple"), tuple(wheel.target for wheel in wheels))
        return PublishPlan(
            self.name, (*wheels, index), tuple(self._uses(offers, names)), tuple(self._notes(known, names))
        )

    def _names(self, offers: Sequence[OfferedRelease]) -> Names:
        """The new name of each project and label; `RepackageError` if one stands for two things."""
        names = {(o.project, label): suffixed(o.project, label, self.naming) for o in offers for label in o.labels}
        taken = {offer.project: f"the project {offer.project}" for offer in offers}
        for (project, label), name in names.items():
            this = f"{project} {label}"
            if name in taken:
                raise RepackageError(
                    f"name {self.naming!r}: {name} would be {this} and {taken[name]}; expected a name for each: give "
                    "--name a {name} and a {label}, or stamp one under another label"
                )
            taken[name] = this
        return names

    def _wheels(self, offer: OfferedRelease, names: Names) -> Iterator[LinkedFile | NewWheel]:
        """What becomes of the wheels of *offer*."""
        default = wheels_labelled(offer, self.metapackage) if self.metapackage else ()
        if default and self.metapackage:
            yield metapackage(default[0], names[offer.project, self.metapackage])
        else:
            yield from (LinkedFile(PurePosixPath(wheel.path.name), wheel.path) for wheel in offer.plain)
        for wheel in offer.variants:
            yield self._renamed(wheel, wheel.label or "", names)

    def _renamed(self, wheel: OfferedWheel, label: str, names: Names) -> NewWheel:
        """The *wheel* under its new name, and what it requires of siblings under theirs."""
        table = {project: name for (project, other), name in names.items() if other == label}
        for sibling in map(canonicalize_name, self.siblings):
            table.setdefault(sibling, suffixed(sibling, label, self.naming))
        project = table[wheel.name.project]
        name = replace(wheel.name.normalised().plain(), distribution=escaped(project))
        metadata = renaming(wheel, name).metadata(wheel.metadata, requirement=partial(requirement_of, projects=table))
        family = [new for (old, _), new in names.items() if old == wheel.name.project]
        changed = guarded(wheel, name, family=family) if self.guard else None
        return renamed(wheel, name, metadata=metadata, changed=changed)

    def _uses(self, offers: Sequence[OfferedRelease], names: Names) -> Iterator[ConsumerUse]:
        last = latest(offers)
        for label, variant in variants_of(last, labels_of(last)).items():
            having = [offer for offer in last if label in offer.labels]
            wanted = " ".join(f"{names[offer.project, label]}=={offer.version}" for offer in having)
            yield ConsumerUse(f"{variant}, {_HOW}", install_commands(wanted, url=self.url))
        wanted_by_name: list[str] = []
        has_rivals = False
        for offer in (offer for offer in last if not offer.is_companion):
            if self.metapackage in offer.labels:
                # by its file: pip would prefer another index's wheel of that name and version for one platform
                file = metapackage_name(wheels_labelled(offer, self.metapackage)[0])
                wanted_by_name.append(quote(place_below(self.url, str(file))))
            elif offer.plain:
                wanted_by_name.append(f"{offer.project}=={offer.version}")
                has_rivals = True
        if wanted := " ".join(wanted_by_name):
            what = f"The default, {self.metapackage}" if self.metapackage else "The plain wheel, for every machine"
            rivals = RIVALS if has_rivals else ""
            yield ConsumerUse(f"{what}{rivals}; {_HOW}", install_commands(wanted, url=self.url, has_rivals=has_rivals))

    def _notes(self, known: Sequence[OfferedRelease], names: Names) -> Iterator[str]:
        for offer in known:
            called = [names[offer.project, label] for label in offer.labels]
            plain = [offer.project] if offer.plain and self.metapackage not in offer.labels else []
            if len(several := [*plain, *called]) > 1:
                yield (
                    f"{', '.join(several)} have the same files, which no installer notices: uninstall one before the "
                    f"other is installed.{' A guard in them says so on import.' if self.guard else ''}"
                )
            if self.metapackage in offer.labels and offer.plain:
                yield f"{offer}: the plain wheel is left out: {offer.project} is an empty one now."
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
            if asked and project in _asked_projects(asked[0], path, constants):
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
            inside = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
            return {canonicalize_name(package.partition(".")[0])} if inside & {"__name__", "__package__"} else set()


def _project(text: str) -> str:
    """The project that *text* names, which pkg_resources allows to be a requirement."""
    return required_project(text) or canonicalize_name(text)
