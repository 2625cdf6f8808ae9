"""A release's parts are all of it, each target once, and each part's command chooses exactly its own."""

import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.factories.recipes import recipe
from vbuild.cli.matrix import matrix as command
from vbuild.errors import BuildError, RecipeError
from vbuild.recipe.model import Recipe
from vbuild.recipe.target import Target
from vbuild.release.emit import JobPart, Jobs, parts

LEVELS = ["x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"]
GROUPS = ['sm80 = "80,86"', 'sm90 = "90,90a"', 'sm120 = "120+ptx"']
CUDA = """
[[matrix.cuda]]
toolkit = "13.0"
gpus = { sm80 = "80,86,89", sm90 = "90,90a", sm120 = "120+ptx" }
"""


def axis(name: str, values: list[str]) -> str:
    rows = "".join(f'"{value}" = {{ properties = ["x :: {name} :: {value}"] }}\n' for value in values)
    return f"[matrix.axes.{name}]\n{rows}"


def jobs(source: str, *options: str) -> Jobs:
    return Jobs("demo", source, (), options, "x86_64", "3.12")


def selected(recipe: Recipe, part: JobPart) -> tuple[Target, ...]:
    """What `vbuild matrix` would build, asked by *part*'s own command."""
    program, verb, *arguments = jobs("demo.toml").command(part)
    assert (program, verb) == ("vbuild", "matrix")
    chosen = command.make_context("matrix", arguments).params
    assert chosen["part"]
    assert chosen["folder"] == Path("parts") / part.name
    return recipe.chosen(only=chosen["only"], pythons=chosen["python"])


def check(recipe: Recipe) -> tuple[JobPart, ...]:
    """The parts of *recipe*, for which the laws hold."""
    found = parts(recipe)
    built = [selected(recipe, part) for part in found]
    assert sorted((target for targets in built for target in targets), key=repr) == sorted(recipe.targets, key=repr)
    assert [len({target.build_key for target in targets}) for targets in built] == [1] * len(found)
    assert len({targets[0].build_key for targets in built}) == len(found)
    assert len({part.name.lower() for part in found}) == len(found)
    assert all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,71}", part.name) for part in found)
    return found


labels = st.text("abc_.1", min_size=1, max_size=5).filter(lambda label: label != "null")


@pytest.mark.nightly
@settings(max_examples=40)
@given(
    pythons=st.lists(
        st.sampled_from(["3.9", "3.10", "3.12", "3.12.1", "3.13t", "pypy3.10", "cpython@3.12"]), unique=True
    ),
    levels=st.lists(st.sampled_from(LEVELS), unique=True),
    groups=st.lists(st.sampled_from(GROUPS), unique=True),
    free=st.lists(labels, unique=True, max_size=4),
    strategy=st.sampled_from(["fat", "separate"]),
    plain=st.sampled_from(["cuda", "cpu"]),
)
def test_the_parts_together_are_all_targets_and_each_command_chooses_its_own(
    *, pythons: list[str], levels: list[str], groups: list[str], free: list[str], strategy: str, plain: str
) -> None:
    text = f"[matrix]\npython = {pythons or ['3.11']}\ncpu = {list(dict.fromkeys(['x86-64', *levels]))}\n"
    if groups:
        text += f'plain = "{plain}"\n'
    text += axis("free", free) if free else ""
    if groups:
        text += f'[[matrix.cuda]]\ntoolkit = "13.0"\nstrategy = "{strategy}"\ngpus = {{ {", ".join(groups)} }}\n'
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = recipe(Path(folder), text)
        except RecipeError:  # two wheels that would be one are the recipe's own affair
            return
        check(found)


def test_a_fat_build_with_all_its_groups_is_one_part(tmp_path: Path) -> None:
    found = check(recipe(tmp_path, f'[matrix]\ncpu = ["x86-64", "x86-64-v3"]\n{CUDA}'))
    assert [(part.name, part.labels, part.cuda) for part in found] == [
        ("plain", ("plain", "sm80", "sm90", "sm120"), "13.0"),
        ("x86_64_v3", ("x86_64_v3_sm80", "x86_64_v3_sm90", "x86_64_v3_sm120"), "13.0"),
    ]


def test_each_python_has_parts_of_its_own(tmp_path: Path) -> None:
    found = check(recipe(tmp_path, '[matrix]\npython = ["3.9", "3.13t", "pypy3.10"]\ncpu = ["x86-64-v3"]\n'))
    assert [(part.name, part.python, part.version) for part in found] == [
        ("plain-cp39", "3.9", "3.9"),
        ("x86_64_v3-cp39", "3.9", "3.9"),
        ("plain-cp313t", "3.13t", "3.13t"),
        ("x86_64_v3-cp313t", "3.13t", "3.13t"),
        ("plain-pypy3.10", "pypy3.10", "pypy3.10"),
        ("x86_64_v3-pypy3.10", "pypy3.10", "pypy3.10"),
    ]
    assert found[3].selection == ("--only", "x86_64_v3", "--python", "3.13t")


def test_a_python_beside_the_recipe_is_called_by_the_way_to_it(tmp_path: Path) -> None:
    for folder in ("tools/a", "py 3/bin"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "python").touch()
    outside = tmp_path.parent / f"{tmp_path.name} python"
    outside.touch()
    pythons = ["tools/a/python", "py 3/bin/python", str(outside)]
    found = check(recipe(tmp_path, f'[matrix]\npython = {pythons}\ncpu = ["x86-64"]\n'))
    assert [(part.python, part.version) for part in found] == [
        ("./tools/a/python", None),
        ("./py 3/bin/python", None),
        (str(outside), None),
    ]
    assert [part.name for part in found][:2] == ["plain-python", "plain-python-2"]


def test_names_that_would_be_one_stay_apart(tmp_path: Path) -> None:
    long = ["a" * 100 + end for end in ("b", "c")]
    odd = ["..", ".", "x", ".x", "plain.", "plain-3.9".replace("-", "_")]
    found = check(recipe(tmp_path, f"[matrix]\n{axis('free', ['none', *long, *odd])}"))
    names = [part.name for part in found]
    assert names[:1] == ["plain"]
    assert "part" in names
    assert "part-2" in names
    assert "x-2" in names
    assert sum(len(name) == 64 for name in names) == 2


def test_a_variant_that_is_called_as_the_plain_wheel_is_refused(tmp_path: Path) -> None:
    found = recipe(tmp_path, f"[matrix]\n{axis('free', ['x', 'plain'])}")
    with pytest.raises(BuildError) as refusal:
        parts(found)
    assert str(refusal.value) == (
        f"{tmp_path}/demo.toml: a variant is labelled 'plain', as --only calls the plain wheel; expected another label"
    )
