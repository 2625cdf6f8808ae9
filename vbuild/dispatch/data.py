"""The data of one file in the space of addresses of a program: tables, what the loader writes there, and exports.

a table   an object in data; without symbols, what lies between two places that something points at
"""

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cached_property

from vbuild.binary.code import CodeFile, CodeSection, Symbol

# addresses of which is kept what they lie in
_MOST_KEPT = 1 << 17
MODULE_ENTRIES = ("PyInit_", "PyInitU_", "PyModExport_")


class Data(ABC):
    """The data of one file, and which of it other files use."""

    def __init__(self, elf: CodeFile, number: int, path: str) -> None:
        self.elf = elf
        self.path = path
        self.base = (number + 1) << 64
        self.pointers = dict(elf.pointers)
        self.imports = dict(elf.import_places)
        self._slots, self._starts_and_ends = elf.slots, elf.starts
        self._tables: dict[int, range] = {}
        # whether code that is not in the program can call what it exports
        self.is_open = True

    @cached_property
    def exports(self) -> dict[str, int]:
        """The addresses of the functions and objects that other files use by name."""
        symbols = (*self.elf.functions, *self.elf.objects)
        return {name: self.base + symbol.address for symbol in symbols if symbol.is_exported for name in symbol.names}

    @cached_property
    def _exported(self) -> list[tuple[int, str]]:
        return sorted((address - self.base, name) for name, address in self.exports.items())

    def exported_names(self, addresses: range) -> list[str]:
        """The names under which other files use what is at *addresses* of this one."""
        low = bisect_left(self._exported, (addresses.start, ""))
        return [name for _, name in self._exported[low : bisect_left(self._exported, (addresses.stop, ""), low)]]

    @cached_property
    def entries(self) -> frozenset[int]:
        """Where other code enters: what is exported, but of an extension module only what Python calls."""
        called = [address for name, address in self.exports.items() if name.startswith(MODULE_ENTRIES)]
        found = set(called or (self.exports.values() if self.is_open else ()))
        # what many files may have is there for this one's own use
        symbols = (*self.elf.functions, *self.elf.objects)
        weak = {self.base + symbol.address for symbol in symbols if symbol.is_weak and symbol.is_exported}
        found -= {address for address in weak if self.is_referred(address - self.base, address - self.base + 1)}
        found -= {address for address in weak if address - self.base in self._pointed_set}
        if self.elf.entry:
            found.add(self.base + self.elf.entry)
        found.update(self.base + address for address in self.elf.called)
        found |= {self.base + symbol.address for symbol in self.elf.functions if symbol.is_resolver}
        if self.elf.has_strange_handlers:
            # what nothing seems to lead to may handle errors
            found |= {self.base + one.address for one in self.elf.functions if self._is_alone(one)}
        return frozenset(found)

    def _is_alone(self, function: Symbol) -> bool:
        start, end = function.address, function.end
        return not (self.is_referred(start, end) or self.places_of(start, end))

    @property
    def is_python_module(self) -> bool:
        return any(name.startswith(MODULE_ENTRIES) for name in self.exports)

    @cached_property
    @abstractmethod
    def references(self) -> list[int]:
        """What may be a reference in code: target and place of the displacement, in one number each, in order."""

    def sites(self, start: int, stop: int) -> list[int]:
        """Where displacements are that lead to the addresses of this file from *start* to *stop*, which is excluded."""
        low = bisect_left(self.references, start << 40)
        high = bisect_left(self.references, stop << 40, low)
        return [number & 0xFFFFFFFFFF for number in self.references[low:high]]

    def is_referred(self, start: int, stop: int) -> bool:
        index = bisect_left(self.references, start << 40)
        return index < len(self.references) and self.references[index] >> 40 < stop

    def bytes_at(self, address: int, size: int) -> bytes:
        """Up to *size* bytes of code or constants at *address* of this file; none where nothing is kept."""
        for starts, sections in self._kept:
            index = bisect_right(starts, address) - 1
            if index >= 0:
                start = address - starts[index]
                data = sections[index].data
                if start < len(data):
                    return data[start : start + size]
        return b""

    @cached_property
    def _kept(self) -> list[tuple[list[int], Sequence[CodeSection]]]:
        return [([one.address for one in every], every) for every in (self.elf.code, self.elf.constants)]

    def is_constant(self, address: int) -> bool:
        """Whether only the loader changes the data at *address*."""
        return any(address in addresses for addresses in self.elf.relro) or not self.is_variable(address)

    def is_start_or_end(self, address: int) -> bool:
        """Whether the loader calls what stands at *address* when it loads or unloads the file."""
        return any(address in addresses for addresses in self._starts_and_ends)

    def is_slot(self, address: int) -> bool:
        """Whether the loader fills *address* for code alone: it is in the global offset table."""
        return any(address in addresses for addresses in self._slots)

    def is_variable(self, address: int) -> bool:
        return any(address in addresses for addresses in self.elf.writable)

    @cached_property
    def _objects(self) -> list[Symbol]:
        return [symbol for symbol in self.elf.objects if symbol.size]

    @cached_property
    def _object_starts(self) -> list[int]:
        return [symbol.address for symbol in self._objects]

    def object_at(self, address: int) -> Symbol | None:
        """The object with a symbol that the *address* of this file lies in."""
        index = bisect_right(self._object_starts, address) - 1
        return self._objects[index] if index >= 0 and address < self._objects[index].end else None

    def table(self, address: int) -> range:
        """The addresses of the object that the *address* of this file lies in, by symbols or by references."""
        if (found := self._tables.get(address)) is None:
            if len(self._tables) >= _MOST_KEPT:
                self._tables.clear()
            found = self._tables[address] = self._table(address)
        return found

    def _table(self, address: int) -> range:
        if symbol := self.object_at(address):
            return range(symbol.address, symbol.end)
        index = bisect_left(self.references, (address + 1) << 40)
        start = self.references[index - 1] >> 40 if index else address
        pointed = bisect_right(self._pointed, address) - 1
        start = max(start, self._pointed[pointed] if pointed >= 0 else 0)
        stop = self.references[index] >> 40 if index < len(self.references) else address + 8
        if pointed + 1 < len(self._pointed):
            stop = min(stop, self._pointed[pointed + 1])
        section = next((addresses for addresses in self._sections if address in addresses), None)
        if section is None:
            return range(address, address + 8)
        if start < section.start:
            start = address
        return range(start, max(address + 1, min(stop, section.stop)))

    @cached_property
    def _sections(self) -> tuple[range, ...]:
        return self.elf.areas

    @cached_property
    def _pointed(self) -> list[int]:
        return sorted(set(self.pointers.values()))

    @cached_property
    def _pointed_set(self) -> frozenset[int]:
        return frozenset(self._pointed)

    @cached_property
    def _places(self) -> list[tuple[int, int]]:
        return sorted((target, place) for place, target in self.pointers.items())

    def places_of(self, start: int, stop: int) -> list[int]:
        """The places in data that hold an address from *start* to *stop*, which is excluded."""
        low = bisect_left(self._places, (start, 0))
        return [place for _, place in self._places[low : bisect_left(self._places, (stop, 0), low)]]

    @cached_property
    def _pointer_places(self) -> list[int]:
        return sorted(self.pointers)

    @cached_property
    def _filled_places(self) -> list[int]:
        return sorted({*self.pointers, *self.imports})

    def places_in(self, table: range) -> list[int]:
        """The places in *table* that the loader fills."""
        low = bisect_left(self._filled_places, table.start)
        return self._filled_places[low : bisect_left(self._filled_places, table.stop, low)]

    def pointers_in(self, table: range) -> list[tuple[int, int]]:
        """The places in *table* that hold an address of this file, and that address."""
        low = bisect_left(self._pointer_places, table.start)
        high = bisect_left(self._pointer_places, table.stop, low)
        return [(place, self.pointers[place]) for place in self._pointer_places[low:high]]
