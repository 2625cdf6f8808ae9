"""CPU levels of a release: what they bring here, and the plain wheel joined of all.

    products of one Python -> without GPU code, by the values of free axes -> the lowest level, higher ones, published
        -> `vbuild.verification.bench` -> BenchReport of each                                               `benched`
    plain, v3, v4 of one Python -> joined -> each copy verified -> tested as each level sees it        `HwcapsMerge`

The Python that is timed counts for all. Wheels are joined after the split, which names libraries by build, so that
copies of a module lead to the right ones. The other way round, a library that moves would leave its copies behind.
"""

import json
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct, convert
from msgspec.structs import replace
from packaging.tags import platform_tags

from vbuild.build.identity import canonical, counted, file_digest, ourselves
from vbuild.errors import BuildError, FetchError, RecipeError, RepackageError, VbuildError, WheelError
from vbuild.files.hashing import key_of, sha256_of
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.machine import Machine, cpu_here
from vbuild.index_client.configuration import Indexes
from vbuild.process.run import supervised
from vbuild.publishing.hwcaps.plan import joined as joined_wheel
from vbuild.publishing.model import PublishPlan
from vbuild.publishing.publish import written
from vbuild.publishing.releases import OfferedWheel
from vbuild.recipe.model import Bench, Recipe, TrialResult
from vbuild.recipe.target import Target
from vbuild.release.cache import BuildKind
from vbuild.release.finishing import verified
from vbuild.release.model import Failure, Product, ReleaseContext, ReleaseWheels
from vbuild.release.report import kinds
from vbuild.toolchain.interpreter import facts
from vbuild.verification.bench import BenchReport, bench
from vbuild.verification.environments import python_for
from vbuild.verification.level_emulation import LevelMethod
from vbuild.verification.level_runs import LevelSettings, run_levels
from vbuild.verification.level_runs import levels_of as levels_in
from vbuild.verification.model import Verdict
from vbuild.verification.other_builds import published_wheel
from vbuild.wheel.name import WheelName

_KEPT = "benches"  # the folder of the cache

# a level, and the values of free axes that it is combined with
Level = tuple[Cpu, tuple[tuple[str, str], ...]]


class ReleaseBench(Struct, frozen=True):
    """The *reports*, one for each combination of the free axes, and the products *left_out*."""

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
    products = [outcome for outcome in outcomes if isinstance(outcome, Product) and context.owns(outcome.wheel)]
    reports, levels = [], set()
    compared = [product for product in products if settings.python in {"", product.target.python}]
    python, groups = _groups(wheels, compared)
    for group in groups:
        published = _published(context, group[0], note)
        if len(group) == 1 and not published:
            continue
        report = _report(context, settings, group, published, python, note=note)
        reports.append(report)
        timed = zip(group, report.wheels, strict=False)
        levels |= {level(product.target) for product, figures in timed if figures.is_left_out}
    if not reports:
        kinds = "of two levels, or of one and the published one, without GPU code and for a Python of this machine"
        note(f"bench: not run: expected wheels {kinds}")
    return ReleaseBench(tuple(reports), tuple(product for product in products if level(product.target) in levels))


def _groups(wheels: ReleaseWheels, products: Sequence[Product]) -> tuple[Path | None, list[list[Product]]]:
    """The first Python that is here, and its comparable *products*, the lowest level first."""
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
    """The Python of *product*, or one that takes a wheel built elsewhere; None without one."""
    try:
        return wheels.python(product.target).path
    except BuildError:
        with suppress(WheelError):
            return python_for(WheelName.parse(product.wheel.name))
    return None


def level(target: Target) -> Level:
    return target.cpu, target.choices


def _published(context: ReleaseContext, plain: Product, note: Callable[[str], None]) -> Path | None:
    against = None if plain.label else context.published
    if against is None or isinstance(against, Path):
        return against
    folder = context.stage_folder("published", plain.target)
    try:
        return published_wheel(plain.wheel, folder, Indexes.configured, version=against)
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
    """The bench of *group*, whose first is the measure; or an earlier one of the same wheels."""
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
    text = context.cache.text(_KEPT, key) if context.cache else None
    if text is not None:
        with suppress(ValueError):
            earlier = convert(json.loads(text), BenchReport)
            note("bench: measured in an earlier run with the same wheels; matrix --fresh measures again")
            return earlier
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


