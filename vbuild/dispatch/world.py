"""What the interpreter of one function asks of the rest of the program, and tells it."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from vbuild.dispatch import values
from vbuild.dispatch.facts import ANY
from vbuild.dispatch.program import Program
from vbuild.dispatch.references import References
from vbuild.dispatch.values import Value, tag
from vbuild.dispatch.writers import Writers

# a variable of the environment: if it is set, then somebody has chosen
ENVIRONMENT = values.flags(ANY)


class World(Protocol):
    """The variables of the program, and which functions to follow."""

    program: Program
    references: References
    writers: Writers

    def load(self, address: int, size: int) -> Value:
        """What the variable of *size* bytes at *address* can hold."""

    def first_value(self, address: int, size: int) -> int | None:
        """What stands in the variable from the start, if no code writes just that there; None if some may."""

    def keeps_pointer(self, address: int) -> bool:
        """Whether the pointer that the loader puts in the variable at *address* stays there."""

    def store(self, address: int, size: int, value: Value, facts: int) -> None:
        """Note that *value* is written to *address* where the processor has *facts*."""

    def store_in_table(self, address: int, size: int, value: Value, facts: int) -> None:
        """Note that *value* is written to some place of the table at *address*."""

    def overwrite(self, address: int, size: int | None, value: Value) -> None:
        """Note that up to *size* bytes from *address* on, if it is known how many, get *value*: zero or anything."""

    def escape(self, address: int, facts: int, *, is_near: bool = False) -> None:
        """Note that code that is not followed may write what is at *address* where the processor has *facts*.

        It writes nothing behind that if it *is_near*.
        """

    def hand_over(self, address: int, function: int, register: int, facts: int) -> None:
        """Note that the *function*, which is not followed, gets *address* in that *register*, to write there.

        It does where the processor has *facts*.
        """

    def hold_pointer(self, place: int, address: int) -> None:
        """Note that the variable at *place* holds the *address* of another, to write there or behind it."""

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

    def allocated(self, way: tuple[int, ...], name: str) -> Value:
        """What the allocator *name* returns where calls lead to it by that *way*."""

    def makes_objects(self, address: int) -> bool:
        """Whether the function at *address* is a short one that calls an allocator."""

    def is_short(self, address: int) -> bool:
        """Whether the function at *address* is short enough to follow it with an object."""

    def has_object(self, value: Value) -> bool:
        """Whether *value* may point at an object on the heap that only code which is run can reach."""

    def leads_to_answer(self, value: Value) -> bool:
        """Whether *value* tells something, or points at a structure in which something does."""

    def has_telling_object(self, value: Value) -> bool:
        """Whether *value* may point at such an object in which an answer is."""

    def is_private(self, address: int) -> bool:
        """Whether what uses the variable or field at *address* can be found."""

    def share_seen(self) -> None:
        """Note that code which is not run may know the objects that the piece that runs uses."""

    def share(self, value: Value) -> None:
        """Note that code which is not run may know the objects that *value* points at."""

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
