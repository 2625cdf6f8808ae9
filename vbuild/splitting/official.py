"""The libraries that NVIDIA publishes in wheels of their own, and whether a bundled library is one of them.

libcufft-f3921c41.so.11.2.1.3
    RECORD of a release has its SHA-256                        identical
    RECORD of a release has a SHA-256 that begins with
      f3921c41, and what the loader maps of the two
      differs only in what repair tools change                 sections

Releases whose version is in the file name are tried first, then all others, the newest first. Of each wheel only the
directory, METADATA, RECORD and the library to compare are transferred, once. In the user's cache,
``official/<sha256>.json`` has Requires-Dist and the libraries of the wheel with that hash, ``official/<sha256>.so`` is
a library.

https://packaging.python.org/en/latest/specifications/binary-distribution-format/
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct, json
from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from vbuild.config.requirements import read_requirement
from vbuild.elf.catalogue import TOOLKIT, CatalogueEntry, hashed, plain
from vbuild.elf.read import Loading, mapped
from vbuild.errors import BinaryError, RepackageError, WheelError
from vbuild.files.cache import Cache, Part
from vbuild.files.hashing import sha256_of
from vbuild.index_client.configuration import Indexes
from vbuild.index_client.located import ListedFile
from vbuild.process.threads import OncePerKey, several_at_once
from vbuild.splitting.comparison import compared
from vbuild.wheel.archive import Distant
from vbuild.wheel.metadata import recorded_sha256
from vbuild.wheel.name import WheelName

if TYPE_CHECKING:
    from unearth.fetchers import PyPIClient

_EXTRA = re.compile(r"extra *== *['\"]([^'\"]+)['\"]")
_NUMBER = re.compile(r"\.so\.(?P<number>\d{1,9}(?:\.\d{1,9})+)$")
_LIBRARY = re.compile(r"(?!.*/stubs/)(?:.*/)?lib[^/]*\.so(?:\.\d[\w.]*)?")
# projects with NVIDIA's libraries, or that require these; wheels for CUDA 11 require setuptools and wheel by mistake
_NVIDIA = re.compile(r"nvidia-.+|cuda-toolkit|cu[a-z]+-cu\d\d")

_Candidate = tuple[str, ListedFile]


class OfficialLibrary(Struct, frozen=True):
    """A library in an official wheel, by RECORD; *size* is in bytes."""

    path: str
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    size: int

    @property
    def soname(self) -> str:
        return self.path.rpartition("/")[2]


class _WheelFacts(Struct, frozen=True):
    file: str
    requires: tuple[str, ...]
    libraries: tuple[OfficialLibrary, ...]


class OfficialWheel(Struct, frozen=True):
    project: str
    version: str
    file: str
    libraries: tuple[OfficialLibrary, ...]
    requires: tuple[str, ...]

    @property
    def folders(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(library.path.rpartition("/")[0] for library in self.libraries))


class OfficialEvidence(StrEnum):
    IDENTICAL = "identical"
    SECTIONS = "sections"


class Provenance(Struct, frozen=True):
    """The official library that a bundled one is; *transferred* is bytes."""

    wheel: OfficialWheel
    library: OfficialLibrary
    evidence: OfficialEvidence
    transferred: int


_Match = tuple[ListedFile, OfficialWheel, OfficialLibrary]


class Unproved(Struct, frozen=True):
    reason: str
    transferred: int


class Officials:
    """The official wheels for Linux on *machine*; every method raises `FetchError` if no index answers."""

    def __init__(
        self, machine: str, *, indexes: Callable[[], Indexes] = Indexes.configured, store: Path | None = None
    ) -> None:
        self._machine = machine
        self._ask = indexes
        self._indexes: OncePerKey[None, Indexes] = OncePerKey()
        self._listed: OncePerKey[str, tuple[ListedFile, ...]] = OncePerKey()
        self._facts: OncePerKey[str, _WheelFacts] = OncePerKey()
        self._found: OncePerKey[str, OfficialWheel] = OncePerKey()
        self._store = Cache.of(Part.OFFICIAL, store)

    def wheel(self, project: str, specifier: SpecifierSet) -> OfficialWheel:
        """The newest wheel of *project* that *specifier* allows; `RepackageError` without one, or a library in it.

        Pre-releases and yanked releases count only if *specifier* names exactly that version.
        """
        with self._session() as session:
            return self._newest(session, canonicalize_name(project), specifier)

    def closure(self, wheel: OfficialWheel) -> tuple[OfficialWheel, ...]:
        """*wheel*, and all wheels with NVIDIA's libraries that it requires, directly or indirectly."""
        closure = {wheel.project: wheel}

        def with_library(wanted: tuple[str, SpecifierSet]) -> OfficialWheel | None:
            try:
                return self._newest(session, *wanted)
            except RepackageError:  # only headers, or not for this machine
                return None

        with self._session() as session:
            last = [wheel]
            while last:
                wanted = {
                    canonicalize_name(requirement.name): requirement.specifier
                    for requirement in self._required(session, last)
                    if canonicalize_name(requirement.name) not in closure
                }
                with several_at_once(with_library, wanted.items()) as wheels:
                    last = [required for required in wheels if required]
                closure |= {new.project: new for new in last}
        return tuple(closure.values())

    def pinned(self, cuda: str, project: str) -> SpecifierSet:
        """The versions of *project* in the toolkit *cuda*, "12" or "12.4"; all if it has none.

        `RepackageError` if there is no such toolkit.
        """
        for release in self._toolkits():
            if SpecifierSet(f"=={cuda}.*").contains(release.version):
                with self._session() as session:
                    facts = session.facts(release)
                extras = {extra for line in facts.requires for extra in _EXTRA.findall(line)}
                requirements = self._requirements(facts.requires, extras)
                wanted = canonicalize_name(project)
                pins = (pin.specifier for pin in requirements if canonicalize_name(pin.name) == wanted)
                return next(pins, SpecifierSet())
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
    ) -> Provenance | Unproved:
        """The official library that *name*, with the bytes *data*, is, from the packages of *entries*."""
        if not entries:
            return Unproved("no official package has a library of its name", 0)
        outline = loading.outline
        if outline.machine != self._machine:
            return Unproved(f"it is for {outline.machine}, and not for {self._machine}", 0)
        hashed_name = hashed(name) or hashed(outline.soname or "")
        digest = hashed_name.digest if hashed_name else None
        with self._session() as session:
            matches = (self._match(session, sha256, digest, likely) for likely in self._candidates(name, entries))
            if (match := next(filter(None, matches), None)) is None:
                projects = ", ".join(dict.fromkeys(entry.project for entry in entries))
                why = f"a library whose SHA-256 begins with {digest}" if digest else "just these bytes"
                return Unproved(f"no release of {projects} for {self._machine} has {why}", session.transferred)
            listed, wheel, library = match
            if library.sha256 == sha256:
                return Provenance(wheel, library, OfficialEvidence.IDENTICAL, session.transferred)
            try:
                with session.library(listed, library) as official:
                    differs = compared(official, data).difference
            except (BinaryError, WheelError) as error:
                why = f"it cannot be compared: {error}"
            else:
                if not differs:
                    return Provenance(wheel, library, OfficialEvidence.SECTIONS, session.transferred)
                why = f"{differs}: it is another library"
            alike = f"{wheel.project} {wheel.version} has a {library.soname} whose SHA-256 begins with {digest}"
            return Unproved(f"{alike}, but {why}", session.transferred)

    def _candidates(self, name: str, entries: Sequence[CatalogueEntry]) -> Iterator[list[_Candidate]]:
        match = _NUMBER.search(plain(name))
        number = tuple(map(int, match["number"].split("."))) if match else ()
        likely, others = list[_Candidate](), list[_Candidate]()
        for project in dict.fromkeys(entry.project for entry in entries):
            for listed in self._wheels(project):
                release = listed.version.release[: len(number)]
                (likely if number and release == number else others).append((project, listed))
        yield likely
        yield others

    def _match(
        self, session: "_Session", sha256: str, digest: str | None, candidates: Sequence[_Candidate]
    ) -> _Match | None:
        def matched(candidate: _Candidate) -> _Match | None:
            project, listed = candidate
            try:
                facts = session.facts(listed)
            except WheelError:  # nothing comes from a damaged wheel
                return None
            alike = [library for library in facts.libraries if library.sha256 == sha256]
            if digest:
                alike += [library for library in facts.libraries if library.sha256.startswith(digest)]
            return (listed, self._official(project, listed, facts), alike[0]) if alike else None

        with several_at_once(matched, candidates) as matches:
            return next(filter(None, matches), None)

    def _newest(self, session: "_Session", project: str, specifier: SpecifierSet) -> OfficialWheel:
        return self._found.get(f"{project} {specifier}", lambda: self._looked_for(session, project, specifier))

    def _looked_for(self, session: "_Session", project: str, specifier: SpecifierSet) -> OfficialWheel:
        is_exact = any(clause.operator in {"==", "==="} and not clause.version.endswith(".*") for clause in specifier)
        wheels = self._wheels(project)
        for listed in wheels:
            if specifier.contains(listed.version, prereleases=is_exact) and (is_exact or not listed.is_yanked):
                wheel = self._official(project, listed, session.facts(listed))
                if not wheel.libraries:
                    raise RepackageError(
                        f"{project}=={listed.version}: no shared library in {listed.file}; expected a release with one"
                    )
                return wheel
        wanted, machine = f"{project}{specifier}", self._machine
        if wheels:
            versions = ", ".join(dict.fromkeys(str(listed.version) for listed in wheels))
            raise RepackageError(f"{wanted}: no such release for Linux on {machine}; expected one of {versions}")
        if files := self._files(project):
            raise RepackageError(
                f"{wanted}: no wheel for Linux on {machine}; {files[0].file} only keeps the name, "
                "expected the name of the package that has the library"
            )
        raise RepackageError(f"{wanted}: no package index has such a project")

    def _official(self, project: str, listed: ListedFile, facts: _WheelFacts) -> OfficialWheel:
        requires = tuple(map(str, self._requirements(facts.requires, {""})))
        return OfficialWheel(project, str(listed.version), listed.file, facts.libraries, requires)

    def _required(self, session: "_Session", wheels: Iterable[OfficialWheel]) -> Iterator[Requirement]:
        """NVIDIA's packages that *wheels* require, also by extras of cuda-toolkit."""
        for wheel in wheels:
            for requirement in filter(None, map(read_requirement, wheel.requires)):
                if canonicalize_name(requirement.name) == TOOLKIT:
                    fitting = (
                        release for release in self._toolkits() if requirement.specifier.contains(release.version)
                    )
                    if release := next(fitting, None):
                        yield from self._requirements(session.facts(release).requires, requirement.extras)
                elif _NVIDIA.fullmatch(canonicalize_name(requirement.name)):
                    yield requirement

    def _toolkits(self) -> tuple[ListedFile, ...]:
        newest: dict[tuple[int, ...], ListedFile] = {}
        for listed in self._wheels(TOOLKIT, any_platform=True):
            if not (listed.is_yanked or listed.version.is_prerelease):
                newest.setdefault(listed.version.release[:2], listed)
        return tuple(newest.values())

    def _requirements(self, lines: Iterable[str], extras: Iterable[str]) -> Iterator[Requirement]:
        """Those of *lines* that apply to Linux on this machine."""
        machine = {"platform_machine": self._machine, "sys_platform": "linux"}
        environment = machine | {"platform_system": "Linux", "os_name": "posix"}
        for requirement in filter(None, map(read_requirement, lines)):
            marker = requirement.marker
            # a marker that compares what cannot be compared applies nowhere
            with suppress(UndefinedComparison, UndefinedEnvironmentName):
                if marker is None or any(marker.evaluate(environment | {"extra": extra}) for extra in extras):
                    yield requirement

    def _files(self, project: str) -> tuple[ListedFile, ...]:
        from vbuild.index_client.packages import files_of

        return self._listed.get(project, lambda: files_of(project, indexes=self._indexes.get(None, self._ask)))

    def _wheels(self, project: str, *, any_platform: bool = False) -> tuple[ListedFile, ...]:

        def fits(listed: ListedFile) -> bool:
            try:
                platforms = WheelName.parse(listed.file).platform.split(".")
            except WheelError:
                return False
            if any_platform:
                return platforms == ["any"]
            starts, end = ("manylinux", "linux_"), f"_{self._machine}"
            return any(platform.startswith(starts) and platform.endswith(end) for platform in platforms)

        return tuple(listed for listed in self._files(project) if listed.is_wheel and fits(listed))

    @contextmanager
    def _session(self) -> "Iterator[_Session]":
        with ExitStack() as stack:
            yield _Session(lambda: self._indexes.get(None, self._ask), self._facts, self._store, stack)


