"""Recipes that vbuild writes: what a survey of a project finds, the text of it, and what a build would meet."""

import tomllib
from pathlib import Path

import pytest

from tests.factories.projects import tree
from tests.factories.sources import PROJECT as PROJECT_FILES
from tests.factories.sources import index, sdist, sha256
from vbuild.build.draft import drafted
from vbuild.build.given import AskedAxes, given
from vbuild.build.headers import (
    first_of_nvcc,
    left_out,
    looked_in_vain,
    missing_header,
    missing_source,
    older_cuda,
    older_python,
    other_python,
)
from vbuild.build.init import init
from vbuild.build.plan import BuildBackend
from vbuild.build.precheck import prospect
from vbuild.build.survey import surveyed
from vbuild.config.toml_text import toml
from vbuild.errors import RecipeError
from vbuild.hardware.gpu import GpuList
from vbuild.hardware.machine import cpus_asked
from vbuild.index_client.configuration import Indexes
from vbuild.recipe.model import Recipe

PROJECT = """
[build-system]
requires = ["setuptools>=70", "NumPy", "torch"]
build-backend = "setuptools.build_meta"
[project]
name = "demo"
version = "1.0"
requires-python = ">=3.9"
"""
CUDA = {
    "pyproject.toml": PROJECT,
    "setup.py": """
if os.getenv("DEMO_FORCE_BUILD", "FALSE") == "TRUE" or os.getenv("FORCE_CUDA", "0") == "1":
    flags = ["-gencode", "arch=compute_70,code=sm_70", "-march=native"]
    extension = CUDAExtension("demo._C", ["k.cu"], extra_compile_args=flags)
""",
    "demo/__init__.py": "",
    "csrc/k.cu": "#include <cublas_v2.h>\n#include <own.h>\n#include <thrust/sort.h>\n",
    "csrc/own.h": "#include <vector>\n#include <zstd.h>\n",
    "csrc/cpu.cpp": 'int f() { return __builtin_cpu_supports("avx2"); }',
    "tests/other.f90": "",
    ".cache/other.rs": "",
    "env/pyvenv.cfg": "",
    "env/lib/other.pyx": "",
}
V3 = AskedAxes(cpus=cpus_asked("v3"))
GPUS = AskedAxes(gpus=GpuList.parse("80"))


def test_a_survey_finds_what_a_recipe_names(tmp_path: Path) -> None:
    found = surveyed(tree(tmp_path, CUDA), "demo")
    assert (found.backend, found.requires) == (BuildBackend.SETUPTOOLS, ("setuptools", "numpy", "torch"))
    assert (found.module, found.requires_python) == ("demo", ">=3.9")
    assert found.languages == ("C++", "CUDA")
    assert (found.archs, found.libraries) == (("70",), ("cccl", "cublas"))
    assert found.switches == (("DEMO_FORCE_BUILD", "TRUE"), ("FORCE_CUDA", "1"))
    assert (found.dispatch, found.native) == (("csrc/cpu.cpp",), ("setup.py",))
    assert found.headers == ("cublas_v2.h", "thrust/sort.h", "vector", "zstd.h")


@pytest.mark.parametrize(
    ("files", "module"),
    [
        ({"demo_x.egg-info/top_level.txt": "_demo\ndemo_x\n"}, "demo_x"),
        ({"src/demo_x.egg-info/top_level.txt": "other\ntests\n", "src/other.py": ""}, "other"),
        ({"demo_x.egg-info/top_level.txt": "one\ntwo\n", "demo_x/__init__.py": ""}, ""),
        ({"src/Demo_X/__init__.py": ""}, "Demo_X"),
        ({"python/demo_x/__init__.py": "", "setup.py": ""}, "demo_x"),
        ({"other/__init__.py": ""}, ""),
    ],
)
def test_a_module_is_named_where_there_is_no_doubt(tmp_path: Path, files: dict[str, str], module: str) -> None:
    assert surveyed(tree(tmp_path, {**files, "setup.py": ""}), "Demo.X").module == module


