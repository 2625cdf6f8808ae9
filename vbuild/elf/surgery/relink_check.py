"""What must hold of a library that was relinked, each invariant a function: read back from the new bytes.

    .dynstr, .dynamic, .gnu.version_r    grow, or hold what was ordered: each has an invariant of its own
    .dynsym, .gnu.hash, notes, .interp   may move, for longer program headers: only the loader looks for them
    everything else in memory            the same byte at the same address

patchelf puts behind the end of the file the tables that grow, and those that its longer program headers push away.
https://gabi.xinuos.com/elf/07-pheader.html and 08-dynamic.html, glibc ``elf/dl-load.c``
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from vbuild.binary.edits import Written
from vbuild.binary.image import Ranges
from vbuild.elf.dynamic import Dynamic, Relink
from vbuild.elf.image import DynamicRow, ElfImage
from vbuild.elf.layout import Section
from vbuild.elf.records import (
    ADDRESS_TAGS,
    PATH_TAGS,
    RELATIVE,
    STRING_TAGS,
    STT_SECTION,
    STT_TLS,
    DynamicTag,
    FileHeader,
    FileType,
    ProgramHeader,
    SectionHeader,
    SectionType,
    SegmentFlag,
    SegmentType,
    SymbolEntry,
)
from vbuild.elf.surgery.holes import page
from vbuild.elf.surgery.memory import without
from vbuild.elf.surgery.slots import NOTES, ROW, SLIDING
from vbuild.errors import BinaryError, at
from vbuild.files.edited import EditedFile
from vbuild.files.records import Buffer

_SYMBOL = SymbolEntry.layout
_SYMBOLS = frozenset({SectionType.DYNSYM, SectionType.SYMTAB})
# in addition to those that a cut moves: only PT_DYNAMIC says where they are
_MOVABLE = SLIDING | {SectionType.STRTAB, SectionType.DYNAMIC, SectionType.RELA, SectionType.RELR}
_GROWING = frozenset({SectionType.STRTAB, SectionType.DYNAMIC})
_LED = frozenset({SegmentType.DYNAMIC, SegmentType.INTERP})
# what was protected once filled in may move out of PT_GNU_RELRO
_FOLLOWING = _LED | NOTES | {SegmentType.LOAD, SegmentType.PHDR, SegmentType.GNU_RELRO}


class _RelinkCase(Struct, frozen=True, eq=False):
    """The file before and after, and what was ordered.

    *sections* are those before and after, *moved* the new address of each that has another, by its old one; of the
    bytes of those at the indices *rewritten* some are ordered: each has an invariant of its own.
    """

    before: ElfImage
    after: ElfImage
    old: Dynamic
    new: Dynamic
    order: Relink
    sections: tuple[tuple[Section, Section], ...]
    moved: dict[int, int]
    rewritten: frozenset[int]

    @classmethod
    def of(cls, before: ElfImage, after: ElfImage, order: Relink) -> Self:
        """The case of *before* and *after*; `BinaryError` if PT_DYNAMIC of one cannot be read."""
        old = Dynamic.of(before)
        sections = tuple(zip(before.sections, after.sections, strict=False))
        pairs = ((one.header, other.header) for one, other in sections if one.is_loaded)
        moved = {one.sh_addr: other.sh_addr for one, other in pairs if one.sh_addr != other.sh_addr}
        ordered = {old.value(DynamicTag.STRTAB), old.value(DynamicTag.VERNEED)}
        rewritten = (
            each.index
            for each in before.sections
            if each.header.sh_type == SectionType.DYNAMIC or (each.is_loaded and each.header.sh_addr in ordered)
        )
        return cls(before, after, old, Dynamic.of(after), order, sections, moved, frozenset(rewritten))


def _differs(case: _RelinkCase, old: range, new: int, words: dict[int, int] | None = None) -> int | None:
    """The first file offset of *old* at which the bytes from *new* on are others; *words* are expected there."""
    written = Written.of(EditedFile.whole(case.after.data))
    return written.differs(range(new, new + len(old)), case.before.data, old.start, words or {})


def _same_sections(case: _RelinkCase) -> None:
    for old, new in case.sections:
        free = {"sh_offset": 0}
        if (old.is_loaded and old.header.sh_type in _MOVABLE) or old.name == ".interp":
            free |= {"sh_addr": 0, "sh_addralign": 0}
        if old.index in case.rewritten and old.header.sh_type in _GROWING:
            free |= {"sh_size": 0}
        is_same = replace(old.header, **free) == replace(new.header, **free) and old.name == new.name
        if not is_same or new.header.sh_size < old.header.sh_size:
            raise BinaryError(f"{new.header} of {new.name} was {old.header} of {old.name}")
        unit = min(8, old.header.sh_addralign)
        if unit > 1 and new.header.sh_addr % unit:
            raise BinaryError(f"{new.name} at {new.header.sh_addr:#x}, alignment {unit:#x}")
        if new.span and new.is_loaded:
            place = case.after.offset(new.header.sh_addr), case.after.offset(new.addresses[-1])
            if place != (new.span.start, new.span[-1]):
                raise BinaryError(f"{new.name} is not loaded from {new.span.start:#x}")


def _same_bytes(case: _RelinkCase) -> None:
    """What moved, or is not part of the memory, has its bytes; only symbols of sections follow them."""
    moved = case.moved
    for old, new in case.sections:
        is_compared = not old.is_loaded or old.header.sh_addr in moved or old.header.sh_type in _SYMBOLS
        if not old.span or not is_compared or old.index in case.rewritten:
            continue
        words = {}
        if moved and old.header.sh_type in _SYMBOLS:
            # the values of the symbols that stand for a section that moved, by their file offset
            words = {
                old.span.start + number * _SYMBOL.size + 8: moved[value]
                for number, (_, info, _, _, value, _) in enumerate(_rows(case.before.view(old.span)))
                if info & 0xF == STT_SECTION and value in moved
            }
        if (place := _differs(case, old.span, new.span.start, words)) is not None:
            raise BinaryError(f"section {old.name} differs from what was at {place:#x}")


def _same_memory(case: _RelinkCase) -> None:
    """Every byte that was loaded is, at its address, but for headers and for what moved or was rewritten."""
    free = [range(FileHeader.layout.size), _table(case.before)]
    free += [old.span for old, new in case.sections if old.index in case.rewritten or _has_moved(old, new)]
    free += [each.span for each in case.before.sections if each.is_loaded and each.header.sh_type in _SYMBOLS]
    # longer program headers stand in the padding behind them, or where something moved away
    table = _table(case.after)
    address = case.after.address(table.start)
    if address is not None and (start := case.before.offset(address)) is not None:
        free.append(range(start, start + len(table)))
    for load in case.before.loads:
        if (found := case.after.load_of(load.addresses)) is None:
            raise BinaryError(f"no PT_LOAD covers {load.p_vaddr:#x} to {load.addresses.stop:#x}")
        if found.p_flags != load.p_flags:
            raise BinaryError(f"PT_LOAD of {load.p_vaddr:#x} with {found.p_flags:#x}, was {load.p_flags:#x}")
        ends = found.p_vaddr + found.p_filesz - load.p_vaddr - load.p_filesz, found.p_memsz - found.p_filesz
        if (load.p_memsz > load.p_filesz and ends != (0, load.p_memsz - load.p_filesz)) or ends[0] < 0:
            raise BinaryError(f"PT_LOAD of {load.p_vaddr:#x} has other bytes in the file")
        for span in without(load.span, free):
            start = found.p_offset + load.p_vaddr + span.start - load.p_offset - found.p_vaddr
            if (place := _differs(case, span, start)) is not None:
                raise BinaryError(f"the byte at {place:#x} of the original is another in memory")


def _table(image: ElfImage) -> range:
    """The file offsets of the program headers."""
    return range(image.header.e_phoff, image.header.e_phoff + ROW * image.header.e_phnum)


def _has_moved(old: Section, new: Section) -> bool:
    return old.is_loaded and old.header.sh_addr != new.header.sh_addr


def _loads_lie_apart(case: _RelinkCase) -> None:
    unit = page(case.after.machine)
    loads = [segment for segment in case.after.segments if segment.p_type == SegmentType.LOAD]
    old = {(one.addresses.stop, other.p_vaddr) for one, other in itertools.pairwise(case.before.loads)}
    for one, other in itertools.pairwise(loads):
        end, start = one.addresses.stop, other.p_vaddr
        if end > start:
            raise BinaryError(f"PT_LOAD of {start:#x} behind that of {one.p_vaddr:#x}")
        # the later one is mapped over whole pages of the earlier
        if (end, start) not in old and (end - 1) // unit >= start // unit:
            raise BinaryError(f"PT_LOADs of {one.p_vaddr:#x} and {start:#x} share a page")
    for load in loads:
        is_new = all(load.p_vaddr != each.p_vaddr for each in case.before.loads)
        if is_new and load.p_flags & SegmentFlag.X:
            raise BinaryError(f"new PT_LOAD of {load.p_vaddr:#x} is code")


def _offsets_agree(case: _RelinkCase) -> None:
    unit = page(case.after.machine)
    for load in case.after.loads:
        alignment = load.p_align
        if alignment & (alignment - 1) or (alignment > 1 and (load.p_offset - load.p_vaddr) % alignment):
            raise BinaryError(f"PT_LOAD of {load.p_vaddr:#x} at {load.p_offset:#x} with alignment {alignment:#x}")
    old, new = (max((load.p_align for load in image.loads), default=0) for image in (case.before, case.after))
    is_moved_as_one = case.after.header.e_type == FileType.DYN
    if new < (old if is_moved_as_one else min(old, unit)):
        raise BinaryError(f"the library is aligned to {new:#x}, was {old:#x}")


def _table_is_mapped(case: _RelinkCase) -> None:
    table = _table(case.after)
    header = case.after.header
    spans = [(f"section {section.name}", section.span) for section in case.after.sections]
    size = SectionHeader.layout.size * header.e_shnum
    for name, span in (*spans, ("section headers", range(header.e_shoff, header.e_shoff + size))):
        if _overlap(span, table):
            raise BinaryError(f"{name} in the program headers")
    address = case.after.address(table.start)
    if address is None or case.after.address(table[-1]) != address + len(table) - 1:
        raise BinaryError(f"program headers at {table.start:#x} to {table.stop:#x}")
    for each in case.after.segments:
        if each.p_type == SegmentType.PHDR and (each.p_vaddr, each.p_filesz) != (address, len(table)):
            raise BinaryError(f"PT_PHDR says {each.p_vaddr:#x}, {each.p_filesz:#x} bytes")


def _overlap(one: range, other: range) -> bool:
    return bool(one) and one.start < other.stop and other.start < one.stop


def _same_segments(case: _RelinkCase) -> None:
    passed = {SegmentType.LOAD, SegmentType.PHDR, SegmentType.NULL, *NOTES}
    expected = [
        _placed(_led(segment, case.moved), case.after)
        for segment in case.before.segments
        if segment.p_type not in passed
    ]
    found = [_placed(segment, case.after) for segment in case.after.segments if segment.p_type not in passed]
    order = attrgetter("p_type", "p_vaddr")
    for one, other in itertools.zip_longest(sorted(expected, key=order), sorted(found, key=order)):
        if one != other:
            raise BinaryError(f"{other}, expected {one}")


def _led(segment: ProgramHeader, moved: dict[int, int]) -> ProgramHeader:
    """*segment*, led to the section it is about."""
    if segment.p_type not in _LED or segment.p_vaddr not in moved:
        return segment
    by = moved[segment.p_vaddr] - segment.p_vaddr
    return replace(segment, p_vaddr=segment.p_vaddr + by, p_paddr=segment.p_paddr + by)


def _placed(segment: ProgramHeader, after: ElfImage) -> ProgramHeader:
    """*segment* at the file offset that its address has in *after*; PT_DYNAMIC may be longer."""
    if not segment.p_filesz:
        return replace(segment, p_offset=0)
    free = {"p_filesz": 0, "p_memsz": 0} if segment.p_type == SegmentType.DYNAMIC else {}
    if after.offset(segment.p_vaddr) != segment.p_offset:
        free["p_offset"] = after.offset(segment.p_vaddr) or 0
    return replace(segment, **free)


def _same_notes(case: _RelinkCase) -> None:
    """Each note that a segment of notes covered, one still does."""
    for kind in NOTES:
        spans = [[each.span for each in image.segments if each.p_type == kind] for image in (case.before, case.after)]
        for old, new in case.sections:
            if (
                old.header.sh_type == SectionType.NOTE
                and _covered(old.span, spans[0])
                and not _covered(new.span, spans[1])
            ):
                raise BinaryError(f"section {new.name} is in no segment of type {kind:#x}")


def _covered(span: range, spans: list[range]) -> bool:
    return any(each.start <= span.start and span.stop <= each.stop for each in spans)


def _nothing_leads_to_moved(case: _RelinkCase) -> None:
    """Only beginnings of tables in PT_DYNAMIC, segments that follow, and symbols of sections lead to what moved."""
    moved = case.moved
    ranges = [old.addresses for old, new in case.sections if _has_moved(old, new)]
    inside = Ranges(ranges)
    for row in case.old.rows:
        if row.tag in ADDRESS_TAGS and row.value in inside and row.value not in moved:
            raise BinaryError(f"tag {row.tag:#x} of PT_DYNAMIC is {row.value:#x}, inside a table")
    for segment in case.before.segments:
        # PT_TLS takes no addresses beyond its bytes
        taken = range(segment.p_vaddr, segment.p_vaddr + segment.p_filesz)
        if segment.p_type not in _FOLLOWING and any(_overlap(taken, each) for each in ranges):
            raise BinaryError(f"segment of type {segment.p_type:#x} at {segment.p_vaddr:#x}")
    for value in _exported(case.before):
        if value in inside:
            raise BinaryError(f"exported symbol at {value:#x}")
    # of other machines it is not known which relocations are addresses of this file
    if case.before.machine in RELATIVE and (found := case.before.pointers(ranges)):
        raise BinaryError(f"the word at {found[0].place:#x} leads to {found[0].target:#x}")


def _exported(image: ElfImage) -> Iterator[int]:
    """The addresses of the symbols that other files can use."""
    for section in image.sections:
        if section.header.sh_type == SectionType.DYNSYM:
            for _, info, _, index, value, _ in _rows(image.view(section.span)):
                if index and info & 0xF not in {STT_SECTION, STT_TLS}:
                    yield value


def _rows(table: memoryview) -> Iterator[tuple[int, ...]]:
    return _SYMBOL.iter_unpack(table[: len(table) // _SYMBOL.size * _SYMBOL.size])


_ORDERED = PATH_TAGS | {DynamicTag.NEEDED}


def prove_relinked(before: ElfImage, after: Buffer, order: Relink) -> None:
    """Nothing, if *after* is *before* with *order* carried out; else a `BinaryError`.

    The message begins with the name of the invariant that does not hold.
    """
    with at("the new file can be read"):
        image = ElfImage.parse(after)
        case = _RelinkCase.of(before, image, order)
    for name, invariant in INVARIANTS.items():
        with at(name):
            invariant(case)


def _same_header(case: _RelinkCase) -> None:
    old, new = case.before.header, case.after.header
    same = replace(new, e_phoff=old.e_phoff, e_phnum=old.e_phnum, e_shoff=old.e_shoff)
    if same != old:
        raise BinaryError(f"{new} was {old}")


def _needed_as_ordered(case: _RelinkCase) -> None:
    names = dict(case.order.renamed)
    kept = tuple(names.get(name, name) for name in case.old.texts(DynamicTag.NEEDED))
    found = case.new.texts(DynamicTag.NEEDED)
    added = {name for name in case.order.added if name not in kept}
    front = len(found) - len(kept)
    if found[front:] != kept or front != len(added) or set(found[:front]) != added:
        raise BinaryError(f"{', '.join(found)}, expected {', '.join([*sorted(added), *kept])}")


def _paths_as_ordered(case: _RelinkCase) -> None:
    found = [(row.tag, case.new.text(row.value)) for row in case.new.paths]
    expected = [(row.tag, case.old.text(row.value)) for row in case.old.paths]
    if case.order.rpath is not None:
        expected = [(case.order.path_tag, ":".join(case.order.rpath))] if case.order.rpath else []
    if found != expected:
        raise BinaryError(f"{found}, expected {expected}")


def _soname_as_ordered(case: _RelinkCase) -> None:
    found = case.new.texts(DynamicTag.SONAME)
    expected = case.old.texts(DynamicTag.SONAME) if case.order.soname is None else (case.order.soname,)
    if found != expected:
        raise BinaryError(f"{', '.join(found) or 'none'}, expected {', '.join(expected) or 'none'}")


def _same_entries(case: _RelinkCase) -> None:
    moved, size = case.moved, len(case.old.strings)
    ordered = _ORDERED if case.order.soname is None else _ORDERED | {DynamicTag.SONAME}

    def before(row: DynamicRow) -> bytes | int:
        if row.tag in STRING_TAGS:
            return case.old.raw(row.value)
        return moved.get(row.value, row.value) if row.tag in ADDRESS_TAGS else row.value

    def after(row: DynamicRow) -> bytes | int:
        if row.tag in STRING_TAGS:
            return case.new.raw(row.value)
        # the string table may be longer
        return min(row.value, size) if row.tag == DynamicTag.STRSZ else row.value

    expected = [(row.tag, before(row)) for row in case.old.rows if row.tag not in ordered]
    found = [(row.tag, after(row)) for row in case.new.rows if row.tag not in ordered]
    for one, other in itertools.zip_longest(expected, found):
        if one != other:
            raise BinaryError(f"{_entry(other)}, expected {_entry(one)}")


def _entry(row: tuple[int, bytes | int] | None) -> str:
    if row is None:
        return "no entry"
    return f"tag {row[0]:#x} of {row[1]:#x}" if isinstance(row[1], int) else f"tag {row[0]:#x} of {row[1]!r}"


def _same_requirements(case: _RelinkCase) -> None:
    names = dict(case.order.renamed)
    expected = [(names.get(each.library, each.library), each.versions) for each in case.old.required()]
    found = [(each.library, each.versions) for each in case.new.required()]
    for one, other in itertools.zip_longest(expected, found):
        if one != other:
            raise BinaryError(f"{other}, expected {one}")


def _same_strings(case: _RelinkCase) -> None:
    """Every string in use but the RPATH is the one it was; older patchelf fills that with X, even if it is shared."""
    old, new = case.old, case.new
    first = _differs(case, old.strings, new.strings.start)
    if first is None:
        return
    # strings in front of the first difference are whole; the one that it is in may have begun long before
    begin = bytes(case.before.data[old.strings.start : first]).rfind(b"\0") + 1
    users = Counter(offset for offset in old.used_strings() if offset >= begin)
    for offset in sorted(users - Counter(row.value for row in old.paths)):
        if old.raw(offset) != new.raw(offset):
            raise BinaryError(f"{new.text(offset)!r} at {offset:#x}, was {old.text(offset)!r}")


INVARIANTS: dict[str, Callable[[_RelinkCase], None]] = {
    "the file header is the same": _same_header,
    "PT_LOADs ascend and lie apart": _loads_lie_apart,
    "offset and address agree modulo the alignment": _offsets_agree,
    "the program headers are mapped and overlap nothing": _table_is_mapped,
    "NEEDED is as ordered": _needed_as_ordered,
    "RPATH and RUNPATH are as ordered": _paths_as_ordered,
    "SONAME is as ordered": _soname_as_ordered,
    "the sections are the same": _same_sections,
    "the other dynamic entries are the same": _same_entries,
    "the version requirements are the same but for their libraries": _same_requirements,
    "every name is the same": _same_strings,
    "what moved has its bytes": _same_bytes,
    "nothing leads to what moved": _nothing_leads_to_moved,
    "everything else in memory is the same": _same_memory,
    "the other segments are the same": _same_segments,
    "the notes are found": _same_notes,
}
