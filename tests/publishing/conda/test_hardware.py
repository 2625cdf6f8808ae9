"""Variant properties as conditions of conda, and the order of variants as build numbers."""

import pytest
from msgspec.structs import replace

from tests.factories.rattler import rattler_answer
from tests.factories.variants import document, machine, metadata, variant
from vbuild.errors import RepackageError
from vbuild.hardware.machine import Machine
from vbuild.publishing.conda.plan import choices, condition, conditions
from vbuild.variants.document import Document
from vbuild.variants.model import Property, Variant
from vbuild.variants.select import ranked


def said(*texts: str) -> tuple[str, ...]:
    return conditions([[Property.parse(text)] for text in texts])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x86_64 :: level :: v1", ()),
        ("x86_64 :: level :: v3", ("_x86_64-microarch-level >=3",)),
        ("nvidia :: cuda_version_lower_bound :: 12.6", ("__cuda >=12.6",)),
        ("nvidia :: cuda_version_lower_bound :: 13", ("__cuda >=13.0",)),
        ("nvidia :: cuda_version_upper_bound :: 13.1", ("__cuda <13.1",)),
        ("nvidia :: sm_arch :: 90_real", ("__cuda_arch >=9.0,<10",)),
        ("nvidia :: sm_arch :: 86_real", ("__cuda_arch >=8.6,<9,!=8.7",)),
        ("nvidia :: sm_arch :: 87_real", ("__cuda_arch ==8.7",)),
        ("nvidia :: sm_arch :: 120_real", ("__cuda_arch >=12.0,<13",)),
        ("nvidia :: sm_arch :: 90_virtual", ("__cuda_arch >=9.0",)),
    ],
)
def test_a_property_is_asked_for_by_a_virtual_package(text: str, expected: tuple[str, ...]) -> None:
    assert said(text) == expected


def test_what_alternatives_share_is_asked_for_once() -> None:
    bound = "nvidia :: cuda_version_lower_bound :: 12.0"
    both = [[Property.parse(text) for text in (bound, f"nvidia :: sm_arch :: {arch}_real")] for arch in (80, 90)]
    assert conditions(both) == ("__cuda >=12.0", "__cuda_arch >=8.0,<9,!=8.7|>=9.0,<10")


@pytest.mark.parametrize(
    ("values", "asked"),
    [
        ("80_real 86_real 89_real", ">=8.0,<9,!=8.7"),
        ("87_real 86_real", "==8.7|>=8.6,<9,!=8.7"),
        ("87_real 80_virtual", ">=8.0"),
        ("90_virtual 80_virtual 100_real", ">=8.0"),
        ("75_real 100_real 90_real", ">=7.5,<8|>=10.0,<11,!=10.1|>=9.0,<10"),
    ],
)
def test_what_another_one_has_is_not_asked_for_again(values: str, asked: str) -> None:
    alternatives = [[Property.parse(f"nvidia :: sm_arch :: {value}")] for value in values.split()]
    assert conditions(alternatives) == (f"__cuda_arch {asked}",)
    gpus = ["7.5", "8.0", "8.6", "8.7", "8.9", "9.0", "10.0", "10.1", "10.3", "12.0", "13.0"]
    each = [conditions([one])[0].removeprefix("__cuda_arch ") for one in alternatives]
    together, *apart = rattler_answer("matches", specs=[asked, *each], versions=gpus)
    assert together == [any(one) for one in zip(*apart, strict=True)]


