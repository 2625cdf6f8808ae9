"""Versions of a dependency as an axis: what wheels require, and that pip and uv take those for the version there is."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.factories.clients import UV
from tests.factories.projects import setuptools_project
from tests.factories.tools import needs
from tests.factories.wheels import wheel
from vbuild.config.table import Table
from vbuild.errors import RecipeError
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.machine import Machine
from vbuild.publishing.check import check
from vbuild.recipe.matrix import read_matrix
from vbuild.recipe.target import evaluated
from vbuild.release.cache import BuildCache
from vbuild.release.matrix import MatrixRequest, matrix
from vbuild.release.model import ReleaseResult
from vbuild.variants.select import select

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="levels are those of x86-64"),
    needs("gcc"),
]
LABELS = ("plain", "x86_64_v3")


@pytest.fixture
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the releases of a project to build against, which pip and uv look into."""
    folder = tmp_path / "engines"
    for version in ("1.4.0", "1.4.1", "2.0.0"):
        wheel(folder, f"engine-{version}-py3-none-any.whl", {"engine.py": f"VERSION = {version!r}\n"})
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def released(folder: Path, recipe: str, *, only: tuple[str, ...] = ()) -> ReleaseResult:
    setuptools_project(folder / "project")
    file = folder / "demo.toml"
    file.write_text(f'name = "demo"\n[source]\npath = "{folder / "project"}"\n{recipe}')
    return matrix(file, folder / "dist", MatrixRequest(jobs=2, only=only), store=BuildCache(folder / "store"))


