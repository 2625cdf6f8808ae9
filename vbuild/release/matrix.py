"""`vbuild matrix`: one recipe in, one release of variant wheels out. Its steps, in their order:

    recipe, with its lock -> targets                                                         `matrix`
        -> planned -> built, repaired -> slimmed -> stamped -> verified -> tested            `wheels_made`
        -> split -> benched -> merged for CPU levels -> indexed, with report                 `released`

`builder` builds and repairs, `finishing` slims, stamps, verifies and tests, `levels` times and merges, `publication`
indexes and reports. A cluster does the second line, cibuildwheel builds and tests; `vbuild collect` starts from wheels.
A target that fails becomes a `Failure`, and leaves the others alone.
"""

import dataclasses
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from vbuild.build.identity import build_keys
from vbuild.build.init import AskedAxes, project_recipe
from vbuild.build.job import Job, build_shares
from vbuild.errors import RecipeError, at
from vbuild.files.atomic import staging
from vbuild.index_client.configuration import Indexes
from vbuild.index_client.packages import files_of
from vbuild.process.masking import masked_in
from vbuild.process.run import supervised
from vbuild.recipe.hidden import hiding_secrets, too_short
from vbuild.recipe.matrix import Plain, releases_of
from vbuild.recipe.model import AGAINST, Recipe, TrialResult, lock_file
from vbuild.recipe.source import same_project
from vbuild.recipe.target import Target
from vbuild.release.builder import Builder, PlannedWheel, RepairedWheel, interpreter_of
from vbuild.release.cache import BuildCache, product_key
from vbuild.release.finishing import emulator_name, finished, finished_before, slimmed, tested_again
from vbuild.release.levels import HwcapsMerge, benched, check_chosen
from vbuild.release.lock import locked
from vbuild.release.model import (
    Failure,
    OnProgress,
    Product,
    ReleaseContext,
    ReleaseFamily,
    ReleaseResult,
    ReleaseWheels,
)
from vbuild.release.publication import project_sdist, published, without_twins
from vbuild.splitting.request import SplitRequest
from vbuild.toolchain.toolkit_provision import FORESEEN
from vbuild.variants.model import Property
from vbuild.variants.providers import unanswered
from vbuild.wheel.name import WheelName
from vbuild.workers.executor import LOCAL, Executor

if TYPE_CHECKING:
    from vbuild.splitting.results import Split

_SHOWN = 5


class MatrixRequest(Struct, frozen=True, kw_only=True):
    """How a recipe is built; by default every target, here.

    *jobs* builds run at a time, or as many as the machine bears. If it *is_locked*, it uses only what the recipe's lock
    names. One that *is_part* of a release leaves to `vbuild collect` what needs all of it. *axes* replace those of
    ``[matrix]``. *on_note* gets lines on what was chosen for the user.
    """

    jobs: int | None = 1
    only: Collection[str] = ()
    executor: Executor = LOCAL
    is_part: bool = False
    is_locked: bool = False
    fresh: bool = False
    axes: AskedAxes = AskedAxes()
    on_note: Callable[[str], None] = lambda _note: None


_DEFAULT = MatrixRequest()


def matrix(
    source: str | Path,
    folder: Path,
    request: MatrixRequest = _DEFAULT,
    *,
    store: BuildCache | None = None,
    on_progress: OnProgress = lambda _target, _step: None,
) -> ReleaseResult:
    """Build *source*, as in `vbuild.build.init`, into *folder*, with *store* or the user's cache.

    `VbuildError`, and no wheel written, if no build can start or the wheels would contradict others in the folder.
    """
    if request.is_part and request.axes.is_one_wheel:
        raise RecipeError("one wheel of all CPU levels: expected the whole release; matrix.plain joins it from parts")
    recipe, targets, stale = recipe_and_targets(source, request)
    context = ReleaseContext(
        recipe=recipe,
        targets=targets,
        folder=folder,
        stage=folder,
        on_progress=on_progress,
        split=None if request.is_part else check_recipe(recipe, targets),
        family=ReleaseFamily.of(recipe, targets),
        cache=store or BuildCache(fresh=request.fresh),
        is_part=request.is_part,
        is_one_wheel=request.axes.is_one_wheel,
        source=str(recipe.source),
        inputs=(
            *((recipe.file,) if recipe.file.is_file() else ()),
            *((lock_file(recipe.file),) if recipe.build.lock else ()),
        ),
    )
    for target in targets:
        context.on_progress(target, "waiting")
    with hiding_secrets(recipe, targets), staging(folder) as stage:
        context = replace(context, stage=stage)
        notes = (*stale, *too_short(recipe, targets))
        if request.executor.is_local:
            return released(context, wheels_made(context, jobs=request.jobs), notes=notes)
        from vbuild.release.remote import wheels_of_workers

        with wheels_of_workers(context, request.executor) as wheels:
            return released(context, wheels, notes=notes)


