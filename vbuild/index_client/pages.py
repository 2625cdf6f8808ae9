"""What servers answer at the URLs that users type: files, pages of links, and the pages of an index.

A `Store` keeps files by their hash, so that a run which was killed continues:

    <sha256>.part     the first bytes of the file, as many as have come
    <sha256>          the file, compared with its hash

https://www.rfc-editor.org/rfc/rfc9110#name-range-requests
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO, cast
from urllib.parse import unquote, urljoin, urlsplit
from urllib.request import url2pathname

import httpx2
from packaging.utils import canonicalize_name
from packaging.version import Version
from unearth import Link
from unearth.collector import IndexPage, LinkCollectError, fetch_page, parse_html_page, parse_json_response
from unearth.fetchers import Fetcher, PyPIClient

from vbuild.errors import FetchError
from vbuild.files.atomic import linked, name_unwritable_folder
from vbuild.files.hashing import sha256_of
from vbuild.files.reading import open_file
from vbuild.index_client.bounds import refuse_ours
from vbuild.index_client.configuration import Indexes
from vbuild.index_client.located import ListedFile
from vbuild.index_client.packages import Problems, client_of, index_urls, stated_sha256
from vbuild.index_client.ranged import opened

# bytes of a variants.json
_LARGEST = 1 << 24
# of a file whose bytes alone are asked for
_NO_VERSION = Version("0")
_JSON = "application/vnd.pypi.simple.v1+json"
# what a release has; the last ones are sdists of earlier years
_RELEASED = (".whl", ".tar.gz", "-variants.json", ".zip", ".tgz", ".tar", ".tar.bz2", ".tar.xz", ".tar.Z")
_MOST_PROJECTS = 1000
_shared: ContextVar[PyPIClient | None] = ContextVar("_shared", default=None)


def is_url(text: str) -> bool:
    return text.lower().startswith(("https://", "http://"))


@contextmanager
def connected() -> Iterator[None]:
    """Make all requests of the block through one client: connections are kept, and pip is asked once for its settings.

    Other threads use it only if they run in a copy of its context.
    """
    with asking() as client:
        token = _shared.set(client)
        try:
            yield
        finally:
            _shared.reset(token)


@contextmanager
def asking() -> Iterator[PyPIClient]:
    """The client of the block that is `connected`, or one for these requests alone."""
    if client := _shared.get():
        yield client
        return
    with client_of(Indexes.configured(), lambda _response: None) as client:
        yield client


def fetched(url: str, folder: Path) -> Path:
    """Download the file at *url* into *folder* under its own name, and compare it with a ``#sha256=`` in the URL."""
    shown = checked(url).redacted
    name = unquote(urlsplit(url).path).rpartition("/")[2]
    if not name or name in {".", ".."}:
        raise FetchError(f"{shown}: expected the URL of a file")
    target = folder / name
    wanted, digest = stated_sha256(Link(url)), hashlib.sha256()
    try:
        with _answer(url) as response, target.open("wb") as out:
            for chunk in response.iter_raw():
                digest.update(chunk)
                out.write(chunk)
    except OSError as error:
        raise FetchError(f"{target}: cannot be written: {error.strerror}") from error
    if wanted not in {None, digest.hexdigest()}:
        target.unlink()
        raise FetchError(f"{shown}: has sha256 {digest.hexdigest()}, expected {wanted}")
    return target


def read(url: str) -> bytes:
    """The bytes of the file at *url*, at most 16 MB."""
    data = bytearray()
    with _answer(url) as response:
        for chunk in response.iter_raw():
            data += chunk
            if len(data) > _LARGEST:
                raise FetchError(f"{Link(url).redacted}: more than {_LARGEST} bytes")
    return bytes(data)


@contextmanager
def opened_at(url: str, name: str) -> Iterator[BinaryIO]:
    with asking() as client, opened(client, ListedFile(name, version=_NO_VERSION, url=url)) as file:
        yield cast("BinaryIO", file)


def links_to_files(url: str, project: str) -> tuple[Link, ...]:
    """The files that the page at *url* links to, without yanked ones; of a simple index those of *project*."""
    shown = checked(url).redacted
    problems = Problems()
    bare = urlsplit(url)._replace(query="", fragment="").geturl()
    own = f"{bare.rstrip('/')}/{canonicalize_name(project)}/"
    with client_of(Indexes.configured(), problems.note) as client:
        # an index's page of all projects is not a page of links: PyPI's has 40 MB
        is_index = urlsplit(bare).path.rstrip("/").endswith("/simple")
        for page_url in (own,) if is_index else (own, url):
            try:
                links = _links(_page(client, page_url))
            except FetchError as error:
                problems.append(str(error))
                continue
            return _to_files(link for link in links if link.yank_reason is None)
    raise FetchError(
        f"{shown}: nothing of {project}: {problems[-1]}; expected a folder, a page of links, or a simple index"
    )


