"""Files of projects on the package indexes: where they are listed, with which hashes, and how they are downloaded.

Indexes -> a client with pip's certificates, proxy and credentials -> a finder for every place -> files of a project
"""

import hashlib
import logging
import os
import re
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from operator import itemgetter
from pathlib import Path
from threading import Event
from typing import cast
from urllib.parse import urlsplit

import httpx2
from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import Tag, sys_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version
from unearth import Link, Package, PackageFinder
from unearth.auth import MultiDomainBasicAuth
from unearth.fetchers import Fetcher, PyPIClient
from unearth.utils import parse_netloc

from vbuild.errors import FetchError, at
from vbuild.index_client.bounds import BoundedClient, bound, refuse_ours
from vbuild.index_client.configuration import Indexes
from vbuild.index_client.located import ListedFile, Wanted

# its warnings become part of an error, or do not matter: a project that one of several places lacks
logging.getLogger("unearth").addHandler(logging.NullHandler())

# what leads the client to other certificates than those of the machine
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
_LOGIN = re.compile(r"//[^/@]*@")
_SHA256 = re.compile(r"[0-9a-f]{64}")
# versions in a message
_SHOWN = 5


class Problems(list[str]):
    def note(self, response: httpx2.Response) -> None:
        """Keep an index's refusal, which the finder takes for an empty page; 404 means that it lacks the project."""
        if response.is_error and response.status_code != httpx2.codes.NOT_FOUND:
            url = Link(str(response.url)).redacted
            self.append(f"{url}: {response.status_code} {response.reason_phrase}")


@contextmanager
def client_of(indexes: Indexes, noted: Callable[[httpx2.Response], None]) -> Iterator[PyPIClient]:
    """An HTTP client that never asks on the terminal, and calls *noted* with every response.

    `FetchError` if pip's configuration has a value that no client can use.
    """
    with _configured("cert", indexes.cert):
        certificates = indexes.cert, *(os.environ.get(name) for name in _CERTIFICATES)
        # a client's own certificate goes into the context
        verify = _trusting(*certificates) if indexes.client_cert else _trusting_once(*certificates)
    with _configured("client-cert", indexes.client_cert):
        if indexes.client_cert:
            ssl.create_default_context().load_cert_chain(indexes.client_cert)
    for host in indexes.trusted_hosts:
        with _configured("trusted-host", host):
            parse_netloc(host)
    with _configured("proxy", indexes.proxy):
        client = BoundedClient(
            trusted_hosts=indexes.trusted_hosts,
            verify=verify,
            cert=indexes.client_cert,
            proxy=indexes.proxy,
            timeout=indexes.timeout,
            follow_redirects=True,
            headers={"Accept-Encoding": "identity"},  # the bytes that are hashed are the file's own
            event_hooks={"response": [_refuse_elsewhere, bound, noted]},
        )
    urls = [url for url in (indexes.index_url, *indexes.extra_index_urls) if url]
    client.auth = MultiDomainBasicAuth(prompting=False, index_urls=urls)
    with client:
        yield client


def _trusting(cert: str | None, *_own: str | None) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=cert) if cert else httpx2.create_ssl_context()


_trusting_once = cache(_trusting)  # each time takes 30 ms, for each transport of a client


def _refuse_elsewhere(response: httpx2.Response) -> None:
    """Refuse a redirect to a file of this machine, which the client would read."""
    if response.has_redirect_location:
        scheme = response.headers["Location"].partition(":")[0].strip().lower()
        if scheme == "file":
            raise httpx2.UnsupportedProtocol(f"redirected to {response.headers['Location']!r}, expected http or https")


def finders(client: PyPIClient, indexes: Indexes) -> list[PackageFinder]:
    """One finder for every place, local ones first, so that an unreachable one does not hide the others."""
    urls = [] if indexes.no_index else [indexes.index_url, *indexes.extra_index_urls]
    for key, urls_of_key in (("index-url", urls), ("find-links", indexes.find_links)):
        for url in filter(None, urls_of_key):
            with _configured(key, url):
                httpx2.URL(url)
                urlsplit(url).port  # noqa: B018 - which is when it is checked
                if (link := Link(url)).is_file:
                    link.file_path  # noqa: B018 - as above
    # without an index the finder takes the default one, as pip does
    fetcher = cast("Fetcher", client)  # its own protocol is stricter than the library's own client
    places = [PackageFinder(fetcher, index_urls=[url] if url else [], ignore_compatibility=True) for url in urls]
    places += [PackageFinder(fetcher, find_links=[link], ignore_compatibility=True) for link in indexes.find_links]
    if not places:
        raise FetchError("pip is configured with no-index and without find-links: there is nowhere to look")
    return sorted(places, key=lambda finder: not finder.sources[0]["url"].startswith("file:"))


def index_urls(client: PyPIClient, indexes: Indexes) -> list[str]:
    """The URLs of the indexes that are asked: pip's default one if none is configured, none with no-index."""
    if indexes.no_index:
        return []
    sources = [finder.sources[0] for finder in finders(client, indexes)]
    return [source["url"] for source in sources if source["type"] == "index"]


