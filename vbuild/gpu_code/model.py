"""GPU code in a library as values, the same for every vendor: containers of entries, and wrappers that point to them.

    wrapper   24 bytes of data that the start-up code registers with the GPU's runtime: where a container is
    container the code of one translation unit, once for each kind of GPU it was built for
    entry     one of these: a cubin, PTX, an AMD code object ...

An entry is a range of the file. A container with some of its entries is given as parts of a
`vbuild.files.edited.Rope`, so nothing is copied before it is written.

What the containers of one vendor look like from outside: where they lie, who points to them, how they are read.

A wrapper, 24 bytes, is the same for NVIDIA and AMD but for its magic:

    off  size  field
    0    4     magic
    4    4     version
    8    8     data      address of the container; the loader fills it
    16   8     extra     NVIDIA, version 2: address of an array that the start-up code fills; else 0
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import Self

import msgspec
from msgspec import Struct

from vbuild.binary.image import Pointer
from vbuild.errors import BinaryError
from vbuild.files.edited import Part
from vbuild.files.records import U32, U64, Packed
from vbuild.hardware.architectures import Arch, Device
from vbuild.hardware.driver import Dotted
from vbuild.hardware.gpu import GpuCodeKind, GpuOffer


class Vendor(StrEnum):
    """Whose GPUs the code is for."""

    NVIDIA = "nvidia"
    AMD = "amd"

    @classmethod
    def of(cls, device: Device) -> Self:
        """Whose *device* is."""
        return cls.NVIDIA if isinstance(device, Arch) else cls.AMD


class Compression(StrEnum):
    """How the bytes of an entry are stored."""

    RAW = "raw"
    LZ4 = "lz4"
    ZSTD = "zstd"
    ZLIB = "zlib"
    UNKNOWN = "unknown"


class GpuEntry(Struct, frozen=True):
    """Code for one kind of GPU: file offsets of the whole entry and of its stored bytes, sizes in bytes.

    *kind* is the vendor's word for it ("cubin", "ptx", "lto-ir", "code-object"), *ident* a name the compiler gave
    it, *options* what the code is to be compiled with further, *version* that of PTX. In a container that is
    compressed as a whole an entry has no bytes of its own in the file; *share* is then what its compressed code may
    take up there, without what it has in common with others.
    """

    vendor: Vendor
    kind: str
    code: GpuCodeKind
    arch: Device
    span: range
    payload: range
    compression: Compression = Compression.RAW
    uncompressed_size: int = 0
    flags: int = 0
    ident: str = ""
    options: str = ""
    share: int = 0
    version: Dotted | None = None

    @property
    def size(self) -> int:
        """What the entry takes up in the file, its header included; an estimate if it has a *share* only."""
        return len(self.span) or self.share

    @property
    def offer(self) -> GpuOffer:
        """What it offers the GPU's driver."""
        return GpuOffer(self.code, self.arch)


Writing = Callable[[GpuEntry], Part]
Packing = Callable[[Sequence[GpuEntry], Writing], tuple[Part, ...]]


def verbatim(entry: GpuEntry) -> Part:
    """*entry* as it is in the file."""
    return entry.span


class Reading(Struct, frozen=True):
    """What the bytes of a container say, wherever it lies: its entries, and what in them forbids to make it smaller.

    *packing* is how this one is written with fewer entries, if it is not as all of its form are.
    """

    entries: tuple[GpuEntry, ...]
    why_pinned: str | None = None
    packing: Packing | None = None


class Container(Struct, frozen=True):
    """Entries that the GPU's runtime chooses from, at *span* of the file, loaded at *address*, and who points to them.

    It may become smaller, and move within its section, unless *why_pinned* says what forbids it. *in_place* says that a
    pinned one may become smaller where it is: whoever points to it points to its start, and hands it to the driver.
    """

    vendor: Vendor
    section: str
    span: range
    address: int | None
    entries: tuple[GpuEntry, ...]
    wrappers: tuple[Pointer, ...]
    why_pinned: str | None
    packing: Packing
    in_place: bool = False

    @property
    def movable(self) -> bool:
        return self.why_pinned is None

    @property
    def smallest(self) -> GpuEntry | None:
        """The entry that takes the fewest bytes, the first of several: what is kept if nothing has to be."""
        return min(self.entries, key=lambda entry: entry.size, default=None)

    def keeping(self, kept: Collection[GpuEntry], *, written: Writing = verbatim) -> tuple[Part, ...]:
        """The parts of a container with only the *kept* entries, in their order, each as *written* gives it.

        Without entries it is an empty container; keeping all of them as they are gives the container's own bytes.
        `BinaryError` if anything else is asked of a pinned one.
        """
        chosen = tuple(entry for entry in self.entries if entry in kept)
        if written is verbatim and len(chosen) == len(self.entries):
            return (self.span,)
        if self.why_pinned and not self.in_place:
            raise BinaryError(f"{self.section} at {self.span.start:#x} cannot be changed: {self.why_pinned}")
        return self.packing(chosen, written)


def offered(containers: Sequence[Container]) -> tuple[Container, ...]:
    """Those of *containers* that wrappers hand to the GPU's runtime; all of them, where none does.

    Where it is handed some, the others are read by the library's own code.
    """
    return tuple(container for container in containers if container.wrappers) or tuple(containers)


class Blob(Struct, frozen=True):
    """GPU code at *span* of the file that no container of a known form holds; it stays as it is."""

    section: str
    span: range
    what: str
    is_damaged: bool = False


class DeviceCode(Struct, frozen=True):
    """The GPU code of a library in the order of the file, and in *notes* what was not understood and is left alone."""

    containers: tuple[Container, ...] = ()
    blobs: tuple[Blob, ...] = ()
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether there is any GPU code."""
        return bool(self.containers or self.blobs)

    @property
    def pinned(self) -> tuple[Container | Blob, ...]:
        """What stays whole and where it is, whatever GPUs are asked for."""
        return (*(container for container in self.containers if not container.movable), *self.blobs)


class GpuRecord(Packed, frozen=True):
    """A record of GPU code; `BinaryError` if it is cut short."""

    REFUSAL = BinaryError


class ContainerWrapper(GpuRecord, frozen=True):
    """What start-up code hands to the GPU's runtime."""

    magic: U32
    version: U32
    data: U64
    extra: U64


# where in a wrapper the pointer to its container is
WRAPPER_DATA = 8


class ContainerForm(Struct, frozen=True):
    """A vendor's containers: *extent* finds the end of one that begins at a place, *read* reads one.

    Both take the file and a range of it, and raise `BinaryError` with the offset where something is damaged or not
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
    foreign: Mapping[int, str] = msgspec.field(default_factory=dict)
