"""The report of a release with GPUs on a terminal of 80 columns: long labels, many GPUs, wheels that fail together."""

import os
import re
from pathlib import Path

import pytest

from tests.factories.kernels import cuda_project
from tests.factories.projects import tree
from tests.factories.tools import needs
from tests.factories.workdir import WIDTH, Workdir
from vbuild.cli.render import release_lines
from vbuild.hardware.cpu import Cpu
from vbuild.recipe.target import Target
from vbuild.release.model import Failure, ReleaseResult

LONG = "all_the_older_ones_of_the_institute"
RECIPE = f"""
name = "demo"
[source]
path = "project"
[matrix]
cpu = ["x86-64", "x86-64-v3"]
[[matrix.cuda]]
toolkit = "13.0"
gpus = {{ {LONG} = "75,80,86,87,88,89,90,90a,100,103", sm120 = "120+ptx" }}
[build]
cache = "none"
cuda.archs = "replace"
"""
NOT_FOR_AVX2 = '#ifdef __AVX2__\n#error "no AVX2, please"\n#endif\n'
GPUS = "sm_75, sm_80, sm_86, sm_87, sm_88, sm_89, sm_90, sm_90a,"


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Workdir:
    """A project that cannot be compiled for x86-64-v3."""
    folder = tmp_path_factory.mktemp("workdir")
    project = cuda_project(folder / "project")
    tree(project, {"module.c": NOT_FOR_AVX2 + (project / "module.c").read_text()})
    tree(folder, {"demo.toml": RECIPE})
    return Workdir.at(folder)


def is_narrow(line: str) -> bool:
    """Whether *line* fits, or is one word: a path or a file name, which somebody copies."""
    return len(line) <= WIDTH or " " not in line.strip()


@pytest.mark.nightly
@pytest.mark.network
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="builds for x86-64")
@needs("gcc", "g++")
def test_a_release_with_gpus_fits_a_terminal(workdir: Workdir) -> None:
    ran = workdir.vbuild("matrix", "demo.toml", "-o", "dist")
    assert ran.stderr == "vbuild: demo: 2 of 5 targets failed\n"
    report, failure, log = ran.stdout.partition(f"x86_64_v3_{LONG}, x86_64_v3_sm120 failed:")
    assert report
    assert failure  # once for both
    lines = [line for line in report.splitlines() if "debug information" not in line]
    assert [line for line in lines if not is_narrow(line)] == []
    table = [re.sub(r" +\d+\.\d+ ", " N ", line) for line in lines]
    table = [re.sub(r"imported as v1$", "no test", line) for line in table]  # if there is an emulator
    name = "demo-1.0-cp3-platform"
    table = [re.sub(r"demo-1\.0-cp3\w+-cp3\w+-\w+(?:\.\w+)*?_x86_64(?=[-.])", name, line) for line in table]
    assert table == [
        "variant                     size    build  instruction sets       test",
        "plain N MB N s  ok                     no test",
        f"  {name}.whl",
        f"  GPU code: {GPUS} sm_100,",
        "            sm_103, sm_120, PTX for sm_120",
        LONG,
        " N MB     same  ok                     no test",
        f"  {name}-{LONG}.whl",
        f"  GPU code: {GPUS} sm_100,",
        "            sm_103",
        "sm120 N MB     same  ok                     no test",
        f"  {name}-sm120.whl",
        "  GPU code: sm_120, PTX for sm_120",
        f"demo-1.0-variants.json: {LONG}, sm120",
        "lists of GPU architectures that were changed: 1",
        "  kernel.cu: sm_80 -> sm_75,sm_80,sm_86,sm_87,sm_88,sm_89,sm_90,sm_90a,sm_100,",
        "      sm_103,sm_120,compute_120",
    ]
    # the innermost frame at most: what the compiler said is in sight
    assert "no AVX2, please" in log
    again = workdir.vbuild("matrix", "demo.toml", "-o", "dist").stdout
    assert "kept from an earlier run: 3 of 5 wheels; --fresh builds them again\n" in again


def failure(label: str, error: str, log: Path | None = None) -> Failure:
    return Failure(Target(label, "3.12", Cpu.parse("x86-64-v3")), error, log)


def failures(*failed: Failure) -> list[str]:
    return list(release_lines(ReleaseResult("demo", "project", (), failed, ())))


def test_wheels_that_fail_alike_are_told_once() -> None:
    why = "the flags for x86-64-v3 did not arrive"
    assert failures(failure("a", f"demo-a.whl: {why}"), failure("b", f"demo-b.whl: {why}")) == [f"a, b failed: {why}"]
    assert failures(failure("a", "demo.whl: not of other"), failure("b", "no")) == [
        "a failed: demo.whl: not of other",
        "b failed: no",
    ]


def test_where_a_log_is_is_told_once() -> None:
    log = Path("dist/logs/demo.log")
    shown = f"gcc failed with status 1; its log is {log}, which ends:\nno"
    assert failures(failure("a", shown, log)) == [f"a failed: {shown.splitlines()[0]}", "no"]
    assert failures(failure("a", "no GPU code", log)) == ["a failed: no GPU code", f"  its log is {log}"]


def test_logs_that_end_alike_are_told_once() -> None:
    def one(label: str, end: str) -> Failure:
        log = Path(f"logs/{label}.log")
        return failure(label, f"hook failed; its log is {log}, which ends:\n{end}", log)

    assert failures(one("a", "no way"), one("b", "no way"), one("c", "no room")) == [
        "a, b failed: hook failed; its log is logs/a.log, which ends:",
        "no way",
        "  its log is logs/b.log",
        "c failed: hook failed; its log is logs/c.log, which ends:",
        "no room",
    ]


def test_a_long_reason_is_wrapped_between_words() -> None:
    error = f"{'a long reason, ' * 10}and /a/path{'/that/is/long' * 8} too"
    lines = failures(failure("a", error))
    assert " ".join(line.strip() for line in lines) == f"a failed: {error}"
    assert [line for line in lines if not is_narrow(line)] == []
    assert all(line.startswith("  ") for line in lines[1:])
