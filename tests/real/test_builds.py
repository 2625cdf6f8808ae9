"""Real projects of each backend, built for a level and looked into with objdump."""

import os
import re
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.factories.tools import needs
from tests.surveys.sdists import PROJECTS, surveyed
from vbuild.build.environment import Environments
from vbuild.build.frontend import Built, build_wheel
from vbuild.build.job import build_job
from vbuild.build.repair import repaired
from vbuild.build.source import fetched_source, unpacked
from vbuild.hardware.cpu import Cpu
from vbuild.index_client.configuration import Indexes
from vbuild.recipe.model import Recipe

RECIPES = Path(__file__).parents[2] / "recipes"

pytestmark = [
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="levels are those of x86-64"),
]


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Environments:
    return Environments(tmp_path_factory.mktemp("environments"), Indexes.configured().environment)


def built(name: str, level: str, folder: Path, environments: Environments) -> Built:
    """The project of the recipe *name*, built for *level* as that recipe says."""
    recipe = Recipe.load(RECIPES / f"{name}.toml")
    target = next(target for target in recipe.targets if target.cpu == Cpu.known("x86_64", level))
    project = unpacked(fetched_source(recipe.source), folder / "tree", patches=recipe.build.patches)
    job = build_job(project, target, recipe.build)
    return build_wheel(job, project, folder / "work", log=folder / "build.log", environments=environments)


def libraries(wheel: Path, folder: Path) -> dict[str, str]:
    """The disassembly of every shared library in *wheel*, by its name up to the first dot."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".so")]
        files = {Path(name).name.partition(".")[0]: archive.extract(name, folder) for name in names}
    return {
        name: subprocess.run(
            ["objdump", "-d", "--no-show-raw-insn", file], capture_output=True, text=True, check=True
        ).stdout
        for name, file in files.items()
    }


def vex(code: str) -> int:
    """How many instructions are from AVX on."""
    return len(re.findall(r"\tv[a-z0-9]+ +.*%[xyz]mm", code))


@pytest.mark.parametrize(("level", "widest"), [("v1", "xmm"), ("v2", "xmm"), ("v3", "ymm"), ("v4", "zmm")])
def test_annoy_hard_codes_the_building_machine_and_gets_the_level(
    level: str, widest: str, environments: Environments, tmp_path: Path
) -> None:
    result = built("annoy", level, tmp_path, environments)
    wheel = repaired(result.wheel, tmp_path / "out", log=tmp_path / "repair.log")
    [code] = libraries(wheel, tmp_path).values()
    assert max(re.findall(r"%([xyz]mm)", code)) == widest
    assert (vex(code) > 0) == (level in {"v3", "v4"})
    assert [(change.sources, change.removed) for change in result.overrides] == [
        (("src/annoymodule.cc",), ("-march=native",))
    ]


def test_orjson_is_built_by_maturin_with_its_own_crates_and_keeps_its_dispatch(
    environments: Environments, tmp_path: Path
) -> None:
    found = {}
    for level in ("v2", "v3"):
        result = built("orjson", level, tmp_path / level, environments)
        [code] = libraries(result.wheel, tmp_path / level).values()
        assert result.overrides == ()
        found[level] = code
    functions = re.findall(r"<(\w*avx512\w*)>:", found["v2"])
    assert functions
    assert 0 < vex(found["v2"]) < vex(found["v3"]) / 5


def test_rapidfuzz_keeps_the_modules_it_dispatches_to(environments: Environments, tmp_path: Path) -> None:
    result = built("rapidfuzz", "v2", tmp_path, environments)
    counts = {name: vex(code) for name, code in libraries(result.wheel, tmp_path).items()}
    assert {name for name, count in counts.items() if count} == {"fuzz_cpp_avx2", "metrics_cpp_avx2"}
    assert result.overrides == ()


@needs("qemu-x86_64", "nm", "objdump")
@pytest.mark.parametrize("name", ["crc32c", "pybase64", "xxhash", "ulid-transform", "pynanoid"])
def test_a_plain_wheel_has_what_its_project_published(name: str, tmp_path: Path) -> None:
    (project,) = (project for project in PROJECTS if project.name == name)
    row, is_sound = surveyed(project, tmp_path / name)
    assert is_sound, row
