"""What the containers of one vendor look like from outside: where they lie, who points to them, how they are read.

A wrapper, 24 bytes, is the same for NVIDIA and AMD but for its magic:

    off  size  field
    0    4     magic
    4    4     version
    8    8     data      address of the container; the loader fills it
    16   8     extra     NVIDIA, version 2: address of an array that the start-up code fills; else 0
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from vbuild.device.model import Packing, Reading, Vendor
from vbuild.errors import DeviceError
from vbuild.packed import U32, U64, Packed


class Record(Packed):
    """A record of GPU code; `DeviceError` where it is cut short."""

    REFUSAL = DeviceError


@dataclass(frozen=True, slots=True)
class Wrapper(Record):
    """What start-up code hands to the GPU's runtime."""

    magic: U32
    version: U32
    data: U64
    extra: U64


# where in a wrapper the pointer to its container is
WRAPPER_DATA = 8


@dataclass(frozen=True, slots=True)
class Form:
    """A vendor's containers: *extent* finds the end of one that begins at a place, *read* reads one.

    Both take the file and a range of it, and raise `DeviceError` with the offset where something is damaged or not
    known. *foreign* says of wrappers with another magic whose they are.
    """

    vendor: Vendor
    name: str
    sections: tuple[str, ...]
    wrapper_section: str
    wrapper_magic: int
    wrapper_versions: frozenset[int]
    extent: Callable[[memoryview, range], range]
    read: Callable[[memoryview, range], Reading]
    packing: Packing
    foreign: Mapping[int, str] = field(default_factory=dict)
