"""GPU code in a library as values, the same for every vendor: containers of entries, and wrappers that point to them.

    wrapper   what the start-up code registers with the GPU's runtime: where a container is
    container the code of one translation unit, once for each kind of GPU it was built for
    entry     one of these: a cubin, PTX, an AMD code object ...

A wrapper:

    off  size  field
    0    4     magic     differs between NVIDIA and AMD
    4    4     version
    8    8     data      address of the container; the loader fills it
    16   8     extra     NVIDIA, version 2: address of an array that the start-up code fills; else 0
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import Self

import msgspec
from msgspec import Struct

from vbuild.binary.code import Pointer
from vbuild.errors import BinaryError
from vbuild.files.edited import Part
from vbuild.files.records import U32, U64, Packed
from vbuild.hardware.architectures import Arch, Device
from vbuild.hardware.driver import ANY_DRIVER, ZSTD_SINCE, Dotted, compiles_since, runs_since
from vbuild.hardware.gpu import GpuCodeKind, GpuOffer


class Vendor(StrEnum):
    NVIDIA = "nvidia"
    AMD = "amd"

    @classmethod
    def of(cls, device: Device) -> Self:
        return cls.NVIDIA if isinstance(device, Arch) else cls.AMD


class Compression(StrEnum):
    RAW = "raw"
    LZ4 = "lz4"
    ZSTD = "zstd"
    ZLIB = "zlib"
    UNKNOWN = "unknown"


class GpuEntry(Struct, frozen=True):
    """Code for one kind of GPU: file offsets of the whole entry and of its stored bytes.

    *kind* is the vendor's word ("cubin", "ptx", "lto-ir", "code-object"), *options* are ptxas's; *version* is that of
    PTX, and of the toolkit that made a cubin, or None if unknown. In a container that is compressed as a whole, *share*
    estimates its own bytes.
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
        return len(self.span) or self.share

    @property
    def offer(self) -> GpuOffer:
        return GpuOffer(self.code, self.arch)

    @property
    def driver(self) -> Dotted | None:
        """The CUDA version of the oldest driver that takes it, whatever the GPU; None if that cannot be told."""
        if self.vendor is not Vendor.NVIDIA or self.code is GpuCodeKind.OTHER:
            return ANY_DRIVER
        since = oldest_driver(self.code, self.version)
        return max(since, ZSTD_SINCE) if since and self.compression is Compression.ZSTD else since


def oldest_driver(code: GpuCodeKind, version: Dotted | None) -> Dotted | None:
    """That for PTX of this *version*, or machine code of this toolkit."""
    if version is None:
        return None
    return compiles_since(version) if code is GpuCodeKind.PTX else runs_since(version)


Writing = Callable[[GpuEntry], Part]
Packing = Callable[[Sequence[GpuEntry], Writing], tuple[Part, ...]]


def verbatim(entry: GpuEntry) -> Part:
    return entry.span


class Reading(Struct, frozen=True):
    """The entries of a container, and why it cannot be made smaller; *packing* replaces that of its form."""

    entries: tuple[GpuEntry, ...]
    why_pinned: str | None = None
    packing: Packing | None = None


class Container(Struct, frozen=True):
    """Entries that the GPU's runtime chooses from, at *span* of the file, loaded at *address*, with their wrappers.

    It may become smaller and move within its section, unless *why_pinned*. A pinned one may become smaller *in_place*
    if only its start is pointed to, and handed to the driver. The entry of a *filler* is there because a fatbin must
    have one: slimming took out the code for the GPUs that it was made for.
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
    is_filler: bool = False

    @property
    def movable(self) -> bool:
        return self.why_pinned is None

    @property
    def smallest(self) -> GpuEntry | None:
        return min(self.entries, key=lambda entry: entry.size, default=None)

    def keeping(self, kept: Collection[GpuEntry], *, written: Writing = verbatim) -> tuple[Part, ...]:
        """Only the *kept* entries, each as *written* gives it; `BinaryError` if a pinned one would change."""
        chosen = tuple(entry for entry in self.entries if entry in kept)
        if written is verbatim and len(chosen) == len(self.entries):
            return (self.span,)
        if self.why_pinned and not self.in_place:
            raise BinaryError(f"{self.section} at {self.span.start:#x} cannot be changed: {self.why_pinned}")
        return self.packing(chosen, written)


def offered(containers: Sequence[Container]) -> tuple[Container, ...]:
    """The *containers* that wrappers hand to the GPU's runtime; all, if no wrapper does."""
    return tuple(container for container in containers if container.wrappers) or tuple(containers)


class Blob(Struct, frozen=True):
    """GPU code outside of known containers, which stays as it is."""

    section: str
    span: range
    what: str


class DeviceCode(Struct, frozen=True):
    """In the order of the file; *notes* say what was not understood and stays.

    *cudart* is the CUDA version of the oldest driver for the CUDA that the library links, or None if unknown.
    """

    containers: tuple[Container, ...] = ()
    blobs: tuple[Blob, ...] = ()
    notes: tuple[str, ...] = ()
    cudart: Dotted | None = ANY_DRIVER

    def __bool__(self) -> bool:
        return bool(self.containers or self.blobs)

    @property
    def pinned(self) -> tuple[Container | Blob, ...]:
        return (*(container for container in self.containers if not container.movable), *self.blobs)


class ContainerWrapper(Packed, frozen=True):
    magic: U32
    version: U32
    data: U64
    extra: U64


WRAPPER_DATA = 8  # the offset of *data* in a wrapper


class ContainerForm(Struct, frozen=True):
    """A vendor's containers: *extent* finds the end of one, *read* reads one; `BinaryError` for damage.

    *foreign* explains other magics.
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
