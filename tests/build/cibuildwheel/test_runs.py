"""The variables of runs, by what cibuildwheel's own code makes of them: with vbuild's, and without."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.factories.cibuildwheel_runs import (
    ALL,
    CP311,
    CP312,
    KIT,
    LEVELS,
    OURS,
    described,
    evaluated,
    identifiers_of,
    options_of,
    runs_for,
    runs_of,
    with_vbuild,
)
from vbuild.build.cibuildwheel import runs as places
from vbuild.build.cibuildwheel.runs import ignored_keys
from vbuild.build.plan import BuildBackend
from vbuild.cli.build import run_lines
from vbuild.errors import BuildError
from vbuild.hardware.cpu import Cpu
from vbuild.recipe.model import Recipe
from vbuild.release.cibuildwheel import foreseen_runs

# an image has a python, which this machine may not have on PATH
IMAGE = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def test_a_builds_environment_has_the_wrappers_first_and_the_recipes_values_as_they_are(tmp_path: Path) -> None:
    text = '[tool.cibuildwheel]\nenvironment = { PATH = "/opt/tool:$PATH", RUSTC_WRAPPER = "sccache" }\n'
    described(tmp_path, text + LEVELS + OURS)
    _, added = with_vbuild(tmp_path, {})
    found = evaluated(tmp_path, added, {"PATH": os.environ["PATH"], "HOME": "/root"})
    assert found["PATH"] == f"{places.WRAPPERS}:/opt/tool:{os.environ['PATH']}"
    assert found["OURS"] == 'it\'s "ours" and $HOME'
    assert (found["RUSTC_WRAPPER"], found["VBUILD_RUSTC_WRAPPER"]) == (f"{places.WRAPPERS}/rustc-launcher", "sccache")
    assert found["CARGO_BUILD_TARGET"] == f"{os.uname().machine}-unknown-linux-gnu"


def test_what_makes_builds_the_same_is_set_unless_the_image_the_project_or_the_recipe_says_otherwise(
    tmp_path: Path,
) -> None:
    text = '[tool.cibuildwheel]\nenvironment = { TZ = "Asia/Kolkata", CMAKE_ARGS = "-DA=1" }\n'
    described(tmp_path, f'{text}{LEVELS}[tool.vbuild.build]\nenv = {{ PYTHONHASHSEED = "7" }}\n')
    _, level = runs_of(tmp_path)
    found = evaluated(tmp_path, dict(level.variables), {"PATH": os.environ["PATH"], "LC_ALL": "en_US.UTF-8"})
    expected = {"LC_ALL": "en_US.UTF-8", "TZ": "Asia/Kolkata", "PYTHONHASHSEED": "7", "ZERO_AR_DATE": "1"}
    assert {name: found[name] for name in expected} == expected
    assert found["CMAKE_ARGS"] == "-DCMAKE_BUILD_RPATH_USE_ORIGIN=ON -DA=1"


def test_a_cache_of_the_project_has_a_namespace_for_each_level(tmp_path: Path) -> None:
    described(tmp_path, '[tool.cibuildwheel]\nenvironment = { CCACHE_NAMESPACE = "mine" }\n' + LEVELS)
    found = [
        evaluated(tmp_path, dict(run.variables), {"PATH": "/bin"}) for run in (*runs_of(tmp_path), *runs_of(tmp_path))
    ]
    names = [each["CCACHE_NAMESPACE"] for each in found]
    assert all(re.fullmatch(r"mine-[0-9a-f]{16}", name) for name in names)
    assert (names[:2], len(set(names))) == (names[2:], 2)
    # the compiler wrappers have to hear of each source
    assert {(each["CCACHE_NODIRECT"], each["SCCACHE_DIRECT"]) for each in found} == {("1", "false")}


@pytest.mark.parametrize(
    "theirs", ["", "echo theirs", "echo theirs\n", "echo theirs  # and a word on it", "set -e\necho theirs\nexit 0\n"]
)
@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_the_program_in_the_container_runs_behind_the_projects_command(theirs: str, shell: str, tmp_path: Path) -> None:
    described(tmp_path, f"[tool.cibuildwheel]\nbefore-build = {json.dumps(theirs)}\n" + LEVELS)
    _, added = with_vbuild(tmp_path, {})
    command = options_of(tmp_path, added).before_build.replace(str(KIT), str(tmp_path))
    (tmp_path / "vbuild" / "build" / "cibuildwheel").mkdir(parents=True)
    (tmp_path / "vbuild" / "build" / "cibuildwheel" / "container.py").write_text(
        "import sys; print('ours', sys.argv[1])"
    )
    ran = subprocess.run([shell, "-c", command], env=IMAGE, capture_output=True, text=True, check=True)
    lines = ["theirs"] if theirs else []
    assert ran.stdout.splitlines() == [*lines, f"ours {tmp_path}/runs/x86_64_v3"]


def test_nothing_is_put_into_the_container_behind_a_command_that_failed(tmp_path: Path) -> None:
    described(tmp_path, '[tool.cibuildwheel]\nbefore-build = "exit 7"\n' + LEVELS)
    _, added = with_vbuild(tmp_path, {})
    ran = subprocess.run(["sh", "-c", options_of(tmp_path, added).before_build], capture_output=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (7, b"", b"")


def test_a_kit_that_is_not_mounted_is_one_line(tmp_path: Path) -> None:
    described(tmp_path, LEVELS)
    _, added = with_vbuild(tmp_path, {})
    command = options_of(tmp_path, added).before_build
    ran = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert ran.stderr == (
        "vbuild: /host/kit cannot be read in the container; cibuildwheel mounts the host at /host, unless "
        "disable-host-mount is set or the engine is on another machine\n"
    )


def test_the_recipes_own_commands_run_in_the_package_behind_ours(tmp_path: Path) -> None:
    described(tmp_path, LEVELS + '[tool.vbuild.build]\nbefore-build = ["pwd", "echo \'it is\' \\"$HOME\\""]\n')
    _, added = with_vbuild(tmp_path, {})
    (tmp_path / "vbuild" / "build" / "cibuildwheel").mkdir(parents=True)
    (tmp_path / "vbuild" / "build" / "cibuildwheel" / "container.py").write_text("print('ours')")
    command = options_of(tmp_path, added).before_build.replace(str(KIT), str(tmp_path))
    command = command.replace("{package}", str(tmp_path / "vbuild"))
    ran = subprocess.run(["sh", "-c", command], env={**IMAGE, "HOME": "/h"}, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["ours", f"{tmp_path}/vbuild", "it is /h"]


def test_tests_are_skipped_where_this_machine_cannot_run_the_code(tmp_path: Path) -> None:
    described(tmp_path, '[tool.cibuildwheel]\ntest-skip = "pp*"\ntest-command = "true"\n' + LEVELS)
    environment = {"CIBW_TEST_SKIP": "*-musllinux*", "CIBW_INHERIT": "test-skip: append"}
    for machine, tested in ((Cpu.parse("x86-64-v3"), True), (Cpu.parse("x86-64-v2"), False), (None, False)):
        plain, level = runs_of(tmp_path, environment=environment, machine=machine)
        assert options_of(tmp_path, {**environment, **dict(plain.variables)}).is_tested
        assert options_of(tmp_path, {**environment, **dict(level.variables)}).is_tested is tested
        assert level.is_tested is tested


def test_a_repair_that_the_recipe_asks_for_takes_the_place_of_the_projects(tmp_path: Path) -> None:
    project = '[tool.cibuildwheel]\nrepair-wheel-command = "their {wheel}"\n' + LEVELS
    for repair, expected in (
        ('command = "ours {wheel} {dest_dir}"', "ours {wheel} {dest_dir}"),
        ("skip = true", ""),
        ('exclude = ["libfoo.so*"]', "their {wheel}"),
    ):
        described(tmp_path, f"{project}[tool.vbuild.repair]\n{repair}\n")
        assert options_of(tmp_path, dict(runs_of(tmp_path)[-1].variables)).repair == expected
        # what the user says for this one time counts more
        for name in ("CIBW_REPAIR_WHEEL_COMMAND", "CIBW_REPAIR_WHEEL_COMMAND_LINUX"):
            given = {name: "users {wheel}"}
            run = runs_of(tmp_path, environment=given)[-1]
            assert options_of(tmp_path, {**given, **dict(run.variables)}).repair == "users {wheel}"


def test_each_build_is_for_the_identifiers_of_its_machine(tmp_path: Path) -> None:
    described(tmp_path, LEVELS)
    plain, bare, level = runs_of(tmp_path, *ALL)
    assert plain.identifiers == level.identifiers == (CP311, CP312, "cp311-musllinux_x86_64")
    assert bare.identifiers == ("cp311-manylinux_i686", "cp311-manylinux_aarch64")
    assert identifiers_of(tmp_path, dict(level.variables), *ALL) == list(level.identifiers)
    assert identifiers_of(tmp_path, dict(bare.variables), *ALL) == list(bare.identifiers)
    assert [name for name, _ in bare.variables] == ["CIBW_BUILD", "CIBW_INHERIT", "SOURCE_DATE_EPOCH"]
    assert (bare.plan, bare.name, bare.settings()) == (None, "plain-bare", {})


def test_nothing_to_build_is_one_line(tmp_path: Path) -> None:
    described(tmp_path, '[tool.vbuild.matrix]\ncpu = ["x86-64-v3"]\n')
    recipe = Recipe.load(tmp_path)
    with pytest.raises(BuildError) as refused:
        runs_for(tmp_path, ("cp311-manylinux_aarch64",), only=("x86_64_v3",))
    why = (
        "nothing to build for x86_64: cibuildwheel has cp311-manylinux_aarch64; expected some for it: CIBW_ARCHS=x86_64"
    )
    assert str(refused.value) == f"{recipe.file}: {why}"


def test_a_selection_of_nothing_is_one_line(tmp_path: Path) -> None:
    described(tmp_path, LEVELS)
    with pytest.raises(BuildError) as refused:
        runs_for(tmp_path, ())
    assert str(refused.value) == (
        f"{tmp_path}/pyproject.toml: cibuildwheel selects nothing; expected some: look at CIBW_BUILD, CIBW_SKIP, "
        f"CIBW_ARCHS"
    )


AXES = """
[tool.vbuild.matrix]
cpu = ["x86-64", "x86-64-v3"]
[tool.vbuild.matrix.axes.blas]
mkl = { env = { BLAS = "mkl" }, config-settings = { blas = "mkl" } }
openblas = { properties = ["blas :: kind :: openblas"], env = { BLAS = "openblas" } }
"""


def test_the_values_of_an_axis_reach_their_runs(tmp_path: Path) -> None:
    described(tmp_path, AXES)
    found = {str(run): options_of(tmp_path, dict(run.variables)) for run in runs_of(tmp_path)}
    assert list(found) == ["plain", "openblas", "x86_64_v3", "x86_64_v3_openblas"]
    assert found["plain"].assignments[0] == 'BLAS="mkl"'
    assert found["x86_64_v3"].settings == {"blas": ("mkl",)}
    assert found["x86_64_v3_openblas"].assignments[0] == 'BLAS="openblas"'
    assert found["x86_64_v3_openblas"].settings == {}


CUDA = """
[tool.vbuild.matrix]
cpu = ["x86-64", "x86-64-v3"]
[[tool.vbuild.matrix.cuda]]
toolkit = "13.0"
gpus = { cu13_turing = "75", cu13_ampere = "80+ptx" }
"""


def test_the_gpus_of_a_toolkit_share_a_run_that_knows_where_it_is(tmp_path: Path) -> None:
    described(tmp_path, CUDA + '[tool.cibuildwheel]\nenvironment = { CMAKE_ARGS = "-DA=1", CUDAARCHS = "70" }\n')
    plain, level = runs_of(tmp_path, CP311, "cp311-musllinux_x86_64")
    assert str(level) == "x86_64_v3_cu13_turing, x86_64_v3_cu13_ampere"
    assert plain.identifiers == level.identifiers == (CP311,)
    assert "--exclude=libcuda.so*" in plain.repair
    found = evaluated(tmp_path, dict(level.variables), {"PATH": os.environ["PATH"]})
    assert found["CUDA_HOME"] == found["CUDA_PATH"] == str(places.CUDA)
    assert found["PATH"].startswith(f"{places.WRAPPERS}:{places.CUDA}/bin:")
    assert found["CUDACXX"] == "nvcc"
    assert found["CUDAARCHS"] == "70"  # the project's knob, which the compiler wrapper brings to the request
    assert found["TORCH_CUDA_ARCH_LIST"] == "7.5;8.0+PTX"
    given = "-DCMAKE_BUILD_RPATH_USE_ORIGIN=ON -DA=1"
    assert found["CMAKE_ARGS"] == f"{given} -DCMAKE_CUDA_ARCHITECTURES=75-real;80-real;80-virtual"
    settings = level.settings()
    assert settings["nvcc"]["nvcc"] == "/host/opt/cuda-13.0/bin/nvcc"
    assert settings["nvcc"]["archs"] == "sm_75,sm_80+PTX"


def test_config_settings_that_cuda_needs_are_added_to_the_projects(tmp_path: Path) -> None:
    described(tmp_path, CUDA + '[tool.cibuildwheel]\nconfig-settings = { "cmake.define.A" = "1" }\n')
    run = runs_of(tmp_path, backend=BuildBackend.SCIKIT_BUILD_CORE)[-1]
    assert options_of(tmp_path, dict(run.variables)).settings == {
        "cmake.define.A": ("1",),
        "cmake.define.CMAKE_CUDA_ARCHITECTURES": ("75-real;80-real;80-virtual",),
    }


def test_keys_of_the_recipe_without_an_effect_are_told_once_each(tmp_path: Path) -> None:
    described(
        tmp_path,
        LEVELS
        + """
