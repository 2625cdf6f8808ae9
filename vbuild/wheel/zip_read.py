"""The zip format, and the members of an open archive, if every reader would see the same ones.

    local header | name | extra | data          one per member
    central header | name | extra | comment     one per member, all together: the central directory
    zip64 end | zip64 locator                   if a size, an offset or the count does not fit
    end | comment

A value that does not fit its field is all ones there and stands in the header's zip64 extra field instead.

Refused is what two installers could read differently: bytes in front of the archive, two ends, members that overlap, a
local header that contradicts the directory, a name given twice with two contents. So are links, encryption, and paths
that lead out.
https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT (section 4.3)
"""

import hashlib
import os
import re
import stat
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import IntEnum
from functools import lru_cache
from threading import Lock
from typing import BinaryIO, Self

from isal import isal_zlib
from msgspec import Struct

from vbuild.errors import WheelError, at
from vbuild.files import zstd
from vbuild.files.records import U16, U32, U64, Packed
from vbuild.wheel.blocks import Stall, grid_for, inflated_stream
from vbuild.wheel.paths import check_path, check_places

FULL16 = 0xFFFF
FULL32 = 0xFFFFFFFF
LARGEST_DESCRIPTOR = 24

_LOCAL_SIGNATURE = b"PK\x03\x04"
# the bytes of a central header that a local header repeats
_IN_BOTH, _EXTRA_LENGTH = slice(6, 32), slice(30, 32)
LOCAL_SIZE = 30


class ZipMethod(IntEnum):
    STORED = 0
    DEFLATED = 8
    ZSTD = 93


class ZipFlag(IntEnum):
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


CENTRAL, ZIP64_END, LOCATOR, END = 0x02014B50, 0x06064B50, 0x07064B50, 0x06054B50
"""The signatures that records begin with."""


class CentralHeader(Packed, frozen=True):
    """A local header is its fields from *version_needed* to *extra_length*."""

    signature: U32
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
        # the version that made it stands in front, a comment and what else the directory says behind
        return cls.parse(CENTRAL.to_bytes(6, "little") + data[4:] + bytes(cls.layout.size - _IN_BOTH.stop))

    def pack_local(self) -> bytes:
        return _LOCAL_SIGNATURE + self.pack()[_IN_BOTH]


class Zip64End(Packed, frozen=True):
    signature: U32
    record_size: U64
    version_made_by: U16
    version_needed: U16
    disk: U32
    directory_disk: U32
    entries_here: U64
    entries: U64
    directory_size: U64
    directory_offset: U64


class Zip64Locator(Packed, frozen=True):
    signature: U32
    disk: U32
    end_offset: U64
    disks: U32


class End(Packed, frozen=True):
    signature: U32
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


def read_zip64(values: tuple[int, ...], fields: dict[int, bytes], *, spare: int = 0) -> tuple[int, ...]:
    """32-bit *values* with each that is all ones taken from the zip64 extra field, in order.

    `WheelError` if the field has fewer or more, but for *spare*: readers use these differently.
    """
    if Extra.ZIP64 not in fields:
        return values
    wide = fields[Extra.ZIP64]
    if len(wide) < _WIDE.size * values.count(FULL32):
        raise WheelError("truncated: the zip64 extra field lacks a value")
    if len(wide) not in {_WIDE.size * (values.count(FULL32) + more) for more in (0, spare)}:
        raise WheelError("the zip64 extra field has more than the values that do not fit their fields")
    wide_values = (value for (value,) in _WIDE.iter_unpack(wide))
    return tuple(next(wide_values) if value == FULL32 else value for value in values)


def check_unicode_path(fields: dict[int, bytes], name: bytes) -> None:
    if Extra.UNICODE_PATH in fields and fields[Extra.UNICODE_PATH][5:] != name:
        named = fields[Extra.UNICODE_PATH][5:]
        raise WheelError(f"its Unicode path extra field names it {named!r}, expected {name!r}")


