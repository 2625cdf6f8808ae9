"""One library of a wheel: what its GPU code is for, and what is left of it for some GPUs.

    mapped file -> Image, DeviceCode -> the entries each GPU needs (vbuild.hardware.gpu) -> Replacements -> Rope

What cannot be read or cut safely stays as it is, byte for byte, and the outcome says why.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from vbuild.elf.image import ElfImage
from vbuild.elf.outline import Outline
from vbuild.elf.surgery.cutting import Replacement, operated
from vbuild.elf.surgery.slots import PointerSlot
from vbuild.errors import BinaryError, DeviceError, SlimError, SurgeryError
from vbuild.files.edited import EditedFile
from vbuild.gpu_code.compression import recompressed
from vbuild.gpu_code.model import Compression, Container, DeviceCode, GpuEntry, Vendor, offered, verbatim
from vbuild.gpu_code.survey import device_code
from vbuild.hardware.gpu import Arch, GpuCodeKind, GpuList, GpuOffer, GpuServed, Ptx, Service, needed, service
from vbuild.slimming.request import Cuts, Empty, Share
from vbuild.slimming.results import LibraryCut


class EntryDecision(Struct, frozen=True):
    """What is left of one container: the entries kept, and whether any of them serves a GPU asked for."""

    container: Container
    kept: tuple[GpuEntry, ...]
    serves: bool = True

    @classmethod
    def untouched(cls, container: Container) -> Self:
        """All of *container* as it is."""
        return cls(container, container.entries)

    @classmethod
    def of(cls, container: Container, gpus: GpuList, cuts: Cuts) -> Self:
        """The fate of *container* among *gpus*: what one of them needs stays, and nothing else unless it is pinned."""
        offers = [entry.offer for entry in container.entries]
        places = {place for request in gpus for place in needed(offers, request, ptx=cuts.ptx)}
        kept = tuple(entry for place, entry in enumerate(container.entries) if place in places)
        serves = any(entry.code is not GpuCodeKind.OTHER for entry in kept)
        if not container.movable:
            return cls(container, container.entries, serves)
        return cls(container, kept or _least(container, cuts), serves)

    @property
    def whole(self) -> Self:
        """The fate of a container that has to keep everything after all."""
        return replace(self, kept=self.container.entries)

    @property
    def is_cut(self) -> bool:
        return len(self.kept) < len(self.container.entries)

    @property
    def is_for_gpus(self) -> bool:
        """Whether a driver had something to choose from before."""
        return any(entry.code is not GpuCodeKind.OTHER for entry in self.container.entries)

    def service(self, device: Arch) -> Service:
        """How what is kept serves *device*."""
        return service([entry.offer for entry in self.kept], device) if self.serves else Service.NONE

    def compiles_for(self, device: Arch) -> bool:
        """Whether *device* has PTX here to compile, or needs nothing of what is here."""
        ptx = [entry.offer for entry in self.kept if entry.code is GpuCodeKind.PTX]
        return not self.serves or service(ptx, device) is Service.JIT

    def replacement(self, data: memoryview, *, zstd: bool) -> Replacement:
        """The container's new bytes, with the pointers that follow it."""
        written = partial(recompressed, data) if zstd else verbatim
        parts = self.container.keeping(frozenset(self.kept), written=written)
        return Replacement(self.container.span, parts, self.container.wrappers)


