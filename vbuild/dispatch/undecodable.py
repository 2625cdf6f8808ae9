"""Code in which the decoder meets bytes that it does not know: what they may be, and whether control flow reaches them.

    D5              REX2: APX (Intel APX Architecture Specification, 3.1.1)
    62, map 4       APX's forms of older instructions; so are bits of other maps that name registers from R16 on
    62, other maps  AVX10.2 and whatever follows it
    C4, C5          new instructions with a VEX prefix, as AMX has them
    0F 38           MOVRS, USER_MSR

The decoder is of January 2024, and some bytes, such as tables and texts between functions, are not instructions.
"""

from collections.abc import Callable, Iterator
from itertools import chain, takewhile
from typing import NamedTuple

from vbuild.elf.iced import Decoder, FlowControl, Instruction, Mnemonic

_BITS = 64
_PREFIXES = frozenset(bytes.fromhex("26 2e 36 3e 64 65 66 67 f0 f2 f3"))
_REX = range(0x40, 0x50)
_REX2, _EVEX, _VEX_LONG, _VEX, _ESCAPE, _THREE_BYTES = 0xD5, 0x62, 0xC4, 0xC5, 0x0F, 0x38
# VEX's and EVEX's map that promotes the first 256 opcodes, the one whose opcodes have a byte behind the operands, and
# the one whose have four
_LEGACY, _WITH_BYTE, _WITH_NUMBER = 4, 3, 7
# opcodes with a number behind the operands, of map 1, and of map 4: of one byte, and of four
_SHUFFLES = frozenset(bytes.fromhex("70 71 72 73 c2 c4 c5 c6"))
_BYTES, _NUMBERS, _TESTS = frozenset(bytes.fromhex("24 2c 6b 80 83 c0 c1 d4")), frozenset({0x69, 0x81}), {0xF6, 0xF7}
# by map, the instructions with VEX that APX gives registers from R16 on: of masks, BMI, CMPccXADD, AMX
_GENERAL: dict[int, frozenset[int]] = {
    1: frozenset(range(0x90, 0x94)),
    2: frozenset({0xF2, 0xF3, 0xF5, 0xF6, 0xF7, 0x49, 0x4B, *range(0xE0, 0xF0)}),
    3: frozenset({0xF0}),
}
_ENDS = frozenset(
    {FlowControl.RETURN, FlowControl.UNCONDITIONAL_BRANCH, FlowControl.INDIRECT_BRANCH}
    | {FlowControl.INTERRUPT, FlowControl.EXCEPTION}
)
_JUMPS = frozenset({FlowControl.CONDITIONAL_BRANCH, FlowControl.UNCONDITIONAL_BRANCH})
_CALLS = frozenset({FlowControl.CALL, FlowControl.INDIRECT_CALL})
# bytes of the longest instruction, and that are shown of what is none
_LONGEST, _SHOWN = 15, 4


class Unknown(NamedTuple):
    """Bytes that the decoder does not know: how many, and what they may be; empty for nothing that is known."""

    size: int
    kind: str


_NONE = Unknown(0, "")


def unknown(data: bytes) -> Unknown:
    """What the bytes at the start of *data*, which the decoder does not know, may be."""
    start = 0
    while start < len(data) and data[start] in _PREFIXES:
        start += 1
    head, behind = data[:start], data[start:_LONGEST] + bytes(_LONGEST)
    size, kind = 0, ""
    if behind[0] == _REX2:
        # the same instruction with REX has the same length: a map is a bit here, and a byte there
        map_, rex = behind[1] >> 7, 0x40 | behind[1] & 8
        instruction = _first(head + bytes([rex, *[_ESCAPE] * map_]) + behind[2:])
        size, kind = len(instruction) + 1 - map_ - start if instruction else 0, "APX (REX2)"
    elif behind[0] == _EVEX and behind[1] & 7:
        map_, opcode = behind[1] & 7, behind[4]
        is_apx = map_ == _LEGACY or behind[1] & 8 or not behind[2] & 4 or opcode in _GENERAL.get(map_, ())
        size, kind = _sized(behind, 4, map_), "APX (EVEX)" if is_apx else "AVX10.2 or newer (EVEX)"
    elif behind[0] == _VEX_LONG:
        size, kind = _sized(behind, 3, behind[1] & 31), "newer than 2024 (VEX)"
    elif behind[0] == _VEX:
        size, kind = _sized(behind, 2, 1), "newer than 2024 (VEX)"
    else:
        rex = behind[0] in _REX
        if behind[rex : rex + 2] == bytes([_ESCAPE, _THREE_BYTES]):
            kinds = {0x8A: "MOVRS", 0x8B: "MOVRS", 0xF8: "USER_MSR"}
            kind = kinds.get(behind[rex + 2], "")
            size = _sized(behind, rex + 2, 2) if kind else 0
    return Unknown(start + size, kind) if size and start + size <= len(data) else _NONE


