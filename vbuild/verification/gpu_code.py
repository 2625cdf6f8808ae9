"""Check that the GPU code in a wheel serves the GPUs that its variant claims.

NN_real        machine code for that GPU; a library without it is an error unless another of the project's own has it
M0_virtual     PTX that a driver can compile for GPUs of major version M
lower bound    no older than the oldest driver that takes what serves the GPUs claimed
gfx942         code that runs on this processor of AMD, in whatever mode; a library without it as with NN_real

The values are those of NVIDIA's variant provider and of uv: a GPU of 8.6 asks for 86_real ... 80_real and 80_virtual.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from vbuild.errors import HardwareError
from vbuild.gpu_code.coverage import Coverage, Fatbin, Runs, device_named, newest
from vbuild.gpu_code.model import DeviceCode, GpuEntry, Vendor, offered
from vbuild.gpu_code.survey import DEVICE_SECTIONS, with_fillers
from vbuild.hardware.architectures import PROCESSORS, Arch, Device, GpuTarget
from vbuild.hardware.driver import ANY_DRIVER, Dotted
from vbuild.hardware.gpu import GpuCodeKind, arch_order
from vbuild.sbom.model import GpuCut
from vbuild.variants.model import Variant
from vbuild.verification.model import Finding, LibraryGpus, Severity, VerifyRule, is_grafted

_ARCH, _LOWER_BOUND = (Vendor.NVIDIA, "sm_arch"), (Vendor.NVIDIA, "cuda_version_lower_bound")
_GFX = (Vendor.AMD, "gfx_arch")
_VALUE = re.compile(r"(?P<number>\d{2,3})_(?P<kind>real|virtual)", re.ASCII)


class GpuClaim(Struct, frozen=True):
    """The GPUs that a variant names: by machine code, by PTX, AMD's, and the oldest driver."""

    real: tuple[Arch, ...] = ()
    virtual: tuple[Arch, ...] = ()
    lower_bound: Dotted | None = None
    targets: tuple[GpuTarget, ...] = ()

    @classmethod
    def of(cls, variant: Variant) -> tuple[Self, tuple[Finding, ...]]:
        """The claim of *variant*, and a finding for each value that no installer asks for."""
        findings: list[Finding] = []
        archs: dict[str, list[Arch]] = {"real": [], "virtual": []}
        targets: list[GpuTarget] = []
        lower_bound = None
        for prop in variant.properties:
            if (prop.namespace, prop.feature) == _LOWER_BOUND:
                try:
                    lower_bound = Dotted.parse(prop.value)
                except HardwareError as error:
                    findings.append(Finding(Severity.ERROR, VerifyRule.GPU_CLAIM, (), f"{prop}: {error}"))
            elif (prop.namespace, prop.feature) == _GFX:
                if prop.value in PROCESSORS:
                    targets.append(GpuTarget(prop.value))
                else:
                    text = f"{prop} matches no GPU; expected gfx90a, gfx942 ..."
                    findings.append(Finding(Severity.ERROR, VerifyRule.GPU_CLAIM, (), text))
            elif (prop.namespace, prop.feature) == _ARCH:
                if message := _mistaken(prop.value):
                    findings.append(Finding(Severity.ERROR, VerifyRule.GPU_CLAIM, (), f"{prop} {message}"))
                else:
                    number, _, kind = prop.value.partition("_")
                    archs[kind].append(Arch(int(number)))
        real, virtual = (tuple(sorted(archs[kind])) for kind in ("real", "virtual"))
        return cls(real, virtual, lower_bound, tuple(sorted(targets, key=arch_order))), tuple(findings)

    @property
    def values(self) -> tuple[str, ...]:
        kinds = (f"{arch.number}_{kind}" for kind in ("real", "virtual") for arch in getattr(self, kind))
        return (*kinds, *map(str, self.targets))

    @property
    def devices(self) -> frozenset[Device]:
        return frozenset({*self.real, *self.virtual, *self.targets})


def _mistaken(value: str) -> str | None:
    if not (match := _VALUE.fullmatch(value)):
        return "matches no GPU; expected 90_real, 90_virtual ..."
    if match["kind"] == "virtual" and not match["number"].endswith("0"):
        return f"matches no GPU; expected {match['number'][:-1]}0_virtual, which is for {match['number'][:-1]}.x"
    return None


