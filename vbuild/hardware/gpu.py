"""GPUs that are asked for: how people write them, and what of the code that is there a GPU needs.

    sm_90   9.0   90   90-real          GPUs of compute capability 9.0, and code for them
    sm_90a  90a   9.0a                  code that uses what only 9.0 has, and runs nowhere else
    sm_100f 100f                        code that uses what the family of 10.0 has
    sm_90+PTX   9.0+PTX   90+ptx        the same GPUs, and PTX: code that the driver compiles for later GPUs
    compute_90   90-virtual             PTX alone, where code is compiled; to what is cut, the same as sm_90+PTX
    H100   RTX 4090   L4+PTX            the same by a product's name (`vbuild.hardware.gpu_names`)

    gfx942   gfx90a:xnack-   MI300X     AMD's processors, in any mode or in one; no code is compiled for them here
    gfx11-generic                       each processor that such code runs on

What runs where is in `vbuild.hardware.architectures`.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from itertools import groupby
from typing import Any, NamedTuple, Self

from vbuild.errors import HardwareError
from vbuild.hardware.architectures import ARCHITECTURES, GENERIC, Arch, Device, GpuTarget
from vbuild.hardware.driver import Dotted, Nvidia, amd_gpus
from vbuild.hardware.gpu_names import architecture_of, similar_names

_REQUEST = re.compile(
    r"""
    (?P<prefix> sm_? | compute_? )?
    (?: (?P<major>\d{1,3}) \. (?P<minor>\d) | (?P<number>\d{1,4}) ) (?P<suffix>[af])?
    (?: [-_] (?P<kind>real|virtual) )? (?P<ptx> \+ptx )?
    """,
    re.VERBOSE | re.ASCII,
)
_SEPARATOR = re.compile(r"[,;]")
_PTX = re.compile(r"\s*\+ptx", re.IGNORECASE)
_NATIVE = "native"
_HEXADECIMAL = re.compile("[0-9a-f]{1,7}")
_NEAR = 4
_LEAST_PRODUCT = 1000  # from here on a number is that of a product, as in 4090


class GpuRequest(NamedTuple):
    """A GPU of NVIDIA that code is asked for: whether PTX is asked for, and machine code; one of them always is."""

    arch: Arch
    ptx: bool = False
    real: bool = True

    @classmethod
    def parse(cls, text: str) -> Self:
        """One item of a GPU list in any spelling; `HardwareError` for an architecture that does not exist."""
        named = _named(text)
        if isinstance(named, GpuTarget):
            raise HardwareError(f"{text!r} is one of AMD's GPUs, for which no code is compiled here; expected NVIDIA's")
        if named:
            return cls(named, bool(_PTX.search(text)))
        match = _matched(text)
        virtual = match["kind"] == "virtual" or (match["prefix"] or "").startswith("compute")
        if match["kind"] == "real" and (match["ptx"] or virtual):
            raise HardwareError(f"{text!r} is real and virtual at once; expected as in 90-real or 90-virtual")
        return cls(Arch(*_known(match)), virtual or bool(match["ptx"]), not virtual)

    def __str__(self) -> str:
        if not self.real:
            return f"compute_{self.arch.number}{self.arch.suffix}"
        return f"{self.arch}+PTX" if self.ptx else str(self.arch)

    @property
    def device(self) -> Arch:
        """The GPU meant: sm_90 where sm_90a was asked for."""
        return self.arch.device


@dataclass(frozen=True, slots=True)
class GpuList:
    """The GPUs that code is asked for, lowest first, each once: *requests* for NVIDIA's, and AMD's *targets*."""

    requests: tuple[GpuRequest, ...] = ()
    targets: tuple[GpuTarget, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """The GPUs of NVIDIA listed in *text* with comma, semicolon or space between them.

        `HardwareError` if there are none.
        """
        return cls.of(map(GpuRequest.parse, _listed(text)))

    @classmethod
    def asked(cls, text: str) -> Self:
        """As `parse`, of both vendors, where ``native`` stands for the GPUs of this machine.

        `HardwareError` if there are none.
        """
        items = _listed(text.replace(_NATIVE, ",".join(_here())) if _NATIVE in text else text)
        targets: set[GpuTarget] = set()
        others = []
        for item in items:
            if isinstance(named := _named(item), GpuTarget):
                targets |= {GpuTarget(each) for each in GENERIC.get(named.processor, ())} or {named}
            else:
                others.append(item)
        return cls(cls.of(map(GpuRequest.parse, others)).requests, tuple(sorted(targets, key=arch_order)))

    @classmethod
    def of(cls, requests: Iterable[GpuRequest]) -> Self:
        """NVIDIA's GPUs of all *requests*: with PTX if one of them asks for it, and so with machine code."""
        grouped = groupby(sorted(requests), key=lambda request: request.arch)
        found = []
        for arch, group in grouped:
            same = tuple(group)
            found.append(GpuRequest(arch, any(each.ptx for each in same), any(each.real for each in same)))
        return cls(tuple(found))

    def __str__(self) -> str:
        return ",".join(map(str, (*self.requests, *self.targets)))

    def __iter__(self) -> Iterator[GpuRequest]:
        return iter(self.requests)

    @property
    def devices(self) -> tuple[Arch, ...]:
        """NVIDIA's GPUs meant, lowest first, each once."""
        return tuple(sorted({request.device for request in self.requests}))

    @property
    def every(self) -> tuple[Device, ...]:
        """The GPUs meant of both vendors, NVIDIA's first."""
        return (*self.devices, *self.targets)

    @property
    def native(self) -> tuple[Arch, ...]:
        """The GPUs that machine code is asked for, lowest first, each once."""
        return tuple(sorted({request.device for request in self.requests if request.real}))

    def check_toolkit(self, version: Dotted) -> None:
        """`HardwareError`, with the versions that can, where CUDA *version* cannot compile for one of them."""
        for arch in (request.arch for request in self.requests):
            if arch.toolkits is None:
                raise HardwareError(f"{arch}: no CUDA toolkit is known to compile for it")
            first, last = arch.toolkits
            if version < first or (last and version > last):
                others = f"only {first}" if first == last else f"{first} to {last}" if last else f"{first} and newer"
                raise HardwareError(f"{arch}: CUDA {version} cannot compile for it; {others} can")


