"""`vbuild collect`: the parts of a release, made by several jobs or machines, become one release.

    parts -> each wheel once -> verified, levels compared with the baseline -> split -> joined -> report.json, page

Flags, times and tests of a wheel are those in the report of its part; the wheel is verified again, because the one to
compare it with may be of another part. A report that contradicts the wheel's own name and variant.json is refused:
installers go by these.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Self

from msgspec import Struct, field
from msgspec.structs import replace
from packaging.utils import canonicalize_name

from vbuild.build.plan import BuildBackend, FlagPlan, Rewriting
from vbuild.build.trial import TrialResult, WheelTrial
from vbuild.errors import BuildError, VbuildError, at
from vbuild.files.atomic import linked
from vbuild.files.staging import LOGS, staging
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.machine import cpu_here
from vbuild.recipe.hidden import hiding_secrets
from vbuild.recipe.matrix import Matrix
from vbuild.recipe.model import Recipe
from vbuild.recipe.source import Folder
from vbuild.recipe.spelling import MACHINES, baseline
from vbuild.recipe.target import Target
from vbuild.release.builder import index_variables, interpreter_of
from vbuild.release.finishing import verified
from vbuild.release.model import Failure, OnProgress, Product, ReleaseContext, ReleaseResult, ReleaseWheels
from vbuild.release.parts import FoundWheel, ReleasePart, name_of, parts_at, wheels_of
from vbuild.release.pipeline import released, split_request, without_cpu
from vbuild.release.report import REPORT, kinds
from vbuild.variants.document import Document
from vbuild.variants.model import Property
from vbuild.verification.model import Verdict
from vbuild.wheel.archive import peek
from vbuild.wheel.metadata import VARIANT_JSON
from vbuild.wheel.name import WheelName

_NUMBER = re.compile(r"[0-9]+")
# 3.12, python3.12 and cpython@3.12.1; cp312-manylinux_x86_64 and pp310
_VERSION = re.compile(r"(?P<name>[a-z]+)?@?(?P<major>\d)\.(?P<minor>\d+)(\.\d+)?(?P<free>t?)", re.ASCII)
_TAG = re.compile(r"([a-z]{2}\d{2,}t?)(-.*)?", re.ASCII)
_SHORT = {"": "cp", "python": "cp", "cpython": "cp", "pypy": "pp"}


def collect(
    paths: Sequence[Path],
    folder: Path,
    *,
    recipe: Path | None = None,
    on_progress: OnProgress = lambda _target, _step: None,
) -> ReleaseResult:
    """Make one release in *folder* of the parts at *paths*, folders of wheels, and whatever is below these.

    Every wheel is verified; one that does not keep its promises, and what failed in a part, is a failure of the
    release, and so is what the *recipe* has and no part, and of two Pythons' wheels of one name the second. The recipe
    also says what may go above a level, and what is taken out of the wheels: those that change are tested again, where
    this machine has their Python. *on_progress* is called with each step of each wheel.

    A `VbuildError` is raised, and nothing written, where there are no parts, where one cannot be read or contradicts
    another, or where they are not of one release.
    """
    whole = Recipe.load(recipe) if recipe else None
    if whole:
        split_request(whole)
    parts = parts_at(paths, output=folder)
    name = name_of(parts, expected=whole.name if whole else None)
    known = whole or Recipe(name, Folder(Path()), Matrix(), Path())
    context = ReleaseContext(
        recipe=known,
        targets=whole.targets if whole else (),
        folder=folder,
        stage=folder,
        on_progress=on_progress,
        split=split_request(known),
        source=str(whole.source) if whole else next((part.report.source for part in parts if part.report), ""),
        inputs=(whole.file,) if whole else (),
        parts=tuple(part.folder for part in parts),
    )
    gathered = wheels_of(parts, name)
    with hiding_secrets(known, context.targets), staging(folder) as stage:
        context = replace(context, stage=stage)
        collected = _CollectedWheels(context)
        own, others = _by_project(gathered.wheels, collected.outcomes(gathered.wheels), name)
        made = [*own, *(Failure.of_twin(twin.entry.target(), twin.entry.wheel, twin.python) for twin in gathered.twins)]
        failed = [*_failures(parts, made, folder)]
        missing = _missing(whole, [*made, *failed]) if whole else ()
        outcomes = _ordered([*made, *others, *failed, *missing], whole)
        pythons = _recipe_pythons((outcome.target.python for outcome in outcomes), known)
        wheels = ReleaseWheels(
            outcomes,
            partial(_tested_again, context, collected.notes),
            interpreter_of,
            collected.notes,
            siblings=partial(_siblings, context, pythons),
        )
        notes = [note for part in parts if part.report for note in part.report.notes]
        if unknown := sorted(wheel.path.name for wheel in gathered.wheels if not (wheel.entry or wheel.is_companion)):
            notes.append(f"verified, but no report tells how it was built: {', '.join(unknown)}")
        return released(context, wheels, notes=notes)


class _CollectedWheels(Struct, frozen=True):
    """Brings the wheels of parts into the release *context*, as links in its stage, with *notes* on them."""

    context: ReleaseContext
    notes: list[str] = field(default_factory=list)

    def outcomes(self, wheels: Iterable[FoundWheel]) -> list[Product | Failure]:
        """What becomes of *wheels*, in their order: baselines are verified first, then what is compared with them."""
        found = tuple(wheels)
        outcomes = {wheel.path.name: self._product(wheel) for wheel in found}
        outcomes |= _of_other_base({wheel.path.name: outcomes[wheel.path.name] for wheel in found if wheel.entry})
        products = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, Product)}
        lowest = {name: self._verified(one, None) for name, one in products.items() if not one.target.asks_for_cpu}
        # a plain wheel is the nearest to all others
        sound = [one for one in lowest.values() if isinstance(one, Product)]
        sound.sort(key=lambda product: product.label is not None)
        higher = {name: self._compared(one, sound) for name, one in products.items() if name not in lowest}
        return [*(outcomes | lowest | higher).values()]

    def _product(self, found: FoundWheel) -> Product | Failure:
        """The wheel *found*, by its report or else its own name; a failure if the two contradict each other."""
        folder = self.context.stage / "gathered"
        folder.mkdir(exist_ok=True)
        with at(found.path):
            wheel = linked(found.path, folder / found.path.name)
            product = Product.of_entry(found.entry, wheel) if found.entry else None
        if product and found.entry and found.digest != found.entry.sha256:
            what = f"{wheel.name}: not the wheel that {REPORT} beside it tells of: its SHA-256 is another"
            return Failure(product.target, what, None)
        try:
            claims = _WheelClaims.of(wheel, machine=product.target.cpu.machine if product else None)
        except VbuildError as error:
            target = product.target if product else _WheelClaims.by_name(found.name).target
            return Failure(target, f"{wheel.name}: {str(error).removeprefix(f'{wheel.name}: ')}", None)
        if product is None:
            return Product(
                target=claims.target,
                wheel=wheel,
                label=claims.name.variant,
                plan=FlagPlan(claims.cpu, BuildBackend.OTHER, (), (), Rewriting()),
                toolkit=None,
                seconds=0,
                overrides=(),
                lists=(),
                verdict=Verdict(wheel, None, claimed=False, findings=(), libraries=()),
                trial=TrialResult.NONE,
            )
        if contradiction := claims.contradiction(product.target):
            # an installer goes by what the wheel says
            target = replace(product.target, label=claims.name.variant, cpu=claims.cpu, properties=claims.properties)
            return Failure(target, f"{wheel.name}: {contradiction}", None)
        return product

    def _compared(self, product: Product, sound: Iterable[Product]) -> Product | Failure:
        """What becomes of *product*, which is above the baseline, compared with one of the *sound* baseline wheels."""
        nearest = next((other for other in sound if _build(other) == _build(product)), None)
        if nearest is None:
            lowest = baseline(product.target.cpu.machine)
            self.notes.append(
                f"{product.wheel.name}: compared with no other wheel, as no part has a sound one for {lowest}"
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


class _WheelClaims(Struct, frozen=True):
    """What a wheel claims by its *name* and its variant.json: the *cpu* it is for, and its *properties*."""

    name: WheelName
    cpu: Cpu
    properties: tuple[str, ...] = ()

    @classmethod
    def by_name(cls, name: WheelName, *, machine: str | None = None) -> Self:
        """What *name* alone claims; a wheel for any machine counts as one for *machine*, or x86-64."""
        named = (known for known in MACHINES if any(tag.endswith(known) for tag in name.platform.split(".")))
        return cls(name, baseline(next(named, machine or MACHINES[0])))

    @classmethod
    def of(cls, wheel: Path, *, machine: str | None) -> Self:
        """What *wheel* claims; `VbuildError` if its variant.json is not one of that name."""
        claims = cls.by_name(WheelName.parse(wheel.name), machine=machine)
        data = peek(wheel, VARIANT_JSON)
        with at(VARIANT_JSON):
            document = Document.of_wheel(claims.name.variant, data)
        if document is None:
            return claims
        properties = tuple(map(str, document.variants[0].properties))
        return replace(claims, cpu=Cpu.of_properties(properties) or claims.cpu, properties=properties)

    @property
    def target(self) -> Target:
        return Target(self.name.variant, self.name.python, self.cpu, self.properties)

    def contradiction(self, reported: Target) -> str | None:
        """How the target *reported* for the wheel differs from its claims, in words."""
        label = self.name.variant
        if reported.label != label:
            claimed, named = (repr(one) if one else "plain" for one in (label, reported.label))
            return f"{claimed} by its name, and {named} by {REPORT} beside it"
        properties = {str(Property.parse(text)) for text in reported.properties}
        if other := sorted(properties ^ {*self.properties}):
            where = "its variant.json only" if other[0] in self.properties else f"{REPORT} beside it only"
            return f"{other[0]} is in {where}"
        is_other = reported.asks_for_cpu or reported.cpu.machine != self.cpu.machine
        if is_other and reported.cpu != self.cpu:
            return f"for {self.cpu}, and for {reported.cpu} by {REPORT} beside it"
        return None


def _of_other_base(outcomes: Mapping[str, Product | Failure]) -> dict[str, Failure]:
    """Failures of the wheels without a level of their own that are for another one than the rest, by their reports."""
    plain = {name: one for name, one in outcomes.items() if isinstance(one, Product) and not one.target.asks_for_cpu}
    found = {}
    for name, product in plain.items():
        cpu = product.target.cpu
        base = min(
            (one.target.cpu for one in plain.values() if one.target.cpu.machine == cpu.machine), key=attrgetter("rank")
        )
        if cpu != base:
            what = f"{name}: for {base}, and for {cpu} by {REPORT} beside it"
            found[name] = Failure(replace(product.target, cpu=base), what, None)
    return found


def _build(product: Product) -> tuple[object, ...]:
    """The build of *product*, the same for all CPU levels of a machine: such wheels can be compared."""
    name = WheelName.parse(product.wheel.name)
    target = replace(product.target, python="")  # a path says nothing of a Python of another machine
    return (name.project, name.python, name.abi, kinds(name), target.cpu.machine, *without_cpu(target))


def _siblings(context: ReleaseContext, pythons: Mapping[str, str], plain: Target) -> list[Target]:
    """The targets of the recipe for the one of its *pythons* that *plain* is for."""
    python = pythons.get(plain.python, context.recipe.matrix.pythons[0])
    # a report does not have the variables that set builds apart
    return [replace(target, env=(), config_settings=()) for target in context.targets if target.python == python]


def _tested_again(context: ReleaseContext, notes: list[str], product: Product, find_links: Path) -> Product | Failure:
    """*product*, whose wheel has changed, tested again if its Python is here; *notes* says if it is not."""
    try:
        interpreter = interpreter_of(product.target)
    except BuildError as error:
        notes.append(f"{product.wheel.name}: split, and not tested again: {error}")
        return replace(product, trial=TrialResult.NOT_RUN)
    trial = WheelTrial(
        context.recipe.test,
        interpreter,
        product.target.cpu,
        cpu_here(),
        index_variables,
        find_links=find_links,
        pass_env=context.recipe.build.pass_env,
    )
    folder = context.stage / "trials"
    try:
        result = trial.run(product.wheel, folder / product.wheel.stem, folder / f"{product.wheel.name}.log")
    except VbuildError as error:
        return Failure(product.target, str(error), None)
    return replace(product, trial=result)


def _failures(parts: Iterable[ReleasePart], made: Iterable[Product | Failure], folder: Path) -> Iterator[Failure]:
    """What failed in *parts* and no other part *made*, each once, with its log in *folder* if its part has it."""
    there = {_place(outcome.target) for outcome in made}
    for part in parts:
        for entry in part.report.failures if part.report else ():
            with at(part.folder):
                failure = Failure.of_entry(entry)
            if _place(failure.target) not in there:
                there.add(_place(failure.target))
                log = part.log(entry)
                yield replace(failure, log=_copied(log, folder / LOGS)) if log else failure


def _copied(log: Path, folder: Path) -> Path:
    """*log* in *folder*, instead of an earlier run's."""
    folder.mkdir(exist_ok=True)
    copy = folder / log.name
    if not (copy.exists() and copy.samefile(log)):
        copy.unlink(missing_ok=True)
        linked(log, copy)
    return copy


