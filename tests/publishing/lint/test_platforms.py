"""Which platform tags PyPI takes, compared with those that packaging and auditwheel know."""

import json
from importlib.resources import files
from itertools import chain

import pytest
from packaging import tags

from vbuild.publishing.lint.index import is_bare_linux, is_taken
from vbuild.wheel.slots import machine, serves


@pytest.mark.parametrize("libc", ["manylinux", "musllinux"])
def test_what_auditwheel_writes_is_taken_and_what_it_starts_from_is_not(libc: str) -> None:
    policies = json.loads(files("auditwheel.policy").joinpath(f"{libc}-policy.json").read_text())
    written = {
        f"{name}_{architecture}"
        for policy in policies
        for name in (policy["name"], *policy["aliases"])
        for architecture in policy["symbol_versions"]
    }
    # auditwheel is ahead of PyPI there, and its images wait for PyPI
    written = {platform for platform in written if not platform.endswith("_loongarch64")}
    refused = {platform for platform in written if not is_taken(platform)}
    assert all(platform.startswith("linux_") for platform in refused)
    assert {platform for platform in written if is_bare_linux(platform)} == refused


def test_what_packaging_installs_on_other_systems_is_taken() -> None:
    installed = chain(
        tags.mac_platforms((14, 0), "arm64"),
        tags.mac_platforms((10, 15), "x86_64"),
        tags.ios_platforms((17, 2), "arm64_iphonesimulator"),
        tags.android_platforms(30, "arm64_v8a"),
    )
    assert [platform for platform in installed if not is_taken(platform)] == []


@pytest.mark.parametrize(
    ("platform", "expected"),
    [
        ("manylinux_2_17_x86_64", "manylinux_x86_64"),
        ("manylinux2014_x86_64", "manylinux_x86_64"),
        ("manylinux1_i686", "manylinux_i686"),
        ("musllinux_1_2_aarch64", "musllinux_aarch64"),
        ("macosx_11_0_arm64", "macosx_arm64"),
        ("android_24_arm64_v8a", "android_arm64_v8a"),
        ("ios_13_0_arm64_iphoneos", "ios_arm64_iphoneos"),
        ("win_amd64", "win_amd64"),
        ("linux_x86_64", "linux_x86_64"),
        ("any", "any"),
    ],
)
def test_a_machine_is_a_platform_without_the_version_of_its_system(platform: str, expected: str) -> None:
    assert machine(platform) == expected


def test_wheels_for_both_processors_of_macos_serve_either() -> None:
    assert serves("macosx_universal2", "macosx_arm64")
    assert serves("any", "win_amd64")
    assert not serves("macosx_arm64", "macosx_x86_64")
    assert not serves("manylinux_x86_64", "musllinux_x86_64")
