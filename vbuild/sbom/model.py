"""What a wheel is made of, as values: the bill of materials that it carries.

    Bill -> File      a compiled file that is in it, by path and SHA-256, and what it was before vbuild changed it
         -> Gone      a library that was in it, and where it went
         -> Making    a build of it: the source, native dependencies, build requirements, compilers and toolkit,
                      target and flags

Nothing in it is of the machine that made it: no path, no time, no name. Hashes are SHA-256 in 64 hex digits.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Self
from urllib.parse import quote, urlsplit, urlunsplit

from msgspec import Struct
from msgspec.structs import replace
from packaging.utils import canonicalize_name

from vbuild.wheel.name import WheelName


class MaterialRole(StrEnum):
    """What something was to a build."""

    SOURCE = "source"
    NATIVE = "native dependency"
    REQUIREMENT = "build requirement"
    COMPILER = "compiler"
    TOOLKIT = "toolkit"


class Treatment(StrEnum):
    """What became of a library that a wheel no longer has."""

    MOVED = "moved"
    DROPPED = "dropped"


class BillChange(Struct, frozen=True):
    """One step that a file went through: its SHA-256 before, *how* it was changed, and the GPUs it had code for."""

    sha256: str
    how: str
    gpus: tuple[str, ...] = ()


class BillFile(Struct, frozen=True):
    """A compiled file of a wheel; *before* are its changes in their order, *gpus* what is left after a cut."""

    path: str
    sha256: str
    before: tuple[BillChange, ...] = ()
    gpus: tuple[str, ...] = ()


class Gone(Struct, frozen=True):
    """A library that the wheel had at *path*, called *name*; one that moved is at *target* of the package *purl*.

    *version* is the library's own, if it is known; *evidence* is what proves that a library is the official one.
    """

    path: str
    sha256: str
    name: str
    fate: Treatment
    purl: str | None = None
    target: str | None = None
    version: str | None = None
    evidence: str | None = None


class Material(Struct, frozen=True):
    """Something that a build took: its name, and what is known to tell it from others of that name.

    *identity* is a hash of vbuild's own where nothing else pins it, of a folder or of a toolkit that was installed.
    """

    role: MaterialRole
    name: str
    version: str | None = None
    purl: str | None = None
    sha256: str | None = None
    url: str | None = None
    commit: str | None = None
    identity: str | None = None

    def __str__(self) -> str:
        return f"{self.name} {self.version}" if self.version else self.name


class Making(Struct, frozen=True):
    """One build: what it took, and its *settings*, such as target and flags, each a name and a text."""

    materials: tuple[Material, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()


class Bill(Struct, frozen=True):
    """What the wheels of *project* in *version* with these files are made of; *tool* is the vbuild that says so."""

    project: str
    version: str
    tool: str
    files: tuple[BillFile, ...] = ()
    gone: tuple[Gone, ...] = ()
    makings: tuple[Making, ...] = ()

    @classmethod
    def of(cls, name: WheelName, *, tool: str, makings: Iterable[Making] = ()) -> Self:
        """A bill of the wheel *name* that lists no file yet."""
        return cls(name.project, name.version, tool, makings=tuple(makings))

    @property
    def purl(self) -> str:
        """The package, as the package URL specification spells it.

        The file's name is not in it: a label, or other tags, make no other bill.
        """
        return package_url(self.project, self.version)

    def called(self, name: WheelName) -> Self:
        """The same of the wheel *name*."""
        return replace(self, project=name.project, version=name.version)


def package_url(project: str, version: str, *, file: str | None = None) -> str:
    """The package URL of a release on the Python package index, or of one *file* of it."""
    purl = f"pkg:pypi/{quote(canonicalize_name(project), safe='')}@{quote(version, safe='')}"
    return f"{purl}?file_name={quote(file, safe='')}" if file else purl


def public_url(url: str) -> str | None:
    """*url* without user and password, and without what stands behind its path; None for a place on this machine."""
    parts = urlsplit(url)
    if "://" not in url or parts.scheme == "file" or not parts.hostname:
        return None
    host = parts.hostname if parts.port is None else f"{parts.hostname}:{parts.port}"
    return urlunsplit((parts.scheme, host, parts.path, "", ""))
