"""What the code in an ELF file needs of the processor, by disassembly, function by function.

    ELF -> regions (a function, or what lies between two) -> instruction codes -> CPU features above the baseline

Each function is decoded from its start, so data in front of it cannot put the decoder out of step. What stands in a
function behind the first bytes that are not an instruction may be data, and so may all that stands around such bytes
outside any function: it is kept apart as *doubtful*.

Spread the decoding of code over processes: it keeps a core busy and holds Python's lock.

The processes are made by a fork server, never by a fork of the caller, which may have threads. A pool that breaks -
a worker killed for memory, a calling script that cannot be imported again - costs time only: the work is done here.

`vbuild.hardware.cpu.X86_64_FEATURES` says which x86-64 level has the CPU feature that an instruction needs. AES, SHA,
VAES, GFNI, the other AVX-512s and AMX belong to no level. Instructions that older processors execute as something
harmless, or with which a program asks what the processor has, count for no level.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import chain, pairwise, takewhile
from multiprocessing import get_context
from operator import attrgetter
from typing import NamedTuple, Self, TypeVar

from iced_x86 import Code, CpuidFeature, Decoder, EncodingKind, Formatter, FormatterSyntax, Instruction

from vbuild.elf.code import CodeSection, Elf, Symbol
from vbuild.hardware.cpu import X86_64_FEATURES, X86_64_LEVELS, available_cores

RANKS = {feature.name: X86_64_LEVELS.index(level) for level in X86_64_LEVELS[1:] for feature in X86_64_FEATURES[level]}
BEYOND = len(X86_64_LEVELS)

# What every x86-64 processor has
_BASELINE = {"INTEL8086", "INTEL186", "INTEL286", "INTEL386", "INTEL486", "X64", "FPU", "FPU287", "FPU387"}
_BASELINE |= {"CMOV", "CX8", "MMX", "SSE", "SSE2", "FXSR", "CLFSH"}
# what only an operating system executes
_SYSTEM = {"SYSCALL", "SEP", "MSR", "SMM", "MONITOR", "VMX", "SVM", "INVPCID", "INVEPT", "INVVPID", "SMAP", "WBNOINVD"}
# hints do nothing on processors that do not know them
_HINTS = {"MULTIBYTENOP", "PAUSE", "CET_IBT", "CET_SS", "MPX", "CLDEMOTE", "PREFETCHW", "PREFETCHWT1", "PREFETCHITI"}
_HINTS |= {"HLE", "HLE_OR_RTM"}
# with which a program asks what the processor has
_QUESTIONS = {"TSC", "RDTSCP", "RDPMC", "CPUID"}
_OF_NO_LEVEL = frozenset(_BASELINE | _SYSTEM | _HINTS | _QUESTIONS)
_NAMES = {
    number: name.replace("SSE4_", "SSE4.") for name, number in vars(CpuidFeature).items() if isinstance(number, int)
}
_CODES = {name: number for name, number in vars(Code).items() if isinstance(number, int)}

INVALID = _CODES["INVALID"]
CPUID = _CODES["CPUID"]


@cache
def features_by_code() -> dict[int, frozenset[str]]:
    """The features, above the baseline, that each of iced-x86's instruction codes needs; codes without are left out."""
    found = {}
    for name, number in _CODES.items():
        if features := _features(name, number) - _OF_NO_LEVEL:
            found[number] = features
    return found


def _features(name: str, number: int) -> frozenset[str]:
    # F3 0F BC is rep bsf to a processor without BMI1, and compilers emit it for a bsf whose input is not zero
    if name.startswith("TZCNT"):
        return frozenset()
    if name in {"LAHF", "SAHF"}:
        return frozenset({"LAHF-SAHF"})
    if name.startswith("XGETBV"):
        return frozenset()
    instruction = _bare(number)
    features = {_NAMES[feature] for feature in instruction.cpuid_features()}
    # prefetch, prefetchw: AMD's 3DNow! brought them, every 64-bit processor takes them
    if name.startswith("PREFETCH"):
        return frozenset()
    return frozenset("OSXSAVE" if feature.startswith("XSAVE") else feature for feature in features)


@cache
def vector_encoded() -> frozenset[int]:
    """The instruction codes that have a VEX or EVEX prefix: what a compiler for v3 or v4 emits and others never do."""
    kinds = {EncodingKind.VEX, EncodingKind.EVEX}
    return frozenset(number for number in _CODES.values() if _bare(number).encoding in kinds)


def _bare(number: int) -> Instruction:
    instruction = Instruction()
    # the stubs say enum, the values are plain integers
    instruction.code = number  # type: ignore[assignment]
    return instruction


def rank(feature: str) -> int:
    """The position of the lowest level that has *feature*, 1 for v2; one more than v4's where no level has it."""
    return RANKS.get(feature, BEYOND)


def level(features: frozenset[str]) -> str:
    """The lowest level that has all *features*; ``beyond v4`` if there is none."""
    highest = max((rank(feature) for feature in features), default=0)
    return f"beyond {X86_64_LEVELS[-1]}" if highest == BEYOND else X86_64_LEVELS[highest]


def dispatch_rank(feature: str) -> int:
    """The lowest level at which a name like ``foo_avx2`` still explains *feature*.

    Features that came with no level, such as AES or PCLMULQDQ, are common at every level above the baseline;
    the AVX-512 and AMX ones are not.
    """
    if feature in RANKS:
        return RANKS[feature]
    is_late = feature.startswith(("AVX512", "AVX10", "AMX"))
    return X86_64_LEVELS.index("v4" if is_late else "v2")


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
    """The features above the baseline that a region needs; *doubtful* ones are only behind bytes that are not code."""

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
            for feature in sorted(missing & features_by_code().get(instruction.code, frozenset())):
                missing.remove(feature)
                found.append(FeatureUse(feature, instruction.ip, formatter.format(instruction)))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Isa:
    """What all code of a file needs: the regions that need more than the baseline, in order of address.

    *cpuid* holds the addresses of the regions that ask the processor what it has, *invalid* counts those with
    bytes that are not an instruction.
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
    """The instruction codes of a region that say something; apart from those behind the first bytes that are not code.

    A tuple, because tens of thousands of them come back from other processes.
    """

    certain: frozenset[int] = frozenset()
    doubtful: frozenset[int] = frozenset()
    is_broken: bool = False


_NOTHING = _Codes()


def _decoded(pieces: Iterable[tuple[int, bytes]]) -> list[_Codes]:
    """What the *pieces* of code hold, one by one; the loop that all the time goes into."""
    telling = frozenset(features_by_code()) | {CPUID}
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
    table = features_by_code()
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
