"""Recipes to emit: of every kind, and one whose names have to be quoted everywhere."""

from pathlib import Path

from tests.factories.recipes import SOURCE

LEVELS = 'cpu = ["x86-64", "x86-64-v2", "x86-64-v3"]\n'
CUDA = 'cuda = [{ toolkit = "13.0", gpus = { sm80 = "80", sm90 = "90,90a", sm120 = "120+ptx" } }]\n'
PYTHONS = 'python = ["3.9", "3.10", "3.13t", "pypy3.10", "py 3/python"]\n'
ODD = 'it\'s ${{ github.token }} & "$HOME".toml'


def values(number: int) -> str:
    """A matrix of *number* wheels besides the plain one, less one."""
    rows = "".join(f'a{index} = {{ properties = ["x :: y :: v{index}"] }}\n' for index in range(number))
    return f"[matrix.axes.free]\n{rows}"


def written_recipe(folder: Path, text: str, name: str = "demo.toml", *, source: str = SOURCE) -> Path:
    """The recipe *name* in *folder*, by its path from there."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(source + text)
    return Path(name)


def recipes_of_every_kind(folder: Path) -> list[Path]:
    """Levels; levels, groups of GPUs and Pythons under an odd name; and more wheels than one matrix has jobs."""
    (folder / "py 3").mkdir()
    (folder / "py 3" / "python").touch()
    return [
        written_recipe(folder, f"[matrix]\n{LEVELS}", "levels.toml"),
        written_recipe(folder, f"[matrix]\n{PYTHONS}{LEVELS}{CUDA}", ODD),
        written_recipe(folder, values(600), "many.toml"),
    ]
