"""The matrix of a recipe as written: its axes, and the rules that put points together or take them out.

``cpu``, ``cuda`` and ``python`` are always axes, the others are free: each of their values brings variant properties,
and environment variables and config settings for its builds. One of ``cuda`` is a group of GPUs, and claims:

    nvidia :: sm_arch :: 90_real                      machine code for GPUs of 9.0 is asked for
    nvidia :: sm_arch :: 90_virtual                   PTX alone is, of M.0: GPUs ask for no other
    nvidia :: cuda_version_lower_bound :: 13.0        drivers from the toolkit's major version on; all that is claimed
                                                      without ``gpus``, for code that calls CUDA's libraries alone

A driver cannot compile PTX newer than itself, nor read zstd before CUDA 12.4; either raises the lower bound.
https://github.com/wheelnext/nvidia-variant-provider
"""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise, product
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace
from packaging.utils import canonicalize_name
from packaging.version import Version

from vbuild.config.table import Env, Settings, Table
from vbuild.errors import HardwareError, RecipeError, at
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.driver import ZSTD_SINCE, Dotted
from vbuild.hardware.gpu import GpuList
from vbuild.recipe.compiling import Compress, Strategy, ToolkitSpec, gpu_list
from vbuild.recipe.source import ToolkitLibrary
from vbuild.recipe.spelling import free_property, interpreter, label, located, variables

NAMESPACE = "nvidia"

# the value of the axis cuda for builds without CUDA
NONE = "none"
# the value of ``plain`` for the project's own sdist in place of a plain wheel
SDIST = "sdist"

_VERSION = re.compile(r"\d{1,2}\.\d{1,2}", re.ASCII)
_ZSTD = frozenset({Compress.SIZE, Compress.BALANCE})


class GpuGroup(Struct, frozen=True):
    """The GPUs of one variant wheel, under its label."""

    label: str
    gpus: GpuList
    place: str = ""

    def properties(self, toolkit: Dotted, compress: Compress) -> tuple[str, ...]:
        """What a wheel for these GPUs claims, built by *toolkit* with *compress*."""
        if not self.gpus.requests:
            return (f"{NAMESPACE} :: cuda_version_lower_bound :: {toolkit.major}.0",)
        real = [f"{device.number}_real" for device in self.gpus.native]
        # PTX of M.0 without machine code: GPUs that ask for M0_virtual ask for M0_real too
        ptx = {request.device for request in self.gpus if request.ptx}.difference(self.gpus.native)
        virtual = [f"{number}_virtual" for number in sorted(device.number for device in ptx) if number % 10 == 0]
        if not real and not virtual:
            fault = f"{self.gpus} is PTX alone, and GPUs ask for PTX of M.0 only, as in 80_virtual"
            raise RecipeError(f"{self.place}: {fault}; expected machine code too, as in {self.gpus.requests[0].arch}")
        bound = toolkit if virtual else Dotted(toolkit.major, 0)
        if compress in _ZSTD:
            bound = max(bound, ZSTD_SINCE)
        values = (*(f"sm_arch :: {value}" for value in real + virtual), f"cuda_version_lower_bound :: {bound}")
        return tuple(f"{NAMESPACE} :: {value}" for value in values)


class MatrixEntry(Struct, frozen=True):
    toolkit: ToolkitSpec
    groups: tuple[GpuGroup, ...]
    strategy: Strategy = Strategy.FAT
    env: Env = ()
    config_settings: Settings = ()
    place: str = ""


def read_cuda(matrix: Table, folder: Path) -> tuple[MatrixEntry, ...]:
    """The toolkits of the key ``cuda``; `RecipeError` for GPUs that a toolkit does not compile for."""
    entries = tuple(_entry(table, folder) for table in matrix.tables("cuda"))
    if not entries:
        raise matrix.refuse("cuda", "empty; name a toolkit, or leave the key out")
    _tell_apart(entries)
    return entries


