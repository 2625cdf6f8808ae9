"""A CUDA toolkit as builds use it, and the packages of the index that one is made of."""

from dataclasses import dataclass
from pathlib import Path

from vbuild.hardware.driver import Dotted

EULA = "https://docs.nvidia.com/cuda/eula/"


@dataclass(frozen=True, slots=True, order=True)
class Pin:
    """One wheel of the package index, pinned by its SHA-256."""

    project: str
    version: str
    file: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.project}=={self.version}"


@dataclass(frozen=True, slots=True)
class Toolkit:
    """A CUDA toolkit in the folder *root*, a ``CUDA_HOME``; *pins* are what it was laid out from, if it was.

    *identity*, 64 hex digits, is what a build with it depends on. *is_new* says that it was laid out just now, and
    that its licence has to be pointed out.
    """

    version: Dotted
    root: Path
    identity: str
    pins: tuple[Pin, ...] = ()
    is_new: bool = False

    @property
    def nvcc(self) -> Path:
        return self.root / "bin" / "nvcc"

    @property
    def licence(self) -> str:
        """One line: under which licence its components come, and where that is."""
        where = self.root / "licenses" if self.pins else EULA
        return f"CUDA {self.version} comes under NVIDIA's licence agreement for the CUDA Toolkit: {where}"
