"""What a Python says about the compiler it was built with, which is what setuptools compiles with."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import uv

from vbuild.errors import BuildError

_ASK = """
import json, sys, sysconfig
known = sysconfig.get_config_vars()
names = ("CC", "CXX", "CFLAGS", "LDFLAGS", "LDSHARED")
print(json.dumps({
    "path": sys.executable,
    "implementation": sys.implementation.name,
    "version": sys.version_info[:3],
    "scripts": sysconfig.get_path("scripts"),
    **{name.lower(): str(known.get(name) or "") for name in names},
}))
"""

_PARSED: dict[str, Callable[[Any], Any]] = {"path": Path, "scripts": Path, "version": tuple}


@dataclass(frozen=True, slots=True)
class Interpreter:
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

    @classmethod
    def found(cls, python: str, environment: Mapping[str, str]) -> Self:
        """The interpreter named *python*, a version or a path; `BuildError` where this machine has none.

        Pythons are never downloaded.
        """
        return cls.at(_path(python, environment), environment)

    @classmethod
    def at(cls, path: Path, environment: Mapping[str, str]) -> Self:
        """The interpreter at *path*; `BuildError` where it does not run."""
        try:
            ran = subprocess.run(
                [path, "-I", "-c", _ASK], env=environment, capture_output=True, text=True, check=True, timeout=60
            )
            known = json.loads(ran.stdout)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            raise BuildError(f"{path}: not a Python that runs: {error}") from error
        return cls(**{name: _PARSED.get(name, str)(value) for name, value in known.items()})

    @property
    def rpaths(self) -> tuple[str, ...]:
        """The linker arguments that name this interpreter's own folders, which no wheel may carry."""
        words = [*self.ldflags.split(), *self.ldshared.split()]
        return tuple(dict.fromkeys(word for word in words if word.startswith(("-Wl,-rpath,", "-Wl,-R"))))


def _path(python: str, environment: Mapping[str, str]) -> Path:
    if python in {"", sys.executable}:
        return Path(sys.executable)
    command = [uv.find_uv_bin(), "python", "find", "--no-project", "--no-config", "--no-python-downloads", python]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode:
        reason = next((line for line in ran.stderr.splitlines() if line.startswith("error:")), "error: not found")
        raise BuildError(f"no Python {python!r} on this machine: {reason.removeprefix('error: ')}")
    return Path(ran.stdout.strip())
