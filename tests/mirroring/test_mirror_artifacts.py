"""Mirrors as OCI artifacts: what other clients read of them, and that a machine installs from one."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.factories.clients import UV
from tests.factories.mirrors import FAT, PLAIN, fleet, lock_of
from tests.factories.tools import needs
from tests.factories.workdir import file_digests
from vbuild.errors import RepackageError
from vbuild.mirroring.mirror import mirror
from vbuild.mirroring.model import MirrorRequest
from vbuild.mirroring.site import write_artifacts


@pytest.fixture
def site(wheels: Path, tmp_path: Path) -> Path:
    source = lock_of(tmp_path / "pylock.toml", wheels / FAT, wheels / PLAIN)
    request = MirrorRequest(url="https://wheels.example/")
    mirror([str(source)], tmp_path / "site", fleet("9.0", "8.0"), request)
    return tmp_path / "site"


@needs("skopeo")
def test_what_a_client_takes_of_a_layout_is_what_the_machine_installs(site: Path, tmp_path: Path) -> None:
    layout = tmp_path / "layout"
    assert write_artifacts(site, layout).machines == ("sm90", "sm80")
    pulled = tmp_path / "pulled"
    # skopeo compares each blob with its digest
    subprocess.run(["skopeo", "copy", "-q", f"oci:{layout}:sm90", f"dir:{pulled}"], check=True)
    for layer in json.loads((pulled / "manifest.json").read_text())["layers"]:
        # as oras names what it pulls
        path = tmp_path / "titled" / layer["annotations"]["org.opencontainers.image.title"]
        path.parent.mkdir(parents=True, exist_ok=True)
        (pulled / layer["digest"].removeprefix("sha256:")).rename(path)
    titled = tmp_path / "titled"
    assert sorted(path.name for path in titled.rglob("*.whl")) == [FAT, PLAIN]
    target = tmp_path / "target"
    subprocess.run([UV, "pip", "install", "-q", "--target", target, "-r", titled / "pylock.sm90.toml"], check=True)
    assert (target / "fat/__init__.py").exists()


def test_wheels_that_machines_share_are_there_once_and_are_links(site: Path, tmp_path: Path) -> None:
    write_artifacts(site, tmp_path / "layout")
    blobs = {path.stat().st_ino for path in (tmp_path / "layout/blobs/sha256").iterdir()}
    assert {(site / "simple/fat" / FAT).stat().st_ino, (site / "simple/plain" / PLAIN).stat().st_ino} <= blobs
    # besides: a lock, which is the same for both, two manifests, mirror.json and an empty config
    assert len(blobs) == 7


def test_a_layout_is_replaced_and_nothing_else_is(site: Path, tmp_path: Path) -> None:
    layout = tmp_path / "layout"
    first = write_artifacts(site, layout)
    assert write_artifacts(site, layout) == first
    before = file_digests(layout)
    with pytest.raises(RepackageError, match="exists and is not an image layout"):
        write_artifacts(site, tmp_path / "wheels")
    with pytest.raises(RepackageError, match=r"no mirror.json"):
        write_artifacts(tmp_path / "none", layout)
    path = site / "simple/fat" / FAT
    data = path.read_bytes()
    path.unlink()  # the layout has a link to it
    path.write_bytes(data[:-1] + b"x")
    with pytest.raises(RepackageError, match=r"has other bytes than mirror.json says"):
        write_artifacts(site, layout)
    assert file_digests(layout) == before
