"""Libraries outside the toolkit, asked of an index."""

from pathlib import Path

import pytest
from packaging.version import Version

from tests.factories.sources import served
from vbuild.errors import BuildError
from vbuild.index_client.configuration import Indexes
from vbuild.toolchain.toolkit import ToolkitPin, pin_of_index

CANDIDATES = ("nvidia-nccl-cu13", "nvidia-nccl")
WHEEL = "nvidia_nccl_cu13-2.28.{}-py3-none-manylinux_2_18_{}.whl"


def _page(folder: Path, project: str, *names: str, stated: bool = True) -> Path:
    (folder / project).mkdir(parents=True)
    links = (f'<a href="{name}{f"#sha256={number:064x}" if stated else ""}">x</a>' for number, name in enumerate(names))
    (folder / project / "index.html").write_text("".join(links))
    return folder


def _asked(folder: Path, version: str, machine: str = "x86_64") -> ToolkitPin:
    with served(folder) as url:
        return pin_of_index(CANDIDATES, Version(version), machine, indexes=Indexes(index_url=url))


def test_the_wheel_of_the_machine_is_pinned_by_the_hash_that_is_stated(tmp_path: Path) -> None:
    names = [WHEEL.format(9, machine) for machine in ("x86_64", "aarch64")]
    folder = _page(tmp_path, "nvidia-nccl-cu13", *names, "nvidia_nccl_cu13-0.0.0a0-py2.py3-none-any.whl")
    assert _asked(folder, "2.28.9", "aarch64") == ToolkitPin("nvidia-nccl-cu13", "2.28.9", names[1], f"{1:064x}")


def test_a_project_without_the_version_of_cuda_in_its_name_is_the_second_choice(tmp_path: Path) -> None:
    _page(tmp_path, "nvidia-nccl-cu13", "nvidia_nccl_cu13-0.0.0a0-py2.py3-none-any.whl")
    folder = _page(tmp_path, "nvidia-nccl", "nvidia_nccl-2.0-py2.py3-none-any.whl")
    assert _asked(folder, "2.0").project == "nvidia-nccl"


def test_what_is_there_is_said_where_the_version_is_not(tmp_path: Path) -> None:
    names = [WHEEL.format(number, "x86_64") for number in range(7)]
    with pytest.raises(BuildError) as refused:
        _asked(_page(tmp_path, "nvidia-nccl-cu13", *names, WHEEL.format("7rc1", "x86_64")), "2.29")
    assert str(refused.value) == (
        "nvidia-nccl-cu13==2.29: not on the package index; of nvidia-nccl-cu13 it has "
        "2.28.6, 2.28.5, 2.28.4, 2.28.3, 2.28.2 and 2 older: name one of these"
    )


def test_an_index_that_states_no_hash_is_refused(tmp_path: Path) -> None:
    name = WHEEL.format(9, "x86_64")
    with pytest.raises(BuildError) as refused:
        _asked(_page(tmp_path, "nvidia-nccl-cu13", name, stated=False), "2.28.9")
    assert str(refused.value) == (
        f"nvidia-nccl-cu13==2.28.9: the package index states no SHA-256 for {name}; "
        "expected an index that does, as nothing else pins it"
    )


def test_a_project_that_nobody_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError) as refused:
        _asked(_page(tmp_path, "nvidia-nccl-cu13", WHEEL.format(9, "x86_64")), "2.28.9", "riscv64")
    assert str(refused.value) == (
        "the package index has no wheel for Linux on riscv64 of nvidia-nccl-cu13 or nvidia-nccl; "
        'leave the library out, or build with an installed toolkit: { path = "…" }'
    )
