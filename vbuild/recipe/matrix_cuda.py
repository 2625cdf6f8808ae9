"""The CUDA toolkits of a matrix and the groups of GPUs that its variant wheels are for: ``matrix.cuda``.

    matrix.cuda[].gpus.<label>   -> Group     one value of the axis ``cuda``, and what its wheels may claim

    nvidia :: sm_arch :: 90_real                      machine code for GPUs of 9.0 is asked for
    nvidia :: sm_arch :: 90_virtual                   PTX alone is, of M.0: GPUs ask for no other
    nvidia :: cuda_version_lower_bound :: 13.0        drivers from the toolkit's major version on; all that is claimed
                                                      without ``gpus``, for code that calls CUDA's libraries alone

A driver cannot compile PTX newer than itself, nor read zstd before CUDA 12.4; either raises the lower bound.
https://github.com/wheelnext/nvidia-variant-provider
"""

import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from vbuild.config.table import Env, Settings, Table
from vbuild.errors import RecipeError, at
from vbuild.hardware.driver import ZSTD_SINCE, Dotted
from vbuild.hardware.gpu import GpuList
from vbuild.recipe.cuda import Compress, Strategy, ToolkitSpec, gpu_list
from vbuild.recipe.source import ToolkitLibrary
from vbuild.recipe.spelling import label, located, variables

NAMESPACE = "nvidia"

# the value of the axis cuda, next to the groups, for builds without CUDA
NONE = "none"

_VERSION = re.compile(r"\d{1,2}\.\d{1,2}", re.ASCII)
_ZSTD = frozenset({Compress.SIZE, Compress.BALANCE})


class GpuGroup(Struct, frozen=True):
    """The GPUs of one variant wheel, under the label that names it; *place* is where the recipe says so."""

    label: str
    gpus: GpuList
    place: str = ""

    def properties(self, toolkit: Dotted, compress: Compress) -> tuple[str, ...]:
        """What a wheel for these GPUs may claim, built by CUDA *toolkit* with its code stored as *compress* says.

        `RecipeError` if no GPU could ask for it.
        """
        if not self.gpus.requests:
            return (f"{NAMESPACE} :: cuda_version_lower_bound :: {toolkit.major}.0",)
        real = [f"{device.number}_real" for device in self.gpus.native]
        # of PTX, that of M.0 which has no machine code: every GPU that asks for M0_virtual asks for M0_real too
        ptx = {request.device for request in self.gpus if request.ptx}.difference(self.gpus.native)
        virtual = [f"{number}_virtual" for number in sorted(device.number for device in ptx) if number % 10 == 0]
        if not real and not virtual:
            what = f"{self.gpus} is PTX alone, and GPUs ask for PTX of M.0 only, as in 80_virtual"
            raise RecipeError(f"{self.place}: {what}; expected machine code too, as in {self.gpus.requests[0].arch}")
        bound = toolkit if virtual else Dotted(toolkit.major, 0)
        if compress in _ZSTD:
            bound = max(bound, ZSTD_SINCE)
        values = (*(f"sm_arch :: {value}" for value in real + virtual), f"cuda_version_lower_bound :: {bound}")
        return tuple(f"{NAMESPACE} :: {value}" for value in values)


class MatrixEntry(Struct, frozen=True):
    """One toolkit of the matrix, and the groups of GPUs that are built with it, in the order written."""

    toolkit: ToolkitSpec
    groups: tuple[GpuGroup, ...]
    strategy: Strategy = Strategy.FAT
    env: Env = ()
    config_settings: Settings = ()
    place: str = ""


def read_cuda(matrix: Table, folder: Path) -> tuple[MatrixEntry, ...]:
    """The toolkits that a ``[matrix]`` table lists in ``cuda``; paths start at *folder*.

    `RecipeError`, before any compiler starts, for GPUs that a toolkit does not compile for.
    """
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
    """The toolkit of an *entry*: a version, or a table of the version and the path of an installed one."""
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
                what = "a hash is of a wheel of the package index, and this toolkit is an installed one"
                raise entry.refuse(f"libraries[{index}]", f"{what}; expected {library.release}")
        return ToolkitSpec(keys.parsed("version", _version), path.resolve(), texts, has_kernels="gpus" in entry)


def _version(text: str) -> Dotted:
    if not _VERSION.fullmatch(text):
        raise RecipeError(f"{text!r} is no version of CUDA; expected two numbers with a dot, as in '13.0'")
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
            place, asked = labels.place(name), labels.setting(name)
            with at(place):
                if label(name) == NONE:
                    raise RecipeError(f"{NONE!r} stands for builds without CUDA; expected another label")
                gpus = gpu_list(asked, (toolkit,))
            yield GpuGroup(name, gpus, place)


def _tell_apart(entries: tuple[MatrixEntry, ...]) -> None:
    """Refuse a toolkit, and a label of a group, that is there twice."""
    toolkits: dict[tuple[Dotted, frozenset[str]], str] = {}
    labels: dict[str, str] = {}
    for entry in entries:
        toolkit = (entry.toolkit.version, frozenset(entry.toolkit.libraries))
        if (first := toolkits.setdefault(toolkit, entry.place)) != entry.place:
            raise RecipeError(f"{entry.place}: has the toolkit and the libraries of {first}; expected its groups there")
        for group in entry.groups:
            if (first := labels.setdefault(group.label, group.place)) != group.place:
                if not group.gpus.requests:
                    what = f"{first} is for CUDA {entry.toolkit.version.major}, too, with the same drivers"
                    raise RecipeError(f"{group.place}: {what}; expected one of each major version")
                raise RecipeError(f"{group.place}: {first} is a group of this label; expected another")
