"""The architectures of GPUs: how they are written, and which code runs on which GPU.

    sm_90    NVIDIA's compute capability 9.0, and code for it
    sm_90a   code that uses what only 9.0 has, and runs nowhere else
    sm_100f  code that uses what the family of 10.0 has

    gfx942            AMD's processor, and code for it in every mode
    gfx90a:xnack+     code for one that runs with page faults retried; gfx90a runs in that mode, or in the other
    gfx942:sramecc+   code for one whose memory corrects errors
    gfx11-generic     code for each processor of a table
    amdgcnspirv       code that the runtime compiles for any of them

NVIDIA: machine code for X.y runs on X.z where z >= y; PTX for X.y runs on every later GPU; code with ``a`` only on X.y
itself; code with ``f`` on X.z where z >= y. Tegra GPUs run no machine code but their own, and other GPUs none of it.
https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/compute-capabilities.html
https://docs.nvidia.com/cuda/ampere-compatibility-guide/

*since* is the first toolkit that compiles for an architecture, *until* the last one; *specific* and *family* are the
first for its forms with ``a`` and ``f``. From 11.7 on ``ptxas --help`` lists them; before that, it is the toolkit of
the PTX version that brought the target. https://docs.nvidia.com/cuda/parallel-thread-execution/#ptx-isa-version-history

NVIDIA renamed Thor from 10.1 to 11.0 in CUDA 13. https://docs.nvidia.com/cuda/cuda-for-tegra-appnote/

AMD: code for a processor runs on that one alone. Code that names no mode runs in both. The runtime prefers code for the
processor to generic code, and compiles SPIR-V without either: ROCm/clr, hipamd/src/hip_fatbin.cpp. Processors, modes
and numbers are those of LLVM 22. https://llvm.org/docs/AMDGPUUsage.html#processors
"""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import NamedTuple, Self

from vbuild.errors import HardwareError
from vbuild.hardware.driver import Dotted


class Architecture(NamedTuple):
    """One architecture: the toolkits that compile for it, and whether it is a Tegra, in a Jetson or DRIVE."""

    since: Dotted
    until: Dotted | None = None
    specific: Dotted | None = None
    family: Dotted | None = None
    is_tegra: bool = False

    def first_toolkit(self, suffix: str) -> Dotted | None:
        return {"": self.since, "a": self.specific, "f": self.family}[suffix]


_12_8, _12_9, _13_0 = Dotted(12, 8), Dotted(12, 9), Dotted(13, 0)

ARCHITECTURES: Mapping[int, Architecture] = {
    50: Architecture(since=Dotted(6, 0), until=_12_9),
    52: Architecture(since=Dotted(6, 5), until=_12_9),
    53: Architecture(since=Dotted(7, 0), until=_12_9, is_tegra=True),
    60: Architecture(since=Dotted(8, 0), until=_12_9),
    61: Architecture(since=Dotted(8, 0), until=_12_9),
    62: Architecture(since=Dotted(8, 0), until=_12_9, is_tegra=True),
    70: Architecture(since=Dotted(9, 0), until=_12_9),
    72: Architecture(since=Dotted(9, 1), until=_12_9, is_tegra=True),
    75: Architecture(since=Dotted(10, 0)),
    80: Architecture(since=Dotted(11, 0)),
    86: Architecture(since=Dotted(11, 1)),
    87: Architecture(since=Dotted(11, 4), is_tegra=True),
    88: Architecture(since=_13_0),
    89: Architecture(since=Dotted(11, 8)),
    90: Architecture(since=Dotted(11, 8), specific=Dotted(12, 0)),
    100: Architecture(since=_12_8, specific=_12_8, family=_12_9),
    101: Architecture(since=_12_8, until=_12_9, specific=_12_8, family=_12_9, is_tegra=True),
    103: Architecture(since=_12_9, specific=_12_9, family=_12_9),
    107: Architecture(since=Dotted(13, 4), specific=Dotted(13, 4), family=Dotted(13, 4)),
    110: Architecture(since=_13_0, specific=_13_0, family=_13_0, is_tegra=True),
    120: Architecture(since=_12_8, specific=_12_8, family=_12_9),
    121: Architecture(since=_12_9, specific=_12_9, family=_12_9),
}


