"""The one way to start Python: it never imports from the current folder, where a stranger's files may be.

``python -c`` and ``python -m`` look there first, before the standard library. An isolated Python, by -I, does not, and
ignores the user's own packages and variables such as PYTHONPATH; -P leaves out the current folder alone.

This module is copied into cibuildwheel's containers: it needs the standard library of Python 3.9 or newer.
"""

from __future__ import annotations

import sys
from pathlib import Path


def isolated(*words: str, python: Path | str = sys.executable) -> list[str]:
    """The command that runs *words*, options and a program, in *python* with its own packages alone."""
    return [str(python), "-I", *words]


def with_own_packages(*words: str) -> list[str]:
    """The command that runs *words* in this Python with all packages of this process, also the user's."""
    return [sys.executable, "-P", *words]
