"""Compare an official library with a bundled one: of what the loader maps, only what repair tools change may differ.

.dynstr              begins with the official names; a path among them may have been overwritten
.dynamic             the same entries, except for RPATH, names and addresses of what was moved
.gnu.version_r       the same, except for hashes in the names of libraries
.dynsym              the same, except for section numbers, which patchelf mixes up and no loader reads
every other section  the same name, type, flags, size and bytes; if it was not moved, the same address
segments             map all these sections, because the loader ignores section headers; PT_DYNAMIC is .dynamic, and
                     leads to the others

Sections that are not mapped, such as symbols for debuggers, may differ: libraries are stripped.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable

from msgspec import Struct

from vbuild.elf.catalogue import hashed
from vbuild.elf.image import ElfImage
from vbuild.elf.layout import Section
from vbuild.elf.records import (
    LEADS,
    SHN_LORESERVE,
    STT_SECTION,
    DynamicEntry,
    DynamicTag,
    SectionType,
    SegmentType,
    SymbolEntry,
    VersionNeed,
)

# what patchelf may move or change in addition to .dynamic; linkers put all of it before the rest
_TOUCHED = frozenset(
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
# patchelf may move these sections and change their tags; it does not move relocations
_MOVED_TO: dict[int, str] = {
    tag: name for tag, name in LEADS.items() if tag not in {DynamicTag.RELA, DynamicTag.JMPREL}
}
_CHANGED = frozenset(
    {
        *(DynamicTag.NEEDED, DynamicTag.SONAME, DynamicTag.RPATH, DynamicTag.RUNPATH),
        *(DynamicTag.STRSZ, DynamicTag.NULL, *_MOVED_TO),
    }
)
# looks ahead only once; otherwise endless names would be read again from each of their slashes
_PATH = re.compile(rb"(?<=\0)(?=[^\0]*?(?:\$ORIGIN|\$\{ORIGIN\}|/))[^\0]+(?=\0)")
_MOST_RECORDS = 0x8000

_SYMBOL, _VERNEED = SymbolEntry.layout, VersionNeed.layout


def difference(official: memoryview, bundled: memoryview) -> str | None:
    """Return how *bundled* differs from *official*, in words, or None if it is the same library.

    Raises `BinaryError` if one of them is not a 64-bit little-endian ELF file, or is damaged.
    """
    here, there = ElfImage.parse(official), ElfImage.parse(bundled)
    one, other = (
        (file.machine, file.header.e_type, file.header.e_flags, file.header.e_entry) for file in (here, there)
    )
    if one != other:
        return "its ELF header says otherwise"
    wanted, copies = ([section for section in file.sections if section.is_loaded] for file in (here, there))
    if Counter(section.name for section in wanted) != Counter(section.name for section in copies):
        return "it has other sections"
    names = _text_of(here), _text_of(there)
    for section, copy in _paired(wanted, copies):
        if not _Pair(here, there, *names).is_same(section, copy):
            return f"its section {section.name} is another"
    unreachable = _unreachable_section(there)
    return f"its segments lead past its section {unreachable}" if unreachable else None


class _Pair(Struct, frozen=True):
    """The official and the bundled file, and the bytes of their ``.dynstr``."""

    official: ElfImage
    bundled: ElfImage
    official_names: bytes
    bundled_names: bytes

    def is_same(self, section: Section, copy: Section) -> bool:
        """Whether the official *section* became *copy*."""
        one, other = section.header, copy.header
        is_free = one.sh_type in _TOUCHED or one.sh_type == SectionType.DYNAMIC
        same_size = one.sh_size == other.sh_size or section.name in {".dynstr", ".dynamic"}
        same_place = one.sh_addr == other.sh_addr or is_free
        if (one.sh_type, one.sh_flags) != (other.sh_type, other.sh_flags) or not (same_size and same_place):
            return False
        here, there = self.official.view(section.span), self.bundled.view(copy.span)
        match one.sh_type:
            case SectionType.DYNAMIC:
                return _dynamic(here, self.official_names) == _dynamic(there, self.bundled_names)
            case SectionType.STRTAB if section.name == ".dynstr":
                return _begins_alike(self.official_names, self.bundled_names)
            case SectionType.GNU_VERNEED:
                return _versions(here, self.official_names) == _versions(there, self.bundled_names)
            case SectionType.DYNSYM:
                return _unnumbered(here) == _unnumbered(there)
        return here == there


def _text_of(image: ElfImage) -> bytes:
    section = image.section(".dynstr")
    return bytes(image.view(section.span)) if section else b""


def _paired(official: Iterable[Section], bundled: Iterable[Section]) -> list[tuple[Section, Section]]:
    """Return each *official* section with its *bundled* one: the first of a name for the first."""
    left: dict[str, list[Section]] = {}
    for section in bundled:
        left.setdefault(section.name, []).append(section)
    return [(section, left[section.name].pop(0)) for section in official]


def _unreachable_section(bundled: ElfImage) -> str | None:
    """Return the section of *bundled* that the loader does not find where its header says, or None if it finds all."""
    for section in bundled.sections:
        has_bytes = section.is_loaded and section.header.sh_type != SectionType.NOBITS and section.header.sh_size > 0
        if has_bytes and bundled.offset(section.header.sh_addr) != section.header.sh_offset:
            return section.name
    dynamic = bundled.section(".dynamic")
    spans = [one.span for one in bundled.segments if one.p_type == SegmentType.DYNAMIC]
    if dynamic and [span.start for span in spans] != [dynamic.span.start]:
        return dynamic.name
    for tag, value in _entries(bundled.view(spans[0])) if spans else ():
        target = bundled.section(_MOVED_TO[tag]) if tag in _MOVED_TO else None
        if target and target.header.sh_addr != value:
            return target.name
    return None


def _entries(dynamic: memoryview) -> tuple[tuple[int, int], ...]:
    """Return the tags and values in *dynamic*, up to DT_NULL."""
    size = DynamicEntry.layout.size
    rows = DynamicEntry.layout.iter_unpack(dynamic[: len(dynamic) // size * size])
    return tuple(itertools.takewhile(lambda row: row[0] != DynamicTag.NULL, rows))


def _dynamic(dynamic: memoryview, names: bytes) -> tuple[Counter[tuple[int, int]], list[str]]:
    """Return the entries of *dynamic* that may not differ, and the libraries that are needed."""
    entries = _entries(dynamic)
    kept = Counter((tag, value) for tag, value in entries if tag not in _CHANGED)
    return kept, [_library(names, value) for tag, value in entries if tag == DynamicTag.NEEDED]


def _library(names: bytes, offset: int) -> str:
    """Return the library's name at *offset*, without the hash and the version that repair tools take from files."""
    name = names[offset : names.find(b"\0", offset)].decode("utf-8", "backslashreplace")
    return (found.name if (found := hashed(name)) else name).partition(".so")[0]


