"""Who may write to a variable, or behind a pointer: what instructions show without being run."""

from collections.abc import Iterable, Iterator

from vbuild.dispatch.machine_state import CALLS, GENERAL, INDIRECT, INFO, RAX, WRITES, general
from vbuild.dispatch.module import Module, Piece, displacement_of
from vbuild.dispatch.program import LEAVES, WRITTEN, Program
from vbuild.dispatch.questions import Questions
from vbuild.dispatch.references import (
    BRANCHES,
    ENDS,
    FRAME_POINTER,
    MOST_SEEN,
    NEAR,
    STACK_POINTER,
    UNUSUAL,
    References,
)
from vbuild.elf.iced import FlowControl, Instruction, MemorySizeExt, Mnemonic, OpAccess, OpKind

# bytes of a register that are written as a whole; of a word
_HALF, _WORD = 4, 8
# the register by which string instructions write, and how far a pointer is followed, in bytes
_TO, _FURTHEST = 7, 512
_Held = tuple[int, int | tuple[int, int], int]
_NUMBERS = frozenset({OpKind.IMMEDIATE8TO64, OpKind.IMMEDIATE32TO64})
# functions inside each other that are looked through for what they write
_MOST_WRITING = 2


class Writers:
    """What the code of a program does to its variables, as far as its instructions show."""

    def __init__(self, program: Program, questions: Questions, references: References) -> None:
        self.program = program
        self._questions = questions
        self._references = references
        self._results_written: dict[tuple[int, int], bool] = {}
        # by the place where a register has a pointer, that register, and bytes behind: whether code writes there
        self._writes: dict[tuple[int, int, range], bool] = {}

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
                is_left = is_near and not self._only_hands_over(module, piece, instruction, table)
                if is_left and self._may_write(module, piece, start, Mnemonic.LEA):
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

    def _only_hands_over(self, module: Module, piece: Piece, instruction: Instruction, table: range) -> bool:
        """Whether the address in front of *table* that *instruction* makes only goes to code that writes less far.

        What that does with it besides is not asked: it is not asked either of code that has the address of a variable.
        Rust's code hands over its constants so, which stand in front of the answers that it keeps.
        """
        register, start = general(instruction.op0_register), instruction.ip_rel_memory_address
        if register not in self.program.convention.arguments or start >= table.start:
            return False
        target = self._handed_to(module, piece, instruction.next_ip, register)
        called = self.program.module(target).piece(target) if isinstance(target, int) and target < LEAVES else None
        written = range(table.start - start, table.stop - start)
        return called is not None and not self._writes_behind(called, called.address, register, written)

    def _handed_to(self, module: Module, piece: Piece, start: int, register: int) -> int | str | None:
        """What is called with the *register* as it is at *start*, if nothing else is done before; else None."""
        address = module.base + start
        while address < piece.end and (instruction := module.instruction(address)):
            if instruction.flow_control == FlowControl.CALL:
                return self.program.destination(module.base + instruction.near_branch_target)
            used = INFO.info(instruction).used_registers()
            if instruction.flow_control != FlowControl.NEXT or any(general(use.register) == register for use in used):
                return None
            address = module.base + instruction.next_ip
        return None

    def _writes_behind(self, piece: Piece, start: int, register: int, written: range, depth: int = 0) -> bool:
        """Whether *piece* writes, from *start* on, to bytes *written* from where the pointer in the *register* leads.

        It counts if what is made of the pointer cannot be followed, but not what others do that find it in memory, nor
        what imports do that are not known to write as much as they are told.
        """
        key = (start, register, written)
        if key not in self._writes:
            self._writes[key] = False
            self._writes[key] = self._writes_through(piece, start, register, written, depth)
        return self._writes[key]

    def _writes_through(self, piece: Piece, start: int, register: int, written: range, depth: int) -> bool:
        module = self.program.module(piece.address)
        # where, what has the pointer: a register, or a place on the stack; and how far behind it that points
        waiting: list[_Held] = [(start, register, 0)]
        seen = set(waiting)
        while waiting:
            address, holder, far = waiting.pop()
            instruction = module.instruction(address)
            if len(seen) > MOST_SEEN or instruction is None:
                return len(seen) > MOST_SEEN
            left = range(written.start - far, written.stop - far)
            holders = _held_behind(instruction, holder, left)
            if holders is None:
                return True
            flow, branch = instruction.flow_control, instruction.near_branch_target
            targets = [] if flow in ENDS else [module.base + instruction.next_ip]
            if branch and flow not in CALLS:
                targets.append(module.base + branch)
            outside = [target for target in targets if not piece.address <= target < piece.end]
            called = self._called_by(module, instruction, outside)
            if isinstance(holder, int) and any(self._called_writes(target, holder, left, depth) for target in called):
                return True
            if flow in CALLS and holder in self.program.convention.lost:
                continue
            new = {
                (target, other, far + more)
                for target in targets
                if target not in outside
                for other, more in holders
                if abs(far + more) <= _FURTHEST
            }
            waiting += new - seen
            seen |= new
        return False

    def _called_writes(self, target: int | str | None, register: int, written: range, depth: int) -> bool:
        arguments = self.program.convention.arguments
        if register not in arguments or depth >= _MOST_WRITING:
            return False
        if isinstance(target, str):
            return register in [arguments[number] for number in WRITTEN.get(target, ())]
        if target is None or target >= LEAVES:
            return False
        piece = self.program.module(target).piece(target)
        return piece is not None and self._writes_behind(piece, target, register, written, depth + 1)

    def _called_by(
        self, module: Module, instruction: Instruction, outside: Iterable[int]
    ) -> Iterator[int | str | None]:
        """What *instruction* calls, or jumps to *outside* its piece, if known."""
        flow, branch = instruction.flow_control, instruction.near_branch_target
        if flow in INDIRECT and instruction.is_ip_rel_memory_operand:
            yield self.program.behind(module, instruction.ip_rel_memory_address)
        yield from map(self.program.destination, [module.base + branch] if branch and flow in CALLS else outside)

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


