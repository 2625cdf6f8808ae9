import pytest
from hypothesis import given
from hypothesis import strategies as st
from variantlib.models.variant import VariantDescription, VariantProperty

from tests.factories.variants import variant
from vbuild.errors import VariantError
from vbuild.variants.model import NULL, Feature, Property, Variant, hash_label

names = st.text("abz09_", min_size=1, max_size=6)
values = st.text("abz09_.", min_size=1, max_size=6)
properties = st.builds(Property, names, names, values)


@given(properties)
def test_a_property_reads_what_it_writes(prop: Property) -> None:
    assert Property.parse(str(prop)) == prop


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x86_64 :: level", "not a variant property: 'x86_64 :: level'; expected namespace :: feature :: value"),
        ("a :: b :: c :: d", "not a variant property: 'a :: b :: c :: d'; expected namespace :: feature :: value"),
        ("", "not a variant property: ''; expected namespace :: feature :: value"),
        ("X :: b :: c", "namespace 'X' may only hold a-z, 0-9 and _ (PEP 825, variant properties)"),
        ("a :: b.c :: d", "feature 'b.c' may only hold a-z, 0-9 and _ (PEP 825, variant properties)"),
        ("a :: b :: v-3", "value 'v-3' may only hold a-z, 0-9, _ and . (PEP 825, variant properties)"),
        ("a ::  :: c", "feature '' may only hold a-z, 0-9 and _ (PEP 825, variant properties)"),
        ("a :: b :: ²", "value '²' may only hold a-z, 0-9, _ and . (PEP 825, variant properties)"),
    ],
)
def test_a_property_that_pep_825_forbids_is_refused(text: str, message: str) -> None:
    with pytest.raises(VariantError) as refusal:
        Property.parse(text)
    assert str(refusal.value) == message


def test_the_null_variant_has_no_properties() -> None:
    assert variant("null") == NULL
    assert not NULL.properties
    assert str(NULL) == "null (no properties)"


@given(st.lists(properties, min_size=1))
def test_a_variant_is_a_set_of_properties(listed: list[Property]) -> None:
    assert Variant.of("x", listed) == Variant.of("x", reversed(listed * 2))


def test_the_values_of_one_feature_are_gathered() -> None:
    found = variant("x", "gpu :: arch :: b", "gpu :: arch :: a", "cpu :: level :: 1")
    assert found.features == (Feature("cpu", "level", ("1",)), Feature("gpu", "arch", ("a", "b")))
    assert str(found) == "x (cpu :: level :: 1, gpu :: arch :: a | b)"
    assert found.namespaces == {"cpu", "gpu"}


@given(st.sets(properties, min_size=1))
def test_the_hash_label_is_the_one_that_variantlib_makes(listed: set[Property]) -> None:
    label = VariantDescription([VariantProperty.from_str(str(prop)) for prop in listed]).hexdigest
    assert hash_label(listed) == label
    assert Variant.hashed(listed).label == label
