"""Small real projects of every backend, built by their real backends, told apart by their instructions."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.factories.projects import (
    KERNEL,
    cmake_project,
    maturin_project,
    meson_project,
    setuptools_project,
    tree,
)
from tests.factories.tools import needs
from vbuild.build.environment import Environments
from vbuild.build.frontend import Built, build_wheel
from vbuild.build.job import build_job
from vbuild.build.plan import BuildBackend
from vbuild.errors import BuildError, VbuildError
from vbuild.files.cache import Cache, Part
from vbuild.hardware.cpu import X86_64_LEVELS, Cpu
from vbuild.index_client.configuration import Indexes
from vbuild.recipe.compiling import FlagRules, OwnFlags
from vbuild.recipe.model import BuildSettings
from vbuild.recipe.target import Target
from vbuild.toolchain.interpreter import Interpreter

PROJECTS: dict[BuildBackend, Callable[[Path], Path]] = {
    BuildBackend.SETUPTOOLS: setuptools_project,
    BuildBackend.SCIKIT_BUILD_CORE: cmake_project,
    BuildBackend.MESON_PYTHON: meson_project,
    BuildBackend.MATURIN: maturin_project,
}
BACKENDS = [
    pytest.param(backend, marks=needs("cargo", "rustc") if backend is BuildBackend.MATURIN else ())
    for backend in PROJECTS
]
REGISTERS = {"v1": "xmm", "v2": "xmm", "v3": "ymm", "v4": "zmm"}

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="levels are those of x86-64")


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Environments:
    return Environments(tmp_path_factory.mktemp("environments"), Indexes.configured().environment)


def built(
    project: Path,
    level: str,
    folder: Path,
    environments: Environments,
    settings: BuildSettings | None = None,
    **env: str,
) -> Built:
    target = Target(label=level, python="", cpu=Cpu.known("x86_64", level), env=tuple(env.items()))
    job = build_job(project, target, settings or BuildSettings())
    return build_wheel(job, project, folder / "work", log=folder / "build.log", environments=environments)


def library(wheel: Path, folder: Path) -> Path:
    """The one shared library of *wheel*."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".so"))
        return Path(archive.extract(name, folder))


