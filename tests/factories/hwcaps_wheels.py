"""Wheels of one release built for CPU levels, and which code of the joined wheel a process loads.

Every module and library has one function, which says the level that it was built for.
"""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from tests.factories.extensions import library
from tests.factories.variants import variant
from tests.factories.wheels import dist_info_of, wheel
from vbuild.hardware.cpu import Cpu
from vbuild.publishing.hwcaps.plan import joined
from vbuild.publishing.model import PublishPlan
from vbuild.publishing.publish import written
from vbuild.publishing.releases import OfferedWheel
from vbuild.variants.stamp import stamped

PYTHON = "cp{}{}".format(*sys.version_info)
PLATFORM = "manylinux_2_34_x86_64"
NAME = f"demo-1.0-{PYTHON}-{PYTHON}-{PLATFORM}.whl"
# how a process comes to each level on a processor that has them all
MASKS = {
    "v4": "",
    "v3": "-AVX512F",
    "v2": "-AVX512F,-AVX2",
    "v1": "-AVX512F,-AVX2,-SSSE3",
}
LOADER = "/lib64/ld-linux-x86-64.so.2"

_MODULE = """
typedef struct {{ long a; void *b; }} Object;
struct {{ long refs; void *type, *init; long index; void *copy; const char *name, *doc; long size; void *methods;
         void *rest[5]; }}
definition = {{1, 0, 0, 0, 0, "{name}", 0, 0}};
struct {{ const char *name; void *call; int flags; const char *doc; }} methods[2];
void *PyModuleDef_Init(void *), *PyUnicode_FromString(const char *);
{more}
static void *level(void *self, void *nothing) {{ return PyUnicode_FromString({answer}); }}
void *PyInit_{name}(void) {{
    methods[0].name = "level"; methods[0].call = level; methods[0].flags = 4; definition.methods = methods;
    return PyModuleDef_Init(&definition);
}}
"""
# a sum of sixteen floats: four SSE registers, two AVX or one AVX-512
_KERNEL = """
typedef float sixteen __attribute__((vector_size(64), aligned(4)));
static void add(float *a, const float *b) { *(sixteen *)a += *(const sixteen *)b; }
"""


def flags(level: str) -> tuple[str, ...]:
    return ("-O2", f"-march=x86-64{'' if level == 'v1' else f'-{level}'}")


@cache
def module(
    level: str,
    name: str = "_c",
    *,
    needs: tuple[str, ...] = (),
    rpath: str = "",
    runpath: str = "",
    takes: str = "",
    more: str = "",
    march: str | None = None,
) -> bytes:
    """The extension module *name*, whose ``level()`` says *level*, or what the function *takes* of a library says."""
    declared = f"const char *{takes}(void);" if takes else ""
    source = _MODULE.format(name=name, more=declared + _used(more), answer=f"{takes}()" if takes else f'"{level}"')
    stubs = f"const char *{takes}(void) {{ return 0; }}" if takes else "int there;"
    return library(None, needs, source=source, rpath_=rpath, runpath=runpath, flags=flags(march or level), stubs=stubs)


@cache
def shared(
    level: str,
    soname: str | None = "libx.so",
    *,
    function: str = "x_level",
    needs: tuple[str, ...] = (),
    runpath: str = "",
    rpath: str = "",
    more: str = "",
    script: str = "",
    march: str | None = None,
) -> bytes:
    """The library *soname*, whose *function* says *level*."""
    source = f'const char *{function}(void) {{ return "{level}"; }}' + _used(more)
    return library(
        soname, needs, source=source, flags=flags(march or level), runpath=runpath, rpath_=rpath, script=script
    )


def _used(more: str) -> str:
    """Code for which a compiler uses the registers of its level, and *more* of it."""
    return _KERNEL + "void sum(float *a, const float *b) { add(a, b); }\n" + more


def hwcaps_wheel(
    folder: Path, files: Mapping[str, bytes | str], level: str = "v1", *, name: str = NAME, metadata: str = ""
) -> Path:
    """The wheel of *files* for *level*: the plain wheel for v1, else the variant wheel."""
    tags = name.removesuffix(".whl").split("-")[-3:]
    about = f"Wheel-Version: 1.0\nGenerator: demo\nRoot-Is-Purelib: false\nTag: {'-'.join(tags)}\n"
    whole = {**files, f"{dist_info_of(name)}/WHEEL": about}
    if level == "v1":
        return wheel(folder, name, whole, metadata=metadata)
    plain = wheel(folder / f"unstamped-{level}", name, whole, metadata=metadata)
    cpu = Cpu("x86_64", level)
    return stamped(plain, folder, variant=variant(cpu.label, cpu.variant_property))


def package(level: str) -> dict[str, bytes | str]:
    """A package with one module, which differs between levels."""
    return {"demo/__init__.py": "from demo._c import level\n", f"demo/{so('_c')}": module(level)}


def so(name: str) -> str:
    """The file name of the extension module *name* for this Python."""
    return f"{name}.cpython-{PYTHON.removeprefix('cp')}-x86_64-linux-gnu.so"


def hwcaps_release(folder: Path, builds: Mapping[str, Mapping[str, bytes | str]]) -> list[Path]:
    """The wheels of a release, by level."""
    return [hwcaps_wheel(folder, files, level) for level, files in builds.items()]


def join(folder: Path, wheels: Sequence[Path]) -> Path:
    """The joined wheel of *wheels*, written into *folder*."""
    made = joined([OfferedWheel.of(path) for path in wheels])
    written(PublishPlan("hwcaps", (made,), ()), folder)
    return folder / made.target


def unpacked(path: Path, folder: Path) -> Path:
    """What the wheel at *path* holds, in *folder*."""
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
    return folder


def environment(level: str = "v4", **more: str) -> dict[str, str]:
    """The environment in which the loader of glibc takes this processor for one of *level*."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("LD_", "GLIBC_", "PYTHON"))}
    tunables = {"GLIBC_TUNABLES": f"glibc.cpu.hwcaps={MASKS[level]}"} if MASKS[level] else {}
    return {**clean, **tunables, **more}


def program_output(
    folder: Path,
    program: str = "import demo; print(demo.level())",
    *,
    level: str = "v4",
    before: Sequence[str | Path] = (),
    **more: str,
) -> str:
    """What *program* prints where *folder* is site-packages, on a processor of *level*; *before* starts Python."""
    command = [*before, sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(folder)!r}); {program}"]
    run = subprocess.run(command, env=environment(level, **more), capture_output=True, text=True, check=False)
    assert not run.returncode, run.stderr
    return run.stdout.strip()


def levels_here() -> list[str]:
    """The levels whose copies this machine's loader can be made to take, highest first."""
    run = subprocess.run([LOADER, "--help"], capture_output=True, text=True, check=True).stdout
    there = [level for level in ("v4", "v3", "v2") if f"x86-64-{level} (supported" in run]
    return [*there, "v1"]


def listed(path: Path) -> list[str]:
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


def as_json(text: str) -> object:
    return json.loads(text)
