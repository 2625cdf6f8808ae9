"""What instructions read and write, where paths meet, and what becomes visible to code that is not followed."""

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from vbuild.dispatch import values
from vbuild.dispatch.facts import ANY, ASKED, EVERY
from vbuild.dispatch.machine_state import (
    CLEARS_THE_REST,
    GENERAL,
    HANDED_OVER,
    NO_LANES,
    RAX,
    Lanes,
    Memory,
    Operation,
    Stack,
    State,
    Uneven,
    is_uneven,
    loaded,
    overlapping,
    remainders,
    split_like,
)
from vbuild.dispatch.module import Module
from vbuild.dispatch.program import LEAVES
from vbuild.dispatch.values import MASK_64, STACK, Value, is_stack, tag
from vbuild.dispatch.variables import World, is_address
from vbuild.elf.iced import RegisterExt

# how often a place is passed before what tells, or what does not, can be anything there
_VISITS, _FEW_VISITS = 12, 2
# less than this is not an address of a program
LOWEST_ADDRESS = 4096
# words on the stack that may be arguments of a function that is not known
MOST_WORDS = 8
# bytes that are copied one after the other, and that are filled
_MOST_COPIED, _MOST_FILLED = 4096, 1 << 16
# bytes of a pointer
_WORD = 8


