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

import hashlib
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from vbuild.elf.image import ElfImage
from vbuild.elf.layout import ElfLayout, Section
from vbuild.elf.records import LEADS, DynamicEntry, DynamicTag, FileHeader, ProgramHeader, SectionType, SegmentType
from vbuild.errors import BinaryError
from vbuild.files.edited import EditedFile, Part
from vbuild.splitting.official_compare import DynamicNames, Entry, dynamics, entries_of, named_again
from vbuild.splitting.official_homes import TOUCHED, Search, numberings, paired, tables

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
