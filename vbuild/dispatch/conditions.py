"""Whether code certainly runs: nothing decides about it, or only conditions that have nothing to do with the processor.

    plain   a number, what another program hands over, what a library from outside returns, and what is made of these
    clear   an instruction that runs in any case, or where plain conditions hold, or the CPU has less than it needs

What stands in variables and structures, and what functions of the program return, may come from a question.
"""

from collections.abc import Collection, Iterator
from functools import cached_property
from typing import Any

from vbuild.dispatch.facts import ASKERS
from vbuild.dispatch.machine_state import CALLS, GENERAL, INDIRECT, INFO, RAX, WRITES, general
from vbuild.dispatch.module import ENDLESS, Piece
from vbuild.dispatch.program import LEAVES, Program
from vbuild.dispatch.references import References
from vbuild.elf.iced import FlowControl, Instruction, Mnemonic, OpAccess, OpKind

# bytes of code that is looked through, instructions that a value is made of, and branches on which one depends
_LONGEST, _MOST_SOURCES, _DEEPEST = 16_384, 2_000, 40
# the number that stands for the flags among registers; bytes of a register that is written as a whole
_FLAGS, _HALF = -1, 4
# imports that tell what the processor has, or may
_ASKERS = (
    frozenset({"getauxval", "sysconf", "getenv", "secure_getenv", "dlsym", "__x86_get_cpuid_feature_leaf"}) | ASKERS
)
_SPECIAL = frozenset({Mnemonic.CPUID, Mnemonic.XGETBV, Mnemonic.RDTSC, Mnemonic.RDTSCP, Mnemonic.XTEST})
_CLEARED = frozenset({Mnemonic.XOR, Mnemonic.SUB})
_BRANCHES = frozenset({FlowControl.CONDITIONAL_BRANCH, FlowControl.UNCONDITIONAL_BRANCH})
_GO_ON = CALLS | {FlowControl.NEXT, FlowControl.CONDITIONAL_BRANCH, FlowControl.XBEGIN_XABORT_XEND}
Needs = frozenset[int] | None


