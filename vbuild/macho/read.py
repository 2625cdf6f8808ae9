"""What a Mach-O file (.dylib, .so, a program) says of itself to macOS's loader, read from a mapped file.

    fat header               the halves of a universal2 file, each a file of its own
    header, load commands    lief   machine, type, segments and their sections
    LC_ID_DYLIB              the name it was linked under
    LC_LOAD_DYLIB ...        the libraries that it needs; the weak ones may be missing
    LC_RPATH                 where @rpath leads
    LC_UUID                  the build id
    LC_BUILD_VERSION         the oldest macOS that it is for, of older linkers LC_VERSION_MIN_MACOSX
    LC_SYMTAB, LC_DYSYMTAB   how many exports, which symbols strip -x takes, PyInit_demo: the Python module demo
    LC_CODE_SIGNATURE        whether it is signed, as all code for arm64 must be

lief gets headers and load commands alone: 380 KB with 16,000 symbols of one long name take it 90 s and 2 GB.
https://github.com/apple-oss-distributions/xnu/blob/main/EXTERNAL_HEADERS/mach-o/loader.h
"""

import itertools
import re
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

from vbuild.binary.outline import (
    MODULE,
    BinaryFacts,
    BinaryLoading,
    BinaryOutline,
    Format,
    Half,
    Import,
    PlainSection,
    reading_with_lief,
)
from vbuild.errors import BinaryError
from vbuild.files.records import Buffer
from vbuild.macho.linkage import is_system

if TYPE_CHECKING:
    import lief

# cputype; 1 << 24 stands for 64 bits
_MACHINES = {7: "i386", 0x1000007: "x86_64", 0x100000C: "arm64"}
_ARM64, _ARM64E = 0x100000C, 2
_SUBTYPE = 0xFFFFFF  # the rest are flags
_TYPES = ("OBJECT", "EXECUTE", "FVMLIB", "CORE", "PRELOAD", "DYLIB", "DYLINKER", "BUNDLE", "DYLIB_STUB", "DSYM")
_EXECUTE = _TYPES.index("EXECUTE") + 1
_THIN = {b"\xce\xfa\xed\xfe": 32, b"\xcf\xfa\xed\xfe": 64}
_HEADER = struct.Struct("<4sIIIIII")
# big-endian: cputype, cpusubtype, offset, size, align
_FAT = {b"\xca\xfe\xba\xbe": struct.Struct(">IIIII"), b"\xca\xfe\xba\xbf": struct.Struct(">IIQQI4x")}
# the names of more symbols are not looked at
_MOST_HALVES, _MOST_COMMANDS, _MOST_SYMBOLS = 16, 1 << 22, 1 << 22
_SYMBOL = {32: struct.Struct("<IBBHI"), 64: struct.Struct("<IBBHQ")}
_IS_STAB, _TYPE, _IN_SECTION, _IS_EXTERNAL, _IS_WEAK = 0xE0, 0x0E, 0x0E, 1, 0x40
_LONGEST = 255
_MODULE = re.compile(rb"\0_" + MODULE.pattern)
_WITH_TEXT = frozenset({"__cstring", "__const", "__data", "__ustring"})
_SUFFIX = re.compile(rb"\.(?:dylib|so)(?![\w.-])")
# a whole string, or the last part of a path
_NAME = re.compile(rb"(?<![^\0/\"' ])[\w+-][\w.+-]*\.(?:dylib|so)\Z")


