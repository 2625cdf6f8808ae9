"""A CUDA toolkit as builds use it, and the packages of the index that one is made of.

Which host compilers an nvcc takes, as its own header crt/host_config.h has it.

    #if __GNUC__ > 15                                            gcc up to 15
    #if (__clang_major__ >= 21) || (__clang_major__ < 3) || …    clang from 3 to 20

The last condition on clang is that of Linux; those before are of other systems.
"""

import re
from pathlib import Path

from msgspec import Struct

from vbuild.errors import BuildError
from vbuild.hardware.driver import Dotted

EULA = "https://docs.nvidia.com/cuda/eula/"


class ToolkitPin(Struct, frozen=True, order=True):
    """One wheel of the package index, pinned by its SHA-256."""

    project: str
    version: str
    file: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.project}=={self.version}"


class Toolkit(Struct, frozen=True):
    """A CUDA toolkit in the folder *root*, a ``CUDA_HOME``; *pins* are what it was laid out from, if it was.

    *identity*, 64 hex digits, is what a build with it depends on. *is_new* says that it was laid out just now, and
    that its licence has to be pointed out.
    """

    version: Dotted
    root: Path
    identity: str
    pins: tuple[ToolkitPin, ...] = ()
    is_new: bool = False

    @property
    def nvcc(self) -> Path:
        return self.root / "bin" / "nvcc"

    @property
    def licence(self) -> str:
        """One line: under which licence its components come, and where that is."""
        where = self.root / "licenses" if self.pins else EULA
        return f"CUDA {self.version} comes under NVIDIA's licence agreement for the CUDA Toolkit: {where}"


_GCC = re.compile(r"^\s*#\s*if\s+__GNUC__\s*>\s*(\d+)", re.MULTILINE)
_CLANG = re.compile(
    r"^\s*#\s*if\s*\(__clang_major__\s*>=\s*(\d+)\)\s*\|\|\s*\(__clang_major__\s*<\s*(\d+)\)", re.MULTILINE
)
_PROGRAMS = {"gcc": ("gcc-{0}", "g++-{0}"), "clang": ("clang-{0}", "clang++-{0}")}


class DriverRange(Struct, frozen=True):
    """The major versions of a compiler that an nvcc takes; None for no limit that is known."""

    first: int | None = None
    last: int | None = None


def taken(toolkit: Toolkit, family: str) -> DriverRange:
    """The versions of *family* that the nvcc of *toolkit* takes; no limits where its header says none."""
    header = toolkit.root / "include" / "crt" / "host_config.h"
    if not header.is_file():
        header = next(iter(sorted(toolkit.root.glob("targets/*-linux/include/crt/host_config.h"))), header)
    try:
        text = header.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return DriverRange()
    if family == "gcc":
        match = _GCC.search(text)
        return DriverRange(last=int(match[1])) if match else DriverRange()
    found = _CLANG.findall(text)
    return DriverRange(int(found[-1][1]), int(found[-1][0]) - 1) if found else DriverRange()


def check_host(toolkit: Toolkit, *, family: str, version: tuple[int, ...], setting: str = "CC") -> None:
    """`BuildError` where the nvcc of *toolkit* does not take *family* in *version* as the host compiler.

    *setting* is what the compiler was named by: CC, which goes with CXX, NVCC_CCBIN, or nvcc's own ``-ccbin``.
    """
    limits, nvcc = taken(toolkit, family), f"nvcc {toolkit.version}"
    said = f"{family} {'.'.join(map(str, version))}"
    if limits.last is not None and version[0] > limits.last:
        c, cxx = (text.format(limits.last) for text in _PROGRAMS[family])
        raise BuildError(
            f"{said} is too new for {nvcc}, which takes {family} up to {limits.last}; "
            f"install {c} and set {f'CC={c} CXX={cxx}' if setting == 'CC' else f'{setting}={cxx}'}"
        )
    if limits.first is not None and version[0] < limits.first:
        raise BuildError(f"{said} is too old for {nvcc}, which takes {family} from {limits.first}; install a newer one")