def _entry(table: Table, folder: Path) -> MatrixEntry:
    toolkit = _toolkit(table, folder)
    if "gpus" in table:
        groups = tuple(_groups(table, toolkit.version))
    else:
        groups = (GpuGroup(f"cu{toolkit.version.major}", GpuList(()), table.here),)
    entry = MatrixEntry(
        toolkit,
        groups,
        Strategy(table.one_of("strategy", Strategy)),
        variables(table, "env"),
        table.settings("config-settings"),
        table.here,
    )
    table.finish()
    return entry


def _toolkit(entry: Table, folder: Path) -> ToolkitSpec:
    libraries = _libraries(entry)
    texts = tuple(map(str, libraries))
    if not isinstance(entry.raw("toolkit"), dict):
        return ToolkitSpec(entry.parsed("toolkit", _version), None, texts, has_kernels="gpus" in entry)
    with entry.table("toolkit") as keys:
        path = keys.parsed("path", lambda text: located(text, folder))
        if not path.is_dir():
            raise keys.refuse("path", f"no folder {keys.text('path')!r}; paths start where the recipe stands")
        for index, library in enumerate(libraries):
            if library.hashes:
                fault = "a hash is of a wheel of the package index, and this toolkit is an installed one"
                raise entry.refuse(f"libraries[{index}]", f"{fault}; expected {library.release}")
        return ToolkitSpec(keys.parsed("version", _version), path.resolve(), texts, has_kernels="gpus" in entry)


def _version(text: str) -> Dotted:
    if not _VERSION.fullmatch(text):
        raise RecipeError(f"{text!r} is not a version of CUDA; expected two numbers with a dot, as in '13.0'")
    return Dotted.parse(text)


def _libraries(entry: Table) -> tuple[ToolkitLibrary, ...]:
    libraries = entry.parsed_texts("libraries", ToolkitLibrary.parse, ())
    names = [library.name for library in libraries]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise entry.refuse(f"libraries[{index}]", f"{name!r} is there twice")
    return libraries


def _groups(entry: Table, toolkit: Dotted) -> Iterator[GpuGroup]:
    with entry.table("gpus") as labels:
        if not list(labels):
            raise labels.wrong("has no groups; expected labels with their GPUs, as in sm90 = '90'")
        for name in labels:
            place, gpus_text = labels.place(name), labels.setting(name)
            with at(place):
                if label(name) == NONE:
                    raise RecipeError(f"{NONE!r} stands for builds without CUDA; expected another label")
                gpus = gpu_list(gpus_text, (toolkit,))
            yield GpuGroup(name, gpus, place)


def _tell_apart(entries: tuple[MatrixEntry, ...]) -> None:
    toolkits: dict[tuple[Dotted, frozenset[str]], str] = {}
    labels: dict[str, str] = {}
    for entry in entries:
        toolkit = (entry.toolkit.version, frozenset(entry.toolkit.libraries))
        if (first := toolkits.setdefault(toolkit, entry.place)) != entry.place:
            raise RecipeError(f"{entry.place}: has the toolkit and the libraries of {first}; expected its groups there")
        for group in entry.groups:
            if (first := labels.setdefault(group.label, group.place)) != group.place:
                if not group.gpus.requests:
                    fault = f"{first} is for CUDA {entry.toolkit.version.major}, too, with the same drivers"
                    raise RecipeError(f"{group.place}: {fault}; expected one of each major version")
                raise RecipeError(f"{group.place}: {first} is a group of this label; expected another")


_AXIS = re.compile(r"[a-z0-9_]+")
_TAKEN = ("cpu", "cuda", "python", "label")
_PROJECT = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_VERSIONS = re.compile(r"(0|[1-9]\d{0,5})(\.(0|[1-9]\d{0,5})){0,3}", re.ASCII)


class Plain(StrEnum):
    """The plain wheel: in a matrix with GPUs the build for all of them, or one without CUDA.

    It may join the builds of all CPU levels: glibc loads the copy of the best.
    """

    CUDA = "cuda"
    CPU = "cpu"
    HWCAPS = "hwcaps"


