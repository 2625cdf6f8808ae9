"""Variants that contradict their wheels, their index or one another, and those that are not there."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.factories.release_folders import LINUX, PLAIN, SDIST, V2, V3, problems_found, release_folder, release_wheel
from tests.factories.variants import document, variant, variant_wheel
from tests.factories.wheels import wheel
from vbuild.publishing.check import check
from vbuild.variants.document import Document, Schema
from vbuild.variants.index import index
from vbuild.variants.model import VariantMetadata


def test_an_index_that_is_stale_is_an_error(tmp_path: Path) -> None:
    release_folder(tmp_path)
    (tmp_path / V3).unlink()
    place = "error index: demo-1.0-variants.json: "
    assert problems_found(tmp_path) == [f"{place}lists x86_64_v3, for which there is no wheel"]
    index(tmp_path)
    release_wheel(tmp_path, V3)
    assert problems_found(tmp_path) == [f"{place}does not list x86_64_v3, for which there are wheels"]
    other = document(variant("x86_64_v2", "x86_64 :: level :: v2"), variant("x86_64_v3", "x86_64 :: level :: v4"))
    (tmp_path / "demo-1.0-variants.json").write_bytes(other.pack())
    assert problems_found(tmp_path) == [f"{place}has other properties for x86_64_v3 than the wheels"]


def test_an_index_of_another_schema_is_stale(tmp_path: Path) -> None:
    path = release_folder(tmp_path) / "demo-1.0-variants.json"
    variants = Document.parse(path.read_bytes()).variants
    path.write_bytes(document(*variants, metadata=VariantMetadata(("x86_64",), ()), schema=Schema.PEP_825).pack())
    what = "has another schema, order of namespaces, or other providers than the wheels"
    assert problems_found(tmp_path) == [f"error index: demo-1.0-variants.json: {what}"]


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"[]", "expected a JSON object, got list"),
        (b"\xff", "not UTF-8 at byte 0x0"),
        (b'{"$schema": "x"}', "default-priorities: missing; expected a table; $schema is x, read as 825/0.1.1"),
    ],
    ids=["list", "bytes", "schema"],
)
def test_an_index_that_is_none_is_an_error(data: bytes, what: str, tmp_path: Path) -> None:
    path = release_folder(tmp_path) / "demo-1.0-variants.json"
    path.write_bytes(data)
    [line] = problems_found(tmp_path)
    assert line.startswith(f"error index: demo-1.0-variants.json: {what}")


def test_an_index_without_wheels_is_an_error(tmp_path: Path) -> None:
    release_folder(tmp_path)
    for name in (V2, V3):
        (tmp_path / name).unlink()
    (tmp_path / "other-2.0-variants.json").write_text("{}")
    assert problems_found(tmp_path) == [
        "error index: demo-1.0-variants.json and 1 more: is of a release without variant wheels here"
    ]


def test_wheels_that_contradict_their_names_or_one_another_are_errors(tmp_path: Path) -> None:
    release_folder(tmp_path)
    v4 = document(variant("x86_64_v4", "x86_64 :: level :: v4"))
    variant_wheel(tmp_path, V3, v4)
    variant_wheel(tmp_path, PLAIN, v4)
    release_wheel(tmp_path, V2, {"demo-1.0.dist-info/variant.json": b"{}"})
    other = "describes 'x86_64_v4'; expected only 'x86_64_v3', as in the file name (PEP 825)"
    plain = "in a wheel whose file name has no variant label; expected none (PEP 825)"
    assert [line for line in problems_found(tmp_path) if " variant: " in line] == [
        f'error variant: {V2}: variant.json: "$schema": missing; expected a string',
        f"error variant: {V3}: variant.json: {other}",
        f"error variant: {PLAIN}: variant.json: {plain}",
    ]
    wheel(tmp_path, V2)
    missing = "missing; expected it to describe the variant 'x86_64_v2' of the file name (PEP 825)"
    assert f"error variant: {V2}: variant.json: {missing}" in problems_found(tmp_path)


def test_labels_that_stand_for_different_properties_are_an_error(tmp_path: Path) -> None:
    release_folder(tmp_path)
    other = V3.replace("311", "312")
    variant_wheel(tmp_path, other, document(variant("x86_64_v3", "x86_64 :: level :: v4")))
    release_wheel(tmp_path, PLAIN.replace("311", "312"))
    [first, *_] = problems_found(tmp_path)
    assert first == (
        f"error variant: {V2} and 2 more: {V3} and {other}: the label 'x86_64_v3' stands for different properties: "
        "x86_64 :: level :: v3 and x86_64 :: level :: v4 (PEP 825, variant label)"
    )


def test_who_finds_variants_finds_a_plain_wheel(tmp_path: Path) -> None:
    release_folder(tmp_path)
    (tmp_path / PLAIN).unlink()
    what = "no plain wheel for cp311-cp311-manylinux_x86_64"
    assert problems_found(tmp_path) == [f"warning plain: {V2} and 1 more: {what}: pip builds the sdist there instead"]
    (tmp_path / SDIST).unlink()
    assert problems_found(tmp_path)[0] == f"error plain: {V2} and 1 more: {what}: pip finds nothing there"
    release_wheel(tmp_path, f"demo-1.0-cp39-abi3-{LINUX}.whl")
    assert not check(tmp_path).failed


@pytest.mark.nightly
def test_pip_and_uv_find_nothing_without_a_plain_wheel(tmp_path: Path) -> None:
    release_folder(tmp_path, "demo-1.0-py3-none-any-x86_64_v2.whl")
    (tmp_path / SDIST).unlink()
    assert check(tmp_path).failed
    install = ["install", "--no-index", "--find-links", str(tmp_path), "demo", "--target", str(tmp_path / "there")]
    for installer in (["pip"], ["uv", "pip"]):
        command = [sys.executable, "-m", *installer, *install]
        assert subprocess.run(command, capture_output=True, check=False).returncode
    release_wheel(tmp_path, "demo-1.0-py3-none-any.whl")
    assert not check(tmp_path).failed
    for installer in (["pip"], ["uv", "pip"]):
        subprocess.run([sys.executable, "-m", *installer, *install], capture_output=True, check=True)
