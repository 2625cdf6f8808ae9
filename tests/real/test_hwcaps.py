"""Real extension modules of five kinds, and real projects, joined: each level's own code is run, and does its work.

Rust's crates are those that come with orjson's sdist: PyO3's bindings among them.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.factories.hwcaps_wheels import LOADER, MASKS, environment, flags, levels_here, program_output, unpacked
from tests.factories.tools import needs
from tests.factories.variants import variant
from tests.factories.workdir import VBUILD
from vbuild.build.source import fetched_source
from vbuild.elf.linkage import level_of
from vbuild.hardware.cpu import Cpu
from vbuild.publishing.check import check_layout
from vbuild.publishing.hwcaps.plan import Hwcaps
from vbuild.publishing.publish import publish
from vbuild.recipe.model import Recipe
from vbuild.variants.stamp import stamped
from vbuild.verification.level_runs import LevelSettings, run_levels

ROOT = Path(__file__).parents[2]
KINDS = ROOT / "tests" / "projects" / "kinds"
LEVELS = ("v1", "v3", "v4")
UV = Path(sys.executable).with_name("uv")
TAKEN = {"v4": "v4", "v3": "v3", "v2": "v1", "v1": "v1"}

pytestmark = [
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.skipif(levels_here()[0] != "v4", reason="a processor of level v4, and glibc 2.33, are needed"),
]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with what the projects need to be built."""
    folder = tmp_path_factory.mktemp("building") / "environment"
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, folder], check=True)
    found = folder / "bin" / "python"
    packages = ["setuptools", "wheel", "cython", "pybind11", "build"]
    subprocess.run([UV, "pip", "install", "--quiet", "--python", found, *packages], check=True)
    return found


@pytest.fixture(scope="module")
def rust(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Rust module's sources, and the crates that it needs."""
    folder = tmp_path_factory.mktemp("rust")
    sdist = fetched_source(Recipe.load(ROOT / "recipes" / "orjson.toml").source)
    subprocess.run(["tar", "-xzf", sdist, "-C", folder], check=True)
    [crates] = folder.glob("*/include/cargo")
    shutil.copytree(KINDS / "rust", folder / "project")
    (folder / "project" / ".cargo").mkdir()
    source = f'[source.crates-io]\nreplace-with = "here"\n[source.here]\ndirectory = "{crates}"\n'
    (folder / "project" / ".cargo" / "config.toml").write_text(source)
    return folder / "project"


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory, python: Path, rust: Path) -> Path:
    """The site-packages of the joined wheel."""
    folder = tmp_path_factory.mktemp("kinds")
    wheels = [kinds_wheel(level, folder, python, rust) for level in LEVELS]
    publish(wheels, folder / "site", layouts=[Hwcaps()])
    assert check_layout(folder / "site", "hwcaps").problems == ()
    [joined] = (folder / "site" / "hwcaps").glob("*.whl")
    return unpacked(joined, folder / "an installation")


def kinds_wheel(level: str, folder: Path, python: Path, rust: Path) -> Path:
    """The project's wheel for *level*, with the module in Rust."""
    march = flags(level)[-1]
    tree = folder / level / "tree"
    shutil.copytree(KINDS, tree)
    variables = {**os.environ, "CFLAGS": f"-O3 {march}", "CXXFLAGS": f"-O3 {march}"}
    command: list[str | Path] = [python, "-m", "build", "--wheel", "--no-isolation", "-o", folder / level, tree]
    subprocess.run(command, env=variables, check=True, capture_output=True)
    [wheel] = (folder / level).glob("*.whl")
    target = folder / level / "target"
    told = {"RUSTFLAGS": f"-C target-cpu={march.removeprefix('-march=')}", "PYO3_PYTHON": str(python)}
    cargo: list[str | Path] = ["cargo", "build", "--quiet", "--release", "--offline", "--target-dir", target]
    subprocess.run(cargo, cwd=rust, env={**os.environ, **told}, check=True, capture_output=True)
    with_rust = with_module(wheel, target / "release" / "lib_rust.so", folder / level / "whole")
    return labelled(with_rust, level, folder)


