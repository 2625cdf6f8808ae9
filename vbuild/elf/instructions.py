"""Instructions that go on to the next one, as far as they are followed: the others write what they read, unknown."""

from collections.abc import Callable, Mapping
from typing import ClassVar

from iced_x86 import Instruction, Mnemonic, OpAccess, OpKind, RegisterExt

from vbuild.elf import values
from vbuild.elf.cpu_facts import ASKED, CPUID_BITS, SUBLEAVES, XCR0_BITS
from vbuild.elf.machine_state import (
    CARRY,
    CC,
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
    State,
    negated,
    shown_by,
)
from vbuild.elf.operands import CLEARS_THE_REST
from vbuild.elf.values import MASK_64, Value, is_stack, tag
from vbuild.elf.vectors import Vectors

_M = Mnemonic
_SHIFTS = {_M.SHL: "shl", _M.SHR: "shr", _M.SAR: "sar", _M.ROL: "rol", _M.ROR: "ror", _M.SAL: "shl"}
_BITWISE = {_M.AND: "and", _M.OR: "or", _M.XOR: "xor"}
_SETTERS = {kind for name, kind in vars(Mnemonic).items() if name.startswith("SET") and isinstance(kind, int)}
_MOVERS = {kind for name, kind in vars(Mnemonic).items() if name.startswith("CMOV") and isinstance(kind, int)}


# operands of an imul that writes to a third one; bytes that a rep stos may fill
_WITH_RESULT, _MOST_FILLED = 3, 1 << 16


