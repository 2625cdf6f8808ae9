"""What requirements come to on a machine that need not be this one, as a lock (PEP 751) that uv writes.

    files of requirements, for its Python and platform -> uv pip compile, without builds -> pylock.toml

Without builds nothing of a stranger's runs: an sdist, a folder or a repository that says only when it is built what it
requires is refused by its name.
"""

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from vbuild.errors import BuildError
from vbuild.hardware.machine import Machine
from vbuild.hardware.uv_platform import python_of, uv_platform
from vbuild.index_client.configuration import UNBUILT, Indexes, compile_command, unbuilt
from vbuild.process.run import run
from vbuild.recipe.variables import for_installers


def lock_for(machine: Machine, files: Iterable[Path], stage: Path, *, builds: bool) -> Path:
    """The lock of what the requirements in *files* come to on *machine*; it is written into the folder *stage*.

    `BuildError`, in uv's words, if nothing fits; by its name if something would have to be built, unless *builds*.
    """
    lock, log = stage / "pylock.toml", stage / "log"
    options = ["--quiet", "--no-header", "--format=pylock.toml", "--no-python-downloads"]
    options += ["--python-version", python_of(machine), "--python-platform", uv_platform(machine)]
    # unless one is named, uv asks the one in a .venv of the working folder, which may be a stranger's
    command = compile_command(sys.executable, files, lock, *options, builds=builds)
    run_uv(command, log, name="uv pip compile")
    return lock


def run_uv(command: Iterable[str], log: Path, *, name: str) -> None:
    """Run *command*, one of uv's, with the configured indexes; `BuildError`, which calls it *name*, if it fails."""
    environment = {**for_installers(os.environ, ()), **Indexes.configured().environment()}
    try:
        run([*command], log=log, environment=environment, name=name, is_kept=False)
    except BuildError as error:
        text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
        raise BuildError(f"{project}: {UNBUILT}" if (project := unbuilt(text)) else str(error)) from error
