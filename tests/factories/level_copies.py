"""Plain wheels with copies of their libraries for CPU levels, in the folders where glibc looks for these."""

import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from tests.factories.extensions import library
from tests.factories.wheels import dist_info_of, wheel
from vbuild.elf.linkage import at_level

TAG = "cp{0}{1}-cp{0}{1}-manylinux_2_17_x86_64".format(*sys.version_info)
NAME = f"demo-1.0-{TAG}.whl"
BASE = "demo.libs/libvb_demo-01234567.so"
STUB = "demo/_c.so"

# a module whose answer tells which of its builds was loaded, and code that a compiler uses its level's registers for
_MODULE = """
struct { long refs; void *type, *init; long index; void *copy; const char *name, *doc; long size; void *rest[6]; }
definition = {1, 0, 0, 0, 0, "_c", LEVEL, 0};
void *PyModuleDef_Init(void *);
typedef float sixteen __attribute__((vector_size(64), aligned(4)));
void add(float *a, const float *b) { *(sixteen *)a += *(const sixteen *)b; }
void *PyInit__c(void) { float a[16] = {0}, b[16] = {0}; add(a, b); return PyModuleDef_Init(&definition); }
"""


@cache
def level_copy(
    level: str, *, march: str | None = None, soname: str = "libvb_demo-01234567.so", more: str = ""
) -> bytes:
    """The module ``_c`` for *level*, whose ``__doc__`` is that; of code for *march*, where that is another level."""
    source = _MODULE.replace("LEVEL", f'"{level}"') + more
    flags = ("-O2", f"-march=x86-64{'' if (march or level) == 'v1' else f'-{march or level}'}")
    return library(soname, source=source, flags=flags)


@cache
def level_stub(needs: str = "libvb_demo-01234567.so", runpath: str = "$ORIGIN/../demo.libs") -> bytes:
    """A library without code or symbols that loads another."""
    return library(None, (needs,), source="", runpath=runpath, flags=("-nostdlib",))


def level_members(levels: Sequence[str] = ("v3", "v4")) -> dict[str, bytes | str]:
    """The package demo, whose module ``_c`` is a stub for copies at *levels* and for the baseline."""
    copies = {at_level(BASE, level): level_copy(level) for level in levels}
    return {"demo/__init__.py": "from demo import _c\n", STUB: level_stub(), BASE: level_copy("v1"), **copies}


def leveled_wheel(
    folder: Path,
    files: Mapping[str, bytes | str] | None = None,
    *,
    levels: Sequence[str] = ("v3", "v4"),
    name: str = NAME,
    metadata: str = "",
) -> Path:
    """The wheel *name* of these *files*, those of `level_members` where None."""
    tag = "-".join(name.removesuffix(".whl").split("-")[2:5])
    about = f"Wheel-Version: 1.0\nGenerator: demo\nRoot-Is-Purelib: false\nTag: {tag}\n"
    whole = {**(level_members(levels) if files is None else files), f"{dist_info_of(name)}/WHEEL": about}
    return wheel(folder, name, whole, metadata=metadata)
