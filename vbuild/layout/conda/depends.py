"""Requires-Dist as a conda package's dependencies, for each Python: markers decided, extras dropped, names mapped.

    numpy>=1.26,<3; python_version >= "3.12"    Python 3.11: nothing      Python 3.12: numpy >=1.26,<3a0
    demo[cli]~=1.4.2                            demo >=1.4.2,1.4.*        conda has no extras
    torch>=2                                    pytorch >=2               with torch mapped to pytorch

A package for several Pythons cannot ask for something on some of them: it becomes one for each run of Pythons that ask
for the same. What is decided by the patch version of Python is asked for where one patch version asks for it.
https://packaging.python.org/en/latest/specifications/dependency-specifiers/#environment-markers
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from vbuild.errors import LayoutError, at
from vbuild.layout.conda.versions import matchspec
from vbuild.layout.markers import SYSTEMS, holds, requirement_of
from vbuild.wheel.distinfo import Metadata

# the minor versions of Python 3 that markers are held against; the last one stands for all later ones
NEWEST = 24
_LAST_PATCH = 99
_CONDA_NAME = re.compile(r"[a-z0-9_][a-z0-9_.-]*", re.ASCII)
_PATCH = re.compile(r"3\.\d+\.0*[1-9]\w*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a package *depends* on besides Python, in the minor versions *pythons* of Python 3, without a gap."""

    pythons: tuple[int, ...]
    depends: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Names:
    """What projects are called in the channels of conda, by their normalised names; others keep that name."""

    pairs: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for project, name in self.pairs:
            if not _CONDA_NAME.fullmatch(name):
                raise LayoutError(f"{project}={name}: no name of a conda package; expected a-z, 0-9, _, . and -")
        known: dict[str, str] = {}
        for project, name in self.pairs:
            if known.setdefault(canonicalize_name(project), name) != name:
                before = known[canonicalize_name(project)]
                raise LayoutError(f"{project}={name}: it is called {before} already; expected one name for it")

    def of(self, project: str) -> str:
        """What *project* is called."""
        name = canonicalize_name(project)
        return {canonicalize_name(known): called for known, called in self.pairs}.get(name, name)


def resolved(metadata: Metadata, pythons: Iterable[int], *, machine: str, names: Names) -> tuple[Resolved, ...]:
    """What *metadata* requires in each of *pythons* on Linux and *machine*; `LayoutError` where conda cannot say it."""
    requirements = tuple(_read(metadata))
    admitted = _admitted(metadata, pythons)
    if not admitted:
        raise LayoutError(f"Requires-Python is {metadata.requires_python}; expected one that some Python 3 fits")
    asked = [(minor, _asked(requirements, minor, machine, names)) for minor in admitted]
    # a gap between two Pythons ends a run as well
    runs = groupby(enumerate(asked), lambda pair: (pair[1][1], pair[1][0] - pair[0]))
    return tuple(Resolved(tuple(minor for _, (minor, _) in run), depends) for (depends, _), run in runs)


def patches_of(metadata: Metadata) -> str:
    """What Requires-Python says of patch versions, ``>=3.9.2,!=3.10.1``, which runs of minor ones do not say."""
    wanted = SpecifierSet(metadata.requires_python or "")
    return matchspec(SpecifierSet(",".join(str(one) for one in wanted if _PATCH.fullmatch(one.version))))


def depends_on_machine(metadata: Metadata) -> bool:
    """Whether what *metadata* requires differs between operating systems or machines."""
    places = [(system, machine) for system in SYSTEMS for machine in ("x86_64", "aarch64")]
    return any(
        len({holds(requirement, minor, machine=machine, system=system) for system, machine in places}) > 1
        for requirement in _read(metadata)
        for minor in range(NEWEST + 1)
    )


def extras_of(metadata: Metadata) -> tuple[str, ...]:
    """The extras that *metadata* declares, none of which a conda package has."""
    return tuple(sorted(set(metadata.headers.values("Provides-Extra"))))


def _read(metadata: Metadata) -> Iterator[Requirement]:
    for line in metadata.requires_dist:
        requirement = requirement_of(line)
        with at(f"Requires-Dist {line}"):
            if requirement.url:
                raise LayoutError("conda has no equivalent of a URL; expected a version")
            matchspec(requirement.specifier)
        yield requirement


def _admitted(metadata: Metadata, pythons: Iterable[int]) -> tuple[int, ...]:
    """Those of *pythons* of which Requires-Python allows some patch version."""
    try:
        wanted = SpecifierSet(metadata.requires_python or "")
    except InvalidSpecifier as error:
        raise LayoutError(f"Requires-Python {metadata.requires_python!r}: expected version specifiers") from error
    return tuple(
        minor
        for minor in pythons
        if any(wanted.contains(f"3.{minor}.{patch}", prereleases=True) for patch in range(_LAST_PATCH + 1))
    )


def _asked(requirements: Sequence[Requirement], minor: int, machine: str, names: Names) -> tuple[str, ...]:
    """The match specifications of those *requirements* that hold in Python 3.*minor*, sorted, one for each project."""
    found: dict[str, SpecifierSet] = {}
    for requirement in requirements:
        if holds(requirement, minor, machine=machine):
            name = names.of(requirement.name)
            found[name] = found.get(name, SpecifierSet()) & requirement.specifier
    return tuple(f"{name} {matchspec(specifiers)}".rstrip() for name, specifiers in sorted(found.items()))
