"""Recipes: the smallest one, with whatever a test wants to say on top."""

from pathlib import Path

from vbuild.recipe.model import Recipe

HASH = "0123456789abcdef" * 4
SOURCE = f'name = "demo"\n[source]\nsdist = "demo==1.0"\nsha256 = "{HASH}"\n'


def recipe(folder: Path, text: str, *, source: str = SOURCE) -> Recipe:
    """The recipe ``demo.toml`` in *folder*: *source*, then *text*."""
    path = folder / "demo.toml"
    path.write_text(source + text)
    return Recipe.load(path)


def project(folder: Path, text: str) -> Path:
    """A project folder whose ``pyproject.toml`` says *text* after its name."""
    (folder / "project").mkdir(exist_ok=True)
    (folder / "project" / "pyproject.toml").write_text(f'[project]\nname = "demo"\n{text}')
    return folder / "project"
