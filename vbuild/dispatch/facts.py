"""What a program learns about the processor: which features each bit of an answer stands for.

    CPUID leaf, subleaf, register   Intel SDM volume 2A, CPUID; AMD APM volume 3, appendix E
    XCR0                            Intel SDM volume 1, section 13.3
    __cpu_model, __cpu_features2    gcc/common/config/i386/i386-cpuinfo.h: libgcc's and compiler-rt's, the same numbers

A set of features is an int with one bit for each. Facts have two more bits for each feature. The second: it is shown if
nothing but answers is written to a field of some structure that was written with one. The third: every processor on
sale that has what was asked has it, too, though a hypervisor may mask it. Few features imply others (`implied`): each
processor with AVX2 has AVX, but it need not have BMI2, and AVX works only where the system saves its registers.
"""

from collections.abc import Iterable, Mapping
from functools import cache, reduce
from operator import or_

from vbuild.dispatch import arm
from vbuild.dispatch.isa import XGETBV, features_by_code
from vbuild.hardware.cpu import X86_64_FEATURES, X86_64_LEVELS

# CPUID says what the processor has, these what the system saves and so may be used. OSXSAVE stands for registers
# of AVX: that a system has it and leaves these out is seen with `clearcpuid=avx` alone, which no emulator can show.
SAVES_YMM, SAVES_ZMM = "OSXSAVE", "XCR0.AVX512"
_OF_LEVELS = {feature.name for level in X86_64_LEVELS[1:] for feature in X86_64_FEATURES[level]}
_NAMES = tuple(
    sorted({name for names in features_by_code().values() for name in names} | _OF_LEVELS | arm.FEATURES | {SAVES_ZMM})
)
_BITS = {name: 1 << number for number, name in enumerate(_NAMES)}
FEATURES = (1 << len(_NAMES)) - 1
# something was asked, and the answer was not understood
ASKED = 1 << len(_NAMES)
_UNMASKED = len(_NAMES) + 1
ANY = FEATURES | FEATURES << _UNMASKED
# what is impossible implies more than any processor has
EVERY = (ANY | ASKED) << 1 | 1

