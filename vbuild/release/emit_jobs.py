"""What is emitted, whatever the system: the parts of a release, where its files are, what a job needs first.

    SOURCE, from the working folder -> Jobs -> github, gitlab, slurm, or JSON

The working folder is the one that the jobs start in: a repository's top folder.

A release as jobs: what is one build is one part, with one command that makes it anywhere.

    recipe -> targets -> those of one build key -> Part
    vbuild matrix SOURCE -o FOLDER/NAME --part --only LABEL ... [--python NAME]

All parts together are all targets, each of them once: a label is one target's among those of its Python.

The files that are emitted, from templates beside this module, and values quoted as YAML takes them.
"""

import functools
import hashlib
import json
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, Self, TypeVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from msgspec import Struct

from vbuild import DISTRIBUTION
from vbuild.errors import BuildError
from vbuild.hardware.cpu import Cpu
from vbuild.recipe.matrix import HostCompiler
from vbuild.recipe.model import Recipe
from vbuild.recipe.source import Folder
from vbuild.recipe.target import Target

# in names of jobs, files and artifacts; GitLab's jobs have at most 255 characters with all that stands around the name
_MOST = 64
_PLAIN = "plain"

_CPYTHON = re.compile(r"(?:(?:c?python)@?)?(\d+(?:\.\d+)*t?)")


class JobPart(Struct, frozen=True):
    """One job of a release: one build, and all wheels that are cut from it.

    *name* is no other part's, also where case does not count, and can be a file's, a job's or an artifact's. *labels*
    are what ``--only`` takes. *python* is what ``--python`` takes, or None if the recipe has one Python; *version* is
    that Python's where the recipe names it so, or None if it gives a path or nothing. *cpu* is the level, *cuda* the
    version of the toolkit, if any.
    """

    name: str
    labels: tuple[str, ...]
    python: str | None
    version: str | None
    cpu: str
    cuda: str | None = None

    @property
    def selection(self) -> tuple[str, ...]:
        """The arguments of ``vbuild matrix`` that choose this part's targets and no other."""
        only = tuple(argument for label in self.labels for argument in ("--only", label))
        return (*only, "--python", self.python) if self.python else only

    def command(self, source: str, folder: str, *, options: Iterable[str] = ()) -> tuple[str, ...]:
        """What makes this part of the recipe at *source*, into a folder of its own name in *folder*."""
        return ("vbuild", "matrix", source, "-o", f"{folder}/{self.name}", "--part", *options, *self.selection)

    def data(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "labels": list(self.labels),
            "python": self.python,
            "version": self.version,
            "cpu": self.cpu,
            "cuda": self.cuda,
        }


def parts(recipe: Recipe) -> tuple[JobPart, ...]:
    """The parts of *recipe*'s release, in the order of its targets; `BuildError` if a label cannot be chosen
    alone.
    """
    builds: dict[tuple[str, ...], list[Target]] = defaultdict(list)
    for target in recipe.targets():
        if target.label == _PLAIN:
            raise BuildError(
                f"{recipe.file}: a variant is labelled 'plain', as --only calls the plain wheel; expected another label"
            )
        builds[target.build_key].append(target)
    names = _unique(_named(targets, recipe) for targets in builds.values())
    return tuple(_part(name, targets, recipe) for name, targets in zip(names, builds.values(), strict=True))


def _part(name: str, targets: list[Target], recipe: Recipe) -> JobPart:
    first = targets[0]
    several = len(recipe.matrix.pythons) > 1
    return JobPart(
        name=name,
        labels=tuple(map(str, targets)),
        python=_written(first.python, recipe) if several else None,
        version=None if "/" in first.python or first.python == sys.executable else first.python,
        cpu=str(first.cpu),
        cuda=str(first.cuda.toolkit) if first.cuda else None,
    )


def _written(python: str, recipe: Recipe) -> str:
    """*python* as it is called on any machine: one below the recipe by the way from where that stands."""
    here = f"{recipe.file.parent.absolute()}/"
    return f"./{python.removeprefix(here)}" if python.startswith(here) else python


