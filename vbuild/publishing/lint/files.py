"""Read the files of a folder that would be published, each once, and group them by release.

    *.whl              every member, compared with RECORD
    *.tar.gz           its first PKG-INFO below the top folder, and the licences that this names
    *-variants.json    which variants a release has (PEP 825, index-level metadata)
    *.zip, *.tgz, ...  by name only: an sdist in a form of earlier years, if it is called after a release

Of files behind a page of links only METADATA and variant.json are transferred; METADATA and Requires-Python that the
page states are compared with them.
"""

import contextlib
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Self, TypeVar

from msgspec import Struct
from msgspec.structs import replace
from packaging.utils import InvalidSdistFilename, canonicalize_name, parse_sdist_filename
from packaging.version import Version

from vbuild.config.requirements import read_requirement
from vbuild.errors import FetchError, RepackageError, VbuildError, at
from vbuild.index_client.located import LocatedFile
from vbuild.publishing.lint.metadata import MetadataView, metadata_view, spelled_value
from vbuild.publishing.model import PublishRule
from vbuild.verification.model import Finding, Severity, SharedLibrary
from vbuild.verification.promises import broken_promises, clashes, promises_of
from vbuild.wheel.archive import Wheel
from vbuild.wheel.metadata import LIBS, is_companion, is_dist_info
from vbuild.wheel.name import VARIANTS_JSON, WheelName, escaped
from vbuild.wheel.paths import installed_path
from vbuild.wheel.sdist import LARGEST, PKG_INFO, SUFFIX, below_top, reading, release_of
from vbuild.wheel.slots import FileSlot, slots
from vbuild.wheel.zip_read import READ_METHODS, ZipMethod, ZipReader

T = TypeVar("T")

# what sdists were before PEP 527 and PEP 625
_FORMER = re.compile(r"\.(zip|tgz|tar|tar\.(bz2|xz|Z))$", re.ASCII)
_PLAIN_METHODS = frozenset({ZipMethod.STORED, ZipMethod.DEFLATED})
_AT_ONCE = 8  # requests


@dataclass(frozen=True, slots=True)
class ReadyWheel:
    """A wheel with all that is checked of it; *size* and *unpacked*, the size of all members, are in bytes.

    *methods* are the compressions that not every reader can inflate, *lacks* the files that License-File names in vain,
    *quirks* the paths of what is wrong in the archive or RECORD, and leaves no doubt. *faults* are promises of its tags
    that it breaks, *shared* libraries that those of other wheels may replace: on a server compiled files are not read.
    *installs* are its files by installed path, with RECORD's hash, without its ``.dist-info`` folder.
    """

    source: LocatedFile
    size: int
    name: WheelName
    slots: tuple[FileSlot, ...]
    metadata: MetadataView
    variant_json: bytes | None
    unpacked: int
    has_comment: bool
    methods: tuple[int, ...]
    lacks: tuple[str, ...]
    is_companion: bool
    quirks: tuple[tuple[str, str], ...] = ()
    faults: tuple[Finding, ...] = ()
    shared: tuple[SharedLibrary, ...] = ()
    installs: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)

    @property
    def file(self) -> str:
        return self.source.name

    @property
    def is_unread(self) -> bool:
        return not READ_METHODS.issuperset(self.methods)

    @classmethod
    def read(cls, source: LocatedFile) -> Self:
        with source.opened() as file, at(source.name):
            wheel = Wheel.verified(Path(source.name), ZipReader(file, is_strict=True))
            methods = {member.header.method for member in wheel.members}
            is_read = source.path is not None and methods <= READ_METHODS
            member_path = f"{wheel.dist_info}/METADATA"
            data, variant_json = wheel.read(member_path), wheel.variant_json
            with at(member_path):
                metadata = metadata_view(data)
            faults, shared = promises_of(wheel) if is_read else (tuple(broken_promises(wheel, {}, ())), ())
            if is_read:
                wheel.check()
            return cls(
                source,
                file.seek(0, os.SEEK_END),
                wheel.name,
                slots(wheel.name),
                metadata,
                variant_json,
                sum(member.size for member in wheel.members),
                bool(wheel.comment),
                tuple(sorted(methods - _PLAIN_METHODS)),
                tuple(file for file in metadata.licenses if not wheel.find(f"{wheel.dist_info}/licenses/{file}")),
                is_companion(wheel.metadata(), wheel.wheel_file()),
                tuple(wheel.warnings()),
                faults,
                shared,
                dict(_installs(wheel)),
            )


def _installs(wheel: Wheel) -> Iterator[tuple[str, str]]:
    """Each path and hash is in memory once for all wheels."""
    for row in map(wheel.row, wheel.members):
        if not is_dist_info(row.path):
            _, _, rest = row.path.partition("/")
            # elsewhere than in site-packages, as in .data/scripts/tool; headers have a folder for each distribution
            elsewhere = row.path if rest.startswith("headers/") else f".data/{rest}"
            yield sys.intern(installed_path(row.path) or elsewhere), sys.intern(row.hash or "")


