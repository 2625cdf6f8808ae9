"""What clusters are told of variants: NFD's rules, DRA's claims, and notes on what neither can say."""

import json
from typing import Any

import pytest
import yaml

from tests.factories.variants import variant
from vbuild.publishing.oci.plan import dra, nfd

CUDA, SM = "nvidia :: cuda_version_lower_bound :: 12.6", "nvidia :: sm_arch :: 90_real"
CAPABILITY, DRIVER = (
    f'device.attributes["gpu.nvidia.com"].{name}' for name in ("cudaComputeCapability", "cudaDriverVersion")
)
MAJOR, MINOR = "nvidia.com/gpu.compute.major", "nvidia.com/gpu.compute.minor"


def rules(*properties: str) -> list[dict[str, Any]]:
    text, notes = nfd(variant("v", *properties))
    assert text
    assert not notes
    document = yaml.safe_load(text)
    assert document["version"] == "v1alpha1"
    assert [(one["description"], one["tag"]) for one in document["compatibilities"]] == [("variant v", "v")]
    found: list[dict[str, Any]] = document["compatibilities"][0]["rules"]
    return found


def alternatives(*properties: str) -> list[dict[str, Any]]:
    (rule,) = rules(*properties)
    (features,) = {json.dumps([one["feature"] for one in each["matchFeatures"]]) for each in rule["matchAny"]}
    assert features == '["local.label"]'
    return [
        {name: (said["op"], said["value"]) for name, said in each["matchFeatures"][0]["matchExpressions"].items()}
        for each in rule["matchAny"]
    ]


def expressions(*images: tuple[str, Any]) -> list[tuple[str, str]]:
    text, _ = dra("demo-1.0-cp311", images)
    assert text
    template = yaml.safe_load(text)
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    return [
        (one["name"], one["selectors"][0]["cel"]["expression"].replace("\n", " ")) for one in request["firstAvailable"]
    ]


def test_a_level_is_the_features_of_all_levels_up_to_it() -> None:
    (rule,) = rules("x86_64 :: level :: v3")
    (features,) = rule["matchFeatures"]
    assert features["feature"] == "cpu.cpuid"
    assert {"SSE42", "AVX2", "FMA3"} <= set(features["matchExpressions"])
    assert "AVX512F" not in features["matchExpressions"]
    assert all(said == {"op": "Exists"} for said in features["matchExpressions"].values())


def test_of_levels_the_lowest_is_enough_and_every_node_has_the_first() -> None:
    assert (
        rules("x86_64 :: level :: v2", "x86_64 :: level :: v4")[0]["matchFeatures"]
        == (rules("x86_64 :: level :: v2")[0]["matchFeatures"])
    )
    assert nfd(variant("v1", "x86_64 :: level :: v1")) == (None, ())


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("90_real", [{MAJOR: ("In", ["9"])}]),
        ("86_real", [{MAJOR: ("In", ["8"]), MINOR: ("Gt", ["5"])}]),
        ("90_virtual", [{MAJOR: ("In", ["9"])}, {MAJOR: ("Gt", ["9"])}]),
        ("90a_real", [{MAJOR: ("In", ["9"]), MINOR: ("In", ["0"])}]),
        ("120f_real", [{MAJOR: ("In", ["12"])}]),
        ("87_real", [{MAJOR: ("In", ["8"]), MINOR: ("In", ["7"])}]),
        ("87_virtual", [{MAJOR: ("In", ["8"]), MINOR: ("Gt", ["6"])}, {MAJOR: ("Gt", ["8"])}]),
    ],
)
def test_a_gpu_is_labels_of_gpu_feature_discovery(value: str, found: list[dict[str, Any]]) -> None:
    assert alternatives(f"nvidia :: sm_arch :: {value}") == found


def test_bounds_of_cuda_are_labels_of_the_driver() -> None:
    major, minor = "nvidia.com/cuda.runtime-version.major", "nvidia.com/cuda.runtime-version.minor"
    assert alternatives(CUDA) == [
        {major: ("In", ["12"]), minor: ("Gt", ["5"])},
        {major: ("Gt", ["12"])},
    ]
    assert alternatives("nvidia :: cuda_version_upper_bound :: 12.9") == [
        {major: ("Lt", ["12"])},
        {major: ("In", ["12"]), minor: ("Lt", ["9"])},
    ]
    assert alternatives("nvidia :: cuda_version_upper_bound :: 13") == [{major: ("Lt", ["13"])}]


