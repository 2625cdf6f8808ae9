"""Wheels with members, paths and rows of RECORD that no wheel should have.

MEMBERS, PATHS, LISTED -> what the attack is called -> the archive
"""

import bz2
import dataclasses
import hashlib
import lzma
import zlib
from typing import Any

import zstandard

from tests.factories.hostile_zips import INFO, NAME, STORED, UTF8, Entry, archive, basics, loosely_coded, wheel_of
from tests.factories.wheels import everything, hashed, record_of

CODE = b"x = 1\n" * 100
A = Entry("demo/a.py", CODE)
S = Entry("demo/a.py", CODE, STORED)
FOLDER = Entry("demo/", b"", STORED, mode=0o40755)
EVIL = Entry("demo/a.py", b"evil = 1\n")
PACKED = A.packed
RECORD = record_of(everything(NAME, {"demo/a.py": CODE}), INFO)
HASH = hashed(CODE)
SOUND = b"Metadata-Version: 2.1\nName: other\nVersion: 1.0\n"


def one(**lies: Any) -> bytes:
    """A wheel whose one module is told of falsely."""
    return archive(wheel_of(dataclasses.replace(A, **lies)))


def forged(data: bytes, size: int, crc: int) -> bytes:
    """*data* and bytes behind it, so that its size and CRC-32 are those asked for."""
    padded = data.ljust(size - 4, b"#")
    low, value = zlib.crc32(padded) ^ 0xFFFFFFFF, crc ^ 0xFFFFFFFF
    raw = [_step(number) for number in range(256)]
    tops = {entry >> 24: number for number, entry in enumerate(raw)}
    for _ in range(4):
        number = tops[value >> 24]
        value = ((value ^ raw[number]) << 8) & 0xFFFFFFFF | number
    return padded + (value ^ low).to_bytes(4, "little")


