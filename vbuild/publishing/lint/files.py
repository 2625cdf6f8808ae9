"""Read the files of a folder that would be published, each once, and group them by release.

    *.whl              central directory, RECORD, METADATA and variant.json; no other member is inflated
    *.tar.gz           its first PKG-INFO below the top folder, and the licences that this names
    *-variants.json    which variants a release has (PEP 825, index-level metadata)
    *.zip, *.tgz, ...  by name only: an sdist in a form of earlier years, if it is called after a release

Everything else in the folder is ignored: reports and logs may lie there, too. Requirements of wheels that `vbuild
split` made are recognised by their version, a number from a hash of contents: ``Requires-Dist:
demo-libs==0.187650320598251``.
"""

import contextlib
import gzip
import re
import sys
import tarfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, TypeVar

from msgspec import Struct
from packaging.utils import InvalidSdistFilename, canonicalize_name, parse_sdist_filename
from packaging.version import Version

from vbuild.config.requirements import read_requirement
from vbuild.errors import RepackageError, VbuildError, at
from vbuild.files.archives import BoundedInfo
from vbuild.publishing.lint.metadata import FileSlot, MetadataView, metadata_view, slots
from vbuild.publishing.model import PublishRule
from vbuild.verification.model import Finding, Severity
from vbuild.wheel.archive import Wheel, open_wheel
from vbuild.wheel.metadata import VARIANT_JSON, is_companion, is_dist_info
from vbuild.wheel.name import WheelName, escaped
from vbuild.wheel.paths import installed_path

T = TypeVar("T")

INDEX = "-variants.json"

_SDIST = ".tar.gz"
# what sdists were before PEP 527 and PEP 625
_FORMER = re.compile(r"\.(zip|tgz|tar|tar\.(bz2|xz|Z))$", re.ASCII)
# bytes, as many as are read of METADATA in a wheel
_PKG_INFO = 1 << 23
_READABLE_METHODS = frozenset({0, 8})
_DAMAGE = (tarfile.TarError, zlib.error, EOFError, OSError, ValueError, OverflowError)


@dataclass(frozen=True, slots=True)
class ReadyWheel:
    """A wheel: its *size* in bytes, for whom it is, what it states, and its variant.json.

    *unpacked* is the size of all members in bytes, *methods* how those are compressed that not every reader can
    inflate, *lacks* the files that License-File names and the wheel does not have. It *is_companion* where a split
    made it of other wheels, so that there is no sdist of it. *installs* are its files by installed path, with
    the hash in RECORD; its ``.dist-info`` folder is not among them.
    """

    path: Path
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
    installs: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)

    @property
    def file(self) -> str:
        return self.path.name

    @classmethod
    def read(cls, path: Path) -> Self:
        """The wheel at *path*; `WheelError` if its name, archive or METADATA is not valid."""
        with open_wheel(path) as wheel:
            member_path = f"{wheel.dist_info}/METADATA"
            data = wheel.read(member_path)
            with at(path.name), at(member_path):
                metadata = metadata_view(data)
            document = wheel.find(f"{wheel.dist_info}/{VARIANT_JSON}")
            return cls(
                path,
                path.stat().st_size,
                wheel.name,
                slots(wheel.name),
                metadata,
                wheel.read(document) if document else None,
                sum(member.size for member in wheel.members),
                bool(wheel.comment),
                tuple(sorted({member.header.method for member in wheel.members} - _READABLE_METHODS)),
                tuple(file for file in metadata.licenses if not wheel.find(f"{wheel.dist_info}/licenses/{file}")),
                is_companion(wheel.metadata(), wheel.wheel_file()),
                dict(_installs(wheel)),
            )


def _installs(wheel: Wheel) -> Iterator[tuple[str, str]]:
    """The installed paths of the files of *wheel*, with their hashes; what many wheels have is in memory once."""
    for row in map(wheel.row, wheel.members):
        if not is_dist_info(row.path):
            _, _, rest = row.path.partition("/")
            # elsewhere than in site-packages, as in .data/scripts/tool; headers have a folder for each distribution
            elsewhere = row.path if rest.startswith("headers/") else f".data/{rest}"
            yield sys.intern(installed_path(row.path) or elsewhere), sys.intern(row.hash or "")


