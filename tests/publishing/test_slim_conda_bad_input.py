"""Damaged and hostile packages for conda: each is refused in one line, and nothing is written."""

import bz2
import io
import random
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from click.testing import CliRunner

from tests.factories.conda_packages import Content, conda_package, tarred
from tests.factories.fatbins import cubin, device_library, entry, fatbin
from tests.factories.tools import needs
from tests.gpu_code.test_device_file import OLD, elf
from vbuild.cli.main import main
from vbuild.errors import VbuildError
from vbuild.hardware.gpu import GpuList
from vbuild.publishing.conda.slimming import slim_packages
from vbuild.slimming.request import Share

pytestmark = needs("gcc")

STEM = "demo-1.0-h1a2b3c4_0"
CONDA, BZ2 = f"{STEM}.conda", f"{STEM}.tar.bz2"
FAT = device_library(fatbin(*(entry(arch=arch, code=cubin(arch, 1 << 12)) for arch in (80, 90))))
FILES: dict[str, Content] = {"lib/libdemo.so": FAT, "share/text": b"text"}


def row(path: str, **other: object) -> dict[str, object]:
    return {"_path": path, "path_type": "hardlink", "sha256": "0" * 64, "size_in_bytes": 4, **other}


def stated(*rows: dict[str, object], version: object = 1) -> dict[str, object]:
    return {"paths": list(rows), "paths_version": version}


def with_pkg(folder: Path, pkg: bytes, *, name: str = f"pkg-{STEM}.tar.zst") -> Path:
    """A package with other bytes instead of the archive of its files, or instead of that called *name*."""
    whole = conda_package(folder, STEM, FILES)
    with zipfile.ZipFile(whole) as archive:
        members = {each: archive.read(each) for each in archive.namelist()}
    with zipfile.ZipFile(whole, "w") as archive:
        for each, data in {**members, name: pkg}.items():
            archive.writestr(each, data)
    return whole


