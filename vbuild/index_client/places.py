"""The places where package indexes are: a client with pip's certificates, proxy and credentials, and finders on it."""

import logging
import re
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast
from urllib.parse import urlsplit

import httpx2
from unearth import Link, Package, PackageFinder
from unearth.auth import MultiDomainBasicAuth
from unearth.fetchers import Fetcher, PyPIClient
from unearth.utils import parse_netloc

from vbuild.errors import FetchError
from vbuild.index_client.configuration import Indexes

# what it warns of becomes part of an error, or is of no matter: a project that one of several places lacks
logging.getLogger("unearth").addHandler(logging.NullHandler())

_LOGIN = re.compile(r"//[^/@]*@")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Problems(list[str]):
    """What went wrong at the places so far, in the order it did."""

    def note(self, response: httpx2.Response) -> None:
        """Keep an index's refusal, which the finder takes for an empty page; 404 only says: no such project here."""
        if response.is_error and response.status_code != httpx2.codes.NOT_FOUND:
            url = Link(str(response.url)).redacted
            self.append(f"{url}: {response.status_code} {response.reason_phrase}")


@contextmanager
def client_of(indexes: Indexes, noted: Callable[[httpx2.Response], None]) -> Iterator[PyPIClient]:
    """An HTTP client that never asks on the terminal, and shows every response to *noted*.

    `FetchError` where pip's configuration has what no client can use.
    """
    with _configured("cert", indexes.cert):
        verify = ssl.create_default_context(cafile=indexes.cert) if indexes.cert else True
    with _configured("client-cert", indexes.client_cert):
        if indexes.client_cert:
            ssl.create_default_context().load_cert_chain(indexes.client_cert)
    for host in indexes.trusted_hosts:
        with _configured("trusted-host", host):
            parse_netloc(host)
    with _configured("proxy", indexes.proxy):
        client = PyPIClient(
            trusted_hosts=indexes.trusted_hosts,
            verify=verify,
            cert=indexes.client_cert,
            proxy=indexes.proxy,
            timeout=indexes.timeout,
            follow_redirects=True,
            headers={"Accept-Encoding": "identity"},  # the bytes that are hashed are the file's own
            event_hooks={"response": [_refuse_elsewhere, noted]},
        )
    urls = [url for url in (indexes.index_url, *indexes.extra_index_urls) if url]
    client.auth = MultiDomainBasicAuth(prompting=False, index_urls=urls)
    with client:
        yield client


def _refuse_elsewhere(response: httpx2.Response) -> None:
    """`httpx2.UnsupportedProtocol` for a redirect to a file of this machine, which the client would read."""
    if response.has_redirect_location:
        scheme = response.headers["Location"].partition(":")[0].strip().lower()
        if scheme == "file":
            raise httpx2.UnsupportedProtocol(f"redirected to {response.headers['Location']!r}, expected http or https")


def finders(client: PyPIClient, indexes: Indexes) -> list[PackageFinder]:
    """One finder for every place, so that one which cannot be reached does not hide the others; local ones first.

    `FetchError` where there is no place, or one of them cannot be.
    """
    urls = [] if indexes.no_index else [indexes.index_url, *indexes.extra_index_urls]
    for key, places in (("index-url", urls), ("find-links", indexes.find_links)):
        for url in filter(None, places):
            with _configured(key, url):
                _check(url)
    # without an index the finder takes the default one, as pip does
    fetcher = cast("Fetcher", client)  # its own protocol is stricter than the library's own client
    found = [PackageFinder(fetcher, index_urls=[url] if url else [], ignore_compatibility=True) for url in urls]
    found += [PackageFinder(fetcher, find_links=[link], ignore_compatibility=True) for link in indexes.find_links]
    if not found:
        raise FetchError("pip is configured with no-index and without find-links: there is no place to look")
    return sorted(found, key=lambda finder: not finder.sources[0]["url"].startswith("file:"))


@contextmanager
def _configured(key: str, value: str | None) -> Iterator[None]:
    """Say, as a `FetchError`, that *value* of pip's setting *key* is of no use; passwords are left out."""
    try:
        yield
    except (OSError, ValueError, ImportError, httpx2.InvalidURL) as error:
        said = (error.strerror if isinstance(error, OSError) else "") or str(error)
        shown = _LOGIN.sub("//****@", value or "of the environment")
        raise FetchError(f"pip's configuration: {key} {shown}: {said.splitlines()[0]}") from error


def _check(url: str) -> None:
    """`ValueError` or `httpx2.InvalidURL` where *url* is none."""
    httpx2.URL(url)
    urlsplit(url).port  # noqa: B018 - which is when it is looked at
    if (link := Link(url)).is_file:
        link.file_path  # noqa: B018 - as above


def packages_at(finder: PackageFinder, project: str) -> list[Package]:
    """The files of *project* in one place; `httpx2.HTTPError` where it cannot be asked, or has no index page."""
    try:
        return list(finder.find_all_packages(project, allow_yanked=True))
    except (ValueError, TypeError, AttributeError, LookupError, AssertionError, RecursionError) as error:
        # the finder reads a page as the HTML, or the JSON, that it ought to be
        raise httpx2.DecodingError(f"its page of {project} is no index page: {error}") from error


def stated_sha256(link: Link) -> str | None:
    """The SHA-256 that an index states for *link*; None without one, and for what is none.

    It becomes a file's name in caches, so a page may not put a path in its place.
    """
    try:
        stated = (link.hash_option or {}).get("sha256", [])
    except AttributeError:  # JSON has something else where hashes should be
        return None
    found = [text.lower() for text in stated if isinstance(text, str)]
    return found[0] if found and _SHA256.fullmatch(found[0]) else None


def name_of(finder: PackageFinder) -> str:
    """The URL of the place that *finder* looks at, without a password."""
    return Link(finder.sources[0]["url"]).redacted
