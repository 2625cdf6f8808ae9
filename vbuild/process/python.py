"""The one way to start Python: what it imports never comes from the current folder, where a stranger's files may be.

``python -c`` and ``python -m`` look there first, and in the standard library afterwards. A Python that is started
isolated, by -I, does not. It also ignores the user's own packages and variables such as PYTHONPATH; where these count,
-P leaves out the current folder alone.

Containers of cibuildwheel have this module, too: it needs Python's own library, of 3.9 or newer.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

_PRINT_PATH = "import json, sys; print(json.dumps(sys.path))"


def isolated(*words: str, python: Path | str = sys.executable) -> list[str]:
    """The command that runs *words*, options and a program, in *python*, which has its own packages alone."""
    return [str(python), "-I", *words]


def with_own_packages(*words: str) -> list[str]:
    """The command that runs *words* in this Python with all packages that this process has, the user's among them."""
    return [sys.executable, "-P", *words]


def search_path(python: Path) -> list[str]:
    """The folders from which *python* imports, those of its user and of PYTHONPATH among them: it is not isolated.

    So it runs in an empty folder. Errors are those of `subprocess.run`, and `ValueError` for an answer that is none.
    """
    program = python.absolute() if len(python.parts) > 1 else python  # one name alone is looked for on PATH
    with TemporaryDirectory(prefix="vbuild-python-") as folder:
        command = [str(program), "-c", _PRINT_PATH]
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    # after what its .pth files may print
    found: list[str] = json.loads(ran.stdout.strip().rpartition("\n")[2])
    return [folder for folder in found if folder]
