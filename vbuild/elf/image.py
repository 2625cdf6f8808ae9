"""The headers of an ELF file, its bytes, and the words in them that the loader fills.

    ElfLayout.read(source)    files of 32 and 64 bits and of either byte order; refuses what it cannot read
    ElfLayout.parse(source)   64-bit little-endian files; also refuses headers that contradict each other or the file
    ElfImage                  either of both, with the bytes

    | e_phoff | program headers -> segments: what the loader maps, address = offset + a constant per PT_LOAD |
    | e_shoff | section headers -> sections: what linkers, strip and debuggers see                           |
    | DT_RELA, DT_JMPREL | rows of place, type, addend; RELATIVE: the loader writes base + addend at place   |
    | DT_RELR | places only: the loader adds its base to the word that is there already                      |

https://gabi.xinuos.com/elf/
"""

import itertools
import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import Self, TypeVar

from msgspec import Struct

from vbuild.binary.code import Pointer, Ranges, Sliceable
from vbuild.elf.records import (
    BIG_ENDIAN,
    CLASS_32,
    CLASS_64,
    LITTLE_64,
    LITTLE_ENDIAN,
    MAGIC,
    PN_XNUM,
    RELATIVE,
    SHN_ABS,
    SHN_XINDEX,
    STT_FILE,
    STT_TLS,
    DynamicEntry,
    DynamicTag,
    ElfMachine,
    Encoding,
    FileHeader,
    FileType,
    ProgramHeader,
    Relocation,
    SectionFlag,
    SectionHeader,
    SectionType,
    SegmentFlag,
    SegmentType,
    SymbolEntry,
    record_size,
    tuples,
)
from vbuild.errors import BinaryError
from vbuild.files.records import Buffer, Packed

R = TypeVar("R", bound=Packed)

WORD = struct.Struct("<Q")
_ROW = 24
_ENCODINGS = {
    (size, order): Encoding(bits, code)
    for size, bits in ((CLASS_32, 32), (CLASS_64, 64))
    for order, code in ((LITTLE_ENDIAN, "<"), (BIG_ENDIAN, ">"))
}
# plain numbers: & of an enumeration takes ten times as long
_ALLOC, _EXECINSTR = int(SectionFlag.ALLOC), int(SectionFlag.EXECINSTR)
_WITHOUT_BYTES = frozenset({int(SectionType.NOBITS), int(SectionType.NULL)})
_LONGEST_NAMES = 1 << 24
# of a library or program that is cut; and of any file, a kernel among them
_HIGHEST_ADDRESS, _END_OF_MEMORY = 1 << 62, 1 << 64
# characters of all names that are read of a string table, and for each character of the table
_PLENTY, _SHARED = 1 << 23, 8
_SYMBOLS = (".symtab", ".strtab", ".symtab_shndx")
_DEBUG = (".debug_", ".zdebug_", ".gnu.debuglto_", ".gdb_index", ".stab")


class StringTable:
    """The strings of a table; `BinaryError` if those read are together far longer than it, as strings may overlap."""

    def __init__(self, table: bytes, *, kind: str = "symbol name") -> None:
        self._table, self._kind = table, kind
        self._left = _PLENTY + _SHARED * len(table)

    def at(self, offset: int) -> str:
        end = self._table.find(b"\0", offset)
        if end < 0:
            raise BinaryError(f"{self._kind} at {offset:#x} runs past its table, {len(self._table):#x}")
        self._left -= end - offset
        if self._left < 0:
            raise BinaryError(f"names far longer than their table, {len(self._table):#x}, in which they lie")
        return self._table[offset:end].decode("utf-8", "backslashreplace")


