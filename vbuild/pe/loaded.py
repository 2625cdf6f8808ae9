"""What is loaded where of a PE file: bytes, rows and texts by RVA, an address counted from the image's base."""

import struct
from bisect import bisect_right
from collections.abc import Iterator

from vbuild.binary.code import CodeSection
from vbuild.errors import BinaryError
from vbuild.pe.image import PeImage, SectionFlag

WORD, HALF = struct.Struct("<Q"), struct.Struct("<I")
LONGEST = 4096  # bytes of a text


class LoadedPe:
    """The file *pe*, as it is loaded at *base*; *code* are the sections that run."""

    def __init__(self, pe: PeImage) -> None:
        self.pe, self.base = pe, pe.optional.image_base
        self.code = tuple(
            CodeSection(section.name, section.addresses.start, bytes(pe.view(section.span)))
            for section in pe.sections
            if section.header.flags & SectionFlag.EXECUTE and section.span
        )

    def bytes_at(self, start: int, size: int) -> bytes:
        """Up to *size* bytes that are loaded at *start*, counted from the image's base."""
        at = self.pe.offset(self.base + start)
        if at is None:
            return b""
        index = bisect_right(self.pe.sections, self.base + start, key=lambda one: one.addresses.start) - 1
        return bytes(self.pe.data[at : min(at + size, self.pe.sections[index].span.stop)])

    def row(self, layout: struct.Struct, start: int) -> tuple[int, ...]:
        """The values of *layout* at the RVA *start*; `BinaryError` out of its section."""
        found = self.bytes_at(start, layout.size)
        if len(found) < layout.size:
            raise BinaryError(f"table at RVA {start:#x} runs out of its section")
        return layout.unpack(found)

    def rows(self, layout: struct.Struct, start: int, count: int) -> Iterator[tuple[int, ...]]:
        """The values of *count* rows of *layout* from the RVA *start* on; `BinaryError` out of their section."""
        found = self.bytes_at(start, layout.size * count)
        if len(found) < layout.size * count:
            raise BinaryError(f"table of {count} rows at RVA {start:#x} runs out of its section")
        return layout.iter_unpack(found)

    def text(self, start: int) -> str:
        """The text at the RVA *start*, up to a zero."""
        return self.bytes_at(start, LONGEST).partition(b"\0")[0].decode("utf-8", "backslashreplace")

    def directory(self, number: int) -> tuple[int, int]:
        """RVA and size of the data directory of that *number*."""
        found = self.pe.directories[number] if number < len(self.pe.directories) else None
        return (found.start, found.size) if found and found.start else (0, 0)

    def is_code(self, address: int) -> bool:
        """Whether code is loaded at *address*."""
        return any(code.address <= address < code.end for code in self.code)

    def is_data(self, start: int) -> bool:
        """Whether data are loaded at the RVA *start*."""
        return any(self.base + start in section.addresses for section in self.pe.sections if section.is_data)