def _listed(text: str) -> list[str]:
    """The GPUs in *text*; `HardwareError` if there are none."""
    if items := [item for piece in _SEPARATOR.split(text) for item in _items(piece)]:
        return items
    raise HardwareError("no GPU in the list; expected at least one, as in sm_90 or 8.0,9.0+PTX")


def _here() -> list[str]:
    """The GPUs of this machine; `HardwareError` if it has none."""
    if here := [*map(str, Nvidia.here().capabilities), *amd_gpus()]:
        return here
    raise HardwareError(f"{_NATIVE}: no GPU found on this machine; expected GPUs by name, as in sm_90 or H100")


def _items(piece: str) -> list[str]:
    """The GPUs in a *piece* of a list between two commas: one product's name, or several items with spaces."""
    words = piece.split()
    several = (
        len(words) > 1 and not _named(piece) and all(_REQUEST.fullmatch(word.lower()) or _named(word) for word in words)
    )
    return words if several or not words else [piece.strip()]


def _named(text: str) -> Device | None:
    """What *text* names as a product, or as AMD does; None if it is written as NVIDIA's, or not known."""
    plain = text.strip().lower()
    if plain.startswith("gfx") and len(plain.split()) == 1:
        return GpuTarget.parse(plain)
    if _REQUEST.fullmatch(plain):
        return None
    found = architecture_of(_PTX.sub("", text))
    return Arch(found) if isinstance(found, int) else GpuTarget(found) if found else None


def _matched(text: str) -> re.Match[str]:
    if match := _REQUEST.fullmatch(text.strip().lower()):
        return match
    near = similar_names(_PTX.sub("", text))
    expected = "expected one as in sm_90, 9.0, 90a, 90-real, 9.0+PTX or H100"
    advice = f"did you mean {' or '.join(near)}?" if near else expected
    raise HardwareError(f"there is no GPU architecture {text!r}; {advice}")


