"""`vbuild matrix`: one recipe in, one release of variant wheels out.

    recipe -> targets -> jobs -> built, repaired -> stamped, verified, tested -> indexed -> report.json

A target that fails leaves the others running: they are finished and written, and the release says what is missing.
"""

import json
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from vbuild.build.frontend import Job
from vbuild.build.process import supervised
from vbuild.build.source import STAGE
from vbuild.errors import RecipeError, VbuildError
from vbuild.index import Indexed, index
from vbuild.recipe.model import Recipe
from vbuild.recipe.target import Target
from vbuild.release.family import Family
from vbuild.release.outcome import Failure, Product, Release
from vbuild.release.workshop import Told, Workshop
from vbuild.variant.document import Schema
from vbuild.wheel.name import WheelName

T = TypeVar("T")
R = TypeVar("R")

REPORT = "report.json"
LOGS = "logs"


def matrix(
    source: Path,
    folder: Path,
    *,
    jobs: int = 1,
    only: Collection[str] = (),
    schema: Schema = Schema.PEP_850,
    told: Told = lambda _target, _step: None,
) -> Release:
    """Build the recipe or project at *source* into *folder*: every target, or those called as in *only*.

    *jobs* builds run at a time; *told* hears of each step of each target. The folder gets the finished wheels, the
    release's variants.json, ``report.json``, and the logs of what failed. A `VbuildError` is raised, and no wheel
    written, where no build can start or where the wheels would contradict others in the folder.
    """
    recipe = Recipe.load(source)
    targets = _chosen(recipe, only)
    family = Family.of(recipe, targets, schema=schema)
    with _staging(folder) as stage:
        shop = Workshop.opened(recipe, stage, logs=folder / LOGS, told=told)
        plan = [shop.prepared(target) for target in targets]
        distinct = {job.target.build_key: job for job in plan}
        with _pool(jobs) as each:
            builds = dict(zip(distinct, each(shop.built, distinct.values()), strict=True))
            finish = partial(shop.finished, builds=builds, family=family)
            outcomes = _without_twins(each(finish, plan))
        return _published(recipe, outcomes, stage, folder)


def planned(source: Path, *, only: Collection[str] = ()) -> tuple[Job, ...]:
    """What `matrix` would build, with every flag, setting and launcher rule; nothing is built or written."""
    recipe = Recipe.load(source)
    with tempfile.TemporaryDirectory() as folder:
        shop = Workshop.opened(recipe, Path(folder), logs=Path(folder))
        return tuple(shop.prepared(target) for target in _chosen(recipe, only))


def _chosen(recipe: Recipe, only: Collection[str]) -> tuple[Target, ...]:
    targets = recipe.targets()
    labels = dict.fromkeys(map(str, targets))
    for label in only:
        if label not in labels:
            raise RecipeError(f"{recipe.file}: no target {label!r}; there are {', '.join(labels)}")
    return tuple(target for target in targets if not only or str(target) in only)


@contextmanager
def _staging(folder: Path) -> Iterator[Path]:
    """A folder on the file system of *folder*, so that what is finished moves there in one step; gone afterwards."""
    made = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stage = Path(tempfile.mkdtemp(prefix=STAGE, dir=folder)).absolute()
    except OSError as error:
        raise RecipeError(f"{folder}: cannot be written to: {error.strerror}") from error
    try:
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        logs = folder / LOGS
        for empty in (logs, folder) if made else (logs,):
            if empty.is_dir() and not any(empty.iterdir()):
                empty.rmdir()


@contextmanager
def _pool(jobs: int) -> Iterator[Callable[[Callable[[T], R], Iterable[T]], list[R]]]:
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


def _published(recipe: Recipe, outcomes: Iterable[Product | Failure], stage: Path, folder: Path) -> Release:
    """Index the finished wheels with those of the same release that are in *folder*, then move all of it there."""
    products = tuple(outcome for outcome in outcomes if isinstance(outcome, Product))
    failures = tuple(outcome for outcome in outcomes if isinstance(outcome, Failure))
    indexed = _indexed(products, stage / "release", folder)
    for file in (*(product.wheel for product in products), *(item.path for item in indexed)):
        file.replace(folder / file.name)
    release = Release(
        recipe.name,
        str(recipe.source),
        tuple(replace(product, wheel=folder / product.wheel.name) for product in products),
        failures,
        tuple(replace(item, path=folder / item.path.name) for item in indexed),
    )
    report = stage / REPORT
    report.write_text(json.dumps(release.data(), indent=2) + "\n", encoding="utf-8")
    report.replace(folder / REPORT)
    return release


def _indexed(products: Iterable[Product], release: Path, folder: Path) -> tuple[Indexed, ...]:
    """The variants.json of the *products*, made in *release*, which also gets their elder siblings in *folder*."""
    release.mkdir()
    names = {product.wheel.name for product in products}
    wanted = {WheelName.parse(name).release for name in names}
    for old in folder.glob("*.whl"):
        if old.name not in names and _release_of(old) in wanted:
            (release / old.name).symlink_to(old.absolute())
    for product in products:
        (release / product.wheel.name).symlink_to(product.wheel)
    return index(release)


def _release_of(wheel: Path) -> str | None:
    try:
        return WheelName.parse(wheel.name).release
    except VbuildError:
        return None  # not a wheel's name: no business of this release
