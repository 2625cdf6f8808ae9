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


class CpuFeature(Struct, frozen=True):
    """A feature that an x86-64 level adds, as the psABI, Linux, gcc and klauspost/cpuid, which NFD uses, call it.

    *cpuinfo* is the flag in /proc/cpuinfo; *gcc* are the options for it, without ``-m``.
    """

    name: str
    cpuinfo: str
    gcc: tuple[str, ...]
    cpuid: str


def _features(table: str) -> tuple[CpuFeature, ...]:
    rows = (line.split() for line in table.strip().splitlines())
    return tuple(CpuFeature(name, cpuinfo, tuple(gcc.split(",")), cpuid) for name, cpuinfo, gcc, cpuid in rows)


X86_64_FEATURES = {
    "v1": _features("X64 lm mmx,sse,sse2 X64"),
    "v2": _features("""
        CMPXCHG16B cx16     cx16        CX16
        LAHF-SAHF  lahf_lm  sahf        LAHF
        POPCNT     popcnt   popcnt      POPCNT
        SSE3       pni      sse3        SSE3
        SSSE3      ssse3    ssse3       SSSE3
        SSE4.1     sse4_1   sse4,sse4.1 SSE4
        SSE4.2     sse4_2   sse4.2      SSE42
    """),
    "v3": _features("""
        AVX        avx      avx         AVX
        AVX2       avx2     avx2        AVX2
        BMI1       bmi1     bmi         BMI1
        BMI2       bmi2     bmi2        BMI2
        F16C       f16c     f16c        F16C
        FMA        fma      fma         FMA3
        LZCNT      abm      abm,lzcnt   LZCNT
        MOVBE      movbe    movbe       MOVBE
        OSXSAVE    xsave    xsave       OSXSAVE
    """),
    "v4": _features("""
        AVX512F    avx512f  avx512f     AVX512F
        AVX512BW   avx512bw avx512bw    AVX512BW
        AVX512CD   avx512cd avx512cd    AVX512CD
        AVX512DQ   avx512dq avx512dq    AVX512DQ
        AVX512VL   avx512vl avx512vl    AVX512VL
    """),
}
"""What each level adds to the one before (psABI, section 3.1.1).

A new level also needs: `vbuild.build.plan` (MSVC's options), `vbuild.toolchain.compiler_wrapper` (which
compilers know levels), `vbuild.elf.dispatch` (names of dispatched functions), `vbuild.verification.level_emulation`
(how to run as the level), `vbuild.release.publication` (which processors have it), and the copy that sdists ship,
`vbuild.publishing.redirect.redirecthardware`, which a test compares with this table.
"""
X86_64_LEVELS = tuple(X86_64_FEATURES)
_RANKS = {feature.name: X86_64_LEVELS.index(level) for level in X86_64_LEVELS[1:] for feature in X86_64_FEATURES[level]}
AARCH64_VERSIONS = (
    *(f"8{minor}a" for minor in ("", *(f".{number}" for number in range(1, 10)))),
    *(f"9.{number}a" for number in range(6)),
)

# where the first level starts that 9.0a does not include: 8.6a
_V8_IN_V9 = AARCH64_VERSIONS.index("8.6a")

_FEATURES = {"x86_64": "level", "aarch64": "version"}
_ORDERS = {"x86_64": X86_64_LEVELS, "aarch64": AARCH64_VERSIONS}
_EXPECTED = f"x86-64, x86-64-{', -'.join(X86_64_LEVELS[1:])}, or armv8-a, armv8.1-a ..."
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
        raise HardwareError(f"no CPU level {text!r}; expected {_EXPECTED}")

    @classmethod
    def known(cls, machine: str, level: str) -> Self:
        """The CPU of that *machine* and *level*; `HardwareError` if there is none."""
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


def feature_rank(name: str) -> int:
    """The position of the lowest x86-64 level that has the feature *name*, 1 for v2; one more than v4's if none has."""
    return _RANKS.get(name, len(X86_64_LEVELS))


def level_of_features(names: frozenset[str]) -> str:
    """The lowest x86-64 level that has all features *names*; ``beyond v4`` if there is none."""
    highest = max(map(feature_rank, names), default=0)
    return X86_64_LEVELS[highest] if highest < len(X86_64_LEVELS) else f"beyond {X86_64_LEVELS[-1]}"


def available_cores() -> int:
    """The cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
