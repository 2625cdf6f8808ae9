"""The code of a 64-bit PE file for x86-64, as the rules of evidence take it (`vbuild.binary.code`).

    .pdata              functions, but for those that call nothing and keep nothing; parts of one that chain to it
    unwind information  the functions that handle errors, which nothing else leads to: they run when theirs throws
    exports, symbols    the names that others use, and those of mingw's symbol table
    imports, delayed    the places that the loader fills with an import's address; a jump through one is a stub
    base relocations    pointers in data
    load configuration  the place through which code calls what RAX points at, where /guard:cf checks indirect calls

What the unwind information of a function leads to depends on its handler:

    __C_specific_handler    ranges of code, each with a filter and where to go on
    __CxxFrameHandler3      FuncInfo: what unwinds a state, and what catches in a block
    __CxxFrameHandler4      the same in numbers of seven bits and more

An RVA is an address counted from the image's base.
https://learn.microsoft.com/cpp/build/exception-handling-x64 ; LLVM, WinEHPrepare and Win64EH.h
"""

import re
import struct
from bisect import bisect_right
from collections.abc import Iterator

from vbuild.binary.code import CodeImage, CodeSection, Symbol
from vbuild.errors import BinaryError
from vbuild.files.records import Buffer
from vbuild.pe.image import Directory, Machine, PeImage, SectionFlag

_EXCEPTION, _LOAD_CONFIG, _ADDRESSES = 3, 10, 12
_WORD, _HALF = struct.Struct("<Q"), struct.Struct("<I")
_FUNCTION, _IMPORT, _DELAYED, _EXPORTS = (struct.Struct(f"<{count}I") for count in (3, 5, 8, 10))
_SYMBOL = struct.Struct("<8sIhHBB")
_EXTERNAL, _STATIC, _IS_FUNCTION = 2, 3, 0x20
_CHAINED, _HANDLED = 4, 3
_BY_NUMBER = 1 << 63
# no real file has as many; a number has 40 bits in the index of references
_MOST_ROWS, _MOST_NAMES, _MOST_PARTS, _HIGHEST = 1 << 20, 1 << 16, 1 << 12, 1 << 39
_MOST_CONSTANTS, _LONGEST = 1 << 25, 4096
_NO_CONSTANTS = frozenset({".pdata", ".xdata", ".reloc", ".rsrc", ".edata", ".nv_fatb", "__nv_rel", ".hip_fat"})
_JUMP = re.compile(rb"\x48?\xff\x25", re.DOTALL)
_UPX = "UPX0"
# Windows 8.1 and later need them on x86-64: support.microsoft.com, "Windows 8.1 system requirements"
_GIVEN = frozenset({"CMPXCHG16B", "LAHF-SAHF"})
# IMAGE_LOAD_CONFIG_DIRECTORY64: CHPEMetadataPointer, GuardCFDispatchFunctionPointer, GuardXFGDispatchFunctionPointer
_CHPE, _DISPATCHERS = 200, (120, 288)
_MOST_STATES = 1 << 14
# the bits of FuncInfo4's first byte
_HAS_FLAGS, _HAS_UNWINDS, _HAS_TRIES, _RESERVED = 4, 8, 16, 128
# FuncInfo's first number without flags, in its three versions; and of the rows behind it
_FUNCTION_INFO, _MASK = range(0x19930520, 0x19930523), 0x1FFFFFFF
_SCOPE, _UNWIND, _TRY, _CATCH = (struct.Struct(f"<{count}I") for count in (4, 2, 5, 5))


