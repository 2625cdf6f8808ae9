"""`vbuild cache` as a user calls it."""

import os
import time
from pathlib import Path

import pytest

from tests.factories.workdir import Workdir
from vbuild.files.cache import DAY, RULES, Cache, Part


@pytest.fixture
def workdir(tmp_path: Path) -> Workdir:
    """A workdir whose cache has two answers of programs, one of which was not used for 40 days, and an sdist."""
    workdir = Workdir.at(tmp_path, shared=())
    probes = Cache(Part.PROBES, workdir.cache / "vbuild/probes")
    probes.keep_text("old.json", "1")
    probes.keep_text("new.json", "2")
    sdists = workdir.cache / "vbuild/sdists"
    sdists.mkdir()
    (sdists / "0123").write_bytes(bytes(3_000_000))
    for path, days in ((probes.folder / "old.json", 40), (sdists / "0123", 5)):
        os.utime(path, (time.time() - days * DAY,) * 2)
    return workdir


def _left(workdir: Workdir) -> set[str]:
    """The names of all entries."""
    folder = workdir.cache / "vbuild"
    return {path.name for path in folder.glob("*/[!.]*")}


def test_dir_prints_the_folder(workdir: Workdir) -> None:
    assert workdir.vbuild("cache", "dir").stdout == f"{workdir.cache}/vbuild\n"


def test_size_is_a_table(workdir: Workdir) -> None:
    lines = workdir.vbuild("cache", "size").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == list(RULES)
    assert "sdists            1       3.0 MB  source archives" in lines
    assert lines[-1].split() == ["3", "3.0", "MB"]


def test_prune_follows_the_rules(workdir: Workdir) -> None:
    assert workdir.vbuild("cache", "prune").stdout == "probes: 1 entry removed\n0 MB free now\n"
    assert _left(workdir) == {"new.json", "0123"}


def test_clean_empties_parts_or_everything(workdir: Workdir) -> None:
    assert workdir.vbuild("cache", "clean", "probes").stdout == "probes: 2 entries removed\n0 MB free now\n"
    assert _left(workdir) == {"0123"}
    assert workdir.vbuild("cache", "clean").stdout == "sdists: 1 entry removed\n3 MB free now\n"
    assert _left(workdir) == set()


def test_clean_of_what_is_being_made_is_refused(workdir: Workdir) -> None:
    sdists = Cache(Part.SDISTS, workdir.cache / "vbuild/sdists")
    with sdists.locked("4567"):
        ran = workdir.vbuild("cache", "clean")
    said = f"vbuild: {sdists.folder}: in use by another process; try again when it is done\n"
    assert (ran.returncode, ran.stderr) == (1, said)
    assert (sdists.folder / "0123").is_file()
