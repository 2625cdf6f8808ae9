"""The project `levels`, whose level() returns the CPU level of its wheel, as wheels for several levels."""

import sys
import sysconfig
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

from tests.factories.extensions import library
from tests.factories.variants import document, variant
from tests.factories.wheels import dist_info_of, wheel
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.machine import Machine
from vbuild.variants.metadata import VariantMetadata

TAG = "cp{0}{1}-cp{0}{1}-manylinux_2_17_x86_64".format(*sys.version_info)
MODULE = f"_core{sysconfig.get_config_var('EXT_SUFFIX')}"
PLAIN = f"levels-1.0-{TAG}.whl"
# the plain wheel of the layout extras
BASE = f"levels-1.0-1extras-{TAG}.whl"
INIT = '"""For which CPU this was built."""\n\nfrom levels._core import level\n\n__all__ = ["level"]\n'

_MODULE = """
#include <Python.h>
DECLARED
static PyObject *level(PyObject *self, PyObject *none) { return PyUnicode_FromString(LEVEL); }
static PyMethodDef methods[] = {{"level", level, METH_NOARGS, 0}, {0}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_core", 0, -1, methods, 0, 0, 0, 0};
PyMODINIT_FUNC PyInit__core(void) { return PyModule_Create(&definition); }
"""


@cache
def level_extension(level: str, needs: tuple[str, ...] = (), *, rpath_: str = "", answer: str | None = None) -> bytes:
    """The module _core of *level*, which says so, or *answer*; with *needs*, what a library's function says."""
    said = "level_of_library()" if needs else f'"{answer or level}"'
    declared = "const char *level_of_library(void);" if needs else ""
    source = _MODULE.replace("DECLARED", declared).replace("LEVEL", said)
    stubs = 'const char *level_of_library(void) { return ""; }'
    flags = (f"-I{sysconfig.get_path('include')}", march_flag(level))
    return library(None, needs, source=source, rpath_=rpath_, flags=flags, stubs=stubs)


@cache
def level_library(level: str, soname: str, needs: tuple[str, ...] = (), *, rpath_: str = "") -> bytes:
    """A library of that SONAME whose function says *level*; of what it *needs* it uses nothing."""
    source = f'const char *level_of_library(void) {{ return "{level}"; }}'
    return library(soname, needs, source=source, flags=(march_flag(level),), rpath_=rpath_)


def march_flag(level: str) -> str:
    """What compilers take for *level*."""
    return "-march=x86-64" if level == "v1" else f"-march=x86-64-{level}"


def needs_level(level: str) -> pytest.MarkDecorator:
    """Skips a test where this machine's CPU is none of *level*."""
    cpu = Machine.here().cpu
    wanted = Cpu("x86_64", level)
    return pytest.mark.skipif(cpu is None or not cpu.runs(wanted), reason=f"this CPU is no {wanted}")


def level_files(level: str, *, answer: str | None = None) -> dict[str, bytes | str]:
    """What the wheel of *level* has in site-packages; its function says *answer*, if it is not to say the level."""
    return {"levels/__init__.py": INIT, f"levels/{MODULE}": level_extension(level, answer=answer)}


def level_wheel(
    folder: Path,
    level: str = "v1",
    found: Mapping[str, bytes | str] | None = None,
    *,
    version: str = "1.0",
    more: str = "",
) -> Path:
    """The wheel for *level*, plain for v1; *found* are its files, *more* lines of its METADATA."""
    whole = level_files(level) if found is None else found
    label, properties = (None, ()) if level == "v1" else (f"x86_64_{level}", (f"x86_64 :: level :: {level}",))
    return labelled_wheel(folder, label, properties, whole, version=version, more=more)


def labelled_wheel(
    folder: Path,
    label: str | None,
    properties: Sequence[str],
    found: Mapping[str, bytes | str],
    *,
    version: str = "1.0",
    more: str = "",
    metadata: VariantMetadata | None = None,
) -> Path:
    """The wheel of levels with the files *found* under *label*, which stands for *properties*; plain without one."""
    name = f"levels-{version}-{TAG}{f'-{label}' if label else ''}.whl"
    about = f"Wheel-Version: 1.0\nGenerator: demo\nRoot-Is-Purelib: false\nTag: {TAG}\n"
    whole = {**found, f"{dist_info_of(name)}/WHEEL": about}
    if label:
        said = document(variant(label, *properties), metadata=metadata)
        whole[f"{dist_info_of(name)}/variant.json"] = said.pack()
    return wheel(folder, name, whole, metadata=more)


def level_release(folder: Path, *levels: str, version: str = "1.0") -> Path:
    """The wheels of *levels*, of v1, v3 and v4 where there are none named."""
    for level in levels or ("v1", "v3", "v4"):
        level_wheel(folder, level, version=version)
    return folder