class LoadedPe:
    """*pe* read by RVA; *code* are the sections that run."""

    def __init__(self, pe: PeImage) -> None:
        self.pe, self.base = pe, pe.optional.image_base
        self.code = tuple(
            CodeSection(section.name, section.addresses.start, bytes(pe.view(section.span)))
            for section in pe.sections
            if section.header.flags & SectionFlag.EXECUTE and section.span
        )

    def bytes_at(self, start: int, size: int) -> bytes:
        at = self.pe.offset(self.base + start)
        if at is None:
            return b""
        sections = self.pe.sections
        index = bisect_right(sections, self.base + start, key=lambda section: section.addresses.start) - 1
        return bytes(self.pe.data[at : min(at + size, sections[index].span.stop)])

    def row(self, layout: struct.Struct, start: int) -> tuple[int, ...]:
        return next(self.rows(layout, start, 1))

    def rows(self, layout: struct.Struct, start: int, count: int) -> Iterator[tuple[int, ...]]:
        """*count* rows of *layout* from the RVA *start* on; `BinaryError` outside their section."""
        data = self.bytes_at(start, layout.size * count)
        if len(data) < layout.size * count:
            raise BinaryError(f"table of {count} rows at RVA {start:#x} runs out of its section")
        return layout.iter_unpack(data)

    def text(self, start: int) -> str:
        return self.bytes_at(start, _LONGEST).partition(b"\0")[0].decode("utf-8", "backslashreplace")

    def directory(self, number: int) -> tuple[int, int]:
        """RVA and size; zeros if there is none."""
        entry = self.pe.directories[number] if number < len(self.pe.directories) else None
        return (entry.start, entry.size) if entry and entry.start else (0, 0)

    def is_code(self, address: int) -> bool:
        return any(section.address <= address < section.end for section in self.code)

    def is_data(self, start: int) -> bool:
        return any(self.base + start in section.addresses for section in self.pe.sections if section.is_data)

    def configured(self, offset: int) -> int:
        """The word at *offset* of the load configuration; 0 behind its end."""
        config, directory_size = self.directory(_LOAD_CONFIG)
        size = int.from_bytes(self.bytes_at(config, _HALF.size), "little") if config and directory_size else 0
        is_there = offset + _WORD.size <= size
        return int.from_bytes(self.bytes_at(config + offset, _WORD.size), "little") if is_there else 0


def read_code(data: Buffer) -> CodeImage:
    """The code of the PE file *data*; `BinaryError` if it is damaged, or is not plain x86-64 code."""
    with memoryview(data) as view:
        pe = PeImage.parse(view)
        if pe.coff.machine != Machine.AMD64:
            raise BinaryError(f"code for machine {pe.coff.machine:#x}: of PE files that for x86-64 is read")
        if any(section.name == _UPX for section in pe.sections):
            raise BinaryError("packed by UPX: the code that it unpacks is not read")
        if pe.directory(Directory.CLR):
            raise BinaryError(".NET assembly: its code is not a processor's")
        if pe.optional.image_base + pe.optional.image_size > _HIGHEST:
            raise BinaryError(f"image base {pe.optional.image_base:#x}: code above {_HIGHEST:#x} is not read")
        file = LoadedPe(pe)
        if file.configured(_CHPE):
            raise BinaryError("ARM64EC: its code for x86-64 is mixed with arm64's")
        return _image(file)


def _image(file: LoadedPe) -> CodeImage:
    pe, base = file.pe, file.base
    imports, libraries = _imports(file)
    ends, parts, unwound = _functions(file)
    symbols, objects, soname = _named(file)
    handlers, is_known = _handlers(file, unwound, ends)
    stubs = _stubs(file, imports, ends)
    for start, end in ends.items():
        known = symbols.get(start)
        names = known.names if known else (f"code at {start:#x}.cold",) if start in parts else ()
        symbols[start] = Symbol(start, end - start, names, bool(known and known.is_exported))
    skipped = {stub.address for stub in stubs} - ends.keys()
    filled = () if pe.is_fixed else pe.pointers([range(base, base + pe.optional.image_size)])
    pointers = tuple((pointer.place, pointer.target) for pointer in filled if pointer.place not in imports)
    if not pointers:  # the base relocations of a program may have been taken out
        pointers = tuple(_guessed_pointers(file, imports))
    objects += _tables_in_code(file, [place for place, _ in pointers], ends)
    start, size = file.directory(_ADDRESSES)
    addresses = (range(base + start, base + start + size),) if size else ()
    return CodeImage(
        machine="x86_64",
        system="windows",
        image_base=base,
        given=_GIVEN,
        soname=soname,
        needed=libraries,
        code=file.code,
        constants=tuple(
            CodeSection(section.name, section.addresses.start, bytes(pe.view(section.span)))
            for section in pe.sections
            if section.is_data and section.name not in _NO_CONSTANTS and len(section.span) <= _MOST_CONSTANTS
        ),
        functions=tuple(symbols[address] for address in sorted(symbols) if address not in skipped),
        objects=tuple(sorted(objects, key=lambda symbol: symbol.address)),
        pointers=pointers,
        import_places=tuple(sorted(imports.items())),
        writable=tuple(section.addresses for section in pe.sections if section.header.flags & SectionFlag.WRITE),
        relro=addresses,
        slots=addresses,
        areas=tuple(section.addresses for section in pe.sections),
        stubs=stubs,
        entry=base + pe.optional.entry if pe.optional.entry else 0,
        has_handlers=bool(handlers) or not is_known,
        handlers=handlers,
        has_strange_handlers=not is_known,
        dispatchers=frozenset(place for offset in _DISPATCHERS if (place := file.configured(offset))),
    )


