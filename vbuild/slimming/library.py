"""What a cut keeps of one library: its new bytes, and an account of what went.

    ELF or PE file -> GpuLibrary: image, containers (fatbins and bundles of entries)
                   -> ContainerDecision: the entries that the GPUs need
                   -> Rewrite: the container's new bytes, compressed again if the cuts say so
                   -> surgery on the file -> EditedFile, LibraryCut

What cannot be read or cut safely stays as it is, and the account says why.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from vbuild.binary.edits import Replacement, Strip
from vbuild.elf.image import ElfImage
from vbuild.elf.read import Outline
from vbuild.elf.surgery.cutting import Operation, cut
from vbuild.elf.surgery.holes import PointerSlot, sections_to_strip
from vbuild.errors import BinaryError, RepackageError
from vbuild.files.edited import EditedFile, Part
from vbuild.gpu_code.coverage import Coverage, Fatbin, Runs
from vbuild.gpu_code.fatbin import FATBINS, HEADER_SIZE, recompressed, recompressed_size
from vbuild.gpu_code.model import Compression, Container, DeviceCode, GpuEntry, Vendor, offered, verbatim
from vbuild.gpu_code.survey import Image, device_code, filler_text, with_fillers
from vbuild.gpu_code.toolkit_marks import cuda_named
from vbuild.hardware.architectures import Arch, Device, GpuTarget
from vbuild.hardware.driver import ANY_DRIVER, ZSTD_SINCE, Dotted
from vbuild.hardware.gpu import GpuCodeKind, GpuList, GpuOffer, GpuRequest, Ptx, arch_order, kept_offers
from vbuild.pe.cutting import cut as pe_cut
from vbuild.pe.cutting import debug_sections, symbols_of
from vbuild.pe.image import PeImage, is_64_bit
from vbuild.pe.read import PACKED, UPX, read_outline
from vbuild.slimming.request import Cuts, Share
from vbuild.slimming.results import LibraryCut, Saving
from vbuild.wheel.deflate import estimate_packed
from vbuild.wheel.metadata import Metadata

# the packages of CUDA 12 have its number in their names; those of CUDA 13 only in the version that is required
_REQUIREMENTS = (
    re.compile(r"nvidia[-_.][\w.-]+?[-_]cu(?P<major>[0-9]{1,2})\b", re.IGNORECASE),
    re.compile(r"(?:nvidia-cuda-runtime|cuda-toolkit)(?:\[[^]]*\])? *\(?== *(?P<major>[0-9]{1,2})\.", re.IGNORECASE),
)
# the largest pinned containers, whose size is searched for in all code and data
_MOST_PINNED = 32
# bytes of debug data or GPU code that are worth a sample
_LEAST = 1 << 16
_SAMPLES = 8
# places that deflate looks at
_PLACES = 32
# bytes of a sample: for zstd, and for deflate
_CODE, _LYING = 1 << 20, 1 << 20


class ContainerDecision(Struct, frozen=True):
    """The entries of a container that stay; it *serves* if one is for a GPU of the share.

    *surplus* are entries that no GPU needs, of a container that cannot be cut.
    """

    container: Container
    kept: tuple[GpuEntry, ...]
    serves: bool = True
    surplus: tuple[GpuEntry, ...] = ()

    @classmethod
    def untouched(cls, container: Container) -> Self:
        return cls(container, container.entries)

    @classmethod
    def of(cls, container: Container, gpus: GpuList, cuts: Cuts, *, may_shrink: bool = False) -> Self:
        """Keep what *gpus* need of *container*, or all of it if *gpus* has none of its vendor.

        A pinned one keeps the rest as surplus, unless it *may_shrink* in its place.
        """
        if not (requests := requests_of(gpus, container.vendor)):
            return cls.untouched(container)
        if container.is_filler:
            return cls(container, container.entries, serves=False)
        offers = [entry.offer for entry in container.entries]
        needed = {index for request in requests for index in kept_offers(offers, request, ptx=cuts.ptx)}
        kept = tuple(entry for index, entry in enumerate(container.entries) if index in needed)
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
        return any(entry.code is not GpuCodeKind.OTHER for entry in self.container.entries)

    @property
    def fatbin(self) -> Fatbin:
        return replace(Fatbin.of(self.container, self.kept), is_filler=self.is_filler)

    @property
    def is_filler(self) -> bool:
        """Whether what stays, stays for no GPU: now, or since it was slimmed before."""
        return self.container.is_filler or (self.is_cut and not self.serves)

    def rewritten(self, data: memoryview, *, zstd: bool) -> "Rewrite":
        written = partial(recompressed, data) if zstd else verbatim
        span, wrappers = self.container.span, self.container.wrappers if self.container.movable else ()
        try:
            parts = self.container.keeping(frozenset(self.kept), written=written)
        except BinaryError as error:
            return Rewrite(self.untouched(self.container), Replacement(span, (span,), wrappers), str(error))
        return Rewrite(self, Replacement(span, parts, wrappers))


class Rewrite(Struct, frozen=True):
    """The new bytes of a container and its pointers; *damage* says why its code cannot be read, and all of it stays."""

    decision: ContainerDecision
    replacement: Replacement
    damage: str | None = None


class GpuLibrary(Struct, frozen=True):
    """A library; *trouble* says why it cannot be read.

    *shrinking* are the file offsets of the pinned containers that may become smaller where they are.
    """

    member: str
    data: memoryview
    image: Image | None
    code: DeviceCode
    needed: tuple[str, ...] = ()
    trouble: str | None = None
    shrinking: frozenset[int] = frozenset()

    @classmethod
    def of(cls, member: str, data: memoryview, *, fillers: str = "") -> Self:
        """Damage goes into *trouble* and raises nothing; *fillers* is what a bill of materials says of them."""
        try:
            is_pe = is_64_bit(lambda size: bytes(data[:size]))
            image: Image = PeImage.parse(data) if is_pe else ElfImage.parse(data)
            is_packed = isinstance(image, PeImage) and image.named(UPX)
            if is_packed or not image.sections:
                unnamed = "no section headers, by which GPU code is found; expected a file that has them"
                return cls(member, data, None, DeviceCode(), trouble=PACKED if is_packed else unnamed)
            code = with_fillers(device_code(image), fillers)
            needed = (read_outline(data) if isinstance(image, PeImage) else Outline.parse(data)).needed
            return cls(member, data, image, code, needed, shrinking=unmeasured_containers(image, code))
        except BinaryError as error:
            return cls(member, data, None, DeviceCode(), trouble=str(error))

    def slimmed(
        self,
        share: Share,
        cuts: Cuts,
        *,
        threads: int = 1,
        on_progress: Callable[[int], None] = lambda _size: None,
    ) -> tuple[EditedFile, LibraryCut]:
        """The library cut for *share*, and an account; GPU code is compressed again in so many *threads*.

        Raises `RepackageError` if fatbins lack code for a GPU that a variant would claim, or any if cuts are strict.
        """
        if self.image is None:
            return self._unchanged(share, cuts, self.trouble)
        decisions, lacks, left = self._decide(share, cuts)
        self._check_holes(decisions, lacks, share, cuts)
        cuts = replace(cuts, zstd=self._recompresses(share, cuts, decisions))
        movable = [
            decision
            for decision in decisions
            if decision.container.movable or decision.container.span.start in self.shrinking
        ]
        rewrites = self._rewrite(movable, zstd=bool(cuts.zstd), threads=threads, on_progress=on_progress)
        replacements = [rewrite.replacement for rewrite in rewrites]
        entries = [entry for decision in movable for entry in decision.kept]
        try:
            with ThreadPoolExecutor(1) as pool:
                more = pool.submit(tuple, () if cuts.zstd else _recompressing(self.image, entries))
                if isinstance(self.image, PeImage):
                    operation = Operation(pe_cut(self.image, replacements, strip=cuts.strip))
                else:
                    operation = cut(self.image, replacements, strip=cuts.strip, force=cuts.force)
        except BinaryError as error:
            return self._unchanged(share, cuts, str(error))
        damaged = {rewrite.decision.container.span: rewrite.decision for rewrite in rewrites if rewrite.damage}
        account = self._account(
            operation.edited, [damaged.get(decision.container.span, decision) for decision in decisions], share
        )
        wrong = [f"{rewrite.decision.container.section}: {rewrite.damage}" for rewrite in rewrites if rewrite.damage]
        is_recompressed = bool(cuts.zstd) and not all(
            _needs_zstd(entry) for entry in entries if entry.vendor is Vendor.NVIDIA
        )
        if is_recompressed:
            account = account.recompressed
        return operation.edited, replace(
            account,
            headers=tuple(slot.value for slot in operation.slots),
            is_fragile=PointerSlot.MOVED in operation.slots,
            is_recompressed=is_recompressed,
            notes=(*account.notes, *wrong, *left, *filter(None, [operation.why_large])),
            more=more.result(),
            lacks=lacks,
        )

    def _decide(
        self, share: Share, cuts: Cuts
    ) -> tuple[tuple[ContainerDecision, ...], dict[Device, str], tuple[str, ...]]:
        """What stays of each container, what there is instead of code for GPUs of *share*, and notes.

        A vendor's code stays whole if it serves none of *share*: it served them no better before.
        """
        if share.gpus is None:
            return tuple(map(ContainerDecision.untouched, self.code.containers)), {}, ()
        decisions = tuple(
            ContainerDecision.of(container, share.gpus, cuts, may_shrink=container.span.start in self.shrinking)
            for container in self.code.containers
        )
        lacks = dict(_lacking(decisions, share.gpus.every))
        if cuts.unsupported:
            return decisions, lacks, ()
        served = {Vendor.of(device) for device in share.gpus.every if device not in lacks}
        decisions = tuple(
            decision if decision.container.vendor in served else ContainerDecision.untouched(decision.container)
            for decision in decisions
        )
        return (
            decisions,
            lacks,
            tuple(sorted({why for device, why in lacks.items() if Vendor.of(device) not in served})),
        )

    def _check_holes(
        self, decisions: Sequence[ContainerDecision], lacks: Mapping[Device, str], share: Share, cuts: Cuts
    ) -> None:
        """`RepackageError` if fatbins lack code for a GPU of *share*, and the cuts are strict or a variant claims it.

        A library with nothing at all for it may be for other GPUs only, and never be loaded on that one.
        """
        if cuts.strict and lacks:
            raise RepackageError(refusal(self.member, min(lacks.values())))
        is_claimed = share.label and not share.document and not (cuts.unsupported or cuts.holes)
        for device in share.gpus.every if share.gpus and (cuts.strict or is_claimed) else ():
            coverage = self._coverage(decisions, device)
            if coverage.runs is Runs.IN_PART:
                why = f"only {coverage.share} have code for {device}, and kernels of the others do not run there"
                raise RepackageError(f"{self.member}: {why}; choose other GPUs, or let it go with --allow-unsupported")

    def _coverage(self, decisions: Sequence[ContainerDecision], device: Device, *, by_ptx: bool = False) -> Coverage:
        fatbins = (decision.fatbin for decision in _chosen_from(decisions))
        return Coverage.by(fatbins, device, cudart=self.code.cudart, by_ptx=by_ptx)

    def _by_ptx(self, decisions: Sequence[ContainerDecision], devices: Iterable[Device]) -> tuple[Coverage, ...]:
        """How PTX serves the GPUs M.0 that it serves everywhere, of *devices* or those that there is PTX for."""
        made_for = {
            entry.arch
            for decision in _chosen_from(decisions)
            for entry in decision.kept
            if entry.code is GpuCodeKind.PTX
        }
        numbers = {arch.number for arch in (*made_for, *devices) if isinstance(arch, Arch) and arch.number % 10 == 0}
        coverages = (
            self._coverage(decisions, arch, by_ptx=True) for arch in map(Arch, sorted(numbers)) if arch.toolkits
        )
        return tuple(coverage for coverage in coverages if coverage.runs is Runs.JIT)

    def _recompresses(self, share: Share, cuts: Cuts, decisions: Sequence[ContainerDecision]) -> bool:
        """Whether to compress with zstd: the cuts say so, or all users of the variant have a driver for it."""
        if cuts.zstd is not None or share.label is None:
            return bool(cuts.zstd)
        if share.document:  # what it claims is known, and has to stay true
            return share.oldest_driver >= ZSTD_SINCE
        devices = share.gpus.devices if share.gpus else ()
        served = (*devices, *(ptx.device for ptx in self._by_ptx(decisions, devices)))
        # no driver knows a GPU that is newer than its CUDA
        oldest_cuda = min(
            (arch.toolkits[0] for arch in served if isinstance(arch, Arch) and arch.toolkits), default=ANY_DRIVER
        )
        linked = Dotted(cuda_major(self.needed) or 0, 0)
        return max(oldest_cuda, linked) >= ZSTD_SINCE

    def _rewrite(
        self,
        decisions: Sequence[ContainerDecision],
        *,
        zstd: bool,
        threads: int,
        on_progress: Callable[[int], None],
    ) -> list[Rewrite]:
        """The new bytes of all containers, or nothing if none changes.

        Whole ones are rewritten, too: they move up behind the others, which leaves one hole instead of many.
        """

        def rewritten(decision: ContainerDecision) -> Rewrite:
            rewrite = decision.rewritten(self.data, zstd=zstd)
            on_progress(len(decision.container.span))
            return rewrite

        if zstd:
            # Python's lock is not held while compressing
            with ThreadPoolExecutor(threads) as pool:
                return list(pool.map(rewritten, decisions))
        return list(map(rewritten, decisions)) if any(decision.is_cut for decision in decisions) else []

    def _unchanged(self, share: Share, cuts: Cuts, why: str | None) -> tuple[EditedFile, LibraryCut]:
        file = EditedFile.whole(self.data)
        decisions = [ContainerDecision.untouched(container) for container in self.code.containers]
        if share.gpus:
            pinned = [replace(container, why_pinned=why) for container in self.code.containers]
            surplus = [ContainerDecision.of(container, share.gpus, cuts).surplus for container in pinned]
            decisions = [replace(decision, surplus=more) for decision, more in zip(decisions, surplus, strict=True)]
        return file, replace(self._account(file, decisions, share), why_whole=why)

    def _account(self, file: EditedFile, decisions: Sequence[ContainerDecision], share: Share) -> LibraryCut:
        devices = share.gpus.every if share.gpus else ()
        # a bundle also lists the host, which has its code elsewhere
        entries = [entry for decision in decisions for entry in decision.kept if entry.size]
        total = sum(bool(entry.size) for decision in decisions for entry in decision.container.entries)
        chosen = _chosen_from(decisions)
        surplus = [dict.fromkeys(entry.arch for entry in decision.surplus) for decision in decisions]
        return LibraryCut(
            member=self.member,
            before=len(self.data),
            after=file.size,
            kept=len(entries),
            dropped=total - len(entries),
            empty=sum(not decision.serves for decision in chosen),
            jit_only=sum(
                any(decision.fatbin.coverage(device).runs is Runs.JIT for device in devices) for decision in chosen
            ),
            pinned=sum(not (decision.container.movable or decision.is_cut) for decision in decisions),
            served=tuple(served for device in devices if (served := self._coverage(decisions, device)).runs),
            virtual=self._by_ptx(decisions, devices),
            zstd=any(map(_needs_zstd, entries)),
            beside=sum(map(_beside_specific, chosen)),
            fillers=filler_text(replace(one.container, is_filler=one.is_filler) for one in decisions),
            gpus_before=tuple(names_of(entry.offer for decision in decisions for entry in decision.container.entries)),
            gpus=tuple(names_of(entry.offer for entry in entries)),
            notes=self.code.notes,
            surplus=tuple(map(tuple, filter(None, surplus))),
        )


Archs = frozenset[str]
"""Architectures in a text, as ``sm_90``."""


class LibraryPlan(Struct, frozen=True):
    """The fate of one file: an edited file and an account for each share, and its NEEDED.

    *listed* are lists of architectures that stand in it as text, *gone* the indices of shares without it; *more* is
    what stripping would save.
    """

    member: str
    files: tuple[EditedFile, ...]
    cuts: tuple[LibraryCut, ...]
    needed: tuple[str, ...] = ()
    listed: frozenset[Archs] = frozenset()
    gone: frozenset[int] = frozenset()
    more: tuple[Saving, ...] = ()

    @property
    def is_changed(self) -> bool:
        return bool(self.gone) or not all(file.is_unchanged for file in self.files)


def _needs_zstd(entry: GpuEntry) -> bool:
    """Whether only newer drivers of NVIDIA read *entry*; AMD's runtime always reads zstd."""
    return entry.vendor is Vendor.NVIDIA and entry.compression is Compression.ZSTD