class Arch(NamedTuple):
    """NVIDIA's architecture: the number of a compute capability, and the suffix of code."""

    number: int
    suffix: str = ""

    def __str__(self) -> str:
        """The name as nvcc writes it: ``sm_90a``; "unknown" for 0, code for no known GPU."""
        return f"sm_{self.number}{self.suffix}" if self.number else "unknown"

    @property
    def major(self) -> int:
        return self.number // 10

    @property
    def device(self) -> Self:
        """The GPU of this compute capability: sm_90 for sm_90a."""
        return type(self)(self.number)

    @property
    def is_tegra(self) -> bool:
        known = ARCHITECTURES.get(self.number)
        return known is not None and known.is_tegra

    @property
    def toolkits(self) -> tuple[Dotted, Dotted | None] | None:
        """The first CUDA toolkit that compiles for it, and the last, if any; None for an unknown one."""
        known = ARCHITECTURES.get(self.number)
        first = known.first_toolkit(self.suffix) if known else None
        return (first, known.until) if known and first else None

    def runs_on(self, device: "Device") -> bool:
        if not isinstance(device, Arch):
            return False
        if self.number == device.number:
            return True
        return self.is_before(device) and not (self.is_tegra or device.is_tegra or self.suffix == "a")

    def is_before(self, device: "Arch") -> bool:
        return self.major == device.major and self.number < device.number

    def compiles_on(self, device: "Device") -> bool:
        """Whether the driver of *device* can compile PTX for it."""
        return isinstance(device, Arch) and (self.runs_on(device) or (not self.suffix and self.number < device.number))


class Processor(NamedTuple):
    """One of AMD's processors: its number in the flags of a code object, and its modes."""

    number: int
    modes: tuple[str, ...] = ()


_XNACK, _BOTH = ("xnack",), ("sramecc", "xnack")

PROCESSORS: Mapping[str, Processor] = {
    "gfx700": Processor(0x22),
    "gfx701": Processor(0x23),
    "gfx702": Processor(0x24),
    "gfx703": Processor(0x25),
    "gfx704": Processor(0x26),
    "gfx705": Processor(0x3B),
    "gfx801": Processor(0x28, _XNACK),
    "gfx802": Processor(0x29),
    "gfx803": Processor(0x2A),
    "gfx805": Processor(0x3C),
    "gfx810": Processor(0x2B, _XNACK),
    "gfx900": Processor(0x2C, _XNACK),
    "gfx902": Processor(0x2D, _XNACK),
    "gfx904": Processor(0x2E, _XNACK),
    "gfx906": Processor(0x2F, _BOTH),
    "gfx908": Processor(0x30, _BOTH),
    "gfx909": Processor(0x31, _XNACK),
    "gfx90a": Processor(0x3F, _BOTH),
    "gfx90c": Processor(0x32, _XNACK),
    "gfx940": Processor(0x40, _BOTH),
    "gfx941": Processor(0x4B, _BOTH),
    "gfx942": Processor(0x4C, _BOTH),
    "gfx950": Processor(0x4F, _BOTH),
    "gfx1010": Processor(0x33, _XNACK),
    "gfx1011": Processor(0x34, _XNACK),
    "gfx1012": Processor(0x35, _XNACK),
    "gfx1013": Processor(0x42, _XNACK),
    "gfx1030": Processor(0x36),
    "gfx1031": Processor(0x37),
    "gfx1032": Processor(0x38),
    "gfx1033": Processor(0x39),
    "gfx1034": Processor(0x3E),
    "gfx1035": Processor(0x3D),
    "gfx1036": Processor(0x45),
    "gfx1100": Processor(0x41),
    "gfx1101": Processor(0x46),
    "gfx1102": Processor(0x47),
    "gfx1103": Processor(0x44),
    "gfx1150": Processor(0x43),
    "gfx1151": Processor(0x4A),
    "gfx1152": Processor(0x55),
    "gfx1153": Processor(0x58),
    "gfx1200": Processor(0x48),
    "gfx1201": Processor(0x4E),
    "gfx1250": Processor(0x49, _BOTH),
    "gfx1251": Processor(0x5A, _BOTH),
}
GENERIC: Mapping[str, tuple[str, ...]] = {
    "gfx9-generic": ("gfx900", "gfx902", "gfx904", "gfx906", "gfx909", "gfx90c"),
    "gfx9-4-generic": ("gfx940", "gfx941", "gfx942", "gfx950"),
    "gfx10-1-generic": ("gfx1010", "gfx1011", "gfx1012", "gfx1013"),
    "gfx10-3-generic": ("gfx1030", "gfx1031", "gfx1032", "gfx1033", "gfx1034", "gfx1035", "gfx1036"),
    "gfx11-generic": ("gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1153"),
    "gfx12-generic": ("gfx1200", "gfx1201"),
}
SPIRV = "amdgcnspirv"
_GENERIC_NUMBERS = {
    0x51: "gfx9-generic",
    0x52: "gfx10-1-generic",
    0x53: "gfx10-3-generic",
    0x54: "gfx11-generic",
    0x59: "gfx12-generic",
    0x5F: "gfx9-4-generic",
}
_BY_NUMBER = {processor.number: name for name, processor in PROCESSORS.items()} | _GENERIC_NUMBERS
# since this ABI (the byte after EI_OSABI) the flags have two bits for each mode: none, any, off, on
_TWO_BITS = 2
_MODE_BITS = {"sramecc": 10, "xnack": 8}
_SIGNS = {2: "-", 3: "+"}
_UNNAMED_GENERIC = re.compile(r"gfx(?P<major>\d+)(?:-(?P<minor>\d))?-generic", re.ASCII)
_TARGET = re.compile(r"(?P<processor>gfx[0-9a-z]+(?:-\d+)?(?:-generic)?)(?P<modes>(?:[:-][a-z]+[+-])*)", re.ASCII)
_MODE = re.compile(r"[a-z]+[+-]")
_NEAR = 4


