"""Which code is chosen at run time, and which one every caller runs.

A function above the claimed level is not a violation if something says that only processors that have the feature
get to run it. Names, the baseline build and reach count only in a wheel that can ask the processor at all, and a
name explains no more than it says: AVX-512 in ``dot_avx2`` is a violation.

Which functions of a file run without going through a function that only a dispatcher chooses.

    roots     what other files, the loader or unlabelled data can call: exported symbols, addresses in data that
              belongs to no object
    edges     a function to what its instructions point at; an object to what the addresses in it point at
    gates     functions that are known to be chosen at run time: the walk does not go through them
    askers    functions that ask the processor or read what it answered, and ifunc resolvers: the walk does not
              follow the functions that they point at

A static helper of ``foo_avx2`` has a name that says nothing; that only ``foo_avx2`` can reach it says enough.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Executor
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache
from hashlib import blake2b
from operator import attrgetter
from typing import Self

from iced_x86 import Decoder, Instruction

from vbuild.elf.code import Elf
from vbuild.elf.isa import Isa, RegionIsa, dispatch_rank, regions_of, spread
from vbuild.hardware.cpu import X86_64_LEVELS

_BITS = 64
# libgcc's __cpu_indicator_init has four; a module's whole set-up, with the question inlined, uses dozens
_FEW_VARIABLES = 16
_MODEL_SIZE, _FIELD_SIZE = 16, 4
_MODULE_ENTRIES = ("PyInit_", "PyInitU_", "PyModExport_")
# where compilers' run-time libraries keep what the processor has
_MODELS = frozenset({"__cpu_model", "__cpu_features2", "__cpu_indicator_init"})


@dataclass(frozen=True, slots=True)
class CallGraph:
    """What points at what in a file, by address; a nameless place in data that holds an address is a node as well."""

    edges: Mapping[int, AbstractSet[int]]
    functions: frozenset[int]
    roots: frozenset[int]
    askers: frozenset[int]

    @classmethod
    def of(cls, elf: Elf, executor: Executor | None = None, *, cpuid: Iterable[int] = ()) -> Self:
        """The graph of *elf*, in which the functions at *cpuid* execute that instruction."""
        nodes = _Nodes(elf)
        roots, edges = set(_entries(elf)), dict[int, set[int]]()
        regions = [region for region in regions_of(elf) if not nodes.is_stub(region.address)]
        asking = {symbol.address for symbol in elf.functions if symbol.is_resolver}.union(cpuid)
        variables: dict[int, frozenset[int]] = {}
        targets = spread(_targets, ((region.address, region.data) for region in regions), executor)
        for region, found in zip(regions, targets, strict=True):
            reached = set(filter(None, map(nodes.at, found)))
            if region.function is None:
                roots |= reached
                continue
            source = region.function.address
            edges.setdefault(source, set()).update(reached - {source})
            variables[source] = variables.get(source, frozenset()).union(filter(nodes.is_variable, found))
        answers = nodes.models.union(*(_answers(variables.get(source, frozenset())) for source in asking))
        asking.update(source for source, used in variables.items() if not answers.isdisjoint(used))
        pointed = roots.union(*edges.values())
        for place, target in elf.pointers:
            holder = nodes.symbol(place)
            if node := nodes.at(target):
                edges.setdefault(place if holder is None else holder, set()).add(node)
            # an address at a place that no code points at is used in a way that is not seen here
            if holder is None and place not in pointed:
                roots.add(place)
        if elf.type != "ET_DYN":
            # a program at a fixed address has no list of the addresses in its data
            roots |= nodes.functions - pointed
        return cls(
            edges,
            nodes.functions,
            frozenset(roots),
            frozenset(asking),
        )

    def reached(self, gates: frozenset[int]) -> frozenset[int]:
        """The addresses of everything that runs, or is read, without any of *gates* having been chosen."""
        seen: set[int] = set()
        waiting = set(self.roots - gates)
        while waiting:
            node = waiting.pop()
            seen.add(node)
            targets = self.edges.get(node, frozenset())
            waiting |= (targets - self.functions if node in self.askers else targets) - gates - seen
        return frozenset(seen)


def _entries(elf: Elf) -> Iterator[int]:
    """The addresses that other files use: all that is exported, but of an extension module only what Python calls."""
    exported = [symbol for symbol in (*elf.functions, *elf.objects) if symbol.is_exported]
    called = [symbol for symbol in exported if any(name.startswith(_MODULE_ENTRIES) for name in symbol.names)]
    # nothing links against an extension module, and Python opens it with RTLD_LOCAL
    yield from (symbol.address for symbol in called or exported)


def _answers(variables: frozenset[int]) -> frozenset[int]:
    """Where a function that asks the processor, uses these *variables* and does little else, notes the answer."""
    if len(variables) > _FEW_VARIABLES:
        return frozenset()
    # __cpu_model is a struct of four numbers; code that writes it may point at its start, code that reads it does not
    return frozenset(start + offset for start in variables for offset in range(0, _MODEL_SIZE, _FIELD_SIZE))


class _Nodes:
    """The function, object or pointer that an address belongs to."""

    def __init__(self, elf: Elf) -> None:
        stubs = [code for code in elf.code if code.name.startswith(".plt")]
        self._stubs = [range(code.address, code.end) for code in stubs]
        # each stub of a PLT jumps through one place; what calls the stub uses that place
        self._jumps = [
            (instruction.ip, instruction.ip_rel_memory_address)
            for code in stubs
            for instruction in Decoder(_BITS, code.data, ip=code.address)
            if instruction.is_ip_rel_memory_operand
        ]
        symbols = (*elf.functions, *elf.objects)
        self._symbols = sorted(
            (symbol for symbol in symbols if not self.is_stub(symbol.address)), key=lambda symbol: symbol.address
        )
        self._starts = [symbol.address for symbol in self._symbols]
        self._writable = elf.writable
        self._places = {place for place, _ in (*elf.pointers, *elf.import_places)}
        self.functions = frozenset(symbol.address for symbol in elf.functions)
        self.models = frozenset(
            [symbol.address for symbol in symbols if not _MODELS.isdisjoint(symbol.names)]
            + [place for place, name in elf.import_places if name in _MODELS]
        )

    def is_variable(self, address: int) -> bool:
        return any(address in addresses for addresses in self._writable)

    def is_stub(self, address: int) -> bool:
        return any(address in stubs for stubs in self._stubs)

    def at(self, address: int) -> int | None:
        if self.is_stub(address):
            index = bisect_left(self._jumps, (address, 0))
            return self._known(self._jumps[index][1]) if index < len(self._jumps) else None
        return self._known(address)

    def _known(self, address: int) -> int | None:
        symbol = self.symbol(address)
        return address if symbol is None and address in self._places else symbol

    def symbol(self, address: int) -> int | None:
        """Where the function or object starts that *address* lies in."""
        index = bisect_right(self._starts, address) - 1
        if index < 0:
            return None
        symbol = self._symbols[index]
        return symbol.address if address < symbol.end or address == symbol.address else None


def _targets(pieces: Iterable[tuple[int, bytes]]) -> list[frozenset[int]]:
    """The addresses that the instructions of each of *pieces* point at, those inside the piece left out."""
    found = []
    for address, data in pieces:
        end = address + len(data)
        targets = {
            target
            for instruction in Decoder(_BITS, data, ip=address)
            if (target := _target(instruction)) and not address <= target < end
        }
        found.append(frozenset(targets))
    return found


def _target(instruction: Instruction) -> int:
    """The address a branch goes to or an operand has relative to the instruction; 0 for neither."""
    branch = instruction.near_branch_target
    return branch or (instruction.ip_rel_memory_address if instruction.is_ip_rel_memory_operand else 0)


class Reason(StrEnum):
    """Why a function above the level is accepted."""

    ALLOWED = "allowed by name"
    LIBRARY = "in a library named for its level"
    NAMED = "named for its level"
    BASELINE = "as in the baseline build"
    UNREACHED = "reached by nothing but dispatched code"


# What a name says about the level, highest first. These words occur in nothing else, ...
_WORDS = {
    "v4": (
        *("avx512", "avx_512", "avx10", "x86_v4", "x86_64_v4", "x86-64-v4", "znver4", "znver5"),
        *("skylakex", "skylake_x", "skylake_avx512", "cascadelake", "cooperlake", "icelake", "tigerlake"),
        *("rocketlake", "cannonlake", "sapphirerapids", "emeraldrapids", "graniterapids"),
    ),
    "v3": (
        *("avx", "x86_v3", "x86_64_v3", "x86-64-v3", "znver", "f16c", "lzcnt", "movbe", "vpclmul", "haswell"),
        *("broadwell", "skylake", "sandybridge", "sandy_bridge", "ivybridge", "ivy_bridge", "bulldozer"),
        *("piledriver", "steamroller", "excavator"),
    ),
    "v2": (
        *("x86_v2", "x86_64_v2", "x86-64-v2", "ssse3", "popcnt", "aesni", "aes_ni", "clmul", "shani", "sha_ni"),
        *("shaext", "rdrand", "rdseed", "nehalem", "westmere", "penryn", "dunnington", "barcelona", "prescott"),
    ),
}
# ... and these do ("fmax", "frozen"), so they must stand alone: no letter before them, none of their own case behind
_LONE_WORDS = {
    "v4": ("skx", "knl", "knm", "zen4", "zen5", "amx", "vnni", "vbmi", "vbmi2", "zmm"),
    "v3": ("fma", "fma3", "fma4", "bmi", "bmi1", "bmi2", "zen", "xop", "ymm", "vaes", "gfni"),
    "v2": ("sse3", "sse4", "sse_4", "adx", "aes", "cx16", "core2", "atom", "nano", "bobcat"),
}
# what compilers append to the name of a function that they split or copied
_SPLIT = re.compile(r"(?:\.(?:cold|isra|constprop|part|lto_priv|localalias|llvm)(?:\.\d+)*)+$")
_CPU_MODEL = frozenset({"__cpu_model", "__cpu_indicator_init", "__x86_get_cpuid_feature_leaf"})
_code_of = attrgetter("code")


@lru_cache(maxsize=1 << 18)
def named_rank(name: str) -> int:
    """The rank of the highest level that *name* names; 0 for none."""
    lower = name.lower()
    for level, words in _WORDS.items():
        lone = [word for word in _LONE_WORDS[level] if word in lower]
        if any(word in lower for word in words) or any(_stands_alone(word, name) for word in lone):
            return X86_64_LEVELS.index(level)
    return 0


def _stands_alone(word: str, name: str) -> bool:
    pattern = rf"(?<![A-Za-z])(?:{word}(?![a-z])|{word.upper()}(?![A-Z]))"
    return re.search(pattern, name) is not None


def asks_processor(elf: Elf, isa: Isa) -> bool:
    """Whether the code can find out what the processor has."""
    return (
        bool(isa.cpuid)
        or any(symbol.is_resolver for symbol in elf.functions)
        or any(symbol.name in _CPU_MODEL for symbol in elf.imports)
    )


@dataclass(frozen=True, slots=True)
class Judged:
    """A region with features above the level, and why it is accepted; None for a violation."""

    isa: RegionIsa
    features: frozenset[str]
    reason: Reason | None

    @property
    def rank(self) -> int:
        return max(map(dispatch_rank, self.features))


class Baseline:
    """The code above the baseline in the build without flags for a level: no flag has caused what is in it."""

    def __init__(self, elf: Elf, executor: Executor | None = None) -> None:
        self._elf = elf
        self._executor = executor

    @cached_property
    def _regions(self) -> tuple[RegionIsa, ...]:
        return Isa.scan(self._elf, self._executor).regions

    @cached_property
    def _by_name(self) -> dict[str, frozenset[str]]:
        found: dict[str, frozenset[str]] = {}
        for region in self._regions:
            for name in _names(region):
                found[name] = found.get(name, frozenset()) | region.features
        return found

    @cached_property
    def _nameless(self) -> frozenset[bytes]:
        return frozenset(_fingerprint(region) for region in self._regions if not _names(region))

    def has(self, region: RegionIsa, features: frozenset[str]) -> bool:
        """Whether the baseline's function of that name needs all *features*; a nameless one, its instructions."""
        if names := _names(region):
            return any(features <= self._by_name.get(name, frozenset()) for name in names)
        return _fingerprint(region) in self._nameless


