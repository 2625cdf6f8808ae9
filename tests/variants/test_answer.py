import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vbuild.errors import VariantError
from vbuild.hardware.machine import Machine
from vbuild.variants.plugins import MOST_BYTES, parsed

NAMES = st.text("abcxyz019_", min_size=1, max_size=128)
VALUES = st.lists(st.text("abcxyz019_.", min_size=1, max_size=128), min_size=1, max_size=5, unique=True)


def answer(*features: object, **keys: object) -> bytes:
    return json.dumps({"namespace": None, "features": list(features), **keys}).encode()


def feature(name: object = "arch", values: object = ("k1",), **keys: object) -> dict[str, Any]:
    return {"name": name, "values": values, "multi_value": False, **keys}


@given(st.lists(st.tuples(NAMES, VALUES.map(tuple)), max_size=5, unique_by=lambda pair: pair[0]))
def test_features_and_values_keep_their_order_and_outlast_a_machine_file(found: list[tuple[str, Any]]) -> None:
    features = parsed(answer(*(feature(name, values) for name, values in found)), "toaster")
    assert features == tuple(found)
    described = Machine("3.12.0", ("py3-none-any",), supported=(("toaster", features),))
    assert dict(Machine.parse(str(described)).features("toaster") or ()) == dict(found)


@given(
    st.binary(max_size=60)
    | st.recursive(st.none() | st.text() | st.integers(), st.lists).map(json.dumps).map(str.encode)
)
def test_whatever_comes_is_features_or_refused(data: bytes) -> None:
    with pytest.raises(VariantError):
        parsed(data, "toaster")


@given(st.dictionaries(st.sampled_from(["name", "values", "multi_value", "namespace"]), st.none() | st.text() | VALUES))
def test_a_feature_of_other_types_is_refused_or_read(keys: dict[str, Any]) -> None:
    try:
        found = parsed(answer(keys), "toaster")
    except VariantError:
        return
    assert found == ((keys["name"], tuple(keys["values"])),)


@pytest.mark.parametrize("namespace", [None, "toaster"])
def test_a_plugin_may_say_whose_it_is(namespace: str | None) -> None:
    assert parsed(answer(feature(), namespace=namespace), "toaster") == (("arch", ("k1",)),)


def test_nothing_that_is_supported_is_an_answer() -> None:
    assert parsed(answer(), "toaster") == ()


REFUSED: list[tuple[bytes, str]] = [
    (b"", "its answer: not JSON: Expecting value at line 1, column 1"),
    (b"\xff\xfe", "its answer: not UTF-8 at byte 0x0"),
    (answer() + answer(), "its answer: not JSON: Extra data at line 1, column 36"),
    (b"[" * 100_000, "its answer: JSON nested too deeply, of far too many values, or with a number too long"),
    (b'{"namespace": null, "features": [], "features": []}', "its answer: key 'features' stands twice in one object"),
    (b"[]", "its answer: expected a JSON object, got list"),
    (b'{"namespace": null}', "its answer: features: missing; expected an array"),
    (b'{"features": null}', "its answer: features: missing; expected an array"),
    (b'{"features": {}}', "its answer: features: expected an array, got {}"),
    (answer("arch"), "its answer: features[0]: expected a table, got 'arch'"),
    (answer(extra=1), "its answer: extra: no such key; known here: features, namespace"),
    (
        answer(namespace="x86_64"),
        "its answer: namespace: found 'x86_64'; expected 'toaster', which it was asked for",
    ),
    (answer(namespace=1), "its answer: namespace: expected a string, got 1"),
    (answer(feature(name=None)), "its answer: features[0].name: missing; expected a string"),
    (answer(feature(name=1)), "its answer: features[0].name: expected a string, got 1"),
    (
        answer(feature("Arch")),
        "its answer: feature 'Arch' may only hold a-z, 0-9 and _ (PEP 825, variant properties)",
    ),
    (
        answer(feature("arch\n")),
        "its answer: feature 'arch\\n' may only hold a-z, 0-9 and _ (PEP 825, variant properties)",
    ),
    (
        answer(feature("a" * 129)),
        f"its answer: features[0].name: '{'a' * 128}'... of 129 characters; expected 128 at most",
    ),
    (
        answer(feature(), feature()),
        "its answer: features[1].name: 'arch' a second time; expected each feature once",
    ),
    (answer(feature(values="k1")), "its answer: features[0].values: expected an array, got 'k1': write ['k1']"),
    (answer(feature(values=[])), "its answer: features[0].values: 0 of them; expected 1 to 1024, best first"),
    (
        answer(feature(values=[f"v{number}" for number in range(1025)])),
        "its answer: features[0].values: 1025 of them; expected 1 to 1024, best first",
    ),
    (answer(feature(values=["k1", 2])), "its answer: features[0].values[1]: expected a string, got 2"),
    (
        answer(feature(values=["k 1"])),
        "its answer: value 'k 1' may only hold a-z, 0-9, _ and . (PEP 825, variant properties)",
    ),
    (
        answer(feature(values=["٣"])),
        "its answer: value '٣' may only hold a-z, 0-9, _ and . (PEP 825, variant properties)",
    ),
    (
        answer(feature(values=["k1", "k1"])),
        "its answer: features[0].values: 'k1' twice; expected each value once, best first",
    ),
    (answer(feature(multi_value=1)), "its answer: features[0].multi_value: expected true or false, got 1"),
    (
        answer(feature(namespace="toaster")),
        "its answer: features[0].namespace: no such key; known here: multi_value, name, values",
    ),
    (
        answer(*(feature(f"f{number}") for number in range(257))),
        "its answer: features: 257 of them; expected 256 at most",
    ),
]


@pytest.mark.parametrize(("data", "message"), REFUSED, ids=[message[12:60] for _, message in REFUSED])
def test_anything_else_is_refused(data: bytes, message: str) -> None:
    assert len(data) <= MOST_BYTES
    with pytest.raises(VariantError) as refusal:
        parsed(data, "toaster")
    assert str(refusal.value) == message
