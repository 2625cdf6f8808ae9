"""What to do about a build that failed: the line to paste, by what its log says is missing."""

import subprocess
import sysconfig
from pathlib import Path

import pytest

from tests.factories.tools import needs
from vbuild.build.advice import advice, looked_in_vain, missing_header, missing_source
from vbuild.index_client.configuration import Indexes
from vbuild.index_client.packages import download_best
from vbuild.wheel.archive import open_wheel

INCLUDE = "#include <numpy/arrayobject.h>\n"
CUDA = 'a.cu(1): error: identifier "%s" is undefined'


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (
            "fatal: unable to access 'https://github.com/pybind/pybind11.git/': Could not resolve host: github.com\n",
            "which this machine does not reach. To take an installed one: build.requires = ['pybind11'], and ",
        ),
        ("Failed to clone repository: 'https://gitlab.com/libeigen/eigen.git'", "one: apt-get install libeigen3-dev"),
        ("Failed to clone repository: 'https://example.org/me/mine'", "example.org/me/mine, which this machine"),
        (
            'add_subdirectory given source "third_party/fmt" which is not an existing\n  directory.',
            "third_party/fmt is not in the sdist: a git submodule",
        ),
        ("The source directory\n\n    /a/extern/fmt\n\n  does not contain a CMakeLists.txt file.", "/a/extern/fmt is"),
        ("/usr/bin/ld: cannot find -lcufft: No such file or directory", "matrix.cuda[].libraries = ['cufft']"),
        ("/usr/bin/ld: cannot find -lculibos: No such file or directory", "matrix.cuda[].libraries = ['culibos']"),
        ("OSError: The openmpi binary could not be located in your $PATH", "apt-get install libopenmpi-dev"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/usr/bin/swig'", "apt-get install swig"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'README.md'", None),
        ("sh: 1: tileiras: not found", "matrix.cuda[].libraries = ['tileiras']"),
        ("/bin/sh: 1: pg_config: not found", "pg_config is not there; install it: apt-get install libpq-dev"),
        ("/usr/bin/ld: cannot find -lmine: No such file", "libmine is not there, and the project does not build it"),
        ('meson.build:98:13: ERROR: Dependency "geos" not found (tried pkg-config)', "apt-get install libgeos-dev"),
        ("ERROR: Dependency lookup for libpng16 with method 'pkg-config' failed", "apt-get install libpng-dev"),
        ("CMake Error at x.cmake:230 (message):\n  Could NOT find HDF5 (missing: A B)", "apt-get install libhdf5-dev"),
        ('package configuration file provided by "Eigen3" with\nany', "apt-get install libeigen3-dev"),
        ('package configuration file provided by "nanobind" with', "nanobind is not there; the package index has it"),
        (" The following required packages were not found:\n\n   - libxml-2.0\n", "apt-get install libxml2-dev"),
        ("Package 'glib-2.0', required by 'virtual:world', not found", "apt-get install libglib2.0-dev"),
        ("Package mine was not found in the pkg-config search path", "mine is not there; install the library with its"),
        ("The system library `openssl` required by crate `openssl-sys` was not found", "apt-get install libssl-dev"),
        ("-- Could NOT find HDF5 (missing: A B)\nerror: something else", None),
        (
            "HTTPSConnectionPool(host='github.com', port=443): Retries with url: /a/b.tar.gz (Failed to resolve '…'",
            "downloads from github.com/a/b.tar.gz, which this machine does not reach",
        ),
        ("curl: (6) Could not resolve host: example.org", "downloads from example.org, which"),
        ("urllib.error.URLError: <urlopen error [Errno -2] Name or service not known>", "downloads from a server"),
        ("URLError(gaierror(-2, 'Name or service not known'))\nWill retry", "downloads from a server"),
        (
            'CMake Error: The source directory "/t/tree" does not appear to contain CMakeLists.txt.',
            "/t/tree/CMakeLists.txt is not in the sdist; build from its repository: [source] git",
        ),
        ("error: something else", None),
    ],
)
def test_sources_that_are_not_there_are_said_to_be(log: str, line: str | None) -> None:
    said = missing_source(log)
    assert said is None if line is None else said and line in said


def test_what_a_build_goes_on_without_is_named_with_its_package() -> None:
    log = "Run-time dependency geos found: NO (tried pkg-config)\n-- Could NOT find JPEG (missing: X)\n"
    log += "-- Could NOT find Doxygen\n--   No package 'libzstd' found\n"
    found = dict(looked_in_vain(log, ["nasm", "icc", "gmake"], ["hdf5", "mine"]))
    assert found == {
        "hdf5": "looked for and not found; install it: apt-get install libhdf5-dev",
        "geos": "looked for and not found; install it: apt-get install libgeos-dev",
        "JPEG": "looked for and not found; install it: apt-get install libjpeg-dev",
        "libzstd": "looked for and not found; install it: apt-get install libzstd-dev",
        "nasm": "looked for on PATH and not found; install it: apt-get install nasm",
    }


