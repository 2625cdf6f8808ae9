"""The recipe as written: what to build, for which machines, how, and what its wheels have to pass.

A recipe is a TOML file, or the ``[tool.vbuild]`` table of a project's own ``pyproject.toml``, whose source is then
the project. ``docs/reference/recipe.md`` lists every key.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, TypeVar

from msgspec import Struct
from msgspec.structs import replace
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from vbuild.config.requirements import checked_project
from vbuild.config.table import Env, Settings, Table
from vbuild.errors import RecipeError, at, meant
from vbuild.recipe.compiling import CudaSettings, FlagRules, HostCompiler, HostSettings
from vbuild.recipe.lock import Lock
from vbuild.recipe.matrix import NAMESPACE, SDIST, Matrix, read_matrix, releases_of
from vbuild.recipe.source import (
    PROJECT_FILES,
    Folder,
    Git,
    Native,
    Sdist,
    Source,
    check_levels,
    project_file,
    project_name,
    read_natives,
    read_source,
)
from vbuild.recipe.spelling import existing_file, interpreter, located, pattern, requirement, variables
from vbuild.recipe.target import Target, evaluated, merged
from vbuild.recipe.variables import variable_pattern

R = TypeVar("R", bound="Recipe")

Keys = Mapping[str, Any]
"""Keys of a table and their values, as TOML has them."""

# what the plain wheel is compared with, unless that is a file or a version
AGAINST = ("auto", "index", "none")

_EMULATE = ("auto", "always", "never")
_CACHES = ("auto", "ccache", "none")
_FEWEST_ROUNDS = 2
_PERCENTAGE = re.compile(r"(\d{1,4}(?:\.\d{1,4})?)\s*%", re.ASCII)


class BuildSettings(Struct, frozen=True):
    """How wheels are built. Of *requires*, vbuild itself has *guessed* some: without them it tries again."""

    env: Env = ()
    config_settings: Settings = ()
    before_build: tuple[str, ...] = ()
    patches: tuple[Path, ...] = ()
    isolation: bool = True
    requires: tuple[str, ...] = ()
    guessed: tuple[str, ...] = ()
    flags: FlagRules = FlagRules()
    cuda: CudaSettings = CudaSettings()
    host: HostSettings = HostSettings()
    cache: str = "auto"
    debug: str = "strip"
    pass_env: tuple[str, ...] = ()
    lock: Lock | None = None

    @classmethod
    def read(cls, table: Table, folder: Path, *, matrix: Matrix) -> Self:
        host = HostSettings.read(table)
        if matrix.cuda and host.compiler is HostCompiler.ZIG:
            fault = "nvcc does not take zig as its host compiler; expected 'system' with matrix.cuda"
            raise table.refuse("host", fault)
        isolation = table.flag("isolation", default=True)
        if matrix.requires and not isolation:
            fault = "false builds against what is installed, and matrix.requires names versions: leave one of them out"
            raise table.refuse("isolation", fault)
        cuda = CudaSettings()
        if table.raw("cuda") is not None:
            if not matrix.cuda:
                raise table.refuse("cuda", "would have no effect without matrix.cuda")
            with table.table("cuda") as settings:
                cuda = CudaSettings.read(settings, tuple(entry.toolkit.version for entry in matrix.cuda))
        return cls(
            env=variables(table, "env"),
            config_settings=table.settings("config-settings"),
            before_build=table.texts("before-build", ()),
            patches=table.parsed_texts("patches", lambda text: existing_file("patch", text, folder), ()),
            isolation=isolation,
            requires=table.parsed_texts("requires", requirement, ()),
            flags=FlagRules.read(table),
            cuda=cuda,
            host=host,
            cache=table.one_of("cache", _CACHES),
            debug=table.one_of("debug", ("strip", "keep")),
            pass_env=table.parsed_texts("pass-env", variable_pattern, ()),
        )


class Verify(Struct, frozen=True):
    """Patterns of functions and files that may exceed the claimed level, and the wheel to compare with.

    That is the published one of its version, or of the version *against*; the file *against*; none; or for ``auto``
    that of its version if an sdist is built and there is one.
    """

    allow: tuple[str, ...] = ()
    against: str | Path = "auto"

    @classmethod
    def read(cls, table: Table, folder: Path) -> Self:
        return cls(
            table.parsed_texts("allow", pattern, ()),
            table.optional_parsed("against", lambda text: compared_with(text, folder)) or "auto",
        )


def compared_with(text: str, folder: Path) -> str | Path:
    """*text* if it is one of `AGAINST` or a version, else the path of a wheel, from *folder* on."""
    if text in AGAINST:
        return text
    path = located(text, folder)
    if path.is_file():
        return path
    try:
        return str(Version(text))
    except InvalidVersion:
        expected = "expected 'index', 'none', a version such as '1.2.3', or the path of a wheel"
        raise RecipeError(f"no wheel {text!r}; {expected}") from None


class Repair(Struct, frozen=True):
    command: str | None = None
    skip: bool = False
    exclude: tuple[str, ...] = ()
    plat: str | None = None
    bill: bool = True

    @classmethod
    def read(cls, table: Table) -> Self:
        repair = cls(
            command=table.optional_text("command"),
            skip=table.flag("skip", default=False),
            exclude=table.texts("exclude", ()),
            plat=table.optional_text("plat"),
            bill=table.flag("sbom", default=True),
        )
        for key in ("command", "exclude", "plat"):
            if repair.skip and key in table:
                raise table.refuse(key, "would have no effect, as skip is true")
            if repair.command and key in table and key != "command":
                raise table.refuse(key, "is for auditwheel; with a command of its own, write it there")
        return repair


class TrialResult(StrEnum):
    """What became of a test of a wheel."""

    NONE = "no test"
    PASSED = "passed"
    NOT_RUN = "not run"


class Check(Struct, frozen=True):
    """A command that is run against each installed wheel, and, as *emulate* says, in an emulator."""

    command: str | None = None
    requires: tuple[str, ...] = ()
    emulate: str = "auto"

    @property
    def is_emulated(self) -> bool:
        """Whether it asks for the emulator, which may not be installed."""
        return self.emulate != "never"

    @classmethod
    def read(cls, table: Table) -> Self:
        command, requires = table.optional_text("command"), table.parsed_texts("requires", requirement, ())
        return cls(command, requires, table.one_of("emulate", _EMULATE))


class Bench(Struct, frozen=True):
    """What prints how long something takes with the installed wheel.

    Every wheel for *python* runs it so many *rounds*. A level that surely brings less than *min_gain*, a part of 1,
    is left out.
    """

    command: str | None = None
    script: Path | None = None
    requires: tuple[str, ...] = ()
    rounds: int = 5
    min_gain: float | None = None
    python: str = ""

    @classmethod
    def read(cls, table: Table, folder: Path) -> Self:
        bench = cls(
            table.optional_text("command"),
            table.optional_parsed("script", lambda text: existing_file("Python script", text, folder)),
            table.parsed_texts("requires", requirement, ()),
            table.number("rounds", cls().rounds),
            None if table.raw("min-gain") is None else _share(table, "min-gain"),
            table.optional_parsed("python", lambda text: interpreter(text, folder)) or "",
        )
        if bench.command and bench.script:
            raise table.refuse("script", "there is a command, too; expected one of the two")
        if not (bench.command or bench.script):
            raise table.wrong("nothing to run; expected command, or script with the path of a Python file")
        least = _FEWEST_ROUNDS if bench.min_gain is None else cls().rounds
        if bench.rounds < least:
            why = "" if bench.min_gain is None else " with min-gain: fewer would leave it to chance"
            raise table.refuse("rounds", f"found {bench.rounds}; expected {least} or more{why}")
        return bench


def _share(table: Table, key: str) -> float:
    percent = table.raw(key)
    match = _PERCENTAGE.fullmatch(percent) if isinstance(percent, str) else None
    if not match:
        raise table.refuse(key, f"{percent!r} is not a percentage; expected one such as '3%'")
    return float(match[1]) / 100


@dataclass(frozen=True)
class Recipe:
    """One project and the wheels to build of it; *file* is where all this was read.

    *variant* is the ``[variant]`` table for its own reader.
    """

    name: str
    source: Source
    matrix: Matrix
    file: Path
    build: BuildSettings = BuildSettings()
    verify: Verify = Verify()
    repair: Repair = Repair()
    test: Check = Check()
    bench: Bench | None = None
    natives: tuple[Native, ...] = ()
    variant: Table | None = field(default=None, compare=False)
    split: Table | None = field(default=None, compare=False)

    @classmethod
    def load(cls, path: Path, replacing: Keys = MappingProxyType({})) -> Self:
        """The recipe at *path*, a file or a project's folder; *replacing* tables replace keys."""
        path = project_file(path) if path.is_dir() else path
        is_project = path.name in PROJECT_FILES
        table = Table({}) if path.name == "setup.py" else Table.load(path)
        for name, keys in replacing.items():
            table = table.with_values((*(("tool", "vbuild") if is_project else ()), name), keys)
        with at(path):
            return _checked(cls._of_project(table, path) if is_project else cls._of_file(table, path))

    @classmethod
    def of_sdist(cls, sdist: Sdist, file: Path, keys: Keys) -> Self:
        with at(file):
            return _checked(cls._read(Table(keys), sdist.name, sdist, file))

    @cached_property
    def targets(self) -> tuple[Target, ...]:
        """Every wheel to build, by Python, each Python's plain wheel first."""
        return tuple(
            replace(
                target,
                env=tuple({**dict(self.build.env), **dict(target.env)}.items()),
                config_settings=merged(self.build.config_settings, target.config_settings),
            )
            for target in evaluated(self.matrix, self.build.cuda.compress)
        )

    def chosen(self, *, only: Collection[str] = (), pythons: Collection[str] = ()) -> tuple[Target, ...]:
        """The targets that *only* and *pythons* name; all if one is empty."""
        labels = dict.fromkeys(map(str, self.targets))
        for label in only:
            if label not in labels:
                raise RecipeError(
                    f"{self.file}: no target {label!r}; there are {', '.join(labels)}{meant(label, labels)}"
                )
        spelled = {name: str(located(name, self.file.parent)) if "/" in name else name for name in pythons}
        for name, python in spelled.items():
            if python not in self.matrix.pythons:
                known = ", ".join(self.matrix.pythons)
                raise RecipeError(
                    f"{self.file}: no Python {name!r}; there are {known}{meant(name, self.matrix.pythons)}"
                )
        wanted, chosen = frozenset(only), frozenset(spelled.values())
        return tuple(
            target
            for target in self.targets
            if (not wanted or str(target) in wanted) and (not chosen or target.python in chosen)
        )

    def namespaces(self) -> tuple[str, ...]:
        """The namespaces of all properties, best first: as the recipe orders them, else as its axes are
        written.

        Those of GPUs come first: no CPU level makes up for a wheel that leaves the GPU alone.
        """
        names = dict.fromkeys(text.split(" :: ")[0] for target in self.targets for text in target.properties)
        others = tuple(name for name in names if name != NAMESPACE)
        used = (NAMESPACE, *others) if NAMESPACE in names else others
        ordered = self.matrix.priority
        if self.variant and "default-priorities" in self.variant and not ordered:
            ordered = self.variant.handed("default-priorities").texts("namespace", ())
        for namespace in used if ordered else ():
            if namespace not in ordered:
                raise RecipeError(f"matrix.priority: {namespace!r} is missing; properties of it are in use")
        return ordered or used

    @classmethod
    def _of_file(cls, table: Table, path: Path) -> Self:
        name = table.text("name")
        with table.table("source") as source_table:
            source = read_source(source_table, path.parent)
            project, variant = (source.name, None) if isinstance(source, Sdist) else _stated(source)
            if project and canonicalize_name(project) != canonicalize_name(name):
                raise source_table.wrong(f"is of {project!r}, and the recipe builds {name!r}")
        return cls._read(table, name, source, path, variant)

    @classmethod
    def _of_project(cls, pyproject: Table, path: Path) -> Self:
        table = pyproject.handed("tool", optional=True).handed("vbuild", optional=True)
        source = Folder(path.parent.resolve())
        name, variant = _stated(source)
        if "name" in table and "project" not in pyproject:  # older files may mean somebody else
            name = table.text("name")
        if name is None:
            raise RecipeError('no [project] table names the project; expected name = "…" in [tool.vbuild]')
        return cls._read(table, name, source, path, variant)

    @classmethod
    def _read(cls, table: Table, name: str, source: Source, path: Path, variant: Table | None = None) -> Self:
        # a stranger's text, which goes into workflows, scripts and file names
        name = checked_project(name, RecipeError)
        if table.raw("variant") is not None:
            if variant:
                raise table.refuse("variant", "the project has a [variant] table of its own; expected one of the two")
            variant = table.handed("variant")
        with table.table("matrix", optional=True) as matrix_table:
            matrix = read_matrix(matrix_table, path.parent)
        if variant and "variants" in variant:
            raise variant.refuse("variants", "not what is built; expected values of matrix.axes with these properties")
        if not (matrix.cpus or matrix.cuda or matrix.axes or matrix.requires):
            raise table.refuse("matrix", "no axis to build along; expected cpu, cuda, requires, or axes")
        with (
            table.table("build", optional=True) as build,
            table.table("verify", optional=True) as verify,
            table.table("repair", optional=True) as repair,
            table.table("test", optional=True) as test,
            table.table("bench", optional=True) as bench,
        ):
            recipe = cls(
                name=name,
                source=source,
                matrix=matrix,
                file=path,
                build=BuildSettings.read(build, path.parent, matrix=matrix),
                verify=Verify.read(verify, path.parent),
                repair=Repair.read(repair),
                test=Check.read(test),
                bench=Bench.read(bench, path.parent) if "bench" in table else None,
                natives=read_natives(table, path.parent) if table.raw("native") is not None else (),
                variant=variant,
                split=table.handed("split") if table.raw("split") is not None else None,
            )
        table.finish()
        return recipe


