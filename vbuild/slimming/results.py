"""What slimming does to libraries, wheels and environments; sizes are bytes.

A container is one fatbin, the GPU code of one translation unit; an entry is its code for one GPU.
"""

from pathlib import Path
from typing import Any, Self

from msgspec import Struct
from msgspec.structs import replace

from vbuild.gpu_code.coverage import Coverage, newest
from vbuild.hardware.architectures import Device
from vbuild.hardware.driver import ZSTD_SINCE
from vbuild.variants.model import Property


class Saving(Struct, frozen=True):
    """What *option* would save besides: bytes of the wheel, estimated from samples, and bytes installed."""

    option: str
    packed: int
    unpacked: int

    def data(self) -> dict[str, Any]:
        return {"option": self.option, "packed_bytes": self.packed, "bytes": self.unpacked}


class LibraryCut(Struct, frozen=True, kw_only=True):
    """One library before and after: the number of entries kept and dropped, of containers emptied, JIT-only and pinned.

    *jit_only* counts containers that have only PTX for some GPU of the share; *virtual* says how PTX alone serves the
    GPUs M.0 that it serves wherever there is code. *fillers* are the containers whose
    code is there for no GPU, see `vbuild.gpu_code.survey`, *beside* the bytes that stay beside code for an architecture
    alone. *zstd*: some kept code needs a driver that reads zstd;
    *is_recompressed*: slimming compressed it so. *headers* says where there was room for program headers, *is_fragile*
    that GNU strip would destroy the library, *why_whole* why code that could go stays, *more* what other options would
    save, *lacks* what there is instead of code for a GPU, and *surplus*, of each container that cannot be cut, the
    architectures whose code no GPU needs. *alone* says what it is if it is nothing but GPU code ("cubin for sm_90");
    then it may stand for several *files*, of which *gone* are left out.
    """

    member: str
    before: int
    after: int
    kept: int = 0
    dropped: int = 0
    empty: int = 0
    jit_only: int = 0
    pinned: int = 0
    served: tuple[Coverage, ...] = ()
    virtual: tuple[Coverage, ...] = ()
    fillers: str = ""
    beside: int = 0
    zstd: bool = False
    is_recompressed: bool = False
    gpus_before: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    is_fragile: bool = False
    notes: tuple[str, ...] = ()
    why_whole: str | None = None
    more: tuple[Saving, ...] = ()
    lacks: dict[Device, str] = {}
    surplus: tuple[tuple[Device, ...], ...] = ()
    alone: str = ""
    files: int = 1
    gone: int = 0

    @property
    def recompressed(self) -> Self:
        """The account after all code was compressed with zstd."""
        served, virtual = (
            tuple(replace(coverage, driver=newest([coverage.driver, ZSTD_SINCE])) for coverage in coverages)
            for coverages in (self.served, self.virtual)
        )
        return replace(self, served=served, virtual=virtual, zstd=True)

    @property
    def has_gpu_code(self) -> bool:
        return bool(self.kept or self.dropped)

    def data(self) -> dict[str, Any]:
        return {
            "member": self.member,
            "before": self.before,
            "after": self.after,
            "kept": self.kept,
            "dropped": self.dropped,
            "empty": self.empty,
            "jit_only": self.jit_only,
            "pinned": self.pinned,
            "gpus": [served.data() for served in self.served],
            "virtual": [str(coverage.device) for coverage in self.virtual],
            "zstd": self.zstd,
            "recompressed": self.is_recompressed,
            "headers": list(self.headers),
            "fragile": self.is_fragile,
            "notes": list(self.notes),
            "why_whole": self.why_whole,
            "lacks": list(map(str, self.lacks)),
            **({"alone": self.alone, "files": self.files, "gone": self.gone} if self.alone else {}),
        }