@pytest.mark.parametrize("text", ["aarch64 :: version :: 8.2a", "rocm :: gfx :: 942", "nvidia :: sm_arch :: strange"])
def test_a_property_without_a_feature_is_a_note(text: str) -> None:
    assert nfd(variant("v", text)) == (None, (f"{text}: NFD has no feature for it; nodes are not told apart by it",))
    _, notes = dra("demo", [("x", variant("v", text, CUDA))])
    assert notes == (f"{text}: DRA has no device for it; pods need a node selector as well",)


def test_a_claim_asks_for_the_newest_driver_first() -> None:
    older = ("cp311-cu124", variant("cu124", CUDA.replace("12.6", "12.4")))
    assert expressions(older, ("cp311-cu126", variant("cu126", CUDA, SM))) == [
        ("cu126", f"{least(DRIVER, '12.6.0')} && ({least(CAPABILITY, '9.0.0')} && {below(CAPABILITY, '10.0.0')})"),
        ("cu124", least(DRIVER, "12.4.0")),
    ]


def least(attribute: str, version: str) -> str:
    return f'{attribute}.compareTo(semver("{version}")) >= 0'


def below(attribute: str, version: str) -> str:
    return f'{attribute}.compareTo(semver("{version}")) < 0'


def test_a_claim_of_several_gpus_takes_any_of_them_and_of_a_bound_what_is_below() -> None:
    alternatives = [
        least(CAPABILITY, "10.0.0"),
        f"({least(CAPABILITY, '9.0.0')} && {below(CAPABILITY, '10.0.0')})",
        f"({least(CAPABILITY, '9.0.0')} && {below(CAPABILITY, '9.1.0')})",
    ]
    asked = variant("v", SM, "nvidia :: sm_arch :: 90a_real", "nvidia :: sm_arch :: 100_virtual")
    assert expressions(("x", asked)) == [("v", f"({' || '.join(alternatives)})")]
    assert expressions(("x", variant("v", "nvidia :: cuda_version_upper_bound :: 13.0"))) == [
        ("v", f'{DRIVER}.compareTo(semver("13.0.0")) < 0')
    ]


def test_a_claim_says_which_image_belongs_to_each_device_and_is_a_template() -> None:
    text, notes = dra("demo-1.0-cp311", [("cp311-cu126_v3", variant("cu126_v3", CUDA, "x86_64 :: level :: v3"))])
    assert text
    assert text.startswith("# device gpu/cu126-v3: the image cp311-cu126_v3\n{\n")
    template = yaml.safe_load(text)
    assert template["apiVersion"] == "resource.k8s.io/v1"
    assert template["kind"] == "ResourceClaimTemplate"
    assert template["metadata"] == {"name": "demo-1-0-cp311"}
    assert (
        template["spec"]["spec"]["devices"]["requests"][0]["firstAvailable"][0]["deviceClassName"] == "gpu.nvidia.com"
    )
    assert notes == ("x86_64 :: level :: v3: DRA has no device for it; pods need a node selector as well",)


def test_a_claim_has_eight_alternatives_at_most() -> None:
    images = [(f"cu12{minor}", variant(f"cu12{minor}", CUDA.replace("12.6", f"12.{minor}"))) for minor in range(9)]
    assert [name for name, _ in expressions(*images)] == [f"cu12{minor}" for minor in range(8, 0, -1)]
    assert dra("demo", images)[1] == ("a claim has 8 alternatives at most; left out: cu120",)


def test_without_a_device_there_is_no_claim() -> None:
    assert dra("demo-1.0-cp311", [("x", variant("v3", "x86_64 :: level :: v3"))]) == (
        None,
        ("demo-1.0-cp311: no image needs a device that DRA knows, so there is no claim",),
    )


def test_both_are_json_but_for_the_comments_before_a_claim() -> None:
    asked = variant("v3_cu126", "x86_64 :: level :: v3", CUDA)
    rule, _ = nfd(asked)
    claim, _ = dra("demo", [("cp311-v3_cu126", asked)])
    assert rule
    assert claim
    comments, brace, rest = claim.partition("{")
    assert json.loads(rule) == yaml.safe_load(rule)
    assert json.loads(brace + rest) == yaml.safe_load(claim)
    assert comments == "# device gpu/v3-cu126: the image cp311-v3_cu126\n"
