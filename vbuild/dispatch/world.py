"""What the interpreter of one function asks of the rest of the program, and tells it."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from vbuild.dispatch import values
from vbuild.dispatch.facts import ANY
from vbuild.dispatch.objects import Objects
from vbuild.dispatch.program import Program
from vbuild.dispatch.references import References
from vbuild.dispatch.values import Value, tag
from vbuild.dispatch.variables import Variables
from vbuild.dispatch.writers import Writers

# a variable of the environment: if it is set, then somebody has chosen
ENVIRONMENT = values.flags(ANY)


class World(Protocol):
    """The parts of the engine, and what `Answers` says of functions."""

    program: Program
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