def test_a_draft_is_the_recipe_that_its_text_is(tmp_path: Path) -> None:
    survey = surveyed(tree(tmp_path, CUDA), "demo")
    draft = drafted(survey, {"cuda": [{"toolkit": "13.0", "gpus": {"sm80": ["sm_80"]}}]})
    written = tmp_path / "demo.toml"
    written.write_text('name = "demo"\nsource = { path = "." }\n' + draft.text())
    assert Recipe.load(written).build.env == (("DEMO_FORCE_BUILD", "TRUE"), ("FORCE_CUDA", "1"))
    (entry,) = Recipe.load(written).matrix.cuda
    assert entry.toolkit.libraries == ("cccl", "cublas")
    env = {"DEMO_FORCE_BUILD": "TRUE", "FORCE_CUDA": "1"}
    assert draft.values()["build"] == {"env": env, "cuda": {"archs": "complete"}}
    assert "# command = \"python -c 'import demo'\"" in draft.text()  # it brings torch


def test_libraries_that_scripts_link_and_variables_that_want_cudas_major_are_in_the_draft(tmp_path: Path) -> None:
    scripts = {
        "CMakeLists.txt": "project(demo LANGUAGES CUDA)\ntarget_link_libraries(demo CUDA::cusparse CUDA::cudart)\n",
        "setup.py": """
cuda_major = os.environ.get("DEMO_CUDA_MAJOR")
CUDAExtension("demo", ["k.cu"], libraries=["cufft", "cudart"], extra_link_args=["-lcurand"])
""",
        "k.cu": "",
    }
    survey = surveyed(tree(tmp_path, scripts), "demo")
    assert (survey.libraries, survey.majors) == (("cufft", "curand", "cusparse"), ("DEMO_CUDA_MAJOR",))
    draft = drafted(survey, {"cuda": [{"toolkit": "12.9"}, {"toolkit": "13.0"}]})
    entries = draft.values()["matrix"]["cuda"]
    assert [entry["env"] for entry in entries] == [{"DEMO_CUDA_MAJOR": "12"}, {"DEMO_CUDA_MAJOR": "13"}]


@pytest.mark.parametrize(
    ("files", "only_calls"),
    [
        ({}, True),
        ({"k.cu": ""}, False),
        ({"CMakeLists.txt": "set_source_files_properties(k.cpp LANGUAGE CUDA)"}, False),
    ],
)
def test_a_script_that_knows_kernels_makes_none_where_there_are_none(
    tmp_path: Path, files: dict[str, str], *, only_calls: bool
) -> None:
    setup = "class CUDAExtension(build_ext):\n    suffix = '.cu'\n"
    found = surveyed(tree(tmp_path, {"setup.py": setup, "x.c": "#include <cuda.h>\n", **files}), "demo")
    assert found.only_calls_cuda is only_calls


def test_what_setup_py_goes_on_without_is_offered_to_a_build_for_gpus(tmp_path: Path) -> None:
    setup = "import numpy\ntry:\n    import cuvec, os\n    from skbuild import setup\nexcept ImportError:\n    pass\n"
    survey = surveyed(
        tree(tmp_path, {"setup.py": setup, "k.cu": "", "CMakeLists.txt": "${CUDA_curand_LIBRARY}"}), "demo"
    )
    assert (survey.imported, survey.tried, survey.libraries) == (("numpy",), ("cuvec", "scikit-build"), ("curand",))
    text = drafted(survey, {"cuda": [{"toolkit": "13.0"}]}).text()
    assert '# requires = ["numpy", "cuvec", "scikit-build"]  # its setup.py goes on without these' in text


def test_headers_of_numpy_ask_for_numpy(tmp_path: Path) -> None:
    survey = surveyed(tree(tmp_path, {"setup.py": "", "k.c": "#include <numpy/arrayobject.h>\n"}), "demo")
    assert survey.imported == ("numpy",)


