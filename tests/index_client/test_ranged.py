"""A file behind a URL: the same bytes as on the disk, few of them transferred, and no server believed blindly."""

import hashlib
import io
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.version import Version

from tests.factories.ranges import Serving, serving
from vbuild.errors import FetchError
from vbuild.index_client.configuration import Indexes
from vbuild.index_client.located import ListedFile
from vbuild.index_client.ranged import PIECE, TAIL, Ranged, ranged

NAME = "demo-1.0-py3-none-any.whl"
DATA = random.Random(5).randbytes(40 * PIECE + 123)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / NAME).write_bytes(DATA)
    return tmp_path


def _listed(url: str) -> ListedFile:
    return ListedFile(NAME, Version("1.0"), url=f"{url}/{NAME}")


def _at(file: Ranged, start: int, size: int) -> bytes:
    file.seek(start)
    return file.read(size) or b""


def test_it_reads_as_the_file_itself_does(folder: Path) -> None:
    places = random.Random(7)
    with serving(folder) as server, ranged(_listed(server.url), indexes=Indexes()) as file:
        assert file.size == len(DATA)
        assert (file.readable(), file.seekable(), file.writable()) == (True, True, False)
        for _ in range(200):
            start, size = places.randrange(len(DATA) + 100), places.choice((0, 1, 30, PIECE, 5 * PIECE))
            assert _at(file, start, size) == DATA[start : start + size]
            assert file.tell() == max(start, min(start + size, len(DATA)))
        assert file.seek(-10, os.SEEK_END) == len(DATA) - 10
        assert file.read() == DATA[-10:]
        assert file.seek(-3, os.SEEK_CUR) == len(DATA) - 3
        with pytest.raises(ValueError, match="a place before the file: -1"):
            file.seek(-1)
        with pytest.raises(io.UnsupportedOperation):
            file.fileno()


def test_the_end_comes_first_and_nothing_comes_twice(folder: Path) -> None:
    with serving(folder) as server, ranged(_listed(server.url), indexes=Indexes()) as file:
        assert _at(file, len(DATA) - TAIL, TAIL) == DATA[-TAIL:]
        assert file.transferred == TAIL
        for _ in range(3):
            assert _at(file, 10, 100) == DATA[10:110]
        assert file.transferred == TAIL + PIECE
        assert server.ranges == [f"bytes=-{TAIL}", f"bytes=0-{PIECE - 1}"]


def test_whoever_reads_on_gets_larger_pieces(folder: Path) -> None:
    with serving(folder) as server, ranged(_listed(server.url), indexes=Indexes()) as file:
        assert b"".join(iter(lambda: file.read(PIECE), b"")) == DATA
        assert file.transferred == len(DATA)
        assert len(server.ranges) < 8


def test_of_a_file_read_through_only_the_last_pieces_are_kept(tmp_path: Path) -> None:
    with (tmp_path / NAME).open("wb") as out:
        out.truncate(700 * PIECE)
    with serving(tmp_path) as server, ranged(_listed(server.url), indexes=Indexes()) as file:
        for _ in range(2):
            file.seek(0)
            while file.read(1 << 20):
                pass
        # it was too much to be remembered
        assert file.transferred > 1200 * PIECE


def test_what_is_asked_is_what_pip_asks_and_no_more(folder: Path) -> None:
    with serving(folder) as server, ranged(_listed(server.url), indexes=Indexes()) as file:
        _at(file, 0, 1)
        for path, headers in server.asked:
            assert path == f"/{NAME}"
            assert headers["Accept-Encoding"] == "identity"
            assert headers.keys() <= {"Host", "Accept", "Accept-Encoding", "Connection", "User-Agent", "Range"}


def test_a_file_of_this_machine_is_read_where_it_is(folder: Path) -> None:
    listed = ListedFile(NAME, Version("1.0"), url=(folder / NAME).as_uri())
    with ranged(listed, indexes=Indexes()) as file:
        assert _at(file, PIECE - 5, 10) == DATA[PIECE - 5 : PIECE + 5]
        file.seek(0)
        assert file.read() == DATA
        assert file.transferred == 0


def test_a_small_file_is_had_at_once(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"small")
    with serving(tmp_path) as server, ranged(_listed(server.url), indexes=Indexes()) as file:
        assert file.read() == b"small"
        assert len(server.ranges) == 1