LETTERS = "no conda equivalent: __cuda_arch is a number without letters; expected {0}_real or {0}_virtual: {1}"
LEAVE = "leave the wheels that say so out"
KNOWN = "x86_64 :: level, nvidia :: cuda_version_lower_bound, cuda_version_upper_bound or sm_arch"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nvidia :: sm_arch :: 90a_real", LETTERS.format(90, LEAVE)),
        ("nvidia :: sm_arch :: 100f_virtual", LETTERS.format(100, LEAVE)),
        ("nvidia :: sm_arch :: hopper", "no conda equivalent; expected a value as in 90_real or 90_virtual"),
        (
            "nvidia :: cuda_version_lower_bound :: twelve",
            "no version 'twelve'; expected two numbers with a dot, as in 12.8",
        ),
        ("aarch64 :: version :: 8.2a", f"no conda equivalent; expected {KNOWN}: {LEAVE}"),
        ("x86_64 :: level :: v5", f"no conda equivalent; expected {KNOWN}: {LEAVE}"),
        ("amd :: gfx_arch :: gfx942", f"no conda equivalent; expected {KNOWN}: {LEAVE}"),
    ],
)
def test_a_property_without_equivalent_is_refused_by_name(text: str, why: str) -> None:
    with pytest.raises(RepackageError) as refusal:
        condition(Property.parse(text))
    assert str(refusal.value) == f"{text}: {why}"


def numbers(*variants: Variant, namespaces: tuple[str, ...] = ("nvidia", "x86_64")) -> list[tuple[str, int]]:
    found = choices(document(*variants, metadata=metadata(*namespaces)))
    return [(choice.label, choice.number) for choice in found]


LEVELS = tuple(variant(f"v{level}", f"x86_64 :: level :: v{level}") for level in range(1, 5))


def test_values_apart_in_the_order_become_packages_apart() -> None:
    arch = "nvidia :: sm_arch :: "
    wide = variant("wide", f"{arch}80_real", f"{arch}90_real")
    narrow = variant("narrow", f"{arch}86_real")
    found = choices(document(wide, narrow, metadata=metadata("nvidia")))
    assert [(choice.label, [found[0].value for found in choice.alternatives], choice.number) for choice in found] == [
        ("wide", ["80_real"], 200),
        ("narrow", ["86_real"], 300),
        ("wide", ["90_real"], 400),
    ]
    [alone] = choices(document(wide, metadata=metadata("nvidia")))
    assert conditions(alone.alternatives) == ("__cuda_arch >=8.0,<9,!=8.7|>=9.0,<10",)


def test_levels_as_alternatives_are_packages_apart_where_one_needs_nothing() -> None:
    either = variant("either", "x86_64 :: level :: v1", "x86_64 :: level :: v3")
    found = choices(document(either, metadata=metadata("x86_64")))
    assert [conditions(choice.alternatives) for choice in found] == [(), ("_x86_64-microarch-level >=3",)]


@pytest.mark.parametrize("cpu", ["x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize(("driver", "gpus"), [(None, ()), ("12.4", ("8.9",)), ("12.8", ("9.0",)), ("13.0", ("7.5",))])
@pytest.mark.parametrize("namespaces", [("nvidia", "x86_64"), ("x86_64", "nvidia")])
def test_the_highest_number_is_what_installers_take(
    cpu: str, driver: str | None, gpus: tuple[str, ...], namespaces: tuple[str, ...]
) -> None:
    arch, bound = "nvidia :: sm_arch :: ", "nvidia :: cuda_version_lower_bound :: "
    found = document(
        *LEVELS[1:],
        *(variant(f"cu{minor}", f"{bound}12.{minor}") for minor in (2, 8)),
        variant("gpu", f"{bound}12.2", f"{arch}80_real", f"{arch}90_real"),
        variant("ada", f"{bound}12.2", f"{arch}89_real"),
        variant("both", f"{bound}12.2", "x86_64 :: level :: v3"),
        metadata=metadata(*namespaces),
    )
    there = machine(cpu, driver=driver, gpus=gpus)
    expected = [item.variant.label for item in ranked(found, there) if item.is_supported]
    fitting = [
        choice.label
        for choice in reversed(choices(found))
        if any(_has(there, found, properties) for properties in choice.alternatives)
    ]
    assert list(dict.fromkeys(fitting)) == expected


def _has(there: Machine, found: Document, properties: tuple[Property, ...]) -> bool:
    """Whether the machine *there* has all of *properties*."""
    [item] = ranked(replace(found, variants=(Variant("one", properties),)), there)
    return item.is_supported
