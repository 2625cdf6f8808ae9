"""Operands: what instructions read and write, and what becomes visible to code that is not followed."""

from collections.abc import Callable
from functools import cache

from msgspec.structs import replace

from vbuild.dispatch import values
from vbuild.dispatch.facts import ANY, ASKED, EVERY, FEATURES, as_kept
from vbuild.dispatch.fields import FIELDS, displacement_of
from vbuild.dispatch.machine_state import (
    CLEARS_THE_REST,
    GENERAL,
    HANDED_OVER,
    NO_LANES,
    Lanes,
    Memory,
    Operand,
    Operation,
    State,
    Uneven,
    is_uneven,
    loaded,
    overlapping,
    remainders,
    split_like,
)
from vbuild.dispatch.module import Module
from vbuild.dispatch.program import HEAP, LEAVES
from vbuild.dispatch.values import MASK_64, STACK, Value, is_stack, tag
from vbuild.dispatch.world import World, is_address
from vbuild.elf.iced import Instruction, MemorySizeExt, OpKind, Register, RegisterExt

_IMMEDIATES = {kind for name, kind in vars(OpKind).items() if isinstance(kind, int) and name.startswith("IMMEDIATE")}
# what addresses by these registers belongs to a thread
_THREADS: frozenset[int] = frozenset({Register.FS, Register.GS})
# how often a place is passed before what tells, or what does not, can be anything there
_VISITS, _FEW_VISITS = 12, 2
# less than this is no address of a program
_LOWEST_ADDRESS = 4096
# bytes that are copied one after the other
_MOST_COPIED = 4096
# bytes of a pointer
_WORD = 8


_OTHER = Operand(_WORD)


@cache
def _in_register(register: int) -> Operand:
    # the stubs say enum, the values are plain integers
    size, full = int(RegisterExt.size(register)), RegisterExt.full_register(register)  # type: ignore[arg-type]
    number, _, below = GENERAL.get(register, (None, 0, 0))
    return Operand(size, number, below, full if number is None else register)


@cache
def _in_memory(memory_size: int) -> Operand:
    return Operand(int(MemorySizeExt.size(memory_size)), is_memory=True)  # type: ignore[arg-type]