def with_module(wheel: Path, library: Path, folder: Path) -> Path:
    """The *wheel* with one more module, packed by the project that defines wheels."""
    tree = unpacked(wheel, folder / "tree")
    shutil.copy(library, tree / "kinds" / f"_rust{sysconfig.get_config_var('EXT_SUFFIX')}")
    command = [sys.executable, "-m", "wheel", "pack", str(tree), "--dest-dir", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


def labelled(wheel: Path, level: str, folder: Path) -> Path:
    """The plain wheel for v1, else a variant wheel of *level*."""
    if level == "v1":
        return wheel
    cpu = Cpu("x86_64", level)
    return stamped(wheel, folder / "variants", variant=variant(cpu.label, cpu.variant_property))


PROGRAM = "import kinds; kinds.check(); print(*kinds.levels())"


@needs("cargo")
@pytest.mark.parametrize("level", MASKS)
def test_five_kinds_of_module_take_the_processors_level_by_the_tunable(kinds: Path, level: str) -> None:
    assert program_output(kinds, PROGRAM, level=level) == " ".join([TAKEN[level]] * 5)


@needs("cargo")
@pytest.mark.parametrize("level", ["v3", "v1"])
def test_five_kinds_of_module_take_the_level_of_the_loaders_mask(kinds: Path, level: str) -> None:
    mask = {"v3": "x86-64-v3:x86-64-v2", "v1": ""}[level]
    assert program_output(kinds, PROGRAM, before=(LOADER, "--glibc-hwcaps-mask", mask)) == " ".join([level] * 5)


@needs("cargo", "qemu-x86_64")
@pytest.mark.parametrize(("cpu", "level"), [("Haswell", "v3"), ("Nehalem", "v1")])
def test_five_kinds_of_module_take_the_level_of_an_emulated_processor(kinds: Path, cpu: str, level: str) -> None:
    assert program_output(kinds, PROGRAM, before=("qemu-x86_64", "-cpu", cpu)) == " ".join([level] * 5)


@needs("cargo")
def test_an_interpreter_in_the_interpreter_takes_it_as_well(kinds: Path) -> None:
    inside = (
        f"import sys; sys.path.insert(0, {str(kinds)!r}); import kinds.inner._phases as p; assert p.level() == 'v4'"
    )
    program = f"import _xxsubinterpreters as s; i = s.create(); print(s.run_string(i, {inside!r}))"
    assert program_output(kinds, program) == "None"


@needs("cargo")
def test_the_loader_names_the_file_of_each(kinds: Path) -> None:
    program = f"import sys; sys.path.insert(0, {str(kinds)!r}); import kinds; kinds.modules()"
    command = [sys.executable, "-I", "-S", "-c", program]
    variables = environment("v3", LD_DEBUG="libs")
    run = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    lines = [line for line in run.stderr.splitlines() if "calling init" in line and "/x86-64-v3/" in line]
    taken = {line.rpartition("/")[2] for line in lines}
    assert {name.rpartition("-")[0] for name in taken} == {
        "libvb__abi3",
        "libvb__cython",
        "libvb__phases",
        "libvb__pybind",
        "libvb__rust",
    }


@pytest.mark.parametrize("name", ["annoy", pytest.param("orjson", marks=needs("cargo"))])
def test_a_project_is_built_joined_and_passes_its_test_at_each_level(tmp_path: Path, name: str) -> None:
    recipe = ROOT / "recipes" / f"{name}.toml"
    text = recipe.read_text().replace(
        'cpu = ["x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"]', 'cpu = ["x86-64", "x86-64-v3", "x86-64-v4"]'
    )
    (tmp_path / recipe.name).write_text(text)
    (tmp_path / name).mkdir()
    matrix = [*VBUILD, "matrix", str(tmp_path / recipe.name), "-o", str(tmp_path / "dist")]
    subprocess.run(matrix, check=True, capture_output=True, cwd=tmp_path)
    publish([tmp_path / "dist"], tmp_path / "site", layouts=[Hwcaps()])
    assert check_layout(tmp_path / "site", "hwcaps").problems == ()
    [wheel] = (tmp_path / "site" / "hwcaps").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert {level_of(path) for path in archive.namelist()} == {None, "v3", "v4"}
    ran = run_levels(wheel, LevelSettings(check=Recipe.load(tmp_path / recipe.name).test))
    assert ran.failures == ()
    assert ran.tried == LEVELS
    assert all(run.is_tested and run.loaded for run in ran.runs if run.is_tried)
