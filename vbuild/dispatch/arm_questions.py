"""What aarch64 code learns about the processor, who calls its functions, and what writes to its variables.

getauxval(AT_HWCAP), AT_HWCAP2    Linux, arch/arm64/include/uapi/asm/hwcap.h
a resolver's arguments            AT_HWCAP, and a pointer to its size, AT_HWCAP and AT_HWCAP2 (glibc, sys/ifunc.h)
mrs of an identity register       the manual, chapter D19; Linux answers for programs
"""

import re
from collections.abc import Iterator
from functools import cache, cached_property

from vbuild.dispatch import values
from vbuild.dispatch.arm_code import ArmModule
from vbuild.dispatch.facts import ASKERS, facts_of, features
from vbuild.dispatch.module import Module, Piece
from vbuild.dispatch.questions import Questions
from vbuild.dispatch.references import References, Registers
from vbuild.dispatch.values import Value, shifted, tag, truncated
from vbuild.dispatch.writers import Writers
from vbuild.elf.iced import FlowControl
from vbuild.hardware.cpu import Cpu

# mrs of an identity register: ID_AA64PFR0_EL1 to ID_AA64ISAR2_EL1, and MIDR_EL1, which says the model
_MRS = re.compile(rb"[\x00-\xff][\x00\x04-\x06]\x38\xd5")
GETAUXVAL = frozenset({"getauxval", "__getauxval"})
# a space of addresses that no file has: what a resolver gets a pointer to
ARGUMENT = 1 << 96
# registers in which functions return something
_RESULTS = 2
_ANYWHERE = range(-(1 << 40), 1 << 40)


@cache
def _implied(name: str) -> int:
    """The features that every processor with that one has: the manual says so (A2.2), or no maker left them out."""
    extensions = {
        "SVE": Cpu("aarch64", "8.2a").features | {"FP16", "FCMA"},
        "SVE2": Cpu("aarch64", "8.5a").features | {"SVE", "FP16", "FHM"},
        "FP16": Cpu("aarch64", "8.1a").features,
        "DOTPROD": Cpu("aarch64", "8.1a").features,
    }
    implied, waiting = {name}, [name]
    parents = {"F32MM": "SVE", "F64MM": "SVE", "SVE2P1": "SVE2", "FHM": "FP16", "PMULL": "AES", "SHA256": "SHA1"}
    parents |= {"SHA512": "SHA256", "SHA3": "SHA512", "FLAGM2": "FLAGM", "LRCPC2": "LRCPC", "LRCPC3": "LRCPC2"}
    parents |= {"BF16": "DOTPROD", "I8MM": "DOTPROD", "JSCVT": "LSE", "FCMA": "RDM", "SM4": "SM3", "RDM": "CRC32"}
    while waiting:
        last = waiting.pop()
        more = set(extensions.get(last, ())) | ({"SVE2"} if last.startswith("SVE_") else set())
        more |= {parents[last]} if last in parents else set()
        waiting += more - implied
        implied |= more
    return features(implied)


def _table(text: str) -> dict[int, int]:
    words = text.split()
    return {int(bit): facts_of(_implied(name)) for bit, name in zip(words[::2], words[1::2], strict=True)}


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
    """From ``bit name`` pairs: the fields of four bits that are nonzero with the feature."""
    return values.word({bit + offset: facts for bit, facts in _table(text).items() for offset in range(4)}, 8)


# by the bits of an mrs that say which register
IDENTITY: dict[int, Value] = {
    0x80600: _fields("4 AES 8 SHA1 12 SHA256 16 CRC32 20 LSE 28 RDM 32 SHA3 36 SM3 40 SM4 44 DOTPROD 48 FHM 52 FLAGM"),
    0x80620: _fields("4 PAUTH 8 PAUTH 12 JSCVT 16 FCMA 20 LRCPC 32 FRINTTS 36 SB 44 BF16 52 I8MM"),
    0x80400: _fields("32 SVE"),
    0x80480: _fields("4 SVE_AES 16 SVE_BITPERM 32 SVE_SHA3 40 SVE_SM4 52 F32MM 56 F64MM"),
}


class ArmQuestions(Questions):
    @cached_property
    def models(self) -> dict[int, int]:
        return {}

    def _asking(self) -> Iterator[Piece]:
        for module in self.program.modules:
            for code in module.elf.code:
                offsets = (match.start() for match in _MRS.finditer(code.data))
                starts = (module.base + code.address + offset for offset in offsets if not (code.address + offset) % 4)
                yield from filter(None, map(module.piece, starts))
            for slot, name in module.imports.items():
                if name in GETAUXVAL or name in ASKERS:
                    yield from self.users_of_slot(module, slot)
            yield from filter(None, (module.piece(module.base + address) for address in module.elf.resolvers))

    def special(self, address: int, size: int) -> Value:
        if tag(address) != tag(ARGUMENT):
            return None
        offset = address - ARGUMENT
        word = ARGUMENTS.get(offset & ~7)
        return truncated(shifted(word, 8 * (offset & 7), "shr", 8), size) if word is not None else None


class ArmReferences(References):
    def callers_use(self, address: int, _: int) -> bool:
        """Whether there seem to be callers: what they do with results is not followed."""
        module = self.program.module(address)
        start = address - module.base
        return any(True for _ in self._questions.users(module, range(start, start + 1)))

    def _registers_of_code(self, _: int, __: int) -> Registers:
        return self._all_registers

    def is_unread(self, _: int, __: int, ___: int = 0) -> bool:
        return False


class ArmWriters(Writers):
    def callers_write(self, address: int, register: int) -> bool:
        module = self.program.module(address)
        assert isinstance(module, ArmModule)  # noqa: S101  # a program has files of one machine
        start = address - module.base
        return any(
            instruction.flow_control != FlowControl.CALL
            or not module.spares(instruction.next_ip, register, _ANYWHERE, _RESULTS)
            for user in self._questions.users(module, range(start, start + 1))
            for instruction in module.instructions(user)
            if instruction.near_branch_target
            and self.program.destination(module.base + instruction.near_branch_target) == address
        )

    def writers_of(self, module: Module, table: range, starts: range) -> Iterator[Piece]:
        assert isinstance(module, ArmModule)  # noqa: S101  # a program has files of one machine
        low, high = min(table.start, starts.start), max(table.stop, starts.stop)
        for site, target in module.sites_and_targets(low, high):
            yield from self._writing(module, site, target, table)
        # through a pointer that is kept in data
        for slot in module.slots_to(table.start, table.stop):
            if module.object_at(slot):
                yield from self._questions.users(module, module.table(slot))
            for site in module.sites(slot, slot + 1):
                yield from self._writing(module, site, module.pointers[slot], table, is_pointer=True)
        for other, slot in self.program.importers(module, table):
            yield from self._questions.users_of_slot(other, slot)

    def _writing(
        self, module: ArmModule, site: int, target: int, table: range, *, is_pointer: bool = False
    ) -> Iterator[Piece]:
        if piece := module.piece(module.base + site):
            results = _RESULTS * self._references.is_result_used(piece.address)
            if module.may_write(site, target, table, results, is_pointer=is_pointer):
                yield piece
