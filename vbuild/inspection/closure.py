"""Which library of a wheel loads which, why each is in it, and which ones other wheels repeat.

    Linked (a member and what the loader asks of it) -> Closure -> Node -> Need -> where it resolves, whose it is

Paths are those in the wheel; the graph below them, `vbuild.binary.linkage`, has them as they are installed. What is in
no package's folder, a script or a file of data, keeps the path that it has in the wheel.
"""

import dataclasses
import posixpath
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from msgspec import Struct
from msgspec.structs import replace

from vbuild.binary.linkage import LinkGraph, Via
from vbuild.binary.outline import BinaryLoading, BinaryOutline, Format
from vbuild.elf import linkage
from vbuild.elf.catalogue import CatalogueEntry, Hashed, PlatformPolicy, by_soname, by_stem, cuda_of, framework, hashed
from vbuild.elf.hwcaps_folders import replaced_library
from vbuild.macho import linkage as macho
from vbuild.pe import linkage as pe
from vbuild.wheel.paths import installed_path

HERE = (Via.OWN, Via.INHERITED, Via.ADDED, Via.NAME)
# Windows has the version in the name of the DLL: cudart64_12.dll, nvrtc64_120_0.dll
_DLL = re.compile(r"(?P<stem>\w+?)(?:64_(?P<major>\d\d?)(?:0(?:_\d+)?)?)?\.dll", re.IGNORECASE)


class ClosureRole(StrEnum):
    """What a file is to the loader: Python or a user starts with it, or it is there for others."""

    MODULE = "module"
    PROGRAM = "program"
    LIBRARY = "library"


class LinkedLibrary(Struct, frozen=True):
    """A member that the loader can load: its path in the wheel, its sizes in bytes, and its hash in RECORD."""

    path: str
    size: int
    packed_size: int
    hash: str | None
    loading: BinaryLoading


class Official(Struct, frozen=True, order=True):
    """The project whose wheels have a library, for one major of CUDA where it has a project for each."""

    project: str
    cuda: int | None = None


class NeededLibrary(Struct, frozen=True):
    """One NEEDED of a file: how the loader comes to it, the path of the one in the wheel, and whose it is if not."""

    name: str
    via: Via
    provider: str | None
    projects: tuple[Official, ...]


