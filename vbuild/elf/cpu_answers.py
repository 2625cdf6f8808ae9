"""Which code knows what the processor has, and what it has found: in variables, and in what functions return.

    on         a piece that asks is run; if what it returns or writes tells something, what uses that is run, too
    to an end  a variable is all that is written to it, a function's summary all that it returns to any caller

Facts about a processor only get fewer on the way to the end, and what is not followed is unknown.
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, reduce

from iced_x86 import Instruction, MemorySizeExt, Mnemonic

from vbuild.elf import values
from vbuild.elf.cpu_facts import ANY, ASKED, EVERY, FEATURES
from vbuild.elf.cpu_questions import special
from vbuild.elf.interpreter import Interpreter, TooMuchError
from vbuild.elf.module import FIELDS, Piece, displacement_of, displacement_of_field, module_of_field
from vbuild.elf.objects import NEAR, Objects, is_object
from vbuild.elf.operands import ENVIRONMENT, Summary, is_address
from vbuild.elf.program import PARAMETERS, Program
from vbuild.elf.references import MOST_WRITERS, writes
from vbuild.elf.values import Value, tag

# instructions that are run, in all: so many, and one for so many bytes of code
_FEWEST_STEPS, _BYTES_A_STEP = 1_000_000, 20
# files that ask for which there are as many; the part for code that only reads a field where an answer may be
_MOST_ASKING, _FIELD_SHARE = 3, 3
# pieces that are run only because they use an answer, and their length in bytes: longer ones are run if they lead to
# code above the level
_MOST_SPREAD, _LONGEST_SPREAD = 600, 2048
# pieces longer than this are not followed from a caller
_LONGEST_FOLLOWED = 8192
# runs of functions inside each other
_MOST_NESTED = 12
# how often the value of a variable may change before it can be anything, and of one that tells nothing
_MOST_FIELD_READERS = 200
_MOST_CHANGES, _MOST_SILENT_CHANGES = 40, 4
# arguments of a function that are followed: in registers and on the stack
_ARGUMENTS, _PARAMETERS = 18, 32
# bytes of a field in which an answer is kept: wider ones mostly hold pointers and sizes
_LONGEST_ANSWER = 4
# what stands for the facts at all calls of a function among its arguments
_FACTS = 31
_WORD = 8
# what fills a structure without an instruction that names its fields
_COPIES = frozenset({"memcpy", "memmove", "mempcpy", "__memcpy_chk", "__memmove_chk", "bcopy", "realloc", "read"})


class Answers(Objects):
    """The variables of a program and the functions that know something about the processor."""

    _interpreter: type[Interpreter] = Interpreter

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._changes: dict[tuple[int, int], int] = {}
        self._readers: dict[tuple[int, int], set[int]] = {}
        self._writers: dict[tuple[int, int], set[int]] = {}
        # variables that were read before anything that tells was written to them
        self._silent: set[tuple[int, int]] = set()
        # variables to which their first value is written again
        self._restored: set[tuple[int, int]] = set()
        self._constants: dict[tuple[int, int], Value] = {}
        # those that are copied to objects: what they have from the start counts
        self._copied: set[tuple[int, int]] = set()
        # where something that tells was written, each byte; and what code points at that uses it
        self._telling: set[int] = set()
        self._telling_places: set[int] = set()
        # what is run: pieces that ask, that use answers, or that write to variables with answers
        self._aware: set[int] = set()
        self._telling_functions: set[int] = set()
        # fields of structures with answers; what reads them, what wrote to each byte, and those others may write, too
        self._telling_fields: set[tuple[int, int]] = set()
        self._field_readers: set[int] = set()
        self._field_writers: dict[int, set[int]] = {}
        self._kept_fields: set[tuple[int, int]] = set()
        # numbers that are written to fields without any question
        self._plain: set[tuple[tuple[int, int], Value]] = set()
        # what is run only because of such fields, as far as it is; and the steps that took
        self._only_fields: set[int] = set()
        self._discarded: set[int] = set()
        self._field_steps = 0
        self._results: dict[int, Interpreter] = {}
        self._callers: dict[int, set[int]] = {}
        self._queue: dict[int, Piece] = {}
        self._spread: dict[int, Piece] = {}
        self._runs = self._steps = 0
        self._given_up: set[int] = set()
        # what each piece hands over to functions, by argument, and which arguments it has handed over in its last run
        self._calls: dict[tuple[int, int], dict[int, Value]] = {}
        self._fresh: dict[int, set[tuple[int, int]]] = {}
        # whether all calls of a function are known
        self._closed: dict[int, bool] = {}

    def _special(self, address: int, size: int) -> Value:
        """What stands at *address* of one of the spaces that no file has."""
        return special(address, size)

    # what the interpreter asks

    def load(self, address: int, size: int) -> Value:
        is_field, is_variable = tag(address) == tag(FIELDS), self._is_variable(address)
        if not (is_field or is_variable or is_object(address)):
            return self._special(address, size)
        if address in self._models:
            return self._special(self._models[address], size)
        if is_variable:
            module = self.program.module(address)
            place = address - module.base
            if module.is_constant(place):
                data = module.bytes_at(place, size)
                return int.from_bytes(data, "little") if len(data) == size else None
        key = (address, size)
        if self._running:
            self._readers.setdefault(key, set()).add(self._running[-1].address)
        if key not in self._variables:
            if is_variable and self._is_copied(key):
                self._copied.add(key)
            elif (is_field and not any(_is_within(key, one) for one in self._telling_fields)) or (
                not is_field and self._telling.isdisjoint(range(address, address + size))
            ):
                self._silent.add(key)
                return self._never_written(key)
            self._track(key)
        return self.see(self._variables[key])

    def _is_variable(self, address: int) -> bool:
        return 0 < tag(address) <= len(self.program.modules)

    def first_value(self, address: int, size: int) -> int | None:
        """What stands in the variable from the start, if no code writes just that there; None if some may."""
        key = (address, size)
        if key not in self._variables or key in self._restored or not self._is_variable(address):
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
            is_answer = _is_answer(part, facts)
            if key in self._kept_fields:
                if is_answer:
                    both = values.either(self._variables[key], values.with_facts(part, facts))
                    if both != self._variables[key]:
                        self._changes[key] = self._changes.get(key, 0) + 1
                        self._set(key, None if self._changes[key] > _MOST_CHANGES else both)
            elif tag(address) == tag(FIELDS) and part != 0 and not is_answer and not values.tells(part):
                self._keep(key)
            else:
                self._join(key, part, facts)

    def is_closed(self, address: int, *, is_kept: bool = False) -> bool:
        """Whether all calls of the function at *address* are known: it is run with what all of them hand over.

        *is_kept* says that this is asked because of what may hold an answer, in a field of a structure.
        """
        if address not in self._closed:
            callers = self._known_callers(address)
            if callers is not None and (
                not (self._given_up | self._discarded).isdisjoint(callers) or any(map(self._is_known, callers.values()))
            ):
                # some are not run
                callers = None
            self._closed[address] = callers is not None
            if callers is not None and (piece := self.program.module(address).piece(address)):
                users = {**callers, address: piece}
                if is_kept:
                    self._only_fields |= users.keys() - self._aware
                self._aware |= users.keys()
                self._queue.update(users)
                for number in (*range(_ARGUMENTS), _FACTS):
                    self._writers[_parameter(address, number)] = set(callers)
        return self._closed[address]

    def called(self, address: int, arguments: Sequence[Value], facts: int) -> bool:
        if facts > ANY | ASKED or not (
            self._closed.get(address)
            or any(map(self._leads_to_answer, arguments))
            or (self._running and self._chooses(self._running[-1], address, arguments))
        ):
            return not any(map(self.has_telling_object, arguments))
        is_kept = not any(values.tells(value) & FEATURES for value in arguments)
        if not self._closed.get(address) and (
            not self.leads_above(address) or (is_kept and self._field_steps >= self._most_steps // _FIELD_SHARE)
        ):
            # only what can choose code above the level counts
            return not any(map(self.has_telling_object, arguments))
        if self._running and (self._is_dead(self._running[0]) or self.waits(self._running[-1].address)):
            return True
        is_closed = self.is_closed(address, is_kept=is_kept)
        if is_closed:
            self._hand_over(_parameter(address, _FACTS), values.Choice.of(((0, facts), (1, facts))) if facts else None)
        for number, value in enumerate(arguments):
            if values.tells(value) & ANY:
                self._hand_over(_parameter(address, number), values.with_facts(value, facts), is_closed=is_closed)
            elif is_closed:
                self._hand_over(_parameter(address, number), values.with_facts(value, facts))
        return is_closed

    def followed(self, address: int, arguments: Sequence[Value], facts: int) -> None:
        # it is run without this caller, too
        if self._closed.get(address):
            self.called(address, arguments, facts)

    def _hand_over(self, key: tuple[int, int], value: Value, *, is_closed: bool = True) -> None:
        """Note *value* as the argument *key* of a call in the piece that runs, and put together what all hand over."""
        calls, caller = self._calls.setdefault(key, {}), self._running[-1].address if self._running else 0
        fresh = self._fresh.setdefault(caller, set())
        calls[caller] = values.join(calls[caller], 0, value, 0) if key in fresh else value
        fresh.add(key)
        self._set_argument(key, is_closed=is_closed)

    def _set_argument(self, key: tuple[int, int], *, is_closed: bool = True) -> None:
        found = list(self._calls[key].values())
        telling = [value for value in found if values.tells(value) & ANY]
        is_known = is_closed and all(
            values.tells(value) & ANY or values.cases_of(values.known(value)) is not None for value in found
        )
        if telling and not is_known and (key[0] - PARAMETERS) % _PARAMETERS != _FACTS:
            # from elsewhere it is called with anything else
            new = values.weakened(reduce(_met, telling))
        else:
            new = reduce(_met, found)
        address = (key[0] - PARAMETERS) // _PARAMETERS
        self._readers[key] = {address}
        if not is_closed or new is None or isinstance(new, values.Word):
            for value in found:
                self.share(value)
        if key in self._variables and self._variables[key] == new:
            return
        self._changes[key] = self._changes.get(key, 0) + 1
        if self._changes[key] > _MOST_CHANGES:
            self.share(new)
            new = None
        self._variables[key] = new
        if is_closed:
            self._queue_again((address,))
        else:
            self._field_readers.add(address)
            self._queue_again({address} & self._results.keys())

    def _leads_to_answer(self, value: Value) -> bool:
        """Whether *value* tells something, or points at a structure in which something does."""
        if isinstance(value, int) and self._is_variable(value):
            return not self._telling.isdisjoint(range(value, value + NEAR))
        is_answer = bool(values.tells(value) & ANY) and value is not ENVIRONMENT and not is_address(value)
        return is_answer or self.has_telling_object(value)

    def waits(self, address: int) -> bool:
        """Whether all calls of the function at *address* are known, and none was seen: it is run after them."""
        return bool(self._closed.get(address)) and _parameter(address, _FACTS) not in self._variables

    def _chooses(self, piece: Piece, address: int, arguments: Sequence[Value]) -> bool:
        """Whether *piece*, which is above the level, tells the function at *address* by a number to use such code, too.

        Then what leads to *piece* leads there, if all calls of it are known.
        """
        if not any(isinstance(value, int) and value and not tag(value) for value in arguments):
            return False
        function = self.program.module(address).piece(address)
        if function is None or not self._is_above(piece) or not self._is_choosing(function):
            return False
        return self.is_closed(piece.address)

    def _is_choosing(self, piece: Piece) -> bool:
        """Whether *piece* uses code above the level directly, and other code, too."""
        found = [self.program.module(target).piece(target) for target in self._targets(piece)]
        return any(one and self._is_above(one) for one in found)

    @abstractmethod
    def leads_above(self, address: int) -> bool:
        """Whether calls from the function at *address* on may lead to code above the level."""

    @abstractmethod
    def _is_above(self, piece: Piece) -> bool:
        """Whether *piece* has instructions above the level."""

    def facts_at(self, address: int) -> int:
        """What is known of the processor whenever the function at *address* is called."""
        return values.shown(self._variables.get(_parameter(address, _FACTS)), lambda _: True) or 0

    def arguments(self, address: int) -> Sequence[Value]:
        return [self.see(self._variables.get(_parameter(address, number))) for number in range(_ARGUMENTS)]

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
            self._note_field((address, size), value, facts)
            return
        if is_object(address):
            self._note_written(address)
        is_pointer = self.has_object(value) and self._hold((address, size), value)
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
            self._note_telling(address)
        if is_object(address) or is_pointer:
            return
        module = self.program.module(address)
        place = address - module.base
        around = module.table(place) if module.object_at(place) else range(place, place + size)
        places = set(range(around.start, around.stop))
        if self._running:
            # a structure without a symbol: what points at its start
            targets = (target - module.base for target in self._targets(self._running[-1]))
            places |= {target for target in targets if place - NEAR < target < place}
        for target in places:
            self._telling_places.add(module.base + target)
        self._spread.update(
            (one.address, one) for target in sorted(places) for one in self._users(module, range(target, target + 1))
        )

    def _is_copied(self, key: tuple[int, int]) -> bool:
        """Whether the piece that runs makes objects, and all that may write to the variable *key* can be run."""
        return (
            bool(self._running)
            and any(self._running[-1].address in makers for makers in self._makers.values())
            and self.is_private(key[0])
        )

    def _can_run(self, address: int) -> bool:
        return address not in self._given_up and address not in self._discarded

    def _run_too(self, pieces: dict[int, Piece]) -> None:
        self._queue.update((address, piece) for address, piece in pieces.items() if address not in self._aware)
        self._aware |= pieces.keys()

    def _never_written(self, key: tuple[int, int]) -> Value:
        """What stands in a variable from the start, if no code seems to write there."""
        address, size = key
        if not self._is_variable(address):
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

    def _note_field(self, key: tuple[int, int], value: Value, facts: int) -> None:
        # what is known wherever the function is called is not an answer that it keeps
        known = self.facts_at(self._running[-1].address) if self._running else 0
        if isinstance(value, int) and not facts & FEATURES:
            self._plain.add((key, value))
        # a number that is written there whatever the processor has is not an answer, either
        if key[1] > _LONGEST_ANSWER or not _is_answer(value, 0 if known else facts) or (key, value) in self._plain:
            return
        if not values.tells(value) & FEATURES & ~known and not isinstance(value, int):
            return
        if self._running and self.is_closed(self._running[-1].address) and self.waits(self._running[-1].address):
            # it is run again with what all its callers hand over
            return
        places = range(key[0], key[0] + key[1])
        if self._running:
            for place in places:
                self._field_writers.setdefault(place, set()).add(self._running[-1].address)
        if key in self._telling_fields:
            return
        self._telling_fields.add(key)
        readers = {
            piece.address
            for piece, instruction in self._field_users(key)
            if not writes(instruction) and _is_within(_field_of(instruction, key[0]), key)
        }
        # they are run if they lead to code above the level: fields of other structures stand at the same place
        if len(readers) <= _MOST_FIELD_READERS:
            self._field_readers |= readers
        self._wake(one for one in self._silent if _is_within(one, key))

    def _track_field(self, key: tuple[int, int]) -> None:
        writers: dict[int, Piece] = {}
        module = self.program.modules[module_of_field(key[0]) - 1]
        is_known = module.has_fields and not module.is_copying and _COPIES.isdisjoint(module.imports.values())
        for piece, instruction in self._field_users(key):
            if instruction.mnemonic == Mnemonic.LEA:
                # what is written through that address is not seen
                is_known = False
            elif writes(instruction):
                writers[piece.address] = piece
                field = _field_of(instruction, key[0])
                is_known &= field[1] > _WORD or field == key
        self._variables[key] = 0
        if is_known and len(writers) <= MOST_WRITERS:
            self._run_writers(key, writers)
            return
        self._keep(key)

    def _keep(self, key: tuple[int, int]) -> None:
        """Take for the field *key* only what tells something: other structures may have a field there, too."""
        self._kept_fields.add(key)
        self._set(key, 0)
        places = range(key[0], key[0] + key[1])
        self._queue_again({address for place in places for address in self._field_writers.get(place, ())})

    def _track(self, key: tuple[int, int]) -> None:
        address, size = key
        if tag(address) == tag(FIELDS):
            self._track_field(key)
            return
        if is_object(address):
            self._variables[key] = self.first_of_object(address) if self.is_private(address) else None
            self._run_writers(key, self._writers_of_object(address))
            return
        module = self.program.module(address)
        place = address - module.base
        self._variables[key] = int.from_bytes(module.bytes_at(place, size), "little")
        table = module.table(place)
        starts = table if module.object_at(place) else range(place - NEAR, place + size)
        pieces = {piece.address: piece for piece in self._writers_of(module, table, starts)}
        self._run_writers(key, pieces)

    def _run_writers(self, key: tuple[int, int], pieces: Mapping[int, Piece]) -> None:
        if len(pieces) > MOST_WRITERS:
            self._set(key, None)
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
        old = self._variables.get(key, 0)
        if value is None and old is None:
            return
        self._variables[key] = value
        self._queue_again(self._readers.get(key, ()))
        if value is None:
            self.share(old)

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
                if not (address in self._given_up or address in self._discarded or self.waits(address)):
                    self._run(piece)
            if self._spread:
                self._follow_spread()
                continue
            # a variable that says nothing about the processor can be anything
            silent = [
                key
                for key, value in self._variables.items()
                if value is not None
                and key[0] < PARAMETERS
                and not values.tells(value)
                and key not in self._copied
                and not self.has_object(value)
            ]
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
        self._fresh.pop(piece.address, None)
        try:
            interpreter.run_piece(piece, most=self._most_steps - self._steps)
        except TooMuchError:
            if piece.address in self._only_fields:
                # what it reads need not be an answer: each of its references is a use
                self._aware.discard(piece.address)
                self._discarded.add(piece.address)
            else:
                self._given_up.add(piece.address)
            self._results.pop(piece.address, None)
            self._lose_user(piece.address)
            for key, writers in self._writers.items():
                if piece.address in writers and key[0] >= PARAMETERS:
                    self._calls.setdefault(key, {})[piece.address] = None
                    self._set_argument(key)
                elif piece.address in writers:
                    self._set(key, None)
            if old is not None:
                self._queue_again(self._callers.get(piece.address, ()))
            return
        finally:
            self._running.pop()
            self._steps += interpreter.steps
            if piece.address in self._only_fields:
                self._field_steps += interpreter.steps
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
        return _FEWEST_STEPS * max(1, min(_MOST_ASKING, len(self._asking_modules))) + size // _BYTES_A_STEP

    def _forget_uses(self, piece: Piece) -> None:
        """Called when what *piece* uses may have changed."""

    def _is_aware(self, piece: Piece) -> bool:
        """Whether *piece* asks, uses an answer, or writes to a variable with one."""
        if piece.address in self._aware:
            return True
        if piece.address in self._discarded:
            return False
        targets = self._targets(piece)
        if self._telling_functions.isdisjoint(targets) and self._telling_places.isdisjoint(targets):
            if piece.address in self._field_readers and self._field_steps < self._most_steps // _FIELD_SHARE:
                self._aware.add(piece.address)
                self._only_fields.add(piece.address)
                return True
            # code above the level may tell a function to use such code, too
            functions = (
                [self.program.module(target).piece(target) for target in targets] if self._is_above(piece) else []
            )
            if not any(one and self._is_choosing(one) and not self._is_above(one) for one in functions):
                return False
        self._aware.add(piece.address)
        return True


def _met(one: Value, other: Value) -> Value:
    return values.join(one, 0, other, 0)


def _field_of(instruction: Instruction, near: int) -> tuple[int, int]:
    """The field that *instruction* uses, in the space of the one at *near*: its address there and its size."""
    start = near + displacement_of(instruction) - displacement_of_field(near)
    return start, int(MemorySizeExt.size(instruction.memory_size))


def _is_within(key: tuple[int, int], other: tuple[int, int]) -> bool:
    return other[0] <= key[0] and key[1] > 0 and key[0] + key[1] <= other[0] + other[1]


def _is_answer(value: Value, facts: int) -> bool:
    """Whether *value* tells something, or is a number other than zero that is written where the processor has *facts*.

    What a field tells by `values.Kept` spreads to no other field: then all would soon tell something.
    """
    if isinstance(value, int):
        return bool(value and not tag(value) and facts & FEATURES)
    return bool(values.tells(value) & FEATURES)


def _parameter(address: int, number: int) -> tuple[int, int]:
    """The key of the variable that the argument *number* of the function at *address* is."""
    return PARAMETERS + address * _PARAMETERS + number, _WORD
