import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories.variants import document, machine, metadata, variant
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.machine import Machine
from vbuild.variants.document import Schema
from vbuild.variants.model import NULL, Variant, VariantProvider
from vbuild.variants.providers import BUILT_IN, supported
from vbuild.variants.select import ranked

LEVELS = tuple(variant(f"l{level}", f"x86_64 :: level :: v{level}") for level in (1, 2, 3, 4))
REQUIRED = VariantProvider(requires=("rebellions-variant-provider",))


def labels(found: list[Variant], on: Machine, *namespaces: str, **given: VariantProvider) -> list[str]:
    """The labels of the supported variants, best first."""
    items = ranked(document(*found, metadata=metadata(*namespaces, **given)), on)
    return [item.variant.label for item in items if item.is_supported]


@given(st.permutations([NULL, *LEVELS]))
def test_the_order_written_means_nothing(found: list[Variant]) -> None:
    assert labels(found, machine("x86-64-v4"), "x86_64") == ["l4", "l3", "l2", "l1", "null"]


def test_wheels_for_single_features_are_taken_where_the_machine_lists_these() -> None:
    v4, bf16 = Cpu.parse("x86-64-v4"), Cpu.parse("x86-64-v4+avx512_bf16")
    vaes = Cpu.parse("x86-64-v3+vaes")
    found = [variant(cpu.label, *cpu.variant_properties) for cpu in (v4, bf16, vaes)]
    listed = machine(
        "x86-64-v4", supported={"x86_64": {"level": ("v4", "v3"), "avx512_bf16": ("on",), "vaes": ("on",)}}
    )
    assert labels(found, listed, "x86_64") == [bf16.label, v4.label, vaes.label]
    # installers answer for the level alone
    assert labels(found, machine("x86-64-v4"), "x86_64") == [v4.label]
    items = ranked(document(*found, metadata=metadata("x86_64")), machine("x86-64-v4"))
    reason = "installers do not ask for it: their provider answers for levels only"
    assert items[1].why == f"x86_64 :: avx512_bf16 :: on is not supported: {reason}"


@pytest.mark.parametrize(
    ("provider", "reason"),
    [
        (
            REQUIRED,
            "vbuild does not know what a machine has of x86_64, and does not run its provider, rebellions-",
        ),
        (
            VariantProvider(requires=("x86-64-variant-provider",), optional=True),
            "its provider is optional, so off unless asked for",
        ),
        (VariantProvider(requires=("x86-64-variant-provider",)), "the machine has v3, v2, v1"),
        (
            VariantProvider(requires=("x86-64-variant-provider >=1",)),
            "vbuild does not know what a machine has of x86_64, ",
        ),
        (VariantProvider.static({"version": ["1"]}), "the machine has no x86_64 :: level"),
    ],
)
def test_a_variant_that_is_out_says_why(provider: VariantProvider, reason: str) -> None:
    found = document(variant("v4", "x86_64 :: level :: v4"), metadata=metadata("x86_64", x86_64=provider))
    (item,) = ranked(found, machine())
    assert item.why.startswith(f"x86_64 :: level :: v4 is not supported: {reason}")


def test_a_feature_that_a_machines_own_list_lacks_is_named() -> None:
    found = document(variant("a", "gpu :: arch :: x"), metadata=metadata("gpu", gpu=REQUIRED))
    (item,) = ranked(found, machine(supported={"gpu": {}}))
    assert item.why == "gpu :: arch :: x is not supported: the machine has no gpu :: arch"


