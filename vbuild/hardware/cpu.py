"""CPU levels: the x86-64 microarchitecture levels and the Arm architecture versions that builds target.

    x86-64-v3                    a level
    x86-64-v4+avx512_bf16        a level, and a feature that is part of none

Level v1 is the baseline that every x86-64 machine has (psABI, section 3.1.1: v2 of 2009, v3 of 2013, v4 of 2017);
Arm's counterpart is 8a. A level includes every lower one of its machine.
https://gitlab.com/x86-psABIs/x86-64-ABI
"""

import os
import re
from collections.abc import Collection, Iterable
from typing import Self

from msgspec import Struct

from vbuild.errors import HardwareError, meant


class CpuFeature(Struct, frozen=True):
    """A feature of x86-64 processors by its names: in the psABI (else iced-x86), in /proc/cpuinfo, and in gcc's options
    without ``-m``.
    """

    name: str
    cpuinfo: str
    gcc: tuple[str, ...]


def _features(table: str) -> tuple[CpuFeature, ...]:
    rows = (line.split() for line in table.strip().splitlines())
    return tuple(CpuFeature(name, cpuinfo, tuple(gcc.split(","))) for name, cpuinfo, gcc in rows)


X86_64_FEATURES = {
    "v1": _features("X64 lm mmx,sse,sse2"),
    "v2": _features("""
        CMPXCHG16B cx16     cx16
        LAHF-SAHF  lahf_lm  sahf
        POPCNT     popcnt   popcnt
        SSE3       pni      sse3
        SSSE3      ssse3    ssse3
        SSE4.1     sse4_1   sse4,sse4.1
        SSE4.2     sse4_2   sse4.2
    """),
    "v3": _features("""
        AVX        avx      avx
        AVX2       avx2     avx2
        BMI1       bmi1     bmi
        BMI2       bmi2     bmi2
        F16C       f16c     f16c
        FMA        fma      fma
        LZCNT      abm      abm,lzcnt
        MOVBE      movbe    movbe
        OSXSAVE    xsave    xsave
    """),
    "v4": _features("""
        AVX512F    avx512f  avx512f
        AVX512BW   avx512bw avx512bw
        AVX512CD   avx512cd avx512cd
        AVX512DQ   avx512dq avx512dq
        AVX512VL   avx512vl avx512vl
    """),
}
"""What each level adds to the one before (psABI, section 3.1.1).

A new level also needs: `vbuild.toolchain.compiler_wrapper` (which
compilers know levels), `vbuild.dispatch.judge` (names of dispatched functions), `vbuild.verification.level_emulation`
(how to run as the level), `vbuild.release.publication` (which processors have it), and the copy that sdists ship,
`vbuild.publishing.redirect.redirecthardware`, which a test compares with this table.
"""
X86_64_EXTRAS = {
    "v2": _features("""
        AES         aes        aes
        PCLMULQDQ   pclmulqdq  pclmul
        RDRAND      rdrand     rdrnd
        RDSEED      rdseed     rdseed
        FSGSBASE    fsgsbase   fsgsbase
        SHA         sha_ni     sha
        GFNI        gfni       gfni
        CLFLUSHOPT  clflushopt clflushopt
        CLWB        clwb       clwb
        MOVDIRI     movdiri    movdiri
        MOVDIR64B   movdir64b  movdir64b
        RDPID       rdpid      rdpid
    """),
    "v3": _features("""
        ADX        adx        adx
        VAES       vaes       vaes
        VPCLMULQDQ vpclmulqdq vpclmulqdq
        AVX_VNNI   avx_vnni   avxvnni
    """),
    "v4": _features("""
        AVX512_IFMA         avx512ifma          avx512ifma
        AVX512_VBMI         avx512vbmi          avx512vbmi
        AVX512_VBMI2        avx512_vbmi2        avx512vbmi2
        AVX512_VNNI         avx512_vnni         avx512vnni
        AVX512_BITALG       avx512_bitalg       avx512bitalg
        AVX512_VPOPCNTDQ    avx512_vpopcntdq    avx512vpopcntdq
        AVX512_VP2INTERSECT avx512_vp2intersect avx512vp2intersect
        AVX512_BF16         avx512_bf16         avx512bf16
    """),
}
"""The features of no level that `provider-variant-x86-64` knows, by Linux's names.

All processors with one are at least of the level here, which wheels with it have to name.
"""
X86_64_LEVELS = tuple(X86_64_FEATURES)
_V2, _V3 = ({feature.name for feature in X86_64_FEATURES[level]} for level in ("v2", "v3"))
# what some of qemu's processors have of these, in ascending order
_QEMU_MODELS = {
    "qemu64": {"SSE3", "CMPXCHG16B", "LAHF-SAHF"},
    "Nehalem": _V2,
    "Westmere": _V2 | {"AES", "PCLMULQDQ"},
    "SandyBridge": _V2 | {"AES", "PCLMULQDQ", "AVX", "OSXSAVE", "RDTSCP"},
    "IvyBridge": _V2 | {"AES", "PCLMULQDQ", "AVX", "OSXSAVE", "RDTSCP", "F16C", "RDRAND", "FSGSBASE"},
    "Haswell": _V2 | _V3 | {"AES", "PCLMULQDQ", "RDTSCP", "RDRAND", "FSGSBASE"},
    "Broadwell": _V2 | _V3 | {"AES", "PCLMULQDQ", "RDTSCP", "RDRAND", "FSGSBASE", "ADX", "RDSEED"},
}
_EXTRAS = {feature.cpuinfo: (level, feature) for level, extras in X86_64_EXTRAS.items() for feature in extras}
_OF_LEVELS = {feature.cpuinfo: level for level, features in X86_64_FEATURES.items() for feature in features}
_RANKS = {feature.name: X86_64_LEVELS.index(level) for level in X86_64_LEVELS[1:] for feature in X86_64_FEATURES[level]}
AARCH64_VERSIONS = (
    *(f"8{minor}a" for minor in ("", *(f".{number}" for number in range(1, 10)))),
    *(f"9.{number}a" for number in range(6)),
)

