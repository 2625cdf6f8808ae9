"""Tar archives of strangers: headers that are kept in memory whole may not be of any size that they claim.

A member's own bytes are read in chunks, but what tells of the next member, a pax header or a long name, is read at
once: a gigabyte of zeros in a megabyte of gzip. Files with holes are refused, as the tables of these have no end.
`tarfile.open` takes the class as *tarinfo*.
https://pubs.opengroup.org/onlinepubs/9799919799/utilities/pax.html#tag_20_94_13_03
"""

import tarfile
from typing import Self, cast

# bytes: a path, a link, times and a comment of a commit; pax headers of real archives have hundreds
_LARGEST = 1 << 20
_KEPT_WHOLE = frozenset(
    {
        tarfile.XHDTYPE,
        tarfile.XGLTYPE,
        tarfile.SOLARIS_XHDTYPE,
        tarfile.GNUTYPE_LONGNAME,
        tarfile.GNUTYPE_LONGLINK,
    }
)


class BoundedInfo(tarfile.TarInfo):
    """A member whose headers are of a size to be kept; `tarfile.ReadError` for another."""

    def _proc_member(self, archive: tarfile.TarFile) -> Self:
        # what `frombuf` is to some releases of tarfile is another, private, method to others; all come through here
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError("sparse file, whose holes are kept in memory; expected a plain one")
        if self.type in _KEPT_WHOLE and not 0 <= self.size <= _LARGEST:
            raise tarfile.ReadError(f"header of {self.size} bytes, expected {_LARGEST} at most")
        return cast(Self, super()._proc_member(archive))  # type: ignore[misc] # it is not in its stub
