"""Vector registers, as far as compilers move flags and pointers through them: each is a row of lanes of 64 bits.

Gcc and clang keep several flags of a structure in one register from -O2 on, so lanes stay apart: what one shows says
nothing about its neighbour.
"""

from collections.abc import Callable, Sequence

from vbuild.dispatch import values
from vbuild.dispatch.machine import Machine
from vbuild.dispatch.machine_state import NO_LANES, Lanes, Operation, State
from vbuild.dispatch.values import Value
from vbuild.elf.iced import EncodingKind, Instruction, Mnemonic

_M = Mnemonic
_LANE = 8
# of the widest register; those of the part that instructions without VEX change
_COUNT, _LOW = len(NO_LANES), 2


def _both(name: str) -> tuple[int, ...]:
    """The mnemonics of an instruction with and without VEX."""
    return tuple(vars(Mnemonic)[mnemonic] for mnemonic in (name, f"V{name}") if mnemonic in vars(Mnemonic))


def _every(*names: str) -> frozenset[int]:
    return frozenset(mnemonic for name in names for mnemonic in _both(name))


def halves(lanes: Lanes) -> list[Value]:
    """The lanes of 32 bits in *lanes*."""
    return [half for lane in lanes for half in (values.truncated(lane, 4), values.shifted(lane, 32, "shr", _LANE))]


def of_halves(parts: Sequence[Value]) -> Lanes:
    """Lanes of 64 bits from those of 32."""
    return tuple(
        values.bitwise(values.truncated(low, 4), values.shifted(values.truncated(high, 4), 32, "shl", _LANE), "or")
        for low, high in zip(parts[::2], parts[1::2], strict=True)
    )


_MOVES = _every("MOVDQA", "MOVDQU", "MOVAPS", "MOVUPS", "MOVAPD", "MOVUPD", "LDDQU")
_MOVES |= {_M.VMOVDQU8, _M.VMOVDQU16, _M.VMOVDQU32, _M.VMOVDQU64, _M.VMOVDQA32, _M.VMOVDQA64}
_SCALARS = _every("MOVD", "MOVQ", "MOVSS", "MOVSD")
_FOUR_BYTES, _FLOATS = _every("MOVD", "MOVSS"), _every("MOVSS", "MOVSD")
_HALF_MOVES = _every("MOVHPS", "MOVHPD", "MOVLPS", "MOVLPD")
_HIGH = _every("MOVHPS", "MOVHPD")
_BITWISE: dict[int, str] = {
    **dict.fromkeys(_every("PAND", "ANDPS", "ANDPD"), "and"),
    **dict.fromkeys(_every("POR", "ORPS", "ORPD"), "or"),
    **dict.fromkeys(_every("PXOR", "XORPS", "XORPD"), "xor"),
}
_AND_NOT = _every("PANDN", "ANDNPS", "ANDNPD")
_ROWS: dict[int, Callable[[Lanes, Lanes], Lanes]] = {
    **dict.fromkeys(_every("PUNPCKLQDQ", "UNPCKLPD", "MOVLHPS"), lambda a, b: (a[0], b[0])),
    **dict.fromkeys(_every("PUNPCKHQDQ", "UNPCKHPD"), lambda a, b: (a[1], b[1])),
    **dict.fromkeys(_every("MOVHLPS"), lambda a, b: (b[1], a[1])),
    **dict.fromkeys(
        _every("PUNPCKLDQ", "UNPCKLPS"),
        lambda a, b: of_halves([half for pair in zip(halves(a)[:2], halves(b)[:2], strict=True) for half in pair]),
    ),
    **dict.fromkeys(
        _every("PUNPCKHDQ", "UNPCKHPS"),
        lambda a, b: of_halves([half for pair in zip(halves(a)[2:4], halves(b)[2:4], strict=True) for half in pair]),
    ),
}
_WHOLE_LANES = _every("PUNPCKLQDQ", "UNPCKLPD", "MOVLHPS", "PUNPCKHQDQ", "UNPCKHPD", "MOVHLPS")
_SHIFTS: dict[int, tuple[str, int]] = {
    **dict.fromkeys(_every("PSRLD"), ("shr", 4)),
    **dict.fromkeys(_every("PSLLD"), ("shl", 4)),
    **dict.fromkeys(_every("PSRAD"), ("sar", 4)),
    **dict.fromkeys(_every("PSRLQ"), ("shr", 8)),
    **dict.fromkeys(_every("PSLLQ"), ("shl", 8)),
}
_EQUAL = _every("PCMPEQD")
_INSERTS = _every("PINSRD", "PINSRQ")
_EXTRACTS = _every("PEXTRD", "PEXTRQ")
_SHUFFLES = _every("PSHUFD")
_FOLLOWED = frozenset({*_BITWISE, *_AND_NOT, *_ROWS, *_SHIFTS, *_EQUAL, *_MOVES, *_SCALARS, *_HALF_MOVES})
_FOLLOWED |= {*_SHUFFLES, *_EXTRACTS, *_INSERTS}
_FOUR = 4


