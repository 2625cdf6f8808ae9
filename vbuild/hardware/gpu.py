"""GPUs as people write them, and which of the code in a library a GPU needs.

    sm_90   9.0   90   90-real          GPUs of compute capability 9.0, and code for them
    sm_90a  90a   9.0a                  code that uses what only 9.0 has, and runs nowhere else
    sm_100f 100f                        code that uses what the family of 10.0 has
    sm_90+PTX   9.0+PTX   90+ptx        the same GPUs, and PTX: code that the driver compiles for later GPUs
    compute_90   90-virtual             PTX alone when code is compiled; when it is cut, the same as sm_90+PTX
    H100   RTX 4090   L4+PTX            the same by a product's name

    gfx942   gfx90a:xnack-   MI300X     AMD's processors, in any mode or in one; vbuild compiles no code for them
    gfx11-generic                       each processor that such code runs on

Product names may have further words: NVIDIA A100-SXM4-80GB, Tesla T4, AMD Instinct MI250X. A name that two generations
share is refused with both. https://developer.nvidia.com/cuda-gpus https://developer.nvidia.com/cuda-legacy-gpus
https://rocm.docs.amd.com/en/latest/reference/gpu-arch-specs.html
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum, StrEnum
from typing import NamedTuple, Self

from vbuild.errors import HardwareError
from vbuild.hardware.architectures import ARCHITECTURES, GENERIC, Arch, Device, GpuTarget
from vbuild.hardware.driver import Dotted, Nvidia, amd_gpus

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
_LEAST_PRODUCT = 1000  # from here on a number is a product's, as in 4090

# each number also stands in `architectures.ARCHITECTURES`
_PRODUCTS: dict[int | str, str] = {
    50: "GTX 745, GTX 750, K620, K1200, K2200, M10",
    52: "GTX 950, GTX 960, GTX 970, GTX 980, M4, M40, M60, M2000, M4000, M5000, M6000",
    53: "Jetson Nano, Jetson TX1",
    60: "P100, GP100",
    61: "GTX 1050, GTX 1060, GTX 1070, GTX 1080, P4, P6, P40, TITAN Xp, P400, P600, P620, P1000, P2000, P4000, P5000, "
    "P6000",
    62: "Jetson TX2",
    70: "V100, GV100, TITAN V",
    72: "Jetson Xavier, Xavier NX",
    75: "T4, T400, T600, T1000, GTX 1630, GTX 1650, GTX 1660, RTX 2060, RTX 2070, RTX 2080, TITAN RTX, "
    "Quadro RTX 3000, Quadro RTX 4000, Quadro RTX 5000, Quadro RTX 6000, Quadro RTX 8000",
    80: "A100, A800, A30, CMP 170HX",
    86: "A10, A2, A10G, A10M, A16, A40, RTX 3050, RTX 3060, RTX 3070, RTX 3080, RTX 3090, RTX A400, RTX A1000, "
    "RTX A2000, RTX A3000, RTX A4000, RTX A4500, RTX A5000, RTX A5500, RTX A6000, A2000, A4000, A5000, A6000",
    87: "Orin, Orin NX, Orin Nano",
    89: "L4, L2, L20, L40, L40S, L40G, RTX 4050, RTX 4060, RTX 4070, RTX 4080, RTX 4090, RTX 2000 Ada, RTX 4000 Ada, "
    "RTX 4500 Ada, RTX 5000 Ada, RTX 5880 Ada, RTX 6000 Ada",
    90: "H100, H200, H20, H800, GH200",
    100: "B100, B200, GB200",
    103: "B300, GB300",
    110: "Thor, Jetson T4000, Jetson T5000",
    120: "RTX 5050, RTX 5060, RTX 5070, RTX 5080, RTX 5090, RTX PRO 2000, RTX PRO 4000, RTX PRO 4500, RTX PRO 5000, "
    "RTX PRO 6000",
    121: "GB10, DGX Spark",
    "gfx900": "MI25, RX Vega 56, RX Vega 64",
    "gfx906": "MI50, MI60, Radeon VII",
    "gfx908": "MI100",
    "gfx90a": "MI210, MI250, MI250X",
    "gfx942": "MI300A, MI300X, MI308X, MI325X",
    "gfx950": "MI350X, MI355X",
    "gfx1010": "RX 5600 XT, RX 5700, RX 5700 XT",
    "gfx1011": "V520",
    "gfx1012": "RX 5500, RX 5500 XT",
    "gfx1030": "RX 6800, RX 6800 XT, RX 6900 XT, RX 6950 XT, W6800, V620",
    "gfx1031": "RX 6700, RX 6700 XT, RX 6750 XT",
    "gfx1032": "RX 6600, RX 6600 XT, RX 6650 XT, W6600",
    "gfx1034": "RX 6400, RX 6500 XT, W6400",
    "gfx1035": "660M, 680M",
    "gfx1100": "RX 7900 GRE, RX 7900 XT, RX 7900 XTX, W7800, W7900",
    "gfx1101": "RX 7700, RX 7700 XT, RX 7800 XT, V710, W7700",
    "gfx1102": "RX 7600, RX 7600 XT, RX 7650 GRE, W7500, W7600",
    "gfx1103": "740M, 760M, 780M",
    "gfx1150": "880M, 890M",
    "gfx1151": "8050S, 8060S",
    "gfx1152": "840M, 860M",
    "gfx1200": "RX 9060, RX 9060 XT",
    "gfx1201": "RX 9070, RX 9070 GRE, RX 9070 XT, AI PRO R9700",
}
_SHARED = {
    "RTX 4000": ("Quadro RTX 4000", "RTX 4000 Ada"),
    "RTX 5000": ("Quadro RTX 5000", "RTX 5000 Ada"),
    "RTX 6000": ("Quadro RTX 6000", "RTX 6000 Ada", "RTX PRO 6000"),
    "TITAN X": ("sm_52 for that of 2015", "sm_61 for that of 2016"),
}
# words of drivers' names that do not tell the architecture
_SILENT = re.compile(
    r"\b(?:amd|instinct|radeon pro|radeon(?! vii)|graphics|oam|dual slot"
    r"|nvidia|geforce|tesla|jetson|agx|ti|super|max-?q|laptop|mobile|gpu|generation|blackwell|workstation|server"
    r"|edition|developer|kit|sxm\d?|pcie?e?|nvl|hbm\d\w?|\d+ ?gb)\b|\(.*\)"
)
_OTHERS = re.compile(r"[^a-z0-9]+")
_CLOSE = 0.75
_LONGEST = 40


def _plain(name: str) -> str:
    """The letters and digits of *name* without such words, unless that leaves none."""
    text = name.lower().replace("-", " ")
    return _OTHERS.sub("", _SILENT.sub(" ", text)) or _OTHERS.sub("", text)


def products(device: Device) -> tuple[str, ...]:
    """The names of products with such a GPU."""
    names = _PRODUCTS.get(device.number if isinstance(device, Arch) else str(device), "")
    return tuple(filter(None, names.split(", ")))


_PRODUCT_NAMES = {_plain(name): name for names in _PRODUCTS.values() for name in names.split(", ")}
_ARCHITECTURE_OF_PRODUCT = {_plain(name): number for number, names in _PRODUCTS.items() for name in names.split(", ")}
_AMBIGUOUS = {_plain(name): others for name, others in _SHARED.items()}


class GpuRequest(NamedTuple):
    """A request for code for an NVIDIA GPU: PTX, machine code (*real*), or both."""

    arch: Arch
    ptx: bool = False
    real: bool = True

    @classmethod
    def parse(cls, text: str) -> Self:
        """One item of a GPU list in any spelling; `HardwareError` for an unknown architecture."""
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
        return self.arch.device


@dataclass(frozen=True, slots=True)
class GpuList:
    """*requests* for code for NVIDIA's GPUs, and AMD's *targets*; lowest first, each once."""

    requests: tuple[GpuRequest, ...] = ()
    targets: tuple[GpuTarget, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """NVIDIA's GPUs in *text*, separated by comma, semicolon or space; `HardwareError` if there are none."""
        return cls.of(map(GpuRequest.parse, _listed(text)))

    @classmethod
    def asked(cls, text: str) -> Self:
        """As `parse`, of both vendors; ``native`` stands for the GPUs of this machine."""
        if _NATIVE in text:
            here = [*map(str, Nvidia.here().capabilities), *amd_gpus()]
            if not here:
                raise HardwareError(
                    f"{_NATIVE}: no GPU found on this machine; expected GPUs by name, as in sm_90 or H100"
                )
            text = text.replace(_NATIVE, ",".join(here))
        targets: set[GpuTarget] = set()
        requests = []
        for item in _listed(text):
            if isinstance(named := _named(item), GpuTarget):
                targets |= {GpuTarget(member) for member in GENERIC.get(named.processor, ())} or {named}
            else:
                requests.append(GpuRequest.parse(item))
        return cls(cls.of(requests).requests, tuple(sorted(targets, key=arch_order)))

    @classmethod
    def of(cls, requests: Iterable[GpuRequest]) -> Self:
        merged: dict[Arch, GpuRequest] = {}
        for request in sorted(requests):
            before = merged.get(request.arch, request)
            merged[request.arch] = GpuRequest(request.arch, request.ptx or before.ptx, request.real or before.real)
        return cls(tuple(merged.values()))

    def __str__(self) -> str:
        return ",".join(map(str, (*self.requests, *self.targets)))

    def __iter__(self) -> Iterator[GpuRequest]:
        return iter(self.requests)

    @property
    def devices(self) -> tuple[Arch, ...]:
        return tuple(sorted({request.device for request in self.requests}))

    @property
    def every(self) -> tuple[Device, ...]:
        return (*self.devices, *self.targets)

    @property
    def native(self) -> tuple[Arch, ...]:
        return tuple(sorted({request.device for request in self.requests if request.real}))

    def check_toolkit(self, version: Dotted) -> None:
        """`HardwareError`, with versions that can, if CUDA *version* cannot compile for one of them."""
        for arch in (request.arch for request in self.requests):
            if arch.toolkits is None:
                raise HardwareError(f"{arch}: no CUDA toolkit is known to compile for it")
            first, last = arch.toolkits
            if version < first or (last and version > last):
                others = f"only {first}" if first == last else f"{first} to {last}" if last else f"{first} and newer"
                raise HardwareError(f"{arch}: CUDA {version} cannot compile for it; {others} can")


