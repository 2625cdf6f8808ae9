"""Locks between processes and threads: held while a descriptor is open, so no process that ends keeps one."""

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import lock_descriptor

# what file systems say that have no locks: some network ones
NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})

_PAUSE = 0.05  # seconds between two tries: a thread that waits in the system hears no Ctrl-C


def proceed() -> None:
    """Let a wait go on."""


@contextmanager
def locked(path: Path, *, wait: bool = True, check: Callable[[], None] = proceed) -> Iterator[bool]:
    """Hold the lock on *path*, a file that is made if it is missing, or a folder, for the block.

    Gives False if another thread or process holds it and *wait* is off. *check* is called between two tries and may
    raise. `OSError` if the file cannot be opened, or its file system has no locks.
    """
    while True:
        flags = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
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
        check()
        time.sleep(_PAUSE)