def run_vector(machine: Machine, operation: Operation, state: State) -> bool:
    kind = operation.mnemonic
    if kind in _MOVES:
        _write_lanes(machine, operation, _lanes(machine, operation, 1, state), state)
    elif kind in _SCALARS:
        return _move_scalar(machine, operation, state)
    elif kind in _HALF_MOVES:
        return _move_half(machine, operation, state)
    elif kind in _SHUFFLES:
        parts, order = _halves(machine, _lanes(machine, operation, 1, state), state), _number(operation, 2)
        _write_lanes(machine, operation, of_halves([parts[order >> 2 * at & 3] for at in range(_FOUR)]), state)
    elif kind in _EXTRACTS:
        lanes, size = _lanes(machine, operation, 1, state), operation.size
        parts = _halves(machine, lanes, state) if size == _FOUR else list(lanes[:_LOW])
        machine.write(operation, 0, parts[_number(operation, 2) % len(parts)], state)
    elif kind in _INSERTS:
        last = len(operation.operands) - 1
        lanes = _lanes(machine, operation, last - 2 if last > _LOW else 0, state)
        size = operation.operands[last - 1].size
        parts = _halves(machine, lanes, state) if size == _FOUR else list(lanes[:_LOW])
        parts[_number(operation, last) % len(parts)] = machine.read(operation, last - 1, state)
        _write_lanes(machine, operation, of_halves(parts) if size == _FOUR else tuple(parts), state)
    else:
        return _combined(machine, operation, state)
    return True


def _combined(machine: Machine, operation: Operation, state: State) -> bool:
    """Run an instruction that makes a vector of one or two others, lane by lane or half by half."""
    kind, last = operation.mnemonic, len(operation.operands) - 1
    first = _lanes(machine, operation, last - 1, state)
    if kind in _SHIFTS:
        how, size = _SHIFTS[kind]
        if operation.operands[last].immediate is None:
            return False
        count = _number(operation, last)
        parts = _halves(machine, first, state) if size == _FOUR else list(first[:_LOW])
        shifted = [0 if count >= 8 * size else values.shifted(part, count, how, size) for part in parts]
        result = of_halves(shifted) if size == _FOUR else tuple(shifted)
    elif kind in _BITWISE and _is_twice(operation) and _BITWISE[kind] == "xor":
        result = (0,) * _COUNT
    else:
        second = _lanes(machine, operation, last, state)
        if kind not in _WHOLE_LANES:
            lose_lanes(machine, (*first, *second), state)
        result = _of_two(kind, first, second)
    _write_lanes(machine, operation, result, state)
    return True


def lose_lanes(machine: Machine, lanes: Lanes, state: State) -> None:
    """Note the addresses in *lanes* that are taken apart, or go where they are not followed."""
    for lane in lanes:
        machine.lose(lane, state.facts)


def _halves(machine: Machine, lanes: Lanes, state: State) -> list[Value]:
    """The lanes of 32 bits in the low part of *lanes*."""
    lose_lanes(machine, lanes, state)
    return halves(lanes[:_LOW])


