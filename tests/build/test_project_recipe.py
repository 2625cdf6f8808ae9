"""What stands after `vbuild matrix`: paths, sdists and names on a package index, and the recipes they stand for."""

from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.factories.projects import tree
from tests.factories.sources import index, sdist, sha256
from tests.factories.toolkits import installed
from vbuild.build.init import AskedAxes, ProjectRecipe, fitting_toolkit, project_recipe
from vbuild.build.source import fetched_source
from vbuild.errors import BuildError, VbuildError
from vbuild.hardware.driver import Dotted
from vbuild.hardware.gpu import GpuList
from vbuild.hardware.machine import cpus_asked
from vbuild.index_client.configuration import Indexes
from vbuild.recipe.source import project_name, sdist_file
from vbuild.toolchain.toolkit import releases as releases_of_cuda

PROJECT = '[project]\nname = "demo"\nversion = "1.0"\n'
SOURCES = {"pyproject.toml": PROJECT, "demo.c": ""}
NO_AXES = AskedAxes()


def labels(project: ProjectRecipe) -> list[str]:
    return [str(target) for target in project.recipe.targets]


@pytest.fixture
def releases(tmp_path: Path) -> Indexes:
    """An index of two sdists of demo, one of them yanked, and of a wheel."""
    files = [sdist(tmp_path / str(number), SOURCES, top=f"demo-{number}.0") for number in (1, 2, 3)]
    page = index(tmp_path / "index", *files) / "demo" / "index.html"
    links = [f'<a href="{file.name}#sha256={sha256(file)}">{file.name}</a>' for file in files]
    links[2] = links[2].replace("<a ", '<a data-yanked="broken" ')
    links.append(f'<a href="demo-4.0-py3-none-any.whl#sha256={"d" * 64}">demo-4.0-py3-none-any.whl</a>')
    page.write_text("".join(links))
    return Indexes(index_url=(tmp_path / "index").as_uri())


@pytest.mark.parametrize(
    ("text", "release", "notes"),
    [
        ("demo", "demo==2.0", 2),
        ("Demo < 2", "Demo==1.0", 2),
        ("demo==1.0", "demo==1.0", 2),
        ("demo==3.0", "demo==3.0", 3),
    ],
)
def test_a_name_is_the_newest_sdist_that_fits_and_is_not_yanked(
    releases: Indexes, text: str, release: str, notes: int
) -> None:
    project = project_recipe(text, NO_AXES, indexes=releases)
    assert str(project.recipe.source) == release
    assert project.notes[0].startswith(f"{release}: sha256 ")
    assert len(project.notes) == notes
    assert labels(project) == ["plain", "x86_64_v3"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing", "nothing: no file or folder, and no project of this name on the package index"),
        ("demo==4.0", "demo==4.0: no such sdist, or yanked; there are sdists of 3.0, 2.0, 1.0"),
        ("demo==9", "demo==9: no such sdist, or yanked; there are sdists of 3.0, 2.0, 1.0"),
        ("demo[fast]", "demo[fast]: expected a name with or without versions, as in mmh3 or mmh3==5.3.1"),
        ("", "no source is named; expected a recipe, a folder, an sdist, or a name"),
        ("./demo", "./demo: no such file or folder"),
        ("demo.tar.gz", "demo.tar.gz: no such file or folder"),
        ("demo.toml", "demo.toml: cannot be read: No such file or directory"),
        ("a b", "a b: no such file or folder, and not a project as in mmh3 or mmh3==5.3.1"),
        ("https://host/demo.tar.gz", "https://host/demo.tar.gz: a URL; expected a name on a package index, a path, or"),
    ],
)
def test_what_names_nothing_is_refused(releases: Indexes, text: str, message: str) -> None:
    with pytest.raises(VbuildError) as refused:
        project_recipe(text, NO_AXES, indexes=releases)
    assert str(refused.value).startswith(message)