[tool.vbuild.build]
requires = ["cython"]
isolation = false
host = "zig"
glibc = "2.17"
cache = "none"
patches = ["fix.patch"]
pass-env = ["DEMO_*"]
[tool.vbuild.test]
command = "true"
""",
    ).joinpath("fix.patch").touch()
    (tmp_path / "vbuild.lock").touch()
    assert ignored_keys(Recipe.load(tmp_path)) == (
        "build.patches: has no effect with cibuildwheel; apply them in before-all",
        "build.requires: has no effect with cibuildwheel; name them in build-system.requires",
        "build.isolation: has no effect with cibuildwheel; that is build-frontend's",
        "build.host: has no effect with cibuildwheel; the compilers are those of the image",
        "build.glibc: has no effect with cibuildwheel; the image chooses it",
        "build.cache: has no effect with cibuildwheel; mount a cache, and set it up in before-all",
        "build.pass-env: has no effect with cibuildwheel; name them in environment-pass",
        "vbuild.lock: has no effect with cibuildwheel; give build-system.requires versions",
        "test.command: has no effect with cibuildwheel but in the emulator; its own test-command counts",
    )
    (tmp_path / "vbuild.lock").unlink()
    assert ignored_keys(Recipe.load(described(tmp_path, LEVELS))) == ()


def test_what_is_planned_and_what_cibuildwheel_refuses_show_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    described(tmp_path, LEVELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CIBW_ENVIRONMENT", 'API_TOKEN="correct-horse" MODE=fast')
    told = [line for run in foreseen_runs(["--only", CP311]) for line in run_lines([run])]
    assert "MODE=fast" in "".join(told)
    assert "correct-horse" not in "".join(told)
    monkeypatch.setenv("CIBW_INHERIT", "API_TOKEN=correct-horse")
    with pytest.raises(BuildError, match="Unknown option 'API_TOKEN=sha256:") as error:
        foreseen_runs()
    assert "correct-horse" not in str(error.value)
