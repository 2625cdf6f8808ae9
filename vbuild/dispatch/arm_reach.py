"""Which aarch64 code above a version runs without a test of the processor, as `vbuild.dispatch.reach` says for x86-64.

getauxval(AT_HWCAP), AT_HWCAP2    Linux, arch/arm64/include/uapi/asm/hwcap.h
a resolver's arguments            AT_HWCAP, and a pointer to its size, AT_HWCAP and AT_HWCAP2 (glibc, sys/ifunc.h)
mrs of an identity register       the manual, chapter D19; Linux answers for programs

These say what a program learns about the processor; the procedure call standard (AAPCS64), which registers calls keep.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cache, cached_property

from msgspec.structs import replace

from vbuild.dispatch import values
from vbuild.dispatch.arm_code import ArmModule
from vbuild.dispatch.arm_instructions import CONDITIONS, FULL, HALF, ZERO, ArmInstructions
from vbuild.dispatch.arm_words import flow_of, is_instruction, read_by, writes
from vbuild.dispatch.facts import ASKERS, facts_of, features
from vbuild.dispatch.interpreter import Interpreter
from vbuild.dispatch.machine_state import CC, Compared, Operation, State
from vbuild.dispatch.module import Module, Piece
from vbuild.dispatch.reach import Doubt, Reach, Unguarded
from vbuild.dispatch.references import NEAR
from vbuild.dispatch.values import STACK, Value, shifted, tag, truncated
from vbuild.dispatch.world import Registers, is_address
from vbuild.elf.iced import FlowControl
from vbuild.hardware.cpu import AARCH64_VERSIONS, Cpu

_SP = ZERO
# mrs of an identity register: ID_AA64PFR0_EL1 to ID_AA64ISAR2_EL1, and MIDR_EL1, which says the model
_MRS = re.compile(rb"[\x00-\xff][\x00\x04-\x06]\x38\xd5")
# arguments of functions that ask, and of those that are called next to them
_COUNTS = {"getauxval": 1, "__getauxval": 1, "getenv": 1, "secure_getenv": 1, "strtoul": 3, "strtol": 3}
# instructions that are looked at for a use of a register
_MOST_SEEN = 400
_CALLS = frozenset({FlowControl.CALL, FlowControl.INDIRECT_CALL})
GETAUXVAL = frozenset({"getauxval", "__getauxval"})
# spaces of addresses that no file has: what a resolver gets a pointer to, and functions from outside
ARGUMENT, IMPORTS = 1 << 96, 1 << 97
# registers in which functions return something
_RESULTS = 2
# bytes from one of these functions to the next
_SPACE = 1 << 40


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
    """From ``bit name`` pairs: the fields of four bits that are not zero where the processor has the feature."""
    return values.word({bit + one: facts for bit, facts in _table(text).items() for one in range(4)}, 8)


# by the bits of an mrs that say which register
IDENTITY: dict[int, Value] = {
    0x80600: _fields("4 AES 8 SHA1 12 SHA256 16 CRC32 20 LSE 28 RDM 32 SHA3 36 SM3 40 SM4 44 DOTPROD 48 FHM 52 FLAGM"),
    0x80620: _fields("4 PAUTH 8 PAUTH 12 JSCVT 16 FCMA 20 LRCPC 32 FRINTTS 36 SB 44 BF16 52 I8MM"),
    0x80400: _fields("32 SVE"),
    0x80480: _fields("4 SVE_AES 16 SVE_BITPERM 32 SVE_SHA3 40 SVE_SM4 52 F32MM 56 F64MM"),
}


class ArmInterpreter(ArmInstructions, Interpreter):
    """Runs one piece of aarch64 code, and what it calls as far as that is followed."""

    _results = (0, 1)
    _pointer, _pushed = _SP, 0
    _most_steps = 20_000

    def _unknown(self, facts: int = 0) -> State:
        registers: list[Value] = [None] * _SP
        return State(registers=[*registers, STACK], facts=facts)

    def _tell(self, address: int, state: State) -> None:
        """Give a resolver what the loader tells it: a call that leads to one is a call of what it returns."""
        module = self._program.module(address)
        if address - module.base in module.elf.resolvers:
            state.registers[:2] = HWCAP, ARGUMENT

    def _follow(self, entry: int, state: State) -> State | None:
        self._tell(entry, state)
        return super()._follow(entry, state)

    # control flow

    def _is_dead(self, address: int, register: int, *, is_argument: bool = False) -> bool:
        """Whether the code at *address* never reads *register* before it writes there; False if that takes too long.

        What a function does not write is no result of it if it *is_argument*, from its caller.
        """
        if register == _SP:
            return False
        key = (address, register if is_argument else ~register)
        if key not in self._program.dead:
            # while it is looked for, such as in code that calls itself
            self._program.dead[key] = False
            self._program.dead[key] = self._dies(address, register, 0 if is_argument else len(self._results))
        return self._program.dead[key]

    def _dies(self, address: int, register: int, results: int) -> bool:
        module = self._program.module(address)
        piece = module.piece(address)
        assert isinstance(module, ArmModule)  # noqa: S101  # a program has files of one machine
        waiting, seen = [address], set()
        while waiting and piece:
            place = waiting.pop()
            if place in seen:
                continue
            seen.add(place)
            word = module.word(place - module.base)
            if word is None or not is_instruction(word) or len(seen) > _MOST_SEEN or register in read_by(word):
                return False
            flow, target = flow_of(word, place)
            if flow == FlowControl.NEXT:
                waiting += [] if writes(word, register) else [place + 4]
            elif self._may_hand_over(flow, target, register, results, piece):
                return False
            elif flow == FlowControl.CONDITIONAL_BRANCH:
                waiting += [place + 4, target]
            elif flow == FlowControl.UNCONDITIONAL_BRANCH and piece.address < target < piece.end:
                waiting.append(target)
            elif flow in _CALLS and not writes(word, register):
                waiting.append(place + 4)
        return piece is not None

    def _may_hand_over(self, flow: int, target: int, register: int, results: int, piece: Piece) -> bool:
        """Whether the branch to *target*, which is in *piece*, may be to code that reads *register*."""
        is_argument = register in self._argument_registers
        if flow in _CALLS:
            return is_argument and not self._is_no_argument(target, register)
        if flow == FlowControl.UNCONDITIONAL_BRANCH:
            return is_argument and not piece.address < target < piece.end
        return flow == FlowControl.INDIRECT_BRANCH or (flow == FlowControl.RETURN and register < results)

    def _is_no_argument(self, target: int, register: int) -> bool:
        """Whether what is called at *target*, if that is known, never reads what *register* has."""
        destination = self._program.destination(target) if target else None
        if isinstance(destination, str):
            return register >= _COUNTS.get(destination, register + 1)
        return destination is not None and self._is_dead(destination, register, is_argument=True)

    def _called(self, targets: Iterable[tuple[int | str, int]], state: State, stack: int = 0) -> list[State]:
        known = list(targets)
        for number in self._argument_registers:
            # what is left in a register from before is no argument
            if (
                known
                and is_address(state.registers[number])
                and all(
                    number >= _COUNTS.get(target, number + 1)
                    if isinstance(target, str)
                    else self._is_dead(target, number, is_argument=True)
                    for target, _ in known
                )
            ):
                state.registers[number] = None
        return super()._called(known, state, stack)

    def _branch(self, operation: Operation, state: State, entry: int) -> list[tuple[int, State]]:
        word, kept = operation.instruction.code, state.flags
        if word >> 24 == 0x54:
            if word & 0xF >= len(CONDITIONS):
                return self._jump(operation.target, state, entry)
            condition = CONDITIONS[word & 0xF]
        else:
            condition = CC.NE if word & 1 << 24 else CC.E
            number = word & 0x1F
            if word & 1 << 25:
                bit = word >> 26 & 0x20 | word >> 19 & 0x1F
                value = values.shifted(self._x(number, state), bit, "shr", FULL)
                state.flags = Compared(values.bitwise(value, 1, "and"), 0, FULL)
            else:
                size = FULL if word >> 31 else HALF
                value = self._x(number, state, size)
                state.flags = Compared(value, 0, size, None if number == ZERO else number)
        taken, not_taken = self._sides(state, condition)
        if word >> 24 != 0x54:
            taken.flags = not_taken.flags = kept
        return [(operation.following, not_taken), *self._jump(operation.target, taken, entry)]

    def _targets(self, operation: Operation, state: State) -> list[tuple[int | str, int]]:
        if operation.target:
            destination = self._program.destination(operation.target)
            return [] if destination is None else [(destination, 0)]
        cases = values.cases_of(self._x(operation.instruction.code >> 5 & 0x1F, state)) or {}
        found: list[tuple[int | str, int]] = []
        for number, facts in cases.items():
            if tag(number) == tag(IMPORTS):
                index, offset = divmod(number - IMPORTS, _SPACE)
                if not offset:
                    found.append((self._program.names[index], facts))
            elif 0 < tag(number) <= len(self._program.modules):
                found.append((number, facts))
        return found if len(found) == len(cases) else []

    def _imported(self, name: str, state: State) -> list[State]:
        kind = state.registers[0]
        found = super()._imported(name, state)
        if name in GETAUXVAL and found:
            state.registers[0] = AUXILIARY.get(kind) if isinstance(kind, int) else None
        return found

    # instructions

    def _load_from(self, address: int, size: int, state: State) -> Value:
        if 0 < tag(address) <= len(self._program.modules):
            module = self._program.module(address)
            behind = self._program.behind(module, address - module.base)
            if isinstance(behind, str) and size == FULL:
                names = self._program.names
                if behind not in names:
                    names.append(behind)
                return IMPORTS + names.index(behind) * _SPACE
        return super()._load_from(address, size, state)

    def _take_apart(self, operation: Operation) -> None:
        operation.run = ArmInterpreter._plain

    def _plain(self, operation: Operation, state: State) -> None:
        instruction = operation.instruction
        word = instruction.code
        kind = word >> 25 & 0xF
        if kind in {8, 9}:
            self._with_number(word, instruction.ip, state)
        elif kind in {5, 13}:
            self._with_registers(word, state)
        elif kind & 5 == 4:
            self._memory(word, instruction.ip, state)
        elif kind & 7 == 7:
            self._numbers(word, state)
        elif kind in {10, 11}:
            if word & 0xFFF00000 == 0xD5300000:
                self._put_or_drop(word & 0x1F, IDENTITY.get(word & 0xFFFE0), state)
            elif word & 0xFFE0001F == 0xD4000001:
                self._put(0, None, state)
        elif kind == 2:
            # of SVE, some instructions write a general register
            self._put_or_drop(word & 0x1F, None, state)


class ArmReach(Reach):
    """Finds the aarch64 code above the version of a CPU that is reached without a test."""

    _longest_of_flags = 0

    _interpreter = ArmInterpreter

    @cached_property
    def _models(self) -> dict[int, int]:
        return {}

    def _asking(self) -> Iterator[Piece]:
        for module in self.program.modules:
            for code in module.elf.code:
                places = (match.start() for match in _MRS.finditer(code.data))
                starts = (module.base + code.address + place for place in places if not (code.address + place) % 4)
                yield from filter(None, map(module.piece, starts))
            for place, name in module.imports.items():
                if name in GETAUXVAL or name in ASKERS:
                    yield from self._users_of_place(module, place)
            yield from filter(None, (module.piece(module.base + address) for address in module.elf.resolvers))

    def _of_level(self, level: int) -> int:
        return features(Cpu("aarch64", AARCH64_VERSIONS[level]).features)

    def is_closed(self, _: int, *, is_kept: bool = False) -> bool:  # noqa: ARG002  # of any kind
        """Arguments are not followed into functions that others may call."""
        return False

    def _is_choosing(self, _: Piece) -> bool:
        """Nor is what code above the version tells such a function."""
        return False

    def callers_use(self, address: int, _: int) -> bool:
        """Whether there seem to be callers: what they do with results is not followed."""
        module = self.program.module(address)
        place = address - module.base
        return any(True for _ in self._users(module, range(place, place + 1)))

    def callers_write(self, address: int, register: int) -> bool:
        module = self.program.module(address)
        assert isinstance(module, ArmModule)  # noqa: S101  # a program has files of one machine
        place = address - module.base
        anywhere = range(-_SPACE, _SPACE)
        return any(
            one.flow_control != FlowControl.CALL or not module.spares(one.next_ip, register, anywhere, _RESULTS)
            for user in self._users(module, range(place, place + 1))
            for one in module.instructions(user)
            if one.near_branch_target and self.program.destination(module.base + one.near_branch_target) == address
        )

    def _found_registers(self, _: int, __: int) -> Registers:
        return Registers(frozenset(range(9)), frozenset((*range(19), 30)))

    def _writers_of(self, module: Module, table: range, starts: range) -> Iterator[Piece]:
        assert isinstance(module, ArmModule)  # noqa: S101  # a program has files of one machine
        low, high = min(table.start, starts.start), max(table.stop, starts.stop)
        for site, target in module.sites_and_targets(low, high):
            yield from self._writing(module, site, target, table)
        # through a pointer that is kept in data
        for place in module.places_of(table.start, table.stop):
            if module.object_at(place):
                yield from self._users(module, module.table(place))
            for site in module.sites(place, place + 1):
                yield from self._writing(module, site, module.pointers[place], table, is_pointer=True)
        for other, place in self.program.importers(module.exported_names(table)):
            if other is not module:
                yield from self._users_of_place(other, place)

    def _users_of_variable(self, module: Module, place: int) -> Iterator[Piece]:
        assert isinstance(module, ArmModule)  # noqa: S101  # a program has files of one machine
        table = module.table(place)
        low = table.start if module.object_at(place) else min(table.start, place - NEAR)
        for site, target in module.sites_and_targets(low, table.stop):
            if target in table or module.is_taken(site):
                yield from filter(None, (module.piece(module.base + site),))

    def _writing(
        self, module: ArmModule, site: int, target: int, table: range, *, is_pointer: bool = False
    ) -> Iterator[Piece]:
        """The piece with *site* if it may write to *table*, as in `ArmModule.may_write`."""
        if piece := module.piece(module.base + site):
            results = _RESULTS * self.is_result_used(piece.address)
            if module.may_write(site, target, table, results, is_pointer=is_pointer):
                yield piece

    def _doubt(self, address: int) -> Doubt | None:
        """In a file that asks the processor nothing is shown to be unguarded: less is understood than of x86-64."""
        return Doubt.UNFOLLOWED if self._asks_in(self.program.module(address)) else None

    def writes_behind(self, _: int, __: int, ___: range, ____: int = 0, *, is_sure: bool) -> bool:  # noqa: ARG002
        return False

    def _is_clear(self, _: int, __: Unguarded) -> bool:
        return True

    def violations(self, above: Iterable[Piece]) -> dict[int, Unguarded]:
        found = super().violations(above)
        return {address: replace(one, doubt=one.doubt or self._doubt(address)) for address, one in found.items()}

    def _special(self, address: int, size: int) -> Value:
        if tag(address) != tag(ARGUMENT):
            return None
        offset = address - ARGUMENT
        word = ARGUMENTS.get(offset & ~7)
        return truncated(shifted(word, 8 * (offset & 7), "shr", 8), size) if word is not None else None
