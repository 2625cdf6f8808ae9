"""The same file under a second name, without a second copy of its bytes where the file system can."""

import shutil
from pathlib import Path


def linked(source: Path, target: Path) -> Path:
    """*target*, now the file at *source*: the same one, or a copy; neither may be written to any more."""
    try:
        target.hardlink_to(source)
    except OSError:  # another file system, one without hard links, or a file with as many as it can have
        shutil.copy2(source, target)
    return target
