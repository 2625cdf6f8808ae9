"""What the variables of a program can hold of the processor's answers.

A variable holds all that is written to it; as soon as an answer is written, all code that may write there is run. A
variable that says nothing of the processor can hold anything, and so can a field of a structure that is not located.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from msgspec import Struct

from vbuild.dispatch import values
from vbuild.dispatch.facts import ANY, ASKED, EVERY
from vbuild.dispatch.module import Piece
from vbuild.dispatch.program import PARAMETERS, Program, Work
from vbuild.dispatch.questions import Questions
from vbuild.dispatch.references import MOST_USERS, NEAR, References
from vbuild.dispatch.values import Value, tag
from vbuild.dispatch.writers import Writers

Key = tuple[int, int]
# bits of an address that say where in a part of the index of variables it is
_PART = 6
# how often the value of a variable may change before it can be anything, and of one that tells nothing
MOST_CHANGES, _MOST_SILENT_CHANGES = 40, 4
# bytes of an object that answers about the processor stand in: its symbol may claim gigabytes
_LARGEST_OBJECT = 1 << 16
_WORD = 8
# arguments of a function
MOST_PARAMETERS = 32
# a variable of the environment: if it is set, then somebody has chosen
ENVIRONMENT = values.flags(ANY)


class Held(dict[Key, Value]):
    """What variables hold, by address and size; those near an address are found without looking at all."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: dict[int, dict[Key, None]] = {}

    def __setitem__(self, key: Key, value: Value) -> None:
        if key not in self:
            for part in range(key[0] >> _PART, (key[0] + max(key[1], 1) - 1 >> _PART) + 1):
                self._parts.setdefault(part, {})[key] = None
        super().__setitem__(key, value)

    def near(self, start: int, stop: int) -> list[Key]:
        """The keys of variables that end behind *start* and do not lie behind *stop*."""
        first, last = start >> _PART, max(stop - 1, start) >> _PART
        if last - first > len(self):
            keys: Iterable[Key] = self
        elif first == last:
            keys = self._parts.get(first, ())
        else:
            keys = dict.fromkeys(key for part in range(first, last + 1) for key in self._parts.get(part, ()))
        return [key for key in keys if key[0] < stop and start < key[0] + key[1]]


def parameter(address: int, number: int) -> Key:
    """The key of the argument *number* of the function at *address*."""
    return PARAMETERS + address * MOST_PARAMETERS + number, _WORD


