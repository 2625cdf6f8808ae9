"""`vbuild collect`: the parts of a release, made by several jobs or machines, become one release.

    folders, at any depth -> wheels and report.json -> each wheel once, with its entry in a report
        -> verified, levels compared with the baseline -> split -> joined -> report.json, page

Wheels are verified again, as the one to compare with may be of another part. Reports that contradict a wheel's name and
variant.json, by which installers go, or each other, are refused.
"""

import os
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

from vbuild.build.plan import BuildBackend, FlagPlan, WrapperRules
from vbuild.errors import BuildError, RecipeError, VbuildError, at
from vbuild.files.atomic import LOGS, STAGE, linked, staging
from vbuild.files.hashing import sha256_of
from vbuild.files.wording import shown
from vbuild.hardware.cpu import Cpu
from vbuild.recipe.hidden import hiding_secrets
from vbuild.recipe.matrix import Matrix
from vbuild.recipe.model import Recipe, TrialResult
from vbuild.recipe.source import Folder
from vbuild.recipe.spelling import MACHINES, baseline
from vbuild.recipe.target import Target
from vbuild.release.builder import interpreter_of
from vbuild.release.finishing import trial_of, verified
from vbuild.release.matrix import released, split_request, without_cpu
from vbuild.release.model import Failure, OnProgress, Product, ReleaseContext, ReleaseResult, ReleaseWheels
from vbuild.release.report import REPORT, FailureEntry, Report, WheelEntry, kinds
from vbuild.variants.document import Document
from vbuild.variants.model import Property
from vbuild.verification.model import Verdict
from vbuild.wheel.archive import peek, wheels_in
from vbuild.wheel.metadata import VARIANT_JSON
from vbuild.wheel.name import WheelName

_NUMBER = re.compile(r"[0-9]+")
# 3.12, python3.12 and cpython@3.12.1; cp312-manylinux_x86_64 and pp310
_VERSION = re.compile(r"(?P<name>[a-z]+)?@?(?P<major>\d)\.(?P<minor>\d+)(\.\d+)?(?P<free>t?)", re.ASCII)
_TAG = re.compile(r"([a-z]{2}\d{2,}t?)(-.*)?", re.ASCII)
_SHORT = {"": "cp", "python": "cp", "cpython": "cp", "pypy": "pp"}


class ReleasePart(Struct, frozen=True):
    folder: Path
    wheels: tuple[Path, ...]
    report: Report | None

    @classmethod
    def at(cls, folder: Path) -> "ReleasePart | None":
        """The part in *folder*, or None without wheels and report; `RecipeError` for an unreadable report, or one with
        missing wheels; `WheelError` for a wrong name.
        """
        wheels = tuple(path for path in wheels_in(folder) if not path.is_dir())
        for wheel in wheels:
            with at(folder):
                WheelName.parse(wheel.name)
        path = folder / REPORT
        if not (wheels or path.exists()):
            return None
        report = Report.load(path) if path.exists() else None
        names = {wheel.name for wheel in wheels}
        for name in report.files if report else ():
            if name not in names:
                raise RecipeError(f"{path}: tells of {name}, which is not beside it")
        return cls(folder, wheels, report)

    @property
    def companions(self) -> frozenset[str]:
        return frozenset(companion.file for companion in self.report.companions) if self.report else frozenset()

    def log(self, failure: FailureEntry) -> Path | None:
        path = self.folder / LOGS / Path(failure.log).name if failure.log else None
        return path if path and path.is_file() else None


class PartWheel(Struct, frozen=True):
    """A wheel with its *entry* in the report; it *is_companion* if a split made it."""

    path: Path
    entry: WheelEntry | None
    is_companion: bool = False

    @property
    def name(self) -> WheelName:
        return WheelName.parse(self.path.name)

    @property
    def digest(self) -> str:
        try:
            return sha256_of(self.path)
        except OSError as error:
            raise RecipeError(f"{self.path}: cannot be read: {error.strerror}") from error


