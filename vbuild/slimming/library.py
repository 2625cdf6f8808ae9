"""Everything that slimming does to the libraries of one wheel, decided before a byte is written.

    every ELF member, inflated once, in threads -> GpuLibrary: ElfImage, DeviceCode
        -> for each share the entries that its GPUs need -> Replacements -> EditedFile, LibraryCut
        -> SlimPlan

A library that changes stays mapped from its temporary file while the plan is open; others are unmapped at once. What
cannot be read or cut safely stays as it is, byte for byte, and the result says why.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from vbuild.binary.edits import Replacement
from vbuild.elf.image import ElfImage
from vbuild.elf.read import Outline
from vbuild.elf.surgery.cutting import Operation, operated
from vbuild.elf.surgery.slots import PointerSlot
from vbuild.errors import BinaryError, RepackageError
from vbuild.files.edited import EditedFile
from vbuild.gpu_code.fatbin import recompressed
from vbuild.gpu_code.model import Compression, Container, DeviceCode, GpuEntry, Vendor, offered, verbatim
from vbuild.gpu_code.survey import device_code
from vbuild.hardware.architectures import Arch, Device
from vbuild.hardware.driver import ZSTD_SINCE, Dotted
from vbuild.hardware.gpu import (
    GpuCodeKind,
    GpuList,
    GpuOffer,
    GpuServed,
    Ptx,
    Service,
    arch_order,
    kept_offers,
    service,
)
from vbuild.pe.cutting import cut as pe_cut
from vbuild.pe.image import Directory, PeImage, is_64_bit
from vbuild.pe.read import PACKED, UPX, read_outline
from vbuild.slimming.request import Cuts, Empty, Share
from vbuild.slimming.results import LibraryCut
from vbuild.slimming.savings import savings
from vbuild.slimming.stated import cuda_major, unmeasured


class ContainerDecision(Struct, frozen=True):
    """What remains of one container: the entries that are kept, and whether any of them serves a GPU asked for.

    *surplus* are those that stay only because the container cannot be cut.
    """

    container: Container
    kept: tuple[GpuEntry, ...]
    serves: bool = True
    surplus: tuple[GpuEntry, ...] = ()

    @classmethod
    def untouched(cls, container: Container) -> Self:
        """Keep all of *container*."""
        return cls(container, container.entries)

    @classmethod
    def of(cls, container: Container, gpus: GpuList, cuts: Cuts, *, may_shrink: bool = False) -> Self:
        """Decide what *gpus* need of *container*: those entries stay, and no others unless the container is pinned.

        A pinned one that *may_shrink* does so in its place. A container for GPUs of a vendor that *gpus* names none of
        stays whole.
        """
        requests = gpus.targets if container.vendor is Vendor.AMD else gpus.requests
        if not requests:
            return cls.untouched(container)
        offers = [entry.offer for entry in container.entries]
        places = {place for request in requests for place in kept_offers(offers, request, ptx=cuts.ptx)}
        kept = tuple(entry for place, entry in enumerate(container.entries) if place in places)
        serves = any(entry.code is not GpuCodeKind.OTHER for entry in kept)
        if not (container.movable or may_shrink):
            surplus = tuple(entry for entry in container.entries if entry not in kept)
            return cls(container, container.entries, serves, surplus)
        return cls(container, kept or _least(container, cuts), serves)

    @property
    def is_cut(self) -> bool:
        return len(self.kept) < len(self.container.entries)

    @property
    def is_for_gpus(self) -> bool:
        """Whether the container had code that a driver chooses from."""
        return any(entry.code is not GpuCodeKind.OTHER for entry in self.container.entries)

    def service(self, device: Device) -> Service:
        """Return how the kept entries serve *device*."""
        return service([entry.offer for entry in self.kept], device) if self.serves else Service.NONE

    def compiles_for(self, device: Arch) -> bool:
        """Whether *device* has PTX here to compile, or needs nothing of this container."""
        ptx = [entry.offer for entry in self.kept if entry.code is GpuCodeKind.PTX]
        return not self.serves or service(ptx, device) is Service.JIT

    def replaced(self, data: memoryview, *, zstd: bool) -> tuple[Self, Replacement, str | None]:
        """Return the container's new bytes, with the pointers that follow it.

        One whose code cannot be read stays whole: then the decision is another, and the last says what is wrong.
        """
        written = partial(recompressed, data) if zstd else verbatim
        wrappers = self.container.wrappers if self.container.movable else ()
        try:
            parts = self.container.keeping(frozenset(self.kept), written=written)
        except BinaryError as error:
            whole = Replacement(self.container.span, (self.container.span,), wrappers)
            return self.untouched(self.container), whole, str(error)
        return self, Replacement(self.container.span, parts, wrappers), None


class GpuLibrary(Struct, frozen=True):
    """A library in a wheel, mapped into memory; *trouble* says why it cannot be read, or is None.

    *shrinking* are the file offsets of the pinned containers that may become smaller where they are.
    """

    member: str
    data: memoryview
    image: ElfImage | PeImage | None
    code: DeviceCode
    needed: tuple[str, ...] = ()
    trouble: str | None = None
    shrinking: frozenset[int] = frozenset()

    @classmethod
    def of(cls, member: str, data: memoryview) -> Self:
        """Read the ELF or PE file *data*; damage goes into *trouble* and raises nothing."""
        try:
            if is_64_bit(lambda size: bytes(data[:size])):
                image: ElfImage | PeImage = PeImage.parse(data)
            else:
                image = ElfImage.parse(data)
            if not image.sections:
                trouble = "no section headers, by which GPU code is found; expected a file that has them"
                return cls(member, data, None, DeviceCode(), trouble=trouble)
            if isinstance(image, PeImage) and image.named(UPX):
                return cls(member, data, None, DeviceCode(), trouble=PACKED)
            code = device_code(image)
            needed = (read_outline(data) if isinstance(image, PeImage) else Outline.parse(data)).needed
            return cls(member, data, image, code, needed, shrinking=unmeasured(image, code))
        except BinaryError as error:
            return cls(member, data, None, DeviceCode(), trouble=str(error))

    def slimmed(self, share: Share, cuts: Cuts, *, threads: int = 1) -> tuple[EditedFile, LibraryCut]:
        """Return the library cut for *share*, and an account; GPU code is compressed anew in so many *threads*.

        Code for a vendor's GPUs stays whole if it serves none of those asked for: it served them no better before.
        Raises `RepackageError` if it does not serve one of them, and the cuts are strict.
        """
        devices = share.gpus.every if share.gpus else ()
        if self.image is None:
            return self._unchanged(share, cuts, self.trouble)
        gpus = share.gpus
        decisions = tuple(
            ContainerDecision.of(container, gpus, cuts, may_shrink=container.span.start in self.shrinking)
            if gpus
            else ContainerDecision.untouched(container)
            for container in self.code.containers
        )
        lacks = dict(_lacking(decisions, devices))
        if cuts.strict and lacks:
            raise RepackageError(_refusal(self.member, min(lacks.values())))
        idle = (
            frozenset()
            if cuts.unsupported
            else share.vendors - {Vendor.of(each) for each in devices if each not in lacks}
        )
        decisions = tuple(
            ContainerDecision.untouched(each.container) if each.container.vendor in idle else each for each in decisions
        )
        # whole containers are replaced, too: they move up behind the others, which leaves one hole instead of many
        movable = [each for each in decisions if each.container.movable or each.container.span.start in self.shrinking]
        cuts = replace(cuts, zstd=self._recompresses(share, cuts, decisions))
        is_cut = cuts.zstd or any(decision.is_cut for decision in movable)
        replaced = self._replaced(movable, zstd=bool(cuts.zstd), threads=threads) if is_cut else []
        damaged = {each.container.span: each for each, _, what in replaced if what}
        decisions = tuple(damaged.get(each.container.span, each) for each in decisions)
        try:
            replacements = [replacement for _, replacement, _ in replaced]
            operation = _operated(self.image, replacements, cuts)
        except BinaryError as error:
            return self._unchanged(share, cuts, str(error))
        rewritten = (entry for decision in movable for entry in decision.kept if entry.vendor is Vendor.NVIDIA)
        is_recompressed = bool(cuts.zstd) and not all(map(_needs_zstd, rewritten))
        account = self._account(operation.edited, decisions, devices, slots=operation.slots)
        left = {what for device, what in lacks.items() if Vendor.of(device) in idle}
        wrong = [f"{each.container.section}: {what}" for each, _, what in replaced if what]
        notes = (*account.notes, *wrong, *sorted(left), *((operation.why_large,) if operation.why_large else ()))
        is_signed = isinstance(self.image, PeImage) and self.image.directory(Directory.SECURITY) is not None
        unsigned = is_signed and not operation.edited.is_unchanged
        zstd = account.zstd or is_recompressed
        more = tuple(savings(self.image, [entry for one in movable for entry in one.kept], cuts))
        told = {
            "is_recompressed": is_recompressed,
            "zstd": zstd,
            "notes": notes,
            "more": more,
            "lacks": lacks,
            "unsigned": unsigned,
        }
        return operation.edited, replace(account, **told)

    def _replaced(
        self, decisions: Sequence[ContainerDecision], *, zstd: bool, threads: int
    ) -> list[tuple[ContainerDecision, Replacement, str | None]]:
        """Return what `ContainerDecision.replaced` makes of *decisions*."""
        replaced = partial(ContainerDecision.replaced, data=self.data, zstd=zstd)
        if not zstd:
            return list(map(replaced, decisions))
        # compressing takes most of the time, and Python's lock is not held for it
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(replaced, decisions))

    def _recompresses(self, share: Share, cuts: Cuts, decisions: tuple[ContainerDecision, ...]) -> bool:
        """Whether to compress with zstd: if that is asked for, or all who may load the variant have a driver for it."""
        if cuts.zstd is not None or share.label is None:
            return bool(cuts.zstd)
        if share.document:  # what it claims is known, and has to stay true
            return share.oldest_driver >= ZSTD_SINCE
        devices = share.gpus.devices if share.gpus else ()
        chosen = [each for each in _chosen_from(decisions) if each.container.vendor is Vendor.NVIDIA]
        served = (*devices, *_virtual(chosen, devices))
        # no driver knows a GPU that is newer than its CUDA
        known = min((found[0] for device in served if (found := device.toolkits)), default=Dotted(0, 0))
        linked = Dotted(cuda_major(self.needed) or 0, 0)
        return max(known, linked) >= ZSTD_SINCE

    def _unchanged(self, share: Share, cuts: Cuts, why: str | None) -> tuple[EditedFile, LibraryCut]:
        file, gpus = EditedFile.whole(self.data), share.gpus
        decisions = tuple(map(ContainerDecision.untouched, self.code.containers))
        if gpus:
            whole = (replace(container, why_pinned=why) for container in self.code.containers)
            surplus = [ContainerDecision.of(container, gpus, cuts).surplus for container in whole]
            decisions = tuple(replace(each, surplus=more) for each, more in zip(decisions, surplus, strict=True))
        return file, self._account(file, decisions, gpus.every if gpus else (), why_whole=why)

    def _account(
        self,
        file: EditedFile,
        decisions: tuple[ContainerDecision, ...],
        devices: tuple[Device, ...],
        *,
        slots: tuple[PointerSlot, ...] = (),
        why_whole: str | None = None,
    ) -> LibraryCut:
        # a bundle also lists the host, which has its code elsewhere
        entries = [entry for decision in decisions for entry in decision.kept if entry.size]
        total = sum(bool(entry.size) for decision in decisions for entry in decision.container.entries)
        chosen = _chosen_from(decisions)
        return LibraryCut(
            member=self.member,
            before=len(self.data),
            after=file.size,
            kept=len(entries),
            dropped=total - len(entries),
            empty=sum(not decision.serves for decision in chosen),
            jit_only=sum(any(decision.service(device) is Service.JIT for device in devices) for decision in chosen),
            pinned=sum(not (decision.container.movable or decision.is_cut) for decision in decisions),
            served=tuple(_served(found, device) for device in devices if (found := _of_vendor(chosen, device))),
            virtual=_virtual([each for each in chosen if each.container.vendor is Vendor.NVIDIA], devices),
            zstd=any(map(_needs_zstd, entries)),
            gpus_before=tuple(names_of(entry.offer for decision in decisions for entry in decision.container.entries)),
            gpus=tuple(names_of(entry.offer for entry in entries)),
            headers=tuple(slot.value for slot in slots),
            is_fragile=PointerSlot.MOVED in slots,
            notes=self.code.notes,
            why_whole=why_whole,
            surplus=tuple(
                tuple(dict.fromkeys(entry.arch for entry in decision.surplus))
                for decision in decisions
                if decision.surplus
            ),
        )


def _operated(image: ElfImage | PeImage, replacements: Sequence[Replacement], cuts: Cuts) -> Operation:
    if isinstance(image, PeImage):
        return Operation(pe_cut(image, replacements, strip=cuts.strip, drop_signature=cuts.drop_signature))
    return operated(image, replacements, strip=cuts.strip, force=cuts.force)


def _needs_zstd(entry: GpuEntry) -> bool:
    """Whether only newer drivers of NVIDIA read *entry*; AMD's runtime reads zstd since there are bundles of it."""
    return entry.vendor is Vendor.NVIDIA and entry.compression is Compression.ZSTD