def _listed(text: str) -> list[str]:
    if items := [item for piece in _SEPARATOR.split(text) for item in _items(piece)]:
        return items
    raise HardwareError("no GPU in the list; expected at least one, as in sm_90 or 8.0,9.0+PTX")


def _items(piece: str) -> list[str]:
    """The GPUs between two commas of a list: one product's name, or several items with spaces."""
    words = piece.split()
    are_items = not _named(piece) and all(_REQUEST.fullmatch(word.lower()) or _named(word) for word in words)
    return words if are_items or not words else [piece.strip()]


def _named(text: str) -> Device | None:
    """The architecture of a product, or of AMD; None if *text* is written as NVIDIA's architectures, or not known."""
    plain = text.strip().lower()
    if plain.startswith("gfx") and len(plain.split()) == 1:
        return GpuTarget.parse(plain)
    if _REQUEST.fullmatch(plain):
        return None
    architecture = _architecture_of(_PTX.sub("", text))
    return Arch(architecture) if isinstance(architecture, int) else GpuTarget(architecture) if architecture else None


def _matched(text: str) -> re.Match[str]:
    if match := _REQUEST.fullmatch(text.strip().lower()):
        return match
    near = _similar_names(_PTX.sub("", text))
    expected = "expected one as in sm_90, 9.0, 90a, 90-real, 9.0+PTX or H100"
    advice = f"did you mean {' or '.join(near)}?" if near else expected
    raise HardwareError(f"there is no GPU architecture {text!r}; {advice}")


