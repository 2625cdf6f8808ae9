"""What the interpreter knows at one instruction: registers, stack, flags, and what these say about the processor."""

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

from msgspec import Struct, field

from vbuild.dispatch import values
from vbuild.dispatch.facts import EVERY
from vbuild.dispatch.values import STACK, Value, tag
from vbuild.elf.iced import ConditionCode, FlowControl, InstructionInfoFactory, OpAccess, Register, RegisterExt

RAX, RCX, RDX, RBX, RSP = range(5)
# bytes on the stack that code with a pointer to them may write
HANDED_OVER = 128
_MOST_PAIRS = 1024
_WORD, _HALF = 8, 4
# bytes: from here on writing to a register clears the rest of it
CLEARS_THE_REST = 4
# bits of an address that say where in a part of the stack it is: of one that states share, and of `Uneven`
_SHARED_PART, _PART = 8, 6


class Convention(Struct, frozen=True):
    """How functions call each other: the registers with the first *arguments*, by number, and those that are *lost*.

    So are the stack's *pointer* and those with *results*; a call puts as many bytes on the stack as are *pushed*.
    """

    arguments: tuple[int, ...]
    lost: frozenset[int]
    pointer: int = RSP
    results: tuple[int, int] = (RAX, RDX)
    pushed: int = 8


# psABI of x86-64, section 3.2.3; https://learn.microsoft.com/cpp/build/x64-calling-convention ; Arm's AAPCS64
_SYSTEM_V = Convention((7, 6, 2, 1, 8, 9), frozenset({0, 1, 2, 6, 7, 8, 9, 10, 11}))
_WINDOWS = Convention((1, 2, 8, 9), frozenset({0, 1, 2, 8, 9, 10, 11}))
_ARM = Convention(tuple(range(9)), frozenset({*range(19), 30}), pointer=31, results=(0, 1), pushed=0)


def convention_of(machine: str, system: str) -> Convention:
    """How code for *machine* is called on *system*, as `vbuild.elf.code.CodeFile` has both."""
    if machine == "aarch64":
        return _ARM
    return _WINDOWS if system == "windows" else _SYSTEM_V


# 64 bits each of a vector register
Lanes = tuple[Value, ...]
NO_LANES: Lanes = (None,) * 8


_Cell = tuple[int, Value]
_NO_PART: dict[int, _Cell] = {}


class Stack:
    """The size and value at each place of a stack, in parts that stacks share until one of them writes there."""

    __slots__ = ("_own", "parts")

    def __init__(self, parts: dict[int, dict[int, _Cell]]) -> None:
        self.parts = parts
        self._own = set[int]()

    def copy(self) -> "Stack":
        self._own.clear()
        return Stack(self.parts.copy())

    def cells_from(self, lowest: int) -> dict[int, _Cell]:
        parts = (part for number, part in self.parts.items() if number >= lowest >> _SHARED_PART)
        return {address: cell for part in parts for address, cell in part.items() if address >= lowest}

    def cut(self, pointer: int) -> None:
        for address in [address for part in self.parts.values() for address in part if address < pointer]:
            del self[address]

    def differing(self, other: "Stack") -> list[int]:
        """The places here at which *other* has something else, or nothing."""
        differing = list[int]()
        for number, part in self.parts.items():
            if (theirs := other.parts.get(number, _NO_PART)) is not part:
                differing += [address for address, here in part.items() if theirs.get(address) is not here]
        return differing

    def get(self, address: int) -> _Cell | None:
        return self.parts.get(address >> _SHARED_PART, _NO_PART).get(address)

    def __contains__(self, address: int) -> bool:
        return address in self.parts.get(address >> _SHARED_PART, _NO_PART)

    def __getitem__(self, address: int) -> _Cell:
        return self.parts[address >> _SHARED_PART][address]

    def __setitem__(self, address: int, cell: _Cell) -> None:
        self._written(address)[address] = cell

    def __delitem__(self, address: int) -> None:
        part = self._written(address)
        del part[address]
        if not part:
            del self.parts[address >> _SHARED_PART]

    def _written(self, address: int) -> dict[int, _Cell]:
        number = address >> _SHARED_PART
        if number not in self._own or number not in self.parts:
            self._own.add(number)
            self.parts[number] = self.parts.get(number, _NO_PART).copy()
        return self.parts[number]

    def update(self, cells: dict[int, _Cell]) -> None:
        for address, cell in cells.items():
            self[address] = cell