# what each version adds for programs, by the Arm ARM's names without FEAT_; no optional features, such as AES, MTE or
# SME
AARCH64_FEATURES = {
    version: tuple(names.split())
    for version, names in {
        "8.1a": "CRC32 LOR LSE RDM",
        "8.3a": "FCMA JSCVT LRCPC PAUTH",
        "8.4a": "DIT DOTPROD FLAGM LRCPC2",
        "8.5a": "FLAGM2 FRINTTS SB",
        "8.6a": "BF16 I8MM",
        "8.7a": "WFXT XS",
        "8.8a": "HBC MOPS",
        "8.9a": "CSSC",
        "9.0a": "FHM FP16 SVE SVE2",
        "9.4a": "SVE2P1",
    }.items()
}

# the first level that 9.0a does not include
_V8_IN_V9 = AARCH64_VERSIONS.index("8.6a")

_FEATURES = {"x86_64": "level", "aarch64": "version"}
_ORDERS = {"x86_64": X86_64_LEVELS, "aarch64": AARCH64_VERSIONS}
_EXPECTED = f"x86-64, x86-64-{', -'.join(X86_64_LEVELS[1:])}, or armv8-a, armv8.1-a ..."
_CLOSE = ("x86-64", *(f"x86-64-{level}" for level in X86_64_LEVELS[1:]), "armv8-a", "armv8.2-a", "armv9-a")
_NAME = re.compile(r"x86[-_]64|(?:x86[-_]64[-_])?(?P<level>v[1-9])|armv(?P<version>\d+(?:\.\d+)?)-?a")


