"""Stubs of split: a library moves although something opens it by its path, and is found there as before."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.factories.extensions import library, module
from tests.factories.repaired_wheels import LINUX, NAME
from tests.factories.site_packages import program_output, site_packages
from tests.factories.tools import needs
from tests.factories.virtual_environments import VirtualEnvironment
from tests.factories.wheels import wheel
from vbuild.index_client.configuration import Indexes
from vbuild.splitting.request import SplitRequest
from vbuild.splitting.results import Split
from vbuild.splitting.split import split
from vbuild.verification.install_check import check

pytestmark = needs("gcc", "ldd")

Files = Mapping[str, bytes | str]
OTHER = NAME.replace("311", "312")
ALONE = Indexes(no_index=True)
PATH = "demo/lib/libengine.so.1"


DEEP = library("libdeep.so.2", source="int deep(void) { return 40; }")
ENGINE_SOURCE = """
int deep(void);
static int made; __thread int mine = 1;
__attribute__((constructor)) static void begin(void) { made++; }
int count(void) { return deep() + made + mine; }
int old(void) { return 1; } int new(void) { return 2; }
__asm__(".symver old,level@ONE"); __asm__(".symver new,level@@TWO");
"""
SCRIPT = "ONE { global: level; local: old; new; }; TWO { global: level; count; } ONE;"
ENGINE = library("libengine.so.1", ("libdeep.so.2",), source=ENGINE_SOURCE, rpath_="$ORIGIN", script=SCRIPT)
COUNTS = "int count(void); int answer(void) { return count(); }"
OPENS = "import ctypes, os\npath = os.path.join(os.path.dirname(__file__), 'lib', 'libengine.so.1')\n"
FILES: Files = {
    "demo/__init__.py": OPENS,
    "demo/_c.so": module("libengine.so.1", source=COUNTS, rpath_="$ORIGIN/lib"),
    "demo/lib/libdeep.so.2": DEEP,
    PATH: ENGINE,
}
COUNT = "import demo, ctypes; print(ctypes.CDLL(demo.path).count())"


def thinned(folder: Path, files: Files, *, names: tuple[str, ...] = (NAME, OTHER), **asked: Any) -> Split:
    """What becomes of the wheels *names*, each with *files*."""
    fat = [wheel(folder, name, {**files, "demo/tag.txt": name}) for name in names]
    request = SplitRequest(**{"smallest": 0, **asked})
    return split(fat, folder / "thin", request=request, indexes=lambda: ALONE)


def fates(result: Split) -> dict[str, tuple[str, str, bool]]:
    return {move.path: (str(move.kind), move.reason, move.stub) for move in result.libraries}


def laid(folder: Path, result: Split) -> Path:
    first = result.wheels[0].path
    assert first
    return site_packages(folder / "site", first, *result.companion_paths)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Split:
    """What becomes of wheels with FILES."""
    return thinned(tmp_path_factory.mktemp("wheels"), FILES)


@pytest.fixture(scope="module")
def site(result: Split, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first wheel of the result, as it is installed."""
    return laid(tmp_path_factory.mktemp("installed"), result)


SAME: Mapping[str, tuple[str, str]] = {
    "a symbol of a version, by dlvsym": (
        """h = ctypes.CDLL(demo.path); f = ctypes.CDLL(None).dlvsym; f.restype = ctypes.c_void_p
at = lambda v: ctypes.CFUNCTYPE(ctypes.c_int)(f(ctypes.c_void_p(h._handle), b'level', v))()
print(at(b'ONE'), at(b'TWO'))""",
        "1 2",
    ),
    "its constructor has run once": (
        "print([ctypes.CDLL(demo.path).count() for _ in 'ab'], demo.path and ctypes.CDLL(demo.path).count())",
        "[42, 42] 42",
    ),
    "symbols for all, by RTLD_GLOBAL": (
        "ctypes.CDLL(demo.path, os.RTLD_GLOBAL); print(ctypes.CDLL(None).count())",
        "42",
    ),
    "what else is loaded is the same library": (
        "from demo import _c; print(ctypes.CDLL(_c.__file__).answer(), ctypes.CDLL(demo.path).count())",
        "42 42",
    ),
    "it is loaded by its SONAME afterwards": (
        "ctypes.CDLL(demo.path); print(ctypes.CDLL('libengine.so.1', os.RTLD_NOLOAD).count())",
        "42",
    ),
    "it can be closed and opened again": (
        "import _ctypes; h = ctypes.CDLL(demo.path); _ctypes.dlclose(h._handle); print(ctypes.CDLL(demo.path).count())",
        "42",
    ),
}


