"""Wheels of parts become products of one release: what their reports say, and what is proved of them here.

wheel, entry -> linked into the stage -> Product -> verified: baselines first, then what is compared with them
wheel alone  -> its name and its variant.json -> Product -> verified

An entry that does not say what name and variant.json say is not believed: whoever publishes goes by the label in it.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

from msgspec import Struct, field
from msgspec.structs import replace

from vbuild.build.plan import BuildBackend, FlagPlan, Rewriting
from vbuild.build.trial import TrialResult
from vbuild.errors import VbuildError, at
from vbuild.files.atomic import linked
from vbuild.hardware.cpu import Cpu
from vbuild.recipe.spelling import MACHINES, baseline
from vbuild.recipe.target import Target
from vbuild.release.context import ReleaseContext
from vbuild.release.outcome import Failure, Product
from vbuild.release.parts import FoundWheel
from vbuild.release.pipeline import verified, without_cpu
from vbuild.release.report import REPORT, kinds
from vbuild.variants.document import Document
from vbuild.variants.model import Property
from vbuild.verification.model import Verdict
from vbuild.wheel.archive import peek
from vbuild.wheel.metadata import VARIANT_JSON
from vbuild.wheel.name import WheelName


class Gathering(Struct, frozen=True):
    """Brings the wheels of parts into the release *context*, as links in its stage.

    *notes* gathers what whoever publishes the release should know.
    """

    context: ReleaseContext
    notes: list[str] = field(default_factory=list)

    def outcomes(self, wheels: Iterable[FoundWheel]) -> list[Product | Failure]:
        """What becomes of *wheels*, in their order."""
        linked_here = {wheel.path.name: self._product(wheel) for wheel in wheels}
        done = {name: one for name, one in linked_here.items() if isinstance(one, Failure)}
        products = {name: one for name, one in linked_here.items() if isinstance(one, Product)}
        lowest = {name: self._verified(one, None) for name, one in products.items() if one.target.cpu.is_baseline}
        # a plain wheel is the nearest to all others
        sound = [one for one in lowest.values() if isinstance(one, Product)]
        sound.sort(key=lambda product: product.label is not None)
        higher = {name: self._held_against(one, sound) for name, one in products.items() if name not in lowest}
        outcomes = {**done, **lowest, **higher}
        return [outcomes[name] for name in linked_here]

    def _product(self, found: FoundWheel) -> Product | Failure:
        """The wheel *found*, as its report or else its own name tells of it.

        A failure where it is another than the report tells of, or says something else of itself.
        """
        folder = self.context.stage / "gathered"
        folder.mkdir(exist_ok=True)
        with at(found.path):
            wheel = linked(found.path, folder / found.path.name)
            product = Product.of_data(found.data, wheel) if found.data else None
        if product and found.data and found.digest != found.data["sha256"]:
            what = f"{wheel.name}: not the wheel that {REPORT} beside it tells of: its SHA-256 is another"
            return Failure(product.target, what, None)
        try:
            said = _Said.of(wheel, machine=product.target.cpu.machine if product else None)
        except VbuildError as error:
            target = product.target if product else _Said.by_name(found.name).target
            return Failure(target, f"{wheel.name}: {str(error).removeprefix(f'{wheel.name}: ')}", None)
        if product is None:
            return _stranger(wheel, said.target)
        if contradiction := said.contradiction(product.target):
            # an installer goes by what the wheel says
            target = replace(product.target, label=said.name.variant, cpu=said.cpu, properties=said.properties)
            return Failure(target, f"{wheel.name}: {contradiction}", None)
        return product

    def _held_against(self, product: Product, sound: Iterable[Product]) -> Product | Failure:
        """What becomes of *product*, which is above the baseline, given the *sound* wheels that are not."""
        nearest = next((other for other in sound if _alike(other) == _alike(product)), None)
        if nearest is None:
            lowest = baseline(product.target.cpu.machine)
            self.notes.append(
                f"{product.wheel.name}: held against no other wheel, as no part has a sound one for {lowest}"
            )
        return self._verified(product, nearest)

    def _verified(self, product: Product, nearest: Product | None) -> Product | Failure:
        target = product.target
        self.context.on_progress(target, "verifying")
        try:
            verdict = verified(self.context, product.wheel, target, baseline=nearest.wheel if nearest else None)
        except VbuildError as error:
            return self.context.failure(target, error)
        self.context.on_progress(target, "done")
        return replace(product, verdict=verdict)


def strangers(wheels: Iterable[FoundWheel]) -> Iterator[str]:
    """A note on those of *wheels* that no report tells of."""
    names = sorted(wheel.path.name for wheel in wheels if wheel.data is None and not wheel.is_beside)
    if names:
        yield f"verified, but no report tells how it was built: {', '.join(names)}"


class _Said(Struct, frozen=True):
    """What a wheel says of itself, by its *name* and its variant.json: the *cpu* it is for, and its *properties*."""

    name: WheelName
    cpu: Cpu
    properties: tuple[str, ...] = ()

    @classmethod
    def by_name(cls, name: WheelName, *, machine: str | None = None) -> Self:
        """What *name* alone says; of a wheel for any machine, as one for *machine*, or x86-64."""
        named = (known for known in MACHINES if any(tag.endswith(known) for tag in name.platform.split(".")))
        return cls(name, baseline(next(named, machine or MACHINES[0])))

    @classmethod
    def of(cls, wheel: Path, *, machine: str | None) -> Self:
        """What *wheel* says; `VbuildError` if its variant.json is not one of that name."""
        said = cls.by_name(WheelName.parse(wheel.name), machine=machine)
        data = peek(wheel, VARIANT_JSON)
        with at(VARIANT_JSON):
            document = Document.of_wheel(said.name.variant, data)
        if document is None:
            return said
        properties = tuple(map(str, document.variants[0].properties))
        named = [level for text in properties if (level := Cpu.of_property(text))]
        # a machine that has any of several values may get it, so the lowest counts
        return replace(said, cpu=min(named, key=lambda level: level.rank, default=said.cpu), properties=properties)

    @property
    def target(self) -> Target:
        return Target(self.name.variant, self.name.python, self.cpu, self.properties)

    def contradiction(self, told: Target) -> str | None:
        """Where it says something else than a report that has *on_progress* of it, in words."""
        if told.label != self.name.variant:
            return f"{_quoted(self.name.variant)} by its name, and {_quoted(told.label)} by {REPORT} beside it"
        properties = {str(Property.parse(text)) for text in told.properties}
        if other := sorted(properties ^ {*self.properties}):
            where = "its variant.json only" if other[0] in self.properties else f"{REPORT} beside it only"
            return f"{other[0]} is in {where}"
        return f"for {self.cpu}, and for {told.cpu} by {REPORT} beside it" if told.cpu != self.cpu else None


def _quoted(label: str | None) -> str:
    return repr(label) if label else "plain"


def _alike(product: Product) -> tuple[object, ...]:
    """What two wheels have in common of which one can be compared with the other."""
    name = WheelName.parse(product.wheel.name)
    target = replace(product.target, python="")  # a path says nothing of a Python of another machine
    return (name.project, name.python, name.abi, kinds(name), target.cpu.machine, *without_cpu(target))


def _stranger(wheel: Path, target: Target) -> Product:
    """The *wheel* that no report tells of, which says that it is *target*'s."""
    return Product(
        target=target,
        wheel=wheel,
        label=target.label,
        plan=FlagPlan(target.cpu, BuildBackend.OTHER, (), (), Rewriting()),
        toolkit=None,
        seconds=0,
        overrides=(),
        lists=(),
        verdict=Verdict(wheel, None, claimed=False, findings=(), libraries=()),
        trial=TrialResult.NONE,
    )
