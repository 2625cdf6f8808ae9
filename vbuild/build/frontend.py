"""Build one wheel of a project for one target, through the hooks of PEP 517.

    project, target -> Job (what will be done: print it, or refuse it) -> compiler wrappers, environment, hooks -> Built

https://peps.python.org/pep-0517/
"""

import dataclasses
import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from email import message_from_string
from pathlib import Path
from typing import Any, Self

import pyproject_hooks
from build import BuildBackendException, BuildException, ProjectBuilder
from msgspec import Struct, convert, to_builtins
from msgspec.structs import replace
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from vbuild.build.caching import Running
from vbuild.build.cuda import cuda_plan, host_of
from vbuild.build.environment import (
    BuildEnvironment,
    Environments,
    Prefix,
    SourceTools,
    missing_module,
    own_environment,
)
from vbuild.build.headers import missing_header, missing_source
from vbuild.build.plan import BuildBackend, FlagPlan, RecipeFlags, crossing, planned
from vbuild.build.profile import Profile, optimised
from vbuild.build.profile import check as check_profile
from vbuild.build.requiring import check_cuda, pins
from vbuild.build.resources import job_variables
from vbuild.build.watching import Watch
from vbuild.build.wrappers import (
    BuildFolders,
    CompilerCall,
    CompilerWrappers,
    FailedCall,
    Override,
    check_nvcc,
    install,
)
from vbuild.config.table import Env, Table
from vbuild.errors import BuildError, RecipeError
from vbuild.process.run import run
from vbuild.recipe.cuda import Archs, ToolkitSpec
from vbuild.recipe.matrix import HostCompiler
from vbuild.recipe.model import BuildSettings
from vbuild.recipe.target import Target
from vbuild.recipe.variables import passed
from vbuild.toolchain.compilers import Compilers
from vbuild.toolchain.interpreter import Interpreter
from vbuild.toolchain.nvcc import Command, is_trial
from vbuild.toolchain.toolkit import Toolkit, check_host
from vbuild.toolchain.toolkit_provision import FETCHED, Supply, provided
from vbuild.toolchain.zig import chosen
from vbuild.wheel.name import WheelName

_LEGACY = "setuptools.build_meta:__legacy__"  # PEP 517: for projects that name no backend

# pyproject-hooks warns again, in this process and thus on the terminal, what a backend has warned
_QUIET = {"PYTHONWARNINGS": "ignore::UserWarning"}

# messages of gcc and clang about a file with intrinsics that its flags do not allow
_MISMATCHES = ("target specific option mismatch", "always_inline function", "requires target feature")

_NO_HEADERS = re.compile(r"Python\.h'? ?(?:file not found|: No such file)")


