"""Who calls a function, who may write to a variable, and which registers a function uses: what needs no running."""

from collections.abc import Collection, Iterator

from vbuild.elf.cpu_questions import Questions
from vbuild.elf.iced import FlowControl, Instruction, MemorySizeExt, Mnemonic, OpAccess, OpKind, Register
from vbuild.elf.machine_state import ARGUMENTS, GENERAL, INFO, LOST_IN_CALLS, RAX, RCX, RDX, WRITES
from vbuild.elf.module import Module, Piece, displacement_of, module_of_field
from vbuild.elf.operands import CLEARS_THE_REST, Registers
from vbuild.elf.program import LEAVES, Program

# bytes of code that is looked through, and functions inside each other in which is looked for what they read
_LONGEST, _MOST_CALLED = 32_768, 3
# arguments on the stack that are followed
_MOST_WORDS, _WORD = 12, 8
# instructions that are looked at for what becomes of an address, or of a register; bytes of one written as a whole
_MOST_SEEN, _HALF = 4_000, 4
# bytes of a jump in front of its displacement, at most
_JUMP = 3
# the register by which string instructions write, and how far a pointer is followed, in bytes
_TO, _FURTHEST = 7, 512
_Held = tuple[int, int | tuple[int, int], int]
_NUMBERS = frozenset({OpKind.IMMEDIATE8TO64, OpKind.IMMEDIATE32TO64})
# functions inside each other that are looked through for what they write
_MOST_WRITING = 2
_ALL_REGISTERS = Registers(frozenset(ARGUMENTS), LOST_IN_CALLS, _MOST_WORDS)
_ENDS = frozenset({FlowControl.RETURN, FlowControl.UNCONDITIONAL_BRANCH, FlowControl.INDIRECT_BRANCH})
_CALLS = frozenset({FlowControl.CALL, FlowControl.INDIRECT_CALL})
_BRANCHES = frozenset({FlowControl.INDIRECT_CALL, FlowControl.INDIRECT_BRANCH})
_STACK_POINTER: frozenset[int] = frozenset({Register.RSP})
_FRAME_POINTER: frozenset[int] = frozenset({Register.RBP})
# what a function may return something in, and what a call may hand over in other ways: vectors' number, a static chain
_RESULTS, _UNUSUAL = frozenset({RAX, RCX, RDX}), frozenset({RAX, 10})
_FOLLOWED = _CALLS | {
    *(FlowControl.NEXT, FlowControl.RETURN, FlowControl.UNCONDITIONAL_BRANCH, FlowControl.CONDITIONAL_BRANCH),
}
# functions that may write to a variable, or call a function, before nothing is known of it
MOST_WRITERS = 64


