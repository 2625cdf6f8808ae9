"""Values of a mirror: the machines of a fleet, files as an index has them, and what a site has of them.

Sizes are bytes, hashes SHA-256 in hex. As JSON they are what a site's mirror.json holds.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from packaging.version import Version

from vbuild.binary.edits import Strip
from vbuild.errors import RepackageError
from vbuild.hardware.driver import ZSTD_SINCE
from vbuild.hardware.gpu import GpuList, Ptx
from vbuild.hardware.machine import Machine
from vbuild.sbom.model import public_url
from vbuild.slimming.request import Cuts, Share
from vbuild.wheel.name import WheelName
from vbuild.wheel.sdist import release_of

_AMD = "amd"


class FleetMachine(Struct, frozen=True):
    """A kind of machine of the fleet, by the *name* that its lock gets."""

    name: str
    machine: Machine

    @property
    def gpus(self) -> tuple[str, ...]:
        """Its GPUs, as people write them: compute capabilities, and AMD's processors."""
        processors = [value for _, values in self.machine.features(_AMD) or () for value in values]
        return (*map(str, self.machine.nvidia.capabilities), *processors)

    @property
    def reads_zstd(self) -> bool:
        """Whether its driver reads GPU code that is compressed with zstd; one that is not known may not."""
        driver = self.machine.nvidia.driver
        return not self.machine.nvidia.capabilities or (driver is not None and driver >= ZSTD_SINCE)


class Cut(Struct, frozen=True):
    """What is asked of one file: to keep code for *gpus*, all of it where there are none, compressed anew or not.

    *strip* says which symbols go, and *drop* has globs of what is left out. What is cut gets a *local* version, or not.
    With a *label* it becomes a variant wheel.
    """

    gpus: str = ""
    recompressed: bool = False
    ptx: Ptx = Ptx.AUTO
    strip: Strip = Strip.NOTHING
    drop: tuple[str, ...] = ()
    licence_accepted: bool = False
    local: bool = False
    label: str = ""

    @classmethod
    def for_machines(cls, machines: Iterable[FleetMachine], request: "MirrorRequest") -> "Cut":
        """What the *machines* that install a file need of it."""
        several = tuple(machines)
        names = [name for one in several for name in one.gpus]
        drivers_allow = bool(names) and all(one.reads_zstd for one in several)
        return cls(
            gpus=str(GpuList.asked(",".join(names))) if names else "",
            recompressed=drivers_allow if request.recompress is None else request.recompress,
            ptx=request.ptx,
            strip=request.strip,
            drop=request.drop,
            licence_accepted=request.accept_license,
            local=request.local,
        )

    @property
    def cuts(self) -> Cuts:
        """What is done to every library."""
        return Cuts(ptx=self.ptx, strip=self.strip, drop=self.drop, zstd=self.recompressed)

    @property
    def share(self) -> Share:
        """What of the GPU code is kept."""
        return Share(GpuList.asked(self.gpus) if self.gpus else None, self.label or None)

    def variant(self, machines: Iterable[FleetMachine]) -> "Cut":
        """The same for a variant that serves these *machines*, which all have the same GPUs."""
        several = tuple(machines)
        gpus = str(GpuList.asked(",".join(several[0].gpus)))
        label = "_".join(gpus.replace("_", "").split(","))
        return replace(
            self,
            gpus=gpus,
            recompressed=self.recompressed or all(one.reads_zstd for one in several),
            label=re.sub(r"[^0-9a-z_.]", "_", label),
        )

    @property
    def is_nothing(self) -> bool:
        return not self.gpus and not self.cuts.more

    def without_gpus(self) -> "Cut":
        """What is left of it for a file without GPU code."""
        if self.strip is Strip.NOTHING and not self.drop:
            return Cut()
        return replace(self, gpus="", recompressed=False, ptx=Ptx.AUTO)


