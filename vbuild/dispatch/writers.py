"""Who may write to a variable, or behind a pointer: what instructions show without being run."""

from collections.abc import Iterator

from vbuild.dispatch.machine_state import CALLS, GENERAL, INFO, RAX, WRITES, general
from vbuild.dispatch.module import Module, Piece, displacement_of
from vbuild.dispatch.program import Program
from vbuild.dispatch.questions import Questions
from vbuild.dispatch.references import (
    BRANCHES,
    MOST_SEEN,
    NEAR,
    UNUSUAL,
    References,
)
from vbuild.elf.iced import FlowControl, Instruction, MemorySizeExt, Mnemonic, OpAccess, OpKind

# bytes of a register that are written as a whole; of a word
_HALF, _WORD = 4, 8


class Writers:
    """What the code of a program does to its variables, as far as its instructions show."""

    def __init__(self, program: Program, questions: Questions, references: References) -> None:
        self.program = program
        self._questions = questions
        self._references = references
        self._results_written: dict[tuple[int, int], bool] = {}

    def writers_of(self, module: Module, table: range, starts: range) -> Iterator[Piece]:
        """The pieces that may write to *table*: they write to it, or take an address of it, or one of *starts*."""
        near = range(min(table.start, starts.start), max(table.stop, starts.stop))
        for site in module.sites(near.start - 4, near.stop + NEAR):
            piece, instruction = module.piece(module.base + site), module.instruction_with(site)
            if piece is None or instruction is None or module.is_of_compiler(piece):
                continue
            start = instruction.ip_rel_memory_address
            if instruction.mnemonic == Mnemonic.LEA:
                is_near = start <= near.stop or _counts_back(module, piece, instruction, near)
                if is_near and self._may_write(module, piece, start, Mnemonic.LEA):
                    yield piece
                continue
            # a vector may begin in front of it
            is_near = start < table.stop and start + max(MemorySizeExt.size(instruction.memory_size), 1) > table.start
            if is_near and writes(instruction):
                yield piece
        # through a pointer that is kept in data
        for slot in module.slots_to(table.start, table.stop):
            yield from (
                user
                for user in self._questions.users(module, module.table(slot))
                if self._may_write(module, user, slot, Mnemonic.MOV)
            )
        for other, slot in self.program.importers(module, table):
            yield from self._questions.users_of_slot(other, slot)

    def users_of_variable(self, module: Module, address: int) -> Iterator[Piece]:
        """The pieces that use the variable at *address*, or make an address from which it may be reached."""
        table = module.table(address)
        low = table.start if module.object_at(address) else address - NEAR
        for site in module.sites(min(low, table.start) - 4, table.stop):
            instruction = module.instruction_with(site)
            if instruction is None or not (
                instruction.mnemonic == Mnemonic.LEA or instruction.ip_rel_memory_address in table
            ):
                continue
            if piece := module.piece(module.base + site):
                yield piece

    def _may_write(self, module: Module, piece: Piece, slot: int, how: int) -> bool:
        table = module.table(slot) if how == Mnemonic.MOV else range(0)
        for instruction in module.instructions(piece):
            if not instruction.is_ip_rel_memory_operand:
                continue
            at = instruction.ip_rel_memory_address
            behind = self.program.behind(module, at)
            if (at in table and instruction.mnemonic == Mnemonic.LEA) or (
                at not in table and isinstance(behind, int) and behind - module.base in table
            ):
                # by the address of the pointer, or of the table it is in
                return True
            if at != slot:
                continue
            if instruction.mnemonic == how and instruction.op0_kind == OpKind.REGISTER:
                number = general(instruction.op0_register)
                if number is None or not self._only_reads_through(module, piece, instruction.next_ip, number):
                    return True
            elif writes(instruction):
                return True
        return False

    def _only_reads_through(self, module: Module, piece: Piece, start: int, register: int) -> bool:
        """Whether all that *piece* does from *start* on with the address in *register* is to read from there.

        Each way is followed: what writes to the register on one of them does not on another. So is each copy.
        """
        waiting, seen = [(start, register)], set[tuple[int, int]]()
        while waiting:
            address, register = waiting.pop()
            if (address, register) in seen:
                continue
            seen.add((address, register))
            instruction = module.instruction(module.base + address)
            if instruction is None or len(seen) > MOST_SEEN:
                return False
            used = [use for use in INFO.info(instruction).used_registers() if general(use.register) == register]
            is_changed = any(use.access in WRITES and GENERAL[use.register][1] < _HALF for use in used)
            copy = _copied_to(instruction, register)
            if is_changed or (used and copy is None and not _only_reads(instruction, register)):
                return False
            if copy is not None:
                waiting.append((instruction.next_ip, copy))
            if not any(use.access in WRITES for use in used):
                following = self._following(module, piece, instruction, register)
                if following is None:
                    return False
                waiting += ((target, register) for target in following)
        return True

    def callers_write(self, address: int, register: int) -> bool:
        """Whether callers of the function at *address* may write where the address in *register* leads.

        What code outside the wheel does with it is not asked, as it is not for variables.
        """
        key = (address, register)
        if key not in self._results_written:
            self._results_written[key] = False  # a function that ends by calling itself adds nothing
            module = self.program.module(address)
            start = address - module.base
            self._results_written[key] = bool(self.program.importers(module, range(start, start + 1))) or any(
                self._writes_to_result(user, address, register) for user in self._references.referring(address)
            )
        return self._results_written[key]

    def _writes_to_result(self, piece: Piece, address: int, register: int) -> bool:
        module = self.program.module(piece.address)
        for instruction in module.instructions(piece):
            target = instruction.near_branch_target or instruction.ip_rel_memory_address
            if not target or self.program.destination(module.base + target) != address:
                continue
            if instruction.flow_control in CALLS:
                if not self._only_reads_through(module, piece, instruction.next_ip, register):
                    return True
            elif instruction.flow_control not in BRANCHES or self.callers_write(piece.address, register):
                return True
        return False

    def _following(  # noqa: PLR0911  # one for each kind of flow
        self, module: Module, piece: Piece, instruction: Instruction, register: int
    ) -> list[int] | None:
        """Where *register* still has what it had at *instruction* of *piece*; None if it may get elsewhere."""
        flow, branch = instruction.flow_control, instruction.near_branch_target
        if flow == FlowControl.RETURN:
            if register == RAX:
                return None if self.callers_write(piece.address, register) else []
            return None if self._references.callers_use(piece.address, register) else []
        if flow in CALLS:
            target = self.program.destination(module.base + branch) if branch else None
            taken = self._references.taken(target)
            # code that handles errors finds there what no call changes
            if register in taken.arguments or (module.has_handlers and register not in self.program.convention.lost):
                return None
            # gcc's -fipa-ra keeps values in registers that a function does not change
            return [] if register in taken.changed else [instruction.next_ip]
        if flow == FlowControl.EXCEPTION:
            return []
        targets = [] if flow == FlowControl.UNCONDITIONAL_BRANCH else [instruction.next_ip]
        if flow in {FlowControl.CONDITIONAL_BRANCH, FlowControl.UNCONDITIONAL_BRANCH}:
            targets.append(branch)
        elif flow == FlowControl.INDIRECT_BRANCH and general(instruction.op_register(0)) == register:
            return None if register in self.program.convention.arguments else []
        elif flow != FlowControl.NEXT:
            return None
        inside = [target for target in targets if piece.address <= module.base + target < piece.end]
        # to other code, with the registers as they are
        others = (self.program.destination(module.base + target) for target in targets if target not in inside)
        return inside if all(self._is_unused_by(other, piece, register) for other in others) else None

    def _is_unused_by(self, other: int | str | None, piece: Piece, register: int) -> bool:
        """Whether neither *other*, to which *piece* jumps at its end, nor a caller reads *register*."""
        if not isinstance(other, int) or register in self._references.registers(other).arguments | UNUSUAL:
            return False
        return register in self._references.registers(other).changed or not self._references.callers_use(
            piece.address, register
        )


