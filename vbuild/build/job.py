"""A wheel to build, for one target: everything about this machine that it depends on, and how much of it builds use.

    project, target -> Job: print it, refuse it, or build it
    cores, memory, builds, --jobs -> builds at a time, and the processes that each may start

A process of g++ takes up to 2.0 GB, one of nvcc's cicc 1.1 GB. Build systems read how many processes they may start
from variables, each its own; those that the user or the recipe has set stay.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from email import message_from_string
from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from vbuild.build.plan import BuildBackend, FlagPlan, cross_plan, cuda_plan, flag_plan, host_of
from vbuild.build.prefixes import Prefix
from vbuild.build.watching import Watch
from vbuild.build.wrappers import (
    check_nvcc,
)
from vbuild.config.table import Env, Table
from vbuild.errors import BuildError, RecipeError
from vbuild.files.reading import read_text
from vbuild.hardware.cpu import available_cores
from vbuild.recipe.compiling import HostCompiler, HostSettings, ToolkitSpec
from vbuild.recipe.matrix import releases_of
from vbuild.recipe.model import BuildSettings
from vbuild.recipe.target import Target
from vbuild.recipe.variables import passed
from vbuild.toolchain.compiler_program import THREADS
from vbuild.toolchain.compilers import Compilers, build_compilers
from vbuild.toolchain.interpreter import Interpreter
from vbuild.toolchain.toolkit import Toolkit, check_host
from vbuild.toolchain.toolkit_provision import FETCHED, Supply, provided_toolkit

_NEED = 2 * 10**9  # bytes
# torch's extensions and flash-attn; cmake --build; cargo; numpy.distutils; the wrapper of nvcc
_VARIABLES = ("MAX_JOBS", "CMAKE_BUILD_PARALLEL_LEVEL", "CARGO_BUILD_JOBS", "NPY_NUM_BUILD_JOBS", THREADS)
_MEMORY = Path("/proc/meminfo")
# versions 2 and 1 (https://docs.kernel.org/admin-guide/cgroup-v2.html)
_LIMITS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)


def build_shares(
    builds: int, jobs: int | None, *, cores: int | None = None, memory: int | None = None
) -> tuple[int, int]:
    """How many of *builds* run at a time, *jobs* if given, and how many processes each may start."""
    memory = available_memory() if memory is None else memory
    room = max(1, min(cores or available_cores(), memory // _NEED))
    at_once = max(1, min(jobs or room, builds))
    return at_once, max(1, room // at_once)


def job_variables(processes: int, environment: Mapping[str, str]) -> dict[str, str]:
    return {name: str(processes) for name in _VARIABLES if processes and name not in environment}


def available_memory() -> int:
    """The free bytes of the machine, or of the container's share."""
    free = [available - used for limit, usage in _LIMITS if (available := _number(limit)) and (used := _number(usage))]
    lines = (line.split() for line in _text(_MEMORY).splitlines() if line.startswith("MemAvailable:"))
    free += [int(kilobytes) * 1024 for _, kilobytes, *_ in lines]
    return min(free, default=_NEED)


def _number(file: Path) -> int | None:
    text = _text(file).strip()
    return int(text) if text.isdigit() else None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii")
    except OSError:
        return ""


_LEGACY = "setuptools.build_meta:__legacy__"  # PEP 517: for projects that name no backend