_MUSL = "musllinux"


def levels_of(plain: Target, targets: Iterable[Target]) -> tuple[Target, ...]:
    bare = replace(plain, python="")
    return tuple(target for target in targets if replace(target, python="").is_level_of(bare))


def check_chosen(recipe: Recipe, chosen: Sequence[Target]) -> None:
    chosen_keys = {(target.python, target.label) for target in chosen}
    for plain in (target for target in chosen if target.label is None):
        wanted = (target for target in levels_of(plain, recipe.targets) if target.python == plain.python)
        if lacking := [str(target) for target in wanted if (target.python, target.label) not in chosen_keys]:
            fault = f"the plain wheel is joined of {', '.join(lacking)} too"
            raise RecipeError(f"{recipe.file}: matrix.plain: {fault}; choose these as well, or build a part")


class HwcapsMerge(Struct, frozen=True):
    """Merges the plain wheels, after the split, with the builds for CPU levels, less those *left_out*."""

    context: ReleaseContext
    wheels: ReleaseWheels
    left_out: Collection[Level] = ()

    def outcomes(self, outcomes: Sequence[Product | Failure]) -> list[Product | Failure]:
        """*outcomes* with merged wheels instead of plain ones, or with a failure if a level is missing."""
        products = [outcome for outcome in outcomes if isinstance(outcome, Product)]
        with supervised():
            return [self._outcome(outcome, products) for outcome in outcomes]

    @property
    def _thin(self) -> Path:
        return self.context.stage / "thin"

    def _levels(self, plain: Target) -> tuple[Target, ...]:
        siblings = self.wheels.siblings
        same_python = [target for target in self.context.targets if target.python == plain.python]
        levels = levels_of(plain, siblings(plain) if siblings else same_python)
        return tuple(target for target in levels if level(target) not in self.left_out)

    def _outcome(self, outcome: Product | Failure, products: Sequence[Product]) -> Product | Failure:
        if isinstance(outcome, Failure) or not self._is_due(outcome):
            return outcome
        log = self.context.log(outcome.target).absolute()
        log.unlink(missing_ok=True)  # an earlier run's
        wanted = self._levels(outcome.target)
        kind, bare = _kind(outcome), replace(outcome.target, python="")
        by_cpu = {
            product.target.cpu: product
            for product in products
            if _kind(product) == kind and replace(product.target, python="").is_level_of(bare)
        }
        if lacking := [target for target in wanted if target.cpu not in by_cpu]:
            fault = f"no wheel for {', '.join(str(target.cpu) for target in lacking)} to join the plain one with"
            return self.context.failure(outcome.target, RepackageError(f"{outcome.wheel.name}: {fault}"))
        try:
            return self._joined(outcome, [by_cpu[target.cpu] for target in wanted])
        except VbuildError as error:
            return self.context.failure(outcome.target, error, log)

    def _is_due(self, product: Product) -> bool:
        """Whether *product* is to be merged; a note says why a plain wheel for x86-64 is not."""
        platform = WheelName.parse(product.wheel.name).platform
        is_plain = product.target.label is None and self.context.owns(product.wheel)
        if not (is_plain and platform.endswith("x86_64")):
            return False
        why = None
        if copies := levels_in(product.wheel)[1:]:
            why = f"copies for {', '.join(copies)} are in it already"
        elif _MUSL in platform:
            why = "only glibc's loader knows levels"
        elif not self._levels(product.target):
            why = "no target of the recipe differs from it in its level alone"
        if why:
            self.wheels.notes.append(f"{product.wheel.name}: not joined: {why}")
        return why is None

    def _joined(self, plain: Product, levels: Sequence[Product]) -> Product | Failure:
        joined = [plain, *levels]
        wheels = [product.wheel for product in joined]
        if all(product.not_reproducible is not None for product in joined):
            differing = dict.fromkeys(file for product in joined for file in product.not_reproducible or ())
            plain = replace(plain, not_reproducible=tuple(differing))
        key, context = self._key(wheels), self.context
        cache = None if self.wheels.is_remote else context.cache  # this one's keys are of this machine
        folder = self.context.stage_folder("joined", plain.target)
        if entry := cache.taken(BuildKind.JOINED, key, folder / "kept") if cache else None:
            self.wheels.notes.extend(entry.record["notes"])
            verdict = Verdict.of_data(entry.record["verdict"], entry.wheel)
            trial = TrialResult(entry.record["trial"])
            return replace(plain, wheel=entry.wheel, verdict=verdict, trial=trial)
        context.on_progress(plain.target, "joining")
        new = joined_wheel([OfferedWheel.of(wheel) for wheel in wheels], allow=self.context.recipe.verify.allow)
        written(PublishPlan("hwcaps", (new,), ()), folder / "made")
        wheel = folder / "made" / new.target
        context.on_progress(plain.target, "verifying")
        verdict = verified(context, wheel, plain.target, baseline=None)
        context.on_progress(plain.target, "testing")
        tested = self._tested(replace(plain, wheel=wheel, verdict=verdict, is_kept=False))
        if isinstance(tested, Failure):
            return tested
        product, notes = tested
        self.wheels.notes.extend(notes)
        context.on_progress(plain.target, "done")
        if cache:
            record = {"verdict": verdict.data(), "trial": str(product.trial), "notes": notes}
            if why := cache.keep(BuildKind.JOINED, key, wheel, record):
                self.wheels.notes.append(why)
        return product

    def _tested(self, product: Product) -> tuple[Product, list[str]] | Failure:
        """*product* as each level here sees it, or as it is if its Python is elsewhere; and notes."""
        if product.trial is TrialResult.NONE:
            return product, [_summary(product.wheel, levels_in(product.wheel))]
        if self.context.recipe.test.command is None:  # cibuildwheel's test, of the wheel as it was before
            return replace(product, trial=TrialResult.NOT_RUN), [f"{product.wheel.name}: joined, and not tested since"]
        try:
            python = self.wheels.python(product.target).path
        except BuildError as error:
            untested = replace(product, trial=TrialResult.NOT_RUN)
            tried = self.wheels.test_again(product, self._thin) if self.wheels.is_remote else untested
            note = f"{product.wheel.name}: joined, and not tested level by level: {error}"
            return tried if isinstance(tried, Failure) else (tried, [note])
        log = self.context.log(product.target).absolute()
        settings = LevelSettings(
            check=self.context.recipe.test,
            python=python,
            links=(self._thin,) if self._thin.is_dir() else (),
            builds=True,
            methods=(LevelMethod.TUNABLES,),
            timeout=None,  # as long as those of the other wheels may take
            log=log,
        )
        leveled = run_levels(product.wheel, settings)
        if not leveled.ok:
            end = f"; its log is {log}"
            if first := next((run for run in leveled.runs if run.output), None):
                end += f", which ends for {first.level}:\n{first.output}"
            raise BuildError(f"{product.wheel.name}: {'; '.join(leveled.failures)}{end}")
        log.unlink(missing_ok=True)
        trial = TrialResult.PASSED if leveled.tried else TrialResult.NOT_RUN
        summary = f"{_summary(product.wheel, leveled.levels)}; its test {leveled.summary}"
        return replace(product, trial=trial), [summary, *leveled.notes]

    def _key(self, wheels: Iterable[Path]) -> str:
        others = sorted(self._thin.glob("*.whl")) if self._thin.is_dir() else []
        return key_of(
            {
                "wheels": [[wheel.name, sha256_of(wheel)] for wheel in wheels],
                "beside": [[wheel.name, sha256_of(wheel)] for wheel in others],
                "verify": canonical(self.context.recipe.verify),
                "check": canonical(self.context.recipe.test),
                "machine": canonical(Machine.here().cpu),
                "vbuild": ourselves(),
            }
        )


def _summary(wheel: Path, levels: Sequence[str]) -> str:
    if len(levels) == 1:
        return f"{wheel.name}: no copies for levels in it: the builds of all levels have the same code"
    return f"{wheel.name}: joined of {', '.join(levels)}"


def _kind(product: Product) -> tuple[object, ...]:
    """What wheels to be joined have in common; paths of Pythons mean nothing elsewhere."""
    name = WheelName.parse(product.wheel.name)
    return (name.project, name.version, name.python, name.abi, kinds(name))