@pytest.mark.parametrize(
    ("text", "provider", "reason"),
    [
        ("nvidia :: sm_arch :: 90_real", BUILT_IN["nvidia"].provider, "the machine has no nvidia :: sm_arch"),
        (
            "gpu :: arch :: x",
            VariantProvider(requires=("a", "b")),
            (
                "vbuild does not know what a machine has of gpu, and does not run its provider, a, b; if the machine "
                "has it, add [supported.gpu] with arch = ['x'] to the file of --machine"
            ),
        ),
        ("gpu :: arch :: x", None, "no provider says what a machine supports"),
    ],
)
def test_where_a_machine_has_nothing_of_a_namespace_the_reason_is_its_provider(
    text: str, provider: VariantProvider | None, reason: str
) -> None:
    namespace = text.partition(" ")[0]
    known = metadata(namespace, **({namespace: provider} if provider else {}))
    schema = Schema.PEP_850 if provider else Schema.PEP_825
    (item,) = ranked(document(variant("a", text), metadata=known, schema=schema), machine())
    assert item.why == f"{text} is not supported: {reason}"


def test_abi_dependencies_are_left_to_installers_that_match_them() -> None:
    abi = VariantProvider(builtin="abi_dependency")
    found = document(variant("t", "abi :: torch :: 2.9"), metadata=metadata("abi", abi=abi))
    (item,) = ranked(found, machine())
    assert item.why.endswith("neither the environment, nor --with, nor [installed] in the machine's file has torch")
    (item,) = ranked(found, machine(supported={"abi": {"torch": ("2.9.1", "2.9", "2")}}))
    assert item.why == "abi :: torch :: 2.9 is number 2 of 3 that the machine supports"


def test_a_cuda_driver_and_gpu_support_what_nvidias_provider_says() -> None:
    features = dict(supported("nvidia", BUILT_IN["nvidia"].provider, machine(driver="12.8", gpus=("8.0", "8.9"))))
    lower, upper = features["cuda_version_lower_bound"], features["cuda_version_upper_bound"]
    assert (lower[:2], lower[8:11], lower[-2:]) == (("12.8", "12.7"), ("12.0", "12", "11.20"), ("11.0", "11"))
    assert (upper[0], upper[-1], len(upper)) == ("15.20", "12.9", 78)
    assert features["sm_arch"] == (*(f"8{minor}_real" for minor in range(9, -1, -1)), "80_virtual")
    assert not supported("nvidia", BUILT_IN["nvidia"].provider, machine(gpus=("9.0",)))
    assert "sm_arch" not in dict(supported("nvidia", BUILT_IN["nvidia"].provider, machine(driver="12.8")))


def test_a_machine_with_gpus_of_amd_supports_their_processors() -> None:
    described = Machine.described(machine().cpu or Cpu.parse("v3"), processors=("gfx942", "gfx90a"))
    assert supported("amd", BUILT_IN["amd"].provider, described) == (("gfx_arch", ("gfx942", "gfx90a")),)
    assert Machine.parse(str(described)) == described
    assert not supported("amd", BUILT_IN["amd"].provider, machine())


def test_an_arm_machine_supports_the_versions_that_its_own_includes() -> None:
    features = dict(supported("aarch64", BUILT_IN["aarch64"].provider, machine("armv9.0-a")))
    assert features["version"] == ("8.4a", "8.3a", "8.2a", "8.1a", "8a")
    assert dict(supported("aarch64", BUILT_IN["aarch64"].provider, machine("armv8.1-a")))["version"] == ("8.1a", "8a")
    newer = document(variant("a", "aarch64 :: version :: 8.5a"), metadata=metadata("aarch64"))
    (item,) = ranked(newer, machine("armv9-a"))
    assert "answers 8.4a at most" in item.why


def test_a_driver_with_more_versions_than_uv_counts_has_no_answer() -> None:
    nvidia = BUILT_IN["nvidia"].provider
    assert len(dict(supported("nvidia", nvidia, machine(driver="12.1000")))["cuda_version_lower_bound"]) == 1024
    assert not supported("nvidia", nvidia, machine(driver="12.1001"))


def test_a_machine_has_no_tpu_unless_it_says_so() -> None:
    tpu = BUILT_IN["tpu"].provider
    assert supported("tpu", tpu, machine()) == (("present", ("false",)),)
    assert supported("tpu", tpu, machine(supported={"tpu": {"present": ("true",)}})) == (("present", ("true",)),)
