"""Runs of cibuildwheel: one for each build of a recipe, and the variables that it adds to the project's and the user's.

    CIBW_ENVIRONMENT_LINUX       PATH with the compiler wrappers first, the recipe's variables, CUDA's and Rust's
    CIBW_CONFIG_SETTINGS_LINUX   the recipe's
    CIBW_BEFORE_BUILD_LINUX      puts the compiler wrappers there, behind the project's own command
    CIBW_TEST_SKIP               if this machine cannot run what is built
    CIBW_BUILD                   if some of the identifiers are not for this build

The plain wheels of machines that the recipe has no level for are built as cibuildwheel alone would build them.

    defaults < project < overrides < CIBW_X < CIBW_X_LINUX     each replaces all before, or, by a rule in CIBW_INHERIT,
                                                               goes behind or in front of it

What is added goes outermost. https://cibuildwheel.pypa.io/en/stable/configuration/#inherit

The option ``environment`` gets assignments of the shell, which cibuildwheel evaluates in the container, by bashlex, for
each identifier, before the compiler wrappers are there:

    NAME="value"                                      the recipe's
    TZ="$(sh -c '... || echo UTC')"                   what makes builds the same, unless it is set
    CUDAARCHS="$(sh -c '... || echo "75-real"')"      a knob, unless the project has set it
    CCACHE_NAMESPACE="$CCACHE_NAMESPACE-1f0c…"        results of other rules are none for this build
    PATH="/tmp/vbuild:$PATH"                          the compiler wrappers first

    /project              the folder that cibuildwheel runs in, copied
    /host/<path>          the host's <path>: the kit, and CUDA toolkits
    /tmp/vbuild           compiler wrappers, first on PATH; made anew for each identifier by container.py
    /tmp/vbuild/cuda      the CUDA_HOME with the wrapper of nvcc
"""

import hashlib
import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any, Self

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace

from vbuild.build.cibuildwheel.container import MOUNT
from vbuild.build.plan import (
    RELATIVE_RPATHS,
    SETTLED,
    BuildBackend,
    CudaPlan,
    FlagPlan,
    WrapperRules,
    cuda_plan,
    level_rules,
)
from vbuild.config.table import Env, Setting
from vbuild.elf.catalogue import driver_libraries
from vbuild.errors import BuildError
from vbuild.files.atomic import OLDEST
from vbuild.hardware.cpu import Cpu
from vbuild.recipe.compiling import HostCompiler
from vbuild.recipe.model import Recipe, lock_file
from vbuild.recipe.target import Target
from vbuild.toolchain.compilers import CompilerFamily, Compilers
from vbuild.toolchain.toolkit import Toolkit

PROJECT = PurePosixPath("/project")
WRAPPERS = PurePosixPath("/tmp/vbuild")  # noqa: S108 - nobody else is in the container
CUDA = WRAPPERS / "cuda"
HOST = PurePosixPath("/host")

WRAPPER = "VBUILD_RUSTC_WRAPPER"  # has the RUSTC_WRAPPER of the project

# cuda_plan's variables that lead to the toolkit; the project chooses the others
_HOMES = ("CUDA_HOME", "CUDA_PATH")
_FIXED = ("CUDACXX", "NVCC", "PYTORCH_NVCC")
_ADDITIVE = ("CMAKE_ARGS",)
_CMAKE_ARGS = '"$CMAKE_ARGS"'
_DIGITS = 16  # of a digest

# caches find results by the preprocessed source: compiler wrappers record what they were called for, and a wheel made
# without them is none of its level
_ASKING = (("CCACHE_NODIRECT", "1"), ("SCCACHE_DIRECT", "false"))

# the target of a Rust that is installed only later is told from the C library
_RUST_HOST = (
    'rustc -vV 2>/dev/null | sed -n "s/^host: //p" | grep . || '
    'echo "$(uname -m)-unknown-linux-$(ldd --version 2>&1 | grep -q musl && echo musl || echo gnu)"'
)

INHERIT = "CIBW_INHERIT"
_LINUX = "linux"

Join = Callable[[str, str], str]


def inside(path: Path) -> PurePosixPath:
    return HOST / path.resolve().relative_to("/")


