"""Whether the tables that the loader reads end where they say, and lead nowhere else.

    PT_DYNAMIC                            in a PT_LOAD, each tag once
    DT_NEEDED, DT_SONAME, version names   offsets into the strings of DT_STRTAB, DT_STRSZ bytes
    rows of DT_RELA and DT_JMPREL         numbers of symbols of DT_SYMTAB
    .gnu.hash, .hash                      numbers of symbols, too
    places of relocations                 nothing that is replaced
    PT_GNU_RELRO                          pages of one PT_LOAD

The loader checks none of that: a number that is too large leads into what lies behind the table, often GPU code.
"""

import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

from vbuild.binary.code import Ranges
from vbuild.binary.edits import up
from vbuild.elf.image import ElfImage, Section, column
from vbuild.elf.read import Dynamic
from vbuild.elf.records import ADDRESS_TAGS, STRING_TAGS, DynamicTag, SectionType, SegmentType, SymbolEntry
from vbuild.elf.surgery.holes import Bloom, page
from vbuild.errors import BinaryError, at

_NAME_OF = struct.Struct("<I20x")
_WORD, _VERSION = 4, 2  # bytes

# the size of each table whose address has a tag, DT_INIT_ARRAY, DT_FINI_ARRAY and DT_PREINIT_ARRAY among them
_SIZES: dict[int, int] = {
    DynamicTag.STRTAB: DynamicTag.STRSZ,
    DynamicTag.RELA: DynamicTag.RELASZ,
    DynamicTag.RELR: DynamicTag.RELRSZ,
    DynamicTag.JMPREL: DynamicTag.PLTRELSZ,
    25: 27,
    26: 28,
    32: 33,
}
_CALLED = frozenset({12, 13})  # DT_INIT, DT_FINI


def check_tables(image: ElfImage, replaced: Sequence[range], *, filled: Collection[int] = ()) -> None:
    """`BinaryError` unless every table of the loader ends where it says.

    The loader may not write into the addresses *replaced*; one relocation fills each of *filled*.
    """
    _check_relro(image)
    tables = [segment for segment in image.segments if segment.p_type == SegmentType.DYNAMIC]
    if not tables:
        return
    for segment in tables:
        if image.offset(segment.p_vaddr) is None:
            raise BinaryError(f"PT_DYNAMIC at address {segment.p_vaddr:#x}, which no PT_LOAD fills")
    dynamic = Dynamic.of(image)
    _check_rows(dynamic, replaced)
    for name in dynamic.names():
        dynamic.raw(name)
    symbols = _symbols(dynamic)
    table = image.view(symbols)[: _count(symbols) * SymbolEntry.layout.size]
    dynamic.raw(max((name for (name,) in _NAME_OF.iter_unpack(table)), default=0))
    _check_relocations(image, replaced, _count(symbols), frozenset(filled))
    check_sections(dynamic)


def check_sections(dynamic: Dynamic) -> None:
    """`BinaryError` unless sections have all of the tables that may move, as a table is moved by its section."""
    count = _count(_symbols(dynamic))
    for kind, tag, check in _HASHES:
        if (address := dynamic.value(tag)) is not None:
            section = _section(dynamic.image, kind, address)
            if section is None:
                raise BinaryError(f"hash table at {address:#x}: expected a section that begins there")
            with at(f"section {section.name}"):
                check(dynamic.image.view(section.span), count)
    for kind, tag, size in (
        (SectionType.STRTAB, DynamicTag.STRTAB, dynamic.value(DynamicTag.STRSZ) or 0),
        (SectionType.GNU_VERSYM, DynamicTag.VERSYM, _VERSION * count),
    ):
        section = _section(dynamic.image, kind, dynamic.value(tag))
        if section is not None and section.size < size:
            raise BinaryError(f"section {section.name} of {section.size:#x} bytes, expected {size:#x} for its table")


def _section(image: ElfImage, kind: SectionType, address: int | None) -> Section | None:
    loaded = (section for section in image.sections if section.header.sh_type == kind and section.is_loaded)
    return next((section for section in loaded if section.header.sh_addr == address), None)


def _symbols(dynamic: Dynamic) -> range:
    """The file offsets of DT_SYMTAB, whose end only its section says."""
    symbols = _section(dynamic.image, SectionType.DYNSYM, dynamic.value(DynamicTag.SYMTAB))
    if symbols is None:
        raise BinaryError("no section .dynsym at DT_SYMTAB, which says how many symbols there are")
    return symbols.span


