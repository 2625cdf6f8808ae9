"""Wheels of the package index, each fetched, slimmed and unpacked once for all tests of a process that ask for it."""

import re
import subprocess
import sys
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import pytest

from vbuild.slimming.request import Cuts, Share
from vbuild.slimming.results import LibraryCut, Slimmed
from vbuild.slimming.slim import slim

_PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_24", "manylinux2014")
PIP = (sys.executable, "-m", "pip", "--quiet")


@dataclass(frozen=True, slots=True)
class Pair:
    """A library of a wheel as it was and as it is now, each in its unpacked wheel beside what it brings along."""

    cut: LibraryCut
    fat: Path
    slim: Path


@dataclass(frozen=True, slots=True)
class Cutting:
    """A wheel before and after slimming to *gpus*, packed and unpacked."""

    gpus: str
    slimmed: Slimmed
    before: Path
    after: Path

    @property
    def wheel(self) -> Path:
        assert self.slimmed.path
        return self.slimmed.path

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """The libraries that have less GPU code now."""
        found = (cut for cut in self.slimmed.libraries if cut.dropped)
        return tuple(Pair(cut, self.before / cut.member, self.after / cut.member) for cut in found)


@dataclass(frozen=True, slots=True)
class Published:
    """A release of the index for one kind of machine, and for one Python where its wheels differ."""

    requirement: str
    machine: str = "x86_64"
    python: str | None = None
    platforms: tuple[str, ...] = _PLATFORMS

    def __str__(self) -> str:
        return "-".join(filter(None, (self.requirement.replace("==", "-"), self.machine, self.python)))

    def on(self, machine: str) -> Self:
        """The same release for another kind of machine."""
        return replace(self, machine=machine)


class PublishedWheels:
    """What was fetched and made of it, in the test run's temporary folder."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self.folder = factory.getbasetemp() / "published"

    def wheel(self, published: Published) -> Path:
        """The wheel of *published*."""
        folder = self.folder / str(published)
        if not (found := sorted(folder.glob("*.whl"))):
            command = [*PIP, "download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
            command += [f"--platform={platform}_{published.machine}" for platform in published.platforms]
            command += [f"--python-version={published.python}"] if published.python else []
            subprocess.run([*command, published.requirement], check=True, capture_output=True)
            found = sorted(folder.glob("*.whl"))
        return found[0]

    def cutting(self, published: Published, gpus: str = "90", cuts: Cuts | None = None) -> Cutting:
        """What slimming to *gpus* makes of it, whatever its licence says; without GPUs *cuts* alone are made."""
        fat = self.wheel(published)
        key = re.sub(r"\W+", "_", f"{gpus} {cuts or ''}")
        share = Share(Share.parse(f"any={gpus}").gpus) if gpus else Share()
        folder = self.folder / f"{published}-{key}"
        if not folder.exists():
            (slimmed,) = slim([fat], folder, shares=[share], cuts=cuts, accept_license=True)
            _KEPT[folder] = slimmed
        slimmed = _KEPT[folder]
        assert slimmed.path
        return Cutting(gpus, slimmed, self._unpacked(fat), self._unpacked(slimmed.path))

    def tool(self, name: str, *requirements: str) -> Path:
        """The program *name* that the wheels of *requirements* bring."""
        folder = self.folder / requirements[0]
        if not folder.exists():
            subprocess.run([*PIP, "install", "--no-deps", "--target", str(folder), *requirements], check=True)
        return next(folder.rglob(f"bin/{name}"))

    def _unpacked(self, wheel: Path) -> Path:
        folder = wheel.parent / "unpacked"
        if not folder.exists():
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder)
        return folder


_KEPT: dict[Path, Slimmed] = {}
