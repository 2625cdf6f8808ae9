"""What `vbuild check` finds in a channel that was damaged."""

import io
import json
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from shutil import copytree, rmtree

import pytest
import zstandard

from tests.factories.channels import package
from tests.factories.conda_packages import Content, conda_package
from tests.factories.variants import variant
from tests.factories.wheels import wheel
from vbuild.files.hashing import sha256_of
from vbuild.publishing.conda.channel import index_channel, problems
from vbuild.publishing.conda.package import listed
from vbuild.publishing.conda.plan import Conda
from vbuild.publishing.publish import publish
from vbuild.variants.stamp import stamped

PLAIN, V3 = (f"linux-64/demo-1.0-py311_{build}.conda" for build in ("0", "x86_64_v3_300"))


SITE = "lib/python3.11/site-packages/"
RECORD = f"{SITE}demo-1.0.dist-info/RECORD"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("channel")
    plain = wheel(folder / "dist", "demo-1.0-cp311-cp311-manylinux_2_28_x86_64.whl", {"demo.py": "x = 1\n"})
    stamped(plain, folder / "dist", variant=variant("x86_64_v3", "x86_64 :: level :: v3"))
    publish([folder / "dist"], folder / "site", layouts=[Conda()])
    return folder / "site" / "conda"


def repodata(folder: Path, change: Callable[[dict[str, dict[str, object]]], object]) -> None:
    """Change what the repodata of linux-64 lists, compressed and not."""
    path = folder / "linux-64/repodata.json"
    data = json.loads(path.read_text())
    change(data["packages.conda"])
    text = json.dumps(data).encode()
    path.write_bytes(text)
    path.with_name("repodata.json.zst").write_bytes(zstandard.compress(text))


def relisted(folder: Path) -> None:
    """Let the repodata of linux-64 agree with the file of the plain package, whatever that is now."""
    name = PLAIN.rpartition("/")[2]
    said = listed(folder / PLAIN, sha256=sha256_of(folder / PLAIN))
    repodata(folder, lambda packages: packages.update({name: said}))


def exchanged(folder: Path, name: str, data: bytes) -> None:
    """Put *data* in place of the plain package's member *name*."""
    with zipfile.ZipFile(folder / PLAIN) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(folder / PLAIN, "w") as archive:
        for path, content in {**members, name: data}.items():
            archive.writestr(path, content)


def tampered(folder: Path) -> None:
    """Let the plain package hold files of another."""
    package(folder / "other", "demo", "1.0", "py311_0", files={"etc/x": "x"})
    with zipfile.ZipFile(folder / "other" / PLAIN) as archive:
        exchanged(folder, "pkg-demo-1.0-py311_0.tar.zst", archive.read("pkg-demo-1.0-py311_0.tar.zst"))
    rmtree(folder / "other")
    relisted(folder)


def linking(folder: Path) -> None:
    """Put a link into the plain package, which paths.json does not list."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        link = tarfile.TarInfo("../x")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc"
        archive.addfile(link)
    package(folder, "demo", "1.0", "py311_0")
    exchanged(folder, "pkg-demo-1.0-py311_0.tar.zst", zstandard.compress(file.getvalue()))
    relisted(folder)


def changed(folder: Path) -> None:
    """Let a file of the plain package be another than paths.json says."""
    package(folder / "other", "demo", "1.0", "py311_0", files={f"{SITE}demo.py": "new"})
    package(folder, "demo", "1.0", "py311_0", files={f"{SITE}demo.py": "old"})
    with zipfile.ZipFile(folder / "other" / PLAIN) as archive:
        exchanged(folder, "pkg-demo-1.0-py311_0.tar.zst", archive.read("pkg-demo-1.0-py311_0.tar.zst"))
    rmtree(folder / "other")
    relisted(folder)


def informing(folder: Path, **members: bytes) -> None:
    """Let the plain package describe itself by *members*, by the names without suffix."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, data in members.items():
            entry = tarfile.TarInfo(f"info/{name}.json")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    exchanged(folder, "info-demo-1.0-py311_0.tar.zst", zstandard.compress(file.getvalue()))


