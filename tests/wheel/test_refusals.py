"""What `open_wheel` refuses of ``.dist-info``, and what no attack of `test_attacks` has, with the message."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.factories.wheels import everything, poked, wheel, with_entries
from vbuild.errors import WheelError
from vbuild.wheel.archive import open_wheel

NAME = "demo-1.0-py3-none-any.whl"
INFO = "demo-1.0.dist-info"


def name_longer_than_the_directory(folder: Path) -> Path:
    path = wheel(folder)
    return poked(path, path.read_bytes().rindex(b"PK\x01\x02") + 28, b"\xff")


CASES: dict[str, Callable[[Path], Path]] = {
    "expected one .dist-info folder, found demo-1.0.dist-info, other-1.0.dist-info": lambda folder: wheel(
        folder, files={"other-1.0.dist-info/METADATA": ""}
    ),
    "other-1.0.dist-info is not of demo 1.0, which the file name says": lambda folder: wheel(
        folder, "other-1.0-py3-none-any.whl"
    ).rename(folder / NAME),
    "demo-2.0.dist-info is not of demo 1.0, which the file name says": lambda folder: wheel(
        folder, "demo-2.0-py3-none-any.whl"
    ).rename(folder / NAME),
    "demo-x.dist-info is not of demo 1.0, which the file name says": lambda folder: with_entries(
        folder / NAME, {"demo-x.dist-info/RECORD": b""}
    ),
    "no RECORD in demo-1.0.dist-info": lambda folder: with_entries(folder / NAME, everything(NAME)),
    "demo-1.0.dist-info/RECORD: not UTF-8": lambda folder: with_entries(
        folder / NAME, everything(NAME) | {f"{INFO}/RECORD": "é.py,,\n".encode("latin-1")}
    ),
    "demo-1.0.dist-info/RECORD: 67108865 bytes, expected 4306 at most": lambda folder: with_entries(
        folder / NAME, {f"{INFO}/RECORD": bytes((1 << 26) + 1)}
    ),
    "truncated: an entry of the central directory runs past its end": name_longer_than_the_directory,
}


@pytest.mark.parametrize("message", CASES)
def test_what_is_no_sound_wheel_is_refused(tmp_path: Path, message: str) -> None:
    path = CASES[message](tmp_path)
    with pytest.raises(WheelError) as refusal, open_wheel(path):
        pass
    assert str(refusal.value) == f"{path.name}: {message}"
