"""What an ELF file says, as values: read through pyelftools, whose many errors become `BinaryError` at this one door.

    PT_DYNAMIC                       SONAME, NEEDED, RPATH, RUNPATH
    .gnu.version, .gnu.version_r     the versions of the symbols it takes from other libraries
    PT_NOTE                          build-id, GNU properties (x86 ISA needed, x86 ISA used)
    SHF_EXECINSTR sections           code; without section headers the executable PT_LOAD segments
    .symtab, .dynsym, .eh_frame_hdr  functions: the first two name them, the third knows them in stripped files too
    .rela.dyn, .relr.dyn             pointers to functions and objects in data

https://gabi.xinuos.com/ and the psABI supplement, https://gitlab.com/x86-psABIs/x86-64-ABI
"""

import io
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from struct import Struct
from struct import error as struct_error
from typing import Any, Self

from elftools.common.exceptions import DWARFError, ELFError
from elftools.construct import ConstructError
from elftools.elf.elffile import ELFFile

from vbuild.binary.symbols import Symbol, Symbols
from vbuild.errors import BinaryError

MAGIC = b"\x7fELF"

# e_machine as wheels' platform tags spell it; a machine that no tag knows keeps the name ELF gives it
_MACHINES = {
    "EM_X86_64": "x86_64",
    "EM_386": "i686",
    "EM_AARCH64": "aarch64",
    "EM_ARM": "armv7l",
    "EM_S390": "s390x",
    "EM_RISCV": "riscv64",
    "EM_LOONGARCH": "loongarch64",
}
_ISA_LEVELS = ("v1", "v2", "v3", "v4")
_ISA_NEEDED, _ISA_USED = 0xC0008002, 0xC0010002
_SHF_ALLOC, _SHF_EXECINSTR, _PF_X, _PF_W = 2, 4, 1, 2
_SHT_RELR = frozenset({"SHT_RELR", 19})
_SMALLEST_VERSION_RECORD = 16
_POINTER = Struct("<Q")
_RELA = Struct("<QQq")
_R_X86_64_64 = 1
# the loader adds the file's base to the addend, or calls the ifunc resolver there
_R_X86_64_BASED = frozenset({8, 37})


@dataclass(frozen=True, slots=True)
class Code:
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
class Elf:
    """An ELF file: who it is, what it wants from the loader, and the code in it."""

    machine: str
    bits: int
    type: str
    soname: str | None
    needed: tuple[str, ...]
    rpath: tuple[str, ...]
    runpath: tuple[str, ...]
    isa_needed: tuple[str, ...]
    isa_used: tuple[str, ...]
    build_id: str | None
    code: tuple[Code, ...]
    functions: tuple[Symbol, ...]
    objects: tuple[Symbol, ...]
    imports: tuple[Import, ...]
    pointers: tuple[tuple[int, int], ...]
    import_places: tuple[tuple[int, str], ...]
    writable: tuple[range, ...]
    has_sections: bool

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """The ELF file *data*; `BinaryError` where it is none or is damaged."""
        if not data.startswith(MAGIC):
            raise BinaryError(f"not an ELF file: begins with {data[:4].hex(' ') or 'nothing'}, expected 7f 45 4c 46")
        with _damage_refused():
            return cls._read(_File(data))

    @classmethod
    def _read(cls, file: "_File") -> Self:
        dynamic = file.dynamic()
        properties, build_id = file.notes()
        code = file.code()
        symbols = file.symbols(code)
        pointers, import_places = file.pointers(symbols)
        return cls(
            machine=file.machine,
            bits=file.elf.elfclass,
            type=file.elf["e_type"] if isinstance(file.elf["e_type"], str) else f"{file.elf['e_type']:#x}",
            soname=next(iter(dynamic["DT_SONAME"]), None),
            needed=dynamic["DT_NEEDED"],
            rpath=_paths(dynamic["DT_RPATH"]),
            runpath=_paths(dynamic["DT_RUNPATH"]),
            isa_needed=_levels(properties.get(_ISA_NEEDED, 0)),
            isa_used=_levels(properties.get(_ISA_USED, 0)),
            build_id=build_id,
            code=code,
            functions=symbols.functions,
            objects=symbols.objects,
            imports=file.imports(symbols),
            pointers=pointers,
            import_places=import_places,
            writable=file.writable(),
            has_sections=file.elf.num_sections() > 0,
        )

    @property
    def is_loadable(self) -> bool:
        """Whether it is a program or a shared library, and no object file."""
        return self.type in {"ET_DYN", "ET_EXEC"}

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


