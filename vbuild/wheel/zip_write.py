"""Write a zip archive member by member: plain headers with sizes in them, zip64 only if a value needs it.

There are no data descriptors and no other extra fields, so the same members give the same bytes wherever they came
from. `write_stored` and `open_stored` are for conda packages.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from isal import isal_zlib
from msgspec import Struct
from msgspec.structs import replace

from vbuild.errors import WheelError, at
from vbuild.files.atomic import replacing
from vbuild.files.edited import EditedFile
from vbuild.files.reading import open_file
from vbuild.files.records import Buffer
from vbuild.wheel.deflate import DeflatedPart, Deflater
from vbuild.wheel.paths import check_path
from vbuild.wheel.zip_read import (
    CENTRAL,
    END,
    FULL16,
    FULL32,
    LOCATOR,
    ZIP64_END,
    CentralHeader,
    End,
    Member,
    Zip64End,
    Zip64Locator,
    ZipFlag,
    ZipMethod,
    ZipReader,
    zip64_extra,
)

FIRST_DATE = 1 << 5 | 1  # 1980-01-01, the first day a zip archive can say

_UNIX = 3 << 8
_VERSION, _ZIP64_VERSION = 20, 45
# from here on the kernel copies faster
_LARGE = 1 << 16
_AT_ONCE = 1 << 26
_PLAIN = frozenset({ZipMethod.STORED, ZipMethod.DEFLATED})


def new_header(*, mode: int = 0o644, method: int = ZipMethod.DEFLATED) -> CentralHeader:
    """Sizes and lengths are still to come."""
    external = (stat.S_IFREG | mode) << 16
    version = _UNIX | _VERSION
    return CentralHeader(CENTRAL, version, _VERSION, 0, method, 0, FIRST_DATE, 0, 0, 0, 0, 0, 0, 0, 0, external, 0)


class ZipWriter:
    """An archive in the making in *file*, which is empty and seekable, and stays open."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._entries: list[bytes] = []

    def copy(self, source: ZipReader, member: Member, path: str) -> None:
        local, central = _headers(Member(path, member.size, member.compressed_size, self._file.tell(), member.packed))
        self._file.write(local)
        _send(source, member, self._file)
        self._entries.append(central)

    def write(self, path: str, data: EditedFile, header: CentralHeader, deflater: Deflater) -> bytes:
        """Append *data* with the time, mode and method of *header*; return its SHA-256."""
        method = ZipMethod.STORED if header.method == ZipMethod.STORED else ZipMethod.DEFLATED
        flags = header.flags & ~(ZipFlag.OPTION_1 | ZipFlag.OPTION_2)
        header = replace(header, method=method, flags=flags, version_needed=_VERSION)
        start = self._file.tell()
        # one compressed size for the first header and the true one: both must take the same room
        member = Member(path, data.size, _longest(data.size), start, header.pack())
        self._file.write(_headers(member)[0])
        hashing = sha256()
        crc = compressed_size = 0
        stored = (DeflatedPart((buffer,), buffer, isal_zlib.crc32(buffer)) for buffer in data.buffers())
        for piece in stored if method == ZipMethod.STORED else deflater.pressed(data):
            compressed_size += self._file.write(piece.data)
            crc = isal_zlib.crc32_combine(crc, piece.crc, piece.size)
            for buffer in piece.plain:
                hashing.update(buffer)
        self._end(replace(member, compressed_size=compressed_size, packed=replace(header, crc=crc).pack()))
        return hashing.digest()

    def stream(self, path: str, data: "StoredStream", header: CentralHeader) -> None:
        member = Member(path, data.most, data.most, self._file.tell(), header.pack())
        self._file.write(_headers(member)[0])
        crc = size = 0
        for chunk in data.chunks:
            size += self._file.write(chunk)
            crc = isal_zlib.crc32(chunk, crc)
        self._end(replace(member, size=size, compressed_size=size, packed=replace(header, crc=crc).pack()))

    def _end(self, member: Member) -> None:
        local, central = _headers(member)
        end = self._file.tell()
        self._file.seek(member.header_offset)
        self._file.write(local)
        self._file.seek(end)
        self._entries.append(central)

    def finish(self, comment: bytes) -> None:
        offset = self._file.tell()
        size = sum(self._file.write(entry) for entry in self._entries)
        count = len(self._entries)
        if count >= FULL16 or offset >= FULL32 or size >= FULL32:
            made_by = _UNIX | _ZIP64_VERSION
            rest = Zip64End.layout.size - 12
            end64 = Zip64End(ZIP64_END, rest, made_by, _ZIP64_VERSION, 0, 0, count, count, size, offset)
            self._file.write(end64.pack() + Zip64Locator(LOCATOR, 0, offset + size, 1).pack())
        entries = min(count, FULL16)
        end = End(END, 0, 0, entries, entries, min(size, FULL32), min(offset, FULL32), len(comment))
        self._file.write(end.pack() + comment)


