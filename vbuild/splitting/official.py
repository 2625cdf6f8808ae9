"""The libraries that NVIDIA publishes in wheels of their own, and the proof that a bundled one is such a library.

libcufft-f3921c41.so.11.2.1.3
    its SHA-256 in the RECORD of a release                     identical
    a SHA-256 there that begins with f3921c41, and it can be
      undone what repair tools did to the bundled copy: the
      bytes that come out have that SHA-256                    restored
      found, with all of it fetched, nothing else changed      sections

A version in the file name says where to look first, then the newest release. Of a wheel that is looked at, its
directory, METADATA, RECORD and the start of one library are transferred, and nothing twice.
https://packaging.python.org/en/latest/specifications/binary-distribution-format/
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import partial
from pathlib import Path, PurePosixPath

from msgspec import Struct
from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from vbuild.elf.catalogue import TOOLKIT, CatalogueEntry
from vbuild.elf.library_names import hashed, plain
from vbuild.elf.read import Loading
from vbuild.errors import BinaryError, RepackageError, WheelError
from vbuild.index_client.configuration import Indexes
from vbuild.index_client.listing import ListedFile
from vbuild.splitting.official_cache import (
    CachedLibrary,
    IndexSession,
    OfficialIndex,
    OncePerKey,
    WheelFacts,
    all_of,
    first_of,
)
from vbuild.splitting.official_compare import difference
from vbuild.splitting.official_restore import RestoredFile, head_size, matching, restored
from vbuild.wheel.extract import mapped

_EXTRA = re.compile(r"extra *== *['\"]([^'\"]+)['\"]")
_NUMBER = re.compile(r"\.so\.(?P<number>\d{1,9}(?:\.\d{1,9})+)$")
# who requires what NVIDIA has, and no more: wheels for CUDA 11 require setuptools and wheel, by mistake
_NVIDIA = re.compile(r"nvidia-.+|cuda-toolkit|cu[a-z]+-cu\d\d")


class OfficialLibrary(Struct, frozen=True):
    """A library in an official wheel: its path there, its file name, and what RECORD says of it; *size* is bytes."""

    path: str
    soname: str
    sha256: str
    size: int


class OfficialWheel(Struct, frozen=True):
    """A release of an official package for one kind of machine."""

    project: str
    version: str
    file: str
    libraries: tuple[OfficialLibrary, ...]
    requires: tuple[str, ...]

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders below site-packages that its libraries are in."""
        return tuple(dict.fromkeys(library.path.rpartition("/")[0] for library in self.libraries))


class OfficialEvidence(StrEnum):
    """What proves that a bundled library is the official one."""

    IDENTICAL = "identical"
    RESTORED = "restored"
    SECTIONS = "sections"


class Provenance(Struct, frozen=True):
    """Where a bundled library comes from; *transferred* is bytes."""

    wheel: OfficialWheel
    library: OfficialLibrary
    evidence: OfficialEvidence
    transferred: int


class Unproved(Struct, frozen=True):
    """Why a library cannot be taken for an official one, for people: "left as it was, because <reason>"."""

    reason: str
    transferred: int


