"""Which sections nothing needs once a library is linked: what GNU strip would drop, found without moving an address.

    DEBUG      .debug_*, .zdebug_*, .gdb_index, .stab*, .line and their relocations
    UNNEEDED   those, .symtab, its .strtab and its index table

Kept at both levels, as GNU strip does: .comment, .gnu.build.attributes, build-id, .gnu_debuglink, and .gnu_debugdata.
Object files stay whole: linkers need their symbols.
"""

from enum import StrEnum

from vbuild.elf.image import ElfImage
from vbuild.elf.layout import Section
from vbuild.elf.records import FileType, SectionFlag, SectionType

# bfd's own list, elf.c _bfd_elf_make_section_from_shdr
_DEBUG = (".debug", ".zdebug", ".gnu.debuglto_", ".gnu.linkonce.wi.", ".gdb_index", ".stab", ".line")
_RELOCATIONS = frozenset({SectionType.RELA, SectionType.REL})
_SYMBOLS = frozenset({SectionType.SYMTAB, SectionType.SYMTAB_SHNDX})


class Strip(StrEnum):
    """How much of what the loader does not need is to go."""

    NOTHING = "nothing"
    DEBUG = "debug"
    UNNEEDED = "unneeded"


def stripped(image: ElfImage, strip: Strip) -> tuple[Section, ...]:
    """The sections of *image* that go: never loaded ones, and none that a kept section refers to."""
    is_linked = image.header.e_type in {FileType.DYN, FileType.EXEC}
    if strip is Strip.NOTHING or not is_linked or any(map(_is_elsewhere, image.sections)):
        return ()
    free = {section.index for section in image.sections if section.index and not _is_needed(image, section)}
    gone = {index for index in free if image.sections[index].name.startswith(_DEBUG)}
    if strip is Strip.UNNEEDED:
        symbols = {index for index in free if image.sections[index].header.sh_type in _SYMBOLS}
        gone |= symbols | {image.sections[index].header.sh_link for index in symbols} & free
    gone |= {index for index in free if _relocates(image.sections[index]) in gone}
    while kept := _referred(image, gone):
        gone -= kept
    return tuple(image.sections[index] for index in sorted(gone))


def _is_elsewhere(section: Section) -> bool:
    """Whether it is code that another file has: then this one is the separate debug information of that."""
    return section.header.sh_type == SectionType.NOBITS and bool(section.header.sh_flags & SectionFlag.EXECINSTR)


def _is_needed(image: ElfImage, section: Section) -> bool:
    """Whether the loader may see it, or the file header names it."""
    mapped = any(
        segment.span.start < section.span.stop and section.span.start < segment.span.stop for segment in image.segments
    )
    return section.is_loaded or mapped or section.index == image.header.e_shstrndx


def _relocates(section: Section) -> int:
    """The index of the section that it is the relocations of; 0 for none."""
    return section.header.sh_info if section.header.sh_type in _RELOCATIONS else 0


def _referred(image: ElfImage, gone: set[int]) -> set[int]:
    """Those of *gone* to which a section that stays refers."""
    found = set()
    for section in image.sections:
        if section.index not in gone and section.header.sh_type != SectionType.NULL:
            found.add(section.header.sh_link)
            if section.header.sh_flags & SectionFlag.INFO_LINK or section.header.sh_type in _RELOCATIONS:
                found.add(section.header.sh_info)
    return found & gone
