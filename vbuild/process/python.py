"""The one way to start Python: what it imports never comes from the current folder, where a stranger's files may be.

``python -c`` and ``python -m`` look there first, and in the standard library afterwards. A Python that is started
isolated, by -I, does not. It also ignores the user's own packages and variables such as PYTHONPATH; where these count,
-P leaves out the current folder alone.

Containers of cibuildwheel have this module, too: it needs Python's own library, of 3.9 or newer.
"""

from __future__ import annotations

import sys
from pathlib import Path


def isolated(*words: str, python: Path | str = sys.executable) -> list[str]:
    """The command that runs *words*, options and a program, in *python*, which has its own packages alone."""
    return [str(python), "-I", *words]


def with_own_packages(*words: str) -> list[str]:
    """The command that runs *words* in this Python with all packages that this process has, the user's among them."""
    return [sys.executable, "-P", *words]