_V2 = tuple(feature.name for feature in X86_64_FEATURES["v2"])
_V3 = tuple(feature.name for feature in X86_64_FEATURES["v3"])
_V4 = tuple(feature.name for feature in X86_64_FEATURES["v4"])
# What the architecture says (Intel SDM volume 1, sections 12.7, 14.1 to 14.3, 15.2 and 15.3). Nothing else is implied:
# hypervisors mask features one by one, and VIA's and Zhaoxin's processors have AVX2 without FMA.
_ARCHITECTURE: dict[str, tuple[str, ...]] = {
    "SSSE3": ("SSE3",),
    "SSE4.1": ("SSSE3",),
    "SSE4.2": ("SSE4.1",),
    "AVX": ("SSE4.2",),
    **dict.fromkeys(("F16C", "FMA", "FMA4", "XOP", "VAES", "VPCLMULQDQ", "AVX2"), ("AVX",)),
    **dict.fromkeys(("AVX_VNNI", "AVX_IFMA", "AVX_VNNI_INT8", "AVX_VNNI_INT16", "AVX_NE_CONVERT"), ("AVX2",)),
    "AVX512F": ("AVX2", "FMA", "F16C"),
    **{name: ("AVX512F",) for name in _NAMES if name.startswith("AVX512") and name != "AVX512F"},
    **dict.fromkeys(("AMX_INT8", "AMX_BF16", "AMX_FP16"), ("AMX_TILE",)),
    # this bit of XCR0 can only be set where the processor has such registers
    SAVES_ZMM: ("AVX512F", SAVES_YMM),
}
# What Intel's and AMD's processors have as well where nobody masks it; some Core i3 have AVX2 without AES.
_SOLD: dict[str, tuple[str, ...]] = {
    "SSSE3": ("CMPXCHG16B", "LAHF-SAHF"),
    "SSE4.2": ("POPCNT", "RDTSCP"),
    "POPCNT": ("SSE3", "LAHF-SAHF", "CMPXCHG16B"),
    "PCLMULQDQ": ("SSE4.2",),
    "AES": ("SSE4.2", "PCLMULQDQ"),
    "SHA": ("AES", "RDRAND", "RDSEED", "MOVBE"),
    "GFNI": ("SHA",),
    "MOVBE": ("SSSE3",),
    "RDRAND": ("SSE4.2",),
    "OSXSAVE": ("SSSE3",),
    "AVX": (SAVES_YMM,),
    "F16C": ("RDRAND",),
    "FMA": ("F16C",),
    "XOP": ("FMA4", "LZCNT"),
    "TBM": ("XOP", "BMI1", "FMA"),
    "BMI1": ("AVX", "F16C", "LZCNT"),
    "BMI2": ("AVX2",),
    "AVX2": (*_V3, "RDRAND", "FSGSBASE"),
    "AVX512F": (SAVES_ZMM, "AVX512CD", "ADX", "RDSEED"),
    "AVX512ER": ("AVX512PF",),
    "AVX512PF": ("AVX512ER",),
    "AVX512_4VNNIW": ("AVX512_4FMAPS",),
    "AVX512_4FMAPS": ("AVX512_4VNNIW",),
    **dict.fromkeys(("AVX512BW", "AVX512DQ", "AVX512VL"), _V4),
    "AVX512_VBMI": ("AVX512BW", "AVX512_IFMA"),
    "AVX512_IFMA": ("AVX512BW", "AVX512_VBMI"),
    "AVX512_VNNI": ("AVX512BW",),
    "AVX512_BF16": ("AVX512_VNNI",),
    "AVX512_VBMI2": ("AVX512_BITALG",),
    "AVX512_BITALG": ("AVX512_VBMI2", "AVX512_VBMI", "AVX512_VNNI", "AVX512_VPOPCNTDQ", "GFNI", "VAES", "VPCLMULQDQ"),
    "AVX512_VP2INTERSECT": ("AVX512_VBMI2",),
    "AVX512_FP16": ("AVX512_VBMI2", "AVX512_BF16"),
    "AMX_TILE": ("AVX512_FP16", "AMX_INT8", "AMX_BF16"),
}


def features(names: Iterable[str]) -> int:
    """Those that no instruction needs are left out."""
    features = 0
    for name in names:
        features |= _BITS.get(name, 0)
    return features


def facts_of(features: int) -> int:
    return features | features << _UNMASKED


def shown_by(*names: str) -> int:
    """The facts that an answer shows if it says that the processor has the features *names*."""
    sold = features(_closure(names, _ARCHITECTURE, _SOLD))
    return implied(*names) | sold << _UNMASKED


def unmasked(facts: int) -> int:
    """The features that *facts* show where no hypervisor masks any."""
    return facts >> _UNMASKED & FEATURES


def names_of(features: int) -> frozenset[str]:
    return frozenset(name for name, bit in _BITS.items() if features & bit)


@cache
def implied(*names: str) -> int:
    """The features that the architecture says come with all of *names*."""
    return features(_closure(names, _ARCHITECTURE))


def _closure(names: Iterable[str], *tables: Mapping[str, tuple[str, ...]]) -> set[str]:
    closed, waiting = set(names), list(names)
    while waiting:
        name = waiting.pop()
        more = {other for table in tables for other in table.get(name, ())} - closed
        closed |= more
        waiting += more
    return closed


@cache
def of_level(rank: int) -> int:
    """The features of the x86-64 level of that *rank*, without those that came with no level.

    The system of such a machine saves the registers, too (psABI, section 3.1.1).
    """
    names = {feature.name for level in X86_64_LEVELS[: rank + 1] for feature in X86_64_FEATURES[level]}
    return features(names) | _states(names)


