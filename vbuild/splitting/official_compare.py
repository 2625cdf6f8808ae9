"""Compare an official library with a bundled one: only what repair tools change may differ.

.dynstr              begins with the official names; a path among them may have been overwritten
.dynamic             the same entries, except for RPATH, names and addresses of what was moved
.gnu.version_r       the same, except for hashes in the names of libraries
.dynsym, .symtab     the same, except for section numbers, which patchelf mixes up and no loader reads
.shstrtab            the names of sections are compared instead
every other section  the same name, type, flags, size and bytes; if it is mapped and was not moved, the same address
segments             map all sections, because the loader ignores section headers; PT_DYNAMIC is .dynamic, and leads
                     to the others

The official ``.dynamic`` table follows from that of the bundled copy and the official names:

    d_tag                     what a repair tool did                       the official entry
    NEEDED, SONAME            a name with a hash, appended to the names    the official name it was made from
    RPATH, RUNPATH            removed, changed, or put first               an official path, where linkers put it
    STRTAB, GNU_HASH, ...     follow what was moved                        the address of the official section

Every possible table is given, the most likely first; a hash decides between them.
https://sourceware.org/git/?p=binutils-gdb.git;a=blob;f=bfd/elflink.c (the order in which GNU ld writes the entries)
"""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from vbuild.binary.image import Sliceable
from vbuild.elf.catalogue import hashed
from vbuild.elf.image import ElfImage
from vbuild.elf.layout import ElfLayout, Section
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

Entry = tuple[int, int]

# what patchelf may move or change in addition to .dynamic; linkers put all of it before the rest
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
_SYMBOL = SymbolEntry.layout

_MOST_NAMES = 3
_MOST_TEXTS = 128
# folders below nvidia/ in the RPATHs of NVIDIA's own libraries, each as $ORIGIN/../../cublas/lib
_FOLDERS = (
    *("cublas", "cusparse", "nvjitlink", "cuda_nvrtc", "nvrtc", "nccl", "cusolver", "cudnn", "cuda_runtime"),
    *("cufft", "curand", "cu12", "cu13", "nvidia/cublas", "nvidia/nccl", "nvidia/cu13"),
)
_MOST_TABLES = 32
# each looks ahead only once; otherwise endless names would be read again from each of their slashes
_PATH = re.compile(rb"(?<=\0)(?=[^\0]*?(?:\$ORIGIN|\$\{ORIGIN\}|/))[^\0]+(?=\0)")
_WRITTEN_OVER = re.compile(rb"(?<=\0)(?=[^\0]*?(?:\$ORIGIN|/))[^\0]+\0X*(?=\0)")
_VERNEED = VersionNeed.layout
_MOST_RECORDS = 0x8000


# in the order in which the loader looks for them
PATHS = (DynamicTag.RUNPATH, DynamicTag.RPATH)
NAMED = (DynamicTag.NEEDED, DynamicTag.SONAME)


class DynamicNames(Struct, frozen=True):
    """The official ``.dynstr``, and that of the bundled copy, which begins with it."""

    official: bytes
    bundled: bytes

    def origins(self, offset: int) -> tuple[int, ...]:
        """Return the offsets of official names from which the bundled copy's name at *offset* may come."""
        if offset < len(self.official):
            return (offset,)
        name = self.text(offset)
        built = found.name if (found := hashed(name)) else name
        stem = built.partition(".so")[0] + ".so"
        alike = re.finditer(rb"(?<=\0)" + re.escape(stem.encode()) + rb"(?:\.[^\0]*)?(?=\0)", self.official)
        near = sorted(alike, key=lambda match: (built.encode().startswith(match[0]), len(match[0])), reverse=True)
        return tuple(match.start() for match in near[:_MOST_NAMES])

    def text(self, offset: int) -> str:
        """Return the bundled copy's name at *offset*."""
        return self.bundled[offset : self.bundled.find(b"\0", offset)].decode("utf-8", "backslashreplace")

    def paths(self) -> tuple[int, ...]:
        """Return the offsets of official names that may be an RPATH, the last first: linkers write it last."""
        return tuple(match.start() for match in _PATH.finditer(self.official))[::-1]

    def texts(self) -> Iterator[bytes]:
        """Yield the possible official names: as they are, or with an RPATH where a shorter one has overwritten it."""
        yield self.official
        if lost := _WRITTEN_OVER.search(self.official):
            start, stop = lost.span()
            for text in itertools.islice(_rpaths(stop - start), _MOST_TEXTS):
                yield self.official[:start] + text + self.official[stop:]


