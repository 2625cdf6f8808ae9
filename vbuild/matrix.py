"""`vbuild matrix`: one recipe in, one release of variant wheels out.

    recipe -> targets -> jobs -> built, repaired -> stamped, verified, tested -> split -> indexed -> report.json

A target that fails leaves the others running: they are finished and written, and the release says what is missing.
"""

import json
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from vbuild.build.frontend import Job
from vbuild.build.probes import forget
from vbuild.build.process import supervised
from vbuild.errors import RecipeError, VbuildError
from vbuild.index import Indexed, index
from vbuild.linking import linked
from vbuild.recipe.model import Recipe
from vbuild.recipe.target import Target
from vbuild.release.family import Family
from vbuild.release.finishing import Finishing
from vbuild.release.order import Order, ordered
from vbuild.release.outcome import Failure, Product, Release
from vbuild.release.staging import staging
from vbuild.release.store import Store
from vbuild.release.thinning import Thinning, request_of, thinned
from vbuild.release.workshop import Repaired, Told, Workshop
from vbuild.toolkit.supply import FORESEEN
from vbuild.variant.document import Schema
from vbuild.wheel.name import WheelName

T = TypeVar("T")
R = TypeVar("R")

REPORT = "report.json"


class _Each(Protocol):
    """A map over threads."""

    def __call__(self, function: Callable[[T], R], items: Iterable[T], /) -> list[R]: ...


def matrix(
    source: Path,
    folder: Path,
    *,
    jobs: int = 1,
    only: Collection[str] = (),
    schema: Schema = Schema.PEP_850,
    store: Store | None = None,
    told: Told = lambda _target, _step: None,
) -> Release:
    """Build the recipe or project at *source* into *folder*: every target, or those called as in *only*.

    *jobs* builds run at a time; *told* hears of each step of each target. Builds and wheels that *store*, the user's
    where None, has from before are taken from there. The folder gets the finished wheels, the release's variants.json,
    ``report.json``, and the logs of what failed. A `VbuildError` is raised, and no wheel written, where no build can
    start or where the wheels would contradict others in the folder.
    """
    recipe = Recipe.load(source)
    request = request_of(recipe)
    targets = _chosen(recipe, only)
    family = Family.of(recipe, targets, schema=schema)
    store = store or Store.of_user()
    with staging(folder) as stage:
        shop = Workshop.opened(recipe, folder, stage, store=store, told=told)
        plan = [shop.prepared(target) for target in targets]
        orders = ordered(plan, recipe=recipe, family=family, source=shop.digest, machine=shop.cpu)
        finishing = Finishing(shop, family)
        kept = {order: product for order in orders if (product := finishing.kept(order))}
        missing = [order for order in orders if order not in kept]
        made = _made(missing, orders, finishing, jobs=jobs) if missing else {}
        found = {order: {**kept, **made}[order] for order in orders}
        thinning = thinned(_without_twins(found.values()), found, request, finishing)
        notes = tuple(dict.fromkeys([*(note for job in plan for note in job.notes), *shop.notes]))
        release = _published(recipe, thinning, stage, folder, notes=notes)
    store.sweep()
    forget()
    return release


def planned(source: Path, *, only: Collection[str] = ()) -> tuple[Job, ...]:
    """What `matrix` would build, with every flag, setting and launcher rule; nothing is built or written."""
    recipe = Recipe.load(source)
    request_of(recipe)
    with tempfile.TemporaryDirectory() as folder:
        shop = Workshop.opened(recipe, Path(folder), Path(folder), store=Store.of_user(), supply=FORESEEN)
        return tuple(shop.prepared(target) for target in _chosen(recipe, only))


