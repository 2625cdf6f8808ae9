"""Undo what patchelf did to a library that a repair tool bundled, so that its SHA-256 shows what it was.

    bytes of the file                      what patchelf did           restored from
    ELF header, program headers            one more PT_LOAD            the official head
    .dynsym, .symtab                       sections renumbered         the head; names of the sections
    .dynstr, .gnu.hash, .gnu.version_r     moved to the end, 'Z'       the head; their copies
    .dynamic                               addresses, names, RPATH     its entries, and official names
    section headers                        at the end, or in place     as they are, or sorted again
    everything else                        nothing                     the bundled file

The head is the first kilobytes of the official file; deflate is read from the start, so no more is transferred. What is
not certain is tried, and a hash decides; no guess is ever believed.

The original places of moved sections, and with them the overwritten section headers:

    .gnu.hash 0x158820  ->  the head of the official file has the same bytes at 0x228
    .dynstr   0x158a00  ->  it has them at 0x1a60, and .gnu.version follows at 0x2694
    .dynstr   0xc000    ->  not in the head: 743 bytes of 'Z' at 0xb250, where patchelf put it the first time

patchelf fills the place of a moved section with 'Z' ('X' before 0.18), and sorts the section headers by offset.
https://github.com/NixOS/patchelf/blob/master/src/patchelf.cc
"""

import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from vbuild.binary.image import Sliceable
from vbuild.elf.image import ElfImage
from vbuild.elf.layout import ElfLayout, Section
from vbuild.elf.records import (
    LEADS,
    STT_SECTION,
    DynamicEntry,
    DynamicTag,
    FileHeader,
    ProgramHeader,
    SectionType,
    SegmentType,
    SymbolEntry,
)
from vbuild.errors import BinaryError
from vbuild.files.edited import EditedFile, Part
from vbuild.splitting.official_compare import (
    TOUCHED,
    DynamicNames,
    Entry,
    dynamics,
    entries_of,
    named_again,
    numberings,
    paired,
)

# bytes, some seconds' work; a library that is not an attack needs a few times its size
_MOST_HASHED = 1 << 33
_SMALLEST_HEAD, _LARGEST_HEAD = 1 << 12, 1 << 20
_ALIGNED = 8
_MOST_TABLES = 4
_COMPARED = 256
_SEARCHED = 1 << 24
_FILLED = re.compile(rb"Z{9,}|X{9,}")
_SYMBOL = SymbolEntry.layout

Place = tuple[int, int]


def head_size(data: memoryview, size: int) -> int:
    """Return how many bytes of an official file of *size* bytes restore it from its bundled copy *data*."""
    bundled = ElfImage.parse(data)
    kept = [
        section.span.start
        for section in bundled.sections
        if section.is_loaded and section.name != ".interp" and section.header.sh_type not in TOUCHED
    ]
    wanted = min((start for start in kept if start), default=_LARGEST_HEAD)
    return min(max(wanted, _SMALLEST_HEAD), _LARGEST_HEAD, size)


def restored(data: memoryview, head: bytes, size: int) -> Iterator[EditedFile]:
    """Yield the possible official files of *size* bytes that begin with *head*, if *data* is a bundled copy of one.

    The most likely comes first; nothing is yielded if *data* cannot be a copy. Raises `BinaryError` if a file is not a
    64-bit little-endian ELF file, or is damaged.
    """
    if len(data) < size or len(head) >= size:
        yield from [EditedFile.of(data, [head])] if len(head) == size else []
        return
    bundled = ElfImage.parse(data)
    for official in _Official.of(bundled, head, size):
        fixed = dict(official.pieces())
        for table in official.tables():
            for names in official.texts():
                yield _overlaid(data, fixed | table | names, size)


def matching(candidates: Iterable[EditedFile], sha256: str) -> EditedFile | None:
    """Return the first of *candidates* with *sha256*, or None; a common beginning is hashed once.

    Of files made to have thousands of candidates only the first are tried.
    """
    left = _MOST_HASHED
    known: list[tuple[Part, hashlib._Hash]] = []
    for file in candidates:
        same = 0
        for (part, _), other in zip(known, file.parts, strict=False):
            if part != other:
                break
            same += 1
        del known[same:]
        hashing = known[-1][1].copy() if known else hashlib.sha256()
        for part, piece in list(zip(file.parts, file.buffers(), strict=True))[same:]:
            hashing.update(piece)
            left -= len(piece)
            known.append((part, hashing.copy()))
        if hashing.hexdigest() == sha256:
            return file
        if left < 0:
            break
    return None


class RestoredFile(Struct, frozen=True):
    """A restored file of which only slices are read."""

    file: EditedFile

    def __len__(self) -> int:
        return self.file.size

    def __getitem__(self, span: slice, /) -> memoryview:
        start, stop, _ = span.indices(self.file.size)
        pieces, place = list[memoryview](), 0
        for piece in self.file.buffers():
            if place < stop and start < place + len(piece):
                pieces.append(piece[max(start - place, 0) : stop - place])
            place += len(piece)
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))