def collect(
    paths: Sequence[Path],
    folder: Path,
    *,
    recipe: Path | None = None,
    on_progress: OnProgress = lambda _target, _step: None,
) -> ReleaseResult:
    """Make one release in *folder* of the parts at *paths*, folders of wheels, and of those below.

    Failures are wheels that do not keep their promises, what failed in a part, what the *recipe* has and no part, and
    of two Pythons' wheels of one name the second. Wheels that the split changes are tested again if this machine has
    their Python.

    `VbuildError`, and nothing written, if there are no parts, or they cannot be read or are not of one release.
    """
    whole = Recipe.load(recipe) if recipe else None
    split = split_request(whole) if whole else None
    parts = parts_at(paths, output=folder)
    name = name_of(parts, expected=whole.name if whole else None)
    followed = whole or Recipe(name, Folder(Path()), Matrix(), Path())
    context = ReleaseContext(
        recipe=followed,
        targets=whole.targets if whole else (),
        folder=folder,
        stage=folder,
        on_progress=on_progress,
        split=split,
        source=str(whole.source) if whole else next((part.report.source for part in parts if part.report), ""),
        inputs=(whole.file,) if whole else (),
        parts=tuple(part.folder for part in parts),
    )
    part_wheels, twins = wheels_of(parts, name)
    with hiding_secrets(followed, context.targets), staging(folder) as stage:
        context = replace(context, stage=stage)
        collected = _CollectedWheels(context)
        own, others = _by_project(part_wheels, collected.outcomes(part_wheels), name)
        own += twins
        failed = [*_failures(parts, own, folder)]
        missing = _missing(whole, [*own, *failed]) if whole else ()
        outcomes = _ordered([*own, *others, *failed, *missing], whole)
        pythons = _recipe_pythons((outcome.target.python for outcome in outcomes), followed)
        wheels = ReleaseWheels(
            outcomes,
            partial(_tested_again, context, collected.notes),
            interpreter_of,
            collected.notes,
            siblings=partial(_siblings, context, pythons),
        )
        notes = [note for part in parts if part.report for note in part.report.notes]
        if unknown := sorted(wheel.path.name for wheel in part_wheels if not (wheel.entry or wheel.is_companion)):
            notes.append(f"verified, but no report tells how it was built: {', '.join(unknown)}")
        return released(context, wheels, notes=notes)