class CutLibrary(Struct, frozen=True):
    """A library as it lies in the wheel, mapped into memory; *trouble* says why it cannot be read, if it cannot."""

    member: str
    data: memoryview
    image: ElfImage | None
    code: DeviceCode
    needed: tuple[str, ...] = ()
    trouble: str | None = None

    @classmethod
    def of(cls, member: str, data: memoryview) -> Self:
        """The ELF file *data*; damage is told in *trouble*, never raised."""
        try:
            image = _image(data)
            return cls(member, data, image, device_code(image), Outline.parse(data).needed)
        except (BinaryError, DeviceError) as error:
            return cls(member, data, None, DeviceCode(), trouble=str(error))

    @property
    def containers(self) -> tuple[Container, ...]:
        """Those of the vendor whose GPUs can be asked for."""
        return tuple(container for container in self.code.containers if container.vendor is Vendor.NVIDIA)

    def slimmed(self, share: Share, cuts: Cuts) -> tuple[EditedFile, LibraryCut]:
        """What is left for *share*, and what went; `SlimError` where a GPU asked for is served by nothing in it."""
        devices = share.gpus.devices if share.gpus else ()
        if self.image is None:
            return self._left(devices, self.trouble)
        fates = tuple(self._fates(share, cuts))
        if not cuts.unsupported:
            self._check(fates, devices)
        # those kept whole are replaced too: they move up to the ones before them, and one hole is left, not many
        movable = [fate for fate in fates if fate.container.movable]
        is_cut = cuts.zstd or any(fate.is_cut for fate in movable)
        try:
            replacements = [fate.replacement(self.data, zstd=cuts.zstd) for fate in movable] if is_cut else []
            done = operated(self.image, replacements, strip=cuts.strip, force=cuts.force)
        except (BinaryError, DeviceError, SurgeryError) as error:
            return self._left(devices, str(error))
        replaced = {each.span for each in done.replaced}
        # what would have freed no whole page is as it was
        fates = tuple(fate if fate.container.span in replaced else fate.whole for fate in fates)
        rewritten = (entry for fate in fates if fate.container.span in replaced for entry in fate.kept)
        is_recompressed = cuts.zstd and any(entry.compression is not Compression.ZSTD for entry in rewritten)
        outcome = self._outcome(done.rope, fates, devices, slots=done.slots)
        return done.rope, replace(outcome, is_recompressed=is_recompressed, zstd=outcome.zstd or is_recompressed)

    def _fates(self, share: Share, cuts: Cuts) -> Iterator[EntryDecision]:
        for container in self.containers:
            yield EntryDecision.of(container, share.gpus, cuts) if share.gpus else EntryDecision.untouched(container)

    def _check(self, fates: tuple[EntryDecision, ...], devices: Iterable[Arch]) -> None:
        # code that only other libraries read, or none at all, was never for a GPU
        chosen = [fate for fate in _chosen_from(fates) if fate.is_for_gpus]
        for device in devices:
            if chosen and all(fate.service(device) is Service.NONE for fate in chosen):
                found = ", ".join(_names(entry.offer for fate in chosen for entry in fate.container.entries))
                what = f"nothing for {device} in any of its fatbins ({len(chosen)}), which have {found}"
                raise SlimError(f"{self.member}: {what}; choose among those, or let it go with --allow-unsupported")

    def _left(self, devices: tuple[Arch, ...], why: str | None) -> tuple[EditedFile, LibraryCut]:
        rope = EditedFile.whole(self.data)
        fates = tuple(map(EntryDecision.untouched, self.containers))
        return rope, self._outcome(rope, fates, devices, why_whole=why)

    def _outcome(
        self,
        rope: EditedFile,
        fates: tuple[EntryDecision, ...],
        devices: tuple[Arch, ...],
        *,
        slots: tuple[PointerSlot, ...] = (),
        why_whole: str | None = None,
    ) -> LibraryCut:
        entries = [entry for fate in fates for entry in fate.kept]
        total = sum(len(fate.container.entries) for fate in fates)
        chosen = _chosen_from(fates)
        return LibraryCut(
            member=self.member,
            before=len(self.data),
            after=rope.size,
            kept=len(entries),
            dropped=total - len(entries),
            empty=sum(not fate.serves for fate in chosen),
            jit_only=sum(any(fate.service(device) is Service.JIT for device in devices) for fate in chosen),
            pinned=sum(not fate.container.movable for fate in fates),
            served=tuple(_served(chosen, device) for device in devices) if chosen else (),
            virtual=_virtual(chosen, devices),
            zstd=any(entry.compression is Compression.ZSTD for entry in entries),
            gpus_before=tuple(_names(entry.offer for fate in fates for entry in fate.container.entries)),
            gpus=tuple(_names(entry.offer for entry in entries)),
            headers=tuple(slot.value for slot in slots),
            is_fragile=PointerSlot.MOVED in slots,
            notes=self.code.notes,
            why_whole=why_whole,
        )


def _least(container: Container, cuts: Cuts) -> tuple[GpuEntry, ...]:
    """What stays of *container* where no GPU needs any of it: the smallest entry; under `Ptx.NONE` PTX comes last."""
    if cuts.empty is Empty.NOTHING:
        return ()
    without_ptx = cuts.ptx is Ptx.NONE
    return tuple(
        sorted(container.entries, key=lambda entry: (without_ptx and entry.code is GpuCodeKind.PTX, entry.size))[:1]
    )


def _image(data: memoryview) -> ElfImage:
    image = ElfImage.parse(data)
    if not image.sections:
        raise BinaryError("no section headers, by which GPU code is found; expected a file that has them")
    return image


def _chosen_from(fates: tuple[EntryDecision, ...]) -> tuple[EntryDecision, ...]:
    """Those of the containers that the driver chooses from."""
    spans = {container.span for container in offered([fate.container for fate in fates])}
    return tuple(fate for fate in fates if fate.container.span in spans)


def _names(offers: Iterable[GpuOffer]) -> list[str]:
    """What *offers* are for, machine code first, then PTX: ``sm_80``, ``PTX for sm_90``."""
    found = frozenset(offers)
    machine, ptx = (
        sorted(offer.arch for offer in found if offer.code is code) for code in (GpuCodeKind.MACHINE, GpuCodeKind.PTX)
    )
    return [*map(str, machine), *(f"PTX for {arch}" for arch in ptx)]


def _served(fates: Iterable[EntryDecision], device: Arch) -> GpuServed:
    found = [fate.service(device) for fate in fates]
    return GpuServed(device, found.count(Service.MACHINE), found.count(Service.JIT), found.count(Service.NONE))


def _virtual(fates: tuple[EntryDecision, ...], devices: Iterable[Arch]) -> tuple[Arch, ...]:
    """The GPUs of a new major, M.0, for which every container has PTX: asked for, or what the PTX was made for."""
    made_for = {entry.arch for fate in fates for entry in fate.kept if entry.code is GpuCodeKind.PTX}
    numbers = {arch.number for arch in (*made_for, *devices) if isinstance(arch, Arch) and arch.number % 10 == 0}
    known = (arch for arch in map(Arch, sorted(numbers)) if arch.toolkits)
    return tuple(arch for arch in known if all(fate.compiles_for(arch) for fate in fates))
