"""What aarch64 code needs of the processor, from its words of 32 bits.

    words -> lanes: the first bytes of all words, the second, the third, the fourth -> which groups each byte allows
          -> words whose four bytes allow one group -> the row of the table that fits -> CPU features

A lane is translated and joined with the others in one operation on a long number, so the words that no row is about,
which are nearly all, cost no step in Python. The table holds what the Arm Architecture Reference Manual (DDI 0487,
chapter C4) encodes above the first Armv8-A; of the spaces of SVE and SME, which have a part of the encodings of their
own, everything. The names are those of the manual, without ``FEAT_``. Hints, which older processors execute as nothing
(``bti``, ``paciasp``), and instructions for operating systems only are not in it.
"""

import re
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain, takewhile

from vbuild.binary.code import CodeSection
from vbuild.dispatch.isa import FeatureUse, Isa, RegionIsa, regions_of
from vbuild.elf.code import CodeFile
from vbuild.hardware.cpu import AARCH64_VERSIONS, Cpu

# mask, value, features, instructions; of the rows that fit, the first counts. Rows that are near to each other stand
# in one group, and an empty line ends it: a search looks for eight groups at a time. A - is the first Armv8-A.
_TABLE = """
1e000000 06000000 INVALID -
1e000000 02000000 INVALID -
9e000000 00000000 INVALID -

9e000000 80000000 SME -
fffff800 04bf5800 SME rdsvl
ffe0f800 04205800 SME addsvl
ffe0f800 04605800 SME addspl
ff20f000 04206000 SVE2 mul, pmul, smulh
ff20f800 04207000 SVE2 sqdmulh
ff20f800 04203800 SVE2 eor3, bcax, bsl
ff20fc00 04203400 SVE2 xar
ff3ee000 04068000 SVE2 sqshl
ff3ee000 040c8000 SVE2 srshr
ff3fe000 040f8000 SVE2 sqshlu
ffe0e000 05600000 SVE2 ext
ff3fe000 052d8000 SVE2 splice
ff20f800 05202800 SVE2 tbl, tbx
ffe0e000 05a00000 SVE,F64MM zip, uzp, trn of 128 bits
ffffe000 052e8000 SME revd
ff20c210 25204000 SME psel
ff20c010 25204010 SVE2P1 counters
ff20e400 25200000 SVE2 whilege, whilegt
ff20fc00 25203000 SVE2 whilewr
ffa0f800 44800000 SVE -
ffa0f800 44a00000 SVE -
ff20f800 4400c000 SME sclamp, uclamp
ffe0f800 4400c800 SVE2P1 sdot
ffe0f800 4480c800 SVE2P1 sdot
ffe0fc00 44807800 SVE,I8MM usdot
ffe0f800 44a01800 SVE,I8MM sudot, usdot
ff000000 44000000 SVE2 -
ff20fc00 45009800 SVE,I8MM smmla, ummla
ffe0f800 45006800 SVE2,SVE_PMULL128 pmullb, pmullt
ff20fc00 4500bc00 SVE2 -
ff20f000 4500b000 SVE2,SVE_BITPERM bext, bdep, bgrp
fffff800 4520e000 SVE2,SVE_AES aesmc, aesimc
fffff800 4522e000 SVE2,SVE_AES aese, aesd
fffffc00 4523e000 SVE2,SVE_SM4 sm4e
ffe0fc00 4520f000 SVE2,SVE_SM4 sm4ekey
ffe0fc00 4520f400 SVE2,SVE_SHA3 rax1
ff000000 45000000 SVE2 -
ffffe000 648aa000 SVE,BF16 bfcvtnt
ff3ce000 6408a000 SVE2 fcvtnt, fcvtlt
ff38e000 64108000 SVE2 faddp
ff208000 64000000 SVE -
ff3ee000 64008000 SVE -
ff20f800 64200000 SVE -
ffa0f000 64a01000 SVE -
ff20fc00 64202000 SVE -
ffe0fc00 64608000 SVE,BF16 bfdot
ffe0fc00 64604000 SVE,BF16 bfdot
ffe0f800 64e08000 SVE,BF16 bfmlalb
ffe0f000 64e04000 SVE,BF16 bfmlalb
ffe0fc00 6460e400 SVE,BF16 bfmmla
ffe0fc00 64a0e400 SVE,F32MM fmmla
ffe0fc00 64e0e400 SVE,F64MM fmmla
ffe0d800 64a08000 SVE2 fmlalb, fmlslb
ffe0d000 64a04000 SVE2 fmlalb, fmlslb
ff000000 64000000 SVE2P1 -
fff9e000 6518a000 SVE2 flogb
ffffe000 650aa000 SVE2 fcvtx
ffffe000 658aa000 SVE,BF16 bfcvt
fe60c000 84008000 SVE2 ldnt1
fe60a000 c4008000 SVE2 ldnt1
fe60e000 e4002000 SVE2 stnt1
fe60e000 e4402000 SVE2 stnt1
fe60e000 a4200000 SVE,F64MM ld1ro
fe70e000 a4202000 SVE,F64MM ld1ro
1e000000 04000000 SVE -

3f208c00 38200000 LSE ldadd, ldclr, ldset ...
3f20fc00 38208000 LSE swp
3ffffc00 38bfc000 LRCPC ldapr
ffa08c00 f8208000 LS64 st64b
ff200400 f8200400 PAUTH ldraa

3fa07c00 08a07c00 LSE cas
bfa07c00 08207c00 LSE casp
3fa08000 08800000 LOR ldlar, stllr

3f200c00 19000000 LRCPC2 ldapur, stlur
ff200c00 d9200800 MTE stg
ff200c00 d9200400 MTE stg
ffe00c00 d9600000 MTE ldg
fffffc00 d9200000 MTE stzgm
fffffc00 d9a00000 MTE stgm
fffffc00 d9e00000 MTE ldgm
ff200c00 d9200c00 MTE stg
ffe00c00 1dc00400 MOPS,MTE setg
3b200c00 19000400 MOPS cpy, set
3f200c00 1d000800 LRCPC3 ldapur, stlur
bf200c00 99000800 LRCPC3 ldiapp, stilp
ff200c00 19200000 LSE128 ldclrp, swpp

ff000010 54000010 HBC bc

fe400000 68000000 MTE stgp

fe1ff800 d61f0800 PAUTH retaa, braa, blraa

ffffffe0 d5031000 WFXT wfet
ffffffe0 d5031020 WFXT wfit
ffffffff d50330ff SB sb
fffff3ff d503323f XS dsb nxs
fffff0ff d500401f FLAGM cfinv
fffff0df d500405f FLAGM2 axflag, xaflag
fffff0ff d500403f FLAGM2 xaflag
fffff0ff d503405f DIT msr dit
ffdfffe0 d51b42a0 DIT mrs dit
ffffffc0 d53b2400 RNG mrs rndr
fffff8ff d503407f SME smstart, smstop

bfc00000 91800000 MTE addg, subg
7ff00000 11c00000 CSSC smax, umin

ffe0fc00 9ac01000 MTE irg
ffe0fc00 9ac01400 MTE gmi
dfe0fc00 9ac00000 MTE subp
ffe0fc00 9ac03000 PAUTH pacga
7fe0e000 1ac04000 CRC32 crc32b
7fe0f000 1ac06000 CSSC smax, umin

ffff0000 dac10000 PAUTH pacia, autia, xpac

7ffff800 5ac01800 CSSC ctz, cnt
7ffffc00 5ac02000 CSSC abs

ffe07c10 ba000400 FLAGM rmif
ffffbc1f 3a00080d FLAGM setf8

ffffcc00 4e284800 AES aese, aesmc
bfe0fc00 0ee0e000 PMULL pmull
fffff800 ce608000 SHA512 sha512h
ffe0f800 ce608000 SHA512 sha512h
ffe0fc00 ce608800 SHA512 sha512su1
ffe0fc00 ce608c00 SHA3 rax1
fffffc00 cec08000 SHA512 sha512su0
fffffc00 cec08400 SM4 sm4e
ffe08000 ce000000 SHA3 eor3
ffe08000 ce200000 SHA3 bcax
ffe08000 ce400000 SM3 sm3ss1
ffe00000 ce800000 SHA3 xar
ffe0c000 ce408000 SM3 sm3tt1a
ffe0f800 ce60c000 SM3 sm3partw1
ffe0fc00 ce60c800 SM4 sm4ekey

ffe0cc00 5e000000 SHA1 sha1c, sha1p, sha1m
ffe0cc00 5e004000 SHA256 sha256h

fffffc00 5e280800 SHA1 sha1h
fffffc00 5e281800 SHA1 sha1su1
fffffc00 5e282800 SHA256 sha256su0

7fff7c00 1ee24000 - fcvt
7fc00000 1ec00000 FP16 half scalars
ffc00000 1fc00000 FP16 fmadd of halves

ffbe7c00 1e284000 FRINTTS frint32z
fffffc00 1e634000 BF16 bfcvt
fffffc00 1e7e0000 JSCVT fjcvtzs

9fe0fc00 0ec01c00 FAMINMAX famax, famin
bfe0fc00 2ec03c00 FP8 fscale
9f60c400 0e400400 FP16 half vectors
df60c400 5e400400 FP16 half scalars

bf20f400 2e008400 RDM sqrdmlah, sqrdmlsh
ff20f400 7e008400 RDM sqrdmlah, sqrdmlsh
9fe0fc00 0e809400 DOTPROD sdot, udot
bfe0fc00 0e809c00 I8MM usdot
dfe0fc00 4e80a400 I8MM smmla, ummla
ffe0fc00 4e80ac00 I8MM usmmla
bfe0fc00 2e40fc00 BF16 bfdot
ffe0fc00 6e40ec00 BF16 bfmmla
bfe0fc00 2ec0fc00 BF16 bfmlal
bfe0ec00 2e40e400 FCMA,FP16 fcadd
bfe0e400 2e40c400 FCMA,FP16 fcmla
bf20ec00 2e00e400 FCMA fcadd
bf20e400 2e00c400 FCMA fcmla

bf60fc00 0e20ec00 FHM fmlal
bf60fc00 2e20cc00 FHM fmlal2

9f7e0c00 0e780800 FP16 half vectors
df7e0c00 5e780800 FP16 half scalars
bf7fdc00 0e30c800 FP16 fmaxv of halves
bf7ffc00 0e30f800 FP16 fmaxv of halves
ff7fdc00 5e30c800 FP16 pairs of halves
ff7ffc00 5e30d800 FP16 pairs of halves
ff7ffc00 5e30f800 FP16 pairs of halves

9fbfec00 0e21e800 FRINTTS frint32z
bffffc00 0ea16800 BF16 bfcvtn

bfc0b400 0f001000 FP16 half vectors
9fc0f400 0f009000 FP16 half vectors
ffc0b400 5f001000 FP16 half scalars
dfc0f400 5f009000 FP16 half scalars

9fc0f400 0f80e000 DOTPROD sdot, udot
bfc0f400 0f00f000 I8MM sudot
bfc0f400 0f80f000 I8MM usdot
bfc0f400 0f40f000 BF16 bfdot
bfc0f400 0fc0f000 BF16 bfmlal

bf00d400 2f00d000 RDM sqrdmlah, sqrdmlsh
ff00d400 7f00d000 RDM sqrdmlah, sqrdmlsh

bfc09400 2f401000 FCMA,FP16 fcmla
bf009400 2f001000 FCMA fcmla

bfc0b400 0f800000 FHM fmlal
bfc0b400 2f808000 FHM fmlal2

bff8fc00 0f00fc00 FP16 fmov of halves
9ff0fc00 0f10e400 FP16 half vectors
9ff0fc00 0f10fc00 FP16 half vectors
dff0fc00 5f10e400 FP16 half scalars
dff0fc00 5f10fc00 FP16 half scalars
"""
INVALID = "INVALID"
_BASELINE = "-"
_WORD, _LANES, _BYTE = 4, 4, 256
# words that are looked at in one step; what one step works on stays in a core's own cache
_CHUNK = 1 << 14
_HIT = re.compile(rb"[^\0]")


