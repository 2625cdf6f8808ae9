"""Runs aarch64 code, as `vbuild.dispatch.interpreter` runs that of x86-64.

The procedure call standard (AAPCS64) says which registers calls keep.
"""

from vbuild.dispatch import values
from vbuild.dispatch.arm_code import offset_in, page_of, signed
from vbuild.dispatch.arm_questions import ARGUMENT, AUXILIARY, GETAUXVAL, HWCAP, IDENTITY
from vbuild.dispatch.interpreter import Interpreter
from vbuild.dispatch.machine import Machine
from vbuild.dispatch.machine_state import (
    CC,
    ZERO_SIGN,
    Chained,
    Compared,
    Operation,
    State,
    negated,
    shown_by,
)
from vbuild.dispatch.values import MASK_64, STACK, Value, tag

ZERO, FULL, HALF = 31, 8, 4
_SIZES = {8: 1, 16: 2, 32: 4}
CONDITIONS = (CC.E, CC.NE, CC.AE, CC.B, CC.S, CC.NS, CC.O, CC.NO, CC.A, CC.BE, CC.GE, CC.L, CC.G, CC.LE)
_NO_CARRY = ZERO_SIGN | {CC.G, CC.GE, CC.L, CC.LE}
_SHIFTS = ("shl", "shr", "sar", "ror")
_BITWISE = ("and", "or", "xor", "and")
_SP = ZERO


def _holding(nzcv: int) -> frozenset[int]:
    n, z, c, v = (bool(nzcv & bit) for bit in (8, 4, 2, 1))
    tests = (z, c, n, v, c and not z, n == v, n == v and not z)
    pairs = ((CC.E, CC.NE), (CC.AE, CC.B), (CC.S, CC.NS), (CC.O, CC.NO), (CC.A, CC.BE), (CC.GE, CC.L), (CC.G, CC.LE))
    return frozenset(pair[0] if holds else pair[1] for pair, holds in zip(pairs, tests, strict=True))


def _bit_mask(word: int) -> int | None:
    """The number in a logical instruction, of 64 bits; None if it is none (DecodeBitMasks in the manual)."""
    n, turn, ones = word >> 22 & 1, word >> 16 & 0x3F, word >> 10 & 0x3F
    length = (n << 6 | ~ones & 0x3F).bit_length() - 1
    if length < 1:
        return None
    size = 1 << length
    count, turn = (ones & (size - 1)) + 1, turn & (size - 1)
    pattern = (1 << count) - 1
    pattern = (pattern >> turn | pattern << (size - turn)) & ((1 << size) - 1)
    return sum(pattern << at for at in range(0, 64, size))


"""The part of the interpreter that runs aarch64 instructions which go on to the next one."""


def register_of(number: int, state: State, size: int = FULL) -> Value:
    return 0 if number == ZERO else values.truncated(state.registers[number], size)


def _put(number: int, value: Value, state: State, size: int = FULL) -> None:
    """Write a register, the stack pointer for 31."""
    if isinstance(state.flags, Compared) and state.flags.location == number:
        flags = state.flags
        state.flags = Compared(flags.left, flags.right, flags.size, only=flags.only)
    state.registers[number] = values.truncated(value, size)


def _put_or_drop(number: int, value: Value, state: State, size: int = FULL) -> None:
    if number != ZERO:
        _put(number, value, state, size)