def _held_behind(  # noqa: C901, PLR0911  # one for each kind of use
    instruction: Instruction, holder: int | tuple[int, int], written: range
) -> list[tuple[int | tuple[int, int], int]] | None:
    """What has the pointer that *holder* has behind *instruction*, each with how far it points behind that.

    None if the *written* bytes from the pointer on are written to, or may be.
    """
    base, start = instruction.memory_base, displacement_of(instruction)
    is_move = instruction.mnemonic == Mnemonic.MOV
    if isinstance(holder, tuple):
        if (base, start) != holder or instruction.mnemonic == Mnemonic.LEA:
            return [(holder, 0)]
        if writes(instruction):
            return []
        copy = general(instruction.op0_register) if is_move else None
        return [(holder, 0)] if copy is None else [(holder, 0), (copy, 0)]
    if instruction.is_string_instruction and holder == _TO:
        return None
    unchanged: list[tuple[int | tuple[int, int], int]] = [(holder, 0)]
    used = [use for use in INFO.info(instruction).used_registers() if general(use.register) == holder]
    is_changed = any(use.access in WRITES for use in used)
    if general(base) == holder and instruction.mnemonic == Mnemonic.LEA:
        to = general(instruction.op0_register)
        if instruction.memory_index in GENERAL or to is None:
            return None
        return [(to, start)] if to == holder else [*unchanged, (to, start)]
    if writes(instruction) and holder in {general(base), general(instruction.memory_index)}:
        stop = start + max(int(MemorySizeExt.size(instruction.memory_size)), 1)
        is_indexed = instruction.memory_index in GENERAL
        if is_indexed or (start < written.stop and written.start < stop):
            return None
    if is_move and instruction.op1_kind == OpKind.REGISTER and general(instruction.op1_register) == holder:
        if instruction.op0_kind == OpKind.REGISTER:
            copy = _copied_to(instruction, holder)
            return unchanged if copy is None else [*unchanged, (copy, 0)]
        return [*unchanged, ((base, start), 0)] if base in STACK_POINTER | FRAME_POINTER else unchanged
    if is_changed and instruction.mnemonic in {Mnemonic.ADD, Mnemonic.SUB}:
        if instruction.op1_kind not in _NUMBERS:
            return None
        number = instruction.immediate(1)
        number -= number >> 63 << 64
        return [(holder, number if instruction.mnemonic == Mnemonic.ADD else -number)]
    return [] if is_changed else unchanged


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
