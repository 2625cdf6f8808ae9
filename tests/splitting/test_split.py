"""`vbuild split` and libraries that several wheels have: each once in a wheel of its own, found by all that load it."""

from pathlib import Path

import pytest

from tests.factories.elf import patchelfed, program, shared_object
from tests.factories.extensions import library, module
from tests.factories.repaired_wheels import LINUX, NAME, hashed, release, repaired
from tests.factories.site_packages import loader_complaints, program_output, site_packages
from tests.factories.tools import needs
from tests.factories.variants import variant
from tests.factories.wheels import contents, wheel
from vbuild.elf.read import Loading
from vbuild.errors import RepackageError
from vbuild.index_client.configuration import Indexes
from vbuild.splitting.decisions import DecisionKind
from vbuild.splitting.request import SplitRequest
from vbuild.splitting.results import LibraryMove, Split
from vbuild.splitting.split import split
from vbuild.variants.index import index
from vbuild.variants.stamp import stamped

pytestmark = needs("gcc", "ldd")

INIT = "from demo import _c\n"
COUNTS = "int count(void); int answer(void) { return count(); }"
TOP = library("libtop.so.1", ("libdeep.so.2",), source="int deep(void); int count(void) { return deep() + 1; }")
DEEP = library("libdeep.so.2", source="int deep(void) { return 41; }")
FILES: dict[str, bytes | str] = {"demo/__init__.py": INIT, "demo/_c.so": module("libtop.so.1", source=COUNTS)}
LIBRARIES = {"libtop.so.1": TOP, "libdeep.so.2": DEEP}
ASKS = "import ctypes, demo; print(ctypes.CDLL(demo._c.__file__).answer())"
OTHER = NAME.replace("311", "312")
ALONE = Indexes(no_index=True)


def thinned(folder: Path, *wheels: Path, smallest: int = 0, **asked: object) -> Split:
    request = SplitRequest(smallest=smallest, **asked)  # type: ignore[arg-type]
    return split(wheels, folder / "thin", request=request, indexes=lambda: ALONE)


def kept(result: Split) -> dict[str, str]:
    """The libraries that stay, with the reason."""
    return {move.path: move.reason for move in result.libraries if move.kind is DecisionKind.KEEP}


def moves(result: Split, kind: DecisionKind) -> list[LibraryMove]:
    return [move for move in result.libraries if move.kind is kind]


def libs(result: Split, number: int = 0) -> Path:
    path = result.companions[number].path
    assert path
    return path


def check_works(folder: Path, result: Split, *, program: str = ASKS, answer: str = "42") -> None:
    """Every wheel of *result* works beside those it came with."""
    beside = [one.path for one in result.companions if one.path]
    for number, thin in enumerate(result.wheels):
        assert thin.path
        installed = site_packages(folder / f"site{number}", thin.path, *beside)
        assert loader_complaints(installed) == []
        if program:
            assert program_output(installed, program) == answer


def test_what_the_wheels_of_a_release_repeat_is_in_a_wheel_of_its_own(tmp_path: Path) -> None:
    names = tuple(NAME.replace("311", f"31{number}") for number in range(3))
    fat = release(tmp_path, FILES, LIBRARIES, names=names)
    result = thinned(tmp_path, *fat)
    names_of = {hashed(soname, data) for soname, data in LIBRARIES.items()}
    (beside,) = result.companions
    assert set(beside.files) == {f"demo_libs/lib/{name}" for name in names_of}
    assert beside.wheels == names
    assert {move.name for move in moves(result, DecisionKind.SHARE)} == names_of
    requirement = f"demo-libs=={beside.name.split('-')[1]}"
    for thin in result.wheels:
        assert thin.path
        after = contents(thin.path)
        assert not [path for path in after if path.startswith("demo.libs/")]
        assert f"Requires-Dist: {requirement}; " in after["demo-1.0.dist-info/METADATA"].decode()
        assert after["demo/tag.txt"].decode() == thin.name
    check_works(tmp_path, result)


