"""Which code above a level is chosen at run time, and which one runs on lesser processors.

What counts is how the code is reached (`reach`): each way from where other code enters passes a test of the processor
that shows the features. Names and tests elsewhere prove nothing. If a build without flags has the same function, the
flags did not cause it; it is not safe for that.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cached_property, lru_cache
from hashlib import blake2b

from msgspec import Struct

from vbuild.dispatch import arm
from vbuild.dispatch.answers import AARCH64, X86_64
from vbuild.dispatch.arm_code import ArmModule, without_addresses
from vbuild.dispatch.facts import implied, names_of
from vbuild.dispatch.isa import UNKNOWN, FeatureUse, Isa, Region, RegionIsa, instructions_of, is_function
from vbuild.dispatch.module import Module, Piece
from vbuild.dispatch.program import Program
from vbuild.dispatch.reach import Doubt, Reach
from vbuild.elf.code import CodeFile
from vbuild.hardware.cpu import X86_64_LEVELS
from vbuild.process.pool import ProcessPool


class Reason(StrEnum):
    """Why code above the level is accepted."""

    ALLOWED = "allowed by name"
    TESTED = "runs after a test of the processor"
    UNREACHED = "reached by no other code"


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
# the hash that rustc gives a function is another with other flags, and LLVM numbers those with equal names
RUST_HASH = re.compile(r"17h[0-9a-f]{16}E.*$")


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


class Judged(Struct, frozen=True):
    """A region with features above the level, and why it is accepted; no reason for a violation.

    *way* names the functions and tables through which it is reached without a test, itself last, *uses* are the first
    instructions above the level there, and *doubt* says why a test may have been missed.
    """

    isa: RegionIsa
    features: frozenset[str]
    reason: Reason | None
    way: tuple[str, ...] = ()
    uses: tuple[FeatureUse, ...] = ()
    doubt: Doubt | None = None


def scan(elf: CodeFile, executor: ProcessPool | None = None) -> Isa:
    return arm.scan(elf) if elf.machine == "aarch64" else Isa.scan(elf, executor)


class Baseline:
    """The code above the baseline in the build without flags for a level: no flag has caused what is in it."""

    def __init__(self, elf: CodeFile, executor: ProcessPool | None = None) -> None:
        self._elf = elf
        self._executor = executor

    @cached_property
    def _regions(self) -> tuple[RegionIsa, ...]:
        return scan(self._elf, self._executor).regions

    @cached_property
    def _by_name(self) -> dict[str, frozenset[str]]:
        features: dict[str, frozenset[str]] = {}
        for region in self._regions:
            for name in _names(region):
                features[name] = features.get(name, frozenset()) | region.features
        return features

    @cached_property
    def _nameless(self) -> frozenset[bytes]:
        return frozenset(_fingerprint(region) for region in self._regions if not _names(region))

    def has(self, region: RegionIsa, features: frozenset[str]) -> bool:
        """Whether the baseline's function of that name needs all *features*; a nameless one, its instructions."""
        if names := _names(region):
            return any(features <= self._by_name.get(name, frozenset()) for name in names)
        return _fingerprint(region) in self._nameless


