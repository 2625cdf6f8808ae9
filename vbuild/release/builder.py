"""From a target to its portable wheel, and what the builds of one run share.

    target -> job -> built -> repaired -> without paths of this machine -> with a bill of materials

A bill is the same on every machine that builds the same: hashes of the source, compilers, packages, flags without
paths. Nothing pins a project folder, so it has no hash.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache, partial
from pathlib import Path
from typing import Any, Self

from msgspec import Struct, convert, field, to_builtins
from msgspec.structs import replace
from packaging.version import Version

from vbuild.build.agreement import agreement, unused_globs
from vbuild.build.environment import Environments
from vbuild.build.frontend import Built, build_wheel
from vbuild.build.identity import BuildKeys, Searched, build_keys, searched_files
from vbuild.build.job import Job, build_job, hooks_of
from vbuild.build.kept_flags import CodeAbove, KeptFlags, is_for_single_files
from vbuild.build.native import NativeBuilder, NativeCache, NativeSettings
from vbuild.build.repair import repaired
from vbuild.build.reproducible import Unreproducible, not_reproducible, without_folders
from vbuild.build.requiring import for_platform, with_requirements
from vbuild.build.source import fetched_source, source_digest, unpacked
from vbuild.build.watching import Watch
from vbuild.build.wrappers import Ccache, FailedCall, Override, ccache, with_known_sources
from vbuild.dispatch.reach import Doubt
from vbuild.elf.records import MAGIC
from vbuild.errors import BuildError, RecipeError, VbuildError, at
from vbuild.files.atomic import LOGS
from vbuild.files.cache import Cache, Part
from vbuild.files.hashing import sha256_of
from vbuild.files.reading import read_text
from vbuild.files.wording import sized
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.gpu import GpuList
from vbuild.hardware.machine import cpu_here
from vbuild.index_client.configuration import Indexes
from vbuild.recipe.compiling import ToolkitSpec
from vbuild.recipe.model import Recipe, Repair
from vbuild.recipe.source import Debian, Git, NativeSource, Sdist, same_project
from vbuild.recipe.target import Target
from vbuild.recipe.variables import masked_words, passed
from vbuild.release.cache import BuildKind, KeptBuild
from vbuild.release.model import Failure, ReleaseContext
from vbuild.sbom.keeping import Changes, bill_of, path_of, revised
from vbuild.sbom.model import Making, Material, MaterialRole, package_url, public_url
from vbuild.toolchain.interpreter import Interpreter
from vbuild.toolchain.nvcc_commands import Command, is_trial
from vbuild.toolchain.toolkit import Toolkit
from vbuild.verification.emulator import NO_EMULATOR, Emulator
from vbuild.verification.other_builds import likely_cause
from vbuild.verification.verify import fatbins, verify
from vbuild.wheel.archive import open_wheel
from vbuild.wheel.metadata import Metadata
from vbuild.wheel.write import edit_wheel

# builds of a target, at most, until none of its own flags puts code above the level
TRIES = 4
NOT_CALLED = (
    "no compiler was called through a compiler wrapper, so nothing shows that its code is for {cpu}: the project calls "
    "one by its path, or has put another folder first on PATH"
)
_PAST_WRAPPERS = (
    "{}: compiled by a compiler that is called by its path, without the flags of the level; change that to a name: "
    "build.patches = ['compiler.patch']"
)


class PlannedWheel(Struct, frozen=True):
    """A wheel to make by *job*; *build* and *product* are keys of the cache.

    Its code is compared with that of the build with the key *baseline*.
    """

    job: Job
    build: str
    baseline: str | None
    product: str
    keys: BuildKeys | None = None

    @property
    def target(self) -> Target:
        return self.job.target


class RepairedWheel(Struct, frozen=True):
    """The portable wheel of a build, still plain; *seconds* of the build.

    *overrides* and *lists* are the wrappers' changes, *failed* the calls that failed.
    """

    wheel: Path
    overrides: tuple[Override, ...]
    lists: tuple[str, ...]
    seconds: float
    failed: tuple[FailedCall, ...] = ()
    is_kept: bool = False
    notes: tuple[str, ...] = ()
    not_reproducible: tuple[Unreproducible, ...] = ()

    @property
    def record(self) -> dict[str, Any]:
        names = ("seconds", "overrides", "lists", "failed", "notes", "not_reproducible")
        record: dict[str, Any] = to_builtins({name: getattr(self, name) for name in names})
        return record

    @classmethod
    def of_record(cls, wheel: Path, record: Mapping[str, Any]) -> Self:
        return cls(
            wheel,
            convert(record["overrides"], tuple[Override, ...]),
            tuple(record["lists"]),
            record["seconds"],
            convert(record["failed"], tuple[FailedCall, ...]),
            is_kept=True,
            notes=tuple(record["notes"]),
            not_reproducible=convert(record["not_reproducible"], tuple[Unreproducible, ...]),
        )


class CompiledWheel(Struct, frozen=True):
    """A portable *wheel*, what the backend *built*, and the tree of the *project*.

    *stripped* are the bytes of debug information that went, and those of the libraries before.
    """

    wheel: Path
    built: Built
    project: Path
    job: Job
    stripped: tuple[int, int] | None = None


class Builder(Struct, frozen=True):
    """Builds the targets of a release, and has what their builds share.

    *archive* is the source as fetched, *project* a tree of it to read. *digest_now* differs from *digest* if a source
    folder was edited meanwhile. 0 *processes* are any number.
    """

    context: ReleaseContext
    archive: Path
    project: Path
    digest: str
    digest_now: Callable[[], str]
    environments: Environments
    configuration: Callable[[], Mapping[str, str]]
    cpu: Cpu | None
    patches: tuple[Material, ...] = ()
    natives: NativeBuilder | None = None
    toolkits: dict[ToolkitSpec, Toolkit] = field(default_factory=dict)
    processes: int = 0
    notes: list[str] = field(default_factory=list)
    searched: Searched = field(default_factory=lambda: cache(searched_files))

    @classmethod
    def opened(cls, context: ReleaseContext) -> Self:
        recipe, folder, stage = context.recipe, context.folder, context.stage
        archive = fetched_source(recipe.source)
        project = tree_of(recipe, archive, stage / "look", exclude=folder)
        check_identity(recipe, project)
        builder = cls.sharing(context, archive, project, partial(digest_of, recipe, folder))
        natives = None
        if recipe.natives:
            settings = NativeSettings(
                recipe.natives,
                host=recipe.build.host,
                cache=NativeCache.of_user(fresh=bool(context.cache and context.cache.fresh)),
                stage=stage.absolute(),
                logs=(folder / LOGS).absolute(),
                exclude=folder,
                environments=builder.environments,
                machine=builder.cpu,
                supply=context.supply,
                pass_env=recipe.build.pass_env,
                lock=recipe.build.lock,
                looked=context.cache,
            )
            natives = NativeBuilder(settings)
        return replace(builder, patches=patches_of(recipe), natives=natives)

    @classmethod
    def sharing(cls, context: ReleaseContext, archive: Path, project: Path, digest_now: Callable[[], str]) -> Self:
        settings = context.recipe.build
        configuration = cache(index_variables)
        runs_commands = settings.before_build or any(
            native.before_build or native.script for native in context.recipe.natives
        )
        environments = Environments(
            context.stage / "environments",
            configuration,
            logs=context.folder / LOGS,
            asked=settings.pass_env,
            lock=settings.lock,
            # commands of a recipe may change what is in theirs; a dry run makes no folder
            cache=None if runs_commands or not context.supply.writes else Cache.of(Part.ENVIRONMENTS),
        )
        return cls(context, archive, project, digest_now(), digest_now, environments, configuration, cpu_here())

    def job_of(self, target: Target) -> Job:
        """The job of building *target*; `BuildError` if this machine cannot build it, `ToolkitError` without CUDA."""
        context = self.context
        if context.recipe.test.emulate == "always":
            check_emulator()

        def toolkits(spec: ToolkitSpec) -> Toolkit:
            if spec not in self.toolkits:
                toolkit = context.supply.toolkit(spec, on_progress=partial(context.on_progress, target))
                lock = context.recipe.build.lock
                if lock and toolkit.identity:  # one that is only foreseen has no wheels yet
                    lock.check_toolkit(spec, toolkit.wheels)
                self.toolkits[spec] = toolkit
            return self.toolkits[spec]

        with at(context.recipe.name), at(target):
            job = build_job(self.project, target, context.recipe.build, toolkits=toolkits, supply=context.supply)
            return self._with_natives(job)

    def tree(self, folder: Path) -> Path:
        return tree_of(self.context.recipe, self.archive, folder, exclude=self.context.folder)

    def ccache(self) -> Ccache | None:
        return ccache(self.context.recipe.build.cache, self.context.stage, os.environ)

    def built(self, wheel: PlannedWheel, cache: Ccache | None = None) -> RepairedWheel | Failure:
        """The repaired wheel of *wheel*, from the cache or built."""
        context, target, job, keys = self.context, wheel.target, wheel.job, wheel.keys
        folder = context.stage_folder("builds", target)
        notes: list[str] = []
        try:
            if entry := self.taken(BuildKind.BUILD, wheel.build, folder / "kept"):
                build = RepairedWheel.of_record(entry.wheel, entry.record)
                self.notes.extend(build.notes)
                return build
            if context.cache and keys:
                job = replace(job, watch=Watch.over(folder / "watch", job.compilers))
            try:
                build = replace(self, notes=notes)._portable(job, folder, cache)  # noqa: SLF001 - its own
            finally:
                self.notes.extend(notes)
            build = replace(build, notes=tuple(notes))
        except VbuildError as error:
            return context.failure(target, error, context.log(target))
        self.keep(BuildKind.BUILD, wheel.build, build.wheel, build.record)
        if context.cache and keys and job.watch:
            looked = job.watch.looked(keys.path, keys.folders, stage=context.stage, project=folder, rust=keys.rust)
            if looked:
                context.cache.keep_looked(keys.bare, wheel.build, looked)
        context.on_progress(target, "built")
        return build

    def taken(self, kind: BuildKind, key: str, into: Path) -> KeptBuild | None:
        return self.context.cache.taken(kind, key, into) if self.context.cache else None

    def keep(self, kind: BuildKind, key: str, wheel: Path, record: Mapping[str, Any]) -> None:
        """Keep *wheel* for later runs; a note says if that fails.

        The source is read again: a key is for the source when the run began.
        """
        if self.context.cache is None:
            return
        if self.digest_now() != self.digest:
            why: str | None = f"{self.context.recipe.source}: edited while it was built: nothing of it is kept"
        else:
            why = self.context.cache.keep(kind, key, wheel, record)
        if why:
            self.notes.append(why)

    def _with_natives(self, job: Job) -> Job:
        target = job.target
        if self.natives is None or not (steps := self.natives.steps(target.cpu)):
            return job
        seen = passed(os.environ, self.context.recipe.build.pass_env)
        before = {**seen, **dict(target.env), **dict(job.plan.environment)}
        variables = self.natives.variables(target.cpu, before, is_zig=bool(job.compilers.zig_target))
        return replace(job, prefixes=tuple(step.prefix for step in steps), reached=tuple(variables.items()))

    def _portable(self, job: Job, folder: Path, cache: Ccache | None) -> RepairedWheel:
        """The portable wheel of *job*, checked, with a bill of materials."""
        target, recipe = job.target, self.context.recipe
        log = self.context.log(target)
        log.unlink(missing_ok=True)  # an earlier run's
        self._build_natives(job, cache)
        self.context.on_progress(target, "building")
        compiled = self._compiled_with_guesses(job, folder, log, cache)
        wheel, built, job = compiled.wheel, compiled.built, compiled.job
        if compiled.stripped:
            gone, whole = map(sized, compiled.stripped)
            self.notes.append(f"{target}: debug information left out: {gone} of {whole} (build.debug = 'keep')")
        self._note_idle_flags(built)
        self._check_wrapped(job, compiled)
        self.context.check_project(wheel)
        if target.cuda:
            self._check_gpu_code(built, target.cuda.archs, log)
        wheel = without_folders(wheel, folder / "without-folders", built.traces)
        wheel = with_requirements(
            wheel, folder / "tied", pins=dict(built.pins), requires=dict(target.requires), label=target.local
        )
        if recipe.repair.bill:
            materials = (*self.patches, *built.materials)
            materials += self.natives.materials(job.prefixes) if self.natives else ()
            build_making = making(
                recipe,
                target,
                parts=materials,
                toolkit=job.toolkit,
                environment=flags_read(job.plan.environment, materials),
                natives={prefix.name for prefix in job.prefixes},
            )
            settings = (*build_making.settings, ("backend", hooks_of(compiled.project)))
            wheel = billed(wheel, folder / "billed", replace(build_making, settings=settings))
        return RepairedWheel(
            wheel,
            (*with_known_sources(built.overrides, compiled.project), *self._native_overrides(job)),
            lists_of(built.commands, f"{compiled.project.resolve()}/"),
            built.seconds,
            built.failed,
            not_reproducible=not_reproducible(wheel, built.traces, self.project, has_gpu_code=bool(built.commands)),
        )

    def _build_natives(self, job: Job, cache: Ccache | None) -> None:
        if self.natives:
            on_progress = partial(self.context.on_progress, job.target)
            self.natives.build(job.prefixes, cache=cache, on_progress=on_progress)

    def _note_idle_flags(self, built: Built) -> None:
        flags, sources = self.context.recipe.build.flags, {source for call in built.calls for source in call.sources}
        for key, globs in (("keep-flags", flags.keep), ("strip-flags", flags.strip)):
            for glob in globs:
                if not any(fnmatchcase(source, f"*/{glob}") for source in sources):
                    self.notes.append(f"build.{key}: {glob!r} matches no file that was compiled")

    def _check_wrapped(self, job: Job, compiled: CompiledWheel) -> None:
        """`BuildError` for a module for a level with code that no compiler wrapper has compiled.

        In plain wheels, what no wrapper compiled is for the baseline, or the ISA check finds it.
        """
        if job.target.cpu.is_baseline:
            return
        built = compiled.built
        sources = [source for call in built.calls for source in call.sources]
        sources += [source for command in built.commands for source in command.sources]
        bypassing = job.watch.bypassing(compiled.project, built.wheel, sources) if job.watch else {}
        modules = [
            f"{module}: {', '.join(names)}" if module else ", ".join(names) for module, names in bypassing.items()
        ]
        bypassed = _PAST_WRAPPERS.format("; ".join(modules))
        if any(bypassing):
            raise BuildError(bypassed)
        if not sources and (libraries := modules_in(built.wheel)):
            raise BuildError(f"{', '.join(libraries)}: {NOT_CALLED.format(cpu=job.target.cpu)}")
        if bypassing:  # sources whose module nothing shows
            self.notes.append(f"{job.target}: {bypassed}")

    def _compiled_with_guesses(self, job: Job, folder: Path, log: Path, cache: Ccache | None) -> CompiledWheel:
        """The portable wheel of *job*, without the requirements that were guessed if they make its build fail."""
        guessed = job.settings.guessed
        try:
            return self._compiled_within_level(job, folder, log, cache)
        except BuildError as error:
            requires = tuple(line for line in job.settings.requires if line not in guessed)
            if requires == job.settings.requires:
                raise
            self.context.on_progress(job.target, "building again")
            settings = replace(job.settings, requires=requires, guessed=())
            try:
                compiled = self._compiled_within_level(replace(job, settings=settings), folder / "plain", log, cache)
            except BuildError:
                raise error from None
            self.notes.append(f"built without {', '.join(guessed)}, which vbuild had added: with it, the build fails")
            return compiled

    def _compiled_within_level(self, job: Job, folder: Path, log: Path, cache: Ccache | None) -> CompiledWheel:
        """The portable wheel of *job*, without flags of single files that put code above its level.

        Such flags stay at first: authors choose that code at run time. Where that is wrong, *job* is built again
        without them. If that fails, or leaves modules out, the build before counts.
        """
        target = job.target
        compiled = self._compiled(folder, job, log, cache)
        for number in range(1, TRIES):
            if not any(map(is_for_single_files, (*compiled.built.overrides, *self._native_overrides(job)))):
                break
            # of the repaired wheel, whose verdict stays good until it is published
            above = code_above(compiled.wheel, target, self.context.recipe)
            if (without := self._without_flags(job, compiled, above)) is None:
                break
            job, flags = without
            self.context.on_progress(target, "building again")
            try:
                self._build_natives(job, cache)
                again = self._compiled(folder / f"again-{number}", job, log, cache)
            except BuildError as error:
                self.notes.append(f"{target}: does not build without {flags}: {str(error).splitlines()[0]}")
                break
            if len(modules_in(again.wheel)) < len(modules_in(compiled.wheel)):
                self.notes.append(f"{target}: leaves compiled modules out if it is built without {flags}")
                break
            compiled = again
            self.notes.append(f"{target}: built again without {flags}")
        return compiled

    def _without_flags(self, job: Job, compiled: CompiledWheel, above: CodeAbove) -> tuple[Job, str] | None:
        """*job* without the flags that put code *above* the level, and these in words; None if none did.

        Flags whose objects have the functions come first, then all that were kept for single files.
        """
        own_flags = KeptFlags.of(compiled.built.overrides, compiled.built.calls, compiled.project)
        for is_sure in (True, False):
            if following := own_flags.following(job.plan.wrapper_rules, above, is_sure=is_sure):
                return replace(job, plan=replace(job.plan, wrapper_rules=following.rules)), following.what
            if self.natives and above.functions:
                flags = self.natives.learn(job.prefixes, above.functions, is_sure=is_sure)
                if flags:
                    return self._with_natives(job), flags
        return None

    def _native_overrides(self, job: Job) -> tuple[Override, ...]:
        return self.natives.overrides(job.prefixes) if self.natives else ()

    def _compiled(self, folder: Path, job: Job, log: Path, cache: Ccache | None) -> CompiledWheel:
        recipe, project = self.context.recipe, self.tree(folder / "tree")
        # what failed to be repaired is not compiled again for a recipe that differs in this alone
        key = ""
        if self.context.cache:
            key = build_keys(job, source=self.digest, repair=Repair(), searched=self.searched).whole
        if key and (entry := self.taken(BuildKind.UNREPAIRED, key, folder / "unrepaired")):
            built = Built.of_record(entry.wheel, entry.record, project)
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
        self.context.on_progress(job.target, "repairing")
        stripped: list[tuple[int, int]] = []
        try:
            if not recipe.repair.skip and recipe.repair.command is None:
                _check_compiled(built)
            wheel = for_platform(built.wheel, folder / "named")
            if wheel != built.wheel:
                self.notes.append(f"{wheel.name}: its backend says {built.wheel.name}, and has libraries in it")
            wheel = repaired(
                wheel,
                folder / "repaired",
                log=log,
                settings=recipe.repair,
                environment=dict(job.target.env),
                prefixes=job.prefixes,
                pass_env=recipe.build.pass_env,
                on_note=lambda note: self.notes.append(f"{wheel.name}: {note}"),
                on_stripped=(lambda *sizes: stripped.append(sizes)) if recipe.build.debug == "strip" else None,
            )
        except VbuildError:
            self.keep(BuildKind.UNREPAIRED, key, built.wheel, built.record(project))
            raise
        return CompiledWheel(wheel, built, project, job, next(iter(stripped), None))

    def _check_gpu_code(self, built: Built, archs: GpuList, log: Path) -> None:
        """`BuildError`, with the files, if code falls short of *archs*; *log* gets nvcc's commands."""
        settings = self.context.recipe.build.cuda
        for glob in unused_globs(settings.files, built.commands):
            self.notes.append(f"build.cuda.files: {glob!r} matches no file that nvcc compiled")
        with log.open("a", encoding="utf-8") as file:
            file.writelines(f"nvcc: {command}\n" for command in built.commands)
        with at(built.wheel.name):
            agreement(built.commands, fatbins(built.wheel), archs, mode=settings.archs).check(built.wheel)


