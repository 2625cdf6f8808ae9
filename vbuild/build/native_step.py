"""One native dependency for one CPU level: what its build gets, and the key of its outcome in the cache.

    source, patches        what is built                 system, arguments, env, script    how
    plan, compilers        for which level, with what    prefixes of the steps before      against what
    variables, packages    of this machine               vbuild itself

Two with one key are one build, for whatever Python: the flags of an interpreter have no part in it. A dependency that
is the same for all levels is built for the baseline.
"""

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from vbuild.build.environment import Prefix, variables
from vbuild.build.identity import canonical, counted, locked, ourselves, system
from vbuild.build.plan import BuildBackend, FlagPlan, RecipeFlags, planned
from vbuild.config.requirements import required_project
from vbuild.errors import BuildError
from vbuild.files.hashing import key_of, sha256_of
from vbuild.hardware.cpu import Cpu
from vbuild.recipe.lock import Lock
from vbuild.recipe.matrix import HostSettings
from vbuild.recipe.native import Native, NativeSystem
from vbuild.recipe.variables import passed
from vbuild.toolchain.compilers import Compilers
from vbuild.toolchain.interpreter import Interpreter, facts, named
from vbuild.toolchain.toolkit.provision import Supply
from vbuild.toolchain.zig import chosen

# what each way of building starts
PROGRAMS = {
    NativeSystem.AUTOTOOLS: ("make",),
    NativeSystem.CMAKE: ("cmake",),
    NativeSystem.MESON: ("meson", "ninja"),
    NativeSystem.SCRIPT: (),
}
# what projects start besides
_OTHERS = ("make", "cmake", "ninja", "meson", "m4", "autoconf", "automake", "libtoolize", "pkg-config", "perl", "yasm")

_DIGITS = 16  # of a key, in the name of a folder: paths are in every command

# autoconf's own, but for debug information, which is as large as the code
_OPTIMISATION = "-O2"


class BuildStep(Struct, frozen=True):
    """A native dependency to be built by *plan*; *prefix* is where it will be, *before* what it is built against.

    *source* is the digest of its source as it was when the step was planned.
    """

    native: Native
    source: str
    plan: FlagPlan
    compilers: Compilers
    interpreter: Interpreter
    prefix: Prefix
    before: tuple[Prefix, ...] = ()

    def __str__(self) -> str:
        return f"native {self.native.name}"

    @property
    def label(self) -> str:
        """A file name for what belongs to it alone: its log, and its folder."""
        level = f"-{self.plan.cpu.label}" if self.native.per_level else ""
        return f"native-{self.native.name}{level}"


class Planner(Struct, frozen=True):
    """Makes steps: with the compiler that *host* names, prefixes below *root*; *machine* is the CPU that runs them.

    Their commands see what builds see of the user's variables, those called as in *pass_env* among them.
    """

    host: HostSettings
    root: Path
    machine: Cpu | None
    supply: Supply
    digest_of: Callable[[Native], str]
    pass_env: tuple[str, ...] = ()
    lock: Lock | None = None

    def steps(
        self, natives: Sequence[Native], cpu: Cpu, *, baseline: Sequence[BuildStep] = ()
    ) -> tuple[BuildStep, ...]:
        """What is built of *natives* for wheels for *cpu*, in their order; `BuildError` if this machine cannot.

        Those that are built once are taken from *baseline*, the steps for that, and built against those before them
        there; it is empty where *cpu* is the baseline itself.
        """
        made: list[BuildStep] = []
        for index, native in enumerate(natives):
            is_shared = baseline and not native.per_level
            made.append(baseline[index] if is_shared else self._step(native, cpu, tuple(step.prefix for step in made)))
        return tuple(made)

    def _step(self, native: Native, cpu: Cpu, before: tuple[Prefix, ...]) -> BuildStep:
        environment = {**passed(os.environ, self.pass_env), **dict(native.env)}
        if cpu.machine != os.uname().machine:
            raise BuildError(
                f"native {native.name}: cannot be built for {cpu.machine} on {os.uname().machine}; expected wheels for "
                f"this machine, or a project without native dependencies"
            )
        _check_programs(native, environment)
        interpreter = Interpreter.at(Path(sys.executable), environment)
        compilers = chosen(
            self.host,
            cpu,
            interpreter=interpreter,
            environment=environment,
            zig=self.supply.zig,
            writes=self.supply.writes,
        )
        compilers.check(cpu)
        runs = self.machine is not None and self.machine.runs(cpu)
        reached = variables(before, environment, runs=runs, is_zig=bool(compilers.zig_target))
        plan = _planned(
            native, cpu, compilers=compilers, interpreter=interpreter, environment=environment, reached=reached
        )
        source = self.digest_of(native)
        known = {**counted(os.environ, self.pass_env), **dict(native.env)}
        packages = locked(self.lock, interpreter) if native.requires else None
        key = _key(native, plan, before, source=source, compilers=compilers, known=known, packages=packages)
        about = " ".join([f"{native.source} by {native.system}", *native.arguments_for(cpu)])
        folder = self.root / f"{native.name}-{key[:_DIGITS]}"
        prefix = Prefix(native.name, key, folder / "prefix", cpu, about)
        return BuildStep(native, source, plan, compilers, interpreter, prefix, before)


