"""Sets of addresses, and pointers that the loader fills."""

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from msgspec import Struct


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
