"""Who can install a wheel: interpreter, ABI and kind of machine, whatever the version of its system.

A v3 wheel for ``cp312-cp312-manylinux_2_28_x86_64`` has its plain wheel in one for ``manylinux_2_17_x86_64``, and in
one for ``cp39-abi3``.
https://packaging.python.org/en/latest/specifications/platform-compatibility-tags/
"""

import re
from dataclasses import dataclass
from typing import Self

from packaging.tags import Tag

from vbuild.publishing.platforms import machine, serves
from vbuild.wheel.name import WheelName

_PYTHON = re.compile(r"(?P<implementation>[a-z]+)(?P<major>\d)(?P<minor>\d*)", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """An interpreter, an ABI and a kind of machine."""

    python: str
    abi: str
    machine: str

    def __str__(self) -> str:
        return f"{self.python}-{self.abi}-{self.machine}"

    @classmethod
    def of(cls, tag: Tag) -> Self:
        return cls(tag.interpreter, tag.abi, machine(tag.platform))

    def serves(self, wanted: Self) -> bool:
        """Whether who asks for *wanted* can have a wheel of this slot instead."""
        return serves(self.machine, wanted.machine) and self._runs_on(wanted)

    def _runs_on(self, wanted: Self) -> bool:
        if (self.python, self.abi) == (wanted.python, wanted.abi):
            return True
        mine, theirs = _PYTHON.fullmatch(self.python), _PYTHON.fullmatch(wanted.python)
        if not (mine and theirs) or mine["major"] != theirs["major"]:
            return False
        if int(mine["minor"] or 0) > int(theirs["minor"] or 0):
            return False
        if self.abi == "abi3":
            # free-threaded interpreters, whose ABI ends in t, have no stable ABI (PEP 703)
            return mine["implementation"] == theirs["implementation"] and not wanted.abi.endswith("t")
        return self.abi == "none" and mine["implementation"] in {"py", theirs["implementation"]}


def slots(name: WheelName) -> tuple[Slot, ...]:
    """The slots of the wheel called *name*, sorted."""
    return tuple(sorted({Slot.of(tag) for tag in name.tags}))


def covers(offered: tuple[Slot, ...], wanted: tuple[Slot, ...]) -> bool:
    """Whether a wheel for *offered* can stand in for one for *wanted*."""
    return all(any(slot.serves(asked) for slot in offered) for asked in wanted)