class ReadySdist(Struct, frozen=True):
    """An sdist: its *size* in bytes, the project and version in its file name, and what its PKG-INFO states.

    *lacks* are the files that License-File names and the sdist does not have.
    """

    path: Path
    size: int
    project: str
    version: Version
    metadata: MetadataView
    lacks: tuple[str, ...]

    @property
    def file(self) -> str:
        return self.path.name

    @classmethod
    def read(cls, path: Path) -> Self:
        """The sdist at *path*; `RepackageError` if its name, archive or PKG-INFO is not valid."""
        try:
            project, version = parse_sdist_filename(path.name)
        except InvalidSdistFilename as error:
            raise RepackageError("not an sdist's file name: expected {name}-{version}.tar.gz (PEP 625)") from error
        return cls(path, path.stat().st_size, project, version, *_contents(path))


def _contents(path: Path) -> tuple[MetadataView, tuple[str, ...]]:
    """What the sdist at *path* states, and which of the licences that it names are not there."""
    try:
        # tarfile's own reader of gzip streams raises TypeError where one is cut short
        with gzip.open(path) as stream, tarfile.open(fileobj=stream, mode="r|", tarinfo=BoundedInfo) as archive:
            passed: set[str] = set()
            for member in archive:
                file = _below_top(member)
                if file == "PKG-INFO" and member.isreg():
                    break
                passed.add(file)
            else:
                raise RepackageError("no PKG-INFO in its top folder (PEP 643)")
            pkg_info = archive.extractfile(member)
            with at("PKG-INFO"):
                metadata = metadata_view(pkg_info.read(_PKG_INFO) if pkg_info else b"")
            lacks = dict.fromkeys(file for file in metadata.licenses if file not in passed)
            while lacks and (following := archive.next()):
                lacks.pop(_below_top(following), None)
    except _DAMAGE as error:
        raise RepackageError(f"not a gzipped tar archive, or damaged: {error}") from error
    return metadata, tuple(lacks)


def _below_top(member: tarfile.TarInfo) -> str:
    """Where *member* is in the one folder that an sdist has at its top."""
    return member.name.removeprefix("./").partition("/")[2]


class PublishFolder(Struct, frozen=True):
    """What a folder has to publish, sorted by file; *damaged* is what could not be read, and *count* all that is there.

    *indexes* are the variants.json files by name, *former* what is called as sdists were, by project and version.
    """

    wheels: tuple[ReadyWheel, ...]
    sources: tuple[ReadySdist, ...]
    indexes: tuple[Path, ...]
    former: tuple[tuple[str, Version, Path], ...]
    damaged: tuple[Finding, ...]

    @property
    def count(self) -> int:
        return len(self.wheels) + len(self.sources) + len(self.indexes) + len(self.damaged)


def files_in(folder: Path) -> PublishFolder:
    """The files in *folder* that would be published; `RepackageError` if there is no such folder, or nothing in it."""
    try:
        # a link to nothing is a file that cannot be read
        paths = sorted(path for path in folder.iterdir() if path.is_file() or not path.exists())
    except OSError as error:
        raise RepackageError(f"{folder}: cannot be looked at: {error.strerror}; expected a folder of wheels") from error
    damaged: list[Finding] = []
    wheels = tuple(_read([path for path in paths if path.name.endswith(".whl")], ReadyWheel.read, damaged))
    sources = tuple(_read([path for path in paths if path.name.endswith(_SDIST)], ReadySdist.read, damaged))
    indexes = tuple(path for path in paths if path.name.endswith(INDEX))
    former: list[tuple[str, Version, Path]] = []
    for path in paths:
        if _FORMER.search(path.name):
            with contextlib.suppress(InvalidSdistFilename):
                former.append((*parse_sdist_filename(_FORMER.sub(_SDIST, path.name)), path))
    result = PublishFolder(wheels, sources, indexes, tuple(former), tuple(damaged))
    if not result.count:
        raise RepackageError(f"{folder}: no wheel and no sdist; expected a folder with what is to be published")
    return result


def _read(paths: Iterable[Path], read: Callable[[Path], T], damaged: list[Finding]) -> Iterator[T]:
    """What *read* makes of each of *paths*; those it refuses become *damaged*."""
    for path in paths:
        try:
            yield read(path)
        except (VbuildError, OSError) as error:
            what = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
            for place in (str(path), path.name, repr(path.name)):
                what = what.removeprefix(f"{place}: ")
            damaged.append(
                Finding(Severity.ERROR, PublishRule.ARCHIVE, (path.name,), what, "make it again: no installer takes it")
            )


