"""Who gets what: standard machines and folders of wheels, as `vbuild select` chooses."""

from pathlib import Path

import pytest
from msgspec import convert, to_builtins

from tests.factories.variants import document, metadata, tiny_wheel, variant, variant_wheel
from vbuild.release.publication import STANDARD, choices
from vbuild.release.report import MachineChoice
from vbuild.variants.index import index

V3, V4 = "x86_64 :: level :: v3", "x86_64 :: level :: v4"
X86 = "manylinux_2_28_x86_64"
SM = "nvidia :: sm_arch :: {}_real"
BOUND = "nvidia :: cuda_version_lower_bound :: {}"


def plain(folder: Path, *, python: str = "cp312-cp312", platform: str = X86, requires: str = "") -> None:
    tiny_wheel(folder, f"demo-1.0-{python}-{platform}.whl", requires_python=requires)


def labelled(folder: Path, label: str, *properties: str, python: str = "cp312-cp312", platform: str = X86) -> None:
    namespaces = sorted({text.partition(" :: ")[0] for text in properties}, key=lambda name: name != "nvidia")
    found = document(variant(label, *properties), metadata=metadata(*namespaces))
    variant_wheel(folder, f"demo-1.0-{python}-{platform}-{label}.whl", found)


def asked(folder: Path) -> tuple[MachineChoice, ...]:
    index(folder)
    return choices("demo", folder, folder.glob("*.whl"))


def labels(folder: Path) -> dict[str, str | None]:
    return {choice.machine: choice.label for choice in asked(folder)}


def test_each_level_gets_the_highest_that_it_runs(tmp_path: Path) -> None:
    plain(tmp_path)
    labelled(tmp_path, "x86_64_v3", V3)
    labelled(tmp_path, "x86_64_v4", V4)
    assert labels(tmp_path) == {
        "any x86-64": None,
        "Nehalem, Bulldozer": None,
        "Haswell, Zen": "x86_64_v3",
        "Skylake-SP, Zen 4": "x86_64_v4",
    }


def test_a_choice_tells_the_file_its_size_and_why(tmp_path: Path) -> None:
    plain(tmp_path)
    labelled(tmp_path, "x86_64_v3", V3)
    *_, last = asked(tmp_path)
    wheel = next(tmp_path.glob("*v3.whl"))
    assert (last.wheel, last.size, last.python) == (wheel.name, wheel.stat().st_size, "3.12")
    assert last.why == "x86_64 :: level :: v3 is number 2 of 4 that the machine supports"
    assert convert(to_builtins(last), MachineChoice) == last
    assert to_builtins(last)["bytes"] == last.size


def test_machines_without_a_wheel_get_nothing_and_the_reason(tmp_path: Path) -> None:
    labelled(tmp_path, "x86_64_v3", V3)
    first = asked(tmp_path)[0]
    assert (first.wheel, first.label, first.size) == (None, None, None)
    assert first.why == "none of 1 wheel fits this machine"


def test_gpus_are_asked_where_variants_name_them(tmp_path: Path) -> None:
    plain(tmp_path)
    labelled(tmp_path, "sm80", BOUND.format("12.8"), SM.format("80"), SM.format("86"), SM.format("89"))
    labelled(tmp_path, "sm90", BOUND.format("12.8"), SM.format("90"))
    found = {(choice.machine, choice.driver): choice.label for choice in asked(tmp_path)}
    assert found == {
        ("any x86-64", None): None,
        ("Nehalem, Bulldozer", None): None,
        ("Haswell, Zen", None): None,
        ("Skylake-SP, Zen 4", None): None,
        ("NVIDIA T4", "12.8"): None,
        ("NVIDIA A100", "12.8"): "sm80",
        ("NVIDIA A10, RTX 3090", "12.8"): "sm80",
        ("NVIDIA L4, RTX 4090", "12.8"): "sm80",
        ("NVIDIA H100", "12.8"): "sm90",
        ("NVIDIA B200", "12.8"): None,
        ("NVIDIA RTX 5090", "12.8"): None,
        ("NVIDIA A100", "12.7"): None,  # a driver that is too old
    }


def test_a_release_for_two_toolkits_is_asked_for_with_both_drivers(tmp_path: Path) -> None:
    plain(tmp_path)
    for bound in ("12.4", "13.0"):
        labelled(tmp_path, f"cu{bound}", BOUND.format(bound), SM.format("80"))
    found = {(choice.machine, choice.driver): choice.label for choice in asked(tmp_path) if choice.gpu == "sm_80"}
    assert found == {
        ("NVIDIA A100", "13.0"): "cu13.0",
        ("NVIDIA A100", "12.4"): "cu12.4",
        ("NVIDIA A100", "12.3"): None,
    }


def test_a_gpu_younger_than_the_toolkit_has_a_driver_that_knows_it(tmp_path: Path) -> None:
    plain(tmp_path)
    labelled(tmp_path, "sm80", BOUND.format("12.0"), SM.format("80"))
    drivers = {choice.machine: choice.driver for choice in asked(tmp_path)}
    assert (drivers["NVIDIA H100"], drivers["NVIDIA B200"]) == ("12.0", "12.8")


def test_arm_is_asked_where_there_are_wheels_for_it(tmp_path: Path) -> None:
    plain(tmp_path, platform="manylinux_2_28_aarch64")
    labelled(tmp_path, "armv8.2", "aarch64 :: version :: 8.2a", platform="manylinux_2_28_aarch64")
    assert labels(tmp_path) == {
        "any 64-bit Arm": None,
        "Graviton2, Ampere Altra": "armv8.2",
        "Graviton3": "armv8.2",
        "Grace, Graviton4": "armv8.2",
    }


@pytest.mark.parametrize(
    ("tags", "python"),
    [
        ("cp39-cp39", "3.9"),
        ("cp39-abi3", "3.9"),
        ("cp313-cp313t", "3.13t"),
        ("pp310-pypy310_pp73", "pp310"),
        ("py3-none", "3.12"),
    ],
)
def test_every_kind_of_python_gets_its_wheel(tags: str, python: str, tmp_path: Path) -> None:
    plain(tmp_path, python=tags)
    assert {(choice.python, choice.wheel is not None) for choice in asked(tmp_path)} == {(python, True)}


def test_a_wheel_for_any_machine_is_for_arm_too(tmp_path: Path) -> None:
    plain(tmp_path, python="py3-none", platform="any")
    found = asked(tmp_path)
    assert {choice.cpu.partition("-")[0] for choice in found if choice.wheel} == {
        "x86",
        "armv8",
        "armv8.2",
        "armv8.4",
        "armv9",
    }


def test_standard_machines_have_names_of_their_own() -> None:
    assert len({standard.name for standard in STANDARD}) == len(STANDARD)
