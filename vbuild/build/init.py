"""`vbuild init`: write a recipe for a project, or say what a build of it would meet on this machine.

vbuild init mmh3==5.3.1    mmh3.toml, with the sdist and its hash
vbuild init FOLDER         [tool.vbuild] at the end of its pyproject.toml; NAME.toml if it has only a setup.py
vbuild init --check        Python and its headers; compilers of the languages of its sources; build requirements,
                           asked of the package index; headers of the system, asked of the preprocessor
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from vbuild.build.advice import debian_package
from vbuild.build.given import AskedAxes, Given, given
from vbuild.build.job import takes
from vbuild.build.source import fetched, unpacked
from vbuild.build.survey import DraftKey, ProjectSurvey, RecipeDraft, surveyed
from vbuild.config.requirements import requirement_lines
from vbuild.errors import BuildError, RecipeError
from vbuild.files.atomic import replacing
from vbuild.files.reading import read_text
from vbuild.index_client.configuration import Indexes, compile_command, unbuilt
from vbuild.recipe.model import Recipe
from vbuild.recipe.source import Folder, Sdist
from vbuild.toolchain.compilers import INSTALL_C, Compilers, found_rust
from vbuild.toolchain.interpreter import Interpreter


class WrittenRecipe(Struct, frozen=True):
    """The file *path* with the recipe, and *text*: what was written into it."""

    path: Path
    text: str
    notes: tuple[str, ...] = ()

    def data(self) -> dict[str, object]:
        """It as JSON holds it."""
        return {"recipe": str(self.path), "text": self.text, "notes": list(self.notes)}


def init(source: str | Path, axes: AskedAxes, *, file: Path | None = None) -> WrittenRecipe:
    """Write a recipe for *source*, as in `vbuild.build.given`, along *axes*, into *file*, by default as above.

    `RecipeError`, and nothing written, if there is a recipe already.
    """
    project = given(source, axes)
    recipe = project.recipe
    if project.draft is None:
        raise RecipeError(f"{recipe.file}: has a recipe already; expected a project without [tool.vbuild]")
    if recipe.file.name == "pyproject.toml" and file is None:
        path = recipe.file
        text = project.draft.text("tool.vbuild.")
        content = f"{read_text(path).rstrip()}\n\n{text}"
    else:
        path = file or _default_file(project)
        if path.exists():
            raise RecipeError(f"{path}: is there already; remove it, or name another file with --output")
        content = text = RecipeDraft((*_source(recipe, path), *project.draft.keys)).text()
    with replacing(path) as new:
        new.write_text(content, encoding="utf-8")
    Recipe.load(path)  # what was written can be read
    return WrittenRecipe(path, text, project.notes)


def _default_file(project: Given) -> Path:
    source = project.recipe.source
    return (source.path if isinstance(source, Folder) else Path()) / f"{project.recipe.name}.toml"


def _source(recipe: Recipe, file: Path) -> tuple[DraftKey, ...]:
    """The name and the ``[source]`` of *recipe*, with paths from where *file* is."""
    keys: tuple[tuple[str, str], ...]
    match recipe.source:
        case Sdist(file=None) as sdist:
            keys = (("sdist", str(sdist)), ("sha256", sdist.sha256))
        case Sdist() as sdist:
            keys = (("path", os.path.relpath(sdist.file or "", file.parent)), ("sha256", sdist.sha256))
        case _:
            keys = (("path", os.path.relpath(str(recipe.source), file.parent)),)
    return (DraftKey("", "name", recipe.name), *(DraftKey("source", key, value) for key, value in keys))


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
        return sum(obstacle.weight is Weight.ERROR for obstacle in self.obstacles)

    def data(self) -> dict[str, object]:
        """It as JSON holds it."""
        obstacles = [{"weight": str(obstacle.weight), "what": obstacle.what} for obstacle in self.obstacles]
        return {"name": self.name, "obstacles": obstacles, "notes": list(self.notes)}


def prospect(source: str | Path, axes: AskedAxes) -> Prospect:
    """What a build of *source* along *axes* would meet on this machine; nothing is built or written."""
    project = given(source, axes)
    recipe = project.recipe
    with tempfile.TemporaryDirectory() as folder:
        subdirectory = recipe.source.subdirectory
        tree = unpacked(fetched(recipe.source), Path(folder), subdirectory=subdirectory, patches=recipe.build.patches)
        survey = surveyed(tree, recipe.name)
        pythons = project.pythons or recipe.matrix.pythons
        obstacles = dict.fromkeys(obstacle for python in pythons for obstacle in _obstacles(survey, python))
    return Prospect(recipe.name, tuple(obstacles), project.notes)


def _obstacles(survey: ProjectSurvey, python: str) -> Iterator[Obstacle]:
    """What a build of the project that *survey* describes would meet with *python*, a version or a path."""
    try:
        interpreter = Interpreter.found(python, os.environ)
        compilers = Compilers.sought(interpreter, os.environ)
    except BuildError as error:
        yield Obstacle(Weight.ERROR, str(error))
        return
    languages = set(survey.languages)
    version = ".".join(map(str, interpreter.version))
    if not takes(survey.requires_python, interpreter.version):
        what = f"Python {version}: the project wants {survey.requires_python}; --python takes another"
        yield Obstacle(Weight.ERROR, what)
    if not (interpreter.include / "Python.h").is_file() and not languages <= {"Rust"}:
        what = f"Python {version}: no Python.h in {interpreter.include}; install it: apt-get install python3-dev"
        yield Obstacle(Weight.ERROR, what)
    if compilers is None and {"C", "C++", "Cython"} & languages:
        yield Obstacle(Weight.NOTE, f"no C compiler on PATH: zig of the package index compiles; or {INSTALL_C}")
    if compilers and compilers.cxx is None and "C++" in languages:
        yield Obstacle(Weight.ERROR, "no C++ compiler on PATH; install g++ or clang")
    if "Fortran" in languages and not shutil.which("gfortran"):
        what = "sources in Fortran, and no gfortran on PATH; if they are compiled: apt-get install gfortran"
        yield Obstacle(Weight.WARNING, what)
    if "Rust" in languages and found_rust(os.environ) is None:
        what = "sources in Rust, and no rustc and cargo on PATH; install it with rustup, or apt-get install cargo"
        yield Obstacle(Weight.ERROR, what)
    yield from _of_requirements(survey, interpreter)
    if compilers:
        yield from _of_headers(survey, compilers, interpreter)


def _of_requirements(survey: ProjectSurvey, interpreter: Interpreter) -> Iterator[Obstacle]:
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder, "requires.in")
        wanted.write_text(requirement_lines(survey.lines or ("setuptools",), BuildError), encoding="utf-8")
        command = compile_command(interpreter.path, [wanted], Path(folder, "requires.txt"), builds=False)
        environment = {**os.environ, **Indexes.configured().environment()}
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode and (name := unbuilt(ran.stderr)):
        what = f"{name} has no wheel for this Python: the build makes one, and runs its code for that"
        yield Obstacle(Weight.WARNING, f"build-system.requires: {what}")
    elif ran.returncode:
        reason = " ".join(word for word in ran.stderr.split() if word.isascii())
        yield Obstacle(Weight.ERROR, f"build-system.requires: {reason}")


def _of_headers(survey: ProjectSurvey, compilers: Compilers, interpreter: Interpreter) -> Iterator[Obstacle]:
    packages = {header: package for header in survey.headers if (package := debian_package(header))}
    lines = [f"#if !__has_include(<{header}>)\nvbuild_missing {header}\n#endif" for header in packages]
    command = [*(compilers.cxx or compilers.c).split(), "-E", "-P", "-x", "c++", f"-I{interpreter.include}", "-"]
    ran = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=False)
    absent = [line.split()[1] for line in ran.stdout.splitlines() if line.startswith("vbuild_missing ")]
    for package in dict.fromkeys(packages[header] for header in absent):
        names = ", ".join(header for header in absent if packages[header] == package)
        what = f"{names}: not found; if the project does not bring it: apt-get install {package}"
        yield Obstacle(Weight.WARNING, what)
