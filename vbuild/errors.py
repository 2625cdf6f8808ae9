"""The errors a user can meet: one root, one child per room, and the place put in front of the message."""

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
    """Something vbuild refuses, in one line: where, what was found, what was expected."""


class TableError(VbuildError):
    """A TOML file does not say what its reader expects."""


class HardwareError(VbuildError):
    """A processor, GPU or machine description that is not known."""


class BinaryError(VbuildError):
    """A compiled file that does not match its format."""


class DeviceError(VbuildError):
    """GPU code in a form that is damaged, or that vbuild does not know."""


class SurgeryError(VbuildError):
    """An ELF file that cannot be cut without a risk to what is left of it."""


class ShortageError(SurgeryError):
    """What an edit takes and the machine does not give, files, room or a program: no fault of the ELF file's."""


class WheelError(VbuildError):
    """A wheel, or a wheel's name, that breaks the wheel specification."""


class VariantError(VbuildError):
    """Variant metadata that breaks PEP 825 or the providers draft."""


class RecipeError(VbuildError):
    """A recipe that cannot be carried out as written."""


class FetchError(VbuildError):
    """A file that no package index has, or that cannot be brought here."""


class ToolkitError(VbuildError):
    """A CUDA toolkit or a compiler that is not to be had, or does not fit what is asked of it."""


class BuildError(VbuildError):
    """A source that could not be checked out or unpacked, or a build step that failed."""


class SlimError(VbuildError):
    """A wheel that cannot be slimmed as asked: it never ran there, or its licence says no."""


class SplitError(VbuildError):
    """Libraries that cannot be taken out of a wheel as asked."""


class ClaimError(VbuildError):
    """A wheel whose bytes do not keep what its name and metadata promise."""


class ContentsError(VbuildError):
    """What was found in a wheel cannot be shown as asked."""


class ReportError(VbuildError):
    """A report that cannot be read, or that does not say what its schema expects."""


class PublishError(VbuildError):
    """A folder of wheels that cannot be looked at as what is to be published."""


class ExecutorError(VbuildError):
    """A scheduler or worker that cannot be reached, went away, or is not one of ours."""


class CiError(VbuildError):
    """cibuildwheel, its container engine or its image, or jobs of a CI system that are not as vbuild needs them."""


class LayoutError(VbuildError):
    """Wheels that cannot be laid out as asked: they do not belong together, or a layout has no place for them."""


class NativeError(VbuildError):
    """A native dependency that cannot be fetched or built as a recipe says."""


class PluginError(VbuildError):
    """A provider's plugin that cannot be had, breaks its limits, or does not answer as the providers draft says."""


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