def _imports(file: LoadedPe) -> tuple[dict[int, str], tuple[str, ...]]:
    places: dict[int, str] = {}
    libraries: dict[str, None] = {}
    for number, layout in ((Directory.IMPORT, _IMPORT), (Directory.DELAY_IMPORT, _DELAYED)):
        at, _ = file.directory(number)
        for _ in range(_MOST_PARTS if at else 0):
            row = file.row(layout, at)
            at += layout.size
            if layout is _IMPORT:
                lookup, name, addresses = row[0] or row[4], row[3], row[4]
            else:
                name, addresses, lookup = row[1], row[3], row[4]
            if not name:
                break
            library = file.text(name)
            libraries[library] = None
            for count in range(_MOST_NAMES):
                (entry,) = file.row(_WORD, lookup + _WORD.size * count)
                if not entry:
                    break
                symbol = f"{library.lower()}#{entry & 0xFFFF}" if entry & _BY_NUMBER else file.text(entry + 2)
                places[file.base + addresses + _WORD.size * count] = symbol
    return places, tuple(libraries)


def _named(file: LoadedPe) -> tuple[dict[int, Symbol], list[Symbol], str | None]:
    """Functions by address, and objects, without sizes; and the name of the DLL."""
    names: dict[int, list[str]] = {}
    exported: set[int] = set()
    soname = None
    at, size = file.directory(Directory.EXPORT)
    if size:
        row = file.row(_EXPORTS, at)
        soname, first, functions = file.text(row[3]) if row[3] else None, row[4], row[5]
        if max(functions, row[6]) > _MOST_NAMES:
            raise BinaryError(f"{max(functions, row[6])} exports, expected {_MOST_NAMES} or less")
        names_of: dict[int, list[str]] = {}
        if row[6]:
            numbers = file.rows(struct.Struct("<H"), row[9], row[6])
            for (name_at,), (number,) in zip(file.rows(_HALF, row[8], row[6]), numbers, strict=True):
                names_of.setdefault(number, []).append(file.text(name_at))
        for number, (start,) in enumerate(file.rows(_HALF, row[7], functions) if functions else ()):
            # what is in the directory itself is the name of another DLL's
            if start and not at <= start < at + size:
                unnamed = [f"{(soname or '').lower()}#{first + number}"]
                names.setdefault(file.base + start, []).extend(names_of.get(number, unnamed))
                exported.add(file.base + start)
    for address, name in _symbols(file):
        names.setdefault(address, []).append(name)
    symbols = [
        Symbol(address, 0, tuple(dict.fromkeys(aliases)), address in exported)
        for address, aliases in sorted(names.items())
    ]
    named = {symbol.address: symbol for symbol in symbols if file.is_code(symbol.address)}
    return named, [symbol for symbol in symbols if symbol.address not in named], soname


def _symbols(file: LoadedPe) -> Iterator[tuple[int, str]]:
    coff, data, sections = file.pe.coff, file.pe.data, file.pe.sections
    end = coff.symbols_at + _SYMBOL.size * coff.symbols
    if not coff.symbols_at or coff.symbols > _MOST_ROWS or end > len(data):
        return
    skipped = 0
    for name, value, section, kind, storage, more in _SYMBOL.iter_unpack(data[coff.symbols_at : end]):
        if skipped:
            skipped -= 1
            continue
        skipped = more
        is_section = bool(more) and kind != _IS_FUNCTION
        if storage in {_EXTERNAL, _STATIC} and 0 < section <= len(sections) and not is_section:
            at = end + _HALF.unpack(name[4:])[0] if name[:4] == bytes(4) else 0
            text = bytes(data[at : at + _LONGEST]) if at else name
            address = sections[section - 1].addresses.start + value
            if kind == _IS_FUNCTION or not file.is_code(address):
                yield address, text.partition(b"\0")[0].decode("utf-8", "backslashreplace")


