"""The finished wheels of a release, thinned together: what their libraries become is decided for all at once.

products -> split -> thin wheels, tested again with what they require now -> products, wheels beside
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from vbuild.build.agreement import TrialCompile
from vbuild.errors import at
from vbuild.index_client.configuration import Indexes
from vbuild.recipe.model import Recipe
from vbuild.release.outcome import Failure, Product
from vbuild.splitting.request import SplitRequest
from vbuild.splitting.results import Split
from vbuild.splitting.split import split


class Thinning(Struct, frozen=True):
    """The outcomes with thin wheels in place of fat ones, and the account of the split; None where there was none."""

    outcomes: tuple[Product | Failure, ...]
    split: Split | None = None


def request_of(recipe: Recipe) -> SplitRequest | None:
    """What the ``[split]`` table of *recipe* asks for; None without one, `VbuildError` for one that cannot be read."""
    if recipe.split is None:
        return None
    with at(recipe.file):
        return dataclasses.replace(SplitRequest.read(recipe.split), bill=recipe.repair.bill)


def thinned(
    outcomes: Sequence[Product | Failure],
    request: SplitRequest | None,
    folder: Path,
    *,
    tried: Callable[[Product, Path], Product | Failure],
) -> Thinning:
    """*outcomes* after the split that *request* asks for, in *folder*; `VbuildError` where it cannot be done.

    What passed its test and changed is *tried* again, with the folder of what it requires: the wheel that is published
    is the one that was tested.
    """
    products = [outcome for outcome in outcomes if isinstance(outcome, Product)]
    if request is None or not products:
        return Thinning(tuple(outcomes))
    result = split([product.wheel for product in products], folder, request=request, indexes=Indexes.configured)
    changed = {wheel.name for wheel in result.wheels if not wheel.is_untouched}
    found: list[Product | Failure] = []
    for outcome in outcomes:
        if isinstance(outcome, Failure):
            found.append(outcome)
            continue
        thin = replace(outcome, wheel=folder / outcome.wheel.name)
        is_due = thin.wheel.name in changed and outcome.trial is TrialCompile.PASSED
        found.append(tried(thin, folder) if is_due else thin)
    names = {outcome.wheel.name for outcome in found if isinstance(outcome, Product)}
    return Thinning(tuple(found), result.of(names) if names else None)
