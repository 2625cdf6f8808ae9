"""The variable that makes a process list folders from the end: output must not depend on their order.

reversed_order() -> the variable that loads reversed_folders.c: a process with it lists folders from the end
"""

import atexit
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

_SOURCE = Path(__file__).with_name("reversed_folders.c")


@cache
def reversed_order() -> dict[str, str]:
    """The variable with which a process, and its children, read folders from their end; built once in a session."""
    folder = Path(tempfile.mkdtemp(prefix="reversed-folders-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    library = folder / "reversed_folders.so"
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["gcc", *flags, "-o", library, _SOURCE, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library)}
