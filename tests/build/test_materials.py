"""What a build was seen to take: the compilers that ran, and the packages that were installed for it."""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.build.test_frontend import backend_project, built
from tests.build.test_wrappers import COMPILERS, call, plan, wrappers
from tests.factories.projects import KERNEL, tree
from tests.factories.sources import sdist
from tests.factories.tools import needs
from tests.factories.wheels import wheel
from vbuild.build.environment import Environments
from vbuild.build.wrappers import BuildFolders, CompilerWrappers, install_wrappers, nvcc_of
from vbuild.files.cache import Cache, Part
from vbuild.files.hashing import sha256_of
from vbuild.hardware.driver import Dotted
from vbuild.recipe.lock import Lock, LockedRequirement
from vbuild.recipe.model import BuildSettings
from vbuild.sbom.model import Material, MaterialRole, package_url
from vbuild.toolchain.compilers import Compilers
from vbuild.toolchain.interpreter import Interpreter
from vbuild.toolchain.nvcc_commands import Command, NvccOutput
from vbuild.toolchain.toolkit import Toolkit

PYTHON = Interpreter.at(Path(sys.executable), os.environ)
# a package with a backend of its own, which makes a wheel without anything else
BREAD = {
    "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "own"\nbackend-path = ["."]\n',
    "PKG-INFO": "Metadata-Version: 2.1\nName: bread\nVersion: 1.0\n",
    "own.py": """
import zipfile
def build_wheel(out, settings=None, meta=None):
    tag = "Root-Is-Purelib: true\\nTag: py3-none-any\\n"
    with zipfile.ZipFile(f"{out}/bread-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("bread-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: bread\\nVersion: 1.0\\n")
        archive.writestr("bread-1.0.dist-info/WHEEL", f"Wheel-Version: 1.0\\n{tag}")
        archive.writestr("bread-1.0.dist-info/RECORD", "")
    return "bread-1.0-py3-none-any.whl"
""",
}

pytestmark = [needs("gcc"), pytest.mark.skipif(os.uname().machine != "x86_64", reason="levels are those of x86-64")]


def compiler(name: str, file: str | None = None) -> Material:
    """The compiler *name*, which is the *file* of that name on PATH, by what it says itself."""
    version = subprocess.check_output([file or name, "-dumpfullversion", "-dumpversion"], text=True).strip()
    return Material(MaterialRole.COMPILER, name, version, sha256=sha256_of(Path(shutil.which(file or name) or "")))


def ran(made: CompilerWrappers) -> tuple[Material, ...]:
    return made.compilers(COMPILERS, os.environ["PATH"])


@needs("g++", "cc")
def test_compilers_are_those_that_compiled_or_linked_and_not_what_was_only_asked_or_tried(tmp_path: Path) -> None:
    made = wrappers(tmp_path, "v2")
    assert call(made, "gcc", "--version").returncode == 0
    tree(made.source, {"conftest.c": "int main(void) { return 0; }", "CMakeFiles/CMakeScratch/try.cpp": "int f();"})
    assert call(made, "gcc", "conftest.c", "-o", "conftest").returncode == 0
    assert call(made, "gcc", "-c", "conftest.c", "-o", "conftest.o").returncode == 0
    assert call(made, "gcc", "conftest.o", "-o", "conftest").returncode == 0
    assert call(made, "g++", "-c", "CMakeFiles/CMakeScratch/try.cpp").returncode == 0
    assert ran(made) == ()
    assert call(made, "cc", "-c", "kernel.c", "-o", "kernel.o").returncode == 0
    assert ran(made) == (compiler("gcc", "cc"),)
    assert call(made, "g++", "-shared", "kernel.o", "-o", "kernel.so").returncode == 0
    assert {*ran(made)} == {compiler("gcc", "cc"), compiler("g++")}


def test_a_compiler_behind_a_link_to_a_cache_is_the_compiler(tmp_path: Path) -> None:
    before = os.environ["PATH"]
    links = tree(tmp_path / "links", {"ccache": f'#!/bin/sh\nPATH="{before}" exec gcc "$@"\n'})
    (links / "ccache").chmod(0o755)
    (links / "gcc").symlink_to("ccache")
    environment = {**os.environ, "CC": "gcc", "PATH": f"{links}:{before}"}
    compilers = Compilers.of(PYTHON, environment)
    assert dict(compilers.programs)["gcc"] == (str(links / "gcc"),)
    source = tree(tmp_path / "source", {"kernel.c": KERNEL})
    made = install_wrappers(
        plan("v2").wrapper_rules, compilers, tmp_path / "launchers", BuildFolders(source), environment={}
    )
    command = ["gcc", "-c", "kernel.c", "-o", "kernel.o"]
    subprocess.run(command, cwd=source, env=environment | made.environment(environment), check=True)
    assert made.compilers(compilers, environment["PATH"]) == (compiler("gcc"),)


