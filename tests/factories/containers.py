"""Containers for cibuildwheel to build in: podman's, in an image that tests/podman/image makes once on each machine."""

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from platformdirs import user_cache_path

SCRIPT = Path(__file__).parents[1] / "podman" / "image"
# the user's own, asked for before the session puts another in its place
CACHE = user_cache_path()

needs_podman = pytest.mark.skipif(not shutil.which("podman"), reason="podman not on this machine")


def podman() -> Mapping[str, str]:
    """What the environment of cibuildwheel needs besides the process's own; skips the test where there is no image.

    The first call on a machine makes the image, in a minute.
    """
    run = made()
    if run.returncode:
        pytest.skip(run.stderr.strip())
    return variables(run)


@functools.cache
def made() -> subprocess.CompletedProcess[str]:
    """The run of the script: one for each process, and all but the first of a machine take no time."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(CACHE), "PYTHON": sys.executable}
    return subprocess.run([SCRIPT], capture_output=True, text=True, check=False, env=environment)


def variables(run: subprocess.CompletedProcess[str]) -> Mapping[str, str]:
    return dict(line.split("=", 1) for line in run.stdout.splitlines())
