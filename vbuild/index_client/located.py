"""Files by the URLs that users type: a wheel that is fetched, and the files that a page or a folder lists.

    https://HOST/demo-1.0-….whl            the file, downloaded
    https://HOST/links.html, .../simple/   the page of a project below it, or else the page itself; or all projects
    dist                                   a folder of this machine

Requests are made as those to package indexes are: with pip's certificates, proxy and credentials.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO, cast
from urllib.parse import unquote, urljoin, urlsplit

import httpx2
from msgspec import Struct
from packaging.utils import canonicalize_name
from packaging.version import Version
from unearth import Link
from unearth.collector import IndexPage, LinkCollectError, fetch_page, parse_html_page, parse_json_response
from unearth.fetchers import Fetcher, PyPIClient

from vbuild.errors import FetchError
from vbuild.index_client.configuration import Indexes
from vbuild.index_client.packages import ListedFile, Problems, client_of, stated_sha256
from vbuild.index_client.ranged import opened

# bytes of a variants.json
_LARGEST = 1 << 24
# of a file whose bytes alone are asked for
_NO_VERSION = Version("0")
_JSON = "application/vnd.pypi.simple.v1+json"
# what a release has; the last ones are sdists of earlier years
_RELEASED = (".whl", ".tar.gz", "-variants.json", ".zip", ".tgz", ".tar", ".tar.bz2", ".tar.xz", ".tar.Z")
_MOST_PROJECTS = 1000


class LocatedFile(Struct, frozen=True):
    """The file *name* at *url*, or at *path* of this machine, as *place* lists it.

    Where it *has_metadata*, its METADATA is at the same URL with ``.metadata`` behind it (PEP 658).
    """

    name: str
    place: str
    path: Path | None = None
    url: str = ""
    requires_python: str | None = None
    has_metadata: bool = False

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """The file, open for reading; `FetchError` if it cannot be read.

        Only what is read is transferred, or else all of it, to a temporary file, if its server cannot send parts.
        """
        with ExitStack() as stack:
            yield self._entered(stack)

    def _entered(self, stack: ExitStack) -> BinaryIO:
        if self.path:
            try:
                return stack.enter_context(self.path.open("rb"))
            except OSError as error:
                raise FetchError(f"{self.path}: cannot be read: {error.strerror}") from error
        client = stack.enter_context(client_of(Indexes.configured(), lambda _response: None))
        listed = ListedFile(self.name, version=_NO_VERSION, url=self.url)
        try:
            return cast("BinaryIO", stack.enter_context(opened(client, listed)))
        except FetchError:
            folder = stack.enter_context(TemporaryDirectory(prefix="vbuild-fetched-"))
            return stack.enter_context(fetched(self.url, Path(folder)).open("rb"))

    def metadata(self) -> "LocatedFile | None":
        """The file with its METADATA, if the page has one."""
        if not self.has_metadata:
            return None
        return LocatedFile(f"{self.name}.metadata", self.place, url=f"{self.url}.metadata")

    def read(self) -> bytes:
        """All its bytes, of which there may be 16 MB; `FetchError` if it cannot be read."""
        if self.path:
            try:
                return self.path.read_bytes()
            except OSError as error:
                raise FetchError(f"{self.path}: cannot be read: {error.strerror}") from error
        data = bytearray()
        with _answer(self.url) as response:
            for chunk in response.iter_raw():
                data += chunk
                if len(data) > _LARGEST:
                    raise FetchError(f"{Link(self.url).redacted}: more than {_LARGEST} bytes")
        return bytes(data)


def is_url(text: str) -> bool:
    """Whether *text* names a file on a server."""
    return text.lower().startswith(("https://", "http://"))


def shown_place(place: str | Path) -> str:
    """*place*, a folder or a URL, as a line shows it: without a password."""
    return _checked(place).redacted if isinstance(place, str) else str(place)


def fetched(url: str, folder: Path) -> Path:
    """The file at *url*, downloaded into *folder* under its own name, and compared with a ``#sha256=`` behind it.

    `FetchError` if it is not there or has another hash.
    """
    shown = _checked(url).redacted
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


def files_at(place: str | Path, project: str) -> tuple[LocatedFile, ...]:
    """The files that *place* lists, a folder or the URL of a page of links, by name.

    Of a simple index they are those of *project*. `FetchError` if there is no such folder or page.
    """
    if isinstance(place, Path):
        try:
            found = sorted(place.iterdir())
        except OSError as error:
            raise FetchError(f"{place}: no such folder of wheels") from error
        return tuple(LocatedFile(path.name, str(place), path) for path in found)
    shown = _checked(place).redacted
    problems = Problems()
    bare = urlsplit(place)._replace(query="", fragment="").geturl()
    own = f"{bare.rstrip('/')}/{canonicalize_name(project)}/"
    with client_of(Indexes.configured(), problems.note) as client:
        # the page of all projects of an index is no page of links: that of PyPI has 40 MB
        is_index = urlsplit(bare).path.rstrip("/").endswith("/simple")
        for url in (own,) if is_index else (own, place):
            try:
                links = _links(_page(client, url))
            except FetchError as error:
                problems.append(str(error))
                continue
            return _files(shown, (link for link in links if link.yank_reason is None))
    raise FetchError(
        f"{shown}: nothing of {project}: {problems[-1]}; expected a folder, a page of links, or a simple index"
    )


def all_files_at(url: str) -> tuple[LocatedFile, ...]:
    """The files that the page at *url* lists, yanked ones too, by name; those of all projects of a simple index.

    `FetchError` if a page cannot be read, none lists a file, or there are more projects than one would look at.
    """
    shown = _checked(url).redacted
    with client_of(Indexes.configured(), lambda _response: None) as client:
        page = _page(client, url)
        links = _links(page)
        if not (found := _files(shown, links)):
            below = _projects(page, links)
            if len(below) > _MOST_PROJECTS:
                one = f"{url.rstrip('/')}/{urlsplit(below[0]).path.rstrip('/').rpartition('/')[2]}/"
                raise FetchError(
                    f"{shown}: {len(below)} projects, expected {_MOST_PROJECTS} at most; name the page of one, as {one}"
                )
            found = _files(shown, (link for one in below for link in _links(_page(client, one))))
    if not found:
        raise FetchError(f"{shown}: lists no wheel and no sdist; expected a page of links, or a simple index")
    return found


def _page(client: PyPIClient, url: str) -> IndexPage:
    """The page at *url*; `FetchError` if there is none."""
    try:
        return fetch_page(cast("Fetcher", client), Link(url))
    except (LinkCollectError, httpx2.HTTPError) as error:
        raise FetchError(f"{Link(url).redacted}: {error}") from error


def _files(shown: str, links: Iterable[Link]) -> tuple[LocatedFile, ...]:
    """What *links* of the place *shown* name on servers, by name; the first of a name counts."""
    found: dict[str, LocatedFile] = {}
    for link in links:
        if link.filename.endswith(_RELEASED) and is_url(link.url):
            file = LocatedFile(
                link.filename,
                shown,
                url=link.url_without_fragment,
                requires_python=link.requires_python,
                has_metadata=bool(link.dist_info_metadata),
            )
            found.setdefault(file.name, file)
    return tuple(found[name] for name in sorted(found))


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
    """What the server of *url* sends; `FetchError` in the block, too, if that is no file or breaks off."""
    link = Link(url)
    with client_of(Indexes.configured(), lambda _response: None) as client:
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
    """What *page* links to; `FetchError` if it is no page of links."""
    try:
        return tuple(parse_json_response(page) if _is_json(page) else parse_html_page(page))
    except (ValueError, TypeError, AttributeError, LookupError, AssertionError, RecursionError) as error:
        raise FetchError(f"{page.link.redacted}: no page of links: {error}") from error


def _checked(url: str) -> Link:
    """*url* as a link; `FetchError` if it is none."""
    try:
        httpx2.URL(url)
        urlsplit(url).port  # noqa: B018 - which is when it is checked
        return Link(url)
    except (ValueError, httpx2.InvalidURL) as error:
        raise FetchError(f"{url}: no URL: {error}") from error