class Instructions(Vectors):
    """The part of the interpreter that runs instructions which go on to the next one."""

    def _plain(self, instruction: Instruction, state: State) -> None:
        """Run an instruction that goes on to the next one."""
        kind = instruction.mnemonic
        if kind in self._simple:
            self._simple[kind](self, instruction, state)
        elif kind in _SETTERS:
            condition = instruction.condition_code
            facts = {0: shown_by(state.flags, negated(condition)), 1: shown_by(state.flags, condition)}
            self._write(instruction, 0, values.choice(facts), state)
        elif kind in _MOVERS:
            self._conditional_move(instruction, state)
        elif not self._vector(instruction, state):
            self._generic(instruction, state)

    def _conditional_move(self, instruction: Instruction, state: State) -> None:
        condition = instruction.condition_code
        old, new = self._read(instruction, 0, state), self._read(instruction, 1, state)
        taken, kept = shown_by(state.flags, condition), shown_by(state.flags, negated(condition))
        result = values.join(old, state.facts | kept, new, state.facts | taken)
        if result is None or isinstance(result, values.Word):
            self._lose(old, state.facts | kept)
            self._lose(new, state.facts | taken)
        self._write(instruction, 0, result, state)
        # an address that was offered is not used again
        if instruction.op_kind(1) == OpKind.REGISTER and isinstance(new, int) and tag(new) and not is_stack(new):
            state.registers[GENERAL[instruction.op_register(1)][0]] = None

    def _generic(self, instruction: Instruction, state: State) -> None:
        """Run an instruction that is not followed: what it writes shows at most what it reads."""
        info = INFO.info(instruction)
        read: list[Value] = []
        written: list[int] = []
        for used in info.used_registers():
            if used.register in GENERAL or RegisterExt.is_vector_register(used.register):
                if used.access not in {OpAccess.WRITE, OpAccess.NO_MEM_ACCESS}:
                    read += self._generic_read(used.register, instruction, state)
                if used.access in WRITES:
                    written.append(used.register)
        kinds = [instruction.op_kind(index) for index in range(instruction.op_count)]
        index = kinds.index(OpKind.MEMORY) if OpKind.MEMORY in kinds and instruction.mnemonic != _M.NOP else None
        if index is not None and info.op_access(index) != OpAccess.WRITE:
            read.append(self._read(instruction, index, state))
        result = values.lossy(*read)
        for register in written:
            self._set(register, result, state)
        if index is not None and info.op_access(index) in WRITES:
            self._write(instruction, index, result, state)
        if instruction.rflags_modified:
            state.flags = None

    def _generic_read(self, register: int, instruction: Instruction, state: State) -> list[Value]:
        if register not in GENERAL:
            lanes = state.vectors.get(RegisterExt.full_register(register), ())  # type: ignore[arg-type]
            self._lose_lanes(lanes, state)
            return list(lanes)
        if register in {instruction.memory_base, instruction.memory_index}:
            return []
        value = state.registers[GENERAL[register][0]]
        self._lose(value, state.facts)
        return [value]

    # the instructions that are followed

    def _move(self, instruction: Instruction, state: State) -> None:
        source = self._variable(instruction, 1, state)
        self._write(instruction, 0, self._read(instruction, 1, state), state)
        if source and instruction.op0_kind == OpKind.REGISTER and instruction.op0_register in GENERAL:
            state.source = (GENERAL[instruction.op0_register][0], source)

    def _variable(self, instruction: Instruction, index: int, state: State) -> tuple[int, int] | None:
        """The variable that an operand is, or comes from."""
        if instruction.op_kind(index) == OpKind.REGISTER and state.source:
            register = GENERAL.get(instruction.op_register(index))
            return state.source[1] if register and register[0] == state.source[0] else None
        if instruction.op_kind(index) == OpKind.MEMORY:
            address = self._address(instruction, state)
            if isinstance(address, int) and 0 < tag(address) <= len(self._program.modules):
                return address, self._size(instruction, index)
        return None

    def _move_signed(self, instruction: Instruction, state: State) -> None:
        value = self._read(instruction, 1, state)
        size, new = self._size(instruction, 1), self._size(instruction, 0)
        self._write(instruction, 0, values.extended(value, size, new) if size < new else value, state)

    def _lea(self, instruction: Instruction, state: State) -> None:
        self._write(instruction, 0, self._address(instruction, state), state)

    def _logic(self, instruction: Instruction, state: State) -> None:
        kind = _BITWISE[instruction.mnemonic]
        size = self._size(instruction, 0)
        is_same = (
            instruction.op_kind(1) == OpKind.REGISTER == instruction.op_kind(0)
            and instruction.op0_register == instruction.op1_register
        )
        if kind == "xor" and is_same:
            result: Value = 0
        elif is_same:
            result = self._read(instruction, 0, state)
        else:
            result = values.bitwise(self._read(instruction, 0, state), self._read(instruction, 1, state), kind)
        self._write(instruction, 0, result, state)
        state.flags = Compared(values.truncated(result, size), 0, size)

    def _place(self, instruction: Instruction, state: State) -> int | None:
        """The register or place on the stack that the first operand is."""
        if instruction.op0_kind == OpKind.REGISTER:
            register = GENERAL.get(instruction.op0_register)
            return register[0] if register and register[1] >= CLEARS_THE_REST else None
        if instruction.op0_kind == OpKind.MEMORY:
            address = self._address(instruction, state)
            return address if isinstance(address, int) and is_stack(address) else None
        return None

    def _test(self, instruction: Instruction, state: State) -> None:
        size = self._size(instruction, 0)
        one = self._read(instruction, 0, state)
        if instruction.op_kind(1) == OpKind.REGISTER and instruction.op0_register == instruction.op1_register:
            source = self._variable(instruction, 0, state)
            state.flags = Compared(one, 0, size, self._place(instruction, state), source=source)
        else:
            state.flags = Compared(values.bitwise(one, self._read(instruction, 1, state), "and"), 0, size)

    def _compare(self, instruction: Instruction, state: State) -> None:
        size = self._size(instruction, 0)
        one, other = self._read(instruction, 0, state), self._read(instruction, 1, state)
        source = self._variable(instruction, 0, state)
        state.flags = Compared(one, other, size, self._place(instruction, state), source=source)

    def _add(self, instruction: Instruction, state: State) -> None:
        size = self._size(instruction, 0)
        one, other = self._read(instruction, 0, state), self._read(instruction, 1, state)
        is_difference = instruction.mnemonic == Mnemonic.SUB
        full = values.total(one, other, is_difference=is_difference)
        if not is_difference and instruction.op1_kind == OpKind.REGISTER == instruction.op0_kind:
            is_twice = instruction.op0_register == instruction.op1_register
            full = values.shifted(one, 1, "shl", size) if is_twice else full
        if full is None:
            self._lose(one, state.facts)
            self._lose(other, state.facts)
        result = values.truncated(full, size)
        self._write(instruction, 0, result, state)
        state.flags = Compared(one, other, size) if is_difference else Compared(result, 0, size, only=ZERO_SIGN)

    def _step_by_one(self, instruction: Instruction, state: State) -> None:
        size = self._size(instruction, 0)
        one = self._read(instruction, 0, state)
        result = values.truncated(values.total(one, 1, is_difference=instruction.mnemonic == Mnemonic.DEC), size)
        self._write(instruction, 0, result, state)
        state.flags = Compared(result, 0, size, only=ZERO_SIGN)

    def _negate(self, instruction: Instruction, state: State) -> None:
        size = self._size(instruction, 0)
        one = self._read(instruction, 0, state)
        if instruction.mnemonic == Mnemonic.NOT:
            self._write(instruction, 0, values.bitwise(one, (1 << 8 * size) - 1, "xor"), state)
            return
        self._write(instruction, 0, values.truncated(values.total(0, one, is_difference=True), size), state)
        state.flags = Compared(0, one, size)

    def _shift(self, instruction: Instruction, state: State) -> None:
        size = self._size(instruction, 0)
        count = 1 if instruction.op_count == 1 else self._read(instruction, 1, state, 1)
        one = self._read(instruction, 0, state)
        result = values.shifted(one, count, _SHIFTS[instruction.mnemonic], size)
        self._write(instruction, 0, result, state)
        state.flags = Compared(result, 0, size, only=ZERO_SIGN)

    def _and_not(self, instruction: Instruction, state: State) -> None:
        size = self._size(instruction, 0)
        one = values.bitwise(self._read(instruction, 1, state), (1 << 8 * size) - 1, "xor")
        result = values.bitwise(one, self._read(instruction, 2, state), "and")
        self._write(instruction, 0, result, state)
        state.flags = Compared(values.truncated(result, size), 0, size)

    def _multiply(self, instruction: Instruction, state: State) -> None:
        if instruction.op_count < _WITH_RESULT:
            self._generic(instruction, state)
            return
        one, other = self._read(instruction, 1, state), self._read(instruction, 2, state)
        found = values.combined(lambda a, b: None if tag(a) or tag(b) else a * b & MASK_64, one, other)
        self._write(instruction, 0, values.truncated(found, self._size(instruction, 0)), state)
        state.flags = None

    def _bit_test(self, instruction: Instruction, state: State) -> None:
        one, bit = self._read(instruction, 0, state), self._read(instruction, 1, state, 1)
        if isinstance(bit, int) and not tag(bit):
            # carry is set if the bit is: below one, that is, zero, with the sides exchanged
            alone = values.bitwise(values.shifted(one, bit % (8 * self._size(instruction, 0)), "shr", 8), 1, "and")
            state.flags = Compared(0, alone, 8, only=CARRY)
        else:
            state.flags = None
        if instruction.mnemonic != Mnemonic.BT:
            self._write(instruction, 0, values.lossy(one), state)

    def _subtract_borrow(self, instruction: Instruction, state: State) -> None:
        if instruction.op_kind(1) == OpKind.REGISTER and instruction.op0_register == instruction.op1_register:
            size = self._size(instruction, 0)
            cases = {0: shown_by(state.flags, CC.AE), (1 << 8 * size) - 1: shown_by(state.flags, CC.B)}
            self._write(instruction, 0, values.choice(cases), state)
            state.flags = None
            return
        one, other = self._read(instruction, 0, state), self._read(instruction, 1, state)
        carry = values.choice({0: shown_by(state.flags, CC.AE), 1: shown_by(state.flags, CC.B)})
        if instruction.mnemonic == Mnemonic.ADC:
            result = values.total(values.total(one, other), carry)
        else:
            result = values.total(values.total(one, other, is_difference=True), carry, is_difference=True)
        self._write(instruction, 0, values.truncated(result, self._size(instruction, 0)), state)
        state.flags = None

    def _push(self, instruction: Instruction, state: State) -> None:
        value = self._read(instruction, 0, state, 8)
        state.registers[RSP] = values.total(state.registers[RSP], MASK_64 - 7)
        self._store(state.registers[RSP], 8, value, state)

    def _pop(self, instruction: Instruction, state: State) -> None:
        value = self._load(state.registers[RSP], 8, state)
        state.registers[RSP] = values.total(state.registers[RSP], 8)
        self._write(instruction, 0, value, state)

    def _leave(self, _: Instruction, state: State) -> None:
        frame = state.registers[5]
        state.registers[5] = self._load(frame, 8, state)
        state.registers[RSP] = values.total(frame, 8)

    def _exchange(self, instruction: Instruction, state: State) -> None:
        one, other = self._read(instruction, 0, state), self._read(instruction, 1, state)
        self._write(instruction, 0, other, state)
        self._write(instruction, 1, one, state)

    def _widen(self, instruction: Instruction, state: State) -> None:
        size = {Mnemonic.CBW: 1, Mnemonic.CWDE: 2, Mnemonic.CDQE: 4}[instruction.mnemonic]
        state.registers[RAX] = values.extended(values.truncated(state.registers[RAX], size), size, 2 * size)

    def _cpuid(self, _: Instruction, state: State) -> None:
        leaf = values.truncated(state.registers[RAX], 4)
        subleaf = values.truncated(state.registers[RCX], 4)
        for number, name in ((RAX, "eax"), (RBX, "ebx"), (RCX, "ecx"), (RDX, "edx")):
            state.registers[number] = _answer(leaf, subleaf, name)

    def _xgetbv(self, _: Instruction, state: State) -> None:
        state.registers[RAX], state.registers[RDX] = values.word(XCR0_BITS), None

    def _fill(self, instruction: Instruction, state: State) -> None:
        place, count = state.registers[7], state.registers[RCX]
        unit = {Mnemonic.STOSQ: 8, Mnemonic.STOSD: 4, Mnemonic.STOSW: 2, Mnemonic.STOSB: 1}[instruction.mnemonic]
        size = unit * count if isinstance(count, int) and instruction.has_rep_prefix and not tag(count) else unit
        if isinstance(place, int) and 0 < size < _MOST_FILLED:
            self._store(place, size, 0 if state.registers[RAX] == 0 else None, state)
        state.registers[7] = None
        if instruction.has_rep_prefix:
            state.registers[RCX] = 0

    _simple: ClassVar[Mapping[int, Callable[["Instructions", Instruction, State], None]]] = {
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
        _M.ANDN: _and_not,
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
        **dict.fromkeys((_M.STOSB, _M.STOSW, _M.STOSD, _M.STOSQ), _fill),
    }


def _answer(leaf: Value, subleaf: Value, name: str) -> Value:
    """What CPUID puts in the register *name*."""
    if not isinstance(leaf, int) or tag(leaf):
        if (cases := values.cases_of(leaf)) is None:
            return values.flags(ASKED)
        found = [bits for case in cases if (bits := CPUID_BITS.get((case, 0, name)))]
        return values.flags(ASKED) if found else None
    part = subleaf if isinstance(subleaf, int) and leaf in SUBLEAVES else 0
    bits = CPUID_BITS.get((leaf, part, name))
    return values.word(dict(bits)) if bits else None
