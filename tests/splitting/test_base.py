"""What several projects have moves to a base, the rest to the pool of its project; wheels and whole projects join."""

import random
from pathlib import Path

import pytest

from tests.factories.elf import patchelfed
from tests.factories.extensions import library, module
from tests.factories.repaired_wheels import LINUX, NAME, repaired
from tests.factories.site_packages import loader_complaints, program_output, site_packages
from tests.factories.tools import needs
from tests.factories.wheels import contents, wheel
from vbuild.elf.read import Loading
from vbuild.errors import RepackageError
from vbuild.index_client.configuration import Indexes
from vbuild.splitting.request import SplitRequest
from vbuild.splitting.results import Split
from vbuild.splitting.split import split
from vbuild.verification.verify import verify
from vbuild.wheel.metadata import Metadata

pytestmark = needs("gcc", "ldd")

DEEP = "libdeep.so.2"
LAST = "liblast.so.1"
BASE = "base==1.0"
ANSWERS = {"one": 41, "two": 42, "three": 43}


def deep(text: str = "Mon Sep 16 16:56:39 2024") -> bytes:
    return library(DEEP, source=f'const char *about = "built on: {text}"; int deep(void) {{ return 40; }}')


def fat(
    folder: Path,
    project: str,
    *,
    pythons: tuple[int, ...] = (311, 312),
    base: bytes | None = None,
    platform: str = LINUX,
) -> list[Path]:
    """A project whose module needs a library of its own, and that needs one that all projects have."""
    number = ANSWERS[project] - 40
    top = library("libtop.so.1", (DEEP,), source=f"int deep(void); int count(void) {{ return deep() + {number}; }}")
    files: dict[str, bytes | str] = {
        f"{project}/__init__.py": f"from {project} import _c\n",
        f"{project}/_c.so": module("libtop.so.1", DEEP, source="int count(void); int answer(void) { return count(); }"),
    }
    whole = repaired(files, {"libtop.so.1": top, DEEP: base or deep()}, folder=f"{project}.libs")
    names = [f"{project}-1.0-cp{python}-cp{python}-{platform}.whl" for python in pythons]
    return [wheel(folder, name, {**whole, f"{project}/tag.txt": name}) for name in names]


def thinned(folder: Path, *wheels: Path, libs: str | None = BASE, against: Path | None = None) -> Split:
    request = SplitRequest(smallest=0, libs=libs, against=against)
    return split(wheels, folder, request=request, indexes=lambda: Indexes(no_index=True))


def beside(result: Split) -> dict[str, set[str]]:
    """The libraries in each -libs wheel, without their hashes."""
    return {
        companion.name.partition("-")[0]: {Path(path).name.partition("-")[0] for path in companion.files}
        for companion in result.companions
    }


def required(result: Split) -> dict[str, list[str]]:
    texts = {path.name.partition("-")[0]: contents(path) for path in result.paths if "_libs" not in path.name}
    return {
        project: [
            line.partition(";")[0]
            for line in Metadata.parse(files[f"{project}-1.0.dist-info/METADATA"].decode()).requires_dist
        ]
        for project, files in texts.items()
    }


def check_works(folder: Path, paths: list[Path], *projects: str) -> None:
    site = site_packages(folder, *paths)
    assert loader_complaints(site) == []
    prints = "; ".join(f"import {name}; print(ctypes.CDLL({name}._c.__file__).answer())" for name in projects)
    assert program_output(site, f"import ctypes; {prints}").split() == [str(ANSWERS[name]) for name in projects]


def test_what_several_have_is_the_base_and_the_rest_each_projects_own(tmp_path: Path) -> None:
    result = thinned(tmp_path / "thin", *fat(tmp_path, "one"), *fat(tmp_path, "two"))
    assert beside(result) == {"base_libs": {"libdeep"}, "one_libs": {"libtop"}, "two_libs": {"libtop"}}
    assert required(result) == {name: ["base-libs==1.0", f"{name}-libs==1.0"] for name in ("one", "two")}
    paths = {path.name.partition("-")[0]: path for path in result.paths if "cp312" not in path.name}
    check_works(tmp_path / "both", [*paths.values()], "one", "two")
    check_works(tmp_path / "one_alone", [paths["one"], paths["one_libs"], paths["base_libs"]], "one")
    # the library of the project finds that of the base; that of the base knows no project
    for name, rpath in (("one_libs", ("$ORIGIN/../../base_libs/lib",)), ("base_libs", ())):
        (file,) = (data for path, data in contents(paths[name]).items() if "/lib/" in path)
        assert Loading.parse(file).outline.search_path == rpath
    own, base = (
        Metadata.parse(contents(paths[f"{name}_libs"])[f"{name}_libs-1.0.dist-info/METADATA"].decode())
        for name in ("one", "base")
    )
    assert [line.partition(";")[0] for line in own.requires_dist] == ["base-libs==1.0"]
    assert base.headers.value("Summary") == "Shared libraries of one and two"
    assert not any(verify(path).failed for path in paths.values())