@dataclass(frozen=True, slots=True)
class DispatchEvidence:
    """What speaks for run-time dispatch besides the file itself."""

    path: str
    asks: bool
    baseline: Baseline | None = None
    allow: tuple[re.Pattern[str], ...] = ()

    def direct(self, region: RegionIsa, features: frozenset[str]) -> Reason | None:
        """The reason that the function's name, its file's name or the baseline gives."""
        needed = max(map(dispatch_rank, features))
        names = region.region.function.names if region.region.function else ()
        if any(pattern.search(text) for pattern in self.allow for text in (self.path, *names)):
            return Reason.ALLOWED
        return self._dispatched(region, features, needed) if self.asks else None

    def _dispatched(self, region: RegionIsa, features: frozenset[str], needed: int) -> Reason | None:
        names = region.region.function.names if region.region.function else ()
        if named_rank(self.path.rpartition("/")[2]) >= needed:
            return Reason.LIBRARY
        if any(named_rank(name) >= needed for name in names):
            return Reason.NAMED
        if self.baseline and self.baseline.has(region, features):
            return Reason.BASELINE
        return None


def judged(
    elf: Elf, isa: Isa, level: int, *, evidence: DispatchEvidence, executor: Executor | None = None
) -> tuple[Judged, ...]:
    """Every region of *elf* with features above the level of rank *level*, accepted or not."""
    found = tuple(
        Judged(region, features, evidence.direct(region, features))
        for region in isa.regions
        if (features := region.above(level))
    )
    open_ranks = {one.rank for one in found if one.reason is None and one.isa.region.function}
    if not open_ranks or not evidence.asks or not elf.sections:
        return found
    graph = CallGraph.of(elf, executor, cpuid=isa.cpuid)
    reached = {rank: graph.reached(_gates(elf, found, rank)) for rank in open_ranks}
    return tuple(_unreached(one, reached) for one in found)


def _gates(elf: Elf, found: Iterable[Judged], rank: int) -> frozenset[int]:
    """The functions and tables that only processors with the level of *rank* get to use."""
    named = {
        symbol.address
        for symbol in (*elf.functions, *elf.objects)
        if any(named_rank(name) >= rank for name in symbol.names)
    }
    accepted = {
        one.isa.region.function.address for one in found if one.reason and one.isa.region.function and one.rank >= rank
    }
    return frozenset(named | accepted)


def _unreached(one: Judged, reached: dict[int, frozenset[int]]) -> Judged:
    function = one.isa.region.function
    if one.reason is None and function and function.address not in reached[one.rank]:
        return Judged(one.isa, one.features, Reason.UNREACHED)
    return one


def _names(region: RegionIsa) -> tuple[str, ...]:
    names: Sequence[str] = region.region.function.names if region.region.function else ()
    return tuple(_SPLIT.sub("", name) for name in names)


def _fingerprint(region: RegionIsa) -> bytes:
    """A digest of the instructions without their operands, which hold addresses."""
    codes = map(_code_of, region.region.instructions())
    return blake2b(b"".join(code.to_bytes(2, "little") for code in codes), digest_size=16).digest()