def _check_programs(native: Native, environment: Mapping[str, str]) -> None:
    """`BuildError` if a program is missing that no package of the index is to bring."""
    brought = {required_project(text) for text in native.requires}
    for program in PROGRAMS[native.system]:
        if program not in brought and shutil.which(program, path=environment.get("PATH", os.defpath)) is None:
            known = "" if program == "make" else f", or requires = [{program!r}]"
            raise BuildError(f"native {native.name}: no {program} on PATH; expected it to be installed{known}")


def _planned(
    native: Native,
    cpu: Cpu,
    *,
    compilers: Compilers,
    interpreter: Interpreter,
    environment: Mapping[str, str],
    reached: Mapping[str, str],
) -> FlagPlan:
    """The plan of *native* for *cpu*; *reached* are the variables that lead to the steps before."""
    plan = planned(
        cpu,
        BuildBackend.SCIKIT_BUILD_CORE,  # which takes nothing from the interpreter
        compilers=compilers,
        interpreter=interpreter,
        environment=environment,
        recipe=RecipeFlags(env=native.env, keep=native.keep_flags),
    )
    found = dict(plan.environment)
    if native.system not in {NativeSystem.CMAKE, NativeSystem.MESON}:  # these are told to build a release
        for name in {"CFLAGS", "CXXFLAGS", "FFLAGS"} & found.keys():
            found[name] = f"{_OPTIMISATION} {found[name]}"
    # the interpreter's own folders have no part in this, and would tell the builds of two Pythons apart
    rewriting = replace(plan.rewriting, dropped=())
    return replace(
        plan, environment=tuple(sorted({**found, **reached}.items())), config_settings=(), rewriting=rewriting
    )


def _key(
    native: Native,
    plan: FlagPlan,
    before: Sequence[Prefix],
    *,
    source: str,
    compilers: Compilers,
    known: Mapping[str, str],
    packages: Mapping[str, object] | None,
) -> str:
    """The key of *native*; *known* are the variables that tell its builds apart, *packages* those of a lock."""
    path = known.get("PATH", os.defpath)
    programs = {name for name, _ in compilers.programs}.union(_OTHERS, ("as", "ld", "ar", "ranlib", "strip"))
    return key_of(
        {
            "source": source,
            "patches": [_digest(patch) for patch in native.patches],
            "native": [native.name, native.system, native.before_build, native.script, native.requires],
            "arguments": native.arguments_for(plan.cpu),
            "plan": canonical(plan),
            "compilers": canonical(compilers),
            "programs": named(programs, path),
            "commands": [facts(Path(command[0])) for _, command in compilers.programs if command],
            "before": [prefix.key for prefix in before],
            "locked": packages,
            "variables": dict(known),
            "system": system(),
            "vbuild": ourselves(),
        }
    )


def _digest(file: Path) -> str:
    try:
        return sha256_of(file)
    except OSError as error:
        raise BuildError(f"{file}: cannot be read: {error.strerror}") from error
