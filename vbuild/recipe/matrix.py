"""The matrix of a recipe as written: its axes, and the rules that put points together or take them out.

An axis is a name and its values; ``cpu``, ``cuda`` and ``python`` are always axes, the others are free: each of their
values brings variant properties, and environment variables and config settings for its builds.
"""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from vbuild.errors import RecipeError, at
from vbuild.hardware.cpu import Cpu
from vbuild.recipe.groups import NONE, Entry, read_cuda
from vbuild.recipe.spelling import cpu_level, free_property, interpreter, label, variables
from vbuild.table import Setting, Table

T = TypeVar("T")

_AXIS = re.compile(r"[a-z0-9_]+")
_TAKEN = ("cpu", "cuda", "python", "label")


class Plain(StrEnum):
    """What the plain wheel is: of a matrix with GPUs the build for all of them, or one without CUDA.

    Of a matrix with CPU levels it may be all of their builds joined: glibc loads the copy of the best level.
    """

    CUDA = "cuda"
    CPU = "cpu"
    HWCAPS = "hwcaps"


@dataclass(frozen=True, slots=True)
class Value:
    """One value of a free axis: the properties a wheel built with it has, and what its build is given."""

    name: str
    properties: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    config_settings: tuple[tuple[str, Setting], ...] = ()


@dataclass(frozen=True, slots=True)
class Axis:
    """A free axis and its values in the order written; the first is the plain wheel's."""

    name: str
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """An entry of ``exclude`` or ``include``: the axes it speaks of, each with the values it takes there."""

    place: str
    values: tuple[tuple[str, tuple[str, ...]], ...]
    label: str | None = None

    def matches(self, point: Mapping[str, str]) -> bool:
        return all(point[axis] in names for axis, names in self.values)


@dataclass(frozen=True, slots=True)
class Matrix:
    """The axes and the rules between their values; ``cpus`` is empty where no level was asked for."""

    cpus: tuple[Cpu, ...] = ()
    pythons: tuple[str, ...] = (sys.executable,)
    axes: tuple[Axis, ...] = ()
    zipped: tuple[tuple[str, ...], ...] = ()
    exclude: tuple[Rule, ...] = ()
    include: tuple[Rule, ...] = ()
    priority: tuple[str, ...] = ()
    hash_labels: bool = False
    cuda: tuple[Entry, ...] = ()
    plain: Plain = Plain.CUDA

    @property
    def names(self) -> dict[str, tuple[str, ...]]:
        """The values' names by axis, ``cpu`` and ``cuda`` first as in a label, ``python`` last."""
        cpus = {"cpu": tuple(str(cpu) for cpu in self.cpus)} if self.cpus else {}
        without = (NONE,) if self.plain is Plain.CPU else ()
        groups = (group.label for entry in self.cuda for group in entry.groups)
        cuda = {"cuda": (*without, *groups)} if self.cuda else {}
        free = {axis.name: tuple(value.name for value in axis.values) for axis in self.axes}
        return {**cpus, **cuda, **free, "python": self.pythons}


def read_matrix(table: Table, folder: Path) -> Matrix:
    """The matrix a ``[matrix]`` *table* describes; interpreters given by path are looked for from *folder*."""
    with table.optional("axes") as axes:
        matrix = Matrix(
            cpus=_cpus(table),
            pythons=_pythons(table, folder),
            axes=tuple(_axis(axes, name) for name in axes),
            priority=_unique(table, "priority", table.texts("priority", ())),
            hash_labels=table.one_of("labels", ("names", "hash")) == "hash",
            cuda=read_cuda(table, folder),
            plain=Plain(table.one_of("plain", Plain)),
        )
    if "plain" in table and not matrix.cuda and matrix.plain is not Plain.HWCAPS:
        raise table.refuse("plain", "would have no effect without matrix.cuda")
    rules = _Rules(matrix.names, folder)
    matrix = replace(
        matrix,
        zipped=rules.zipped(table),
        exclude=tuple(rules.exclusion(entry) for entry in table.tables("exclude")),
        include=tuple(rules.inclusion(entry) for entry in table.tables("include")),
    )
    if matrix.plain is Plain.HWCAPS:
        _check_joinable(table, matrix)
    return matrix


def _check_joinable(table: Table, matrix: Matrix) -> None:
    """Refuse ``plain = "hwcaps"`` where there are no CPU levels that glibc could choose from, or GPUs besides."""
    if matrix.cuda:
        raise table.refuse("plain", "'hwcaps' is for CPU levels alone; with matrix.cuda expected 'cuda' or 'cpu'")
    if matrix.cpus and matrix.cpus[0].machine != "x86_64":
        raise table.refuse("plain", f"'hwcaps' needs levels that glibc knows; it has none for {matrix.cpus[0].machine}")
    included = (name for rule in matrix.include for axis, names in rule.values if axis == "cpu" for name in names)
    if all(cpu.is_baseline for cpu in (*matrix.cpus, *map(cpu_level, included))):
        raise table.refuse("plain", "'hwcaps' joins builds for CPU levels; expected some above x86-64 in matrix.cpu")