@pytest.mark.parametrize(
    "said",
    [
        'a.cu(18): error: class "cudaDeviceProp" has no member "clockRate"',
        "'cudaDeviceProp' has no member named 'clockRate'",
    ],
)
def test_fields_that_cuda_removed_ask_for_an_older_one(said: str) -> None:
    line = advice(f"x\n{said}\n", "") or ""
    assert line.startswith("no CUDA from 13 on has cudaDeviceProp.clockRate: install CUDA 12")
    assert advice('class "Demo" has no member "clockRate"', "") is None


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("k.cu:1:10: fatal error: cublas_v2.h: No such file or directory", "matrix.cuda[].libraries = ['cublas']"),
        ("a.c:3:10: fatal error: 'zlib.h' file not found", "zlib.h is missing; install it: apt-get install zlib1g-dev"),
        ("a.c:3:10: fatal error: openssl/evp.h: No such file or directory", "apt-get install libssl-dev"),
        ("a.c:3:10: fatal error: mine.h: No such file or directory", "a file of the project that its sdist lacks"),
        ("a.c:3:10: error: expected ';'", None),
    ],
)
def test_a_missing_header_is_found_where_it_is(text: str, line: str | None) -> None:
    said = missing_header(text)
    assert said is line if line is None else line in (said or "")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            "/usr/include/python3.11/object.h:775:41: error: expected '(' before 'PyType_HasFeature'",
            "its sources do not compile with the headers of Python 3.11, and are for an older one, most likely: ",
        ),
        (
            "a.c:9:1: error: 'PyThreadState' {aka 'struct _ts'} has no member named 'exc_type'",
            "its sources do not compile with these headers of Python, and are for an older one, most likely: ",
        ),
        ("python.cc:202:13: error: expected ')'", None),
    ],
)
def test_an_error_about_python_is_of_sources_for_an_older_one(error: str, line: str | None) -> None:
    assert line is None if (said := advice("", error)) is None else line and said.startswith(line)


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("yaml", "Name the package that has the module: build.requires = ['pyyaml']"),
        ("distutils.msvccompiler", "Name the package that has the module: build.requires = ['setuptools<74']"),
        ("helpers_of_us", "check first whose it is, as anyone can register a free name"),
    ],
)
def test_a_module_that_is_missing_is_named_with_its_package(module: str, line: str) -> None:
    assert line in (advice(f"Traceback\nModuleNotFoundError: No module named '{module}'\n", "") or "")


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (
            CUDA % "NPY_IN_ARRAY",
            "numpy 2.3 has no NPY_IN_ARRAY: build.requires = ['numpy",
        ),
        ("a.c:3:1: error: 'NPY_OWNDATA' undeclared (first use in this function)", "numpy 2.3 has no NPY_OWNDATA"),
        (
            f"{CUDA % 'NPY_IN_ARRAY'}\n{CUDA % 'PyArray_FromDims'}",
            "numpy 2 has no PyArray_FromDims: build.requires = ['numpy<2'], whose wheel runs with numpy 1 alone",
        ),
        (
            "a.c:9:41: error: 'PyArray_Descr' {aka 'struct _PyArray_Descr'} has no member named 'subarray'",
            "numpy 2 has no PyArray_Descr.subarray: build.requires = ['numpy<2']",
        ),
    ],
)
def test_what_a_compiler_says_names_the_line_that_helps(said: str, line: str) -> None:
    assert (advice(f"-O2 -c a.c\n{said}\n", "") or "").startswith(line)


def test_missing_headers_of_python_come_before_what_their_sources_lack() -> None:
    said = advice("demo.c:1:10: fatal error: Python.h: No such file or directory\n", "Python.h: No such file")
    assert said == "The headers of Python are missing; install them: apt-get install python3-dev"


@pytest.mark.nightly
@needs("gcc")
@pytest.mark.parametrize(
    ("version", "compiles"),
    [("1.26.4", ("NPY_IN_ARRAY", "PyArray_FromDims")), ("2.2.6", ("NPY_IN_ARRAY",)), ("2.3.0", ())],
)
def test_the_headers_of_each_release_bear_it_out(tmp_path: Path, version: str, compiles: tuple[str, ...]) -> None:
    path = download_best(
        "numpy",
        lambda one: (
            0 if str(one.version) == version and "cp311-manylinux" in one.file and "x86_64" in one.file else None
        ),
        tmp_path,
        indexes=Indexes.configured(),
    )
    assert path
    with open_wheel(path) as source:
        for member in source.members:
            if "/include/" in member.path:
                target = tmp_path / member.path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(source.read(member))
    (include,) = [found.parent for found in tmp_path.rglob("numpy/arrayobject.h")]
    for name in ("NPY_IN_ARRAY", "PyArray_FromDims"):
        code = f"#include <Python.h>\n{INCLUDE}void f(void) {{ (void){name}; }}\n"
        command = ["gcc", "-fsyntax-only", f"-I{include.parent}", f"-I{sysconfig.get_path('include')}", "-x", "c", "-"]
        ran = subprocess.run(command, input=code, capture_output=True, text=True, check=False)
        assert (ran.returncode == 0) is (name in compiles)
        assert (advice(ran.stderr, "") is None) is (name in compiles)
