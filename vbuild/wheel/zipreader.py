"""Where the members of an open zip archive are, and that every reader of it would see the same ones.

What two installers could read differently is refused: bytes in front of the archive, members that overlap, a local
header that contradicts the central directory, a name given twice. So is what has no place in a wheel: links,
encryption, paths that leave the folder they are unpacked into.
"""

import os
import re
import stat
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import BinaryIO

from isal import isal_zlib

from vbuild.errors import WheelError, at
from vbuild.wheel.inflating import CHUNK, inflated_stream
from vbuild.wheel.memberpath import check_path, check_places
from vbuild.wheel.zipformat import (
    FULL16,
    FULL32,
    LARGEST_DESCRIPTOR,
    CentralHeader,
    End,
    Extra,
    Flag,
    LocalHeader,
    Method,
    Zip64End,
    Zip64Locator,
    check_unicode_path,
    descriptors,
    extra_fields,
    widened,
)

# more than the codes of a deflate block take, which stand before its first byte (RFC 1951, 3.2.7: 290 at most)
_HEAD = 1 << 9

_ENCRYPTED = Flag.ENCRYPTED | Flag.STRONGLY_ENCRYPTED | Flag.MASKED
_KNOWN = Flag.OPTION_1 | Flag.OPTION_2 | Flag.DESCRIPTOR | Flag.UTF8
_LAST_VERSION = 63
_RECORD_SIGNATURE = re.compile(rb"PK(\x01\x02|\x03\x04|\x05\x06|\x06\x06|\x06\x07|\x07\x08)")
# A deflated block of 258 bytes takes two bits at least (zlib's technical notes: 1032 to 1)
_DEFLATE_RATIO = 1032
# bytes, for a million members
_LARGEST_DIRECTORY = 1 << 28


@dataclass(frozen=True, slots=True)
class Member:
    """One file of an archive; sizes are bytes, inflated and as they lie in the archive."""

    path: str
    size: int
    compressed_size: int
    header_offset: int
    header: CentralHeader

    @property
    def mode(self) -> int:
        """The Unix mode, file type included; 0 where the archive was made without one."""
        return self.header.external_attributes >> 16

    @property
    def is_executable(self) -> bool:
        """Whether installers make the file executable: only regular files, by any of the three bits."""
        return stat.S_ISREG(self.mode) and bool(self.mode & 0o111)


