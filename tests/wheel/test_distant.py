"""A wheel seen from outside: what is asked of it, and no more; sound or refused."""

import io
import random
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest
from packaging.version import Version

from tests.factories.ranges import serving
from tests.factories.wheels import everything, poked, wheel
from vbuild.errors import WheelError
from vbuild.index_client.configuration import Indexes
from vbuild.index_client.located import ListedFile
from vbuild.index_client.ranged import PIECE, TAIL, ranged
from vbuild.wheel.archive import Distant
from vbuild.wheel.name import WheelName

NAME = "demo-1.0-py3-none-any.whl"
LARGE = random.Random(3).randbytes(1 << 20) + bytes(1 << 20)
FILES = {"demo/lib/libdemo.so.1": LARGE, "demo/__init__.py": b"x = 1\n"}


def _distant(path: Path) -> Distant:
    return Distant(io.BytesIO(path.read_bytes()), WheelName.parse(path.name))


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED], ids=["deflated", "stored"])
@pytest.mark.parametrize("size", [0, 1, 4096, 70_000, 1_500_000, 1 << 30])
def test_the_start_of_a_member_comes_without_the_rest(tmp_path: Path, size: int, method: int) -> None:
    distant = _distant(wheel(tmp_path, NAME, FILES, compression=method))
    assert distant.head("demo/lib/libdemo.so.1", size) == LARGE[:size]


def test_of_a_large_wheel_little_is_transferred(tmp_path: Path) -> None:
    wheel(tmp_path, NAME, {**FILES, "demo/lib/libother.so": random.Random(4).randbytes(1 << 22)})
    with (
        serving(tmp_path) as server,
        ranged(ListedFile(NAME, Version("1.0"), url=f"{server.url}/{NAME}"), indexes=Indexes()) as file,
    ):
        distant = Distant(file, WheelName.parse(NAME))  # type: ignore[arg-type]
        assert file.transferred == TAIL
        assert distant.head("demo/lib/libdemo.so.1", 16_384) == LARGE[:16_384]
        assert file.transferred <= TAIL + PIECE
        assert b"".join(distant.chunks("demo/lib/libdemo.so.1")) == LARGE


def _damaged(path: Path) -> Path:
    """The wheel with other bytes in the middle of its large member."""
    return poked(path, 500_000, bytes(64))


def test_a_damaged_member_is_noticed_at_its_end(tmp_path: Path) -> None:
    path = _damaged(wheel(tmp_path, NAME, FILES, compression=zipfile.ZIP_STORED))
    distant = _distant(path)
    with pytest.raises(WheelError, match=rf"^{NAME}: demo/lib/libdemo\.so\.1: damaged: CRC-32 is 0x"):
        list(distant.chunks("demo/lib/libdemo.so.1"))


def test_a_start_that_cannot_be_inflated_is_refused(tmp_path: Path) -> None:
    path = wheel(tmp_path, NAME, FILES)
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("demo/lib/libdemo.so.1")
    start = info.header_offset + 30 + len(info.filename)
    with pytest.raises(WheelError) as refused:
        _distant(poked(path, start, b"\xff" * 64)).head(info.filename, 4096)
    assert str(refused.value) == f"{NAME}: {info.filename}: damaged: its first 4096 bytes cannot be inflated"


REFUSALS = {
    "no zip": "not a zip archive, or truncated: no end record",
    "cut": "not a zip archive, or truncated: no end record",
    "no METADATA": "demo-1.0.dist-info/METADATA: no such member",
    "no RECORD": "demo-1.0.dist-info/RECORD: no such member",
    "not UTF-8": "demo-1.0.dist-info/RECORD: not UTF-8",
    "another release": "demo-2.0.dist-info is not of demo 1.0, which the file name says",
    "too large": "demo-1.0.dist-info/METADATA: 16777217 bytes, expected 16777216 at most",
}


@pytest.mark.parametrize("what", REFUSALS)
def test_what_is_no_wheel_is_refused(tmp_path: Path, what: str) -> None:
    with pytest.raises(WheelError) as refused:
        _distant(_refused(tmp_path, what))
    assert str(refused.value) == f"{NAME}: {REFUSALS[what]}"


def _refused(folder: Path, what: str) -> Path:
    files = everything(NAME, {"demo.py": b""})
    match what:
        case "no zip":
            (folder / NAME).write_bytes(b"no zip")
        case "cut":
            path = wheel(folder, NAME, FILES)
            path.write_bytes(path.read_bytes()[:-1])
        case "no METADATA":
            del files["demo-1.0.dist-info/METADATA"]
            _zipped(folder / NAME, {**files, "demo-1.0.dist-info/RECORD": b""})
        case "no RECORD":
            _zipped(folder / NAME, files)
        case "not UTF-8":
            _zipped(folder / NAME, {**files, "demo-1.0.dist-info/RECORD": b"\xff,,\n"})
        case "another release":
            wheel(folder, "demo-2.0-py3-none-any.whl").rename(folder / NAME)
        case "too large":
            _zipped(folder / NAME, {**files, "demo-1.0.dist-info/METADATA": bytes((1 << 24) + 1)})
    return folder / NAME


def _zipped(path: Path, files: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)


def test_a_member_that_is_not_there_is_named(tmp_path: Path) -> None:
    distant = _distant(wheel(tmp_path, NAME, FILES))
    for read in (lambda: distant.head("nothing", 1), lambda: list(distant.chunks("nothing"))):
        with pytest.raises(WheelError) as refused:
            read()
        assert str(refused.value) == f"{NAME}: nothing: no such member"


def test_flipped_bits_give_a_wheel_error_or_the_same_bytes(tmp_path: Path) -> None:
    path = wheel(tmp_path, NAME, {"demo.py": b"x = 1\n" * 50})
    sound, places = path.read_bytes(), random.Random(11)
    for _ in range(300):
        damaged = bytearray(sound)
        damaged[places.randrange(len(damaged))] ^= 1 << places.randrange(8)
        with suppress(WheelError):
            distant = Distant(io.BytesIO(bytes(damaged)), WheelName.parse(NAME))
            assert b"".join(distant.chunks("demo.py")) == b"x = 1\n" * 50