def tree_of(recipe: Recipe, archive: Path, folder: Path, *, exclude: Path) -> Path:
    subdirectory, patches = recipe.source.subdirectory, recipe.build.patches
    return unpacked(archive, folder, subdirectory=subdirectory, patches=patches, without=exclude)


def digest_of(recipe: Recipe, exclude: Path) -> str:
    """A digest of the project's name and source of *recipe*, without the folder *exclude*."""
    return f"{recipe.name} {source_digest(recipe.source, without=exclude)}"


def check_identity(recipe: Recipe, project: Path) -> None:
    """`RecipeError` if an sdist says that it is another release than the recipe names."""
    source, stated = recipe.source, project / "PKG-INFO"
    if isinstance(source, Sdist) and stated.is_file():
        with at(recipe.file), at("PKG-INFO"):
            metadata = Metadata.parse(read_text(stated, errors="replace"))
        if not same_project(metadata.name, source.name) or Version(metadata.version) != source.version:
            release = f"{metadata.name}=={metadata.version}"
            if source.file:
                raise RecipeError(f"{source.file}: named {source}, but its PKG-INFO says {release}; expected the same")
            raise RecipeError(f"{recipe.file}: source.sdist: sha256 is of {release}, expected {source}")


def check_emulator() -> None:
    if Emulator.on_path() is None:
        raise BuildError(f"test.emulate is 'always', and {NO_EMULATOR}")


