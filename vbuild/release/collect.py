"""`vbuild collect`: the parts of a release, made by several jobs or machines, become one release.

    parts -> each wheel once -> verified, levels compared with the baseline -> split -> joined -> report.json, page

What a part says of a wheel is taken over: flags, times, tests. What is proved of a wheel is proved again, here, where
there is the wheel to hold it against.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace
from packaging.utils import canonicalize_name

from vbuild.build.trial import TrialResult, WheelTrial
from vbuild.errors import BuildError, VbuildError, at
from vbuild.files.atomic import linked
from vbuild.files.staging import LOGS
from vbuild.hardware.machine import cpu_here
from vbuild.recipe.matrix import Matrix
from vbuild.recipe.model import Recipe
from vbuild.recipe.source import Folder
from vbuild.recipe.target import Target
from vbuild.release.builder import index_variables, interpreter_of
from vbuild.release.context import OnProgress, ReleaseContext, ReleaseWheels, previous_report
from vbuild.release.gathering import Gathering, strangers
from vbuild.release.outcome import Failure, Product, ReleaseResult, target_of
from vbuild.release.parts import FoundWheel, ReleasePart, Twin, name_of, parts_at, wheels_of
from vbuild.release.pipeline import released, split_request, staged

_LACKING = "no part has it"
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
    compare: Path | None = None,
    on_progress: OnProgress = lambda _target, _step: None,
) -> ReleaseResult:
    """Make one release in *folder* of the parts at *paths*, folders of wheels, and whatever is below these.

    Every wheel is verified; one that does not keep its promises, and what failed in a part, is a failure of the
    release, and so is what the *recipe* has and no part, and of two Pythons' wheels of one name the second. The recipe
    also says what may go above a level, and what is taken out of the wheels: those that change are tested again, where
    this machine has their Python. The page tells what is not as in the report at *compare*. *on_progress* hears of
    each step of each wheel.

    A `VbuildError` is raised, and nothing written, where there are no parts, where one cannot be read or contradicts
    another, or where they are not of one release.
    """
    whole = Recipe.load(recipe) if recipe else None
    if whole:
        split_request(whole)
    parts = parts_at(paths, without=folder)
    name = name_of(parts, expected=whole.name if whole else None)
    known = whole or Recipe(name, Folder(Path()), Matrix(), Path())
    context = ReleaseContext(
        recipe=known,
        targets=whole.targets() if whole else (),
        folder=folder,
        stage=folder,
        on_progress=on_progress,
        split=split_request(known),
        before=previous_report(compare, name),
        source=str(whole.source) if whole else _source(parts),
        inputs=(whole.file,) if whole else (),
        parts=tuple(part.folder for part in parts),
    )
    gathered = wheels_of(parts, name)
    with staged(context) as staged_context:
        gathering = Gathering(staged_context)
        own, others = _told_apart(gathered.wheels, gathering.outcomes(gathered.wheels), name)
        made = [*own, *_twins(gathered.twins)]
        failed = [*_failures(parts, made, folder)]
        missing = _lacking(whole, [*made, *failed]) if whole else ()
        outcomes = _ordered([*made, *others, *failed, *missing], whole)
        stands = _standing((outcome.target.python for outcome in outcomes), known)
        wheels = ReleaseWheels(
            outcomes,
            partial(_tested_again, staged_context, gathering.notes),
            interpreter_of,
            gathering.notes,
            siblings=partial(_siblings, staged_context, stands),
        )
        return released(staged_context, wheels, notes=[*_notes(parts), *strangers(gathered.wheels)])


def _siblings(context: ReleaseContext, stands: Mapping[str, str], plain: Target) -> list[Target]:
    """The targets of the recipe for the Python that *stands* for that of *plain*."""
    python = stands.get(plain.python, context.recipe.matrix.pythons[0])
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
    """What failed in *parts* and no other part *made*, each once, with its log in *folder* where its part has it."""
    there = {_place(outcome.target) for outcome in made}
    for part in parts:
        for absence in part.report.failures if part.report else ():
            with at(part.folder):
                failure = Failure.of_data(absence.data)
            if _place(failure.target) not in there:
                there.add(_place(failure.target))
                log = part.log(absence)
                yield replace(failure, log=_kept(log, folder / LOGS)) if log else failure


def _kept(log: Path, folder: Path) -> Path:
    """*log* in *folder*, instead of an earlier run's."""
    folder.mkdir(exist_ok=True)
    kept = folder / log.name
    if not (kept.exists() and kept.samefile(log)):
        kept.unlink(missing_ok=True)
        linked(log, kept)
    return kept


