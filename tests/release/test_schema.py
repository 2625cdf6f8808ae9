"""The schema of report.json: complete, described, and read by vbuild as jsonschema reads it."""

import copy
import json
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.factories.reports import choice, data, entry, failure, finding, override
from vbuild.errors import RecipeError
from vbuild.recipe.model import TrialResult
from vbuild.release.model import Product
from vbuild.release.report import FORMAT, Report, check, page, schema
from vbuild.splitting.decisions import DecisionKind
from vbuild.verification.model import Severity, VerifyRule

WORDS = {
    "$schema",
    "$defs",
    "$ref",
    "title",
    "description",
    "type",
    "const",
    "enum",
    "pattern",
    "minimum",
    "maximum",
    "required",
    "properties",
    "additionalProperties",
    "items",
    "anyOf",
}


def whole() -> dict[str, Any]:
    """A report with something under every key that may have nothing."""
    plain = entry(overrides=[override("-march=native")], config_settings={"a": "b", "c": ["d"]})
    extra = entry("v4_bf16", cpu="x86-64-v4+avx512_bf16+avx512_vnni")
    fat = entry("v3_sm80", cpu="x86-64-v3", gpus="sm_80,sm_86+PTX", architectures=["kernels.cu: 70 -> 80"])
    fat["toolkit"]["components"] = [{"project": "p", "version": "1", "file": "p.whl", "sha256": "0" * 64}]
    fat["not_reproducible"] = [{"file": "demo.pc", "why": "names a folder of its build: ./demo"}]
    fat["verdict"] |= {"findings": [finding("warning", "odd", rule="gpu-ptx", member="demo.so")], "claimed_gpus": ["a"]}
    kinds = {"machine": 1, "jit": 0, "specific": 0, "nothing": 0}
    gpu = {"gpu": "sm_80", "runs": "natively", **kinds, "bytes": {**kinds}, "driver": "12.0"}
    code = {"machine": ["sm_80"], "ptx": [], "gpus": [gpu], "notes": ["odd"], "beside": ["sm_90"]}
    fat["verdict"]["gpus"] = [{"member": "demo.so", "fatbins": 1, **code}]
    where = {"function": "f", "address": "0x10", "way": ["g"], "doubt": ""}
    above = {**where, "features": ["avx"], "instructions": ["vzeroupper"]}
    plain["verdict"]["libraries"][0]["violations"] = [above]
    return data(
        plain,
        fat,
        extra,
        failures=[failure("v4", "no compiler", log="logs/v4.log")],
        variants=[{"index": "demo-1.0-variants.json", "labels": ["v3_sm80"], "wheels": 1, "changed": True}],
        machines=[choice("any", plain), choice("other", None)],
        notes=["no cache"],
        split=split(),
    )


def split() -> dict[str, Any]:
    library = {
        "name": "libblas.so.3",
        "path": "demo.libs/libblas.so.3",
        "bytes": 3,
        "packed_bytes": 2,
        "wheels": ["demo-1.0.whl"],
        "kind": "share",
        "target": "demo-libs",
        "evidence": None,
        "reason": "",
    }
    edited = {"path": "demo/_c.so", "rpath": ["$ORIGIN"], "renamed": {"a": "b"}, "removed": []}
    thin = {
        "wheel": "demo-1.0.whl",
        "path": None,
        "before": {"packed_bytes": 2, "bytes": 3},
        "after": {"packed_bytes": None, "bytes": 3},
        "edited": [edited],
        "requires": ["demo-libs==1"],
        "warnings": [],
        "untouched": False,
    }
    beside = {
        "wheel": "demo_libs-1-py3-none-any.whl",
        "path": None,
        "packed_bytes": 10,
        "bytes": 20,
        "files": ["libblas.so.3"],
        "for": ["demo-1.0.whl"],
    }
    return {
        "before": {"packed_bytes": 2},
        "after": {"packed_bytes": None},
        "libraries": [library],
        "wheels": [thin],
        "beside": [beside],
        "absent": [],
        "transferred_bytes": 0,
    }


