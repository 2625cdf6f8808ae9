"""CPU levels: the x86-64 microarchitecture levels and the Arm architecture versions that builds target.

Level v1 is the baseline that every x86-64 machine has (psABI, section 3.1.1: v2 of 2009, v3 of 2013, v4 of 2017);
Arm's counterpart is 8a. A level includes every lower one of its machine.
https://gitlab.com/x86-psABIs/x86-64-ABI
"""

import os
import re
from typing import Self

from msgspec import Struct

from vbuild.errors import HardwareError

X86_64_LEVELS = ("v1", "v2", "v3", "v4")
AARCH64_VERSIONS = (
    *(f"8{minor}a" for minor in ("", *(f".{number}" for number in range(1, 10)))),
    *(f"9.{number}a" for number in range(6)),
)

# where the first level starts that 9.0a does not include: 8.6a
_V8_IN_V9 = AARCH64_VERSIONS.index("8.6a")

_FEATURES = {"x86_64": "level", "aarch64": "version"}
_ORDERS = {"x86_64": X86_64_LEVELS, "aarch64": AARCH64_VERSIONS}
_NAME = re.compile(r"x86[-_]64(?:[-_](?P<level>v[1-9]))?|armv(?P<version>\d+(?:\.\d+)?)-?a")


class Cpu(Struct, frozen=True):
    """The processors that code may count on: a machine (``x86_64``, ``aarch64``) and its level (``v3``, ``8.2a``)."""

    machine: str
    level: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """The CPU named as compilers do: ``x86-64``, ``x86-64-v3``, ``armv8.2-a``; `HardwareError` for another name."""
        if match := _NAME.fullmatch(text.strip().lower()):
            if version := match["version"]:
                return cls.known("aarch64", f"{version}a")
            return cls.known("x86_64", match["level"] or "v1")
        raise HardwareError(f"no CPU level {text!r}; expected x86-64, x86-64-v2, -v3, -v4, or armv8-a, armv8.1-a ...")

    @classmethod
    def known(cls, machine: str, level: str) -> Self:
        """The CPU of that *machine* and *level*; `HardwareError` where there is none."""
        levels = _ORDERS.get(machine, ())
        if level not in levels:
            expected = f"expected {', '.join(levels)}" if levels else f"expected one of {', '.join(_ORDERS)}"
            raise HardwareError(f"no CPU level {level!r} of {machine!r}; {expected}")
        return cls(machine, level)

    @classmethod
    def of_property(cls, text: str) -> Self | None:
        """The CPU that the variant property *text* (``x86_64 :: level :: v3``) asks for; None for other properties."""
        machine, feature, level = (part.strip() for part in text.split("::"))
        return cls.known(machine, level) if _FEATURES.get(machine) == feature else None

    def __str__(self) -> str:
        """The name that ``-march=`` takes."""
        if self.machine == "aarch64":
            return f"armv{self.level.removesuffix('a')}-a"
        return "x86-64" if self.is_baseline else f"x86-64-{self.level}"

    @property
    def rank(self) -> int:
        """How high the level is; 0 is the baseline."""
        return _ORDERS[self.machine].index(self.level)

    @property
    def is_baseline(self) -> bool:
        return self.rank == 0

    @property
    def variant_property(self) -> str:
        """The level as PEP 825 writes it, in the namespaces that uv knows."""
        return f"{self.machine} :: {_FEATURES[self.machine]} :: {self.level}"

    @property
    def label(self) -> str:
        """The level as part of a variant label: ``x86_64_v3``."""
        return f"{self.machine}_{self.level}"

    def runs(self, other: Self) -> bool:
        """Whether code for *other* runs on this CPU."""
        return self.machine == other.machine and other.level in self.supported_levels

    @property
    def supported_levels(self) -> tuple[str, ...]:
        """The level and every one it includes, best first: 9.0a includes 8.5a, 9.1a includes 8.6a, and so on."""
        levels = _ORDERS[self.machine]
        lower = levels[self.rank :: -1]
        if not self.level.startswith("9."):
            return lower
        skipped = levels[_V8_IN_V9 + int(self.level[2:-1]) : levels.index("9.0a")]
        return tuple(level for level in lower if level not in skipped)


def available_cores() -> int:
    """The cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
