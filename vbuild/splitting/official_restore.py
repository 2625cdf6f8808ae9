"""Undo what patchelf did to a library that a repair tool bundled, so that its SHA-256 can say what it was.

    bytes of the file                      what patchelf did           put back from
    ELF header, program headers            one more PT_LOAD            the official head
    .dynsym, .symtab                       sections numbered anew      the head; names of the sections
    .dynstr, .gnu.hash, .gnu.version_r     moved behind the end, 'Z'   the head; their copies
    .dynamic                               addresses, names, RPATH     its entries, and official names
    section headers                        at the end, or in place     as they are, or put in order again
    everything else                        nothing                     the bundled file

The head is the first kilobytes of the official file, which are had without the rest of it: deflate is read from the
start. What cannot be known for certain is tried, and a hash decides; no guess is ever believed.
https://github.com/NixOS/patchelf/blob/master/src/patchelf.cc
"""

import dataclasses
import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from vbuild.elf.image import ElfImage
from vbuild.elf.layout import ElfLayout, Section, Sliceable
from vbuild.elf.records import (
    LEADS,
    SHN_LORESERVE,
    STT_SECTION,
    DynamicEntry,
    DynamicTag,
    FileHeader,
    ProgramHeader,
    SectionHeader,
    SectionType,
    SegmentType,
    SymbolEntry,
)
from vbuild.errors import BinaryError
from vbuild.files.edited import EditedFile, Part
from vbuild.splitting.official_compare import TOUCHED, DynamicNames, Entry, dynamics, entries_of, named_again, paired

# bytes, some seconds' work; a library that nobody meant ill with takes a few times its size
_MOST_HASHED = 1 << 33
_SMALLEST_HEAD, _LARGEST_HEAD = 1 << 12, 1 << 20


def head_size(data: memoryview, size: int) -> int:
    """How many bytes of an official file of *size* bytes are needed to restore it from its bundled copy *data*."""
    bundled = ElfImage.parse(data)
    kept = [
        section.span.start
        for section in bundled.sections
        if section.is_loaded and section.name != ".interp" and section.header.sh_type not in TOUCHED
    ]
    wanted = min((start for start in kept if start), default=_LARGEST_HEAD)
    return min(max(wanted, _SMALLEST_HEAD), _LARGEST_HEAD, size)


def restored(data: memoryview, head: bytes, size: int) -> Iterator[EditedFile]:
    """What the official file of *size* bytes that begins with *head* may be, if *data* is a bundled copy of it.

    The likeliest comes first; none where *data* cannot be a copy. `BinaryError` where a file is no 64-bit
    little-endian ELF file, or damaged.
    """
    if len(data) < size or len(head) >= size:
        yield from [EditedFile.of(data, [head])] if len(head) == size else []
        return
    bundled = ElfImage.parse(data)
    for official in _Official.of(bundled, head, size):
        fixed = dict(official.pieces())
        for table in official.tables():
            for names in official.texts():
                yield _rope(data, fixed | table | names, size)


def matching(candidates: Iterable[EditedFile], sha256: str) -> EditedFile | None:
    """The first of *candidates* whose SHA-256 is that; what they begin with in common is hashed once.

    Of files made to have thousands of candidates only the first are looked at.
    """
    left = _MOST_HASHED
    known: list[tuple[Part, hashlib._Hash]] = []
    for rope in candidates:
        same = 0
        for (part, _), other in zip(known, rope.parts, strict=False):
            if part != other:
                break
            same += 1
        del known[same:]
        hashing = known[-1][1].copy() if known else hashlib.sha256()
        for part, piece in list(zip(rope.parts, rope.buffers(), strict=True))[same:]:
            hashing.update(piece)
            left -= len(piece)
            known.append((part, hashing.copy()))
        if hashing.hexdigest() == sha256:
            return rope
        if left < 0:
            break
    return None


class RestoredFile(Struct, frozen=True):
    """A rope of which only slices are asked for."""

    rope: EditedFile

    def __len__(self) -> int:
        return self.rope.size

    def __getitem__(self, span: slice, /) -> memoryview:
        start, stop, _ = span.indices(self.rope.size)
        pieces, place = list[memoryview](), 0
        for piece in self.rope.buffers():
            if place < stop and start < place + len(piece):
                pieces.append(piece[max(start - place, 0) : stop - place])
            place += len(piece)
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))


class _Stitched(Struct, frozen=True):
    """The official *head*, and the bundled bytes behind it."""

    head: bytes
    data: memoryview
    size: int

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, span: slice, /) -> memoryview:
        start, stop, _ = span.indices(self.size)
        cut = len(self.head)
        if start >= cut:
            return self.data[start:stop]
        front = self.head[start:stop]
        return memoryview(front if stop <= cut else front + bytes(self.data[cut:stop]))