def _headers(member: Member) -> tuple[bytes, bytes]:
    """The local and the central header of *member*."""
    header, name = member.header, member.path.encode()
    sizes = member.size, member.compressed_size
    is_large = max(*sizes, _longest(member.size)) >= FULL32
    # a local header has either both sizes in its zip64 field or none
    local_extra = zip64_extra(sizes if is_large else ())
    extra = zip64_extra(tuple(value for value in (*sizes, member.header_offset) if value >= FULL32))
    options = header.flags & (ZipFlag.OPTION_1 | ZipFlag.OPTION_2)
    # the version that the compression needs
    least = 0 if header.method in _PLAIN else header.version_needed & 0xFF
    local = central = replace(
        header,
        version_needed=max(least, _ZIP64_VERSION if is_large or extra else _VERSION),
        flags=options if member.path.isascii() else options | ZipFlag.UTF8,
        compressed_size=min(member.compressed_size, FULL32),
        size=min(member.size, FULL32),
        name_length=len(name),
        extra_length=len(extra),
        comment_length=0,
        header_offset=min(member.header_offset, FULL32),
    )
    if is_large:
        local = replace(central, compressed_size=FULL32, size=FULL32, extra_length=len(local_extra))
    elif extra:
        local = replace(central, version_needed=max(least, _VERSION), extra_length=0)
    return local.pack_local() + name + local_extra, central.pack() + name + extra


def _longest(size: int) -> int:
    """More bytes than *size* ones ever deflate to."""
    return size + size // 1024 + 64


def _send(source: ZipReader, member: Member, output: BinaryIO) -> None:
    """Send the packed bytes of *member*, in the kernel if possible."""
    sent, size = 0, member.compressed_size
    if size >= _LARGE and hasattr(os, "copy_file_range"):
        output.flush()
        offset, start = source.data_offset(member), output.tell()
        numbers = source.file.fileno(), output.fileno()
        try:
            while sent < size and (
                count := os.copy_file_range(*numbers, min(size - sent, _AT_ONCE), offset + sent, start + sent)
            ):
                sent += count
        except OSError:
            # not between these two file systems, or the disk is full: writing the rest tells which
            pass
        output.seek(start + sent)
    output.writelines(source.raw(member, start=sent))


class PassedStream(Struct, frozen=True):
    source: ZipReader
    member: Member


class StoredStream(Struct, frozen=True):
    """Bytes whose number is known after the last of *chunks*: at *most* so many, and fewer than 4 GiB."""

    chunks: Iterator[Buffer]
    most: int

    @classmethod
    def fits(cls, most: int) -> bool:
        """Whether so many bytes may come: with more, the header in front would have to say how many."""
        return _longest(most) < FULL32


def write_stored(path: Path, members: Iterable[tuple[str, EditedFile | PassedStream | StoredStream]]) -> None:
    """Write the archive *path* of *members* by name, complete or not at all; `WheelError` if it cannot be."""
    try:
        with replacing(path) as part, part.open("xb") as file, Deflater(remembers=False) as deflater:
            writer = ZipWriter(file)
            for name, data in members:
                with at(path), at(name):
                    check_path(name)
                if isinstance(data, PassedStream):
                    writer.copy(data.source, data.member, name)
                elif isinstance(data, StoredStream):
                    writer.stream(name, data, new_header(method=ZipMethod.STORED))
                else:
                    writer.write(name, data, new_header(method=ZipMethod.STORED), deflater)
            writer.finish(b"")
    except OSError as error:
        raise WheelError(f"{path}: cannot be written: {error.strerror}") from error


@contextmanager
def open_stored(path: Path) -> Iterator[ZipReader]:
    """`WheelError` if it is damaged, or its members could be read in two ways."""
    try:
        file = open_file(path)
    except OSError as error:
        raise WheelError(f"{path}: cannot be read: {error.strerror}") from error
    with file, at(path.name):
        reader = ZipReader(file)
        reader.check_layout()
        yield reader
