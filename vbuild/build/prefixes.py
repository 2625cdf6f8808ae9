"""Native dependencies as the build of a wheel sees them: where each is installed, and the variables that lead there.

    PKG_CONFIG_PATH, CMAKE_PREFIX_PATH        for those that ask
    CPATH, LIBRARY_PATH                       for compilers and linkers, behind the project's own -I and -L
    LDFLAGS                                   -rpath-link, so that what a library needs itself is found too
    PATH                                      for their programs
    LD_LIBRARY_PATH                           for what the build runs, where this machine can run it; and for auditwheel

https://gcc.gnu.org/onlinedocs/gcc/Environment-Variables.html
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vbuild.hardware.cpu import Cpu

LIBRARIES = "LD_LIBRARY_PATH"

# CMake, Meson and autotools get the first, and scripts choose
_FOLDERS = ("lib", "lib64")
_PKG_CONFIG = (*(f"{folder}/pkgconfig" for folder in _FOLDERS), "share/pkgconfig")


@dataclass(frozen=True, slots=True)
class Prefix:
    """A native dependency for *cpu* in *folder*, which may not exist yet.

    *about* says what it is.
    """

    name: str
    key: str
    folder: Path
    cpu: Cpu
    about: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.name} for {self.cpu}: {self.about}"

    def data(self) -> dict[str, str]:
        about = {"name": self.name, "cpu": str(self.cpu), "about": self.about}
        return {**about, "key": self.key, "prefix": str(self.folder)}


def prefix_variables(
    prefixes: Sequence[Prefix], before: Mapping[str, str], *, runs: bool, is_zig: bool = False
) -> dict[str, str]:
    """The variables that lead a build to *prefixes*, put before the values in *before*.

    This machine *runs* them, or not.
    """
    if not prefixes:
        return {}
    lists = {
        "PKG_CONFIG_PATH": _below(prefixes, _PKG_CONFIG),
        "CMAKE_PREFIX_PATH": [str(prefix.folder) for prefix in prefixes],
        "CPATH": _below(prefixes, ["include"]),
        "LIBRARY_PATH": _below(prefixes, _FOLDERS),
        "PATH": _below(prefixes, ["bin"]),
        **({LIBRARIES: _below(prefixes, _FOLDERS)} if runs else {}),
    }
    usual = {"PATH": os.defpath}
    leading = {name: _joined(folders, before.get(name) or usual.get(name, "")) for name, folders in lists.items()}
    option = "-L" if is_zig else "-Wl,-rpath-link,"
    link = [f"{option}{folder}" for folder in lists["LIBRARY_PATH"]]
    leading["LDFLAGS"] = " ".join([*link, *filter(None, [before.get("LDFLAGS")])])
    return leading


def prefix_libraries(prefixes: Sequence[Prefix], before: Mapping[str, str]) -> dict[str, str]:
    """The variable by which auditwheel finds the libraries of *prefixes*."""
    return {LIBRARIES: _joined(_below(prefixes, _FOLDERS), before.get(LIBRARIES, ""))} if prefixes else {}


def left_to_compilers(prefixes: Sequence[Prefix], environment: Mapping[str, str]) -> dict[str, str]:
    """What compilers see instead of what `prefix_variables` made of *environment*.

    gcc would take a libmpfr that was just built instead of its own.
    """
    mine = frozenset(_below(prefixes, _FOLDERS))
    if LIBRARIES not in environment or not mine:
        return {}
    folders = environment[LIBRARIES].split(os.pathsep)
    return {LIBRARIES: os.pathsep.join(folder for folder in folders if folder not in mine)}


def prefix_maps(prefixes: Sequence[Prefix]) -> tuple[str, ...]:
    return tuple(f"-ffile-prefix-map={prefix.folder}=native/{prefix.name}" for prefix in prefixes)


def _below(prefixes: Sequence[Prefix], names: Sequence[str]) -> list[str]:
    return [str(prefix.folder / name) for prefix in prefixes for name in names]


def _joined(folders: Sequence[str], before: str) -> str:
    return os.pathsep.join([*folders, *filter(None, [before])])
