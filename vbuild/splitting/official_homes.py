"""Where the sections that patchelf moved were before, and with that the section headers that it wrote over.

    .gnu.hash 0x158820  ->  the head of the official file has the same bytes at 0x228
    .dynstr   0x158a00  ->  it has them at 0x1a60, and .gnu.version follows at 0x2694
    .dynstr   0xc000    ->  not in the head: 743 bytes of 'Z' at 0xb250, where patchelf put it the first time

patchelf fills what it moves away from with 'Z' ('X' before 0.18), and sorts the section headers by offset.
"""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from vbuild.elf.image import ElfImage
from vbuild.elf.layout import Section, Sliceable
from vbuild.elf.records import (
    SHN_LORESERVE,
    STT_SECTION,
    ProgramHeader,
    SectionHeader,
    SectionType,
    SegmentType,
    SymbolEntry,
)

# what patchelf may move or change, beside .dynamic; linkers put all of it in front of the rest
TOUCHED = frozenset(
    {
        SectionType.NOTE,
        SectionType.HASH,
        SectionType.GNU_HASH,
        SectionType.DYNSYM,
        SectionType.STRTAB,
        SectionType.GNU_VERSYM,
        SectionType.GNU_VERDEF,
        SectionType.GNU_VERNEED,
    }
)
_ALIGNED = 8
_MOST_TABLES = 4
_COMPARED = 256
_SEARCHED = 1 << 24
_FILLED = re.compile(rb"Z{9,}|X{9,}")
_SYMBOL = SymbolEntry.layout

Place = tuple[int, int]


class Search(Struct, frozen=True):
    """What is known of the official file: its *head*, its *segments*, and all of it that nobody changed."""

    head: bytes
    segments: Sequence[ProgramHeader]
    whole: Sliceable

    @property
    def dynamic(self) -> ProgramHeader | None:
        """PT_DYNAMIC"""
        return next((segment for segment in self.segments if segment.p_type == SegmentType.DYNAMIC), None)

    def address(self, offset: int) -> int | None:
        """Where the byte at *offset* is loaded to."""
        for segment in self.segments:
            if segment.p_type == SegmentType.LOAD and offset in segment.span:
                return segment.p_vaddr + offset - segment.p_offset
        return None

    def filled(self) -> tuple[range, ...]:
        """The pieces of the last segment, behind the head, that are filled with 'Z'."""
        loads = (segment for segment in self.segments if segment.p_type == SegmentType.LOAD)
        found = list[range]()
        for last in sorted(loads, key=lambda segment: segment.p_vaddr)[-1:]:
            start, stop = max(last.p_offset, len(self.head)), min(last.span.stop, len(self.whole))
            data = bytes(self.whole[start : min(stop, start + _SEARCHED)]) if start < stop else b""
            found += [range(start + match.start(), start + match.end()) for match in _FILLED.finditer(data)]
        return tuple(found)


def tables(bundled: ElfImage, search: Search) -> Iterator[tuple[Section, ...]]:
    """The section headers of the official file that *bundled* was made from, as they may have been."""
    size = len(search.whole)
    moved = [section for section in bundled.sections if max(section.span.start, section.span.stop) > size]
    known = {section.index: place for section in moved if (place := _place(section, bundled, search))}
    left = [section for section in moved if section.index not in known]
    filled = tuple(_without(search.filled(), known.values())) if left else ()
    choices = itertools.product(_sized(known, moved, bundled, search), _fitted(left, filled))
    for names, others in itertools.islice(choices, _MOST_TABLES):
        if table := _table(bundled, known | names | others, search):
            yield table


def paired(official: Iterable[Section], bundled: Iterable[Section]) -> dict[int, Section]:
    """The section of *bundled* for each number of an *official* one: of the same name, the first for the first."""
    left: dict[str, list[Section]] = {}
    for section in bundled:
        left.setdefault(section.name, []).append(section)
    return {section.index: left[section.name].pop(0) for section in official if left.get(section.name)}