def output(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def kernel_of(binary: Path) -> str:
    """The instructions of the function all projects have."""
    return output("objdump", "-d", "--disassemble=kernel", binary)


@pytest.mark.sampled(1)
@pytest.mark.network
@pytest.mark.parametrize("level", X86_64_LEVELS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_builds_every_level(
    backend: BuildBackend, level: str, environments: Environments, tmp_path: Path
) -> None:
    project = PROJECTS[backend](tmp_path / "source")
    result = built(project, level, tmp_path, environments)
    binary = library(result.wheel, tmp_path)
    code = kernel_of(binary)
    assert max(re.findall(r"%([xyz]mm)", code)) == REGISTERS[level]
    assert bool(re.search(r"\tv[a-z]+p[sd]", code)) == (level in {"v3", "v4"})
    notes = output("readelf", "-n", "-d", binary)
    # Rust links with lld, which does not know the mark
    assert ("x86 ISA needed: x86-64-" in notes) == (level != "v1" and backend is not BuildBackend.MATURIN)
    assert "RPATH" not in notes
    assert "RUNPATH" not in notes
    assert str(tmp_path).encode() not in binary.read_bytes()
    assert result.wheel.name.startswith("demo-1.0")
    if backend is not BuildBackend.MATURIN:  # whose flag is in cargo's own configuration
        assert {file for change in result.overrides for file in change.sources} == {"module.c", "src/kernel.c"}
        assert all("-march=native" in change.removed for change in result.overrides)
    else:
        assert {(change.program, change.sources) for change in result.overrides} == {
            ("rustc-launcher", ("src/lib.rs",))
        }


@pytest.mark.sampled(1)
@pytest.mark.network
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_same_build_gives_the_same_bytes(backend: BuildBackend, environments: Environments, tmp_path: Path) -> None:
    wheels, libraries = [], []
    for name in ("one", "another"):
        project = PROJECTS[backend](tmp_path / name / "source")
        wheels.append(built(project, "v3", tmp_path / name, environments).wheel)
        libraries.append(library(wheels[-1], tmp_path / name))
    assert libraries[0].read_bytes() == libraries[1].read_bytes()
    if backend is not BuildBackend.MATURIN:  # whose software bill of materials names the folder of the source
        assert wheels[0].read_bytes() == wheels[1].read_bytes()


@pytest.mark.nightly
@pytest.mark.network
def test_what_a_cmake_project_may_not_have_it_is_told_not_to_have(environments: Environments, tmp_path: Path) -> None:
    options = """
check_c_compiler_flag(-mavx2 HAS_AVX2)
check_c_compiler_flag(-msse4.2 HAS_SSE42)
check_c_compiler_flag(-Wall HAS_WALL)
message(STATUS "answers: ${HAS_AVX2} ${HAS_SSE42} ${HAS_WALL}")
"""
    project = cmake_project(tmp_path / "source", options=options)
    result = built(project, "v2", tmp_path, environments, BuildSettings(flags=FlagRules(OwnFlags.STRIP)))
    assert "answers:  1 1" in (tmp_path / "build.log").read_text(encoding="utf-8")
    assert [change.refused for change in result.overrides] == [("-mavx2",)]


@pytest.mark.network
def test_the_recipes_settings_arrive_and_its_commands_run_in_the_tree(
    environments: Environments, tmp_path: Path
) -> None:
    project = setuptools_project(tmp_path / "source", flags=())
    settings = BuildSettings(
        before_build=("echo '#error from before-build' > src/added.h; cp src/added.h src/kernel.c",)
    )
    with pytest.raises(BuildError) as caught:
        built(project, "v3", tmp_path, environments, settings, CFLAGS="-DFROM_RECIPE")
    assert "error: #error from before-build" in str(caught.value)
    assert "-DFROM_RECIPE -march=x86-64-v3" in (tmp_path / "build.log").read_text(encoding="utf-8")


@pytest.mark.network
def test_a_project_that_does_not_compile_names_its_log_and_shows_its_end(
    environments: Environments, tmp_path: Path
) -> None:
    project = setuptools_project(tmp_path / "source", kernel="int kernel(float *a) { return 1 }")
    with pytest.raises(BuildError) as caught:
        built(project, "v3", tmp_path, environments)
    first, then, *rest = str(caught.value).splitlines()
    assert first.startswith("src/kernel.c:1:32: error: expected ")
    assert then == f"build_wheel failed with status 1; its log is {tmp_path / 'build.log'}, which ends:"
    assert any("expected" in line and "kernel.c:1" in line for line in rest)


@pytest.mark.nightly
@pytest.mark.network
def test_sources_that_need_the_building_machine_are_told_that_no_key_helps(
    environments: Environments, tmp_path: Path
) -> None:
    kernel = KERNEL + "#include <immintrin.h>\n__m256i twice(__m256i x) { return _mm256_add_epi32(x, x); }\n"
    project = setuptools_project(tmp_path / "source", flags=("-march=native",), kernel=kernel)
    with pytest.raises(
        BuildError, match=r"Its -march=native is for the building machine, and goes in any case"
    ) as caught:
        built(project, "v2", tmp_path, environments)
    assert "keep-flags" not in str(caught.value)


@pytest.mark.network
def test_a_build_that_lacks_a_module_ends_with_the_line_that_brings_it(
    environments: Environments, tmp_path: Path
) -> None:
    project = tree(tmp_path / "source", {"setup.py": "import not_there_at_all.core\n"})
    with pytest.raises(BuildError) as caught:
        built(project, "v2", tmp_path, environments)
    assert str(caught.value).splitlines()[-1] == (
        "Name the package that has the module; check first whose it is, as anyone can register a free name on the "
        "package index: build.requires = ['not-there-at-all']"
    )


@pytest.mark.network
def test_a_missing_cxx_compiler_is_named_where_it_was_missed(environments: Environments, tmp_path: Path) -> None:
    setup = (
        'from setuptools import Extension, setup\nsetup(name="demo", ext_modules=[Extension("demo", ["demo.cc"])])\n'
    )
    project = tree(tmp_path / "source", {"setup.py": setup, "demo.cc": "int x;\n"})
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "gcc").symlink_to(shutil.which("gcc") or "gcc")
    with pytest.raises(BuildError) as caught:
        built(project, "v2", tmp_path, environments, PATH=str(tmp_path / "bin"))
    assert str(caught.value).splitlines()[-1] == "There is no C++ compiler on PATH; install g++ or clang"


def backend_project(folder: Path, body: str) -> Path:
    """A project that is its own backend, so that nothing has to be installed."""
    system = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    return tree(
        folder, {"pyproject.toml": system, "backend.py": f"def build_wheel(out, settings=None, meta=None):\n{body}"}
    )


FAILURES = {
    "no wheel": (
        "    return 'demo-1.0-py3-none-any.whl'",
        "the backend left no wheel, expected demo-1.0-py3",
    ),
    "two wheels": (
        "    for v in '12': open(f'{out}/demo-{v}-py3-none-any.whl', 'w')\n    return 'demo-1-py3-none-any.whl'",
        "the backend left demo-1-py3-none-any.whl, demo-2-py3-none-any.whl, expected demo-1-",
    ),
    "a label": (
        "    n = 'demo-1-py3-none-any-x86_64_v3.whl'\n    open(f'{out}/{n}', 'w')\n    return n",
        "demo-1-py3-none-any-x86_64_v3.whl has a variant label, 'x86_64_v3'; expected a plain wheel",
    ),
    "an exception": ("    raise ValueError('no luck')", "build_wheel failed with status 1; its log is "),
    "an exit": ("    import os; os._exit(7)", "build_wheel failed with status 7; its log is "),
}


@pytest.mark.parametrize(("body", "message"), FAILURES.values(), ids=FAILURES)
@pytest.mark.parametrize(
    "settings", [BuildSettings(), BuildSettings(isolation=False)], ids=["isolated", "not isolated"]
)
def test_a_backend_that_does_not_give_one_plain_wheel_is_an_error(
    body: str, message: str, settings: BuildSettings, tmp_path: Path
) -> None:
    environments = Environments(tmp_path / "environments", dict)
    project = backend_project(tmp_path / "source", body)
    with pytest.raises(BuildError) as caught:
        built(project, "v2", tmp_path, environments, settings)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("pyproject", "message"),
    [
        ("[build-system", "pyproject.toml: not TOML"),
        ("[build-system]\nbuild-backend = 7", "build-system.build-backend: expected a string, got 7"),
        (
            "[build-system]\nrequires = []\nbuild-backend = 'nowhere'",
            "build backend: Backend 'nowhere' is not available.",
        ),
        ("[build-system]\nbuild-backend = 'x'", "not a project that can be built: Failed to validate `build-system`"),
    ],
)
def test_a_project_that_names_no_usable_backend_is_refused(pyproject: str, message: str, tmp_path: Path) -> None:
    project = tree(tmp_path / "source", {"pyproject.toml": pyproject})
    with pytest.raises(VbuildError) as caught:
        built(project, "v2", tmp_path, Environments(tmp_path / "environments", dict))
    assert message in str(caught.value)


