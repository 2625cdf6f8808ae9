"""The GPU code of one library, summed up: what there is for which GPU, and what one GPU alone needs of it.

DeviceCode   every container with every entry, at its place in the file
Stack        the containers that hold the same sorts of entries, as one: a thousand become a dozen
Portion      bytes and entries of one sort, for a table
Outlook      how the code serves one GPU, and the bytes left when the code for others goes
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

from msgspec import Struct, field
from msgspec.structs import replace

from vbuild.gpu_code.coverage import Coverage, Fatbin, Runs, newest
from vbuild.gpu_code.device_file import DeviceFile
from vbuild.gpu_code.model import Compression, Container, DeviceCode, GpuEntry, Vendor, offered
from vbuild.hardware.architectures import ARCHITECTURES, GENERIC, PROCESSORS, Arch, Device, GpuTarget
from vbuild.hardware.driver import ANY_DRIVER, Dotted
from vbuild.hardware.gpu import GpuCodeKind, GpuOffer, GpuRequest, Ptx, arch_order, kept_offers


class Sort(Struct, frozen=True):
    """What an entry is; *kind* is the vendor's word for it."""

    vendor: Vendor
    section: str
    arch: Device
    kind: str
    code: GpuCodeKind
    compression: Compression

    @classmethod
    def of(cls, entry: GpuEntry, section: str) -> Self:
        return cls(entry.vendor, section, entry.arch, entry.kind, entry.code, entry.compression)


class Portion(Struct, frozen=True):
    """All GPU code of one sort in a library; sizes are bytes, stored with headers and uncompressed."""

    sort: Sort
    entries: int
    size: int
    uncompressed_size: int

    def data(self) -> dict[str, Any]:
        return {
            "vendor": self.sort.vendor,
            "section": self.sort.section,
            "arch": str(self.sort.arch),
            "kind": self.sort.kind,
            "compression": self.sort.compression,
            "entries": self.entries,
            "bytes": self.size,
            "uncompressed_bytes": self.uncompressed_size,
        }


class Outlook(Struct, frozen=True):
    """How GPU code serves a GPU, and the bytes *kept* when it is slimmed to this GPU alone."""

    coverage: Coverage
    kept: int = 0

    def __add__(self, other: Self) -> Self:
        return type(self)(self.coverage + other.coverage, self.kept + other.kept)

    @property
    def device(self) -> Device:
        return self.coverage.device

    @property
    def runs(self) -> Runs | None:
        return self.coverage.runs

    def data(self) -> dict[str, Any]:
        return {**self.coverage.data(), "slimmed_bytes": self.kept}


class Pinned(Struct, frozen=True):
    """GPU code in one section that slimming cannot cut, and why."""

    section: str
    size: int = field(name="bytes")
    count: int
    why: str