def _first(data: bytes) -> Instruction | None:
    instruction = Decoder(_BITS, data).decode()
    return instruction or None


def _sized(data: bytes, start: int, map_: int) -> int:
    """The length of an instruction of *map_* whose opcode is at *start* of *data*; 0 if it runs past the end."""
    opcode, operands = data[start], data[start + 1 :]
    # the nop that takes any operands
    if (nop := _first(b"\x0f\x1f" + operands)) is None:
        return 0
    size = start + 1 + len(nop) - 2
    if map_ == _LEGACY:
        is_test = opcode in _TESTS and not operands[0] & 0x30
        is_wide = opcode in _NUMBERS or (is_test and opcode & 1)
        wide = 2 if data[start - 2] & 3 == 1 else 4
        return size + (wide if is_wide else opcode in _BYTES or is_test)
    return size + (4 if map_ == _WITH_NUMBER else map_ == _WITH_BYTE or (map_ == 1 and opcode in _SHUFFLES))


def instructions_of(
    data: bytes, address: int, is_endless: Callable[[Instruction], bool] = lambda _: False, *, has_tables: bool = False
) -> Iterator[Instruction]:
    """The instructions of the code *data* at *address*, in order; behind bytes that are none, those that are reached.

    Bytes that are none are among these, as an instruction that is false, if they are reached. A call that *is_endless*
    does not come back. If it *has_tables* of jumps, these may look like code.
    """
    instructions = list(Decoder(_BITS, data, ip=address))
    # no step in Python for each, where there is nothing to ask
    if all(instructions):
        return iter(instructions)
    start = next(instruction.ip for instruction in instructions if not instruction)
    behind = list(_in_line(data, address, start - address))
    if has_tables or not (behind[-1] or is_newer(behind[-1])):
        behind = [instruction for instruction in _reached(data, address, is_endless)[0] if instruction.ip >= start]
    # otherwise all is code: what nothing jumps to is reached through tables, or handles errors
    return chain(takewhile(bool, instructions), behind)


def may_be_code(data: bytes, address: int) -> bool:
    """Whether all that is reached from the start of *data* may be instructions, and ends before *data* does."""
    _, is_clean = _reached(data, address, lambda _: False)
    return is_clean


def _reached(data: bytes, address: int, is_endless: Callable[[Instruction], bool]) -> tuple[list[Instruction], bool]:
    """What control flow reaches in *data* from its start, in order; and whether all may be code, and ends there."""
    reached: dict[int, Instruction] = {}
    waiting, is_clean = [0], True
    while waiting:
        start = waiting.pop()
        for instruction in _in_line(data, address, start) if 0 <= start < len(data) else ():
            if instruction.ip in reached:
                break
            reached[instruction.ip] = instruction
            flow = instruction.flow_control
            if flow in _JUMPS:
                waiting.append(instruction.near_branch_target - address)
            if instruction and (flow in _ENDS or instruction.mnemonic == Mnemonic.HLT):
                break
            if flow in _CALLS and is_endless(instruction):
                break
        else:
            is_clean = False
    return [reached[ip] for ip in sorted(reached)], is_clean


def decoded(data: bytes, address: int, start: int = 0) -> Iterator[Instruction]:
    """The instructions from *start* of *data* on; what can be none is one byte long."""
    decoder = Decoder(_BITS, data, ip=address)
    decoder.position, decoder.ip = start, address + start
    for instruction in decoder:
        if not instruction:
            ip = instruction.ip
            instruction.len = unknown(data[ip - address : ip - address + _LONGEST]).size or 1
            instruction.ip = ip
            if is_newer(instruction):
                decoder.position, decoder.ip = instruction.next_ip - address, instruction.next_ip
        yield instruction


def is_newer(instruction: Instruction) -> bool:
    return not instruction and instruction.len > 1


def _in_line(data: bytes, address: int, start: int) -> Iterator[Instruction]:
    """What is `decoded` from *start* of *data* on, up to bytes that can be none, which come last."""
    for instruction in decoded(data, address, start):
        yield instruction
        if not (instruction or is_newer(instruction)):
            return


def described(data: bytes) -> str:
    size, kind = unknown(data[:_LONGEST])
    if not size:
        return f"{data[:_SHOWN].hex(' ')} ..., no instruction that is known"
    return f"{size} bytes, {data[:size].hex(' ')}, may be {kind}"