def descriptors(values: tuple[int, int, int], *, is_wide: bool) -> tuple[bytes, ...]:
    """What may stand behind data whose CRC-32, packed size and size are *values*, with a signature or without.

    Nothing may where the sizes need 64 bits and the local header does not make it *is_wide*. A CRC-32 that is the
    signature itself cannot do without one.
    """
    if not is_wide and max(values) > FULL32:
        return ()
    plain = (_WIDE_DESCRIPTOR if is_wide else _DESCRIPTOR).pack(*values)
    signed = _DESCRIPTOR_SIGNATURE + plain
    return (signed,) if plain.startswith(_DESCRIPTOR_SIGNATURE) else (signed, plain)


def zip64_extra(values: tuple[int, ...]) -> bytes:
    if not values:
        return b""
    return _EXTRA.pack(Extra.ZIP64, _WIDE.size * len(values)) + b"".join(_WIDE.pack(value) for value in values)


# all signatures of records have one, so uv refuses comments that do, of the archive and of members
RECORD_BYTE = re.compile(rb"[\x01-\x08]")

Read = Callable[[int, int], bytes]


class Directory(Struct, frozen=True):
    """The central directory: number of *entries*, place, size in bytes, and the archive's *comment*."""

    entries: int
    offset: int
    size: int
    comment: bytes

    @classmethod
    def locate(cls, read: Read, size: int) -> Self:
        """Find it in *size* bytes, which *read* takes by offset and size; `WheelError` if in doubt."""
        tail_size = min(size, End.layout.size + FULL16)
        tail = read(size - tail_size, tail_size)
        start = _end_in(tail)
        end = End.parse(tail, start)
        comment = tail[start + End.layout.size :]
        if record_byte := RECORD_BYTE.search(comment):
            raise WheelError(
                f"byte {record_byte[0][0]:#04x} in the archive's comment, as zip records have; uv refuses it"
            )
        boundary = size - tail_size + start
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
    """Where the last end record starts in *tail* whose comment ends with the file."""
    signature = END.to_bytes(4, "little")
    start = tail.rfind(signature)
    while start >= 0:
        rest = len(tail) - start - End.layout.size
        if rest >= 0 and End.parse(tail, start).comment_length == rest:
            return start
        start = tail.rfind(signature, 0, start + len(signature) - 1)
    raise WheelError("not a zip archive, or truncated: no end record")


def _zip64_end(read: Read, end: int) -> tuple[int, tuple[int, int, int], tuple[int, int, int]] | None:
    """Offset, disks, and (entries, offset, size) of the zip64 end record in front of *end*; None without one."""
    start = end - Zip64Locator.layout.size
    if start < 0:
        return None
    packed = read(start, Zip64Locator.layout.size)
    if not packed.startswith(LOCATOR.to_bytes(4, "little")):
        return None
    locator = Zip64Locator.parse(packed)
    record = Zip64End.parse(read(locator.end_offset, Zip64End.layout.size))
    if record.signature != ZIP64_END:
        raise WheelError(f"no Zip64End where one should be: signature is {record.signature:#010x}")
    # record_size counts what follows it: twelve bytes less than the whole
    if locator.end_offset + record.record_size + 12 != start:
        raise WheelError("the zip64 end record is not in front of its locator")
    # Python and uv look for it at a fixed distance, and not where the locator says
    if locator.end_offset + Zip64End.layout.size != start:
        raise WheelError(f"a zip64 end record of {record.record_size + 12} bytes, expected {Zip64End.layout.size}")
    if locator.disks > 1:
        raise WheelError(f"one part of an archive of {locator.disks}; expected a whole one")
    disks = (locator.disk, record.disk or record.directory_disk, record.entries - record.entries_here)
    return locator.end_offset, disks, (record.entries, record.directory_offset, record.directory_size)


CHUNK = 1 << 20

READ_METHODS = frozenset({ZipMethod.STORED, ZipMethod.DEFLATED, ZipMethod.ZSTD})


def _inflated_frame(raw: Iterator[bytes]) -> Iterator[bytes]:
    try:
        yield from zstd.inflated(raw, CHUNK)
    except zstd.ZstdError as error:
        raise WheelError(f"damaged: its zstd frame is broken: {error}") from error


