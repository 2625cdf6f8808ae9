"""The records of an ELF file and the numbers in them, named as the specification names them.

The classes declare the 64-bit records, and parse them in little-endian files; `tuples` reads them in all files. A
32-bit file has 32 bits where these have 64, and another order of fields in program headers and symbols.
https://gabi.xinuos.com/ ; the GNU types and tags are those of glibc's ``elf.h``
"""

import struct
from collections.abc import Iterator
from enum import IntEnum, IntFlag
from functools import cache
from operator import itemgetter
from typing import Any, NamedTuple

from vbuild.files.records import I64, U8, U16, U32, U64, Buffer, Ident, Packed

MAGIC = b"\x7fELF"
CLASS_32, CLASS_64 = 1, 2
LITTLE_ENDIAN, BIG_ENDIAN = 1, 2


class FileType(IntEnum):
    """e_type"""

    EXEC = 2
    DYN = 3


class ElfMachine(IntEnum):
    """e_machine of known relocations"""

    X86_64 = 62
    AARCH64 = 183


class SegmentType(IntEnum):
    """p_type"""

    NULL = 0
    LOAD = 1
    DYNAMIC = 2
    INTERP = 3
    NOTE = 4
    PHDR = 6
    TLS = 7
    GNU_EH_FRAME = 0x6474E550
    GNU_STACK = 0x6474E551
    GNU_RELRO = 0x6474E552
    GNU_PROPERTY = 0x6474E553


class SegmentFlag(IntFlag):
    """p_flags"""

    X = 1
    W = 2
    R = 4


class SectionType(IntEnum):
    """sh_type"""

    NULL = 0
    PROGBITS = 1
    SYMTAB = 2
    STRTAB = 3
    RELA = 4
    HASH = 5
    DYNAMIC = 6
    NOTE = 7
    NOBITS = 8
    REL = 9
    DYNSYM = 11
    SYMTAB_SHNDX = 18
    RELR = 19
    GNU_HASH = 0x6FFFFFF6
    GNU_VERDEF = 0x6FFFFFFD
    GNU_VERNEED = 0x6FFFFFFE
    GNU_VERSYM = 0x6FFFFFFF


class SectionFlag(IntFlag):
    """sh_flags"""

    WRITE = 1
    ALLOC = 2
    EXECINSTR = 4
    INFO_LINK = 0x40
    TLS = 0x400


class DynamicTag(IntEnum):
    """d_tag"""

    NULL = 0
    NEEDED = 1
    PLTRELSZ = 2
    HASH = 4
    STRTAB = 5
    SYMTAB = 6
    RELA = 7
    RELASZ = 8
    RELAENT = 9
    STRSZ = 10
    SYMENT = 11
    INIT = 12
    FINI = 13
    SONAME = 14
    RPATH = 15
    REL = 17
    TEXTREL = 22
    JMPREL = 23
    RUNPATH = 29
    FLAGS = 30
    RELRSZ = 35
    RELR = 36
    ANDROID_REL = 0x6000000F
    ANDROID_RELA = 0x60000011
    GNU_HASH = 0x6FFFFEF5
    CONFIG = 0x6FFFFEFA
    DEPAUDIT = 0x6FFFFEFB
    AUDIT = 0x6FFFFEFC
    VERSYM = 0x6FFFFFF0
    FLAGS_1 = 0x6FFFFFFB
    VERDEF = 0x6FFFFFFC
    VERDEFNUM = 0x6FFFFFFD
    VERNEED = 0x6FFFFFFE
    VERNEEDNUM = 0x6FFFFFFF
    AUXILIARY = 0x7FFFFFFD
    FILTER = 0x7FFFFFFF


# their value is the address of a table
ADDRESS_TAGS = frozenset(
    {
        DynamicTag.HASH,
        DynamicTag.STRTAB,
        DynamicTag.SYMTAB,
        DynamicTag.RELA,
        DynamicTag.JMPREL,
        DynamicTag.RELR,
        DynamicTag.GNU_HASH,
        DynamicTag.VERSYM,
        DynamicTag.VERDEF,
        DynamicTag.VERNEED,
    }
)
# the section of each table
LEADS: dict[int, str] = {
    DynamicTag.HASH: ".hash",
    DynamicTag.GNU_HASH: ".gnu.hash",
    DynamicTag.STRTAB: ".dynstr",
    DynamicTag.SYMTAB: ".dynsym",
    DynamicTag.VERSYM: ".gnu.version",
    DynamicTag.VERDEF: ".gnu.version_d",
    DynamicTag.VERNEED: ".gnu.version_r",
    DynamicTag.RELA: ".rela.dyn",
    DynamicTag.JMPREL: ".rela.plt",
}
# their value is the offset of a path, or of any string, in the string table
PATH_TAGS = frozenset({DynamicTag.RPATH, DynamicTag.RUNPATH})
STRING_TAGS = PATH_TAGS | {
    DynamicTag.NEEDED,
    DynamicTag.SONAME,
    DynamicTag.CONFIG,
    DynamicTag.DEPAUDIT,
    DynamicTag.AUDIT,
    DynamicTag.AUXILIARY,
    DynamicTag.FILTER,
}
# DT_FLAGS: it has relocations in code; it takes its thread-local variables to have places since the start
DF_TEXTREL, DF_STATIC_TLS = 4, 0x10
# DT_FLAGS_1: a program that can be loaded anywhere
DF_1_PIE = 0x08000000
# st_info, its lower four bits: the symbol stands for a section
STT_SECTION = 3
STT_FILE = 4
# its value is an offset in PT_TLS, no address
STT_TLS = 6
# section numbers from here on have other meanings; with SHN_XINDEX, section 0 has the number
SHN_LORESERVE, SHN_XINDEX = 0xFF00, 0xFFFF
# its value is a number, such as the size of data that objcopy has made a file of
SHN_ABS = 0xFFF1
# with this number of program headers, section 0 has the number
PN_XNUM = 0xFFFF
STB_LOCAL, STB_WEAK, STB_GNU_UNIQUE = 0, 2, 10
STV_MASK = 3
# STV_INTERNAL, STV_HIDDEN: no other file can use such a symbol
HIDDEN = frozenset({1, 2})
VER_FLG_BASE = 1
# .gnu.version: 15 bits are the number of a version, the highest one says that it is not the default
VERSION_NUMBER, VERSION_HIDDEN = 0x7FFF, 0x8000

