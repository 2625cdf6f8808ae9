"""Wheels by name and hash: found among others, streamed to disk, or nothing left."""

import os
import resource
import subprocess
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest
from msgspec.structs import replace
from packaging.version import Version

from tests.factories.sources import sha256
from tests.factories.toolkits import component, places
from tests.factories.wheels import wheel
from vbuild.errors import FetchError
from vbuild.index_client.configuration import Indexes
from vbuild.index_client.located import Wanted
from vbuild.index_client.packages import download


def _wanted(path: Path) -> Wanted:
    return Wanted("demo", Version("1.0"), sha256(path), path.name)


def test_a_wheel_is_found_by_its_name_among_others(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wanted = _wanted(wheel(wheels))
    wheel(wheels, "demo-1.0-cp312-cp312-win_amd64.whl")
    (wheels / "demo-1.0.tar.gz").write_bytes(b"no wheel")
    download(wanted, tmp_path / "got", indexes=places(wheels))
    assert sha256(tmp_path / "got") == wanted.sha256


def test_another_hash_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    wanted = _wanted(wheel(tmp_path / "wheels"))
    with pytest.raises(FetchError) as refused:
        download(replace(wanted, sha256="0" * 64), tmp_path / "got", indexes=places(tmp_path / "wheels"))
    assert str(refused.value) == (
        f"demo==1.0: found {wanted.file} with sha256 {wanted.sha256}; expected sha256 {'0' * 64}"
    )
    assert not (tmp_path / "got").exists()


def test_a_file_that_nobody_has_is_named_with_the_places(tmp_path: Path) -> None:
    wanted = _wanted(wheel(tmp_path / "wheels"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(FetchError) as refused:
        download(wanted, tmp_path / "got", indexes=places(tmp_path / "empty"))
    assert str(refused.value) == (
        f"demo==1.0: no demo-1.0-py3-none-any.whl on {(tmp_path / 'empty').absolute().as_uri()}"
    )


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    pin = component(tmp_path / "wheels", "demo", {"demo/data": "0123456789" * 30_000}, version="1.0")
    program = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from packaging.version import Version\n"
        "from tests.factories.toolkits import places\n"
        "from vbuild.errors import FetchError\n"
        "from vbuild.index_client.packages import Wanted, download\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, (64, {resource.RLIM_INFINITY}))\n"
        "try:\n"
        f"    download(Wanted('demo', Version('1.0'), {pin.sha256!r}, {pin.file!r}), Path({str(tmp_path / 'got')!r}),\n"
        f"             indexes=places(Path({str(tmp_path / 'wheels')!r})))\n"
        "except FetchError as error:\n"
        "    sys.exit(str(error))\n"
    )
    # a file may have 64 bytes there: what a full disk looks like to whoever writes, a measurement of coverage too
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    command = [sys.executable, "-B", "-c", program]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.stderr == f"demo==1.0: {tmp_path}: cannot be written: File too large\n"
    assert not (tmp_path / "got").exists()


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    wanted = _wanted(wheel(tmp_path / "wheels"))
    with pytest.raises(FetchError) as refused:
        download(wanted, tmp_path / "none" / "got", indexes=places(tmp_path / "wheels"))
    assert str(refused.value) == f"demo==1.0: {tmp_path}/none: cannot be written: No such file or directory"


def test_an_index_that_cannot_be_reached_is_part_of_the_message(tmp_path: Path) -> None:
    wanted, nowhere = _wanted(wheel(tmp_path / "wheels")), "http://127.0.0.1:9/simple"
    with pytest.raises(FetchError, match=rf"^demo==1\.0: no {wanted.file} on {nowhere}; {nowhere}: "):
        download(wanted, tmp_path / "got", indexes=Indexes(index_url=nowhere))


def test_a_download_that_nobody_wants_any_more_is_given_up(tmp_path: Path) -> None:
    wanted, stop = _wanted(wheel(tmp_path / "wheels")), Event()
    stop.set()
    with pytest.raises(FetchError, match=r"^demo==1\.0: stopped$"):
        download(wanted, tmp_path / "got", indexes=places(tmp_path / "wheels"), stop=stop)
    assert not (tmp_path / "got").exists()


class _Breaking(BaseHTTPRequestHandler):
    """Lists one wheel, and hangs up in the middle of it."""

    def do_GET(self) -> None:
        whole = b'<a href="demo-1.0-py3-none-any.whl">demo-1.0-py3-none-any.whl</a>'
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(whole)))
        self.end_headers()
        self.wfile.write(whole if self.path.endswith("/demo/") else whole[:20])
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        pass


def test_a_connection_that_breaks_is_part_of_the_message(tmp_path: Path) -> None:
    wanted = Wanted("demo", Version("1.0"), "0" * 64, "demo-1.0-py3-none-any.whl")
    with ThreadingHTTPServer(("127.0.0.1", 0), _Breaking) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(FetchError) as refused:
            download(wanted, tmp_path / "got", indexes=Indexes(index_url=url))
        server.shutdown()
    message = str(refused.value)
    assert message.startswith(f"demo==1.0: no demo-1.0-py3-none-any.whl on {url}; {url}/demo/{wanted.file}: ")
    assert not (tmp_path / "got").exists()