class LibraryCode(Struct, frozen=True):
    """The GPU code of one library: what its *fatbins* offer, alike ones as one; *cudart* as in `DeviceCode`.

    *beside* is code that only the library reads, *cut_to* are the GPUs that it was slimmed to.
    """

    fatbins: tuple[Fatbin, ...]
    machine: tuple[str, ...]
    ptx: tuple[str, ...]
    containers: int
    damaged: tuple[str, ...]
    notes: tuple[str, ...]
    beside: tuple[str, ...] = ()
    cudart: Dotted | None = ANY_DRIVER
    cut_to: tuple[Device, ...] = ()

    @classmethod
    def of(cls, code: DeviceCode, cut: GpuCut | None = None) -> Self:
        """*code*, which went through *cut* if the bill of materials says so."""
        cut = cut or GpuCut()
        code = with_fillers(code, cut.fillers)
        containers = offered(code.containers)
        entries = [entry for container in containers if not container.is_filler for entry in container.entries]
        spans = {container.span for container in containers}
        others = [entry for container in code.containers if container.span not in spans for entry in container.entries]
        alike: dict[Fatbin, list[int]] = {}
        for container in containers:
            alike.setdefault(replace(Fatbin.of(container), size=0), []).append(len(container.span))
        return cls(
            tuple(replace(fatbin, size=sum(sizes), count=len(sizes)) for fatbin, sizes in alike.items()),
            _names(entries, GpuCodeKind.MACHINE),
            _names(entries, GpuCodeKind.PTX),
            len(containers),
            tuple(
                f"{blob.what} at {blob.span.start:#x} in {blob.section}"
                for blob in code.blobs
                if blob.section in DEVICE_SECTIONS
            ),
            code.notes,
            (
                *_names(others, GpuCodeKind.MACHINE),
                *(f"PTX for {name}" for name in _names(others, GpuCodeKind.PTX)),
            ),
            code.cudart,
            tuple(map(device_named, cut.cut_to)),
        )

    def __bool__(self) -> bool:
        return bool(self.containers or self.damaged)

    @property
    def devices(self) -> frozenset[Device]:
        offers = {offer for fatbin in self.fatbins if not fatbin.is_filler for offer in fatbin.offers}
        archs = {offer.arch for offer in offers if offer.code is not GpuCodeKind.OTHER}
        known = (arch.device for arch in archs if isinstance(arch, Arch) or arch.processor in PROCESSORS)
        return frozenset((*known, *self.cut_to))

    def coverage(self, device: Device) -> Coverage:
        return Coverage.by(self.fatbins, device, cudart=self.cudart)

    def by_ptx(self, device: Arch) -> Coverage:
        """How its PTX alone serves *device*."""
        return Coverage.by(self.fatbins, device, cudart=self.cudart, by_ptx=True)


def _names(entries: Iterable[GpuEntry], code: GpuCodeKind) -> tuple[str, ...]:
    archs = {entry.arch for entry in entries if entry.code is code}
    numbered = sorted(arch for arch in archs if isinstance(arch, Arch))
    return (*map(str, numbered), *sorted(str(arch) for arch in archs if not isinstance(arch, Arch)))


