"""What a Python says about the compiler it was built with, which is what setuptools compiles with."""

import json
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

from msgspec import Struct

from vbuild.errors import BuildError
from vbuild.index_client.uv import find_command
from vbuild.toolchain.probes import is_script, remembered

_ASK = """
import json, sys, sysconfig
known = sysconfig.get_config_vars()
names = ("CC", "CXX", "CFLAGS", "LDFLAGS", "LDSHARED", "EXT_SUFFIX", "MULTIARCH")
print(json.dumps({
    "path": sys.executable,
    "implementation": sys.implementation.name,
    "version": sys.version_info[:3],
    "scripts": sysconfig.get_path("scripts"),
    "include": sysconfig.get_path("include"),
    **{name.lower(): str(known.get(name) or "") for name in names},
}))
"""

_PARSED: dict[str, Callable[[Any], Any]] = {"path": Path, "scripts": Path, "include": Path, "version": tuple}


class Interpreter(Struct, frozen=True):
    """A Python, and the commands and flags that its sysconfig hands to extension builds."""

    path: Path
    implementation: str
    version: tuple[int, ...]
    scripts: Path
    cc: str = ""
    cxx: str = ""
    cflags: str = ""
    ldflags: str = ""
    ldshared: str = ""
    ext_suffix: str = ""
    multiarch: str = ""
    include: Path = Path()

    @classmethod
    def found(cls, python: str, environment: Mapping[str, str]) -> Self:
        """The interpreter named *python*, a version or a path; `BuildError` where this machine has none.

        Pythons are never downloaded.
        """
        return cls.at(_path(python, environment), environment)

    @classmethod
    def at(cls, path: Path, environment: Mapping[str, str]) -> Self:
        """The interpreter at *path*; `BuildError` where it does not run."""
        ask = partial(_ask, path, environment)
        # a script, such as pyenv's, may lead to another Python tomorrow
        known = ask() if is_script(path) else remembered(_ASK, path, environment=environment, ask=ask, also=_of(path))
        return cls(**{name: _PARSED.get(name, str)(value) for name, value in known.items()})

    @property
    def kind(self) -> str:
        """What decides which packages there are for it: implementation, version, system and machine."""
        version = ".".join(map(str, self.version[:2]))
        return f"{self.implementation}-{version}-{sys.platform}-{platform.machine()}"

    @property
    def rpaths(self) -> tuple[str, ...]:
        """The linker arguments that name this interpreter's own folders, which no wheel may carry."""
        words = [*self.ldflags.split(), *self.ldshared.split()]
        return tuple(dict.fromkeys(word for word in words if word.startswith(("-Wl,-rpath,", "-Wl,-R"))))


def _ask(path: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    command = [str(path), "-I", "-c", _ASK]
    try:
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
        known: dict[str, Any] = json.loads(ran.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise BuildError(f"{path}: not a Python that runs: {error}") from error
    return known


def _of(path: Path) -> tuple[Path, ...]:
    """What else tells a Python what it is: the environment that it belongs to."""
    return (path.parent / "pyvenv.cfg", path.parent.parent / "pyvenv.cfg")


def _path(python: str, environment: Mapping[str, str]) -> Path:
    if python in {"", sys.executable}:
        return Path(sys.executable)
    command = find_command(python)
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode:
        reason = next((line for line in ran.stderr.splitlines() if line.startswith("error:")), "error: not found")
        raise BuildError(f"no Python {python!r} on this machine: {reason.removeprefix('error: ')}")
    return Path(ran.stdout.strip())
