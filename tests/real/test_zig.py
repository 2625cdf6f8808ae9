"""Real projects built with zig: for old machines, for a level, without a compiler, and for Arm."""

import os
import re
import shlex
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
import uv
from msgspec.structs import replace

from tests.factories.arm import arm_python
from tests.factories.tools import needs
from vbuild.build.environment import Environments
from vbuild.build.frontend import build_wheel
from vbuild.build.job import Job, build_job
from vbuild.build.repair import repaired
from vbuild.build.source import fetched_source, unpacked
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.machine import Machine
from vbuild.index_client.configuration import Indexes
from vbuild.recipe.compiling import HostCompiler, HostSettings
from vbuild.recipe.model import Recipe, TrialResult
from vbuild.release.finishing import trial_of
from vbuild.release.model import ReleaseContext
from vbuild.verification.verify import verify

RECIPES = Path(__file__).parents[2] / "recipes"
NAMES = ("annoy", "levenshtein", "contourpy")

# of the programs of a machine, those that no build does without
TOOLS = ("sh", "env", "cat", "cp", "ln", "ls", "mkdir", "mv", "rm", "sed", "grep", "uname", "tar")

pytestmark = [
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.skipif(
        os.uname().machine != "x86_64" or os.uname().sysname != "Linux", reason="levels are those of x86-64"
    ),
]


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Environments:
    return Environments(tmp_path_factory.mktemp("environments"), Indexes.configured().environment)


def built(
    name: str, cpu: str, folder: Path, environments: Environments, host: HostCompiler = HostCompiler.ZIG
) -> tuple[Job, Path]:
    """The project of the recipe *name*, built for *cpu* by *host*'s compiler, repaired and verified."""
    recipe = Recipe.load(RECIPES / f"{name}.toml")
    target = replace(recipe.targets[0], cpu=Cpu.parse(cpu), label="zig")
    project = unpacked(fetched_source(recipe.source), folder / "tree", patches=recipe.build.patches)
    job = build_job(project, target, replace(recipe.build, host=HostSettings(host)))
    log = folder / "build.log"
    result = build_wheel(job, project, folder / "work", log=log, environments=environments)
    wheel = repaired(result.wheel, folder / "out", log=log)
    assert not verify(wheel, cpu=target.cpu, baseline=None, allow=()).failed
    return job, wheel


def trial(name: str, job: Job, wheel: Path, folder: Path) -> TrialResult:
    recipe = Recipe.load(RECIPES / f"{name}.toml")
    context = ReleaseContext(recipe=recipe, targets=(job.target,), folder=folder, stage=folder)
    return trial_of(context, job.target, wheel, python=job.interpreter.path, folder=folder / "trial")


def vex(wheel: Path, folder: Path) -> int:
    """How many instructions of *wheel*'s libraries are from AVX on."""
    with zipfile.ZipFile(wheel) as archive:
        files = [archive.extract(name, folder) for name in archive.namelist() if ".so" in name]
    code = [subprocess.check_output(["objdump", "-d", "--no-show-raw-insn", file], text=True) for file in files]
    return sum(len(re.findall(r"\tv[a-z0-9]+ +.*%[xyz]mm", text)) for text in code)


@pytest.mark.parametrize("name", NAMES)
def test_a_wheel_runs_on_machines_of_2012_and_has_its_level(
    name: str, environments: Environments, tmp_path: Path
) -> None:
    for cpu in ("x86-64", "x86-64-v3"):
        job, wheel = built(name, cpu, tmp_path / cpu, environments)
        assert wheel.name.endswith("manylinux2014_x86_64.manylinux_2_17_x86_64.whl")
        assert (vex(wheel, tmp_path / cpu) > 0) == (cpu == "x86-64-v3")
        passed = TrialResult.PASSED if Machine.here().cpu.runs(job.target.cpu) else TrialResult.NOT_RUN  # type: ignore[union-attr]
        assert trial(name, job, wheel, tmp_path / cpu) is passed


@needs("cargo", "rustc")
def test_rust_is_linked_by_zig(environments: Environments, tmp_path: Path) -> None:
    job, wheel = built("orjson", "x86-64", tmp_path, environments)
    assert wheel.name.endswith("manylinux2014_x86_64.manylinux_2_17_x86_64.whl")
    assert trial("orjson", job, wheel, tmp_path) is TrialResult.PASSED


def test_a_machine_without_a_compiler_builds_all_the_same(
    environments: Environments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    for name in TOOLS:
        (tmp_path / "bin" / name).symlink_to(shutil.which(name) or name)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for name in ("CC", "CXX"):
        monkeypatch.delenv(name, raising=False)
    job, wheel = built("annoy", "x86-64", tmp_path, environments, HostCompiler.AUTO)
    assert job.compilers.why == "no C compiler on PATH: zig from the package index is used"
    assert trial("annoy", job, wheel, tmp_path) is TrialResult.PASSED


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    python = arm_python(tmp_path_factory.mktemp("arm"))
    if python is None:
        pytest.skip("no aarch64 Python of this version to be had from the distribution's mirror")
    return python


@needs("qemu-aarch64", "apt-get", "dpkg-deb")
@pytest.mark.parametrize("name", NAMES)
def test_a_wheel_for_arm_runs_there(
    name: str, arm: tuple[str, ...], environments: Environments, tmp_path: Path
) -> None:
    job, wheel = built(name, "armv8-a", tmp_path, environments)
    assert wheel.name.endswith("manylinux2014_aarch64.manylinux_2_17_aarch64.whl")
    assert trial(name, job, wheel, tmp_path) is TrialResult.NOT_RUN
    version = f"{job.interpreter.version[0]}.{job.interpreter.version[1]}"
    install = [uv.find_uv_bin(), "pip", "install", "--quiet", "--target", str(tmp_path / "site"), str(wheel)]
    install += ["--python-platform", "aarch64-manylinux2014", "--python-version", version, "--only-binary", ":all:"]
    subprocess.run(install, env={**os.environ, **Indexes.configured().environment()}, check=True)
    command = Recipe.load(RECIPES / f"{name}.toml").test.command or ""
    _python, *arguments = shlex.split(command)
    subprocess.run([*arm, *arguments], env={**os.environ, "PYTHONPATH": str(tmp_path / "site")}, check=True)
