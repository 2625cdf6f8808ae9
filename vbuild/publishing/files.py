"""The files of a folder that would be published, each read once: what their names say and what they state.

    *.whl              central directory, RECORD, METADATA and variant.json; no other member is inflated
    *.tar.gz           its first PKG-INFO below the top folder, and the licences that this names
    *-variants.json    which variants a release has (PEP 825, index-level metadata)
    *.zip, *.tgz, ...  by name only: an sdist as none is made any more, where it is called after a release

Everything else in the folder is left alone: reports and logs lie there too.
"""

import contextlib
import gzip
import re
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, TypeVar

from packaging.utils import InvalidSdistFilename, parse_sdist_filename
from packaging.version import Version

from vbuild.errors import PublishError, VbuildError, at
from vbuild.publishing.model import Demand, Problem
from vbuild.publishing.slots import Slot, slots
from vbuild.publishing.stated import Stated, stated
from vbuild.tarred import BoundedInfo
from vbuild.wheel.archive import Wheel, open_wheel
from vbuild.wheel.companion import is_companion
from vbuild.wheel.distinfo import is_dist_info
from vbuild.wheel.installed import installed_path
from vbuild.wheel.name import WheelName, escaped

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
    made it of other wheels, so that there is no sdist of it. *installs* are its files by where they come to lie, with
    the hash in RECORD; its ``.dist-info`` folder is not among them.
    """

    path: Path
    size: int
    name: WheelName
    slots: tuple[Slot, ...]
    stated: Stated
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
        """The wheel at *path*; `WheelError` where its name, its archive or its METADATA is none."""
        with open_wheel(path) as wheel:
            said = _stated(wheel)
            document = wheel.find(f"{wheel.dist_info}/variant.json")
            return cls(
                path,
                path.stat().st_size,
                wheel.name,
                slots(wheel.name),
                said,
                wheel.read(document) if document else None,
                sum(member.size for member in wheel.members),
                bool(wheel.comment),
                tuple(sorted({member.header.method for member in wheel.members} - _READABLE_METHODS)),
                tuple(file for file in said.licenses if not wheel.find(f"{wheel.dist_info}/licenses/{file}")),
                is_companion(wheel.metadata(), wheel.wheel_file()),
                dict(_installs(wheel)),
            )


def _installs(wheel: Wheel) -> Iterator[tuple[str, str]]:
    """Where the files of *wheel* come to lie, with their hashes; what many wheels have is in memory once."""
    for row in wheel.record.rows:
        if not is_dist_info(row.path):
            place = installed_path(row.path) or _elsewhere(row.path)
            yield sys.intern(place), sys.intern(row.hash or "")


def _elsewhere(path: str) -> str:
    """Where the member *path* comes to lie, not below site-packages: ``.data/scripts/tool``.

    Headers have a folder for each distribution.
    """
    _, _, rest = path.partition("/")
    return path if rest.startswith("headers/") else f".data/{rest}"


def _stated(wheel: Wheel) -> Stated:
    path = f"{wheel.dist_info}/METADATA"
    data = wheel.read(path)
    with at(wheel.path.name), at(path):
        return stated(data)


@dataclass(frozen=True, slots=True)
class ReadySdist:
    """An sdist: its *size* in bytes, the project and version in its file name, and what its PKG-INFO states.

    *lacks* are the files that License-File names and the sdist does not have.
    """

    path: Path
    size: int
    project: str
    version: Version
    stated: Stated
    lacks: tuple[str, ...]

    @property
    def file(self) -> str:
        return self.path.name

    @property
    def expected(self) -> str:
        """The only file name that PEP 625 gives the sdist."""
        return sdist_name(self.project, str(self.version))

    @classmethod
    def read(cls, path: Path) -> Self:
        """The sdist at *path*; `PublishError` where its name, its archive or its PKG-INFO is none."""
        try:
            project, version = parse_sdist_filename(path.name)
        except InvalidSdistFilename as error:
            raise PublishError("not an sdist's file name: expected {name}-{version}.tar.gz (PEP 625)") from error
        size = path.stat().st_size
        said, lacks = _contents(path)
        return cls(path, size, project, version, said, lacks)


def sdist_name(project: str, version: str) -> str:
    """The only file name that PEP 625 gives the sdist of *project*; *version* is normalised."""
    return f"{escaped(project)}-{version}{_SDIST}"


def _contents(path: Path) -> tuple[Stated, tuple[str, ...]]:
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
                raise PublishError("no PKG-INFO in its top folder (PEP 643)")
            pkg_info = archive.extractfile(member)
            with at("PKG-INFO"):
                said = stated(pkg_info.read(_PKG_INFO) if pkg_info else b"")
            lacks = dict.fromkeys(file for file in said.licenses if file not in passed)
            while lacks and (following := archive.next()):
                lacks.pop(_below_top(following), None)
    except _DAMAGE as error:
        raise PublishError(f"not a gzipped tar archive, or damaged: {error}") from error
    return said, tuple(lacks)


def _below_top(member: tarfile.TarInfo) -> str:
    """Where *member* is in the one folder that an sdist has at its top."""
    return member.name.removeprefix("./").partition("/")[2]


@dataclass(frozen=True, slots=True)
class Found:
    """What a folder has to publish, sorted by file; *damaged* is what could not be read, and *count* all that is there.

    *indexes* are the variants.json files by name, *former* what is called as sdists were, by project and version.
    """

    wheels: tuple[ReadyWheel, ...]
    sources: tuple[ReadySdist, ...]
    indexes: tuple[Path, ...]
    former: tuple[tuple[str, Version, Path], ...]
    damaged: tuple[Problem, ...]

    @property
    def count(self) -> int:
        return len(self.wheels) + len(self.sources) + len(self.indexes) + len(self.damaged)


def found(folder: Path) -> Found:
    """The files in *folder* that would be published; `PublishError` where there is no such folder, or nothing in it."""
    try:
        # a link to nothing is a file that cannot be read
        paths = sorted(path for path in folder.iterdir() if path.is_file() or not path.exists())
    except OSError as error:
        raise PublishError(f"{folder}: cannot be looked at: {error.strerror}; expected a folder of wheels") from error
    damaged: list[Problem] = []
    wheels = tuple(_read([path for path in paths if path.name.endswith(".whl")], ReadyWheel.read, damaged))
    sources = tuple(_read([path for path in paths if path.name.endswith(_SDIST)], ReadySdist.read, damaged))
    indexes = tuple(path for path in paths if path.name.endswith(INDEX))
    result = Found(wheels, sources, indexes, tuple(_former(paths)), tuple(damaged))
    if not result.count:
        raise PublishError(f"{folder}: no wheel and no sdist; expected a folder with what is to be published")
    return result


def _former(paths: Iterable[Path]) -> Iterator[tuple[str, Version, Path]]:
    for path in paths:
        if _FORMER.search(path.name):
            with contextlib.suppress(InvalidSdistFilename):
                yield *parse_sdist_filename(_FORMER.sub(_SDIST, path.name)), path


def _read(paths: Iterable[Path], read: Callable[[Path], T], damaged: list[Problem]) -> Iterator[T]:
    """What *read* makes of each of *paths*; those it refuses become *damaged*."""
    for path in paths:
        try:
            yield read(path)
        except (VbuildError, OSError) as error:
            what = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
            for place in (str(path), path.name, repr(path.name)):
                what = what.removeprefix(f"{place}: ")
            damaged.append(
                Problem(Demand.ARCHIVE, (path.name,), what, "make it anew: no installer takes it", is_error=True)
            )
