"""From builds to the wheels of a release: divided by GPUs, stamped, verified, tested.

Repaired -> divided -> stamped -> verified, tested -> Product, or at any step a Failure

Hold a finished wheel against what its target promises, with whatever way it was built.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from vbuild.build.agreement import TrialCompile, tried
from vbuild.build.wrappers import Override
from vbuild.errors import VbuildError, WheelError
from vbuild.files.atomic import linked
from vbuild.recipe.target import Target
from vbuild.release.builder import Builder, Repaired, slug
from vbuild.release.cache import BuildKind
from vbuild.release.family import ReleaseFamily, divided
from vbuild.release.order import BuildOrder
from vbuild.release.outcome import Failure, Product
from vbuild.toolchain.interpreter import Interpreter
from vbuild.verification.model import Severity, Verdict
from vbuild.verification.verify import verify
from vbuild.wheel.name import WheelName

_SHOWN = 5


def proved(wheel: Path, target: Target, *, baseline: Path | None, allow: Sequence[str] = ()) -> Verdict:
    """The verdict on *wheel*, that of *target*, held against its build for the *baseline*; *allow* as `verify` has it.

    `WheelError` where it does not keep its promises, or has no code to keep them with.
    """
    verdict = verify(wheel, cpu=target.cpu, baseline=baseline, allow=allow)
    check(verdict, target)
    return verdict


def check(verdict: Verdict, target: Target) -> None:
    """`WheelError` where a wheel does not keep its promises, or has no code to keep them with."""
    if verdict.failed:
        errors = [finding for finding in verdict.findings if finding.severity is Severity.ERROR]
        said = [f"{finding.member}: {finding.what}" if finding.member else finding.what for finding in errors[:_SHOWN]]
        if len(errors) > _SHOWN:
            said.append(f"and {len(errors) - _SHOWN} more")
        raise WheelError(f"{verdict.wheel.name}: {'; '.join(said)}")
    if not (verdict.libraries or target.cpu.is_baseline):
        raise WheelError(
            f"{verdict.wheel.name}: no compiled code for {target.cpu}; did the build leave its modules out?"
        )


class Finishing(Struct, frozen=True):
    """The last steps of a *family*'s wheels, in the rooms of *shop*.

    Where what is made *is_part* of a release, the wheels that a level is held against may be in another.
    """

    shop: Builder
    family: ReleaseFamily
    is_part: bool = False

    def kept(self, order: BuildOrder) -> Product | None:
        """The finished wheel of *order*, if it was made before."""
        kept = self.shop.store.taken(BuildKind.PRODUCT, order.product, self._folder("kept", order.target))
        if kept is None:
            return None
        self.shop.on_progress(order.target, "kept")
        return _of_record(order, kept.wheel, kept.record, label=self._label(order.target))

    def divided(
        self, order: BuildOrder, orders: Iterable[BuildOrder], build: Repaired
    ) -> Mapping[Target, Path] | Failure:
        """Those of *orders* cut from *build*, that of *order*, which are for some of its GPUs only."""
        targets = [other.target for other in orders if other.build == order.build and other.target.gpus]
        if not targets:
            return {}
        self.shop.on_progress(order.target, "slimming")
        try:
            return divided(build.wheel, targets, family=self.family, folder=self._folder("divided", order.target))
        except VbuildError as error:
            return self.shop.failure(order.target, error)

    def finished(
        self, order: BuildOrder, build: Repaired, cut: Mapping[Target, Path], *, baseline: Path | None
    ) -> Product | Failure:
        """The wheel of *order*, of its *build* or *cut* from it, held against *baseline* and tested."""
        target = order.target
        try:
            wheel = cut.get(target) or self.family.stamped(target, build.wheel, self._folder("finished", target))
            self.shop.on_progress(target, "verifying")
            verdict = self._verified(wheel, target, baseline)
            self.shop.on_progress(target, "testing")
            trial = self.tried(target, cut.get(target) or build.wheel, interpreter=order.job.interpreter)
        except VbuildError as error:
            return self.shop.failure(target, error)
        self.shop.on_progress(target, "done")
        self.shop.log(target).unlink(missing_ok=True)
        product = Product(
            target=target,
            wheel=wheel,
            label=self._label(target),
            plan=order.job.plan,
            toolkit=order.job.toolkit,
            seconds=build.seconds,
            overrides=build.overrides,
            lists=build.lists,
            verdict=verdict,
            trial=trial,
            is_built=not build.is_kept,
        )
        if not verdict.failed:
            self.shop.keep(BuildKind.PRODUCT, order.product, wheel, _record(product))
        return product

    def tried_again(self, order: BuildOrder, product: Product, *, beside: Path) -> Product | Failure:
        """*product*, of *order*, whose wheel is another now, tested again; others that it requires are *beside*."""
        try:
            trial = self.tried(order.target, product.wheel, interpreter=order.job.interpreter, beside=beside)
        except VbuildError as error:
            return self.shop.failure(order.target, error)
        self.shop.log(order.target).unlink(missing_ok=True)
        return replace(product, trial=trial)

    def tried(
        self, target: Target, wheel: Path, *, interpreter: Interpreter, beside: Path | None = None
    ) -> TrialCompile:
        """What becomes of the recipe's test of *wheel*, that of *target*; others it requires may be *beside*."""
        folder = self._folder("trials with others" if beside else "trials", target)
        folder.mkdir(parents=True)
        plain = linked(wheel, folder / str(WheelName.parse(wheel.name).plain()))
        return tried(
            plain,
            self.shop.recipe.test,
            interpreter=interpreter,
            cpu=target.cpu,
            machine=self.shop.cpu,
            folder=folder,
            log=self.shop.log(target),
            configuration=self.shop.configuration,
            beside=beside,
            pass_env=self.shop.recipe.build.pass_env,
        )

    def _verified(self, wheel: Path, target: Target, baseline: Path | None) -> Verdict:
        allow = self.shop.recipe.verify.allow
        if self.is_part:
            return verify(wheel, cpu=target.cpu, baseline=baseline, allow=allow)
        return proved(wheel, target, baseline=baseline, allow=allow)

    def _label(self, target: Target) -> str | None:
        variant = self.family.variant(target)
        return variant.label if variant else None

    def _folder(self, step: str, target: Target) -> Path:
        return self.shop.stage / step / slug(target)


def _record(product: Product) -> dict[str, Any]:
    """What the store keeps beside a finished wheel."""
    return {
        "seconds": product.seconds,
        "overrides": [to_builtins(override) for override in product.overrides],
        "lists": list(product.lists),
        "verdict": product.verdict.data(),
        "trial": str(product.trial),
    }


def _of_record(order: BuildOrder, wheel: Path, record: Mapping[str, Any], *, label: str | None) -> Product:
    return Product(
        target=order.target,
        wheel=wheel,
        label=label,
        plan=order.job.plan,
        toolkit=order.job.toolkit,
        seconds=record["seconds"],
        overrides=tuple(map(Override.of_data, record["overrides"])),
        lists=tuple(record["lists"]),
        verdict=Verdict.of_data(record["verdict"], wheel),
        trial=TrialCompile(record["trial"]),
        is_built=False,
        is_kept=True,
    )
