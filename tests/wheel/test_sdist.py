"""Sdists as archives: what is read of them, what is refused, and what stays as it was where a file changes."""

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from vbuild.errors import WheelError
from vbuild.wheel.sdist import read_files, release_of, write_changed

NAME = "demo-1.0.tar.gz"


def sdist(path: Path, *files: tuple[str, bytes], seconds: int = 1_600_000_000) -> Path:
    raw = io.BytesIO()
    with gzip.GzipFile("", "wb", fileobj=raw, mtime=seconds) as packed, tarfile.open(fileobj=packed, mode="w") as made:
        for name, data in files:
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode = len(data), seconds, 0o640
            made.addfile(member, io.BytesIO(data))
    path.write_bytes(raw.getvalue())
    return path


def test_files_are_found_below_the_one_folder_at_the_top(tmp_path: Path) -> None:
    path = sdist(tmp_path / NAME, ("./demo-1.0/PKG-INFO", b"one"), ("demo-1.0/src/PKG-INFO", b"two"))
    assert read_files(path, "PKG-INFO", "setup.py") == {"PKG-INFO": b"one"}


def test_all_but_the_changed_file_stays_as_it_was(tmp_path: Path) -> None:
    path = sdist(tmp_path / NAME, ("demo-1.0/PKG-INFO", b"old"), ("demo-1.0/a.c", b"int a;"))
    target = tmp_path / "new.tar.gz"
    write_changed(path, target, {"PKG-INFO": b"longer than before"})
    with tarfile.open(path) as before, tarfile.open(target) as after:
        pairs = list(zip(before, after, strict=True))
        assert [(one.name, one.mtime, one.mode) for one, _ in pairs] == [
            (two.name, two.mtime, two.mode) for _, two in pairs
        ]
    assert read_files(target, "PKG-INFO", "a.c") == {"PKG-INFO": b"longer than before", "a.c": b"int a;"}
    assert target.read_bytes()[4:8] == path.read_bytes()[4:8]


def test_a_damaged_archive_is_not_copied_into_a_sound_one(tmp_path: Path) -> None:
    path = sdist(tmp_path / NAME, ("demo-1.0/PKG-INFO", b"x" * 5000), ("demo-1.0/a.c", b"int a;"))
    whole = path.read_bytes()
    for damaged in (whole[:-4], whole[:-8] + bytes(8)):
        path.write_bytes(damaged)
        with pytest.raises(WheelError, match="not a gzipped tar archive, or damaged"):
            write_changed(path, tmp_path / "new.tar.gz", {"PKG-INFO": b"y"})


@pytest.mark.parametrize(
    "name", ["demo.tar.gz", "demo-1.0.zip.tar", "demo-one.tar.gz", "a\nb-1.0.tar.gz", "a/b-1.0.zip"]
)
def test_a_name_of_no_release_is_refused(name: str) -> None:
    with pytest.raises(WheelError, match="not an sdist's file name"):
        release_of(name)
    with pytest.raises(WheelError, match="expected letters, digits, and "):
        release_of("demo-1.0\n.tar.gz")
