"""Tell code that is chosen at run time from code that every caller runs.

A function above the claimed level is no violation when something says that only processors that have the feature
get to run it. Names, the baseline build and reach count only in a wheel that can ask the processor at all, and a
name explains no more than it says: AVX-512 in ``dot_avx2`` is a violation.
"""

import re
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache
from hashlib import blake2b
from operator import attrgetter

from vbuild.binary.elf import Elf
from vbuild.binary.features import dispatch_rank
from vbuild.binary.isa import Isa, RegionIsa
from vbuild.binary.reach import Graph
from vbuild.hardware.cpu import X86_64_LEVELS


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
    """The above-baseline code of the build that was told nothing: what is in it was not caused by flags."""

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
class Evidence:
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
    elf: Elf, isa: Isa, level: int, *, evidence: Evidence, executor: Executor | None = None
) -> tuple[Judged, ...]:
    """Every region of *elf* with features above the level of rank *level*, accepted or not."""
    found = tuple(
        Judged(region, features, evidence.direct(region, features))
        for region in isa.regions
        if (features := region.above(level))
    )
    open_ranks = {one.rank for one in found if one.reason is None and one.isa.region.function}
    if not open_ranks or not evidence.asks or not elf.has_sections:
        return found
    graph = Graph.of(elf, executor, cpuid=isa.cpuid)
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