# the relocation for which the loader adds the file's base to the addend (x86-64 psABI 4.4.1, aaelf64 5.7.16)
RELATIVE = {ElfMachine.X86_64: 8, ElfMachine.AARCH64: 1027}


class Encoding(NamedTuple):
    """The 32 or 64 *bits* of a file's numbers, and their byte order as `struct` has it, ``<`` or ``>``."""

    bits: int
    order: str


LITTLE_64 = Encoding(64, "<")
# the order of fields in 32-bit files, if it is another
_ORDER_32 = {
    "ProgramHeader": ("p_type", "p_offset", "p_vaddr", "p_paddr", "p_filesz", "p_memsz", "p_flags", "p_align"),
    "SymbolEntry": ("st_name", "st_value", "st_size", "st_info", "st_other", "st_shndx"),
}


def record_size(record: type[Packed], encoding: Encoding) -> int:
    return _structure(record, encoding)[0].size


def tuples(record: type[Packed], data: Buffer, encoding: Encoding) -> Iterator[tuple[Any, ...]]:
    """The fields, in 64-bit order, of every whole *record* in *data*."""
    layout, order = _structure(record, encoding)
    rows = layout.iter_unpack(bytes(data[: len(data) // layout.size * layout.size]))
    return rows if order is None else map(itemgetter(*order), rows)


@cache
def _structure(record: type[Packed], encoding: Encoding) -> tuple[struct.Struct, tuple[int, ...] | None]:
    names = tuple(record.codes)
    is_32_bit = encoding.bits == 32  # noqa: PLR2004
    stored = _ORDER_32.get(record.__name__, names) if is_32_bit else names
    codes = "".join(record.codes[name] for name in stored)
    if is_32_bit:
        codes = codes.replace("Q", "I").replace("q", "i")
    order = None if stored == names else tuple(stored.index(name) for name in names)
    return struct.Struct(encoding.order + codes), order


class FileHeader(Packed, frozen=True):
    """Elf64_Ehdr"""

    e_ident: Ident
    e_type: U16
    e_machine: U16
    e_version: U32
    e_entry: U64
    e_phoff: U64
    e_shoff: U64
    e_flags: U32
    e_ehsize: U16
    e_phentsize: U16
    e_phnum: U16
    e_shentsize: U16
    e_shnum: U16
    e_shstrndx: U16


class ProgramHeader(Packed, frozen=True):
    """Elf64_Phdr"""

    p_type: U32
    p_flags: U32
    p_offset: U64
    p_vaddr: U64
    p_paddr: U64
    p_filesz: U64
    p_memsz: U64
    p_align: U64

    @property
    def span(self) -> range:
        return range(self.p_offset, self.p_offset + self.p_filesz)

    @property
    def addresses(self) -> range:
        return range(self.p_vaddr, self.p_vaddr + self.p_memsz)


class SectionHeader(Packed, frozen=True):
    """Elf64_Shdr"""

    sh_name: U32
    sh_type: U32
    sh_flags: U64
    sh_addr: U64
    sh_offset: U64
    sh_size: U64
    sh_link: U32
    sh_info: U32
    sh_addralign: U64
    sh_entsize: U64


class DynamicEntry(Packed, frozen=True):
    """Elf64_Dyn"""

    d_tag: U64
    d_val: U64


class Relocation(Packed, frozen=True):
    """Elf64_Rela"""

    r_offset: U64
    r_info: U64
    r_addend: I64


class SymbolEntry(Packed, frozen=True):
    """Elf64_Sym"""

    st_name: U32
    st_info: U8
    st_other: U8
    st_shndx: U16
    st_value: U64
    st_size: U64


class VersionNeed(Packed, frozen=True):
    """Elf64_Verneed"""

    vn_version: U16
    vn_cnt: U16
    vn_file: U32
    vn_aux: U32
    vn_next: U32


class VersionNeedEntry(Packed, frozen=True):
    """Elf64_Vernaux"""

    vna_hash: U32
    vna_flags: U16
    vna_other: U16
    vna_name: U32
    vna_next: U32


class VersionDefinition(Packed, frozen=True):
    """Elf64_Verdef"""

    vd_version: U16
    vd_flags: U16
    vd_ndx: U16
    vd_cnt: U16
    vd_hash: U32
    vd_aux: U32
    vd_next: U32


class VersionName(Packed, frozen=True):
    """Elf64_Verdaux"""

    vda_name: U32
    vda_next: U32
