"""The code and data of one file in the space of addresses of a program, and what points at what.

    an address   the file's number, counted from one, in the bits above 64; below, the address in the file
    a piece      a function; outside any known function, what lies between two places that something calls or points at
    a table      an object in data; without symbols, what lies between two places that something points at
    a slot       eight bytes of data that the loader fills with an address

References are first looked for as bytes that would be one, which is fast, and then by decoding the piece they are in.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress, pairwise, takewhile
from operator import attrgetter, or_
from struct import Struct
from typing import Any, NamedTuple

from vbuild.binary.code import CodeSection, Symbol
from vbuild.dispatch.facts import by_code, needed_by
from vbuild.dispatch.isa import (
    INVALID,
    Region,
    decoded,
    described,
    instructions_of,
    is_function,
    is_newer,
    may_be_code,
    regions_of,
)
from vbuild.elf.code import CodeFile
from vbuild.elf.iced import (
    Decoder,
    FlowControl,
    Formatter,
    FormatterSyntax,
    Instruction,
    Mnemonic,
    OpKind,
    Register,
)

POINTERS = frozenset(range(Register.RAX, Register.R15 + 1)) - {Register.RSP}
"""The registers behind which fields stand."""

_BITS = 64
_LOW = (1 << 64) - 1
_DISPLACEMENT = Struct("<i")
_SHORT_JUMP = 130
# the first bytes of instructions: of call, and of lea in front of how its operand is made
_CALL, _LEA = 0xE8, 0x8D
# the most addresses whose table is remembered, and pieces whose shape is
_MOST_KEPT = 1 << 17
_MOST_SHAPES = 1 << 13
_start_of, _address_of, _code_of = attrgetter("ip"), attrgetter("address"), attrgetter("code")
_branch_of, _is_relative = attrgetter("near_branch_target"), attrgetter("is_ip_rel_memory_operand")
# bytes of instructions that are decoded together
_AHEAD = 64
_JUMPS = frozenset({FlowControl.CONDITIONAL_BRANCH, FlowControl.UNCONDITIONAL_BRANCH})
MODULE_ENTRIES = ("PyInit_", "PyInitU_", "PyModExport_")
ENDS = frozenset(
    {FlowControl.RETURN, FlowControl.UNCONDITIONAL_BRANCH, FlowControl.INDIRECT_BRANCH, FlowControl.INTERRUPT}
    | {FlowControl.EXCEPTION, FlowControl.CALL, FlowControl.INDIRECT_CALL}
)
# functions of other libraries that never return
ENDLESS = frozenset({"abort", "exit", "_exit", "_Exit", "quick_exit", "__assert_fail", "__stack_chk_fail", "longjmp"})
ENDLESS |= {"_Unwind_Resume", "__cxa_throw", "__cxa_rethrow", "__cxa_bad_cast", "_ZSt9terminatev", "__fortify_fail"}
ENDLESS |= {"__chk_fail", "__longjmp_chk", "siglongjmp", "pthread_exit", "_ZSt10unexpectedv"}


def displacement_of(instruction: Instruction) -> int:
    """The distance of *instruction*'s operand in memory from its base register, in bytes."""
    displacement = instruction.memory_displacement
    return int(displacement - (displacement >> 63 << 64))


@dataclass(frozen=True, slots=True)
class Piece:
    """A function, or a run of code outside any known one; addresses are those of the program."""

    address: int
    end: int
    symbol: Symbol | None

    def __str__(self) -> str:
        return str(self.symbol) if self.symbol else f"code at {self.address & _LOW:#x}"


class Reference(NamedTuple):
    """An instruction that points out of its piece, at *target* of the program; a branch if *is_branch* to there."""

    target: int
    flow: int
    is_branch: bool
    is_comparing: bool


class Shape(NamedTuple):
    """What points out of a piece, whether control may leave it at its end, and whether all of it are instructions."""

    outward: tuple[Reference, ...]
    falls_through: bool
    is_whole: bool


