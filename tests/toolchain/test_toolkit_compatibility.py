"""Host compilers that an nvcc takes, by what its header says."""

from pathlib import Path

import pytest

from tests.factories.toolkits import installed
from vbuild.errors import BuildError
from vbuild.hardware.driver import Dotted
from vbuild.toolchain.toolkit import CompilerRange, Toolkit, check_host, host_range

# the conditions of crt/host_config.h as they are in CUDA 13.0
HOST_CONFIG = """
#if !defined(__GNUC__) && !defined(_WIN32)
#endif /* !__GNUC__ && !_WIN32 */
#if (__GRCO_CLANG_COMPILER__ == 1) && ((__clang_major__ < 16) || (__clang_major__ > 20))
#if defined(__GNUC__)

#if __GNUC__ > 15

#error -- unsupported GNU version! gcc versions later than 15 are not supported!

#endif /* __GNUC__ > 15 */

#if defined(__HORIZON__)
#if (__clang_major__ >= 19) || (__clang_major__ < 3) || ((__clang_major__ == 3) &&  (__clang_minor__ < 3))
#endif
#else
#if (__clang_major__ >= 21) || (__clang_major__ < 3) || ((__clang_major__ == 3) &&  (__clang_minor__ < 3))
#error -- unsupported clang version! clang version must be less than 21 and greater than 3.2 .
#endif
"""


@pytest.fixture
def toolkit(tmp_path: Path) -> Toolkit:
    return Toolkit(Dotted(13, 0), installed(tmp_path, files={"include/crt/host_config.h": HOST_CONFIG}), "0" * 64)


def test_the_limits_are_those_of_the_header(toolkit: Toolkit) -> None:
    assert host_range(toolkit, "gcc") == CompilerRange(last=15)
    assert host_range(toolkit, "clang") == CompilerRange(3, 20)


@pytest.mark.parametrize(
    ("family", "version"),
    [("gcc", (4, 8)), ("gcc", (15, 2)), ("clang", (20,)), ("clang", (3, 9))],
    ids=["old gcc", "new gcc", "new clang", "old clang"],
)
def test_a_compiler_within_the_limits_is_taken(toolkit: Toolkit, family: str, version: tuple[int, ...]) -> None:
    check_host(toolkit, family=family, version=version)


@pytest.mark.parametrize(
    ("family", "version", "message"),
    [
        (
            "gcc",
            (16, 1),
            "gcc 16.1 is too new for nvcc 13.0, which takes gcc up to 15; install gcc-15 and set CC=gcc-15 CXX=g++-15",
        ),
        (
            "clang",
            (21, 1, 8),
            (
                "clang 21.1.8 is too new for nvcc 13.0, which takes clang up to 20; "
                "install clang-20 and set CC=clang-20 CXX=clang++-20"
            ),
        ),
        (
            "clang",
            (2, 9),
            "clang 2.9 is too old for nvcc 13.0, which takes clang from 3; install a newer one",
        ),
    ],
    ids=["gcc", "clang", "old"],
)
def test_another_is_refused(toolkit: Toolkit, family: str, version: tuple[int, ...], message: str) -> None:
    with pytest.raises(BuildError) as refused:
        check_host(toolkit, family=family, version=version)
    assert str(refused.value) == message


@pytest.mark.parametrize("setting", ["NVCC_CCBIN", "-ccbin"])
def test_what_to_set_is_what_was_set(toolkit: Toolkit, setting: str) -> None:
    with pytest.raises(BuildError, match=rf"; install gcc-15 and set {setting}=g\+\+-15$"):
        check_host(toolkit, family="gcc", version=(16,), setting=setting)


@pytest.mark.parametrize("text", ["", "#if 0"])
def test_a_header_that_says_nothing_limits_nothing(tmp_path: Path, text: str) -> None:
    root = installed(tmp_path, files={"targets/x86_64-linux/include/crt/host_config.h": text})
    (root / "include/crt/host_config.h").unlink()
    silent = Toolkit(Dotted(13, 0), root, "0" * 64)
    for family in ("gcc", "clang"):
        assert host_range(silent, family) == CompilerRange()
        check_host(silent, family=family, version=(99,))
    (root / "targets/x86_64-linux/include/crt/host_config.h").unlink()
    assert host_range(silent, "gcc") == CompilerRange()
