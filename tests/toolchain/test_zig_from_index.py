"""zig, from the package index into the shared store."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from vbuild.errors import BuildError
from vbuild.index_client.configuration import Indexes
from vbuild.toolchain.compilers import ZIG_CLANG, ZIG_VERSION, foreseen_zig, provided_zig

NOWHERE = Indexes(no_index=True, find_links=("file:///nowhere",))

pytestmark = pytest.mark.skipif(os.uname().sysname != "Linux", reason="zig is taken on Linux")


@pytest.mark.parametrize("zig", [provided_zig, foreseen_zig])
def test_a_machine_that_zig_is_not_pinned_for_is_told_the_other_way(zig: Callable[..., Path]) -> None:
    with pytest.raises(BuildError) as caught:
        zig(machine="s390x")
    assert str(caught.value) == (
        "no zig for linux on s390x; expected Linux on x86_64, aarch64; "
        "with build.host = 'system' the system's compiler is used"
    )


def test_without_an_index_the_other_way_is_told(tmp_path: Path) -> None:
    with pytest.raises(BuildError) as caught:
        provided_zig(store=tmp_path, indexes=NOWHERE, machine="aarch64")
    assert str(caught.value) == (
        f"ziglang=={ZIG_VERSION}: no ziglang-{ZIG_VERSION}-py3-none-manylinux_2_17_aarch64.manylinux2014_aarch64"
        ".musllinux_1_1_aarch64.whl on file:///nowhere; with build.host = 'system' the system's compiler is used"
    )
    assert not list((tmp_path / "components").iterdir())


@pytest.mark.nightly
@pytest.mark.network
def test_zig_runs_and_is_fetched_once() -> None:
    zig = provided_zig()
    assert subprocess.check_output([zig, "version"], text=True).strip() == ZIG_VERSION
    assert provided_zig(indexes=NOWHERE) == zig == foreseen_zig()
    macros = subprocess.check_output([zig, "cc", "-E", "-dM", "-x", "c", os.devnull], text=True).split()
    major, minor = (macros[macros.index(name) + 1] for name in ("__clang_major__", "__clang_minor__"))
    assert (int(major), int(minor)) == ZIG_CLANG


def test_where_zig_will_be_is_known_before_it_is_fetched(tmp_path: Path) -> None:
    zig = foreseen_zig(store=tmp_path / "store", machine="x86_64")
    assert zig.relative_to(tmp_path).parts == (
        "store",
        "components",
        f"ziglang-{ZIG_VERSION}-ea6cc5d87b033cf0",
        "ziglang",
        "zig",
    )
    assert not list(tmp_path.iterdir())