class Variables:
    def __init__(
        self,
        work: Work,
        questions: Questions,
        references: References,
        writers: Writers,
        *,
        longest_of_flags: int,
    ) -> None:
        self.program = work.program
        self._work, self._questions, self._references, self._writers = work, questions, references, writers
        self._longest_of_flags = longest_of_flags
        self.held = Held()
        self.changes: dict[Key, int] = {}
        # the pieces that have read a variable, and those that may write to it
        self.readers: dict[Key, set[int]] = {}
        self.written_by: dict[Key, set[int]] = {}
        # variables that were read before anything that tells was written to them
        self._silent: set[Key] = set()
        # variables to which their first value is written again
        self._restored: set[Key] = set()
        # the features whose answers go where they are not followed: into a field of some structure, or an argument
        self.unfollowed = 0
        # objects, by their start: whether code writes there
        self._written: dict[int, bool] = {}
        # where something that tells was written, each byte; and what code points at that uses it
        self._telling: set[int] = set()
        self.telling_addresses: set[int] = set()

    def load(self, address: int, size: int) -> Value:
        if not self.is_variable(address):
            return self._questions.special(address, size)
        if address in self._questions.models:
            return self._questions.special(self._questions.models[address], size)
        module = self.program.module(address)
        start = address - module.base
        if module.is_constant(start):
            data = module.bytes_at(start, size)
            return int.from_bytes(data, "little") if len(data) == size else None
        key = (address, size)
        if self._work.running:
            self.readers.setdefault(key, set()).add(self._work.current)
        if key not in self.held:
            if self._telling.isdisjoint(range(address, address + size)):
                self._silent.add(key)
                return self._never_written(key)
            self._track(key)
        return self.held[key]

    def is_variable(self, address: int) -> bool:
        return 0 < tag(address) <= len(self.program.modules)

    def leads_to_answer(self, address: int) -> bool:
        """Whether an answer was written to the variable at *address*, or a little behind it."""
        return not self._telling.isdisjoint(range(address, address + NEAR))

    def first_value(self, address: int, size: int) -> int | None:
        """What stands in the variable from the start, if no code writes just that there; None if some may."""
        key = (address, size)
        if key not in self.held or key in self._restored or not self.is_variable(address):
            return None
        module = self.program.module(address)
        return int.from_bytes(module.bytes_at(address - module.base, size), "little")

    def store(self, address: int, size: int, value: Value, facts: int) -> None:
        if facts > ANY | ASKED:
            # nothing gets there
            return
        self._note(address, size, value, facts)
        for key in self.held.near(address, address + size):
            start, length = key
            is_inside = start >= address and start + length <= address + size
            if is_inside and size <= _WORD:
                part = values.truncated(values.shifted(value, 8 * (start - address), "shr", 8), length)
            else:
                part = 0 if is_inside and value == 0 else values.lossy(value)
            self._join(key, part, facts)

    def store_in_table(self, address: int, size: int, value: Value, facts: int) -> None:
        """Note that *value* is written somewhere in the table at *address*."""
        if facts > ANY | ASKED:
            return
        for key in self._keys_at(address):
            self._join(key, value if key[1] == size else None, facts)
        self._forget_behind(address, facts)

    def escape(self, address: int, facts: int) -> None:
        """Note that code that is not followed may write what is at *address* where the processor has *facts*."""
        for key in self._keys_at(address):
            self._join(key, None, facts)
        self._forget_behind(address, facts)

    def _keys_at(self, address: int) -> list[Key]:
        """The variables in the object at *address*, as far as it is known to reach."""
        module = self.program.module(address)
        table = module.table(address - module.base)
        near = self.held.near(module.base + table.start, module.base + table.stop)
        return [key for key in near if key[0] - module.base in table]

    def _forget_behind(self, address: int, facts: int) -> None:
        """Forget what stands behind `_keys_at` and may be in the same object: nothing says where it ends."""
        module = self.program.module(address)
        start = address - module.base
        table = module.table(start)
        if facts & ANY == ANY or module.object_at(table.start):
            # whoever runs it has chosen to
            return
        behind = range(module.base + table.stop, address + self._longest_of_flags)
        for key in self.held.near(behind.start, behind.stop):
            # where something points, another object starts
            if key[0] in behind and not module.starts_in(start + 1, key[0] - module.base + 1):
                self.forget(key)

    # what is written

    def _note(self, address: int, size: int, value: Value, facts: int) -> None:
        """Note that something that tells may be in a variable from now on."""
        if not values.tells(value) & ANY and (not facts & ANY or value is None):
            return
        cases = values.cases_of(value)
        if cases is not None and any(map(tag, cases)):
            # a pointer to a function is used, whatever it tells
            return
        new = set(range(address, address + size)) - self._telling
        if not new or size > _WORD:
            return
        self._telling |= new
        self._wake(key for key in self._silent if not new.isdisjoint(range(key[0], key[0] + key[1])))
        module = self.program.module(address)
        start = address - module.base
        around = module.table(start) if module.object_at(start) else range(0)
        around = around if 0 < len(around) <= _LARGEST_OBJECT else range(start, start + size)
        starts = set(range(around.start, around.stop))
        if self._work.running:
            # a structure without a symbol: what points at its start
            targets = (target - module.base for target in self._questions.targets(self._work.running[-1]))
            starts |= {target for target in targets if start - NEAR < target < start}
        for target in starts:
            self.telling_addresses.add(module.base + target)
        self._work.spread.update(
            (user.address, user)
            for target in sorted(starts)
            for user in self._questions.users(module, range(target, target + 1))
        )

    def _never_written(self, key: Key) -> Value:
        address, size = key
        module = self.program.module(address)
        data = module.bytes_at(address - module.base, size)
        return int.from_bytes(data, "little") if any(data) and not self._is_written(address) else None

    def _is_written(self, address: int) -> bool:
        module = self.program.module(address)
        table = module.table(address - module.base)
        key = module.base + table.start
        if key not in self._written:
            # through an address in data anything may be done, but for one that the loader puts there for code alone
            is_pointed_at = not all(map(module.is_in_got, module.slots_to(table.start, table.stop)))
            starts = table if module.object_at(table.start) else range(table.start - NEAR, table.stop)
            is_written = is_pointed_at or module.is_counted(starts)
            self._written[key] = is_written or any(True for _ in self._writers.writers_of(module, table, starts))
        return self._written[key]

    def keeps_pointer(self, address: int) -> bool:
        """Whether the pointer that the loader puts in the variable at *address* stays there, as far as the wheel goes.

        Another file may write to what a library offers to all.
        """
        module = self.program.module(address)
        table = module.table(address - module.base)
        is_offered = module.is_open and not module.is_python_module and module.exported_names(table)
        return not is_offered and not self._is_written(address)

    def _wake(self, keys: Iterable[tuple[int, int]]) -> None:
        """Run again what has read the variables with these *keys* when these did not say anything yet."""
        for key in list(keys):
            self._silent.discard(key)
            self._work.again(self.readers.get(key, ()))

    def _track(self, key: Key) -> None:
        address, size = key
        module = self.program.module(address)
        start = address - module.base
        self.held[key] = int.from_bytes(module.bytes_at(start, size), "little")
        table = module.table(start)
        starts = table if module.object_at(start) else range(start - NEAR, start + size)
        if module.is_counted(starts):
            self.held[key] = None
            return
        pieces: dict[int, Piece] = {}
        for piece in self._writers.writers_of(module, table, starts):
            pieces[piece.address] = piece
            if len(pieces) > MOST_USERS:
                self.forget(key)
                return
        self.written_by[key] = set(pieces)
        self._work.aware |= pieces.keys()
        self._work.queue.update(pieces)

    def _join(self, key: Key, value: Value, facts: int) -> None:
        first = self.first_value(*key)
        if first is not None and values.shown_equal(value, first) != EVERY:
            self._restored.add(key)
            self._work.again(self.readers.get(key, ()))
        old = self.held[key]
        if old is None:
            return
        new = values.join(old, 0, value, facts)
        if new == old:
            return
        self.changes[key] = self.changes.get(key, 0) + 1
        most = MOST_CHANGES if values.tells(new) else _MOST_SILENT_CHANGES
        self._set(key, None if self.changes[key] > most else new)

    def forget(self, key: Key) -> None:
        self._set(key, None)

    def _set(self, key: Key, value: Value) -> None:
        if key in self.held and self.held[key] == value:
            return
        self.held[key] = value
        self._work.again(self.readers.get(key, ()))

    def lose_writer(self, piece: Piece) -> None:
        for key in [key for key, writers in self.written_by.items() if piece.address in writers]:
            self.forget(key)