def described(part: Any) -> Iterator[dict[str, Any]]:
    """Every schema inside *part*, one."""
    yield part
    for key in ("properties", "$defs"):
        for below in part.get(key, {}).values():
            yield from described(below)
    for key in ("items", "additionalProperties"):
        if isinstance(part.get(key), dict):
            yield from described(part[key])
    for below in part.get("anyOf", ()):
        yield from described(below)


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(schema())
    assert schema()["properties"]["format"]["const"] == FORMAT


def test_the_schema_uses_no_word_that_vbuild_does_not_read() -> None:
    assert {word for part in described(schema()) for word in part} <= WORDS


def test_every_object_lists_all_of_its_keys_and_every_key_is_described() -> None:
    for part in described(schema()):
        if "properties" not in part:
            continue
        assert part["additionalProperties"] is False
        assert part["required"] == list(part["properties"])
        for key, below in part["properties"].items():
            target = schema()["$defs"][below["$ref"].rpartition("/")[2]] if "$ref" in below else below
            assert target["description"].endswith("."), key


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (("finding", "severity"), Severity),
        (("finding", "rule"), VerifyRule),
        (("wheel", "test"), TrialResult),
    ],
)
def test_enumerations_are_those_of_the_code(place: tuple[str, str], words: type) -> None:
    name, key = place
    assert schema()["$defs"][name]["properties"][key]["enum"] == list(map(str, words))  # type: ignore[call-overload]


def test_the_fates_of_libraries_are_those_of_the_code() -> None:
    libraries = schema()["$defs"]["split"]["properties"]["libraries"]["items"]
    assert libraries["properties"]["kind"]["enum"] == list(map(str, DecisionKind))


def test_a_whole_report_is_as_the_schema_says_to_both() -> None:
    Draft202012Validator(schema()).validate(whole())
    check(whole())
    report = Report.of_data(whole())
    assert [wheel.title for wheel in report.wheels] == ["plain", "v3_sm80", "v4_bf16"]


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in *value*: the object or array, and the key in it."""
    for key, below in value.items() if isinstance(value, dict) else enumerate(value):
        yield value, key
        if isinstance(below, dict | list):
            yield from places(below)


STRANGE = [None, True, -1, 7, 0.5, 10**400, 1e300, "", "x", [], {}, [1], {"x": 1}, "sm_80", "0x1f"]


def refusal(value: Any) -> str | None:
    """What vbuild has against *value*."""
    try:
        check(value)
    except RecipeError as error:
        return str(error)
    return None


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(8))
def test_vbuild_and_jsonschema_agree_on_what_is_no_report(seed: int) -> None:
    chance, judge = random.Random(seed), Draft202012Validator(schema())
    for _ in range(150):
        changed = copy.deepcopy(whole())
        container, key = chance.choice([*places(changed)])
        match chance.randrange(3):
            case 0:
                container[key] = chance.choice(STRANGE)
            case 1:
                del container[key]
            case _ if isinstance(container, dict):
                container["strange"] = chance.choice(STRANGE)
        assert judge.is_valid(changed) == (refusal(changed) is None), json.dumps(changed)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(8))
def test_whatever_a_report_says_nothing_but_a_report_error_escapes(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(150):
        changed = whole()
        for _ in range(chance.randrange(1, 3)):
            container, key = chance.choice([*places(changed)])
            container[key] = chance.choice([*STRANGE, "a.whl", "demo-1.0-py3-none-any.whl", "sm_99", "x86-64-v3"])
            if isinstance(container, dict):
                container["strange"] = chance.choice(STRANGE)
        with suppress(RecipeError):
            page(Report.of_data(changed))


def test_keys_that_a_later_vbuild_adds_are_passed_over() -> None:
    later = whole()
    for container, _ in [*places(later)]:
        # these have keys of people's own
        if isinstance(container, dict) and not {*container} & {"CFLAGS", "a", "isa-above"}:
            container["later"] = {"a": 1}
    report = Report.of_data(later)
    assert [wheel.title for wheel in report.wheels] == ["plain", "v3_sm80", "v4_bf16"]
    for wheel, name in zip(report.wheels, ("plain.whl", "fat.whl", "extra.whl"), strict=True):
        assert Product.of_entry(wheel, Path(name)).label == wheel.label
    assert page(report) == page(Report.of_data(whole()))
