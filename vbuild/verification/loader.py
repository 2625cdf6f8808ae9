"""What glibc's loader does for a library and all that it needs, in the files of an environment.

It loads breadth-first from a root. A name that is loaded already, as SONAME or as it was asked for, needs no search;
for others `vbuild.elf.linkage` says where the loader searches, as it does for the files of one wheel alone, before it
is installed. glibc-hwcaps folders are left out: a library there replaces one that exists elsewhere.
"""

import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from mmap import ACCESS_READ, mmap
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from vbuild.binary.linkage import Via
from vbuild.elf.catalogue import PlatformPolicy, is_driver
from vbuild.elf.linkage import expanded, fits, rpath_files
from vbuild.elf.read import Outline
from vbuild.elf.records import MAGIC
from vbuild.errors import BinaryError
from vbuild.files.reading import open_file

# newer than every known list: for packages whose platform is not known
_NEWEST = "manylinux_2_99"


class LoaderNeed(Struct, frozen=True):
    """One NEEDED name as the loader meets it, with the way in which it is found or the reason why it is not.

    *via* is how RPATHs find it, even if it *is_loaded* already. *provider* is the file found, relative to
    site-packages, or absolute if it is outside the environment; it is None for a library of the platform or the
    driver, and if there is no file. *searched* are the entries of the RPATHs that the loader reads.
    """

    consumer: str
    name: str
    via: Via
    provider: str | None
    is_loaded: bool
    searched: tuple[str, ...]

    @property
    def is_met(self) -> bool:
        """Whether the loader continues."""
        return self.is_loaded or self.via not in {Via.NAME, Via.OUTSIDE, Via.MISSING}

    @property
    def is_met_by_order(self) -> bool:
        """Whether the loader continues only because something else was loaded before."""
        return self.is_loaded and self.via in {Via.NAME, Via.OUTSIDE, Via.MISSING}


class Loader:
    """The loader in the environment in *folder*; paths are relative to its site-packages, *packages*.

    *own* are the paths of the wheels under test, which may use what *platforms* promise; other packages may use what
    any platform promises.
    """

    def __init__(
        self, packages: Path, *, folder: Path, own: Sequence[str], platforms: Sequence[PlatformPolicy]
    ) -> None:
        self._packages = packages
        self._folder = os.path.normpath(folder)
        self._own = frozenset(own)
        self._platforms = tuple(platform for platform in platforms if platform.promises)
        self._outlines: dict[str, Outline | None] = {}
        self._places: dict[str, str] | None = None

    def needs(self, root: str) -> Iterator[LoaderNeed]:
        """Yield every NEEDED of the file *root* and of what it loads, in the order in which the loader asks."""
        if not (outline := self.outline(root)):
            return
        loaded, loaders = {root: outline}, dict[str, tuple[str, ...]]()
        names: dict[str, str | None] = {outline.soname: root} if outline.soname else {}
        queue = deque([root])  # breadth-first
        while queue:
            consumer = queue.popleft()
            files = tuple(rpath_files(consumer, loaded.__getitem__, loaders))
            entries = [(file, entry) for file in files for entry in loaded[file].search_path]
            for name in loaded[consumer].needed:
                need = self._found(consumer, loaded[consumer], name, entries)
                if name in names:
                    yield replace(need, provider=names[name], is_loaded=True)
                    continue
                yield need
                if not need.is_met:
                    continue
                path = names[name] = need.provider
                if path is not None and path not in loaded and (outline := self.outline(path)):
                    loaded[path], loaders[path] = outline, (consumer,)
                    queue.append(path)
                    names.setdefault(outline.soname or name, path)

    def outline(self, path: str) -> Outline | None:
        """Return the headers of the ELF file at *path*, or None if there is none or it is damaged."""
        if path not in self._outlines:
            try:
                with mapped(self._packages / path) as data:
                    self._outlines[path] = Outline.parse(data)
            except (BinaryError, OSError):
                self._outlines[path] = None
        return self._outlines[path]

    def _found(self, consumer: str, outline: Outline, name: str, entries: Sequence[tuple[str, str]]) -> LoaderNeed:
        """Search for *name* in the RPATH *entries*, each with the file that has it."""
        searched = tuple(entry if file == consumer else f"{entry} of {file}" for file, entry in entries)
        need = LoaderNeed(consumer, name, Via.MISSING, None, is_loaded=False, searched=searched)
        candidates = [(consumer, name)] if "/" in name else [(file, f"{entry}/{name}") for file, entry in entries]
        outside: str | None = None
        for file, entry in candidates:
            path = self._placed(file, entry)
            if path and (library := self.outline(path)) and fits(library, outline):
                if not path.startswith("/"):
                    return replace(need, via=Via.OWN if file == consumer else Via.INHERITED, provider=path)
                outside = path
                break
        if is_driver(name):
            return replace(need, via=Via.DRIVER)
        if any(platform.has(name) for platform in self._promised(consumer, outline.machine)):
            return replace(need, via=Via.PLATFORM)
        if outside:
            return replace(need, via=Via.OUTSIDE, provider=outside)
        if place := self._anywhere(name):
            return replace(need, via=Via.NAME, provider=place)
        return need

    def _placed(self, file: str, entry: str) -> str | None:
        """Return the path that *entry* of *file* stands for: relative to site-packages, or absolute if outside."""
        path = expanded(file, entry)
        if path is None or "$" in path:  # $LIB and $PLATFORM
            return None
        whole = os.path.normpath(self._packages / path)
        is_inside = whole.startswith(f"{self._folder}/")
        return Path(os.path.relpath(whole, self._packages)).as_posix() if is_inside else whole

    def _promised(self, path: str, machine: str) -> Sequence[PlatformPolicy]:
        if self._platforms and path in self._own:
            return self._platforms
        newest = PlatformPolicy.parse(f"{_NEWEST}_{machine}")
        return (*self._platforms, newest) if newest else self._platforms

    def _anywhere(self, name: str) -> str | None:
        """Return the first file of the environment that is called *name*."""
        if self._places is None:
            found = sorted(path for path in self._packages.rglob("*.so*") if path.is_file())
            self._places = {path.name: path.relative_to(self._packages).as_posix() for path in reversed(found)}
        return self._places.get(name)


@contextmanager
def mapped(path: Path) -> Iterator[memoryview]:
    """Map the ELF file at *path* into memory; raises `BinaryError` if it is not one."""
    with open_file(path) as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise BinaryError(f"{path.name}: not an ELF file")
        with mmap(file.fileno(), 0, access=ACCESS_READ) as whole, memoryview(whole) as view:
            yield view
