"""Build one wheel of a project for one target, through the hooks of PEP 517.

    Job, a tree of the project -> compiler wrappers, environment, hooks -> Built

https://peps.python.org/pep-0517/
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pyproject_hooks
from build import BuildBackendException, BuildException, ProjectBuilder
from msgspec import Struct, convert, to_builtins
from msgspec.structs import replace
from packaging.utils import canonicalize_name

from vbuild.build.advice import CIBUILDWHEEL, advice, first_of_nvcc, looked_in_vain
from vbuild.build.environment import BuildEnvironment, Environments, own_environment
from vbuild.build.identity import packages_of
from vbuild.build.job import Job, job_variables
from vbuild.build.plan import BuildBackend
from vbuild.build.reproducible import BuildTraces
from vbuild.build.requiring import check_cuda, pins
from vbuild.build.survey import asking_cibuildwheel
from vbuild.build.wrappers import (
    BuildFolders,
    Ccache,
    CompilerCall,
    CompilerWrappers,
    FailedCall,
    Override,
    install_wrappers,
    nvcc_of,
)
from vbuild.config.requirements import required_project
from vbuild.errors import BuildError
from vbuild.process.run import run
from vbuild.recipe.variables import passed
from vbuild.sbom.model import Material, MaterialRole
from vbuild.toolchain.compilers import cargo_home
from vbuild.toolchain.nvcc_commands import Command, is_trial
from vbuild.wheel.archive import wheels_in
from vbuild.wheel.name import WheelName

# pyproject-hooks repeats a backend's warnings in this process, and thus on the terminal
_QUIET = {"PYTHONWARNINGS": "ignore::UserWarning"}

# messages of gcc and clang about a file with intrinsics that its flags do not allow
_MISMATCHES = ("target specific option mismatch", "always_inline function", "requires target feature")

# it goes whatever a recipe says, so no key of one helps
_NATIVE = "-march=native"


class Built(Struct, frozen=True):
    """A wheel as its backend left it.

    *commands* are nvcc's, *calls* other compilers'. *pins* are requirements that follow from what it was built against,
    *traces* would give its build away, *materials* are the compilers and packages used.
    """

    wheel: Path
    overrides: tuple[Override, ...]
    commands: tuple[Command, ...]
    seconds: float
    calls: tuple[CompilerCall, ...] = ()
    failed: tuple[FailedCall, ...] = ()
    pins: tuple[tuple[str, str], ...] = ()
    traces: BuildTraces = BuildTraces()
    materials: tuple[Material, ...] = ()

    def record(self, project: Path) -> dict[str, Any]:
        """All but the wheel as JSON, with paths below *project* relative."""
        top = f"{project.resolve()}/"
        built = self._with_sources(lambda source: source.removeprefix(top))
        record: dict[str, Any] = to_builtins(built, enc_hook=str)
        del record["wheel"]
        return record

    @classmethod
    def of_record(cls, wheel: Path, record: Mapping[str, Any], project: Path) -> Self:
        """The *wheel* of another run, as if it had been built in the tree *project*."""
        top = project.resolve()
        built = convert({**record, "wheel": str(wheel)}, cls, dec_hook=lambda kind, text: kind(text))
        return built._with_sources(lambda source: str(top / source))  # noqa: SLF001 - of the same class

    def _with_sources(self, renamed: Callable[[str], str]) -> Self:
        return replace(
            self, calls=tuple(replace(call, sources=tuple(map(renamed, call.sources))) for call in self.calls)
        )


def build_wheel(
    job: Job,
    project: Path,
    folder: Path,
    *,
    log: Path,
    environments: Environments,
    cache: Ccache | None = None,
    processes: int = 0,
) -> Built:
    """Build *job* in the tree *project*, which is used up; the wheel and the compiler wrappers go into *folder*.

    0 *processes* are any number.
    """
    start, began = time.perf_counter(), time.time()
    shell = _shell(job, project, folder, log=log, environments=environments, cache=cache)
    shell = replace(shell, variables={**shell.variables, **job_variables(processes, shell.variables)})
    with _explained(job, shell.wrappers, log), _refused():
        shell, requirements = _with_requirements(job, shell, environments)
        (folder / "built").mkdir()
        settings = dict(job.plan.config_settings)
        if processes and job.plan.backend is BuildBackend.MESON_PYTHON:
            settings.setdefault("compile-args", f"-j{processes}")
        try:
            wheel = Path(shell.builder().build("wheel", folder / "built", settings))
        finally:
            environments.settle()
    seconds = time.perf_counter() - start
    wrappers = shell.wrappers
    wheel = _checked(wheel, folder / "built")
    failed = (*wrappers.failures(), *_in_vain(job, log), *_unasked(shell))
    specifiers = pins(shell.environment, dict(job.target.requires)) if shell.environment else {}
    calls = wrappers.compiled()
    traces = BuildTraces.of(_folders(job, shell, environments), shell.variables.get("TMPDIR"), began)
    commands = wrappers.commands()
    materials = (
        *wrappers.compilers(job.compilers, shell.variables.get("PATH", os.defpath)),
        *nvcc_of(job.toolkit, commands),
        *_packages(job, shell, requirements),
    )
    return Built(
        wheel, wrappers.overrides(), commands, seconds, calls, failed, tuple(specifiers.items()), traces, materials
    )


def _packages(job: Job, shell: "_Shell", requirements: set[str]) -> Iterator[Material]:
    if shell.environment and job.settings.isolation:
        yield from shell.environment.materials
        return
    wanted = {required_project(text) for text in requirements}
    for name, _, version in (line.partition("==") for line in packages_of(job.interpreter, shell.variables)):
        if canonicalize_name(name) in wanted:
            yield Material(MaterialRole.REQUIREMENT, canonicalize_name(name), version)


def _folders(job: Job, shell: "_Shell", environments: Environments) -> Iterator[tuple[Path | None, str]]:
    """The folders of *job*, inner ones first, and what binaries have in their place."""
    yield shell.project, "."
    yield shell.wrappers.cuda, "cuda"
    yield (job.toolkit.root if job.toolkit else None), "cuda"
    yield from ((prefix.folder, f"native/{prefix.name}") for prefix in job.prefixes)
    yield environments.folder_of(job.interpreter), "environments"
    yield environments.own, "environments"
    # a Python's own folder, and that of a virtual environment
    yield from ((python.parent.parent, "python") for python in (job.interpreter.include, job.interpreter.path))
    yield cargo_home(shell.variables), "cargo"


def required_packages(
    job: Job, project: Path, folder: Path, *, log: Path, environments: Environments
) -> frozenset[str]:
    shell = _shell(job, project, folder, log=log, environments=environments, cache=None)
    with _explained(job, shell.wrappers, log), _refused():
        _, requirements = _with_requirements(job, shell, environments)
    return frozenset(requirements if job.settings.isolation else ())


def _shell(
    job: Job, project: Path, folder: Path, *, log: Path, environments: Environments, cache: Ccache | None
) -> "_Shell":
    planned_variables = {**dict(job.plan.environment), **dict(job.reached)}
    variables = {**_QUIET, **passed(os.environ, job.settings.pass_env), **dict(job.target.env), **planned_variables}
    variables |= job.watch.variables(variables) if job.watch else {}
    wrappers = install_wrappers(
        job.plan.wrapper_rules,
        job.compilers,
        folder / "launchers",
        BuildFolders(
            project,
            job.prefixes,
            environments.folder_of(job.interpreter),
            job.interpreter.include,
        ),
        environment=variables,
        cuda=job.plan.cuda,
        cache=cache,
    )
    return _Shell(project, log, variables, wrappers, planned_variables)


class _Shell(Struct, frozen=True):
    project: Path
    log: Path
    variables: Mapping[str, str]
    wrappers: CompilerWrappers
    plan_variables: Mapping[str, str]
    environment: BuildEnvironment | None = None

    def __call__(
        self, cmd: Sequence[str], cwd: str | None = None, extra_environ: Mapping[str, str] | None = None
    ) -> None:
        variables = self.environment.variables(self.variables) if self.environment else self.variables
        # the plan's PYTHONPATH, unlike the user's, is for the backend
        variables = {
            **variables,
            **self.plan_variables,
            **self.wrappers.environment(variables),
            **(extra_environ or {}),
        }
        hook = cmd[2] if extra_environ else None  # python, pyproject-hooks' script, the hook, a folder
        run(cmd, log=self.log, cwd=Path(cwd or self.project), environment=variables, name=hook)

    def builder(self) -> ProjectBuilder:
        python = self.environment.python if self.environment else sys.executable
        return ProjectBuilder(self.project, str(python), self)


def _with_requirements(job: Job, shell: _Shell, environments: Environments) -> tuple[_Shell, set[str]]:
    settings = dict(job.plan.config_settings)
    requirements = shell.builder().build_system_requires | set(job.settings.requires)
    shell = _within(shell, job, _environment(job, environments, requirements))
    for command in job.settings.before_build:
        shell(["sh", "-c", command])
    if missing := shell.builder().get_requires_for_build("wheel", settings) - requirements:
        shell = _within(shell, job, _environment(job, environments, requirements | missing))
    return shell, requirements | missing


def _within(shell: _Shell, job: Job, environment: BuildEnvironment) -> _Shell:
    """*shell* in *environment*, for CUDA with the headers of required packages, such as torch."""
    if job.toolkit:
        check_cuda(environment, job.toolkit.version)
    headers = [str(folder) for folder in environment.cuda_headers] if job.toolkit else []
    variables = dict(shell.plan_variables)
    if headers:
        variables["CPATH"] = os.pathsep.join([*headers, *filter(None, [shell.variables.get("CPATH")])])
    return replace(shell, environment=environment, plan_variables=variables)


def _environment(job: Job, environments: Environments, requirements: set[str]) -> BuildEnvironment:
    if not job.settings.isolation:
        return own_environment(job.interpreter)
    return environments.having(requirements, job.interpreter)


def _checked(wheel: Path, folder: Path) -> Path:
    wheels = [path.name for path in wheels_in(folder)]
    if wheels != [wheel.name]:
        raise BuildError(
            f"the backend left {', '.join(wheels) or 'no wheel'}, expected {wheel.name} alone: turn the others "
            f"off, in build.config-settings"
        )
    if (label := WheelName.parse(wheel.name).variant) is not None:
        raise BuildError(
            f"{wheel.name} has a variant label, {label!r}; expected a plain wheel: "
            f"turn the project's or the backend's own variant settings off"
        )
    return wheel


@contextmanager
def _refused() -> Iterator[None]:
    try:
        yield
    except BuildBackendException as error:
        if isinstance(error.exception, BuildError):
            raise error.exception from error
        raise BuildError(f"build backend: {_first_line(error)}") from error
    except (BuildException, pyproject_hooks.HookMissing) as error:
        raise BuildError(
            f"not a project that can be built: {_first_line(error)}; expected a [build-system] that pip can build; if "
            f"it is further down: source.subdirectory = '…'"
        ) from error


@contextmanager
def _explained(job: Job, wrappers: CompilerWrappers, log: Path) -> Iterator[None]:
    try:
        yield
    except BuildError as caught:
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        first = _first_failure(wrappers) or first_of_nvcc(text)
        error = BuildError(f"{first}\n{caught}") if first else caught
        mismatched = any(words in text for words in _MISMATCHES)
        taken = [change for change in wrappers.overrides() if change.removed]
        natives = [change for change in taken if not set(change.removed) - {_NATIVE}]
        stripped = sorted({source for change in taken if change not in natives for source in change.sources})
        if stripped and mismatched:
            raise BuildError(
                f"{error}\nThe project's own flags were taken out of {', '.join(stripped)}; where that code runs only "
                f"after a check of the CPU: build.keep-flags = {stripped}"
            ) from error
        if natives and mismatched:
            raise BuildError(
                f"{error}\nIts {_NATIVE} is for the building machine, and goes in any case; the sources need more "
                f"than the baseline has, and no wheel for all machines can be built of them as they are"
            ) from error
        if line := advice(text, first or ""):
            raise BuildError(f"{error}\n{line}") from error
        if job.compilers.cxx is None and "++" in text:
            raise BuildError(f"{error}\nThere is no C++ compiler on PATH; install g++ or clang") from error
        raise error from caught


def _in_vain(job: Job, log: Path) -> Iterator[FailedCall]:
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    programs, libraries = job.watch.in_vain() if job.watch else ((), ())
    yield from (FailedCall(name, (), why) for name, why in looked_in_vain(text, programs, libraries))


def _unasked(shell: _Shell) -> Iterator[FailedCall]:
    if CIBUILDWHEEL not in shell.variables and (script := asking_cibuildwheel(shell.project)):
        why = f"asked for by {script}, and is not set; to build as cibuildwheel does: build.env.{CIBUILDWHEEL} = '1'"
        yield FailedCall(CIBUILDWHEEL, (), why)


def _first_failure(wrappers: CompilerWrappers) -> str | None:
    project = wrappers.source.resolve()
    for call in wrappers.failures():
        # a path is of the project, or relative to a build folder in it
        own = (file.startswith("..") or (project / file).resolve().is_relative_to(project) for file in call.sources)
        if not is_trial(call.sources) and any(own):
            return call.error
    return None


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
