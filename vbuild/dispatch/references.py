"""Who calls a function, who refers to it, and which registers it uses: what needs no running."""

from collections.abc import Collection

from msgspec import Struct

from vbuild.dispatch.machine_state import CALLS, CLEARS_THE_REST, GENERAL, INFO, RAX, RCX, RDX, WRITES, general
from vbuild.dispatch.module import Module, Piece
from vbuild.dispatch.program import TAKEN, Program
from vbuild.dispatch.questions import Questions
from vbuild.elf.iced import FlowControl, Instruction, Mnemonic, OpAccess, OpKind, Register

# bytes of code that is looked through, and functions inside each other in which is looked for what they read
_LONGEST, _MOST_CALLED = 32_768, 3
# arguments on the stack that are followed
_MOST_WORDS, _WORD = 12, 8
# instructions that are looked at for what becomes of an address, or of a register
MOST_SEEN = 4_000
# bytes of a jump in front of its displacement, at most
_JUMP = 3
ENDS = frozenset({FlowControl.RETURN, FlowControl.UNCONDITIONAL_BRANCH, FlowControl.INDIRECT_BRANCH})
BRANCHES = frozenset({FlowControl.INDIRECT_CALL, FlowControl.INDIRECT_BRANCH})
STACK_POINTER: frozenset[int] = frozenset({Register.RSP})
FRAME_POINTER: frozenset[int] = frozenset({Register.RBP})
# what a function may return something in, and what a call may hand over in other ways: vectors' number, a static chain
_RESULTS, UNUSUAL = frozenset({RAX, RCX, RDX}), frozenset({RAX, 10})
_FOLLOWED = CALLS | {
    *(FlowControl.NEXT, FlowControl.RETURN, FlowControl.UNCONDITIONAL_BRANCH, FlowControl.CONDITIONAL_BRANCH),
}
# functions that may write to a variable, or call a function, before nothing is known of it
MOST_USERS = 64
# how far in front of a variable code may point that uses it, in bytes
NEAR = 256


class Registers(Struct, frozen=True):
    """The registers with which a function is called, as far as it reads them, and those that it may change.

    *words* on the stack are arguments, too, at most.
    """

    arguments: frozenset[int]
    changed: frozenset[int]
    words: int = 0


