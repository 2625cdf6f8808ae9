"""The steps of a release, in the order in which every command that makes one takes them.

    targets -> planned -> built, repaired -> slimmed -> stamped -> verified -> tested        `wheels_made`
            -> split -> benched -> merged for CPU levels -> indexed, with report             `released`

`vbuild.release.builder` builds and repairs, `vbuild.release.finishing` does the rest up to the test. `vbuild matrix`
takes all of these steps on this machine, or the first line on the workers of a cluster; `vbuild cibuildwheel` has
cibuildwheel build and test; `vbuild collect` starts from wheels that other runs finished. A target that fails at any
step leaves the others alone: it is a `Failure` in its place.

Modules that only some releases need are imported by their steps: a recipe without CUDA loads nothing of slimming.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from msgspec import convert
from msgspec.structs import replace

from vbuild.build.identity import build_keys
from vbuild.build.job import Job
from vbuild.build.reproducible import Unreproducible
from vbuild.build.resources import shared
from vbuild.build.wrappers import Override
from vbuild.errors import at
from vbuild.process.run import supervised
from vbuild.recipe.matrix import Plain
from vbuild.recipe.model import AGAINST, Recipe
from vbuild.recipe.target import Target
from vbuild.release.ahead import ahead
from vbuild.release.builder import Builder, interpreter_of
from vbuild.release.builds import PlannedWheel, RepairedWheel
from vbuild.release.cache import BuildKind, product_key
from vbuild.release.emulation import emulator_name
from vbuild.release.finishing import finished, slimmed, tested_again
from vbuild.release.model import Failure, Product, ReleaseContext, ReleaseResult, ReleaseWheels

if TYPE_CHECKING:
    from vbuild.splitting.request import SplitRequest
    from vbuild.splitting.results import Split

T = TypeVar("T")
R = TypeVar("R")


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
    if recipe.matrix.requires:
        from vbuild.release.against import check_offered

        check_offered(recipe, targets)
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
        test = recipe.test
        request = SplitRequest.read(recipe.split, test=test.command, test_requires=test.requires)
        return dataclasses.replace(request, bill=recipe.repair.bill)


def wheels_made(context: ReleaseContext, *, jobs: int | None) -> ReleaseWheels:
    """The wheels of all targets, made on this machine with *jobs* builds at a time; `VbuildError` if none can start.

    If *jobs* is None they are as many as cores and memory bear. Each build is made once, whatever the number of wheels
    from it. What the cache has is not made again.
    """
    builder = Builder.opened(context)
    prepared = [builder.prepared(target) for target in context.targets]
    with ahead(builder) as begin:
        if context.cache is None or context.cache.fresh:
            begin(prepared)
        items = planned(builder, prepared)
        found: dict[PlannedWheel, Product | Failure] = {
            item: product for item in items if (product := kept(builder, item))
        }
        if missing := [item for item in items if item not in found]:
            begin(
                item.job for item in missing if not (context.cache and context.cache.has(BuildKind.BUILD, item.build))
            )
            found.update(zip(missing, _made(builder, missing, items, jobs=jobs), strict=True))
    item_of = {found[item].target: item for item in items}

    def test_again(product: Product, find_links: Path) -> Product | Failure:
        item = item_of[product.target]
        return tested_again(builder, product, find_links, interpreter=item.job.interpreter)

    builder.notes[:0] = [note for item in items for note in item.job.notes]
    outcomes = {item.target: found[item] for item in items}
    return ReleaseWheels([outcomes[target] for target in context.targets], test_again, interpreter_of, builder.notes)


def planned(builder: Builder, jobs: Sequence[Job]) -> tuple[PlannedWheel, ...]:
    """The wheels of *jobs*, each with the keys of its build and of itself in the cache."""
    repair = builder.context.recipe.repair
    distinct = {job.target.build_key: job for job in jobs}
    keys = {
        key: build_keys(job, source=builder.digest, repair=repair, searched=builder.searched)
        for key, job in distinct.items()
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


def separate(builder: Builder, items: Sequence[PlannedWheel]) -> Mapping[PlannedWheel, PlannedWheel]:
    """For each of *items*, which share builds, the same wheel from a build for its GPUs alone; a note says so."""
    names = ", ".join(str(item.target) for item in items)
    builder.notes.append(f"{names}: compiled separately: GPU code of their common build cannot be cut")
    jobs = [builder.prepared(item.target.separate) for item in items]
    return {
        shared: replace(planned_wheel(builder, own.job, own.build, shared.baseline), keys=own.keys)
        for shared, own in zip(items, planned(builder, jobs), strict=True)
    }


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
        emulator=emulator_name(recipe.test, job.target.cpu.machine),
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
    return (target.python, target.choices, target.requires, target.cuda.toolkit if target.cuda else None)


def _made(
    builder: Builder, missing: Sequence[PlannedWheel], items: Sequence[PlannedWheel], *, jobs: int | None
) -> list[Product | Failure]:
    """What becomes of the *missing* ones of *items*: their builds are made, slimmed, and finished."""
    first = _first(missing, items)
    at_once, processes = shared(len(first), jobs)
    if len(first) > at_once:
        from vbuild.release.queue import longest_first

        first = {item.build: item for item in longest_first(first.values(), builder.context)}
    builder = replace(builder, processes=processes)
    cache = builder.ccache()
    with _pool(at_once) as each:
        builds = dict(zip(first, each(partial(builder.built, cache=cache), first.values()), strict=True))

        def slim(item: PlannedWheel) -> Mapping[Target, Path] | Failure:
            build = builds[item.build]
            if isinstance(build, Failure):
                return build
            return slimmed(builder, item, missing, build.wheel, may_be_built=True)

        cut = dict(zip(first, each(slim, first.values()), strict=True))

        uncut = [item for item in missing if item.target.gpus and _is_left_out(item, cut[item.build])]
        own = separate(builder, uncut) if uncut else {}
        alone = partial(_beside(builder).built, cache=cache)
        builds |= {item.build: build for item, build in zip(own.values(), each(alone, own.values()), strict=True)}

        def finish(item: PlannedWheel) -> Product | Failure:
            if item in own:
                item = own[item]
                if product := kept(builder, item):
                    return product
            build, wheels = builds[item.build], cut.get(item.build, {})
            if isinstance(build, Failure):
                return replace(build, target=item.target)
            if isinstance(wheels, Failure):
                return replace(wheels, target=item.target)
            baseline = builds.get(item.baseline) if item.baseline else None
            compared = baseline.wheel if isinstance(baseline, RepairedWheel) else None
            return finished(builder, item, build, wheels.get(item.target), baseline=compared)

        return each(finish, missing)


def _first(missing: Sequence[PlannedWheel], items: Sequence[PlannedWheel]) -> dict[str, PlannedWheel]:
    """The builds that *missing* ones of *items* need, also to compare with, each with the first item that has it."""
    wanted = {key for item in missing for key in (item.build, item.baseline)}
    first: dict[str, PlannedWheel] = {}
    for item in items:
        if item.build in wanted:
            first.setdefault(item.build, item)
    return first


def _beside(builder: Builder) -> Builder:
    """*builder* with other folders for its builds: targets that are built again have used theirs."""
    return replace(builder, context=replace(builder.context, stage=builder.context.stage / "separate"))


def _is_left_out(item: PlannedWheel, wheels: Mapping[Target, Path] | Failure) -> bool:
    return not isinstance(wheels, Failure) and item.target not in wheels


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
    builder.notes.extend(record["notes"])
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
        not_reproducible=convert(record["not_reproducible"], tuple[Unreproducible, ...]),
    )


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
    return published(context, outcomes, account, notes=told, bench=bench, is_remote=wheels.is_remote)


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
    built = [(one.wheel.name, one.target.cuda.toolkit.version.major) for one in products if one.target.cuda]
    request = dataclasses.replace(context.split, majors=tuple(built))
    result = split([product.wheel for product in products], folder, request=request, indexes=Indexes.configured)
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