class AxisValue(Struct, frozen=True):
    """A value of a free axis: the properties of its wheels, and what their build is given."""

    name: str
    properties: tuple[str, ...] = ()
    env: Env = ()
    config_settings: Settings = ()


class Axis(Struct, frozen=True):
    """A free axis and its values; the first is the plain wheel's."""

    name: str
    values: tuple[AxisValue, ...]


class RequiredVersions(Struct, frozen=True):
    """All wheels of the matrix are built against each of these *versions*."""

    project: str
    versions: tuple[str, ...]


class MatrixRule(Struct, frozen=True):
    """An entry of ``exclude``: axes, each with the values it takes out."""

    place: str
    values: tuple[tuple[str, tuple[str, ...]], ...]

    def matches(self, point: Mapping[str, str]) -> bool:
        return all(point[axis] in names for axis, names in self.values)


class Matrix(Struct, frozen=True):
    """The axes and the rules between their values.

    *lowest* is the level of the plain wheel, or None for the baseline.
    """

    cpus: tuple[Cpu, ...] = ()
    pythons: tuple[str, ...] = (sys.executable,)
    axes: tuple[Axis, ...] = ()
    exclude: tuple[MatrixRule, ...] = ()
    priority: tuple[str, ...] = ()
    cuda: tuple[MatrixEntry, ...] = ()
    plain: Plain = Plain.CUDA
    lowest: Cpu | None = None
    requires: tuple[RequiredVersions, ...] = ()
    # where each value of *requires* makes variants: the local version label of the plain wheel's, NONE or SDIST
    plain_requires: str | None = None

    @property
    def names(self) -> dict[str, tuple[str, ...]]:
        """The values' names by axis: ``cpu`` and ``cuda`` first, ``python`` last."""
        cpus = {"cpu": tuple(str(cpu) for cpu in self.cpus)} if self.cpus else {}
        without = (NONE,) if self.plain is Plain.CPU else ()
        groups = (group.label for entry in self.cuda for group in entry.groups)
        cuda = {"cuda": (*without, *groups)} if self.cuda else {}
        free = {axis.name: tuple(value.name for value in axis.values) for axis in self.axes}
        required = {requirement.project: requirement.versions for requirement in self.requires}
        return {**cpus, **cuda, **free, **required, "python": self.pythons}


def read_matrix(table: Table, folder: Path) -> Matrix:
    with table.table("axes", optional=True) as axes:
        required = tuple(_required(table, axes))
        plain_requires = _plain_requires(table, required)
        plain, lowest = (Plain.CUDA, None) if table.raw("plain") == plain_requires else _plain(table)
        matrix = Matrix(
            cpus=table.parsed_texts("cpu", Cpu.parse, (), unique=True),
            pythons=table.parsed_texts("python", lambda text: interpreter(text, folder), (), unique=True)
            or (sys.executable,),
            axes=tuple(_axis(axes, name) for name in axes),
            priority=table.parsed_texts("priority", str, (), unique=True),
            cuda=read_cuda(table, folder) if table.raw("cuda") is not None else (),
            plain=plain,
            lowest=lowest,
            requires=required,
            plain_requires=plain_requires,
        )
    for axis in ("cpu", "python"):
        if table.raw(axis) == []:
            raise table.refuse(axis, "empty; name a value, or leave the key out")
    for cpu in matrix.cpus:
        if cpu.machine != matrix.cpus[0].machine:
            fault = f"{matrix.cpus[0]} and {cpu} are of different machines; expected levels of one"
            raise table.refuse("cpu", fault)
    if table.raw("plain") in {Plain.CUDA.value, Plain.CPU.value} and not matrix.cuda:
        raise table.refuse("plain", f"{str(plain)!r} would have no effect without matrix.cuda: remove it")
    rules = tuple(_exclusion(entry, matrix.names, folder) for entry in table.tables("exclude"))
    matrix = replace(matrix, exclude=rules)
    if matrix.plain is Plain.HWCAPS:
        _check_joinable(table, matrix)
    if lowest:
        _check_higher(table, matrix, lowest)
    return matrix


