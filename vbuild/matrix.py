"""`vbuild matrix`: one recipe in, one release of variant wheels out.

    recipe -> targets -> jobs -> built, repaired -> stamped, verified, tested -> split -> indexed -> report.json

A target that fails leaves the others running: they are finished and written, and the release says what is missing.
"""

import tempfile
from collections.abc import Collection
from pathlib import Path

from vbuild.build.frontend import Job
from vbuild.build.probes import forget
from vbuild.recipe.model import Recipe
from vbuild.release.family import Family
from vbuild.release.finishing import Finishing
from vbuild.release.making import made
from vbuild.release.order import ordered
from vbuild.release.outcome import Failure, Product, Release
from vbuild.release.publication import published, without_twins
from vbuild.release.staging import staging
from vbuild.release.store import Store
from vbuild.release.thinning import request_of, thinned
from vbuild.release.workshop import Told, Workshop
from vbuild.toolkit.supply import FORESEEN
from vbuild.variant.document import Schema


def matrix(
    source: Path,
    folder: Path,
    *,
    jobs: int = 1,
    only: Collection[str] = (),
    pythons: Collection[str] = (),
    is_part: bool = False,
    schema: Schema = Schema.PEP_850,
    store: Store | None = None,
    told: Told = lambda _target, _step: None,
) -> Release:
    """Build the recipe or project at *source* into *folder*: every target, or those called as in *only*.

    *pythons* are those of the recipe's to build for, all where there are none. *jobs* builds run at a time; *told*
    hears of each step of each target. Builds and wheels that *store*, the user's where None, has from before are taken
    from there. Of a release that is made in parts, each *is_part*: `vbuild.collect` verifies and splits all of it. The
    folder gets the finished wheels, the release's variants.json, ``report.json``, and the logs of what failed. A
    `VbuildError` is raised, and no wheel written, where no build can start or where the wheels would contradict others
    in the folder.
    """
    recipe = Recipe.load(source)
    request = None if is_part else request_of(recipe)
    targets = recipe.chosen(only=only, pythons=pythons)
    family = Family.of(recipe, targets, schema=schema)
    store = store or Store.of_user()
    with staging(folder) as stage:
        shop = Workshop.opened(recipe, folder, stage, store=store, told=told)
        plan = [shop.prepared(target) for target in targets]
        orders = ordered(plan, recipe=recipe, family=family, source=shop.digest, machine=shop.cpu)
        finishing = Finishing(shop, family, is_part=is_part)
        kept = {order: product for order in orders if (product := finishing.kept(order))}
        missing = [order for order in orders if order not in kept]
        found = {**kept, **(made(missing, orders, finishing, jobs=jobs) if missing else {})}
        outcomes = without_twins(found[order] for order in orders)
        order_of = {order.target: order for order in orders}

        def tried(product: Product, beside: Path) -> Product | Failure:
            return finishing.tried_again(order_of[product.target], product, beside=beside)

        thinning = thinned(outcomes, request, stage / "thin", tried=tried)
        notes = tuple(dict.fromkeys([*(note for job in plan for note in job.notes), *shop.notes]))
        release = published(recipe.name, str(recipe.source), thinning, stage, folder, notes=notes)
    store.sweep()
    forget()
    return release


def planned(source: Path, *, only: Collection[str] = (), pythons: Collection[str] = ()) -> tuple[Job, ...]:
    """What `matrix` would build, with every flag, setting and launcher rule; nothing is built or written."""
    recipe = Recipe.load(source)
    request_of(recipe)
    with tempfile.TemporaryDirectory() as folder:
        shop = Workshop.opened(recipe, Path(folder), Path(folder), store=Store.of_user(), supply=FORESEEN)
        return tuple(shop.prepared(target) for target in recipe.chosen(only=only, pythons=pythons))
