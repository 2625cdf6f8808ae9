"""Recipes that vbuild writes: what a survey of a project finds, the text of it, and what a build would meet."""

from pathlib import Path

import pytest

from tests.factories.projects import tree
from tests.factories.sources import PROJECT as PROJECT_FILES
from tests.factories.sources import index, sdist, sha256
from vbuild.build.init import AskedAxes, init, project_recipe, prospect
from vbuild.build.survey import drafted, surveyed
from vbuild.errors import RecipeError
from vbuild.hardware.driver import Dotted
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


def test_headers_of_numpy_ask_for_numpy(tmp_path: Path) -> None:
    survey = surveyed(tree(tmp_path, {"setup.py": "", "k.c": "#include <numpy/arrayobject.h>\n"}), "demo")
    assert survey.imported == ("numpy",)


def test_a_build_without_gpus_is_told_nothing_of_cuda(tmp_path: Path) -> None:
    draft = drafted(surveyed(tree(tmp_path, CUDA), "demo"), {"cpu": ["x86-64-v3"]})
    assert draft.values() == {"matrix": {"cpu": ["x86-64-v3"]}, "build": {"env": {"DEMO_FORCE_BUILD": "TRUE"}}}
    assert "# cuda = [" in draft.text()


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
    assert Recipe.load(written.path).source == project_recipe(file, V3).recipe.source


def test_a_project_without_anything_to_compile_is_refused_before_it_is_built(tmp_path: Path) -> None:
    tree(tmp_path, {"pyproject.toml": PROJECT, "demo/__init__.py": ""})
    for verb in (prospect, init):
        with pytest.raises(RecipeError, match="no source that a compiler takes, so one wheel serves all machines"):
            verb(tmp_path, V3)
    places = Indexes(index_url=index(tmp_path / "index", sdist(tmp_path)).as_uri())
    with pytest.raises(RecipeError, match="no source that a compiler takes, so one wheel serves all machines"):
        project_recipe("demo", AskedAxes(), indexes=places)


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
    alone = project_recipe(
        tree(tmp_path / "alone", {**CUDA, "pyproject.toml": PROJECT.replace('"torch"', '"wheel"')}), GPUS
    )
    assert "libcublas*.so.*" in alone.recipe.repair.exclude
    assert alone.draft
    assert alone.draft.values()["split"] == {"rpath": True, "share": False}
    framework = project_recipe(tree(tmp_path / "torch", CUDA), GPUS).recipe
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


def test_a_project_is_not_guessed_by_the_name_of_a_module(tmp_path: Path) -> None:
    files = {"setup.py": "import os, helpers_of_us, yaml\n", "k.c": "", "pyproject.toml": "[project]\nname = 'demo'\n"}
    found = project_recipe(tree(tmp_path, files), V3)
    assert found.recipe.build.requires == ("pyyaml",)
    assert found.notes == ("it imports or includes pyyaml and does not require it: installed for the build",)


def test_cuda_of_a_project_without_any_is_refused_before_a_toolkit_is_fetched(tmp_path: Path) -> None:
    project = tree(tmp_path, {"setup.py": "", "k.c": "", "pyproject.toml": "[project]\nname = 'demo'\n"})
    for axes in (GPUS, AskedAxes(toolkits=(Dotted(13, 0),))):
        with pytest.raises(RecipeError, match=r"no CUDA in its sources: no \.cu file, and no include of a CUDA header"):
            project_recipe(project, axes)
    (project / "k.c").write_text("#include <cuda_runtime.h>\n", encoding="utf-8")
    assert project_recipe(project, AskedAxes(toolkits=(Dotted(13, 0),))).recipe.targets[0].cuda
