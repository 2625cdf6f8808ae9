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
from vbuild.recipe.lock import Lock
from vbuild.recipe.passing import for_installers

# variables of a virtual environment around vbuild, which would lead backends to its packages
_LEAD_ELSEWHERE = frozenset({"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX"})
# with which uv installs others than it is told to; what a lock says they have had their part in
_INSTEAD = frozenset({"UV_OVERRIDE", "UV_CONSTRAINT", "UV_EXCLUDE"})

_DIGITS = 12  # of a digest: paths of programs must stay short


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

    The log of one that cannot be made stays in *logs*, which is that folder where None. uv sees, of the user's
    variables, what installers may, and what is *asked* for. What *lock* has is installed as it says, by its hashes.
    """

    def __init__(
        self,
        folder: Path,
        configuration: Callable[[], Mapping[str, str]],
        *,
        logs: Path | None = None,
        asked: Collection[str] = (),
        lock: Lock | None = None,
    ) -> None:
        self.folder = folder.absolute()
        self._logs = (logs or folder).absolute()
        self._configuration = configuration
        self._asked = tuple(asked)
        self._listed = lock
        self._lock = threading.Lock()
        self._made: dict[Path, Future[Environment]] = {}

    def place(self, interpreter: Interpreter) -> Path:
        """The folder of the environments of *interpreter*, in which their names do not depend on where that is."""
        return self.folder / _digest([str(interpreter.path)])

    def having(self, requirements: Collection[str], interpreter: Interpreter) -> Environment:
        """The environment of *interpreter* with *requirements* in it, made at the first call.

        `BuildError` where they cannot be installed, `RecipeError` where a binding lock does not have them.
        """
        locked = self._listed.packages(requirements, interpreter.kind) if self._listed and requirements else None
        # with a lock, what hooks ask for besides is in the first environment already
        folder = self.place(interpreter) / _digest(requirements if locked is None else locked)
        with self._lock:
            is_first = folder not in self._made
            made = self._made.setdefault(folder, Future())
        if is_first:
            try:
                made.set_result(self._make(folder, requirements, interpreter, locked))
            except BaseException as error:
                made.set_exception(error)
                raise
        return made.result()

    def _make(
        self, folder: Path, requirements: Collection[str], interpreter: Interpreter, locked: Collection[str] | None
    ) -> Environment:
        uv_bin, quiet = uv.find_uv_bin(), ["--no-config", "--no-progress"]
        environment = Environment(folder / "bin" / "python", folder / "bin")
        create = [uv_bin, "venv", *quiet, "--no-project", "--no-python-downloads", "--python", str(interpreter.path)]
        # through links, what a build does to its requirements would be done to uv's cache
        fill = [uv_bin, "pip", "install", *quiet, "--link-mode=copy", "--python", str(environment.python)]
        if locked is None:
            fill += sorted(requirements)
        else:
            file = folder.with_name(f"{folder.name}.txt")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(f"{line}\n" for line in locked), encoding="utf-8")
            # what the build of a requirement without a wheel takes is in no lock
            fill += ["--no-build"] if self._listed and self._listed.is_binding else []
            fill += ["--require-hashes", "--requirements", str(file)]
        log = self._logs / f"environment-{folder.parent.name}-{folder.name}.log"
        variables = {**for_installers(os.environ, self._asked), **self._configuration()}
        if locked is not None:
            variables = {name: text for name, text in variables.items() if name not in _INSTEAD}
        with at("build environment"):
            for command in ([*create, str(folder)], *([fill] if requirements else [])):
                run(command, log=log, environment=variables)
        log.unlink(missing_ok=True)  # another run, into the same folder, may have been here
        return environment


def undisturbed(before: Mapping[str, str]) -> dict[str, str]:
    """*before* without what leads to the packages around vbuild."""
    return {name: text for name, text in before.items() if name not in _LEAD_ELSEWHERE}


def own_environment(interpreter: Interpreter) -> Environment:
    """The packages that *interpreter* has anyway, for builds without isolation."""
    return Environment(interpreter.path, interpreter.scripts)


def _digest(lines: Collection[str]) -> str:
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:_DIGITS]