class Job(Struct, frozen=True):
    """A wheel to build, with everything about this machine that the build depends on.

    *prefixes* are the native dependencies, and *reached* the variables that lead to them, which are this machine's own.
    *passed* are the names of the user's variables that the build sees; the number of others is *held_back*. *profile*
    is what its compilers know of runs of the same code, and *watch* notes what the build looks for.
    """

    target: Target
    settings: BuildSettings
    plan: FlagPlan
    compilers: Compilers
    interpreter: Interpreter
    toolkit: Toolkit | None = None
    prefixes: tuple[Prefix, ...] = ()
    reached: Env = ()
    passed: tuple[str, ...] = ()
    held_back: int = 0
    profile: Profile | None = None
    watch: Watch | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know of the tools: a licence that is new here, a compiler taken for lack of another."""
        licence = self.toolkit.licence if self.toolkit and self.toolkit.is_new else ""
        return tuple(note for note in (licence, self.compilers.why) if note)

    def data(self) -> dict[str, Any]:
        """The job as JSON holds it."""
        return {
            "label": self.target.label,
            "python": str(self.interpreter.path),
            "cpu": str(self.target.cpu),
            "backend": str(self.plan.backend),
            "properties": list(self.target.properties),
            "environment": {**dict(self.target.env), **dict(self.plan.environment)},
            "config_settings": dict(self.plan.config_settings),
            "launchers": to_builtins(self.plan.rewriting),
            "nvcc": self.plan.cuda.data() if self.plan.cuda else None,
            "native": [prefix.data() for prefix in self.prefixes],
            "passed": list(self.passed),
            "held_back": self.held_back,
        }


class Built(Struct, frozen=True):
    """A wheel as its backend left it: plain, not repaired; what the compiler wrappers changed; how long it took, in
    seconds.

    *commands* are those of nvcc, *calls* those of the other compilers, and *failed* those of these that failed. *pins*
    are what it may require of packages that it was built against, by `vbuild.build.requiring`.
    """

    wheel: Path
    overrides: tuple[Override, ...]
    commands: tuple[Command, ...]
    seconds: float
    calls: tuple[CompilerCall, ...] = ()
    failed: tuple[FailedCall, ...] = ()
    pins: tuple[tuple[str, str], ...] = ()

    def record(self, project: Path) -> dict[str, Any]:
        """What was built in the tree *project*, but for the wheel, as JSON takes it."""
        data = {name: to_builtins(getattr(self, name)) for name in _RECORDED}
        top = f"{project.resolve()}/"
        sources = [[source.removeprefix(top) for source in call.sources] for call in self.calls]
        return {**data, "calls": [[call.program, files] for call, files in zip(self.calls, sources, strict=True)]}

    @classmethod
    def of_record(cls, wheel: Path, record: Mapping[str, Any], project: Path) -> Self:
        """The *wheel* of another run, as if it had been built in the tree *project*."""
        top = project.resolve()
        calls = (CompilerCall(program, tuple(str(top / file) for file in files)) for program, files in record["calls"])
        return cls(
            wheel,
            convert(record["overrides"], tuple[Override, ...]),
            convert(record["commands"], tuple[Command, ...]),
            record["seconds"],
            tuple(calls),
            convert(record["failed"], tuple[FailedCall, ...]),
            convert(record["pins"], tuple[tuple[str, str], ...]),
        )


_RECORDED = ("overrides", "commands", "seconds", "failed", "pins")


def prepared(
    project: Path,
    target: Target,
    settings: BuildSettings,
    *,
    toolkits: Callable[[ToolkitSpec], Toolkit] = provided,
    supply: Supply = FETCHED,
) -> Job:
    """The job of building *target* from a tree of *project*; nothing of it is built, installed or written.

    *toolkits* gives the toolkit of a build with CUDA, *supply* zig if that is the compiler. `BuildError` if this
    machine lacks the interpreter or a compiler for it, `BuildError` if it lacks the toolkit, or that does not take
    the compiler.
    """
    if not hasattr(os, "uname"):
        raise BuildError(f"wheels are built on Linux, and this is {sys.platform}")
    # the newest release of each series: that of a value is what the wheel is held to
    against = tuple(f"{project}=={version}.*" for project, version in target.requires)
    settings = replace(settings, requires=(*settings.requires, *against))
    seen = passed(os.environ, settings.pass_env)
    environment = {**seen, **dict(target.env)}
    backend = recognised(project)
    # where Pythons are, uv has variables of its own
    interpreter = Interpreter.found(target.python, {**os.environ, **dict(target.env)})
    _check_python(project, interpreter)
    # nvcc does not take zig as its host compiler
    host = replace(settings.host, compiler=HostCompiler.SYSTEM) if target.cuda else settings.host
    compilers = chosen(
        host,
        target.cpu,
        interpreter=interpreter,
        environment=environment,
        zig=supply.zig,
        writes=supply.writes,
    )
    compilers.check(target.cpu, rust=backend is BuildBackend.MATURIN)
    check_profile(settings.profile, compilers, backend)
    toolkit = _toolkit(target.cuda.toolkit, compilers, toolkits, environment) if target.cuda else None
    cuda = None
    if target.cuda and toolkit:
        cuda = cuda_plan(
            target.cuda,
            settings.cuda,
            home=toolkit.root,
            backend=backend,
            compilers=compilers,
            environment=environment,
            config_settings=target.config_settings,
        )
    plan = planned(
        target.cpu,
        backend,
        compilers=compilers,
        interpreter=interpreter,
        environment=environment,
        recipe=RecipeFlags(target.env, target.config_settings, settings.flags),
        cuda=cuda,
    )
    plan = optimised(plan, settings.profile, compilers)
    plan = crossing(plan, compilers=compilers, interpreter=interpreter, writes=supply.writes)
    held_back = len(os.environ) - len(seen)
    return Job(target, settings, plan, compilers, interpreter, toolkit, passed=tuple(sorted(seen)), held_back=held_back)


def wanted_python(project: Path) -> str:
    """The requires-python of *project*, as pyproject.toml or PKG-INFO has it; empty if neither has."""
    with suppress(RecipeError, OSError):  # the backend says what is wrong with it
        stated = Table.load(project / "pyproject.toml").raw("project")
        if isinstance(stated, dict) and (python := stated.get("requires-python")):
            return str(python)
    with suppress(OSError):
        about = (project / "PKG-INFO").read_text(encoding="utf-8", errors="replace")
        return message_from_string(about).get("Requires-Python", "").strip()
    return ""


def _check_python(project: Path, interpreter: Interpreter) -> None:
    """`BuildError` for an *interpreter* that *project* does not take, before anything is compiled for it."""
    if not takes(wanted := wanted_python(project), interpreter.version):
        version = ".".join(map(str, interpreter.version))
        raise BuildError(
            f"{interpreter.path}: Python {version}, and the project wants {wanted}; expected one that it takes: "
            f"matrix.python, or --python"
        )


def takes(wanted: str, version: Sequence[int]) -> bool:
    """Whether a project whose requires-python is *wanted* takes the Python *version*: any, if that is no specifier."""
    with suppress(InvalidSpecifier):
        return SpecifierSet(wanted).contains(".".join(map(str, version)), prereleases=True)
    return True


def recognised(project: Path) -> BuildBackend:
    """The backend of *project*; setuptools if it has no ``pyproject.toml`` or that names none."""
    file = project / "pyproject.toml"
    table = Table.load(file) if file.exists() else Table({})
    system = table.handed("build-system") if "build-system" in table else Table({})
    return BuildBackend.named(system.optional_text("build-backend") or _LEGACY)


def build_wheel(
    job: Job,
    project: Path,
    folder: Path,
    *,
    log: Path,
    environments: Environments,
    cache: Running | None = None,
    processes: int = 0,
) -> Built:
    """Build *job* in the tree *project*, which is used up; the wheel and the compiler wrappers go into *folder*.

    Compilers go through *cache*. The build system starts so many *processes*, as many as it likes if that is 0; the
    wheel is the same. `BuildError` if a step fails, with the place and the last lines of *log*.
    """
    start = time.perf_counter()
    shell = _shell(job, project, folder, log=log, environments=environments, cache=cache)
    shell = replace(shell, variables={**shell.variables, **job_variables(processes, shell.variables)})
    with _explained(job, shell.wrappers, log), _refused():
        shell, _ = _with_requirements(job, shell, environments)
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
    failed, found = wrappers.failures(), pins(shell.environment, dict(job.target.requires)) if shell.environment else {}
    calls = wrappers.compiled()
    return Built(wheel, wrappers.overrides(), wrappers.commands(), seconds, calls, failed, tuple(found.items()))


def required(job: Job, project: Path, folder: Path, *, log: Path, environments: Environments) -> frozenset[str]:
    """What the build of *job* requires of the package index, its hooks asked in the tree *project*; as `build_wheel`.

    Nothing if it is not isolated.
    """
    shell = _shell(job, project, folder, log=log, environments=environments, cache=None)
    with _explained(job, shell.wrappers, log), _refused():
        _, requirements = _with_requirements(job, shell, environments)
    return frozenset(requirements if job.settings.isolation else ())


def _shell(
    job: Job, project: Path, folder: Path, *, log: Path, environments: Environments, cache: Running | None
) -> "_Shell":
    planned_variables = {**dict(job.plan.environment), **dict(job.reached)}
    variables = {**_QUIET, **passed(os.environ, job.settings.pass_env), **dict(job.target.env), **planned_variables}
    variables |= job.watch.variables(variables) if job.watch else {}
    wrappers = install(
        job.plan.rewriting,
        job.compilers,
        folder / "launchers",
        BuildFolders(
            project,
            job.prefixes,
            environments.place(job.interpreter),
            job.interpreter.include,
            job.profile.place if job.profile else None,
            environments.own,
        ),
        environment=variables,
        cuda=job.plan.cuda,
        cache=cache,
    )
    return _Shell(project, log, variables, wrappers, planned_variables)


def _toolkit(
    spec: ToolkitSpec,
    compilers: Compilers,
    toolkits: Callable[[ToolkitSpec], Toolkit],
    environment: Mapping[str, str],
) -> Toolkit:
    toolkit = toolkits(spec)
    if not spec.has_kernels:
        return toolkit
    if toolkit.root.exists():  # unless it is only foreseen
        check_nvcc(toolkit.nvcc)
    if host := host_of(compilers, environment):
        check_host(toolkit, family=host.family, version=host.version, setting=host.setting)
    return toolkit


class _Shell(Struct, frozen=True):
    """Runs the commands of a build in its tree, with its variables and compiler wrappers; and the hooks, for
    pypa/build.
    """

    project: Path
    log: Path
    variables: Mapping[str, str]
    wrappers: CompilerWrappers
    planned: Mapping[str, str]
    environment: BuildEnvironment | None = None

    def __call__(
        self, cmd: Sequence[str], cwd: str | None = None, extra_environ: Mapping[str, str] | None = None
    ) -> None:
        variables = self.environment.variables(self.variables) if self.environment else self.variables
        # the plan's PYTHONPATH, unlike the user's, is for the backend
        variables = {**variables, **self.planned, **self.wrappers.environment(variables), **(extra_environ or {})}
        hook = cmd[2] if extra_environ else None  # python, pyproject-hooks' script, the hook, a folder
        run(cmd, log=self.log, cwd=Path(cwd or self.project), environment=variables, name=hook)

    def builder(self) -> ProjectBuilder:
        """pypa/build's view of the project, whose hooks run in this shell."""
        python = self.environment.python if self.environment else sys.executable
        return ProjectBuilder(self.project, str(python), self)


