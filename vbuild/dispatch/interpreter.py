"""Runs code on what is known of values, to find what is reached without a test of the processor.

    state     registers, stack, flags, and the *facts*: the features that the processor has if this is reached at all
    branch    each side gets the facts that the tested value shows for it
    call      followed with its arguments, if the code called has to do with the question; else a use of that code
    use       a call, a jump, or an address that goes where it is not followed, with the facts at that instruction

Code is taken to be a compiler's for x86-64 Linux: calls keep the stack and the registers that the psABI names.
"""

from collections.abc import Container, Iterable, Sequence
from functools import cached_property
from heapq import heappop, heappush

from vbuild.dispatch import values
from vbuild.dispatch.facts import ANY, ASKED, ASKERS, CATCHERS, EVERY, FEATURES, PRESENT, SIGILL, XCR0_BITS, optional
from vbuild.dispatch.instructions import take_apart
from vbuild.dispatch.machine import MOST_WORDS, Machine
from vbuild.dispatch.machine_state import (
    CC,
    RAX,
    TESTS,
    Compared,
    Operation,
    Stack,
    State,
    loaded,
    negated,
    shown_by,
)
from vbuild.dispatch.module import ENDLESS, Piece
from vbuild.dispatch.program import (
    COPIES,
    ENVIRONMENT_READERS,
    FILLS,
    HARMLESS,
    LEAF_SIZE,
    LEAVES,
    RETURNED,
    TAKEN,
    WRITTEN,
)
from vbuild.dispatch.values import MASK_64, STACK, Value, is_stack, tag
from vbuild.dispatch.variables import ENVIRONMENT, Summary, World, is_address
from vbuild.elf.iced import ConditionCode, FlowControl

# a number of 32 bits, bytes of a word, and letters of the name of a system control
_HALF, _WORD, _LONGEST = (1 << 32) - 1, 8, 64
# after longjmp they return again, to a stack on which other things stand by then
_RETURNING_TWICE = frozenset({"setjmp", "_setjmp", "sigsetjmp", "__sigsetjmp", "_setjmpex"})
_DEPTH, _RANGE = 6, 64
_FLAG_DEPTH = 3
# parts of a stack that copying and joining costs nothing to speak of; beyond them, how many cost as much as a step
_SMALL_STACK, _PARTS_A_STEP = 16, 8
# what a call costs besides, in steps
_STEPS_A_CALL = 5


def imported(machine: Machine, name: str, state: State) -> list[State]:
    """The state after a call of the import *name*; none if it never returns."""
    if name in ENDLESS or (name.startswith("_ZSt") and "__throw_" in name):
        return []
    arguments = machine.program.convention.arguments
    to, source, size = (state.registers[number] for number in arguments[:3])
    if (name in COPIES and machine.copy(to, source, size, state)) or (
        name in FILLS and machine.fill(to, source, size, state)
    ):
        machine.forget(state, to)
        return [state]
    if name not in HARMLESS | ASKERS:
        machine.hand_over(
            state, arguments[: TAKEN.get(name)], 0 if name in TAKEN else MOST_WORDS, is_written=name not in WRITTEN
        )
    for number in WRITTEN.get(name, ()):
        machine.lose(state.registers[arguments[number]], state.facts)
    if name in HARMLESS and isinstance(to, int) and is_stack(to):
        machine.spoil(to, state)
    if name in {"pthread_once", "call_once"}:
        machine.lose(source, state.facts)
    if name in _RETURNING_TWICE:
        state.stack = Stack({})
    if name in CATCHERS and to == SIGILL:
        # some instruction is tried, and it was not understood what follows from that
        state.facts |= ASKED
    machine.forget(state, _returned_by(machine, name, state))
    return [state]


def _returned_by(machine: Machine, name: str, state: State) -> Value:
    if name in ASKERS:
        return _system_answer(machine, name, state)
    if name in ENVIRONMENT_READERS:
        # what somebody sets for this one program is that person's choice
        return ENVIRONMENT
    first = state.registers[machine.program.convention.arguments[0]]
    if name in RETURNED:
        return first
    if name == "__x86_get_cpuid_feature_leaf" and isinstance(first, int):
        return LEAVES + first * LEAF_SIZE
    return None


