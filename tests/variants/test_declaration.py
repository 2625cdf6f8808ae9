import pytest

from tests.factories.variants import BLAS, V3, metadata, variant
from vbuild.errors import VariantError
from vbuild.variants.document import Declaration, Schema

BUILDING_DRAFT = """
[variant.default-priorities]
namespace = ["x86_64", "blas"]
[variant.providers.blas]
static-properties.library = ["openblas", "mkl"]
[variant.variants.v3_ob]
x86_64.level = ["v3"]
blas.library = ["openblas"]
"""
REBELLIONS = """
[variant]
default-priorities.namespace = ["rebellions"]
providers.rebellions.requires = ["rebellions-variant-provider >=0.1"]
"""


def test_the_table_of_the_building_draft_is_read_and_known_providers_are_filled_in() -> None:
    declared = Declaration.parse(BUILDING_DRAFT)
    assert declared.metadata == metadata("x86_64", "blas", blas=BLAS)
    assert declared.variant("v3_ob") == variant("v3_ob", V3, "blas :: library :: openblas")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "variant: missing; expected a table"),
        ("[variant]\n[other]\n", "variant.default-priorities: missing; expected a table"),
        (REBELLIONS + "[more]\n", "more: no such key; known here: variant"),
        (REBELLIONS + "more = 1\n", "variant.more: no such key; known here: default-priorities, providers"),
        (
            BUILDING_DRAFT.replace('"mkl"]\n', '"mkl"]\noptional = 1\n'),
            "variant.providers.blas.optional: expected true or false, got 1",
        ),
        (
            BUILDING_DRAFT.replace('["x86_64", "blas"]', '["blas"]'),
            "x86_64 :: level :: v3: namespace missing from default-priorities, which lists blas (PEP 825)",
        ),
        (
            BUILDING_DRAFT.replace('blas.library = ["openblas"]', 'blas.library = ["atlas"]'),
            "blas :: library :: atlas: 'atlas' is not in static-properties, which list openblas, mkl (PEP 850)",
        ),
        (
            BUILDING_DRAFT.replace('["x86_64", "blas"]', '["x86_64", "blas", "mpi"]'),
            "providers of x86_64, blas; expected those of default-priorities: x86_64, blas, mpi (PEP 850)",
        ),
    ],
)
def test_a_table_that_breaks_a_rule_is_refused(text: str, message: str) -> None:
    with pytest.raises(VariantError) as refusal:
        Declaration.parse(text)
    assert str(refusal.value) == message


@pytest.mark.parametrize(
    ("text", "declared"),
    [
        (BUILDING_DRAFT, "v3_ob"),
        (BUILDING_DRAFT + '[variant.variants.mkl]\nblas.library = ["mkl"]\n', "mkl, v3_ob"),
        (REBELLIONS, "none"),
    ],
)
def test_a_label_that_is_not_declared_is_refused_with_those_that_are(text: str, declared: str) -> None:
    with pytest.raises(VariantError) as refusal:
        Declaration.parse(text).variant("v4")
    assert str(refusal.value) == f"no variant 'v4' in the [variant.variants] table, which has {declared}"


def test_a_declaration_may_say_by_which_schema_it_is() -> None:
    for schema in Schema:
        assert Declaration.parse(f'{REBELLIONS}"$schema" = "{schema.value}"\n') == Declaration.parse(REBELLIONS)
    with pytest.raises(VariantError, match=r"^variant\.\"\$schema\": unknown variant schema 'v9'; expected https://"):
        Declaration.parse(f'{REBELLIONS}"$schema" = "v9"\n')
