"""From the matrix as written to the wheels to build.

axes -> zip -> every combination -> minus exclude -> plus include -> points
each point  -> a labelled target, where its values have properties
each Python -> the plain target: the first point left, at the baseline level
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from vbuild.errors import RecipeError
from vbuild.hardware.cpu import Cpu
from vbuild.recipe.draft import Draft
from vbuild.recipe.matrix import Matrix, Rule, Value
from vbuild.recipe.spelling import baseline, cpu_level
from vbuild.recipe.target import Settings, Target

_MOST = 4096


@dataclass(frozen=True, slots=True)
class _Point:
    """A value for every axis, and the label where the recipe gives one."""

    values: Mapping[str, str]
    label: str | None = None

    def __str__(self) -> str:
        return ", ".join(f"{axis} = {value}" for axis, value in self.values.items())


def evaluated(matrix: Matrix, drafts: Iterable[Draft] = ()) -> tuple[Target, ...]:
    """Every wheel of *matrix* and of the project's own *drafts*, by Python, each Python's plain one first.

    Drafts for another machine cannot be built here and are left out. `RecipeError` where two wheels would be one.
    """
    base = baseline(matrix.cpus[0].machine if matrix.cpus else None)
    points = _points(matrix, base)
    mine = [draft for draft in drafts if draft.cpu is None or draft.cpu.runs(base)]
    targets: list[Target] = []
    for python in matrix.pythons:
        family = [point for point in points if point.values["python"] == python]
        targets += _family(matrix, family, base)
        targets += [_drafted(draft, python, base) for draft in mine]
    _tell_apart(targets)
    return tuple(targets)


def merged(settings: Settings, more: Settings) -> Settings:
    """Both config settings in one: arrays are joined, a string is replaced by a later one."""
    result = dict(settings)
    for key, value in more:
        before = result.get(key, ())
        if isinstance(before, str) and isinstance(value, str):
            result[key] = value
        else:
            result[key] = _array(before) + _array(value) if key in result else value
    return tuple(result.items())


def _array(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value


def _points(matrix: Matrix, base: Cpu) -> list[_Point]:
    combined = [_Point(values) for values in _combinations(matrix)]
    excluded = [[point for point in combined if rule.matches(point.values)] for rule in matrix.exclude]
    for rule, matched in zip(matrix.exclude, excluded, strict=True):
        if not matched:
            raise RecipeError(f"{rule.place}: matches no point of the matrix")
    points = [point for point in combined if not any(point in matched for matched in excluded)]
    for python in matrix.pythons:
        if not any(point.values["python"] == python for point in points):
            raise RecipeError(f"matrix.exclude: leaves nothing for Python {python}; take it out of matrix.python")
    for rule in matrix.include:
        for point in _included(matrix, rule, base):
            if any(point.values == other.values for other in points):
                raise RecipeError(f"{rule.place}: {point} is in the matrix already")
            points.append(point)
    return points


def _combinations(matrix: Matrix) -> Iterable[Mapping[str, str]]:
    """Every combination of the axes' values; zipped axes step together, and stand where the first of them does."""
    names = matrix.names
    groups = {axis: next((group for group in matrix.zipped if axis in group), (axis,)) for axis in names}
    columns = [
        [dict(zip(group, row, strict=True)) for row in zip(*(names[axis] for axis in group), strict=True)]
        for group in dict.fromkeys(groups.values())
    ]
    count = prod(map(len, columns))
    if count > _MOST:
        raise RecipeError(f"matrix: {count} combinations; expected at most {_MOST}")
    for parts in product(*columns):
        values = {axis: value for part in parts for axis, value in part.items()}
        yield {axis: values[axis] for axis in names}


def _included(matrix: Matrix, rule: Rule, base: Cpu) -> Iterable[_Point]:
    """The points of an ``include`` entry: for each Python it does not choose from, the first value of other axes."""
    given = {axis: values[0] for axis, values in rule.values}
    first = {axis: str(base) if axis == "cpu" else values[0] for axis, values in matrix.names.items()}
    for python in [given["python"]] if "python" in given else matrix.pythons:
        yield _Point({**first, **given, "python": python}, rule.label)


def _family(matrix: Matrix, points: list[_Point], base: Cpu) -> Iterable[Target]:
    """The wheels of one Python: the plain one, then one for every point that has properties."""
    lowest = [point for point in points if point.values.get("cpu", str(base)) == str(base)]
    chosen = (lowest or points)[0]
    plain = _target(matrix, chosen, base)
    yield replace(plain, label=None, properties=(), cpu=base)
    for point in points:
        target = _target(matrix, point, base)
        if target.properties:
            yield target
        elif point is not chosen:
            raise RecipeError(
                f"matrix: {point}: no property tells this wheel from the plain one; "
                "give a value properties, or take the point out with matrix.exclude"
            )


def _target(matrix: Matrix, point: _Point, base: Cpu) -> Target:
    cpu = cpu_level(point.values["cpu"]) if "cpu" in point.values else base
    values = [axis.value(point.values[axis.name]) for axis in matrix.axes]
    marked = [value for value in values if value.properties]
    level = [] if cpu.is_baseline else [cpu]
    parts = [level.label for level in level] + [value.name for value in marked]
    properties = [level.variant_property for level in level] + [text for value in marked for text in value.properties]
    return Target(
        label=point.label or "_".join(parts),
        python=point.values["python"],
        cpu=cpu,
        properties=tuple(dict.fromkeys(properties)),
        choices=tuple((axis.name, point.values[axis.name]) for axis in matrix.axes),
        env=_env(values, point),
        config_settings=_settings(values),
    )


def _env(values: Iterable[Value], point: _Point) -> tuple[tuple[str, str], ...]:
    env: dict[str, str] = {}
    for value in values:
        for name, text in value.env:
            if env.setdefault(name, text) != text:
                raise RecipeError(f"matrix: {point}: two values set {name}, to {env[name]!r} and to {text!r}")
    return tuple(env.items())


def _settings(values: Iterable[Value]) -> Settings:
    settings: Settings = ()
    for value in values:
        settings = merged(settings, value.config_settings)
    return settings


def _drafted(draft: Draft, python: str, base: Cpu) -> Target:
    # the draft leaves the difference between variants to the build backend, so each is a build of its own
    return Target(draft.label, python, draft.cpu or base, draft.properties, (("variant", draft.label),))


def _tell_apart(targets: Iterable[Target]) -> None:
    """Refuse a label of two wheels of one Python, and labels and property sets that are not one to one (PEP 825)."""
    seen: set[tuple[str, str | None]] = set()
    properties: dict[str, frozenset[str]] = {}
    labels: dict[frozenset[str], str] = {}
    for target in targets:
        if (target.python, target.label) in seen:
            raise RecipeError(
                f"matrix: two wheels of Python {target.python} are labelled {target}; name one by include"
            )
        seen.add((target.python, target.label))
        if target.label is None:
            continue
        mine = frozenset(target.properties)
        if properties.setdefault(target.label, mine) != mine:
            raise RecipeError(f"matrix: label {target} stands for different properties; expected one set of them")
        if labels.setdefault(mine, target.label) != target.label:
            raise RecipeError(f"matrix: labels {labels[mine]} and {target} stand for the same properties")
