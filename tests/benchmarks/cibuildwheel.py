"""`vbuild cibuildwheel` for three CPU levels against cibuildwheel three times in a row, with the same flags.

    python -m tests.benchmarks.cibuildwheel [--bare]

Both build the same generated project in the same container, where a run compiles for most of its time. What vbuild
does besides, proving, stamping and indexing, should add at most a twentieth. ``--bare`` times cibuildwheel's part
alone.
"""

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.ratio import Command, paired, timed, verdict
from tests.factories.containers import made, variables

REACH = 1.05
LEVELS = ("x86-64", "x86-64-v2", "x86-64-v3")
FILES, LOOPS = 20, 80

CIBUILDWHEEL = (sys.executable, "-m", "cibuildwheel")
ARGUMENTS = ("--platform", "linux")
REPAIR = "auditwheel repair --disable-isa-ext-check -w {dest_dir} {wheel}"

PROJECT = f"""
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "loops"
version = "1.0"
[tool.cibuildwheel]
environment = {{ CFLAGS = "-O3" }}
[tool.vbuild.matrix]
cpu = [{", ".join(f'"{level}"' for level in LEVELS)}]
"""
SETUP = """
from glob import glob
from setuptools import Extension, setup
setup(py_modules=[], ext_modules=[Extension("loops", sorted(glob("src/*.c")))])
"""
MODULE = """
#include <Python.h>
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "loops", NULL, -1, NULL};
PyMODINIT_FUNC PyInit_loops(void) { return PyModule_Create(&definition); }
"""
LOOP = """
void loop_{file}_{number}(float *restrict a, const float *restrict b, const int *restrict c, int n) {{
    for (int i = 0; i < n; i++) {{
        float x = b[i] * {number}.5f + a[i];
        for (int j = 0; j < {inner}; j++)
            x += b[j] * x > {file}.0f ? b[i + j] : a[j] * (float)(c[i] >> {shift});
        a[i] = x;
    }}
}}
"""


def main(arguments: Sequence[str]) -> int:
    """0 where the figure is reached."""
    image = made()
    if image.returncode:
        sys.exit(image.stderr.strip())
    os.environ.update(variables(image))
    with tempfile.TemporaryDirectory() as folder:
        project = generated(Path(folder))
        if "--bare" in arguments:
            print(f"cibuildwheel, {len(LEVELS)} levels: {timed(theirs(project)).seconds:.3f} s")
            return 0
        vbuild = shutil.which("vbuild", path=Path(sys.executable).parent)
        if vbuild is None:
            sys.exit("vbuild is not installed beside this Python")
        title = f"{FILES} files, {len(LEVELS)} levels: vbuild cibuildwheel vs cibuildwheel for each"
        return 0 if verdict(paired(title, ours(vbuild, project), theirs(project)), reach=REACH) else 1


def generated(folder: Path) -> Path:
    """A project whose extension takes a quarter of a minute to compile."""
    (folder / "src").mkdir()
    files = {"pyproject.toml": PROJECT, "setup.py": SETUP, "src/module.c": MODULE}
    for file in range(FILES):
        loops = (
            LOOP.format(file=file, number=number, inner=4 + number % 5, shift=number % 7) for number in range(LOOPS)
        )
        files[f"src/loops{file}.c"] = "".join(loops)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def ours(vbuild: str, project: Path) -> Command:
    # what one run keeps must not help the next
    return lambda into: _within(
        project, f"XDG_CACHE_HOME={into / 'cache'}", vbuild, "cibuildwheel", "-o", into / "dist", "--", *ARGUMENTS
    )


def theirs(project: Path) -> Command:
    """A run for each level, one after the other."""

    def command(into: Path) -> Sequence[str | Path]:
        return _within(project, "sh", "-c", " && ".join(run(level, into) for level in LEVELS))

    def run(level: str, into: Path) -> str:
        told = (f'CIBW_ENVIRONMENT=CFLAGS="-O3 -march={level}"', f"CIBW_REPAIR_WHEEL_COMMAND={REPAIR}")
        return shlex.join(["env", *told, *CIBUILDWHEEL, *ARGUMENTS, "--output-dir", str(into / "out" / level)])

    return command


def _within(folder: Path, *command: str | Path) -> Sequence[str | Path]:
    return ["env", "-C", folder, *command]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
