"""Hashes of files: each file is read once, whatever it is called, and again when it was written to."""

import hashlib
import os
from pathlib import Path

import pytest

from vbuild.files.hashing import Digests


def test_names_of_one_file_are_read_once(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"x")
    (tmp_path / "other").hardlink_to(tmp_path / "one")
    (tmp_path / "copy").write_bytes(b"x")
    with Digests() as digests:
        digests.begin(tmp_path / "one")
        assert digests.of(tmp_path / "one") == digests.of(tmp_path / "copy") == hashlib.sha256(b"x").hexdigest()
        modified = (tmp_path / "one").stat().st_mtime_ns
        (tmp_path / "one").write_bytes(b"y")
        os.utime(tmp_path / "one", ns=(modified, modified))
        assert digests.of(tmp_path / "other") == hashlib.sha256(b"x").hexdigest()


def test_a_file_that_was_written_to_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"x")
    with Digests() as digests:
        digests.of(tmp_path / "one")
        (tmp_path / "one").write_bytes(b"yy")
        assert digests.of(tmp_path / "one") == hashlib.sha256(b"yy").hexdigest()


def test_a_file_that_is_not_there_cannot_be_read(tmp_path: Path) -> None:
    with Digests() as digests, pytest.raises(FileNotFoundError):
        digests.of(tmp_path / "none")
