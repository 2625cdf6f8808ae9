"""Which functions of a file run without going through a function that only a dispatcher chooses.

    roots     what other files, the loader or unlabelled data can call: exported symbols, addresses in data that
              belongs to no object
    edges     a function to what its instructions point at; an object to what the addresses in it point at
    gates     functions that are known to be chosen at run time: the walk does not go through them
    askers    functions that ask the processor or read what it answered, and ifunc resolvers: the walk does not
              follow the functions that they point at

A static helper of ``foo_avx2`` has a name that says nothing; that only ``foo_avx2`` can reach it says enough.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Self

from iced_x86 import Decoder, Instruction

from vbuild.binary.elf import Elf
from vbuild.binary.isa import regions_of
from vbuild.binary.processes import spread

_BITS = 64
# libgcc's __cpu_indicator_init has four; a module's whole set-up, with the question inlined, uses dozens
_FEW_VARIABLES = 16
_MODEL_SIZE, _FIELD_SIZE = 16, 4
_MODULE_ENTRIES = ("PyInit_", "PyInitU_", "PyModExport_")
# where compilers' run-time libraries keep what the processor has
_MODELS = frozenset({"__cpu_model", "__cpu_features2", "__cpu_indicator_init"})


@dataclass(frozen=True, slots=True)
class Graph:
    """What points at what in a file, by address; a nameless place in data that holds an address is a node as well."""

    edges: Mapping[int, AbstractSet[int]]
    functions: frozenset[int]
    roots: frozenset[int]
    askers: frozenset[int]

    @classmethod
    def of(cls, elf: Elf, executor: Executor | None = None, *, cpuid: Iterable[int] = ()) -> Self:
        """The graph of *elf*, in which the functions at *cpuid* execute that instruction."""
        nodes = _Nodes(elf)
        roots, edges = set(_entries(elf)), dict[int, set[int]]()
        regions = [region for region in regions_of(elf) if not nodes.is_stub(region.address)]
        asking = {symbol.address for symbol in elf.functions if symbol.is_resolver}.union(cpuid)
        variables: dict[int, frozenset[int]] = {}
        targets = spread(_targets, ((region.address, region.data) for region in regions), executor)
        for region, found in zip(regions, targets, strict=True):
            reached = set(filter(None, map(nodes.at, found)))
            if region.function is None:
                roots |= reached
                continue
            source = region.function.address
            edges.setdefault(source, set()).update(reached - {source})
            variables[source] = variables.get(source, frozenset()).union(filter(nodes.is_variable, found))
        answers = nodes.models.union(*(_answers(variables.get(source, frozenset())) for source in asking))
        asking.update(source for source, used in variables.items() if not answers.isdisjoint(used))
        pointed = roots.union(*edges.values())
        for place, target in elf.pointers:
            holder = nodes.symbol(place)
            if node := nodes.at(target):
                edges.setdefault(place if holder is None else holder, set()).add(node)
            # an address at a place that no code points at is used in a way that is not seen here
            if holder is None and place not in pointed:
                roots.add(place)
        if elf.type != "ET_DYN":
            # a program at a fixed address has no list of the addresses in its data
            roots |= nodes.functions - pointed
        return cls(
            edges,
            nodes.functions,
            frozenset(roots),
            frozenset(asking),
        )

    def reached(self, gates: frozenset[int]) -> frozenset[int]:
        """The addresses of everything that runs, or is read, without any of *gates* having been chosen."""
        seen: set[int] = set()
        waiting = set(self.roots - gates)
        while waiting:
            node = waiting.pop()
            seen.add(node)
            targets = self.edges.get(node, frozenset())
            waiting |= (targets - self.functions if node in self.askers else targets) - gates - seen
        return frozenset(seen)


def _entries(elf: Elf) -> Iterator[int]:
    """The addresses that other files use: all that is exported, but of an extension module only what Python calls."""
    exported = [symbol for symbol in (*elf.functions, *elf.objects) if symbol.is_exported]
    called = [symbol for symbol in exported if any(name.startswith(_MODULE_ENTRIES) for name in symbol.names)]
    # nothing links against an extension module, and Python opens it with RTLD_LOCAL
    yield from (symbol.address for symbol in called or exported)


def _answers(variables: frozenset[int]) -> frozenset[int]:
    """Where a function that asks the processor, uses these *variables* and does little else, notes the answer."""
    if len(variables) > _FEW_VARIABLES:
        return frozenset()
    # __cpu_model is a struct of four numbers; code that writes it may point at its start, code that reads it does not
    return frozenset(start + offset for start in variables for offset in range(0, _MODEL_SIZE, _FIELD_SIZE))


class _Nodes:
    """The function, object or pointer that an address belongs to."""

    def __init__(self, elf: Elf) -> None:
        stubs = [code for code in elf.code if code.name.startswith(".plt")]
        self._stubs = [range(code.address, code.end) for code in stubs]
        # each stub of a PLT jumps through one place; what calls the stub uses that place
        self._jumps = [
            (instruction.ip, instruction.ip_rel_memory_address)
            for code in stubs
            for instruction in Decoder(_BITS, code.data, ip=code.address)
            if instruction.is_ip_rel_memory_operand
        ]
        symbols = (*elf.functions, *elf.objects)
        self._symbols = sorted(
            (symbol for symbol in symbols if not self.is_stub(symbol.address)), key=lambda symbol: symbol.address
        )
        self._starts = [symbol.address for symbol in self._symbols]
        self._writable = elf.writable
        self._places = {place for place, _ in (*elf.pointers, *elf.import_places)}
        self.functions = frozenset(symbol.address for symbol in elf.functions)
        self.models = frozenset(
            [symbol.address for symbol in symbols if not _MODELS.isdisjoint(symbol.names)]
            + [place for place, name in elf.import_places if name in _MODELS]
        )

    def is_variable(self, address: int) -> bool:
        return any(address in addresses for addresses in self._writable)

    def is_stub(self, address: int) -> bool:
        return any(address in stubs for stubs in self._stubs)

    def at(self, address: int) -> int | None:
        if self.is_stub(address):
            index = bisect_left(self._jumps, (address, 0))
            return self._known(self._jumps[index][1]) if index < len(self._jumps) else None
        return self._known(address)

    def _known(self, address: int) -> int | None:
        symbol = self.symbol(address)
        return address if symbol is None and address in self._places else symbol

    def symbol(self, address: int) -> int | None:
        """Where the function or object starts that *address* lies in."""
        index = bisect_right(self._starts, address) - 1
        if index < 0:
            return None
        symbol = self._symbols[index]
        return symbol.address if address < symbol.end or address == symbol.address else None


def _targets(pieces: Iterable[tuple[int, bytes]]) -> list[frozenset[int]]:
    """The addresses that the instructions of each of *pieces* point at, those inside the piece left out."""
    found = []
    for address, data in pieces:
        end = address + len(data)
        targets = {
            target
            for instruction in Decoder(_BITS, data, ip=address)
            if (target := _target(instruction)) and not address <= target < end
        }
        found.append(frozenset(targets))
    return found


def _target(instruction: Instruction) -> int:
    """The address a branch goes to or an operand has relative to the instruction; 0 for neither."""
    branch = instruction.near_branch_target
    return branch or (instruction.ip_rel_memory_address if instruction.is_ip_rel_memory_operand else 0)
