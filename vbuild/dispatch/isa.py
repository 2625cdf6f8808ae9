"""What the code in an ELF file needs of the processor, by disassembly, function by function.

    ELF -> regions (a function, or what lies between two) -> instruction codes -> CPU features above the baseline

Decoding keeps a core busy and holds Python's lock, so it is spread over processes.

Each function is decoded from its start, so data in front of it cannot put the decoder out of step. Behind the first
bytes of a function that are not instructions, what is not reached from its start may be data; outside functions, so may
everything around such bytes: both are *doubtful*. Such bytes that are reached need the feature `UNKNOWN`, which no
processor is known to have.

`vbuild.hardware.cpu.X86_64_FEATURES` says which x86-64 level has the CPU feature that an instruction needs. AES, SHA,
VAES, GFNI, the other AVX-512s and AMX belong to no level. Instructions that older processors execute as something
harmless, or with which a program asks what the processor has, count for no level.

The decoder is of January 2024, and some bytes, such as tables and texts between functions, are not instructions. What
it does not know may be:

    D5              REX2: APX (Intel APX Architecture Specification, 3.1.1)
    62, map 4       APX's forms of older instructions; so are bits of other maps that name registers from R16 on
    62, other maps  AVX10.2 and whatever follows it
    C4, C5          new instructions with a VEX prefix, as AMX has them
    0F 38           MOVRS, USER_MSR
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, pairwise, takewhile
from operator import attrgetter
from typing import NamedTuple, Self, TypeVar

from vbuild.binary.code import CodeSection, Symbol
from vbuild.elf.code import CodeFile
from vbuild.elf.iced import (
    Code,
    CpuidFeature,
    Decoder,
    EncodingKind,
    FlowControl,
    Formatter,
    FormatterSyntax,
    Instruction,
    Mnemonic,
)
from vbuild.hardware.cpu import available_cores, feature_rank
from vbuild.process.pool import ProcessPool

_BITS = 64
_PREFIXES = frozenset(bytes.fromhex("26 2e 36 3e 64 65 66 67 f0 f2 f3"))
_REX = range(0x40, 0x50)
_REX2, _EVEX, _VEX_LONG, _VEX, _ESCAPE, _THREE_BYTES = 0xD5, 0x62, 0xC4, 0xC5, 0x0F, 0x38
# VEX's and EVEX's map that promotes the first 256 opcodes, the one whose opcodes have a byte behind the operands, and
# the one whose have four
_LEGACY, _WITH_BYTE, _WITH_NUMBER = 4, 3, 7
# opcodes with a number behind the operands, of map 1, and of map 4: of one byte, and of four
_SHUFFLES = frozenset(bytes.fromhex("70 71 72 73 c2 c4 c5 c6"))
_BYTES, _NUMBERS, _TESTS = frozenset(bytes.fromhex("24 2c 6b 80 83 c0 c1 d4")), frozenset({0x69, 0x81}), {0xF6, 0xF7}
# by map, the instructions with VEX that APX gives registers from R16 on: of masks, BMI, CMPccXADD, AMX
_GENERAL: dict[int, frozenset[int]] = {
    1: frozenset(range(0x90, 0x94)),
    2: frozenset({0xF2, 0xF3, 0xF5, 0xF6, 0xF7, 0x49, 0x4B, *range(0xE0, 0xF0)}),
    3: frozenset({0xF0}),
}
_ENDS = frozenset(
    {FlowControl.RETURN, FlowControl.UNCONDITIONAL_BRANCH, FlowControl.INDIRECT_BRANCH}
    | {FlowControl.INTERRUPT, FlowControl.EXCEPTION}
)
_JUMPS = frozenset({FlowControl.CONDITIONAL_BRANCH, FlowControl.UNCONDITIONAL_BRANCH})
_CALLS = frozenset({FlowControl.CALL, FlowControl.INDIRECT_CALL})
# bytes of the longest instruction, and that are shown of what is none
_LONGEST, _SHOWN = 15, 4


class Unknown(NamedTuple):
    """Bytes that the decoder does not know: how many, and what they may be; empty for nothing that is known."""

    size: int
    kind: str


_NONE = Unknown(0, "")


def unknown(data: bytes) -> Unknown:
    """What the bytes at the start of *data*, which the decoder does not know, may be."""
    start = 0
    while start < len(data) and data[start] in _PREFIXES:
        start += 1
    head, behind = data[:start], data[start:_LONGEST] + bytes(_LONGEST)
    size, kind = 0, ""
    if behind[0] == _REX2:
        # the same instruction with REX has the same length: a map is a bit here, and a byte there
        map_, rex = behind[1] >> 7, 0x40 | behind[1] & 8
        instruction = _first(head + bytes([rex, *[_ESCAPE] * map_]) + behind[2:])
        size, kind = len(instruction) + 1 - map_ - start if instruction else 0, "APX (REX2)"
    elif behind[0] == _EVEX and behind[1] & 7:
        map_, opcode = behind[1] & 7, behind[4]
        is_apx = map_ == _LEGACY or behind[1] & 8 or not behind[2] & 4 or opcode in _GENERAL.get(map_, ())
        size, kind = _sized(behind, 4, map_), "APX (EVEX)" if is_apx else "AVX10.2 or newer (EVEX)"
    elif behind[0] == _VEX_LONG:
        size, kind = _sized(behind, 3, behind[1] & 31), "newer than 2024 (VEX)"
    elif behind[0] == _VEX:
        size, kind = _sized(behind, 2, 1), "newer than 2024 (VEX)"
    else:
        rex = behind[0] in _REX
        if behind[rex : rex + 2] == bytes([_ESCAPE, _THREE_BYTES]):
            kinds = {0x8A: "MOVRS", 0x8B: "MOVRS", 0xF8: "USER_MSR"}
            kind = kinds.get(behind[rex + 2], "")
            size = _sized(behind, rex + 2, 2) if kind else 0
    return Unknown(start + size, kind) if size and start + size <= len(data) else _NONE


def _first(data: bytes) -> Instruction | None:
    instruction = Decoder(_BITS, data).decode()
    return instruction or None


def _sized(data: bytes, start: int, map_: int) -> int:
    """The length of an instruction of *map_* whose opcode is at *start* of *data*; 0 if it runs past the end."""
    opcode, operands = data[start], data[start + 1 :]
    # the nop that takes any operands
    if (nop := _first(b"\x0f\x1f" + operands)) is None:
        return 0
    size = start + 1 + len(nop) - 2
    if map_ == _LEGACY:
        is_test = opcode in _TESTS and not operands[0] & 0x30
        is_wide = opcode in _NUMBERS or (is_test and opcode & 1)
        wide = 2 if data[start - 2] & 3 == 1 else 4
        return size + (wide if is_wide else opcode in _BYTES or is_test)
    return size + (4 if map_ == _WITH_NUMBER else map_ == _WITH_BYTE or (map_ == 1 and opcode in _SHUFFLES))


def instructions_of(
    data: bytes, address: int, is_endless: Callable[[Instruction], bool] = lambda _: False, *, has_tables: bool = False
) -> Iterator[Instruction]:
    """The instructions of the code *data* at *address*, in order; behind bytes that are none, those that are reached.

    Bytes that are none are among these, as an instruction that is false, if they are reached. A call that *is_endless*
    does not come back. If it *has_tables* of jumps, these may look like code.
    """
    instructions = list(Decoder(_BITS, data, ip=address))
    # no step in Python for each, where there is nothing to ask
    if all(instructions):
        return iter(instructions)
    start = next(instruction.ip for instruction in instructions if not instruction)
    behind = list(_in_line(data, address, start - address))
    if has_tables or not (behind[-1] or is_newer(behind[-1])):
        behind = [instruction for instruction in _reached(data, address, is_endless)[0] if instruction.ip >= start]
    # otherwise all is code: what nothing jumps to is reached through tables, or handles errors
    return chain(takewhile(bool, instructions), behind)


def may_be_code(data: bytes, address: int) -> bool:
    """Whether all that is reached from the start of *data* may be instructions, and ends before *data* does."""
    _, is_clean = _reached(data, address, lambda _: False)
    return is_clean


def _reached(data: bytes, address: int, is_endless: Callable[[Instruction], bool]) -> tuple[list[Instruction], bool]:
    """What control flow reaches in *data* from its start, in order; and whether all may be code, and ends there."""
    reached: dict[int, Instruction] = {}
    waiting, is_clean = [0], True
    while waiting:
        start = waiting.pop()
        for instruction in _in_line(data, address, start) if 0 <= start < len(data) else ():
            if instruction.ip in reached:
                break
            reached[instruction.ip] = instruction
            flow = instruction.flow_control
            if flow in _JUMPS:
                waiting.append(instruction.near_branch_target - address)
            if instruction and (flow in _ENDS or instruction.mnemonic == Mnemonic.HLT):
                break
            if flow in _CALLS and is_endless(instruction):
                break
        else:
            is_clean = False
    return [reached[ip] for ip in sorted(reached)], is_clean


def decoded(data: bytes, address: int, start: int = 0) -> Iterator[Instruction]:
    """The instructions from *start* of *data* on; what can be none is one byte long."""
    decoder = Decoder(_BITS, data, ip=address)
    decoder.position, decoder.ip = start, address + start
    for instruction in decoder:
        if not instruction:
            ip = instruction.ip
            instruction.len = unknown(data[ip - address : ip - address + _LONGEST]).size or 1
            instruction.ip = ip
            if is_newer(instruction):
                decoder.position, decoder.ip = instruction.next_ip - address, instruction.next_ip
        yield instruction


def is_newer(instruction: Instruction) -> bool:
    return not instruction and instruction.len > 1


def _in_line(data: bytes, address: int, start: int) -> Iterator[Instruction]:
    """What is `decoded` from *start* of *data* on, up to bytes that can be none, which come last."""
    for instruction in decoded(data, address, start):
        yield instruction
        if not (instruction or is_newer(instruction)):
            return


def described(data: bytes) -> str:
    size, kind = unknown(data[:_LONGEST])
    if not size:
        return f"{data[:_SHOWN].hex(' ')} ..., no instruction that is known"
    return f"{size} bytes, {data[:size].hex(' ')}, may be {kind}"


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