def _told_apart(
    wheels: Iterable[FoundWheel], made: Iterable[Product | Failure], project: str
) -> tuple[list[Product | Failure], list[Product | Failure]]:
    """What was *made* of *wheels*: of those of *project*, and of others, whose failures are called as theirs."""
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


def _twins(twins: Iterable[Twin]) -> Iterator[Failure]:
    return (Failure.of_twin(target_of(twin.data), twin.name, twin.python) for twin in twins)


def _lacking(recipe: Recipe, outcomes: Sequence[Product | Failure]) -> list[Failure]:
    """The targets of *recipe* that *outcomes* say nothing of."""
    stands = _standing((outcome.target.python for outcome in outcomes), recipe)
    there = {
        _place(replace(outcome.target, python=stands[outcome.target.python]))
        for outcome in outcomes
        if outcome.target.python in stands
    }
    return [Failure(target, _LACKING, None) for target in recipe.targets() if _place(target) not in there]


def _standing(pythons: Iterable[str], recipe: Recipe) -> dict[str, str]:
    """Which of *recipe*'s Pythons each of *pythons* is, one at most: itself, or one called otherwise elsewhere.

    By the way from the recipe, where both are paths; by version; or as nobody else stands for it and it may be.
    """
    own = recipe.matrix.pythons
    there = dict.fromkeys(pythons)
    stands = {python: known for python in there if (known := _same(python, own, recipe.file.parent.absolute()))}
    for python in (python for python in there if python not in stands):
        tag = _tag(python)
        alike = (stands[other] for other in stands if tag and _tag(other) == tag)
        free = (each for each in own if len(own) == 1 or each not in stands.values())
        may_be = (each for each in free if not (tag and _tag(each)))  # by version it would have been found
        if known := next(alike, None) or next(may_be, None):
            stands[python] = known
    return stands


def _same(python: str, own: Sequence[str], folder: Path) -> str | None:
    """The one of *own*, Pythons of a recipe in *folder*, that *python* is for sure."""
    if python in own:
        return python
    ways = {each: each.removeprefix(str(folder)) for each in own if each.startswith(f"{folder}/")}
    behind = [each for each, way in ways.items() if python.endswith(way)]
    if behind:
        return max(behind, key=lambda each: len(ways[each]))
    tag = _tag(python)
    return next((each for each in own if tag and _tag(each) == tag), None)


def _tag(python: str) -> str | None:
    """``cp312`` for whatever says 3.12; None for what says no version."""
    name = python.rpartition("/")[2]
    if match := _TAG.fullmatch(name):
        return match[1]
    match = _VERSION.fullmatch(name)
    short = _SHORT.get(match["name"] or "") if match else None
    return f"{short}{match['major']}{match['minor']}{match['free']}" if match and short else None


def _ordered(outcomes: Iterable[Product | Failure], recipe: Recipe | None) -> list[Product | Failure]:
    """*outcomes* by Python, and those of each in the order of *recipe*, or else the plain wheel first."""
    targets = recipe.targets() if recipe else ()
    places = {_place(target)[1:]: number for number, target in reversed([*enumerate(targets)])}

    def order(outcome: Product | Failure) -> tuple[object, ...]:
        target = outcome.target
        numbers = tuple(map(int, _NUMBER.findall(target.python)))  # 3.9 before 3.11, and cp39 before cp311
        return (numbers, target.python, places.get(_place(target)[1:], len(places)), target.label is not None)

    return sorted(outcomes, key=order)


def _place(target: Target) -> tuple[object, ...]:
    """What tells *target* from all others of its release, whatever its label is hashed to."""
    return (target.python, target.cpu, tuple(sorted(target.properties)), tuple(sorted(target.choices)))


def _notes(parts: Iterable[ReleasePart]) -> Iterator[str]:
    return (note for part in parts if part.report for note in part.report.notes)


def _source(parts: Iterable[ReleasePart]) -> str:
    return next((part.report.source for part in parts if part.report), "")