def _lacking(decisions: tuple[ContainerDecision, ...], devices: Iterable[Device]) -> Iterator[tuple[Device, str]]:
    """Yield those of *devices* that nothing serves although there is code for GPUs of the vendor, and what there is."""
    for device in devices:
        # code that only other libraries read, or that is empty, was never for a GPU
        chosen = [decision for decision in _of_vendor(_chosen_from(decisions), device) if decision.is_for_gpus]
        if chosen and all(decision.service(device) is Service.NONE for decision in chosen):
            found = ", ".join(names_of(entry.offer for decision in chosen for entry in decision.container.entries))
            where = f"any of its {GpuServed(device).word}s ({len(chosen)})"
            yield device, f"nothing for {device} in {where}, which have {found}"


def _refusal(member: str, what: str) -> str:
    return f"{member}: {what}; choose among those, or let it go with --allow-unsupported"


def _least(container: Container, cuts: Cuts) -> tuple[GpuEntry, ...]:
    """Return what stays of *container* if no GPU needs any of it: the smallest entry, PTX last under `Ptx.NONE`."""
    if cuts.empty is Empty.NOTHING:
        return ()
    without_ptx = cuts.ptx is Ptx.NONE
    return tuple(
        sorted(container.entries, key=lambda entry: (without_ptx and entry.code is GpuCodeKind.PTX, entry.size))[:1]
    )