def _functions(file: LoadedPe) -> tuple[dict[int, int], set[int], dict[int, tuple[int, int]]]:
    """The functions in .pdata: end by start, starts of detached parts, and the RVAs of handlers."""
    at, size = file.directory(_EXCEPTION)
    count, base = size // _FUNCTION.size, file.base
    if count > _MOST_ROWS:
        raise BinaryError(f"{count} functions in .pdata, expected {_MOST_ROWS} or less")
    ends: dict[int, int] = {}
    parents: dict[int, int] = {}
    unwound: dict[int, tuple[int, int]] = {}
    for begin, end, unwind in file.rows(_FUNCTION, at, count) if count else ():
        start = base + begin
        if not begin < end or not file.is_code(start):
            continue
        ends[start] = base + end
        if unwind & 1:
            parents[start] = base + file.row(_FUNCTION, unwind & ~1)[0]
            continue
        (head,) = file.row(_HALF, unwind)
        flags, codes = head >> 3 & 31, head >> 16 & 255
        behind = unwind + _HALF.size + 2 * (codes + codes % 2)
        if flags & _CHAINED:
            parents[start] = base + file.row(_FUNCTION, behind)[0]
        elif flags & _HANDLED:
            unwound[start] = behind + _HALF.size, file.row(_HALF, behind)[0]
    # a part right behind belongs to its function
    merged: dict[int, int] = {}
    parts: set[int] = set()
    last = -1
    for start in sorted(ends):
        if start in parents:
            if last >= 0 and merged[last] == start and (last == parents[start] or last in parts):
                merged[last] = ends[start]
                continue
            parts.add(start)
        merged[start] = ends[start]
        last = start
    return merged, parts, unwound


