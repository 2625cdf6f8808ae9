"""What the builds of one run of `vbuild matrix` share, and the steps from a target to a portable wheel.

target -> prepared -> Job -> equipped with a toolkit -> built, repaired -> Repaired, or at any step a Failure

The store is asked for a build before anything is compiled.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from pathlib import Path
from typing import Any, Self

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace
from packaging.version import Version

from vbuild.build.agreement import agreement, is_trial
from vbuild.build.caching import Running, found
from vbuild.build.environment import Environments
from vbuild.build.frontend import Built, Job, build_wheel, prepared
from vbuild.build.native import NativeBuilder
from vbuild.build.native_cache import NativeCache
from vbuild.build.plan import unused
from vbuild.build.repair import repaired
from vbuild.build.source import digest, fetched, unpacked
from vbuild.build.wrappers import Override
from vbuild.errors import BuildError, RecipeError, VbuildError, at
from vbuild.files.staging import LOGS
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.gpu import GpuList
from vbuild.hardware.machine import Machine
from vbuild.index_client.configuration import Indexes
from vbuild.recipe.cuda import Archs, ToolkitSpec
from vbuild.recipe.model import Recipe
from vbuild.recipe.source import Sdist, same_project
from vbuild.recipe.target import Target
from vbuild.recipe.variables import passed
from vbuild.release.bill import billed, making_of, patches_of
from vbuild.release.cache import BuildCache, BuildKind
from vbuild.release.lock_check import check_pins
from vbuild.release.order import BuildOrder
from vbuild.release.outcome import Failure
from vbuild.sbom.model import Material
from vbuild.toolchain.toolkit.model import Toolkit
from vbuild.toolchain.toolkit.provision import FETCHED, Supply
from vbuild.verification.verify import fatbins
from vbuild.wheel.metadata import Metadata
from vbuild.wheel.name import WheelName

OnProgress = Callable[[Target, str], None]


class Repaired(Struct, frozen=True):
    """The portable wheel of a build, still plain; what the compiler wrappers changed; how long it took, in seconds.

    *lists* are the lists of GPU architectures that were changed in commands of nvcc; *is_kept* where all this was done
    in an earlier run.
    """

    wheel: Path
    overrides: tuple[Override, ...]
    lists: tuple[str, ...]
    seconds: float
    is_kept: bool = False

    @property
    def record(self) -> dict[str, Any]:
        """What the store keeps beside the wheel."""
        return {
            "seconds": self.seconds,
            "overrides": [to_builtins(override) for override in self.overrides],
            "lists": list(self.lists),
        }

    @classmethod
    def of_record(cls, wheel: Path, record: Mapping[str, Any]) -> Self:
        overrides = tuple(map(Override.of_data, record["overrides"]))
        return cls(wheel, overrides, tuple(record["lists"]), record["seconds"], is_kept=True)


class Builder(Struct, frozen=True):
    """Where a recipe's targets are built: the source, the folder of work in progress, and what builds share.

    *digest* is what is built: the project that the recipe names, and its source as it was when the run began; *looked*
    gives that of the source as it is now. *without* is the folder for the results, which may stand in the source; *cpu*
    that of this machine. *patches* are those in the source, which a worker's recipe does not name. *foundry* builds
    what the wheels need. *notes* gathers what whoever builds should know.
    """

    recipe: Recipe
    archive: Path
    digest: str
    looked: Callable[[], str]
    project: Path
    stage: Path
    without: Path
    store: BuildCache
    environments: Environments
    configuration: Callable[[], Mapping[str, str]]
    cpu: Cpu | None
    on_progress: OnProgress
    supply: Supply
    patches: tuple[Material, ...] = ()
    foundry: NativeBuilder | None = None
    toolkits: dict[ToolkitSpec, Toolkit] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def opened(
        cls,
        recipe: Recipe,
        folder: Path,
        stage: Path,
        *,
        store: BuildCache,
        supply: Supply = FETCHED,
        on_progress: OnProgress = lambda _target, _step: None,
    ) -> Self:
        """The workshop in *stage* for wheels in *folder*, with the source of *recipe* fetched and looked at.

        *supply* gives CUDA toolkits and zig.
        """
        configuration = cache(lambda: Indexes.configured().environment())
        archive = fetched(recipe.source)
        where = recipe.source.subdirectory
        look = unpacked(archive, stage / "look", subdirectory=where, patches=recipe.build.patches, without=folder)
        check_identity(recipe, look)
        looked = partial(digest_of, recipe, folder)
        asked, lock = recipe.build.pass_env, recipe.build.lock
        environments = Environments(stage / "environments", configuration, logs=folder / LOGS, asked=asked, lock=lock)
        cpu = Machine.here().cpu
        foundry = NativeBuilder(
            recipe.natives,
            host=recipe.build.host,
            shelf=NativeCache.of_user(fresh=store.fresh),
            stage=stage,
            logs=folder / LOGS,
            without=folder,
            environments=environments,
            machine=cpu,
            supply=supply,
            pass_env=asked,
            lock=lock,
        )
        return cls(
            recipe=recipe,
            archive=archive,
            digest=looked(),
            looked=looked,
            project=look,
            stage=stage,
            without=folder,
            store=store,
            environments=environments,
            configuration=configuration,
            cpu=cpu,
            on_progress=on_progress,
            supply=supply,
            patches=patches_of(recipe),
            foundry=foundry,
        )

    def prepared(self, target: Target) -> Job:
        """The job of building *target*; `BuildError` where this machine cannot, `BuildError` where it has no CUDA."""

        def toolkits(spec: ToolkitSpec) -> Toolkit:
            if spec not in self.toolkits:
                toolkit = self.supply.toolkit(spec, on_progress=partial(self.on_progress, target))
                check_pins(self.recipe.build.lock, spec, toolkit)
                self.toolkits[spec] = toolkit
            return self.toolkits[spec]

        with at(self.recipe.name), at(target):
            job = prepared(self.project, target, self.recipe.build, toolkits=toolkits, supply=self.supply)
            return self._reaching(job)

    @contextmanager
    def caching(self) -> Iterator[Running | None]:
        """The compiler cache that the recipe asks for, or that is found, for the builds in the block."""
        cache = found(self.recipe.build.cache, os.environ)
        with cache.running(self.stage, os.environ) if cache else nullcontext() as running:
            yield running

    def built(self, order: BuildOrder, cache: Running | None = None) -> Repaired | Failure:
        """The build of *order*, repaired: kept from before, or made in a tree of its own, with *cache*."""
        target = order.target
        folder = self.stage / "builds" / slug(target)
        try:
            if kept := self.store.taken(BuildKind.BUILD, order.build, folder / "kept"):
                return Repaired.of_record(kept.wheel, kept.record)
            made = self._made(order.job, folder, cache)
        except VbuildError as error:
            return self.failure(target, error)
        self.keep(BuildKind.BUILD, order.build, made.wheel, made.record)
        self.on_progress(target, "built")
        return made

    def keep(self, kind: BuildKind, key: str, wheel: Path, record: Mapping[str, Any]) -> None:
        """Keep *wheel* for later runs, as `Store.keep` does; where that is not possible, it is noted.

        The source is looked at again: a key stands for what it was when the run began.
        """
        if self.looked() != self.digest:
            why: str | None = f"{self.recipe.source}: edited while it was built: nothing of it is kept"
        else:
            why = self.store.keep(kind, key, wheel, record)
        if why:
            self.notes.append(why)

    def failure(self, target: Target, error: VbuildError) -> Failure:
        """That there is no wheel of *target*, with its log if it has one."""
        self.on_progress(target, "failed")
        log = self.log(target)
        return Failure(target, str(error), log if log.exists() else None)

    def log(self, target: Target) -> Path:
        """Where the commands for *target* write."""
        return self.without / LOGS / f"{self.recipe.name}-{slug(target)}.log"

    def _reaching(self, job: Job) -> Job:
        """*job* with the native dependencies that it needs, and what leads its build to them."""
        target = job.target
        if self.foundry is None or not (steps := self.foundry.steps(target.cpu)):
            return job
        seen = passed(os.environ, self.recipe.build.pass_env)
        before = {**seen, **dict(target.env), **dict(job.plan.environment)}
        found = self.foundry.variables(target.cpu, before, is_zig=bool(job.compilers.zig_target))
        return replace(job, prefixes=tuple(step.prefix for step in steps), reached=tuple(found.items()))

    def _made(self, job: Job, folder: Path, cache: Running | None) -> Repaired:
        target, recipe = job.target, self.recipe
        if self.foundry:
            self.foundry.build(job.prefixes, cache=cache, said=partial(self.on_progress, target))
        self.on_progress(target, "building")
        where = recipe.source.subdirectory
        project = unpacked(
            self.archive, folder / "tree", subdirectory=where, patches=recipe.build.patches, without=self.without
        )
        log = self.log(target)
        log.unlink(missing_ok=True)  # an earlier run's
        built = build_wheel(job, project, folder, log=log, environments=self.environments, cache=cache)
        if not same_project(WheelName.parse(built.wheel.name).distribution, recipe.name):
            raise BuildError(f"{built.wheel.name}: not of {recipe.name}, which the recipe builds")
        if target.cuda:
            self._note_unused(built)
            _tell(built, log)
            _check_agreement(built, target.cuda.archs, recipe.build.cuda.archs)
        self.on_progress(target, "repairing")
        wheel = repaired(
            built.wheel,
            folder / "repaired",
            log=log,
            settings=recipe.repair,
            environment=dict(target.env),
            prefixes=job.prefixes,
            pass_env=recipe.build.pass_env,
        )
        if recipe.repair.bill:
            wheel = billed(wheel, folder / "billed", making_of(job, recipe, self.patches))
        return Repaired(wheel, built.overrides, _changed(built, project), built.seconds)

    def _note_unused(self, built: Built) -> None:
        """Note the rules for single files that are for none: a slip of the pen."""
        for glob in unused(self.recipe.build.cuda.files, built.commands):
            self.notes.append(f"build.cuda.files: {glob!r} matches no file that nvcc compiled")


def slug(target: Target) -> str:
    """A file name for what belongs to *target* alone."""
    python = "".join(letter if letter.isalnum() or letter in "._" else "_" for letter in target.python)
    return f"{target}-{python.strip('_')}"


def digest_of(recipe: Recipe, without: Path) -> str:
    """What is built of *recipe* now: its project's name, and its source; the folder *without* is no part of it."""
    return f"{recipe.name} {digest(recipe.source, without=without)}"


