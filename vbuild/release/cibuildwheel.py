"""`vbuild cibuildwheel`: the wheels of a project's own cibuildwheel, for every variant of its recipe.

    [tool.vbuild] -> builds -> a run of cibuildwheel each -> the steps of `vbuild.release.matrix` from slimming on

Inside cibuildwheel all wheels are plain; they become variants on the host.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path, PurePosixPath

from msgspec import Struct, field
from msgspec.structs import replace

from vbuild.build.agreement import agreement, unused_globs
from vbuild.build.cibuildwheel.making import (
    NOT_PUT,
    ContainerBuild,
    ContainerResult,
    ContainerRunner,
    ContainerSetup,
    passed_on,
)
from vbuild.build.cibuildwheel.program import Arguments, Cibuildwheel, Containers, Echo, check_platform
from vbuild.build.cibuildwheel.runs import (
    CibuildwheelRun,
    RunContext,
    ignored_keys,
    inside,
    machine_of,
    planned_runs,
    run_again,
)
from vbuild.build.job import recognised
from vbuild.build.kept_flags import is_for_single_files
from vbuild.build.plan import FlagPlan, WrapperRules
from vbuild.build.reproducible import BuildTraces, Unreproducible, not_reproducible
from vbuild.build.wrappers import nvcc_of, with_known_sources
from vbuild.errors import BuildError, VbuildError, at
from vbuild.files.atomic import LOGS, staging
from vbuild.hardware.machine import cpu_here
from vbuild.process.masking import hiding, masked_in
from vbuild.recipe.hidden import hiding_secrets, of_settings, of_variables, too_short
from vbuild.recipe.model import Recipe, TrialResult
from vbuild.recipe.spelling import MACHINES, baseline
from vbuild.recipe.target import Target
from vbuild.release.builder import (
    NOT_CALLED,
    TRIES,
    billed,
    check_emulator,
    code_above,
    flags_read,
    lists_of,
    making,
    modules_in,
)
from vbuild.release.finishing import slimmed_to_gpus, stamped, verified, with_emulation
from vbuild.release.matrix import check_recipe, released, without_cpu
from vbuild.release.model import (
    Failure,
    OnProgress,
    Product,
    ReleaseContext,
    ReleaseFamily,
    ReleaseResult,
    ReleaseWheels,
)
from vbuild.toolchain.interpreter import Interpreter
from vbuild.toolchain.toolkit import Toolkit
from vbuild.toolchain.toolkit_provision import FETCHED, FORESEEN, Supply
from vbuild.verification.verify import fatbins

_RETESTED = "split: cibuildwheel has tested the wheels as they were before"
_FORESEEN_SETUP = PurePosixPath("/host/tmp/vbuild-kit")


def cibuildwheel(
    folder: Path,
    arguments: Sequence[str] = (),
    *,
    variants: Collection[str] = (),
    on_progress: OnProgress = lambda _target, _step: None,
    echo: Echo | None = None,
) -> ReleaseResult:
    """Build the wheels of cibuildwheel with *arguments* into *folder*, for each of *variants*, by default all.

    *echo* gets what it prints. `VbuildError`, and no wheel written, if no run can start.
    """
    words = Arguments.parse(arguments)
    engine, identifiers = _engine_and_identifiers(words)
    recipe = Recipe.load(words.package)
    if recipe.test.emulate == "always":
        check_emulator()
    targets = _targets(recipe, variants)
    context = ReleaseContext(
        recipe=recipe,
        targets=targets,
        folder=folder,
        stage=folder,
        on_progress=on_progress,
        split=check_recipe(recipe, targets),
        family=ReleaseFamily.of(recipe, targets),
        source=str(recipe.source),
        inputs=(recipe.file,),
    )
    with (
        _hiding(words),
        hiding_secrets(recipe, targets),
        tempfile.TemporaryDirectory(prefix="vbuild-cibuildwheel-") as text,
    ):
        outside = Path(text)
        containers = Containers.of(words, os.environ, outside / "engine")
        setup = ContainerSetup.in_folder(outside / "kit")
        run_context = _run_context(words, setup.inside, FETCHED, on_progress)
        plan = planned_runs(recipe, targets, identifiers, run_context)
        runner = ContainerRunner(engine, words, os.environ, outside, setup, containers, echo)
        with staging(folder) as stage:
            context = replace(context, stage=stage)
            steps = _CibuildwheelSteps(context, run_context)
            results = [steps.done(run, runner) for run in plan]
            licences = (run.toolkit.licence for run in plan if run.toolkit and run.toolkit.is_new)
            short = too_short(recipe, targets, pass_env=passed_on(words, os.environ))
            notes = [
                *ignored_keys(recipe),
                *licences,
                *_omitted(targets, identifiers),
                *short,
                *steps.retries,
                *steps.notes(results),
            ]
            wheels = ReleaseWheels(
                [*steps.outcomes(results)],
                lambda product, _find_links: replace(product, trial=TrialResult.NOT_RUN),  # its wheel has changed
                _no_python,
                notes,
                siblings=lambda plain: [replace(target, python=plain.python) for target in targets],
                split_note=_RETESTED,
            )
            return released(context, wheels)


def foreseen_runs(arguments: Sequence[str] = (), *, variants: Collection[str] = ()) -> tuple[CibuildwheelRun, ...]:
    """The runs that `cibuildwheel` would make, with every variable, secrets hidden; nothing is built or written."""
    words = Arguments.parse(arguments)
    _, identifiers = _engine_and_identifiers(words)
    recipe = Recipe.load(words.package)
    targets = _targets(recipe, variants)
    check_recipe(recipe, targets)
    run_context = _run_context(words, _FORESEEN_SETUP, FORESEEN, lambda _target, _step: None)
    with _hiding(words), hiding_secrets(recipe, targets):
        return masked_in(planned_runs(recipe, targets, identifiers, run_context))


def _hiding(words: Arguments) -> AbstractContextManager[None]:
    options = ((name, text) for name, text in os.environ.items() if name.startswith("CIBW_"))
    return hiding(of_variables(os.environ, passed_on(words, os.environ)) | of_settings(options))


def _targets(recipe: Recipe, variants: Collection[str]) -> tuple[Target, ...]:
    return recipe.chosen(only=variants, pythons=recipe.matrix.pythons[:1])


def _engine_and_identifiers(words: Arguments) -> tuple[Cibuildwheel, tuple[str, ...]]:
    """cibuildwheel, and the identifiers that it would build for; `BuildError` for those of another system."""
    check_platform(os.environ.get("CIBW_PLATFORM") or "auto", "CIBW_PLATFORM={}")
    engine = Cibuildwheel.of_environment()
    # it refuses words that it does not know, of which vbuild may take one for the project
    with _hiding(words):
        identifiers = engine.identifiers(words, os.environ)
    words.check_place()
    for identifier in identifiers:
        if "linux_" not in identifier:
            check_platform(identifier.partition("-")[2], identifier)
    return engine, identifiers


def _run_context(words: Arguments, setup: PurePosixPath, supply: Supply, on_progress: OnProgress) -> RunContext:
    toolkits: dict[object, Toolkit] = {}

    def toolkit(target: Target) -> Toolkit:
        if target.cuda is None:
            raise BuildError(f"{target}: is built without CUDA")
        spec = target.cuda.toolkit
        if spec not in toolkits:
            toolkits[spec] = supply.toolkit(spec, on_progress=partial(on_progress, target))
        return toolkits[spec]

    return RunContext(cpu_here(), os.environ, setup, recognised(words.package), toolkit)


def _omitted(targets: Sequence[Target], identifiers: Sequence[str]) -> Iterator[str]:
    """Notes on what only cibuildwheel would build: other machines, and CUDA without glibc."""
    machine = targets[0].cpu.machine
    if others := [identifier for identifier in identifiers if machine_of(identifier) != machine]:
        yield f"{', '.join(others)}: no variants, which are for {machine}"
    musl = [identifier for identifier in identifiers if identifier.endswith(f"-musllinux_{machine}")]
    if musl and any(target.cuda for target in targets):
        yield f"{', '.join(musl)}: nothing with CUDA, whose compiler needs glibc"


def _no_python(_target: Target) -> Interpreter:
    raise BuildError("cibuildwheel has tested the wheels that it is joined of")


class _CibuildwheelSteps(Struct, frozen=True):
    context: ReleaseContext
    run_context: RunContext
    retries: list[str] = field(default_factory=list)

    def done(self, run: CibuildwheelRun, runner: ContainerRunner) -> ContainerResult:
        """*run*, done again if flags for single files put code above the level."""
        for target in run.targets:
            self.context.on_progress(target, "building")
        result, last = runner.result_of(run), run
        for _ in range(1, TRIES):
            if last.plan is None or (following := self._following(last, result)) is None:
                break
            rules, identifiers, flag = following
            for target in run.targets:
                self.context.on_progress(target, "building again")
            last = run_again(self.context.recipe, last, rules, identifiers, self.run_context)
            other = runner.result_of(last)
            if other.error:
                self.retries.append(f"{run}: does not build without {flag}: {str(other.error).splitlines()[0]}")
                break
            lost = [name for name in identifiers if _leaves_out(other.builds.get(name), result.builds[name])]
            if lost:
                flag = f"{flag}: {', '.join(lost)}"
                self.retries.append(f"{run}: leaves compiled modules out if it is built without {flag}")
                break
            result = replace(result, builds={**result.builds, **other.builds})
            self.retries.append(f"{run}: built again without {flag}")
        self._log(run).unlink(missing_ok=True)  # an earlier one's
        for target in run.targets:
            self.context.on_progress(target, "failed" if result.error else "built")
        return result

    def _following(
        self, run: CibuildwheelRun, result: ContainerResult
    ) -> tuple[WrapperRules, tuple[str, ...], str] | None:
        """The rules without the flags that put code above the level, the identifiers that need them, and what is
        different; None if no flag did.
        """
        recipe, flags = self.context.recipe, dict[str, None]()
        rules = first = run.plan.wrapper_rules if run.plan else WrapperRules()
        identifiers: list[str] = []
        for identifier in run.identifiers:
            build = result.builds.get(identifier)
            if build is None or not any(map(is_for_single_files, build.record.overrides)):
                continue
            try:
                above = code_above(build.wheel, run.targets[0], recipe)
            except VbuildError:  # which is told when the wheel is finished
                continue
            own_flags = build.record.kept_flags(recipe.file.parent.resolve())
            if own_flags.following(first, above):
                identifiers.append(identifier)
                if following := own_flags.following(rules, above):
                    rules, flags = following.rules, {**flags, following.what: None}
        return (rules, tuple(identifiers), "; ".join(flags)) if identifiers else None

    def outcomes(self, results: Sequence[ContainerResult]) -> Iterator[Product | Failure]:
        for result in results:
            for identifier, build in result.builds.items():
                yield from self._finished(result, identifier, build, results)
            if result.error:
                for target in result.run.targets:
                    yield self._failure(replace(target, python=result.at_work or "all"), result, result.error)

    def notes(self, results: Sequence[ContainerResult]) -> Iterator[str]:
        plain = next((result for result in results if result.run.targets[0].label is None and result.run.plan), None)
        for result in results:
            missing = [name for name in (plain.builds if plain else ()) if name in result.run.identifiers]
            if result.error is None and (missing := [name for name in missing if name not in result.builds]):
                yield f"{result.run}: no variant wheel for {', '.join(missing)}, only a plain one"
            commands = [command for build in result.builds.values() for command in build.record.commands]
            if result.run.toolkit and commands:
                for glob in unused_globs(self.context.recipe.build.cuda.files, commands):
                    yield f"build.cuda.files: {glob!r} matches no file that nvcc compiled"

    def _finished(
        self, result: ContainerResult, identifier: str, build: ContainerBuild, all_of_them: Sequence[ContainerResult]
    ) -> Iterator[Product | Failure]:
        targets = [_of(target, identifier) for target in result.run.targets]
        try:
            self.context.check_project(build.wheel)
            _check(result.run, build, self.context.recipe)
            differing = _not_reproducible(result.run, build, self.context.recipe)
            build = self._billed(result.run, targets[0], build)
            shared = [target for target in targets if target.gpus]
            cut = slimmed_to_gpus(self.context, build.wheel, shared, targets[0])
        except VbuildError as error:
            yield from (self._failure(target, result, error) for target in targets)
            return
        baseline_wheel = _baseline(targets[0], identifier, all_of_them)
        for target in targets:
            product = self._product(target, result, build, cut, baseline=baseline_wheel)
            yield replace(product, not_reproducible=differing) if isinstance(product, Product) else product

    def _billed(self, run: CibuildwheelRun, target: Target, build: ContainerBuild) -> ContainerBuild:
        if not self.context.recipe.repair.bill:
            return build
        # of other packages of the container nothing is known
        parts = (*build.record.compilers, *nvcc_of(run.toolkit, build.record.commands))
        flags = flags_read(run.plan.environment if run.plan else (), parts)
        about = making(self.context.recipe, target, parts=parts, toolkit=run.toolkit, environment=flags)
        return replace(build, wheel=billed(build.wheel, self.context.stage_folder("billed", target), about))

    def _product(
        self,
        target: Target,
        result: ContainerResult,
        build: ContainerBuild,
        cut: Mapping[Target, Path],
        *,
        baseline: Path | None,
    ) -> Product | Failure:
        try:
            wheel = cut.get(target) or stamped(self.context, target, build.wheel)
            self.context.on_progress(target, "verifying")
            verdict = verified(self.context, wheel, target, baseline=baseline, failed=build.record.failed)
            plain, folder = cut.get(target) or build.wheel, self.context.stage_folder("emulated", target)
            verdict, emulation = with_emulation(self.context, target, plain, verdict, folder)
        except VbuildError as error:
            return self._failure(target, result, error)
        self.context.on_progress(target, "done")
        return Product(
            target=target,
            wheel=wheel,
            plan=result.run.plan
            or FlagPlan(target.cpu, recognised(self.context.recipe.file.parent), (), (), WrapperRules()),
            toolkit=result.run.toolkit,
            seconds=build.seconds,
            overrides=with_known_sources(build.record.overrides, self.context.recipe.file.parent.resolve()),
            lists=lists_of(build.record.commands, "/project/"),
            verdict=verdict,
            # what is cut from the wheel that was tested was not
            trial=TrialResult.NOT_RUN if target in cut and build.trial is TrialResult.PASSED else build.trial,
            emulation=emulation,
        )

    def _failure(self, target: Target, result: ContainerResult, error: VbuildError) -> Failure:
        log = self._log(result.run)
        if result.log.exists() and not log.exists():
            log.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(result.log, log)
        return self.context.failure(target, error, log)

    def _log(self, run: CibuildwheelRun) -> Path:
        return self.context.folder.absolute() / LOGS / f"{self.context.recipe.name}-{run.name}.log"


def _leaves_out(build: ContainerBuild | None, before: ContainerBuild) -> bool:
    return build is None or len(modules_in(build.wheel)) < len(modules_in(before.wheel))


def _of(target: Target, identifier: str) -> Target:
    """*target* for *identifier*; one of another machine has the baseline, as nothing of its code is looked at."""
    machine = machine_of(identifier)
    if machine == target.cpu.machine:
        return replace(target, python=identifier)
    # other machines have no levels, and nothing of their code is looked at
    cpu = baseline(machine if machine in MACHINES else MACHINES[0])
    return replace(target, python=identifier, cpu=cpu)


def _check(run: CibuildwheelRun, build: ContainerBuild, recipe: Recipe) -> None:
    if run.plan and build.record.started is None:
        raise BuildError(f"{build.wheel.name}: {NOT_PUT}")
    if run.plan and not run.cpu.is_baseline and not build.record.calls:
        raise BuildError(f"{build.wheel.name}: {NOT_CALLED.format(cpu=run.cpu)}")
    if cuda := run.targets[0].cuda:
        with at(build.wheel.name):
            mode = recipe.build.cuda.archs
            agreement(build.record.commands, fatbins(build.wheel), cuda.archs, mode=mode).check(build.wheel)


def _not_reproducible(run: CibuildwheelRun, build: ContainerBuild, recipe: Recipe) -> tuple[Unreproducible, ...]:
    """The files in the wheel of *build* that would have other bytes if they were built elsewhere."""
    toolkit = Path(inside(run.toolkit.root)) if run.toolkit else None
    traces = BuildTraces.of([(toolkit, "cuda")], None, build.record.started or time.time())
    source, has_gpu_code = recipe.file.parent, bool(build.record.commands)
    return not_reproducible(build.wheel, traces, source, has_gpu_code=has_gpu_code)


def _baseline(target: Target, identifier: str, results: Sequence[ContainerResult]) -> Path | None:
    if not target.asks_for_cpu:
        return None
    for result in results:
        other = result.run.targets[0]
        alike = result.run.plan and without_cpu(replace(other, python=identifier)) == without_cpu(target)
        if not other.asks_for_cpu and alike and identifier in result.builds:
            return result.builds[identifier].wheel
    return None
