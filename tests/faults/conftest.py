"""Runs that nobody disturbed, made once for all tests of a process."""

import pytest

from tests.factories.disturbed_runs import UndisturbedRun
from tests.factories.writing_commands import WritingCommand


@pytest.fixture(scope="session")
def known() -> dict[str, UndisturbedRun]:
    return {}


@pytest.fixture
def undisturbed(
    request: pytest.FixtureRequest, known: dict[str, UndisturbedRun], tmp_path_factory: pytest.TempPathFactory
) -> UndisturbedRun:
    """What a run of the command that the test is about gives."""
    command: WritingCommand = request.param
    if command.name not in known:
        known[command.name] = UndisturbedRun.of(command, tmp_path_factory.mktemp(command.name))
    return known[command.name]