def _checked(recipe: R) -> R:
    recipe.namespaces()
    if recipe.bench and (python := recipe.bench.python) and python not in (pythons := recipe.matrix.pythons):
        raise RecipeError(f"bench.python: {python} is not in matrix.python; expected one of {', '.join(pythons)}")
    values = (value for requirement in recipe.matrix.requires for value in requirement.versions)
    if recipe.test.command is None and (several := next((value for value in values if "_" in value), None)):
        releases = " and ".join(releases_of(several))
        raise RecipeError(
            f"test.command: a wheel for {releases} is imported with each; expected a command that does so"
        )
    if recipe.matrix.plain_requires == SDIST and not isinstance(recipe.source, Sdist):
        fault = f"'sdist' is the one that [source] names, and that is {recipe.source}"
        advice = "expected a recipe file with source.path = an sdist, which python -m build --sdist makes"
        raise RecipeError(f"matrix.plain: {fault}; {advice}")
    if recipe.natives:
        check_levels(recipe.natives, [target.cpu for target in recipe.targets])
    return recipe


def lock_file(recipe: Path) -> Path:
    return recipe.with_name("vbuild.lock") if recipe.name in PROJECT_FILES else recipe.with_suffix(".lock")


def _stated(source: Folder | Git) -> tuple[str | None, Table | None]:
    if isinstance(source, Git):
        return None, None
    folder = source.path / source.subdirectory
    path = folder / "pyproject.toml"
    project = Table.load(path) if path.is_file() else Table({})
    return project_name(folder), project.handed("variant") if "variant" in project else None