def _named(targets: list[Target], recipe: Recipe) -> str:
    labels = [str(target) for target in targets]
    name = _PLAIN if _PLAIN in labels else _together(labels)
    if len(recipe.matrix.pythons) > 1:
        name += f"-{_tag(targets[0].python)}"
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip(".-") or "part"
    return name if len(name) <= _MOST else f"{name[: _MOST - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _together(labels: list[str]) -> str:
    """The pieces that *labels* begin with, all of them; the first label where that is nothing."""
    columns = zip(*(label.split("_") for label in labels), strict=False)
    return "_".join(column[0] for column in takewhile(lambda column: len(set(column)) == 1, columns)) or labels[0]


def _tag(python: str) -> str:
    """``cp312`` for 3.12, and the last piece of a path."""
    if match := _CPYTHON.fullmatch(python):
        return f"cp{match.group(1).replace('.', '')}"
    return python.rpartition("/")[2]


def _unique(names: Iterable[str]) -> Iterator[str]:
    taken: set[str] = set()
    for name in names:
        unique, number = name, 1
        while unique.lower() in taken:
            number += 1
            unique = f"{name}-{number}"
        taken.add(unique.lower())
        yield unique


def rendered(template: str, **values: object) -> str:
    """The text of the *template* of that name with *values* in it; ``| yaml`` quotes one for YAML."""
    return _environment().get_template(template).render(values)


def quoted(text: str) -> str:
    """*text* as YAML's double-quoted scalar: a string whatever it looks like, ``"3.10"`` and ``"on"`` too."""
    return json.dumps(text, ensure_ascii=False)


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("vbuild.release", "."),
        autoescape=False,  # noqa: S701 - YAML and shell, which quote differently
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # GitHub's own placeholders look like jinja's
        variable_start_string="[[",
        variable_end_string="]]",
        comment_start_string="[#",
        comment_end_string="#]",
    )
    environment.filters["yaml"] = quoted
    return environment


T = TypeVar("T")

# vbuild-wheels is on no package index yet: each project says which wheel or commit its jobs install
VARIABLE = "VBUILD_WHEELS"
INSTALL = (
    f'pip install "${{{VARIABLE}:?set it to a wheel of a {DISTRIBUTION} release, '
    'or to git+https://HOST/OWNER/REPOSITORY@COMMIT}"'
)
# fails in a job that has another project's vbuild, before it runs anything else
CHECK = f"vbuild --version | grep '^{DISTRIBUTION} '"


class Jobs(Struct, frozen=True):
    """A release of *name* as jobs: *parts* of the recipe at *source*, into *parts_folder*, collected in *folder*.

    *source* is a path from the working folder, as a command takes it. *install* is the shell command that brings
    vbuild into a job, *options* what every ``vbuild matrix`` is told besides, *runner* what jobs run on, None for the
    system's usual. *python* is the version that runs vbuild, and builds where the recipe names none; *machine* what is
    built on.
    """

    name: str
    source: str
    parts: tuple[JobPart, ...]
    install: str
    options: tuple[str, ...]
    runner: str | None
    machine: str
    python: str
    parts_folder: str = "parts"
    folder: str = "dist"

    @classmethod
    def of(cls, source: Path, *, install: str, runner: str | None, options: Sequence[str]) -> Self:
        """The jobs of the recipe or project at *source*; `BuildError` if it is not in the working folder."""
        where = _relative(source)
        recipe = Recipe.load(source)
        inside = recipe.source.path if isinstance(recipe.source, Folder) else None
        if inside and not _is_below(inside, Path.cwd()):
            what = f"the project it builds, {inside}, is outside the working folder, {Path.cwd()}"
            raise BuildError(f"{source}: {what}; expected one that the jobs find in a checkout, or source.git")
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

    def command(self, part: JobPart) -> tuple[str, ...]:
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
        raise BuildError(f"{source}: {what}; expected a recipe or project below it, or another working folder")
    text = _line(path.relative_to(here).as_posix(), "source")
    return f"./{text}" if text.startswith("-") else text


def _is_below(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


def _line(text: str, place: str) -> str:
    """*text*, where it can stand in one line of any file that is emitted."""
    if not text.isprintable():
        raise BuildError(f"{place}: {text!r} cannot be written in one line; expected printable characters alone")
    return text
