"""NVIDIA's GPU architectures: how they are written, which code runs on which GPU, and what of it a GPU needs.

    sm_90   9.0   90   90-real          GPUs of compute capability 9.0, and code for them
    sm_90a  90a   9.0a                  code that uses what only 9.0 has, and runs nowhere else
    sm_100f 100f                        code that uses what the family of 10.0 has
    sm_90+PTX   9.0+PTX   90+ptx        the same GPUs, and PTX: code that the driver compiles for later GPUs
    compute_90   90-virtual             PTX alone, where code is compiled; to what is cut, the same as sm_90+PTX
    H100   RTX 4090   L4+PTX            the same by a product's name (`vbuild.hardware.gpu_names`)

The rules are NVIDIA's. Machine code for X.y runs on X.z where z >= y; PTX for X.y runs on every later GPU; code with
``a`` only on X.y itself; code with ``f`` on X.z where z >= y. Tegra GPUs run no machine code but their own, and
other GPUs none of theirs.
https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/compute-capabilities.html
https://docs.nvidia.com/cuda/ampere-compatibility-guide/

*since* is the first toolkit that compiles for an architecture, *until* the last one; *specific* and *family* are the
first for its forms with ``a`` and ``f``. From 11.7 on they are what ``ptxas --help`` lists, asked of 11.7, 11.8, 12.0,
12.6, 12.8, 12.9 and 13.0 to 13.5; before that, the toolkit of the PTX version that brought the target.
https://docs.nvidia.com/cuda/parallel-thread-execution/#ptx-isa-version-history

Tegra GPUs are in a Jetson or DRIVE; NVIDIA renamed Thor from 10.1 to 11.0 in CUDA 13.
https://docs.nvidia.com/cuda/cuda-for-tegra-appnote/
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from itertools import groupby
from typing import Any, NamedTuple, Self

from vbuild.errors import HardwareError
from vbuild.hardware.driver import Dotted, Nvidia
from vbuild.hardware.gpu_names import capability_of, similar_names

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
_NEAR = 4
_LEAST_PRODUCT = 1000  # from here on a number is that of a product, as in 4090


class Architecture(NamedTuple):
    """One architecture: the toolkits that compile for it, and whether it is a Tegra, that is a Jetson or a DRIVE."""

    since: Dotted
    until: Dotted | None = None
    specific: Dotted | None = None
    family: Dotted | None = None
    is_tegra: bool = False

    def first_toolkit(self, suffix: str) -> Dotted | None:
        """The first toolkit that compiles for the form with this *suffix*; None if there is no such form."""
        return {"": self.since, "a": self.specific, "f": self.family}[suffix]


_12_8, _12_9, _13_0 = Dotted(12, 8), Dotted(12, 9), Dotted(13, 0)

ARCHITECTURES: Mapping[int, Architecture] = {
    50: Architecture(since=Dotted(6, 0), until=_12_9),
    52: Architecture(since=Dotted(6, 5), until=_12_9),
    53: Architecture(since=Dotted(7, 0), until=_12_9, is_tegra=True),
    60: Architecture(since=Dotted(8, 0), until=_12_9),
    61: Architecture(since=Dotted(8, 0), until=_12_9),
    62: Architecture(since=Dotted(8, 0), until=_12_9, is_tegra=True),
    70: Architecture(since=Dotted(9, 0), until=_12_9),
    72: Architecture(since=Dotted(9, 1), until=_12_9, is_tegra=True),
    75: Architecture(since=Dotted(10, 0)),
    80: Architecture(since=Dotted(11, 0)),
    86: Architecture(since=Dotted(11, 1)),
    87: Architecture(since=Dotted(11, 4), is_tegra=True),
    88: Architecture(since=_13_0),
    89: Architecture(since=Dotted(11, 8)),
    90: Architecture(since=Dotted(11, 8), specific=Dotted(12, 0)),
    100: Architecture(since=_12_8, specific=_12_8, family=_12_9),
    101: Architecture(since=_12_8, until=_12_9, specific=_12_8, family=_12_9, is_tegra=True),
    103: Architecture(since=_12_9, specific=_12_9, family=_12_9),
    107: Architecture(since=Dotted(13, 4), specific=Dotted(13, 4), family=Dotted(13, 4)),
    110: Architecture(since=_13_0, specific=_13_0, family=_13_0, is_tegra=True),
    120: Architecture(since=_12_8, specific=_12_8, family=_12_9),
    121: Architecture(since=_12_9, specific=_12_9, family=_12_9),
}


class Arch(NamedTuple):
    """A GPU architecture: the number of its compute capability, and the suffix of code that is for it alone.

    Without a suffix it is also a GPU, as a device.
    """

    number: int
    suffix: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """The architecture *text* in any spelling but that of PTX; `HardwareError` for one that does not exist."""
        match = _matched(text)
        if match["ptx"] or match["kind"] == "virtual" or (match["prefix"] or "").startswith("compute"):
            raise HardwareError(f"{text!r} asks for PTX; expected an architecture as in sm_90, 9.0 or 90a")
        return cls(*_known(match))

    def __str__(self) -> str:
        """The name as nvcc writes it: ``sm_90a``."""
        return f"sm_{self.number}{self.suffix}"

    @property
    def major(self) -> int:
        """The first number of the compute capability: 9 of sm_90, 12 of sm_121."""
        return self.number // 10

    @property
    def device(self) -> Self:
        """The GPU of this compute capability: sm_90 for sm_90a."""
        return type(self)(self.number)

    @property
    def is_tegra(self) -> bool:
        """Whether it is in a Jetson or DRIVE, whose machine code is for it alone."""
        known = ARCHITECTURES.get(self.number)
        return known is not None and known.is_tegra

    @property
    def toolkits(self) -> tuple[Dotted, Dotted | None] | None:
        """The first CUDA toolkit that compiles for it, and the last if it is gone; None if it is not known."""
        known = ARCHITECTURES.get(self.number)
        first = known.first_toolkit(self.suffix) if known else None
        return (first, known.until) if known and first else None

    def runs_on(self, device: "Arch") -> bool:
        """Whether machine code for this architecture runs on *device*."""
        if self.number == device.number:
            return True
        return self.is_before(device) and not (self.is_tegra or device.is_tegra or self.suffix == "a")

    def is_before(self, device: "Arch") -> bool:
        """Whether it is of the same major version as *device*, with a lower minor one."""
        return self.major == device.major and self.number < device.number

    def compiles_on(self, device: "Arch") -> bool:
        """Whether the driver of *device* can compile PTX for this architecture."""
        return self.runs_on(device) or (not self.suffix and self.number < device.number)


class GpuRequest(NamedTuple):
    """A GPU that code is asked for: whether PTX is asked for, and whether machine code is; one of them always is."""

    arch: Arch
    ptx: bool = False
    real: bool = True

    @classmethod
    def parse(cls, text: str) -> Self:
        """One item of a GPU list in any spelling; `HardwareError` for an architecture that does not exist."""
        if named := _named(text):
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
    """The GPUs that code is asked for, lowest first, each once."""

    requests: tuple[GpuRequest, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """The GPUs listed in *text* with comma, semicolon or space between them; `HardwareError` if there are none."""
        items = [item for piece in _SEPARATOR.split(text) for item in _items(piece)]
        if not items:
            raise HardwareError("no GPU in the list; expected at least one, as in sm_90 or 8.0,9.0+PTX")
        return cls.of(map(GpuRequest.parse, items))

    @classmethod
    def asked(cls, text: str) -> Self:
        """As `parse`, where ``native`` stands for the GPUs of this machine; `HardwareError` if it has none."""
        if _NATIVE not in text:
            return cls.parse(text)
        here = [f"{gpu.major}.{gpu.minor}" for gpu in Nvidia.here().capabilities]
        if not here:
            raise HardwareError(
                f"{_NATIVE}: no NVIDIA GPU found on this machine; expected GPUs by name, as in sm_90 or H100"
            )
        return cls.parse(text.replace(_NATIVE, ",".join(here)))

    @classmethod
    def of(cls, requests: Iterable[GpuRequest]) -> Self:
        """The GPUs of all *requests*: with PTX if one of them asks for it, and so with machine code."""
        grouped = groupby(sorted(requests), key=lambda request: request.arch)
        found = []
        for arch, group in grouped:
            same = tuple(group)
            found.append(GpuRequest(arch, any(each.ptx for each in same), any(each.real for each in same)))
        return cls(tuple(found))

    def __str__(self) -> str:
        return ",".join(map(str, self.requests))

    def __iter__(self) -> Iterator[GpuRequest]:
        return iter(self.requests)

    @property
    def devices(self) -> tuple[Arch, ...]:
        """The GPUs meant, lowest first, each once."""
        return tuple(sorted({request.device for request in self.requests}))

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


def _items(piece: str) -> list[str]:
    """The GPUs in a *piece* of a list between two commas: one product's name, or several items with spaces."""
    words = piece.split()
    several = (
        len(words) > 1 and not _named(piece) and all(_REQUEST.fullmatch(word.lower()) or _named(word) for word in words)
    )
    return words if several or not words else [piece.strip()]


