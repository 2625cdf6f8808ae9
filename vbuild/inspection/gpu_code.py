"""The GPU code of one library, summed up: what there is for which GPU, and what one GPU alone would need of it.

DeviceCode   every container with every entry, at its place in the file
Stack        the containers that hold the same sorts of entries, as if they were one: a thousand become a dozen
Portion      bytes and entries of one sort, for a table
Outlook      one GPU in front of it: served or not, and the bytes that are left when the others' code goes
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import groupby
from typing import Any, Self

from msgspec import Struct, field
from msgspec.structs import replace

from vbuild.gpu_code.device_file import DeviceFile
from vbuild.gpu_code.model import Compression, Container, DeviceCode, GpuEntry, Vendor, offered
from vbuild.hardware.architectures import ARCHITECTURES, GENERIC, PROCESSORS, Arch, Device, GpuTarget
from vbuild.hardware.driver import Dotted
from vbuild.hardware.gpu import GpuCodeKind, GpuOffer, GpuRequest, Ptx, Service, arch_order, kept_offers, service


class Sort(Struct, frozen=True):
    """What an entry is, wherever it stands: *kind* is the vendor's word for it."""

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
    """All GPU code of one sort in a library: entries, bytes as stored with headers, and bytes without compression."""

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


class Runs(StrEnum):
    """Whether GPU code runs on a GPU: all of it that serves it as machine code, some or all compiled by the driver."""

    NATIVELY = "natively"
    PARTLY_JIT = "partly by JIT"
    JIT = "by JIT"
    NO = "no"


class Outlook(Struct, frozen=True):
    """GPU code seen from *device*: in how many containers it finds machine code, PTX alone, and nothing.

    *kept* is the size in bytes of what it could be given by its driver, what cannot be taken out included; slimming to
    this GPU alone leaves that.
    """

    device: Device
    machine: int = 0
    jit: int = 0
    nothing: int = 0
    kept: int = 0

    def __add__(self, other: Self) -> Self:
        return type(self)(
            self.device,
            self.machine + other.machine,
            self.jit + other.jit,
            self.nothing + other.nothing,
            self.kept + other.kept,
        )

    @property
    def runs(self) -> Runs:
        if self.jit:
            return Runs.PARTLY_JIT if self.machine else Runs.JIT
        return Runs.NATIVELY if self.machine else Runs.NO

    def data(self) -> dict[str, Any]:
        return {
            "gpu": str(self.device),
            "runs": str(self.runs),
            "containers": {"machine": self.machine, "jit": self.jit, "nothing": self.nothing},
            "slimmed_bytes": self.kept,
        }


class Pinned(Struct, frozen=True):
    """GPU code in one section that slimming leaves alone, and why."""

    section: str
    size: int = field(name="bytes")
    count: int
    why: str


