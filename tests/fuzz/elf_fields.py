"""Bad numbers: an ELF file in which some fields that a loader or a cutter reads say something else."""

import random
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress

# bytes of the fields of each record, in their order
_FILE = (2, 2, 4, 8, 8, 8, 4, 2, 2, 2, 2, 2, 2)
_PROGRAM = (4, 4, 8, 8, 8, 8, 8, 8)
_SECTION = (4, 4, 8, 8, 8, 8, 4, 4, 8, 8)
_PAIR, _TRIPLE, _SYMBOL, _WORDS = (8, 8), (8, 8, 8), (4, 1, 1, 2, 8, 8), (4,)
_OF_TYPE = {2: _SYMBOL, 4: _TRIPLE, 5: _WORDS, 6: _PAIR, 7: _WORDS, 11: _SYMBOL, 19: (8,), 0x6FFFFFF6: _WORDS}
_OF_TYPE |= {0x6FFFFFFE: _WORDS, 0x6FFFFFFD: _WORDS, 0x6FFFFFFF: (2,)}
_NEW = (0, 1, 2, 4, 7, 8, 0x10, 0x40, 0xFFF, 0x1000, 0x1001, 0x10000, 1 << 31, (1 << 32) - 1, 1 << 63, (1 << 64) - 1)
_STEPS = (-0x1000, -0x100, -24, -16, -8, -1, 1, 8, 16, 24, 0x100, 0x1000)


def elf_changed(data: bytes, chance: random.Random) -> bytes:
    """*data* with one to three other numbers in its headers and tables; *data* itself if it has none."""
    tables = list(_tables(data))
    if not tables:
        return data
    found = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        start, size, fields = chance.choice(tables)
        rows = max(size // sum(fields), 1)
        number = chance.randrange(len(fields))
        place = start + chance.randrange(rows) * sum(fields) + sum(fields[:number])
        width = fields[number]
        old = int.from_bytes(found[place : place + width], "little")
        new = chance.choice((_chosen(chance, _NEW), old + _chosen(chance, _STEPS), _other(found, tables, chance)))
        if place + width <= len(found):
            found[place : place + width] = (new & (1 << 8 * width) - 1).to_bytes(width, "little")
    return bytes(found)


def _chosen(chance: random.Random, numbers: Sequence[int]) -> int:
    return chance.choice(numbers)


def _other(data: bytearray, tables: list[tuple[int, int, tuple[int, ...]]], chance: random.Random) -> int:
    """A number of 8 bytes that stands in one of *tables*."""
    start, size, _ = chance.choice(tables)
    place = start + chance.randrange(max(size // 8, 1)) * 8
    return int.from_bytes(data[place : place + 8], "little")


def _tables(data: bytes) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Where headers and tables are, as long as they are in *data*: offset, bytes, and the fields of a row."""
    with suppress(struct.error, OverflowError):
        phoff, shoff, phnum, shnum = struct.unpack_from("<32xQQ8xHxxH", data)
        yield 16, 48, _FILE
        for _ in range(3):
            yield phoff, 56 * phnum, _PROGRAM
        yield shoff, 64 * shnum, _SECTION
        for number in range(min(shnum, 256)):
            kind, offset, size = struct.unpack_from("<4xI16xQQ", data, shoff + 64 * number)
            if kind in _OF_TYPE and size and offset + size <= len(data):
                yield offset, size, _OF_TYPE[kind]
