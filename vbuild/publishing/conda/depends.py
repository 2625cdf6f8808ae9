"""Requires-Dist as a conda package's dependencies, for each Python: markers evaluated, extras dropped, names mapped.

    numpy>=1.26,<3; python_version >= "3.12"    Python 3.11: nothing      Python 3.12: numpy >=1.26,<3a0
    demo[cli]~=1.4.2                            demo >=1.4.2,1.4.*        conda has no extras
    torch>=2                                    pytorch >=2               with torch mapped to pytorch

A package for several Pythons cannot require something on some of them: it becomes one for each run of Pythons with the
same requirements. A marker that depends on the patch version of Python counts if it applies to one patch version.

    ~=1.4.2     >=1.4.2,1.4.*        ==1.4.*    1.4.*        !=1.4.*    !=1.4.*
    <2          <2a0                 ==1.0      ==1.0        ===1.0     ==1.0
    >=2.dev0    >=2a0

PEP 440 keeps the pre-releases of 2 out of ``<2``; in conda they come before 2, so the bound is put before them. Conda's
``>1.7`` also admits 1.7.post1, and its ``==1.0`` ignores 1.0+local, which conda packages do not have.
https://packaging.python.org/en/latest/specifications/dependency-specifiers/#environment-markers
https://docs.conda.io/projects/conda/en/stable/user-guide/concepts/pkg-specs.html#package-match-specifications
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from msgspec import Struct
from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, Specifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from vbuild.config.requirements import SYSTEMS, applies, checked_requirement
from vbuild.errors import RepackageError, WheelError, at
from vbuild.wheel.metadata import Metadata

_ANY = ".*"


def matchspec(specifiers: SpecifierSet) -> str:
    """What *specifiers* ask for, in conda's words; empty where they ask for nothing.

    `RepackageError` for one that has no equivalent: ``===`` with what is not a version.
    """
    parts = (part for specifier in sorted(specifiers, key=str) for part in _spelled(specifier))
    # lower bounds first, as people write them
    return ",".join(sorted(dict.fromkeys(parts), key=lambda part: not part.startswith(">")))


def _spelled(specifier: Specifier) -> Iterator[str]:
    operator, text = specifier.operator, specifier.version
    match operator:
        case "~=":
            version = _version(specifier, text)
            yield f">={_bound(version)}"
            epoch = f"{version.epoch}!" if version.epoch else ""
            yield epoch + ".".join(map(str, version.release[:-1])) + _ANY
        case "==" | "!=" if text.endswith(_ANY):
            prefix = f"{_version(specifier, text.removesuffix(_ANY))}{_ANY}"
            yield prefix if operator == "==" else f"!={prefix}"
        case "<":
            version = _version(specifier, text)
            is_plain = not (version.is_prerelease or version.is_postrelease)
            yield f"<{_first(version) if is_plain else _bound(version)}"
        case ">=":
            yield f">={_bound(_version(specifier, text))}"
        case "===":
            yield f"=={_version(specifier, text)}"
        case _:
            yield f"{operator}{_version(specifier, text)}"


def _bound(version: Version) -> str:
    """Where the versions from *version* on begin: 2.0.dev0 is before all others of 2.0, in conda after its alphas."""
    return _first(version) if version.is_devrelease and version.pre is None else str(version)


def _first(version: Version) -> str:
    """The lowest pre-release of *version* as conda sorts them: 2a0 comes before 2.0a0."""
    release = [*version.release]
    while len(release) > 1 and not release[-1]:
        release.pop()
    epoch = f"{version.epoch}!" if version.epoch else ""
    return f"{epoch}{'.'.join(map(str, release))}a0"


def _version(specifier: Specifier, text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion as error:
        raise RepackageError(
            f"{specifier}: conda has no equivalent; expected a version as PEP 440 writes it"
        ) from error


# the minor versions of Python 3 that markers are checked against; the last one stands for all later ones
NEWEST = 24
_LAST_PATCH = 99
_CONDA_NAME = re.compile(r"[a-z0-9_][a-z0-9_.-]*", re.ASCII)
_PATCH = re.compile(r"3\.\d+\.0*[1-9]\w*", re.ASCII)


class DependencyRun(Struct, frozen=True):
    """What a package *depends* on besides Python, in the minor versions *pythons* of Python 3, without a gap."""

    pythons: tuple[int, ...]
    depends: tuple[str, ...]


class CondaNames(Struct, frozen=True):
    """What projects are called in the channels of conda, by their normalised names; others keep that name."""

    pairs: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for project, name in self.pairs:
            if not _CONDA_NAME.fullmatch(name):
                raise RepackageError(f"{project}={name}: no name of a conda package; expected a-z, 0-9, _, . and -")
        known: dict[str, str] = {}
        for project, name in self.pairs:
            if known.setdefault(canonicalize_name(project), name) != name:
                before = known[canonicalize_name(project)]
                raise RepackageError(f"{project}={name}: it is called {before} already; expected one name for it")

    def of(self, project: str) -> str:
        """What *project* is called."""
        name = canonicalize_name(project)
        return {canonicalize_name(known): called for known, called in self.pairs}.get(name, name)


def resolved(
    metadata: Metadata, pythons: Iterable[int], *, machine: str, names: CondaNames
) -> tuple[DependencyRun, ...]:
    """What *metadata* requires in each of *pythons* on Linux and *machine*; `RepackageError` if conda cannot say it."""
    requirements = tuple(_read(metadata))
    admitted = _admitted(metadata, pythons)
    if not admitted:
        raise RepackageError(f"Requires-Python is {metadata.requires_python}; expected one that some Python 3 fits")
    asked = [(minor, _asked(requirements, minor, machine, names)) for minor in admitted]
    # a gap between two Pythons ends a run as well
    runs = groupby(enumerate(asked), lambda pair: (pair[1][1], pair[1][0] - pair[0]))
    return tuple(DependencyRun(tuple(minor for _, (minor, _) in run), depends) for (depends, _), run in runs)


def patches_of(metadata: Metadata) -> str:
    """What Requires-Python says of patch versions, ``>=3.9.2,!=3.10.1``, which runs of minor ones do not say."""
    wanted = SpecifierSet(metadata.requires_python or "")
    return matchspec(SpecifierSet(",".join(str(one) for one in wanted if _PATCH.fullmatch(one.version))))


def depends_on_machine(metadata: Metadata) -> bool:
    """Whether what *metadata* requires differs between operating systems or machines."""
    places = [(system, machine) for system in SYSTEMS for machine in ("x86_64", "aarch64")]
    return any(
        len({applies(requirement, minor, machine=machine, system=system) for system, machine in places}) > 1
        for requirement in _read(metadata)
        for minor in range(NEWEST + 1)
    )


def extras_of(metadata: Metadata) -> tuple[str, ...]:
    """The extras that *metadata* declares, none of which a conda package has."""
    return tuple(sorted(set(metadata.headers.values("Provides-Extra"))))


def _read(metadata: Metadata) -> Iterator[Requirement]:
    for line in metadata.requires_dist:
        with at("Requires-Dist"):
            requirement = checked_requirement(line, WheelError)
        with at(f"Requires-Dist {line}"):
            if requirement.url:
                raise RepackageError("conda has no equivalent of a URL; expected a version")
            matchspec(requirement.specifier)
        yield requirement


def _admitted(metadata: Metadata, pythons: Iterable[int]) -> tuple[int, ...]:
    """Those of *pythons* of which Requires-Python allows some patch version."""
    try:
        wanted = SpecifierSet(metadata.requires_python or "")
    except InvalidSpecifier as error:
        raise RepackageError(f"Requires-Python {metadata.requires_python!r}: expected version specifiers") from error
    return tuple(
        minor
        for minor in pythons
        if any(wanted.contains(f"3.{minor}.{patch}", prereleases=True) for patch in range(_LAST_PATCH + 1))
    )


def _asked(requirements: Sequence[Requirement], minor: int, machine: str, names: CondaNames) -> tuple[str, ...]:
    """The match specifications of those *requirements* that hold in Python 3.*minor*, sorted, one for each project."""
    found: dict[str, SpecifierSet] = {}
    for requirement in requirements:
        if applies(requirement, minor, machine=machine):
            name = names.of(requirement.name)
            found[name] = found.get(name, SpecifierSet()) & requirement.specifier
    return tuple(f"{name} {matchspec(specifiers)}".rstrip() for name, specifiers in sorted(found.items()))
