"""What an aarch64 program learns about the processor, and which code asks.

getauxval(AT_HWCAP), AT_HWCAP2    Linux, arch/arm64/include/uapi/asm/hwcap.h
a resolver's arguments            AT_HWCAP, and a pointer to its size, AT_HWCAP and AT_HWCAP2 (glibc, sys/ifunc.h)
mrs of an identity register       the manual, chapter D19; Linux answers for programs
"""

from functools import cache

from vbuild.elf import values
from vbuild.elf.cpu_facts import features
from vbuild.elf.values import Value
from vbuild.hardware.cpu import Cpu

GETAUXVAL = frozenset({"getauxval", "__getauxval"})
# spaces of addresses that no file has: what a resolver gets a pointer to, and functions from outside
ARGUMENT, IMPORTS = 1 << 96, 1 << 97


@cache
def _implied(name: str) -> int:
    """The features that every processor with that one has: the manual says so (A2.2), or no maker left them out."""
    extensions = {
        "SVE": Cpu("aarch64", "8.2a").features | {"FP16", "FCMA"},
        "SVE2": Cpu("aarch64", "8.5a").features | {"SVE", "FP16", "FHM"},
        "FP16": Cpu("aarch64", "8.1a").features,
        "DOTPROD": Cpu("aarch64", "8.1a").features,
    }
    found, waiting = {name}, [name]
    parents = {"F32MM": "SVE", "F64MM": "SVE", "SVE2P1": "SVE2", "FHM": "FP16", "PMULL": "AES", "SHA256": "SHA1"}
    parents |= {"SHA512": "SHA256", "SHA3": "SHA512", "FLAGM2": "FLAGM", "LRCPC2": "LRCPC", "LRCPC3": "LRCPC2"}
    parents |= {"BF16": "DOTPROD", "I8MM": "DOTPROD", "JSCVT": "LSE", "FCMA": "RDM", "SM4": "SM3", "RDM": "CRC32"}
    while waiting:
        last = waiting.pop()
        more = set(extensions.get(last, ())) | ({"SVE2"} if last.startswith("SVE_") else set())
        more |= {parents[last]} if last in parents else set()
        waiting += more - found
        found |= more
    return features(found)


def _table(text: str) -> dict[int, int]:
    words = text.split()
    return {int(bit): _implied(name) for bit, name in zip(words[::2], words[1::2], strict=True)}


_CAPS = values.word(
    _table("""
        3 AES 4 PMULL 5 SHA1 6 SHA256 7 CRC32 8 LSE 9 FP16 10 FP16 12 RDM 13 JSCVT 14 FCMA 15 LRCPC 17 SHA3 18 SM3
        19 SM4 20 DOTPROD 21 SHA512 22 SVE 23 FHM 24 DIT 26 LRCPC2 27 FLAGM 29 SB 30 PAUTH 31 PAUTH"""),
    8,
)
# the first Armv8-A has floating-point numbers and vectors, bits 0 and 1, so no program sees a zero
HWCAP = values.bitwise(_CAPS, 3, "or")
_HWCAP2 = values.word(
    _table("""
        1 SVE2 2 SVE_AES 3 SVE_PMULL128 4 SVE_BITPERM 5 SVE_SHA3 6 SVE_SM4 7 FLAGM2 8 FRINTTS 10 F32MM 11 F64MM
        13 I8MM 14 BF16 16 RNG 18 MTE 23 SME 31 WFXT 34 CSSC 36 SVE2P1 37 SME 43 MOPS 44 HBC 46 LRCPC3 47 LSE128"""),
    8,
)
AUXILIARY: dict[int, Value] = {16: HWCAP, 26: _HWCAP2}
ARGUMENTS: dict[int, Value] = {0: 24, 8: HWCAP, 16: _HWCAP2}


def _fields(text: str) -> Value:
    """From ``bit name`` pairs: the fields of four bits that are not zero where the processor has the feature."""
    return values.word({bit + one: facts for bit, facts in _table(text).items() for one in range(4)}, 8)


# by the bits of an mrs that say which register
IDENTITY: dict[int, Value] = {
    0x80600: _fields("4 AES 8 SHA1 12 SHA256 16 CRC32 20 LSE 28 RDM 32 SHA3 36 SM3 40 SM4 44 DOTPROD 48 FHM 52 FLAGM"),
    0x80620: _fields("4 PAUTH 8 PAUTH 12 JSCVT 16 FCMA 20 LRCPC 32 FRINTTS 36 SB 44 BF16 52 I8MM"),
    0x80400: _fields("32 SVE"),
    0x80480: _fields("4 SVE_AES 16 SVE_BITPERM 32 SVE_SHA3 40 SVE_SM4 52 F32MM 56 F64MM"),
}
