"""The records of a 64-bit little-endian ELF file and the numbers in them, named as the specification names them.

https://gabi.xinuos.com/ ; the GNU types and tags are those of glibc's ``elf.h``
"""

from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import ClassVar

from vbuild.errors import BinaryError, VbuildError
from vbuild.files.records import I64, U8, U16, U32, U64, Ident, Packed

MAGIC = b"\x7fELF"
CLASS_64, LITTLE_ENDIAN = 2, 1


class FileType(IntEnum):
    """e_type"""

    REL = 1
    EXEC = 2
    DYN = 3
    CORE = 4


class ElfMachine(IntEnum):
    """e_machine, those whose relocations are known here."""

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
    GROUP = 17
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
    SONAME = 14
    RPATH = 15
    SYMBOLIC = 16
    REL = 17
    PLTREL = 20
    JMPREL = 23
    RUNPATH = 29
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


# the section that each of these entries of PT_DYNAMIC leads to
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
# those whose value is the offset of a path in the string table; and those of any string there
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
# DT_FLAGS_1: a program that can be loaded anywhere
DF_1_PIE = 0x08000000
# st_info, its lower four bits: the symbol stands for a section
STT_SECTION = 3
# section numbers from here on are no sections
SHN_LORESERVE = 0xFF00


# what the loader adds the file's base to (x86-64 psABI 4.4.1, aaelf64 5.7.16)
RELATIVE = {ElfMachine.X86_64: 8, ElfMachine.AARCH64: 1027}


class ElfRecord(Packed):
    """A record of an ELF file; one that is cut short is a `BinaryError`."""

    __slots__ = ()
    REFUSAL: ClassVar[type[VbuildError]] = BinaryError


@dataclass(frozen=True, slots=True)
class FileHeader(ElfRecord):
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


@dataclass(frozen=True, slots=True)
class ProgramHeader(ElfRecord):
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
        """The file offsets of its bytes."""
        return range(self.p_offset, self.p_offset + self.p_filesz)

    @property
    def addresses(self) -> range:
        """The virtual addresses it takes up, those beyond the file's bytes included."""
        return range(self.p_vaddr, self.p_vaddr + self.p_memsz)


@dataclass(frozen=True, slots=True)
class SectionHeader(ElfRecord):
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


@dataclass(frozen=True, slots=True)
class DynamicEntry(ElfRecord):
    """Elf64_Dyn"""

    d_tag: U64
    d_val: U64


@dataclass(frozen=True, slots=True)
class Relocation(ElfRecord):
    """Elf64_Rela"""

    r_offset: U64
    r_info: U64
    r_addend: I64


@dataclass(frozen=True, slots=True)
class SymbolEntry(ElfRecord):
    """Elf64_Sym"""

    st_name: U32
    st_info: U8
    st_other: U8
    st_shndx: U16
    st_value: U64
    st_size: U64


@dataclass(frozen=True, slots=True)
class VersionNeed(ElfRecord):
    """Elf64_Verneed"""

    vn_version: U16
    vn_cnt: U16
    vn_file: U32
    vn_aux: U32
    vn_next: U32


@dataclass(frozen=True, slots=True)
class VersionNeedEntry(ElfRecord):
    """Elf64_Vernaux"""

    vna_hash: U32
    vna_flags: U16
    vna_other: U16
    vna_name: U32
    vna_next: U32


@dataclass(frozen=True, slots=True)
class VersionDefinition(ElfRecord):
    """Elf64_Verdef"""

    vd_version: U16
    vd_flags: U16
    vd_ndx: U16
    vd_cnt: U16
    vd_hash: U32
    vd_aux: U32
    vd_next: U32


@dataclass(frozen=True, slots=True)
class VersionName(ElfRecord):
    """Elf64_Verdaux"""

    vda_name: U32
    vda_next: U32
