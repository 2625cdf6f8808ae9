"""The finished wheels of a release, thinned together: what their libraries become is decided for all at once.

products -> split -> thin wheels, tested again with what they require now -> products, wheels beside
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vbuild.build.trial import Trial
from vbuild.errors import VbuildError, at
from vbuild.fetching.indexes import Indexes
from vbuild.recipe.model import Recipe
from vbuild.release.finishing import Finishing
from vbuild.release.order import Order
from vbuild.release.outcome import Failure, Product
from vbuild.split import split
from vbuild.splitting.outcome import Split
from vbuild.splitting.request import Request


@dataclass(frozen=True, slots=True)
class Thinning:
    """The outcomes with thin wheels in place of fat ones, and the account of the split; None where there was none."""

    outcomes: tuple[Product | Failure, ...]
    split: Split | None = None


def request_of(recipe: Recipe) -> Request | None:
    """What the ``[split]`` table of *recipe* asks for; None without one, `VbuildError` for one that cannot be read."""
    if recipe.split is None:
        return None
    with at(recipe.file):
        return Request.read(recipe.split)


def thinned(
    outcomes: Sequence[Product | Failure],
    orders: Iterable[Order],
    request: Request | None,
    finishing: Finishing,
) -> Thinning:
    """*outcomes*, those of *orders*, after the split that *request* asks for; `VbuildError` where it cannot be done.

    The test of a wheel that changed is run again: the wheel that is published is the one that was tested.
    """
    products = [outcome for outcome in outcomes if isinstance(outcome, Product)]
    if request is None or not products:
        return Thinning(tuple(outcomes))
    folder = finishing.shop.stage / "thin"
    result = split([product.wheel for product in products], folder, request=request, indexes=Indexes.configured)
    changed = {wheel.name for wheel in result.wheels if not wheel.is_untouched}
    order_of = {order.target: order for order in orders}
    found: list[Product | Failure] = []
    for outcome in outcomes:
        if isinstance(outcome, Product):
            found.append(
                _tested(outcome, order_of[outcome.target], folder, finishing, is_changed=outcome.wheel.name in changed)
            )
        else:
            found.append(outcome)
    names = {outcome.wheel.name for outcome in found if isinstance(outcome, Product)}
    return Thinning(tuple(found), result.of(names) if names else None)


def _tested(
    product: Product, order: Order, folder: Path, finishing: Finishing, *, is_changed: bool
) -> Product | Failure:
    """*product* as the thin wheel in *folder*, tested again if it *is_changed* and the fat one was tested."""
    thin = replace(product, wheel=folder / product.wheel.name)
    if not is_changed or product.trial is not Trial.PASSED:
        return thin
    try:
        return replace(thin, trial=finishing.tried(order, thin.wheel, beside=folder))
    except VbuildError as error:
        return finishing.shop.failure(product.target, error)
