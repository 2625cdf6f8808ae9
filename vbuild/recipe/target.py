"""Targets, each of which is one wheel to build, and how they come from a recipe's matrix.

    axes -> every combination -> minus exclude -> points
    each point  -> a labelled target, if its values have properties
    each Python -> the plain target: the first point left, at the lowest level, for all its GPUs or for none

Points that differ in nothing but their GPUs, of one toolkit, share a build that is compiled for all of these.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from itertools import product
from math import prod

from msgspec import Struct
from msgspec.structs import replace

from vbuild.config.table import Env, Settings
from vbuild.errors import RecipeError, at
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.gpu import GpuList, GpuRequest
from vbuild.recipe.compiling import Compress, CudaBuild, Strategy, ToolkitSpec, check_together
from vbuild.recipe.matrix import (
    NONE,
    AxisValue,
    GpuGroup,
    Matrix,
    MatrixEntry,
    Plain,
    local_label,
    releases_of,
)
from vbuild.recipe.spelling import baseline

_MOST = 4096  # combinations

_Build = tuple[ToolkitSpec | str | None, ...]


class Target(Struct, frozen=True):
    """A wheel for one Python and for *cpu* and above, under *label*, or plain if that is None.

    It has the code for *gpus* of a build with *cuda*, or all. *requires* are the projects, with versions, that it is
    built against, *local* is what its own version says of them.
    """

    label: str | None
    python: str
    cpu: Cpu
    properties: tuple[str, ...] = ()
    choices: tuple[tuple[str, str], ...] = ()
    env: Env = ()
    config_settings: Settings = ()
    cuda: CudaBuild | None = None
    gpus: GpuList | None = None
    requires: tuple[tuple[str, str], ...] = ()
    local: str = ""

    def __str__(self) -> str:
        return titled(self.label, self.local)

    def is_level_of(self, plain: "Target") -> bool:
        """Whether it differs from *plain*, of the same Python, in a higher CPU level and nothing else."""
        code, other = (replace(target, label=None, cpu=plain.cpu, properties=()) for target in (self, plain))
        if self.cpu.extras or self.cpu.machine != plain.cpu.machine:
            return False
        return code == other and self.cpu.rank > plain.cpu.rank

    @property
    def separate(self) -> "Target":
        if self.cuda is None or self.gpus is None:
            return self
        return replace(self, cuda=CudaBuild(self.cuda.toolkit, self.gpus), gpus=None)

    @property
    def asks_for_cpu(self) -> bool:
        return Cpu.of_properties(self.properties) is not None

    @property
    def build_key(self) -> tuple[str, ...]:
        """What the compiled code depends on: targets with one key are one build under several names."""
        cuda = (self.cuda.key,) if self.cuda else ()
        choices = (f"{axis}={value}" for axis, value in (*self.choices, *self.requires))
        return (self.python, str(self.cpu), *choices, *cuda)


def titled(label: str | None, local: str) -> str:
    """What people call a wheel: ``x86_64_v3``, ``plain+torch2.15``."""
    return "+".join(filter(None, [label or "plain", local]))


class _Point(Struct, frozen=True):
    """A value for every axis."""

    values: Mapping[str, str]

    def __str__(self) -> str:
        return ", ".join(f"{axis} = {value}" for axis, value in self.values.items())


def evaluated(matrix: Matrix, compress: Compress = Compress.DEFAULT) -> tuple[Target, ...]:
    """Every wheel of *matrix*, by Python, each Python's plain one first."""
    base = matrix.lowest or baseline(matrix.cpus[0].machine if matrix.cpus else None)
    points = _points(matrix)
    groups = _groups(matrix, compress) if matrix.cuda else {}
    values = {(axis.name, value.name): value for axis in matrix.axes for value in axis.values}
    families: dict[tuple[str, ...], list[_Point]] = defaultdict(list)
    for point in points:
        families[
            point.values["python"], *(point.values[requirement.project] for requirement in matrix.requires)
        ].append(point)
    targets: list[Target] = []
    for (_, *versions), members in sorted(families.items(), key=lambda item: matrix.pythons.index(item[0][0])):
        requires = tuple(
            (requirement.project, version) for requirement, version in zip(matrix.requires, versions, strict=True)
        )
        family_targets = [*_Family(matrix, base, groups, values, tuple(members)).targets()]
        if matrix.plain_requires:
            targets += _variants_for(requires, family_targets, has_plain=local_label(requires) == matrix.plain_requires)
        else:
            targets += [replace(target, requires=requires, local=local_label(requires)) for target in family_targets]
    _tell_apart(targets)
    if matrix.plain is Plain.HWCAPS:
        _check_levels(targets)
    return tuple(targets)


