"""Has nvcc make a fatbin of its kernel, which module.c includes."""

import subprocess

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

CODES = ["-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_90,code=sm_90"]


class BuildExtension(build_ext):
    def build_extension(self, ext: Extension) -> None:
        subprocess.run(["nvcc", "-fatbin", *CODES, "kernel.cu", "-o", "kernel.fatbin"], check=True)
        super().build_extension(ext)


setup(ext_modules=[Extension("embedded", ["module.c"], depends=["kernel.cu"])], cmdclass={"build_ext": BuildExtension})