class Cpu(Struct, frozen=True):
    """The processors that code is for: a machine (``x86_64``, ``aarch64``) and its level (``v3``, ``8.2a``).

    *extras* are features beyond the level, by Linux's names, sorted.
    """

    machine: str
    level: str
    extras: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """The CPU by compilers' name, or a short one: ``x86-64-v3``, ``v3``, ``armv8.2-a``, ``v4+avx512_bf16``.

        `HardwareError` for an unknown level or feature.
        """
        name, *extras = text.strip().lower().split("+")
        if not (match := _NAME.fullmatch(name)):
            raise HardwareError(f"no CPU level {text!r}; expected {_EXPECTED}{meant(name, _CLOSE)}")
        version = match["version"]
        cpu = (
            cls.known("aarch64", "9.0a" if version == "9" else f"{version}a")
            if version
            else cls.known("x86_64", match["level"] or "v1")
        )
        for extra in extras:
            _check_extra(cpu, extra)
        return cls(cpu.machine, cpu.level, tuple(sorted(set(extras))))

    @classmethod
    def known(cls, machine: str, level: str) -> Self:
        """The CPU of *machine* and *level*; `HardwareError` if there is none."""
        levels = _ORDERS.get(machine, ())
        if level not in levels:
            expected = f"expected {', '.join(levels)}" if levels else f"expected one of {', '.join(_ORDERS)}"
            raise HardwareError(f"no CPU level {level!r} of {machine!r}; {expected}")
        return cls(machine, level)

    @classmethod
    def of_property(cls, text: str) -> Self | None:
        """The CPU of the variant property *text* (``x86_64 :: level :: v3``); None for other properties."""
        machine, feature, level = (part.strip() for part in text.split("::"))
        return cls.known(machine, level) if _FEATURES.get(machine) == feature else None

    @classmethod
    def of_properties(cls, texts: Iterable[str]) -> Self | None:
        """The lowest CPU of the variant properties *texts*; None if they name none."""
        texts = tuple(texts)
        cpus = [cpu for text in texts if (cpu := cls.of_property(text))]
        extras = {extra for text in texts if (extra := extra_of(text))}
        if extras and not cpus:
            # the level of all processors with the extras
            cpus = [cls("x86_64", max(_EXTRAS[extra][0] for extra in extras))]
        if not cpus:
            return None
        lowest = min(cpus, key=lambda cpu: cpu.rank)
        return cls(lowest.machine, lowest.level, tuple(sorted(extras)))

    def __str__(self) -> str:
        return "+".join((self.march, *self.extras))

    @property
    def march(self) -> str:
        if self.machine == "aarch64":
            # gcc calls the first of Armv9 armv9-a
            return f"armv{self.level.removesuffix('a').removesuffix('.0')}-a"
        return f"x86-64-{self.level}" if self.rank else "x86-64"

    @property
    def rank(self) -> int:
        return _ORDERS[self.machine].index(self.level)

    @property
    def is_baseline(self) -> bool:
        return self.rank == 0 and not self.extras

    def with_extras(self, names: Iterable[str]) -> Self:
        """The same level with those of the features *names* that a wheel can name."""
        extras = sorted({*names} & _EXTRAS.keys()) if self.machine == "x86_64" else ()
        return type(self)(self.machine, self.level, tuple(extras))

    @property
    def extra_features(self) -> tuple[CpuFeature, ...]:
        return tuple(_EXTRAS[extra][1] for extra in self.extras)

    @property
    def variant_property(self) -> str:
        """The level as a property in the namespaces that uv knows."""
        return f"{self.machine} :: {_FEATURES[self.machine]} :: {self.level}"

    @property
    def variant_properties(self) -> tuple[str, ...]:
        """The level, and the extras, as properties that `provider-variant-x86-64` knows."""
        return (self.variant_property, *(f"{self.machine} :: {extra} :: {_ON}" for extra in self.extras))

    @property
    def label(self) -> str:
        """The CPU as part of a variant label: ``x86_64_v3``, ``x86_64_v4_avx512_bf16``."""
        return "_".join((self.machine, self.level, *self.extras))

    @property
    def features(self) -> frozenset[str]:
        if self.machine == "aarch64":
            return frozenset(name for level in self.supported_levels for name in AARCH64_FEATURES.get(level, ()))
        return frozenset(
            feature.name for level in X86_64_LEVELS[1 : self.rank + 1] for feature in X86_64_FEATURES[level]
        )

    def runs(self, other: Self) -> bool:
        if self.machine != other.machine or other.level not in self.supported_levels:
            return False
        return set(other.extras) <= set(self.extras)

    @property
    def supported_levels(self) -> tuple[str, ...]:
        """The level and all that it includes, best first: 9.0a includes 8.5a, 9.1a 8.6a, and so on."""
        levels = _ORDERS[self.machine]
        lower = levels[self.rank :: -1]
        if not self.level.startswith("9."):
            return lower
        skipped = levels[_V8_IN_V9 + int(self.level[2:-1]) : levels.index("9.0a")]
        return tuple(level for level in lower if level not in skipped)


