"""The one client that asks servers: how much they may send, packed and unpacked, for how long, and how slowly.

    a page, which is read whole      64 MB, after inflating too, in 5 minutes
    a file, which is read in pieces  16 GB, as it comes, in 6 hours
    both                             4 KB in each second on average, counted anew as often as pip's timeout ends
    the headers before it            100 KB, in four times pip's timeout, which is a minute

Timeouts alone bound nothing: a byte now and then is enough for each of them. Time counts while a server is waited for.
Nothing packed is asked for. A server that packs a page anyway gets the same bounds, and a file stays as it comes.
What is too much is a `httpx2.TransportError`, as a connection that breaks is.
"""

import time
import zlib
from collections.abc import Iterator
from typing import Any, cast

import httpx2
from msgspec import Struct
from unearth import Link
from unearth.fetchers import PyPIClient

from vbuild.index_client.beginnings import PATIENCE, begin, end, no_deadline_left, time_transport

SLOWEST = 1 << 12  # bytes a second
_PIECE = 1 << 16  # bytes that are inflated at once
_IS_FILE = "vbuild_is_file"  # extension of a request
_PACKED = {"gzip", "x-gzip", "deflate"}


class Bounds(Struct, frozen=True):
    """How many bytes an answer may have, and how many seconds it may take."""

    size: int
    seconds: float


# the page of all projects on the Python package index has 40 MB
PAGE = Bounds(64 * 10**6, 300)
# the largest wheels have 4 GB
FILE = Bounds(16 * 10**9, 6 * 3600)


class BoundedClient(PyPIClient):
    """A client whose answers keep `PAGE` or `FILE`; one that does not raises `httpx2.HTTPError` while it is read.

    One that does not begin in time raises it, too.
    """

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - as the library has it
        super().__init__(**settings)
        self.event_hooks = {
            "request": [begin, *self.event_hooks["request"]],
            "response": [end, *self.event_hooks["response"]],
        }
        for transport in (self._transport, *self._mounts.values()):
            time_transport(transport)

    def send(self, request: httpx2.Request, *, stream: bool = False, **others: Any) -> httpx2.Response:  # noqa: ANN401 - as the library has it
        """What *request* is answered, a file's bytes if as a *stream*, with all that it is redirected to in bounds."""
        request.extensions = {**request.extensions, _IS_FILE: stream}
        with no_deadline_left():
            return super().send(request, stream=stream, **others)


def bound(response: httpx2.Response) -> None:
    """Let *response*, of which only the headers came so far, keep its bounds; it is a hook of `BoundedClient`."""
    request = response.request
    is_file = request.extensions.get(_IS_FILE, False) and response.is_success
    bounds = FILE if is_file else PAGE
    stated = response.headers.get("Content-Length", "")
    if request.method != "HEAD" and stated.isdecimal() and len(stated) < 20 and int(stated) > bounds.size:  # noqa: PLR2004 - digits
        raise httpx2.ReadError(f"{stated} bytes, expected {bounds.size} at most", request=request)
    coding = "identity" if is_file else response.headers.pop("Content-Encoding", "identity").strip().lower()
    if coding not in {"identity", "", *_PACKED}:
        raise httpx2.DecodingError(f"packed as {coding!r}, expected identity, which was asked for", request=request)
    patience = (request.extensions.get("timeout") or {}).get("read") or PATIENCE
    stream = cast("httpx2.SyncByteStream", response.stream)
    response.stream = _Bounded(stream, bounds, patience=patience, is_packed=coding in _PACKED)


class _Bounded(httpx2.SyncByteStream):
    """The bytes of *stream*, inflated if it *is_packed*, as long as they keep *bounds*."""

    def __init__(self, stream: httpx2.SyncByteStream, bounds: Bounds, *, patience: float, is_packed: bool) -> None:
        self._stream = stream
        self._bounds = bounds
        self._patience = patience
        self._is_packed = is_packed

    def __iter__(self) -> Iterator[bytes]:
        came = self._sized(self._timed())
        return self._sized(_inflated(came)) if self._is_packed else came

    def close(self) -> None:
        self._stream.close()

    def _sized(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        size = 0
        for piece in pieces:
            size += len(piece)
            if size > self._bounds.size:
                raise httpx2.ReadError(f"more than {self._bounds.size} bytes, which is the most that is read")
            yield piece

    def _timed(self) -> Iterator[bytes]:
        pieces = iter(self._stream)
        whole, waited, came = 0.0, 0.0, 0
        while True:
            begun = time.monotonic()
            piece = next(pieces, None)
            spent = time.monotonic() - begun
            if piece is None:
                return
            whole, waited, came = whole + spent, waited + spent, came + len(piece)
            if whole > self._bounds.seconds:
                raise httpx2.ReadTimeout(f"not at its end after {self._bounds.seconds:g} seconds")
            if waited > self._patience:
                if came < waited * SLOWEST:
                    raise httpx2.ReadTimeout(
                        f"{came} bytes in {waited:.0f} seconds, which is too slow; expected {SLOWEST} in each"
                    )
                waited, came = 0.0, 0
            yield piece


def _inflated(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """What *pieces* of gzip or zlib hold, never more than `_PIECE` at once; raises `httpx2.DecodingError`."""
    inflater = zlib.decompressobj(zlib.MAX_WBITS | 32)  # which tells gzip from zlib by its head
    try:
        for piece in pieces:
            rest = piece
            while rest and not inflater.eof:
                yield inflater.decompress(rest, _PIECE)
                rest = inflater.unconsumed_tail
    except zlib.error as error:
        raise httpx2.DecodingError(f"packed, and damaged: {error}") from error
    if not inflater.eof:
        raise httpx2.DecodingError("packed, and cut off")


def refuse_ours(place: str, links: list[Link]) -> None:
    """Raise `httpx2.UnsupportedProtocol` if the page at the URL *place*, of a server, links to a file of this machine.

    The client would read it: some package indexes are folders. So is the page itself if it comes from one.
    """
    if not place.lower().startswith("file:"):
        for link in links:
            if link.is_file:
                raise httpx2.UnsupportedProtocol(f"links to {link.redacted}, expected http or https")