def _named(text: str) -> Arch | None:
    """The architecture of the product that *text* names; None if it is written as an architecture, or not known."""
    if _REQUEST.fullmatch(text.strip().lower()):
        return None
    number = capability_of(_PTX.sub("", text))
    return None if number is None else Arch(number)


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
    arch: Arch


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


def service(offers: Sequence[GpuOffer], device: Arch) -> Service:
    """How the driver serves *device* from a fatbin with these *offers*: it takes PTX only without machine code."""
    if any(offer.code is GpuCodeKind.MACHINE and offer.arch.runs_on(device) for offer in offers):
        return Service.MACHINE
    if any(offer.code is GpuCodeKind.PTX and offer.arch.compiles_on(device) for offer in offers):
        return Service.JIT
    return Service.NONE


class GpuServed(NamedTuple):
    """How *device* is served by a library: how many of its fatbins have machine code for it, PTX alone, or nothing."""

    device: Arch
    machine: int = 0
    jit: int = 0
    nothing: int = 0

    @classmethod
    def by(cls, fatbins: Mapping[tuple[GpuOffer, ...], int], device: Arch) -> Self:
        """How *device* is served by *fatbins*, the number of them by what they offer."""
        found: Counter[Service] = Counter()
        for offers, count in fatbins.items():
            found[service(offers, device)] += count
        return cls(device, found[Service.MACHINE], found[Service.JIT], found[Service.NONE])

    @property
    def fatbins(self) -> int:
        return self.machine + self.jit + self.nothing

    def __str__(self) -> str:
        """Whether the library runs on the GPU, in a few words for a table; fatbins with nothing for it are normal."""
        if self.machine and self.jit:
            return f"yes, {self.jit} of {self.fatbins} fatbins by JIT"
        if self.machine:
            return "yes"
        return "by JIT" if self.jit else "no"

    def data(self) -> dict[str, Any]:
        return {"gpu": str(self.device), "machine": self.machine, "jit": self.jit, "nothing": self.nothing}