class Job(Struct, frozen=True):
    """A wheel to build, with everything about this machine that the build depends on.

    *reached* are variables that name the native dependencies in *prefixes*. The build sees the user's variables
    *passed*, not those *held_back*.
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
    watch: Watch | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        licence = self.toolkit.licence if self.toolkit and self.toolkit.is_new else ""
        return tuple(note for note in (licence, self.compilers.why) if note)

    def data(self) -> dict[str, Any]:
        return {
            "label": self.target.label,
            "python": str(self.interpreter.path),
            "cpu": str(self.target.cpu),
            "backend": str(self.plan.backend),
            "properties": list(self.target.properties),
            "environment": {**dict(self.target.env), **dict(self.plan.environment)},
            "config_settings": dict(self.plan.config_settings),
            "launchers": to_builtins(self.plan.wrapper_rules),
            "nvcc": self.plan.cuda.data() if self.plan.cuda else None,
            "native": [prefix.data() for prefix in self.prefixes],
            "passed": list(self.passed),
            "held_back": self.held_back,
        }


def build_job(
    project: Path,
    target: Target,
    settings: BuildSettings,
    *,
    toolkits: Callable[[ToolkitSpec], Toolkit] = provided_toolkit,
    supply: Supply = FETCHED,
) -> Job:
    """The job of building *target* from *project*; nothing is built, installed or written."""
    if not hasattr(os, "uname"):
        raise BuildError(f"wheels are built on Linux, and this is {sys.platform}")
    # the newest release of each series; of several series the oldest, as what is new in others is missing there
    against = tuple(f"{project}=={releases_of(value)[0]}.*" for project, value in target.requires)
    settings = replace(settings, requires=(*settings.requires, *against))
    seen = passed(os.environ, settings.pass_env)
    environment = {**seen, **dict(target.env)}
    backend = recognised(project)
    # where Pythons are, uv has variables of its own
    interpreter = Interpreter.named(target.python, {**os.environ, **dict(target.env)})
    _check_python(project, interpreter)
    # nvcc does not take zig as its host compiler
    host = HostSettings(HostCompiler.SYSTEM) if target.cuda else settings.host
    compilers = build_compilers(
        host,
        target.cpu,
        interpreter=interpreter,
        environment=environment,
        zig=supply.zig,
        writes=supply.writes,
    )
    compilers.check(target.cpu, rust=backend is BuildBackend.MATURIN)
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
    plan = flag_plan(
        target.cpu,
        backend,
        compilers=compilers,
        interpreter=interpreter,
        environment=environment,
        env=target.env,
        config_settings=target.config_settings,
        flags=settings.flags,
        cuda=cuda,
    )
    plan = cross_plan(plan, compilers=compilers, interpreter=interpreter, writes=supply.writes)
    held_back = len(os.environ) - len(seen)
    return Job(target, settings, plan, compilers, interpreter, toolkit, passed=tuple(sorted(seen)), held_back=held_back)


def wanted_python(project: Path) -> str:
    """The requires-python of *project* by pyproject.toml or PKG-INFO, or ""."""
    with suppress(RecipeError, OSError):  # the backend says what is wrong with it
        stated = Table.load(project / "pyproject.toml").raw("project")
        if isinstance(stated, dict) and (python := stated.get("requires-python")):
            return str(python)
    with suppress(OSError):
        about = read_text(project / "PKG-INFO", errors="replace")
        return message_from_string(about).get("Requires-Python", "").strip()
    return ""


def _check_python(project: Path, interpreter: Interpreter) -> None:
    if not takes_python(wanted := wanted_python(project), interpreter.version):
        version = ".".join(map(str, interpreter.version))
        raise BuildError(
            f"{interpreter.path}: Python {version}, and the project wants {wanted}; expected one that it takes: "
            f"matrix.python, or --python"
        )


def takes_python(wanted: str, version: Sequence[int]) -> bool:
    """Whether the requires-python *wanted* admits *version*; any if it is not a specifier."""
    with suppress(InvalidSpecifier):
        return SpecifierSet(wanted).contains(".".join(map(str, version)), prereleases=True)
    return True


def hooks_of(project: Path) -> str:
    file = project / "pyproject.toml"
    table = Table.load(file) if file.exists() else Table({})
    system = table.handed("build-system") if "build-system" in table else Table({})
    return system.optional_text("build-backend") or _LEGACY


def recognised(project: Path) -> BuildBackend:
    return BuildBackend.named(hooks_of(project))


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