def test_a_later_run_takes_an_environment_as_it_was_made_and_no_other(tmp_path: Path) -> None:
    python = Interpreter.named(sys.executable, dict(os.environ))

    def begun() -> tuple[Environments, Path]:
        cache = Cache.of(Part.ENVIRONMENTS, tmp_path / "kept")
        run = Environments(tmp_path / "own", Indexes.configured().environment, cache=cache)
        return run, run.having(["packaging"], python).python.parents[1]

    run, folder = begun()
    [module] = folder.glob("lib/python*/site-packages/packaging/version.py")
    assert module.stat().st_nlink == 1  # what is done to it is not done to uv's cache
    subprocess.run([folder / "bin/python", "-c", "import packaging.version"], check=True)  # which writes __pycache__
    run.settle()
    before, text = module.stat(), module.read_text()
    assert begun()[1] == folder
    assert module.stat() == before
    module.write_text(f"{text}# changed")
    begun()
    assert module.read_text() == text
    (folder / "more").touch()  # as a package may write a cache, while another build is at work here
    run.settle()
    assert begun()[1] == folder
    assert (folder / "more").exists()
    module.unlink()
    run.settle()
    assert not folder.exists()


@pytest.mark.nightly
def test_scripts_of_an_environment_run_wherever_its_cache_was_reached_from_or_moved_to(tmp_path: Path) -> None:
    python = Interpreter.named(sys.executable, dict(os.environ))

    def said(cache: Path) -> str:
        kept = Cache.of(Part.ENVIRONMENTS, cache)
        run = Environments(tmp_path / "own", Indexes.configured().environment, cache=kept)
        return output(run.having(["meson"], python).scripts / "meson", "--version")

    real, link, moved = tmp_path / "real", tmp_path / "link", tmp_path / "moved"
    real.mkdir()
    link.symlink_to(real)
    version = said(link)
    link.unlink()
    assert said(real) == version
    real.rename(moved)
    assert said(moved) == version


def test_a_requirement_that_cannot_be_installed_fails_every_build_that_needs_it(tmp_path: Path) -> None:
    environments = Environments(tmp_path / "environments", lambda: {"UV_NO_INDEX": "1"})
    for name in ("one", "another"):
        project = backend_project(tmp_path / name, "    pass")
        with pytest.raises(BuildError) as caught:
            built(project, "v2", tmp_path, environments, BuildSettings(requires=("no-such-project-anywhere",)))
        (tmp_path / "work").rename(tmp_path / f"work-{name}")
        assert str(caught.value).startswith("build environment: uv failed with status 1; its log is ")
        assert "no-such-project-anywhere" in str(caught.value)
    log = next((tmp_path / "environments").glob("*.log")).read_text(encoding="utf-8")
    assert log.count("pip install") == 1


@pytest.mark.parametrize("file", ["pyproject.toml", "PKG-INFO"])
def test_a_python_that_the_project_does_not_take_is_found_out_before_anything_is_built(
    file: str, tmp_path: Path
) -> None:
    texts = {"pyproject.toml": '[project]\nrequires-python = ">=3.99"\n', "PKG-INFO": "Requires-Python: >=3.99\n"}
    project = tree(setuptools_project(tmp_path / "source"), {file: texts[file]})
    target = Target(label="v2", python="", cpu=Cpu.known("x86_64", "v2"))
    with pytest.raises(BuildError, match=r"Python 3\.\d+\.\d+, and the project wants >=3\.99; "):
        build_job(project, target, BuildSettings())
