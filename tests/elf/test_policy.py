"""What platform tags promise, as auditwheel's data has it."""

import pytest

from vbuild.elf.catalogue import PlatformPolicy


def platform(tag: str) -> PlatformPolicy:
    found = PlatformPolicy.parse(tag)
    assert found
    return found


@pytest.mark.parametrize("tag", ["any", "win_amd64", "macosx_11_0_arm64", "manylinux_2_28_z80", ""])
def test_a_tag_of_another_system_is_none(tag: str) -> None:
    assert PlatformPolicy.parse(tag) is None


@pytest.mark.parametrize(
    ("tag", "version", "old_enough"),
    [
        ("manylinux_2_17_x86_64", "GLIBC_2.2.5", True),
        ("manylinux_2_17_x86_64", "GLIBC_2.17", True),
        ("manylinux_2_17_x86_64", "GLIBC_2.18", False),
        ("manylinux_2_17_x86_64", "GLIBCXX_3.4.19", True),
        ("manylinux_2_17_x86_64", "GLIBCXX_3.4.26", False),
        ("manylinux_2_99_x86_64", "GLIBC_2.90", True),
        ("manylinux_2_28_x86_64", "GLIBC_PRIVATE", False),
        ("manylinux_2_28_x86_64", "GLIBC_ABI_DT_RELR", False),
        ("manylinux_2_39_x86_64", "GLIBC_ABI_DT_RELR", True),
        ("manylinux_2_17_x86_64", "OPENSSL_3.0.0", True),
        ("linux_x86_64", "GLIBC_2.90", True),
    ],
)
def test_symbol_versions_are_as_old_as_the_tag_says_or_newer(tag: str, version: str, *, old_enough: bool) -> None:
    assert platform(tag).has_version(version) is old_enough
