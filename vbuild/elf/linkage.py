"""How glibc's loader searches for libraries, and which file of a wheel in site-packages loads which.

    NEEDED libx.so.1   the DT_RPATH of the file, then of the one that loads it, and so on upwards;
                       if the file has a DT_RUNPATH, only the folders in that
    $ORIGIN            the folder of the file that has it, not of the one that searches
    a folder           by file name; the loader skips a file for another machine
    found nowhere      a library that is loaded already answers to its SONAME; else the system's folders

A DT_RUNPATH in the middle of a chain cancels its own file's DT_RPATH, not those from further up. LD_LIBRARY_PATH and
/etc/ld.so.cache belong to the machine.

glibc 2.33 and newer has in each folder that it searches one for each level of newer CPUs, the best level first:

    demo.libs/libx.so                          every x86-64 processor
    demo.libs/glibc-hwcaps/x86-64-v3/libx.so   those of level v3 and above: a copy of the base, with its SONAME

It looks there for what is NEEDED and for what is opened by a name, not for what is opened by a path.
https://man7.org/linux/man-pages/man8/ld.so.8.html ; glibc, elf/dl-load.c: _dl_map_object, x86_64/dl-hwcaps_subdirs.c
"""

import posixpath
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache

from vbuild.binary.linkage import Edge, LinkGraph, Via
from vbuild.binary.outline import BinaryLoading, BinaryOutline
from vbuild.elf.catalogue import PlatformPolicy, by_soname, framework, is_driver
from vbuild.hardware.cpu import X86_64_LEVELS

ORIGIN_TOKEN = re.compile(r"\$(?:ORIGIN(?![A-Za-z0-9_])|\{ORIGIN\})")
"""What stands for the folder of the file in its RPATH, RUNPATH and NEEDED."""
GLIBC_HWCAPS = "glibc-hwcaps"
LEVELS = X86_64_LEVELS[1:]
"""The levels that have a folder, lowest first."""
OLDEST_GLIBC = (2, 33)
"""Older ones, and musl, take the file beside."""

*_MOST, _LAST = (f"x86-64-{level}" for level in LEVELS)
UNKNOWN_FOLDER = f"in no folder that glibc knows; expected {', '.join(_MOST)} or {_LAST}"

_IN_LEVEL = re.compile(rf"(?P<folder>(?:.*/)?){GLIBC_HWCAPS}/x86-64-(?P<level>{'|'.join(LEVELS)})/(?P<rest>.*)")
_OF_ANY_MACHINE = re.compile(rf"(?P<folder>(?:.+/)?){GLIBC_HWCAPS}/[^/]+/(?P<name>[^/]+)")


def link_graph(files: Mapping[str, BinaryLoading], *, platforms: Sequence[PlatformPolicy] = ()) -> LinkGraph:
    """The graph of *files* by installed path, on systems of *platforms*, or of any glibc."""
    outlines = {path: files[path].outline for path in sorted(files)}
    return LinkGraph.of(files, edges_of(outlines, platforms), filter(replaced_library, files))


def edges_of(files: Mapping[str, BinaryOutline], platforms: Sequence[PlatformPolicy] = ()) -> tuple[Edge, ...]:
    return tuple(_Loader(files, platforms).edges())


def search_folders(path: str, entries: Iterable[str]) -> tuple[str, ...]:
    """The folders of the RPATH or RUNPATH *entries* of the file at *path*, below site-packages or with ``..``.

    Absolute folders, and those relative to the working directory, are left out.
    """
    folders = (folder for entry in entries if (folder := expand_origin(path, entry)) and not folder.startswith("/"))
    return tuple(dict.fromkeys("" if folder == "." else folder for folder in folders))


def expand_origin(path: str, entry: str) -> str | None:
    """The path that *entry* of RPATH or NEEDED means for the file at *path*; None if by the working directory."""
    if match := ORIGIN_TOKEN.match(entry):
        return posixpath.normpath(f"{posixpath.dirname(path) or '.'}{entry[match.end() :]}")
    return posixpath.normpath(entry) if entry.startswith("/") else None


def rpath_files(
    path: str, outline: Callable[[str], BinaryOutline], loaders: Mapping[str, Iterable[str]]
) -> Iterator[str]:
    """The files whose RPATH or RUNPATH the loader reads for the needs of the file at *path*, in order.

    *outline* gives the headers of each file, *loaders* the files that load it.
    """
    yield path
    seen, queue = {path}, deque(() if outline(path).runpath else loaders.get(path, ()))
    while queue:
        if (here := queue.popleft()) not in seen:
            seen.add(here)
            if not outline(here).runpath:
                yield here
            queue.extend(loaders.get(here, ()))


def fits(library: BinaryOutline, consumer: BinaryOutline) -> bool:
    same = (library.machine, library.bits) == (consumer.machine, consumer.bits)
    return same and library.byte_order == consumer.byte_order and library.is_loadable


