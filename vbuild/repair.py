"""`vbuild repair`: a wheel as a backend leaves it, made portable as `vbuild matrix` does it.

    wheel + [repair] of a recipe, or [tool.vbuild.repair] of the project in the current folder -> portable wheel

For a project that runs cibuildwheel by itself: ``repair-wheel-command = "vbuild repair {wheel} {dest_dir}"``.
https://cibuildwheel.pypa.io/en/stable/options/#repair-wheel-command
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vbuild.build.process import supervised
from vbuild.build.repair import repaired
from vbuild.errors import BuildError, at
from vbuild.recipe.model import Repair
from vbuild.recipe.passing import variable_pattern
from vbuild.table import Table
from vbuild.wheel.name import WheelName

_PROJECT = Path("pyproject.toml")


@dataclass(frozen=True, slots=True)
class Portable:
    """The portable *wheel* of another, *source*."""

    source: Path
    wheel: Path

    @property
    def size(self) -> int:
        """The size of the portable wheel in bytes."""
        return self.wheel.stat().st_size

    def data(self) -> dict[str, Any]:
        """The result as JSON holds it."""
        return {"source": self.source.name, "wheel": self.wheel.name, "bytes": self.size}


def repair(wheel: Path, folder: Path, *, recipe: Path | None = None) -> Portable:
    """Write into *folder* the portable wheel of *wheel*, one file and never half of it.

    *recipe* is a recipe file, a ``pyproject.toml``, or the folder of a project; without one the current folder's
    project counts, if it has a ``[tool.vbuild]`` table. `BuildError` with the end of the command's output, whose log is
    kept then, where it fails; `TableError` where the settings are none; `WheelError` where the wheel's name is none.
    """
    name = WheelName.parse(wheel.name)
    if name.variant is not None:
        raise BuildError(
            f"{wheel.name}: has the variant label {name.variant!r}, which auditwheel does not know; "
            f"expected the plain wheel: repair it first, then vbuild stamp"
        )
    if not wheel.is_file():
        raise BuildError(f"{wheel}: no such wheel")
    settings, asked = _settings(recipe)
    try:
        with _log() as log, supervised():
            return Portable(wheel, repaired(wheel.absolute(), folder, log=log, settings=settings, pass_env=asked))
    except OSError as error:
        raise BuildError(f"{folder}: cannot be written: {error.strerror}") from error


def _settings(recipe: Path | None) -> tuple[Repair, tuple[str, ...]]:
    """What *recipe* says of repairing, and which variables it passes.

    Nothing else in it is looked at: there is nothing to build.
    """
    path = recipe or _PROJECT
    if path.is_dir():
        path /= _PROJECT
    if recipe is None and not path.is_file():
        return Repair(), ()
    table = Table.load(path)
    with at(path):
        for key in ("tool", "vbuild") if path.name == _PROJECT.name else ():
            if key not in table:
                return Repair(), ()
            table = table.handed(key)
        build = table.handed("build") if "build" in table else Table({})
        asked = build.parsed_texts("pass-env", variable_pattern, ())
        with table.optional("repair") as settings:
            return Repair.read(settings), asked


@contextmanager
def _log() -> Iterator[Path]:
    """A log that is kept only where the block fails: the error names it."""
    number, name = tempfile.mkstemp(prefix="vbuild-repair-", suffix=".log")
    os.close(number)
    yield Path(name)
    Path(name).unlink(missing_ok=True)
