"""Generated modules that load libraries first, in environments of several folders."""

import ast
import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.factories.clients import PIP, UV
from tests.factories.elf import patchelfed, rpath, shared_object
from tests.factories.wheels import wheel
from vbuild.splitting.preloads import MODULE, PreloadedLibrary, in_order, preload_source, with_import

BIN = Path(sys.executable).parent
CUFFT, OUTER = "libcufft.so.11", "libouter-1a2b3c4d.so.1"
LIBRARIES = (
    PreloadedLibrary(f"nvidia/cufft/lib/{CUFFT}", "nvidia-cufft-cu12", "cufft"),
    PreloadedLibrary(f"demo_libs/lib/{OUTER}", "demo-libs"),
)
SITE = "nvidia/cufft/lib", "demo_libs/lib"
INIT = '"""A package."""\n\nfrom demo._C import value\n'
MODULE_CODE = """
#include <Python.h>
int outer(void);
static PyObject *value(PyObject *self, PyObject *none) { return PyLong_FromLong(outer()); }
static PyMethodDef methods[] = {{"value", value, METH_NOARGS, 0}, {0}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_C", 0, -1, methods, 0, 0, 0, 0};
PyMODINIT_FUNC PyInit__C(void) { return PyModule_Create(&definition); }
"""
ASKING = "import demo, sys; print(demo.value(), *(name for name in {names} if name in sys.modules))"
HEAVY = ("ctypes", "importlib.metadata", "cuda.pathfinder")


def cufft(value: int = 11, soname: str = CUFFT) -> bytes:
    return shared_object(f"int fft(void) {{ return {value}; }}", f"-Wl,-soname,{soname}")


def linked(source: str, soname: str, paths: tuple[str, ...], **libraries: bytes) -> bytes:
    """A library of *source* with that SONAME and DT_RPATH that needs *libraries*, by file name."""
    flags = [f"-Wl,-soname,{soname}", *rpath(":".join(paths), new=False)]
    data = shared_object(source, f"-I{sysconfig.get_path('include')}", *flags)
    return patchelfed(data, *(flag for name in libraries for flag in ("--add-needed", name)))


def module() -> bytes:
    return linked(MODULE_CODE, "_C.so", tuple(f"$ORIGIN/../{folder}" for folder in SITE), **{OUTER: b""})


def outer() -> bytes:
    source = "int fft(void); int outer(void) { return fft() + 1; }"
    return linked(source, OUTER, ("$ORIGIN/../../nvidia/cufft/lib",), **{CUFFT: b""})


def wheels(folder: Path, *, preload: bool = True) -> dict[str, Path]:
    """The wheels of a split release, by project: demo, with or without the module, demo-libs and an official one."""
    files: dict[str, bytes | str] = {"demo/__init__.py": INIT, "demo/_C.so": module()}
    if preload:
        files |= {"demo/__init__.py": with_import(INIT), f"demo/{MODULE}.py": preload_source("demo", LIBRARIES)}
    made: dict[str, dict[str, bytes | str]] = {
        "demo": files,
        "demo_libs": {f"demo_libs/lib/{OUTER}": outer()},
        "nvidia_cufft_cu12": {f"nvidia/cufft/lib/{CUFFT}": cufft()},
    }
    return {name: wheel(folder, f"{name}-1.0-py3-none-any.whl", files) for name, files in made.items()}


def installed(folder: Path, *found: Path) -> Path:
    """*folder*, a directory of packages into which uv installed the wheels *found*."""
    command = [UV, "pip", "install", "--quiet", "--offline", "--no-config", "--no-deps", "--target", str(folder)]
    subprocess.run([*command, "--python", sys.executable, *map(str, found)], check=True, capture_output=True)
    return folder


