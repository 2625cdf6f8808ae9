"""`vbuild index` of a channel for conda: it lists what is there as another indexer does, or says what is wrong."""

import bz2
import json
import shutil
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from click.testing import CliRunner

from tests.factories.conda_packages import conda_package
from tests.factories.rattler import rattler_answer
from vbuild.cli.main import main
from vbuild.errors import RepackageError
from vbuild.publishing.conda.channel import index_channel

STEM = "demo-1.0-h1a2b3c4_0"
CONDA, BZ2 = f"{STEM}.conda", f"{STEM}.tar.bz2"


def headers(folder: Path) -> Path:
    """An archive of a million entries that hold nothing, in 40 KB."""
    entry = tarfile.TarInfo("a/b").tobuf() * 2000
    compressor = zstandard.ZstdCompressor(level=1).compressobj()
    chunks = [compressor.compress(entry) for _ in range(500)]
    whole, name = conda_package(folder, STEM, {"x": b"x"}), f"info-{STEM}.tar.zst"
    with zipfile.ZipFile(whole) as archive:
        members = {each: archive.read(each) for each in archive.namelist()}
    with zipfile.ZipFile(whole, "w") as archive:
        for each, data in {**members, name: b"".join([*chunks, compressor.flush()])}.items():
            archive.writestr(each, data)
    return whole


def bz2_headers(folder: Path) -> Path:
    folder.mkdir()
    (folder / BZ2).write_bytes(60 * bz2.compress(tarfile.TarInfo("a/b").tobuf() * 2000, 1))
    return folder / BZ2


def bz2_bomb(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    head = tarfile.TarInfo("share/zeros")
    head.size = 100 << 20
    # a file may be of several streams
    (folder / BZ2).write_bytes(bz2.compress(head.tobuf()) + 100 * bz2.compress(bytes(1 << 20), 1))
    return folder / BZ2


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (headers, f"{CONDA}: info-{STEM}.tar.zst: unpacks to more than {1 << 25} bytes; expected no more"),
        (bz2_headers, f"{BZ2}: more than 20000 entries; expected no more in a package of its size"),
        (bz2_bomb, f"{BZ2}: unpacks to more than {1 << 26} bytes; expected {1 << 26} at most of a package of its size"),
    ],
)
def test_what_is_read_of_a_package_first_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], Path], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    make(tmp_path / "in/linux-64")
    begun = time.process_time()
    result = CliRunner().invoke(main, ["index", "in"])
    assert time.process_time() - begun < 2
    (line,) = result.stderr.splitlines()
    assert line.endswith(said)


def test_the_channel_lists_what_is_in_it_as_another_indexer_does(tmp_path: Path) -> None:
    for build in ("h1_0", "h1_sm80_201", "h1_sm90_202"):
        conda_package(tmp_path / "out/linux-64", f"demo-1.0-{build}", {"x": b"x"}, index={"depends": ["__cuda"]})
    conda_package(tmp_path / "out/linux-64", "old-2.0-0_0", {"x": b"x"}, ending=".tar.bz2")
    result = CliRunner().invoke(main, ["index", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert [line.partition(": ")[2] for line in result.stdout.splitlines()] == ["4 packages", "0 packages"]
    folders = [tmp_path / "out" / name for name in ("linux-64", "noarch")]
    ours = {folder.name: json.loads((folder / "repodata.json").read_text()) for folder in folders}
    shutil.copytree(tmp_path / "out", tmp_path / "copy")
    theirs = rattler_answer("index", folder=str(tmp_path / "copy"))
    for key, count in (("packages", 1), ("packages.conda", 3)):
        mine, others = ours["linux-64"][key], theirs["linux-64"][key]
        assert mine.keys() == others.keys()
        assert len(mine) == count
        for name, record in mine.items():
            for field in ("build", "build_number", "depends", "sha256", "size", "subdir"):
                assert record[field] == others[name][field]


def test_a_channel_that_is_wrong_gets_no_repodata(tmp_path: Path) -> None:
    for place, what in (
        (tmp_path / "flat", f"expected in a folder for its platform, {tmp_path / 'flat/linux-64'}"),
        (tmp_path / "other/linux-aarch64", "is for linux-64; expected in the folder of that name"),
    ):
        conda_package(place, STEM, {"x": b"x"})
        folder = tmp_path / place.relative_to(tmp_path).parts[0]
        with pytest.raises(RepackageError, match=what):
            index_channel(folder)
        assert list(folder.rglob("*.json*")) == []


@pytest.mark.parametrize("ending", [".conda", ".tar.bz2"])
def test_a_damaged_package_of_a_channel_is_named_once(tmp_path: Path, ending: str) -> None:
    package = conda_package(tmp_path / "linux-64", STEM, {"x": b"x"}, ending=ending)
    package.write_bytes(package.read_bytes()[:100])
    result = CliRunner().invoke(main, ["index", str(tmp_path)])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"vbuild: linux-64: {package.name}: ")
    assert result.stderr.count(package.name) == 1
