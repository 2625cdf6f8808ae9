"""Archives whose members lie in them as they are, compressed or not by whoever made them: conda packages.

    write_stored(path, members) -> a zip archive of stored members, each with the first day a zip can say
    open_stored(path) -> ZipReader -> .members, .inflated

The same members give the same bytes. A member of another archive is passed on without a look at it.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from vbuild.errors import WheelError, at
from vbuild.replacing import replacing
from vbuild.rope import Rope
from vbuild.wheel.memberpath import check_path
from vbuild.wheel.press import Press
from vbuild.wheel.zipformat import Method
from vbuild.wheel.zipreader import Member, ZipReader
from vbuild.wheel.zipwriter import Attributes, ZipWriter

_HEADER = Attributes(method=Method.STORED).header()


@dataclass(frozen=True, slots=True)
class Passed:
    """The bytes of *member* of an archive that stays open as *source*."""

    source: ZipReader
    member: Member


def write_stored(path: Path, members: Iterable[tuple[str, Rope | Passed]]) -> None:
    """Write the archive *path*, new or in place of another, of *members* by their names; complete or not at all.

    `WheelError` where it cannot be written, or a name is no path below the archive's own folder.
    """
    try:
        with replacing(path) as part, at(path), part.open("xb") as file, Press(remembers=False) as press:
            writer = ZipWriter(file)
            for name, data in members:
                with at(name):
                    check_path(name)
                if isinstance(data, Passed):
                    writer.copy(data.source, data.member, name)
                else:
                    writer.write(name, data, _HEADER, press)
            writer.finish(b"")
    except OSError as error:
        raise WheelError(f"{path}: cannot be written: {error.strerror}") from error


@contextmanager
def open_stored(path: Path) -> Iterator[ZipReader]:
    """The archive at *path*; `WheelError` where it is damaged, or its members could be read in two ways."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise WheelError(f"{path}: cannot be read: {error.strerror}") from error
    with file, at(path.name):
        reader = ZipReader(file)
        reader.check_layout()
        yield reader
