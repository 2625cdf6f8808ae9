"""Libraries that differ in when and where they were built are one; those that differ in anything else never are."""

import itertools
import random
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.factories.extensions import library, module
from tests.factories.repaired_wheels import LINUX, NAME, hashed, repaired
from tests.factories.site_packages import loader_complaints, program_output, site_packages
from tests.factories.tools import needs
from tests.factories.wheels import contents, wheel
from vbuild.cli.render import split_lines
from vbuild.elf.image import ElfImage
from vbuild.elf.read import Loading
from vbuild.elf.records import SymbolEntry
from vbuild.errors import BinaryError
from vbuild.index_client.configuration import Indexes
from vbuild.splitting.comparison import Trace, compared
from vbuild.splitting.decisions import DecisionKind
from vbuild.splitting.request import SplitRequest
from vbuild.splitting.results import Split
from vbuild.splitting.split import split

pytestmark = needs("gcc", "ldd")

TEXT = "libdemo 3.1 built on: Mon Sep 16 16:56:39 2024 UTC by root@666f74fa2056 in /tmp/pip-req-build-x1y2z3a4/src"
OTHER = TEXT.replace("16:56:39", "16:57:40").replace("666f74fa2056", "4c6df38543cc").replace("x1y2z3a4", "b5c6d7e8")
SOURCE = """
#include <stdlib.h>
const char *about(void) { return "%s"; }
static const int numbers[] = {1, 2, 3};
int data[] = {4, 5, 6};
int work(int at) { return numbers[at] + data[at]; }
int play(int at) { return data[at]; }
int (*chosen)(int) = work;
int deep(void) { return abs(-41); }
"""


def built(text: str = TEXT, build_id: int = 1, *flags: str, source: str = SOURCE) -> bytes:
    named = (f"-Wl,--build-id=0x{build_id:040x}", "-O1", *flags)
    return library("libdeep.so.2", source=source.replace("%s", text), flags=named, script="DEEP_1 { global: *; };")


def of_builds(one: bytes, other: bytes) -> tuple[str, Mapping[Trace, int]]:
    try:
        comparison = compared(memoryview(one), memoryview(other), called=({}, {}))
    except BinaryError as error:
        return str(error), {}
    return comparison.difference, comparison.traces


TRACES = {
    "none": (TEXT, 1, {}),
    "build-id": (TEXT, 2, {Trace.BUILD_ID: 20}),
    "all": (OTHER, 2, {Trace.BUILD_ID: 20, Trace.DATE: 3, Trace.HOST: 11, Trace.PATH: 8}),
}


@pytest.mark.parametrize("what", TRACES)
def test_what_a_build_leaves_is_counted(what: str) -> None:
    text, build_id, traces = TRACES[what]
    assert of_builds(built(), built(text, build_id)) == ("", traces)


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("4.6.2 of Dec  2 2024 01:47:11 $", "4.6.2 of Dec 12 2024 01:46:56 $"),
        ("Configured on: Mon Dec  2 01:43:27 UTC 2024", "Configured on: Tue Dec  3 11:43:27 UTC 2024"),
        ("Dec  2 2024", "Dec 12 2024"),
        ("01:47:11", "02:48:12"),
        ("compiled 2024-09-16T16:56:39Z", "compiled 2024-09-17T16:56:39Z"),
        ("built on Sep 16 2024", "built on Sep 17 2024"),
        ("Linux a1 5.15.0-1 #82 SMP Tue Sep 3 2024 x86_64", "Linux b2 5.15.9-2 #83 SMP Wed Sep 4 2024 x86_64"),
        ("/build/tmpa1b2c3d4/demo.c", "/build/tmpe5f6a7b8/demo.c"),
    ],
)
def test_a_date_a_host_and_a_folder_are_known_by_how_they_are_written(text: str, other: str) -> None:
    assert not of_builds(built(text), built(other))[0]


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("OpenSSL 3.1.1 30 May 2023", "OpenSSL 3.1.1 31 May 2023"),
        ("libdemo 3.1.1", "libdemo 3.1.2"),
        ("3.9.2, released 2024/08/13", "3.9.2, released 2024/08/14"),
        ("2023-05-16 12:36:15 831d0fb", "2023-05-16 12:36:16 831d0fb"),
        ("2024.09.16", "2024.09.17"),
        ("rebuilt 20240916", "rebuilt 20240917"),
        ("built on Sep 16 2024 by 1.0", "built on Sep 17 2024 by 1.1"),
        ("/usr/lib/demo", "/usr/lib/demi"),
        ("deadbeefcafe", "deadbeefcaff"),
    ],
)
def test_any_other_text_is_another_library_and_both_are_shown(text: str, other: str) -> None:
    difference, _ = of_builds(built(text), built(other))
    assert difference.startswith("its section .rodata")
    assert text[-4:] in difference
    assert other[-4:] in difference


def changed(old: str, new: str) -> bytes:
    assert old in SOURCE
    return built(OTHER, 2, source=SOURCE.replace(old, new))


