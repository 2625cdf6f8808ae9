"""The proof of a folder of images: each thing that can be wrong with it is one problem."""

import gzip
import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import zstandard

from tests.factories.images import blob, images_of, index_of, labelled, laid_out, read
from tests.factories.layouts import attach
from tests.factories.variants import tiny_wheel
from vbuild.publishing.oci.check import problems

TAG = "cp311-cp311-manylinux_2_17_x86_64"
PROPERTIES, LABEL = "dev.wheelnext.variant.properties", "dev.wheelnext.variant.label"
REF = "org.opencontainers.image.ref.name"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    wheels = [
        tiny_wheel(tmp_path, f"demo-1.0-{TAG}.whl"),
        labelled(tmp_path, "x86_64_v3", "x86_64 :: level :: v3", tag=TAG),
    ]
    return laid_out(wheels, tmp_path)


def said(folder: Path) -> list[str]:
    return [problem.what for problem in problems(folder)]


def reindexed(layout: Path, change: Callable[[Any], None]) -> None:
    """Let *change* change the one index of *layout*, which is then all that index.json names."""
    index = index_of(layout, "cp311")
    change(index)
    relisted(layout, stored(layout, index))


def relisted(layout: Path, digest: str) -> None:
    size = blob(layout, digest).stat().st_size
    entry = {"mediaType": "application/vnd.oci.image.index.v1+json", "digest": digest, "size": size}
    entry["annotations"] = {REF: "cp311"}
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))


def remade(layout: Path, place: int, *, config: dict[str, Any] | None = None, layers: Any = None) -> None:
    """Change config or layers of one image of *layout*, all digests fitting."""

    def change(index: Any) -> None:
        manifest = read(layout, index["manifests"][place]["digest"])
        whole = read(layout, manifest["config"]["digest"])
        whole |= config or {}
        manifest["config"]["digest"] = stored(layout, whole)
        manifest["config"]["size"] = blob(layout, manifest["config"]["digest"]).stat().st_size
        manifest["layers"] = layers or manifest["layers"]
        index["manifests"][place]["digest"] = stored(layout, manifest)
        index["manifests"][place]["size"] = blob(layout, index["manifests"][place]["digest"]).stat().st_size

    reindexed(layout, change)


def stored(layout: Path, values: Any) -> str:
    data = values if isinstance(values, bytes) else json.dumps(values).encode()
    digest = sha256(data).hexdigest()
    (layout / "blobs" / "sha256" / digest).write_bytes(data)
    return f"sha256:{digest}"


def errors(folder: Path) -> list[str]:
    return [problem.what for problem in problems(folder) if problem.is_error]


def test_what_is_laid_out_has_no_problem_as_a_whole_and_each_layout_alone(folder: Path) -> None:
    assert said(folder) == []
    assert said(folder / "demo-1.0") == []


def test_a_folder_without_a_layout_is_a_problem(tmp_path: Path) -> None:
    assert said(tmp_path) == ["holds no OCI image layout"]


def test_a_layout_that_cannot_be_read_is_a_problem(folder: Path) -> None:
    (folder / "demo-1.0" / "index.json").write_text("{")
    [problem] = said(folder)
    assert problem.startswith(f"{folder}/demo-1.0: index.json: not JSON: Expecting property name")


def test_an_index_json_that_lists_nothing_is_a_problem(folder: Path) -> None:
    (folder / "demo-1.0" / "index.json").write_text('{"schemaVersion": 2, "manifests": []}')
    assert errors(folder) == ["lists nothing"]


def test_two_images_of_one_name_are_a_problem(folder: Path) -> None:
    path = folder / "demo-1.0" / "index.json"
    path.write_text(path.read_text().replace('"cp311-plain"', '"cp311"'))
    assert errors(folder) == ["has several images called cp311"]


def test_what_is_attached_to_an_image_is_no_problem_unless_it_is_damaged(folder: Path) -> None:
    layout = folder / "demo-1.0"
    digest = attach(layout, "cp311-x86_64_v3", b"rules for nodes")
    assert said(folder) == []
    blob(layout, digest).write_bytes(b"other for nodes")
    assert errors(folder) == [f"{layout}: {digest}: its SHA-256 is another: the blob is damaged, copy it again"]


