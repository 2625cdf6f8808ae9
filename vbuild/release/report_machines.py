"""Machines as people have them, and which wheel of a release each of them gets.

    CPU levels without a GPU, then GPUs in the hosts that they usually stand in   x   the Pythons of the release
        -> `vbuild.variants.select` out of the finished folder -> MachineChoice

Only machines that the release could be for are asked: Arm if it has wheels for Arm, GPUs if its variants name any.
Drivers run the newest CUDA toolkit of the release, or the GPU's first if no variant asks for one; one GPU is asked with
older drivers as well.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace
from packaging.tags import compatible_tags, cpython_tags, generic_tags
from packaging.utils import canonicalize_name

from vbuild.errors import HardwareError, VariantError, at
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.driver import Dotted, Nvidia
from vbuild.hardware.gpu import Arch
from vbuild.hardware.machine import Machine
from vbuild.release.report import MachineChoice
from vbuild.variants.document import Document
from vbuild.variants.select import select
from vbuild.wheel.name import WheelName

_INTERPRETER = re.compile(r"(?P<implementation>[a-z]+)(?P<major>\d)(?P<minor>\d+)", re.ASCII)
_NVIDIA = "nvidia"
_LOWER_BOUND = "cuda_version_lower_bound"
_GLIBC = 39  # that of Ubuntu 24.04, 2.39
_OLDEST_GLIBC = 5
_MUSL = 2
_OLD_NAMES = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
_LAST_MINOR = 8  # of CUDA 11, the driver before 12; it stands for any driver of the major version before
# for wheels without an interpreter of their own
_PYTHON = ("cp312", "cp312")


class Standard(Struct, frozen=True):
    """A machine that many people have: its name, its CPU level, and its GPU if it has one."""

    name: str
    cpu: Cpu
    gpu: Arch | None = None


_V1, _V2, _V3, _V4 = (Cpu.known("x86_64", level) for level in ("v1", "v2", "v3", "v4"))
_ARM, _ARM_8_2, _ARM_8_4, _ARM_9 = (Cpu.known("aarch64", version) for version in ("8a", "8.2a", "8.4a", "9.0a"))

STANDARD = (
    Standard("any x86-64", _V1),
    Standard("Nehalem, Bulldozer", _V2),
    Standard("Haswell, Zen", _V3),
    Standard("Skylake-SP, Zen 4", _V4),
    Standard("NVIDIA T4", _V4, Arch(75)),
    Standard("NVIDIA A100", _V3, Arch(80)),
    Standard("NVIDIA A10, RTX 3090", _V3, Arch(86)),
    Standard("NVIDIA L4, RTX 4090", _V3, Arch(89)),
    Standard("NVIDIA H100", _V4, Arch(90)),
    Standard("NVIDIA B200", _V4, Arch(100)),
    Standard("NVIDIA RTX 5090", _V3, Arch(120)),
    Standard("any 64-bit Arm", _ARM),
    Standard("Graviton2, Ampere Altra", _ARM_8_2),
    Standard("Graviton3", _ARM_8_4),
    Standard("Grace, Graviton4", _ARM_9),
    Standard("NVIDIA GH200", _ARM_9, Arch(90)),
)
# the one that is asked with older drivers too: no driver of CUDA 11 or later is too old for it
_OLDER_DRIVERS = Standard("NVIDIA A100", _V3, Arch(80))


def choices(project: str, folder: Path, wheels: Iterable[Path]) -> tuple[MachineChoice, ...]:
    """What the standard machines get of the *wheels* of *project* in *folder*, which has their variants.json too.

    By machine, for each Python of the release in turn; `VariantError` if a variants.json is not as PEP 825 says.
    """
    names = [WheelName.parse(path.name) for path in wheels]
    names = [name for name in names if name.project == canonicalize_name(project)]
    asked = [*_asked(names, _wanted(folder, names))]
    pythons = _pythons(names)
    platforms = " ".join(name.platform for name in names)
    is_musl = "musllinux" in platforms and "manylinux" not in platforms
    return tuple(
        _choice(project, folder, machine=machine, driver=driver, python=python, musl=is_musl)
        for machine, driver in asked
        for python in pythons
    )


class _Wanted(Struct, frozen=True):
    """What variants ask of NVIDIA's GPUs: whether anything, and the CUDA versions of drivers, the newest first."""

    is_any: bool
    bounds: tuple[Dotted, ...]