def _system_answer(machine: Machine, name: str, state: State) -> Value:
    """What Windows or macOS answers to a question about the processor; macOS writes it to memory."""
    first, to, size, *_ = (state.registers[number] for number in machine.program.convention.arguments)
    if name == "GetEnabledXStateFeatures":
        return values.word(dict(XCR0_BITS), _WORD)
    if name == "IsProcessorFeaturePresent":
        return values.choice({0: 0, 1: PRESENT.get(first & _HALF, 0)}) if isinstance(first, int) else None
    length, facts, before = machine.load(size, _WORD, state), 0, None
    if isinstance(first, int) and 0 < tag(first) <= len(machine.program.modules):
        module = machine.program.module(first)
        name = module.bytes_at(first - module.base, _LONGEST).partition(b"\0")[0].decode("latin-1")
        facts = optional(name) if module.is_constant(first - module.base) else 0
    if facts and isinstance(length, int) and 0 < length <= _WORD:
        before = machine.load(to, length, state)
    machine.hand_over(state, machine.program.convention.arguments)
    if before is not None and isinstance(length, int):
        # if it fails, what was there before stays
        machine.store(to, length, values.join(before, 0, values.choice({0: 0, 1: facts}), 0), state)
    return None


class TooMuchError(Exception):
    """The code takes more steps than it is worth."""


