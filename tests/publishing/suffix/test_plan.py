"""Plans of renamed wheels: what they are called, what follows the name, and what a publisher is told."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.factories.releases import V3, V4, offered, release
from tests.factories.wheels import wheel
from vbuild.errors import VbuildError
from vbuild.publishing.model import NewWheel, PublishPlan, PublishRule, Put
from vbuild.publishing.suffix import Suffix, problems


def planned(folder: Path) -> PublishPlan:
    return Suffix().plan(offered(folder))


def metadata(plan: PublishPlan, target: str) -> str:
    """METADATA of the new wheel at *target*."""
    [made] = [output for output in plan.outputs if isinstance(output, NewWheel) and str(output.target) == target]
    [put] = [member for member in made.members if isinstance(member, Put) and member.path.endswith("/METADATA")]
    return put.data.decode()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from importlib.metadata import version\nV = version('demo')\n", ["2: version('demo')"]),
        ("import importlib.metadata as m\nm.files('Demo')\n", ["2: files('Demo')"]),
        ("import importlib.metadata\nimportlib.metadata.version(__name__)\n", ["2: version(__name__)"]),
        ("from importlib import metadata\nmetadata.requires(name='demo')\n", ["2: requires(name='demo')"]),
        ('from pkg_resources import require\nrequire("demo>=1")\n', ['2: require("demo>=1")']),
        ("import pkg_resources\npkg_resources.get_distribution( 'demo')\n", ["2: get_distribution( 'demo')"]),
        ("from importlib.metadata import Distribution as D\nD.from_name(__package__)\n", ["2: from_name(__package__)"]),
        ("from importlib.metadata import version\nversion('numpy'), version(name), version(), version(*x)\n", []),
        ("def version(name): ...\nversion('demo')\n", []),
        ("# metadata \xff\nreversion('demo')", []),
    ],
)
def test_calls_that_ask_for_the_old_name_are_noted(tmp_path: Path, source: str, expected: list[str]) -> None:
    release(tmp_path, files={"demo/__init__.py": source.encode("latin-1")})
    end = " finds no demo where only demo-x86-64-v3 or demo-x86-64-v4 is installed."
    lines = [note.removeprefix("demo/__init__.py:") for note in planned(tmp_path).notes if note.endswith(end)]
    assert lines == [f"{line}{end}" for line in expected]


def test_a_publisher_is_told_of_the_same_files_and_of_names_in_the_code(tmp_path: Path) -> None:
    source = "from importlib.metadata import version\n\nVERSION = version('demo')\n"
    headers = {"demo-1.0.data/headers/demo.h": "", "demo/_version.py": source}
    release(tmp_path, files=headers)
    assert planned(tmp_path).notes == (
        (
            "demo, demo-x86-64-v3, demo-x86-64-v4 have the same files, which no installer notices: uninstall one "
            "before the other is installed."
        ),
        ("demo/_version.py:3: version('demo') finds no demo where only demo-x86-64-v3 or demo-x86-64-v4 is installed."),
        "demo 1.0: its headers are installed into a folder called after the new name.",
        (
            "Anybody may take these names on an index that has none: register demo-x86-64-v3, demo-x86-64-v4 there "
            "first."
        ),
    )


def test_a_label_that_the_last_release_lacks_has_no_command(tmp_path: Path) -> None:
    release(tmp_path, labels=[V3, V4])
    release(
        tmp_path,
        version="1.1",
        labels=[V4],
        files={"demo/old.py": "import importlib.metadata as m\nm.version('a b')\n"},
    )
    assert [use.text.partition("simple ")[2].partition("\n")[0] for use in planned(tmp_path).uses] == [
        "demo-x86-64-v4==1.1",
        "demo==1.1",
    ]


@pytest.mark.parametrize(
    ("releases", "message"),
    [
        (
            [("demo", ["cu12.6", "cu12_6"])],
            "demo-cu12-6 would be demo cu12_6 and demo cu12.6; expected a name for each",
        ),
        (
            [("demo", ["cu13"]), ("demo-cu13", [])],
            "demo-cu13 would be demo cu13 and the project demo-cu13; expected a name for each",
        ),
        ([("demo", ["cu12."])], "name is invalid: 'demo-cu12.'; expected a label that ends in a letter or digit"),
    ],
)
def test_names_that_stand_for_two_things_or_nothing_are_refused(
    tmp_path: Path, releases: list[tuple[str, list[str]]], message: str
) -> None:
    for project, labels in releases:
        release(tmp_path, project, labels=labels)
    with pytest.raises(VbuildError) as refusal:
        planned(tmp_path)
    assert str(refusal.value).partition(": stamp")[0] == message


def test_a_sibling_without_the_label_is_refused(tmp_path: Path) -> None:
    release(tmp_path)
    release(tmp_path, "vision", labels=["cu13"], metadata="Requires-Dist: demo==1.0\n")
    with pytest.raises(VbuildError) as refusal:
        planned(tmp_path)
    assert str(refusal.value) == (
        "vision-1.0-py3-none-any-cu13.whl: requires demo==1.0, and demo 1.0 has no cu13; expected the same labels of "
        "both: build it, or publish them apart"
    )


def said(site: Path) -> Iterator[str]:
    return (str(problem).partition(";")[0] for problem in problems(site) if problem.rule != PublishRule.INDEX)


def test_wheels_that_bring_others_with_the_same_files_are_found(tmp_path: Path) -> None:
    release(tmp_path, labels=[])
    release(tmp_path, "vision", labels=[V3], metadata="Requires-Dist: demo==0.9\nRequires-Dist: unknown line ==\n")
    wheel(tmp_path, "demo_cu13-1.0-py3-none-any.whl", {"demo/level.py": ""}, metadata="Requires-Dist: demo[all]\n")
    text = "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n"
    wheel(tmp_path, "demo_cu12-1.0-py3-none-any.whl", {"demo_cu12-1.0.dist-info/METADATA": text})
    (tmp_path / "bad-1.0-py3-none-any.whl").write_bytes(b"PK")
    assert [*said(tmp_path)] == [
        "error: bad-1.0-py3-none-any.whl: not a zip archive, or truncated: no end record",
        "error: demo_cu12-1.0-py3-none-any.whl: its METADATA says Name: demo, which the file name does not",
        "error: demo_cu13-1.0-py3-none-any.whl: requires demo[all], which has the same files: demo/level.py",
        "error: vision-1.0-py3-none-any-x86_64_v3.whl: has a variant label, which only installers of variants read",
        "warning: vision-1.0-py3-none-any-x86_64_v3.whl: requires demo==0.9, and only other releases are here",
        "warning: vision-1.0-py3-none-any.whl: requires demo==0.9, and only other releases are here",
    ]


def test_an_empty_folder_is_found(tmp_path: Path) -> None:
    assert [*said(tmp_path)] == [f"error: {tmp_path.name}: has no wheel"]
