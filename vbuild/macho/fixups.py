"""The places of a Mach-O file that the loader fills, with an address of the file or of an import.

    LC_DYLD_CHAINED_FIXUPS   in chains through each page
    LC_DYLD_INFO             by small programs, in files for macOS 11 and older

https://github.com/apple-oss-distributions/xnu/blob/main/EXTERNAL_HEADERS/mach-o/fixup-chains.h, loader.h
"""

import struct
from collections.abc import Iterator, Sequence

from vbuild.errors import BinaryError
from vbuild.macho.layout import HALF, WORD, MachoFile, Segment

# places that one file may have
MOST_ROWS = 1 << 21

_INFO, _CHAINED = frozenset({0x22, 0x80000022}), 0x80000034
# of formats of chains those whose pointers are plain: with an address, and with an offset
_BY_ADDRESS, _BY_OFFSET = 2, 6
_NO_CHAIN = 0xFFFF
_IMPORT_SIZES = {1: 4, 2: 8, 3: 16}


def fixups(file: MachoFile) -> Iterator[tuple[int, int, str | None]]:
    """Each place with a target, and a name if it is an import's; what counts comes last."""
    if _CHAINED in file.tables:
        yield from _chained(file, *file.tables[_CHAINED][:2])
    for command in _INFO & file.tables.keys():
        table = file.tables[command]
        yield from ((place, target, None) for place, target in _rebased(file, *table[0:2]))
        for at in (2, 4, 6):
            # weak ones, at 4, are taken from here where this file has them
            yield from _bound(file, *table[at : at + 2], is_lazy=at == 6)  # noqa: PLR2004


def _chained(file: MachoFile, at: int, size: int) -> Iterator[tuple[int, int, str | None]]:
    data = bytes(file.part(at, size))
    try:
        _, starts, imports, symbols, count, form, _ = struct.unpack_from("<7I", data)
        names = list(_imported(data, imports, symbols, count, form))
        (segments,) = HALF.unpack_from(data, starts)
        for number in range(min(segments, len(file.segments))):
            (place,) = HALF.unpack_from(data, starts + 4 + 4 * number)
            if place:
                _, page, kind, offset, _, pages = struct.unpack_from("<IHHQIH", data, starts + place)
                firsts = struct.unpack_from(f"<{pages}H", data, starts + place + 22)
                if kind not in {_BY_ADDRESS, _BY_OFFSET}:
                    raise BinaryError(f"chained pointers of format {kind}, expected 2 or 6")
                for index, first in enumerate(firsts):
                    if first != _NO_CHAIN:
                        start = file.base + offset + page * index + first
                        yield from _chain(file, start, names, is_offset=kind == _BY_OFFSET)
    except (struct.error, IndexError) as error:
        raise BinaryError(f"chained pointers that cannot be read: {error}") from error


def _chain(
    file: MachoFile, place: int, names: list[tuple[str, int]], *, is_offset: bool
) -> Iterator[tuple[int, int, str | None]]:
    while True:
        offset = file.offset(place)
        (word,) = file.row(WORD, offset if offset is not None else -1)
        if word >> 63:
            name, addend = names[word & 0xFFFFFF]
            yield place, addend + (word >> 24 & 0xFF), name
        else:
            target = word & 0xFFFFFFFFF
            yield place, target + (file.base if is_offset else 0), None
        step = word >> 51 & 0xFFF
        if not step:
            return
        place += 4 * step


def _rebased(file: MachoFile, at: int, size: int) -> Iterator[tuple[int, int]]:
    """The places that the program of LC_DYLD_INFO at *at* adds the loader's base to, and what stands there."""
    data = _Program(bytes(file.part(at, size)), file.segments)
    for place in data.rebased():
        if (offset := file.offset(place)) is not None and offset + WORD.size <= file.size:
            yield place, file.row(WORD, offset)[0]


def _bound(file: MachoFile, at: int, size: int, *, is_lazy: bool) -> Iterator[tuple[int, int, str | None]]:
    yield from _Program(bytes(file.part(at, size)), file.segments).bound(is_lazy=is_lazy)


