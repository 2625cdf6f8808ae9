"""Whether two files are one library: what the loader maps of both is the same, but for what tools write of themselves.

What repair tools change, of the sections that the loader maps:

    .dynstr              nothing refers to it but the tables below, which are compared with its strings in their place
    .dynamic             RPATH, SONAME, names of libraries but for hashes, and addresses of what was moved
    .gnu.version_r       hashes in the names of libraries
    .dynsym              section numbers, which patchelf mixes up and no loader reads
    every other section  nothing; the address, if patchelf may have moved it
    segments             map all these sections, because the loader ignores section headers; PT_DYNAMIC is .dynamic,
                         and leads to the others

What differs between two builds of the same source, each a `Trace` that is proved where it stands:

    build-id   the description of the note NT_GNU_BUILD_ID, a hash of the rest
    date       Mon Sep 16 16:56:39 2024     as asctime and date write it
               Sep 16 2024 16:56:39         __DATE__ and __TIME__ together, or one of them that is all of a text
               built on 2024-09-16T16:56Z   any other spelling, after a word that says what it is a date of
    host       root@666f74fa2056            the name that a container has, a random number
               Linux 666f74fa2056 5.15.0-1 #1 SMP ... x86_64    what uname prints
    path       /tmp/pip-req-build-x1y2z3a4/ a folder with a random name

The last three count in texts of .rodata and .data, printable up to a NUL, and only if all the rest of the text is the
same. A date without one of these marks may be part of a version, as in OpenSSL 3.1.1 30 May 2023.
https://refspecs.linuxfoundation.org/elf/gabi4+/ch5.dynamic.html https://en.cppreference.com/w/c/preprocessor/replace
"""

import itertools
import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum

from msgspec import Struct

from vbuild.elf.catalogue import hashed
from vbuild.elf.image import ElfImage, Section, StringTable
from vbuild.elf.read import Dynamic, version_definitions, version_needs
from vbuild.elf.records import (
    LEADS,
    PATH_TAGS,
    SHN_LORESERVE,
    STRING_TAGS,
    STT_SECTION,
    DynamicTag,
    SectionType,
    SegmentType,
    SymbolEntry,
)

# by the names of libraries that a file needs, what is the same in both files
Names = Mapping[str, str]

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
# patchelf may move these sections and change their tags; it does not move relocations
_MOVED_TO: dict[int, str] = {
    tag: name for tag, name in LEADS.items() if tag not in {DynamicTag.RELA, DynamicTag.JMPREL}
}
_CHANGED = frozenset({*STRING_TAGS, DynamicTag.STRSZ, DynamicTag.NULL, *_MOVED_TO})
_LIBRARY_TAGS = STRING_TAGS - PATH_TAGS - {DynamicTag.SONAME}
_BUILD_ID = ".note.gnu.build-id"
_NOTE = struct.Struct("<III4s")
_NT_GNU_BUILD_ID = 3
_WITH_TEXT = re.compile(r"\.rodata(\..*)?|\.data")
_BLOCK = 1 << 12
_TEXT = bytes([*b"\t\n\r", *range(0x20, 0x7F)])
_LONGEST = 1 << 16  # bytes of a text
_SHOWN, _SHOWN_BYTES = 16, 4


class Trace(StrEnum):
    BUILD_ID = "build-id"
    DATE = "date"
    HOST = "host"
    PATH = "path"


