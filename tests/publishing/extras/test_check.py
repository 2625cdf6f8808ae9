"""`vbuild check --layout extras`: what is wrong with base and plugins that lie in a folder."""

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.factories.level_wheels import BASE, MODULE, TAG, level_release
from tests.factories.tools import needs
from tests.factories.wheels import contents, record_of, wheel, with_entries
from vbuild.publishing.check import check_layout
from vbuild.publishing.extras import Extras
from vbuild.publishing.publish import publish

pytestmark = needs("gcc")

PACKAGE = "levels_x86_64_v3_plugin"
PLUGIN = f"{PACKAGE}-1.0-{TAG}.whl"
Edit = Callable[[dict[str, bytes]], None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The layout of a release for v1 and v3."""
    publish([level_release(tmp_path / "dist", "v1", "v3")], tmp_path / "out", layouts=[Extras()])
    return tmp_path / "out"


def said(folder: Path) -> list[str]:
    """What is wrong with the wheels of the layout in *folder*; that the index says the same is left out."""
    problems = check_layout(folder, "extras").problems
    return [f"{one.rule}: {one.place}: {one.what}" for one in problems if one.rule != "index"]


def edited(folder: Path, name: str, edit: Edit, *, fits: bool = True) -> None:
    """Change the members of the wheel *name*, and its RECORD where it is to fit."""
    path = folder / "extras" / name
    members = contents(path)
    dist_info = next(member for member in members if ".dist-info/" in member).partition("/")[0]
    record = members.pop(f"{dist_info}/RECORD")
    edit(members)
    fitting = record_of(members, dist_info).encode()
    path.unlink()
    with_entries(path, {**members, f"{dist_info}/RECORD": fitting if fits else record})


def replacing(file: str, old: str, new: str) -> Edit:
    def edit(members: dict[str, bytes]) -> None:
        [path] = [path for path in members if path.endswith(file)]
        assert old.encode() in members[path]
        members[path] = members[path].replace(old.encode(), new.encode())

    return edit


def test_what_was_published_is_right(folder: Path) -> None:
    edited(folder, BASE, replacing("METADATA", "Provides-Extra", "Requires-Dist: numpy\nProvides-Extra"))
    assert said(folder) == []


def test_what_was_published_and_nobody_touched_is_right_with_its_index(folder: Path) -> None:
    assert said(folder) == said(folder / "extras") == []
    assert check_layout(folder, "extras").problems == ()


@pytest.mark.parametrize(
    ("name", "edit", "what"),
    [
        (
            BASE,
            replacing("METADATA", "plugin==1.0", "plugin>=1.0"),
            (
                f"requirement: {BASE}: requires levels-x86-64-v3-plugin>=1.0 ; extra == 'x86-64-v3'; "
                "expected ==1.0, its own version"
            ),
        ),
        (
            BASE,
            replacing("METADATA", "levels-x86-64-v3-plugin==1.0", "levels-cu12-plugin==1.0"),
            f"requirement: {BASE}: has no extra that requires levels-x86-64-v3-plugin",
        ),
        (
            BASE,
            replacing("METADATA", "Provides-Extra: x86-64-v3\n", ""),
            f"metadata: {BASE}: has no Provides-Extra: x86-64-v3",
        ),
        (
            PLUGIN,
            replacing("METADATA", "levels==1.0", "levels"),
            f"requirement: {PLUGIN}: does not require levels==1.0, which it is for",
        ),
        (
            PLUGIN,
            replacing("plugin/__init__.py", 'VERSION = "1.0"', 'VERSION = "1.1"'),
            f"plain: {PLUGIN}: is for version and build 1.1 ",
        ),
        (
            PLUGIN,
            replacing("entry_points.txt", "levels.backends", "others"),
            f"metadata: {PLUGIN}: has no entry point x86-64-v3 = {PACKAGE} in the group levels.backends",
        ),
        (
            PLUGIN,
            replacing("entry_points.txt", PACKAGE, "nothing"),
            f"metadata: {PLUGIN}: has no entry point x86-64-v3 = {PACKAGE} in the group levels.backends",
        ),
        (
            BASE,
            replacing("levels/__init__.py", "from . import _vbuild_backend", "pass"),
            f"plain: {BASE}: levels/__init__.py: does not import _vbuild_backend, so no plugin is used",
        ),
        (
            PLUGIN,
            lambda members: members.update({f"levels/{MODULE}": b""}),
            f"shared-files: {BASE} and 1 more: levels has files shared with levels-x86-64-v3-plugin: levels/{MODULE}",
        ),
    ],
    ids=[
        "range",
        "other plugin",
        "no extra",
        "no pin",
        "other version",
        "no entry point",
        "entry point to nothing",
        "no import",
        "same files",
    ],
)
def test_wheels_that_do_not_lead_to_one_another_are_named(folder: Path, name: str, edit: Edit, what: str) -> None:
    edited(folder, name, edit)
    assert [line for line in said(folder) if line.startswith(what)]


def test_a_base_that_says_its_own_version_and_build_is_no_plugin(folder: Path) -> None:
    said_so = 'VERSION = "1.0"\nBUILD = "7"\nfrom . import _vbuild'
    edited(folder, BASE, replacing("levels/__init__.py", "from . import _vbuild", said_so))
    assert said(folder) == []


def test_two_versions_in_a_folder_are_told_apart(tmp_path: Path) -> None:
    for version in ("1.0", "1.1"):
        level_release(tmp_path / "dist", "v1", "v3", version=version)
    publish([tmp_path / "dist"], tmp_path, layouts=[Extras()])
    assert check_layout(tmp_path, "extras").problems == ()
    (tmp_path / "extras" / PLUGIN).unlink()
    assert [line for line in said(tmp_path) if "that plugin is not here" in line]
    (tmp_path / "extras" / BASE.replace("1.0-", "1.1-")).unlink()
    newer = PLUGIN.replace("1.0-", "1.1-")
    assert f"plain: {newer}: has no base wheel of the same version, Python and machine here" in said(tmp_path)


def test_plugins_that_overwrite_files_of_their_base_are_wrong_and_other_wheels_are_not_looked_at(folder: Path) -> None:
    for other in ("other", "another"):
        wheel(folder / "extras", f"{other}-1.0-py3-none-any.whl", {"other.py": other})
    assert said(folder) == []
    edited(folder, PLUGIN, lambda members: members.update({f"levels/{MODULE}": b""}))
    [problem] = [one for one in check_layout(folder, "extras").problems if one.rule == "shared-files"]
    assert (problem.is_error, problem.places) == (True, (BASE, PLUGIN))


def test_folders_and_links_to_nothing_called_as_wheels_are_named(tmp_path: Path) -> None:
    publish([level_release(tmp_path / "dist", "v1", "v3", "v4")], tmp_path, layouts=[Extras()])
    place = tmp_path / "extras"
    (place / PLUGIN).unlink()
    (place / PLUGIN).mkdir()
    listed = place / "simple" / "levels" / BASE
    listed.unlink()
    listed.symlink_to("nothing")
    problems = check_layout(tmp_path, "extras").problems
    assert [(one.place, one.what) for one in problems if one.rule in {"archive", "index"}] == [
        (PLUGIN, "cannot be read: Is a directory"),
        (f"simple/levels-x86-64-v3-plugin/{PLUGIN}", "is in the index only"),
        ("simple/levels/index.json", f"lists {BASE}, which is not there"),
    ]


@pytest.mark.parametrize("file", [f"{PACKAGE}/{MODULE}", f"{PACKAGE}/__init__.py", "entry_points.txt"])
def test_a_file_that_is_not_the_one_of_record_is_named_and_so_is_what_else_is_wrong(folder: Path, file: str) -> None:
    def damage(members: dict[str, bytes]) -> None:
        [path] = [path for path in members if path.endswith(file)]
        members[path] = bytes(len(members[path]))

    publish([level_release(folder / "again", "v1", "v3", "v4")], folder / "all", layouts=[Extras()])
    edited(folder / "all", PLUGIN, damage, fits=False)
    edited(folder / "all", PLUGIN.replace("v3", "v4"), replacing("METADATA", "levels==1.0", "levels"))
    damaged, missing, other = sorted(said(folder / "all"), key=lambda line: line.partition(": ")[0] != "archive")
    assert damaged.startswith(f"archive: {PLUGIN}: ")
    assert file in damaged
    assert missing.endswith("; extra == 'x86-64-v3', and that plugin is not here, or damaged")
    assert other.endswith("does not require levels==1.0, which it is for")


def test_a_plugin_that_is_missing_or_alone_is_named(folder: Path) -> None:
    publish([level_release(folder / "again", "v1", "v3", "v4")], folder / "all", layouts=[Extras()])
    (folder / "all" / "extras" / PLUGIN).unlink()
    line = "levels-x86-64-v3-plugin==1.0 ; extra == 'x86-64-v3'"
    assert said(folder / "all") == [f"requirement: {BASE}: requires {line}, and that plugin is not here, or damaged"]
    (folder / "extras" / BASE).unlink()
    assert said(folder) == ["plain: extras: has no base wheel with a loader, or no plugin; expected both"]


def test_a_plugin_for_another_machine_is_named(folder: Path) -> None:
    other = folder / "extras" / PLUGIN.replace("x86_64.whl", "aarch64.whl")
    (folder / "extras" / PLUGIN).rename(other)
    assert said(folder) == [f"plain: {other.name}: has no base wheel of the same version, Python and machine here"]


@pytest.mark.parametrize("layout", ["hwcaps", "redirect", "suffix", "extras", "oci", "conda"])
def test_the_folder_that_one_is_in_has_a_name(layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert tmp_path.name in {problem.place for problem in check_layout(Path(), layout).problems}


def test_a_folder_that_is_none_of_wheels_is_named(tmp_path: Path) -> None:
    (tmp_path / BASE).write_bytes(b"no archive")
    assert [line.partition(": ")[0] for line in said(tmp_path)] == ["archive", "plain"]
    assert not zipfile.is_zipfile(tmp_path / BASE)
