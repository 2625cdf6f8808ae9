"""Variant properties as conditions of conda, and the order of variants as build numbers."""

import pytest

from tests.factories.variants import document, metadata, variant
from vbuild.errors import RepackageError
from vbuild.publishing.conda.plan import choices, condition, conditions
from vbuild.variants.model import Property


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
