"""The layout of a Mach-O file for x86-64 or arm64: its segments, sections and the tables of its load commands.

    data -> MachoFile.segments, .sections, .tables; .row, .part by place in the file; .offset, .address between both

https://github.com/apple-oss-distributions/xnu/blob/main/EXTERNAL_HEADERS/mach-o/loader.h
"""

import struct
from typing import NamedTuple

from vbuild.errors import BinaryError

WORD, HALF = struct.Struct("<Q"), struct.Struct("<I")
# kinds of sections that take no room in the file
EMPTY = frozenset({1, 12, 18})

_MAGIC = 0xFEEDFACF
_HEADER, _COMMAND, _SEGMENT, _SECTION = map(struct.Struct, ("<8I", "<II", "<8x16s4QiiII", "<16s16sQQ8I"))
_X86_64, _ARM64, _SUBTYPE = 0x01000007, 0x0100000C, 0xFFFFFF
_MACHINES = {(_X86_64, 3): "x86_64", (_ARM64, 0): "aarch64"}
_LOADED = frozenset({0xC, 0x20, 0x80000018, 0x8000001F})
_SEGMENT_64, _ID, _ENCRYPTED, _MAIN = 0x19, 0xD, 0x2C, 0x80000028
_BUILD, _OLDEST = 0x32, 0x24
# the kinds of files that the loader loads: programs, libraries, bundles
_LOADABLE = frozenset({2, 6, 8})
_MOST_COMMANDS, _LONGEST = 1 << 12, 4096
# the index of references has 40 bits for an address
_HIGHEST = 1 << 39


class Section(NamedTuple):
    """A section: where it is loaded and where it lies, both in bytes."""

    name: str
    segment: str
    address: int
    size: int
    offset: int
    flags: int
    stub_size: int

    @property
    def kind(self) -> int:
        return self.flags & 0xFF

    @property
    def addresses(self) -> range:
        return range(self.address, self.address + self.size)


class Segment(NamedTuple):
    """A segment: its *addresses* in memory, and its *span* of the file."""

    name: str
    addresses: range
    span: range
    protection: int
    flags: int


