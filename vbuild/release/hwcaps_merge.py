"""The plain wheel of a release, joined of its builds for all CPU levels: ``plain = "hwcaps"`` in a recipe.

    plain, v3, v4 of one Python -> joined -> each copy verified -> tested as each level sees it -> the plain wheel

It comes after the split. What a split shares out has another name for each build, so that the copies of a module that
were linked to them lead to the right ones, wherever these are; in a folder for levels they need no place of their own.
The other way round, a library that the split moves would leave its copies behind.
"""

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace
from packaging.utils import canonicalize_name

from vbuild.build.identity import canonical, ourselves
from vbuild.build.trial import TrialResult
from vbuild.errors import BuildError, RecipeError, RepackageError, VbuildError
from vbuild.files.hashing import key_of, sha256_of
from vbuild.hardware.machine import Machine
from vbuild.process.run import supervised
from vbuild.publishing.hwcaps.plan import joined as joined_wheel
from vbuild.publishing.model import PublishPlan
from vbuild.publishing.publish import written
from vbuild.publishing.releases import OfferedWheel
from vbuild.recipe.model import Recipe
from vbuild.recipe.target import Target
from vbuild.release.cache import BuildKind
from vbuild.release.finishing import verified
from vbuild.release.model import Failure, Product, ReleaseContext, ReleaseWheels
from vbuild.release.release_bench import Level, level
from vbuild.release.report import kinds
from vbuild.verification.level_emulation import LevelMethod
from vbuild.verification.level_runs import LevelSettings, run_levels
from vbuild.verification.level_runs import levels_of as levels_in
from vbuild.verification.model import Verdict
from vbuild.wheel.name import WheelName

_MUSL = "musllinux"


def levels_of(plain: Target, targets: Iterable[Target]) -> tuple[Target, ...]:
    """Those of *targets* that are joined with *plain*, of whatever Python."""
    bare = replace(plain, python="")
    return tuple(target for target in targets if replace(target, python="").is_level_of(bare))


def check_chosen(recipe: Recipe, chosen: Sequence[Target]) -> None:
    """`RecipeError` if *chosen* has a plain wheel of *recipe*, and not all that it is joined of."""
    there = {(target.python, target.label) for target in chosen}
    for plain in (target for target in chosen if target.label is None):
        wanted = (target for target in levels_of(plain, recipe.targets) if target.python == plain.python)
        if lacking := [str(target) for target in wanted if (target.python, target.label) not in there]:
            what = f"the plain wheel is joined of {', '.join(lacking)} too"
            raise RecipeError(f"{recipe.file}: matrix.plain: {what}; choose these as well, or build a part")


class HwcapsMerge(Struct, frozen=True):
    """Merges the plain wheels of a release, after the split, with its builds for CPU levels, less those *left_out*.

    A merged wheel is tested as each level of this machine sees it if its Python is here, and as it is otherwise.
    """

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
        """The folder of wheels that a split made, which others require."""
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
            what = f"no wheel for {', '.join(str(target.cpu) for target in lacking)} to join the plain one with"
            return self.context.failure(outcome.target, RepackageError(f"{outcome.wheel.name}: {what}"))
        try:
            return self._joined(outcome, [by_cpu[target.cpu] for target in wanted])
        except VbuildError as error:
            return self.context.failure(outcome.target, error, log)

    def _is_due(self, product: Product) -> bool:
        """Whether *product* is to be merged; a note says why a plain wheel for x86-64 is not."""
        name = WheelName.parse(product.wheel.name)
        is_own = product.target.label is None and name.project == canonicalize_name(self.context.recipe.name)
        if not is_own or not name.platform.endswith("x86_64"):
            return False
        why = None
        if there := levels_in(product.wheel)[1:]:
            why = f"copies for {', '.join(there)} are in it already"
        elif _MUSL in name.platform:
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
            differing = dict.fromkeys(one for product in joined for one in product.not_reproducible or ())
            plain = replace(plain, not_reproducible=tuple(differing))
        key, context = self._key(wheels), self.context
        cache = None if self.wheels.is_remote else context.cache  # this one's keys are of this machine
        folder = self.context.place("joined", plain.target)
        if kept := cache.taken(BuildKind.JOINED, key, folder / "kept") if cache else None:
            self.wheels.notes.extend(kept.record["notes"])
            verdict = Verdict.of_data(kept.record["verdict"], kept.wheel)
            trial = TrialResult(kept.record["trial"])
            return replace(plain, wheel=kept.wheel, verdict=verdict, trial=trial)
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
        """*product* as each level of this machine sees it, or as it is if its Python is elsewhere; and notes."""
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
        what = f"{_summary(product.wheel, leveled.levels)}; its test {leveled.summary}"
        return replace(product, trial=trial), [what, *leveled.notes]

    def _key(self, wheels: Iterable[Path]) -> str:
        """The cache key of the wheel that is joined of *wheels*."""
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
    """What wheels to be joined have in common; not a path of a Python, which means nothing on another machine."""
    name = WheelName.parse(product.wheel.name)
    return (name.project, name.version, name.python, name.abi, kinds(name))
