"""A release as jobs: what is one build is one part, with one command that makes it anywhere.

    recipe -> targets -> those of one build key -> Part
    vbuild matrix SOURCE -o FOLDER/NAME --part --only LABEL ... [--python NAME]

All parts together are all targets, each of them once: a label is one target's among those of its Python.
"""

import hashlib
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from vbuild.errors import CiError
from vbuild.recipe.model import Recipe
from vbuild.recipe.target import Target

# in names of jobs, files and artifacts; GitLab's jobs have at most 255 characters with all that stands around the name
_MOST = 64
_PLAIN = "plain"

_CPYTHON = re.compile(r"(?:(?:c?python)@?)?(\d+(?:\.\d+)*t?)")


@dataclass(frozen=True, slots=True)
class Part:
    """One job of a release: one build, and all wheels that are cut from it.

    *name* is no other part's, also where case does not count, and can be a file's, a job's or an artifact's. *labels*
    are what ``--only`` takes. *python* is what ``--python`` takes, None where the recipe has one Python; *version* is
    that Python's where the recipe names it so, None where it gives a path or nothing. *cpu* is the level, *cuda* the
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


def parts(recipe: Recipe) -> tuple[Part, ...]:
    """The parts of *recipe*'s release, in the order of its targets; `CiError` where a label cannot be chosen alone."""
    builds: dict[tuple[str, ...], list[Target]] = defaultdict(list)
    for target in recipe.targets():
        if target.label == _PLAIN:
            raise CiError(
                f"{recipe.file}: a variant is labelled 'plain', as --only calls the plain wheel; expected another label"
            )
        builds[target.build_key].append(target)
    names = _unique(_named(targets, recipe) for targets in builds.values())
    return tuple(_part(name, targets, recipe) for name, targets in zip(names, builds.values(), strict=True))


def _part(name: str, targets: list[Target], recipe: Recipe) -> Part:
    first = targets[0]
    several = len(recipe.matrix.pythons) > 1
    return Part(
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