def _with_number(machine: Machine, word: int, ip: int, state: State) -> None:
    size = FULL if word >> 31 else HALF
    target, source = word & 0x1F, word >> 5 & 0x1F
    kind = word >> 23 & 7
    if kind < 2:
        _put_or_drop(target, machine.module.base + page_of(word, ip), state)
    elif kind == 2:
        number = (word >> 10 & 0xFFF) << (12 if word & 1 << 22 else 0)
        augend = values.truncated(state.registers[source], size)
        _sum(machine, word, augend, number, state)
    elif kind == 4:
        number_or_none = _bit_mask(word)
        mask = None if number_or_none is None else number_or_none & ((1 << 8 * size) - 1)
        _combine(word, register_of(source, state, size), mask, state)
    elif kind == 5:
        shift, number = (word >> 21 & 3) * 16, word >> 5 & 0xFFFF
        how = word >> 29 & 3
        if how == 3:
            old = register_of(target, state)
            rest = values.bitwise(old, ~(0xFFFF << shift) & MASK_64, "and")
            _put_or_drop(target, values.bitwise(rest, number << shift, "or"), state, size)
        else:
            value = number << shift if how else ~(number << shift) & MASK_64
            _put_or_drop(target, value, state, size)
    elif kind == 6:
        _bit_field(word, size, state)
    elif kind == 7 and source == word >> 16 & 0x1F:
        turned = values.shifted(register_of(source, state, size), word >> 10 & 0x3F, "ror", size)
        _put_or_drop(target, turned, state, size)
    else:
        _put_or_drop(target, values.lossy(register_of(source, state)), state)


def _bit_field(word: int, size: int, state: State) -> None:
    low, high, target = word >> 16 & 0x3F, word >> 10 & 0x3F, word & 0x1F
    value, width = register_of(word >> 5 & 0x1F, state, size), 8 * size
    is_up = high < low
    count = high + 1 if is_up else high - low + 1
    field = value if is_up else values.shifted(value, low, "shr", FULL)
    field = field if count == width else values.bitwise(field, (1 << count) - 1, "and")
    shift = width - low if is_up else 0
    how = word >> 29 & 3
    if how == 1:
        bits = list(values.bits_of(register_of(target, state, size)))
        bits[shift : shift + count] = values.bits_of(field)[:count]
        result = values.as_word(bits)
    elif how == 0 and count in _SIZES:
        result = values.shifted(values.extended(field, _SIZES[count], size), shift, "shl", size)
    elif how == 0 and count != width:
        result = values.shifted(value, low, "sar", size) if high == width - 1 else values.lossy(value)
    else:
        result = values.shifted(field, shift, "shl", size)
    _put_or_drop(target, result, state, size)


def _sum(machine: Machine, word: int, left: Value, right: Value, state: State) -> None:
    """Add or subtract, and compare if it sets flags; only with a number is 31 the stack pointer."""
    size = FULL if word >> 31 else HALF
    is_difference, sets_flags, target = bool(word & 1 << 30), bool(word & 1 << 29), word & 0x1F
    result = values.total(left, right, is_difference=is_difference)
    if result is None and not (sets_flags and target == ZERO):
        machine.lose(left, state.facts)
        machine.lose(right, state.facts)
    result = values.truncated(result, size)
    if not sets_flags:
        is_wide = word & 0x1F000000 == 0x11000000 or word & 0x1F200000 == 0x0B200000
        (_put if is_wide else _put_or_drop)(target, result, state, size)
        return
    _put_or_drop(target, result, state, size)
    if is_difference:
        source = word >> 5 & 0x1F
        register = None if source in {target, ZERO} else source
        state.flags = Compared(left, right, size, register)
    else:
        state.flags = Compared(result, 0, size, only=ZERO_SIGN)


def _combine(word: int, left: Value, right: Value, state: State) -> None:
    size = FULL if word >> 31 else HALF
    how, target = word >> 29 & 3, word & 0x1F
    result = values.truncated(values.bitwise(left, right, _BITWISE[how]), size)
    if how == 3:
        _put_or_drop(target, result, state, size)
        state.flags = Compared(result, 0, size, only=_NO_CARRY)
    elif word & 0x1F000000 == 0x12000000:
        _put(target, result, state, size)
    else:
        _put_or_drop(target, result, state, size)