_MONTH = rb"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_TIME = rb"\d\d:\d\d(?::\d\d(?:\.\d+)?)?"
_MACRO_DATE, _MACRO_TIME = _MONTH + rb" [ 123]\d \d{4}", rb"\d\d:\d\d:\d\d"
_ISO = rb"\d{4}-\d\d-\d\d(?:[T ]" + _TIME + rb")?"
_TRACES: tuple[tuple[Trace, re.Pattern[bytes]], ...] = (
    (
        Trace.DATE,
        re.compile(
            rb"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) "
            + _MONTH
            + rb" [ 0123]\d "
            + _MACRO_TIME
            + rb" (?:[A-Z]{3,4} )?\d{4}\b"
            rb"|\b" + _MACRO_DATE + rb"(?:,? | at )" + _MACRO_TIME + rb"\b"
            rb"|\A(?:" + _MACRO_DATE + rb"|" + _MACRO_TIME + rb")\Z"
            rb"|(?<![\w.])(?i:built|compiled|configured|generated|build (?:date|time))(?: (?:on|at))?[:=]? *"
            rb"(?:" + _ISO + rb"|" + _MACRO_DATE + rb")(?![\w.-])"
        ),
    ),
    (
        Trace.HOST,
        re.compile(
            rb"(?<=@)[0-9a-f]{12}\b"
            rb"|\bLinux [\w.-]+ \d+\.\d+[\w.+~-]* #\d[^\n]*? (?:x86_64|aarch64|i686|ppc64le|s390x|armv7l|riscv64)\b"
        ),
    ),
    # tempfile of Python, pip, and mktemp
    (Trace.PATH, re.compile(rb"(?<=/)(?:pip-(?:[a-z]+-)+|tmp)(?:[a-z0-9_]{8})(?![\w.-])|(?<=/)tmp\.[A-Za-z0-9]{10}\b")),
)


class Comparison(Struct, frozen=True):
    """How a file differs from another, or, if *difference* is empty, the bytes in which two builds of it do."""

    difference: str = ""
    traces: Counter[Trace] = Counter()


def without_hash(name: str) -> str:
    """The name of a library by which repair tools leave it recognisable: neither hash nor version."""
    return (parts.name if (parts := hashed(name)) else name).partition(".so")[0]


def compared(
    expected: memoryview,
    other: memoryview,
    *,
    called: tuple[Names, Names] | None = None,
) -> Comparison:
    """Whether *other* is the library *expected*, or another build of it, if both need libraries as they are *called*.

    `BinaryError` if one of them is not a 64-bit little-endian ELF file, or is damaged.
    """
    names, other_names = called or (None, None)
    here, there = _File(ElfImage.parse(expected), names), _File(ElfImage.parse(other), other_names)
    traces = Counter[Trace]()
    difference = next(_differences(here, there, traces if called else None), "")
    return Comparison(difference, Counter() if difference else traces)