def dynamics(
    entries: Sequence[Entry], slots: int, *, names: DynamicNames, moved: Callable[[Entry], int]
) -> Iterator[tuple[Entry, ...]]:
    """Yield the possible official tables of *slots* entries, DT_NULL included; *moved* returns an official address."""
    kept = [(tag, moved((tag, value))) for tag, value in entries if tag not in PATHS]
    origins = [names.origins(value) if tag in NAMED else (value,) for tag, value in kept]
    # a name that resembles no official one was added, with its entry
    tags = [tag for (tag, _), found in zip(kept, origins, strict=True) if found]
    tried: set[tuple[Entry, ...]] = set()
    for values in itertools.islice(itertools.product(*filter(None, origins)), _MOST_NAMES):
        for table in _with_paths(list(zip(tags, values, strict=True)), names.paths()):
            if table not in tried and len(table) < slots and len(tried) < _MOST_TABLES:
                tried.add(table)
                yield (*table, *((DynamicTag.NULL, 0),) * (slots - len(table)))


def entries_of(image: ElfImage) -> tuple[Entry, ...]:
    """Return the tags and values of PT_DYNAMIC, up to DT_NULL."""
    span = next((one.span for one in image.segments if one.p_type == SegmentType.DYNAMIC), range(0))
    return entries_in(image.view(span))


