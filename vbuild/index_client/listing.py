"""Which files of a project the package indexes have, and the hashes they state for them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import httpx2
from packaging.version import Version
from unearth import Package

from vbuild.errors import FetchError
from vbuild.index_client.configuration import Indexes
from vbuild.index_client.places import Problems, client_of, finders, name_of, packages_at, stated_sha256


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file of a project on an index, with the SHA-256 that the index states, if it states one.

    *url* is where the bytes are. It says nothing of what the file is, so files are equal wherever they lie.
    """

    file: str
    version: Version
    sha256: str | None = None
    is_yanked: bool = False
    url: str = field(default="", compare=False, repr=False)

    @property
    def is_wheel(self) -> bool:
        return self.file.endswith(".whl")


def files_of(project: str, *, indexes: Indexes) -> tuple[ListedFile, ...]:
    """The files of *project* in all places, the newest release first; none where nobody knows the project.

    Of a file that several places have, the first place that states a hash counts. `FetchError` where no place has one
    and some could not be asked: they may have.
    """
    problems = Problems()
    found: dict[str, ListedFile] = {}
    with client_of(indexes, problems.note) as client:
        for finder in finders(client, indexes):
            try:
                packages = packages_at(finder, project)
            except httpx2.HTTPError as error:
                problems.append(f"{name_of(finder)}: {error}")
                continue
            for listed in listed_in(packages):
                if listed.file not in found or not found[listed.file].sha256:
                    found[listed.file] = listed
    if problems and not found:
        raise FetchError(f"{project}: {'; '.join(dict.fromkeys(problems))}")
    return tuple(sorted(found.values(), key=lambda listed: (listed.version, listed.file), reverse=True))


def listed_in(packages: Iterable[Package]) -> Iterator[ListedFile]:
    """The files behind *packages* that are of a release."""
    for package in packages:
        link, version = package.link, package.version
        if version:
            is_yanked = link.yank_reason is not None
            yield ListedFile(link.filename, Version(version), stated_sha256(link), is_yanked, link.url_without_fragment)
