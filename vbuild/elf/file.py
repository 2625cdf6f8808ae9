"""What an ELF file holds beside its headers: its code, its symbols, and what it takes from other libraries.

    .gnu.version, .gnu.version_r     the versions of the symbols it takes from other libraries
    SHF_EXECINSTR sections           code; without section headers the executable PT_LOAD segments
    .symtab, .dynsym, .eh_frame_hdr  functions: the first two name them, the third knows them in stripped files too
    .rela.dyn, .relr.dyn             pointers to functions and objects in data

https://gabi.xinuos.com/ and the psABI supplement, https://gitlab.com/x86-psABIs/x86-64-ABI
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Any, Self

from vbuild.elf.outline import ElfHeaders, Outline, damage_refused
from vbuild.elf.symbols import Symbol, Symbols
from vbuild.errors import BinaryError
from vbuild.files.records import Buffer

_SHF_ALLOC, _SHF_EXECINSTR, _PF_X, _PF_W = 2, 4, 1, 2
_SHT_RELR = frozenset({"SHT_RELR", 19})
_SMALLEST_VERSION_RECORD = 16
# .gnu.version has 15 bits for a number
_MOST_VERSIONS = 1 << 15
_POINTER = Struct("<Q")
_RELA = Struct("<QQq")
_R_X86_64_64 = 1
# the loader adds the file's base to the addend, or calls the ifunc resolver there
_R_X86_64_BASED = frozenset({8, 37})


@dataclass(frozen=True, slots=True)
class CodeSection:
    """A piece of the file that is mapped as executable."""

    name: str
    address: int
    data: bytes

    @property
    def end(self) -> int:
        return self.address + len(self.data)


@dataclass(frozen=True, slots=True)
class Import:
    """A symbol taken from another library; with the version and the library where the file says them."""

    name: str
    version: str | None = None
    library: str | None = None


@dataclass(frozen=True, slots=True)
class Elf(Outline):
    """An ELF file: who it is, what it wants from the loader, and the code in it."""

    code: tuple[CodeSection, ...]
    functions: tuple[Symbol, ...]
    objects: tuple[Symbol, ...]
    imports: tuple[Import, ...]
    pointers: tuple[tuple[int, int], ...]
    import_places: tuple[tuple[int, str], ...]
    writable: tuple[range, ...]

    @classmethod
    def parse(cls, data: Buffer) -> Self:
        """The ELF file *data*; `BinaryError` where it is none or is damaged."""
        with damage_refused():
            file = _File(data)
            facts = file.facts()
            code = file.code()
            symbols = file.symbols(code)
            pointers, import_places = file.pointers(symbols)
            return cls(
                **facts,
                code=code,
                functions=symbols.functions,
                objects=symbols.objects,
                imports=file.imports(symbols),
                pointers=pointers,
                import_places=import_places,
                writable=file.writable(),
            )

    @property
    def code_size(self) -> int:
        """Bytes of code."""
        return sum(len(code.data) for code in self.code)

    @property
    def exported(self) -> frozenset[str]:
        """The names under which other files can use its functions and objects."""
        return frozenset(
            name for symbol in (*self.functions, *self.objects) if symbol.is_exported for name in symbol.names
        )


class _File(ElfHeaders):
    """The bytes of an ELF file beside pyelftools' reading of its headers."""

    def __init__(self, data: Buffer) -> None:
        super().__init__(data)
        self.data = memoryview(data)

    @property
    def _is_read_in_full(self) -> bool:
        """Whether symbols and pointers are read: in files for the machines that wheels are built for today."""
        return self.elf.elfclass == 64 and self.elf.little_endian  # noqa: PLR2004 - bits, as the name says

    def code(self) -> tuple[CodeSection, ...]:
        if self.sections:
            found = [
                CodeSection(section.name, section["sh_addr"], self._slice(section["sh_offset"], section["sh_size"]))
                for section in self.sections
                if section["sh_flags"] & _SHF_EXECINSTR and section["sh_type"] != "SHT_NOBITS"
            ]
        else:
            found = [
                CodeSection(
                    f"segment {index}", segment["p_vaddr"], self._slice(segment["p_offset"], segment["p_filesz"])
                )
                for index, segment in enumerate(self.segments)
                if segment["p_type"] == "PT_LOAD" and segment["p_flags"] & _PF_X
            ]
        return tuple(sorted((code for code in found if code.data), key=lambda code: code.address))

    def writable(self) -> tuple[range, ...]:
        """The addresses of data that code can change."""
        return tuple(
            range(segment["p_vaddr"], segment["p_vaddr"] + segment["p_memsz"])
            for segment in self.segments
            if segment["p_type"] == "PT_LOAD" and segment["p_flags"] & _PF_W
        )

    def _slice(self, offset: int, size: int) -> bytes:
        if offset + size > len(self.data):
            raise BinaryError(f"code at {offset:#x}, {size:#x} bytes long, runs past the end, {len(self.data):#x}")
        return bytes(self.data[offset : offset + size])

    def symbols(self, code: tuple[CodeSection, ...]) -> Symbols:
        if not self._is_read_in_full or self.elf["e_type"] not in {"ET_DYN", "ET_EXEC"}:
            return Symbols((), (), ())
        tables = []
        for section in self.sections:
            if section["sh_type"] in {"SHT_SYMTAB", "SHT_DYNSYM"}:
                names = self._section_data(self.sections[section["sh_link"]])
                tables.append((section["sh_type"] == "SHT_DYNSYM", self._section_data(section), names))
        return Symbols.parse(tables, frames=self._frames(), code=[(piece.address, piece.end) for piece in code])

    def _frames(self) -> tuple[int, bytes, bytes] | None:
        """Address and bytes of the table of unwind entries, and what follows it in its segment."""
        for segment in self.segments:
            if segment["p_type"] == "PT_GNU_EH_FRAME":
                start, end = segment["p_offset"], segment["p_offset"] + segment["p_filesz"]
                return segment["p_vaddr"], bytes(self.data[start:end]), bytes(self.data[end : self._end_of_load(start)])
        return None

    def _end_of_load(self, offset: int) -> int:
        for segment in self.segments:
            start = segment["p_offset"]
            if segment["p_type"] == "PT_LOAD" and start <= offset < start + segment["p_filesz"]:
                return int(start + segment["p_filesz"])
        return offset

    def _section_data(self, section: Any) -> bytes:  # noqa: ANN401 - a class for each sh_type
        if section["sh_type"] == "SHT_NOBITS":
            return b""
        return bytes(self.data[section["sh_offset"] : section["sh_offset"] + section["sh_size"]])

    def imports(self, symbols: Symbols) -> tuple[Import, ...]:
        versions = self._versions()
        indices: bytes = b""
        for section in self.sections:
            if section["sh_type"] == "SHT_GNU_versym":
                indices = self._section_data(section)
        found = []
        for number, name in symbols.undefined:
            index = int.from_bytes(indices[2 * number : 2 * number + 2], "little") & 0x7FFF
            library, version = versions.get(index, (None, None))
            found.append(Import(name, version, library))
        return tuple(found)

    def _versions(self) -> dict[int, tuple[str, str]]:
        """Library and version by the index that ``.gnu.version`` uses."""
        found: dict[int, tuple[str, str]] = {}
        for section in self.sections:
            if section["sh_type"] != "SHT_GNU_verneed":
                continue
            # counts and links are the file's word: without this limit a damaged one loops for hours
            most = section["sh_size"] // _SMALLEST_VERSION_RECORD + 1
            left = _MOST_VERSIONS
            for library, versions in itertools.islice(section.iter_versions(), most):
                for version in itertools.islice(versions, most):
                    if (left := left - 1) < 0:
                        raise BinaryError(f"more than {_MOST_VERSIONS} symbol versions, as .gnu.version cannot number")
                    found[version["vna_other"] & 0x7FFF] = (library.name, version.name)
        return found

    def pointers(self, symbols: Symbols) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, str], ...]]:
        """The places in data that the loader fills: with an address of this file, and with that of an import."""
        found: list[tuple[int, int]] = []
        imported: list[tuple[int, str]] = []
        if not self._is_read_in_full or self.machine != "x86_64":
            return (), ()
        addresses, names = dict(symbols.defined), dict(symbols.undefined)
        for section in self.sections:
            if section["sh_type"] == "SHT_RELA" and section["sh_flags"] & _SHF_ALLOC:
                data = self._section_data(section)
                for place, info, addend in _RELA.iter_unpack(data[: len(data) - len(data) % _RELA.size]):
                    kind, number = info & 0xFFFFFFFF, info >> 32
                    if kind in _R_X86_64_BASED:
                        found.append((place, addend))
                    elif number in addresses:
                        found.append((place, addresses[number] + (addend if kind == _R_X86_64_64 else 0)))
                    elif number in names:
                        imported.append((place, names[number]))
            elif section["sh_type"] in _SHT_RELR:
                found += self._packed_pointers(self._section_data(section))
        return tuple(found), tuple(imported)

    def _packed_pointers(self, data: bytes) -> Iterator[tuple[int, int]]:
        """What the table *data* of packed relative relocations fills, and with which address."""
        for number, place in enumerate(_relr_places(data)):
            # each is a word of the file; a table that lists places twice could list them a thousand times
            if number > self.size // _POINTER.size:
                raise BinaryError(f"more packed relocations than a file of {self.size:#x} has places for")
            if target := self._word(place):
                yield place, target

    def _word(self, address: int) -> int:
        """The 64-bit number that the file has at *address*; 0 where it has none."""
        for segment in self.segments:
            if segment["p_type"] == "PT_LOAD" and 0 <= address - segment["p_vaddr"] <= segment["p_filesz"] - 8:
                return int(_POINTER.unpack_from(self.data, segment["p_offset"] + address - segment["p_vaddr"])[0])
        return 0


def _relr_places(data: bytes) -> Iterator[int]:
    """The places that a table of packed relative relocations lists (gABI, relative relocation table)."""
    place = 0
    for (word,) in _POINTER.iter_unpack(data[: len(data) - len(data) % 8]):
        if word & 1 == 0:
            yield word
            place = word + 8
        else:
            yield from (place + 8 * bit for bit in range(63) if word >> (bit + 1) & 1)
            place += 63 * 8
