"""Fields of structures that nobody knows the address of: a space of addresses for them, and what code uses them.

a field   the number of the file whose code uses it, and how many bytes behind a pointer it stands
a use     an instruction with an operand in memory behind a register; on the stack, structures are known by place
"""

from collections.abc import Iterable

from vbuild.binary.code import CodeSection
from vbuild.elf.iced import Decoder, Instruction, MemorySizeExt, Mnemonic, Register

FIELDS, _SPACE, _ORIGIN = 5 << 90, 40, 1 << 39
POINTERS = frozenset(range(Register.RAX, Register.R15 + 1)) - {Register.RSP}
"""The registers behind which fields stand."""

_BITS = 64
# bytes of the widest operand in memory
WIDEST = 64
USED_BITS = 16


def field_of(module: int, displacement: int) -> int:
    """The address that stands for what is *displacement* behind any pointer that code of that *module* follows."""
    return FIELDS + (module << _SPACE) + _ORIGIN + displacement


def displacement_of_field(field: int) -> int:
    return (field & ((1 << _SPACE) - 1)) - _ORIGIN


def module_of_field(field: int) -> int:
    """The number of the module, counted from one, whose code uses *field*."""
    return (field - FIELDS) >> _SPACE


def displacement_of(instruction: Instruction) -> int:
    """How far behind its base register the operand in memory of *instruction* stands, in bytes."""
    found = instruction.memory_displacement
    return int(found - (found >> 63 << 64))


def field_uses(code: Iterable[CodeSection]) -> dict[int, list[int]]:
    """The instructions of *code* that use memory at each displacement from a pointer, those on the stack left out.

    Each is one number: the address of the instruction, and in the lowest `USED_BITS` how many bytes it may use.
    """
    found: dict[int, list[int]] = {}
    for section in code:
        for instruction in Decoder(_BITS, section.data, ip=section.address):
            if instruction.memory_base in POINTERS and instruction.memory_index == Register.NONE:
                # by an address that it makes, anything near it
                is_address = instruction.mnemonic == Mnemonic.LEA
                size = 2 * WIDEST if is_address else int(MemorySizeExt.size(instruction.memory_size))
                found.setdefault(displacement_of(instruction), []).append(instruction.ip << USED_BITS | size)
    return found