def _guessed_pointers(file: LoadedPe, imports: dict[int, str]) -> Iterator[tuple[int, int]]:
    for section in file.pe.sections:
        if section.is_data and section.name not in _NO_CONSTANTS:
            data = file.pe.view(section.span)
            for number, (word,) in enumerate(_WORD.iter_unpack(data[: len(data) // 8 * 8])):
                place = section.addresses.start + _WORD.size * number
                if file.base <= word < file.base + file.pe.optional.image_size and place not in imports:
                    yield place, word


def _tables_in_code(file: LoadedPe, places: list[int], functions: dict[int, int]) -> Iterator[Symbol]:
    """Tables of pointers between functions, as mingw's constructors."""
    starts = sorted(functions)
    tables: list[range] = []
    for place in sorted(places):
        index = bisect_right(starts, place) - 1
        if file.is_code(place) and (index < 0 or place >= functions[starts[index]]):
            if tables and place == tables[-1].stop:
                tables[-1] = range(tables[-1].start, place + _WORD.size)
            else:
                tables.append(range(place, place + _WORD.size))
    for table in tables:
        before = file.bytes_at(table.start - _WORD.size - file.base, _WORD.size)
        behind = file.bytes_at(table.stop - file.base, _WORD.size)
        start = table.start - _WORD.size * (before == b"\xff" * _WORD.size)
        yield Symbol(start, table.stop + _WORD.size * (behind == bytes(_WORD.size)) - start)


def _stubs(file: LoadedPe, imports: dict[int, str], functions: dict[int, int]) -> tuple[CodeSection, ...]:
    starts = sorted(functions)
    stubs = []
    for code in file.code:
        for match in _JUMP.finditer(code.data):
            end = match.end() + _HALF.size
            place = code.address + end + int.from_bytes(code.data[match.end() : end], "little", signed=True)
            at = code.address + match.start()
            index = bisect_right(starts, at) - 1
            if place in imports and (index < 0 or functions[starts[index]] <= at):
                stubs.append(CodeSection(".plt", at, code.data[match.start() : end]))
    return tuple(stubs)


def _handlers(
    file: LoadedPe, unwound: dict[int, tuple[int, int]], functions: dict[int, int]
) -> tuple[dict[int, tuple[int, ...]], bool]:
    """The functions that run when one throws; and whether all tables were understood."""
    handlers: dict[int, tuple[int, ...]] = {}
    is_known = True
    for function, (data, handler) in unwound.items():
        called = _handlers_at(file, data)
        is_known &= called is not None
        own = {file.base + handler} & functions.keys()
        if more := (own | {file.base + start for start in called or ()}) - {function}:
            handlers[function] = tuple(sorted(more))
    return handlers, is_known


def _handlers_at(file: LoadedPe, data: int) -> list[int] | None:
    """The RVAs that the table at *data* leads to; None if it is of no known kind."""
    try:
        (first,) = file.row(_HALF, data)
        if file.bytes_at(first, 4) and (file.row(_HALF, first)[0] & _MASK) in _FUNCTION_INFO:
            return list(_function_info(file, first))
        if (scopes := _scopes(file, first, data + 4)) is not None:
            return scopes
        if not file.is_data(first):
            # the check of the stack has its number there, or places in the function itself
            return []
        called = list(_FunctionInfo4(file, first).handlers())
    except (BinaryError, IndexError):
        return None
    return called if all(file.is_code(file.base + start) for start in called) else None


def _function_info(file: LoadedPe, at: int) -> Iterator[int]:
    _, states, unwinds, tries, blocks = file.row(_TRY, at)
    if max(states, tries) > _MOST_STATES:
        raise BinaryError(f"{max(states, tries)} states of a function")
    for _, action in file.rows(_UNWIND, unwinds, states) if states else ():
        if action:
            yield action
    for *_, count, rows in file.rows(_TRY, blocks, tries) if tries else ():
        if count > _MOST_STATES:
            raise BinaryError(f"{count} handlers of a block")
        for row in file.rows(_CATCH, rows, count) if count else ():
            yield row[3]


def _scopes(file: LoadedPe, count: int, at: int) -> list[int] | None:
    """What the table of __C_specific_handler leads to; None if it is none."""
    if not 0 < count <= _MOST_STATES:
        return None
    try:
        rows = list(file.rows(_SCOPE, at, count))
    except BinaryError:
        return None
    if not all(
        begin < end and file.is_code(file.base + begin) and (not target or file.is_code(file.base + target))
        for begin, end, _, target in rows
    ):
        return None
    # 1 stands for a filter that takes every exception
    return [start for _, _, handler, target in rows for start in (handler, target) if start > 1]


class _FunctionInfo4:
    """FuncInfo4, of __CxxFrameHandler4, from an RVA on; `BinaryError` or `IndexError` if it is none."""

    def __init__(self, file: LoadedPe, at: int) -> None:
        self._file, self._at = file, at
        self._data, self._next = file.bytes_at(at, _LONGEST), 0

    def _byte(self) -> int:
        self._next += 1
        return self._data[self._next - 1]

    def _address(self) -> int:
        self._next += _HALF.size
        if self._next > len(self._data):
            raise BinaryError(f"table of handlers at RVA {self._at:#x} is too long")
        return int(_HALF.unpack_from(self._data, self._next - _HALF.size)[0])

    def _number(self) -> int:
        first = self._byte()
        # as many ones at the end as bytes follow, up to three
        more = next((count for count in range(_HALF.size) if not first >> count & 1), None)
        if more is None:
            return self._address()
        number = first
        for count in range(more):
            number |= self._byte() << 8 * (count + 1)
        return number >> (more + 1)

    def _rows(self) -> range:
        count = self._number()
        if count > _MOST_STATES:
            raise BinaryError(f"{count} rows in a table of handlers")
        return range(count)

    def handlers(self) -> Iterator[int]:
        head = self._byte()
        if head & _RESERVED or not head & (_HAS_UNWINDS | _HAS_TRIES):
            raise BinaryError(f"table of handlers at RVA {self._at:#x} begins with {head:#x}")
        if head & _HAS_FLAGS:
            self._number()
        unwinds = self._address() if head & _HAS_UNWINDS else 0
        tries = self._address() if head & _HAS_TRIES else 0
        if unwinds:
            yield from _FunctionInfo4(self._file, unwinds).unwinds()
        if tries:
            yield from _FunctionInfo4(self._file, tries).tries()

    def unwinds(self) -> Iterator[int]:
        for _ in self._rows():
            kind = self._number() & 3
            if kind:
                yield self._address()
            if kind in {1, 2}:
                self._number()

    def tries(self) -> Iterator[int]:
        for _ in self._rows():
            for _ in range(3):
                self._number()
            yield from _FunctionInfo4(self._file, self._address()).catches()

    def catches(self) -> Iterator[int]:
        for _ in self._rows():
            head = self._byte()
            if head & 1:
                self._number()
            if head & 2:
                self._address()
            if head & 4:
                self._number()
            yield self._address()
            for _ in range(head >> 4 & 3):
                if head & 8:
                    self._address()
                else:
                    self._number()
