"""Images whose packages are slimmed: other tools read them, and nothing but the GPU code is another."""

import base64
import gzip
import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.factories.fatbins import cubin, device_library, entry, fatbin
from tests.factories.layouts import layout, tar
from tests.factories.tools import needs
from tests.factories.wheels import dist_info_of, everything, record_of
from tests.gpu_code.test_device_file import OLD, elf
from tests.slimming.test_device_files import SM_80
from tests.slimming.test_device_files import SM_90 as CUBIN_90
from vbuild.errors import RepackageError
from vbuild.hardware.gpu import GpuList
from vbuild.publishing.oci.slimming import SlimmedImage, slim_images
from vbuild.slimming.request import Cuts, Share

SITE = "usr/lib/python3.11/site-packages"
FAT = device_library(fatbin(*(entry(arch=arch, code=cubin(arch, 1 << 15)) for arch in (80, 90))))
NAME = "demo-1.0-py3-none-manylinux_2_28_x86_64.whl"
FILES = everything(NAME, {"demo/_C.so": FAT})
RECORD = f"{dist_info_of(NAME)}/RECORD"
FILES |= {RECORD: record_of(FILES, dist_info_of(NAME)).encode()}
PACKAGE = {f"{SITE}/{path}": data for path, data in FILES.items()}
SM_90 = Share(GpuList.parse("90"))

pytestmark = needs("gcc")


def unpacked(folder: Path, how: str = "+gzip") -> list[dict[str, tuple[tarfile.TarInfo, bytes]]]:
    """The entries of each layer of the image ``app``, after a look at all digests."""
    blobs = folder / "blobs"
    for file in (blobs / "sha256").iterdir():
        assert hashlib.sha256(file.read_bytes()).hexdigest() == file.name
    (named,) = json.loads((folder / "index.json").read_text())["manifests"]
    manifest = json.loads((blobs / named["digest"].replace(":", "/")).read_bytes())
    config = json.loads((blobs / manifest["config"]["digest"].replace(":", "/")).read_bytes())
    found = []
    for layer, diff_id in zip(manifest["layers"], config["rootfs"]["diff_ids"], strict=True):
        data = (blobs / layer["digest"].replace(":", "/")).read_bytes()
        assert len(data) == layer["size"]
        data = gzip.decompress(data) if how == "+gzip" else data
        if how != "+zstd":
            assert f"sha256:{hashlib.sha256(data).hexdigest()}" == diff_id
            with tarfile.open(fileobj=io.BytesIO(data)) as archive:
                entries = {}
                for info in archive:
                    stream = archive.extractfile(info) if info.isreg() else None
                    entries[info.name] = (info, stream.read() if stream else b"")
                found.append(entries)
    return found


def slimmed(folder: Path, output: Path | None) -> SlimmedImage:
    (image,) = slim_images(folder, output, SM_90, Cuts())
    return image


@pytest.mark.parametrize("how", ["+gzip", "", "+zstd"])
def test_only_the_gpu_code_and_record_are_others(tmp_path: Path, how: str) -> None:
    first = tar({"etc/file": b"x", "bin/link": (tarfile.SYMTYPE, "../etc/file")})
    source = layout(tmp_path / "in", first, tar(PACKAGE), how=how)
    image = slimmed(source, tmp_path / "out")
    assert (image.layers, image.rewritten) == (2, 1)
    assert image.environment.before - image.environment.after > len(FAT) // 4
    if how == "+zstd":
        assert unpacked(tmp_path / "out", how) == []
        return
    before, after = unpacked(source, how), unpacked(tmp_path / "out", how)
    assert after[0].keys() == before[0].keys()
    changed = {path for path in PACKAGE if after[1][path][1] != before[1][path][1]}
    assert changed == {f"{SITE}/demo/_C.so", f"{SITE}/demo-1.0.dist-info/RECORD"}
    for path, (info, data) in after[1].items():
        old = before[1][path][0]
        assert (info.mode, info.uid, info.mtime, info.pax_headers) == (old.mode, old.uid, old.mtime, old.pax_headers)
        assert info.size == len(data)
    assert not list((tmp_path / "out").glob(".*"))