def poked(name: str, place: int) -> bytes:
    """The library with one other byte in its section *name*."""
    data = bytearray(built(OTHER, 2))
    data[ElfImage.parse(data).named(name)[0].span[place]] ^= 1
    return bytes(data)


DIFFERENCES: dict[str, tuple[Callable[[], bytes], str]] = {
    "an instruction": (lambda: changed("numbers[at] + data[at]", "numbers[at] - data[at]"), ".text is another ("),
    "a constant": (lambda: changed("{1, 2, 3}", "{1, 2, 4}"), ".rodata is another (0"),
    "a number": (lambda: changed("{4, 5, 6}", "{4, 5, 7}"), ".data is another (0"),
    "an addend": (lambda: poked(".rela.dyn", 16), ".rela.dyn is another ("),
    "a symbol": (lambda: built(OTHER, 2).replace(b"\0play\0", b"\0plan\0"), ".dynsym is another"),
    "a version": (lambda: built(OTHER, 2).replace(b"\0DEEP_1\0", b"\0DEEP_2\0"), ".dynsym is another"),
    "a version of a symbol": (lambda: poked(".gnu.version", -2), ".gnu.version is another ("),
    "a needed library": (
        lambda: built(OTHER, 2).replace(b"\0libc.so.6\0", b"\0libm.so.6\0"),
        ".gnu.version_r is another",
    ),
    "its stack": (lambda: built(OTHER, 2, "-Wl,-z,execstack"), "its program headers are others"),
    "its note": (lambda: poked(".note.gnu.build-id", 8), ".note.gnu.build-id is another ("),
}


@pytest.mark.parametrize("what", DIFFERENCES)
def test_everything_else_is_another_library(what: str) -> None:
    make, where = DIFFERENCES[what]
    difference, _ = of_builds(built(), make())
    assert where in difference


def test_no_changed_byte_goes_unseen_but_in_what_a_build_leaves() -> None:
    data = built()
    image = ElfImage.parse(data)
    start = data.index(TEXT.encode())
    # strings nothing refers to, a note's hash, section numbers, and links after the last version: no loader reads them
    free = {*range(start, start + len(TEXT))}
    for name in (".dynstr", ".dynamic", ".note.gnu.build-id"):
        free.update(image.named(name)[0].span)
    for at in image.named(".dynsym")[0].span[:: SymbolEntry.layout.size]:
        free.update((at + 6, at + 7))
    spans = [
        section.span for section in image.sections if section.is_loaded and not section.name.startswith(".gnu.version_")
    ]
    places = [place for place in itertools.chain(*spans) if place not in free]
    for place in random.Random(1).sample(places, 400):
        other = bytearray(data)
        other[place] ^= 1 << place % 8
        assert of_builds(data, bytes(other))[0], hex(place)


COUNTS = "int count(void); int answer(void) { return count(); }"
TOP = library("libtop.so.1", ("libdeep.so.2",), source="int deep(void); int count(void) { return deep() + 1; }")
ASKS = "import ctypes, {0}; print(ctypes.CDLL({0}._c.__file__).answer())"


def fat(folder: Path, python: int, deep: bytes, *, project: str = "demo") -> Path:
    """The wheel for one Python, as auditwheel leaves it after a build of its own."""
    files: dict[str, bytes | str] = {
        f"{project}/__init__.py": f"from {project} import _c\n",
        f"{project}/_c.so": module("libtop.so.1", source=COUNTS),
    }
    whole = repaired(files, {"libtop.so.1": TOP, "libdeep.so.2": deep}, folder=f"{project}.libs")
    name = NAME.replace("311", str(python)).replace("demo", project)
    return wheel(folder, name, {**whole, f"{project}/tag.txt": name})


def thinned(
    folder: Path, *wheels: Path, exact: bool = False, libs: str | None = None, against: Path | None = None
) -> Split:
    request = SplitRequest(smallest=0, exact=exact, libs=libs, against=against)
    return split(wheels, folder / "thin", request=request, indexes=lambda: Indexes(no_index=True))


def check_works(folder: Path, result: Split, project: str = "demo") -> None:
    beside = [companion.path for companion in result.companions if companion.path]
    for number, thin in enumerate(result.wheels):
        if thin.path and thin.path.name.startswith(project):
            installed = site_packages(folder / f"{project}{number}", thin.path, *beside)
            assert loader_complaints(installed) == []
            assert program_output(installed, ASKS.format(project)) == "42"


def test_builds_of_one_library_are_shared_with_all_that_needs_them(tmp_path: Path) -> None:
    builds = [built(), built(OTHER, 2), built(OTHER, 2)]
    result = thinned(tmp_path, *(fat(tmp_path, 311 + number, deep) for number, deep in enumerate(builds)))
    # that of two wheels stays, and the module of the third is linked to it
    stays, top = hashed("libdeep.so.2", builds[1]), hashed("libtop.so.1", TOP)
    (beside,) = result.companions
    assert set(beside.files) == {f"demo_libs/lib/{stays}", f"demo_libs/lib/{top}"}
    moved = {move.name: move for move in result.libraries}
    assert {move.kind for move in moved.values()} == {DecisionKind.SHARE}
    assert (moved[stays].builds, moved[stays].traces) == (2, {"build-id": 20, "date": 3, "host": 11, "path": 8})
    assert (moved[top].builds, moved[top].traces) == (2, {})
    assert beside.path
    assert Loading.parse(contents(beside.path)[f"demo_libs/lib/{top}"]).outline.needed[0] == stays
    check_works(tmp_path, result)


