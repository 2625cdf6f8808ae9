"""Source archives, and package indexes that have them: a static folder, served over HTTP where a test wants that."""

import base64
import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from packaging.version import Version

from vbuild.recipe.source import Sdist

PROJECT = {"pyproject.toml": '[project]\nname = "demo"\nversion = "1.0"\n', "demo.py": "answer = 42\n"}


def sdist(folder: Path, files: Mapping[str, str] = PROJECT, *, top: str = "demo-1.0") -> Path:
    """The archive ``<top>.tar.gz`` in *folder*."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{top}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            member(archive, f"{top}/{name}", text)
    return path


def member(archive: tarfile.TarFile, name: str, text: str = "", **attributes: object) -> None:
    """Add a member, a file unless *attributes* (those of `tarfile.TarInfo`) make it something else."""
    info = tarfile.TarInfo(name)
    info.size = len(text.encode())
    for attribute, value in attributes.items():
        setattr(info, attribute, value)
    archive.addfile(info, io.BytesIO(text.encode()))


def pinned(path: Path) -> Sdist:
    """What a recipe says of the sdist at *path*."""
    name, _, version = path.name.removesuffix(".tar.gz").rpartition("-")
    return Sdist(name, Version(version), sha256(path))


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def index(folder: Path, *archives: Path, stated: str | None = None) -> Path:
    """A simple index (PEP 503) of *archives* in *folder*; *stated* stands in for their true fragment, if given."""
    for archive in archives:
        name = archive.name.rpartition("-")[0]
        page = folder / name / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        (folder / name / archive.name).write_bytes(archive.read_bytes())
        fragment = f"#sha256={sha256(archive)}" if stated is None else stated
        page.write_text(
            f'<!DOCTYPE html><html><body><a href="{archive.name}{fragment}">{archive.name}</a></body></html>'
        )
    return folder


class _Server(SimpleHTTPRequestHandler):
    """Static files, for those who know the *login* (``name:password``), if there is one; no files if it is *broken*."""

    def __init__(self, *args: Any, folder: Path, broken: bool, login: str) -> None:
        self.broken = broken
        self.expected = f"Basic {base64.b64encode(login.encode()).decode()}" if login else None
        super().__init__(*args, directory=str(folder))

    def do_GET(self) -> None:
        if self.broken:
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE)
        elif self.expected not in {None, self.headers["Authorization"]}:
            self.send_error(HTTPStatus.UNAUTHORIZED)
        else:
            super().do_GET()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        pass


@contextmanager
def served(folder: Path, *, broken: bool = False, login: str = "") -> Iterator[str]:
    """The URL of *folder*, served as static files, HTML only, while the block runs."""
    handler = partial(_Server, folder=folder, broken=broken, login=login)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