def test_needed_names_stay_and_rpath_leads_to_the_new_folder(tmp_path: Path) -> None:
    result = thinned(tmp_path, *release(tmp_path, FILES, LIBRARIES))
    before, after = (
        Loading.parse(contents(tmp_path / folder / NAME)["demo/_c.so"]).outline for folder in (".", "thin")
    )
    assert before.needed == after.needed
    assert (after.rpath, after.runpath) == (("$ORIGIN/../demo_libs/lib",), ())
    inside = contents(libs(result))
    # nothing of a library has to change: whoever loads it leads to its neighbours
    assert (
        inside[f"demo_libs/lib/{hashed('libtop.so.1', TOP)}"]
        == contents(tmp_path / NAME)[f"demo.libs/{hashed('libtop.so.1', TOP)}"]
    )


def test_variants_share_and_stay_variants(tmp_path: Path) -> None:
    files = repaired(FILES, LIBRARIES)
    plain = wheel(tmp_path / "in", f"demo-1.0-py3-none-{LINUX}.whl", files)
    levels = [
        stamped(plain, tmp_path / "in", variant=variant(f"x86_64_{level}", f"x86_64 :: level :: {level}"))
        for level in ("v2", "v3")
    ]
    fat = [plain, *levels]
    document = "demo-1.0.dist-info/variant.json"
    before = [contents(path).get(document) for path in fat]
    result = thinned(tmp_path, *fat)
    assert [path.name for path in result.paths[:3]] == [path.name for path in fat]
    assert [contents(path).get(document) for path in result.paths[:3]] == before
    assert not [path for path in contents(libs(result)) if path.endswith("variant.json")]
    (indexed,) = index(tmp_path / "thin")
    assert set(indexed.labels) == {"x86_64_v2", "x86_64_v3"}
    check_works(tmp_path, result)


def test_two_projects_share_only_under_a_name_that_somebody_gives(tmp_path: Path) -> None:
    fat = [
        *release(tmp_path / "a", FILES, LIBRARIES, names=(NAME,)),
        *release(tmp_path / "b", FILES, LIBRARIES, names=(NAME.replace("demo", "other"),), libs="other.libs"),
    ]
    with pytest.raises(RepackageError, match="have libraries in common, "):
        thinned(tmp_path, *fat)
    assert not (tmp_path / "thin").exists()
    result = thinned(tmp_path, *fat, libs="family")
    assert libs(result).name.startswith("family_libs-1.0-")
    assert all(f"family-libs=={libs(result).name.split('-')[1]}" in one.requires[0] for one in result.wheels)
    check_works(tmp_path, result)


def test_what_one_project_alone_shares_keeps_its_name(tmp_path: Path) -> None:
    """Both projects may be installed together, so they cannot ask for two versions of one dependency."""
    own = library("libown.so.1")
    other: dict[str, bytes | str] = {"other/__init__.py": "", "other/_c.so": module("libown.so.1")}
    fat = [
        *release(tmp_path / "a", FILES, LIBRARIES),
        *release(
            tmp_path / "b",
            other,
            {"libown.so.1": own},
            names=tuple(name.replace("demo", "other") for name in (NAME, OTHER)),
            libs="other.libs",
        ),
    ]
    result = thinned(tmp_path, *fat, libs="family")
    assert [one.name.partition("-")[0] for one in result.companions] == ["demo_libs", "other_libs"]
    alone = thinned(tmp_path / "alone", *fat[:2], libs="family-libs")
    assert libs(alone).name.startswith("family_libs-1.0-")


def test_pairs_of_projects_that_share_other_libraries_are_refused(tmp_path: Path) -> None:
    fat = []
    for number, project in enumerate(("one", "two", "three", "four")):
        name = f"libpair{number // 2}.so.1"
        files: dict[str, bytes | str] = {f"{project}/_c.so": module(name)}
        fat += release(tmp_path / project, files, {name: library(name)}, names=(NAME.replace("demo", project),))
    with pytest.raises(RepackageError) as refused:
        thinned(tmp_path, *fat, libs="family")
    one, three = (NAME.replace("demo", project) for project in ("one", "three"))
    assert str(refused.value) == (
        f"{one} and {three} share libraries with other wheels, and not the same: they could not be installed "
        "together; split the projects apart"
    )


NEWER = {**LIBRARIES, "libdeep.so.2": library("libdeep.so.2", source="int deep(void) { return 1; }")}


