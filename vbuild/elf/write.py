"""Write small ELF files without code: 64-bit, little-endian, each section at a multiple of eight bytes.

    file header, program headers
    sections in their order, and .shstrtab, apart because strip makes it anew
    section headers

`loader_stub` stands where a library was, and leads the loader to where it is now:

    program headers   PT_LOAD of the whole file but its section headers, PT_DYNAMIC, PT_GNU_STACK
    .gnu.hash         no bucket is filled: no symbol is here
    .dynsym           the null symbol alone
    .dynstr           the strings of .dynamic
    .dynamic          NEEDED, RUNPATH or RPATH, and SONAME if the library had one

dlsym finds everything in its dependency, which is NEEDED by name, so that the loader looks for it in the folders of
glibc-hwcaps. PT_LOAD is writable because glibc before 2.35 writes into .dynamic; without PT_GNU_STACK the stack could
be run.
https://gabi.xinuos.com/elf/08-dynamic.html ; https://sourceware.org/gnu-gabi/program-loading-and-dynamic-linking.txt
"""

import struct
from collections.abc import Iterable, Sequence
from itertools import accumulate

from msgspec import Struct

from vbuild.elf.records import (
    CLASS_64,
    LITTLE_ENDIAN,
    MAGIC,
    DynamicEntry,
    DynamicTag,
    ElfMachine,
    FileHeader,
    FileType,
    ProgramHeader,
    SectionFlag,
    SectionHeader,
    SectionType,
    SegmentFlag,
    SegmentType,
    SymbolEntry,
)
from vbuild.errors import BinaryError

# the largest pages that a kernel for the machine may have
_PAGES = {ElfMachine.X86_64: 0x1000, ElfMachine.AARCH64: 0x10000}
_WORD = 8
_EV_CURRENT = 1
# buckets, first hashed symbol, words of the filter, shift; a filter that lets nothing pass; an empty bucket
_GNU_HASH = struct.Struct("<IIIIQI").pack(1, 1, 1, 0, 0, 0)
_STUB_SEGMENTS = 3


class NewSection(Struct, frozen=True):
    """*link* and *info* count sections from 1 on, *entry* is sh_entsize in bytes."""

    name: str
    kind: SectionType
    data: bytes
    link: int = 0
    info: int = 0
    entry: int = 0
    flags: int = SectionFlag.ALLOC


def string_table(texts: Iterable[str]) -> tuple[bytes, tuple[int, ...]]:
    encoded = [text.encode("utf-8", "surrogateescape") + b"\0" for text in texts]
    offsets = accumulate(map(len, encoded), initial=1)
    return b"\0" + b"".join(encoded), tuple(offset for offset, _ in zip(offsets, encoded, strict=False))


def section_offsets(sizes: Iterable[int], *, segments: int) -> tuple[int, ...]:
    """File offsets and addresses by *sizes* in bytes, and the end."""
    start = FileHeader.layout.size + segments * ProgramHeader.layout.size
    return tuple(accumulate((size + -size % _WORD for size in sizes), initial=start))


