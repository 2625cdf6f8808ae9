"""Wheels whose archive has false headers, or can be read in two ways.

HEADERS, ENDS -> what the attack is called -> the archive
"""

import dataclasses
import struct
import zlib
from typing import Any

from tests.factories.hostile_zips import (
    FULL16,
    FULL32,
    STORED,
    UTF8,
    Entry,
    archive,
    basics,
    deflated,
    descriptor,
    extra,
    overlapping,
    quoted_overlap,
    wheel_of,
    wide_extra,
)

CODE = b"x = 1\n" * 100
A = Entry("demo/a.py", CODE)
B = Entry("demo/b.py", b"y = 2\n" * 50)
S = Entry("demo/a.py", CODE, STORED)
EVIL = Entry("demo/a.py", b"evil = 1\n")
PACKED = A.packed
# with a data descriptor: what the headers say
LATER = {"flags": 8}
NOTHING = {"flags": 8, "crc": 0, "packed": 0, "size": 0}
BOMB = quoted_overlap([f"demo/{number}.bin" for number in range(8)], bytes(1000))
NO_END = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 0, 0, 0, 0, 0)
FIRST = archive(wheel_of(A))
FULL_END = {"here": FULL16, "entries": FULL16, "size": FULL32, "offset": FULL32}
# its CRC-32 is the signature of a data descriptor
SIGNING = CODE + b"#;\x89\xbc\xc4"
UNSIGNED = descriptor(SIGNING, deflated(SIGNING), signed=False)


def one(**lies: Any) -> bytes:
    """A wheel whose one module is told of falsely."""
    return archive(wheel_of(dataclasses.replace(A, **lies)))


def bare(name: str, data: bytes = b"1") -> bytes:
    """A member as it stands in front of the central directory."""
    entry = Entry(name, data)
    return entry.local_header() + entry.packed


def unicode_path(name: bytes, *, version: int = 1, crc: int | None = None) -> bytes:
    """The Unicode path extra field of ``demo/a.py`` that says *name*."""
    return extra(0x7075, struct.pack("<BI", version, zlib.crc32(b"demo/a.py") if crc is None else crc) + name)


def reordered() -> bytes:
    """A sound wheel whose central directory has another order."""
    entries = wheel_of(A, B)
    offset, directory = 0, b""
    for entry in entries:
        directory = entry.central_header(offset) + directory
        offset += len(entry.local_header() + entry.packed)
    whole = b"".join(entry.local_header() + entry.packed for entry in entries)
    return whole + directory + ended(len(entries), len(directory), offset)


def ended(count: int, size: int, offset: int) -> bytes:
    return struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, count, count, size, offset, 0)


def two_directories(*, wide: bool) -> bytes:
    """An end record that leads to one wheel, behind another; the *wide* one leads to that."""
    count, size, offset = struct.unpack_from("<HII", FIRST, len(FIRST) - 12)
    second = archive(wheel_of(EVIL), front=FIRST[:-22], wide={} if wide else None)
    return second[:-22] + ended(count, size, offset)


