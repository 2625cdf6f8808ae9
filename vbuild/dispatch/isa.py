"""What the code in an ELF file needs of the processor, by disassembly, function by function.

    ELF -> regions (a function, or what lies between two) -> instruction codes -> CPU features above the baseline

Decoding keeps a core busy and holds Python's lock, so it is spread over processes.

Each function is decoded from its start, so data in front of it cannot put the decoder out of step. What stands in a
function behind the first bytes that are not instructions, and is not reached from its start, may be data, and so may
all that stands around such bytes outside any function: it is kept apart as *doubtful*. Such bytes that are reached are
the feature `UNKNOWN`, which no processor is known to have.

`vbuild.hardware.cpu.X86_64_FEATURES` says which x86-64 level has the CPU feature that an instruction needs. AES, SHA,
VAES, GFNI, the other AVX-512s and AMX belong to no level. Instructions that older processors execute as something
harmless, or with which a program asks what the processor has, count for no level.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, pairwise
from operator import attrgetter
from typing import NamedTuple, Self, TypeVar

from vbuild.binary.code import CodeSection, Symbol
from vbuild.dispatch.undecodable import described, instructions_of
from vbuild.elf.code import CodeFile
from vbuild.elf.iced import Code, CpuidFeature, Decoder, EncodingKind, Formatter, FormatterSyntax, Instruction
from vbuild.hardware.cpu import available_cores, feature_rank
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


# What every x86-64 processor has
_BASELINE = {"INTEL8086", "INTEL186", "INTEL286", "INTEL386", "INTEL486", "X64", "FPU", "FPU287", "FPU387"}
_BASELINE |= {"CMOV", "CX8", "MMX", "SSE", "SSE2", "FXSR", "CLFSH"}
# what only an operating system executes
_SYSTEM = {"SYSCALL", "SEP", "MSR", "SMM", "MONITOR", "VMX", "SVM", "INVPCID", "INVEPT", "INVVPID", "SMAP", "WBNOINVD"}
# hints do nothing on processors that do not know them
_HINTS = {"MULTIBYTENOP", "PAUSE", "CET_IBT", "CET_SS", "MPX", "CLDEMOTE", "PREFETCHW", "PREFETCHWT1", "PREFETCHITI"}
_HINTS |= {"HLE", "HLE_OR_RTM"}
# with which a program asks what the processor has
_QUESTIONS = {"TSC", "RDPMC", "CPUID"}
_OF_NO_LEVEL = frozenset(_BASELINE | _SYSTEM | _HINTS | _QUESTIONS)
_NAMES = {
    number: name.replace("SSE4_", "SSE4.") for name, number in vars(CpuidFeature).items() if isinstance(number, int)
}
_CODES = {name: number for name, number in vars(Code).items() if isinstance(number, int)}

INVALID: int = Code.INVALID
# what bytes need that are not understood
UNKNOWN = "UNKNOWN"
CPUID: int = Code.CPUID
XGETBV: int = Code.XGETBV


@cache
def features_by_code() -> dict[int, frozenset[str]]:
    """The features, above the baseline, that each of iced-x86's instruction codes needs; codes without are left out."""
    features_by_code = {INVALID: frozenset({UNKNOWN})}
    for name, number in _CODES.items():
        if features := _features(name, number) - _OF_NO_LEVEL:
            features_by_code[number] = features
    return features_by_code


def _features(name: str, number: int) -> frozenset[str]:
    # F3 0F BC is rep bsf to a processor without BMI1, and compilers emit it for a bsf whose input is not zero;
    # AMD's 3DNow! brought prefetch and prefetchw, every 64-bit processor takes them; and XGETBV is part of a question:
    # that another one comes before it is the business of who looks at ways
    if name.startswith(("TZCNT", "PREFETCH")) or name == "XGETBV":
        return frozenset()
    if name in {"LAHF", "SAHF"}:
        return frozenset({"LAHF-SAHF"})
    features = {_NAMES[feature] for feature in _bare(number).cpuid_features()}
    return frozenset("OSXSAVE" if feature.startswith("XSAVE") else feature for feature in features)


@cache
def vector_encoded() -> frozenset[int]:
    """The instruction codes with a VEX or EVEX prefix: compilers emit them for v3 or v4 alone."""
    kinds = {EncodingKind.VEX, EncodingKind.EVEX}
    return frozenset(number for number in _CODES.values() if _bare(number).encoding in kinds)


