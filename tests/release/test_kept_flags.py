"""A project's own dispatch survives `vbuild matrix`, and flags without one do not: judged by objdump."""

import json
import re
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.factories.projects import tree
from vbuild.cli.render import release_lines
from vbuild.release.cache import BuildCache
from vbuild.release.matrix import MatrixRequest, matrix

SUM = """
__attribute__((visibility("hidden")))
int %s(const int *x, int n) { int s = 0; for (int i = 0; i < n; i++) s += x[i] * x[i]; return s; }
"""
MODULE = """
#include <Python.h>
int wide(const int *x, int n);
int narrow(const int *x, int n);
static PyObject *sum(PyObject *self, PyObject *args) {
    int x[64] = {1, 2, 3};
    return PyLong_FromLong(%s);
}
static PyMethodDef methods[] = {{"sum", sum, METH_NOARGS, ""}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "demo", "", -1, methods};
PyMODINIT_FUNC PyInit_demo(void) { return PyModule_Create(&module); }
"""
GUARDED = '__builtin_cpu_supports("avx2") ? wide(x, 64) : narrow(x, 64)'
SETUP = """
import os
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

if " " in os.getcwd():
    raise SystemExit("unsafe srcdir value")  # as configure of Autoconf says

class Build(build_ext):
    def build_extension(self, ext):
        compile = self.compiler._compile
        def one(obj, src, ext_name, cc_args, extra, pp_opts):
            own = FLAGS.get(src, FLAGS.get("*", []))
            compile(obj, src, ext_name, cc_args, [*extra, *own], pp_opts)
        self.compiler._compile = one
        super().build_extension(ext)

FLAGS = %r
setup(name="demo", version="1", cmdclass={"build_ext": Build},
      ext_modules=[Extension("demo", ["demo.c", "wide.c", "narrow.c"], extra_compile_args=["-O3"])])
"""
AROUND = """
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

class Build(build_ext):
    def build_extension(self, ext):
        if ext.name == "around":
            self.compiler.set_executables(compiler_so="/usr/bin/gcc -fPIC", linker_so="/usr/bin/gcc -shared")
        super().build_extension(ext)

setup(name="demo", version="1", cmdclass={"build_ext": Build},
      ext_modules=[Extension("through", ["through.c"]), Extension("around", ["around.c"])])
"""
RECIPE = 'name = "demo"\n[source]\npath = "source"\n[matrix]\ncpu = ["x86-64"]\n'


def released(
    folder: Path, call: str, flags: dict[str, list[str]], rules: str = "", *, more: str = ""
) -> tuple[str, dict[str, list[str]]]:
    """What `vbuild matrix` prints for a project that makes *call* and has *flags* by file, and its code by function.

    *more* code is in ``narrow.c``.
    """
    files = {"setup.py": SETUP % flags, "demo.c": MODULE % call, "wide.c": SUM % "wide"}
    files["narrow.c"] = SUM % "narrow" + more
    tree(folder / "source", files)
    (folder / "demo.toml").write_text(RECIPE + rules)
    release = matrix(folder / "demo.toml", folder / "dist", MatrixRequest(), store=BuildCache(fresh=True))
    (wheel,) = (folder / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (library,) = (name for name in archive.namelist() if name.endswith(".so"))
        archive.extract(library, folder)
    dump = subprocess.run(["objdump", "-d", folder / library], capture_output=True, text=True, check=True).stdout
    code = {name: re.findall(r"%ymm", body) for name, body in re.findall(r"<(\w+)>:\n((?:.+\n)+)", dump)}
    return "\n".join(release_lines(release)), code


@pytest.mark.nightly
@pytest.mark.network
def test_code_that_is_called_after_a_check_of_the_cpu_keeps_its_flags(tmp_path: Path) -> None:
    printed, code = released(tmp_path, GUARDED, {"wide.c": ["-mavx2"]})
    assert code["wide"]
    assert not code["narrow"]
    assert "kept for single files: -mavx2 of wide.c" in printed
    report = json.loads((tmp_path / "dist" / "report.json").read_text())
    (override,) = report["wheels"][0]["overrides"]
    assert (override["sources"], override["kept"], override["why"]) == (
        ["wide.c"],
        ["-mavx2"],
        [["-mavx2", "single file"]],
    )


@pytest.mark.sampled(1)
@pytest.mark.network
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            {"wide.c": ["-mavx2"]},
            "plain: built again without -mavx2 of wide.c: nothing shows that code above the level",
        ),
        ({"*": ["-mavx2"]}, "plain: built again without -mavx2: in nearly all commands, and nothing shows that code"),
    ],
)
def test_code_that_is_called_by_everybody_is_built_again_without_them(
    flags: dict[str, list[str]], said: str, tmp_path: Path
) -> None:
    printed, code = released(tmp_path, "wide(x, 64) + narrow(x, 64)", flags)
    assert not any(code.values())
    assert said in " ".join(printed.split())
    again = matrix(tmp_path / "demo.toml", tmp_path / "again", MatrixRequest(), store=BuildCache())
    assert again.products[0].is_kept
    assert any(note.startswith(said) for note in again.notes)  # of what is in the cache, too


