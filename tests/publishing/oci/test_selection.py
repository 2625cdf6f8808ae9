"""Which image a machine gets: of indexes of ours, and of those that others made."""

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.factories.images import index_of, labelled, laid_out
from tests.factories.layouts import attach
from tests.factories.variants import machine, tiny_wheel
from vbuild.errors import RepackageError, VariantError
from vbuild.publishing.oci.select import ImageSelection, select_image

LINUX = "cp311-cp311-manylinux_2_17_x86_64"
INDEX = "application/vnd.oci.image.index.v1+json"
BOTH = ["nvidia", "x86_64"]
CUDA = "nvidia :: cuda_version_lower_bound :: 12.6"
PROPERTIES, LABEL = "dev.wheelnext.variant.properties", "dev.wheelnext.variant.label"


def ours(folder: Path, **options: Any) -> Path:
    wheels = [
        tiny_wheel(folder, f"demo-1.0-{LINUX}.whl"),
        labelled(folder, "null", tag=LINUX, namespaces=BOTH),
        labelled(folder, "x86_64_v3", "x86_64 :: level :: v3", tag=LINUX, namespaces=BOTH),
        labelled(folder, "x86_64_v4", "x86_64 :: level :: v4", tag=LINUX, namespaces=BOTH),
        labelled(folder, "cu126", CUDA, tag=LINUX, namespaces=BOTH),
    ]
    return laid_out(wheels, folder, **options) / "demo-1.0"


def theirs(
    folder: Path, *images: tuple[Mapping[str, str], Mapping[str, str]], said: Mapping[str, str] | None = None
) -> Path:
    """A layout of one index whose images have these platforms and annotations; only the index can be read."""
    (folder / "blobs" / "sha256").mkdir(parents=True)
    manifests = [
        {
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": f"sha256:{number:064}",
            "size": 7,
            "platform": dict(platform),
            "annotations": dict(own),
        }
        for number, (platform, own) in enumerate(images)
    ]
    data = json.dumps({"schemaVersion": 2, "manifests": manifests, "annotations": dict(said or {})}).encode()
    digest = sha256(data).hexdigest()
    (folder / "blobs" / "sha256" / digest).write_bytes(data)
    listed = {"mediaType": "application/vnd.oci.image.index.v1+json", "digest": f"sha256:{digest}", "size": len(data)}
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [listed]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder


def amd64(variant: str | None = None, **said: str) -> tuple[dict[str, str], dict[str, str]]:
    platform = {"os": "linux", "architecture": "amd64"} | ({"variant": variant} if variant else {})
    return platform, {LABEL if key == "label" else PROPERTIES: text for key, text in said.items()}


def number(selection: ImageSelection) -> int:
    return int(selection.digest.removeprefix("sha256:"))


def test_every_image_says_why_it_stands_where_it_is(tmp_path: Path) -> None:
    found = select_image(ours(tmp_path), machine("x86-64-v3"))
    assert [(one.label, one.fits, one.why) for one in found.ranking] == [
        ("x86_64_v3", True, "x86_64 :: level :: v3 is number 1 of 3 that the machine supports"),
        ("null", True, "null variant: fits every machine, after all others"),
        (None, True, "no variant: after every variant that fits"),
        ("cu126", False, f"{CUDA} is not supported: the machine has no nvidia :: cuda_version_lower_bound"),
        ("x86_64_v4", False, "x86_64 :: level :: v4 is not supported: the machine has v3, v2, v1"),
    ]
    assert found.reference == f"oci:{found.folder}:cp311-x86_64_v3"
    assert found.lines[:3] == (
        found.digest,
        f"  1. {found.reference} (linux/amd64/v3)",
        "     x86_64 :: level :: v3 is number 1 of 3 that the machine supports",
    )
    assert found.lines[5:7] == (
        f"  3. oci:{found.folder}:cp311-plain (linux/amd64)",
        "     no variant: after every variant that fits",
    )
    data = json.loads(json.dumps(found.data()))
    assert (data["digest"], data["label"], data["ref"], data["index"]) == (
        found.digest,
        "x86_64_v3",
        "cp311-x86_64_v3",
        "cp311",
    )
    assert data["ranking"][0] == {
        "digest": found.digest,
        "ref": "cp311-x86_64_v3",
        "label": "x86_64_v3",
        "platform": "linux/amd64/v3",
        "fits": True,
        "why": "x86_64 :: level :: v3 is number 1 of 3 that the machine supports",
    }


