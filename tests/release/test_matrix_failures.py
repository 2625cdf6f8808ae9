"""Builds of a matrix that fail, and disks that are full: what is said, and that all stays as it was.

The wheels of a former release stay, and so does all finished work; nothing half-written is left beside them.
"""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from tests.factories.kernels import TWO, cuda_project, with_recipe
from tests.factories.tools import needs
from tests.factories.workdir import VBUILD, Workdir, on_small_disk, refusal, stage_folders, wheels
from vbuild.hardware.driver import Dotted
from vbuild.recipe.compiling import ToolkitSpec
from vbuild.toolchain.toolkit import releases
from vbuild.toolchain.toolkit_provision import packaged_toolkit, provided_toolkit

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="builds for x86-64"),
]

NEWEST = str(max(releases()))
ONE = 'cuda = [{ toolkit = "13.0", gpus = { sm80 = "80" } }]'


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Workdir:
    """A release of a plain wheel, one for 8.0 and one for 9.0."""
    folder = tmp_path_factory.mktemp("released")
    cuda_project(folder / "project", archs=(80, 90))
    workdir = with_recipe(Workdir.at(folder), TWO)
    assert workdir.vbuild("matrix", "demo.toml", "-o", "out").returncode == 0
    return workdir


@pytest.fixture
def again(released: Workdir, tmp_path: Path) -> Workdir:
    """That workdir with its release, as a copy to work on."""
    shutil.copytree(released.folder, tmp_path, symlinks=True, dirs_exist_ok=True)
    return Workdir(tmp_path, tmp_path / "cache")


def failed(workdir: Workdir, **variables: str) -> str:
    """What is said of a release of which nothing comes; the former one and all finished work stay as they are."""
    out = workdir.folder / "out"
    before, work = {**wheels(out), "": (out / "demo-1.0-variants.json").read_bytes()}, workdir.finished_work()
    ran = workdir.vbuild("matrix", "demo.toml", "-o", "out", **variables)
    count = ran.stdout.count("plain, sm80, sm90 failed: ")
    assert refusal(ran) == "demo: 3 of 3 targets failed"
    assert count == 1
    assert {**wheels(out), "": (out / "demo-1.0-variants.json").read_bytes()} == before
    assert workdir.finished_work() == work
    assert stage_folders(out) == []
    report = json.loads((out / "report.json").read_text())
    assert (report["wheels"], len(report["failures"])) == ([], 3)
    assert {path.name for path in out.iterdir() if path.suffix != ".whl"} == {
        "demo-1.0-variants.json",
        "provenance.json",
        "report.html",
        "report.json",
        "logs",
    }
    return " ".join(ran.stdout.split())


@pytest.mark.nightly
@needs("gcc", "g++")
def test_a_project_that_takes_no_notice_of_any_knob_fails(again: Workdir) -> None:
    nvcc = provided_toolkit(ToolkitSpec(Dotted(13, 0))).nvcc
    cuda_project(again.folder / "project", nvcc=str(nvcc))
    said = failed(again)
    assert (
        "compiled for sm_80 only, asked for sm_90; no command passed the wrapper of nvcc: the project calls another "
        "one by its path, and has to be told to take CUDA_HOME's or CUDACXX its log is out/logs/demo-plain-"
    ) in said


@pytest.mark.nightly
@needs("gcc", "g++")
def test_an_nvcc_that_starts_the_nvcc_on_path_ends(again: Workdir) -> None:
    home, loop = provided_toolkit(ToolkitSpec(Dotted(13, 0))).root, again.folder / "loop"
    (loop / "bin").mkdir(parents=True)
    for entry in [*home.iterdir(), *(home / "bin").iterdir()]:
        if entry not in {home / "bin", home / "bin/nvcc"}:
            (loop / entry.relative_to(home)).symlink_to(entry)
    again.add_program("nvcc", 'exec nvcc "$@"', folder="loop/bin")
    with_recipe(again, TWO.replace('"13.0"', '{ path = "loop", version = "13.0" }'))
    said = failed(again)
    assert (
        f"nvcc: error: {loop}/bin/nvcc, which vbuild's compiler wrapper runs, starts the compiler wrapper again "
        f"(PATH leads there); "
        "expected the nvcc of a CUDA toolkit"
    ) in said


