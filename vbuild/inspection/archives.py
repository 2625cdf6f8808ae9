"""A static library: how many object files are in it.

    8 bytes    magic
    60 bytes   a header for each file: name 16, time 12, owner 6, group 6, mode 8, size in decimal digits 10, end 2
    size       the file, padded to an even number

The files called /, // and /SYM64/ (BSD: __.SYMDEF) are the index and the long names.
https://man.freebsd.org/cgi/man.cgi?query=ar&sektion=5
"""

from vbuild.errors import BinaryError
from vbuild.files.records import Buffer

MAGIC = b"!<arch>\n"
SUFFIX = ".a"

_HEADER = 60
_END = b"`\n"
_NO_OBJECTS = (b"/ ", b"// ", b"/SYM64/", b"__.SYMDEF")


def objects(data: Buffer) -> int:
    """The number of object files in the static library *data*; `BinaryError` where it is damaged."""
    place, count = len(MAGIC), 0
    while place < len(data):
        header = bytes(data[place : place + _HEADER])
        size = header[48:58].strip()
        if len(header) < _HEADER or header[58:] != _END or not size.isdigit():
            raise BinaryError(f"damaged static library: no header of a file at {place:#x}")
        count += not header.startswith(_NO_OBJECTS)
        place += _HEADER + int(size) + int(size) % 2
    if place > len(data) + 1:
        raise BinaryError(f"damaged static library: its last file ends at {place:#x}, past the end, {len(data):#x}")
    return count