def test_a_damaged_blob_is_told_by_its_digest(folder: Path) -> None:
    layout = folder / "demo-1.0"
    digest = images_of(layout, "cp311")[1][1]["layers"][-1]["digest"]
    data = bytearray(blob(layout, digest).read_bytes())
    data[len(data) // 2] ^= 1
    blob(layout, digest).write_bytes(data)
    what = f"{layout}: {digest}: its SHA-256 is another: the blob is damaged, copy it again"
    assert set(said(folder)) == {what}


def test_what_is_in_an_index_begins_with_the_plain_image(folder: Path) -> None:
    reindexed(folder / "demo-1.0", lambda index: index["manifests"].reverse())
    assert errors(folder) == ["does not list the image for plain amd64 first"]
    reindexed(folder / "demo-1.0", lambda index: index["manifests"].pop())
    assert errors(folder) == ["has no image for plain amd64"]


def test_a_label_that_the_config_and_variants_json_do_not_have_is_a_problem(folder: Path) -> None:
    reindexed(folder / "demo-1.0", lambda index: index["manifests"][1]["annotations"].update({LABEL: "fast"}))
    assert errors(folder) == [
        f"{LABEL} is 'fast' in the index, 'x86_64_v3' in the config",
        "its variants.json does not list 'fast' with these properties",
    ]


def test_annotations_that_are_no_properties_are_a_problem(folder: Path) -> None:
    reindexed(folder / "demo-1.0", lambda index: index["manifests"][1]["annotations"].update({PROPERTIES: "x"}))
    assert errors(folder)[1] == "x86_64_v3: not a variant property: 'x'; expected namespace :: feature :: value"


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"variant": "v2"}, "is listed as linux/amd64/v3, and its config says linux/amd64/v2"),
        ({"architecture": "arm64"}, "is listed as linux/amd64/v3, and its config says linux/arm64/v3"),
        ({"rootfs": {"diff_ids": []}}, "2 layers and 0 diff_ids"),
    ],
)
def test_a_config_that_is_not_of_its_image_is_a_problem(folder: Path, config: dict[str, Any], what: str) -> None:
    remade(folder / "demo-1.0", 1, config=config)
    assert errors(folder) == [what]


@pytest.mark.parametrize("kind", ["", "+gzip", "+zstd"])
def test_layers_of_every_compression_are_held_against_their_diff_ids(folder: Path, kind: str) -> None:
    layout = folder / "demo-1.0"
    plain = b"plain bytes" * 1000
    packed = {"": plain, "+gzip": gzip.compress(plain), "+zstd": zstandard.compress(plain)}[kind]
    digest = stored(layout, packed)
    layer = {"mediaType": f"application/vnd.oci.image.layer.v1.tar{kind}", "digest": digest, "size": len(packed)}
    diff_id = f"sha256:{sha256(plain).hexdigest()}"
    remade(layout, 1, config={"rootfs": {"diff_ids": [diff_id]}}, layers=[layer])
    assert errors(folder) == []
    assert "its images of amd64 have no layer in common" in said(folder)
    broken = stored(layout, packed[:-9])
    layer |= {"digest": broken, "size": len(packed) - 9}
    remade(layout, 1, layers=[layer])
    assert len(errors(folder)) == 1
    assert errors(folder)[0].startswith("uncompressed it is ")


def test_a_layer_of_an_unknown_compression_is_held_against_its_digest_alone(folder: Path) -> None:
    layout = folder / "demo-1.0"
    digest = stored(layout, b"anything")
    layer = {"mediaType": "application/vnd.example.layer", "digest": digest, "size": 8}
    remade(layout, 1, config={"rootfs": {"diff_ids": ["sha256:0"]}}, layers=[layer])
    assert errors(folder) == []


def test_something_else_than_an_image_is_a_problem(folder: Path) -> None:
    layout = folder / "demo-1.0"
    entry = {"mediaType": "text/plain", "digest": stored(layout, b"x"), "size": 1}
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    assert errors(folder) == ["text/plain, expected an index or a manifest"]
