"""Lay four wheels of 130 MB out in all layouts, against copying the bytes that are written.

Hard links are no bytes written, neither here nor there. The wheels are of one extension for four CPU levels, each with
a library of 230 MB of data that deflate makes 130 MB of.
"""

import json
import random
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.benchmarks.figure import Figure, Installed, Made, Peer, Setting
from tests.benchmarks.inputs import ran
from tests.benchmarks.measuring import timed
from tests.factories.variants import variant
from tests.factories.wheels import wheel
from vbuild.cli.options import LAYOUTS
from vbuild.variants.stamp import stamped

REACH = 4
LEVELS = ("v1", "v2", "v3", "v4")
DIGITS = 230_000_000
URL = "https://wheels.example.org"

MODULE = """
#define PY_SSIZE_T_CLEAN
#include <Python.h>
long level(void);
static PyObject *answer(PyObject *self, PyObject *none) { return PyLong_FromLong(level()); }
static PyMethodDef methods[] = {{"level", answer, METH_NOARGS, ""}, {0}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_levels", "", -1, methods};
PyMODINIT_FUNC PyInit__levels(void) { return PyModule_Create(&definition); }
"""
LIBRARY = """
asm(".section .rodata\\n.global digits\\ndigits: .incbin \\"%s\\"\\n.previous");
extern const char digits[];
long level(void) { long sum = 0; for (int at = 0; at < 64; at++) sum += digits[at] * 3L; return sum; }
"""


def release(folder: Path) -> None:
    """The four wheels, in *folder*/dist."""
    for number, level in enumerate(LEVELS):
        plain = wheel(folder / level, _name(), _files(folder, number, level))
        if number:
            stamped(plain, folder / "dist", variant=variant(f"x86_64_{level}", f"x86_64 :: level :: {level}"))
        else:
            (folder / "dist").mkdir()
            plain.rename(folder / "dist" / plain.name)
        shutil.rmtree(folder / level)


def _name() -> str:
    python = "cp{}{}".format(*sys.version_info)
    return f"levels-1.0-{python}-{python}-manylinux_2_28_x86_64.whl"


def _files(folder: Path, number: int, level: str) -> dict[str, bytes | str]:
    data, library, module = (folder / f"{name}{number}" for name in ("digits", "lib", "module"))
    data.write_bytes(random.Random(number).randbytes(DIGITS // 2).hex().encode())
    march = "-march=x86-64" + (f"-{level}" if number else "")
    shared = ["gcc", "-O2", march, "-shared", "-fPIC", "-x", "c", "-"]
    library = library.with_name("liblevels.so")
    _gcc([*shared, "-Wl,-soname,liblevels.so", "-o", library], LIBRARY % data)
    include = f"-I{sysconfig.get_path('include')}"
    runpath = "-Wl,-rpath,$ORIGIN/../levels.libs"
    _gcc([*shared, include, runpath, "-o", module, "-x", "none", library], MODULE)
    files: dict[str, bytes | str] = {
        "levels/__init__.py": "from levels._levels import level\n",
        f"levels/_levels{sysconfig.get_config_var('EXT_SUFFIX')}": module.read_bytes(),
        "levels.libs/liblevels.so": library.read_bytes(),
    }
    for file in (data, library, module):
        file.unlink()
    return files


def _gcc(command: Sequence[str | Path], source: str) -> None:
    subprocess.run(list(map(str, command)), input=source.encode(), check=True)


RELEASE = Made(release)


def site(folder: Path, vbuild: Installed, made: Path) -> None:
    """The release in *made*, laid out in *folder*, and the list of its files that are no links, as *folder*/files."""
    laid = json.loads(ran(vbuild.vbuild, *_arguments(made), "-o", folder / "site", "--json"))
    files = [Path(one["folder"]) / file["path"] for one in laid for file in one["files"] if not file["linked"]]
    (folder / "files").write_text("".join(f"{file}\n" for file in files))


SITE = Made(site, others=(RELEASE,), by_vbuild=True)


def figures() -> Iterator[Figure]:
    yield Figure(
        name="layouts",
        what="publish four wheels of 130 MB in all layouts",
        measure=timed(_publishing),
        peer=Peer("`cp` of the files written, cached", timed(_copying), (SITE,)),
        reach=REACH,
        inputs=(RELEASE,),
        tools=("gcc",),
        note="920 MB are inflated and compared with RECORD once, and 4.7 GB hashed once each for RECORD, indexes and "
        "layers, where `cp` hashes nothing.",
    )


def _publishing(setting: Setting) -> Sequence[str | Path]:
    return [setting.vbuild.vbuild, *_arguments(setting.inputs[RELEASE]), "-o", "site"]


def _arguments(made: Path) -> Sequence[str | Path]:
    return ["publish", made / "dist", *(word for layout in LAYOUTS for word in ("--layout", layout)), "--url", URL]


def _copying(setting: Setting) -> Sequence[str | Path]:
    # one name for each, as the folders have some in common
    script = 'n=0; while read -r f; do n=$((n+1)); cp "$f" "$n"; done < "$1"'
    return ["sh", "-euc", script, "sh", setting.inputs[SITE] / "files"]