class State(Struct):
    """What is known at one instruction."""

    registers: list[Value] = field(default_factory=lambda: [STACK if number == RSP else None for number in range(16)])
    vectors: dict[int, Lanes] = {}
    stack: Stack = field(default_factory=lambda: Stack({}))
    flags: "Compared | Chained | None" = None
    facts: int = 0
    # the variable that the value in a register, by number, comes from; variables that have lost their first value
    source: tuple[int, tuple[int, int]] | None = None
    changed: frozenset[tuple[int, int]] = frozenset()

    def copy(self, facts: int = 0) -> "State":
        return State(
            self.registers.copy(),
            self.vectors.copy(),
            self.stack.copy(),
            self.flags,
            self.facts | facts,
            self.source,
            self.changed,
        )


class Compared(Struct, frozen=True):
    """The flags after a comparison of two values of *size* bytes; *only* these conditions are known if given.

    *location* says which register, by number, or place on the stack had the first value, *source* which variable.
    """

    left: Value
    right: Value
    size: int
    location: int | None = None
    only: frozenset[int] | None = None
    source: tuple[int, int] | None = None


class Chained(Struct, frozen=True):
    """The flags of a comparison *then* where *condition* held before, of *before*; and elsewhere conditions that hold.

    Arm's ``ccmp`` makes them.
    """

    before: "Compared | Chained | None"
    condition: int
    then: Compared
    elsewhere: frozenset[int]
    location: None = None

    def shown_by(self, condition: int) -> int:
        compared = shown_by(self.before, self.condition) | shown_by(self.then, condition)
        if condition not in self.elsewhere:
            return compared
        return compared & shown_by(self.before, negated(self.condition))


class Operand(Struct, frozen=True):
    """An operand of *size* bytes: a register, a number, or what stands in memory; nothing of these if not followed.

    A general register has a *number*, and bits *below* it; any other one is part of the *register*.
    """

    size: int
    number: int | None = None
    below: int = 0
    register: int = 0
    immediate: int | None = None
    is_memory: bool = False


class Memory(Struct, frozen=True):
    """How an instruction makes an address: the *fixed* one, or from registers by number; not one of a thread."""

    fixed: int | None = None
    base: int | None = None
    index: int | None = None
    shift: int = 0
    displacement: int = 0
    is_of_thread: bool = False


class Effects(Struct, frozen=True):
    """The registers that an instruction reads and writes, and whether it does so in memory."""

    read: tuple[int, ...]
    written: tuple[int, ...]
    memory: int | None
    reads_memory: bool
    writes_memory: bool
    changes_flags: bool


def _nothing(*_: object) -> None:
    pass


class Operation(Struct):
    """An instruction at an address of the program, taken apart once because it runs again and again.

    Control goes on to *following*, or to *target* if that is not 0; where *is_joined*, other paths may come in. What
    has a lower *number* in the same piece runs first. Where no instruction stands, it is None.
    """

    instruction: Any
    module: Any
    is_joined: bool
    number: int
    flow: int = 0
    following: int = 0
    target: int = 0
    run: Callable[[Any, "Operation", State], None] = _nothing
    operands: tuple[Operand, ...] = ()
    memory: Memory = Memory()
    mnemonic: int = 0
    condition: int = 0
    is_twice: bool = False
    effects: Effects | None = None

    @property
    def size(self) -> int:
        """The bytes of the first operand."""
        return self.operands[0].size


CC = ConditionCode
ZERO_SIGN = frozenset({CC.E, CC.NE, CC.S, CC.NS})
CARRY = frozenset({CC.B, CC.AE})
_SWAPPED: dict[int, int] = {CC.A: CC.B, CC.B: CC.A, CC.AE: CC.BE, CC.BE: CC.AE, CC.G: CC.L, CC.L: CC.G, CC.GE: CC.LE}
_SWAPPED |= {CC.LE: CC.GE, CC.E: CC.E, CC.NE: CC.NE}


def negated(condition: int) -> int:
    return ((condition - 1) ^ 1) + 1


