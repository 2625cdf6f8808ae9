"""The machines of a fleet, as files describe them or by their GPUs alone."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from vbuild.hardware.cpu import Cpu
from vbuild.hardware.driver import Dotted, Nvidia
from vbuild.hardware.gpu import GpuList
from vbuild.hardware.machine import Machine
from vbuild.mirroring.model import FleetMachine
from vbuild.variants.select import machine_at


class Common(Struct, frozen=True):
    """What machines that are named by their GPUs have besides: the CPU, NVIDIA's *driver*, the *glibc*, and *pythons*.

    They are texts as `Machine.described` reads them. A driver that is not named is not known.
    """

    cpu: Cpu
    driver: str | None = None
    glibc: str | None = None
    pythons: tuple[str, ...] = ()


def fleet_of(files: Iterable[Path], gpus: Iterable[str], common: Common) -> tuple[FleetMachine, ...]:
    """The machines that *files* describe, called as these are, and one for each list of *gpus* on each Python.

    An empty list is a machine without GPUs, called as its CPU. `HardwareError` for a file, a GPU or a version that is
    not known.
    """
    described = (FleetMachine(_name(path.stem), machine_at(path)) for path in files)
    return (*described, *(machine for text in gpus for machine in _with(text, common)))


def _with(gpus: str, common: Common) -> Iterator[FleetMachine]:
    asked = GpuList.asked(gpus) if gpus else GpuList()
    capabilities = [Dotted(*divmod(request.device.number, 10)) for request in asked.requests]
    for python in common.pythons or (None,):
        machine = Machine.described(
            common.cpu,
            capabilities,
            driver=common.driver,
            glibc=common.glibc,
            python=python,
            processors=map(str, asked.targets),
        )
        if not common.driver:  # one that runs every CUDA is assumed there
            machine = replace(machine, nvidia=Nvidia(None, machine.nvidia.capabilities))
        yield FleetMachine(_name(gpus or str(common.cpu), *_told(python, common.pythons)), machine)


def _told(python: str | None, pythons: Sequence[str]) -> tuple[str, ...]:
    return (f"py{python.replace('.', '')}",) if python and len(pythons) > 1 else ()


def _name(*parts: str) -> str:
    """What a machine of *parts* is called in the names of files: no dots, which locks have their own (PEP 751)."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", "-".join(parts)).strip("-") or "machine"
