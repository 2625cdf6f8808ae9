"""Parts that cannot be collected: one line each, and nothing written."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.factories.reports import data, entry, failure
from tests.factories.sources import sha256
from tests.factories.variants import BLAS, document, metadata, tiny_wheel, variant, variant_wheel
from vbuild.errors import RecipeError, VbuildError
from vbuild.release.collect import PartWheel, collect

PLAIN = "demo-1.0-py3-none-any.whl"
OPENBLAS = "demo-1.0-py3-none-any-openblas.whl"
PROPERTY = "blas :: library :: openblas"


def part(folder: Path, *names: str, text: str = "", **more: Any) -> Path:
    """A part in *folder* with tiny wheels of these *names*, METADATA that asks for Python *text*, and its report."""
    wheels = []
    for name in names or (PLAIN,):
        wheel = tiny_wheel(folder, name, requires_python=text)
        told = {"wheel": name, "bytes": wheel.stat().st_size, "sha256": sha256(wheel), "choices": {"blas": "none"}}
        wheels.append(entry() | told)
    folder.mkdir(exist_ok=True)
    (folder / "report.json").write_text(json.dumps(data(*wheels) | more))
    return folder


def said(folder: Path, **more: Any) -> Path:
    """A part with a variant of which its report says *more*, or what is so."""
    found = document(variant("openblas", PROPERTY), metadata=metadata("blas", blas=BLAS))
    wheel = variant_wheel(folder, OPENBLAS, found)
    told = {"wheel": OPENBLAS, "bytes": wheel.stat().st_size, "sha256": sha256(wheel)}
    told |= {"properties": [PROPERTY], "choices": {"blas": "openblas"}}
    (folder / "report.json").write_text(json.dumps(data(entry("openblas") | told | more)))
    return folder


def made_for(folder: Path, python: str, *, text: str = "") -> Path:
    """A part with the plain wheel of *python*, as its report calls that, with METADATA that asks for Python *text*."""
    part(folder, text=text)
    report = json.loads((folder / "report.json").read_text())
    report["wheels"][0]["python"] = python
    (folder / "report.json").write_text(json.dumps(report))
    return folder


def recipe_for(folder: Path, *pythons: str) -> Path:
    """A recipe for the plain wheel and one with a property, for each of *pythons*; paths are of files in *folder*."""
    for python in pythons:
        if "/" in python:
            (folder / python).parent.mkdir(parents=True, exist_ok=True)
            (folder / python).touch()
    chosen = f"python = {json.dumps(pythons)}\n" if pythons else ""
    blas = f'[matrix.axes.blas]\nnone = {{}}\nopenblas = {{ properties = ["{PROPERTY}"] }}\n'
    (folder / "demo.toml").write_text(f'name = "demo"\n[source]\npath = "."\n[matrix]\n{chosen}{blas}')
    return folder / "demo.toml"


def refused(tmp_path: Path, *parts: Path, recipe: Path | None = None) -> str:
    """What is said of *parts* that cannot be collected, with short paths; nothing is written."""
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(VbuildError) as caught:
        collect(parts, tmp_path / "dist", recipe=recipe)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert not (tmp_path / "dist").exists()
    return str(caught.value).replace(f"{tmp_path}/", "")


def test_parts_that_are_not_there_or_have_nothing_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty/logs").mkdir(parents=True)
    sound = part(tmp_path / "a")
    (part(tmp_path / "less") / PLAIN).unlink()
    (part(tmp_path / "linked") / "v2").symlink_to("../gone")
    tiny_wheel(tmp_path / "several", PLAIN)
    tiny_wheel(tmp_path / "several", "other-1.0-py3-none-any.whl")
    for parts, expected in {
        (): "no parts to collect; expected folders as 'vbuild matrix --part' leaves them",
        ("a", "gone"): "gone: no such folder; expected a part as 'vbuild matrix --part' leaves it",
        ("a", "empty"): "empty: neither wheels nor report.json in it; expected what 'vbuild matrix --part' leaves",
        ("less",): f"less/report.json: tells of {PLAIN}, which is not beside it",
        ("linked",): "linked/v2: a broken link; expected a part",
        ("several",): "no part has a report.json, and the wheels are of demo, other; give the recipe",
    }.items():
        assert refused(tmp_path, *(tmp_path / name for name in parts)) == expected
    path = sound / "report.json"
    path.write_text(path.read_text()[:100])
    assert refused(tmp_path, sound).startswith("a/report.json: not JSON: ")


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"format": 9}, "a/report.json: format: found 9; this vbuild reads 1"),
        ({"notes": "x"}, "a/report.json: notes: expected an array, got 'x'"),
        ({"name": "other"}, "a/report.json: is of 'other', and b/report.json of 'demo'; expected parts of one release"),
    ],
    ids=["format", "key", "project"],
)
def test_a_part_whose_report_is_another(more: dict[str, Any], expected: str, tmp_path: Path) -> None:
    assert refused(tmp_path, part(tmp_path / "a", **more), part(tmp_path / "b")) == expected


def test_two_wheels_of_one_name(tmp_path: Path) -> None:
    parts = part(tmp_path / "a"), part(tmp_path / "b", text=">=3")
    expected = f"a/{PLAIN} and b/{PLAIN}: two wheels of one name; expected the same bytes, or one"
    assert refused(tmp_path, *parts) == expected


def test_two_pythons_with_one_wheel_name_are_a_failure_of_the_second(tmp_path: Path) -> None:
    parts = made_for(tmp_path / "a", "3.11"), made_for(tmp_path / "b", "3.12", text=">=3")
    release = collect(parts, tmp_path / "dist")
    assert [product.target.python for product in release.products] == ["3.11"]
    assert [(failure.target.python, failure.error) for failure in release.failures] == [
        ("3.12", f"{PLAIN}: Python 3.11 gives the same file")
    ]
    assert (tmp_path / "dist" / PLAIN).read_bytes() == (tmp_path / "a" / PLAIN).read_bytes()


@pytest.mark.parametrize(
    ("more", "label", "error"),
    [
        ({"label": None}, "openblas", "'openblas' by its name, and plain by report.json beside it"),
        ({"label": "zzz"}, "openblas", "'openblas' by its name, and 'zzz' by report.json beside it"),
        ({"properties": []}, "openblas", f"{PROPERTY} is in its variant.json only"),
        (
            {"properties": [PROPERTY, "x86_64 :: level :: v3"]},
            "openblas",
            "x86_64 :: level :: v3 is in report.json beside it only",
        ),
        ({"cpu": "x86-64-v3"}, "openblas", "for x86-64, and for x86-64-v3 by report.json beside it"),
    ],
    ids=["no label", "label", "property less", "property more", "cpu"],
)
def test_a_report_is_not_believed_where_the_wheel_says_something_else(
    more: dict[str, Any], label: str, error: str, tmp_path: Path
) -> None:
    release = collect([said(tmp_path / "a", **more), part(tmp_path / "b")], tmp_path / "dist")
    assert [(failure.target.label, failure.error) for failure in release.failures] == [(label, f"{OPENBLAS}: {error}")]
    assert [product.wheel.name for product in release.products] == [PLAIN]
    assert not (tmp_path / "dist" / OPENBLAS).exists()


def test_a_report_that_says_what_the_wheel_says_is_believed(tmp_path: Path) -> None:
    spelled = "blas::library::openblas"
    so: list[dict[str, Any]] = [{}, {"properties": [spelled]}, {"cpu": "armv8-a"}]
    for number, more in enumerate(so):
        release = collect([said(tmp_path / f"{number}", **more)], tmp_path / f"dist{number}")
        assert [(product.label, release.failures) for product in release.products] == [("openblas", ())]


def test_a_level_is_held_against_no_wheel_for_another_platform(tmp_path: Path) -> None:
    musl = "demo-1.0-cp312-cp312-musllinux_1_2_x86_64-x86_64_v2.whl"
    variant_wheel(tmp_path / "a", musl, document(variant("x86_64_v2", "x86_64 :: level :: v2")))
    note = f"{musl}: compared with no other wheel, as no part has a sound one for x86-64"
    tiny_wheel(tmp_path / "a", "demo-1.0-cp312-cp312-manylinux_2_28_x86_64.whl")
    assert note in collect([tmp_path / "a"], tmp_path / "dist").notes
    tiny_wheel(tmp_path / "a", "demo-1.0-cp312-cp312-musllinux_1_1_x86_64.whl")
    assert note not in collect([tmp_path / "a"], tmp_path / "dist2").notes


def test_pythons_are_in_the_order_of_the_recipe(tmp_path: Path) -> None:
    part_of_one = made_for(tmp_path / "part", "/v9/bin/python3.11")
    release = collect([part_of_one], tmp_path / "dist", recipe=recipe_for(tmp_path, "3.12", "3.11"))
    assert [failure.target.python for failure in release.failures] == ["3.12", "3.12", "3.11"]


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("recipe", "parts", "lacking"),
    [
        ([], ["/other/bin/python"], []),
        ([], ["/other/bin/python", "/another/bin/python"], []),
        ([], ["cp312-manylinux_x86_64"], []),
        (["a/python", "b/v/bin/python"], ["/copy/a/python"], ["b/v/bin/python"]),
        (["a/python", "b/v/bin/python"], ["/copy/b/v/bin/python"], ["a/python"]),
        (["a/python", "b/python"], ["/copy/a/python", "/copy/b/python"], []),
        (["a/python", "b/python"], ["/elsewhere/python"], ["b/python"]),
        (["a/python", "b/python"], ["cp312-manylinux_x86_64", "cp312-musllinux_x86_64"], ["b/python"]),
        (["a/python", "b/python"], ["cp311-manylinux_x86_64", "cp312-musllinux_x86_64"], []),
        (["x/bin/python", "bin/python"], ["/copy/x/bin/python"], ["bin/python"]),
        (["3.11", "3.12"], ["/usr/bin/python3.12"], ["3.11"]),
        (["3.11", "3.12"], ["cp311-manylinux_x86_64", "cp313-manylinux_x86_64"], ["3.12"]),
        (["3.13", "3.13t"], ["cp313t-manylinux_x86_64"], ["3.13"]),
        (["3.12"], ["3.11"], ["3.12"]),
    ],
    ids=range(14),
)
def test_each_python_stands_for_one_of_the_recipe_at_most(
    recipe: list[str], parts: list[str], lacking: list[str], tmp_path: Path
) -> None:
    source = recipe_for(tmp_path, *recipe)
    # same bytes of one name are one wheel
    folders = [made_for(tmp_path / f"parts/{place}", python, text=f">=3.{place}") for place, python in enumerate(parts)]
    release = collect(folders, tmp_path / "dist", recipe=source)
    found = [failure for failure in release.failures if failure.error == "no part has it"]
    assert [failure.target.python.removeprefix(f"{tmp_path}/") for failure in found if not failure.target.label] == (
        lacking
    )
    assert len([failure for failure in found if failure.target.label]) == len(recipe or [""])


def test_parts_behind_links_are_collected_once(tmp_path: Path) -> None:
    said(tmp_path / "parts/openblas")
    part(tmp_path / "linked/plain")
    (tmp_path / "linked/openblas").symlink_to("../parts/openblas")
    (tmp_path / "linked/again").symlink_to("openblas")
    (tmp_path / "linked/all").symlink_to(".")
    release = collect([tmp_path / "linked"], tmp_path / "dist")
    assert [product.wheel.name for product in release.products] == [PLAIN, OPENBLAS]


def test_results_in_the_place_of_a_part(tmp_path: Path) -> None:
    part(tmp_path / "parts/plain")
    said(tmp_path / "parts/openblas")
    for name, wheel in (("plain", PLAIN), ("openblas", OPENBLAS)):
        with pytest.raises(RecipeError) as caught:
            collect([tmp_path / "parts"], tmp_path / "parts" / name)
        place = tmp_path / "parts" / name
        assert str(caught.value) == f"{place}: no other part has {wheel}; expected another folder for results"
        assert len(json.loads((place / "report.json").read_text())["wheels"]) == 1


def test_results_in_the_place_of_what_failed(tmp_path: Path) -> None:
    part(tmp_path / "parts/plain")
    (tmp_path / "parts/v3").mkdir()
    lost = failure("v3", "no", cpu="x86-64-v3", log="logs/v3.log")
    (tmp_path / "parts/v3/report.json").write_text(json.dumps(data(failures=[lost])))
    with pytest.raises(RecipeError, match="no other part has the failed v3; expected another folder for results"):
        collect([tmp_path / "parts"], tmp_path / "parts/v3")


def test_results_in_the_place_of_an_earlier_release(tmp_path: Path) -> None:
    parts = part(tmp_path / "parts/plain")
    lost = failure("v3", "no", cpu="x86-64-v3", log="logs/v3.log")
    (tmp_path / "parts/v3").mkdir()
    (tmp_path / "parts/v3/report.json").write_text(json.dumps(data(failures=[lost])))
    said(tmp_path / "parts/openblas", label=None)
    source = recipe_for(tmp_path, "3.12", "3.13")
    for _ in range(2):
        release = collect([tmp_path / "parts"], tmp_path / "parts/dist", recipe=source)
        assert (len(release.products), len(release.failures)) == (1, 4)
    shutil.rmtree(parts)
    part(parts, PLAIN.replace("1.0", "1.1"))
    shutil.rmtree(tmp_path / "parts/openblas")
    release = collect([tmp_path / "parts"], tmp_path / "parts/dist")  # another release is nobody's part
    assert [product.wheel.name for product in release.products] == [PLAIN.replace("1.0", "1.1")]


def test_two_versions(tmp_path: Path) -> None:
    parts = part(tmp_path / "a"), part(tmp_path / "b", "demo-1.1-py3-none-any.whl")
    expected = f"a/{PLAIN} and b/demo-1.1-py3-none-any.whl: of versions 1.0 and 1.1; expected parts of one release"
    assert refused(tmp_path, *parts) == expected


def test_parts_of_another_project_than_the_recipe(tmp_path: Path) -> None:
    recipe = tmp_path / "other.toml"
    recipe.write_text('name = "other"\n[source]\npath = "."\n[matrix]\ncpu = ["x86-64", "x86-64-v3"]\n')
    expected = "a/report.json: is of 'demo'; the recipe is of 'other'"
    assert refused(tmp_path, part(tmp_path / "a"), recipe=recipe) == expected


def test_a_wheel_with_a_name_that_none_has(tmp_path: Path) -> None:
    (part(tmp_path / "a") / 'a b"c\nd.whl').write_bytes(b"PK")
    assert refused(tmp_path, tmp_path / "a").startswith("""a: 'a b"c\\nd.whl': not a wheel's file name: """)


