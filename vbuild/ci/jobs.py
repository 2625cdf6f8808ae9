"""What is emitted, whatever the system: the parts of a release, where its files are, what a job needs first.

    SOURCE, from the working folder -> Jobs -> github, gitlab, slurm, or JSON

The working folder is the one that the jobs start in: a repository's top folder.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

from vbuild.ci.parts import Part, parts
from vbuild.errors import CiError
from vbuild.hardware.cpu import Cpu
from vbuild.recipe.host import HostCompiler
from vbuild.recipe.model import Recipe
from vbuild.recipe.source import Folder

T = TypeVar("T")

INSTALL = "pip install vbuild"


@dataclass(frozen=True, slots=True)
class Jobs:
    """A release of *name* as jobs: *parts* of the recipe at *source*, into *parts_folder*, collected in *folder*.

    *source* is a path from the working folder, as a command takes it. *install* is the shell command that brings
    vbuild into a job, *options* what every ``vbuild matrix`` is told besides, *runner* what jobs run on, None for the
    system's usual. *python* is the version that runs vbuild, and builds where the recipe names none; *machine* what is
    built on.
    """

    name: str
    source: str
    parts: tuple[Part, ...]
    install: str
    options: tuple[str, ...]
    runner: str | None
    machine: str
    python: str
    parts_folder: str = "parts"
    folder: str = "dist"

    @classmethod
    def of(cls, source: Path, *, install: str, runner: str | None, options: Sequence[str]) -> Self:
        """The jobs of the recipe or project at *source*; `CiError` where it is not in the working folder."""
        where = _relative(source)
        recipe = Recipe.load(source)
        inside = recipe.source.path if isinstance(recipe.source, Folder) else None
        if inside and not _is_below(inside, Path.cwd()):
            what = f"the project it builds, {inside}, is outside the working folder, {Path.cwd()}"
            raise CiError(f"{source}: {what}; expected one that the jobs find in a checkout, or source.git")
        found = parts(recipe)
        for part in found:
            _line(part.python or "", "matrix.python")
        # zig compiles for any machine
        is_cross = recipe.build.host.compiler is HostCompiler.ZIG
        return cls(
            name=_line(recipe.name, "name"),
            source=where,
            parts=found,
            install=_line(install, "--install"),
            options=tuple(options),
            runner=_line(runner, "--runner") if runner else None,
            machine="x86_64" if is_cross else Cpu.parse(found[0].cpu).machine,
            python=f"{sys.version_info.major}.{sys.version_info.minor}{'t' if 't' in sys.abiflags else ''}",
        )

    def command(self, part: Part) -> tuple[str, ...]:
        """What makes *part*, run in the working folder."""
        return part.command(self.source, self.parts_folder, options=self.options)

    @property
    def collecting(self) -> tuple[str, ...]:
        """What makes one release of all parts that are there, and names what is missing."""
        return ("vbuild", "collect", self.parts_folder, "-o", self.folder, "--recipe", self.source)

    @property
    def versions(self) -> tuple[str, ...]:
        """The Pythons that the recipe names by their versions."""
        return tuple(dict.fromkeys(part.version for part in self.parts if part.version))


def chunks(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    """*items* in their order, at most *most* at a time."""
    for start in range(0, len(items), most):
        yield items[start : start + most]


def _relative(source: Path) -> str:
    """*source* from the working folder, as no command takes it for an option."""
    here = Path.cwd()
    path = Path(os.path.abspath(source))  # noqa: PTH100 - a link in the folder stays what it is
    if not path.is_relative_to(here):
        path = path.parent.resolve() / path.name
    if not path.is_relative_to(here):
        what = f"outside the working folder, {here}, in which the jobs would not find it"
        raise CiError(f"{source}: {what}; expected a recipe or project below it, or another working folder")
    text = _line(path.relative_to(here).as_posix(), "source")
    return f"./{text}" if text.startswith("-") else text


def _is_below(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


def _line(text: str, place: str) -> str:
    """*text*, where it can stand in one line of any file that is emitted."""
    if not text.isprintable():
        raise CiError(f"{place}: {text!r} cannot be written in one line; expected printable characters alone")
    return text
