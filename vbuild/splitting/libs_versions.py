"""The versions of -libs wheels: that of the release that first needs their contents, or of a published wheel with them.

    shapely 2.2.0    nothing published has its libraries     shapely-libs==2.2.0
    shapely 2.2.1    the same libraries                      shapely-libs==2.2.0
    shapely 2.3.0    other libraries                         shapely-libs==2.3.0

No marker tells glibc from musl, or an old glibc from a new one: all wheels of one machine require one version, and a
published one is taken only if it has the libraries of all. Its contents are recognised by RECORD, and by their hash in
WHEEL, a field that installers ignore.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import BinaryIO, cast

from msgspec import Struct
from msgspec.structs import replace
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from vbuild.config.requirements import checked_requirement, required_project, spelled
from vbuild.elf.catalogue import covers, systems_of
from vbuild.errors import RepackageError, at
from vbuild.index_client.configuration import Indexes
from vbuild.index_client.located import ListedFile, shown_place
from vbuild.splitting.companion import Companion, LibsContents, contents_in, projects_in
from vbuild.splitting.pools import MOST_FOREIGN, Pool
from vbuild.wheel.archive import Distant, Wheel, open_wheel
from vbuild.wheel.metadata import GENERATOR, LIBS, Metadata, Record, WheelFile, is_dist_info, recorded_sha256
from vbuild.wheel.name import WheelName

_ANY = "any"


class PublishedLibs(Struct, frozen=True):
    """A -libs wheel at *place*: its *files* by path, with SHA-256 in hex and bytes; it *is_ours* if a split made it.

    *projects* are those of a base.
    """

    name: WheelName
    place: str
    files: Mapping[str, tuple[str | None, int]]
    requires: frozenset[str]
    contents: str | None
    is_ours: bool
    projects: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: WheelName, place: str, record: Record, metadata: Metadata, about: WheelFile) -> "PublishedLibs":
        rows = (row for row in record.rows if not is_dist_info(row.path))
        return cls(
            name,
            place,
            {row.path: (recorded_sha256(row.hash), row.size or 0) for row in rows},
            frozenset(map(spelled, metadata.requires_dist)),
            contents_in(about),
            about.headers.value("Generator") == GENERATOR,
            projects_in(about),
        )

    @property
    def bases(self) -> list[str]:
        return [line for line in self.requires if (required_project(line) or "").endswith(LIBS)]

    def serves(self, wanted: LibsContents) -> bool:
        """Whether it has all that is *wanted*, and not much else."""
        if not self.is_ours or self.requires != frozenset(map(spelled, wanted.requires)):
            return False
        if any(self.files.get(path, ("", 0))[0] != digest for path, digest in wanted.files.items()):
            return False
        foreign = sum(size for path, (_, size) in self.files.items() if path not in wanted.files)
        return foreign <= MOST_FOREIGN * sum(size for _, size in self.files.values())


@dataclass(slots=True, eq=False)
class Publications:
    """The wheels that are there already: those *given*, and those *against* which a release is split: URL or folder.

    *libs* is the -libs wheel that a request names.
    """

    given: Sequence[Wheel] = ()
    against: str | Path | None = None
    indexes: Callable[[], Indexes] = Indexes.configured
    libs: str | None = None
    _read: dict[WheelName, PublishedLibs] = field(default_factory=dict)
    _listed: dict[str, Mapping[WheelName, ListedFile]] = field(default_factory=dict)
    _firsts: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)

    def releases(self, project: str) -> Iterator[tuple[Version, tuple[WheelName, ...]]]:
        """The versions of *project* with their wheels, the newest first; `RepackageError` if it is somebody else's."""
        for wheel in self.given:
            if wheel.name.project == project:
                about = wheel.wheel_file()
                published = PublishedLibs.of(wheel.name, "what is split", wheel.record, wheel.metadata(), about)
                self._read.setdefault(wheel.name, published)
        own = [name for name in self._read if name.project == project]
        by_version: dict[Version, list[WheelName]] = {}
        for name in dict.fromkeys([*own, *self._names(project)]):
            by_version.setdefault(Version(name.version), []).append(name)
        newest_first = sorted(by_version, reverse=True)
        if newest_first:
            first = self.read(by_version[newest_first[0]][0])
            if not first.is_ours:
                raise RepackageError(
                    f"{project}: {first.name} in {first.place} was not made by vbuild split: the name belongs to "
                    "another project; say with --libs what else to call the wheel of shared libraries"
                )
        yield from ((version, tuple(by_version[version])) for version in newest_first)

    def read(self, name: WheelName) -> PublishedLibs:
        if name not in self._read:
            with self._opened(self._listed[name.project][name]) as distant:
                about = WheelFile.parse(b"".join(distant.chunks(f"{name.dist_info}/WHEEL")).decode(errors="replace"))
                self._read[name] = PublishedLibs.of(name, self._shown, distant.record, distant.metadata, about)
        return self._read[name]

    def _names(self, project: str) -> Iterable[WheelName]:
        if self.against is None:
            return ()
        if project not in self._listed:
            files = self._files(project)
            self._listed[project] = {WheelName.parse(file.file): file for file in files if file.is_wheel}
            if files and not self._listed[project]:
                raise RepackageError(
                    f"{project}: {self._shown} has no wheel of it, but {files[0].file}: the name belongs to another "
                    "project; say with --libs what else to call the wheel of shared libraries"
                )
        return self._listed[project]

    def _files(self, project: str) -> Sequence[ListedFile]:
        from vbuild.index_client.packages import files_of

        return [file for file in files_of(project, indexes=self._places) if not file.is_yanked]

    def contradiction(self, release: WheelName, lines: Sequence[str]) -> str | None:
        """What is wrong with wheels of *release* that require *lines* beside the first published one, or None."""
        file, requires = self._first(release)
        if not (lines and file):
            return None
        stated = frozenset(map(spelled, requires))
        lacking = next((line for line in lines if spelled(line) not in stated), None)
        return lacking and (
            f"{self._shown} has {file}, which does not require {lacking.partition(';')[0]}: a tool that locks by "
            "it leaves the libraries out; split all wheels of a release at once"
        )

    def libs_lines(self, release: WheelName) -> tuple[str, ...]:
        """Those of the lines of the first published wheel of *release* that require -libs wheels of a split."""
        return tuple(line for line in self._first(release)[1] if self._is_ours(required_project(line) or ""))

    def libs_wheels(self, release: WheelName) -> Iterator[WheelName]:
        """Those -libs wheels, and, if *libs* states the version of a base that is there, its."""
        for line in self.libs_lines(release):
            requirement = checked_requirement(line, RepackageError)
            for version, wheels in self.releases(requirement.name):
                if version in requirement.specifier:
                    yield from wheels
        name, _, stated = (self.libs or "").partition("==")
        for version, wheels in self.releases(name.removesuffix(LIBS) + LIBS) if stated and self.against else ():
            if version == Version(stated):
                yield from (wheel for wheel in wheels if self.read(wheel).projects)

    def library_names(self, release: WheelName) -> dict[str, str]:
        """The file names of what is in those -libs wheels, with what these are named after."""
        return {
            PurePosixPath(path).name: wheel.project.removesuffix(LIBS)
            for wheel in self.libs_wheels(release)
            for path in self.read(wheel).files
        }

    @contextmanager
    def opened(self, name: WheelName, *, room: Path | None) -> Iterator[Wheel]:
        """The published wheel *name*, downloaded to a folder in *room*."""
        with TemporaryDirectory(dir=room) as folder, self._file(self._listed[name.project][name]) as file:
            path = Path(folder, str(name))
            with path.open("wb") as copy:
                shutil.copyfileobj(file, copy)
            with open_wheel(path) as wheel:
                yield wheel

    def _is_ours(self, project: str) -> bool:
        with suppress(RepackageError):
            return project.endswith(LIBS) and any(True for _ in self.releases(project))
        return False

    def _first(self, release: WheelName) -> tuple[str, tuple[str, ...]]:
        """The first published wheel of *release*, if any, and what it requires; what is given is published again."""
        if self.against is None:
            return "", ()
        if release.release not in self._firsts:
            given = {wheel.path.name for wheel in self.given}
            files = (file for file in self._files(release.project) if file.is_wheel and file.file not in given)
            first = next((file for file in files if file.version == Version(release.version)), None)
            self._firsts[release.release] = "", ()
            if first:
                with self._opened(first) as distant:
                    self._firsts[release.release] = first.file, distant.metadata.requires_dist
        return self._firsts[release.release]

    @contextmanager
    def _opened(self, listed: ListedFile) -> Iterator[Distant]:
        with self._file(listed) as file:
            yield Distant(file, WheelName.parse(listed.file))

    @contextmanager
    def _file(self, listed: ListedFile) -> Iterator[BinaryIO]:
        from vbuild.index_client.ranged import ranged

        with ranged(listed, indexes=self._places) as file, at(self._shown):
            yield cast("BinaryIO", file)

    @property
    def _places(self) -> Indexes:
        if isinstance(self.against, Path):
            if not self.against.is_dir():
                raise RepackageError(f"{self.against}: no such folder; expected one of published wheels, or an index")
            return Indexes(no_index=True, find_links=(self.against.absolute().as_uri(),))
        # of pip's configuration only how a server is reached, not which
        return replace(self.indexes(), index_url=self.against, extra_index_urls=(), find_links=(), no_index=False)

    @property
    def _shown(self) -> str:
        return shown_place(self.against) if isinstance(self.against, str) else str(self.against)


