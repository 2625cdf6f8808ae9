"""Which files of a folder any process opens, told by Linux's inotify, which asks for no privileges.

    inotify_event      wd, mask, cookie, len, name    one for each file that is opened, read while the block runs

https://man7.org/linux/man-pages/man7/inotify.7.html
"""

import ctypes
import errno
import os
import select
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vbuild.errors import RepackageError

_IN_OPEN, _IN_ISDIR, _IN_Q_OVERFLOW = 0x20, 0x40000000, 0x4000
_EVENT = struct.Struct("iIII")
_BUFFER = 1 << 16


@contextmanager
def opened_files(folder: Path) -> Iterator[set[str]]:
    """What is yielded has, after the block, the files below *folder* that were opened in it, by path from there.

    Raises `RepackageError` if the system gives no more watches, or more files were opened than it can tell.
    """
    found: set[str] = set()
    libc = ctypes.CDLL(None, use_errno=True)
    watching = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    if watching < 0:
        raise RepackageError(f"{folder}: what is opened there cannot be watched: {os.strerror(ctypes.get_errno())}")
    ending, end = os.pipe()
    try:
        places = {}
        for place, _, _ in os.walk(folder):
            watch = libc.inotify_add_watch(watching, os.fsencode(place), _IN_OPEN)
            if watch < 0:
                raise RepackageError(f"{place}: cannot be watched: {_reason(ctypes.get_errno())}")
            places[watch] = Path(place).relative_to(folder)
        lost = threading.Event()
        reader = threading.Thread(target=_read, args=(watching, ending, places, found, lost))
        reader.start()
        try:
            yield found
        finally:
            os.write(end, b"0")
            reader.join()
        if lost.is_set():
            raise RepackageError(f"{folder}: more files were opened there than the system tells")
    finally:
        for descriptor in (watching, ending, end):
            os.close(descriptor)


def _read(watching: int, ending: int, places: dict[int, Path], found: set[str], lost: threading.Event) -> None:
    """Add to *found* what *watching* tells, until something can be read from *ending*."""
    while True:
        ready, _, _ = select.select([watching, ending], [], [])
        if watching in ready:
            data, place = os.read(watching, _BUFFER), 0
            while place < len(data):
                watch, mask, _, length = _EVENT.unpack_from(data, place)
                name = data[place + _EVENT.size : place + _EVENT.size + length].rstrip(b"\0")
                place += _EVENT.size + length
                if mask & _IN_Q_OVERFLOW:
                    lost.set()
                elif name and not mask & _IN_ISDIR:
                    found.add((places[watch] / os.fsdecode(name)).as_posix())
        elif ending in ready:
            return


def _reason(number: int) -> str:
    if number == errno.ENOSPC:
        return "no more watches; expected a larger /proc/sys/fs/inotify/max_user_watches"
    return os.strerror(number)
