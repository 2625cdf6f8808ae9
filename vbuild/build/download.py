"""Find an sdist on the package indexes and bring it here: its hash, and nothing else, says that it is the right one."""

import hashlib
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import httpx2
from packaging.version import Version
from unearth import Link, Package, PackageFinder
from unearth.auth import MultiDomainBasicAuth
from unearth.fetchers import Fetcher, PyPIClient

from vbuild.build.indexes import Indexes
from vbuild.errors import BuildError
from vbuild.recipe.source import Sdist

_CHUNK = 1 << 20


def download(sdist: Sdist, target: Path, *, indexes: Indexes) -> None:
    """Write the archive of *sdist* to *target*; `BuildError` where no index has a file with its hash.

    An index that states hashes is believed where they differ, and nothing is downloaded from it.
    """
    search = _Search(sdist)
    with _client(indexes, search) as client:
        for finder in _finders(client, indexes):
            for link in search.links(finder):
                if search.saved(client, link, target):
                    return
    target.unlink(missing_ok=True)
    raise search.failure()


@dataclass(slots=True)
class _Search:
    """What has been looked at for an sdist so far, for the message when it is not found."""

    sdist: Sdist
    places: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    others: dict[str, str] = field(default_factory=dict)

    def links(self, finder: PackageFinder) -> list[Link]:
        """The sdist's files in one place, without those that state another hash; PEP 625's ``.tar.gz`` first."""
        self.places.append(Link(finder.sources[0]["url"]).redacted)
        try:
            packages = finder.find_all_packages(self.sdist.name, allow_yanked=True)
            found = [package.link for package in packages if self._is_ours(package)]
        except httpx2.HTTPError as error:
            self.problems.append(f"{self.places[-1]}: {error}")
            return []
        stated = {link.filename: (link.hash_option or {}).get("sha256", []) for link in found}
        self.others |= {
            name: hashes[0] for name, hashes in stated.items() if hashes and self.sdist.sha256 not in hashes
        }
        wanted = [link for link in found if stated[link.filename] in ([], [self.sdist.sha256])]
        return sorted(wanted, key=lambda link: not link.filename.endswith(".tar.gz"))

    def saved(self, client: PyPIClient, link: Link, target: Path) -> bool:
        """Whether the file behind *link*, written to *target*, has the sdist's hash."""
        digest = hashlib.sha256()
        try:
            with client.get_stream(link.url_without_fragment) as response, target.open("wb") as out:
                response.raise_for_status()
                for chunk in response.iter_raw(_CHUNK):
                    digest.update(chunk)
                    out.write(chunk)
        except httpx2.HTTPError as error:
            self.problems.append(f"{link.redacted}: {error}")
            return False
        self.others[link.filename] = digest.hexdigest()
        return digest.hexdigest() == self.sdist.sha256

    def note(self, response: httpx2.Response) -> None:
        """Keep an index's refusal, which the finder takes for an empty page; 404 only says: no such project here."""
        if response.is_error and response.status_code != httpx2.codes.NOT_FOUND:
            url = Link(str(response.url)).redacted
            self.problems.append(f"{url}: {response.status_code} {response.reason_phrase}")

    def failure(self) -> BuildError:
        what = f"no sdist of this version on {', '.join(self.places)}"
        if self.others:
            found = "; ".join(f"{name} with sha256 {sha256}" for name, sha256 in self.others.items())
            what = f"found {found}; the recipe expects sha256 {self.sdist.sha256}"
        return BuildError(": ".join((str(self.sdist), "; ".join((what, *dict.fromkeys(self.problems))))))

    def _is_ours(self, package: Package) -> bool:
        version = package.version
        return not package.link.is_wheel and version is not None and Version(version) == self.sdist.version


@contextmanager
def _client(indexes: Indexes, search: _Search) -> Iterator[PyPIClient]:
    """An HTTP client with pip's certificates, proxy and credentials, which never asks on the terminal."""
    verify = ssl.create_default_context(cafile=indexes.cert) if indexes.cert else True
    client = PyPIClient(
        trusted_hosts=indexes.trusted_hosts,
        verify=verify,
        cert=indexes.client_cert,
        proxy=indexes.proxy,
        timeout=indexes.timeout,
        follow_redirects=True,
        headers={"Accept-Encoding": "identity"},  # the bytes that are hashed are the file's own
        event_hooks={"response": [search.note]},
    )
    urls = [url for url in (indexes.index_url, *indexes.extra_index_urls) if url]
    client.auth = MultiDomainBasicAuth(prompting=False, index_urls=urls)
    with client:
        yield client


def _finders(client: PyPIClient, indexes: Indexes) -> list[PackageFinder]:
    """One finder for every place, so that one which cannot be reached does not hide the others; local ones first."""
    urls = [] if indexes.no_index else [indexes.index_url, *indexes.extra_index_urls]
    # without an index the finder takes the default one, as pip does
    fetcher = cast("Fetcher", client)  # its own protocol is stricter than the library's own client
    finders = [PackageFinder(fetcher, index_urls=[url] if url else [], ignore_compatibility=True) for url in urls]
    finders += [PackageFinder(fetcher, find_links=[link], ignore_compatibility=True) for link in indexes.find_links]
    if not finders:
        raise BuildError("pip is configured with no-index and without find-links: there is no place to look")
    return sorted(finders, key=lambda finder: not finder.sources[0]["url"].startswith("file:"))
