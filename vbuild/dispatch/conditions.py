"""Whether code runs for certain: by conditions that have nothing to do with the processor, if by any.

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
from vbuild.elf.iced import FlowControl, Instruction, MemorySizeExt, Mnemonic, OpAccess, OpKind, Register

# bytes of code that is looked through, instructions that a value is made of, and branches on which one depends
_LONGEST, _MOST_SOURCES, _DEEPEST = 16_384, 2_000, 40
# the number that stands for the flags among registers, and that of RBP; bytes of a register that is written as a whole
_FLAGS, _FRAME, _HALF = -1, 5, 4
# imports that tell what the processor has, or may
_ASKERS = (
    frozenset({"getauxval", "sysconf", "getenv", "secure_getenv", "dlsym", "__x86_get_cpuid_feature_leaf"}) | ASKERS
)
_SPECIAL = frozenset({Mnemonic.CPUID, Mnemonic.XGETBV, Mnemonic.RDTSC, Mnemonic.RDTSCP, Mnemonic.XTEST})
_CLEARED = frozenset({Mnemonic.XOR, Mnemonic.SUB})
_TO_SLOT = frozenset({Mnemonic.MOV, Mnemonic.ADD, Mnemonic.SUB, Mnemonic.INC, Mnemonic.DEC})
_BRANCHES = frozenset({FlowControl.CONDITIONAL_BRANCH, FlowControl.UNCONDITIONAL_BRANCH})
_GO_ON = CALLS | {FlowControl.NEXT, FlowControl.CONDITIONAL_BRANCH, FlowControl.XBEGIN_XABORT_XEND}
Needs = frozenset[int] | None
_Slot = tuple[int, int]


class Conditions:
    """What decides whether the instructions of one piece run."""

    def __init__(self, program: Program, piece: Piece, references: References, understood: Collection[int]) -> None:
        """*understood* are branches at which is known what the CPU has on one side, which did not suffice."""
        self._program, self._piece, self._references, self._understood = program, piece, references, understood
        self._module, self._convention = program.module(piece.address), program.convention
        is_short = piece.end - piece.address <= _LONGEST
        self.instructions: list[Instruction] = list(self._module.instructions(piece)) if is_short else []
        # by address; none if the piece is too long to be looked through
        self.numbers = {one.ip: number for number, one in enumerate(self.instructions)}
        self._after = [self._following(one) for one in self.instructions]
        self._before: list[list[int]] = [[] for _ in self.instructions]
        # what nothing leads to is padding, or handles errors, but where a jump may lead anywhere
        is_open = any(one.flow_control == FlowControl.INDIRECT_BRANCH for one in self.instructions)
        for number in range(len(self.instructions)) if is_open else sorted(self._entered()):
            for target in self._after[number]:
                if target is not None:
                    self._before[target].append(number)
        self._branches = [number for number, following in enumerate(self._after) if len(following) > 1]
        # whether memory decides in some condition that was looked at: a field, an argument on the stack, a pointer
        self.reads_memory = False
        self._past: dict[int, set[int]] = {}
        self._found: dict[int, Needs] = {}
        self._written: list[frozenset[int] | None] = [None] * len(self.instructions)

    def _entered(self) -> set[int]:
        waiting, found = ([0], {0}) if self.instructions else ([], set[int]())
        while waiting:
            new = {target for target in self._after[waiting.pop()] if target is not None} - found
            found |= new
            waiting += new
        return found

    def _following(self, instruction: Instruction) -> tuple[int | None, ...]:
        """The instructions that *instruction* leads to, by number; None is outside the piece."""
        flow = instruction.flow_control
        if flow in CALLS and self._is_endless(instruction):
            return (None,)
        found = [instruction.next_ip] if flow in _GO_ON else []
        if flow in _BRANCHES:
            found.append(instruction.near_branch_target)
        return tuple(self.numbers.get(place) for place in found) or (None,)

    def _is_endless(self, call: Instruction) -> bool:
        target = self.destination(call)
        if isinstance(target, str):
            return target in ENDLESS
        if target is None or target >= LEAVES:
            return False
        module = self._program.module(target)
        called = module.piece(target)
        if called is None or called.end - called.address > _LONGEST:
            return False
        flows = {one.flow_control for one in module.instructions(called)}
        leaving = any(one.flow != FlowControl.CALL and one.is_branch for one in module.shape(called).outward)
        return not (leaving or flows & {FlowControl.RETURN, FlowControl.INDIRECT_BRANCH})

    def destination(self, instruction: Instruction) -> int | str | None:
        """Where the call or jump *instruction* always leads; else None."""
        base = self._module.base
        if instruction.near_branch_target:
            return self._program.destination(base + instruction.near_branch_target)
        if instruction.flow_control in INDIRECT and instruction.is_ip_rel_memory_operand:
            place = instruction.ip_rel_memory_address
            if self._module.is_constant(place) or place in self._module.imports:
                return self._program.behind(self._module, place)
        return None

    def sites(self, start: int, stop: int) -> Iterator[tuple[int, bool]]:
        """The numbers of the instructions that lead to *start*, and whether they go there.

        The others hand an address from there to *stop* to other libraries.
        """
        base = self._module.base
        for number, one in enumerate(self.instructions):
            if self.destination(one) == start:
                yield number, True
            elif one.is_ip_rel_memory_operand and one.flow_control == FlowControl.NEXT:
                place = one.ip_rel_memory_address
                target = base + place if one.mnemonic == Mnemonic.LEA else self._program.behind(self._module, place)
                if isinstance(target, int) and start <= target < stop and self._is_handed_out(number):
                    yield number, False
        if self.instructions and self._piece.end == start and self._module.shape(self._piece).falls_through:
            yield len(self.instructions) - 1, True

    def _is_handed_out(self, number: int) -> bool:
        """Whether the register that instruction *number* writes is an argument of an import's call."""
        register = general(self.instructions[number].op0_register)
        for one in self.instructions[number + 1 :]:
            if one.flow_control != FlowControl.NEXT:
                return register in self._convention.arguments and isinstance(self.destination(one), str)
            if register in self._written_by(one):
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
        for branch in self._branches:
            if len({target is None or block_of[target] in past for target in self._after[branch]}) > 1:
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
        found = {0}
        for number, following in enumerate(self._after):
            if following != (number + 1,):
                found.update((number + 1, *(target for target in following if target is not None)))
        return sorted(found - {len(self.instructions)})

    @cached_property
    def _block_of(self) -> list[int]:
        ends = (*self._starts[1:], len(self.instructions))
        lengths = (end - start for start, end in zip(self._starts, ends, strict=True))
        return [block for block, length in enumerate(lengths) for _ in range(length)]

    @cached_property
    def _ways(self) -> tuple[list[int], list[list[int]]]:
        """The blocks whose end leaves the piece, and the predecessors of each block."""
        block_of = self._block_of
        leaving = [block_of[number] for number, following in enumerate(self._after) if None in following]
        return leaving, [[block_of[one] for one in self._before[start]] for start in self._starts]

    def _leading_past(self, block: int) -> set[int]:
        """The blocks from which the piece can be left without *block*."""
        if block not in self._past:
            leaving, before = self._ways
            waiting = [one for one in leaving if one != block]
            # it is left out as if it had been found
            found = {block, *waiting}
            while waiting:
                new = [one for one in before[waiting.pop()] if one not in found]
                found.update(new)
                waiting += new
            found.remove(block)
            self._past[block] = found
        return self._past[block]

    def source(self, number: int, register: int) -> Needs:
        """The arguments that the *register* is made of in front of an instruction; None for what is not plain."""
        waiting: list[tuple[int, int | _Slot]] = [(number, register)]
        seen = set(waiting)
        found = set[int]()
        while waiting:
            at, what = waiting.pop()
            if len(seen) > _MOST_SOURCES or (at and not self._before[at]):
                return None
            if at == 0:
                if isinstance(what, tuple) or what not in self._convention.arguments:
                    return None
                found.add(what)
            for before in self._before[at]:
                if isinstance(what, int) and what not in self._written_at(before):
                    sources: list[int | _Slot] | None = [what]
                else:
                    sources = self._made_of(before, what)
                if sources is None:
                    return None
                for one in sources:
                    if (before, one) not in seen:
                        seen.add((before, one))
                        waiting.append((before, one))
        return frozenset(found)

    def _written_at(self, number: int) -> frozenset[int]:
        written = self._written[number]
        if written is None:
            written = self._written[number] = self._written_by(self.instructions[number])
        return written

    def _made_of(self, number: int, what: int | _Slot) -> list[int | _Slot] | None:
        """What has to be plain for *what* to be plain after an instruction that writes it; None if it never is."""
        one = self.instructions[number]
        if isinstance(what, tuple):
            return self._made_in_slot(one, what)
        if one.flow_control in CALLS:
            target = self.destination(one)
            return [] if what == RAX and isinstance(target, str) and target not in _ASKERS else None
        return self._read_by(one, keeps=what if _keeps_some(one, what) else None)

    def _written_by(self, one: Instruction) -> frozenset[int]:
        if one.flow_control in CALLS:
            target = self.destination(one)
            changed = self._convention.lost
            if isinstance(target, int) and target < LEAVES:
                changed = self._references.registers(target).changed
            return frozenset({*changed, RAX, _FLAGS})
        numbers = (general(used.register) for used in _used(one) if used.access in WRITES)
        flags = {_FLAGS} if one.rflags_modified else set[int]()
        return frozenset(flags | {number for number in numbers if number is not None})

    def _read_by(self, one: Instruction, keeps: int | None) -> list[int | _Slot] | None:
        if one.mnemonic in _SPECIAL:
            return None
        if one.mnemonic in _CLEARED and one.op1_kind == OpKind.REGISTER and one.op0_register == one.op1_register:
            return []
        found: list[int | _Slot] = [] if keeps is None else [keeps]
        if one.rflags_read:
            found.append(_FLAGS)
        info = INFO.info(one)
        is_loaded = any(each.access not in {OpAccess.WRITE, OpAccess.NO_MEM_ACCESS} for each in info.used_memory())
        if is_loaded:
            slot = self._slot(one)
            if slot is not None:
                found.append(slot)
            elif not (one.is_ip_rel_memory_operand and self._module.is_constant(one.ip_rel_memory_address)):
                self.reads_memory |= not one.is_ip_rel_memory_operand
                return None
        for each in _used(one):
            number = general(each.register)
            if each.access == OpAccess.WRITE or (is_loaded and number == _FRAME):
                continue
            if number is None:
                return None
            found.append(number)
        return found

    # places on the stack, as code has them that is not optimised

    def _slot(self, one: Instruction) -> _Slot | None:
        if one.memory_base != Register.RBP or one.memory_index != Register.NONE or not self._has_frame:
            return None
        displacement = one.memory_displacement - (one.memory_displacement >> 63 << 64)
        return (displacement, int(MemorySizeExt.size(one.memory_size))) if displacement < 0 else None

    @property
    def _has_frame(self) -> bool:
        return any(
            one.mnemonic == Mnemonic.MOV and one.op0_register == Register.RBP and one.op1_register == Register.RSP
            for one in self.instructions[:8]
        )

    def _made_in_slot(self, one: Instruction, slot: _Slot) -> list[int | _Slot] | None:
        own = self._slot(one)
        if own is None or own[0] >= slot[0] + slot[1] or slot[0] >= own[0] + max(own[1], 1):
            is_pointer = own is not None and own[0] <= slot[0] and one.mnemonic == Mnemonic.LEA
            return None if is_pointer else [slot]
        if one.mnemonic == Mnemonic.LEA:
            return None
        accesses = {each.access for each in INFO.info(one).used_memory()}
        if accesses.isdisjoint(WRITES):
            return [slot]
        if own != slot or one.mnemonic not in _TO_SLOT:
            return None
        found: list[int | _Slot] = [] if one.mnemonic == Mnemonic.MOV else [slot]
        if one.op1_kind == OpKind.REGISTER:
            number = general(one.op1_register)
            return None if number is None else [*found, number]
        return found


def _used(instruction: Instruction) -> list[Any]:
    return list(INFO.info(instruction).used_registers())


def _keeps_some(instruction: Instruction, register: int) -> bool:
    if register == _FLAGS:
        return False
    return any(
        general(one.register) == register
        and (one.access != OpAccess.WRITE or GENERAL[one.register][1] < _HALF)
        and one.access in WRITES
        for one in _used(instruction)
    )