# bytes, more than a block of zstd takes with headers
_FRAME_HEAD = 1 << 18
# bytes, more than the codes of a deflate block take (RFC 1951, 3.2.7: 290 at most)
_HEAD = 1 << 9

# bytes of members that zlib inflates in any case
_STRICT = 1 << 20

_ENCRYPTED = ZipFlag.ENCRYPTED | ZipFlag.STRONGLY_ENCRYPTED | ZipFlag.MASKED
_KNOWN = ZipFlag.OPTION_1 | ZipFlag.OPTION_2 | ZipFlag.DESCRIPTOR | ZipFlag.UTF8
_LAST_VERSION = 63
# A deflated block of 258 bytes takes two bits at least (zlib's technical notes: 1032 to 1)
_DEFLATE_RATIO = 1032
# a block of zstd that stands for 128 KiB takes four bytes at least (RFC 8878, 3.1.1.2)
_ZSTD_RATIO = 1 << 15
_WINDOW_LOG = 27
# bytes, for a million members
_LARGEST_DIRECTORY = 1 << 28
# characters of a path in a message
_LONGEST_SHOWN = 160


class Member(Struct, frozen=True):
    """One file of an archive; its central header stays *packed*, which takes a third of the memory."""

    path: str
    size: int
    compressed_size: int
    header_offset: int
    packed: bytes

    @property
    def header(self) -> CentralHeader:
        return _unpacked(self.packed)

    @property
    def mode(self) -> int:
        """0 if the archive was made without one."""
        return self.header.external_attributes >> 16

    @property
    def is_executable(self) -> bool:
        """Whether installers make it executable: a regular file with any of the three bits."""
        return stat.S_ISREG(self.mode) and bool(self.mode & 0o111)


_unpacked = lru_cache(maxsize=1 << 13)(CentralHeader.parse)


