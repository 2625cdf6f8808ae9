"""The bytes of an ELF file, and the places in them that the loader fills.

    | DT_RELA, DT_JMPREL | rows of place, type, addend; RELATIVE: the loader writes base + addend at place   |
    | DT_RELR | places only: the loader adds its base to the word that is there already                      |

https://gabi.xinuos.com/elf/
"""

import itertools
import struct
from collections.abc import Iterator, Sequence
from typing import Self

from msgspec import Struct

from vbuild.binary.image import Pointer, Ranges
from vbuild.elf.layout import ElfLayout, StringTable
from vbuild.elf.records import (
    RELATIVE,
    STT_FILE,
    DynamicEntry,
    DynamicTag,
    ElfMachine,
    FileType,
    Relocation,
    SectionType,
    SegmentFlag,
    SegmentType,
    SymbolEntry,
)
from vbuild.errors import BinaryError
from vbuild.files.records import Buffer

WORD = struct.Struct("<Q")
_ADDENDS = struct.Struct("<16xq")


class DynamicRow(Struct, frozen=True):
    """One entry of PT_DYNAMIC, and the file offset it is at."""

    tag: int
    value: int
    offset: int


class ElfImage(ElfLayout, frozen=True, eq=False):
    """An ELF file: its headers, and its bytes, which are never copied."""

    data: memoryview

    @classmethod
    def parse(cls, data: Buffer) -> Self:  # type: ignore[override]  # what has bytes is a narrower source than Layout's
        """The ELF file *data*; `BinaryError` unless every header and section lies inside the file."""
        view = memoryview(data).cast("B")
        layout = ElfLayout.parse(view)
        return cls(layout.size, layout.header, layout.segments, layout.sections, view)

    @classmethod
    def read(cls, data: memoryview) -> Self:  # type: ignore[override]  # as above
        """The ELF file *data*, of 32 or 64 bits, of either byte order; `BinaryError` if its headers cannot be read."""
        layout = ElfLayout.read(data)
        return cls(layout.size, layout.header, layout.segments, layout.sections, data)

    @property
    def is_fixed(self) -> bool:
        """Whether it is a program that is loaded where it says: no pointer in it has to be filled."""
        return self.header.e_type == FileType.EXEC

    def view(self, span: range) -> memoryview:
        """The bytes at the file offsets *span*."""
        return self.data[span.start : span.stop]

    def source_files(self) -> Iterator[str]:
        """The names of the source files that the symbols of its objects give; none in a stripped file."""
        for section in self.sections:
            if section.header.sh_type == SectionType.SYMTAB and section.header.sh_link < len(self.sections):
                names = StringTable(bytes(self.view(self.sections[section.header.sh_link].span)))
                for name, info, *_ in SymbolEntry.tuples(self.view(section.span), self.encoding):
                    if info & 0xF == STT_FILE:
                        yield names.at(name)

    def word(self, address: int) -> int | None:
        """The 64-bit little-endian number that the file has for *address*, or None if the file has no bytes for it."""
        place = self.offset(address)
        if place is None or self.offset(address + WORD.size - 1) != (end := place + WORD.size) - 1 or end > self.size:
            return None
        return int(WORD.unpack_from(self.data, place)[0])

    def dynamic(self) -> dict[int, int]:
        """The values of PT_DYNAMIC by tag, up to its DT_NULL; of a tag that comes twice, the last, as ld.so."""
        return {row.tag: row.value for row in self.dynamic_rows()}

    def dynamic_offsets(self) -> dict[int, int]:
        """The file offset of each entry of PT_DYNAMIC by tag, as in `dynamic`."""
        return {row.tag: row.offset for row in self.dynamic_rows()}

    def dynamic_rows(self) -> tuple[DynamicRow, ...]:
        """The entries of PT_DYNAMIC up to its DT_NULL; `BinaryError` if the loader would read others."""
        segment = next((segment for segment in self.segments if segment.p_type == SegmentType.DYNAMIC), None)
        if segment is None:
            return ()
        # it goes by the address alone; of separate debug information nothing is loaded
        if (loaded := self.offset(segment.p_vaddr)) not in {None, segment.p_offset}:
            raise BinaryError(
                f"PT_DYNAMIC is at {segment.p_offset:#x}, and loaded from {loaded:#x}; expected one place"
            )
        size = DynamicEntry.size(self.encoding)
        entries = enumerate(DynamicEntry.tuples(self.view(segment.span), self.encoding))
        kept = tuple(itertools.takewhile(lambda entry: entry[1][0] != DynamicTag.NULL, entries))
        if loaded is not None and len(kept) == segment.p_filesz // size:
            raise BinaryError(f"PT_DYNAMIC of {segment.p_filesz:#x} bytes has no DT_NULL; the loader would read on")
        return tuple(DynamicRow(tag, value, segment.p_offset + number * size) for number, (tag, value) in kept)

    def pointers(self, ranges: Sequence[range]) -> tuple[Pointer, ...]:
        """Every word that the loader fills with an address in one of *ranges*, RELATIVE in RELA and RELR alike.

        `BinaryError` if the relocations of the machine are not known, or a table is damaged.
        """
        wanted = Ranges(ranges)
        if not wanted:
            return ()
        dynamic = self.dynamic()
        if strange := dynamic.keys() & {DynamicTag.REL, DynamicTag.ANDROID_REL, DynamicTag.ANDROID_RELA}:
            raise BinaryError(
                f"relocations under tag {min(strange):#x}, expected DT_RELA ({DynamicTag.RELA:#x}) or RELR"
            )
        return (*self._rela(dynamic, wanted), *self._relr(dynamic, wanted))

    def _rela(self, dynamic: dict[int, int], wanted: Ranges) -> Iterator[Pointer]:
        if self.machine not in RELATIVE:
            raise BinaryError(f"relocations of machine {self.machine:#x} are not known here")
        relative = RELATIVE[ElfMachine(self.machine)]
        if (size := dynamic.get(DynamicTag.RELAENT, Relocation.layout.size)) != Relocation.layout.size:
            raise BinaryError(f"relocations of {size:#x} bytes each, expected {Relocation.layout.size:#x}")
        for table in self.relocation_tables(dynamic):
            low, high = wanted.low, wanted.high
            # a million rows: look at nothing but the addend until it may be one of those asked for
            addends = enumerate(_ADDENDS.iter_unpack(self.view(table)))
            for number in [number for number, (addend,) in addends if low <= addend < high]:
                row = table.start + number * Relocation.layout.size
                found = Relocation.parse(self.data, row)
                if found.r_info & 0xFFFFFFFF == relative and found.r_addend in wanted:
                    yield Pointer(found.r_offset, found.r_addend, row)

    def relocation_tables(self, dynamic: dict[int, int]) -> tuple[range, range]:
        """The file offsets of the RELA tables of *dynamic*; DT_RELA may include DT_JMPREL, so no row is in both."""
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

    def _relr(self, dynamic: dict[int, int], wanted: Ranges) -> Iterator[Pointer]:
        for place in self.relr_places(self.relr_table(dynamic)):
            target = self.word(place)
            if target is None:
                raise BinaryError(f"packed relocation of {place:#x}, where the file has no word")
            if wanted.low <= target < wanted.high and target in wanted:
                yield Pointer(place, target)

    def relr_table(self, dynamic: dict[int, int]) -> range:
        """The file offsets of the RELR table that *dynamic* names."""
        return self._table(dynamic, DynamicTag.RELR, DynamicTag.RELRSZ, WORD.size)

    def relr_places(self, table: range) -> Iterator[int]:
        """The addresses that the RELR table at these file offsets lists.

        They rise, which also bounds the work a damaged table can cause; `BinaryError` if they do not.
        """
        end = max((segment.addresses.stop for segment in self.loads if segment.p_flags & SegmentFlag.W), default=0)
        base = last = 0
        whole = table[: len(table) // WORD.size * WORD.size]
        for (word,) in WORD.iter_unpack(self.view(whole)):
            is_bitmap = word & 1
            places = [base + WORD.size * bit for bit in range(63) if word >> (bit + 1) & 1] if is_bitmap else [word]
            base = base + WORD.size * 63 if is_bitmap else word + WORD.size
            for place in places:
                if place < last or place >= end:
                    raise BinaryError(f"packed relocation of {place:#x} after {last:#x}, expected up to {end:#x}")
                last = place
                yield place
