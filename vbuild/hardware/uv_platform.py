"""A machine in uv's words: for which Python and platform it resolves requirements, wherever it runs."""

import re

from vbuild.errors import HardwareError
from vbuild.hardware.machine import Machine

_PLATFORM = re.compile(r"(?P<kind>many|musl)linux_(?P<major>\d+)_(?P<minor>\d+)_(?P<machine>x86_64|aarch64)$")
# those that uv has words for, manylinux_2_x
_GLIBCS = (17, 28, *range(31, 41))


def python_of(machine: Machine) -> str:
    """The Python of *machine* without the last part of its version: 3.12."""
    return ".".join(machine.python.split(".")[:2])


def uv_platform(machine: Machine) -> str:
    """The platform of *machine*, that of its best tag; `HardwareError` if it is none of Linux."""
    for tag in machine.tags:
        if match := _PLATFORM.search(tag):
            if match["kind"] == "musl":
                return f"{match['machine']}-unknown-linux-musl"
            fitting = [minor for minor in _GLIBCS if minor <= int(match["minor"])]
            return f"{match['machine']}-manylinux_2_{max(fitting)}" if fitting else f"{match['machine']}-manylinux2014"
    raise HardwareError(f"no tag of Linux among {', '.join(machine.tags[:3])}; locks are for machines with Linux")