class ReadySdist(Struct, frozen=True):
    """An sdist, its *size* in bytes; *lacks* are files that License-File names in vain."""

    source: LocatedFile
    size: int
    project: str
    version: Version
    metadata: MetadataView
    lacks: tuple[str, ...]

    @property
    def file(self) -> str:
        return self.source.name

    @classmethod
    def read(cls, source: LocatedFile) -> Self:
        project, version = release_of(source.name)
        with source.opened() as file:
            return cls(source, file.seek(0, os.SEEK_END), project, version, *_contents(file))


def _contents(sdist: BinaryIO) -> tuple[MetadataView, tuple[str, ...]]:
    sdist.seek(0)
    with reading(sdist) as archive:
        passed: set[str] = set()
        for member in archive:
            file = below_top(member)
            if file == PKG_INFO and member.isreg():
                break
            passed.add(file)
        else:
            raise RepackageError(f"no {PKG_INFO} in its top folder (PEP 643)")
        pkg_info = archive.extractfile(member)
        with at(PKG_INFO):
            metadata = metadata_view(pkg_info.read(LARGEST) if pkg_info else b"")
        lacks = dict.fromkeys(file for file in metadata.licenses if file not in passed)
        while lacks and (following := archive.next()):
            lacks.pop(below_top(following), None)
    return metadata, tuple(lacks)


class PublishFolder(Struct, frozen=True):
    """What a folder has to publish; *damaged* could not be read, *former* are files named as sdists were."""

    wheels: tuple[ReadyWheel, ...]
    sources: tuple[ReadySdist, ...]
    indexes: tuple[LocatedFile, ...]
    former: tuple[tuple[str, Version, str], ...]
    damaged: tuple[Finding, ...]

    @property
    def count(self) -> int:
        return len(self.wheels) + len(self.sources) + len(self.indexes) + len(self.damaged)


def files_in(files: Sequence[LocatedFile], place: object) -> PublishFolder:
    damaged: list[Finding] = []
    wheels = tuple(_read([file for file in files if file.name.endswith(".whl")], ReadyWheel.read, damaged))
    sources = tuple(_read([file for file in files if file.name.endswith(SUFFIX)], ReadySdist.read, damaged))
    indexes = tuple(file for file in files if file.name.endswith(VARIANTS_JSON))
    former: list[tuple[str, Version, str]] = []
    for file in files:
        if _FORMER.search(file.name):
            with contextlib.suppress(InvalidSdistFilename):
                former.append((*parse_sdist_filename(_FORMER.sub(SUFFIX, file.name)), file.name))
    result = PublishFolder(wheels, sources, indexes, tuple(former), tuple(damaged))
    if not result.count:
        raise RepackageError(f"{place}: no wheel and no sdist; expected a folder with what is to be published")
    return result


def files_of(folder: Path) -> tuple[LocatedFile, ...]:
    """The files in *folder*, or the file that it is; `RepackageError` if it cannot be read."""
    if folder.is_file():
        return (LocatedFile(folder.name, str(folder.parent), folder),)
    try:
        # a FIFO, or a link to nothing, is a file that cannot be read
        paths = sorted(path for path in folder.iterdir() if not path.is_dir())
    except OSError as error:
        raise RepackageError(
            f"{folder}: cannot be looked at: {error.strerror}; expected wheels, or a folder of them"
        ) from error
    return tuple(LocatedFile(path.name, str(folder), path) for path in paths)


def _read(files: Sequence[LocatedFile], read: Callable[[LocatedFile], T], damaged: list[Finding]) -> Iterator[T]:
    """What *read* makes of each of *files*, those of servers several at once; those it refuses become *damaged*."""

    def tried(file: LocatedFile) -> T | VbuildError:
        try:
            return read(file)
        except VbuildError as error:
            return error
        except OSError as error:
            return FetchError(f"cannot be read: {error.strerror}")

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        # a copy of the context each: all ask through the client of the caller
        futures = [threads.submit(copy_context().run, tried, file) for file in files if file.url]
        results = (future.result() for future in futures) if futures else map(tried, files)
        for file, result in zip(files, results, strict=True):
            if not isinstance(result, VbuildError):
                yield result
                continue
            fault = str(result)
            for prefix in (str(file.path), file.url, file.name, repr(file.name)):
                fault = fault.removeprefix(f"{prefix}: ")
            damaged.append(Finding(Severity.ERROR, PublishRule.ARCHIVE, (file.name,), fault, "make it again"))


class LintedRelease(Struct, frozen=True):
    """The files of one release; *index* is its variants.json, *former* sdists named as before PEP 625."""

    project: str
    version: str
    wheels: tuple[ReadyWheel, ...]
    sources: tuple[ReadySdist, ...]
    index: LocatedFile | None
    former: tuple[str, ...]

    def __str__(self) -> str:
        return f"{escaped(self.project)}-{self.version}"

    @property
    def variants(self) -> tuple[ReadyWheel, ...]:
        return tuple(wheel for wheel in self.wheels if wheel.name.variant is not None)

    @property
    def plain(self) -> tuple[ReadyWheel, ...]:
        return tuple(wheel for wheel in self.wheels if wheel.name.variant is None)

    @property
    def index_name(self) -> str:
        return f"{self}{VARIANTS_JSON}"

    @property
    def distributions(self) -> tuple[ReadyWheel | ReadySdist, ...]:
        return (*self.wheels, *self.sources)


