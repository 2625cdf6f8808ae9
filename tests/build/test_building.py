"""Native dependencies, really built: per level and once, by each build system, and found again by the next run."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.factories.native_libraries import (
    Works,
    autotools_library,
    cmake_library,
    dynamic,
    level_of,
    library,
    meson_library,
    script_library,
    step,
)
from tests.factories.projects import tree
from tests.factories.tools import needs
from vbuild.build.native import NativeCache
from vbuild.build.prefixes import Prefix, prefix_variables
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.machine import Machine

pytestmark = [
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="levels are those of x86-64"),
    needs("gcc", "make", "readelf", "pkg-config"),
]

USER = "#include <depth.h>\nint deeper(void) { return 10 + depth(); }\n"
LINKED = (
    "cc $CFLAGS -shared -fPIC $LDFLAGS -o libdeeper.so deeper.c -ldepth",
    "mkdir -p $DESTDIR$PREFIX/lib",
    "cp libdeeper.so $DESTDIR$PREFIX/lib",
)


@pytest.mark.sampled("script")
@pytest.mark.parametrize(
    ("make", "build", "text"),
    [
        pytest.param(
            autotools_library,
            "autotools",
            'before-build = ["autoreconf -fi"]',
            marks=needs("autoreconf", "automake", "libtoolize"),
        ),
        pytest.param(cmake_library, "cmake", 'requires = ["ninja"]', marks=[needs("cmake"), pytest.mark.network]),
        pytest.param(meson_library, "meson", 'requires = ["meson", "ninja"]', marks=pytest.mark.network),
        (script_library, "script", ""),
    ],
    ids=["autotools", "cmake", "meson", "script"],
)
def test_each_build_system_makes_a_prefix_of_each_level(
    tmp_path: Path, make: Callable[[Path], Path], build: str, text: str
) -> None:
    works = Works.at(tmp_path / "works")
    one, three = works.built(step(make(tmp_path / "depth"), build, text), "x86-64", "x86-64-v3")
    for prefix, level in ((one, "v1"), (three, "v3")):
        # -march=native of the project's own has no effect, and where it was built is nobody's business
        assert level_of(prefix).startswith(f"{level} in ")
        assert level_of(prefix).endswith("depth.c")
        assert str(tmp_path) not in level_of(prefix)
        assert "PATH" not in dynamic(library(prefix))
        _check_usable(tmp_path, prefix)
    assert works.messages == ["native depth: building", "native depth: building"]
    assert not works.logs.exists() or not list(works.logs.iterdir())
    assert not list((works.folder / "stage/native").iterdir())


def _check_usable(folder: Path, prefix: Prefix) -> None:
    """A program finds the library by pkg-config, and is no other's where it lies."""
    assert "libdepth.so.1" in dynamic(library(prefix))
    assert (prefix.folder / "include/depth.h").is_file()
    assert not list(prefix.folder.rglob("*.la"))
    for link in prefix.folder.rglob("*"):
        assert not link.is_symlink() or not os.fspath(link.readlink()).startswith("/")
    environment = {**os.environ, **prefix_variables([prefix], os.environ, runs=True)}
    command = ["pkg-config", "--cflags", "--libs", "depth"]
    flags = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()
    assert "-ldepth" in flags
    main = tree(folder / "main", {"main.c": "#include <depth.h>\nint main(void) { return depth(); }\n"}) / "main.c"
    subprocess.run(["gcc", main, "-o", folder / "main/main", *flags], env=environment, check=True)
    machine = Machine.here().cpu
    if machine and machine.runs(prefix.cpu):
        assert subprocess.run([folder / "main/main"], env=environment, check=False).returncode == int(
            prefix.cpu.level[1]
        )


@pytest.mark.nightly
@pytest.mark.network
def test_zig_builds_them_for_old_machines(tmp_path: Path) -> None:
    works = Works.at(tmp_path / "works")
    user = step(tree(tmp_path / "deeper", {"deeper.c": USER}), "script", f"script = {list(LINKED)}", name="deeper")
    zig = '[build]\nhost = "zig"\nglibc = "2.17"\n'
    (deeper,) = works.built(step(script_library(tmp_path / "depth"), "script") + user + zig, "x86-64-v3")
    library = deeper.folder / "lib/libdeeper.so"
    assert "libdepth.so.1" in dynamic(library)
    assert "PATH" not in dynamic(library)
    assert str(tmp_path).encode() not in library.read_bytes()


def test_what_is_the_same_for_all_levels_is_built_once_and_for_the_baseline(tmp_path: Path) -> None:
    works = Works.at(tmp_path / "works")
    text = step(script_library(tmp_path / "depth"), "script", "per-level = false")
    one, three = works.built(text, "x86-64", "x86-64-v3")
    assert one == three
    assert level_of(one).startswith("v1 ")
    assert works.messages == ["native depth: building"]


def test_a_later_step_is_built_against_the_earlier_ones(tmp_path: Path) -> None:
    works = Works.at(tmp_path / "works")
    lines = f"script = {list(LINKED)}"
    user = step(tree(tmp_path / "deeper", {"deeper.c": USER}), "script", lines, name="deeper")
    (deeper,) = works.built(step(script_library(tmp_path / "depth"), "script") + user, "x86-64")
    assert "libdepth.so.1" in dynamic(deeper.folder / "lib/libdeeper.so")
    assert works.messages == ["native depth: building", "native deeper: building"]


