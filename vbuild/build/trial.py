"""Try a finished wheel: installed where nothing else is, then the recipe's command.

The wheel goes in under its plain name, which every installer reads.
"""

import os
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from pathlib import Path

import uv

from vbuild.build.environment import Environment
from vbuild.build.interpreter import Interpreter
from vbuild.build.process import run
from vbuild.errors import at
from vbuild.hardware.cpu import Cpu
from vbuild.recipe.model import Check
from vbuild.recipe.passing import for_installers, passed


class Trial(StrEnum):
    """What became of the test of a wheel."""

    NONE = "no test"
    PASSED = "passed"
    NOT_RUN = "not run"


def tried(
    wheel: Path,
    check: Check,
    *,
    interpreter: Interpreter,
    cpu: Cpu,
    machine: Cpu | None,
    folder: Path,
    log: Path,
    configuration: Callable[[], Mapping[str, str]],
    beside: Path | None = None,
    pass_env: Collection[str] = (),
) -> Trial:
    """Install *wheel*, which needs *cpu*, into a new environment in *folder* and run the command of *check*.

    Not run where *machine*, the CPU we are on, is below the level. *configuration* gives uv's variables for its
    package indexes, and *beside* is a folder of wheels that are not on them. The command sees what builds see of the
    user's variables, those called as in *pass_env* among them. `BuildError`, with the last lines of the log, where the
    wheel does not install or its test fails.
    """
    if check.command is None:
        return Trial.NONE
    if machine is None or not machine.runs(cpu):
        return Trial.NOT_RUN
    environment = Environment(folder / "venv" / "bin" / "python", folder / "venv" / "bin")
    empty = folder / "empty"  # the command must find the wheel installed, not the source tree
    empty.mkdir(parents=True)
    uv_bin, quiet = uv.find_uv_bin(), ["--no-config", "--no-progress"]
    variables = {**for_installers(os.environ, pass_env), **configuration()}
    seen = environment.variables(passed(os.environ, pass_env))
    create = [uv_bin, "venv", *quiet, "--no-project", "--no-python-downloads", "--python", str(interpreter.path)]
    links = ["--find-links", str(beside)] if beside else []
    fill = [uv_bin, "pip", "install", *quiet, *links, "--python", str(environment.python), str(wheel), *check.requires]
    with at("test"):
        run([*create, str(folder / "venv")], log=log, environment=variables)
        run(fill, log=log, environment=variables)
        run(["sh", "-c", check.command], log=log, cwd=empty, environment=seen)
    return Trial.PASSED