def _with_requirements(job: Job, shell: _Shell, environments: Environments) -> tuple[_Shell, set[str]]:
    """*shell* with all that the build requires, and what that is."""
    settings = dict(job.plan.config_settings)
    requirements = shell.builder().build_system_requires | set(job.settings.requires)
    tools = _tools(job, shell)
    shell = _within(shell, job, _environment(job, environments, requirements, tools))
    for command in job.settings.before_build:
        shell(["sh", "-c", command])
    if missing := shell.builder().get_requires_for_build("wheel", settings) - requirements:
        shell = _within(shell, job, _environment(job, environments, requirements | missing, tools))
    return shell, requirements | missing


def _within(shell: _Shell, job: Job, environment: BuildEnvironment) -> _Shell:
    """*shell* in *environment*, in a build for CUDA with the headers that required packages bring, as torch does.

    The toolkit's own come first, as nvcc and projects name their folder. `BuildError` for a framework that is built
    without CUDA, or for another major version than the toolkit's.
    """
    if job.toolkit:
        check_cuda(environment, job.toolkit.version)
    headers = [str(folder) for folder in environment.cuda_headers] if job.toolkit else []
    planned = dict(shell.planned)
    if headers:
        planned["CPATH"] = os.pathsep.join([*headers, *filter(None, [shell.variables.get("CPATH")])])
    return replace(shell, environment=environment, planned=planned)


