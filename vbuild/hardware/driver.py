"""GPUs as a machine reports them: the CUDA version of NVIDIA's driver, compute capabilities, and AMD's processors.

    12.8     the newest CUDA version that the driver runs
    9.0      a compute capability; code for it is called sm_90
    gfx942   a processor of AMD

The first two are from NVML, which comes with every driver and starts no context on a GPU; the third from files of
Linux's driver. https://docs.nvidia.com/deploy/nvml-api/
"""

import ctypes
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

from vbuild.errors import HardwareError, at

# variables of NVIDIA's and the TPU's variant provider, which uv obeys, and of AMD's
FORCED_DRIVER = "NV_VARIANT_PROVIDER_FORCE_CUDA_DRIVER_VERSION"
FORCED_CAPABILITY = "NV_VARIANT_PROVIDER_FORCE_SM_ARCH"
FORCED_GFX = "ROCM_BOOTSTRAP_FORCE_GFX_ARCH"
FORCED_TPU = "TPU_VARIANT_PROVIDER_FORCE_PRESENT"

TOPOLOGY = Path("/sys/class/kfd/kfd/topology/nodes")
PCI = Path("/sys/bus/pci/devices")
_GOOGLE = "0x1ae0"
# v3, plc, v4, v5p, v5e, v6e, 7x, 8i and 8t, as in JAX's hardware_utils.py
_TPUS = {"0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076", "0x0083", "0x007c"}
_GFX_VERSION = re.compile(r"^gfx_target_version (?P<number>[1-9]\d{4,5})$", re.MULTILINE | re.ASCII)

_DOTTED = re.compile(r"(?P<major>\d{1,4})(\.(?P<minor>\d{1,4}))?", re.ASCII)
_ANY_MINOR = 11  # from this major version on, the minor one of a driver does not matter to machine code
_LIBRARIES = ("libnvidia-ml.so.1", "nvml.dll")


class Dotted(NamedTuple):
    """A CUDA version or a compute capability: two numbers, written with a dot."""

    major: int
    minor: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """``12.8`` or ``12``, which means ``12.0``; `HardwareError` for anything else."""
        if match := _DOTTED.fullmatch(text.strip()):
            return cls(int(match["major"]), int(match["minor"] or 0))
        raise HardwareError(f"no version {text!r}; expected two numbers with a dot, as in 12.8")

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


# what asks for no driver of its own
ANY_DRIVER = Dotted(0, 0)

# drivers before that of CUDA 12.4 do not read GPU code compressed with zstd (nvcc's manual, --compress-mode)
ZSTD_SINCE = Dotted(12, 4)

# versions of PTX; after each, every minor version of CUDA has the next one (the PTX manual, release notes)
_PTX = {
    Dotted(6, 0): Dotted(9, 0),
    Dotted(6, 3): Dotted(10, 0),
    Dotted(7, 0): Dotted(11, 0),
    Dotted(8, 0): Dotted(12, 0),
    Dotted(8, 6): Dotted(12, 7),
    Dotted(9, 0): Dotted(13, 0),
}


def compiles_since(ptx: Dotted) -> Dotted | None:
    """The CUDA version of the oldest driver that compiles PTX of the version *ptx*; None if unknown.

    Drivers run machine code of later minor versions of CUDA, but do not compile their PTX.
    """
    first = max((known for known in _PTX if known <= ptx and known.major == ptx.major), default=None)
    return Dotted(_PTX[first].major, _PTX[first].minor + ptx.minor - first.minor) if first else None


def runs_since(toolkit: Dotted) -> Dotted:
    """The CUDA version of the oldest driver for machine code, and for a cudart, of *toolkit*.

    Since CUDA 11 every driver of a major version runs what its toolkits make (CUDA Compatibility, minor versions).
    """
    return Dotted(toolkit.major, 0) if toolkit.major >= _ANY_MINOR else toolkit


class Nvidia(NamedTuple):
    """A machine's NVIDIA driver and GPUs; no driver means that CUDA code cannot run."""

    driver: Dotted | None = None
    capabilities: tuple[Dotted, ...] = ()

    @classmethod
    def here(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """What NVML says, or else the variables of NVIDIA's provider in *environ*."""
        forced: dict[str, Dotted] = {}
        for variable in (FORCED_DRIVER, FORCED_CAPABILITY):
            if text := environ.get(variable):
                with at(variable):
                    forced[variable] = Dotted.parse(text)
        detected = cls() if len(forced) == 2 else cls.detected()  # noqa: PLR2004 - both
        capabilities = (forced[FORCED_CAPABILITY],) if FORCED_CAPABILITY in forced else detected.capabilities
        return cls(forced.get(FORCED_DRIVER, detected.driver), capabilities)

    @classmethod
    def detected(cls) -> Self:
        """What NVML says; nothing if there is no driver, or it does not answer."""
        if (library := _library()) is None or library.nvmlInit_v2():
            return cls()
        try:
            version = _number(library.nvmlSystemGetCudaDriverVersion_v2)
            count = _number(library.nvmlDeviceGetCount_v2) or 0
            capabilities = {*filter(None, (_capability(library, index) for index in range(count)))}
            # 12080 is CUDA 12.8
            cuda = Dotted(version // 1000, version % 1000 // 10) if version else None
            return cls(cuda, tuple(sorted(capabilities, reverse=True)))
        finally:
            library.nvmlShutdown()


def _library() -> ctypes.CDLL | None:
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def _number(question: Callable[..., int]) -> int | None:
    answer = ctypes.c_int()
    return None if question(ctypes.byref(answer)) else answer.value


def _capability(library: ctypes.CDLL, index: int) -> Dotted | None:
    device, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
    if library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device)):
        return None
    if library.nvmlDeviceGetCudaComputeCapability(device, ctypes.byref(major), ctypes.byref(minor)):
        return None
    return Dotted(major.value, minor.value)


def amd_gpus(environ: Mapping[str, str] = os.environ, *, topology: Path = TOPOLOGY) -> tuple[str, ...]:
    """The processors of AMD's GPUs here, each once, or else in the variable of AMD's provider."""
    if forced := environ.get(FORCED_GFX):
        return tuple(dict.fromkeys(name.strip() for name in forced.split(",") if name.strip()))
    processors = []
    for node in sorted(topology.glob("*/properties")):
        try:
            match = _GFX_VERSION.search(node.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            continue
        if match:
            version = int(match["number"])
            # 90402 is gfx942, 90010 is gfx90a
            processors.append(f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}")
    return tuple(dict.fromkeys(processors))


def has_tpu(environ: Mapping[str, str] = os.environ, *, devices: Path = PCI) -> bool:
    """Whether one of Google's TPUs is here, or else in the variable of its provider."""
    if (forced := environ.get(FORCED_TPU)) is not None:
        return forced.lower() in {"1", "true", "yes"}
    for device in devices.glob("*"):
        with suppress(OSError):
            vendor, kind = ((device / name).read_text(encoding="ascii").strip() for name in ("vendor", "device"))
            if vendor == _GOOGLE and kind in _TPUS:
                return True
    return False
