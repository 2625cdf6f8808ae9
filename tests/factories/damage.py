"""Libraries with something wrong in them, made from sound ones: a number put elsewhere, or the end cut off."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from msgspec.structs import replace

from vbuild.elf.image import ElfImage
from vbuild.elf.records import ProgramHeader, SectionHeader

_ADDEND = 16

# what a byte, or a word, may be written over with
NEW_BYTES = (b"\0", b"\1", b"\x40", b"\xff", b"/", b":", b"@", b"$", b"\n", b"\x1b", b"\xff" * 7 + b"\x7f", b"\xff" * 8)


def poked(data: bytes, offset: int, number: int, *, size: int = 8) -> bytes:
    """*data* with *number* in *size* bytes at *offset*."""
    return data[:offset] + number.to_bytes(size, "little") + data[offset + size :]


def with_section(data: bytes, name: str, field: int, number: int) -> bytes:
    """*data* with *number* in the 64-bit field at *field* of the header of its section *name*."""
    image = ElfImage.parse(data)
    section = image.section(name)
    assert section
    return poked(data, image.header.e_shoff + section.index * SectionHeader.layout.size + field, number)


def with_segment(data: bytes, place: int, field: int, number: int) -> bytes:
    """*data* with *number* in the 64-bit field at *field* of its program header number *place*."""
    return poked(data, ElfImage.parse(data).header.e_phoff + place * ProgramHeader.layout.size + field, number)


def containers(data: bytes) -> tuple[int, ...]:
    """The addresses that the wrappers of *data* lead to, in their order."""
    image = ElfImage.parse(data)
    section = image.section(".nv_fatbin")
    assert section
    found = sorted(image.pointers([section.addresses]), key=lambda pointer: pointer.place)
    return tuple(pointer.target for pointer in found)


def retargeted(data: bytes, wrapper: int, address: int) -> bytes:
    """*data* with its wrapper number *wrapper* leading to *address*."""
    image = ElfImage.parse(data)
    section = image.section(".nv_fatbin")
    assert section
    found = sorted(image.pointers([section.addresses]), key=lambda pointer: pointer.place)
    row = found[wrapper].row
    assert row is not None
    return poked(data, row + _ADDEND, address)


def with_fatbin(data: bytes, field: int, number: int) -> bytes:
    """*data* with *number* in the 64-bit field at *field* of its first fatbin."""
    section = ElfImage.parse(data).section(".nv_fatbin")
    assert section
    return poked(data, section.span.start + field, number)


@contextmanager
def in_time(seconds: float = 20) -> Iterator[None]:
    """Fail where what is done inside takes more processor time than anything may, whatever else the machine does."""
    begun = sum(os.times()[:4])
    yield
    assert sum(os.times()[:4]) - begun < seconds


@dataclass(frozen=True, slots=True)
class Sound:
    """A file with nothing wrong in it, and how something in it is made wrong."""

    data: bytes

    @property
    def image(self) -> ElfImage:
        return ElfImage.parse(self.data)

    def patched(self, at: int, new: bytes) -> bytes:
        return self.data[:at] + new + self.data[at + len(new) :]

    def flipped(self, section: str, at: int = 0) -> bytes:
        """The file with one bit of the *section* changed, in its byte *at*."""
        found = self.image.section(section)
        assert found is not None
        place = found.span[at]
        return self.patched(place, bytes([self.data[place] ^ 1]))

    def with_segment(self, number: int, **fields: int) -> bytes:
        image = self.image
        at = image.header.e_phoff + number * ProgramHeader.layout.size
        return self.patched(at, replace(image.segments[number], **fields).pack())

    def with_section(self, name: str, **fields: int) -> bytes:
        image = self.image
        section = image.section(name)
        assert section is not None
        at = image.header.e_shoff + section.index * SectionHeader.layout.size
        return self.patched(at, replace(section.header, **fields).pack())
