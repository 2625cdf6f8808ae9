"""Other packages that have a library which a wheel needs and does not bring: their folders, and how it requires them.

    libcublas.so.12   CUDA 12 by its name              nvidia-cublas-cu12, folder as in RECORD of the release
    libcurand.so.10   CUDA 11, 12 and 13 have it       by the rest of the wheel, its requirements, its name; or --cuda
    libtorch_cpu.so   torch/lib                        torch is already loaded when it is needed

    was bundled, byte for byte    nvidia-cufft-cu12==11.2.1.3
    is found by RPATH             cuda-toolkit[cufft,curand]==12.*    the CUDA major, or the version of --cuda
                                  nvidia-nccl-cu12>=2.27.5,<3         for what is not in a toolkit

Lines of Requires-Dist hold for Linux and one kind of machine. A line of METADATA that cannot be read is ignored.
https://packaging.python.org/en/latest/specifications/dependency-specifiers/
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from operator import and_

from msgspec import Struct
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from vbuild.config.requirements import applies, checked_requirement, read_requirement, required_project
from vbuild.elf.catalogue import TOOLKIT, CatalogueEntry, by_soname, cuda_of, framework
from vbuild.errors import RepackageError, WheelError, at
from vbuild.splitting.bundle import Bundle
from vbuild.splitting.official import Officials, OfficialWheel
from vbuild.splitting.request import SplitRequest
from vbuild.wheel.metadata import Metadata

# the package cuda-toolkit begins with this CUDA major
_FIRST_TOOLKIT = 12
# 3.8 to 3.19
_PYTHONS = range(8, 20)
_MINORS, _PATCHES = 30, 5


class LibraryPackage(Struct, frozen=True):
    """Another package that has *library*, and the *folders* to search; *wheel* and *entry* are None for a framework."""

    project: str
    library: str
    folders: tuple[str, ...]
    wheel: OfficialWheel | None = None
    entry: CatalogueEntry | None = None


@dataclass(slots=True, eq=False)
class PackageFinder:
    officials: Officials
    request: SplitRequest
    _majors: dict[Bundle, int | None] = field(default_factory=dict)

    def find(self, bundle: Bundle, name: str) -> LibraryPackage | None:
        """The package that has the library *name* for *bundle*, or None if none is known.

        `RepackageError` if several CUDA versions have the library, and nothing says which is meant.
        """
        if package := framework(name):
            return LibraryPackage(package.project, name, (package.folder,))
        entries = by_soname(name)
        if not entries:
            return None
        with at(bundle.wheel.path.name):
            entry = self._entry(bundle, name, entries)
            # the releases that METADATA requires, of the CUDA version that is requested
            specifier = required(bundle.wheel.metadata(), entry.project) or SpecifierSet()
            if entry.extra and len(self.request.cuda) > 1 and entry.cuda == self.request.cuda[0]:
                specifier &= self.officials.pinned(".".join(map(str, self.request.cuda)), entry.project)
            wheel = self.officials.wheel(entry.project, specifier)
        own = [library.path.rpartition("/")[0] for library in wheel.libraries if library.soname == name]
        if not own:
            raise RepackageError(
                f"{bundle.wheel.path.name}: needs {name}, which {wheel.project}=={wheel.version} does not have; "
                "expected another release of it to be required, or --cuda VERSION"
            )
        required_folders = [folder for other in self.officials.closure(wheel) for folder in other.folders]
        return LibraryPackage(entry.project, name, tuple(dict.fromkeys([*own, *required_folders])), wheel, entry)

    def _entry(self, bundle: Bundle, name: str, entries: tuple[CatalogueEntry, ...]) -> CatalogueEntry:
        if len(entries) == 1:
            return entries[0]
        if bundle not in self._majors:
            self._majors[bundle] = dict(self.request.majors).get(bundle.wheel.path.name) or _cuda_major(bundle)
        major = self.request.cuda[0] if self.request.cuda else self._majors[bundle]
        for entry in entries:
            if entry.cuda == major:
                return entry
        majors = " and ".join(str(entry.cuda) for entry in entries)
        raise RepackageError(f"needs {name}, which CUDA {majors} have; say which one with --cuda")


def _cuda_major(bundle: Bundle) -> int | None:
    needed = {name for binary in bundle.binaries.values() for name in binary.loading.outline.needed}
    if (major := cuda_of(needed)) is not None:
        return major
    metadata = bundle.wheel.metadata()
    projects = [canonicalize_name(metadata.name), *filter(None, map(required_project, metadata.requires_dist))]
    majors = (11, 12, 13)
    known = {major for major in majors for name in projects if name.endswith((f"-cu{major}", f"-cuda{major}"))}
    return known.pop() if len(known) == 1 else None


class RequirementWriter(Struct, frozen=True):
    request: SplitRequest
    machine: str

    def lines(
        self, replaced: Iterable[OfficialWheel], packages: Iterable[LibraryPackage], metadata: Metadata
    ) -> tuple[str, ...]:
        """The lines for *replaced* wheels, and for those of *packages* that *metadata* does not require yet.

        `RepackageError` if the packages are of several CUDA majors, and nothing says which is meant.
        """
        missing: list[tuple[OfficialWheel, CatalogueEntry]] = []
        for package in packages:
            if (wheel := package.wheel) and (entry := package.entry):
                there = required(metadata, wheel.project, machine=self.machine, extra=entry.extra, cuda=entry.cuda)
                missing += [(wheel, entry)] if there is None else []
        # a wheel with a library for each CUDA loads one of them, and RPATHs lead to all
        majors = {entry.cuda for _, entry in missing if entry.cuda}
        if len(majors) > 1:
            if not self.request.cuda:
                several = " and ".join(map(str, sorted(majors)))
                raise RepackageError(f"needs libraries of CUDA {several}; say with --cuda which of them to require")
            missing = [(wheel, entry) for wheel, entry in missing if entry.cuda in {None, self.request.cuda[0]}]
        lines = [self.exactly(wheel.project, wheel.version) for wheel in replaced]
        toolkits: dict[str, set[str]] = {}
        for wheel, entry in missing:
            if entry.extra and entry.cuda and entry.cuda >= _FIRST_TOOLKIT:
                cuda = self.request.cuda or (entry.cuda,)
                toolkits.setdefault(".".join(map(str, cuda)), set()).add(entry.extra)
            else:
                lines.append(compatible_alone(wheel.project, wheel.version, machine=self.machine))
        lines += (compatible(extras, toolkit, machine=self.machine) for toolkit, extras in sorted(toolkits.items()))
        return tuple(dict.fromkeys(lines))

    def exactly(self, project: str, version: str) -> str:
        return _line(f"{canonicalize_name(project)}=={version}", self.machine)


def compatible(extras: Collection[str], toolkit: str, *, machine: str = "x86_64") -> str:
    """The line that requires the parts *extras* of a CUDA toolkit: any patch of ``12.4``, or minor of ``12``."""
    return _line(f"{TOOLKIT}[{','.join(sorted(extras))}]=={toolkit}.*", machine)


def compatible_alone(project: str, version: str, *, machine: str = "x86_64") -> str:
    """The line that requires *version* of *project* or a later one of the same major, for what no toolkit has.

    Before 1.0, the minor must be the same: nvidia-cusparselt-cu12 0.7 has its library in another folder than 0.6.
    """
    known = _version(project, version)
    following = f"{known.major + 1}" if known.major else f"0.{known.minor + 1}"
    return _line(f"{canonicalize_name(project)}>={version},<{following}", machine)


def merged(metadata: Metadata, lines: Iterable[str]) -> tuple[str, ...]:
    merged_lines = list(metadata.requires_dist)
    for line in lines:
        wanted = checked_requirement(line, RepackageError)
        if not any(_says(known, wanted) for known in map(read_requirement, merged_lines) if known):
            merged_lines.append(line)
    return tuple(merged_lines)


def conflict(metadata: Metadata, project: str, version: str, *, machine: str = "x86_64") -> str | None:
    """The line of *metadata* that excludes *version* of *project* on Linux and *machine*, or None.

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
    """The versions of *project* that *metadata* requires on Linux and *machine*, or None if it requires none.

    Lines for the *extra* of cuda-toolkit count, too, if their version can be of CUDA *cuda*; they allow every version.
    """
    specifiers = [requirement.specifier for _, requirement in _applying(metadata, project, machine)]
    if extra:
        versions = [f"{cuda}.{minor}.{patch}" for minor in range(_MINORS) for patch in range(_PATCHES)]
        for _, toolkit in _applying(metadata, TOOLKIT, machine):
            if extra in toolkit.extras and (cuda is None or any(map(toolkit.specifier.contains, versions))):
                specifiers.append(SpecifierSet())
    return reduce(and_, specifiers) if specifiers else None


