"""Files that are whole or not there at all, however a run ends.

The same file under a second name, without a second copy of its bytes where the file system can.
"""

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vbuild.process.signals import uninterrupted


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """The path of a new file in *path*'s folder, which takes the place of *path* if the block ends well.

    After an error or an interrupt no new file is left; `OSError` of both passes. The name is made up before there is
    a file, so that no interrupt can come between.
    """
    part = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        yield part
        part.replace(path)
    finally:
        with uninterrupted(), suppress(OSError):  # what stays has a name that nobody looks for
            part.unlink(missing_ok=True)


def linked(source: Path, target: Path) -> Path:
    """*target*, now the file at *source*: the same one, or a copy; neither may be written to any more."""
    try:
        target.hardlink_to(source)
    except OSError:  # another file system, one without hard links, or a file with as many as it can have
        shutil.copy2(source, target)
    return target
