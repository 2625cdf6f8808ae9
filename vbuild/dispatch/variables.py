"""What the variables of a program can hold of the processor's answers.

A variable holds all that is written to it; as soon as an answer is written, all code that may write there is run. A
variable that says nothing of the processor can hold anything, and so can a field of a structure that is not located.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from msgspec import Struct

from vbuild.dispatch import values
from vbuild.dispatch.facts import ANY, ASKED
from vbuild.dispatch.module import Piece
from vbuild.dispatch.program import ALLOCATORS, HEAP, PARAMETERS, Program, Work
from vbuild.dispatch.questions import Questions
from vbuild.dispatch.references import MOST_USERS, NEAR, References
from vbuild.dispatch.values import Value, tag
from vbuild.dispatch.writers import Writers

_SPACE, _ORIGIN = 40, 1 << 39
# objects that are followed; bytes of code that makes one, or is given one, and is followed from its caller
_MOST_OBJECTS, LONGEST_MAKER = 64, 2048
_NONE: frozenset[int] = frozenset()
_UNWRITTEN = values.choice({})
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


def objects_in(value: Value) -> frozenset[int]:
    if value is None or (isinstance(value, int) and not is_object(value)):
        return _NONE
    cases = values.cases_of(value) or ()
    return frozenset(object_of(number) for number in cases if is_object(number))


def is_object(number: int) -> bool:
    return tag(number) == tag(HEAP)


def _address_of(number: int) -> int:
    return HEAP + (number << _SPACE) + _ORIGIN


def object_of(address: int) -> int:
    return (address - HEAP) >> _SPACE


class Objects:
    """Objects on the heap that only code which is run can reach: their fields are known as other variables are.

    made      a call of ``malloc`` and the like gives an object its own space of addresses, one for each way to the call
    kept      its address stands in variables whose every user is run, and in fields of other such objects
    shared    as soon as code that is not run may have its address: from then on anybody may write to it

    No program that works reads what nobody wrote to memory from ``malloc``, so it counts as no value. The variables
    are *held* by others; *forget* makes one of them anything, as it is if it cannot be followed.
    """

    def __init__(self, work: Work, writers: Writers, values_by_key: Held, forget: Callable[[Key], None]) -> None:
        self.program = work.program
        self._work, self._writers, self._held, self._forget = work, writers, values_by_key, forget
        # by the calls that lead there, the last one the allocator's
        self._objects: dict[tuple[int, ...], int] = {}
        self._is_zero: list[bool] = []
        self._shared: set[int] = set()
        self._seen_objects: dict[int, set[int]] = {}
        # the pieces that make an object, and that write to it
        self.makers: dict[int, set[int]] = {}
        self.writers_of: dict[int, set[int]] = {}
        # the objects in which an answer is, the variables that hold their addresses, and what uses these variables
        self._telling_objects: set[int] = set()
        self._holders: dict[int, set[Key]] = {}
        self._holder_users: dict[Key, set[int]] = {}
        self._is_making: dict[int, bool] = {}

    def allocated(self, way: tuple[int, ...], name: str) -> Value:
        """What the allocator *name* returns where calls lead to it by that *way*: the address of an object, or zero."""
        if way not in self._objects:
            if len(self._objects) >= _MOST_OBJECTS:
                return None
            self._objects[way] = len(self._objects)
            self._is_zero.append(ALLOCATORS[name])
        number = self._objects[way]
        self.makers.setdefault(number, set()).add(self._work.current)
        if number in self._shared:
            return None
        return self.see(values.choice({0: 0, _address_of(number): 0}))

    def makes_objects(self, address: int) -> bool:
        """Whether the function at *address* is a short one that calls an allocator."""
        if address not in self._is_making:
            piece = self.program.module(address).piece(address)
            self._is_making[address] = self.is_short(address) and any(
                self.program.destination(reference.target) in ALLOCATORS
                or self.program.behind(
                    self.program.module(address), reference.target - self.program.module(address).base
                )
                in ALLOCATORS
                for reference in (self.program.module(address).shape(piece).outward if piece else ())
            )
        return self._is_making[address]

    def is_short(self, address: int) -> bool:
        piece = self.program.module(address).piece(address)
        return piece is not None and piece.address == address and piece.end - piece.address <= LONGEST_MAKER

    def has_object(self, value: Value) -> bool:
        """Whether *value* may point at an object that only code which is run can reach."""
        return not objects_in(value) <= self._shared

    def has_telling_object(self, value: Value) -> bool:
        return not objects_in(value).isdisjoint(self._telling_objects - self._shared)

    def is_private(self, address: int) -> bool:
        """Whether what uses the variable or field at *address* can be found, and is run if it must be."""
        if is_object(address):
            return object_of(address) not in self._shared
        module = self.program.module(address)
        table = module.table(address - module.base)
        return not module.exported_names(table) and not module.slots_to(table.start, table.stop)

    def see(self, value: Value) -> Value:
        """*value*, noted as one that the piece that runs uses."""
        if self._work.running and (objects := objects_in(value)):
            self._seen_objects.setdefault(self._work.current, set()).update(objects)
        return value

    def share_seen(self) -> None:
        """Note that code which is not run may know the objects that the piece that runs uses."""
        for number in self._seen_objects.get(self._work.current, ()):
            self.share(_address_of(number))

    def share(self, value: Value) -> None:
        """Note that code which is not run may know the objects that *value* points at."""
        for number in objects_in(value) - self._shared:
            self._shared.add(number)
            for key, value_there in list(self._held.items()):
                if (is_object(key[0]) and object_of(key[0]) == number) or number in objects_in(value_there):
                    self._forget(key)
            self._work.again(self.makers[number])

    def first_of_object(self, address: int) -> tuple[Value, dict[int, Piece]]:
        """What is in the object at *address* before anything is written there, and what writes to it."""
        first = 0 if self._is_zero[object_of(address)] else _UNWRITTEN
        module = self.program.module
        addresses = self.writers_of.get(object_of(address), ())
        writers = {writer: piece for writer in addresses if (piece := module(writer).piece(writer))}
        return first if self.is_private(address) else None, writers

    def note_telling(self, address: int) -> None:
        """Note that an answer is in the object at *address*: all users of pointers to it have to run."""
        number = object_of(address)
        if number not in self._telling_objects:
            self._telling_objects.add(number)
            for key in list(self._holders.get(number, ())):
                self._run_users(key)
            # where they hand it to is followed, or it is shared
            self._work.again([address for address, seen in self._seen_objects.items() if number in seen])

    def hold(self, key: Key, value: Value) -> bool:
        """Note that the variable *key* points at objects; False if it cannot be followed, and they are shared."""
        address, size = key
        is_lost = any(self._held[other] is None for other in self._held.near(address, address + size))
        if size != _WORD or is_lost or not self.is_private(address):
            self.share(value)
            return False
        for number in objects_in(value):
            self._holders.setdefault(number, set()).add(key)
            if number in self._telling_objects or is_object(address):
                self._run_users(key)
        return True

    def _run_users(self, key: Key) -> None:
        if key in self._holder_users:
            return
        if is_object(key[0]):
            self._holder_users[key] = set()
            return
        module = self.program.module(key[0])
        users = {piece.address: piece for piece in self._writers.users_of_variable(module, key[0] - module.base)}
        self._holder_users[key] = set(users)
        if len(users) > MOST_USERS or not self._work.given_up.isdisjoint(users):
            self._forget(key)
            return
        self._work.add(users)

    def lose_user(self, address: int) -> None:
        for key, users in list(self._holder_users.items()):
            if address in users:
                self._forget(key)


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
        self.objects = Objects(work, writers, self.held, self.forget)
        self.changes: dict[Key, int] = {}
        # the pieces that have read a variable, and those that may write to it
        self.readers: dict[Key, set[int]] = {}
        self.written_by: dict[Key, set[int]] = {}
        # variables that were read before anything that tells was written to them
        self._silent: set[Key] = set()
        # the features whose answers go where they are not followed: into a field of some structure, or an argument
        self.unfollowed = 0
        # objects, by their start: whether code writes there
        self._written: dict[int, bool] = {}
        # those that are copied to objects: what they have from the start counts
        self.copied: set[Key] = set()
        # where something that tells was written, each byte; and what code points at that uses it
        self._telling: set[int] = set()
        self.telling_addresses: set[int] = set()

    def load(self, address: int, size: int) -> Value:
        is_variable = self.is_variable(address)
        if not (is_variable or is_object(address)):
            return self._questions.special(address, size)
        if address in self._questions.models:
            return self._questions.special(self._questions.models[address], size)
        if is_variable:
            module = self.program.module(address)
            start = address - module.base
            if module.is_constant(start):
                data = module.bytes_at(start, size)
                return int.from_bytes(data, "little") if len(data) == size else None
        key = (address, size)
        if self._work.running:
            self.readers.setdefault(key, set()).add(self._work.current)
        if key not in self.held:
            is_maker = any(self._work.current in makers for makers in self.objects.makers.values())
            if is_variable and is_maker and self.objects.is_private(address):
                # all that may write there can be run
                self.copied.add(key)
            elif self._telling.isdisjoint(range(address, address + size)):
                self._silent.add(key)
                return self._never_written(key)
            self._track(key)
        return self.objects.see(self.held[key])

    def is_variable(self, address: int) -> bool:
        return 0 < tag(address) <= len(self.program.modules)

    def leads_to_answer(self, address: int) -> bool:
        """Whether an answer was written to the variable at *address*, or a little behind it."""
        return not self._telling.isdisjoint(range(address, address + NEAR))

    def store(self, address: int, size: int, value: Value, facts: int) -> None:
        if facts > ANY | ASKED:
            # nothing gets there
            return
        self._note(address, size, value, facts)
        for key in self.held.near(address, address + size):
            start, length = key
            if start >= address and start + length <= address + size and size <= _WORD:
                part = values.truncated(values.shifted(value, 8 * (start - address), "shr", 8), length)
            elif value == 0 and size > _WORD:
                part = 0
            elif size <= _WORD:
                behind = values.shifted(value, 8 * max(start - address, 0), "shr", 8)
                indexes = range(max(address - start, 0), min(address + size - start, length))
                part = values.replaced(self.held[key], behind, indexes)
            else:
                part = values.lossy(value)
            self._join(key, part, facts)

    def store_in_table(self, address: int, size: int, value: Value, facts: int) -> None:
        """Note that *value* is written somewhere in the table at *address*."""
        if facts > ANY | ASKED:
            return
        for key in self._keys_at(address):
            self._join(key, value if key[1] == size else None, facts)
        self._forget_behind(address, facts)

    def overwrite(self, address: int, size: int | None, value: Value) -> None:
        """Note that up to *size* bytes from *address* on, if it is known how many, get *value*: zero or anything."""
        if size is None:
            keys = [*self._keys_at(address), *(self._keys_behind(address) if value == 0 else ())]
        else:
            keys = self.held.near(address, address + size)
        for key in keys:
            self._join(key, value, 0)
        if size is None and value is None:
            self._forget_behind(address, 0)

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

    def _keys_behind(self, address: int) -> list[Key]:
        """The variables behind `_keys_at` that may be in the same object: nothing says where it ends."""
        module = self.program.module(address)
        table = module.table(address - module.base)
        if module.object_at(table.start):
            return []
        behind = range(module.base + table.stop, address + NEAR)
        return [key for key in self.held.near(behind.start, behind.stop) if key[0] in behind]

    def _keys_of_one_object(self, address: int) -> list[Key]:
        """Those of `_keys_behind` with nothing in between that something points at: there another object starts."""
        module = self.program.module(address)
        start = address - module.base
        return [
            key
            for key in self._keys_behind(address)
            if key[0] < address + self._longest_of_flags and not module.starts_in(start + 1, key[0] - module.base + 1)
        ]

    def _forget_behind(self, address: int, facts: int) -> None:
        if facts & ANY == ANY:
            # whoever runs it has chosen to
            return
        for key in self._keys_of_one_object(address):
            self.forget(key)

    # what is written

    def _note(self, address: int, size: int, value: Value, facts: int) -> None:
        """Note that something that tells may be in a variable from now on."""
        if is_object(address):
            self.objects.writers_of.setdefault(object_of(address), set()).add(self._work.current)
        is_pointer = self.objects.has_object(value) and self.objects.hold((address, size), value)
        if not is_pointer and not values.tells(value) & ANY and (not facts & ANY or value is None):
            return
        cases = values.cases_of(value)
        if not is_pointer and cases is not None and any(map(tag, cases)):
            # a pointer to a function is used, whatever it tells
            return
        new = set(range(address, address + size)) - self._telling
        if not new or size > _WORD:
            return
        self._telling |= new
        self._wake(key for key in self._silent if not new.isdisjoint(range(key[0], key[0] + key[1])))
        if is_object(address) and not is_pointer:
            self.objects.note_telling(address)
        if is_object(address) or is_pointer:
            return
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
        if not self.is_variable(address):
            return None
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
        if is_object(address):
            self.held[key], writers = self.objects.first_of_object(address)
            self._run_writers(key, writers.values())
            return
        module = self.program.module(address)
        start = address - module.base
        self.held[key] = int.from_bytes(module.bytes_at(start, size), "little")
        table = module.table(start)
        starts = table if module.object_at(start) else range(start - NEAR, start + size)
        if module.is_counted(starts):
            self.held[key] = None
            return
        self._run_writers(key, self._writers.writers_of(module, table, starts))

    def _run_writers(self, key: Key, writers: Iterable[Piece]) -> None:
        pieces: dict[int, Piece] = {}
        for piece in writers:
            pieces[piece.address] = piece
            if len(pieces) > MOST_USERS:
                self.forget(key)
                return
        self.written_by[key] = set(pieces)
        self._work.aware |= pieces.keys()
        self._work.queue.update(pieces)

    def _join(self, key: Key, value: Value, facts: int) -> None:
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
        old = self.held.get(key, 0)
        if value == old and key in self.held:
            return
        self.held[key] = value
        self._work.again(self.readers.get(key, ()))
        if value is None:
            self.objects.share(old)

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
    objects: Objects

    def is_closed(self, address: int) -> bool: ...
    def follows(self, address: int) -> bool: ...
    def summary(self, address: int) -> "Summary | None": ...
    def called(self, address: int, arguments: Sequence[Value], facts: int) -> bool: ...
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