class Stack(Struct, frozen=True):
    """Containers with entries of the same *sorts* in the same order, their bytes added up.

    *sizes*, *uncompressed* and *smallest* have a number for each sort; *smallest* counts only the smallest entry of
    each container, *drivers* the oldest driver for all of them. *frame* are the bytes besides entries. *is_offered*:
    the GPU's runtime chooses from the containers; *is_alone*: each is a file, which goes if nothing in it is for a GPU;
    *is_filler*: slimming left its entry for no GPU. *others* is what files beside such a one offer.
    """

    section: str
    sorts: tuple[Sort, ...]
    why_pinned: str | None
    is_offered: bool
    count: int
    frame: int
    sizes: tuple[int, ...]
    uncompressed: tuple[int, ...]
    smallest: tuple[int, ...]
    drivers: tuple[Dotted | None, ...]
    is_alone: bool = False
    is_filler: bool = False
    others: tuple[GpuOffer, ...] = ()

    @property
    def fatbins(self) -> Fatbin:
        size = self.frame + sum(self.sizes)
        return Fatbin(self._offers, self.drivers, size, self.count, is_filler=self.is_filler)

    def serves(self, device: Device) -> bool:
        return bool(self.fatbins.coverage(device).served.fatbins)

    def is_for(self, vendor: type[Device]) -> bool:
        """Whether the GPU's runtime chooses from code for *vendor* here."""
        return self.is_offered and self.fatbins.is_for(vendor)

    def places(self, device: Device) -> frozenset[int] | None:
        """The indices of the sorts that *device* needs; None if all stay: pinned, or another vendor's.

        A file of its own goes whole if nothing in it is for *device*; else one that cannot be cut stays whole.
        """
        if self.is_filler or not any(isinstance(offer.arch, type(device)) for offer in self._offers):
            return None
        if self.why_pinned is not None and not self.is_alone:
            return None
        request = device if isinstance(device, GpuTarget) else GpuRequest(device)
        needed = kept_offers([*self._offers, *self.others], request, ptx=Ptx.AUTO)
        if self.others and not needed:  # none of the files is for it: its driver may get any of them
            return None
        if not self.is_alone:
            return needed
        for_gpus = {index for index, sort in enumerate(self.sorts) if sort.code is not GpuCodeKind.OTHER}
        if for_gpus and not for_gpus & needed:
            return frozenset()
        return needed if self.why_pinned is None else frozenset(range(len(self.sorts)))

    def kept(self, device: Device) -> dict[Sort, int]:
        """The bytes of each sort that slimming to *device* alone leaves; a container without code for it keeps one."""
        sizes: Sequence[int] = self.sizes
        if (places := self.places(device)) is not None:
            sizes = [size if index in places else 0 for index, size in enumerate(sizes)] if places else self.smallest
        kept: Counter[Sort] = Counter()
        for sort, size in zip(self.sorts, sizes, strict=True):
            kept[sort] += size
        return dict(kept)

    def left(self, device: Device, *, is_cut: bool) -> int:
        """The bytes that slimming to *device* leaves; *is_cut* says whether that cuts the library."""
        sizes = sum(self.kept(device).values() if is_cut else self.sizes)
        return sizes + self.frame if sizes or not self.is_alone else 0

    @property
    def _offers(self) -> tuple[GpuOffer, ...]:
        return tuple(GpuOffer(sort.code, sort.arch) for sort in self.sorts)