class Module:
    """One file of a program."""

    def __init__(self, elf: CodeFile, number: int, path: str) -> None:
        self.elf = elf
        self.path = path
        self.base = (number + 1) << 64
        self.pointers = dict(elf.pointers)
        self.imports = dict(elf.import_places)
        self._got, self._starts_and_ends = elf.slots, elf.starts
        self._tables: dict[int, range] = {}
        # whether code that is not in the program can call what it exports
        self.is_open = True
        self._stubs = sorted(elf.stubs, key=_address_of)
        self._stub_starts = [stub.address for stub in self._stubs]
        self._decoded: dict[int, Instruction | None] = {}
        self._shapes: dict[int, Shape] = {}
        self._relative: dict[int, list[Instruction]] = {}
        # by address: whether a function never returns
        self._endless: dict[int, bool] = {}

    @cached_property
    def _jumps(self) -> list[tuple[int, int]]:
        """Each PLT jump, and the place of its target."""
        return [
            (instruction.ip, instruction.ip_rel_memory_address)
            for code in self._stubs
            for instruction in Decoder(_BITS, code.data, ip=code.address)
            if instruction.is_ip_rel_memory_operand and instruction.mnemonic == Mnemonic.JMP
        ]

    def slot_of_stub(self, address: int) -> int | None:
        if not self._is_stub(address):
            return None
        index = bisect_left(self._jumps, (address, 0))
        return self._jumps[index][1] if index < len(self._jumps) else None

    def _is_stub(self, address: int) -> bool:
        index = bisect_right(self._stub_starts, address) - 1
        return index >= 0 and address < self._stubs[index].end

    @cached_property
    def stubs_of(self) -> dict[int, list[range]]:
        """The stubs that jump through each place, from the end of the one before to the jump."""
        stubs: dict[int, list[range]] = {}
        for code in self._stubs:
            last = code.address
            for ip, slot in self._jumps:
                if code.address <= ip < code.end:
                    stubs.setdefault(slot, []).append(range(last, ip + 1))
                    last = ip + 1
        return stubs

    @cached_property
    def references(self) -> list[int]:
        """What may be a reference: target and place of the displacement, in one number each, in order."""
        return self._seen[0]

    @cached_property
    def _called(self) -> set[int]:
        """What seems to be called, or to have its address taken by code."""
        return self._seen[1]

    @cached_property
    def _seen(self) -> tuple[list[int], set[int]]:
        every = [*self.elf.code, *self.elf.constants]
        low = min((code.address for code in every), default=0)
        low = min(low, self.elf.image_base or low)
        high = max([code.end for code in every] + [addresses.stop for addresses in self.elf.writable], default=0)
        references: list[int] = []
        called: set[int] = set()
        for code in self.elf.code:
            # the end of what is walked through may be that of all data
            references += _references(code, low, high + 1, called)
        references.sort()
        return references, called

    @cached_property
    def pieces(self) -> list[Piece]:
        """The functions, and what lies between them, in order of address; the stubs of PLTs are left out."""
        pieces: dict[int, Piece] = {}
        for region in regions_of(self.elf):
            if self._is_stub(region.address):
                continue
            start, end = region.address, region.address + len(region.data)
            if region.function is None:
                low = bisect_right(self._starts, start)
                known = set(self._starts[low : bisect_left(self._starts, end, low)])
                instructions = (
                    instruction for instruction in self.decoded(start, region.data) if not self.is_padding(instruction)
                )
                cuts = [start, *sorted((known | _cuts(instructions, known)) - {start}), end]
                for low, high in pairwise(cuts):
                    pieces[low] = Piece(self.base + low, self.base + high, None)
            else:
                pieces[start] = Piece(self.base + start, self.base + end, region.function)
        return [piece for _, piece in sorted(pieces.items())]

    @cached_property
    def _starts(self) -> list[int]:
        starts = set(self.pointers.values()) | {address & _LOW for address in self.exports.values()}
        starts.update((self.elf.entry, *self.elf.called))
        starts.update(self._handled)
        return sorted(starts | self._called)

    def starts_in(self, start: int, stop: int) -> bool:
        index = bisect_left(self._starts, start)
        return index < len(self._starts) and self._starts[index] < stop

    def is_of_compiler(self, piece: Piece) -> bool:
        """Whether *piece* is from crtbegin.o: it compares the end of the data with itself, and writes nothing there."""
        return piece.address in self._of_compiler

    @cached_property
    def _of_compiler(self) -> frozenset[int]:
        """The pieces that use the functions of transactional memory, which crtbegin.o looks for."""
        slots = {slot for slot, name in self.imports.items() if name.startswith("_ITM_")}
        sites = (site for slot in slots for site in self.sites(slot, slot + 1))
        pieces = (piece for site in sites if (piece := self.piece(self.base + site)))
        return frozenset(
            piece.address
            for piece in pieces
            if any(reference.target - self.base in slots for reference in self.shape(piece).outward)
        )

    @cached_property
    def _piece_starts(self) -> list[int]:
        return [piece.address for piece in self.pieces]

    @cached_property
    def has_handlers(self) -> bool:
        """Whether functions go on in code that handles errors when what they call throws one."""
        return self.elf.has_handlers

    def piece(self, address: int) -> Piece | None:
        """The piece that *address* of the program lies in; of a function in parts, the part."""
        index = bisect_right(self._piece_starts, address) - 1
        if index >= 0 and address < self.pieces[index].end:
            return self.pieces[index]
        return None

    def pieces_in(self, region: Region) -> list[Piece]:
        """The pieces of *region*, without stubs of a PLT."""
        start = self.base + region.address
        low = bisect_left(self._piece_starts, start)
        return self.pieces[low : bisect_left(self._piece_starts, start + len(region.data), low)]

    def handlers_of(self, piece: Piece) -> Sequence[int]:
        return [self.base + handler for handler in self.elf.handlers.get(piece.address - self.base, ())]

    @cached_property
    def _handled(self) -> dict[int, list[int]]:
        functions: dict[int, list[int]] = {}
        for function, handlers in self.elf.handlers.items():
            for handler in handlers:
                functions.setdefault(handler, []).append(function)
        return functions

    def handled_by(self, addresses: range) -> Iterator[Piece]:
        """The pieces whose errors the code at *addresses* of this file handles."""
        for handler in (addresses if len(addresses) < len(self._handled) else self._handled) if self._handled else ():
            for function in self._handled.get(handler, ()) if handler in addresses else ():
                if piece := self.piece(self.base + function):
                    yield piece

    def pieces_near(self, piece: Piece) -> list[Piece]:
        """The pieces from which a short jump may lead to *piece*, or that run on into it."""
        index = bisect_left(self._piece_starts, piece.address)
        low = high = index
        while low > 0 and self.pieces[low - 1].end > piece.address - _SHORT_JUMP:
            low -= 1
        while high < len(self.pieces) and self.pieces[high].address < piece.end + _SHORT_JUMP:
            high += 1
        return self.pieces[low:high]

    @cached_property
    def _counted(self) -> list[int]:
        """The addresses, counted from the image's base, that code writes to by an index or takes."""
        base, addresses = self.elf.image_base, []
        for site in self.sites(base, base + 1) if base else ():
            piece = self.piece(self.base + site)
            for instruction in self.instructions(piece) if piece else ():
                is_written = instruction.op0_kind == OpKind.MEMORY and instruction.mnemonic not in {
                    Mnemonic.CMP,
                    Mnemonic.TEST,
                }
                if (is_written or instruction.mnemonic == Mnemonic.LEA) and instruction.memory_base in POINTERS:
                    addresses.append(base + displacement_of(instruction))
        return sorted(addresses)

    def is_counted(self, addresses: range) -> bool:
        """Whether code may write to *addresses* of this file, or has one, as counted from the image's base."""
        index = bisect_left(self._counted, addresses.start)
        return index < len(self._counted) and self._counted[index] < addresses.stop

    def is_code(self, address: int) -> bool:
        return any(code.address <= address < code.end for code in self.elf.code)

    def instruction(self, address: int) -> Instruction | None:
        if address not in self._decoded:
            start = address - self.base
            self._decoded[address] = None
            if not self.is_code(start):  # it may be negative, too
                return None
            data = self.bytes_at(start, _AHEAD)
            # what follows is likely to be asked for, too
            for instruction in takewhile(self._is_valid, Decoder(_BITS, data, ip=start)):
                self._decoded[self.base + instruction.ip] = instruction
                if instruction.flow_control in ENDS:
                    break
        return self._decoded[address]

    def instruction_with(self, site: int) -> Instruction | None:
        """The instruction of this file whose displacement stands at *site*."""
        piece = self.piece(self.base + site)
        if piece is None:
            return None
        if piece.address not in self._relative:
            if len(self._relative) >= _MOST_SHAPES:
                self._relative.clear()
            self._relative[piece.address] = list(self._relative_in(piece))
        instructions = self._relative[piece.address]
        # bytes in the middle of an instruction may be one, too
        index = bisect_right(instructions, site, key=_start_of) - 1
        return instructions[index] if index >= 0 and site < instructions[index].next_ip else None

    def _relative_in(self, piece: Piece) -> Iterator[Instruction]:
        """The instructions of *piece* with a displacement to an address, also those behind bytes that are none."""
        start, end = piece.address, piece.end
        while start < end:
            following = start
            for instruction in self.instructions(Piece(start, end, None)):
                following = self.base + instruction.next_ip
                if instruction.is_ip_rel_memory_operand:
                    yield instruction
            start = following + 1

    def decoded(self, address: int, data: bytes) -> Iterable[Instruction]:
        return decoded(data, address)

    # an instruction counts as true if its bytes are one
    _is_valid: Callable[[Any], bool] = bool

    def is_padding(self, instruction: Instruction) -> bool:
        return instruction.mnemonic in {Mnemonic.NOP, Mnemonic.INT3}

    def is_comparing(self, instruction: Instruction) -> bool:
        return instruction.mnemonic == Mnemonic.CMP

    def needs(self, instruction: Instruction) -> int:
        return by_code().get(instruction.code, 0)

    def needed_in(self, piece: Piece) -> int:
        data = self.bytes_at(piece.address - self.base, piece.end - piece.address)
        codes = set(map(_code_of, Decoder(_BITS, data)))
        return needed_by(map(_code_of, self.needing(piece)) if INVALID in codes else codes)

    def text(self, instruction: Instruction) -> str:
        if not instruction:
            return described(self.bytes_at(instruction.ip, _AHEAD))
        return Formatter(FormatterSyntax.INTEL).format(instruction)

    def instructions(self, piece: Piece) -> Iterator[Instruction]:
        """The instructions of *piece*, one after the other; behind bytes that are none, as in `instructions_of`."""
        data = self.bytes_at(piece.address - self.base, piece.end - piece.address)
        has_tables = self.elf.system != "linux"
        return instructions_of(data, piece.address - self.base, self._is_endless, has_tables=has_tables)

    def _is_endless(self, call: Instruction) -> bool:
        """Whether *call* does not come back: its target from outside never does, or has no end."""
        target = call.near_branch_target
        slot = self.slot_of_stub(target) if target else call.ip_rel_memory_address
        if slot:
            return self.imports.get(slot) in ENDLESS
        return target != 0 and self.has_no_end(self.base + target)

    def has_no_end(self, address: int) -> bool:
        """Whether code at *address* has no way out but by calls."""
        if address not in self._endless:
            piece = self.piece(address)
            inside = range(address - self.base, piece.end - self.base) if piece else range(0)
            self._endless[address] = piece is not None and not any(
                instruction.flow_control in {FlowControl.RETURN, FlowControl.INDIRECT_BRANCH}
                or (instruction.flow_control in _JUMPS and instruction.near_branch_target not in inside)
                for instruction in self.decoded(inside.start, self.bytes_at(inside.start, len(inside)))
            )
        return self._endless[address]

    def is_entered(self, piece: Piece) -> bool:
        """Whether *piece* is code for sure: a function, or the loader or an instruction of other code leads there.

        Where an instruction only makes its address, it may be a table.
        """
        start = piece.address - self.base
        if is_function(piece.symbol) or start in self._pointed_set or start in self.elf.called:
            return True
        users = {user for site in self.sites(start, start + 1) if (user := self.piece(self.base + site))}
        references = [
            reference
            for user in users.union(self.pieces_near(piece)) - {piece}
            if is_function(user.symbol) or all(self.instructions(user))
            for reference in self.shape(user).outward
            if reference.target == piece.address
        ]
        is_led_to = any(reference.is_branch for reference in references)
        return is_led_to or (bool(references) and may_be_code(self.bytes_at(start, piece.end - piece.address), start))

    def is_unknown(self, piece: Piece) -> bool:
        """Whether *piece* needs bytes that are not instructions to be one."""
        return not all(self.needing(piece))

    def needing(self, piece: Piece) -> Iterator[Instruction]:
        """Those `instructions` of *piece* that may need a feature, and others."""
        instructions = list(self.instructions(piece))
        if not all(instructions):
            is_entered = self.is_entered(piece)
            # the end of a piece may be in the middle of an instruction, if it was guessed
            instructions = [
                instruction
                for instruction in instructions
                if instruction or (is_entered and self.instruction(self.base + instruction.ip) is None)
            ]
        # no step in Python for an instruction that needs nothing
        return compress(instructions, map(by_code().get, map(_code_of, instructions)))

    def shape(self, piece: Piece) -> Shape:
        """What points out of *piece*, and how it ends; those that were looked at last are kept."""
        if (shape := self._shapes.get(piece.address)) is None:
            if len(self._shapes) >= _MOST_SHAPES:
                self._shapes.clear()
            shape = self._shapes[piece.address] = self._shape(piece)
        return shape

    def _shape(self, piece: Piece) -> Shape:
        instructions = list(self.instructions(piece))
        start, end, base = piece.address - self.base, piece.end - self.base, self.base
        shape = []
        # no step in Python for an instruction that points nowhere
        pointing = map(or_, map(_branch_of, instructions), map(_is_relative, instructions))
        for instruction in compress(instructions, pointing):
            branch = instruction.near_branch_target
            target = branch or instruction.ip_rel_memory_address
            if target and not start <= target < end:
                is_comparing = not branch and self.is_comparing(instruction)
                shape.append(Reference(base + target, instruction.flow_control, branch != 0, is_comparing))
        shape += (Reference(handler, FlowControl.CALL, False, False) for handler in self.handlers_of(piece))  # noqa: FBT003
        last = next((instruction for instruction in reversed(instructions) if not self.is_padding(instruction)), None)
        is_whole = bool(instructions) and instructions[-1].next_ip >= end
        return Shape(tuple(shape), last is not None and last.flow_control not in ENDS, is_whole)

    @cached_property
    def exports(self) -> dict[str, int]:
        symbols = (*self.elf.functions, *self.elf.objects)
        return {name: self.base + symbol.address for symbol in symbols if symbol.is_exported for name in symbol.names}

    @cached_property
    def _exported(self) -> list[tuple[int, str]]:
        return sorted((address - self.base, name) for name, address in self.exports.items())

    def exported_names(self, addresses: range) -> list[str]:
        low = bisect_left(self._exported, (addresses.start, ""))
        return [name for _, name in self._exported[low : bisect_left(self._exported, (addresses.stop, ""), low)]]

    @cached_property
    def entries(self) -> frozenset[int]:
        """Where other code enters: what is exported, but of an extension module only what Python calls."""
        called = [address for name, address in self.exports.items() if name.startswith(MODULE_ENTRIES)]
        entries = set(called or (self.exports.values() if self.is_open else ()))
        # what many files may have is there for this one's own use
        symbols = (*self.elf.functions, *self.elf.objects)
        weak = {self.base + symbol.address for symbol in symbols if symbol.is_weak and symbol.is_exported}
        entries -= {address for address in weak if self.is_referred(address - self.base, address - self.base + 1)}
        entries -= {address for address in weak if address - self.base in self._pointed_set}
        if self.elf.entry:
            entries.add(self.base + self.elf.entry)
        entries.update(self.base + address for address in self.elf.called)
        entries |= {self.base + symbol.address for symbol in self.elf.functions if symbol.is_resolver}
        if self.elf.has_strange_handlers:
            # what nothing seems to lead to may handle errors
            entries |= {
                self.base + function.address
                for function in self.elf.functions
                if not self.is_referred(function.address, function.end)
                and not self.slots_to(function.address, function.end)
            }
        return frozenset(entries)

    @cached_property
    def is_python_module(self) -> bool:
        return any(name.startswith(MODULE_ENTRIES) for name in self.exports)

    def sites(self, start: int, stop: int) -> list[int]:
        """Where displacements are that lead into [start, stop) of this file."""
        low = bisect_left(self.references, start << 40)
        high = bisect_left(self.references, stop << 40, low)
        return [number & 0xFFFFFFFFFF for number in self.references[low:high]]

    def is_referred(self, start: int, stop: int) -> bool:
        index = bisect_left(self.references, start << 40)
        return index < len(self.references) and self.references[index] >> 40 < stop

    def bytes_at(self, address: int, size: int) -> bytes:
        """Up to *size* bytes of code or constants at *address* of this file; none where nothing is kept."""
        for starts, sections in self._section_starts:
            index = bisect_right(starts, address) - 1
            if index >= 0:
                start = address - starts[index]
                data = sections[index].data
                if start < len(data):
                    return data[start : start + size]
        return b""

    @cached_property
    def _section_starts(self) -> list[tuple[list[int], Sequence[CodeSection]]]:
        return [([part.address for part in parts], parts) for parts in (self.elf.code, self.elf.constants)]

    def is_constant(self, address: int) -> bool:
        """Whether only the loader changes the data at *address*."""
        return any(address in addresses for addresses in self.elf.relro) or not self.is_variable(address)

    def is_start_or_end(self, address: int) -> bool:
        """Whether the loader calls what stands at *address* when it loads or unloads the file."""
        return any(address in addresses for addresses in self._starts_and_ends)

    def is_in_got(self, address: int) -> bool:
        """Whether the loader fills *address* for code alone: it is in the global offset table."""
        return any(address in addresses for addresses in self._got)

    def is_variable(self, address: int) -> bool:
        return any(address in addresses for addresses in self.elf.writable)

    @cached_property
    def _objects(self) -> list[Symbol]:
        return [symbol for symbol in self.elf.objects if symbol.size]

    @cached_property
    def _object_starts(self) -> list[int]:
        return [symbol.address for symbol in self._objects]

    def object_at(self, address: int) -> Symbol | None:
        index = bisect_right(self._object_starts, address) - 1
        return self._objects[index] if index >= 0 and address < self._objects[index].end else None

    def table(self, address: int) -> range:
        """The addresses of the object that *address* of this file lies in, by symbols or references."""
        if (table := self._tables.get(address)) is None:
            if len(self._tables) >= _MOST_KEPT:
                self._tables.clear()
            table = self._tables[address] = self._table(address)
        return table

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
        section = next((addresses for addresses in self.elf.areas if address in addresses), None)
        if section is None:
            return range(address, address + 8)
        if start < section.start:
            start = address
        return range(start, max(address + 1, min(stop, section.stop)))

    @cached_property
    def _pointed(self) -> list[int]:
        return sorted(set(self.pointers.values()))

    @cached_property
    def _pointed_set(self) -> frozenset[int]:
        return frozenset(self._pointed)

    @cached_property
    def _slots_by_target(self) -> list[tuple[int, int]]:
        return sorted((target, slot) for slot, target in self.pointers.items())

    def slots_to(self, start: int, stop: int) -> list[int]:
        low = bisect_left(self._slots_by_target, (start, 0))
        return [slot for _, slot in self._slots_by_target[low : bisect_left(self._slots_by_target, (stop, 0), low)]]

    @cached_property
    def _pointer_slots(self) -> list[int]:
        return sorted(self.pointers)

    @cached_property
    def _filled_slots(self) -> list[int]:
        return sorted({*self.pointers, *self.imports})

    def slots_in(self, table: range) -> list[int]:
        """The slots in *table*."""
        low = bisect_left(self._filled_slots, table.start)
        return self._filled_slots[low : bisect_left(self._filled_slots, table.stop, low)]

    def pointers_in(self, table: range) -> list[tuple[int, int]]:
        """The slots in *table* that hold an address of this file, and that address."""
        low = bisect_left(self._pointer_slots, table.start)
        high = bisect_left(self._pointer_slots, table.stop, low)
        return [(slot, self.pointers[slot]) for slot in self._pointer_slots[low:high]]


