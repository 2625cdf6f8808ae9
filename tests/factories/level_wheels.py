"""The project `levels`, whose level() returns the CPU level of its wheel, as wheels for several levels."""

import sys
import sysconfig
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from tests.factories.extensions import library
from tests.factories.variants import document, variant
from tests.factories.wheels import dist_info_of, wheel

TAG = "cp{0}{1}-cp{0}{1}-manylinux_2_17_x86_64".format(*sys.version_info)
MODULE = f"_core{sysconfig.get_config_var('EXT_SUFFIX')}"
PLAIN = f"levels-1.0-{TAG}.whl"
INIT = '"""For which CPU this was built."""\n\nfrom levels._core import level\n\n__all__ = ["level"]\n'

_MODULE = """
#include <Python.h>
static PyObject *level(PyObject *self, PyObject *none) { return PyUnicode_FromString(LEVEL); }
static PyMethodDef methods[] = {{"level", level, METH_NOARGS, 0}, {0}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_core", 0, -1, methods, 0, 0, 0, 0};
PyMODINIT_FUNC PyInit__core(void) { return PyModule_Create(&definition); }
"""


@cache
def level_extension(level: str, *, answer: str | None = None) -> bytes:
    """The module _core of *level*, which says so, or *answer*."""
    source = _MODULE.replace("LEVEL", f'"{answer or level}"')
    return library(None, source=source, flags=(f"-I{sysconfig.get_path('include')}", march_flag(level)))


def march_flag(level: str) -> str:
    """What compilers take for *level*."""
    return "-march=x86-64" if level == "v1" else f"-march=x86-64-{level}"


def level_files(level: str, *, answer: str | None = None) -> dict[str, bytes | str]:
    """What the wheel of *level* has in site-packages; its function says *answer*, if it is not to say the level."""
    return {"levels/__init__.py": INIT, f"levels/{MODULE}": level_extension(level, answer=answer)}


def level_wheel(folder: Path, level: str, found: Mapping[str, bytes | str] | None = None) -> Path:
    """The wheel of *level*, plain for v1; *found* are its files."""
    name = f"levels-1.0-{TAG}{f'-x86_64_{level}' if level != 'v1' else ''}.whl"
    about = f"Wheel-Version: 1.0\nGenerator: demo\nRoot-Is-Purelib: false\nTag: {TAG}\n"
    whole = {**(level_files(level) if found is None else found), f"{dist_info_of(name)}/WHEEL": about}
    if level != "v1":
        said = document(variant(f"x86_64_{level}", f"x86_64 :: level :: {level}"))
        whole[f"{dist_info_of(name)}/variant.json"] = said.pack()
    return wheel(folder, name, whole)