_ONE = f"expected {', '.join(map(repr, map(str, Plain)))}, or a CPU level as in 'x86-64-v2'"


def _plain(table: Table) -> tuple[Plain, Cpu | None]:
    if isinstance(table.raw("plain"), list):
        raise table.refuse("plain", f"{_ONE}, got an array")
    text = table.text("plain", Plain.CUDA)
    if text in set(Plain):
        return Plain(text), None
    try:
        cpu = Cpu.parse(text)
    except HardwareError as error:
        raise table.refuse("plain", f"found {text!r}; {_ONE}") from error
    if cpu.extras:
        raise table.refuse("plain", f"{text!r}: expected a level alone, {cpu.march!r}: features are for variants")
    return Plain.CUDA, None if cpu.is_baseline else cpu


def _check_higher(table: Table, matrix: Matrix, lowest: Cpu) -> None:
    for index, cpu in enumerate(matrix.cpus):
        if cpu.machine != lowest.machine:
            raise table.refuse("plain", f"{lowest} and {cpu} are of different machines; expected a level of one")
        if lowest.runs(cpu):
            raise table.refuse(f"cpu[{index}]", f"{cpu} is not above the plain wheel, which is for {lowest}: remove it")


def _check_joinable(table: Table, matrix: Matrix) -> None:
    if matrix.cuda:
        raise table.refuse("plain", "'hwcaps' is for CPU levels alone; with matrix.cuda expected 'cuda' or 'cpu'")
    if matrix.cpus and matrix.cpus[0].machine != "x86_64":
        raise table.refuse("plain", f"'hwcaps' needs levels that glibc knows; it has none for {matrix.cpus[0].machine}")
    if all(cpu.is_baseline for cpu in matrix.cpus):
        raise table.refuse("plain", "'hwcaps' joins builds for CPU levels; expected some above x86-64 in matrix.cpu")


def _axis(axes: Table, name: str) -> Axis:
    if name in _TAKEN or not _AXIS.fullmatch(name):
        raise axes.refuse(name, f"no name for a free axis; expected a-z, 0-9 and _, and none of {', '.join(_TAKEN)}")
    with axes.table(name) as values:
        axis = Axis(name, tuple(_free_value(values, value) for value in values))
        if not axis.values:
            raise values.wrong("has no values; expected some, as in one = {}")
        return axis


def _free_value(axis: Table, name: str) -> AxisValue:
    with at(axis.place(name)):
        label(name)
    with axis.table(name) as value:
        return AxisValue(
            name,
            value.parsed_texts("properties", free_property, (), unique=True),
            variables(value, "env"),
            value.settings("config-settings"),
        )


def _required(matrix: Table, axes: Table) -> Iterator[RequiredVersions]:
    labels: dict[str, str] = {}
    with matrix.table("requires", optional=True) as projects:
        for name in projects:
            project = canonicalize_name(name)
            if not _PROJECT.fullmatch(project) or project in _TAKEN or name in axes:
                raise projects.refuse(name, "expected the name of a project that is not another axis of the matrix")
            versions = tuple(_values(projects, name))
            if not versions:
                raise projects.refuse(name, "empty; name a version, or leave the key out")
            for value in versions:
                label = local_label(((project, value),))
                if (first := labels.setdefault(label, f"{name} {value}")) != f"{name} {value}" or versions.count(
                    value
                ) > 1:
                    raise projects.refuse(name, f"{value!r} gives versions +{label}, as {first} does; expected it once")
            yield RequiredVersions(project, versions)


