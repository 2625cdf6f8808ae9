"""How large archives from elsewhere, and their headers, may be.

tarfile reads a member's own bytes in chunks, but a pax header or a long name at once: a gigabyte of zeros in a megabyte
of gzip. `BoundedInfo` limits that, and refuses files with holes, whose tables have no end. `tarfile.open` takes the
class as *tarinfo*.
https://pubs.opengroup.org/onlinepubs/9799919799/utilities/pax.html#tag_20_94_13_03

Packing makes source code three to fifteen times smaller, and zeros a thousand times: `most_unpacked` is in between.
"""

import tarfile
from typing import Self, cast

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
    """The most bytes that an archive of source code, of *packed* bytes, may unpack to."""
    return min(max(_SMALL, _RATIO * packed), _LARGEST)


def bomb(most: int) -> str:
    """The message about an archive of source code that unpacks to more than *most* bytes."""
    return f"unpacks to more than {most} bytes; expected no more of source code in an archive of its size"


class BoundedInfo(tarfile.TarInfo):
    """A member with headers of a limited size; `tarfile.ReadError` for another."""

    def _proc_member(self, archive: tarfile.TarFile) -> Self:
        # releases of tarfile read headers in different methods; all call this one
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError("sparse file, whose holes are kept in memory; expected a plain one")
        if self.type in _KEPT_WHOLE and not 0 <= self.size <= _LARGEST_HEADER:
            raise tarfile.ReadError(f"header of {self.size} bytes, expected {_LARGEST_HEADER} at most")
        return cast(Self, super()._proc_member(archive))  # type: ignore[misc] # it is not in its stub