@pytest.mark.parametrize("what", SAME)
def test_a_program_does_the_same_before_and_after(result: Split, site: Path, tmp_path: Path, what: str) -> None:
    program, said = SAME[what]
    for place in (site_packages(tmp_path, result.wheels[0].wheel), site):
        assert program_output(place, f"import os, ctypes, demo\n{program}") == said


def test_one_library_is_loaded_whoever_opens_it(site: Path) -> None:
    program = (
        "import ctypes, demo; from demo import _c; ctypes.CDLL(demo.path)\n"
        "maps = {row.split()[5] for row in open('/proc/self/maps') if 'libengine.so.1' in row}; print(len(maps))"
    )
    # the stub is mapped, too
    assert program_output(site, program) == "2"


def test_a_library_of_the_same_name_does_not_take_its_place(site: Path, tmp_path: Path) -> None:
    (tmp_path / "libengine.so.1").write_bytes(library("libengine.so.1", source="int count(void) { return 7; }"))
    program = f"import ctypes; print(ctypes.CDLL('{tmp_path}/libengine.so.1').count())\n{COUNT}"
    assert program_output(site, program) == "7\n42"


def test_a_stub_that_is_found_by_its_name_leads_there_too(site: Path) -> None:
    command = [sys.executable, "-c", "import ctypes; print(ctypes.CDLL('libengine.so.1').count())"]
    environment = {"LD_LIBRARY_PATH": str(site / "demo/lib"), "PATH": os.environ["PATH"]}
    assert subprocess.check_output(command, env=environment, text=True) == "42\n"


BY_NAME = """
#include <dlfcn.h>
static void *it;
int count(void) { it = dlopen("libplugin.so.3", RTLD_NOW); return it ? ((int (*)(void))dlsym(it, "plug"))() : -1; }
"""
PLUGIN = library("libplugin.so.3", source="int plug(void) { return 42; }")


@pytest.mark.parametrize("keep", [(), ("libengine.so.1",)], ids=["both move", "what opens it stays"])
def test_what_another_library_opens_by_its_name_moves(tmp_path: Path, keep: tuple[str, ...]) -> None:
    engine = library("libengine.so.1", source=BY_NAME, runpath="$ORIGIN")
    files: Files = {**FILES, "demo/__init__.py": "", PATH: engine, "demo/lib/libplugin.so.3": PLUGIN}
    result = thinned(tmp_path, files, keep=keep)
    assert fates(result)["demo/lib/libplugin.so.3"][::2] == ("share", True)
    assert fates(result)[PATH][0] == ("keep" if keep else "share")
    asks = "import ctypes, demo; from demo import _c; print(ctypes.CDLL(_c.__file__).answer())"
    assert program_output(laid(tmp_path, result), asks) == "42"


def test_a_symbol_that_two_libraries_have_comes_from_the_same_one(tmp_path: Path) -> None:
    """What needs the library finds it without the stub, or another library's symbols would come first."""
    files: Files = {
        "demo/__init__.py": OPENS,
        "demo/lib/libother.so.1": library("libother.so.1", source="int count(void) { return 7; }"),
        PATH: library("libengine.so.1", source="int count(void) { return 42; }"),
        "demo/_c.so": module("libengine.so.1", "libother.so.1", source=COUNTS, rpath_="$ORIGIN/lib"),
    }
    result = thinned(tmp_path, files, keep=("libother*",))
    assert fates(result)[PATH][0] == "share"
    asks = "import ctypes, demo; from demo import _c; print(ctypes.CDLL(_c.__file__).answer())"
    assert program_output(laid(tmp_path, result), asks) == "42"


