"""Code that was trained differs from code that was not, and is the same from every folder: judged by objdump."""

import json
import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.factories.projects import maturin_project, tree
from tests.factories.tools import needs
from vbuild.build.plan import BuildBackend
from vbuild.build.profile import Profile, check, collected
from vbuild.errors import VbuildError
from vbuild.recipe.flags import ProfileSettings
from vbuild.release.cache import BuildCache
from vbuild.release.matrix import MatrixRequest, matrix
from vbuild.release.model import ReleaseResult
from vbuild.toolchain.compilers import Compilers, Rust
from vbuild.toolchain.interpreter import Interpreter

WALK = """
int walk(const int *x, int n) {
    int s = 0;
    for (int i = 0; i < n; i++) {
        if (x[i] > 1000) s = s * 31 / (x[i] | 1) + (s % 7) * x[n - 1 - i];
        else s += x[i];
    }
    return s;
}
"""
MODULE = """
#include <Python.h>
__attribute__((visibility("hidden"))) int walk(const int *x, int n);
static int rarely(int s) { return s > 1000 ? s / 3 : s; }
static PyObject *sum(PyObject *self, PyObject *args) {
    int x[64] = {1, 2, 3}, s = 0;
    for (int i = 0; i < 1000; i++) s += walk(x, 64);
    return PyLong_FromLong(rarely(s));
}
static PyMethodDef methods[] = {{"sum", sum, METH_NOARGS, ""}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "demo", "", -1, methods};
PyMODINIT_FUNC PyInit_demo(void) { return PyModule_Create(&module); }
"""
SETUP = """
from setuptools import Extension, setup
setup(name="demo", version="1", ext_modules=[Extension("demo", ["demo.c", "walk.c"])])
"""
PROJECT = '[project]\nname = "demo"\nversion = "1"\n'
CMAKE = """
cmake_minimum_required(VERSION 3.15)
project(demo C)
find_package(Python REQUIRED COMPONENTS Interpreter Development.Module)
add_library(inner STATIC walk.c)
set_target_properties(inner PROPERTIES POSITION_INDEPENDENT_CODE ON)
python_add_library(demo MODULE demo.c WITH_SOABI)
target_link_libraries(demo PRIVATE inner)
install(TARGETS demo DESTINATION .)
"""
MESON = """
project('demo', 'c', version: '1')
import('python').find_installation(pure: false).extension_module('demo', ['demo.c', 'walk.c'], install: true)
"""
BACKENDS = {
    "setuptools": {"setup.py": SETUP},
    "cmake": {
        "pyproject.toml": f'[build-system]\nrequires = ["scikit-build-core"]\n'
        f'build-backend = "scikit_build_core.build"\n{PROJECT}[tool.scikit-build]\ninstall.strip = false\n',
        "CMakeLists.txt": CMAKE,
    },
    "meson": {
        "pyproject.toml": f'[build-system]\nrequires = ["meson-python"]\nbuild-backend = "mesonpy"\n{PROJECT}',
        "meson.build": MESON,
    },
}
TRAIN = "train = 'python {recipe}/train.py'\n"


def released(folder: Path, profile: str, backend: str = "setuptools", store: BuildCache | None = None) -> ReleaseResult:
    """The release of a project that runs one branch only, with the table *profile* in its recipe."""
    tree(folder / "source", {"demo.c": MODULE, "walk.c": WALK, **BACKENDS[backend]})
    recipe = f'name = "demo"\n[source]\npath = "source"\n[matrix]\ncpu = ["x86-64"]\n[build.profile]\n{profile}'
    tree(folder, {"demo.toml": recipe, "train.py": "import demo\ndemo.sum()\n"})
    return matrix(folder / "demo.toml", folder / "dist", MatrixRequest(), store=store or BuildCache(fresh=True))


