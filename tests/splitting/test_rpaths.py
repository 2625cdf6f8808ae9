"""RPATH entries made, kept and taken out; what the loader makes of them is seen with real libraries."""

import posixpath
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories.elf import linked, rpath
from vbuild.elf.read import Loading
from vbuild.elf.surgery.relink import Relink, relinked
from vbuild.files.edited import EditedFile
from vbuild.splitting.patches import removed_entries, rpath_of, rpath_to

BUILT = "a folder of the machine it was built on"
STARTED = "counts from the folder that a program is started in"
EMPTY = "no library is left there"


def with_path(path: str, *, new: bool = True) -> Loading:
    return Loading.parse(linked("int a;", *rpath(path, new=new)))


@pytest.mark.parametrize(
    ("path", "folder", "expected"),
    [
        ("_C.so", "nvidia/cufft/lib", "$ORIGIN/nvidia/cufft/lib"),
        ("pkg/_C.so", "nvidia/cufft/lib", "$ORIGIN/../nvidia/cufft/lib"),
        ("pkg/sub/_C.so", "pkg_libs/lib", "$ORIGIN/../../pkg_libs/lib"),
        ("pkg/sub/_C.so", "pkg/lib", "$ORIGIN/../lib"),
        ("pkg_libs/lib/liba.so", "pkg_libs/lib", "$ORIGIN"),
        ("_C.so", "", "$ORIGIN"),
        ("pkg/_C.so", "", "$ORIGIN/.."),
        ("pkg/_C.so", "pkg/", "$ORIGIN"),
    ],
)
def test_an_entry_leads_from_the_file_to_the_folder(path: str, folder: str, expected: str) -> None:
    assert rpath_to(path, folder) == expected


names = st.sampled_from(["a", "b", "lib"])


@given(st.lists(names, max_size=3), st.integers(0, 4), st.lists(names, max_size=3))
def test_the_way_from_a_file_to_any_folder_ends_there(start: list[str], up: int, rest: list[str]) -> None:
    """Also where the folder is outside of site-packages, ``..`` and above."""
    folder = "/".join([".."] * up + rest)
    entry = rpath_to("/".join([*start, "_C.so"]), folder)
    assert entry.startswith("$ORIGIN")
    there = posixpath.normpath(posixpath.join("/".join(start), entry.replace("$ORIGIN", ".", 1)))
    assert there == posixpath.normpath(folder)


@pytest.mark.sampled(10)
@pytest.mark.parametrize(
    ("entry", "kept"),
    [
        ("$ORIGIN", "$ORIGIN"),
        ("${ORIGIN}", "$ORIGIN"),
        ("$ORIGIN/", "$ORIGIN"),
        ("$ORIGIN/.", "$ORIGIN"),
        ("${ORIGIN}/../other//lib/", "$ORIGIN/../other/lib"),
        ("$ORIGIN/../x/../other/lib", "$ORIGIN/../other/lib"),
        ("$ORIGIN/../pkg/sub", "$ORIGIN/sub"),
        ("$ORIGIN/../x/..", "$ORIGIN/.."),
        ("$ORIGIN/../..", "$ORIGIN/../.."),
        ("$ORIGIN/X11", "$ORIGIN/X11"),
        ("$ORIGIN/../../../lib", "$ORIGIN/../../../lib"),
        ("$ORIGIN/../../../../x/../lib/", "$ORIGIN/../../../../lib"),
        ("${ORIGIN}/../$LIB", "$ORIGIN/../$LIB"),
        ("$ORIGIN/../${PLATFORM}/lib", "$ORIGIN/../${PLATFORM}/lib"),
    ],
)
def test_an_entry_that_leads_somewhere_stays_in_one_spelling(entry: str, kept: str) -> None:
    loading = with_path(entry)
    assert rpath_of("pkg/_C.so", loading, (), alive={"", "pkg", "pkg/sub", "pkg/X11", "other/lib/"}) == (kept,)
    assert removed_entries("pkg/_C.so", loading, left=()) == ()


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("/opt/conda/lib", BUILT),
        ("/", BUILT),
        ("/usr/$LIB", BUILT),
        ("/build/$ORIGIN/lib", BUILT),
        ("$ORIGIN-1/lib", BUILT),
        ("lib", STARTED),
        (".", STARTED),
        ("../nvidia/lib", STARTED),
        ("$LIB/x", STARTED),
        ("$ORIGINAL/lib", STARTED),
        ("@loader_path/../lib", STARTED),
        ("$ORIGIN/../pkg.libs", EMPTY),
        ("$ORIGIN/..", EMPTY),
        ("$ORIGIN/../../site-packages/pkg", None),
    ],
)
def test_an_entry_that_leads_nowhere_goes_and_the_reason_is_told(entry: str, reason: str | None) -> None:
    loading = with_path(entry)
    if reason is None:
        # what site-packages is called is not known here
        assert rpath_of("pkg/_C.so", loading, (), alive={"pkg"}) == (entry,)
    else:
        assert rpath_of("pkg/_C.so", loading, (), alive={"pkg"}) == ()
        assert removed_entries("pkg/_C.so", loading, left=()) == (() if reason == EMPTY else (f"{entry}: {reason}",))


