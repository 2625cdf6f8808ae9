"""Wheels that several readers open: the same one for all, its members inflated and compared once."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.factories.wheels import wheel
from vbuild.errors import WheelError
from vbuild.wheel import archive
from vbuild.wheel.archive import SharedWheels

LARGE, SMALL = os.urandom(3_000_000), b"x = 1\n"
FILES: dict[str, bytes | str] = {"demo/_C.so": LARGE, "demo/__init__.py": SMALL}


def blanked(path: Path) -> None:
    """Take away what is in the wheel at *path*, which somebody may have open."""
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))


def test_what_was_read_once_is_not_inflated_again(tmp_path: Path) -> None:
    path = wheel(tmp_path, files=FILES)
    with SharedWheels(tmp_path, keeps=True) as wheels:
        with wheels.open(path) as first:
            assert b"".join(first.chunks("demo/_C.so")) == LARGE
            first.read("demo/__init__.py")
        blanked(path)
        with wheels.open(path) as again:
            assert again.read("demo/__init__.py") == SMALL
            with again.mapped("demo/_C.so") as view:
                assert bytes(view) == LARGE
            with pytest.raises(WheelError):
                again.read("demo-1.0.dist-info/RECORD")


def test_without_readers_to_come_or_room_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = wheel(tmp_path, files=FILES)
    with SharedWheels(keeps=False) as wheels, wheels.open(path) as opened:
        assert opened.read("demo/_C.so") == LARGE
        blanked(path)
        with pytest.raises(WheelError):
            opened.read("demo/_C.so")
    path = wheel(tmp_path, files=FILES)
    monkeypatch.setattr(archive, "_MOST", len(LARGE) - 1)
    with SharedWheels(tmp_path, keeps=True) as wheels, wheels.open(path) as opened:
        assert opened.read("demo/_C.so") == LARGE
        blanked(path)
        with pytest.raises(WheelError):
            opened.read("demo/_C.so")


def test_threads_that_come_at_once_get_the_same(tmp_path: Path) -> None:
    path = wheel(tmp_path, files=FILES)

    def read(_number: int) -> int:
        with wheels.open(path) as opened, opened.mapped("demo/_C.so") as view:
            assert view == LARGE
            return id(view.obj)

    with SharedWheels(tmp_path, keeps=True) as wheels, ThreadPoolExecutor(8) as pool:
        assert len({*pool.map(read, range(8))}) == 1


def test_damage_is_found_by_every_reader_and_by_the_check(tmp_path: Path) -> None:
    other = wheel(tmp_path / "other", files={**FILES, "demo/_C.so": LARGE[::-1]})
    path = wheel(tmp_path, files=FILES)
    data = bytearray(path.read_bytes())
    place = data.index(LARGE[:64]) if LARGE[:64] in data else len(data) // 2
    data[place] ^= 1
    path.write_bytes(data)
    with SharedWheels(tmp_path, keeps=True) as wheels:
        for _ in range(2):
            with wheels.open(path) as opened, pytest.raises(WheelError, match=r"demo/_C\.so: "):
                opened.read("demo/_C.so")
        with pytest.raises(WheelError, match=r"demo/_C\.so: "):
            wheels.check([other, path])
        wheels.check([other])


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_thousands_of_wheels_do_not_stay_open(tmp_path: Path) -> None:
    paths = [wheel(tmp_path / str(number), files={"demo.py": "1"}) for number in range(150)]
    with SharedWheels(tmp_path, keeps=True) as wheels:
        for path in paths:
            with wheels.open(path) as opened:
                assert opened.read("demo.py") == b"1"
        assert len([*Path("/proc/self/fd").iterdir()]) < 140
    assert len([*Path("/proc/self/fd").iterdir()]) < 40
