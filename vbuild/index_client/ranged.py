"""A file behind a URL, read in parts: what nobody reads is not transferred.

    bytes=-131072        the first request: the end, where an archive has its directory, and the size of the whole
    bytes=65536-131071   then what is read, in pieces; larger ones if it is read in order

Each answer is compared with its request. What a server sends whole, as Python's http.server does, goes to a file.
https://www.rfc-editor.org/rfc/rfc9110#name-range-requests
"""

import io
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from hashlib import file_digest
from tempfile import TemporaryFile, gettempdir
from typing import TYPE_CHECKING, BinaryIO

import httpx2
from unearth import Link
from unearth.fetchers import PyPIClient

from vbuild.errors import FetchError
from vbuild.files.reading import open_file
from vbuild.index_client.configuration import Indexes
from vbuild.index_client.located import ListedFile
from vbuild.index_client.packages import client_of, stated_sha256

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

PIECE = 1 << 16
TAIL = 2 * PIECE
_LARGEST = 1 << 22
_REMEMBERED = 1 << 9  # pieces
_CONTENT_RANGE = re.compile(r"bytes (?P<first>\d{1,19})-(?P<last>\d{1,19})/(?P<size>\d{1,19})")
_NO_SUFFIXES = frozenset({400, 416, 501})


class Ranged(io.RawIOBase):
    """A file that is somewhere else, for reading; reads raise `FetchError` if its *source* does not answer."""

    def __init__(self, source: "_Local | _Remote") -> None:
        super().__init__()
        self._source = source
        self._place = 0
        self._pieces: dict[int, bytes] = {}
        self._stride, self._last = PIECE, -2

    @property
    def size(self) -> int:
        return self._source.size

    @property
    def transferred(self) -> int:
        """Bytes that came over the network so far."""
        return self._source.transferred

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        place = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self.size}[whence] + offset
        if place < 0:
            raise ValueError(f"a place before the file: {place}")
        self._place = place
        return place

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        with memoryview(buffer).cast("B") as view:
            span = range(self._place, max(self._place, min(self._place + len(view), self.size)))
            view[: len(span)] = self._bytes(span)
        self._place = span.stop
        return len(span)

    def _bytes(self, span: range) -> bytes:
        behind = self.size - len(self._source.tail)
        front = range(span.start, min(span.stop, behind))
        pieces = [self._piece(number, front.stop) for number in _numbers(front)]
        skipped = span.start % PIECE if pieces else 0
        front_bytes = b"".join(pieces)[skipped : skipped + len(front)]
        return front_bytes + self._source.tail[max(span.start - behind, 0) : max(span.stop - behind, 0)]

    def _piece(self, number: int, stop: int) -> bytes:
        """Piece *number* of the file, fetched with those up to *stop*, or with more if pieces are read in order."""
        if number not in self._pieces:
            start, end = number * PIECE, self.size - len(self._source.tail)
            self._stride = min(self._stride * 2, _LARGEST) if number == self._last + 1 else PIECE
            wanted = _numbers(range(start, max(stop, start + self._stride)))
            behind = next((other for other in wanted if other in self._pieces), wanted.stop)
            data = self._source.fetched(range(start, min(behind * PIECE, end)))
            self._last = number + (len(data) - 1) // PIECE
            for place in range(0, len(data), PIECE):
                self._pieces[number + place // PIECE] = data[place : place + PIECE]
            while len(self._pieces) > _REMEMBERED + len(data) // PIECE:
                del self._pieces[next(iter(self._pieces))]
        return self._pieces[number]


@contextmanager
def ranged(listed: ListedFile, *, indexes: Indexes) -> Iterator[Ranged]:
    with client_of(indexes, lambda _response: None) as client, opened(client, listed) as file:
        yield file


@contextmanager
def opened(client: PyPIClient, listed: ListedFile) -> Iterator[Ranged]:
    """The *listed* file, read in parts; *client* may serve several threads."""
    link = Link(listed.url)
    with ExitStack() as stack:
        if link.is_file:
            try:
                file = stack.enter_context(open_file(link.file_path))
            except OSError as error:
                raise FetchError(f"{link.redacted}: cannot be read: {error.strerror}") from error
            source: _Local | _Remote = _Local(file, link.redacted, os.fstat(file.fileno()).st_size)
        elif listed.url:
            whole = stack.enter_context(TemporaryFile())
            source = _Remote.at(client, listed.url, link.redacted, whole)
            if source.is_whole:
                size = whole.seek(0, os.SEEK_END)
                whole.seek(0)
                digest = file_digest(whole, "sha256").hexdigest()
                if (wanted := listed.sha256 or stated_sha256(link)) not in {None, digest}:
                    raise FetchError(f"{link.redacted}: has sha256 {digest}, expected {wanted}")
                source = _Local(whole, link.redacted, size, transferred=size)
        else:
            raise FetchError(f"{listed.file}: the index states no URL for it")
        yield stack.enter_context(Ranged(source))


@dataclass(slots=True)
class _Local:
    file: BinaryIO
    shown: str
    size: int
    transferred: int = 0
    tail: bytes = b""

    def fetched(self, span: range) -> bytes:
        self.file.seek(span.start)
        data = self.file.read(len(span))
        if len(data) != len(span):
            raise FetchError(f"{self.shown}: {len(data)} bytes at {span.start:#x}, expected {len(span)}")
        return data


@dataclass(slots=True)
class _Remote:
    """A file of *size* bytes at *url*, *shown* without a password; the last bytes, *tail*, came with its size.

    If all of it came, it is in *whole*.
    """

    client: PyPIClient
    url: str
    shown: str
    whole: BinaryIO
    size: int = -1
    transferred: int = 0
    tail: bytes = b""
    etag: str | None = field(default=None, repr=False)
    is_whole: bool = False

    @classmethod
    def at(cls, client: PyPIClient, url: str, shown: str, whole: BinaryIO) -> "_Remote":
        source = cls(client, url, shown, whole)
        source.tail = source._answer(f"-{TAIL}", None) or b""
        if not source.tail and not source.is_whole:  # the server does not know ranges that count from the end
            source._answer(f"0-{PIECE - 1}", range(PIECE))
        return source

    def fetched(self, span: range) -> bytes:
        return self._answer(f"{span.start}-{span.stop - 1}", span) or b""

    def _answer(self, range_text: str, span: range | None) -> bytes | None:
        """The bytes of *span*, or of the end of the file; None if the server cannot send the end, or sends all."""
        try:
            with self.client.get_stream(self.url, headers={"Range": f"bytes={range_text}"}) as response:
                if span is None and response.status_code in _NO_SUFFIXES:
                    return None
                if self.size < 0 and response.status_code == httpx2.codes.OK:
                    self._keep(response)
                    return None
                return self._body(response, self._checked(response, range_text, span))
        except httpx2.HTTPError as error:
            raise FetchError(f"{self.shown}: {error or type(error).__name__}") from error

    def _checked(self, response: httpx2.Response, range_text: str, span: range | None) -> range:
        """The span in *response*; `FetchError` unless it was requested."""
        if response.status_code != httpx2.codes.PARTIAL_CONTENT:
            raise FetchError(f"{self.shown}: {response.status_code} {response.reason_phrase}")
        stated = response.headers.get("Content-Range", "")
        if not (match := _CONTENT_RANGE.fullmatch(stated.strip())):
            raise FetchError(f"{self.shown}: Content-Range {stated!r} for bytes={range_text}")
        received, size = range(int(match["first"]), int(match["last"]) + 1), int(match["size"])
        if self.size < 0:
            self.size, self.etag = size, response.headers.get("ETag")
        if size != self.size or response.headers.get("ETag") != self.etag:
            raise FetchError(f"{self.shown}: changed while it was read")
        expected = range(max(size - TAIL, 0), size) if span is None else range(span.start, min(span.stop, size))
        if received != expected or response.headers.get("Content-Encoding", "identity") != "identity":
            raise FetchError(f"{self.shown}: Content-Range {stated!r} for bytes={range_text}")
        return received

    def _keep(self, response: httpx2.Response) -> None:
        if (coding := response.headers.get("Content-Encoding", "identity")) != "identity":
            raise FetchError(f"{self.shown}: packed as {coding!r}, expected identity, which was asked for")
        self.is_whole = True
        try:
            for chunk in response.iter_raw():
                self.whole.write(chunk)
        except OSError as error:
            raise FetchError(f"{self.shown}: cannot be kept in {gettempdir()}: {error.strerror}") from error

    def _body(self, response: httpx2.Response, span: range) -> bytes:
        data = bytearray()
        for chunk in response.iter_raw():
            self.transferred += len(chunk)
            data += chunk
            if len(data) > len(span):
                break
        if len(data) != len(span):
            more = "more than " if len(data) > len(span) else ""
            raise FetchError(f"{self.shown}: {more}{min(len(data), len(span))} bytes came, expected {len(span)}")
        return bytes(data)


def _numbers(span: range) -> range:
    return range(span.start // PIECE, -(-span.stop // PIECE)) if span else range(0)
