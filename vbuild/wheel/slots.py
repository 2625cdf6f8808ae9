"""Which Pythons and machines a wheel is for.

A slot is an interpreter, an ABI and a kind of machine, whatever the version of its system. A v3 wheel for
``cp312-cp312-manylinux_2_28_x86_64`` has its plain wheel in one for ``manylinux_2_17_x86_64`` and in one for
``cp39-abi3``.
"""

import re
from typing import Self

from msgspec import Struct
from packaging.tags import Tag

from vbuild.wheel.name import WheelName

_SYSTEMS = "manylinux|musllinux|macosx|ios|android|pyemscripten"
_VERSIONED = re.compile(rf"(?P<system>{_SYSTEMS})\d*(_\d+)*_(?P<machine>.+)", re.ASCII)
_UNIVERSAL = "macosx_universal2"
_OF_UNIVERSAL = frozenset({"macosx_x86_64", "macosx_arm64"})


def machine(platform: str) -> str:
    match = _VERSIONED.fullmatch(platform)
    return f"{match['system']}_{match['machine']}" if match else platform


def serves(offered: str, wanted: str) -> bool:
    """Whether a wheel for the machine *offered* is one for *wanted* too; both as `machine` returns them."""
    return offered in {"any", wanted} or (offered == _UNIVERSAL and wanted in _OF_UNIVERSAL)


_PYTHON = re.compile(r"(?P<implementation>[a-z]+)(?P<major>\d)(?P<minor>\d*)", re.ASCII)


_SOME_PYTHON = 12  # for wheels of any Python 3
# machines whose tag is not system_machine, with sys_platform and platform_machine
_MACHINES = {
    "any": (("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64"), ("win32", "AMD64")),
    "win32": (("win32", "x86"),),
    "win_amd64": (("win32", "AMD64"),),
    "win_arm64": (("win32", "ARM64"),),
    "macosx_universal2": (("darwin", "x86_64"), ("darwin", "arm64")),
}


class FileSlot(Struct, frozen=True, order=True):
    python: str
    abi: str
    machine: str

    def __str__(self) -> str:
        return f"{self.python}-{self.abi}-{self.machine}"

    @classmethod
    def of(cls, tag: Tag) -> Self:
        return cls(tag.interpreter, tag.abi, machine(tag.platform))

    @property
    def places(self) -> tuple[tuple[str, str, int], ...]:
        """Where it is installed, as markers know it: ``sys_platform``, ``platform_machine``, and x of Python 3.x."""
        match = _PYTHON.fullmatch(self.python)
        minor = int(match["minor"] or 0) if match else 0
        if self.machine in _MACHINES:
            return tuple((system, name, minor or _SOME_PYTHON) for system, name in _MACHINES[self.machine])
        system, _, name = self.machine.partition("_")
        sys_platform = {"macosx": "darwin", "linux": "linux", "manylinux": "linux", "musllinux": "linux"}.get(system)
        return ((sys_platform, name, minor or _SOME_PYTHON),) if sys_platform else ()

    def serves(self, wanted: Self) -> bool:
        """Whether who asks for *wanted* can have a wheel of this slot instead."""
        if not serves(self.machine, wanted.machine):
            return False
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


def meet(own: tuple[FileSlot, ...], others: tuple[FileSlot, ...]) -> bool:
    """Whether wheels of these slots can be in one environment."""
    return any(slot.serves(other) or other.serves(slot) for slot in own for other in others)


def slots(name: WheelName) -> tuple[FileSlot, ...]:
    return tuple(sorted({FileSlot.of(tag) for tag in name.tags}))


def covers(offered: tuple[FileSlot, ...], wanted: tuple[FileSlot, ...]) -> bool:
    return all(any(offer.serves(slot) for offer in offered) for slot in wanted)