class Node(Struct, frozen=True, kw_only=True):
    """A file of the closure: what it needs and may open, and where it is from."""

    linked: LinkedLibrary
    needs: tuple[NeededLibrary, ...]
    opens: tuple[str, ...]
    officials: tuple[Official, ...]
    also_in: tuple[str, ...] = ()

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
        """The libraries that it names without needing them: what it may open."""
        outline = self.loading.outline
        own = {self.name, outline.soname, *outline.needed}
        # a repair tool that renames what is needed leaves the old name where it stood
        renamed = {outline.plain(found.name) for found in map(hashed, outline.needed) if found}
        return tuple(sorted(name for name in self.loading.mentioned - own if outline.plain(name) not in renamed))

    def via(self, *ways: Via) -> tuple[NeededLibrary, ...]:
        """What it needs and comes to in one of these *ways*."""
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
            "also_in": self.also_in,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Closure:
    """The files of a wheel that the loader loads, the largest first, and how they hang together.

    *cuda* is the major version that their names agree on. *named* says of each library that nothing needs which files
    of the wheel that are not ELF files have its name in them.
    """

    nodes: tuple[Node, ...]
    cuda: int | None
    named: Mapping[str, tuple[str, ...]]
    _graph: LinkGraph
    _paths: Mapping[str, str] = field(repr=False)
    _members: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(
        cls,
        files: Iterable[LinkedLibrary],
        *,
        platforms: Sequence[PlatformPolicy] = (),
        added: Collection[str] = (),
        named: Mapping[str, tuple[str, ...]] | None = None,
        project: str = "",
    ) -> Self:
        """The closure of *files* in a wheel of *project*, which the *platforms* of its tags promise libraries to.

        *added* are the folders that its code gives to os.add_dll_directory.
        """
        found = {file.path: file for file in sorted(files, key=lambda file: (-file.size, file.path))}
        paths = _installed(found)
        graph = _graph({paths[path]: file.loading for path, file in found.items()}, platforms, added)
        loadings = [file.loading for file in found.values()]
        cuda = cuda_of(
            _on_linux(name) for one in loadings for name in (*one.outline.needed, one.outline.soname, one.base) if name
        )
        back = {installed: path for path, installed in paths.items()}
        known = _known(found.values())
        nodes = tuple(
            Node(
                linked=file,
                needs=tuple(
                    NeededLibrary(
                        edge.name,
                        edge.via,
                        back[edge.provider] if edge.provider else None,
                        _of_name(edge.name, cuda) if edge.via in {Via.OUTSIDE, Via.MISSING} else (),
                    )
                    for edge in graph.needs(paths[path])
                ),
                opens=_opened(file, known),
                officials=tuple(one for one in _of_file(file, cuda) if one.project != project),
            )
            for path, file in found.items()
        )
        return cls(nodes=nodes, cuda=cuda, named=named or {}, _graph=graph, _paths=paths, _members=back)

    @property
    def edges(self) -> tuple[tuple[Node, NeededLibrary], ...]:
        """Who needs what in the wheel."""
        return tuple((node, need) for node in self.nodes for need in node.needs if need.provider)

    @property
    def unneeded(self) -> tuple[Node, ...]:
        """The libraries that nothing needs and no other file names."""
        idle = {self._members[installed] for installed in self._graph.unneeded(())}
        return tuple(node for node in self.nodes if node.path in idle and node.path not in self.named)

    @property
    def opened(self) -> dict[str, tuple[str, ...]]:
        """The files that name a library which nothing needs, by the path of the library."""
        needed = {need.provider for _, need in self.edges}
        waiting = [node for node in self.nodes if node.role is ClosureRole.LIBRARY and node.path not in needed]
        return {node.path: files for node in waiting if (files := self.openers(node.path))}

    def openers(self, path: str) -> tuple[str, ...]:
        """The files that have the name of the library at *path* in them without needing it."""
        binaries = {node.path for node in self.nodes if path in node.opens}
        return tuple(sorted(binaries | set(self.named.get(path, ()))))

    def chains(self, path: str) -> tuple[tuple[str, ...], ...]:
        """Why the file at *path* is there: the shortest chain from each file that loading begins with, down to it."""
        found = self._graph.chains(self._paths[path])
        return tuple(tuple(self._members[step] for step in chain) for chain in found)

    def with_repeats(self, repeats: Iterable["Repeat"], wheel: str) -> Self:
        """The same, knowing which of its libraries are in other wheels than *wheel*, too."""
        others = {repeat.hash: tuple(name for name in repeat.wheels if name != wheel) for repeat in repeats}
        nodes = (
            replace(node, also_in=others.get(node.linked.hash or "", ())) if node.role is ClosureRole.LIBRARY else node
            for node in self.nodes
        )
        return dataclasses.replace(self, nodes=tuple(nodes))

    def data(self) -> dict[str, Any]:
        """The closure for ``msgspec.to_builtins``, which makes JSON of it, described by ``schema.json``."""
        return {
            "cuda": self.cuda,
            "nodes": [node.data() for node in self.nodes],
            "edges": [
                {"consumer": node.path, "name": need.name, "via": need.via, "provider": need.provider}
                for node, need in self.edges
            ],
            "chains": {node.path: self.chains(node.path) for node in self.nodes if node.role is ClosureRole.LIBRARY},
            "opened": self.opened,
            "unneeded": [node.path for node in self.unneeded],
        }


class Repeat(Struct, frozen=True):
    """A library that several wheels have byte for byte: its names, where it is, and what it takes up in each."""

    hash: str
    size: int
    names: tuple[str, ...]
    wheels: tuple[str, ...]
    packed: tuple[int, ...]

    @property
    def repeated(self) -> int:
        """The bytes of the wheels that all but one of them take up."""
        return sum(self.packed) - max(self.packed)


def repeats(closures: Iterable[tuple[str, Closure]]) -> tuple[Repeat, ...]:
    """The libraries that several of the *closures*, by the names of their wheels, have; what repeats most first.

    Extension modules and programs are passed over: Python and users look for them where they are.
    """
    found: dict[str, list[tuple[int, str, Node]]] = {}
    for place, (wheel, closure) in enumerate(closures):
        for node in closure.nodes:
            if node.linked.hash and node.role is ClosureRole.LIBRARY:
                found.setdefault(node.linked.hash, []).append((place, wheel, node))
    several = (
        Repeat(
            digest,
            group[0][2].linked.size,
            tuple(sorted({node.name for _, _, node in group})),
            tuple({place: wheel for place, wheel, _ in group}.values()),
            tuple(node.linked.packed_size for _, _, node in group),
        )
        for digest, group in found.items()
        if len({place for place, _, _ in group}) > 1
    )
    return tuple(sorted(several, key=lambda repeat: (-repeat.repeated, repeat.names)))