def jobs_of(source: str | Path, request: MatrixRequest = _DEFAULT) -> tuple[Job, ...]:
    """What `matrix` would build, with every flag and setting, secrets hidden; nothing is built or written."""
    recipe, targets, _ = recipe_and_targets(source, request)
    if not request.is_part:
        check_recipe(recipe, targets)
    with hiding_secrets(recipe, targets), tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        context = ReleaseContext(recipe=recipe, targets=targets, folder=folder, stage=folder, supply=FORESEEN)
        builder = Builder.opened(context)
        return masked_in(tuple(builder.job_of(target) for target in targets))


def recipe_and_targets(
    source: str | Path, request: MatrixRequest
) -> tuple[Recipe, tuple[Target, ...], tuple[str, ...]]:
    """The recipe for *source*, with its lock unless stale, the targets, and why a lock is stale."""
    draft = project_recipe(source, request.axes)
    for note in draft.notes:
        request.on_note(note)
    recipe = draft.recipe
    stale: tuple[str, ...] = ()
    # a lock cannot stand beside a name on an index
    if request.is_locked or (recipe.file.is_file() and lock_file(recipe.file).exists()):
        recipe, stale = locked(recipe, is_binding=request.is_locked)
    return recipe, recipe.chosen(only=request.only, pythons=draft.pythons), stale


def check_recipe(recipe: Recipe, targets: Sequence[Target]) -> SplitRequest | None:
    """The request to split the wheels, or None; `VbuildError` for mistakes that the recipe alone shows."""
    request = split_request(recipe)
    _check_against(recipe)
    _check_offered(recipe, targets)
    project_sdist(recipe)  # which may be none of today's
    if recipe.matrix.plain is Plain.HWCAPS:
        check_chosen(recipe, targets)
    return request


def split_request(recipe: Recipe) -> SplitRequest | None:
    if recipe.split is None:
        return None
    with at(recipe.file):
        test = recipe.test
        request = SplitRequest.read(recipe.split, test=test.command, test_requires=test.requires)
        return dataclasses.replace(request, bill=recipe.repair.bill)


def _check_against(recipe: Recipe) -> None:
    against = recipe.verify.against
    if against in AGAINST:
        return
    with at(recipe.file), at("verify.against"):
        if isinstance(against, Path):
            if not same_project(WheelName.parse(against.name).distribution, recipe.name):
                raise RecipeError(f"{against.name} is not a wheel of {recipe.name}")
            return
        versions = {file.version for file in files_of(recipe.name, indexes=Indexes.configured()) if file.is_wheel}
        if Version(against) not in versions:
            fault = f"no index has a wheel of {recipe.name} {against}"
            raise RecipeError(f"{fault}; the newest there: {_newest(versions)}")


def _check_offered(recipe: Recipe, targets: Iterable[Target]) -> None:
    pairs = (pair for target in targets for pair in target.requires)
    for project, value in dict.fromkeys((project, release) for project, text in pairs for release in releases_of(text)):
        with at(recipe.file), at(f"matrix.requires.{project}"):
            versions = {file.version for file in files_of(project, indexes=Indexes.configured()) if not file.is_yanked}
            if not any(SpecifierSet(f"=={value}.*").filter(versions)):
                raise RecipeError(f"no index has {project} {value}; the newest there: {_newest(versions)}")


def _newest(versions: Iterable[Version]) -> str:
    return ", ".join(map(str, sorted(versions, reverse=True)[:_SHOWN])) or "none"


