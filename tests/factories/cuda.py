"""Libraries made by nvcc, from a toolkit that is installed or from the packages of the index."""

import functools
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest

_PACKAGES = "nvidia-cuda-nvcc, nvidia-cuda-crt, nvidia-nvvm, nvidia-cuda-runtime and nvidia-cuda-cccl"


@functools.cache
def nvcc() -> Path:
    """The compiler of the newest CUDA packages here, or else the one on PATH; skips the test where there is none."""
    packaged = sorted(Path(sysconfig.get_path("purelib"), "nvidia").glob("cu*/bin/nvcc"))
    found = packaged[-1] if packaged else shutil.which("nvcc")
    if found is None:
        pytest.skip(f"no nvcc; it comes with {_PACKAGES}")
    return Path(found)


@functools.cache
def home() -> Path:
    """The CUDA_HOME of that compiler, which may be a script elsewhere."""
    said = subprocess.run([nvcc(), "-dryrun", "-E", "none.cu"], capture_output=True, text=True, check=False).stderr
    return Path(next(line for line in said.splitlines() if line.startswith("#$ TOP=")).partition("=")[2]).resolve()


def linking() -> dict[str, str]:
    """The variables by which linkers find that toolkit's libraries: its packages have them where nvcc does not look."""
    folder = home() / "lib"
    return {"LIBRARY_PATH": str(folder)} if folder.is_dir() and not (home() / "lib64").exists() else {}


def cuda_library(folder: Path, sources: Sequence[Path], *, archs: Sequence[str], flags: Sequence[str] = ()) -> Path:
    """The shared library of *sources* in *folder* for *archs*, each as ``sm_90`` or ``compute_90``, cudart inside."""
    return _compiled(folder / "kernels.so", sources, ["-shared", *_codes(archs), *flags])


def cuda_object(folder: Path, source: Path, *, archs: Sequence[str], flags: Sequence[str] = ()) -> Path:
    """The object file of *source* in *folder*, with a fatbin for *archs*."""
    return _compiled(folder / f"{source.stem}.o", [source], ["-c", *_codes(archs), *flags])


def _codes(archs: Sequence[str]) -> list[str]:
    return [f"-gencode=arch={arch.replace('sm_', 'compute_')},code={arch}" for arch in archs]


def _compiled(output: Path, sources: Sequence[Path], flags: Sequence[str]) -> Path:
    libraries = ["-L", nvcc().parents[1] / "lib"]
    command = [nvcc(), "-Xcompiler", "-fPIC", "-O2", *flags, *libraries, "-o", output, *sources]
    subprocess.run(list(map(str, command)), check=True, capture_output=True, cwd=output.parent)
    return output
