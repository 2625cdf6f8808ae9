"""The bench of a release: what its levels bring on this machine, and which bring too little and are left out.

    products of one Python -> without GPU code, by the values of free axes -> the lowest level, higher ones, published
        -> `vbuild.verification.bench` -> BenchReport of each

What one Python shows, the first or the one that the recipe names, counts for all: their compiled code differs in next
to nothing. What was measured is kept: another run with the same wheels decides the same, and takes no time.
"""

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, convert
from msgspec.structs import replace
from packaging.tags import platform_tags
from packaging.utils import canonicalize_name

from vbuild.build.identity import canonical, counted, file_digest, ourselves
from vbuild.errors import BuildError, FetchError, VbuildError, WheelError
from vbuild.files.hashing import key_of, sha256_of
from vbuild.hardware.machine import cpu_here
from vbuild.index_client.configuration import Indexes
from vbuild.recipe.model import AGAINST, Bench
from vbuild.recipe.source import Sdist
from vbuild.recipe.target import Target
from vbuild.release.model import Failure, Product, ReleaseContext, ReleaseWheels
from vbuild.toolchain.interpreter import facts
from vbuild.verification.bench import BenchReport, bench
from vbuild.verification.level_runs import python_for
from vbuild.verification.other_builds import published_wheel
from vbuild.wheel.name import WheelName

if TYPE_CHECKING:
    from vbuild.hardware.cpu import Cpu

_KEPT = "benches"  # the folder of the cache

# a level, and the values of free axes that it is combined with
Level = tuple["Cpu", tuple[tuple[str, str], ...]]


class ReleaseBench(Struct, frozen=True):
    """The *reports* of a release, one for each combination of the free axes, and the products *left_out*."""

    reports: tuple[BenchReport, ...] = ()
    left_out: tuple[Product, ...] = ()

    @property
    def levels(self) -> frozenset[Level]:
        return frozenset(map(level, (product.target for product in self.left_out)))


def benched(context: ReleaseContext, wheels: ReleaseWheels, outcomes: Sequence[Product | Failure]) -> ReleaseBench:
    """The bench of *outcomes* that the recipe asks for; nothing in a part of a release.

    A bench that fails leaves out nothing: its report has the error.
    """
    settings, note = context.recipe.bench, wheels.notes.append
    if settings is None or context.is_part:
        return ReleaseBench()
    products = [outcome for outcome in outcomes if isinstance(outcome, Product) and _is_own(context, outcome)]
    reports, levels = [], set()
    compared = [product for product in products if settings.python in {"", product.target.python}]
    python, groups = _groups(wheels, compared)
    for group in groups:
        published = _published(context, group[0], note)
        if len(group) == 1 and not published:
            continue
        report = _report(context, settings, group, published, python, note=note)
        reports.append(report)
        for product, one in zip(group, report.wheels, strict=False):
            if one.is_left_out:
                levels.add(level(product.target))
    if not reports:
        what = "of two levels, or of one and the published one, without GPU code and for a Python of this machine"
        note(f"bench: not run: expected wheels {what}")
    return ReleaseBench(tuple(reports), tuple(one for one in products if level(one.target) in levels))


def _groups(wheels: ReleaseWheels, products: Sequence[Product]) -> tuple[Path | None, list[list[Product]]]:
    """The first Python that is here, and its *products* that can be compared, the lowest level first."""
    here = frozenset(platform_tags())
    by_python: dict[tuple[str, ...], dict[tuple[tuple[str, str], ...], list[Product]]] = {}
    for product in products:
        target, name = product.target, WheelName.parse(product.wheel.name)
        if not target.cuda and not here.isdisjoint(name.platform.split(".")):
            python = by_python.setdefault((target.python, name.python, name.abi), {})
            python.setdefault(target.choices, []).append(product)
    for groups in by_python.values():
        if program := _python(wheels, next(iter(groups.values()))[0]):
            return program, [sorted(group, key=lambda product: product.target.cpu.rank) for group in groups.values()]
    return None, []


def _python(wheels: ReleaseWheels, product: Product) -> Path | None:
    """The Python of *product*, or if it was built elsewhere one that takes its wheel; None if it is not here."""
    try:
        return wheels.python(product.target).path
    except BuildError:
        with suppress(WheelError):
            return python_for(WheelName.parse(product.wheel.name))
    return None


def _is_own(context: ReleaseContext, product: Product) -> bool:
    return WheelName.parse(product.wheel.name).project == canonicalize_name(context.recipe.name)


def level(target: Target) -> Level:
    return target.cpu, target.choices


def _published(context: ReleaseContext, plain: Product, note: Callable[[str], None]) -> Path | None:
    """The published wheel of the version of *plain*, if that is the plain wheel of an sdist of an index."""
    against = context.recipe.verify.against
    if against == "none" or plain.label is not None:
        return None
    if isinstance(against, Path):
        return against
    if against == "auto" and not isinstance(context.recipe.source, Sdist):
        return None
    version, folder = "" if against in AGAINST else against, context.place("published", plain.target)
    try:
        return published_wheel(plain.wheel, folder, Indexes.configured, version=version)
    except FetchError as error:
        note(f"bench: without the published wheel: {error}")
        return None


def _report(
    context: ReleaseContext,
    settings: Bench,
    group: Sequence[Product],
    published: Path | None,
    python: Path | None,
    *,
    note: Callable[[str], None],
) -> BenchReport:
    """The bench of *group*, whose first is the measure, or that of an earlier run with the same wheels."""
    script = settings.script and file_digest(settings.script)
    compared = [product.wheel for product in group] + ([published] if published else [])
    key = key_of(
        {
            "wheels": [(wheel.name, sha256_of(wheel)) for wheel in compared],
            "settings": [canonical(replace(settings, script=None)), script],
            "python": facts(python) if python else None,
            "cpu": canonical(cpu_here()),
            "passed": counted(os.environ, context.recipe.build.pass_env),
            "vbuild": ourselves(),
        }
    )
    kept = context.cache.text(_KEPT, key) if context.cache else None
    if kept is not None:
        with suppress(ValueError):
            found = convert(json.loads(kept), BenchReport)
            note("bench: measured in an earlier run with the same wheels; matrix --fresh measures again")
            return found
    try:
        report = bench(
            [product.wheel for product in group],
            settings,
            published=published,
            python=python,
            pass_env=context.recipe.build.pass_env,
            builds=True,
            on_progress=lambda step: context.on_progress(group[0].target, step),
        )
    except VbuildError as error:
        return BenchReport(settings.rounds, (), settings.min_gain, str(error))
    if context.cache:
        context.cache.keep_text(_KEPT, key, json.dumps(report.data()))
    return report
