"""What glibc's loader does with a library and all that it needs, played on the files of an environment.

    breadth-first from a root; the first that matches gives the file
    a name that is loaded already                          as SONAME, or as it was asked for
    DT_RPATH of the consumer, then of what loaded it ...   unless the consumer has a DT_RUNPATH
    DT_RUNPATH of the consumer

Nothing else counts here, neither LD_LIBRARY_PATH nor /etc/ld.so.cache: what they have is the machine's, and may only be
what the platform promises. Left out are the glibc-hwcaps folders: what is there stands in for a file that is beside.
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
from vbuild.elf.outline import MAGIC, Outline
from vbuild.elf.policy import PlatformPolicy
from vbuild.errors import BinaryError

_ORIGIN = re.compile(r"\$(?:ORIGIN(?![A-Za-z0-9_])|\{ORIGIN\})")
# newer than all lists there are: for packages that say nothing of the platform they are for
_NEWEST = "manylinux_2_99"


class LoaderNeed(Struct, frozen=True):
    """One NEEDED name as the loader meets it: which way it is found, or why it is not.

    *via* is how RPATHs find it, whether or not it *is_loaded* before they are asked. *provider* is the file that is
    meant, from site-packages; the absolute path of one outside of the environment; None for the platform's, the
    driver's and none at all. *searched* are the entries of the RPATHs that were asked.
    """

    consumer: str
    name: str
    via: Via
    provider: str | None
    is_loaded: bool
    searched: tuple[str, ...]

    @property
    def is_met(self) -> bool:
        """Whether the loader goes on."""
        return self.is_loaded or self.via not in {Via.NAME, Via.OUTSIDE, Via.MISSING}

    @property
    def is_met_by_order(self) -> bool:
        """Whether the loader goes on only since something else was loaded before."""
        return self.is_loaded and self.via in {Via.NAME, Via.OUTSIDE, Via.MISSING}


class _Object(Struct, frozen=True):
    """A loaded file, and the one that it was loaded for."""

    path: str
    outline: Outline
    loader: Self | None


class Loader:
    """The loader in an environment: *folder* is all of it, *packages* the site-packages that paths are relative to.

    *own* are the paths of the wheels under test, which may take what *platforms* promise; other packages may take what
    any platform does.
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
        """Every NEEDED of the file *root* and of what it brings in, in the order in which the loader asks for them."""
        if not (outline := self.outline(root)):
            return
        loaded = [_Object(root, outline, None)]
        names: dict[str, str | None] = {outline.soname: root} if outline.soname else {}
        paths = {root}
        for consumer in loaded:  # which grows meanwhile: breadth-first
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
        """The headers of the ELF file at *path*; None where there is none, or where it is damaged."""
        if path not in self._outlines:
            try:
                with mapped(self._packages / path) as data:
                    self._outlines[path] = Outline.parse(data)
            except (BinaryError, OSError):
                self._outlines[path] = None
        return self._outlines[path]

    def _found(self, consumer: _Object, name: str) -> LoaderNeed:
        need = LoaderNeed(consumer.path, name, Via.MISSING, None, is_loaded=False, searched=tuple(_entries(consumer)))
        outside: str | None = None
        for via, path in self._candidates(consumer, name):
            outline = self.outline(path)
            # the loader passes over files for another machine
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
        if place := self._somewhere(name):
            return replace(need, via=Via.NAME, provider=place)
        return need

    def _candidates(self, consumer: _Object, name: str) -> Iterator[tuple[Via, str]]:
        """Where the loader looks, in order: from site-packages, absolute where that is outside of the environment."""
        if "/" in name:
            yield from ((Via.OWN, path) for path in self._expanded(consumer, name))
            return
        for one in _asked(consumer):
            via = Via.OWN if one is consumer else Via.INHERITED
            for entry in one.outline.runpath or one.outline.rpath:
                yield from ((via, path) for path in self._expanded(one, f"{entry}/{name}"))

    def _expanded(self, consumer: _Object, path: str) -> Iterator[str]:
        """The *path* with the folder of *consumer* for $ORIGIN; nothing where it depends on the working directory."""
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

    def _somewhere(self, name: str) -> str | None:
        """The first file of the environment that is called *name*."""
        if self._places is None:
            found = sorted(path for path in self._packages.rglob("*.so*") if path.is_file())
            self._places = {path.name: path.relative_to(self._packages).as_posix() for path in reversed(found)}
        return self._places.get(name)


@contextmanager
def mapped(path: Path) -> Iterator[memoryview]:
    """The ELF file at *path* as a view of the mapped file; `BinaryError` where it is none."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise BinaryError(f"{path.name}: not an ELF file")
        with mmap(file.fileno(), 0, access=ACCESS_READ) as whole, memoryview(whole) as view:
            yield view


def _asked(consumer: _Object) -> Iterator[_Object]:
    """The files whose RPATH or RUNPATH the loader asks for what *consumer* needs."""
    if consumer.outline.runpath:
        yield consumer
        return
    one: _Object | None = consumer
    while one:
        # a RUNPATH is for its own file alone, and an RPATH beside it counts for nothing
        if one.outline.rpath and not one.outline.runpath:
            yield one
        one = one.loader


def _entries(consumer: _Object) -> Iterator[str]:
    """What was asked, for people."""
    for one in _asked(consumer):
        whose = "" if one is consumer else f" of {one.path}"
        yield from (f"{entry}{whose}" for entry in one.outline.runpath or one.outline.rpath)
