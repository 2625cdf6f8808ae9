"""`vbuild cibuildwheel` for three CPU levels against cibuildwheel three times in a row, with the same flags.

Both build the same generated project in the same container, where a run compiles for most of its time. What vbuild
does besides is proving, stamping and indexing.
"""

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.benchmarks.figure import Figure, Made, Measure, Peer, Sample, Setting, Unavailable
from tests.benchmarks.measuring import ran
from tests.factories.containers import made, variables

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


def generated(folder: Path) -> None:
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


PROJECT_FOLDER = Made(generated)


def figures() -> Iterator[Figure]:
    yield Figure(
        name="levels",
        what="`vbuild cibuildwheel` for three levels, 20 files, 14 s of compiling per level",
        measure=_within(_ours),
        peer=Peer("cibuildwheel for each, with the same flags", _within(_theirs)),
        reach=1.05,
        pairs=3,
        inputs=(PROJECT_FOLDER,),
        tools=("podman",),
        note="One second per run goes to wrappers, checks and the start of Python.",
    )


def _within(words: Callable[[Setting], Sequence[str | Path]]) -> Measure:
    """The seconds of a command in the project, with the container of this machine."""

    def measured(setting: Setting) -> Sample:
        return ran(["env", "-C", setting.inputs[PROJECT_FOLDER], *words(setting)], setting.folder, env=_container())[0]

    return measured


def _container() -> Mapping[str, str]:
    """Raises Unavailable if there is no image to build in."""
    image = made()
    if image.returncode:
        raise Unavailable(image.stderr.strip())
    return variables(image)


def _ours(setting: Setting) -> Sequence[str | Path]:
    # what one run keeps must not help the next
    cache = f"XDG_CACHE_HOME={setting.folder / 'cache'}"
    return [cache, setting.vbuild.vbuild, "cibuildwheel", "-o", setting.folder / "dist", "--", *ARGUMENTS]


def _theirs(setting: Setting) -> Sequence[str | Path]:
    """A run for each level, one after the other."""

    def run(level: str) -> str:
        told = (f'CIBW_ENVIRONMENT=CFLAGS="-O3 -march={level}"', f"CIBW_REPAIR_WHEEL_COMMAND={REPAIR}")
        return shlex.join(
            ["env", *told, *CIBUILDWHEEL, *ARGUMENTS, "--output-dir", str(setting.folder / "out" / level)]
        )

    return ["sh", "-c", " && ".join(map(run, LEVELS))]
