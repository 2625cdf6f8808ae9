"""The stretches that a cut leaves out when the file is written: holes.

Whole pages of what packing leaves free become holes. So do the sections that GNU strip would drop:

    DEBUG      .debug_*, .zdebug_*, .gdb_index, .stab*, .line and their relocations
    UNNEEDED   those, .symtab, its .strtab and its index table

Kept at both levels, as GNU strip does: .comment, .gnu.build.attributes, build-id, .gnu_debuglink, and .gnu_debugdata.
Object files stay whole: linkers need their symbols.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from vbuild.binary.edits import Strip
from vbuild.elf.image import ElfImage
from vbuild.elf.layout import ElfLayout, Section
from vbuild.elf.records import (
    ElfMachine,
    FileType,
    ProgramHeader,
    SectionFlag,
    SectionHeader,
    SectionType,
    SegmentFlag,
    SegmentType,
)
from vbuild.errors import BinaryError

# bfd's own list, elf.c _bfd_elf_make_section_from_shdr
_DEBUG = (".debug", ".zdebug", ".gnu.debuglto_", ".gnu.linkonce.wi.", ".gdb_index", ".stab", ".line")
_RELOCATIONS = frozenset({SectionType.RELA, SectionType.REL})
_SYMBOLS = frozenset({SectionType.SYMTAB, SectionType.SYMTAB_SHNDX})


def stripped(image: ElfImage, strip: Strip) -> tuple[Section, ...]:
    """The sections of *image* that go: never loaded ones, and none that a kept section refers to."""
    is_linked = image.header.e_type in {FileType.DYN, FileType.EXEC}
    # separate debug information: its code is in another file
    is_debug_file = any(
        section.header.sh_type == SectionType.NOBITS and section.header.sh_flags & SectionFlag.EXECINSTR
        for section in image.sections
    )
    if strip is Strip.NOTHING or not is_linked or is_debug_file:
        return ()
    free = {section.index for section in image.sections if section.index and not _is_needed(image, section)}
    gone = {index for index in free if image.sections[index].name.startswith(_DEBUG)}
    if strip is Strip.UNNEEDED:
        symbols = {index for index in free if image.sections[index].header.sh_type in _SYMBOLS}
        gone |= symbols | {image.sections[index].header.sh_link for index in symbols} & free
    # with the sections go their relocations
    relocating = {index for index in free if image.sections[index].header.sh_type in _RELOCATIONS}
    gone |= {index for index in relocating if image.sections[index].header.sh_info in gone}
    while kept := _referred(image, gone):
        gone -= kept
    return tuple(image.sections[index] for index in sorted(gone))


def _is_needed(image: ElfImage, section: Section) -> bool:
    """Whether the loader may see it, or the file header names it."""
    mapped = any(
        segment.span.start < section.span.stop and section.span.start < segment.span.stop for segment in image.segments
    )
    return section.is_loaded or mapped or section.index == image.header.e_shstrndx


def _referred(image: ElfImage, gone: set[int]) -> set[int]:
    """Those of *gone* to which a section that stays refers."""
    found = set()
    for section in image.sections:
        if section.index not in gone and section.header.sh_type != SectionType.NULL:
            found.add(section.header.sh_link)
            if section.header.sh_flags & SectionFlag.INFO_LINK or section.header.sh_type in _RELOCATIONS:
                found.add(section.header.sh_info)
    return found & gone


# the largest page a kernel for the machine has; what is mapped can only be moved in the file by whole pages
_PAGES: dict[int, int] = {ElfMachine.X86_64: 0x1000}
_LARGEST_PAGE = 0x10000
_HEADER_ALIGNMENT = 8
_PADDING = 16


def page(machine: int) -> int:
    """Bytes: the unit in which loaded parts of a file for *machine* can be moved in it."""
    return _PAGES.get(machine, _LARGEST_PAGE)


class Holes(Struct, frozen=True):
    """File offsets that are left out, ascending and apart."""

    spans: tuple[range, ...]
    _starts: tuple[int, ...]
    _before: tuple[int, ...]

    @classmethod
    def of(cls, spans: Iterable[range]) -> Self:
        kept = tuple(sorted((span for span in spans if span), key=lambda span: span.start))
        return cls(kept, tuple(span.start for span in kept), (0, *accumulate(map(len, kept))))

    @property
    def size(self) -> int:
        """Bytes."""
        return self._before[-1]

    def offset(self, old: int) -> int:
        """Where the byte at *old* is afterwards; for one in a hole, where the hole was."""
        index = bisect_right(self._starts, old)
        if index and old < self.spans[index - 1].stop:
            return self.spans[index - 1].start - self._before[index - 1]
        return old - self._before[index]

    def within(self, span: range) -> tuple[range, ...]:
        """The holes that touch *span*."""
        first = bisect_left([each.stop for each in self.spans], span.start + 1)
        return tuple(each for each in self.spans[first:] if each.start < span.stop)


def split(layout: ElfLayout, holes: Holes) -> tuple[ProgramHeader, ...]:
    """The program headers with each PT_LOAD cut at its *holes*, offsets still those of the file without holes.

    A piece without code is not mapped as executable any more, if it may be read. `BinaryError` if a hole is anywhere
    but inside one PT_LOAD, or outside all segments.
    """
    unit = page(layout.machine)
    found: list[ProgramHeader] = []
    is_moved = any(
        holes.offset(load.p_offset + load.p_filesz) != load.p_offset + load.p_filesz for load in layout.loads
    )
    for segment in layout.segments:
        inner = holes.within(segment.span)
        if segment.p_type != SegmentType.LOAD:
            if inner:
                raise BinaryError(f"hole at {inner[0].start:#x} in a segment of type {segment.p_type:#x}")
            found.append(segment)
            continue
        # offsets behind a hole agree with their addresses in pages, not in the 2 MB a linker had chosen
        aligned = replace(segment, p_align=min(segment.p_align, unit)) if is_moved else segment
        found += _pieces(aligned, inner, layout) if inner else [aligned]
    return tuple(found)


def _pieces(segment: ProgramHeader, holes: Sequence[range], layout: ElfLayout) -> list[ProgramHeader]:
    edges = [segment.p_offset]
    for hole in holes:
        if hole.start < segment.p_offset or hole.stop > segment.span.stop:
            raise BinaryError(f"hole {hole.start:#x} to {hole.stop:#x} is partly outside the PT_LOAD that it touches")
        edges += [hole.start, hole.stop]
    edges.append(segment.span.stop)
    pieces = []
    for start, stop in zip(edges[::2], edges[1::2], strict=True):
        moved = start - segment.p_offset
        beyond = segment.p_memsz - segment.p_filesz if stop == segment.span.stop else 0
        if stop == start and not beyond:
            continue
        piece = replace(
            segment,
            p_offset=start,
            p_vaddr=segment.p_vaddr + moved,
            p_paddr=segment.p_paddr + moved,
            p_filesz=stop - start,
            p_memsz=stop - start + beyond,
        )
        # without the right to be run, what has no other could not be read either
        stays = _has_code(layout, piece) or not piece.p_flags & SegmentFlag.R
        pieces.append(piece if stays else replace(piece, p_flags=piece.p_flags & ~SegmentFlag.X))
    return pieces


def _has_code(layout: ElfLayout, piece: ProgramHeader) -> bool:
    return any(
        section.header.sh_flags & SectionFlag.EXECINSTR
        and section.span.start < piece.span.stop
        and piece.span.start < section.span.stop
        for section in layout.sections
        if section.span
    )


def dead(image: ElfImage, sections: Sequence[Section]) -> tuple[range, ...]:
    """The holes that *sections*, none of them loaded, leave: as large as the alignment of what lies behind allows."""
    gone = {section.index for section in sections}
    kept = [(section.span, section.header.sh_addralign) for section in image.sections if section.index not in gone]
    kept += [(load.span, page(image.machine)) for load in image.loads]
    table = range(image.header.e_shoff, image.header.e_shoff + image.header.e_shnum * SectionHeader.layout.size)
    kept.append((table, _HEADER_ALIGNMENT))
    found = []
    for span in _runs(image, sections):
        unit = max((alignment for other, alignment in kept if other and other.start >= span.stop), default=1) or 1
        found.append(range(span.start, span.start + len(span) // unit * unit))
    return tuple(hole for hole in found if hole)


def _runs(image: ElfImage, sections: Sequence[Section]) -> list[range]:
    """The spans of *sections*, those joined between which there is nothing but padding."""
    found: list[range] = []
    starts = {section.span.start for section in image.sections if section.span}
    for span in sorted((section.span for section in sections if section.span), key=lambda span: span.start):
        gap = range(found[-1].stop, span.start) if found else range(0)
        is_padding = len(gap) < _PADDING and not any(image.view(gap)) and starts.isdisjoint(gap)
        if found and is_padding:
            found[-1] = range(found[-1].start, span.stop)
        else:
            found.append(span)
    return found