def test_what_chooses_the_setup_that_is_called_is_required_by_a_build_for_gpus(tmp_path: Path) -> None:
    setup = """
try:
    import cuvec
    from skbuild import setup as sksetup
except Exception:
    setup()
else:
    sksetup()
"""
    project = "[build-system]\nrequires = ['scikit-build', 'cuvec-base']\n"
    tree(tmp_path, {"setup.py": setup, "k.cu": "", "pyproject.toml": project})
    guessed = surveyed(tmp_path, "demo")
    assert (guessed.decisive, guessed.tried) == ((), ("cuvec",))
    assert "build" not in drafted(guessed, {"cuda": [{"toolkit": "13.0"}]}).values()
    survey = surveyed(tree(tmp_path, {"setup.cfg": "[options]\ninstall_requires =\n  cuvec>=4\n"}), "demo")
    assert (survey.imported, survey.decisive) == ((), ("cuvec",))
    draft = drafted(survey, {"cuda": [{"toolkit": "13.0"}]})
    assert draft.values()["build"]["requires"] == ["cuvec"]
    assert "its setup.py goes on without it, and leaves CUDA out" in draft.text()
    assert "build" not in drafted(survey, {}).values()


@pytest.mark.parametrize(
    ("files", "pythons"),
    [
        ({"a.c": "0.29.2", "b.c": "3.1.0"}, ">=3.5,<3.8"),
        ({"a.c": "0.29.34"}, ">=3.5,<3.12"),
        ({"a.c": "3.1.0", "site-packages/b.c": "0.28"}, ">=3.5"),
        ({"a.c": "0.29.2", "setup.py": "from Cython.Build import cythonize"}, ">=3.5"),
    ],
)
def test_c_of_an_older_cython_is_for_the_pythons_that_it_compiles_for(
    tmp_path: Path, files: dict[str, str], pythons: str
) -> None:
    made = {name: text if name == "setup.py" else f"/* Generated by Cython {text} */\n" for name, text in files.items()}
    found = surveyed(tree(tmp_path, {"PKG-INFO": "Requires-Python: >=3.5\n", "setup.py": "", **made}), "demo")
    assert found.pythons == pythons


@pytest.mark.parametrize(("more", "added"), [("", ["scikit-build-core<0.8"]), ('minimum-version = "0.5"\n', [])])
def test_a_key_that_scikit_build_core_renamed_asks_for_a_release_that_reads_it(
    tmp_path: Path, more: str, added: list[str]
) -> None:
    text = f'[tool.scikit-build]\n{more}cmake.minimum-version = "3.24"\n'
    survey = surveyed(tree(tmp_path, {"pyproject.toml": text, "k.c": ""}), "demo")
    assert [line for line, _ in survey.added] == added
    assert drafted(survey, {}).values().get("build", {}).get("requires", []) == added


@pytest.mark.parametrize(
    ("log", "advice"),
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
def test_sources_that_are_not_there_are_said_to_be(log: str, advice: str | None) -> None:
    said = missing_source(log)
    assert said is None if advice is None else said and advice in said


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
    ("log", "line"),
    [
        ("-- Found Python\n-- Building without CUDA support (CPU-only)\n", "Building without CUDA support (CPU-only)"),
        ("CUDA not found; skipping\n", "CUDA not found; skipping"),
        ("$ demo --no-cuda\nCUDA 13.5 found\nno warnings\n", None),
    ],
)
def test_what_a_build_says_of_cuda_that_it_leaves_out_is_found(log: str, line: str | None) -> None:
    assert left_out(log) == line


@pytest.mark.parametrize(
    "said",
    [
        'a.cu(18): error: class "cudaDeviceProp" has no member "clockRate"',
        "'cudaDeviceProp' has no member named 'clockRate'",
    ],
)
def test_fields_that_cuda_removed_ask_for_an_older_one(said: str) -> None:
    advice = older_cuda(f"x\n{said}\n") or ""
    assert advice.startswith("no CUDA from 13 on has cudaDeviceProp.clockRate: install CUDA 12")
    assert older_cuda('class "Demo" has no member "clockRate"') is None


def test_the_first_error_of_nvcc_is_found() -> None:
    error = 'src/a.cu(14): error: identifier "NPY_IN_ARRAY" is undefined'
    first = first_of_nvcc(f"src/a.cu(9): warning #1: x\n{error}\nsrc/a.cu(15): error: y") or ""
    assert first == error
    assert first_of_nvcc("a.c:1:2: error: x") is None


LINKED = {
    "setup.py": "setup(name='demo', ext_modules=[Extension('demo.core', ['core.cpp'], libraries=['demo'])])",
    "core.cpp": "",
    "demo.h": "",
    "kernels/a b.cu": "// main()\n__global__ void f() {}",
    "try.cu": "int main() {}",
}