class Slimmed(Struct, frozen=True, kw_only=True):
    """One output of slimming: its wheel, its path, and what went; sizes are packed and unpacked.

    After a dry run *path* is None, and *packed* is estimated from samples. *more* is what other options would save.
    *why_untouched* says why the output is the input, byte for byte, or is None. *accepted* is the project if its
    licence forbids the change, and was accepted. *how* says by which options it fits under a limit.
    """

    wheel: Path
    name: str
    path: Path | None
    before: int
    packed: int
    unpacked_before: int
    unpacked: int
    libraries: tuple[LibraryCut, ...]
    removed: tuple[str, ...] = ()
    properties: tuple[Property, ...] = ()
    warnings: tuple[str, ...] = ()
    why_untouched: str | None = None
    accepted: tuple[str, ...] = ()
    how: str = ""
    more: tuple[Saving, ...] = ()

    @property
    def is_untouched(self) -> bool:
        return self.why_untouched is not None

    def data(self) -> dict[str, Any]:
        return {
            "wheel": self.wheel.name,
            "output": self.name,
            "path": str(self.path) if self.path else None,
            "untouched": self.is_untouched,
            "why_untouched": self.why_untouched,
            **({"how": self.how} if self.how else {}),
            "packed": {"before": self.before, "after": self.packed, "estimated": self.path is None},
            "unpacked": {"before": self.unpacked_before, "after": self.unpacked},
            "properties": list(map(str, self.properties)),
            "libraries": [library.data() for library in self.libraries],
            "removed": list(self.removed),
            "warnings": list(self.warnings),
            "accepted": list(self.accepted),
            "could_save": [saving.data() for saving in self.more],
        }


class FileLeft(Struct, frozen=True):
    """A file that stays although it would become *saves* bytes smaller, and *why*."""

    path: str
    why: str
    saves: int = 0


class SlimmedDistribution(Struct, frozen=True, kw_only=True):
    """An installed distribution before and after, in bytes of its files; *left* are those that stay, with reasons.

    *why_left* says why its files are not known or not here, as those of one that *is_editable*; or is None.
    """

    project: str
    version: str
    before: int
    after: int
    libraries: tuple[LibraryCut, ...] = ()
    left: tuple[FileLeft, ...] = ()
    why_left: str | None = None
    is_editable: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.project} {self.version}".rstrip()

    @property
    def reasons(self) -> dict[str, list[FileLeft]]:
        by_reason: dict[str, list[FileLeft]] = {}
        for file in self.left:
            by_reason.setdefault(file.why, []).append(file)
        return by_reason

    @property
    def saves(self) -> int:
        return self.before - self.after

    def data(self) -> dict[str, Any]:
        return {
            "project": self.project,
            "version": self.version,
            "installed": {"before": self.before, "after": self.after},
            "libraries": [library.data() for library in self.libraries],
            "left": [{"path": file.path, "why": file.why, "saves": file.saves} for file in self.left],
            "why_left": self.why_left,
            "warnings": list(self.warnings),
        }


class SlimmedEnvironment(Struct, frozen=True, kw_only=True):
    """An environment before and after, in bytes of the files that its distributions own.

    *linked* bytes of the old files stay on the disk under other names, such as in uv's cache. *completed* counts
    changes of a killed run whose rows were set. After a dry run nothing has changed.
    """

    root: Path
    distributions: tuple[SlimmedDistribution, ...]
    linked: int = 0
    completed: int = 0
    backup: Path | None = None
    is_dry_run: bool = False

    @property
    def before(self) -> int:
        return sum(distribution.before for distribution in self.distributions)

    @property
    def after(self) -> int:
        return sum(distribution.after for distribution in self.distributions)

    def data(self) -> dict[str, Any]:
        return {
            "environment": str(self.root),
            "dry_run": self.is_dry_run,
            "installed": {"before": self.before, "after": self.after},
            "linked": self.linked,
            "completed": self.completed,
            "backup": str(self.backup) if self.backup else None,
            "distributions": [distribution.data() for distribution in self.distributions],
        }