def wheels_made(context: ReleaseContext, *, jobs: int | None) -> ReleaseWheels:
    """The wheels of all targets, made on this machine; `VbuildError` if none can start.

    Each build is made once, whatever the number of wheels from it.
    """
    builder = Builder.opened(context)
    wheels = planned_wheels(builder, [builder.job_of(target) for target in context.targets])
    outcomes: dict[PlannedWheel, Product | Failure] = {
        wheel: product for wheel in wheels if (product := finished_before(builder, wheel))
    }
    if missing := [wheel for wheel in wheels if wheel not in outcomes]:
        outcomes.update(zip(missing, _built_and_finished(builder, missing, wheels, jobs=jobs), strict=True))
    # by the target of the outcome: that of a wheel compiled separately differs from the plan
    interpreters = {outcomes[wheel].target: wheel.job.interpreter for wheel in wheels}

    def test_again(product: Product, find_links: Path) -> Product | Failure:
        return tested_again(builder, product, find_links, interpreter=interpreters[product.target])

    builder.notes[:0] = [note for wheel in wheels for note in wheel.job.notes]
    by_target = {wheel.target: outcomes[wheel] for wheel in wheels}
    return ReleaseWheels([by_target[target] for target in context.targets], test_again, interpreter_of, builder.notes)


def planned_wheels(builder: Builder, jobs: Sequence[Job]) -> tuple[PlannedWheel, ...]:
    repair, cache = builder.context.recipe.repair, builder.context.cache
    keys = {
        key: build_keys(job, source=builder.digest, repair=repair, searched=builder.searched)
        for key, job in {job.target.build_key: job for job in jobs}.items()
    }
    builds = {key: cache.key(own) if cache else own.whole for key, own in keys.items()}
    wheels = []
    for job in jobs:
        other = baseline_of(job.target, (other.target for other in jobs))
        baseline = builds[other.build_key] if other else None
        wheel = planned_wheel(builder, job, builds[job.target.build_key], baseline)
        wheels.append(replace(wheel, keys=keys[job.target.build_key]))
    return tuple(wheels)


def planned_wheel(builder: Builder, job: Job, build: str, baseline: str | None) -> PlannedWheel:
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
    """The first of *others* at the plain level and else like *target*; None for one of these."""
    if not target.asks_for_cpu:
        return None
    alike = (other for other in others if not other.asks_for_cpu and without_cpu(other) == without_cpu(target))
    return next(alike, None)


def without_cpu(target: Target) -> tuple[object, ...]:
    return (target.python, target.choices, target.requires, target.cuda.toolkit if target.cuda else None)


def _built_and_finished(
    builder: Builder, missing: Sequence[PlannedWheel], wheels: Sequence[PlannedWheel], *, jobs: int | None
) -> list[Product | Failure]:
    """The outcomes of the *missing* ones of *wheels*."""
    keys = {key for wheel in missing for key in (wheel.build, wheel.baseline)}
    first: dict[str, PlannedWheel] = {}  # of each build, also of those to compare with
    for wheel in sorted((wheel for wheel in wheels if wheel.build in keys), key=_gpus_to_compile, reverse=True):
        first.setdefault(wheel.build, wheel)
    at_once, processes = build_shares(len(first), jobs)
    builder = replace(builder, processes=processes)
    cache = builder.ccache()
    with (
        ThreadPoolExecutor(at_once) as executor,
        supervised(),
    ):  # an error, or Ctrl-C, stops the commands of its threads
        builds = dict(zip(first, executor.map(lambda wheel: builder.built(wheel, cache), first.values()), strict=True))

        def slim(wheel: PlannedWheel) -> Mapping[Target, Path] | Failure:
            build = builds[wheel.build]
            if isinstance(build, Failure):
                return build
            return slimmed(builder, wheel, missing, build.wheel, may_be_built=True)

        cut = dict(zip(first, executor.map(slim, first.values()), strict=True))

        separate = _compiled_separately(builder, [wheel for wheel in missing if _is_uncut(wheel, cut[wheel.build])])
        # in other folders: targets that are built again have used theirs
        beside = replace(builder, context=replace(builder.context, stage=builder.context.stage / "separate"))
        separate_builds = executor.map(lambda wheel: beside.built(wheel, cache), separate.values())
        builds |= {wheel.build: build for wheel, build in zip(separate.values(), separate_builds, strict=True)}

        def finish(wheel: PlannedWheel) -> Product | Failure:
            if wheel in separate:
                wheel = separate[wheel]
                if product := finished_before(builder, wheel):
                    return product
            build, pieces = builds[wheel.build], cut.get(wheel.build, {})
            if isinstance(build, Failure):
                return replace(build, target=wheel.target)
            if isinstance(pieces, Failure):
                return replace(pieces, target=wheel.target)
            baseline = builds.get(wheel.baseline) if wheel.baseline else None
            compared = baseline.wheel if isinstance(baseline, RepairedWheel) else None
            return finished(builder, wheel, build, pieces.get(wheel.target), baseline=compared)

        return [*executor.map(finish, missing)]