class Interpreter:
    """Runs one piece of code, and what it calls as far as that is followed."""

    # instructions that are run for one piece
    _most_steps = 20_000

    def __init__(self, world: World) -> None:
        self._world, self._program, self._references = world, world.program, world.references
        self._work = world.work
        self._variables = world.variables
        self._machine = machine = Machine(world)
        convention = world.program.convention
        self._argument_registers, self._results = convention.arguments, convention.results
        self._pointer, self._pushed = convention.pointer, convention.pushed
        self._followed = machine.followed
        # by instruction: the facts whenever it ran; by instruction and target: those of a use
        self.ran: dict[int, int] = {}
        self.uses = machine.uses
        self.steps = 0
        # the branches that depend on an answer whose meaning is known
        self.understood: set[int] = set()
        self._most = self._most_steps
        self._entry = 0
        self._at_calls = EVERY
        self._at_jumps: int | None = None
        self._return: State | None = None
        self._end: State | None = None

    @cached_property
    def summary(self) -> Summary:
        """What the piece tells a caller, whatever the arguments."""
        end = self._end
        if end is None:
            return Summary(None, None, 0, returns=False, hands_out=self._machine.hands_out, is_asked=False)
        first, other = self._results
        result, second = (
            None if isinstance(value, int) and tag(value) else value
            for value in (end.registers[first], end.registers[other])
        )
        if values.tells(second) and not self._references.callers_use(self._entry, other):
            second = None
        is_asked = self._machine.asks and bool(self._references.registers(self._entry).arguments)
        return Summary(result, second, end.facts, returns=True, hands_out=self._machine.hands_out, is_asked=is_asked)

    def run_piece(self, piece: Piece) -> None:
        """Run *piece* from its start, then what was not reached, such as code that handles errors."""
        self._most = self._most_steps + piece.end - piece.address
        self._entry = piece.address
        start, registers = self._unknown(), self._argument_registers
        for number, value in enumerate(self._world.arguments(piece.address)):
            self._machine.is_given_addresses |= isinstance(value, int) and tag(value) != 0
            if number < len(registers):
                start.registers[registers[number]] = value
            elif value is not None:
                start.stack[STACK + 8 * (number - len(registers) + 1)] = (8, value)
        self._end = self._follow(piece.address, start)
        module = self._program.module(piece.address)
        for instruction in module.instructions(piece):
            address = module.base + instruction.ip
            if address in self.ran or not (
                module.needs(instruction) or instruction.near_branch_target or instruction.is_ip_rel_memory_operand
            ):
                continue
            facts = self._at_calls if self._at_jumps is None else self._at_calls & self._at_jumps
            self._run(address, self._unknown(0 if facts == EVERY else facts), piece.address)

    def _unknown(self, facts: int = 0) -> State:
        return State(facts=facts)

    def _follow(self, entry: int, state: State) -> State | None:
        """The state after the function at *entry*; None if it never returns."""
        self._followed.append(entry)
        before, self._return = self._return, None
        caller = self._machine.module, self._machine.here
        try:
            self._run(entry, state, entry)
            return self._return
        finally:
            self._return = before
            self._machine.module, self._machine.here = caller
            self._followed.pop()

    def _run(self, start: int, state: State, entry: int) -> None:
        waiting, states = [(0, start)], {start: state}
        operations = self._program.operations
        visits: dict[int, int] = {}
        while waiting:
            first = heappop(waiting)
            while waiting and waiting[0] == first:
                heappop(waiting)
            _, address = first
            visits[address] = visits.get(address, 0) + 1
            # a state that is large is copied and kept for each block
            self._charge(max(len(states[address].stack.parts) - _SMALL_STACK, 0) // _PARTS_A_STEP)
            for target, after in self._until_paths_part(address, states[address].copy(), entry, states):
                if target in states:
                    merged = self._machine.joined(states[target], after, target, visits=visits.get(target, 0))
                    if merged == states[target]:
                        continue
                    states[target] = merged
                else:
                    states[target] = after
                heappush(waiting, ((operations.get(target) or self._operation(target)).number, target))

    def _until_paths_part(
        self, address: int, state: State, entry: int, known: Container[int]
    ) -> list[tuple[int, State]]:
        """Run from *address* to where other paths may come in, or the next *known* place."""
        operations, machine = self._program.operations, self._machine
        while True:
            operation = operations.get(address) or self._operation(address)
            self._charge(1)
            self.ran[address] = self.ran.get(address, EVERY) & state.facts
            if operation.instruction is None:
                return []
            machine.module, machine.here = operation.module, address
            if operation.flow == FlowControl.NEXT:
                operation.run(machine, operation, state)
                address = operation.following
            else:
                following = self._step(operation, state, entry)
                if len(following) != 1 or following[0][0] <= address:
                    return following
                ((address, state),) = following
            if address in known or (operations.get(address) or self._operation(address)).is_joined:
                return [(address, state)]

    def _charge(self, steps: int) -> None:
        """Count *steps*; raise `TooMuchError` if the piece, or all of the program, takes more than it may."""
        self.steps += steps
        self._work.spent += steps
        if self.steps > self._most or self._work.is_spent:
            raise TooMuchError

    def _operation(self, address: int) -> Operation:
        module = self._program.module(address)
        instruction = module.instruction(address)
        number, is_joined = self._program.order(address)
        if instruction is None:
            operation = Operation(None, module, is_joined, number)
        else:
            branch, following = instruction.near_branch_target, module.base + instruction.next_ip
            target = module.base + branch if branch else 0
            operation = Operation(instruction, module, is_joined, number, instruction.flow_control, following, target)
            self._take_apart(operation)
        self._program.operations[address] = operation
        return operation

    def _step(self, operation: Operation, state: State, entry: int) -> list[tuple[int, State]]:
        """Run an instruction that may not go on to the next one; return where control goes, with the states there."""
        flow, following = operation.flow, operation.following
        if flow == FlowControl.CONDITIONAL_BRANCH:
            return self._branch(operation, state, entry)
        if flow == FlowControl.UNCONDITIONAL_BRANCH:
            return self._jump(operation.target, state, entry)
        if flow in {FlowControl.CALL, FlowControl.INDIRECT_CALL}:
            self._at_calls &= state.facts
            after = self._called(self._targets(operation, state), state)
            # a call at the end of a function does not return
            piece = self._machine.module.piece(following)
            is_end = piece is not None and piece.address == following and piece.symbol is not None
            return [] if is_end else [(following, next_state) for next_state in after]
        if flow == FlowControl.INDIRECT_BRANCH:
            return self._indirect(operation, state, entry)
        if flow == FlowControl.RETURN:
            self._returned(state)
        return [(following, state)] if flow == FlowControl.XBEGIN_XABORT_XEND else []

    def _branch(self, operation: Operation, state: State, entry: int) -> list[tuple[int, State]]:
        condition = operation.condition
        if condition == ConditionCode.NONE:
            return [(operation.following, state.copy()), *self._jump(operation.target, state, entry)]
        taken, not_taken = self._sides(state, condition)
        return [(operation.following, not_taken), *self._jump(operation.target, taken, entry)]

    def _sides(self, state: State, condition: int) -> tuple[State, State]:
        """The states where *condition* holds and where it does not, which *state* becomes."""
        opposite = negated(condition)
        shown, other = shown_by(state.flags, condition), shown_by(state.flags, opposite)
        if any(facts & FEATURES and facts <= ANY for facts in (shown, other)):
            self.understood.add(self._machine.here)
        taken = state.copy(shown)
        state.facts |= other
        self._narrow(taken, condition)
        self._narrow(state, opposite)
        return taken, state

    def _narrow(self, after: State, condition: int) -> None:
        flags = after.flags
        self._note_change(after, condition)
        if flags is None or flags.location is None or flags.only or not isinstance(flags.right, int):
            return
        test, number = TESTS.get(condition), flags.right
        if test is None:
            return
        narrowed: Value = flags.left
        if isinstance(flags.left, values.Choice):
            cases = {case: facts for case, facts in flags.left.cases if test(case, number, flags.size)}
            narrowed = values.choice(cases) if cases else flags.left
        elif values.cases_of(flags.left) is None and not values.tells(flags.left) and not tag(number):
            limits: dict[int, int] = {CC.BE: number, CC.B: number - 1}
            limit = limits.get(condition, -1)
            if 0 <= limit < _RANGE:
                narrowed = values.choice(dict.fromkeys(range(limit + 1), 0))
            elif condition == CC.E:
                narrowed = number
        if narrowed is not flags.left:
            if flags.location < len(after.registers):
                after.registers[flags.location] = narrowed
            elif flags.location in after.stack:
                after.stack[flags.location] = (after.stack[flags.location][0], narrowed)

    def _note_change(self, state: State, condition: int) -> None:
        """Note where *condition* shows that a variable has not got its first value any more: it never gets it again."""
        flags, test = state.flags, TESTS.get(condition)
        if isinstance(flags, Compared) and flags.source and test and isinstance(flags.right, int):
            first = self._variables.first_value(*flags.source)
            if first is not None and not test(first, flags.right, flags.size):
                state.changed |= {flags.source}

    def _jump(self, target: int, state: State, entry: int) -> list[tuple[int, State]]:
        """Where a jump to *target* goes: in the same function, or to another, which returns for this one."""
        destination = self._program.destination(target)
        if isinstance(destination, int) and destination == target:
            piece = self._program.module(target).piece(target)
            names = piece.symbol.names if piece and piece.symbol else ()
            # the middle of a function, or what the compiler moved out of one
            is_own = piece is None or target != piece.address or any(".cold" in name for name in names)
            if is_own or target == entry:
                return [(target, state)]
        for after in self._called([(destination, 0)] if destination is not None else [], state, 8):
            self._returned(after)
        return []

    def _indirect(self, operation: Operation, state: State, entry: int) -> list[tuple[int, State]]:
        successors: list[tuple[int, State]] = []
        targets = self._targets(operation, state)
        if not targets:
            # a jump to an unknown place
            self._at_jumps = state.facts if self._at_jumps is None else self._at_jumps & state.facts
            self._returned(state.copy())
        for target, facts in targets:
            after = state.copy(facts)
            if isinstance(target, int):
                successors += self._jump(target, after, entry)
            else:
                for left in self._called([(target, facts)], after, 8):
                    self._returned(left)
        return successors

    def _returned(self, state: State) -> None:
        result = state.registers[RAX]
        if len(self._followed) == 1 and (not is_address(result) or self._references.is_result_used(self._followed[0])):
            self._machine.lose(result, state.facts, is_written=False)
        if len(self._followed) == 1:
            for register in self._results:
                variables = self._machine.variables_in(state.registers[register])
                if variables and self._world.writers.callers_write(self._entry, register):
                    for variable in variables:
                        self._variables.escape(variable, state.facts)
        before, after, pointer = self._return, state.copy(), state.registers[self._pointer]
        if isinstance(pointer, int):
            # what a function has kept on the stack is gone
            after.stack.cut(pointer)
        self._return = after if before is None else self._machine.joined(before, after, self._machine.here, visits=0)

    def _targets(self, operation: Operation, state: State) -> list[tuple[int | str, int]]:
        """The known targets of a call or jump: addresses or names of imports, with facts."""
        if operation.target:
            destination = self._program.destination(operation.target)
            return [] if destination is None else [(destination, 0)]
        if not operation.operands:  # to address 0, in broken code
            return []
        fixed = operation.memory.fixed
        if fixed is not None:
            behind = self._program.behind(self._machine.module, fixed - self._machine.module.base)
            if isinstance(behind, str):
                return [(behind, 0)]
        is_checked = fixed is not None and fixed - self._machine.module.base in self._machine.module.elf.dispatchers
        return self._targets_in(state.registers[RAX] if is_checked else self._machine.read(operation, 0, state))

    def _targets_in(self, value: Value) -> list[tuple[int | str, int]]:
        cases = values.cases_of(value) or {}
        addresses = [
            (number, facts) for number, facts in cases.items() if 0 < tag(number) <= len(self._program.modules)
        ]
        return [*addresses] if len(addresses) == len(cases) else []

    def _called(self, targets: Iterable[tuple[int | str, int]], state: State, stack: int = 0) -> list[State]:
        """The state after a call of one of *targets*, with arguments *stack* bytes up; none if it never returns."""
        known = list(targets)
        self._charge(_STEPS_A_CALL)
        if len(known) == 1:
            ((target, facts),) = known
            if isinstance(target, str):
                return self._imported(target, state)
            if self._is_followed(target, state):
                pointer = state.registers[self._pointer]
                self._world.followed(target, self._arguments(target, state, stack), state.facts | facts)
                before = state.copy(facts)
                before.registers[self._pointer] = values.total(pointer, -self._pushed & MASK_64)
                if (after := self._follow(target, before)) is None:
                    return []
                after.registers[self._pointer] = pointer
                if isinstance(pointer, int):
                    after.stack.cut(pointer)
                after.flags = None
                return [after]
        return self._not_followed(known, state, stack)

    def _arguments(self, target: int, state: State, stack: int) -> list[Value]:
        """What a call of *target* hands over in registers, then on the stack from *stack* bytes up."""
        read = self._references.registers(target).arguments
        arguments = [state.registers[number] if number in read else None for number in self._argument_registers]
        pointer = state.registers[self._pointer]
        words = self._references.registers(target).words
        addresses = range(pointer + stack, pointer + stack + 8 * words, 8) if isinstance(pointer, int) else ()
        arguments += [loaded(state.stack, address, 8, self._machine.uneven) for address in addresses]
        return [None if any(map(is_stack, values.cases_of(value) or ())) else value for value in arguments]

    def _not_followed(self, targets: Sequence[tuple[int | str, int]], state: State, stack: int) -> list[State]:
        """The state after a call of one of *targets*, known by a summary at most."""
        functions = [target for target, _ in targets if isinstance(target, int)]
        for target, facts in targets:
            if isinstance(target, int):
                self._machine.use(target, state.facts | facts)
                self._world.called(target, self._arguments(target, state, stack), state.facts | facts)
        read, words = self._argument_registers, MOST_WORDS
        if functions and len(functions) == len(targets):
            used = [self._references.registers(target) for target in functions]
            # what is left in the others from before goes nowhere
            read = tuple(number for number in read if any(number in registers.arguments for registers in used))
            words = max(registers.words for registers in used)
        self._machine.hand_over(state, read, words)
        if len(targets) != 1 or not functions:
            self._machine.forget(state, None)
            return [state]
        summary = self._world.summary(functions[0])
        self._machine.forget(
            state, summary.result if summary else None, self._references.registers(functions[0]).changed
        )
        if summary is None:
            return [state]
        state.registers[self._results[1]] = summary.second
        state.facts |= summary.facts
        return [state] if summary.returns else []

    def _take_apart(self, operation: Operation) -> None:
        take_apart(operation)

    def _imported(self, name: str, state: State) -> list[State]:
        return imported(self._machine, name, state)

    def _is_followed(self, target: int, state: State) -> bool:
        if target in self._followed or len(self._followed) > _DEPTH or not self._program.module(target).piece(target):
            return False
        arguments = [state.registers[number] for number in self._references.registers(target).arguments]
        follows = self._world.follows(target)
        # what is given a flag may test it
        flags = [
            value for value in arguments if values.tells(value) and not is_address(value) and value is not ENVIRONMENT
        ]
        if flags:
            return not self._world.is_closed(target) and (follows or len(self._followed) <= _FLAG_DEPTH)
        summary = self._world.summary(target) if follows else None
        # what it tells may depend on its arguments, or go where they point to
        return summary is not None and summary.tells and any(isinstance(value, int) for value in arguments)