def asked(*folders: Path, python: str = sys.executable, code: str = "", **variables: str) -> str:
    """What demo says in a Python that has *folders* on its path, or the last line of what went wrong."""
    known = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "CONDA", "CUDA", "LD_"))}
    environment = {**known, "PYTHONPATH": os.pathsep.join(map(str, folders)), **variables}
    command = [python, "-c", code or ASKING.format(names=HEAVY)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return run.stdout.strip() if not run.returncode else run.stderr.splitlines()[-1]


def environment(folder: Path) -> tuple[str, Path, Path]:
    """A virtual environment in *folder*: its Python, its site-packages, and the user site, in a folder user beside it.

    It sees the system's site-packages, and so the user's.
    """
    make = [sys.executable, "-m", "venv", "--without-pip", "--system-site-packages", str(folder)]
    subprocess.run(make, check=True, capture_output=True)
    python = str(folder / "bin" / "python")
    where = "import site, sysconfig; print(sysconfig.get_path('platlib')); print(site.getusersitepackages())"
    own, user = map(Path, asked(python=python, code=where, PYTHONUSERBASE=str(folder.with_name("user"))).split())
    return python, own, user


def test_in_one_folder_the_libraries_are_found_and_nothing_is_imported(tmp_path: Path) -> None:
    assert asked(installed(tmp_path / "all", *wheels(tmp_path).values())) == "12"


@pytest.mark.parametrize("preload", [False, True], ids=["without", "with"])
def test_in_a_folder_each_they_are_found_with_the_module_alone(tmp_path: Path, *, preload: bool) -> None:
    made = wheels(tmp_path, preload=preload)
    said = asked(*(installed(tmp_path / name, path) for name, path in made.items()))
    missing = f"ImportError: {OUTER}: cannot open shared object file: No such file or directory"
    assert said == ("12 ctypes importlib.metadata" if preload else missing)


@pytest.mark.parametrize("apart", ["demo_libs", "nvidia_cufft_cu12", "demo"])
def test_any_one_of_the_wheels_may_be_apart(tmp_path: Path, apart: str) -> None:
    made = wheels(tmp_path)
    others = [path for name, path in made.items() if name != apart]
    folders = installed(tmp_path / "together", *others), installed(tmp_path / "apart", made[apart])
    assert asked(*folders).startswith("12 ctypes")
    assert asked(*reversed(folders)).startswith("12 ctypes")


def test_a_package_in_a_zip_with_its_modules_beside_loads_them(tmp_path: Path) -> None:
    made = wheels(tmp_path)
    init = f"__path__ = [*__path__, {str(tmp_path / 'native')!r}]\n{with_import(INIT)}"
    archive = wheel(
        tmp_path,
        "app-1.0-py3-none-any.whl",
        {"demo/__init__.py": init, f"demo/{MODULE}.py": preload_source("demo", LIBRARIES)},
    )
    (tmp_path / "native").mkdir()
    (tmp_path / "native" / "_C.so").write_bytes(module())
    site = installed(tmp_path / "site", made["demo_libs"], made["nvidia_cufft_cu12"])
    assert asked(archive, site).startswith("12 ctypes")


def test_behind_a_linked_folder_it_looks_where_the_loader_looks(tmp_path: Path) -> None:
    everything = installed(tmp_path / "store", *wheels(tmp_path).values())
    site = tmp_path / "site"
    site.mkdir()
    (site / "demo").symlink_to(everything / "demo")
    assert asked(site) == "12"


def test_what_is_loaded_already_is_not_loaded_again(tmp_path: Path) -> None:
    made = wheels(tmp_path)
    folders = [installed(tmp_path / name, path) for name, path in made.items()]
    other = tmp_path / CUFFT
    other.write_bytes(cufft(41))
    code = f"import ctypes; ctypes.CDLL({str(other)!r}); import demo; maps = open('/proc/self/maps').read(); "
    code += f"print(demo.value(), len({{line.split()[-1] for line in maps.splitlines() if {CUFFT!r} in line}}))"
    assert asked(*folders, code=code) == "42 1"


@pytest.mark.parametrize("order", [1, -1], ids=["first what others need", "last"])
def test_what_the_loader_misses_is_loaded_from_among_the_others(tmp_path: Path, order: int) -> None:
    made = wheels(tmp_path / "made")
    never = PreloadedLibrary("nvidia/cufft/lib/libcufftw.so.11", "nvidia-cufft-cu12", "cufftw")
    missed = [LIBRARIES[0], never]
    text = preload_source("demo", LIBRARIES[1:], others=missed[::order])
    assert text == preload_source("demo", LIBRARIES[1:], others=missed)
    files: dict[str, bytes | str] = {"demo/_C.so": module(), f"demo/{MODULE}.py": text}
    files["demo/__init__.py"] = with_import(INIT)
    made["demo"] = wheel(tmp_path, "demo-1.0-py3-none-any.whl", files)
    assert asked(*(installed(tmp_path / name, path) for name, path in made.items())) == "12 ctypes importlib.metadata"
    folders = [installed(tmp_path / "both", made["demo"], made["demo_libs"]), tmp_path / "nvidia_cufft_cu12"]
    assert asked(*folders) == "12 ctypes importlib.metadata"
    assert asked(folders[0]).startswith("ImportError: libcufft.so.11: cannot open shared object file")


def test_what_is_nowhere_is_named_by_the_loader(tmp_path: Path) -> None:
    folders = [installed(tmp_path / "demo", wheels(tmp_path)["demo"])]
    assert asked(*folders) == f"ImportError: {OUTER}: cannot open shared object file: No such file or directory"


def test_why_a_library_that_is_there_cannot_be_loaded_is_told(tmp_path: Path) -> None:
    made = wheels(tmp_path)
    folders = [installed(tmp_path / name, made[name]) for name in ("demo", "demo_libs")]
    code = "import warnings; warnings.simplefilter('error'); import demo"
    reason = f"{CUFFT}: cannot open shared object file: No such file or directory"
    assert asked(*folders, code=code) == f"RuntimeWarning: {OUTER} of demo-libs: {reason}"
    assert asked(*folders) == f"ImportError: {OUTER}: cannot open shared object file: No such file or directory"


def test_what_only_the_library_path_leads_to_still_serves(tmp_path: Path) -> None:
    made = wheels(tmp_path)
    folders = [installed(tmp_path / name, made[name]) for name in ("demo", "demo_libs")]
    (tmp_path / "system").mkdir()
    (tmp_path / "system" / CUFFT).write_bytes(cufft(1))
    assert asked(*folders, LD_LIBRARY_PATH=str(tmp_path / "system")).startswith("2 ctypes")


@pytest.mark.nightly
@pytest.mark.network
def test_cuda_pathfinder_is_asked_for_what_no_wheel_has(tmp_path: Path) -> None:
    made = wheels(tmp_path)
    folders = [pathfinder(tmp_path), *(installed(tmp_path / name, made[name]) for name in ("demo", "demo_libs"))]
    prefix = tmp_path / "conda"
    (prefix / "lib").mkdir(parents=True)
    (prefix / "lib" / CUFFT).write_bytes(cufft(2))
    assert asked(*folders, CONDA_PREFIX=str(prefix)) == "3 ctypes importlib.metadata cuda.pathfinder"


@pytest.mark.nightly
@pytest.mark.network
def test_the_wheel_that_is_required_serves_where_cuda_pathfinder_takes_a_newer_cuda(tmp_path: Path) -> None:
    made = wheels(tmp_path)
    python, site, _ = environment(tmp_path / "venv")
    newer = wheel(tmp_path, "nvidia_cufft-12.0-py3-none-any.whl", {"nvidia/cu13/lib/libcufft.so.12": cufft(13)})
    installed(site, made["nvidia_cufft_cu12"], newer)
    folders = [pathfinder(tmp_path), *(installed(tmp_path / name, made[name]) for name in ("demo", "demo_libs"))]
    own = "from cuda.pathfinder import load_nvidia_dynamic_lib as load; print(load('cufft').abs_path.split('/')[-1])"
    assert asked(*folders, python=python, code=own) == "libcufft.so.12"
    assert asked(*folders, python=python) == "12 ctypes importlib.metadata"


def pathfinder(folder: Path) -> Path:
    """A folder in *folder* with cuda-pathfinder alone."""
    target = folder / "pathfinder"
    fetch = [*PIP, "install", "--no-deps", "--target", str(target), "cuda-pathfinder>=1.9"]
    subprocess.run(fetch, check=True, capture_output=True)
    return target


@pytest.mark.skipif(not (BIN / "mypy").exists(), reason="ruff and mypy not in this environment")
@pytest.mark.sampled(1)
@pytest.mark.parametrize("libraries", [LIBRARIES, (PreloadedLibrary('x/"ü\\.so', "x"),)], ids=["two", "odd"])
def test_the_module_is_clean_typed_and_for_old_pythons(tmp_path: Path, libraries: tuple[PreloadedLibrary, ...]) -> None:
    source = tmp_path / f"{MODULE}.py"
    source.write_text(preload_source("demo/sub", libraries[:1], others=libraries[1:]))
    ast.parse(source.read_text(), feature_version=(3, 8))
    ruff: list[str | Path] = [BIN / "ruff", "check", "--isolated", "--target-version", "py38", source, "--select"]
    subprocess.run([*ruff, "E4,E7,E9,F,W,I,N,UP,B,C4,SIM,RET,ANN,D1,ERA,PL", "--ignore", "PLC0415"], check=True)
    for width in ("88", "120"):
        formatting: list[str | Path] = [BIN / "ruff", "format", "--isolated", "--check", "--line-length", width, source]
        subprocess.run(formatting, check=True)
    mypy: list[str | Path] = [
        BIN / "mypy",
        "--strict",
        "--no-incremental",
        "--cache-dir",
        os.devnull,
        "--config-file",
        os.devnull,
        source,
    ]
    subprocess.run(mypy, check=True, capture_output=True)


def test_the_module_of_an_inner_package_leads_out_of_it() -> None:
    # once to see whether it is there, and once to load it
    assert preload_source("demo/sub", LIBRARIES).count('"../../nvidia/cufft/lib/libcufft.so.11",') == 2
    assert preload_source("demo/sub", [*LIBRARIES, *LIBRARIES]) == preload_source("demo/sub", LIBRARIES)


@pytest.mark.parametrize(
    ("needed", "order"),
    [
        ({}, ()),
        ({"a": ["b"], "b": ["c"], "c": []}, ("c", "b", "a")),
        ({"a": ["libc.so.6"], "b": []}, ("a", "b")),
        ({"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": []}, ("d", "b", "c", "a")),
        ({"a": ["b"], "b": ["a"]}, ("b", "a")),
        ({"a": ["a"]}, ("a",)),
    ],
    ids=["none", "chain", "outside", "diamond", "circle", "itself"],
)
def test_libraries_come_behind_what_they_need(needed: Mapping[str, list[str]], order: tuple[str, ...]) -> None:
    assert in_order(needed) == order
