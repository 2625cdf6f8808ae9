"""What refers to an address from elsewhere in the file, and has to follow when something moves away from it."""

import struct
from collections.abc import Iterator, Sequence

from msgspec import Struct

from vbuild.binary.image import Pointer, Ranges
from vbuild.elf.image import WORD, ElfImage
from vbuild.elf.layout import Section
from vbuild.elf.records import SectionType
from vbuild.errors import BinaryError

_SYMBOL = 24
_VALUES = struct.Struct("<8xQ8x")
_SECTIONS = struct.Struct("<6xH16x")
_VALUE, _SIZE = 8, 16
_ADDEND = 16
# st_name 0, STB_LOCAL and STT_FILE, SHN_ABS
_NO_FILE = 4 << 32 | 0xFFF1 << 48


class Move(Struct, frozen=True):
    """A stretch that was at the addresses *old* and is at *new*."""

    old: range
    new: range


def pointer_words(image: ElfImage, pointers: Sequence[Pointer], address: int) -> dict[int, int]:
    """The words to be written, by file offset, so that *pointers* lead to *address* instead of where they lead now."""
    words = {}
    for pointer in pointers:
        place = image.offset(pointer.place)
        held = image.word(pointer.place)
        if place is None or held is None:
            raise BinaryError(f"pointer at address {pointer.place:#x}, where the file has no word")
        if pointer.row is not None:
            words[pointer.row + _ADDEND] = address
        # GNU ld writes the target there too; lld writes 0, and only the addend counts
        if held == pointer.target:
            words[place] = address
    return words


def symbol_words(image: ElfImage, moves: Sequence[Move], *, without: Sequence[Section] = ()) -> dict[int, int]:
    """The words to be written, by file offset, so that ``.symtab`` knows of *moves* and of the sections *without*.

    The symbol of a section that goes becomes one of no file, as GNU ld writes them, which every tool passes over; of
    what moves as a whole the size changes as well.
    """
    by_start = {move.old.start: move for move in moves}
    gone = {section.index for section in without}
    words: dict[int, int] = {}
    for section in image.sections:
        if section.header.sh_type == SectionType.SYMTAB and section.index not in gone:
            table = image.view(section.span)[: len(section.span) // _SYMBOL * _SYMBOL]
            found = [*_moved(table, by_start), *(_orphaned(table, gone) if gone else ())]
            words.update((section.span.start + at, value) for at, value in found)
    return words


def _moved(table: memoryview, by_start: dict[int, Move]) -> Iterator[tuple[int, int]]:
    if not by_start:
        return
    low, high = min(by_start), max(by_start)
    for number in [number for number, (value,) in enumerate(_VALUES.iter_unpack(table)) if low <= value <= high]:
        row = number * _SYMBOL
        if move := by_start.get(WORD.unpack_from(table, row + _VALUE)[0]):
            yield row + _VALUE, move.new.start
            if WORD.unpack_from(table, row + _SIZE)[0] == len(move.old):
                yield row + _SIZE, len(move.new)


def _orphaned(table: memoryview, gone: set[int]) -> Iterator[tuple[int, int]]:
    for number in [number for number, (index,) in enumerate(_SECTIONS.iter_unpack(table)) if index in gone]:
        yield number * _SYMBOL, _NO_FILE
        yield from ((number * _SYMBOL + at, 0) for at in (_VALUE, _SIZE))


def exported(image: ElfImage, ranges: Sequence[range]) -> tuple[int, ...]:
    """The values of symbols in ``.dynsym`` that lie in *ranges* of addresses: other files may refer to those."""
    inside = Ranges(ranges)
    found: list[int] = []
    for section in image.sections:
        if section.header.sh_type == SectionType.DYNSYM:
            table = image.view(section.span)[: len(section.span) // _SYMBOL * _SYMBOL]
            values = [value for (value,) in _VALUES.iter_unpack(table) if inside.low <= value < inside.high]
            found += (value for value in values if value in inside)
    return tuple(found)
