"""The errors that users meet: one root, a child for each kind of thing that is wrong, and the place in front."""

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from difflib import get_close_matches
from pathlib import Path
from types import TracebackType
from typing import ClassVar

# a machine's refusals: no room, no permission, broken; no mistake of vbuild's
_REFUSED = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EACCES, errno.EPERM, errno.EROFS),
        *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE),
        *(errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO),
    }
)


class VbuildError(Exception):
    """Something vbuild refuses: its text is one line that says where, what was found, what was expected, what to do.

    The command line prints that line and ends with *exit_code*; 2 is for mistakes in the words of a command. On a
    terminal it adds *advice*, where to read on about all errors of the class.

    A kind of error has a class of its own if somebody catches it by name, or if it has another exit code or advice.
    """

    exit_code: ClassVar[int] = 1
    advice: ClassVar[str] = ""


class RecipeError(VbuildError):
    """A recipe, lock, report or other file of settings cannot be read or followed."""

    advice = "docs/reference describes the keys of recipes, machines and reports."


class HardwareError(VbuildError):
    """The name of a processor, GPU or driver, or the description of a machine, is wrong."""

    advice = (
        "docs/reference/recipe.md shows CPU levels and GPUs, docs/reference/machine.md the description of a machine."
    )


class BinaryError(VbuildError):
    """A compiled file, or its GPU code, does not match its format, or cannot be edited safely."""

    advice = "docs/explanation/surgery.md says which files vbuild leaves as they are."


class WheelError(VbuildError):
    """A wheel or its name breaks the wheel specification, or a promise of its name and metadata."""

    advice = "docs/reference/verify-rules.md lists what vbuild checks in wheels, and what can be allowed."


class VariantError(VbuildError):
    """Variant metadata breaks PEP 825 or the providers draft."""

    advice = "docs/explanation/variants.md explains labels, properties and providers."


class FetchError(VbuildError):
    """A file is on no package index, or cannot be fetched."""

    advice = "docs/reference/environment.md names the settings of indexes, proxies and certificates."


class BuildError(VbuildError):
    """A source, program, CUDA toolkit, step or worker is missing, has failed, or is in use."""

    advice = "docs/limits.md lists what is known not to work."


class RepackageError(VbuildError):
    """Wheels cannot be slimmed, split, laid out or published as asked."""

    advice = "docs/howto and docs/layouts show what wheels can be turned into."


def reason_of(error: OSError | UnicodeDecodeError) -> str:
    """Why something cannot be read or written; if shutil copies a tree, the reason of the first file."""
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8"
    if error.errno is None and error.args and isinstance(error.args[0], list):
        file, _, message = error.args[0][0]
        return f"{file}: {str(message).partition('] ')[2].partition(': ')[0] or message}"
    return error.strerror or str(error)


def refusal_of(error: OSError, *, where: object = "a file") -> str | None:
    """The file that *error* names, else *where*, and why the machine refuses it; None for other errors.

    For a file that was removed while it was in use, the highest folder that is gone.
    """
    if error.errno == errno.ENOENT and (gone := next(_gone(error), None)):
        return f"{gone}: is gone; expected inputs, output and caches to stay until the command ends: run it again"
    if error.errno not in _REFUSED:
        return None
    return f"{error.filename or where}: cannot be read or written: {error.strerror}"


def _gone(error: OSError) -> Iterator[Path]:
    """The files that *error* names and that do not exist."""
    for name in (error.filename, error.filename2):
        if isinstance(name, str | bytes | os.PathLike) and not (path := Path(os.fsdecode(name))).exists():
            yield next((parent for parent in reversed(path.parents) if not parent.exists()), path)


def meant(text: str, known: Iterable[str]) -> str:
    """A hint, "; did you mean ...?", with the one of *known* that is nearest to *text*; empty if none is near."""
    near = get_close_matches(text, list(known), n=1, cutoff=0.7)
    return f"; did you mean {near[0]!r}?" if near else ""


class _Place:
    """The block of `at`; a generator would take three times as long, and wheels have many members."""

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
    """Put *place* in front of the message of any vbuild error raised inside, unless it is there already."""
    return _Place(place)
