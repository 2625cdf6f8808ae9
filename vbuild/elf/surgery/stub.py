"""An ELF file without code that stands where a library was, and leads the loader to where it is now.

    file header, program headers   PT_LOAD of the whole file, PT_DYNAMIC, PT_GNU_STACK
    .gnu.hash                      no bucket is filled: no symbol is here
    .dynsym                        the null symbol alone
    .dynstr                        what .dynamic says
    .dynamic                       NEEDED, RUNPATH, SONAME where the library had one
    .shstrtab, section headers     for strip, patchelf and whoever else edits it

Whoever opens it, by whatever path, gets a handle in whose dependencies dlsym finds everything: ``PyInit_…`` as well.
The dependency is NEEDED by name, so the loader looks for it in the folders of glibc-hwcaps, which it passes by for what
is opened by a path. PT_LOAD is writable because glibc before 2.35 writes into .dynamic; a file without PT_GNU_STACK
would ask for a stack that is executable.
https://gabi.xinuos.com/elf/08-dynamic.html ; https://sourceware.org/gnu-gabi/program-loading-and-dynamic-linking.txt
"""

from dataclasses import dataclass, field
from struct import Struct

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
from vbuild.errors import SurgeryError

# 4 KB: x86-64 has no other pages
_PAGE = 0x1000
_WORD = 8
_EV_CURRENT = 1
_SEGMENTS = 3
_SYMENT = 11
# buckets, first symbol that is hashed, words of the filter, shift; a filter that lets nothing pass; an empty bucket
_GNU_HASH = Struct("<IIIIQI").pack(1, 1, 1, 0, 0, 0)


def stub(needed: str, runpath: str, *, soname: str | None = None) -> bytes:
    """An x86-64 ELF file that needs *needed*, looked for in the folder *runpath* (``$ORIGIN/../demo.libs``).

    The loader takes it for the library *soname*, where that is given. `SurgeryError` for a name that is none.
    """
    for name in (needed, runpath, *([] if soname is None else [soname])):
        if not name or "\0" in name or ":" in name:
            raise SurgeryError(f"name {name!r}: expected one that is not empty, without a zero and without a colon")
    return _File(needed, runpath, soname).pack()


@dataclass(slots=True)
class _Strings:
    """A string table; its *text* begins with the empty string."""

    text: bytearray = field(default_factory=lambda: bytearray(1))

    def place(self, name: str) -> int:
        place = len(self.text)
        self.text += name.encode("utf-8", "surrogateescape") + b"\0"
        return place


@dataclass(frozen=True, slots=True)
class _Piece:
    """A section: its name's place among the strings, its type, flags, bytes, and where these begin."""

    name: int
    type: SectionType
    flags: int
    offset: int
    data: bytes
    link: int = 0
    info: int = 0
    unit: int = 0

    def header(self) -> SectionHeader:
        address = self.offset if self.flags else 0
        size = len(self.data)
        return SectionHeader(
            self.name, self.type, self.flags, address, self.offset, size, self.link, self.info, _WORD, self.unit
        )


@dataclass(frozen=True, slots=True)
class _File:
    needed: str
    runpath: str
    soname: str | None

    def pack(self) -> bytes:
        pieces, dynamic = self._pieces()
        end = _after(pieces[-1])
        size = len(dynamic.data)
        # section headers are no part of the memory
        loaded = dynamic.offset + size
        span = (dynamic.offset, dynamic.offset, dynamic.offset, size, size)
        both = SegmentFlag.R | SegmentFlag.W
        segments = (
            ProgramHeader(SegmentType.LOAD, both, 0, 0, 0, loaded, loaded, _PAGE),
            ProgramHeader(SegmentType.DYNAMIC, both, *span, _WORD),
            ProgramHeader(SegmentType.GNU_STACK, both, 0, 0, 0, 0, 0, 2 * _WORD),
        )
        null = SectionHeader(0, SectionType.NULL, 0, 0, 0, 0, 0, 0, 0, 0)
        headers = (null, *(piece.header() for piece in pieces))
        data = _file_header(end, len(segments), len(headers)).pack() + b"".join(each.pack() for each in segments)
        for piece in pieces:
            data = data.ljust(piece.offset, b"\0") + piece.data
        return data.ljust(end, b"\0") + b"".join(each.pack() for each in headers)

    def _pieces(self) -> tuple[tuple[_Piece, ...], _Piece]:
        """The sections in their order, and that of the dynamic table."""
        names, strings = _Strings(), _Strings()
        texts = [(DynamicTag.NEEDED, strings.place(self.needed))]
        if self.soname is not None:
            texts.append((DynamicTag.SONAME, strings.place(self.soname)))
        texts.append((DynamicTag.RUNPATH, strings.place(self.runpath)))
        start = FileHeader.layout.size + _SEGMENTS * ProgramHeader.layout.size
        kept = SectionFlag.ALLOC
        hashes = _Piece(names.place(".gnu.hash"), SectionType.GNU_HASH, kept, start, _GNU_HASH, link=2)
        null = SymbolEntry(0, 0, 0, 0, 0, 0).pack()
        symbols = _Piece(names.place(".dynsym"), SectionType.DYNSYM, kept, _after(hashes), null, 3, 1, len(null))
        text = _Piece(names.place(".dynstr"), SectionType.STRTAB, kept, _after(symbols), bytes(strings.text))
        rows = (
            *texts,
            (DynamicTag.GNU_HASH, hashes.offset),
            (DynamicTag.STRTAB, text.offset),
            (DynamicTag.SYMTAB, symbols.offset),
            (DynamicTag.STRSZ, len(text.data)),
            (_SYMENT, len(null)),
            (DynamicTag.NULL, 0),
        )
        table = b"".join(DynamicEntry(tag, value).pack() for tag, value in rows)
        flags, size = kept | SectionFlag.WRITE, DynamicEntry.layout.size
        dynamic = _Piece(names.place(".dynamic"), SectionType.DYNAMIC, flags, _after(text), table, 3, unit=size)
        # of their own: strip makes them anew, and would take the loader's strings for them
        own = names.place(".shstrtab")
        named = _Piece(own, SectionType.STRTAB, 0, _after(dynamic), bytes(names.text))
        return (hashes, symbols, text, dynamic, named), dynamic


def _file_header(sections_at: int, segments: int, sections: int) -> FileHeader:
    return FileHeader(
        e_ident=(MAGIC + bytes([CLASS_64, LITTLE_ENDIAN, _EV_CURRENT])).ljust(16, b"\0"),
        e_type=FileType.DYN,
        e_machine=ElfMachine.X86_64,
        e_version=_EV_CURRENT,
        e_entry=0,
        e_phoff=FileHeader.layout.size,
        e_shoff=sections_at,
        e_flags=0,
        e_ehsize=FileHeader.layout.size,
        e_phentsize=ProgramHeader.layout.size,
        e_phnum=segments,
        e_shentsize=SectionHeader.layout.size,
        e_shnum=sections,
        e_shstrndx=sections - 1,
    )


def _after(piece: _Piece) -> int:
    """The next place behind *piece* where a section may begin."""
    end = piece.offset + len(piece.data)
    return end + -end % _WORD