def test_a_stub_stays_where_a_library_of_the_same_name_would_hide_another(tmp_path: Path) -> None:
    """The folder of shared libraries comes first for what needs a stub's library, and has another libdeep.so.2."""
    more = {
        "demo/lib/libmore.so.1": library("libmore.so.1"),
        "demo/_d.so": module("libmore.so.1", rpath_="$ORIGIN/lib"),
    }
    third = NAME.replace("311", "313")
    own = {**FILES, **more, "demo/lib/libdeep.so.2": library("libdeep.so.2", source="int deep(void) { return 0; }")}
    fat = [wheel(tmp_path, name, {**FILES, **more}) for name in (NAME, OTHER)] + [wheel(tmp_path, third, own)]
    result = split(fat, tmp_path / "thin", request=SplitRequest(smallest=0), indexes=lambda: ALONE)
    for move in result.libraries:
        if third in move.wheels and move.path == PATH:
            assert move.kind == "keep"
    for one in result.wheels:
        site = site_packages(tmp_path / f"site-{one.name[9:14]}", one.path or one.wheel, *result.companion_paths)
        asks = "import ctypes, demo; from demo import _c; print(ctypes.CDLL(_c.__file__).answer())"
        assert program_output(site, asks) == ("2" if one.name == third else "42")


DOUBTS: Mapping[str, tuple[Files, str]] = {
    "dladdr": (
        {
            PATH: library(
                "libengine.so.1", source="int dladdr(void *, void *); int count(void) { return dladdr(0, 0); }"
            )
        },
        "it may ask where it is itself (dladdr)",
    ),
    "maps": (
        {PATH: library("libengine.so.1", source='const char *maps = "/proc/self/maps"; int count(void) { return 0; }')},
        "it may ask where it is itself (/proc/self/maps)",
    ),
    "NOLOAD": (
        {"demo/__init__.py": f"{OPENS}mode = os.RTLD_NOLOAD"},
        "demo/__init__.py asks with RTLD_NOLOAD whether a library is loaded",
    ),
    "headers": (
        {"demo/include/engine.h": "int count(void);"},
        "others may link with it, because the wheel has headers (demo/include/engine.h)",
    ),
}


@pytest.mark.parametrize("what", DOUBTS)
def test_a_library_stays_for_which_a_stub_may_not_do_unless_that_is_asked_for(tmp_path: Path, what: str) -> None:
    more, why = DOUBTS[what]
    opener = "demo/__init__.py names it, and may open it by its path"
    result = thinned(tmp_path / "stays", {**FILES, **more})
    assert fates(result)[PATH] == ("keep", f"{opener}; a stub would not do: {why}", False)
    result = thinned(tmp_path / "asked", {**FILES, **more}, move=("libengine*",))
    assert fates(result)[PATH] == ("share", f"a stub stays, because {opener}", True)


@pytest.mark.parametrize(
    ("platform", "why"),
    [("musllinux_1_2_x86_64", "musl does not follow one"), (LINUX, "")],
)
def test_musl_gets_no_stubs(tmp_path: Path, platform: str, why: str) -> None:
    names = tuple(f"demo-1.0-cp{number}-cp{number}-{platform}.whl" for number in (311, 312))
    fate, reason, _ = fates(thinned(tmp_path, FILES, names=names, move=("libengine*",)))[PATH]
    assert (fate, why in reason) == ("keep" if why else "share", True)