def _cuts(instructions: Iterable[Instruction], known: set[int]) -> set[int]:
    """Where functions start among *instructions*: at *known* ones, and where nothing arrives from what is above."""
    jumps: list[tuple[int, int, bool]] = []
    behind: set[int] = set()
    is_end = False
    for instruction in instructions:
        if is_end:
            behind.add(instruction.ip)
        flow = instruction.flow_control
        is_end = flow in ENDS - {FlowControl.CALL, FlowControl.INDIRECT_CALL} and not is_newer(instruction)
        if flow in {FlowControl.CONDITIONAL_BRANCH, FlowControl.UNCONDITIONAL_BRANCH}:
            jumps.append((instruction.ip, instruction.near_branch_target, flow == FlowControl.CONDITIONAL_BRANCH))
    cuts = set()
    furthest, number = 0, 0
    for start in sorted(behind | known):
        while number < len(jumps) and jumps[number][0] < start:
            _, target, is_conditional = jumps[number]
            # a jump to what stands behind an end is one to another function
            if is_conditional or target not in behind:
                furthest = max(furthest, target)
            number += 1
        if start in known:
            furthest = 0
        elif start > furthest:
            cuts.add(start)
    return cuts


def _references(code: CodeSection, low: int, high: int, called: set[int]) -> list[int]:
    """What may be references in *code* to addresses from *low* to *high*, as in `Module.references`.

    What seems to be called, or to be made an address of, is put into *called*.
    """
    top = min(max(high - code.address, code.end - low) >> 24, 126)
    highest = b"[\\x00-\\x%02x\\x%02x-\\xff]" % (top, 255 - top)
    branch = rb"[\xe8\xe9]|\x0f[\x80-\x8f]"
    operand = rb"[\x05\x0d\x15\x1d\x25\x2d\x35\x3d]"
    pattern = re.compile(rb"(?:" + branch + rb"|" + operand + rb")(?=..." + highest + rb")", re.DOTALL)
    references = []
    data, address, unpack = code.data, code.address, _DISPLACEMENT.unpack_from
    for match in pattern.finditer(data):
        end = match.end()
        target = address + end + 4 + unpack(data, end)[0]
        if low <= target < high:
            references.append(target << 40 | (address + end))
            if data[end - 1] == _CALL or (end > 1 and data[end - 2] == _LEA):
                called.add(target)
    return references
