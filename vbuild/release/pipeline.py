"""The steps of a release, in the order in which every command that makes one takes them.

    targets -> planned -> built, repaired -> slimmed -> stamped -> verified -> tested        `wheels_made`
            -> split -> benched -> merged for CPU levels -> indexed, with report             `released`

`vbuild.release.builder` builds and repairs. `vbuild matrix` takes all of these steps on this machine, or the first line
on the workers of a cluster; `vbuild cibuildwheel` has cibuildwheel build and test; `vbuild collect` starts from wheels
that other runs finished. A target that fails at any step leaves the others alone: it is a `Failure` in its place.

Modules that only some releases need are imported by their steps: a recipe without CUDA loads nothing of slimming.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from msgspec.structs import replace

from vbuild.build.frontend import Job
from vbuild.build.identity import build_keys, searched_files
from vbuild.build.resources import shared
from vbuild.build.wrappers import Override
from vbuild.errors import RepackageError, VbuildError, WheelError, at
from vbuild.files.atomic import linked
from vbuild.process.run import supervised
from vbuild.recipe.flags import ProfileSettings
from vbuild.recipe.matrix import Plain
from vbuild.recipe.model import AGAINST, Recipe
from vbuild.recipe.target import Target
from vbuild.release.builder import Builder, PlannedWheel, RepairedWheel, interpreter_of
from vbuild.release.cache import BuildKind, product_key
from vbuild.release.emulation import emulation_of, emulator_name, is_emulated, why_unasked
from vbuild.release.model import Failure, Product, ReleaseContext, ReleaseResult, ReleaseWheels
from vbuild.release.report import ProfileEntry
from vbuild.toolchain.interpreter import Interpreter
from vbuild.verification.level_emulation import with_evidence
from vbuild.verification.model import VerifyRule, is_grafted

if TYPE_CHECKING:
    from vbuild.build.trial import TrialResult
    from vbuild.build.wrappers import FailedCall
    from vbuild.splitting.request import SplitRequest
    from vbuild.splitting.split import Split
    from vbuild.verification.model import Verdict

T = TypeVar("T")
R = TypeVar("R")

_SHOWN = 5
_STRIP = "if a flag of the project's own put it there: build.flags = 'strip'"
_STRIP_NATIVE = "; if one of native {}: flags = 'strip' in its [[native]]"


class _Each(Protocol):
    """A map over threads."""

    def __call__(self, function: Callable[[T], R], items: Iterable[T], /) -> list[R]: ...


def check_request(recipe: Recipe, targets: Sequence[Target]) -> "SplitRequest | None":
    """What is taken out of the finished wheels of *targets*, or None; `VbuildError` if the recipe cannot be followed.

    Everything that follows from the recipe alone is refused here, before anything is built.
    """
    request = split_request(recipe)
    if recipe.verify.against not in AGAINST:
        from vbuild.release.against import check_against

        check_against(recipe)
    if recipe.matrix.plain is Plain.HWCAPS:
        from vbuild.release.hwcaps_merge import check_chosen

        check_chosen(recipe, targets)
    return request


def split_request(recipe: Recipe) -> "SplitRequest | None":
    """What the ``[split]`` table of *recipe* asks for, or None without one; `VbuildError` if it cannot be read."""
    if recipe.split is None:
        return None
    from vbuild.splitting.request import SplitRequest

    with at(recipe.file):
        return dataclasses.replace(SplitRequest.read(recipe.split), bill=recipe.repair.bill)


def wheels_made(context: ReleaseContext, *, jobs: int | None) -> ReleaseWheels:
    """The wheels of all targets, made on this machine with *jobs* builds at a time; `VbuildError` if none can start.

    If *jobs* is None they are as many as cores and memory bear. Each build is made once, whatever the number of wheels
    from it. What the cache has is not made again.
    """
    builder = Builder.opened(context)
    prepared = [builder.prepared(target) for target in context.targets]
    trained, failures = _trained(builder, prepared) if context.recipe.build.profile.train else (prepared, {})
    items = planned(builder, trained)
    found: dict[PlannedWheel, Product | Failure] = {item: product for item in items if (product := kept(builder, item))}
    if missing := [item for item in items if item not in found]:
        found.update(zip(missing, _made(builder, missing, items, jobs=jobs), strict=True))
    item_of = {item.target: item for item in items}

    def test_again(product: Product, find_links: Path) -> Product | Failure:
        item = item_of[product.target]
        return tested_again(builder, product, find_links, interpreter=item.job.interpreter)

    builder.notes[:0] = [note for item in items for note in item.job.notes]
    outcomes = {**failures, **{item.target: found[item] for item in items}}
    return ReleaseWheels([outcomes[target] for target in context.targets], test_again, interpreter_of, builder.notes)


def _trained(builder: Builder, jobs: Sequence[Job]) -> tuple[list[Job], dict[Target, Product | Failure]]:
    """*jobs* with the profiles that training leaves, and the failures of those that cannot be trained."""
    from vbuild.release.training import with_profile

    trained: list[Job] = []
    failures: dict[Target, Product | Failure] = {}
    with supervised():
        for job in jobs:
            try:
                trained.append(with_profile(builder, job))
            except VbuildError as error:
                failures[job.target] = builder.context.failure(job.target, error, None)
    return trained, failures


def planned(builder: Builder, jobs: Sequence[Job]) -> tuple[PlannedWheel, ...]:
    """The wheels of *jobs*, each with the keys of its build and of itself in the cache."""
    repair = builder.context.recipe.repair
    distinct = {job.target.build_key: job for job in jobs}
    searched = cache(searched_files)
    keys = {
        key: build_keys(job, source=builder.digest, repair=repair, searched=searched) for key, job in distinct.items()
    }
    kept = builder.context.cache
    builds = {key: kept.key(found) if kept else found.whole for key, found in keys.items()}
    found = []
    for job in jobs:
        other = baseline_of(job.target, (each.target for each in jobs))
        baseline = builds[other.build_key] if other else None
        item = planned_wheel(builder, job, builds[job.target.build_key], baseline)
        found.append(replace(item, keys=keys[job.target.build_key]))
    return tuple(found)


def planned_wheel(builder: Builder, job: Job, build: str, baseline: str | None) -> PlannedWheel:
    """The wheel of *job*, from the build with the key *build*, its code compared with the build *baseline*."""
    recipe, document = builder.context.recipe, builder.context.family.document(job.target)
    product = product_key(
        build,
        job.target,
        document=document.pack() if document else None,
        verify=recipe.verify,
        check=recipe.test,
        baseline=baseline,
        cpu=builder.cpu,
        emulator=emulator_name(recipe.test) if job.target.cpu.machine == "x86_64" else None,
    )
    return PlannedWheel(job, build, baseline, product)


def baseline_of(target: Target, others: Iterable[Target]) -> Target | None:
    """The first of *others* that is at the plain level and like *target* otherwise; None for one of these itself."""
    if not target.asks_for_cpu:
        return None
    alike = (other for other in others if not other.asks_for_cpu and without_cpu(other) == without_cpu(target))
    return next(alike, None)


def without_cpu(target: Target) -> tuple[object, ...]:
    """What the host code of *target* depends on, but for the CPU level; not on the GPUs that there is code for."""
    return (target.python, target.choices, target.cuda.toolkit if target.cuda else None)


def _made(
    builder: Builder, missing: Sequence[PlannedWheel], items: Sequence[PlannedWheel], *, jobs: int | None
) -> list[Product | Failure]:
    """What becomes of the *missing* ones of *items*: their builds are made, slimmed, and finished."""
    wanted = {key for item in missing for key in (item.build, item.baseline)}
    first: dict[str, PlannedWheel] = {}
    for item in items:
        if item.build in wanted:
            first.setdefault(item.build, item)
    at_once, processes = shared(len(first), jobs)
    builder = replace(builder, processes=processes)
    with builder.caching() as cache, _pool(at_once) as each:
        builds = dict(zip(first, each(partial(builder.built, cache=cache), first.values()), strict=True))

        def slim(item: PlannedWheel) -> Mapping[Target, Path] | Failure:
            build = builds[item.build]
            return build if isinstance(build, Failure) else slimmed(builder, item, missing, build.wheel)

        cut = dict(zip(first, each(slim, first.values()), strict=True))

        def finish(item: PlannedWheel) -> Product | Failure:
            build, wheels = builds[item.build], cut[item.build]
            if isinstance(build, Failure):
                return replace(build, target=item.target)
            if isinstance(wheels, Failure):
                return replace(wheels, target=item.target)
            baseline = builds.get(item.baseline) if item.baseline else None
            compared = baseline.wheel if isinstance(baseline, RepairedWheel) else None
            return finished(builder, item, build, wheels.get(item.target), baseline=compared)

        return each(finish, missing)


@contextmanager
def _pool(jobs: int) -> Iterator[_Each]:
    """A map over *jobs* threads; leaving it by an error or Ctrl-C stops the commands that the threads run."""
    with ThreadPoolExecutor(jobs) as executor, supervised():
        yield lambda function, items: list(executor.map(function, items))


def kept(builder: Builder, item: PlannedWheel) -> Product | None:
    """The finished wheel of *item* if an earlier run made it."""
    context = builder.context
    found = builder.taken(BuildKind.PRODUCT, item.product, context.place("kept", item.target))
    if found is None:
        return None
    from vbuild.build.trial import TrialResult
    from vbuild.verification.level_emulation import LevelRun
    from vbuild.verification.model import Verdict

    context.on_progress(item.target, "kept")
    record = found.record
    return Product(
        target=item.target,
        wheel=found.wheel,
        label=context.family.label(item.target),
        plan=item.job.plan,
        toolkit=item.job.toolkit,
        seconds=record["seconds"],
        overrides=tuple(map(Override.of_data, record["overrides"])),
        lists=tuple(record["lists"]),
        verdict=Verdict.of_data(record["verdict"], found.wheel),
        trial=TrialResult(record["trial"]),
        emulation=LevelRun.of_data(record["emulation"]) if record["emulation"] else None,
        is_built=False,
        is_kept=True,
        profile=profile_entry(item.job),
    )


def slimmed(
    builder: Builder, item: PlannedWheel, items: Iterable[PlannedWheel], wheel: Path
) -> Mapping[Target, Path] | Failure:
    """The wheels of those of *items* that are for some GPUs of the build of *item*, cut from its *wheel*."""
    targets = [other.target for other in items if other.build == item.build and other.target.gpus]
    try:
        return slimmed_to_gpus(builder.context, wheel, targets, item.target)
    except VbuildError as error:
        return builder.context.failure(item.target, error, builder.context.log(item.target))


def slimmed_to_gpus(
    context: ReleaseContext, wheel: Path, targets: Sequence[Target], first: Target
) -> Mapping[Target, Path]:
    """The variant wheels of *targets*, cut in one pass from the *wheel* of their build, that of the target *first*.

    `RepackageError` if it has no GPU code. What each library serves is for `vbuild verify` to judge: some are for some
    GPUs only.
    """
    if not targets:
        return {}
    from vbuild.slimming.request import Cuts, Share
    from vbuild.slimming.slim import slim_wheel

    context.on_progress(first, "slimming")
    shares = [Share(target.gpus, context.family.label(target), context.family.document(target)) for target in targets]
    # who builds a project may change its wheels; whether it has a bill of materials, its build has decided
    cuts = Cuts(unsupported=True, bill=False)
    cut = slim_wheel(wheel, context.place("divided", first), shares=shares, cuts=cuts, accept_license=True)
    if len(cut) != len(targets):  # it passes a wheel without GPU code as it is
        raise RepackageError(f"{wheel.name}: no GPU code to divide among {', '.join(map(str, targets))}")
    return {target: result.path for target, result in zip(targets, cut, strict=True) if result.path}


def finished(
    builder: Builder, item: PlannedWheel, build: RepairedWheel, cut: Path | None, *, baseline: Path | None
) -> Product | Failure:
    """The wheel of *item*, stamped, verified against *baseline*, and tested: *cut* from its *build*, or all of it."""
    context, target = builder.context, item.target
    try:
        wheel = cut or stamped(context, target, build.wheel)
        context.on_progress(target, "verifying")
        verdict = verified(context, wheel, target, baseline=baseline, failed=build.failed)
        context.on_progress(target, "testing")
        trial = result_of_test(builder, target, cut or build.wheel, interpreter=item.job.interpreter)
        emulation, why_not = None, why_unasked(context.recipe.test)
        if not why_not and verdict.libraries:
            emulation = emulation_of(context, target, cut or build.wheel, context.place("trials", target))
        verdict = with_evidence(verdict, emulation, why_not=why_not)
    except VbuildError as error:
        return context.failure(target, error, context.log(target))
    context.on_progress(target, "done")
    context.log(target).unlink(missing_ok=True)
    record = {**build.record, "verdict": verdict.data(), "trial": str(trial)}
    record["emulation"] = emulation.data() if emulation else None
    if not verdict.failed:
        builder.keep(BuildKind.PRODUCT, item.product, wheel, record)
    return Product(
        target=target,
        wheel=wheel,
        label=context.family.label(target),
        plan=item.job.plan,
        toolkit=item.job.toolkit,
        seconds=build.seconds,
        overrides=build.overrides,
        lists=build.lists,
        verdict=verdict,
        trial=trial,
        emulation=emulation,
        is_built=not build.is_kept,
        profile=profile_entry(item.job),
    )


def profile_entry(job: Job) -> ProfileEntry | None:
    """What the report has of the profile and the link-time optimisation of *job*; None without."""
    asked = job.settings.profile
    if asked == ProfileSettings():
        return None
    made = job.profile
    return ProfileEntry(asked.lto, asked.train, made.sha256 if made else None, made.objects if made else 0)


def stamped(context: ReleaseContext, target: Target, wheel: Path) -> Path:
    """*wheel* as the variant wheel of *target*, or as it is for the plain one, on the same file system."""
    folder, variant = context.place("finished", target), context.family.variant(target)
    if variant is None:
        folder.mkdir(parents=True, exist_ok=True)
        return linked(wheel, folder / wheel.name)  # a labelled target may be made of the same build
    from vbuild.variants.stamp import stamped as stamp

    return stamp(wheel, folder, variant=variant, metadata=context.family.metadata, schema=context.family.schema)


def verified(
    context: ReleaseContext,
    wheel: Path,
    target: Target,
    *,
    baseline: Path | None,
    failed: "Sequence[FailedCall]" = (),
) -> "Verdict":
    """The verdict on *wheel*, that of *target*, with the build *baseline* for comparison.

    *failed* are the calls of compilers that failed in its build. `FetchError` if the wheel that it is to be compared
    with is not there. `WheelError` if it does not keep its promises, or has no code to keep them with. In a part of a
    release, the wheel that explains a finding may be in another part: `vbuild collect` decides.
    """
    from vbuild.verification.levels import can_disassemble
    from vbuild.verification.verify import verify

    verdict = verify(wheel, cpu=target.cpu, baseline=baseline, allow=context.recipe.verify.allow)
    if target.label is None and can_disassemble():
        from vbuild.release.against import lacking

        verdict = replace(verdict, findings=(*verdict.findings, *lacking(context, verdict, target, failed)))
    if context.is_part:
        return verdict
    if baseline and target.cpu.machine == "x86_64" and can_disassemble():
        from vbuild.verification.gain import code_gain

        verdict = replace(verdict, findings=(*verdict.findings, *code_gain(wheel, baseline).findings))
    if verdict.failed:
        errors = [one for one in verdict.findings if one.is_error]
        names = " or ".join(native.name for native in context.recipe.natives)
        above = [one for one in errors if one.rule is VerifyRule.ISA_ABOVE]
        own = [one for one in above if names or not all(map(is_grafted, one.places))]
        lines = [one.advised for one in errors[:_SHOWN]]
        if len(errors) > _SHOWN:
            lines.append(f"and {len(errors) - _SHOWN} more")
        if own:
            advice = f"{_STRIP}{_STRIP_NATIVE.format(names) if names else ''}"
            lines.insert(min(errors.index(own[-1]) + 1, _SHOWN), advice)
        raise WheelError(f"{wheel.name}: {'; '.join(lines)}")
    if target.asks_for_cpu and not verdict.libraries:
        from vbuild.verification.published import likely_cause

        why = likely_cause(failed, ()) or "did the build leave its modules out?"
        raise WheelError(f"{wheel.name}: no compiled code for {target.cpu}; {why}")
    return verdict


def result_of_test(
    builder: Builder, target: Target, wheel: Path, *, interpreter: Interpreter, find_links: Path | None = None
) -> "TrialResult":
    """What becomes of the recipe's test of *wheel*, that of *target*; wheels it requires may be in *find_links*."""
    from vbuild.build.trial import WheelTrial

    context = builder.context
    trial = WheelTrial(
        context.recipe.test,
        interpreter,
        target.cpu,
        builder.cpu,
        builder.configuration,
        find_links=find_links,
        pass_env=context.recipe.build.pass_env,
        is_emulated=find_links is None and is_emulated(context.recipe.test, target.cpu),
    )
    folder = context.place("trials with others" if find_links else "trials", target)
    return trial.run(wheel, folder, context.log(target))


