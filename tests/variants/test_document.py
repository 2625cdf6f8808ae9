import contextlib
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories.variants import BLAS, V3, document, jsonified, metadata, variant
from vbuild.errors import VariantError
from vbuild.variants.document import Document, Schema, combine
from vbuild.variants.model import Variant, VariantMetadata, VariantProvider

OTHER = VariantProvider(builtin="other")

names = st.text("ab0_", min_size=1, max_size=3)
values = st.text("ab0_.", min_size=1, max_size=3)
static = st.dictionaries(names, st.lists(values, min_size=1, max_size=3, unique=True), min_size=1, max_size=3)
providers = st.one_of(
    static.map(VariantProvider.static),
    st.builds(VariantProvider, requires=st.just(("a-plugin >=1",)), plugin_api=st.sampled_from([None, "a.b:c"])),
)


@given(st.data())
def test_a_damaged_document_is_refused_or_read(data: st.DataObject) -> None:
    sound = bytearray(document().pack())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(sound) - 1))
        sound[place : place + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    with contextlib.suppress(VariantError):
        Document.parse(bytes(sound))


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"schema": "https://example.org/v9.json", "variants": None},
        "variants: missing; expected a table; $schema is https://example.org/v9.json, read as 850/0.2.0",
    ),
    ({"schema": None}, '"$schema": missing; expected a string'),
    ({"priorities": None}, "default-priorities: missing; expected a table"),
    ({"priorities": {}}, "default-priorities.namespace: missing; expected an array"),
    (
        {"priorities": {"namespace": ["blas"], "feature": {}}},
        "default-priorities.feature: no such key; known here: namespace",
    ),
    (
        {"priorities": {"namespace": []}},
        "default-priorities.namespace is empty; expected every namespace in use (PEP 825)",
    ),
    (
        {"priorities": {"namespace": ["blas", "blas"]}},
        "default-priorities.namespace lists 'blas' twice (PEP 825, default priorities)",
    ),
    (
        {"priorities": {"namespace": ["blas", "x86_64"]}},
        "providers of blas; expected those of default-priorities: blas, x86_64 (PEP 850)",
    ),
    (
        {"priorities": {"namespace": ["a-b"]}},
        "namespace 'a-b' may only hold a-z, 0-9 and _ (PEP 825, variant properties)",
    ),
    ({"providers": None}, "no provider of blas; give static-properties or requires (PEP 850)"),
    (
        {"providers": None, "priorities": {"namespace": ["blas", "n"]}},
        "no provider of blas, n; give static-properties or requires (PEP 850)",
    ),
    ({"more": 1}, "more: no such key; known here: $schema, default-priorities, providers, variants"),
    ({"variants": None}, "variants: missing; expected a table"),
    ({"variants": []}, "variants: expected a table, got []"),
    (
        {"variants": {"a b": {"blas": {"library": ["mkl"]}}}},
        "variants.\"a b\": variant label 'a b' may only hold a-z, 0-9, _ and . (PEP 825, variant label)",
    ),
    (
        {"variants": {"null": {"blas": {"library": ["mkl"]}}}},
        (
            "variants.null: variant label 'null' stands for no properties, got blas :: library :: mkl "
            "(PEP 825, variant label)"
        ),
    ),
    (
        {"variants": {"x": {}}},
        "variants.x: variant 'x' has no properties; only the label 'null' may (PEP 825, variant label)",
    ),
    ({"variants": {"x": {"blas": []}}}, "variants.x.blas: expected a table, got []"),
    (
        {"variants": {"x": {"b-las": {"library": ["mkl"]}}}},
        "variants.x: namespace 'b-las' may only hold a-z, 0-9 and _ (PEP 825, variant properties)",
    ),
    (
        {"variants": {"x": {"blas": {"Library": ["mkl"]}}}},
        "variants.x: feature 'Library' may only hold a-z, 0-9 and _ (PEP 825, variant properties)",
    ),
    (
        {"variants": {"x": {"blas": {"library": []}}}},
        "variants.x: blas :: library has no values; expected at least one (PEP 825)",
    ),
    ({"variants": {"x": {"blas": {"library": [1]}}}}, "variants.x.blas.library[0]: expected a string, got 1"),
    (
        {"variants": {"x": {"blas": {"library": ["a", "a"]}}}},
        "variants.x: blas :: library has a value twice: a, a (PEP 825)",
    ),
    (
        {"variants": {"x": {"blas": {"library": ["A"]}}}},
        "variants.x: value 'A' may only hold a-z, 0-9, _ and . (PEP 825, variant properties)",
    ),
    (
        {"variants": {"x": {"mpi": {"abi": ["1"]}}}},
        "variant 'x': mpi :: abi :: 1: namespace missing from default-priorities, which lists blas (PEP 825)",
    ),
    (
        {
            "priorities": {"namespace": ["blas", "n"]},
            "providers": dict.fromkeys(("blas", "n"), BLAS.data()),
            "variants": {"x": {"mpi": {"abi": ["1"]}}},
        },
        "variant 'x': mpi :: abi :: 1: namespace missing from default-priorities, which lists blas, n (PEP 825)",
    ),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=[message[:60] for _, message in REFUSED])
