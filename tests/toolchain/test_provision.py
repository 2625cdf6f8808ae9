"""`vbuild toolkit`: what is kept, fetched and taken away."""

import os
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.factories.toolkits import component, core, installed, laid_out, places
from vbuild.errors import VbuildError
from vbuild.hardware.driver import Dotted
from vbuild.toolchain.toolkit import Toolkit, ToolkitPin
from vbuild.toolchain.toolkit_cache import STAMP
from vbuild.toolchain.toolkit_provision import Provision, listing, path

MONTH = 30 * 24 * 3600


def _kept(tmp_path: Path) -> tuple[Toolkit, Toolkit]:
    """Two kept toolkits, of 13.0 and, with one component more, of 13.1."""
    wheels = tmp_path / "wheels"
    pins, more = core(wheels), component(wheels, "nvidia-nccl-cu13", {"nvidia/nccl/lib/libnccl.so.2": "nccl" * 1000})
    one = laid_out(tmp_path / "store", pins, places(wheels))
    return one, laid_out(tmp_path / "store", (*pins, more), places(wheels), version=Dotted(13, 1))


def _age(folder: Path) -> None:
    os.utime(folder / STAMP, (time.time() - MONTH, time.time() - MONTH))


def _names(pins: Sequence[ToolkitPin]) -> list[str]:
    return sorted(str(pin) for pin in pins)


def test_kept_and_installed_toolkits_are_listed(tmp_path: Path) -> None:
    one, other = _kept(tmp_path)
    _age(one.root)
    home = installed(tmp_path / "cuda", 7050)
    found = listing(store=tmp_path / "store", environment={"CUDA_HOME": str(home)})
    assert [kept.root for kept in found.kept] == [other.root, one.root]
    assert found.kept[1].used < found.kept[0].used <= datetime.now(UTC)
    assert _names(found.kept[0].pins) == _names(other.pins)

    lines = list(found.lines())
    day = f"{found.kept[0].used:%Y-%m-%d}"
    assert lines[:2] == [f"13.1  0 MB, last used {day}", f"      {other.root}"]
    assert "      nvidia-nccl-cu13==13.0.1" in lines
    assert f"7.5  installed: {home}" in lines


def test_a_new_toolkit_points_at_its_licence_and_a_known_one_does_not(tmp_path: Path) -> None:
    one, _ = _kept(tmp_path)
    assert list(Provision(one).lines()) == [str(one.root), one.licence]
    again = laid_out(tmp_path / "store", one.pins, places(tmp_path / "wheels"))
    assert list(Provision(again).lines()) == [str(one.root)]


@pytest.mark.parametrize(
    ("version", "libraries", "message"),
    [
        ("13", (), "CUDA 13.0: not kept; run first: vbuild toolkit install 13.0"),
        (
            "13.0",
            ("cublas", "nccl == 2.28.9"),
            (
                "CUDA 13.0: not kept with cublas and nccl==2.28.9; "
                "run first: vbuild toolkit install 13.0 cublas nccl==2.28.9"
            ),
        ),
        (
            "13.0",
            ("nccl>=2",),
            "'nccl>=2' is not a library of CUDA; expected as in cublas, nccl==2.28.9, or nccl==2.28.9 sha256:…",
        ),
        ("new", (), "no CUDA version 'new'; expected two numbers with a dot, as in 13.0"),
    ],
    ids=["core", "libraries", "no library", "no version"],
)
def test_a_toolkit_that_is_not_kept_has_no_path(
    tmp_path: Path, version: str, libraries: tuple[str, ...], message: str
) -> None:
    with pytest.raises(VbuildError) as refused:
        path(version, libraries, store=tmp_path)
    assert str(refused.value) == message


def test_using_a_toolkit_is_noted(tmp_path: Path) -> None:
    one, _ = _kept(tmp_path)
    _age(one.root)
    laid_out(tmp_path / "store", one.pins, places(tmp_path / "wheels"))
    used = next(kept.used for kept in listing(store=tmp_path / "store").kept if kept.root == one.root)
    assert (datetime.now(UTC) - used).total_seconds() < 60
