"""What a recipe builds and adds: its source, its native dependencies, and the libraries of a CUDA toolkit.

    [source]    an sdist and its hash, a folder, or a commit
    [[native]]  name, source, build, arguments -> Native: built for each CPU level, or once for all levels
    libraries   cublas                               of the toolkit's own version
                nccl==2.28.9                         of this version
                nccl==2.28.9 sha256:4b0d… sha256:…   one of these wheels: there may be one for each machine

Native dependencies are built in their order, before the wheels; later ones, and the project, see the earlier ones.
"""

import ast
import re
from collections.abc import Collection, Iterator
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Self

from msgspec import Struct
from packaging.utils import InvalidSdistFilename, canonicalize_name, parse_sdist_filename
from packaging.version import Version

from vbuild.config.table import Env, Table
from vbuild.errors import RecipeError, at
from vbuild.files.hashing import sha256_of
from vbuild.files.reading import read_file, read_text
from vbuild.hardware.cpu import Cpu
from vbuild.process.masking import without_logins
from vbuild.recipe.compiling import FlagRules
from vbuild.recipe.spelling import existing_file, located, requirement, variables

_SDIST = re.compile(r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?) *== *(?P<version>[^\s=]+)")
PROJECT_FILES = ("pyproject.toml", "setup.py")
_LITERAL = r"""(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)"""
_OLDER_NAMES = {
    "PKG-INFO": re.compile(rf"^Name:[ \t]*{_LITERAL}[ \t]*$", re.MULTILINE),
    "setup.cfg": re.compile(rf"^\[metadata\][^\[]*^name[ \t]*=[ \t]*{_LITERAL}[ \t]*$", re.MULTILINE),
    "pyproject.toml": re.compile(rf"""^\[tool\.poetry\][^\[]*^name[ \t]*=[ \t]*['"]{_LITERAL}['"]""", re.MULTILINE),
}
_SDIST_FILE = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*?)-(?P<version>v?\d[^-]*)\.(?:zip|tgz|tar(?:\.\w+)?)")
# patterns, and why a text that does not match is refused
SHA256 = re.compile(r"[0-9a-f]{64}"), "is not a SHA-256; expected 64 hex digits, lower case"
_COMMIT = (
    re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}"),
    "is not a full commit hash; expected 40 or 64 hex digits, lower case",
)


class Sdist(Struct, frozen=True):
    """A source distribution, pinned by version and SHA-256: of a package index, or the *file* on this machine."""

    name: str
    version: Version
    sha256: str
    subdirectory: str = ""
    file: Path | None = None

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"


class Folder(Struct, frozen=True):
    """A project folder on this machine, built as it is."""

    path: Path
    subdirectory: str = ""

    def __str__(self) -> str:
        return str(self.path)


class Git(Struct, frozen=True):
    """One commit, by its full hash, of the git repository at a URL or path."""

    url: str
    commit: str
    subdirectory: str = ""

    def __str__(self) -> str:
        return f"{without_logins(self.url)}@{self.commit[:12]}"


Source = Sdist | Folder | Git


def read_source(table: Table, folder: Path, *, also: tuple[str, ...] = ()) -> Source:
    """The source that a ``[source]`` *table* names; *also* are further kinds that it may name."""
    kinds = [key for key in ("sdist", "path", "git") if key in table]
    if len(kinds) != 1:
        kinds_there = " and ".join(kinds) or "none"
        raise table.wrong(f"found {kinds_there}; expected exactly one of {', '.join((*also, 'sdist', 'path', 'git'))}")
    subdirectory = table.optional_parsed("subdirectory", parse_subdirectory) or ""
    match kinds[0]:
        case "sdist":
            name, version = table.parsed("sdist", _pinned)
            return Sdist(name, version, table.matched("sha256", *SHA256), subdirectory)
        case "git":
            url = table.text("git")
            if "://" not in url and (path := located(url, folder)).is_dir():
                url = str(path.resolve())  # a repository on this machine
            return Git(url, table.matched("commit", *_COMMIT), subdirectory)
        case _:
            path = table.parsed("path", lambda text: located(text, folder))
            if path.is_file():
                with at(table.place("path")):
                    sdist = sdist_file(path, subdirectory)
                if "sha256" in table and (stated := table.matched("sha256", *SHA256)) != sdist.sha256:
                    raise table.refuse("sha256", f"expected {stated}; the file has {sdist.sha256}")
                return sdist
            if not path.is_dir():
                fault = f"no folder or sdist {table.text('path')!r}; paths start where the recipe stands"
                raise table.refuse("path", fault)
            return Folder(path.resolve(), subdirectory)


