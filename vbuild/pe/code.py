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
from collections.abc import Callable, Iterable, Iterator

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
# no real file has as many of these; a number has 40 bits in the index of references
_MOST_ROWS, _MOST_NAMES, _LONGEST, _HIGHEST = 1 << 20, 1 << 16, 4096, 1 << 39
_MOST_STATES, _MOST_PARTS = 1 << 14, 1 << 12
# the bits of FuncInfo4's first byte
_HAS_FLAGS, _HAS_UNWINDS, _HAS_TRIES, _RESERVED = 4, 8, 16, 128
_MOST_CONSTANTS = 1 << 25
_NO_CONSTANTS = frozenset({".pdata", ".xdata", ".reloc", ".rsrc", ".edata", ".nv_fatb", "__nv_rel", ".hip_fat"})
_JUMP = re.compile(rb"\x48?\xff\x25", re.DOTALL)
_UPX = "UPX0"
# Windows 8.1 and later need them on x86-64: support.microsoft.com, "Windows 8.1 system requirements"
_GIVEN = frozenset({"CMPXCHG16B", "LAHF-SAHF"})
# IMAGE_LOAD_CONFIG_DIRECTORY64: CHPEMetadataPointer, GuardCFDispatchFunctionPointer, GuardXFGDispatchFunctionPointer
_CHPE, _DISPATCHERS = 200, (120, 288)
# FuncInfo's first number without flags, in its three versions; and of the rows behind it
_FUNCTION_INFO, _MASK = range(0x19930520, 0x19930523), 0x1FFFFFFF
_SCOPE, _UNWIND, _TRY, _CATCH = (struct.Struct(f"<{count}I") for count in (4, 2, 5, 5))


def read_code(data: Buffer) -> CodeImage:
    """The code of the PE file *data*; `BinaryError` if it is damaged, or is not plain x86-64 code."""
    with memoryview(data) as view:
        return _Reader(view).image()