def provenance_of(file: str) -> bytes | None:
    """The provenance (PEP 740) that one of pip's indexes has for the wheel *file*, or None.

    Only the JSON form of an index says where it is. `FetchError` if no index has the project, or it cannot be read.
    """
    indexes, problems = Indexes.configured(), list[str]()
    with asking() as client:
        for index in index_urls(client, indexes):
            try:
                page = _page(client, f"{index.rstrip('/')}/{canonicalize_name(file.partition('-')[0])}/")
            except FetchError as error:
                problems.append(str(error))
                continue
            files = json.loads(page.content).get("files") if _is_json(page) else None
            for row in files if isinstance(files, list) else ():
                if isinstance(row, dict) and row.get("filename") == file and isinstance(row.get("provenance"), str):
                    url = urljoin(page.link.url, row["provenance"])
                    if not is_url(url):
                        raise FetchError(f"{page.link.redacted}: provenance at {url!r}, expected http or https")
                    return read(url)
    if problems:
        raise FetchError(problems[-1])
    return None


def all_links_to_files(url: str) -> tuple[Link, ...]:
    """The files that the page at *url* links to, yanked ones too; of a simple index those of all projects."""
    shown = checked(url).redacted
    with asking() as client:
        page = _page(client, url)
        links = _links(page)
        if not (files := _to_files(links)):
            below = _projects(page, links)
            if len(below) > _MOST_PROJECTS:
                example = f"{url.rstrip('/')}/{urlsplit(below[0]).path.rstrip('/').rpartition('/')[2]}/"
                raise FetchError(
                    f"{shown}: {len(below)} projects, expected {_MOST_PROJECTS} at most; name one's page, as {example}"
                )
            files = _to_files(link for page_url in below for link in _links(_page(client, page_url)))
    if not files:
        raise FetchError(f"{shown}: lists no wheel and no sdist; expected a page of links, or a simple index")
    return files


def _page(client: PyPIClient, url: str) -> IndexPage:
    try:
        return fetch_page(cast("Fetcher", client), Link(url))
    except (LinkCollectError, httpx2.HTTPError) as error:
        raise FetchError(f"{Link(url).redacted}: {error}") from error


def _to_files(links: Iterable[Link]) -> tuple[Link, ...]:
    return tuple(link for link in links if link.filename.endswith(_RELEASED) and is_url(link.url))


def _projects(page: IndexPage, links: Iterable[Link]) -> list[str]:
    """The URLs of the pages below *page*, those of an index's projects."""
    base = page.link.url_without_fragment
    own = base if base.endswith("/") else f"{base}/"
    urls = [link.url_without_fragment for link in links]
    if _is_json(page) and isinstance(rows := json.loads(page.content).get("projects"), list):
        names = [str(row.get("name")) for row in rows if isinstance(row, dict)]
        urls = [urljoin(own, f"{canonicalize_name(name)}/") for name in names]
    return [url for url in dict.fromkeys(urls) if url.startswith(own) and url.endswith("/") and url != own]


@contextmanager
def _answer(url: str) -> Iterator[httpx2.Response]:
    """The response for *url*; in the block, too, `FetchError` if that is an error or breaks off."""
    link = Link(url)
    with asking() as client:
        try:
            with client.get_stream(link.url_without_fragment) as response:
                response.raise_for_status()
                yield response
        except httpx2.HTTPStatusError as error:
            answer = error.response
            raise FetchError(f"{link.redacted}: {answer.status_code} {answer.reason_phrase}") from error
        except httpx2.HTTPError as error:
            raise FetchError(f"{link.redacted}: {error or type(error).__name__}") from error


def _is_json(page: IndexPage) -> bool:
    return page.content_type.lower().startswith(_JSON)


def _links(page: IndexPage) -> tuple[Link, ...]:
    try:
        links = list(parse_json_response(page) if _is_json(page) else parse_html_page(page))
        refuse_ours(page.link.url, links)
        return tuple(links)
    except httpx2.UnsupportedProtocol as error:
        raise FetchError(f"{page.link.redacted}: {error}") from error
    except (ValueError, TypeError, AttributeError, LookupError, AssertionError, RecursionError) as error:
        raise FetchError(f"{page.link.redacted}: no page of links: {error}") from error