def test_an_image_can_be_asked_for_by_its_own_name(tmp_path: Path) -> None:
    found = select_image(ours(tmp_path), machine("x86-64-v4"), ref="cp311-x86_64_v3")
    assert (found.image.label, len(found.ranking)) == ("x86_64_v3", 1)


@pytest.mark.parametrize(("cpu", "taken"), [("x86-64", 0), ("x86-64-v2", 0), ("x86-64-v3", 2), ("x86-64-v4", 1)])
def test_of_an_index_with_platforms_alone_the_variant_is_the_level(tmp_path: Path, cpu: str, taken: int) -> None:
    layout = theirs(tmp_path / "theirs", amd64(), amd64("v4"), amd64("v3"))
    found = select_image(layout, machine(cpu))
    assert number(found) == taken
    assert found.reference is None
    assert found.lines[1] == f"  1. {found.digest[:19]} ({found.image.platform})"


@pytest.mark.parametrize(("cpu", "taken"), [("armv8-a", 0), ("armv8.2-a", 1), ("armv9.0-a", 2)])
def test_versions_of_arm_are_variants_too(tmp_path: Path, cpu: str, taken: int) -> None:
    arm = [{"os": "linux", "architecture": "arm64", "variant": variant} for variant in ("v8", "v8.1", "v9")]
    layout = theirs(tmp_path / "theirs", *((platform, {}) for platform in arm), amd64())
    assert number(select_image(layout, machine(cpu))) == taken


def test_of_two_images_for_one_platform_the_first_counts(tmp_path: Path) -> None:
    layout = theirs(tmp_path / "theirs", amd64(), amd64("v3"), amd64("v3"), amd64())
    assert number(select_image(layout, machine("x86-64-v3"))) == 1


def test_attestations_are_no_images_and_other_systems_and_strange_variants_do_not_fit(tmp_path: Path) -> None:
    layout = theirs(
        tmp_path / "theirs",
        ({"os": "windows", "architecture": "amd64"}, {}),
        amd64("v9"),
        amd64(),
        ({"os": "linux", "architecture": "arm64", "variant": "v7x"}, {}),
        ({"os": "unknown", "architecture": "unknown"}, {}),
    )
    found = select_image(layout, machine("x86-64"))
    assert [(int(one.digest[7:]), one.why) for one in found.ranking] == [
        (2, "no variant: after every variant that fits"),
        (0, "is for windows/amd64, the machine is linux/amd64"),
        (1, "variant 'v9' of amd64 is not known"),
        (3, "is for linux/arm64/v7x, the machine is linux/amd64"),
    ]


def test_a_machine_without_a_cpu_is_of_the_architecture_of_its_tags(tmp_path: Path) -> None:
    layout = theirs(tmp_path / "theirs", amd64("v3"), amd64())
    assert number(select_image(layout, machine(None))) == 1
    with pytest.raises(RepackageError) as refusal:
        select_image(layout, machine(None, tags=("py3-none-any",)))
    assert str(refusal.value) == (
        f"{layout}: the machine's CPU is not known; expected x86_64 or aarch64 in its description"
    )


def test_where_nothing_fits_every_reason_is_told(tmp_path: Path) -> None:
    layout = theirs(tmp_path / "theirs", amd64("v4"), ({"os": "linux", "architecture": "arm64"}, {}))
    with pytest.raises(RepackageError) as refusal:
        select_image(layout, machine("x86-64-v3"))
    assert str(refusal.value) == (
        f"{layout}: none of 2 images fits this machine: linux/amd64/v4: x86_64 :: level :: v4 is not supported: the "
        f"machine has v3, v2, v1; linux/arm64: is for linux/arm64, the machine is linux/amd64"
    )


