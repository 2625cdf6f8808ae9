"""How long the beginning of an answer may take: until a server is reached, and has sent all its headers.

Timeouts count anew with each part that comes, so that a server which sends a byte of its headers a second holds a run
for a day. Here each part gets what is left of one time for all. What the headers are followed by is bounded in
`vbuild.index_client.bounds`.
"""

import ssl
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import httpcore2
import httpx2
from msgspec import Struct

PATIENCE = 15.0  # seconds, where pip's timeout is none
# of pip's timeout: one to connect, to greet, to ask and to be answered
_STEPS = 4


class _Deadline(Struct, frozen=True):
    """When the headers of an answer have to be there, by `time.monotonic`, *seconds* after it was asked for."""

    seconds: float
    ends: float

    def left(self) -> float:
        """The seconds that are left; raises `httpcore2.ReadTimeout` if there are none."""
        if (left := self.ends - time.monotonic()) <= 0:
            raise httpcore2.ReadTimeout(f"its headers are not at their end after {self.seconds:g} seconds")
        return left


_deadline: ContextVar[_Deadline | None] = ContextVar("_deadline", default=None)


@contextmanager
def no_deadline_left() -> Iterator[None]:
    """However the block is left, with or without an answer, no deadline is."""
    try:
        yield
    finally:
        _deadline.set(None)


def begin(request: httpx2.Request) -> None:
    """Count the time of *request* from now on; it is a hook of a client whose transports are `timed`."""
    seconds = _STEPS * ((request.extensions.get("timeout") or {}).get("read") or PATIENCE)
    _deadline.set(_Deadline(seconds, time.monotonic() + seconds))


def end(_response: httpx2.Response) -> None:
    """The headers are there: what follows has bounds of its own."""
    _deadline.set(None)


def time_transport(transport: httpx2.BaseTransport | None) -> None:
    """Let the connections of *transport* keep the deadline of the thread that uses them; files need none."""
    if isinstance(transport, httpx2.HTTPTransport):
        pool = transport._pool  # noqa: SLF001 - there is no other way to give it the connections
        if not isinstance(pool._network_backend, _Timed):  # noqa: SLF001
            pool._network_backend = _Timed(pool._network_backend)  # noqa: SLF001


@contextmanager
def _limited(timeout: float | None) -> Iterator[float | None]:
    """*timeout*, or what is left until the deadline if that is less; what ends by it says so."""
    deadline = _deadline.get()
    try:
        yield timeout if deadline is None else min(deadline.left(), timeout or deadline.seconds)
    except httpcore2.TimeoutException:
        if deadline is not None:
            deadline.left()
        raise


class _Timed(httpcore2.NetworkBackend):
    """The connections that *backend* makes, with a deadline."""

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
    """The connection *stream*, with a deadline for each part that is read."""

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
