"""Find a file on the package indexes and download it: only its hash shows that it is the right one."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from threading import Event

import httpx2
from msgspec import Struct
from packaging.version import Version
from unearth import Link, Package, PackageFinder
from unearth.fetchers import PyPIClient

from vbuild.errors import FetchError
from vbuild.index_client.configuration import Indexes
from vbuild.index_client.places import (
    ListedFile,
    Problems,
    client_of,
    files_of,
    finders,
    name_of,
    packages_at,
    stated_sha256,
)


class Wanted(Struct, frozen=True):
    """A file of a release, pinned by SHA-256: the wheel *file*, or any sdist if that is None."""

    project: str
    version: Version
    sha256: str
    file: str | None = None

    def __str__(self) -> str:
        return f"{self.project}=={self.version}"

    def is_at(self, package: Package) -> bool:
        """Whether *package* may be this file, by its name."""
        if self.file is not None:
            return package.link.filename == self.file
        version = package.version
        return not package.link.is_wheel and version is not None and Version(version) == self.version


def download(wanted: Wanted, target: Path, *, indexes: Indexes, stop: Event | None = None) -> None:
    """Write the *wanted* file to *target*, and check its hash.

    A file for which an index states another hash is not downloaded. Raises `FetchError` if no index has a file with its
    hash, if the disk is full, and soon after another thread sets *stop*; then nothing is left at *target*.
    """
    search = _Search(wanted, stop or Event())
    try:
        with client_of(indexes, search.problems.note) as client:
            for finder in finders(client, indexes):
                for link in search.links(finder):
                    if search.saved(client, link, target):
                        return
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    target.unlink(missing_ok=True)
    raise search.failure()


@dataclass(slots=True)
class _Search:
    """The places and files that were looked at so far, for the message if the file is not found."""

    wanted: Wanted
    stop: Event
    places: list[str] = field(default_factory=list)
    problems: Problems = field(default_factory=Problems)
    others: dict[str, str] = field(default_factory=dict)

    def links(self, finder: PackageFinder) -> list[Link]:
        """The files in one place, without those that state another hash; PEP 625's ``.tar.gz`` first."""
        self.places.append(name_of(finder))
        try:
            packages = packages_at(finder, self.wanted.project)
            found = [package.link for package in packages if self.wanted.is_at(package)]
        except httpx2.HTTPError as error:
            self.problems.append(f"{self.places[-1]}: {error}")
            return []
        stated = {link.filename: stated_sha256(link) for link in found}
        self.others |= {name: sha256 for name, sha256 in stated.items() if sha256 and sha256 != self.wanted.sha256}
        fitting = [link for link in found if stated[link.filename] in {None, self.wanted.sha256}]
        return sorted(fitting, key=lambda link: not link.filename.endswith(".tar.gz"))

    def saved(self, client: PyPIClient, link: Link, target: Path) -> bool:
        """Write the file at *link* to *target*; return whether it has the hash. `FetchError` if the disk is full."""
        digest = hashlib.sha256()
        try:
            with client.get_stream(link.url_without_fragment) as response, target.open("wb") as out:
                response.raise_for_status()
                for chunk in response.iter_raw():  # of any size, so that *stop* is checked often
                    if self.stop.is_set():
                        raise FetchError(f"{self.wanted}: stopped")
                    digest.update(chunk)
                    out.write(chunk)
        except httpx2.HTTPError as error:
            self.problems.append(f"{link.redacted}: {error}")
            return False
        except OSError as error:
            raise FetchError(f"{self.wanted}: {target.parent}: cannot be written: {error.strerror}") from error
        self.others[link.filename] = digest.hexdigest()
        return digest.hexdigest() == self.wanted.sha256

    def failure(self) -> FetchError:
        file = self.wanted.file
        what = f"no {file or 'sdist of this version'} on {', '.join(self.places)}"
        if self.others:
            found = "; ".join(f"{name} with sha256 {sha256}" for name, sha256 in self.others.items())
            pinned = "the recipe expects" if file is None else "expected"
            what = f"found {found}; {pinned} sha256 {self.wanted.sha256}"
        return FetchError(": ".join((str(self.wanted), "; ".join((what, *dict.fromkeys(self.problems))))))


def download_best(
    project: str, rank: Callable[[ListedFile], int | None], folder: Path, *, indexes: Indexes
) -> Path | None:
    """The file of *project* with the lowest rank of *rank*, downloaded into *folder*; None if every rank is None.

    Only files whose hash an index states are considered. `FetchError` if no index can be asked.
    """
    files = files_of(project, indexes=indexes)
    ranked = [(place, one) for one in files if one.sha256 and (place := rank(one)) is not None]
    if not ranked:
        return None
    _, best = min(ranked, key=itemgetter(0))
    folder.mkdir(parents=True, exist_ok=True)
    download(Wanted(project, best.version, best.sha256 or "", best.file), folder / best.file, indexes=indexes)
    return folder / best.file