def test_without_a_name_nothing_is_shared_between_projects(tmp_path: Path) -> None:
    result = thinned(tmp_path / "thin", *fat(tmp_path, "one"), *fat(tmp_path, "two"), libs=None)
    assert beside(result) == {"one_libs": {"libtop", "libdeep"}, "two_libs": {"libtop", "libdeep"}}
    alone = thinned(tmp_path / "alone", *(fat(tmp_path, name)[0] for name in ("one", "two")), libs=None)
    reasons = {move.name.partition("-")[0]: move.reason for move in alone.libraries}
    assert reasons == {
        "libdeep": "another project has it; --libs NAME==VERSION moves what several have to one wheel",
        "libtop": "no other wheel has it",
    }
    (copied,) = (library for library in result.rebuilt if library.name == DEEP)
    assert [(build.projects, build.copies) for build in copied.builds] == [(("one", "two"), 2)]
    assert copied.saving * 2 == copied.packed
    check_works(tmp_path / "site", [path for path in result.paths if "cp312" not in path.name], "one", "two")


def test_what_needs_another_library_in_each_project_stays_with_the_project(tmp_path: Path) -> None:
    """The same file in both, but what it needs is not, and has one name: each gets that of its own."""
    top = library("libtop.so.1", (DEEP,), source="int deep(void); int count(void) { return deep(); }", rpath_="$ORIGIN")
    wheels = []
    for project, number in ANSWERS.items():
        files: dict[str, bytes | str] = {
            f"{project}/__init__.py": f"from {project} import _c\n",
            f"{project}/_c.so": module(
                "libtop.so.1", source="int count(void); int answer(void) { return count(); }", rpath_="$ORIGIN/lib"
            ),
            f"{project}/lib/libtop.so.1": top,
            f"{project}/lib/{DEEP}": library(DEEP, source=f"int deep(void) {{ return {number}; }}"),
        }
        for python in (311, 312):
            name = NAME.replace("311", str(python)).replace("demo", project)
            wheels.append(wheel(tmp_path, name, {**files, f"{project}/tag.txt": name}))
    result = thinned(tmp_path / "thin", *wheels)
    assert "base_libs" not in beside(result)
    for project in ANSWERS:
        paths = [path for path in result.paths if "cp312" not in path.name and path.name.startswith(project)]
        check_works(tmp_path / project, paths, project)


def test_a_base_is_for_the_oldest_platform_of_its_wheels_and_newer_ones_join(tmp_path: Path) -> None:
    newer, newest = (LINUX.replace("2_17", version) for version in ("2_28", "2_34"))
    result = thinned(tmp_path / "thin", *fat(tmp_path, "one"), *fat(tmp_path, "two", platform=newer))
    names = [f"base_libs-1.0-py3-none-{LINUX}.whl", f"one_libs-1.0-py3-none-{LINUX}.whl"]
    assert [companion.name for companion in result.companions] == [*names, f"two_libs-1.0-py3-none-{newer}.whl"]
    late = thinned(tmp_path / "later", *fat(tmp_path / "late", "three", platform=newest), against=tmp_path / "thin")
    assert beside(late) == {"three_libs": {"libtop"}}
    paths = [path for path in (*result.paths, *late.paths) if "cp312" not in path.name]
    check_works(tmp_path / "site", paths, *ANSWERS)


def test_what_only_newer_platforms_have_is_not_for_an_older_one(tmp_path: Path) -> None:
    noise = random.Random(1).randbytes(60_000)  # cannot be deflated, so that the other library is little beside it
    sources = {DEEP: f"unsigned char many[] = {{{','.join(map(str, noise))}}};", LAST: "int few;"}
    wheels = []
    for project, version, names in (("one", "17", (DEEP,)), ("two", "28", (DEEP, LAST)), ("three", "28", (DEEP, LAST))):
        bundled = {name: library(name, source=sources[name]) for name in names}
        files = repaired({f"{project}/_c.so": module(*names)}, bundled, folder=f"{project}.libs")
        wheels.append(wheel(tmp_path, NAME.replace("demo", project).replace("2_17", f"2_{version}"), files))
    (base,) = thinned(tmp_path / "thin", *wheels).companions
    assert base.name == f"base_libs-1.0-py3-none-{LINUX}.whl"
    assert {Path(path).name.partition("-")[0] for path in base.files} == {"libdeep"}


