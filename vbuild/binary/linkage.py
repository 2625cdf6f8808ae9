"""Which file of a wheel in site-packages loads which; each format's room finds the edges as its loader does."""

import itertools
import posixpath
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from typing import Self

from msgspec import Struct

from vbuild.binary.outline import BinaryLoading

_MOST_CHAINS = 5


class Via(StrEnum):
    """How the loader comes from a NEEDED name to a library.

    INHERITED if one of the files that load the consumer leads there: it may be loaded by others as well, which do
    not. ADDED is found because code gives its folder to os.add_dll_directory, NAME only where something else has
    loaded it before.
    """

    OWN = "own"
    INHERITED = "inherited"
    ADDED = "added"
    NAME = "name"
    OUTSIDE = "outside"
    PLATFORM = "platform"
    DRIVER = "driver"
    MISSING = "missing"


class Edge(Struct, frozen=True):
    """A NEEDED *name* of *consumer*, and the file that it leads to, where that is among the wheel's."""

    consumer: str
    name: str
    via: Via
    provider: str | None


class LinkGraph(Struct, frozen=True):
    """The compiled files of a wheel by installed path, below site-packages, and what leads from one to another."""

    files: Mapping[str, BinaryLoading]
    edges: tuple[Edge, ...]
    needs_of: Mapping[str, tuple[Edge, ...]]
    """What each file needs, in the order of its NEEDED."""
    consumers_of: Mapping[str, tuple[Edge, ...]]
    """What needs each file."""

    copies: frozenset[str] = frozenset()
    """The files that the loader takes instead of others on newer processors."""

    @classmethod
    def of(cls, files: Mapping[str, BinaryLoading], edges: Iterable[Edge], copies: Iterable[str] = ()) -> Self:
        """The graph of *files* by installed path, and of *edges*, those of a file together."""
        ordered, edges = dict(sorted(files.items())), tuple(edges)
        needs: dict[str, tuple[Edge, ...]] = {}
        consumers: dict[str, list[Edge]] = {}
        for consumer, found in itertools.groupby(edges, key=lambda edge: edge.consumer):
            needs[consumer] = tuple(found)
            for edge in needs[consumer]:
                if edge.provider is not None:
                    consumers.setdefault(edge.provider, []).append(edge)
        above = {path: tuple(found) for path, found in consumers.items()}
        return cls(ordered, edges, needs, above, frozenset(copies))

    def needs(self, path: str) -> tuple[Edge, ...]:
        """What the file at *path* needs, in the order of its NEEDED."""
        return self.needs_of.get(path, ())

    def consumers(self, path: str) -> tuple[Edge, ...]:
        """What needs the file at *path*."""
        return self.consumers_of.get(path, ())

    def chains(self, path: str) -> tuple[tuple[str, ...], ...]:
        """Why the file at *path* is here: the shortest way down to it from each root, at most five, shortest first.

        A root is a Python module, a program, or what nothing needs; none leads to libraries that only need each other.
        """
        below: dict[str, str | None] = {path: None}
        queue = deque([path])
        while queue:
            here = queue.popleft()
            for edge in self.consumers(here):
                if edge.consumer not in below:
                    below[edge.consumer] = here
                    queue.append(edge.consumer)
        roots = (root for root in below if _is_started(self.files[root]) or not self.consumers(root))
        found = []
        for root in roots:
            way = [root]
            while (after := below[way[-1]]) is not None:
                way.append(after)
            found.append(tuple(way))
        return tuple(sorted(found, key=lambda way: (len(way), way))[:_MOST_CHAINS])

    def unneeded(self, named: Collection[str]) -> tuple[str, ...]:
        """The shared libraries that nothing needs, or only each other, and that are neither modules nor programs.

        Those called one of *named*, or by a name that is in the data of another file, count as opened. What
        only unneeded ones need is not among them: it will be when they are gone.
        """
        opened = frozenset(named)
        mentioned: dict[str, set[str]] = {}
        for path, loading in self.files.items():
            for name in loading.mentioned:
                mentioned.setdefault(name, set()).add(path)

        def is_used(path: str, loading: BinaryLoading) -> bool:
            if _is_started(loading) or not loading.outline.is_loadable or path in self.copies:
                return True
            names = {posixpath.basename(path), loading.outline.soname or ""} - {""}
            # code puts versions behind names: libx.so means libx.so.1 as well
            starts = {start for name in names for start in itertools.accumulate(name.split("."), "{}.{}".format)}
            return any(start in opened or mentioned.get(start, set()) - {path} for start in starts)

        used = {path for path, loading in self.files.items() if is_used(path, loading)}
        tops = {path for path in self.files if all(edge.consumer == path for edge in self.consumers(path))}
        seen, left = used | tops, list(used | tops)
        while left:
            found = {edge.provider for edge in self.needs(left.pop()) if edge.provider is not None} - seen
            seen |= found
            left += found
        return tuple(path for path in self.files if path not in used and (path in tops or path not in seen))


def _is_started(loading: BinaryLoading) -> bool:
    return bool(loading.modules) or loading.is_program
