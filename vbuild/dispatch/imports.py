"""What functions from outside the program do with what they are given."""

from vbuild.dispatch import values
from vbuild.dispatch.facts import ASKED, ASKERS, CATCHERS, PRESENT, SIGILL, XCR0_BITS, optional
from vbuild.dispatch.libc import ALLOCATORS, COPIES, ENVIRONMENT_READERS, FILLS, HARMLESS, RETURNED, TAKEN, WRITTEN
from vbuild.dispatch.machine import MOST_WORDS, Machine
from vbuild.dispatch.machine_state import Stack, State
from vbuild.dispatch.module import ENDLESS
from vbuild.dispatch.program import LEAF_SIZE, LEAVES
from vbuild.dispatch.values import Value, is_stack, tag
from vbuild.dispatch.world import ENVIRONMENT

# a number of 32 bits, bytes of a word, and letters of the name of a system control
_HALF, _WORD, _LONGEST = (1 << 32) - 1, 8, 64
# after longjmp they return again, to a stack on which other things stand by then
_RETURNING_TWICE = frozenset({"setjmp", "_setjmp", "sigsetjmp", "__sigsetjmp", "_setjmpex"})


def imported(machine: Machine, name: str, state: State) -> list[State]:
    """The state after a call of the import *name*; none if it never returns."""
    if name in ENDLESS or (name.startswith("_ZSt") and "__throw_" in name):
        return []
    arguments = machine.program.convention.arguments
    to, source, size = (state.registers[number] for number in arguments[:3])
    is_filled = name in FILLS and source == 0
    if (name in COPIES and machine.copy(to, source, size, state)) or (
        name in FILLS and machine.fill(to, source, size, state)
    ):
        machine.forget(state, to)
        return [state]
    if name not in HARMLESS | ASKERS and not is_filled:
        machine.hand_over(
            state, arguments[: TAKEN.get(name)], 0 if name in TAKEN else MOST_WORDS, is_written=name not in WRITTEN
        )
    if (written := WRITTEN.get(name)) is not None:
        place, length = (state.registers[arguments[number]] for number in written)
        lengths = values.cases_of(length)
        for variable in machine.variables_in(place):
            machine.variables.overwrite(variable, max(lengths) if lengths else None, 0 if is_filled else None)
    if (name in HARMLESS or is_filled) and isinstance(to, int) and is_stack(to):
        machine.spoil(to, state)
    if name in {"pthread_once", "call_once"}:
        machine.lose(source, state.facts)
    if name in _RETURNING_TWICE:
        state.stack = Stack({})
    if name in CATCHERS and to == SIGILL:
        # some instruction is tried, and it was not understood what follows from that
        state.facts |= ASKED
    machine.forget(state, _returned_by(machine, name, state))
    return [state]


def _returned_by(machine: Machine, name: str, state: State) -> Value:
    if name in ASKERS:
        return _asked(machine, name, state)
    if name in ENVIRONMENT_READERS:
        # what somebody sets for this one program is that person's choice
        return ENVIRONMENT
    first = state.registers[machine.program.convention.arguments[0]]
    if name in RETURNED:
        return first
    if name == "__x86_get_cpuid_feature_leaf" and isinstance(first, int):
        return LEAVES + first * LEAF_SIZE
    return machine.objects.allocated((*machine.followed, machine.here), name) if name in ALLOCATORS else None


def _asked(machine: Machine, name: str, state: State) -> Value:
    """What Windows or macOS answers to a question about the processor; macOS writes it to memory."""
    first, to, size, *_ = (state.registers[number] for number in machine.program.convention.arguments)
    if name == "GetEnabledXStateFeatures":
        return values.word(dict(XCR0_BITS), _WORD)
    if name == "IsProcessorFeaturePresent":
        return values.choice({0: 0, 1: PRESENT.get(first & _HALF, 0)}) if isinstance(first, int) else None
    length, facts, before = machine.load(size, _WORD, state), 0, None
    if isinstance(first, int) and 0 < tag(first) <= len(machine.program.modules):
        module = machine.program.module(first)
        name = module.bytes_at(first - module.base, _LONGEST).partition(b"\0")[0].decode("latin-1")
        facts = optional(name) if module.is_constant(first - module.base) else 0
    if facts and isinstance(length, int) and 0 < length <= _WORD:
        before = machine.load(to, length, state)
    machine.hand_over(state, machine.program.convention.arguments)
    if before is not None and isinstance(length, int):
        # if it fails, what was there before stays
        machine.store(to, length, values.join(before, 0, values.choice({0: 0, 1: facts}), 0), state)
    return None
