"""`vbuild init --check`: what a build of a project would meet on this machine, without building it.

Python            its headers, and whether the project takes it
compilers         for each language that the project's sources are in
requirements      whether the package index has what the build requires, for this Python
headers           of the system, asked of the preprocessor (``__has_include``), with the Debian package to install
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path

from msgspec import Struct
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from vbuild.build.given import AskedAxes, given
from vbuild.build.headers import debian_package
from vbuild.build.source import fetched, unpacked
from vbuild.build.survey import ProjectSurvey, surveyed
from vbuild.config.requirements import requirement_lines
from vbuild.config.table import Table
from vbuild.errors import BuildError
from vbuild.index_client.configuration import Indexes, compile_command, unbuilt
from vbuild.toolchain.compilers import INSTALL_C, Compilers, found_rust
from vbuild.toolchain.interpreter import Interpreter

_SHOWN = 8


class Weight(StrEnum):
    """What an obstacle means: the build fails, it may, or there is something to know."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Obstacle(Struct, frozen=True):
    """Something that a build would meet: how much it weighs, what it is, and what to do."""

    weight: Weight
    what: str

    def __str__(self) -> str:
        return f"{self.weight}: {self.what}"


class Prospect(Struct, frozen=True):
    """What a build of a project would meet; *notes* are on what was chosen for the user."""

    name: str
    obstacles: tuple[Obstacle, ...]
    notes: tuple[str, ...] = ()

    @property
    def errors(self) -> int:
        """How many of them make a build fail."""
        return sum(one.weight is Weight.ERROR for one in self.obstacles)

    def data(self) -> dict[str, object]:
        """It as JSON holds it."""
        found = [{"weight": str(one.weight), "what": one.what} for one in self.obstacles]
        return {"name": self.name, "obstacles": found, "notes": list(self.notes)}


def prospect(source: str | Path, axes: AskedAxes) -> Prospect:
    """What a build of *source* along *axes* would meet on this machine; nothing is built or written."""
    found = given(source, axes)
    recipe = found.recipe
    with tempfile.TemporaryDirectory() as folder:
        where = recipe.source.subdirectory
        project = unpacked(fetched(recipe.source), Path(folder), subdirectory=where, patches=recipe.build.patches)
        survey = surveyed(project, recipe.name)
        obstacles = [
            one for python in found.pythons or recipe.matrix.pythons for one in _prechecked(project, survey, python)
        ]
    return Prospect(recipe.name, tuple(dict.fromkeys(obstacles)), found.notes)


def _prechecked(project: Path, survey: ProjectSurvey, python: str) -> Iterator[Obstacle]:
    """What a build of the tree *project*, which *survey* describes, would meet with *python*, a version or a path."""
    if not survey.is_compiled:
        yield Obstacle(Weight.ERROR, "no source that a compiler takes: such a project has one wheel for all machines")
        return
    environment = dict(os.environ)
    try:
        interpreter = Interpreter.found(python, environment)
    except BuildError as error:
        yield Obstacle(Weight.ERROR, str(error))
        return
    yield from _of_python(survey, interpreter)
    try:
        compilers = Compilers.sought(interpreter, environment)
    except BuildError as error:
        yield Obstacle(Weight.ERROR, str(error))
        return
    yield from _of_compilers(survey, compilers)
    yield from _of_requirements(project, interpreter)
    if compilers:
        yield from _of_headers(survey, compilers, interpreter)
    yield from _of_own_code(survey)


def _of_python(survey: ProjectSurvey, interpreter: Interpreter) -> Iterator[Obstacle]:
    version = ".".join(map(str, interpreter.version))
    try:
        wanted = SpecifierSet(survey.requires_python)
    except InvalidSpecifier:
        yield Obstacle(Weight.WARNING, f"requires-python: {survey.requires_python!r} is not a specifier")
    else:
        if not wanted.contains(version, prereleases=True):
            yield Obstacle(Weight.ERROR, f"Python {version}: the project wants {wanted}; --python takes another")
    if not (interpreter.include / "Python.h").is_file() and not {"Rust"}.issuperset(survey.languages):
        what = f"Python {version}: no Python.h in {interpreter.include}; install it: apt-get install python3-dev"
        yield Obstacle(Weight.ERROR, what)