class Machine:
    """What a run of code reads and writes, and what of that becomes visible to code that is not followed."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.references, self.variables = world.references, world.variables
        self.program = world.program
        # by instruction and target: the facts at a use
        self.uses: dict[tuple[int, int], int] = {}
        self.hands_out = False
        # whether the processor is asked
        self.asks = False
        # whether all its callers hand over an address that is known: then it may be where it writes to
        self.is_given_addresses = False
        self.module: Module = self.program.modules[0]
        self.here = 0
        # places that some stack has, with all that `is_uneven`
        self.uneven = Uneven()
        # the functions that are run inside each other
        self.followed: list[int] = []

    # what becomes visible to code that is not followed

    def use(self, target: int, facts: int, address: int | None = None) -> None:
        key = (self.here if address is None else address, target)
        self.uses[key] = self.uses.get(key, EVERY) & facts

    def lose(self, value: Value, facts: int, address: int | None = None, *, is_written: bool = True) -> None:
        """Note the addresses that *value* may be: from here on they are used, and written to, out of sight."""
        if value is None or isinstance(value, values.Word) or (isinstance(value, int) and not tag(value)):
            return
        for number, shown in (values.cases_of(value) or {}).items():
            if 0 < tag(number) <= len(self.program.modules):
                self.use(number, facts | shown, address)
                module = self.program.module(number)
                if is_written and not module.is_constant(number - module.base):
                    self.variables.escape(number, facts | shown)

    def variables_in(self, value: Value) -> list[int]:
        if value is None or isinstance(value, values.Word):
            return []
        files = range(1, len(self.program.modules) + 1)
        numbers = [number for number in values.cases_of(value) or () if tag(number) in files]
        modules = [self.program.module(number) for number in numbers]
        return [
            number
            for number, module in zip(numbers, modules, strict=True)
            if not module.is_constant(number - module.base)
        ]

    def hand_over(
        self,
        state: State,
        registers: Iterable[int],
        words: int = MOST_WORDS,
        *,
        is_written: bool = True,
    ) -> None:
        """Note what the arguments in *registers*, and *words* on the stack, give to code that is not followed."""
        for number in registers:
            value = state.registers[number]
            if isinstance(value, int) and is_stack(value):
                self.spoil(value, state)
            else:
                self.lose(value, state.facts, is_written=is_written)
        # arguments on the stack
        pointer = state.registers[self.program.convention.pointer]
        if isinstance(pointer, int):
            for address in range(pointer, pointer + 8 * words, 8):
                if address in state.stack and isinstance(state.stack[address][1], values.Choice | int):
                    self.lose(state.stack[address][1], state.facts, is_written=is_written)

    def forget(self, state: State, result: Value, lost: Iterable[int] | None = None) -> None:
        for number in self.program.convention.lost if lost is None else lost:
            state.registers[number] = None
        state.registers[RAX] = result
        state.vectors.clear()
        state.flags = None

    def address(self, memory: Memory, state: State) -> Value:
        if memory.fixed is not None or memory.is_of_thread:
            return memory.fixed
        address: Value = memory.displacement
        if memory.base is not None:
            address = values.total(state.registers[memory.base], address)
        if memory.index is not None:
            scaled = values.shifted(state.registers[memory.index], memory.shift, "shl", 8)
            before, address = address, values.total(address, scaled)
            if values.cases_of(address) is None:
                # somewhere in a table; an argument may say where
                self.asks |= self.world.leads_to_answer(before)
                self.lose(before, state.facts, is_written=False)
                self.lose(scaled, state.facts, is_written=False)
        return address

    def location(self, memory: Memory, state: State) -> Value:
        address = self.address(memory, state)
        used = self.used_address(address)
        if used is not address and memory.base is not None and memory.index is None:
            # after this the register points at memory
            state.registers[memory.base] = values.total(used, -memory.displacement & MASK_64)
        return used

    @staticmethod
    def used_address(address: Value) -> Value:
        """*address* where memory there is used: no program uses that at zero."""
        if not isinstance(address, values.Choice) or not is_address(address):
            return address
        return values.choice({case: facts for case, facts in address.cases if case >= LOWEST_ADDRESS})

    def read(self, operation: Operation, index: int, state: State, size: int = 0) -> Value:
        """What an operand holds; of a number only the low *size* bytes, if that is given."""
        operand = operation.operands[index]
        if operand.number is not None:
            value = state.registers[operand.number]
            if operand.below:
                value = values.shifted(value, operand.below, "shr", 8)
            return values.truncated(value, operand.size)
        if operand.is_memory:
            return self.load(self.location(operation.memory, state), operand.size, state)
        if operand.immediate is not None:
            return operand.immediate & ((1 << 8 * size) - 1) if size else operand.immediate
        return values.lossy(*state.vectors.get(operand.register, ()))

    def write(self, operation: Operation, index: int, value: Value, state: State) -> None:
        operand = operation.operands[index]
        if operand.register:
            self.set_register(operand.register, value, state)
        elif operand.is_memory:
            address = self.location(operation.memory, state)
            if operation.memory.index is not None and values.cases_of(address) is None:
                self._store_somewhere(operation.memory, operand.size, value, state)
            self.store(address, operand.size, value, state)

    def set_register(self, register: int, value: Value, state: State) -> None:
        if register not in GENERAL:
            state.vectors[RegisterExt.full_register(register)] = (value,) * len(NO_LANES)  # type: ignore[arg-type]
            return
        number, size, below = GENERAL[register]
        if state.flags and state.flags.location == number:
            state.flags = replace(state.flags, location=None)
        if state.source and state.source[0] == number:
            state.source = None
        if size >= CLEARS_THE_REST:
            state.registers[number] = values.truncated(value, size)
            return
        following = self.program.operations[self.here].following
        if values.tells(value) and not below and self.references.is_unread(following, number, size):
            state.registers[number] = values.truncated(value, size)
            return
        if state.registers[number] == 0:
            state.registers[number] = values.shifted(values.truncated(value, size), below, "shl", 8)
            return
        old, new = values.bits_of(state.registers[number]), values.bits_of(value)
        state.registers[number] = values.as_word((*old[:below], *new[: 8 * size], *old[below + 8 * size :]))

    def load(self, address: Value, size: int, state: State) -> Value:
        cases = values.cases_of(address)
        if cases is None:
            return None
        if len(cases) == 1:
            return self.load_from(next(iter(cases)), size, state)
        facts_by_value: dict[int, int] = {}
        for case, facts in cases.items():
            value = self.load_from(case, size, state)
            if not isinstance(value, int):
                self.lose(address, state.facts, is_written=False)
                return values.lossy(address, value)
            facts_by_value[value] = facts_by_value.get(value, EVERY) & facts
        return values.choice(facts_by_value)

    def load_from(self, address: int, size: int, state: State) -> Value:  # noqa: PLR0911  # one for each kind of place
        if is_stack(address):
            return loaded(state.stack, address, size, self.uneven)
        if tag(address) >= tag(LEAVES):
            return self.variables.load(address, size) if size <= _WORD else None
        if not 0 < tag(address) <= len(self.program.modules):
            return None
        module = self.program.module(address)
        slot = address - module.base
        behind = self.program.behind(module, slot)
        if isinstance(behind, int):
            if module.is_constant(slot) or tag(behind) >= tag(LEAVES) or self.variables.keeps_pointer(address):
                return behind
            # it is written to as far as the code that has it goes
            self.lose(behind, state.facts)
            return None
        if size > _WORD:
            for _, pointer in module.pointers_in(range(slot, slot + size)):
                self.use(module.base + pointer, state.facts)
            return None
        value = self.variables.load(address, size)
        if (address, size) in state.changed and (first := self.variables.first_value(address, size)) is not None:
            return values.without(value, first)
        return value

    def store(self, address: Value, size: int, value: Value, state: State) -> None:  # each kind of place
        cases = values.cases_of(address)
        if cases is not None and len(cases) == 1 and is_stack(next(iter(cases))):
            self._store_on_stack(next(iter(cases)), size, value, state)
            return
        self.lose(value, state.facts)
        if cases is None:
            self.hand_out(value, state)
            self.variables.unfollowed |= values.tells(value)
        for case, shown in (cases or {}).items():
            if is_stack(case):
                self._store_on_stack(case, size, None, state)
            elif 0 < tag(case) <= len(self.program.modules):
                if self.is_given_addresses:
                    self.hand_out(value, state)
                self.variables.store(case, size, value, state.facts | shown)
                if len(cases or ()) == 1:
                    state.changed |= {(case, size)}

    def copy(self, to: Value, source: Value, size: Value, state: State) -> bool:
        """Copy *size* bytes; False if it is not known where to, or how many."""
        if not isinstance(size, int) or not 0 <= size <= _MOST_COPIED or values.cases_of(to) is None:
            return False
        at = 0
        while at < size:
            length = next(length for length in (8, 4, 2, 1) if at + length <= size)
            value = self.load(self.used_address(values.total(source, at)), length, state)
            self.store(self.used_address(values.total(to, at)), length, value, state)
            at += length
        return True

    def fill(self, address: Value, value: Value, size: Value, state: State) -> bool:
        if not isinstance(size, int) or not 0 < size < _MOST_FILLED or values.cases_of(address) is None:
            return False
        self.store(self.used_address(address), size, 0 if value == 0 else None, state)
        return True

    def hand_out(self, value: Value, state: State) -> None:
        """Note that *value* is written somewhere."""
        if state.facts > ANY | ASKED:
            # nothing gets there
            return
        is_number = isinstance(value, int) and not tag(value)
        self.hands_out |= bool(state.facts if is_number else values.tells(value))

    def _store_somewhere(self, memory: Memory, size: int, value: Value, state: State) -> None:
        """Write *value* to an unknown place of the table at the base of the operand in memory."""
        table = state.registers[memory.base] if memory.base is not None else None
        for start in values.cases_of(values.total(table, memory.displacement)) or ():
            if 0 < tag(start) <= len(self.program.modules):
                self.variables.store_in_table(start, size, value, state.facts)

    def _store_on_stack(self, address: int, size: int, value: Value, state: State) -> None:
        if state.flags and state.flags.location is not None and address - 8 < state.flags.location < address + size:
            state.flags = replace(state.flags, location=None)
        if is_uneven(address, size):
            self.uneven.add(address, size)
        for other in overlapping(state.stack, address, size, self.uneven):
            if other <= address - HANDED_OVER:
                continue
            old_size, old = state.stack[other]
            del state.stack[other]
            if (other, old_size) == (address, size):
                continue
            rest = remainders(other, old_size, old, range(address, address + size))
            if rest is None:
                self.lose(old, state.facts)
            else:
                state.stack.update(rest)
                self.uneven.update(rest)
        state.stack[address] = (size, value)

    def spoil(self, start: int, state: State) -> None:
        """Forget the stack from *start* on: code that is not followed has a pointer there."""
        # what the caller handed over on the stack is not part of what a function keeps there
        length = min(HANDED_OVER, STACK - start) if start < STACK else HANDED_OVER
        for address, (size, value) in state.stack.cells_from(start).items():
            self.variables.unfollowed |= values.tells(value)
            if address < start + length and value is not None:
                self.lose(value, state.facts)
                state.stack[address] = (size, None)
        if start not in state.stack:
            state.stack[start] = (length, None)
        self.uneven.add(start, length)

    def joined(self, left: State, right: State, address: int, *, visits: int) -> State:
        left_facts, right_facts = left.facts, right.facts

        def joined(first: Value, second: Value) -> Value:
            if first is second or first == second:
                return first
            return self._met((first, left_facts), (second, right_facts), address, visits)

        vectors: dict[int, Lanes] = {}
        registers = left.registers.copy()
        for number, (first, second) in enumerate(zip(left.registers, right.registers, strict=True)):
            if first is not second and first != second:
                # a call may read the lowest byte, as the number of vectors; that is no use of an address
                is_unread = (is_address(first) or is_address(second)) and self.references.is_unread(address, number, 1)
                registers[number] = None if is_unread else joined(first, second)
        for number in left.vectors.keys() ^ right.vectors.keys():
            for state in (left, right):
                for lane in state.vectors.get(number, ()):
                    self.lose(lane, state.facts, address)
        for number in left.vectors.keys() & right.vectors.keys():
            here, there = left.vectors[number], right.vectors[number]
            vectors[number] = here if here == there else tuple(map(joined, here, there))
        return State(
            registers,
            vectors,
            left.stack if left.stack.parts == right.stack.parts else self._joined_stacks(left, right, joined, address),
            left.flags if left.flags == right.flags else None,
            left_facts & right_facts,
            left.source if left.source == right.source else None,
            left.changed & right.changed,
        )

    def _joined_stacks(self, left: State, right: State, joined: Callable[[Value, Value], Value], address: int) -> Stack:
        first, second = left.stack, right.stack
        differing = first.differing(second)
        if any(at in second and first[at][0] != second[at][0] for at in differing):
            self.uneven.update(split_like(first, second))
            self.uneven.update(split_like(second, first))
            differing = first.differing(second)
        changed: dict[int, tuple[int, Value]] = {}
        for at in differing:
            here, there = first[at], second.get(at)
            if there is None:
                new = self._joined_cell(at, left, right, address)
            elif here[0] == there[0]:
                new = here[0], joined(here[1], there[1])
            else:
                self.lose(here[1], left.facts, address)
                self.lose(there[1], right.facts, address)
                new = max(here[0], there[0]), None
            if new != here:
                changed[at] = new
        for at in second.differing(first):
            if at not in first:
                changed[at] = self._joined_cell(at, right, left, address)
        if not changed:
            return first
        joined_stack = first.copy()
        joined_stack.update(changed)
        return joined_stack

    def _met(self, left: tuple[Value, int], right: tuple[Value, int], address: int, visits: int) -> Value:
        met = values.join(*left, *right)
        # what only counts is not followed round and round; bits only come to tell less
        is_growing = met != left[0] and not (isinstance(met, values.Word) and values.tells(met))
        if is_growing and visits > (_VISITS if values.tells(met) or is_address(left[0]) else _FEW_VISITS):
            met = None
        if met is None or isinstance(met, values.Word):
            for value, known in (left, right):
                self.lose(value, known, address)
        return met

    def _joined_cell(self, stack_address: int, writer: State, other: State, address: int) -> tuple[int, Value]:
        """What is at *stack_address* where two paths meet, *writer* that has written there and another."""
        known = writer.stack[stack_address]
        # nothing has written there on the other path, so nothing may read it afterwards
        if known[1] is None or not any(
            at >= stack_address - HANDED_OVER for at in overlapping(other.stack, stack_address, known[0], self.uneven)
        ):
            return known
        self.lose(known[1], writer.facts, address)
        return known[0], None
