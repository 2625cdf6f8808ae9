"""The folder for work in progress, in the folder for the results: what is finished moves out of it in one step.

    dist/.vbuild-x7f3/alive     locked for as long as its run lives, whatever ends it

A run that is killed leaves its stage behind. The next run for the same folder removes it: the lock on its file went
with the process. A file gets its name only when it is locked, so there is no moment at which a living stage looks dead.

What the folder for work in progress is called: such a folder in a project is no part of it.
"""

import errno
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

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

    A *folder* that was not there goes too, unless something is in it. `RecipeError` where it cannot be written to, or
    the disk is full, or refuses a file, before the block is done.
    """
    made = not folder.exists()
    # a name made up before there is a folder, so that no interrupt can come between
    stage = folder / f"{STAGE}{secrets.token_hex(4)}"
    try:
        with _opened(folder, stage) as alive:
            _lock(alive, stage)
            _remove_dead(folder)
            # resolved: compilers write down where they are, and what keeps that out of a build is told of the stage
            yield stage.resolve()
    except OSError as error:
        if error.errno in _FULL:
            raise RecipeError(f"{folder}: cannot be written to: {error.strerror}") from error
        if said := refusal_of(error, where=folder):
            raise RecipeError(said) from error
        raise
    finally:
        with uninterrupted():
            _remove_whole(stage)
            logs = folder / LOGS
            for empty in (logs, folder) if made else (logs,):
                with suppress(OSError):  # there is something in it, or another run has removed it
                    empty.rmdir()


def _opened(folder: Path, stage: Path) -> IO[str]:
    """The file that will say whether *stage*, made in *folder*, lives."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stage.mkdir(mode=0o700)
        return (stage / _NEW).open("w")
    except OSError as error:
        raise RecipeError(f"{folder}: cannot be written to: {error.strerror}") from error


def _lock(alive: IO[str], stage: Path) -> None:
    """Say that *stage* lives for as long as the file *alive* is open; its children do not inherit that."""
    with suppress(OSError):  # some network file systems have no locks
        lock_descriptor(alive.fileno(), blocking=False)
        (stage / _NEW).rename(stage / _ALIVE)


def _remove_whole(stage: Path) -> None:
    """Remove *stage*, also where a compiler that is about to end still writes there."""
    for _ in range(_TRIES):
        shutil.rmtree(stage, ignore_errors=True)
        if not stage.exists():
            return
        time.sleep(_PAUSE)


def _remove_dead(folder: Path) -> None:
    """Remove the stages in *folder* whose runs are gone."""
    for stage in folder.glob(f"{STAGE}*"):
        with suppress(OSError):
            _remove_if_dead(stage)


def _remove_if_dead(stage: Path) -> None:
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
            if path.name != _ALIVE:
                _remove(path)
        # a compiler that outlived its run may still write there; then the next run tries again
        if [path.name for path in stage.iterdir()] == [_ALIVE]:
            shutil.rmtree(stage, ignore_errors=True)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
