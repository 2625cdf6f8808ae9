"""Build the native dependencies of a recipe, each once, before the wheels that need them.

    step -> in the cache already
         -> fetched, unpacked, patched -> configured, built, installed -> made fit -> put into the cache

Threads and processes that need the same step at the same time wait for the first. Threads that waited share its
outcome, a failure too.

Finished native dependencies are in the user's cache. The hash of an entry is checked whenever it is used.

    native/<name>-<key>/prefix/      what was installed
    native/<name>-<key>/entry.json   the SHA-256 of all that
"""

import hashlib
import json
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol, Self

from msgspec import Struct, convert, to_builtins
from msgspec.structs import replace

from vbuild.build.caching import Ccache
from vbuild.build.environment import BuildEnvironment, Environments
from vbuild.build.identity import BuildKeys
from vbuild.build.kept_flags import KeptFlags
from vbuild.build.native_step import BuildStep, Place, Planner, commands, made_fit, prefix_of
from vbuild.build.plan import Rewriting
from vbuild.build.prefixes import Prefix, variables
from vbuild.build.source import copied, digest, fetched
from vbuild.build.watching import Looked, Watch
from vbuild.build.wrappers import BuildFolders, CompilerWrappers, Override, install, named
from vbuild.errors import BinaryError, BuildError, at
from vbuild.files.cache import ELSEWHERE, Cache, Part
from vbuild.files.hashing import sealed, unsealed
from vbuild.hardware.cpu import Cpu
from vbuild.process.run import check_running, run
from vbuild.process.threads import OncePerKey
from vbuild.recipe.flags import HostSettings
from vbuild.recipe.lock import Lock
from vbuild.recipe.source import Native
from vbuild.recipe.spelling import baseline
from vbuild.recipe.variables import passed, undisturbed
from vbuild.sbom.model import Material
from vbuild.toolchain.toolkit_provision import Supply

_ENTRY = "entry.json"


class OwnFlagsRecord(Struct, frozen=True):
    """What became of a native dependency's own flags: in its commands, and those that single files *kept*.

    *materials* are the compilers that ran for it, and the packages that were installed for it.
    """

    overrides: tuple[Override, ...] = ()
    kept: KeptFlags = KeptFlags()
    materials: tuple[Material, ...] = ()


