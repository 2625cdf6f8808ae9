"""Wheels of CPU levels joined into one: where the copies go, and which of them glibc loads on which processor."""

import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.factories.deflate_streams import pieces_of, with_words
from tests.factories.extensions import library
from tests.factories.hwcaps_wheels import (
    MASKS,
    NAME,
    hwcaps_release,
    join,
    levels_here,
    listed,
    module,
    package,
    program_output,
    shared,
    so,
    unpacked,
)
from tests.factories.repaired_wheels import repaired
from tests.factories.tools import needs
from tests.factories.wheels import contents
from vbuild.elf.linkage import at_level, level_of
from vbuild.elf.read import Loading

Files = dict[str, dict[str, bytes | str]]

LEVELS = ("v1", "v3", "v4")
here = pytest.mark.skipif(levels_here()[0] != "v4", reason="a processor of level v4, and glibc 2.33, are needed")
every_level = pytest.mark.parametrize("level", MASKS)
_ALONE = ("-nostdlib",)
# what is loaded where there is no copy for a level of its own
TAKEN = {"v4": "v4", "v3": "v3", "v2": "v1", "v1": "v1"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The join of a package whose one module differs between v1, v3 and v4."""
    folder = tmp_path_factory.mktemp("release")
    return join(folder / "out", hwcaps_release(folder, {level: package(level) for level in LEVELS}))


@pytest.fixture(scope="module")
def site(wheel: Path) -> Path:
    return unpacked(wheel, wheel.parent / "site with spaces")


def placed(wheel: Path) -> list[str]:
    """The members of *wheel* outside of its metadata."""
    return [path for path in listed(wheel) if ".dist-info/" not in path]


def outline(wheel: Path, path: str) -> Loading:
    return Loading.parse(contents(wheel)[path])


@pytest.mark.nightly
def test_what_stays_of_a_large_copy_is_as_it_was_compressed(tmp_path: Path) -> None:
    builds: Files = {
        level: {**package(level), f"demo/{so('_c')}": with_words(module(level), tmp_path)} for level in ("v1", "v3")
    }
    wheels = hwcaps_release(tmp_path, builds)
    made = join(tmp_path / "out", wheels)
    base, copy = (path for path in placed(made) if path.startswith("demo.libs/"))
    assert {outline(made, path).outline.soname for path in (base, copy)} == {base.rpartition("/")[2]}
    after = made.read_bytes()
    for wheel in wheels:
        pieces = pieces_of(wheel, f"demo/{so('_c')}")
        assert len(pieces) > 8
        assert sum(piece in after for piece in pieces) >= len(pieces) - 1  # one may have what was edited


def test_the_name_is_that_of_the_plain_wheel(wheel: Path) -> None:
    assert wheel.name == NAME
    assert not any(path.endswith("variant.json") for path in listed(wheel))


@here
@every_level
def test_the_loader_takes_the_copy_of_the_processor(site: Path, level: str) -> None:
    assert program_output(site, level=level) == TAKEN[level]


@here
@needs("qemu-x86_64")
@pytest.mark.parametrize(("cpu", "level"), [("Haswell", "v3"), ("Nehalem", "v1")])
def test_a_processor_of_another_time_takes_its_own(site: Path, cpu: str, level: str) -> None:
    assert program_output(site, before=("qemu-x86_64", "-cpu", cpu)) == level


@here
def test_folders_of_the_user_stand_in_no_ones_way(site: Path, tmp_path: Path) -> None:
    assert program_output(site, LD_LIBRARY_PATH=f"{tmp_path}:/usr/lib") == "v4"


@here
@pytest.mark.parametrize("mode", ["RTLD_LOCAL", "RTLD_GLOBAL"])
def test_it_may_be_opened_for_itself_or_for_all(site: Path, mode: str) -> None:
    program = f"import os; sys.setdlopenflags(os.RTLD_NOW | os.{mode}); import demo; print(demo.level())"
    assert program_output(site, program) == "v4"


@here
def test_the_module_is_where_it_was(site: Path) -> None:
    assert program_output(site, "import demo._c as c; print(c.__file__)") == f"{site}/demo/{so('_c')}"
    again = "import pickle, demo; print(pickle.loads(pickle.dumps(demo.level))())"
    assert program_output(site, again) == "v4"


@here
def test_two_modules_of_one_package_that_differ_are_two(tmp_path: Path) -> None:
    files: Files = {
        level: {
            "demo/__init__.py": "",
            f"demo/{so('_c')}": module(level),
            f"demo/{so('_d')}": module(level, "_d"),
            f"demo/inner/{so('_c')}": module(level, more="int inner;"),
            so("_top"): module(level, "_top"),
        }
        for level in LEVELS
    }
    site = unpacked(join(tmp_path / "out", hwcaps_release(tmp_path, files)), tmp_path / "site")
    program = (
        "import _top, demo._c, demo._d, demo.inner._c; "
        "print(*(one.level() for one in (_top, demo._c, demo._d, demo.inner._c)))"
    )
    assert program_output(site, program) == "v4 v4 v4 v4"
    assert program_output(site, program, level="v2") == "v1 v1 v1 v1"
    assert len([*(site / "demo.libs").glob("*.so")]) == 4


@here
def test_a_module_of_a_data_folder_stays_among_its_own(tmp_path: Path) -> None:
    files = {level: {f"demo-1.0.data/platlib/demo/{so('_c')}": module(level)} for level in LEVELS}
    wheel = join(tmp_path / "out", hwcaps_release(tmp_path, files))
    assert {path.split("/")[:2] == ["demo-1.0.data", "platlib"] for path in placed(wheel)} == {True}
    site = unpacked(wheel, tmp_path / "unpacked") / "demo-1.0.data" / "platlib"
    assert program_output(site, "import demo._c; print(demo._c.level())") == "v4"


@here
def test_a_level_that_is_the_same_as_the_baseline_has_a_copy_above_another(tmp_path: Path) -> None:
    builds = {"v1": "v1", "v3": "v3", "v4": "v1"}
    files = {level: {f"demo/{so('_c')}": module(as_)} for level, as_ in builds.items()}
    wheel = join(tmp_path / "out", hwcaps_release(tmp_path, files))
    assert [level_of(path) for path in placed(wheel)] == [None, None, "v3", "v4"]
    site = unpacked(wheel, tmp_path / "site")
    assert [program_output(site, "import demo._c as c; print(c.level())", level=level) for level in MASKS] == [
        "v1",
        "v3",
        "v1",
        "v1",
    ]


def bundled(level: str, *, of_library: str | None = None) -> dict[str, bytes | str]:
    """A module that says what a bundled library says, whose name has a hash; the library is for another level."""
    files: dict[str, bytes | str] = {f"demo/{so('_c')}": module("v1", needs=("libx.so.1",), takes="x_level")}
    return repaired(files, {"libx.so.1": shared(of_library or level, "libx.so.1")}, runpath=True)


@here
@every_level
def test_a_bundled_library_has_copies_beside_it_under_one_name(tmp_path: Path, level: str) -> None:
    wheel = join(tmp_path / "out", hwcaps_release(tmp_path, {one: bundled(one) for one in LEVELS}))
    module_, base, *copies = placed(wheel)
    assert copies == [at_level(base, "v3"), at_level(base, "v4")]
    assert {outline(wheel, path).outline.soname for path in (base, *copies)} == {base.rpartition("/")[2]}
    # the module is the same but for the name of what it needs
    assert contents(wheel)[module_] == bundled("v1")[module_]
    site = unpacked(wheel, tmp_path / "site")
    assert program_output(site, "import demo._c as c; print(c.level())", level=level) == TAKEN[level]


@pytest.mark.sampled(1)
@here
@pytest.mark.parametrize("runpath", [True, False], ids=["RUNPATH", "RPATH"])
def test_what_a_copy_needs_is_found_from_its_folder(tmp_path: Path, *, runpath: bool) -> None:
    def files(level: str) -> dict[str, bytes | str]:
        libraries = {
            "liby.so": shared("v1", "liby.so", function="y_level"),
            "libx.so": shared(
                level,
                "libx.so",
                needs=("liby.so",),
                runpath="$ORIGIN" if runpath else "",
                rpath="" if runpath else "$ORIGIN",
            ),
        }
        of = module(level, needs=("libx.so",), takes="x_level")
        return repaired({f"demo/{so('_c')}": of}, libraries, runpath=runpath)

    wheel = join(tmp_path / "out", hwcaps_release(tmp_path, {level: files(level) for level in LEVELS}))
    site = unpacked(wheel, tmp_path / "site")
    assert program_output(site, "import demo._c as c; print(c.level())", level="v3") == "v3"
    copies = [path for path in placed(wheel) if level_of(path) == "v3"]
    kinds = [outline(wheel, path).outline for path in copies]
    entries = [kind.runpath if runpath else kind.rpath for kind in kinds]
    assert entries == [("$ORIGIN/../..",), ("$ORIGIN/../..",)]
    assert not any(kind.rpath if runpath else kind.runpath for kind in kinds)


@here
def test_a_library_that_code_opens_by_its_path_is_led_to(tmp_path: Path) -> None:
    init = (
        "import ctypes, os\n_x = ctypes.CDLL(os.path.join(os.path.dirname(__file__), 'libx.so'))\n"
        "_x.x_level.restype = ctypes.c_char_p\nlevel = lambda: _x.x_level().decode()\n"
    )
    files: Files = {level: {"demo/__init__.py": init, "demo/libx.so": shared(level)} for level in LEVELS}
    wheel = join(tmp_path / "out", hwcaps_release(tmp_path, files))
    stub = outline(wheel, "demo/libx.so").outline
    assert (stub.soname, stub.needed) == ("libx.so", (placed(wheel)[2].rpartition("/")[2],))
    site = unpacked(wheel, tmp_path / "site")
    assert [program_output(site, level=level) for level in MASKS] == ["v4", "v3", "v1", "v1"]


@here
def test_a_library_that_is_opened_by_its_path_and_needed_by_its_name_is_one(tmp_path: Path) -> None:
    init = (
        "import ctypes, os\nctypes.CDLL(os.path.join(os.path.dirname(__file__), 'libx.so'), 256)\n"
        "from demo._c import level\n"
    )
    files: Files = {
        level: {
            "demo/__init__.py": init,
            "demo/libx.so": shared(level),
            f"demo/{so('_c')}": module("v1", needs=("libx.so",), takes="x_level"),
        }
        for level in LEVELS
    }
    site = unpacked(join(tmp_path / "out", hwcaps_release(tmp_path, files)), tmp_path / "site")
    assert [program_output(site, level=level) for level in MASKS] == ["v4", "v3", "v1", "v1"]
    program = "import demo; print(sum('libvb_libx' in line and 'r-xp' in line for line in open('/proc/self/maps')))"
    assert program_output(site, program) == "1"


@here
def test_a_library_that_another_package_needs_by_its_name_is_found_through_the_stub(tmp_path: Path) -> None:
    def files(level: str) -> dict[str, bytes | str]:
        return {
            "demo/__init__.py": "libx = 'libx.so'\nfrom demo._c import level\n",
            "demo/libx.so": shared(level, script="ONE { global: x_level; local: *; };"),
            f"demo/{so('_c')}": module(level, needs=("libx.so",), runpath="$ORIGIN", takes="x_level"),
        }

    site = unpacked(
        join(tmp_path / "out", hwcaps_release(tmp_path, {one: files(one) for one in LEVELS})), tmp_path / "site"
    )
    assert [program_output(site, level=level) for level in MASKS] == ["v4", "v3", "v1", "v1"]


@here
def test_a_library_that_only_a_level_needs_comes_along(tmp_path: Path) -> None:
    def files(level: str) -> dict[str, bytes | str]:
        more = {"liby.so": shared("v1", "liby.so", function="y_level")} if level != "v1" else {}
        takes = "y_level" if level != "v1" else ""
        of = module(level, needs=tuple(more), takes=takes)
        return repaired({f"demo/{so('_c')}": of}, more, runpath=True)

    wheel = join(tmp_path / "out", hwcaps_release(tmp_path, {level: files(level) for level in LEVELS}))
    assert [path for path in placed(wheel) if "liby" in path and level_of(path) is None]
    site = unpacked(wheel, tmp_path / "site")
    assert program_output(site, "import demo._c as c; print(c.level())", level="v3") == "v1"


_MUSL = """
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **names) {
    void *handle = dlopen(names[1], RTLD_NOW);
    if (!handle) return puts(dlerror()), 1;
    const char *(*level)(void) = dlsym(handle, "x_level");
    return level ? (puts(level()), 0) : 2;
}
"""


@needs("musl-gcc")
@pytest.mark.parametrize("is_opened", [True, False], ids=["stub", "library"])
def test_musl_takes_the_baselines_copy(tmp_path: Path, *, is_opened: bool) -> None:
    def files(level: str) -> dict[str, bytes | str]:
        # of no C library, as far as it is linked
        one = library("libx.so", source=f'const char *x_level(void) {{ return "{level}"; }}', flags=_ALONE)
        user = library("libuser.so", ("libx.so",), source="", runpath="$ORIGIN", flags=_ALONE)
        init = "names = ['libx.so', 'libuser.so']\n" if is_opened else ""
        return {"demo/__init__.py": init, "demo/libx.so": one, "demo/libuser.so": user}

    wheel = join(tmp_path / "out", hwcaps_release(tmp_path, {level: files(level) for level in LEVELS}))
    site = unpacked(wheel, tmp_path / "site")
    program = tmp_path / "program"
    command: list[str | Path] = ["musl-gcc", "-o", program, "-x", "c", "-"]
    subprocess.run(command, input=_MUSL.encode(), check=True, capture_output=True)
    opened = site / "demo" / ("libx.so" if is_opened else "libuser.so")
    run = subprocess.run([program, opened], capture_output=True, text=True, check=True)
    assert run.stdout == "v1\n"


def test_copies_take_no_more_than_what_differs(tmp_path: Path) -> None:
    data = "".join(f"const int t{n}[] = {{{','.join(str(n * m % 997) for m in range(400))}}};" for n in range(200))
    files = {level: {f"demo/{so('_c')}": module(level, more=data)} for level in LEVELS}
    wheels = hwcaps_release(tmp_path, files)
    sizes = []
    for path in wheels:
        with zipfile.ZipFile(path) as archive:
            sizes.append(archive.getinfo(f"demo/{so('_c')}").compress_size)
    assert join(tmp_path / "out", wheels).stat().st_size <= (wheels[0].stat().st_size + sum(sizes[1:])) * 1.02