class Operands:
    """The part of the interpreter that reads and writes operands."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._references = world.references
        self._program = world.program
        # by instruction: the facts whenever it ran; by instruction and target: those of a use
        self.ran: dict[int, int] = {}
        self.uses: dict[tuple[int, int], int] = {}
        # tables that were read: their address in a register is no argument of the call of what was read
        self._bases: set[int] = set()
        self._hands_out = False
        # whether the processor is asked
        self._asks = False
        # the facts wherever the piece that is run is called
        self._known = 0
        # whether all its callers hand over an address that is known: then it may be where it writes to
        self._is_given_addresses = False
        # whether code is run that was not reached from the start
        self._is_handler = False
        self._module: Module = self._program.modules[0]
        self._here = 0
        # places that some stack has, with all that `is_uneven`
        self._uneven = Uneven()

    # what becomes visible to code that is not followed

    def _use(self, target: int, facts: int, address: int | None = None) -> None:
        key = (self._here if address is None else address, target)
        self.uses[key] = self.uses.get(key, EVERY) & facts

    def _lose(
        self,
        value: Value,
        facts: int,
        address: int | None = None,
        *,
        is_written: bool = True,
        is_followed: bool = False,
        is_near: bool = False,
    ) -> None:
        """Note the addresses that *value* may be: from here on they are used, and written to, out of sight.

        Objects on the heap are not, where it *is_followed* to a place that is known, and *is_near* is as in `escape`.
        """
        if value is None or isinstance(value, values.Word) or (isinstance(value, int) and not tag(value)):
            return
        for number, shown in (values.cases_of(values.known(value)) or {}).items():
            if 0 < tag(number) <= len(self._program.modules):
                self._use(number, facts | shown, address)
                module = self._program.module(number)
                if is_written and not module.is_constant(number - module.base):
                    self._world.escape(number, facts | shown, is_near=is_near)
        if not is_followed:
            self._world.share(value)

    def _variables_in(self, value: Value) -> list[int]:
        """The addresses of variables that *value* may be."""
        if value is None or isinstance(value, values.Word):
            return []
        files = range(1, len(self._program.modules) + 1)
        numbers = [number for number in values.cases_of(values.known(value)) or () if tag(number) in files]
        modules = [self._program.module(number) for number in numbers]
        return [
            number
            for number, module in zip(numbers, modules, strict=True)
            if not module.is_constant(number - module.base)
        ]

    # operands

    def _absolute(self, module: Module, number: int) -> int:
        """In a program at a fixed address a number may be an address."""
        if module.elf.is_fixed and number > _LOWEST_ADDRESS and module.bytes_at(number, 1):
            return module.base + number
        return number

    def _operands(self, module: Module, instruction: Instruction) -> tuple[Operand, ...]:
        found: list[Operand] = []
        for index in range(instruction.op_count):
            kind = instruction.op_kind(index)
            if kind == OpKind.REGISTER:
                found.append(_in_register(instruction.op_register(index)))
            elif kind == OpKind.MEMORY:
                found.append(_in_memory(instruction.memory_size))
            elif kind in _IMMEDIATES:
                number = instruction.immediate(index) & ((1 << 8 * (found[0].size if found else _WORD)) - 1)
                found.append(Operand(_WORD, immediate=self._absolute(module, number)))
            else:
                found.append(_OTHER)
        return tuple(found)

    def _memory_of(self, module: Module, instruction: Instruction) -> Memory:
        if instruction.is_ip_rel_memory_operand:
            return Memory(module.base + instruction.ip_rel_memory_address)
        if instruction.memory_segment in _THREADS:
            return Memory(is_of_thread=True)
        base, index = instruction.memory_base, instruction.memory_index
        is_field = base in GENERAL and index == Register.NONE and base != Register.RSP
        return Memory(
            base=GENERAL[base][0] if base in GENERAL else None,
            index=GENERAL[index][0] if index in GENERAL else None,
            shift=instruction.memory_index_scale.bit_length() - 1,
            displacement=self._absolute(module, instruction.memory_displacement & MASK_64),
            field=module.field(displacement_of(instruction)) if is_field else None,
        )

    def _address(self, memory: Memory, state: State, *, is_used: bool = True) -> Value:
        if memory.fixed is not None or memory.is_of_thread:
            return memory.fixed
        found: Value = memory.displacement
        if memory.base is not None:
            start = state.registers[memory.base]
            if isinstance(start, int) and is_used:
                self._bases.add(start)
            found = values.total(start, found)
        if memory.index is not None:
            scaled = values.shifted(state.registers[memory.index], memory.shift, "shl", 8)
            before, found = found, values.total(found, scaled)
            if isinstance(found, values.Kept):
                # if the field holds something else, elsewhere in the table
                self._lose(before, state.facts | as_kept(EVERY), is_written=False)
            elif values.cases_of(found) is None:
                # somewhere in a table; an argument may say where
                self._asks |= self._world.leads_to_answer(before)
                self._lose(before, state.facts, is_written=False)
                self._lose(scaled, state.facts, is_written=False)
        return found

    def _location(self, memory: Memory, state: State) -> Value:
        """The address of the operand in memory, or of the field that it is of a structure anywhere."""
        found = self._address(memory, state)
        used = self._used_address(found)
        if used is not found and memory.base is not None and memory.index is None:
            # after this the register points at memory
            state.registers[memory.base] = values.total(used, -memory.displacement & MASK_64)
        return memory.field if used is None else used

    @staticmethod
    def _used_address(address: Value) -> Value:
        """*address* where memory there is used: no program uses that at zero."""
        if not isinstance(address, values.Choice) or not is_address(address):
            return address
        return values.choice({place: facts for place, facts in address.cases if place >= _LOWEST_ADDRESS})

    def _read(self, operation: Operation, index: int, state: State, size: int = 0) -> Value:
        """What an operand holds; of a number only the low *size* bytes, if that is given."""
        operand = operation.operands[index]
        if operand.number is not None:
            value = state.registers[operand.number]
            if operand.below:
                value = values.shifted(value, operand.below, "shr", 8)
            return values.truncated(value, operand.size)
        if operand.is_memory:
            return self._load(self._location(operation.memory, state), operand.size, state)
        if operand.immediate is not None:
            return operand.immediate & ((1 << 8 * size) - 1) if size else operand.immediate
        return values.lossy(*state.vectors.get(operand.register, ()))

    def _write(self, operation: Operation, index: int, value: Value, state: State) -> None:
        operand = operation.operands[index]
        if operand.register:
            self._set(operand.register, value, state)
        elif operand.is_memory:
            address = self._location(operation.memory, state)
            if operation.memory.index is not None and values.cases_of(address) is None:
                self._store_somewhere(operation.memory, operand.size, value, state)
            self._store(address, operand.size, value, state)
            if operation.memory.field is not None and self._world.has_object(address):
                # what may get to the same object by another way finds it there
                self._world.store(operation.memory.field, operand.size, value, state.facts)

    def _set(self, register: int, value: Value, state: State) -> None:
        if register not in GENERAL:
            state.vectors[RegisterExt.full_register(register)] = (value,) * len(NO_LANES)  # type: ignore[arg-type]
            return
        number, size, below = GENERAL[register]
        if state.flags and state.flags.place == number:
            state.flags = replace(state.flags, place=None)
        if state.source and state.source[0] == number:
            state.source = None
        if size >= CLEARS_THE_REST:
            state.registers[number] = values.truncated(value, size)
            return
        following = self._program.operations[self._here].following
        if values.tells(value) and not below and self._references.is_unread(following, number, size):
            state.registers[number] = values.truncated(value, size)
            return
        if state.registers[number] == 0:
            state.registers[number] = values.shifted(values.truncated(value, size), below, "shl", 8)
            return
        old, new = values.bits_of(state.registers[number]), values.bits_of(value)
        state.registers[number] = values.as_word((*old[:below], *new[: 8 * size], *old[below + 8 * size :]))

    def _load(self, address: Value, size: int, state: State) -> Value:
        if isinstance(address, values.Kept):
            return values.weakened(self._load(address.value, size, state))
        cases = values.cases_of(address)
        if cases is None:
            return None
        if len(cases) == 1:
            return self._load_from(next(iter(cases)), size, state)
        found: dict[int, int] = {}
        for place, facts in cases.items():
            value = self._load_from(place, size, state)
            if not isinstance(value, int):
                self._lose(address, state.facts, is_written=False)
                return values.lossy(address, value)
            found[value] = found.get(value, EVERY) & facts
        return values.choice(found)

    def _load_from(self, address: int, size: int, state: State) -> Value:  # noqa: PLR0911  # one for each kind of place
        if is_stack(address):
            return loaded(state.stack, address, size, self._uneven)
        if tag(address) >= tag(LEAVES):
            return self._world.load(address, size) if size <= _WORD else None
        if not 0 < tag(address) <= len(self._program.modules):
            return None
        module = self._program.module(address)
        place = address - module.base
        behind = self._program.behind(module, place)
        if isinstance(behind, int):
            if module.is_constant(place) or tag(behind) >= tag(LEAVES) or self._world.keeps_pointer(address):
                return behind
            # it is written to as far as the code that has it goes
            self._lose(behind, state.facts)
            return None
        if size > _WORD:
            for _, pointer in module.pointers_in(range(place, place + size)):
                self._use(module.base + pointer, state.facts)
            return None
        value = self._world.load(address, size)
        if (address, size) in state.changed and (first := self._world.first_value(address, size)) is not None:
            return values.without(value, first)
        return value

    def _store(self, address: Value, size: int, value: Value, state: State) -> None:  # noqa: C901  # each kind of place
        cases = values.cases_of(address)
        if cases is not None and len(cases) == 1 and is_stack(next(iter(cases))):
            self._store_on_stack(next(iter(cases)), size, value, state)
            return
        is_followed = cases is not None and not any(is_stack(place) or tag(place) == tag(FIELDS) for place in cases)
        is_held = is_followed and all(0 < tag(place) <= len(self._program.modules) for place in cases or ())
        self._lose(value, state.facts, is_followed=is_followed, is_near=is_held)
        for place in (cases or ()) if is_held else ():
            for target in self._variables_in(value):
                self._world.hold_pointer(place, target)
        if cases is None:
            self._hand_out(value, state)
        if self._is_handler and not is_followed:
            # code that handles errors may have any address that the rest has
            self._world.share_seen()
        for place, shown in (cases or {}).items():
            if is_stack(place):
                self._store_on_stack(place, size, None, state)
            elif tag(place) == tag(FIELDS):
                self._hand_out(value, state)
                self._world.store(place, size, value, state.facts)
            elif tag(place) == tag(HEAP):
                self._hand_out(value, state)
                self._world.store(place, size, value, state.facts | shown)
            elif 0 < tag(place) <= len(self._program.modules):
                if self._is_given_addresses:
                    self._hand_out(value, state)
                self._world.store(place, size, value, state.facts | shown)
                if len(cases or ()) == 1:
                    state.changed |= {(place, size)}

    def _copy(self, to: Value, source: Value, size: Value, state: State) -> bool:
        """Copy *size* bytes, if it is known where to and how many; False if not."""
        if not isinstance(size, int) or not 0 <= size <= _MOST_COPIED or values.cases_of(to) is None:
            return False
        at = 0
        while at < size:
            length = next(one for one in (8, 4, 2, 1) if at + one <= size)
            value = self._load(self._used_address(values.total(source, at)), length, state)
            self._store(self._used_address(values.total(to, at)), length, value, state)
            at += length
        return True

    def _hand_out(self, value: Value, state: State) -> None:
        """Note that *value* is written somewhere."""
        if state.facts > ANY | ASKED:
            # nothing gets there
            return
        is_number = isinstance(value, int) and not tag(value)
        self._hands_out |= bool(state.facts & ~self._known if is_number else values.tells(value))

    def _store_somewhere(self, memory: Memory, size: int, value: Value, state: State) -> None:
        """Write *value* to a place that is not known of the table at the base of the operand in memory."""
        table = state.registers[memory.base] if memory.base is not None else None
        for start in values.cases_of(values.total(table, memory.displacement)) or ():
            if 0 < tag(start) <= len(self._program.modules):
                self._world.store_in_table(start, size, value, state.facts)

    def _store_on_stack(self, place: int, size: int, value: Value, state: State) -> None:
        if state.flags and state.flags.place is not None and place - 8 < state.flags.place < place + size:
            state.flags = replace(state.flags, place=None)
        if is_uneven(place, size):
            self._uneven.add(place, size)
        for other in overlapping(state.stack, place, size, self._uneven):
            if other <= place - HANDED_OVER:
                continue
            kept, old = state.stack[other]
            del state.stack[other]
            if (other, kept) == (place, size):
                continue
            rest = remainders(other, kept, old, range(place, place + size))
            if rest is None:
                self._lose(old, state.facts)
            else:
                state.stack.update(rest)
                self._uneven.update(rest)
        state.stack[place] = (size, value)

    def _spoil(self, start: int, state: State) -> None:
        """Forget what is on the stack from *start*, to which code that is not followed has a pointer."""
        # what the caller handed over on the stack is not part of what a function keeps there
        length = min(HANDED_OVER, STACK - start) if start < STACK else HANDED_OVER
        for place, (size, value) in list(state.stack.items()):
            if place >= start and values.tells(value) & FEATURES and values.cases_of(value) is not None:
                # a structure on the stack: what gets its address finds the answer in a field
                self._world.store(self._module.field(place - start), size, value, state.facts)
            if start <= place < start + length:
                self._lose(value, state.facts)
                state.stack[place] = (size, None)
            elif place >= start:
                # in a long structure
                self._world.share(value)
        state.stack.setdefault(start, (length, None))
        self._uneven.add(start, length)

    # where paths meet

    def _joined(self, one: State, other: State, address: int, *, visits: int) -> State:
        one_facts, other_facts = one.facts, other.facts

        def joined(first: Value, second: Value) -> Value:
            if first is second or first == second:
                return first
            return self._met((first, one_facts), (second, other_facts), address, visits)

        vectors: dict[int, Lanes] = {}
        registers = one.registers.copy()
        for number, (first, second) in enumerate(zip(one.registers, other.registers, strict=True)):
            if first is not second and first != second:
                is_pointer = is_address(first) or is_address(second)
                registers[number] = None if is_pointer and self._is_dead(address, number) else joined(first, second)
        for number in one.vectors.keys() ^ other.vectors.keys():
            for state in (one, other):
                for lane in state.vectors.get(number, ()):
                    self._lose(lane, state.facts, address)
        for number in one.vectors.keys() & other.vectors.keys():
            here, there = one.vectors[number], other.vectors[number]
            vectors[number] = here if here == there else tuple(map(joined, here, there))
        return State(
            registers,
            vectors,
            one.stack if one.stack == other.stack else self._joined_stacks(one, other, joined, address),
            one.flags if one.flags == other.flags else None,
            one_facts & other_facts,
            one.source if one.source == other.source else None,
            one.changed & other.changed,
        )

    def _is_dead(self, address: int, register: int) -> bool:
        """Whether the code at *address* never reads an address in *register* before it writes there."""
        # one byte of it is none: the low one may be read by a call, as the number of vectors
        return self._references.is_unread(address, register, 1)

    def _joined_stacks(
        self, one: State, other: State, joined: Callable[[Value, Value], Value], address: int
    ) -> dict[int, tuple[int, Value]]:
        first, second = one.stack, other.stack
        differing = [place for place, here in first.items() if second.get(place) is not here]
        if any(place in second and first[place][0] != second[place][0] for place in differing):
            self._uneven.update(split_like(first, second))
            self._uneven.update(split_like(second, first))
            differing = [place for place, here in first.items() if second.get(place) is not here]
        found = first.copy()
        for place in differing:
            here, there = first[place], second.get(place)
            if there is None:
                found[place] = self._joined_place(place, one, other, address)
            elif here[0] == there[0]:
                found[place] = here[0], joined(here[1], there[1])
            else:
                self._lose(here[1], one.facts, address)
                self._lose(there[1], other.facts, address)
                found[place] = max(here[0], there[0]), None
        for place in second.keys() - first.keys():
            found[place] = self._joined_place(place, other, one, address)
        return found

    def _met(self, one: tuple[Value, int], other: tuple[Value, int], address: int, visits: int) -> Value:
        """What two values, with the facts on the way to each, are where they meet at *address*."""
        found = values.join(*one, *other)
        # what only counts is not followed round and round; bits only come to tell less
        is_growing = found != one[0] and not (isinstance(found, values.Word) and values.tells(found))
        if is_growing and visits > (_VISITS if values.tells(found) or is_address(one[0]) else _FEW_VISITS):
            found = None
        if found is None or isinstance(found, values.Word):
            for value, known in (one, other):
                self._lose(value, known, address)
        return found

    def _joined_place(self, place: int, one: State, other: State, address: int) -> tuple[int, Value]:
        """What is at a *place* on the stack where two paths meet, *one* that has written there and another."""
        known = one.stack[place]
        # nothing has written there on the other path, so nothing may read it afterwards
        if known[1] is None or not any(
            at >= place - HANDED_OVER for at in overlapping(other.stack, place, known[0], self._uneven)
        ):
            return known
        self._lose(known[1], one.facts, address)
        return known[0], None
