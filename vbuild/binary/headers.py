"""lief, which reads the headers of PE and Mach-O files, imported when the first such file is read: that takes 0.5 s."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from vbuild.errors import BinaryError


@contextmanager
def reading_with_lief() -> Iterator[ModuleType]:
    """The module lief, which prints nothing, for a block that reads headers; what it raises there is a `BinaryError`.

    So it is if lief is not installed: some machines have no wheel of it.
    """
    try:
        import lief  # noqa: PLC0415
    except ImportError as error:
        raise BinaryError("PE and Mach-O files are read with lief, which is not installed") from error
    lief.logging.disable()
    try:
        yield lief
    # numbers that its enumerations do not have, and names that are not text
    except (ArithmeticError, LookupError, RuntimeError, SystemError, TypeError, ValueError) as error:
        raise BinaryError(f"headers that cannot be read: {error}") from error
