"""Files that somebody else made, opened for reading: regular ones alone, so that none makes a command wait for ever.

A folder of wheels may have anything in it. A FIFO has no bytes until somebody writes into it, and a device has no end.
Some files of /proc and /sys are regular by their mode, but cannot be read, or wait for events; they state no size.

`open_file`, `read_file` and `read_text` raise `OSError` for all of these, with the path and a reason. What vbuild has
written itself, into its cache or a folder for work in progress, may be read without them.
https://man7.org/linux/man-pages/man7/fifo.7.html
"""

import errno
import io
import os
import stat

AT_ONCE = getattr(os, "O_NONBLOCK", 0)
"""The flag with which the system opens a FIFO without waiting for a writer; regular files open as without it."""

# what Linux and macOS say of a socket
_UNOPENED = frozenset({errno.ENXIO, errno.EOPNOTSUPP})


def open_file(path: str | os.PathLike[str]) -> io.BufferedReader:
    """The regular file at *path*, open for reading."""
    return open(path, "rb", opener=_descriptor)


def read_file(path: str | os.PathLike[str]) -> bytes:
    """The bytes of the regular file at *path*."""
    with open_file(path) as file:
        return file.read()


def read_text(path: str | os.PathLike[str], *, errors: str = "strict") -> str:
    """The text, in UTF-8, of the regular file at *path*, with a newline alone at the end of each line."""
    with io.TextIOWrapper(open_file(path), encoding="utf-8", errors=errors) as file:
        return file.read()


def _descriptor(path: str, flags: int) -> int:
    """A descriptor of the file at *path*, which is a regular one and can be read."""
    try:
        descriptor = os.open(path, flags | AT_ONCE)
    except OSError as error:
        if error.errno in _UNOPENED:
            raise _refusal(path, "a socket or a device") from error
        raise
    try:
        _check(descriptor, path)
        if AT_ONCE:
            os.set_blocking(descriptor, True)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check(descriptor: int, path: str) -> None:
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(mode):
        raise _refusal(path, "a FIFO" if stat.S_ISFIFO(mode) else "a socket or a device")
    try:
        start = os.read(descriptor, 1)
    except OSError as error:  # whatever the reason, it is the file's
        raise OSError(errno.EIO, error.strerror, path) from error
    if start and not os.fstat(descriptor).st_size:
        raise _refusal(path, "a file of the system's, which states no size")
    os.lseek(descriptor, 0, os.SEEK_SET)


def _refusal(path: str, kind: str) -> OSError:
    return OSError(errno.ENXIO, f"{kind}; expected a regular file", path)