def test_a_package_with_fillers_gets_a_bill_of_materials_in_the_layer_of_its_record(tmp_path: Path) -> None:
    library = device_library(
        *(fatbin(*(entry(arch=a, code=cubin(a, 1 << 15)) for a in pair)) for pair in ((80, 90), (75, 80)))
    )
    files = everything(NAME, {"demo/_C.so": library})
    files |= {RECORD: record_of(files, dist_info_of(NAME)).encode()}
    package = tar({f"{SITE}/{path}": data for path, data in files.items()})
    slimmed(layout(tmp_path / "in", package, tar({"etc/file": b"x"})), tmp_path / "out")
    first, _ = unpacked(tmp_path / "out")
    info, bill = first[f"{SITE}/demo-1.0.dist-info/sboms/vbuild.cdx.json"]
    assert b'"value": "1 of 2: 0x2"' in bill
    record = first[f"{SITE}/{RECORD}"]
    assert (info.mode, info.uid, info.size) == (record[0].mode, record[0].uid, len(bill))
    digest = base64.urlsafe_b64encode(hashlib.sha256(bill).digest()).decode().rstrip("=")
    assert f"demo-1.0.dist-info/sboms/vbuild.cdx.json,sha256={digest},{len(bill)}" in record[1].decode().splitlines()
    assert slimmed(tmp_path / "out", tmp_path / "again").rewritten == 0


def test_what_later_layers_replace_or_take_away_is_no_package(tmp_path: Path) -> None:
    other = f"{SITE}/other"
    removed = {f"{SITE}/.wh.demo": b"", f"{SITE}/demo-1.0.dist-info/.wh..wh..opq": b"", f"{other}/x.py": b""}
    source = layout(tmp_path / "in", tar(PACKAGE), tar(removed), tar(PACKAGE))
    image = slimmed(source, tmp_path / "out")
    first, _, last = unpacked(tmp_path / "out")
    assert first[f"{SITE}/demo/_C.so"][1] == FAT
    assert len(last[f"{SITE}/demo/_C.so"][1]) < len(FAT)
    assert image.rewritten == 1
    gone = layout(tmp_path / "gone", tar(PACKAGE), tar(removed))
    with pytest.raises(RepackageError, match=r"app: .*no packages in it"):
        slimmed(gone, tmp_path / "never")
    assert not (tmp_path / "never").exists()


def test_a_file_with_a_second_name_in_the_image_is_left(tmp_path: Path) -> None:
    linked: dict[str, bytes | tuple[bytes, str]] = {
        **PACKAGE,
        "root/.cache/uv/_C.so": (tarfile.LNKTYPE, f"{SITE}/demo/_C.so"),
    }
    image = slimmed(layout(tmp_path / "in", tar(linked)), tmp_path / "out")
    assert [left.path for left in image.linked] == [f"{SITE}/demo/_C.so"]
    assert image.rewritten == 0


def test_links_in_an_image_lead_nowhere_outside(tmp_path: Path) -> None:
    hostile: dict[str, bytes | tuple[bytes, str]] = {
        "etc": (tarfile.SYMTYPE, str(tmp_path / "outside")),
        "etc/x-1.0.dist-info/RECORD": b"a",
        "../../escape-1.0.dist-info/RECORD": b"a",
    }
    (tmp_path / "outside").mkdir()
    slimmed(layout(tmp_path / "in", tar(PACKAGE), tar(hostile)), tmp_path / "out")
    assert not list((tmp_path / "outside").iterdir())
    assert not list(tmp_path.glob("*.dist-info"))


@pytest.mark.parametrize("damage", ["short", "flipped", "no layout", "busy output"])
def test_a_damaged_layout_leaves_nothing(tmp_path: Path, damage: str) -> None:
    source = layout(tmp_path / "in", tar(PACKAGE))
    out = tmp_path / "out"
    largest = max((source / "blobs/sha256").iterdir(), key=lambda file: file.stat().st_size)
    if damage == "short":
        largest.write_bytes(largest.read_bytes()[:-1])
    elif damage == "flipped":
        largest.write_bytes(largest.read_bytes()[:-1] + b"!")
    elif damage == "no layout":
        (source / "oci-layout").unlink()
    else:
        out.mkdir()
        (out / "file").write_bytes(b"")
    with pytest.raises(RepackageError):
        slimmed(source, out)
    assert not out.exists() or [path.name for path in out.iterdir()] == ["file"]