class MachoFile:
    """What lies where in one file; `BinaryError` if it is damaged, or for other machines.

    *tables* are the words of load commands by their numbers, *needed* the names of libraries, *oldest* the macOS it
    runs on from, and *entry* is where a program starts, behind *base*, if it is one.
    """

    def __init__(self, view: memoryview) -> None:
        self._data, self.size = view, len(view)
        magic, cpu, subtype, kind, count, size, _, _ = self.row(_HEADER, 0)
        if magic != _MAGIC:
            raise BinaryError(f"Mach-O header {magic:#x}, expected {_MAGIC:#x} (64-bit)")
        if (machine := _MACHINES.get((cpu, subtype & _SUBTYPE))) is None:
            raise BinaryError(f"code for machine {cpu:#x}, kind {subtype & _SUBTYPE}: expected x86-64 or arm64")
        self.machine, self.is_loadable = machine, kind in _LOADABLE
        self.segments: list[Segment] = []
        self.sections: list[Section] = []
        self.tables: dict[int, tuple[int, ...]] = {}
        self.needed: list[str] = []
        self.soname: str | None = None
        self.oldest = self.entry = 0
        self._read_commands(count, _HEADER.size + size)
        if not (text := next((one for one in self.segments if one.name == "__TEXT"), None)):
            raise BinaryError("no segment __TEXT, which each program and library has")
        self.base = text.addresses.start
        if any(one.addresses.stop > _HIGHEST for one in self.segments if one.name != "__PAGEZERO"):
            raise BinaryError(f"segment above {_HIGHEST:#x}: its code is not read")

    # parts of the file

    def row(self, layout: struct.Struct, at: int) -> tuple[int, ...]:
        """The values of *layout* at the offset *at*; `BinaryError` past the end."""
        if not 0 <= at <= self.size - layout.size:
            raise BinaryError(f"row of {layout.size} bytes at {at:#x}, past the end, {self.size:#x}")
        return layout.unpack_from(self._data, at)

    def part(self, start: int, size: int) -> memoryview:
        """*size* bytes from the offset *start* on; `BinaryError` past the end."""
        if start + size > self.size:
            raise BinaryError(f"table at {start:#x}, {size:#x} bytes, past the end, {self.size:#x}")
        return self._data[start : start + size]

    def _text(self, at: int) -> str:
        return bytes(self._data[at : at + _LONGEST]).partition(b"\0")[0].decode("utf-8", "backslashreplace")

    def offset(self, address: int) -> int | None:
        """Where in the file that is what is loaded at *address*."""
        for one in self.segments:
            if address in one.addresses and address - one.addresses.start < len(one.span):
                return one.span.start + address - one.addresses.start
        return None

    def address(self, offset: int) -> int | None:
        """Where that is loaded which the file has at *offset*."""
        for one in self.segments:
            if offset in one.span:
                return one.addresses.start + offset - one.span.start
        return None

    # load commands

    def _read_commands(self, count: int, end: int) -> None:
        if end > self.size:
            raise BinaryError(f"load commands end at {end:#x}, past the end, {self.size:#x}")
        at = _HEADER.size
        for _ in range(min(count, _MOST_COMMANDS)):
            command, size = self.row(_COMMAND, at)
            if size < _COMMAND.size or at + size > end:
                raise BinaryError(f"load command at {at:#x} of {size:#x} bytes, expected one that ends before {end:#x}")
            if command == _SEGMENT_64:
                self._read_segment(at, size)
            elif command in _LOADED:
                self.needed.append(self._text(at + self.row(HALF, at + 8)[0]).rpartition("/")[2])
            elif command == _ID:
                self.soname = self._text(at + self.row(HALF, at + 8)[0]).rpartition("/")[2]
            elif command == _MAIN:
                (self.entry,) = self.row(WORD, at + 8)
            elif command in {_BUILD, _OLDEST}:
                (self.oldest,) = self.row(HALF, at + (12 if command == _BUILD else 8))
            elif command == _ENCRYPTED and self.row(HALF, at + 16)[0]:
                raise BinaryError("encrypted code")
            else:
                words = size // HALF.size - 2
                self.tables[command] = self.row(struct.Struct(f"<{words}I"), at + _COMMAND.size)
            at += size

    def _read_segment(self, at: int, size: int) -> None:
        name, start, length, offset, stored, _, protection, count, flags = self.row(_SEGMENT, at)
        if offset + stored > self.size or stored > length:
            raise BinaryError(f"segment at {offset:#x}, {stored:#x} bytes, past the end, {self.size:#x}")
        if _SEGMENT.size + count * _SECTION.size > size:
            raise BinaryError(f"segment of {count} sections in a load command of {size:#x} bytes")
        segment = Segment(_name(name), range(start, start + length), range(offset, offset + stored), protection, flags)
        self.segments.append(segment)
        for row in _SECTION.iter_unpack(self.part(at + _SEGMENT.size, count * _SECTION.size)):
            section = Section(_name(row[0]), _name(row[1]), row[2], row[3], row[4], row[8], row[10])
            if section.kind not in EMPTY and section.size and not self._is_inside(section, segment):
                raise BinaryError(f"section {section.name} at {section.offset:#x} is not in its segment")
            self.sections.append(section)

    @staticmethod
    def _is_inside(section: Section, segment: Segment) -> bool:
        place = section.address - segment.addresses.start
        return 0 <= place <= len(segment.span) - section.size and segment.span.start + place == section.offset


def _name(raw: bytes | int) -> str:
    return bytes(raw).rstrip(b"\0").decode("latin-1") if isinstance(raw, bytes) else str(raw)