def test_a_document_that_breaks_a_rule_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(VariantError) as refusal:
        Document.parse(jsonified(**changes))
    assert str(refusal.value) == message


PROVIDERS: list[tuple[dict[str, Any], str]] = [
    ({}, "has none of requires, static-properties, builtin; expected one (PEP 850)"),
    (
        {"requires": ["a"], "static-properties": {"library": ["mkl"]}},
        "has requires and static-properties of requires, static-properties, builtin; expected one (PEP 850)",
    ),
    ({"requires": ["a b"]}, "requires: 'a b' is not a requirement: "),
    ({"requires": ["a", "a"]}, "requires lists 'a' twice (PEP 850)"),
    (
        {"requires": ["a"], "plugin-api": "a-b"},
        "plugin-api 'a-b' is not an object reference; expected module[.sub][:object] (PEP 850)",
    ),
    (
        {"static-properties": {"library": ["mkl"]}, "plugin-api": "a"},
        "plugin-api with static-properties; expected it with requires only (PEP 850)",
    ),
    ({"static-properties": {"library": []}}, "feature 'library' has no values; expected at least one (PEP 850)"),
    ({"static-properties": {"library": ["mkl", "mkl"]}}, "feature 'library' lists 'mkl' twice (PEP 850)"),
    ({"static-properties": {"Library": ["mkl"]}}, "feature 'Library' may only hold a-z, 0-9 and _ "),
    ({"static-properties": {"library": ["MKL"]}}, "value 'MKL' may only hold a-z, 0-9, _ and . "),
    (
        {"static-properties": {"library": ["mkl"], "threads": ["on"]}},
        "no feature-order for 2 static features; expected one (PEP 850)",
    ),
    (
        {"static-properties": {"library": ["mkl"], "threads": ["on"]}, "feature-order": ["library"]},
        "feature-order lists library; expected every static feature once: library, threads (PEP 850)",
    ),
    (
        {"static-properties": {"library": ["mkl"], "threads": ["on"]}, "feature-order": ["library", "library"]},
        "feature-order lists library, library; expected every static feature once: library, threads (PEP 850)",
    ),
    (
        {"requires": ["a"], "feature-order": ["library"]},
        "feature-order without static-properties; expected it with these only (PEP 850)",
    ),
]


@pytest.mark.parametrize(("keys", "message"), PROVIDERS, ids=[message[:60] for _, message in PROVIDERS])
def test_a_provider_that_breaks_a_rule_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(VariantError) as refusal:
        Document.parse(jsonified(providers={"blas": keys}))
    assert str(refusal.value).startswith(f"providers.blas: {message}")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"requires": []}, "providers.blas.requires: no requirement; expected at least one (PEP 850)"),
        ({"static-properties": {}}, "providers.blas.static-properties: no feature; expected at least one (PEP 850)"),
        (
            {"build-requires": ["a"]},
            "providers.blas.build-requires: needs the plugin to run; write its values as static-properties",
        ),
        (
            {"requires": ["a"], "enable-if": "true"},
            (
                "providers.blas.enable-if: no such key; "
                "known here: builtin, feature-order, optional, plugin-api, requires, static-properties"
            ),
        ),
        ({"requires": ["a"], "optional": 1}, "providers.blas.optional: expected true or false, got 1"),
    ],
)
def test_a_provider_of_another_shape_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(VariantError) as refusal:
        Document.parse(jsonified(providers={"blas": keys}))
    assert str(refusal.value) == message


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not JSON: Expecting value at line 1, column 1"),
        (b"[]", "expected a JSON object, got list"),
        (b"\xff{}", "not UTF-8 at byte 0x0"),
        (b'{"a": 1, "a": 2}', "key 'a' stands twice in one object"),
        (b"[" * 100_000, "JSON nested too deeply, of far too many values, or with a number too long"),
        (b'{"a": ' + b"1" * 5000 + b"}", "JSON nested too deeply, of far too many values, or with a number too long"),
        (b" " * (2**21 + 1), "2097153 bytes of JSON; expected 2097152 at most"),
    ],
)
def test_what_is_no_json_object_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(VariantError) as refusal:
        Document.parse(data)
    assert str(refusal.value) == message