def _versions(versions: memoryview, names: bytes) -> tuple[bytes, list[str]]:
    """Return ``.gnu.version_r`` without the places of libraries' names, and these names."""
    data, place, libraries = bytearray(versions), 0, list[str]()
    for _ in range(_MOST_RECORDS):
        if place + _VERNEED.size > len(data):
            break
        version, count, file, aux, following = _VERNEED.unpack_from(data, place)
        libraries.append(_library(names, file))
        _VERNEED.pack_into(data, place, version, count, 0, aux, following)
        if not following:
            break
        place += following
    return bytes(data), libraries


def _begins_alike(official: bytes, bundled: bytes) -> bool:
    """Whether the *bundled* names begin with the *official* ones, except for paths among those."""
    place = 0
    for match in _PATH.finditer(official):
        if official[place : match.start()] != bundled[place : match.start()]:
            return False
        place = match.end()
    return official[place:] == bundled[place : len(official)]


def _unnumbered(symbols: memoryview) -> bytes:
    """Return the table *symbols* without section numbers and addresses; undefined and absolute symbols stay so."""
    data = bytearray(symbols)
    whole = symbols[: len(symbols) // _SYMBOL.size * _SYMBOL.size]
    for number, (name, info, other, section, value, size) in enumerate(_SYMBOL.iter_unpack(whole)):
        is_numbered = 0 < section < SHN_LORESERVE
        address = 0 if info & 0xF == STT_SECTION else value
        _SYMBOL.pack_into(data, number * _SYMBOL.size, name, info, other, 1 if is_numbered else section, address, size)
    return bytes(data)
