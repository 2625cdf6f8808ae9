"""A model of how glibc's loader finds a library and all that it needs, in the files of an environment.

    breadth-first from a root; the first match gives the file
    a name that is loaded already                          as SONAME, or as it was asked for
    DT_RPATH of the consumer, then of what loaded it ...   unless the consumer has a DT_RUNPATH
    DT_RUNPATH of the consumer

Nothing else counts, neither LD_LIBRARY_PATH nor /etc/ld.so.cache: these belong to the machine, and a wheel may only
use what its platform promises. glibc-hwcaps folders are left out: a library there replaces one that exists elsewhere.
`vbuild.elf.linkage` answers the same for the files of one wheel alone, before it is installed.
https://man7.org/linux/man-pages/man8/ld.so.8.html and _dl_map_object in glibc's elf/dl-load.c
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from vbuild.elf.catalogue import is_driver
from vbuild.elf.linkage import Via
from vbuild.elf.policy import PlatformPolicy
from vbuild.elf.read import Outline
from vbuild.elf.records import MAGIC
from vbuild.errors import BinaryError

_ORIGIN = re.compile(r"\$(?:ORIGIN(?![A-Za-z0-9_])|\{ORIGIN\})")
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


class _Object(Struct, frozen=True):
    """A loaded file, and the file that loaded it."""

    path: str
    outline: Outline
    loaded_by: Self | None


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
        loaded = [_Object(root, outline, None)]
        names: dict[str, str | None] = {outline.soname: root} if outline.soname else {}
        paths = {root}
        for consumer in loaded:  # grows meanwhile: breadth-first
            for name in consumer.outline.needed:
                need = self._found(consumer, name)
                if name in names:
                    yield replace(need, provider=names[name], is_loaded=True)
                    continue
                yield need
                if not need.is_met:
                    continue
                path = names[name] = need.provider
                if path is not None and path not in paths and (outline := self.outline(path)):
                    paths.add(path)
                    loaded.append(_Object(path, outline, consumer))
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

    def _found(self, consumer: _Object, name: str) -> LoaderNeed:
        need = LoaderNeed(consumer.path, name, Via.MISSING, None, is_loaded=False, searched=_searched(consumer))
        outside: str | None = None
        for via, path in self._candidates(consumer, name):
            outline = self.outline(path)
            # the loader skips files for another machine
            if outline and (outline.machine, outline.bits) == (consumer.outline.machine, consumer.outline.bits):
                if not path.startswith("/"):
                    return replace(need, via=via, provider=path)
                outside = path
                break
        if is_driver(name):
            return replace(need, via=Via.DRIVER)
        if any(platform.has(name) for platform in self._promised(consumer)):
            return replace(need, via=Via.PLATFORM)
        if outside:
            return replace(need, via=Via.OUTSIDE, provider=outside)
        if place := self._anywhere(name):
            return replace(need, via=Via.NAME, provider=place)
        return need

    def _candidates(self, consumer: _Object, name: str) -> Iterator[tuple[Via, str]]:
        """Yield the paths where the loader looks, in order: relative to site-packages, or absolute if outside."""
        if "/" in name:
            yield from ((Via.OWN, path) for path in self._expanded(consumer, name))
            return
        for one in _rpath_sources(consumer):
            via = Via.OWN if one is consumer else Via.INHERITED
            for entry in one.outline.runpath or one.outline.rpath:
                yield from ((via, path) for path in self._expanded(one, f"{entry}/{name}"))

    def _expanded(self, consumer: _Object, path: str) -> Iterator[str]:
        """Yield *path* with the folder of *consumer* for $ORIGIN; nothing if it depends on the working directory."""
        origin = (self._packages / consumer.path).parent
        whole = _ORIGIN.sub(lambda _: str(origin), path)
        if whole.startswith("/") and "$" not in whole:
            whole = os.path.normpath(whole)
            is_inside = whole.startswith(f"{self._folder}/")
            yield Path(os.path.relpath(whole, self._packages)).as_posix() if is_inside else whole

    def _promised(self, consumer: _Object) -> Sequence[PlatformPolicy]:
        if self._platforms and consumer.path in self._own:
            return self._platforms
        newest = PlatformPolicy.parse(f"{_NEWEST}_{consumer.outline.machine}")
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
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise BinaryError(f"{path.name}: not an ELF file")
        with mmap(file.fileno(), 0, access=ACCESS_READ) as whole, memoryview(whole) as view:
            yield view


def _rpath_sources(consumer: _Object) -> Iterator[_Object]:
    """Yield the files whose RPATH or RUNPATH the loader reads for what *consumer* needs."""
    if consumer.outline.runpath:
        yield consumer
        return
    one: _Object | None = consumer
    while one:
        # a RUNPATH is for its own file alone, and cancels the RPATH of that file
        if one.outline.rpath and not one.outline.runpath:
            yield one
        one = one.loaded_by


def _searched(consumer: _Object) -> tuple[str, ...]:
    """Return the entries that the loader reads, each with the file that has it, for messages."""
    return tuple(
        entry if one is consumer else f"{entry} of {one.path}"
        for one in _rpath_sources(consumer)
        for entry in one.outline.runpath or one.outline.rpath
    )