class LintedRelease(Struct, frozen=True):
    """The files of one release; *version* as PEP 440 normalises it, *index* its variants.json if there is one.

    *former* are the files that are called as its sdist was in former times.
    """

    project: str
    version: str
    wheels: tuple[ReadyWheel, ...]
    sources: tuple[ReadySdist, ...]
    index: Path | None
    former: tuple[str, ...]

    def __str__(self) -> str:
        return f"{escaped(self.project)}-{self.version}"

    @property
    def variants(self) -> tuple[ReadyWheel, ...]:
        return tuple(wheel for wheel in self.wheels if wheel.name.variant is not None)

    @property
    def plain(self) -> tuple[ReadyWheel, ...]:
        """The wheels that every installer understands."""
        return tuple(wheel for wheel in self.wheels if wheel.name.variant is None)

    @property
    def index_name(self) -> str:
        """What the release's variants.json is called (PEP 825, index-level metadata)."""
        return f"{self}{INDEX}"

    @property
    def distributions(self) -> tuple[ReadyWheel | ReadySdist, ...]:
        return (*self.wheels, *self.sources)


def releases_among(folder: PublishFolder) -> tuple[LintedRelease, ...]:
    """The releases among those in *folder*, by project and version."""
    wheels: dict[tuple[str, str], list[ReadyWheel]] = {}
    sources: dict[tuple[str, str], list[ReadySdist]] = {}
    for wheel in folder.wheels:
        wheels.setdefault((wheel.name.project, str(Version(wheel.name.version))), []).append(wheel)
    for source in folder.sources:
        sources.setdefault((source.project, str(source.version)), []).append(source)
    indexes = {path.name: path for path in folder.indexes}
    return tuple(
        LintedRelease(
            project,
            version,
            tuple(wheels.get((project, version), ())),
            tuple(sources.get((project, version), ())),
            indexes.get(f"{escaped(project)}-{version}{INDEX}"),
            tuple(path.name for of, number, path in folder.former if (of, number) == (project, Version(version))),
        )
        for project, version in sorted({*wheels, *sources}, key=lambda key: (key[0], Version(key[1]), key[1]))
    )


def stray_documents(folder: PublishFolder, known: Iterable[LintedRelease]) -> Iterator[Finding]:
    """The variants.json files of no release among *known* that has variants."""
    expected = {release.index_name for release in known if release.variants}
    for path in folder.indexes:
        if path.name not in expected:
            what, advice = "is of a release without variant wheels here", "remove it, or put the wheels beside it"
            yield Finding(Severity.ERROR, PublishRule.INDEX, (path.name,), what, advice)


def spelling_twins(known: Iterable[LintedRelease]) -> Iterator[Finding]:
    """The releases that are one version in two spellings, such as 1.0 and 1.0.0 (PEP 440, normalization)."""
    spelled: dict[tuple[str, Version], list[str]] = {}
    for release in known:
        spelled.setdefault((release.project, Version(release.version)), []).append(str(release))
    for names in spelled.values():
        if len(names) > 1:
            what = f"{' and '.join(names)} are one version in two spellings"
            advice = "build all files of a release with one spelling: each gets a variants.json of its own"
            yield Finding(Severity.ERROR, PublishRule.NAME, tuple(names), what, advice)


# as vbuild.splitting.companion.libs_version writes it, from six bytes; one of ten thousand has fewer digits
_OF_CONTENTS = re.compile(r"==(?P<version>0\.[0-9]{11,15})")


def lacking_companions(release: LintedRelease, *, known: Collection[LintedRelease]) -> Iterator[Finding]:
    """The wheels that *release* requires exactly, which a split made and none of *known* is."""
    for wheel in release.wheels:
        for line in wheel.metadata.requires:
            found = read_requirement(line)
            match = _OF_CONTENTS.fullmatch(str(found.specifier)) if found else None
            if not (found and match):
                continue
            release_of = canonicalize_name(found.name), Version(match["version"])
            if not any((other.project, Version(other.version)) == release_of for other in known):
                of = f"{release_of[0]}=={match['version']}"
                what = f"requires {of}, which is not here: a number as vbuild split gives to shared libraries"
                advice = "publish it first, or with these, which cannot be installed without it"
                yield Finding(Severity.WARNING, PublishRule.REQUIREMENT, (wheel.file,), what, advice)