@contextmanager
def _configured(key: str, value: str | None) -> Iterator[None]:
    """Raise `FetchError` if *value* of pip's setting *key* cannot be used; passwords are left out."""
    try:
        yield
    except (OSError, ValueError, ImportError, httpx2.InvalidURL) as error:
        reason = (error.strerror if isinstance(error, OSError) else "") or str(error)
        shown = _LOGIN.sub("//****@", value or "of the environment")
        raise FetchError(f"pip's configuration: {key} {shown}: {reason.splitlines()[0]}") from error


def packages_at(finder: PackageFinder, project: str) -> list[Package]:
    """The files of *project* in one place; raises `httpx2.HTTPError` if it cannot be asked, or has no index page."""
    try:
        packages = list(finder.find_all_packages(project, allow_yanked=True))
    except (ValueError, TypeError, AttributeError, LookupError, AssertionError, RecursionError) as error:
        # the finder expects HTML or JSON, and checks neither
        raise httpx2.DecodingError(f"its page of {project} is not an index page: {error}") from error
    refuse_ours(finder.sources[0]["url"], [package.link for package in packages])
    return packages


def stated_sha256(link: Link) -> str | None:
    """The SHA-256 that an index states for *link*, or None; it becomes a file name in caches, so it must not be a
    path.
    """
    try:
        stated = (link.hash_option or {}).get("sha256", [])
    except AttributeError:  # JSON with another value instead of hashes
        return None
    digests = [text.lower() for text in stated if isinstance(text, str)]
    return digests[0] if digests and _SHA256.fullmatch(digests[0]) else None


def name_of(finder: PackageFinder) -> str:
    """The URL without a password."""
    return Link(finder.sources[0]["url"]).redacted


def files_of(project: str, *, indexes: Indexes) -> tuple[ListedFile, ...]:
    """The files of *project* in all places, the newest release first; empty if no place knows the project.

    Of a file that several places have, the first place that states a hash counts. `FetchError` if no place has a file
    and some could not be asked.
    """
    problems = Problems()
    files: dict[str, ListedFile] = {}
    with client_of(indexes, problems.note) as client:
        for finder in finders(client, indexes):
            try:
                packages = packages_at(finder, project)
            except httpx2.HTTPError as error:
                problems.append(f"{name_of(finder)}: {error}")
                continue
            for listed in listed_in(packages):
                if listed.file not in files or not files[listed.file].sha256:
                    files[listed.file] = listed
    if problems and not files:
        raise FetchError(f"{project}: {'; '.join(dict.fromkeys(problems))}")
    return tuple(sorted(files.values(), key=lambda listed: (listed.version, listed.file), reverse=True))


def listed_in(packages: Iterable[Package]) -> Iterator[ListedFile]:
    for package in packages:
        link, version = package.link, package.version
        if version:
            is_yanked = link.yank_reason is not None
            yield ListedFile(link.filename, Version(version), stated_sha256(link), is_yanked, link.url_without_fragment)


def download(wanted: Wanted, target: Path, *, indexes: Indexes, stop: Event | None = None) -> None:
    """Write the *wanted* file to *target*, and check its hash.

    Files for which an index states another hash are not downloaded. `FetchError` if no index has the file, if the disk
    is full, and soon after another thread sets *stop*; then nothing is left at *target*.
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


def save(client: PyPIClient, url: str, target: Path, *, stop: Event | None = None) -> str:
    """Write the file at *url* to *target*; returns its SHA-256.

    `httpx2.HTTPError` if the server does not answer; `FetchError` if *target* cannot be written, or *stop* is set.
    """
    digest = hashlib.sha256()
    try:
        with client.get_stream(url) as response:
            response.raise_for_status()
            with target.open("wb") as file:
                for chunk in response.iter_raw():  # of any size, so that *stop* is checked often
                    if stop and stop.is_set():
                        raise FetchError("stopped")
                    digest.update(chunk)
                    file.write(chunk)
    except OSError as error:
        raise FetchError(f"{target.parent}: cannot be written: {error.strerror}") from error
    return digest.hexdigest()


@dataclass(slots=True)
class _Search:
    """What was looked at so far, for the message if the file is not found."""

    wanted: Wanted
    stop: Event
    places: list[str] = field(default_factory=list)
    problems: Problems = field(default_factory=Problems)
    others: dict[str, str] = field(default_factory=dict)

    def links(self, finder: PackageFinder) -> list[Link]:
        """The files in one place, without those that state another hash; PEP 625's ``.tar.gz`` first."""
        wanted = self.wanted
        self.places.append(name_of(finder))
        try:
            packages = packages_at(finder, wanted.project)
        except httpx2.HTTPError as error:
            self.problems.append(f"{self.places[-1]}: {error}")
            return []
        if wanted.file is None:
            sdists = [package for package in packages if not package.link.is_wheel]
            links = [sdist.link for sdist in sdists if sdist.version and Version(sdist.version) == wanted.version]
        else:
            links = [package.link for package in packages if package.link.filename == wanted.file]
        stated = {link.filename: stated_sha256(link) for link in links}
        self.others |= {name: sha256 for name, sha256 in stated.items() if sha256 and sha256 != wanted.sha256}
        fitting = [link for link in links if stated[link.filename] in {None, wanted.sha256}]
        return sorted(fitting, key=lambda link: not link.filename.endswith(".tar.gz"))

    def saved(self, client: PyPIClient, link: Link, target: Path) -> bool:
        """Returns whether the file has the hash."""
        try:
            with at(self.wanted):
                digest = save(client, link.url_without_fragment, target, stop=self.stop)
        except httpx2.HTTPError as error:
            self.problems.append(f"{link.redacted}: {error}")
            return False
        self.others[link.filename] = digest
        return digest == self.wanted.sha256

    def failure(self) -> FetchError:
        file = self.wanted.file
        what = f"no {file or 'sdist of this version'} on {', '.join(self.places)}"
        if self.others:
            others = "; ".join(f"{name} with sha256 {sha256}" for name, sha256 in self.others.items())
            pinned = "the recipe expects" if file is None else "expected"
            what = f"found {others}; {pinned} sha256 {self.wanted.sha256}"
        return FetchError(": ".join((str(self.wanted), "; ".join((what, *dict.fromkeys(self.problems))))))