def is_published(wanted: LibsContents, publications: Publications) -> bool:
    """Whether a wheel that is required already has all that is *wanted*, whichever version of a base it requires."""
    wheels = (publications.read(name) for _, names in publications.releases(wanted.name) for name in names)
    return any(wheel.serves(replace(wanted, requires=(*wanted.requires, *wheel.bases))) for wheel in wheels)


class LibsChoice(Struct, frozen=True):
    companion: Companion
    contents: LibsContents
    is_published: bool = False


def libs_choices(
    libs: Mapping[Pool, LibsContents],
    publications: Publications,
    *,
    stated: Mapping[str, str],
    needs_empty: Callable[[Sequence[Pool]], bool],
) -> Mapping[Pool, LibsChoice]:
    """The -libs wheel of each pool; *stated* are the versions that the user named, by project.

    *needs_empty* says whether pools need a wheel without libraries beside theirs. `RepackageError` if a published wheel
    would get other contents, or nothing says which version to take.
    """
    groups: dict[tuple[str, str], dict[Pool, LibsContents]] = {}
    for pool, contents in libs.items():
        machines = sorted({machine for _, machine in systems_of(contents.platform)})
        groups.setdefault((contents.name, ".".join(machines)), {})[pool] = contents
    _check_one_release(libs)
    choices: dict[Pool, LibsChoice] = {}
    for (project, _), group in groups.items():
        version = stated.get(project)
        own = Version(version) if version else _common_version(project, group)
        published = _Group(group, publications, needs_empty(tuple(group)), stated=own if version else None)
        if names := published.newest(project, own):
            for pool, contents in group.items():
                companion = contents.wheel(names[pool].version)
                choices[pool] = LibsChoice(replace(companion, name=names[pool]), contents, is_published=True)
        else:
            published.check_free(project, own)
            choices |= {pool: LibsChoice(contents.wheel(str(own)), contents) for pool, contents in group.items()}
    return choices