@dataclass(slots=True)
class _Session:
    """Reads wheels of the indexes that *ask* returns; counts the bytes *transferred*."""

    ask: Callable[[], Indexes]
    known: OncePerKey[str, _WheelFacts]
    store: Cache
    stack: ExitStack
    transferred: int = 0
    _clients: OncePerKey[None, "PyPIClient"] = field(default_factory=OncePerKey)
    _lock: Lock = field(default_factory=Lock)

    def facts(self, listed: ListedFile) -> _WheelFacts:
        return self.known.get(f"{listed.sha256} {listed.url}", partial(self._facts, listed))

    def _facts(self, listed: ListedFile) -> _WheelFacts:
        name = f"{listed.sha256}.json" if listed.sha256 else None
        with suppress(ValueError):  # what is damaged, or about another file, is read again
            facts = json.decode((name and self.store.text(name)) or "", type=_WheelFacts)
            if facts.file == listed.file:
                return facts
        with self.opened(listed) as distant:
            sizes = {member.path: member.size for member in distant.members}
            libraries = tuple(
                OfficialLibrary(row.path, sha256, sizes[row.path])
                for row in distant.record.rows
                if _LIBRARY.fullmatch(row.path) and row.path in sizes and (sha256 := recorded_sha256(row.hash))
            )
            facts = _WheelFacts(str(distant.name), distant.metadata.requires_dist, libraries)
        if name:
            with suppress(OSError):  # it is read again next time
                self.store.keep_text(name, json.encode(facts).decode())
        return facts

    @contextmanager
    def library(self, listed: ListedFile, library: OfficialLibrary) -> Iterator[memoryview]:
        """Map the *library* of the *listed* wheel, from the cache or downloaded; `WheelError` if that is damaged."""
        name = f"{library.sha256}.so"
        with ExitStack() as stack:
            try:
                with self.store.locked(name):
                    path = self.store.folder / name
                    self.store.mark(path)
                    if not (path.is_file() and sha256_of(path) == library.sha256):
                        with self.store.replacing(name) as part:
                            self._download(listed, library, part)
            except OSError:
                path = Path(stack.enter_context(TemporaryDirectory(prefix="vbuild-official-")), name)
                self._download(listed, library, path)
            yield stack.enter_context(mapped(path))

    def _download(self, listed: ListedFile, library: OfficialLibrary, path: Path) -> None:
        digest = hashlib.sha256()
        with self.opened(listed) as distant, path.open("wb") as file:
            for chunk in distant.chunks(library.path):
                digest.update(chunk)
                file.write(chunk)
        if digest.hexdigest() != library.sha256:
            raise WheelError(f"{listed.file}: damaged: {library.path} is not what its RECORD says")

    @contextmanager
    def opened(self, listed: ListedFile) -> Iterator[Distant]:
        from vbuild.index_client.packages import client_of
        from vbuild.index_client.ranged import Ranged, opened

        file: Ranged | None = None
        client = self._clients.get(
            None, lambda: self.stack.enter_context(client_of(self.ask(), lambda _response: None))
        )
        try:
            with opened(client, listed) as file:
                # only methods that BinaryIO and raw files have in common are called
                yield Distant(file, WheelName.parse(listed.file))  # type: ignore[arg-type]
        finally:
            with self._lock:
                self.transferred += file.transferred if file else 0
