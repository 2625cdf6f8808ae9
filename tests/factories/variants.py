"""Variants, their documents, and wheels of a few hundred bytes that carry them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.factories.wheels import dist_info_of, wheel
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.driver import Dotted, Nvidia
from vbuild.hardware.machine import Machine
from vbuild.variants.document import Document, Schema
from vbuild.variants.model import Property, Variant, VariantMetadata, VariantProvider
from vbuild.variants.providers import metadata_for

V3 = "x86_64 :: level :: v3"
BLAS = VariantProvider.static({"library": ["openblas", "mkl"]})


def variant(label: str, *properties: str) -> Variant:
    return Variant.of(label, map(Property.parse, properties))


def metadata(*namespaces: str, **given: VariantProvider) -> VariantMetadata:
    return metadata_for(namespaces or ("x86_64",), given)


def document(*variants: Variant, metadata: VariantMetadata | None = None, schema: Schema = Schema.PEP_850) -> Document:
    return Document(schema, metadata or metadata_for(["x86_64"]), variants or (variant("x86_64_v3", V3),))


def machine(
    cpu: str | None = "x86-64-v3",
    *,
    driver: str | None = None,
    gpus: tuple[str, ...] = (),
    tags: tuple[str, ...] = ("cp311-cp311-linux_x86_64", "py311-none-any", "py3-none-any"),
    python: str = "3.11.7",
    supported: Mapping[str, Mapping[str, tuple[str, ...]]] | None = None,
) -> Machine:
    return Machine(
        python,
        tags,
        Cpu.parse(cpu) if cpu else None,
        Nvidia(Dotted.parse(driver) if driver else None, tuple(map(Dotted.parse, gpus))),
        tuple((namespace, tuple(features.items())) for namespace, features in (supported or {}).items()),
    )


def tiny_wheel(folder: Path, filename: str, *, variant_json: bytes | None = None, requires_python: str = "") -> Path:
    """A wheel without a module; with *variant_json*, its file name should end in that label."""
    members: dict[str, Any] = {} if variant_json is None else {f"{dist_info_of(filename)}/variant.json": variant_json}
    asked = f"Requires-Python: {requires_python}\n" if requires_python else ""
    return wheel(folder, filename, metadata=asked, **members)


def variant_wheel(folder: Path, filename: str, found: Document | None = None) -> Path:
    """The tiny wheel called *filename*, which ends with the label of the one variant of *found*."""
    return tiny_wheel(folder, filename, variant_json=(found or document()).pack())


def jsonified(**changes: Any) -> bytes:
    """The smallest sound document as JSON with some of its keys changed (dashes for underscores), or left out: None."""
    values: dict[str, Any] = {
        "$schema": Schema.PEP_850.value,
        "default-priorities": {"namespace": ["blas"]},
        "providers": {"blas": {"static-properties": {"library": ["openblas", "mkl"]}}},
        "variants": {"ob": {"blas": {"library": ["openblas"]}}},
    }
    for key, value in changes.items():
        values[{"schema": "$schema", "priorities": "default-priorities"}.get(key, key)] = value
    return json.dumps({key: value for key, value in values.items() if value is not None}).encode()