def _of_compilers(survey: ProjectSurvey, compilers: Compilers | None) -> Iterator[Obstacle]:
    if compilers is None and {"C", "C++", "Cython"} & set(survey.languages):
        yield Obstacle(Weight.NOTE, f"no C compiler on PATH: zig of the package index compiles; or {INSTALL_C}")
    if compilers and compilers.cxx is None and "C++" in survey.languages:
        yield Obstacle(Weight.ERROR, "no C++ compiler on PATH; install g++ or clang")
    if "Fortran" in survey.languages and not shutil.which("gfortran"):
        what = "sources in Fortran, and no gfortran on PATH; if they are compiled: apt-get install gfortran"
        yield Obstacle(Weight.WARNING, what)
    if "Rust" in survey.languages and found_rust(os.environ) is None:
        what = "sources in Rust, and no rustc and cargo on PATH; install it with rustup, or apt-get install cargo"
        yield Obstacle(Weight.ERROR, what)


def _of_requirements(project: Path, interpreter: Interpreter) -> Iterator[Obstacle]:
    file = project / "pyproject.toml"
    system = Table.load(file).raw("build-system") if file.is_file() else None
    listed = system.get("requires", []) if isinstance(system, dict) else ["setuptools"]
    try:
        lines = requirement_lines(map(str, listed), BuildError)
    except BuildError as error:
        yield Obstacle(Weight.ERROR, f"build-system.requires: {error}")
        return
    with tempfile.TemporaryDirectory() as text:
        wanted = Path(text, "requires.in")
        wanted.write_text(lines, encoding="utf-8")
        command = compile_command(interpreter.path, [wanted], Path(text, "requires.txt"), builds=False)
        environment = {**os.environ, **Indexes.configured().environment()}
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode and (name := unbuilt(ran.stderr)):
        what = f"{name} has no wheel for this Python: the build makes one, and runs its code for that"
        yield Obstacle(Weight.WARNING, f"build-system.requires: {what}")
    elif ran.returncode:
        reason = " ".join(word for word in ran.stderr.split() if word.isascii())
        yield Obstacle(Weight.ERROR, f"build-system.requires: {reason}")


def _of_headers(survey: ProjectSurvey, compilers: Compilers, interpreter: Interpreter) -> Iterator[Obstacle]:
    missing = {header: package for header in survey.headers if (package := debian_package(header))}
    lines = [f"#if !__has_include(<{header}>)\nvbuild_missing {header}\n#endif" for header in missing]
    command = [*(compilers.cxx or compilers.c).split(), "-E", "-P", "-x", "c++", f"-I{interpreter.include}", "-"]
    ran = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=False)
    absent = [line.split()[1] for line in ran.stdout.splitlines() if line.startswith("vbuild_missing ")]
    for package in dict.fromkeys(missing[header] for header in absent):
        names = ", ".join(header for header in absent if missing[header] == package)
        what = f"{names}: not found; if the project does not bring it: apt-get install {package}"
        yield Obstacle(Weight.WARNING, what)


def _of_own_code(survey: ProjectSurvey) -> Iterator[Obstacle]:
    if survey.native:
        where = _listed(survey.native)
        yield Obstacle(Weight.NOTE, f"-march=native in {where}: taken out, since wheels are for a level")
    if survey.dispatch:
        where = _listed(survey.dispatch)
        yield Obstacle(Weight.NOTE, f"asks the CPU at run time: {where}; its own flags for single files are kept")
    if survey.has_cuda:
        own = f"; its own list of architectures: {', '.join(survey.archs)}" if survey.archs else ""
        yield Obstacle(Weight.NOTE, f"CUDA code{own}; --cuda 80,90 compiles it")
    for name, value in survey.switches:
        what = f"may fetch a finished wheel, or compile nothing, unless it is set: build.env = {{ {name} = {value!r} }}"
        yield Obstacle(Weight.NOTE, f"{name}: {what}")


def _listed(names: Iterable[str]) -> str:
    shown = list(names)
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return ", ".join(shown[:_SHOWN]) + more