def test_a_library_of_kernels_that_nothing_makes_is_made_for_gpus(tmp_path: Path) -> None:
    tree(tmp_path, LINKED)
    found = surveyed(tmp_path, "demo")
    assert found.before == "nvcc -lib -Xcompiler -fPIC -o libdemo.a 'kernels/a b.cu'"
    assert found.has_kernels
    recipe = given(tmp_path, GPUS).recipe
    assert recipe.build.before_build == (found.before,)
    assert dict(recipe.build.env)["LDFLAGS"].startswith("-L. ")
    assert not given(tmp_path, V3).recipe.build.before_build


@pytest.mark.parametrize(
    "more",
    [
        {"Makefile": "libdemo.a:"},  # it says how
        {"setup.py": LINKED["setup.py"].replace("core.cpp", "kernels/a b.cu")},
        {"setup.py": LINKED["setup.py"].replace("'demo']", "'other']")},  # of the system, for want of a header
        {"setup.py": LINKED["setup.py"].replace("'demo']", "'demo', 'try']"), "try.h": ""},
        {"setup.py": "print 'Python 2', libraries=['demo']"},
    ],
)
def test_what_leaves_doubt_of_a_library_makes_none(tmp_path: Path, more: dict[str, str]) -> None:
    assert surveyed(tree(tmp_path, {**LINKED, **more}), "demo").before == ""


def test_an_error_in_pythons_own_headers_is_of_sources_for_an_older_one() -> None:
    text = "/usr/include/python3.11/object.h:775:41: error: expected '(' before 'PyType_HasFeature'"
    assert "headers of Python 3.11, and are for an older one" in (older_python(text) or "")
    assert older_python("python.cc:202:13: error: expected ')'") is None


def test_headers_that_cmake_takes_of_another_python_are_named() -> None:
    found = '-- Found PythonInterp: /a/bin/python3 (found suitable version "3.{}.18", minimum required is "3")\n'
    error = "/usr/include/python3.11/object.h:775:41: error: expected '(' before 'PyType_HasFeature'"
    advice = other_python(found.format(8) + error) or ""
    assert advice.startswith("it is built for Python 3.8, and CMake took the headers of Python 3.11: ")
    assert other_python(found.format(11) + error) is None
    assert other_python(error) is None


@pytest.mark.parametrize(
    ("files", "build"),
    [
        (
            {
                "pyproject.toml": '[build-system]\nbuild-backend = "scikit_build_core.build"\n',
                "CMakeLists.txt": 'option(DEMO_ENABLE_CUDA "Kernels" OFF)\noption(CUDA_DEBUG "-G" OFF)\n',
            },
            {"config-settings": {"cmake.define.DEMO_ENABLE_CUDA": "ON"}},
        ),
        (
            {
                "pyproject.toml": '[build-system]\nbuild-backend = "scikit_build_core.build"\n',
                "CMakeLists.txt": "pybind11_add_module(k k.cu)\nset_property(TARGET k CUDA_SEPARABLE_COMPILATION ON)\n",
            },
            {"config-settings": {"cmake.define.CMAKE_INTERPROCEDURAL_OPTIMIZATION": "OFF"}},
        ),
        (
            {
                "pyproject.toml": '[build-system]\nbuild-backend = "mesonpy"\n',
                "meson.options": "option('cuda', type: 'boolean',\n  value: false)\noption('tests', value: false)\n",
            },
            {"config-settings": {"setup-args": ["-Dcuda=true"]}},
        ),
        (
            {"setup.py": "CUDA = os.environ.get('DEMO_USE_CUDA', '0') == 'yes'", "CMakeLists.txt": ""},
            {"env": {"DEMO_USE_CUDA": "yes"}},
        ),
        (
            {"setup.py": "", "CMakeLists.txt": 'option(WITH_CUDA "Kernels"\n  OFF)\noption(NO_GPU "none" OFF)'},
            {"env": {"CMAKE_ARGS": "-DWITH_CUDA=ON"}},
        ),
    ],
)
def test_what_leaves_cuda_out_by_default_is_turned_on(
    tmp_path: Path, files: dict[str, str], build: dict[str, object]
) -> None:
    survey = surveyed(tree(tmp_path, {**files, "k.cu": ""}), "demo")
    asked = {"cuda": [{"toolkit": "13.0", "gpus": {"sm80": ["80"]}}]}
    assert drafted(survey, asked).values()["build"] == {**build, "cuda": {"archs": "complete"}}
    assert "build" not in drafted(survey, {"cpu": ["x86-64-v3"]}).values()


