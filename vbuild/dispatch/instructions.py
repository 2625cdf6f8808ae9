"""What instructions that go on to the next one do; results of those not followed tell at most what was read."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache

from vbuild.dispatch import values
from vbuild.dispatch.facts import ASKED, CPUID_BITS, SUBLEAVES, XCR0_BITS
from vbuild.dispatch.machine import LOWEST_ADDRESS, Machine
from vbuild.dispatch.machine_state import (
    CARRY,
    CC,
    CLEARS_THE_REST,
    GENERAL,
    INFO,
    RAX,
    RBX,
    RCX,
    RDX,
    RSP,
    WRITES,
    ZERO_SIGN,
    Compared,
    Effects,
    Memory,
    Operand,
    Operation,
    State,
    negated,
    shown_by,
)
from vbuild.dispatch.module import Module
from vbuild.dispatch.values import MASK_64, Value, is_stack, tag
from vbuild.dispatch.vectors import is_followed, lose_lanes, run_vector
from vbuild.elf.iced import Instruction, MemorySizeExt, Mnemonic, OpAccess, OpKind, Register, RegisterExt

_M = Mnemonic
_SHIFTS: dict[int, str] = {_M.SHL: "shl", _M.SHR: "shr", _M.SAR: "sar", _M.ROL: "rol", _M.ROR: "ror", _M.SAL: "shl"}
_BITWISE: dict[int, str] = {_M.AND: "and", _M.OR: "or", _M.XOR: "xor"}
_HALVES: dict[int, int] = {_M.CBW: 1, _M.CWDE: 2, _M.CDQE: 4}
_COPIED: dict[int, int] = {_M.MOVSQ: 8, _M.MOVSD: 4, _M.MOVSW: 2, _M.MOVSB: 1}
_UNITS: dict[int, int] = {_M.STOSQ: 8, _M.STOSD: 4, _M.STOSW: 2, _M.STOSB: 1}
_SETTERS = {kind for name, kind in vars(Mnemonic).items() if name.startswith("SET") and isinstance(kind, int)}
_MOVERS = {kind for name, kind in vars(Mnemonic).items() if name.startswith("CMOV") and isinstance(kind, int)}
# operands of an imul that writes to a third one
_WITH_RESULT, _BOTH = 3, 2
# bytes of a pointer
_WORD = 8
_IMMEDIATES = {kind for name, kind in vars(OpKind).items() if isinstance(kind, int) and name.startswith("IMMEDIATE")}
# what addresses by these registers belongs to a thread
_THREADS: frozenset[int] = frozenset({Register.FS, Register.GS})
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


def take_apart(operation: Operation) -> None:
    """Find out what the instruction of *operation* works on, and how it runs."""
    instruction = operation.instruction
    operation.operands = operands = _operands(operation.module, instruction)
    operation.mnemonic = kind = instruction.mnemonic
    operation.condition = instruction.condition_code
    if any(operand.is_memory for operand in operands):
        operation.memory = _memory_of(operation.module, instruction)
    registers = [operand.register for operand in operands[:_BOTH] if operand.register]
    operation.is_twice = len(registers) == _BOTH and registers[0] == registers[1]
    if kind in _FOLLOWED:
        operation.run = _FOLLOWED[kind]
    elif kind in _SETTERS:
        operation.run = _set_condition
    elif kind in _MOVERS:
        operation.run = _conditional_move
    else:
        operation.run = _vector_or_generic if is_followed(instruction) else _generic


def _operands(module: Module, instruction: Instruction) -> tuple[Operand, ...]:
    operands: list[Operand] = []
    for index in range(instruction.op_count):
        kind = instruction.op_kind(index)
        if kind == OpKind.REGISTER:
            operands.append(_in_register(instruction.op_register(index)))
        elif kind == OpKind.MEMORY:
            operands.append(_in_memory(instruction.memory_size))
        elif kind in _IMMEDIATES:
            number = instruction.immediate(index) & ((1 << 8 * (operands[0].size if operands else _WORD)) - 1)
            operands.append(Operand(_WORD, immediate=_absolute(module, number)))
        else:
            operands.append(_OTHER)
    return tuple(operands)


def _memory_of(module: Module, instruction: Instruction) -> Memory:
    if instruction.is_ip_rel_memory_operand:
        return Memory(module.base + instruction.ip_rel_memory_address)
    if instruction.memory_segment in _THREADS:
        return Memory(is_of_thread=True)
    base, index = instruction.memory_base, instruction.memory_index
    return Memory(
        base=GENERAL[base][0] if base in GENERAL else None,
        index=GENERAL[index][0] if index in GENERAL else None,
        shift=instruction.memory_index_scale.bit_length() - 1,
        displacement=_absolute(module, instruction.memory_displacement & MASK_64),
    )


def _absolute(module: Module, number: int) -> int:
    """In a program at a fixed address a number may be an address."""
    if module.elf.is_fixed and number > LOWEST_ADDRESS and module.bytes_at(number, 1):
        return module.base + number
    return number


def _set_condition(machine: Machine, operation: Operation, state: State) -> None:
    condition = operation.condition
    facts = {0: shown_by(state.flags, negated(condition)), 1: shown_by(state.flags, condition)}
    machine.write(operation, 0, values.choice(facts), state)


def _vector_or_generic(machine: Machine, operation: Operation, state: State) -> None:
    if not run_vector(machine, operation, state):
        _generic(machine, operation, state)


def _conditional_move(machine: Machine, operation: Operation, state: State) -> None:
    condition = operation.condition
    old, new = machine.read(operation, 0, state), machine.read(operation, 1, state)
    taken, not_taken = shown_by(state.flags, condition), shown_by(state.flags, negated(condition))
    result = values.join(old, state.facts | not_taken, new, state.facts | taken)
    if result is None or isinstance(result, values.Word):
        machine.lose(old, state.facts | not_taken)
        machine.lose(new, state.facts | taken)
    machine.write(operation, 0, result, state)
    # an address that was offered is not used again
    source = operation.operands[1].number
    if source is not None and isinstance(new, int) and tag(new) and not is_stack(new):
        state.registers[source] = None


def _generic(machine: Machine, operation: Operation, state: State) -> None:
    """Run an instruction that is not followed: what it writes tells at most what it reads."""
    if (effects := operation.effects) is None:
        effects = operation.effects = _effects(operation.instruction)
    read: list[Value] = []
    for register in effects.read:
        read += _generic_read(machine, register, state)
    if effects.memory is not None and effects.reads_memory:
        read.append(machine.read(operation, effects.memory, state))
    result = values.lossy(*read)
    for register in effects.written:
        machine.set_register(register, result, state)
    if effects.memory is not None and effects.writes_memory:
        machine.write(operation, effects.memory, result, state)
    if effects.changes_flags:
        state.flags = None


def _generic_read(machine: Machine, register: int, state: State) -> Sequence[Value]:
    if register not in GENERAL:
        lanes = state.vectors.get(register, ())
        lose_lanes(machine, lanes, state)
        return lanes
    value = state.registers[GENERAL[register][0]]
    machine.lose(value, state.facts)
    return (value,)


def _move(machine: Machine, operation: Operation, state: State) -> None:
    source = _variable(machine, operation, 1, state)
    machine.write(operation, 0, machine.read(operation, 1, state), state)
    if source and (number := operation.operands[0].number) is not None:
        state.source = (number, source)


def _variable(machine: Machine, operation: Operation, index: int, state: State) -> tuple[int, int] | None:
    operand = operation.operands[index]
    if operand.register and state.source:
        return state.source[1] if operand.number == state.source[0] else None
    if operand.is_memory:
        address = machine.address(operation.memory, state)
        if isinstance(address, int) and 0 < tag(address) <= len(machine.program.modules):
            return address, operand.size
    return None


def _move_signed(machine: Machine, operation: Operation, state: State) -> None:
    value = machine.read(operation, 1, state)
    size, new = operation.operands[1].size, operation.size
    machine.write(operation, 0, values.extended(value, size, new) if size < new else value, state)


def _lea(machine: Machine, operation: Operation, state: State) -> None:
    machine.write(operation, 0, machine.address(operation.memory, state), state)


def _logic(machine: Machine, operation: Operation, state: State) -> None:
    kind = _BITWISE[operation.mnemonic]
    size = operation.size
    if kind == "xor" and operation.is_twice:
        result: Value = 0
    elif operation.is_twice:
        result = machine.read(operation, 0, state)
    else:
        result = values.bitwise(machine.read(operation, 0, state), machine.read(operation, 1, state), kind)
    machine.write(operation, 0, result, state)
    state.flags = Compared(values.truncated(result, size), 0, size)


def _location(machine: Machine, operation: Operation, state: State) -> int | None:
    """The register or place on the stack of the first operand."""
    operand = operation.operands[0]
    if operand.register:
        return operand.number if operand.size >= CLEARS_THE_REST else None
    if operand.is_memory:
        address = machine.address(operation.memory, state)
        return address if isinstance(address, int) and is_stack(address) else None
    return None


def _test(machine: Machine, operation: Operation, state: State) -> None:
    size = operation.size
    value = machine.read(operation, 0, state)
    if operation.is_twice:
        source = _variable(machine, operation, 0, state)
        state.flags = Compared(value, 0, size, _location(machine, operation, state), source=source)
    else:
        state.flags = Compared(values.bitwise(value, machine.read(operation, 1, state), "and"), 0, size)


def _compare(machine: Machine, operation: Operation, state: State) -> None:
    size = operation.size
    left, right = machine.read(operation, 0, state), machine.read(operation, 1, state)
    source = _variable(machine, operation, 0, state)
    state.flags = Compared(left, right, size, _location(machine, operation, state), source=source)


def _add(machine: Machine, operation: Operation, state: State) -> None:
    size = operation.size
    left, right = machine.read(operation, 0, state), machine.read(operation, 1, state)
    is_difference = operation.mnemonic == Mnemonic.SUB
    full = values.total(left, right, is_difference=is_difference)
    if not is_difference and operation.is_twice:
        full = values.shifted(left, 1, "shl", size)
    if full is None:
        machine.lose(left, state.facts)
        machine.lose(right, state.facts)
    result = values.truncated(full, size)
    machine.write(operation, 0, result, state)
    state.flags = Compared(left, right, size) if is_difference else Compared(result, 0, size, only=ZERO_SIGN)


def _step_by_one(machine: Machine, operation: Operation, state: State) -> None:
    size = operation.size
    value = machine.read(operation, 0, state)
    result = values.truncated(values.total(value, 1, is_difference=operation.mnemonic == Mnemonic.DEC), size)
    machine.write(operation, 0, result, state)
    state.flags = Compared(result, 0, size, only=ZERO_SIGN)


def _negate(machine: Machine, operation: Operation, state: State) -> None:
    size = operation.size
    value = machine.read(operation, 0, state)
    if operation.mnemonic == Mnemonic.NOT:
        machine.write(operation, 0, values.bitwise(value, (1 << 8 * size) - 1, "xor"), state)
        return
    machine.write(operation, 0, values.truncated(values.total(0, value, is_difference=True), size), state)
    state.flags = Compared(0, value, size)


def _shift(machine: Machine, operation: Operation, state: State) -> None:
    size = operation.size
    count = 1 if len(operation.operands) == 1 else machine.read(operation, 1, state, 1)
    value = machine.read(operation, 0, state)
    result = values.shifted(value, count, _SHIFTS[operation.mnemonic], size)
    machine.write(operation, 0, result, state)
    state.flags = Compared(result, 0, size, only=ZERO_SIGN)


def _multiply(machine: Machine, operation: Operation, state: State) -> None:
    if len(operation.operands) < _WITH_RESULT:
        _generic(machine, operation, state)
        return
    left, right = machine.read(operation, 1, state), machine.read(operation, 2, state)
    product = values.combined(lambda a, b: None if tag(a) or tag(b) else a * b & MASK_64, left, right)
    machine.write(operation, 0, values.truncated(product, operation.size), state)
    state.flags = None


def _bit_test(machine: Machine, operation: Operation, state: State) -> None:
    value, bit = machine.read(operation, 0, state), machine.read(operation, 1, state, 1)
    if isinstance(bit, int) and not tag(bit):
        # carry is set if the bit is: below one, that is, zero, with the sides exchanged
        isolated_bit = values.bitwise(values.shifted(value, bit % (8 * operation.size), "shr", 8), 1, "and")
        state.flags = Compared(0, isolated_bit, 8, only=CARRY)
    else:
        state.flags = None
    if operation.mnemonic != Mnemonic.BT:
        machine.write(operation, 0, values.lossy(value), state)


def _subtract_borrow(machine: Machine, operation: Operation, state: State) -> None:
    if operation.is_twice:
        size = operation.size
        cases = {0: shown_by(state.flags, CC.AE), (1 << 8 * size) - 1: shown_by(state.flags, CC.B)}
        machine.write(operation, 0, values.choice(cases), state)
        state.flags = None
        return
    left, right = machine.read(operation, 0, state), machine.read(operation, 1, state)
    carry = values.choice({0: shown_by(state.flags, CC.AE), 1: shown_by(state.flags, CC.B)})
    if operation.mnemonic == Mnemonic.ADC:
        result = values.total(values.total(left, right), carry)
    else:
        result = values.total(values.total(left, right, is_difference=True), carry, is_difference=True)
    machine.write(operation, 0, values.truncated(result, operation.size), state)
    state.flags = None


def _push(machine: Machine, operation: Operation, state: State) -> None:
    value = machine.read(operation, 0, state, 8)
    state.registers[RSP] = values.total(state.registers[RSP], MASK_64 - 7)
    machine.store(state.registers[RSP], 8, value, state)


def _pop(machine: Machine, operation: Operation, state: State) -> None:
    value = machine.load(state.registers[RSP], 8, state)
    state.registers[RSP] = values.total(state.registers[RSP], 8)
    machine.write(operation, 0, value, state)


def _leave(machine: Machine, _: Operation, state: State) -> None:
    frame = state.registers[5]
    state.registers[5] = machine.load(frame, 8, state)
    state.registers[RSP] = values.total(frame, 8)


def _exchange(machine: Machine, operation: Operation, state: State) -> None:
    left, right = machine.read(operation, 0, state), machine.read(operation, 1, state)
    machine.write(operation, 0, right, state)
    machine.write(operation, 1, left, state)


def _widen(_machine: Machine, operation: Operation, state: State) -> None:
    size = _HALVES[operation.mnemonic]
    state.registers[RAX] = values.extended(values.truncated(state.registers[RAX], size), size, 2 * size)


def _cpuid(machine: Machine, _: Operation, state: State) -> None:
    machine.asks = True
    leaf = values.truncated(state.registers[RAX], 4)
    subleaf = values.truncated(state.registers[RCX], 4)
    for number, name in ((RAX, "eax"), (RBX, "ebx"), (RCX, "ecx"), (RDX, "edx")):
        state.registers[number] = _answer(leaf, subleaf, name)


def _xgetbv(_machine: Machine, _: Operation, state: State) -> None:
    state.registers[RAX], state.registers[RDX] = values.word(XCR0_BITS), None


def _fill(machine: Machine, operation: Operation, state: State) -> None:
    address, size = state.registers[7], _length(operation, _UNITS[operation.mnemonic], state)
    if not machine.fill(address, state.registers[RAX], size, state):
        _lose_memory(machine, address, state)
    state.registers[7] = None
    if operation.instruction.has_rep_prefix:
        state.registers[RCX] = 0


def _length(operation: Operation, unit: int, state: State) -> Value:
    count = state.registers[RCX]
    return values.shifted(count, unit.bit_length() - 1, "shl", 8) if operation.instruction.has_rep_prefix else unit


def _lose_memory(machine: Machine, address: Value, state: State) -> None:
    """Note that something is written from *address* on."""
    machine.lose(address, state.facts)
    for start in values.cases_of(address) or ():
        if is_stack(start):
            machine.spoil(start, state)


def _move_string(machine: Machine, operation: Operation, state: State) -> None:
    if not operation.instruction.is_string_instruction:
        # the vector instruction of that name
        _vector_or_generic(machine, operation, state)
        return
    size = _length(operation, _COPIED[operation.mnemonic], state)
    to, source = state.registers[7], state.registers[6]
    if not machine.copy(to, source, size, state):
        _lose_memory(machine, to, state)
        machine.lose(source, state.facts)
        size = None
    state.registers[7], state.registers[6] = values.total(to, size), values.total(source, size)
    if operation.instruction.has_rep_prefix:
        state.registers[RCX] = 0


_FOLLOWED: Mapping[int, Callable[[Machine, Operation, State], None]] = {
    _M.MOV: _move,
    _M.MOVZX: _move,
    _M.MOVSX: _move_signed,
    _M.MOVSXD: _move_signed,
    _M.LEA: _lea,
    **dict.fromkeys(_BITWISE, _logic),
    _M.TEST: _test,
    _M.CMP: _compare,
    _M.ADD: _add,
    _M.SUB: _add,
    _M.INC: _step_by_one,
    _M.DEC: _step_by_one,
    _M.NEG: _negate,
    _M.NOT: _negate,
    **dict.fromkeys(_SHIFTS, _shift),
    _M.IMUL: _multiply,
    **dict.fromkeys((_M.BT, _M.BTS, _M.BTR, _M.BTC), _bit_test),
    _M.SBB: _subtract_borrow,
    _M.ADC: _subtract_borrow,
    _M.PUSH: _push,
    _M.POP: _pop,
    _M.LEAVE: _leave,
    _M.XCHG: _exchange,
    **dict.fromkeys((_M.CBW, _M.CWDE, _M.CDQE), _widen),
    _M.CPUID: _cpuid,
    _M.XGETBV: _xgetbv,
    **dict.fromkeys(_COPIED, _move_string),
    **dict.fromkeys((_M.STOSB, _M.STOSW, _M.STOSD, _M.STOSQ), _fill),
}


def _effects(instruction: Instruction) -> Effects:
    info = INFO.info(instruction)
    addressing = {instruction.memory_base, instruction.memory_index}
    read, written = [], []
    for used in info.used_registers():
        register = used.register
        if register not in GENERAL:
            if not RegisterExt.is_vector_register(register):
                continue
            register = RegisterExt.full_register(register)
        if used.access not in {OpAccess.WRITE, OpAccess.NO_MEM_ACCESS} and (
            register not in GENERAL or register not in addressing
        ):
            read.append(register)
        if used.access in WRITES:
            written.append(register)
    kinds = [instruction.op_kind(index) for index in range(instruction.op_count)]
    memory = kinds.index(OpKind.MEMORY) if OpKind.MEMORY in kinds and instruction.mnemonic != _M.NOP else None
    access = None if memory is None else info.op_access(memory)
    return Effects(
        tuple(read),
        tuple(written),
        memory,
        access != OpAccess.WRITE,
        access in WRITES,
        bool(instruction.rflags_modified),
    )


def _answer(leaf: Value, subleaf: Value, name: str) -> Value:
    """What CPUID puts in the register *name*."""
    if not isinstance(leaf, int) or tag(leaf):
        if (cases := values.cases_of(leaf)) is None:
            return values.flags(ASKED)
        known_bits = [bits for case in cases if (bits := CPUID_BITS.get((case, 0, name)))]
        return values.flags(ASKED) if known_bits else None
    part = subleaf if isinstance(subleaf, int) and leaf in SUBLEAVES else 0
    bits = CPUID_BITS.get((leaf, part, name))
    return values.word(dict(bits)) if bits else None
