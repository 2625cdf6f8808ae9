"""Find compilers by their names, and put compiler wrappers before them, in any Python.

cibuildwheel's containers have Pythons from 3.9 on, and no packages. So only Python's own library and
`vbuild.toolchain.compiler_program` are imported. The Python that writes settings and wrappers also runs them.
"""

from __future__ import annotations

import hashlib
import json
import marshal
import os
import py_compile
import re
import shlex
from pathlib import Path
from typing import Any

from vbuild.process.python import isolated
from vbuild.toolchain import compiler_program

# gcc, x86_64-linux-gnu-g++-12, clang++; not gcc-ar
NAME = re.compile(r"(?:[\w.]+-)*(?:cc|c\+\+|gcc|g\+\+|clang|clang\+\+|gfortran|flang)(?:-\d+(?:\.\d+)*)?")
MACRO = re.compile(r"#define (__clang_major__|__clang_minor__|__GNUC__|__GNUC_MINOR__|__x86_64__|__aarch64__) (\d+)")

# what asks a compiler for its macros, of which MACRO finds those that identify it
QUESTION = ("-E", "-dM", "-x", "c", os.devnull)

# the first releases whose -march= knows x86-64-v2, -v3 and -v4
KNOWS_LEVELS = {"gcc": 11, "clang": 12}

# nvcc's wrapper runs without site packages: it finds vbuild beside its settings, by a link
_LIBRARY = "library"
_NVCC = "vbuild.toolchain.nvcc"

_RUN_NVCC = f"import sys; sys.path.insert(0, sys.argv[1] + '/{_LIBRARY}'); import {_NVCC} as nvcc; nvcc.main()"

# settings that say where logs go, on which no output depends
_LOGS = ("log", "calls", "objects")
_OLDEST = 315532800 * 10**9  # 1980-01-01, in nanoseconds, from which the times of compiler wrappers count
_TIME_DIGITS = 14  # of the digest, so that these are less than three years


def compilers_on(path: str) -> dict[str, Path]:
    """Every compiler on *path* by its name; the first of a name counts, but not wrappers of a build around this one."""
    compilers: dict[str, Path] = {}
    for folder in path.split(os.pathsep):
        if Path(folder, compiler_program.SETTINGS).exists():
            continue
        try:
            names = sorted(filter(NAME.fullmatch, os.listdir(folder)))  # noqa: PTH208 - ten times as fast
        except OSError:
            continue
        for name in names:
            file = Path(folder, name)
            if name not in compilers and os.access(file, os.X_OK):
                compilers[name] = file.absolute()
    return compilers


def marking(compiler: str, cpu: str, library: str) -> list[str]:
    return [
        *(compiler, "-shared", "-nostdlib", f"-Wl,--fatal-warnings,-z,{cpu}", "-x", "c", os.devnull),
        *("-o", library),
    ]


def write_wrappers(
    folder: Path, settings: dict[str, Any], *, modules: tuple[str, ...] = (), toolkit: Path | None = None
) -> None:
    """Write into *folder* a compiler wrapper for every program of *settings*, and nvcc's in a double of *toolkit*.

    They find the files *modules* beside themselves, compiled. Caches know a compiler by its bytes, or by its size
    and time: both are the same for wrappers that do the same, and for no others.
    """
    folder = folder.absolute()
    (folder / compiler_program.SETTINGS).write_bytes(marshal.dumps(settings))
    sources = (compiler_program.__file__, *modules)
    mark = _mark(settings, sources)
    for module in sources:
        py_compile.compile(module, str(folder / f"{Path(module).stem}.pyc"), doraise=True)
    for name in settings["programs"]:
        script(folder / name, isolated("-S", str(folder / "compiler_program.pyc"), name), mark)
    if toolkit:
        _double(toolkit, folder / "cuda")
        (folder / compiler_program.TOOLKIT).symlink_to(toolkit.absolute())
        (folder / _LIBRARY).symlink_to(Path(__file__).absolute().parents[2])
        script(folder / "cuda" / "bin" / "nvcc", isolated("-S", "-c", _RUN_NVCC, str(folder)), mark)
        beside = folder / compiler_program.SIDE_BY_SIDE
        # what nvcc calls goes through ccache, too
        threads = f'[ "${{1##*/}}" = nvcc ] && set -- "$@" --threads "${compiler_program.THREADS}"'
        beside.write_text(f'#!/bin/sh\n{threads}\nexec "$@"\n', encoding="utf-8")
        beside.chmod(0o755)


def is_wrapper(nvcc: bytes) -> bool:
    """Whether the program that begins with *nvcc* is a wrapper, which would start itself again."""
    return _NVCC.encode() in nvcc


def script(file: Path, command: list[str], mark: str) -> None:
    """Make *file* a program that becomes *command*, with further arguments; *mark* tells it from others."""
    # through sh, because a #! line can neither quote a path nor be longer than 127 bytes
    text = f'#!/bin/sh\n# {mark}\nexec {shlex.join(command)} "$@"\n'
    file.write_text(text, encoding="utf-8")
    file.chmod(0o755)
    time = _OLDEST + int(hashlib.sha256(text.encode()).hexdigest()[:_TIME_DIGITS], 16)
    os.utime(file, ns=(time, time))


def _mark(settings: dict[str, Any], sources: tuple[str, ...]) -> str:
    relevant = {name: value for name, value in settings.items() if name not in _LOGS}
    if nvcc := relevant.get("nvcc"):
        relevant["nvcc"] = {name: value for name, value in nvcc.items() if name not in _LOGS}
    commands = [*settings["programs"].values(), *([nvcc["command"]] if nvcc else [])]
    ours = [hashlib.sha256(Path(source).read_bytes()).hexdigest() for source in sources]
    content = [relevant, ours, [_state(word) for command in commands for word in command]]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _state(word: str) -> tuple[int, int]:
    try:
        status = Path(word).stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


def _double(toolkit: Path, folder: Path) -> None:
    (folder / "bin").mkdir(parents=True)
    entries = [*toolkit.iterdir(), *(toolkit / "bin").iterdir()]
    for entry in entries:
        if entry not in {toolkit / "bin", toolkit / "bin" / "nvcc"}:
            (folder / entry.relative_to(toolkit)).symlink_to(entry.absolute())
