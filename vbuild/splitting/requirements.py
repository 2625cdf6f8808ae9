"""Requires-Dist: lines that require official wheels, and what METADATA requires already.

    exact("nvidia-cufft-cu12", "11.2.1.3")         -> nvidia-cufft-cu12==11.2.1.3; platform_system == "Linux" and …
    compatible({"cufft", "curand"}, "12.4")        -> cuda-toolkit[cufft,curand]==12.4.*; …
    compatible_alone("nvidia-cudnn-cu12", "9.1.0") -> nvidia-cudnn-cu12<10,>=9.1.0; …

Lines are written as packaging writes them. An unreadable line, as in old metadata, stays and is ignored.
https://packaging.python.org/en/latest/specifications/dependency-specifiers/
"""

from collections.abc import Collection, Iterable, Iterator

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from vbuild.config.requirements import applies, checked_requirement, read_requirement
from vbuild.elf.catalogue import TOOLKIT
from vbuild.errors import RepackageError, WheelError
from vbuild.wheel.metadata import Metadata

# 3.8 to 3.19
_PYTHONS = range(8, 20)
_MINORS, _PATCHES = 30, 5


def exact(project: str, version: str, *, machine: str = "x86_64") -> str:
    """Return the line that requires exactly *version* of *project*, on Linux and *machine*."""
    return _line(f"{canonicalize_name(project)}=={version}", machine)


def compatible(extras: Collection[str], toolkit: str, *, machine: str = "x86_64") -> str:
    """Return the line that requires the parts *extras* of a CUDA toolkit: any patch of ``12.4``, or minor of ``12``."""
    return _line(f"{TOOLKIT}[{','.join(sorted(extras))}]=={toolkit}.*", machine)


def compatible_alone(project: str, version: str, *, machine: str = "x86_64") -> str:
    """Return the line that requires *version* of *project* or a later one of the same major, for what no toolkit has.

    Before 1.0, the minor must be the same: nvidia-cusparselt-cu12 0.7 has its library in another folder than 0.6.
    """
    known = _version(project, version)
    following = f"{known.major + 1}" if known.major else f"0.{known.minor + 1}"
    return _line(f"{canonicalize_name(project)}>={version},<{following}", machine)


def merged(metadata: Metadata, lines: Iterable[str]) -> tuple[str, ...]:
    """Return the Requires-Dist lines of *metadata*, then those of *lines* that add something."""
    found = list(metadata.requires_dist)
    for line in lines:
        wanted = checked_requirement(line, RepackageError)
        if not any(_says(known, wanted) for known in map(read_requirement, found) if known):
            found.append(line)
    return tuple(found)


def conflict(metadata: Metadata, project: str, version: str, *, machine: str = "x86_64") -> str | None:
    """Return the line of *metadata* that excludes *version* of *project* on Linux and *machine*, or None.

    A line for an extra does not count; a line for some Python does. A URL names no version, so it conflicts.
    """
    wanted = _version(project, version)
    for line, requirement in _applying(metadata, project, machine):
        if requirement.url or not requirement.specifier.contains(wanted, prereleases=True):
            return line
    return None


def required(
    metadata: Metadata,
    project: str,
    *,
    machine: str = "x86_64",
    extra: str | None = None,
    cuda: int | None = None,
) -> SpecifierSet | None:
    """Return the versions of *project* that *metadata* requires on Linux and *machine*, or None if it requires none.

    With *extra*, lines for that part of cuda-toolkit count, if their version can be of CUDA *cuda*; they allow every
    version of *project*.
    """
    found = [requirement.specifier for _, requirement in _applying(metadata, project, machine)]
    if extra:
        toolkits = (requirement for _, requirement in _applying(metadata, TOOLKIT, machine))
        found += [SpecifierSet() for toolkit in toolkits if extra in toolkit.extras and _is_of(toolkit, cuda)]
    if not found:
        return None
    whole = SpecifierSet()
    for specifier in found:
        whole &= specifier
    return whole


def _is_of(toolkit: Requirement, cuda: int | None) -> bool:
    """Whether *toolkit* can be one of CUDA *cuda*."""
    versions = (f"{cuda}.{minor}.{patch}" for minor in range(_MINORS) for patch in range(_PATCHES))
    return cuda is None or any(toolkit.specifier.contains(version) for version in versions)


def _line(specification: str, machine: str) -> str:
    marker = f'platform_system == "Linux" and platform_machine == "{machine}"'
    return str(checked_requirement(f"{specification}; {marker}", RepackageError))


def _version(project: str, version: str) -> Version:
    try:
        return Version(version)
    except InvalidVersion as error:
        raise RepackageError(f"{project}: version {version!r}, expected one as PEP 440 writes it") from error


def _says(known: Requirement, wanted: Requirement) -> bool:
    """Whether *known* requires all that *wanted* requires, wherever *wanted* does."""
    return (
        canonicalize_name(known.name) == canonicalize_name(wanted.name)
        and known.url == wanted.url
        and known.specifier == wanted.specifier
        and wanted.extras <= known.extras
        and (known.marker is None or known.marker == wanted.marker)
    )


def _applying(metadata: Metadata, project: str, machine: str) -> Iterator[tuple[str, Requirement]]:
    """Yield the lines for *project* that apply to Linux and *machine* for some Python, without extras."""
    wanted = canonicalize_name(project)
    for line in metadata.requires_dist:
        requirement = read_requirement(line)
        if requirement and canonicalize_name(requirement.name) == wanted and _holds(requirement, machine):
            yield line, requirement


def _holds(requirement: Requirement, machine: str) -> bool:
    try:
        return any(applies(requirement, minor, machine=machine) for minor in _PYTHONS)
    except WheelError:  # ignored like an unreadable line
        return False
