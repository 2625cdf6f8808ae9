"""What the code in an ELF file needs of the processor, by disassembly, function by function.

    ELF -> regions (a function, or what lies between two) -> instruction codes -> CPU features above the baseline

Each function is decoded from its start, so data in front of it cannot put the decoder out of step. What stands in a
function behind the first bytes that are no instruction may be data, and so may all that stands around such bytes
outside any function: it is kept apart as *doubtful*.

Spread the decoding of code over processes: it keeps a core busy and holds Python's lock.

The processes are made by a fork server, never by a fork of the caller, which may have threads. A pool that breaks -
a worker killed for memory, a calling script that cannot be imported again - costs time only: the work is done here.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, pairwise, takewhile
from multiprocessing import get_context
from operator import attrgetter
from typing import NamedTuple, Self, TypeVar

from iced_x86 import Decoder, Formatter, FormatterSyntax, Instruction

from vbuild.elf.code import CodeSection, Elf, Symbol
from vbuild.elf.features import CPUID, INVALID, needed, rank, vector_encoded
from vbuild.hardware.cpu import available_cores

R = TypeVar("R")

# bytes of code: what one process gets at a time, and what a file must have before a second process pays
_BATCH = 1 << 18
_WORTH_SPREADING = 1 << 22


@contextmanager
def processes(jobs: int | None = None) -> Iterator[Executor | None]:
    """An executor of *jobs* processes, as many as there are cores for None; nothing for a single one.

    The processes start with the first work, and leaving the block ends them.
    """
    count = jobs or available_cores()
    if count == 1:
        yield None
        return
    executor = ProcessPoolExecutor(count, mp_context=get_context("forkserver"))
    try:
        yield executor
    finally:
        executor.shutdown(cancel_futures=True)


def spread(
    work: Callable[[list[tuple[int, bytes]]], list[R]], pieces: Iterable[tuple[int, bytes]], executor: Executor | None
) -> Iterator[R]:
    """What *work* makes of the *pieces* of code, each an address and bytes, in their order."""
    batches = list(_batches(pieces))
    size = sum(len(data) for batch in batches for _, data in batch)
    if executor is None or size < _WORTH_SPREADING:
        yield from chain.from_iterable(map(work, batches))
        return
    done = 0
    try:
        for results in executor.map(work, batches):
            done += 1
            yield from results
    except BrokenProcessPool:
        yield from chain.from_iterable(map(work, batches[done:]))


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


_BITS = 64
_code_of = attrgetter("code")
_address_of = attrgetter("address")
# the bytes of all the ways to fill the space between two functions; none of them alone makes a later instruction
_PADDING = bytes.fromhex("00 0f 1f 2e 40 44 66 80 84 90 cc")


@dataclass(frozen=True, slots=True)
class Region:
    """A run of code decoded from its start: a function, or the bytes outside any known function."""

    address: int
    data: bytes
    function: Symbol | None

    def instructions(self) -> Iterator[Instruction]:
        """The instructions up to the end of the region, each with its address."""
        yield from Decoder(_BITS, self.data, ip=self.address)

    def __str__(self) -> str:
        return str(self.function) if self.function else f"{self.address:#x}, outside any known function"


@dataclass(frozen=True, slots=True)
class FeatureUse:
    """The first instruction of a region that needs a feature."""

    feature: str
    address: int
    instruction: str

    def __str__(self) -> str:
        return f"{self.feature} at {self.address:#x}: {self.instruction}"


@dataclass(frozen=True, slots=True)
class RegionIsa:
    """The features above the baseline that a region needs; those found only behind bytes that are no code, apart."""

    region: Region
    features: frozenset[str]
    doubtful: frozenset[str]
    is_vector_encoded: bool

    def above(self, level: int) -> frozenset[str]:
        """The features that the level of rank *level* does not have."""
        return frozenset(feature for feature in self.features if rank(feature) > level)

    def uses(self, features: Iterable[str]) -> tuple[FeatureUse, ...]:
        """The first instruction that needs each of *features*, in order of address."""
        missing = set(features)
        found = []
        formatter = Formatter(FormatterSyntax.INTEL)
        for instruction in self.region.instructions():
            for feature in sorted(missing & needed().get(instruction.code, frozenset())):
                missing.remove(feature)
                found.append(FeatureUse(feature, instruction.ip, formatter.format(instruction)))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Isa:
    """What all code of a file needs: the regions that need more than the baseline, in order of address.

    *cpuid* holds the addresses of the regions that ask the processor what it has, *invalid* counts those with
    bytes that are no instruction.
    """

    code_size: int
    regions: tuple[RegionIsa, ...]
    cpuid: tuple[int, ...]
    invalid: int

    @classmethod
    def scan(cls, elf: Elf, executor: Executor | None = None) -> Self:
        """The instruction sets that an x86-64 *elf* needs; a large file is spread over the *executor*'s processes.

        One core decodes about 25 MB of code a second.
        """
        regions = tuple(regions_of(elf))
        found: list[RegionIsa] = []
        cpuid: list[int] = []
        invalid = 0
        pieces = ((region.address, region.data) for region in regions)
        for region, codes in zip(regions, spread(_decoded, pieces, executor), strict=True):
            if not codes.certain and not codes.doubtful:
                continue
            invalid += codes.is_broken
            if CPUID in codes.certain:
                cpuid.append(region.address)
            certain, doubtful = _needs(codes.certain), _needs(codes.doubtful)
            if codes.is_broken and region.function is None:
                # data between functions: tables, constants
                certain, doubtful = frozenset(), certain | doubtful
            if certain or doubtful:
                is_encoded = not vector_encoded().isdisjoint(codes.certain)
                found.append(RegionIsa(region, certain, doubtful - certain, is_encoded))
        return cls(elf.code_size, tuple(found), tuple(cpuid), invalid)

    @property
    def features(self) -> frozenset[str]:
        """Every feature above the baseline that some region certainly needs."""
        return frozenset(feature for region in self.regions for feature in region.features)


class _Codes(NamedTuple):
    """The instruction codes of a region that say something; those behind the first bytes that are no code, apart.

    A tuple, because tens of thousands of them come back from other processes.
    """

    certain: frozenset[int] = frozenset()
    doubtful: frozenset[int] = frozenset()
    is_broken: bool = False


_NOTHING = _Codes()


def _decoded(pieces: Iterable[tuple[int, bytes]]) -> list[_Codes]:
    """What the *pieces* of code hold, one by one; the loop that all the time goes into."""
    telling = frozenset(needed()) | {CPUID}
    found = []
    for _, data in pieces:
        codes = set(map(_code_of, Decoder(_BITS, data)))
        if INVALID in codes:
            found.append(_split(data, telling))
        elif telling.isdisjoint(codes):
            found.append(_NOTHING)
        else:
            found.append(_Codes(telling & codes))
    return found


def _split(data: bytes, telling: frozenset[int]) -> _Codes:
    codes = iter(map(_code_of, Decoder(_BITS, data)))
    certain = telling.intersection(takewhile(lambda code: code != INVALID, codes))
    return _Codes(certain, telling.intersection(codes) - certain, is_broken=True)


def _needs(codes: Iterable[int]) -> frozenset[str]:
    table = needed()
    return frozenset(feature for code in codes if code in table for feature in table[code])


def regions_of(elf: Elf) -> Iterator[Region]:
    """The code of *elf*, cut at the starts and ends of functions; padding and objects that lie in code left out."""
    for code in elf.code:
        starts = {symbol.address: symbol for symbol in _within(code, elf.functions)}
        skipped = {symbol.address: symbol for symbol in _within(code, elf.objects) if symbol.size}
        cuts = sorted({code.address, code.end, *starts, *skipped})
        outer: Symbol | None = None
        for start, end in pairwise(cuts):
            if (symbol := starts.get(start)) and (outer is None or symbol.end > outer.end):
                outer = symbol
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
    """Those of *symbols*, which are in order of address, that begin in *code*."""
    start = bisect_left(symbols, code.address, key=_address_of)
    return symbols[start : bisect_left(symbols, code.end, start, key=_address_of)]


def _slice(code: CodeSection, start: int, end: int) -> bytes:
    return code.data[max(start, code.address) - code.address : end - code.address]