def _with_registers(machine: Machine, word: int, state: State) -> None:  # noqa: C901, PLR0912  # one for each kind
    size = FULL if word >> 31 else HALF
    left, right = (register_of(word >> at & 0x1F, state, size) for at in (5, 16))
    kind, target = word >> 24 & 0x1F, word & 0x1F
    if kind in {0x0A, 0x0B} and not (kind == 0x0B and word & 1 << 21):
        right = values.shifted(right, word >> 10 & 0x3F, _SHIFTS[word >> 22 & 3], size)
        if kind == 0x0B:
            _sum(machine, word, left, right, state)
            return
        if word & 1 << 21:
            right = values.bitwise(right, (1 << 8 * size) - 1, "xor")
        # orr with the register of zeros moves
        if word >> 29 & 3 == 1 and word >> 5 & 0x1F == ZERO:
            _put_or_drop(target, right, state, size)
        elif word >> 29 & 3 == 1 and right == 0:
            _put_or_drop(target, left, state, size)
        else:
            _combine(word, left, right, state)
    elif kind == 0x0B:
        source = word >> 5 & 0x1F
        first = values.truncated(state.registers[source], size)
        second = values.shifted(_extended(word, state), word >> 10 & 7, "shl", FULL)
        _sum(machine, word, first, values.truncated(second, size), state)
    elif word & 0x1FE00000 == 0x1A400000:
        _compare_if(word, left, right, state, size)
    elif word & 0x1FE00000 == 0x1A800000:
        _choose(machine, word, left, right, state)
    elif word & 0x7FE0F000 == 0x1AC02000:
        _put_or_drop(target, values.shifted(left, right, _SHIFTS[word >> 10 & 3], size), state, size)
    elif word & 0x1F000000 == 0x1B000000 and word & 0x7FE08000 == 0x1B000000:
        product = values.combined(lambda a, b: None if tag(a) or tag(b) else a * b & MASK_64, left, right)
        sum_ = values.total(register_of(word >> 10 & 0x1F, state, size), product)
        _put_or_drop(target, sum_, state, size)
    else:
        for value in (left, right):
            machine.lose(value, state.facts)
        _put_or_drop(target, values.lossy(left, right), state)
        if word & 0x20000000 and kind == 0x1A:
            state.flags = None


def _extended(word: int, state: State) -> Value:
    """The register at bit 16, extended as the option field says."""
    option = word >> 13 & 7
    value = register_of(word >> 16 & 0x1F, state)
    size = 1 << (option & 3)
    if size == FULL:
        return value
    return values.extended(value, size, FULL) if option & 4 else values.truncated(value, size)


def _compare_if(word: int, left: Value, right: Value, state: State, size: int) -> None:
    second = word >> 16 & 0x1F if word & 1 << 11 else right
    condition = word >> 12 & 0xF
    if not word & 1 << 30 or condition >= len(CONDITIONS):
        state.flags = None
        return
    then = Compared(left, second, size)
    state.flags = Chained(state.flags, CONDITIONS[condition], then, _holding(word & 0xF))


def _choose(machine: Machine, word: int, left: Value, right: Value, state: State) -> None:
    size = FULL if word >> 31 else HALF
    if word & 1 << 30:
        right = values.bitwise(right, (1 << 8 * size) - 1, "xor")
    if word & 1 << 10:
        right = values.truncated(values.total(right, 1), size)
    condition = word >> 12 & 0xF
    if condition >= len(CONDITIONS):
        _put_or_drop(word & 0x1F, left, state, size)
        return
    taken, not_taken = (
        shown_by(state.flags, shown_condition)
        for shown_condition in (CONDITIONS[condition], negated(CONDITIONS[condition]))
    )
    result = values.join(left, state.facts | taken, right, state.facts | not_taken)
    if result is None or isinstance(result, values.Word):
        machine.lose(left, state.facts | taken)
        machine.lose(right, state.facts | not_taken)
    _put_or_drop(word & 0x1F, result, state, size)