def installed(command: list[str], target: Path, *wanted: str) -> set[str]:
    """The distributions that *command* installs into *target* for *wanted*."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("UV_", "PIP_FIND"))}
    subprocess.run([*command, "--target", str(target), *wanted], check=True, capture_output=True, env=environment)
    return {path.name.removesuffix(".dist-info") for path in target.glob("*.dist-info")}


@pytest.mark.nightly
def test_each_value_gives_wheels_that_are_held_to_it(engines: Path, tmp_path: Path) -> None:
    recipe = '[matrix]\ncpu = ["x86-64-v3"]\n[matrix.requires]\nengine = ["1.4", "2.0"]\n'
    release = released(tmp_path, recipe)
    assert not release.failures
    made = {(str(one.target), one.wheel.name.split("-")[1]) for one in release.products}
    assert made == {(f"{label}+engine{one}", f"1.0+engine{one}") for label in LABELS for one in ("1.4", "2.0")}
    for one in release.products:
        with zipfile.ZipFile(one.wheel) as archive:
            [name] = [name for name in archive.namelist() if name.endswith("/METADATA")]
            assert f"Requires-Dist: engine=={dict(one.target.requires)['engine']}.*" in archive.read(name).decode()
    assert {item.path.name for item in release.indexed} == {
        f"demo-1.0+engine{one}-variants.json" for one in ("1.4", "2.0")
    }
    # a resolver goes back to the release that what is asked for admits
    links = ["--no-index", "--find-links", str(engines), "--find-links", str(tmp_path / "dist")]
    pip = [sys.executable, "-m", "pip", "install", "-q", *links]
    uv = [UV, "pip", "install", "-q", "--no-config", "--python", sys.executable, *links]
    for command in (pip, uv):
        for asked, version in (("engine==1.4.0", "1.4.0"), ("engine", "2.0.0"), ("engine<2", "1.4.1")):
            there = tmp_path / f"{Path(command[0]).name}-{version}-{asked[-1]}"
            assert installed(command, there, "demo", asked) == {
                f"demo-1.0+engine{version[:3]}",
                f"engine-{version}",
            }


def test_each_value_gives_variants_of_one_version(engines: Path, tmp_path: Path) -> None:
    recipe = '[matrix]\ncpu = ["x86-64-v3"]\nrequires-as = "variants"\n'
    release = released(tmp_path, f'{recipe}[matrix.requires]\nengine = ["2.0", "1.4"]\n')
    assert not release.failures
    requires = {}
    for one in release.products:
        with zipfile.ZipFile(one.wheel) as archive:
            lines = archive.read("demo-1.0.dist-info/METADATA").decode().splitlines()
            requires[one.title] = [line for line in lines if line.startswith("Requires-Dist")]
    old, new = (["Requires-Dist: engine==1.4.*"], ["Requires-Dist: engine==2.0.*"])
    assert requires == {
        "plain": new,
        "engine2.0": new,
        "engine2.0_x86_64_v3": new,
        "engine1.4": old,
        "engine1.4_x86_64_v3": old,
    }
    for version, label in (("1.4.1", "-engine1.4.whl"), ("2.0.0+local", "-engine2.0.whl"), ("3", "x86_64.whl")):
        machine = replace(Machine.here(), cpu=Cpu.parse("x86-64"), installed=(("engine", version),))
        assert select("demo", [tmp_path / "dist"], machine=machine).wheel.name.endswith(label)
    assert not check(tmp_path / "dist").failed
    # uv reads the release, and takes none of these variants yet
    links = ["--no-index", "--find-links", str(engines), "--find-links", str(tmp_path / "dist")]
    uv = [UV, "pip", "install", "-q", "--no-config", "--python", sys.executable, "--preview-features", "wheel-variants"]
    assert installed([*uv, *links], tmp_path / "target", "demo") == {"demo-1.0", "engine-2.0.0"}
    assert not list((tmp_path / "target").rglob("variant.json"))


def test_the_plain_wheel_is_built_against_the_versions_that_the_recipe_names() -> None:
    recipe = 'requires-as = "variants"\nplain = "engine1.4"\nrequires.engine = ["1.4", "1.10"]\n'
    older = read_matrix(Table.parse(recipe), Path())
    assert [str(target) for target in evaluated(older)] == ["plain", "engine1.4", "engine1.10"]
    newest = read_matrix(Table.parse(recipe.replace('plain = "engine1.4"\n', "")), Path())
    assert [str(target) for target in evaluated(newest)] == ["engine1.4", "plain", "engine1.10"]


@pytest.mark.parametrize(
    ("requires", "message"),
    [
        ('engine = ["9.9"]', "matrix.requires.engine: no index has engine 9.9; the newest there: 2.0.0, 1.4.1, 1.4.0"),
        ('engine = ["1.4", "1.4"]', "matrix.requires.engine: '1.4' gives versions +engine1.4, as engine 1.4 does"),
        ('en-gine = ["1"]\nengine = ["1"]', "matrix.requires.engine: '1' gives versions +engine1, as en-gine 1 does"),
        ("engine = []", "matrix.requires.engine: empty; name a version, or leave the key out"),
        (
            'engine = [">=1"]',
            "matrix.requires.engine[0]: '>=1' is not a version to build against; expected numbers with",
        ),
        ('cpu = ["1"]', "matrix.requires.cpu: expected the name of a project that is not another axis"),
    ],
)
def test_values_that_cannot_be_built_against_are_refused_before_anything_is_built(
    requires: str, message: str, engines: Path, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError) as caught:
        released(tmp_path, f"[matrix.requires]\n{requires}\n")
    assert message in str(caught.value)
    assert engines.is_dir()
    assert not list(tmp_path.glob("dist/*.whl"))


def test_without_isolation_there_is_nothing_to_choose(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"requires-as: would have no effect without matrix\.requires: remove it"):
        released(tmp_path, '[matrix]\ncpu = ["x86-64-v3"]\nrequires-as = "variants"\n')
    with pytest.raises(
        RecipeError, match=r"isolation: false builds against what is installed, and matrix\.requires names"
    ):
        released(tmp_path, '[build]\nisolation = false\n[matrix.requires]\nengine = ["1"]\n')
