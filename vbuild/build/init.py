"""What stands after `vbuild matrix` or `vbuild init` -> the recipe that is built, or written.

    recipes/annoy.toml         a recipe
    FOLDER                     a project, with or without [tool.vbuild]
    mmh3-5.3.1.tar.gz          an sdist
    mmh3   mmh3==5.3.1         the newest sdist of a package index that fits

``--cpu``, ``--cuda`` and ``--python`` replace axes of ``[matrix]``.

    vbuild init mmh3==5.3.1    writes mmh3.toml, with the sdist and its hash
    vbuild init FOLDER         [tool.vbuild] at the end of its pyproject.toml; NAME.toml if it has only a setup.py
    vbuild init --check        says what is missing: Python and its headers, compilers, build requirements

A recipe that exists is never touched.
"""

import dataclasses
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from packaging.requirements import InvalidRequirement, Requirement

from vbuild.build.environment import resolved_lines
from vbuild.build.job import takes_python
from vbuild.build.source import fetched_source, unpacked
from vbuild.build.survey import DraftKey, ProjectSurvey, RecipeDraft, drafted, surveyed
from vbuild.config.requirements import is_path, requirement_lines
from vbuild.config.table import Table
from vbuild.errors import BuildError, FetchError, HardwareError, RecipeError, at
from vbuild.files.atomic import replacing
from vbuild.files.reading import read_text
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.driver import Dotted
from vbuild.hardware.gpu import GpuList
from vbuild.index_client.configuration import Indexes, compile_command, unbuilt
from vbuild.index_client.located import ListedFile
from vbuild.recipe.matrix import Plain
from vbuild.recipe.model import Recipe
from vbuild.recipe.source import PROJECT_FILES, Folder, Sdist, project_file, project_name, sdist_file
from vbuild.recipe.spelling import baseline
from vbuild.toolchain.compilers import INSTALL_C, Compilers, found_rust
from vbuild.toolchain.interpreter import Interpreter
from vbuild.toolchain.toolkit import installed, releases

