"""The code of a 64-bit PE file for x86-64, as the rules of evidence take it (`vbuild.binary.code`).

    .pdata              functions, but for those that call nothing and keep nothing; parts of one that chain to it
    unwind information  the functions that handle errors, which nothing else leads to: they run when theirs throws
    exports, symbols    the names that others use, and those of mingw's symbol table
    imports, delayed    the places that the loader fills with an import's address; a jump through one is a stub
    base relocations    pointers in data
    load configuration  the place through which code calls what RAX points at, where /guard:cf checks indirect calls

https://learn.microsoft.com/cpp/build/exception-handling-x64 ; LLVM, WinEHPrepare and Win64EH.h
"""

import re
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator

from vbuild.binary.code import CodeImage, CodeSection, Symbol
from vbuild.errors import BinaryError
from vbuild.files.records import Buffer
from vbuild.pe.handlers import handlers as handlers_of
from vbuild.pe.image import Directory, Machine, PeImage, SectionFlag
from vbuild.pe.loaded import HALF, LONGEST, WORD, LoadedPe

_EXCEPTION, _LOAD_CONFIG, _ADDRESSES = 3, 10, 12
_FUNCTION, _IMPORT, _DELAYED, _EXPORTS = (struct.Struct(f"<{count}I") for count in (3, 5, 8, 10))
_SYMBOL = struct.Struct("<8sIhHBB")
_EXTERNAL, _STATIC, _IS_FUNCTION = 2, 3, 0x20
_CHAINED, _HANDLED = 4, 3
_BY_NUMBER = 1 << 63
# no real file has as many of these; a number has 40 bits in the index of references
_MOST_ROWS, _MOST_NAMES, _MOST_PARTS, _HIGHEST = 1 << 20, 1 << 16, 1 << 12, 1 << 39
_MOST_CONSTANTS = 1 << 25
_NO_CONSTANTS = frozenset({".pdata", ".xdata", ".reloc", ".rsrc", ".edata", ".nv_fatb", "__nv_rel", ".hip_fat"})
_JUMP = re.compile(rb"\x48?\xff\x25", re.DOTALL)
_UPX = "UPX0"
# Windows 8.1 and later need them on x86-64: support.microsoft.com, "Windows 8.1 system requirements"
_GIVEN = frozenset({"CMPXCHG16B", "LAHF-SAHF"})
# IMAGE_LOAD_CONFIG_DIRECTORY64: CHPEMetadataPointer, GuardCFDispatchFunctionPointer, GuardXFGDispatchFunctionPointer
_CHPE, _DISPATCHERS = 200, (120, 288)


def read_code(data: Buffer) -> CodeImage:
    """The code of the PE file *data*; `BinaryError` if it is damaged, or is not plain x86-64 code."""
    with memoryview(data) as view:
        return _Reader(view).image()


