"""A matrix made by workers: the same wheels as here, from whatever source, whoever has the compilers."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.factories.dask import Cluster, clustered, needs_dask
from tests.factories.kernels import TWO, cuda_project
from tests.factories.projects import setuptools_project, tree
from tests.factories.tools import needs
from tests.factories.workdir import Workdir, refusal, stage_folders, wheels
from tests.release.test_matrix_split import LEVELS as SPLIT_LEVELS
from tests.release.test_matrix_split import SPLIT
from tests.release.test_matrix_split import TEST as SPLIT_TEST
from tests.release.test_matrix_split import recipe as split_recipe
from vbuild.recipe.model import TrialResult
from vbuild.release.cache import BuildCache
from vbuild.release.matrix import MatrixRequest, matrix
from vbuild.release.model import ReleaseResult

LEVELS = '[matrix]\ncpu = ["x86-64", "x86-64-v2", "x86-64-v3"]\n'
TEST = "[test]\ncommand = \"python -c 'import demo'\"\nemulate = 'never'\n"
BROKEN = "#ifdef __AVX2__\n#error no AVX2, please\n#endif\nvoid kernel(float *a, const float *b) { *a = *b; }\n"
pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="builds for x86-64"),
    needs("gcc"),
    needs_dask,
]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with clustered(tmp_path_factory.mktemp("cluster"), "one", "two") as cluster:
        yield cluster


def recipe(folder: Path, text: str) -> Path:
    setuptools_project(folder / "project")
    tree(folder, {"demo.toml": f'name = "demo"\n[source]\npath = "project"\n{text}'})
    return folder / "demo.toml"


def both(source: Path, folder: Path, cluster: Cluster) -> tuple[ReleaseResult, ReleaseResult]:
    """The release as workers make it, and as this machine does."""
    ours = BuildCache(folder / "store")
    return matrix(source, folder / "there", MatrixRequest(executor=cluster.executor)), matrix(
        source, folder / "here", store=ours
    )


def told(release: ReleaseResult) -> dict[str, Any]:
    """What the report says but for what is of the run: times, and what was built before."""
    data = release.data()
    for wheel in data["wheels"]:
        del wheel["build_seconds"], wheel["built"], wheel["kept"]
    return data


@pytest.mark.nightly
def test_workers_make_the_same_wheels_as_this_machine(two: Cluster, tmp_path: Path) -> None:
    source = recipe(tmp_path, LEVELS + TEST)
    there, here = both(source, tmp_path, two)
    assert not there.failures
    assert wheels(tmp_path / "there") == wheels(tmp_path / "here")
    assert told(there) == told(here)
    assert json.loads((tmp_path / "there/report.json").read_text()) == json.loads(json.dumps(there.data()))
    assert sorted(path.name for path in (tmp_path / "there").iterdir()) == sorted(
        path.name for path in (tmp_path / "here").iterdir()
    )


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["git", "path"])
def test_a_checkout_and_a_patch_of_it_are_built_there_as_here(two: Cluster, tmp_path: Path, kind: str) -> None:
    repository = tmp_path / "repository"
    project = setuptools_project(repository / "inner")
    setup = (project / "setup.py").read_text().replace('"1.0"', "f'2.{count}'")
    count = "import os\ncount = os.popen('git rev-list --count HEAD').read().strip()\n"
    tree(project, {"setup.py": count + setup, "run.sh": "#!/bin/sh\n", ".gitignore": "*.tmp\n", "a.tmp": ""})
    (project / "run.sh").chmod(0o755)
    (project / "link.c").symlink_to("module.c")

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(repository), "-c", "user.name=n", "-c", "user.email=e@x", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "all")
    with (project / "src/kernel.c").open("a") as kernel:
        kernel.write("int patched;\n")
    (tmp_path / "one.patch").write_text(git("diff"))
    git("checkout", "--quiet", ".")
    source = {
        "git": f'git = "repository"\ncommit = "{git("rev-parse", "HEAD").strip()}"',
        "path": 'path = "repository"',
    }
    how = 'subdirectory = "inner"\n[build]\npatches = ["one.patch"]\n[matrix]\ncpu = ["x86-64-v2"]\n'
    tree(tmp_path, {"demo.toml": f'name = "demo"\n[source]\n{source[kind]}\n{how}'})
    there, here = both(tmp_path / "demo.toml", tmp_path, two)
    assert {product.wheel.name.split("-")[1] for product in there.products} == {"2.1"}
    assert wheels(tmp_path / "there") == wheels(tmp_path / "here")
    assert told(there) == told(here)


@pytest.mark.nightly
def test_libraries_are_split_here_and_the_thin_wheels_tested_there(two: Cluster, tmp_path: Path) -> None:
    source = split_recipe(tmp_path, SPLIT_LEVELS + SPLIT_TEST + SPLIT)
    there, _ = both(source, tmp_path, two)
    assert not there.failures
    assert there.split
    assert there.split.companion_paths
    assert wheels(tmp_path / "there") == wheels(tmp_path / "here")


@pytest.mark.nightly
def test_one_build_for_several_gpus_is_divided_there_as_here(two: Cluster, tmp_path: Path) -> None:
    cuda_project(tmp_path / "project", archs=(80, 90))
    tree(tmp_path, {"demo.toml": f'name = "demo"\n[source]\npath = "project"\n[matrix]\n{TWO}\n'})
    there, here = both(tmp_path / "demo.toml", tmp_path, two)
    assert [product.label for product in there.products] == [None, "sm80", "sm90"]
    # nvcc writes the path of a toolkit into its code, and workers have caches of their own
    assert wheels(tmp_path / "there").keys() == wheels(tmp_path / "here").keys()
    codes = [[product.verdict.gpu_codes for product in release.products] for release in (there, here)]
    assert codes[0] == codes[1]


@pytest.mark.nightly
def test_a_client_needs_no_compiler(two: Cluster, tmp_path: Path) -> None:
    recipe(tmp_path, f"{LEVELS}[build]\nhost = 'system'\n")
    workdir = Workdir.at(tmp_path)
    (tmp_path / "empty").mkdir()
    options = ("matrix", "demo.toml", "-o", "dist")
    bare = {"PATH": str(tmp_path / "empty")}
    assert refusal(workdir.vbuild(*options, **bare)).startswith("demo: plain: no C compiler on PATH")
    ran = workdir.vbuild(*options, "--executor", str(two.executor), **bare)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert len(wheels(tmp_path / "dist")) == 3
    assert stage_folders(tmp_path / "dist") == []
    assert workdir.finished_work() == {}  # nothing of it is this machine's


@pytest.mark.nightly
def test_workers_do_not_make_again_what_they_have_from_before(two: Cluster, tmp_path: Path) -> None:
    source = recipe(tmp_path, f'{LEVELS}[build]\nenv = {{ ONLY = "{tmp_path}" }}\n')
    first = matrix(source, tmp_path / "first", MatrixRequest(executor=two.executor))
    again = matrix(source, tmp_path / "again", MatrixRequest(executor=two.executor))
    fresh = matrix(
        source,
        tmp_path / "fresh",
        MatrixRequest(executor=two.executor),
        store=BuildCache(tmp_path / "store", fresh=True),
    )
    assert (first.kept_wheels, again.kept_wheels, fresh.kept_wheels) == (0, 3, 0)
    assert wheels(tmp_path / "first") == wheels(tmp_path / "again") == wheels(tmp_path / "fresh")


@pytest.mark.nightly
def test_a_build_that_fails_there_leaves_its_log_here(two: Cluster, tmp_path: Path) -> None:
    source = recipe(tmp_path, LEVELS)
    (tmp_path / "project/src/kernel.c").write_text(BROKEN)
    release = matrix(source, tmp_path / "dist", MatrixRequest(executor=two.executor))
    assert [product.label for product in release.products] == [None, "x86_64_v2"]
    [failure] = release.failures
    assert failure.log
    assert failure.log.parent == tmp_path / "dist/logs"
    assert f"its log is {failure.log}, which ends:" in failure.error
    assert "no AVX2, please" in failure.error
    assert "no AVX2, please" in failure.log.read_text()
    assert list((tmp_path / "dist/logs").iterdir()) == [failure.log]
    # one that is mended takes its log away
    (tmp_path / "project/src/kernel.c").write_text("void kernel(float *a, const float *b) { *a = *b; }\n")
    assert not matrix(source, tmp_path / "dist", MatrixRequest(executor=two.executor)).failures
    assert not (tmp_path / "dist/logs").exists()


@pytest.mark.nightly
def test_what_a_worker_lacks_is_told_with_its_name(two: Cluster, tmp_path: Path) -> None:
    source = recipe(tmp_path, '[matrix]\ncpu = ["x86-64"]\npython = ["3.5"]\n')
    release = matrix(source, tmp_path / "dist", MatrixRequest(executor=two.executor))
    assert not release.products
    [why] = {failure.error for failure in release.failures}
    assert why.startswith(f"{os.uname().nodename}: no Python '3.5' on this machine: ")


@pytest.mark.nightly
def test_a_test_goes_to_a_worker_that_declares_the_level(tmp_path: Path) -> None:
    where = tmp_path / "tested on"
    text = f"[matrix]\ncpu = ['x86-64-v2']\n[test]\ncommand = 'echo $WORKER >> \"{where}\"'\nemulate = 'never'\n"
    source = recipe(tmp_path, f"[build]\npass-env = ['WORKER']\n{text}")
    with clustered(tmp_path / "dask") as cluster:
        for name in ("silent", "hushed"):
            cluster.work(name, preload=(), WORKER=name)
        cluster.work("telling", WORKER="telling")
        release = matrix(source, tmp_path / "dist", MatrixRequest(executor=cluster.executor))
    assert [product.trial for product in release.products] == [TrialResult.PASSED, TrialResult.PASSED]
    assert where.read_text().split() == ["telling", "telling"]


@pytest.mark.nightly
def test_another_machine_is_not_built_for_where_no_worker_has_it(tmp_path: Path) -> None:
    source = recipe(tmp_path, "[matrix]\ncpu = ['armv8-a', 'armv8.2-a']\n")
    with clustered(tmp_path / "dask", "one") as cluster:
        release = matrix(source, tmp_path / "dist", MatrixRequest(executor=cluster.executor))
    assert not release.products
    assert {failure.error for failure in release.failures} == {"no worker is for armv8-a; there are workers for x86-64"}