def _values(projects: Table, name: str) -> Iterator[str]:
    """The versions of a project, each as `releases_of` reads it."""
    array = projects.raw(name)
    if not isinstance(array, list) or not any(isinstance(item, list) for item in array):
        yield from projects.parsed_texts(name, _release)
        return
    for index, item in enumerate(array):
        place, texts = f"{name}[{index}]", item if isinstance(item, list) else [item]
        if not texts or not all(isinstance(text, str) for text in texts):
            raise projects.refuse(place, "expected a version, or an array of versions that one wheel is for")
        with at(projects.place(place)):
            releases = [_release(text) for text in texts]
        for older, newer in pairwise(releases):
            if newer != (following := _following(older)):
                raise projects.refuse(place, f"{newer} after {older}; expected {following}: a wheel is for all between")
        yield "_".join(releases)


def releases_of(value: str) -> tuple[str, ...]:
    """The releases, oldest first, that a wheel of this *value* of ``matrix.requires`` is for: ``2.10_2.11``."""
    return tuple(value.split("_"))


def specifier_of(value: str) -> str:
    """What a wheel of *value* requires of the project: ``==2.15.*``, or ``>=2.10,<2.12`` for several releases."""
    oldest, *_, newest = (*releases_of(value), releases_of(value)[-1])
    return f"=={value}.*" if oldest == newest else f">={oldest},<{_following(newest)}"


def _following(release: str) -> str:
    series, dot, number = release.rpartition(".")
    return f"{series}{dot}{int(number) + 1}"


def local_label(values: Iterable[tuple[str, str]]) -> str:
    """The local version label of the *values* of ``matrix.requires``: ``torch2.15.numpy2.4``."""
    return ".".join(f"{re.sub('[^a-z0-9]', '', project)}{value}" for project, value in values)


def _plain_requires(matrix: Table, required: Sequence[RequiredVersions]) -> str | None:
    """The label in ``matrix.plain``, or of the newest versions, NONE or SDIST; None without variants for *required*."""
    if matrix.one_of("requires-as", ("local", "variants")) == "local":
        if several := next((text for each in required for text in each.versions if "_" in text), None):
            message = (
                f"one wheel for {' and '.join(releases_of(several))} is a variant; expected requires-as = 'variants'"
            )
            raise matrix.refuse("requires", message)
        return None
    if not required:
        raise matrix.refuse("requires-as", "would have no effect without matrix.requires: remove it")
    labels = [
        local_label(zip((requirement.project for requirement in required), versions, strict=True))
        for versions in product(
            *(
                sorted(requirement.versions, key=lambda value: Version(releases_of(value)[-1]))
                for requirement in required
            )
        )
    ]
    return str(matrix.raw("plain")) if matrix.raw("plain") in {*labels, NONE, SDIST} else labels[-1]


def _release(text: str) -> str:
    if not _VERSIONS.fullmatch(text):
        raise RecipeError(f"{text!r} is not a version to build against; expected numbers with dots, as in '2.15'")
    return text


def _exclusion(entry: Table, names: Mapping[str, tuple[str, ...]], folder: Path) -> MatrixRule:
    if not list(entry):
        raise entry.wrong(f"names no axis; expected values of {', '.join(names)}")
    return MatrixRule(entry.here, tuple((axis, _excluded(entry, axis, names, folder)) for axis in entry))


def _excluded(entry: Table, axis: str, names: Mapping[str, tuple[str, ...]], folder: Path) -> tuple[str, ...]:
    if axis not in names:
        raise entry.refuse(axis, f"no axis {axis!r}; there are {', '.join(names)}")
    text = entry.raw(axis)
    values = (text,) if isinstance(text, str) else entry.texts(axis)
    with at(entry.place(axis)):  # two spellings of one value are one
        if axis == "cpu":
            values = tuple(str(Cpu.parse(text)) for text in values)
        elif axis == "python":
            values = tuple(interpreter(text, folder) for text in values)
    for value in values:
        if value not in names[axis]:
            raise entry.refuse(axis, f"no value {value!r}; there are {', '.join(names[axis])}")
    return values