def _chosen_from(decisions: tuple[ContainerDecision, ...]) -> tuple[ContainerDecision, ...]:
    """Return the decisions about containers that the driver chooses from."""
    spans = {container.span for container in offered([decision.container for decision in decisions])}
    return tuple(decision for decision in decisions if decision.container.span in spans)


def _of_vendor(decisions: Iterable[ContainerDecision], device: Device) -> list[ContainerDecision]:
    """Return the decisions about containers for GPUs of the vendor of *device*."""
    vendor = Vendor.of(device)
    return [decision for decision in decisions if decision.container.vendor is vendor]


def names_of(offers: Iterable[GpuOffer]) -> list[str]:
    """Return what *offers* are for, machine code first, then PTX: ``sm_80``, ``PTX for sm_90``."""
    found = frozenset(offers)
    machine, ptx = (
        sorted((offer.arch for offer in found if offer.code is code), key=arch_order)
        for code in (GpuCodeKind.MACHINE, GpuCodeKind.PTX)
    )
    return [*map(str, machine), *(f"PTX for {arch}" if isinstance(arch, Arch) else str(arch) for arch in ptx)]


def _served(decisions: Iterable[ContainerDecision], device: Device) -> GpuServed:
    found = [decision.service(device) for decision in decisions]
    return GpuServed(device, found.count(Service.MACHINE), found.count(Service.JIT), found.count(Service.NONE))