class Officials:
    """The official wheels for Linux on *machine*, asked lazily and remembered; several threads may ask at once.

    What wheels say is kept in *store*, or in the user's cache. `FetchError` from everything where no index can be
    asked, or one breaks off.
    """

    def __init__(
        self, machine: str, *, indexes: Callable[[], Indexes] = Indexes.configured, store: Path | None = None
    ) -> None:
        self._shelf = OfficialIndex(machine, indexes, store)
        self._found: OncePerKey[str, OfficialWheel] = OncePerKey()

    def wheel(self, project: str, specifier: SpecifierSet) -> OfficialWheel:
        """The newest wheel of *project* that *specifier* allows; `RepackageError` where there is none with a library.

        Pre-releases and what was withdrawn count only where *specifier* names just that version.
        """
        with self._shelf.asking() as asking:
            return self._wheel(asking, canonicalize_name(project), specifier)

    def closure(self, wheel: OfficialWheel) -> tuple[OfficialWheel, ...]:
        """*wheel*, and the wheels with NVIDIA's libraries that it requires, and those that they require."""
        found = {wheel.project: wheel}
        with self._shelf.asking() as asking:
            last = [wheel]
            while last:
                wanted = {
                    canonicalize_name(requirement.name): requirement.specifier
                    for requirement in self._required(asking, last)
                    if canonicalize_name(requirement.name) not in found
                }
                last = [one for one in all_of(partial(self._with_library, asking), wanted.items()) if one]
                found |= {one.project: one for one in last}
        return tuple(found.values())

    def toolkits(self, project: str, version: str, extra: str) -> tuple[str, ...]:
        """The minor versions of cuda-toolkit, as "12.4", whose *extra* pins *project* to *version*, the newest first.

        Of each minor version the newest release counts, which is what ``==12.4.*`` leads to.
        """
        with self._shelf.asking() as asking:
            releases = self._toolkits()
            every = zip(releases, all_of(asking.facts, releases), strict=True)
            return tuple(
                f"{release.version.major}.{release.version.minor}"
                for release, facts in every
                if any(
                    _pins(requirement, project, version) for requirement in self._requirements(facts.requires, {extra})
                )
            )

    def pinned(self, cuda: str, project: str) -> SpecifierSet:
        """The versions of *project* that the toolkit of the version *cuda*, "12" or "12.4", has; all, if it has none.

        `RepackageError` where there is no such toolkit.
        """
        for release in self._toolkits():
            if SpecifierSet(f"=={cuda}.*").contains(release.version):
                with self._shelf.asking() as asking:
                    facts = asking.facts(release)
                extras = {extra for line in facts.requires for extra in _EXTRA.findall(line)}
                found = (one for one in self._requirements(facts.requires, extras) if _names(one, project))
                return next((requirement.specifier for requirement in found), SpecifierSet())
        raise RepackageError(
            f"CUDA {cuda}: no release of {TOOLKIT} for it; expected a version that the package index has"
        )

    def provenance(
        self,
        name: str,
        loading: Loading,
        data: memoryview,
        *,
        sha256: str,
        entries: Sequence[CatalogueEntry],
        fetch: bool = False,
    ) -> Provenance | Unproved:
        """Which library of the packages of *entries* the bundled one called *name* is, *data* with that *sha256*.

        With *fetch* the whole official library is brought here where less is no proof.
        """
        if not entries:
            return Unproved("no official package has a library of its name", 0)
        outline = loading.outline
        if outline.machine != self._shelf.machine:
            return Unproved(f"it is for {outline.machine}, and not for {self._shelf.machine}", 0)
        found = hashed(name) or hashed(outline.soname or "")
        bundled = _Bundled(data, sha256, found.digest if found else None)
        with self._shelf.asking() as asking:
            for likely in self._candidates(name, entries):
                if match := first_of(partial(_matched, asking, bundled), likely):
                    return self._proved(asking, bundled, match, fetch=fetch)
            projects = ", ".join(dict.fromkeys(entry.project for entry in entries))
            why = f"a library whose SHA-256 begins with {bundled.digest}" if bundled.digest else "just these bytes"
            return Unproved(f"no release of {projects} for {self._shelf.machine} has {why}", asking.transferred)

    def _proved(
        self, asking: IndexSession, bundled: "_Bundled", match: "_Match", *, fetch: bool
    ) -> Provenance | Unproved:
        wheel = self._official(match.project, match.listed, match.facts)
        library = next(library for library in wheel.libraries if library.path == match.library.path)
        if library.sha256 == bundled.sha256:
            return Provenance(wheel, library, OfficialEvidence.IDENTICAL, asking.transferred)
        found = _evidence(asking, bundled, match, fetch=fetch)
        if isinstance(found, OfficialEvidence):
            return Provenance(wheel, library, found, asking.transferred)
        what = f"{wheel.project} {wheel.version} has a {library.soname} whose SHA-256 begins with {bundled.digest}"
        return Unproved(f"{what}, but {found}", asking.transferred)

    def _candidates(self, name: str, entries: Sequence[CatalogueEntry]) -> Iterator[list["_Candidate"]]:
        """The releases that *name* may be from: those whose version it says, then all others, the newest first."""
        match = _NUMBER.search(plain(name))
        number = tuple(map(int, match["number"].split("."))) if match else ()
        likely, others = list[_Candidate](), list[_Candidate]()
        for project in dict.fromkeys(entry.project for entry in entries):
            for listed in self._shelf.wheels(project):
                said = listed.version.release[: len(number)]
                (likely if number and said == number else others).append(_Candidate(project, listed))
        yield likely
        yield others

    def _wheel(self, asking: IndexSession, project: str, specifier: SpecifierSet) -> OfficialWheel:
        return self._found.get(f"{project} {specifier}", lambda: self._newest(asking, project, specifier))

    def _newest(self, asking: IndexSession, project: str, specifier: SpecifierSet) -> OfficialWheel:
        is_exact = any(one.operator in {"==", "==="} and not one.version.endswith(".*") for one in specifier)
        wheels = self._shelf.wheels(project)
        for listed in wheels:
            if specifier.contains(listed.version, prereleases=is_exact) and (is_exact or not listed.is_yanked):
                wheel = self._official(project, listed, asking.facts(listed))
                if not wheel.libraries:
                    raise RepackageError(
                        f"{project}=={listed.version}: no shared library in {listed.file}; expected a release with one"
                    )
                return wheel
        wanted, machine = f"{project}{specifier}", self._shelf.machine
        if wheels:
            versions = ", ".join(dict.fromkeys(str(listed.version) for listed in wheels))
            raise RepackageError(f"{wanted}: no such release for Linux on {machine}; expected one of {versions}")
        if files := self._shelf.listed(project):
            raise RepackageError(
                f"{wanted}: no wheel for Linux on {machine}; {files[0].file} only keeps the name, "
                "expected the name of the package that has the library"
            )
        raise RepackageError(f"{wanted}: no package index has such a project")

    def _official(self, project: str, listed: ListedFile, facts: WheelFacts) -> OfficialWheel:
        libraries = (
            OfficialLibrary(library.path, PurePosixPath(library.path).name, library.sha256, library.size)
            for library in facts.libraries
        )
        requires = tuple(map(str, self._requirements(facts.requires, {""})))
        return OfficialWheel(project, str(listed.version), listed.file, tuple(libraries), requires)

    def _required(self, asking: IndexSession, wheels: Iterable[OfficialWheel]) -> Iterator[Requirement]:
        """NVIDIA's packages that *wheels* require, those behind extras of cuda-toolkit as well."""
        for wheel in wheels:
            for requirement in map(Requirement, wheel.requires):
                if _names(requirement, TOOLKIT):
                    fitting = (one for one in self._toolkits() if requirement.specifier.contains(one.version))
                    if release := next(fitting, None):
                        yield from self._requirements(asking.facts(release).requires, requirement.extras)
                elif _NVIDIA.fullmatch(canonicalize_name(requirement.name)):
                    yield requirement

    def _with_library(self, asking: IndexSession, wanted: tuple[str, SpecifierSet]) -> OfficialWheel | None:
        try:
            return self._wheel(asking, *wanted)
        except RepackageError:  # headers only, or a package that is not for this machine
            return None

    def _toolkits(self) -> tuple[ListedFile, ...]:
        """The newest release of cuda-toolkit for each minor version, the newest version first."""
        newest: dict[tuple[int, ...], ListedFile] = {}
        for listed in self._shelf.wheels(TOOLKIT, any_platform=True):
            if not (listed.is_yanked or listed.version.is_prerelease):
                newest.setdefault(listed.version.release[:2], listed)
        return tuple(newest.values())

    def _requirements(self, lines: Iterable[str], extras: Iterable[str]) -> Iterator[Requirement]:
        """The requirements among *lines* that hold for Linux on this machine, with one of *extras*."""
        machine = {"platform_machine": self._shelf.machine, "sys_platform": "linux"}
        environment = machine | {"platform_system": "Linux", "os_name": "posix"}
        for line in lines:
            try:
                requirement = Requirement(line)
            except InvalidRequirement:
                continue
            marker = requirement.marker
            # a marker may compare what cannot be compared: it holds nowhere
            with suppress(UndefinedComparison, UndefinedEnvironmentName):
                if marker is None or any(marker.evaluate(environment | {"extra": extra}) for extra in extras):
                    yield requirement


