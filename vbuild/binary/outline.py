"""What a compiled file of any format says of itself to the loader; each format's room has the reader."""

import re
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from types import ModuleType
from typing import Any, Protocol

from msgspec import Struct

from vbuild.errors import BinaryError

# PyInitU_ where a name has letters that are not ASCII (PEP 489), PyModExport_ from Python 3.15 on (PEP 793)
MODULE = re.compile(rb"Py(?:Init|ModExport)U?_(\w+)\0")
_ELF_MAGIC = b"\x7fELF"
# 32 and 64 bits, of either byte order
_THIN = frozenset({b"\xfe\xed\xfa\xce", b"\xce\xfa\xed\xfe", b"\xfe\xed\xfa\xcf", b"\xcf\xfa\xed\xfe"})
_FAT = frozenset({b"\xca\xfe\xba\xbe", b"\xca\xfe\xba\xbf"})
# a Java class begins like a fat Mach-O file, with 45 or more for the count
_MOST_HALVES = 44
# where MZ files say the offset of their PE header, which linkers put right behind the program for DOS
_PE_PLACE = struct.Struct("<60xI")
_FURTHEST = 1 << 16
_PE_MAGIC = b"PE\0\0"
_PE_NAMES = (".dll", ".pyd", ".exe")
_LOADABLE = frozenset({"ET_DYN", "ET_EXEC", "DLL", "EXE", "MH_EXECUTE", "MH_DYLIB", "MH_BUNDLE"})


class Format(StrEnum):
    """ELF is Linux's, PE Windows's, Mach-O macOS's."""

    ELF = "elf"
    PE = "pe"
    MACHO = "mach-o"

    @classmethod
    def of(cls, path: str, head: Callable[[int], bytes]) -> "Format | None":
        """By the first bytes, which *head* gives; None if it is not compiled.

        A file that begins with MZ is PE by the second magic, or else, damaged, by its name.
        """
        start = head(_PE_PLACE.size)
        if start.startswith(_ELF_MAGIC):
            return cls.ELF
        if start[:4] in _THIN or (start[:4] in _FAT and 0 < int.from_bytes(start[4:8], "big") <= _MOST_HALVES):
            return cls.MACHO
        if not start.startswith(b"MZ"):
            return None
        if path.lower().endswith(_PE_NAMES):
            return cls.PE
        pe_at = _PE_PLACE.unpack(start)[0] if len(start) == _PE_PLACE.size else _FURTHEST
        return cls.PE if pe_at < _FURTHEST and head(pe_at + len(_PE_MAGIC))[pe_at:] == _PE_MAGIC else None


