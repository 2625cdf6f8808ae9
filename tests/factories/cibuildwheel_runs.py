"""Projects with options for cibuildwheel, and what cibuildwheel's own code makes of these and of variables."""

import os
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from vbuild.build.cibuildwheel.runs import CibuildwheelRun, RunContext, planned_runs
from vbuild.build.plan import BuildBackend
from vbuild.config.table import Env
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.driver import Dotted
from vbuild.recipe.model import Recipe
from vbuild.recipe.target import Target
from vbuild.toolchain.toolkit import Toolkit

if TYPE_CHECKING:
    from cibuildwheel.options import BuildOptions

CP311 = "cp311-manylinux_x86_64"
CP312 = "cp312-manylinux_x86_64"
ALL = (CP311, CP312, "cp311-musllinux_x86_64", "cp311-manylinux_i686", "cp311-manylinux_aarch64")
OURS = """
[tool.vbuild.build]
env = { OURS = "it's \\"ours\\" and $HOME" }
config-settings = { b = "new", d = ["x y", "z"] }
"""
LEVELS = '[tool.vbuild.matrix]\ncpu = ["x86-64", "x86-64-v3"]\n'
KIT = PurePosixPath("/host/kit")
TOOLKIT = Toolkit(Dotted(13, 0), Path("/opt/cuda-13.0"), "0" * 64)


def described(folder: Path, text: str) -> Path:
    """A folder with nothing but a ``pyproject.toml`` that says *text* after the project's name."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(f'[project]\nname = "demo"\nversion = "1.0"\n{text}', encoding="utf-8")
    return folder


def runs_of(
    project: Path,
    *identifiers: str,
    environment: Mapping[str, str] | None = None,
    machine: Cpu | None = Cpu("x86_64", "v4"),  # noqa: B008 - a frozen value
    backend: BuildBackend = BuildBackend.SETUPTOOLS,
) -> tuple[CibuildwheelRun, ...]:
    """The runs for all variants of *project*, made on *machine*, for *identifiers*, or for CPython 3.11."""
    return runs_for(project, identifiers or (CP311,), environment=environment or {}, machine=machine, backend=backend)


def runs_for(
    project: Path,
    identifiers: Sequence[str],
    *,
    only: Collection[str] = (),
    environment: Mapping[str, str] = os.environ,
    machine: Cpu | None = None,
    backend: BuildBackend = BuildBackend.SETUPTOOLS,
) -> tuple[CibuildwheelRun, ...]:
    """The runs for the variants *only* of *project*, all where that is empty, for *identifiers*."""
    recipe = Recipe.load(project)
    targets = recipe.chosen(only=only, pythons=recipe.matrix.pythons[:1])
    return planned_runs(recipe, targets, identifiers, RunContext(machine, environment, KIT, backend, _toolkit))


def _toolkit(_target: Target) -> Toolkit:
    return TOOLKIT


@dataclass(frozen=True, slots=True)
class Options:
    """What cibuildwheel is going to do, as far as vbuild adds to it."""

    assignments: tuple[str, ...]
    settings: Mapping[str, tuple[str, ...]]
    before_build: str
    repair: str
    is_tested: bool


def options_of(project: Path, environment: Mapping[str, str], identifier: str = CP311) -> Options:
    """The options of cibuildwheel for *identifier* of *project* with the variables of *environment*."""
    found = _options(project, environment, identifier)
    return Options(
        tuple(map(repr, found.environment.assignments)),
        _settings(found.config_settings),
        found.before_build or "",
        found.repair_command,
        found.test_selector(identifier),
    )


def evaluated(project: Path, environment: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
    """The environment of a build that starts with the variables *before*, by cibuildwheel's own evaluation."""
    return _options(project, environment, CP311).environment.as_dictionary(before)


def identifiers_of(project: Path, environment: Mapping[str, str], *candidates: str) -> list[str]:
    """Those of *candidates* that cibuildwheel builds."""
    found = _options(project, environment, CP311)
    return [identifier for identifier in candidates if found.build_selector(identifier)]


def assigned(variables: Env) -> tuple[str, ...]:
    """Assignments as `Options` has them."""
    return tuple(f"{name}={value}" for name, value in variables)


def _options(project: Path, environment: Mapping[str, str], identifier: str) -> "BuildOptions":
    # here, as each process that collects tests would spend 0.3 s on it
    from cibuildwheel.options import CommandLineArguments, compute_options  # noqa: PLC0415

    arguments = CommandLineArguments.defaults()
    arguments.package_dir = project
    options = compute_options(platform="linux", command_line_arguments=arguments, env=environment)
    return options.build_options(identifier)


def _settings(text: str) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for word in shlex.split(text):
        key, _, value = word.partition("=")
        found[key] = (*found.get(key, ()), value)
    return found


def with_vbuild(project: Path, environment: Mapping[str, str]) -> tuple[CibuildwheelRun, dict[str, str]]:
    """The run of the highest level for *project*, and the environment that cibuildwheel gets for it."""
    run = runs_of(project, environment=environment)[-1]
    return run, {**environment, **dict(run.variables)}