class ZipReader:
    """The members of the zip archive in *file*; `WheelError` where its directory is not sound, or is over *largest*."""

    def __init__(self, file: BinaryIO, *, largest: int = _LARGEST_DIRECTORY) -> None:
        self.file = file
        self._lock = Lock()
        self._descriptor = _descriptor(file)
        self._size = file.seek(0, os.SEEK_END)
        self.comment, entries, self._directory_offset, directory_size = self._end()
        if directory_size > largest:
            raise WheelError(f"a central directory of {directory_size} bytes, expected {largest} at most")
        directory = self._read_at(self._directory_offset, directory_size)
        everything = tuple(_members(directory, entries))
        check_places(member.path for member in everything)
        self.members = tuple(member for member in everything if not member.path.endswith("/"))
        self._starts: dict[int, int] = {}
        # the offsets of the members whose local header has a zip64 extra field, and a descriptor of twice the size
        self._wide: set[int] = set()
        self.folders = tuple(member for member in everything if member.path.endswith("/"))

    def data_offset(self, member: Member) -> int:
        """Where the data of *member* begin; `WheelError` where its local header contradicts the central one."""
        if member.header_offset not in self._starts:
            with at(member.path):
                self._starts[member.header_offset] = self._start(member)
        return self._starts[member.header_offset]

    def check_layout(self) -> None:
        """`WheelError` where a local header disagrees, two members overlap, or something stands between them.

        Who reads an archive from its start, as uv does, finds there what the central directory does not tell of.
        """
        end, before = 0, ""
        spans = []
        for member in sorted((*self.members, *self.folders), key=lambda member: member.header_offset):
            if member.header_offset < end:
                raise WheelError(f"{member.path}: overlaps {before}")
            start, (end, before) = end, (self._end_of(member), member.path)
            spans.append((start, member.header_offset, f"{member.path}: in front of it"))
        for start, stop, where in (*spans, (end, self._directory_offset, "in front of the central directory")):
            if start != stop:
                raise WheelError(f"{where} are {stop - start} bytes of no member; expected none")

    def _end_of(self, member: Member) -> int:
        """Where *member* ends, its data descriptor included; `WheelError` where that lies or is missing."""
        end = self.data_offset(member) + member.compressed_size
        if not member.header.flags & Flag.DESCRIPTOR:
            return end
        with at(member.path):
            if member.header.method == Method.STORED:
                raise WheelError("stored, with its size behind it: where it ends cannot be seen from the start")
            found = self._read_at(end, min(LARGEST_DESCRIPTOR, self._directory_offset - end))
            values = (member.header.crc, member.compressed_size, member.size)
            for descriptor in descriptors(values, is_wide=member.header_offset in self._wide):
                if found.startswith(descriptor):
                    return end + len(descriptor)
            raise WheelError("its data descriptor is missing, or disagrees with the central directory")

    def raw(self, offset: int, size: int) -> Iterator[bytes]:
        """The *size* bytes at *offset*, a chunk at a time."""
        for start in range(offset, offset + size, CHUNK):
            yield self._read_at(start, min(CHUNK, offset + size - start))

    def inflated(self, member: Member) -> Iterator[bytes]:
        """What *member* holds, in chunks of 1 MiB or less; `WheelError` unless size and CRC-32 are as declared."""
        with at(member.path):
            raw = self.raw(self.data_offset(member), member.compressed_size)
            if member.header.method == Method.STORED:
                chunks = raw
            elif member.header.method == Method.DEFLATED:
                chunks = inflated_stream(raw)
            else:
                raise WheelError(f"compressed with method {member.header.method}, which can be copied but not read")
            size = crc = 0
            for chunk in chunks:
                size += len(chunk)
                if size > member.size:
                    raise WheelError(f"inflates to more than the {member.size} bytes it declares")
                crc = isal_zlib.crc32(chunk, crc)
                yield chunk
            if size != member.size:
                raise WheelError(f"inflates to {size} bytes, but declares {member.size}")
            if crc != member.header.crc:
                raise WheelError(f"damaged: CRC-32 is {crc:#010x}, expected {member.header.crc:#010x}")

    def head(self, member: Member, size: int) -> bytes:
        """The first *size* bytes of *member*, less than a chunk; none where they cannot be inflated."""
        with at(member.path):
            raw = self._read_at(self.data_offset(member), min(member.compressed_size, _HEAD + size))
        if member.header.method == Method.STORED:
            return raw[:size]
        try:
            inflates = member.header.method == Method.DEFLATED
            return isal_zlib.decompressobj(-zlib.MAX_WBITS).decompress(raw, size) if inflates else b""
        except isal_zlib.error:  # type: ignore[misc] # its stub says that this class is an exception
            return b""

    def _start(self, member: Member) -> int:
        expected = _encoded(member.path, member.header.flags)
        # one read for all that most local headers are: no extra field
        head = self._read_at(member.header_offset, LocalHeader.layout.size + len(expected))
        local = LocalHeader.parse(head)
        rest = head[LocalHeader.layout.size :]
        if (length := local.name_length + local.extra_length) != len(rest):
            rest = self._read_at(member.header_offset + LocalHeader.layout.size, length)
        name, extra = rest[: local.name_length], rest[local.name_length :]
        if name != expected:
            raise WheelError(f"the local header names it {name!r}")
        fields = extra_fields(extra) if extra else {}
        check_unicode_path(fields, name)
        if not _agrees(local, fields, member):
            raise WheelError("the local header and the central directory disagree")
        if Extra.ZIP64 in fields:
            self._wide.add(member.header_offset)
        start = member.header_offset + LocalHeader.layout.size + len(rest)
        if start + member.compressed_size > self._directory_offset:
            raise WheelError("truncated: its data run into the central directory")
        return start

    def _read_at(self, offset: int, size: int) -> bytes:
        if offset + size > self._size:
            raise WheelError(f"truncated: {size} bytes at {offset:#x} run past the end, {self._size:#x}")
        try:
            data = self._pread(size, offset)
        except OSError as error:
            raise WheelError(f"cannot be read: {error.strerror}") from error
        if len(data) != size:
            raise WheelError("truncated while it was read")
        return data

    def _pread(self, size: int, offset: int) -> bytes:
        """Read without moving the position that all threads share, or one thread after the other."""
        if self._descriptor is not None:
            return os.pread(self._descriptor, size, offset)
        with self._lock:
            self.file.seek(offset)
            return self.file.read(size)

    def _end(self) -> tuple[bytes, int, int, int]:
        """The archive's comment, and the central directory's count of entries, offset and size."""
        tail_size = min(self._size, End.layout.size + FULL16)
        tail = self._read_at(self._size - tail_size, tail_size)
        place = _end_in(tail)
        end = End.parse(tail, place)
        comment = tail[place + End.layout.size :]
        if _RECORD_SIGNATURE.search(comment):
            raise WheelError("a zip record in the archive's comment, where others may look for one")
        boundary = self._size - tail_size + place
        said: tuple[int, int, int] = (end.entries, end.directory_offset, end.directory_size)
        if wide := self._zip64_end(boundary):
            boundary, disks, found = wide
            full = (FULL16, FULL32, FULL32)
            if any(said[part] not in {found[part], full[part]} for part in range(3)):
                raise WheelError("the end record and the zip64 end record disagree")
            said = found
        else:
            disks = (end.disk, end.directory_disk, end.entries - end.entries_here)
        if any(disks):
            raise WheelError("one part of an archive of several; expected a whole one")
        entries, offset, size = said
        if offset + size != boundary:
            raise WheelError(
                f"the central directory ends at {offset + size:#x}, its end record begins at {boundary:#x}"
            )
        return comment, entries, offset, size

    def _zip64_end(self, end: int) -> tuple[int, tuple[int, int, int], tuple[int, int, int]] | None:
        """Offset, disks, and (entries, offset, size) of the zip64 end record in front of *end*; None without one."""
        place = end - Zip64Locator.layout.size
        if place < 0:
            return None
        packed = self._read_at(place, Zip64Locator.layout.size)
        if not packed.startswith(Zip64Locator.SIGNATURE.to_bytes(4, "little")):
            return None
        locator = Zip64Locator.parse(packed)
        record = Zip64End.parse(self._read_at(locator.end_offset, Zip64End.layout.size))
        # record_size counts what follows it: twelve bytes less than the whole
        if locator.end_offset + record.record_size + 12 != place:
            raise WheelError("the zip64 end record is not in front of its locator")
        if locator.disks > 1:
            raise WheelError(f"one part of an archive of {locator.disks}; expected a whole one")
        disks = (locator.disk, record.disk or record.directory_disk, record.entries - record.entries_here)
        return locator.end_offset, disks, (record.entries, record.directory_offset, record.directory_size)