def download_best(
    project: str, rank: Callable[[ListedFile], int | None], folder: Path, *, indexes: Indexes
) -> Path | None:
    """The file of *project* with the lowest rank, downloaded into *folder*; None if every rank is None."""
    files = files_of(project, indexes=indexes)
    ranked = [(place, file) for file in files if file.sha256 and (place := rank(file)) is not None]
    if not ranked:
        return None
    _, best = min(ranked, key=itemgetter(0))
    folder.mkdir(parents=True, exist_ok=True)
    download(Wanted(project, best.version, best.sha256 or "", best.file), folder / best.file, indexes=indexes)
    return folder / best.file


def requirement_of(text: str) -> Requirement | None:
    """The project and versions in *text*, such as torch==2.9.1, or None."""
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return None
    return None if requirement.marker or requirement.url or requirement.extras else requirement


def download_wheel(
    wanted: Requirement, folder: Path, *, indexes: Indexes, on_note: Callable[[str], None] = lambda _line: None
) -> Path:
    """Download the newest wheel that fits *wanted* and this Python, as pip chooses it, into *folder*.

    *on_note* gets a line that says which before it is downloaded.
    """
    files = files_of(wanted.name, indexes=indexes)
    if not files:
        raise FetchError(f"{wanted.name}: no such file or folder, and no project of this name on the package index")
    pinned = any(specifier.operator in {"==", "==="} and "*" not in specifier.version for specifier in wanted.specifier)
    versions = set(wanted.specifier.filter({file.version for file in files if pinned or not file.is_yanked}))
    released = [file for file in files if file.version in versions and (pinned or not file.is_yanked)]
    ranks = {tag: place for place, tag in enumerate(sys_tags())}
    fitting = [(file, rank) for file in released if (rank := _rank(file.file, ranks)) is not None]
    if not fitting:
        raise FetchError(f"{wanted}: {_without_wheel(wanted, files, released)}")
    best, _ = max(fitting, key=lambda pair: (pair[0].version, -pair[1]))
    if best.sha256 is None:
        raise FetchError(
            f"{best.file}: the index states no sha256 for it; expected one, or download it and name the file"
        )
    on_note(f"fetching {best.file}")
    target = folder / best.file
    download(Wanted(wanted.name, best.version, best.sha256, best.file), target, indexes=indexes)
    return target


def _rank(file: str, ranks: Mapping[Tag, int]) -> int | None:
    """The rank of the wheel *file*, 0 the best; None if it does not fit."""
    try:
        # what it cannot parse has a variant label, or is an sdist
        tags = parse_wheel_filename(file)[3]
    except InvalidWheelFilename:
        return None
    return min((ranks[tag] for tag in tags if tag in ranks), default=None)


def _without_wheel(wanted: Requirement, files: Iterable[ListedFile], released: Iterable[ListedFile]) -> str:
    """Why no wheel fits *wanted*: *files* are all of the project, *released* those of its versions."""
    wheels = [file.file for file in released if file.is_wheel]
    if wheels:
        reason = f"no wheel for this Python and machine among {len(wheels)}, such as {wheels[0]}"
        return f"{reason}; download the one you mean, and name the file: pip download --help explains --python-version"
    if any(True for _ in released):
        return f"an sdist and no wheel: there is nothing to cut before it is built, as `vbuild matrix {wanted}` does"
    versions = sorted({file.version for file in files if file.is_wheel}, reverse=True)[:_SHOWN]
    return f"no such version, or yanked; there are wheels of {', '.join(map(str, versions)) or 'none'}"
