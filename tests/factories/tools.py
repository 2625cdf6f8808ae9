"""Programs that only some tests need, and that a machine may lack."""

import os
import shutil
import subprocess
from importlib.util import find_spec

import pytest

from tests.factories.once import once


def needs(*programs: str) -> pytest.MarkDecorator:
    """Skips a test where one of *programs* is not there, or does not run: rustup leaves stubs for what it lacks."""
    missing = [program for program in programs if not _version(program)]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not on this machine")


def needs_judge(module: str) -> pytest.MarkDecorator:
    """Skips a test where a judge that Python runs as *module* is not installed: those are in the extra checks."""
    return pytest.mark.skipif(
        find_spec(module) is None, reason=f"{module} is not installed, which the extra checks has"
    )


def host_compilers() -> dict[str, str]:
    """The names that gcc and its partner go by here, Debian's Python's own among them, with the programs behind."""
    names = ("gcc", "g++", "cc", "c++")
    prefixes = ("", f"{os.uname().machine}-linux-gnu-")
    found = ((f"{prefix}{name}", shutil.which(f"{prefix}{name}")) for prefix in prefixes for name in names)
    return {name: path for name, path in found if path}


def unmeasured() -> dict[str, str]:
    """The variables of a process that is interrupted at any moment: coverage would hold its own lock for ever then."""
    return {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_PROCESS_")}


@once
def _version(program: str) -> bytes:
    """What *program* says of its version; empty where it is not there, or does not run."""
    path = shutil.which(program)
    ran = subprocess.run([path, "--version"], capture_output=True, check=False) if path else None
    return (ran.stdout + ran.stderr or b"runs") if ran and not ran.returncode else b""