def _bare(number: int) -> Instruction:
    instruction = Instruction()
    # the stubs say enum, the values are plain integers
    instruction.code = number  # type: ignore[assignment]
    return instruction


_BITS = 64
_code_of = attrgetter("code")


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

    def above(self, level: int, *, extras: frozenset[str] = frozenset()) -> frozenset[str]:
        return frozenset(feature for feature in self.features if feature_rank(feature) > level) - extras

    def uses(self, features: Iterable[str]) -> tuple[FeatureUse, ...]:
        missing = set(features)
        uses = []
        formatter = Formatter(FormatterSyntax.INTEL)
        address, data = self.region.address, self.region.data
        for instruction in instructions_of(data, address):
            for feature in sorted(missing & features_by_code().get(instruction.code, frozenset())):
                missing.remove(feature)
                text = formatter.format(instruction) if instruction else described(data[instruction.ip - address :])
                uses.append(FeatureUse(feature, instruction.ip, text))
        return tuple(uses)


@dataclass(frozen=True, slots=True)
class Isa:
    """What all code of a file needs: the regions that need more than the baseline, in order of address.

    *cpuid* holds the addresses of the regions that ask the processor what it has, *invalid* counts those with
    bytes that are not instructions.
    """

    code_size: int
    regions: tuple[RegionIsa, ...]
    cpuid: tuple[int, ...]
    invalid: int

    @classmethod
    def scan(cls, elf: CodeFile, executor: ProcessPool | None = None) -> Self:
        """The instruction sets that an x86-64 *elf* needs; a large file is spread over the *executor*'s processes.

        One core decodes about 25 MB of code a second.
        """
        regions = tuple(regions_of(elf))
        needing: list[RegionIsa] = []
        cpuid: list[int] = []
        invalid = 0
        pieces = ((region.address, region.data) for region in regions)
        decode = partial(_decoded, has_tables=elf.system != "linux")
        for region, codes in zip(regions, spread(decode, pieces, executor), strict=True):
            if not codes.certain and not codes.doubtful:
                continue
            invalid += codes.is_broken
            if CPUID in codes.certain:
                cpuid.append(region.address)
            certain, doubtful = _needs(codes.certain), _needs(codes.doubtful)
            if codes.is_broken and not is_function(region.function):
                # data between functions, or behind a label: tables, constants
                certain, doubtful = frozenset(), certain | doubtful
            if certain or doubtful:
                is_encoded = not vector_encoded().isdisjoint(codes.certain)
                needing.append(RegionIsa(region, certain, doubtful - certain, is_encoded))
        return cls(elf.code_size, tuple(needing), tuple(cpuid), invalid)

    @property
    def features(self) -> frozenset[str]:
        return frozenset(feature for region in self.regions for feature in region.features)


class _Codes(NamedTuple):
    """The telling instruction codes of a region; apart, those behind the first bytes that are not code.

    A tuple, because tens of thousands of them come back from other processes.
    """

    certain: frozenset[int] = frozenset()
    doubtful: frozenset[int] = frozenset()
    is_broken: bool = False


_NOTHING = _Codes()


def _decoded(pieces: Iterable[tuple[int, bytes]], *, has_tables: bool) -> list[_Codes]:
    """What each of the *pieces* of code holds; this loop takes nearly all the time.

    Outside Linux compilers put tables of jumps into functions.
    """
    telling = frozenset(features_by_code()) | {CPUID}
    decoded = []
    for _, data in pieces:
        codes = set(map(_code_of, Decoder(_BITS, data)))
        if INVALID in codes:
            certain = telling.intersection(map(_code_of, instructions_of(data, 0, has_tables=has_tables)))
            decoded.append(_Codes(certain, (telling & codes) - certain, is_broken=True))
        elif telling.isdisjoint(codes):
            decoded.append(_NOTHING)
        else:
            decoded.append(_Codes(telling & codes))
    return decoded


def is_function(symbol: Symbol | None) -> bool:
    """Whether *symbol* stands for code: it has an end, as its own type or an unwind entry says, or others call it."""
    return symbol is not None and (symbol.size > 0 or symbol.is_exported)


def _needs(codes: Iterable[int]) -> frozenset[str]:
    table = features_by_code()
    return frozenset(feature for code in codes if code in table for feature in table[code])
