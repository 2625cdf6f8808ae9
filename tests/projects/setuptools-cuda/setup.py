"""Compiles the .cu files with nvcc, as many projects do: setuptools itself knows no CUDA.

With TALLY_CUDA=0 the module is built without: it has the same functions, for the host.
"""

import os
import shutil
import subprocess
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HAS_CUDA = os.environ.get("TALLY_CUDA", "1") != "0"
HOST = ["-O3", "-march=native"]
COMMON = ["-O3", "--compiler-options", "-fPIC", "-Xcompiler", "-march=native"]
SUMS = ["-gencode", "arch=compute_80,code=sm_80", "-gencode", "arch=compute_90,code=sm_90"]
HOPPER = ["-gencode=arch=compute_90a,code=sm_90a"]  # wgmma is for this architecture alone
SOURCES = {"src/sums.cu": SUMS, "src/hopper.cu": HOPPER}


def toolkit() -> Path:
    if home := os.environ.get("CUDA_HOME"):
        return Path(home)
    if nvcc := shutil.which("nvcc"):
        return Path(nvcc).resolve().parents[1]
    raise SystemExit("tally: no CUDA toolkit: set CUDA_HOME, or put nvcc on PATH")


class BuildExtension(build_ext):
    def build_extension(self, ext: Extension) -> None:
        folder = Path(self.build_temp)
        folder.mkdir(parents=True, exist_ok=True)
        for source, flags in SOURCES.items():
            output = folder / Path(source).with_suffix(".o").name
            command = [toolkit() / "bin" / "nvcc", "-c", source, "-o", output, *COMMON, *flags]
            self.announce(" ".join(map(str, command)), level=2)
            subprocess.run(list(map(str, command)), check=True)
            ext.extra_objects.append(str(output))
        ext.library_dirs.append(str(toolkit() / "lib64"))
        super().build_extension(ext)


on_gpu = Extension(
    "tally._core",
    sources=["src/module.c"],
    libraries=["cudart_static", "stdc++", "rt", "pthread", "dl"],
    depends=["src/tally.h", *SOURCES],
)
on_host = Extension(
    "tally._core",
    sources=["src/module.c", "src/host.c"],
    libraries=["m"],
    extra_compile_args=HOST,
    depends=["src/tally.h"],
)
setup(
    packages=["tally"],
    ext_modules=[on_gpu if HAS_CUDA else on_host],
    cmdclass={"build_ext": BuildExtension} if HAS_CUDA else {},
)