def checked(url: str) -> Link:
    try:
        httpx2.URL(url)
        urlsplit(url).port  # noqa: B018 - which is when it is checked
        return Link(url)
    except (ValueError, httpx2.InvalidURL) as error:
        raise FetchError(f"{url}: no URL: {error}") from error


# connections that may break while one file is fetched, each with some bytes more than the last
_TRIES = 5
_BUFFER = 1 << 20
_RANGE = re.compile(r"bytes (?P<first>\d+)-\d+/(?:\d+|\*)", re.ASCII)

OnBytes = Callable[[int], None]


class Store:
    """Files in *folder* by their SHA-256; several threads may use it, each for another file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FetchError(f"{folder}: cannot be written: {name_unwritable_folder(error).strerror}") from error

    def file(self, url: str, sha256: str, *, on_bytes: OnBytes = lambda _count: None) -> Path:
        """The file at *url*, of http, https or this machine, with this *sha256*; fetched unless it is here.

        *on_bytes* gets the number of bytes that have come since the last call, also from earlier runs. `FetchError` if
        the file cannot be fetched or has another hash; what has come of it stays for the next try.
        """
        whole = self.folder / sha256
        # others may write there, and disks forget
        if not whole.is_file() or sha256_of(whole) != sha256:
            part = whole.with_name(f"{sha256}.part")
            try:
                if url.startswith("file:"):
                    self._copied(url, part, sha256)
                else:
                    self._fetched(url, part, sha256, on_bytes)
                part.rename(whole)
            except OSError as error:
                raise FetchError(f"{self.folder}: cannot be written: {error.strerror}") from error
        return whole

    def _copied(self, url: str, part: Path, sha256: str) -> None:
        source = Path(url2pathname(urlsplit(url).path))
        part.unlink(missing_ok=True)
        try:
            digest = sha256_of(source)
        except OSError as error:
            raise FetchError(f"{source}: cannot be read: {error.strerror}") from error
        if digest != sha256:
            raise FetchError(f"{source}: has sha256 {digest}, expected {sha256}, which the lock has")
        linked(source, part)

    def _fetched(self, url: str, part: Path, sha256: str, on_bytes: OnBytes) -> None:
        shown, error = Link(url).redacted, None
        for _ in range(_TRIES):
            before = part.stat().st_size if part.exists() else 0
            try:
                digest = self._rest(url, part, on_bytes)
            except httpx2.HTTPStatusError as refusal:
                answer = refusal.response
                raise FetchError(f"{shown}: {answer.status_code} {answer.reason_phrase}") from refusal
            except httpx2.HTTPError as broken:
                error = broken
                if not part.exists() or part.stat().st_size == before:
                    break
                continue
            if digest == sha256:
                return
            part.unlink()
            # what an earlier run has left may be the fault
            if not before:
                raise FetchError(f"{shown}: has sha256 {digest}, expected {sha256}, which the lock has")
        have = part.stat().st_size if part.exists() else 0
        rest = f"; {have} bytes of it are kept, and the next run asks for the rest" if have else ""
        raise FetchError(f"{shown}: {error or type(error).__name__}{rest}") from error

    def _rest(self, url: str, part: Path, on_bytes: OnBytes) -> str:
        """Add to *part* what it lacks; returns the SHA-256 of the whole."""
        digest, have = hashlib.sha256(), 0
        if part.exists():
            with open_file(part) as file:
                while data := file.read(_BUFFER):
                    digest.update(data)
                    have += len(data)
        headers = {"Range": f"bytes={have}-"} if have else None
        with asking() as client, client.get_stream(url, headers=headers) as response:
            if have and response.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                # it had come to its end, and the run was killed before it knew
                on_bytes(have)
                return digest.hexdigest()
            response.raise_for_status()
            if not (have and _begins_at(response, have)):
                digest, have = hashlib.sha256(), 0
            on_bytes(have)
            with os.fdopen(_unlinked(part), "r+b") as out:
                out.truncate(have)
                out.seek(have)
                for chunk in response.iter_raw():
                    out.write(chunk)
                    digest.update(chunk)
                    on_bytes(len(chunk))
        return digest.hexdigest()


def _unlinked(path: Path) -> int:
    """Open the file at *path*, made if missing; `OSError` for a link that somebody has put there."""
    return os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)


def _begins_at(response: httpx2.Response, first: int) -> bool:
    """Whether *response* has the bytes from *first* on, and not the whole file."""
    if response.status_code != HTTPStatus.PARTIAL_CONTENT:
        return False
    match = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
    return match is not None and int(match["first"]) == first
