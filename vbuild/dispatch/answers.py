"""Which code knows what the processor has, and what it has found: in variables, and in what functions return.

A piece that asks is run. If it returns or writes something that depends on the answer, the code that uses this is run,
too, and so on until nothing changes: a variable then has all that is written to it, and a function's summary all that
it returns to any caller. On the way facts about a processor only get fewer; what is not followed is unknown.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_

from msgspec import Struct

from vbuild.dispatch import values
from vbuild.dispatch.arm_code import ArmModule
from vbuild.dispatch.arm_interpreter import ArmInterpreter
from vbuild.dispatch.arm_questions import ArmQuestions, ArmReferences, ArmWriters
from vbuild.dispatch.facts import ANY, ASKED, FEATURES, features, of_level
from vbuild.dispatch.interpreter import Interpreter, TooMuchError
from vbuild.dispatch.module import Module, Piece
from vbuild.dispatch.program import PARAMETERS, Program, Work
from vbuild.dispatch.questions import Questions
from vbuild.dispatch.references import References
from vbuild.dispatch.values import Value
from vbuild.dispatch.variables import (
    ENVIRONMENT,
    MOST_CHANGES,
    MOST_PARAMETERS,
    Key,
    Summary,
    Variables,
    is_address,
    parameter,
)
from vbuild.dispatch.writers import Writers
from vbuild.hardware.cpu import AARCH64_VERSIONS, Cpu


class Architecture(Struct, frozen=True):
    """How code for one kind of processor is read and run, and which features the level of a rank has.

    Where it *is_understood*, arguments are followed into functions that others call, and code counts as unguarded if
    the conditions on the way to it were understood; elsewhere nothing is shown to be unguarded in a file that asks.
    Code writes to *longest_of_flags* bytes at most by the address of a structure without a symbol that has answers.
    """

    module: type[Module]
    questions: type[Questions]
    references: type[References]
    writers: type[Writers]
    interpreter: type[Interpreter]
    of_level: Callable[[int], int]
    is_understood: bool
    longest_of_flags: int


X86_64 = Architecture(
    Module, Questions, References, Writers, Interpreter, of_level, is_understood=True, longest_of_flags=32
)
AARCH64 = Architecture(
    ArmModule,
    ArmQuestions,
    ArmReferences,
    ArmWriters,
    ArmInterpreter,
    lambda rank: features(Cpu("aarch64", AARCH64_VERSIONS[rank]).features),
    is_understood=False,
    longest_of_flags=0,
)


# the most steps, which grow with the size of the code, and more slowly for large code. Nearly all are instructions, of
# some 20 us each; to begin a piece costs as much as many of them
_STEPS, _MOST_STEPS, _STEPS_A_RUN = ((25_000, 5.25), (900_000, 20)), 1_500_000, 60
# the files that ask which get that many steps each; the part of the steps for code that is run only because all calls
# of what it calls have to be known
_MOST_ASKING, _CALLER_SHARE = 3, 3
# pieces that are run only because they use an answer, and their length in bytes: longer ones are run if they lead to
# code above the level
_MOST_SPREAD, _LONGEST_SPREAD = 600, 2048
# pieces longer than this are not followed from a caller
_LONGEST_FOLLOWED = 8192
# runs of functions inside each other
_MOST_NESTED = 12
# arguments of a function that are followed: in registers and on the stack
_ARGUMENTS = 18
# what a caller takes for granted of a function that has not been run
_NOTHING_KNOWN = Summary(None, None, 0, returns=True, hands_out=False, is_asked=False)


class Answers:
    """The functions of a program that know something about the processor, by what they ask, read or are given."""

    def __init__(self, program: Program, features: int, architecture: Architecture) -> None:
        """Every processor that runs *program* has the *features*."""
        self.program, self.work, self.features = program, Work(program), features
        self._above: dict[int, int] = {}
        self.questions = architecture.questions(program)
        self.references = architecture.references(program, self.questions)
        self.writers = architecture.writers(program, self.questions, self.references)
        self.variables = Variables(
            self.work,
            self.questions,
            self.references,
            self.writers,
            longest_of_flags=architecture.longest_of_flags,
        )
        self._architecture = architecture
        # the pieces from which calls and jumps seem to lead to code above the level; None for too many
        self.leading: set[int] | None = None
        # by piece, what it uses, with the facts there: forgotten when the piece is run again
        self.uses: dict[int, dict[int, int]] = {}
        self._telling_functions: set[int] = set()
        # pieces that are run only because all calls of what they call have to be known; and the steps that took
        self._only_callers: set[int] = set()
        self._caller_steps = 0
        self.results: dict[int, Interpreter] = {}
        self._callers: dict[int, set[int]] = {}
        self.runs = 0
        self.work.most = self._most_steps()
        # what each piece hands over to functions, by argument, and which arguments it has handed over in its last run
        self._calls: dict[Key, dict[int, Value]] = {}
        self._fresh: dict[int, set[Key]] = {}
        # by piece, the functions that it calls and of which all calls are known
        self._closed_by: dict[int, set[int]] = {}

    def above(self, piece: Piece) -> int:
        if piece.address not in self._above:
            self._above[piece.address] = self.program.module(piece.address).needed_in(piece) & ~self.features
        return self._above[piece.address]

    # what functions are called with

    def is_closed(self, address: int) -> bool:
        """Whether all calls of the function at *address* are known: it is run with what all of them hand over."""
        if not self._architecture.is_understood:
            return False
        if address not in self.work.closed:
            is_too_much = self.work.is_spent or self._caller_steps >= self.work.most // _CALLER_SHARE
            callers = None if is_too_much else self.references.known_callers(address)
            if callers is not None and (
                not self.work.given_up.isdisjoint(callers) or any(map(self.questions.is_known, callers.values()))
            ):
                # some are not run
                callers = None
            self.work.closed[address] = callers is not None
            if callers is not None and (piece := self.program.module(address).piece(address)):
                users = {**callers, address: piece}
                self._only_callers |= users.keys() - self.work.aware
                self.work.aware |= users.keys()
                self.work.queue.update(users)
                for caller in callers:
                    self._closed_by.setdefault(caller, set()).add(address)
        return self.work.closed[address]

    def called(self, address: int, arguments: Sequence[Value], facts: int) -> None:
        """Note a call with *arguments*: in registers, then on the stack."""
        answers = (value for value in arguments if value is not ENVIRONMENT and not is_address(value))
        answered = reduce(or_, map(values.tells, answers), 0) & FEATURES
        is_closed = self.work.closed.get(address)
        # only what can choose code above the level counts
        if facts > ANY | ASKED or not (is_closed or (answered and self.leads_above(address))):
            return
        if not self.is_closed(address):
            self.variables.unfollowed |= answered
            return
        for number, value in enumerate(arguments):
            self._hand_over(parameter(address, number), values.with_facts(value, facts))

    def followed(self, address: int, arguments: Sequence[Value], facts: int) -> None:
        """Note a call that is followed with its own arguments, as in `called`."""
        # it is run without this caller, too
        if self.work.closed.get(address):
            self.called(address, arguments, facts)

    def _hand_over(self, key: Key, value: Value) -> None:
        """Join *value* to what all calls hand over as the argument *key*, for the piece that runs."""
        calls, caller = self._calls.setdefault(key, {}), self.work.current
        fresh = self._fresh.setdefault(caller, set())
        new = values.join(calls[caller], 0, value, 0) if key in fresh else value
        fresh.add(key)
        if caller not in calls or calls[caller] != new:
            calls[caller] = new
            self._set_argument(key)

    def _set_argument(self, key: Key) -> None:
        new = reduce(_met, self._calls[key].values())
        address = (key[0] - PARAMETERS) // MOST_PARAMETERS
        self.variables.readers[key] = {address}
        if self.variables.changes.get(key, 0) > MOST_CHANGES:
            new = None
        if key in self.variables.held and self.variables.held[key] == new:
            return
        self.variables.changes[key] = self.variables.changes.get(key, 0) + 1
        self.variables.held[key] = new
        if piece := self.program.module(address).piece(address):
            # behind all others: some of these may call it, too
            self.work.called_anew.pop(address, None)
            self.work.called_anew[address] = piece

    def arguments(self, address: int) -> Sequence[Value]:
        return [self.variables.held.get(parameter(address, number)) for number in range(_ARGUMENTS)]

    def leads_to_answer(self, value: Value) -> bool:
        """Whether *value* tells something, or points at a structure in which something does."""
        if isinstance(value, int) and self.variables.is_variable(value):
            return self.variables.leads_to_answer(value)
        return bool(values.tells(value) & ANY) and value is not ENVIRONMENT and not is_address(value)

    def leads_above(self, address: int) -> bool:
        return self.leading is None or address in self.leading

    def follows(self, address: int) -> bool:
        """Whether the function, if it has to do with answers, is run with its caller's arguments."""
        piece = self.program.module(address).piece(address)
        if piece is None or piece.address != address or address not in self.work.aware or address in self.work.given_up:
            return False
        return piece.end - piece.address <= _LONGEST_FOLLOWED and not self.questions.is_known(piece)

    def summary(self, address: int) -> Summary | None:
        if not self.follows(address):
            return None
        self._callers.setdefault(address, set()).add(self.work.current)
        if address not in self.results or (address in self.work.queue and address not in self.work.called_anew):
            piece = self.program.module(address).piece(address)
            if piece and piece not in self.work.running and len(self.work.running) <= _MOST_NESTED:
                self._run(piece)
        result = self.results.get(address)
        return result.summary if result else None

    def result(self, piece: Piece) -> Interpreter | None:
        """What running *piece* has found; None if it takes too much."""
        if piece.address not in self.results and piece.address not in self.work.given_up:
            if self.work.is_spent:
                self._give_up(piece)
            else:
                self.work.queue[piece.address] = piece
            if self.work.queue or self.work.called_anew:
                self.settle()
        return self.results.get(piece.address)

    def settle(self) -> None:
        if not self.runs:
            self.work.aware |= self.questions.asking.keys()
            self.work.queue |= self.questions.asking
        while True:
            if waiting := self.work.queue or self.work.called_anew:
                address, piece = waiting.popitem()
                if address not in self.work.given_up and address not in self.work.called_anew:
                    self._run(piece)
                continue
            if self.work.spread:
                # short code that uses answers may hand them on
                for address, piece in self.work.spread.items():
                    if piece.end - piece.address <= _LONGEST_SPREAD and len(self.work.aware) < _MOST_SPREAD:
                        self.work.add({address: piece})
                self.work.spread.clear()
                continue
            # a variable that says nothing about the processor can be anything
            silent = [
                key
                for key, value in self.variables.held.items()
                if value is not None and key[0] < PARAMETERS and not values.tells(value)
            ]
            if not silent:
                return
            for key in silent:
                self.variables.forget(key)

    def _run(self, piece: Piece) -> None:
        self.runs += 1
        self.work.queue.pop(piece.address, None)
        self.work.called_anew.pop(piece.address, None)
        old = self.results.get(piece.address)
        if self.work.is_spent:
            self._give_up(piece)
            return
        self.work.spent += _STEPS_A_RUN
        interpreter = self._architecture.interpreter(self)
        self.work.running.append(piece)
        self._fresh.pop(piece.address, None)
        try:
            interpreter.run_piece(piece)
        except TooMuchError:
            self._give_up(piece)
            return
        finally:
            self.work.running.pop()
            if piece.address in self._only_callers:
                self._caller_steps += interpreter.steps
        self.results[piece.address] = interpreter
        self.uses.pop(piece.address, None)
        if interpreter.summary != (old.summary if old else _NOTHING_KNOWN):
            self.work.again(self._callers.get(piece.address, ()))
        if interpreter.summary.tells and piece.address not in self._telling_functions:
            self._telling_functions.add(piece.address)
            module = self.program.module(piece.address)
            start = piece.address - module.base
            near = (other for other in module.pieces_near(piece) if piece.address in self.questions.targets(other))
            slots = [
                start,
                *(
                    slot
                    for slot in module.slots_to(start, start + 1)
                    if self.variables.keeps_pointer(module.base + slot)
                ),
            ]
            # who calls it by a variable that always points at it
            self.variables.telling_addresses.update(module.base + slot for slot in slots[1:])
            users = (user for slot in slots for user in self.questions.users(module, range(slot, slot + 1)))
            self.work.spread.update((user.address, user) for user in (*near, *users))

    def _give_up(self, piece: Piece) -> None:
        self.work.given_up.add(piece.address)
        old = self.results.pop(piece.address, None)
        for function in self._closed_by.pop(piece.address, ()):
            # from here on it may be called with anything
            self.work.closed[function] = False
            for number in range(_ARGUMENTS):
                self.variables.held.pop(parameter(function, number), None)
            if function in self.work.aware:
                self.work.again([function])
        self.variables.lose_writer(piece)
        if old is not None:
            self.work.again(self._callers.get(piece.address, ()))

    def _most_steps(self) -> int:
        asking = max(1, min(_MOST_ASKING, len(self.questions.asking_modules)))
        return asking * min(_MOST_STEPS, *(fewest + int(self.program.size / a_step) for fewest, a_step in _STEPS))

    def is_aware(self, piece: Piece) -> bool:
        if piece.address in self.work.aware:
            return True
        if self.program.module(piece.address).is_of_compiler(piece):
            return False
        targets = self.questions.targets(piece)
        if self._telling_functions.isdisjoint(targets) and self.variables.telling_addresses.isdisjoint(targets):
            return False
        self.work.aware.add(piece.address)
        return True


def _met(left: Value, right: Value) -> Value:
    return values.join(left, 0, right, 0)
