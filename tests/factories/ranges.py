"""A package index that sends parts of files, as large ones do; and servers that do that wrongly."""

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from vbuild.index_client.configuration import Indexes

_RANGE = re.compile(r"bytes=(?P<first>\d*)-(?P<last>\d*)")


def simple_index(folder: Path, *wheels: Path, stated: bool = True, yanked: tuple[str, ...] = ()) -> Path:
    """A simple index (PEP 503) of *wheels* in *folder*, with hashes if *stated*; the names in *yanked* withdrawn."""
    for wheel in wheels:
        page = folder / canonicalize_name(wheel.name.partition("-")[0]) / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        (page.parent / wheel.name).write_bytes(wheel.read_bytes())
        fragment = f"#sha256={hashlib.sha256(wheel.read_bytes()).hexdigest()}" if stated else ""
        attribute = ' data-yanked="broken"' if wheel.name in yanked else ""
        with page.open("a") as out:
            out.write(f'<a href="{wheel.name}{fragment}"{attribute}>{wheel.name}</a>\n')
    return folder


@dataclass(slots=True)
class Serving:
    """A server at *url*; *mood* is how it answers to ranges, and *asked* what it was asked for, headers included.

    That came over so many *connections*.
    """

    url: str = ""
    mood: str = "sound"
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    connections: int = 0

    @property
    def indexes(self) -> Indexes:
        return Indexes(index_url=self.url)

    @property
    def ranges(self) -> list[str]:
        """The ranges that were asked for."""
        return [headers["Range"] for _, headers in self.asked if "Range" in headers]

    def files(self) -> list[str]:
        """The files that parts were asked of, each once."""
        return sorted({path.rpartition("/")[2] for path, headers in self.asked if "Range" in headers})


class _Handler(SimpleHTTPRequestHandler):
    """Static files, and parts of them (RFC 9110, section 14)."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # as servers do; or each answer on a kept connection waits 40 ms
    extensions_map = {**SimpleHTTPRequestHandler.extensions_map, ".json": "application/vnd.pypi.simple.v1+json"}  # noqa: RUF012 - as it is there

    def __init__(self, *args: Any, folder: Path, serving: Serving) -> None:
        self.serving = serving
        super().__init__(*args, directory=str(folder))

    def handle(self) -> None:
        self.serving.connections += 1
        with suppress(ConnectionError):  # who has seen enough hangs up
            super().handle()

    def do_GET(self) -> None:
        self.serving.asked.append((self.path, dict(self.headers.items())))
        match = _RANGE.fullmatch(self.headers.get("Range", ""))
        if self.serving.mood == "cut short" and Path(self.translate_path(self.path)).suffix == ".whl":
            self._cut_short(Path(self.translate_path(self.path)), int(match["first"]) if match else 0)
        elif not match or self.serving.mood == "whole" or not Path(self.translate_path(self.path)).is_file():
            super().do_GET()
        elif self.serving.mood == "broken":
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE)
        elif not match["first"] and self.serving.mood == "no suffixes":
            self.send_error(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
        else:
            self._part(Path(self.translate_path(self.path)), match["first"], match["last"])

    def _cut_short(self, path: Path, start: int) -> None:
        """Half of what there is from *start* on, and the end of the connection."""
        data = path.read_bytes()
        self.send_response(HTTPStatus.PARTIAL_CONTENT if start else HTTPStatus.OK)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        self.wfile.write(data[start : start + (len(data) - start) // 2])
        self.close_connection = True

    def _part(self, path: Path, first: str, last: str) -> None:
        size = path.stat().st_size
        start = int(first) if first else max(size - int(last), 0)
        stop = min(int(last) + 1, size) if first and last else size
        with path.open("rb") as file:
            file.seek(start)
            piece = file.read(stop - start)
        said = f"bytes {start}-{stop - 1}/{size}"
        etag = '"one"'
        if len(self.serving.ranges) > 1:  # the first answer is a sound one
            match self.serving.mood:
                case "lying":
                    said = f"bytes {start + 1}-{stop}/{size}"
                case "no place":
                    said = ""
                case "growing":
                    said = f"bytes {start}-{stop - 1}/{size + 1}"
                case "changing":
                    etag = '"another"'
        self.send_response(HTTPStatus.PARTIAL_CONTENT)
        self.send_header("ETag", etag)
        if said:
            self.send_header("Content-Range", said)
        extra = b"more" if self.serving.mood == "generous" else b""
        self.send_header("Content-Length", str(len(piece) + len(extra)))
        if self.serving.mood == "packed":
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        if self.serving.mood == "breaking":
            self.wfile.write(piece[: len(piece) // 2])
            self.close_connection = True
        else:
            self.wfile.write(piece + extra)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        pass


@contextmanager
def serving(folder: Path, mood: str = "sound") -> Iterator[Serving]:
    """A server of the files in *folder* while the block runs."""
    found = Serving(mood=mood)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, folder=folder, serving=found)) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        found.url = f"http://127.0.0.1:{server.server_port}"
        yield found
        server.shutdown()
        thread.join()
