"""PE files written byte by byte, the smallest that say what a test is about, and DLLs compiled by mingw."""

import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.factories.once import once

MINGW = "x86_64-w64-mingw32-"
_NEEDS_MINGW = "needs Debian's gcc-mingw-w64-x86-64"
_START, _ADDRESS = 0x400, 0x1000
GUID = bytes(range(16))


@once
def windows_library(source: str, *flags: str) -> bytes:
    """What mingw's gcc makes of *source* with *flags*: a DLL unless they say otherwise; skips where there is none."""
    if not shutil.which(f"{MINGW}gcc"):
        pytest.skip(_NEEDS_MINGW)
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "demo.dll"
        command = [f"{MINGW}gcc", "-shared", "-O1", *flags, "-x", "c", "-", "-o", os.fspath(output)]
        subprocess.run(command, input=source.encode(), check=True, capture_output=True)
        return output.read_bytes()


def pe_file(
    *,
    machine: int = 0x8664,
    needed: Sequence[str] = (),
    delayed: Sequence[str] = (),
    exports: Sequence[str] = (),
    name: str = "demo.dll",
    flags: int = 0x2022,
    more: Mapping[int, tuple[int, int]] | None = None,
    text: bytes = b"",
    sections: Sequence[tuple[bytes, int]] = (),
) -> bytes:
    """A PE file with one section of tables and *text*, *more* directories by number, and empty *sections* of a size.

    Its debug directory has the PDB's id `GUID`, age 1.
    """
    is_64 = machine != 0x14C
    body = bytearray(text.ljust(len(text) + -len(text) % 8, b"\0"))

    def put(data: bytes) -> int:
        place = len(body)
        body.extend(data + bytes(-len(data) % 8))
        return _ADDRESS + place

    directories: dict[int, tuple[int, int]] = {}
    names = {each: put(each.encode() + b"\0") for each in (*needed, *delayed, *exports, name)}
    if needed:
        rows = b"".join(struct.pack("<IIIII", 0, 0, 0, names[each], 0) for each in needed) + bytes(20)
        directories[1] = put(rows), len(rows)
    if delayed:
        fifth = put(struct.pack("<QQ", 1 << 63 | 5, 0))
        rows = b"".join(struct.pack("<IIIIIIII", 1, names[each], 0, fifth, fifth, 0, 0, 0) for each in delayed)
        rows += bytes(32)
        directories[13] = put(rows), len(rows)
    if exports:
        count = len(exports)
        functions = put(struct.pack(f"<{count}I", *[_ADDRESS] * count))
        table = put(struct.pack(f"<{count}I", *(names[each] for each in exports)))
        rows = struct.pack("<IIIIIIIIII", 0, 0, 0, names[name], 1, count, count, functions, table, 0)
        directories[0] = put(rows), len(rows)
    view = b"RSDS" + GUID + struct.pack("<I", 1) + b"demo.pdb\0"
    where = put(view)
    rows = struct.pack("<IIIIIII", 0, 0, 0, 2, len(view), where, where - _ADDRESS + _START)
    directories[6] = put(rows), len(rows)
    directories |= more or {}
    body += bytes(-len(body) % 512)

    directory_rows = b"".join(struct.pack("<II", *directories.get(number, (0, 0))) for number in range(16))
    shared = struct.pack("<IIHHHHHHIIIIHH", 0x1000, 0x200, 6, 0, 0, 0, 6, 0, 0, 0x10000, _START, 0, 2, 0)
    if is_64:
        optional = struct.pack("<HBBIIIIIQ", 0x20B, 0, 0, 0, 0, 0, 0, 0x1000, 1 << 32) + shared + bytes(32)
    else:
        optional = struct.pack("<HBBIIIIIII", 0x10B, 0, 0, 0, 0, 0, 0, 0x1000, 0, 1 << 28) + shared + bytes(16)
    optional += struct.pack("<II", 0, 16) + directory_rows
    coff = struct.pack("<HHIIIHH", machine, 1 + len(sections), 0, 0, 0, len(optional), flags)
    place, address, headers = _START, _ADDRESS, b""
    for called, size in ((b".rdata", len(body)), *sections):
        headers += struct.pack("<8sIIIIIIHHI", called, size, address, size, place, 0, 0, 0, 0, 0x40000040)
        place, address = place + size, address + size + -size % 0x1000
    head = b"MZ" + bytes(58) + struct.pack("<I", 64) + b"PE\0\0" + coff + optional + headers
    return head.ljust(_START, b"\0") + bytes(body) + bytes(place - _START - len(body))