class _Official(Struct, frozen=True):
    """The headers of the official file: read, or found out; *table* is its section headers where they were lost."""

    bundled: ElfImage
    stitched: _Stitched
    segments: tuple[ProgramHeader, ...]
    sections: tuple[Section, ...]
    table: tuple[int, bytes] | None = None

    @classmethod
    def of(cls, bundled: ElfImage, head: bytes, size: int) -> "Iterator[_Official]":
        """What *bundled* may have been made from, the likeliest first."""
        stitched = _Stitched(head, bundled.data, size)
        try:
            layout = ElfLayout.parse(stitched)
        except BinaryError:  # the section headers that are there now speak of places behind the end
            yield from cls._rebuilt(bundled, stitched)
        else:
            yield cls(bundled, stitched, layout.segments, layout.sections)

    @classmethod
    def _rebuilt(cls, bundled: ElfImage, stitched: _Stitched) -> "Iterator[_Official]":
        header, size = FileHeader.parse(stitched.head), ProgramHeader.layout.size
        places = range(header.e_phoff, header.e_phoff + header.e_phnum * size, size)
        segments = tuple(ProgramHeader.parse(stitched.head, place) for place in places)
        for sections in tables(bundled, Search(stitched.head, segments, stitched)):
            table = b"".join(section.header.pack() for section in sections)
            if len(sections) == header.e_shnum and header.e_shoff + len(table) <= stitched.size:
                yield cls(bundled, stitched, segments, sections, (header.e_shoff, table))

    def tables(self) -> Iterator[dict[int, bytes]]:
        """What ``.dynamic`` may be, by offset; nothing where the head has it."""
        spans = (segment.span for segment in self.segments if segment.p_type == SegmentType.DYNAMIC)
        span = next((span for span in spans if span.stop <= self.stitched.size), None)
        if span is None or span.stop <= len(self.stitched.head):
            yield {}
            return
        slots = len(span) // DynamicEntry.layout.size
        for table in dynamics(entries_of(self.bundled), slots, names=self.names, moved=self.moved):
            yield {span.start: b"".join(DynamicEntry(*entry).pack() for entry in table)}

    def texts(self) -> Iterator[dict[int, bytes]]:
        """What ``.dynstr`` may be, by offset; nothing where the head has it."""
        section = self._named(".dynstr")
        if section is None or section.span.stop <= len(self.stitched.head):
            yield {}
            return
        for text in self.names.texts():
            yield {section.span.start: text}

    @property
    def names(self) -> DynamicNames:
        section, copy = self._named(".dynstr"), self.bundled.section(".dynstr")
        bundled = bytes(self.bundled.view(copy.span)) if copy else b""
        if section is None:
            return DynamicNames(b"", bundled)
        if section.span.stop <= len(self.stitched.head):
            return DynamicNames(self.stitched.head[section.span.start : section.span.stop], bundled)
        return DynamicNames(bundled[: section.header.sh_size], bundled)

    def moved(self, entry: Entry) -> int:
        """The value that *entry* of the bundled ``.dynamic`` has in the official one, names excepted."""
        tag, value = entry
        strings = self._named(".dynstr")
        if tag == DynamicTag.STRSZ and strings:
            return strings.header.sh_size
        name = LEADS.get(tag)
        there = self.bundled.section(name) if name else None
        here = self._named(name) if name else None
        return here.header.sh_addr if there and here and there.header.sh_addr == value else value

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        """What is to be put over the bundled bytes, by offset; ``.dynamic`` excepted."""
        cut = len(self.stitched.head)
        yield 0, self.stitched.head
        if self.table:
            yield self.table
        copies = paired(self.sections, self.bundled.sections)
        homes = {copy.index: self.sections[number] for number, copy in copies.items()}
        for section in self.sections:
            copy = copies.get(section.index)
            kind = section.header.sh_type
            if not copy or section.span.stop <= cut or kind in {SectionType.DYNAMIC, SectionType.NULL}:
                continue
            if kind in {SectionType.SYMTAB, SectionType.DYNSYM}:
                content = bytes(self.bundled.view(copy.span)[: section.header.sh_size])
                yield section.span.start, numberings(content, homes)[self._is_renumbered_twice(homes)]
            elif kind == SectionType.GNU_VERNEED:
                yield section.span.start, named_again(bytes(self.bundled.view(copy.span)), self.names)
            elif copy.span.start != section.span.start:
                yield section.span.start, bytes(self.bundled.view(copy.span)[: section.header.sh_size])

    def _is_renumbered_twice(self, homes: Mapping[int, Section]) -> bool:
        """Whether all symbols are, as those that the head has show."""
        section, copy = self._named(".dynsym"), self.bundled.section(".dynsym")
        if section is None or copy is None or section.span.stop > len(self.stitched.head):
            return False
        official = self.stitched.head[section.span.start : section.span.stop]
        return numberings(bytes(self.bundled.view(copy.span)), homes)[1] == official

    def _named(self, name: str) -> Section | None:
        return next((section for section in self.sections if section.name == name), None)


def _rope(data: memoryview, pieces: Mapping[int, bytes], size: int) -> EditedFile:
    """The first *size* bytes of *data* with *pieces* in it, by offset; the first to come holds its place."""
    parts: list[Part] = []
    end = 0
    for start, piece in sorted(pieces.items()):
        if start > end:
            parts.append(range(end, start))
        parts.append(piece[max(end - start, 0) : max(size - start, 0)])
        end = max(end, start + len(piece))
    parts.append(range(min(end, size), size))
    return EditedFile.of(data, parts)


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


def renumbered(symbols: bytes, homes: Mapping[int, Section]) -> bytes:
    """The table *symbols* with the sections in *homes*, by their numbers here, and the addresses of those."""
    data = bytearray(symbols)
    whole = symbols[: len(symbols) // _SYMBOL.size * _SYMBOL.size]
    for number, (name, info, other, place, value, size) in enumerate(_SYMBOL.iter_unpack(whole)):
        if 0 < place < SHN_LORESERVE and (home := homes.get(place)):
            address = home.header.sh_addr if info & 0xF == STT_SECTION else value
            _SYMBOL.pack_into(data, number * _SYMBOL.size, name, info, other, home.index, address, size)
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