class Stack(Struct, frozen=True):
    """Containers that hold entries of the same *sorts* in the same order, their sizes in bytes added up.

    *sizes*, *uncompressed* and *smallest* have a number for each sort; *smallest* counts only the entries that are the
    smallest of their container. *frame* is what the containers take up besides their entries. *is_offered* says that
    the GPU's runtime chooses from them, *is_alone* that each is a file, which goes if nothing in it is for a GPU; *ptx*
    is the newest version of the PTX in them.
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
    is_alone: bool = False
    ptx: Dotted | None = None
    others: tuple[GpuOffer, ...] = ()

    def service(self, device: Device) -> Service:
        """How each of the containers serves *device*."""
        return service(self._offers, device)

    @property
    def whole(self) -> dict[Sort, int]:
        """The bytes of each sort."""
        found: Counter[Sort] = Counter()
        for sort, size in zip(self.sorts, self.sizes, strict=True):
            found[sort] += size
        return dict(found)

    def is_for(self, vendor: type) -> bool:
        """Whether the GPU's runtime chooses from code here for GPUs of the kind *vendor*."""
        machine = (offer.arch for offer in self._offers if offer.code is not GpuCodeKind.OTHER)
        return self.is_offered and any(isinstance(arch, vendor) for arch in machine)

    def places(self, device: Device) -> frozenset[int] | None:
        """The places of the sorts that *device* needs; None if all stay whatever it needs.

        That is so of pinned containers, and of those for another vendor's GPUs. Of a file of its own in which nothing
        is for *device* nothing stays; of one that cannot be cut all does otherwise.
        """
        if not any(isinstance(offer.arch, type(device)) for offer in self._offers):
            return None
        if self.why_pinned is not None and not self.is_alone:
            return None
        request = device if isinstance(device, GpuTarget) else GpuRequest(device)
        needed = kept_offers([*self._offers, *self.others], request, ptx=Ptx.AUTO)
        if self.others and not needed:  # none of the files is for it: it may be given any
            return None
        if not self.is_alone:
            return needed
        for_gpus = {place for place, sort in enumerate(self.sorts) if sort.code is not GpuCodeKind.OTHER}
        if for_gpus and not for_gpus & needed:
            return frozenset()
        return needed if self.why_pinned is None else frozenset(range(len(self.sorts)))

    def kept(self, device: Device) -> dict[Sort, int]:
        """The bytes of each sort that slimming to *device* alone leaves.

        A container that has nothing for it keeps its smallest entry, and one for another vendor's GPUs all.
        """
        sizes: Sequence[int] = self.sizes
        if (places := self.places(device)) is not None:
            sizes = [size if place in places else 0 for place, size in enumerate(sizes)] if places else self.smallest
        found: Counter[Sort] = Counter()
        for sort, size in zip(self.sorts, sizes, strict=True):
            found[sort] += size
        return dict(found)

    def outlook(self, device: Device, *, is_cut: bool = True) -> Outlook:
        """How *device* fares with it; where the library *is_cut* for it at all."""
        sizes = sum(self.kept(device).values() if is_cut else self.sizes)
        kept = sizes + self.frame if sizes or not self.is_alone else 0
        if not self.is_offered:
            return Outlook(device, kept=kept)
        served = self.service(device)
        return Outlook(
            device,
            machine=self.count * (served is Service.MACHINE),
            jit=self.count * (served is Service.JIT),
            nothing=self.count * (served is Service.NONE),
            kept=kept,
        )

    @property
    def _offers(self) -> tuple[GpuOffer, ...]:
        return tuple(GpuOffer(sort.code, sort.arch) for sort in self.sorts)