def renumbered(symbols: bytes, homes: Mapping[int, Section]) -> bytes:
    """The table *symbols* with the sections in *homes*, by their numbers here, and the addresses of those."""
    data = bytearray(symbols)
    whole = symbols[: len(symbols) // _SYMBOL.size * _SYMBOL.size]
    for number, (name, info, other, place, value, size) in enumerate(_SYMBOL.iter_unpack(whole)):
        if 0 < place < SHN_LORESERVE and (home := homes.get(place)):
            address = home.header.sh_addr if info & 0xF == STT_SECTION else value
            _SYMBOL.pack_into(data, number * _SYMBOL.size, name, info, other, home.index, address, size)
    return bytes(data)


def unnumbered(symbols: bytes) -> bytes:
    """The table *symbols* without the numbers and addresses of sections: what is undefined, or absolute, stays so."""
    data = bytearray(symbols)
    whole = symbols[: len(symbols) // _SYMBOL.size * _SYMBOL.size]
    for number, (name, info, other, place, value, size) in enumerate(_SYMBOL.iter_unpack(whole)):
        section = 1 if 0 < place < SHN_LORESERVE else place
        address = 0 if info & 0xF == STT_SECTION else value
        _SYMBOL.pack_into(data, number * _SYMBOL.size, name, info, other, section, address, size)
    return bytes(data)


def numberings(symbols: bytes, homes: Mapping[int, Section]) -> tuple[bytes, bytes]:
    """The table *symbols* before sections were numbered anew: once, or twice, as patchelf 0.15 to 0.18 may do."""
    once = renumbered(symbols, homes)
    return once, renumbered(once, homes)


def _place(section: Section, bundled: ElfImage, search: Search) -> Place | None:
    """Where *section* was, offset and size, by PT_DYNAMIC or by what the head has; the size is not that of names."""
    size = section.header.sh_size
    if section.header.sh_type == SectionType.DYNAMIC:
        dynamic = search.dynamic
        return (dynamic.p_offset, dynamic.p_filesz) if dynamic else None
    content = bytes(bundled.view(section.span)[:_COMPARED])
    found = re.search(_pattern(section, content), search.head, re.DOTALL)
    return (found.start(), size) if found and content else None


def _pattern(section: Section, content: bytes) -> bytes:
    """*content* as it was before sections were numbered anew, and names added."""
    free: set[int] = set()
    if section.header.sh_type == SectionType.STRTAB:
        content = content[: content.find(b"\0", len(content) // 4) + 1]
    elif section.header.sh_type == SectionType.DYNSYM:
        content = content[: len(content) // _SYMBOL.size * _SYMBOL.size]
        for number, (_, info, *_) in enumerate(_SYMBOL.iter_unpack(content)):
            start = number * _SYMBOL.size
            free.update(range(start + 6, start + (16 if info & 0xF == STT_SECTION else 8)))
    return b"".join(b"." if place in free else re.escape(content[place : place + 1]) for place in range(len(content)))


def _sized(
    known: Mapping[int, Place], moved: Sequence[Section], bundled: ElfImage, search: Search
) -> Iterator[dict[int, Place]]:
    """The places of the names among *known*: as many bytes as their copy has there, or up to the section behind.

    The copy has more names, and perhaps not the old RPATH; the section behind may be aligned with zeros.
    """
    found = next((one for one in moved if one.header.sh_type == SectionType.STRTAB and one.index in known), None)
    if found is None:
        yield {}
        return
    start = known[found.index][0]
    copy = bytes(bundled.view(found.span))
    pairs = zip(copy, search.head[start:], strict=False)
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    homes = [place for place, _ in known.values()]
    homes += [section.header.sh_offset for section in bundled.sections if section not in moved]
    stop = min((place for place in homes if place > start), default=len(search.head))
    for size in dict.fromkeys((same, len(search.head[start:stop].rstrip(b"\0")) + 1)):
        yield {found.index: (start, size)}


def _without(filled: Iterable[range], known: Iterable[Place]) -> Iterator[range]:
    """The pieces that were *filled*, without those at the places that are *known*."""
    taken = {start: -(-(start + size) // _ALIGNED) * _ALIGNED for start, size in known}
    for piece in filled:
        start = piece.start
        for home in sorted(taken):
            if start <= home < piece.stop:
                yield from [range(start, home)] if home > start else []
                start = taken[home]
        if start < piece.stop:
            yield range(start, piece.stop)


def _fitted(left: Sequence[Section], filled: Iterable[range]) -> Iterator[dict[int, Place]]:
    """The pieces that the names may have filled, if only they are *left*: nothing else grows, and moves twice."""
    if not left:
        yield {}
    elif [section.header.sh_type for section in left] == [SectionType.STRTAB]:
        yield from ({left[0].index: (piece.start, len(piece))} for piece in filled)


def _table(bundled: ElfImage, places: Mapping[int, Place], search: Search) -> tuple[Section, ...] | None:
    """The sections of *bundled* with those that were moved in their *places*, in the order of their offsets."""
    homes = []
    for section in bundled.sections:
        header = section.header
        if section.index in places:
            offset, size = places[section.index]
            address = search.address(offset)
            if address is None:
                return None
            is_moved_again = offset >= len(search.head)
            names = header.sh_type == SectionType.STRTAB and not is_moved_again
            alignment = 1 if names else header.sh_addralign
            header = dataclasses.replace(
                header, sh_addr=address, sh_offset=offset, sh_size=size, sh_addralign=alignment
            )
        homes.append(dataclasses.replace(section, header=header))
    homes.sort(key=lambda section: (section.index > 0, section.header.sh_offset))
    numbers = {section.index: number for number, section in enumerate(homes)}
    return tuple(Section(number, home.name, _linked(home.header, numbers)) for number, home in enumerate(homes))


def _linked(header: SectionHeader, numbers: Mapping[int, int]) -> SectionHeader:
    """*header* with sections by their other *numbers*."""
    is_relocations = header.sh_type in {SectionType.REL, SectionType.RELA}
    info = numbers.get(header.sh_info, header.sh_info) if is_relocations else header.sh_info
    return dataclasses.replace(header, sh_link=numbers.get(header.sh_link, header.sh_link), sh_info=info)
