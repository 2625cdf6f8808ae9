"""What a PE file (.dll, .pyd, .exe) says of itself to Windows' loader, read from a mapped file without copying it.

    headers, sections           lief   machine, type, where its bytes are, where its tables are
    export directory            the name it was linked under, how many exports, PyInit_demo: the Python module demo
    import directory            the DLLs that it needs
    delay import directory      those loaded when they are first called
    debug directory             the PDB's id, as symbol servers have it
    certificate table           whether it is signed

lief gets the headers alone: it copies whole files twice, and 360 KB of delayed imports take it 90 s and 9 GB. The
tables are read here, no further than any real one goes.
https://learn.microsoft.com/en-us/windows/win32/debug/pe-format
"""

import re
import struct
from collections.abc import Iterator

from msgspec import Struct

from vbuild.binary.outline import (
    MODULE,
    BinaryFacts,
    BinaryLoading,
    BinaryOutline,
    Format,
    Import,
    PlainSection,
    reading_with_lief,
)
from vbuild.errors import BinaryError
from vbuild.files.records import U32, Buffer, Packed
from vbuild.pe.image import CoffHeader, DebugEntry, Directory, coff_place
from vbuild.pe.linkage import is_system

# as platform tags spell them, where one has them
_MACHINES = {0x14C: "x86", 0x1C4: "armnt", 0x200: "ia64", 0x8664: "amd64", 0xAA64: "arm64"}
# by the load configuration: x64 code that calls arm64 code, and one file for both
_HYBRIDS = {"amd64": "arm64ec", "arm64": "arm64x"}
_CHPE = 200  # the offset of CHPEMetadataPointer in IMAGE_LOAD_CONFIG_DIRECTORY64
_LOAD_CONFIG = 10
_IS_DLL, _IS_PROGRAM = 0x2000, 0x2
# by the magic of the optional header
_BITS = {0x10B: 32, 0x20B: 64}
_IS_CODE, _IS_DATA = 0x20, 0x40
_SECTION, _SYMBOL, _CODEVIEW, _CODEVIEW_SIZE = 40, 18, 2, 24
_NUMBER, _ADDRESS = struct.Struct("<I"), struct.Struct("<Q")
# exports have numbers of 16 bits; others ten times those of any real file
_MOST_EXPORTS, _MOST_IMPORTS, _MOST_LIBRARIES, _MOST_DEBUG, _LONGEST = 1 << 16, 1 << 18, 4096, 1 << 12, 255
_DEBUG_NAMES = (".debug_", ".zdebug_", ".stab")
UPX = "UPX0"
DOTNET = ".NET assembly: its code is not a processor's"
PACKED = "packed by UPX: what it unpacks is not read"
# GPU code of hundreds of MB, and tables
_WITHOUT_TEXT = frozenset({".nv_fatb", "__nv_rel", ".hip_fat", ".pdata", ".xdata", ".reloc", ".rsrc", ".edata"})
_SUFFIX = re.compile(rb"\.dll(?![\w.-])|\.\0d\0l\0l\0(?![\w.-]\0)", re.IGNORECASE)
# a whole string, or the last part of a path, in bytes and in UTF-16
_NAME = re.compile(rb"(?<![^\0/\\\"' ])[\w+-][\w.+-]*\.dll\Z", re.IGNORECASE)
_WIDE = re.compile(rb"[\w+-]\0(?:[\w.+-]\0)*\.\0d\0l\0l\0\Z", re.IGNORECASE)


class _ExportDirectory(Packed, frozen=True):
    flags: U32
    time: U32
    version: U32
    name: U32
    base: U32
    functions: U32
    names: U32
    function_table: U32
    name_table: U32
    number_table: U32


class _Import(Packed, frozen=True):
    lookup: U32
    time: U32
    forwarder: U32
    name: U32
    addresses: U32


class _DelayedImport(Packed, frozen=True):
    attributes: U32
    name: U32
    handle: U32
    addresses: U32
    names: U32
    bound: U32
    unload: U32
    time: U32


