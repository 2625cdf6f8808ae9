"""The GPU architectures there are, and the CUDA toolkits that compile for them.

    number   since   until   a       f        GPUs
    75       10.0    -       -       -        Turing
    90       11.8    -       12.0    -        Hopper
    100      12.8    -       12.8    12.9     Blackwell

*since* is the first toolkit that compiles for the architecture, *until* the last one; *a* and *f* are the first for its
architecture-specific and its family-specific form. From 11.7 on they are what ``ptxas --help`` lists, asked of 11.7,
11.8, 12.0, 12.6, 12.8, 12.9 and 13.0 to 13.5; before that, the toolkit of the PTX version that brought the target.
https://docs.nvidia.com/cuda/parallel-thread-execution/#ptx-isa-version-history

Tegra GPUs are in a Jetson or DRIVE; NVIDIA renamed Thor from 10.1 to 11.0 in CUDA 13.
https://docs.nvidia.com/cuda/cuda-for-tegra-appnote/
"""

from collections.abc import Mapping
from typing import NamedTuple

from vbuild.hardware.driver import Dotted


class Architecture(NamedTuple):
    """One architecture: the toolkits that compile for it, and whether it is a Tegra, that is a Jetson or a DRIVE."""

    since: Dotted
    until: Dotted | None = None
    specific: Dotted | None = None
    family: Dotted | None = None
    is_tegra: bool = False

    def first_toolkit(self, suffix: str) -> Dotted | None:
        """The first toolkit that compiles for the form with this *suffix*; None if there is no such form."""
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