class _MachoFile:
    """A file for one machine; `BinaryError` unless its tables lie in *data*."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        if bytes(data[:4]) not in _THIN or len(data) < _HEADER.size:
            raise BinaryError("not a Mach-O file of a little-endian machine: expected feedface or feedfacf")
        magic, self.cpu, self.subtype, self.kind, count, size, _ = _HEADER.unpack_from(data)
        self.bits = _THIN[magic]
        end = _HEADER.size + (4 if self.bits > 32 else 0) + size  # noqa: PLR2004 - bits
        if end > len(data) or size > _MOST_COMMANDS:
            raise BinaryError(f"load commands end at {end:#x}, past the end, {len(data):#x}")
        with reading_with_lief() as lief:
            config = lief.MachO.ParserConfig()
            config.parse_dyld_exports = config.parse_dyld_bindings = config.parse_dyld_rebases = False
            files = lief.MachO.parse(bytes(data[:end]), config)
            if files is None or len(files) != 1 or len(files.at(0).commands) != count:
                raise BinaryError("load commands that cannot be read")
            self._take(files.at(0))
        pieces = [
            *self.segments,
            ("the table of symbols", self.symbols[0], self.symbols[1] * _SYMBOL[self.bits].size),
            ("the names of symbols", *self.names),
            *((f"section {name}", start, size) for name, start, size in self.sections),
        ]
        for name, start, length in pieces:
            if start + length > len(data):
                raise BinaryError(f"{name} ends at {start + length:#x}, past the end, {len(data):#x}")
        for pieces_name, sized in (("segments", self.segments), ("sections", self.sections)):
            if (total := sum(size for *_, size in sized)) > 2 * len(data):
                raise BinaryError(f"{pieces_name} of {total:#x} bytes together in a file of {len(data):#x}")

    def _take(self, binary: "lief.MachO.Binary") -> None:
        """Read every value of *binary* that is needed: lief raises here what it cannot give."""
        self.libraries: list[tuple[str, str]] = [(library.command.name, library.name) for library in binary.libraries]
        self.rpaths: list[str] = [rpath.path for rpath in binary.rpaths]
        versions = [binary.build_version.minos] if binary.build_version else []
        versions += [binary.version_min.version] if binary.version_min else []
        self.oldest_os: tuple[int, int] | None = next(((int(major), int(minor)) for major, minor, *_ in versions), None)
        self.uuid = bytes(binary.uuid.uuid).hex() if binary.uuid else None
        self.segments = [
            (_text(segment.name), int(segment.file_offset), int(segment.file_size)) for segment in binary.segments
        ]
        self.sections = [
            (f"{_text(section.segment_name)},{_text(section.name)}", int(section.offset), int(section.size))
            for segment in binary.segments
            # the file of debug information has the headers of sections that are elsewhere
            if segment.file_size
            for section in segment.sections
            # what the loader fills with zeros has no place in the file
            if section.offset
        ]
        table, ranges = binary.symbol_command, binary.dynamic_symbol_command
        self.symbols = (int(table.symbol_offset), int(table.numberof_symbols)) if table else (0, 0)
        self.names = (int(table.strings_offset), int(table.strings_size)) if table else (0, 0)
        self.local = (int(ranges.idx_local_symbol), int(ranges.nb_local_symbols)) if ranges else (0, 0)
        exported = (ranges.idx_external_define_symbol, ranges.nb_external_define_symbols) if ranges else (0, 0)
        self.exported = (int(exported[0]), int(exported[1]))
        self.signature = int(binary.code_signature.data_size) if binary.code_signature else None

    @property
    def machine(self) -> str:
        if self.cpu == _ARM64 and self.subtype & _SUBTYPE == _ARM64E:
            return "arm64e"
        return _MACHINES.get(self.cpu, f"{self.cpu:#x}")

    def _symbols(self, first: int, count: int) -> Iterator[tuple[int, ...]]:
        layout, (start, total) = _SYMBOL[self.bits], self.symbols
        stop = min(first + count, total)
        with self.data[start + min(first, stop) * layout.size : start + stop * layout.size] as rows:
            yield from layout.iter_unpack(rows)

    @property
    def _exported(self) -> Iterator[tuple[int, ...]]:
        rows = self._symbols(*self.exported)
        return (row for row in rows if not row[1] & _IS_STAB and row[1] & _TYPE == _IN_SECTION)

    @property
    def _local_size(self) -> int:
        """Bytes of the symbols that strip -x takes, and of names only they have."""
        (first, count), (_, total), (start, size) = self.local, self.symbols, self.names
        rows = max(min(first + count, total) - first, 0) * _SYMBOL[self.bits].size
        if total > _MOST_SYMBOLS:
            return rows
        local = {row[0] for row in self._symbols(first, count)}
        others = itertools.chain(self._symbols(0, min(first, total)), self._symbols(first + count, total))
        local -= {row[0] for row in others}
        names, freed, end = bytes(self.data[start : start + size]), 0, 0
        for name in sorted(local):
            # what begins within another's name is the end of it
            if end < name < size:
                end = names.find(b"\0", name) % (size + 1)
                freed += end + 1 - name
        return rows + freed

    @property
    def modules(self) -> Iterator[str]:
        start, size = self.names
        with self.data[start : start + size] as names:
            wanted = {match.start() + 1: match[1].decode() for match in _MODULE.finditer(names)}
        for row in self._exported if wanted else ():
            if row[0] in wanted:
                yield wanted.pop(row[0])

    @property
    def imports(self) -> Iterator[Import]:
        start, size = self.names
        for name, kind, _, description, _ in self._symbols(0, min(self.symbols[1], _MOST_SYMBOLS)):
            if kind & (_IS_STAB | _TYPE) == 0 and kind & _IS_EXTERNAL and name < size:
                text = bytes(self.data[start + name : start + min(name + _LONGEST, size)]).partition(b"\0")[0]
                # C's names begin with an underscore
                plain = text.decode("utf-8", "backslashreplace").removeprefix("_")
                yield Import(plain, is_weak=bool(description & _IS_WEAK))

    @property
    def mentioned(self) -> Iterator[str]:
        for name, start, size in self.sections:
            with self.data[start : start + size] as text:
                for match in _SUFFIX.finditer(text) if name.rpartition(",")[2] in _WITH_TEXT else ():
                    around = bytes(text[max(match.start() - _LONGEST, 0) : match.end()])
                    if library := _NAME.search(around):
                        yield library[0].decode("ascii")

    @property
    def outline(self) -> BinaryOutline:
        libraries = self.libraries
        return BinaryOutline(
            format=Format.MACHO,
            machine=self.machine,
            bits=self.bits,
            type=f"MH_{_TYPES[self.kind - 1]}" if 0 < self.kind <= len(_TYPES) else f"{self.kind:#x}",
            soname=next((name for command, name in libraries if command == "ID_DYLIB"), None),
            needed=tuple(dict.fromkeys(name for command, name in libraries if command != "ID_DYLIB")),
            weak=tuple(name for command, name in libraries if command == "LOAD_WEAK_DYLIB"),
            delayed=tuple(name for command, name in libraries if command == "LAZY_LOAD_DYLIB"),
            rpath=tuple(self.rpaths),
            build_id=self.uuid,
            exports=sum(1 for _ in self._exported),
            is_signed=self.signature is not None,
            oldest_os=self.oldest_os,
            sections=tuple(self._parts()),
        )

    def _parts(self) -> Iterator[PlainSection]:
        for name, _, size in self.sections:
            is_debug = name.startswith("__DWARF,")
            yield PlainSection(name, size, is_loaded=not is_debug, is_debug=is_debug)
        local = self._local_size
        signature = self.signature or 0
        linked = sum(size for name, _, size in self.segments if name == "__LINKEDIT")
        symbols = self.symbols[1] * _SYMBOL[self.bits].size + self.names[1]
        for name, size in {
            "(local symbols)": local,
            "(other symbols)": symbols - local,
            "(code signature)": signature,
            "(fixups and exports)": linked - symbols - signature,
        }.items():
            if size > 0:
                yield PlainSection(f"__LINKEDIT,{name}", size, is_symbols=name == "(local symbols)")


def read_outline(data: Buffer) -> BinaryOutline:
    """The Mach-O file *data*, thin or fat; `BinaryError` if it is none or is damaged."""
    with memoryview(data) as view:
        return _joined([(size, file.outline) for size, file in _files(view)])


def read_loading(data: Buffer) -> BinaryLoading:
    """The Mach-O file *data*, thin or fat; `BinaryError` if it is none or is damaged."""
    with memoryview(data) as view:
        files = _files(view)
        outline = _joined([(size, file.outline) for size, file in files])
        known = {*map(outline.plain, outline.needed), outline.plain(outline.soname or "")}
        mentioned = {name for _, file in files for name in file.mentioned}
        return BinaryLoading(
            outline=outline,
            modules=tuple(dict.fromkeys(name for _, file in files for name in file.modules)),
            is_program=outline.type == "MH_EXECUTE",
            mentioned=frozenset(name for name in mentioned - known if not is_system(name)),
        )


def read_facts(data: Buffer) -> tuple[BinaryFacts, ...]:
    """The files in the Mach-O file *data*, thin or fat; `BinaryError` if it is none or is damaged."""
    with memoryview(data) as view:
        return tuple(
            BinaryFacts(file.outline, tuple(file.imports), tuple(file.modules), file.kind == _EXECUTE)
            for _, file in _files(view)
        )


def _text(name: str | bytes) -> str:
    return name if isinstance(name, str) else name.decode("utf-8", "backslashreplace")


def _files(view: memoryview) -> list[tuple[int, _MachoFile]]:
    return [(len(span), _MachoFile(view[span.start : span.stop])) for span in halves(view)]


def halves(view: memoryview) -> list[range]:
    """The offsets of the files in *view*, fat or thin; `BinaryError` unless each has bytes of its own.

    macOS chooses by the machines that the fat header states, so they have to be the files' own.
    """
    if (layout := _FAT.get(bytes(view[:4]))) is None:
        return [range(len(view))]
    count = int.from_bytes(view[4:8], "big")
    end = 8 + count * layout.size
    if not 0 < count <= _MOST_HALVES or end > len(view):
        raise BinaryError(f"fat header of {count} files, expected 1 to {_MOST_HALVES} within {len(view):#x} bytes")
    rows = list(layout.iter_unpack(view[8:end]))
    spans = [range(row[2], row[2] + row[3]) for row in rows]
    for span in sorted(spans, key=lambda span: span.start):
        if span.start < end or span.stop > len(view):
            raise BinaryError(f"file of a fat one at {span.start:#x} to {span.stop:#x}, of {len(view):#x} bytes")
        end = span.stop
    for row, span in zip(rows, spans, strict=True):
        head = bytes(view[span.start : span.start + 8])
        own = int.from_bytes(head[4:], "little")
        if head[:4] in _THIN and own != row[0]:
            raise BinaryError(f"file of a fat one at {span.start:#x} is for {own:#x}, the fat header says {row[0]:#x}")
    return spans


def _joined(files: list[tuple[int, BinaryOutline]]) -> BinaryOutline:
    outlines = [outline for _, outline in files]
    first = outlines[0]
    if len(files) == 1:
        return first
    machines = [outline.machine for outline in outlines]

    def together(field: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for outline in outlines for name in getattr(outline, field)))

    return BinaryOutline(
        format=Format.MACHO,
        machine="universal2" if sorted(machines) == ["arm64", "x86_64"] else "+".join(machines),
        bits=max(outline.bits for outline in outlines),
        type=first.type,
        soname=first.soname,
        needed=together("needed"),
        delayed=together("delayed"),
        # what one of them cannot do without has to be there
        weak=tuple(
            name
            for name in together("weak")
            if all(name in outline.weak or name not in outline.needed for outline in outlines)
        ),
        rpath=together("rpath"),
        build_id=None,
        exports=max(outline.exports or 0 for outline in outlines),
        is_signed=all(outline.is_signed for outline in outlines),
        notes=together("notes"),
        sections=tuple(
            PlainSection(f"{outline.machine}:{part.name}", part.size, part.is_loaded, part.is_symbols, part.is_debug)
            for outline in outlines
            for part in outline.sections
        ),
        halves=tuple(Half(size, outline) for size, outline in files),
    )