def _memory(machine: Machine, word: int, ip: int, state: State) -> None:  # one for each kind of address
    base, is_vector = word >> 5 & 0x1F, bool(word & 1 << 26)
    if word & 0x3B000000 == 0x18000000:
        size = (4 << (word >> 30)) if is_vector else (4, 8, 4, 0)[word >> 30]
        address: Value = machine.module.base + ip + 4 * signed(word >> 5, 19)
        if size:
            _transfer(machine, word, address, size, state, is_load=True, is_signed=word >> 30 == 2)
    elif word & 0x3A000000 == 0x28000000:
        _pair(machine, word, base, state, is_vector=is_vector)
    elif word & 0x3A000000 == 0x38000000:
        _single(machine, word, base, state, is_vector=is_vector)
    elif word & 0x3F200C00 == 0x19000000:
        address = values.total(state.registers[base], signed(word >> 12, 9) & MASK_64)
        how = word >> 22 & 3
        _transfer(machine, word, address, 1 << (word >> 30), state, is_load=how != 0, is_signed=how > 1)
    elif word & 0x3F000000 == 0x08000000:
        _exclusive(machine, word, base, state)
    elif word & 0xBE000000 == 0x0C000000:
        if not word & 1 << 22:
            machine.store(state.registers[base], 64, None, state)
        if word & 1 << 23:
            _put(base, None, state)
    else:
        _put_or_drop(word & 0x1F, None, state)


def _single(machine: Machine, word: int, base: int, state: State, *, is_vector: bool) -> None:
    scale, how = word >> 30, word >> 22 & 3
    if is_vector:
        scale |= word >> 21 & 4
        is_load, is_signed = bool(how & 1), False
    else:
        is_load, is_signed = how != 0, how > 1
    start = state.registers[base]
    offset = signed(word >> 12, 9) & MASK_64
    if word & 1 << 24:
        address = values.total(start, offset_in(word) or 0)
    elif not word & 1 << 21:
        address = start if word & 0xC00 == 0x400 else values.total(start, offset)
    elif word & 0xC00 == 0x800:
        index = values.shifted(_extended(word, state), scale if word & 1 << 12 else 0, "shl", FULL)
        address = values.total(start, index)
        if values.cases_of(address) is None:
            # somewhere in a table
            machine.lose(start, state.facts)
            machine.lose(index, state.facts)
    else:
        _atomic(machine, word, start, state)
        return
    # a prefetch loads nothing
    if is_vector or scale != 3 or how != 2:
        _transfer(machine, word, address, 1 << scale, state, is_load=is_load, is_signed=is_signed)
    if not word & (1 << 24 | 1 << 21) and word & 1 << 10:
        _put(base, values.total(start, offset), state)


def _transfer(
    machine: Machine,
    word: int,
    address: Value,
    size: int,
    state: State,
    *,
    is_load: bool,
    is_signed: bool = False,
    number: int | None = None,
) -> None:
    """Load or store the register *number*, which is the lowest in *word* if it is not given."""
    number = word & 0x1F if number is None else number
    is_vector = bool(word & 1 << 26)
    if not is_load:
        machine.store(address, size, None if is_vector else register_of(number, state, min(size, FULL)), state)
        return
    value = machine.load(address, size, state)
    if is_signed and size < FULL:
        value = values.extended(value, size, FULL)
    if not is_vector:
        _put_or_drop(number, value, state)


def _pair(machine: Machine, word: int, base: int, state: State, *, is_vector: bool) -> None:
    size = 4 << (word >> 30) if is_vector else 4 << (word >> 31)
    offset = signed(word >> 15, 7) * size & MASK_64
    start, how = state.registers[base], word >> 23 & 3
    address = start if how == 1 else values.total(start, offset)
    second = values.total(address, size)
    is_load = bool(word & 1 << 22)
    for number, word_address in ((word & 0x1F, address), (word >> 10 & 0x1F, second)):
        _transfer(machine, word, word_address, size, state, is_load=is_load, is_signed=word >> 30 == 1, number=number)
    if how & 1:
        _put(base, values.total(start, offset), state)