def _imported(data: bytes, imports: int, symbols: int, count: int, form: int) -> Iterator[tuple[str, int]]:
    """The names that chains bind by number, each with an addend."""
    if form not in _IMPORT_SIZES or imports + count * _IMPORT_SIZES[form] > len(data):
        raise BinaryError(f"{count} imports of format {form} in {len(data):#x} bytes")
    for number in range(count):
        at, addend = imports + number * _IMPORT_SIZES[form], 0
        if form == 3:  # noqa: PLR2004
            word, addend = struct.unpack_from("<Qq", data, at)
            place = word >> 32
        else:
            place = HALF.unpack_from(data, at)[0] >> 9
            addend = struct.unpack_from("<i", data, at + 4)[0] if form == 2 else 0  # noqa: PLR2004
        start = symbols + place
        end = data.find(b"\0", start)
        yield data[start : end if end >= 0 else None].decode("utf-8", "backslashreplace").removeprefix("_"), addend


class _Program:
    """A program of LC_DYLD_INFO: an operation in the high half of a byte, and a number in the low one."""

    def __init__(self, data: bytes, segments: Sequence[Segment]) -> None:
        self._data, self._segments = data, segments
        self._at = self._place = self._left = 0

    def _operations(self) -> Iterator[tuple[int, int]]:
        """Each operation with the number in its byte; those that take more read it before the next one comes."""
        while self._at < len(self._data):
            byte = self._data[self._at]
            self._at += 1
            yield byte >> 4, byte & 15

    def _number(self, *, is_signed: bool = False) -> int:
        found = shift = 0
        while True:
            if self._at >= len(self._data) or shift > 70:  # noqa: PLR2004
                raise BinaryError("program of LC_DYLD_INFO is cut short")
            byte = self._data[self._at]
            self._at += 1
            found |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:  # noqa: PLR2004
                return found - (1 << shift) if is_signed and byte & 0x40 else found

    def _text(self) -> str:
        end = self._data.find(b"\0", self._at)
        found = self._data[self._at : end if end >= 0 else None]
        self._at = end + 1 if end >= 0 else len(self._data)
        return found.decode("utf-8", "backslashreplace").removeprefix("_")

    def _go_to(self, segment: int) -> None:
        if segment >= len(self._segments):
            raise BinaryError(f"LC_DYLD_INFO names segment {segment} of {len(self._segments)}")
        self._place = self._segments[segment].addresses.start + self._number()

    def _run(self, count: int, step: int) -> Iterator[int]:
        self._left += count
        if self._left > MOST_ROWS:
            raise BinaryError(f"LC_DYLD_INFO fills more than {MOST_ROWS} places")
        for _ in range(count):
            yield self._place
            self._place = (self._place + step) & 0xFFFFFFFFFFFFFFFF

    def rebased(self) -> Iterator[int]:  # noqa: C901  # one for each operation
        """The places that get the loader's base."""
        for operation, low in self._operations():
            match operation:
                case 0:
                    return
                case 1:
                    pass
                case 2:
                    self._go_to(low)
                case 3:
                    self._place += self._number()
                case 4:
                    self._place += 8 * low
                case 5:
                    yield from self._run(low, 8)
                case 6:
                    yield from self._run(self._number(), 8)
                case 7:
                    yield from self._run(1, 8 + self._number())
                case 8:
                    count = self._number()
                    yield from self._run(count, 8 + self._number())
                case _:
                    raise BinaryError(f"LC_DYLD_INFO has operation {operation << 4 | low:#x}")

    def bound(self, *, is_lazy: bool) -> Iterator[tuple[int, int, str]]:  # noqa: C901, PLR0912  # as above
        """The places that get an import's address, an addend, and its name."""
        name, addend = "", 0
        for operation, low in self._operations():
            match operation:
                case 0:
                    # between lazy ones, which are bound one by one
                    if not is_lazy:
                        return
                case 1 | 3 | 5:
                    pass
                case 2:
                    self._number()
                case 4:
                    name = self._text()
                case 6:
                    addend = self._number(is_signed=True)
                case 7:
                    self._go_to(low)
                case 8:
                    self._place = (self._place + self._number()) & 0xFFFFFFFFFFFFFFFF
                case 9:
                    yield from ((place, addend, name) for place in self._run(1, 8))
                case 10:
                    found = [*self._run(1, 8)]
                    yield from ((place, addend, name) for place in found)
                    self._place = (self._place + self._number()) & 0xFFFFFFFFFFFFFFFF
                case 11:
                    yield from ((place, addend, name) for place in self._run(1, 8 + 8 * low))
                case 12:
                    count = self._number()
                    yield from ((place, addend, name) for place in self._run(count, 8 + self._number()))
                case _:
                    raise BinaryError(f"LC_DYLD_INFO has operation {operation << 4 | low:#x}")
