"""Which file of a wheel in site-packages loads which; each format's room finds the edges."""

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

    INHERITED by a file that loads the consumer, which others may load without it; ADDED by code that calls
    os.add_dll_directory; NAME only if something else has loaded it before.
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
    """What a NEEDED *name* of *consumer* leads to."""

    consumer: str
    name: str
    via: Via
    provider: str | None


class LinkGraph(Struct, frozen=True):
    """The compiled files of a wheel by path below site-packages, and the edges between them.

    On newer processors the loader takes one of *copies* instead of another file.
    """

    files: Mapping[str, BinaryLoading]
    edges: tuple[Edge, ...]
    needs_of: Mapping[str, tuple[Edge, ...]]
    consumers_of: Mapping[str, tuple[Edge, ...]]
    copies: frozenset[str] = frozenset()

    @classmethod
    def of(cls, files: Mapping[str, BinaryLoading], edges: Iterable[Edge], copies: Iterable[str] = ()) -> Self:
        edges = tuple(edges)
        needs: dict[str, list[Edge]] = {}
        consumers: dict[str, list[Edge]] = {}
        for edge in edges:
            needs.setdefault(edge.consumer, []).append(edge)
            if edge.provider is not None:
                consumers.setdefault(edge.provider, []).append(edge)
        needs_of, consumers_of = (
            {path: tuple(links) for path, links in by_path.items()} for by_path in (needs, consumers)
        )
        return cls(dict(sorted(files.items())), edges, needs_of, consumers_of, frozenset(copies))

    def needs(self, path: str) -> tuple[Edge, ...]:
        return self.needs_of.get(path, ())

    def consumers(self, path: str) -> tuple[Edge, ...]:
        return self.consumers_of.get(path, ())

    def chains(self, path: str) -> tuple[tuple[str, ...], ...]:
        """The shortest way to *path* from each root, a module, a program, or what nothing needs; at most five."""
        below: dict[str, str | None] = {path: None}
        queue = deque([path])
        while queue:
            here = queue.popleft()
            for edge in self.consumers(here):
                if edge.consumer not in below:
                    below[edge.consumer] = here
                    queue.append(edge.consumer)
        roots = (root for root in below if _is_started(self.files[root]) or not self.consumers(root))
        chains = []
        for root in roots:
            chain = [root]
            while (after := below[chain[-1]]) is not None:
                chain.append(after)
            chains.append(tuple(chain))
        return tuple(sorted(chains, key=lambda chain: (len(chain), chain))[:_MOST_CHAINS])

    def unneeded(self, named: Collection[str]) -> tuple[str, ...]:
        """The shared libraries that nothing needs, or only each other; those *named* in data count as opened.

        What only unneeded ones need is not among them until they are gone.
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
            providers = {edge.provider for edge in self.needs(left.pop()) if edge.provider is not None} - seen
            seen |= providers
            left += providers
        return tuple(path for path in self.files if path not in used and (path in tops or path not in seen))


def _is_started(loading: BinaryLoading) -> bool:
    return bool(loading.modules) or loading.is_program
