"""What functions from outside the program do with what they are given."""

from collections.abc import Iterable

from vbuild.dispatch import values
from vbuild.dispatch.facts import ASKED, ASKERS, CATCHERS, PRESENT, SIGILL, XCR0_BITS, optional
from vbuild.dispatch.instructions import Instructions
from vbuild.dispatch.libc import ALLOCATORS, COPIES, ENVIRONMENT_READERS, FILLS, HARMLESS, RETURNED, TAKEN, WRITTEN
from vbuild.dispatch.machine_state import RAX, RSP, State
from vbuild.dispatch.module import ENDLESS
from vbuild.dispatch.program import LEAF_SIZE, LEAVES
from vbuild.dispatch.values import Value, is_stack, tag
from vbuild.dispatch.world import ENVIRONMENT, World

# a number of 32 bits, bytes of a word, and letters of the name of a system control
_HALF, _WORD, _LONGEST = (1 << 32) - 1, 8, 64
# words on the stack that may be arguments of a function that is not known
MOST_WORDS = 8
# after longjmp they return again, to a stack on which other things stand by then
_RETURNING_TWICE = frozenset({"setjmp", "_setjmp", "sigsetjmp", "__sigsetjmp", "_setjmpex"})


class Imports(Instructions):
    """The part of the interpreter that knows functions from outside."""

    # registers by number
    _pointer = RSP

    def __init__(self, world: World) -> None:
        super().__init__(world)
        convention = self._program.convention
        self._argument_registers, self._lost_in_calls = convention.arguments, convention.lost
        self._followed: list[int] = []

    def _hand_over(
        self,
        state: State,
        registers: Iterable[int],
        words: int = MOST_WORDS,
        *,
        is_followed: bool = False,
        is_near: bool = False,
        is_written: bool = True,
    ) -> None:
        """Note what the arguments in *registers*, and *words* on the stack, give to code that is not followed.

        Where it *is_followed* by itself, it is run with the objects that it is given.
        """
        for number in registers:
            value = state.registers[number]
            if isinstance(value, int) and is_stack(value):
                self._spoil(value, state)
            elif value not in self._bases:
                self._lose(value, state.facts, is_followed=is_followed, is_near=is_near, is_written=is_written)
        # arguments on the stack
        pointer = state.registers[self._pointer]
        if isinstance(pointer, int):
            for place in range(pointer, pointer + 8 * words, 8):
                if place in state.stack and isinstance(state.stack[place][1], values.Choice | int):
                    self._lose(state.stack[place][1], state.facts, is_followed=is_followed, is_written=is_written)

    def _forget(self, state: State, result: Value, lost: Iterable[int] | None = None) -> None:
        for number in self._lost_in_calls if lost is None else lost:
            state.registers[number] = None
        state.registers[RAX] = result
        state.vectors.clear()
        state.flags = None

    def _imported(self, name: str, state: State) -> list[State]:
        if name in ENDLESS or (name.startswith("_ZSt") and "__throw_" in name):
            return []
        to, source, size = (state.registers[number] for number in self._argument_registers[:3])
        is_filled = name in FILLS and source == 0
        if (name in COPIES and self._copy(to, source, size, state)) or (
            name in FILLS and self._fill_memory(to, source, size, state)
        ):
            self._forget(state, to)
            return [state]
        if name not in HARMLESS | ASKERS and not is_filled:
            taken = self._argument_registers[: TAKEN.get(name)]
            self._hand_over(state, taken, 0 if name in TAKEN else MOST_WORDS, is_written=name not in WRITTEN)
        if (written := WRITTEN.get(name)) is not None:
            place, length = (state.registers[self._argument_registers[number]] for number in written)
            self._overwrite(place, length, 0 if is_filled else None)
        if (name in HARMLESS or is_filled) and isinstance(to, int) and is_stack(to):
            self._spoil(to, state)
        if name in {"pthread_once", "call_once"}:
            self._lose(source, state.facts)
        if name in _RETURNING_TWICE:
            state.stack = {}
        if name in CATCHERS and to == SIGILL:
            # some instruction is tried, and it was not understood what follows from that
            state.facts |= ASKED
        self._forget(state, self._returned_by(name, state))
        return [state]

    def _returned_by(self, name: str, state: State) -> Value:
        if name in ASKERS:
            return self._asked(name, state)
        if name in ENVIRONMENT_READERS:
            # what somebody sets for this one program is that person's choice
            return ENVIRONMENT
        first = state.registers[self._argument_registers[0]]
        if name in RETURNED:
            return first
        if name == "__x86_get_cpuid_feature_leaf" and isinstance(first, int):
            return LEAVES + first * LEAF_SIZE
        return self._world.allocated((*self._followed, self._here), name) if name in ALLOCATORS else None

    def _asked(self, name: str, state: State) -> Value:
        """What Windows or macOS answers to a question about the processor; macOS writes it to memory."""
        first, to, size, *_ = (state.registers[number] for number in self._argument_registers)
        if name == "GetEnabledXStateFeatures":
            return values.word(dict(XCR0_BITS), _WORD)
        if name == "IsProcessorFeaturePresent":
            return values.choice({0: 0, 1: PRESENT.get(first & _HALF, 0)}) if isinstance(first, int) else None
        length, facts, before = self._load(size, _WORD, state), 0, None
        if isinstance(first, int) and 0 < tag(first) <= len(self._program.modules):
            module = self._program.module(first)
            name = module.bytes_at(first - module.base, _LONGEST).partition(b"\0")[0].decode("latin-1")
            facts = optional(name) if module.is_constant(first - module.base) else 0
        if facts and isinstance(length, int) and 0 < length <= _WORD:
            before = self._load(to, length, state)
        self._hand_over(state, self._argument_registers)
        if before is not None and isinstance(length, int):
            # if it fails, what was there before stays
            self._store(to, length, values.join(before, 0, values.choice({0: 0, 1: facts}), 0), state)
        return None

    def _overwrite(self, start: Value, size: Value, value: Value) -> None:
        """Note that up to *size* bytes at *start* get a *value*, each of them, or something else that is not known."""
        sizes = values.cases_of(size)
        for place in self._variables_in(start):
            self._world.overwrite(place, max(sizes) if sizes else None, value)
