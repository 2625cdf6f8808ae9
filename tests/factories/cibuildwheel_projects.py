"""A project with a C extension and options for cibuildwheel of its own, built by `vbuild cibuildwheel` in podman."""

import os
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path

import pytest

from tests.factories.containers import podman
from tests.factories.projects import KERNEL, tree

_SETUP = """
from setuptools import Extension, setup
setup(ext_modules=[Extension("demo", ["demo.c", "kernel.c"], extra_compile_args=["-O2", "-march=native"])])
"""
_MODULE = """
#define PY_SSIZE_T_CLEAN
#include <Python.h>
void kernel(float *a, const float *b);
static PyObject *total(PyObject *self, PyObject *unused) {
    float a[16] = {0}, b[16], sum = 0;
    for (int i = 0; i < 16; i++) b[i] = i;
    kernel(a, b);
    for (int i = 0; i < 16; i++) sum += a[i];
    return PyFloat_FromDouble(sum);
}
static PyMethodDef methods[] = {{"total", total, METH_NOARGS, 0}, {0}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "demo", 0, -1, methods};
PyMODINIT_FUNC PyInit_demo(void) { return PyModule_Create(&definition); }
"""
_BUILD = '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'

# what the image has is enough, and no index is asked
OFFLINE = '[tool.cibuildwheel]\nenvironment = { PIP_NO_INDEX = "1" }\n'
LEVELS = '[tool.vbuild.matrix]\ncpu = ["x86-64", "x86-64-v2", "x86-64-v3"]\n'


def project(folder: Path, text: str, *, kernel: str = KERNEL, setup: str = _SETUP) -> Path:
    """A project that hard-codes -march=native, whose ``pyproject.toml`` says *text* on top."""
    files = {
        "pyproject.toml": f'{_BUILD}[project]\nname = "demo"\nversion = "1.0"\n{text}',
        "setup.py": setup,
        "demo.c": _MODULE,
        "kernel.c": kernel,
    }
    return tree(folder, files)


@contextmanager
def inside(folder: Path, **variables: str) -> Iterator[None]:
    """The block runs in *folder*, with what cibuildwheel needs for podman, and *variables*, in the environment."""
    with pytest.MonkeyPatch.context() as patch, chdir(folder):
        for name in [name for name in os.environ if name.startswith("CIBW_")]:
            patch.delenv(name)
        # the image has a virtualenv, though not the one that cibuildwheel pins
        for name, value in {**podman(), "CIBW_DEPENDENCY_VERSIONS": "latest", **variables}.items():
            patch.setenv(name, value)
        yield
