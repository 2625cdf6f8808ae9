"""From a target to its portable wheel, and what the builds of one run share.

    target -> prepared: a job -> built -> repaired -> with a bill of materials, or at any step a failure

The cache is asked for a build before anything is compiled.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from msgspec import Struct, field
from msgspec.structs import replace

from vbuild.build.environment import Environments
from vbuild.build.frontend import Built, build_wheel
from vbuild.build.identity import BuildKeys, Searched, build_keys, searched_files
from vbuild.build.job import Job, hooks_of, prepared
from vbuild.build.kept_flags import CodeAbove, KeptFlags, is_for_single_files
from vbuild.build.reproducible import not_reproducible, without_folders
from vbuild.build.requiring import for_platform, tied
from vbuild.build.source import fetched
from vbuild.build.watching import Watch
from vbuild.build.wrappers import Override, named
from vbuild.errors import BuildError, VbuildError, at
from vbuild.files.cache import Cache, Part
from vbuild.files.reading import read_text
from vbuild.files.staging import LOGS
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.gpu import GpuList
from vbuild.hardware.machine import cpu_here
from vbuild.recipe.cuda import ToolkitSpec
from vbuild.recipe.model import Recipe, Repair
from vbuild.recipe.source import same_project
from vbuild.recipe.target import Target
from vbuild.recipe.variables import passed
from vbuild.release.builds import MadeWheel, PlannedWheel, RepairedWheel, check_identity, digest_of, tree_of
from vbuild.release.cache import BuildKind, KeptBuild
from vbuild.release.model import Failure, ReleaseContext
from vbuild.toolchain.interpreter import Interpreter
from vbuild.toolchain.nvcc_commands import Command, is_trial
from vbuild.toolchain.toolkit import Toolkit
from vbuild.toolchain.toolkit_provision import FETCHED
from vbuild.wheel.name import WheelName

if TYPE_CHECKING:
    from vbuild.build.caching import Ccache
    from vbuild.build.native import NativeBuilder
    from vbuild.sbom.model import Material


# how often a target is built, at most, until no flag of the project's own puts code above the level
TRIES = 4
NOT_CALLED = (
    "no compiler was called through a compiler wrapper, so nothing shows that its code is for {cpu}: the project calls "
    "one by its path, or has put another folder first on PATH"
)


class Builder(Struct, frozen=True):
    """Builds the targets of a release, and holds what their builds share.

    *archive* is the source as it was fetched, and *project* a tree of it to read. *digest* names what is built, and
    *digest_now* what would be built now: a source folder may be edited meanwhile. *patches* are those in the source.
    *cpu* is this machine's. *natives* builds what the wheels need.
    Each build may start so many *processes*, as many as it likes if that is 0. *notes* are for the user. *searched* is
    asked once for the files in which compilers look.
    """

    context: ReleaseContext
    archive: Path
    project: Path
    digest: str
    digest_now: Callable[[], str]
    environments: Environments
    configuration: Callable[[], Mapping[str, str]]
    cpu: Cpu | None
    patches: "tuple[Material, ...]" = ()
    natives: "NativeBuilder | None" = None
    toolkits: dict[ToolkitSpec, Toolkit] = field(default_factory=dict)
    processes: int = 0
    notes: list[str] = field(default_factory=list)
    searched: Searched = field(default_factory=lambda: cache(searched_files))

    @classmethod
    def opened(cls, context: ReleaseContext) -> Self:
        """The builder of *context*, with the source of its recipe fetched and unpacked."""
        recipe, folder, stage = context.recipe, context.folder, context.stage
        archive = fetched(recipe.source)
        project = tree_of(recipe, archive, stage / "look", exclude=folder)
        check_identity(recipe, project)
        digest_now = partial(digest_of, recipe, folder)
        builder = cls.sharing(context, archive, project, digest_now)
        if recipe.build.patches:
            from vbuild.release.bill import patches_of

            builder = replace(builder, patches=patches_of(recipe))
        if recipe.natives:
            builder = replace(builder, natives=builder._native_builder())  # noqa: SLF001 - its own
        return builder

    @classmethod
    def sharing(cls, context: ReleaseContext, archive: Path, project: Path, digest_now: Callable[[], str]) -> Self:
        """A builder of *context* whose builds share environments and the configuration of package indexes."""
        settings = context.recipe.build
        configuration = cache(index_variables)
        runs_commands = settings.before_build or any(one.before_build or one.script for one in context.recipe.natives)
        environments = Environments(
            context.stage / "environments",
            configuration,
            logs=context.folder / LOGS,
            asked=settings.pass_env,
            lock=settings.lock,
            # commands of a recipe may change what is in theirs; a dry run makes no folder
            cache=None if runs_commands or not (context.supply or FETCHED).writes else Cache.of(Part.ENVIRONMENTS),
        )
        return cls(context, archive, project, digest_now(), digest_now, environments, configuration, cpu_here())

    def prepared(self, target: Target) -> Job:
        """The job of building *target*; `BuildError` if this machine cannot build it, `ToolkitError` without CUDA."""
        supply = self.context.supply or FETCHED
        if self.context.recipe.test.emulate == "always":
            from vbuild.release.emulation import check_emulator

            check_emulator()

        def toolkits(spec: ToolkitSpec) -> Toolkit:
            if spec not in self.toolkits:
                toolkit = supply.toolkit(spec, on_progress=partial(self.context.on_progress, target))
                lock = self.context.recipe.build.lock
                if lock and toolkit.identity:  # one that is only foreseen has no wheels yet
                    lock.check_toolkit(spec, toolkit.wheels)
                self.toolkits[spec] = toolkit
            return self.toolkits[spec]

        with at(self.context.recipe.name), at(target):
            job = prepared(self.project, target, self.context.recipe.build, toolkits=toolkits, supply=supply)
            return self.reaching(job)

    def tree(self, folder: Path) -> Path:
        """A tree of the source, patched, in *folder*, for one build."""
        return tree_of(self.context.recipe, self.archive, folder, exclude=self.context.folder)

    def ccache(self) -> "Ccache | None":
        """The compiler cache that the recipe asks for, or that is found."""
        from vbuild.build.caching import ccache

        return ccache(self.context.recipe.build.cache, self.context.stage, os.environ)

    def built(self, item: PlannedWheel, cache: "Ccache | None" = None) -> RepairedWheel | Failure:
        """The repaired wheel of the build of *item*: of an earlier run, or built in a tree of its own with *cache*."""
        target = item.target
        folder = self.context.place("builds", target)
        try:
            if kept := self.taken(BuildKind.BUILD, item.build, folder / "kept"):
                found = RepairedWheel.of_record(kept.wheel, kept.record)
                self.notes.extend(found.notes)
                return found
            job = self.watched(item.job, folder) if item.keys is not None else item.job
            own: list[str] = []
            try:
                made = replace(self, notes=own)._made(job, folder, cache)  # noqa: SLF001 - its own
            finally:
                self.notes.extend(own)
            made = replace(made, notes=tuple(own))
        except VbuildError as error:
            return self.context.failure(target, error, self.context.log(target))
        self.keep(BuildKind.BUILD, item.build, made.wheel, made.record)
        if item.keys:
            self.keep_looked(item.keys, item.build, job, folder)
        self.context.on_progress(target, "built")
        return made

    def watched(self, job: Job, folder: Path) -> Job:
        """*job*, built in *folder*, with a watch over what it looks for, if what is built is kept."""
        return replace(job, watch=Watch.over(folder / "watch", job.compilers)) if self.context.cache else job

    def keep_looked(self, keys: BuildKeys, key: str, job: Job, folder: Path) -> None:
        """Keep for later runs what *job*, built in *folder* and kept under *key*, has looked for, if it was watched."""
        if self.context.cache and job.watch:
            stage = self.context.stage
            looked = job.watch.looked(keys.path, keys.folders, stage=stage, project=folder, rust=keys.rust)
            if looked:
                self.context.cache.keep_looked(keys.bare, key, looked)

    def taken(self, kind: BuildKind, key: str, into: Path) -> KeptBuild | None:
        """The wheel that an earlier run kept under *key*, put into the folder *into*, or None."""
        return self.context.cache.taken(kind, key, into) if self.context.cache else None

    def keep(self, kind: BuildKind, key: str, wheel: Path, record: Mapping[str, Any]) -> None:
        """Keep *wheel* for later runs, as `BuildCache.keep` does; a note says if that fails.

        The source is read again: a key stands for what it was when the run began.
        """
        if self.context.cache is None:
            return
        if self.digest_now() != self.digest:
            why: str | None = f"{self.context.recipe.source}: edited while it was built: nothing of it is kept"
        else:
            why = self.context.cache.keep(kind, key, wheel, record)
        if why:
            self.notes.append(why)

    def _native_builder(self) -> "NativeBuilder":
        from vbuild.build.native import NativeBuilder, NativeCache, NativeSettings

        context, build = self.context, self.context.recipe.build
        return NativeBuilder(
            NativeSettings(
                context.recipe.natives,
                host=build.host,
                cache=NativeCache.of_user(fresh=bool(context.cache and context.cache.fresh)),
                stage=context.stage.absolute(),
                logs=(context.folder / LOGS).absolute(),
                exclude=context.folder,
                environments=self.environments,
                machine=self.cpu,
                supply=context.supply or FETCHED,
                pass_env=build.pass_env,
                lock=build.lock,
                looked=context.cache,
            )
        )

    def reaching(self, job: Job) -> Job:
        """*job* with the native dependencies that it needs, and what leads its build to them."""
        target = job.target
        if self.natives is None or not (steps := self.natives.steps(target.cpu)):
            return job
        seen = passed(os.environ, self.context.recipe.build.pass_env)
        before = {**seen, **dict(target.env), **dict(job.plan.environment)}
        found = self.natives.variables(target.cpu, before, is_zig=bool(job.compilers.zig_target))
        return replace(job, prefixes=tuple(step.prefix for step in steps), reached=tuple(found.items()))

    def _made(self, job: Job, folder: Path, cache: "Ccache | None") -> RepairedWheel:
        target, recipe, on_progress = job.target, self.context.recipe, self.context.on_progress
        if self.natives:
            self.natives.build(job.prefixes, cache=cache, on_progress=partial(on_progress, target))
        on_progress(target, "building")
        log = self.context.log(target)
        log.unlink(missing_ok=True)  # an earlier run's
        made = self._compiled(job, folder, log, cache)
        wheel, built = made.wheel, made.built
        flags, sources = recipe.build.flags, {source for call in built.calls for source in call.sources}
        for key, globs in (("keep-flags", flags.keep), ("strip-flags", flags.strip)):
            idle = [glob for glob in globs if not any(fnmatchcase(source, f"*/{glob}") for source in sources)]
            self.notes.extend(f"build.{key}: {glob!r} matches no file that was compiled" for glob in idle)
        self._check_wrapped(job, made)
        if not same_project(WheelName.parse(wheel.name).distribution, recipe.name):
            raise BuildError(f"{wheel.name}: not of {recipe.name}, which the recipe builds")
        if target.cuda:
            self._check_gpu_code(built, target.cuda.archs, log)
        wheel = without_folders(wheel, folder / "without-folders", built.traces)
        wheel = tied(wheel, folder / "tied", pins=dict(built.pins), asked=dict(target.requires))
        if recipe.repair.bill:
            from vbuild.release.bill import billed, making_of

            materials = (*self.patches, *built.materials)
            materials += self.natives.materials(made.job.prefixes) if self.natives else ()
            wheel = billed(wheel, folder / "billed", making_of(made.job, recipe, materials, hooks_of(made.project)))
        lists = lists_of(built.commands, f"{made.project.resolve()}/")
        overrides = (*named(built.overrides, made.project), *self._native_overrides(made.job))
        differing = not_reproducible(wheel, built.traces, self.project, has_gpu_code=bool(built.commands))
        return RepairedWheel(wheel, overrides, lists, built.seconds, built.failed, not_reproducible=differing)

    def _check_wrapped(self, job: Job, made: MadeWheel) -> None:
        """`BuildError` for a module for a level with code that no compiler wrapper has compiled; else a note of it.

        Of plain wheels there is nothing to say: what no wrapper compiled is for the baseline, or the proof finds it.
        """
        if job.target.cpu.is_baseline:
            return
        compiled = [source for call in made.built.calls for source in call.sources]
        compiled += [source for command in made.built.commands for source in command.sources]
        past = job.watch.bypassing(made.project, made.built.wheel, compiled) if job.watch else {}
        where = [f"{module}: {', '.join(names)}" if module else ", ".join(names) for module, names in past.items()]
        what = "compiled by a compiler that is called by its path, without the flags of the level"
        told = f"{'; '.join(where)}: {what}; change that to a name: build.patches = ['compiler.patch']"
        if any(past):
            raise BuildError(told)
        if not compiled and (modules := modules_in(made.built.wheel)):
            raise BuildError(f"{', '.join(modules)}: {NOT_CALLED.format(cpu=job.target.cpu)}")
        if past:
            self.notes.append(f"{job.target}: {told}")

    def _compiled(self, job: Job, folder: Path, log: Path, cache: "Ccache | None") -> MadeWheel:
        """The portable wheel of *job*, and what it was made of.

        Flags of single files stay, as their authors choose that code at run time. Where that turns out to be wrong, it
        is built again without them, native dependencies too, until no function above the level is left that such flags
        can be the reason for. What does not build without them, or leaves modules out, is not: the check of the wheel
        has the word.
        """
        target = job.target
        made = self.built_in(folder, job, log, cache)
        for number in range(1, TRIES):
            if not (any(map(is_for_single_files, (*made.built.overrides, *self._native_overrides(job))))):
                break
            # of the repaired wheel, whose verdict stays good until it is published
            above = code_above(made.wheel, target, self.context.recipe)
            if (following := self._following(job, made, above)) is None:
                break
            job, what = following
            self.context.on_progress(target, "building again")
            try:
                if self.natives:
                    self.natives.build(job.prefixes, cache=cache, on_progress=partial(self.context.on_progress, target))
                again = self.built_in(folder / f"again-{number}", job, log, cache)
            except BuildError as error:
                self.notes.append(f"{target}: does not build without {what}: {str(error).splitlines()[0]}")
                break
            if len(modules_in(again.wheel)) < len(modules_in(made.wheel)):
                self.notes.append(f"{target}: leaves compiled modules out if it is built without {what}")
                break
            made = again
            self.notes.append(f"{target}: built again without {what}")
        return made

    def _following(self, job: Job, made: MadeWheel, above: CodeAbove) -> tuple[Job, str] | None:
        """*job* without the flags that put code *above* the level, and what is different; None if none did.

        Those whose objects have the functions come first, then all that such flags were kept for.
        """
        kept = KeptFlags.of(made.built.overrides, made.built.calls, made.project)
        for is_sure in (True, False):
            if following := kept.following(job.plan.rewriting, above, is_sure=is_sure):
                return replace(job, plan=replace(job.plan, rewriting=following.rules)), following.what
            functions = above.functions
            if self.natives and functions and (what := self.natives.learn(job.prefixes, functions, is_sure=is_sure)):
                return self.reaching(job), what
        return None

    def _native_overrides(self, job: Job) -> tuple[Override, ...]:
        """What compiler wrappers changed in the native dependencies of *job*, which are built."""
        return self.natives.overrides(job.prefixes) if self.natives else ()

    def built_in(self, folder: Path, job: Job, log: Path, cache: "Ccache | None") -> MadeWheel:
        """The wheel of *job*, built in a new tree of the source in *folder*, and repaired."""
        recipe, project = self.context.recipe, self.tree(folder / "tree")
        # what failed to be repaired is not compiled again for a recipe that differs in this alone
        key = ""
        if self.context.cache:
            key = build_keys(job, source=self.digest, repair=Repair(), searched=self.searched).whole
        if key and (kept := self.taken(BuildKind.UNREPAIRED, key, folder / "unrepaired")):
            built = Built.of_record(kept.wheel, kept.record, project)
        else:
            built = build_wheel(
                job,
                project,
                folder,
                log=log,
                environments=self.environments,
                cache=cache,
                processes=self.processes,
            )
        from vbuild.build.repair import repaired

        self.context.on_progress(job.target, "repairing")
        try:
            if not recipe.repair.skip and recipe.repair.command is None:
                _check_compiled(built)
            named = for_platform(built.wheel, folder / "named")
            if named != built.wheel:
                self.notes.append(f"{named.name}: its backend says {built.wheel.name}, and has libraries in it")
            wheel = repaired(
                named,
                folder / "repaired",
                log=log,
                settings=recipe.repair,
                environment=dict(job.target.env),
                prefixes=job.prefixes,
                pass_env=recipe.build.pass_env,
            )
        except VbuildError:
            self.keep(BuildKind.UNREPAIRED, key, built.wheel, built.record(project))
            raise
        return MadeWheel(wheel, built, project, job)

    def _check_gpu_code(self, built: Built, archs: GpuList, log: Path) -> None:
        """`BuildError`, with the files, if what was compiled falls short of *archs*; *log* gets each command of nvcc.

        A rule of the recipe for single files that matches none is noted: it is a slip of the pen.
        """
        from vbuild.build.agreement import agreement, unused
        from vbuild.verification.verify import fatbins

        settings = self.context.recipe.build.cuda
        for glob in unused(settings.files, built.commands):
            self.notes.append(f"build.cuda.files: {glob!r} matches no file that nvcc compiled")
        said = read_text(log, errors="replace") if log.exists() else ""
        with log.open("a", encoding="utf-8") as file:
            file.writelines(f"nvcc: {command}\n" for command in built.commands)
        with at(built.wheel.name):
            agreement(built.commands, fatbins(built.wheel), archs, mode=settings.archs).check(built.wheel, said)


def _check_compiled(built: Built) -> None:
    """`BuildError` for a wheel that is for Linux by its name and has no compiled code, with the likely cause.

    auditwheel would only say that it is no platform wheel.
    """
    from vbuild.elf.records import MAGIC
    from vbuild.verification.published import likely_cause
    from vbuild.wheel.archive import open_wheel

    with open_wheel(built.wheel) as source:
        platform = source.name.platform
        if "linux" not in platform or any(source.head(member, len(MAGIC)) == MAGIC for member in source.members):
            return
    why = likely_cause(built.failed, ()) or "no compiler failed: the project left its compiled modules out"
    raise BuildError(
        f"{built.wheel.name}: no compiled code in a wheel for {platform}; {why}; if there is none to be: "
        f"repair.skip = true"
    )


def code_above(wheel: Path, target: Target, recipe: Recipe) -> CodeAbove:
    """The code of *wheel* above the level of *target* without a check of the CPU, by *recipe*'s rules."""
    from vbuild.dispatch.reach import Doubt
    from vbuild.verification.verify import verify

    verdict = verify(wheel, cpu=target.cpu, allow=recipe.verify.allow)
    found = [(one.function, one.doubt) for library in verdict.libraries for one in library.violations]
    return CodeAbove(
        frozenset(function for function, doubt in found if not doubt or doubt == Doubt.UNCLEAR),
        is_unfollowed=any(doubt == Doubt.UNFOLLOWED for _, doubt in found),
    )


def modules_in(wheel: Path) -> tuple[str, ...]:
    """The paths of the libraries in *wheel*."""
    from vbuild.wheel.archive import open_wheel

    with open_wheel(wheel) as source:
        return tuple(member.path for member in source.members if member.path.endswith(".so"))


def lists_of(commands: Sequence[Command], project: str) -> tuple[str, ...]:
    """The lists of GPU architectures that were changed in *commands* of nvcc, with paths below *project*.

    What a build system only tries out is left out.
    """
    if not commands:
        return ()
    texts = (str(command) for command in commands if command.is_changed and not is_trial(command.sources))
    return tuple(dict.fromkeys(text.replace(project, "") for text in texts))


def index_variables() -> Mapping[str, str]:
    """The variables that give uv the user's package indexes, from pip's configuration."""
    from vbuild.index_client.configuration import Indexes

    return Indexes.configured().environment()


def interpreter_of(target: Target) -> Interpreter:
    """The Python of *target* on this machine; `BuildError` if there is none."""
    return Interpreter.found(target.python, {**os.environ, **dict(target.env)})
