"""How much of a wheel's code is not as in the plain build: what a CPU level can bring at most, without a benchmark.

Functions are compared by their instructions, without the addresses in them, which move with every other change.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from vbuild.dispatch.isa import features_by_code
from vbuild.dispatch.regions import processes, regions_of, spread
from vbuild.elf.code import Elf
from vbuild.elf.iced import Decoder, EncodingKind, Instruction, RegisterExt
from vbuild.errors import BinaryError
from vbuild.process.pool import ProcessPool
from vbuild.process.threads import OncePerKey
from vbuild.verification.model import Finding, Severity, VerifyRule, is_grafted
from vbuild.wheel.archive import open_wheel

_BITS = 64
_ENCODINGS = frozenset({EncodingKind.VEX, EncodingKind.EVEX})
_NEXT_TO_NOTHING = 0.01


class CodeGain(Struct, frozen=True):
    """Bytes of code, those in functions that the plain build does not have, and vector instructions in these.

    Of instructions that not every processor has, *beyond* are the bytes in these functions, less those in functions
    that only the plain build has.
    """

    size: int
    changed: int
    vector: int
    beyond: int

    @property
    def is_nothing(self) -> bool:
        """Whether the code makes no more use than the plain build's of what not every processor has."""
        return self.beyond <= 0

    @property
    def is_little(self) -> bool:
        """Whether less than a hundredth of the code differs, or no instruction of it is the level's own."""
        return self.changed < _NEXT_TO_NOTHING * self.size or self.is_nothing

    def finding(self, path: str | None = None) -> Finding:
        """The figures as a note; of a whole wheel as a warning if the level brings next to nothing."""
        if not self.changed:
            what = "the level brings nothing here: the code is that of the plain build"
        else:
            what = f"{self.changed / self.size:.1%} of the code differs from the plain build's"
            if self.is_nothing:
                what = f"the level brings nothing here: {what}, by no instruction that is the level's own"
            else:
                little = "the level brings next to nothing here: " if self.is_little else ""
                what = f"{little}{what}, and {self.vector / self.size:.1%} is vector code in it"
        severity = Severity.WARNING if self.is_little and not path else Severity.NOTE
        return Finding(severity, VerifyRule.ISA_GAIN, (path,) if path else (), what)


class WheelGain(Struct, frozen=True):
    """The gain of each library of a wheel's own, by its path.

    The code of the modules at the paths *bypassed* is the plain build's, and they lack the mark of the level that the
    wheel's other libraries have: they did not come through the compiler wrappers.
    """

    libraries: Mapping[str, CodeGain]
    bypassed: tuple[str, ...] = ()

    @property
    def whole(self) -> CodeGain:
        """The gain of all libraries together."""
        every = self.libraries.values()
        return CodeGain(*(sum(getattr(one, key) for one in every) for key in CodeGain.__struct_fields__))

    @property
    def findings(self) -> Iterator[Finding]:
        """The gain of the whole, then of each library if there are several; an error for what is bypassed."""
        if self.bypassed:
            what = "its code is that of the plain build, and it lacks the mark of the level: it was compiled elsewhere"
            advice = (
                "the project calls a compiler by its path; change that to a name: build.patches = ['compiler.patch']"
            )
            yield Finding(Severity.ERROR, VerifyRule.ISA_FLAGS, self.bypassed, what, advice)
        yield self.whole.finding()
        if len(self.libraries) > 1:
            yield from (one.finding(path) for path, one in self.libraries.items())


def code_gain(wheel: Path, plain: Path, *, jobs: int | None = None) -> WheelGain:
    """What is different in the code of *wheel*, which is for x86-64, from that of the *plain* build.

    *jobs* processes disassemble, by default as many as there are cores. `WheelError` if one cannot be read.
    """
    with processes(jobs) as executor:
        theirs = {library.path: library for library in _libraries(plain, executor)}
        ours = {library.path: library for library in _libraries(wheel, executor)}
    known, shared = (frozenset().union(*(one.digests for one in found.values())) for found in (theirs, ours))
    marked = any(library.is_marked for library in ours.values())
    bypassed = (
        library.path
        for library in ours.values()
        if marked and not library.is_marked and library.is_module and known.issuperset(library.digests)
    )
    lost = {path: sum(one.beyond for one in library.without(shared)) for path, library in theirs.items()}
    gains = {path: library.gain(known, lost=lost.get(path, 0)) for path, library in ours.items()}
    return WheelGain(gains, tuple(bypassed))