def _descriptor(file: BinaryIO) -> int | None:
    """What `os.pread` reads *file* through; None where the system has no such call, or *file* is none of its own."""
    with suppress(OSError):  # io.UnsupportedOperation is one
        return file.fileno() if hasattr(os, "pread") else None
    return None


def _agrees(local: LocalHeader, fields: dict[int, bytes], member: Member) -> bool:
    """Whether the *local* header says what the central directory says of *member*."""
    central = member.header
    truth = (member.size, member.compressed_size)
    spare = 0 if FULL32 in {local.size, local.compressed_size} else 2
    size, compressed_size = widened((local.size, local.compressed_size), fields, spare=spare)
    if spare and widened((FULL32, FULL32), fields) not in {truth, (FULL32, FULL32)}:
        return False
    said = ((local.crc, central.crc), (compressed_size, member.compressed_size), (size, member.size))
    # with a data descriptor the true values stand behind the data, and only perhaps here
    unsaid = (0, FULL32) if local.flags & Flag.DESCRIPTOR else ()
    return (
        (local.flags ^ central.flags) & ~(Flag.OPTION_1 | Flag.OPTION_2) == 0
        and local.method == central.method
        and all(here == there or here in unsaid for here, there in said)
    )


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


def _members(directory: bytes, entries: int) -> Iterator[Member]:
    paths = set()
    offset = 0
    for _ in range(entries):
        header = CentralHeader.parse(directory, offset)
        start = offset + CentralHeader.layout.size
        middle = start + header.name_length
        end = middle + header.extra_length
        offset = end + header.comment_length
        if offset > len(directory):
            raise WheelError("truncated: an entry of the central directory runs past its end")
        path = _path(directory[start:middle], header.flags)
        with at(path if path and path.isprintable() else repr(path)):
            member = _member(path, header, directory[middle:end])
            if path in paths:
                raise WheelError("two members of this name")
        paths.add(path)
        yield member
    if offset != len(directory):
        raise WheelError(f"the central directory has {len(directory) - offset} bytes after its {entries} entries")


def _member(path: str, header: CentralHeader, extra: bytes) -> Member:
    """The member at *path*; `WheelError` where it is nothing that may be in a wheel."""
    fields = extra_fields(extra) if extra else {}
    size, compressed_size, header_offset = widened((header.size, header.compressed_size, header.header_offset), fields)
    member = Member(path, size, compressed_size, header_offset, header)
    check_path(path)
    check_unicode_path(fields, path.encode())
    if header.flags & _ENCRYPTED:
        raise WheelError("encrypted")
    if header.flags & ~_KNOWN:
        raise WheelError(f"general purpose flags {header.flags:#06x} are not known")
    if (version := header.version_needed & 0xFF) > _LAST_VERSION:
        raise WheelError(f"needs version {version / 10} of the zip format; {_LAST_VERSION / 10} is the last one known")
    if header.disk:
        raise WheelError(f"on disk {header.disk} of an archive of several; expected a whole one")
    kind = stat.S_IFMT(member.mode)
    if kind not in {0, stat.S_IFDIR if path.endswith("/") else stat.S_IFREG}:
        raise WheelError(f"not a regular file: mode {member.mode:#o}")
    if path.endswith("/") and size:
        raise WheelError(f"a folder of {size} bytes")
    if header.method == Method.STORED and size != compressed_size:
        raise WheelError(f"stored, but {compressed_size} bytes are to become {size}")
    if header.method == Method.DEFLATED and size > compressed_size * _DEFLATE_RATIO:
        raise WheelError(f"declares {size} bytes, more than {compressed_size} can inflate to")
    return member


def _path(name: bytes, flags: int) -> str:
    try:
        # without the flag Python reads code page 437, others what they like
        return name.decode("utf-8" if flags & Flag.UTF8 else "ascii")
    except UnicodeDecodeError as error:
        missing = "" if flags & Flag.UTF8 else ", or has no flag that says so"
        raise WheelError(f"{name!r}: a name that is not UTF-8{missing}") from error


def _encoded(path: str, flags: int) -> bytes:
    return path.encode("utf-8" if flags & Flag.UTF8 else "ascii")
