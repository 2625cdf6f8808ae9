"""A server that means harm: its clients end in one line, in bounded memory and time, and read no file of ours."""

import gzip
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from msgspec.structs import replace
from packaging.version import Version

from vbuild.build import source
from vbuild.errors import FetchError, VbuildError
from vbuild.index_client import bounds, pages
from vbuild.index_client.configuration import Indexes
from vbuild.index_client.debian import Mirror, fetch_debian
from vbuild.index_client.located import ListedFile, Wanted
from vbuild.index_client.packages import download, files_of
from vbuild.index_client.ranged import ranged

SDIST = "demo-1.0.tar.gz"
OURS = "of this machine"
_ANCHOR = f'<a href="{SDIST}">{SDIST}</a>\n'.encode()
# inflated it has more than a page may have, 80 MB, and packed 80 KB


@cache
def _compressed_bomb() -> bytes:
    return gzip.compress(b" " * 80_000_000)


class _Hostile(BaseHTTPRequestHandler):
    """Lists a file, and answers everything else by *mood*; with a mood of a page, the page too."""

    protocol_version = "HTTP/1.1"

    def __init__(self, *args: object, mood: str, target: str) -> None:
        self.mood, self.target = mood, target
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        kind, _, mood = self.mood.rpartition(": ")
        is_page = self.path.endswith(("/demo/", "/demo"))
        with suppress(OSError):  # who has seen enough hangs up
            if is_page == (kind == "page"):
                self.close_connection = True
                getattr(self, f"_{mood.replace(' ', '_')}")()
            elif is_page:
                self._sent(_ANCHOR, len(_ANCHOR))
            else:
                self.send_error(404)

    do_HEAD = do_GET  # noqa: N815 - as the base class has it

    def _head(self, *headers: tuple[str, str]) -> None:
        self.send_response(200)
        for name, value in (("Content-Type", "text/html"), *headers):
            self.send_header(name, value)
        self.end_headers()

    def _sent(self, data: bytes, stated: int, *headers: tuple[str, str]) -> None:
        self._head(("Content-Length", str(stated)), *headers)
        self.wfile.write(data)

    def _endless(self) -> None:
        self._head()
        while True:
            self.wfile.write(_ANCHOR * 20_000)

    def _bomb(self) -> None:
        self._sent(_compressed_bomb(), len(_compressed_bomb()), ("Content-Encoding", "gzip"))

    def _cut_off(self) -> None:
        self._sent(_compressed_bomb()[:5000], 5000, ("Content-Encoding", "gzip"))

    def _damaged(self) -> None:
        self._sent(_ANCHOR, len(_ANCHOR), ("Content-Encoding", "gzip"))

    def _zstd(self) -> None:
        self._sent(_ANCHOR, len(_ANCHOR), ("Content-Encoding", "zstd"))

    def _packed(self) -> None:
        data = gzip.compress(_ANCHOR)
        self._sent(data, len(data), ("Content-Encoding", "gzip"))

    def _dripping(self) -> None:
        self._head(("Content-Length", "100000"))
        self._for_ever(b"", b" ")

    def _slow_headers(self) -> None:
        self._for_ever(b"HTTP/1.1 200 OK\r\nX-Long: ", b"x")

    def _always_processing(self) -> None:
        self._for_ever(b"", b"HTTP/1.1 102 Processing\r\n\r\n")

    def _for_ever(self, first: bytes, piece: bytes) -> None:
        self.wfile.write(first)
        while True:
            self.wfile.write(piece)
            self.wfile.flush()
            time.sleep(0.05)

    def _short(self) -> None:
        self._sent(_ANCHOR, 1000 * len(_ANCHOR))

    def _exabytes(self) -> None:
        self._sent(_ANCHOR, 10**18)

    def _to_file(self) -> None:
        self.send_response(302)
        self.send_header("Location", self.target)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _endless_on_the_way(self) -> None:
        self.send_response(302)
        self.send_header("Location", "/elsewhere")
        self.end_headers()
        while True:
            self.wfile.write(b" " * (1 << 20))

    def _href_to_file(self) -> None:
        data = f'<a href="{self.target}">{SDIST}</a>'.encode()
        self._sent(data, len(data))

    def _base_of_files(self) -> None:
        data = f'<base href="{self.target.rpartition("/")[0]}/"><a href="{SDIST}">{SDIST}</a>'.encode()
        self._sent(data, len(data))

    def log_message(self, *_args: object) -> None:
        pass