def test_a_project_that_has_only_wheels_is_refused(tmp_path: Path) -> None:
    name = "demo-1.0-py3-none-any.whl"
    tree(tmp_path, {"demo/index.html": f'<a href="{name}#sha256={"d" * 64}">{name}</a>'})
    with pytest.raises(VbuildError, match="demo: has no sdist, only wheels"):
        project_recipe("demo", NO_AXES, indexes=Indexes(index_url=tmp_path.as_uri()))


def test_an_sdist_is_built_as_it_lies_there(tmp_path: Path) -> None:
    file = sdist(tmp_path, SOURCES)
    project = project_recipe(file, AskedAxes(cpus=cpus_asked("v2,x86-64-v4"), pythons=("3.12",)))
    assert labels(project) == ["plain", "x86_64_v2", "x86_64_v4"]
    assert {target.python for target in project.recipe.targets} == {"3.12"}
    assert (str(project.recipe.source), project.recipe.file, project.notes) == ("demo==1.0", file, ())
    assert fetched_source(project.recipe.source) == file
    file.write_bytes(b"")
    with pytest.raises(BuildError, match="changed; expected sha256"):
        fetched_source(project.recipe.source)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("demo-1.0-py3-none-any.whl", "a wheel, which is built already"),
        ("demo.txt", r"neither a recipe \(.toml\) nor an sdist"),
        ("demo.zip", "'demo.zip' is not the name of an sdist"),
        ("demo-one.zip", "'demo-one.zip' is not the name of an sdist"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(VbuildError, match=message):
        project_recipe(tmp_path / name, NO_AXES)


@pytest.mark.parametrize("name", ["Old.Demo-1.0.tar.bz2", "old-demo-1.0.tgz", "old_demo-1.0.zip"])
def test_older_names_of_sdists_are_known(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    project = sdist_file(tmp_path / name)
    assert (canonicalize_name(project.name), str(project.version)) == ("old-demo", "1.0")


def test_what_is_asked_for_stands_instead_of_the_recipes_own(tmp_path: Path) -> None:
    own = '[tool.vbuild.matrix]\ncpu = ["x86-64-v2"]\npython = ["3.12", "3.13"]\npriority = ["x86_64", "nvidia"]\n'
    tree(tmp_path, {"pyproject.toml": f"{PROJECT}{own}", "demo.cu": ""})
    assert labels(project_recipe(tmp_path, NO_AXES))[:2] == ["plain", "x86_64_v2"]
    asked = AskedAxes(gpus=GpuList.parse("A100,90a,90,120+ptx"), toolkits=(Dotted(13, 0),), pythons=("3.13",))
    project = project_recipe(tmp_path, asked)
    (entry,) = project.recipe.matrix.cuda
    assert str(entry.toolkit) == "13.0"
    assert {group.label: str(group.gpus) for group in entry.groups} == {
        "sm80": "sm_80",
        "sm90": "sm_90,sm_90a",
        "sm120": "sm_120+PTX",
    }
    assert project.recipe.matrix.priority == ("x86_64", "nvidia")
    assert (project.pythons, project.notes) == (("3.13",), ())


def test_an_installed_toolkit_comes_before_the_newest(tmp_path: Path) -> None:
    assert fitting_toolkit(GpuList.parse("75,120"), {}) == max(releases_of_cuda())
    older = {"CUDA_HOME": str(installed(tmp_path / "cuda", 12090))}
    assert fitting_toolkit(GpuList.parse("70,90"), older) == Dotted(12, 9)
    assert fitting_toolkit(GpuList.parse("90,110"), older) == max(releases_of_cuda())


def test_gpus_that_no_toolkit_compiles_for_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(VbuildError, match=r"--cuda sm_70,sm_110: no installed toolkit compiles for all, and none of"):
        fitting_toolkit(GpuList.parse("70,110"), {})
    tree(tmp_path, {"pyproject.toml": PROJECT, "demo.cu": ""})
    with pytest.raises(VbuildError, match="--toolkit: several; expected one with --cuda"):
        project_recipe(tmp_path, AskedAxes(gpus=GpuList.parse("80"), toolkits=(Dotted(12, 9), Dotted(13, 0))))


def test_code_that_calls_cudas_libraries_alone_is_built_for_each_toolkit_whatever_the_gpu(tmp_path: Path) -> None:
    setup = "from setuptools import setup, Extension\nsetup(ext_modules=[Extension(name='x')])"
    calls = "#include <cublas_v2.h>\nint main() { return 0; }"
    tree(tmp_path, {"pyproject.toml": PROJECT, "setup.py": setup, "x.cpp": calls})
    both = project_recipe(tmp_path, AskedAxes(toolkits=(Dotted(12, 9), Dotted(13, 0)))).recipe
    bounds = [f"nvidia :: cuda_version_lower_bound :: {major}.0" for major in (12, 13)]
    assert [(str(target), *target.properties) for target in both.targets] == [
        ("plain",),
        ("cu12", bounds[0]),
        ("cu13", bounds[1]),
    ]
    assert not any(target.gpus or target.cuda.archs.requests for target in both.targets if target.cuda)
    assert both.targets[1].cuda == both.targets[0].cuda != both.targets[2].cuda
    # also if GPUs are asked for: there is nothing to compile for them
    project = project_recipe(tmp_path, AskedAxes(gpus=GpuList.parse("80,90"), toolkits=(Dotted(13, 0),)))
    assert [str(target) for target in project.recipe.targets] == ["plain", "cu13"]
    assert project.notes[0] == "it calls CUDA's libraries and has no kernels: one wheel for all GPUs"
    # files that are loaded at run time are not its own kernels, and what a script names for nvcc is
    tree(tmp_path, {"demo/x.cu": "", "demo/load.py": "open('x.cu')"})
    assert (
        project_recipe(tmp_path, AskedAxes(gpus=GpuList.parse("80"), toolkits=(Dotted(13, 0),))).recipe.targets[1].gpus
        is None
    )
    tree(tmp_path, {"CMakeLists.txt": "add_library(x MODULE x.cu)"})
    kernels = project_recipe(tmp_path, AskedAxes(gpus=GpuList.parse("80"), toolkits=(Dotted(13, 0),)))
    assert [str(target) for target in kernels.recipe.targets] == ["plain", "sm80"]


@pytest.mark.parametrize(
    "files",
    [
        {"setup.py": "from setuptools import setup, Extension\nsetup(ext_modules=[Extension(name='x')], name='demo')"},
        {"setup.py": "import setuptools\nNAME = 'demo'\nsetuptools.setup(name=NAME)"},
        {"setup.py": "", "setup.cfg": "[options]\nname = no\n[metadata]\nversion = 1\nname = demo\n"},
        {"setup.py": "print 'two'", "PKG-INFO": "Metadata-Version: 2.1\nName: demo\nVersion: 1\n"},
        {"pyproject.toml": "[tool.poetry]\nname = 'demo'\n"},
    ],
    ids=["setup.py", "variable", "setup.cfg", "PKG-INFO", "Poetry"],
)
def test_older_projects_have_names_too(tmp_path: Path, files: dict[str, str]) -> None:
    tree(tmp_path, {**files, "fast.c": ""})
    assert project_name(tmp_path) == "demo"
    assert project_recipe(tmp_path, NO_AXES).recipe.name == "demo"


def test_a_project_without_a_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VbuildError, match=r"no project; expected pyproject\.toml or setup\.py in it"):
        project_recipe(tmp_path, NO_AXES)
    tree(tmp_path, {"setup.py": "from setuptools import setup\nsetup(name=open('name').read())\n"})
    with pytest.raises(VbuildError, match=r'no \[project\] table names the project; expected name = "…"'):
        project_recipe(tmp_path, NO_AXES)


def test_what_is_wrong_in_a_project_is_said_with_its_file(tmp_path: Path) -> None:
    tree(tmp_path, {"pyproject.toml": "[project]\nname = 3\n"})
    with pytest.raises(VbuildError, match=r"/pyproject\.toml: project\.name: expected a string, got 3$"):
        project_recipe(tmp_path, NO_AXES)
