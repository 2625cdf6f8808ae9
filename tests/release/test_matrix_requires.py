"""Versions of a dependency as an axis: what wheels require, and that pip and uv take those for the version there is."""

import os
import subprocess
import sys
import tarfile
import zipfile
from itertools import product
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.factories.clients import UV
from tests.factories.projects import setuptools_project
from tests.factories.redirect_installs import pip as pip_command
from tests.factories.redirect_installs import ran, virtual
from tests.factories.redirect_installs import uv as uv_command
from tests.factories.tools import needs
from tests.factories.wheels import wheel
from vbuild.config.table import Table
from vbuild.errors import RecipeError, RepackageError, VariantError, VbuildError
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.machine import Machine
from vbuild.publishing.check import check, check_layout
from vbuild.publishing.local import Local
from vbuild.publishing.publish import publish
from vbuild.publishing.redirect.plan import Redirect
from vbuild.publishing.variants import Variants
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
PLAIN_SDIST = """name = "demo"
[source]
path = "{}"
[matrix]
requires-as = "variants"
plain = "sdist"
[matrix.requires]
engine = ["1.4", "2.0"]
"""


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


@pytest.mark.nightly
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
    # one sdist of the same wheels goes by what is installed, for every installer
    urls = (tmp_path / "redirect").as_uri()
    publish([tmp_path / "dist"], tmp_path, layouts=[Redirect(urls, by_installed=True)])
    options = ["--no-index", "--find-links", str(tmp_path / "redirect"), "--find-links", str(engines)]
    for engine, tool in product(("1.4", "2.0"), (pip_command, uv_command)):
        python = virtual(tmp_path / f"venv-{engine}-{tool.__name__}")
        ran(uv_command(python, "install", *options, f"engine=={engine}.0"), tmp_path)
        fresh = "--no-cache-dir" if tool is pip_command else "--no-cache"
        ran(tool(python, "install", fresh, *options, "demo"), tmp_path)
        [info] = python.parents[1].glob("lib/*/site-packages/demo-1.0.dist-info")
        assert f"Requires-Dist: engine=={engine}.*" in (info / "METADATA").read_text()
        assert not (info / "variant.json").exists()
    assert {path.name.split("-")[-1] for path in (tmp_path / "redirect/wheels/engine1.4").iterdir()} == {
        "manylinux1_x86_64.manylinux_2_5_x86_64.whl",
        "x86_64_v3.whl",
    }
    assert not check_layout(tmp_path, "redirect").failed
    # uv reads the release, and takes none of these variants yet
    links = ["--no-index", "--find-links", str(engines), "--find-links", str(tmp_path / "dist")]
    uv = [UV, "pip", "install", "-q", "--no-config", "--python", sys.executable, "--preview-features", "wheel-variants"]
    assert installed([*uv, *links], tmp_path / "target", "demo") == {"demo-1.0", "engine-2.0.0"}
    assert not list((tmp_path / "target").rglob("variant.json"))


