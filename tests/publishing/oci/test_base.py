"""Images on a base: its layers and config first, its Python decides, and what is wrong with it is told."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.factories.images import base, blob, images_of, labelled, laid_out, read
from tests.factories.tools import needs
from tests.factories.variants import tiny_wheel
from vbuild.errors import RepackageError
from vbuild.publishing.oci.plan import Oci
from vbuild.publishing.releases import releases_at

pytestmark = needs("umoci")

FILES = {"etc/os-release": b"ID=demo\n"}
REF = "org.opencontainers.image.ref.name"
SITE = "/usr/local/lib/python3.11/site-packages"


def plain(folder: Path, python: str = "cp311", machine: str = "x86_64") -> Path:
    return tiny_wheel(folder, f"demo-1.0-{python}-{python}-manylinux_2_17_{machine}.whl")


def level(folder: Path, name: str) -> Path:
    tag = "cp311-cp311-manylinux_2_17_x86_64"
    return labelled(folder, f"x86_64_{name}", f"x86_64 :: level :: {name}", tag=tag)


def refusal(place: Path, *wheels: Path) -> str:
    with pytest.raises(RepackageError) as refused:
        Oci(base=place).plan(releases_at(wheels))
    return str(refused.value)


def rewritten(layout: Path, change: Any, *, of: str = "manifest") -> None:
    """Let *change* change the manifest or config of the one image in *layout*, and make the digests fit again."""
    index = json.loads((layout / "index.json").read_bytes())
    manifest = read(layout, index["manifests"][0]["digest"])
    if of == "config":
        config = read(layout, manifest["config"]["digest"])
        change(config)
        manifest["config"] |= stored(layout, config)
    else:
        change(manifest)
    index["manifests"][0] |= stored(layout, manifest)
    (layout / "index.json").write_text(json.dumps(index))


def stored(layout: Path, values: Any) -> dict[str, Any]:
    data = json.dumps(values).encode()
    digest = sha256(data).hexdigest()
    (layout / "blobs" / "sha256" / digest).write_bytes(data)
    return {"digest": f"sha256:{digest}", "size": len(data)}


def test_the_layers_and_settings_of_a_base_come_first_and_its_blobs_are_hard_links(tmp_path: Path) -> None:
    below = base(tmp_path / "below", FILES, env=("LANG=C.UTF-8", f"PYTHONPATH=/opt/lib:{SITE}", "PATH=/opt/bin"))
    layout = laid_out([plain(tmp_path)], tmp_path, base=below) / "demo-1.0"
    ((_, manifest, config),) = images_of(layout, "cp311")
    listed = json.loads((below / "index.json").read_bytes())["manifests"][0]["digest"]
    theirs = read(below, listed)
    assert manifest["layers"][: len(theirs["layers"])] == theirs["layers"]
    assert manifest["annotations"]["org.opencontainers.image.base.digest"] == listed
    settings = read(below, theirs["config"]["digest"])
    count = len(settings["rootfs"]["diff_ids"])
    assert config["rootfs"]["diff_ids"][:count] == settings["rootfs"]["diff_ids"]
    assert config["history"][: len(settings["history"])] == settings["history"]
    assert config["config"]["Env"] == [
        "LANG=C.UTF-8",
        "PATH=/opt/bin",
        f"PYTHONPATH={SITE}:/opt/lib",
    ]
    for layer in theirs["layers"]:
        assert blob(layout, layer["digest"]).samefile(blob(below, layer["digest"]))


def test_names_and_folders_have_colons_themselves(tmp_path: Path) -> None:
    below = base(tmp_path / "below", FILES)
    index = json.loads((below / "index.json").read_bytes())
    index["manifests"][0]["annotations"][REF] = "example.org/python:3.11"
    (below / "index.json").write_text(json.dumps(index))
    wheels = [plain(tmp_path)]
    assert Oci(base=Path(f"{below}:example.org/python:3.11")).plan(releases_at(wheels)).outputs
    moved = below.rename(tmp_path / "be:low")
    assert Oci(base=moved).plan(releases_at(wheels)).outputs
    assert Oci(base=Path(f"{moved}:example.org/python:3.11")).plan(releases_at(wheels)).outputs
    assert refusal(tmp_path / "none:python:3.11", *wheels).startswith(f"base: {tmp_path}/none: no OCI image layout")


def test_an_image_stands_on_the_base_that_is_best_for_its_level(tmp_path: Path) -> None:
    first = laid_out([plain(tmp_path), level(tmp_path, "v2"), level(tmp_path, "v4")], tmp_path / "first") / "demo-1.0"
    wheels = [plain(tmp_path), level(tmp_path, "v2"), level(tmp_path, "v3")]
    layout = laid_out(wheels, tmp_path / "second", base=Path(f"{first}:cp311")) / "demo-1.0"
    below = {image["annotations"]["org.opencontainers.image.ref.name"]: image["digest"] for image in listed(first)}
    on = {image[0].get("platform", {}).get("variant"): image[1]["annotations"] for image in images_of(layout, "cp311")}
    key = "org.opencontainers.image.base.digest"
    assert {variant: said[key] for variant, said in on.items()} == {
        None: below["cp311-plain"],
        "v2": below["cp311-x86_64_v2"],
        "v3": below["cp311-x86_64_v2"],
    }


def listed(layout: Path) -> list[Any]:
    found: list[Any] = json.loads((layout / "index.json").read_bytes())["manifests"]
    return found


def test_the_python_that_a_base_says_it_has_leaves_other_pythons_out(tmp_path: Path) -> None:
    below = base(tmp_path / "below", FILES, env=("PYTHON_VERSION=3.12.4",))
    plan = Oci(base=below).plan(releases_at([plain(tmp_path), plain(tmp_path, "cp312")]))
    assert plan.notes == (
        "demo-1.0 has cp312 (plain); oci:demo-1.0:cp312-plain is one image.",
        "cp311 is left out: the base has Python 3.12.4",
    )
    assert refusal(below, plain(tmp_path / "one")) == (
        "demo 1.0: no wheel that an image can be made of: cp311 is left out: the base has Python 3.12.4"
    )


def test_a_base_without_the_architecture_is_refused(tmp_path: Path) -> None:
    below = base(tmp_path / "below", FILES)
    assert refusal(below, plain(tmp_path), plain(tmp_path, machine="aarch64")) == (
        f"base: {below}: has linux/amd64; expected an image for linux/arm64"
    )
    assert refusal(base(tmp_path / "far", FILES, arch="s390x"), tiny_wheel(tmp_path, "demo-1.0-py3-none-any.whl")) == (
        f"base: {tmp_path}/far: has linux/s390x; expected an image for linux/amd64"
    )


def test_a_base_that_is_not_there_is_refused(tmp_path: Path) -> None:
    expected = "no OCI image layout; expected a folder with oci-layout, index.json and blobs"
    assert refusal(tmp_path / "none", plain(tmp_path)) == f"base: {tmp_path}/none: {expected}"
    below = base(tmp_path / "below", FILES, ref="slim")
    assert refusal(Path(f"{below}:fat"), plain(tmp_path)) == f"base: {below}: has slim; expected 'fat'"
    several = laid_out([plain(tmp_path)], tmp_path / "several") / "demo-1.0"
    assert refusal(several, plain(tmp_path)) == (
        f"base: {several}: has cp311, cp311-plain; expected one image, or its name behind a colon"
    )


def test_a_base_with_a_damaged_or_missing_blob_is_refused(tmp_path: Path) -> None:
    below = base(tmp_path / "below", FILES)
    manifest = read(below, json.loads((below / "index.json").read_bytes())["manifests"][0]["digest"])
    digest = manifest["layers"][-1]["digest"]
    layer = blob(below, digest)
    data = layer.read_bytes()
    layer.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert refusal(below, plain(tmp_path)) == (
        f"base: {below}: {digest}: its SHA-256 is another: the blob is damaged, copy it again"
    )
    layer.write_bytes(data[:-1])
    assert refusal(below, plain(tmp_path)) == (
        f"base: {below}: {digest}: {len(data) - 1} bytes, expected {len(data)}: the blob is damaged, copy it again"
    )
    layer.unlink()
    assert refusal(below, plain(tmp_path)) == (
        f"base: {below}: {digest}: no such blob; the layout is incomplete: copy it again"
    )


def test_a_base_that_is_no_image_of_the_ocis_is_refused(tmp_path: Path) -> None:
    below = base(tmp_path / "below", FILES)
    rewritten(below, lambda manifest: manifest["layers"][0].update(mediaType="application/x-squashfs"))
    assert refusal(below, plain(tmp_path)).endswith(
        ": application/x-squashfs; expected a layer of the OCI's: copy it as one"
    )
    rewritten(below, lambda manifest: manifest["layers"].pop())
    assert refusal(below, plain(tmp_path)) == (
        f"base: {below}: 0 layers and 1 diff_ids; expected the same number: the base is damaged"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architecture": 5}, "architecture: expected a string, got 5"),
        ({"rootfs": {}}, "rootfs.diff_ids: missing; expected an array"),
        ({"config": {"Env": 1}}, "config.Env: expected an array, got 1"),
        ({"config": {"Labels": {"a": 1}}}, "config.Labels.a: expected a string, got 1"),
        ({"history": 1}, "history: expected an array, got 1"),
    ],
)
def test_a_base_whose_config_is_not_as_specified_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    below = base(tmp_path / "below", FILES)
    rewritten(below, lambda config: config.update(change), of="config")
    assert refusal(below, plain(tmp_path)).endswith(f": {message}")


def test_a_base_of_dockers_own_kind_is_refused(tmp_path: Path) -> None:
    below = base(tmp_path / "below", FILES)
    index = json.loads((below / "index.json").read_bytes())
    docker = "application/vnd.docker.distribution.manifest.v2+json"
    index["manifests"][0]["mediaType"] = docker
    (below / "index.json").write_text(json.dumps(index))
    digest = index["manifests"][0]["digest"]
    assert refusal(below, plain(tmp_path)) == (
        f"base: {below}: {digest}: {docker}; expected application/vnd.oci.image.manifest.v1+json"
    )