def tested_again(
    builder: Builder, product: Product, find_links: Path, *, interpreter: Interpreter
) -> Product | Failure:
    """*product*, whose wheel has changed, tested again; wheels that it requires are in *find_links*."""
    context, target = builder.context, product.target
    try:
        trial = result_of_test(builder, target, product.wheel, interpreter=interpreter, find_links=find_links)
    except VbuildError as error:
        return context.failure(target, error, context.log(target))
    context.log(target).unlink(missing_ok=True)
    return replace(product, trial=trial)


def released(context: ReleaseContext, wheels: ReleaseWheels, *, notes: Iterable[str] = ()) -> ReleaseResult:
    """The release of all *wheels* in its folder: split, timed, plain ones merged for CPU levels, indexed, reported.

    *notes* come before those of the wheels. Until the last moment nothing is written into the folder.
    """
    from vbuild.release.publication import published, without_twins
    from vbuild.release.release_bench import benched

    outcomes, account = split_wheels(context, wheels, without_twins(wheels.outcomes))
    bench = benched(context, wheels, outcomes)
    outcomes = [outcome for outcome in outcomes if outcome not in bench.left_out]
    if context.recipe.matrix.plain is Plain.HWCAPS and not context.is_part:
        from vbuild.release.hwcaps_merge import HwcapsMerge

        outcomes = HwcapsMerge(context, wheels, bench.levels).outcomes(outcomes)
    after = [wheels.split_note] if account and wheels.split_note else []
    after += _cpu_notes(context)
    told = tuple(dict.fromkeys([*notes, *wheels.notes, *after]))
    return published(context, outcomes, account, notes=told, bench=bench)