def _pins(requirement: Requirement, project: str, version: str) -> bool:
    """Whether *requirement* is for *project* and names just *version*, patches aside."""
    is_exact = any(one.operator == "==" for one in requirement.specifier)
    return is_exact and _names(requirement, project) and requirement.specifier.contains(version)


class _Bundled(Struct, frozen=True):
    """A library that is to be recognised; *digest* is the hash in its file name."""

    data: memoryview
    sha256: str
    digest: str | None


class _Candidate(Struct, frozen=True):
    project: str
    listed: ListedFile


class _Match(Struct, frozen=True):
    """A library of a release that may be the bundled one."""

    project: str
    listed: ListedFile
    facts: WheelFacts
    library: CachedLibrary


def _matched(asking: IndexSession, bundled: _Bundled, candidate: _Candidate) -> _Match | None:
    try:
        facts = asking.facts(candidate.listed)
    except WheelError:  # nothing comes from a wheel that is damaged
        return None
    alike = [library for library in facts.libraries if library.sha256 == bundled.sha256]
    if bundled.digest:
        alike += [library for library in facts.libraries if library.sha256.startswith(bundled.digest)]
    return _Match(candidate.project, candidate.listed, facts, alike[0]) if alike else None


def _evidence(asking: IndexSession, bundled: _Bundled, match: _Match, *, fetch: bool) -> OfficialEvidence | str:
    """What proves that *bundled* is the library of *match*, or why nothing does."""
    library = match.library
    try:
        with asking.opened(match.listed) as distant:
            head = distant.head(library.path, head_size(bundled.data, library.size))
            if rope := matching(restored(bundled.data, head, library.size), library.sha256):
                # what the head has, nobody has looked at in the bundled copy
                differs = difference(RestoredFile(rope), bundled.data, below=len(head))
                return f"{differs}: it is another library" if differs else OfficialEvidence.RESTORED
            if not fetch:
                return "what was changed since cannot be undone; --fetch-official compares all of it"
            with mapped(distant.chunks(library.path), folder=None) as official:
                if hashlib.sha256(official).hexdigest() != library.sha256:
                    return "that wheel is damaged: the library is not what its RECORD says"
                differs = difference(official, bundled.data)
    except (BinaryError, WheelError) as error:
        return f"it cannot be compared: {error}"
    return f"{differs}: it is another library" if differs else OfficialEvidence.SECTIONS


def _names(requirement: Requirement, project: str) -> bool:
    return canonicalize_name(requirement.name) == canonicalize_name(project)