def test_a_library_that_cuda_12_has_in_its_runtime_is_asked_of_cuda_13_alone(tmp_path: Path) -> None:
    survey = surveyed(
        tree(tmp_path, {"setup.py": 'command = ["nvcc", "-lculibos", "-enable-tile"]', "k.cu": ""}), "demo"
    )
    matrix = {"cuda": [{"toolkit": "12.9"}, {"toolkit": "13.0"}, {"toolkit": "13.5"}]}
    entries = drafted(survey, matrix).values()["matrix"]["cuda"]
    assert [entry.get("libraries") for entry in entries] == [None, ["culibos"], ["culibos", "tileiras"]]


def test_a_build_without_gpus_is_told_nothing_of_cuda(tmp_path: Path) -> None:
    draft = drafted(surveyed(tree(tmp_path, CUDA), "demo"), {"cpu": ["x86-64-v3"]})
    assert draft.values() == {"matrix": {"cpu": ["x86-64-v3"]}, "build": {"env": {"DEMO_FORCE_BUILD": "TRUE"}}}
    assert "# cuda = [" in draft.text()


@pytest.mark.parametrize("said", [">=3.8\n[build]\nbefore-build = ['id']", '"""', "\x1b[2J", ">=3.8 # \\"])
def test_what_a_project_says_is_no_key_of_its_recipe(tmp_path: Path, said: str) -> None:
    recipes: list[object] = []
    for text in (">=3.8", said):
        project = f"[project]\nname = 'demo'\nversion = '1'\nrequires-python = {toml(text)}\n"
        tree(tmp_path, {"pyproject.toml": project, "demo/__init__.py": "", "k.c": ""})
        recipes.append(tomllib.loads(init(tmp_path, AskedAxes(), file=tmp_path / f"{len(recipes)}.toml").text))
    assert recipes[0] == recipes[1]


def test_a_folder_whose_name_is_a_command_is_no_module(tmp_path: Path) -> None:
    name = "a'; id; '"
    assert surveyed(tree(tmp_path, {f"{name}/__init__.py": "", "k.c": ""}), name).module == ""


def test_a_project_gets_a_table(tmp_path: Path) -> None:
    tree(tmp_path, {"pyproject.toml": PROJECT, "demo/__init__.py": "", "k.c": ""})
    written = init(tmp_path, V3)
    assert written.path == tmp_path / "pyproject.toml"
    assert written.path.read_text().startswith(PROJECT.rstrip() + "\n\n[tool.vbuild.matrix]\n")
    assert [str(target) for target in Recipe.load(tmp_path).targets] == ["plain", "x86_64_v3"]
    before = written.path.read_text()
    with pytest.raises(RecipeError, match="has a recipe already"):
        init(tmp_path, V3)
    assert written.path.read_text() == before


def test_a_project_with_a_setup_py_alone_gets_a_file(tmp_path: Path) -> None:
    tree(tmp_path, {"setup.py": "from setuptools import setup\nsetup(name='demo')\n", "k.c": ""})
    written = init(tmp_path, V3)
    assert written.path == tmp_path / "demo.toml"
    assert str(Recipe.load(written.path).source) == str(tmp_path)
    with pytest.raises(RecipeError, match="is there already"):
        init(tmp_path, V3)


def test_an_sdist_is_named_with_its_hash(tmp_path: Path) -> None:
    file = sdist(tmp_path / "down", {**PROJECT_FILES, "fast.c": ""})
    (tmp_path / "recipes").mkdir()
    written = init(file, V3, file=tmp_path / "recipes" / "demo.toml")
    assert f'path = "../down/{file.name}"\nsha256 = "{sha256(file)}"\n' in written.text
    assert Recipe.load(written.path).source == given(file, V3).recipe.source


