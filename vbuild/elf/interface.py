"""What a shared library gives to others and takes from them, symbol by symbol; and whether two are the same code.

    .dynsym, .gnu.version      a name, defined here or not, and the number of its version
    .gnu.version_d             the versions that it gives
    .gnu.version_r             the versions that it takes, each from a library

Copies of templates and inline functions are *vague*: which are left is a matter of inlining, and no promise.
https://refspecs.linuxfoundation.org/LSB_5.0.0/LSB-Core-generic/LSB-Core-generic/symversion.html
https://itanium-cxx-abi.github.io/cxx-abi/abi.html#vague
"""

import hashlib
from collections.abc import Callable, Iterator
from typing import Self

from isal import isal_zlib
from msgspec import Struct

from vbuild.elf.image import ElfImage, Section, StringTable
from vbuild.elf.read import version_definitions, version_needs
from vbuild.elf.records import (
    HIDDEN,
    SHN_LORESERVE,
    STB_GNU_UNIQUE,
    STB_LOCAL,
    STB_WEAK,
    STV_MASK,
    VER_FLG_BASE,
    VERSION_HIDDEN,
    VERSION_NUMBER,
    SectionFlag,
    SectionType,
    SymbolEntry,
    tuples,
)
from vbuild.errors import BinaryError
from vbuild.files.records import Buffer

_OF_LINKERS = frozenset({"_init", "_fini", "_edata", "_end", "__bss_start"})
# how C++ and Rust spell the names that a compiler chose
_MANGLED = ("_Z", "_R")
# what a tool that renames libraries changes, or moves
_NAMING = frozenset({SectionType.STRTAB, SectionType.DYNAMIC, SectionType.NOTE, SectionType.GNU_VERNEED})
_MOVING = frozenset(
    {SectionType.DYNSYM, SectionType.HASH, SectionType.GNU_HASH, SectionType.GNU_VERSYM, SectionType.GNU_VERDEF}
    | {SectionType.RELA, SectionType.RELR}
)


class Versioned(Struct, frozen=True):
    name: str
    version: str | None = None

    def __str__(self) -> str:
        return f"{self.name}@{self.version}" if self.version else self.name

    @property
    def is_mangled(self) -> bool:
        """Whether a C++ or Rust compiler chose the name, so that files which take it were linked against it."""
        return self.name.startswith(_MANGLED)


class Interface(Struct, frozen=True):
    """The symbols that a library gives and takes; files that use *vague* ones give them, too.

    *defaults* are given for the name without a version. *checksum* is the same for files of one `digest`, and rarely
    for others.
    """

    exported: frozenset[Versioned]
    vague: frozenset[Versioned]
    defaults: frozenset[str]
    taken: frozenset[Versioned]
    checksum: str

    @classmethod
    def parse(cls, data: Buffer) -> Self:
        """`BinaryError` if *data* is damaged, or not 64-bit little-endian."""
        image = ElfImage.parse(data)
        tables = _Tables(image)
        exported: set[Versioned] = set()
        vague: set[Versioned] = set()
        defaults: set[str] = set()
        taken: set[Versioned] = set()
        for row in tables.rows():
            if not row.is_defined:
                if not row.is_weak:  # those may be missing
                    taken.add(row.symbol)
                continue
            (vague if row.is_weak and row.symbol.is_mangled else exported).add(row.symbol)
            if not row.is_hidden:
                defaults.add(row.symbol.name)
        checksum = _digest(image, tables, lambda content: isal_zlib.crc32(content).to_bytes(4, "little"))
        return cls(frozenset(exported), frozenset(vague), frozenset(defaults), frozenset(taken), checksum)

    def answers(self, symbol: Versioned) -> bool:
        """Whether a file that takes *symbol* finds it here, maybe as the default."""
        if symbol.version is None:
            return symbol.name in self.defaults
        return symbol in self.exported or symbol in self.vague

    def lacking(self, other: Self) -> tuple[Versioned, ...]:
        """The symbols that *other* gives and this does not, except vague ones."""
        return tuple(sorted((symbol for symbol in other.exported if not self.answers(symbol)), key=str))