class _Function(NamedTuple):
    """The digest of a function's instructions, its bytes, and those of vector instructions and above the baseline."""

    digest: bytes
    size: int
    vector: int
    beyond: int


class _Library(Struct, frozen=True):
    """A library of a wheel, and its functions."""

    path: str
    is_marked: bool
    is_module: bool
    functions: tuple[_Function, ...]

    @property
    def digests(self) -> frozenset[bytes]:
        return frozenset(one.digest for one in self.functions)

    def without(self, known: frozenset[bytes]) -> list[_Function]:
        """The functions that are not *known*."""
        return [one for one in self.functions if one.digest not in known]

    def gain(self, known: frozenset[bytes], *, lost: int) -> CodeGain:
        """What is not *known* of its functions; the plain build's own have *lost* bytes above the baseline."""
        changed = self.without(known)
        return CodeGain(
            sum(one.size for one in self.functions),
            changed=sum(one.size for one in changed),
            vector=sum(one.vector for one in changed),
            beyond=sum(one.beyond for one in changed) - lost,
        )


def _libraries(wheel: Path, executor: ProcessPool | None) -> Iterator[_Library]:
    """The libraries of *wheel* that its own build made."""
    with open_wheel(wheel) as source:
        for member in source.members:
            if is_grafted(member.path) or not member.path.endswith(".so"):
                continue
            data = source.read(member)
            key = (member.path, blake2b(data, digest_size=32).digest())
            if library := _READ.get(key, partial(_library, member.path, data, executor)):
                yield library


def _library(path: str, data: bytes, executor: ProcessPool | None) -> _Library | None:
    """The library *data* at *path*; None if it cannot be read."""
    try:
        elf = Elf.parse(data)
    except BinaryError:
        return None
    pieces = ((region.address, region.data) for region in regions_of(elf) if region.function)
    is_module = any(name.startswith("PyInit_") for name in elf.exported)
    return _Library(path, bool(elf.isa_needed), is_module, tuple(spread(_digests, pieces, executor)))


# each level of a release is compared with the same plain build
_READ: OncePerKey[tuple[str, bytes], _Library | None] = OncePerKey(most=64)


def _digests(pieces: Iterable[tuple[int, bytes]]) -> list[_Function]:
    """The functions whose address and bytes are *pieces*."""
    found, above = [], features_by_code()
    for address, data in pieces:
        text, vector, beyond = bytearray(data), 0, 0
        decoder = Decoder(_BITS, data, ip=address)
        for instruction in decoder:
            start = instruction.ip - address
            if _is_vector(instruction):
                vector += instruction.len
            if instruction.code in above:
                beyond += instruction.len
            offsets = decoder.get_constant_offsets(instruction)
            if instruction.is_ip_rel_memory_operand:
                first = start + offsets.displacement_offset
                text[first : first + offsets.displacement_size] = bytes(offsets.displacement_size)
            if instruction.near_branch_target and offsets.immediate_size:
                first = start + offsets.immediate_offset
                text[first : first + offsets.immediate_size] = bytes(offsets.immediate_size)
        found.append(_Function(blake2b(text, digest_size=16).digest(), len(data), vector, beyond))
    return found


def _is_vector(instruction: Instruction) -> bool:
    """Whether *instruction* is encoded with VEX or EVEX and works on vectors: BMI's are encoded so, too."""
    registers = (instruction.op0_register, instruction.op1_register)
    return instruction.encoding in _ENCODINGS and any(map(RegisterExt.is_vector_register, registers))