class MirrorRequest(Struct, frozen=True, kw_only=True):
    """How a mirror is made: one index for all machines or one *per_machine*, what is cut, and what else is kept.

    *recompress* is None to do so where all drivers allow it; *strip* and *drop* are as in `Cuts`. With *local*, what is
    cut says so in its version, as 1.0+sm90; with *variants*, there is a variant wheel besides for each kind of GPUs.
    *prune* removes what no machine installs any more. *url* is where the site will be served: locks then name URLs
    instead of paths. *originals* is a folder that keeps the files as the index has them, and is looked into before
    anything is fetched. Requirements without a wheel are built, to ask what they require, if *allow_builds* says so.
    """

    per_machine: bool = False
    ptx: Ptx = Ptx.AUTO
    recompress: bool | None = None
    strip: Strip = Strip.NOTHING
    drop: tuple[str, ...] = ()
    accept_license: bool = False
    local: bool = False
    variants: bool = False
    prune: bool = False
    url: str | None = None
    originals: Path | None = None
    allow_builds: bool = False


class Original(Struct, frozen=True):
    """A file of a release as an index has it: a wheel, or an sdist where a machine gets no wheel.

    *uploaded* is when the index got it, as PEP 700 writes times.
    """

    project: str
    version: str
    file: str
    url: str
    sha256: str
    size: int = 0
    uploaded: str | None = None

    def public(self, size: int) -> "Original":
        """The original as a site states it: its *size*; its URL without a login, none for a file of this machine."""
        return replace(self, url=public_url(self.url) or "", size=size)

    @property
    def is_wheel(self) -> bool:
        return self.file.endswith(".whl")


class MirroredFile(Struct, frozen=True):
    """What the site has of an *original*, in the *index* of one machine, or of all ("").

    *installed* and *installed_before* are the sizes of its contents. *has_gpu_code* says that another *cut* would give
    another file, *why_left* why it is the original although it was to be cut, and *attestation* where the site keeps
    what the index attests of the original (PEP 740). One with a local version or a label is
    *renamed*. *served* are GPUs for which it has machine code.
    """

    original: Original
    sha256: str
    size: int
    installed: int
    installed_before: int
    cut: Cut = Cut()
    index: str = ""
    machines: tuple[str, ...] = ()
    has_gpu_code: bool = False
    why_left: str = ""
    attestation: str = ""
    renamed: str = ""
    served: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        """Its name in the site: the original's, unless it has a local version or a label."""
        return self.renamed or self.original.file

    @property
    def version(self) -> str:
        return str(Version(WheelName.parse(self.renamed).version)) if self.renamed else self.original.version

    @property
    def path(self) -> str:
        """Where it is in the site."""
        return "/".join(filter(None, (self.index, "simple", self.original.project, self.file)))

    @property
    def is_changed(self) -> bool:
        return self.sha256 != self.original.sha256

    def serves(self, original: Original, cut: Cut) -> bool:
        """Whether *cut* of *original* would be this file."""
        if self.original.sha256 != original.sha256 or original.size not in {0, self.original.size}:
            return False
        return self.cut == cut or (not self.has_gpu_code and self.cut.without_gpus() == cut.without_gpus())


class SiteMachine(Struct, frozen=True):
    """A machine as the site knows it: its *name*, its GPUs, and its files, by their paths."""

    name: str
    gpus: tuple[str, ...]
    python: str
    files: tuple[str, ...]

    @property
    def lock(self) -> str:
        """The name of its lock (PEP 751)."""
        return f"pylock.{self.name}.toml"

    @property
    def constraints(self) -> str:
        return f"constraints.{self.name}.txt"


class Site(Struct, frozen=True):
    """All that a site has, as its mirror.json says."""

    machines: tuple[SiteMachine, ...] = ()
    files: tuple[MirroredFile, ...] = ()
    vbuild: str = ""
    url: str | None = None

    def packed(self) -> bytes:
        """The site as JSON."""
        return msgspec.json.format(msgspec.json.encode(self, order="deterministic"), indent=2) + b"\n"

    def data(self) -> dict[str, Any]:
        """The site as Python's `json` takes it."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


def check_name(project: str, file: str) -> None:
    """`VbuildError` unless *file* is the name of a wheel or an sdist of *project*: it becomes a path."""
    named = WheelName.parse(file).project if file.endswith(".whl") else release_of(file)[0]
    if named != project:
        raise RepackageError(f"{file!r} is not of {project!r}")