def assignments(target: Target, rules: WrapperRules, cuda: CudaPlan | None) -> Env:
    words = {name: _quoted(value) for name, value in target.env}
    # makes builds the same anywhere, unless image, project or recipe say otherwise
    words |= {name: _unless_set(name, f"echo {value}") for name, value in SETTLED.items() if name not in words}
    for name, value in cuda.environment if cuda else ():
        if name in _HOMES:
            words[name] = _quoted(str(CUDA))
        elif name in _FIXED or name in words:
            words[name] = _quoted(value)
        elif name in _ADDITIVE:
            words[name] = f'"${name} {_escaped(value)}"'
        else:
            words[name] = _unless_set(name, f'echo "{value}"')
    # in front, so that anybody else's value counts; behind the opening quote
    words["CMAKE_ARGS"] = f'"{RELATIVE_RPATHS} {words.get("CMAKE_ARGS", _CMAKE_ARGS)[1:]}'
    bins = [str(WRAPPERS), *([str(CUDA / "bin")] if cuda else [])]
    settings = json.dumps([to_builtins(rules), cuda.rules.data() if cuda else None], sort_keys=True)
    return (
        *words.items(),
        # cargo finds rustc by itself, and does not see the flags that its wrapper adds: see vbuild.build.wrappers
        (WRAPPER, '"$RUSTC_WRAPPER"'),
        ("RUSTC_WRAPPER", _quoted(str(WRAPPERS / "rustc-launcher"))),
        ("CARGO_TARGET_DIR", _quoted(str(PROJECT / "target"))),
        ("CARGO_BUILD_TARGET", _unless_set("CARGO_BUILD_TARGET", _RUST_HOST)),
        # a ccache of the project's sees only commands as they were, and may only ask a compiler for its version
        ("CCACHE_NAMESPACE", f'"$CCACHE_NAMESPACE-{hashlib.sha256(settings.encode()).hexdigest()[:_DIGITS]}"'),
        *((name, _quoted(value)) for name, value in _ASKING),
        ("PATH", f'"{":".join(bins)}:$PATH"'),
    )


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'


def _escaped(text: str) -> str:
    """*text* for double quotes: cibuildwheel's parser fails with single ones."""
    return re.sub(r'[\\"$`]', r"\\\g<0>", text)


def _unless_set(name: str, command: str) -> str:
    return f""""$(sh -c 'printenv {name} | grep . || {command}')\""""


class InheritanceRule(StrEnum):
    NONE = "none"
    APPEND = "append"
    PREPEND = "prepend"


class Inheritance(Struct):
    given: Mapping[str, str]
    rules: dict[str, InheritanceRule]
    variables: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self:
        return cls(environment, _rules(environment.get(INHERIT, "")))

    def result(self) -> dict[str, str]:
        inherit = "; ".join(f"{option}: {rule}" for option, rule in self.rules.items())
        return {**self.variables, INHERIT: inherit} if self.variables else {}

    def replace(self, option: str, value: str) -> None:
        self.variables[_variable(option)] = value
        self.rules.pop(option, None)

    def is_given(self, option: str) -> bool:
        return any(_variable(name) in self.given for name in (option, f"{option}-{_LINUX}"))

    def add(self, option: str, value: str, join: Join, *, is_first: bool = False) -> None:
        """Put *value* behind all values of *option*, or before them if it *is_first*."""
        front, back, is_new = "", "", False
        for name in (option, f"{option}-{_LINUX}"):
            text = self.given.get(_variable(name))
            if text is None:
                continue
            text = text.strip()  # a newline, as YAML leaves one, would end the option there
            match self.rules.get(name, InheritanceRule.NONE):
                case InheritanceRule.NONE:
                    front, back, is_new = "", text, True
                case InheritanceRule.APPEND:
                    back = join(back, text)
                case InheritanceRule.PREPEND:
                    front = join(text, front)
        if is_first:
            front = join(value, front)
        else:
            back = join(back, value)
        if is_new:
            self._set(option, "", InheritanceRule.APPEND)
            self._set(f"{option}-{_LINUX}", join(front, back), InheritanceRule.NONE)
        else:
            self._set(option, front, InheritanceRule.PREPEND)
            self._set(f"{option}-{_LINUX}", back, InheritanceRule.APPEND)

    def _set(self, name: str, value: str, rule: InheritanceRule) -> None:
        if value or _variable(name) in self.given:
            self.variables[_variable(name)] = value
            self.rules[name] = rule


