"""Plans of local versions: which labels can be some, what is pinned to what, and what a publisher is told."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from tests.factories.releases import V3, companion, offered, release
from vbuild.errors import RepackageError
from vbuild.publishing.local import Local, check_labels, in_order, local_part
from vbuild.publishing.model import NewWheel, PublishPlan, Put

LIBS = "Requires-Dist: demo-libs==0.187650320598251\n"


def planned(folder: Path, **options: str) -> PublishPlan:
    return Local(**options).plan(offered(folder))


def targets(plan: PublishPlan) -> list[str]:
    return [str(output.target) for output in plan.outputs]


def metadata(plan: PublishPlan, target: str) -> str:
    """METADATA of the new wheel at *target*."""
    [wheel] = [output for output in plan.outputs if isinstance(output, NewWheel) and str(output.target) == target]
    [put] = [member for member in wheel.members if isinstance(member, Put) and member.path.endswith("/METADATA")]
    return put.data.decode()


REFUSED = [
    (
        ["a__b"],
        (
            "label 'a__b': no local version (PEP 440); expected letters and digits with single . or _ between them: "
            "stamp the wheels under another label"
        ),
    ),
    (["v3", "plain"], "label 'plain': the plain wheels' index is called so; stamp the wheels under another label"),
    (
        ["a_b", "c", "a.b"],
        (
            "labels 'a_b' and 'a.b': both become +a.b (PEP 440); expected labels that differ in more than separators: "
            "stamp one of them again"
        ),
    ),
    (
        ["cu126", "cpu", "cu1210"],
        (
            "labels 'cu1210' and 'cu126': compared as text (PEP 440), cu126 is the later of the two, which an unpinned "
            "request would take; expected numbers that are parts of their own, as in cu.126 and cu.1210: stamp them "
            "again"
        ),
    ),
]


@pytest.mark.parametrize(("labels", "message"), REFUSED)
def test_labels_that_would_surprise_are_refused(labels: list[str], message: str) -> None:
    with pytest.raises(RepackageError) as refusal:
        check_labels(labels)
    assert str(refusal.value) == message


labels = st.from_regex(r"[a-z]{1,2}[0-9]{0,2}([._][a-z0-9]{1,2})?", fullmatch=True).filter(lambda one: one != "plain")


@given(st.lists(labels, max_size=4, unique_by=local_part))
def test_what_is_taken_sorts_as_its_numbers_where_it_is_called_alike(found: list[str]) -> None:
    try:
        check_labels(found)
    except RepackageError:
        assert len(found) > 1
        return
    order = [local_part(label) for label in in_order(found)]
    assert order == sorted(order, key=lambda local: Version(f"0+{local}"))
    numbered = [local for local in order if local.startswith("cu") and local[2:].isdigit()]
    assert numbered == sorted(numbered, key=lambda local: int(local[2:]))


def test_siblings_are_pinned_to_the_same_label(tmp_path: Path) -> None:
    lines = ["demo==1.0", 'Demo[all]~=1.0 ; python_version > "3"', "demo==1.*", "demo>=1.0", "demo", "demo!=2,==1.0"]
    release(tmp_path)
    release(tmp_path, "vision", "2.0", metadata="".join(f"Requires-Dist: {line}\n" for line in lines))
    text = metadata(planned(tmp_path), "x86_64_v4/vision-2.0+x86.64.v4-py3-none-any.whl")
    assert [line.partition(": ")[2] for line in text.splitlines() if line.startswith("Requires-Dist")] == [
        "demo==1.0+x86.64.v4",
        'Demo[all]==1.0+x86.64.v4; python_version > "3"',
        "demo==1.0+x86.64.v4",
        "demo>=1.0",
        "demo",
        "demo==1.0+x86.64.v4",
    ]


def test_uv_is_told_of_companions_as_an_explicit_index_is_asked_for_nothing_else(tmp_path: Path) -> None:
    companion(tmp_path)
    release(tmp_path, metadata=LIBS, labels=[V3])
    text = planned(tmp_path, url="https://example.org/whl/").uses[-1].text
    assert text == (
        "[project.optional-dependencies]\n"
        'x86-64-v3 = ["demo==1.0+x86.64.v3", "demo-libs==0.187650320598251"]\n\n'
        '[[tool.uv.index]]\nname = "x86-64-v3"\nurl = "https://example.org/whl/x86_64_v3/simple"\nexplicit = true\n\n'
        "[tool.uv.sources]\n"
        'demo = [\n    { index = "x86-64-v3", extra = "x86-64-v3" },\n]\n'
        'demo-libs = [\n    { index = "x86-64-v3", extra = "x86-64-v3" },\n]\n'
    )


def test_a_publisher_is_told_what_an_index_lacks(tmp_path: Path) -> None:
    release(tmp_path, tag="cp311-cp311-linux_x86_64")
    release(tmp_path, tag="cp312-cp312-linux_x86_64", labels=[])
    release(tmp_path, "vision", labels=[V3], metadata="Requires-Dist: demo==0.9\n")
    assert planned(tmp_path).notes == (
        (
            "Keep to one of the indexes: of several, a request without +label takes +x86.64.v4, which comes after "
            "+x86.64.v3, whatever the machine."
        ),
        "==1.0 takes every local version of 1.0, ===1.0 the plain one alone, and >1.0 none (PEP 440).",
        "demo 1.0: there is no x86_64_v3, x86_64_v4 for cp312-cp312-linux_x86_64; that index is empty for it.",
        "vision 1.0: there is no x86_64_v4; that index has its plain wheel.",
        "vision 1.0: requires demo==0.9, which demo 1.0 is not; left as it is.",
    )


def test_plain_wheels_that_ask_for_different_things_are_told(tmp_path: Path) -> None:
    release(tmp_path, tag="cp311-cp311-linux_x86_64", labels=[])
    release(tmp_path, tag="cp312-cp312-linux_x86_64", labels=[], metadata="Requires-Dist: numpy\n")
    release(tmp_path, tag="cp312-cp312-linux_x86_64", metadata="Requires-Dist: numpy\n", plain=False)
    assert planned(tmp_path).notes[-1] == (
        "demo-1.0-cp312-cp312-linux_x86_64.whl: not as in demo-1.0-cp311-cp311-linux_x86_64.whl: Requires-Dist: has "
        "'numpy'; uv takes one's for all."
    )


def unlike(folder: Path) -> None:
    release(folder, tag="cp311-cp311-linux_x86_64", labels=[V3])
    release(folder, tag="cp312-cp312-linux_x86_64", labels=[V3], metadata="Requires-Dist: numpy\n")


def lacking(folder: Path) -> None:
    release(folder)
    release(folder, "vision", labels=[V3, "v5"], metadata="Requires-Dist: demo==1.0\n")


def plain(folder: Path) -> None:
    release(folder, labels=[])


def surprising(folder: Path) -> None:
    release(folder, labels=["cu126", "cu1210"])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            unlike,
            (
                "demo-1.0-cp312-cp312-linux_x86_64-x86_64_v3.whl: not as in "
                "demo-1.0-cp311-cp311-linux_x86_64-x86_64_v3.whl: Requires-Dist: has 'numpy'; expected the same of all "
                "wheels labelled x86_64_v3: uv takes one's METADATA for all of a version"
            ),
        ),
        (
            lacking,
            (
                "vision-1.0-py3-none-any-v5.whl: requires demo==1.0, and demo 1.0 has no v5; expected the same labels "
                "of both: build it, or publish them apart"
            ),
        ),
        (plain, "found demo 1.0, and no variant of it; expected wheels with labels: vbuild stamp gives one"),
        (surprising, REFUSED[-1][1]),
        (
            lambda folder: release(folder, labels=["index.html"]),
            "index.html: two outputs of this name; publish what they are made of apart",
        ),
    ],
)
def test_releases_that_would_not_fit_together_are_refused(
    tmp_path: Path, make: Callable[[Path], object], message: str
) -> None:
    make(tmp_path)
    with pytest.raises(RepackageError) as refusal:
        planned(tmp_path)
    assert str(refusal.value) == message


def test_without_a_plain_wheel_there_is_no_plain_index(tmp_path: Path) -> None:
    release(tmp_path, plain=False)
    release(tmp_path, "vision", labels=[V3], plain=False, metadata="Requires-Dist: demo @ https://example.org/a.whl\n")
    plan = planned(tmp_path)
    assert not [target for target in targets(plan) if target.startswith("plain")]
    assert [use.what.partition(",")[0] for use in plan.uses] == [
        "x86_64_v3 (x86_64 :: level :: v3)",
        "x86_64_v4 (x86_64 :: level :: v4)",
        "In the pyproject.toml of a project",
    ]
    assert plan.notes[1] == "==1.0 takes every local version of 1.0 and >1.0 none (PEP 440)."
    assert "vision 1.0: there is no x86_64_v4; that index has nothing of it." in plan.notes
