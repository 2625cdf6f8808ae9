"""Runs aarch64 code, as `vbuild.dispatch.interpreter` runs that of x86-64.

The procedure call standard (AAPCS64) says which registers calls keep.
"""

from collections.abc import Iterable

from vbuild.dispatch import values
from vbuild.dispatch.arm_code import ArmModule
from vbuild.dispatch.arm_instructions import CONDITIONS, FULL, HALF, ZERO, register_of, run
from vbuild.dispatch.arm_questions import ARGUMENT, AUXILIARY, GETAUXVAL, HWCAP
from vbuild.dispatch.arm_words import flow_of, is_instruction, read_by, writes
from vbuild.dispatch.interpreter import Interpreter
from vbuild.dispatch.machine import Machine
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


class ArmMachine(Machine):
    """What runs aarch64 code reads and writes."""

    def is_dead(self, address: int, register: int, *, is_argument: bool = False) -> bool:
        """Whether the code at *address* never reads *register* before it writes there; False if that takes too long.

        What a function does not write is no result of it if it *is_argument*, from its caller.
        """
        if register == _SP:
            return False
        key = (address, register if is_argument else ~register)
        if key not in self.program.dead:
            # while it is looked for, such as in code that calls itself
            self.program.dead[key] = False
            self.program.dead[key] = self._dies(
                address, register, 0 if is_argument else len(self.program.convention.results)
            )
        return self.program.dead[key]

    def _dies(self, address: int, register: int, results: int) -> bool:
        module = self.program.module(address)
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
        is_argument = register in self.program.convention.arguments
        if flow in CALLS:
            return is_argument and not self.is_no_argument(
                self.program.destination(target) if target else None, register
            )
        if flow == FlowControl.UNCONDITIONAL_BRANCH:
            return is_argument and not piece.address < target < piece.end
        return flow == FlowControl.INDIRECT_BRANCH or (flow == FlowControl.RETURN and register < results)

    def is_no_argument(self, called: int | str | None, register: int) -> bool:
        """Whether what is *called*, if that is known, never reads what *register* has."""
        if isinstance(called, str):
            return register >= _COUNTS.get(called, register + 1)
        return called is not None and self.is_dead(called, register, is_argument=True)

    def load_from(self, address: int, size: int, state: State) -> Value:
        if 0 < tag(address) <= len(self.program.modules):
            module = self.program.module(address)
            behind = self.program.behind(module, address - module.base)
            if isinstance(behind, str) and size == FULL:
                names = self.program.names
                if behind not in names:
                    names.append(behind)
                return IMPORTS + names.index(behind) * _SPACE
        return super().load_from(address, size, state)


class ArmInterpreter(Interpreter):
    """Runs one piece of aarch64 code, and what it calls as far as that is followed."""

    _machine_of = ArmMachine
    _machine: ArmMachine
    _most_steps = 20_000

    def _unknown(self, facts: int = 0) -> State:
        registers: list[Value] = [None] * _SP
        return State(registers=[*registers, STACK], facts=facts)

    def _follow(self, entry: int, state: State) -> State | None:
        module = self._program.module(entry)
        if entry - module.base in module.elf.resolvers:
            # what the loader tells it: a call that leads to a resolver is a call of what it returns
            state.registers[:2] = HWCAP, ARGUMENT
        return super()._follow(entry, state)

    # control flow

    def _called(self, targets: Iterable[tuple[int | str, int]], state: State, stack: int = 0) -> list[State]:
        known = list(targets)
        for number in self._argument_registers:
            # what is left in a register from before is no argument
            is_left = is_address(state.registers[number]) and known
            if is_left and all(self._machine.is_no_argument(target, number) for target, _ in known):
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
                value = values.shifted(register_of(number, state), bit, "shr", FULL)
                state.flags = Compared(values.bitwise(value, 1, "and"), 0, FULL)
            else:
                size = FULL if word >> 31 else HALF
                value = register_of(number, state, size)
                state.flags = Compared(value, 0, size, None if number == ZERO else number)
        taken, not_taken = self._sides(state, condition)
        if word >> 24 != 0x54:
            taken.flags = not_taken.flags = kept
        return [(operation.following, not_taken), *self._jump(operation.target, taken, entry)]

    def _targets(self, operation: Operation, state: State) -> list[tuple[int | str, int]]:
        if operation.target:
            destination = self._program.destination(operation.target)
            return [] if destination is None else [(destination, 0)]
        cases = values.cases_of(register_of(operation.instruction.code >> 5 & 0x1F, state)) or {}
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

    def _take_apart(self, operation: Operation) -> None:
        operation.run = run