def test_a_wheel_for_several_releases_is_built_against_the_oldest_and_tested_with_each(
    engines: Path, tmp_path: Path
) -> None:
    wheel(engines, "engine-2.1.0-py3-none-any.whl", {"engine.py": "VERSION = '2.1.0'\n"})
    recipe = '[matrix]\nrequires-as = "variants"\nplain = "none"\n[matrix.requires]\nengine = ["1.4", ["2.0", "2.1"]]\n'
    imports = f"import demo, engine; open('{tmp_path}/seen', 'a').write(engine.VERSION + chr(10))"
    release = released(tmp_path, f'{recipe}[test]\ncommand = "python -c \\"{imports}\\""\n')
    assert not release.failures
    assert {one.title: one.target.requires for one in release.products} == {
        "engine1.4": (("engine", "1.4"),),
        "engine2.0_2.1": (("engine", "2.0_2.1"),),
    }
    assert {*(tmp_path / "seen").read_text().split()} == {"1.4.1", "2.0.0", "2.1.0"}
    made = next(one.wheel for one in release.products if one.title == "engine2.0_2.1")
    with zipfile.ZipFile(made) as archive:
        assert "Requires-Dist: engine>=2.0,<2.2\n" in archive.read("demo-1.0.dist-info/METADATA").decode()
    # without a plain wheel, who has another engine gets none
    for version, label in (("1.4.0", "engine1.4"), ("2.0.0", "engine2.0_2.1"), ("2.1.0", "engine2.0_2.1")):
        machine = replace(Machine.here(), installed=(("engine", version),))
        assert select("demo", [tmp_path / "dist"], machine=machine).name.variant == label
    with pytest.raises(VariantError, match="none of 2 wheels fits this machine"):
        select("demo", [tmp_path / "dist"], machine=replace(Machine.here(), installed=(("engine", "2.2"),)))
    links = ["--no-index", "--find-links", str(tmp_path / "dist"), "--find-links", str(engines), "demo"]
    for command in (["-m", "pip", "install", "-q"], ["-m", "uv", "pip", "install", "-q", "--no-config"]):
        target = ["--target", str(tmp_path / "target")]
        refused = subprocess.run(
            [sys.executable, *command, *target, *links], capture_output=True, text=True, check=False
        )
        assert refused.returncode
        assert "demo" in refused.stderr
    (error,) = (problem for problem in check(tmp_path / "dist").problems if problem.is_error)
    assert "no plain wheel for " in error.what
    assert "pip finds nothing there" in error.what


@pytest.mark.nightly
def test_the_sdist_is_the_plain_file_of_a_release(engines: Path, tmp_path: Path) -> None:
    project, recipe, dist = setuptools_project(tmp_path / "project"), tmp_path / "demo.toml", tmp_path / "dist"
    subprocess.run([UV, "build", "-q", "--sdist", "-o", tmp_path / "made", project], check=True, cwd=tmp_path)
    recipe.write_text(PLAIN_SDIST.format("made/demo-1.0.tar.gz"))
    assert not matrix(recipe, dist, store=BuildCache(tmp_path / "store")).failures
    assert len([*dist.glob("*.whl")]) == len([*dist.glob("*-engine*.whl")]) == 2
    sdist = dist / "demo-1.0.tar.gz"
    assert sdist.read_bytes() == (tmp_path / "made" / sdist.name).read_bytes()
    (problem,) = check(dist).problems
    assert not problem.is_error
    assert problem.what.endswith(": pip builds the sdist there instead")
    redirect = Redirect((tmp_path / "redirect").as_uri(), by_installed=True)
    *_, redirected = publish([dist], tmp_path, layouts=[Variants(), Local(), redirect])
    assert redirected.plan.notes[-1] == "demo-1.0.tar.gz: the project's own sdist, which this layout leaves out."
    for copy in ("variants", "variants/simple/demo", "local/plain", "local/plain/simple/demo"):
        assert (tmp_path / copy / sdist.name).read_bytes() == sdist.read_bytes()
    assert not any(check_layout(tmp_path, layout).failed for layout in ("variants", "local", "redirect"))
    _installers_take_it(engines, tmp_path)
    with pytest.raises(VariantError, match=r"none of 2 wheels fits .*; pip and uv build demo-1\.0\.tar\.gz$"):
        select("demo", [dist], machine=replace(Machine.here(), installed=(("engine", "2.2"),)))
    with pytest.raises(RepackageError, match=r"other-1\.0\.tar\.gz: none of the wheels is of this release"):
        publish([dist, sdist.rename(tmp_path / "other-1.0.tar.gz")], tmp_path / "other", layouts=[Variants()])