def _check_compiled(built: Built) -> None:
    """`BuildError`, with the likely cause, for a wheel for Linux without compiled code.

    auditwheel would only say that it is not a platform wheel.
    """
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
    """The code of *wheel* above the level of *target* without a check of the CPU."""
    verdict = verify(wheel, cpu=target.cpu, allow=recipe.verify.allow)
    violations = [violation for library in verdict.libraries for violation in library.violations]
    return CodeAbove(
        frozenset(
            violation.function for violation in violations if not violation.doubt or violation.doubt == Doubt.UNCLEAR
        ),
        is_unfollowed=any(violation.doubt == Doubt.UNFOLLOWED for violation in violations),
    )


def modules_in(wheel: Path) -> tuple[str, ...]:
    with open_wheel(wheel) as source:
        return tuple(member.path for member in source.members if member.path.endswith(".so"))


def lists_of(commands: Sequence[Command], project: str) -> tuple[str, ...]:
    texts = (str(command) for command in commands if command.is_changed and not is_trial(command.sources))
    return tuple(dict.fromkeys(text.replace(project, "") for text in texts))


def index_variables() -> Mapping[str, str]:
    return Indexes.configured().environment()


def interpreter_of(target: Target) -> Interpreter:
    return Interpreter.named(target.python, {**os.environ, **dict(target.env)})