def test_exact_leaves_builds_where_they_are(tmp_path: Path) -> None:
    wheels = [fat(tmp_path, 311, built()), fat(tmp_path, 312, built(OTHER, 2))]
    result = thinned(tmp_path, *wheels, exact=True)
    assert not result.companions
    assert all(thin.is_untouched for thin in result.wheels)


def test_a_build_of_another_source_stays_with_all_that_needs_it_and_says_why(tmp_path: Path) -> None:
    other = changed("numbers[at] + data[at]", "numbers[at] - data[at]")
    wheels = [fat(tmp_path, 311, built()), fat(tmp_path, 312, built(OTHER, 2)), fat(tmp_path, 313, other)]
    result = thinned(tmp_path, *wheels)
    (beside,) = result.companions
    assert beside.wheels == tuple(path.name for path in wheels[:2])
    reasons = {move.name: move.differs for move in result.libraries if move.kind is DecisionKind.KEEP}
    assert f"{hashed('libdeep.so.2', built())} is not the same: its section .text is another (" in "".join(
        reasons.values()
    )
    assert "it needs another libdeep.so.2" in reasons[hashed("libtop.so.1", TOP)]
    check_works(tmp_path, result)


def test_projects_join_a_library_that_each_has_built(tmp_path: Path) -> None:
    builds = {"demo": built(), "other": built(OTHER, 2)}
    wheels = [fat(tmp_path, 311, deep, project=project) for project, deep in builds.items()]
    result = thinned(tmp_path, *wheels, libs="base==1.0")
    (beside,) = result.companions
    assert beside.name == f"base_libs-1.0-py3-none-{LINUX}.whl"
    assert len(beside.files) == 2
    for project in builds:
        check_works(tmp_path, result, project)


def test_a_late_wheel_joins_the_published_build(tmp_path: Path) -> None:
    first = thinned(tmp_path, fat(tmp_path, 311, built()), fat(tmp_path, 312, built(OTHER, 2)))
    (beside,) = first.companions
    (tmp_path / "late").mkdir()
    late = thinned(tmp_path / "late", fat(tmp_path / "late", 313, built(TEXT, 3)), against=tmp_path / "thin")
    assert not late.companions
    assert {move.kind for move in late.libraries} == {DecisionKind.SHARE}
    assert {move.builds for move in late.libraries} == {2}
    assert late.wheels[0].requires == first.wheels[0].requires
    (thin,) = (wheel.path for wheel in late.wheels)
    assert thin
    assert beside.path
    installed = site_packages(tmp_path / "site", thin, beside.path)
    assert loader_complaints(installed) == []
    assert program_output(installed, ASKS.format("demo")) == "42"


def test_a_late_wheel_with_another_library_keeps_it(tmp_path: Path) -> None:
    thinned(tmp_path, fat(tmp_path, 311, built()), fat(tmp_path, 312, built(OTHER, 2)))
    (tmp_path / "late").mkdir()
    other = fat(tmp_path / "late", 313, changed("{1, 2, 3}", "{1, 2, 4}"))
    late = thinned(tmp_path / "late", other, against=tmp_path / "thin")
    assert not late.companions
    assert {move.kind for move in late.libraries} == {DecisionKind.KEEP}
    assert any("its section .rodata is another" in move.differs for move in late.libraries)


def test_what_projects_have_in_several_builds_is_counted_and_one_build_would_save(tmp_path: Path) -> None:
    other = changed("numbers[at] + data[at]", "numbers[at] - data[at]")
    builds = {"demo": built(), "other": other, "third": built(OTHER, 2)}
    wheels = [fat(tmp_path, 311, deep, project=project) for project, deep in builds.items()]
    result = thinned(tmp_path, *wheels, libs="base==1.0")
    rebuilt = {library.name: library for library in result.rebuilt}
    projects = {name: {build.projects for build in library.builds} for name, library in rebuilt.items()}
    assert projects == {name: {("demo", "third"), ("other",)} for name in ("libdeep.so.2", "libtop.so.1")}
    smaller = [library.builds[-1].packed for library in result.rebuilt]
    assert [library.saving for library in result.rebuilt] == sorted(smaller, reverse=True)
    lines = [*split_lines(result)]
    assert "  libdeep.so.2: 0.0 of 0.0 MB: other 2, demo and third 2" in lines
    assert max(map(len, lines)) <= 80


def test_a_project_alone_has_nothing_to_agree_on(tmp_path: Path) -> None:
    assert not thinned(
        tmp_path, fat(tmp_path, 311, built()), fat(tmp_path, 312, changed("{1, 2, 3}", "{1, 2, 4}"))
    ).rebuilt
