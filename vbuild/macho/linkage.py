"""How macOS's loader searches for libraries, and which file of a wheel in site-packages loads which.

    @loader_path/../.dylibs/libx.dylib   from the folder of the file that needs it, as delocate writes it
    @rpath/libx.dylib                    in the folders of its LC_RPATH, then of those that load it
    @executable_path/libx.dylib          from the folder of the program, which is Python unless it is in the wheel
    /usr/lib/libSystem.B.dylib           that file, which is the system's
    found nowhere                        a library that is loaded already answers to its LC_ID_DYLIB

DYLD_LIBRARY_PATH and the like belong to the machine.
https://github.com/apple-oss-distributions/dyld/blob/main/doc/man/man1/dyld.1
"""

import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping

from vbuild.binary.linkage import Edge, Via
from vbuild.binary.outline import BinaryOutline

# delocate's filter_system_libs
_SYSTEM = ("/usr/lib/", "/System/")
_LOADER, _RPATH, _EXECUTABLE = "@loader_path", "@rpath", "@executable_path"
_PYTHON = ("libpython", "Python")


def is_system(name: str) -> bool:
    return name.startswith(_SYSTEM)


def edges_of(files: Mapping[str, BinaryOutline], *, is_elsewhere: Callable[[str], bool]) -> tuple[Edge, ...]:
    """The edges from *files* to libraries they need; *is_elsewhere* says if another package has a name."""
    loaders: dict[str, set[str]] = {path: set() for path in files}
    while True:
        search = _Search(files, loaders, is_elsewhere)
        edges = tuple(search.edge(path, name) for path, outline in files.items() for name in outline.needed)
        known = sum(map(len, loaders.values()))
        for edge in edges:
            if edge.provider and edge.via is not Via.NAME:
                loaders[edge.provider].add(edge.consumer)
        if sum(map(len, loaders.values())) == known:
            return edges


class _Search:
    def __init__(
        self,
        files: Mapping[str, BinaryOutline],
        loaders: Mapping[str, Iterable[str]],
        is_elsewhere: Callable[[str], bool],
    ) -> None:
        self._files, self._loaders, self._is_elsewhere = files, loaders, is_elsewhere
        self._tops = {path.partition("/")[0] for path in files}
        self._names: dict[str, list[str]] = {}
        for path, outline in files.items():
            for name in {outline.soname, posixpath.basename(path)} - {None}:
                self._names.setdefault(str(name), []).append(path)

    def edge(self, path: str, name: str) -> Edge:
        if is_system(name):
            return Edge(path, name, Via.PLATFORM, None)
        start, _, rest = name.partition("/")
        folders = list(self._own(path)) if start == _RPATH else self._beside(path, start)
        if provider := self._provider(path, folders, rest):
            return Edge(path, name, Via.OWN, provider)
        if start == _RPATH and (provider := self._provider(path, self._inherited(path), rest)):
            return Edge(path, name, Via.INHERITED, provider)
        if start != _LOADER and (provider := self._loaded(path, name)):
            return Edge(path, name, Via.NAME, provider)
        is_outside = (
            (start == _EXECUTABLE and not folders)
            or posixpath.basename(name).startswith(_PYTHON)
            or self._is_elsewhere(posixpath.basename(name))
            or any(self._leads_out(posixpath.normpath(posixpath.join(folder, rest))) for folder in folders)
        )
        return Edge(path, name, Via.OUTSIDE if is_outside else Via.MISSING, None)

    def _beside(self, path: str, start: str) -> list[str]:
        is_own = start == _LOADER or (start == _EXECUTABLE and self._files[path].type == "MH_EXECUTE")
        return [posixpath.dirname(path)] if is_own else []

    def _own(self, path: str) -> Iterator[str]:
        """The folders in the LC_RPATH of the file at *path*, below site-packages."""
        for entry in self._files[path].rpath:
            start, _, rest = f"{entry}/".partition("/")
            for folder in self._beside(path, start):
                yield posixpath.normpath(posixpath.join(folder, rest))

    def _inherited(self, path: str) -> Iterator[str]:
        seen, queue = {path}, [*self._loaders[path]]
        while queue:
            if (here := queue.pop(0)) not in seen:
                seen.add(here)
                yield from self._own(here)
                queue += self._loaders[here]

    def _provider(self, path: str, folders: Iterable[str], name: str) -> str | None:
        candidates = (posixpath.normpath(posixpath.join(folder, name)) for folder in folders)
        return next((file for file in candidates if file in self._files and self._fits(file, path)), None)

    def _loaded(self, path: str, name: str) -> str | None:
        homes = self._names.get(name) or (self._names.get(name.rpartition("/")[2]) if name[:1] != "/" else None)
        fitting = [home for home in homes or () if home != path and self._fits(home, path)]
        return min(fitting, key=lambda home: (-len(posixpath.commonprefix([home, path])), home), default=None)

    def _fits(self, path: str, consumer: str) -> bool:
        library, *_ = outlines = self._files[path], self._files[consumer]
        own, wanted = ({half.outline.machine for half in file.halves} or {file.machine} for file in outlines)
        return library.type in {"MH_DYLIB", "MH_BUNDLE"} and bool(own & wanted)

    def _leads_out(self, path: str) -> bool:
        return path.partition("/")[0] not in self._tops