def _beside_specific(decision: ContainerDecision) -> int:
    """The bytes of code for all GPUs of an architecture that stay beside code for it alone, as sm_90 beside sm_90a."""
    sizes = {str(entry.arch): entry.size for entry in decision.kept if entry.code is GpuCodeKind.MACHINE}
    return sum(size for arch, size in sizes.items() if f"{arch}a" in sizes)


def _lacking(decisions: Sequence[ContainerDecision], devices: Iterable[Device]) -> Iterator[tuple[Device, str]]:
    """Yield those of *devices* that nothing serves although there is code of the vendor, and what there is."""
    for device in devices:
        # was never for a GPU
        chosen = [
            decision
            for decision in _chosen_from(decisions)
            if decision.is_for_gpus and decision.container.vendor is Vendor.of(device)
        ]
        coverage = Coverage.by((decision.fatbin for decision in chosen), device)
        if chosen and not coverage.served.fatbins:
            names = ", ".join(names_of(entry.offer for decision in chosen for entry in decision.container.entries))
            where = f"any of its {coverage.word}s ({len(chosen)})"
            yield device, f"nothing for {device} in {where}, which have {names}"


def requests_of(gpus: GpuList, vendor: Vendor) -> tuple[GpuRequest | GpuTarget, ...]:
    return gpus.targets if vendor is Vendor.AMD else gpus.requests