_ON = "on"


def extra_of(text: str) -> str | None:
    """The extra of the variant property *text*; None for other properties."""
    machine, extra, value = (part.strip() for part in text.split("::"))
    return extra if (machine, value) == ("x86_64", _ON) and extra in _EXTRAS else None


def _check_extra(cpu: Cpu, extra: str) -> None:
    if cpu.machine != "x86_64":
        raise HardwareError(f"{cpu}+{extra}: single features can be named for x86-64 only")
    if level := _OF_LEVELS.get(extra):
        raise HardwareError(f"{cpu}+{extra}: {extra} is part of a level; expected x86-64-{level} or higher instead")
    if extra not in _EXTRAS:
        raise HardwareError(
            f"{cpu}+{extra}: no feature {extra!r}; expected one of {', '.join(_EXTRAS)}{meant(extra, _EXTRAS)}"
        )
    lowest = _EXTRAS[extra][0]
    if X86_64_LEVELS.index(lowest) > cpu.rank:
        why = f"all processors with {extra} are of x86-64-{lowest}"
        raise HardwareError(f"{cpu}+{extra}: {why}; expected x86-64-{lowest}+{extra}")


def feature_rank(name: str) -> int:
    """The index of the lowest x86-64 level with the feature *name*, 1 for v2; 4 if none has it."""
    return _RANKS.get(name, len(X86_64_LEVELS))


def level_of_features(names: frozenset[str], machine: str = "x86_64") -> str:
    """The lowest level of *machine* with all features *names*; ``beyond v4`` or ``of no version`` if there is none."""
    if machine == "aarch64":
        cpus = (Cpu(machine, version) for version in AARCH64_VERSIONS)
        return next((str(cpu) for cpu in cpus if names <= cpu.features), "of no version")
    highest = max(map(feature_rank, names), default=0)
    return X86_64_LEVELS[highest] if highest < len(X86_64_LEVELS) else f"beyond {X86_64_LEVELS[-1]}"


def lesser_processor(missing: Collection[str]) -> str:
    """A processor for ``qemu-x86_64 -cpu`` without the features *missing*, and with all older ones."""
    models = (model for model, names in reversed(_QEMU_MODELS.items()) if names.isdisjoint(missing))
    return next(models, None) or masked_processor(missing)


def masked_processor(missing: Collection[str], others: Collection[str] = ()) -> str:
    """A processor for ``qemu-x86_64 -cpu`` with all features but *missing*, *others* among them."""
    models = (model for model in ("Haswell", "Broadwell") if _QEMU_MODELS[model].issuperset({*missing, *others}))
    flags = {
        feature.name: feature.cpuinfo
        for features in (*X86_64_FEATURES.values(), *X86_64_EXTRAS.values())
        for feature in features
    }
    without = (flags.get(name, name.lower()).replace("_", "-") for name in sorted(missing))
    return ",".join((next(models, "max"), *(f"-{flag}" for flag in without)))


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
