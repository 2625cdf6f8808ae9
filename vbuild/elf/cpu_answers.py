"""Which code knows what the processor has, and what it has found: in variables, and in what functions return.

    on         a piece that asks is run; if what it returns or writes tells something, what uses that is run, too
    to an end  a variable is all that is written to it, a function's summary all that it returns to any caller

Facts about a processor only get fewer on the way to the end, and what is not followed is unknown.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from iced_x86 import MemorySizeExt, Mnemonic

from vbuild.elf import values
from vbuild.elf.cpu_facts import ANY, ASKED, EVERY
from vbuild.elf.cpu_questions import special
from vbuild.elf.interpreter import Interpreter, TooMuchError
from vbuild.elf.module import FIELDS, Piece, displacement_of, displacement_of_field
from vbuild.elf.operands import Summary
from vbuild.elf.program import LEAVES, PARAMETERS, Program
from vbuild.elf.references import MOST_WRITERS, References, writes
from vbuild.elf.values import Value, tag

# instructions that are run, in all: so many, and one for so many bytes of code
_FEWEST_STEPS, _BYTES_A_STEP = 300_000, 20
# pieces that are run only because they use an answer, and their length in bytes: longer ones are run if they lead to
# code above the level
_MOST_SPREAD, _LONGEST_SPREAD = 600, 2048
# pieces longer than this are not followed from a caller
_LONGEST_FOLLOWED = 8192
# runs of functions inside each other
_MOST_NESTED = 12
# how often the value of a variable may change before it can be anything, and of one that tells nothing
_MOST_FIELD_USERS = 32
_MOST_CHANGES, _MOST_SILENT_CHANGES = 40, 4
# how far in front of a variable without a symbol a pointer to its structure may point, in bytes
_NEAR = 256
# arguments of a function that are followed: in registers and on the stack
_ARGUMENTS = 10
_WORD = 8


class Answers(References):
    """The variables of a program and the functions that know something about the processor."""

    _interpreter: type[Interpreter] = Interpreter

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._variables: dict[tuple[int, int], Value] = {}
        self._changes: dict[tuple[int, int], int] = {}
        self._readers: dict[tuple[int, int], set[int]] = {}
        self._writers: dict[tuple[int, int], set[int]] = {}
        # variables that were read before anything that tells was written to them
        self._silent: set[tuple[int, int]] = set()
        # variables to which their first value is written again
        self._restored: set[tuple[int, int]] = set()
        self._constants: dict[tuple[int, int], Value] = {}
        # where something that tells was written, each byte; and what code points at that uses it
        self._telling: set[int] = set()
        self._telling_places: set[int] = set()
        # what is run: pieces that ask, that use answers, or that write to variables with answers
        self._aware: set[int] = set()
        self._telling_functions: set[int] = set()
        self._telling_fields: set[tuple[int, int]] = set()
        self._field_readers: set[int] = set()
        self._results: dict[int, Interpreter] = {}
        self._callers: dict[int, set[int]] = {}
        self._queue: dict[int, Piece] = {}
        self._spread: dict[int, Piece] = {}
        self._running: list[Piece] = []
        self._runs = self._steps = 0
        self._given_up: set[int] = set()
        # whether all calls of a function are known
        self._closed: dict[int, bool] = {}

    def _special(self, address: int, size: int) -> Value:
        """What stands at *address* of one of the spaces that no file has."""
        return special(address, size)

    # what the interpreter asks

    def load(self, address: int, size: int) -> Value:
        if address >= LEAVES and tag(address) != tag(FIELDS):
            return self._special(address, size)
        if address in self._models:
            return self._special(self._models[address], size)
        if tag(address) != tag(FIELDS):
            module = self.program.module(address)
            place = address - module.base
            if module.is_constant(place):
                data = module.bytes_at(place, size)
                return int.from_bytes(data, "little") if len(data) == size else None
        key = (address, size)
        if self._running:
            self._readers.setdefault(key, set()).add(self._running[-1].address)
        if key not in self._variables:
            if key not in self._telling_fields and self._telling.isdisjoint(range(address, address + size)):
                self._silent.add(key)
                return self._never_written(key)
            self._track(key)
        return self._variables[key]

    def first_value(self, address: int, size: int) -> int | None:
        """What stands in the variable from the start, if no code writes just that there; None if some may."""
        key = (address, size)
        if key not in self._variables or key in self._restored or not 0 < tag(address) <= len(self.program.modules):
            return None
        module = self.program.module(address)
        return int.from_bytes(module.bytes_at(address - module.base, size), "little")

    def store(self, address: int, size: int, value: Value, facts: int) -> None:
        if facts > ANY | ASKED:
            # nothing gets there
            return
        self._note(address, size, value, facts)
        for key in [key for key in self._variables if key[0] < address + size and address < key[0] + key[1]]:
            start, length = key
            if start >= address and start + length <= address + size and size <= _WORD:
                part = values.truncated(values.shifted(value, 8 * (start - address), "shr", 8), length)
            elif value == 0 and size > _WORD:
                part = 0
            else:
                part = values.lossy(value)
            self._join(key, part, facts)

    def is_closed(self, address: int) -> bool:
        """Whether all calls of the function at *address* are known: it is run with what all of them hand over."""
        if address not in self._closed:
            callers = self._known_callers(address)
            self._closed[address] = callers is not None
            if callers is not None and (piece := self.program.module(address).piece(address)):
                users = {**callers, address: piece}
                self._aware |= users.keys()
                self._queue.update(users)
                for number in range(_ARGUMENTS):
                    self._writers[_parameter(address, number)] = set(callers)
        return self._closed[address]

    def called(self, address: int, arguments: Sequence[Value], facts: int) -> None:
        if facts > ANY | ASKED or not (self._closed.get(address) or any(map(self._leads_to_answer, arguments))):
            return
        if not self.is_closed(address):
            return
        for number, value in enumerate(arguments):
            key = _parameter(address, number)
            self._readers[key] = {address}
            if key in self._variables:
                self._join(key, value, facts)
            else:
                self._variables[key] = value
                self._queue_again((address,))

    def _leads_to_answer(self, value: Value) -> bool:
        """Whether *value* tells something, or points at a structure in which something does."""
        if isinstance(value, int) and 0 < tag(value) <= len(self.program.modules):
            return not self._telling.isdisjoint(range(value, value + _NEAR))
        return bool(values.tells(value) & ANY)

    def arguments(self, address: int) -> Sequence[Value]:
        if not self._closed.get(address):
            return ()
        return [self._variables.get(_parameter(address, number)) for number in range(_ARGUMENTS)]

    def store_in_table(self, address: int, size: int, value: Value, facts: int) -> None:
        if facts > ANY | ASKED:
            return
        module = self.program.module(address)
        table = module.table(address - module.base)
        for key in self._variables:
            if key[0] - module.base in table:
                self._join(key, value if key[1] == size else None, facts)

    def escape(self, address: int) -> None:
        module = self.program.module(address)
        table = module.table(address - module.base)
        for key in self._variables:
            if key[0] - module.base in table:
                self._join(key, None, 0)

    def follows(self, address: int) -> bool:
        """Whether the function at *address* is run with the arguments of its caller, if it has to do with answers."""
        piece = self.program.module(address).piece(address)
        if piece is None or piece.address != address or address not in self._aware or address in self._given_up:
            return False
        return piece.end - piece.address <= _LONGEST_FOLLOWED and not self._is_known(piece)

    def summary(self, address: int) -> Summary | None:
        """What a call of the function at *address* tells its caller; None if it is not known."""
        if not self.follows(address):
            return None
        self._callers.setdefault(address, set()).add(self._running[-1].address)
        if address not in self._results:
            piece = self.program.module(address).piece(address)
            if piece in self._running or len(self._running) > _MOST_NESTED or piece is None:
                return None
            self._queue.pop(address, None)
            self._run(piece)
        result = self._results.get(address)
        return result.summary if result else None

    # variables

    def _note(self, address: int, size: int, value: Value, facts: int) -> None:
        """Note that something that tells may be in a variable from now on."""
        if tag(address) == tag(FIELDS):
            self._note_field((address, size), value)
            return
        if not values.tells(value) & ANY and (not facts or value is None):
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
        place = address - module.base
        around = module.table(place) if module.object_at(place) else range(place, place + size)
        places = set(range(around.start, around.stop))
        if self._running:
            # a structure without a symbol: what points at its start
            targets = (target - module.base for target in self._targets(self._running[-1]))
            places |= {target for target in targets if place - _NEAR < target < place}
        for target in places:
            self._telling_places.add(module.base + target)
        self._spread.update(
            (one.address, one) for target in sorted(places) for one in self._users(module, range(target, target + 1))
        )

    def _never_written(self, key: tuple[int, int]) -> Value:
        """What stands in a variable from the start, if no code seems to write there."""
        address, size = key
        if tag(address) == tag(FIELDS):
            return None
        module = self.program.module(address)
        place = address - module.base
        data = module.bytes_at(place, size)
        if key not in self._constants:
            table = module.table(place)
            is_written = not any(data) or any(True for _ in self._writers_of(module, table, table))
            self._constants[key] = None if is_written else int.from_bytes(data, "little")
        return self._constants[key]

    def _wake(self, keys: Iterable[tuple[int, int]]) -> None:
        """Run again what has read the variables with these *keys* when these did not say anything yet."""
        for key in list(keys):
            self._silent.discard(key)
            self._queue_again(self._readers.get(key, ()))

    def _note_field(self, key: tuple[int, int], value: Value) -> None:
        if key in self._telling_fields or not values.tells(value) & ANY:
            return
        self._telling_fields.add(key)
        users: set[int] = set()
        for piece, _ in self._field_users(key):
            users.add(piece.address)
            if len(users) > _MOST_FIELD_USERS:
                # other structures have a field there, too
                self._variables[key] = None
                return
        # they are run if they lead to code above the level: fields of other structures stand at the same place
        self._field_readers |= users
        self._wake({key} & self._silent)

    def _track_field(self, key: tuple[int, int]) -> None:
        writers: dict[int, Piece] = {}
        is_known = True
        for piece, instruction in self._field_users(key):
            if instruction.mnemonic == Mnemonic.LEA:
                # what is written through that address is not seen
                is_known = False
            elif writes(instruction):
                writers[piece.address] = piece
                width = MemorySizeExt.size(instruction.memory_size)
                start = displacement_of(instruction)
                is_known &= width > _WORD or (start, width) == (displacement_of_field(key[0]), key[1])
        self._variables[key] = 0
        if is_known:
            self._run_writers(key, writers)
        else:
            self._variables[key] = values.flags(ASKED)

    def _track(self, key: tuple[int, int]) -> None:
        address, size = key
        if tag(address) == tag(FIELDS):
            self._track_field(key)
            return
        module = self.program.module(address)
        place = address - module.base
        self._variables[key] = int.from_bytes(module.bytes_at(place, size), "little")
        table = module.table(place)
        starts = table if module.object_at(place) else range(place - _NEAR, place + size)
        pieces = {piece.address: piece for piece in self._writers_of(module, table, starts)}
        self._run_writers(key, pieces)

    def _run_writers(self, key: tuple[int, int], pieces: Mapping[int, Piece]) -> None:
        if len(pieces) > MOST_WRITERS:
            self._variables[key] = None
            return
        self._writers[key] = set(pieces)
        self._aware |= pieces.keys()
        self._queue.update(pieces)

    def _join(self, key: tuple[int, int], value: Value, facts: int) -> None:
        first = self.first_value(*key)
        if first is not None and values.shown_equal(value, first) != EVERY:
            self._restored.add(key)
            self._queue_again(self._readers.get(key, ()))
        old = self._variables[key]
        if old is None:
            return
        new = values.join(old, 0, value, facts)
        if new == old:
            return
        self._changes[key] = self._changes.get(key, 0) + 1
        most = _MOST_CHANGES if values.tells(new) else _MOST_SILENT_CHANGES
        self._set(key, None if self._changes[key] > most else new)

    def _set(self, key: tuple[int, int], value: Value) -> None:
        if value is None and self._variables[key] is None:
            return
        self._variables[key] = value
        self._queue_again(self._readers.get(key, ()))

    def _queue_again(self, addresses: Iterable[int]) -> None:
        for address in addresses:
            if piece := self.program.module(address).piece(address):
                self._queue[address] = piece

    # running

    def _result(self, piece: Piece) -> Interpreter | None:
        """What running *piece* has found, when all variables are known; None if it takes too much."""
        if piece.address not in self._results and piece.address not in self._given_up:
            self._queue[piece.address] = piece
            self._settle()
        return self._results.get(piece.address)

    def _settle(self) -> None:
        if not self._runs:
            self._aware |= self.asking.keys()
            self._queue |= self.asking
        while True:
            while self._queue:
                address, piece = self._queue.popitem()
                if address not in self._given_up:
                    self._run(piece)
            if self._spread:
                self._follow_spread()
                continue
            # a variable that says nothing about the processor can be anything
            silent = [key for key, value in self._variables.items() if value is not None and not values.tells(value)]
            if not silent:
                return
            for key in silent:
                self._set(key, None)

    def _follow_spread(self) -> None:
        """Run what uses answers, as far as it is short: it may hand them on."""
        for address, piece in self._spread.items():
            is_short = piece.end - piece.address <= _LONGEST_SPREAD and len(self._aware) < _MOST_SPREAD
            if address not in self._aware and is_short:
                self._aware.add(address)
                self._queue[address] = piece
        self._spread.clear()

    def _run(self, piece: Piece) -> None:
        self._runs += 1
        interpreter = self._interpreter(self)
        old = self._results.get(piece.address)
        self._running.append(piece)
        try:
            interpreter.run_piece(piece, most=self._most_steps - self._steps)
        except TooMuchError:
            self._given_up.add(piece.address)
            self._results.pop(piece.address, None)
            for key, writers in self._writers.items():
                if piece.address in writers:
                    self._set(key, None)
            if old is not None:
                self._queue_again(self._callers.get(piece.address, ()))
            return
        finally:
            self._running.pop()
            self._steps += interpreter.steps
        self._results[piece.address] = interpreter
        self._forget_uses(piece)
        if interpreter.summary != (old.summary if old else None):
            self._queue_again(self._callers.get(piece.address, ()))
        if interpreter.summary.tells and piece.address not in self._telling_functions:
            self._telling_functions.add(piece.address)
            module = self.program.module(piece.address)
            place = piece.address - module.base
            near = (one for one in module.pieces_near(piece) if piece.address in self._targets(one))
            self._spread.update((one.address, one) for one in (*near, *self._users(module, range(place, place + 1))))

    @cached_property
    def _most_steps(self) -> int:
        size = sum(len(code.data) for module in self.program.modules for code in module.elf.code)
        return _FEWEST_STEPS + size // _BYTES_A_STEP

    def _forget_uses(self, piece: Piece) -> None:
        """Called when what *piece* uses may have changed."""

    def _is_aware(self, piece: Piece) -> bool:
        """Whether *piece* asks, uses an answer, or writes to a variable with one."""
        if piece.address in self._aware:
            return True
        targets = self._targets(piece)
        if piece.address not in self._field_readers and (
            self._telling_functions.isdisjoint(targets) and self._telling_places.isdisjoint(targets)
        ):
            return False
        self._aware.add(piece.address)
        return True


def _parameter(address: int, number: int) -> tuple[int, int]:
    """The key of the variable that the argument *number* of the function at *address* is."""
    return PARAMETERS + address * 16 + number, _WORD