@pytest.mark.usefixtures("engines")
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("project", "'sdist' is the one that [source] names, and that is "),
        ("demo-1.0.zip", "matrix.plain: demo==1.0: no sdist with a PKG-INFO in its top folder"),
    ],
)
def test_a_source_that_is_no_sdist_is_no_plain_file(source: str, message: str, tmp_path: Path) -> None:
    project, recipe = setuptools_project(tmp_path / "project"), tmp_path / "demo.toml"
    with tarfile.open(tmp_path / "demo-1.0.zip", "w:gz") as archive:
        archive.add(project, "demo-1.0")
    recipe.write_text(PLAIN_SDIST.format(source))
    with pytest.raises(VbuildError) as refused:
        matrix(recipe, tmp_path / "dist", store=BuildCache(tmp_path / "store"))
    assert message in str(refused.value)


def _installers_take_it(engines: Path, tmp_path: Path) -> None:
    # of the variants no installer takes one yet; of another engine's there is none
    python = virtual(tmp_path / "venv")
    subprocess.run([UV, "pip", "install", "-q", "--python", python, "setuptools"], check=True)
    uv = [UV, "pip", "install", "--no-config", "--no-cache", "--python", str(python)]
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-cache-dir"]
    for number, tool in enumerate((uv, [*uv, "--preview-features", "wheel-variants"], pip)):
        links = ["--no-index", "--no-build-isolation", "--find-links", str(tmp_path / "variants")]
        assert installed([*tool, *links], tmp_path / f"target{number}", "demo") == {"demo-1.0"}
    # with local versions a resolver goes by what is asked for
    links = [str(text) for folder in (engines, *(tmp_path / "local").glob("eng*")) for text in ("--find-links", folder)]
    for tool in (uv, pip):
        target = tmp_path / f"local-{Path(tool[0]).name}"
        got = installed([*tool, "--no-index", *links], target, "demo", "engine<2")
        assert got == {"demo-1.0+engine1.4", "engine-1.4.1"}


@pytest.mark.nightly
def test_a_wheel_that_fails_with_one_of_its_releases_is_not_published(engines: Path, tmp_path: Path) -> None:
    wheel(engines, "engine-2.1.0-py3-none-any.whl", {"engine.py": "VERSION = '2.1.0'\n"})
    recipe = '[matrix]\nrequires-as = "variants"\n[matrix.requires]\nengine = [["2.0", "2.1"]]\n'
    recipe += "[test]\ncommand = \"python -c 'import engine; assert engine.VERSION < chr(50) + chr(46) + chr(49)'\"\n"
    failures = released(tmp_path, recipe).failures
    assert [str(failure.target) for failure in failures] == ["plain", "engine2.0_2.1"]
    assert all("engine==2.1.*: test: " in failure.error for failure in failures)
    assert not list(tmp_path.glob("dist/*.whl"))


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
        (
            'engine = [["1.4", "2.0"]]',
            "matrix.requires.engine[0]: 2.0 after 1.4; expected 1.5: a wheel is for all between",
        ),
        (
            "engine = [[]]",
            "matrix.requires.engine[0]: expected a version, or an array of versions that one wheel is for",
        ),
        (
            'engine = [["1", "2"]]',
            "matrix.requires: one wheel for 1 and 2 is a variant; expected requires-as = 'variants'",
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
    with pytest.raises(
        RecipeError, match=r"test\.command: a wheel for 1 and 2 is imported with each; expected a command"
    ):
        released(tmp_path, '[matrix]\nrequires-as = "variants"\n[matrix.requires]\nengine = [["1", "2"]]\n')
    with pytest.raises(RecipeError, match=r"requires-as: would have no effect without matrix\.requires: remove it"):
        released(tmp_path, '[matrix]\ncpu = ["x86-64-v3"]\nrequires-as = "variants"\n')
    with pytest.raises(
        RecipeError, match=r"isolation: false builds against what is installed, and matrix\.requires names"
    ):
        released(tmp_path, '[build]\nisolation = false\n[matrix.requires]\nengine = ["1"]\n')
