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
from vbuild.hardware.gpu import GpuList
from vbuild.hardware.machine import Machine
from vbuild.sbom.model import public_url
from vbuild.slimming.request import Cuts, Share
from vbuild.wheel.licence import Accepted, is_accepted
from vbuild.wheel.name import WheelName
from vbuild.wheel.sdist import release_of

_AMD = "amd"


class FleetMachine(Struct, frozen=True):
    """A kind of machine; its lock is called by *name*."""

    name: str
    machine: Machine

    @property
    def gpus(self) -> tuple[str, ...]:
        """Its GPUs, as people write them: compute capabilities, and AMD's processors."""
        processors = [value for _, values in self.machine.features(_AMD) or () for value in values]
        return (*map(str, self.machine.nvidia.capabilities), *processors)

    @property
    def reads_zstd(self) -> bool:
        """Whether its driver reads GPU code compressed with zstd; False if the driver is unknown."""
        driver = self.machine.nvidia.driver
        return not self.machine.nvidia.capabilities or (driver is not None and driver >= ZSTD_SINCE)


class Cut(Struct, frozen=True):
    """How to cut one file: keep code for *gpus*, all of it if empty, compressed anew or not.

    *drop* has globs of what is left out. With a *label* it becomes a variant wheel.
    """

    gpus: str = ""
    recompressed: bool = False
    strip: Strip = Strip.NOTHING
    drop: tuple[str, ...] = ()
    licence_accepted: bool = False
    label: str = ""

    @classmethod
    def for_machines(cls, machines: Iterable[FleetMachine], request: "MirrorRequest", *, project: str) -> "Cut":
        several = tuple(machines)
        names = [name for machine in several for name in machine.gpus]
        drivers_allow = bool(names) and all(machine.reads_zstd for machine in several)
        return cls(
            gpus=str(GpuList.asked(",".join(names))) if names else "",
            recompressed=drivers_allow if request.recompress is None else request.recompress,
            strip=request.strip,
            drop=request.drop,
            licence_accepted=is_accepted(request.accept_license, project),
        )

    @property
    def cuts(self) -> Cuts:
        # the original serves these machines no better
        return Cuts(strip=self.strip, drop=self.drop, zstd=self.recompressed, holes=True)

    @property
    def share(self) -> Share:
        return Share(GpuList.asked(self.gpus) if self.gpus else None, self.label or None)

    def variant(self, machines: Iterable[FleetMachine]) -> "Cut":
        """The same for a variant that serves these *machines*, which all have the same GPUs."""
        several = tuple(machines)
        gpus = str(GpuList.asked(",".join(several[0].gpus)))
        label = "_".join(gpus.replace("_", "").split(","))
        return replace(
            self,
            gpus=gpus,
            recompressed=self.recompressed or all(machine.reads_zstd for machine in several),
            label=re.sub(r"[^0-9a-z_.]", "_", label),
        )

    @property
    def is_nothing(self) -> bool:
        return not self.gpus and not self.cuts.more

    def without_gpus(self) -> "Cut":
        if self.strip is Strip.NOTHING and not self.drop:
            return Cut()
        return replace(self, gpus="", recompressed=False)


class MirrorRequest(Struct, frozen=True, kw_only=True):
    """How a mirror is made: what is cut, and what else is kept.

    *recompress* is None to do so if all drivers allow it. With *variants*, there is also a variant wheel for each
    kind of GPUs. *prune* removes what no machine installs any more. If the site is served at *url*, locks name URLs
    instead of paths. *originals* is a folder that keeps the files as the index has them and is searched before
    anything is fetched. With *allow_builds*, requirements without a wheel are built to learn what they require.
    """

    recompress: bool | None = None
    strip: Strip = Strip.NOTHING
    drop: tuple[str, ...] = ()
    accept_license: Accepted = False
    variants: bool = False
    prune: bool = False
    url: str | None = None
    originals: Path | None = None
    allow_builds: bool = False


class Original(Struct, frozen=True):
    """A file of a release as an index has it: a wheel, or an sdist if a machine gets no wheel.

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
        """The original as a site states it: its URL without a login, and no URL for a file of this machine."""
        return replace(self, url=public_url(self.url) or "", size=size)

    @property
    def is_wheel(self) -> bool:
        return self.file.endswith(".whl")


class MirroredFile(Struct, frozen=True):
    """A file of the site, made of an *original*; *installed* and *installed_before* are the sizes of its contents.

    *has_gpu_code* says that another *cut* would give another file, *why_left* why it was not cut although it should be.
    *attestation* is the path of the original's provenance (PEP 740), *renamed* its name with a label. *served* are GPUs
    for which it has machine code.
    """

    original: Original
    sha256: str
    size: int
    installed: int
    installed_before: int
    cut: Cut = Cut()
    machines: tuple[str, ...] = ()
    has_gpu_code: bool = False
    why_left: str = ""
    attestation: str = ""
    renamed: str = ""
    served: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        return self.renamed or self.original.file

    @property
    def version(self) -> str:
        return str(Version(WheelName.parse(self.renamed).version)) if self.renamed else self.original.version

    @property
    def path(self) -> str:
        return f"simple/{self.original.project}/{self.file}"

    @property
    def is_changed(self) -> bool:
        return self.sha256 != self.original.sha256

    def serves(self, original: Original, cut: Cut) -> bool:
        """Whether *cut* of *original* would be this file."""
        if self.original.sha256 != original.sha256 or original.size not in {0, self.original.size}:
            return False
        return self.cut == cut or (not self.has_gpu_code and self.cut.without_gpus() == cut.without_gpus())


class SiteMachine(Struct, frozen=True):
    """*files* are paths."""

    name: str
    gpus: tuple[str, ...]
    python: str
    files: tuple[str, ...]

    @property
    def lock(self) -> str:
        return f"pylock.{self.name}.toml"

    @property
    def constraints(self) -> str:
        return f"constraints.{self.name}.txt"


# the keys of mirror.json up to the last that has no field: such a key has this value in every site
_CUT = {
    **dict.fromkeys(("gpus", "recompressed")),
    "ptx": "auto",
    **dict.fromkeys(("strip", "drop", "licence_accepted")),
    "local": False,
}
_FILE = {**dict.fromkeys(("original", "sha256", "size", "installed", "installed_before", "cut")), "index": ""}


class Site(Struct, frozen=True):
    machines: tuple[SiteMachine, ...] = ()
    files: tuple[MirroredFile, ...] = ()
    vbuild: str = ""
    url: str | None = None

    def packed(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self.data()), indent=2) + b"\n"

    def data(self) -> dict[str, Any]:
        data = dict(msgspec.to_builtins(self))
        return data | {"files": [_FILE | file | {"cut": _CUT | file["cut"]} for file in data["files"]]}


def check_name(project: str, file: str) -> None:
    """`VbuildError` unless *file* is the name of a wheel or an sdist of *project*: it becomes a path."""
    named = WheelName.parse(file).project if file.endswith(".whl") else release_of(file)[0]
    if named != project:
        raise RepackageError(f"{file!r} is not of {project!r}")