def _by_project(
    wheels: Iterable[FoundWheel], made: Iterable[Product | Failure], project: str
) -> tuple[list[Product | Failure], list[Product | Failure]]:
    """What was *made* of *wheels*: of those of *project*, and of others, whose failures have their project as label."""
    own: list[Product | Failure] = []
    others: list[Product | Failure] = []
    for wheel, outcome in zip(wheels, made, strict=True):
        if wheel.name.project == canonicalize_name(project):
            own.append(outcome)
        elif isinstance(outcome, Failure):
            others.append(replace(outcome, target=replace(outcome.target, label=wheel.name.project)))
        else:
            others.append(outcome)
    return own, others


def _missing(recipe: Recipe, outcomes: Sequence[Product | Failure]) -> list[Failure]:
    """The targets of *recipe* that are not among *outcomes*."""
    pythons = _recipe_pythons((outcome.target.python for outcome in outcomes), recipe)
    there = {
        _place(replace(outcome.target, python=pythons[outcome.target.python]))
        for outcome in outcomes
        if outcome.target.python in pythons
    }
    return [Failure(target, "no part has it", None) for target in recipe.targets if _place(target) not in there]


def _recipe_pythons(pythons: Iterable[str], recipe: Recipe) -> dict[str, str]:
    """Which of *recipe*'s Pythons each of *pythons* is, one at most: itself, or one with another name elsewhere.

    By the path relative to the recipe, if both are paths; by version; or the only one left that it may be.
    """
    own = recipe.matrix.pythons
    there = dict.fromkeys(pythons)
    found = {python: known for python in there if (known := _same(python, own, recipe.file.parent.absolute()))}
    for python in (python for python in there if python not in found):
        tag = _tag(python)
        alike = (found[other] for other in found if tag and _tag(other) == tag)
        free = (each for each in own if len(own) == 1 or each not in found.values())
        # by version it would have been found; but a recipe that names none is for any, whatever runs vbuild here
        may_be = (each for each in free if not (tag and _tag(each)) or own == (sys.executable,))
        if known := next(alike, None) or next(may_be, None):
            found[python] = known
    return found


