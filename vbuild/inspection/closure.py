"""Which library of a wheel loads which, why each is in it, and which ones other wheels repeat.

    LinkedLibrary (a member, and what it tells the loader) -> Closure -> Node -> NeededLibrary (where it is, and whose)

Paths are those in the wheel; the graph, `vbuild.binary.linkage`, has installed paths.
"""

import posixpath
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from msgspec import Struct

from vbuild.binary.linkage import LinkGraph, Via
from vbuild.binary.outline import BinaryLoading, BinaryOutline, Format
from vbuild.elf import linkage
from vbuild.elf.catalogue import CatalogueEntry, Hashed, PlatformPolicy, by_soname, by_stem, cuda_of, framework, hashed
from vbuild.elf.linkage import replaced_library
from vbuild.macho import linkage as macho
from vbuild.pe import linkage as pe
from vbuild.wheel.paths import installed_path

HERE = (Via.OWN, Via.INHERITED, Via.ADDED, Via.NAME)
# Windows has the version in the name of the DLL: cudart64_12.dll, nvrtc64_120_0.dll
_DLL = re.compile(r"(?P<stem>\w+?)(?:64_(?P<major>\d\d?)(?:0(?:_\d+)?)?)?\.dll", re.IGNORECASE)


class ClosureRole(StrEnum):
    """Python imports it, a user starts it, or others need it."""

    MODULE = "module"
    PROGRAM = "program"
    LIBRARY = "library"


class LinkedLibrary(Struct, frozen=True):
    """A member that the loader can load; sizes in bytes, *hash* as in RECORD."""

    path: str
    size: int
    packed_size: int
    hash: str | None
    loading: BinaryLoading


class Official(Struct, frozen=True, order=True):
    """The project whose wheels have a library; *cuda* is its major version of CUDA, if each has a project."""

    project: str
    cuda: int | None = None


class NeededLibrary(Struct, frozen=True):
    """A NEEDED: how the loader finds it, its path if it is in the wheel, else the projects that have it."""

    name: str
    via: Via
    provider: str | None
    projects: tuple[Official, ...]