def releases_among(folder: PublishFolder) -> tuple[LintedRelease, ...]:
    wheels: dict[tuple[str, str], list[ReadyWheel]] = {}
    sources: dict[tuple[str, str], list[ReadySdist]] = {}
    for wheel in folder.wheels:
        wheels.setdefault((wheel.name.project, str(Version(wheel.name.version))), []).append(wheel)
    for source in folder.sources:
        sources.setdefault((source.project, str(source.version)), []).append(source)
    indexes = {file.name: file for file in folder.indexes}
    return tuple(
        LintedRelease(
            project,
            version,
            tuple(wheels.get((project, version), ())),
            tuple(sources.get((project, version), ())),
            indexes.get(f"{escaped(project)}-{version}{VARIANTS_JSON}"),
            tuple(file for of, number, file in folder.former if (of, number) == (project, Version(version))),
        )
        for project, version in sorted({*wheels, *sources}, key=lambda key: (key[0], Version(key[1]), key[1]))
    )


def broken_tags(release: LintedRelease) -> Iterator[Finding]:
    """What the tags of its wheels promise in vain, as `vbuild verify` has it; notes are left to that."""
    for wheel in release.wheels:
        for fault in wheel.faults:
            if fault.severity is not Severity.NOTE:
                yield replace(fault, places=(wheel.file,), what=fault.sentence)


def library_clashes(releases: Iterable[LintedRelease]) -> Iterator[Finding]:
    wheels = [wheel for release in releases for wheel in release.wheels]
    for number, other, finding in clashes([(wheel.name.project, wheel.slots, wheel.shared) for wheel in wheels]):
        files = wheels[number].file, wheels[other].file
        yield replace(finding, places=files, what=finding.what.format("each of these"))


def served_problems(release: LintedRelease) -> Iterator[Finding]:
    """Where a page contradicts the wheels of *release*; installers choose by the page alone."""
    for wheel in release.wheels:
        beside = wheel.source.metadata()
        try:
            stated = metadata_view(beside.read()) if beside else wheel.metadata
        except VbuildError as error:
            yield _misstated(wheel, f"has METADATA beside it on the server, which cannot be read: {error}")
            continue
        for difference in wheel.metadata.differences(stated):
            yield _misstated(wheel, f"has other METADATA beside it on the server: {difference}")
        if stated_python := wheel.source.requires_python:
            stated_versions = dict(wheel.metadata.fields).get("Requires-Python", ())
            if spelled_value("requires-python", stated_python) not in stated_versions:
                yield _misstated(
                    wheel, f"is listed with Requires-Python {stated_python}, which its METADATA does not say"
                )


def _misstated(wheel: ReadyWheel, fault: str) -> Finding:
    advice = "write the index again from its wheels: vbuild index --simple"
    return Finding(Severity.ERROR, PublishRule.INDEX, (wheel.file,), fault, advice)


def stray_documents(folder: PublishFolder, releases: Iterable[LintedRelease]) -> Iterator[Finding]:
    expected = {release.index_name for release in releases if release.variants}
    for file in folder.indexes:
        if file.name not in expected:
            fault, advice = "is of a release without variant wheels here", "remove it, or put the wheels beside it"
            yield Finding(Severity.ERROR, PublishRule.INDEX, (file.name,), fault, advice)


def spelling_twins(releases: Iterable[LintedRelease]) -> Iterator[Finding]:
    """The releases that are one version in two spellings, such as 1.0 and 1.0.0 (PEP 440, normalization)."""
    spelled: dict[tuple[str, Version], list[str]] = {}
    for release in releases:
        spelled.setdefault((release.project, Version(release.version)), []).append(str(release))
    for names in spelled.values():
        if len(names) > 1:
            fault = f"{' and '.join(names)} are one version in two spellings"
            advice = "build all files of a release with one spelling: each gets a variants.json of its own"
            yield Finding(Severity.ERROR, PublishRule.NAME, tuple(names), fault, advice)


_ONE_VERSION = re.compile(r"==(?P<version>[^*,]+)")


def lacking_companions(release: LintedRelease, *, releases: Collection[LintedRelease]) -> Iterator[Finding]:
    """The wheels that *release* requires exactly, named as those of a split, that are not among *releases*."""
    for wheel in release.wheels:
        for requirement in filter(None, map(read_requirement, wheel.metadata.requires)):
            project = canonicalize_name(requirement.name)
            match = _ONE_VERSION.fullmatch(str(requirement.specifier))
            if not (match and project.endswith(LIBS)):
                continue
            version = Version(match["version"])
            if not any((other.project, Version(other.version)) == (project, version) for other in releases):
                fault = f"requires {project}=={version}, which is not here: a wheel of shared libraries by its name"
                advice = "publish it first, unless the index has it: nothing can be installed without it"
                yield Finding(Severity.WARNING, PublishRule.REQUIREMENT, (wheel.file,), fault, advice)