def test_variants_whose_libraries_differ_are_given_a_wheel_of_another_name(tmp_path: Path) -> None:
    """Each is for other machines: nobody installs both."""
    plain = release(tmp_path / "a", FILES, LIBRARIES)
    newer = release(tmp_path / "b", FILES, NEWER)
    label = variant("x86_64_v3", "x86_64 :: level :: v3")
    result = thinned(tmp_path, *plain, *(stamped(path, tmp_path / "c", variant=label) for path in newer))
    assert [one.name.partition("-py3")[0] for one in result.companions] == ["demo_libs-1.0", "demo_x86_64_v3_libs-1.0"]
    for thin in result.wheels:
        assert thin.path
        (beside,) = (one.path for one in result.companions if thin.name in one.wheels)
        assert beside
        installed = site_packages(tmp_path / f"site of {thin.name}", thin.path, beside)
        assert loader_complaints(installed) == []
        assert program_output(installed, ASKS) == ("2" if "x86_64_v3" in thin.name else "42")


def test_the_same_name_with_other_bytes_stays(tmp_path: Path) -> None:
    def fat(name: str, number: int) -> Path:
        deep = library("libdeep.so.2", source=f"int deep(void) {{ return {number}; }}")
        files = {**FILES, "demo/_c.so": module("libdeep.so.2", rpath_="$ORIGIN/lib"), "demo/lib/libdeep.so.2": deep}
        return wheel(tmp_path, name, files)

    result = thinned(tmp_path, fat(NAME, 1), fat(OTHER, 2))
    assert not result.companions
    assert kept(result) == {"demo/lib/libdeep.so.2": "other wheels have another file of its name"}
    (move,) = result.libraries
    assert move.differs.startswith("libdeep.so.2 is not the same: its section .text is another (")
    assert all(one.is_untouched for one in result.wheels)


def test_consumers_that_have_a_runpath_find_all_the_same(tmp_path: Path) -> None:
    files = repaired(FILES, LIBRARIES, runpath=True)
    for path in [path for path in files if path.startswith("demo.libs/libtop")]:
        data = files[path]
        assert isinstance(data, bytes)
        files[path] = patchelfed(data, "--set-rpath", "$ORIGIN")
    result = thinned(tmp_path, *(wheel(tmp_path, name, files) for name in (NAME, OTHER)))
    assert Loading.parse(contents(tmp_path / "thin" / NAME)["demo/_c.so"]).outline.runpath == ()
    check_works(tmp_path, result)


def test_a_consumer_in_a_namespace_package_is_led_out_of_all_its_folders(tmp_path: Path) -> None:
    files = {"space/inner/demo/_c.so": FILES["demo/_c.so"], "space/inner/demo/__init__.py": ""}
    result = thinned(tmp_path, *release(tmp_path, files, LIBRARIES))
    after = contents(tmp_path / "thin" / NAME)["space/inner/demo/_c.so"]
    assert Loading.parse(after).outline.rpath == ("$ORIGIN/../../../demo_libs/lib",)
    asks = "import ctypes; from space.inner.demo import _c; print(ctypes.CDLL(_c.__file__).answer())"
    check_works(tmp_path, result, program=asks)


def test_what_a_program_outside_of_site_packages_needs_stays(tmp_path: Path) -> None:
    tool = program("int main(void) { return 0; }")
    tool = patchelfed(tool, "--add-needed", hashed("libdeep.so.2", DEEP))
    files = {**FILES, "demo-1.0.data/scripts/tool": tool}
    result = thinned(tmp_path, *release(tmp_path, files, LIBRARIES))
    reason = "demo-1.0.data/scripts/tool needs it, from where no RPATH leads to site-packages"
    assert kept(result)[f"demo.libs/{hashed('libdeep.so.2', DEEP)}"] == reason


def test_a_library_that_has_its_own_name_in_it_is_opened_by_nobody_for_that(tmp_path: Path) -> None:
    name = "libdeep.so.2"
    own = library(name, source=f'int deep(void) {{ return 41; }} const char *me = "{name}";')
    files = {**FILES, "demo/_c.so": module(name, rpath_="$ORIGIN/lib"), "demo/lib/libdeep.so.2": own}
    result = thinned(tmp_path / "a", *(wheel(tmp_path / "a", wheel_, files) for wheel_ in (NAME, OTHER)))
    assert result.companions
    opens = {**files, "demo/more.so": shared_object(f'const char *opened = "{name}";')}
    opened = (wheel(tmp_path / "b", wheel_, opens) for wheel_ in (NAME, OTHER))
    result = thinned(tmp_path / "b", *opened)
    (move,) = moves(result, DecisionKind.SHARE)
    assert move.reason == "a stub stays, because demo/more.so names it, and may open it by its path"