class _Reader:
    """One PE file that is read for its code."""

    def __init__(self, view: memoryview) -> None:
        pe = PeImage.parse(view)
        if pe.coff.machine != Machine.AMD64:
            raise BinaryError(f"code for machine {pe.coff.machine:#x}: of PE files that for x86-64 is read")
        if any(section.name == _UPX for section in pe.sections):
            raise BinaryError("packed by UPX: the code that it unpacks is not read")
        if pe.directory(Directory.CLR):
            raise BinaryError(".NET assembly: its code is not a processor's")
        self._base, self._top = pe.optional.image_base, pe.optional.image_base + pe.optional.image_size
        if self._top > _HIGHEST:
            raise BinaryError(f"image base {self._base:#x}: code above {_HIGHEST:#x} is not read")
        self._file = LoadedPe(pe)
        self._config, size = self._file.directory(_LOAD_CONFIG)
        if not size:
            self._config = 0
        if self._config and self._configured(_CHPE):
            raise BinaryError("ARM64EC: its code for x86-64 is mixed with arm64's")

    def _configured(self, place: int) -> int:
        """The word at *place* of the load configuration; 0 behind its end."""
        size = int.from_bytes(self._file.bytes_at(self._config, HALF.size), "little")
        is_there = place + WORD.size <= size
        return int.from_bytes(self._file.bytes_at(self._config + place, WORD.size), "little") if is_there else 0

    def image(self) -> CodeImage:
        pe = self._file.pe
        imports, libraries = self._imports()
        functions, parts, unwound = self._functions()
        named, objects, soname = self._named()
        handlers, is_known = handlers_of(self._file, unwound, frozenset(functions))
        stubs = self._stubs({place for place, _ in imports}, functions)
        symbols = dict(named)
        ends = dict(functions)
        for start, end in functions.items():
            known = symbols.get(start)
            names = known.names if known else (f"code at {start:#x}.cold",) if start in parts else ()
            symbols[start] = Symbol(start, end - start, names, bool(known and known.is_exported))
        skipped = {stub.address for stub in stubs} - ends.keys()
        start, size = self._file.directory(_ADDRESSES)
        places = {place for place, _ in imports}
        pointers = (() if pe.is_fixed else self._pointers(places)) or tuple(self._guessed_pointers(places))
        tables = self._tables_in_code([place for place, _ in pointers], functions)
        return CodeImage(
            machine="x86_64",
            system="windows",
            image_base=self._base,
            given=_GIVEN,
            soname=soname,
            needed=libraries,
            code=self._file.code,
            constants=tuple(
                CodeSection(section.name, section.addresses.start, bytes(pe.view(section.span)))
                for section in pe.sections
                if section.is_data and section.name not in _NO_CONSTANTS and len(section.span) <= _MOST_CONSTANTS
            ),
            functions=tuple(symbols[at] for at in sorted(symbols) if at not in skipped),
            objects=tuple(sorted((*objects, *tables), key=lambda one: one.address)),
            pointers=pointers,
            import_places=imports,
            writable=tuple(section.addresses for section in pe.sections if section.header.flags & SectionFlag.WRITE),
            relro=(range(self._base + start, self._base + start + size),) if size else (),
            slots=(range(self._base + start, self._base + start + size),) if size else (),
            areas=tuple(section.addresses for section in pe.sections),
            stubs=stubs,
            entry=self._base + pe.optional.entry if pe.optional.entry else 0,
            has_handlers=bool(handlers) or not is_known,
            handlers=handlers,
            has_strange_handlers=not is_known,
            dispatchers=frozenset(place for at in _DISPATCHERS if self._config and (place := self._configured(at))),
        )

    def _imports(self) -> tuple[tuple[tuple[int, str], ...], tuple[str, ...]]:
        """The places that the loader fills with an import's address, now or when it is first called; and the DLLs."""
        places: dict[int, str] = {}
        libraries: dict[str, None] = {}
        for number, layout in ((Directory.IMPORT, _IMPORT), (Directory.DELAY_IMPORT, _DELAYED)):
            at, _ = self._file.directory(number)
            for _ in range(_MOST_PARTS if at else 0):
                row = self._file.row(layout, at)
                at += layout.size
                if layout is _IMPORT:
                    lookup, name, addresses = row[0] or row[4], row[3], row[4]
                else:
                    name, addresses, lookup = row[1], row[3], row[4]
                if not name:
                    break
                library = self._file.text(name)
                libraries[library] = None
                for count in range(_MOST_NAMES):
                    (entry,) = self._file.row(WORD, lookup + WORD.size * count)
                    if not entry:
                        break
                    called = f"{library.lower()}#{entry & 0xFFFF}" if entry & _BY_NUMBER else self._file.text(entry + 2)
                    places[self._base + addresses + WORD.size * count] = called
        return tuple(sorted(places.items())), tuple(libraries)

    def _named(self) -> tuple[dict[int, Symbol], tuple[Symbol, ...], str | None]:
        """The functions and objects with names, and the name that the file was linked under."""
        names: dict[int, list[str]] = {}
        exported: set[int] = set()
        soname = None
        at, size = self._file.directory(Directory.EXPORT)
        if size:
            row = self._file.row(_EXPORTS, at)
            soname, first, functions = self._file.text(row[3]) if row[3] else None, row[4], row[5]
            if max(functions, row[6]) > _MOST_NAMES:
                raise BinaryError(f"{max(functions, row[6])} exports, expected {_MOST_NAMES} or less")
            addresses = [one for (one,) in self._file.rows(HALF, row[7], functions)] if functions else []
            called: dict[int, list[str]] = {}
            if row[6]:
                numbers = self._file.rows(struct.Struct("<H"), row[9], row[6])
                for (place,), (number,) in zip(self._file.rows(HALF, row[8], row[6]), numbers, strict=True):
                    called.setdefault(number, []).append(self._file.text(place))
            for number, address in enumerate(addresses):
                # what is in the directory itself is the name of another DLL's
                if address and not at <= address < at + size:
                    base = soname.lower() if soname else ""
                    names.setdefault(self._base + address, []).extend(called.get(number, [f"{base}#{first + number}"]))
                    exported.add(self._base + address)
        for address, name in self._symbols():
            names.setdefault(address, []).append(name)
        found = {
            address: Symbol(address, 0, tuple(dict.fromkeys(some)), address in exported)
            for address, some in sorted(names.items())
        }
        functions_of = {address: one for address, one in found.items() if self._file.is_code(address)}
        return functions_of, tuple(one for address, one in found.items() if address not in functions_of), soname

    def _symbols(self) -> Iterator[tuple[int, str]]:
        """The functions and variables in mingw's symbol table: address and name."""
        coff, data = self._file.pe.coff, self._file.pe.data
        end = coff.symbols_at + _SYMBOL.size * coff.symbols
        if not coff.symbols_at or coff.symbols > _MOST_ROWS or end > len(data):
            return
        skipped = 0
        for name, value, section, kind, storage, more in _SYMBOL.iter_unpack(data[coff.symbols_at : end]):
            if skipped:
                skipped -= 1
                continue
            skipped = more
            is_own = bool(more) and kind != _IS_FUNCTION  # a section's
            if storage not in {_EXTERNAL, _STATIC} or not 0 < section <= len(self._file.pe.sections) or is_own:
                continue
            at = end + HALF.unpack(name[4:])[0] if name[:4] == bytes(4) else 0
            text = bytes(data[at : at + LONGEST]) if at else name
            address = self._file.pe.sections[section - 1].addresses.start + value
            if kind == _IS_FUNCTION or not self._file.is_code(address):
                yield address, text.partition(b"\0")[0].decode("utf-8", "backslashreplace")

    def _functions(self) -> tuple[dict[int, int], frozenset[int], dict[int, tuple[int, int]]]:
        """Where functions start and end; the starts of those that are parts of others; and where handlers are told.

        That is by the start of a function: RVA of the handler's data, and its own address.
        """
        at, size = self._file.directory(_EXCEPTION)
        count = size // _FUNCTION.size
        if count > _MOST_ROWS:
            raise BinaryError(f"{count} functions in .pdata, expected {_MOST_ROWS} or less")
        ends: dict[int, int] = {}
        parents: dict[int, int] = {}
        told: dict[int, tuple[int, int]] = {}
        for begin, end, unwind in self._file.rows(_FUNCTION, at, count) if count else ():
            if not begin < end or not self._file.is_code(self._base + begin):
                continue
            ends[begin] = end
            if unwind & 1:
                parents[begin] = self._file.row(_FUNCTION, unwind & ~1)[0]
                continue
            (head,) = self._file.row(HALF, unwind)
            flags, count = head >> 3 & 31, head >> 16 & 255
            behind = unwind + HALF.size + 2 * (count + count % 2)
            if flags & _CHAINED:
                parents[begin] = self._file.row(_FUNCTION, behind)[0]
            elif flags & _HANDLED:
                told[begin] = behind + HALF.size, self._file.row(HALF, behind)[0]
        merged, parts = self._merged(ends, parents)
        base = self._base
        return (
            {base + begin: base + end for begin, end in merged.items()},
            frozenset(base + begin for begin in parts),
            {base + begin: where for begin, where in told.items()},
        )

    @staticmethod
    def _merged(ends: dict[int, int], parents: dict[int, int]) -> tuple[dict[int, int], set[int]]:
        """Functions with the parts right behind them; and the starts of parts that stand elsewhere."""
        merged: dict[int, int] = {}
        parts: set[int] = set()
        last = -1
        for begin in sorted(ends):
            if begin in parents:
                if last >= 0 and merged[last] == begin and (last == parents[begin] or last in parts):
                    merged[last] = ends[begin]
                    continue
                parts.add(begin)
            merged[begin] = ends[begin]
            last = begin
        return merged, parts

    # pointers

    def _pointers(self, imports: Iterable[int]) -> tuple[tuple[int, int], ...]:
        known = set(imports)
        return tuple(
            (pointer.place, pointer.target)
            for pointer in self._file.pe.pointers([range(self._base, self._top)])
            if pointer.place not in known
        )

    def _guessed_pointers(self, imports: Iterable[int]) -> Iterator[tuple[int, int]]:
        """Every word in data that may be an address, for a file whose base relocations were taken out."""
        known = set(imports)
        for section in self._file.pe.sections:
            if not section.is_data or section.name in _NO_CONSTANTS:
                continue
            start, data = section.addresses.start, self._file.pe.view(section.span)
            for number, (word,) in enumerate(WORD.iter_unpack(data[: len(data) // 8 * 8])):
                place = start + WORD.size * number
                if self._base <= word < self._top and place not in known:
                    yield place, word

    def _tables_in_code(self, places: Iterable[int], functions: dict[int, int]) -> Iterator[Symbol]:
        """The tables of pointers between functions, as mingw has one of constructors, with -1 in front and 0 behind."""
        starts, last = sorted(functions), range(0)
        for place in sorted(places):
            index = bisect_right(starts, place) - 1
            if not self._file.is_code(place) or (index >= 0 and place < functions[starts[index]]):
                continue
            if place == last.stop:
                last = range(last.start, place + WORD.size)
                continue
            if last:
                yield self._table(last)
            last = range(place, place + WORD.size)
        if last:
            yield self._table(last)

    def _table(self, places: range) -> Symbol:
        before = self._file.bytes_at(places.start - WORD.size - self._base, WORD.size)
        start = places.start - WORD.size * (before == b"\xff" * WORD.size)
        stop = places.stop + WORD.size * (self._file.bytes_at(places.stop - self._base, WORD.size) == bytes(WORD.size))
        return Symbol(start, stop - start)

    def _stubs(self, imports: set[int], functions: dict[int, int]) -> tuple[CodeSection, ...]:
        """The jumps through an import's place that stand alone, outside functions that .pdata knows."""
        starts = sorted(functions)
        found = []
        for code in self._file.code:
            for match in _JUMP.finditer(code.data):
                end = match.end() + HALF.size
                place = code.address + end + int.from_bytes(code.data[match.end() : end], "little", signed=True)
                at = code.address + match.start()
                index = bisect_right(starts, at) - 1
                if place in imports and (index < 0 or functions[starts[index]] <= at):
                    found.append(CodeSection(".plt", at, code.data[match.start() : end]))
        return tuple(found)
