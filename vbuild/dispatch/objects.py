"""Objects on the heap that only code which is run can reach: what their fields hold is known as of other variables.

    made      a call of ``malloc`` and the like gives an object its own space of addresses, one for each way to the call
    kept      its address stands in variables whose every user is run, and in fields of other such objects
    shared    as soon as code that is not run may have its address: from then on anybody may write to it

What nobody has written to memory from ``malloc`` is read by no program that works, so it counts as no value.
"""

from collections.abc import Callable, Iterable

from vbuild.dispatch import values
from vbuild.dispatch.libc import ALLOCATORS
from vbuild.dispatch.module import Piece
from vbuild.dispatch.program import HEAP
from vbuild.dispatch.references import MOST_USERS
from vbuild.dispatch.values import Value, tag
from vbuild.dispatch.work import Work
from vbuild.dispatch.writers import Writers

_SPACE, _ORIGIN = 40, 1 << 39
# objects that are followed; bytes of code that makes one, or is given one, and is followed from its caller
_MOST_OBJECTS, LONGEST_MAKER = 64, 2048
_POINTER = 8
_NONE: frozenset[int] = frozenset()
_UNWRITTEN = values.choice({})
Key = tuple[int, int]
# bits of an address that say where in a part of the index of variables it is
_PART = 6


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
            found: Iterable[Key] = self
        elif first == last:
            found = self._parts.get(first, ())
        else:
            found = dict.fromkeys(key for part in range(first, last + 1) for key in self._parts.get(part, ()))
        return [key for key in found if key[0] < stop and start < key[0] + key[1]]


def objects_in(value: Value) -> frozenset[int]:
    """The numbers of the objects that *value* may point at."""
    if value is None or (isinstance(value, int) and not is_object(value)):
        return _NONE
    cases = values.cases_of(values.known(value)) or ()
    return frozenset(object_of(number) for number in cases if is_object(number))


def is_object(number: int) -> bool:
    return tag(number) == tag(HEAP)


def _address_of(number: int) -> int:
    return HEAP + (number << _SPACE) + _ORIGIN


def object_of(address: int) -> int:
    return (address - HEAP) >> _SPACE


class Objects:
    """The objects on the heap, and where their addresses are.

    The variables are *held* by others; *forget* makes one of them anything, as it is if it cannot be followed.
    """

    def __init__(self, work: Work, writers: Writers, held: Held, forget: Callable[[Key], None]) -> None:
        self.program = work.program
        self._work, self._writers, self._held, self._forget = work, writers, held, forget
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
                self.program.destination(one.target) in ALLOCATORS
                or self.program.behind(self.program.module(address), one.target - self.program.module(address).base)
                in ALLOCATORS
                for one in (self.program.module(address).shape(piece).outward if piece else ())
            )
        return self._is_making[address]

    def is_short(self, address: int) -> bool:
        piece = self.program.module(address).piece(address)
        return piece is not None and piece.address == address and piece.end - piece.address <= LONGEST_MAKER

    def has_object(self, value: Value) -> bool:
        """Whether *value* may point at an object that only code which is run can reach."""
        return not objects_in(value) <= self._shared

    def has_telling_object(self, value: Value) -> bool:
        """Whether *value* may point at such an object in which an answer is."""
        return not objects_in(value).isdisjoint(self._telling_objects - self._shared)

    def is_private(self, address: int) -> bool:
        """Whether what uses the variable or field at *address* can be found, and is run if it must be."""
        if is_object(address):
            return object_of(address) not in self._shared
        module = self.program.module(address)
        table = module.table(address - module.base)
        return not module.exported_names(table) and not module.places_of(table.start, table.stop)

    def see(self, value: Value) -> Value:
        """*value*, noted as one that the piece that runs uses."""
        if self._work.running and (found := objects_in(value)):
            self._seen_objects.setdefault(self._work.current, set()).update(found)
        return value

    def share_seen(self) -> None:
        """Note that code which is not run may know the objects that the piece that runs uses."""
        for number in self._seen_objects.get(self._work.current, ()):
            self.share(_address_of(number))

    def share(self, value: Value) -> None:
        """Note that code which is not run may know the objects that *value* points at."""
        for number in objects_in(value) - self._shared:
            self._shared.add(number)
            for key, held in list(self._held.items()):
                if (is_object(key[0]) and object_of(key[0]) == number) or number in objects_in(held):
                    self._forget(key)
            self._work.again(self.makers[number])

    def first_of_object(self, address: int) -> tuple[Value, dict[int, Piece]]:
        """What is in the object at *address* before anything is written there, and what writes to it."""
        first = 0 if self._is_zero[object_of(address)] else _UNWRITTEN
        module = self.program.module
        found = self.writers_of.get(object_of(address), ())
        writers = {place: piece for place in found if (piece := module(place).piece(place))}
        return first if self.is_private(address) else None, writers

    def note_telling(self, address: int) -> None:
        """Note that an answer is in the object at *address*: what uses variables that point at it has to be run."""
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
        if size != _POINTER or is_lost or not self.is_private(address):
            self.share(value)
            return False
        for number in objects_in(value):
            self._holders.setdefault(number, set()).add(key)
            if number in self._telling_objects or is_object(address):
                self._run_users(key)
        return True

    def _run_users(self, key: Key) -> None:
        """Run all that uses the variable *key*, which points at an object with an answer."""
        if key in self._holder_users:
            return
        if is_object(key[0]):
            self._holder_users[key] = set()
            return
        module = self.program.module(key[0])
        users = {piece.address: piece for piece in self._writers.users_of_variable(module, key[0] - module.base)}
        self._holder_users[key] = set(users)
        if len(users) > MOST_USERS or not all(map(self._work.can_run, users)):
            self._forget(key)
            return
        self._work.add(users)

    def lose_user(self, address: int) -> None:
        """Note that the piece at *address* is not run after all."""
        for key, users in list(self._holder_users.items()):
            if address in users:
                self._forget(key)