class ZipReader:
    """The members of *file*; `WheelError` if its directory is not sound, or is over *largest* bytes.

    If it *is_strict*, zlib inflates large members as well: no installer takes what it refuses.
    """

    def __init__(self, file: BinaryIO, *, largest: int = _LARGEST_DIRECTORY, is_strict: bool = False) -> None:
        self.file = file
        self._is_strict = is_strict
        self._lock = Lock()
        # for `os.pread`, if the system has this call and the file is one of its own
        self._descriptor: int | None = None
        with suppress(OSError):  # io.UnsupportedOperation is one
            self._descriptor = file.fileno() if hasattr(os, "pread") else None
        self._size = file.seek(0, os.SEEK_END)
        directory = Directory.locate(self._read_at, self._size)
        if directory.size > largest:
            raise WheelError(f"a central directory of {directory.size} bytes, expected {largest} at most")
        self.comment = directory.comment
        self._directory_offset = directory.offset
        everything = tuple(_members(self._read_at(directory.offset, directory.size), directory.entries))
        check_places(member.path for member in everything)
        firsts: dict[str, Member] = {}
        self.twins = tuple(member for member in everything if firsts.setdefault(member.path, member) is not member)
        """Members and folders whose path another one in front of them has, and that are as large as it."""
        if different := next((twin for twin in self.twins if _identity(twin) != _identity(firsts[twin.path])), None):
            raise WheelError(f"{_shown(different.path)}: two members of this name, which are not alike")
        self.members = tuple(member for member in firsts.values() if not member.path.endswith("/"))
        self._starts: dict[int, int] = {}
        # offsets of members whose descriptor has twice the size
        self._wide: set[int] = set()
        self.folders = tuple(member for member in firsts.values() if member.path.endswith("/"))

    def data_offset(self, member: Member) -> int:
        """Where the data of *member* begin; `WheelError` if its local header contradicts the central one."""
        if (start := self._starts.get(member.header_offset)) is not None:
            return start
        with at(member.path):
            expected = member.path.encode()
            # one read for all that most local headers are: no extra field
            head = self._read_at(member.header_offset, LOCAL_SIZE + len(expected))
            start = member.header_offset + len(head)
            is_repeated = head == _LOCAL_SIGNATURE + member.packed[_IN_BOTH] + expected
            if not is_repeated or any(member.packed[_EXTRA_LENGTH]):
                start = self._compared(member, head)
            if start + member.compressed_size > self._directory_offset:
                raise WheelError("truncated: its data run into the central directory")
        self._starts[member.header_offset] = start
        return start

    def _compared(self, member: Member, head: bytes) -> int:
        """The same for a local header, *head* with as many bytes as a path has, that is not the central one."""
        local, rest = CentralHeader.parse_local(head[:LOCAL_SIZE]), head[LOCAL_SIZE:]
        if (length := local.name_length + local.extra_length) != len(rest):
            rest = self._read_at(member.header_offset + LOCAL_SIZE, length)
        _check_version(local)
        name, extra = rest[: local.name_length], rest[local.name_length :]
        if name != member.path.encode():
            raise WheelError(f"the local header names it {name!r}")
        fields = extra_fields(extra) if extra else {}
        check_unicode_path(fields, name)
        if wrong := _disagreement(local, fields, member):
            raise WheelError(wrong)
        if Extra.ZIP64 in fields:
            self._wide.add(member.header_offset)
        return member.header_offset + LOCAL_SIZE + len(rest)

    def check_layout(self) -> None:
        """`WheelError` if a local header disagrees, two members overlap, or something stands between them.

        A reader that starts at the archive's start, as uv does, finds there what the central directory does not name.
        """
        end, before = 0, ""
        gap: tuple[str, int] | None = None
        for member in sorted((*self.members, *self.folders, *self.twins), key=lambda member: member.header_offset):
            if member.header_offset < end:
                raise WheelError(f"{member.path}: overlaps {before}")
            if member.header_offset > end:
                gap = gap or (f"{member.path}: in front of it", member.header_offset - end)
            end, before = self._end_of(member), member.path
        if end < self._directory_offset:
            gap = gap or ("in front of the central directory", self._directory_offset - end)
        if gap:
            raise WheelError(f"{gap[0]} are {gap[1]} bytes of no member; expected none")

    def check_twins(self) -> None:
        """`WheelError` if members of one name have different contents, which their sizes and CRC-32 do not show."""
        firsts = {member.path: member for member in (*self.members, *self.folders)}
        for twin in self.twins:
            if self._sha256(twin) != self._sha256(firsts[twin.path]):
                raise WheelError(f"{_shown(twin.path)}: two members of this name, which are not alike")

    def _sha256(self, member: Member) -> bytes:
        hashing = hashlib.sha256()
        for chunk in self.inflated(member):
            hashing.update(chunk)
        return hashing.digest()

    def _end_of(self, member: Member) -> int:
        """The end of *member* with its data descriptor; `WheelError` if that lies or is missing."""
        end = self.data_offset(member) + member.compressed_size
        header = member.header
        if not header.flags & ZipFlag.DESCRIPTOR:
            return end
        with at(member.path):
            if header.method == ZipMethod.STORED:
                raise WheelError("stored, with its size behind it: where it ends cannot be seen from the start")
            behind = self._read_at(end, min(LARGEST_DESCRIPTOR, self._directory_offset - end))
            values = (header.crc, member.compressed_size, member.size)
            for descriptor in descriptors(values, is_wide=member.header_offset in self._wide):
                if behind.startswith(descriptor):
                    return end + len(descriptor)
            raise WheelError("its data descriptor is missing, or disagrees with the central directory")

    def raw(self, member: Member, *, start: int = 0) -> Iterator[bytes]:
        """Yield the packed bytes of *member* from the one at *start* on."""
        begin = self.data_offset(member)
        end = begin + member.compressed_size
        for offset in range(begin + start, end, CHUNK):
            yield self._read_at(offset, min(CHUNK, end - offset))

    def packed(self, member: Member, offset: int, size: int) -> bytes:
        """`ValueError` if the archive is closed."""
        if self.file.closed:
            raise ValueError(member.path)
        return self._read_at(self.data_offset(member) + offset, min(size, member.compressed_size - offset))

    def inflated(self, member: Member, *, stalls: list[Stall] | None = None) -> Iterator[bytes]:
        """Yield the contents of *member*, in chunks of 1 MiB or less; `WheelError` unless size and CRC-32 are as
        declared.

        *stalls* get what `inflated_stream` finds; then some chunks may be longer.
        """
        with at(member.path):
            raw = self.raw(member)
            header = member.header
            if header.method == ZipMethod.STORED:
                chunks = raw
            elif header.method == ZipMethod.DEFLATED:
                is_strict = self._is_strict or member.size <= _STRICT
                chunks = inflated_stream(raw, stalls, grid=grid_for(member.size), is_strict=is_strict)
            elif header.method == ZipMethod.ZSTD:
                chunks = _inflated_frame(raw)
            else:
                raise WheelError(f"compressed with method {header.method}, which can be copied but not read")
            size = crc = 0
            for chunk in chunks:
                size += len(chunk)
                if size > member.size:
                    raise WheelError(f"inflates to more than the {member.size} bytes it declares")
                crc = isal_zlib.crc32(chunk, crc)
                yield chunk
            if size != member.size:
                raise WheelError(f"inflates to {size} bytes, but declares {member.size}")
            if crc != header.crc:
                raise WheelError(f"damaged: CRC-32 is {crc:#010x}, expected {header.crc:#010x}")

    def head(self, member: Member, size: int) -> bytes:
        with at(member.path):
            method = member.header.method
            most = _FRAME_HEAD if method == ZipMethod.ZSTD else _HEAD + size
            raw = self.packed(member, 0, most)
        if method == ZipMethod.STORED:
            return raw[:size]
        if method == ZipMethod.ZSTD:
            try:
                return zstd.first_bytes(raw, size, window_log=_WINDOW_LOG)
            except zstd.ZstdError:
                return b""
        try:
            inflates = method == ZipMethod.DEFLATED
            return isal_zlib.decompressobj(-zlib.MAX_WBITS).decompress(raw, size) if inflates else b""
        except isal_zlib.error:  # type: ignore[misc] # its stub says that this class is an exception
            return b""

    def _read_at(self, offset: int, size: int) -> bytes:
        if offset + size > self._size:
            raise WheelError(f"truncated: {size} bytes at {offset:#x} run past the end, {self._size:#x}")
        try:
            if self._descriptor is not None:
                # does not move the position, which all threads share
                data = os.pread(self._descriptor, size, offset)
            else:
                with self._lock:
                    self.file.seek(offset)
                    data = self.file.read(size)
        except OSError as error:
            raise WheelError(f"cannot be read: {error.strerror}") from error
        if len(data) != size:
            raise WheelError("truncated while it was read")
        return data