def _known(match: re.Match[str]) -> tuple[int, str]:
    """The number and suffix that were *matched*, if nvcc knows them."""
    number = int(match["number"] or match["major"] + match["minor"])
    suffix = match["suffix"] or ""
    if (known := ARCHITECTURES.get(number)) is None:
        # what begins like a number that was cut short, or else what is nearest
        begun = [other for other in ARCHITECTURES if str(other).startswith(str(number))]
        nearest = sorted(ARCHITECTURES, key=lambda other: (abs(other - number), other))
        products = similar_names(str(number)) if number >= _LEAST_PRODUCT else ()
        *others, last = products or (str(Arch(other)) for other in sorted((begun or nearest)[:_NEAR]))
        near = f"{', '.join(others)} or {last}" if others else last
        raise HardwareError(f"there is no GPU architecture {match[0]!r}; did you mean {near}?")
    if known.first_toolkit(suffix) is None:
        forms = [str(Arch(number, form)) for form in ("", "a", "f") if known.first_toolkit(form)]
        raise HardwareError(f"there is no GPU architecture {match[0]!r}, only {', '.join(forms)}")
    return number, suffix


class GpuCodeKind(Enum):
    """What an entry of a fatbin is to the driver: machine code, PTX, or something that other libraries read."""

    MACHINE = "machine"
    PTX = "ptx"
    OTHER = "other"


class GpuOffer(NamedTuple):
    """What one entry of a fatbin offers to the driver."""

    code: GpuCodeKind
    arch: Device


class Service(StrEnum):
    """How a GPU is served by a fatbin: with machine code, with PTX that its driver compiles, or not at all."""

    MACHINE = "machine"
    JIT = "jit"
    NONE = "none"


class Ptx(StrEnum):
    """Which PTX is kept: if a GPU has no machine code; also the newest, for later GPUs; none at all."""

    AUTO = "auto"
    KEEP = "keep"
    NONE = "none"


def service(offers: Sequence[GpuOffer], device: Device) -> Service:
    """How the driver serves *device* from a container with these *offers*: it takes PTX only without machine code."""
    if any(offer.code is GpuCodeKind.MACHINE and offer.arch.runs_on(device) for offer in offers):
        return Service.MACHINE
    if any(offer.code is GpuCodeKind.PTX and offer.arch.compiles_on(device) for offer in offers):
        return Service.JIT
    return Service.NONE


class GpuServed(NamedTuple):
    """How *device* is served by a library: how many of its fatbins have machine code for it, PTX alone, or nothing.

    Those of other vendors' code do not count; AMD's are called bundles, and its SPIR-V counts as PTX.
    """

    device: Device
    machine: int = 0
    jit: int = 0
    nothing: int = 0

    @classmethod
    def by(cls, fatbins: Mapping[tuple[GpuOffer, ...], int], device: Device) -> Self:
        """How *device* is served by *fatbins*, the number of them by what they offer."""
        found: Counter[Service] = Counter()
        for offers, count in fatbins.items():
            if any(isinstance(offer.arch, type(device)) for offer in offers):
                found[service(offers, device)] += count
        return cls(device, found[Service.MACHINE], found[Service.JIT], found[Service.NONE])

    @property
    def word(self) -> str:
        """What the vendor calls a container of code."""
        return "fatbin" if isinstance(self.device, Arch) else "bundle"

    @property
    def fatbins(self) -> int:
        return self.machine + self.jit + self.nothing

    def __str__(self) -> str:
        """Whether the library runs on the GPU, in a few words for a table; fatbins with nothing for it are normal."""
        if self.machine and self.jit:
            return f"yes, {self.jit} of {self.fatbins} {self.word}s by JIT"
        if self.machine:
            return "yes"
        return "by JIT" if self.jit else "no"

    def data(self) -> dict[str, Any]:
        return {"gpu": str(self.device), "machine": self.machine, "jit": self.jit, "nothing": self.nothing}