def kept_offers(offers: Sequence[GpuOffer], request: GpuRequest, *, ptx: Ptx) -> frozenset[int]:
    """The places of those *offers* of one fatbin that the GPU of *request* could be given by its driver.

    The driver prefers machine code to PTX, then the nearest architecture, in an order among equals that differs between
    versions; so all of the nearest are kept. What is neither machine code nor PTX is read by others, and kept.

    - Machine code: every form of the nearest architecture that runs there. For X.y exactly that is X.y, X.ya and X.yf
      together, since how drivers rank those is not published. Code for a Tegra between the nearest and the GPU is
      kept too, as nothing shows that every driver passes it over.
    - PTX, if there is no such machine code or *request* asks for it: of the nearest architecture.
    - Under `Ptx.KEEP` also the newest PTX that later GPUs can run, and under `Ptx.NONE` no PTX at all.

    NVIDIA's rules are at the top of this file; the order of choice was measured on a GPU of 8.9 and read in its driver:
    https://github.com/bechirBOUALI/cuda-fatbin-precedence
    """
    device = request.device
    archs = {
        code: {place: offer.arch for place, offer in enumerate(offers) if offer.code is code} for code in GpuCodeKind
    }
    machine, compiled = archs[GpuCodeKind.MACHINE], archs[GpuCodeKind.PTX]
    kept = set(archs[GpuCodeKind.OTHER])
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
    return frozenset(kept)
