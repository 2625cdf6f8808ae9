"""The tar archives in conda packages: what is in one, where it lies, and the archive with other contents.

    header, or several for a long name | data | zeros up to a block        for each entry, without gaps
    two blocks of zeros, and as many more as make the archive a multiple of 10,240 bytes

An entry that stays is copied with its headers: mode, owner, time and extended fields remain. Of one that changes, the
size in its last header changes, and the checksum over that.
https://pubs.opengroup.org/onlinepubs/9799919799/utilities/pax.html
"""

import io
import mmap
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import BinaryIO, Self, cast

from msgspec import Struct

from vbuild.errors import RepackageError, at
from vbuild.files.archives import BoundedInfo
from vbuild.files.edited import EditedFile
from vbuild.wheel.paths import check_path, check_places

_BLOCK, _RECORD = tarfile.BLOCKSIZE, tarfile.RECORDSIZE
_SIZE, _CHECKSUM = slice(124, 136), slice(148, 156)
# the largest packages have a hundred thousand files; entries of any package, and the most of a small one
_MOST_ENTRIES, _FEW_ENTRIES = 500_000, 20_000
# bytes that eleven octal digits can say
_MOST = 0o77777777777


class TarKind(StrEnum):
    """What an entry is."""

    FILE = "file"
    FOLDER = "folder"
    LINK = "hard link"
    SYMLINK = "symbolic link"


class TarEntry(Struct, frozen=True):
    """An entry: its headers are at *start*, its *size* bytes at *data*; *target* is where a link leads."""

    path: str
    kind: TarKind
    size: int
    start: int
    data: int
    target: str = ""
    has_pax_size: bool = False

    @property
    def end(self) -> int:
        """Where the next entry begins."""
        return self.data + self.size + -self.size % _BLOCK


class TarImage(Struct, frozen=True):
    """An archive, not compressed, as *data*, and its *entries* in their order."""

    data: memoryview
    entries: tuple[TarEntry, ...]

    @classmethod
    def read(cls, data: memoryview, *, packed: int) -> Self:
        """The archive *data*, which took *packed* bytes; `RepackageError` if it is damaged or has what packages do not
        have, `WheelError` for paths that lead out of the folder that it is unpacked into.
        """
        # a mapped file is one already: what is not looked at is not read
        file = cast(BinaryIO, data.obj) if isinstance(data.obj, mmap.mmap) else io.BytesIO(data)
        try:
            with tarfile.open(fileobj=file, mode="r:", tarinfo=BoundedInfo) as archive:
                entries = tuple(map(_entry, counted_entries(archive, packed=packed)))
        except (tarfile.TarError, EOFError, ValueError, UnicodeError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise RepackageError(f"damaged: {reason}") from error
        end, known = 0, dict[str, TarEntry]()
        for entry in entries:
            with at(entry.path):
                check_path(entry.path)
                if entry.start != end:
                    raise RepackageError(f"its header is at {entry.start:#x}, expected at {end:#x}")
                if entry.end > len(data):
                    raise RepackageError(f"damaged: ends at {entry.end:#x} of {len(data):#x}")
                if entry.path in known:
                    raise RepackageError("stands twice in the archive; expected once")
                if entry.kind is TarKind.LINK and not _is_file(known.get(entry.target)):
                    raise RepackageError(f"a hard link to {entry.target!r}, which is no file before it")
            end, known[entry.path] = entry.end, entry
        check_places(f"{one.path}/" if one.kind is TarKind.FOLDER else one.path for one in entries)
        return cls(data, entries)

    def contents(self, entry: TarEntry) -> memoryview:
        """What the file *entry* holds."""
        return self.data[entry.data : entry.data + entry.size]


class TarOutput(Struct, frozen=True):
    """The archive of the *entries* of *image*, with the contents of *files* instead of theirs."""

    image: TarImage
    entries: tuple[TarEntry, ...]
    files: Mapping[str, EditedFile]

    @property
    def size(self) -> int:
        """Bytes, the end of the archive included."""
        return sum(map(len, self.buffers()))

    def buffers(self) -> Iterator[memoryview]:
        """The archive, piece by piece."""
        size = 0
        for buffer in self._entries():
            size += len(buffer)
            yield buffer
        size += 2 * _BLOCK
        yield memoryview(bytes(2 * _BLOCK + -size % _RECORD))

    def _entries(self) -> Iterator[memoryview]:
        data = self.image.data
        for entry in self.entries:
            if (file := self.files.get(entry.path)) is None:
                yield data[entry.start : entry.end]
                continue
            yield data[entry.start : entry.data - _BLOCK]
            yield memoryview(_resized(data[entry.data - _BLOCK : entry.data], entry, file.size))
            yield from file.buffers()
            yield memoryview(bytes(-file.size % _BLOCK))


def counted_entries(archive: tarfile.TarFile, *, packed: int) -> Iterator[tarfile.TarInfo]:
    """The entries of *archive*; `RepackageError` when there are more than a package of *packed* bytes has.

    Entries that are alike and hold nothing take no room, and each takes time and memory.
    """
    most = min(_MOST_ENTRIES, max(_FEW_ENTRIES, packed))
    for number, entry in enumerate(archive):
        if number == most:
            raise RepackageError(f"more than {most} entries; expected no more in a package of its size")
        yield entry


def _is_file(entry: TarEntry | None) -> bool:
    return entry is not None and entry.kind is TarKind.FILE


def _resized(header: memoryview, entry: TarEntry, size: int) -> bytes:
    """The *header* of *entry* for so many bytes."""
    if entry.has_pax_size or size > _MOST:
        raise RepackageError(f"{entry.path}: {entry.size} bytes; expected 8 GiB at most of a file that changes")
    new = bytearray(header)
    new[_SIZE] = b"%011o\0" % size
    # the field itself counts as blanks
    new[_CHECKSUM] = b" " * 8
    new[_CHECKSUM] = b"%06o\0 " % sum(new)
    return bytes(new)


def _entry(info: tarfile.TarInfo) -> TarEntry:
    kind = (
        TarKind.FOLDER
        if info.isdir()
        else TarKind.SYMLINK
        if info.issym()
        else TarKind.LINK
        if info.islnk()
        else TarKind.FILE
    )
    with at(info.name):
        if kind is TarKind.FILE and (not info.isreg() or info.issparse()):
            raise RepackageError("no plain file, folder or link; expected one of these")
    size = info.size if kind is TarKind.FILE else 0
    return TarEntry(info.name, kind, size, info.offset, info.offset_data, info.linkname, "size" in info.pax_headers)


def sampled(buffers: Iterable[memoryview], *, piece: int, every: int) -> bytes:
    """The first *piece* bytes of each stretch of *every* bytes of *buffers*."""
    found, passed = bytearray(), 0
    for buffer in buffers:
        start = passed
        for place in range(-(-start // every) * every, start + len(buffer), every):
            found += buffer[place - start : place - start + piece]
        passed += len(buffer)
    return bytes(found)
