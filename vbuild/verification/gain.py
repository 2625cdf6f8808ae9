"""How much of a wheel's code is not as in the plain build: what a CPU level can bring at most, without a benchmark.

Functions are compared by their instructions, without the addresses in them, which move with every other change.
"""

from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from hashlib import blake2b
from pathlib import Path

from iced_x86 import Decoder, EncodingKind, Instruction, RegisterExt
from msgspec import Struct

from vbuild.elf.code import Elf
from vbuild.elf.isa import processes, regions_of, spread
from vbuild.errors import BinaryError
from vbuild.verification.model import Finding, Severity, VerifyRule, is_grafted
from vbuild.wheel.archive import open_wheel

_BITS = 64
_ENCODINGS = frozenset({EncodingKind.VEX, EncodingKind.EVEX})
_NEXT_TO_NOTHING = 0.01


class CodeGain(Struct, frozen=True):
    """The bytes of a wheel's own code, those of functions that the plain build does not have, and, of these, those of
    vector instructions (VEX or EVEX).
    """

    size: int
    changed: int
    vector: int

    @property
    def is_little(self) -> bool:
        """Whether less than a hundredth of the code differs."""
        return self.changed < _NEXT_TO_NOTHING * self.size

    @property
    def finding(self) -> Finding:
        """The figures as a note, or as a warning if the level brings next to nothing."""
        if not self.changed:
            what = "the level brings nothing here: the code is that of the plain build"
        else:
            little = "the level brings next to nothing here: " if self.is_little else ""
            shares = f"{self.changed / self.size:.1%} of the code differs from the plain build's"
            what = f"{little}{shares}, and {self.vector / self.size:.1%} is vector code in it"
        return Finding(Severity.WARNING if self.is_little else Severity.NOTE, VerifyRule.ISA_GAIN, (), what)


def code_gain(wheel: Path, plain: Path, *, jobs: int | None = None) -> CodeGain:
    """What is different in the code of *wheel*, which is for x86-64, from that of the *plain* build.

    *jobs* processes disassemble, by default as many as there are cores. `WheelError` if one cannot be read.
    """
    with processes(jobs) as executor:
        known = _functions(plain, executor)
        ours = _functions(wheel, executor)
    changed = [sizes for digest, sizes in ours.items() if digest not in known]
    size = sum(total for total, _ in ours.values())
    return CodeGain(size, sum(total for total, _ in changed), sum(vector for _, vector in changed))


def _functions(wheel: Path, executor: Executor | None) -> Mapping[bytes, tuple[int, int]]:
    """The functions of a wheel's own libraries by a digest of their instructions: bytes in all, and of vector code."""
    found: dict[bytes, tuple[int, int]] = {}
    with open_wheel(wheel) as source:
        for member in source.members:
            if is_grafted(member.path) or not member.path.endswith(".so"):
                continue
            try:
                elf = Elf.parse(source.read(member))
            except BinaryError:
                continue
            pieces = ((region.address, region.data) for region in regions_of(elf) if region.function)
            for digest, size, vector in spread(_digests, pieces, executor):
                total, vectors = found.get(digest, (0, 0))
                found[digest] = (total + size, vectors + vector)
    return found


def _digests(pieces: Iterable[tuple[int, bytes]]) -> list[tuple[bytes, int, int]]:
    """Of each of *pieces*: a digest of its instructions, its bytes, and those of its vector instructions."""
    found = []
    for address, data in pieces:
        text, vector = bytearray(data), 0
        decoder = Decoder(_BITS, data, ip=address)
        for instruction in decoder:
            start = instruction.ip - address
            if _is_vector(instruction):
                vector += instruction.len
            offsets = decoder.get_constant_offsets(instruction)
            if instruction.is_ip_rel_memory_operand:
                first = start + offsets.displacement_offset
                text[first : first + offsets.displacement_size] = bytes(offsets.displacement_size)
            if instruction.near_branch_target and offsets.immediate_size:
                first = start + offsets.immediate_offset
                text[first : first + offsets.immediate_size] = bytes(offsets.immediate_size)
        found.append((blake2b(text, digest_size=16).digest(), len(data), vector))
    return found


def _is_vector(instruction: Instruction) -> bool:
    """Whether *instruction* is encoded with VEX or EVEX and works on vectors: BMI's are encoded so, too."""
    registers = (instruction.op0_register, instruction.op1_register)
    return instruction.encoding in _ENCODINGS and any(map(RegisterExt.is_vector_register, registers))
