"""Put the finished wheels of a release into the folder of results, with index and report, in one step at the end."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from vbuild.errors import VbuildError
from vbuild.files.atomic import linked
from vbuild.files.cache import sweep_daily
from vbuild.recipe.target import Target
from vbuild.release.context import ReleaseContext
from vbuild.release.outcome import Failure, Product, ReleaseResult
from vbuild.release.report import REPORT
from vbuild.release.report_comparison import Comparison
from vbuild.release.report_machines import choices
from vbuild.release.report_page import PAGE, page
from vbuild.sbom.statement import PROVENANCE, dependencies_at, statement
from vbuild.variants.index import Indexed, index, indexing
from vbuild.wheel.archive import wheels_in
from vbuild.wheel.name import WheelName

if TYPE_CHECKING:
    from vbuild.splitting.split import Split


def published(
    context: ReleaseContext, outcomes: Sequence[Product | Failure], split: "Split | None", *, notes: Sequence[str]
) -> ReleaseResult:
    """Index the finished wheels with those of the same release in the folder of results, then move all of it there.

    ``report.json`` and ``report.html`` go with them; the page also shows what differs from the report *before*. If
    there are wheels, ``provenance.json`` is a statement on them, on the context's inputs, and on the wheels that its
    parts were made of. *split* is the account of what was taken out of the wheels.
    """
    folder, stage = context.folder, context.stage
    products = tuple(outcome for outcome in outcomes if isinstance(outcome, Product))
    failures = tuple(outcome for outcome in outcomes if isinstance(outcome, Failure))
    together = stage / "release"
    with indexing(folder):
        indexed = _indexed(products, together, folder)
        made = {product.label for product in products}
        kept = {label for item in indexed for label in item.labels} - made
        missing = dict.fromkeys(failure.target.label for failure in failures if failure.target.label in kept)
        stale = (f"{label}: failed, and its wheel of an earlier run is still there, and indexed" for label in missing)
        release = ReleaseResult(
            context.recipe.name,
            context.source,
            products,
            failures,
            indexed,
            (*notes, *stale),
            split.moved(folder) if split else None,
            choices(context.recipe.name, together, together.glob("*.whl")),
        )
        report = release.report()
        reports = (stage / REPORT, stage / PAGE)
        reports[0].write_text(json.dumps(report.data(), indent=2) + "\n", encoding="utf-8")
        reports[1].write_text(page(report, context.before), encoding="utf-8")
        required = split.companion_paths if split else ()
        wheels = tuple(dict.fromkeys((*(product.wheel for product in products), *required)))
        # all that needs room on the disk is done
        files = [*wheels, *(item.path for item in indexed), *reports]
        if wheels:  # a statement is on something
            path = stage / PROVENANCE
            earlier = [one for part in context.parts for one in dependencies_at(part)]
            asked = {"recipe": context.inputs[0].name} if context.inputs else {}
            path.write_bytes(statement(wheels, inputs=context.inputs, earlier=earlier, asked=asked))
            files.append(path)
        for file in dict.fromkeys(files):  # a dependency wheel may be given, and be made again
            file.replace(folder / file.name)
    sweep_daily()
    return replace(
        release,
        products=tuple(replace(product, wheel=folder / product.wheel.name) for product in products),
        indexed=tuple(replace(item, path=folder / item.path.name) for item in indexed),
        changes=Comparison(context.before, report) if context.before else None,
    )


def _indexed(products: Iterable[Product], release: Path, folder: Path) -> tuple[Indexed, ...]:
    """The variants.json of the *products*, made in *release*, which also gets their elder siblings in *folder*."""
    release.mkdir()
    names = {product.wheel.name for product in products}
    wanted = {WheelName.parse(name).release for name in names}
    for old in wheels_in(folder):
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


def without_twins(outcomes: Iterable[Product | Failure]) -> list[Product | Failure]:
    """*outcomes* where of two wheels of one name the second is a failure: one would overwrite the other."""
    names: dict[str, Target] = {}
    kept: list[Product | Failure] = []
    for outcome in outcomes:
        if isinstance(outcome, Product):
            first = names.setdefault(outcome.wheel.name, outcome.target)
            if first is not outcome.target:
                kept.append(Failure.of_twin(outcome.target, outcome.wheel.name, first.python))
                continue
        kept.append(outcome)
    return kept
