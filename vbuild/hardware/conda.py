"""A machine as conda, mamba and pixi describe it; and which CPUs reach which x86-64 level.

    __archspec=1=zen4      the CPU by archspec's name        __cuda=12.8=0        the newest CUDA the driver runs
    __glibc=2.36=0         the C library                     __cuda_arch=9.0=0    the lowest capability of all GPUs

These virtual packages are texts in the JSON of ``pixi info`` and ``mamba info``, lists in that of ``conda info``.
https://docs.conda.io/projects/conda/en/stable/user-guide/tasks/manage-virtual.html, and CEP 46 for __cuda_arch
"""

import platform
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import archspec.cpu

from vbuild.errors import HardwareError, at
from vbuild.files.reading import parsed_json
from vbuild.hardware.cpu import X86_64_LEVELS, Cpu
from vbuild.hardware.driver import Dotted, Nvidia
from vbuild.hardware.machine import Machine, linux_tags

MACHINES: Mapping[str, str] = {"linux-64": "x86_64", "linux-aarch64": "aarch64"}
_BASELINES = {"x86_64": "v1", "aarch64": "8a"}
# in pixi's JSON, in conda's and in mamba's
_KEYS = ("virtual_packages", "virtual_pkgs", "virtual packages")
_PYTHON = re.compile(r"\d\.\d{1,2}(\.\d{1,3})?", re.ASCII)
_PARTS = 3
_GLIBC, _NEWEST_GLIBC = 2, 99


def machine_of(text: str) -> Machine:
    """The machine that *text* describes, the JSON of ``conda info --json``, mamba's or pixi's.

    Its Python is the one in the JSON, conda's own, else the running one. `HardwareError` for other texts, and for
    machines without a known Linux.
    """
    try:
        info = parsed_json(text)
    except ValueError as error:
        raise HardwareError("not JSON; expected what conda info --json or pixi info --json prints") from error
    if not isinstance(info, dict) or not any(key in info for key in _KEYS):
        raise HardwareError("no virtual packages; expected what conda info --json or pixi info --json prints")
    subdir = info.get("platform")
    if not isinstance(subdir, str) or subdir not in MACHINES:
        raise HardwareError(f"platform is {subdir!r}; expected {' or '.join(MACHINES)}")
    machine, virtual = MACHINES[subdir], dict(_virtual_packages(info))
    version = _python(info.get("python_version"))
    glibc, capability = _dotted(virtual, "__glibc"), _dotted(virtual, "__cuda_arch")
    # without a glibc 2 there are only tags for linux_<machine>
    minor = min(glibc.minor, _NEWEST_GLIBC) if glibc and glibc.major == _GLIBC else 0
    return Machine(
        python=version,
        tags=linux_tags(version, machine, minor),
        cpu=_cpu(virtual.get("__archspec", ("", ""))[1], machine),
        nvidia=Nvidia(_dotted(virtual, "__cuda"), (capability,) if capability else ()),
    )


@lru_cache(maxsize=1)
def x86_64_cpus() -> tuple[tuple[int, str], ...]:
    """Archspec's x86-64 CPUs, each with the highest level that it reaches: ``(4, "zen4")``; sorted."""
    cpus = ((_level(name), name) for name, target in archspec.cpu.TARGETS.items() if target.family.name == "x86_64")
    return tuple(sorted(cpus))


def _level(name: str) -> int:
    target = archspec.cpu.TARGETS[name]
    reached = {name, *(ancestor.name for ancestor in target.ancestors)}
    return max(rank for rank, level in enumerate(X86_64_LEVELS, 1) if rank == 1 or f"x86_64_{level}" in reached)


def _virtual_packages(info: dict[str, Any]) -> Iterator[tuple[str, tuple[str, str]]]:
    listed = next(info[key] for key in _KEYS if key in info)
    for item in listed if isinstance(listed, list) else [listed]:
        parts = item.split("=") if isinstance(item, str) else item
        if not isinstance(parts, list) or len(parts) != _PARTS or not all(isinstance(part, str) for part in parts):
            raise HardwareError(f"virtual package {item!r}; expected name, version and build, as in __cuda=12.8=0")
        yield parts[0], (parts[1], parts[2])


def _dotted(virtual: Mapping[str, tuple[str, str]], name: str) -> Dotted | None:
    if name not in virtual:
        return None
    major, _, rest = virtual[name][0].partition(".")
    with at(name):
        return Dotted.parse(f"{major}.{rest.partition('.')[0] or 0}")


def _cpu(name: str, machine: str) -> Cpu:
    """The CPU that archspec calls *name*; the baseline of *machine* for an unknown name."""
    target = archspec.cpu.TARGETS.get(name)
    if target is None or target.family.name != machine:
        return Cpu.known(machine, _BASELINES[machine])
    if machine == "x86_64":
        return Cpu.known(machine, f"v{_level(name)}")
    generic = target.generic.name
    return Cpu.known(machine, _BASELINES[machine]) if generic == machine else Cpu.parse(generic)


def _python(version: object) -> str:
    """The version in ``3.11.5`` or conda's ``3.11.5.final.0``; without one the running interpreter's."""
    if version is None:
        return platform.python_version()
    if isinstance(version, str) and (match := _PYTHON.match(version)):
        return match[0]
    raise HardwareError(f"python_version is {version!r}; expected one as in 3.12.4")
