"""`vbuild index` of a channel for conda: it lists what is there as another indexer does, or says what is wrong."""

import json
import shutil
import tarfile
import time
import zipfile
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


def redescribed(folder: Path, tar: bytes, count: int) -> None:
    """A package that describes itself by *tar*, so often, packed well."""
    compressor = zstandard.ZstdCompressor(level=1).compressobj()
    chunks = [compressor.compress(tar) for _ in range(count)]
    package, name = conda_package(folder, STEM, {"x": b"x"}), f"info-{STEM}.tar.zst"
    with zipfile.ZipFile(package) as archive:
        members = {member: archive.read(member) for member in archive.namelist()}
    with zipfile.ZipFile(package, "w") as archive:
        for member, data in {**members, name: b"".join([*chunks, compressor.flush()])}.items():
            archive.writestr(member, data)


def entry(name: str, size: int = 0) -> bytes:
    header = tarfile.TarInfo(name)
    header.size = size
    return header.tobuf() + bytes(size)


@pytest.mark.parametrize(
    ("tar", "count", "message"),
    [
        (entry("a/b") * 2000, 20, "more than 20000 entries; expected no more"),
        (entry("a", 1 << 24), 10, f"unpacks to more than {1 << 25} bytes; expected no more"),
    ],
    ids=["entries", "bytes"],
)
def test_what_is_read_of_a_package_first_is_bounded(tmp_path: Path, tar: bytes, count: int, message: str) -> None:
    redescribed(tmp_path / "linux-64", tar, count)
    begun = time.process_time()
    with pytest.raises(RepackageError) as refusal:
        index_channel(tmp_path)
    assert time.process_time() - begun < 2
    assert str(refusal.value) == f"linux-64: {STEM}.conda: info-{STEM}.tar.zst: {message}"


def test_the_channel_lists_what_is_in_it_as_another_indexer_does(tmp_path: Path) -> None:
    for build in ("h1_0", "h1_sm80_201", "h1_sm90_202"):
        conda_package(tmp_path / "out/linux-64", f"demo-1.0-{build}", {"x": b"x"}, index={"depends": ["__cuda"]})
    result = CliRunner().invoke(main, ["index", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert [line.partition(": ")[2] for line in result.stdout.splitlines()] == ["3 packages", "0 packages"]
    ours = json.loads((tmp_path / "out/linux-64/repodata.json").read_text())["packages.conda"]
    shutil.copytree(tmp_path / "out", tmp_path / "copy")
    theirs = rattler_answer("index", folder=str(tmp_path / "copy"))["linux-64"]["packages.conda"]
    assert ours.keys() == theirs.keys()
    assert len(ours) == 3
    for name, record in ours.items():
        for field in ("build", "build_number", "depends", "sha256", "size", "subdir"):
            assert record[field] == theirs[name][field]


def test_a_channel_that_is_wrong_gets_no_repodata(tmp_path: Path) -> None:
    (tmp_path / "old/linux-64").mkdir(parents=True)
    (tmp_path / "old/linux-64/demo-1.0-0.tar.bz2").touch()
    conda_package(tmp_path / "flat", STEM, {"x": b"x"})
    conda_package(tmp_path / "other/linux-aarch64", STEM, {"x": b"x"})
    for place, what in (
        ("flat", f"expected in a folder for its platform, {tmp_path / 'flat/linux-64'}"),
        ("other", "is for linux-64; expected in the folder of that name"),
        ("old", "demo-1.0-0.tar.bz2: expected the format .conda, as cph transmute writes it"),
    ):
        with pytest.raises(RepackageError, match=what):
            index_channel(tmp_path / place)
        assert list((tmp_path / place).rglob("*.json*")) == []
