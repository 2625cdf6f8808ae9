"""variantlib as a second judge: of the order of variants, and of the combined JSON."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import astuple, replace
from variantlib.api import get_variant_label, get_variants_by_priority
from variantlib.models.variant import VariantDescription, VariantProperty
from variantlib.resolver.lib import sort_and_filter_supported_variants
from variantlib.variants_json import VariantsJson

from tests.factories.variants import machine, metadata, variant_wheel
from vbuild.variants.document import Document, Schema
from vbuild.variants.index import index
from vbuild.variants.model import NULL, Property, Variant, VariantMetadata, VariantProvider, hash_label
from vbuild.variants.select import ranked

VARIANTLIB = str(Path(sys.executable).with_name("variantlib"))
VALUES = ("1", "1.0", "10", "2", "v3", "zz")


def random_document(seed: int) -> Document:
    chance = random.Random(seed)
    names = chance.sample(["blas", "mpi", "gpu", "x86_64"], chance.randint(1, 4))
    providers = {name: random_provider(chance) for name in names}
    variants = {NULL.properties: NULL} if chance.random() < 0.5 else {}
    for number in range(chance.randint(1, 12)):
        properties = tuple(sorted(set(random_properties(chance, providers))))
        variants.setdefault(properties, Variant.of(f"{chance.choice('abc')}{number}", properties))
    return Document(Schema.PEP_850, VariantMetadata.of(names, providers), tuple(variants.values()))


def random_provider(chance: random.Random) -> VariantProvider:
    features = chance.sample(["a", "b", "c_1"], chance.randint(1, 3))
    return VariantProvider.static({feature: chance.sample(VALUES, chance.randint(1, 4)) for feature in features})


def random_properties(chance: random.Random, providers: dict[str, VariantProvider]) -> list[Property]:
    found = []
    for namespace in chance.sample(sorted(providers), chance.randint(1, len(providers))):
        features = providers[namespace].features
        for feature, values in chance.sample(features, chance.randint(1, len(features))):
            known = [*values, "none"] if chance.random() < 0.1 else values
            chosen = chance.sample(known, chance.randint(1, min(2, len(known))))
            found += [Property(namespace, feature, value) for value in chosen]
    return found


@pytest.mark.sampled(10)
@pytest.mark.parametrize("seed", range(100))
def test_variantlib_ranks_random_variants_alike(seed: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    document = random_document(seed)
    values: Any = json.loads(document.pack())
    expected = [found.label for found in get_variants_by_priority(variants_json=VariantsJson(values))]
    if NULL not in document.variants:
        assert expected.pop() == "null", "variantlib adds the null variant to every release"
    found = [item.variant.label for item in ranked(document, machine()) if item.is_supported]
    assert found == expected


def random_abi_document(chance: random.Random) -> Document:
    """Variants of a static namespace and of releases of two distributions, each as one to three numbers."""
    static = {"blas": random_provider(chance)}
    variants: dict[tuple[Property, ...], Variant] = {}
    for number in range(chance.randint(2, 9)):
        properties = random_properties(chance, static) if chance.random() < 0.5 else []
        for project in chance.sample(["engine", "run_time"], chance.randint(1, 2)):
            for _ in range(chance.randint(1, 2)):  # one wheel may be for several releases
                release = [str(chance.choice((1, 2, 10))) for _ in range(chance.randint(1, 3))]
                properties.append(Property("abi_dependency", project, ".".join(release)))
        variants.setdefault(tuple(sorted(set(properties))), Variant.of(f"{chance.choice('abc')}{number}", properties))
    return Document(Schema.PEP_850, metadata("blas", "abi_dependency", **static), tuple(variants.values()))


@pytest.mark.sampled(10)
@pytest.mark.parametrize("seed", range(60))
def test_variantlib_ranks_variants_for_releases_of_a_dependency_alike(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    document = random_abi_document(chance)
    versions = {
        project: ".".join(str(chance.choice((1, 2, 10))) for _ in range(3)) for project in ("engine", "run-time")
    }
    monkeypatch.setenv("VARIANT_ABI_DEPENDENCY", ",".join(f"{name}=={version}" for name, version in versions.items()))
    provider = dict(document.metadata.providers)["blas"]
    described = [
        # equal ranks fall to the label
        VariantDescription([VariantProperty(*astuple(prop)) for prop in variant.properties], variant.label)
        for variant in document.variants
    ]
    theirs = sort_and_filter_supported_variants(
        described,
        [VariantProperty("blas", feature, value) for feature, values in provider.features for value in values],
        ["blas"],
        feature_priorities={
            "blas": [feature for feature, _ in provider.features],
            "abi_dependency": ["engine", "run_time"],
        },
        property_priorities={
            "blas": {feature: list(values) for feature, values in provider.features},
            "abi_dependency": {
                project.replace("-", "_"): [version, version.rpartition(".")[0], version.partition(".")[0]]
                for project, version in versions.items()
            },
        },
    )
    here = replace(machine(), installed=tuple(sorted(versions.items())))
    found = [item.variant.label for item in ranked(document, here) if item.is_supported]
    assert found == [each.label for each in theirs if each.properties]


def test_variantlib_combines_wheels_into_the_same_json(tmp_path: Path) -> None:
    for seed in range(4):
        document = random_document(seed)
        for variant in document.variants:
            one = Document(document.schema, document.metadata, (variant,))
            variant_wheel(tmp_path, f"demo-{seed}.0-py3-none-any-{variant.label}.whl", one)
    ours = {item.path: json.loads(item.path.read_bytes()) for item in index(tmp_path)}
    for path in ours:
        path.unlink()
    command = [VARIANTLIB, "generate-index-json", "-d", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path)})
    assert len(ours) == 4
    for path, values in ours.items():
        theirs = json.loads(path.read_bytes())
        del values["$schema"], theirs["$schema"]
        assert values == theirs


@pytest.mark.parametrize("seed", range(10))
def test_variantlib_makes_the_same_hash_labels(seed: int) -> None:
    for variant in random_document(seed).variants:
        theirs = [VariantProperty(prop.namespace, prop.feature, prop.value) for prop in variant.properties]
        if theirs:
            assert hash_label(variant.properties) == get_variant_label(VariantDescription(theirs))