class GpuTarget(NamedTuple):
    """One of AMD's processors, or code for it, in *modes* such as ``xnack+``."""

    processor: str
    modes: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """A processor as in ``gfx942`` or ``gfx90a:xnack+``; `HardwareError` for an unknown one."""
        name = text.strip().lower()
        match = _TARGET.fullmatch(name)
        processor = match["processor"] if match else name.partition(":")[0]
        if processor not in PROCESSORS and processor not in GENERIC:
            raise HardwareError(f"there is no GPU architecture {text!r}; did you mean {_nearest(processor)}?")
        modes = tuple(sorted(_MODE.findall(match["modes"]))) if match else ()
        known = PROCESSORS[processor].modes if processor in PROCESSORS else ()
        names = [mode[:-1] for mode in modes]
        if not match or any(mode not in known for mode in names) or len(names) > len(set(names)):
            forms = " or ".join(f"{processor}:{mode}+" for mode in known)
            raise HardwareError(f"{text!r}: expected {processor}{f', or {forms}, or with -' if forms else ''}")
        return cls(processor, modes)

    @classmethod
    def of_flags(cls, flags: int, abi: int) -> Self | None:
        """What a code object with *flags* of this *abi* is for; None if unknown."""
        name = _BY_NUMBER.get(flags & 0xFF)
        if name is None or not abi:
            return None
        if abi < _TWO_BITS:
            known = PROCESSORS[name].modes if name in PROCESSORS else ()
            bits = {"xnack": 0x100, "sramecc": 0x200}
            return cls(name, tuple(mode + ("+" if flags & bits[mode] else "-") for mode in known))
        signs = {mode: _SIGNS.get(flags >> bit & 3) for mode, bit in _MODE_BITS.items()}
        return cls(name, tuple(mode + sign for mode, sign in signs.items() if sign))

    def __str__(self) -> str:
        """The name as clang writes it: ``gfx90a:xnack+``."""
        return ":".join((self.processor, *self.modes))

    @property
    def device(self) -> Self:
        return type(self)(self.processor)

    @property
    def is_generic(self) -> bool:
        return self.processor.endswith("-generic")

    def runs_on(self, device: "Device") -> bool:
        """Whether machine code for it runs on *device* in one of its open modes."""
        if not isinstance(device, GpuTarget) or not self._is_for(device.processor):
            return False
        signs = {mode[:-1]: mode[-1:] for mode in device.modes}
        return all(signs.get(mode[:-1], mode[-1:]) == mode[-1:] for mode in self.modes)

    def compiles_on(self, device: "Device") -> bool:
        """Whether the runtime of *device* can compile this code: SPIR-V for AMD's processors."""
        return isinstance(device, GpuTarget) and self.processor == SPIRV

    def suits(self, device: "Device") -> bool:
        """Whether it is for the processor of *device* itself, and runs in all open modes."""
        return self.device == device.device and isinstance(device, GpuTarget) and {*self.modes} <= {*device.modes}

    def _is_for(self, processor: str) -> bool:
        if self.processor == processor:
            return True
        if self.processor in GENERIC:
            return processor in GENERIC[self.processor]
        # newer than the table: its name tells some processors
        match = _UNNAMED_GENERIC.fullmatch(self.processor)
        begins = f"gfx{match['major']}{match['minor'] or ''}" if match else None
        return begins is not None and begins in {processor[:-2], processor[:-1]}


Device = Arch | GpuTarget


def _nearest(name: str) -> str:
    """The processors that begin like *name*, else the nearest in spelling."""
    begun = [known for known in (*PROCESSORS, *GENERIC) if known.startswith(name)]
    *others, last = (begun or get_close_matches(name, PROCESSORS, n=_NEAR, cutoff=0.0))[:_NEAR]
    return f"{', '.join(others)} or {last}" if others else last
