"""Files that are whole or not there at all, however a run ends, also where the machine loses its power.

What is in the making lies in a stage, a folder that a run has for itself in the folder for the results:

    dist/.vbuild-x7f3/alive     locked for as long as its run lives, whatever ends it

A run that is killed leaves its stage behind. The next run that writes to the same folder removes it: the lock on its
file went with the process. A file gets its name only when it is locked, so there is no moment at which a living stage
looks dead.

The same file under a second name, without a second copy of its bytes where the file system can.

Locks between processes and threads: held while a descriptor is open, so no process that ends keeps one.
"""

import ctypes
import errno
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir

from filelock import lock_descriptor

from vbuild.files.reading import open_file
from vbuild.process.signals import uninterrupted

# what file systems say that have no locks: some network ones
NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})

# what file systems say that have nothing to wait for
_UNSYNCED = NO_LOCKS | {errno.EINVAL, errno.EROFS, errno.EBADF}

# of renameat2(2)
_HERE, _EXCHANGE = -100, 2

# bytes that one system call copies, so that others are not kept waiting, and that Python does
_AT_ONCE, _BUFFER = 1 << 30, 1 << 20

_PAUSE = 0.05  # seconds between two tries: a thread that waits in the system hears no Ctrl-C

STAGE = ".vbuild-"
"""How the names of stages begin: such a folder in a project is no part of it."""

_ALIVE, _NEW = "alive", "alive.new"
_LEFT = 86400  # seconds after which a stage without the file has lost its process
_TRIES = 20  # what was killed ends as soon as the system comes to it


def unmade(error: OSError) -> OSError:
    """*error* of a file or folder that could not be made, with the name of the folder that has no place for it.

    Some file systems, as /proc, say of a new name that it is not there, though its folder is: a `PermissionError` here.
    """
    if not isinstance(error, FileNotFoundError | NotADirectoryError) or not error.filename:
        return error
    if (folder := Path(error.filename).parent).is_dir():
        return PermissionError(errno.EACCES, "nothing new can be made here", str(folder))
    return NotADirectoryError(errno.ENOTDIR, error.strerror, str(folder))


def settle(path: Path) -> None:
    """Wait until the disk has all of *path*, a file, or a folder with all that is in it.

    A file has to be there before its name is: after a power cut there may be the new name, and zeros. `OSError` if the
    disk is broken, or turns out to be full.
    """
    if path.is_symlink() or (path.is_dir() and os.name == "nt"):  # Windows opens no folders
        return
    if path.is_dir():
        for one in path.iterdir():
            settle(one)
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _UNSYNCED:
            raise
    finally:
        os.close(descriptor)


def settle_names(folder: Path) -> None:
    """Wait until the disk has the names of what is in *folder*, but not what they name."""
    with suppress(OSError):  # all is renamed, and nothing can be taken back; Windows opens no folders
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def stage_in(folder: Path) -> Iterator[Path]:
    """A folder for work in progress in *folder*, gone afterwards, and with it those of runs that were killed.

    `OSError` if nothing new can be made in *folder*.
    """
    # a name made up before there is a folder, so that no interrupt can come between
    stage = folder / f"{STAGE}{secrets.token_hex(4)}"
    try:
        try:
            stage.mkdir(mode=0o700)
            # Windows renames no open file, and removes none either
            alive = (stage / (_ALIVE if os.name == "nt" else _NEW)).open("w")
        except OSError as error:
            raise unmade(error) from error
        with alive:  # the stage lives for as long as this file is open; child processes do not inherit that
            with suppress(OSError):  # some network file systems have no locks
                lock_descriptor(alive.fileno(), blocking=False)
                if os.name != "nt":
                    (stage / _NEW).rename(stage / _ALIVE)
            sweep(folder)
            yield stage
    finally:
        with uninterrupted():
            _remove_whole(stage)