def _cpu_notes(context: ReleaseContext) -> Iterator[str]:
    """What users of the wheels must know of the CPUs that these are for."""
    lowest = context.recipe.matrix.lowest
    if lowest and any(target.label is None for target in context.targets):
        others = "glibc 2.33 and newer refuse to load it, and others crash"
        below = others if lowest.machine == "x86_64" else "it crashes"
        yield f"plain: for {lowest}, and installers give it to every {lowest.machine} machine: below that, {below}"
    if extras := [str(target) for target in context.targets if target.cpu.extras]:
        yield f"{', '.join(extras)}: uv and other installers choose by level, and take no wheel for single features yet"


def split_wheels(
    context: ReleaseContext, wheels: ReleaseWheels, outcomes: Sequence[Product | Failure]
) -> tuple[Sequence[Product | Failure], "Split | None"]:
    """*outcomes* with thin wheels instead of fat ones, and the account of the split, or None without one.

    What their libraries become is decided for all wheels at once. A wheel that passed its test and changed is tested
    again, with the wheels that it requires now: the wheel that is published is the one that was tested.
    """
    products = [outcome for outcome in outcomes if isinstance(outcome, Product)]
    if context.split is None or not products:
        return outcomes, None
    from vbuild.build.trial import TrialResult
    from vbuild.index_client.configuration import Indexes
    from vbuild.splitting.split import split

    folder = context.stage / "thin"
    result = split([product.wheel for product in products], folder, request=context.split, indexes=Indexes.configured)
    changed = {wheel.name for wheel in result.wheels if not wheel.is_untouched}
    found: list[Product | Failure] = []
    for outcome in outcomes:
        if isinstance(outcome, Failure):
            found.append(outcome)
            continue
        thin = replace(outcome, wheel=folder / outcome.wheel.name)
        is_due = thin.wheel.name in changed and outcome.trial is TrialResult.PASSED
        found.append(wheels.test_again(thin, folder) if is_due else thin)
    names = {outcome.wheel.name for outcome in found if isinstance(outcome, Product)}
    return found, result.of(names) if names else None