def test_the_pair_that_saves_most_has_the_base(tmp_path: Path) -> None:
    wheels = []
    for number, project in enumerate(("one", "two", "three", "four")):
        name = f"libpair{number // 2}.so.1"
        source = f"int data[] = {{{','.join(map(str, range(1, 2 + number // 2 * 1000)))}}};"
        files = repaired(
            {f"{project}/_c.so": module(name)}, {name: library(name, source=source)}, folder=f"{project}.libs"
        )
        wheels.append(wheel(tmp_path, NAME.replace("demo", project), files))
    result = thinned(tmp_path / "thin", *wheels)
    assert beside(result) == {"base_libs": {"libpair1"}}
    assert [thin.name.partition("-")[0] for thin in result.wheels if thin.is_untouched] == ["one", "two"]


def test_the_name_of_a_project_with_libraries_of_its_own_is_refused(tmp_path: Path) -> None:
    wheels = [*fat(tmp_path, "one"), *fat(tmp_path, "two")]
    with pytest.raises(RepackageError) as refused:
        thinned(tmp_path / "thin", *wheels, libs="one")
    assert str(refused.value) == (
        f"one-1.0-cp311-cp311-{LINUX}.whl: has libraries that only one has, which go to one-libs; say with --libs what "
        "else to call what several projects have"
    )
    assert not (tmp_path / "thin").exists()


@pytest.mark.parametrize("libs", [None, BASE])
@pytest.mark.parametrize("build", ["Mon Sep 16 16:56:39 2024", "Tue Sep 17 16:56:39 2024"], ids=["same", "other build"])
def test_a_late_wheel_joins_the_base_and_the_pool_of_its_project(tmp_path: Path, libs: str | None, build: str) -> None:
    first = thinned(tmp_path / "thin", *fat(tmp_path, "one"), *fat(tmp_path, "two"))
    late = fat(tmp_path / "late", "one", pythons=(313,), base=deep(build))
    result = thinned(tmp_path / "later", *late, libs=libs, against=tmp_path / "thin")
    assert (result.companions, {str(move.kind) for move in result.libraries}) == ((), {"share"})
    assert {move.target for move in result.libraries} == {"base-libs==1.0", "one-libs==1.0"}
    assert required(result) == {"one": required(first)["one"]}
    check_works(tmp_path / "site", [*result.paths, *first.companion_paths], "one")


def test_a_late_wheel_with_another_library_of_a_published_name_keeps_it(tmp_path: Path) -> None:
    first = thinned(tmp_path / "thin", *fat(tmp_path, "one"), *fat(tmp_path, "two"))
    (path,) = fat(tmp_path / "late", "one", pythons=(313,))
    files = {name: data for name, data in contents(path).items() if not name.endswith("/RECORD")}
    (top,) = (name for name in files if "libtop" in name)
    files[top] = patchelfed(files[top], "--add-needed", "libm.so.6")
    result = thinned(tmp_path / "later", wheel(tmp_path / "other", path.name, files), against=tmp_path / "thin")
    targets = {move.name.partition("-")[0]: move.target for move in result.libraries}
    assert (result.companions, targets) == ((), {"libdeep": "base-libs==1.0", "libtop": None})
    check_works(tmp_path / "site", [*result.paths, *first.companion_paths], "one")


def test_a_project_joins_a_base_that_is_published_and_keeps_what_is_its_own(tmp_path: Path) -> None:
    """Its build of the library has its own name in the file's, as those of the base have that of theirs."""
    first = thinned(tmp_path / "thin", *fat(tmp_path, "one"), *fat(tmp_path, "two"))
    late = fat(tmp_path / "late", "three", base=deep("Tue Sep 17 16:56:39 2024"))
    result = thinned(tmp_path / "later", *late, against=tmp_path / "thin")
    assert beside(result) == {"three_libs": {"libtop"}}
    assert required(result) == {"three": ["base-libs==1.0", "three-libs==1.0"]}
    paths = [path for path in (*result.paths, *first.paths) if "cp312" not in path.name]
    check_works(tmp_path / "site", paths, *ANSWERS)