class References(Questions):
    """What the code of a program does to its functions and variables, as far as its instructions show."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._registers: dict[int, Registers] = {}
        self._results_used: dict[tuple[int, int], bool] = {}
        self._results_written: dict[tuple[int, int], bool] = {}
        self._dead: dict[int, bool] = {}
        # by function, register, bytes behind that, and whether it has to be sure: whether it writes there
        self._writes: dict[tuple[int, int, range, bool], bool] = {}

    def registers(self, address: int, depth: int = 0) -> Registers:
        """The registers that the function at *address* uses."""
        if address not in self._registers:
            # while it is looked at, and for what is called too deep, all
            self._registers[address] = _ALL_REGISTERS
            self._registers[address] = self._found_registers(address, depth)
        return self._registers[address]

    def _found_registers(self, address: int, depth: int) -> Registers:  # noqa: C901, PLR0912  # each kind of flow
        module = self.program.module(address)
        piece = module.piece(address)
        if piece is None or piece.address != address or depth > _MOST_CALLED or piece.end - piece.address > _LONGEST:
            return _ALL_REGISTERS
        read, changed, words, calls = set[int](), {RAX}, 0, False
        # at each instruction: the registers that still have what the caller put there, and how far down the stack is
        states: dict[int, tuple[frozenset[int], int | None]] = {address: (_ALL_REGISTERS.arguments, 0)}
        waiting = [address]
        while waiting:
            place = waiting.pop()
            instruction = module.instruction(place)
            if instruction is None:
                return _ALL_REGISTERS
            own, down = states[place]
            for used in INFO.info(instruction).used_registers():
                number = _number_of(used.register)
                if number is None:
                    continue
                if used.access not in {OpAccess.WRITE, OpAccess.NO_MEM_ACCESS} and number in own:
                    read.add(number)
                if used.access in WRITES:
                    changed.add(number)
                    own -= {number} if used.access == OpAccess.WRITE else set()
            words = max(words, _words_read(instruction, down))
            targets = [] if instruction.flow_control in _ENDS else [module.base + instruction.next_ip]
            flow, branch = instruction.flow_control, module.base + instruction.near_branch_target
            if flow not in {FlowControl.NEXT, FlowControl.RETURN}:
                if instruction.near_branch_target and piece.address <= branch < piece.end and flow not in _CALLS:
                    targets.append(branch)
                else:
                    calls = True
                    target = self.program.destination(branch) if instruction.near_branch_target else None
                    handed = self.registers(target, depth + 1) if isinstance(target, int) else _ALL_REGISTERS
                    read |= handed.arguments & own
                    if flow in _CALLS:
                        own -= LOST_IN_CALLS
                    elif flow != FlowControl.INDIRECT_BRANCH:
                        words = max(words, handed.words)
            down = _moved(instruction, down)
            for target in targets:
                if not piece.address <= target < piece.end:
                    continue
                old = states.get(target)
                new = (own, down) if old is None else (own | old[0], down if down == old[1] else None)
                if new != old:
                    states[target] = new
                    waiting.append(target)
        # gcc's -fipa-ra keeps values in registers that a function does not change
        lost = LOST_IN_CALLS if calls else LOST_IN_CALLS & changed
        return Registers(_ALL_REGISTERS.arguments & read, lost, min(words, _MOST_WORDS))

    def is_unread(self, address: int, register: int, size: int = 0) -> bool:
        """Whether the code at *address* never reads more of the *register* than *size* bytes before it writes there.

        False if code that handles errors may read it, as it may one that outlives a call, and if it takes too long.
        """
        key = (address, register | size << 8)
        if key not in self.program.dead:
            # while it is looked for, such as in code that calls itself
            self.program.dead[key] = False
            self.program.dead[key] = self._found_unread(address, register, size)
        return self.program.dead[key]

    def _found_unread(self, address: int, register: int, size: int) -> bool:
        module = self.program.module(address)
        piece = module.piece(address)
        waiting, seen = [address], set[int]()
        while waiting and piece:
            place = waiting.pop()
            if place in seen:
                continue
            seen.add(place)
            if not piece.address <= place < piece.end:
                target = self.program.destination(place)
                if not isinstance(target, int) or not self.is_unread(target, register, size):
                    return False
                continue
            instruction = module.instruction(place)
            following = self._held_at(module, instruction, register, size) if instruction else None
            if following is None or len(seen) > _MOST_SEEN:
                return False
            waiting += following
        return piece is not None

    def _held_at(  # noqa: PLR0911  # one for each kind of flow
        self, module: Module, instruction: Instruction, register: int, size: int
    ) -> list[int] | None:
        """Where *instruction* leads to with what *register* has; None if it may read more of that than *size* bytes."""
        used = [one for one in INFO.info(instruction).used_registers() if _number_of(one.register) == register]
        flow, branch = instruction.flow_control, instruction.near_branch_target
        is_read = any(
            one.access not in {OpAccess.WRITE, OpAccess.NO_MEM_ACCESS}
            and GENERAL[one.register][1] + GENERAL[one.register][2] > size
            for one in used
        )
        is_kept = register not in LOST_IN_CALLS
        if flow == FlowControl.EXCEPTION:
            return []
        if is_read or flow not in _FOLLOWED or (flow == FlowControl.RETURN and (is_kept or register in _RESULTS)):
            return None
        if flow in _CALLS and is_kept:
            return None if module.has_handlers else [module.base + instruction.next_ip]
        if flow in _CALLS:
            target = self.program.destination(module.base + branch) if branch else None
            handed = self.registers(target) if isinstance(target, int) else _ALL_REGISTERS
            if register in handed.arguments or register in _UNUSUAL - ({RAX} if size else set()):
                return None
            if register in handed.changed:
                return []
        if any(one.access == OpAccess.WRITE and GENERAL[one.register][1] >= CLEARS_THE_REST for one in used):
            return []
        found = [] if flow in _ENDS else [module.base + instruction.next_ip]
        return [*found, module.base + branch] if branch and flow not in _CALLS else found

    def _known_callers(self, address: int) -> dict[int, Piece] | None:
        """The pieces that call the function at *address*; None if its address goes elsewhere, or there are too many."""
        module = self.program.module(address)
        piece, place = module.piece(address), address - module.base
        if piece is None or piece.address != address or address in module.entries:
            return None
        slots = module.places_of(place, place + 1)
        if not all(self._is_only_called(module, one) for one in slots):
            return None
        if any(
            other is not module for other, _ in self.program.importers(module.exported_names(range(place, place + 1)))
        ):
            return None
        users = {user.address: user for user in self._users(module, range(place, piece.end - module.base))}
        users.update((user.address, user) for user in module.pieces_near(piece))
        found: dict[int, Piece] = {}
        for user in users.values():
            shape = module.shape(user)
            sites = [one for one in shape.outward if self.program.destination(one.target) == address]
            if any(not one.is_branch for one in sites) or (user.end == address and shape.falls_through):
                return None
            if user is not piece and any(address < one.target < piece.end for one in shape.outward):
                # into the middle of it
                return None
            is_user = sites or any(one.target - module.base in slots for one in shape.outward)
            if is_user and not self._is_dead(user):
                found[user.address] = user
        return found if len(found) <= MOST_WRITERS else None

    def _is_dead(self, piece: Piece, depth: int = 0) -> bool:
        """Whether nothing leads to *piece*: nothing refers to it but code that nothing leads to."""
        if piece.address not in self._dead:
            # what leads to itself is not looked through
            self._dead[piece.address] = False
            self._dead[piece.address] = self._found_dead(piece, depth)
        return self._dead[piece.address]

    def _found_dead(self, piece: Piece, depth: int) -> bool:
        module = self.program.module(piece.address)
        addresses = range(piece.address - module.base, piece.end - module.base)
        if depth > _MOST_CALLED or any(module.base + place in module.entries for place in addresses):
            return False
        if not all(self._is_only_called(module, place) for place in module.places_of(addresses.start, addresses.stop)):
            return False
        if any(other is not module for other, _ in self.program.importers(module.exported_names(addresses))):
            return False
        users = {one.address: one for one in (*module.pieces_near(piece), *self._users(module, addresses))}
        return all(
            self._is_dead(one, depth + 1) for one in users.values() if one != piece and self._leads_to(one, piece)
        )

    def _leads_to(self, user: Piece, piece: Piece) -> bool:
        """Whether code of *user* refers to *piece*, or runs on into it."""
        module = self.program.module(user.address)
        if user.end == piece.address and module.shape(user).falls_through:
            return True
        end = user.address
        for instruction in module.instructions(user):
            end = module.base + instruction.next_ip
            target = instruction.near_branch_target
            if not target and instruction.is_ip_rel_memory_operand:
                target = instruction.ip_rel_memory_address
            places = (
                (self.program.destination(module.base + target), self.program.behind(module, target)) if target else ()
            )
            if any(isinstance(place, int) and piece.address <= place < piece.end for place in places):
                return True
        # behind bytes that are not an instruction nobody knows what stands
        return end < user.end

    @staticmethod
    def _is_only_called(module: Module, slot: int) -> bool:
        """Whether code calls what stands in *slot*, also through a stub, and does nothing else with it."""
        if slot not in module.stubs_of and not module.is_slot(slot):
            return False
        stubs = module.stubs_of.get(slot, [])
        for site in module.sites(slot, slot + 1):
            # a stub's range ends where its jump starts
            if any(stub.start <= site < stub.stop + _JUMP for stub in stubs):
                continue
            instruction = module.instruction_with(site)
            if instruction is None or instruction.flow_control not in _BRANCHES or not module.is_constant(slot):
                return False
        return True

    def is_result_used(self, address: int) -> bool:
        """Whether some caller of the function at *address* may use what it returns."""
        module = self.program.module(address)
        place = address - module.base
        places = module.places_of(place, place + 1)
        return (
            address in module.entries
            or not all(module.is_start_or_end(one) for one in places)
            or self.callers_use(address, RAX)
        )

    def callers_use(self, address: int, register: int) -> bool:
        """Whether code that refers to the function at *address* may use what it returns in the *register*, a number."""
        key = (address, register)
        if key not in self._results_used:
            users = self._referring(address)
            self._results_used[key] = any(self._uses_result(user, address, register) for user in users)
        return self._results_used[key]

    def _referring(self, address: int) -> Collection[Piece]:
        """The pieces that refer to the function at *address*, and those near it, which need no reference to branch."""
        module = self.program.module(address)
        place = address - module.base
        users = {one.address: one for one in self._users(module, range(place, place + 1))}
        if piece := module.piece(address):
            users |= {one.address: one for one in module.pieces_near(piece) if one is not piece}
        return users.values()

    def _uses_result(self, piece: Piece, address: int, register: int) -> bool:
        """Whether *piece* may read what the function at *address* returns in *register*, or hands its address on."""
        module = self.program.module(piece.address)
        is_returned = False
        for instruction in module.instructions(piece):
            if is_returned:
                used = [
                    one.access
                    for one in INFO.info(instruction).used_registers()
                    if _number_of(one.register) == register
                ]
                is_end = instruction.flow_control == FlowControl.RETURN and register == RAX
                if is_end or any(access != OpAccess.WRITE for access in used):
                    return True
                is_returned = not used and instruction.flow_control == FlowControl.NEXT
                if not used and not is_returned and instruction.flow_control not in _CALLS | {FlowControl.RETURN}:
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
            start = instruction.ip_rel_memory_address
            # a vector may begin in front of it
            is_near = start < table.stop and start + max(MemorySizeExt.size(instruction.memory_size), 1) > table.start
            if not is_address and not (is_near and writes(instruction)):
                continue
            piece = module.piece(module.base + site)
            if piece and is_address and self._only_hands_over(module, piece, instruction, table):
                continue
            if piece and not (
                is_address and not self._may_write(module, piece, instruction.ip_rel_memory_address, Mnemonic.LEA)
            ):
                yield piece
        # through a pointer that is kept in data
        for place in module.places_of(table.start, table.stop):
            yield from (
                user
                for user in self._users(module, module.table(place))
                if self._may_write(module, user, place, Mnemonic.MOV)
            )
        names = module.exported_names(table)
        for other, place in self.program.importers(names):
            if other is not module:
                yield from self._users_of_place(other, place)

    def _only_hands_over(self, module: Module, piece: Piece, instruction: Instruction, table: range) -> bool:
        """Whether the address in front of *table* that *instruction* makes only goes to code that writes less far.

        What that does with it besides is not asked: it is not asked either of code that has the address of a variable.
        """
        register, start = _number_of(instruction.op0_register), instruction.ip_rel_memory_address
        if register not in ARGUMENTS or start >= table.start:
            return False
        target = self._handed_to(module, piece, instruction.next_ip, register)
        called = self.program.module(target).piece(target) if isinstance(target, int) and target < LEAVES else None
        written = range(table.start - start, table.stop - start)
        return called is not None and not self.writes_behind(called.address, register, written, is_sure=False)

    def _handed_to(self, module: Module, piece: Piece, start: int, register: int) -> int | str | None:
        """What is called with the *register* as it is at *start*, if nothing else is done before; else None."""
        place = module.base + start
        while place < piece.end and (instruction := module.instruction(place)):
            if instruction.flow_control == FlowControl.CALL:
                return self.program.destination(module.base + instruction.near_branch_target)
            used = INFO.info(instruction).used_registers()
            if instruction.flow_control != FlowControl.NEXT or any(
                _number_of(one.register) == register for one in used
            ):
                return None
            place = module.base + instruction.next_ip
        return None

    def writes_behind(self, address: int, register: int, written: range, depth: int = 0, *, is_sure: bool) -> bool:
        """Whether the function at *address* writes to bytes that are *written* from where the *register* points on.

        It counts if what is made of the pointer cannot be followed, unless it has to be *is_sure*, but not what others
        do that find it in memory.
        """
        key = (address, register, written, is_sure)
        if key not in self._writes:
            self._writes[key] = False
            piece = self.program.module(address).piece(address)
            self._writes[key] = piece is not None and self._writes_through(piece, key, depth)
        return self._writes[key]

    def _writes_through(self, piece: Piece, key: tuple[int, int, range, bool], depth: int) -> bool:
        module = self.program.module(piece.address)
        address, register, written, is_sure = key
        # where, what has the pointer: a register, or a place on the stack; and how far behind it that points
        waiting: list[_Held] = [(address, register, 0)]
        seen = set(waiting)
        while waiting:
            place, what, far = waiting.pop()
            instruction = module.instruction(place)
            if len(seen) > _MOST_SEEN or instruction is None:
                return len(seen) > _MOST_SEEN and not is_sure
            left = range(written.start - far, written.stop - far)
            held = _held_behind(instruction, what, left, is_sure=is_sure)
            if held is None:
                return True
            flow, branch = instruction.flow_control, instruction.near_branch_target
            targets = [] if flow in _ENDS else [module.base + instruction.next_ip]
            if branch and flow not in _CALLS:
                targets.append(module.base + branch)
            outside = [one for one in targets if not piece.address <= one < piece.end]
            called = [module.base + branch] if branch and flow in _CALLS else outside
            for target in map(self.program.destination, called if what in ARGUMENTS and depth < _MOST_WRITING else ()):
                if not isinstance(target, int) or target >= LEAVES or not isinstance(what, int):
                    continue
                if self.writes_behind(target, what, left, depth + 1, is_sure=is_sure):
                    return True
            if flow in _CALLS and what in LOST_IN_CALLS:
                continue
            new = {
                (one, other, far + more)
                for one in targets
                if one not in outside
                for other, more in held
                if abs(far + more) <= _FURTHEST
            }
            waiting += new - seen
            seen |= new
        return False

    def _may_write(self, module: Module, piece: Piece, place: int, how: int) -> bool:
        """Whether *piece* may write through the pointer at *place*, or with it as an address."""
        for instruction in module.instructions(piece):
            if not instruction.is_ip_rel_memory_operand or instruction.ip_rel_memory_address != place:
                continue
            if instruction.mnemonic == how and instruction.op0_kind == OpKind.REGISTER:
                number = _number_of(instruction.op0_register)
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
            place, register = waiting.pop()
            if (place, register) in seen:
                continue
            seen.add((place, register))
            instruction = module.instruction(module.base + place)
            if instruction is None or len(seen) > _MOST_SEEN:
                return False
            used = [one for one in INFO.info(instruction).used_registers() if _number_of(one.register) == register]
            is_changed = any(one.access in WRITES and GENERAL[one.register][1] < _HALF for one in used)
            copy = _copied_to(instruction, register)
            if is_changed or (used and copy is None and not _only_reads(instruction, register)):
                return False
            if copy is not None:
                waiting.append((instruction.next_ip, copy))
            if not any(one.access in WRITES for one in used):
                following = self._following(module, piece, instruction, register)
                if following is None:
                    return False
                waiting += ((one, register) for one in following)
        return True

    def callers_write(self, address: int, register: int) -> bool:
        """Whether code that calls the function at *address* may write where the address in the *register* leads.

        What code outside the wheel does with it is not asked: it is not asked either what that does with a variable.
        """
        key = (address, register)
        if key not in self._results_written:
            self._results_written[key] = False  # a function that ends by calling itself adds nothing
            module = self.program.module(address)
            place = address - module.base
            importers = self.program.importers(module.exported_names(range(place, place + 1)))
            self._results_written[key] = any(other is not module for other, _ in importers) or any(
                self._writes_to_result(user, address, register) for user in self._referring(address)
            )
        return self._results_written[key]

    def _writes_to_result(self, piece: Piece, address: int, register: int) -> bool:
        module = self.program.module(piece.address)
        for instruction in module.instructions(piece):
            target = instruction.near_branch_target or instruction.ip_rel_memory_address
            if not target or self.program.destination(module.base + target) != address:
                continue
            if instruction.flow_control in _CALLS:
                if not self._only_reads_through(module, piece, instruction.next_ip, register):
                    return True
            elif instruction.flow_control not in _BRANCHES or self.callers_write(piece.address, register):
                return True
        return False

    def _following(  # noqa: PLR0911  # one for each kind of flow
        self, module: Module, piece: Piece, instruction: Instruction, register: int
    ) -> list[int] | None:
        """Where *register* still has what it had at *instruction* of *piece*; None if it may get elsewhere."""
        flow, branch = instruction.flow_control, instruction.near_branch_target
        if flow == FlowControl.RETURN:
            return None if register == RAX or self.callers_use(piece.address, register) else []
        if flow in _CALLS:
            target = self.program.destination(module.base + branch) if branch else None
            taken = self.registers(target) if isinstance(target, int) else _ALL_REGISTERS
            # code that handles errors finds there what no call changes
            if register in taken.arguments or (module.has_handlers and register not in LOST_IN_CALLS):
                return None
            # gcc's -fipa-ra keeps values in registers that a function does not change
            return [] if register in taken.changed else [instruction.next_ip]
        if flow == FlowControl.EXCEPTION:
            return []
        found = [] if flow == FlowControl.UNCONDITIONAL_BRANCH else [instruction.next_ip]
        if flow in {FlowControl.CONDITIONAL_BRANCH, FlowControl.UNCONDITIONAL_BRANCH}:
            found.append(branch)
        elif flow == FlowControl.INDIRECT_BRANCH and _number_of(instruction.op_register(0)) == register:
            return None if register in ARGUMENTS else []
        elif flow != FlowControl.NEXT:
            return None
        inside = [place for place in found if piece.address <= module.base + place < piece.end]
        # to other code, with the registers as they are
        others = (self.program.destination(module.base + place) for place in found if place not in inside)
        return inside if all(self._is_unused_by(other, piece, register) for other in others) else None

    def _is_unused_by(self, other: int | str | None, piece: Piece, register: int) -> bool:
        """Whether neither *other*, the code that *piece* ends by jumping to, nor a caller reads the *register*."""
        if not isinstance(other, int) or register in self.registers(other).arguments | _UNUSUAL:
            return False
        return register in self.registers(other).changed or not self.callers_use(piece.address, register)


def _number_of(register: int) -> int | None:
    """The number of the general register *register*, or of the one that it is part of."""
    return GENERAL[register][0] if register in GENERAL else None


def _moved(instruction: Instruction, down: int | None) -> int | None:
    """How many bytes below its start the stack pointer is after *instruction*; None if that is not known."""
    if down is None or instruction.flow_control in _CALLS:
        return down
    is_pointer = instruction.op_count and instruction.op_register(0) in _STACK_POINTER
    if instruction.mnemonic in {Mnemonic.SUB, Mnemonic.ADD} and is_pointer:
        if instruction.op1_kind not in {OpKind.IMMEDIATE8TO64, OpKind.IMMEDIATE32TO64}:
            return None
        moved = instruction.immediate(1)
        moved -= moved >> 63 << 64
        return down + moved if instruction.mnemonic == Mnemonic.SUB else down - moved
    if is_pointer and instruction.mnemonic not in {Mnemonic.CMP, Mnemonic.TEST, Mnemonic.PUSH}:
        return None
    if instruction.mnemonic == Mnemonic.LEAVE:
        return 0
    return int(down - instruction.stack_pointer_increment)


def _words_read(instruction: Instruction, down: int | None) -> int:
    """How many words that the caller put on the stack *instruction* may read, with the stack that far *down*."""
    is_pointer = instruction.memory_base in _STACK_POINTER
    if not is_pointer and instruction.memory_base not in _FRAME_POINTER:
        return 0
    if is_pointer and down is None:
        return _MOST_WORDS
    # the frame's pointer is one word below the return address
    above = instruction.memory_displacement - (instruction.memory_displacement >> 63 << 64)
    above -= (down or 0) if is_pointer else _WORD
    if above < _WORD:
        return 0
    return int(_MOST_WORDS if instruction.mnemonic == Mnemonic.LEA else above // _WORD)


def _held_behind(  # noqa: C901, PLR0911  # one for each kind of use
    instruction: Instruction, what: int | tuple[int, int], written: range, *, is_sure: bool
) -> list[tuple[int | tuple[int, int], int]] | None:
    """What has the pointer that *what* has behind *instruction*, each with how far it points behind that.

    None if the *written* bytes from the pointer on are written to, or may be, unless it has to be *is_sure*.
    """
    unknown: list[tuple[int | tuple[int, int], int]] | None = [] if is_sure else None
    base, start = instruction.memory_base, displacement_of(instruction)
    is_move = instruction.mnemonic == Mnemonic.MOV
    if isinstance(what, tuple):
        if (base, start) != what or instruction.mnemonic == Mnemonic.LEA:
            return [(what, 0)]
        if writes(instruction):
            return []
        copy = _number_of(instruction.op0_register) if is_move else None
        return [(what, 0)] if copy is None else [(what, 0), (copy, 0)]
    if instruction.is_string_instruction and what == _TO:
        return unknown
    kept: list[tuple[int | tuple[int, int], int]] = [(what, 0)]
    used = [one for one in INFO.info(instruction).used_registers() if _number_of(one.register) == what]
    is_changed = any(one.access in WRITES for one in used)
    if _number_of(base) == what and instruction.mnemonic == Mnemonic.LEA:
        to = _number_of(instruction.op0_register)
        if instruction.memory_index in GENERAL or to is None:
            return unknown
        return [(to, start)] if to == what else [*kept, (to, start)]
    if writes(instruction) and what in {_number_of(base), _number_of(instruction.memory_index)}:
        stop = start + max(int(MemorySizeExt.size(instruction.memory_size)), 1)
        is_indexed = instruction.memory_index in GENERAL
        if not is_sure if is_indexed else start < written.stop and written.start < stop:
            return None
    if is_move and instruction.op1_kind == OpKind.REGISTER and _number_of(instruction.op1_register) == what:
        if instruction.op0_kind == OpKind.REGISTER:
            copy = _copied_to(instruction, what)
            return kept if copy is None else [*kept, (copy, 0)]
        return [*kept, ((base, start), 0)] if base in _STACK_POINTER | _FRAME_POINTER else kept
    if is_changed and instruction.mnemonic in {Mnemonic.ADD, Mnemonic.SUB}:
        if instruction.op1_kind not in _NUMBERS:
            return unknown
        number = instruction.immediate(1)
        number -= number >> 63 << 64
        return [(what, number if instruction.mnemonic == Mnemonic.ADD else -number)]
    return [] if is_changed else kept


def _only_reads(instruction: Instruction, register: int) -> bool:
    """Whether *instruction* takes the value of the *register* only to read from where it points."""
    if instruction.mnemonic == Mnemonic.LEA or instruction.is_string_instruction or writes(instruction):
        return False
    if instruction.flow_control in _BRANCHES:
        # what stands there is called
        return True
    info = INFO.info(instruction)
    return all(
        _number_of(instruction.op_register(index)) != register or info.op_access(index) == OpAccess.WRITE
        for index in range(instruction.op_count)
        if instruction.op_kind(index) == OpKind.REGISTER
    )


def _copied_to(instruction: Instruction, register: int) -> int | None:
    """The other register into which *instruction* copies all of the *register*; None if it does not."""
    is_copy = (
        instruction.mnemonic == Mnemonic.MOV and instruction.op_kind(0) == instruction.op_kind(1) == OpKind.REGISTER
    )
    if not is_copy or _number_of(instruction.op1_register) != register or GENERAL[instruction.op1_register][1] < _WORD:
        return None
    copy = _number_of(instruction.op0_register)
    return None if copy == register else copy


def writes(instruction: Instruction) -> bool:
    info = INFO.info(instruction)
    return any(
        instruction.op_kind(index) == OpKind.MEMORY and info.op_access(index) in WRITES
        for index in range(instruction.op_count)
    )
