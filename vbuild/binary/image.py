"""What a compiled file of any format has: sections in the file and in memory, and pointers that the loader fills."""

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


class Sliceable(Protocol):
    """The bytes of a file, read by slices: a memoryview, or an edited file that is not written yet."""

    def __len__(self) -> int: ...

    def __getitem__(self, span: slice, /) -> memoryview: ...


class Pointer(Struct, frozen=True):
    """A word that the loader fills: with its base and the address *target*."""

    place: int
    target: int
    row: int | None = None
    """The file offset of its row in a table that has the target; a word that is the target itself has none."""


class Section(Protocol):
    """A named stretch of a file: its *span* are file offsets, its *addresses* where that is loaded."""

    @property
    def name(self) -> str: ...
    @property
    def span(self) -> range: ...
    @property
    def addresses(self) -> range: ...
    @property
    def is_loaded(self) -> bool: ...
    @property
    def is_data(self) -> bool:
        """Whether it is loaded from the file, and is not code."""


class Image(Protocol):
    """A compiled file whose bytes are *data*."""

    @property
    def data(self) -> memoryview: ...
    @property
    def sections(self) -> Sequence[Section]: ...
    @property
    def is_fixed(self) -> bool:
        """Whether it is loaded where it says: no pointer in it has to be filled."""

    def named(self, name: str) -> Sequence[Section]:
        """Every section called *name*."""

    def view(self, span: range) -> memoryview:
        """The bytes at the file offsets *span*."""

    def pointers(self, ranges: Sequence[range]) -> tuple[Pointer, ...]:
        """Every word that the loader fills with an address in one of *ranges*; `BinaryError` if that is not known."""


class Ranges:
    """Address ranges, for the question whether a number is in one of them."""

    def __init__(self, ranges: Sequence[range]) -> None:
        kept = sorted((each.start, each.stop) for each in ranges if each)
        self.low = kept[0][0] if kept else 0
        self.high = max((stop for _, stop in kept), default=0)
        self._starts = [start for start, _ in kept]
        self._stops = list(itertools.accumulate((stop for _, stop in kept), max))

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __contains__(self, number: int) -> bool:
        index = bisect_right(self._starts, number) - 1
        return index >= 0 and number < self._stops[index]
