"""Write the layers of images: tar archives, compressed without compressing again what a wheel holds compressed.

    tar headers, padding, small files   deflated anew, gathered into gzip members of about 1 MiB
    a large member of a wheel           a gzip member of its own, around the member's deflate stream as it is

A gzip file is any number of members, one after the other (RFC 1952, 2.2), and a zip archive tells all that the ends of
one has to say: CRC-32 and size. What is inflated on the way is held against RECORD, and hashed for the diff_id.
The same files give the same bytes: no clock, no user, no owner; folders stand before what is in them.
https://github.com/opencontainers/image-spec/blob/main/layer.md
"""

import hashlib
import secrets
import struct
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from deflate import gzip_compress

from vbuild.errors import LayoutError, at
from vbuild.layout.oci.model import GZIP_TYPE, Descriptor, File, Layer, Taken
from vbuild.wheel.archive import Wheel, open_wheel
from vbuild.wheel.unpacking import fed, fed_beside
from vbuild.wheel.zipformat import Method
from vbuild.wheel.zipreader import Member

_LEVEL = 6
_GATHERED = 1 << 20
# bytes: smaller ones deflate better together with their neighbours, and cost nothing
_ALONE = 1 << 15
# deflate, no name, no time, no system (RFC 1952, 2.3)
_GZIP_HEADER = bytes.fromhex("1f8b08000000000000ff")
_GZIP_END = struct.Struct("<II")
_BLOCK = 512
_FOLDER_MODE = 0o755


@dataclass(frozen=True, slots=True)
class Written:
    """A layer as a blob, and the digest of what it is uncompressed."""

    descriptor: Descriptor
    diff_id: str


def write_layer(layer: Layer, blobs: Path, *, moment: int) -> Written:
    """Put *layer*, all its files as of *moment*, into the folder *blobs* under its SHA-256.

    `VbuildError` where a wheel does not hold what its RECORD says. Large members are never held in memory.
    """
    part = blobs / f".{secrets.token_hex(8)}.part"
    with part.open("xb") as file, ExitStack() as stack:
        gzip, tar = _Gzip(file), hashlib.sha256()
        wheels: dict[Path, Wheel] = {}
        for path, found in _in_order(layer.files):
            _add(_header(path, found, moment), gzip, tar)
            if isinstance(found, Taken):
                if found.wheel not in wheels:
                    wheels[found.wheel] = stack.enter_context(open_wheel(found.wheel))
                _take(wheels[found.wheel], found, gzip, tar)
            elif found:
                _add(found.data, gzip, tar)
            if found:
                _add(bytes(-found.size % _BLOCK), gzip, tar)
        _add(bytes(2 * _BLOCK), gzip, tar)
        gzip.flush()
    digest = gzip.digest.hexdigest()
    if (blobs / digest).exists():  # perhaps a link: another layer is the same, or one of a base
        part.unlink()
    else:
        part.replace(blobs / digest)
    descriptor = Descriptor(GZIP_TYPE, f"sha256:{digest}", (blobs / digest).stat().st_size)
    return Written(descriptor, f"sha256:{tar.hexdigest()}")


def _in_order(files: Iterable[File]) -> Iterator[tuple[str, File | None]]:
    """The *files*, and the folders that they are in (None), by path; what is in a folder comes after it."""
    entries: dict[str, File | None] = {}
    for file in files:
        entries |= {str(folder): None for folder in PurePosixPath(file.path).parents[:-1]}
    entries |= {file.path: file for file in files}
    yield from sorted(entries.items(), key=lambda entry: entry[0].split("/"))


def _header(path: str, file: File | None, moment: int) -> bytes:
    """What stands in front of *file*, or of the folder at *path*: PAX records only where ustar has no room."""
    info = tarfile.TarInfo(path)
    info.mtime = moment
    if file:
        info.size, info.mode = file.size, file.mode
    else:
        info.type, info.mode = tarfile.DIRTYPE, _FOLDER_MODE
    return info.tobuf(tarfile.PAX_FORMAT)


def _add(data: bytes, gzip: "_Gzip", tar: "hashlib._Hash") -> None:
    tar.update(data)
    gzip.add(data)


def _take(wheel: Wheel, file: Taken, gzip: "_Gzip", tar: "hashlib._Hash") -> None:
    member = wheel.find(file.member)
    with at(wheel.path.name), at(file.member):
        if member is None or member.size != file.size:
            raise LayoutError("is not what it was when this was planned; leave wheels alone while they are published")
    is_alone = member.header.method == Method.DEFLATED and member.compressed_size >= _ALONE
    for chunk in (fed_beside if is_alone else fed)(tar.update, wheel.chunks(member)):
        if not is_alone:
            gzip.add(chunk)
    if is_alone:
        gzip.add_deflated(_raw(wheel, member), crc=member.header.crc, size=member.size)


def _raw(wheel: Wheel, member: Member) -> Iterator[bytes]:
    yield from wheel.source.raw(wheel.source.data_offset(member), member.compressed_size)


class _Gzip:
    """A gzip file in the making, and the SHA-256 of what is in it so far."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._gathered = bytearray()
        self.digest = hashlib.sha256()

    def add(self, data: bytes) -> None:
        """Put *data* behind what there is."""
        self._gathered += data
        if len(self._gathered) >= _GATHERED:
            self.flush()

    def add_deflated(self, chunks: Iterable[bytes], *, crc: int, size: int) -> None:
        """Put what the deflate stream in *chunks* inflates to, of that CRC-32 and *size*, behind what there is."""
        self.flush()
        self._write(_GZIP_HEADER)
        for chunk in chunks:
            self._write(chunk)
        self._write(_GZIP_END.pack(crc, size & 0xFFFFFFFF))

    def flush(self) -> None:
        """Write a member of what was gathered, if anything was."""
        if self._gathered:
            self._write(bytes(gzip_compress(self._gathered, _LEVEL)))
            self._gathered.clear()

    def _write(self, data: bytes) -> None:
        self.digest.update(data)
        self._file.write(data)