def _graph(
    files: Mapping[str, BinaryLoading], platforms: Sequence[PlatformPolicy], added: Collection[str]
) -> LinkGraph:
    """The graph of *files*, the edges of each format's as its loader finds them."""
    outlines: dict[Format, dict[str, BinaryOutline]] = {format_: {} for format_ in Format}
    for path in sorted(files):
        outlines[files[path].outline.format][path] = files[path].outline

    def is_elsewhere(name: str) -> bool:
        return bool(_of_name(name, None))

    edges = (
        *linkage.edges_of(outlines[Format.ELF], platforms),
        *pe.edges_of(outlines[Format.PE], added=added, is_elsewhere=is_elsewhere),
        *macho.edges_of(outlines[Format.MACHO], is_elsewhere=is_elsewhere),
    )
    return LinkGraph.of(files, edges, filter(replaced_library, files))


def _on_linux(name: str) -> str:
    """The name on Linux of the library that is called *name* elsewhere, which the catalogue has."""
    name = name.rpartition("/")[2]
    if match := _DLL.fullmatch(name):
        version = f".{match['major']}" if match["major"] else ""
        return f"lib{match['stem'].removeprefix('lib')}.so{version}"
    return f"{name.removesuffix('.dylib')}.so" if name.endswith(".dylib") else name


def _installed(paths: Iterable[str]) -> dict[str, str]:
    """Where each of *paths* is once installed; the path itself where two would be at the same place."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    for path in paths:
        installed = installed_path(path) or path
        found[path] = path if installed in taken else installed
        taken.add(found[path])
    return found


def _known(files: Iterable[LinkedLibrary]) -> dict[str, set[str]]:
    """The paths of *files* by the names that another may open them under: code puts versions behind names."""
    found: dict[str, set[str]] = {}
    for file in files:
        for name in filter(None, (posixpath.basename(file.path), file.loading.outline.soname)):
            if file.loading.outline.format is not Format.ELF:
                found.setdefault(file.loading.outline.plain(name), set()).add(file.path)
                continue
            stem, suffix, version = name.partition(".so")
            parts = version.split(".")
            for end in range(1, len(parts) + 1):
                found.setdefault(stem + suffix + ".".join(parts[:end]), set()).add(file.path)
    return found


def _opened(file: LinkedLibrary, known: Mapping[str, set[str]]) -> tuple[str, ...]:
    """The paths of the libraries, by the names they have, that *file* names without needing them."""
    plain = file.loading.outline.plain
    named = {path for name in file.loading.mentioned for path in known.get(plain(name), ())}
    needed = {path for name in file.loading.outline.needed for path in known.get(plain(name), ())}
    return tuple(sorted(named - needed - {file.path}))


def _of_name(name: str, cuda: int | None) -> tuple[Official, ...]:
    """The projects that have a library of that SONAME."""
    called = _on_linux(name)
    # Windows numbers some otherwise
    found = _narrowed(by_soname(called) or (by_stem(called) if called != name else ()), cuda)
    loaded = framework(called)
    return found or ((Official(loaded.project),) if loaded else ())


def _of_file(file: LinkedLibrary, cuda: int | None) -> tuple[Official, ...]:
    """The projects that *file* is a copy from, by the names it had."""
    before = hashed(posixpath.basename(file.path))
    outline = file.loading.outline
    for name in (file.loading.base, outline.soname, before and before.name):
        if name and (found := _narrowed(by_soname(name), cuda)):
            return found
    return _narrowed(by_stem(before.name), cuda) if before else ()


def _narrowed(entries: Sequence[CatalogueEntry], cuda: int | None) -> tuple[Official, ...]:
    """The projects of *entries* for that major of CUDA; of all of them if none is for it."""
    fitting = [entry for entry in entries if cuda is None or entry.cuda in {None, cuda}]
    return tuple(dict.fromkeys(Official(entry.project, entry.cuda) for entry in fitting or entries))
