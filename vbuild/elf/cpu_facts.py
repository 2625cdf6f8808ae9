"""What a program learns about the processor: which features each bit of an answer stands for.

    CPUID leaf, subleaf, register   Intel SDM volume 2A, CPUID; AMD APM volume 3, appendix E
    XCR0                            Intel SDM volume 1, section 13.3
    __cpu_model, __cpu_features2    gcc/common/config/i386/i386-cpuinfo.h: libgcc's and compiler-rt's, the same numbers

A set of features is an int with one bit for each. Facts have another bit for each: that it is shown if a field of some
structure, which was written with an answer somewhere, was only written so. A processor that has a feature has others
too (`implied`): each one with AVX2 has BMI2, but the first ones with AVX had neither.
"""

from collections.abc import Iterable, Mapping
from functools import cache, reduce
from operator import attrgetter, or_

from vbuild.elf import arm
from vbuild.elf.iced import Decoder
from vbuild.elf.isa import INVALID, features_by_code
from vbuild.hardware.cpu import X86_64_FEATURES, X86_64_LEVELS

_64_BITS = 64
_code_of = attrgetter("code")
_OF_LEVELS = {feature.name for level in X86_64_LEVELS[1:] for feature in X86_64_FEATURES[level]}
_NAMES = tuple(sorted({name for names in features_by_code().values() for name in names} | _OF_LEVELS | arm.FEATURES))
_BITS = {name: 1 << number for number, name in enumerate(_NAMES)}
FEATURES = (1 << len(_NAMES)) - 1
# something was asked, and the answer was not understood
ASKED = 1 << len(_NAMES)
_KEPT = len(_NAMES) + 1
ANY = FEATURES | FEATURES << _KEPT
# what is impossible implies more than any processor has
EVERY = (ANY | ASKED) << 1 | 1

_V2 = tuple(feature.name for feature in X86_64_FEATURES["v2"])
_V3 = tuple(feature.name for feature in X86_64_FEATURES["v3"])
_V4 = tuple(feature.name for feature in X86_64_FEATURES["v4"])
# what every processor that has a feature has as well; each row names features that stand further up as well
_IMPLIED: dict[str, tuple[str, ...]] = {
    "SSSE3": ("SSE3", "CMPXCHG16B", "LAHF-SAHF"),
    "SSE4.1": ("SSSE3",),
    "SSE4.2": ("SSE4.1", "POPCNT"),
    "POPCNT": ("SSE3", "LAHF-SAHF", "CMPXCHG16B"),
    "PCLMULQDQ": ("SSE4.2",),
    "AES": ("SSE4.2", "PCLMULQDQ"),
    "SHA": ("AES", "RDRAND", "RDSEED", "MOVBE"),
    "GFNI": ("SHA",),
    "MOVBE": ("SSSE3",),
    "RDRAND": ("SSE4.2",),
    "OSXSAVE": ("SSSE3",),
    "AVX": ("SSE4.2", "PCLMULQDQ", "OSXSAVE"),
    "F16C": ("AVX", "RDRAND"),
    "FMA": ("AVX", "F16C"),
    "FMA4": ("AVX", "AES"),
    "XOP": ("FMA4", "LZCNT"),
    "TBM": ("XOP", "BMI1", "FMA"),
    "BMI1": ("AVX", "F16C", "LZCNT"),
    "BMI2": ("AVX2",),
    "AVX2": (*_V3, "AES", "RDRAND", "FSGSBASE"),
    "VAES": ("AVX2",),
    "VPCLMULQDQ": ("AVX2",),
    "AVX_VNNI": ("AVX2",),
    "AVX_IFMA": ("AVX2",),
    "AVX_VNNI_INT8": ("AVX2",),
    "AVX_VNNI_INT16": ("AVX2",),
    "AVX_NE_CONVERT": ("AVX2",),
    "AVX512F": ("AVX2", "AVX512CD", "ADX", "RDSEED"),
    "AVX512CD": ("AVX512F",),
    "AVX512ER": ("AVX512F", "AVX512PF"),
    "AVX512PF": ("AVX512ER",),
    "AVX512_4VNNIW": ("AVX512F", "AVX512_4FMAPS"),
    "AVX512_4FMAPS": ("AVX512_4VNNIW",),
    "AVX512_VPOPCNTDQ": ("AVX512F",),
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
    "AMX_INT8": ("AMX_TILE",),
    "AMX_BF16": ("AMX_TILE",),
}


