"""The folder for work in progress, in the folder for the results: what is finished moves out of it in one step.

    dist/.vbuild-x7f3/alive     locked for as long as its run lives, whatever ends it

A run that is killed leaves its stage behind. The next run for the same folder removes it: the lock on its file went
with the process. A file gets its name only when it is locked, so there is no moment at which a living stage looks dead.

What the folder for work in progress is called: such a folder in a project is no part of it.
"""

import errno
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import lock_descriptor

from vbuild.errors import RecipeError, refusal_of
from vbuild.process.signals import uninterrupted

STAGE = ".vbuild-"
LOGS = "logs"

_ALIVE = "alive"
_NEW = "alive.new"
_LEFT = 86400  # seconds after which a stage without the file has lost its process
_TRIES, _PAUSE = 20, 0.05  # seconds: what was killed ends as soon as the system comes to it
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextmanager
def staging(folder: Path) -> Iterator[Path]:
    """A folder on the file system of *folder*, gone afterwards, and with it those of runs that were killed.

    A *folder* that was not there goes too, unless something is in it. `RecipeError` if it cannot be written to, or
    if the disk is full or refuses a file before the block is done.
    """
    made = not folder.exists()
    # a name made up before there is a folder, so that no interrupt can come between
    stage = folder / f"{STAGE}{secrets.token_hex(4)}"
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stage.mkdir(mode=0o700)
            # Windows renames no open file, and removes none either
            alive = (stage / (_ALIVE if os.name == "nt" else _NEW)).open("w")
        except OSError as error:
            raise RecipeError(f"{folder}: cannot be written to: {error.strerror}") from error
        with alive:  # the stage lives for as long as this file is open; child processes do not inherit that
            with suppress(OSError):  # some network file systems have no locks
                lock_descriptor(alive.fileno(), blocking=False)
                if os.name != "nt":
                    (stage / _NEW).rename(stage / _ALIVE)
            for other in folder.glob(f"{STAGE}*"):
                if other != stage:
                    with suppress(OSError):
                        _remove_if_dead(other)
            # resolved: compilers write down where they are, and the flags that hide it name the resolved folder
            yield stage.resolve()
    except OSError as error:
        if error.errno in _FULL:
            raise RecipeError(f"{folder}: cannot be written to: {error.strerror}") from error
        if reason := refusal_of(error, where=folder):
            raise RecipeError(reason) from error
        raise
    finally:
        with uninterrupted():
            _remove_whole(stage)
            logs = folder / LOGS
            for empty in (logs, folder) if made else (logs,):
                with suppress(OSError):  # there is something in it, or another run has removed it
                    empty.rmdir()


def _remove_whole(stage: Path) -> None:
    """Remove *stage*, also if a compiler that is about to end still writes there."""
    for _ in range(_TRIES):
        with suppress(OSError):  # of a folder that it could not close, which CPython 3.11 then closes again
            shutil.rmtree(stage, ignore_errors=True)
        if not stage.exists():
            return
        time.sleep(_PAUSE)


def _remove_if_dead(stage: Path) -> None:
    """Remove *stage* if its run is gone."""
    try:
        file = (stage / _ALIVE).open()
    except FileNotFoundError:
        if stage.is_dir() and stage.stat().st_mtime < time.time() - _LEFT:
            shutil.rmtree(stage, ignore_errors=True)
        return
    with file:
        if not lock_descriptor(file.fileno(), blocking=False):  # its run lives
            return
        for path in stage.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != _ALIVE:
                path.unlink(missing_ok=True)
        # a compiler that outlived its run may still write there; then the next run tries again
        is_dead = [path.name for path in stage.iterdir()] == [_ALIVE]
    if is_dead:  # Windows removes no open file
        shutil.rmtree(stage, ignore_errors=True)