LOOSE: dict[str, bytes | str] = {
    "demo/a.cubin": SM_80,
    "demo/b.cubin": CUBIN_90,
    "demo/c.cubin": elf(0x500550, OLD, behind=b"listed"),
    "demo/d.fatbin": fatbin(entry(arch=80), entry(arch=90)),
    "demo/other.txt": "a.cubin",
    "demo/sums.txt": "c.cubin",
    "demo/__init__.py": "sums.txt",
}


def loose(files: Mapping[str, bytes | str] = LOOSE) -> dict[str, bytes | tuple[bytes, str]]:
    whole = everything(NAME, files)
    whole |= {RECORD: record_of(whole, dist_info_of(NAME)).encode()}
    return {f"{SITE}/{path}": data for path, data in whole.items()}


@pytest.mark.parametrize("below", [False, True])
def test_files_of_gpu_code_alone_go_from_images_too(tmp_path: Path, below: bool) -> None:  # noqa: FBT001
    first: dict[str, bytes | tuple[bytes, str]] = {f"{SITE}/demo/a.cubin": b"an older one"} if below else {"x": b""}
    source = layout(tmp_path / "in", tar(first), tar(loose()))
    image = slimmed(source, tmp_path / "out")
    before, after = (unpacked(place)[1] for place in (source, tmp_path / "out"))
    hides = {f"{SITE}/demo/.wh.a.cubin"} if below else set()
    assert after.keys() ^ before.keys() == {f"{SITE}/demo/a.cubin"} | hides
    assert after[f"{SITE}/demo/d.fatbin"][1] == fatbin(entry(arch=90))
    assert "a.cubin" not in after[f"{SITE}/{RECORD}"][1].decode()
    (left,) = image.environment.distributions[0].left
    assert (Path(left.path).name, left.why) == ("c.cubin", "demo/sums.txt lists it, which the package reads")
    assert image.rewritten == 1
    again = slimmed(tmp_path / "out", tmp_path / "again")
    assert again.rewritten == 0


def test_lists_are_read_as_the_last_layer_has_them(tmp_path: Path) -> None:
    said = {f"{SITE}/demo/sums.txt": b"a.cubin"}
    slimmed(layout(tmp_path / "in", tar(loose()), tar(said)), tmp_path / "out")
    there = unpacked(tmp_path / "out")[0].keys()
    assert {f"{SITE}/demo/a.cubin"} <= there
    assert f"{SITE}/demo/c.cubin" not in there


def test_files_of_gpu_code_stay_if_their_package_is_of_links(tmp_path: Path) -> None:
    linked = loose() | {f"{SITE}/demo/__init__.py": (tarfile.SYMTYPE, "/home/me/.cache/uv/__init__.py")}
    image = slimmed(layout(tmp_path / "in", tar(linked)), tmp_path / "out")
    assert image.rewritten == 0
    assert {left.why for left in image.environment.distributions[0].left} == {
        "a file of GPU code alone, and its package's code or lists, which may name it, are links"
    }


@needs("podman")
@pytest.mark.nightly
def test_podman_has_what_slimming_leaves(tmp_path: Path) -> None:
    first: dict[str, bytes | tuple[bytes, str]] = {f"{SITE}/demo/a.cubin": b"an older one"}
    slimmed(layout(tmp_path / "in", tar(first), tar(loose())), tmp_path / "out")
    # podman wants a short path for what it runs in
    with TemporaryDirectory() as short:
        room = ["podman", "--root", f"{short}/root", "--runroot", f"{short}/run", "--storage-driver", "vfs"]

        def podman(*words: str) -> str:
            return subprocess.run([*room, *words], capture_output=True, text=True, check=True).stdout.strip()

        place = Path(podman("image", "mount", podman("pull", "-q", f"oci:{tmp_path}/out:app")))
        there = {path.name for path in (place / SITE / "demo").iterdir()}
        podman("image", "unmount", "-a")
    assert there == {Path(path).name for path in LOOSE} - {"a.cubin"}


@needs("skopeo")
def test_skopeo_reads_the_result(tmp_path: Path) -> None:
    slimmed(layout(tmp_path / "in", tar(PACKAGE)), tmp_path / "out")
    skopeo = shutil.which("skopeo") or "skopeo"
    command = [skopeo, "--insecure-policy", "copy", f"oci:{tmp_path}/out:app", f"dir:{tmp_path}/copied"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
