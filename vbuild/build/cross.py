"""Build for another machine: what makes a Python that runs here tell backends about the Python that is there.

    _PYTHON_HOST_PLATFORM          the platform of the wheel's tag: linux-aarch64
    _PYTHON_SYSCONFIGDATA_NAME     a module of ours, found by PYTHONPATH: this Python's own configuration, with the
                                   other machine in the names of extension modules (setuptools, Meson)
    SETUPTOOLS_EXT_SUFFIX          the same for scikit-build-core
    CMAKE_TOOLCHAIN_FILE           CMAKE_SYSTEM_NAME and CMAKE_SYSTEM_PROCESSOR
    setup-args: --cross-file       the machine for Meson, and that its programs do not run here

Headers need no replacement: pyconfig.h is one and the same on all 64-bit Linux machines with one C library.
https://github.com/python/cpython/blob/main/Lib/sysconfig/__init__.py
https://scikit-build-core.readthedocs.io/en/stable/guide/crosscompile.html
https://mesonbuild.com/Cross-compilation.html
"""

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from vbuild.build.plan import BuildBackend, FlagPlan
from vbuild.config.table import Settings
from vbuild.errors import BuildError
from vbuild.files.cache import Cache, Part
from vbuild.toolchain.compilers import Compilers
from vbuild.toolchain.interpreter import Interpreter

_CAN = {
    BuildBackend.SETUPTOOLS: "setuptools",
    BuildBackend.SCIKIT_BUILD_CORE: "scikit-build-core",
    BuildBackend.MESON_PYTHON: "meson-python",
}
_DATA = "_sysconfigdata_vbuild"

# the names in a configuration that have the machine in them
_OF_MACHINE = ("EXT_SUFFIX", "SOABI", "MULTIARCH", "HOST_GNU_TYPE")

_SYSCONFIG = '''"""The configuration of this Python for {machine}, as vbuild builds for it."""

import sys
from importlib import import_module

_own = f"_sysconfigdata_{{sys.abiflags}}_{{sys.platform}}_{{sys.implementation._multiarch}}"
build_time_vars = dict(import_module(_own).build_time_vars)
for _name in {names}:
    build_time_vars[_name] = str(build_time_vars.get(_name, "")).replace("{here}", "{machine}")
build_time_vars |= {tools}
'''

_CMAKE = """set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR {machine})

# FindPython asks no interpreter when cross-compiling, and takes python-config's word, which is for this machine; ours
# gives the right answers. Programs for {machine} do not run here, and checks that try to run one see that.
set(CMAKE_CROSSCOMPILING FALSE)
"""

_MESON = """[binaries]
c = {c}
cpp = {cxx}
ar = 'ar'

[host_machine]
system = 'linux'
cpu_family = '{machine}'
cpu = '{machine}'
endian = 'little'

[properties]
needs_exe_wrapper = true
"""


def crossing(
    plan: FlagPlan, *, compilers: Compilers, interpreter: Interpreter, folder: Path | None = None, writes: bool = True
) -> FlagPlan:
    """*plan* with what a build for another machine than *interpreter*'s needs; itself where that is the same.

    The files are in *folder*, or in the user's cache; without *writes*, the plan names them and they need not be there.
    `BuildError` for a backend that cannot be told, for a Python other than CPython with glibc, and where the files
    cannot be written.
    """
    machine, here = plan.cpu.machine, os.uname().machine
    if machine == here:
        return plan
    if interpreter.implementation != "cpython" or f"-{here}-linux-gnu" not in interpreter.ext_suffix:
        raise BuildError(
            f"{interpreter.path}: cannot build for {machine} with a {interpreter.implementation} whose modules end in "
            f"{interpreter.ext_suffix}; expected a CPython's -{here}-linux-gnu.so"
        )
    if plan.backend not in _CAN:
        expected = ", ".join(_CAN.values())
        raise BuildError(f"{plan.backend}: cannot build for {machine} on {here}; expected one of {expected}")
    suffix = interpreter.ext_suffix.replace(here, machine)
    files = _files(plan, compilers, here)
    name = hashlib.sha256("\0".join(files.values()).encode()).hexdigest()[:16]
    place = Cache.of(Part.CROSS, folder).folder / f"{machine}-{name}"
    if writes:
        _write(files, place)
    environment = {
        **dict(plan.environment),
        "_PYTHON_HOST_PLATFORM": f"linux-{machine}",
        "_PYTHON_SYSCONFIGDATA_NAME": _DATA,
        "PYTHONPATH": str(place),
        "SETUPTOOLS_EXT_SUFFIX": suffix,
        "CMAKE_TOOLCHAIN_FILE": str(place / "toolchain.cmake"),
    }
    settings = plan.config_settings
    if plan.backend is BuildBackend.MESON_PYTHON:
        settings = _with_argument(settings, f"--cross-file={place / 'cross.ini'}")
    return replace(plan, environment=tuple(environment.items()), config_settings=settings)


def _files(plan: FlagPlan, compilers: Compilers, here: str) -> dict[str, str]:
    machine, c, cxx = plan.cpu.machine, compilers.c, compilers.cxx or compilers.c
    tools = {"CC": c, "CXX": cxx, "LDSHARED": f"{c} -shared", "LDCXXSHARED": f"{cxx} -shared", "AR": "ar"}
    cflags = dict(plan.environment).get("CFLAGS", "")
    tools |= {"CFLAGS": cflags, "OPT": "", "LDFLAGS": "", "CCSHARED": "-fPIC"}
    return {
        f"{_DATA}.py": _SYSCONFIG.format(machine=machine, here=here, names=_OF_MACHINE, tools=tools),
        "toolchain.cmake": _CMAKE.format(machine=machine),
        "cross.ini": _MESON.format(machine=machine, c=c.split(), cxx=cxx.split()),
    }


def _write(files: dict[str, str], folder: Path) -> None:
    """Make *folder* with *files*; processes may do so at the same time."""
    cache = Cache(Part.CROSS, folder.parent)
    if _is_whole(folder, files):
        cache.mark(folder)
        return
    try:
        with cache.locked(folder.name), cache.replacing(folder.name) as part:
            part.mkdir()
            for name, text in files.items():
                (part / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise BuildError(f"{folder.parent}: cannot be written to: {error.strerror}") from error


def _is_whole(folder: Path, files: dict[str, str]) -> bool:
    with suppress(OSError):
        return all((folder / name).read_bytes() == text.encode() for name, text in files.items())
    return False


def _with_argument(settings: Settings, argument: str) -> Settings:
    """*settings* for meson-python with one more argument of ``meson setup``."""
    given = dict(settings).get("setup-args", ())
    arguments = (given,) if isinstance(given, str) else tuple(given)
    return (*(entry for entry in settings if entry[0] != "setup-args"), ("setup-args", (*arguments, argument)))
