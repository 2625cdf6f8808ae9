"""Files as indexes list them, as somebody wants them, and by the URLs that users type.

https://HOST/demo-1.0-….whl            the file, downloaded
https://HOST/links.html, .../simple/   the page of a project below it, or else the page itself; or all projects
dist                                   a folder of this machine
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from msgspec import Struct
from packaging.version import Version

from vbuild.errors import FetchError
from vbuild.files.reading import open_file, read_file

if TYPE_CHECKING:
    from unearth import Link


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file of a project; *sha256* is what the index states."""

    file: str
    version: Version
    sha256: str | None = None
    is_yanked: bool = False
    url: str = field(default="", compare=False, repr=False)

    @property
    def is_wheel(self) -> bool:
        return self.file.endswith(".whl")


class Wanted(Struct, frozen=True):
    """A file of a release, pinned by SHA-256: the wheel *file*, or any sdist if that is None."""

    project: str
    version: Version
    sha256: str
    file: str | None = None

    def __str__(self) -> str:
        return f"{self.project}=={self.version}"


class LocatedFile(Struct, frozen=True):
    """The file *name* at *url*, or at *path* of this machine, as *place* lists it.

    If it *has_metadata*, its METADATA is at the same URL with ``.metadata`` behind it (PEP 658).
    """

    name: str
    place: str
    path: Path | None = None
    url: str = ""
    requires_python: str | None = None
    has_metadata: bool = False

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """Open the file; of one on a server only what is read is fetched. `FetchError` if it cannot be read."""
        if self.path is None:
            from vbuild.index_client.pages import opened_at

            with opened_at(self.url, self.name) as file:
                yield file
            return
        try:
            file = open_file(self.path)
        except OSError as error:
            raise FetchError(f"{self.path}: cannot be read: {error.strerror}") from error
        with file:
            yield file

    def metadata(self) -> "LocatedFile | None":
        if not self.has_metadata:
            return None
        return LocatedFile(f"{self.name}.metadata", self.place, url=f"{self.url}.metadata")

    def read(self) -> bytes:
        """All its bytes, at most 16 MB from a server; `FetchError` if it cannot be read."""
        if self.path is None:
            from vbuild.index_client import pages

            return pages.read(self.url)
        try:
            return read_file(self.path)
        except OSError as error:
            raise FetchError(f"{self.path}: cannot be read: {error.strerror}") from error


@contextmanager
def connected(*places: str | Path) -> Iterator[None]:
    if all(isinstance(place, Path) for place in places):
        yield
        return
    from vbuild.index_client import pages

    with pages.connected():
        yield


def shown_place(place: str | Path) -> str:
    """*place*, a folder or a URL, without a password."""
    if isinstance(place, Path):
        return str(place)
    from vbuild.index_client.pages import checked

    return checked(place).redacted


def files_at(place: str | Path, project: str) -> tuple[LocatedFile, ...]:
    """The files at *place*, a folder or the URL of a page of links, by name; of a simple index those of *project*."""
    if isinstance(place, str):
        from vbuild.index_client.pages import links_to_files

        return _located(shown_place(place), links_to_files(place, project))
    try:
        paths = sorted(place.iterdir())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FetchError(f"{place}: no such folder of wheels") from error
    except OSError as error:
        raise FetchError(f"{place}: cannot be read: {error.strerror}") from error
    return tuple(LocatedFile(path.name, str(place), path) for path in paths)


def all_files_at(url: str) -> tuple[LocatedFile, ...]:
    from vbuild.index_client.pages import all_links_to_files

    return _located(shown_place(url), all_links_to_files(url))


def _located(shown: str, links: "Iterable[Link]") -> tuple[LocatedFile, ...]:
    """The first of each name counts."""
    files: dict[str, LocatedFile] = {}
    for link in links:
        file = LocatedFile(
            link.filename,
            shown,
            url=link.url_without_fragment,
            requires_python=link.requires_python,
            has_metadata=bool(link.dist_info_metadata),
        )
        files.setdefault(file.name, file)
    return tuple(files[name] for name in sorted(files))