def _of_two(kind: int, first: Lanes, second: Lanes) -> Lanes:
    if kind in _ROWS:
        return _ROWS[kind](first[:_LOW], second[:_LOW])
    if kind in _EQUAL:
        return of_halves([_equal(a, b) for a, b in zip(halves(first[:_LOW]), halves(second[:_LOW]), strict=True)])
    if kind in _AND_NOT:
        first = tuple(values.bitwise(lane, values.MASK_64, "xor") for lane in first)
    how = _BITWISE.get(kind, "and")
    return tuple(values.bitwise(a, b, how) for a, b in zip(first, second, strict=True))


def _move_scalar(machine: Machine, operation: Operation, state: State) -> bool:
    operands = operation.operands
    if len(operands) != _LOW or not all(operand.register or operand.is_memory for operand in operands):
        # the string instruction of that name, or one that merges
        return False
    size = 4 if operation.mnemonic in _FOUR_BYTES else _LANE
    to, source = operands[0].register, operands[1].register
    if source and operands[1].number is None:
        lane = values.truncated(_lanes(machine, operation, 1, state)[0], size)
    else:
        lane = machine.read(operation, 1, state)
    if not to or operands[0].number is not None:
        machine.write(operation, 0, lane, state)
        return True
    keeps_the_rest = bool(source) and operation.mnemonic in _FLOATS
    if keeps_the_rest:
        return False
    _write_lanes(machine, operation, (values.truncated(lane, size), 0), state)
    return True


def _move_half(machine: Machine, operation: Operation, state: State) -> bool:
    last = len(operation.operands) - 1
    lane = operation.mnemonic in _HIGH
    if operation.operands[0].is_memory:
        machine.store(
            machine.location(operation.memory, state), _LANE, _lanes(machine, operation, 1, state)[lane], state
        )
        return True
    lanes = list(_lanes(machine, operation, last - 1 if last > 1 else 0, state)[:_LOW])
    lanes[lane] = machine.load(machine.location(operation.memory, state), _LANE, state)
    _write_lanes(machine, operation, tuple(lanes), state)
    return True


def _is_twice(operation: Operation) -> bool:
    """Whether the last two operands are the same register."""
    last = len(operation.operands) - 1
    last_register, one_before = operation.operands[last].register, operation.operands[last - 1].register
    return last_register == one_before != 0


def _lanes(machine: Machine, operation: Operation, index: int, state: State) -> Lanes:
    """The lanes of a register, or of the memory that the instruction reads; the rest is unknown."""
    operand = operation.operands[index]
    if operand.register:
        return state.vectors.get(operand.register, NO_LANES)
    address, size = machine.location(operation.memory, state), operand.size
    lanes = [machine.load(values.total(address, at), _LANE, state) for at in range(0, size, _LANE)]
    return (*lanes, *NO_LANES[len(lanes) :])


def _write_lanes(machine: Machine, operation: Operation, lanes: Lanes, state: State) -> None:
    operand = operation.operands[0]
    size = operand.size
    if operand.is_memory:
        address = machine.location(operation.memory, state)
        for at in range(0, size, _LANE):
            machine.store(values.total(address, at), _LANE, lanes[at // _LANE], state)
        return
    known = (*lanes, *NO_LANES[len(lanes) :])[: size // _LANE]
    full = operand.register
    # only instructions with VEX or EVEX clear the rest of the register
    is_old = operation.instruction.encoding == EncodingKind.LEGACY
    rest: Lanes = state.vectors.get(full, NO_LANES) if is_old else (0,) * _COUNT
    state.vectors[full] = (*known, *rest[len(known) :])


def is_followed(instruction: Instruction) -> bool:
    """Whether *instruction* is a vector instruction that may be followed."""
    return instruction.mnemonic in _FOLLOWED and not instruction.has_op_mask


def _number(operation: Operation, index: int) -> int:
    return operation.operands[index].immediate or 0


def _equal(left: Value, right: Value) -> Value:
    """All bits of 32 if the two are equal, else none."""
    if isinstance(left, int) and isinstance(right, int):
        return 0xFFFFFFFF if left == right else 0
    if not isinstance(right, int):
        left, right = right, left
    if not isinstance(right, int) or values.tag(right):
        return values.lossy(left, right)
    return values.choice({0: values.shown_different(left, right), 0xFFFFFFFF: values.shown_equal(left, right)})