def _cpus(table: Table) -> tuple[Cpu, ...]:
    if table.raw("cpu") is None:
        return ()
    cpus = _listed(table, "cpu", table.parsed_texts("cpu", cpu_level))
    for cpu in cpus:
        if cpu.machine != cpus[0].machine:
            raise table.refuse("cpu", f"{cpus[0]} and {cpu} are of different machines; expected levels of one")
    return cpus


def _pythons(table: Table, folder: Path) -> tuple[str, ...]:
    if table.raw("python") is None:
        return (sys.executable,)
    return _listed(table, "python", table.parsed_texts("python", lambda text: interpreter(text, folder)))


def _axis(axes: Table, name: str) -> Axis:
    if name in _TAKEN or not _AXIS.fullmatch(name):
        raise axes.refuse(name, f"no name for a free axis; expected a-z, 0-9 and _, and none of {', '.join(_TAKEN)}")
    with axes.table(name) as values:
        axis = Axis(name, tuple(_value(values, value) for value in values))
        if not axis.values:
            raise values.wrong("has no values")
        return axis


def _value(axis: Table, name: str) -> Value:
    with at(axis.place(name)):
        label(name)
    with axis.table(name) as value:
        properties = value.parsed_texts("properties", free_property, ())
        return Value(
            name,
            _unique(value, "properties", properties),
            variables(value, "env"),
            value.settings("config-settings"),
        )


def _listed(table: Table, key: str, values: tuple[T, ...]) -> tuple[T, ...]:
    if not values:
        raise table.refuse(key, "empty; name a value, or leave the key out")
    return _unique(table, key, values)


def _unique(table: Table, key: str, values: tuple[T, ...]) -> tuple[T, ...]:
    for index, value in enumerate(values):
        if value in values[:index]:
            raise table.refuse(f"{key}[{index}]", f"{str(value)!r} is there twice")
    return values


@dataclass(frozen=True, slots=True)
class _Rules:
    """The reader of the rules, which knows the values that the axes have."""

    names: Mapping[str, tuple[str, ...]]
    folder: Path

    def zipped(self, table: Table) -> tuple[tuple[str, ...], ...]:
        groups = table.text_arrays("zip")
        seen: set[str] = set()
        for index, group in enumerate(groups):
            place = f"zip[{index}]"
            for axis in group:
                self._check(table, place, axis)
                if axis in seen:
                    raise table.refuse(place, f"axis {axis!r} is zipped twice")
                seen.add(axis)
            if len({len(self.names[axis]) for axis in group}) != 1:
                found = ", ".join(f"{axis} has {len(self.names[axis])}" for axis in group) or "no axes"
                raise table.refuse(place, f"found {found}; expected axes with equally many values")
        return groups

    def exclusion(self, entry: Table) -> Rule:
        if not list(entry):
            raise entry.wrong("names no axis")
        return Rule(entry.here, tuple((axis, self._values(entry, axis)) for axis in entry))

    def inclusion(self, entry: Table) -> Rule:
        named = entry.optional_parsed("label", label)
        values = tuple((axis, (self._one(entry, axis),)) for axis in entry if axis != "label")
        if not values:
            raise entry.wrong("names no axis")
        return Rule(entry.here, values, named)

    def _values(self, entry: Table, axis: str) -> tuple[str, ...]:
        self._check(entry, axis, axis)
        texts = entry.choices(axis)
        with at(entry.place(axis)):
            values = tuple(self._spelled(axis, text) for text in texts)
        for value in values:
            if value not in self.names[axis]:
                raise entry.refuse(axis, f"no value {value!r}; there are {', '.join(self.names[axis])}")
        return values

    def _one(self, entry: Table, axis: str) -> str:
        self._check(entry, axis, axis)
        text = entry.text(axis)
        if axis != "cpu":
            return self._values(entry, axis)[0]
        with at(entry.place(axis)):  # a level the others skip is what include is for
            cpu, first = cpu_level(text), cpu_level(self.names["cpu"][0])
            if cpu.machine != first.machine:
                raise RecipeError(f"{cpu} is of another machine than {first}")
            return str(cpu)

    def _spelled(self, axis: str, text: str) -> str:
        """*text* as the axis spells it, so that two spellings of one value are one."""
        match axis:
            case "cpu":
                return str(cpu_level(text))
            case "python":
                return interpreter(text, self.folder)
            case _:
                return text

    def _check(self, table: Table, key: str, axis: str) -> None:
        if axis not in self.names:
            raise table.refuse(key, f"no axis {axis!r}; there are {', '.join(self.names)}")
