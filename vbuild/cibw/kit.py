"""The folder on the host that containers see as part of /host: what runs there, for what, and what it tells.

    kit/vbuild/                          this package, for a Python without packages
    kit/runs/<run>/settings.json         what `vbuild.cibw.container` puts into the container
    kit/runs/<run>/logs/<identifier>/    overrides.jsonl, nvcc.jsonl; calls: a line for each call of a compiler

The logs are written from within the container.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Self

import vbuild
from vbuild.build import nvcc
from vbuild.build.launcher import Override, overrides
from vbuild.build.nvcc import Command
from vbuild.cibw import places
from vbuild.cibw.runs import Run
from vbuild.errors import CiError


@dataclass(frozen=True, slots=True)
class Told:
    """What the launchers tell of a build: flags that were taken out, nvcc's commands, how often compilers ran.

    *started* is when they were put there, in seconds since the epoch; None where they were not.
    """

    overrides: tuple[Override, ...] = ()
    commands: tuple[Command, ...] = ()
    calls: int = 0
    started: float | None = None


@dataclass(frozen=True, slots=True)
class Kit:
    """A kit in *folder*, outside of the project: cibuildwheel copies that into the container."""

    folder: Path

    @classmethod
    def made(cls, folder: Path) -> Self:
        """A kit in the new *folder*; `CiError` where that has no room for it."""
        try:
            shutil.copytree(Path(vbuild.__file__).parent, folder / "vbuild", ignore=_all_but_modules)
        except OSError as error:
            raise CiError(
                f"{folder}: {_why(error)}; expected room for what containers run: point TMPDIR at a folder that has it"
            ) from error
        return cls(folder)

    @property
    def inside(self) -> PurePosixPath:
        """Where it is in the container."""
        return places.inside(self.folder)

    def add(self, run: Run) -> None:
        """Put the settings of *run* into the kit, if it has any."""
        if settings := run.settings():
            logs = self._of(run) / "logs"
            logs.mkdir(parents=True)
            (self._of(run) / "settings.json").write_text(json.dumps(settings), encoding="utf-8")

    def told(self, run: Run, identifier: str) -> Told:
        """What the launchers of *run* told of the build for *identifier*."""
        logs = self._of(run) / "logs" / identifier
        calls, started = logs / "calls", logs / "started"
        return Told(
            overrides(logs / "overrides.jsonl"),
            tuple(dict.fromkeys(nvcc.logged(logs / nvcc.LOG))),
            len(calls.read_bytes().splitlines()) if calls.exists() else 0,
            started.stat().st_mtime if started.exists() else None,
        )

    def _of(self, run: Run) -> Path:
        return self.folder / "runs" / run.name


def _why(error: OSError) -> str:
    """Why a tree cannot be copied: the first of the reasons, one for each file, that shutil puts together."""
    if isinstance(error, shutil.Error) and isinstance(error.args[0], list):
        return str(error.args[0][0][2]).partition("] ")[2].partition(": ")[0]
    return error.strerror or str(error)


def _all_but_modules(folder: str, names: list[str]) -> set[str]:
    return {name for name in names if not name.endswith(".py") and not Path(folder, name, "__init__.py").is_file()}