HEADERS = {
    "one data, two names": archive(wheel_of(A, Entry("demo/b.py", CODE, central={"offset": 0}, unwritten=True))),
    "one data, one name twice": archive(wheel_of(A, Entry("demo/a.py", CODE, central={"offset": 0}, unwritten=True))),
    "quoted overlap": archive([*overlapping(BOMB), *basics({str(entry.name): entry.data for entry in BOMB})]),
    "member in stored data of another": archive(
        wheel_of(
            Entry("demo/c.zip", B.local_header() + B.packed, STORED),
            dataclasses.replace(B, central={"offset": 30 + len("demo/c.zip")}, unwritten=True),
        )
    ),
    "member in extra field of another": archive(
        wheel_of(
            dataclasses.replace(A, local={"extra": extra(0xBEEF, B.local_header() + B.packed)}),
            dataclasses.replace(B, central={"offset": 30 + 9 + 4}, unwritten=True),
        )
    ),
    "hidden entry between members": archive(
        wheel_of(
            dataclasses.replace(A, behind=B.local_header() + B.packed),
            B,
            files={"demo/a.py": CODE, "demo/b.py": B.data},
        )
    ),
    "hidden member between members": archive(wheel_of(dataclasses.replace(A, behind=bare("demo/h.py")), B)),
    "junk between members": archive(wheel_of(dataclasses.replace(A, behind=b"junk"), B)),
    "zeros between members": archive(wheel_of(dataclasses.replace(A, behind=bytes(4)), B)),
    "junk before directory": archive(wheel_of(A), gap=b"junk"),
    "hidden member before directory": archive(wheel_of(A), gap=bare("demo/h.py")),
    "name in front": one(local={"name": b"demo/b.py"}),
    "name in front of another length": one(local={"name": b"demo/bb.py"}),
    "name in front in other case": one(local={"name": b"demo/A.py"}),
    "method in front stored": one(local={"method": 0}),
    "method in front deflated": archive(wheel_of(dataclasses.replace(S, local={"method": 8}))),
    "size in front": one(local={"size": 7}),
    "packed size in front": one(local={"packed": 7}),
    "crc in front": one(local={"crc": 7}),
    "sizes 0 in front": one(local={"size": 0, "packed": 0, "crc": 0}),
    "flags in front utf8": one(local={"flags": UTF8}),
    "flags in front encrypted": one(local={"flags": 1}),
    "flags in front descriptor": one(local={"flags": 8}),
    "flags central descriptor": one(central={"flags": 8}),
    "flags level": one(local={"flags": 2}),
    "version needed in front": one(local={"needed": 45}),
    "time in front": one(local={"time": 77}),
    "version needed 6.4 both": one(local={"needed": 64}, central={"needed": 64}),
    "unknown extra in front": one(local={"extra": extra(0x5455, b"\1" + bytes(4))}),
    "unknown extra in directory": one(central={"extra": extra(0x5455, b"\1" + bytes(4))}),
    "padding in extra": one(local={"extra": b"\0\0\0"}),
    "broken extra in front": one(local={"extra": b"\x55\x54\x09\0\1"}),
    "broken extra in directory": one(central={"extra": b"\x55\x54\x09\0\1"}),
    "unicode path in front": one(local={"extra": unicode_path(b"demo/b.py")}),
    "unicode path in directory": one(central={"extra": unicode_path(b"demo/b.py")}),
    "unicode path in both": one(
        local={"extra": unicode_path(b"demo/b.py")}, central={"extra": unicode_path(b"demo/b.py")}
    ),
    "unicode path same": one(
        local={"extra": unicode_path(b"demo/a.py")}, central={"extra": unicode_path(b"demo/a.py")}
    ),
    "unicode path wrong crc": one(central={"extra": unicode_path(b"demo/b.py", crc=7)}),
    "unicode path version 2": one(central={"extra": unicode_path(b"demo/b.py", version=2)}),
    "unicode path cut": one(central={"extra": extra(0x7075, b"\1")}),
    "unicode path twice in front": one(local={"extra": unicode_path(b"demo/a.py") * 2}),
    "unicode comment": one(central={"comment": b"c", "extra": extra(0x6375, b"\1" + bytes(4) + b"d")}),
    "unicode path twice": one(central={"extra": unicode_path(b"demo/a.py") * 2}),
    "descriptor": one(local=NOTHING, central=LATER, behind=descriptor(CODE, PACKED)),
    "descriptor unsigned": one(local=NOTHING, central=LATER, behind=descriptor(CODE, PACKED, signed=False)),
    "descriptor wide": one(local=NOTHING, central=LATER, behind=descriptor(CODE, PACKED, wide=True)),
    "descriptor wide, zip64 in front": one(
        local={"flags": 8, "crc": 0, "packed": FULL32, "size": FULL32, "extra": wide_extra(0, 0)},
        central=LATER,
        behind=descriptor(CODE, PACKED, wide=True),
    ),
    "descriptor missing": one(local=NOTHING, central=LATER),
    "descriptor wrong crc": one(local=NOTHING, central=LATER, behind=descriptor(b"other", PACKED)),
    "descriptor wrong packed": one(local=NOTHING, central=LATER, behind=descriptor(CODE, b"p")),
    "descriptor wrong size": one(
        local=NOTHING,
        central=LATER,
        behind=descriptor(CODE[:-1], PACKED)[:4]
        + struct.pack("<I", zlib.crc32(CODE))
        + descriptor(CODE[:-1], PACKED)[8:],
    ),
    "descriptor, sizes in front too": one(local={"flags": 8}, central=LATER, behind=descriptor(CODE, PACKED)),
    "descriptor, false sizes in front": one(
        local={"flags": 8, "size": 7, "packed": 7, "crc": 7}, central=LATER, behind=descriptor(CODE, PACKED)
    ),
    "descriptor, stored": archive(
        wheel_of(dataclasses.replace(S, local=NOTHING, central=LATER, behind=descriptor(CODE, CODE)))
    ),
    "descriptor, stored, sizes in front": archive(
        wheel_of(dataclasses.replace(S, local={"flags": 8}, central=LATER, behind=descriptor(CODE, CODE)))
    ),
    "descriptor unsigned, CRC like a signature": archive(
        wheel_of(dataclasses.replace(A, data=SIGNING, local=NOTHING, central=LATER, behind=UNSIGNED))
    ),
    "descriptor signed, CRC like a signature": archive(
        wheel_of(dataclasses.replace(A, data=SIGNING, local=NOTHING, central=LATER, behind=b"PK\x07\x08" + UNSIGNED))
    ),
    "descriptor without flag": one(behind=descriptor(CODE, PACKED)),
    "descriptor and more": one(local=NOTHING, central=LATER, behind=descriptor(CODE, PACKED) + b"more"),
    "zip64 in both": one(
        local={"packed": FULL32, "size": FULL32, "extra": wide_extra(len(CODE), len(PACKED))},
        central={"packed": FULL32, "size": FULL32, "extra": wide_extra(len(CODE), len(PACKED))},
    ),
    "zip64 in front only": one(local={"packed": FULL32, "size": FULL32, "extra": wide_extra(len(CODE), len(PACKED))}),
    "zip64 in front only not needed": one(local={"extra": wide_extra(len(CODE), len(PACKED))}),
    "zip64 in front lies": one(local={"packed": FULL32, "size": FULL32, "extra": wide_extra(7, len(PACKED))}),
    "zip64 in front lies, not needed": one(local={"extra": wide_extra(7, 7)}),
    "zip64 in directory lies, not needed": one(central={"extra": wide_extra(7, 7)}),
    "zip64 in directory true, not needed": one(central={"extra": wide_extra(len(CODE), len(PACKED))}),
    "zip64 short in directory": one(central={"size": FULL32, "packed": FULL32, "extra": wide_extra(len(CODE))}),
    "zip64 four bytes": one(central={"size": FULL32, "extra": extra(1, struct.pack("<I", len(CODE)))}),
    "zip64 long in directory": one(
        local={"size": FULL32, "packed": FULL32, "extra": wide_extra(len(CODE), len(PACKED))},
        central={"size": FULL32, "packed": FULL32, "extra": wide_extra(len(CODE), len(PACKED), 0, 0)},
    ),
    "zip64 long, odd": one(central={"size": FULL32, "extra": extra(1, struct.pack("<Q", len(CODE)) + b"odd")}),
    "zip64 twice": one(central={"size": FULL32, "extra": wide_extra(len(CODE)) + wide_extra(7)}),
    "zip64 twice in front": one(
        local={"size": FULL32, "packed": FULL32, "extra": wide_extra(len(CODE), len(PACKED)) * 2}
    ),
    "zip64 in front, one value of two": one(local={"size": FULL32, "extra": wide_extra(len(CODE))}),
    "zip64 in front, one value of two, packed": one(local={"packed": FULL32, "extra": wide_extra(len(PACKED))}),
    "zip64 missing": one(central={"size": FULL32}),
    "zip64 missing in front": one(local={"size": FULL32, "packed": FULL32}),
    "zip64 size 2^63": one(central={"size": FULL32, "extra": wide_extra(1 << 63)}),
    "zip64 packed size 2^63": one(central={"packed": FULL32, "extra": wide_extra(1 << 63)}),
    "zip64 offset 2^64-1": one(central={"offset": FULL32, "extra": wide_extra((1 << 64) - 1)}),
    "zip64 offset true": one(central={"offset": FULL32, "extra": wide_extra(0)}),
    "zip64 disk in extra": one(central={"disk": FULL16, "extra": extra(1, struct.pack("<I", 0))}),
    "directory in another order": reordered(),
}
ENDS = {
    "bytes in front counted": archive(wheel_of(A), front=b"#!/bin/sh\n"),
    "bytes in front not counted": b"#!/bin/sh\n" + archive(wheel_of(A)),
    "zip in front counted": archive(wheel_of(A), front=archive(wheel_of(EVIL))),
    "zip in front not counted": archive(wheel_of(EVIL)) + archive(wheel_of(A)),
    "bytes behind": archive(wheel_of(A), behind=b"more"),
    "zeros behind": archive(wheel_of(A), behind=bytes(8)),
    "line break behind": archive(wheel_of(A), behind=b"\n"),
    "comment": archive(wheel_of(A), comment=b"a comment"),
    "comment of 65535": archive(wheel_of(A), comment=b"c" * 65535),
    "comment longer than said": archive(wheel_of(A), comment=b"a comment", end={"comment_length": 2}),
    "comment shorter than said": archive(wheel_of(A), comment=b"a comment", end={"comment_length": 20}),
    "end record of nothing in comment": archive(wheel_of(A), comment=NO_END),
    "end record in comment, not last": archive(wheel_of(A), comment=NO_END + b"more"),
    "end signature in comment": archive(wheel_of(A), comment=b"PK\5\6 and more text here"),
    "directory signature in comment": archive(wheel_of(A), comment=b"PK\1\2 and more text here"),
    "archive in comment": archive(wheel_of(A), comment=archive(wheel_of(EVIL))),
    "archive in comment, counted": archive(wheel_of(A), comment=archive(wheel_of(EVIL), front=FIRST)[len(FIRST) :]),
    "archive behind": archive(wheel_of(A)) + archive(wheel_of(EVIL)),
    "comment in entry": one(central={"comment": b"a comment"}),
    "end signature in comment of entry": one(central={"comment": b"PK\5\6 and more text here"}),
    "directory signature in comment of entry": one(central={"comment": b"PK\1\2 and more text here"}),
    "local signature in comment of entry": one(central={"comment": b"text PK\3\4"}),
    "wide end signature in comment of entry": one(central={"comment": b"text PK\6\6"}),
    "descriptor signature in comment of entry": one(central={"comment": b"text PK\7\x08"}),
    "end record of nothing in comment of last entry": archive(
        [*wheel_of(A)[:-1], dataclasses.replace(wheel_of(A)[-1], central={"comment": NO_END})]
    ),
    "signature of another record in comment of entry": one(central={"comment": b"text PK\5\5"}),
    "half a signature in comment of entry": one(central={"comment": b"text PK\1"}),
    "half a signature in comment": archive(wheel_of(A), comment=b"text PK\7"),
    "byte of a signature in comment of entry": one(central={"comment": b"text \6"}),
    "byte of a signature in comment": archive(wheel_of(A), comment=b"\1 text"),
    "bytes of no signature in comment of entry": one(central={"comment": b"text \0\t\n\x0e\x7f\xff"}),
    "version needed 6.4 in front": one(local={"needed": 64}),
    "version needed of a system": one(central={"needed": 3 << 8 | 20}),
    "version needed of a system in front": one(local={"needed": 3 << 8 | 20}),
    "letters of a signature in comment of entry": one(central={"comment": b"PK and more text here"}),
    "count less by one": archive(wheel_of(A), end={"here": 3, "entries": 3}),
    "count more by one": archive(wheel_of(A), end={"here": 5, "entries": 5}),
    "count 0": archive(wheel_of(A), end={"here": 0, "entries": 0}),
    "counts differ": archive(wheel_of(A), end={"here": 3}),
    "entry not counted": archive(wheel_of(A), extra_entries=dataclasses.replace(B, unwritten=True).central_header(0)),
    "signature record in directory": archive(wheel_of(A), extra_entries=b"PK\5\5\2\0ab"),
    "directory size 0": archive(wheel_of(A), end={"size": 0}),
    "directory size less": archive(wheel_of(A), end={"size": 40}),
    "directory size more": archive(wheel_of(A), end={"size": 400}),
    "directory offset 0": archive(wheel_of(A), end={"offset": 0}),
    "directory offset behind": archive(wheel_of(A), end={"offset": 1 << 30}),
    "disk 1": archive(wheel_of(A), end={"disk": 1}),
    "start disk 1": archive(wheel_of(A), end={"start_disk": 1}),
    "member on disk 1": one(central={"disk": 1}),
    "split marker in front": archive(wheel_of(A), front=b"PK\x07\x08"),
    "temporary split marker in front": archive(wheel_of(A), front=b"PK00"),
    "two directories, end leads to the first": two_directories(wide=False),
    "wide end, true": archive(wheel_of(A), wide={}),
    "wide end, needed": archive(wheel_of(A), wide={}, end=FULL_END),
    "wide end counts more": archive(wheel_of(A), wide={"here": 5, "entries": 5}),
    "wide end counts less": archive(
        wheel_of(A), wide={"here": 3, "entries": 3}, end={"here": FULL16, "entries": FULL16}
    ),
    "wide end counts 2^60": archive(
        wheel_of(A), wide={"here": 1 << 60, "entries": 1 << 60}, end={"here": FULL16, "entries": FULL16}
    ),
    "wide end offset lies": archive(wheel_of(A), wide={"offset": 0}, end={"offset": FULL32}),
    "wide end offset 2^63": archive(wheel_of(A), wide={"offset": 1 << 63}, end={"offset": FULL32}),
    "wide end size lies": archive(wheel_of(A), wide={"size": 40}, end={"size": FULL32}),
    "wide end size 2^63": archive(wheel_of(A), wide={"size": 1 << 63}, end={"size": FULL32}),
    "wide end disagrees": archive(wheel_of(A), wide={"offset": 0}),
    "wide end length short": archive(wheel_of(A), wide={"length": 20}),
    "wide end length long": archive(wheel_of(A), wide={"length": 1 << 40}),
    "wide end and more, true": archive(wheel_of(A), wide={"more": 8}),
    "wide end and more, needed": archive(wheel_of(A), wide={"more": 8}, end=FULL_END),
    "wide end and bytes behind it": archive(wheel_of(A), wide={"more": 8, "length": 44}, end=FULL_END),
    "wide end here differs": archive(wheel_of(A), wide={"here": 1}),
    "wide locator leads elsewhere": archive(wheel_of(A), wide={"end": 0}),
    "wide locator leads behind": archive(wheel_of(A), wide={"end": 1 << 62}),
    "wide locator disks 2": archive(wheel_of(A), wide={"disks": 2}),
    "wide locator disks 0": archive(wheel_of(A), wide={"disks": 0}),
    "wide disk 1": archive(wheel_of(A), wide={"disk": 1}),
    "full markers without wide end": archive(wheel_of(A), end={"here": FULL16, "entries": FULL16}),
    "full offset without wide end": archive(wheel_of(A), end={"offset": FULL32, "size": FULL32}),
    "narrow and wide end of two directories": two_directories(wide=True),
    "nothing": NO_END,
}
