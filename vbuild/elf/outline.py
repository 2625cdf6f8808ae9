"""What an ELF file says about itself in its headers: read through pyelftools, from a mapped file without copying it.

    ELF header, section headers      machine, type, where its bytes are
    PT_DYNAMIC                       SONAME, NEEDED, RPATH, RUNPATH
    PT_NOTE                          build-id, GNU properties (x86 ISA needed, x86 ISA used)

pyelftools' many errors become `BinaryError` at this one door, for the whole file as `vbuild.elf.file` reads it, too.
https://gabi.xinuos.com/ and the psABI supplement, https://gitlab.com/x86-psABIs/x86-64-ABI
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from struct import error as struct_error
from typing import IO, Any, Self, cast

from elftools.common.exceptions import DWARFError, ELFError
from elftools.construct import ConstructError
from elftools.elf.elffile import ELFFile

from vbuild.errors import BinaryError
from vbuild.files.records import Buffer

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
# pyelftools turns the types it knows into names
_PROPERTY_NUMBERS = {"GNU_PROPERTY_X86_ISA_1_NEEDED": _ISA_NEEDED, "GNU_PROPERTY_X86_ISA_1_USED": _ISA_USED}
# characters: object files have some ten thousand sections, named after functions
_NAMES = 1 << 24
_SHF_ALLOC = 2
_SYMBOLS = (".symtab", ".strtab", ".symtab_shndx")
_DEBUG = (".debug_", ".zdebug_", ".gnu.debuglto_", ".gdb_index", ".stab")


@dataclass(frozen=True, slots=True)
class Section:
    """A section: its name, its bytes in the file (none for ``.bss``), and whether the loader maps them."""

    name: str
    size: int
    is_loaded: bool

    @property
    def is_symbols(self) -> bool:
        """Whether it holds names that only debuggers and profilers ask for."""
        return not self.is_loaded and self.name in _SYMBOLS

    @property
    def is_debug(self) -> bool:
        return not self.is_loaded and self.name.startswith(_DEBUG)


@dataclass(frozen=True, slots=True)
class Outline:
    """An ELF file without its contents: who it is, what it wants from the loader, and where its bytes are."""

    machine: str
    bits: int
    byte_order: str
    type: str
    soname: str | None
    needed: tuple[str, ...]
    rpath: tuple[str, ...]
    runpath: tuple[str, ...]
    isa_needed: tuple[str, ...]
    isa_used: tuple[str, ...]
    build_id: str | None
    sections: tuple[Section, ...]

    @classmethod
    def parse(cls, data: Buffer) -> Self:
        """The ELF file *data*; `BinaryError` where it is none or its headers are damaged."""
        with damage_refused():
            return cls(**ElfHeaders(data).facts())

    @property
    def is_loadable(self) -> bool:
        """Whether it is a program or a shared library, and no object file."""
        return self.type in {"ET_DYN", "ET_EXEC"}

    @property
    def has_sections(self) -> bool:
        return bool(self.sections)

    @property
    def symbol_size(self) -> int:
        """Bytes of the symbols that the loader does not need."""
        return sum(section.size for section in self.sections if section.is_symbols)

    @property
    def debug_size(self) -> int:
        """Bytes of debug information."""
        return sum(section.size for section in self.sections if section.is_debug)


class ElfHeaders:
    """The headers of the ELF file *data* as pyelftools reads them; `BinaryError` where it is none."""

    def __init__(self, data: Buffer) -> None:
        if bytes(data[:4]) != MAGIC:
            raise BinaryError(
                f"not an ELF file: begins with {bytes(data[:4]).hex(' ') or 'nothing'}, expected 7f 45 4c 46"
            )
        self.size = len(data)
        self.elf = ELFFile(cast("IO[bytes]", _Stream(data)))
        # pyelftools has a class for each type of section and segment, with methods of its own
        self._left = _NAMES
        self.sections: tuple[Any, ...] = tuple(self._named_sections())
        self.segments: tuple[Any, ...] = tuple(self.elf.iter_segments())
        self._check_sizes()

    def _named_sections(self) -> Iterator[Any]:
        for section in self.elf.iter_sections():
            self._count(section.name)
            yield section

    def _count(self, name: str) -> None:
        """Refuse names that lie over one another, so that a file of a megabyte has gigabytes of them."""
        self._left -= len(name or "")
        if self._left < 0:
            raise BinaryError(f"names of sections and libraries of more than {_NAMES:#x} characters")

    def _check_sizes(self) -> None:
        """Refuse pieces that lie over one another so often that reading each would never end."""
        kept = [section["sh_size"] for section in self.sections if section["sh_type"] != "SHT_NOBITS"]
        loaded = [segment["p_filesz"] for segment in self.segments if segment["p_type"] == "PT_LOAD"]
        if (total := max(sum(kept), sum(loaded))) > 2 * self.size:
            raise BinaryError(f"pieces of {total:#x} bytes together in a file of {self.size:#x}")

    def facts(self) -> dict[str, Any]:
        """The fields of an `Outline`, by name."""
        dynamic = self._dynamic()
        properties, build_id = self._properties()
        return {
            "machine": self.machine,
            "bits": self.elf.elfclass,
            "byte_order": "little" if self.elf.little_endian else "big",
            "type": self.elf["e_type"] if isinstance(self.elf["e_type"], str) else f"{self.elf['e_type']:#x}",
            "soname": next(iter(dynamic["DT_SONAME"]), None),
            "needed": dynamic["DT_NEEDED"],
            "rpath": _paths(dynamic["DT_RPATH"]),
            "runpath": _paths(dynamic["DT_RUNPATH"]),
            "isa_needed": _levels(properties.get(_ISA_NEEDED, 0)),
            "isa_used": _levels(properties.get(_ISA_USED, 0)),
            "build_id": build_id,
            "sections": tuple(map(_section, self.sections)),
        }

    @property
    def machine(self) -> str:
        machine = self.elf["e_machine"]
        if machine == "EM_PPC64":
            return "ppc64le" if self.elf.little_endian else "ppc64"
        return _MACHINES.get(machine, str(machine))

    def _dynamic(self) -> dict[str, tuple[str, ...]]:
        texts: dict[str, list[str]] = {tag: [] for tag in ("DT_SONAME", "DT_NEEDED", "DT_RPATH", "DT_RUNPATH")}
        attributes = {tag: tag.removeprefix("DT_").lower() for tag in texts}
        for segment in self.segments:
            if segment["p_type"] == "PT_DYNAMIC":
                for tag in segment.iter_tags():
                    if (name := tag.entry.d_tag) in texts:
                        texts[name].append(text := getattr(tag, attributes[name]))
                        self._count(text)
        return {name: tuple(found) for name, found in texts.items()}

    def _properties(self) -> tuple[dict[int, int], str | None]:
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
        segments = [segment for segment in self.segments if segment["p_type"] == "PT_NOTE"]
        sections = [section for section in self.sections if section["sh_type"] == "SHT_NOTE"]
        for holder in segments or sections:
            for note in holder.iter_notes():
                if note["n_name"] == "GNU":
                    yield note


class _Stream(io.RawIOBase):
    """A mapped file as pyelftools wants to read it: what is not asked for stays on the disk."""

    def __init__(self, data: Buffer) -> None:
        # the caller's own view and no other: pyelftools keeps this object in a cycle, and a view keeps a file mapped
        self._data = data
        self._place = 0

    def read(self, size: int | None = -1) -> bytes:
        end = len(self._data) if size is None or size < 0 else self._place + size
        piece = bytes(self._data[self._place : end])
        self._place += len(piece)
        return piece

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: len(self._data)}[whence]
        if (place := start + offset) < 0:
            raise ValueError(f"a place in front of the file: {place}")
        self._place = place
        return place

    def tell(self) -> int:
        return self._place


def _section(section: Any) -> Section:  # noqa: ANN401 - a class for each sh_type
    size = 0 if section["sh_type"] in {"SHT_NOBITS", "SHT_NULL"} else section["sh_size"]
    return Section(section.name, size, bool(section["sh_flags"] & _SHF_ALLOC))


def _levels(bits: int) -> tuple[str, ...]:
    """The levels that the *bits* of an x86 ISA property stand for, lowest first (psABI, program property)."""
    return tuple(level for bit, level in enumerate(_ISA_LEVELS) if bits >> bit & 1)


def _paths(values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(path for value in values for path in value.split(":") if path)


@contextmanager
def damage_refused() -> Iterator[None]:
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
        OSError,
        RecursionError,
        StopIteration,
        TypeError,
        ValueError,
        struct_error,
    ) as error:
        raise BinaryError(f"damaged ELF file: {type(error).__name__} while reading it: {error}") from error