def _tools(job: Job, shell: _Shell) -> SourceTools | None:
    """In a build for CUDA, what builds requirements that have no wheel: for the same GPUs and the same CPU level."""
    if job.toolkit is None or job.target.cuda is None:
        return None
    plan = cuda_plan(
        job.target.cuda,
        # what a recipe says of lists of architectures is of the project's own
        dataclasses.replace(job.settings.cuda, archs=Archs.COMPLETE, files=()),
        home=job.toolkit.root,
        backend=BuildBackend.OTHER,
        compilers=job.compilers,
        environment=shell.variables,
    )
    planned = {**shell.planned, **dict(plan.environment)}

    def put(folder: Path) -> dict[str, str]:
        variables = {**shell.variables, **planned}
        folders = BuildFolders(folder, job.prefixes)
        wrappers = install(
            job.plan.rewriting,
            job.compilers,
            folder / "launchers",
            folders,
            environment=variables,
            cuda=plan.rules,
        )
        return {**planned, **wrappers.environment(variables)}

    known = [job.toolkit.identity, plan.rules.data(), planned, to_builtins(job.plan.rewriting)]
    return SourceTools(hashlib.sha256(json.dumps(known).encode()).hexdigest(), put)


def _environment(
    job: Job, environments: Environments, requirements: set[str], tools: SourceTools | None
) -> BuildEnvironment:
    if not job.settings.isolation:
        return own_environment(job.interpreter)
    return environments.having(requirements, job.interpreter, tools)


def _checked(wheel: Path, folder: Path) -> Path:
    wheels = sorted(path.name for path in folder.glob("*.whl"))
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
    """What pypa/build raises, as our own error."""
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
    """Behind a build's error: what about the flags may be the reason."""
    try:
        yield
    except BuildError as caught:
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        first = _first_failure(wrappers)
        error = BuildError(f"{first}\n{caught}") if first else caught
        stripped = sorted({source for change in wrappers.overrides() if change.removed for source in change.sources})
        if stripped and any(words in text for words in _MISMATCHES):
            raise BuildError(
                f"{error}\nThe project's own flags were taken out of {', '.join(stripped)}; where that code runs only "
                f"after a check of the CPU: build.keep-flags = {stripped}"
            ) from error
        if missing := missing_module(text):
            what = f"Name the package that has the module: build.requires = [{missing!r}]"
            raise BuildError(f"{error}\n{what}") from error
        if _NO_HEADERS.search(text):
            raise BuildError(
                f"{error}\nThe headers of Python are missing; install them: apt-get install python3-dev"
            ) from error
        if advice := missing_header(first or "") or missing_source(text):
            raise BuildError(f"{error}\n{advice}") from error
        if job.compilers.cxx is None and "++" in text:
            raise BuildError(f"{error}\nThere is no C++ compiler on PATH; install g++ or clang") from error
        raise error from caught


def _first_failure(wrappers: CompilerWrappers) -> str | None:
    """What the first compiler said that failed on a source of the project; None if none did, but what was tried out."""
    failed = (call for call in wrappers.failures() if not is_trial(call.sources))
    return next((call.error for call in failed if any(_is_of(file, wrappers.source) for file in call.sources)), None)


def _is_of(file: str, project: Path) -> bool:
    """Whether *file* is in the tree *project*: by a path that starts there, or in a folder of a build in it."""
    return file.startswith("..") or (project / file).resolve().is_relative_to(project.resolve())


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