class _Group(Struct, frozen=True):
    """The pools of one machine."""

    libs: Mapping[Pool, LibsContents]
    publications: Publications
    needs_empty: bool
    stated: Version | None = None

    def newest(self, project: str, own: Version) -> Mapping[Pool, WheelName] | None:
        """The wheels of the newest published version that has all libraries, or None.

        A final release takes no pre-release: installers leave it out unless they are asked for it. A version that is
        stated, or that published wheels of a release require, is taken or none.
        """
        releases = dict(self.publications.releases(project))
        pinned = self._pinned(project) & SpecifierSet(f"=={self.stated}" if self.stated in releases else "")
        for version, names in releases.items():
            if (version.is_prerelease and not own.is_prerelease) or not pinned.contains(version, prereleases=True):
                continue
            if self.needs_empty and all(name.platform != _ANY for name in names):
                continue
            serving = {pool: self._serving(contents, names) for pool, contents in self.libs.items()}
            chosen = {pool: name for pool, name in serving.items() if name}
            if len(chosen) == len(serving):
                return chosen
        return None

    def _pinned(self, project: str) -> SpecifierSet:
        wheels = {bundle.wheel.name for pool in self.libs for bundle in pool.bundles}
        lines = (line for wheel in wheels for line in self.publications.libs_lines(wheel))
        requirements = (checked_requirement(line, RepackageError) for line in lines)
        pins = {str(requirement.specifier) for requirement in requirements if requirement.name == project}
        return SpecifierSet(",".join(sorted(pins)))

    def _serving(self, wanted: LibsContents, names: Sequence[WheelName]) -> WheelName | None:
        """The one of *names* that has what is *wanted*, if no installer takes another instead."""
        rivals = [name for name in names if self._is_rival(name, wanted)]
        if all(self.publications.read(name).serves(wanted) for name in rivals):
            fitting = (name for name in rivals if covers(name.platform, wanted.platform))
            return min(fitting, key=lambda name: name.platform != wanted.platform, default=None)
        return None

    def _is_rival(self, name: WheelName, wanted: LibsContents) -> bool:
        others = {contents.platform for contents in self.libs.values()} - {wanted.platform}
        return name.platform not in others and not systems_of(name.platform).isdisjoint(systems_of(wanted.platform))

    def check_free(self, project: str, own: Version) -> None:
        """Refuse version *own* if a wheel of it is published with other contents."""
        names = next((names for version, names in self.publications.releases(project) if version == own), ())
        for wanted in self.libs.values():
            for name in (name for name in names if self._is_rival(name, wanted)):
                there = self.publications.read(name)
                if there.contents != wanted.contents:
                    raise RepackageError(
                        f"{name}: {there.place} has it with other libraries than these wheels need, and a published "
                        "file keeps its contents; raise the version of the release, or say --libs NAME==VERSION"
                    )