def _signed(number: int, size: int) -> int:
    sign = 1 << (8 * size - 1)
    return number if tag(number) else ((number & ((sign << 1) - 1)) ^ sign) - sign


TESTS: dict[int, Callable[[int, int, int], bool]] = {
    CC.E: lambda a, b, _: a == b,
    CC.NE: lambda a, b, _: a != b,
    CC.A: lambda a, b, _: a > b,
    CC.AE: lambda a, b, _: a >= b,
    CC.B: lambda a, b, _: a < b,
    CC.BE: lambda a, b, _: a <= b,
    CC.G: lambda a, b, size: _signed(a, size) > _signed(b, size),
    CC.GE: lambda a, b, size: _signed(a, size) >= _signed(b, size),
    CC.L: lambda a, b, size: _signed(a, size) < _signed(b, size),
    CC.LE: lambda a, b, size: _signed(a, size) <= _signed(b, size),
    CC.S: lambda a, b, size: _signed(a - b, size) < 0,
    CC.NS: lambda a, b, size: _signed(a - b, size) >= 0,
}


def shown_by(flags: Compared | Chained | None, condition: int) -> int:
    if isinstance(flags, Chained):
        return flags.shown_by(condition)
    if flags is None or (flags.only and condition not in flags.only) or condition not in TESTS:
        return 0
    return _shown(flags.left, flags.right, flags.size, condition)


@lru_cache(maxsize=1 << 16)
def _shown(left: Value, right: Value, size: int, condition: int) -> int:
    first, second = values.cases_of(left), values.cases_of(right)
    if first is not None and second is not None and len(first) * len(second) <= _MOST_PAIRS:
        shown = EVERY
        for a, a_facts in first.items():
            for b, b_facts in second.items():
                if TESTS[condition](a, b, size):
                    shown &= a_facts | b_facts
        return shown
    if isinstance(left, int):
        left, right, condition = right, left, _SWAPPED.get(condition, CC.NONE)
    if not isinstance(right, int) or tag(right):
        return 0
    return _shown_by_number(left, right, size, condition)


def _shown_by_number(value: Value, number: int, size: int, condition: int) -> int:  # noqa: PLR0911  # one a condition
    sign = values.bits_of(value)[8 * size - 1]
    is_unsigned = sign[0] == EVERY
    if condition == CC.E:
        return values.shown_equal(value, number)
    if condition == CC.NE:
        return values.shown_different(value, number)
    if number == 0 and condition in {CC.L, CC.S}:
        return sign[0]
    if number == 0 and condition in {CC.GE, CC.NS}:
        return sign[1]
    if number == 0 and condition == CC.G:
        return sign[1] | values.shown_nonzero(values.truncated(value, size))
    if is_unsigned and number >> (8 * size - 1) == 0:
        signless: dict[int, int] = {CC.G: CC.A, CC.GE: CC.AE, CC.L: CC.B, CC.LE: CC.BE}
        condition = signless.get(condition, condition)
    if condition in {CC.A, CC.AE}:
        number -= condition == CC.AE
        return values.shown_above(value, number) if number >= 0 else 0
    if condition in {CC.B, CC.BE}:
        number -= condition == CC.B
        return values.shown_up_to(value, number) if number >= 0 else EVERY
    return 0


def _registers() -> dict[int, tuple[int, int, int]]:
    """The general registers: number, size in bytes, and the bits below it."""
    registers = {}
    for name, register in vars(Register).items():
        # the stubs say enum, the values are plain integers
        if isinstance(register, int) and RegisterExt.is_gpr(register):  # type: ignore[arg-type]
            full, size = RegisterExt.full_register(register), RegisterExt.size(register)  # type: ignore[arg-type]
            registers[register] = (full - Register.RAX, size, 8 * (name in {"AH", "BH", "CH", "DH"}))
    return registers


GENERAL = _registers()
WRITES = {OpAccess.WRITE, OpAccess.COND_WRITE, OpAccess.READ_WRITE, OpAccess.READ_COND_WRITE}
INFO = InstructionInfoFactory()
CALLS = frozenset({FlowControl.CALL, FlowControl.INDIRECT_CALL})
INDIRECT = frozenset({FlowControl.INDIRECT_CALL, FlowControl.INDIRECT_BRANCH})