class World(Protocol):
    """The parts of the engine, and what `Answers` says of functions."""

    program: Program
    work: Work
    references: References
    writers: Writers
    variables: Variables

    def is_closed(self, address: int) -> bool: ...
    def follows(self, address: int) -> bool: ...
    def summary(self, address: int) -> "Summary | None": ...
    def called(self, address: int, arguments: Sequence[Value], facts: int) -> None: ...
    def leads_above(self, address: int) -> bool: ...
    def followed(self, address: int, arguments: Sequence[Value], facts: int) -> None: ...
    def leads_to_answer(self, value: Value) -> bool: ...
    def arguments(self, address: int) -> Sequence[Value]: ...


class Summary(Struct, frozen=True):
    """What a function tells its caller: two registers, and the facts if it returns at all."""

    result: Value
    second: Value
    facts: int
    returns: bool
    # whether it writes something that tells through pointers that it was given; whether an argument says what it asks
    hands_out: bool
    is_asked: bool

    @property
    def tells(self) -> bool:
        results = (value for value in (self.result, self.second) if not is_address(value))
        # an address that is returned is used where it is, whatever a caller does with it
        return bool(any(map(values.tells, results)) or self.facts or self.hands_out or self.is_asked)


def is_address(value: Value) -> bool:
    """Whether *value* is an address in some case."""
    if isinstance(value, int):
        return tag(value) != 0
    return isinstance(value, values.Choice) and any(map(tag, values.cases_of(value) or ()))
