"""`vbuild collect`: parts that `vbuild matrix --part` left become the release that one run would have made."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from tests.factories.projects import KERNEL, c_project, tree
from tests.factories.pythons import other_python
from tests.factories.tools import needs
from tests.factories.wheels import contents, poked
from tests.release.test_matrix_parts import LIKE_THE_BASELINE, NOT_EMULATED
from tests.release.test_matrix_split import SPLIT
from tests.release.test_matrix_split import recipe as bundling
from vbuild.build.init import AskedAxes
from vbuild.cli.render import release_lines
from vbuild.recipe.model import TrialResult
from vbuild.release.collect import collect
from vbuild.release.matrix import MatrixRequest, matrix
from vbuild.release.model import ReleaseResult
from vbuild.release.report import schema

LEVELS = 'cpu = ["x86-64", "x86-64-v2", "x86-64-v3"]\n'
TEST = "[test]\ncommand = \"python -c 'import demo'\"\nemulate = 'never'\n"
BROKEN = "#ifdef __AVX2__\n#error no AVX2, please\n#endif\n"

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="builds for x86-64"),
    needs("gcc"),
]


def recipe(folder: Path, text: str = "", *, kernel: str = KERNEL) -> Path:
    """A recipe for three levels of a project, beside the project."""
    c_project(folder / "project", kernel=kernel)
    tree(folder, {"demo.toml": f'name = "demo"\n[source]\npath = "project"\n[matrix]\n{LEVELS}{text}'})
    return folder / "demo.toml"


def part(source: Path, folder: Path, *labels: str, python: str = "") -> Path:
    """The part of the recipe *source* with these *labels*, in *folder*."""
    matrix(
        source, folder, MatrixRequest(only=labels, axes=AskedAxes(pythons=(python,) if python else ()), is_part=True)
    )
    return folder


def files(folder: Path) -> dict[str, bytes]:
    """What is published in *folder*, but for the reports."""
    published = sorted({*folder.glob("*.whl"), *folder.glob("*-variants.json")})
    return {path.name: path.read_bytes() for path in published}


def titles(release: ReleaseResult) -> list[str | None]:
    return [product.label for product in release.products]


@pytest.fixture(scope="module")
def parted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A recipe for three levels and two Pythons, and a folder of its parts, a folder each."""
    folder = tmp_path_factory.mktemp("parted")
    pythons = [sys.executable, other_python()]
    # auditwheel does not take every Python's modules for what they are
    source = recipe(folder, f"python = {json.dumps(pythons)}\n[repair]\nskip = true\n{TEST}")
    for number, python in enumerate(pythons):
        part(source, folder / f"parts/{number}/plain", "plain", python=python)
        part(source, folder / f"parts/{number}/higher", "x86_64_v2", "x86_64_v3", python=python)
    return source, folder / "parts"


def test_parts_become_what_one_run_would_have_made(parted: tuple[Path, Path], tmp_path: Path) -> None:
    source, parts = parted
    whole = matrix(source, tmp_path / "whole")
    release = collect([parts], tmp_path / "dist")
    assert release.failures == ()
    assert files(tmp_path / "dist") == files(tmp_path / "whole")
    assert titles(release) == titles(whole) == [None, "x86_64_v2", "x86_64_v3"] * 2
    left, right = release.data(), whole.data()
    assert left["machines"] == right["machines"]
    # without a recipe nobody knows the order of its Pythons
    of_name = {wheel["wheel"]: wheel for wheel in right["wheels"]}
    for mine in left["wheels"]:
        other = of_name[mine["wheel"]]
        own = {"built", "kept", "build_seconds"}
        assert {key: mine[key] for key in mine if key not in own} == {
            key: other[key] for key in other if key not in own
        }


def test_a_collected_report_is_as_the_schema_says_and_has_what_the_parts_said(
    parted: tuple[Path, Path], tmp_path: Path
) -> None:
    release = collect([parted[1]], tmp_path)
    told = json.loads((tmp_path / "report.json").read_text())
    Draft202012Validator(schema()).validate(told)
    assert told == json.loads(json.dumps(release.data()))
    report = json.loads((parted[1] / "0/plain/report.json").read_text())["wheels"][0]
    (same,) = [wheel for wheel in told["wheels"] if wheel["wheel"] == report["wheel"]]
    for key in ("build_seconds", "environment", "overrides", "python", "sha256", "test"):
        assert same[key] == report[key]
    assert "6 wheels, all verified" in (tmp_path / "report.html").read_text()


def test_a_release_is_collected_with_its_recipe_and_told_as_matrix_tells_it(
    parted: tuple[Path, Path], tmp_path: Path
) -> None:
    source, parts = parted
    release = collect([parts / "0", parts / "1"], tmp_path, recipe=source)
    assert (titles(release), release.failures, release.notes) == ([None, "x86_64_v2", "x86_64_v3"] * 2, (), ())
    assert release.source == str(source.parent / "project")
    lines = list(release_lines(release))
    assert any("x86_64_v2, x86_64_v3" in line for line in lines)
    # the table has a part for each Python
    pythons = [sys.executable, other_python()]
    assert [line for line in lines if line.startswith("Python ")] == [f"Python {python}" for python in pythons]