def sdist_file(path: Path, subdirectory: str = "") -> Sdist:
    """The sdist at *path*, by the name and version in its name."""
    name: str
    try:
        name, version = parse_sdist_filename(path.name)
    except InvalidSdistFilename:
        name, version = _older_name(path.name)
    return Sdist(name, version, sha256_of(path), subdirectory, path.resolve())


def _older_name(file: str) -> tuple[str, Version]:
    """The name and version in an sdist's file name from before PEP 625."""
    match = _SDIST_FILE.fullmatch(file)
    try:
        if match:
            return match["name"], Version(match["version"])
    except ValueError:  # InvalidVersion, or Python's limit of digits in an integer
        pass
    raise RecipeError(f"{file!r} is not the name of an sdist; expected NAME-VERSION.tar.gz or NAME-VERSION.zip")


def project_file(folder: Path) -> Path:
    for name in PROJECT_FILES:
        if (folder / name).exists():
            return folder / name
    raise RecipeError(f"{folder}: no project; expected {' or '.join(PROJECT_FILES)} in it")


def project_name(folder: Path) -> str | None:
    """The name of the project in *folder*, as far as it is written there literally."""
    pyproject = folder / "pyproject.toml"
    if pyproject.is_file() and (name := Table.load(pyproject).handed("project", optional=True).optional_text("name")):
        return name
    for file, rule in _OLDER_NAMES.items():
        path = folder / file
        text = read_text(path, errors="replace") if path.is_file() else ""
        if match := rule.search(text):
            return match["name"]
    return _name_in(folder / "setup.py")


