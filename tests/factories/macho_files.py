"""Mach-O files written byte by byte, thin and fat, and libraries that clang and lld make without Apple's headers."""

import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.factories.once import once

X86_64, ARM64 = 0x1000007, 0x100000C
DYLIB, BUNDLE, EXECUTE = 6, 8, 2
_LOAD, _WEAK, _ID, _RPATH = 0xC, 0x80000018, 0xD, 0x8000001C
_PAGE = 0x1000


def _tool(name: str) -> str | None:
    """The newest *name* of LLVM, which Debian has in folders by version."""
    folders = sorted(map(str, Path("/usr/lib").glob("llvm-*/bin")), reverse=True)
    return shutil.which(name, path=os.pathsep.join([*folders, os.environ["PATH"]]))


@once
def macos_library(source: str, machine: str = "x86_64", *flags: str, oldest: str = "13.0") -> bytes:
    """What clang and lld make of *source* for macOS from *oldest* on; skips where they are not installed."""
    compiler, linker = _tool("clang"), _tool("ld64.lld")
    if not (compiler and linker):
        pytest.skip("needs clang and lld")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        command = [compiler, "-target", f"{machine}-apple-macos{oldest}", "-O1", *flags, "-w", "-x", "c", "-c", "-"]
        subprocess.run([*command, "-o", place / "a.o"], input=source.encode(), check=True, capture_output=True)
        command = [linker, "-dylib", "-arch", machine, "-platform_version", "macos", oldest, oldest]
        command += ["-undefined", "dynamic_lookup", "-o", str(place / "a.dylib"), str(place / "a.o")]
        subprocess.run(command, check=True, capture_output=True)
        return (place / "a.dylib").read_bytes()


def _text_command(command: int, text: str, head: bytes = b"") -> bytes:
    data = text.encode() + b"\0"
    size = 12 + len(head) + len(data)
    size += -size % 8
    return (struct.pack("<III", command, size, 12 + len(head)) + head + data).ljust(size, b"\0")


def macho(
    *,
    cpu: int = ARM64,
    kind: int = DYLIB,
    name: str | None = None,
    needed: Sequence[str] = (),
    weak: Sequence[str] = (),
    rpaths: Sequence[str] = (),
    exports: Sequence[str] = (),
    local: Sequence[str] = (),
    taken: Sequence[str] = (),
    oldest: tuple[int, int] | None = None,
    text: bytes = b"",
    signature: int = 0,
) -> bytes:
    """A Mach-O file of 64 bits whose constants are *text*, with symbols of *exports*, *local* and *taken*, and a UUID.

    *oldest* is the macOS that it is for.
    """
    versions = struct.pack("<III", 2, 0x10000, 0x10000)
    commands = [_text_command(_ID, name, versions)] if name else []
    commands += [_text_command(_LOAD, each, versions) for each in needed]
    commands += [_text_command(_WEAK, each, versions) for each in weak]
    commands += [_text_command(_RPATH, each) for each in rpaths]
    commands.append(struct.pack("<II16s", 0x1B, 24, bytes(range(16))))
    if oldest:
        commands.append(struct.pack("<IIIIII", 0x32, 24, 1, oldest[0] << 16 | oldest[1] << 8, 0, 0))
    strings = b"\0"
    symbols = b""
    for group, flags, section in ((local, 0xE, 1), (exports, 0xF, 1), (taken, 1, 0)):
        for each in group:
            symbols += struct.pack("<IBBHQ", len(strings), flags, section, 0, 0)
            strings += f"_{each}\0".encode()
    constants = text + bytes(-len(text) % 8)
    body = _PAGE + len(constants)
    linked = symbols + strings + bytes(signature)
    segment = struct.pack("<II16sQQQQIIII", 0x19, 152, b"__TEXT", 0, body, 0, body, 5, 5, 1, 0)
    segment += struct.pack(
        "<16s16sQQIIIIIIII", b"__const", b"__TEXT", _PAGE, len(constants), _PAGE, 0, 0, 0, 0, 0, 0, 0
    )
    linkedit = struct.pack("<II16sQQQQIIII", 0x19, 72, b"__LINKEDIT", body, _PAGE, body, len(linked), 1, 1, 0, 0)
    defined = len(local) + len(exports)
    table = struct.pack("<IIIIII", 2, 24, body, defined + len(taken), body + len(symbols), len(strings))
    ranges = struct.pack("<IIIIIIII", 0xB, 80, 0, len(local), len(local), len(exports), defined, len(taken))
    ranges = ranges.ljust(80, b"\0")
    commands += [segment, linkedit, table, ranges]
    if signature:
        commands.append(struct.pack("<IIII", 0x1D, 16, body + len(symbols) + len(strings), signature))
    whole = b"".join(commands)
    head = struct.pack("<IIIIIIII", 0xFEEDFACF, cpu, 0, kind, len(commands), len(whole), 0, 0) + whole
    return head.ljust(_PAGE, b"\0") + constants + linked


def fat(*files: tuple[int, bytes]) -> bytes:
    """A universal file of *files*, each with its cputype."""
    place, head, body = _PAGE, struct.pack(">II", 0xCAFEBABE, len(files)), b""
    for cpu, data in files:
        head += struct.pack(">IIIII", cpu, 0, place, len(data), 12)
        padded = data + bytes(-len(data) % _PAGE)
        place, body = place + len(padded), body + padded
    return head.ljust(_PAGE, b"\0") + body
