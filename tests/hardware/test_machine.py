import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories.variants import machine
from vbuild.errors import HardwareError, VbuildError
from vbuild.hardware.cpu import AARCH64_VERSIONS, X86_64_LEVELS, Cpu
from vbuild.hardware.driver import FORCED_CAPABILITY, FORCED_DRIVER, Dotted, Nvidia, compiles_since
from vbuild.hardware.machine import Machine, cuda_of_driver

names = st.text("ab_0", min_size=1, max_size=4)
values = st.text("ab_.0", min_size=1, max_size=4)
tags = st.builds("{}-{}-{}".format, st.sampled_from(["cp311", "py3"]), st.sampled_from(["abi3", "none"]), names)
dotted = st.builds(Dotted, st.integers(0, 20), st.integers(0, 20))
features = st.dictionaries(names, st.lists(values, min_size=1, max_size=3).map(tuple), max_size=2)
cpus = st.sampled_from(
    [Cpu("x86_64", level) for level in X86_64_LEVELS] + [Cpu("aarch64", version) for version in AARCH64_VERSIONS]
)
machines = st.builds(
    Machine,
    st.sampled_from(["3.11.7", "3.15.0b1"]),
    st.lists(tags, max_size=12).map(tuple),
    st.none() | cpus,
    st.builds(Nvidia, st.none() | dotted, st.lists(dotted, max_size=3).map(tuple)),
    st.dictionaries(names, features.map(lambda found: tuple(found.items())), max_size=2).map(
        lambda found: tuple(found.items())
    ),
    installed=st.sampled_from([(), (("run-time", "2.0"), ("torch", "2.11.1+cu126"))]),
)


@given(machines)
def test_a_machine_reads_what_it_writes(found: Machine) -> None:
    assert Machine.parse(str(found)) == found


SOUND = str(machine(driver="12.8", gpus=("9.0",), supported={"rebellions": {"arch": ("atom_max",)}}))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('python = "3.11.7"', "", "python: missing; expected a string"),
        ('"3.11.7"', '"3"', "python: no Python version '3'; expected one as in 3.12.4"),
        ('"3.11.7"', '"3.99999999"', "python: no Python version '3.99999999'; expected one as in 3.12.4"),
        ('"3.11.7"', '"three"', "python: no Python version 'three'; expected one as in 3.12.4"),
        (
            "cpu = ",
            "cpus = ",
            (
                "cpus: no such key; "
                "known here: cpu, installed, namespace-order, nvidia, platforms, python, supported, tags, without"
            ),
        ),
        ('"x86-64-v3"', '"x86-64-v9"', "cpu: no CPU level 'v9' of 'x86_64'"),
        (
            '"py3-none-any"',
            '"py3"',
            "tags: no compatibility tag 'py3'; expected python-abi or python-abi-platform",
        ),
        ('"12.8"', '"twelve"', "nvidia.driver: no version 'twelve'; expected two numbers with a dot, as in 12.8"),
        ('"9.0"', '"sm_90"', "nvidia.capabilities: no version 'sm_90'; expected two numbers with a dot, as in 12.8"),
        ("driver", "drivers", "nvidia.drivers: no such key; known here: capabilities, driver"),
        (
            "supported.rebellions",
            'supported."x y"',
            "supported.\"x y\": 'x y' is not a name that PEP 825 allows: a-z, 0-9 and _ (in values also .)",
        ),
        (
            '"atom_max"',
            '"ATOM"',
            "supported.rebellions.arch: 'ATOM' is not a name that PEP 825 allows: a-z, 0-9 and _ (in values also .)",
        ),
        ("[nvidia]", "[nvidia", "not TOML: "),
    ],
)
def test_a_description_that_is_wrong_is_refused_with_its_place(old: str, new: str, message: str) -> None:
    with pytest.raises(VbuildError) as refusal:
        Machine.parse(SOUND.replace(old, new))
    assert str(refusal.value).startswith(message)


def test_a_variable_of_nvidias_provider_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(HardwareError) as refusal:
        Nvidia.here({FORCED_DRIVER: "new", FORCED_CAPABILITY: "9.0"})
    assert str(refusal.value) == f"{FORCED_DRIVER}: no version 'new'; expected two numbers with a dot, as in 12.8"


NVML = """
#include <stddef.h>
static int capabilities[][2] = {{8, 9}, {9, 0}, {8, 9}};
int nvmlInit_v2(void) { return %d; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 12080; return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 4; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (index > 2) return 15;
    *device = capabilities[index];
    return 0;
}
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
    *major = ((int *)device)[0];
    *minor = ((int *)device)[1];
    return 0;
}
"""


@pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc")
@pytest.mark.parametrize(("status", "expected"), [(0, "12.8 9.0 8.9"), (9, "None")])
def test_a_driver_is_asked_through_the_interface_of_nvml(status: int, expected: str, tmp_path: Path) -> None:
    (tmp_path / "nvml.c").write_text(NVML % status)
    command = ["gcc", "-shared", "-fPIC", "-o", str(tmp_path / "libnvidia-ml.so.1"), str(tmp_path / "nvml.c")]
    subprocess.run(command, check=True)
    ask = (
        "from vbuild.hardware.driver import Nvidia; found = Nvidia.detected(); print(found.driver, *found.capabilities)"
    )
    environ = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    answer = subprocess.run([sys.executable, "-c", ask], check=True, capture_output=True, text=True, env=environ)
    assert answer.stdout.strip() == expected


@pytest.mark.gpu
@pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="no NVIDIA driver")
def test_nvml_names_the_driver_and_the_gpus() -> None:
    found = Nvidia.detected()
    assert found.driver
    assert found.driver > Dotted(11, 0)
    assert found.capabilities


def test_an_arm_v9_cpu_does_not_run_newer_v8_code() -> None:
    assert not Cpu.parse("armv9.0-a").runs(Cpu.parse("armv8.6-a"))


@pytest.mark.skipif(os.uname().machine != "x86_64" or sys.implementation.name != "cpython", reason="for CPython here")
def test_a_machine_in_short_has_the_tags_of_a_real_one() -> None:
    here = Machine.here()
    assert here.cpu
    assert Machine.described(here.cpu).tags == here.tags


def test_a_machine_in_short_is_that_of_the_options() -> None:
    short = (
        'python = "3.12"\ncpu = "x86-64-v3"\nglibc = "2.28"\n[nvidia]\ndriver = "580.65.06"\ncapabilities = ["9.0"]\n'
    )
    described = Machine.described(Cpu.parse("x86-64-v3"), [Dotted(9, 0)], driver="580", glibc="2.28", python="3.12")
    assert Machine.parse(short) == described
    assert described.nvidia == Nvidia(Dotted(13, 0), (Dotted(9, 0),))
    assert described.tags[0] == "cp312-cp312-manylinux_2_28_x86_64"
    assert "cp312-cp312-manylinux_2_29_x86_64" not in described.tags
    arm = Machine.described(Cpu.parse("armv8.2-a"), glibc="2.17", python="3.11")
    assert [tag for tag in arm.tags if tag.startswith("cp311-cp311")] == [
        "cp311-cp311-manylinux_2_17_aarch64",
        "cp311-cp311-manylinux2014_aarch64",
        "cp311-cp311-linux_aarch64",
    ]


@pytest.mark.parametrize(
    ("driver", "cuda"), [("580", "13.0"), ("535.183.01", "12.2"), ("577.1", "12.9"), ("12.8", "12.8"), ("13", "13.0")]
)
def test_a_driver_is_named_by_its_number_or_by_cudas(driver: str, cuda: str) -> None:
    assert str(cuda_of_driver(driver)) == cuda


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'driver = "390"',
            "nvidia.driver: no driver '390' is known; expected 450 or newer, or a CUDA version as in 13.0",
        ),
        ('glibc = "3.1"', "glibc: '3.1' is not a glibc; expected a version as in 2.28"),
        (
            'glibc = "2.28"\ntags = ["py3-none-any"]',
            "tags: would have no effect, as glibc stands for the tags of CPython",
        ),
    ],
)
def test_a_short_description_that_is_wrong_is_refused(text: str, message: str) -> None:
    keys = f"[nvidia]\n{text}" if "driver" in text else text
    short = 'python = "3.12"\ncpu = "x86-64-v3"\n' + ('glibc = "2.28"\n' if "driver" in text else "")
    with pytest.raises(VbuildError, match=re.escape(message)):
        Machine.parse(f"{short}{keys}\n")


@pytest.mark.parametrize(
    ("ptx", "cuda"),
    [
        ("6.2", "9.2"),
        ("6.5", "10.2"),
        ("7.8", "11.8"),
        ("8.0", "12.0"),
        ("8.5", "12.5"),
        ("8.6", "12.7"),
        ("8.8", "12.9"),
        ("9.0", "13.0"),
        ("9.5", "13.5"),
        ("5.9", None),
        ("10.0", None),
    ],
)
def test_each_version_of_ptx_has_the_cuda_that_it_came_with(ptx: str, cuda: str | None) -> None:
    assert compiles_since(Dotted.parse(ptx)) == (Dotted.parse(cuda) if cuda else None)
