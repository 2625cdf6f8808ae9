"""`vbuild init`: a project or a name on a package index -> a recipe, written once, for its maintainer to edit.

vbuild init mmh3==5.3.1      mmh3.toml, with the sdist and its hash
vbuild init FOLDER           [tool.vbuild] at the end of its pyproject.toml; NAME.toml if it has only a setup.py
"""

import os
from pathlib import Path

from msgspec import Struct

from vbuild.build.draft import DraftKey, RecipeDraft
from vbuild.build.given import AskedAxes, Given, given
from vbuild.errors import RecipeError
from vbuild.files.atomic import replacing
from vbuild.files.reading import read_text
from vbuild.recipe.model import Recipe
from vbuild.recipe.source import Folder, Sdist


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
        before = read_text(path)
        _write(path, f"{before.rstrip()}\n\n{text}")
    else:
        if path.exists():
            raise RecipeError(f"{path}: is there already; remove it, or name another file with --output")
        text = RecipeDraft((*_source(found.recipe, path), *found.draft.keys)).text()
        _write(path, text)
    Recipe.load(path)  # what was written can be read
    return WrittenRecipe(path, text, found.notes)


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