def test_a_key_that_stands_twice_among_many_is_found_at_once() -> None:
    keys = ",".join(f'"{number}": 1' for number in (*range(50_000), 49_999))
    begun = time.process_time()
    with pytest.raises(VariantError) as refusal:
        Document.parse(f"{{{keys}}}".encode())
    assert str(refusal.value) == "key '49999' stands twice in one object"
    assert time.process_time() - begun < 2


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (
            variant("x", "abi_dependency :: torch :: 02.9"),
            "abi_dependency :: torch :: 02.9: '02.9' is not a release prefix of one to three numbers, as in 2.8",
        ),
        (
            variant("x", "abi_dependency :: torch :: 2.9.1.0"),
            "abi_dependency :: torch :: 2.9.1.0: '2.9.1.0' is not a release prefix of one to three numbers, as in 2.8",
        ),
        (
            variant("x", "abi_dependency :: torch__x :: 2.9"),
            "abi_dependency :: torch__x :: 2.9: feature 'torch__x' is not a normalised name such as my_runtime",
        ),
        (variant("x", "own :: a :: b"), "own :: a :: b: no built-in provider 'other'; expected abi_dependency"),
        (
            variant("x", V3, "x86_64 :: level :: v4"),
            "x86_64 :: level :: v3 | v4: 2 values; expected one (PEP 850, multi_value)",
        ),
        (
            variant("x", "blas :: library :: atlas"),
            "blas :: library :: atlas: 'atlas' is not in static-properties, which list openblas, mkl (PEP 850)",
        ),
        (
            variant("x", "blas :: threads :: on"),
            "blas :: threads :: on: 'on' is not in static-properties, which list no such feature (PEP 850)",
        ),
    ],
)
def test_a_wheel_is_not_given_values_that_its_provider_forbids(found: Variant, message: str) -> None:
    with pytest.raises(VariantError) as refusal:
        Document.of(found, metadata("x86_64", "blas", "abi_dependency", "own", blas=BLAS, own=OTHER))
    assert str(refusal.value) == message


def test_a_document_without_variants_describes_no_wheel() -> None:
    with pytest.raises(VariantError, match=r"^describes none; expected only 'v3', as in the file name \(PEP 825\)$"):
        Document.parse(jsonified(variants={})).only("v3")


A = document(variant("a", "n :: f :: 1"), metadata=metadata("n", n=VariantProvider.static({"f": ["1", "2"]})))
WIDER = {"n": VariantProvider.static({"f": ["1", "2"]}), "m": VariantProvider.static({"g": ["1"]})}
B = document(variant("b", "m :: g :: 1"), metadata=metadata("n", "m", **WIDER))


CONTRADICTIONS = [
    (
        document(variant("a", "n :: f :: 1", "m :: g :: 1"), metadata=B.metadata),
        (
            "one and two: the label 'a' stands for different properties: "
            "n :: f :: 1 and m :: g :: 1, n :: f :: 1 (PEP 825, variant label)"
        ),
    ),
    (
        document(variant("a", "n :: f :: 2"), metadata=A.metadata),
        (
            "one and two: the label 'a' stands for different properties: "
            "n :: f :: 1 and n :: f :: 2 (PEP 825, variant label)"
        ),
    ),
    (
        document(variant("z", "n :: f :: 1"), metadata=A.metadata),
        "one and two: the labels 'a' and 'z' stand for the same properties: n :: f :: 1 (PEP 825, variant label)",
    ),
    (
        document(variant("z", "m :: g :: 1"), metadata=metadata("m", "n", **WIDER)),
        (
            "one and two: different namespace priorities: n and m, n; "
            "expected one to begin with the other (PEP 825, consistency)"
        ),
    ),
    (
        document(variant("z", "n :: f :: 2"), metadata=metadata("n", n=VariantProvider.static({"f": ["2", "1"]}))),
        "two and one: different providers of 'n'; expected the same (PEP 850, provider information)",
    ),
    (
        document(variant("z", "n :: f :: 2"), metadata=VariantMetadata(("n",), ()), schema=Schema.PEP_825),
        f"two and one: different schemas: {Schema.PEP_825.value} and {Schema.PEP_850.value}",
    ),
]


@pytest.mark.parametrize(("other", "message"), CONTRADICTIONS)
def test_documents_that_contradict_each_other_are_refused_in_any_order(other: Document, message: str) -> None:
    pairs = [("one", A), ("two", other)]
    for order in (pairs, pairs[::-1]):
        with pytest.raises(VariantError) as refusal:
            combine(order)
        assert str(refusal.value) == message


def test_nothing_is_not_combined() -> None:
    with pytest.raises(VariantError, match="no variant to combine"):
        combine([])
