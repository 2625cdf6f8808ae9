"""What the rule of `vbuild.hardware.gpu` keeps of a library, entry by entry, to compare slimmed libraries with."""

from collections import Counter
from collections.abc import Iterator
from hashlib import sha256

from msgspec.structs import replace

from vbuild.elf.image import ElfImage
from vbuild.gpu_code.fatbin import FATBINS
from vbuild.gpu_code.model import Container, GpuEntry, Vendor
from vbuild.gpu_code.survey import device_code
from vbuild.hardware.architectures import Arch
from vbuild.hardware.gpu import GpuList, Ptx, kept_offers
from vbuild.slimming.library import unmeasured_containers


def fatbins(data: bytes) -> Iterator[Container]:
    """The fatbins of the library *data* in the order of the file; pinned ones that may shrink are as if they moved."""
    image = ElfImage.parse(data)
    code = device_code(image)
    shrinking = unmeasured_containers(image, code)
    for container in code.containers:
        if container.vendor is Vendor.NVIDIA:
            yield replace(container, why_pinned=None) if container.span.start in shrinking else container


def kept_entries(container: Container, gpus: str) -> tuple[GpuEntry, ...]:
    """The entries of *container* that stay for *gpus*: all where it is pinned, the smallest where none is for them."""
    if not container.movable:
        return container.entries
    offers = [entry.offer for entry in container.entries]
    places = {place for request in GpuList.parse(gpus) for place in kept_offers(offers, request, ptx=Ptx.AUTO)}
    smallest = [container.smallest] if container.smallest else []
    return tuple(entry for place, entry in enumerate(container.entries) if place in places) or tuple(smallest)


def kept_digests(data: bytes, gpus: str) -> dict[int, tuple[str, ...]]:
    """The SHA-256 of every entry kept, by the address of the pointer that the loader fills in its wrapper."""
    return {
        pointer.place: tuple(entry_digest(data, entry) for entry in kept_entries(container, gpus))
        for container in fatbins(data)
        for pointer in container.wrappers
    }


def entry_digest(data: bytes, entry: GpuEntry) -> str:
    return sha256(memoryview(data)[entry.span.start : entry.span.stop]).hexdigest()


def kept_names(data: bytes, gpus: str) -> Counter[str]:
    """What cuobjdump should list where only what is kept for *gpus* is left, as ``sm_90.cubin``."""
    registered = (container for container in fatbins(data) if container.section in FATBINS.sections)
    return Counter(_named(entry) for container in registered for entry in kept_entries(container, gpus))


def _named(entry: GpuEntry) -> str:
    # it tells an f for PTX only
    assert isinstance(entry.arch, Arch)
    arch = str(entry.arch).rstrip("f") if entry.kind == "cubin" else str(entry.arch)
    return f"{arch}.{entry.kind}"