def column(rows: memoryview, number: int) -> "array[int]":
    """Column *number* of *rows* of three 64-bit words, such as relocations."""
    words = array("Q")
    words.frombytes(rows[: len(rows) // _ROW * _ROW])
    if sys.byteorder == "big":
        words.byteswap()
    return words[number::3]


class Section(Struct, frozen=True):
    index: int
    name: str
    header: SectionHeader

    @property
    def size(self) -> int:
        return 0 if self.header.sh_type in _WITHOUT_BYTES else self.header.sh_size

    @property
    def span(self) -> range:
        return range(self.header.sh_offset, self.header.sh_offset + self.size)

    @property
    def addresses(self) -> range:
        return range(self.header.sh_addr, self.header.sh_addr + (self.header.sh_size if self.is_loaded else 0))

    @property
    def is_loaded(self) -> bool:
        return bool(self.header.sh_flags & _ALLOC)

    @property
    def is_data(self) -> bool:
        is_from_file = self.header.sh_type == SectionType.PROGBITS and self.is_loaded
        return is_from_file and not self.header.sh_flags & _EXECINSTR

    @property
    def is_symbols(self) -> bool:
        """For debuggers and profilers alone."""
        return not self.is_loaded and self.name in _SYMBOLS

    @property
    def is_debug(self) -> bool:
        return not self.is_loaded and self.name.startswith(_DEBUG)


class ElfLayout(Struct, frozen=True):
    size: int
    header: FileHeader
    segments: tuple[ProgramHeader, ...]
    sections: tuple[Section, ...]

    @classmethod
    def read(cls, source: Sliceable) -> "ElfLayout":
        """The headers in *source*, of 32 or 64 bits, of either byte order; `BinaryError` if they cannot be read."""
        header = _header(source)
        segment_count, section_count, names = header.e_phnum, header.e_shnum, header.e_shstrndx
        if not header.e_shoff:
            section_count = 0
        elif not section_count or segment_count == PN_XNUM or names == SHN_XINDEX:
            # section 0 has the numbers that do not fit into the file header
            first = _sections(source, header, 1)[0].header
            segment_count = first.sh_info if segment_count == PN_XNUM else segment_count
            section_count = section_count or first.sh_size
            names = first.sh_link if names == SHN_XINDEX else names
        segments = _segments(source, header, segment_count)
        sections = _named(source, _sections(source, header, section_count), names)
        sizes = (section.header.sh_size for section in sections if section.header.sh_type != SectionType.NOBITS)
        loaded = (segment.p_filesz for segment in segments if segment.p_type == SegmentType.LOAD)
        if (total := max(sum(sizes), sum(loaded))) > 2 * len(source):
            raise BinaryError(f"pieces of {total:#x} bytes together in a file of {len(source):#x}")
        for number, segment in enumerate(segments):
            if segment.p_type != SegmentType.NULL:
                name = f"segment {number} of type {segment.p_type:#x}"
                _check_address(segment.p_vaddr, segment.p_memsz, name, end=_END_OF_MEMORY)
        return ElfLayout(len(source), header, segments, sections)

    @classmethod
    def parse(cls, source: Sliceable) -> "ElfLayout":
        """As `read`, of 64 bits, little-endian; `BinaryError` if parts lie outside the file, or sections overlap."""
        header = _header(source)
        if _encoding(header) != LITTLE_64:
            form = f"class {header.e_ident[4]:#x}, byte order {header.e_ident[5]:#x}"
            raise BinaryError(f"ELF of {form}: expected {CLASS_64:#x} and {LITTLE_ENDIAN:#x} (64-bit little-endian)")
        if header.e_phnum == PN_XNUM or (header.e_shoff and not header.e_shnum):
            raise BinaryError("more headers than the file header can count")
        segments = _segments(source, header, header.e_phnum)
        _check_segments(segments, len(source))
        nameless = _sections(source, header, header.e_shnum if header.e_shoff else 0)
        for section in nameless:
            _check_inside(section.span, len(source), f"section {section.index}")
            _check_address(section.header.sh_addr, section.header.sh_size, f"section {section.index}")
        sections = _named(source, nameless, header.e_shstrndx)
        taken = [
            (part.span.start, part.span.stop, f"section {part.index} {part.name}") for part in sections if part.span
        ]
        if sections:
            end = header.e_shoff + len(sections) * SectionHeader.layout.size
            taken.append((header.e_shoff, end, "section header table"))
        for (_, stop, lower_name), (start, _, upper_name) in itertools.pairwise(sorted(taken)):
            if start < stop:
                raise BinaryError(f"{lower_name} and {upper_name} overlap in the file at {start:#x}")
        return ElfLayout(len(source), header, segments, sections)

    @property
    def encoding(self) -> Encoding:
        return _encoding(self.header)

    @property
    def machine(self) -> int:
        return self.header.e_machine

    @property
    def loads(self) -> tuple[ProgramHeader, ...]:
        loads = (segment for segment in self.segments if segment.p_type == SegmentType.LOAD)
        return tuple(sorted(loads, key=lambda load: load.p_vaddr))

    def section(self, name: str) -> Section | None:
        return next(iter(self.named(name)), None)

    def named(self, name: str) -> tuple[Section, ...]:
        return tuple(section for section in self.sections if section.name == name)

    def load_of(self, addresses: range) -> ProgramHeader | None:
        """The lowest PT_LOAD segment with all of *addresses*."""
        for load in self.loads:
            if load.p_vaddr <= addresses.start and addresses.stop <= load.addresses.stop:
                return load
        return None

    def offset(self, address: int) -> int | None:
        for segment in self.segments:
            if segment.p_type == SegmentType.LOAD and 0 <= address - segment.p_vaddr < segment.p_filesz:
                return segment.p_offset + address - segment.p_vaddr
        return None

    def address(self, offset: int) -> int | None:
        for segment in self.loads:
            if offset in segment.span:
                return segment.p_vaddr + offset - segment.p_offset
        return None


def _header(source: Sliceable) -> FileHeader:
    start = bytes(source[0 : FileHeader.layout.size])
    if start[:4] != MAGIC:
        raise BinaryError(f"not an ELF file: begins with {start[:4].hex(' ') or 'nothing'}, expected 7f 45 4c 46")
    ident = start[:16].ljust(16, b"\0")
    if not (encoding := _ENCODINGS.get((ident[4], ident[5]))):
        form = f"class {ident[4]:#x}, byte order {ident[5]:#x}"
        raise BinaryError(f"ELF of {form}: expected {CLASS_32:#x} or {CLASS_64:#x}, and 0x1 or 0x2")
    for fields in tuples(FileHeader, start, encoding):
        return FileHeader(*fields)
    raise BinaryError(f"FileHeader at 0x0 runs past the end, {len(start):#x}")


def _encoding(header: FileHeader) -> Encoding:
    return _ENCODINGS[header.e_ident[4], header.e_ident[5]]


def _segments(source: Sliceable, header: FileHeader, count: int) -> tuple[ProgramHeader, ...]:
    return tuple(_rows(source, ProgramHeader, header, (header.e_phoff, count, header.e_phentsize), "program header"))


def _sections(source: Sliceable, header: FileHeader, count: int) -> tuple[Section, ...]:
    rows = _rows(source, SectionHeader, header, (header.e_shoff, count, header.e_shentsize), "section header")
    return tuple(Section(index, "", row) for index, row in enumerate(rows))


def _rows(
    source: Sliceable, record: type[R], header: FileHeader, table: tuple[int, int, int], what: str
) -> Iterator[R]:
    """The records of a *table*: offset, number, and size by the file header."""
    (start, count, stated), size = table, record_size(record, _encoding(header))
    if count:
        if stated != size:
            raise BinaryError(f"{what}s of {stated:#x} bytes each, expected {size:#x}")
        _check_inside(range(start, start + count * size), len(source), f"{what} table")
        rows = tuples(record, bytes(source[start : start + count * size]), _encoding(header))
        yield from itertools.starmap(record, rows)


def _named(source: Sliceable, sections: tuple[Section, ...], names: int) -> tuple[Section, ...]:
    if not sections:
        return ()
    if names >= len(sections):
        raise BinaryError(f"section names in section {names}, expected one below {len(sections)}")
    span = sections[names].span
    if sections[names].size > _LONGEST_NAMES:
        raise BinaryError(f"section names of {sections[names].size:#x} bytes, expected {_LONGEST_NAMES:#x} at most")
    _check_inside(span, len(source), f"section {names}")
    table = StringTable(bytes(source[span.start : span.stop]) or b"\0", kind="section name")
    return tuple(Section(section.index, table.at(section.header.sh_name), section.header) for section in sections)


def _check_segments(segments: tuple[ProgramHeader, ...], size: int) -> None:
    for number, segment in enumerate(segments):
        if segment.p_type != SegmentType.NULL:
            name = f"segment {number} of type {segment.p_type:#x}"
            _check_inside(segment.span, size, name)
            _check_address(max(segment.p_vaddr, segment.p_paddr), segment.p_memsz, name)
    loads = [segment for segment in segments if segment.p_type == SegmentType.LOAD]
    loads.sort(key=lambda load: load.p_vaddr)
    for load in loads:
        if load.p_filesz > load.p_memsz:
            raise BinaryError(
                f"PT_LOAD of address {load.p_vaddr:#x} has {load.p_filesz:#x} bytes for {load.p_memsz:#x}"
            )
    for load, after in itertools.pairwise(loads):
        if load.addresses.stop > after.p_vaddr:
            raise BinaryError(
                f"PT_LOADs overlap: {load.p_vaddr:#x} to {load.addresses.stop:#x}, and {after.p_vaddr:#x}"
            )


def _check_inside(span: range, size: int, subject: str) -> None:
    if span.start > size or span.stop > size:
        length = span.stop - span.start
        raise BinaryError(f"{subject} at {span.start:#x}, {length:#x} bytes long, runs past the end, {size:#x}")


def _check_address(address: int, size: int, subject: str, *, end: int = _HIGHEST_ADDRESS) -> None:
    if address + size > end:
        raise BinaryError(f"{subject} is loaded to {address:#x}, {size:#x} bytes, which no process has")


class DynamicRow(Struct, frozen=True):
    tag: int
    value: int
    offset: int


class ElfImage(ElfLayout, frozen=True, eq=False):
    data: memoryview

    @classmethod
    def parse(cls, data: Buffer) -> Self:  # type: ignore[override]  # what has bytes is a narrower source than Layout's
        """The ELF file *data*; `BinaryError` as of `ElfLayout.parse`."""
        view = memoryview(data).cast("B")
        layout = ElfLayout.parse(view)
        return cls(layout.size, layout.header, layout.segments, layout.sections, view)

    @classmethod
    def read(cls, data: memoryview) -> Self:  # type: ignore[override]  # as above
        """The ELF file *data*; `BinaryError` as of `ElfLayout.read`."""
        layout = ElfLayout.read(data)
        return cls(layout.size, layout.header, layout.segments, layout.sections, data)

    @property
    def is_fixed(self) -> bool:
        return self.header.e_type == FileType.EXEC

    def view(self, span: range) -> memoryview:
        return self.data[span.start : span.stop]

    def source_files(self) -> Iterator[str]:
        for section in self.sections:
            if section.header.sh_type == SectionType.SYMTAB and section.header.sh_link < len(self.sections):
                names = StringTable(bytes(self.view(self.sections[section.header.sh_link].span)))
                for name, info, *_ in tuples(SymbolEntry, self.view(section.span), self.encoding):
                    if info & 0xF == STT_FILE:
                        yield names.at(name)

    def exported(self, ranges: Sequence[range]) -> tuple[int, ...]:
        """The addresses in *ranges* of symbols of ``.dynsym``: other files may refer to those."""
        inside = Ranges(ranges)
        exported: list[int] = []
        for section in self.sections:
            if section.header.sh_type == SectionType.DYNSYM:
                heads, values = (column(self.view(section.span), number) for number in (0, 1))
                exported += (
                    value
                    for head, value in zip(heads, values, strict=True)
                    if inside.low <= value < inside.high
                    and head >> 48 != SHN_ABS
                    and head >> 32 & 0xF != STT_TLS
                    and value in inside
                )
        return tuple(exported)

    def word(self, address: int) -> int | None:
        offset = self.offset(address)
        if offset is None or self.offset(address + WORD.size - 1) != (end := offset + WORD.size) - 1 or end > self.size:
            return None
        return int(WORD.unpack_from(self.data, offset)[0])

    def dynamic(self) -> dict[int, int]:
        """The values of PT_DYNAMIC by tag; of a tag that comes twice the last, as ld.so takes it."""
        return {row.tag: row.value for row in self.dynamic_rows()}

    def dynamic_offsets(self) -> dict[int, int]:
        return {row.tag: row.offset for row in self.dynamic_rows()}

    def dynamic_rows(self) -> tuple[DynamicRow, ...]:
        """The entries of PT_DYNAMIC up to its DT_NULL; `BinaryError` if the loader would read others."""
        segment = next((segment for segment in self.segments if segment.p_type == SegmentType.DYNAMIC), None)
        if segment is None:
            return ()
        # of separate debug information nothing is loaded
        if (loaded := self.offset(segment.p_vaddr)) not in {None, segment.p_offset}:
            raise BinaryError(
                f"PT_DYNAMIC is at {segment.p_offset:#x}, and loaded from {loaded:#x}; expected one place"
            )
        size = record_size(DynamicEntry, self.encoding)
        entries = tuples(DynamicEntry, self.view(segment.span), self.encoding)
        entries = itertools.takewhile(lambda entry: entry[0] != DynamicTag.NULL, entries)
        rows = [DynamicRow(tag, value, segment.p_offset + number * size) for number, (tag, value) in enumerate(entries)]
        if loaded is not None and len(rows) == segment.p_filesz // size:
            raise BinaryError(f"PT_DYNAMIC of {segment.p_filesz:#x} bytes has no DT_NULL; the loader would read on")
        return tuple(rows)

    def pointers(self, ranges: Sequence[range]) -> tuple[Pointer, ...]:
        """Every word that the loader fills with an address in *ranges*.

        `BinaryError` if the machine's relocations are not known, or a table is damaged.
        """
        wanted = Ranges(ranges)
        if not wanted:
            return ()
        dynamic = self.dynamic()
        if strange := dynamic.keys() & {DynamicTag.REL, DynamicTag.ANDROID_REL, DynamicTag.ANDROID_RELA}:
            raise BinaryError(
                f"relocations under tag {min(strange):#x}, expected DT_RELA ({DynamicTag.RELA:#x}) or RELR"
            )
        pointers = list(self._rela(dynamic, wanted))
        for address in self.relr_places(self.relr_table(dynamic)):
            target = self.word(address)
            if target is None:
                raise BinaryError(f"packed relocation of {address:#x}, where the file has no word")
            if wanted.low <= target < wanted.high and target in wanted:
                pointers.append(Pointer(address, target))
        return tuple(pointers)

    def _rela(self, dynamic: dict[int, int], wanted: Ranges) -> Iterator[Pointer]:
        if self.machine not in RELATIVE:
            raise BinaryError(f"relocations of machine {self.machine:#x} are not known here")
        relative = RELATIVE[ElfMachine(self.machine)]
        if (size := dynamic.get(DynamicTag.RELAENT, Relocation.layout.size)) != Relocation.layout.size:
            raise BinaryError(f"relocations of {size:#x} bytes each, expected {Relocation.layout.size:#x}")
        for table in self.relocation_tables(dynamic):
            low, high = wanted.low, wanted.high
            addends = enumerate(column(self.view(table), 2))
            for number in [number for number, addend in addends if low <= addend < high]:
                at = table.start + number * Relocation.layout.size
                row = Relocation.parse(self.data, at)
                if row.r_info & 0xFFFFFFFF == relative and row.r_addend in wanted:
                    yield Pointer(row.r_offset, row.r_addend, at)

    def relocation_tables(self, dynamic: dict[int, int]) -> tuple[range, range]:
        """The file offsets of the RELA tables of *dynamic*, where no row is in both."""
        size = Relocation.layout.size
        rows = self._table(dynamic, DynamicTag.RELA, DynamicTag.RELASZ, size)
        calls = self._table(dynamic, DynamicTag.JMPREL, DynamicTag.PLTRELSZ, size)
        if rows.start <= calls.start < rows.stop:
            if (calls.start - rows.start) % size:
                raise BinaryError(f"DT_JMPREL at {calls.start:#x} begins inside a row of DT_RELA at {rows.start:#x}")
            calls = range(rows.stop, max(rows.stop, calls.stop))
        return rows, calls

    def _table(self, dynamic: dict[int, int], at_tag: int, size_tag: int, unit: int) -> range:
        address, size = dynamic.get(at_tag, 0), dynamic.get(size_tag, 0)
        if not size:
            return range(0)
        if size % unit:
            raise BinaryError(f"relocation table at {address:#x} has {size:#x} bytes, expected a multiple of {unit:#x}")
        start, end = self.offset(address), self.offset(address + size - 1)
        if start is None or end != start + size - 1 or start + size > self.size:
            raise BinaryError(f"relocation table at {address:#x}, {size:#x} bytes long, is not in the file")
        return range(start, start + size)

    def relr_table(self, dynamic: dict[int, int]) -> range:
        return self._table(dynamic, DynamicTag.RELR, DynamicTag.RELRSZ, WORD.size)

    def relr_places(self, table: range) -> Iterator[int]:
        """The addresses that the RELR *table* lists; `BinaryError` unless they rise."""
        end = max((segment.addresses.stop for segment in self.loads if segment.p_flags & SegmentFlag.W), default=0)
        base = last = 0
        whole = table[: len(table) // WORD.size * WORD.size]
        for (word,) in WORD.iter_unpack(self.view(whole)):
            is_bitmap = word & 1
            places = [base + WORD.size * bit for bit in range(63) if word >> (bit + 1) & 1] if is_bitmap else [word]
            base = base + WORD.size * 63 if is_bitmap else word + WORD.size
            for address in places:
                if address < last or address >= end:
                    raise BinaryError(f"packed relocation of {address:#x} after {last:#x}, expected up to {end:#x}")
                last = address
                yield address