def digest(data: Buffer) -> str:
    """The SHA-256 of what is loaded of the ELF file *data*, without library names and notes.

    `BinaryError` as of `Interface.parse`.
    """
    image = ElfImage.parse(data)
    return _digest(image, _Tables(image), lambda content: content)


class _Row(Struct, frozen=True):
    symbol: Versioned
    is_defined: bool
    is_weak: bool
    is_hidden: bool
    raw: tuple[int, ...]


class _Tables:
    def __init__(self, image: ElfImage) -> None:
        self._image = image
        self._sections = {section.header.sh_type: section for section in reversed(image.sections)}
        self._names: dict[int, StringTable] = {}
        if sum(section.header.sh_type == SectionType.DYNSYM for section in image.sections) > 1:
            raise BinaryError("two tables of dynamic symbols; expected one")
        self._versions = dict(self._read_versions())

    def rows(self) -> Iterator[_Row]:
        if (table := self._sections.get(SectionType.DYNSYM)) is None:
            return
        names = self._strings(table)
        versym = self._sections.get(SectionType.GNU_VERSYM)
        numbers = bytes(self._image.view(versym.span)) if versym else b""
        for index, raw in enumerate(tuples(SymbolEntry, self._image.view(table.span), self._image.encoding)):
            name, info, other, section, _, _ = raw
            binding = info >> 4
            if not name or binding == STB_LOCAL or other & STV_MASK in HIDDEN:
                continue
            number = int.from_bytes(numbers[2 * index : 2 * index + 2], "little")
            symbol = Versioned(names.at(name), self._versions.get(number & VERSION_NUMBER))
            # linkers' own: nobody takes those
            if symbol.name == symbol.version or symbol.name in _OF_LINKERS:
                continue
            is_weak = binding in {STB_WEAK, STB_GNU_UNIQUE}
            yield _Row(symbol, bool(section), is_weak, bool(number & VERSION_HIDDEN), raw)

    def _read_versions(self) -> Iterator[tuple[int, str]]:
        """The names of the versions given or taken, by number; the base one, the file itself, has none."""
        if section := self._sections.get(SectionType.GNU_VERDEF):
            for definition, names in version_definitions(self._image, section.span.start):
                if names and not definition.vd_flags & VER_FLG_BASE:
                    yield definition.vd_ndx & VERSION_NUMBER, self._strings(section).at(names[0])
        if section := self._sections.get(SectionType.GNU_VERNEED):
            for _, entries in version_needs(self._image, section.span.start):
                for entry in entries:
                    yield entry.vna_other & VERSION_NUMBER, self._strings(section).at(entry.vna_name)

    def _strings(self, section: Section) -> StringTable:
        index = section.header.sh_link
        if index >= len(self._image.sections):
            raise BinaryError(f"names of {section.name} in section {index}, expected one below its number of sections")
        if index not in self._names:
            self._names[index] = StringTable(bytes(self._image.view(self._image.sections[index].span)), kind="name")
        return self._names[index]


def _digest(image: ElfImage, tables: _Tables, content: Callable[[memoryview], Buffer]) -> str:
    digest = hashlib.sha256()
    # tools sort sections
    for section in sorted(image.sections, key=lambda section: section.name):
        header = section.header
        if not header.sh_flags & SectionFlag.ALLOC or header.sh_type in _NAMING:
            continue
        address = 0 if header.sh_type in _MOVING else header.sh_addr
        digest.update(f"{section.name} {header.sh_type} {header.sh_flags} {address} {header.sh_size}\n".encode())
        if header.sh_type == SectionType.DYNSYM:
            for row in tables.rows():
                # neither a name's place among the strings nor a section's number is part of it
                _, info, other, index, value, size = row.raw
                kind = index if index >= SHN_LORESERVE else bool(index)
                digest.update(f"{row.symbol} {info} {other} {kind} {value} {size}\n".encode())
        elif header.sh_type != SectionType.NOBITS:
            with image.view(section.span) as view:
                digest.update(content(view))
    return digest.hexdigest()