def features(names: Iterable[str]) -> int:
    """The set of the features with these *names*; those that no instruction needs are left out."""
    found = 0
    for name in names:
        found |= _BITS.get(name, 0)
    return found


def facts_of(features: int) -> int:
    """The facts where the processor has these *features*."""
    return features | features << _KEPT


def as_kept(facts: int) -> int:
    """What is left of *facts* that come from a field which other code, that was not followed, may have written."""
    return facts & (ANY | ASKED) & ~FEATURES


def kept(facts: int) -> int:
    """The features that *facts* show if such fields hold what is known of them."""
    return facts >> _KEPT & FEATURES


def names_of(features: int) -> frozenset[str]:
    return frozenset(name for name, bit in _BITS.items() if features & bit)


@cache
def implied(*names: str) -> int:
    """The features that a processor with all of *names* has."""
    found, waiting = set(names), list(names)
    while waiting:
        more = set(_IMPLIED.get(waiting.pop(), ())) - found
        found |= more
        waiting += more
    return features(found)


@cache
def of_level(rank: int) -> int:
    """The features of the x86-64 level of that *rank*, without those that came with no level."""
    return features(feature.name for level in X86_64_LEVELS[: rank + 1] for feature in X86_64_FEATURES[level])


@cache
def by_code() -> dict[int, int]:
    """The features that each of iced-x86's instruction codes needs, as in `features_by_code`."""
    return {code: features(names) for code, names in features_by_code().items()}


def needed_by(code: bytes) -> int:
    """The features that the instructions of *code* need, up to the first bytes that are none."""
    codes = list(map(_code_of, Decoder(_64_BITS, code)))
    found = set(codes)
    if INVALID in found:
        found = set(codes[: codes.index(INVALID)])
    table = by_code()
    return reduce(or_, (table[number] for number in found & table.keys()), 0)


def _table(text: str) -> dict[int, int]:
    """From ``bit name`` pairs to the features that a set bit shows."""
    words = text.split()
    return {int(bit): facts_of(implied(name)) for bit, name in zip(words[::2], words[1::2], strict=True)}


_EAX, _ECX, _EDX, _EBX = range(4)
# by leaf, subleaf and register; a register that is not in here says nothing about features
CPUID_BITS: Mapping[tuple[int, int, str], Mapping[int, int]] = {
    (1, 0, "ecx"): _table("""
        0 SSE3 1 PCLMULQDQ 9 SSSE3 12 FMA 13 CMPXCHG16B 19 SSE4.1 20 SSE4.2 22 MOVBE 23 POPCNT 25 AES 27 OSXSAVE
        28 AVX 29 F16C 30 RDRAND"""),
    (7, 0, "ebx"): _table("""
        0 FSGSBASE 3 BMI1 5 AVX2 8 BMI2 16 AVX512F 17 AVX512DQ 18 RDSEED 19 ADX 21 AVX512_IFMA 23 CLFLUSHOPT 24 CLWB
        26 AVX512PF 27 AVX512ER 28 AVX512CD 29 SHA 30 AVX512BW 31 AVX512VL"""),
    (7, 0, "ecx"): _table("""
        1 AVX512_VBMI 5 WAITPKG 6 AVX512_VBMI2 8 GFNI 9 VAES 10 VPCLMULQDQ 11 AVX512_VNNI 12 AVX512_BITALG
        14 AVX512_VPOPCNTDQ 22 RDPID 27 MOVDIRI 28 MOVDIR64B"""),
    (7, 0, "edx"): _table("""
        2 AVX512_4VNNIW 3 AVX512_4FMAPS 8 AVX512_VP2INTERSECT 14 SERIALIZE 22 AMX_BF16 23 AVX512_FP16 24 AMX_TILE
        25 AMX_INT8"""),
    (7, 1, "eax"): _table("0 SHA512 1 SM3 2 SM4 4 AVX_VNNI 5 AVX512_BF16 21 AMX_FP16 23 AVX_IFMA"),
    (7, 1, "edx"): _table("4 AVX_VNNI_INT8 5 AVX_NE_CONVERT 10 AVX_VNNI_INT16"),
    (0x80000001, 0, "ecx"): _table("0 LAHF-SAHF 5 LZCNT 6 SSE4A 11 XOP 15 LWP 16 FMA4 21 TBM"),
}
# Windows: what IsProcessorFeaturePresent says of a number (PF_... in winnt.h), the system's part included
PRESENT = _table("""
    13 SSE3 14 CMPXCHG16B 17 OSXSAVE 22 FSGSBASE 28 RDRAND 33 RDPID 36 SSSE3 37 SSE4.1 38 SSE4.2 39 AVX 40 AVX2
    41 AVX512F""")
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
    return facts_of(implied(feature)) if is_hardware and feature in _BITS else 0


