"""Plans of variant wheels as they are: a variants.json for each release, and what a publisher is told."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.factories.releases import V3, V4, companion, offered, release
from vbuild.errors import RepackageError, VariantError
from vbuild.publishing.model import PublishPlan, Text
from vbuild.publishing.publish import publish
from vbuild.publishing.variants import Variants, problems


def planned(folder: Path, url: str | None = None) -> PublishPlan:
    return Variants(url).plan(offered(folder))


def test_each_release_has_a_variants_json_of_its_own(tmp_path: Path) -> None:
    release(tmp_path)
    release(tmp_path, version="1.1", labels=[V4])
    release(tmp_path, "pure", labels=[])
    companion(tmp_path)
    plan = planned(tmp_path)
    documents = {
        str(output.target): [*json.loads(output.data)["variants"]]
        for output in plan.outputs
        if isinstance(output, Text)
    }
    assert documents == {"demo-1.0-variants.json": [V3, V4], "demo-1.1-variants.json": [V4]}
    assert str(plan.outputs[-1].target) == "simple"
    assert len(plan.outputs) == 3 + 2 + 1 + 1 + 2 + 1


def test_uses_name_the_last_release_of_each_project_and_no_companions(tmp_path: Path) -> None:
    release(tmp_path)
    release(tmp_path, version="1.1")
    release(tmp_path, "vision", plain=False)
    companion(tmp_path)
    there = "https://example.org/variants"
    assert [use.text for use in planned(tmp_path, f"{there}/").uses] == [
        f"uv pip install --preview-features wheel-variants --index {there}/simple demo==1.1 vision==1.0",
        f"pip install --extra-index-url {there}/simple demo==1.1\nuv pip install --index {there}/simple demo==1.1",
    ]
    assert [use.text for use in planned(tmp_path).uses] == [
        "uv pip install --preview-features wheel-variants --index ./simple demo==1.1 vision==1.0",
        'pip install --extra-index-url "file://$PWD/simple" demo==1.1\nuv pip install --index ./simple demo==1.1',
    ]


def test_without_a_variant_nobody_is_promised_the_best(tmp_path: Path) -> None:
    release(tmp_path, labels=[])
    [use] = planned(tmp_path).uses
    assert use.what == (
        "With pip, and with uv without that feature, the plain wheel (pip takes another index's where that is for a "
        "newer platform tag):"
    )


def test_a_publisher_is_told_who_gets_nothing(tmp_path: Path) -> None:
    release(tmp_path, tag="cp311-cp311-linux_x86_64")
    release(tmp_path, tag="cp312-cp312-linux_x86_64", plain=False)
    assert planned(tmp_path).notes == (
        "An index that is made by other means must list each variants.json next to the wheels: uv reads it first.",
        "demo 1.0 has no plain wheel for cp312-cp312-linux_x86_64; for these, pip finds nothing.",
    )


def test_companions_alone_are_no_use_to_anybody(tmp_path: Path) -> None:
    companion(tmp_path)
    plan = planned(tmp_path)
    assert (plan.uses, plan.notes) == ((), ())


def test_variants_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    release(tmp_path, labels=["a", "b"])
    with pytest.raises(VariantError, match="stand for the same properties"):
        planned(tmp_path)


def said(site: Path) -> Iterator[str]:
    return (f"{problem.place}: {problem.what}" for problem in problems(site))


@pytest.fixture
def site(tmp_path: Path) -> Path:
    release(tmp_path / "dist")
    publish([tmp_path / "dist"], tmp_path / "site", layouts=[Variants()])
    return tmp_path / "site" / "variants"


def test_a_file_that_is_another_one_in_the_index_is_found(site: Path) -> None:
    path = site / "demo-1.0-variants.json"
    text = path.read_text() + "\n"
    path.unlink()
    path.write_text(text)
    assert [*said(site)] == [
        "simple/demo/demo-1.0-variants.json: is another file than the one of its name beside the index"
    ]


def test_pages_that_nobody_can_read_are_found(site: Path) -> None:
    (site / "simple" / "index.json").write_text("[]")
    (site / "simple" / "demo" / "index.json").write_text("{")
    (site / "simple" / "demo" / "index.html").unlink()
    (site / "simple" / "demo" / "demo-1.0-py3-none-any.whl.metadata").write_text("")
    found = [*said(site)]
    assert found == [
        "simple/index.json: lists other projects than have a folder: demo",
        "simple/demo/index.json: does not list demo-1.0-py3-none-any-x86_64_v3.whl",
        "simple/demo/index.json: does not list demo-1.0-py3-none-any-x86_64_v4.whl",
        "simple/demo/index.json: does not list demo-1.0-py3-none-any.whl",
        "simple/demo/index.json: does not list demo-1.0-variants.json",
        "simple/demo/demo-1.0-py3-none-any.whl.metadata: is not METADATA of the wheel",
        "simple/demo/index.html: does not list what is there",
    ]


@pytest.mark.parametrize(
    ("page", "old", "new", "expected"),
    [
        (
            "demo/index.json",
            '"requires-python": ">=3.9"',
            '"requires-python": ">=3.99"',
            [
                'simple/demo/index.json: gives demo-1.0-py3-none-any.whl requires-python ">=3.99"; expected ">=3.9"',
            ],
        ),
        (
            "demo/index.json",
            '"url": "demo-1.0-py3-none-any.whl"',
            '"url": "../demo-1.0-py3-none-any.whl"',
            [
                (
                    'simple/demo/index.json: gives demo-1.0-py3-none-any.whl url "../demo-1.0-py3-none-any.whl"; '
                    'expected "demo-1.0-py3-none-any.whl"'
                )
            ],
        ),
        (
            "demo/index.html",
            'data-requires-python="&gt;=3.9"',
            "",
            ["simple/demo/index.html: does not list what is there"],
        ),
        ("index.html", "demo/", "other/", ["simple/index.html: does not list what is there"]),
    ],
)
def test_a_page_that_says_other_things_than_the_wheels_is_found(
    tmp_path: Path, page: str, old: str, new: str, expected: list[str]
) -> None:
    release(tmp_path / "dist", labels=[], metadata="Requires-Python: >=3.9\n")
    publish([tmp_path / "dist"], tmp_path / "site", layouts=[Variants()])
    there = tmp_path / "site" / "variants" / "simple" / page
    assert old in there.read_text()
    there.write_text(there.read_text().replace(old, new))
    assert [*said(tmp_path / "site" / "variants")] == expected


def test_a_damaged_wheel_is_found(site: Path) -> None:
    path = site / "demo-1.0-py3-none-any.whl"
    for other in (path, site / "simple" / "demo" / path.name):
        other.unlink()
        other.write_bytes(b"PK")
    found = [*said(site)]
    assert found[0] == "demo-1.0-py3-none-any.whl: not a zip archive, or truncated: no end record"
    assert any(text.endswith(" expected 2") for text in found if "gives demo-1.0-py3-none-any.whl size " in text)


def test_a_folder_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RepackageError, match="no wheel and no sdist"):
        [*problems(tmp_path)]