def undescribed(folder: Path) -> None:
    """Let the plain package have no paths.json."""
    informing(folder, index=b'{"depends": []}')
    relisted(folder)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda _folder: None, []),
        (lambda folder: (folder / PLAIN).unlink(), [f"{PLAIN}: is in repodata.json, and is not there"]),
        (
            lambda folder: (folder / PLAIN).rename(folder / "linux-64/x-1-0.conda"),
            [
                f"{PLAIN}: is in repodata.json, and is not there",
                "linux-64/x-1-0.conda: is not in repodata.json, so that clients do not see it",
            ],
        ),
        (
            lambda folder: repodata(folder, lambda found: found["demo-1.0-py311_0.conda"].update(build_number=7)),
            [f"{PLAIN}: repodata.json says build_number is 7, and the file has 0"],
        ),
        (
            lambda folder: (folder / "linux-64/repodata.json.zst").write_bytes(b"zst"),
            ["linux-64/repodata.json.zst: is not repodata.json compressed, and most clients read it first"],
        ),
        (
            lambda folder: (folder / "linux-64/repodata.json").write_text("{}"),
            [
                "conda: holds no conda package of a wheel",
                "linux-64/repodata.json: is not repodata: expected JSON with info and packages.conda",
            ],
        ),
        (lambda folder: rmtree(folder / "linux-64"), ["conda: holds no conda package of a wheel"]),
        (
            lambda folder: copytree(folder / "linux-64", folder / "linux-aarch64"),
            ["linux-aarch64/repodata.json: says that it is of linux-64, and lies in linux-aarch64"],
        ),
        (
            lambda folder: rmtree(folder / "noarch"),
            [
                f"{V3}: requires _x86_64-microarch-level, which is not in the channel",
                "noarch/repodata.json: is not there, and clients refuse a channel without it",
            ],
        ),
        (
            lambda folder: exchanged(folder, "info-demo-1.0-py311_0.tar.zst", b"no frame"),
            [f"{PLAIN}: cannot be read: info-demo-1.0-py311_0.tar.zst: damaged: …"],
        ),
        (
            tampered,
            [
                f"{PLAIN}: etc/x: is not in paths.json",
                *(
                    f"{PLAIN}: {SITE}{path}: is in paths.json, and is not there"
                    for path in ("demo-1.0.dist-info/INSTALLER", "demo-1.0.dist-info/METADATA")
                ),
                f"{PLAIN}: {RECORD}: is in paths.json, and is not there",
                *(
                    f"{PLAIN}: {SITE}{path}: is in paths.json, and is not there"
                    for path in ("demo-1.0.dist-info/WHEEL", "demo.py")
                ),
            ],
        ),
        (linking, [f"{PLAIN}: ../x: is not a file below the prefix", f"{PLAIN}: ../x: is not in paths.json"]),
        (changed, [f"{PLAIN}: {SITE}demo.py: does not match its size and hash in paths.json"]),
        (undescribed, [f"{PLAIN}: has no paths.json that lists its files"]),
        (
            lambda folder: informing(folder, index=b"[]"),
            [f"{PLAIN}: cannot be read: info/index.json: expected a JSON object, got list"],
        ),
        (
            informing,
            [f"{PLAIN}: cannot be read: info/index.json: not JSON: Expecting value at line 1, column 1"],
        ),
        (
            lambda folder: informing(folder, index=b"[" * 100_000),
            [
                (
                    f"{PLAIN}: cannot be read: info/index.json: JSON nested too deeply, of far too many values, "
                    "or with a number too long"
                ),
            ],
        ),
        (
            lambda folder: (folder / PLAIN).write_bytes((folder / V3).read_bytes()),
            [f"{PLAIN}: cannot be read: no pkg-demo-1.0-py311_0.tar.zst; expected a package of conda's format 2"],
        ),
    ],
    ids=[
        *(
            "sound",
            "gone",
            "renamed",
            "renumbered",
            "not compressed",
            "no repodata",
            "no linux-64",
            "elsewhere",
            "no noarch",
            "no information",
        ),
        *("other files", "a link", "a file changed", "no paths", "a list", "no index", "an abyss"),
        "another package",
    ],
)
def test_damage_is_found(made: Path, tmp_path: Path, damage: Callable[[Path], object], said: list[str]) -> None:
    folder = tmp_path / "conda"
    copytree(made, folder)
    damage(folder)
    found = sorted(f"{problem.places[0]}: {problem.what}" for problem in problems(folder))
    assert [line.partition("damaged: ")[0] for line in found] == [line.partition("damaged: ")[0] for line in said]


def test_packages_of_others_have_links_and_files_besides_those_of_a_wheel(tmp_path: Path) -> None:
    files: dict[str, Content] = {
        "lib/libdemo.so.1": b"library",
        "lib/libdemo.so": ("symlink", "libdemo.so.1"),
        "lib/demo/same.so": ("symlink", "../libdemo.so.1"),
        "lib/libmore.so": ("hardlink", "lib/libdemo.so.1"),
        RECORD: b"demo.py,,\n",
    }
    conda_package(tmp_path / "linux-64", "demo-1.0-h1a2b3c4_0", files)
    index_channel(tmp_path)
    assert [str(problem) for problem in problems(tmp_path)] == []
    stated = {"paths": [{"_path": "lib/out.so", "path_type": "softlink"}], "paths_version": 1}
    leading = ("symlink", "../../etc/passwd")
    conda_package(tmp_path / "linux-64", "demo-1.0-h1a2b3c4_0", {"lib/out.so": leading}, paths=stated)
    index_channel(tmp_path)
    assert [problem.what for problem in problems(tmp_path)] == ["lib/out.so: is not a file below the prefix"]