class _Reader:
    """One PE file that is read for its code."""

    def __init__(self, view: memoryview) -> None:
        self._pe = pe = PeImage.parse(view)
        if pe.coff.machine != Machine.AMD64:
            raise BinaryError(f"code for machine {pe.coff.machine:#x}: of PE files that for x86-64 is read")
        if any(section.name == _UPX for section in pe.sections):
            raise BinaryError("packed by UPX: the code that it unpacks is not read")
        if pe.directory(Directory.CLR):
            raise BinaryError(".NET assembly: its code is not a processor's")
        self._base, self._top = pe.optional.image_base, pe.optional.image_base + pe.optional.image_size
        if self._top > _HIGHEST:
            raise BinaryError(f"image base {self._base:#x}: code above {_HIGHEST:#x} is not read")
        config = pe.directories[_LOAD_CONFIG] if len(pe.directories) > _LOAD_CONFIG else None
        self._config = config.start if config and config.size else 0
        if self._config and self._word(self._config + _CHPE, self._config):
            raise BinaryError("ARM64EC: its code for x86-64 is mixed with arm64's")
        self._code = tuple(
            CodeSection(section.name, section.addresses.start, bytes(pe.view(section.span)))
            for section in pe.sections
            if section.header.flags & SectionFlag.EXECUTE and section.span
        )

    # parts of the file, by RVA

    def _bytes(self, start: int, size: int) -> bytes:
        """Up to *size* bytes that are loaded at *start*, counted from the image's base."""
        at = self._pe.offset(self._base + start)
        if at is None:
            return b""
        index = bisect_right(self._pe.sections, self._base + start, key=lambda one: one.addresses.start) - 1
        return bytes(self._pe.data[at : min(at + size, self._pe.sections[index].span.stop)])

    def _row(self, layout: struct.Struct, start: int) -> tuple[int, ...]:
        found = self._bytes(start, layout.size)
        if len(found) < layout.size:
            raise BinaryError(f"table at RVA {start:#x} runs out of its section")
        return layout.unpack(found)

    def _rows(self, layout: struct.Struct, start: int, count: int) -> Iterator[tuple[int, ...]]:
        found = self._bytes(start, layout.size * count)
        if len(found) < layout.size * count:
            raise BinaryError(f"table of {count} rows at RVA {start:#x} runs out of its section")
        return layout.iter_unpack(found)

    def _text(self, start: int) -> str:
        return self._bytes(start, _LONGEST).partition(b"\0")[0].decode("utf-8", "backslashreplace")

    def _word(self, start: int, config: int) -> int:
        """The word at *start* of the load configuration at *config*; 0 behind its end."""
        size = int.from_bytes(self._bytes(config, _HALF.size), "little")
        return int.from_bytes(self._bytes(start, _WORD.size), "little") if start - config + _WORD.size <= size else 0

    def _start(self, number: int) -> tuple[int, int]:
        """RVA and size of the data directory of that *number*."""
        found = self._pe.directories[number] if number < len(self._pe.directories) else None
        return (found.start, found.size) if found and found.start else (0, 0)

    # what stands in them

    def image(self) -> CodeImage:
        pe = self._pe
        imports, libraries = self._imports()
        functions, parts, unwound = self._functions()
        named, objects, soname = self._named()
        handlers, is_known = self._handlers(unwound, frozenset(functions))
        stubs = self._stubs({place for place, _ in imports}, functions)
        symbols = dict(named)
        ends = dict(functions)
        for start, end in functions.items():
            known = symbols.get(start)
            names = known.names if known else (f"code at {start:#x}.cold",) if start in parts else ()
            symbols[start] = Symbol(start, end - start, names, bool(known and known.is_exported))
        skipped = {stub.address for stub in stubs} - ends.keys()
        start, size = self._start(_ADDRESSES)
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
            code=self._code,
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
            dispatchers=frozenset(
                place for at in _DISPATCHERS if self._config and (place := self._word(self._config + at, self._config))
            ),
        )

    def _imports(self) -> tuple[tuple[tuple[int, str], ...], tuple[str, ...]]:
        """The places that the loader fills with an import's address, now or when it is first called; and the DLLs."""
        places: dict[int, str] = {}
        libraries: dict[str, None] = {}
        for number, layout in ((Directory.IMPORT, _IMPORT), (Directory.DELAY_IMPORT, _DELAYED)):
            at, _ = self._start(number)
            for _ in range(_MOST_PARTS if at else 0):
                row = self._row(layout, at)
                at += layout.size
                if layout is _IMPORT:
                    lookup, name, addresses = row[0] or row[4], row[3], row[4]
                else:
                    name, addresses, lookup = row[1], row[3], row[4]
                if not name:
                    break
                library = self._text(name)
                libraries[library] = None
                for count in range(_MOST_NAMES):
                    (entry,) = self._row(_WORD, lookup + _WORD.size * count)
                    if not entry:
                        break
                    called = f"{library.lower()}#{entry & 0xFFFF}" if entry & _BY_NUMBER else self._text(entry + 2)
                    places[self._base + addresses + _WORD.size * count] = called
        return tuple(sorted(places.items())), tuple(libraries)

    def _named(self) -> tuple[dict[int, Symbol], tuple[Symbol, ...], str | None]:
        """The functions and objects with names, and the name that the file was linked under."""
        names: dict[int, list[str]] = {}
        exported: set[int] = set()
        soname = None
        at, size = self._start(Directory.EXPORT)
        if size:
            row = self._row(_EXPORTS, at)
            soname, first, functions = self._text(row[3]) if row[3] else None, row[4], row[5]
            if max(functions, row[6]) > _MOST_NAMES:
                raise BinaryError(f"{max(functions, row[6])} exports, expected {_MOST_NAMES} or less")
            addresses = [one for (one,) in self._rows(_HALF, row[7], functions)] if functions else []
            called: dict[int, list[str]] = {}
            if row[6]:
                numbers = self._rows(struct.Struct("<H"), row[9], row[6])
                for (place,), (number,) in zip(self._rows(_HALF, row[8], row[6]), numbers, strict=True):
                    called.setdefault(number, []).append(self._text(place))
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
        functions_of = {address: one for address, one in found.items() if self._is_code(address)}
        return functions_of, tuple(one for address, one in found.items() if address not in functions_of), soname

    def _symbols(self) -> Iterator[tuple[int, str]]:
        """The functions and variables in mingw's symbol table: address and name."""
        coff, data = self._pe.coff, self._pe.data
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
            if storage not in {_EXTERNAL, _STATIC} or not 0 < section <= len(self._pe.sections) or is_own:
                continue
            at = end + _HALF.unpack(name[4:])[0] if name[:4] == bytes(4) else 0
            text = bytes(data[at : at + _LONGEST]) if at else name
            address = self._pe.sections[section - 1].addresses.start + value
            if kind == _IS_FUNCTION or not self._is_code(address):
                yield address, text.partition(b"\0")[0].decode("utf-8", "backslashreplace")

    def _is_code(self, address: int) -> bool:
        return any(code.address <= address < code.end for code in self._code)

    def _functions(self) -> tuple[dict[int, int], frozenset[int], dict[int, tuple[int, int]]]:
        """Where functions start and end; the starts of those that are parts of others; and where handlers are told.

        That is by the start of a function: RVA of the handler's data, and its own address.
        """
        at, size = self._start(_EXCEPTION)
        count = size // _FUNCTION.size
        if count > _MOST_ROWS:
            raise BinaryError(f"{count} functions in .pdata, expected {_MOST_ROWS} or less")
        ends: dict[int, int] = {}
        parents: dict[int, int] = {}
        told: dict[int, tuple[int, int]] = {}
        for begin, end, unwind in self._rows(_FUNCTION, at, count) if count else ():
            if not begin < end or not self._is_code(self._base + begin):
                continue
            ends[begin] = end
            if unwind & 1:
                parents[begin] = self._row(_FUNCTION, unwind & ~1)[0]
                continue
            (head,) = self._row(_HALF, unwind)
            flags, count = head >> 3 & 31, head >> 16 & 255
            behind = unwind + _HALF.size + 2 * (count + count % 2)
            if flags & _CHAINED:
                parents[begin] = self._row(_FUNCTION, behind)[0]
            elif flags & _HANDLED:
                told[begin] = behind + _HALF.size, self._row(_HALF, behind)[0]
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

    # handlers

    def _handlers(
        self, told: dict[int, tuple[int, int]], starts: frozenset[int]
    ) -> tuple[dict[int, tuple[int, ...]], bool]:
        """The functions that run when the one at an address throws; and whether all such tables were understood."""
        found: dict[int, tuple[int, ...]] = {}
        is_known = True
        for function, (data, handler) in told.items():
            called = self._handlers_at(data)
            is_known &= called is not None
            # what the file brings itself to handle errors may be one of its own
            own = {self._base + handler} & starts
            if more := (own | {self._base + one for one in called or ()}) - {function}:
                found[function] = tuple(sorted(more))
        return found, is_known

    def _handlers_at(self, data: int) -> list[int] | None:
        """The RVAs that the table of a handler at *data* leads to; None if it is of no kind that is known."""
        try:
            (first,) = self._row(_HALF, data)
            if self._bytes(first, 4) and (self._row(_HALF, first)[0] & _MASK) in _FUNCTION_INFO:
                return list(self._old_info(first))
            scopes = self._scopes(first, data + 4)
            if scopes is not None:
                return scopes
            if not self._is_data(first):
                # where the check of the stack has its number, or places in the function itself
                return []
            found = list(_Packed(self._bytes, first).handlers())
        except (BinaryError, IndexError):
            return None
        return found if all(self._is_code(self._base + one) for one in found) else None

    def _old_info(self, at: int) -> Iterator[int]:
        """What FuncInfo at the RVA *at*, of __CxxFrameHandler3, leads to."""
        _, states, unwinds, tries, blocks = self._row(_TRY, at)
        if max(states, tries) > _MOST_STATES:
            raise BinaryError(f"{max(states, tries)} states of a function")
        for _, action in self._rows(_UNWIND, unwinds, states) if states else ():
            if action:
                yield action
        for *_, count, rows in self._rows(_TRY, blocks, tries) if tries else ():
            if count > _MOST_STATES:
                raise BinaryError(f"{count} handlers of a block")
            for row in self._rows(_CATCH, rows, count) if count else ():
                yield row[3]

    def _is_data(self, start: int) -> bool:
        return any(self._base + start in section.addresses for section in self._pe.sections if section.is_data)

    def _scopes(self, count: int, at: int) -> list[int] | None:
        """What the table of __C_specific_handler at the RVA *at* leads to; None if it is none."""
        if not 0 < count <= _MOST_STATES:
            return None
        try:
            rows = list(self._rows(_SCOPE, at, count))
        except BinaryError:
            return None
        if not all(
            begin < end and self._is_code(self._base + begin) and (not target or self._is_code(self._base + target))
            for begin, end, _, target in rows
        ):
            return None
        # 1 stands for a filter that takes every exception
        return [one for _, _, handler, target in rows for one in (handler, target) if one > 1]

    # pointers

    def _pointers(self, imports: Iterable[int]) -> tuple[tuple[int, int], ...]:
        known = set(imports)
        return tuple(
            (pointer.place, pointer.target)
            for pointer in self._pe.pointers([range(self._base, self._top)])
            if pointer.place not in known
        )

    def _guessed_pointers(self, imports: Iterable[int]) -> Iterator[tuple[int, int]]:
        """Every word in data that may be an address, for a file whose base relocations were taken out."""
        known = set(imports)
        for section in self._pe.sections:
            if not section.is_data or section.name in _NO_CONSTANTS:
                continue
            start, data = section.addresses.start, self._pe.view(section.span)
            for number, (word,) in enumerate(_WORD.iter_unpack(data[: len(data) // 8 * 8])):
                place = start + _WORD.size * number
                if self._base <= word < self._top and place not in known:
                    yield place, word

    def _tables_in_code(self, places: Iterable[int], functions: dict[int, int]) -> Iterator[Symbol]:
        """The tables of pointers between functions, as mingw has one of constructors, with -1 in front and 0 behind."""
        starts, last = sorted(functions), range(0)
        for place in sorted(places):
            index = bisect_right(starts, place) - 1
            if not self._is_code(place) or (index >= 0 and place < functions[starts[index]]):
                continue
            if place == last.stop:
                last = range(last.start, place + _WORD.size)
                continue
            if last:
                yield self._table(last)
            last = range(place, place + _WORD.size)
        if last:
            yield self._table(last)

    def _table(self, places: range) -> Symbol:
        before = self._bytes(places.start - _WORD.size - self._base, _WORD.size)
        start = places.start - _WORD.size * (before == b"\xff" * _WORD.size)
        stop = places.stop + _WORD.size * (self._bytes(places.stop - self._base, _WORD.size) == bytes(_WORD.size))
        return Symbol(start, stop - start)

    def _stubs(self, imports: set[int], functions: dict[int, int]) -> tuple[CodeSection, ...]:
        """The jumps through an import's place that stand alone, outside functions that .pdata knows."""
        starts = sorted(functions)
        found = []
        for code in self._code:
            for match in _JUMP.finditer(code.data):
                end = match.end() + _HALF.size
                place = code.address + end + int.from_bytes(code.data[match.end() : end], "little", signed=True)
                at = code.address + match.start()
                index = bisect_right(starts, at) - 1
                if place in imports and (index < 0 or functions[starts[index]] <= at):
                    found.append(CodeSection(".plt", at, code.data[match.start() : end]))
        return tuple(found)


class _Packed:
    """FuncInfo4, of __CxxFrameHandler4, from an RVA on: numbers of seven bits and more, and RVAs."""

    def __init__(self, read: Callable[[int, int], bytes], at: int) -> None:
        self._read, self._at = read, at
        self._data, self._next = read(at, _LONGEST), 0

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
        found = first
        for count in range(more):
            found |= self._byte() << 8 * (count + 1)
        return found >> (more + 1)

    def handlers(self) -> Iterator[int]:
        """The RVAs of the functions that run; `BinaryError` or `IndexError` if it is no such table."""
        head = self._byte()
        if head & _RESERVED or not head & (_HAS_UNWINDS | _HAS_TRIES):
            raise BinaryError(f"table of handlers at RVA {self._at:#x} begins with {head:#x}")
        if head & _HAS_FLAGS:
            self._number()
        unwinds = self._address() if head & _HAS_UNWINDS else 0
        tries = self._address() if head & _HAS_TRIES else 0
        if unwinds:
            yield from _Packed(self._read, unwinds).unwinds()
        if tries:
            yield from _Packed(self._read, tries).tries()

    def unwinds(self) -> Iterator[int]:
        for _ in range(self._checked(self._number())):
            kind = self._number() & 3
            if kind:
                yield self._address()
            if kind in {1, 2}:
                self._number()

    def tries(self) -> Iterator[int]:
        for _ in range(self._checked(self._number())):
            for _ in range(3):
                self._number()
            yield from _Packed(self._read, self._address()).catches()

    def catches(self) -> Iterator[int]:
        for _ in range(self._checked(self._number())):
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

    def _checked(self, count: int) -> int:
        if count > _MOST_STATES:
            raise BinaryError(f"{count} rows in a table of handlers")
        return count
