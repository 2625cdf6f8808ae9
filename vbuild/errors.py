"""The errors that users meet: one root, a child for each kind of thing that is wrong, and the place in front."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

# what a machine refuses for want of room or health, or by its owner's will: no mistake of the program that asked
_REFUSED = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EACCES, errno.EPERM, errno.EROFS),
        *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE),
    }
)


class VbuildError(Exception):
    """Something vbuild refuses: its text is one line that says where, what was found and what was expected.

    The command line prints it and ends with status 1. Mistakes in the words of a command end with status 2.
    """


class RecipeError(VbuildError):
    """A recipe, lock, report or other file of settings cannot be read, or not be followed as it is written."""


class HardwareError(VbuildError):
    """The name of a processor, GPU or driver, or the description of a machine, is not known."""


class BinaryError(VbuildError):
    """An ELF file, or the GPU code in it, does not match its format, or has a form that vbuild does not know."""


class SurgeryError(VbuildError):
    """An ELF file cannot be edited without a risk to what is left of it."""


class ShortageError(SurgeryError):
    """An ELF file cannot be edited as the machine lacks files, room or a program for it."""


class WheelError(VbuildError):
    """A wheel or its name breaks the wheel specification, or is not what its name and metadata promise."""


class VariantError(VbuildError):
    """Variant metadata, or the answer of a provider's plugin, breaks PEP 825 or the providers draft."""


class FetchError(VbuildError):
    """A file is on no package index, or cannot be fetched."""


class BuildError(VbuildError):
    """A source, compiler, CUDA toolkit or build step is missing or failed, or another process is in the way."""


class ExecutorError(VbuildError):
    """A scheduler or worker cannot be reached, went away, or has another vbuild."""


class RepackageError(VbuildError):
    """Wheels cannot be slimmed, split, laid out or published as asked."""


def reason_of(error: OSError) -> str:
    """Why something cannot be read or written; of a tree that shutil copies, the first of the reasons, one a file."""
    if error.errno is None and error.args and isinstance(error.args[0], list):
        file, _, said = error.args[0][0]
        return f"{file}: {str(said).partition('] ')[2].partition(': ')[0] or said}"
    return error.strerror or str(error)


def refusal_of(error: OSError, *, where: object = "a file") -> str | None:
    """What to tell of an *error* that is the machine's: the file it names, or else *where*, and why; None of others."""
    if error.errno not in _REFUSED:
        return None
    return f"{error.filename or where}: cannot be read or written: {error.strerror}"


@contextmanager
def at(place: object) -> Iterator[None]:
    """Put *place* in front of the message of any vbuild error raised inside, unless it stands there already."""
    try:
        yield
    except VbuildError as error:
        if str(error).startswith(f"{place}: "):
            raise
        raise type(error)(f"{place}: {error}") from error