def kept_offers(offers: Sequence[GpuOffer], request: GpuRequest | GpuTarget, *, ptx: Ptx) -> frozenset[int]:
    """The places of those *offers* of one container that the GPU of *request* could be given by its driver.

    What is neither machine code nor PTX is read by others, and kept. NVIDIA's driver prefers machine code to PTX, then
    the nearest architecture, in an order among equals that differs between versions; so all of the nearest are kept.

    - Machine code: every form of the nearest architecture that runs there. For X.y exactly that is X.y, X.ya and X.yf
      together, since how drivers rank those is not published. Code for a Tegra between the nearest and the GPU is
      kept too, as nothing shows that every driver passes it over.
    - PTX, if there is no such machine code or *request* asks for it: of the nearest architecture.
    - Under `Ptx.KEEP` also the newest PTX that later GPUs can run, and under `Ptx.NONE` no PTX at all.

    AMD's runtime takes the code of the processor and its mode, else generic code, else SPIR-V, which counts as PTX.

    - Machine code: all that runs on the processor in a mode that *request* leaves open. Generic code goes if some
      code for the processor itself runs in all of them.

    NVIDIA's rules are in `vbuild.hardware.architectures`; the order of choice was measured on a GPU of 8.9 and read in
    its driver: https://github.com/bechirBOUALI/cuda-fatbin-precedence
    """
    others = {place for place, offer in enumerate(offers) if offer.code is GpuCodeKind.OTHER}
    if isinstance(request, GpuTarget):
        return frozenset(others | _kept_of_amd(offers, request, ptx))
    return frozenset(others | _kept_of_nvidia(offers, request, ptx))


def _kept_of_amd(offers: Sequence[GpuOffer], target: GpuTarget, ptx: Ptx) -> set[int]:
    found = {
        place: offer.arch
        for place, offer in enumerate(offers)
        if offer.code is GpuCodeKind.MACHINE and isinstance(offer.arch, GpuTarget) and offer.arch.runs_on(target)
    }
    is_exact = any(arch.suits(target) for arch in found.values())
    kept = {place for place, arch in found.items() if not (is_exact and arch.is_generic)}
    if ptx is Ptx.KEEP or (ptx is Ptx.AUTO and not kept):
        spirv = (place for place, offer in enumerate(offers) if offer.code is GpuCodeKind.PTX)
        kept |= {place for place in spirv if offers[place].arch.compiles_on(target)}
    return kept


def _kept_of_nvidia(offers: Sequence[GpuOffer], request: GpuRequest, ptx: Ptx) -> set[int]:
    device = request.device
    machine, compiled = (
        {place: offer.arch for place, offer in enumerate(offers) if offer.code is code and isinstance(offer.arch, Arch)}
        for code in (GpuCodeKind.MACHINE, GpuCodeKind.PTX)
    )
    kept: set[int] = set()
    nearest = max((arch.number for arch in machine.values() if arch.runs_on(device)), default=None)
    if nearest is not None:
        kept |= {
            place
            for place, arch in machine.items()
            if arch.runs_on(device) or (arch.is_tegra and arch.is_before(device) and arch.suffix != "a")
            if arch.number >= nearest
        }
    if ptx is not Ptx.NONE and (request.ptx or nearest is None):
        usable = {place: arch.number for place, arch in compiled.items() if arch.compiles_on(device)}
        kept |= {place for place, number in usable.items() if number == max(usable.values())}
    if ptx is Ptx.KEEP:
        # the newest PTX for every later GPU, and that for later ones of a family if it is no older
        newest = max((arch.number for arch in compiled.values() if not arch.suffix), default=0)
        kept |= {place for place, arch in compiled.items() if arch.suffix != "a" and arch.number >= newest}
    return kept


def arch_order(arch: Device) -> tuple[int, int, str]:
    """A key that sorts architectures as people list them: by number, plain before a and f."""
    if isinstance(arch, Arch):
        return 0, arch.number, arch.suffix
    # gfx90a is 9.0.a, gfx1100 is 11.0.0: the last two are single digits, in hexadecimal; gfx9-4-generic is 9.4
    major, _, minor = arch.processor.removeprefix("gfx").removesuffix("-generic").partition("-")
    digits = f"{major}{minor or 0}0" if arch.is_generic else major
    return 1, int(digits, 16) if _HEXADECIMAL.fullmatch(digits) else 0, str(arch)