def _states(names: Iterable[str]) -> int:
    closed = _closure(names, _ARCHITECTURE)
    return features(state for state, feature in ((SAVES_YMM, "AVX"), (SAVES_ZMM, "AVX512F")) if feature in closed)


@cache
def by_code() -> dict[int, int]:
    """What each of iced-x86's instruction codes needs: as in `features_by_code`, and what the system has to save."""
    needs = {code: features(names) | _states(names) for code, names in features_by_code().items()}
    return {**needs, XGETBV: features(["OSXSAVE"])}


def needed_by(codes: Iterable[int]) -> int:
    table = by_code()
    return reduce(or_, (table[number] for number in set(codes) & table.keys()), 0)


def _table(text: str) -> dict[int, int]:
    """From ``bit name`` pairs to the facts that a set bit shows."""
    words = text.split()
    return {int(bit): shown_by(name) for bit, name in zip(words[::2], words[1::2], strict=True)}


def usable(facts: int) -> int:
    """The *facts* where an answer says what may be used: the system saves the registers."""
    return facts | facts_of(_states(names_of(facts & FEATURES)))


# by leaf, subleaf and register; a register that is not in here says nothing about features
CPUID_BITS: Mapping[tuple[int, int, str], Mapping[int, int]] = {
    (1, 0, "ecx"): _table("""
        0 SSE3 1 PCLMULQDQ 9 SSSE3 12 FMA 13 CMPXCHG16B 19 SSE4.1 20 SSE4.2 22 MOVBE 23 POPCNT 25 AES 27 OSXSAVE
        28 AVX 29 F16C 30 RDRAND"""),
    (7, 0, "ebx"): _table("""
        0 FSGSBASE 3 BMI1 5 AVX2 8 BMI2 11 RTM 16 AVX512F 17 AVX512DQ 18 RDSEED 19 ADX 21 AVX512_IFMA 23 CLFLUSHOPT
        24 CLWB 26 AVX512PF 27 AVX512ER 28 AVX512CD 29 SHA 30 AVX512BW 31 AVX512VL"""),
    (7, 0, "ecx"): _table("""
        1 AVX512_VBMI 5 WAITPKG 6 AVX512_VBMI2 8 GFNI 9 VAES 10 VPCLMULQDQ 11 AVX512_VNNI 12 AVX512_BITALG
        14 AVX512_VPOPCNTDQ 22 RDPID 27 MOVDIRI 28 MOVDIR64B"""),
    (7, 0, "edx"): _table("""
        2 AVX512_4VNNIW 3 AVX512_4FMAPS 8 AVX512_VP2INTERSECT 14 SERIALIZE 22 AMX_BF16 23 AVX512_FP16 24 AMX_TILE
        25 AMX_INT8"""),
    (7, 1, "eax"): _table("0 SHA512 1 SM3 2 SM4 4 AVX_VNNI 5 AVX512_BF16 21 AMX_FP16 23 AVX_IFMA"),
    (7, 1, "edx"): _table("4 AVX_VNNI_INT8 5 AVX_NE_CONVERT 10 AVX_VNNI_INT16"),
    (0x80000001, 0, "ecx"): _table("0 LAHF-SAHF 5 LZCNT 6 SSE4A 11 XOP 15 LWP 16 FMA4 21 TBM 29 MONITORX"),
    (0x80000001, 0, "edx"): _table("27 RDTSCP 30 D3NOWEXT 31 D3NOW"),
    (0x80000008, 0, "ebx"): _table("0 CLZERO 4 RDPRU"),
}
# Windows: what IsProcessorFeaturePresent says of a number (PF_... in winnt.h), the system's part included
PRESENT = {
    number: usable(facts)
    for number, facts in _table("""
        13 SSE3 14 CMPXCHG16B 17 OSXSAVE 22 FSGSBASE 28 RDRAND 32 RDTSCP 33 RDPID 36 SSSE3 37 SSE4.1 38 SSE4.2 39 AVX
        40 AVX2 41 AVX512F""").items()
}
# macOS: what sysctlbyname("hw.optional.NAME") says (XNU, bsd/kern/kern_mib.c) where that is no feature's own name
_OPTIONAL = {
    "supplementalsse3": "SSSE3",
    "sse4_1": "SSE4.1",
    "sse4_2": "SSE4.2",
    "avx1_0": "AVX",
    "avx2_0": "AVX2",
    "avx512ifma": "AVX512_IFMA",
    "avx512vbmi": "AVX512_VBMI",
    "armv8_crc32": "CRC32",
    "armv8_1_atomics": "LSE",
    "armv8_2_fhm": "FHM",
    "armv8_2_sha512": "SHA512",
    "armv8_2_sha3": "SHA3",
    "armv8_3_compnum": "FCMA",
    "neon_fp16": "FP16",
}