class _CollectedWheels(Struct, frozen=True):
    context: ReleaseContext
    notes: list[str] = field(default_factory=list)

    def outcomes(self, wheels: Sequence[PartWheel]) -> list[Product | Failure]:
        """The outcomes of *wheels*, in their order; baselines are verified first."""
        outcomes = {wheel.path.name: self._product(wheel) for wheel in wheels}
        outcomes |= _of_other_base({wheel.path.name: outcomes[wheel.path.name] for wheel in wheels if wheel.entry})
        products = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, Product)}
        lowest = {
            name: self._verified(product, None) for name, product in products.items() if not product.target.asks_for_cpu
        }
        # a plain wheel is the nearest to all others
        sound = [outcome for outcome in lowest.values() if isinstance(outcome, Product)]
        sound.sort(key=lambda product: product.label is not None)
        higher = {name: self._compared(product, sound) for name, product in products.items() if name not in lowest}
        return [*(outcomes | lowest | higher).values()]

    def _product(self, part_wheel: PartWheel) -> Product | Failure:
        """The product, by its report or else its name; a failure if these contradict."""
        folder, entry = self.context.stage / "gathered", part_wheel.entry
        folder.mkdir(exist_ok=True)
        with at(part_wheel.path):
            wheel = linked(part_wheel.path, folder / part_wheel.path.name)
            product = Product.of_entry(entry, wheel) if entry else None
        if product and entry and part_wheel.digest != entry.sha256:
            fault = f"{wheel.name}: not the wheel that {REPORT} beside it tells of: its SHA-256 is another"
            return Failure(product.target, fault, None)
        try:
            claims = _WheelClaims.of(wheel, machine=product.target.cpu.machine if product else None)
        except VbuildError as error:
            target = product.target if product else _WheelClaims.by_name(part_wheel.name).target
            return Failure(target, f"{wheel.name}: {str(error).removeprefix(f'{wheel.name}: ')}", None)
        if product is None:
            return Product(
                target=claims.target,
                wheel=wheel,
                plan=FlagPlan(claims.cpu, BuildBackend.OTHER, (), (), WrapperRules()),
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
    name: WheelName
    cpu: Cpu
    properties: tuple[str, ...] = ()

    @classmethod
    def by_name(cls, name: WheelName, *, machine: str | None = None) -> Self:
        named = (known for known in MACHINES if any(tag.endswith(known) for tag in name.platform.split(".")))
        return cls(name, baseline(next(named, machine or MACHINES[0])))

    @classmethod
    def of(cls, wheel: Path, *, machine: str | None) -> Self:
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
        label = self.name.variant
        if reported.label != label:
            claimed, named = (repr(text) if text else "plain" for text in (label, reported.label))
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
    """Failures of the wheels without a level that are for another one than the rest, by their reports."""
    targets = {
        name: outcome.target
        for name, outcome in outcomes.items()
        if isinstance(outcome, Product) and not outcome.target.asks_for_cpu
    }
    failures = {}
    for name, target in targets.items():
        cpu = target.cpu
        cpus = (other.cpu for other in targets.values() if other.cpu.machine == cpu.machine)
        if cpu != (base := min(cpus, key=attrgetter("rank"))):
            fault = f"{name}: for {base}, and for {cpu} by {REPORT} beside it"
            failures[name] = Failure(replace(target, cpu=base), fault, None)
    return failures


def _build(product: Product) -> tuple[object, ...]:
    """The same for wheels of all CPU levels of a machine, which can be compared."""
    name = WheelName.parse(product.wheel.name)
    target = replace(product.target, python="")  # a path says nothing of a Python of another machine
    return (name.project, name.python, name.abi, kinds(name), target.cpu.machine, *without_cpu(target))


def _siblings(context: ReleaseContext, pythons: Mapping[str, str], plain: Target) -> list[Target]:
    python = pythons.get(plain.python, context.recipe.matrix.pythons[0])
    # a report does not have the variables that set builds apart
    return [replace(target, env=(), config_settings=()) for target in context.targets if target.python == python]


def _tested_again(context: ReleaseContext, notes: list[str], product: Product, find_links: Path) -> Product | Failure:
    try:
        interpreter = interpreter_of(product.target)
    except BuildError as error:
        notes.append(f"{product.wheel.name}: split, and not tested again: {error}")
        return replace(product, trial=TrialResult.NOT_RUN)
    target, folder = product.target, context.stage / "trials" / product.wheel.stem
    try:
        result = trial_of(context, target, product.wheel, python=interpreter.path, folder=folder, find_links=find_links)
    except VbuildError as error:
        return context.failure(target, error, context.log(target))
    context.log(target).unlink(missing_ok=True)
    return replace(product, trial=result)


def _failures(parts: Iterable[ReleasePart], outcomes: Iterable[Product | Failure], folder: Path) -> Iterator[Failure]:
    """What failed in *parts* and is not among *outcomes*, with its log in *folder* if its part has it."""
    keys = {_target_key(outcome.target) for outcome in outcomes}
    for part in parts:
        for entry in part.report.failures if part.report else ():
            with at(part.folder):
                failure = Failure.of_entry(entry)
            if _target_key(failure.target) not in keys:
                keys.add(_target_key(failure.target))
                log = part.log(entry)
                yield replace(failure, log=_copied(log, folder / LOGS)) if log else failure


def _copied(log: Path, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    copy = folder / log.name
    if not (copy.exists() and copy.samefile(log)):
        copy.unlink(missing_ok=True)
        linked(log, copy)
    return copy


def _by_project(
    wheels: Iterable[PartWheel], outcomes: Iterable[Product | Failure], project: str
) -> tuple[list[Product | Failure], list[Product | Failure]]:
    """The *outcomes* of *project*, and those of others, whose failures are labelled by project."""
    own: list[Product | Failure] = []
    others: list[Product | Failure] = []
    for wheel, outcome in zip(wheels, outcomes, strict=True):
        if wheel.name.project == canonicalize_name(project):
            own.append(outcome)
        elif isinstance(outcome, Failure):
            others.append(replace(outcome, target=replace(outcome.target, label=wheel.name.project)))
        else:
            others.append(outcome)
    return own, others


def _missing(recipe: Recipe, outcomes: Sequence[Product | Failure]) -> list[Failure]:
    pythons = _recipe_pythons((outcome.target.python for outcome in outcomes), recipe)
    keys = {
        _target_key(replace(outcome.target, python=pythons[outcome.target.python]))
        for outcome in outcomes
        if outcome.target.python in pythons
    }
    return [Failure(target, "no part has it", None) for target in recipe.targets if _target_key(target) not in keys]


def _recipe_pythons(pythons: Iterable[str], recipe: Recipe) -> dict[str, str]:
    """The Python of *recipe* that each of *pythons* is: itself, or one with another name elsewhere.

    By the path relative to the recipe, if both are paths; by version; or the only one left that it may be.
    """
    own, folder = recipe.matrix.pythons, recipe.file.parent.absolute()
    names = dict.fromkeys(pythons)
    known = {name: python for name in names if (python := _same(name, own, folder))}
    for name in (name for name in names if name not in known):
        tag = _tag(name)
        alike = (known[other] for other in known if tag and _tag(other) == tag)
        free = (python for python in own if len(own) == 1 or python not in known.values())
        # a recipe that names no version is for any, whatever runs vbuild here
        may_be = (python for python in free if not (tag and _tag(python)) or own == (sys.executable,))
        if python := next(alike, None) or next(may_be, None):
            known[name] = python
    return known


def _same(name: str, own: Sequence[str], folder: Path) -> str | None:
    """The one of *own*, Pythons of a recipe in *folder*, that *name* means for sure."""
    if name in own:
        return name
    paths = {python: python.removeprefix(str(folder)) for python in own if python.startswith(f"{folder}/")}
    if ending := [python for python, path in paths.items() if name.endswith(path)]:
        return max(ending, key=lambda python: len(paths[python]))
    tag = _tag(name)
    return next((python for python in own if tag and _tag(python) == tag), None)


def _tag(python: str) -> str | None:
    """``cp312`` for any name of 3.12; None for a name without a version."""
    name = python.rpartition("/")[2]
    if match := _TAG.fullmatch(name):
        return match[1]
    match = _VERSION.fullmatch(name)
    short = _SHORT.get(match["name"] or "") if match else None
    return f"{short}{match['major']}{match['minor']}{match['free']}" if match and short else None


def _ordered(outcomes: Sequence[Product | Failure], recipe: Recipe | None) -> list[Product | Failure]:
    """*outcomes* in the order of *recipe*; without one by version of Python, plain wheels first."""
    targets = recipe.targets if recipe else ()
    numbers = {_target_key(target)[1:]: number for number, target in reversed([*enumerate(targets)])}
    own = recipe.matrix.pythons if recipe else ()
    known = _recipe_pythons((outcome.target.python for outcome in outcomes), recipe) if recipe else {}

    def order(outcome: Product | Failure) -> tuple[object, ...]:
        target = outcome.target
        version = tuple(map(int, _NUMBER.findall(target.python)))  # 3.9 before 3.11, and cp39 before cp311
        python = own.index(known[target.python]) if target.python in known else len(own)
        number = numbers.get(_target_key(target)[1:], len(numbers))
        return (python, version, target.python, number, target.label is not None)

    return sorted(outcomes, key=order)


def _target_key(target: Target) -> tuple[object, ...]:
    """What distinguishes *target* from all others of its release."""
    return (target.python, target.cpu, tuple(sorted(target.properties)), tuple(sorted(target.choices)))


def parts_at(paths: Sequence[Path], *, output: Path) -> tuple[ReleasePart, ...]:
    """The parts at *paths* and below; that in *output*, the folder for results, only if it is given.

    `RecipeError` if one cannot be read, or if the results would replace it.
    """
    if not paths:
        raise RecipeError("no parts to collect; expected folders as 'vbuild matrix --part' leaves them")
    parts: dict[Path, ReleasePart] = {}
    results: list[ReleasePart] = []
    for path in paths:
        try:
            is_folder = path.is_dir()
        except OSError as error:
            raise RecipeError(f"{path}: cannot be read: {error.strerror}") from error
        if not is_folder:
            raise RecipeError(f"{path}: no such folder; expected a part as 'vbuild matrix --part' leaves it")
        below = [part for folder in _folders(path) if (part := ReleasePart.at(folder))]
        if not below:
            raise RecipeError(f"{path}: neither wheels nor {REPORT} in it; expected what 'vbuild matrix --part' leaves")
        for part in below:
            folder = part.folder.resolve()
            if folder == output.resolve() != path.resolve():
                results.append(part)
            else:
                parts[folder] = part
    for part in results:
        if part.folder.resolve() not in parts:
            _check_results(part, tuple(parts.values()))
    return tuple(parts.values())


def _check_results(results: ReleasePart, parts: Sequence[ReleasePart]) -> None:
    """`RecipeError` if *results*, which would be overwritten, has something that no part has."""
    names = {wheel.name for part in parts for wheel in part.wheels if wheel.name not in part.companions}
    releases = {WheelName.parse(name).release for name in names}
    others = sorted({wheel.name for wheel in results.wheels} - results.companions - names)
    alone = [name for name in others if not names or WheelName.parse(name).release in releases]
    reports = [part.report for part in parts if part.report]
    known = {entry.target_key for report in reports for entry in (*report.wheels, *report.failures)}
    failures = results.report.failures if results.report else ()
    # earlier results may lack the log of a failure that is in no part
    alone += [f"the failed {failure.title}" for failure in failures if failure.log and failure.target_key not in known]
    if alone:
        raise RecipeError(f"{results.folder}: no other part has {shown(alone, 1)}; expected another folder for results")


def name_of(parts: Iterable[ReleasePart], *, expected: str | None = None) -> str:
    """The project that *parts* are of; `RecipeError` if it is not the one *expected*, or if they are of several.

    Parts without reports count only if there are no others.
    """
    places: dict[str, tuple[Path, str]] = {}
    for part in parts:
        if part.report:
            places.setdefault(part.report.project, (part.folder / REPORT, part.report.name))
    if expected is not None:
        for project, (source, name) in places.items():
            if project != canonicalize_name(expected):
                raise RecipeError(f"{source}: is of {name!r}; the recipe is of {expected!r}")
        return expected
    if not places:
        projects: list[str] = sorted({WheelName.parse(wheel.name).project for part in parts for wheel in part.wheels})
        if len(projects) > 1:
            raise RecipeError(f"no part has a {REPORT}, and the wheels are of {', '.join(projects)}; give the recipe")
        return projects[0]
    (first, name), *others = places.values()
    for other, second in others:
        raise RecipeError(f"{first}: is of {name!r}, and {other} of {second!r}; expected parts of one release")
    return name


def wheels_of(parts: Iterable[ReleasePart], project: str) -> tuple[tuple[PartWheel, ...], tuple[Failure, ...]]:
    """Each wheel of *parts* once, and failures of those of further Pythons that would overwrite one of them.

    `RecipeError` if two wheels of one name and Python differ, or if *project* has several versions.
    """
    wheels: dict[str, PartWheel] = {}
    twins: dict[tuple[str, str], Failure] = {}
    for wheel in (wheel for part in parts for wheel in _wheels(part)):
        first = wheels.setdefault(wheel.path.name, wheel)
        if first.path != wheel.path and first.digest != wheel.digest:
            if not (first.entry and wheel.entry and first.entry.python != wheel.entry.python):
                fault = "two wheels of one name; expected the same bytes, or one"
                raise RecipeError(f"{first.path} and {wheel.path}: {fault}")
            twin = Failure.of_twin(wheel.entry.target(), wheel.entry.wheel, first.entry.python)
            twins.setdefault((wheel.path.name, wheel.entry.python), twin)
        elif first.entry is None and not first.is_companion:
            wheels[wheel.path.name] = wheel
    versions: dict[str, Path] = {}
    for wheel in wheels.values():
        if wheel.name.project == canonicalize_name(project):
            versions.setdefault(wheel.name.version, wheel.path)
    (first_version, path), *others = versions.items() or [("", Path())]
    for version, other in others:
        fault = f"of versions {first_version} and {version}; expected parts of one release"
        raise RecipeError(f"{path} and {other}: {fault}")
    return tuple(wheels.values()), tuple(twins.values())


def _folders(path: Path) -> Iterator[Path]:
    """*path* and the folders below, each once however it is linked, but for those of work in progress.

    `RecipeError` for one that cannot be read, and for a link that leads nowhere: a part may be missing.
    """
    seen: set[Path] = set()
    for parent, folders, files in os.walk(path, onerror=_unreadable, followlinks=True):
        here = Path(parent)
        if (real := here.resolve()) in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith(STAGE))
        for file in sorted(files):
            if (here / file).is_symlink() and not (here / file).exists():
                raise RecipeError(f"{here / file}: a broken link; expected a part")
        yield here


def _unreadable(error: OSError) -> None:
    raise RecipeError(f"{error.filename}: cannot be read: {error.strerror}") from error


def _wheels(part: ReleasePart) -> Iterator[PartWheel]:
    entries = {entry.wheel: entry for entry in part.report.wheels} if part.report else {}
    places = {name: position for position, name in enumerate(entries)}
    companions = part.companions
    for path in sorted(part.wheels, key=lambda path: places.get(path.name, len(places))):
        yield PartWheel(path, entries.get(path.name), is_companion=path.name in companions)