# variables that decide on code; and those that only some compilers read
_FLAGS = re.compile(r"(C|CXX|CPP|LD|F|FC|RUST|NVCC_APPEND_|CUDA)FLAGS|CUDAARCHS|TORCH_CUDA_ARCH_LIST")
_READERS = (
    ({"gfortran", "flang"}, {"FFLAGS", "FCFLAGS"}),
    ({"nvcc"}, {"NVCC_APPEND_FLAGS", "CUDAFLAGS", "CUDAARCHS", "TORCH_CUDA_ARCH_LIST"}),
    ({"rustc"}, {"RUSTFLAGS"}),
)


def billed(wheel: Path, folder: Path, making: Making) -> Path:
    with open_wheel(wheel) as source, at(wheel.name):
        rows = [source.row(member) for member in source.members]
        earlier = bill_of(source)
        bills = [earlier] if earlier else []
        text = revised(source.name, rows, earlier=bills, changes=Changes(makings=(making,)))
        return edit_wheel(source, folder, source.name, edits={path_of(source.dist_info): text})


def patches_of(recipe: Recipe) -> tuple[Material, ...]:
    """The patches of *recipe*, which workers get within the source only."""
    return tuple(Material(MaterialRole.SOURCE, patch.name, sha256=sha256_of(patch)) for patch in recipe.build.patches)


