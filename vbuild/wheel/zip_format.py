"""The records of a zip archive, little-endian, each field named once; and the end of an archive.

    local header | name | extra | data          one per member
    central header | name | extra | comment     one per member, all together: the central directory
    zip64 end | zip64 locator                   if a size, an offset or the count does not fit
    end | comment

A value that does not fit its field is all ones there and stands in the header's zip64 extra field instead. The end says
where the central directory is; an archive in which another reader could find another end is refused.
https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT (section 4.3)
"""

import re
import struct
from collections.abc import Callable
from enum import IntEnum
from typing import ClassVar, Self

from msgspec import Struct

from vbuild.errors import WheelError
from vbuild.files.records import U16, U32, U64, Buffer, Packed

FULL16 = 0xFFFF
FULL32 = 0xFFFFFFFF
LARGEST_DESCRIPTOR = 24

_SIGNATURE = struct.Struct("<I")
_LOCAL_SIGNATURE = b"PK\x03\x04"
# the bytes of a central header that a local header repeats
_IN_BOTH = slice(6, 32)
LOCAL_SIZE = 30


class ZipMethod(IntEnum):
    """How a member is compressed: the two ways that every installer reads, and zstd, which uv does and pip does not."""

    STORED = 0
    DEFLATED = 8
    ZSTD = 93


class ZipFlag(IntEnum):
    """General purpose bit flags; the ones a wheel may have, and the ones that mean encryption."""

    ENCRYPTED = 1 << 0
    OPTION_1 = 1 << 1
    OPTION_2 = 1 << 2
    DESCRIPTOR = 1 << 3
    STRONGLY_ENCRYPTED = 1 << 6
    UTF8 = 1 << 11
    MASKED = 1 << 13


class Extra(IntEnum):
    ZIP64 = 0x0001
    UNICODE_PATH = 0x7075


class ZipRecord(Packed, frozen=True):
    """A record that begins with a signature, which is not a field."""

    SIGNATURE: ClassVar[int]
    REFUSAL = WheelError

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.layout = struct.Struct(cls.layout.format.replace("<", "<4x"))

    @classmethod
    def parse(cls, data: Buffer, offset: int = 0) -> Self:
        """Read the record at *offset*; `WheelError` if it is cut short or is not this record."""
        record = super().parse(data, offset)
        (signature,) = _SIGNATURE.unpack_from(data, offset)
        if signature != cls.SIGNATURE:
            raise WheelError(f"no {cls.__name__} where one should be: signature is {signature:#010x}")
        return record

    def pack(self) -> bytes:
        return _SIGNATURE.pack(self.SIGNATURE) + super().pack()[_SIGNATURE.size :]


class CentralHeader(ZipRecord, frozen=True):
    """The header in the central directory. A local header is its fields from *version_needed* to *extra_length*."""

    SIGNATURE: ClassVar = 0x02014B50
    version_made_by: U16
    version_needed: U16
    flags: U16
    method: U16
    time: U16
    date: U16
    crc: U32
    compressed_size: U32
    size: U32
    name_length: U16
    extra_length: U16
    comment_length: U16
    disk: U16
    internal_attributes: U16
    external_attributes: U32
    header_offset: U32

    @classmethod
    def parse_local(cls, data: bytes) -> Self:
        """Read the local header *data*, with zeros for what only the directory has; `WheelError` if it is none."""
        if len(data) != LOCAL_SIZE or not data.startswith(_LOCAL_SIGNATURE):
            raise WheelError(f"no local header where one should be: it starts with {data[:4]!r}")
        central = bytearray(_SIGNATURE.pack(cls.SIGNATURE).ljust(cls.layout.size, b"\0"))
        central[_IN_BOTH] = data[len(_LOCAL_SIGNATURE) :]
        return cls.parse(central)

    def pack_local(self) -> bytes:
        return _LOCAL_SIGNATURE + self.pack()[_IN_BOTH]


class Zip64End(ZipRecord, frozen=True):
    SIGNATURE: ClassVar = 0x06064B50
    record_size: U64
    version_made_by: U16
    version_needed: U16
    disk: U32
    directory_disk: U32
    entries_here: U64
    entries: U64
    directory_size: U64
    directory_offset: U64


class Zip64Locator(ZipRecord, frozen=True):
    SIGNATURE: ClassVar = 0x07064B50
    disk: U32
    end_offset: U64
    disks: U32


class End(ZipRecord, frozen=True):
    SIGNATURE: ClassVar = 0x06054B50
    disk: U16
    directory_disk: U16
    entries_here: U16
    entries: U16
    directory_size: U32
    directory_offset: U32
    comment_length: U16