def _variants_for(
    requires: tuple[tuple[str, str], ...], targets: Iterable[Target], *, has_plain: bool
) -> Iterator[Target]:
    """*targets* as variants for *requires* (PEP 850, ABI dependencies), and the plain one as such if it *has_plain*."""
    properties = tuple(
        f"abi_dependency :: {project.replace('-', '_')} :: {release}"
        for project, value in requires
        for release in releases_of(value)
    )
    for target in targets:
        if target.label is None and has_plain:
            yield replace(target, requires=requires)
        label = "_".join(filter(None, [local_label(requires), target.label]))
        yield replace(target, label=label, properties=(*properties, *target.properties), requires=requires)


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


def _points(matrix: Matrix) -> list[_Point]:
    combined = [_Point(values) for values in _combinations(matrix)]
    for rule in matrix.exclude:
        if not any(rule.matches(point.values) for point in combined):
            raise RecipeError(f"{rule.place}: matches no point of the matrix: remove it, or correct a value")
    points = [point for point in combined if not any(rule.matches(point.values) for rule in matrix.exclude)]
    left = {point.values["python"] for point in points}
    for python in matrix.pythons:
        if python not in left:
            raise RecipeError(f"matrix.exclude: leaves nothing for Python {python}; take it out of matrix.python")
    return points


def _combinations(matrix: Matrix) -> Iterable[Mapping[str, str]]:
    names = matrix.names
    count = prod(map(len, names.values()))
    if count > _MOST:
        raise RecipeError(f"matrix: {count} combinations; expected at most {_MOST}: split them between recipes")
    return (dict(zip(names, values, strict=True)) for values in product(*names.values()))


class _Gpus(Struct, frozen=True):
    entry: MatrixEntry
    group: GpuGroup
    value: AxisValue


def _groups(matrix: Matrix, compress: Compress) -> Mapping[str, _Gpus]:
    groups: dict[str, _Gpus] = {}
    labels: dict[frozenset[str], str] = {}
    for entry, group in ((entry_of_group, group) for entry_of_group in matrix.cuda for group in entry_of_group.groups):
        properties = group.properties(entry.toolkit.version, compress)
        if (first := labels.setdefault(frozenset(properties), group.label)) != group.label:
            fault = f"has the properties of {first}, {', '.join(properties)}"
            raise RecipeError(f"{group.place}: {fault}; expected other GPUs, or one group")
        value = AxisValue(group.label, properties, entry.env, entry.config_settings)
        groups[group.label] = _Gpus(entry, group, value)
    return groups


