"""What a run of `vbuild matrix` is to make, and what became of it, wherever that is done."""

from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct, field

from vbuild.recipe.model import Recipe
from vbuild.recipe.target import Target
from vbuild.release.builder import OnProgress
from vbuild.release.cache import BuildCache
from vbuild.release.family import ReleaseFamily
from vbuild.release.outcome import Failure, Product


class Run(Struct, frozen=True):
    """The *targets* to make of a recipe, all of a release or *is_part* of it.

    Results go into *folder*, work in progress is in *stage*; *on_progress* hears of each step of each target.
    """

    recipe: Recipe
    targets: tuple[Target, ...]
    family: ReleaseFamily
    folder: Path
    stage: Path
    store: BuildCache
    is_part: bool
    on_progress: OnProgress


class RunResult(Struct, frozen=True):
    """What became of each target, in their order, and *tried*, which tests a wheel that is another since once more.

    *notes* are what whoever builds should know; testing may add to them.
    """

    outcomes: tuple[Product | Failure, ...]
    tried: Callable[[Product, Path], Product | Failure]
    notes: Sequence[str] = field(default=())