def elf_file(machine: ElfMachine, sections: Sequence[NewSection], segments: Sequence[ProgramHeader] = ()) -> bytes:
    names, name_offsets = string_table([*(section.name for section in sections), ".shstrtab"])
    sections = (*sections, NewSection(".shstrtab", SectionType.STRTAB, names, flags=0))
    *offsets, end = section_offsets((len(section.data) for section in sections), segments=len(segments))
    headers = [SectionHeader(0, SectionType.NULL, 0, 0, 0, 0, 0, 0, 0, 0)]
    header = FileHeader(
        e_ident=(MAGIC + bytes((CLASS_64, LITTLE_ENDIAN, _EV_CURRENT))).ljust(16, b"\0"),
        e_type=FileType.DYN,
        e_machine=machine,
        e_version=_EV_CURRENT,
        e_entry=0,
        e_phoff=FileHeader.layout.size if segments else 0,
        e_shoff=end,
        e_flags=0,
        e_ehsize=FileHeader.layout.size,
        e_phentsize=ProgramHeader.layout.size if segments else 0,
        e_phnum=len(segments),
        e_shentsize=SectionHeader.layout.size,
        e_shnum=len(sections) + 1,
        e_shstrndx=len(sections),
    )
    data = bytearray(header.pack() + b"".join(segment.pack() for segment in segments))
    for section, name, offset in zip(sections, name_offsets, offsets, strict=True):
        headers.append(
            SectionHeader(
                sh_name=name,
                sh_type=section.kind,
                sh_flags=section.flags,
                sh_addr=offset if section.flags else 0,
                sh_offset=offset,
                sh_size=len(section.data),
                sh_link=section.link,
                sh_info=section.info,
                sh_addralign=_WORD,
                sh_entsize=section.entry,
            )
        )
        data += section.data + bytes(-len(section.data) % _WORD)
    return bytes(data) + b"".join(header.pack() for header in headers)


STUB_SECTIONS = (".gnu.hash", ".dynsym", ".dynstr", ".dynamic", ".shstrtab")
"""The sections of a `loader_stub`, by which it is known again."""


def loader_stub(
    needed: str,
    folder: str,
    *,
    soname: str | None = None,
    machine: ElfMachine = ElfMachine.X86_64,
    is_inherited: bool = False,
) -> bytes:
    """An ELF file that needs *needed* in *folder* (``$ORIGIN/../demo.libs``), its RUNPATH, and may be called *soname*.

    If *is_inherited*, that is an RPATH, where the needs of *needed* are looked for as well. `BinaryError` for a name
    that no library can have.
    """
    path_tag = DynamicTag.RPATH if is_inherited else DynamicTag.RUNPATH
    texts = {DynamicTag.NEEDED: needed, path_tag: folder}
    if soname is not None:
        texts = {DynamicTag.NEEDED: needed, DynamicTag.SONAME: soname, path_tag: folder}
    for name in texts.values():
        if not name or "\0" in name or ":" in name:
            raise BinaryError(f"name {name!r}: expected one that is not empty, without a zero and without a colon")
    strings, offsets = string_table(texts.values())
    null, entry = SymbolEntry(0, 0, 0, 0, 0, 0).pack(), DynamicEntry.layout.size
    size = (len(texts) + 6) * entry
    hashes, symbols, names, table, _ = section_offsets(
        (len(_GNU_HASH), len(null), len(strings), size), segments=_STUB_SEGMENTS
    )
    rows = (
        *zip(texts, offsets, strict=True),
        (DynamicTag.GNU_HASH, hashes),
        (DynamicTag.STRTAB, names),
        (DynamicTag.SYMTAB, symbols),
        (DynamicTag.STRSZ, len(strings)),
        (DynamicTag.SYMENT, len(null)),
        (DynamicTag.NULL, 0),
    )
    dynamic = b"".join(DynamicEntry(tag, value).pack() for tag, value in rows)
    both, writable = SegmentFlag.R | SegmentFlag.W, SectionFlag.ALLOC | SectionFlag.WRITE
    return elf_file(
        machine,
        (
            NewSection(".gnu.hash", SectionType.GNU_HASH, _GNU_HASH, link=2),
            NewSection(".dynsym", SectionType.DYNSYM, null, link=3, info=1, entry=len(null)),
            NewSection(".dynstr", SectionType.STRTAB, strings),
            NewSection(".dynamic", SectionType.DYNAMIC, dynamic, link=3, entry=entry, flags=writable),
        ),
        (
            ProgramHeader(SegmentType.LOAD, both, 0, 0, 0, table + size, table + size, _PAGES[machine]),
            ProgramHeader(SegmentType.DYNAMIC, both, table, table, table, size, size, _WORD),
            ProgramHeader(SegmentType.GNU_STACK, both, 0, 0, 0, 0, 0, 2 * _WORD),
        ),
    )