class _Family(Struct, frozen=True):
    matrix: Matrix
    base: Cpu
    groups: Mapping[str, _Gpus]
    values: Mapping[tuple[str, str], AxisValue]
    points: tuple[_Point, ...]

    def targets(self) -> Iterator[Target]:
        """The plain wheel, then one for every point that has properties."""
        points, without_cuda = self.points, bool(self.groups) and self.matrix.plain is Plain.CPU
        if without_cuda:
            points = tuple(point for point in points if point.values["cuda"] == NONE) or points
        chosen = next((point for point in points if self._at_base(point) == point), points[0])
        plain = self._at_base(chosen)
        if without_cuda:
            plain = replace(plain, values={**plain.values, "cuda": NONE})
        archs = self._archs(plain) if self.groups else {}
        cuda = self._shared(plain, archs) if self.groups else None
        yield replace(self._target(plain), label=None, properties=(), cuda=cuda)
        for point in self.points:
            target = self._target(point)
            if target.properties:
                yield self._with_gpus(target, point, archs) if self.groups else target
            elif point is not chosen:
                raise RecipeError(
                    f"matrix: {point}: no property tells this wheel from the plain one; "
                    "give a value properties, or take the point out with matrix.exclude"
                )

    def _at_base(self, point: _Point) -> _Point:
        return replace(point, values={**point.values, "cpu": str(self.base)}) if "cpu" in point.values else point

    def _gpus(self, point: _Point) -> _Gpus | None:
        return self.groups.get(point.values.get("cuda", NONE))

    def _build(self, point: _Point) -> _Build:
        gpus = self._gpus(point)
        choices = (point.values[axis.name] for axis in self.matrix.axes)
        return gpus.entry.toolkit if gpus else None, point.values.get("cpu"), *choices

    def _archs(self, plain: _Point) -> Mapping[_Build, GpuList]:
        """The GPUs of each shared build; the plain wheel's also has those of higher levels only."""
        requests: dict[_Build, list[GpuRequest]] = defaultdict(list)
        for point in self.points:
            if gpus := self._gpus(point):
                requests[self._build(point)] += gpus.group.gpus
                if self._build(self._at_base(point)) == self._build(plain):
                    requests[self._build(plain)] += gpus.group.gpus
        return {build: GpuList.of(asked) for build, asked in requests.items()}

    def _shared(self, point: _Point, archs: Mapping[_Build, GpuList]) -> CudaBuild | None:
        gpus = self._gpus(point)
        return _cuda_build(gpus.entry, archs[self._build(point)]) if gpus else None

    def _with_gpus(self, target: Target, point: _Point, archs: Mapping[_Build, GpuList]) -> Target:
        gpus = self._gpus(point)
        if gpus is None:
            return target
        if gpus.entry.strategy is Strategy.SEPARATE or not gpus.group.gpus.requests:
            return replace(target, cuda=_cuda_build(gpus.entry, gpus.group.gpus))
        return replace(target, cuda=self._shared(point, archs), gpus=gpus.group.gpus)

    def _target(self, point: _Point) -> Target:
        cpu = Cpu.parse(point.values["cpu"]) if "cpu" in point.values else self.base
        gpus = self._gpus(point)
        free = [self.values[axis.name, point.values[axis.name]] for axis in self.matrix.axes]
        values = [gpus.value, *free] if gpus else free
        marked = [value for value in values if value.properties]
        levels = [] if cpu == self.base else [cpu]
        parts = [level.label for level in levels] + [value.name for value in marked]
        properties = [text for level in levels for text in level.variant_properties]
        properties += [text for value in marked for text in value.properties]
        env: dict[str, str] = {}
        for name, text in (variable for value in values for variable in value.env):
            if env.setdefault(name, text) != text:
                raise RecipeError(f"matrix: {point}: two values set {name}, to {env[name]!r} and to {text!r}")
        return Target(
            label="_".join(parts),
            python=point.values["python"],
            cpu=cpu,
            properties=tuple(dict.fromkeys(properties)),
            choices=tuple((axis.name, point.values[axis.name]) for axis in self.matrix.axes),
            env=tuple(env.items()),
            config_settings=reduce(merged, (value.config_settings for value in values), ()),
        )


def _cuda_build(entry: MatrixEntry, archs: GpuList) -> CudaBuild:
    with at(entry.place):
        check_together(archs)
    return CudaBuild(entry.toolkit, archs)


def _check_levels(targets: Iterable[Target]) -> None:
    ordered = tuple(targets)
    for plain in (target for target in ordered if target.label is None):
        if not any(other.is_level_of(plain) for other in ordered):
            raise RecipeError(
                f"matrix.plain: 'hwcaps' has nothing to join for Python {plain.python}; expected a point that differs "
                "from the plain wheel's in its CPU level alone"
            )


def _tell_apart(targets: Iterable[Target]) -> None:
    """Refuse a label of two wheels of one Python, and labels and property sets that are not one to one (PEP 825)."""
    seen: set[tuple[object, ...]] = set()
    properties: dict[str, frozenset[str]] = {}
    labels: dict[frozenset[str], str] = {}
    for target in targets:
        if (target.python, target.label, target.requires) in seen:
            raise RecipeError(f"matrix: two wheels of Python {target.python} are labelled {target}; rename a value")
        seen.add((target.python, target.label, target.requires))
        if target.label is None:
            continue
        mine = frozenset(target.properties)
        if properties.setdefault(target.label, mine) != mine:
            raise RecipeError(
                f"matrix: label {target} stands for different properties; expected one set: rename a value"
            )
        if labels.setdefault(mine, target.label) != target.label:
            fault = f"labels {labels[mine]} and {target} stand for the same properties"
            raise RecipeError(f"matrix: {fault}; leave one out with matrix.exclude")
