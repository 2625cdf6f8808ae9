"""Which variant this machine gets: x86-64 levels by /proc/cpuinfo, NVIDIA by the driver or uv's NV_ variables."""

import ctypes
import os
import re
import sys
from pathlib import Path
from typing import Any

Numbers = tuple[int, int]

# what each level adds to the one before (psABI, 3.1.1)
_LEVELS = {
    "v1": "lm",
    "v2": "cx16 lahf_lm pni popcnt sse4_1 sse4_2 ssse3",
    "v3": "abm avx avx2 bmi1 bmi2 f16c fma movbe xsave",
    "v4": "avx512bw avx512cd avx512dq avx512f avx512vl",
}
_CPUINFO = Path("/proc/cpuinfo")
_FORCED = "CUDA_DRIVER_VERSION", "SM_ARCH"
_CAPABILITY = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR


def label(order: list[list[Any]], wheels: list[dict[str, Any]]) -> str:
    """The first label in *order* of one of *wheels* that this machine supports; SystemExit where that is not known."""
    there = [wheel.get("label") for wheel in wheels]
    for name, properties in order:
        if name not in there:
            continue
        answers = [_supports(*text.split(" :: ")) for text in properties]
        if False in answers:
            continue
        if None in answers:
            raise SystemExit(f"no way to tell if this machine has {properties}: set VBUILD_SELECT to {name} or plain")
        sys.stderr.write(f"chose {name} for this machine; on others that share its cache, install without cache\n")
        return str(name)
    return "plain"


def _supports(namespace: str, feature: str, value: str) -> "bool | None":
    """Whether this machine has the property; None where there is no way to tell."""
    if (namespace, feature) == ("x86_64", "level") and value in _LEVELS:
        if not _CPUINFO.is_file():
            return None
        flags = re.findall("^flags.*", _CPUINFO.read_text("utf-8"), re.MULTILINE)
        needed = " ".join(_LEVELS[level] for level in _LEVELS if level <= value).split()
        return bool(flags) and set(needed) <= set(flags[0].split())
    if namespace != "nvidia":
        return None
    driver, (major, minor) = _nvidia()
    if feature == "sm_arch":
        return value in [f"{major}0_virtual", *(f"{major}{older}_real" for older in range(minor + 1))]
    return any(driver) and (driver >= _numbers(value)) == (feature == "cuda_version_lower_bound")


def _nvidia() -> tuple[Numbers, Numbers]:
    """The CUDA version that the driver runs, and the best GPU's compute capability, as forced or as found."""
    driver, gpu = _found()
    forced, forced_gpu = (os.environ.get(f"NV_VARIANT_PROVIDER_FORCE_{name}") for name in _FORCED)
    return _numbers(forced) if forced else driver, _numbers(forced_gpu) if forced_gpu else gpu


def _found() -> tuple[Numbers, Numbers]:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return (0, 0), (0, 0)

    def ask(question: str, *more: int) -> int:
        answer = ctypes.c_int()
        getattr(cuda, question)(ctypes.byref(answer), *more)
        return answer.value

    cuda.cuInit(0)
    gpus = [[ask("cuDeviceGetAttribute", part, gpu) for part in _CAPABILITY] for gpu in range(ask("cuDeviceGetCount"))]
    major, minor = max(gpus, default=(0, 0))
    version = ask("cuDriverGetVersion")  # 12080 is CUDA 12.8
    return (version // 1000, version % 1000 // 10), (major, minor)


def _numbers(text: str) -> Numbers:
    try:
        major, minor = map(int, f"{text}.0".split(".")[:2])
    except ValueError:
        raise SystemExit(f"no version {text!r}, expected two numbers as in 12.8") from None
    return major, minor