def refusal(member: str, why: str) -> str:
    return f"{member}: {why}; choose among those, or let it go with --allow-unsupported"


def _least(container: Container, cuts: Cuts) -> tuple[GpuEntry, ...]:
    """What stays of *container* if no GPU needs any: the smallest entry, PTX last under `Ptx.NONE`."""
    without_ptx = cuts.ptx is Ptx.NONE
    by_size = sorted(container.entries, key=lambda entry: (without_ptx and entry.code is GpuCodeKind.PTX, entry.size))
    return tuple(by_size[:1])


def _chosen_from(decisions: Sequence[ContainerDecision]) -> list[ContainerDecision]:
    spans = {container.span for container in offered([decision.container for decision in decisions])}
    return [decision for decision in decisions if decision.container.span in spans]


def names_of(offers: Iterable[GpuOffer]) -> list[str]:
    """Machine code first, then PTX: ``sm_80``, ``PTX for sm_90``."""
    distinct = frozenset(offers)
    machine, ptx = (
        sorted((offer.arch for offer in distinct if offer.code is code), key=arch_order)
        for code in (GpuCodeKind.MACHINE, GpuCodeKind.PTX)
    )
    return [*map(str, machine), *(f"PTX for {arch}" if isinstance(arch, Arch) else str(arch) for arch in ptx)]


