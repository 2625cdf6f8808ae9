"""The code of an ELF file cut into regions: functions, and what lies between two; and the processes that judge them.

Spread the decoding of code over processes: it keeps a core busy and holds Python's lock.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, pairwise
from operator import attrgetter
from typing import TypeVar

from vbuild.binary.code import CodeSection, Symbol
from vbuild.elf.code import CodeFile
from vbuild.hardware.cpu import available_cores
from vbuild.process.pool import ProcessPool

R = TypeVar("R")

# bytes of code: what one process gets at a time, and what a file must have before a second process pays
_BATCH = 1 << 18
_WORTH_SPREADING = 1 << 22


@contextmanager
def processes(jobs: int | None = None) -> Iterator[ProcessPool | None]:
    """A pool of *jobs* processes, as many as there are cores for None; nothing for a single one.

    The processes start with the first work, and leaving the block ends them.
    """
    count = jobs or available_cores()
    if count == 1:
        yield None
        return
    executor = ProcessPool(count)
    try:
        yield executor
    finally:
        executor.end()


def spread(
    work: Callable[[list[tuple[int, bytes]]], list[R]],
    pieces: Iterable[tuple[int, bytes]],
    executor: ProcessPool | None,
) -> Iterator[R]:
    """The results of *work* for the *pieces* of code, each an address and bytes, in order."""
    batches = list(_batches(pieces))
    size = sum(len(data) for batch in batches for _, data in batch)
    is_small = size < _WORTH_SPREADING
    yield from chain.from_iterable(executor.map(work, batches) if executor and not is_small else map(work, batches))


def _batches(pieces: Iterable[tuple[int, bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    batch: list[tuple[int, bytes]] = []
    size = 0
    for address, data in pieces:
        batch.append((address, data))
        size += len(data)
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


_address_of = attrgetter("address")
# the bytes of all the ways to fill the space between two functions; none of them alone makes a later instruction
_PADDING = bytes.fromhex("00 0f 1f 2e 40 44 66 80 84 90 cc")


@dataclass(frozen=True, slots=True)
class Region:
    """A run of code decoded from its start: a function, or the bytes outside any known function."""

    address: int
    data: bytes
    function: Symbol | None

    def __str__(self) -> str:
        return str(self.function) if self.function else f"{self.address:#x}, outside any known function"


def regions_of(elf: CodeFile, holding: Sequence[int] | None = None) -> Iterator[Region]:
    """The code of *elf*, cut at the starts and ends of functions; padding and objects that lie in code left out.

    Of those between two such places, the ones with an address that is in *holding*, in order, if that is given.
    """
    at = 0
    for code in elf.code:
        starts = {symbol.address: symbol for symbol in _within(code, elf.functions)}
        skipped = {symbol.address: symbol for symbol in _within(code, elf.objects) if symbol.size}
        cuts = sorted({code.address, code.end, *starts, *skipped})
        outer: Symbol | None = None
        for start, end in pairwise(cuts):
            if (symbol := starts.get(start)) and (outer is None or symbol.end > outer.end):
                outer = symbol
            if holding is not None:
                at = bisect_left(holding, start, at)
                if at == len(holding) or holding[at] >= end:
                    continue
            inner = skipped.get(start) if symbol is None else symbol
            known = min(end, inner.end if inner and inner.size else end) if inner else start
            if symbol:
                yield Region(start, _slice(code, start, known), symbol)
            # a function inside another, as assembly has them, ends before the outer one does
            if outer and known < (outer_end := min(end, outer.end)):
                yield Region(known, _slice(code, known, outer_end), outer)
                known = outer_end
            if (rest := _slice(code, known, end)).translate(None, _PADDING):
                yield Region(known, rest, None)


def _within(code: CodeSection, symbols: Sequence[Symbol]) -> Sequence[Symbol]:
    """Those of the ordered *symbols* that begin in *code*."""
    start = bisect_left(symbols, code.address, key=_address_of)
    return symbols[start : bisect_left(symbols, code.end, start, key=_address_of)]


def _slice(code: CodeSection, start: int, end: int) -> bytes:
    return code.data[start - code.address : end - code.address]
