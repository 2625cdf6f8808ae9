"""What the check of CPU levels knows of x86-64 and of aarch64: one value for each, which the engine is made with."""

from collections.abc import Callable

from msgspec import Struct

from vbuild.dispatch.arm_code import ArmModule
from vbuild.dispatch.arm_interpreter import ArmInterpreter
from vbuild.dispatch.arm_questions import ArmQuestions, ArmReferences, ArmWriters
from vbuild.dispatch.facts import features, of_level
from vbuild.dispatch.interpreter import Interpreter
from vbuild.dispatch.module import Module
from vbuild.dispatch.questions import Questions
from vbuild.dispatch.references import References
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