def cuda_major(needed: Iterable[str], metadata: Metadata | None = None) -> int | None:
    """The CUDA major of a wheel with these NEEDED entries, or None unless there is exactly one."""
    majors = {version.major for version in cuda_named(needed)}
    if not majors and metadata:
        majors = {
            int(match["major"])
            for line in metadata.requires_dist
            for pattern in _REQUIREMENTS
            if (match := pattern.match(line))
        }
    return majors.pop() if len(majors) == 1 else None


def unmeasured_containers(image: Image, code: DeviceCode) -> frozenset[int]:
    """The file offsets of the pinned containers that may shrink in place: nothing else has their size.

    Code that knew it, to hand it on or to find what follows, would have it as a number of four bytes or more.
    """
    pinned = [container for container in code.containers if container.in_place and not container.movable]
    pinned = sorted(pinned, key=lambda container: len(container.span), reverse=True)[:_MOST_PINNED]
    numbers = {
        container.span.start: [size.to_bytes(4, "little") for size in (length, length - HEADER_SIZE)]
        for container in pinned
        if (length := len(container.span))
    }
    filled = [section for section in image.sections if section.is_loaded and section.span]
    for section in filled if numbers else ():
        if section.name not in FATBINS.sections:
            data = bytes(image.view(section.span))
            numbers = {start: sizes for start, sizes in numbers.items() if not any(size in data for size in sizes)}
    return frozenset(numbers)