def _made(
    missing: Sequence[Order], orders: Sequence[Order], finishing: Finishing, *, jobs: int
) -> dict[Order, Product | Failure]:
    """What becomes of the *missing* ones of *orders*: their builds are made, divided among GPUs, and finished."""
    shop = finishing.shop
    wanted = {key for order in missing for key in (order.build, order.baseline)}
    first: dict[str, Order] = {}
    for order in orders:
        if order.build in wanted:
            first.setdefault(order.build, order)
    with shop.caching() as cache, _pool(jobs) as each:
        builds = dict(zip(first, each(partial(shop.built, cache=cache), first.values()), strict=True))

        def divided(order: Order) -> Mapping[Target, Path] | Failure:
            build = builds[order.build]
            return build if isinstance(build, Failure) else finishing.divided(order, missing, build)

        cut = dict(zip(first, each(divided, first.values()), strict=True))

        def finished(order: Order) -> Product | Failure:
            build, wheels = builds[order.build], cut[order.build]
            if isinstance(build, Failure):
                return replace(build, target=order.target)
            if isinstance(wheels, Failure):
                return replace(wheels, target=order.target)
            baseline = builds.get(order.baseline) if order.baseline else None
            held_against = baseline.wheel if isinstance(baseline, Repaired) else None
            return finishing.finished(order, build, wheels, baseline=held_against)

        return dict(zip(missing, each(finished, missing), strict=True))


def _chosen(recipe: Recipe, only: Collection[str]) -> tuple[Target, ...]:
    targets = recipe.targets()
    labels = dict.fromkeys(map(str, targets))
    for label in only:
        if label not in labels:
            raise RecipeError(f"{recipe.file}: no target {label!r}; there are {', '.join(labels)}")
    return tuple(target for target in targets if not only or str(target) in only)


@contextmanager
def _pool(jobs: int) -> Iterator[_Each]:
    """A map over *jobs* threads; leaving it by an error or Ctrl-C stops the commands that the threads run."""
    with ThreadPoolExecutor(jobs) as executor, supervised():
        yield lambda function, items: list(executor.map(function, items))


def _without_twins(outcomes: Iterable[Product | Failure]) -> list[Product | Failure]:
    """*outcomes* where of two wheels of one name the second is a failure: one would overwrite the other."""
    names: dict[str, Target] = {}
    kept: list[Product | Failure] = []
    for outcome in outcomes:
        if isinstance(outcome, Product):
            first = names.setdefault(outcome.wheel.name, outcome.target)
            if first is not outcome.target:
                kept.append(
                    Failure(outcome.target, f"{outcome.wheel.name}: Python {first.python} gives the same file", None)
                )
                continue
        kept.append(outcome)
    return kept


def _published(recipe: Recipe, thinning: Thinning, stage: Path, folder: Path, *, notes: tuple[str, ...]) -> Release:
    """Index the finished wheels with those of the same release that are in *folder*, then move all of it there."""
    products = tuple(outcome for outcome in thinning.outcomes if isinstance(outcome, Product))
    failures = tuple(outcome for outcome in thinning.outcomes if isinstance(outcome, Failure))
    indexed = _indexed(products, stage / "release", folder)
    release = Release(recipe.name, str(recipe.source), products, failures, indexed, notes, thinning.split)
    report = stage / REPORT
    report.write_text(json.dumps(release.data(), indent=2) + "\n", encoding="utf-8")
    # all that needs room on the disk is done
    beside = thinning.split.made_beside if thinning.split else ()
    for file in (*(product.wheel for product in products), *beside, *(item.path for item in indexed), report):
        file.replace(folder / file.name)
    return replace(
        release,
        products=tuple(replace(product, wheel=folder / product.wheel.name) for product in products),
        indexed=tuple(replace(item, path=folder / item.path.name) for item in indexed),
        split=thinning.split.moved(folder) if thinning.split else None,
    )


def _indexed(products: Iterable[Product], release: Path, folder: Path) -> tuple[Indexed, ...]:
    """The variants.json of the *products*, made in *release*, which also gets their elder siblings in *folder*."""
    release.mkdir()
    names = {product.wheel.name for product in products}
    wanted = {WheelName.parse(name).release for name in names}
    for old in folder.glob("*.whl"):
        if old.name not in names and _release_of(old) in wanted:
            linked(old, release / old.name)
    for product in products:
        linked(product.wheel, release / product.wheel.name)
    return index(release)


def _release_of(wheel: Path) -> str | None:
    try:
        return WheelName.parse(wheel.name).release
    except VbuildError:
        return None  # not a wheel's name: no business of this release