def optional(name: str) -> int:
    """The facts that macOS shows by a one for the system control *name*; 0 if it says nothing about features."""
    _, is_hardware, last = name.partition("hw.optional.")
    feature = _OPTIONAL.get(last) or last.removeprefix("arm.FEAT_").upper()
    return usable(shown_by(feature)) if is_hardware and feature in _BITS else 0


# imports that tell what the processor has
ASKERS = frozenset({"IsProcessorFeaturePresent", "GetEnabledXStateFeatures", "sysctlbyname"})
# with which a program asks by trying: what is called if an instruction does not exist
CATCHERS, SIGILL = frozenset({"sigaction", "signal", "bsd_signal"}), 4
# leaves whose answers differ by subleaf
SUBLEAVES = frozenset({7})
XCR0_BITS = {
    2: shown_by("AVX", SAVES_YMM),
    **_table(f"5 {SAVES_ZMM} 6 {SAVES_ZMM} 7 {SAVES_ZMM} 17 AMX_TILE 18 AMX_TILE"),
}
# the words of cpu_features in glibc's <sys/platform/x86.h>: leaf and subleaf by number, eax, ebx, ecx, edx of each
GLIBC_LEAVES = ((1, 0), (7, 0), (0x80000001, 0), (0xD, 1), (0x80000007, 0), (0x80000008, 0), (7, 1), (0x19, 0))

# enum processor_features: __cpu_model's word, then those of __cpu_features2; libgcc asks what the system saves, too.
# Which model it is (processor_types, processor_subtypes) says nothing: Pentiums of a Haswell have no AVX.
MODEL_FEATURES = {
    bit: usable(facts)
    for bit, facts in _table("""
        2 POPCNT 5 SSE3 6 SSSE3 7 SSE4.1 8 SSE4.2 9 AVX 10 AVX2 11 SSE4A 12 FMA4 13 XOP 14 FMA 15 AVX512F 16 BMI1
        17 BMI2 18 AES 19 PCLMULQDQ 20 AVX512VL 21 AVX512BW 22 AVX512DQ 23 AVX512CD 24 AVX512ER 25 AVX512PF
        26 AVX512_VBMI 27 AVX512_IFMA 28 AVX512_4VNNIW 29 AVX512_4FMAPS 30 AVX512_VPOPCNTDQ 31 AVX512_VBMI2 32 GFNI
        33 VPCLMULQDQ 34 AVX512_VNNI 35 AVX512_BITALG 36 AVX512_BF16 37 AVX512_VP2INTERSECT 40 ADX 41 LZCNT
        43 CLFLUSHOPT 44 CLWB 46 CMPXCHG16B 49 F16C 50 FSGSBASE 54 LAHF-SAHF 57 LZCNT 58 MOVBE 59 MOVDIR64B 60 MOVDIRI
        62 OSXSAVE 68 RDPID 69 RDRAND 70 RDSEED 71 RTM 72 SERIALIZE 74 SHA 76 TBM 78 VAES 79 WAITPKG 85 AMX_TILE
        86 AMX_INT8 87 AMX_BF16 93 AVX_VNNI 94 AVX512_FP16""").items()
} | {96 + number: usable(shown_by(*names)) for number, names in enumerate((_V2, _V3, _V4))}
