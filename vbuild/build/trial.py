"""Test a finished wheel: install it into a new environment, then run the recipe's command.

The wheel is installed under its plain name, which every installer reads.
"""

import os
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from vbuild.build.advice import missing_module
from vbuild.build.environment import BuildEnvironment
from vbuild.errors import BuildError, at
from vbuild.files.atomic import linked
from vbuild.hardware.cpu import Cpu
from vbuild.index_client.configuration import install_command, venv_command
from vbuild.process.run import run
from vbuild.recipe.model import Check
from vbuild.recipe.variables import for_installers, passed
from vbuild.toolchain.interpreter import Interpreter
from vbuild.wheel.name import WheelName


class TrialResult(StrEnum):
    NONE = "no test"
    PASSED = "passed"
    NOT_RUN = "not run"


class WheelTrial(Struct, frozen=True):
    """The test of wheels: the command of *check*, in an environment of *interpreter*.

    *find_links* has more wheels.
    """

    check: Check
    interpreter: Interpreter
    cpu: Cpu
    machine: Cpu | None
    index_variables: Callable[[], Mapping[str, str]]
    find_links: Path | None = None
    pass_env: tuple[str, ...] = ()

    def run(self, wheel: Path, folder: Path, log: Path) -> TrialResult:
        """Test *wheel* in the new *folder*, unless this machine lacks its CPU level."""
        folder.mkdir(parents=True)
        is_above = self.machine is None or not self.machine.runs(self.cpu)
        result = TrialResult.NONE if self.check.command is None else TrialResult.NOT_RUN if is_above else None
        if result or self.check.command is None:
            return result or TrialResult.NONE
        plain = linked(wheel, folder / str(WheelName.parse(wheel.name).plain()))
        environment = environment_in(folder)
        empty = folder / "empty"  # the command must find the wheel installed, not the source tree
        empty.mkdir()
        variables = {**for_installers(os.environ, self.pass_env), **self.index_variables()}
        links = ["--find-links", str(self.find_links)] if self.find_links else []
        fill = install_command(environment.python, *links, str(plain), *self.check.requires, builds=True)
        seen = environment.variables(passed(os.environ, self.pass_env))
        with at("test"):
            run(venv_command(self.interpreter.path, folder / "venv"), log=log, environment=variables)
            run(fill, log=log, environment=variables)
            try:
                run(["sh", "-c", self.check.command], log=log, cwd=empty, environment=seen)
            except BuildError as error:
                if missing := missing_module(log.read_text(encoding="utf-8", errors="replace")):
                    line = f"Name the package that has the module: test.requires = [{missing!r}]"
                    raise BuildError(f"{error}\n{line}") from error
                raise
        return TrialResult.PASSED


def environment_in(folder: Path) -> BuildEnvironment:
    return BuildEnvironment(folder / "venv" / "bin" / "python", folder / "venv" / "bin")
