"""Bills of materials, compared with CycloneDX's own schema, and read back."""

import json
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from vbuild.sbom.model import (
    FILE,
    Bill,
    BillChange,
    BillFile,
    Gone,
    GpuCut,
    Making,
    Material,
    MaterialRole,
    Treatment,
    package_url,
    packed,
    read,
)

LIBS = package_url("demo_libs", "0.123", file="demo_libs-0.123-py3-none-manylinux_2_28_x86_64.whl")
OFFICIAL = package_url("NVIDIA_cufft-cu12", "11.2.1.3+cu12")
CUT = BillFile(
    "demo/_C.so",
    "ab" * 32,
    (
        BillChange("cd" * 32, "vbuild slim", GpuCut(("sm_80", "sm_90", "PTX for sm_90"))),
        BillChange("ef" * 32, "vbuild split"),
    ),
    GpuCut(("sm_90",), ("sm_90",), "1 of 2: 0x1"),
)
GONE = (
    Gone("demo.libs/libb-1a.so.2", "12" * 32, "libb.so.2", Treatment.MOVED, LIBS, "demo_libs/lib/libb.so.2"),
    Gone(
        "demo.libs/libcufft-f3.so.11", "34" * 32, "libcufft.so.11", Treatment.MOVED, OFFICIAL, "x", "11.2", "sections"
    ),
    Gone("demo.libs/libc-1a.so", "56" * 32, "libc-1a.so", Treatment.DROPPED),
)
ZLIB = Material(MaterialRole.NATIVE, "zlib", "1.3", "pkg:generic/zlib@1.3", "9a" * 32)
MAKING = Making(
    (
        Material(MaterialRole.SOURCE, "demo", "1.0", package_url("demo", "1.0"), "78" * 32),
        Material(MaterialRole.SOURCE, "demo", url="https://git.example/demo", commit="a1" * 20),
        ZLIB,
        Material(MaterialRole.COMPILER, "gcc", "13.2.0"),
        Material(MaterialRole.TOOLKIT, "CUDA Toolkit", "12.6", identity="bc" * 32),
    ),
    (("cpu", "x86-64-v3"), ("flags:CFLAGS", "-O2 -march=x86-64-v3")),
)
OTHER = Making((ZLIB,), (("cpu", "x86-64"),))
FULL = Bill(
    "demo-project", "1.0+cu12", "0.1.0", (CUT, BillFile("demo.libs/liba-1a.so", "de" * 32)), GONE, (MAKING, OTHER)
)
BILLS = {
    "everything": FULL,
    "nothing": Bill("demo", "1.0", "0.1.0"),
    "all code cut": Bill(
        "demo", "1!1.0", "0.1.0", (BillFile("a.so", "ab" * 32, (BillChange("cd" * 32, "x", GpuCut(("sm_80",))),)),)
    ),
}


def document(bill: Bill) -> dict[str, Any]:
    found = json.loads(packed(bill))
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("name", BILLS)
def test_the_schema_of_cyclonedx_is_content(name: str) -> None:
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(packed(BILLS[name]).decode()) is None
    spoilt = json.dumps({**document(BILLS[name]), "when": "now"})
    assert validator.validate_str(spoilt) is not None


@pytest.mark.parametrize("name", BILLS)
def test_what_is_packed_can_be_read_back_and_packed_to_the_same_bytes(name: str) -> None:
    found = read(packed(BILLS[name]))
    assert found is not None
    assert packed(found) == packed(BILLS[name])
    assert (found.project, found.version, found.tool) == (BILLS[name].project, BILLS[name].version, "0.1.0")
    assert {*found.files} == {*BILLS[name].files}
    assert {*found.gone} == {*BILLS[name].gone}
    assert [{*making.materials} for making in found.makings] == [{*each.materials} for each in BILLS[name].makings]
    assert [making.settings for making in found.makings] == [making.settings for making in BILLS[name].makings]