def _common_version(project: str, pools: Iterable[Pool]) -> Version:
    wheels = {bundle.wheel.name for pool in pools for bundle in pool.bundles}
    versions = {Version(name.version) for name in wheels}
    if len(versions) > 1:
        # builds of one release for other machines, such as 1.0+cu126 and 1.0+cu128
        versions = {Version(version.public) for version in versions}
    if len(versions) > 1:
        releases = sorted({f"{name.project} {name.version}" for name in wheels})
        raise RepackageError(
            f"{project}: {' and '.join(releases)} share libraries and have no version in common; "
            "say with --libs NAME==VERSION which one the wheel of their libraries gets"
        )
    return versions.pop()


def _check_one_release(pools: Iterable[Pool]) -> None:
    """Refuse two releases of one project that share libraries: one of them is published first."""
    versions_of: dict[str, set[Version]] = {}
    for bundle in chain.from_iterable(pool.bundles for pool in pools):
        name = bundle.wheel.name
        versions_of.setdefault(name.project, set()).add(Version(Version(name.version).public))
    for project, versions in versions_of.items():
        if len(versions) > 1:
            several = " and ".join(map(str, sorted(versions)))
            raise RepackageError(
                f"{project} {several}: two releases, expected one; split the earlier one first, and the later one "
                "with --against the folder or index that has the result"
            )
