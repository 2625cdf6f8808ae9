"""A small real project whose setup.py calls nvcc, as projects do whose backend knows no CUDA, and recipes for it."""

from pathlib import Path

from tests.factories.projects import KERNEL, tree
from tests.factories.workdir import Workdir

# a matrix of one toolkit and two groups of GPUs
TWO = 'cuda = [{ toolkit = "13.0", gpus = { sm80 = "80", sm90 = "90" } }]'

# host code next to it, in which a loop shows the level that it is compiled for
CUDA = f"""
__global__ void scale(float *x) {{ x[threadIdx.x] *= 2; }}
extern "C" {{
void run(float *x) {{ scale<<<1, 32>>>(x); }}
{KERNEL.strip()}
}}
"""
_MODULE = """
#include <Python.h>
void run(float *x);
void kernel(float *a, const float *b);
static float a[16], b[16];
static PyObject *go(PyObject *self, PyObject *none) { run(a); kernel(a, b); Py_RETURN_NONE; }
static PyMethodDef methods[] = {{"go", go, METH_NOARGS, 0}, {0, 0, 0, 0}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "demo", 0, -1, methods, 0, 0, 0, 0};
PyMODINIT_FUNC PyInit_demo(void) { return PyModule_Create(&definition); }
"""
_SETUP = """
import os
import subprocess

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


class WithNvcc(build_ext):
    def build_extension(self, ext):
        os.makedirs(self.build_temp, exist_ok=True)
        output = os.path.join(self.build_temp, "kernel.o")
        command = [{nvcc!r}, "-c", "kernel.cu", "-o", output, "-O2", "-Xcompiler=-fPIC", *{codes}]
        subprocess.run(command, check=True)
        ext.extra_objects.append(output)
        ext.library_dirs.append(os.path.join(os.environ["CUDA_HOME"], "lib64"))
        super().build_extension(ext)


libraries = ["cudart_static", "stdc++", "rt", "pthread", "dl"]
module = Extension("demo", ["module.c"], libraries=libraries)
setup(name="demo", version="1.0", ext_modules=[module], cmdclass={{"build_ext": WithNvcc}})
"""


def cuda_project(folder: Path, *, nvcc: str = "nvcc", archs: tuple[int, ...] = (80,)) -> Path:
    """A setup.py that calls *nvcc* for *archs*, its own hard-coded list."""
    codes = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in archs]
    files = {"setup.py": _SETUP.format(nvcc=nvcc, codes=codes), "module.c": _MODULE, "kernel.cu": CUDA}
    return tree(folder, files)


def with_recipe(workdir: Workdir, matrix: str) -> Workdir:
    """*workdir*, with the recipe ``demo.toml`` for the folder ``project`` there."""
    tree(workdir.folder, {"demo.toml": f'name = "demo"\n[source]\npath = "project"\n[matrix]\n{matrix}\n'})
    return workdir