class Conditions:
    """What decides whether the instructions of one piece run."""

    def __init__(self, program: Program, piece: Piece, references: References, understood: Collection[int]) -> None:
        """*understood* are branches at which is known what the CPU has on one side, which did not suffice."""
        self._program, self._piece, self._references, self._understood = program, piece, references, understood
        self._module, self._convention = program.module(piece.address), program.convention
        is_short = piece.end - piece.address <= _LONGEST
        self.instructions: list[Instruction] = list(self._module.instructions(piece)) if is_short else []
        # by address; none if the piece is too long to be looked through
        self.numbers = {instruction.ip: number for number, instruction in enumerate(self.instructions)}
        # where control does not just go on: the instructions that follow, by number; None is outside the piece
        self._turns = {
            number: following
            for number, instruction in enumerate(self.instructions)
            if (following := self._following(instruction)) != (number + 1,)
        }
        self._branches = [number for number, following in self._turns.items() if len(following) > 1]
        # whether memory decides in some condition that was looked at: a field, an argument on the stack, a pointer
        self.reads_memory = False
        self._past: dict[int, set[int | None]] = {}
        self._found: dict[int, Needs] = {}
        self._written: dict[int, frozenset[int]] = {}

    def _following(self, instruction: Instruction) -> tuple[int | None, ...]:
        flow, numbers = instruction.flow_control, self.numbers
        if flow == FlowControl.NEXT:
            return (numbers.get(instruction.next_ip),)
        target = self.destination(instruction) if flow in CALLS else None
        if isinstance(target, int) and target < LEAVES and self._program.module(target).has_no_end(target):
            return (None,)
        if target in ENDLESS:
            return (None,)
        following = [instruction.next_ip] if flow in _GO_ON else []
        if flow in _BRANCHES:
            following.append(instruction.near_branch_target)
        return tuple(map(numbers.get, following)) or (None,)

    def destination(self, instruction: Instruction) -> int | str | None:
        """Where the call or jump *instruction* always leads; else None."""
        base = self._module.base
        if instruction.near_branch_target:
            return self._program.destination(base + instruction.near_branch_target)
        if instruction.flow_control in INDIRECT and instruction.is_ip_rel_memory_operand:
            slot = instruction.ip_rel_memory_address
            if self._module.is_constant(slot) or slot in self._module.imports:
                return self._program.behind(self._module, slot)
        return None

    def sites(self, start: int, stop: int) -> Iterator[tuple[int, bool]]:
        """The numbers of the instructions that lead to *start*, and whether they go there.

        The others hand an address from there to *stop* to other libraries.
        """
        base = self._module.base
        for number, instruction in enumerate(self.instructions):
            if self.destination(instruction) == start:
                yield number, True
            elif instruction.is_ip_rel_memory_operand and instruction.flow_control == FlowControl.NEXT:
                address = instruction.ip_rel_memory_address
                target = (
                    base + address
                    if instruction.mnemonic == Mnemonic.LEA
                    else self._program.behind(self._module, address)
                )
                if isinstance(target, int) and start <= target < stop and self._is_handed_out(number):
                    yield number, False
        if self.instructions and self._piece.end == start and self._module.shape(self._piece).falls_through:
            yield len(self.instructions) - 1, True

    def _is_handed_out(self, number: int) -> bool:
        """Whether the register that instruction *number* writes is an argument of an import's call."""
        register = general(self.instructions[number].op0_register)
        for instruction in self.instructions[number + 1 :]:
            if instruction.flow_control != FlowControl.NEXT:
                return register in self._convention.arguments and isinstance(self.destination(instruction), str)
            if register in self._written_by(instruction):
                return False
        return False

    def of(self, number: int, depth: int = 0) -> Needs:
        """The arguments, by register, that decide whether the instruction of that *number* runs; None if others may."""
        if number not in self._found:
            self._found[number] = None
            self._found[number] = self._of(number, depth)
        return self._found[number]

    def _of(self, number: int, depth: int) -> Needs:
        past, block_of = self._leading_past(self._block_of[number]), self._block_of
        if block_of[0] not in past:
            return frozenset()
        if depth > _DEEPEST:
            return None
        for branch, (first, *others) in self._sides:
            is_past = first in past
            if any((other in past) != is_past for other in others):
                needs, more = self._decides(branch), self.of(branch, depth + 1)
                if needs is not None and more is not None:
                    return needs | more
        return None

    def of_leading(self, number: int) -> Needs:
        needs = self.of(number)
        if needs is None or self.instructions[number].flow_control != FlowControl.CONDITIONAL_BRANCH:
            return needs
        more = self._decides(number)
        return None if more is None else needs | more

    def _decides(self, branch: int) -> Needs:
        """The arguments that decide which way the instruction *branch* goes; None if others may."""
        if self._module.base + self.instructions[branch].ip in self._understood:
            return frozenset()
        return self.source(branch, _FLAGS)

    @cached_property
    def _starts(self) -> list[int]:
        starts = {0, *(number + 1 for number in self._turns)}
        starts.update(target for following in self._turns.values() for target in following if target is not None)
        return sorted(starts - {len(self.instructions)})

    @cached_property
    def _block_of(self) -> list[int]:
        ends = (*self._starts[1:], len(self.instructions))
        lengths = (end - start for start, end in zip(self._starts, ends, strict=True))
        return [block for block, length in enumerate(lengths) for _ in range(length)]

    @cached_property
    def _sides(self) -> list[tuple[int, list[int | None]]]:
        """The branches, and the blocks they lead to; None is outside the piece."""
        block_of = self._block_of
        return [
            (branch, [None if target is None else block_of[target] for target in self._turns[branch]])
            for branch in self._branches
        ]

    @cached_property
    def _before(self) -> dict[int, list[int]]:
        """By the first instruction of a block: those that lead there."""
        starts = self._starts
        ends = [end - 1 for end in (*starts[1:], len(self.instructions))]
        following = [self._turns.get(end, (end + 1,)) for end in ends]
        # what nothing leads to is padding, or handles errors, but where a jump may lead anywhere
        if not any(instruction.flow_control == FlowControl.INDIRECT_BRANCH for instruction in self.instructions):
            waiting, entered = [0], {0}
            while waiting:
                after = following[self._block_of[waiting.pop()]]
                new = {target for target in after if target is not None} - entered
                entered |= new
                waiting += new
            following = [after if start in entered else () for start, after in zip(starts, following, strict=True)]
        leading: dict[int, list[int]] = {start: [] for start in starts}
        for end, after in zip(ends, following, strict=True):
            for target in after:
                if target is not None:
                    leading[target].append(end)
        return leading

    @cached_property
    def _ways(self) -> tuple[list[int], list[list[int]]]:
        """The blocks whose end leaves the piece, and the predecessors of each block."""
        block_of = self._block_of
        leaving = [block_of[number] for number, following in self._turns.items() if None in following]
        return leaving, [[block_of[end] for end in self._before[start]] for start in self._starts]

    def _leading_past(self, block: int) -> set[int | None]:
        """The blocks from which the piece can be left without *block*, and None for what is outside."""
        if block not in self._past:
            leaving, before = self._ways
            waiting = [last for last in leaving if last != block]
            # it is left out as if it had been reached
            reached: set[int | None] = {None, block, *waiting}
            while waiting:
                for predecessor in before[waiting.pop()]:
                    if predecessor not in reached:
                        reached.add(predecessor)
                        waiting.append(predecessor)
            reached.remove(block)
            self._past[block] = reached
        return self._past[block]

    def source(self, number: int, register: int) -> Needs:
        """The arguments that the *register* is made of in front of an instruction; None for what is not plain."""
        waiting: list[tuple[int, int]] = [(number, register)]
        seen = set(waiting)
        arguments = set[int]()
        while waiting:
            at, location = waiting.pop()
            # back to where it is written, or paths meet
            while at not in self._before and location not in self._written_at(at - 1):
                at -= 1
            leading = self._before.get(at, (at - 1,))
            if len(seen) > _MOST_SOURCES or (at and not leading):
                return None
            if at == 0:
                if location not in self._convention.arguments:
                    return None
                arguments.add(location)
            for before in leading:
                is_kept = location not in self._written_at(before)
                sources = [location] if is_kept else self._made_of(before, location)
                if sources is None:
                    return None
                new = [(before, source) for source in sources if (before, source) not in seen]
                waiting += new
                seen.update(new)
        return frozenset(arguments)

    def _written_at(self, number: int) -> frozenset[int]:
        if number not in self._written:
            self._written[number] = self._written_by(self.instructions[number])
        return self._written[number]

    def _made_of(self, number: int, location: int) -> list[int] | None:
        """What has to be plain for *location* to be plain after an instruction that writes it; None if it never is."""
        instruction = self.instructions[number]
        if instruction.flow_control in CALLS:
            target = self.destination(instruction)
            return [] if location == RAX and isinstance(target, str) and target not in _ASKERS else None
        return self._read_by(instruction, keeps=location if _keeps_some(instruction, location) else None)

    def _written_by(self, instruction: Instruction) -> frozenset[int]:
        if instruction.flow_control in CALLS:
            target = self.destination(instruction)
            changed = self._convention.lost
            if isinstance(target, int) and target < LEAVES:
                changed = self._references.registers(target).changed
            return frozenset({*changed, RAX, _FLAGS})
        numbers = (general(used.register) for used in _used(instruction) if used.access in WRITES)
        flags = {_FLAGS} if instruction.rflags_modified else set[int]()
        return frozenset(flags | {number for number in numbers if number is not None})

    def _read_by(self, instruction: Instruction, keeps: int | None) -> list[int] | None:
        if instruction.mnemonic in _SPECIAL:
            return None
        if (
            instruction.mnemonic in _CLEARED
            and instruction.op1_kind == OpKind.REGISTER
            and instruction.op0_register == instruction.op1_register
        ):
            return []
        sources: list[int] = [] if keeps is None else [keeps]
        if instruction.rflags_read:
            sources.append(_FLAGS)
        info = INFO.info(instruction)
        is_loaded = any(use.access not in {OpAccess.WRITE, OpAccess.NO_MEM_ACCESS} for use in info.used_memory())
        if is_loaded and not (
            instruction.is_ip_rel_memory_operand and self._module.is_constant(instruction.ip_rel_memory_address)
        ):
            self.reads_memory |= not instruction.is_ip_rel_memory_operand
            return None
        for use in _used(instruction):
            number = general(use.register)
            if use.access == OpAccess.WRITE:
                continue
            if number is None:
                return None
            sources.append(number)
        return sources


def _used(instruction: Instruction) -> list[Any]:
    return list(INFO.info(instruction).used_registers())


def _keeps_some(instruction: Instruction, register: int) -> bool:
    if register == _FLAGS:
        return False
    return any(
        general(use.register) == register
        and (use.access != OpAccess.WRITE or GENERAL[use.register][1] < _HALF)
        and use.access in WRITES
        for use in _used(instruction)
    )