@pytest.mark.nightly
@needs("gcc", "g++")
def test_a_wheel_without_code_for_what_it_is_named_after_is_not_published(again: Workdir) -> None:
    before = wheels(again.folder / "out")
    cuda_project(again.folder / "project", archs=(80,))
    with_recipe(again, f'{TWO}\n[build.cuda]\narchs = "keep"')
    ran = again.vbuild("matrix", "demo.toml", "-o", "out")
    assert refusal(ran) == "demo: 1 of 3 targets failed"
    assert re.search(
        r"^sm90 failed: demo-1\.0-\S+-sm90\.whl: demo\.\S+\.so: 90_real is claimed, but none of its fatbins \(1\) has "
        r"code for sm_90; they have sm_80$",
        " ".join(ran.stdout.rpartition("sm90 failed")[1:]).replace("\n ", "").replace("sm90 failed ", "sm90 failed"),
        re.MULTILINE,
    )
    # what there was for 9.0 is there still, and indexed
    after = wheels(again.folder / "out")
    [name] = (name for name in before if name.endswith("-sm90.whl"))
    assert after[name] == before[name]
    assert after.keys() == before.keys()
    assert "sm90" in json.loads((again.folder / "out/demo-1.0-variants.json").read_text())["variants"]
    assert stage_folders(again.folder / "out") == []


@pytest.mark.nightly
def test_a_toolkit_for_which_there_is_no_room_leaves_nothing_half_made(tmp_path: Path) -> None:
    workdir = Workdir.at(tmp_path, shared=())
    disk = tmp_path / "small"
    ran, left = on_small_disk(workdir, disk, "16m", *VBUILD, "toolkit", "install", NEWEST, XDG_CACHE_HOME=str(disk))
    assert ": cannot be written: No space left on device; " in refusal(ran)
    stamped = {Path(path).parent for path in left if path.endswith("/.vbuild.json")}
    files = [Path(path) for path in left if "/.locks/" not in path and not path.endswith("CACHEDIR.TAG")]
    assert [str(path) for path in files if stamped.isdisjoint(path.parents)] == []


@pytest.mark.nightly
def test_a_disk_that_is_full_while_a_toolkit_is_laid_out_leaves_nothing_of_it(tmp_path: Path) -> None:
    workdir = Workdir.at(tmp_path)
    kept = packaged_toolkit(ToolkitSpec(Dotted(13, 0)))
    components, disk = kept.root.parent / "components", tmp_path / "small"
    links = f"mkdir -p vbuild/toolkits/components && ln -s {components}/nvidia-* vbuild/toolkits/components"
    command = (*VBUILD, "toolkit", "install", "13.0")
    ran, left = on_small_disk(workdir, disk, "8m", *command, before=links, XDG_CACHE_HOME=str(disk))
    assert refusal(ran).startswith(f"{disk}/vbuild/toolkits: cannot be written: No space left on device; ")
    assert [path for path in left if not re.search(r"\.locks|components|CACHEDIR\.TAG", path)] == []


@pytest.mark.nightly
@needs("gcc", "g++")
@pytest.mark.parametrize("size", ["40k", "200k", "1m", "5m"])
def test_a_disk_that_is_full_while_wheels_are_made_is_named(released: Workdir, tmp_path: Path, size: str) -> None:
    workdir = Workdir(released.folder, released.cache)
    disk = tmp_path / "small"
    command = (*VBUILD, "matrix", "demo.toml", "-o", disk / "out", "--fresh")
    ran, left = on_small_disk(workdir, disk, size, *command)
    said = refusal(ran)
    assert said == f"{disk}/out: cannot be written to: No space left on device" or "targets failed" in said
    assert [path for path in left if "/logs/" not in path and not Path(path).name.startswith("report.")] == []


@pytest.mark.nightly
@needs("gcc", "g++")
def test_what_cannot_be_kept_is_published_all_the_same_and_said(tmp_path: Path) -> None:
    cuda_project(tmp_path / "project")
    workdir = Workdir.at(tmp_path)
    (workdir.cache / "vbuild/builds").write_text("no folder")
    ran = with_recipe(workdir, ONE).vbuild("matrix", "demo.toml", "-o", "out")
    assert (ran.returncode, ran.stderr) == (0, "")
    said = " ".join(ran.stdout.split())
    for name in wheels(workdir.folder / "out"):
        assert f"{name}: not kept in {workdir.cache}/vbuild/builds: Not a directory" in said
