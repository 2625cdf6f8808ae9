"""A source tree as one file: what comes out on the other side is what went in."""

import os
import socket
from pathlib import Path

import pytest

from tests.factories.projects import setuptools_project, tree
from vbuild.build.source import TREE_SUFFIX, pack_tree, unpack_tree, unpacked
from vbuild.errors import BuildError


def project(folder: Path) -> Path:
    """A project with all that a tree may hold."""
    setuptools_project(folder)
    tree(
        folder,
        {".git/HEAD": "ref", "run.sh": "#!/bin/sh\n", "group.txt": "", "ünïcödé name\n": "x", "big": "x" * 3_000_000},
    )
    (folder / "run.sh").chmod(0o750)
    (folder / "group.txt").chmod(0o664)
    (folder / "link.c").symlink_to("module.c")
    (folder / "loose").symlink_to("/nowhere")
    (folder / "twin.c").hardlink_to(folder / "module.c")
    (folder / "empty").mkdir(mode=0o500)
    os.utime(folder / "module.c", ns=(10**18 + 123456000, 10**18 + 123456000))
    return folder


def test_the_same_tree_is_the_same_file(tmp_path: Path) -> None:
    before = project(tmp_path / "demo-1.0")
    for name in ("one", "two"):
        pack_tree(before, tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_what_is_no_file_stays_where_it_is(tmp_path: Path) -> None:
    before = setuptools_project(tmp_path / "demo")
    os.mkfifo(before / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(before / "socket"))
        pack_tree(before, tmp_path / "packed")
    names = {path.name for path in unpack_tree(tmp_path / "packed", tmp_path / "out").iterdir()}
    assert names == {"module.c", "setup.py", "src"}


def test_a_packed_tree_is_a_source(tmp_path: Path) -> None:
    pack_tree(setuptools_project(tmp_path / "top" / "inner").parent, tmp_path / f"source{TREE_SUFFIX}")
    found = unpacked(tmp_path / f"source{TREE_SUFFIX}", tmp_path / "out", subdirectory="inner")
    assert (found / "setup.py").is_file()


@pytest.mark.parametrize("keep", [0, 10, 200, -5])
def test_a_file_that_was_cut_is_refused(tmp_path: Path, keep: int) -> None:
    file = tmp_path / f"source{TREE_SUFFIX}"
    pack_tree(setuptools_project(tmp_path / "demo"), file)
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(BuildError, match=r"source\.vbuild-tree: cannot be unpacked: "):
        unpacked(file, tmp_path / "out")


def test_a_tree_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"gone: cannot be packed: .*No such file"):
        pack_tree(tmp_path / "gone", tmp_path / "packed")
