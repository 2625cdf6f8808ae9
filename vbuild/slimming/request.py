"""What to take out of a wheel, as values: the cuts for every library, and what each output keeps."""

import re
from fnmatch import fnmatchcase
from typing import Self

from msgspec import Struct

from vbuild.binary.edits import Strip
from vbuild.errors import RepackageError
from vbuild.gpu_code.model import Vendor
from vbuild.hardware.driver import Dotted
from vbuild.hardware.gpu import GpuList, Ptx
from vbuild.variants.document import Document
from vbuild.variants.model import checked_label
from vbuild.wheel.archive import Wheel

_SIZE = re.compile(r"(?P<number>\d{1,6}(\.\d{1,3})?) ?(?P<unit>[MG]i?B)", re.ASCII | re.IGNORECASE)
_UNITS = {"MB": 10**6, "MIB": 1 << 20, "GB": 10**9, "GIB": 1 << 30}
LOWER_BOUND = "cuda_version_lower_bound"


def size_limit(text: str) -> int:
    """The bytes that *text* stands for: 100MB are 10^8, 100MiB are PyPI's 100 MB; `RepackageError` for other texts."""
    if match := _SIZE.fullmatch(text.strip()):
        return int(float(match["number"]) * _UNITS[match["unit"].upper()])
    raise RepackageError(f"no size {text!r}; expected one as in 100MB, or 100MiB, which is PyPI's limit")


class Share(Struct, frozen=True):
    """One output: *gpus* to keep code for, or None for all; the variant *label*, or None to keep the name.

    *document* is the variant.json if it is known before.
    """

    gpus: GpuList | None = None
    label: str | None = None
    document: Document | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``label=gpus``, such as ``sm90=90,90a``; raises the error of the part that is wrong."""
        label, equals, gpus = text.partition("=")
        if not (label and equals):
            raise RepackageError(f"no variant {text!r}; expected a label and GPUs, as in sm90=90,90a")
        gpu_list = GpuList.asked(gpus)
        share = cls(gpu_list, checked_label(label))
        if len(share.vendors) > 1:
            reason = "installers take such a variant only where there are GPUs of both vendors"
            raise RepackageError(f"variant {text!r}: {reason}; expected one for NVIDIA's and another for AMD's")
        if modes := [str(target) for target in gpu_list.targets if target.modes]:
            reason = f"no property of a variant says {modes[0].partition(':')[2]}"
            raise RepackageError(f"variant {text!r}: {reason}; expected {modes[0].partition(':')[0]}")
        return share

    @property
    def vendors(self) -> frozenset[Vendor]:
        return frozenset(Vendor.of(device) for device in (self.gpus.every if self.gpus else ()))

    @property
    def oldest_driver(self) -> Dotted:
        """The CUDA version of the oldest driver that the variant asks for; 0.0 if that is not known before."""
        properties = self.document.variants[0].properties if self.document else ()
        bounds = (Dotted.parse(prop.value) for prop in properties if prop.feature == LOWER_BOUND)
        return max(bounds, default=Dotted(0, 0))

    def __str__(self) -> str:
        """As `parse` reads it."""
        return f"{self.label}={self.gpus}"


class Cuts(Struct, frozen=True, kw_only=True):
    """What to do to every wheel: which PTX to keep, what to strip and drop.

    *zstd* compresses the kept GPU code again, which drivers read since CUDA 12.4; None does so where a share's variant
    needs such a driver anyway. *force* allows a cut after which GNU strip destroys the library. *unsupported* allows a
    wheel without code for a GPU asked for, and a variant of which some fatbins have none; *holes* allows the second
    alone. *strict* allows neither, in a plain wheel either. *bill* adds a bill of materials to a wheel that has none;
    an existing one is always updated.
    """

    ptx: Ptx = Ptx.AUTO
    strip: Strip = Strip.NOTHING
    drop: tuple[str, ...] = ()
    zstd: bool | None = False
    force: bool = False
    unsupported: bool = False
    holes: bool = False
    strict: bool = False
    bill: bool = True

    @property
    def more(self) -> bool:
        return bool(self.drop) or bool(self.zstd) or self.strip is not Strip.NOTHING

    def dropped(self, wheel: Wheel) -> frozenset[str]:
        """The paths in *wheel* that match the globs of *drop*; ``*`` also crosses slashes.

        Raises `RepackageError` if a glob matches a member that a wheel needs.
        """
        paths = {
            member.path: glob
            for member in wheel.members
            for glob in self.drop
            # **/*.a should match x.a at the top, too
            if fnmatchcase(member.path, glob) or fnmatchcase(f"/{member.path}", glob)
        }
        for path, glob in paths.items():
            if path.startswith(f"{wheel.dist_info}/"):
                raise RepackageError(f"--drop {glob!r} names {path}, which describes the wheel; expected other members")
        return frozenset(paths)