class _Loader:
    """Resolves names for the files of a wheel; learns who loads whom on the way, as DT_RPATH is inherited."""

    def __init__(self, files: Mapping[str, BinaryOutline], platforms: Sequence[PlatformPolicy]) -> None:
        self._files = files
        self._promising = tuple(platform for platform in platforms if platform.promises)
        self._loaders: dict[str, dict[str, None]] = {path: {} for path in files}
        self._loaded: dict[str, dict[str, None]] = {path: {} for path in files}
        self._homes: dict[str, dict[str, None]] = {}
        for path, outline in files.items():
            for name in (posixpath.basename(path), outline.soname):
                if name and outline.is_loadable:
                    self._homes.setdefault(name, {})[path] = None
        self._copies: dict[str, list[str]] = {}
        for path in files:
            if base := replaced_library(path):
                self._copies.setdefault(base, []).append(path)
        self._tops = {path.partition("/")[0] for path in files}
        self._names = {posixpath.basename(path) for path in files}
        self._own = {path: search_folders(path, outline.search_path) for path, outline in files.items()}
        # by file, until another loader of it is known
        self._inherited: dict[str, tuple[str, ...]] = {}

    def edges(self) -> Iterator[Edge]:
        edges_of: dict[str, list[Edge]] = {}
        left: Collection[str] = self._files
        while left:
            for path in left:
                edges_of[path] = [self._edge(path, name) for name in dict.fromkeys(self._files[path].needed)]
            left = self._learn(edge for path in left for edge in edges_of[path])
        for path in self._files:
            yield from edges_of[path]

    def _learn(self, edges: Iterable[Edge]) -> list[str]:
        changed = deque[str]()
        for edge in edges:
            if edge.provider is not None and edge.via is not Via.NAME:
                # on newer CPUs it loads a copy instead of the provider
                for provider in (edge.provider, *self._copies.get(edge.provider, ())):
                    loaders = self._loaders[provider]
                    changed += [] if edge.consumer in loaders else [provider]
                    loaders[edge.consumer] = None
                    self._loaded[edge.consumer][provider] = None
        affected: set[str] = set()
        while changed:
            if (path := changed.popleft()) not in affected:
                affected.add(path)
                changed += self._loaded[path]
                self._inherited.pop(path, None)
        return [path for path in self._files if path in affected]

    def _edge(self, path: str, name: str) -> Edge:
        if "/" in name:
            via, provider = self._by_path(path, name)
        elif provider := self._provider(path, self._own[path], name):
            via = Via.OWN
        elif name in self._names and (provider := self._provider(path, self._inherited_by(path), name)):
            via = Via.INHERITED
        elif self._is_promised(path, name):
            via = Via.PLATFORM
        elif is_driver(name):
            via = Via.DRIVER
        elif provider := self._nearest(path, name):
            via = Via.NAME
        else:
            folders = (*self._own[path], *self._inherited_by(path))
            is_outside = by_soname(name) or framework(name) or any(map(self._leads_out, folders))
            via = Via.OUTSIDE if is_outside else Via.MISSING
        return Edge(path, name, via, provider)

    def _by_path(self, path: str, name: str) -> tuple[Via, str | None]:
        """A name with a slash is a path: no folder is searched, and only $ORIGIN makes it the wheel's own."""
        folder, _, file = name.rpartition("/")
        folders = search_folders(path, [folder])
        provider = self._provider(path, folders, file)
        if provider:
            return Via.OWN, provider
        return Via.OUTSIDE if any(map(self._leads_out, folders)) else Via.MISSING, None

    def _provider(self, path: str, folders: Iterable[str], name: str) -> str | None:
        for folder in folders if name in self._names else ():
            provider = posixpath.join(folder, name)
            if self._fits(provider, path):
                return provider
        return None

    def _fits(self, path: str, consumer: str) -> bool:
        return path in self._files and fits(self._files[path], self._files[consumer])

    def _inherited_by(self, path: str) -> tuple[str, ...]:
        """The folders in its loaders' DT_RPATH, the nearest first."""
        if path not in self._inherited:
            _, *above = rpath_files(path, self._files.__getitem__, self._loaders)
            self._inherited[path] = tuple(dict.fromkeys(folder for file in above for folder in self._own[file]))
        return self._inherited[path]

    def _is_promised(self, path: str, name: str) -> bool:
        if self._promising:
            return all(platform.has(name) for platform in self._promising)
        usual = _usual(self._files[path].machine)
        return usual is not None and usual.has(name)

    def _nearest(self, path: str, name: str) -> str | None:
        """The loaded file that answers to *name*, by preference near *path*."""
        fitting = [home for home in self._homes.get(name, ()) if self._fits(home, path)]
        return min(fitting, key=lambda home: (-len(posixpath.commonprefix([home, path])), home), default=None)

    def _leads_out(self, folder: str) -> bool:
        return bool(folder) and folder.partition("/")[0] not in self._tops


@cache
def _usual(machine: str) -> PlatformPolicy | None:
    """For tags such as linux_x86_64, which promise nothing."""
    return PlatformPolicy.parse(f"manylinux2014_{machine}")


def level_of(path: str) -> str | None:
    """``v3`` for ``a.libs/glibc-hwcaps/x86-64-v3/libx.so``."""
    match = _IN_LEVEL.fullmatch(path)
    return match["level"] if match else None


def at_level(path: str, level: str) -> str:
    folder, name = posixpath.split(path)
    return posixpath.join(folder, GLIBC_HWCAPS, f"x86-64-{level}", name)


def baseline_of(path: str) -> str:
    match = _IN_LEVEL.fullmatch(path)
    return f"{match['folder']}{match['rest']}" if match else path


def replaced_library(path: str) -> str | None:
    """``a/libx.so``, for which newer CPUs load *path*, ``a/glibc-hwcaps/power10/libx.so``."""
    match = _OF_ANY_MACHINE.fullmatch(path)
    return match["folder"] + match["name"] if match else None


def missing_base(base: str) -> str:
    return f"no {base}; expected one for lesser processors, and for systems that know no levels"


def soname_fault(copy: str | None, base: str | None, *, where: str) -> str | None:
    if copy == base:
        return None
    return f"SONAME {copy or 'none'}, and {base or 'none'} in {where}; expected one for all levels"