def _identity(member: Member) -> tuple[int, int, int]:
    return member.size, member.header.crc, member.header.external_attributes


def _disagreement(local: CentralHeader, fields: dict[int, bytes], member: Member) -> str | None:
    central = member.header
    truth = (member.size, member.compressed_size)
    spare = 0 if FULL32 in {local.size, local.compressed_size} else 2
    size, compressed_size = read_zip64((local.size, local.compressed_size), fields, spare=spare)
    # zipfile, until 3.11.4, has zeros in both places
    allowed = {truth, (FULL32, FULL32), (0, 0)} if local.flags & ZipFlag.DESCRIPTOR else {truth, (FULL32, FULL32)}
    if spare and (wide := read_zip64((FULL32, FULL32), fields)) not in allowed:
        return f"sizes {wide} in the zip64 extra field of its local header, but {size, compressed_size} in the header"
    # how hard the writer tried to compress it does not matter
    flags, expected = (header.flags & ~(ZipFlag.OPTION_1 | ZipFlag.OPTION_2) for header in (local, central))
    # with a data descriptor the true values come after the data, and here only perhaps
    absent = (0, FULL32) if local.flags & ZipFlag.DESCRIPTOR else ()
    for field, form, stated, expected_value, is_excused in (
        ("flags", "#06x", flags, expected, False),
        ("method", "", local.method, central.method, False),
        ("size", "", size, member.size, size in absent),
        ("packed size", "", compressed_size, member.compressed_size, compressed_size in absent),
        ("CRC-32", "#010x", local.crc, central.crc, local.crc in absent),
    ):
        if stated != expected_value and not is_excused:
            return f"{field} {stated:{form}} in its local header, but {expected_value:{form}} in the central directory"
    return None