def _known(match: re.Match[str]) -> tuple[int, str]:
    """The number and suffix in *match*; `HardwareError` if nvcc does not know them."""
    number = int(match["number"] or match["major"] + match["minor"])
    suffix = match["suffix"] or ""
    if (known := ARCHITECTURES.get(number)) is None:
        # those that begin like it, else the nearest
        begun = [other for other in ARCHITECTURES if str(other).startswith(str(number))]
        nearest = sorted(ARCHITECTURES, key=lambda other: (abs(other - number), other))
        products = _similar_names(str(number)) if number >= _LEAST_PRODUCT else ()
        *others, last = products or (str(Arch(other)) for other in sorted((begun or nearest)[:_NEAR]))
        near = f"{', '.join(others)} or {last}" if others else last
        raise HardwareError(f"there is no GPU architecture {match[0]!r}; did you mean {near}?")
    if known.first_toolkit(suffix) is None:
        forms = [str(Arch(number, form)) for form in ("", "a", "f") if known.first_toolkit(form)]
        raise HardwareError(f"there is no GPU architecture {match[0]!r}, only {', '.join(forms)}")
    return number, suffix


def _architecture_of(name: str) -> int | str | None:
    """90, the compute capability, for H100, and gfx942 for MI300X; None for an unknown *name*."""
    plain = _plain(name)
    if others := _AMBIGUOUS.get(plain):
        raise HardwareError(f"{name!r} is the name of several GPUs; expected {' or '.join(others)}")
    return _ARCHITECTURE_OF_PRODUCT.get(plain)