@pytest.mark.nightly
def test_a_build_meets_what_the_check_says(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {**CUDA, "pyproject.toml": PROJECT.replace(">=3.9", "<3").replace('"torch"', '"no-such-thing-at-all"')},
    )
    with_rust = tree(tmp_path, {"lib.rs": ""})
    found = prospect(with_rust, GPUS)
    said = [str(one) for one in found.obstacles]
    assert any(line.startswith("error: Python 3.") and "the project wants <3" in line for line in said)
    assert any(line.startswith("error: build-system.requires: ") and "no-such-thing-at-all" in line for line in said)
    assert "note: CUDA code; its own list of architectures: 70; --cuda 80,90 compiles it" in said
    assert "note: -march=native in setup.py: taken out, since wheels are for a level" in said
    assert found.errors >= 2


def test_a_project_without_anything_to_compile_is_refused_before_it_is_built(tmp_path: Path) -> None:
    tree(tmp_path, {"pyproject.toml": PROJECT, "demo/__init__.py": ""})
    for verb in (prospect, init):
        with pytest.raises(RecipeError, match="no source that a compiler takes, so one wheel serves all machines"):
            verb(tmp_path, V3)
    places = Indexes(index_url=index(tmp_path / "index", sdist(tmp_path)).as_uri())
    with pytest.raises(RecipeError, match="no source that a compiler takes, so one wheel serves all machines"):
        given("demo", AskedAxes(), indexes=places)


@pytest.mark.parametrize(
    ("files", "switch"),
    [
        ({"setup.py": 'USE = os.getenv("DEMO_USE_CYTHON") == "1"\n', "k.pyx": ""}, ("DEMO_USE_CYTHON", "1")),
        ({"setup.py": 'USE = os.environ.get("DEMO_USE_MYPYC", "") == "yes"\n'}, ("DEMO_USE_MYPYC", "yes")),
        (
            {"pyproject.toml": "[tool.hatch.build.targets.wheel.hooks.mypyc]\nenable-by-default = false\n"},
            ("HATCH_BUILD_HOOKS_ENABLE", "1"),
        ),
    ],
)
def test_what_turns_compilation_on_is_set(tmp_path: Path, files: dict[str, str], switch: tuple[str, str]) -> None:
    found = surveyed(tree(tmp_path, files), "demo")
    assert found.is_compiled
    assert found.switches == (switch,)
    assert not surveyed(tree(tmp_path, {"fast.c": ""}), "demo").switches or "HATCH" in switch[0]


@pytest.mark.nightly
def test_libraries_of_cuda_stay_outside_unless_a_framework_brings_them(tmp_path: Path) -> None:
    alone = given(tree(tmp_path / "alone", {**CUDA, "pyproject.toml": PROJECT.replace('"torch"', '"wheel"')}), GPUS)
    assert "libcublas*.so.*" in alone.recipe.repair.exclude
    assert alone.draft
    assert alone.draft.values()["split"] == {"rpath": True, "share": False}
    framework = given(tree(tmp_path / "torch", CUDA), GPUS).recipe
    assert (framework.repair.exclude, framework.split) == ((), None)


def test_a_module_that_the_project_lists_and_has_not_is_not_tested(tmp_path: Path) -> None:
    tree(tmp_path, {"k.c": "", "demo_clib.egg-info/top_level.txt": "_demo\ndemo\n"})
    assert not surveyed(tmp_path, "demo-clib").module
    assert surveyed(tree(tmp_path, {"demo/__init__.py": ""}), "demo-clib").module == "demo"


def test_a_module_of_a_project_that_is_named_after_it_is_not_required_again(tmp_path: Path) -> None:
    requires = '["py-cpuinfo", "oldest-supported-numpy>=2", "torch-scatter", "pycython"]'
    tree(
        tmp_path,
        {
            "setup.py": "import cpuinfo, numpy, torch, cython\n",
            "pyproject.toml": f'[build-system]\nrequires = {requires}\n[project]\nname = "demo"\n',
            "k.c": "",
        },
    )
    assert surveyed(tmp_path, "demo").imported == ("torch", "cython")


SETUP = "import os, helpers_of_us\nfrom setuptools import setup\n"


