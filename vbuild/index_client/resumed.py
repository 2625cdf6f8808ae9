"""Large files by their hash: what has come of one stays where a run is killed, and the next run asks for the rest.

    <sha256>.part     the first bytes of the file, as many as have come
    <sha256>          the file, compared with its hash

https://www.rfc-editor.org/rfc/rfc9110#name-range-requests
"""

import hashlib
import os
import re
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import httpx2
from unearth import Link

from vbuild.errors import FetchError
from vbuild.files.atomic import linked, unmade
from vbuild.files.hashing import sha256_of
from vbuild.files.reading import open_file
from vbuild.index_client.pages import asking

# connections that may break while one file is fetched, each with some bytes more than the last
_TRIES = 5
_BUFFER = 1 << 20
_RANGE = re.compile(r"bytes (?P<first>\d+)-\d+/(?:\d+|\*)", re.ASCII)

OnBytes = Callable[[int], None]


class Store:
    """Files in *folder*, which is made if it is missing, by their SHA-256; `FetchError` if it cannot be made.

    Several threads may use it, each for another file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FetchError(f"{folder}: cannot be written: {unmade(error).strerror}") from error

    def file(self, url: str, sha256: str, *, on_bytes: OnBytes = lambda _count: None) -> Path:
        """The file at *url*, of http, https or this machine, with this *sha256*; it is fetched unless it is here.

        *on_bytes* is called with the number of bytes that have come since the last call, also from earlier runs.
        `FetchError` if it cannot be had or has another hash; what has come of it stays for the next try.
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
            found = sha256_of(source)
        except OSError as error:
            raise FetchError(f"{source}: cannot be read: {error.strerror}") from error
        if found != sha256:
            raise FetchError(f"{source}: has sha256 {found}, expected {sha256}, which the lock has")
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
        kept = f"; {have} bytes of it are kept, and the next run asks for the rest" if have else ""
        raise FetchError(f"{shown}: {error or type(error).__name__}{kept}") from error

    def _rest(self, url: str, part: Path, on_bytes: OnBytes) -> str:
        """Add to *part* what it lacks; the SHA-256 of the whole."""
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
    """The file at *path*, made if it is not there; `OSError` for a link that somebody has put there."""
    return os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)


def _begins_at(response: httpx2.Response, first: int) -> bool:
    """Whether *response* is the bytes from *first* on, which were asked for; else it is the whole file."""
    if response.status_code != HTTPStatus.PARTIAL_CONTENT:
        return False
    match = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
    return match is not None and int(match["first"]) == first