def test_what_a_library_opens_stays_beside_it_if_it_asks_where_it_is(tmp_path: Path) -> None:
    engine = library(
        "libengine.so.1",
        source=BY_NAME + "int dladdr(const void *, void *); int place(void) { return dladdr(0, 0); }",
        runpath="$ORIGIN",
    )
    files = {**FILES, "demo/__init__.py": "", PATH: engine, "demo/lib/libplugin.so.3": PLUGIN}
    fate = fates(thinned(tmp_path, files))
    assert fate[PATH] == ("keep", "may open libplugin.so.3, and may ask where it is itself (dladdr)", False)


def test_a_library_that_opens_what_stays_moves_if_asked(tmp_path: Path) -> None:
    engine = library("libengine.so.1", source=BY_NAME, runpath="$ORIGIN")
    files: Files = {**FILES, "demo/__init__.py": "", PATH: engine, "demo/lib/libplugin.so.3": PLUGIN}
    result = thinned(tmp_path, files, keep=("libplugin*",))
    assert fates(result)[PATH] == ("keep", "may open libplugin.so.3, which stays in the wheel", False)
    result = thinned(tmp_path / "asked", files, keep=("libplugin*",), move=("libengine*",))
    assert fates(result)[PATH] == ("share", "", False)


def test_what_nothing_needs_moves_if_asked(tmp_path: Path) -> None:
    files = {**FILES, "demo/plugins/libplugin.so.3": PLUGIN}
    assert fates(thinned(tmp_path, files))["demo/plugins/libplugin.so.3"][1] == "nothing in the wheel needs it"
    result = thinned(tmp_path / "asked", files, move=("demo/plugins/*",))
    assert fates(result)["demo/plugins/libplugin.so.3"][::2] == ("share", True)
    program = (
        "import ctypes, demo, os; print(ctypes.CDLL(os.path.dirname(demo.__file__) + '/plugins/libplugin.so.3').plug())"
    )
    assert program_output(laid(tmp_path / "asked", result), program) == "42"


@pytest.mark.nightly
def test_installers_take_an_upgrade_back_and_leave_nothing(tmp_path: Path) -> None:
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    result = thinned(tmp_path, FILES, names=(f"demo-1.0-{tag}-{tag}-{LINUX}.whl", OTHER.replace("312", "39")))
    fat, thin = str(result.wheels[0].wheel), str(result.wheels[0].path)
    for installer in (["pip"], ["uv", "pip"]):
        here = VirtualEnvironment.at(tmp_path / installer[0])
        command = [
            *installer,
            "install",
            "-q",
            "--force-reinstall",
            "--no-index",
            "--find-links",
            str(tmp_path / "thin"),
        ]
        for one in (fat, thin, fat, thin):
            subprocess.run([*command, one], check=True, env=here.environment, capture_output=True)
            assert program_output(here.site, COUNT) == "42"
        gone = [*installer, "uninstall", "-q", "demo", "demo-libs", *(["-y"] if installer == ["pip"] else [])]
        subprocess.run(gone, check=True, env=here.environment, capture_output=True)
        left = [path.relative_to(here.site).as_posix() for path in here.site.rglob("*") if path.is_file()]
        assert not [path for path in left if "demo" in path]


@pytest.mark.nightly
def test_the_check_of_what_is_installed_follows_stubs(tmp_path: Path) -> None:
    """A library of the -libs wheel finds others by the RPATH of what loads it, and nobody opens it by its path."""
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    engine = library("libengine.so.1", ("libdeep.so.2",), source="int deep(void); int count(void) { return deep(); }")
    files: Files = {**FILES, PATH: engine, "demo/_c.so": module("libengine.so.1", source=COUNTS, rpath_="$ORIGIN/lib")}
    result = thinned(tmp_path, files, names=(f"demo-1.0-{tag}-{tag}-{LINUX}.whl", OTHER.replace("312", "39")))
    found = check(result.paths, indexes=lambda: ALONE)
    assert [one.failures for one in found if one.is_installed] == [()] * len(found)
    (loaded,) = {one.loaded for one in found if one.loaded}
    assert PATH in loaded
