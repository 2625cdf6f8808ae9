"""The end of a zip archive: where its central directory is, and that no reader would find another one.

    central directory | zip64 end | zip64 locator | end | comment

https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT (sections 4.3.12 to 4.3.16)
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from vbuild.errors import WheelError
from vbuild.wheel.zipformat import FULL16, FULL32, End, Zip64End, Zip64Locator

_RECORD_SIGNATURE = re.compile(rb"PK(\x01\x02|\x03\x04|\x05\x06|\x06\x06|\x06\x07|\x07\x08)")

Read = Callable[[int, int], bytes]


@dataclass(frozen=True, slots=True)
class Directory:
    """The central directory: how many *entries*, at which *offset*, in how many bytes; and the archive's *comment*."""

    entries: int
    offset: int
    size: int
    comment: bytes

    @classmethod
    def found(cls, read: Read, size: int) -> Self:
        """The one of the archive of *size* bytes, of which *read* takes offset and size; `WheelError` if in doubt."""
        tail_size = min(size, End.layout.size + FULL16)
        tail = read(size - tail_size, tail_size)
        place = _end_in(tail)
        end = End.parse(tail, place)
        comment = tail[place + End.layout.size :]
        if _RECORD_SIGNATURE.search(comment):
            raise WheelError("a zip record in the archive's comment, where others may look for one")
        boundary = size - tail_size + place
        said: tuple[int, int, int] = (end.entries, end.directory_offset, end.directory_size)
        if wide := _zip64_end(read, boundary):
            boundary, disks, found = wide
            full = (FULL16, FULL32, FULL32)
            if any(said[part] not in {found[part], full[part]} for part in range(3)):
                raise WheelError("the end record and the zip64 end record disagree")
            said = found
        else:
            disks = (end.disk, end.directory_disk, end.entries - end.entries_here)
        if any(disks):
            raise WheelError("one part of an archive of several; expected a whole one")
        entries, offset, length = said
        if offset + length != boundary:
            raise WheelError(
                f"the central directory ends at {offset + length:#x}, its end record begins at {boundary:#x}"
            )
        return cls(entries, offset, length, comment)


def _end_in(tail: bytes) -> int:
    """Where the end record starts in *tail*: the last one whose comment ends with the file."""
    signature = End.SIGNATURE.to_bytes(4, "little")
    place = tail.rfind(signature)
    while place >= 0:
        rest = len(tail) - place - End.layout.size
        if rest >= 0 and End.parse(tail, place).comment_length == rest:
            return place
        place = tail.rfind(signature, 0, place + len(signature) - 1)
    raise WheelError("not a zip archive, or truncated: no end record")


def _zip64_end(read: Read, end: int) -> tuple[int, tuple[int, int, int], tuple[int, int, int]] | None:
    """Offset, disks, and (entries, offset, size) of the zip64 end record in front of *end*; None without one."""
    place = end - Zip64Locator.layout.size
    if place < 0:
        return None
    packed = read(place, Zip64Locator.layout.size)
    if not packed.startswith(Zip64Locator.SIGNATURE.to_bytes(4, "little")):
        return None
    locator = Zip64Locator.parse(packed)
    record = Zip64End.parse(read(locator.end_offset, Zip64End.layout.size))
    # record_size counts what follows it: twelve bytes less than the whole
    if locator.end_offset + record.record_size + 12 != place:
        raise WheelError("the zip64 end record is not in front of its locator")
    # Python and uv look for it at a fixed distance, and not where the locator says
    if locator.end_offset + Zip64End.layout.size != place:
        raise WheelError(f"a zip64 end record of {record.record_size + 12} bytes, expected {Zip64End.layout.size}")
    if locator.disks > 1:
        raise WheelError(f"one part of an archive of {locator.disks}; expected a whole one")
    disks = (locator.disk, record.disk or record.directory_disk, record.entries - record.entries_here)
    return locator.end_offset, disks, (record.entries, record.directory_offset, record.directory_size)
