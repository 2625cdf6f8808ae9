"""The bill of materials of a thin wheel, held against CycloneDX's own schema and the specification of package URLs."""

import json
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator
from referencing import Registry, Resource

from tests.factories.clients import PIP
from vbuild.splitting.bill import FILE, Moved, Origin, bill
from vbuild.wheel.name import WheelName

THIN = WheelName.parse("Demo_Project-1.0+cu12-cp311-cp311-manylinux_2_28_x86_64.whl")
CUFFT = "nvidia_cufft_cu12-11.2.1.3-py3-none-manylinux2014_x86_64.whl"
OFFICIAL = Origin("nvidia-cufft-cu12", "11.2.1.3", CUFFT)
SHARED = Origin.of(WheelName.parse("demo_libs-0.123-py3-none-manylinux_2_28_x86_64.whl"))
MOVED = (
    Moved(
        "demo.libs/libcufft-f3921c41.so.11.2.1.3",
        "ab" * 32,
        OFFICIAL,
        "nvidia/cufft/lib/libcufft.so.11",
        "libcufft.so.11.2.1.3",
        "11.2.1.3",
        "restored",
    ),
    Moved("demo.libs/libb-1a2b3c4d.so.2", "cd" * 32, SHARED, "demo_libs/lib/libb-1a2b3c4d.so.2", "libb.so.2"),
    Moved("demo.libs/liba-1a2b3c4d.so", "ef" * 32, SHARED, "demo_libs/lib/liba-1a2b3c4d.so", "liba.so"),
)


def parsed(*moved: Moved) -> dict[str, Any]:
    document = json.loads(bill(THIN, moved))
    assert isinstance(document, dict)
    return document


def test_each_library_is_a_component_of_the_wheel_it_went_to() -> None:
    document = parsed(*MOVED)
    assert FILE == "sboms/vbuild-split.cdx.json"
    assert document["metadata"]["component"]["purl"] == (
        "pkg:pypi/demo-project@1.0%2Bcu12?file_name=Demo_Project-1.0%2Bcu12-cp311-cp311-manylinux_2_28_x86_64.whl"
    )
    shared = "pkg:pypi/demo-libs@0.123?file_name=demo_libs-0.123-py3-none-manylinux_2_28_x86_64.whl"
    official = f"pkg:pypi/nvidia-cufft-cu12@11.2.1.3?file_name={CUFFT}"
    assert [component["name"] for component in document["components"]] == [
        "demo-libs",
        "nvidia-cufft-cu12",
        "liba.so",
        "libb.so.2",
        "libcufft.so.11.2.1.3",
    ]
    assert document["components"][-1] == {
        "type": "library",
        "bom-ref": f"{official}#0691fdad73188401939f6f2fd2d7bb7900062bcbc16f870c7353a4d95944c464",
        "name": "libcufft.so.11.2.1.3",
        "version": "11.2.1.3",
        "hashes": [{"alg": "SHA-256", "content": "ab" * 32}],
        "purl": official,
        "properties": [
            {"name": "vbuild:split:evidence", "value": "restored"},
            {"name": "vbuild:split:path", "value": "demo.libs/libcufft-f3921c41.so.11.2.1.3"},
            {"name": "vbuild:split:target", "value": "nvidia/cufft/lib/libcufft.so.11"},
        ],
    }
    tree = {entry["ref"]: entry.get("dependsOn", []) for entry in document["dependencies"]}
    assert tree[document["metadata"]["component"]["bom-ref"]] == [shared, official]
    assert tree[shared] == [document["components"][2]["bom-ref"], document["components"][3]["bom-ref"]]
    assert tree[official] == [document["components"][4]["bom-ref"]]


def test_every_reference_is_there_once_and_leads_somewhere() -> None:
    document = parsed(*MOVED)
    components = [document["metadata"]["component"], *document["components"]]
    references = [component["bom-ref"] for component in components]
    assert len(set(references)) == len(references)
    assert {entry["ref"] for entry in document["dependencies"]} == set(references)
    assert {on for entry in document["dependencies"] for on in entry.get("dependsOn", [])} < set(references)


def test_it_is_the_same_in_whatever_order_and_how_often_libraries_come() -> None:
    assert bill(THIN, MOVED) == bill(THIN, [*reversed(MOVED), *MOVED])
    assert b"timestamp" not in bill(THIN, MOVED)
    assert b"serialNumber" not in bill(THIN, MOVED)


def test_a_wheel_from_which_nothing_went_has_an_empty_one() -> None:
    assert parsed()["components"] == []


def test_a_release_without_a_file_name_is_told_by_its_version() -> None:
    assert Origin("NVIDIA_nvjpeg", "13.0").purl == "pkg:pypi/nvidia-nvjpeg@13.0"


@pytest.mark.network
def test_the_schema_of_cyclonedx_is_content(tmp_path: Path) -> None:
    fetch = [*PIP, "download", "--no-deps", "--dest", str(tmp_path), "cyclonedx-python-lib==11.12.0"]
    subprocess.run(fetch, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        schemas = {
            name.split("/")[-1].replace(".SNAPSHOT", ""): json.loads(archive.read(name))
            for name in archive.namelist()
            if name.endswith(
                ("bom-1.4.SNAPSHOT.schema.json", "jsf-0.82.SNAPSHOT.schema.json", "spdx.SNAPSHOT.schema.json")
            )
        }
    registry: Registry[Any] = Registry().with_resources(
        [(schema["$id"], Resource.from_contents(schema)) for schema in schemas.values()]
    )
    judge = Draft7Validator(schemas["bom-1.4.schema.json"], registry=registry)
    for document in (parsed(*MOVED), parsed()):
        assert [error.message for error in judge.iter_errors(document)] == []
    assert list(judge.iter_errors({**parsed(*MOVED), "when": "now"}))