class Dispatch:
    """The code of the files of a wheel, which call each other; *is_open* says whose exports others may call.

    Every processor that runs it has the features *extras*, and what comes with them.
    """

    def __init__(
        self,
        files: Mapping[str, tuple[CodeFile, Isa]],
        *,
        is_open: Callable[[str], bool] = lambda _: True,
        extras: Iterable[str] = (),
    ) -> None:
        self._extras = names_of(implied(*extras))
        self._files = files
        is_arm = any(elf.machine == "aarch64" for elf, _ in files.values())
        self._architecture = AARCH64 if is_arm else X86_64
        known = ((path, elf) for path, (elf, _) in files.items() if elf.areas)
        self._program = Program(known, self._architecture.module)
        self._modules = {module.path: module for module in self._program.modules}
        for path, module in self._modules.items():
            module.is_open = is_open(path)
        self._reaches: dict[int, Reach] = {}

    def is_asking(self, level: int) -> bool:
        """Whether any code asks the processor, as far as was looked for the level of rank *level*."""
        return level in self._reaches and self._reaches[level].is_asking

    def judged(self, path: str, level: int, *, allow: Sequence[re.Pattern[str]] = ()) -> tuple[Judged, ...]:
        """Every region of the file at *path* with features above the level of rank *level*, accepted or not."""
        _, isa = self._files[path]
        above = [(region, features) for region in isa.regions if (features := region.above(level, extras=self._extras))]
        allowed = [(region, features) for region, features in above if _is_allowed(path, region, allow)]
        judged = [Judged(region, features, Reason.ALLOWED) for region, features in allowed]
        others = [pair for pair in above if pair not in allowed]
        module = self._modules.get(path)
        if module is None:
            return (*judged, *(Judged(region, features, None) for region, features in others))
        # where bytes outside functions are not code, only what is led to counts; compilers for other systems put
        # so many tables there that of what is understood nothing is judged
        sees_all = module.elf.system == "linux"
        outside = (region for region in isa.regions if region.doubtful and not is_function(region.region.function))
        suspects = [region for region in outside if not _is_allowed(path, region, allow)]
        pieces = [piece for region in suspects for piece in module.pieces_in(region.region)]
        pieces = [piece for piece in pieces if (sees_all and module.is_entered(piece)) or module.is_unknown(piece)]
        if others or pieces:
            if level not in self._reaches:
                self._reaches[level] = Reach(self._program, level, self._architecture, extras=self._extras)
            regions = [(piece, region) for region, _ in others for piece in module.pieces_in(region.region)]
            regions += ((piece, _isa_of(module, piece)) for piece in pieces)
            judged += _reached(module, self._reaches[level], regions, level, self._extras)
        return tuple(sorted(judged, key=lambda judged_region: judged_region.isa.region.address))


def _is_allowed(path: str, region: RegionIsa, allow: Sequence[re.Pattern[str]]) -> bool:
    names = region.region.function.names if region.region.function else ()
    return any(pattern.search(text) for pattern in allow for text in (path, *names))


def _reached(
    module: Module, reach: Reach, regions: Iterable[tuple[Piece, RegionIsa]], level: int, extras: frozenset[str]
) -> Iterator[Judged]:
    pieces = [*regions]
    above = {piece.address for piece, _ in pieces}
    # XGETBV is part of a question, and needs an answer itself
    pieces += ((piece, _isa_of(module, piece)) for piece in reach.questions_in(module) if piece.address not in above)
    violations = reach.violations(piece for piece, _ in pieces)
    for piece, region in pieces:
        # which bytes that are none are reached is known only with what is called
        is_exact = region.region.function and UNKNOWN not in region.features
        isa = region if is_exact else _isa_of(module, piece)
        if not (features := isa.above(level, extras=extras)):
            continue
        if piece.address not in violations:
            if piece.address not in above:
                continue
            if reach.is_tested(piece):
                yield Judged(isa, features, Reason.TESTED)
            elif reach.is_asking:
                yield Judged(isa, features, Reason.UNREACHED)
            else:
                # nothing is chosen at run time here: what leads to it was not seen
                yield Judged(isa, features, None, (str(piece),), doubt=Doubt.UNFOLLOWED)
            continue
        violation = violations[piece.address]
        missing = names_of(violation.missing)
        # that the system saves registers is worth a word where nothing else is missing
        names = missing & isa.features or missing
        uses = tuple(
            FeatureUse(name, instruction.ip, module.text(instruction))
            for name, instruction in sorted(violation.first.items(), key=lambda item: (item[1].ip, item[0]))
            if name in names
        )
        yield Judged(isa, names, None, violation.way, uses, violation.doubt)


def _isa_of(module: Module, piece: Piece) -> RegionIsa:
    """What *piece*, code outside known functions, needs."""
    address = piece.address - module.base
    data = module.bytes_at(address, piece.end - piece.address)
    kind = arm.ArmRegion if isinstance(module, ArmModule) else RegionIsa
    names = names_of(module.needed_in(piece))
    return kind(Region(address, data, piece.symbol), names, frozenset(), is_vector_encoded=False)


def _names(region: RegionIsa) -> tuple[str, ...]:
    names: Sequence[str] = region.region.function.names if region.region.function else ()
    return tuple(RUST_HASH.sub("", _SPLIT.sub("", name)) for name in names)


def _fingerprint(region: RegionIsa) -> bytes:
    """A digest of the instructions without their operands, which hold addresses."""
    if isinstance(region, arm.ArmRegion):
        data = without_addresses(region.region.data)
    else:
        data = b"".join(
            instruction.code.to_bytes(2, "little") for instruction in instructions_of(region.region.data, 0)
        )
    return blake2b(data, digest_size=16).digest()
