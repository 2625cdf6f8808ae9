"""Compilers, interpreters and wrapper rules that no machine needs to have."""

from pathlib import Path
from typing import Any

from msgspec import to_builtins

from vbuild.build.plan import BuildBackend, FlagPlan, flag_plan
from vbuild.hardware.cpu import Cpu
from vbuild.toolchain.compilers import CompilerFamily, Compilers, Rust
from vbuild.toolchain.interpreter import Interpreter

RPATH = "-Wl,-rpath,/opt/python/lib"
GCC = Compilers(
    family=CompilerFamily.GCC,
    version=(12, 2),
    machine="x86_64",
    c="gcc -pthread",
    cxx="g++ -pthread",
    programs=(("gcc", ("/usr/bin/gcc",)), ("g++", ("/usr/bin/g++",))),
    marks_levels=True,
    rust=Rust(Path("/usr/bin/rustc"), "x86_64-unknown-linux-gnu"),
)
PYTHON = Interpreter(
    path=Path("/usr/bin/python3"),
    implementation="cpython",
    version=(3, 13, 0),
    scripts=Path("/usr/bin"),
    cc="gcc -pthread",
    cxx="g++ -pthread",
    cflags="-DNDEBUG -O3 -fwrapv",
    ldflags=f"-L/opt/python/lib {RPATH}",
)


def plan(level: str, backend: BuildBackend = BuildBackend.SETUPTOOLS, /, **more: Any) -> FlagPlan:
    settings: dict[str, Any] = {"compilers": GCC, "interpreter": PYTHON, "environment": {}, **more}
    return flag_plan(Cpu.known("x86_64", level), backend, **settings)


def rules(level: str, **more: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """The compiler wrappers' rules for a level of x86-64, as they read them; with *more* in the place of some."""
    return {**to_builtins(plan(level).wrapper_rules), **more}
