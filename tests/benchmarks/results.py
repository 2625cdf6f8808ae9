"""What was measured, and where: results.json, from which docs/benchmarks.md is written.

A run replaces the results of its own figures. The others stay, with the environment in which they were taken.
"""

import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import msgspec
from msgspec import Struct
from msgspec.structs import replace

import vbuild
from tests.benchmarks.figure import Result
from vbuild.hardware.cpu import available_cores
from vbuild.hardware.machine import Machine

RESULTS = Path(__file__).with_name("results.json")


class Environment(Struct, frozen=True):
    """When and where figures were taken; *is_shared* says that other work had as much as half a core's time."""

    date: str
    vbuild: str
    python: str
    gcc: str
    cores: int
    cpu: str
    is_shared: bool

    @classmethod
    def here(cls) -> Self:
        """What there is at this moment; ask before anything is measured, as what runs counts as other work."""
        return cls(
            datetime.now(UTC).date().isoformat(),
            vbuild.__version__,
            platform.python_version(),
            _gcc(),
            available_cores(),
            str(Machine.here().cpu or platform.machine()),
            os.getloadavg()[0] > 0.5,
        )

    def __str__(self) -> str:
        shared = ", while other programs ran" if self.is_shared else ""
        return (
            f"{self.date}: vbuild {self.vbuild}, {self.cores} cores ({self.cpu}){shared}, "
            f"Python {self.python}, gcc {self.gcc}"
        )


class Results(Struct, frozen=True):
    """The result of each figure by name; they name their environment by its place in *environments*."""

    environments: tuple[Environment, ...] = ()
    figures: Mapping[str, Result] = {}

    @classmethod
    def load(cls, path: Path) -> Self:
        return msgspec.json.decode(path.read_bytes(), type=cls) if path.exists() else cls()

    def taken(self, name: str) -> Environment | None:
        """In what the figure *name* was taken."""
        result = self.figures.get(name)
        return self.environments[result.environment] if result else None

    def having(self, name: str, result: Result, environment: Environment) -> Self:
        """These, with *result* for the figure *name*; environments that no figure names are left out."""
        found = {one: self.environments[old.environment] for one, old in self.figures.items()} | {name: environment}
        figures = {**self.figures, name: result}
        # newest first
        kept = sorted(set(found.values()), key=lambda one: (one.date, str(one)), reverse=True)
        placed = {one: replace(figures[one], environment=kept.index(found[one])) for one in sorted(figures)}
        return type(self)(tuple(kept), placed)

    def of(self, names: frozenset[str]) -> Self:
        """Those of the figures called *names*."""
        results = type(self)()
        for name in sorted(names & self.figures.keys()):
            results = results.having(name, self.figures[name], self.environments[self.figures[name].environment])
        return results

    def save(self, path: Path) -> None:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")


def _gcc() -> str:
    try:
        said = subprocess.run(["gcc", "-dumpfullversion"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return "none"
    return said.strip()