def test_a_file_that_is_no_wheel_is_a_failure(tmp_path: Path) -> None:
    name = "demo-1.0-cp311-cp311-linux_x86_64.whl"
    (part(tmp_path / "a") / name).write_bytes(b"PK")
    release = collect([tmp_path / "a"], tmp_path / "dist")
    assert [product.wheel.name for product in release.products] == [PLAIN]
    assert [failure.error.partition(":")[0] for failure in release.failures] == [name]


def test_a_wheel_of_another_project_is_not_the_plain_one(tmp_path: Path) -> None:
    other = tiny_wheel(tmp_path / "a", PLAIN.replace("demo", "other"))
    said(tmp_path / "a")
    source = recipe_for(tmp_path, "3.12")
    release = collect([tmp_path / "a"], tmp_path / "dist", recipe=source)
    assert {product.wheel.name for product in release.products} == {OPENBLAS, other.name}
    assert ("plain", "no part has it") in [(str(failure.target), failure.error) for failure in release.failures]
    other.write_bytes(b"PK")
    release = collect([tmp_path / "a"], tmp_path / "dist2")
    assert [(str(failure.target), failure.error.partition(":")[0]) for failure in release.failures] == [
        ("other", other.name)
    ]


def test_a_wheel_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        _ = PartWheel(tmp_path / PLAIN, None).digest
    assert str(caught.value) == f"{tmp_path}/{PLAIN}: cannot be read: No such file or directory"