def general(register: int) -> int | None:
    """The number of the general register that *register* is, or is part of; else None."""
    return GENERAL[register][0] if register in GENERAL else None


def is_uneven(address: int, size: int) -> bool:
    """Whether *size* bytes at *address* are of the kind that is rare on stacks: long, or not at a multiple of four."""
    return size > _WORD or address & 3 != 0


class Uneven:
    """The places that some stack has with all that `is_uneven`, by the parts of the stack that they reach into."""

    def __init__(self) -> None:
        self._parts: dict[int, set[int]] = {}

    def add(self, address: int, size: int = _WORD) -> None:
        for part in range(address >> _PART, (address + size - 1 >> _PART) + 1):
            self._parts.setdefault(part, set()).add(address)

    def update(self, addresses: Iterable[int]) -> None:
        """Add *addresses* with a word each at most."""
        for address in addresses:
            self.add(address)

    def near(self, start: int, stop: int) -> Iterable[int]:
        """The places that may reach into the bytes from *start* to *stop*, and others."""
        first, last = start >> _PART, max(stop - 1, start) >> _PART
        if first == last:
            return self._parts.get(first, ())
        return set[int]().union(*(self._parts.get(part, ()) for part in range(first, last + 1)))


def overlapping(stack: Stack, address: int, size: int, uneven: Uneven) -> list[int]:
    """The places on the *stack* that have one of the *size* bytes at *address*; all that `is_uneven` are *uneven*."""
    stop, near, number, part = address + size, list[int](), -1, _NO_PART
    for at in range(address - _HALF & -_HALF, stop, _HALF):
        if at >> _SHARED_PART != number:
            number = at >> _SHARED_PART
            part = stack.parts.get(number, _NO_PART)
        if at in part and at + part[at][0] > address:
            near.append(at)
    for at in uneven.near(address, stop):
        if at < stop and (cell := stack.get(at)) and at + cell[0] > address and at not in near:
            near.append(at)
    return near


def loaded(stack: Stack, address: int, size: int, uneven: Uneven) -> Value:
    """*size* bytes at *address*, from a value there or around it; as in `overlapping`."""
    if (exact := stack.get(address)) and exact[0] == size:
        return exact[1]
    near = overlapping(stack, address, size, uneven)
    for start in near:
        length, value = stack[start]
        if start <= address and address + size <= start + length:
            if length > _WORD:
                return 0 if value == 0 else values.lossy(value)
            return values.truncated(values.shifted(value, 8 * (address - start), "shr", 8), min(size, 8))
    near.sort()
    parts = [(at, *stack[at]) for at in near]
    ends = [address, *(at + length for at, length, _ in parts)]
    if size <= _WORD and [*near, address + size] == ends:
        joined: Value = 0
        for start, length, value in parts:
            shifted = values.shifted(values.truncated(value, length), 8 * (start - address), "shl", 8)
            joined = values.bitwise(joined, shifted, "or")
        return joined
    return values.lossy(*(value for _, _, value in parts))


def remainders(start: int, size: int, value: Value, without: range) -> dict[int, tuple[int, Value]] | None:
    """What is left of *size* bytes with *value* at *start* around the bytes *without*; None if it cannot be split."""
    if value is None or (value != 0 and (size > _WORD or any(map(tag, values.cases_of(value) or ())))):
        return None
    remainders = {}
    for low, high in ((start, min(without.start, start + size)), (max(without.stop, start), start + size)):
        at = low
        while at < high:
            length = next(length for length in (8, 4, 2, 1) if at + length <= high and not (at - low) % length)
            part = 0 if value == 0 else values.truncated(values.shifted(value, 8 * (at - start), "shr", 8), length)
            remainders[at] = (length, part)
            at += length
    return remainders


def split_like(stack: Stack, other: Stack) -> Iterator[int]:
    """Split what stands on the *stack* in one piece where the *other* one has several; where the pieces are then."""
    for address in stack.differing(other):
        size, value = stack[address]
        if address in other and other[address][0] < size and size > _HALF:
            length = other[address][0]
            rest = remainders(address, size, value, range(address, address + length))
            if rest is not None:
                part = 0 if value == 0 else values.truncated(value, length)
                stack.update(rest)
                stack[address] = (length, part)
                yield from rest