def packed(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def twice(folder: Path) -> Path:
    # an extended header and its text, the header, the data
    first = tarred({"share/text": b"text"})[: 4 * tarfile.BLOCKSIZE]
    return with_pkg(folder, packed(first + tarred(FILES)))


def damaged(folder: Path) -> Path:
    frame = bytearray(packed(tarred(FILES)))
    frame[len(frame) // 2 :] = frame[: len(frame) - len(frame) // 2]
    return with_pkg(folder, bytes(frame))


def zeros(count: int) -> bytes:
    """So many MiB of zeros as one frame."""
    compressor = zstandard.ZstdCompressor(level=1).compressobj()
    chunks = [compressor.compress(bytes(1 << 20)) for _ in range(count)]
    return b"".join([*chunks, compressor.flush()])


def honest_bomb(folder: Path) -> Path:
    whole = conda_package(folder, STEM, FILES, paths=stated(row("share/text", size_in_bytes=10 << 30)))
    with zipfile.ZipFile(whole) as archive:
        members = {each: archive.read(each) for each in archive.namelist()}
    with zipfile.ZipFile(whole, "w") as archive:
        for each, data in members.items():
            archive.writestr(each, data)
    return whole


def bz2_bomb(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    head = tarfile.TarInfo("share/zeros")
    head.size = 100 << 20
    # a file may be of several streams
    (folder / BZ2).write_bytes(bz2.compress(head.tobuf()) + 100 * bz2.compress(bytes(1 << 20), 1))
    return folder / BZ2


def cut_short(folder: Path) -> Path:
    path = conda_package(folder, STEM, FILES, ending=".tar.bz2")
    path.write_bytes(path.read_bytes()[:-200])
    return path


def renamed(folder: Path) -> Path:
    path = conda_package(folder, STEM, FILES, ending=".tar.bz2")
    return path.rename(path.with_name("other-1.0-h1a2b3c4_0.tar.bz2"))


def plain_file(folder: Path) -> Path:
    folder.mkdir()
    (folder / CONDA).write_bytes(b"no zip at all" * 100)
    return folder / CONDA


def other_zip(folder: Path) -> Path:
    folder.mkdir()
    with zipfile.ZipFile(folder / CONDA, "w") as archive:
        archive.writestr("readme.txt", "hello")
    return folder / CONDA


def fifo(folder: Path) -> Path:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        entry = tarfile.TarInfo("share/pipe")
        entry.type = tarfile.FIFOTYPE
        archive.addfile(entry)
    return with_pkg(folder, packed(file.getvalue()))


PKG = f"pkg-{STEM}.tar.zst"
REFUSED: dict[str, tuple[Callable[[Path], Path], str]] = {
    "a zstd frame that is damaged": (damaged, f"{CONDA}: {PKG}: damaged: "),
    "a frame cut short": (lambda folder: with_pkg(folder, packed(tarred(FILES))[:-9]), f"{CONDA}: {PKG}: damaged: "),
    "no frame": (lambda folder: with_pkg(folder, b"abc" * 99), f"{CONDA}: {PKG}: damaged: "),
    "bzip2 cut short": (cut_short, f"{BZ2}: damaged: Compressed file ended before the end-of-stream marker"),
    "paths.json with another hash": (
        lambda folder: conda_package(
            folder,
            STEM,
            {"share/text": b"text", "lib/a.cubin": elf(0x500550, OLD), "lib/b.cubin": elf(0x5A055A, OLD)},
            paths=stated(
                row("share/text"),
                row("lib/a.cubin", size_in_bytes=len(elf(0x500550, OLD))),
                row("lib/b.cubin", size_in_bytes=len(elf(0x5A055A, OLD))),
            ),
        ),
        f"{CONDA}: lib/a.cubin: does not have its sha256 of info/paths.json; fetch the package again",
    ),
    "paths.json with another size": (
        lambda folder: conda_package(folder, STEM, {"share/text": b"texts"}, paths=stated(row("share/text"))),
        f"{CONDA}: share/text: 5 bytes, but 4 in info/paths.json",
    ),
    "paths.json with more": (
        lambda folder: conda_package(folder, STEM, FILES, paths=stated(row("share/none"))),
        f"{CONDA}: share/none: is in info/paths.json, and not in the package",
    ),
    "paths.json with less": (
        lambda folder: conda_package(folder, STEM, FILES, paths=stated(row("share/text"))),
        f"{CONDA}: lib/libdemo.so: is in the package, and not in info/paths.json",
    ),
    "paths.json with a path twice": (
        lambda folder: conda_package(folder, STEM, FILES, paths=stated(row("share/text"), row("share/text"))),
        f"{CONDA}: info/paths.json: share/text stands twice in it; expected once",
    ),
    "paths.json with another kind": (
        lambda folder: conda_package(
            folder, STEM, {"share/text": b"text"}, paths=stated(row("share/text", path_type="softlink"))
        ),
        f"{CONDA}: share/text: a file in the package, a softlink in info/paths.json",
    ),
    "paths.json of a version that is not known": (
        lambda folder: conda_package(folder, STEM, FILES, paths=stated(row("share/text"), version=2)),
        f"{CONDA}: info/paths.json: paths_version is 2; expected 1",
    ),
    "paths.json without a hash": (
        lambda folder: conda_package(folder, STEM, FILES, paths=stated(row("share/text", sha256=None))),
        f"{CONDA}: info/paths.json: share/text: no sha256 and size_in_bytes; expected both of a file",
    ),
    "no JSON": (
        lambda folder: conda_package(folder, STEM, FILES, info={"info/index.json": b"{"}),
        f"{CONDA}: info/index.json: not JSON: Expecting property name enclosed in double quotes at line 1, column 2",
    ),
    "a path that leads out": (
        lambda folder: conda_package(folder, STEM, {"lib/../../x": b"x"}),
        f"{CONDA}: {PKG}: lib/../../x: a path that leaves its folder",
    ),
    "a path twice": (twice, f"{CONDA}: {PKG}: share/text: stands twice in the archive; expected once"),
    "a hard link to nothing": (
        lambda folder: with_pkg(folder, packed(tarred({"share/text": ("hardlink", "share/none")}))),
        f"{CONDA}: {PKG}: share/text: a hard link to 'share/none', which is no file before it",
    ),
    "a pipe": (fifo, f"{CONDA}: {PKG}: share/pipe: no plain file, folder or link; expected one of these"),
    "a name that disagrees": (
        renamed,
        f"other-1.0-h1a2b3c4_0.tar.bz2: info/index.json: is of {STEM}; expected other-1.0-h1a2b3c4_0, as the file is",
    ),
    "a subdir that is a path": (
        lambda folder: conda_package(folder, STEM, FILES, index={"subdir": "../linux-64"}),
        f"{CONDA}: info/index.json: subdir is '../linux-64'; expected one as linux-64",
    ),
    "a build number that is a text": (
        lambda folder: conda_package(folder, STEM, FILES, index={"build_number": "0"}),
        f"{CONDA}: info/index.json: build_number is '0'; expected a whole number",
    ),
    "no zip": (plain_file, f"{CONDA}: "),
    "another zip": (other_zip, f"{CONDA}: no metadata.json; expected a package of conda's format 2"),
    "zeros that paths.json does not have": (
        lambda folder: with_pkg(folder, zeros(200)),
        f"{CONDA}: {PKG}: unpacks to more than ",
    ),
    "zeros that paths.json has": (honest_bomb, f"{CONDA}: {PKG}: {(10 << 30) + 4096} bytes by info/paths.json, of "),
    "zeros in bzip2": (
        bz2_bomb,
        f"{BZ2}: unpacks to more than {1 << 26} bytes; expected {1 << 26} at most of a package of its size",
    ),
    "zeros that describe it": (
        lambda folder: with_pkg(folder, zeros(200), name=f"info-{STEM}.tar.zst"),
        f"{CONDA}: info-{STEM}.tar.zst: unpacks to more than {1 << 25} bytes; expected no more",
    ),
    "no code for the GPU": (
        lambda folder: conda_package(
            folder, STEM, {"lib/x.so": device_library(fatbin(entry(arch=75, code=cubin(75, 1 << 12))))}
        ),
        f"{CONDA}: lib/x.so: nothing for sm_90 in any of its fatbins (1), which have sm_75",
    ),
}


@pytest.mark.parametrize(("make", "said"), REFUSED.values(), ids=REFUSED)
def test_it_is_refused_in_one_line(tmp_path: Path, make: Callable[[Path], Path], said: str) -> None:
    path = make(tmp_path / "in")
    result = CliRunner().invoke(main, ["slim", str(path), "--gpu", "90", "-o", str(tmp_path / "out")])
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"vbuild: {said}")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("ending", [".conda", ".tar.bz2"])
def test_a_package_with_some_bytes_changed_is_cut_or_refused(tmp_path: Path, ending: str) -> None:
    chance = random.Random(23)
    whole = conda_package(tmp_path / "in", STEM, FILES, ending=ending)
    data = whole.read_bytes() if ending == ".conda" else bz2.decompress(whole.read_bytes())
    said = []
    for _ in range(30):
        changed = bytearray(data)
        # what says where things are stands near the beginning and near the end
        place = min(int(chance.expovariate(1 / 2000)), len(data) - 1)
        changed[place if chance.random() < 0.5 else -place - 1] ^= 1 << chance.randrange(8)
        whole.write_bytes(changed if ending == ".conda" else bz2.compress(changed, 1))
        try:
            slim_packages([whole], None, shares=[Share(GpuList.parse("90"))], fast=True)
        except VbuildError as error:
            said.append(str(error))
    assert len(said) > 10
    assert not any("\n" in each for each in said)


def test_of_several_packages_those_before_the_bad_one_are_whole(tmp_path: Path) -> None:
    conda_package(tmp_path / "in", "a-1.0-0_0", {"lib/x.so": FAT})
    conda_package(tmp_path / "in", STEM, FILES, paths=stated(row("share/none")))
    result = CliRunner().invoke(
        main, ["slim", str(tmp_path / "in"), "--gpu", "90", "--fast", "-o", str(tmp_path / "o")]
    )
    assert result.exit_code == 1
    assert [path.name for path in (tmp_path / "o/linux-64").iterdir()] == ["a-1.0-0_0.conda"]


def test_no_package_takes_the_place_of_what_it_is_made_from(tmp_path: Path) -> None:
    path = conda_package(tmp_path / "linux-64", STEM, {"lib/x.so": FAT})
    before = path.read_bytes()
    result = CliRunner().invoke(main, ["slim", str(path), "--gpu", "90", "--fast", "-o", str(tmp_path)])
    assert result.stderr == (f"vbuild: {CONDA}: would overwrite the package it is made from; choose another folder\n")
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--members", "zstd", "--gpu", "90"], "--members is for wheels; expected none for packages for conda"),
        (["--provenance", "--gpu", "90"], "--provenance is for wheels"),
        (["--executor", "dask://127.0.0.1:9", "--gpu", "90"], "--executor is for wheels"),
        (["--gpu", "90", "--variant", "a=80"], "expected --gpu for one package, or --variant for a family; not both"),
        (["demo-1.0-py3-none-any.whl", "--gpu", "90"], "expected packages for conda or wheels, not both"),
    ],
)
def test_what_is_for_wheels_is_a_usage_mistake(tmp_path: Path, more: list[str], said: str) -> None:
    path = conda_package(tmp_path, STEM, FILES)
    (tmp_path / "demo-1.0-py3-none-any.whl").write_bytes(b"")
    asked = [str(tmp_path / one) if one.endswith(".whl") else one for one in more]
    result = CliRunner().invoke(main, ["slim", str(path), *asked, "-o", str(tmp_path / "out")])
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ([], "nothing to do; expected GPUs to keep (--gpu, --variant), or --recompress, --strip or --drop"),
        (
            ["--variant", "mi300=gfx942"],
            "variant 'mi300=gfx942': conda has no virtual package for AMD's GPUs; expected",
        ),
        (["--gpu", "90", "--drop", "*.none"], "--drop '*.none': names no file of any package given"),
        (
            ["--variant", "a=90", "--variant", "b=90a"],
            "the labels 'a' and 'b' stand for the same properties: nvidia :: sm_arch :: 90_real",
        ),
        (["--variant", f"{'long' * 16}=90"], f"{CONDA}: build string h1a2b3c4_{'long' * 16}_200 has 77 characters"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(tmp_path: Path, asked: list[str], said: str) -> None:
    path = conda_package(tmp_path, STEM, FILES)
    result = CliRunner().invoke(main, ["slim", str(path), *asked, "-o", str(tmp_path / "out")])
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert said in line
    assert not (tmp_path / "out").exists()


def headers(folder: Path) -> Path:
    """An archive of a million entries that hold nothing, in 40 KB."""
    entry = tarfile.TarInfo("a/b").tobuf() * 2000
    compressor = zstandard.ZstdCompressor(level=1).compressobj()
    chunks = [compressor.compress(entry) for _ in range(500)]
    return with_pkg(folder, b"".join([*chunks, compressor.flush()]), name=f"info-{STEM}.tar.zst")


def bz2_headers(folder: Path) -> Path:
    folder.mkdir()
    (folder / BZ2).write_bytes(60 * bz2.compress(tarfile.TarInfo("a/b").tobuf() * 2000, 1))
    return folder / BZ2


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (headers, f"{CONDA}: info-{STEM}.tar.zst: unpacks to more than {1 << 25} bytes; expected no more"),
        (bz2_headers, f"{BZ2}: more than 20000 entries; expected no more in a package of its size"),
        (bz2_bomb, f"{BZ2}: unpacks to more than {1 << 26} bytes; expected {1 << 26} at most of a package of its size"),
    ],
)
@pytest.mark.parametrize("words", [["index"], ["slim", "--variant", "sm90=90", "-o", "out"]], ids=["index", "slim"])
def test_what_is_read_of_a_package_first_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], make: Callable[[Path], Path], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    make(tmp_path / "in/linux-64")
    begun = time.process_time()
    result = CliRunner().invoke(main, [*words, "in"])
    assert time.process_time() - begun < 2
    (line,) = result.stderr.splitlines()
    assert line.endswith(said)