def _virtual(decisions: Sequence[ContainerDecision], devices: Iterable[Device]) -> tuple[Arch, ...]:
    """Return the GPUs M.0 for which every container has PTX; asked for, or the PTX was made for them."""
    made_for = {entry.arch for decision in decisions for entry in decision.kept if entry.code is GpuCodeKind.PTX}
    numbers = {arch.number for arch in (*made_for, *devices) if isinstance(arch, Arch) and arch.number % 10 == 0}
    known = (arch for arch in map(Arch, sorted(numbers)) if arch.toolkits)
    return tuple(arch for arch in known if all(decision.compiles_for(arch) for decision in decisions))


class LibraryPlan(Struct, frozen=True):
    """What happens to one file: an edited file and an account for each share, and the libraries in its NEEDED.

    *listed* are the architectures in lists that stand in it as text, *gone* the indices of shares that keep nothing of
    it, not even an empty file.
    """

    member: str
    files: tuple[EditedFile, ...]
    cuts: tuple[LibraryCut, ...]
    needed: tuple[str, ...] = ()
    listed: frozenset[str] = frozenset()
    gone: frozenset[int] = frozenset()

    @property
    def is_changed(self) -> bool:
        return bool(self.gone) or not all(file.is_unchanged for file in self.files)


def check_served(cuts: Sequence[LibraryCut]) -> None:
    """Raise `RepackageError` if none of the files *cuts* serves a GPU asked for, and some have code for others."""
    served = {each.device for cut in cuts for each in cut.served if each.machine or each.jit}
    for cut in cuts:
        lost = [each.device for each in cut.served if each.device not in served] if not cut.after else []
        if cut.alone and lost:
            what = f"nothing for {lost[0]} in it or in any other file, and it is for {', '.join(cut.gpus_before)}"
            raise RepackageError(_refusal(cut.member, what))
        for device, what in cut.lacks.items():
            if device not in served:
                raise RepackageError(_refusal(cut.member, what))