def _same(python: str, own: Sequence[str], folder: Path) -> str | None:
    """The one of *own*, Pythons of a recipe in *folder*, that *python* is for sure."""
    if python in own:
        return python
    paths = {each: each.removeprefix(str(folder)) for each in own if each.startswith(f"{folder}/")}
    if ending := [each for each, path in paths.items() if python.endswith(path)]:
        return max(ending, key=lambda each: len(paths[each]))
    tag = _tag(python)
    return next((each for each in own if tag and _tag(each) == tag), None)


def _tag(python: str) -> str | None:
    """``cp312`` for any name of 3.12; None for a name without a version."""
    name = python.rpartition("/")[2]
    if match := _TAG.fullmatch(name):
        return match[1]
    match = _VERSION.fullmatch(name)
    short = _SHORT.get(match["name"] or "") if match else None
    return f"{short}{match['major']}{match['minor']}{match['free']}" if match and short else None


def _ordered(outcomes: Sequence[Product | Failure], recipe: Recipe | None) -> list[Product | Failure]:
    """*outcomes* by Python, and those of each, in the order of *recipe*; without one by version, plain wheels first."""
    targets = recipe.targets if recipe else ()
    places = {_place(target)[1:]: number for number, target in reversed([*enumerate(targets)])}
    own = recipe.matrix.pythons if recipe else ()
    known = _recipe_pythons((outcome.target.python for outcome in outcomes), recipe) if recipe else {}

    def order(outcome: Product | Failure) -> tuple[object, ...]:
        target = outcome.target
        numbers = tuple(map(int, _NUMBER.findall(target.python)))  # 3.9 before 3.11, and cp39 before cp311
        python = own.index(known[target.python]) if target.python in known else len(own)
        return (python, numbers, target.python, places.get(_place(target)[1:], len(places)), target.label is not None)

    return sorted(outcomes, key=order)


def _place(target: Target) -> tuple[object, ...]:
    """What distinguishes *target* from all others of its release; its label may be hashed."""
    return (target.python, target.cpu, tuple(sorted(target.properties)), tuple(sorted(target.choices)))
