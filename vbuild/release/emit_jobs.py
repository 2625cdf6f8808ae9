"""What is emitted, whatever the system: the parts of a release, where its files are, what a job needs first.

    SOURCE, from the working folder -> Jobs -> github, gitlab, or JSON

The working folder is the one that the jobs start in: a repository's top folder.

A release as jobs: what is one build is one part, with one command that makes it anywhere.

    recipe -> targets -> those of one build key -> Part
    vbuild matrix SOURCE -o FOLDER/NAME --part --only LABEL ... [--python NAME]

All parts together are all targets, each of them once: a label is one target's among those of its Python.

The files that are emitted, from templates beside this module.
"""

import hashlib
import os
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Self, TypeVar

from msgspec import Struct

from vbuild import DISTRIBUTION
from vbuild.errors import BuildError
from vbuild.files.templates import Written, templates
from vbuild.hardware.cpu import Cpu
from vbuild.recipe.flags import HostCompiler
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


def parts(recipe: Recipe) -> tuple[JobPart, ...]:
    """The parts of *recipe*'s release, in the order of its targets; `BuildError` for a label that `--only` misreads."""
    builds: dict[tuple[str, ...], list[Target]] = defaultdict(list)
    for target in recipe.targets:
        if target.label == _PLAIN:
            raise BuildError(
                f"{recipe.file}: a variant is labelled 'plain', as --only calls the plain wheel; expected another label"
            )
        builds[target.build_key].append(target)
    has_pythons = len(recipe.matrix.pythons) > 1
    here = f"{recipe.file.parent.absolute()}/"
    names: set[str] = set()
    found = []
    for targets in builds.values():
        first = targets[0]
        base = name = _named(targets, with_python=has_pythons)
        number = 1
        while name.lower() in names:
            number += 1
            name = f"{base}-{number}"
        names.add(name.lower())
        python = first.python
        part = JobPart(
            name=name,
            labels=tuple(map(str, targets)),
            # a path below the recipe is relative to it, as on any machine
            python=(f"./{python.removeprefix(here)}" if python.startswith(here) else python) if has_pythons else None,
            version=None if "/" in python or python == sys.executable else python,
            cpu=str(first.cpu),
            cuda=str(first.cuda.toolkit) if first.cuda else None,
        )
        found.append(part)
    return tuple(found)


def _named(targets: list[Target], *, with_python: bool) -> str:
    """A name for the part of *targets*, by the pieces that their labels begin with, and by their Python if asked."""
    labels, python = [str(target) for target in targets], targets[0].python
    name = _PLAIN
    if _PLAIN not in labels:
        columns = zip(*(label.split("_") for label in labels), strict=False)
        name = "_".join(column[0] for column in takewhile(lambda column: len(set(column)) == 1, columns)) or labels[0]
    if with_python:
        match = _CPYTHON.fullmatch(python)
        name += f"-cp{match[1].replace('.', '')}" if match else f"-{python.rpartition('/')[2]}"
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip(".-") or "part"
    return name if len(name) <= _MOST else f"{name[: _MOST - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def rendered(template: str, quote: Callable[[str], str], **values: object) -> str:
    """The text of the *template* of that name with *values* in it; *quote* is what the file asks of a text."""
    environment = templates(
        "vbuild.release",
        quote,
        lstrip_blocks=True,
        # GitHub's own placeholders look like jinja's
        variable_start_string="[[",
        variable_end_string="]]",
        comment_start_string="[#",
        comment_end_string="#]",
    )
    return environment.get_template(template).render(values)


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

    *source* is a path from the working folder, as a command takes it. *options* are those of every ``vbuild matrix``.
    *python* is the version that runs vbuild, and builds if the recipe names none; jobs run on a *machine* of this kind.
    """

    name: str
    source: str
    parts: tuple[JobPart, ...]
    options: tuple[str, ...]
    machine: str
    python: str
    parts_folder: str = Written("parts")
    folder: str = Written("dist")

    @classmethod
    def of(cls, source: Path, options: Sequence[str] = ()) -> Self:
        """The jobs of the recipe or project at *source*; `BuildError` if it is not in the working folder."""
        where = _relative(source)
        recipe = Recipe.load(source)
        inside = recipe.source.path if isinstance(recipe.source, Folder) else None
        if inside and not inside.resolve().is_relative_to(Path.cwd().resolve()):
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
            options=tuple(options),
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


def _line(text: str, place: str) -> str:
    """*text*, where it can stand in one line of any file that is emitted."""
    if not text.isprintable():
        raise BuildError(f"{place}: {text!r} cannot be written in one line; expected printable characters alone")
    return text
