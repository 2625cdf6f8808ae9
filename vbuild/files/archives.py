"""Archives: the time that written ones state, and how large those from elsewhere, and their headers, may be.

Every command that writes archives takes SOURCE_DATE_EPOCH, never the clock, and the same values of it. Any other value
is refused before there is something to write. A format that cannot hold a value stores the nearest it can. Build
backends see the variable as the user set it.
https://reproducible-builds.org/specs/source-date-epoch/

tarfile reads a member's own bytes in chunks, but what describes the next member, a pax header or a long name, at once:
a gigabyte of zeros in a megabyte of gzip. `BoundedInfo` limits that. Files with holes are refused, as the tables of
these have no end. `tarfile.open` takes the class as *tarinfo*.
https://pubs.opengroup.org/onlinepubs/9799919799/utilities/pax.html#tag_20_94_13_03

Packing makes source code three to fifteen times smaller, and zeros a thousand times: `most_unpacked` is in between.
"""

import os
import tarfile
from typing import Self, cast

from vbuild.errors import VbuildError

OLDEST = 315532800
"""1980-01-01 in seconds since 1970: the earliest time that a zip archive can hold, and the default."""

LATEST = 253402300799
"""9999-12-31 23:59:59 in seconds since 1970: the latest time that a date with a year of four digits can hold."""

# how many bytes a packed one may stand for in source code; below how many nobody asks, and how many no archive has
_RATIO, _SMALL, _LARGEST = 100, 1 << 28, 1 << 34
# bytes: a path, a link, times and a comment of a commit; pax headers of real archives have hundreds
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


def source_date_epoch() -> int | None:
    """Returns SOURCE_DATE_EPOCH in seconds since 1970, or None if it is not set; `VbuildError` if it is not a time."""
    if (text := os.environ.get("SOURCE_DATE_EPOCH")) is None:
        return None
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(LATEST))
    if not (is_number and int(text) <= LATEST):
        raise VbuildError(
            f"SOURCE_DATE_EPOCH is {text!r}; expected seconds since 1970, a whole number from 0 to {LATEST} (year 9999)"
        )
    return int(text)


def most_unpacked(packed: int) -> int:
    """Returns the most bytes that an archive of source code, of *packed* bytes, may unpack to."""
    return min(max(_SMALL, _RATIO * packed), _LARGEST)


def bomb(most: int) -> str:
    """Returns what is wrong with an archive of source code that unpacks to more than *most* bytes."""
    return f"unpacks to more than {most} bytes; expected no more of source code in an archive of its size"


class BoundedInfo(tarfile.TarInfo):
    """A member whose headers are of a size to be kept; `tarfile.ReadError` for another."""

    def _proc_member(self, archive: tarfile.TarFile) -> Self:
        # what `frombuf` is to some releases of tarfile is another, private, method to others; all come through here
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError("sparse file, whose holes are kept in memory; expected a plain one")
        if self.type in _KEPT_WHOLE and not 0 <= self.size <= _LARGEST_HEADER:
            raise tarfile.ReadError(f"header of {self.size} bytes, expected {_LARGEST_HEADER} at most")
        return cast(Self, super()._proc_member(archive))  # type: ignore[misc] # it is not in its stub