class Node(Struct, frozen=True, kw_only=True):
    """A file: what it needs and may open, and which projects it is a copy from."""

    linked: LinkedLibrary
    needs: tuple[NeededLibrary, ...]
    opens: tuple[str, ...]
    officials: tuple[Official, ...]

    @property
    def path(self) -> str:
        return self.linked.path

    @property
    def name(self) -> str:
        return posixpath.basename(self.linked.path)

    @property
    def names(self) -> frozenset[str]:
        """The names that another may open it under."""
        return frozenset(filter(None, (self.name, self.loading.outline.soname)))

    @property
    def loading(self) -> BinaryLoading:
        return self.linked.loading

    @property
    def role(self) -> ClosureRole:
        if self.loading.modules:
            return ClosureRole.MODULE
        return ClosureRole.PROGRAM if self.loading.is_program else ClosureRole.LIBRARY

    @property
    def original(self) -> Hashed | None:
        """Its name before a repair tool put a hash into it, and that hash."""
        return hashed(self.name)

    @property
    def mentioned(self) -> tuple[str, ...]:
        outline = self.loading.outline
        own = {self.name, outline.soname, *outline.needed}
        # repair tools leave old names in the data
        renamed = {outline.plain(original.name) for original in map(hashed, outline.needed) if original}
        return tuple(sorted(name for name in self.loading.mentioned - own if outline.plain(name) not in renamed))

    def via(self, *ways: Via) -> tuple[NeededLibrary, ...]:
        return tuple(need for need in self.needs if need.via in ways)

    def data(self) -> dict[str, Any]:
        outline, original = self.loading.outline, self.original
        return {
            "path": self.path,
            "bytes": self.linked.size,
            "packed_bytes": self.linked.packed_size,
            "hash": self.linked.hash,
            "role": self.role,
            "modules": self.loading.modules,
            "soname": outline.soname,
            "original": original and {"name": original.name, "digest": original.digest},
            "official": self.officials,
            "rpath": outline.rpath,
            "runpath": outline.runpath,
            "needed": self.needs,
            "requires": [{"library": taken.library, "versions": taken.versions} for taken in self.loading.taken],
            "defines": {"base": self.loading.base, "versions": self.loading.given},
            "mentioned": self.mentioned,
            "opens": self.opens,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Closure:
    """The files of a wheel that the loader loads, the largest first.

    *cuda* is the major version that their names agree on. *named* has the Python files that name a library that nothing
    needs.
    """

    nodes: tuple[Node, ...]
    cuda: int | None
    _graph: LinkGraph
    _installed: Mapping[str, str] = field(repr=False)
    _members: Mapping[str, str] = field(repr=False)
    named: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        files: Iterable[LinkedLibrary],
        *,
        platforms: Sequence[PlatformPolicy] = (),
        added: Collection[str] = (),
        project: str = "",
    ) -> Self:
        """The closure of *files* in a wheel of *project* whose tags name *platforms*.

        *added* are the folders that its code gives to os.add_dll_directory.
        """
        largest_first = sorted(files, key=lambda file: (-file.size, file.path))
        installed = _installed_paths(file.path for file in largest_first)
        members = {place: path for path, place in installed.items()}
        graph = _graph({installed[file.path]: file.loading for file in largest_first}, platforms, added)
        cuda = _cuda_major(file.loading for file in largest_first)
        by_name = _paths_by_name(largest_first)
        nodes = []
        for file in largest_first:
            needs = []
            for edge in graph.needs(installed[file.path]):
                is_outside = edge.via in {Via.OUTSIDE, Via.MISSING}
                owners = _owners_of_name(edge.name, cuda) if is_outside else ()
                provider = members[edge.provider] if edge.provider else None
                needs.append(NeededLibrary(edge.name, edge.via, provider, owners))
            officials = tuple(official for official in _owners_of_file(file, cuda) if official.project != project)
            opens = _opened(file, by_name)
            nodes.append(Node(linked=file, needs=tuple(needs), opens=opens, officials=officials))
        return cls(nodes=tuple(nodes), cuda=cuda, _graph=graph, _installed=installed, _members=members)

    @property
    def unneeded(self) -> tuple[Node, ...]:
        """The libraries that nothing needs and no other file names."""
        idle = {self._members[installed] for installed in self._graph.unneeded(())}
        return tuple(node for node in self.nodes if node.path in idle and node.path not in self.named)

    @property
    def opened(self) -> dict[str, tuple[str, ...]]:
        """The files that name each library which nothing needs, by the path of the library."""
        needed = {need.provider for node in self.nodes for need in node.needs}
        unneeded = [node.path for node in self.nodes if node.role is ClosureRole.LIBRARY and node.path not in needed]
        return {path: files for path in unneeded if (files := self.openers(path))}

    def openers(self, path: str) -> tuple[str, ...]:
        """The files that name the library at *path* without needing it."""
        binaries = {node.path for node in self.nodes if path in node.opens}
        return tuple(sorted(binaries | set(self.named.get(path, ()))))

    def chains(self, path: str) -> tuple[tuple[str, ...], ...]:
        """Why the file at *path* is there: see `LinkGraph.chains`."""
        chains = self._graph.chains(self._installed[path])
        return tuple(tuple(self._members[step] for step in chain) for chain in chains)

    def data(self) -> dict[str, Any]:
        return {
            "cuda": self.cuda,
            "nodes": [node.data() for node in self.nodes],
            "chains": {node.path: self.chains(node.path) for node in self.nodes if node.role is ClosureRole.LIBRARY},
            "opened": self.opened,
            "unneeded": [node.path for node in self.unneeded],
        }


class Repeat(Struct, frozen=True):
    """A library that several wheels have byte for byte; *packed* is its size in each."""

    hash: str
    size: int
    names: tuple[str, ...]
    wheels: tuple[str, ...]
    packed: tuple[int, ...]

    @property
    def repeated(self) -> int:
        """The packed bytes of all copies but one."""
        return sum(self.packed) - max(self.packed)


def repeats(closures: Iterable[tuple[str, Closure]]) -> tuple[Repeat, ...]:
    """The libraries of several *closures*, pairs of wheel and closure; what repeats most first.

    Extension modules and programs do not count: Python and users look for them where they are.
    """
    copies: dict[str, list[tuple[int, str, Node]]] = {}
    for index, (wheel, closure) in enumerate(closures):
        for node in closure.nodes:
            if node.linked.hash and node.role is ClosureRole.LIBRARY:
                copies.setdefault(node.linked.hash, []).append((index, wheel, node))
    repeated = []
    for digest, group in copies.items():
        wheels = {index: wheel for index, wheel, _ in group}
        if len(wheels) > 1:
            nodes = [node for _, _, node in group]
            names = tuple(sorted({node.name for node in nodes}))
            packed = tuple(node.linked.packed_size for node in nodes)
            repeated.append(Repeat(digest, nodes[0].linked.size, names, tuple(wheels.values()), packed))
    return tuple(sorted(repeated, key=lambda repeat: (-repeat.repeated, repeat.names)))