class GpuCodeCheck:
    def __init__(self, libraries: Mapping[str, LibraryCode], claim: GpuClaim) -> None:
        self._libraries = {path: code for path, code in libraries.items() if code}
        self._claim = claim
        devices = {device for code in self._libraries.values() for device in code.devices}
        self._devices = sorted(devices | claim.devices, key=arch_order)
        self._served = {
            path: {device: served for device in self._devices if (served := code.coverage(device)).total.fatbins}
            for path, code in self._libraries.items()
            if code.fatbins
        }
        # libraries that a repair tool added may be for more GPUs than the project's own code
        judged = [path for path in self._served if not is_grafted(path)] or list(self._served)
        self._native = {
            device for path in judged for device, served in self._served[path].items() if served.machine.fatbins
        }

    def libraries(self) -> Iterator[LibraryGpus]:
        for path, code in self._libraries.items():
            served = tuple(self._served.get(path, {}).values())
            yield LibraryGpus(path, code.containers, code.machine, code.ptx, served, code.notes, code.beside)

    def findings(self) -> Iterator[Finding]:
        for path, code in self._libraries.items():
            if code.damaged:
                message = f"GPU code that cannot be read, in {len(code.damaged)} places: {code.damaged[0]} first"
                yield Finding(Severity.WARNING, VerifyRule.GPU_CODE, (path,), message)
        devices = {device for served in self._served.values() for device in served}
        if not devices.issuperset(self._claim.devices):
            message = f"no GPU code: nothing in it is for {', '.join(self._claim.values)}"
            yield Finding(Severity.WARNING, VerifyRule.GPU_CLAIM, (), message)
        for path, served in self._served.items():
            code = self._libraries[path]
            for device in (*self._claim.real, *self._claim.targets):
                if device in served:
                    yield from self._real_findings(path, served[device], code)
            for device in self._claim.virtual:
                if device in served:
                    yield from _virtual_findings(path, device, code.by_ptx(device))
            yield from self._driver_findings(path, code)

    def _driver_findings(self, path: str, code: LibraryCode) -> Iterator[Finding]:
        claimed = [code.coverage(device) for device in self._claim.real]
        claimed += [code.by_ptx(device) for device in self._claim.virtual if device not in self._claim.real]
        oldest = newest(served.driver for served in claimed if served.served.fatbins)
        bound = self._claim.lower_bound
        if oldest is None:
            message = "cannot tell which driver its GPU code needs, so the claimed one is not checked"
            yield Finding(Severity.NOTE, VerifyRule.GPU_DRIVER, (path,), message)
        elif bound and bound < oldest:
            text = f"needs the driver of CUDA {oldest} or a newer one; the variant admits that of CUDA {bound}"
            yield Finding(Severity.ERROR, VerifyRule.GPU_DRIVER, (path,), text)
        elif claimed and not bound and oldest != ANY_DRIVER:
            text = f"needs the driver of CUDA {oldest} or a newer one; the variant claims no cuda_version_lower_bound"
            yield Finding(Severity.WARNING, VerifyRule.GPU_DRIVER, (path,), text)

    def _real_findings(self, path: str, served: Coverage, code: LibraryCode) -> Iterator[Finding]:
        device, total, word = served.device, served.total.fatbins, served.word
        claim = f"{device.number}_real is claimed" if isinstance(device, Arch) else f"{device} is claimed"
        # some libraries are for some GPUs only, and are never loaded on others
        severity = Severity.WARNING if device in self._native else Severity.ERROR
        if served.runs in {Runs.NO, Runs.FOR_OTHERS}:
            archs = ", ".join((*code.machine, *(f"PTX for {name}" for name in code.ptx)))
            message = f"{claim}, but none of its {word}s ({total}) has code for {device}; they have {archs}"
            yield Finding(severity, VerifyRule.GPU_MISSING, (path,), message)
            return
        if served.jit.fatbins:
            jit = served.jit.fatbins
            message = f"{claim}, but {jit} of {total} {word}s have only PTX for {device}, compiled at first use"
            yield Finding(severity, VerifyRule.GPU_JIT, (path,), message)
        if served.holes.fatbins:
            message = f"{claim}, but only {served.share} have code for it: kernels of the others do not run there"
            yield Finding(Severity.WARNING, VerifyRule.GPU_MISSING, (path,), message)
        if served.specific.fatbins:
            count = served.specific.fatbins
            message = f"{count} of {total} {word}s are for other architectures alone, among which host code chooses"
            yield Finding(Severity.NOTE, VerifyRule.GPU_MISSING, (path,), message)


def _virtual_findings(path: str, device: Arch, ptx: Coverage) -> Iterator[Finding]:
    total, value = ptx.total.fatbins, f"{device.number}_virtual"
    if not ptx.jit.fatbins:
        message = f"{value} is claimed, but none of its fatbins ({total}) has PTX that runs on {device}"
        yield Finding(Severity.ERROR, VerifyRule.GPU_PTX, (path,), message)
    elif missing := total - ptx.jit.fatbins:
        message = f"{missing} of {total} fatbins have no PTX that runs on {device}"
        yield Finding(Severity.NOTE, VerifyRule.GPU_PTX, (path,), message)