@contextmanager
def _serving(mood: str, target: str = "") -> Iterator[str]:
    _compressed_bomb()  # which takes longer than clients wait
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Hostile, mood=mood, target=target)) as server:
        server.daemon_threads = True
        threading.Thread(target=partial(server.serve_forever, 0.05), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def _indexes(url: str) -> Indexes:
    return Indexes(index_url=f"{url}/simple", timeout=0.5)


def _files(url: str, _folder: Path) -> None:
    assert not files_of("demo", indexes=_indexes(url))


def _page(url: str, _folder: Path) -> None:
    pages.all_links_to_files(f"{url}/simple/demo/")


def _links(url: str, _folder: Path) -> None:
    pages.links_to_files(f"{url}/simple/", "demo")


def _download(url: str, folder: Path) -> None:
    download(Wanted("demo", Version("1.0"), "0" * 64), folder / "got", indexes=_indexes(url))


def _fetched(url: str, folder: Path) -> None:
    pages.fetched(f"{url}/{SDIST}", folder)


def _read(url: str, _folder: Path) -> None:
    pages.read(f"{url}/demo-1.0-variants.json")


def _ranged(url: str, _folder: Path) -> None:
    with ranged(ListedFile(SDIST, Version("1.0"), url=f"{url}/{SDIST}"), indexes=_indexes(url)) as file:
        file.read(10)


def _debian(url: str, folder: Path) -> None:
    fetch_debian("demo", "1.0", "0" * 64, folder / "got", indexes=_indexes(url), archives=[Mirror(url)])


def _git(url: str, folder: Path) -> None:
    source.checkout(f"{url}/demo.git", "0" * 40, folder=folder)


PAGES: dict[str, Callable[[str, Path], None]] = {"files": _files, "page": _page, "links": _links}
FILES: dict[str, Callable[[str, Path], None]] = {
    "download": _download,
    "fetched": _fetched,
    "read": _read,
    "ranged": _ranged,
    "debian": _debian,
    "git": _git,
}
OF_PAGES = {
    "endless": "more than 64000000 bytes",
    "bomb": "more than 64000000 bytes",
    "cut off": "packed, and cut off",
    "damaged": "packed, and damaged: ",
    "zstd": "packed as 'zstd', expected identity",
    "dripping": "which is too slow",
    "slow headers": "its headers are not at their end after 0.75 seconds",
    "always processing": "its headers are not at their end after 0.75 seconds",
    "short": "peer closed connection",
    "exabytes": "1000000000000000000 bytes, expected 64000000 at most",
    "to file": "expected http or https",
    "endless on the way": "more than 64000000 bytes",
    "href to file": "expected http or https",
    "base of files": "expected http or https",
}
LONGEST = 40  # seconds, on a machine with other work, too: without bounds it takes minutes
OF_FILES = ("endless", "dripping", "slow headers", "short", "exabytes", "to file", "endless on the way")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that a test can reach: of a file 64 MB, and pip's timeout is short."""
    monkeypatch.setattr(bounds, "_STEPS", 1.5)
    monkeypatch.setattr(bounds, "FILE", replace(bounds.FILE, size=64 * 10**6))
    monkeypatch.setenv("PIP_TIMEOUT", "0.5")


@pytest.mark.parametrize("mood", OF_PAGES)
@pytest.mark.parametrize("client", PAGES)
def test_a_hostile_page_is_one_line(client: str, mood: str, tmp_path: Path) -> None:
    ours = tmp_path / SDIST
    ours.write_text(OURS)
    begun = time.monotonic()
    with _serving(f"page: {mood}", ours.as_uri()) as url, pytest.raises(FetchError) as refused:
        PAGES[client](url, tmp_path)
    assert time.monotonic() - begun < LONGEST
    said = str(refused.value)
    assert OF_PAGES[mood] in said
    assert "\n" not in said
    assert OURS not in said


@pytest.mark.parametrize("mood", OF_FILES)
@pytest.mark.parametrize(
    "client", [pytest.param(name, marks=[pytest.mark.nightly] if name == "git" else []) for name in FILES]
)
def test_a_hostile_file_is_one_line(client: str, mood: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, folder = tmp_path / SDIST, tmp_path / "folder"
    ours.write_text(OURS)
    folder.mkdir()
    monkeypatch.setattr(source, "_BOUNDS", ("-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=1"))
    monkeypatch.setattr(source, "_LONGEST_FETCH", 5)
    begun = time.monotonic()
    with _serving(f"file: {mood}", ours.as_uri()) as url, pytest.raises(VbuildError) as refused:
        FILES[client](url, folder)
    assert time.monotonic() - begun < LONGEST
    said = str(refused.value)
    assert "\n" not in said
    assert not any(OURS in file.read_text(errors="replace") for file in folder.rglob("*") if file.is_file())


def test_a_connection_that_is_used_again_is_bounded_as_the_first_is(tmp_path: Path) -> None:
    with _serving("file: slow headers") as url, pages.connected():
        assert pages.all_links_to_files(f"{url}/simple/demo/")
        with pytest.raises(FetchError, match=r"its headers are not at their end after 0.75 seconds"):
            pages.fetched(f"{url}/{SDIST}", tmp_path)
        assert pages.all_links_to_files(f"{url}/simple/demo/")


def test_a_page_that_is_packed_without_being_asked_is_read() -> None:
    with _serving("page: packed") as url:
        (found,) = files_of("demo", indexes=_indexes(url))
    assert found.file == SDIST


def test_a_folder_of_this_machine_may_list_its_own_files(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "index.html").write_bytes(f'<a href="{(tmp_path / SDIST).as_uri()}">{SDIST}</a>'.encode())
    (found,) = files_of("demo", indexes=Indexes(index_url=tmp_path.as_uri()))
    assert found.file == SDIST


_MEASURED = """
import re, sys
from pathlib import Path
from vbuild.errors import FetchError
from vbuild.index_client.configuration import Indexes
from vbuild.index_client.packages import files_of
try:
    files_of("demo", indexes=Indexes(index_url=sys.argv[1]))
except FetchError as error:
    print(error, file=sys.stderr)
    print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.parametrize("mood", ["endless", "bomb"])
def test_a_hostile_page_takes_little_memory(mood: str) -> None:
    with _serving(f"page: {mood}") as url:
        ran = subprocess.run(
            [sys.executable, "-c", _MEASURED, f"{url}/simple"], check=True, capture_output=True, text=True, timeout=60
        )
    assert "more than 64000000 bytes" in ran.stderr
    assert int(ran.stdout) < 150_000  # KB; it was 9 GB in a minute, and 170 MB if a piece were inflated whole