def test_nvcc_is_named_if_it_compiled_something(tmp_path: Path) -> None:
    nvcc = tree(tmp_path, {"bin/nvcc": "nvcc"}) / "bin" / "nvcc"
    toolkit = Toolkit(Dotted(13, 0), tmp_path, "12" * 32)

    def commands(*sources: str) -> list[Command]:
        return [Command((file,), NvccOutput.OBJECT, (), "", is_ruled=False, theirs=(), ours=()) for file in sources]

    tried = commands("build/CMakeFiles/4.0/CMakeCUDACompilerId.cu", "CMakeFiles/CMakeScratch/main.cu")
    assert nvcc_of(toolkit, []) == nvcc_of(toolkit, tried) == nvcc_of(None, commands("a.cu")) == ()
    expected = Material(MaterialRole.COMPILER, "nvcc", "13.0", sha256=sha256_of(nvcc))
    assert nvcc_of(toolkit, [*tried, *commands("a.cu")]) == (expected,)


def requirement(file: Path | None = None, sha256: str | None = None) -> Material:
    purl = package_url("bread", "1.0", file=file.name) if file else None
    return Material(MaterialRole.REQUIREMENT, "bread", "1.0", purl, sha256_of(file) if file else sha256)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("is_locked", [False, True], ids=["resolved", "locked"])
@pytest.mark.parametrize("is_kept", [False, True], ids=["of this run", "of the cache"])
def test_a_package_is_the_file_of_the_index_that_was_installed(
    tmp_path: Path,
    is_locked: bool,  # noqa: FBT001 - pytest's
    is_kept: bool,  # noqa: FBT001 - pytest's
) -> None:
    files = tmp_path / "files"
    first = wheel(files, "bread-1.0-py3-none-any.whl", {"bread.py": "1"})
    best = wheel(files, "bread-1.0-py3-none-manylinux_2_17_x86_64.whl", {"bread.py": "2"})
    archive = sdist(files, BREAD, top="bread-1.0")
    cache = Cache.of(Part.ENVIRONMENTS, tmp_path / "kept") if is_kept else None

    def installed(*allowed: Path) -> tuple[Material, ...]:
        hashes = " ".join(f"--hash=sha256:{sha256_of(file)}" for file in allowed)
        packages = LockedRequirement(PYTHON.kind, ("bread",), (f"bread==1.0 {hashes}",))
        lock = Lock("1", "2", "folder", requirements=(packages,)) if is_locked else None
        for file in {first, best, archive} - {*allowed}:
            file.unlink(missing_ok=True)
        places = {"UV_DEFAULT_INDEX": tmp_path.as_uri(), "UV_FIND_LINKS": str(files)}
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        return Environments(folder, lambda: places, lock=lock, cache=cache).having(["bread"], PYTHON).materials

    assert installed(first, best, archive) == (requirement(best),)
    assert installed(first, archive) == (requirement(first),)
    assert installed(archive) == (requirement(archive),)
    assert installed(archive) == (requirement(archive),)


def test_an_environment_of_an_earlier_vbuild_that_does_not_know_its_files_is_made_again(tmp_path: Path) -> None:
    file = wheel(tmp_path / "files", "bread-1.0-py3-none-any.whl", {"bread.py": ""})
    places = {"UV_DEFAULT_INDEX": tmp_path.as_uri(), "UV_FIND_LINKS": str(file.parent)}
    cache = Cache.of(Part.ENVIRONMENTS, tmp_path / "kept")
    for _ in range(2):
        made = Environments(tmp_path / "own", lambda: places, cache=cache).having(["bread"], PYTHON)
        assert made.materials == (requirement(file),)
        folder = made.python.parents[1]
        stamp = json.loads((folder / ".vbuild-environment").read_bytes())
        del stamp["files"]["vbuild-files.json"]
        (folder / ".vbuild-environment").write_text(json.dumps(stamp))
        (folder / "vbuild-files.json").unlink()


def test_a_package_of_a_url_has_its_hash_and_is_of_no_index(tmp_path: Path) -> None:
    file = wheel(tmp_path / "files", "bread-1.0-py3-none-any.whl", {"bread.py": ""})
    asked = f"bread @ {file.as_uri()}"
    environment = Environments(tmp_path / "environments", dict).having([asked], PYTHON)
    assert environment.materials == (requirement(sha256=sha256_of(file)),)


def test_without_isolation_what_a_build_requires_is_as_it_was_there(tmp_path: Path) -> None:
    body = "    name = 'demo-1.0-py3-none-any.whl'\n    open(f'{out}/{name}', 'w')\n    return name\n"
    project = backend_project(tmp_path / "source", body)
    tree(
        project,
        {"pyproject.toml": (project / "pyproject.toml").read_text().replace("[]", '["Packaging", "nowhere"]', 1)},
    )
    settings = BuildSettings(isolation=False)
    result = built(project, "v2", tmp_path, Environments(tmp_path / "environments", dict), settings)
    version = importlib.metadata.version("packaging")
    assert result.materials == (Material(MaterialRole.REQUIREMENT, "packaging", version),)