def joined(separator: str) -> Join:
    return lambda before, after: separator.join(text for text in (before, after) if text)


def tables_joined(before: str, after: str) -> str:
    if not (before and after):
        return before or after
    return written({**_table(before), **_table(after)}.items())


def written(settings: Iterable[tuple[str, Setting]]) -> str:
    pairs = ((key, text) for key, value in settings for text in ((value,) if isinstance(value, str) else value))
    return " ".join(f"{key}={shlex.quote(text)}" for key, text in pairs)


def _table(text: str) -> dict[str, tuple[str, ...]]:
    settings: dict[str, tuple[str, ...]] = {}
    for word in shlex.split(text):
        key, is_pair, value = word.partition("=")
        if not is_pair:
            raise BuildError(f"CIBW_CONFIG_SETTINGS: found {word!r}, expected KEY=VALUE")
        settings[key] = (*settings.get(key, ()), value)
    return settings


def _variable(option: str) -> str:
    return f"CIBW_{option.upper().replace('-', '_')}"


def _rules(text: str) -> dict[str, InheritanceRule]:
    """The rules in *text*, such as ``environment: append; config-settings``; append is the default."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";")
    lexer.commenters = ""
    lexer.whitespace_split = True
    rules: dict[str, InheritanceRule] = {}
    for field_text in " ".join(lexer).split(";"):
        words = field_text.replace(":", " : ").split()
        match words:
            case [option, ":", rule] if rule in set(InheritanceRule):
                rules[option] = InheritanceRule(rule)
            case [_, ":", *_]:
                raise BuildError(f"{INHERIT}={text}: expected as in 'environment: append; before-build: prepend'")
            case _:
                rules |= dict.fromkeys(words, InheritanceRule.APPEND)
    return rules


_COMMANDS, _ASSIGNMENTS = joined(" && "), joined(" ")
_PROGRAM = PurePosixPath("vbuild/build/cibuildwheel/container.py")

# for a level: auditwheel's own check knows none above the baseline
_LEVELS = "--disable-isa-ext-check"


class CibuildwheelRun(Struct, frozen=True):
    """A run for the *targets* of one build and these *identifiers*.

    It has no *plan* if vbuild puts nothing into the container. *repair* is what auditwheel's wrapper adds.
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
        again = f"-{self.number}" if self.number != 1 else ""
        return f"{self.targets[0]}{again}" if self.plan else f"{self.targets[0]}-bare"

    @property
    def cpu(self) -> Cpu:
        return self.targets[0].cpu

    def settings(self) -> dict[str, Any]:
        if self.plan is None:
            return {}
        rules = self.plan.wrapper_rules
        return {
            "cpu": self.cpu.march,
            "machine": self.cpu.machine,
            "is_baseline": self.cpu.is_baseline,
            "rules": {name: getattr(rules, name) for name in WrapperRules.__struct_fields__},
            "nvcc": self.plan.cuda.data() if self.plan.cuda else None,
            "auditwheel": self.repair,
            "project": str(PROJECT),
            "wrappers": str(WRAPPERS),
            "wrapper": WRAPPER,
        }


class RunContext(Struct, frozen=True):
    """What runs depend on besides the recipe; *setup* is a folder as the container sees it."""

    machine: Cpu | None
    environment: Mapping[str, str]
    setup: PurePosixPath
    backend: BuildBackend
    toolkit: Callable[[Target], Toolkit]


