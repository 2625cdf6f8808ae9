"""Files that are whole or not there at all, however a run ends."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vbuild.interrupts import uninterrupted


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """The path beside *path* to write a new file to, which takes the place of *path* where the block ends well.

    After an error or an interrupt nothing stays beside; `OSError` of both passes. The name is made up before there is
    a file, so that no interrupt can come between.
    """
    part = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        yield part
        part.replace(path)
    finally:
        with uninterrupted(), suppress(OSError):  # what stays has a name that nobody looks for
            part.unlink(missing_ok=True)