def sweep(folder: Path) -> None:
    """Remove from *folder* the stages of runs that were killed, as far as this user may."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(STAGE) and entry.is_dir(follow_symlinks=False):
                with suppress(OSError):
                    _remove_if_dead(Path(entry))


def _remove_if_dead(stage: Path) -> None:
    """Remove *stage* if its run is gone."""
    try:
        file = open_file(stage / _ALIVE)
    except FileNotFoundError:
        if stage.stat().st_mtime < time.time() - _LEFT:
            shutil.rmtree(stage, ignore_errors=True)
        return
    with file:
        if not lock_descriptor(file.fileno(), blocking=False):  # its run lives
            return
        # a compiler that outlived its run may still write there; then the next run tries again
        is_empty = _is_emptied(stage)
    if is_empty:  # Windows removes no open file
        shutil.rmtree(stage, ignore_errors=True)


def _remove_whole(stage: Path) -> None:
    """Remove *stage*, also if a compiler that is about to end still writes there."""
    for _ in range(_TRIES):
        with suppress(OSError):  # of a folder that it could not close, which CPython 3.11 then closes again
            if _is_emptied(stage):
                shutil.rmtree(stage, ignore_errors=True)
        if not stage.exists():
            return
        time.sleep(_PAUSE)


def _is_emptied(stage: Path) -> bool:
    """Whether nothing is in *stage* any more but the file that says whose it is, which has to go last."""
    for path in stage.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != _ALIVE:
            path.unlink(missing_ok=True)
    return {path.name for path in stage.iterdir()} <= {_ALIVE}


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """The path of a new file in a stage beside *path*, which takes the place of *path* if the block ends well.

    After an error or an interrupt no new file is left; `OSError` of both passes.
    """
    with replacing_all([path]) as parts:
        yield parts[path]


@contextmanager
def replacing_all(paths: Sequence[Path]) -> Iterator[Mapping[Path, Path]]:
    """For each of *paths*, one or more in one folder, that of a new file, as `replacing` has it.

    All new files are complete before the first takes its place.
    """
    folder = paths[0].parent
    with stage_in(folder) as stage:
        parts = {path: stage / path.name for path in paths}
        yield parts
        for part in parts.values():
            settle(part)
        for path, part in parts.items():
            part.replace(path)
        settle_names(folder)


def linked(source: Path, target: Path) -> Path:
    """*target*, now the file at *source*: the same one, or a copy; neither may be written to any more."""
    try:
        target.hardlink_to(source)
    except OSError:  # another file system, one without hard links, or a file with as many as it can have
        duplicate(source, target)
        shutil.copystat(source, target)
    return target


def duplicate(source: Path, target: Path) -> None:
    """Write the bytes of *source* to the new file *target*; file systems that can share them take no room for that."""
    with open_file(source) as one, target.open("xb") as other:
        if hasattr(os, "copy_file_range"):
            # not between these two file systems, or the disk is full: writing the rest tells which
            with suppress(OSError):
                while os.copy_file_range(one.fileno(), other.fileno(), _AT_ONCE):
                    pass
        shutil.copyfileobj(one, other, _BUFFER)


def exchange(new: Path, old: Path) -> None:
    """Let the folder *new* take the name of the folder *old*, and *old* that of *new*; `OSError` if that cannot be.

    On Linux both names change in one step. Elsewhere a process that is killed in the middle leaves *old* under its name
    with ``.old`` behind it.
    """
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if sys.platform == "linux" else None
    if call and not call(_HERE, os.fsencode(new), _HERE, os.fsencode(old), _EXCHANGE):
        return
    with uninterrupted():
        aside = old.with_name(f"{old.name}.old")
        old.rename(aside)
        new.rename(old)
        aside.rename(new)


@contextmanager
def locked(path: Path, *, wait: bool = True, check: Callable[[], None] | None = None) -> Iterator[bool]:
    """Hold the lock on *path*, a file that is made if it is missing, or a folder, for the block.

    Windows opens no folders: there a file in the folder for temporary ones has the lock, by the folder's number.
    Gives False if another thread or process holds it and *wait* is off. *check* is called between two tries and may
    raise. `OSError` if the file cannot be opened, or its file system has no locks.
    """
    is_instead = os.name == "nt" and path.is_dir()
    if is_instead:
        number = path.stat()
        path = Path(gettempdir()) / f"vbuild-{number.st_dev:x}-{number.st_ino:x}.lock"
    while True:
        # no child inherits it: Python sees to that
        descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT, 0o666)
        try:
            is_held = lock_descriptor(descriptor, blocking=False)
            # the holder before may have removed the file: then this lock is of no use
            if is_held and os.fstat(descriptor).st_nlink == 0:
                continue
            if is_held or not wait:
                yield is_held
                return
        finally:
            os.close(descriptor)
            if is_instead:
                with suppress(OSError):  # another has it open
                    path.unlink()
        if check:
            check()
        time.sleep(_PAUSE)
