"""Which code asks what the processor has: with CPUID or XGETBV, or by libgcc's and glibc's variables."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property

from vbuild.binary.code import CodeSection
from vbuild.dispatch import values
from vbuild.dispatch.facts import ASKED, ASKERS, CATCHERS, CPUID_BITS, GLIBC_LEAVES, MODEL_FEATURES, SIGILL, usable
from vbuild.dispatch.module import Module, Piece
from vbuild.dispatch.program import LEAF_SIZE, LEAVES, MODEL, Program
from vbuild.dispatch.program import MODEL_FEATURES as MODEL_WORDS
from vbuild.dispatch.values import Value, tag
from vbuild.elf.iced import Mnemonic

# where __cpu_model has type and subtype
_TYPE, _SUBTYPE = 4, 8
_MODEL_WORDS = {"__cpu_model": MODEL, "__cpu_features2": MODEL_WORDS}
_QUESTION = re.compile(rb"\x0f\xa2|\x0f\x01\xd0")
_ASKS = frozenset({Mnemonic.CPUID, Mnemonic.XGETBV})
_REGISTERS = ("eax", "ebx", "ecx", "edx")
# the first four letters of GenuineIntel; a number written to a variable
_VENDOR = re.compile(b"Genu")
_STORE = re.compile(rb"\xc7\x05(....)....", re.DOTALL)
_MOV_EDI_SIGILL = bytes((0xBF, SIGILL, 0, 0, 0))
_LIBGCC_BEFORE, _LIBGCC_BEHIND = 1024, 4096
_FEW_STORES = 3


class Questions:
    """The code of a program that has to do with what the processor has."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._outward: dict[int, frozenset[int]] = {}

    @cached_property
    def models(self) -> dict[int, int]:
        """Where libgcc's variables are: an address of the program, and that in the space of the variable."""
        models = {}
        for module in self.program.modules:
            named = [(symbol, name) for symbol in module.elf.objects for name in symbol.names if name in _MODEL_WORDS]
            for symbol, name in named:
                for offset in range(max(symbol.size, 16)):
                    models[module.base + symbol.address + offset] = _MODEL_WORDS[name] + offset
            if not named:
                models.update(_models_by_shape(module))
        return models

    def _asking(self) -> Iterator[Piece]:
        for module in self.program.modules:
            for code in module.elf.code:
                addresses = (module.base + code.address + match.start() for match in _QUESTION.finditer(code.data))
                pieces = {piece.address: piece for piece in map(module.piece, addresses) if piece}
                # the same bytes stand in other instructions, too
                yield from (
                    piece
                    for piece in pieces.values()
                    if any(instruction.mnemonic in _ASKS for instruction in module.instructions(piece))
                )
            for slot, name in module.imports.items():
                if name in _MODEL_WORDS or name == "__x86_get_cpuid_feature_leaf":
                    yield from self.users(module, range(slot, slot + 8))
                elif name in ASKERS:
                    yield from self.users_of_slot(module, slot)
                elif name in CATCHERS:
                    users = self.users_of_slot(module, slot)
                    yield from (user for user in users if _MOV_EDI_SIGILL in _code(module, user))
        for start in {address for address in self.models if address - 1 not in self.models}:
            module = self.program.module(start)
            yield from self.users(module, range(start - module.base, start - module.base + 16))

    @cached_property
    def asking(self) -> dict[int, Piece]:
        """The pieces that ask the processor, or read what libgcc or glibc have asked, by address."""
        return {piece.address: piece for piece in self._asking()}

    @property
    def is_asking(self) -> bool:
        return bool(self.asking)

    @cached_property
    def asking_modules(self) -> frozenset[int]:
        return frozenset(tag(address) for address in self.asking)

    def is_known(self, piece: Piece) -> bool:
        """Whether *piece* fills libgcc's variables: it is long, and what it finds is known."""
        if piece.symbol and piece.symbol.names:
            return "__cpu_indicator_init" in piece.symbol.names
        module = self.program.module(piece.address)
        return _VENDOR.search(_code(module, piece)) is not None and any(
            module.base + target in self.models for target in _stored(module, piece)
        )

    def targets(self, piece: Piece) -> frozenset[int]:
        """What *piece* points at outside itself: addresses of the program, stubs and imports resolved."""
        if piece.address not in self._outward:
            module = self.program.module(piece.address)
            targets = set()
            for target, _, _, is_comparing in module.shape(piece).outward:
                if is_comparing and target - module.base in module.pointers:
                    # an address that is only compared
                    continue
                destination = self.program.destination(target)
                if isinstance(destination, int) and destination < LEAVES:
                    targets.add(destination)
                    behind = self.program.behind(module, target - module.base)
                    if isinstance(behind, int) and behind < LEAVES:
                        targets.add(behind)
            self._outward[piece.address] = frozenset(targets)
        return self._outward[piece.address]

    def users(self, module: Module, addresses: range) -> Iterator[Piece]:
        sites = module.sites(addresses.start - 4, addresses.stop)
        for slot in module.slots_to(addresses.start, addresses.stop):
            if (stubs := module.stubs_of.get(slot)) or not module.object_at(slot):
                for stub in stubs or ():
                    sites += module.sites(stub.start, stub.stop)
                sites += module.sites(slot, slot + 1)
        yield from self._pieces_at(module, sites)
        yield from module.handled_by(addresses)
        for other, slot in self.program.importers(module, addresses):
            yield from self.users_of_slot(other, slot)

    def users_of_slot(self, module: Module, slot: int) -> Iterator[Piece]:
        sites = module.sites(slot, slot + 1)
        for stub in module.stubs_of.get(slot, ()):
            sites += module.sites(stub.start, stub.stop)
        yield from self._pieces_at(module, sites)

    @staticmethod
    def _pieces_at(module: Module, sites: Iterable[int]) -> Iterator[Piece]:
        end = 0
        for site in sorted(sites):
            if site >= end and (piece := module.piece(module.base + site)) and not module.is_of_compiler(piece):
                yield piece
                end = piece.end - module.base

    def special(self, address: int, size: int) -> Value:
        if tag(address) == tag(LEAVES):
            leaf, offset = divmod(address - LEAVES, LEAF_SIZE)
            word = (GLIBC_LEAVES[leaf] if leaf < len(GLIBC_LEAVES) else (0, 0), _REGISTERS[offset % 16 // 4])
            bits = CPUID_BITS.get((*word[0], word[1]), {})
            # what CPUID says, then what of it may be used
            is_active = offset >= LEAF_SIZE // 2
            return values.word(
                {bit - 8 * (offset % 4): usable(facts) if is_active else facts for bit, facts in bits.items()}, size
            )
        if tag(address) == tag(MODEL):
            offset = address - MODEL
            if offset in {_TYPE, _SUBTYPE}:
                return values.flags(ASKED)
            first = 8 * (offset - 12)
        else:
            first = 32 + 8 * (address - MODEL_WORDS)
        if first < 0:
            return None
        return values.word({bit - first: facts for bit, facts in MODEL_FEATURES.items() if bit >= first}, size)


def _models_by_shape(module: Module) -> Iterator[tuple[int, int]]:
    """Where libgcc's variables are in a file without symbols, from the code that fills them.

    It compares the vendor's name, and writes numbers to three fields of one variable; the other is next to it.
    """
    for code in module.elf.code:
        for match in _VENDOR.finditer(code.data):
            low, high = max(match.start() - _LIBGCC_BEFORE, 0), match.start() + _LIBGCC_BEHIND
            stores = Counter(_stores(code, low, high))
            model = next((at for at in stores if min(stores[at + 4], stores[at + 8]) >= _FEW_STORES), None)
            if model is None:
                continue
            for offset in range(16):
                yield module.base + model + offset, MODEL + offset
            starts = {
                target
                for start, stop in ((model - 16, model), (model + 16, model + 32))
                for target in range(start, stop, 4)
                for site in module.sites(target, target + 1)
                if code.address + low <= site < code.address + high
            }
            if starts:
                for offset in range(12):
                    yield module.base + min(starts) + offset, MODEL_WORDS + offset
            return


def _stores(code: CodeSection, low: int, high: int) -> Iterator[int]:
    """The variables that the code from *low* to *high*, counted from its start, writes numbers to."""
    for match in _STORE.finditer(code.data, low, high):
        yield code.address + match.end() + int.from_bytes(match[1], "little", signed=True)


def _stored(module: Module, piece: Piece) -> Iterator[int]:
    data = _code(module, piece)
    return _stores(CodeSection("", piece.address - module.base, data), 0, len(data))


def _code(module: Module, piece: Piece) -> bytes:
    return module.bytes_at(piece.address - module.base, piece.end - piece.address)
