"""Programs that only some tests need, and that a machine may lack."""

import shutil
import subprocess

import pytest


def needs(*programs: str) -> pytest.MarkDecorator:
    """Skips a test where one of *programs* is not there, or does not run: rustup leaves stubs for what it lacks."""
    missing = [program for program in programs if not _runs(program)]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not on this machine")


def _runs(program: str) -> bool:
    path = shutil.which(program)
    return path is not None and not subprocess.run([path, "--version"], capture_output=True, check=False).returncode