class NativeCache(Struct, frozen=True):
    """The entries below *root*; with *fresh*, those that are older than *since* are passed over and replaced."""

    root: Path
    since: float = 0.0

    @classmethod
    def of_user(cls, *, fresh: bool = False) -> Self:
        """The cache that all runs of this user share; if *fresh*, what it had before this run does not count."""
        return cls(Cache.of(Part.NATIVE).folder, time.time() if fresh else 0.0)

    def has(self, prefix: Prefix) -> bool:
        """Whether *prefix* is there, whole; it has been used then. One that is damaged is replaced by who builds it."""
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
        """What became of the own flags of *prefix*, which is there."""
        return convert(json.loads(unsealed((prefix.folder.parent / _ENTRY).read_bytes()))["flags"], OwnFlagsRecord)

    def put(self, prefix: Prefix, tree: Path, flags: "OwnFlagsRecord") -> None:
        """Keep a copy of *tree* as *prefix*, instead of what was there; `BuildError` if that cannot be."""
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
        """Nobody else builds *prefix* in the block; who waits for that calls *check*, which may raise."""
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
    """The SHA-256 of all that is below *folder*: names, modes, links and contents."""
    total = hashlib.sha256()
    for place, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted([*folders, *files]):
            path = Path(place, name)
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
    """The *natives* of a recipe, and how and where they are built: in *stage*, with logs of what fails in *logs*.

    What is built is kept in *cache*. *exclude* is a folder, that of the results, which is no part of a source around
    it. *machine* is the CPU that runs the steps; they see the user's variables that builds see, and those whose names
    *pass_env* has. *lock* has the packages that they require. *looked* has what earlier ones have looked for.
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
    """What keeps which files builds have looked for: `vbuild.release.cache.BuildCache`."""

    def key(self, keys: BuildKeys) -> str: ...

    def keep_looked(self, bare: str, key: str, looked: Looked) -> None: ...


class NativeBuilder:
    """Builds the native dependencies that *settings* name, for one run."""

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
            replace(one, sources=tuple(f"native {prefix.name}: {source}" for source in one.sources))
            for prefix in prefixes
            for one in self._settings.cache.flags(prefix).overrides
        )

    def materials(self, prefixes: Sequence[Prefix]) -> tuple[Material, ...]:
        """The compilers that ran for *prefixes*, which are there, and the packages that were installed for them."""
        return tuple(part for prefix in prefixes for part in self._settings.cache.flags(prefix).materials)

    def learn(self, prefixes: Sequence[Prefix], above: Collection[str], *, is_sure: bool) -> str:
        """Have `steps` build those of *prefixes* again without the flags that put the functions *above* the level.

        Says in a sentence what is different, or an empty one if nothing is. It has to be *is_sure* whose they are, as
        for `KeptFlags.next_rules`.
        """
        found = []
        for prefix in prefixes:
            step = self._known[prefix]
            kept = self._settings.cache.flags(prefix).kept
            if following := kept.next_rules(step.plan.rewriting, above, is_sure=is_sure):
                found.append(f"native {prefix.name}: {following.what}")
                with self._lock:
                    self._learned[step.label] = following.rules
                    self._steps.clear()
        return "; ".join(found)

    def variables(self, cpu: Cpu, before: Mapping[str, str], *, is_zig: bool) -> dict[str, str]:
        """What leads the build of a wheel for *cpu* to the prefixes of its steps."""
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
        """See to it that *prefixes*, of `steps`, are there; *on_progress* is called with each one that is built.

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
        """See to *prefixes*, of *steps*, one by one, each once in this run."""
        for prefix in prefixes:
            self._made.get(prefix.key, partial(self._see_to, steps[prefix], steps, cache, on_progress))

    def _see_to(
        self, step: BuildStep, steps: Mapping[Prefix, BuildStep], cache: Ccache | None, on_progress: OnProgress
    ) -> None:
        """Build *step*, unless it is in the cache, and before it what it is built against."""
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
        """A fresh copy of the source of *step*; `BuildError` if it is not any more what the key stands for."""
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
        """Where the commands of *step* write."""
        return self._settings.logs / f"{step.label}.log"

    def _digest(self, native: Native) -> str:
        if native.name not in self._digests:
            self._digests[native.name] = digest(native.source, without=self._settings.exclude)
        return self._digests[native.name]


class _StepBuilder(Struct, frozen=True):
    """Where one *step* is built: in *folder*, which is new, its commands writing to *log*."""

    step: BuildStep
    folder: Path
    log: Path
    environments: Environments
    cache: Ccache | None
    pass_env: tuple[str, ...]
    looked: LookedFor | None

    def build(self, tree: Path, native_cache: NativeCache) -> None:
        """Build the step in *tree*, which is used up, and put what is installed into *native_cache*."""
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
        found = wrappers.overrides()
        materials = wrappers.compilers(step.compilers, environment["PATH"])
        materials += packages.materials if packages else ()
        flags = OwnFlagsRecord(named(found, tree), KeptFlags.of(found, wrappers.compiled(), tree), materials)
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
        """The variables of the step's commands, and compiler wrappers: on PATH, with the *packages* for it."""
        step = self.step
        seen = undisturbed(passed(os.environ, self.pass_env))
        found = {**seen, **dict(step.native.env), **dict(step.plan.environment)}
        found |= watch.variables(found) if watch else {}
        wrappers = install(
            step.plan.rewriting,
            step.compilers,
            self.folder / "launchers",
            BuildFolders(tree, step.before, self.environments.folder),
            environment=found,
            cache=self.cache,
        )
        if packages:
            found = packages.variables(found)
        return {**found, **wrappers.environment(found)}, wrappers