@pytest.mark.nightly
@pytest.mark.network
def test_strip_is_not_offered_for_flags_of_assembly_which_it_leaves(tmp_path: Path) -> None:
    assembly = ".globl wide\nwide: vpaddd %ymm0, %ymm0, %ymm0\n xor %eax, %eax\n ret\n.section .note.GNU-stack\n"
    setup = (SETUP % {"wide.S": ["-mavx2"]}).replace('"wide.c"', '"wide.S"')
    setup = setup.replace(
        "def build_extension(self, ext):",
        'def build_extension(self, ext):\n        self.compiler.src_extensions.append(".S")',
    )
    files = {"setup.py": setup, "demo.c": MODULE % "wide(x, 64)", "wide.S": assembly, "narrow.c": SUM % "narrow"}
    tree(tmp_path / "source", files)
    (tmp_path / "demo.toml").write_text(RECIPE)
    release = matrix(tmp_path / "demo.toml", tmp_path / "dist", MatrixRequest(), store=BuildCache(fresh=True))
    (failure,) = release.failures
    assert "AVX2" in failure.error
    assert "build.flags = 'strip'" not in failure.error


@pytest.mark.nightly
@pytest.mark.network
def test_a_module_that_is_built_around_the_wrappers_is_an_error(tmp_path: Path) -> None:
    around = tree(tmp_path / "source", {"setup.py": AROUND})
    for name in ("through", "around"):
        code = (MODULE % "wide(x, 64)").replace("demo", name) + SUM % "wide"
        (around / f"{name}.c").write_text(code)
    (tmp_path / "demo.toml").write_text(RECIPE.replace('"x86-64"', '"x86-64", "x86-64-v3"'))
    release = matrix(tmp_path / "demo.toml", tmp_path / "dist", MatrixRequest(), store=BuildCache(fresh=True))
    (failure,) = release.failures
    assert re.search(r"around\.cpython\S*: around\.c: compiled by a compiler that is called by its path", failure.error)
    assert "build.patches = ['compiler.patch']" in failure.error


NATIVE = """
[[native]]
name = "sums"
source = {{ path = "sums" }}
build = "script"
script = [
    "cc $CFLAGS -O3 -fPIC -mavx2 -c -o wide.o wide.c",
    "cc $CFLAGS -O3 -fPIC -c -o narrow.o narrow.c",
    "mkdir -p $DESTDIR$PREFIX/lib",
    "{}",
]
"""
SHARED = "cc -shared -Wl,-soname,libsums.so $LDFLAGS -o $DESTDIR$PREFIX/lib/libsums.so wide.o narrow.o"
STATIC = "ar rc $DESTDIR$PREFIX/lib/libsums.a wide.o narrow.o"
LINKED = (
    'from setuptools import Extension, setup\nsetup(ext_modules=[Extension("demo", ["demo.c"], libraries=["sums"])])'
)


@pytest.mark.nightly
@pytest.mark.network
@pytest.mark.parametrize(
    ("call", "install", "loses"),
    [
        ("wide(x, 64)", SHARED, True),
        ("wide(x, 64)", STATIC, True),
        (GUARDED, SHARED, False),
        (GUARDED, STATIC, False),
    ],
)
def test_a_native_dependency_is_built_again_without_flags_whose_code_everybody_runs(
    call: str, install: str, *, loses: bool, tmp_path: Path
) -> None:
    visible = SUM.replace('__attribute__((visibility("hidden")))', "")
    tree(tmp_path / "sums", {"wide.c": visible % "wide", "narrow.c": visible % "narrow"})
    tree(tmp_path / "source", {"setup.py": LINKED, "demo.c": MODULE % call, "setup.cfg": "[metadata]\nname = demo\n"})
    (tmp_path / "demo.toml").write_text(RECIPE + NATIVE.format(install))
    release = matrix(tmp_path / "demo.toml", tmp_path / "dist", MatrixRequest(), store=BuildCache(fresh=True))
    assert not release.failures
    printed = " ".join(" ".join(release_lines(release)).split())
    assert ("plain: built again without native sums: -mavx2 of wide.c: nothing shows that code" in printed) is loses
    assert ("kept for single files: -mavx2 of native sums: wide.c" in printed) is not loses
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        libraries = [archive.extract(name, tmp_path) for name in archive.namelist() if ".so" in name]
    dumps = [subprocess.run(["objdump", "-d", one], capture_output=True, text=True, check=True) for one in libraries]
    assert any("%ymm" in dump.stdout for dump in dumps) is not loses