class SizedSection(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int:
        """Bytes in the file."""

    @property
    def is_loaded(self) -> bool: ...
    @property
    def is_symbols(self) -> bool:
        """Whether it holds names for debuggers and profilers alone."""

    @property
    def is_debug(self) -> bool: ...


class PlainSection(Struct, frozen=True):
    """Of PE and Mach-O; other parts than sections have names in brackets."""

    name: str
    size: int
    is_loaded: bool = True
    is_symbols: bool = False
    is_debug: bool = False


class BinaryOutline(Struct, frozen=True, kw_only=True):
    """A compiled file without its contents.

    *delayed* of *needed* are loaded when first called, *weak* ones may be missing. *exports* is None for ELF files. The
    *halves* of a universal2 file are whole files. *oldest_os* is of macOS. ELF alone has a *page_size*, the largest
    that it loads with, bytes of *static_tls*, and may want an executable stack, or write into its code.
    """

    format: Format = Format.ELF
    machine: str
    bits: int
    byte_order: str = "little"
    type: str
    soname: str | None
    needed: tuple[str, ...]
    delayed: tuple[str, ...] = ()
    weak: tuple[str, ...] = ()
    rpath: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()
    isa_needed: tuple[str, ...] = ()
    isa_used: tuple[str, ...] = ()
    build_id: str | None
    exports: int | None = None
    is_signed: bool = False
    notes: tuple[str, ...] = ()
    oldest_os: tuple[int, int] | None = None
    wants_executable_stack: bool = False
    page_size: int | None = None
    has_text_relocations: bool = False
    static_tls: int = 0
    sections: tuple[SizedSection, ...]
    halves: tuple["Half", ...] = ()

    @property
    def search_path(self) -> tuple[str, ...]:
        """RUNPATH, or if it is empty, RPATH, as the loader takes them."""
        return self.runpath or self.rpath

    @property
    def is_loadable(self) -> bool:
        return self.type in _LOADABLE

    @property
    def symbol_size(self) -> int:
        return sum(section.size for section in self.sections if section.is_symbols)

    @property
    def debug_size(self) -> int:
        return sum(section.size for section in self.sections if section.is_debug)

    def data(self) -> dict[str, Any]:
        return {
            "format": self.format,
            "machine": self.machine,
            "bits": self.bits,
            "byte_order": self.byte_order,
            "type": self.type,
            "soname": self.soname,
            "needed": self.needed,
            "delayed": self.delayed,
            "weak": self.weak,
            "rpath": self.rpath,
            "runpath": self.runpath,
            "build_id": self.build_id,
            "isa_needed": self.isa_needed,
            "isa_used": self.isa_used,
            "exports": self.exports,
            "signed": self.is_signed,
            "notes": self.notes,
            "symbol_bytes": self.symbol_size,
            "debug_bytes": self.debug_size,
            "sections": [
                {"name": section.name, "bytes": section.size, "loaded": section.is_loaded}
                for section in self.sections
                if section.size
            ],
        }

    def plain(self, name: str) -> str:
        """The file name of *name*, which it needs: Windows ignores case, and macOS needs paths."""
        if self.format is Format.PE:
            return name.lower()
        return name.rpartition("/")[2] if self.format is Format.MACHO else name


class Half(Struct, frozen=True):
    size: int
    outline: BinaryOutline


class LoadedName(Struct, frozen=True):
    """The symbol versions taken from one library (``.gnu.version_r``)."""

    library: str
    versions: tuple[str, ...]


class BinaryLoading(Struct, frozen=True, kw_only=True):
    """A compiled file as the loader sees it; symbols have versions in ELF files only.

    *base* is the SONAME in the version definitions. *modules* are Python modules. *mentioned* are libraries in its data
    that it does not NEED. *own_place* is how it may find out where it is.
    """

    outline: BinaryOutline
    taken: tuple[LoadedName, ...] = ()
    given: tuple[str, ...] = ()
    base: str | None = None
    modules: tuple[str, ...]
    is_program: bool
    mentioned: frozenset[str]
    own_place: tuple[str, ...] = ()


class Import(Struct, frozen=True):
    """A symbol that a file takes from others; *version* and *library* if it says them."""

    name: str
    version: str | None = None
    library: str | None = None
    is_weak: bool = False


class BinaryFacts(Struct, frozen=True):
    """What a file for one machine wants of its platform; *exported* symbols are of ELF files only."""

    outline: BinaryOutline
    imports: tuple[Import, ...]
    modules: tuple[str, ...]
    is_program: bool
    exported: frozenset[str] = frozenset()


@contextmanager
def reading_with_lief() -> Iterator[ModuleType]:
    """The module lief for a block; its errors there, and its absence, are a `BinaryError`.

    Its import takes 0.5 s, and some machines have no wheel of it.
    """
    try:
        import lief  # noqa: PLC0415
    except ImportError as error:
        raise BinaryError("PE and Mach-O files are read with lief, which is not installed") from error
    lief.logging.disable()
    try:
        yield lief
    # numbers that its enumerations do not have, and names that are not text
    except (ArithmeticError, LookupError, RuntimeError, SystemError, TypeError, ValueError) as error:
        raise BinaryError(f"headers that cannot be read: {error}") from error