def test_order_changes_nothing_and_every_fact_the_serial_number() -> None:
    turned = Bill("demo-project", "1.0+cu12", "0.1.0", FULL.files[::-1], GONE[::-1], FULL.makings)
    assert packed(turned) == packed(FULL)
    other = Bill("demo-project", "1.0+cu12", "0.1.0", FULL.files, GONE[1:], FULL.makings)
    assert document(other)["serialNumber"] != document(FULL)["serialNumber"]
    assert b"timestamp" not in packed(FULL)


def test_every_reference_is_there_once_and_leads_somewhere() -> None:
    found = document(FULL)
    components = [found["metadata"]["component"], *found["components"]]
    references = [component["bom-ref"] for component in components]
    beside = [part["bom-ref"] for formula in found["formulation"] for part in formula["components"]]
    everything = [*references, *beside, *(formula["bom-ref"] for formula in found["formulation"])]
    assert len({*everything}) == len(everything)
    assert {entry["ref"] for entry in found["dependencies"]} == {*references}
    assert {on for entry in found["dependencies"] for on in entry.get("dependsOn", [])} < {*references}


def test_package_urls_are_what_their_specification_says() -> None:
    components = document(FULL)["components"]
    assert document(FULL)["metadata"]["component"]["purl"] == "pkg:pypi/demo-project@1.0%2Bcu12"
    for purl in (component["purl"] for component in components if "purl" in component):
        assert PackageURL.from_string(purl).name in purl
    named = {
        part["purl"]: (part["name"], part["version"]) for part in components if part["bom-ref"] == part.get("purl")
    }
    assert named == {LIBS: ("demo-libs", "0.123"), OFFICIAL: ("nvidia-cufft-cu12", "11.2.1.3+cu12")}


def test_a_library_that_went_is_no_part_and_says_where_it_is() -> None:
    found = document(FULL)
    moved = next(part for part in found["components"] if part["name"] == "libb.so.2")
    assert (FILE, moved["scope"], moved["purl"]) == ("sboms/vbuild.cdx.json", "excluded", LIBS)
    assert {each["name"]: each["value"] for each in moved["properties"]} == {
        "vbuild:fate": "moved",
        "vbuild:path": "demo.libs/libb-1a.so.2",
        "vbuild:target": "demo_libs/lib/libb.so.2",
    }
    tree = {entry["ref"]: entry.get("dependsOn", []) for entry in found["dependencies"]}
    assert tree[LIBS] == [moved["bom-ref"]]
    assert moved["bom-ref"] not in tree[found["metadata"]["component"]["bom-ref"]]


DAMAGES = {
    "no JSON": b"{",
    "no object": b"[]",
    "not UTF-8": b"\xff",
    "another bill": b'{"bomFormat": "CycloneDX", "specVersion": "1.4", "components": []}',
    "deep": b"[" * 100_000,
    "a lone surrogate": packed(FULL).replace(b'"libc-1a.so"', rb'"\ud800"'),
    "a number for a name": packed(FULL).replace(b'"demo-project"', b"1"),
    "a fate that there is not": packed(FULL).replace(b'"dropped"', b'"lost"'),
    "no hash": packed(FULL).replace(b'"SHA-256"', b'"MD5"'),
    "a native dependency that is not listed": packed(Bill("a", "1", "0", makings=(OTHER,)))
    .replace(b'"native:', b'"other:')
    .replace(b'"zlib"', b'"zlip"'),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_what_nobody_can_read_is_no_bill(name: str) -> None:
    assert read(DAMAGES[name]) is None


def test_the_references_of_materials_never_change() -> None:
    whole = document(FULL)
    built = [part["bom-ref"] for part in whole["formulation"][0]["components"]]
    assert built == [
        "build-0:26396fc5b7a21fb9",
        "build-0:6954c8c7ec73f8dd",
        "build-0:a9dc6baed4199a4e",
        "build-0:dafeb87f0aa2f945",
    ]
    assert "native:bf7ec96150be370d" in [part["bom-ref"] for part in whole["components"]]
