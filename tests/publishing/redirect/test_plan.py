"""The layout redirect: what the sdist holds, how small it is, and which wheels cannot be laid out so."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from tests.factories.redirect_installs import (
    COMPANION,
    METADATA,
    NAME,
    URL,
    V3,
    V4,
    against,
    laid_out,
    release,
    unpacked,
)
from tests.factories.wheels import wheel
from vbuild.errors import RepackageError
from vbuild.files.hashing import sha256_of
from vbuild.publishing.model import PublishPlan, Text
from vbuild.publishing.redirect.plan import PINS, Redirect, problems
from vbuild.publishing.redirect.sdist import admitted
from vbuild.publishing.releases import releases_at
from vbuild.wheel.name import WheelName

LINUX = "manylinux_2_17_x86_64.manylinux2014_x86_64"


def planned(folder: Path, url: str | None = URL, *, by_hardware: bool = False) -> PublishPlan:
    return Redirect(url, by_hardware=by_hardware).plan(releases_at([folder]))


def refused(folder: Path, url: str | None = URL) -> str:
    with pytest.raises(RepackageError) as refusal:
        planned(folder, url)
    return str(refusal.value)


def files(plan: PublishPlan) -> dict[str, str]:
    """What the sdist of *plan* holds, by name."""
    sdist = plan.outputs[0]
    assert isinstance(sdist, Text)
    with tarfile.open(fileobj=io.BytesIO(sdist.data)) as archive:
        found = ((entry.name, archive.extractfile(entry)) for entry in archive)
        return {name.removeprefix("demo-1.0/"): stream.read().decode() for name, stream in found if stream}


def table(plan: PublishPlan) -> dict[str, Any]:
    return dict(json.loads(files(plan)["wheels.json"]))


def pins(laid: Path) -> list[str]:
    return (laid / PINS).read_text().splitlines()


def many(folder: Path, *pythons: str, platforms: tuple[str, ...] = (LINUX,)) -> Path:
    """A release with a wheel for each of the CPythons and platforms, and two variants."""
    for python in pythons:
        for platform in platforms:
            name = f"demo-1.0-{python}-{python}-{platform}.whl"
            wheel(folder, name, {"demo/__init__.py": f"{name!r}\n"}, metadata=METADATA)
    return release(folder, "v3", "v4", name=f"demo-1.0-cp311-cp311-{LINUX}.whl")


@pytest.mark.parametrize("pythons", [("cp312",), ("cp39", "cp310", "cp312", "cp313", "cp314")])
def test_with_four_or_eight_wheels_the_sdist_takes_four_kilobytes(tmp_path: Path, pythons: tuple[str, ...]) -> None:
    plan = planned(many(tmp_path, *pythons))
    assert len(table(plan)["wheels"]) == len(pythons) + 3
    assert isinstance(plan.outputs[0], Text)
    assert len(plan.outputs[0].data) <= 4200


def test_a_variant_is_asked_for_without_cache(tmp_path: Path) -> None:
    release(tmp_path, "v3", "v4")
    wheel(tmp_path, "other-1-py3-none-any.whl")
    use = planned(tmp_path).uses[2]
    assert use.what == "A variant of x86_64_v3, x86_64_v4; caches do not know which one was asked for:"
    variables = 'VBUILD_SELECT=x86_64_v3 VBUILD_FIND_LINKS="$PWD/wheels"'
    words = "pip install --no-cache-dir --no-index --find-links . demo"
    assert use.text == f"{variables} {words}\n{variables} uv {words}"


def test_the_cache_hazard_is_stated_where_hardware_chooses(tmp_path: Path) -> None:
    release(tmp_path, "v3")
    plan, by_tags = planned(tmp_path, by_hardware=True), planned(tmp_path)
    hazard = "which the caches of pip and uv do not know"
    assert hazard in " ".join(plan.notes)
    assert hazard in files(plan)["PKG-INFO"].replace("\n", " ")
    assert "redirecthardware.py" in files(plan)
    assert hazard not in " ".join(by_tags.notes)
    assert "redirecthardware.py" not in files(by_tags)
    assert by_tags.notes[-1] == (
        "demo 1.0: tags alone choose, so variants are taken only where VBUILD_SELECT names a label."
    )


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (None, "no URL: the sdist has to say where the wheels are; give --url URL"),
        ("wheels", "'wheels': expected the URL of a folder, https, http or file, as in https://example.org/whl"),
    ],
)
def test_urls_that_no_one_could_use_are_refused(tmp_path: Path, url: str | None, message: str) -> None:
    assert refused(release(tmp_path), url) == message


def test_variants_alone_are_refused_where_tags_choose(tmp_path: Path) -> None:
    (release(tmp_path, "v3", "v4") / NAME).unlink()
    assert refused(tmp_path) == (
        "demo 1.0: only variants (x86_64_v3, x86_64_v4), and tags alone choose; "
        "expected a plain wheel, or --by-hardware"
    )
    plan = planned(tmp_path, by_hardware=True)
    assert [row["file"] for row in table(plan)["wheels"]] == [V3, V4]
    # none is fit for a mirror, where installers of any machine would take it
    assert "pip wheel" not in str(plan.uses)


def test_wheels_for_other_systems_alone_are_refused(tmp_path: Path) -> None:
    wheel(tmp_path, "demo-1.0-cp311-cp311-win_amd64.whl")
    assert refused(tmp_path) == (
        "demo 1.0: no wheel for CPython 3.9 or newer on 64-bit Linux, all that the backend knows; expected one"
    )


def test_companions_alone_are_refused(tmp_path: Path) -> None:
    wheel(tmp_path, "demo_libs-1.0-py3-none-any.whl", {"demo_libs-1.0.dist-info/WHEEL": COMPANION})
    assert refused(tmp_path) == "only companions of a split; expected wheels of the release that they are of, too"


@pytest.mark.parametrize(
    ("requires", "expected"),
    [
        (None, [[[3], [99]]]),
        ("as you like", [[[3], [99]]]),
        (">=3.9", [[[3, 9], [99]]]),
        (">=3.9,<4", [[[3, 9], [4]]]),
        (">=3.9.2,!=3.10.*,<=3.12.4", [[[3, 9, 2], [3, 10]], [[3, 11], [3, 12, 5]]]),
        ("<3", []),
    ],
)
def test_requires_python_becomes_ranges(requires: str | None, expected: list[Any]) -> None:
    assert admitted(requires) == expected


operators = st.sampled_from([">=", "<", "<=", ">", "!=", "~="])
versions = st.builds("{}.{}".format, st.just("3"), st.integers(0, 20)) | st.builds(
    "{}.{}.{}".format, st.just("3"), st.integers(0, 20), st.integers(0, 9)
)
specifiers = st.lists(st.builds("{}{}".format, operators, versions), max_size=3).map(",".join)


@settings(deadline=None)
@given(specifiers, st.tuples(st.just(3), st.integers(0, 20), st.integers(0, 12)))
def test_the_ranges_admit_what_requires_python_admits(requires: str, python: tuple[int, int, int]) -> None:
    now = list(python)
    wanted = SpecifierSet(requires).contains(".".join(map(str, python)), prereleases=True)
    assert any(first <= now < end for first, end in admitted(requires)) == wanted


def test_releases_that_say_what_they_were_built_against_share_an_sdist(tmp_path: Path) -> None:
    against(tmp_path / "dist", "1.4", "2.0", own="cu126.")
    laid = laid_out(tmp_path / "dist", tmp_path / "out", by_installed=True)
    [sdist] = laid.glob("*.tar.gz")
    assert sdist.name == "demo-1.0+cu126.tar.gz"
    inside = unpacked(laid)
    found = json.loads((inside / "wheels.json").read_bytes())
    assert found["values"] == ["engine2.0", "engine1.4"]
    assert [row["needs"] for row in found["wheels"]] == [{"engine": "==2.0.*"}, {"engine": "==1.4.*"}]
    assert {(row["file"], row["fields"]) for row in found["wheels"]} == {
        (f"engine{one}/demo-1.0+cu126-py3-none-any.whl", f"Requires-Dist: engine=={one}.*\n") for one in ("1.4", "2.0")
    }
    assert "Dynamic: Requires-Dist\n" in (inside / "PKG-INFO").read_text()
    assert pins(laid) == [f"demo==1.0+cu126 --hash=sha256:{sha256_of(sdist)}"]
    for row in found["wheels"]:
        assert sha256_of(laid / "wheels" / row["file"]) == row["sha256"]
        assert WheelName.parse(Path(row["file"]).name).version == "1.0+cu126"


def test_an_sdist_can_go_by_hardware_and_by_what_is_installed(tmp_path: Path) -> None:
    against(tmp_path / "dist", "1.4", "2.0", levels=("v3",))
    laid = laid_out(tmp_path / "dist", tmp_path / "out", by_hardware=True, by_installed=True)
    inside = unpacked(laid)
    found = json.loads((inside / "wheels.json").read_bytes())
    assert found["values"] == ["engine2.0", "engine1.4"]
    assert found["order"] == [["x86_64_v3", ["x86_64 :: level :: v3"]]]
    assert [(row["value"], row.get("label")) for row in found["wheels"]] == [
        (value, label) for label in ("x86_64_v3", None) for value in ("engine2.0", "engine1.4")
    ]
    assert {path.name for path in inside.glob("*.py")} == {
        *("redirectbackend.py", "redirecthardware.py", "redirectinstalled.py")
    }
    assert list(problems(laid)) == []


def test_wheels_that_do_not_say_what_they_were_built_against_are_refused(tmp_path: Path) -> None:
    release(tmp_path / "dist")
    with pytest.raises(RepackageError, match=r"demo 1\.0: its version does not say what it was built against"):
        laid_out(tmp_path / "dist", tmp_path / "out", by_installed=True)
    against(tmp_path / "dist", "1.4")
    with pytest.raises(RepackageError, match=r"demo 1\.0: demo 1\.0\+engine1\.4 would have this version, too"):
        laid_out(tmp_path / "dist", tmp_path / "out", by_installed=True)
    assert not (tmp_path / "out").exists()
