"""The errors that users meet: one root, a child for each kind of thing that is wrong, and the place in front."""

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from difflib import get_close_matches
from pathlib import Path
from types import TracebackType
from typing import ClassVar

# what a machine refuses for want of room or health, or by its owner's will: no mistake of the program that asked
_REFUSED = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EACCES, errno.EPERM, errno.EROFS),
        *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE),
        *(errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO),
    }
)


class VbuildError(Exception):
    """Something vbuild refuses: its text is one line that says where, what was found, what was expected, what to do.

    The command line prints that line and ends with the class's *exit_code*; 2 is kept for mistakes in the words of a
    command. *advice* is a sentence that holds for every error of the class: where to read on. It never says again what
    the line says, so it is a second line, for people: the command line adds it only on a terminal.

    A kind of error has a class of its own if somebody catches it by name, or if it has another exit code or advice.
    """

    exit_code: ClassVar[int] = 1
    advice: ClassVar[str] = ""


class RecipeError(VbuildError):
    """A recipe, lock, report or other file of settings cannot be read, or not be followed as it is written."""

    advice = "docs/reference describes the keys of recipes, machines and reports."


class HardwareError(VbuildError):
    """The name of a processor, GPU or driver, or the description of a machine, is not known."""

    advice = (
        "docs/reference/recipe.md shows CPU levels and GPUs, docs/reference/machine.md the description of a machine."
    )


class BinaryError(VbuildError):
    """An ELF file, or its GPU code, does not match its format, or cannot be edited without a risk to what is left."""

    advice = "docs/explanation/surgery.md says which files vbuild leaves as they are."


class WheelError(VbuildError):
    """A wheel or its name breaks the wheel specification, or is not what its name and metadata promise."""

    advice = "docs/reference/verify-rules.md lists what vbuild checks in wheels, and what can be allowed."


class VariantError(VbuildError):
    """Variant metadata breaks PEP 825 or the providers draft."""

    advice = "docs/explanation/variants.md explains labels, properties and providers."


class FetchError(VbuildError):
    """A file is on no package index, or cannot be fetched."""

    advice = "docs/reference/environment.md names the settings of indexes, proxies and certificates."


class BuildError(VbuildError):
    """A source, program, CUDA toolkit, step or worker that the work needs is missing, has failed, or is in use."""

    advice = "docs/limits.md lists what is known not to work."


class RepackageError(VbuildError):
    """Wheels cannot be slimmed, split, laid out or published as asked."""

    advice = "docs/howto and docs/layouts show what wheels can be turned into."


def reason_of(error: OSError | UnicodeDecodeError) -> str:
    """Returns why something cannot be read or written; of a tree that shutil copies, the reason of the first file."""
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8"
    if error.errno is None and error.args and isinstance(error.args[0], list):
        file, _, message = error.args[0][0]
        return f"{file}: {str(message).partition('] ')[2].partition(': ')[0] or message}"
    return error.strerror or str(error)


def refusal_of(error: OSError, *, where: object = "a file") -> str | None:
    """Returns the file that *error* names, or else *where*, and why the machine refuses; None for other errors.

    Also what was removed while it was in use, by the highest folder that is gone with it.
    """
    if error.errno == errno.ENOENT and (gone := next(_gone(error), None)):
        return f"{gone}: is gone; expected inputs, output and caches to stay until the command ends: run it again"
    if error.errno not in _REFUSED:
        return None
    return f"{error.filename or where}: cannot be read or written: {error.strerror}"


def _gone(error: OSError) -> Iterator[Path]:
    """What is not there of the files that *error* names."""
    for name in (error.filename, error.filename2):
        if isinstance(name, str | bytes | os.PathLike) and not (path := Path(os.fsdecode(name))).exists():
            yield next((one for one in reversed(path.parents) if not one.exists()), path)


def meant(text: str, known: Iterable[str]) -> str:
    """Returns "; did you mean 'x'?" with the one of *known* that *text* is nearest to; empty if none is near."""
    near = get_close_matches(text, list(known), n=1, cutoff=0.7)
    return f"; did you mean {near[0]!r}?" if near else ""


class _Place:
    """The block that `at` begins: a class, for a generator takes three times as long, and wheels have many members."""

    __slots__ = ("_place",)

    def __init__(self, place: object) -> None:
        self._place = place

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, VbuildError) and not str(error).startswith(f"{self._place}: "):
            raise type(error)(f"{self._place}: {error}") from error


def at(place: object) -> AbstractContextManager[None]:
    """Put *place* in front of the message of any vbuild error raised inside, unless it stands there already."""
    return _Place(place)