def _similar_names(name: str) -> tuple[str, ...]:
    plain = _plain(name[:_LONGEST])
    ending = [shown for known, shown in _PRODUCT_NAMES.items() if plain.isdigit() and known.endswith(plain)]
    return tuple(ending or (_PRODUCT_NAMES[near] for near in get_close_matches(plain, _PRODUCT_NAMES, cutoff=_CLOSE)))[
        :3
    ]


class GpuCodeKind(Enum):
    """What an entry of a fatbin is to the driver; OTHER is for other libraries."""

    MACHINE = "machine"
    PTX = "ptx"
    OTHER = "other"


class GpuOffer(NamedTuple):
    code: GpuCodeKind
    arch: Device


class Service(StrEnum):
    """How a fatbin serves a GPU: with machine code, with PTX, or not at all."""

    MACHINE = "machine"
    JIT = "jit"
    NONE = "none"


class Ptx(StrEnum):
    """The PTX that stays: for GPUs without machine code (AUTO), also the newest, for later GPUs (KEEP), or none."""

    AUTO = "auto"
    KEEP = "keep"
    NONE = "none"


def service(offers: Sequence[GpuOffer], device: Device) -> Service:
    """How a container with *offers* serves *device*: the driver takes PTX only if there is no machine code."""
    if any(offer.code is GpuCodeKind.MACHINE and offer.arch.runs_on(device) for offer in offers):
        return Service.MACHINE
    if any(offer.code is GpuCodeKind.PTX and offer.arch.compiles_on(device) for offer in offers):
        return Service.JIT
    return Service.NONE