class GpuCode(Struct, frozen=True):
    """All GPU code of one library."""

    stacks: tuple[Stack, ...] = ()
    pinned: tuple[Pinned, ...] = ()
    notes: tuple[str, ...] = ()
    loose: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, code: DeviceCode) -> Self:
        """*code* without its places in the file, so that the file can be closed."""
        chosen_from = {container.span for container in offered(code.containers)}
        stacks: dict[tuple[object, ...], list[Container]] = {}
        for container in code.containers:
            sorts = tuple(Sort.of(entry, container.section) for entry in _code(container))
            key = (container.section, sorts, container.why_pinned, container.span in chosen_from)
            stacks.setdefault(key, []).append(container)
        loose: Counter[str] = Counter()
        for blob in code.blobs:
            loose[blob.section] += len(blob.span)
        found = (_stack(same, is_offered=bool(key[-1])) for key, same in stacks.items())
        return cls(tuple(found), tuple(_pinned(code)), code.notes, tuple(loose.items()))

    @classmethod
    def alone(cls, file: DeviceFile, size: int) -> Self:
        """The one entry that *file* is, of *size* bytes."""
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
            is_alone=True,
            ptx=file.version,
            others=file.others,
        )
        return cls((stack,), (Pinned("", size, 1, file.trouble),) if file.trouble else ())

    @classmethod
    def contained(cls, container: Container, size: int) -> Self:
        """*container*, a file of *size* bytes; of one in a frame each entry takes its share of these."""
        code = cls.of(DeviceCode((container,)))
        inner = len(container.span)
        if inner == size:
            whole = (replace(stack, smallest=(0,) * len(stack.sizes), is_alone=True) for stack in code.stacks)
            return replace(code, stacks=tuple(whole))
        stacks = (
            replace(
                stack,
                sorts=tuple(replace(sort, compression=Compression.ZSTD) for sort in stack.sorts),
                frame=size - sum(part * size // inner for part in stack.sizes),
                sizes=tuple(part * size // inner for part in stack.sizes),
                smallest=(0,) * len(stack.sizes),
                is_alone=True,
            )
            for stack in code.stacks
        )
        return replace(code, stacks=tuple(stacks), pinned=())

    @classmethod
    def together(cls, codes: Iterable[Self]) -> Self:
        """The code in *codes*, which are files of their own, as if it were one's: each goes as a whole."""
        stacks: dict[tuple[object, ...], list[Stack]] = {}
        pinned: dict[tuple[str, str], list[Pinned]] = {}
        for code in codes:
            for stack in code.stacks:
                key = (stack.sorts, stack.why_pinned, stack.is_offered, stack.others)
                stacks.setdefault(key, []).append(stack)
            for one in code.pinned:
                pinned.setdefault((one.section, one.why), []).append(one)
        return cls(
            tuple(_added(same) for same in stacks.values()),
            tuple(
                Pinned(section, sum(one.size for one in same), sum(one.count for one in same), why)
                for (section, why), same in pinned.items()
            ),
        )

    def __bool__(self) -> bool:
        return bool(self.stacks or self.loose)

    @property
    def size(self) -> int:
        """Bytes of GPU code, headers of containers and what no container holds included."""
        return sum(stack.frame + sum(stack.sizes) for stack in self.stacks) + sum(size for _, size in self.loose)

    @property
    def containers(self) -> int:
        return sum(stack.count for stack in self.stacks)

    @property
    def entries(self) -> int:
        return sum(stack.count * len(stack.sorts) for stack in self.stacks)

    @property
    def portions(self) -> tuple[Portion, ...]:
        """What there is of each sort, by section, then architecture."""
        entries: Counter[Sort] = Counter()
        sizes: Counter[Sort] = Counter()
        uncompressed: Counter[Sort] = Counter()
        for stack in self.stacks:
            for place, sort in enumerate(stack.sorts):
                entries[sort] += stack.count
                sizes[sort] += stack.sizes[place]
                uncompressed[sort] += stack.uncompressed[place]
        order = sorted(entries, key=lambda sort: (sort.vendor, sort.section, arch_order(sort.arch), sort.kind))
        return tuple(Portion(sort, entries[sort], sizes[sort], uncompressed[sort]) for sort in order)

    def kept(self, device: Device) -> dict[Sort, int]:
        """The bytes of each sort that slimming to *device* alone leaves."""
        found: Counter[Sort] = Counter()
        is_cut = self.is_cut_for(device)
        for stack in self.stacks:
            found.update(stack.kept(device) if is_cut else stack.whole)
        return dict(found)

    def is_cut_for(self, device: Device) -> bool:
        """Whether slimming to *device* takes something: a library of which nothing serves it is left whole."""
        stacks = [stack for stack in self.stacks if stack.is_for(type(device)) and not stack.is_alone]
        return not stacks or any(stack.service(device) is not Service.NONE for stack in stacks)

    def shares(self, devices: Sequence[Device]) -> dict[Sort, list[tuple[int, int, int, int, int]]]:
        """What any choice among *devices* leaves of each sort: bytes, smallest entries, and three sets of devices.

        The sets have a bit for each device: those that need it, those that need something of its containers, and those
        by whose choice these are cut at all. If none of the last is chosen all bytes stay; if none of the second is,
        the smallest entries do.
        """
        cutting = list(map(self.is_cut_for, devices))
        found: dict[Sort, Counter[tuple[int, int, int]]] = {}
        least: dict[Sort, Counter[tuple[int, int, int]]] = {}
        for stack in self.stacks:
            all_places = [
                stack.places(device) if is_cut else None for device, is_cut in zip(devices, cutting, strict=True)
            ]
            cut = {1 << bit: places for bit, places in enumerate(all_places) if places is not None}
            served = sum(bit for bit, places in cut.items() if places)
            for place, sort in enumerate(stack.sorts):
                key = (sum(bit for bit, places in cut.items() if place in places), served, sum(cut))
                found.setdefault(sort, Counter())[key] += stack.sizes[place]
                least.setdefault(sort, Counter())[key] += stack.smallest[place]
        return {sort: [(size, least[sort][key], *key) for key, size in sizes.items()] for sort, sizes in found.items()}

    def outlook(self, device: Device) -> Outlook:
        """How *device* fares with it, in the containers that the GPU's runtime chooses from."""
        found = Outlook(device, kept=sum(size for _, size in self.loose))
        is_cut = self.is_cut_for(device)
        for stack in self.stacks:
            found += stack.outlook(device, is_cut=is_cut)
        return found


def devices(codes: Iterable[GpuCode]) -> tuple[Device, ...]:
    """Every GPU that some of the code in *codes* runs on: NVIDIA's by the table of those known, AMD's as named."""
    stacks = {stack.sorts: stack for code in codes for stack in code.stacks if stack.is_offered}
    archs = {sort.arch for sorts in stacks for sort in sorts if sort.code is not GpuCodeKind.OTHER}
    numbers = {*ARCHITECTURES, *(arch.number for arch in archs if isinstance(arch, Arch))}
    nvidia: list[Device] = [
        device
        for device in map(Arch, sorted(numbers))
        if any(stack.service(device) is not Service.NONE for stack in stacks.values())
    ]
    targets = [arch.device for arch in archs if isinstance(arch, GpuTarget)]
    several = {member for target in targets for member in GENERIC.get(target.processor, ())}
    amd = sorted({*map(GpuTarget, several), *(one for one in targets if one.processor in PROCESSORS)}, key=arch_order)
    return (*nvidia, *amd)


def _code(container: Container) -> tuple[GpuEntry, ...]:
    """The entries with something in them: AMD's bundles also list the host, which has its code elsewhere."""
    return tuple(entry for entry in container.entries if entry.size)


def _stack(containers: list[Container], *, is_offered: bool) -> Stack:
    first = containers[0]
    width = len(_code(first))
    sizes, uncompressed, smallest = [0] * width, [0] * width, [0] * width
    for container in containers:
        least = container.smallest
        for place, entry in enumerate(_code(container)):
            sizes[place] += entry.size
            uncompressed[place] += entry.uncompressed_size
            if entry is least:
                smallest[place] += entry.size
    return Stack(
        first.section,
        tuple(Sort.of(entry, first.section) for entry in _code(first)),
        first.why_pinned,
        is_offered,
        len(containers),
        sum(len(container.span) for container in containers) - sum(sizes),
        tuple(sizes),
        tuple(uncompressed),
        tuple(smallest),
        ptx=_newest(entry.version for container in containers for entry in container.entries),
    )


def _added(stacks: Sequence[Stack]) -> Stack:
    """The *stacks* of the same sorts as one."""
    columns = zip(*((stack.sizes, stack.uncompressed, stack.smallest) for stack in stacks), strict=True)
    sizes, uncompressed, smallest = (tuple(map(sum, zip(*column, strict=True))) for column in columns)
    return replace(
        stacks[0],
        count=sum(stack.count for stack in stacks),
        frame=sum(stack.frame for stack in stacks),
        sizes=sizes,
        uncompressed=uncompressed,
        smallest=smallest,
        ptx=_newest(stack.ptx for stack in stacks),
    )


def _newest(versions: Iterable[Dotted | None]) -> Dotted | None:
    return max(filter(None, versions), default=None)


def _pinned(code: DeviceCode) -> Iterator[Pinned]:
    """What stays whole, gathered by section and reason in the order of the file."""
    found = [
        (item.section, item.why_pinned or "" if isinstance(item, Container) else item.what, len(item.span))
        for item in code.pinned
    ]
    order = {key[:2]: place for place, key in reversed(list(enumerate(found)))}
    found.sort(key=lambda item: order[item[:2]])
    for (section, why), items in groupby(found, key=lambda item: item[:2]):
        sizes = [size for _, _, size in items]
        yield Pinned(section, sum(sizes), len(sizes), why)
