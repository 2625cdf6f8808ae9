"""What cibuildwheel is run for, and with which variables: one run for each build of a recipe, for all its identifiers.

    targets of one build, identifiers of its machine -> Run -> CIBW_* and SOURCE_DATE_EPOCH

    CIBW_ENVIRONMENT_LINUX       PATH with the compiler wrappers first, the recipe's variables, CUDA's and Rust's
    CIBW_CONFIG_SETTINGS_LINUX   the recipe's
    CIBW_BEFORE_BUILD_LINUX      puts the compiler wrappers there, behind the project's own command
    CIBW_TEST_SKIP               where this machine cannot run what is built
    CIBW_BUILD                   where some of the identifiers are not for this build

All of it is added to what the project and the user say (`vbuild.build.cibuildwheel.options`). The plain wheels
of machines that the recipe has no level for are built as cibuildwheel alone would build them.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from vbuild.build.cibuildwheel.container import MOUNT
from vbuild.build.cibuildwheel.options import (
    PROJECT,
    WRAPPER,
    WRAPPERS,
    Inheritance,
    assignments,
    inside,
    joined,
    tables_joined,
    written,
)
from vbuild.build.cuda import cuda_plan
from vbuild.build.plan import BuildBackend, CudaPlan, FlagPlan, Rewriting, levelled
from vbuild.config.table import Env
from vbuild.elf.catalogue import driver_libraries
from vbuild.errors import BuildError
from vbuild.files.archives import OLDEST
from vbuild.hardware.cpu import Cpu
from vbuild.recipe.flags import HostCompiler
from vbuild.recipe.model import Recipe, lock_file
from vbuild.recipe.target import Target
from vbuild.toolchain.compilers import CompilerFamily, Compilers
from vbuild.toolchain.toolkit import Toolkit

_COMMANDS, _ASSIGNMENTS = joined(" && "), joined(" ")
_PROGRAM = PurePosixPath("vbuild/build/cibuildwheel/container.py")

# what the wrapper of auditwheel adds for a level: its own check knows none above the baseline
_LEVELS = "--disable-isa-ext-check"


class CibuildwheelRun(Struct, frozen=True):
    """A run of cibuildwheel for the *targets* of one build, with its *variables*, for these *identifiers*.

    *plan* and *toolkit* are None where nothing of vbuild's is put into the container. *repair* is what the wrapper of
    auditwheel adds, and *is_tested* whether the project's tests are left to run. It is the *number*th with these
    targets.
    """

    targets: tuple[Target, ...]
    identifiers: tuple[str, ...]
    variables: Env
    plan: FlagPlan | None = None
    toolkit: Toolkit | None = None
    repair: tuple[str, ...] = ()
    is_tested: bool = True
    number: int = 1

    def __str__(self) -> str:
        return ", ".join(map(str, self.targets))

    @property
    def name(self) -> str:
        """A file name of its own."""
        again = f"-{self.number}" if self.number != 1 else ""
        return f"{self.targets[0]}{again}" if self.plan else f"{self.targets[0]}-bare"

    @property
    def cpu(self) -> Cpu:
        return self.targets[0].cpu

    def data(self) -> dict[str, Any]:
        """The run as JSON holds it."""
        return {
            "labels": [target.label for target in self.targets],
            "identifiers": list(self.identifiers),
            "cpu": str(self.cpu) if self.plan else None,
            "tested": self.is_tested,
            "variables": dict(self.variables),
        }

    def settings(self) -> dict[str, Any]:
        """What the program in the container has to know, besides where its logs go."""
        if self.plan is None:
            return {}
        rules = self.plan.rewriting
        return {
            "cpu": self.cpu.march,
            "machine": self.cpu.machine,
            "is_baseline": self.cpu.is_baseline,
            "rules": {name: getattr(rules, name) for name in Rewriting.__struct_fields__},
            "nvcc": self.plan.cuda.data() if self.plan.cuda else None,
            "auditwheel": self.repair,
            "project": str(PROJECT),
            "wrappers": str(WRAPPERS),
            "wrapper": WRAPPER,
        }


class RunContext(Struct, frozen=True):
    """What runs depend on besides the recipe.

    This *machine*, the user's *environment*, the *setup* folder as the container sees it, the *backend* of the project,
    and what gives a *toolkit*.
    """

    machine: Cpu | None
    environment: Mapping[str, str]
    setup: PurePosixPath
    backend: BuildBackend
    toolkit: Callable[[Target], Toolkit]


def runs(
    recipe: Recipe, targets: Sequence[Target], identifiers: Sequence[str], context: RunContext
) -> tuple[CibuildwheelRun, ...]:
    """The runs that make *targets*, those of one Python, for *identifiers*, all that cibuildwheel would build.

    `BuildError` if there is none.
    """
    if not identifiers:
        raise BuildError(
            f"{recipe.file}: cibuildwheel selects nothing; expected some: look at CIBW_BUILD, CIBW_SKIP, CIBW_ARCHS"
        )
    builds: dict[tuple[str, ...], list[Target]] = {}
    for target in targets:
        builds.setdefault(target.build_key[1:], []).append(target)
    found: list[CibuildwheelRun] = []
    for group in builds.values():
        first = group[0]
        mine = [identifier for identifier in identifiers if _is_for(identifier, first)]
        if mine:
            found.append(_levelled(recipe, tuple(group), mine, identifiers, context))
        others = [identifier for identifier in identifiers if machine_of(identifier) != first.cpu.machine]
        if others and (plain := next((target for target in group if target.label is None), None)):
            found.append(_bare(plain, others, identifiers, context))
    if not found:
        machine = targets[0].cpu.machine
        what = f"nothing to build for {machine}: cibuildwheel has {', '.join(identifiers)}"
        raise BuildError(f"{recipe.file}: {what}; expected some for it: CIBW_ARCHS={machine}")
    return tuple(found)


def again(
    recipe: Recipe, run: CibuildwheelRun, rules: Rewriting, identifiers: Sequence[str], context: RunContext
) -> CibuildwheelRun:
    """*run* once more, by other *rules* of the compiler wrappers, for those *identifiers* of it only."""
    number = run.number + 1
    return _levelled(recipe, run.targets, identifiers, (), context, rules=rules, number=number)


def machine_of(identifier: str) -> str:
    """The machine of ``cp312-manylinux_x86_64``, as `Cpu` names it."""
    return identifier.partition("linux_")[2]


def unheard(recipe: Recipe) -> tuple[str, ...]:
    """The keys of *recipe*, and its lock, that have no effect where cibuildwheel builds, each with what has."""
    build, lock = recipe.build, lock_file(recipe.file)
    found = {
        "build.patches": (build.patches, "apply them in before-all"),
        "build.requires": (build.requires, "name them in build-system.requires"),
        "build.isolation": (not build.isolation, "that is build-frontend's"),
        "build.host": (build.host.compiler is HostCompiler.ZIG, "the compilers are those of the image"),
        "build.glibc": (build.host.glibc, "the image chooses it"),
        "build.cache": (build.cache != "auto", "mount a cache, and set it up in before-all"),
        "build.pass-env": (build.pass_env, "name them in environment-pass"),
        lock.name: (lock.exists(), "give build-system.requires versions"),
        "native": (recipe.natives, "build what it lists in before-all"),
        "test.command": (recipe.test.command, "its own test-command counts"),
    }
    where = {"test.command": " but in the emulator"} if recipe.test.is_emulated else {}
    return tuple(
        f"{key}: has no effect with cibuildwheel{where.get(key, '')}; {advice}"
        for key, (is_set, advice) in found.items()
        if is_set
    )


def _is_for(identifier: str, target: Target) -> bool:
    """Whether *target* can be built for *identifier*: on its machine, and CUDA with glibc only."""
    return machine_of(identifier) == target.cpu.machine and not (target.cuda and "musllinux" in identifier)


def _bare(plain: Target, mine: Sequence[str], all_of_them: Sequence[str], context: RunContext) -> CibuildwheelRun:
    options = Inheritance.of(context.environment)
    _choose(options, mine, all_of_them)
    return CibuildwheelRun((plain,), tuple(mine), _variables(options, context))


def _levelled(
    recipe: Recipe,
    group: tuple[Target, ...],
    mine: Sequence[str],
    all_of_them: Sequence[str],
    context: RunContext,
    *,
    rules: Rewriting | None = None,
    number: int = 1,
) -> CibuildwheelRun:
    target = group[0]
    toolkit = context.toolkit(target) if target.cuda else None
    cuda = _cuda(recipe, target, toolkit, context.backend) if toolkit else None
    rules = rules or levelled(target.cpu, rules=recipe.build.flags)
    settings = (*target.config_settings, *(cuda.config_settings if cuda else ()))
    plan = FlagPlan(
        cpu=target.cpu,
        backend=context.backend,
        environment=assignments(target, rules, cuda),
        config_settings=settings,
        rewriting=rules,
        cuda=cuda.rules if cuda else None,
    )
    is_tested = target.cpu.is_baseline or bool(context.machine and context.machine.runs(target.cpu))
    repair = _repair(recipe, target)
    run = CibuildwheelRun(group, tuple(mine), (), plan, toolkit, repair, is_tested, number=number)
    options = Inheritance.of(context.environment)
    options.add("environment", " ".join(f"{name}={text}" for name, text in plan.environment), _ASSIGNMENTS)
    if plan.config_settings:
        options.add("config-settings", written(plan.config_settings), tables_joined)
    options.add("before-build", _before_build(recipe, run, context.setup), _COMMANDS, is_first=True)
    if not options.is_given("repair-wheel-command"):
        if recipe.repair.command:
            options.replace("repair-wheel-command", recipe.repair.command)
        elif recipe.repair.skip:
            options.replace("repair-wheel-command", "")
    if not is_tested:
        options.replace("test-skip", "*")
    _choose(options, mine, all_of_them)
    return replace(run, variables=_variables(options, context))


def _choose(options: Inheritance, mine: Sequence[str], all_of_them: Sequence[str]) -> None:
    if len(mine) != len(all_of_them):
        options.replace("build", " ".join(mine))


def _variables(options: Inheritance, context: RunContext) -> Env:
    # the same source gives the same wheel: dates in archives are taken from it
    epoch = context.environment.get("SOURCE_DATE_EPOCH") or str(OLDEST)
    return tuple({**options.result(), "SOURCE_DATE_EPOCH": epoch}.items())


def _cuda(recipe: Recipe, target: Target, toolkit: Toolkit, backend: BuildBackend) -> CudaPlan | None:
    if target.cuda is None:
        return None
    # nvcc takes gcc by itself; where the image has none, the program in the container names another
    compilers = Compilers(CompilerFamily.GCC, (), target.cpu.machine, "gcc", "g++", (("gcc", ("gcc",)),))
    return cuda_plan(
        target.cuda,
        recipe.build.cuda,
        home=Path(inside(toolkit.root)),
        backend=backend,
        compilers=compilers,
        environment=dict(target.env),
        config_settings=target.config_settings,
    )


def _repair(recipe: Recipe, target: Target) -> tuple[str, ...]:
    exclude = (*recipe.repair.exclude, *(driver_libraries() if target.cuda else ()))
    return (
        *(() if target.cpu.is_baseline else (_LEVELS,)),
        *(f"--exclude={pattern}" for pattern in exclude),
        *((f"--plat={recipe.repair.plat}",) if recipe.repair.plat else ()),
    )


def _before_build(recipe: Recipe, run: CibuildwheelRun, setup: PurePosixPath) -> str:
    """The command that runs the program in the container when the project's own, which comes behind it, is done.

    That may install a compiler, and may end in anything: a newline, a comment. So ours is the shell's trap.
    """
    program = f"python -I -S -B {shlex.quote(str(setup / _PROGRAM))} {shlex.quote(str(setup / 'runs' / run.name))}"
    more = (f' && (cd "{{package}}" && sh -c {shlex.quote(command)})' for command in recipe.build.before_build)
    missing = f"vbuild: {setup} cannot be read in the container; {MOUNT}"
    is_there = f"[ -r {shlex.quote(str(setup / _PROGRAM))} ]"
    put = f"{program}{''.join(more)} || status=$?"
    say = f"echo {shlex.quote(missing)} >&2; status=1"
    steps = f"status=$?; if [ $status -eq 0 ]; then if {is_there}; then {put}; else {say}; fi; fi; exit $status"
    return f"trap {shlex.quote(steps)} EXIT"
