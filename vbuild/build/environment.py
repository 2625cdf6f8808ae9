"""Build environments: a Python and the packages that a backend asked for, made by uv.

Builds with the same Python and requirements share one environment, also when they ask for it at the same time: the
first makes it and the others wait. Backends only read it.
"""

import hashlib
import os
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import uv

from vbuild.build.interpreter import Interpreter
from vbuild.build.process import run
from vbuild.errors import at

# variables of a virtual environment around vbuild, which would lead backends to its packages
_LEAD_ELSEWHERE = frozenset({"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX"})


@dataclass(frozen=True, slots=True)
class Environment:
    """A Python to run a backend with, and the folder of the programs that its packages bring."""

    python: Path
    scripts: Path

    def variables(self, before: Mapping[str, str]) -> dict[str, str]:
        """*before* as a process in this environment sees it."""
        return undisturbed(before) | {"PATH": os.pathsep.join([str(self.scripts), before.get("PATH", os.defpath)])}


class Environments:
    """The build environments of one run, in *folder*; *configuration* gives uv's variables for its package indexes.

    The log of one that cannot be made stays in *logs*, which is that folder where None.
    """

    def __init__(
        self, folder: Path, configuration: Callable[[], Mapping[str, str]], *, logs: Path | None = None
    ) -> None:
        self._folder = folder.absolute()
        self._logs = (logs or folder).absolute()
        self._configuration = configuration
        self._lock = threading.Lock()
        self._made: dict[str, Future[Environment]] = {}

    def having(self, requirements: Collection[str], interpreter: Interpreter) -> Environment:
        """The environment of *interpreter* with *requirements* in it, made at the first call.

        `BuildError` where they cannot be installed.
        """
        key = _key(requirements, interpreter)
        with self._lock:
            is_first = key not in self._made
            made = self._made.setdefault(key, Future())
        if is_first:
            try:
                made.set_result(self._make(self._folder / key, requirements, interpreter))
            except BaseException as error:
                made.set_exception(error)
                raise
        return made.result()

    def _make(self, folder: Path, requirements: Collection[str], interpreter: Interpreter) -> Environment:
        uv_bin, quiet = uv.find_uv_bin(), ["--no-config", "--no-progress"]
        environment = Environment(folder / "bin" / "python", folder / "bin")
        create = [uv_bin, "venv", *quiet, "--no-project", "--no-python-downloads", "--python", str(interpreter.path)]
        fill = [uv_bin, "pip", "install", *quiet, "--python", str(environment.python), *sorted(requirements)]
        log = self._logs / f"environment-{folder.name}.log"
        with at("build environment"):
            for command in ([*create, str(folder)], *([fill] if requirements else [])):
                run(command, log=log, environment={**os.environ, **self._configuration()})
        log.unlink(missing_ok=True)  # another run, into the same folder, may have been here
        return environment


def undisturbed(before: Mapping[str, str]) -> dict[str, str]:
    """*before* without what leads to the packages around vbuild."""
    return {name: text for name, text in before.items() if name not in _LEAD_ELSEWHERE}


def own_environment(interpreter: Interpreter) -> Environment:
    """The packages that *interpreter* has anyway, for builds without isolation."""
    return Environment(interpreter.path, interpreter.scripts)


def _key(requirements: Collection[str], interpreter: Interpreter) -> str:
    text = "\n".join([str(interpreter.path), *sorted(requirements)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