def test_a_server_that_does_not_count_from_the_end_will_do(folder: Path) -> None:
    with serving(folder, "no suffixes") as server, ranged(_listed(server.url), indexes=Indexes()) as file:
        assert _at(file, len(DATA) - 10, 20) == DATA[-10:]
        assert _at(file, 0, 10) == DATA[:10]
        assert server.ranges[1] == f"bytes=0-{PIECE - 1}"


@pytest.mark.parametrize("data", [DATA, b""])
def test_what_a_server_sends_whole_is_kept_and_compared_with_its_hash(folder: Path, data: bytes) -> None:
    (folder / NAME).write_bytes(data)
    with serving(folder, "whole") as server:
        listed = replace(_listed(server.url), sha256=hashlib.sha256(data).hexdigest())
        with ranged(listed, indexes=Indexes()) as file:
            assert _at(file, 5, 10) == data[5:15]
            assert (file.size, file.transferred) == (len(data), len(data))
        assert len(server.asked) == 1
        with pytest.raises(FetchError) as refused, ranged(replace(listed, sha256="0" * 64), indexes=Indexes()):
            pass
        assert str(refused.value) == f"{server.url}/{NAME}: has sha256 {listed.sha256}, expected {'0' * 64}"


MOODS = {
    "broken": "503 Service Unavailable",
    "lying": f"Content-Range 'bytes 1-{PIECE}/{len(DATA)}' for bytes=0-{PIECE - 1}",
    "no place": f"Content-Range '' for bytes=0-{PIECE - 1}",
    "growing": "changed while it was read",
    "changing": "changed while it was read",
    "generous": f"more than {TAIL} bytes came, expected {TAIL}",
    "packed": f"Content-Range 'bytes {len(DATA) - TAIL}-{len(DATA) - 1}/{len(DATA)}' for bytes=-{TAIL}",
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mood", MOODS)
def test_a_server_that_sends_something_else_is_refused_in_one_line(folder: Path, mood: str) -> None:
    with serving(folder, mood) as server:
        message = _refusal(server)
        assert message == f"{server.url}/{NAME}: {MOODS[mood]}"


def test_a_connection_that_breaks_is_one_line(folder: Path) -> None:
    with serving(folder, "breaking") as server:
        message = _refusal(server)
        assert message.startswith(f"{server.url}/{NAME}: ")
        assert "\n" not in message


def _refusal(server: Serving) -> str:
    with pytest.raises(FetchError) as refused, ranged(_listed(server.url), indexes=Indexes()) as file:
        _at(file, 0, 10)
    return str(refused.value)


def test_a_place_that_cannot_be_reached_is_one_line(tmp_path: Path) -> None:
    missing = (tmp_path / NAME).as_uri()
    for url, message in (
        (missing, f"{missing}: cannot be read: No such file or directory"),
        ("", f"{NAME}: the index states no URL for it"),
    ):
        with pytest.raises(FetchError) as refused, ranged(ListedFile(NAME, Version("1.0"), url=url), indexes=Indexes()):
            pass
        assert str(refused.value) == message
    with (
        pytest.raises(FetchError, match=rf"^http://127\.0\.0\.1:9/{NAME}: .+"),
        ranged(_listed("http://127.0.0.1:9"), indexes=Indexes()),
    ):
        pass


def test_a_password_is_not_part_of_a_message(folder: Path) -> None:
    with serving(folder, "broken") as server:
        listed = _listed(server.url.replace("//", "//me:secret@"))
        with pytest.raises(FetchError) as refused, ranged(listed, indexes=Indexes()):
            pass
        assert "secret" not in str(refused.value)
        assert "secret" not in repr(listed)


def test_a_file_that_is_cut_while_it_is_read_is_one_line(folder: Path) -> None:
    url = (folder / NAME).as_uri()
    with ranged(ListedFile(NAME, Version("1.0"), url=url), indexes=Indexes()) as file:
        (folder / NAME).write_bytes(b"short")
        with pytest.raises(FetchError) as refused:
            _at(file, PIECE, 10)
        assert str(refused.value) == f"{url}: 0 bytes at 0x10000, expected {PIECE}"