def _line(specification: str, machine: str) -> str:
    marker = f'platform_system == "Linux" and platform_machine == "{machine}"'
    return str(checked_requirement(f"{specification}; {marker}", RepackageError))


def _version(project: str, version: str) -> Version:
    try:
        return Version(version)
    except InvalidVersion as error:
        raise RepackageError(f"{project}: version {version!r}, expected one as PEP 440 writes it") from error


def _says(known: Requirement, wanted: Requirement) -> bool:
    return (
        canonicalize_name(known.name) == canonicalize_name(wanted.name)
        and known.url == wanted.url
        and known.specifier == wanted.specifier
        and wanted.extras <= known.extras
        and (known.marker is None or known.marker == wanted.marker)
    )


def _applying(metadata: Metadata, project: str, machine: str) -> Iterator[tuple[str, Requirement]]:
    """The lines for *project* that apply to Linux and *machine* for some Python, without extras."""
    wanted = canonicalize_name(project)
    for line in metadata.requires_dist:
        requirement = read_requirement(line)
        if requirement and canonicalize_name(requirement.name) == wanted:
            with suppress(WheelError):  # a marker that cannot be evaluated is ignored like an unreadable line
                if any(applies(requirement, minor, machine=machine) for minor in _PYTHONS):
                    yield line, requirement