# imports that tell what the processor has
ASKERS = frozenset({"IsProcessorFeaturePresent", "GetEnabledXStateFeatures", "sysctlbyname"})
# leaves whose answers differ by subleaf
SUBLEAVES = frozenset({7})
XCR0_BITS = _table("2 AVX 5 AVX512F 6 AVX512F 7 AVX512F 17 AMX_TILE 18 AMX_TILE")
# the words of cpu_features in glibc's <sys/platform/x86.h>: leaf and subleaf by number, eax, ebx, ecx, edx of each
GLIBC_LEAVES = ((1, 0), (7, 0), (0x80000001, 0), (0xD, 1), (0x80000007, 0), (0x80000008, 0), (7, 1), (0x19, 0))

# enum processor_features: __cpu_model's word, then those of __cpu_features2
MODEL_FEATURES = _table("""
    2 POPCNT 5 SSE3 6 SSSE3 7 SSE4.1 8 SSE4.2 9 AVX 10 AVX2 11 SSE4A 12 FMA4 13 XOP 14 FMA 15 AVX512F 16 BMI1 17 BMI2
    18 AES 19 PCLMULQDQ 20 AVX512VL 21 AVX512BW 22 AVX512DQ 23 AVX512CD 24 AVX512ER 25 AVX512PF 26 AVX512_VBMI
    27 AVX512_IFMA 28 AVX512_4VNNIW 29 AVX512_4FMAPS 30 AVX512_VPOPCNTDQ 31 AVX512_VBMI2 32 GFNI 33 VPCLMULQDQ
    34 AVX512_VNNI 35 AVX512_BITALG 36 AVX512_BF16 37 AVX512_VP2INTERSECT 40 ADX 41 LZCNT 43 CLFLUSHOPT 44 CLWB
    46 CMPXCHG16B 49 F16C 50 FSGSBASE 54 LAHF-SAHF 57 LZCNT 58 MOVBE 59 MOVDIR64B 60 MOVDIRI 62 OSXSAVE
    68 RDPID 69 RDRAND 70 RDSEED 71 RTM 72 SERIALIZE 74 SHA 76 TBM 78 VAES 79 WAITPKG 85 AMX_TILE 86 AMX_INT8
    87 AMX_BF16 93 AVX_VNNI 94 AVX512_FP16""") | {
    96: facts_of(implied(*_V2)), 97: facts_of(implied(*_V3)), 98: facts_of(implied(*_V4))}  # fmt: skip
# enum processor_types and processor_subtypes: what each processor has
MODEL_TYPES = _table("""
    1 SSSE3 2 SSSE3 3 SSE4.2 4 POPCNT 5 FMA4 6 SSE4.2 7 AVX512ER 8 SSSE3 9 AVX 10 AVX2 11 AVX512ER 12 SHA 13 SHA
    14 GFNI 15 AVX2""")
MODEL_SUBTYPES = _table("""
    1 SSE4.2 2 PCLMULQDQ 3 AVX 4 POPCNT 5 POPCNT 6 POPCNT 7 XOP 8 TBM 9 TBM 10 AVX2 11 AVX2 12 F16C 13 AVX2 14 AVX2
    15 AVX2 16 AVX512VL 17 AVX512_VBMI 18 AVX512_VBMI2 19 AVX512_VBMI2 20 AVX2 21 AVX512_VNNI
    22 AVX512_VP2INTERSECT 23 AVX512_BF16 24 AMX_TILE 25 AVX_VNNI 26 VAES 27 AVX512_VBMI2""")
