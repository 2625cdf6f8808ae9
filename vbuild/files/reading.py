"""Files, JSON and archives that somebody else made.

`open_file`, `read_file` and `read_text` take regular files alone, and raise `OSError` with path and reason for others.
A FIFO has no bytes until somebody writes into it, a device has no end, and some files of /proc and /sys, which state no
size, wait for events.

`json_object` and `parsed_json` refuse JSON with far more values than texts of its size have: Python takes forty times
the size of a text of tiny values, ``[[],[],...``, in memory, and about four times that of real ones.
https://www.rfc-editor.org/rfc/rfc8259 (section 9: a parser may limit what it accepts)

tarfile reads a member's own bytes in chunks, but a pax header or a long name at once: a gigabyte of zeros in a megabyte
of gzip. `BoundedInfo`, for `tarfile.open` as *tarinfo*, limits that, and refuses files with holes, whose tables have no
end. Packing makes source code three to fifteen times smaller, zeros a thousand times: `most_unpacked` is in between.
https://pubs.opengroup.org/onlinepubs/9799919799/utilities/pax.html#tag_20_94_13_03
"""

import errno
import io
import json
import os
import stat
import tarfile
from collections import Counter
from collections.abc import Callable
from typing import Any, Self, cast

from vbuild.errors import VbuildError

AT_ONCE = getattr(os, "O_NONBLOCK", 0)
"""The flag with which the system opens a FIFO without waiting for a writer; regular files open as without it."""

# what Linux and macOS say of a socket
_UNOPENED = frozenset({errno.ENXIO, errno.EOPNOTSUPP})

# values that any text may have, of a hundred or two hundred bytes of memory each; characters for each in longer ones
_MOST, _SPARSE = 250_000, 16


def open_file(path: str | os.PathLike[str]) -> io.BufferedReader:
    return open(path, "rb", opener=_descriptor)


def read_file(path: str | os.PathLike[str]) -> bytes:
    with open_file(path) as file:
        return file.read()


def read_text(path: str | os.PathLike[str], *, errors: str = "strict") -> str:
    """In UTF-8, with a newline alone at the end of each line."""
    with io.TextIOWrapper(open_file(path), encoding="utf-8", errors=errors) as file:
        return file.read()


def _descriptor(path: str, flags: int) -> int:
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


def json_object(text: bytes, refusal: type[VbuildError]) -> dict[str, Any]:
    """The object in *text*; a *refusal* says what is wrong with others, as a key twice, of which readers differ."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
            raise refusal(f"key {twice!r} stands twice in one object")
        return values

    try:
        values = parsed_json(text.decode(), pairs=unique)
    except UnicodeDecodeError as error:
        raise refusal(f"not UTF-8 at byte {error.start:#x}") from error
    except json.JSONDecodeError as error:
        raise refusal(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error
    except ValueError as error:
        raise refusal("JSON nested too deeply, of far too many values, or with a number too long") from error
    if not isinstance(values, dict):
        raise refusal(f"expected a JSON object, got {type(values).__name__}")
    return values


def parsed_json(
    text: str | bytes,
    *,
    number: Callable[[str], Any] | None = None,
    pairs: Callable[[list[tuple[str, Any]]], dict[str, Any]] | None = None,
) -> Any:  # noqa: ANN401 - whatever JSON holds
    """`ValueError` for other texts, deep nesting, and far too many values.

    *number* parses numbers with a point or an exponent; then NaN and infinities are refused. *pairs* makes the objects.
    """
    values = sum(map(text.count, ",{[")) if isinstance(text, str) else sum(map(text.count, b",{["))
    if values > (most := max(_MOST, len(text) // _SPARSE)):
        raise ValueError(f"{values} values, expected {most} at most")
    try:
        return json.loads(text, parse_float=number, parse_constant=number and _refused, object_pairs_hook=pairs)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _refused(name: str) -> None:
    raise ValueError(f"{name} is not a number")


# of source code: unpacked bytes for each packed one, bytes below which the ratio does not matter, and most bytes
_RATIO, _SMALL, _LARGEST = 100, 1 << 28, 1 << 34
# bytes; pax headers of real archives, a path, a link, times and a commit, have hundreds
_LARGEST_HEADER = 1 << 20
_KEPT_WHOLE = frozenset(
    {
        tarfile.XHDTYPE,
        tarfile.XGLTYPE,
        tarfile.SOLARIS_XHDTYPE,
        tarfile.GNUTYPE_LONGNAME,
        tarfile.GNUTYPE_LONGLINK,
    }
)


def most_unpacked(packed: int) -> int:
    """Of an archive of source code."""
    return min(max(_SMALL, _RATIO * packed), _LARGEST)


def bomb(most: int) -> str:
    return f"unpacks to more than {most} bytes; expected no more of source code in an archive of its size"


class BoundedInfo(tarfile.TarInfo):
    def _proc_member(self, archive: tarfile.TarFile) -> Self:
        # releases of tarfile read headers in different methods; all call this one
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError("sparse file, whose holes are kept in memory; expected a plain one")
        if self.type in _KEPT_WHOLE and not 0 <= self.size <= _LARGEST_HEADER:
            raise tarfile.ReadError(f"header of {self.size} bytes, expected {_LARGEST_HEADER} at most")
        return cast(Self, super()._proc_member(archive))  # type: ignore[misc] # it is not in its stub
