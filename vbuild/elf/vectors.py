"""Vector registers, as far as compilers move flags and pointers through them: each is a row of lanes of 64 bits.

Gcc and clang keep several flags of a structure in one register from -O2 on, so lanes stay apart: what one shows says
nothing about its neighbour.
"""

from collections.abc import Callable, Sequence

from iced_x86 import EncodingKind, Instruction, Mnemonic, OpKind, RegisterExt

from vbuild.elf import values
from vbuild.elf.machine_state import GENERAL, NO_LANES, Lanes, State
from vbuild.elf.operands import Operands
from vbuild.elf.values import Value

_M = Mnemonic
_LANE = 8
# of the widest register; those of the part that instructions without VEX change
_COUNT, _LOW = len(NO_LANES), 2


def _both(name: str) -> tuple[int, ...]:
    """The mnemonics of an instruction with and without VEX."""
    return tuple(vars(Mnemonic)[one] for one in (name, f"V{name}") if one in vars(Mnemonic))


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
_FOUR = 4


class Vectors(Operands):
    """The part of the interpreter that runs vector instructions; those that it does not know are left to others."""

    def _vector(self, instruction: Instruction, state: State) -> bool:
        """Run *instruction* if it is a vector instruction that is followed."""
        kind = instruction.mnemonic
        if instruction.has_op_mask:
            return False
        if kind in _MOVES:
            self._write_lanes(instruction, 0, self._lanes(instruction, 1, state), state)
        elif kind in _SCALARS:
            return self._move_scalar(instruction, state)
        elif kind in _HALF_MOVES:
            return self._move_half(instruction, state)
        elif kind in _SHUFFLES:
            parts, order = self._halves(self._lanes(instruction, 1, state), state), instruction.immediate(2)
            self._write_lanes(instruction, 0, of_halves([parts[order >> 2 * at & 3] for at in range(_FOUR)]), state)
        elif kind in _EXTRACTS:
            lanes, size = self._lanes(instruction, 1, state), self._size(instruction, 0)
            parts = self._halves(lanes, state) if size == _FOUR else list(lanes[:_LOW])
            self._write(instruction, 0, parts[instruction.immediate(2) % len(parts)], state)
        elif kind in _INSERTS:
            last = instruction.op_count - 1
            lanes = self._lanes(instruction, last - 2 if last > _LOW else 0, state)
            size = self._size(instruction, last - 1)
            parts = self._halves(lanes, state) if size == _FOUR else list(lanes[:_LOW])
            parts[instruction.immediate(last) % len(parts)] = self._read(instruction, last - 1, state)
            self._write_lanes(instruction, 0, of_halves(parts) if size == _FOUR else tuple(parts), state)
        else:
            return self._combined(instruction, state)
        return True

    def _combined(self, instruction: Instruction, state: State) -> bool:
        """Run an instruction that makes a vector of one or two others, lane by lane or half by half."""
        kind, last = instruction.mnemonic, instruction.op_count - 1
        if kind not in {*_BITWISE, *_AND_NOT, *_ROWS, *_SHIFTS, *_EQUAL}:
            return False
        first = self._lanes(instruction, last - 1, state)
        if kind in _SHIFTS:
            how, size = _SHIFTS[kind]
            if instruction.op_kind(last) == OpKind.REGISTER or instruction.op_kind(last) == OpKind.MEMORY:
                return False
            count = instruction.immediate(last)
            parts = self._halves(first, state) if size == _FOUR else list(first[:_LOW])
            shifted = [0 if count >= 8 * size else values.shifted(part, count, how, size) for part in parts]
            result = of_halves(shifted) if size == _FOUR else tuple(shifted)
        elif kind in _BITWISE and self._is_twice(instruction) and _BITWISE[kind] == "xor":
            result = (0,) * _COUNT
        else:
            second = self._lanes(instruction, last, state)
            if kind not in _WHOLE_LANES:
                self._lose_lanes((*first, *second), state)
            result = self._of_two(kind, first, second)
        self._write_lanes(instruction, 0, result, state)
        return True

    def _lose_lanes(self, lanes: Lanes, state: State) -> None:
        """Note the addresses in *lanes* that are taken apart, or go where they are not followed."""
        for lane in lanes:
            self._lose(lane, state.facts)

    def _halves(self, lanes: Lanes, state: State) -> list[Value]:
        """The lanes of 32 bits in the low part of *lanes*."""
        self._lose_lanes(lanes, state)
        return halves(lanes[:_LOW])

    def _of_two(self, kind: int, first: Lanes, second: Lanes) -> Lanes:
        if kind in _ROWS:
            return _ROWS[kind](first[:_LOW], second[:_LOW])
        if kind in _EQUAL:
            return of_halves([_equal(a, b) for a, b in zip(halves(first[:_LOW]), halves(second[:_LOW]), strict=True)])
        if kind in _AND_NOT:
            first = tuple(values.bitwise(lane, values.MASK_64, "xor") for lane in first)
        how = _BITWISE.get(kind, "and")
        return tuple(values.bitwise(a, b, how) for a, b in zip(first, second, strict=True))

    def _move_scalar(self, instruction: Instruction, state: State) -> bool:
        kinds = {instruction.op_kind(index) for index in range(instruction.op_count)}
        if instruction.op_count != _LOW or not kinds <= {OpKind.REGISTER, OpKind.MEMORY}:
            # the string instruction of that name, or one that merges
            return False
        size = 4 if instruction.mnemonic in _FOUR_BYTES else _LANE
        to, source = instruction.op0_kind == OpKind.REGISTER, instruction.op1_kind == OpKind.REGISTER
        if source and instruction.op1_register not in GENERAL:
            lane = values.truncated(self._lanes(instruction, 1, state)[0], size)
        else:
            lane = self._read(instruction, 1, state)
        if not to or instruction.op0_register in GENERAL:
            self._write(instruction, 0, lane, state)
            return True
        keeps_the_rest = source and instruction.mnemonic in _FLOATS
        if keeps_the_rest:
            return False
        self._write_lanes(instruction, 0, (values.truncated(lane, size), 0), state)
        return True

    def _move_half(self, instruction: Instruction, state: State) -> bool:
        last = instruction.op_count - 1
        lane = instruction.mnemonic in _HIGH
        if instruction.op0_kind == OpKind.MEMORY:
            self._store(self._location(instruction, state), _LANE, self._lanes(instruction, 1, state)[lane], state)
            return True
        lanes = list(self._lanes(instruction, last - 1 if last > 1 else 0, state)[:_LOW])
        lanes[lane] = self._load(self._location(instruction, state), _LANE, state)
        self._write_lanes(instruction, 0, tuple(lanes), state)
        return True

    @staticmethod
    def _is_twice(instruction: Instruction) -> bool:
        """Whether the last two operands are the same register."""
        last = instruction.op_count - 1
        kinds = {instruction.op_kind(last), instruction.op_kind(last - 1)}
        return kinds == {OpKind.REGISTER} and instruction.op_register(last) == instruction.op_register(last - 1)

    def _lanes(self, instruction: Instruction, index: int, state: State) -> Lanes:
        """The lanes of a register, or of as much memory as the instruction reads; the rest is unknown."""
        if instruction.op_kind(index) == OpKind.REGISTER:
            return state.vectors.get(RegisterExt.full_register(instruction.op_register(index)), NO_LANES)
        address, size = self._location(instruction, state), self._size(instruction, index)
        lanes = [self._load(values.total(address, at), _LANE, state) for at in range(0, size, _LANE)]
        return (*lanes, *NO_LANES[len(lanes) :])

    def _write_lanes(self, instruction: Instruction, index: int, lanes: Lanes, state: State) -> None:
        size = self._size(instruction, index)
        if instruction.op_kind(index) == OpKind.MEMORY:
            address = self._location(instruction, state)
            for at in range(0, size, _LANE):
                self._store(values.total(address, at), _LANE, lanes[at // _LANE], state)
            return
        register = instruction.op_register(index)
        known = (*lanes, *NO_LANES[len(lanes) :])[: size // _LANE]
        full = RegisterExt.full_register(register)
        # only instructions with VEX or EVEX clear the rest of the register
        is_old = instruction.encoding == EncodingKind.LEGACY
        rest: Lanes = state.vectors.get(full, NO_LANES) if is_old else (0,) * _COUNT
        state.vectors[full] = (*known, *rest[len(known) :])


def _equal(one: Value, other: Value) -> Value:
    """All bits of 32 if the two are equal, else none."""
    if isinstance(one, int) and isinstance(other, int):
        return 0xFFFFFFFF if one == other else 0
    if not isinstance(other, int):
        one, other = other, one
    if not isinstance(other, int) or values.tag(other):
        return values.lossy(one, other)
    return values.choice({0: values.shown_different(one, other), 0xFFFFFFFF: values.shown_equal(one, other)})