def _graph(
    files: Mapping[str, BinaryLoading], platforms: Sequence[PlatformPolicy], added: Collection[str]
) -> LinkGraph:
    """The graph of *files*, with edges as each format's loader finds them."""
    outlines: dict[Format, dict[str, BinaryOutline]] = {format_: {} for format_ in Format}
    for path in sorted(files):
        outlines[files[path].outline.format][path] = files[path].outline

    def is_elsewhere(name: str) -> bool:
        return bool(_owners_of_name(name, None))

    edges = (
        *linkage.edges_of(outlines[Format.ELF], platforms),
        *pe.edges_of(outlines[Format.PE], added=added, is_elsewhere=is_elsewhere),
        *macho.edges_of(outlines[Format.MACHO], is_elsewhere=is_elsewhere),
    )
    return LinkGraph.of(files, edges, filter(replaced_library, files))


def _cuda_major(loadings: Iterable[BinaryLoading]) -> int | None:
    names = (
        name for loading in loadings for name in (*loading.outline.needed, loading.outline.soname, loading.base) if name
    )
    return cuda_of(map(_linux_name, names))


def _linux_name(name: str) -> str:
    """The library's name on Linux: ``libcudart.so.12`` of ``cudart64_12.dll``."""
    name = name.rpartition("/")[2]
    if match := _DLL.fullmatch(name):
        version = f".{match['major']}" if match["major"] else ""
        return f"lib{match['stem'].removeprefix('lib')}.so{version}"
    return f"{name.removesuffix('.dylib')}.so" if name.endswith(".dylib") else name


def _installed_paths(paths: Iterable[str]) -> dict[str, str]:
    """The installed path of each of *paths*; scripts, data and doubles keep their path."""
    installed: dict[str, str] = {}
    taken: set[str] = set()
    for path in paths:
        place = installed_path(path) or path
        installed[path] = path if place in taken else place
        taken.add(installed[path])
    return installed


def _paths_by_name(files: Iterable[LinkedLibrary]) -> dict[str, set[str]]:
    """The paths of *files* by each name that code may open: with all, a part, or none of the version."""
    paths: dict[str, set[str]] = {}
    for file in files:
        for name in filter(None, (posixpath.basename(file.path), file.loading.outline.soname)):
            if file.loading.outline.format is not Format.ELF:
                paths.setdefault(file.loading.outline.plain(name), set()).add(file.path)
                continue
            stem, suffix, version = name.partition(".so")
            parts = version.split(".")
            for end in range(1, len(parts) + 1):
                paths.setdefault(stem + suffix + ".".join(parts[:end]), set()).add(file.path)
    return paths


def _opened(file: LinkedLibrary, paths: Mapping[str, set[str]]) -> tuple[str, ...]:
    """The *paths* by name that *file* mentions without needing them."""
    plain = file.loading.outline.plain
    mentioned = {path for name in file.loading.mentioned for path in paths.get(plain(name), ())}
    needed = {path for name in file.loading.outline.needed for path in paths.get(plain(name), ())}
    return tuple(sorted(mentioned - needed - {file.path}))


def _owners_of_name(name: str, cuda: int | None) -> tuple[Official, ...]:
    """The projects that have a library with the SONAME *name*."""
    linux_name = _linux_name(name)
    # Windows numbers some otherwise
    entries = by_soname(linux_name) or (by_stem(linux_name) if linux_name != name else ())
    owner = framework(linux_name)
    return _for_cuda(entries, cuda) or ((Official(owner.project),) if owner else ())


def _owners_of_file(file: LinkedLibrary, cuda: int | None) -> tuple[Official, ...]:
    """The projects that *file* is a copy from, by the names that it had."""
    original = hashed(posixpath.basename(file.path))
    for name in (file.loading.base, file.loading.outline.soname, original and original.name):
        if name and (owners := _for_cuda(by_soname(name), cuda)):
            return owners
    return _for_cuda(by_stem(original.name), cuda) if original else ()


def _for_cuda(entries: Sequence[CatalogueEntry], cuda: int | None) -> tuple[Official, ...]:
    """The projects of *entries* for the major version *cuda*, or else all."""
    fitting = [entry for entry in entries if cuda is None or entry.cuda in {None, cuda}]
    return tuple(dict.fromkeys(Official(entry.project, entry.cuda) for entry in fitting or entries))
