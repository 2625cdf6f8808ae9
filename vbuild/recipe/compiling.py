"""What a recipe says of compilers: the project's own flags, the host compiler, CUDA toolkits and the options of nvcc.

build.flags, keep-flags, strip-flags   -> FlagRules: what becomes of flags such as -mavx2 and -march=native
build.host, glibc                      -> HostSettings
matrix.cuda[].toolkit, libraries       -> ToolkitSpec
build.cuda                             -> CudaSettings, the same for every backend

nvcc's wrapper imports this without packages: hence data classes.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Self

from vbuild.config.table import Setting, Table
from vbuild.errors import RecipeError, at
from vbuild.hardware.driver import Dotted
from vbuild.hardware.gpu import GpuList

# nvcc's first version with --compress-mode
COMPRESS_MODES_SINCE = Dotted(12, 8)


class Archs(StrEnum):
    """What becomes of a list of architectures that a project's own command has.

    The requested part of the list, unless empty; the request, unless all of the list is for one GPU or family; always
    the request; the list as it is.
    """

    INTERSECT = "intersect"
    COMPLETE = "complete"
    REPLACE = "replace"
    KEEP = "keep"


class Compress(StrEnum):
    """How nvcc stores code in fatbins (``--compress-mode``)."""

    DEFAULT = "default"
    NONE = "none"
    SPEED = "speed"
    BALANCE = "balance"
    SIZE = "size"


class Strategy(StrEnum):
    """One build for all GPU groups of a toolkit, slimmed into its variants; or a build for each."""

    FAT = "fat"
    SEPARATE = "separate"


@dataclass(frozen=True, slots=True)
class ToolkitSpec:
    """A CUDA toolkit as a recipe asks for it: installed at *path*, or found if that is None.

    *libraries* are texts of `vbuild.recipe.source.ToolkitLibrary`. What *has_kernels* needs its nvcc.
    """

    version: Dotted
    path: Path | None = None
    libraries: tuple[str, ...] = ()
    has_kernels: bool = True

    def __str__(self) -> str:
        return str(self.version)

    @property
    def name(self) -> str:
        """How a lock calls it: ``13.0 cublas``."""
        return " ".join([str(self.version), *self.libraries])


@dataclass(frozen=True, slots=True)
class FileRule:
    glob: str
    archs: Archs | GpuList


@dataclass(frozen=True, slots=True)
class CudaSettings:
    """The options of nvcc for every backend; of *files*, the first that matches counts."""

    archs: Archs = Archs.INTERSECT
    files: tuple[FileRule, ...] = ()
    compress: Compress = Compress.DEFAULT
    lineinfo: bool = False

    @classmethod
    def read(cls, table: Table, toolkits: tuple[Dotted, ...]) -> Self:
        compress = Compress(table.one_of("compress", Compress))
        if compress not in {Compress.DEFAULT, Compress.NONE} and min(toolkits) < COMPRESS_MODES_SINCE:
            problem = f"{str(compress)!r} is known to nvcc from CUDA {COMPRESS_MODES_SINCE} on"
            raise table.refuse(
                "compress", f"{problem}, and the matrix has {min(toolkits)}; expected 'default' or 'none'"
            )
        with table.table("files", optional=True) as files:
            rules = tuple(FileRule(glob, _treatment(files, glob, toolkits)) for glob in files)
        return cls(
            archs=Archs(table.one_of("archs", Archs)),
            files=rules,
            compress=compress,
            lineinfo=table.flag("lineinfo", default=False),
        )


@dataclass(frozen=True, slots=True)
class CudaBuild:
    """The toolkit of a build, and all its architectures; none without kernels."""

    toolkit: ToolkitSpec
    archs: GpuList

    @property
    def key(self) -> str:
        path = (str(self.toolkit.path),) if self.toolkit.path else ()
        return " ".join(("CUDA", str(self.toolkit), *path, *self.toolkit.libraries, "for", str(self.archs)))


def gpu_list(text: Setting, toolkits: Iterable[Dotted]) -> GpuList:
    """The GPUs that a recipe lists as a string or an array; each of *toolkits* can compile for all of them."""
    gpus = GpuList.parse(text if isinstance(text, str) else ",".join(text))
    for request in gpus:
        if request.ptx and request.arch.suffix == "a":
            arch, device = request.arch, request.device
            problem = f"PTX for {arch} alone runs on no later GPU"
            raise RecipeError(f"{request}: {problem}; expected {arch}, {device}+PTX, or both")
    for toolkit in toolkits:
        gpus.check_toolkit(toolkit)
    check_together(gpus)
    return gpus


def check_together(gpus: GpuList) -> None:
    """`RecipeError` if no nvcc compiles for all of *gpus* at once: it calls code of sm_100 that of sm_100f, too."""
    real = {request.arch for request in gpus if request.real}
    for arch in sorted(real):
        if arch.suffix == "f" and arch.device in real:
            raise RecipeError(
                f"{arch.device} and {arch}: nvcc does not compile for both in one build; "
                f"expected {arch} alone, whose code runs on {arch.device} too"
            )


def _treatment(files: Table, glob: str, toolkits: tuple[Dotted, ...]) -> Archs | GpuList:
    text = files.setting(glob)
    if isinstance(text, str) and text in list(Archs):
        return Archs(text)
    if isinstance(text, str) and text.isalpha():
        words = ", ".join(map(repr, map(str, Archs)))
        raise files.refuse(glob, f"found {text!r}; expected {words}, or GPUs as in '80,90a'")
    with at(files.place(glob)):
        return gpu_list(text, toolkits)


# what `zig targets` lists: aarch64 came to glibc with 2.17, and x86-64 wheels have no older tag
OLDEST_GLIBC = (2, 17)
NEWEST_GLIBC = (2, 44)
_GLIBC = re.compile(r"(?P<major>2)\.(?P<minor>\d{1,2})", re.ASCII)


class OwnFlags(StrEnum):
    """The rule for all files that no other rule names.

    ``auto`` takes out flags that steer the whole build, as the level does, and keeps those of single files, whose code
    the project chooses at run time, unless the proof shows that it does not.
    """

    AUTO = "auto"
    STRIP = "strip"
    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class FlagRules:
    """The rule for the whole build, and globs of sources that *keep* or lose (*strip*) their own flags."""

    default: OwnFlags = OwnFlags.AUTO
    keep: tuple[str, ...] = ()
    strip: tuple[str, ...] = ()

    @classmethod
    def read(cls, table: Table) -> Self:
        return cls(
            OwnFlags(table.one_of("flags", tuple(OwnFlags))),
            keep=table.texts("keep-flags", ()),
            strip=table.texts("strip-flags", ()),
        )


class HostCompiler(StrEnum):
    """The system's compiler, zig from the package index, or zig if the system has none."""

    AUTO = "auto"
    SYSTEM = "system"
    ZIG = "zig"


@dataclass(frozen=True, slots=True)
class HostSettings:
    """Which compiler; *glibc* is the oldest that the wheels have to run on, which only zig can choose."""

    compiler: HostCompiler = HostCompiler.AUTO
    glibc: tuple[int, int] | None = None

    @classmethod
    def read(cls, build: Table) -> Self:
        compiler = HostCompiler(build.one_of("host", HostCompiler))
        glibc = build.optional_parsed("glibc", _glibc)
        if glibc and compiler is not HostCompiler.ZIG:
            raise build.refuse("glibc", "can be chosen only with host = 'zig'")
        return cls(compiler, glibc)


def _glibc(text: str) -> tuple[int, int]:
    if match := _GLIBC.fullmatch(text):
        version = int(match["major"]), int(match["minor"])
        if OLDEST_GLIBC <= version <= NEWEST_GLIBC:
            return version
    first, last = (".".join(map(str, version)) for version in (OLDEST_GLIBC, NEWEST_GLIBC))
    raise RecipeError(f"{text!r} is not a glibc to build for; expected {first} to {last}")
