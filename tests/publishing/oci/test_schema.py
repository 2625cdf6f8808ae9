"""Everything in a layout that is JSON has the shape that the image specification gives it, version 1.1.

https://github.com/opencontainers/image-spec/blob/v1.1.1/descriptor.md, image-index.md, manifest.md, config.md
"""

import json
import re
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from tests.factories.images import labelled, laid_out
from tests.factories.variants import tiny_wheel

TAG = "cp311-cp311-manylinux_2_17_x86_64"
STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}
DIGEST = {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"}
TIME = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"}
NAME = "[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}"
MEDIA_TYPE = {"type": "string", "pattern": f"^{NAME}/{NAME}$"}


def thing(required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required.split(), "properties": properties, "additionalProperties": False}


def several(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


PLATFORM = thing(
    "architecture os",
    architecture={"enum": ["amd64", "arm64"]},
    os={"const": "linux"},
    variant={"type": "string", "pattern": r"^v\d(\.\d)?$"},
)
DESCRIPTOR = thing(
    "mediaType digest size",
    mediaType=MEDIA_TYPE,
    digest=DIGEST,
    size={"type": "integer", "minimum": 0},
    platform=PLATFORM,
    annotations=STRINGS,
)
SCHEMAS = {
    "application/vnd.oci.image.index.v1+json": thing(
        "schemaVersion mediaType manifests",
        schemaVersion={"const": 2},
        mediaType={"const": "application/vnd.oci.image.index.v1+json"},
        manifests=several(DESCRIPTOR),
        annotations=STRINGS,
    ),
    "application/vnd.oci.image.manifest.v1+json": thing(
        "schemaVersion mediaType config layers",
        schemaVersion={"const": 2},
        mediaType={"const": "application/vnd.oci.image.manifest.v1+json"},
        config=DESCRIPTOR,
        layers={"type": "array", "items": DESCRIPTOR, "minItems": 1},
        annotations=STRINGS,
    ),
    "application/vnd.oci.image.config.v1+json": thing(
        "architecture os rootfs",
        **PLATFORM["properties"],
        created=TIME,
        config=thing("Env Labels", Env=several({"type": "string", "pattern": "^[A-Z]+=."}), Labels=STRINGS),
        rootfs=thing("type diff_ids", type={"const": "layers"}, diff_ids=several(DIGEST)),
        history=several(thing("created created_by comment", created=TIME, created_by={}, comment={})),
    ),
}
# image-spec, annotations.md: org.opencontainers.image.ref.name
REF_NAME = re.compile(r"[A-Za-z0-9]+((--|[-._:@+])[A-Za-z0-9]+)*(/[A-Za-z0-9]+((--|[-._:@+])[A-Za-z0-9]+)*)*")


def described(value: Any) -> list[Any]:
    """Every descriptor in *value*, a manifest or an index."""
    found = [value["config"]] if "config" in value else []
    return [*found, *value.get("layers", ()), *value.get("manifests", ())]


def test_every_json_blob_is_as_specified(tmp_path: Path) -> None:
    wheels = [
        tiny_wheel(tmp_path, f"demo-1.0-{TAG}.whl"),
        tiny_wheel(tmp_path, f"demo-1.0-{TAG.replace('x86_64', 'aarch64')}.whl"),
        labelled(tmp_path, "x86_64_v3", "x86_64 :: level :: v3", tag=TAG),
    ]
    layout = laid_out(wheels, tmp_path) / "demo-1.0"
    index = json.loads((layout / "index.json").read_bytes())
    Draft202012Validator(SCHEMAS["application/vnd.oci.image.index.v1+json"]).validate(index)
    assert json.loads((layout / "oci-layout").read_bytes()) == {"imageLayoutVersion": "1.0.0"}
    refs = [
        one["annotations"]["org.opencontainers.image.ref.name"] for one in index["manifests"] if "annotations" in one
    ]
    assert all(REF_NAME.fullmatch(ref) for ref in refs)
    waiting, seen = described(index), set()
    while waiting:
        descriptor = waiting.pop()
        blob = layout / "blobs" / descriptor["digest"].replace(":", "/")
        assert blob.stat().st_size == descriptor["size"]
        seen.add(blob.name)
        if schema := SCHEMAS.get(descriptor["mediaType"]):
            value = json.loads(blob.read_bytes())
            Draft202012Validator(schema).validate(value)
            waiting += described(value) if "schemaVersion" in value else []
    assert seen == {path.name for path in (layout / "blobs" / "sha256").iterdir()}