def kept_offers(offers: Sequence[GpuOffer], request: GpuRequest | GpuTarget, *, ptx: Ptx) -> frozenset[int]:
    """The indices of those *offers* of one container that a driver may choose for the GPU of *request*.

    What is neither machine code nor PTX stays, for other libraries. NVIDIA's driver prefers machine code to PTX, then
    the nearest architecture; its order among equals differs between versions, so all of the nearest stay.

    - Machine code: every form of the nearest architecture that runs there. For X.y itself that is X.y, X.ya and X.yf,
      as it is not published how drivers rank those. Code for a Tegra between the nearest and the GPU stays too, as
      nothing shows that every driver ignores it.
    - PTX, if there is no such machine code or *request* has PTX: of the nearest architecture.
    - With `Ptx.KEEP` also the newest PTX that later GPUs can run, and with `Ptx.NONE` no PTX at all.

    AMD's runtime takes the code of the processor and its mode, else generic code, else SPIR-V, which counts as PTX.

    - Machine code: all that runs on the processor in a mode that *request* leaves open. Generic code goes if some
      code for the processor itself runs in all of these modes.

    The order of choice was measured on a GPU of 8.9 and read in its driver:
    https://github.com/bechirBOUALI/cuda-fatbin-precedence
    """
    others = {index for index, offer in enumerate(offers) if offer.code is GpuCodeKind.OTHER}
    if isinstance(request, GpuTarget):
        return frozenset(others | _kept_of_amd(offers, request, ptx))
    return frozenset(others | _kept_of_nvidia(offers, request, ptx))


def _kept_of_amd(offers: Sequence[GpuOffer], target: GpuTarget, ptx: Ptx) -> set[int]:
    runnable = {
        index: offer.arch
        for index, offer in enumerate(offers)
        if offer.code is GpuCodeKind.MACHINE and isinstance(offer.arch, GpuTarget) and offer.arch.runs_on(target)
    }
    is_exact = any(arch.suits(target) for arch in runnable.values())
    kept = {index for index, arch in runnable.items() if not (is_exact and arch.is_generic)}
    if ptx is Ptx.KEEP or (ptx is Ptx.AUTO and not kept):
        spirv = (index for index, offer in enumerate(offers) if offer.code is GpuCodeKind.PTX)
        kept |= {index for index in spirv if offers[index].arch.compiles_on(target)}
    return kept


def _kept_of_nvidia(offers: Sequence[GpuOffer], request: GpuRequest, ptx: Ptx) -> set[int]:
    device = request.device
    machine, compiled = (
        {index: offer.arch for index, offer in enumerate(offers) if offer.code is code and isinstance(offer.arch, Arch)}
        for code in (GpuCodeKind.MACHINE, GpuCodeKind.PTX)
    )
    kept: set[int] = set()
    nearest = max((arch.number for arch in machine.values() if arch.runs_on(device)), default=None)
    if nearest is not None:
        kept |= {
            index
            for index, arch in machine.items()
            if arch.runs_on(device) or (arch.is_tegra and arch.is_before(device) and arch.suffix != "a")
            if arch.number >= nearest
        }
    if ptx is not Ptx.NONE and (request.ptx or nearest is None):
        usable = {index: arch.number for index, arch in compiled.items() if arch.compiles_on(device)}
        kept |= {index for index, number in usable.items() if number == max(usable.values())}
    if ptx is Ptx.KEEP:
        # the newest PTX for every later GPU, and PTX for later ones of a family if it is no older
        newest = max((arch.number for arch in compiled.values() if not arch.suffix), default=0)
        kept |= {index for index, arch in compiled.items() if arch.suffix != "a" and arch.number >= newest}
    return kept


def arch_order(arch: Device) -> tuple[int, int, str]:
    """A key that sorts by number, plain before a and f."""
    if isinstance(arch, Arch):
        return 0, arch.number, arch.suffix
    # gfx90a is 9.0.a, gfx1100 is 11.0.0: the last two are single digits, in hexadecimal; gfx9-4-generic is 9.4
    major, _, minor = arch.processor.removeprefix("gfx").removesuffix("-generic").partition("-")
    digits = f"{major}{minor or 0}0" if arch.is_generic else major
    return 1, int(digits, 16) if _HEXADECIMAL.fullmatch(digits) else 0, str(arch)
