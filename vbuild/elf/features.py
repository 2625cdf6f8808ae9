"""Which x86-64 level has the CPU feature that an instruction needs.

    a feature of a level: `vbuild.hardware.cpu.X86_64_FEATURES`
    none of them: AES, SHA, VAES, GFNI, the other AVX-512s, AMX ...

Instructions that older processors execute as
something harmless, or that a program uses to ask what the processor has, count for no level.
"""

from functools import cache

from iced_x86 import Code, CpuidFeature, EncodingKind, Instruction

from vbuild.hardware.cpu import X86_64_FEATURES, X86_64_LEVELS

RANKS = {feature.name: X86_64_LEVELS.index(level) for level in X86_64_LEVELS[1:] for feature in X86_64_FEATURES[level]}
BEYOND = len(X86_64_LEVELS)

# What every x86-64 processor has
_BASELINE = {"INTEL8086", "INTEL186", "INTEL286", "INTEL386", "INTEL486", "X64", "FPU", "FPU287", "FPU387"}
_BASELINE |= {"CMOV", "CX8", "MMX", "SSE", "SSE2", "FXSR", "CLFSH"}
# what only an operating system executes
_SYSTEM = {"SYSCALL", "SEP", "MSR", "SMM", "MONITOR", "VMX", "SVM", "INVPCID", "INVEPT", "INVVPID", "SMAP", "WBNOINVD"}
# hints are no-ops where they are not known
_HINTS = {"MULTIBYTENOP", "PAUSE", "CET_IBT", "CET_SS", "MPX", "CLDEMOTE", "PREFETCHW", "PREFETCHWT1", "PREFETCHITI"}
_HINTS |= {"HLE", "HLE_OR_RTM"}
# how a program looks around
_QUESTIONS = {"TSC", "RDTSCP", "RDPMC", "CPUID"}
_OF_NO_LEVEL = frozenset(_BASELINE | _SYSTEM | _HINTS | _QUESTIONS)
_NAMES = {
    number: name.replace("SSE4_", "SSE4.") for name, number in vars(CpuidFeature).items() if isinstance(number, int)
}
_CODES = {name: number for name, number in vars(Code).items() if isinstance(number, int)}

INVALID = _CODES["INVALID"]
CPUID = _CODES["CPUID"]


@cache
def needed() -> dict[int, frozenset[str]]:
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
    """The lowest level that has all *features*; ``beyond v4`` where there is none."""
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
