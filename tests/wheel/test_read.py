"""What `open_wheel` and `peek` read."""

import os
import random
import re
import zipfile
from pathlib import Path

import pytest

from tests.factories.wheels import (
    contents,
    dist_info_of,
    everything,
    record_of,
    renamed,
    wheel,
    with_entries,
)
from vbuild.errors import WheelError
from vbuild.wheel.archive import open_wheel, peek
from vbuild.wheel.write import edit_wheel

NAME = "demo-1.0-py3-none-any.whl"
INFO = "demo-1.0.dist-info"


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / NAME
    message = f"^{re.escape(str(path))}: cannot be read: No such file or directory$"
    with pytest.raises(WheelError, match=message), open_wheel(path):
        pass
    with pytest.raises(WheelError, match=message):
        peek(path, "METADATA")


def test_every_member_is_read_as_zipfile_reads_it(tmp_path: Path) -> None:
    paths: dict[str, bytes | str] = {
        "demo/a,b.py": "1",
        'demo/"q".py': "2",
        "demo/é✓.py": "3",
        "demo/_C.so": b"\0" * 3_000_000,
    }
    path = wheel(tmp_path, files=paths)
    with open_wheel(path, check=True) as source:
        assert {member.path: source.read(member) for member in source.members} == contents(path)
        assert source.dist_info == dist_info_of(path.name)
        assert str(source.name) == path.name
        assert source.metadata().name == "demo"
        assert source.wheel_file().tags == ("py3-none-any",)


def test_a_member_that_is_not_there_is_refused(tmp_path: Path) -> None:
    message = f"^{NAME}: demo/a.py: no such member$"
    with open_wheel(wheel(tmp_path)) as source:
        assert source.find("demo/a.py") is None
        with pytest.raises(WheelError, match=message):
            source.read("demo/a.py")
        with pytest.raises(WheelError, match=message), source.mapped("demo/a.py"):
            pass


@pytest.mark.parametrize("size", [0, 100, 3_000_000])
def test_a_member_is_mapped_as_it_is_read(tmp_path: Path, size: int) -> None:
    data = random.Random(1).randbytes(size)
    with open_wheel(wheel(tmp_path, files={"demo/_C.so": data})) as source:
        before = sorted(tmp_path.iterdir())
        with source.mapped("demo/_C.so", folder=tmp_path) as view:
            assert view == data
            assert view.readonly
            assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("size", [30, 3_000_000])
def test_what_is_mapped_is_checked_first(tmp_path: Path, size: int) -> None:
    data = random.Random(1).randbytes(size)
    record = record_of(everything(NAME, files={"demo/_C.so": data[::-1]}), INFO)
    path = wheel(tmp_path, record=record, files={"demo/_C.so": data})
    message = f"^{NAME}: demo/_C.so: does not match its hash in RECORD$"
    with open_wheel(path) as source, pytest.raises(WheelError, match=message), source.mapped("demo/_C.so"):
        pass


def test_a_mapping_needs_a_folder_that_is_there(tmp_path: Path) -> None:
    path = wheel(tmp_path, files={"demo/_C.so": bytes(3_000_000)})
    message = f"^{NAME}: cannot be unpacked: No such file or directory$"
    with (
        open_wheel(path) as source,
        pytest.raises(WheelError, match=message),
        source.mapped("demo/_C.so", folder=tmp_path / "none"),
    ):
        pass


def test_folders_are_no_members(tmp_path: Path) -> None:
    files = everything(NAME)
    path = with_entries(tmp_path / NAME, files | {f"{INFO}/RECORD": record_of(files, INFO).encode()})
    with zipfile.ZipFile(path, "a") as archive:
        archive.mkdir("demo")
    with open_wheel(path) as source:
        assert [member.path for member in source.members] == [*files, f"{INFO}/RECORD"]


def test_a_peek_finds_damage_in_what_it_reads(tmp_path: Path) -> None:
    path = wheel(tmp_path, compression=zipfile.ZIP_STORED, files={f"{INFO}/variant.json": "{original}"})
    renamed(path, b"{original}", b"{orIginal}")
    with pytest.raises(WheelError, match=f"^{NAME}: {INFO}/variant.json: damaged: CRC-32"):
        peek(path, "variant.json")


def test_a_file_cut_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = wheel(tmp_path, files={"demo/a.bin": bytes(5_000_000)}, compression=zipfile.ZIP_STORED)
    with open_wheel(path) as source:
        os.truncate(path, 1_000_000)
        for read in (
            lambda: source.read("demo/a.bin"),
            lambda: edit_wheel(source, tmp_path / "o", source.name, edits={}),
        ):
            with pytest.raises(WheelError, match=r"truncated while it was read$"):
                read()
    assert not (tmp_path / "o").exists()
