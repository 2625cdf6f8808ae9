"""What a library has in memory, by a reader of its own: vbuild's is what is judged with it.

PT_LOAD   -> pages of 4 KiB, as Linux maps them and ld.so fills them with zeros
DT_*      -> texts, versions, relocations, where a symbol is found, all by addresses
wrappers  -> fatbins and bundles, by the pointers that ld.so would write
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import NamedTuple, TypeVar

T = TypeVar("T")

PAGE = 0x1000
# pages of zeros, more than which are not looked at
_MOST_ZEROS = 1 << 12
_LITTLE_64 = b"\x7fELF\x02\x01\x01"
_LOAD, _DYNAMIC = 1, 2
_R, _W = 4, 2
_NEEDED, _STRTAB, _SYMTAB, _RELA, _RELASZ, _SONAME, _RPATH, _RUNPATH = 1, 5, 6, 7, 8, 14, 15, 29
_GNU_HASH, _VERNEED, _VERNEEDNUM = 0x6FFFFEF5, 0x6FFFFFFE, 0x6FFFFFFF
_RELATIVE, _RELR, _EXEC = 8, 36, 2
_MANY = 1 << 12
_WORD = struct.Struct("<Q")


class Unreadable(Exception):  # noqa: N818 - of a library, not of the reader
    """What a loader would not take."""


def readable(read: Callable[[], T]) -> T | None:
    """What *read* finds in a library, or None where nobody can read it."""
    try:
        return read()
    except (Unreadable, struct.error, OverflowError):
        return None


class Segment(NamedTuple):
    """A program header."""

    kind: int
    flags: int
    offset: int
    address: int
    filled: int
    size: int
    alignment: int


class Section(NamedTuple):
    """A section header, with its name."""

    name: bytes
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int


class Loaded:
    """The library *data* as it is in memory; addresses count from where it is loaded."""

    def __init__(self, data: bytes) -> None:
        if not data.startswith(_LITTLE_64):
            raise Unreadable
        self.data = data
        try:  # a number of 8 bytes may be too large a place for struct
            self.phoff, self.shoff = struct.unpack_from("<QQ", data, 32)
            self.phnum, _, self.shnum, self.shstrndx = struct.unpack_from("<HHHH", data, 56)
            rows = [struct.unpack_from("<IIQQ8xQQQ", data, self.phoff + 56 * number) for number in range(self.phnum)]
        except (struct.error, OverflowError) as error:
            raise Unreadable from error
        self.segments = [Segment(*row) for row in rows]
        self.loads = [segment for segment in self.segments if segment.kind == _LOAD]
        self.pages: dict[int, tuple[bytes, int]] = {}
        for load in self.loads:
            self._map(load)

    def _map(self, load: Segment) -> None:
        shift = load.offset - load.address
        is_aligned = not shift % PAGE and not shift & max(load.alignment - 1, 0)
        if load.filled > load.size or not is_aligned or load.offset + load.filled > len(self.data):
            raise Unreadable
        start, end, last = load.address // PAGE * PAGE, load.address + load.filled, load.address + load.size
        if last // PAGE - start // PAGE > len(self.data) // PAGE + _MOST_ZEROS:
            raise Unreadable
        for page in range(start, end if load.filled else start, PAGE):
            there = self.data[page + shift : page + shift + PAGE]
            if load.size > load.filled and page + PAGE > end:
                there = there[: end - page]
            self.pages[page] = there.ljust(PAGE, b"\0"), load.flags & (_R | _W)
        for page in range(-(-end // PAGE) * PAGE if load.filled else start, last, PAGE):
            self.pages[page] = bytes(PAGE), load.flags & (_R | _W)

    def read(self, address: int, size: int) -> bytes:
        """*size* bytes from *address* on."""
        if size > len(self.data) + PAGE:
            raise Unreadable
        found = []
        for page in range(address // PAGE * PAGE, address + size, PAGE):
            if page not in self.pages:
                raise Unreadable
            found.append(self.pages[page][0])
        start = address % PAGE
        return b"".join(found)[start : start + size]

    def is_from_file(self, address: int, size: int) -> bool:
        """Whether *size* bytes from *address* on are of one PT_LOAD, and of the file alone."""
        touching = [
            load
            for load in self.loads
            if load.address // PAGE * PAGE < address + size and address < -(-(load.address + load.size) // PAGE) * PAGE
        ]
        return (
            len(touching) == 1
            and touching[0].address <= address <= address + size <= touching[0].address + touching[0].filled
        )

    def text(self, address: int) -> bytes:
        """The text at *address*."""
        found = b""
        while b"\0" not in found:
            step = PAGE - (address + len(found)) % PAGE
            found += self.read(address + len(found), step)
        return found.partition(b"\0")[0]

    def addresses(self, offset: int, size: int) -> range:
        """Where what is at *offset* of the file is; empty where it is not loaded."""
        return next(self.everywhere(offset, size), range(0))

    def everywhere(self, offset: int, size: int) -> Iterator[range]:
        """The same for each PT_LOAD that has it."""
        for load in self.loads:
            if load.offset // PAGE * PAGE <= offset < load.offset + load.filled:
                start = offset - load.offset + load.address
                yield range(start, start + size)

    @cached_property
    def sections(self) -> list[Section]:
        """What the section headers say, as far as they can be read."""
        found = []
        with suppress(struct.error, OverflowError):
            (names,) = struct.unpack_from("<24xQ", self.data, self.shoff + 64 * self.shstrndx)
            for number in range(self.shnum):
                name, kind, flags, address, offset, size, link = struct.unpack_from(
                    "<IIQQQQI", self.data, self.shoff + 64 * number
                )
                text = self.data[names + name : names + name + 64].partition(b"\0")[0]
                found.append(Section(text, kind, flags, address, offset, size, link))
        return found

    @cached_property
    def dynamic(self) -> list[tuple[int, int]]:
        """The rows that PT_DYNAMIC leads to, tag and value, up to DT_NULL: ld.so does not look at its size."""
        found: list[tuple[int, int]] = []
        start = next((segment.address for segment in self.segments if segment.kind == _DYNAMIC), None)
        while start is not None and len(found) < _MANY:
            tag, value = struct.unpack("<QQ", self.read(start + 16 * len(found), 16))
            if not tag:
                break
            found.append((tag, value))
        return found

    def first(self, tag: int) -> int | None:
        """The last value of *tag*, as ld.so keeps it."""
        return dict(self.dynamic).get(tag)

    def texts(self, *tags: int) -> list[bytes]:
        """The texts that rows with *tags* lead to."""
        strings = self.first(_STRTAB)
        if strings is None:
            return []
        return [self.text(strings + value) for tag, value in self.dynamic if tag in tags]

    @property
    def needed(self) -> list[bytes]:
        """DT_NEEDED."""
        return self.texts(_NEEDED)

    @property
    def soname(self) -> list[bytes]:
        """DT_SONAME."""
        return self.texts(_SONAME)

    @property
    def run_path(self) -> list[tuple[int, bytes]]:
        """DT_RPATH and DT_RUNPATH, each with its tag."""
        return [(tag, text) for tag in (_RPATH, _RUNPATH) for text in self.texts(tag)]

    @property
    def linkage(self) -> tuple[object, ...]:
        """What other libraries the loader brings for it, and where it looks."""
        return self.needed, self.soname, self.run_path, self.required

    @cached_property
    def required(self) -> list[tuple[bytes, tuple[bytes, ...]]]:
        """Each library of which versions are required, with them."""
        found: list[tuple[bytes, tuple[bytes, ...]]] = []
        place, count, strings = (self.first(tag) for tag in (_VERNEED, _VERNEEDNUM, _STRTAB))
        if place is None or strings is None:
            return found
        for _ in range(min(count or 0, _MANY)):
            _, versions, name, auxiliary, after = struct.unpack("<HHIII", self.read(place, 16))
            texts, at = [], place + auxiliary
            for _ in range(versions):
                text, step = struct.unpack("<8xII", self.read(at, 16))
                texts.append(self.text(strings + text))
                if not step:
                    break
                at += step
            found.append((self.text(strings + name), tuple(texts)))
            if not after:
                break
            place += after
        return found

    @cached_property
    def relocations(self) -> dict[int, tuple[int, int]]:
        """The info and the addend of each row of DT_RELA, by the place it is for."""
        start, size = self.first(_RELA), self.first(_RELASZ)
        if not start or not size:
            return {}
        rows = struct.iter_unpack("<QQQ", self.read(start, size // 24 * 24))
        return {place: (info, addend) for place, info, addend in rows}

    def is_pointer(self, place: int) -> bool:
        """Whether what is at *place* may be an address: in a library only if it is relocated."""
        is_program = struct.unpack_from("<H", self.data, 16) == (_EXEC,)
        return is_program or place in self.relocations or self.first(_RELR) is not None

    def pointer(self, place: int) -> int:
        """The address that ld.so writes to *place*: that of a row, else what is there."""
        info, addend = self.relocations.get(place, (0, 0))
        return addend if info == _RELATIVE else int(_WORD.unpack(self.read(place, 8))[0])

    def found(self, name: bytes) -> bytes | None:
        """The symbol that DT_GNU_HASH leads to for *name*, as it is in the table; None if it leads to none."""
        table, symbols, strings = (self.first(tag) for tag in (_GNU_HASH, _SYMTAB, _STRTAB))
        if table is None or symbols is None or strings is None:
            return None
        buckets, first, words, shift = struct.unpack("<IIII", self.read(table, 16))
        if not buckets or not words:
            raise Unreadable
        key = 5381
        for byte in name:
            key = (key * 33 + byte) & 0xFFFFFFFF
        (word,) = _WORD.unpack(self.read(table + 16 + key // 64 % words * 8, 8))
        if not word >> key % 64 & word >> (key >> shift if shift < 32 else 0) % 64 & 1:
            return None
        (number,) = struct.unpack("<I", self.read(table + 16 + 8 * words + key % buckets * 4, 4))
        for at in range(number, number + _MANY) if number else ():
            (chained,) = struct.unpack("<I", self.read(table + 16 + 8 * words + 4 * buckets + 4 * (at - first), 4))
            symbol = self.read(symbols + 24 * at, 24)
            if chained | 1 == key | 1 and self.text(strings + int.from_bytes(symbol[:4], "little")) == name:
                return symbol
            if chained & 1:
                break
        return None


def check_memory(before: Loaded, after: Loaded, excused: Sequence[range]) -> None:
    """What PT_LOADs had in memory they still have, with the same rights to it, but for the addresses *excused*."""
    for load in before.loads:
        for page in range(load.address // PAGE * PAGE, load.address + load.size, PAGE):
            (there, rights), (now, rights_now) = before.pages[page], after.pages.get(page, (b"", 0))
            if (there, rights) == (now, rights_now):
                continue
            free = [span for span in excused if span.start < page + PAGE and page < span.stop]
            for at in range(max(page, load.address), min(page + PAGE, load.address + load.size)):
                if any(at in span for span in free):
                    continue
                assert now, f"{at:#x} is not mapped any more"
                assert rights == rights_now, f"{at:#x} is mapped with {rights_now}, was {rights}"
                one, other = there[at - page], now[at - page]
                assert one == other, f"{other:#x} at {at:#x}, was {one:#x}"


def check_not_writable(before: Loaded, after: Loaded, excused: Sequence[range]) -> None:
    """No page is new and can be written to, but for the addresses *excused*."""
    for page in after.pages.keys() - before.pages.keys():
        assert not after.pages[page][1] & _W or any(page in span for span in excused), f"{page:#x} is new and writable"


def headers(library: Loaded) -> Iterator[range]:
    """The addresses of the file's header, of the program headers, and of the section headers if they are loaded."""
    yield from library.everywhere(0, 64)
    yield from library.everywhere(library.phoff, 56 * library.phnum)
    yield from library.everywhere(library.shoff, 64 * library.shnum)