class GpuCode(Struct, frozen=True):
    """All GPU code of one library; *loose* is what no container holds, by section; *cudart* as in `DeviceCode`."""

    stacks: tuple[Stack, ...] = ()
    pinned: tuple[Pinned, ...] = ()
    notes: tuple[str, ...] = ()
    loose: tuple[tuple[str, int], ...] = ()
    cudart: Dotted | None = ANY_DRIVER

    @classmethod
    def of(cls, code: DeviceCode) -> Self:
        """*code* without its places in the file, so that the file can be closed."""
        chosen_from = {container.span for container in offered(code.containers)}
        stacks: dict[tuple[object, ...], list[Container]] = {}
        for container in code.containers:
            sorts = tuple(Sort.of(entry, container.section) for entry in _code(container))
            key = (
                container.section,
                sorts,
                container.why_pinned,
                container.is_filler,
                container.span in chosen_from,
            )
            stacks.setdefault(key, []).append(container)
        loose: Counter[str] = Counter()
        for blob in code.blobs:
            loose[blob.section] += len(blob.span)
        summed = (_stack(containers, is_offered=bool(key[-1])) for key, containers in stacks.items())
        return cls(tuple(summed), tuple(_pinned(code)), code.notes, tuple(loose.items()), code.cudart)

    @classmethod
    def alone(cls, file: DeviceFile, size: int) -> Self:
        sort = Sort(file.vendor, "", file.arch, file.kind, file.offer.code, file.compression)
        stack = Stack(
            "",
            (sort,),
            file.trouble,
            not file.trouble,
            1,
            0,
            (size,),
            (size,),
            (0,),
            (file.driver,),
            is_alone=True,
            others=file.others,
        )
        return cls((stack,), (Pinned("", size, 1, file.trouble),) if file.trouble else ())

    @classmethod
    def contained(cls, container: Container, size: int) -> Self:
        """*container*, a file of *size* bytes, which entries share if it is compressed as a whole."""
        code = cls.of(DeviceCode((container,)))
        inner = len(container.span)
        stacks = [replace(stack, smallest=(0,) * len(stack.sizes), is_alone=True) for stack in code.stacks]
        if inner == size:
            return replace(code, stacks=tuple(stacks))
        compressed = []
        for stack in stacks:
            sizes = tuple(part * size // inner for part in stack.sizes)
            sorts = tuple(replace(sort, compression=Compression.ZSTD) for sort in stack.sorts)
            compressed.append(replace(stack, sorts=sorts, frame=size - sum(sizes), sizes=sizes))
        return replace(code, stacks=tuple(compressed), pinned=())

    @classmethod
    def together(cls, codes: Iterable[Self]) -> Self:
        stacks: dict[tuple[object, ...], list[Stack]] = {}
        reasons: dict[tuple[str, str], list[Pinned]] = {}
        for code in codes:
            for stack in code.stacks:
                key = (stack.sorts, stack.why_pinned, stack.is_filler, stack.is_offered, stack.others)
                stacks.setdefault(key, []).append(stack)
            for pinned in code.pinned:
                reasons.setdefault((pinned.section, pinned.why), []).append(pinned)
        return cls(
            tuple(map(_added, stacks.values())),
            tuple(
                Pinned(section, sum(pinned.size for pinned in group), sum(pinned.count for pinned in group), why)
                for (section, why), group in reasons.items()
            ),
        )

    def __bool__(self) -> bool:
        return bool(self.stacks or self.loose)

    @property
    def size(self) -> int:
        """Bytes of GPU code, with headers of containers, and with what no container holds."""
        return sum(stack.frame + sum(stack.sizes) for stack in self.stacks) + sum(size for _, size in self.loose)

    @property
    def containers(self) -> int:
        return sum(stack.count for stack in self.stacks)

    @property
    def entries(self) -> int:
        return sum(stack.count * len(stack.sorts) for stack in self.stacks)

    @property
    def portions(self) -> tuple[Portion, ...]:
        portions: dict[Sort, Portion] = {}
        for stack in self.stacks:
            for sort, size, uncompressed in zip(stack.sorts, stack.sizes, stack.uncompressed, strict=True):
                before = portions.get(sort, Portion(sort, 0, 0, 0))
                portions[sort] = Portion(
                    sort,
                    before.entries + stack.count,
                    before.size + size,
                    before.uncompressed_size + uncompressed,
                )
        order = sorted(portions, key=lambda sort: (sort.vendor, sort.section, arch_order(sort.arch), sort.kind))
        return tuple(portions[sort] for sort in order)

    def is_cut_for(self, device: Device) -> bool:
        """Whether slimming to *device* may cut the library: one with nothing for it stays whole."""
        stacks = [stack for stack in self.stacks if stack.is_for(type(device)) and not stack.is_alone]
        return not stacks or any(stack.serves(device) for stack in stacks)

    def shares(self, devices: Sequence[Device]) -> dict[Sort, list[tuple[int, int, int, int, int]]]:
        """What any choice among *devices* leaves of each sort: bytes, smallest entries, and three sets of devices.

        The sets have a bit for each device: those that need it, those that need some of its container, and those whose
        choice cuts the container. Without any of the last all bytes stay; without any of the second the smallest
        entries do.
        """
        are_cut = list(map(self.is_cut_for, devices))
        sizes: dict[Sort, Counter[tuple[int, int, int]]] = {}
        smallest: dict[Sort, Counter[tuple[int, int, int]]] = {}
        for stack in self.stacks:
            needed: dict[int, frozenset[int]] = {}  # the indices of sorts, by the device's bit
            for number, (device, is_cut) in enumerate(zip(devices, are_cut, strict=True)):
                if is_cut and (places := stack.places(device)) is not None:
                    needed[1 << number] = places
            served = sum(bit for bit, places in needed.items() if places)
            for index, sort in enumerate(stack.sorts):
                key = (sum(bit for bit, places in needed.items() if index in places), served, sum(needed))
                sizes.setdefault(sort, Counter())[key] += stack.sizes[index]
                smallest.setdefault(sort, Counter())[key] += stack.smallest[index]
        return {
            sort: [(size, smallest[sort][key], *key) for key, size in by_key.items()] for sort, by_key in sizes.items()
        }

    def coverage(self, device: Device) -> Coverage:
        """How it serves *device*, as far as the GPU's runtime chooses from it."""
        return Coverage.by((stack.fatbins for stack in self.stacks if stack.is_offered), device, cudart=self.cudart)

    def outlook(self, device: Device) -> Outlook:
        is_cut = self.is_cut_for(device)
        kept = sum(size for _, size in self.loose) + sum(stack.left(device, is_cut=is_cut) for stack in self.stacks)
        return Outlook(self.coverage(device), kept)


def devices(codes: Iterable[GpuCode]) -> tuple[Device, ...]:
    """Every GPU that some of *codes* runs on: NVIDIA's known ones, and AMD's in the code."""
    stacks = {stack.sorts: stack for code in codes for stack in code.stacks if stack.is_offered and not stack.is_filler}
    archs = {sort.arch for sorts in stacks for sort in sorts if sort.code is not GpuCodeKind.OTHER}
    numbers = {*ARCHITECTURES, *(arch.number for arch in archs if isinstance(arch, Arch))}
    nvidia: list[Device] = [
        device for device in map(Arch, sorted(numbers)) if any(stack.serves(device) for stack in stacks.values())
    ]
    targets = [arch.device for arch in archs if isinstance(arch, GpuTarget)]
    generic = {GpuTarget(member) for target in targets for member in GENERIC.get(target.processor, ())}
    amd = sorted({*generic, *(target for target in targets if target.processor in PROCESSORS)}, key=arch_order)
    return (*nvidia, *amd)


def _code(container: Container) -> tuple[GpuEntry, ...]:
    """The entries that are not empty: AMD's bundles also list the host, whose code is elsewhere."""
    return tuple(entry for entry in container.entries if entry.size)


def _stack(containers: list[Container], *, is_offered: bool) -> Stack:
    first, entries = containers[0], _code(containers[0])
    sizes, uncompressed, smallest = [0] * len(entries), [0] * len(entries), [0] * len(entries)
    drivers = [[entry.driver for entry in _code(container)] for container in containers]
    for container in containers:
        least = container.smallest
        for index, entry in enumerate(_code(container)):
            sizes[index] += entry.size
            uncompressed[index] += entry.uncompressed_size
            if entry is least:
                smallest[index] += entry.size
    return Stack(
        first.section,
        tuple(Sort.of(entry, first.section) for entry in entries),
        first.why_pinned,
        is_offered,
        len(containers),
        sum(len(container.span) for container in containers) - sum(sizes),
        tuple(sizes),
        tuple(uncompressed),
        tuple(smallest),
        tuple(newest(column) for column in zip(*drivers, strict=True)),
        is_filler=first.is_filler,
    )


def _added(stacks: Sequence[Stack]) -> Stack:
    columns = zip(*((stack.sizes, stack.uncompressed, stack.smallest) for stack in stacks), strict=True)
    sizes, uncompressed, smallest = (tuple(map(sum, zip(*column, strict=True))) for column in columns)
    return replace(
        stacks[0],
        count=sum(stack.count for stack in stacks),
        frame=sum(stack.frame for stack in stacks),
        sizes=sizes,
        uncompressed=uncompressed,
        smallest=smallest,
        drivers=tuple(map(newest, zip(*(stack.drivers for stack in stacks), strict=True))),
    )


def _pinned(code: DeviceCode) -> Iterator[Pinned]:
    """What slimming cannot cut by section and reason, in the order of the file."""
    sizes: dict[tuple[str, str], list[int]] = {}
    for pinned in code.pinned:
        why = pinned.why_pinned or "" if isinstance(pinned, Container) else pinned.what
        sizes.setdefault((pinned.section, why), []).append(len(pinned.span))
    for (section, why), group in sizes.items():
        yield Pinned(section, sum(group), len(group), why)
