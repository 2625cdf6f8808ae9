"""What conda and pixi say of a machine, as a machine."""

import json
import platform
from typing import Any

import pytest

from vbuild.errors import HardwareError
from vbuild.hardware.conda import machine_of, x86_64_cpus
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.driver import Dotted, Nvidia
from vbuild.hardware.machine import Machine

CONDA = {
    "conda_version": "25.9.1",
    "platform": "linux-64",
    "python_version": "3.12.11.final.0",
    "virtual_pkgs": [
        ["__archspec", "1", "zen4"],
        ["__conda", "25.9.1", "0"],
        ["__cuda", "12.8", "0"],
        ["__glibc", "2.39", "0"],
        ["__linux", "6.8.0", "0"],
        ["__unix", "0", "0"],
    ],
}
PIXI = {
    "platform": "linux-aarch64",
    "virtual_packages": [
        *("__unix=0=0", "__linux=5.15.148=0", "__glibc=2.35=0"),
        *("__cuda=12.6=0", "__cuda_arch=8.7=0", "__archspec=1=neoverse_n1"),
    ],
    "version": "0.76.1",
}


def parsed(info: dict[str, Any], **changes: Any) -> Machine:
    return machine_of(json.dumps({**info, "python_version": "3.11.7", **changes}))


def test_what_conda_says_is_a_machine() -> None:
    found = machine_of(json.dumps(CONDA))
    assert (found.python, found.cpu) == ("3.12.11", Cpu("x86_64", "v4"))
    assert found.nvidia == Nvidia(Dotted(12, 8), ())
    assert found.tags[:2] == ("cp312-cp312-manylinux_2_39_x86_64", "cp312-cp312-manylinux_2_38_x86_64")
    assert {"cp39-abi3-manylinux2014_x86_64", "cp312-none-any", "py3-none-any"} <= {*found.tags}
    assert "cp312-cp312-manylinux_2_40_x86_64" not in found.tags


def test_what_pixi_says_is_a_machine() -> None:
    found = parsed(PIXI)
    assert (found.python, found.cpu) == ("3.11.7", Cpu("aarch64", "8.2a"))
    assert found.nvidia == Nvidia(Dotted(12, 6), (Dotted(8, 7),))
    assert "cp311-cp311-manylinux_2_17_aarch64" in found.tags
    assert not [tag for tag in found.tags if "manylinux_2_16" in tag]


@pytest.mark.parametrize("key", ["virtual packages", "virtual_pkgs"])
def test_what_mamba_says_is_a_machine_in_both_of_its_spellings(key: str) -> None:
    info = {"platform": "linux-64", key: ["__archspec=1=x86_64_v3", "__glibc=2.36=0"]}
    assert parsed(info).cpu == Cpu("x86_64", "v3")


def test_without_a_python_the_running_one_counts() -> None:
    assert machine_of(json.dumps(PIXI)).python == platform.python_version()


def test_a_machine_that_is_described_can_be_described_again() -> None:
    for info in (CONDA, PIXI):
        found = parsed(info)
        assert Machine.parse(str(found)) == found


@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("x86_64", "v1"),
        ("nehalem", "v2"),
        ("haswell", "v3"),
        ("zen3", "v3"),
        ("skylake_avx512", "v4"),
        ("unknown", "v1"),
    ],
)
def test_a_cpu_is_of_the_level_that_archspec_knows(name: str, level: str) -> None:
    assert parsed(CONDA, virtual_pkgs=[f"__archspec=1={name}"]).cpu == Cpu("x86_64", level)


@pytest.mark.parametrize(("name", "version"), [("aarch64", "8a"), ("neoverse_v1", "8.4a"), ("zen4", "8a")])
def test_an_arm_cpu_is_of_the_version_that_archspec_knows(name: str, version: str) -> None:
    assert parsed(PIXI, virtual_packages=[f"__archspec=1={name}"]).cpu == Cpu("aarch64", version)


def test_a_machine_without_virtual_packages_has_the_baseline_and_its_own_platform_alone() -> None:
    found = parsed(CONDA, virtual_pkgs=[])
    assert (found.cpu, found.nvidia) == (Cpu("x86_64", "v1"), Nvidia())
    assert found.tags[0] == "cp311-cp311-linux_x86_64"


def test_every_level_has_the_cpus_of_that_name() -> None:
    known = {name: level for level, name in x86_64_cpus()}
    assert [known[name] for name in ("x86_64", "x86_64_v2", "x86_64_v3", "x86_64_v4")] == [1, 2, 3, 4]


WANTED = "expected what conda info --json or pixi info --json prints"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("conda 25.9", f"not JSON; {WANTED}"),
        ("[" * 100_000, f"not JSON; {WANTED}"),
        ("[]", f"no virtual packages; {WANTED}"),
        ('{"platform": "linux-64"}', f"no virtual packages; {WANTED}"),
        (
            '{"platform": "osx-arm64", "virtual_packages": []}',
            "platform is 'osx-arm64'; expected linux-64 or linux-aarch64",
        ),
        (
            '{"platform": ["linux-64"], "virtual_packages": []}',
            "platform is ['linux-64']; expected linux-64 or linux-aarch64",
        ),
        (
            '{"platform": "linux-64", "virtual_packages": ["__cuda=12.8"]}',
            "virtual package '__cuda=12.8'; expected name, version and build, as in __cuda=12.8=0",
        ),
        (
            '{"platform": "linux-64", "virtual_packages": 3}',
            "virtual package 3; expected name, version and build, as in __cuda=12.8=0",
        ),
        (
            '{"platform": "linux-64", "virtual_packages": ["__cuda=new=0"]}',
            "__cuda: no version 'new.0'; expected two numbers with a dot, as in 12.8",
        ),
        (
            '{"platform": "linux-64", "virtual_packages": [], "python_version": "new"}',
            "python_version is 'new'; expected one as in 3.12.4",
        ),
        (
            '{"platform": "linux-64", "virtual_packages": [], "python_version": 3}',
            "python_version is 3; expected one as in 3.12.4",
        ),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_is_no_such_json_is_refused(text: str, said: str) -> None:
    with pytest.raises(HardwareError) as refusal:
        machine_of(text)
    assert str(refusal.value) == said
