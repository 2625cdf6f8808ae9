"""Requirements: what cannot be read is refused in one way, and equal requirements are equal texts."""

import pytest
from packaging.requirements import InvalidRequirement

from vbuild.config.requirements import checked_requirement, parsed_requirement, read_requirement, spelled
from vbuild.errors import RecipeError

DEEP = "a; " + "(" * 50_000 + "os_name == 'posix'"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("a b", ("Expected ",)),
        ("a (==1", ("Expected matching RIGHT_PARENTHESIS",)),
        # packaging says so itself from 26.4 on
        (DEEP, ("brackets in brackets, too deep to be read", "Marker expression is nested more than ")),
    ],
    ids=["words", "bracket", "deep"],
)
def test_what_is_no_requirement_is_refused_in_one_line(line: str, reason: tuple[str, ...]) -> None:
    assert read_requirement(line) is None
    with pytest.raises(InvalidRequirement):
        parsed_requirement(line)
    with pytest.raises(RecipeError) as refusal:
        checked_requirement(line, RecipeError)
    said = str(refusal.value)
    assert said.removeprefix(f"{line!r} is not a requirement: ").startswith(reason)
    assert "\n" not in said


def test_equal_requirements_are_equal_texts_and_unreadable_ones_stay() -> None:
    assert spelled("Demo_Libs (>=1,<2)") == spelled("demo-libs<2,>=1")
    assert spelled("not   a  requirement") == "not a requirement"
