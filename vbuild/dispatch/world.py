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
    """The parts of the engine, and which functions to follow."""

    program: Program
    references: References
    writers: Writers
    variables: Variables
    objects: Objects

    def follows(self, address: int) -> bool:
        """Whether the function at *address* may be run with the arguments of its caller."""

    def summary(self, address: int) -> "Summary | None":
        """What a call of the function at *address* tells any caller; None if it is not known."""

    def is_closed(self, address: int) -> bool:
        """Whether all calls of the function at *address* are known: it is run with what all of them hand over."""

    def waits(self, address: int) -> bool:
        """Whether all calls of the function at *address* are known, and none was seen: it is run after them."""

    def called(self, address: int, arguments: Sequence[Value], facts: int) -> bool:
        """Note a call of the function at *address* with *arguments*: in registers, then on the stack.

        True if it is run with all that any call hands over.
        """

    def leads_above(self, address: int) -> bool:
        """Whether calls from the function at *address* on may lead to code above the level."""

    def facts_at(self, address: int) -> int:
        """What is known of the processor whenever the function at *address* is called."""

    def followed(self, address: int, arguments: Sequence[Value], facts: int) -> None:
        """Note a call of the function at *address* that is run with its arguments, as in `called`."""

    def leads_to_answer(self, value: Value) -> bool:
        """Whether *value* tells something, or points at a structure in which something does."""

    def arguments(self, address: int) -> Sequence[Value]:
        """What the function at *address* is called with, as in `called`."""


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
