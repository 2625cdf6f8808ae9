"""The one client that asks servers: how much they may send, packed and unpacked, for how long, and how slowly.

    the headers                      100 KB, in four times pip's timeout, which is a minute
    a page, which is read whole      64 MB, after inflating too, in 5 minutes
    a file, which is read in pieces  16 GB, as it comes, in 6 hours
    both                             4 KB in each second on average, counted anew as often as pip's timeout ends

Timeouts alone bound nothing: they count anew with each part, so a server that sends a byte a second holds a run for a
day. Here the headers share one time, and time counts while a server is waited for. Nothing packed is asked for. A
server that packs a page anyway gets the same bounds, and a file stays as it comes.
What is too much is a `httpx2.TransportError`, as a connection that breaks is.
"""

import ssl
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

import httpcore2
import httpx2
from msgspec import Struct
from unearth import Link
from unearth.fetchers import PyPIClient

PATIENCE = 15.0  # seconds, where pip's timeout is none
# of pip's timeout: one to connect, to greet, to ask and to be answered
_STEPS = 4


class _Deadline(Struct, frozen=True):
    """When the headers of an answer have to be there, by `time.monotonic`."""

    seconds: float
    ends: float

    def left(self) -> float:
        if (left := self.ends - time.monotonic()) <= 0:
            raise httpcore2.ReadTimeout(f"its headers are not at their end after {self.seconds:g} seconds")
        return left


_deadline: ContextVar[_Deadline | None] = ContextVar("_deadline", default=None)


@contextmanager
def no_deadline_left() -> Iterator[None]:
    try:
        yield
    finally:
        _deadline.set(None)


def begin(request: httpx2.Request) -> None:
    seconds = _STEPS * ((request.extensions.get("timeout") or {}).get("read") or PATIENCE)
    _deadline.set(_Deadline(seconds, time.monotonic() + seconds))


def end(_response: httpx2.Response) -> None:
    """The headers are there: what follows has bounds of its own."""
    _deadline.set(None)


def time_transport(transport: httpx2.BaseTransport | None) -> None:
    """Make the connections of *transport* keep the deadline of the thread that uses them; files need none."""
    if isinstance(transport, httpx2.HTTPTransport):
        pool = transport._pool  # noqa: SLF001 - there is no other way to give it the connections
        if not isinstance(pool._network_backend, _Timed):  # noqa: SLF001
            pool._network_backend = _Timed(pool._network_backend)  # noqa: SLF001


@contextmanager
def _limited(timeout: float | None) -> Iterator[float | None]:
    """*timeout*, or less if the deadline comes first; a timeout by the deadline says so."""
    deadline = _deadline.get()
    try:
        yield timeout if deadline is None else min(deadline.left(), timeout or deadline.seconds)
    except httpcore2.TimeoutException:
        if deadline is not None:
            deadline.left()
        raise


class _Timed(httpcore2.NetworkBackend):
    def __init__(self, backend: httpcore2.NetworkBackend) -> None:
        self._backend = backend

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.NetworkStream:
        with _limited(timeout) as left:
            return _TimedStream(self._backend.connect_tcp(host, port, left, local_address, socket_options))


class _TimedStream(httpcore2.NetworkStream):
    def __init__(self, stream: httpcore2.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        with _limited(timeout) as left:
            return self._stream.read(max_bytes, left)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        with _limited(timeout) as left:
            self._stream.write(buffer, left)

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        with _limited(timeout) as left:
            return _TimedStream(self._stream.start_tls(ssl_context, server_hostname, left))

    def get_extra_info(self, info: str) -> Any:  # noqa: ANN401 - as the library has it
        return self._stream.get_extra_info(info)


SLOWEST = 1 << 12  # bytes a second
_PIECE = 1 << 16  # bytes that are inflated at once
_IS_FILE = "vbuild_is_file"  # extension of a request
_PACKED = {"gzip", "x-gzip", "deflate"}


class Bounds(Struct, frozen=True):
    size: int
    seconds: float


# the page of all projects on the Python package index has 40 MB
PAGE = Bounds(64 * 10**6, 300)
# the largest wheels have 4 GB
FILE = Bounds(16 * 10**9, 6 * 3600)


class BoundedClient(PyPIClient):
    """A client whose answers keep `PAGE` or `FILE`, and begin in time; else reading them raises `httpx2.HTTPError`."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - as the library has it
        super().__init__(**settings)
        self.event_hooks = {
            "request": [begin, *self.event_hooks["request"]],
            "response": [end, *self.event_hooks["response"]],
        }
        for transport in (self._transport, *self._mounts.values()):
            time_transport(transport)

    def send(self, request: httpx2.Request, *, stream: bool = False, **others: Any) -> httpx2.Response:  # noqa: ANN401 - as the library has it
        """Returns the response to *request*, a file's if it is a *stream*; redirects count against the same limits."""
        request.extensions = {**request.extensions, _IS_FILE: stream}
        with no_deadline_left():
            return super().send(request, stream=stream, **others)


def bound(response: httpx2.Response) -> None:
    """A hook of `BoundedClient`; only the headers have come."""
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
    """Raise `httpx2.UnsupportedProtocol` if the page at *place*, of a server, links to a file of this machine.

    The client would read it, since some indexes are folders. A page that is a file itself may.
    """
    if not place.lower().startswith("file:"):
        for link in links:
            if link.is_file:
                raise httpx2.UnsupportedProtocol(f"links to {link.redacted}, expected http or https")