def _members(directory: bytes, entries: int) -> Iterator[Member]:
    offset = 0
    for number in range(entries):
        if offset + CentralHeader.layout.size > len(directory):
            raise WheelError(f"the central directory ends after {number} entries, expected {entries}")
        start = offset + CentralHeader.layout.size
        packed = directory[offset:start]
        header = _unpacked(packed)
        if header.signature != CENTRAL:
            raise WheelError(f"no CentralHeader where one should be: signature is {header.signature:#010x}")
        middle = start + header.name_length
        end = middle + header.extra_length
        offset = end + header.comment_length
        if offset > len(directory):
            raise WheelError("truncated: an entry of the central directory runs past its end")
        name, is_utf8 = directory[start:middle], header.flags & ZipFlag.UTF8
        try:
            # without the flag each reader takes another code page
            path = name.decode("utf-8" if is_utf8 else "ascii")
        except UnicodeDecodeError as error:
            missing = "" if is_utf8 else ", or has no flag that says so"
            raise WheelError(f"{name!r}: a name that is not UTF-8{missing}") from error
        with at(_shown(path)):
            member = _member(path, packed, directory[middle:end])
            if record_byte := RECORD_BYTE.search(directory, end, offset):
                raise WheelError(f"byte {record_byte[0][0]:#04x} in its comment, as zip records have; uv refuses it")
        yield member
    if offset != len(directory):
        raise WheelError(f"the central directory has {len(directory) - offset} bytes after its {entries} entries")


def _shown(path: str) -> str:
    shown = path if path and path.isprintable() else repr(path)
    return shown if len(shown) <= _LONGEST_SHOWN else f"{shown[:_LONGEST_SHOWN]}…"


def _check_version(header: CentralHeader) -> None:
    if (version := header.version_needed & 0xFF) > _LAST_VERSION:
        raise WheelError(f"needs version {version / 10} of the zip format; {_LAST_VERSION / 10} is the last one known")


def _member(path: str, packed: bytes, extra: bytes) -> Member:
    header = _unpacked(packed)
    fields = extra_fields(extra) if extra else {}
    size, compressed_size, header_offset = read_zip64(
        (header.size, header.compressed_size, header.header_offset), fields
    )
    member = Member(path, size, compressed_size, header_offset, packed)
    check_path(path)
    check_unicode_path(fields, path.encode())
    if header.flags & _ENCRYPTED:
        raise WheelError("encrypted")
    if header.flags & ~_KNOWN:
        raise WheelError(f"general purpose flags {header.flags:#06x} are not known")
    _check_version(header)
    if header.disk:
        raise WheelError(f"on disk {header.disk} of an archive of several; expected a whole one")
    kind = stat.S_IFMT(member.mode)
    if kind not in {0, stat.S_IFDIR if path.endswith("/") else stat.S_IFREG}:
        raise WheelError(f"not a regular file: mode {member.mode:#o}")
    if path.endswith("/") and size:
        raise WheelError(f"a folder of {size} bytes")
    if header.method == ZipMethod.STORED and size != compressed_size:
        raise WheelError(f"stored, but {compressed_size} bytes are to become {size}")
    if header.method == ZipMethod.DEFLATED and size > compressed_size * _DEFLATE_RATIO:
        raise WheelError(f"declares {size} bytes, more than {compressed_size} can inflate to")
    if header.method == ZipMethod.ZSTD and size > compressed_size * _ZSTD_RATIO:
        raise WheelError(f"declares {size} bytes, more than {compressed_size} of zstd can inflate to")
    return member
