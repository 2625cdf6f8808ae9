"""Make what is missing of a release on this machine: builds side by side, each divided among GPUs, each wheel finished.

orders -> builds, each once -> divided -> finished -> Product, or at any step a Failure
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from msgspec.structs import replace

from vbuild.process.run import supervised
from vbuild.recipe.target import Target
from vbuild.release.builder import Builder, Repaired
from vbuild.release.finishing import Finishing
from vbuild.release.order import BuildOrder, ordered
from vbuild.release.outcome import Failure, Product
from vbuild.release.run import Run, RunResult

T = TypeVar("T")
R = TypeVar("R")


class _Each(Protocol):
    """A map over threads."""

    def __call__(self, function: Callable[[T], R], items: Iterable[T], /) -> list[R]: ...


def here(run: Run, *, jobs: int) -> RunResult:
    """What this machine makes of *run*, *jobs* builds at a time; `VbuildError` where no build can start.

    What the store has of an earlier run is not made again.
    """
    shop = Builder.opened(run.recipe, run.folder, run.stage, store=run.store, on_progress=run.on_progress)
    plan = [shop.prepared(target) for target in run.targets]
    orders = ordered(plan, recipe=run.recipe, family=run.family, source=shop.digest, machine=shop.cpu)
    finishing = Finishing(shop, run.family, is_part=run.is_part)
    kept = {order: product for order in orders if (product := finishing.kept(order))}
    missing = [order for order in orders if order not in kept]
    found = {**kept, **(made(missing, orders, finishing, jobs=jobs) if missing else {})}
    order_of = {order.target: order for order in orders}
    shop.notes[:0] = [note for job in plan for note in job.notes]

    def tried(product: Product, beside: Path) -> Product | Failure:
        return finishing.tried_again(order_of[product.target], product, beside=beside)

    return RunResult(tuple(found[order] for order in orders), tried, shop.notes)


def made(
    missing: Sequence[BuildOrder], orders: Sequence[BuildOrder], finishing: Finishing, *, jobs: int
) -> dict[BuildOrder, Product | Failure]:
    """What becomes of the *missing* ones of *orders*: their builds are made, divided among GPUs, and finished."""
    shop = finishing.shop
    wanted = {key for order in missing for key in (order.build, order.baseline)}
    first: dict[str, BuildOrder] = {}
    for order in orders:
        if order.build in wanted:
            first.setdefault(order.build, order)
    with shop.caching() as cache, _pool(jobs) as each:
        builds = dict(zip(first, each(partial(shop.built, cache=cache), first.values()), strict=True))

        def divided(order: BuildOrder) -> Mapping[Target, Path] | Failure:
            build = builds[order.build]
            return build if isinstance(build, Failure) else finishing.divided(order, missing, build)

        cut = dict(zip(first, each(divided, first.values()), strict=True))

        def finished(order: BuildOrder) -> Product | Failure:
            build, wheels = builds[order.build], cut[order.build]
            if isinstance(build, Failure):
                return replace(build, target=order.target)
            if isinstance(wheels, Failure):
                return replace(wheels, target=order.target)
            baseline = builds.get(order.baseline) if order.baseline else None
            held_against = baseline.wheel if isinstance(baseline, Repaired) else None
            return finishing.finished(order, build, wheels, baseline=held_against)

        return dict(zip(missing, each(finished, missing), strict=True))


@contextmanager
def _pool(jobs: int) -> Iterator[_Each]:
    """A map over *jobs* threads; leaving it by an error or Ctrl-C stops the commands that the threads run."""
    with ThreadPoolExecutor(jobs) as executor, supervised():
        yield lambda function, items: list(executor.map(function, items))