def dump(folder: Path) -> str:
    """The code of the wheel in *folder*."""
    (wheel,) = (folder / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info" not in name]
        assert [Path(name).suffix for name in names] == [".so"]
        archive.extract(names[0], folder)
    assert b".gcda" not in (folder / names[0]).read_bytes()
    return subprocess.run(["objdump", "-d", folder / names[0]], capture_output=True, text=True, check=True).stdout


def is_parted(code: str) -> bool:
    """Whether the branch of `walk` that training never took stands apart from the rest."""
    return re.search(r"<(walk|sum)\.cold>:", code) is not None


@pytest.mark.nightly
@pytest.mark.network
def test_a_branch_that_training_never_takes_moves_out_of_the_way(tmp_path: Path) -> None:
    release = released(tmp_path / "trained", TRAIN)
    assert not release.failures
    assert is_parted(dump(tmp_path / "trained"))
    (wheel,) = json.loads((tmp_path / "trained" / "dist" / "report.json").read_text())["wheels"]
    assert (wheel["profile"]["lto"], wheel["profile"]["objects"]) == (False, 2)
    bill = zipfile.ZipFile(next((tmp_path / "trained" / "dist").glob("*.whl")))
    (name,) = (name for name in bill.namelist() if name.endswith("vbuild.cdx.json"))
    assert wheel["profile"]["sha256"] in bill.read(name).decode()
    assert not released(tmp_path / "linked", "lto = true\n").failures
    code = dump(tmp_path / "linked")
    assert not is_parted(code)
    assert "<walk>:" not in code  # it is in the other file's function now


@pytest.mark.nightly
@pytest.mark.network
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_profile_that_is_kept_gives_the_same_wheel_in_another_folder(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(tmp_path, {"headers/used.h": ""})
    monkeypatch.setenv("CPATH", str(tmp_path / "headers"))
    store = BuildCache(tmp_path / "store")
    asked = f"{TRAIN}lto = true\n"
    assert not released(tmp_path / "one", asked, backend, store).failures
    shutil.rmtree(tmp_path / "store" / "builds")
    shutil.rmtree(tmp_path / "store" / "products")
    (tmp_path / "headers" / "that no source includes.h").touch()
    (profile,) = (tmp_path / "store" / "profiles").iterdir()
    (tmp_path / "another place").mkdir()
    shutil.copytree(tmp_path / "one" / "source", tmp_path / "another place" / "source")
    again = released(tmp_path / "another place", asked, backend, store)
    assert again.products[0].is_built
    assert list((tmp_path / "store" / "profiles").iterdir()) == [profile]
    first, second = (next((tmp_path / name / "dist").glob("*.whl")) for name in ("one", "another place"))
    assert first.read_bytes() == second.read_bytes()
    assert is_parted(dump(tmp_path / "another place"))


@pytest.mark.nightly
@pytest.mark.network
@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("python -c 'import os, demo; os.abort()'", "build.profile.train: sh "),
        ("python -c 'import sys'", "build.profile.train: the command ran no compiled code of the project"),
    ],
)
def test_training_that_fails_or_runs_nothing_leaves_no_wheel(command: str, said: str, tmp_path: Path) -> None:
    release = released(tmp_path, f'train = "{command}"\n')
    assert not release.products
    assert said in release.failures[0].error
    assert not list((tmp_path / "dist").glob("*.whl"))


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("", "build.profile: asks for nothing; expected train = '<command>', or lto = true"),
        ('train = " "\n', "build.profile.train: found no command; expected one that runs what should be fast"),
        ('requires = ["x"]\nlto = true\n', "build.profile.requires: would have no effect without train"),
        ("train = 'python {recipe}/missing.py'\n", "build.profile.train: no file "),
        ("lto = true\n[build]\nhost = 'zig'\n", "build.profile: zig takes neither profiles nor flags for linking"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_built(asked: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(VbuildError, match=re.escape(said)):
        released(tmp_path, asked)


@pytest.mark.nightly
def test_what_is_compiled_from_beside_the_tree_has_no_profile(tmp_path: Path) -> None:
    compilers = Compilers.found(Interpreter.found("", os.environ), os.environ)
    counts, place, project = tmp_path / "counts", tmp_path / "profile", tmp_path / "training" / "tree"
    inside = f"{counts}{project}/build/walk.gcda"
    beside = f"{counts}{project}/build{tmp_path}/environments/include/nb.gcda"
    for name in (inside, beside):
        Path(name).parent.mkdir(parents=True)
        Path(name).write_bytes(b"counts")
    place.mkdir()
    log = tmp_path / "log"
    profile = collected(counts, place, trees={"": project}, stage=tmp_path, compilers=compilers, log=log)
    assert [path.name for path in place.rglob("*.gcda")] == ["walk.gcda"]
    assert Profile.unpacked(profile.packed(tmp_path / "kept.zip"), tmp_path / "again").sha256 == profile.sha256


@pytest.mark.nightly
@pytest.mark.network
def test_a_level_alone_is_trained_at_the_lowest_one_and_leaves_no_log(tmp_path: Path) -> None:
    tree(tmp_path / "source", {"demo.c": MODULE, "walk.c": WALK, "setup.py": SETUP})
    recipe = 'name = "demo"\n[source]\npath = "source"\n[matrix]\ncpu = ["x86-64-v2"]\n[build.profile]\n'
    tree(tmp_path, {"demo.toml": recipe + TRAIN, "train.py": "import demo\ndemo.sum()\n"})
    steps: list[tuple[str, str]] = []
    release = matrix(
        tmp_path / "demo.toml",
        tmp_path / "dist",
        MatrixRequest(only=["x86_64_v2"]),
        store=BuildCache(fresh=True),
        on_progress=lambda target, step: steps.append((str(target), step)),
    )
    assert not release.failures
    assert ("plain", "training") in steps
    assert ("plain", "building") not in steps
    assert not (tmp_path / "dist" / "logs").exists()


RUST = """
#[no_mangle] #[inline(never)]
pub extern "C" fn always(n: u64) -> u64 { (0..n).fold(1, |x, y| x ^ (x << 5) ^ y) }
#[no_mangle] #[inline(never)]
pub extern "C" fn never(n: u64) -> u64 { (0..n).fold(2, |x, y| (x ^ (x << 3)) + y * n) }
#[no_mangle]
pub extern "C" fn demo(n: u64) -> u64 { if n > 1 << 40 { never(n) } else { always(n) } }
"""


def rust_released(folder: Path, profile: str, store: BuildCache) -> str:
    """The jump of a Rust function after which the rarer way begins, or the other."""
    maturin_project(folder / "source")
    tree(folder / "source", {"src/lib.rs": RUST})
    recipe = f'name = "demo"\n[source]\npath = "source"\n[matrix]\ncpu = ["x86-64"]\n{profile}'
    tree(folder, {"demo.toml": recipe, "train.py": "from demo import lib\nprint([lib.demo(n) for n in range(999)])\n"})
    release = matrix(folder / "demo.toml", folder / "dist", MatrixRequest(), store=store)
    assert not release.failures
    (wheel,) = (folder / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".so"))
        archive.extract(name, folder)
    command = ["objdump", "-d", "--no-show-raw-insn", str(folder / name)]
    code = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (jump,) = re.findall(r"<demo>:.*?\t(ja|jbe) ", code, re.DOTALL)
    return str(jump)


def has_llvm_tools() -> bool:
    asked = ["rustc", "--print", "sysroot"]
    own = Path(subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() or "/none")
    return any(own.glob("lib/rustlib/*/bin/llvm-profdata"))


@pytest.mark.nightly
@pytest.mark.network
@needs("rustc", "cargo")
def test_rust_is_trained_too_and_the_same_from_another_folder(tmp_path: Path) -> None:
    if not has_llvm_tools():
        pytest.skip("no llvm-tools beside rustc")
    store = BuildCache(tmp_path / "store")
    assert rust_released(tmp_path / "plain", "", store) == "jbe"
    asked = f"[build.profile]\n{TRAIN}requires = ['cffi']\n"
    assert rust_released(tmp_path / "one", asked, store) == "ja"
    shutil.rmtree(tmp_path / "store" / "builds")
    shutil.rmtree(tmp_path / "store" / "products")
    assert rust_released(tmp_path / "another place", asked, store) == "ja"
    first, second = (next((tmp_path / name).glob("demo/**/*.so")).read_bytes() for name in ("one", "another place"))
    assert first == second


@pytest.mark.nightly
def test_rust_that_no_tool_can_train_is_refused_with_the_line_that_installs_it(tmp_path: Path) -> None:
    rustc = tree(tmp_path, {"rustc": f"#!/bin/sh\necho {tmp_path}\n"}) / "rustc"
    rustc.chmod(0o755)
    compilers = Compilers.found(Interpreter.found("", os.environ), os.environ)
    compilers = replace(compilers, rust=Rust(rustc, "x86_64-unknown-linux-gnu", "rustc 1\nLLVM version: 99.1\n"))
    settings = ProfileSettings(train="true")
    with pytest.raises(VbuildError, match=r"build\.profile\.train: this Rust has no profiler_builtins in "):
        check(settings, compilers, BuildBackend.MATURIN)
    place = tree(tmp_path, {"lib/rustlib/other/lib/libprofiler_builtins-1.rlib": ""})
    compilers = replace(compilers, rust=Rust(rustc, "other", "LLVM version: 99.1"))
    assert place == tmp_path
    with pytest.raises(VbuildError, match=r"LLVM 99, and there is none; install it: rustup component add llvm-tools"):
        check(settings, compilers, BuildBackend.MATURIN)
    check(settings, compilers, BuildBackend.SETUPTOOLS)  # which may compile no Rust


NATIVE = """
[[native]]
name = "steps"
source = {{ path = "steps" }}
build = "script"
script = [
    "cc $CFLAGS -fPIC -c -o walk.o walk.c",
    "mkdir -p $DESTDIR$PREFIX/lib",
    "cc -shared -Wl,-soname,libsteps.so $LDFLAGS -o $DESTDIR$PREFIX/lib/libsteps.so walk.o",
]
{}
"""


def with_native(folder: Path, profile: str, native: str, call: str = "demo.sum()") -> ReleaseResult:
    """The release of a project whose branches are in a native dependency."""
    module = MODULE.replace('__attribute__((visibility("hidden"))) ', "")
    setup = SETUP.replace('["demo.c", "walk.c"]', '["demo.c"], libraries=["steps"]')
    tree(folder / "source", {"demo.c": module, "setup.py": setup})
    tree(folder / "steps", {"walk.c": WALK})
    recipe = 'name = "demo"\n[source]\npath = "source"\n[matrix]\ncpu = ["x86-64"]\n'
    recipe += f"[build.profile]\n{profile}" if profile else ""
    tree(folder, {"demo.toml": recipe + NATIVE.format(native), "train.py": f"import demo\n{call}\n"})
    return matrix(folder / "demo.toml", folder / "dist", MatrixRequest(), store=BuildCache(fresh=True))


def native_code(folder: Path) -> str:
    (wheel,) = (folder / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if "libsteps" in name)
        archive.extract(name, folder)
    assert b".gcda" not in (folder / name).read_bytes()
    return subprocess.run(["objdump", "-d", folder / name], capture_output=True, text=True, check=True).stdout


@pytest.mark.nightly
@pytest.mark.network
@pytest.mark.parametrize("lto", ["lto = true\n", ""])
def test_a_native_dependency_is_trained_with_the_wheel_if_it_asks_for_it(lto: str, tmp_path: Path) -> None:
    release = with_native(tmp_path, TRAIN + lto, "profile = true")
    assert not release.failures
    assert is_parted(native_code(tmp_path))
    assert release.notes == ()
    (wheel,) = json.loads((tmp_path / "dist" / "report.json").read_text())["wheels"]
    assert wheel["profile"]["objects"] == 2


@pytest.mark.nightly
@pytest.mark.network
def test_one_that_does_not_ask_is_built_without_and_named(tmp_path: Path) -> None:
    release = with_native(tmp_path, TRAIN, "")
    assert not release.failures
    assert not is_parted(native_code(tmp_path))
    said = "native steps: built without build.profile; with it: profile = true in its [[native]]"
    assert release.notes == (said,)


@pytest.mark.nightly
def test_a_native_dependency_that_training_does_not_load_is_named(tmp_path: Path) -> None:
    compilers = Compilers.found(Interpreter.found("", os.environ), os.environ)
    tree(tmp_path, {f"counts{tmp_path}/project/walk.gcda": "counts"})
    (tmp_path / "profile").mkdir()
    trees = {"": tmp_path / "project", "native steps": tmp_path / "steps"}
    with pytest.raises(VbuildError, match=r"build\.profile\.train: the command ran no compiled code of native steps"):
        collected(
            tmp_path / "counts",
            tmp_path / "profile",
            trees=trees,
            stage=tmp_path / "stage",
            compilers=compilers,
            log=tmp_path,
        )


@pytest.mark.nightly
def test_a_native_dependency_cannot_ask_for_what_the_recipe_does_not(tmp_path: Path) -> None:
    with pytest.raises(VbuildError, match=re.escape("native[0].profile: would have no effect without build.profile")):
        with_native(tmp_path, "", "profile = true")
