"""`vbuild toolkit` as a user meets it: in a process, with a cache of his own, in 80 columns."""

import os
import re
import shutil
from pathlib import Path

import pytest

from tests.factories.workdir import WIDTH, Workdir, file_digests, refusal, without_installed_toolkits
from vbuild.cli.build import toolkit
from vbuild.hardware.driver import Dotted
from vbuild.recipe.compiling import ToolkitSpec
from vbuild.toolchain.toolkit import releases
from vbuild.toolchain.toolkit_provision import packaged_toolkit

VERSION = Dotted(13, 0)
NEWEST = str(max(releases()))


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def stocked(folder: Path) -> Workdir:
    """A workdir whose cache has the components of CUDA 13.0, and no toolkit."""
    workdir, kept = Workdir.at(folder, shared=()), packaged_toolkit(ToolkitSpec(VERSION))
    components = kept.root.parent / "components"
    names = [path.name for pin in kept.pins for path in components.glob(f"{pin.project}-{pin.version}-*")]
    for name in names:
        shutil.copytree(
            components / name, workdir.cache / "vbuild/toolkits/components" / name, copy_function=_linked, symlinks=True
        )
    return workdir


def kept(workdir: Workdir) -> list[Path]:
    """The toolkits in the workdir's cache."""
    return sorted((workdir.cache / "vbuild/toolkits").glob("cuda-*"))


def narrow(text: str) -> list[str]:
    """The lines of *text*, of which none is wider than a terminal but for a path that stands alone."""
    for line in text.splitlines():
        assert len(line) <= WIDTH or re.fullmatch(r"\s*/\S+", line), line
    return text.splitlines()


@pytest.mark.parametrize("command", ["", *toolkit.commands])
def test_every_command_has_help_with_an_example(tmp_path: Path, command: str) -> None:
    ran = Workdir.at(tmp_path, shared=()).vbuild(*("toolkit", command, "--help") if command else ("toolkit", "--help"))
    assert max(map(len, ran.stdout.splitlines())) <= WIDTH
    assert f"vbuild toolkit {command}" in ran.stdout.partition("Example:")[2]
    if not command:
        shown = re.findall(r"^  (\w+) +(.*)$", ran.stdout.partition("Commands:")[2], re.MULTILINE)
        assert [name for name, _ in shown[:4]] == ["list", "install", "path"]
        assert not any(text.endswith("...") for _, text in shown[:4])


def test_where_nothing_is_kept_the_list_says_how_to_get_one(tmp_path: Path) -> None:
    workdir = without_installed_toolkits(Workdir.at(tmp_path, shared=()))
    path = os.pathsep.join(
        folder for folder in os.environ["PATH"].split(os.pathsep) if not Path(folder, "nvcc").exists()
    )
    ran = workdir.vbuild("toolkit", "list", PATH=path)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert narrow(ran.stdout) == ["no CUDA toolkit, kept or installed; vbuild toolkit install 13.0 fetches one"]
    assert not (workdir.cache / "vbuild/toolkits").exists()


@pytest.mark.nightly
@pytest.mark.network
def test_a_toolkit_is_installed_once_and_its_licence_is_said_once(tmp_path: Path) -> None:
    workdir = stocked(tmp_path)
    first, again = (workdir.vbuild("toolkit", "install", "13.0") for _ in range(2))
    assert (first.returncode, first.stderr) == (again.returncode, again.stderr) == (0, "")
    [root] = kept(workdir)
    assert first.stdout.splitlines() == [
        str(root),
        f"CUDA 13.0 comes under NVIDIA's licence agreement for the CUDA Toolkit: {root}/licenses",
    ]
    assert again.stdout == f"{root}\n"
    assert "CUDA" in (root / "licenses/nvidia-cuda-nvcc/License.txt").read_text()


@pytest.mark.nightly
@pytest.mark.network
def test_an_install_that_was_killed_is_made_up_for(tmp_path: Path) -> None:
    workdir = stocked(tmp_path)
    store = workdir.cache / "vbuild/toolkits"
    process = workdir.started("toolkit", "install", "13.0")
    while not list(store.glob(".cuda-*.part")):
        assert process.poll() is None
    process.kill()
    process.communicate()
    assert len(list(store.glob(".cuda-*.part"))) == 1
    assert str(store) not in workdir.vbuild("toolkit", "list").stdout
    assert refusal(workdir.vbuild("toolkit", "path", "13.0")).startswith("CUDA 13.0: not kept")
    assert workdir.vbuild("toolkit", "install", "13.0").returncode == 0
    assert len(kept(workdir)) == 1
    assert not list(store.glob(".*.part*"))


def test_what_is_not_to_be_had_is_refused_in_one_line(tmp_path: Path) -> None:
    workdir = Workdir.at(tmp_path, shared=())
    ran = workdir.vbuild("toolkit", "install", "12.4")
    assert refusal(ran) == (
        f"CUDA 12.4: the package index has no nvcc for CUDA before 13.0, only 13.0 to {NEWEST}; install CUDA 12.4 "
        'and set CUDA_HOME, or write toolkit = { path = "…", version = "12.4" }'
    )
    assert ran.stdout == ""
    assert file_digests(workdir.cache / "vbuild") == {}