@dataclass(frozen=True, slots=True)
class Row:
    """The words that are *value* where *mask* has bits, and what they need."""

    mask: int
    value: int
    features: frozenset[str]
    instructions: str

    def allows(self, lane: int, byte: int) -> bool:
        return byte & (self.mask >> 8 * lane) & 0xFF == self.value >> 8 * lane & 0xFF


def _groups() -> tuple[tuple[Row, ...], ...]:
    groups = []
    for block in _TABLE.strip().split("\n\n"):
        rows = []
        for line in block.splitlines():
            mask, value, names, text = line.split(maxsplit=3)
            features = frozenset(names.split(",")) - {_BASELINE}
            rows.append(Row(int(mask, 16), int(value, 16), features, text))
        groups.append(tuple(rows))
    return tuple(groups)


GROUPS = _groups()
FEATURES = frozenset(name for group in GROUPS for row in group for name in row.features) - {INVALID}


class _Rows(dict[int, Row | None]):
    """The row of the table for each word that was looked up."""

    def __init__(self) -> None:
        super().__init__()
        self._by_top = [[row for group in GROUPS for row in group if row.allows(3, top)] for top in range(_BYTE)]

    def __missing__(self, word: int) -> Row | None:
        row = next((row for row in self._by_top[word >> 24] if word & row.mask == row.value), None)
        self[word] = row = row if row and row.features else None
        return row