def flags_read(environment: Iterable[tuple[str, str]], materials: Iterable[Material]) -> dict[str, str]:
    ran = {part.name for part in materials if part.role is MaterialRole.COMPILER}
    unread = {name for readers, names in _READERS if not ran & readers for name in names}
    return {name: text for name, text in environment if ran and name not in unread}


def making(
    recipe: Recipe,
    target: Target,
    *,
    parts: Iterable[Material] = (),
    toolkit: Toolkit | None = None,
    environment: Mapping[str, str] | None = None,
    natives: Iterable[str] = (),
) -> Making:
    """What a build for *target* takes: source, *natives*, *toolkit*, other *parts*; flags of *environment* without
    paths.
    """
    named = {*natives}
    sources = [native for native in recipe.natives if native.name in named]
    materials = [
        _source(recipe.source, MaterialRole.SOURCE, recipe.name),
        *(_source(native.source, MaterialRole.NATIVE, native.name) for native in sources),
        *parts,
    ]
    if toolkit:
        # without packages of the index, only its identity says what it is
        identity = None if toolkit.pins else toolkit.identity
        materials.append(Material(MaterialRole.TOOLKIT, "CUDA Toolkit", str(toolkit.version), identity=identity))
        for pin in toolkit.pins:
            purl = package_url(pin.project, pin.version, file=pin.file)
            materials.append(Material(MaterialRole.TOOLKIT, pin.project, pin.version, purl, pin.sha256))
    settings = [("cpu", str(target.cpu))]
    if target.cuda:
        settings.append(("cuda-architectures", str(target.cuda.archs)))
    for name, value in (environment or {}).items():
        words = " ".join(shown for word, shown in masked_words(value) if "/" not in word)  # paths are of this machine
        if words and _FLAGS.fullmatch(name):
            settings.append((f"flags:{name}", words))
    return Making(tuple(materials), tuple(settings))


def _source(source: NativeSource, role: MaterialRole, name: str) -> Material:
    match source:
        case Sdist():
            version = str(source.version)
            return Material(role, name, version, package_url(source.name, version), source.sha256)
        case Debian():
            return Material(role, name, source.version, f"pkg:generic/{source.name}@{source.version}", source.sha256)
        case Git():
            return Material(role, name, url=public_url(source.url), commit=source.commit)
        case _:
            return Material(role, name)