_EXTRA = struct.Struct("<HH")
_WIDE = struct.Struct("<Q")
_DESCRIPTOR_SIGNATURE = b"PK\x07\x08"
_DESCRIPTOR = struct.Struct("<III")
_WIDE_DESCRIPTOR = struct.Struct("<IQQ")


def extra_fields(data: bytes) -> dict[int, bytes]:
    """The extra fields in *data* by identifier; `WheelError` if one runs past the end or comes twice."""
    fields: dict[int, bytes] = {}
    offset = 0
    # fewer than four bytes at the end are padding (zipalign writes them)
    while offset + _EXTRA.size <= len(data):
        identifier, size = _EXTRA.unpack_from(data, offset)
        start = offset + _EXTRA.size
        offset = start + size
        if offset > len(data):
            raise WheelError(f"extra field {identifier:#06x} runs past its header")
        if identifier in fields and identifier in tuple(Extra):
            raise WheelError(f"extra field {identifier:#06x} comes twice")
        fields[identifier] = data[start:offset]
    return fields


def widened(values: tuple[int, ...], fields: dict[int, bytes], *, spare: int = 0) -> tuple[int, ...]:
    """32-bit *values* with each one that is all ones taken from the zip64 extra field, in the order of the standard.

    `WheelError` if the field has fewer values than that, or more, for which readers have different uses; *spare* of
    them may be there.
    """
    if Extra.ZIP64 not in fields:
        return values
    wide = fields[Extra.ZIP64]
    if len(wide) < _WIDE.size * values.count(FULL32):
        raise WheelError("truncated: the zip64 extra field lacks a value")
    if len(wide) not in {_WIDE.size * (values.count(FULL32) + more) for more in (0, spare)}:
        raise WheelError("the zip64 extra field has more than the values that do not fit their fields")
    found = (value for (value,) in _WIDE.iter_unpack(wide))
    return tuple(next(found) if value == FULL32 else value for value in values)


def check_unicode_path(fields: dict[int, bytes], name: bytes) -> None:
    """`WheelError` if a Unicode path extra field among *fields* names another file than *name*."""
    if Extra.UNICODE_PATH in fields and fields[Extra.UNICODE_PATH][5:] != name:
        found = fields[Extra.UNICODE_PATH][5:]
        raise WheelError(f"its Unicode path extra field names it {found!r}, expected {name!r}")


def descriptors(values: tuple[int, int, int], *, is_wide: bool) -> tuple[bytes, ...]:
    """What may stand behind data of which CRC-32, packed size and size are *values*: with a signature, or without.

    Nothing may where the sizes need 64 bits and the local header has no zip64 extra field, which makes it *is_wide*.
    A CRC-32 that is the signature itself cannot do without one.
    """
    if not is_wide and max(values) > FULL32:
        return ()
    plain = (_WIDE_DESCRIPTOR if is_wide else _DESCRIPTOR).pack(*values)
    signed = _DESCRIPTOR_SIGNATURE + plain
    return (signed,) if plain.startswith(_DESCRIPTOR_SIGNATURE) else (signed, plain)


def zip64_extra(values: tuple[int, ...]) -> bytes:
    """The zip64 extra field that holds *values*; nothing if there are none."""
    if not values:
        return b""
    return _EXTRA.pack(Extra.ZIP64, _WIDE.size * len(values)) + b"".join(_WIDE.pack(value) for value in values)


# all signatures of records have one, so uv refuses comments that do, of the archive and of members
RECORD_BYTE = re.compile(rb"[\x01-\x08]")

Read = Callable[[int, int], bytes]


class Directory(Struct, frozen=True):
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
        if found := RECORD_BYTE.search(comment):
            raise WheelError(f"byte {found[0][0]:#04x} in the archive's comment, as zip records have; uv refuses it")
        boundary = size - tail_size + place
        text: tuple[int, int, int] = (end.entries, end.directory_offset, end.directory_size)
        if wide := _zip64_end(read, boundary):
            boundary, disks, stated = wide
            full = (FULL16, FULL32, FULL32)
            if any(text[part] not in {stated[part], full[part]} for part in range(3)):
                raise WheelError("the end record and the zip64 end record disagree")
            text = stated
        else:
            disks = (end.disk, end.directory_disk, end.entries - end.entries_here)
        if any(disks):
            raise WheelError("one part of an archive of several; expected a whole one")
        entries, offset, length = text
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