def test_compilers_do_not_take_what_was_just_built_for_their_own(tmp_path: Path) -> None:
    """Those of gcc itself come from where they always do, whatever is called like them."""
    works = Works.at(tmp_path / "works")
    names = ("gmp.so.10", "mpfr.so.6", "mpc.so.3")
    lines = ["mkdir -p $DESTDIR$PREFIX/lib", *(f"echo no > $DESTDIR$PREFIX/lib/lib{name}" for name in names)]
    first = step(tree(tmp_path / "first", {"empty": ""}), "script", f"script = {lines}", name="first")
    (prefix,) = works.built(first + step(script_library(tmp_path / "depth"), "script"), "x86-64")
    assert library(prefix).is_file()


def test_the_next_run_builds_nothing_again(tmp_path: Path) -> None:
    text = step(script_library(tmp_path / "depth"), "script")
    works = Works.at(tmp_path / "works")
    assert works.built(text, "x86-64") == works.built(text, "x86-64")
    assert works.messages == ["native depth: building"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("change", ["source", "arguments", "environment", "earlier step", "patch"])
def test_what_a_build_depends_on_makes_it_another_one(tmp_path: Path, change: str) -> None:
    folder = script_library(tmp_path / "depth")
    works = Works.at(tmp_path / "works")
    first = step(script_library(tmp_path / "first"), "script", name="first")
    (before,) = works.built(first + step(folder, "script"), "x86-64")
    text = ""
    match change:
        case "source":
            (folder / "depth.c").write_text((folder / "depth.c").read_text() + "int more(void) { return 1; }\n")
        case "arguments":
            text = "before-build = ['true']"
        case "environment":
            text = "env = { DEPTH = '1' }"
        case "earlier step":
            (tmp_path / "first/depth.c").write_text((folder / "depth.c").read_text() + "int more(void) { return 1; }\n")
        case _:
            patch = "--- a/depth.h\n+++ b/depth.h\n@@ -1,2 +1,3 @@\n \n+int more(void);\n #ifdef __cplusplus\n"
            (works.folder / "more.patch").write_text(patch)
            text = "patches = ['more.patch']"
    (after,) = works.built(first + step(folder, "script", text), "x86-64")
    assert after.key != before.key
    assert before.folder.is_dir()
    assert works.messages[-1] == "native depth: building"
    assert ("more" in (after.folder / "include/depth.h").read_text()) == (change == "patch")


@needs("cmake")
def test_a_level_is_built_again_for_its_own_arguments_alone(tmp_path: Path) -> None:
    folder = cmake_library(tmp_path / "depth")
    works = Works.at(tmp_path / "works")
    keys = []
    for arguments in ("", 'configure = { x86-64-v3 = ["-DFAST=ON"] }'):
        native_builder = works.native_builder(step(folder, "cmake", arguments))
        keys.append([native_builder.steps(Cpu.parse(level))[0].prefix.key for level in ("x86-64", "x86-64-v3")])
    (one, three), (one_again, three_again) = keys
    assert one == one_again
    assert three != three_again


def test_an_entry_that_was_damaged_is_built_again(tmp_path: Path) -> None:
    text = step(script_library(tmp_path / "depth"), "script")
    works = Works.at(tmp_path / "works")
    (prefix,) = works.built(text, "x86-64")
    good = library(prefix).read_bytes()
    library(prefix).write_bytes(good[:100])
    works.built(text, "x86-64")
    assert library(prefix).read_bytes() == good
    assert works.messages == ["native depth: building", "native depth: building"]


def test_the_same_bytes_come_out_wherever_the_cache_and_the_work_are(tmp_path: Path) -> None:
    text = step(script_library(tmp_path / "depth"), "script")
    found = []
    for place in ("one", "a/much/longer/place"):
        works = Works.at(tmp_path / place)
        (prefix,) = works.built(text, "x86-64-v3")
        found.append(library(prefix).read_bytes())
    assert found[0] == found[1]


@pytest.mark.nightly
def test_two_processes_build_it_once(tmp_path: Path) -> None:
    folder = script_library(tmp_path / "depth")
    counted = f"before-build = ['echo built >> {tmp_path}/count; sleep 1']"
    program = (
        "import sys\nfrom pathlib import Path\nfrom tests.factories.native_libraries import Works, step\n"
        "works = Works.at(Path(sys.argv[1]), root=Path(sys.argv[2]))\n"
        "works.built(step(Path(sys.argv[3]), 'script', sys.argv[4]), 'x86-64')\n"
    )
    top = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(top)}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program, tmp_path / name, tmp_path / "shelf", folder, counted], env=environment
        )
        for name in ("one", "two")
    ]
    assert [process.wait() for process in running] == [0, 0]
    assert (tmp_path / "count").read_text() == "built\n"


def test_a_step_is_that_of_an_earlier_run_unless_something_is_new_that_it_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = step(script_library(tmp_path / "depth"), "script", "before-build = ['some-tool || true']")

    def made(*programs: str) -> Prefix:
        files = dict.fromkeys((f"{name}" for name in programs), "#!/bin/sh\n")
        folder = tree(tmp_path / "-".join(("bin", *programs)), files)
        for name in programs:
            (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{path}")
        return Works.at(tmp_path / "works").built(text, "x86-64")[0]

    path = os.environ["PATH"]
    first = made()
    assert made("caca-config", "cargo", "rustc") == first
    assert made("some-tool") != first
    assert made() == first


def test_looking_at_an_entry_takes_nothing_from_who_replaces_it_at_that_moment(tmp_path: Path) -> None:
    works = Works.at(tmp_path / "works")
    (prefix,) = works.built(step(script_library(tmp_path / "depth"), "script"), "x86-64")
    library(prefix).write_bytes(b"of the entry that was there when its JSON was read")
    assert not NativeCache(works.root).has(prefix)
    assert library(prefix).is_file()