def _counts_back(module: Module, piece: Piece, instruction: Instruction, addresses: range) -> bool:
    """Whether *piece* makes an address of *addresses* from the one behind them that *instruction* makes.

    gcc makes the start of what is walked through from its end so.
    """
    end, register = instruction.ip_rel_memory_address, general(instruction.op0_register)
    return any(
        instruction.mnemonic == Mnemonic.LEA
        and general(instruction.memory_base) == register
        and end + displacement_of(instruction) in addresses
        for instruction in module.instructions(piece)
    )


def _only_reads(instruction: Instruction, register: int) -> bool:
    """Whether *instruction* takes *register* only to read from where it points."""
    if instruction.mnemonic == Mnemonic.LEA or instruction.is_string_instruction or writes(instruction):
        return False
    if instruction.flow_control in BRANCHES:
        # what stands there is called
        return True
    info = INFO.info(instruction)
    return all(
        general(instruction.op_register(index)) != register or info.op_access(index) == OpAccess.WRITE
        for index in range(instruction.op_count)
        if instruction.op_kind(index) == OpKind.REGISTER
    )


def _copied_to(instruction: Instruction, register: int) -> int | None:
    is_copy = (
        instruction.mnemonic == Mnemonic.MOV and instruction.op_kind(0) == instruction.op_kind(1) == OpKind.REGISTER
    )
    if not is_copy or general(instruction.op1_register) != register or GENERAL[instruction.op1_register][1] < _WORD:
        return None
    copy = general(instruction.op0_register)
    return None if copy == register else copy


def writes(instruction: Instruction) -> bool:
    info = INFO.info(instruction)
    return any(
        instruction.op_kind(index) == OpKind.MEMORY and info.op_access(index) in WRITES
        for index in range(instruction.op_count)
    )