def planned_runs(
    recipe: Recipe, targets: Sequence[Target], identifiers: Sequence[str], context: RunContext
) -> tuple[CibuildwheelRun, ...]:
    """The runs that make *targets* of one Python for *identifiers*."""
    if not identifiers:
        raise BuildError(
            f"{recipe.file}: cibuildwheel selects nothing; expected some: look at CIBW_BUILD, CIBW_SKIP, CIBW_ARCHS"
        )
    builds: dict[tuple[str, ...], list[Target]] = {}
    for target in targets:
        builds.setdefault(target.build_key[1:], []).append(target)
    planned_runs: list[CibuildwheelRun] = []
    for group in builds.values():
        first = group[0]
        mine = [identifier for identifier in identifiers if machine_of(identifier) == first.cpu.machine]
        if first.cuda:  # which needs glibc
            mine = [identifier for identifier in mine if "musllinux" not in identifier]
        if mine:
            planned_runs.append(_levelled(recipe, tuple(group), mine, identifiers, context))
        others = [identifier for identifier in identifiers if machine_of(identifier) != first.cpu.machine]
        if others and (plain := next((target for target in group if target.label is None), None)):
            planned_runs.append(_bare(plain, others, identifiers, context))
    if not planned_runs:
        machine = targets[0].cpu.machine
        problem = f"nothing to build for {machine}: cibuildwheel has {', '.join(identifiers)}"
        raise BuildError(f"{recipe.file}: {problem}; expected some for it: CIBW_ARCHS={machine}")
    return tuple(planned_runs)


def run_again(
    recipe: Recipe, run: CibuildwheelRun, rules: WrapperRules, identifiers: Sequence[str], context: RunContext
) -> CibuildwheelRun:
    number = run.number + 1
    return _levelled(recipe, run.targets, identifiers, (), context, rules=rules, number=number)


def machine_of(identifier: str) -> str:
    """The machine of ``cp312-manylinux_x86_64``, as `Cpu` names it."""
    return identifier.partition("linux_")[2]


def ignored_keys(recipe: Recipe) -> tuple[str, ...]:
    build, lock = recipe.build, lock_file(recipe.file)
    keys = {
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
        for key, (is_set, advice) in keys.items()
        if is_set
    )


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
    rules: WrapperRules | None = None,
    number: int = 1,
) -> CibuildwheelRun:
    target = group[0]
    toolkit = context.toolkit(target) if target.cuda else None
    cuda = None
    if target.cuda and toolkit:
        # nvcc takes gcc; where the image has none, the program in the container names another
        compilers = Compilers(CompilerFamily.GCC, (), target.cpu.machine, "gcc", "g++", (("gcc", ("gcc",)),))
        cuda = cuda_plan(
            target.cuda,
            recipe.build.cuda,
            home=Path(inside(toolkit.root)),
            backend=context.backend,
            compilers=compilers,
            environment=dict(target.env),
            config_settings=target.config_settings,
        )
    rules = rules or level_rules(target.cpu, recipe.build.flags)
    settings = (*target.config_settings, *(cuda.config_settings if cuda else ()))
    plan = FlagPlan(
        cpu=target.cpu,
        backend=context.backend,
        environment=assignments(target, rules, cuda),
        config_settings=settings,
        wrapper_rules=rules,
        cuda=cuda.rules if cuda else None,
    )
    is_tested = target.cpu.is_baseline or bool(context.machine and context.machine.runs(target.cpu))
    exclude = (*recipe.repair.exclude, *(driver_libraries() if target.cuda else ()))
    repair = (
        *(() if target.cpu.is_baseline else (_LEVELS,)),
        *(f"--exclude={pattern}" for pattern in exclude),
        *((f"--plat={recipe.repair.plat}",) if recipe.repair.plat else ()),
    )
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


def _before_build(recipe: Recipe, run: CibuildwheelRun, setup: PurePosixPath) -> str:
    """The command that runs our program after the project's own before-build.

    That may end in a newline or a comment, so ours is the shell's trap.
    """
    program = f"python -I -S -B {shlex.quote(str(setup / _PROGRAM))} {shlex.quote(str(setup / 'runs' / run.name))}"
    more = (f' && (cd "{{package}}" && sh -c {shlex.quote(command)})' for command in recipe.build.before_build)
    missing = f"vbuild: {setup} cannot be read in the container; {MOUNT}"
    is_there = f"[ -r {shlex.quote(str(setup / _PROGRAM))} ]"
    put = f"{program}{''.join(more)} || status=$?"
    say = f"echo {shlex.quote(missing)} >&2; status=1"
    steps = f"status=$?; if [ $status -eq 0 ]; then if {is_there}; then {put}; else {say}; fi; fi; exit $status"
    return f"trap {shlex.quote(steps)} EXIT"
