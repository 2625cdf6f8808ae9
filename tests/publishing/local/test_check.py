"""Proofs of local versions: what is found in a folder whose indexes are not what they say."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.factories.releases import V3, V4, release
from tests.factories.wheels import wheel
from vbuild.publishing.local import Local, problems
from vbuild.publishing.model import PublishRule
from vbuild.publishing.publish import publish


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """What is published of two releases that belong together."""
    release(tmp_path / "dist")
    release(tmp_path / "dist", "vision", metadata="Requires-Dist: demo==1.0\n")
    publish([tmp_path / "dist"], tmp_path / "site", layouts=[Local()])
    return tmp_path / "site" / "local"


def said(site: Path) -> Iterator[str]:
    return (f"{problem.place}: {problem.what}" for problem in problems(site))


def test_releases_with_different_labels_have_no_problems(tmp_path: Path) -> None:
    release(tmp_path / "dist", labels=[V3])
    release(tmp_path / "dist", version="1.1", labels=[V4])
    release(tmp_path / "dist", version="1.2", labels=[])
    release(tmp_path / "dist", "vision", metadata="Requires-Dist: demo==1.2\n")
    publish([tmp_path / "dist"], tmp_path / "site", layouts=[Local()])
    assert [*said(tmp_path / "site" / "local")] == []


def test_a_release_of_another_index_is_found(tmp_path: Path) -> None:
    for label, version in ((V3, "1.0+x86.64.v3"), (V3, "1.1+x86.64.v4"), (V4, "1.1+x86.64.v4")):
        wheel(tmp_path / label, f"demo-{version}-py3-none-any.whl")
    (tmp_path / "index.html").touch()
    assert [text for text in said(tmp_path) if "simple" not in text] == [
        "x86_64_v3/demo-1.1+x86.64.v4-py3-none-any.whl: is of the index x86_64_v4"
    ]


def test_a_wheel_of_another_label_in_an_index_is_found(site: Path) -> None:
    wheel = next((site / V4).glob("demo*.whl"))
    wheel.rename(site / V3 / wheel.name)
    assert [*said(site)] == [
        "x86_64_v3/demo-1.0+x86.64.v4-py3-none-any.whl: is not +x86.64.v3, as others of demo 1.0 in this index are",
        "x86_64_v3/demo-1.0+x86.64.v4-py3-none-any.whl: is not in simple",
        "x86_64_v4/simple/demo/demo-1.0+x86.64.v4-py3-none-any.whl: is in the index only",
    ]


def test_an_index_whose_figures_are_not_the_files_is_found(site: Path) -> None:
    page = site / V3 / "simple" / "demo" / "index.json"
    data = json.loads(page.read_text())
    metadata, hashes, size = (json.dumps(data["files"][0][key]) for key in ("core-metadata", "hashes", "size"))
    data["files"][0] |= {"hashes": {"sha256": "0"}, "size": 1, "core-metadata": {"sha256": "0"}}
    page.write_text(json.dumps(data))
    name = "demo-1.0+x86.64.v3-py3-none-any.whl"
    assert [*said(site)] == [
        f'x86_64_v3/simple/demo/index.json: gives {name} core-metadata {{"sha256": "0"}}; expected {metadata}',
        f'x86_64_v3/simple/demo/index.json: gives {name} hashes {{"sha256": "0"}}; expected {hashes}',
        f"x86_64_v3/simple/demo/index.json: gives {name} size 1; expected {size}",
    ]


def test_folders_that_are_no_indexes_are_found(site: Path) -> None:
    (site / "a__b").mkdir()
    assert [*said(site)] == [
        (
            "local: label 'a__b': no local version (PEP 440); expected letters and digits with single . or _ between "
            "them: stamp the wheels under another label"
        )
    ]
    (site / "a__b").rename(site / "v5")
    assert [*said(site)] == ["v5/*.whl: none is of a version +v5", "v5/simple: there is no index here"]


LOCAL = "1.0+x86.64.v3-py3-none-any.whl"
WRONG = [
    (
        {f"demo-{LOCAL}": "", f"vision-{LOCAL}": "Requires-Dist: demo~=1.0\n"},
        f"error: x86_64_v3/vision-{LOCAL}: requires demo~=1.0, which other builds than +x86.64.v3 are, too; ",
    ),
    (
        {f"demo-{LOCAL}": "", f"vision-{LOCAL}": "Requires-Dist: demo==0.9\n"},
        f"warning: x86_64_v3/vision-{LOCAL}: requires demo==0.9, and only other releases are in this index; ",
    ),
    (
        {f"demo-{LOCAL}": "", "demo-1.0+x86.64.v3-py2-none-any.whl": "Requires-Python: <3\n"},
        f"error: x86_64_v3/demo-{LOCAL}: not as in demo-1.0+x86.64.v3-py2-none-any.whl: Requires-Python: lacks '<3'; ",
    ),
    (
        {f"demo-{LOCAL}": "", "other-1.0-py2-none-any.whl": "", "other-1.0-py3-none-any.whl": "Requires-Python: >3\n"},
        "warning: x86_64_v3/other-1.0-py3-none-any.whl: not as in other-1.0-py2-none-any.whl: Requires-Python: has ",
    ),
    (
        {f"demo-{LOCAL}": "Summary: a\n", f"vision-{LOCAL}": "Requires-Dist: demo==1.*\nRequires-Dist: demo>0\n"},
        f"error: x86_64_v3/vision-{LOCAL}: requires demo==1.*, which other builds than +x86.64.v3 are, too; ",
    ),
    (
        {
            "other-1.0-py2-none-any.whl": "Summary: a\n",
            "other-1.0-py3-none-any.whl": "Summary: b\n",
            "demo-1.0-py3-none-any.whl": "",
            f"demo-{LOCAL}": "",
        },
        "error: x86_64_v3/demo-1.0-py3-none-any.whl: is not +x86.64.v3, as others of demo 1.0 in this index are; ",
    ),
]


@pytest.mark.parametrize(("wheels", "expected"), WRONG)
def test_wheels_that_do_not_belong_together_are_found(tmp_path: Path, wheels: dict[str, str], expected: str) -> None:
    for name, text in wheels.items():
        wheel(tmp_path / V3, name, metadata=text)
    [found] = [str(problem) for problem in problems(tmp_path) if problem.rule != PublishRule.INDEX]
    assert found.startswith(expected)


def test_variant_and_damaged_wheels_are_found(tmp_path: Path) -> None:
    for folder in ("plain", V3):
        release(tmp_path / folder, labels=[V4], plain=False)
    wheel(tmp_path / V3, f"demo-{LOCAL}").write_bytes(b"PK")
    (tmp_path / "index.html").touch()
    assert [text for text in said(tmp_path) if "simple" not in text] == [
        "plain/demo-1.0-py3-none-any-x86_64_v4.whl: has a variant label, which only installers of variants read",
        f"x86_64_v3/demo-{LOCAL}: not a zip archive, or truncated: no end record",
        "x86_64_v3/*.whl: none is of a version +x86.64.v3",
        "x86_64_v3/demo-1.0-py3-none-any-x86_64_v4.whl: has a variant label, which only installers of variants read",
    ]


def test_an_empty_folder_is_found(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    assert [*said(tmp_path / "site")] == ["site: has no index of a label; expected a folder for each"]
