"""The versions of wheels of shared libraries: in the order of releases, and those that are published already."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.factories import sources
from tests.factories.clients import PIP, UV
from tests.factories.extensions import library, module
from tests.factories.ranges import serving, simple_index
from tests.factories.repaired_wheels import NAME, release
from tests.factories.site_packages import loader_complaints, site_packages
from tests.factories.tools import needs
from tests.factories.wheels import contents, wheel
from vbuild.errors import RepackageError
from vbuild.index_client.configuration import Indexes
from vbuild.publishing.check import check
from vbuild.splitting.request import SplitRequest
from vbuild.splitting.results import Split
from vbuild.splitting.split import split
from vbuild.wheel.metadata import Metadata

pytestmark = needs("gcc", "ldd")

FILES: dict[str, bytes | str] = {"demo/__init__.py": "", "demo/_c.so": module("libdeep.so.2")}
OTHER, LATE = NAME.replace("311", "312"), NAME.replace("311", "313")
MUSL = tuple(name.replace("manylinux_2_17", "musllinux_1_2") for name in (NAME, OTHER))
ARM = tuple(name.replace("x86_64", "aarch64") for name in (NAME, OTHER))


def deep(number: int) -> dict[str, bytes]:
    return {"libdeep.so.2": library("libdeep.so.2", source=f"int deep(void) {{ return {number}; }}")}


def fat(folder: Path, version: str = "1.0", number: int = 1, *, names: tuple[str, ...] = (NAME, OTHER)) -> list[Path]:
    """The wheels of a release whose library says *number*."""
    return release(
        folder / f"fat-{version}",
        {**FILES, "demo/version.txt": version},
        deep(number),
        names=tuple(name.replace("-1.0-", f"-{version}-") for name in names),
    )


def thinned(folder: Path, wheels: list[Path], **asked: Any) -> Split:
    """What becomes of *wheels*, in *folder*."""
    request = SplitRequest(**{"smallest": 0, **asked})
    return split(wheels, folder, request=request, indexes=lambda: Indexes(no_index=True))


def required(result: Split) -> set[str]:
    """The -libs wheels that METADATA of the results require."""
    texts = (contents(one.path) for one in result.wheels if one.path)
    parsed = [
        Metadata.parse(next(text[path] for path in text if path.endswith("/METADATA")).decode()) for text in texts
    ]
    return {line.partition(";")[0] for metadata in parsed for line in metadata.requires_dist}


def test_all_platforms_of_a_release_have_one_version(tmp_path: Path) -> None:
    wheels = [*fat(tmp_path, number=1), *fat(tmp_path, number=2, names=MUSL), *fat(tmp_path, number=3, names=ARM)]
    result = thinned(tmp_path / "thin", wheels)
    assert {one.name.split("-")[1] for one in result.companions} == {"1.0"}
    assert len(result.companions) == 3
    assert required(result) == {"demo-libs==1.0"}


@pytest.mark.parametrize("number", [1, 2], ids=["same libraries", "other libraries"])
def test_a_wheel_for_a_later_python_joins_what_is_published(tmp_path: Path, number: int) -> None:
    published = thinned(tmp_path / "all", fat(tmp_path))
    late = thinned(tmp_path / "late", fat(tmp_path, number=number, names=(LATE,)), against=tmp_path / "all")
    assert required(late) == required(published) == {"demo-libs==1.0"}
    assert late.companion_paths == ()
    assert [str(move.kind) for move in late.libraries] == ["share" if number == 1 else "keep"]
    for path in late.paths:
        shutil.copy(path, tmp_path / "all")
    assert not [problem for problem in check(tmp_path / "all").problems if problem.is_error]
    if number == 1:
        site = site_packages(tmp_path / "site", *late.paths, *published.companion_paths)
        assert not loader_complaints(site)


@pytest.mark.parametrize("place", ["folder", "index"])
def test_a_later_release_requires_what_is_published_if_it_has_the_same(tmp_path: Path, place: str) -> None:
    first = thinned(tmp_path / "published", fat(tmp_path, "1.0", 1))
    second = thinned(tmp_path / "published2", fat(tmp_path, "1.1", 2))
    made = [*first.companion_paths, *second.companion_paths]
    for path in second.companion_paths:
        shutil.copy(path, tmp_path / "published")
    with serving(simple_index(tmp_path / "index", *made)) as server:
        against = tmp_path / "published" if place == "folder" else server.url
        same = thinned(tmp_path / "same", fat(tmp_path, "1.2", 1), against=against)
        new = thinned(tmp_path / "new", fat(tmp_path, "1.3", 3), against=against)
        assert place == "folder" or server.files()
    assert (required(same), same.companion_paths) == ({"demo-libs==1.0"}, ())
    assert {move.target for move in same.libraries} == {"demo-libs==1.0"}
    assert required(new) == {"demo-libs==1.3"}
    assert [path.name for path in new.companion_paths] == ["demo_libs-1.3-py3-none-manylinux_2_17_x86_64.whl"]


def test_an_index_that_cannot_be_asked_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"^demo: http://127\.0\.0\.1:9/: "):
        thinned(tmp_path / "thin", fat(tmp_path), against="http://127.0.0.1:9/")
    with pytest.raises(
        RepackageError, match=r"/nowhere: no such folder; expected one of published wheels, or an index$"
    ):
        thinned(tmp_path / "thin", fat(tmp_path), against=tmp_path / "nowhere")


def test_what_is_built_from_source_needs_a_wheel_without_libraries(tmp_path: Path) -> None:
    folder = tmp_path / "published"
    thinned(folder, fat(tmp_path, "1.0"))
    later = fat(tmp_path, "1.1")
    info = "Metadata-Version: 2.2\nName: demo\nVersion: 1.1\n"
    later.append(sources.sdist(tmp_path, {"PKG-INFO": info, "pyproject.toml": "[project]\n"}, top="demo-1.1"))
    result = thinned(tmp_path / "later", later, against=folder)
    assert required(result) == {"demo-libs==1.1"}
    thinned(folder, later)
    again = thinned(tmp_path / "again", [*fat(tmp_path, "1.2"), *later[:0]], against=folder)
    assert required(again) == {"demo-libs==1.1"}


def test_a_final_release_takes_no_pre_release(tmp_path: Path) -> None:
    folder = tmp_path / "published"
    thinned(folder, fat(tmp_path, "2.0rc1"))
    assert required(thinned(tmp_path / "rc2", fat(tmp_path, "2.0rc2"), against=folder)) == {"demo-libs==2.0rc1"}
    assert required(thinned(tmp_path / "final", fat(tmp_path, "2.0"), against=folder)) == {"demo-libs==2.0"}


def test_the_same_version_with_other_contents_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "published"
    thinned(folder, fat(tmp_path, "1.0", 1))
    name = "demo_libs-1.0-py3-none-manylinux_2_17_x86_64.whl"
    what = "has it with other libraries than these wheels need, and a published file keeps its contents"
    advice = "raise the version of the release, or say --libs NAME==VERSION"
    with pytest.raises(RepackageError) as refused:
        thinned(tmp_path / "thin", fat(tmp_path, "1.0", 2), against=folder)
    assert str(refused.value) == f"{name}: {folder} {what}; {advice}"
    assert not (tmp_path / "thin").exists()
    given = [*fat(tmp_path / "b", "1.0", 2), folder / name]
    with pytest.raises(RepackageError) as refused:
        thinned(tmp_path / "thin", given)
    assert str(refused.value) == f"{name}: what is split {what}; {advice}"
    stated = thinned(tmp_path / "stated", fat(tmp_path, "1.0", 2), against=folder, libs="demo-libs==1.0.1")
    assert required(stated) == {"demo-libs==1.0.1"}


def test_a_platform_that_follows_later_contradicts_what_is_published(tmp_path: Path) -> None:
    folder = tmp_path / "published"
    thinned(folder, fat(tmp_path, number=1))
    late = thinned(tmp_path / "late", fat(tmp_path, number=2, names=ARM), against=folder)
    (warning,) = {warning for one in late.wheels for warning in one.warnings}
    assert warning == (
        f"{folder} has {OTHER}, which does not require demo-libs==1.0: a tool that locks by it leaves the libraries "
        "out; split all wheels of a release at once"
    )
    more = fat(tmp_path, number=1, names=(NAME.replace("311", "313"), NAME.replace("311", "314")))
    assert not [warning for one in thinned(tmp_path / "more", more, against=folder).wheels for warning in one.warnings]


def test_wheels_that_another_tool_split_keep_what_they_have(tmp_path: Path) -> None:
    metadata = "Requires-Dist: demo-libs>=3\n"
    wheels = release(tmp_path / "a", FILES, deep(1), names=(NAME, OTHER), metadata=metadata)
    result = thinned(tmp_path / "thin", wheels)
    (move,) = result.libraries
    assert (str(move.kind), move.reason) == (
        "keep",
        "METADATA requires demo-libs>=3 already; say with --libs what else to call it",
    )
    others = wheel(tmp_path, "demo_libs-3.0-py3-none-any.whl", {"demo_libs/__init__.py": ""})
    with pytest.raises(
        RepackageError, match=r"^demo-libs: demo_libs-3\.0-py3-none-any\.whl in what is split was not made"
    ):
        thinned(tmp_path / "again", [*fat(tmp_path), others])


@pytest.mark.parametrize("file", ["demo_libs-9.0-py3-none-any.whl", "demo_libs-9.0.tar.gz"])
def test_a_name_that_belongs_to_somebody_else_is_refused(tmp_path: Path, file: str) -> None:
    folder = tmp_path / "published"
    folder.mkdir()
    if file.endswith(".whl"):
        wheel(folder, file, {"demo_libs/__init__.py": ""})
    else:
        sources.sdist(
            folder, {"PKG-INFO": "Metadata-Version: 2.2\nName: demo-libs\nVersion: 9.0\n"}, top="demo_libs-9.0"
        )
    with pytest.raises(RepackageError) as refused:
        thinned(tmp_path / "thin", fat(tmp_path), against=folder)
    message = str(refused.value)
    assert message.startswith("demo-libs: ")
    assert file in message
    assert "the name belongs to another project; say with --libs what else to call" in message
    assert required(thinned(tmp_path / "thin", fat(tmp_path), against=folder, libs="ours")) == {"ours-libs==1.0"}


def test_two_releases_of_a_project_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RepackageError) as refused:
        thinned(tmp_path / "thin", [*fat(tmp_path, "1.0"), *fat(tmp_path, "1.1")])
    assert str(refused.value) == (
        "demo 1.0 and 1.1: two releases, expected one; split the earlier one first, and the later one with --against "
        "the folder or index that has the result"
    )


def family(folder: Path, one: str, other: str) -> list[Path]:
    """A wheel each of two projects that share a library, of these versions."""
    names = ((folder / "a", f"alpha-{one}-"), (folder / "b", f"beta-{other}-"))
    return [
        path
        for place, start in names
        for path in release(
            place,
            {f"{start.partition('-')[0]}/_c.so": module("libdeep.so.2")},
            deep(1),
            names=(NAME.replace("demo-1.0-", start),),
            libs=f"{start.partition('-')[0]}.libs",
        )
    ]


NEWER = NAME.replace("2_17", "2_28")


def flavours(folder: Path, *platforms: tuple[str, int]) -> list[Path]:
    """Of two projects a wheel for each of *platforms*, names with the number that the library there says."""
    return [
        path
        for project in ("alpha", "beta")
        for name, number in platforms
        for path in release(
            folder / f"{project}-{number}",
            {f"{project}/_c.so": module("libdeep.so.2")},
            deep(number),
            names=(name.replace("demo", project),),
            libs=f"{project}.libs",
        )
    ]


def test_flavours_for_an_old_and_a_new_libc_share_one_version(tmp_path: Path) -> None:
    """A machine takes both for the new one, or both for the old one."""
    result = thinned(tmp_path / "thin", flavours(tmp_path, (NAME, 1), (NEWER, 2)), libs="shared")
    tags = ["manylinux_2_17_x86_64", "manylinux_2_28_x86_64"]
    assert [one.name for one in result.companions] == [f"shared_libs-1.0-py3-none-{tag}.whl" for tag in tags]
    assert required(result) == {"shared-libs==1.0"}


def test_projects_without_a_common_version_are_told_to_state_one(tmp_path: Path) -> None:
    assert required(thinned(tmp_path / "same", family(tmp_path, "2.0", "2.0"), libs="shared")) == {"shared-libs==2.0"}
    wheels = family(tmp_path, "2.0", "0.7")
    with pytest.raises(RepackageError) as refused:
        thinned(tmp_path / "thin", wheels, libs="shared")
    assert str(refused.value) == (
        "shared-libs: alpha 2.0 and beta 0.7 share libraries and have no version in common; say with --libs "
        "NAME==VERSION which one the wheel of their libraries gets"
    )
    assert required(thinned(tmp_path / "stated", wheels, libs="shared==3.1")) == {"shared-libs==3.1"}


@pytest.mark.parametrize("text", ["shared==one", "a b==1", "shared=="])
def test_a_name_or_version_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(RepackageError, match="expected"):
        SplitRequest(libs=text)


@pytest.mark.nightly
@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_an_upgrade_goes_on_and_never_back(tmp_path: Path, installer: str) -> None:
    """1.1 has other libraries, and 1.2 those of 1.1: an upgrade of both projects at once ends where it should."""
    published = tmp_path / "published"
    tags = ("py3-none-linux_x86_64", "py2-none-linux_x86_64")
    names = tuple(f"demo-1.0-{tag}.whl" for tag in tags)
    for version, number in (("1.0", 1), ("1.1", 2), ("1.2", 2)):
        target = tmp_path / f"thin-{version}"
        thinned(target, fat(tmp_path, version, number, names=names), against=published if version > "1.0" else None)
        published.mkdir(exist_ok=True)
        for path in target.iterdir():
            shutil.copy(path, published)
    python = tmp_path / "venv/bin/python"
    subprocess.run([UV, "venv", "-q", "--no-config", tmp_path / "venv"], check=True)
    run = [*PIP, "--python", str(python)] if installer == "pip" else [UV, "pip"]
    own = [] if installer == "pip" else ["--no-config", "--python", str(python)]
    links = ["--no-index", f"--find-links={published}"]

    def installed(*words: str) -> str:
        subprocess.run([*run, "install", *own, *links, *words], check=True, capture_output=True)
        subprocess.run([*run, "check", *own], check=True, capture_output=True)
        listed = subprocess.run([*run, "freeze", *own], check=True, capture_output=True, text=True).stdout
        return " ".join(sorted((line for line in listed.split() if line.startswith("demo")), key=len))

    assert installed("demo==1.0") == "demo==1.0 demo-libs==1.0"
    assert installed("-U", "demo", "demo-libs") == "demo==1.2 demo-libs==1.1"
    assert installed("-U", "demo-libs") == "demo==1.2 demo-libs==1.1"
    assert installed("demo==1.0") == "demo==1.0 demo-libs==1.0"