class _Official(Struct, frozen=True):
    """The headers of the official file; *table* is its section headers if they were reconstructed.

    *joined* is the official *head*, followed by the bundled bytes.
    """

    bundled: ElfImage
    head: bytes
    joined: RestoredFile
    segments: tuple[ProgramHeader, ...]
    sections: tuple[Section, ...]
    table: tuple[int, bytes] | None = None

    @classmethod
    def of(cls, bundled: ElfImage, head: bytes, size: int) -> "Iterator[_Official]":
        """Yield what *bundled* may have been made from, the most likely first."""
        joined = RestoredFile(EditedFile.of(bundled.data, [head, range(len(head), size)]))
        try:
            layout = ElfLayout.parse(joined)
        except BinaryError:  # the present section headers are for places after the official end
            header, step = FileHeader.parse(head), ProgramHeader.layout.size
            places = range(header.e_phoff, header.e_phoff + header.e_phnum * step, step)
            segments = tuple(ProgramHeader.parse(head, place) for place in places)
            for sections in tables(bundled, Search(head, segments, joined)):
                table = b"".join(section.header.pack() for section in sections)
                if len(sections) == header.e_shnum and header.e_shoff + len(table) <= size:
                    yield cls(bundled, head, joined, segments, sections, (header.e_shoff, table))
        else:
            yield cls(bundled, head, joined, layout.segments, layout.sections)

    def tables(self) -> Iterator[dict[int, bytes]]:
        """Yield the possible contents of ``.dynamic``, by offset; nothing to change if the head has it."""
        spans = (segment.span for segment in self.segments if segment.p_type == SegmentType.DYNAMIC)
        span = next((span for span in spans if span.stop <= len(self.joined)), None)
        if span is None or span.stop <= len(self.head):
            yield {}
            return
        slots = len(span) // DynamicEntry.layout.size
        for table in dynamics(entries_of(self.bundled), slots, names=self.names, moved=self.moved):
            yield {span.start: b"".join(DynamicEntry(*entry).pack() for entry in table)}

    def texts(self) -> Iterator[dict[int, bytes]]:
        """Yield the possible contents of ``.dynstr``, by offset; nothing to change if the head has it."""
        section = self._named(".dynstr")
        if section is None or section.span.stop <= len(self.head):
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
        if section.span.stop <= len(self.head):
            return DynamicNames(self.head[section.span.start : section.span.stop], bundled)
        return DynamicNames(bundled[: section.header.sh_size], bundled)

    def moved(self, entry: Entry) -> int:
        """Return the official value of *entry* of the bundled ``.dynamic``, except for names."""
        tag, value = entry
        strings = self._named(".dynstr")
        if tag == DynamicTag.STRSZ and strings:
            return strings.header.sh_size
        name = LEADS.get(tag)
        there = self.bundled.section(name) if name else None
        here = self._named(name) if name else None
        return here.header.sh_addr if there and here and there.header.sh_addr == value else value

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        """Yield what replaces bundled bytes, by offset, except ``.dynamic``."""
        cut = len(self.head)
        yield 0, self.head
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
        """Whether patchelf renumbered all symbols twice, judged by those in the head."""
        section, copy = self._named(".dynsym"), self.bundled.section(".dynsym")
        if section is None or copy is None or section.span.stop > len(self.head):
            return False
        official = self.head[section.span.start : section.span.stop]
        return numberings(bytes(self.bundled.view(copy.span)), homes)[1] == official

    def _named(self, name: str) -> Section | None:
        return next((section for section in self.sections if section.name == name), None)


def _overlaid(data: memoryview, pieces: Mapping[int, bytes], size: int) -> EditedFile:
    """Return the first *size* bytes of *data* with *pieces* in them, by offset; of two that overlap the first wins."""
    parts: list[Part] = []
    end = 0
    for start, piece in sorted(pieces.items()):
        if start > end:
            parts.append(range(end, start))
        parts.append(piece[max(end - start, 0) : max(size - start, 0)])
        end = max(end, start + len(piece))
    parts.append(range(min(end, size), size))
    return EditedFile.of(data, parts)


class Search(Struct, frozen=True):
    """What is known of the official file: its *head*, its *segments*, and its bytes as far as they are unchanged."""

    head: bytes
    segments: Sequence[ProgramHeader]
    whole: Sliceable

    def address(self, offset: int) -> int | None:
        """Return the address of the byte at *offset*, or None if it is not loaded."""
        for segment in self.segments:
            if segment.p_type == SegmentType.LOAD and offset in segment.span:
                return segment.p_vaddr + offset - segment.p_offset
        return None

    def filled(self) -> tuple[range, ...]:
        """Return the ranges after the head, in the last segment, that are filled with 'Z'."""
        loads = (segment for segment in self.segments if segment.p_type == SegmentType.LOAD)
        found = list[range]()
        for last in sorted(loads, key=lambda segment: segment.p_vaddr)[-1:]:
            start, stop = max(last.p_offset, len(self.head)), min(last.span.stop, len(self.whole))
            data = bytes(self.whole[start : min(stop, start + _SEARCHED)]) if start < stop else b""
            found += [range(start + match.start(), start + match.end()) for match in _FILLED.finditer(data)]
        return tuple(found)


