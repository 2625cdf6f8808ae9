"""How GPU code serves a GPU: which of its fatbins have machine code, PTX or nothing for it, and the oldest driver.

    machine    the driver takes machine code
    jit        the driver compiles PTX; AMD's runtime SPIR-V
    specific   nothing, but all that it has is for other architectures alone (90a, 100f): host code chooses among those
    holes      nothing: a kernel from there fails with "no kernel image is available for execution on the device"

A fatbin that slimming left one entry of, for it needs one, is a hole for every GPU. AMD's fatbins are called bundles.

The driver has to take what it chooses from each fatbin, and the CUDA that the library links. What that takes, the
entries say: toolkit, version of PTX, compression. https://docs.nvidia.com/deploy/cuda-compatibility/
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple, Self

from msgspec import Struct

from vbuild.files.wording import counted, mb
from vbuild.gpu_code.model import Container, GpuEntry
from vbuild.hardware.architectures import Arch, Device, GpuTarget
from vbuild.hardware.driver import ANY_DRIVER, Dotted
from vbuild.hardware.gpu import GpuCodeKind, GpuOffer, GpuRequest, Ptx, Service, kept_offers, service

_SM, _ANY = "sm_", "any"
_WORTH, _WHOLE = 100_000, 10_000_000  # bytes that are worth a word, and worth no fraction


class Runs(StrEnum):
    """Whether GPU code runs on a GPU: as machine code, or partly or all compiled by the driver; some of it, or none."""

    NATIVELY = "natively"
    PARTLY_JIT = "partly by JIT"
    JIT = "by JIT"
    IN_PART = "in part"
    FOR_OTHERS = "for others"
    NO = "no"


class Amount(NamedTuple):
    """So many fatbins, and their bytes."""

    fatbins: int = 0
    size: int = 0

    def plus(self, other: Self) -> Self:
        return type(self)(self.fatbins + other.fatbins, self.size + other.size)

    @property
    def mb(self) -> str:
        """The bytes in MB, without a fraction from 10 MB on."""
        return mb(self.size) if self.size < _WHOLE else f"{self.size / 1e6:.0f}"


class Fatbin(Struct, frozen=True):
    """What *count* fatbins of *size* bytes together offer, and the oldest driver for each offer (`GpuEntry.driver`)."""

    offers: tuple[GpuOffer, ...]
    drivers: tuple[Dotted | None, ...]
    size: int
    count: int = 1
    is_filler: bool = False

    @classmethod
    def of(cls, container: Container, kept: Iterable[GpuEntry] | None = None) -> Self:
        """What *container* offers, or what it will with the *kept* entries alone."""
        entries = [entry for entry in (container.entries if kept is None else kept) if entry.size]
        return cls(
            tuple(entry.offer for entry in entries),
            tuple(entry.driver for entry in entries),
            len(container.span),
            is_filler=container.is_filler,
        )

    def is_for(self, vendor: type[Device]) -> bool:
        """Whether it has, or had, code for GPUs of *vendor*."""
        kinds = (offer.code for offer in self.offers if isinstance(offer.arch, vendor))
        return any(self.is_filler or code is not GpuCodeKind.OTHER for code in kinds)

    def coverage(self, device: Device, *, by_ptx: bool = False) -> "Coverage":
        amount = Amount(self.count, self.size)
        left_out = {GpuCodeKind.OTHER, *([GpuCodeKind.MACHINE] if by_ptx else [])}
        usable = [index for index, offer in enumerate(self.offers) if offer.code not in left_out and not self.is_filler]
        offers = [self.offers[index] for index in usable]
        request = GpuRequest(device) if isinstance(device, Arch) else device
        driver = newest(self.drivers[usable[place]] for place in kept_offers(offers, request, ptx=Ptx.AUTO))
        match service(offers, device):
            case Service.MACHINE:
                return Coverage(device, machine=amount, driver=driver)
            case Service.JIT:
                return Coverage(device, jit=amount, driver=driver)
        archs = [offer.arch for offer in self.offers if offer.code is not GpuCodeKind.OTHER]
        if not self.is_filler and all(isinstance(arch, Arch) and arch.suffix for arch in archs):
            return Coverage(device, specific=amount)
        return Coverage(device, holes=amount)


class Coverage(Struct, frozen=True):
    """How the fatbins of a library, or of several, serve *device*.

    *driver* is the CUDA version of the oldest driver that takes all of it that serves, whatever the GPU; None if that
    cannot be told.
    """

    device: Device
    machine: Amount = Amount()
    jit: Amount = Amount()
    specific: Amount = Amount()
    holes: Amount = Amount()
    driver: Dotted | None = ANY_DRIVER

    @staticmethod
    def by(
        fatbins: Iterable[Fatbin], device: Device, *, cudart: Dotted | None = ANY_DRIVER, by_ptx: bool = False
    ) -> "Coverage":
        """How *fatbins* of a library serve *device*, other vendors' left out, with PTX alone if *by_ptx*.

        *cudart* is the oldest driver for the CUDA that the library links.
        """
        total = Coverage(device, driver=cudart)
        for fatbin in fatbins:
            if fatbin.is_for(type(device)):
                total += fatbin.coverage(device, by_ptx=by_ptx)
        return total

    def __add__(self, other: Self) -> Self:
        return type(self)(
            self.device,
            self.machine.plus(other.machine),
            self.jit.plus(other.jit),
            self.specific.plus(other.specific),
            self.holes.plus(other.holes),
            newest([self.driver, other.driver]),
        )

    @property
    def served(self) -> Amount:
        return self.machine.plus(self.jit)

    @property
    def total(self) -> Amount:
        return self.served.plus(self.specific).plus(self.holes)

    @property
    def oldest_driver(self) -> Dotted | None:
        """That on *device*, which a driver has to know, too; None if nothing serves it, or that cannot be told."""
        if not self.served.fatbins:
            return None
        toolkits = self.device.toolkits if isinstance(self.device, Arch) else None
        return newest([self.driver, toolkits[0] if toolkits else ANY_DRIVER])

    @property
    def runs(self) -> Runs | None:
        """None if there is no code for GPUs of this vendor."""
        if not self.served.fatbins:
            return Runs.NO if self.holes.fatbins else Runs.FOR_OTHERS if self.specific.fatbins else None
        if self.holes.fatbins:
            return Runs.IN_PART
        if self.jit.fatbins:
            return Runs.PARTLY_JIT if self.machine.fatbins else Runs.JIT
        return Runs.NATIVELY

    @property
    def how(self) -> str:
        """How it runs, in a column of 14: "natively", "20 of 87" if in part."""
        runs = self.runs
        return f"{self.served.fatbins} of {self.total.fatbins}" if runs is Runs.IN_PART else runs or ""

    @property
    def word(self) -> str:
        return "fatbin" if isinstance(self.device, Arch) else "bundle"

    @property
    def share(self) -> str:
        """What serves: "all of its GPU code", "20 of 87 fatbins (9 of 203 MB)" or "none"."""
        served, total = self.served, self.total
        if not served.fatbins:
            return "none"
        if served.fatbins == total.fatbins:
            return "all of its GPU code"
        if not self.holes.fatbins:
            return f"all of its GPU code but {counted(self.specific.fatbins, self.word)} for other architectures alone"
        size = f" ({served.mb} of {total.mb} MB)" if total.size >= _WORTH else ""
        return f"{served.fatbins} of {total.fatbins} {self.word}s{size}"

    def __str__(self) -> str:
        """The share, and how much of that the driver compiles."""
        if not self.jit.fatbins:
            return self.share
        return f"{self.share}, {f'{counted(self.jit.fatbins, self.word)} ' if self.machine.fatbins else ''}by JIT"

    def data(self) -> dict[str, Any]:
        kinds = {"machine": self.machine, "jit": self.jit, "specific": self.specific, "nothing": self.holes}
        return {
            "gpu": str(self.device),
            "runs": self.runs and str(self.runs),
            **{name: amount.fatbins for name, amount in kinds.items()},
            "bytes": {name: amount.size for name, amount in kinds.items()},
            "driver": driver_data(self.driver),
        }

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `data`."""
        sizes = data["bytes"]
        amounts = (Amount(data[kind], sizes[kind]) for kind in ("machine", "jit", "specific", "nothing"))
        machine, jit, specific, holes = amounts
        return cls(
            device_named(data["gpu"]),
            machine,
            jit,
            specific,
            holes,
            driver=ANY_DRIVER if data["driver"] == _ANY else data["driver"] and Dotted.parse(data["driver"]),
        )


def device_named(name: str) -> Device:
    """The GPU that `str` of it named; none is refused, as it may be newer than vbuild."""
    number = name.removeprefix(_SM)
    return Arch(int(number)) if number != name and number.isdecimal() else GpuTarget(name)


def driver_data(driver: Dotted | None) -> str | None:
    """As JSON has it: "any" if each will do, None if that cannot be told."""
    return _ANY if driver == ANY_DRIVER else driver and str(driver)


def newest(drivers: Iterable[Dotted | None]) -> Dotted | None:
    """The newest of *drivers*; None if one of them cannot be told."""
    known = [*drivers]
    return None if None in known else max(filter(None, known), default=ANY_DRIVER)
