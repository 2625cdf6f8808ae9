"""What the code of a compiled file of any format is judged by: functions, pointers, and what others use of it.

Sets of addresses, and the pointers among them that the loader fills, are at the end.
"""

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from msgspec import Struct


class Symbol(Struct, frozen=True):
    """A function or an object; without names if only the unwind table knows it.

    It is weak if every name for other files is: many files may have it, as of inline functions.
    """

    address: int
    size: int
    names: tuple[str, ...] = ()
    is_exported: bool = False
    is_resolver: bool = False
    is_weak: bool = False

    @property
    def end(self) -> int:
        return self.address + self.size

    def __str__(self) -> str:
        return self.names[0] if self.names else f"function at {self.address:#x}"


class CodeSection(Struct, frozen=True):
    """Bytes that are loaded at *address*, of code or of constants."""

    name: str
    address: int
    data: bytes

    @property
    def end(self) -> int:
        return self.address + len(self.data)


class CodeImage(Struct, frozen=True, kw_only=True):
    """A PE file, or one of the files in a Mach-O file, as its code is judged, with the addresses it was linked for.

    pointers              places in data that the loader fills with an address of this file, and that address
    import_places         places that it fills with the address of an import, by name
    stubs, slots          code that does nothing but jump through such a place; places for code alone
    writable, relro       addresses of data that code can change; those that only the loader changes
    starts, called        tables of functions that the loader calls; functions that it calls and no table has
    resolvers             functions that it calls to fill places
    handlers              functions that the system calls when one throws; *has_strange_handlers* if some are unknown
    dispatchers           places through which code calls what RAX points at
    image_base            the address from which code counts tables that it uses by an index, or 0
    system, given         linux, windows or macos; features of all its processors above the machine's baseline
    """

    machine: str
    system: str
    given: frozenset[str]
    soname: str | None
    needed: tuple[str, ...]
    code: tuple[CodeSection, ...]
    constants: tuple[CodeSection, ...]
    functions: tuple[Symbol, ...]
    objects: tuple[Symbol, ...] = ()
    pointers: tuple[tuple[int, int], ...]
    import_places: tuple[tuple[int, str], ...]
    writable: tuple[range, ...]
    relro: tuple[range, ...] = ()
    areas: tuple[range, ...]
    stubs: tuple[CodeSection, ...] = ()
    slots: tuple[range, ...] = ()
    starts: tuple[range, ...] = ()
    entry: int = 0
    called: tuple[int, ...] = ()
    is_fixed: bool = False
    has_handlers: bool = False
    handlers: Mapping[int, tuple[int, ...]] = {}
    has_strange_handlers: bool = False
    dispatchers: frozenset[int] = frozenset()
    image_base: int = 0
    resolvers: frozenset[int] = frozenset()
    isa_needed: tuple[str, ...] = ()
    is_loadable: bool = True

    @property
    def code_size(self) -> int:
        return sum(len(code.data) for code in self.code)


class Sliceable(Protocol):
    """A memoryview, or an edited file that is not written yet."""

    def __len__(self) -> int: ...

    def __getitem__(self, span: slice, /) -> memoryview: ...


class Pointer(Struct, frozen=True):
    """The address *place* of a word that the loader fills with its base and the address *target*.

    *row* is the file offset of the table's row that has the target, or None if the word itself has it.
    """

    place: int
    target: int
    row: int | None = None


def outside(span: range, taken: Iterable[range]) -> Iterator[range]:
    """The parts of *span* that none of the ranges *taken* has."""
    start = span.start
    for other in sorted((other for other in taken if other), key=lambda other: other.start):
        if start < min(other.start, span.stop):
            yield range(start, min(other.start, span.stop))
        start = max(start, other.stop)
    if start < span.stop:
        yield range(start, span.stop)


class Ranges:
    """A set of addresses."""

    def __init__(self, ranges: Sequence[range]) -> None:
        ordered = sorted((span.start, span.stop) for span in ranges if span)
        self._starts = [start for start, _ in ordered]
        self._stops = list(itertools.accumulate((stop for _, stop in ordered), max))
        self.low, self.high = (self._starts[0], self._stops[-1]) if ordered else (0, 0)

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __contains__(self, number: int) -> bool:
        index = bisect_right(self._starts, number) - 1
        return index >= 0 and number < self._stops[index]