def test_collecting_into_the_same_folder_again_changes_nothing(parted: tuple[Path, Path], tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    shutil.copytree(parted[1], parts)
    collect([parts], parts / "dist")
    before = {path.name: path.read_bytes() for path in (parts / "dist").iterdir()}
    collect([parts], parts / "dist")
    collect([parts / "dist"], parts / "dist")
    assert {path.name: path.read_bytes() for path in (parts / "dist").iterdir()} == before
    assert len(before) == 6 + 4


@pytest.mark.nightly
def test_levels_are_held_against_the_plain_wheel_wherever_it_was_built(tmp_path: Path) -> None:
    source = recipe(tmp_path, NOT_EMULATED, kernel=LIKE_THE_BASELINE)
    plain, v2 = (part(source, tmp_path / label, label) for label in ("plain", "x86_64_v2"))
    both = collect([v2, plain], tmp_path / "both")
    assert (titles(both), both.failures) == ([None, "x86_64_v2"], ())
    assert not both.products[1].verdict.failed
    alone = collect([v2], tmp_path / "alone")
    assert "needs AVX2 (v3), above the claimed x86-64-v2: 1 function: dot (" in alone.failures[0].error
    assert alone.notes == (
        f"{both.products[1].wheel.name}: compared with no other wheel, as no part has a sound one for x86-64",
    )
    assert [path.name for path in (tmp_path / "alone").iterdir() if path.suffix == ".whl"] == []


@pytest.mark.nightly
def test_what_failed_in_a_part_failed_in_the_release_unless_another_part_has_it(tmp_path: Path) -> None:
    source = recipe(tmp_path, kernel=BROKEN + KERNEL)
    first = part(source, tmp_path / "first")
    log = next((first / "logs").iterdir())
    release = collect([first], tmp_path / "dist", recipe=source)
    (failure,) = release.failures
    assert (failure.target.label, titles(release)) == ("x86_64_v3", [None, "x86_64_v2"])
    assert "no AVX2, please" in failure.error
    assert failure.log == tmp_path / "dist/logs" / log.name
    assert failure.log.read_text() == log.read_text()
    c_project(tmp_path / "project")
    again = part(source, tmp_path / "again", "x86_64_v3")
    mended = collect([first, again], tmp_path / "mended", recipe=source)
    assert (titles(mended), mended.failures) == ([None, "x86_64_v2", "x86_64_v3"], ())


def test_a_damaged_wheel_is_a_failure_and_the_others_are_published(parted: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(parted[1] / "0", tmp_path / "parts")
    (v2,) = (tmp_path / "parts").glob("**/*v2.whl")
    poked(v2, 200, b"\x5a\xa5")
    release = collect([tmp_path / "parts"], tmp_path / "dist")
    assert [failure.error for failure in release.failures] == [
        f"{v2.name}: not the wheel that report.json beside it tells of: its SHA-256 is another"
    ]
    assert titles(release) == [None, "x86_64_v3"]
    assert release.indexed[0].labels == ("x86_64_v3",)


def test_a_wheel_that_no_report_tells_of_is_verified_and_noted(parted: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(parted[1] / "0", tmp_path / "parts")
    (tmp_path / "parts/higher/report.json").unlink()
    names = sorted(path.name for path in (tmp_path / "parts/higher").glob("*.whl"))
    release = collect([tmp_path / "parts"], tmp_path / "dist", recipe=parted[0])
    assert release.notes == (f"verified, but no report tells how it was built: {', '.join(names)}",)
    assert titles(release) == [None, "x86_64_v2", "x86_64_v3"]
    assert [product.verdict.cpu for product in release.products] == [product.target.cpu for product in release.products]
    Draft202012Validator(schema()).validate(json.loads((tmp_path / "dist/report.json").read_text()))


@pytest.mark.nightly
def test_the_recipe_splits_the_whole_release_and_tests_what_changed_again(tmp_path: Path) -> None:
    source = bundling(
        tmp_path,
        f"[matrix]\n{LEVELS}[test]\ncommand = \"python -c 'import demo; assert demo.answer() == 42'\"\n{SPLIT}",
    )
    parts = [part(source, tmp_path / f"parts/{label}", label) for label in ("plain", "x86_64_v2", "x86_64_v3")]
    whole = matrix(source, tmp_path / "whole")
    release = collect(parts, tmp_path / "dist", recipe=source)
    assert release.failures == whole.failures == ()
    assert release.split
    assert files(tmp_path / "dist") == files(tmp_path / "whole")
    assert release.products[0].trial is TrialResult.PASSED
    assert not any("libcount" in name for product in release.products for name in contents(product.wheel))
    told = json.loads((tmp_path / "dist/report.json").read_text())
    Draft202012Validator(schema()).validate(told)
    assert told["wheels"][0]["bytes"] == release.products[0].wheel.stat().st_size
    again = collect([tmp_path / "dist"], tmp_path / "again")
    assert files(tmp_path / "again") == files(tmp_path / "dist")
    assert again.notes == ()


def test_wheels_of_somebody_else_are_collected_without_any_report(parted: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    for wheel in (parted[1] / "0").glob("**/*.whl"):
        shutil.copy(wheel, tmp_path / "wheels")
    release = collect([tmp_path / "wheels"], tmp_path / "dist")
    assert (release.name, release.source, titles(release)) == ("demo", "", [None, "x86_64_v2", "x86_64_v3"])
    assert not release.failures
    assert release.products[2].target.properties == ("x86_64 :: level :: v3",)