class _File(Struct, frozen=True, eq=False):
    image: ElfImage
    names: Names | None

    def called(self, name: str) -> str:
        return without_hash(name) if self.names is None else self.names.get(name, name)

    @property
    def identity(self) -> tuple[int | bytes, ...]:
        header = self.image.header
        return header.e_ident, header.e_version, header.e_machine, header.e_type, header.e_flags

    @property
    def mapping(self) -> list[tuple[int, ...]]:
        """What the loader does with each segment; how much of a PT_LOAD has bytes follows from its sections."""
        return [
            (row.p_type, row.p_flags, row.p_vaddr, row.p_align, 0 if row.p_type == SegmentType.LOAD else row.p_memsz)
            for row in self.image.segments
        ]

    def meaning(self, section: Section) -> object:
        """The bytes of *section*, or what it refers to by names of ``.dynstr``."""
        view = self.image.view(section.span)
        match section.header.sh_type:
            case SectionType.DYNAMIC:
                dynamic = Dynamic.read(self.image)
                fixed = Counter((row.tag, row.value) for row in dynamic.rows if row.tag not in _CHANGED)
                names = ((row.tag, dynamic.text(row.value)) for row in dynamic.rows if row.tag in _LIBRARY_TAGS)
                return fixed, [(tag, self.called(name)) for tag, name in names]
            case SectionType.STRTAB if section.name == ".dynstr":
                return None
            case SectionType.GNU_VERNEED:
                dynamic = Dynamic.read(self.image)
                return [
                    (
                        *(need.vn_version, need.vn_cnt, self.called(dynamic.text(need.vn_file))),
                        *((row.vna_hash, row.vna_flags, row.vna_other, dynamic.text(row.vna_name)) for row in rows),
                    )
                    for need, rows in version_needs(self.image, dynamic.offset(DynamicTag.VERNEED))
                ]
            case SectionType.GNU_VERDEF:
                dynamic = Dynamic.read(self.image)
                definitions = version_definitions(self.image, dynamic.offset(DynamicTag.VERDEF))
                return [
                    (row.vd_version, row.vd_flags, row.vd_ndx, row.vd_cnt, row.vd_hash, [*map(dynamic.text, names)])
                    for row, names in definitions
                ]
            case SectionType.DYNSYM:
                return [*self._symbols(view)]
        return view

    def _symbols(self, table: memoryview) -> Iterator[tuple[str | int, ...]]:
        section = self.image.section(".dynstr")
        names = StringTable(bytes(self.image.view(section.span)) if section else b"\0")
        whole = table[: len(table) // SymbolEntry.layout.size * SymbolEntry.layout.size]
        for name, info, other, number, value, size in SymbolEntry.layout.iter_unpack(whole):
            is_numbered = 0 < number < SHN_LORESERVE
            address = 0 if info & 0xF == STT_SECTION else value
            yield names.at(name), info, other, 1 if is_numbered else number, address, size
        yield (bytes(table[len(whole) :]).hex(),)

    def unreachable_section(self) -> str | None:
        """A section that the loader does not find where its header says, or None."""
        for section in self.image.sections:
            has_bytes = (
                section.is_loaded and section.header.sh_type != SectionType.NOBITS and section.header.sh_size > 0
            )
            if has_bytes and self.image.offset(section.header.sh_addr) != section.header.sh_offset:
                return section.name
        dynamic = self.image.section(".dynamic")
        spans = [segment.span for segment in self.image.segments if segment.p_type == SegmentType.DYNAMIC]
        if dynamic and [span.start for span in spans] != [dynamic.span.start]:
            return dynamic.name
        for row in self.image.dynamic_rows():
            target = self.image.section(_MOVED_TO[row.tag]) if row.tag in _MOVED_TO else None
            if target and target.header.sh_addr != row.value:
                return target.name
        return None


def _differences(here: _File, there: _File, traces: Counter[Trace] | None) -> Iterator[str]:
    """What differs in other bytes than those of *traces*, which are counted; None if there may be none."""
    if here.identity != there.identity:
        yield "its ELF header says otherwise"
    if traces is not None and here.mapping != there.mapping:
        yield "its program headers are others"
    wanted, copies = ([section for section in file.image.sections if section.is_loaded] for file in (here, there))
    if Counter(section.name for section in wanted) != Counter(section.name for section in copies):
        yield "it has other sections"
    for section, copy in _paired(wanted, copies):
        yield from _section_differences((here, section), (there, copy), traces)
    if here.image.header.e_entry != there.image.header.e_entry:
        yield "its entry point is another"
    for unreachable in filter(None, (file.unreachable_section() for file in (here, there))):
        yield f"its segments lead past its section {unreachable}"


def _section_differences(
    expected: tuple[_File, Section], other: tuple[_File, Section], traces: Counter[Trace] | None
) -> Iterator[str]:
    (here, section), (there, copy) = expected, other
    before, after = here.meaning(section), there.meaning(copy)
    if headers_differ(section, copy) or (before != after and not isinstance(before, memoryview)):
        yield difference_of(section, copy)
    elif isinstance(before, memoryview) and isinstance(after, memoryview) and before != after:
        if traces is None:
            yield difference_of(section, copy)
        elif (offset := _untraced(section, before, after, traces)) is not None:
            yield difference_of(section, copy, _shown(section, before, after, offset))


def headers_differ(section: Section, copy: Section) -> bool:
    """Whether two sections of one name differ in what no repair tool changes."""
    before, other = section.header, copy.header
    is_free = before.sh_type in TOUCHED or before.sh_type == SectionType.DYNAMIC
    same_size = before.sh_size == other.sh_size or section.name in {".dynstr", ".dynamic"}
    same_place = before.sh_addr == other.sh_addr or is_free
    return (before.sh_type, before.sh_flags) != (other.sh_type, other.sh_flags) or not (same_size and same_place)


def difference_of(section: Section, copy: Section, shown: str = "") -> str:
    sizes = [part.header.sh_size for part in (section, copy)]
    of = shown if sizes[0] == sizes[1] else f" ({sizes[0]} and {sizes[1]} bytes)"
    return f"its section {section.name} is another{of}"


def _paired(expected: Iterable[Section], others: Iterable[Section]) -> list[tuple[Section, Section]]:
    left: dict[str, list[Section]] = {}
    for section in others:
        left.setdefault(section.name, []).append(section)
    return [(section, left[section.name].pop(0)) for section in expected]


def _untraced(section: Section, here: memoryview, there: memoryview, traces: Counter[Trace]) -> int | None:
    """Where *section* differs in anything else than bytes of *traces*, which are counted."""
    at = _first(here, there, 0)
    if section.name == _BUILD_ID and len(here) > _NOTE.size:
        size = len(here) - _NOTE.size
        traces[Trace.BUILD_ID] += size
        head = _NOTE.pack(4, size, _NT_GNU_BUILD_ID, b"GNU")
        return None if bytes(here[: _NOTE.size]) == bytes(there[: _NOTE.size]) == head else at
    while at is not None and section.is_data and _WITH_TEXT.fullmatch(section.name):
        spans = _text_span(here, at), _text_span(there, at)
        texts = [bytes(view[span.start : span.stop]) for view, span in zip((here, there), spans, strict=True)]
        if spans[0] != spans[1] or at not in spans[0] or (counts := _text_traces(*texts)) is None:
            break
        traces += counts
        at = _first(here, there, spans[0].stop)
    return at


def _first(here: memoryview, there: memoryview, start: int) -> int | None:
    """The first offset from *start* on at which they differ."""
    for block in range(start, len(here), _BLOCK):
        before, after = (bytes(view[block : block + _BLOCK]) for view in (here, there))
        if before != after:
            pairs = zip(before, after, strict=True)
            return block + next(index for index, (byte, other) in enumerate(pairs) if byte != other)
    return None


def _text_span(view: memoryview, at: int) -> range:
    """Where the text around *at* is, up to its NUL; empty if there is none."""
    before, after = bytes(view[max(at - _LONGEST, 0) : at]), bytes(view[at : at + _LONGEST])
    start, stop = at - len(before) + len(before.rstrip(_TEXT)), at + len(after) - len(after.lstrip(_TEXT))
    return range(start, stop) if bytes(view[stop : stop + 1]) == b"\0" else range(0)


def _text_traces(here: bytes, there: bytes) -> Counter[Trace] | None:
    """The bytes of each trace in which two texts differ; None if they differ in anything else."""
    traces = Counter[Trace]()
    for trace, pattern in _TRACES:
        pairs = zip(pattern.findall(here), pattern.findall(there), strict=False)
        traces[trace] += sum(byte != other for pair in pairs for byte, other in itertools.zip_longest(*pair))
        here, there = (pattern.sub(b"\0", text) for text in (here, there))
    return +traces if here == there else None


def _shown(section: Section, here: memoryview, there: memoryview, at: int) -> str:
    """The first bytes in which *section* differs, with those around them if they are text."""
    spans = _text_span(here, at), _text_span(there, at)
    if section.is_data and all(at in span for span in spans):
        around = (range(max(span.start, at - _SHOWN), min(span.stop, at + _SHOWN)) for span in spans)
        texts = (bytes(view[span.start : span.stop]) for view, span in zip((here, there), around, strict=True))
        shown = " and ".join(repr(text.decode("ascii")) for text in texts)
    else:
        shown = " and ".join(bytes(view[at : at + _SHOWN_BYTES]).hex(" ") for view in (here, there))
    return f" ({shown} at {section.header.sh_addr + at:#x})"