def tables(bundled: ElfImage, search: Search) -> Iterator[tuple[Section, ...]]:
    """Yield the possible section headers of the official file from which *bundled* was made."""
    size = len(search.whole)
    moved = [section for section in bundled.sections if max(section.span.start, section.span.stop) > size]
    known = {section.index: place for section in moved if (place := _place(section, bundled, search))}
    left = [section for section in moved if section.index not in known]
    others: list[dict[int, Place]] = [] if left else [{}]
    if [section.header.sh_type for section in left] == [SectionType.STRTAB]:
        # only names grow, and move twice: they may have been in any range that is filled now
        filled = _unoccupied(search.filled(), known.values())
        others = [{left[0].index: (piece.start, len(piece))} for piece in filled]
    choices = itertools.product(_known_name_places(known, moved, bundled, search), others)
    for names, more in itertools.islice(choices, _MOST_TABLES):
        if table := _table(bundled, known | names | more, search):
            yield table


def _place(section: Section, bundled: ElfImage, search: Search) -> Place | None:
    """Return the original offset and size of *section*, by PT_DYNAMIC or by the head; not the size of names."""
    size = section.header.sh_size
    if section.header.sh_type == SectionType.DYNAMIC:
        dynamic = (segment for segment in search.segments if segment.p_type == SegmentType.DYNAMIC)
        return next(((segment.p_offset, segment.p_filesz) for segment in dynamic), None)
    content = bytes(bundled.view(section.span)[:_COMPARED])
    found = re.search(_pattern(section, content), search.head, re.DOTALL)
    return (found.start(), size) if found and content else None


def _pattern(section: Section, content: bytes) -> bytes:
    """Return a pattern for *content* before sections were renumbered and names added."""
    free: set[int] = set()
    if section.header.sh_type == SectionType.STRTAB:
        content = content[: content.find(b"\0", len(content) // 4) + 1]
    elif section.header.sh_type == SectionType.DYNSYM:
        content = content[: len(content) // _SYMBOL.size * _SYMBOL.size]
        for number, (_, info, *_) in enumerate(_SYMBOL.iter_unpack(content)):
            start = number * _SYMBOL.size
            free.update(range(start + 6, start + (16 if info & 0xF == STT_SECTION else 8)))
    return b"".join(b"." if place in free else re.escape(content[place : place + 1]) for place in range(len(content)))


def _known_name_places(
    known: Mapping[int, Place], moved: Sequence[Section], bundled: ElfImage, search: Search
) -> Iterator[dict[int, Place]]:
    """Yield the place of the names among *known*, with the size of what the copy shares, or up to the next section.

    The copy has more names, and perhaps not the old RPATH; the next section may be aligned with zeros.
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


def _unoccupied(filled: Iterable[range], known: Iterable[Place]) -> Iterator[range]:
    """Yield the *filled* ranges without the places that are *known*."""
    taken = {start: -(-(start + size) // _ALIGNED) * _ALIGNED for start, size in known}
    for piece in filled:
        start = piece.start
        for home in sorted(taken):
            if start <= home < piece.stop:
                yield from [range(start, home)] if home > start else []
                start = taken[home]
        if start < piece.stop:
            yield range(start, piece.stop)


def _table(bundled: ElfImage, places: Mapping[int, Place], search: Search) -> tuple[Section, ...] | None:
    """Return the sections of *bundled* with moved ones in *places*, by offset, or None if a place is not loaded."""
    homes = []
    for section in bundled.sections:
        header = section.header
        if section.index in places:
            offset, size = places[section.index]
            address = search.address(offset)
            if address is None:
                return None
            is_first_place = offset < len(search.head)
            alignment = 1 if header.sh_type == SectionType.STRTAB and is_first_place else header.sh_addralign
            header = replace(header, sh_addr=address, sh_offset=offset, sh_size=size, sh_addralign=alignment)
        homes.append(replace(section, header=header))
    homes.sort(key=lambda section: (section.index > 0, section.header.sh_offset))
    numbers = {section.index: number for number, section in enumerate(homes)}
    found = []
    for number, home in enumerate(homes):
        link, info = home.header.sh_link, home.header.sh_info
        if home.header.sh_type in {SectionType.REL, SectionType.RELA}:
            info = numbers.get(info, info)
        header = replace(home.header, sh_link=numbers.get(link, link), sh_info=info)
        found.append(Section(number, home.name, header))
    return tuple(found)
