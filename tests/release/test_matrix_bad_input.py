"""What goes wrong with a matrix, as a user meets it: one line that says where and what, and nothing half-written.

Nothing is lost either: the wheels of a former release stay as they are, and so does all finished work.
"""

import os
import re
from pathlib import Path

import pytest

from tests.factories.kernels import TWO, cuda_project, with_recipe
from tests.factories.nvcc import Build
from tests.factories.projects import tree
from tests.factories.toolkits import installed
from tests.factories.tools import host_compilers, needs
from tests.factories.wheels import wheel
from tests.factories.workdir import Workdir, file_digests, refusal, without_installed_toolkits
from vbuild.hardware.driver import Dotted
from vbuild.recipe.compiling import ToolkitSpec
from vbuild.toolchain.toolkit import releases
from vbuild.toolchain.toolkit_provision import packaged_toolkit

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="builds for x86-64")

NEWEST = str(max(releases()))


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
@pytest.mark.parametrize(
    ("version", "why"),
    [("12.4", f"no nvcc for CUDA before 13.0, only 13.0 to {NEWEST}"), ("14.0", "nothing for it that this vbuild")],
)
def test_a_toolkit_that_is_not_to_be_had_is_named_with_those_that_are(workdir: Workdir, version: str, why: str) -> None:
    said = refused(with_recipe(workdir, cuda(f'toolkit = "{version}", gpus = {{ a = "80" }}')))
    assert said.startswith(f"demo: plain: CUDA {version}: the package index has {why}")
    way_out = f'install CUDA {version} and set CUDA_HOME, or write toolkit = {{ path = "…", version = "{version}" }}'
    assert way_out in said


@pytest.mark.nightly
def test_a_toolkits_path_that_does_not_fit_is_refused(workdir: Workdir) -> None:
    (workdir.folder / "empty").mkdir()
    installed(workdir.folder / "older", 12040)
    installed(workdir.folder / "half", 13000, without="bin/ptxas")
    for name, said in (
        ("empty", "no bin/nvcc; expected the folder of an installed CUDA 13.0"),
        (
            "older",
            'CUDA 12.4; the recipe says version 13.0: name the folder of that, or write version = "12.4"',
        ),
        ("half", "CUDA 13.0 without bin/ptxas; install them, or leave path out"),
    ):
        with_recipe(workdir, cuda(f'toolkit = {{ path = "{name}", version = "13.0" }}, gpus = {{ a = "80" }}'))
        assert refused(workdir) == f"demo: plain: DIR/{name}: {said}"


TOO_NEW = """case " $* " in
*" -dM "*) {program} "$@" | sed 's/^#define __GNUC__ .*/#define __GNUC__ 99/' ;;
*) exec {program} "$@" ;;
esac"""


@pytest.mark.nightly
@pytest.mark.network
@needs("gcc", "g++")
@pytest.mark.parametrize("how", ["PATH", "CC"])
def test_a_host_compiler_that_nvcc_does_not_take_is_refused(workdir: Workdir, how: str) -> None:
    for name, program in host_compilers().items():
        workdir.add_program(name, TOO_NEW.format(program=program))
    variables = {"PATH": workdir.path()} if how == "PATH" else {"CC": str(workdir.folder / "programs/gcc")}
    said = refused(with_recipe(workdir, TWO), **variables)
    form = r"demo: plain: gcc 99\.\d+ is too new for nvcc 13\.0, which takes gcc up to 15; "
    assert re.fullmatch(form + r"install gcc-15 and set CC=gcc-15 CXX=g\+\+-15", said)


@pytest.mark.nightly
@pytest.mark.network
@needs("gcc", "g++")
@pytest.mark.parametrize("how", ["CUDA_HOME", "PATH"])
def test_a_wrapper_of_nvcc_in_the_place_of_a_toolkit_is_refused(workdir: Workdir, how: str) -> None:
    wrappers = Build(workdir.folder / "other", "80", home=packaged_toolkit(ToolkitSpec(Dotted(13, 0))).root).wrappers
    variables = {"CUDA_HOME": str(wrappers.cuda)}
    if how == "PATH":
        workdir = without_installed_toolkits(workdir)
        variables = {"PATH": f"{wrappers.cuda}/bin{os.pathsep}{os.environ['PATH']}"}
    assert refused(with_recipe(workdir, TWO), **variables) == (
        "demo: plain: DIR/other/launchers/cuda/bin/nvcc: a compiler wrapper of vbuild, which would start "
        "itself without end; "
        "expected the nvcc of a CUDA toolkit: point CUDA_HOME at one, or leave it out"
    )


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
