"""Whether an entry of the shared cache is what was put there: every file by its SHA-256, as the stamp has it.

    .vbuild.json     the stamp, sealed: what the entry is of, its size, and {path: SHA-256} of every file and link
    .vbuild-seen     inode, size and times of all these when they were hashed last

Nothing can be written to a file without its time of change telling, so that files are hashed again only where something
is not as it was seen last: after a change, and after another toolkit has made hard links to them. Gigabytes are then
read once, and not for every build. What a disk loses by itself tells nobody: for that, all is hashed again each week.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from vbuild.digest import sealed, sha256_of, unsealed

STAMP = ".vbuild.json"
SEEN = ".vbuild-seen"
AGAIN = 7 * 86400  # seconds after which files are hashed again that nothing has happened to


def write_stamp(folder: Path, stamp: Mapping[str, Any]) -> None:
    """Put into *folder*, which is complete, the *stamp* with what is there; `OSError` where there is no room."""
    contents = {path: _digest(folder / path) for path in sorted(_paths(folder))}
    size = sum(os.lstat(folder / path).st_size for path in contents)
    (folder / SEEN).write_text(_state(folder, contents), encoding="utf-8")
    (folder / STAMP).write_text(sealed(json.dumps({**stamp, "size": size, "contents": contents})), encoding="utf-8")


def stamp_of(folder: Path) -> dict[str, Any] | None:
    """What the stamp of a store's entry says; None where there is none, or where it is damaged."""
    with suppress(OSError, ValueError):
        data = json.loads(unsealed((folder / STAMP).read_bytes()))
        return data if isinstance(data, dict) else None
    return None


def is_complete(folder: Path) -> bool:
    """Whether all files of *folder* are as they were made; what somebody put there besides is no damage."""
    stamp = stamp_of(folder)
    try:
        contents = stamp["contents"] if stamp else None
        if not contents:
            return False
        state = _state(folder, contents)
        if _seen(folder) == state:
            return True
        if any(_digest(folder / path) != digest for path, digest in contents.items()):
            return False
    except (OSError, KeyError):
        return False
    with suppress(OSError):  # it may be another user's
        part = folder / f"{SEEN}.{os.getpid()}"
        part.write_text(state, encoding="utf-8")
        part.replace(folder / SEEN)
    return True


def _paths(folder: Path) -> Iterator[str]:
    """Every file and link below *folder*, from there."""
    for parent, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]  # noqa: PTH114, PTH118 - thousands
        yield from (os.path.relpath(os.path.join(parent, name), folder) for name in (*names, *links))  # noqa: PTH118 - as above


def _state(folder: Path, paths: Iterable[str]) -> str:
    """What the file system says of *paths* in *folder*, in 64 digits; `OSError` where one is not there."""
    top, total = os.fspath(folder), hashlib.sha256()
    for path in paths:
        found = os.lstat(f"{top}/{path}")
        line = f"{path}\0{found.st_ino} {found.st_mode} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}\n"
        total.update(os.fsencode(line))
    return total.hexdigest()


def _seen(folder: Path) -> str | None:
    with suppress(OSError, ValueError):
        if (folder / SEEN).stat().st_mtime > time.time() - AGAIN:
            return (folder / SEEN).read_text(encoding="utf-8")
    return None


def _digest(path: Path) -> str:
    """The SHA-256 of the file *path*, or of where the link leads."""
    return hashlib.sha256(os.fsencode(path.readlink())).hexdigest() if path.is_symlink() else sha256_of(path)