class _Section(Struct, frozen=True):
    name: str
    address: int
    span: range
    flags: int

    @property
    def plain(self) -> PlainSection:
        is_debug = self.name.startswith(_DEBUG_NAMES)
        return PlainSection(self.name, len(self.span), is_loaded=not is_debug, is_debug=is_debug)

    @property
    def has_text(self) -> bool:
        return bool(self.flags & _IS_DATA) and not self.flags & _IS_CODE and self.name not in _WITHOUT_TEXT


class _PeFile:
    """`BinaryError` unless the sections lie in *data*."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        coff_at = coff_place(data)
        self.coff = coff = CoffHeader.parse(data, coff_at)
        optional_at = coff_at + CoffHeader.layout.size
        end = optional_at + coff.optional_size + _SECTION * coff.sections
        if end > len(data):
            raise BinaryError(f"headers end at {end:#x}, past the end, {len(data):#x}")
        magic = int.from_bytes(data[optional_at:][:2], "little")
        if magic not in _BITS:
            raise BinaryError(f"optional header of the kind {magic:#x}, expected one of 32 or 64 bits")
        with reading_with_lief() as lief:
            config = lief.PE.ParserConfig()
            for table in ("imports", "exports", "signature", "rsrc", "reloc", "exceptions", "arm64x_binary"):
                setattr(config, f"parse_{table}", False)
            pe = lief.PE.parse(bytes(data[:end]), config)
            if pe is None or len(pe.sections) != coff.sections:
                raise BinaryError("headers of a PE file that cannot be read")
            self.bits = _BITS[magic]
            self.base, header_size = pe.optional_header.imagebase, pe.optional_header.sizeof_headers
            self.header_size = min(header_size, len(data))
            self.directories = [(directory.rva, directory.size) for directory in pe.data_directories]
            strings = coff.symbols_at + _SYMBOL * coff.symbols
            self.sections = [
                _Section(
                    self._name(section.fullname, strings),
                    section.virtual_address,
                    range(section.pointerto_raw_data, section.pointerto_raw_data + section.sizeof_raw_data),
                    section.characteristics,
                )
                for section in pe.sections
            ]
        self.is_packed = any(section.name == UPX for section in self.sections)
        self.symbols = self.certificates = range(0)
        # UPX takes the symbols out, and leaves in the header where they were
        if coff.symbols_at and not self.is_packed:
            # the size of the names stands before them
            size = self.number(strings) if strings + _NUMBER.size <= len(data) else 0
            self.symbols = range(coff.symbols_at, strings + size)
        # the one directory that has an offset in the file
        start, size = self.directories[Directory.SECURITY] if len(self.directories) > Directory.SECURITY else (0, 0)
        if start:
            self.certificates = range(start, start + size)
        pieces = {section.name: section.span for section in self.sections if section.span}
        pieces |= {"symbol table": self.symbols, "certificate table": self.certificates}
        for name, span in pieces.items():
            if span.stop > len(data):
                raise BinaryError(f"{name} ends at {span.stop:#x}, past the end, {len(data):#x}")
        if (total := sum(len(section.span) for section in self.sections)) > 2 * len(data):
            raise BinaryError(f"sections of {total:#x} bytes together in a file of {len(data):#x}")

    def _name(self, raw: bytes, strings: int) -> str:
        name = raw.partition(b"\0")[0]
        # "/4" is the name at that place behind the symbols
        if name[:1] == b"/" and name[1:].isdigit() and self.coff.symbols_at:
            start = strings + int(name[1:])
            name = bytes(self.data[start : start + _LONGEST]).partition(b"\0")[0] or name
        return name.decode("utf-8", "backslashreplace")

    def directory(self, number: int) -> int | None:
        address, size = self.directories[number] if number < len(self.directories) else (0, 0)
        return self.offset(address) if address and size else None

    def offset(self, address: int) -> int:
        for section in self.sections:
            if section.address <= address < section.address + len(section.span):
                return section.span.start + address - section.address
        if address < self.header_size:
            return address
        raise BinaryError(f"nothing in the file is loaded at {address:#x}")

    def number(self, offset: int, layout: struct.Struct = _NUMBER) -> int:
        if offset + layout.size > len(self.data):
            raise BinaryError(f"number at {offset:#x} is past the end, {len(self.data):#x}")
        return int(layout.unpack_from(self.data, offset)[0])

    def text(self, address: int) -> str:
        start = self.offset(address)
        text, end, _ = bytes(self.data[start : start + _LONGEST + 1]).partition(b"\0")
        if not end:
            raise BinaryError(f"name at {start:#x}, which does not end within {_LONGEST} bytes")
        return text.decode("utf-8", "backslashreplace")

    def _libraries(self, number: int, kind: type[_Import] | type[_DelayedImport]) -> Iterator[tuple[str, int]]:
        """Each DLL, and the address of the table of the symbols that are taken from it."""
        if (start := self.directory(number)) is None:
            return
        for offset in range(start, start + _MOST_LIBRARIES * kind.layout.size, kind.layout.size):
            row = kind.parse(self.data, offset)
            if not row.name:
                return
            # Visual C++ 6 wrote addresses that have the base in them
            base = self.base if isinstance(row, _DelayedImport) and not row.attributes & 1 else 0
            symbols = row.names if isinstance(row, _DelayedImport) else row.lookup or row.addresses
            yield self.text(row.name - base), symbols - base if symbols else 0
        raise BinaryError(f"imports from more than {_MOST_LIBRARIES} DLLs")

    def libraries(self, number: int, kind: type[_Import] | type[_DelayedImport]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for name, _ in self._libraries(number, kind)))

    @property
    def imports(self) -> Iterator[Import]:
        """The symbols that it takes by name."""
        layout = _ADDRESS if self.bits > _NUMBER.size * 8 else _NUMBER
        left = _MOST_IMPORTS
        tables = (*self._libraries(Directory.IMPORT, _Import), *self._libraries(Directory.DELAY_IMPORT, _DelayedImport))
        for library, address in tables:
            start = self.offset(address) if address else len(self.data)
            for offset in range(start, len(self.data) - layout.size + 1, layout.size):
                if not (symbol := self.number(offset, layout)):
                    break
                if (left := left - 1) < 0:
                    raise BinaryError(f"more than {_MOST_IMPORTS} imports")
                # the highest bit says that it is a number
                if not symbol >> layout.size * 8 - 1:
                    name_at = self.offset(symbol + 2)
                    name = bytes(self.data[name_at : name_at + _LONGEST]).partition(b"\0")[0]
                    yield Import(name.decode("utf-8", "backslashreplace"), library=library)

    @property
    def exports(self) -> _ExportDirectory | None:
        if (start := self.directory(Directory.EXPORT)) is None:
            return None
        exports = _ExportDirectory.parse(self.data, start)
        if (count := max(exports.functions, exports.names)) > _MOST_EXPORTS:
            raise BinaryError(f"{count} exports, expected {_MOST_EXPORTS} or less")
        return exports

    def _rows(self, address: int, count: int) -> Iterator[int]:
        start = self.offset(address) if count else 0
        return (self.number(start + _NUMBER.size * index) for index in range(count))

    @property
    def modules(self) -> Iterator[str]:
        exports = self.exports
        for address in self._rows(exports.name_table, exports.names) if exports else ():
            start = self.offset(address)
            if match := MODULE.match(self.data[start : start + _LONGEST + 1]):
                yield match[1].decode()

    @property
    def build_id(self) -> str | None:
        """The PDB's id as symbol servers have it: GUID and age, in hexadecimal digits."""
        if (start := self.directory(Directory.DEBUG)) is None:
            return None
        size, step = min(self.directories[Directory.DEBUG][1], _MOST_DEBUG), DebugEntry.layout.size
        for offset in range(start, start + size - step + 1, step):
            entry = DebugEntry.parse(self.data, offset)
            codeview = bytes(self.data[entry.raw_at : entry.raw_at + _CODEVIEW_SIZE])
            if entry.type == _CODEVIEW and codeview[:4] == b"RSDS" and len(codeview) == _CODEVIEW_SIZE:
                first, second, third, rest, age = struct.unpack_from("<IHH8sI", codeview, 4)
                return f"{first:08X}{second:04X}{third:04X}{rest.hex().upper()}{age:X}"
        return None

    @property
    def machine(self) -> str:
        name = _MACHINES.get(self.coff.machine, f"{self.coff.machine:#x}")
        config = self.directory(_LOAD_CONFIG) if name in _HYBRIDS else None
        if config is None or self.number(config) < _CHPE + _ADDRESS.size:
            return name
        return _HYBRIDS[name] if self.number(config + _CHPE, _ADDRESS) else name

    @property
    def mentioned(self) -> Iterator[str]:
        """The names of DLLs in its constants, without Windows's."""
        for section in self.sections:
            with self.data[section.span.start : section.span.stop] as text:
                for match in _SUFFIX.finditer(text) if section.has_text else ():
                    step, name = (2, _WIDE) if match[0][1] == 0 else (1, _NAME)
                    around = bytes(text[max(match.start() - step * _LONGEST, match.start() % step) : match.end()])
                    library = name.search(around, around.rfind(b"\0") + 1 if step == 1 else 0)
                    if library and not is_system(dll := library[0][::step].decode("ascii")):
                        yield dll

    @property
    def outline(self) -> BinaryOutline:
        exports, flags = self.exports, self.coff.characteristics
        needed = self.libraries(Directory.IMPORT, _Import)
        delayed = self.libraries(Directory.DELAY_IMPORT, _DelayedImport)
        notes: tuple[str, ...] = (PACKED,) if self.is_packed else ()
        if self.directory(Directory.CLR) is not None:
            notes += (DOTNET,)
        symbols = PlainSection("(symbols)", len(self.symbols), is_loaded=False, is_symbols=True)
        certificates = PlainSection("(certificates)", len(self.certificates), is_loaded=False)
        # numbers that were left out have no address
        addresses = self._rows(exports.function_table, exports.functions) if exports else ()
        return BinaryOutline(
            format=Format.PE,
            machine=self.machine,
            bits=self.bits,
            type="DLL" if flags & _IS_DLL else "EXE" if flags & _IS_PROGRAM else "OBJ",
            soname=self.text(exports.name) if exports and exports.name else None,
            needed=tuple(dict.fromkeys((*needed, *delayed))),
            delayed=tuple(name for name in delayed if name not in needed),
            build_id=self.build_id,
            exports=sum(1 for address in addresses if address),
            is_signed=bool(self.certificates),
            notes=notes,
            sections=(
                *(section.plain for section in self.sections),
                *(piece for piece in (symbols, certificates) if piece.size),
            ),
        )


def read_outline(data: Buffer) -> BinaryOutline:
    """The PE file *data*; `BinaryError` if it is none or is damaged."""
    with memoryview(data) as view:
        return _PeFile(view).outline


def read_loading(data: Buffer) -> BinaryLoading:
    """The PE file *data*; `BinaryError` if it is none or is damaged."""
    with memoryview(data) as view:
        file = _PeFile(view)
        outline = file.outline
        known = {name.lower() for name in (*outline.needed, outline.soname or "")}
        return BinaryLoading(
            outline=outline,
            modules=tuple(file.modules),
            is_program=outline.type == "EXE",
            mentioned=frozenset(name for name in file.mentioned if name.lower() not in known),
        )


def read_facts(data: Buffer) -> tuple[BinaryFacts, ...]:
    """The PE file *data*; `BinaryError` if it is none or is damaged."""
    with memoryview(data) as view:
        file = _PeFile(view)
        outline = file.outline
        return (BinaryFacts(outline, tuple(file.imports), tuple(file.modules), outline.type == "EXE"),)
