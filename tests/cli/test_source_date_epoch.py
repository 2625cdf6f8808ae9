"""A SOURCE_DATE_EPOCH that is not a time: whoever writes archives refuses it before there is anything to write."""

import os
from pathlib import Path

import pytest

from tests.factories.faults import run
from tests.factories.tools import needs
from tests.factories.writing_commands import WRITING_COMMANDS, WritingCommand

pytestmark = [pytest.mark.skipif(os.uname().machine != "x86_64", reason="its wheels are for x86-64"), needs("gcc")]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("command", [each for each in reversed(WRITING_COMMANDS) if each.name != "index"], ids=str)
def test_every_command_that_writes_archives_refuses_it(command: WritingCommand, tmp_path: Path) -> None:
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    command.fill(inputs)
    place = command.prepared(tmp_path / "place", inputs)
    before = sorted(place.folder.rglob("*"))
    variables = {**place.variables, "SOURCE_DATE_EPOCH": "-1"}
    ended = run(*place.arguments, folder=place.folder, variables=variables)
    assert "SOURCE_DATE_EPOCH is '-1'; expected seconds since 1970, a whole number from 0" in " ".join(
        f"{ended.out} {ended.refusal}".split()
    )
    assert [path for path in sorted(place.folder.rglob("*")) if "cache" not in path.parts] == [
        path for path in before if "cache" not in path.parts
    ]
