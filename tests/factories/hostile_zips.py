"""Zip archives put together byte by byte, so that every field of every record can lie.

    Entry(name, data) -> local header | name | extra | data | descriptor     and its central header
    archive(entries)  -> the entries | central directory | zip64 end, locator | end record

https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT (section 4.3)
"""

import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.factories.wheels import everything, record_of

NAME = "demo-1.0-py3-none-any.whl"
INFO = "demo-1.0.dist-info"
STORED = 0
DEFLATED = 8
UTF8 = 1 << 11
DESCRIPTOR = 1 << 3
FULL16 = 0xFFFF
FULL32 = 0xFFFFFFFF

Fields = Mapping[str, int | bytes]

_LOCAL = ("needed", "flags", "method", "time", "date", "crc", "packed", "size", "name_length", "extra_length")
_CENTRAL = (
    *("made_by", *_LOCAL),
    *("comment_length", "disk", "internal", "external", "offset"),
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One member: what is true of it, and what *local* or *central* header say instead, field by field.

    Beside the numbers a header has ``name``, ``extra`` and, the central one, ``comment``. *behind* stands behind the
    data; an entry that is *unwritten* has a central header alone.
    """

    name: str | bytes
    data: bytes = b""
    method: int = DEFLATED
    raw: bytes | None = None
    mode: int = 0o100644
    local: Fields = field(default_factory=dict)
    central: Fields = field(default_factory=dict)
    behind: bytes = b""
    unwritten: bool = False

    @property
    def path(self) -> bytes:
        return self.name.encode() if isinstance(self.name, str) else self.name

    @property
    def packed(self) -> bytes:
        if self.raw is not None:
            return self.raw
        return deflated(self.data) if self.method == DEFLATED else self.data

    def local_header(self) -> bytes:
        fields = {**self._truth(), **self.local}
        tail = _tail(fields, "name", "extra")
        return struct.pack("<IHHHHHIIIHH", 0x04034B50, *(fields[key] for key in _LOCAL)) + tail

    def central_header(self, offset: int) -> bytes:
        truth: dict[str, int | bytes] = {
            "made_by": 3 << 8 | 20,
            "comment": b"",
            "disk": 0,
            "internal": 0,
            "external": self.mode << 16,
        }
        fields = {**self._truth(), **truth, "offset": offset, **self.central}
        tail = _tail(fields, "name", "extra", "comment")
        return struct.pack("<IHHHHHHIIIHHHHHII", 0x02014B50, *(fields[key] for key in _CENTRAL)) + tail

    def _truth(self) -> dict[str, int | bytes]:
        packed = self.packed
        return {
            "needed": 20,
            "flags": 0 if self.path.isascii() else UTF8,
            "method": self.method,
            "time": 0,
            "date": 1 << 5 | 1,
            "crc": zlib.crc32(self.data),
            "packed": len(packed),
            "size": len(self.data),
            "name": self.path,
            "extra": b"",
        }


def _tail(fields: dict[str, int | bytes], *keys: str) -> bytes:
    """The variable part of a header; its lengths are entered among the *fields* that do not lie about them."""
    values = [fields[key] for key in keys]
    for key, value in zip(keys, values, strict=True):
        assert isinstance(value, bytes)
        fields.setdefault(f"{key}_length", len(value))
    return b"".join(value for value in values if isinstance(value, bytes))


def archive(
    entries: Sequence[Entry],
    *,
    front: bytes = b"",
    gap: bytes = b"",
    extra_entries: bytes = b"",
    end: Mapping[str, int] | None = None,
    wide: Mapping[str, int] | None = None,
    comment: bytes = b"",
    behind: bytes = b"",
) -> bytes:
    """An archive of *entries*, with *front* before it, *gap* before its central directory, *behind* after its end.

    *end* says what the end record says instead of the truth, *wide* the same of the zip64 end record and its locator,
    which are there if it is given; *extra_entries* stand behind the last entry of the central directory.
    """
    whole, directory = bytearray(front), bytearray()
    for entry in entries:
        directory += entry.central_header(len(whole))
        if not entry.unwritten:
            whole += entry.local_header() + entry.packed + entry.behind
    whole += gap
    directory += extra_entries
    truth = {"disk": 0, "start_disk": 0, "here": len(entries), "entries": len(entries), "size": len(directory)}
    truth |= {"offset": len(whole), "comment_length": len(comment)}
    whole += directory
    if wide is not None:
        whole += _wide_end({**truth, "end": len(whole), **wide})
    keys = ("disk", "start_disk", "here", "entries", "size", "offset", "comment_length")
    fields = {**truth, **(end or {})}
    return bytes(whole + struct.pack("<IHHHHIIH", 0x06054B50, *(fields[key] for key in keys)) + comment + behind)


def _wide_end(fields: Mapping[str, int]) -> bytes:
    """The zip64 end record, so many bytes *more* behind it, and its locator."""
    keys = ("disk", "start_disk", "here", "entries", "size", "offset")
    more = fields.get("more", 0)
    length = fields.get("length", 44 + more)
    record = struct.pack("<IQHHIIQQQQ", 0x06064B50, length, 45, 45, *(fields[key] for key in keys))
    return (
        record + bytes(more) + struct.pack("<IIQI", 0x07064B50, fields["disk"], fields["end"], fields.get("disks", 1))
    )


def basics(
    files: Mapping[str, bytes], *, record: str | None = None, more_rows: str = "", method: int = DEFLATED
) -> list[Entry]:
    """METADATA, WHEEL, and the RECORD that lists them and *files*, with *more_rows* in front; or *record*."""
    whole = everything(NAME, files)
    text = more_rows + record_of(whole, INFO) if record is None else record
    whole[f"{INFO}/RECORD"] = text.encode()
    return [Entry(path, data, method) for path, data in whole.items() if path not in files]


def wheel_of(*entries: Entry, files: Mapping[str, bytes] | None = None, **how: str | None) -> list[Entry]:
    """*entries*, and what makes a wheel of them; RECORD lists *files*, which are theirs by default."""
    if files is None:
        files = {entry.path.decode(): entry.data for entry in entries if not entry.path.endswith(b"/")}
    return [*entries, *basics(files, **how)]  # type: ignore[arg-type] # both are texts


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def loosely_coded(data: bytes) -> bytes:
    """*data*, without bytes 0xff, as one block whose two codes for distances leave room for two more (RFC 1951, 3.2.7).

    Bytes have codes of 8 bits, but the last, 0xff, and the end have 9: so each byte stands for itself, bits reversed.
    """
    bits = [
        (0b101, 3),  # the last block, with codes of its own
        *((0, 5), (1, 5), (12, 4)),  # 257 of bytes, 2 of distances, 16 of lengths
        # of the lengths 16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2: one bit for 8, two for 9 and 2
        *((length, 3) for length in (0, 0, 0, 0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 2)),
        *((0, 1),) * 255,
        *((0b11, 2),) * 2,
        *((0b01, 2),) * 2,
    ]
    whole = place = 0
    mirrored = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
    end = 0b111111111
    for value, size in (*bits, (int.from_bytes(data.translate(mirrored), "little"), 8 * len(data)), (end, 9)):
        whole |= value << place
        place += size
    return whole.to_bytes(-(-place // 8), "little")


def extra(identifier: int, data: bytes) -> bytes:
    """An extra field."""
    return struct.pack("<HH", identifier, len(data)) + data


def wide_extra(*values: int) -> bytes:
    """The zip64 extra field with these *values*."""
    return extra(1, struct.pack(f"<{len(values)}Q", *values))


def descriptor(data: bytes, packed: bytes, *, wide: bool = False, signed: bool = True) -> bytes:
    """What stands behind the data where the local header leaves CRC and sizes open."""
    head = b"PK\x07\x08" if signed else b""
    return head + struct.pack("<IQQ" if wide else "<III", zlib.crc32(data), len(packed), len(data))


def quoted_overlap(names: Iterable[str], kernel: bytes) -> list[Entry]:
    """Entries that each hold *kernel*, which is there once: every one quotes the local headers up to it.

    A stored block of deflate hides the next local header in the data of the one before.
    https://www.bamsoftware.com/hacks/zipbomb/ (David Fifield, 2019)
    """
    tail = deflated(kernel)
    plain = kernel
    written: list[Entry] = []
    for name in reversed(list(names)):
        entry = Entry(name, plain, raw=tail)
        header = entry.local_header()
        written.append(entry)
        tail = struct.pack("<BHH", 0, len(header), len(header) ^ FULL16) + header + tail
        plain = header + plain
    written.reverse()
    return written


def overlapping(entries: Sequence[Entry]) -> list[Entry]:
    """What `quoted_overlap` made, laid out as it has it: each entry inside the data of the one before."""
    offset, placed = 0, []
    for number, entry in enumerate(entries):
        placed.append(Entry(entry.name, entry.data, raw=entry.raw, central={"offset": offset}, unwritten=number > 0))
        offset += len(entry.local_header()) + 5
    return placed
