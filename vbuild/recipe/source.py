"""Where the code to build comes from, as a recipe names it: an sdist and its hash, a folder, or a commit."""

import re
from pathlib import Path, PurePosixPath

from msgspec import Struct
from packaging.utils import canonicalize_name
from packaging.version import Version

from vbuild.config.table import Table
from vbuild.errors import RecipeError
from vbuild.recipe.spelling import located

_SDIST = re.compile(r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?) *== *(?P<version>[^\s=]+)")
# patterns, and why a text that does not match is refused
SHA256 = re.compile(r"[0-9a-f]{64}"), "is not a SHA-256; expected 64 hex digits, lower case"
_COMMIT = (
    re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}"),
    "is not a full commit hash; expected 40 or 64 hex digits, lower case",
)


class Sdist(Struct, frozen=True):
    """A source distribution of a package index, pinned by version and SHA-256."""

    name: str
    version: Version
    sha256: str
    subdirectory: str = ""

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"


class Folder(Struct, frozen=True):
    """A project folder on this machine; the tree that is there is the tree that is built."""

    path: Path
    subdirectory: str = ""

    def __str__(self) -> str:
        return str(self.path)


class Git(Struct, frozen=True):
    """One commit, named by its full hash, of the git repository at a URL or path."""

    url: str
    commit: str
    subdirectory: str = ""

    def __str__(self) -> str:
        return f"{self.url}@{self.commit[:12]}"


Source = Sdist | Folder | Git


def read_source(table: Table, folder: Path, *, also: tuple[str, ...] = ()) -> Source:
    """The source that a ``[source]`` *table* names; its paths start at *folder*, where the recipe stands.

    *also* are further kinds that a table may name, for the message about one that names none.
    """
    kinds = [key for key in ("sdist", "path", "git") if key in table]
    if len(kinds) != 1:
        found = " and ".join(kinds) or "none"
        raise table.wrong(f"found {found}; expected exactly one of {', '.join((*also, 'sdist', 'path', 'git'))}")
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
            if not path.is_dir():
                raise table.refuse("path", f"no folder {table.text('path')!r}; paths start where the recipe stands")
            return Folder(path.resolve(), subdirectory)


def same_project(one: str, other: str) -> bool:
    """Whether two names are one to a package index (PEP 503)."""
    return canonicalize_name(one) == canonicalize_name(other)


def _pinned(text: str) -> tuple[str, Version]:
    match = _SDIST.fullmatch(text.strip())
    if not match:
        raise RecipeError(f"{text!r} is not name==version")
    try:
        return match["name"], Version(match["version"])
    except ValueError as error:  # InvalidVersion, or Python's limit of digits in an integer
        raise RecipeError(f"{text!r}: {match['version']!r} is not a version (PEP 440)") from error


def parse_subdirectory(text: str) -> str:
    """*text*, a path below a source; empty for its top."""
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or "\\" in text:
        raise RecipeError(f"{text!r} does not stay inside the source; expected a path below it with /")
    return str(path) if path.parts else ""