def _changed(built: Built, project: Path) -> tuple[str, ...]:
    """The lists that were changed for code of the wheel; files are told from the folder of *project* on."""
    said = (str(command) for command in built.commands if command.is_changed and not is_trial(command))
    return tuple(dict.fromkeys(text.replace(f"{project.resolve()}{os.sep}", "") for text in said))


def _tell(built: Built, log: Path) -> None:
    """Add to *log* what the wrapper of nvcc did to each command."""
    lines = [f"nvcc: {command}\n" for command in built.commands]
    with log.open("a", encoding="utf-8") as file:
        file.writelines(lines)


def _check_agreement(built: Built, archs: GpuList, mode: Archs) -> None:
    """`BuildError`, with the files, where what was compiled falls short of *archs*."""
    with at(built.wheel.name):
        agreement(built.commands, fatbins(built.wheel), archs, mode=mode).check()


def check_identity(recipe: Recipe, project: Path) -> None:
    """`RecipeError` where an sdist says that it is another release than the recipe names: the hash alone counts."""
    source, stated = recipe.source, project / "PKG-INFO"
    if isinstance(source, Sdist) and stated.is_file():
        with at(recipe.file), at("PKG-INFO"):
            metadata = Metadata.parse(stated.read_text(encoding="utf-8", errors="replace"))
        if not same_project(metadata.name, source.name) or Version(metadata.version) != source.version:
            raise RecipeError(
                f"{recipe.file}: source.sdist: sha256 is of {metadata.name}=={metadata.version}, expected {source}"
            )