def strip_savings(image: Image, cuts: Cuts) -> Iterator[Saving]:
    """What stripping *image* would save, from samples."""
    gone = _strippable(image, cuts.strip)
    for strip in (Strip.DEBUG, Strip.UNNEEDED):
        spans = [span for span in _strippable(image, strip) if span not in gone]
        if (size := sum(map(len, spans))) >= _LEAST:
            yield Saving(f"--strip {strip}", _packed(image, spans), size)


def _recompressing(image: Image, kept: Sequence[GpuEntry]) -> Iterator[Saving]:
    """What zstd would save on *kept*, from samples."""
    plain = [
        entry
        for entry in kept
        if entry.vendor is Vendor.NVIDIA and entry.compression in {Compression.RAW, Compression.LZ4}
    ]
    size = sum(entry.size for entry in plain)
    if size < _LEAST:
        return
    # of all sizes
    step = -(-len(plain) // _SAMPLES)
    samples = sorted(plain, key=lambda entry: entry.size)[step // 2 :: step]
    try:
        after = sum(recompressed_size(image.data, entry, sample=_CODE) for entry in samples)
    except BinaryError:
        return  # an entry that cannot be read is named by what looks at it
    before = sum(entry.size for entry in samples)
    starts = [entry.span.start + max(len(entry.span) - _LYING, 0) // 2 for entry in samples]
    middles = [range(start, min(start + _LYING, entry.span.stop)) for start, entry in zip(starts, samples, strict=True)]
    packed = _packed(image, middles) * before // sum(map(len, middles))
    # a zstd frame does not get smaller in a wheel
    saving = Saving("--recompress", (packed - after) * size // before, (before - after) * size // before)
    if saving.packed > 0 or saving.unpacked > 0:
        yield saving


def _strippable(image: Image, strip: Strip) -> list[range]:
    if not isinstance(image, PeImage):
        return [section.span for section in sections_to_strip(image, strip)]
    indices = debug_sections(image) if strip is not Strip.NOTHING else None
    return [] if indices is None else [*(image.sections[index].raw for index in indices), symbols_of(image)]


def _packed(image: Image, spans: Iterable[range]) -> int:
    parts: list[Part] = [*sorted(spans, key=lambda span: span.start)]
    return estimate_packed(EditedFile.of(image.data, parts), places=_PLACES)
