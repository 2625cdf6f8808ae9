"""Who calls a function, who may write to a variable, and which registers a function uses: what needs no running."""

from collections.abc import Iterator

from iced_x86 import FlowControl, Instruction, Mnemonic, OpAccess, OpKind

from vbuild.elf.cpu_questions import Questions
from vbuild.elf.machine_state import ARGUMENTS, GENERAL, INFO, LOST_IN_CALLS, RAX, WRITES
from vbuild.elf.module import Module, Piece, module_of_field
from vbuild.elf.operands import Registers
from vbuild.elf.program import Program

# bytes of code that is looked through, and functions inside each other in which is looked for what they read
_LONGEST, _MOST_CALLED = 8192, 3
_ALL_REGISTERS = Registers(frozenset(ARGUMENTS), LOST_IN_CALLS)
_CALLS = frozenset({FlowControl.CALL, FlowControl.INDIRECT_CALL})
# functions that may write to a variable, or call a function, before nothing is known of it
MOST_WRITERS = 64


class References(Questions):
    """What the code of a program does to its functions and variables, as far as its instructions show."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._registers: dict[int, Registers] = {}
        self._results_used: dict[int, bool] = {}

    def registers(self, address: int, depth: int = 0) -> Registers:
        """The registers that the function at *address* uses."""
        if address not in self._registers:
            # while it is looked at, and for what is called too deep, all
            self._registers[address] = _ALL_REGISTERS
            self._registers[address] = self._found_registers(address, depth)
        return self._registers[address]

    def _found_registers(self, address: int, depth: int) -> Registers:
        module = self.program.module(address)
        piece = module.piece(address)
        if piece is None or piece.address != address or depth > _MOST_CALLED or piece.end - piece.address > _LONGEST:
            return _ALL_REGISTERS
        read: set[int] = set()
        changed, first = {RAX}, set()
        is_first, calls = True, False
        for instruction in module.instructions(piece):
            for used in INFO.info(instruction).used_registers():
                if used.register in GENERAL:
                    number = GENERAL[used.register][0]
                    if used.access not in {OpAccess.WRITE, OpAccess.NO_MEM_ACCESS} and number not in first:
                        read.add(number)
                    if used.access in WRITES:
                        changed.add(number)
                        if is_first and used.access == OpAccess.WRITE:
                            first.add(number)
            if instruction.flow_control in {FlowControl.NEXT, FlowControl.RETURN}:
                continue
            branch = instruction.near_branch_target
            if not (branch and piece.address <= module.base + branch < piece.end):
                calls = True
                target = self.program.destination(module.base + branch) if branch else None
                handed = (
                    self.registers(target, depth + 1).arguments if isinstance(target, int) else _ALL_REGISTERS.arguments
                )
                read |= handed - first
            is_first = is_first and instruction.flow_control in {FlowControl.CALL, FlowControl.INDIRECT_CALL}
        # gcc's -fipa-ra keeps values in registers that a function does not change
        return Registers(_ALL_REGISTERS.arguments & read, LOST_IN_CALLS if calls else LOST_IN_CALLS & changed)

    def _known_callers(self, address: int) -> dict[int, Piece] | None:
        """The pieces that call the function at *address*; None if its address goes elsewhere, or there are too many."""
        module = self.program.module(address)
        piece, place = module.piece(address), address - module.base
        if piece is None or piece.address != address or address in module.entries or module.places_of(place, place + 1):
            return None
        if any(
            other is not module for other, _ in self.program.importers(module.exported_names(range(place, place + 1)))
        ):
            return None
        users = {user.address: user for user in self._users(module, range(place, place + 1))}
        users.update((user.address, user) for user in module.pieces_near(piece))
        found: dict[int, Piece] = {}
        for user in users.values():
            shape = module.shape(user)
            sites = [one for one in shape.outward if self.program.destination(one.target) == address]
            if any(not one.is_branch for one in sites) or (user.end == address and shape.falls_through):
                return None
            if sites:
                found[user.address] = user
        return found if len(found) <= MOST_WRITERS else None

    def is_result_used(self, address: int) -> bool:
        """Whether some caller of the function at *address* may use what it returns."""
        if address not in self._results_used:
            module = self.program.module(address)
            place = address - module.base
            places = module.places_of(place, place + 1)
            self._results_used[address] = (
                address in module.entries
                or not all(module.is_start_or_end(one) for one in places)
                or any(self._uses_result(user, address) for user in self._users(module, range(place, place + 1)))
            )
        return self._results_used[address]

    def _uses_result(self, piece: Piece, address: int) -> bool:
        """Whether *piece* may read what the function at *address* returns, or hands its address on."""
        module = self.program.module(piece.address)
        is_returned = False
        for instruction in module.instructions(piece):
            if is_returned:
                used = [
                    one.access for one in INFO.info(instruction).used_registers() if _number_of(one.register) == RAX
                ]
                if any(access != OpAccess.WRITE for access in used) or instruction.flow_control == FlowControl.RETURN:
                    return True
                is_returned = not used and instruction.flow_control == FlowControl.NEXT
                if not used and not is_returned and instruction.flow_control not in _CALLS:
                    return True
            target = instruction.near_branch_target or instruction.ip_rel_memory_address
            if target and self.program.destination(module.base + target) == address:
                if instruction.flow_control not in _CALLS:
                    return True
                is_returned = True
        return False

    def _field_users(self, key: tuple[int, int]) -> Iterator[tuple[Piece, Instruction]]:
        """The instructions that use the field with that *key*, or take its address, and the pieces they are in."""
        module = self.program.modules[module_of_field(key[0]) - 1]
        for instruction in module.fields_near(*key):
            if piece := module.piece(module.base + instruction.ip):
                yield piece, instruction

    def _writers_of(self, module: Module, table: range, starts: range) -> Iterator[Piece]:
        """The pieces that may write to *table*: they write to it, or take an address of it, or one of *starts*."""
        low, high = min(table.start, starts.start), max(table.stop, starts.stop)
        for site in module.sites(low - 4, high):
            instruction = module.instruction_with(site)
            if instruction is None:
                continue
            is_address = instruction.mnemonic == Mnemonic.LEA
            if not is_address and (instruction.ip_rel_memory_address not in table or not writes(instruction)):
                continue
            piece = module.piece(module.base + site)
            if piece and not (
                is_address and not _may_write(module, piece, instruction.ip_rel_memory_address, Mnemonic.LEA)
            ):
                yield piece
        # through a pointer that is kept in data
        for place in module.places_of(table.start, table.stop):
            yield from (
                user
                for user in self._users(module, module.table(place))
                if _may_write(module, user, place, Mnemonic.MOV)
            )
        names = module.exported_names(table)
        for other, place in self.program.importers(names):
            if other is not module:
                yield from self._users_of_place(other, place)


def _number_of(register: int) -> int | None:
    """The number of the general register *register*, or of the one that it is part of."""
    return GENERAL[register][0] if register in GENERAL else None


def _may_write(module: Module, piece: Piece, place: int, how: int) -> bool:
    """Whether *piece* may write through the pointer at *place*, or with it as an address."""
    holder: int | None = None
    for instruction in module.instructions(piece):
        refers = instruction.is_ip_rel_memory_operand and instruction.ip_rel_memory_address == place
        loads = refers and instruction.mnemonic == how and instruction.op0_kind == OpKind.REGISTER
        if refers and not loads and writes(instruction):
            return True
        if holder is not None:
            used = [
                one.access
                for one in INFO.info(instruction).used_registers()
                if one.register in GENERAL and GENERAL[one.register][0] == holder
            ]
            if _hands_on(module, piece, instruction, holder) or (used and writes(instruction)):
                return True
            if any(access in WRITES for access in used):
                holder = None
        if loads:
            holder = GENERAL[instruction.op0_register][0]
    return False


def _hands_on(module: Module, piece: Piece, instruction: Instruction, holder: int) -> bool:
    """Whether *instruction* takes the value of the register with the number *holder* other than to read from there."""
    flow, branch = instruction.flow_control, instruction.near_branch_target
    if flow == FlowControl.RETURN:
        return holder == RAX
    if flow not in {FlowControl.NEXT, FlowControl.CONDITIONAL_BRANCH}:
        is_inside = bool(branch) and piece.address <= module.base + branch < piece.end
        return not is_inside and holder in ARGUMENTS
    info = INFO.info(instruction)
    operands = (
        (GENERAL.get(instruction.op_register(index), (None,))[0], info.op_access(index))
        for index in range(instruction.op_count)
        if instruction.op_kind(index) == OpKind.REGISTER
    )
    is_taken = instruction.mnemonic == Mnemonic.LEA and holder in {
        GENERAL.get(one, (None,))[0] for one in (instruction.memory_base, instruction.memory_index)
    }
    return is_taken or any(number == holder and access != OpAccess.WRITE for number, access in operands)


def writes(instruction: Instruction) -> bool:
    info = INFO.info(instruction)
    return any(
        instruction.op_kind(index) == OpKind.MEMORY and info.op_access(index) in WRITES
        for index in range(instruction.op_count)
    )