_DEFAULTS = {"x86_64": "x86-64-v3", "aarch64": "armv8.2-a"}
_RECIPE = ".toml"
_WHEEL = ".whl"
_ARCHIVES = (".zip", ".tgz", ".tar", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tar.lzma")
_AXES = frozenset({"cpu", "cuda", "requires", "axes"})
_SHOWN = 5
# packages with the version of the toolkit; cuda-toolkit requires the others since CUDA 13
_TOOLKITS = frozenset({"cuda-toolkit", "nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime-cu11"})
_SERIES = re.compile(r"\d+\.\d+")


class AskedAxes(Struct, frozen=True):
    """Axes that replace those of a recipe; *is_one_wheel*: all CPU levels go into the plain wheel."""

    cpus: tuple[Cpu, ...] = ()
    gpus: GpuList | None = None
    toolkits: tuple[Dotted, ...] = ()
    pythons: tuple[str, ...] = ()
    is_one_wheel: bool = False

    def keys(self) -> dict[str, Any]:
        if self.gpus and len(self.toolkits) > 1:
            raise RecipeError("--toolkit: several; expected one with --cuda, or none for code without kernels")
        keys: dict[str, Any] = {"plain": Plain.HWCAPS.value} if self.is_one_wheel else {}
        if self.cpus:
            keys["cpu"] = [str(cpu) for cpu in self.cpus]
        if self.gpus:
            groups = {
                f"sm{device.number}": [str(gpu) for gpu in self.gpus if gpu.device == device]
                for device in self.gpus.devices
            }
            version = self.toolkits[0] if self.toolkits else fitting_toolkit(self.gpus)
            keys["cuda"] = [{"toolkit": str(version), "gpus": groups}]
        elif self.toolkits:
            keys["cuda"] = [{"toolkit": str(version)} for version in self.toolkits]
        return keys


class ProjectRecipe(Struct, frozen=True):
    """The *recipe* of a source, with *notes* on what was chosen for the user.

    Only some *pythons* of it may be asked for. A source without a recipe has a *draft*.
    """

    recipe: Recipe
    notes: tuple[str, ...] = ()
    pythons: tuple[str, ...] = ()
    draft: RecipeDraft | None = None


def project_recipe(source: str | Path, axes: AskedAxes, *, indexes: Indexes | None = None) -> ProjectRecipe:
    """The recipe for *source*, a path or the name of a project on *indexes*, along *axes*."""
    path = Path(checked_source(str(source))).expanduser()
    if path.is_dir() or path.name.endswith(_RECIPE) or path.name in PROJECT_FILES:
        return _recipe_of_files(project_file(path) if path.is_dir() else path, axes)
    notes: tuple[str, ...] = ()
    is_pure = True
    if path.exists():
        sdist = _archive(path)
    else:
        path = Path(source)
        sdist, notes, is_pure = _newest(_requirement(str(source)), indexes or Indexes.configured())
    with tempfile.TemporaryDirectory() as folder:
        survey = surveyed(unpacked(fetched_source(sdist, indexes=indexes), Path(folder)), sdist.name)
    if is_pure:
        _check_compiled(survey, sdist.name)
    _check_cuda(survey, axes, sdist.name)
    matrix, chosen = _matrix_or_default(axes, survey)
    draft = drafted(survey, matrix)
    notes = (*notes, *chosen, *_recipe_notes(survey, matrix))
    recipe = _with_guesses(Recipe.of_sdist(sdist, path, draft.values()), survey)
    return ProjectRecipe(recipe, notes, draft=draft)


def checked_source(source: str) -> str:
    """*source*; `RecipeError` if it is empty, as an unset variable is: "" would mean this folder."""
    if not source.strip():
        raise RecipeError("no source is named; expected a recipe, a folder, an sdist, or a name, as in mmh3==5.3.1")
    return source


def _recipe_of_files(path: Path, axes: AskedAxes) -> ProjectRecipe:
    table, is_drafted = _recipe_table(path)
    raw = table.raw("matrix")
    matrix = raw if isinstance(raw, dict) else {}
    has_axes = bool(matrix.keys() & _AXES) or "variant" in table
    survey = None
    if is_drafted or (axes.gpus and path.name in PROJECT_FILES):
        with at(path):
            survey = surveyed(path.parent, project_name(path.parent) or path.parent.name)
            _check_cuda(survey, axes, path.parent.name)
    keys, notes = _matrix_keys(axes, survey) if has_axes else _matrix_or_default(axes, survey)
    draft = None
    if is_drafted and survey:
        draft, notes = drafted(survey, keys), (*notes, *_recipe_notes(survey, keys))
    drafted_keys = draft.values() if draft else {"matrix": keys} if keys else {}
    chooses = bool(axes.pythons) and "python" in matrix
    if axes.pythons and not chooses:
        drafted_keys["matrix"] = {**drafted_keys.get("matrix", {}), **_pythons(axes)}
    recipe = Recipe.load(path, drafted_keys)
    if draft and survey:
        _check_compiled(survey, recipe.name)
        recipe = _with_guesses(recipe, survey)
    return ProjectRecipe(recipe, notes, axes.pythons if chooses else (), draft)


def _recipe_table(path: Path) -> tuple[Table, bool]:
    """Our table in *path*, with a project's ``[variant]``; and whether a project has neither."""
    table = Table({}) if path.name == "setup.py" else Table.load(path)
    if path.name not in PROJECT_FILES:
        return table, False
    with at(path):
        own = table.handed("tool", optional=True)
        ours = own.handed("vbuild", optional=True)
        variant = {"variant": table.raw("variant")} if "variant" in table else {}
        return ours.with_values((), variant), "vbuild" not in own and not variant


def _matrix_or_default(axes: AskedAxes, survey: ProjectSurvey | None) -> tuple[dict[str, Any], tuple[str, ...]]:
    keys, notes = _matrix_keys(axes, survey)
    if keys.keys() & _AXES:
        return keys | _pythons(axes), notes
    level = _DEFAULTS[baseline().machine]
    why = f"no axis asked for: built for {level}, and plain; --cpu v2,v3,v4 and --cuda 80,90 take others"
    return {**keys, "cpu": [level], **_pythons(axes)}, (why,)


def _matrix_keys(axes: AskedAxes, survey: ProjectSurvey | None) -> tuple[dict[str, Any], tuple[str, ...]]:
    notes: tuple[str, ...] = ()
    if axes.gpus and not axes.toolkits:
        of_requirements = _cuda_of_requirements((*survey.lines, *survey.imported), axes.pythons) if survey else None
        version, why = fitting_toolkit(axes.gpus), "compiles for these GPUs"
        if of_requirements:
            version, why = of_requirements[0], f"which {of_requirements[1]} of the build requirements is made for"
        axes = replace(axes, toolkits=(version,))
        notes = (
            f"CUDA {version}{',' if of_requirements else ''} {why}; matrix.cuda[].toolkit, or --toolkit, takes another",
        )
    if axes.gpus and survey and survey.only_calls_cuda:
        axes = replace(axes, gpus=None)
        notes = (*notes, "it calls CUDA's libraries and has no kernels: one wheel for all GPUs")
    return axes.keys(), notes


def _cuda_of_requirements(lines: Collection[str], pythons: Sequence[str]) -> tuple[Dotted, str] | None:
    """The CUDA toolkit that *lines* require, and the package that says so."""
    if not lines:
        return None
    with suppress(BuildError), tempfile.TemporaryDirectory() as folder:  # the build says what cannot be installed
        python = Interpreter.named(pythons[0] if pythons else sys.executable, os.environ)
        variables = {**os.environ, **Indexes.configured().environment()}
        for line in resolved_lines(lines, python, log=Path(folder, "log"), environment=variables, builds=False):
            project, _, version = line.split()[0].partition("==")
            if project in _TOOLKITS and (match := _SERIES.match(version)):
                return Dotted.parse(match[0]), f"{project} {version}"
    return None


def _check_compiled(survey: ProjectSurvey, name: str) -> None:
    if not survey.is_compiled:
        raise RecipeError(
            f"{name}: no source that a compiler takes, so one wheel serves all machines; expected a project with "
            "compiled code, or a recipe of yours if it fetches or makes its sources while it is built"
        )


def _check_cuda(survey: ProjectSurvey, axes: AskedAxes, name: str) -> None:
    """`RecipeError` before a toolkit is fetched for nothing."""
    if (axes.gpus or axes.toolkits) and not (survey.has_cuda or survey.has_kernels or survey.calls_cuda):
        raise RecipeError(
            f"{name}: no CUDA in its sources: no .cu file, and no include of a CUDA header; expected --cpu alone, or "
            "matrix.cuda in a recipe of yours if it fetches or makes such sources while it is built"
        )


def _with_guesses(recipe: Recipe, survey: ProjectSurvey) -> Recipe:
    return dataclasses.replace(recipe, build=replace(recipe.build, guessed=survey.imported))


def _recipe_notes(survey: ProjectSurvey, matrix: Mapping[str, Any]) -> Iterator[str]:
    if survey.has_cuda and "cuda" not in matrix:
        yield "it has CUDA code, and --cuda is not asked for"
    elif survey.only_calls_cuda and "cuda" not in matrix:
        yield "it calls CUDA's libraries; --toolkit 12.9,13.0 builds with these, a wheel for each"
    for name, value in survey.switched(has_cuda="cuda" in matrix).items():
        yield f"{name}={value} is set, so that it is built here"
    if survey.imported:
        yield f"it imports or includes {', '.join(survey.imported)} and does not require it: installed for the build"


def _pythons(axes: AskedAxes) -> dict[str, Any]:
    return {"python": list(axes.pythons)} if axes.pythons else {}


def _archive(path: Path) -> Sdist:
    if path.name.endswith(_WHEEL):
        raise RecipeError(f"{path}: a wheel, which is built already; vbuild stamp, slim and bench work on wheels")
    if not path.name.endswith(_ARCHIVES):
        raise RecipeError(f"{path}: neither a recipe (.toml) nor an sdist (.tar.gz, .zip)")
    with at(path):
        return sdist_file(path)


def fitting_toolkit(gpus: GpuList, environment: Mapping[str, str] = os.environ) -> Dotted:
    """The toolkit for all *gpus*: an installed one, or the newest of the package index."""
    for here in installed(environment):
        if _compiles(here.version, gpus) and not here.lacks():
            return here.version
    fetched = [version for version, release in releases().items() if release.compiles]
    if fitting := [version for version in fetched if _compiles(version, gpus)]:
        return max(fitting)
    oldest, newest = min(fetched), max(fetched)
    raise RecipeError(
        f"--cuda {gpus}: no installed toolkit compiles for all, and none of {oldest} to {newest} on the package index; "
        "expected CUDA_HOME of one that does, or fewer GPUs"
    )


def _compiles(version: Dotted, gpus: GpuList) -> bool:
    try:
        gpus.check_toolkit(version)
    except HardwareError:
        return False
    return True


def _requirement(text: str) -> Requirement:
    if "://" in text:
        raise RecipeError(f"{text}: a URL; expected a name on a package index, a path, or [source] git in a recipe")
    missing = f"{text}: no such file or folder"
    if is_path(text):
        raise RecipeError(missing)
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        raise RecipeError(f"{missing}, and not a project as in mmh3 or mmh3==5.3.1") from None
    if requirement.marker or requirement.url or requirement.extras:
        raise RecipeError(f"{text}: expected a name with or without versions, as in mmh3 or mmh3==5.3.1")
    return requirement


def _newest(wanted: Requirement, indexes: Indexes) -> tuple[Sdist, tuple[str, ...], bool]:
    """The newest sdist that fits *wanted*; notes; and whether no wheel of it is for a platform."""
    from vbuild.index_client.packages import files_of

    files = files_of(wanted.name, indexes=indexes)
    if not files:
        raise FetchError(f"{wanted.name}: no file or folder, and no project of this name on the package index")
    sdists = [file for file in files if not file.is_wheel and file.file.endswith(_ARCHIVES)]
    pinned = any(clause.operator in {"==", "==="} and "*" not in clause.version for clause in wanted.specifier)
    fitting = [sdist for sdist in sdists if pinned or not sdist.is_yanked]
    versions = set(wanted.specifier.filter({file.version for file in fitting}))
    # of one release the .tar.gz of PEP 625 first
    best = max(
        (file for file in fitting if file.version in versions),
        key=lambda file: (file.version, file.file.endswith(".tar.gz")),
        default=None,
    )
    if best is None:
        raise FetchError(f"{wanted}: {_why_no_sdist(sdists)}")
    if best.sha256 is None:
        raise FetchError(f"{best.file}: the index states no sha256 for it; download it, and build the file")
    sdist = Sdist(wanted.name, best.version, best.sha256)
    notes = [f"{sdist}: sha256 {sdist.sha256}"]
    if best.is_yanked:
        notes.append(f"{sdist}: yanked by its authors")
    wheels = (file.file for file in files if file.is_wheel and file.version == best.version)
    return sdist, tuple(notes), all(file.endswith("-any.whl") for file in wheels)


def _why_no_sdist(sdists: Iterable[ListedFile]) -> str:
    there = ", ".join(map(str, sorted({file.version for file in sdists}, reverse=True)[:_SHOWN]))
    if not there:
        return "has no sdist, only wheels; expected its source, as [source] git or path in a recipe"
    return f"no such sdist, or yanked; there are sdists of {there}"


class WrittenRecipe(Struct, frozen=True):
    """The *text* that was written into the file *path*."""

    path: Path
    text: str
    notes: tuple[str, ...] = ()


def init(source: str | Path, axes: AskedAxes, *, file: Path | None = None) -> WrittenRecipe:
    """Write a recipe for *source* along *axes* into *file*; never over one that is there."""
    project = project_recipe(source, axes)
    recipe = project.recipe
    if project.draft is None:
        raise RecipeError(f"{recipe.file}: has a recipe already; expected a project without [tool.vbuild]")
    if recipe.file.name == "pyproject.toml" and file is None:
        path = recipe.file
        text = project.draft.text("tool.vbuild.")
        content = f"{read_text(path).rstrip()}\n\n{text}"
    else:
        folder = recipe.source.path if isinstance(recipe.source, Folder) else Path()
        path = file or folder / f"{recipe.name}.toml"
        if path.exists():
            raise RecipeError(f"{path}: is there already; remove it, or name another file with --output")
        content = text = RecipeDraft((*_source(recipe, path), *project.draft.keys)).text()
    with replacing(path) as new:
        new.write_text(content, encoding="utf-8")
    Recipe.load(path)  # what was written can be read
    return WrittenRecipe(path, text, project.notes)


def _source(recipe: Recipe, file: Path) -> tuple[DraftKey, ...]:
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
    """The build fails, it may fail, or there is something to know."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Obstacle(Struct, frozen=True):
    weight: Weight
    what: str

    def __str__(self) -> str:
        return f"{self.weight}: {self.what}"


class Prospect(Struct, frozen=True):
    """What a build of a project would meet."""

    name: str
    obstacles: tuple[Obstacle, ...]
    notes: tuple[str, ...] = ()

    @property
    def errors(self) -> int:
        return sum(obstacle.weight is Weight.ERROR for obstacle in self.obstacles)


def prospect(source: str | Path, axes: AskedAxes) -> Prospect:
    """What a build of *source* along *axes* would meet on this machine; nothing is built or written."""
    project = project_recipe(source, axes)
    recipe = project.recipe
    with tempfile.TemporaryDirectory() as folder:
        archive, subdirectory = fetched_source(recipe.source), recipe.source.subdirectory
        tree = unpacked(archive, Path(folder), subdirectory=subdirectory, patches=recipe.build.patches)
        survey = surveyed(tree, recipe.name)
        pythons = project.pythons or recipe.matrix.pythons
        obstacles = dict.fromkeys(obstacle for python in pythons for obstacle in _obstacles(survey, python))
    return Prospect(recipe.name, tuple(obstacles), project.notes)


def _obstacles(survey: ProjectSurvey, python: str) -> Iterator[Obstacle]:
    try:
        interpreter = Interpreter.named(python, os.environ)
        compilers = Compilers.of_or_none(interpreter, os.environ)
    except BuildError as error:
        yield Obstacle(Weight.ERROR, str(error))
        return
    languages = set(survey.languages)
    version = ".".join(map(str, interpreter.version))
    if not takes_python(survey.requires_python, interpreter.version):
        problem = f"Python {version}: the project wants {survey.requires_python}; matrix.python takes another"
        yield Obstacle(Weight.ERROR, problem)
    if not (interpreter.include / "Python.h").is_file() and not languages <= {"Rust"}:
        problem = f"Python {version}: no Python.h in {interpreter.include}; install it: apt-get install python3-dev"
        yield Obstacle(Weight.ERROR, problem)
    if compilers is None and {"C", "C++", "Cython"} & languages:
        yield Obstacle(Weight.NOTE, f"no C compiler on PATH: zig of the package index compiles; or {INSTALL_C}")
    if compilers and compilers.cxx is None and "C++" in languages:
        yield Obstacle(Weight.ERROR, "no C++ compiler on PATH; install g++ or clang")
    if "Fortran" in languages and not shutil.which("gfortran"):
        problem = "sources in Fortran, and no gfortran on PATH; if they are compiled: apt-get install gfortran"
        yield Obstacle(Weight.WARNING, problem)
    if "Rust" in languages and found_rust(os.environ) is None:
        problem = "sources in Rust, and no rustc and cargo on PATH; install it with rustup, or apt-get install cargo"
        yield Obstacle(Weight.ERROR, problem)
    yield from _of_requirements(survey, interpreter)


def _of_requirements(survey: ProjectSurvey, interpreter: Interpreter) -> Iterator[Obstacle]:
    try:
        lines = requirement_lines(survey.lines or ("setuptools",), BuildError)
    except BuildError as error:
        yield Obstacle(Weight.ERROR, f"build-system.requires: {error}")
        return
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder, "requires.in")
        wanted.write_text(lines, encoding="utf-8")
        command = compile_command(interpreter.path, [wanted], Path(folder, "requires.txt"), builds=False)
        environment = {**os.environ, **Indexes.configured().environment()}
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode and (name := unbuilt(ran.stderr)):
        problem = f"{name} has no wheel for this Python: the build makes one, and runs its code for that"
        yield Obstacle(Weight.WARNING, f"build-system.requires: {problem}")
    elif ran.returncode:
        reason = " ".join(word for word in ran.stderr.split() if word.isascii())
        yield Obstacle(Weight.ERROR, f"build-system.requires: {reason}")
