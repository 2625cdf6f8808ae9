"""Runs that nobody disturbed, made once for all tests of a process."""

import pytest

from tests.factories.disturbed import Undisturbed
from tests.factories.subjects import Subject


@pytest.fixture(scope="session")
def known() -> dict[str, Undisturbed]:
    return {}


@pytest.fixture
def undisturbed(
    request: pytest.FixtureRequest, known: dict[str, Undisturbed], tmp_path_factory: pytest.TempPathFactory
) -> Undisturbed:
    """What a run of the subject that the test is about gives."""
    subject: Subject = request.param
    if subject.name not in known:
        known[subject.name] = Undisturbed.of(subject, tmp_path_factory.mktemp(subject.name))
    return known[subject.name]
