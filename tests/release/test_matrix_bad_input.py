"""What goes wrong with a matrix, as a user meets it: one line that says where and what, and nothing half-written.

Nothing is lost either: the wheels of a former release stay as they are, and so does all finished work.
"""

import os
from pathlib import Path

import pytest

from tests.factories.kernels import TWO, cuda_project, with_recipe
from tests.factories.nvcc import Build
from tests.factories.projects import tree
from tests.factories.tools import needs
from tests.factories.wheels import wheel
from tests.factories.workdir import Workdir, file_digests, refusal
from vbuild.hardware.driver import Dotted
from vbuild.recipe.compiling import ToolkitSpec
from vbuild.toolchain.toolkit_provision import packaged_toolkit

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="builds for x86-64")


def cuda(entry: str) -> str:
    """A matrix of one toolkit."""
    return f"cuda = [{{ {entry} }}]"


def gpus(table: str) -> str:
    return cuda(f'toolkit = "13.0", gpus = {table}')


@pytest.fixture
def workdir(tmp_path: Path) -> Workdir:
    cuda_project(tmp_path / "project")
    return Workdir.at(tmp_path)


RECIPES = {
    "a removed architecture": (
        gpus('{ a = "70" }'),
        "matrix.cuda[0].gpus.a: sm_70: CUDA 13.0 cannot compile for it; 9.0 to 12.9 can",
    ),
    "one label twice in a table": (
        gpus('{ a = "80", a = "90" }'),
        "not TOML: Duplicate inline table key 'a' (at line 5, column 56)",
    ),
    "a word for what becomes of lists": (
        f'{TWO}\n[build.cuda]\narchs = "override"',
        "build.cuda.archs: found 'override'; expected 'intersect', 'complete', 'replace' or 'keep'",
    ),
}


def refused(workdir: Workdir, **variables: str) -> str:
    """What is said of the recipe there; the folder for results, which has a former release, stays as it is."""
    out = workdir.folder / "out"
    wheel(out, "demo-1.0-py3-none-any.whl")
    tree(out, {"report.json": "{}\n", "demo-1.0-variants.json": "{}\n"})
    before, source = file_digests(out), file_digests(workdir.folder / "project")
    ran = workdir.vbuild("matrix", "demo.toml", "-o", "out", **variables)
    assert ran.stdout == ""
    assert file_digests(out) == before
    assert file_digests(workdir.folder / "project") == source
    assert workdir.finished_work() == {}
    return refusal(ran).replace(str(workdir.folder), "DIR")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("what", RECIPES)
def test_a_recipe_that_cannot_be_carried_out_is_refused_in_one_line(workdir: Workdir, what: str) -> None:
    matrix, said = RECIPES[what]
    assert refused(with_recipe(workdir, matrix)) == f"demo.toml: {said}"


@pytest.mark.nightly
def test_a_folder_for_results_that_was_not_there_is_not_there_afterwards(workdir: Workdir) -> None:
    for matrix in (gpus('{ a = "70" }'), cuda('toolkit = "12.4", gpus = { a = "80" }')):
        refusal(with_recipe(workdir, matrix).vbuild("matrix", "demo.toml", "-o", "new/dist"))
        assert not (workdir.folder / "new/dist").exists()


@pytest.mark.nightly
@pytest.mark.network
@needs("gcc", "g++")
def test_wrappers_of_another_build_on_path_are_passed_over(workdir: Workdir) -> None:
    wrappers = Build(workdir.folder / "other", "80", home=packaged_toolkit(ToolkitSpec(Dotted(13, 0))).root).wrappers
    with_recipe(workdir, 'cpu = ["x86-64"]\n' + gpus('{ sm80 = "80" }'))
    ran = workdir.vbuild("matrix", "demo.toml", "-o", "out", PATH=f"{wrappers.folder}{os.pathsep}{os.environ['PATH']}")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert not (wrappers.folder / "nvcc.jsonl").exists()
    assert not wrappers.log.exists()
