"""Runs aarch64 code, as `vbuild.dispatch.interpreter` runs that of x86-64.

The procedure call standard (AAPCS64) says which registers calls keep.
"""

from collections.abc import Iterable

from vbuild.dispatch import values
from vbuild.dispatch.arm_code import ArmModule
from vbuild.dispatch.arm_instructions import CONDITIONS, FULL, HALF, ZERO, ArmInstructions
from vbuild.dispatch.arm_questions import ARGUMENT, AUXILIARY, GETAUXVAL, HWCAP, IDENTITY
from vbuild.dispatch.arm_words import flow_of, is_instruction, read_by, writes
from vbuild.dispatch.interpreter import Interpreter
from vbuild.dispatch.machine_state import CALLS, CC, Compared, Operation, State
from vbuild.dispatch.module import Piece
from vbuild.dispatch.values import STACK, Value, tag
from vbuild.dispatch.world import is_address
from vbuild.elf.iced import FlowControl

_SP = ZERO
# arguments of functions that ask, and of those that are called next to them
_COUNTS = {"getauxval": 1, "__getauxval": 1, "getenv": 1, "secure_getenv": 1, "strtoul": 3, "strtol": 3}
# instructions that are looked at for a use of a register
_MOST_SEEN = 400
# a space of addresses that no file has: functions from outside, and bytes from one of them to the next
IMPORTS, _SPACE = 1 << 97, 1 << 40


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
            elif flow in CALLS and not writes(word, register):
                waiting.append(place + 4)
        return piece is not None

    def _may_hand_over(self, flow: int, target: int, register: int, results: int, piece: Piece) -> bool:
        """Whether the branch to *target*, which is in *piece*, may be to code that reads *register*."""
        is_argument = register in self._argument_registers
        if flow in CALLS:
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
