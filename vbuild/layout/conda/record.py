"""What a conda package says of itself, ``info/index.json``, which a channel's ``repodata.json`` repeats.

    {name}-{version}-{build}.conda in the folder linux-64, linux-aarch64 or noarch
    noarch: python     files in site-packages/, put where the Python of the environment has it
    noarch: generic    no files of a machine or a Python

https://docs.conda.io/projects/conda-build/en/stable/resources/package-spec.html
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any

from vbuild.hardware.conda import MACHINES
from vbuild.layout.installing import Environment

NOARCH = "noarch"
# what clients replace by the prefix of the environment, in a file that paths.json says to hold it; conda's own choice
PLACEHOLDER = "/opt/anaconda1anaconda2anaconda3"


class Independent(StrEnum):
    """What a package does not depend on: with ``python``, the version of Python, be it for one machine or for all."""

    PYTHON = "python"
    GENERIC = "generic"


@dataclass(frozen=True, slots=True)
class CondaRecord:
    """One package; *depends* are conda's match specifications, and the highest *number* of those that fit wins.

    *python* is the Python whose folder its files are in, as ``3.11`` or ``3.13t``; None where it is independent of it.
    *label* is that of the variant it was made of.
    """

    name: str
    version: str
    build: str
    number: int
    subdir: str
    depends: tuple[str, ...]
    independent: Independent | None = None
    python: str | None = None
    license: str | None = None
    label: str | None = None

    @property
    def stem(self) -> str:
        """What the file and the archives in it are called after."""
        return f"{self.name}-{self.version}-{self.build}"

    @property
    def target(self) -> PurePosixPath:
        """Where it lies in the channel."""
        return PurePosixPath(self.subdir, f"{self.stem}.conda")

    @property
    def environment(self) -> Environment:
        """What its files are installed into."""
        folder = f"python{self.python}" if self.python else None
        return Environment("conda", f"{PLACEHOLDER}/bin/python", folder, has_placeholder=True)

    def data(self) -> dict[str, Any]:
        """``index.json``."""
        data: dict[str, Any] = {
            "build": self.build,
            "build_number": self.number,
            "constrains": [],
            "depends": list(self.depends),
            "name": self.name,
            "subdir": self.subdir,
            "version": self.version,
        }
        if self.subdir != NOARCH:
            data |= {"arch": MACHINES[self.subdir], "platform": "linux"}
        if self.independent:
            data["noarch"] = str(self.independent)
        if self.license:
            data["license"] = self.license
        return data


@dataclass(frozen=True, slots=True)
class CondaPackage:
    """The package *record* at *target*, of the wheel at *wheel*; without one it holds nothing.

    *twin* is an earlier package of the same contents, in the same layout: they are compressed once.
    """

    target: PurePosixPath
    record: CondaRecord
    wheel: Path | None = None
    twin: PurePosixPath | None = None


@dataclass(frozen=True, slots=True)
class CondaIndex:
    """The repodata at *target*, a ``repodata.json``, of *files*, packages before it, and the same compressed."""

    target: PurePosixPath
    files: tuple[PurePosixPath, ...]
