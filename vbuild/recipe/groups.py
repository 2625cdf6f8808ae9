"""The CUDA toolkits of a matrix and the groups of GPUs that its variant wheels are for: ``matrix.cuda``.

    matrix.cuda[].gpus.<label>   -> Group     one value of the axis ``cuda``, and what its wheels may claim

    nvidia :: sm_arch :: 90_real                      machine code for GPUs of 9.0 is asked for
    nvidia :: sm_arch :: 90_virtual                   PTX alone is, of M.0: GPUs ask for no other
    nvidia :: cuda_version_lower_bound :: 13.0        drivers from the toolkit's major version on

A driver cannot compile PTX newer than itself, nor read zstd before CUDA 12.4; either raises the lower bound.
https://github.com/wheelnext/nvidia-variant-provider
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vbuild.errors import RecipeError, at
from vbuild.hardware.driver import ZSTD_SINCE, Dotted
from vbuild.hardware.gpu import GpuList
from vbuild.recipe.cuda import Compress, Strategy, ToolkitSpec, gpu_list
from vbuild.recipe.library import Library
from vbuild.recipe.spelling import label, located, variables
from vbuild.table import Setting, Table

NAMESPACE = "nvidia"

# the value that stands beside the groups for builds without CUDA
NONE = "none"

_VERSION = re.compile(r"\d{1,2}\.\d{1,2}", re.ASCII)
_ZSTD = frozenset({Compress.SIZE, Compress.BALANCE})


@dataclass(frozen=True, slots=True)
class Group:
    """The GPUs of one variant wheel, under the label that names it; *place* is where the recipe says so."""

    label: str
    gpus: GpuList
    place: str = ""

    def properties(self, toolkit: Dotted, compress: Compress) -> tuple[str, ...]:
        """What a wheel for these GPUs may claim, built by CUDA *toolkit* with its code stored as *compress* says.

        `RecipeError` where no GPU could ask for it.
        """
        real = [f"{device.number}_real" for device in self.gpus.native]
        # every GPU that asks for M0_virtual asks for M0_real too
        virtual = [f"{number}_virtual" for number in self._new_majors()]
        if not real and not virtual:
            what = f"{self.gpus} is PTX alone, and GPUs ask for PTX of M.0 only, as in 80_virtual"
            raise RecipeError(f"{self.place}: {what}; expected machine code too, as in {self.gpus.requests[0].arch}")
        bound = toolkit if virtual else Dotted(toolkit.major, 0)
        if compress in _ZSTD:
            bound = max(bound, ZSTD_SINCE)
        values = (*(f"sm_arch :: {value}" for value in real + virtual), f"cuda_version_lower_bound :: {bound}")
        return tuple(f"{NAMESPACE} :: {value}" for value in values)

    def _new_majors(self) -> list[int]:
        asked = {request.device for request in self.gpus if request.ptx}
        return sorted(device.number for device in asked.difference(self.gpus.native) if device.number % 10 == 0)


@dataclass(frozen=True, slots=True)
class Entry:
    """One toolkit of the matrix, and the groups of GPUs that are built with it, in the order written."""

    toolkit: ToolkitSpec
    groups: tuple[Group, ...]
    strategy: Strategy = Strategy.FAT
    env: tuple[tuple[str, str], ...] = ()
    config_settings: tuple[tuple[str, Setting], ...] = ()
    place: str = ""


def read_cuda(matrix: Table, folder: Path) -> tuple[Entry, ...]:
    """The toolkits that a ``[matrix]`` table lists, none where it has no ``cuda``; paths start at *folder*.

    `RecipeError`, before any compiler starts, for GPUs that a toolkit does not compile for.
    """
    if matrix.raw("cuda") is None:
        return ()
    entries = tuple(_entry(table, folder) for table in matrix.tables("cuda"))
    if not entries:
        raise matrix.refuse("cuda", "empty; name a toolkit, or leave the key out")
    _tell_apart(entries)
    return entries


def _entry(table: Table, folder: Path) -> Entry:
    toolkit = _toolkit(table, folder)
    entry = Entry(
        toolkit,
        tuple(_groups(table, toolkit.version)),
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
        return ToolkitSpec(entry.parsed("toolkit", _version), None, texts)
    with entry.table("toolkit") as keys:
        path = keys.parsed("path", lambda text: located(text, folder))
        if not path.is_dir():
            raise keys.refuse("path", f"no folder {keys.text('path')!r}; paths start where the recipe stands")
        for index, library in enumerate(libraries):
            if library.hashes:
                what = "a hash is of a wheel of the package index, and this toolkit is an installed one"
                raise entry.refuse(f"libraries[{index}]", f"{what}; expected {library.release}")
        return ToolkitSpec(keys.parsed("version", _version), path.resolve(), texts)


def _version(text: str) -> Dotted:
    if not _VERSION.fullmatch(text):
        raise RecipeError(f"{text!r} is no version of CUDA; expected two numbers with a dot, as in '13.0'")
    return Dotted.parse(text)


def _libraries(entry: Table) -> tuple[Library, ...]:
    libraries = entry.parsed_texts("libraries", Library.parse, ())
    names = [library.name for library in libraries]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise entry.refuse(f"libraries[{index}]", f"{name!r} is there twice")
    return libraries


def _groups(entry: Table, toolkit: Dotted) -> Iterator[Group]:
    with entry.table("gpus") as labels:
        if not list(labels):
            raise labels.wrong("has no groups; expected labels with their GPUs, as in sm90 = '90'")
        for name in labels:
            place, asked = labels.place(name), labels.setting(name)
            with at(place):
                if label(name) == NONE:
                    raise RecipeError(f"{NONE!r} stands for builds without CUDA; expected another label")
                gpus = gpu_list(asked, (toolkit,))
            yield Group(name, gpus, place)


def _tell_apart(entries: tuple[Entry, ...]) -> None:
    """Refuse a toolkit, and a label of a group, that is there twice."""
    toolkits: dict[tuple[Dotted, frozenset[str]], str] = {}
    labels: dict[str, str] = {}
    for entry in entries:
        toolkit = (entry.toolkit.version, frozenset(entry.toolkit.libraries))
        if (first := toolkits.setdefault(toolkit, entry.place)) != entry.place:
            raise RecipeError(f"{entry.place}: has the toolkit and the libraries of {first}; expected its groups there")
        for group in entry.groups:
            if (first := labels.setdefault(group.label, group.place)) != group.place:
                raise RecipeError(f"{group.place}: {first} is a group of this label; expected another")