def test_the_order_in_which_folders_are_looked_into_stays() -> None:
    """A foreign entry before the file's own stays before them, one behind stays behind; the first of all lead first."""
    loading = with_path("/before:$ORIGIN:$ORIGIN/sub:/behind:$ORIGIN/../pkg")
    made = rpath_of("pkg/_C.so", loading, ("new",), first=("stub",), alive={"pkg", "pkg/sub"}, cleans=False)
    assert made == ("/before", "$ORIGIN/../stub", "$ORIGIN", "$ORIGIN/sub", "$ORIGIN/../new", "/behind")


def test_a_file_that_moves_still_leads_to_where_it_led() -> None:
    loading = with_path("$ORIGIN:$ORIGIN/../other:$ORIGIN/../$LIB:/opt")
    made = rpath_of("new/lib/_C.so", loading, (), alive={"pkg", "other"}, written_at="pkg/_C.so", cleans=False)
    assert made == ("$ORIGIN/../../pkg", "$ORIGIN/../../other", "$ORIGIN/../$LIB", "/opt")


def test_what_is_left_in_the_file_is_not_told_as_removed() -> None:
    loading = with_path("/opt/lib:lib")
    assert removed_entries("pkg/_C.so", loading, left=("/opt/lib",)) == (f"lib: {STARTED}",)


def test_empty_entries_go() -> None:
    loading = with_path(":$ORIGIN::/opt:")
    assert rpath_of("pkg/_C.so", loading, (), alive={"pkg"}) == ("$ORIGIN",)


def test_nothing_is_there_twice_and_the_order_is_that_of_the_file_and_then_of_the_folders() -> None:
    loading = with_path("$ORIGIN/../b:$ORIGIN:${ORIGIN}/../b/")
    folders = ("nvidia/cufft/lib", "b", "nvidia/curand/lib", "nvidia/cufft/lib/")
    assert rpath_of("pkg/_C.so", loading, folders, alive={"pkg", "b"}) == (
        "$ORIGIN/../b",
        "$ORIGIN",
        "$ORIGIN/../nvidia/cufft/lib",
        "$ORIGIN/../nvidia/curand/lib",
    )


def test_a_folder_of_another_project_is_kept_where_it_is_known_what_was_there() -> None:
    loading = with_path("$ORIGIN/../torch/lib:$ORIGIN/../pkg.libs")
    kept = rpath_of("pkg/_C.so", loading, (), alive={"pkg"}, there={"pkg", "pkg.libs"})
    assert kept == ("$ORIGIN/../torch/lib",)


def test_a_runpath_counts_and_the_rpath_beside_it_does_not() -> None:
    assert rpath_of("pkg/_C.so", with_path("$ORIGIN", new=False), (), alive={"pkg"}) == ("$ORIGIN",)
    assert rpath_of("pkg/_C.so", with_path("$ORIGIN", new=True), (), alive={"pkg"}) == ("$ORIGIN",)


@pytest.mark.parametrize("path", ["_C.so", "pkg/_C.so", "pkg/deep/er/_C.so"])
def test_the_loader_follows_what_was_made(tmp_path: Path, path: str) -> None:
    data = linked("int one(void); int sum(void) { return one() + 1; }", libraries=(("libone.so", GIVER),))
    target = tmp_path / path
    target.parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "pkg_libs" / "lib").mkdir(parents=True)
    (tmp_path / "pkg_libs" / "lib" / "libone.so").write_bytes(GIVER)
    entries = rpath_of(path, Loading.parse(data), ("pkg_libs/lib",), alive=())
    with relinked(EditedFile.whole(data), Relink(rpath=entries), folder=tmp_path) as new:
        target.write_bytes(new)
    program = f"import ctypes; print(ctypes.CDLL({str(target)!r}, 2).sum())"
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout == "8\n"


GIVER = linked("int one(void) { return 7; }", "-Wl,-soname,libone.so")