def _step(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (0xEDB88320 if value & 1 else 0)
    return value


def more(path: str, data: bytes = b"evil") -> bytes:
    """A wheel with one more member."""
    return archive(wheel_of(A, Entry(path, data)))


def listing(record: str) -> bytes:
    return archive(wheel_of(A, record=record))


def without(name: str) -> bytes:
    """A wheel that lacks a file of its ``.dist-info`` folder, and says so."""
    record = "".join(row for row in RECORD.splitlines(keepends=True) if f"/{name}," not in row)
    return archive([entry for entry in wheel_of(A, record=record) if not entry.path.endswith(name.encode())])


def named(name: bytes, flags: int | None = None) -> bytes:
    """A wheel whose one module has this *name*, in code page 437 where it is not UTF-8."""
    said = {} if flags is None else {"flags": flags}
    try:
        path = name.decode()
    except UnicodeDecodeError:
        path = name.decode("cp437")
    return archive(wheel_of(Entry(name, CODE, local=said, central=said), files={path: CODE}))


def unended(data: bytes) -> bytes:
    """A deflate stream without its last block."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH)


_TYPES = {
    "symlink": 0o120777,
    "fifo": 0o10644,
    "character device": 0o20644,
    "block device": 0o60644,
    "socket": 0o140755,
    "folder mode": 0o40755,
    "type 0o110000": 0o110644,
    "setuid": 0o104755,
    "mode 0": 0,
    "mode without type": 0o644,
    "mode 0o000 regular": 0o100000,
}
_SYSTEMS = {"DOS": 0, "OS X": 19, "NTFS": 10, "AS/400": 18, "255": 255}
_PATHS = {
    "NUL": b"demo/a\0.py",
    "NUL behind": b"demo/a.py\0.txt",
    "backslash": b"demo\\a.py",
    "backslash up": b"..\\..\\a.py",
    "absolute": b"/tmp/vbuild-attack.py",
    "drive": b"C:/a.py",
    "drive relative": b"C:a.py",
    "UNC": b"//host/share/a.py",
    "UNC backslash": b"\\\\host\\a.py",
    "up": b"../a.py",
    "up inside": b"demo/../a.py",
    "far up": b"demo/../../../a.py",
    "empty part": b"demo//a.py",
    "dot part": b"demo/./a.py",
    "leading dot": b"./demo/a.py",
    "nothing": b"",
    "slash": b"/",
    "only dots": b"..",
    "long part": b"demo/" + b"a" * 300,
    "long path": b"demo/" + b"/".join([b"d" * 200] * 30),
    "line break": b"demo/a\n.py",
    "carriage return": b"demo/a\r.py",
    "escape": b"demo/\x1b[31ma.py",
    "tab": b"demo/a\t.py",
    "DEL": b"demo/a\x7f.py",
    "stream": b"demo/a.py::$DATA",
    "trailing dot": b"demo/a.",
    "trailing space": b"demo/a ",
    "dots": b"demo/...",
    "tilde": b"~/a.py",
    "colon": b"demo/a.py:evil",
    "device": b"demo/aux.py",
    "device COM1": b"COM1",
    "wildcard": b"demo/a*?.py",
    "pipe": b"demo/a|<>.py",
    "quote": b'demo/"a".py',
    "comma": b"demo/a,b.py",
    "percent": b"demo/%2e%2e/a.py",
    "rtl": "demo/\u202eyp.a".encode(),
    "line separator": "demo/a\u2028.py".encode(),
    "next line": "demo/a\x85.py".encode(),
    "zero width": "demo/a\u200b.py".encode(),
    "fullwidth slash": "..\uff0f..\uff0fa.py".encode(),
    "private": "demo/\ue000.py".encode(),
}
_FLAGS = {
    "encrypted": 1,
    "strongly": 1 | 64,
    "masked": 1 << 13,
    "patched": 32,
    "bit 4": 16,
    "bit 7": 128,
    "bit 12": 1 << 12,
    "bit 14": 1 << 14,
    "bit 15": 1 << 15,
    "level": 6,
}
_METHODS = {
    "shrunk": (1, PACKED),
    "imploded": (6, PACKED),
    "deflate64": (9, PACKED),
    "bzip2": (12, bz2.compress(CODE)),
    "lzma": (14, b"\x09\x04\x05\0" + lzma.compress(CODE, lzma.FORMAT_RAW, filters=[{"id": lzma.FILTER_LZMA1}])),
    "zstd": (93, zstandard.compress(CODE)),
    "xz": (95, lzma.compress(CODE)),
    "aes": (99, PACKED),
    "unknown": (1234, PACKED),
}
_ROWS = {
    "twice": f"demo/a.py,{HASH},600\n",
    "other spelling ./": f"./demo/a.py,{HASH},600\n",
    "other spelling //": f"demo//a.py,{HASH},600\n",
    "other spelling backslash": f"demo\\a.py,{HASH},600\n",
    "other spelling ..": f"demo/../demo/a.py,{HASH},600\n",
    "other case": f"demo/A.py,{HASH},600\n",
    "absolute": f"/etc/passwd,{HASH},600\n",
    "up": f"../../etc/passwd,{HASH},600\n",
    "gone": f"demo/gone.py,{HASH},600\n",
    "folder": "demo/,,\n",
    "nothing": ",,\n",
    "unhashed gone": "demo/gone.py,,\n",
    "blank line": "\n",
    "two columns": "demo/a.py,\n",
    "four columns": "x,y,z,w\n",
}
MEMBERS = {
    **{f"type {name}": one(data=b"../../../etc/passwd", mode=mode) for name, mode in _TYPES.items()},
    **{
        f"symlink made by {name}": one(data=b"/etc/passwd", mode=0o120777, central={"made_by": system << 8 | 20})
        for name, system in _SYSTEMS.items()
    },
    **{f"regular made by {name}": one(central={"made_by": system << 8 | 20}) for name, system in _SYSTEMS.items()},
    **{f"flag {name}": one(local={"flags": flags}, central={"flags": flags}) for name, flags in _FLAGS.items()},
    **{f"method {name}": one(method=method, raw=raw) for name, (method, raw) in _METHODS.items()},
    "DOS folder attribute": one(central={"made_by": 20, "external": 0x10}),
    "DOS volume label": one(central={"made_by": 20, "external": 0x08}),
    "NTFS reparse point": one(central={"made_by": 10 << 8 | 20, "external": 0x400}),
    "folder name, regular mode": archive(wheel_of(Entry("demo/", b"", STORED, mode=0o100644), A)),
    "symlink then member below": archive(
        wheel_of(Entry("demo/up", b"../../..", mode=0o120777), Entry("demo/up/a.py", CODE))
    ),
    "flag encrypted in directory": one(central={"flags": 1}),
    "size huge, deflated": one(local={"size": 0xFFFFFFFE}, central={"size": 0xFFFFFFFE}),
    "size huge, stored": archive(
        wheel_of(
            dataclasses.replace(
                S, local={"size": 0xFFFFFFFE, "packed": 0xFFFFFFFE}, central={"size": 0xFFFFFFFE, "packed": 0xFFFFFFFE}
            )
        )
    ),
    "size one less": one(local={"size": 599}, central={"size": 599}),
    "size one more": one(local={"size": 601}, central={"size": 601}),
    "size 0": one(local={"size": 0}, central={"size": 0}),
    "crc wrong": one(local={"crc": 7}, central={"crc": 7}),
    "stream with bytes behind": one(raw=PACKED + b"more"),
    "stream and second stream behind": one(raw=PACKED + PACKED),
    "stream cut": one(raw=PACKED[:-3]),
    "stream not ended": one(raw=unended(CODE)),
    "stream without data": one(raw=b"", local={"size": 0, "crc": 0}, central={"size": 0, "crc": 0}),
    "stored, other size": archive(wheel_of(dataclasses.replace(S, local={"size": 7}, central={"size": 7}))),
    "broken stream": one(raw=b"\xff" * 20),
    "codes with room for others": one(raw=loosely_coded(CODE)),
}
PATHS = {
    **{f"path {name}": named(path) for name, path in _PATHS.items()},
    "name twice, same content": archive(wheel_of(A, Entry("demo/a.py", CODE))),
    "name twice, other content": archive(wheel_of(A, EVIL)),
    "name twice, other content of one CRC-32": archive(
        wheel_of(A, Entry("demo/a.py", forged(b"evil = 1\n", len(CODE), zlib.crc32(CODE))))
    ),
    "name in two encodings": archive(
        wheel_of(Entry("demo/é.py".encode("cp437"), b"1"), Entry("demo/é.py", b"2"), files={"demo/é.py": b"2"})
    ),
    "name in other case": archive(wheel_of(A, Entry("demo/A.py", b"evil"))),
    "folder in other case": archive(wheel_of(A, Entry("Demo/a.py", b"evil"))),
    "name NFC and NFD": archive(wheel_of(Entry("demo/\u00e9.py", b"1"), Entry("demo/e\u0301.py", b"2"))),
    "name with trailing dot": archive(wheel_of(A, Entry("demo/a.py.", b"evil"))),
    "name with trailing space": archive(wheel_of(A, Entry("demo/a.py ", b"evil"))),
    "name and its stream": archive(wheel_of(A, Entry("demo/a.py:evil", b"evil"))),
    "name and its data stream": archive(wheel_of(A, Entry("demo/a.py::$DATA", b"evil"))),
    "name NFKC only": archive(wheel_of(Entry("demo/\ufb01.py", b"1"), Entry("demo/fi.py", b"2"))),
    "name with ./": archive(wheel_of(A, Entry("demo/./a.py", b"evil"))),
    "name with //": archive(wheel_of(A, Entry("demo//a.py", b"evil"))),
    "name with backslash twin": archive(wheel_of(A, Entry("demo\\a.py", b"evil"))),
    "file and folder entry": archive(wheel_of(A, Entry("demo/a.py/", b"", STORED, mode=0o40755))),
    "file and folder by member": archive(wheel_of(A, Entry("demo/a.py/b.py", b"evil"))),
    "folder by member then file": archive(wheel_of(Entry("demo/a.py/b.py", b"evil"), A)),
    "file that is folder, case": archive(wheel_of(A, Entry("demo/A.PY/b.py", b"evil"))),
    "folder entry twice": archive(wheel_of(FOLDER, FOLDER, A)),
    "folder entry": archive(wheel_of(FOLDER, A)),
    "folder entry deflated": archive(wheel_of(Entry("demo/", b"", mode=0o40755), A)),
    "folder entry with data": archive(wheel_of(Entry("demo/", b"data", STORED, mode=0o40755), A)),
    "folder entry in RECORD": archive(wheel_of(FOLDER, A, more_rows="demo/,,\n")),
    "cp437 name": named("demo/é.py".encode("cp437")),
    "cp437 bytes as UTF-8": named("demo/é.py".encode("cp437"), flags=UTF8),
    "UTF-8 name without flag": archive(
        wheel_of(Entry("demo/é.py", CODE, local={"flags": 0}, central={"flags": 0}), files={"demo/é.py": CODE})
    ),
    "UTF-8 name without flag, RECORD in cp437": archive(
        wheel_of(
            Entry("demo/é.py", CODE, local={"flags": 0}, central={"flags": 0}),
            files={"demo/é.py".encode().decode("cp437"): CODE},
        )
    ),
    "UTF-8 name": named("demo/é.py".encode()),
    "UTF-8 flag on ASCII": one(local={"flags": UTF8}, central={"flags": UTF8}),
    "surrogate": named(b"demo/\xed\xa0\x80.py", flags=UTF8),
    "overlong UTF-8": named(b"demo/\xc0\xaf.py", flags=UTF8),
    "NUL in directory only": one(central={"name": b"demo/a.py\0"}),
}
LISTED = {
    **{f"RECORD lists {name}": archive(wheel_of(A, more_rows=row)) for name, row in _ROWS.items()},
    "RECORD lists backslash for slash": archive(wheel_of(A, record=RECORD.replace("demo/a.py", "demo\\a.py"))),
    "RECORD lists ./ for each": archive(wheel_of(A, record="".join(f"./{row}\n" for row in RECORD.splitlines()))),
    "RECORD lacks one": archive(wheel_of(A, record=RECORD.replace(f"demo/a.py,{HASH},600\n", ""))),
    "RECORD lacks itself": archive(wheel_of(A, record=RECORD.replace(f"{INFO}/RECORD,,\n", ""))),
    "RECORD hashes itself": archive(
        wheel_of(A, record=RECORD.replace(f"{INFO}/RECORD,,", f"{INFO}/RECORD,{HASH},600"))
    ),
    "RECORD wrong hash": archive(wheel_of(EVIL, record=RECORD.replace(",600", ",9"))),
    "RECORD wrong size": archive(wheel_of(A, record=RECORD.replace(",600", ",601"))),
    "RECORD without hash": archive(wheel_of(A, record=RECORD.replace(HASH, ""))),
    "RECORD without size": archive(wheel_of(A, record=RECORD.replace(",600", ","))),
    "RECORD md5": archive(wheel_of(A, record=RECORD.replace(HASH, hashed(CODE, "md5")))),
    "RECORD hash padded": archive(wheel_of(A, record=RECORD.replace(HASH, HASH + "="))),
    "RECORD hash in hex": archive(
        wheel_of(A, record=RECORD.replace(HASH, f"sha256={hashlib.sha256(CODE).hexdigest()}"))
    ),
    "RECORD with CRLF": archive(wheel_of(A, record=RECORD.replace("\n", "\r\n"))),
    "RECORD with BOM": archive(wheel_of(A, record="\ufeff" + RECORD)),
    "RECORD empty": archive(wheel_of(A, record="")),
    "RECORD NUL": archive(wheel_of(A, more_rows="a\0b,,\n")),
    "RECORD in other case too": archive(
        [A, Entry(f"{INFO}/record", b"evil"), *basics({"demo/a.py": CODE, f"{INFO}/record": b"evil"})]
    ),
    "two dist-info": more("other-1.0.dist-info/METADATA"),
    "two dist-info of one project": more("demo-1.0.0.dist-info/METADATA"),
    "two dist-info, folder entry": archive(wheel_of(A, Entry("other-1.0.dist-info/", b"", STORED, mode=0o40755))),
    "dist-info in other case": more("Demo-1.0.dist-info/METADATA"),
    "DIST-INFO": more("demo-1.0.DIST-INFO/METADATA"),
    "dist-info deeper": more("demo/other-1.0.dist-info/METADATA"),
    "dist-info is a file": more("other-1.0.dist-info"),
    "dist-info with dot behind": more("demo-1.0.dist-info./METADATA"),
    "egg-info": more("demo-1.0.egg-info/PKG-INFO"),
    "egg-info, sound": more("demo-1.0.egg-info/PKG-INFO", SOUND),
    "egg-info, sound, of another": more("other.egg-info/PKG-INFO", SOUND),
    "egg-info, empty": more("demo-1.0.egg-info/PKG-INFO", b""),
    "egg-info without PKG-INFO": more("demo-1.0.egg-info/SOURCES.txt"),
    "egg-info, a file": more("demo-1.0.egg-info"),
    "egg-info, a file, sound": more("demo-1.0.egg-info", SOUND),
    "egg-info, version of nothing": more("demo-1.0.egg-info/PKG-INFO", SOUND.replace(b"1.0", b"one")),
    "egg-info deeper": more("demo/demo.egg-info/PKG-INFO"),
    "egg-info by data": more("demo-1.0.data/purelib/demo.egg-info/PKG-INFO"),
    "egg-link": more("demo.egg-link", b"../..\n."),
    "dist-info by data": more("demo-1.0.data/purelib/other-1.0.dist-info/METADATA"),
    "dist-info by data, sound": more("demo-1.0.data/purelib/other-1.0.dist-info/METADATA", SOUND),
    "dist-info by data, its own": more(f"demo-1.0.data/purelib/{INFO}/more"),
    "data of another": more("other-1.0.data/purelib/x.py"),
    "data of other version": more("demo-2.0.data/purelib/x.py"),
    "data in other case": more("Demo-1.0.data/purelib/x.py"),
    "data of unknown scheme": more("demo-1.0.data/bogus/x.py"),
    "data without scheme": more("demo-1.0.data/x.py"),
    "data is a file": more("demo-1.0.data"),
    "data .data only": more(".data/purelib/x.py"),
    "foo.data folder": more("foo.data/x.txt"),
    "data deeper": more("demo/foo.data/x.txt"),
    "data over a file": more("demo-1.0.data/purelib/demo/a.py"),
    "data before a file": archive(wheel_of(Entry("demo-1.0.data/purelib/demo/a.py", b"evil"), A)),
    "data of two schemes": archive(
        wheel_of(A, Entry("demo-1.0.data/purelib/x.py", b"1"), Entry("demo-1.0.data/platlib/x.py", b"2"))
    ),
    "data over dist-info": more(f"demo-1.0.data/purelib/{INFO}/METADATA"),
    "data over script": archive(
        wheel_of(A, Entry("demo-1.0.data/scripts/x", b"#!/bin/sh\n1"), Entry("demo-1.0.data/data/bin/x", b"2"))
    ),
    "data makes a file a folder": more("demo-1.0.data/purelib/demo/a.py/b.py"),
    "data purelib": more("demo-1.0.data/purelib/x.py"),
    "data scripts": more("demo-1.0.data/scripts/x", b"#!/bin/sh\n"),
    "data scripts up": more("demo-1.0.data/scripts/../../x", b"#!/bin/sh\n"),
    "data scheme up": more("demo-1.0.data/../x"),
    "data scheme absolute": more("demo-1.0.data/data//etc/x"),
    "data purelib in other case": more("demo-1.0.data/purelib/demo/A.py"),
    "data scripts in folder": more("demo-1.0.data/scripts/sub/x", b"#!/bin/sh\n"),
    "no WHEEL": archive(
        [
            e
            for e in wheel_of(A, record=RECORD.split(f"{INFO}/WHEEL")[0] + f"{INFO}/RECORD,,\n")
            if not e.path.endswith(b"WHEEL")
        ]
    ),
    "RECORD.jws": archive([A, Entry(f"{INFO}/RECORD.jws", b"{}"), *basics({"demo/a.py": CODE})]),
    "RECORD.p7s": archive([A, Entry(f"{INFO}/RECORD.p7s", b"{}"), *basics({"demo/a.py": CODE})]),
    "RECORD.jws listed": archive(wheel_of(A, Entry(f"{INFO}/RECORD.jws", b"{}"))),
    "RECORD.p7s listed": archive(wheel_of(A, Entry(f"{INFO}/RECORD.p7s", b"{}"))),
    "RECORD.jws listed without hash": archive(
        [A, Entry(f"{INFO}/RECORD.jws", b"{}"), *basics({"demo/a.py": CODE}, more_rows=f"{INFO}/RECORD.jws,,\n")]
    ),
    "RECORD.jws listed, but gone": archive(wheel_of(A, more_rows=f"{INFO}/RECORD.jws,,\n")),
    "RECORD.jws deeper": archive([A, Entry(f"{INFO}/x/RECORD.jws", b"{}"), *basics({"demo/a.py": CODE})]),
    "RECORD.jws of the package": archive([A, Entry("demo/RECORD.jws", b"{}"), *basics({"demo/a.py": CODE})]),
    "RECORD with size only": archive(wheel_of(A, record=RECORD.replace(f"{INFO}/RECORD,,", f"{INFO}/RECORD,,600"))),
    "dist-info first": archive(list(reversed(wheel_of(A)))),
    **{f"no {name}": without(name) for name in ("WHEEL", "METADATA", "RECORD")},
}
