"""Objects on the heap that only code which is run can reach: what their fields hold is known as of other variables.

    made      a call of ``malloc`` and the like gives an object its own space of addresses, one for each way to the call
    kept      its address stands in variables whose every user is run, and in fields of other such objects
    shared    as soon as code that is not run may have its address: from then on anybody may write to it

What nobody has written to memory from ``malloc`` is read by no program that works, so it counts as no value.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

from vbuild.dispatch import values
from vbuild.dispatch.imports import ALLOCATORS
from vbuild.dispatch.module import Module, Piece
from vbuild.dispatch.program import HEAP, Program
from vbuild.dispatch.references import MOST_USERS, NEAR
from vbuild.dispatch.values import Value, tag
from vbuild.dispatch.writers import Writers
from vbuild.elf.iced import Mnemonic

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
    return frozenset(_object_of(number) for number in cases if is_object(number))


def is_object(number: int) -> bool:
    return tag(number) == tag(HEAP)


def _address_of(number: int) -> int:
    return HEAP + (number << _SPACE) + _ORIGIN


def _object_of(address: int) -> int:
    return (address - HEAP) >> _SPACE


class Objects(Writers, ABC):
    """The objects on the heap, and where their addresses are."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._variables = Held()
        # what is run: pieces that ask, that use answers, or that write to variables with answers; and what waits for it
        self._running: list[Piece] = []
        self._aware: set[int] = set()
        self._queue: dict[int, Piece] = {}
        # functions that are called with something else than before: they wait until all that may call them has run
        self._called_anew: dict[int, Piece] = {}
        # what takes too much: whether that counts as not followed, or as what does not ask at all
        self._given_up: set[int] = set()
        self._discarded: set[int] = set()
        # by the calls that lead there, the last one the allocator's
        self._objects: dict[tuple[int, ...], int] = {}
        self._is_zero: list[bool] = []
        self._shared: set[int] = set()
        self._seen_objects: dict[int, set[int]] = {}
        # the pieces that make an object, and that write to it
        self._makers: dict[int, set[int]] = {}
        self._object_writers: dict[int, set[int]] = {}
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
        self._makers.setdefault(number, set()).add(self._running[-1].address)
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

    def first_of_object(self, address: int) -> Value:
        return 0 if self._is_zero[_object_of(address)] else _UNWRITTEN

    def is_private(self, address: int) -> bool:
        """Whether what uses the variable or field at *address* can be found, and is run if it must be."""
        if is_object(address):
            return _object_of(address) not in self._shared
        module = self.program.module(address)
        table = module.table(address - module.base)
        return not module.exported_names(table) and not module.places_of(table.start, table.stop)

    def see(self, value: Value) -> Value:
        """*value*, noted as one that the piece that runs uses."""
        if self._running and (found := objects_in(value)):
            self._seen_objects.setdefault(self._running[-1].address, set()).update(found)
        return value

    def share_seen(self) -> None:
        """Note that code which is not run may know the objects that the piece that runs uses."""
        for number in self._seen_objects.get(self._running[-1].address, ()):
            self.share(_address_of(number))

    def share(self, value: Value) -> None:
        """Note that code which is not run may know the objects that *value* points at."""
        for number in objects_in(value) - self._shared:
            self._shared.add(number)
            for key, held in list(self._variables.items()):
                if (is_object(key[0]) and _object_of(key[0]) == number) or number in objects_in(held):
                    self._set(key, None)
            self._queue_again(self._makers[number])

    def _note_written(self, address: int) -> None:
        """Note that the piece that runs writes to the object at *address*."""
        self._object_writers.setdefault(_object_of(address), set()).add(self._running[-1].address)

    def _writers_of_object(self, address: int) -> dict[int, Piece]:
        module = self.program.module
        found = self._object_writers.get(_object_of(address), ())
        return {place: piece for place in found if (piece := module(place).piece(place))}

    def _note_telling(self, address: int) -> None:
        """Note that an answer is in the object at *address*: what uses variables that point at it has to be run."""
        number = _object_of(address)
        if number not in self._telling_objects:
            self._telling_objects.add(number)
            for key in list(self._holders.get(number, ())):
                self._run_users(key)
            # where they hand it to is followed, or it is shared
            self._queue_again([address for address, seen in self._seen_objects.items() if number in seen])

    def _hold(self, key: Key, value: Value) -> bool:
        """Note that the variable *key* points at objects; False if it cannot be followed, and they are shared."""
        address, size = key
        is_lost = any(self._variables[other] is None for other in self._variables.near(address, address + size))
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
        users = {piece.address: piece for piece in self._users_of_variable(module, key[0] - module.base)}
        self._holder_users[key] = set(users)
        if len(users) > MOST_USERS or not all(map(self._can_run, users)):
            self._set(key, None)
            return
        self._run_too(users)

    def _users_of_variable(self, module: Module, place: int) -> Iterator[Piece]:
        """The pieces that use the variable at *place*, or make an address from which it may be reached."""
        table = module.table(place)
        low = table.start if module.object_at(place) else place - NEAR
        for site in module.sites(min(low, table.start) - 4, table.stop):
            instruction = module.instruction_with(site)
            if instruction is None or not (
                instruction.mnemonic == Mnemonic.LEA or instruction.ip_rel_memory_address in table
            ):
                continue
            if piece := module.piece(module.base + site):
                yield piece

    def _lose_user(self, address: int) -> None:
        """Note that the piece at *address* is not run after all."""
        for key, users in list(self._holder_users.items()):
            if address in users:
                self._set(key, None)

    # what is run

    def _queue_again(self, addresses: Iterable[int]) -> None:
        for address in addresses:
            if piece := self.program.module(address).piece(address):
                self._queue[address] = piece

    def _can_run(self, address: int) -> bool:
        return address not in self._given_up and address not in self._discarded

    def _run_too(self, pieces: dict[int, Piece]) -> None:
        self._queue.update((address, piece) for address, piece in pieces.items() if address not in self._aware)
        self._aware |= pieces.keys()

    @abstractmethod
    def _set(self, key: Key, value: Value) -> None: ...