class _File:
    """The bytes of an ELF file beside pyelftools' reading of them."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.elf = ELFFile(io.BytesIO(data))
        # pyelftools has a class for each type of section and segment, with methods of its own
        self._sections: tuple[Any, ...] = tuple(self.elf.iter_sections())
        self._segments: tuple[Any, ...] = tuple(self.elf.iter_segments())
        self._check_sizes()

    def _check_sizes(self) -> None:
        """Refuse pieces that lie over one another so often that reading each would never end."""
        kept = [section["sh_size"] for section in self._sections if section["sh_type"] != "SHT_NOBITS"]
        loaded = [segment["p_filesz"] for segment in self._segments if segment["p_type"] == "PT_LOAD"]
        if (total := max(sum(kept), sum(loaded))) > 2 * len(self.data):
            raise BinaryError(f"pieces of {total:#x} bytes together in a file of {len(self.data):#x}")

    @property
    def machine(self) -> str:
        machine = self.elf["e_machine"]
        if machine == "EM_PPC64":
            return "ppc64le" if self.elf.little_endian else "ppc64"
        return _MACHINES.get(machine, str(machine))

    @property
    def _is_read_in_full(self) -> bool:
        """Whether symbols and pointers are read: in files for the machines that wheels are built for today."""
        return self.elf.elfclass == 64 and self.elf.little_endian  # noqa: PLR2004 - bits, as the name says

    def dynamic(self) -> dict[str, tuple[str, ...]]:
        texts: dict[str, list[str]] = {tag: [] for tag in ("DT_SONAME", "DT_NEEDED", "DT_RPATH", "DT_RUNPATH")}
        attributes = {tag: tag.removeprefix("DT_").lower() for tag in texts}
        for segment in self._segments:
            if segment["p_type"] == "PT_DYNAMIC":
                for tag in segment.iter_tags():
                    if (name := tag.entry.d_tag) in texts:
                        texts[name].append(getattr(tag, attributes[name]))
        return {name: tuple(found) for name, found in texts.items()}

    def notes(self) -> tuple[dict[int, int], str | None]:
        """The GNU properties that are numbers, by type, and the build-id in hexadecimal digits."""
        properties: dict[int, int] = {}
        build_id = None
        for note in self._notes():
            if note["n_type"] == "NT_GNU_BUILD_ID":
                build_id = note["n_desc"]
            if note["n_type"] == "NT_GNU_PROPERTY_TYPE_0":
                for prop in note["n_desc"]:
                    if isinstance(prop.pr_data, int):
                        properties[_PROPERTY_NUMBERS.get(prop.pr_type, prop.pr_type)] = prop.pr_data
        return properties, build_id

    def _notes(self) -> Iterator[Any]:
        # the loader reads segments; object files have sections only
        segments = [segment for segment in self._segments if segment["p_type"] == "PT_NOTE"]
        sections = [section for section in self._sections if section["sh_type"] == "SHT_NOTE"]
        for holder in segments or sections:
            for note in holder.iter_notes():
                if note["n_name"] == "GNU":
                    yield note

    def code(self) -> tuple[Code, ...]:
        if self._sections:
            found = [
                Code(section.name, section["sh_addr"], self._slice(section["sh_offset"], section["sh_size"]))
                for section in self._sections
                if section["sh_flags"] & _SHF_EXECINSTR and section["sh_type"] != "SHT_NOBITS"
            ]
        else:
            found = [
                Code(f"segment {index}", segment["p_vaddr"], self._slice(segment["p_offset"], segment["p_filesz"]))
                for index, segment in enumerate(self._segments)
                if segment["p_type"] == "PT_LOAD" and segment["p_flags"] & _PF_X
            ]
        return tuple(sorted((code for code in found if code.data), key=lambda code: code.address))

    def writable(self) -> tuple[range, ...]:
        """The addresses of data that code can change."""
        return tuple(
            range(segment["p_vaddr"], segment["p_vaddr"] + segment["p_memsz"])
            for segment in self._segments
            if segment["p_type"] == "PT_LOAD" and segment["p_flags"] & _PF_W
        )

    def _slice(self, offset: int, size: int) -> bytes:
        if offset + size > len(self.data):
            raise BinaryError(f"code at {offset:#x}, {size:#x} bytes long, runs past the end, {len(self.data):#x}")
        return self.data[offset : offset + size]

    def symbols(self, code: tuple[Code, ...]) -> Symbols:
        if not self._is_read_in_full or self.elf["e_type"] not in {"ET_DYN", "ET_EXEC"}:
            return Symbols((), (), ())
        tables = []
        for section in self._sections:
            if section["sh_type"] in {"SHT_SYMTAB", "SHT_DYNSYM"}:
                names = self._section_data(self._sections[section["sh_link"]])
                tables.append((section["sh_type"] == "SHT_DYNSYM", self._section_data(section), names))
        return Symbols.parse(tables, frames=self._frames(), code=[(piece.address, piece.end) for piece in code])

    def _frames(self) -> tuple[int, bytes, bytes] | None:
        """Address and bytes of the table of unwind entries, and what follows it in its segment."""
        for segment in self._segments:
            if segment["p_type"] == "PT_GNU_EH_FRAME":
                start, end = segment["p_offset"], segment["p_offset"] + segment["p_filesz"]
                return segment["p_vaddr"], self.data[start:end], self.data[end : self._end_of_load(start)]
        return None

    def _end_of_load(self, offset: int) -> int:
        for segment in self._segments:
            start = segment["p_offset"]
            if segment["p_type"] == "PT_LOAD" and start <= offset < start + segment["p_filesz"]:
                return int(start + segment["p_filesz"])
        return offset

    def _section_data(self, section: Any) -> bytes:  # noqa: ANN401 - a class for each sh_type
        if section["sh_type"] == "SHT_NOBITS":
            return b""
        return self.data[section["sh_offset"] : section["sh_offset"] + section["sh_size"]]

    def imports(self, symbols: Symbols) -> tuple[Import, ...]:
        versions = self._versions()
        indices: bytes = b""
        for section in self._sections:
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
        for section in self._sections:
            if section["sh_type"] != "SHT_GNU_verneed":
                continue
            # counts and links are the file's word: without this limit a damaged one loops for hours
            most = section["sh_size"] // _SMALLEST_VERSION_RECORD + 1
            for library, versions in itertools.islice(section.iter_versions(), most):
                for version in itertools.islice(versions, most):
                    found[version["vna_other"] & 0x7FFF] = (library.name, version.name)
        return found

    def pointers(self, symbols: Symbols) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, str], ...]]:
        """The places in data that the loader fills: with an address of this file, and with that of an import."""
        found: list[tuple[int, int]] = []
        imported: list[tuple[int, str]] = []
        if not self._is_read_in_full or self.machine != "x86_64":
            return (), ()
        addresses, names = dict(symbols.defined), dict(symbols.undefined)
        for section in self._sections:
            data = self._section_data(section)
            if section["sh_type"] == "SHT_RELA" and section["sh_flags"] & _SHF_ALLOC:
                for place, info, addend in _RELA.iter_unpack(data[: len(data) - len(data) % _RELA.size]):
                    kind, number = info & 0xFFFFFFFF, info >> 32
                    if kind in _R_X86_64_BASED:
                        found.append((place, addend))
                    elif number in addresses:
                        found.append((place, addresses[number] + (addend if kind == _R_X86_64_64 else 0)))
                    elif number in names:
                        imported.append((place, names[number]))
            elif section["sh_type"] in _SHT_RELR:
                found += ((place, target) for place in _relr_places(data) if (target := self._word(place)))
        return tuple(found), tuple(imported)

    def _word(self, address: int) -> int:
        """The 64-bit number that the file has at *address*; 0 where it has none."""
        for segment in self._segments:
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


# pyelftools turns the types it knows into names
_PROPERTY_NUMBERS = {"GNU_PROPERTY_X86_ISA_1_NEEDED": _ISA_NEEDED, "GNU_PROPERTY_X86_ISA_1_USED": _ISA_USED}


def _levels(bits: int) -> tuple[str, ...]:
    """The levels that the *bits* of an x86 ISA property stand for, lowest first (psABI, program property)."""
    return tuple(level for bit, level in enumerate(_ISA_LEVELS) if bits >> bit & 1)


def _paths(values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(path for value in values for path in value.split(":") if path)


@contextmanager
def _damage_refused() -> Iterator[None]:
    """Every way in which pyelftools meets a damaged file, as `BinaryError`; its own raise is the better message."""
    try:
        yield
    except (ELFError, DWARFError, ConstructError) as error:
        raise BinaryError(f"damaged ELF file: {' '.join(str(error).split()) or type(error).__name__}") from error
    except (
        ArithmeticError,
        AssertionError,
        AttributeError,
        LookupError,
        MemoryError,
        NotImplementedError,
        OSError,
        RecursionError,
        StopIteration,
        TypeError,
        ValueError,
        struct_error,
    ) as error:
        raise BinaryError(f"damaged ELF file: {type(error).__name__} while reading it: {error}") from error
