"""docs/reference/recipe.md against the code: its table has the keys that are read, and its examples can be read."""

import re
from pathlib import Path

import pytest

from tests.factories.recipes import HASH, SOURCE
from vbuild.config.table import Table
from vbuild.recipe.model import Recipe
from vbuild.recipe.source import Folder, Git, Sdist, Source
from vbuild.splitting.request import SplitRequest

RECIPES = Path(__file__).parents[2] / "recipes"
PAGE = (RECIPES.parent / "docs" / "reference" / "recipe.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)

# one recipe that has something in every place where names are the reader's choice
EVERYTHING = f"""{SOURCE}
[matrix]
cpu = ["x86-64", "x86-64-v3"]
exclude = [{{ cpu = "x86-64-v3", axis = "second" }}]
requires = {{ project = ["1"] }}
[[matrix.cuda]]
toolkit = {{ path = ".", version = "13.0" }}
gpus = {{ sm90 = "90" }}
env = {{ name = "" }}
config-settings = {{ name = "" }}
[matrix.axes.axis.value]
properties = ["a :: b :: c"]
env = {{ name = "" }}
config-settings = {{ name = "" }}
[matrix.axes.axis.second]
properties = ["a :: b :: d"]
[[native]]
name = "debian"
source = {{ debian = "gmp", version = "1", sha256 = "{HASH}" }}
build = "cmake"
configure = {{ all = [""], x86-64-v3 = [""] }}
env = {{ name = "" }}
[[native]]
name = "sdist"
source = {{ sdist = "gmp==1", sha256 = "{HASH}" }}
build = "script"
script = [""]
[[native]]
name = "path"
source = {{ path = "." }}
build = "meson"
[[native]]
name = "git"
source = {{ git = ".", commit = "{HASH}" }}
build = "autotools"
[build]
env = {{ name = "" }}
config-settings = {{ name = "" }}
cuda = {{ files = {{ glob = "keep" }} }}
[bench]
command = "true"
[split]
[variant]
"""
CHOSEN = {
    "matrix.cuda[0].gpus.sm90": "matrix.cuda[].gpus.<label>",
    "matrix.cuda[0]": "matrix.cuda[]",
    "build.cuda.files.glob": "build.cuda.files.<glob>",
    "matrix.axes.axis.value": "matrix.axes.<axis>.<value>",
    "matrix.requires.project": "matrix.requires.<project>",
    "matrix.exclude[0].axis": "matrix.exclude[].<axis>",
    "configure.x86-64-v3": "configure.<level>",
    "env.name": "env.<name>",
    "config-settings.name": "config-settings.<name>",
}


class _Recording(Table):
    """A table that keeps the names of all keys that anyone asks for."""

    asked: set[str]

    def raw(self, key: str) -> object:
        self.asked.add(self.place(key))
        return super().raw(key)


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The keys asked for in reading a recipe that says everything, and one of each other source."""
    monkeypatch.setattr(_Recording, "asked", set(), raising=False)
    monkeypatch.setattr("vbuild.recipe.model.Table", _Recording)
    others = ['path = "."', f'git = "."\ncommit = "{"0" * 40}"']
    for text in (
        EVERYTHING,
        *(f'name = "demo"\n[source]\n{source}\n[matrix]\ncpu = ["x86-64"]\n' for source in others),
    ):
        (tmp_path / "demo.toml").write_text(text)
        recipe = Recipe.load(tmp_path / "demo.toml")
        if recipe.split:
            SplitRequest.read(recipe.split)
    return {key for key in _Recording.asked if "second" not in key}


def _deepest(keys: set[str]) -> set[str]:
    return {key for key in keys if not any(other.startswith((f"{key}.", f"{key}[")) for other in keys)}


def _documented(key: str) -> str:
    for chosen, name in CHOSEN.items():
        key = key.replace(chosen, name)
    key = re.sub(r"^native\[\d\]", "native[]", key)
    return re.sub(r"^matrix\.exclude\[0\]\.cpu$", r"matrix.exclude[].<axis>", key)


def test_the_table_lists_exactly_the_keys_that_are_read(asked: set[str]) -> None:
    files = {path.name for path in RECIPES.iterdir()}
    listed = [key for key in re.findall(r"^\| `([^`]+)` \|", PAGE, re.MULTILINE) if key not in files]
    # the variant table is another reader's, but for the variants listed in it; these two are one value or a table
    others = {"variant", "matrix.cuda[].toolkit", "native[].configure"}
    assert sorted(listed) == sorted(_deepest({_documented(key) for key in _deepest(asked)}) | others)


def test_the_examples_show_a_source_of_each_kind(tmp_path: Path) -> None:
    for folder in ("demo", "fast", "recipes"):
        (tmp_path / folder).mkdir()
    kinds: list[type[Source]] = []
    for text in EXAMPLES:
        path = tmp_path / "recipes" / "demo.toml"
        path.write_text(text)
        kinds.append(type(Recipe.load(path).source))
    assert kinds == [Sdist, Folder, Git, Sdist, Sdist, Folder, Folder, Folder, Sdist]


def test_the_example_of_gpus_is_as_many_builds_and_wheels_as_it_says(tmp_path: Path) -> None:
    (example,) = (text for text in EXAMPLES if "matrix.cuda" in text)
    (tmp_path / "demo.toml").write_text(example)
    targets = Recipe.load(tmp_path / "demo.toml").targets
    assert "Two builds, one for each CPU level, both compiled for 75, 80, 86, 89, 90, 90a and 120 with PTX" in PAGE
    assert {str(target.cuda.archs) for target in targets if target.cuda} == {
        "sm_75,sm_80,sm_86,sm_89,sm_90,sm_90a,sm_120+PTX"
    }
    assert (len({target.build_key for target in targets}), len(targets)) == (2, 9)


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.name)
def test_every_recipe_here_is_listed_and_builds_all_levels_or_for_groups_of_gpus(path: Path) -> None:
    found = Recipe.load(path)
    assert f"| `{path.name}` |" in PAGE
    assert isinstance(found.source, Sdist)
    assert found.test.command
    groups = [group.label for entry in found.matrix.cuda for group in entry.groups]
    # nothing in between is worth minutes of a native dependency
    levels = ["v3", "v4"] if found.natives else ["v2", "v3", "v4"]
    expected = groups or [f"x86_64_{level}" for level in levels]
    assert [str(target) for target in found.targets] == ["plain", *expected]