def test_an_index_without_images_fits_nothing(tmp_path: Path) -> None:
    with pytest.raises(RepackageError) as refusal:
        select_image(theirs(tmp_path / "theirs"), machine())
    assert str(refusal.value).endswith(": none of 0 images fits this machine: there is none")


def test_what_is_attached_to_an_image_is_not_asked_about(tmp_path: Path) -> None:
    layout = ours(tmp_path)
    before = select_image(layout, machine("x86-64-v3"))
    attach(layout, "cp311-x86_64_v3", b"rules for nodes")
    assert select_image(layout, machine("x86-64-v3")) == before


def test_of_several_indexes_one_must_be_named(tmp_path: Path) -> None:
    wheels = [tiny_wheel(tmp_path, f"demo-1.0-{LINUX.replace('311', minor)}.whl") for minor in ("311", "312")]
    layout = laid_out(wheels, tmp_path) / "demo-1.0"
    assert select_image(layout, machine(), ref="cp312").image.ref == "cp312-plain"
    with pytest.raises(RepackageError) as refusal:
        select_image(layout, machine())
    assert str(refusal.value) == f"{layout}: has cp311, cp312; expected one: say which, as in oci:{layout}:NAME"
    with pytest.raises(RepackageError) as refusal:
        select_image(layout, machine(), ref="cp313")
    assert str(refusal.value) == f"{layout}: has cp311, cp311-plain, cp312, cp312-plain; expected 'cp313'"


def test_a_document_that_does_not_list_the_variants_does_not_count(tmp_path: Path) -> None:
    layout = ours(tmp_path)
    index = index_of(layout, "cp311")
    for image in index["manifests"]:
        image.get("annotations", {}).update({LABEL: f"my_{image.get('annotations', {}).get(LABEL)}"} if image else {})
    kept = [image for image in index["manifests"] if image.get("annotations", {}).get(PROPERTIES)]
    images = [(image["platform"], image["annotations"]) for image in kept]
    remade = theirs(tmp_path / "theirs", *images, said=index["annotations"])
    assert select_image(remade, machine("x86-64-v3")).image.label == "my_x86_64_v3"


def test_annotations_that_are_no_properties_are_refused(tmp_path: Path) -> None:
    layout = theirs(tmp_path / "theirs", amd64(label="fast", properties="nonsense"))
    with pytest.raises(VariantError) as refusal:
        select_image(layout, machine())
    assert str(refusal.value) == (
        f"{layout}: sha256:{0:064}: not a variant property: 'nonsense'; expected namespace :: feature :: value"
    )


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("oci-layout", None, "no OCI image layout; expected a folder with oci-layout, index.json and blobs"),
        ("oci-layout", "{}", "oci-layout: imageLayoutVersion: missing; expected a string"),
        (
            "oci-layout",
            '{"imageLayoutVersion": "2.0.0"}',
            "oci-layout: imageLayoutVersion '2.0.0'; only 1.0.0 is known",
        ),
        ("index.json", None, "index.json: cannot be read: No such file or directory"),
        (
            "index.json",
            "{",
            "index.json: not JSON: Expecting property name enclosed in double quotes at line 1, column 2",
        ),
        (
            "index.json",
            json.dumps({"manifests": [{"mediaType": INDEX, "digest": f"sha256:{0:064}", "size": 1 << 25}]}),
            f"sha256:{0:064}: 33554432 bytes of JSON, 4194304 at most",
        ),
        ("index.json", "[]", "index.json: expected a JSON object, got list"),
        ("index.json", '{"manifests": 1}', "index.json: manifests: expected an array, got 1"),
        (
            "index.json",
            '{"manifests": [{"mediaType": "x", "digest": "../../x", "size": 1}]}',
            "index.json: manifests[0].digest: '../../x'; expected sha256: and 64 hexadecimal digits",
        ),
    ],
)
def test_a_folder_that_is_no_layout_is_refused(tmp_path: Path, file: str, text: str | None, message: str) -> None:
    layout = theirs(tmp_path / "theirs", amd64())
    (layout / file).unlink()
    if text is not None:
        (layout / file).write_text(text)
    with pytest.raises(RepackageError) as refusal:
        select_image(layout, machine())
    assert str(refusal.value) == f"{layout}: {message}"