def entries_in(dynamic: memoryview) -> tuple[Entry, ...]:
    """Return the tags and values in *dynamic*, up to DT_NULL."""
    size = DynamicEntry.layout.size
    rows = DynamicEntry.layout.iter_unpack(dynamic[: len(dynamic) // size * size])
    return tuple(itertools.takewhile(lambda row: row[0] != DynamicTag.NULL, rows))


def named_again(versions: bytes, names: DynamicNames) -> bytes:
    """Return ``.gnu.version_r`` of the bundled copy with official names of libraries."""
    data, place = bytearray(versions), 0
    for _ in range(_MOST_RECORDS):
        if place + _VERNEED.size > len(data):
            break
        version, count, file, aux, following = _VERNEED.unpack_from(data, place)
        origin = next(iter(names.origins(file)), file)
        _VERNEED.pack_into(data, place, version, count, origin, aux, following)
        if not following:
            break
        place += following
    return bytes(data)


def _with_paths(table: list[Entry], paths: Sequence[int]) -> Iterator[tuple[Entry, ...]]:
    """Yield *table* with RPATH, RUNPATH or both at every possible place, without them, and without its first entry."""
    behind = next(
        (place for place, (tag, _) in enumerate(table) if tag not in {*NAMED, DynamicTag.SYMBOLIC}), len(table)
    )
    soname = next((place + 1 for place, (tag, _) in enumerate(table) if tag == DynamicTag.SONAME), behind)
    both = tuple(zip(PATHS[::-1], PATHS[::-1], strict=True))
    for place in dict.fromkeys((behind, 0, soname)):
        for path in paths[:_MOST_NAMES]:
            for tags in (*((tag,) for tag in PATHS), tuple(tag for tag, _ in both)):
                yield (*table[:place], *((tag, path) for tag in tags), *table[place:])
    yield tuple(table)
    if table and table[0][0] in NAMED:  # patchelf adds a SONAME, and further NEEDED, at the beginning
        yield tuple(table[1:])


def _rpaths(length: int) -> Iterator[bytes]:
    """Yield the RPATHs of *length* bytes that NVIDIA may have written."""
    for count in range(4):
        for folders in itertools.permutations(_FOLDERS, count):
            text = ":".join(("$ORIGIN", *(f"$ORIGIN/../../{folder}/lib" for folder in folders)))
            for whole in (text, f"{text}:"):
                if len(whole) == length:
                    yield whole.encode()


# patchelf may move these sections and change their tags; it does not move relocations
_MOVED_TO: dict[int, str] = {
    tag: name for tag, name in LEADS.items() if tag not in {DynamicTag.RELA, DynamicTag.JMPREL}
}
_MOVED = frozenset({DynamicTag.STRSZ, DynamicTag.NULL, *_MOVED_TO})


def difference(official: Sliceable, bundled: memoryview, *, below: int | None = None) -> str | None:
    """Return how *bundled* differs from *official*, in words, or None if it is the same library.

    With *below*, only sections that begin before that offset of the official file are compared. Raises `BinaryError` if
    one of them is not a 64-bit little-endian ELF file, or is damaged.
    """
    here, there = ElfLayout.parse(official), ElfImage.parse(bundled)
    one, other = (
        (file.machine, file.header.e_type, file.header.e_flags, file.header.e_entry) for file in (here, there)
    )
    if one != other:
        return "its ELF header says otherwise"
    if Counter(section.name for section in here.sections) != Counter(section.name for section in there.sections):
        return "it has other sections"
    copies = paired(here.sections, there.sections)
    pair = _Pair(official, here, there)
    for section in here.sections:
        copy = copies[section.index]
        is_wanted = below is None or section.span.start < below
        if is_wanted and not pair.is_same(section, copy):
            return f"its section {section.name} is another"
    unreachable = _unreachable_section(there)
    return f"its segments lead past its section {unreachable}" if unreachable else None


class _Pair(Struct, frozen=True):
    """The bytes of the official file, its headers, and the bundled file."""

    data: Sliceable
    official: ElfLayout
    bundled: ElfImage

    @property
    def names(self) -> DynamicNames:
        here, there = self.official.section(".dynstr"), self.bundled.section(".dynstr")
        official = bytes(self.data[here.span.start : here.span.stop]) if here else b""
        return DynamicNames(official, bytes(self.bundled.view(there.span)) if there else b"")

    def is_same(self, section: Section, copy: Section) -> bool:
        """Whether the official *section* became *copy*."""
        one, other = section.header, copy.header
        is_free = one.sh_type in TOUCHED or one.sh_type == SectionType.DYNAMIC
        same_size = one.sh_size == other.sh_size or section.name in {".dynstr", ".dynamic"}
        same_place = one.sh_addr == other.sh_addr or is_free
        if (one.sh_type, one.sh_flags) != (other.sh_type, other.sh_flags) or not (same_size and same_place):
            return False
        here, there = self.data[section.span.start : section.span.stop], self.bundled.view(copy.span)
        match section.header.sh_type:
            case SectionType.DYNAMIC:
                names = self.names
                return _comparable(here, DynamicNames(names.official, names.official)) == _comparable(there, names)
            case SectionType.STRTAB if section.name == ".dynstr":
                return _begins_alike(self.names)
            case SectionType.GNU_VERNEED:
                return named_again(bytes(there), self.names) == here
            case SectionType.SYMTAB | SectionType.DYNSYM:
                return unnumbered(bytes(there)) == unnumbered(bytes(here))
        # the names of sections are compared elsewhere
        return section.index == self.official.header.e_shstrndx or here == there


def _unreachable_section(bundled: ElfImage) -> str | None:
    """Return the section of *bundled* that the loader does not find where its header says, or None if it finds all."""
    for section in bundled.sections:
        has_bytes = section.is_loaded and section.header.sh_type != SectionType.NOBITS and section.header.sh_size > 0
        if has_bytes and bundled.offset(section.header.sh_addr) != section.header.sh_offset:
            return section.name
    dynamic = bundled.section(".dynamic")
    spans = [one.span.start for one in bundled.segments if one.p_type == SegmentType.DYNAMIC]
    if dynamic and spans != [dynamic.span.start]:
        return dynamic.name
    for tag, value in entries_of(bundled):
        target = bundled.section(_MOVED_TO[tag]) if tag in _MOVED_TO else None
        if target and target.header.sh_addr != value:
            return target.name
    return None


def _comparable(dynamic: memoryview, names: DynamicNames) -> tuple[Counter[Entry], list[str]]:
    """Return the entries of *dynamic* that may not differ, and the needed libraries without hashes in their names."""
    entries = entries_in(dynamic)
    kept = Counter((tag, value) for tag, value in entries if tag not in {*NAMED, *PATHS, *_MOVED})
    needed = [names.text(value) for tag, value in entries if tag == NAMED[0]]
    # without the version, too, which repair tools take from the file's name
    return kept, [(found.name if (found := hashed(name)) else name).partition(".so")[0] for name in needed]


def _begins_alike(names: DynamicNames) -> bool:
    """Whether the bundled names begin with the official ones, except for paths among those."""
    place = 0
    for start in sorted(names.paths()):
        if names.official[place:start] != names.bundled[place:start]:
            return False
        place = names.official.find(b"\0", start)
    return names.official[place:] == names.bundled[place : len(names.official)]


def paired(official: Iterable[Section], bundled: Iterable[Section]) -> dict[int, Section]:
    """Return the section of *bundled* for the index of each *official* one: the first of a name for the first."""
    left: dict[str, list[Section]] = {}
    for section in bundled:
        left.setdefault(section.name, []).append(section)
    return {section.index: left[section.name].pop(0) for section in official if left.get(section.name)}


def unnumbered(symbols: bytes) -> bytes:
    """Return the table *symbols* without section numbers and addresses; undefined and absolute symbols stay so."""
    return _with_sections(symbols, lambda section, _: (1 if 0 < section < SHN_LORESERVE else section, 0))


def numberings(symbols: bytes, homes: Mapping[int, Section]) -> tuple[bytes, bytes]:
    """Return the table *symbols* before patchelf renumbered sections: once, or twice, as 0.15 to 0.18 may do.

    *homes* are the official sections by their present numbers.
    """

    def official(section: int, value: int) -> tuple[int, int]:
        home = homes.get(section) if 0 < section < SHN_LORESERVE else None
        return (home.index, home.header.sh_addr) if home else (section, value)

    once = _with_sections(symbols, official)
    return once, _with_sections(once, official)


def _with_sections(symbols: bytes, changed: Callable[[int, int], tuple[int, int]]) -> bytes:
    """Return the table *symbols* with the section, and in section symbols the address, that *changed* returns."""
    data = bytearray(symbols)
    whole = symbols[: len(symbols) // _SYMBOL.size * _SYMBOL.size]
    for number, (name, info, other, old, value, size) in enumerate(_SYMBOL.iter_unpack(whole)):
        section, address = changed(old, value)
        if info & 0xF != STT_SECTION:
            address = value
        _SYMBOL.pack_into(data, number * _SYMBOL.size, name, info, other, section, address, size)
    return bytes(data)
