"""What to take out of a wheel, as values: the same for every library in it, and what each output keeps."""

from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Self

from msgspec import Struct

from vbuild.elf.surgery.strip import Strip
from vbuild.errors import SlimError
from vbuild.hardware.gpu import GpuList, Ptx
from vbuild.variants.document import Document
from vbuild.variants.model import checked_label
from vbuild.wheel.archive import Wheel


class Empty(StrEnum):
    """What becomes of a fatbin that has nothing for the GPUs asked for.

    The smallest entry is what every driver has seen before; a fatbin without entries is smaller.
    """

    SMALLEST = "smallest"
    NOTHING = "nothing"


class Share(Struct, frozen=True):
    """One output: the GPUs it is for, None to leave GPU code alone; its variant label, None to keep the name.

    *document* is the variant.json of a labelled one, where it is known before; else it says what the code is for.
    """

    gpus: GpuList | None = None
    label: str | None = None
    document: Document | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """A share written ``label=gpus``, as ``sm90=90,90a``; the error of the part that is not as it should be."""
        label, equals, gpus = text.partition("=")
        if not (label and equals):
            raise SlimError(f"no variant {text!r}; expected a label and GPUs, as in sm90=90,90a")
        return cls(GpuList.parse(gpus), checked_label(label))

    def __str__(self) -> str:
        """As `parse` reads it."""
        return f"{self.label}={self.gpus}"


class Cuts(Struct, frozen=True, kw_only=True):
    """What is done to every wheel: the fate of PTX, of symbols, of whole members, and of fatbins with nothing left.

    *zstd* compresses kept GPU code again, which drivers read from CUDA 12.4 on; *force* allows a cut after which
    GNU strip destroys the library; *unsupported* lets a library go that has nothing for a GPU asked for. *bill*
    puts a bill of materials into a wheel that has none; one that is there is kept true in any case.
    """

    ptx: Ptx = Ptx.AUTO
    strip: Strip = Strip.NOTHING
    drop: tuple[str, ...] = ()
    empty: Empty = Empty.SMALLEST
    zstd: bool = False
    force: bool = False
    unsupported: bool = False
    bill: bool = True

    @property
    def more(self) -> bool:
        """Whether something is asked for besides GPUs."""
        return bool(self.drop) or self.zstd or self.strip is not Strip.NOTHING

    def dropped(self, wheel: Wheel) -> frozenset[str]:
        """The paths in *wheel* that the globs of *drop* name; ``*`` also crosses slashes.

        `SlimError` where one names what a wheel cannot be without.
        """
        paths = {member.path: glob for member in wheel.members for glob in self.drop if _matches(member.path, glob)}
        for path, glob in paths.items():
            if path.startswith(f"{wheel.dist_info}/"):
                raise SlimError(f"--drop {glob!r} names {path}, which describes the wheel; expected other members")
        return frozenset(paths)


def _matches(path: str, glob: str) -> bool:
    # **/*.a is meant to find x.a at the top, too
    return fnmatchcase(path, glob) or fnmatchcase(f"/{path}", glob)
