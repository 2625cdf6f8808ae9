"""`vbuild init`: a project or a name on a package index -> a recipe, written once, for its maintainer to edit.

vbuild init mmh3==5.3.1      mmh3.toml, with the sdist and its hash
vbuild init --check FOLDER   what a build would meet; nothing is written
vbuild init FOLDER           [tool.vbuild] at the end of its pyproject.toml; NAME.toml if it has only a setup.py
"""

import os
import tempfile
from pathlib import Path

from msgspec import Struct

from vbuild.build.draft import DraftKey, RecipeDraft
from vbuild.build.given import AskedAxes, Given, given
from vbuild.build.precheck import Obstacle, Weight, prechecked
from vbuild.build.source import fetched, unpacked
from vbuild.build.survey import surveyed
from vbuild.errors import RecipeError
from vbuild.files.atomic import replacing
from vbuild.recipe.model import Recipe
from vbuild.recipe.source import Folder, Sdist


class Prospect(Struct, frozen=True):
    """What a build of a project would meet, by `prechecked`; *notes* are on what was chosen for the user."""

    name: str
    obstacles: tuple[Obstacle, ...]
    notes: tuple[str, ...] = ()

    @property
    def errors(self) -> int:
        """How many of them make a build fail."""
        return sum(one.weight is Weight.ERROR for one in self.obstacles)

    def data(self) -> dict[str, object]:
        """It as JSON holds it."""
        found = [{"weight": str(one.weight), "what": one.what} for one in self.obstacles]
        return {"name": self.name, "obstacles": found, "notes": list(self.notes)}


class WrittenRecipe(Struct, frozen=True):
    """The file *path* with the recipe, and *text*: what was written into it."""

    path: Path
    text: str
    notes: tuple[str, ...] = ()

    def data(self) -> dict[str, object]:
        """It as JSON holds it."""
        return {"recipe": str(self.path), "text": self.text, "notes": list(self.notes)}


def init(source: str | Path, axes: AskedAxes, *, file: Path | None = None) -> WrittenRecipe:
    """Write a recipe for *source*, as in `vbuild.build.given`, along *axes*, into *file*, by default as above.

    `RecipeError`, and nothing written, if there is a recipe already.
    """
    found = given(source, axes)
    if found.draft is None:
        raise RecipeError(f"{found.recipe.file}: has a recipe already; expected a project without [tool.vbuild]")
    is_table = found.recipe.file.name == "pyproject.toml" and file is None
    path = found.recipe.file if is_table else file or _default_file(found)
    if is_table:
        text = found.draft.text("tool.vbuild.")
        before = path.read_text(encoding="utf-8")
        _write(path, f"{before.rstrip()}\n\n{text}")
    else:
        if path.exists():
            raise RecipeError(f"{path}: is there already; remove it, or name another file with --output")
        text = RecipeDraft((*_source(found.recipe, path), *found.draft.keys)).text()
        _write(path, text)
    Recipe.load(path)  # what was written can be read
    return WrittenRecipe(path, text, found.notes)


def prospect(source: str | Path, axes: AskedAxes) -> Prospect:
    """What a build of *source* along *axes* would meet on this machine; nothing is built or written."""
    found = given(source, axes)
    recipe = found.recipe
    with tempfile.TemporaryDirectory() as folder:
        where = recipe.source.subdirectory
        project = unpacked(fetched(recipe.source), Path(folder), subdirectory=where, patches=recipe.build.patches)
        survey = surveyed(project, recipe.name)
        obstacles = [
            one for python in found.pythons or recipe.matrix.pythons for one in prechecked(project, survey, python)
        ]
    return Prospect(recipe.name, tuple(dict.fromkeys(obstacles)), found.notes)


def _default_file(found: Given) -> Path:
    folder = found.recipe.source.path if isinstance(found.recipe.source, Folder) else Path()
    return folder / f"{found.recipe.name}.toml"


def _source(recipe: Recipe, file: Path) -> tuple[DraftKey, ...]:
    """The name and the ``[source]`` of *recipe*, with paths from where *file* stands."""
    keys: tuple[tuple[str, str], ...]
    match recipe.source:
        case Sdist(file=None) as sdist:
            keys = (("sdist", str(sdist)), ("sha256", sdist.sha256))
        case Sdist() as sdist:
            keys = (("path", os.path.relpath(sdist.file or "", file.parent)), ("sha256", sdist.sha256))
        case _:
            keys = (("path", os.path.relpath(str(recipe.source), file.parent)),)
    return (DraftKey("", "name", recipe.name), *(DraftKey("source", key, value) for key, value in keys))


def _write(path: Path, text: str) -> None:
    with replacing(path) as new:
        new.write_text(text, encoding="utf-8")