@pytest.mark.parametrize(
    ("files", "meant"),
    [
        ({}, False),
        ({"requirements-dev.txt": "helpers_of_us>=2  # why\n"}, True),
        ({"requirements.txt": "--extra-index-url https://pypi.us.example\nhelpers-of-us\n"}, False),
        ({"requirements.txt": "helpers-of-us @ https://us.example/helpers_of_us-1.0.tar.gz\n"}, False),
        ({"pyproject.toml": "[project]\nname = 'demo'\noptional-dependencies.a = ['Helpers.Of.Us']\n"}, True),
        ({"pyproject.toml": "[dependency-groups]\na = ['helpers-of-us']\n[tool.uv.sources]\n"}, False),
        ({"setup.cfg": "[options.extras_require]\na = helpers-of-us\n"}, True),
        ({"PKG-INFO": "Name: demo\nRequires-Dist: helpers-of-us (>=1)\n\nRequires-Dist: x\n"}, True),
        ({"PKG-INFO": "Name: demo\n\nRequires-Dist: helpers-of-us\n"}, False),
        ({"demo.egg-info/requires.txt": "\n[a]\nhelpers-of-us\n"}, True),
        ({"setup.py": f"{SETUP}setup(extras_require={{'helpers-of-us': ['x']}})\n"}, False),
        ({"setup.py": f"{SETUP}install_requires = ['helpers-of-us']\n"}, True),
    ],
)
def test_a_project_is_not_guessed_by_the_name_of_a_module(
    tmp_path: Path, files: dict[str, str], *, meant: bool
) -> None:
    tree(tmp_path, {"setup.py": SETUP, "k.c": "", **files})
    survey = surveyed(tmp_path, "demo")
    name = ("helpers-of-us",)
    assert (survey.imported, survey.unknown) == ((name, ()) if meant else ((), name))
    draft = drafted(survey, {})
    assert ("build" in draft.values()) is meant
    assert ('# requires = ["helpers-of-us"]' in draft.text()) is not meant


def test_a_name_that_nobody_vouches_for_is_asked_of_no_index_and_told(tmp_path: Path) -> None:
    files = {"setup.py": f"{SETUP}import yaml\n", "k.c": "", "pyproject.toml": "[project]\nname = 'demo'\n"}
    found = given(tree(tmp_path, files), V3)
    assert found.recipe.build.requires == ("pyyaml",)
    (note,) = (note for note in found.notes if "helpers" in note)
    assert note.startswith("it imports helpers-of-us and does not require it: not installed")
    assert note.endswith("build.requires = ['pyyaml', 'helpers-of-us']")


def test_what_setup_py_imports_and_does_not_require_is_required(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "setup.py": "import os, numpy, mine, own\nfrom torch.utils import x\nfrom setuptools import setup\n"
            "try:\n    import sphinx\nexcept ImportError:\n    pass\ndef one():\n    import tensorflow\n",
            "mine.py": "",
            "src/own/__init__.py": "",
            "pyproject.toml": '[build-system]\nrequires = ["numpy>=2"]\n[project]\nname = "demo"\n',
            "k.c": "",
        },
    )
    assert surveyed(tmp_path, "demo").imported == ("torch",)
    assert given(tmp_path, V3).recipe.build.requires == ("torch",)
    guarded = (
        "try:\n    from torch.utils.cpp_extension import CUDAExtension\nexcept ImportError:\n    exit('no torch')\n"
    )
    tree(tmp_path, {"setup.py": f"from distutils import ccompiler, msvccompiler\n{guarded}"})
    assert surveyed(tmp_path, "demo").imported == ("setuptools<74", "torch")


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("k.cu:1:10: fatal error: cublas_v2.h: No such file or directory", "matrix.cuda[].libraries = ['cublas']"),
        ("a.c:3:10: fatal error: 'zlib.h' file not found", "zlib.h is missing; install it: apt-get install zlib1g-dev"),
        ("a.c:3:10: fatal error: openssl/evp.h: No such file or directory", "apt-get install libssl-dev"),
        ("a.c:3:10: fatal error: mine.h: No such file or directory", "a file of the project that its sdist lacks"),
        ("a.c:3:10: error: expected ';'", None),
    ],
)
def test_a_missing_header_is_found_where_it_is(text: str, advice: str | None) -> None:
    said = missing_header(text)
    assert said is advice if advice is None else advice in (said or "")