_rows = _Rows()


def needed_by(word: int) -> frozenset[str]:
    """The features above the first Armv8-A that the instruction *word* needs; `INVALID` for what is none."""
    row = _rows[word]
    return row.features if row else frozenset()


def suspects() -> list[int]:
    """The last (highest) bytes of all words that are not instructions."""
    rows = [row for group in GROUPS for row in group if INVALID in row.features]
    return [top for top in range(_BYTE) if any(row.allows(_LANES - 1, top) for row in rows)]


@cache
def _tables() -> tuple[tuple[bytes, ...], ...]:
    """Tables to translate each lane with, for eight groups at a time: a bit stays where the group has such a byte."""
    tables = []
    for start in range(0, len(GROUPS), 8):
        part = GROUPS[start : start + 8]
        tables.append(
            tuple(
                bytes(
                    sum(1 << number for number, rows in enumerate(part) if any(row.allows(lane, byte) for row in rows))
                    for byte in range(_BYTE)
                )
                for lane in range(_LANES)
            )
        )
    return tuple(tables)


def telling_words(code: CodeSection) -> Iterator[tuple[int, int]]:
    """Address and word of each instruction in *code* that needs a feature, or is none; about 80 MB of code a second."""
    start = -code.address % _WORD
    data = code.data[start : start + (len(code.data) - start) // _WORD * _WORD]
    for offset in range(0, len(data), _WORD * _CHUNK):
        part = data[offset : offset + _WORD * _CHUNK]
        lanes = [part[lane::_LANES] for lane in range(_LANES)]
        hits = 0
        for tables in _tables():
            left = -1
            for lane, table in zip(reversed(lanes), reversed(tables), strict=True):
                left &= int.from_bytes(lane.translate(table), "little")
                if not left:
                    break
            hits |= left
        if not hits:
            continue
        words = array("I", part)
        if sys.byteorder == "big":
            words.byteswap()
        address = code.address + start + offset
        for match in _HIT.finditer(hits.to_bytes(len(lanes[0]), "little")):
            word = words[match.start()]
            if _rows[word]:
                yield address + _WORD * match.start(), word


def text_of(word: int) -> str:
    """The *word* as assembler text, as far as the table names it."""
    row = _rows[word]
    name = row.instructions if row and row.instructions != "-" else ", ".join(sorted(needed_by(word)))
    return f"{name} (.inst {word:#010x})"


def needed_in(data: bytes) -> frozenset[str]:
    """The features that the instructions of the code *data* need, up to the first word that is none."""
    words = [word for _, word in telling_words(CodeSection("", 0, data))]
    return frozenset(chain.from_iterable(map(needed_by, takewhile(lambda word: INVALID not in needed_by(word), words))))


@dataclass(frozen=True, slots=True)
class ArmRegion(RegionIsa):
    def above(self, level: int, *, extras: frozenset[str] = frozenset()) -> frozenset[str]:
        return self.features - Cpu("aarch64", AARCH64_VERSIONS[level]).features - extras

    def uses(self, features: Iterable[str]) -> tuple[FeatureUse, ...]:
        code = CodeSection("", self.region.address, self.region.data)
        missing = set(features)
        uses = []
        for address, word in telling_words(code):
            for feature in sorted(missing & needed_by(word)):
                missing.remove(feature)
                uses.append(FeatureUse(feature, address, text_of(word)))
            if not missing:
                break
        return tuple(uses)


def scan(elf: CodeFile) -> Isa:
    addresses, words = array("Q"), array("I")
    for address, word in chain.from_iterable(map(telling_words, elf.code)):
        addresses.append(address)
        words.append(word)
    isas = []
    invalid = low = 0
    for region in regions_of(elf, addresses):
        low = bisect_left(addresses, region.address, low)
        region_words = words[low : bisect_left(addresses, region.address + len(region.data), low)]
        if not region_words:
            continue
        certain, doubtful = _needs(region_words)
        is_broken = doubtful is not None
        invalid += is_broken
        doubtful = doubtful or frozenset()
        if is_broken and region.function is None:
            # data between functions: tables, constants
            certain, doubtful = frozenset(), certain | doubtful
        if certain or doubtful:
            isas.append(ArmRegion(region, certain, doubtful - certain, "SVE" in certain))
    return Isa(elf.code_size, tuple(isas), (), invalid)


def _needs(words: "array[int]") -> tuple[frozenset[str], frozenset[str] | None]:
    stop = len(words)
    for word in (kinds := set(words)):
        if INVALID in needed_by(word):
            stop = min(stop, words.index(word))
    if stop == len(words):
        return frozenset().union(*map(needed_by, kinds)), None
    behind = frozenset().union(*map(needed_by, words[stop:])) - {INVALID}
    return frozenset().union(*map(needed_by, words[:stop])), behind