def _count(symbols: range) -> int:
    return len(symbols) // SymbolEntry.layout.size


def _check_relro(image: ElfImage) -> None:
    for segment in image.segments:
        if segment.p_type == SegmentType.GNU_RELRO and segment.p_memsz:
            ends = [
                up(load.addresses.stop, page(image.machine))
                for load in image.loads
                if segment.p_vaddr in load.addresses
            ]
            if not ends or segment.addresses.stop > ends[0]:
                raise BinaryError(
                    f"PT_GNU_RELRO of {segment.p_vaddr:#x} to {segment.addresses.stop:#x}: expected one PT_LOAD"
                )


def _check_rows(dynamic: Dynamic, replaced: Sequence[range]) -> None:
    """Each tag comes once, and no table lies in what is replaced."""
    tags = Counter(row.tag for row in dynamic.rows if row.tag not in STRING_TAGS)
    for tag, count in tags.items():
        if count > 1:
            raise BinaryError(f"tag {tag:#x} of PT_DYNAMIC comes {count} times, expected once")
    for row in dynamic.rows:
        if row.tag in ADDRESS_TAGS or row.tag in _SIZES or row.tag in _CALLED:
            size = (dynamic.value(_SIZES[row.tag]) if row.tag in _SIZES else None) or 1
            if any(row.value < span.stop and span.start < row.value + size for span in replaced):
                raise BinaryError(f"tag {row.tag:#x} of PT_DYNAMIC leads to {row.value:#x}, which would move away")


def _check_relocations(image: ElfImage, replaced: Sequence[range], count: int, filled: frozenset[int]) -> None:
    dynamic, inside = image.dynamic(), Ranges(replaced)
    rows_of = Counter[int]()
    for rows in image.relocation_tables(dynamic):
        places = column(image.view(rows), 0)
        if (used := max(column(image.view(rows), 1), default=0) >> 32) >= max(count, 1):
            raise BinaryError(f"relocation with symbol {used:#x}, expected one of {count:#x}")
        _check_places([address for address in places if inside.low <= address < inside.high], inside)
        rows_of.update(filter(filled.__contains__, places))
    _check_places(image.relr_places(image.relr_table(dynamic)), inside)
    for address, number in rows_of.items():
        if number > 1:
            raise BinaryError(f"{number} relocations of {address:#x}, expected one")


def _check_places(places: Iterable[int], replaced: Ranges) -> None:
    for address in places:
        if address in replaced:
            raise BinaryError(f"relocation of {address:#x}, in what would move away")


def _check_gnu_hash(data: memoryview, count: int) -> None:
    """Every chain that a bucket begins ends, with an odd number, at a symbol of the table."""
    bloom = Bloom.parse(data)
    first, end = bloom.header.symoffset, bloom.size + _WORD * bloom.header.nbuckets
    starts = [start for start in struct.unpack_from(f"<{bloom.header.nbuckets}I", data, bloom.size) if start]
    if not starts:
        return
    chains = struct.unpack_from(f"<{max(0, min((len(data) - end) // _WORD, count - first))}I", data, end)
    if min(starts) < first or not any(number & 1 for number in chains[max(starts) - first :]):
        raise BinaryError(f"leads to symbols {min(starts):#x} to {max(starts):#x} and on, expected {count:#x} at most")


def _check_hash(data: memoryview, count: int) -> None:
    if len(data) < 2 * _WORD:
        raise BinaryError(f"{len(data):#x} bytes, expected {2 * _WORD:#x} for the two numbers that it begins with")
    buckets, symbols, *numbers = struct.unpack_from(f"<{len(data) // _WORD}I", data)
    if len(numbers) < buckets + symbols:
        raise BinaryError(f"{len(data):#x} bytes, fewer than it says")
    if (highest := max(numbers[: buckets + symbols], default=0)) >= max(1, min(count, symbols)):
        raise BinaryError(f"leads to symbol {highest:#x}, expected one of {count:#x}")


_HASHES: tuple[tuple[SectionType, DynamicTag, Callable[[memoryview, int], None]], ...] = (
    (SectionType.GNU_HASH, DynamicTag.GNU_HASH, _check_gnu_hash),
    (SectionType.HASH, DynamicTag.HASH, _check_hash),
)