def _asked(names: list[WheelName], wanted: _Wanted) -> Iterator[tuple[Standard, Dotted | None]]:
    """The standard machines for which there could be a wheel, and their drivers, given what variants have *wanted*."""
    bounds = wanted.bounds
    platforms = {tag for name in names for tag in name.platform.split(".")}
    machines = {
        machine
        for machine in ("x86_64", "aarch64")
        if any(tag == "any" or (tag.endswith(f"_{machine}") and "linux" in tag) for tag in platforms)
    }
    for standard in STANDARD:
        if standard.cpu.machine not in machines:
            continue
        if standard.gpu is None:
            yield standard, None
        elif wanted.is_any and (toolkits := standard.gpu.toolkits):
            yield standard, max((toolkits[0], *bounds[:1]))
    if bounds and _OLDER_DRIVERS.cpu.machine in machines:
        last = bounds[-1]
        too_old = Dotted(last.major, last.minor - 1) if last.minor else Dotted(last.major - 1, _LAST_MINOR)
        for bound in (*bounds[1:], too_old):
            yield _OLDER_DRIVERS, bound


def _wanted(folder: Path, names: Iterable[WheelName]) -> _Wanted:
    """What the variants of the releases of *names* ask of GPUs."""
    found = set()
    is_any = False
    for release in {name.release for name in names}:
        path = folder / f"{release}-variants.json"
        if path.is_file():
            with at(path.name):
                variants = Document.parse(path.read_bytes()).variants
            for prop in (prop for variant in variants for prop in variant.properties if prop.namespace == _NVIDIA):
                is_any = True
                if prop.feature == _LOWER_BOUND:
                    with suppress(HardwareError):  # a provider of the namespace may know other values
                        found.add(Dotted.parse(prop.value))
    return _Wanted(is_any, tuple(sorted(found, reverse=True)))


def _pythons(names: Iterable[WheelName]) -> list[tuple[str, str]]:
    """The interpreter and ABI tags of the Pythons that wheels are for, the oldest first."""
    found: set[tuple[str, str]] = set()
    for name in names:
        for tag in name.tags:
            if match := _INTERPRETER.fullmatch(tag.interpreter):
                is_own = tag.abi.startswith((tag.interpreter, "pypy", "graalpy"))
                if is_own or match["implementation"] == "cp":
                    found.add((tag.interpreter, tag.abi if is_own else tag.interpreter))
    return sorted(found, key=lambda python: (_version(python[0]), python)) or [_PYTHON]


def _version(interpreter: str) -> tuple[int, int]:
    """The version in ``cp311``, as numbers."""
    match = _INTERPRETER.fullmatch(interpreter)
    return (int(match["major"]), int(match["minor"])) if match else (3, 0)


def _choice(
    project: str, folder: Path, *, machine: Standard, driver: Dotted | None, python: tuple[str, str], musl: bool
) -> MachineChoice:
    interpreter, abi = python
    version = ".".join(map(str, _version(interpreter)))
    # as people call it: 3.11, 3.13t, pp310
    spoken = f"{version}{'t' if abi.endswith('t') else ''}" if interpreter.startswith("cp") else interpreter
    platforms = [*_platforms(machine.cpu.machine, musl=musl)]
    capability = Dotted(*divmod(machine.gpu.number, 10)) if machine.gpu else None
    asked = Machine(
        f"{version}.99",  # Requires-Python may name a release with bug fixes: the machine has it
        tuple(_tags(*python, platforms)),
        machine.cpu,
        Nvidia(driver, (capability,)) if capability else Nvidia(),
    )
    choice = MachineChoice(
        machine=machine.name,
        python=spoken,
        cpu=str(machine.cpu),
        gpu=str(machine.gpu) if machine.gpu else None,
        driver=str(driver) if driver else None,
    )
    try:
        found = select(project, [folder], machine=asked)
    except VariantError as error:
        # without the reasons for each wheel, which are behind it
        return replace(choice, why=str(error).removeprefix(f"{project}: ").partition(": ")[0])
    why = next(candidate.why for candidate in found.ranking if candidate.path == found.wheel)
    size = found.wheel.stat().st_size
    return replace(choice, wheel=found.wheel.name, label=found.name.variant, size=size, why=why)


def _tags(interpreter: str, abi: str, platforms: list[str]) -> Iterator[str]:
    """The compatibility tags of a Python, best first."""
    version = _version(interpreter)
    is_cpython = interpreter.startswith("cp")
    own = cpython_tags(version, [abi], platforms) if is_cpython else generic_tags(interpreter, [abi, "none"], platforms)
    yield from map(str, own)
    yield from map(str, compatible_tags(version, interpreter, platforms))


def _platforms(machine: str, *, musl: bool) -> Iterator[str]:
    """The platforms of a Linux, best first."""
    if musl:
        yield from (f"musllinux_1_{minor}_{machine}" for minor in range(_MUSL, -1, -1))
    else:
        for minor in range(_GLIBC, _OLDEST_GLIBC - 1, -1):
            yield f"manylinux_2_{minor}_{machine}"
            if minor in _OLD_NAMES:
                yield f"{_OLD_NAMES[minor]}_{machine}"
    yield f"linux_{machine}"
