"""Archives of source code that unpack to far more than they are: refused before they fill a disk, or memory."""

import gzip
import io
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.factories.sources import member
from vbuild.build.source import unpack
from vbuild.cli.main import main
from vbuild.errors import BuildError, WheelError
from vbuild.wheel.sdist import read_files

MOST = 1 << 28
MB = 1 << 20
BOMB = f"unpacks to more than {MOST} bytes; expected no more of source code in an archive of its size"


def zeros(path: Path) -> None:
    """300 MB of zeros, as gzip files of one each, one after the other."""
    info = tarfile.TarInfo("demo-1.0/zeros")
    info.size = 300 * MB
    path.write_bytes(gzip.compress(info.tobuf()) + 300 * gzip.compress(bytes(MB)) + gzip.compress(bytes(1024)))


def stated(mode: str) -> Callable[[Path], None]:
    """A file that says that it has a GB; what it has is not looked at."""

    def make(path: Path) -> None:
        info = tarfile.TarInfo("demo-1.0/zeros")
        info.size = 1 << 30
        with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
            assert archive.fileobj
            archive.fileobj.write(info.tobuf())  # Python 3.13 adds no file without what it has

    return make


def zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("demo-1.0/zeros", bytes(300 * MB))


def hard_links(path: Path) -> None:
    """A file of a MB under 300 names, each of which is unpacked to a file of its own."""
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        member(archive, "demo-1.0/zeros", "0" * MB)
        for number in range(300):
            member(archive, f"demo-1.0/{number}", type=tarfile.LNKTYPE, linkname="demo-1.0/zeros")


def holes(path: Path) -> None:
    """A file of 8 TB, of which there is a byte."""
    table = b"1\n8000000000000\n1\n".ljust(512, b"\0") + b"x"
    info = tarfile.TarInfo("demo-1.0/holes")
    info.size = len(table)
    info.pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": info.name,
        "GNU.sparse.realsize": "8000000000001",
    }
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(info, io.BytesIO(table))


def comments(path: Path) -> None:
    """Empty files with a comment of a MB each."""
    with tarfile.open(path, "w:gz", compresslevel=1, format=tarfile.PAX_FORMAT) as archive:
        for number in range(70):
            member(archive, f"demo-1.0/{number}", pax_headers={"comment": "a" * (MB - 100)})


def long_path(path: Path) -> None:
    with tarfile.open(path, "w:gz") as archive:
        member(archive, f"demo-1.0/{'a/' * 100_000}")


def long_link(path: Path) -> None:
    info = zipfile.ZipInfo("demo-1.0/link")
    info.external_attr, info.compress_type = (stat.S_IFLNK | 0o777) << 16, zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(info, b"a" * 10 * MB)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (zeros, f"demo-1.0/zeros: {BOMB}"),
        *((stated(mode), f"demo-1.0/zeros: {BOMB}") for mode in ("w:gz", "w:bz2", "w:xz")),
        pytest.param(zipped, f"demo-1.0/zeros: {BOMB}", marks=pytest.mark.nightly),
        (hard_links, rf"demo-1.0/25\d: {BOMB}"),
        (holes, f"demo-1.0/holes: {BOMB}"),
        (comments, "more than 67108864 bytes of headers; expected 67108864 at most in an archive of its size"),
        (long_path, "a path of 200008 characters or more; expected 4096 at most"),
        (long_link, "a path of 4097 characters or more; expected 4096 at most"),
    ],
)
def test_an_archive_that_would_fill_the_disk_is_refused(
    make: Callable[[Path], None], reason: str, tmp_path: Path
) -> None:
    archive, folder = tmp_path / "demo-1.0.tar.gz", tmp_path / "folder"
    make(archive)
    folder.mkdir()
    with pytest.raises(BuildError, match=f"^{reason}$"):
        unpack(archive, folder)


def test_so_is_one_that_is_only_read(tmp_path: Path) -> None:
    zeros(tmp_path / "demo-1.0.tar.gz")
    with pytest.raises(WheelError, match=f": {BOMB}$"):
        read_files(tmp_path / "demo-1.0.tar.gz", "PKG-INFO")


@pytest.mark.parametrize("command", ["init", "matrix"])
def test_nothing_of_it_stays(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    hard_links(tmp_path / "demo-1.0.tar.gz")
    result = CliRunner().invoke(main, [command, "demo-1.0.tar.gz"])
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert result.stderr.endswith(f"{BOMB}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["demo-1.0.tar.gz"]