def _name_in(setup: Path) -> str | None:
    try:
        tree = ast.parse(read_file(setup))
    except (OSError, SyntaxError, ValueError, RecursionError):  # of Python 2, or not there
        return None
    texts = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if (call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")) != "setup":
            continue
        for argument in (word.value for word in call.keywords if word.arg == "name"):
            known = texts.get(argument.id) if isinstance(argument, ast.Name) else getattr(argument, "value", None)
            if isinstance(known, str):
                return known
    return None


def same_project(name: str, other_name: str) -> bool:
    """Whether two names are one to a package index (PEP 503)."""
    return canonicalize_name(name) == canonicalize_name(other_name)


def _pinned(text: str) -> tuple[str, Version]:
    match = _SDIST.fullmatch(text.strip())
    if not match:
        raise RecipeError(f"{text!r} is not name==version")
    try:
        return match["name"], Version(match["version"])
    except ValueError as error:  # InvalidVersion, or Python's limit of digits in an integer
        raise RecipeError(f"{text!r}: {match['version']!r} is not a version (PEP 440)") from error


def parse_subdirectory(text: str) -> str:
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or "\\" in text:
        raise RecipeError(f"{text!r} does not stay inside the source; expected a path below it with /")
    return str(path) if path.parts else ""


# patterns, and why a text that does not match is refused
_NAME = (
    re.compile(r"[a-z0-9][a-z0-9+._-]*"),
    "is not a name for it; expected a-z, 0-9, +, ., _ and -, a letter or digit first",
)
# Debian Policy, 5.6.1 and 5.6.12: a source package, and an upstream version, which epoch and revision are not part of
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+"), "is not the name of a Debian source package"
_VERSION = (
    re.compile(r"[0-9][A-Za-z0-9.+~-]*"),
    "is not an upstream version; expected it as in 6.3.0+dfsg, without epoch",
)
_ALL = "all"


class NativeSystem(StrEnum):
    AUTOTOOLS = "autotools"
    CMAKE = "cmake"
    MESON = "meson"
    SCRIPT = "script"


class Debian(Struct, frozen=True):
    """The upstream source of a Debian source package, pinned by version and SHA-256."""

    name: str
    version: str
    sha256: str
    subdirectory: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


NativeSource = Source | Debian


class Native(Struct, frozen=True):
    """One native dependency; *per_level*: built for each CPU level, else once."""

    name: str
    source: NativeSource
    system: NativeSystem
    per_level: bool = True
    arguments: tuple[tuple[Cpu | None, tuple[str, ...]], ...] = ()
    env: Env = ()
    before_build: tuple[str, ...] = ()
    script: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    patches: tuple[Path, ...] = ()
    flags: FlagRules = FlagRules()

    @classmethod
    def read(cls, table: Table, folder: Path) -> Self:
        name = table.matched("name", *_NAME)
        with table.table("source") as source_table:
            source = _source(source_table, folder)
        table.text("build")  # there is no default for it
        system = NativeSystem(table.one_of("build", NativeSystem))
        per_level = table.flag("per-level", default=True)
        _check_fit(table, system)
        return cls(
            name=name,
            source=source,
            system=system,
            per_level=per_level,
            arguments=tuple(_arguments(table, per_level=per_level)),
            env=variables(table, "env"),
            before_build=table.texts("before-build", ()),
            script=table.texts("script", ()),
            requires=table.parsed_texts("requires", requirement, ()),
            patches=table.parsed_texts("patches", lambda text: existing_file("patch", text, folder), ()),
            flags=FlagRules.read(table),
        )

    def arguments_for(self, cpu: Cpu) -> tuple[str, ...]:
        return tuple(word for level, words in self.arguments if level in {None, cpu} for word in words)


def read_natives(recipe: Table, folder: Path) -> tuple[Native, ...]:
    natives: list[Native] = []
    for table in recipe.tables("native"):
        native = Native.read(table, folder)
        table.finish()
        if native.name in {other.name for other in natives}:
            raise table.refuse("name", f"{native.name!r} is there twice; expected each native dependency once")
        natives.append(native)
    return tuple(natives)


def check_levels(natives: Collection[Native], levels: Collection[Cpu]) -> None:
    for native in natives:
        for cpu, _ in native.arguments:
            if cpu is not None and cpu not in levels:
                there = ", ".join(dict.fromkeys(map(str, levels)))
                raise RecipeError(f"native {native.name}: configure: no wheel is for {cpu}; there are {there}")


def _check_fit(table: Table, system: NativeSystem) -> None:
    if system is NativeSystem.SCRIPT:
        if "configure" in table:
            raise table.refuse("configure", "would have no effect, as build is 'script'; write it into the script")
        if not table.texts("script"):
            raise table.refuse("script", "found no line; expected the commands that build and install")
    elif "script" in table:
        raise table.refuse("script", f"would have no effect, as build is '{system}'; before-build is for what precedes")


def _arguments(table: Table, *, per_level: bool) -> Iterator[tuple[Cpu | None, tuple[str, ...]]]:
    """An array for all levels; or a table of arrays, by level, of which ``all`` comes first."""
    if not isinstance(table.raw("configure"), dict):
        if words := table.texts("configure", ()):
            yield None, words
        return
    with table.table("configure") as levels:
        if words := levels.texts(_ALL, ()):
            yield None, words
        for key in levels:
            if key == _ALL:
                continue
            with at(levels.place(key)):
                cpu = Cpu.parse(key)
            if not per_level:
                raise levels.refuse(key, "would have no effect, as per-level is false; expected an array for all")
            yield cpu, levels.texts(key)


def _source(table: Table, folder: Path) -> NativeSource:
    if "debian" not in table:
        return read_source(table, folder, also=("debian",))
    others = [key for key in ("sdist", "path", "git") if key in table]
    if others:
        raise table.wrong(f"found debian and {' and '.join(others)}; expected exactly one of debian, sdist, path, git")
    return Debian(
        name=table.matched("debian", *_PACKAGE),
        version=table.matched("version", *_VERSION),
        sha256=table.matched("sha256", *SHA256),
        subdirectory=table.optional_parsed("subdirectory", parse_subdirectory) or "",
    )


_LIBRARY = re.compile(
    r"""
    (?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)
    (?: \s* == \s* (?P<version>[^\s=]+) (?P<hashes>(?:\s+sha256:[0-9a-f]{64})*) )?
    """,
    re.VERBOSE | re.ASCII,
)


class ToolkitLibrary(Struct, frozen=True):
    """A library by its normalized name, maybe with *version* and *hashes* of wheels, 64 hex digits."""

    name: str
    version: Version | None = None
    hashes: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, text: str) -> Self:
        if not (match := _LIBRARY.fullmatch(text.strip())):
            raise RecipeError(
                f"{text!r} is not a library of CUDA; expected as in cublas, nccl==2.28.9, or nccl==2.28.9 sha256:…"
            )
        hashes = frozenset(part.removeprefix("sha256:") for part in (match["hashes"] or "").split())
        try:
            version = Version(match["version"]) if match["version"] else None
        except ValueError as error:  # InvalidVersion, or Python's limit of digits in an integer
            raise RecipeError(f"{text!r}: {match['version']!r} is not a version (PEP 440)") from error
        return cls(str(canonicalize_name(match["name"])), version, hashes)

    def __str__(self) -> str:
        return " ".join((self.release, *(f"sha256:{sha256}" for sha256 in sorted(self.hashes))))

    @property
    def release(self) -> str:
        return self.name if self.version is None else f"{self.name}=={self.version}"