def _gpus_to_compile(wheel: PlannedWheel) -> int:
    """The number of GPUs of *wheel*'s build; those for most take longest, and begin first."""
    archs = wheel.target.cuda.archs if wheel.target.cuda else None
    return len(archs.requests) + len(archs.targets) if archs else 0


def _is_uncut(wheel: PlannedWheel, pieces: Mapping[Target, Path] | Failure) -> bool:
    """Whether *wheel* would keep code for other GPUs."""
    return bool(wheel.target.gpus) and not isinstance(pieces, Failure) and wheel.target not in pieces


def _compiled_separately(builder: Builder, wheels: Sequence[PlannedWheel]) -> Mapping[PlannedWheel, PlannedWheel]:
    """Each of *wheels*, which share builds, from a build for its GPUs alone."""
    if not wheels:
        return {}
    names = ", ".join(str(wheel.target) for wheel in wheels)
    builder.notes.append(f"{names}: compiled separately: GPU code of their common build cannot be cut")
    jobs = [builder.job_of(wheel.target.separate) for wheel in wheels]
    return {
        wheel: replace(planned_wheel(builder, own.job, own.build, wheel.baseline), keys=own.keys)
        for wheel, own in zip(wheels, planned_wheels(builder, jobs), strict=True)
    }


def released(context: ReleaseContext, wheels: ReleaseWheels, *, notes: Iterable[str] = ()) -> ReleaseResult:
    """The release of all *wheels*: split, timed, plain ones merged for CPU levels, indexed, reported.

    The folder is written at the last moment.
    """
    outcomes, account = _split_wheels(context, wheels, without_twins(wheels.outcomes))
    bench = benched(context, wheels, outcomes)
    outcomes = [outcome for outcome in outcomes if outcome not in bench.left_out]
    if context.recipe.matrix.plain is Plain.HWCAPS and not context.is_part:
        outcomes = HwcapsMerge(context, wheels, bench.levels).outcomes(outcomes)
        if context.is_one_wheel:
            outcomes = [outcome for outcome in outcomes if isinstance(outcome, Failure) or outcome.label is None]
    after = [wheels.split_note] if account and wheels.split_note else []
    after += _cpu_notes(context)
    notes = tuple(dict.fromkeys([*notes, *wheels.notes, *after]))
    return published(context, outcomes, account, notes=notes, bench=bench, is_remote=wheels.is_remote)


def _split_wheels(
    context: ReleaseContext, wheels: ReleaseWheels, outcomes: Sequence[Product | Failure]
) -> tuple[Sequence[Product | Failure], "Split | None"]:
    """*outcomes* with thin wheels, and the account of the split, or None without one.

    Changed wheels that passed their test are tested again, with the wheels that they require now.
    """
    products = [outcome for outcome in outcomes if isinstance(outcome, Product)]
    if context.split is None or not products:
        return outcomes, None
    from vbuild.splitting.split import split

    folder = context.stage / "thin"
    majors = [(product.wheel.name, cuda.toolkit.version.major) for product in products if (cuda := product.target.cuda)]
    request = dataclasses.replace(context.split, majors=tuple(majors))
    result = split([product.wheel for product in products], folder, request=request, indexes=Indexes.configured)
    changed = {wheel.name for wheel in result.wheels if not wheel.is_untouched}
    thin: list[Product | Failure] = []
    for outcome in outcomes:
        if isinstance(outcome, Product):
            product = replace(outcome, wheel=folder / outcome.wheel.name)
            is_due = product.wheel.name in changed and outcome.trial is TrialResult.PASSED
            thin.append(wheels.test_again(product, folder) if is_due else product)
        else:
            thin.append(outcome)
    names = {outcome.wheel.name for outcome in thin if isinstance(outcome, Product)}
    return thin, result.of(names) if names else None


def _cpu_notes(context: ReleaseContext) -> Iterator[str]:
    lowest = context.recipe.matrix.lowest
    if lowest and any(target.label is None for target in context.targets):
        others = "glibc 2.33 and newer refuse to load it, and others crash"
        below = others if lowest.machine == "x86_64" else "it crashes"
        yield f"plain: for {lowest}, and installers give it to every {lowest.machine} machine: below that, {below}"
    untaken: dict[str, list[str]] = {}
    for target in context.targets:
        for text in target.properties:
            if why := unanswered([Property.parse(text)]):
                untaken.setdefault(why, []).append(str(target))
    for why, titles in untaken.items():
        yield f"{', '.join(dict.fromkeys(titles))}: no installer takes it by itself: {why}"