def _exclusive(machine: Machine, word: int, base: int, state: State) -> None:
    start, size = state.registers[base], 1 << (word >> 30)
    if word & 0x00A00000 == 0x00A00000 or word & 0x80A00000 == 0x00200000:
        # compare and swap
        machine.lose(register_of(word & 0x1F, state), state.facts)
        machine.store(start, size, None, state)
        _put_or_drop(word >> 16 & 0x1F, None, state)
        return
    _transfer(machine, word & ~(1 << 26), start, size, state, is_load=bool(word & 1 << 22))
    if word & 1 << 21:
        _put_or_drop(word >> 10 & 0x1F, None, state)
    if not word & (1 << 22 | 1 << 23):
        _put_or_drop(word >> 16 & 0x1F, None, state)


def _atomic(machine: Machine, word: int, start: Value, state: State) -> None:
    """Run an atomic operation, or a load with acquire order."""
    size = 1 << (word >> 30)
    if word & 0x3FFFFC00 == 0x38BFC000:
        _transfer(machine, word, start, size, state, is_load=True)
        return
    machine.lose(register_of(word >> 16 & 0x1F, state), state.facts)
    old = machine.load(start, size, state)
    machine.store(start, size, None, state)
    _put_or_drop(word & 0x1F, values.lossy(old), state)


def _numbers(machine: Machine, word: int, state: State) -> None:
    is_rounded = word & 0x5F20FC00 == 0x1E200000 and word >> 16 & 7 not in {2, 3, 7}
    is_lane = word & 0xBFE0F400 == 0x0E003400 or word & 0xBFE0FC00 in {0x0E003C00, 0x0E002C00}
    if is_rounded or is_lane or (word & 0x5F200000 == 0x1E000000 and word >> 19 & 3 == 3):
        _put_or_drop(word & 0x1F, None, state)
    elif word & 0x5F20FC00 == 0x1E200000 or word & 0xBFE0FC00 in {0x0E000C00, 0x0E001C00}:
        machine.lose(register_of(word >> 5 & 0x1F, state), state.facts)


def run(machine: Machine, operation: Operation, state: State) -> None:
    instruction = operation.instruction
    word = instruction.code
    kind = word >> 25 & 0xF
    if kind in {8, 9}:
        _with_number(machine, word, instruction.ip, state)
    elif kind in {5, 13}:
        _with_registers(machine, word, state)
    elif kind & 5 == 4:
        _memory(machine, word, instruction.ip, state)
    elif kind & 7 == 7:
        _numbers(machine, word, state)
    elif kind in {10, 11}:
        if word & 0xFFF00000 == 0xD5300000:
            _put_or_drop(word & 0x1F, IDENTITY.get(word & 0xFFFE0), state)
        elif word & 0xFFE0001F == 0xD4000001:
            _put(0, None, state)
    elif kind == 2:
        # of SVE, some instructions write a general register
        _put_or_drop(word & 0x1F, None, state)


class ArmInterpreter(Interpreter):
    _most_steps = 28_000

    def _unknown(self, facts: int = 0) -> State:
        registers: list[Value] = [None] * _SP
        return State(registers=[*registers, STACK], facts=facts)

    def _follow(self, entry: int, state: State) -> State | None:
        module = self._program.module(entry)
        if entry - module.base in module.elf.resolvers:
            # what the loader tells it: a call that leads to a resolver is a call of what it returns
            state.registers[:2] = HWCAP, ARGUMENT
        return super()._follow(entry, state)

    def _branch(self, operation: Operation, state: State, entry: int) -> list[tuple[int, State]]:
        word, flags = operation.instruction.code, state.flags
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
            taken.flags = not_taken.flags = flags
        return [(operation.following, not_taken), *self._jump(operation.target, taken, entry)]

    def _targets(self, operation: Operation, state: State) -> list[tuple[int | str, int]]:
        if operation.target:
            destination = self._program.destination(operation.target)
            return [] if destination is None else [(destination, 0)]
        return self._targets_in(register_of(operation.instruction.code >> 5 & 0x1F, state))

    def _imported(self, name: str, state: State) -> list[State]:
        kind = state.registers[0]
        states = super()._imported(name, state)
        if name in GETAUXVAL and states:
            state.registers[0] = AUXILIARY.get(kind) if isinstance(kind, int) else None
        return states

    def _take_apart(self, operation: Operation) -> None:
        operation.run = run
