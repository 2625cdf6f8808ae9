"""A wheel under another name: the paths, METADATA and bills of materials that follow, and the way back."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement

from vbuild.errors import WheelError
from vbuild.sbom.keeping import is_bill, renamed_bill
from vbuild.wheel.metadata import Metadata, MetadataHeaders, Renaming, requirement_of
from vbuild.wheel.name import WheelName, escaped

OLD = WheelName.parse("demo_two-1.0-cp311-cp311-linux_x86_64-x86_64_v3.whl")
SUFFIXED = WheelName.parse("demo_two_cu12-1.0-cp311-cp311-linux_x86_64.whl")
LOCAL = WheelName.parse("demo_two-1.0+cu12-cp311-cp311-linux_x86_64.whl")
METADATA = """\
Metadata-Version: 2.4
Name: Demo.Two
Version: 1.0
Provides-Extra: all
Requires-Dist: numpy>=2; extra == "all"
Provides-Extra: dev
Requires-Dist:  demo-two[all] ; extra == 'dev'
Requires-Dist: Demo_Two[all]==1.0;extra=="test"
Requires-Dist: demo-two-libs==0.1
REQUIRES-DIST: demo two is nothing

About demo-two.
"""


def way(old: WheelName, new: WheelName, project: str | None = None) -> Renaming:
    return Renaming(old, new, old.dist_info, project)


@pytest.mark.parametrize(
    ("path", "suffixed", "local"),
    [
        ("demo_two/__init__.py", "demo_two/__init__.py", "demo_two/__init__.py"),
        ("demo_two-1.0.dist-info/WHEEL", "demo_two_cu12-1.0.dist-info/WHEEL", "demo_two-1.0+cu12.dist-info/WHEEL"),
        ("demo_two-1.0.data/scripts/a", "demo_two_cu12-1.0.data/scripts/a", "demo_two-1.0+cu12.data/scripts/a"),
        ("Demo.Two-1.0.0.data/data/a", "demo_two_cu12-1.0.data/data/a", "demo_two-1.0+cu12.data/data/a"),
        ("other-1.0.data/data/a", "other-1.0.data/data/a", "other-1.0.data/data/a"),
        ("demo_two-x.data/a", "demo_two-x.data/a", "demo_two-x.data/a"),
        ("demo.data/a", "demo.data/a", "demo.data/a"),
        ("demo_two-1.0.data", "demo_two-1.0.data", "demo_two-1.0.data"),
        ("demo_two-1.0.dist-info/variant.json", None, None),
        ("demo_two-1.0.dist-info/RECORD", None, None),
        ("demo_two-1.0.dist-info/RECORD.jws", None, None),
        ("demo/demo_two-1.0.dist-info/RECORD", *["demo/demo_two-1.0.dist-info/RECORD"] * 2),
    ],
)
def test_folders_that_are_called_after_the_wheel_follow(path: str, suffixed: str | None, local: str | None) -> None:
    assert way(OLD, SUFFIXED).path(path) == suffixed
    assert way(OLD, LOCAL).path(path) == local


def test_a_variant_keeps_its_variant_json() -> None:
    new = SUFFIXED.labelled("x86_64_v3")
    assert way(OLD, new).path("demo_two-1.0.dist-info/variant.json") == "demo_two_cu12-1.0.dist-info/variant.json"


def test_metadata_of_another_version_keeps_the_name_as_it_is_written() -> None:
    found = str(way(OLD, LOCAL).metadata(Metadata.parse(METADATA)))
    assert found == METADATA.replace("Version: 1.0\n", "Version: 1.0+cu12\n")


def test_metadata_of_the_same_release_stays_letter_for_letter() -> None:
    text = METADATA.replace("Version: 1.0\n", "Version: 1.0.0\r\n")
    assert str(way(OLD, OLD.plain()).metadata(Metadata.parse(text))) == text


def test_a_change_to_several_lines_is_refused() -> None:
    with pytest.raises(WheelError) as refusal:
        MetadataHeaders.parse("Name: a\n").changing("Name", lambda _: "a\nb")
    assert str(refusal.value) == "Name 'a\\nb': expected one line"


projects = st.from_regex(r"[a-z][a-z0-9]{0,5}(-[a-z0-9]{1,4}){0,2}", fullmatch=True)
versions = st.from_regex(r"[1-9]\.[0-9](\.post[1-9])?(\+[a-z]{1,3}(\.[1-9])?)?", fullmatch=True)
specifiers = st.sampled_from(["", "==1.0", ">=1,<2", "[all]", "[all,dev]~=1.0"])
markers = st.sampled_from(["", '; extra == "all"', "; python_version < '3.12'"])
requirements = st.lists(st.tuples(projects, specifiers, markers))
members = st.sampled_from(["{d}.dist-info/METADATA", "{d}.dist-info/licenses/a", "{d}.data/scripts/b", "pkg/c.py"])


def named(project: str, version: str) -> WheelName:
    return WheelName(escaped(project), version, None, "py3", "none", "any")


@pytest.mark.nightly
@given(st.tuples(projects, versions), st.tuples(projects, versions), requirements, members)
def test_there_and_back_gives_the_same_metadata_and_paths(
    one: tuple[str, str], other: tuple[str, str], lines: list[tuple[str, str, str]], member: str
) -> None:
    (old, was), (new, becomes) = one, other
    before, after = named(old, was), named(new, becomes)
    asked = "".join(f"Requires-Dist: {name}{rest}{marker}\n" for name, rest, marker in lines if name != new)
    own = f"Requires-Dist: {old}[all]; extra == 'dev'\nProvides-Extra: dev\n"
    metadata = Metadata.parse(f"Metadata-Version: 2.4\nName: {old}\nVersion: {was}\n{own}{asked}\nText of {old}.\n")
    there, back = way(before, after), way(after, before)
    assert str(back.metadata(there.metadata(metadata))) == str(metadata)
    path = member.format(d=f"{before.distribution}-{before.version}")
    assert back.path(there.path(path) or "") == path
    data = f"{after.distribution}-{after.version}.data"
    assert (there.path(path) or "").partition("/")[0] in {data, after.dist_info, "pkg"}


@given(projects, projects, specifiers, markers)
def test_a_requirement_says_the_same_of_another_project(old: str, new: str, rest: str, marker: str) -> None:
    before, after = Requirement(f"{old}{rest}{marker}"), Requirement(requirement_of(f"{old}{rest}{marker}", {old: new}))
    assert (after.name, after.extras, after.specifier, after.marker) == (
        new,
        before.extras,
        before.specifier,
        before.marker,
    )


def bill(name: str = "demo_two", **more: object) -> bytes:
    """What auditwheel writes: the wheel twice, a library, and what depends on what."""
    reference = f"pkg:pypi/{name}@1.0?file_name={name}-1.0-cp311-cp311-linux_x86_64-x86_64_v3.whl"
    whole = {"type": "library", "bom-ref": reference, "name": name, "version": "1.0", "purl": reference}
    library = {"type": "library", "bom-ref": "pkg:deb/libz#1", "name": "libz", "version": "1.0"}
    document = {
        "bomFormat": "CycloneDX",
        "metadata": {"component": whole},
        "components": [whole, library],
        "dependencies": [{"ref": reference, "dependsOn": ["pkg:deb/libz#1"]}, {"ref": "pkg:deb/libz#1"}],
        **more,
    }
    return json.dumps(document).encode()


def test_a_bill_of_materials_goes_there_and_back() -> None:
    known = bill("demo-two").replace(b"file_name=demo-two", b"file_name=demo_two")
    indented = json.dumps(json.loads(known) | {"é": "é"}, indent=2, ensure_ascii=False).encode() + b"\n"
    for data in (known, indented):
        assert renamed_bill(renamed_bill(data, OLD, LOCAL), LOCAL, OLD) == data
        assert renamed_bill(data, OLD, SUFFIXED) != data


@pytest.mark.parametrize(
    "data",
    [
        *(b"{}", b"[]", b"\xff", b'{"metadata": {"component": {}}}', bill("other")),
        bill().decode().encode("utf-16"),
        bill().replace(b'"libz"', '"\\ud800 \u00e9"'.encode()),
    ],
    ids=["empty", "list", "binary", "nothing", "of another", "UTF-16", "half a character"],
)
def test_a_bill_of_something_else_is_left_alone(data: bytes) -> None:
    assert renamed_bill(data, OLD, LOCAL) == data


def test_bills_are_told_by_their_place() -> None:
    assert is_bill("demo-1.0.dist-info/sboms/auditwheel.cdx.json")
    assert not is_bill("demo-1.0.dist-info/sboms/a.spdx.json")
    assert not is_bill("demo/sboms/a.cdx.json")
    assert not is_bill("demo-1.0.dist-info/sboms.cdx.json")
