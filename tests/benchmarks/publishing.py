"""Lay four wheels of 130 MB out in all eight layouts, against copying the bytes that are written, in turns.

    python -m tests.benchmarks.publishing [ROUNDS] [LAYOUT ...]

Prints the ratio for all layouts in one command, then for each of them alone: what it costs beyond a copy of its files.
Hard links are no bytes written, neither here nor there. The wheels are of one extension for four CPU levels, each with
a library of 230 MB of data that deflate makes 130 MB of.
"""

import json
import random
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.ratio import Command, paired, verdict
from tests.factories.variants import variant
from tests.factories.wheels import wheel
from vbuild.cli.options import LAYOUTS
from vbuild.variants.stamp import stamped

REACH = 1.3
LEVELS = ("v1", "v2", "v3", "v4")
DIGITS = 230_000_000
BIN = Path(sys.executable).parent
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


def release(folder: Path) -> Path:
    """The folder with the four wheels, made anew in *folder*."""
    for number, level in enumerate(LEVELS):
        plain = wheel(folder / level, _name(), _files(folder, number, level))
        if number:
            stamped(plain, folder / "dist", variant=variant(f"x86_64_{level}", f"x86_64 :: level :: {level}"))
        else:
            (folder / "dist").mkdir()
            plain.rename(folder / "dist" / plain.name)
    return folder / "dist"


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


def publishing(dist: Path, layouts: Sequence[str]) -> Command:
    chosen = [word for layout in layouts for word in ("--layout", layout)]
    # next to the wheels, where hard links can be made
    return lambda folder: [BIN / "vbuild", "publish", dist, *chosen, "-o", folder / "site", "--url", URL]


def copying(dist: Path, layouts: Sequence[str], folder: Path) -> Command:
    """The command that copies what `vbuild publish` writes for *layouts*, from a site made in *folder*."""
    site = folder / "-".join(layouts)
    command = publishing(dist, layouts)(folder)
    command = [*command[: command.index("-o")], "-o", site, "--url", URL, "--json"]
    laid = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    files = [Path(one["folder"]) / file["path"] for one in laid for file in one["files"] if not file["linked"]]
    size = sum(file.stat().st_size for file in files)
    print(f"{', '.join(layouts)}: {len(files)} files, {size / 1e6:.0f} MB written")
    # one name for each, as the folders have some in common
    script = 'n=0; for f in "$@"; do n=$((n+1)); cp "$f" "$n"; done'
    return lambda _folder: ["sh", "-c", script, "cp", *files]


def main(arguments: Sequence[str]) -> int:
    """0 where the figure is reached."""
    rounds = int(arguments[0]) if arguments else 3
    asked = tuple(arguments[1:]) or LAYOUTS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dist = release(folder)
        several = [asked, *((layout,) for layout in asked if len(asked) > 1)]
        reached = [
            verdict(
                paired(", ".join(some), publishing(dist, some), copying(dist, some, folder), rounds=rounds),
                reach=REACH,
            )
            for some in several
        ]
        return 0 if reached[0] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