class References:
    """What the code of a program does with its functions, as far as its instructions show."""

    def __init__(self, program: Program, questions: Questions) -> None:
        self.program = program
        self._questions = questions
        self._lost = program.convention.lost
        self._all_registers = Registers(frozenset(program.convention.arguments), self._lost, _MOST_WORDS)
        self._registers: dict[int, Registers] = {}
        self._results_used: dict[tuple[int, int], bool] = {}

    def registers(self, address: int, depth: int = 0) -> Registers:
        if address not in self._registers:
            # while it is looked at, and for what is called too deep, all
            self._registers[address] = self._all_registers
            self._registers[address] = self._registers_of_code(address, depth)
        return self._registers[address]

    def taken(self, target: int | str | None, depth: int = 0) -> Registers:
        """The registers that *target*, a function or an import, uses; all, if it is not known."""
        if isinstance(target, int):
            return self.registers(target, depth)
        if target is None or target not in TAKEN:
            return self._all_registers
        return Registers(frozenset(self.program.convention.arguments[: TAKEN[target]]), self._lost)

    def _registers_of_code(self, address: int, depth: int) -> Registers:  # noqa: C901  # each kind of flow
        module = self.program.module(address)
        piece = module.piece(address)
        if piece is None or piece.address != address or depth > _MOST_CALLED or piece.end - piece.address > _LONGEST:
            return self._all_registers
        read, changed, words, calls = set[int](), {RAX}, 0, False
        # at each instruction: the registers that still have what the caller put there, and how far down the stack is
        states: dict[int, tuple[frozenset[int], int | None]] = {address: (self._all_registers.arguments, 0)}
        waiting = [address]
        while waiting:
            at = waiting.pop()
            instruction = module.instruction(at)
            if instruction is None:
                return self._all_registers
            own, down = states[at]
            used = [
                (number, use.access)
                for use in INFO.info(instruction).used_registers()
                if (number := general(use.register)) is not None
            ]
            read |= own & {number for number, access in used if access not in {OpAccess.WRITE, OpAccess.NO_MEM_ACCESS}}
            changed |= {number for number, access in used if access in WRITES}
            # one that is extended into itself is read first
            own -= {number for number, access in used if access == OpAccess.WRITE}
            words = max(words, _words_read(instruction, down))
            targets = [] if instruction.flow_control in ENDS else [module.base + instruction.next_ip]
            flow, branch = instruction.flow_control, module.base + instruction.near_branch_target
            if flow not in {FlowControl.NEXT, FlowControl.RETURN}:
                if instruction.near_branch_target and piece.address <= branch < piece.end and flow not in CALLS:
                    targets.append(branch)
                else:
                    calls = True
                    target = self.program.destination(branch) if instruction.near_branch_target else None
                    handed = self.taken(target, depth + 1)
                    read |= handed.arguments & own
                    if flow in CALLS:
                        own -= self._lost
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
        lost = self._lost if calls else self._lost & changed
        return Registers(self._all_registers.arguments & read, lost, min(words, _MOST_WORDS))

    def is_unread(self, address: int, register: int, size: int = 0) -> bool:
        """Whether the code at *address* never reads more of the *register* than *size* bytes before it writes there.

        False if code that handles errors may read it, as it may one that outlives a call, and if it takes too long.
        """
        key = (address, register | size << 8)
        if key not in self.program.dead:
            # while it is looked for, such as in code that calls itself
            self.program.dead[key] = False
            self.program.dead[key] = self._is_unread_in(address, register, size)
        return self.program.dead[key]

    def _is_unread_in(self, address: int, register: int, size: int) -> bool:
        module = self.program.module(address)
        piece = module.piece(address)
        waiting, seen = [address], set[int]()
        while waiting and piece:
            at = waiting.pop()
            if at in seen:
                continue
            seen.add(at)
            if not piece.address <= at < piece.end:
                target = self.program.destination(at)
                if not isinstance(target, int) or not self.is_unread(target, register, size):
                    return False
                continue
            instruction = module.instruction(at)
            following = self._held_at(piece, instruction, register, size) if instruction else None
            if following is None or len(seen) > MOST_SEEN:
                return False
            waiting += following
        return piece is not None

    def _held_at(  # noqa: PLR0911  # one for each kind of flow
        self, piece: Piece, instruction: Instruction, register: int, size: int
    ) -> list[int] | None:
        """Where *instruction* of *piece* leads to with the *register*; None if it may read more of it than *size*."""
        module = self.program.module(piece.address)
        used = [use for use in INFO.info(instruction).used_registers() if general(use.register) == register]
        flow, branch = instruction.flow_control, instruction.near_branch_target
        is_read = any(
            use.access not in {OpAccess.WRITE, OpAccess.NO_MEM_ACCESS}
            and GENERAL[use.register][1] + GENERAL[use.register][2] > size
            for use in used
        )
        is_kept = register not in self._lost
        if flow == FlowControl.EXCEPTION:
            return []
        if is_read or flow not in _FOLLOWED:
            return None
        if flow == FlowControl.RETURN:
            is_result = register in _RESULTS and (register == RAX or self.callers_use(piece.address, register))
            return None if is_kept or is_result else []
        if flow in CALLS and is_kept:
            return None if module.has_handlers else [module.base + instruction.next_ip]
        if flow in CALLS:
            target = self.program.destination(module.base + branch) if branch else None
            handed = self.taken(target)
            if register in handed.arguments or register in UNUSUAL - ({RAX} if size else set()):
                return None
            if register in handed.changed:
                return []
        if any(use.access == OpAccess.WRITE and GENERAL[use.register][1] >= CLEARS_THE_REST for use in used):
            return []
        following = [] if flow in ENDS else [module.base + instruction.next_ip]
        return [*following, module.base + branch] if branch and flow not in CALLS else following

    def known_callers(self, address: int) -> dict[int, Piece] | None:
        """The pieces that call the function; None if its address goes elsewhere, or for too many."""
        module = self.program.module(address)
        piece, start = module.piece(address), address - module.base
        if piece is None or piece.address != address or address in module.entries:
            return None
        slots = module.slots_to(start, start + 1)
        is_offered = bool(self.program.importers(module, range(start, start + 1)))
        if is_offered or not all(self._is_only_called(module, slot) for slot in slots):
            return None
        users = {user.address: user for user in self._questions.users(module, range(start, piece.end - module.base))}
        users.update((user.address, user) for user in module.pieces_near(piece))
        callers: dict[int, Piece] = {}
        for user in users.values():
            shape = module.shape(user)
            sites = [reference for reference in shape.outward if self.program.destination(reference.target) == address]
            if any(not site.is_branch for site in sites) or (user.end == address and shape.falls_through):
                return None
            if user is not piece and any(address < reference.target < piece.end for reference in shape.outward):
                # into the middle of it
                return None
            is_user = sites or any(reference.target - module.base in slots for reference in shape.outward)
            if is_user:
                callers[user.address] = user
                if len(callers) > MOST_USERS:
                    return None
        return callers

    @staticmethod
    def _is_only_called(module: Module, slot: int) -> bool:
        if slot not in module.stubs_of and not module.is_in_got(slot):
            return False
        stubs = module.stubs_of.get(slot, [])
        for site in module.sites(slot, slot + 1):
            # a stub's range ends where its jump starts
            if any(stub.start <= site < stub.stop + _JUMP for stub in stubs):
                continue
            instruction = module.instruction_with(site)
            if instruction is None or instruction.flow_control not in BRANCHES or not module.is_constant(slot):
                return False
        return True

    def is_result_used(self, address: int) -> bool:
        module = self.program.module(address)
        start = address - module.base
        slots = module.slots_to(start, start + 1)
        return (
            address in module.entries
            or not all(module.is_start_or_end(slot) for slot in slots)
            or self.callers_use(address, RAX)
        )

    def callers_use(self, address: int, register: int) -> bool:
        key = (address, register)
        if key not in self._results_used:
            users = self.referring(address)
            self._results_used[key] = any(self._uses_result(user, address, register) for user in users)
        return self._results_used[key]

    def referring(self, address: int) -> Collection[Piece]:
        """The pieces that refer to the function at *address*, and those near it, which need no reference to branch."""
        module = self.program.module(address)
        start = address - module.base
        users = {user.address: user for user in self._questions.users(module, range(start, start + 1))}
        if piece := module.piece(address):
            users |= {other.address: other for other in module.pieces_near(piece) if other is not piece}
        return users.values()

    def _uses_result(self, piece: Piece, address: int, register: int) -> bool:
        """Whether *piece* may read what the function returns in *register*, or hands its address on."""
        module = self.program.module(piece.address)
        is_returned = False
        for instruction in module.instructions(piece):
            if is_returned:
                used = [
                    use.access for use in INFO.info(instruction).used_registers() if general(use.register) == register
                ]
                is_end = instruction.flow_control == FlowControl.RETURN and register == RAX
                if is_end or any(access != OpAccess.WRITE for access in used):
                    return True
                is_returned = not used and instruction.flow_control == FlowControl.NEXT
                if not used and not is_returned and instruction.flow_control not in CALLS | {FlowControl.RETURN}:
                    return True
            target = instruction.near_branch_target or instruction.ip_rel_memory_address
            if target and self.program.destination(module.base + target) == address:
                if instruction.flow_control not in CALLS:
                    if register == RAX or instruction.flow_control != FlowControl.NEXT:
                        return True
                    # whoever calls it by its address does not expect two results
                    continue
                is_returned = True
        return False


def _moved(instruction: Instruction, down: int | None) -> int | None:
    """How far below its start the stack pointer is after *instruction*, in bytes; None if unknown."""
    if down is None or instruction.flow_control in CALLS:
        return down
    is_pointer = instruction.op_count and instruction.op_register(0) in STACK_POINTER
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
    """How many of the caller's words on the stack *instruction* may read, with the stack that far *down*."""
    is_pointer = instruction.memory_base in STACK_POINTER
    if not is_pointer and instruction.memory_base not in FRAME_POINTER:
        return 0
    if is_pointer and down is None:
        return _MOST_WORDS
    # the frame's pointer is one word below the return address
    above = instruction.memory_displacement - (instruction.memory_displacement >> 63 << 64)
    above -= (down or 0) if is_pointer else _WORD
    if above < _WORD:
        return 0
    return int(_MOST_WORDS if instruction.mnemonic == Mnemonic.LEA else above // _WORD)
