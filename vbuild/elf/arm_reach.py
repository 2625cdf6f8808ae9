"""Which aarch64 code above a version runs without a test of the processor, as `vbuild.elf.reach` says for x86-64."""

import re
from collections.abc import Iterable, Iterator
from functools import cached_property

from msgspec.structs import replace

from vbuild.elf.arm_code import ArmModule
from vbuild.elf.arm_facts import ARGUMENT, ARGUMENTS, GETAUXVAL
from vbuild.elf.arm_interpreter import ArmInterpreter
from vbuild.elf.cpu_facts import features
from vbuild.elf.module import Module, Piece
from vbuild.elf.operands import Registers
from vbuild.elf.reach import Doubt, Reach, Unguarded
from vbuild.elf.values import Value, shifted, tag, truncated
from vbuild.hardware.cpu import AARCH64_VERSIONS, Cpu

# mrs of an identity register: ID_AA64PFR0_EL1 to ID_AA64ISAR2_EL1, and MIDR_EL1, which says the model
_MRS = re.compile(rb"[\x00-\xff][\x00\x04-\x06]\x38\xd5")


class ArmReach(Reach):
    """Finds the aarch64 code above the version of a CPU that is reached without a test."""

    _interpreter = ArmInterpreter

    @cached_property
    def _models(self) -> dict[int, int]:
        return {}

    def _asking(self) -> Iterator[Piece]:
        for module in self.program.modules:
            for code in module.elf.code:
                places = (match.start() for match in _MRS.finditer(code.data))
                starts = (module.base + code.address + place for place in places if not (code.address + place) % 4)
                yield from filter(None, map(module.piece, starts))
            for place, name in module.imports.items():
                if name in GETAUXVAL:
                    yield from self._users_of_place(module, place)
            yield from filter(None, (module.piece(module.base + address) for address in module.elf.resolvers))

    def _of_level(self, level: int) -> int:
        return features(Cpu("aarch64", AARCH64_VERSIONS[level]).features)

    def is_closed(self, _: int) -> bool:
        """Arguments are not followed into functions that others may call."""
        return False

    def is_result_used(self, _: int) -> bool:
        return True

    def _found_registers(self, _: int, __: int) -> Registers:
        return Registers(frozenset(range(9)), frozenset((*range(19), 30)))

    def _writers_of(self, module: Module, table: range, starts: range) -> Iterator[Piece]:
        assert isinstance(module, ArmModule)  # noqa: S101  # a program has files of one machine
        low, high = min(table.start, starts.start), max(table.stop, starts.stop)
        for site, target in module.sites_and_targets(low, high):
            if (target in table or module.is_taken(site)) and module.may_write(site):
                yield from filter(None, (module.piece(module.base + site),))
        # through a pointer that is kept in data
        for place in module.places_of(table.start, table.stop):
            if module.object_at(place):
                yield from self._users(module, module.table(place))
            for site in module.sites(place, place + 1):
                if module.may_write(site, is_pointer=True):
                    yield from filter(None, (module.piece(module.base + site),))
        for other, place in self.program.importers(module.exported_names(table)):
            if other is not module:
                yield from self._users_of_place(other, place)

    def _doubt(self, address: int) -> Doubt | None:
        """In a file that asks the processor nothing is shown to be unguarded: less is understood than of x86-64."""
        return Doubt.UNFOLLOWED if self._asks_in(self.program.module(address)) else None

    def violations(self, above: Iterable[Piece]) -> dict[int, Unguarded]:
        found = super().violations(above)
        return {address: replace(one, doubt=one.doubt or self._doubt(address)) for address, one in found.items()}

    def _special(self, address: int, size: int) -> Value:
        if tag(address) != tag(ARGUMENT):
            return None
        offset = address - ARGUMENT
        word = ARGUMENTS.get(offset & ~7)
        return truncated(shifted(word, 8 * (offset & 7), "shr", 8), size) if word is not None else None
